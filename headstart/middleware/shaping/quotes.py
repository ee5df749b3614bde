"""Quotes by number: the model names sentences of the prompt's documents, we write them out.

What goes up is a function of the messages up to each, so a provider's cache of a conversation
survives: ids count on from message to message, and quotes that were expanded in earlier answers
become marks again.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from headstart.compression.tokens import CHARS_PER_TOKEN
from headstart.errors import InvalidRequest
from headstart.middleware.shaping.numbering import number_documents
from headstart.middleware.shaping.shaper import ShapedReply, Shaper, plain
from headstart.middleware.shaping.writing import BodyWriter, StreamWriter, named
from headstart.middleware.upstreams.opening import HELD_BYTES
from headstart.middleware.upstreams.shown import Shown
from headstart.observe import Shaped, StageFailed
from headstart.policies.output.quote_marks import QuoteExpander, may_quote
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
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from headstart.interfaces import Candidate, Chunk, Observer, UpstreamReply
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.middleware.shaping.compress import Workbench
    from headstart.middleware.shaping.numbering import Numbered
    from headstart.middleware.upstreams.ledger import Ledger
    from headstart.policies.output.quote_marks import Sources
    from headstart.types import Call, ChatRequest, Headers, StreamEvent

QUOTES = "quotes"
INLINE_BYTES = 32_000
"""Of a body. A shorter one is numbered on the loop, in 4 ms at worst."""
_BREAKS = (Finished, Ended, ErrorReported, ReasoningDelta, RefusalDelta, ToolCallDelta)
"""Events after which no mark goes on. Others, such as padding, may stand within one."""


class Quoting(Shaper):
    """Numbers the sentences of retrieved documents, and expands the marks of the answer.

    Its answers bear the transform ``quotes``. Only for conversations whose first user message
    holds a document, and for answers in plain text. If it fails, the prompt goes up as it came.
    """

    def __init__(
        self,
        inner: Candidate,
        dialects: Mapping[str, Dialect],
        bench: Workbench,
        ledger: Ledger,
        observer: Observer,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(inner)
        self._dialects = dialects
        self._bench = bench
        self._ledger = ledger
        self._observer = observer
        self._clock = clock

    def stream(self, call: Call) -> AbstractAsyncContextManager[UpstreamReply]:
        """Send the call. Raises UpstreamError."""
        dialect = self._dialects.get(call.dialect)
        request = call.request
        if dialect is None or request is None or not plain(call):
            return self._inner.stream(call)
        try:
            if not may_quote(dialect.read_request(request)):
                return self._inner.stream(call)
        except InvalidRequest:
            return self._inner.stream(call)
        return self._send(call, request, dialect)

    @asynccontextmanager
    async def _send(
        self, call: Call, request: ChatRequest, dialect: Dialect
    ) -> AsyncIterator[UpstreamReply]:
        began = time.perf_counter()
        numbered = await self._try(call)
        if numbered is None:
            async with self._inner.stream(call) as reply:
                yield reply
            return
        own_s = time.perf_counter() - began

        def ended(expansion: Expansion) -> None:
            row = Shaped(
                kind=QUOTES,
                tokens_before=expansion.shown // CHARS_PER_TOKEN,
                tokens_after=expansion.said // CHARS_PER_TOKEN,
                own_s=own_s,
            )
            self._ledger.shape(call.id, row)

        async with self.pass_on(numbered.call, QUOTES) as reply:
            expansion = Expansion(numbered.sources)
            form = QuotedStream if request.stream else QuotedBody
            yield form(reply, expansion, ended, dialect, request, self._clock)

    async def _try(self, call: Call) -> Numbered | None:
        try:
            work = partial(number_documents, call)
            if len(call.body) <= INLINE_BYTES:
                return self._bench.here(work)
            return await self._bench.on_thread(work)
        except Exception as error:  # noqa: BLE001 - whatever it is, the prompt goes up as it came
            self._observer.notify(StageFailed(stage="output", error=type(error).__name__))
            return None


class _Quoted(ShapedReply):
    """An answer whose marks are expanded; as it came, to the byte, if it has none."""

    def __init__(
        self,
        inner: UpstreamReply,
        expansion: Expansion,
        ended: Callable[[Expansion], None],
        dialect: Dialect,
        request: ChatRequest,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(inner)
        self._expansion = expansion
        self._ended = ended
        self._dialect = dialect
        self._request = request
        self._clock = clock

    @property
    def headers(self) -> Headers:
        """Without a length, which is not known yet."""
        return tuple(pair for pair in self._inner.headers if pair[0] != b"content-length")


class QuotedStream(_Quoted):
    """A stream, written anew from its first mark on."""

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Yield the answer. Raises UpstreamError when it breaks off."""
        shown, writing = Shown(), None
        async for piece in self._inner.chunks():
            if not shown.is_kept:
                yield piece  # so long without a mark: it may not have one at all
                continue
            events = self._expansion.feed(piece.events)
            if writing is None and events == list(piece.events):
                shown.add(piece)
                yield piece
                continue
            if writing is None:
                before = shown.events
                start = named([*before, *piece.events])
                writing = StreamWriter(self._dialect, self._request, before, start, self._clock())
            yield writing.write(events)
        if writing is not None:
            rest = self._expansion.end()
            if rest:
                yield writing.write(rest)
        if self._expansion.expanded:
            self._ended(self._expansion)


class QuotedBody(_Quoted):
    """A whole answer, held until it is there."""

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Yield the answer. Raises UpstreamError when it breaks off."""
        pieces: list[Chunk] = []
        size = 0
        async for piece in self._inner.chunks():
            pieces.append(piece)
            size += len(piece.data)
            if size > HELD_BYTES:  # too long to be read, by anybody
                for held in pieces:
                    yield held
                pieces = []
        events = [event for piece in pieces for event in piece.events]
        written = [*self._expansion.feed(events), *self._expansion.end()]
        if not self._expansion.expanded or not any(isinstance(e, Ended) for e in written):
            for piece in pieces:
                yield piece
            return
        yield BodyWriter(self._dialect, self._clock()).write(written)
        self._ended(self._expansion)


class Expansion:
    """Expands the marks in the events of one answer."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._choices: dict[int, QuoteExpander] = {}
        self._last: dict[int, TextDelta] = {}
        self.said = 0
        """Characters that came."""
        self.shown = 0
        """Characters that they became."""

    @property
    def expanded(self) -> int:
        """Number of marks that were."""
        return sum(each.expanded for each in self._choices.values())

    def feed(self, events: Sequence[StreamEvent]) -> list[StreamEvent]:
        """Return what can be shown of the events by now."""
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
        """Return what was held back at the end."""
        return self._flush(None)

    def _expand(self, event: TextDelta) -> list[StreamEvent]:
        expander = self._choices.setdefault(event.choice, QuoteExpander(self._sources.quote))
        text = expander.feed(event.text)
        self.said += len(event.text)
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
