"""Quotes by number: the model names sentences of the prompt's documents, and we write them out.

Each message goes up as a function of the messages before it, so a provider's cache of a
conversation survives: ids count on from message to message, and quotes that were expanded in
earlier answers become marks again.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec

from headstart.attempts import Shaped
from headstart.compression.messages import indexed_texts, is_plain_text, with_text
from headstart.compression.passages import sentences
from headstart.compression.protection import find_documents, is_code
from headstart.compression.tokens import CHARS_PER_TOKEN
from headstart.dialects.registry import DIALECTS
from headstart.middleware.request_edits import with_document
from headstart.middleware.shaping.steps import answer_writer, when_read, without_length
from headstart.policies.output.quote_marks import QuoteExpander, Sources, may_quote
from headstart.reply import HELD_BYTES
from headstart.transcript import Transcript
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
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

    from headstart.compression.memo import Memo
    from headstart.middleware.shaping.prompt_compression import TextWorker
    from headstart.middleware.shaping.steps import RestOfSteps, Send, StepContext, WriteEvents
    from headstart.reply import Reply
    from headstart.types import Call, ChatRequest, Piece, StreamEvent

INSTRUCTION = (
    "Sentences of the documents are numbered [q1], [q2] and so on. To quote sentences word for "
    "word, write ⟦q:12⟧ for one or ⟦q:12-14⟧ for several in a row instead of copying them: the "
    "reader sees their text. Never write these marks in code or data, and do not mention the "
    "numbers otherwise."
)
_BORDER = re.compile(
    r"^[ \t]*(?:</?[a-z][^<>\n]*>[ \t]*(?:\n|\Z)"
    r"|(?:Document|Passage|Source)[ \t]?\[\d+\](?:[ \t]?\(Title: [^\n]*?\))?[ \t:]*)",
    re.MULTILINE | re.IGNORECASE,
)
"""A border between the documents of one place."""
_JSON_LINE = re.compile(r'[{}\]]|\[\s*(?:["{\[]|$)|"(?:[^"\\]|\\.)*"\s*[:,]')
_SEPARATORS = (",", "\t", ";", "|")
_STOPS = (".", "!", "?")
_MIN_ROWS = 3
_MIN_EQUAL = 0.9


class Numbered(NamedTuple):
    """A call whose documents have ids, and the sentences behind the ids."""

    call: Call
    sources: Sources


def number_documents(call: Call, request: ChatRequest, memo: Memo) -> Numbered | None:
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
    return None if directed is None else Numbered(with_document(call, directed), sources)


def _with_texts(message: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return the message with ``change`` made to each of its plain texts."""
    for part, text in indexed_texts(message):
        changed = change(text) if is_plain_text(message, part) else text
        if changed != text:
            message = with_text(message, part, changed)
    return message


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
    """Tell prose from code and data, which ids would break and nobody quotes by sentences."""
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


QUOTES = "quotes"
INLINE_BYTES = 32_000
"""The longest body that is numbered on the loop, in 4 ms at worst."""
_BREAKS = (Finished, Ended, ErrorReported, ReasoningDelta, RefusalDelta, ToolCallDelta)
"""Events that end a mark. Other events, such as padding, may stand within one."""


@dataclass(frozen=True)
class QuoteByNumber:
    """Numbers the sentences of retrieved documents, and expands the marks of the answer.

    Such answers bear the transform ``quotes``. Only conversations whose first user message holds a
    document get numbers, and only answers in plain text.
    """

    stage: ClassVar[str] = "output"
    worker: TextWorker

    def __call__(self, call: Call, request: ChatRequest, context: StepContext) -> Send | None:
        """Return how to send the call; None if its answer could not hold marks."""
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
            numbered = self.worker.here(work)
        else:
            numbered = await self.worker.on_thread(work)
        if numbered is None:
            return await rest.send(call)
        own_s = time.perf_counter() - began

        expansion = Expansion(numbered.sources)

        def book(_: Transcript) -> None:
            if expansion.expanded:
                row = Shaped(
                    kind=QUOTES,
                    tokens_before=expansion.shown // CHARS_PER_TOKEN,
                    tokens_after=expansion.received // CHARS_PER_TOKEN,
                    own_s=own_s,
                )
                call.log.shaped.append(row)

        reply = await rest.send(numbered.call, QUOTES)
        reply.headers = without_length(reply.headers)
        now, start = context.clock(), reply.transcript.start

        def make_writer(shown: Sequence[StreamEvent] = ()) -> WriteEvents:
            return answer_writer(DIALECTS[call.dialect], request, now, start, shown)

        expand = _expand_stream if request.stream else _expand_body
        reply.rewrite(expand(reply.pieces, expansion, make_writer))
        when_read(reply, book)
        return reply


async def _expand_stream(
    pieces: AsyncIterator[Piece], expansion: Expansion, make_writer: Callable[..., WriteEvents]
) -> AsyncGenerator[Piece]:
    """Yield a stream: its own bytes up to the first mark, and from there on bytes of ours."""
    shown, write = Transcript(), None
    async for piece in pieces:
        if not shown.is_continuable:
            yield piece  # so long without a mark: it may not have one at all
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
        if size > HELD_BYTES:  # too long to be read, by anybody
            for each in held:
                yield each
            held = []
    events = [event for piece in held for event in piece.events]
    written = [*expansion.feed(events), *expansion.end()]
    if expansion.expanded and any(isinstance(event, Ended) for event in written):
        held = [make_writer()(written)]
    for piece in held:
        yield piece


class Expansion:
    """Expands the marks in the events of one answer."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._choices: dict[int, QuoteExpander] = {}
        self._last: dict[int, TextDelta] = {}
        self.received = 0
        """Number of characters of the provider."""
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
