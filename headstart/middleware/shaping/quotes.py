"""Quotes by number: the model names sentences of the prompt's documents, and we write them out.

An answer with long quotes then comes faster and costs less. For example::

    the client's document   The tower was built in 1889. It is made of iron and rivets.
    what the model reads    [q1] The tower was built in 1889. [q2] It is made of iron and rivets.
    what the model writes   The report says: ⟦q:1-2⟧
    what the client gets    The report says: The tower was built in 1889. It is made of iron …

1. ``number_documents`` finds the documents in the prompt and writes an id, such as ``[q12]``,
   before each of their sentences. ``Sources`` remembers which sentence an id names.
2. The model writes a mark for a sentence, ``⟦q:12⟧``, or for several in a row, ``⟦q:12-14⟧``.
3. ``Expansion`` writes the sentences in the places of the marks, while the answer passes.

Ids continue from document to document and from message to message of a conversation, and quotes
that were expanded in earlier answers become marks again. So each sent message depends only on the
messages before it: a mark always means the same text, and the provider's cache of the conversation
stays valid.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec

from headstart.attempts import CHARS_PER_TOKEN, ShapingEffect
from headstart.compression.passages import sentences
from headstart.compression.result import indexed_texts, is_plain_text, with_text
from headstart.compression.selection import find_documents
from headstart.compression.transforms import is_code
from headstart.dialects.registry import DIALECTS
from headstart.middleware.shaping.steps import (
    answer_writer,
    when_read,
    with_document,
)
from headstart.reply import HELD_BYTES, Reply, Transcript
from headstart.types import (
    Ended,
    ErrorReported,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
)

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Callable,
        Iterable,
        Iterator,
        Sequence,
    )

    from headstart.canonical_request import CanonicalRequest
    from headstart.middleware.shaping.prompt_compression import TextWorker
    from headstart.middleware.shaping.steps import RestOfSteps, Send, StepContext, WriteEvents
    from headstart.types import Call, ChatRequest, Memo, Piece, StreamEvent


QUOTES = "quotes"
"""The transform of answers whose marks are expanded."""
INSTRUCTION = (
    "Sentences of the documents are numbered [q1], [q2] and so on. To quote sentences word for "
    "word, write ⟦q:12⟧ for one or ⟦q:12-14⟧ for several in a row instead of copying them: the "
    "reader sees their text. Never write these marks in code or data, and do not mention the "
    "numbers otherwise."
)
INLINE_BYTES = 32_000
"""The longest body that is numbered in the event loop, which takes 4 ms at worst."""


@dataclass(frozen=True)
class QuoteByNumber:
    """Numbers the sentences of retrieved documents, and expands the marks of the answer.

    Such answers have the transform ``quotes``. Only conversations with a document in the first user
    message get numbers, and only if the answer is plain text.
    """

    stage: ClassVar[str] = "output"
    worker: TextWorker

    def __call__(self, call: Call, request: ChatRequest, context: StepContext) -> Send | None:
        """Return the function that sends the call; None if its answer cannot have marks."""
        asked = context.read(call, request)
        if asked is None or not may_quote(asked):
            return None
        return partial(self._send, call, request, context)

    async def _send(
        self, call: Call, request: ChatRequest, context: StepContext, rest: RestOfSteps
    ) -> Reply:
        began = time.perf_counter()
        work = partial(number_documents, call, request)
        if len(call.body) <= INLINE_BYTES:
            numbered = self.worker.on_loop(work)
        else:
            numbered = await self.worker.on_thread(work)
        if numbered is None:
            return await rest.send(call)
        own_s = time.perf_counter() - began

        expansion = Expansion(numbered.sources)

        def book(_: Transcript) -> None:
            if expansion.expanded:
                row = ShapingEffect(
                    kind=QUOTES,
                    tokens_before=expansion.shown // CHARS_PER_TOKEN,
                    tokens_after=expansion.received // CHARS_PER_TOKEN,
                    own_s=own_s,
                )
                call.log.shaped.append(row)

        reply = await rest.send(numbered.call, QUOTES)
        now, start = context.clock(), reply.transcript.start
        make_writer = partial(answer_writer, call, reply.transforms, now, start)
        expand = _expand_stream if request.stream else _expand_body
        reply.rewrite(expand(reply.pieces, expansion, make_writer))
        when_read(reply, book)
        return reply


def may_quote(asked: CanonicalRequest) -> bool:
    """Tell whether an answer may hold marks: it is plain text, and no stop sequence cuts it."""
    return asked.wants_text and not (asked.tools or asked.stop or asked.logprobs)


async def _expand_stream(
    pieces: AsyncIterator[Piece], expansion: Expansion, make_writer: Callable[..., WriteEvents]
) -> AsyncGenerator[Piece]:
    """Yield a stream: its own bytes up to the first mark, then bytes that we write."""
    shown, write = Transcript(), None
    async for piece in pieces:
        if not shown.is_continuable:
            # Too long to be kept. An answer without a mark so far will hardly have one.
            yield piece
            continue
        events = expansion.feed(piece.events)
        if write is None and events == list(piece.events):
            shown.add(piece)
            yield piece
            continue
        if write is None:
            write = make_writer(shown.events)
        yield write(events)
    if write is not None and (rest := expansion.end()):
        yield write(rest)


async def _expand_body(
    pieces: AsyncIterator[Piece], expansion: Expansion, make_writer: Callable[..., WriteEvents]
) -> AsyncGenerator[Piece]:
    """Yield a whole answer, held until all of it is there; its own bytes if it has no marks."""
    held: list[Piece] = []
    size = 0
    async for piece in pieces:
        held.append(piece)
        size += len(piece.data)
        if size > HELD_BYTES:  # the answer is too long to be kept, so it passes unread
            for each in held:
                yield each
            held = []
    events = [event for piece in held for event in piece.events]
    written = [*expansion.feed(events), *expansion.end()]
    if expansion.expanded and any(isinstance(event, Ended) for event in written):
        held = [make_writer()(written)]
    for piece in held:
        yield piece


# --- the prompt: ids before sentences -------------------------------------------------------------

MIN_CHARS = 20
"""Minimum length of a sentence that gets an id. The model can copy a shorter one as quickly."""
MOST_SENTENCES = 50
"""Maximum number of sentences in one mark. A longer range is a mistake or an attack."""
_ID = re.compile(r"\[q\d+\]")
_TITLE = re.compile(
    r"\s*(?:(?:Document|Passage|Source)[ \t]?\[\d+\](?:[ \t]?\(Title: [^\n]*?\))?[ \t:]*)?"
)
"""Matches what may stand before the first sentence of a document, such as ``Document [2]:``. The id
comes after it."""
_NOT_PROSE = re.compile(r"[<|#{}\[]|```|~~~|(?:user )?question[ \t]*:|query[ \t]*:", re.IGNORECASE)
"""Matches the beginning of markup, of data, of code, and of the user's own question."""
_WORD = re.compile(r"[^\W\d_]{2,}")
_HEAD_CHARS = 16
"""Sentences are found again by their first characters."""


