"""Search/replace blocks, as Aider's models write them, applied to a document.

Sans-IO: feed what the model says in pieces of any size. A block counts only if its search lines
stand in the document once and whole; whatever leaves room for a doubt spoils the answer, since a
document that is wrong in one place costs more than one that is generated anew.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

from headstart.policies.output.elisions import leaves_out
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

_SEARCH = re.compile(r"<{5,9} SEARCH>?[ \t]*")
_DIVIDER = re.compile(r"={5,9}[ \t]*")
_REPLACE = re.compile(r">{5,9} REPLACE[ \t]*")
_LIKE_SEARCH = re.compile(r"<{5,9}[ \t]*\w")
_MARKER = re.compile(r"^(?:<{5,9}(?:[ \t]|$)|={5,9}[ \t]*$|>{5,9}(?:[ \t]|$))", re.MULTILINE)
_FENCE = re.compile(r"(?:`{3,}|~{3,})[\w.+#/-]*[ \t]*")

_REMARK_SHARE = 4
_REMARK_CHARS = 400


class Doubt(StrEnum):
    """Why blocks cannot be applied."""

    MALFORMED = "malformed"
    NOT_FOUND = "not-found"
    NOT_UNIQUE = "not-unique"
    OVERLAPPING = "overlapping"
    UNCHANGED = "unchanged"
    REPEATS_NEIGHBOR = "repeats-neighbor"
    """It would write a line twice that stands beside it already: its search misses that line."""
    ELIDED = "elided"
    """A new line seems to stand for lines left out: ``# ... as before``."""
    REMARKS = "remarks"
    """So much stands beside the blocks that it may be the document itself."""


class Edited(Frozen):
    """A document with its blocks applied, and what the model said around them."""

    document: str
    before: str
    after: str


class _Replacement(Frozen):
    start: int
    end: int
    lines: tuple[str, ...]


def has_markers(text: str) -> bool:
    """Tell whether a line of a text could be taken for a block's own."""
    return _MARKER.search(text) is not None


