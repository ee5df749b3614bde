"""Files that a coding agent reads again: lines that stand above unchanged become a reference.

Only numbered listings of files take part, because their numbers tell which lines are meant. An
agent edits a file by quoting its lines, so these have to stand somewhere in the prompt as they are:
the lines above stay, and at both ends of a reference some lines are shown again, for an edit that
begins before the reference and ends in it. After an edit of a file its next read stays whole, and
so does a short read, with which an agent looks at what it is about to change.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from headstart.compression.passages import has_mark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.compression.memo import Memo

_NUMBERED = re.compile(r" *(\d{1,9})(?:\t|\u2192| ?[|\u2502])")
_PATH_NAME = re.compile(r"(?:\w*path|file\w*|\w*_file|target)", re.IGNORECASE)
_CHANGES = re.compile(
    r"edit|write|replace|patch|create|insert|delete|apply|undo|str_", re.IGNORECASE
)
"""Tools that may change a file."""
SHOWN_AGAIN = 8
"""The lines at each end of a stretch that stay beside its reference."""
LEAST_LINES = 40
"""A shorter stretch stays, with the lines that are shown again."""
SHORT_READ = 80
"""A read of fewer lines stays whole."""


def reference(first: int, last: int, path: str) -> str:
    """Return what stands in the place of the lines from ``first`` to ``last``."""
    return f"[… lines {first}-{last} are unchanged: they stand in the read of {path} above …]"


class Reads:
    """The numbered lines of files that stand in the prompt so far, in the form that was sent."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[int, str]] = {}

    def called(self, name: str, arguments: str) -> None:
        """Take in a call of a tool: what it may change has to be read whole again."""
        if not _CHANGES.search(name):
            return
        changed = path_of(arguments)
        if changed is None:
            self._lines.clear()
        else:
            self._lines.pop(changed, None)

    def shorten(self, text: str, arguments: str, memo: Memo) -> str:
        """Return a read of a file, sent after the former ones, with references where they pay."""
        path = path_of(arguments)
        if path is None:
            return text
        lines, numbers = memo.call(_numbered, text)
        above = self._lines.get(path, {})
        short = text
        if above and not has_mark(text) and len(lines) >= SHORT_READ:
            short = "\n".join(_referred(lines, numbers, above, path))
        kept = self._lines.setdefault(path, {})
        for number, line in zip(numbers, lines, strict=True):
            if number is not None:
                kept[number] = line
        return short


def _numbered(text: str) -> tuple[list[str], list[int | None]]:
    """Return the lines of a text and their numbers; None for a line without one."""
    lines = text.split("\n")
    found = map(_NUMBERED.match, lines)
    return lines, [None if number is None else int(number[1]) for number in found]


def _referred(
    lines: list[str], numbers: list[int | None], above: dict[int, str], path: str
) -> Iterator[str]:
    """Yield the lines, and a reference for the inside of each long stretch that stands above."""
    at = 0
    while at < len(lines):
        end = at
        while end < len(lines) and _stands(lines, numbers, above, end, first=end == at):
            end += 1
        first, last = at + SHOWN_AGAIN, end - SHOWN_AGAIN
        if last - first < LEAST_LINES:
            yield from lines[at : max(end, at + 1)]
        else:
            yield from lines[at:first]
            yield reference(numbers[first] or 0, numbers[last - 1] or 0, path)
            yield from lines[last:end]
        at = max(end, at + 1)


def _stands(
    lines: list[str], numbers: list[int | None], above: dict[int, str], at: int, *, first: bool
) -> bool:
    """Tell whether a line stands above, behind the one before it."""
    number = numbers[at]
    if number is None or above.get(number) != lines[at]:
        return False
    return first or numbers[at - 1] == number - 1


def path_of(arguments: str) -> str | None:
    """Return the file that a call names, or None."""
    try:
        given = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(given, dict):
        return None
    named = [value for name, value in given.items() if _PATH_NAME.fullmatch(name)]
    return named[0] if len(named) == 1 and isinstance(named[0], str) else None
