"""Plots as inline SVG: their frame, axes and curves, and the two plots of the report."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from math import ceil, floor, log10
from typing import TYPE_CHECKING

from headstart.decisions import Outcome
from headstart.report.statistics import quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headstart.report.values import Point, TimelineBar

WIDTH, HEIGHT = 720, 280
LEFT, RIGHT, TOP, BOTTOM = 54, 696, 14, 244
SHORTEST_S = 1e-5
"""A logarithmic axis has no zero."""
MAX_BAR = 24.0
GAP = 2.0
STACK = (Outcome.EXACT, Outcome.SEMANTIC, Outcome.JOINED, Outcome.MISS, Outcome.BYPASS)
"""The outcomes in one bar, from the axis upwards."""


def key(entries: Iterable[tuple[str, str]]) -> str:
    """Return the key of a plot from pairs of CSS class and name."""
    marks = "".join(f'<span><i class="{kind}"></i>{escape(name)}</span>' for kind, name in entries)
    return f'<div class="key">{marks}</div>'


def frame(label: str, parts: Iterable[str]) -> str:
    """Return the plot; screen readers read ``label``."""
    return (
        f'<div class="scroll"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg></div>'
    )


def place_x(share: float) -> float:
    """Return the abscissa of a share of the plot's width."""
    return LEFT + share * (RIGHT - LEFT)


def place_y(share: float) -> float:
    """Return the ordinate of a share of the plot's height, from the axis upwards."""
    return BOTTOM - share * (BOTTOM - TOP)


def percent_label(share: float) -> str:
    """Return ``25 %``."""
    return f"{share * 100:.0f} %"


def grid(label: Callable[[float], str] = percent_label) -> list[str]:
    """Return five grid lines; ``label`` names the line at a share of the height."""
    return [grid_line(place_y(share), label(share)) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]


def grid_line(y: float, label: str) -> str:
    """Return a grid line with its label; the line at the bottom is the axis."""
    kind = "axis" if y == BOTTOM else "grid"
    line = f'<line class="{kind}" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return line + text_at(LEFT - 8, y + 4, label, "end")


def tick(x: float, label: str, anchor: str = "middle") -> str:
    """Return a label below the axis."""
    return text_at(x, BOTTOM + 20, label, anchor)


def text_at(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    """Return a text at a place."""
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def curve_through(kind: str, points: Sequence[tuple[float, float]]) -> str:
    """Return a curve through points; the CSS class ``kind`` gives its colour."""
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path class="curve {kind}" d="M{path}"/>'


def distributions(hits: Sequence[Point], misses: Sequence[Point]) -> str:
    """Plot the share of hits and of misses whose first token came within a time."""
    seconds = [max(point.seconds, SHORTEST_S) for point in (*hits, *misses)]
    low, high = floor(log10(min(seconds))), ceil(log10(max(seconds)))
    high = max(high, low + 1)

    def x(value: float) -> float:
        return place_x((log10(max(value, SHORTEST_S)) - low) / (high - low))

    parts = grid()
    parts += [tick(x(10.0**power), _decade(power)) for power in range(low, high + 1)]
    for name, points in (("misses", misses), ("hits", hits)):
        if points:
            steps = "".join(f"H{x(p.seconds):.1f}V{place_y(p.share):.1f}" for p in points)
            path = f"M{x(points[0].seconds):.1f} {BOTTOM}{steps}H{RIGHT}"
            parts.append(f'<path class="curve {name}" d="{path}"/>')
            # Low on the curve there is room at its right; unequal heights keep labels apart.
            share = 0.3 if name == "hits" else 0.15
            place = x(quantile([point.seconds for point in points], share)) + 8
            anchor = "start" if place < RIGHT - 60 else "end"
            place -= 0 if anchor == "start" else 16
            parts.append(text_at(place, place_y(share), name, anchor, "label"))
    note = '<p class="soft">Share of requests whose first token came within the time below.</p>'
    marks = key((("exact", "hits"), ("miss", "misses")))
    return note + marks + frame("Distribution of the time to first token", parts)


def timeline(bars: Sequence[TimelineBar], step_s: float) -> str:
    """Plot requests by outcome over time, in stacked bars."""
    first = bars[0].start
    places = round((bars[-1].start - first) / step_s) + 1
    pitch = (RIGHT - LEFT) / places
    width = max(1.0, min(MAX_BAR, pitch - GAP))
    tallest = max(sum(bar.outcomes.values()) for bar in bars)
    counts = sorted({0, ceil(tallest / 2), tallest})
    parts = [grid_line(place_y(number / tallest), f"{number:,}") for number in counts]
    for bar in bars:
        left = LEFT + pitch * ((bar.start - first) / step_s + 0.5) - width / 2
        parts.append(_draw_bar(bar, left, width, tallest))
    parts.append(tick(LEFT, instant(first), "start"))
    if places > 1:
        parts.append(tick(RIGHT, instant(bars[-1].start), "end"))
    marks = key((outcome.value, outcome.value) for outcome in STACK)
    return marks + frame("Requests over time, by outcome", parts)


def instant(unix: float) -> str:
    """Return a time as UTC, to the second."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _draw_bar(bar: TimelineBar, left: float, width: float, tallest: int) -> str:
    below = 0
    parts = []
    for outcome in STACK:
        number = bar.outcomes.get(outcome.value, 0)
        if number:
            top, bottom = place_y((below + number) / tallest), place_y(below / tallest)
            height = max(bottom - top - (1 if below else 0), 0.5)
            parts.append(
                f'<rect class="{outcome.value}" x="{left:.1f}" y="{top:.1f}" '
                f'width="{width:.1f}" height="{height:.1f}"/>'
            )
            below += number
    counts = ", ".join(f"{name} {number:,}" for name, number in sorted(bar.outcomes.items()))
    return f"<g><title>{instant(bar.start)}: {escape(counts)}</title>{''.join(parts)}</g>"


def _decade(power: int) -> str:
    return f"{10.0 ** (power + 3):g} ms" if power < 0 else f"{10**power:,} s"