class EditReader:
    """Reads one answer about one document whose lines bear no markers (``has_markers``)."""

    def __init__(self, document: str) -> None:
        self.doubt: Doubt | None = None
        """Set as soon as it is known; what is fed after that is not read."""
        self.begun = False
        """A block, or something like it, has come."""
        self._lines = document.split("\n")
        self._places: dict[str, list[int]] = {}
        for place, line in enumerate(self._lines):
            self._places.setdefault(line, []).append(place)
        self._rest = ""
        self._search: list[str] | None = None
        self._replace: list[str] | None = None
        self._place = 0
        self._replacements: list[_Replacement] = []
        self._said: list[list[str]] = [[]]
        """What stands before the first block, between any two and after the last."""
        self._fenced = False

    def feed(self, text: str) -> None:
        """Take in what came."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if self.doubt is None:
                self._read(line)

    def end(self) -> Edited | None:
        """Return the document; None if no block came, or where there is a ``doubt``."""
        if self._rest and self.doubt is None:
            self._read(self._rest)
        self._rest = ""
        if not self.begun or self.doubt is not None:
            return None
        if self._search is not None or self._fenced:
            self._doubt(Doubt.MALFORMED)
            return None
        before, *others = ("\n".join(lines).strip() for lines in self._said)
        after = "\n\n".join(said for said in others if said)
        size = sum(map(len, self._lines)) + len(self._lines)
        if len(before) + len(after) > _REMARK_CHARS + size // _REMARK_SHARE:
            self._doubt(Doubt.REMARKS)
            return None
        return Edited(document=self._apply(), before=before, after=after)

    def _read(self, line: str) -> None:
        if self._replace is not None:
            self._read_replacing(line, self._replace)
        elif self._search is not None:
            self._read_searching(line, self._search)
        elif _SEARCH.fullmatch(line):
            self.begun = True
            self._search = []
            self._open_fence(self._said[-1])
        elif _LIKE_SEARCH.match(line) or _REPLACE.fullmatch(line):
            self.begun = True
            self._doubt(Doubt.MALFORMED)
        elif self._fenced and line.strip() in {"```", "~~~", "````"}:
            self._fenced = False
        else:
            self._said[-1].append(line)

    def _read_searching(self, line: str, search: list[str]) -> None:
        if _DIVIDER.fullmatch(line):
            self._find(search)
            self._replace = []
        elif _SEARCH.fullmatch(line) or _REPLACE.fullmatch(line):
            self._doubt(Doubt.MALFORMED)
        else:
            search.append(line)

    def _read_replacing(self, line: str, replace: list[str]) -> None:
        if _REPLACE.fullmatch(line):
            self._add(self._search or [], replace)
            self._search = self._replace = None
            self._said.append([])
        elif _SEARCH.fullmatch(line) or _DIVIDER.fullmatch(line):
            self._doubt(Doubt.MALFORMED)
        else:
            replace.append(line)

    def _open_fence(self, said: list[str]) -> None:
        """Take back the fence that stands around a block."""
        while said and not said[-1].strip():
            said.pop()
        if said and not self._fenced and _FENCE.fullmatch(said[-1]):
            said.pop()
            self._fenced = True

    def _find(self, search: Sequence[str]) -> None:
        """Find the one place of a search; empty lines around it do not make it one."""
        written = [number for number, line in enumerate(search) if line.strip()]
        if not written:
            self._doubt(Doubt.MALFORMED)
            return
        first, last = written[0], written[-1] + 1
        places = [
            place - first
            for place in self._places.get(search[first], ())
            if self._lines[place : place + last - first] == search[first:last]
        ]
        if len(places) > 1:
            self._doubt(Doubt.NOT_UNIQUE)
        elif not places or self._lines[places[0] : places[0] + len(search)] != search:
            self._doubt(Doubt.NOT_FOUND)
        else:
            self._place = places[0]

    def _add(self, search: Sequence[str], replace: Sequence[str]) -> None:
        start, end = self._place, self._place + len(search)
        if search == replace:
            self._doubt(Doubt.UNCHANGED)
        elif leaves_out(search, replace):
            self._doubt(Doubt.ELIDED)
        elif self._repeats_neighbor(start, end, replace):
            self._doubt(Doubt.REPEATS_NEIGHBOR)
        elif any(start < other.end and other.start < end for other in self._replacements):
            self._doubt(Doubt.OVERLAPPING)
        else:
            self._replacements.append(_Replacement(start=start, end=end, lines=tuple(replace)))

    def _repeats_neighbor(self, start: int, end: int, replace: Sequence[str]) -> bool:
        """Tell whether new lines begin or end with what stands beside the place they go to."""
        search = self._lines[start:end]
        before = self._lines[start - 1] if start else None
        after = self._lines[end] if end < len(self._lines) else None
        return _misses(search, replace, after) or _misses(search[::-1], replace[::-1], before)

    def _apply(self) -> str:
        lines: list[str] = []
        at = 0
        for each in sorted(self._replacements, key=lambda each: each.start):
            lines += self._lines[at : each.start]
            lines += each.lines
            at = each.end
        return "\n".join((*lines, *self._lines[at:]))

    def _doubt(self, doubt: Doubt) -> None:
        self.doubt = self.doubt or doubt


def _misses(search: Sequence[str], replace: Sequence[str], after: str | None) -> bool:
    """Tell whether the line ``after`` seems to be missing at the end of a search."""
    if not replace or after is None:
        return False
    count, last = len(search), replace[-1]
    if last != search[-1]:
        if last == after:
            return True
    elif search[-2:] != [last, last] and replace[-2:] == [last, last] and last == after:
        return True  # a line that stands there twice would stand there three times
    is_framed = count > 1 and search[0] == replace[0] and search[-1] == last
    return not is_framed and replace[: count + 1] == [*search, after]
