"""``headstart tune`` as one self-contained HTML page."""

from __future__ import annotations

from html import escape
from math import log10
from typing import TYPE_CHECKING

from headstart.decisions import Rule
from headstart.report.plots import (
    LEFT,
    curve_through,
    frame,
    grid,
    key,
    place_x,
    place_y,
    tick,
)
from headstart.report.sections import ReportSection, Table, render_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headstart.lab.rates import Rates
    from headstart.lab.tuning import Borderline, Moment, Roc, TargetResult, Tuning

NOTES = """\
Each target was played in time order from an empty cache, with the same learning as in production.
"Late" is the second half, after most of the learning. "Wrong" is an answer that the labels, or the
agreement judge, call different; intervals are Wilson's at 95 %. A target that no threshold meets
serves nothing."""
_LOWEST, _HIGHEST = 0.004, 0.12
"""The error targets at the ends of a logarithmic axis."""


def render_tuning(found: Tuning) -> str:
    """Return the findings as an HTML document."""
    return render_document(
        title="Headstart tune",
        heading="What this log allows",
        period=f"{found.n:,} prompts; chosen target {found.max_error:.2%}",
        parts=_sections(found),
        notes=NOTES,
    )


def _sections(found: Tuning) -> Iterator[ReportSection]:
    targets, course = found.targets, found.course
    if found.advice is not None:
        words = " ".join(found.advice.words)
        yield ReportSection("Recommendation", note=words, plot=_code(found.advice.toml))
    yield ReportSection(
        "Hits against the error target", _targets(targets), plot=lambda: _hits(targets)
    )
    if any(_learned(moment) is not None for moment in course):
        yield ReportSection("The learned threshold over time", plot=lambda: _thresholds(course))
    if course:
        yield ReportSection("Hit rate over time", plot=lambda: _rates(course))
    if found.roc:
        yield ReportSection("Telling same from different answers", plot=lambda: _roc(found.roc))
    if found.borderline:
        yield ReportSection("Borderline pairs", _pairs(found.borderline))
    for template in found.templates:
        words = f"{template.prompts:,} prompts share {template.template_chars:,} characters:"
        yield ReportSection("A template", note=words, plot=_code(template.pattern))


def _code(text: str) -> Callable[[], str]:
    return lambda: f'<pre style="overflow-x:auto"><code>{escape(text)}</code></pre>'


def _targets(targets: Sequence[TargetResult]) -> Table:
    header = (
        "error target", "hits", "late hits", "wrong per hit", "95 %", "wrong per request", "95 %",
    )  # fmt: skip
    rows = [
        (
            f"{target.max_error:.1%}",
            _percent(target.rates.hit_rate),
            _percent(target.late.hit_rate),
            _percent(target.rates.wrong_per_hit),
            _interval(target.rates, "wrong_per_hit"),
            _percent(target.rates.wrong_per_request),
            _interval(target.rates, "wrong_per_request"),
        )
        for target in targets
    ]
    return Table(header, rows)


def _hits(targets: Sequence[TargetResult]) -> str:
    def x(max_error: float) -> float:
        return place_x(log10(max_error / _LOWEST) / log10(_HIGHEST / _LOWEST))

    def points(rates: Sequence[Rates]) -> list[tuple[float, float]]:
        return [
            (x(target.max_error), place_y(each.hit_rate or 0.0))
            for target, each in zip(targets, rates, strict=True)
        ]

    parts = [*grid(), *(tick(x(each.max_error), f"{each.max_error:.1%}") for each in targets)]
    parts.append(curve_through("semantic", points([target.rates for target in targets])))
    parts.append(curve_through("exact", points([target.late for target in targets])))
    marks = key((("semantic", "whole log"), ("exact", "its second half")))
    return marks + frame("Hit rate against error target", parts)


def _thresholds(moments: Sequence[Moment]) -> str:
    """Draw the learned threshold; a gap is a cold start, or a time without a threshold."""
    known = [_learned(moment) for moment in moments]
    values = [value for value in known if value is not None]
    low, high = min(values) - 0.5, max(values) + 0.5
    parts = grid(lambda share: f"{low + (high - low) * share:.1f}")
    run: list[tuple[float, float]] = []
    for moment, value in zip(moments, known, strict=True):
        if value is None:
            parts += [curve_through("semantic", run)] if run else []
            run = []
        else:
            x = place_x(moment.n / moments[-1].n)
            run.append((x, place_y((value - low) / (high - low))))
    parts += [curve_through("semantic", run)] if run else []
    return frame("The learned threshold over time", [*parts, *_time_axis(moments)])


def _learned(moment: Moment) -> float | None:
    return moment.threshold if moment.rule == Rule.LEARNED.value else None


def _rates(moments: Sequence[Moment]) -> str:
    last = moments[-1].n
    points = [(place_x(moment.n / last), place_y(moment.hit_rate)) for moment in moments]
    parts = [*grid(), curve_through("semantic", points), *_time_axis(moments)]
    return frame("Hit rate over time", parts)


def _time_axis(moments: Sequence[Moment]) -> Iterator[str]:
    yield tick(LEFT, "0", "start")
    yield tick(place_x(1.0), f"{moments[-1].n:,} prompts", "end")


def _roc(curves: Sequence[Roc]) -> str:
    kinds = ("miss", "semantic")
    marks = key(
        (kind, f"{curve.name}: area {curve.area:.3f}")
        for kind, curve in zip(kinds, curves, strict=False)
    )
    parts = grid()
    parts += [tick(place_x(share / 4), f"{share * 25} %") for share in range(5)]
    parts += [
        curve_through(kind, [(place_x(wrong), place_y(right)) for wrong, right in curve.points])
        for kind, curve in zip(kinds, curves, strict=False)
    ]
    words = '<p class="soft">Share of same answers (up) and of different ones (right) above any '
    return words + "threshold.</p>" + marks + frame("ROC", parts)


def _pairs(pairs: Sequence[Borderline]) -> Table:
    rows = [
        (
            f"{pair.asked} / {pair.stored}",
            f"{pair.similarity:.3f}",
            f"{pair.margin:+.2f}",
            "yes" if pair.served else "no",
            {True: "yes", False: "no", None: "unsure"}[pair.same],
        )
        for pair in pairs
    ]
    return Table(("asked / stored", "similarity", "margin", "served", "same answer"), rows)


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{share:.2%}"


def _interval(rates: Rates, name: str) -> str:
    interval = rates.intervals[name]
    return "" if interval is None else f"{interval.low:.2%} to {interval.high:.2%}"
