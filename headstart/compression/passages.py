"""Texts cut into sentences, marks for omitted text, and pointers to repeated passages.

A text with a mark is never shortened again. So a second compression changes nothing, and a mark
that a client sends back stays as it is. A pointer always leads from a later passage to an earlier
one. For example, if a passage of five sentences comes again, its second place holds

    [… 5 sentences, the same as the latest above that begins: The committee met in … …]
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headstart.types import Memo

_MARK = re.compile(r"\[… (?:(?!\[… )[^\n])*? …\]")
"""Matches a mark for omitted text, such as ``[… 3 lines omitted …]``."""


def without_marks(text: str) -> str:
    """Return the author's own text: without marks, and without white space around lines."""
    plain = _MARK.sub("", text) if has_mark(text) else text
    lines = (line.strip() for line in plain.split("\n"))
    return "\n".join(line for line in lines if line)


def has_mark(text: str) -> bool:
    """Return whether a part of ``text`` was left out before."""
    return "[… " in text and " …]" in text


CLEARED = "[… the result of this call was omitted: call again if it is needed …]"


def omission_mark(count: int, unit: str) -> str:
    """Return the mark for ``count`` omitted lines, sentences or documents."""
    return f"[… {_counted(count, unit)} omitted …]"


def like_these(count: int, look: str) -> str:
    """Return the mark that describes ``count`` lines of a log, of which most were left out."""
    return f"[… {count} lines like: {look} …]"


def same_as(begin: str, count: int = 0, unit: str = "") -> str:
    """Return the mark for the latest earlier text with this beginning, or ``count`` units of it."""
    part = f"{_counted(count, unit)}, " if count else ""
    return f"[… {part}the same as the latest above that begins: {begin} …]"


def _counted(count: int, unit: str) -> str:
    return f"{count} {unit}{'' if count == 1 else 's'}"


_FENCE = re.compile(r"^(```|~~~).*?(?:^\1[^\n]*(?:\n|\Z)|\Z)", re.MULTILINE | re.DOTALL)
_ABBREVIATION = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|No|Fig|Inc|Ltd|Co|Corp|Gen|Col|Sgt|Lt|Rev|Hon|Vol"
    r"|pp|ca|cf|al|e\.g|i\.e|a\.m|p\.m|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec)"
    r"|(?:^|[\s.(])[A-Z])\.$"
)
_END = re.compile(r"\n+|[.!?][\"')\]\u201d\u2019]*[ \t]+(?=[\"'(\[\u201c\u2018]?[A-Z0-9])")


def sentences(text: str) -> list[tuple[int, int]]:
    """Return start and end of each sentence or line. Together the pieces are the whole text.

    A line break ends a piece. Fenced code is one piece.
    """
    pieces: list[tuple[int, int]] = []
    at = 0
    for fence in _FENCE.finditer(text):
        pieces += _prose(text, at, fence.start())
        pieces.append(fence.span())
        at = fence.end()
    pieces += _prose(text, at, len(text))
    return pieces


