"""Listings with numbered lines, without the blanks before the numbers; and back, byte for byte.

``cat -n`` and the reading tools of coding agents set line numbers flush right. The blanks are a
fifteenth of all that such agents send. The lines themselves do not change, so a model edits a file
from the shorter listing as well as from the longer one.
"""

from __future__ import annotations

import re
from itertools import pairwise

from headstart.types import Frozen

_LINE = re.compile(r"^( *)(\d{1,9})(\t|\u2192| ?[|\u2502])", re.MULTILINE)
_MIN_LINES = 5
_MIN_SHARE = 0.8
"""The smallest share of the lines that have a number."""


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
    found = _LINE.findall(text)
    padded = next((each for each in found if each[0]), None)
    if padded is None or len(found) < max(_MIN_LINES, _MIN_SHARE * _count_lines(text)):
        return None
    if any(int(after[1]) <= int(before[1]) for before, after in pairwise(found)):
        return None
    blanks, number, sign = padded
    padding = Padding(width=len(blanks) + len(number), sign=sign)
    short = re.sub(rf"^ +(?=\d+{re.escape(sign)})", "", text, flags=re.MULTILINE)
    return PlainListing(text=short, padding=padding) if pad(short, padding) == text else None


def pad(text: str, padding: Padding) -> str:
    """Return the listing with its blanks."""
    number = rf"^\d+(?={re.escape(padding.sign)})"
    return re.sub(number, lambda at: at[0].rjust(padding.width), text, flags=re.MULTILINE)


def _count_lines(text: str) -> int:
    return sum(not line.isspace() for line in text.splitlines() if line)
