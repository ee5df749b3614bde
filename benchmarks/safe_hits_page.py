"""A run of ``benchmarks.safe_hits_http`` as plots: error, hit rate, audits, memory over time."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from benchmarks.safe_hits_scores import Asked, Sample, text_table
from headstart.report.sections import (
    LEFT,
    ReportSection,
    Table,
    curve_through,
    frame,
    grid,
    key,
    place_x,
    place_y,
    render_document,
    tick,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


WINDOW = 1000
"""Requests over which a rate over time is taken."""
LEAST_HITS = 50
"""A share of fewer hits says nothing."""


def page(
    title: str,
    found: dict[str, Any],
    rows: Sequence[Asked],
    samples: Sequence[Sample],
    target: float,
) -> str:
    """Return the run as one self-contained HTML document."""
    last = max(len(rows), 1)
    hits, recent, total = _courses(rows)
    errors = [("error", total), ("semantic", recent)]
    bound = [(sample.n, _bound(sample)) for sample in samples if sample.certificates]
    more = [(sample.n, count) for sample in samples if (count := _more(sample)) is not None]
    sections = [
        ReportSection("Wrong hits per semantic hit", plot=lambda: key(
            (("error", "since the start"), ("semantic", f"last {WINDOW:,} requests"),
             ("exact", "certificate's bound"), ("miss", "max_error")))
            + _plot("Wrong per hit", [*errors, ("exact", bound),
                    ("miss", [(0, target), (last, target)])], last, 10 * target, "{:.2%}")),
        ReportSection(f"Hit rate, last {WINDOW:,} requests", plot=lambda: _plot(
            "Hit rate", [("semantic", hits)], last, 1.0, "{:.0%}")),
        ReportSection("More audits until certified; none where the rate so far is too high",
                plot=lambda: _plot("More audits", [("semantic", more)], last,
                                   max([value for _, value in more] or [1]), "{:,.0f}")),
        ReportSection("Resident memory, MB", plot=lambda: _plot(
            "Memory", [("semantic", [(s.n, s.rss_mb) for s in samples])], last,
            1.25 * found["rss_mb"]["most"], "{:,.0f}")),
        ReportSection("Figures", plot=lambda: (
            f'<div class="scroll"><pre>{escape(text_table(found, target))}</pre></div>')),
        ReportSection("Quarters", Table(
            ("quarter", "requests", "hits", "wrong"),
            [(str(place), *map(str, quarter.values()))
             for place, quarter in enumerate(found["quarters"], 1)])),
    ]  # fmt: skip
    style = "<style>.curve.error{stroke:#c33}i.error{background:#c33}</style>"
    return render_document(
        title=title,
        heading=title,
        period=f"{len(rows):,} requests in {rows[-1].at_s / 60:.1f} minutes",
        before=style,
        parts=sections,
        notes="Every semantic hit is scored against the class of the prompt whose answer it got.",
    )


def _courses(
    rows: Sequence[Asked],
) -> tuple[list[tuple[int, float]], list[tuple[int, float]], list[tuple[int, float]]]:
    """Return hit rate and wrong per hit of the window, and wrong per hit since the start."""
    rate, recent, total = [], [], []
    hits = wrong = 0
    for end in range(50, len(rows) + 1, 50):
        part = rows[end - 50 : end]
        hits += sum(row.outcome == "semantic" for row in part)
        wrong += sum(row.wrong is True for row in part)
        window = [row for row in rows[max(0, end - WINDOW) : end] if row.outcome == "semantic"]
        rate.append((end, len(window) / min(end, WINDOW)))
        if len(window) >= LEAST_HITS:
            recent.append((end, sum(row.wrong is True for row in window) / len(window)))
        if hits:
            total.append((end, wrong / hits))
    return rate, recent, total


def _bound(sample: Sample) -> float:
    return max(float(row["bound_per_hit"]) for row in sample.certificates)


def _more(sample: Sample) -> float | None:
    """Return the most audits that a domain still needs; None: its error rate is too high."""
    counts = [row["more_audits"] for row in sample.certificates]
    return None if None in counts or not counts else float(max(counts))


def _plot(
    label: str,
    curves: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    last: float,
    top: float,
    form: str,
) -> str:
    parts = grid(lambda share: form.format(top * share))
    for kind, points in curves:
        placed = [(place_x(x / last), place_y(min(y / top, 1.0))) for x, y in points]
        parts += [curve_through(kind, placed)] if placed else []
    parts += [tick(LEFT, "0", "start")]
    parts += [tick(place_x(1.0), f"{last:,.0f} requests", "end")]
    return frame(label, parts)
