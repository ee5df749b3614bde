"""Inline SVG: two distributions on a logarithmic axis, and bars over time."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from math import ceil, floor, log10
from typing import TYPE_CHECKING

from headstart.decisions import Outcome
from headstart.report.statistics import quantile
from headstart.report.svg import BOTTOM, LEFT, RIGHT, frame, place_y, rule, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.report.values import Point, Span

SHORTEST_S = 1e-5
"""A logarithmic axis has no zero."""
MAX_BAR = 24.0
GAP = 2.0
STACK = (Outcome.EXACT, Outcome.SEMANTIC, Outcome.JOINED, Outcome.MISS, Outcome.BYPASS)
"""From the axis upwards."""


def distributions(hits: Sequence[Point], misses: Sequence[Point]) -> str:
    """Plot which share of hits and of misses had their first byte after how long."""
    seconds = [max(point.seconds, SHORTEST_S) for point in (*hits, *misses)]
    low, high = floor(log10(min(seconds))), ceil(log10(max(seconds)))
    high = max(high, low + 1)

    def x(value: float) -> float:
        share = (log10(max(value, SHORTEST_S)) - low) / (high - low)
        return LEFT + share * (RIGHT - LEFT)

    parts = [rule(place_y(share / 4), f"{share * 25} %") for share in range(5)]
    parts += [
        write(x(10.0**power), BOTTOM + 20, _decade(power), "middle")
        for power in range(low, high + 1)
    ]
    for name, points in (("misses", misses), ("hits", hits)):
        if points:
            parts.append(
                _curve(name, [(x(point.seconds), place_y(point.share)) for point in points])
            )
            # Low on the curve there is room at its right; unequal heights keep labels apart.
            share = 0.3 if name == "hits" else 0.15
            place = x(quantile([point.seconds for point in points], share)) + 8
            anchor = "start" if place < RIGHT - 60 else "end"
            place -= 0 if anchor == "start" else 16
            parts.append(write(place, place_y(share), name, anchor, "label"))
    return frame("Distribution of the time to first token, hits against misses", parts)


def timeline(spans: Sequence[Span], step_s: float) -> str:
    """Plot requests by outcome over time, stacked."""
    first = spans[0].start
    bars = round((spans[-1].start - first) / step_s) + 1
    pitch = (RIGHT - LEFT) / bars
    width = max(1.0, min(MAX_BAR, pitch - GAP))
    tallest = max(sum(span.outcomes.values()) for span in spans)
    ticks = sorted({0, ceil(tallest / 2), tallest})
    parts = [rule(place_y(tick / tallest), f"{tick:,}") for tick in ticks]
    for span in spans:
        left = LEFT + pitch * ((span.start - first) / step_s + 0.5) - width / 2
        parts.append(_bar(span, left, width, tallest))
    for place, anchor, start in ((LEFT, "start", first), (RIGHT, "end", spans[-1].start)):
        if anchor == "start" or bars > 1:
            parts.append(write(place, BOTTOM + 20, instant(start), anchor))
    return frame("Requests over time, by outcome", parts)


def instant(unix: float) -> str:
    """Return a time as UTC, to the second."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _bar(span: Span, left: float, width: float, tallest: int) -> str:
    below = 0
    parts = []
    for outcome in STACK:
        count = span.outcomes.get(outcome.value, 0)
        if count:
            top, bottom = place_y((below + count) / tallest), place_y(below / tallest)
            height = max(bottom - top - (1 if below else 0), 0.5)
            parts.append(
                f'<rect class="{outcome.value}" x="{left:.1f}" y="{top:.1f}" '
                f'width="{width:.1f}" height="{height:.1f}"/>'
            )
            below += count
    counts = ", ".join(f"{name} {count:,}" for name, count in sorted(span.outcomes.items()))
    return f"<g><title>{instant(span.start)}: {escape(counts)}</title>{''.join(parts)}</g>"


def _decade(power: int) -> str:
    return f"{10.0 ** (power + 3):g} ms" if power < 0 else f"{10**power:,} s"


def _curve(name: str, points: Sequence[tuple[float, float]]) -> str:
    steps = "".join(f"H{x:.1f}V{y:.1f}" for x, y in points)
    path = f"M{points[0][0]:.1f} {BOTTOM}{steps}H{RIGHT}"
    return f'<path class="curve {name}" d="{path}"/>'
