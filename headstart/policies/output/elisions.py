"""Lines that stand for lines left out, such as ``# ... rest as before``. Pure.

Models write them in more ways than anyone can list. So beside the usual words it counts where they
stand: lines went, few came, and one of these is a remark.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_REMARK = re.compile(
    r"[#;%!]|//|--|\{?/\*|<!--|\(\*|\{[-#!]|[*_]*[\[(<{]+[\w\s.,:'/\u2026-]*[\])>}]+[*_]*$"
)
"""A comment, or words in brackets."""
_BESIDE = re.compile(r"\s((?:#|//|--|\{?/\*|<!--)\s.*)")
_GAP = re.compile(r"[^\w).\u2026]*(?:\.{3}|\u2026|etc\b)(?:\W*|\s.*|\w+(?: \w+)+\W*)")
"""Begins with an ellipsis; ``...name`` alone is code."""
_ELLIPSIS = re.compile(r"\.{3}|\u2026|\betc\b")
_LEFT_OUT = re.compile(
    r"\b(?:rest|remain(?:s|ing|der)|existing|unchanged|same|omitted|elided|truncated"
    r"|snip(?:ped)?|previous|original|unmodified|untouched|continue[sd]|and so on|code here"
    r"|everything else|(?:as|like) (?:before|above|is))\b",
    re.IGNORECASE,
)
_MANY = 2
"""Lines that a block may lose on balance without being suspect."""
_LONG = 80
"""Characters; a longer line with such a word is prose."""


def leaves_out(search: Sequence[str], replace: Sequence[str]) -> bool:
    """Tell whether a line that comes seems to stand for lines that should have stayed.

    What stands in the search as often as in the lines that replace it does not come.
    """
    shrinks = len(search) - len(replace) > _MANY
    came = Counter(map(_told, replace)) - Counter(map(_told, search))
    return any(_stands_for_others(told, shrinks=shrinks) for told in came)


def _told(line: str) -> str:
    """Return what a line tells its reader: its comment, or all of it if it has none."""
    line = line.strip()
    beside = None if _REMARK.match(line) or len(line) > _LONG else _BESIDE.search(line)
    return beside[1] if beside else line


def _stands_for_others(told: str, *, shrinks: bool) -> bool:
    if _GAP.fullmatch(told):
        return True
    if len(told) > _LONG:
        return False
    words = set(map(str.lower, _LEFT_OUT.findall(told)))
    if _REMARK.match(told):
        return shrinks or bool(words or _ELLIPSIS.search(told))
    return len(words) > 1 or (shrinks and bool(words or _ELLIPSIS.search(told)))
