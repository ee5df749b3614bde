"""Quotes by number: sentences get ids in a prompt, and an answer names the ids. Pure.

``[q12]`` stands before a sentence of a document; ``⟦q:12⟧`` or ``⟦q:12-14⟧`` in an answer stands
for its text. Ids count on from document to document of a conversation. So the ids of a message
depend on the messages above it alone, and a mark means the same text for ever.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headstart.canonical_request import CanonicalRequest

MOST_SENTENCES = 50
"""Maximum number of sentences in one mark. A longer range is a mistake, or mischief."""
MIN_CHARS = 20
"""Minimum length of a sentence that gets an id. The model copies a shorter one as quickly."""

_MARK = re.compile(r"⟦q:(\d{1,6})(?:-(\d{1,6}))?⟧")
_BEGUN = re.compile(r"⟦(?:q(?::(?:\d{1,6}(?:-\d{0,6})?)?)?)?")
_NUMBER = re.compile(r"\[q\d+\]")
_HEAD = re.compile(
    r"\s*(?:(?:Document|Passage|Source)[ \t]?\[\d+\](?:[ \t]?\(Title: [^\n]*?\))?[ \t:]*)?"
)
_NOT_PROSE = re.compile(r"[<|#{}\[]|```|~~~|(?:user )?question[ \t]*:|query[ \t]*:", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]{2,}")
_HEAD_CHARS = 16


class _Sentence(NamedTuple):
    document: int
    start: int
    end: int


class Sources:
    """The numbered sentences of a conversation's documents, so far."""

    def __init__(self) -> None:
        self._documents: list[str] = []
        self._sentences: list[_Sentence] = []
        self._heads: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self._sentences)

    def number(
        self,
        text: str,
        places: Iterable[tuple[int, int]],
        split: Callable[[str], Iterable[tuple[int, int]]],
    ) -> str:
        """Return ``text`` with ids before the sentences of the documents in these places.

        ``split`` cuts a document into sentences. A document that has ids stays as it is, and so
        does a sentence that is no prose.
        """
        out: list[str] = []
        at = 0
        for start, end in places:
            document = text[start:end]
            if _NUMBER.search(document):
                continue
            out.append(text[at:start])
            out += self._number(document, split(document))
            at = end
        return "".join((*out, text[at:]))

    def quote(self, first: int, last: int) -> str | None:
        """Return these sentences as they stand in their document; None if there are none."""
        if not 1 <= first <= last <= len(self) or last - first >= MOST_SENTENCES:
            return None
        start, end = self._sentences[first - 1], self._sentences[last - 1]
        if start.document != end.document:
            return None
        return self._documents[start.document][start.start : end.end]

    def unquote(self, text: str) -> str:
        """Return ``text`` with marks for the sentences that it quotes, the longest runs first.

        This undoes an expansion as a rule, and never changes the meaning: a text that is not found
        word for word stays as it is, and so does JSON.
        """
        spans = len(text) - _HEAD_CHARS + 1
        hits = [at for at in range(spans) if text[at : at + _HEAD_CHARS] in self._heads]
        place = _Place()
        out: list[str] = []
        done = read = 0
        for at in hits:
            place.read(text[read:at])
            read = at
            if at < done or place.is_literal:
                continue
            first, last = self._longest(text, at)
            if first:
                out += (text[done:at], _mark(first, last))
                done = at + len(self.quote(first, last) or "")
        return "".join((*out, text[done:]))

    def _number(self, document: str, pieces: Iterable[tuple[int, int]]) -> Iterator[str]:
        self._documents.append(document)
        at = 0
        for start, end in pieces:
            head = _HEAD.match(document, start, end)
            begin = head.end() if head else start
            sentence = document[begin:end].rstrip()
            if (
                len(sentence) < MIN_CHARS
                or _NOT_PROSE.match(sentence)
                or not _WORD.search(sentence)
            ):
                continue
            self._sentences.append(
                _Sentence(len(self._documents) - 1, begin, begin + len(sentence))
            )
            self._heads.setdefault(sentence[:_HEAD_CHARS], []).append(len(self))
            yield document[at:begin]
            yield f"[q{len(self)}] "
            at = begin
        yield document[at:]

    def _longest(self, text: str, at: int) -> tuple[int, int]:
        """Return the longest run of sentences that starts at ``at``; of equal ones the latest."""
        best = (0, 0)
        length = 0
        for first in self._heads[text[at : at + _HEAD_CHARS]]:
            last = first
            while (quote := self.quote(first, last)) is not None and text.startswith(quote, at):
                if len(quote) >= length:
                    best, length = (first, last), len(quote)
                last += 1
        return best