class NumberedCall(NamedTuple):
    """A call whose documents have ids, and the sentences behind the ids."""

    call: Call
    sources: Sources


def number_documents(call: Call, request: ChatRequest, memo: Memo) -> NumberedCall | None:
    """Return the call with ids before its sentences; None if it has none to number."""
    form = DIALECTS[call.dialect].form
    prompt = form.read(request.document)
    if prompt is None:
        return None
    sources = Sources()

    def with_ids(text: str) -> str:
        places = [(each.start, each.end) for each in memo.call(find_documents, text)]
        return sources.number(text, places, lambda document: memo.call(_quotable, document))

    sent = []
    for message in prompt.messages:
        role = message.get("role")
        if role == "user":
            sent.append(_with_texts(message, with_ids))
            if not sources:
                return None
        elif role == "assistant" and sources:
            sent.append(_with_texts(message, sources.unquote))
        else:
            sent.append(message)
    if not sources:
        return None
    directed = form.with_system_text(prompt.with_messages(sent), INSTRUCTION)
    return None if directed is None else NumberedCall(with_document(call, directed), sources)


def _with_texts(message: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return the message with ``change`` made to each of its plain texts."""
    for part, text in indexed_texts(message):
        changed = change(text) if is_plain_text(message, part) else text
        if changed != text:
            message = with_text(message, part, changed)
    return message


class _Sentence(NamedTuple):
    """The number of a document, and the place of a sentence in it."""

    document: int
    start: int
    end: int


class Sources:
    """The numbered sentences of a conversation's documents, so far."""

    def __init__(self) -> None:
        self._documents: list[str] = []
        self._sentences: list[_Sentence] = []
        """The sentence with the id N is number N-1."""
        self._heads: dict[str, list[int]] = {}
        """The ids of sentences, by their first characters."""

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
            if _ID.search(document):
                continue
            out.append(text[at:start])
            out += self._number(document, split(document))
            at = end
        return "".join((*out, text[at:]))

    def quote(self, first: int, last: int) -> str | None:
        """Return these sentences in the form that they have in their document.

        None if there are none.
        """
        if not 1 <= first <= last <= len(self) or last - first >= MOST_SENTENCES:
            return None
        start, end = self._sentences[first - 1], self._sentences[last - 1]
        if start.document != end.document:
            return None
        return self._documents[start.document][start.start : end.end]

    def unquote(self, text: str) -> str:
        """Return ``text`` with marks for the sentences that it quotes, the longest runs first.

        This usually undoes an expansion, and never changes the meaning: text that is not found word
        for word stays as it is, and so does JSON.
        """
        spans = len(text) - _HEAD_CHARS + 1
        begins = [at for at in range(spans) if text[at : at + _HEAD_CHARS] in self._heads]
        place = _Place()
        out: list[str] = []
        done = read = 0  # the text up to ``done`` is written, and ``place`` has read up to ``read``
        for at in begins:
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
            head = _TITLE.match(document, start, end)
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


def _mark(first: int, last: int) -> str:
    return f"⟦q:{first}⟧" if first == last else f"⟦q:{first}-{last}⟧"


# --- the prompt: which texts are prose ------------------------------------------------------------

_BORDER = re.compile(
    r"^[ \t]*(?:</?[a-z][^<>\n]*>[ \t]*(?:\n|\Z)"
    r"|(?:Document|Passage|Source)[ \t]?\[\d+\](?:[ \t]?\(Title: [^\n]*?\))?[ \t:]*)",
    re.MULTILINE | re.IGNORECASE,
)
"""A border between the documents of one place."""
_JSON_LINE = re.compile(r'[{}\]]|\[\s*(?:["{\[]|$)|"(?:[^"\\]|\\.)*"\s*[:,]')
_SEPARATORS = (",", "\t", ";", "|")
"""The characters between two cells of a table."""
_STOPS = (".", "!", "?")
_MIN_ROWS = 3
_MIN_EQUAL = 0.9
"""The share of the rows of a table that have equally many cells."""


def _quotable(text: str) -> list[tuple[int, int]]:
    """Return the sentences of those documents in ``text`` that are prose."""
    borders = [border.span() for border in _BORDER.finditer(text)]
    starts = [0, *(end for _, end in borders)]
    ends = [*(start for start, _ in borders), len(text)]
    return [
        (start + first, start + last)
        for start, end in zip(starts, ends, strict=True)
        if _is_prose(text[start:end])
        for first, last in sentences(text[start:end])
    ]


def _is_prose(document: str) -> bool:
    """Tell prose from code and data, which ids would break and which nobody quotes."""
    lines = [line for raw in document.split("\n") if (line := raw.strip())]
    json = sum(_JSON_LINE.match(line) is not None for line in lines)
    return bool(lines) and 2 * json < len(lines) and not (_is_table(lines) or is_code(document))


def _is_table(lines: Sequence[str]) -> bool:
    """Tell whether the lines have equally many cells, and no full stops."""
    if len(lines) < _MIN_ROWS or sum(line.endswith(_STOPS) for line in lines) * 2 > len(lines):
        return False
    for separator in _SEPARATORS:
        cells = Counter(line.count(separator) for line in lines)
        ((most, rows),) = cells.most_common(1)
        if most and rows >= _MIN_EQUAL * len(lines):
            return True
    return False


# --- the answer: marks become sentences -----------------------------------------------------------

_MARK = re.compile(r"⟦q:(\d{1,6})(?:-(\d{1,6}))?⟧")
_BEGUN = re.compile(r"⟦(?:q(?::(?:\d{1,6}(?:-\d{0,6})?)?)?)?")
"""Matches a mark whose end has not come yet."""
_BREAKS = (Finished, Ended, ErrorReported, ReasoningDelta, RefusalDelta, ToolCallDelta)
"""Events that end a mark. Other events, such as padding, may come within one."""


class Expansion:
    """Expands the marks in the events of one answer."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._choices: dict[int, QuoteExpander] = {}
        self._last: dict[int, TextDelta] = {}
        self.received = 0
        """Number of characters from the provider."""
        self.shown = 0
        """Number of characters for the client."""

    @property
    def expanded(self) -> int:
        """Number of marks that were expanded."""
        return sum(each.expanded for each in self._choices.values())

    def feed(self, events: Sequence[StreamEvent]) -> list[StreamEvent]:
        """Return the events that can be shown by now."""
        out: list[StreamEvent] = []
        for event in events:
            if not isinstance(event, TextDelta):
                if isinstance(event, _BREAKS):
                    out += self._flush(getattr(event, "choice", None))
                out.append(event)
                continue
            last = self._last.get(event.choice)
            if last is not None and last.block != event.block:
                out += self._flush(event.choice)
            self._last[event.choice] = event
            out += self._expand(event)
        return out

    def end(self) -> list[StreamEvent]:
        """Return the events that were held back, at the end."""
        return self._flush(None)

    def _expand(self, event: TextDelta) -> list[StreamEvent]:
        expander = self._choices.setdefault(event.choice, QuoteExpander(self._sources.quote))
        text = expander.feed(event.text)
        self.received += len(event.text)
        self.shown += len(text)
        if text == event.text:
            return [event]
        return [msgspec.structs.replace(event, text=text)] if text else []

    def _flush(self, choice: int | None) -> list[StreamEvent]:
        """Give up waiting for the rest of a mark, in one choice or in all."""
        out: list[StreamEvent] = []
        for number, expander in self._choices.items():
            if choice in {None, number} and (text := expander.flush()):
                self.shown += len(text)
                out.append(msgspec.structs.replace(self._last[number], text=text))
        return out


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
        """Return the text that was held back, because it is not a mark."""
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


# --- the answer: code and JSON, where marks stay as they are --------------------------------------

_FENCE = re.compile(r"[\s>]*(?:(?:[-*+]|\d{1,3}[.)])\s+)?(`{3,}|~{3,})([^\n]*)")
"""Matches a line that begins or ends a block of code, also in a list or a quotation."""
_BEGINS_JSON = re.compile(r"[\ufeff\s]*[\[{]\s*(?:[\"{\[\]}]|\w+\s*[:,]|\Z)")
_OPENS = re.compile(r"(?:^|[\s:,\[{])[\[{]\s*\Z")
"""Matches a line whose end opens a JSON object or list."""
_IN_STRING = re.compile(r"(?:\"[^\"]*\"\s*:\s*|[\[{][^\]}]*)\"(?:[^\"\\]|\\.)*\Z")
"""Matches a line whose end is inside of a JSON string."""
_LINE_HEAD, _LINE_TAIL = 160, 400
"""Numbers of characters at the two ends of a line that are read."""


class _Place:
    """The place that an answer has reached: in code, in JSON, or in neither."""

    def __init__(self) -> None:
        self._begun = False
        """Whether a line with text has ended."""
        self._json = False
        """Whether this line began like JSON."""
        self._fence = ""
        """The characters that began the block of code; "" outside of such a block."""
        self._depth = 0
        """Number of open JSON objects and lists."""
        self._head = self._tail = ""
        """The two ends of the present line."""
        self._ticks = 0
        """The backticks of the present line. An odd number means code."""

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
            # A line such as ```code``` is not a fence.
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
