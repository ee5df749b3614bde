"""Text cut into what can be kept or left out whole: sentences, lines, fenced code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_FENCE = re.compile(r"^(```|~~~).*?(?:^\1[^\n]*(?:\n|\Z)|\Z)", re.MULTILINE | re.DOTALL)
_ABBREVIATION = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|No|Fig|Inc|Ltd|Co|Corp|Gen|Col|Sgt|Lt|Rev|Hon|Vol"
    r"|pp|ca|cf|al|e\.g|i\.e|a\.m|p\.m|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec)"
    r"|(?:^|[\s.(])[A-Z])\.$"
)
_END = re.compile(r"\n+|[.!?][\"')\]\u201d\u2019]*[ \t]+(?=[\"'(\[\u201c\u2018]?[A-Z0-9])")


def sentences(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each piece. The pieces are ``text``, whole and in order.

    A line break ends a piece; fenced code is one piece.
    """
    pieces: list[tuple[int, int]] = []
    at = 0
    for fence in _FENCE.finditer(text):
        pieces += _prose(text, at, fence.start())
        pieces.append(fence.span())
        at = fence.end()
    pieces += _prose(text, at, len(text))
    return pieces


def _prose(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    at = start
    for found in _END.finditer(text, start, end):
        sign = text[found.start()]
        tail = text[max(at, found.start() - 12) : found.start() + 1]
        if sign == "." and _ABBREVIATION.search(tail):
            continue
        yield at, found.end()
        at = found.end()
    if at < end:
        yield at, end
