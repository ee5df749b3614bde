"""The frame that all plots share, as inline SVG: axes, grid lines, labels, curves."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, HEIGHT = 720, 280
LEFT, RIGHT, TOP, BOTTOM = 54, 696, 14, 244


def place_x(share: float) -> float:
    """Return the abscissa of a share of the plot's width."""
    return LEFT + share * (RIGHT - LEFT)


def place_y(share: float) -> float:
    """Return the ordinate of a share of the plot's height, from the axis upwards."""
    return BOTTOM - share * (BOTTOM - TOP)


def rule(y: float, label: str) -> str:
    """Return a grid line with its label, or the axis if it lies at the bottom."""
    kind = "axis" if y == BOTTOM else "grid"
    line = f'<line class="{kind}" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return line + write(LEFT - 8, y + 4, label, "end")


def write(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    """Return a text."""
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def line(kind: str, points: Sequence[tuple[float, float]]) -> str:
    """Return a curve through points; one class of CSS names its colour."""
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path class="curve {kind}" d="M{path}"/>'


def frame(label: str, parts: Sequence[str]) -> str:
    """Return the plot; ``label`` is for those who do not see it."""
    return (
        f'<div class="scroll"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg></div>'
    )
