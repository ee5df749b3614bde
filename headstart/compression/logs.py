"""Logs: lines of a form that was shown before are left out, in runs, and counted.

What stays, verbatim and in order: the first line of each form (the line with everything that
holds a digit masked) and all lines of a rare one, every line that tells of trouble and what is
indented under it, every line with a value that nearly all others of its form have otherwise, and
every line with an id that the question names.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from headstart.compression.marks import omitted
from headstart.compression.severity import tells_trouble

if TYPE_CHECKING:
    from collections.abc import Collection

_STAMP = re.compile(
    r"\W{0,2}(?:\d{4}[-/.]\d\d[-/.]\d\d|\d{6} \d{6}|[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d"
    r"|[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} \d\d:|\d\d:\d\d:\d\d|\d{10,13}\b"
    r"|(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|CRITICAL)\b)"
)
_VALUE = re.compile(
    r"(?<![^\s=:,;|/()\[\]\"'])([^\s=:,;|/()\[\]\"'0-9]*[0-9][^\s=:,;|/()\[\]\"']*)"
)
_WORD = re.compile(r"[\w.:/@-]+")
_IN_ID = re.compile(r"[\d._:/@-]")
_MIN_LINES = 20
_MIN_RUN = 2
_RARE = 3
_NEARLY_ALL = 0.9


def is_log(text: str) -> bool:
    """Do most lines begin with a time or a level?"""
    lines = [line for line in text.split("\n") if line and not line[0].isspace()]
    if len(lines) < _MIN_LINES:
        return False
    return sum(_STAMP.match(line) is not None for line in lines) >= 0.7 * len(lines)


def fold_log(text: str, query: str) -> str:
    """Return the log without repeated forms; ``query`` is what is asked about it."""
    lines = text.split("\n")
    words = {word.strip(".:/-").lower() for word in _WORD.findall(query)}
    ids = {word for word in words if _IN_ID.search(word)}
    keep = _kept(lines, ids)
    out: list[str] = []
    at = 0
    while at < len(lines):
        run = at
        while run < len(lines) and not keep[run]:
            run += 1
        if run - at >= _MIN_RUN:
            out.append(omitted(run - at, "line"))
            at = run
        else:
            out += lines[at : run + 1]
            at = run + 1
    return "\n".join(out)


def _kept(lines: list[str], ids: Collection[str]) -> list[bool]:
    split = [_VALUE.split(line) for line in lines]
    forms = ["#".join(parts[::2]) for parts in split]
    values: dict[str, list[list[str]]] = {}
    for form, parts in zip(forms, split, strict=True):
        values.setdefault(form, []).append(parts[1::2])
    usual = {form: _usual(rows) for form, rows in values.items()}
    seen: set[str] = set()
    keep: list[bool] = []
    for line, form, parts in zip(lines, forms, split, strict=True):
        kept = (
            form not in seen
            or len(values[form]) <= _RARE
            or any(parts[at] != value for at, value in usual[form])
            or tells_trouble(line)
        )
        seen.add(form)
        if not kept and line[:1].isspace():
            kept = bool(keep) and keep[-1]
        if not kept and ids:
            lower = line.lower()
            kept = any(id in lower for id in ids)
        keep.append(kept)
    return keep


def _usual(rows: list[list[str]]) -> list[tuple[int, str]]:
    """Return the values that nearly all lines of a form have, each with its place in the line."""
    usual = []
    for number, column in enumerate(zip(*rows, strict=True)):
        ((value, count),) = Counter(column).most_common(1)
        if _NEARLY_ALL * len(rows) <= count < len(rows):
            usual.append((2 * number + 1, value))
    return usual
