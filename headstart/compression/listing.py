"""Listings with numbered lines, without the blanks before the numbers; and back, byte for byte.

``cat -n`` and the reading tools of coding agents set line numbers flush right. The blanks are a
fifteenth of all that such agents send. The lines themselves do not change, so a model edits a file
from the shorter listing as well as from the longer one.
"""

from __future__ import annotations

import re
from itertools import pairwise

from headstart.types import Frozen

_LINE = re.compile(r"( *+)(\d{1,9})(\t|\u2192| ?[|\u2502])")
_MIN_LINES = 5
_MIN_SHARE = 0.8
"""The smallest share of the lines that have a number."""
_FIRST_LINES = 40
"""A listing has a number in one of so many lines."""


class Padding(Frozen):
    """How the numbers of a listing are set: flush right in ``width`` places, before ``sign``."""

    width: int
    sign: str


class PlainListing(Frozen):
    """A listing without blanks before its numbers, and the padding that restores them."""

    text: str
    padding: Padding


def strip_padding(text: str) -> PlainListing | None:
    """Return the listing without the blanks before its line numbers.

    None unless the text is a listing with rising numbers and ``pad`` restores it, which is checked.
    """
    # Line by line: one call over a long text would stop all other threads.
    lines = text.split("\n")
    if not any(map(_LINE.match, lines[:_FIRST_LINES])):
        return None
    found = [at.group(0, 1, 2, 3) for line in lines if (at := _LINE.match(line)) is not None]
    padded = next((each for each in found if each[1]), None)
    if padded is None or len(found) < max(_MIN_LINES, _MIN_SHARE * sum(map(bool, lines))):
        return None
    if any(int(after[2]) <= int(before[2]) for before, after in pairwise(found)):
        return None
    _, blanks, number, sign = padded
    padding = Padding(width=len(blanks) + len(number), sign=sign)
    begins = re.compile(rf" +\d+{re.escape(sign)}")
    short = "\n".join(line.lstrip(" ") if begins.match(line) else line for line in lines)
    return PlainListing(text=short, padding=padding) if pad(short, padding) == text else None


def pad(text: str, padding: Padding) -> str:
    """Return the listing with its blanks."""
    number = re.compile(rf"\d+(?={re.escape(padding.sign)})")
    return "\n".join(
        line if (at := number.match(line)) is None else " " * (padding.width - at.end()) + line
        for line in text.split("\n")
    )