def _prose(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    at = start
    for found in _END.finditer(text, start, end):
        sign = text[found.start()]
        tail = text[max(at, found.start() - 12) : found.start() + 1]
        if sign == "." and _ABBREVIATION.search(tail):
            continue
        yield at, found.end()
        at = found.end()
    if at < end:
        yield at, end


MIN_PASSAGE_CHARS = 240
"""A shorter passage is not replaced: a pointer would save too little."""
_MIN_ANCHOR = 24
"""The fewest characters of the first sentence of a passage."""
_BLANK = " \n"
"""White space that has no meaning at the end of a sentence. A tab ends an empty cell."""
_WORD = re.compile(r"\w{1,8}")
"""Matches roughly one token."""
_BEGIN_CHARS = (48, 96, 192)
"""Lengths of a passage's beginning. A pointer quotes the shortest one that no other passage has."""


class Passages:
    """The sentences of all texts that were sent so far in one conversation."""

    def __init__(self, memo: Memo) -> None:
        self._memo = memo
        self._whole: dict[str, int] = {}
        """The place of the first sentence of each whole text."""
        self._sentences: list[str] = []
        """All sentences, in the order in which they are sent; "" ends a text, or is a pointer."""
        self._breaks: list[int] = []
        """The number of line breaks after each sentence."""
        self._places: dict[str, int] = {}
        """The last place of each sentence."""

    def add(self, text: str) -> None:
        """Remember a text in the form in which it is sent."""
        if len(text) >= MIN_PASSAGE_CHARS:
            self._whole[text] = len(self._sentences)
            for key, breaks in self._memo.call(_sentence_keys, text):
                self._append(key, breaks)
            self._append("", 1)

    def point(self, text: str) -> str | None:
        """Return a pointer if the whole text was sent before and a pointer pays, else None."""
        if text not in self._whole or has_mark(text):
            return None
        begin = _distinct_beginning(text, self._whole)
        pointer = same_as(begin) if begin else ""
        return pointer if _pays(pointer, text) else None

    def shorten(self, text: str, *, whole_lines: bool = False) -> str:
        """Replace each run of sentences that came before in the same order by a pointer.

        "Before" means in a text that was added, or earlier in this text. With ``whole_lines`` no
        pointer replaces a part of a line: a line of a log belongs to its time.
        """
        found = self._memo.call(_sentence_keys, text)
        keys = [key for key, _ in found]
        if len(set(keys)) == len(keys) and not any(key in self._places for key in keys):
            return text
        pieces = sentences(text)
        # A copy: the sentences of this text are added to the original when it is sent.
        above = Passages(self._memo)
        above._sentences = self._sentences.copy()
        above._breaks = self._breaks.copy()
        above._places = self._places.copy()
        out: list[str] = []
        kept_from = at = 0
        while at < len(keys):
            length = above._run(keys, at)
            if whole_lines:
                length = _whole_lines(text, pieces, at, length)
            start = pieces[at][0]
            passage = text[start : pieces[at + max(length, 1) - 1][1]]
            pointer = above._pointer(keys[at], length, passage)
            if pointer is None:
                above._append(*found[at])
                at += 1
                continue
            out += [text[kept_from:start], pointer, passage[len(passage.rstrip(_BLANK)) :]]
            kept_from = start + len(passage)
            above._append("", 1)
            at += length
        return "".join([*out, text[kept_from:]])

    def _pointer(self, key: str, length: int, passage: str) -> str | None:
        """Return a pointer in place of a passage of ``length`` sentences from ``key`` on.

        None if the passage was not sent before (``length`` is 0), or if a pointer does not pay.
        """
        if not length or len(passage) < MIN_PASSAGE_CHARS:
            return None
        begin = _distinct_beginning(key, self._places)
        pointer = same_as(begin, *self._counted(key, length)) if begin else ""
        return pointer if _pays(pointer, passage) else None

    def _append(self, key: str, breaks: int) -> None:
        if len(key.strip()) >= _MIN_ANCHOR and not has_mark(key):
            self._places[key] = len(self._sentences)
        self._sentences.append(key)
        self._breaks.append(breaks)

    def _counted(self, key: str, length: int) -> tuple[int, str]:
        """Return the number and the unit of ``length`` sentences from ``key`` on.

        The unit is the line, and empty lines count, if the sentences make up whole lines and a line
        has fewer than two of them on average. Otherwise the unit is the sentence.
        """
        place = self._places[key]
        breaks = self._breaks[place : place + length]
        lines = sum(breaks[:-1]) + 1
        after = self._sentences[place + length : place + length + 1]
        whole = (breaks[-1] or after == [""]) and (place == 0 or self._breaks[place - 1])
        return (lines, "line") if whole and 2 * lines > length else (length, "sentence")

    def _run(self, keys: list[str], at: int) -> int:
        """Return how many sentences from ``at`` on came before in the same order."""
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


def _sentence_keys(text: str) -> list[tuple[str, int]]:
    """Return the sentences, and the number of line breaks after each one.

    A sentence has its indentation, which may change the meaning.
    """
    found = []
    for start, end in sentences(text):
        piece = text[start:end]
        key = piece.rstrip(_BLANK)
        found.append((key, piece.count("\n", len(key))))
    return found


def _whole_lines(text: str, pieces: list[tuple[int, int]], at: int, length: int) -> int:
    """Return how many of the ``length`` sentences from ``at`` on make up whole lines together."""
    if pieces[at][0] and text[pieces[at][0] - 1] != "\n":
        return 0
    while length and text[pieces[at + length - 1][1] - 1] != "\n":
        if at + length == len(pieces):
            break
        length -= 1
    return length


def _pays(mark: str, passage: str) -> bool:
    """Tell whether a mark has at most half as many words as the passage.

    Words are counted and not characters, because rules and padding have many characters and few
    tokens.
    """
    return mark != "" and 2 * len(_WORD.findall(mark)) <= len(_WORD.findall(passage))


def _distinct_beginning(text: str, places: Mapping[str, int]) -> str | None:
    """Return a beginning of ``text`` that no later text has, if there is one."""
    line = text.lstrip().partition("\n")[0]
    if _WORD.search(line) is None:
        return None
    for length in _BEGIN_CHARS:
        begin = line[:length]
        if all(
            place <= places[text] for key, place in places.items() if key.lstrip().startswith(begin)
        ):
            return begin
    return None
