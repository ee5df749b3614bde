"""Logs: repeated lines of one form are left out and counted; lines that tell of errors stay.

The form of a line is the line with a mask for each value that holds a digit. These lines stay,
verbatim and in order: the first line of each form and all lines of a rare form; each line that
tells of an error, with the indented lines below it; each line with a value that differs from nearly
all other lines of its form; and each line with an id from the question.

In doubt a line counts as an error: a line too many costs tokens, a line too few costs an answer.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from headstart.compression.passages import omitted

if TYPE_CHECKING:
    from collections.abc import Collection

_PROBLEM_WORD = re.compile(
    # Each choice begins with a letter, in lower case: ten times as fast as ignoring case.
    r"err(?:(?<=\berr)|(?:or|no)?s?\b)|fata|fail|exception|critical|crit\b|panic|warn|wrn\b|ftl\b"
    r"|traceback|severe|emerg|alert|denied|refus|abort|crash|corrupt|invalid|illegal|timed out"
    r"|timeout|unreachable|unable|cannot|not\b|reject|break-?in|kill|oom\b|caused by|lost\b|drop"
    r"|unexpected|unavail|unauthor|forbidden|expired|deadlock|overflow|exceed|unhealthy|degraded"
    r"|disconnect|reset by|broken|mismatch|violat|segfault|throttl|stuck|stall|dead\b|missing"
    # German, French, Spanish, Portuguese, Italian, Dutch, Polish, Turkish, Indonesian, Vietnamese
    r"|fehl|ausnahme|abbruch|abgebrochen|abgelehnt|verweiger|ungültig|gescheitert"
    r"|avertissement|[ée]chec|[ée]chou|interdit|adverten|fall[oó]|fallid|excepci|negad|rechazad"
    r"|aviso|falh|exce[cç]|recusad|avviso|fallit|eccezion|rifiutat|fout\b|mislukt|waarschuwing"
    r"|b[łl][ąa]d\b|ostrze|hata\b|uyar|gagal|kesalahan|peringatan|lỗi|cảnh báo"
    # Numbers: return codes, levels of pino, bunyan and GELF, a status of HTTP that stands alone
    r"|(?:exit|returncode|errno|signal|rc(?<=\brc)\b)\D{0,16}(?!0+\b|0x0+\b)\d"
    r"|(?:status|code)\b\D{0,8}(?!0+\b|0x0+\b|[123]\d\d\b)\d"
    r"|(?:level|lvl|severity)\w*\W{1,4}(?:[0-4]|[4-9]\d)\b"
    r"|[45](?<=[\s\"|\]].)\d\d(?![^\s\",;|\]])(?! ?[mnuµ]?s\b)"
)
_LETTER = re.compile(r"[EWFC](?:(?<=^.)\d{4} |(?<![\w.'-].)(?![\w.'-]|:[\\/]))")
"""A level of one letter: ``[E]``, ``E/Tag``, or ``E1121 16:00`` as in glog."""
_PRIORITY = re.compile(r"<(\d{1,3})>")
"""The priority of syslog: eight times the facility plus the severity, where 4 is a warning."""
_OTHER_SCRIPT = re.compile(r"[\u0370-\u1dff\u26a0\u2716-\u2718\u274c\u2e80-\U0010ffff]")
"""Another script than Latin, or an emoji. It is not read here, so it counts as an error."""


def reports_problem(line: str) -> bool:
    """Return whether a line names an error, a warning or a refusal, by level, word or code."""
    return (
        _PROBLEM_WORD.search(line.lower()) is not None
        or _LETTER.search(line) is not None
        or any(int(found[1]) % 8 <= 4 for found in _PRIORITY.finditer(line))
        or (not line.isascii() and _OTHER_SCRIPT.search(line) is not None)
    )


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
    """Return whether most lines begin with a time or a level."""
    lines = [line for line in text.split("\n") if line and not line[0].isspace()]
    if len(lines) < _MIN_LINES:
        return False
    return sum(_STAMP.match(line) is not None for line in lines) >= 0.7 * len(lines)


def collapse_log(text: str, query: str) -> str:
    """Return the log without repeated lines of one form. ``query`` is the question about it."""
    lines = text.split("\n")
    words = {word.strip(".:/-").lower() for word in _WORD.findall(query)}
    ids = {word for word in words if _IN_ID.search(word)}
    keep = _kept(lines, ids)
    out: list[str] = []
    for kept, group in groupby(zip(keep, lines, strict=True), key=itemgetter(0)):
        run = [line for _, line in group]
        out += run if kept or len(run) < _MIN_RUN else [omitted(len(run), "line")]
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
            or reports_problem(line)
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
    """Return the values that nearly all lines of a form share, each with its place in the line."""
    usual = []
    for number, column in enumerate(zip(*rows, strict=True)):
        ((value, count),) = Counter(column).most_common(1)
        if _NEARLY_ALL * len(rows) <= count < len(rows):
            usual.append((2 * number + 1, value))
    return usual
