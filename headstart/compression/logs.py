"""Logs: lines of a form that was shown before are left out, in runs, and counted.

What stays, verbatim and in order: the first line of each form (the line with everything that
holds a digit masked), every line that tells of trouble and what is indented under it, and every
line with an id that the question names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headstart.compression.marks import omitted

if TYPE_CHECKING:
    from collections.abc import Collection

_STAMP = re.compile(
    r"\W{0,2}(?:\d{4}[-/.]\d\d[-/.]\d\d|\d{6} \d{6}|[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d"
    r"|[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} \d\d:|\d\d:\d\d:\d\d|\d{10,13}\b"
    r"|(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|CRITICAL)\b)"
)
_TROUBLE = re.compile(
    r"err(?:or|no)?s?\b|\berr|fatal|fail|exception|critical|\bcrit\b|panic|warn|traceback|severe"
    r"|emerg|alert|denied|refus|abort|crash|corrupt|invalid|illegal|timed out|timeout|unreachable"
    r"|unable|cannot|\bnot\b|reject|break-?in|killed|oom\b|caused by",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"(?<![^\s=:,;()\[\]\"'])[^\s=:,;()\[\]\"'0-9]*[0-9][^\s=,;()\[\]\"']*")
_WORD = re.compile(r"[\w.:/@-]+")
_IN_ID = re.compile(r"[\d._:/@-]")
_MIN_LINES = 20
_MIN_RUN = 2


def is_log(text: str) -> bool:
    """Do most lines begin with a time or a level?"""
    lines = [line for line in text.split("\n") if line and not line[0].isspace()]
    if len(lines) < _MIN_LINES:
        return False
    return sum(_STAMP.match(line) is not None for line in lines) >= 0.7 * len(lines)


def tells_trouble(line: str) -> bool:
    """Does a line name an error, a warning or a refusal, by level or by word?"""
    return _TROUBLE.search(line) is not None


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
    trouble: dict[str, bool] = {}
    keep: list[bool] = []
    for line in lines:
        form = _VARIABLE.sub("#", line)
        kept = trouble.get(form)
        if kept is None:
            trouble[form] = tells_trouble(form)
            kept = True
        if not kept and line[:1].isspace():
            kept = bool(keep) and keep[-1]
        if not kept and ids:
            lower = line.lower()
            kept = any(id in lower for id in ids)
        keep.append(kept)
    return keep
