"""Passages that were sent before: the later one points to the earlier one, never the reverse."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headstart.compression.marks import has_mark, same_as
from headstart.compression.sentences import sentences

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headstart.compression.memo import Memo

MIN_CHARS = 240
"""A shorter passage saves too little to send its reader elsewhere."""
_MIN_ANCHOR = 24
"""A passage begins with a sentence of at least this many characters."""
_BLANK = " \n"
"""At a sentence's end, where it tells nothing. A tab ends an empty cell."""
_WORD = re.compile(r"\w{1,8}")
"""About a token."""
_BEGIN_CHARS = (48, 96, 192)
"""Of a passage, to find it by: the first length at which nothing later begins the same."""


class Passages:
    """Everything sent so far in one conversation, sentence by sentence. Grows by ``add``."""

    def __init__(self, memo: Memo) -> None:
        self._memo = memo
        self._whole: dict[str, int] = {}
        self._sentences: list[str] = []
        self._places: dict[str, int] = {}
        """Where a sentence stands, the last time."""

    def add(self, text: str) -> None:
        """Remember a text as it is sent."""
        if len(text) >= MIN_CHARS:
            self._whole[text] = len(self._sentences)
            for key in self._memo.call(_keys, text):
                self._append(key)
            self._append("")

    def point(self, text: str) -> str | None:
        """Return a pointer if the whole text was sent before, else None."""
        if text not in self._whole or has_mark(text):
            return None
        begin = _begin(text, self._whole)
        pointer = same_as(begin) if begin else ""
        return pointer if _pays(pointer, text) else None

    def shorten(self, text: str) -> str:
        """Replace each run of sentences that stands above, in this order, by a pointer.

        Above is in a text that was added, or earlier in this one.
        """
        keys = self._memo.call(_keys, text)
        if len(set(keys)) == len(keys) and not any(key in self._places for key in keys):
            return text
        pieces = sentences(text)
        above = Passages(self._memo)
        above._sentences = self._sentences.copy()
        above._places = self._places.copy()
        out: list[str] = []
        kept_from = at = 0
        while at < len(keys):
            length = above._run(keys, at)
            passage = text[pieces[at][0] : pieces[at + max(length, 1) - 1][1]]
            known = length > 0 and len(passage) >= MIN_CHARS
            begin = _begin(keys[at], above._places) if known else None
            unit = "line" if passage.rstrip().count("\n") >= length - 1 else "sentence"
            mark = same_as(begin, length, unit) if begin else ""
            if _pays(mark, passage):
                out += [
                    text[kept_from : pieces[at][0]],
                    mark,
                    passage[len(passage.rstrip(_BLANK)) :],
                ]
                kept_from = pieces[at][0] + len(passage)
                above._append("")
                at += length
            else:
                above._append(keys[at])
                at += 1
        return "".join([*out, text[kept_from:]])

    def _append(self, key: str) -> None:
        if len(key.strip()) >= _MIN_ANCHOR and not has_mark(key):
            self._places[key] = len(self._sentences)
        self._sentences.append(key)

    def _run(self, keys: list[str], at: int) -> int:
        """Count the sentences from ``at`` on that follow one another above."""
        place = self._places.get(keys[at])
        if place is None:
            return 0
        length = 1
        while (
            at + length < len(keys)
            and place + length < len(self._sentences)
            and keys[at + length] == self._sentences[place + length]
            and not has_mark(keys[at + length])
        ):
            length += 1
        return length


def _keys(text: str) -> list[str]:
    """Return the sentences with their indentation: at another depth it says something else."""
    return [text[start:end].rstrip(_BLANK) for start, end in sentences(text)]


def _pays(mark: str, passage: str) -> bool:
    """Is there a mark, of half the words at most? Rules and padding are long but few tokens."""
    return mark != "" and 2 * len(_WORD.findall(mark)) <= len(_WORD.findall(passage))


def _begin(text: str, places: Mapping[str, int]) -> str | None:
    """Return the first characters of ``text`` if it is the last of all that begins with them."""
    line = text.lstrip().partition("\n")[0]
    for length in _BEGIN_CHARS:
        begin = line[:length]
        if all(
            place <= places[text] for key, place in places.items() if key.lstrip().startswith(begin)
        ):
            return begin
    return None
