"""Cuts a text that arrives in pieces into sentences, for clients that speak it.

A sentence ends with its mark (and the quotes and brackets that close after it) once white space or
another sentence follows. It also ends at an empty line, and at a line that ends with a mark or
begins a list. It does not end after an abbreviation, an initial or the number of a list: two
sentences spoken together do no harm, but half a sentence does.
"""

from __future__ import annotations

import re

from headstart.types import words_of

LONGEST = 1000
"""A sentence with more characters (a table, code) is cut at the end of a line, or of a word."""

_ABBREVIATIONS = words_of("""
    mr mrs ms dr prof st sr jr gen col sgt rev hon messrs mme mlle vs etc eg ie cf al approx appt
    apt ave blvd dept est fig figs inc ltd corp co llc no nos nr vol vols ed eds pp ch sec min max
    jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri sat sun bzw ca usw ggf evtl
    inkl exkl zzgl zb dh ua uvm vgl abs art bd hr fr frau str tel abb m mm mlles mgr av env ex p
    chap sra srta ud uds pag vds
""")
"""Words with a point that does not end a sentence."""
_MARKS = ".!?\u2026"
_WIDE = "\u3002\uff01\uff1f\uff0e\u0964\u061f"
"""Marks of Chinese, Japanese, Hindi and Arabic, which need no white space after them."""
_CLOSERS = "\"')]}\u201d\u2019\u00bb\u300d\u300f\uff09*_"
_END = re.compile(
    rf"(?<![{re.escape(_MARKS)}])[{re.escape(_MARKS)}]++[{re.escape(_CLOSERS)}]*+(?=\s)"
    rf"|(?<![{_WIDE}])[{_WIDE}]++[{re.escape(_CLOSERS)}]*+(?=[^{_WIDE}{re.escape(_CLOSERS)}])"
    r"|\n[ \t]*(?=\n)"
    r"|\n(?=[ \t]*(?:[-*\u2022#>|]|\d{1,3}[.)])[ \t\S])"
)
_WORD = re.compile(r"[\w.]+$")
_LIST_NUMBER = re.compile(r"(?:^|\n)[ \t]*\d{1,3}$")


class SentenceCutter:
    """Takes pieces of a text and returns its sentences. Joined, the sentences are the text."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> list[str]:
        """Return the sentences that are complete now."""
        held = self._held + text
        sentences, start = [], 0
        for match in _END.finditer(held):
            if match.end() > start and _ends(held, start, match):
                sentences.append(held[start : match.end()])
                start = match.end()
        while len(held) - start > LONGEST:
            end = _cut(held, start)
            sentences.append(held[start:end])
            start = end
        self._held = held[start:]
        return sentences

    def rest(self) -> str:
        """Return the rest at the end of the text."""
        held, self._held = self._held, ""
        return held


def _ends(text: str, start: int, match: re.Match[str]) -> bool:
    """Tell whether a mark ends a sentence."""
    if match[0][0] != "." or match[0].startswith(".."):
        return True
    before = text[start : match.start()]
    word = _WORD.search(before)
    if word is None:
        return bool(before.strip())
    if _LIST_NUMBER.search(before):
        return False
    plain = word[0].replace(".", "").lower()
    is_initial = len(plain) == 1 and plain.isalpha()
    return not (is_initial or "." in word[0].strip(".") or plain in _ABBREVIATIONS)


def _cut(text: str, start: int) -> int:
    """Return where to cut a text without sentences."""
    end = start + LONGEST
    for mark in ("\n", " "):
        at = text.rfind(mark, start + 1, end)
        if at > start:
            return at + 1
    return end
