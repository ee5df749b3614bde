"""``headstart tune`` as one self-contained HTML page."""

from __future__ import annotations

from html import escape
from math import log10
from typing import TYPE_CHECKING

from headstart.decisions import Rule
from headstart.report.markup import document, key, section, table
from headstart.report.svg import BOTTOM, LEFT, frame, line, place_x, place_y, rule, write

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headstart.lab.rates import Rates
    from headstart.lab.tuning import Borderline, Moment, Roc, Target, Tuning

NOTES = """\
Each target was played in time order from an empty cache, learning as production does. Late is the
second half, when much had been learned. Wrong is what the labels, or the agreement judge, call
another answer; intervals are Wilson's at 95 %. Where nothing qualifies, nothing is served."""
_LOWEST, _HIGHEST = 0.004, 0.12
"""Error targets at the ends of a logarithmic axis."""


def render_tuning(found: Tuning) -> str:
    """Return the findings as an HTML document."""
    return document(
        title="Headstart tune",
        heading="What this log allows",
        period=f"{found.n:,} prompts; chosen target {found.max_error:.2%}",
        body="\n".join(_sections(found)),
        notes=NOTES,
    )


def _sections(found: Tuning) -> Iterator[str]:
    marks = key((("semantic", "whole log"), ("exact", "its second half")))
    yield section(
        "Hits against the error target", marks + _hits(found.targets) + _targets(found.targets)
    )
    moments = [moment for moment in found.course if moment.rule == Rule.LEARNED.value]
    if any(moment.threshold is not None for moment in moments):
        yield section("The learned threshold over time", _thresholds(found.course))
    if found.course:
        yield section("Hit rate over time", _rates(found.course))
    if found.roc:
        yield section("Telling same from different answers", _roc(found.roc))
    if found.borderline:
        yield section("Borderline pairs", _pairs(found.borderline))
    for template in found.templates:
        words = f"{template.prompts:,} prompts share {template.template_chars:,} characters:"
        yield section(
            "A template", f"<p>{escape(words)}</p><p><code>{escape(template.pattern)}</code></p>"
        )


def _targets(targets: Sequence[Target]) -> str:
    header = (
        "error target", "hits", "late hits", "wrong per hit", "95 %", "wrong per request", "95 %",
    )  # fmt: skip
    return table(
        header,
        [
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
        ],
    )


def _hits(targets: Sequence[Target]) -> str:
    def x(max_error: float) -> float:
        share = log10(max_error / _LOWEST) / log10(_HIGHEST / _LOWEST)
        return place_x(share)

    parts = [rule(place_y(share / 4), f"{share * 25} %") for share in range(5)]
    parts += [
        write(x(target.max_error), BOTTOM + 20, f"{target.max_error:.1%}", "middle")
        for target in targets
    ]
    for kind, rates in (
        ("semantic", [target.rates for target in targets]),
        ("exact", [target.late for target in targets]),
    ):
        points = [
            (x(target.max_error), place_y(each.hit_rate or 0.0))
            for target, each in zip(targets, rates, strict=True)
        ]
        parts.append(line(kind, points))
    return frame("Hit rate against error target", parts)


def _thresholds(moments: Sequence[Moment]) -> str:
    """Draw the threshold where the learned rule has one; gaps are cold start or no threshold."""
    known = [_learned(moment) for moment in moments]
    values = [value for value in known if value is not None]
    low, high = min(values) - 0.5, max(values) + 0.5
    parts = [
        rule(place_y(share / 4), f"{low + (high - low) * share / 4:.1f}") for share in range(5)
    ]
    run: list[tuple[float, float]] = []
    for moment, value in zip(moments, known, strict=True):
        if value is None:
            parts += [line("semantic", run)] if run else []
            run = []
        else:
            x = place_x(moment.n / moments[-1].n)
            run.append((x, place_y((value - low) / (high - low))))
    parts += [line("semantic", run)] if run else []
    return frame("The learned threshold over time", [*parts, *_time_axis(moments)])


def _learned(moment: Moment) -> float | None:
    return moment.threshold if moment.rule == Rule.LEARNED.value else None


def _rates(moments: Sequence[Moment]) -> str:
    parts = [rule(place_y(share / 4), f"{share * 25} %") for share in range(5)]
    last = moments[-1].n
    points = [(place_x(moment.n / last), place_y(moment.hit_rate)) for moment in moments]
    return frame("Hit rate over time", [*parts, line("semantic", points), *_time_axis(moments)])


def _time_axis(moments: Sequence[Moment]) -> Iterator[str]:
    yield write(LEFT, BOTTOM + 20, "0", "start")
    yield write(place_x(1.0), BOTTOM + 20, f"{moments[-1].n:,} prompts", "end")


def _roc(curves: Sequence[Roc]) -> str:
    kinds = ("miss", "semantic")
    marks = key(
        (kind, f"{curve.name}: area {curve.area:.3f}")
        for kind, curve in zip(kinds, curves, strict=False)
    )
    parts = [rule(place_y(share / 4), f"{share * 25} %") for share in range(5)]
    parts += [
        write(place_x(share / 4), BOTTOM + 20, f"{share * 25} %", "middle") for share in range(5)
    ]
    parts += [
        line(kind, [(place_x(wrong), place_y(right)) for wrong, right in curve.points])
        for kind, curve in zip(kinds, curves, strict=False)
    ]
    words = '<p class="soft">Share of same answers (up) and of different ones (right) above any '
    return words + "threshold.</p>" + marks + frame("ROC", parts)


def _pairs(pairs: Sequence[Borderline]) -> str:
    return table(
        ("asked / stored", "similarity", "margin", "served", "same answer"),
        [
            (
                f"{pair.asked} / {pair.stored}",
                f"{pair.similarity:.3f}",
                f"{pair.margin:+.2f}",
                "yes" if pair.served else "no",
                {True: "yes", False: "no", None: "unsure"}[pair.same],
            )
            for pair in pairs
        ],
    )


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{share:.2%}"


def _interval(rates: Rates, name: str) -> str:
    interval = rates.intervals[name]
    return "" if interval is None else f"{interval.low:.2%} to {interval.high:.2%}"