class QuoteExpander:
    """Expands the marks in the text of an answer, which comes in pieces of any size.

    Only text that may be the beginning of a mark is held back. A mark with an unknown id stays as
    it is, and so does any mark in JSON or in code.
    """

    def __init__(self, quote: Callable[[int, int], str | None]) -> None:
        self._quote = quote
        self._pending = ""
        self._place = _Place()
        """The place in the text as the model wrote it."""
        self.expanded = 0
        """Number of marks that were expanded."""

    def feed(self, text: str) -> str:
        """Return the text that can be shown by now."""
        text = self._pending + text
        out: list[str] = []
        at = 0
        while (begin := text.find("⟦", at)) >= 0:
            out.append(self._pass(text[at:begin]))
            mark = _MARK.match(text, begin)
            if mark is None and _BEGUN.fullmatch(text, begin):
                self._pending = text[begin:]
                return "".join(out)
            at = begin + 1 if mark is None else mark.end()
            out.append(self._expand(mark) if mark else self._pass("⟦"))
        self._pending = ""
        out.append(self._pass(text[at:]))
        return "".join(out)

    def flush(self) -> str:
        """Return the text that was held back: it is no mark."""
        pending, self._pending = self._pending, ""
        return self._pass(pending)

    def _expand(self, mark: re.Match[str]) -> str:
        first = int(mark[1])
        quote = self._quote(first, int(mark[2] or first))
        if quote is None or self._place.is_literal:
            return self._pass(mark[0])
        self._pass("⟦")
        self.expanded += 1
        return quote

    def _pass(self, text: str) -> str:
        self._place.read(text)
        return text


_FENCE = re.compile(r"[\s>]*(?:(?:[-*+]|\d{1,3}[.)])\s+)?(`{3,}|~{3,})([^\n]*)")
_BEGINS_JSON = re.compile(r"[\ufeff\s]*[\[{]\s*(?:[\"{\[\]}]|\w+\s*[:,]|\Z)")
_OPENS = re.compile(r"(?:^|[\s:,\[{])[\[{]\s*\Z")
_IN_STRING = re.compile(r"(?:\"[^\"]*\"\s*:\s*|[\[{][^\]}]*)\"(?:[^\"\\]|\\.)*\Z")
_LINE_HEAD, _LINE_TAIL = 160, 400
"""Numbers of characters of a line that are looked at."""


class _Place:
    """The place that an answer has reached: in code, in JSON, or in neither."""

    def __init__(self) -> None:
        self._begun = False
        self._json = False
        """The answer begins like JSON."""
        self._fence = ""
        self._depth = 0
        """How many lines have opened an object or a list of JSON that no line has closed."""
        self._head = self._tail = ""
        self._ticks = 0

    def read(self, text: str) -> None:
        """Go on by a piece of the answer."""
        *ended, line = text.split("\n")
        for each in ended:
            self._add(each)
            self._end_line()
        self._add(line)

    @property
    def is_literal(self) -> bool:
        """Whether a mark here is a part of code or JSON."""
        return (
            self._json
            or self._fence != ""
            or self._depth > 0
            or self._ticks % 2 == 1
            or _BEGINS_JSON.match(self._head) is not None
            or _IN_STRING.search(self._tail) is not None
        )

    def _add(self, text: str) -> None:
        self._head += text[: _LINE_HEAD - len(self._head)]
        self._tail = (self._tail + text)[-_LINE_TAIL:]
        self._ticks += text.count("`")

    def _end_line(self) -> None:
        if not self._begun and self._head.strip("\ufeff \t\r"):
            self._begun, self._json = True, _BEGINS_JSON.match(self._head) is not None
        fence = _FENCE.match(self._head)
        if fence is not None and not self._fence:
            # A line such as ```code``` is no fence.
            self._fence = "" if fence[1][0] == "`" and "`" in fence[2] else fence[1]
        elif fence is not None:
            closes = fence[1].startswith(self._fence) and not fence[2].strip()
            self._fence = "" if closes else self._fence
        elif not self._fence:
            if self._depth and self._head.lstrip()[:1] in {"]", "}"}:
                self._depth -= 1
            self._depth += _OPENS.search(self._tail) is not None
        self._head = self._tail = ""
        self._ticks = 0


def _mark(first: int, last: int) -> str:
    return f"⟦q:{first}⟧" if first == last else f"⟦q:{first}-{last}⟧"


def may_quote(asked: CanonicalRequest) -> bool:
    """Tell whether an answer may hold marks: it is plain text, and no stop sequence cuts it."""
    return asked.wants_text and not (asked.tools or asked.stop or asked.logprobs)
