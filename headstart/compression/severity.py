"""Which line of a log tells of trouble, by its words or by the codes that stand for them.

In doubt a line does: one too many costs tokens, one too few an answer.
"""

from __future__ import annotations

import re

_WORD = re.compile(
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
"""A level of one letter: ``[E]``, ``E/Tag``, ``E1121 16:00`` as glog has it."""
_PRIORITY = re.compile(r"<(\d{1,3})>")
"""Of syslog: eight times the facility, and the severity, of which 4 is a warning."""
_OTHER_SCRIPT = re.compile(r"[\u0370-\u1dff\u26a0\u2716-\u2718\u274c\u2e80-\U0010ffff]")
"""Not Latin, or an emoji: not read here, so taken for trouble."""


def tells_trouble(line: str) -> bool:
    """Does a line name an error, a warning or a refusal, by level, by word or by code?"""
    return (
        _WORD.search(line.lower()) is not None
        or _LETTER.search(line) is not None
        or any(int(found[1]) % 8 <= 4 for found in _PRIORITY.finditer(line))
        or (not line.isascii() and _OTHER_SCRIPT.search(line) is not None)
    )
