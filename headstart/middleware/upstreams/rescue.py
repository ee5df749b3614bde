"""Rescue of an answer that broke off: another attempt continues it or replaces it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from headstart.attempts import CHARS_PER_TOKEN, AttemptRole, RoutingEstimate, Tokens, sum_tokens
from headstart.dialects.registry import DIALECTS, FORMS, is_translated
from headstart.errors import HeadstartError, UpstreamError, UpstreamProtocolError, UpstreamTimeout
from headstart.middleware.shaping.steps import with_document
from headstart.middleware.shared_flights import OwnerLost
from headstart.middleware.translated_reading import EventNumbers, StreamWriter
from headstart.policies.output.continuation import OVERLAP, PrefillSplice, RestartSplice, continuing
from headstart.policies.routing.failures import FailureKind
from headstart.policies.routing.schedule import ExpectedPace
from headstart.reply import AnswerWithheld, Reply, Transcript
from headstart.types import (
    Ended,
    ErrorReported,
    ExtraDelta,
    Finished,
    Piece,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence

    from headstart.dialects.dialect import Dialect
    from headstart.interfaces import Candidate
    from headstart.policies.output.continuation import Prefill
    from headstart.settings import Rescue
    from headstart.types import Call, StreamEvent

RESCUED = "rescued"
_REPEATABLE = (Started, TextDelta, ReasoningDelta, UsageReported)
"""Events after which a second answer may follow. Only text and reasoning may be incomplete."""


class SpliceWriter:
    """Turns the events of a second answer into the events after those that the client has."""

    def __init__(self, splice: RestartSplice | PrefillSplice, block: int | None) -> None:
        """Join at ``splice``, in the content block ``block``."""
        self._splice = splice
        self._block = block
        self._renamed: int | None = None

    def feed(self, events: Sequence[StreamEvent]) -> Iterator[StreamEvent]:
        """Yield the new events. Raises UpstreamProtocolError if the answers diverge."""
        for event in events:
            match event:
                case Started() | ReasoningDelta():
                    # The client has its start already, and has seen another reasoning.
                    continue
                case ErrorReported():
                    raise UpstreamProtocolError(f"the rescue failed: {event.message}")
                case TextDelta():
                    yield from self._news(event, self._splice.feed(event.text))
                case Finished() | ToolCallDelta() | Ended():
                    yield from self._news(TextDelta(text="", block=self._block), self._splice.end())
                    yield event
                case _:
                    yield event

    def _news(self, event: TextDelta, news: str | None) -> Iterator[StreamEvent]:
        if news is None:
            raise UpstreamProtocolError("the text of the rescue differs, or is shorter")
        if not news:
            return
        if self._block is not None and self._renamed is None:
            self._renamed = event.block
        block = self._block if event.block == self._renamed else event.block
        yield msgspec.structs.replace(event, text=news, block=block)


_NO_PREFILLS: Mapping[str, Prefill] = {}


class RescuedCandidate:
    """Wraps the strategy of a route. It replaces an answer that broke off, once for each call.

    It also replaces a stream that is far slower than usual for its upstream, if another upstream
    can continue it. A withheld answer is delivered if there is no better one.

    ``mode``: with ``restart``, another upstream is asked for a new answer, which must begin like
    the text that the client has. With ``prefill``, an upstream may also continue this text, if it
    can. With ``off``, another one is asked only if the client has nothing. The argument ``prefill``
    names the upstreams that can continue a last assistant message.
    """

    def __init__(
        self,
        inner: Candidate,
        *,
        mode: Rescue = "restart",
        prefill: Mapping[str, Prefill] = _NO_PREFILLS,
    ) -> None:
        self.name = inner.name
        self.identity = inner.identity
        self.names = inner.names
        self._inner = inner
        self._mode = mode
        self._prefill = prefill if mode == "prefill" else _NO_PREFILLS

    def estimate(self, call: Call) -> RoutingEstimate:
        """Return the estimate of the strategy inside."""
        return self._inner.estimate(call)

    async def send(self, call: Call) -> Reply:
        """Send the call and wait for its first content. Closing the reply ends a rescue, too."""
        try:
            reply = await self._inner.send(call)
        except AnswerWithheld as error:
            return error.reply
        request = call.request
        # An answer that is not streamed is sent at its end. Until then it can simply be replaced.
        if call.editable and request is not None and not (self._mode == "off" and request.stream):
            if reply.transcript.ended and reply.transcript.error is None:
                return reply  # all of it has come
            dialect = DIALECTS.get(call.dialect)
            if dialect is not None and dialect.is_chat:
                reply.filter(self._rescue(reply, reply.pieces, reply.transcript, call, dialect))
        return reply

    async def _rescue(
        self,
        reply: Reply,
        pieces: AsyncIterator[Piece],
        shown: Transcript,
        call: Call,
        dialect: Dialect,
    ) -> AsyncGenerator[Piece]:
        """Yield the answer. If it breaks off, continue with another one.

        If no other answer can follow, raises the error that broke the answer off.
        """
        now, pace = asyncio.get_running_loop().time, self._pace(reply, call)
        asked = now()
        try:
            async for piece in pieces:
                if pace is None:
                    yield piece
                    continue
                came = now()
                yield piece
                if pace.lags(_text_tokens(piece), came - asked):
                    pace = None
                    async with aclosing(self._overtake(reply, shown, call, dialect)) as rest:
                        async for news in rest:
                            yield news
                    if RESCUED in reply.transforms:
                        return
                asked = now()
        except UpstreamError as error:
            # The process that had asked the upstream may have rescued the answer before it ended.
            if RESCUED in reply.transforms and not isinstance(error, OwnerLost):
                raise
            broken = error
        else:
            return
        try:
            async with aclosing(self._rest(reply, shown, broken, call, dialect)) as rest:
                async for piece in rest:
                    yield piece
        except UpstreamError as error:
            raise broken from (None if error is broken else error)

    def _pace(self, reply: Reply, call: Call) -> ExpectedPace | None:
        """Return the expected pace.

        None if no other upstream could continue, or no pace is known.
        """
        request = call.request
        if request is None or not request.stream or reply.usual_speed is None:
            return None
        if not self._inner.names - call.avoid - {reply.upstream}:
            return None
        speed = reply.usual_speed()
        return None if speed is None else ExpectedPace(speed)

    async def _overtake(
        self, reply: Reply, shown: Transcript, call: Call, dialect: Dialect
    ) -> AsyncGenerator[Piece]:
        """Yield the rest of a slow answer from another upstream.

        Yields nothing if no other upstream can continue. Then the slow answer goes on.
        """
        before = reply.transforms, reply.storable
        slow = UpstreamTimeout(
            f"upstream {reply.upstream} is far slower than usual", kind=FailureKind.STALLED
        )
        async with aclosing(self._rest(reply, shown, slow, call, dialect)) as rest:
            try:
                first = await anext(rest)
            except (UpstreamError, StopAsyncIteration):
                reply.transforms, reply.storable = before
                return
            yield first
            async for piece in rest:
                yield piece

    async def _rest(
        self,
        reply: Reply,
        shown: Transcript,
        broken: UpstreamError,
        call: Call,
        dialect: Dialect,
    ) -> AsyncGenerator[Piece]:
        """Yield the rest of the answer.

        Raises ``broken`` if no other answer can follow, or another error.
        """
        request = call.request
        assert request is not None
        if not _is_rescuable(shown, call):
            raise broken
        # The upstream did not fail if only the process that had asked it has ended.
        failed = "" if isinstance(broken, OwnerLost) else reply.upstream
        second, splice = await self._second(failed, shown, call)
        if second is None:
            raise broken
        reply.transforms = tuple(dict.fromkeys((*reply.transforms, RESCUED)))
        reply.storable = False
        async with second:
            if splice is None:
                if reply.transcript is shown:
                    reply.transcript = second.transcript
                async for piece in second.pieces:
                    yield piece
                return
            start, events = shown.start, shown.events
            encoder = dialect.encoder(
                start.id or dialect.new_id(),
                start.created or 0,
                include_usage=request.include_usage,
            )
            if is_translated((*reply.transforms, *second.transforms)):
                encoder = StreamWriter(encoder, dialect, call.prompt_tokens)
            # Feeding the events that the client has sets the writer to the place where it
            # continues.
            encoder.feed(events)
            writer, numbers = (
                SpliceWriter(splice, _last_block(events)),
                EventNumbers(shown.numbered),
            )
            begun = _tokens(shown, dialect, call.prompt_tokens)
            async for piece in second.pieces:
                news = tuple(writer.feed(piece.events))
                if isinstance(splice, PrefillSplice):
                    news = tuple([_add_usage(event, begun, dialect) for event in news])
                data = numbers.feed(encoder.feed(news))
                if data or news:
                    yield _record(shown, data, news)
            # Some providers leave out the last event, and Gemini has none; the client gets its own.
            if ending := numbers.feed(encoder.feed((Ended(),))):
                yield _record(shown, ending, (Ended(),))

    async def _second(
        self, failed: str, shown: Transcript, call: Call
    ) -> tuple[Reply | None, PrefillSplice | RestartSplice | None]:
        """Return the second answer, and the splice that joins it; None: it is sent alone."""
        if shown.is_empty:
            return await self._restart(failed, call), None
        said = shown.text
        if _is_text(shown) and len(said.rstrip()) >= OVERLAP:
            rest = await self._go_on(failed, said, call)
            if rest is not None:
                return rest, PrefillSplice(said)
        return await self._restart(failed, call), RestartSplice(said)

    async def _restart(self, failed: str, call: Call) -> Reply | None:
        """Send the call again, to another upstream if there is one; None: no upstream answers."""
        elsewhere = self._inner.names - call.avoid - {failed}
        avoid = call.avoid | ({failed} if elsewhere else set())
        try:
            return await self._inner.send(_as_rescue(call, avoid))
        except HeadstartError:
            return None

    async def _go_on(self, failed: str, said: str, call: Call) -> Reply | None:
        """Let an upstream that can continue the answer write the rest; None if there is none.

        If an upstream adds no text, the answer was complete.
        """
        request, reachable = call.request, self._inner.names - call.avoid
        able = {
            name: how for name, how in self._prefill.items() if how != "no" and name in reachable
        }
        if request is None or not able:
            return None
        form = FORMS[request.dialect]
        if not form.prefills or form.continues_answer(request.document):
            return None
        others = sorted(able.keys() - {failed}) or [failed]
        how = able[others[0]]
        asked = {name for name in others if able[name] == how}
        document = continuing(request.document, form, said, how)
        avoid = call.avoid | (self._inner.names - asked)
        try:
            reply = await self._inner.send(_as_rescue(with_document(call, document), avoid))
        except AnswerWithheld as error:
            reply = error.reply
        except HeadstartError:
            return None
        if reply.upstream in asked:
            return reply
        # A strategy may nevertheless have asked another upstream.
        await reply.aclose()
        return None


def _as_rescue(call: Call, avoid: frozenset[str]) -> Call:
    return msgspec.structs.replace(
        call, role=AttemptRole.RESCUE, avoid=avoid, log=call.log.branch()
    )


def _text_tokens(piece: Piece) -> float:
    """Return the estimated tokens of a piece's text."""
    texts = (e.text for e in piece.events if isinstance(e, TextDelta | ReasoningDelta))
    return sum(map(len, texts)) / CHARS_PER_TOKEN


def _record(transcript: Transcript, data: bytes, events: tuple[StreamEvent, ...]) -> Piece:
    piece = Piece(data, events)
    transcript.add(piece)
    return piece


def _is_rescuable(shown: Transcript, call: Call) -> bool:
    request, deadline = call.request, call.deadline
    assert request is not None
    if deadline is not None and asyncio.get_running_loop().time() >= deadline:
        return False
    plain = request.choices == 1 and not request.logprobs
    return shown.is_empty or (request.stream and plain and _is_joinable(shown))


def _is_joinable(shown: Transcript) -> bool:
    """Tell whether another answer can continue from here."""
    return shown.is_continuable and all(
        isinstance(event, _REPEATABLE) or _is_beside(event) for event in shown.events
    )


def _is_beside(event: StreamEvent) -> bool:
    """Tell whether an event has only a chunk's own fields, such as padding, and no content."""
    return isinstance(event, ExtraDelta) and event.choice is None


def _is_text(shown: Transcript) -> bool:
    """Tell whether another answer can continue from here, and no reasoning was shown."""
    thought = any(isinstance(event, ReasoningDelta) for event in shown.events)
    return _is_joinable(shown) and not thought


def _last_block(events: Sequence[StreamEvent]) -> int | None:
    """Return the content block of the last text."""
    texts = [event for event in events if isinstance(event, TextDelta)]
    return texts[-1].block if texts else None


def _tokens(shown: Transcript, dialect: Dialect, prompt_tokens: int) -> Tokens:
    """Return the tokens of the shown part, estimated if they were not reported yet."""
    length = round(len(shown.text) / CHARS_PER_TOKEN)
    reported = shown.usage
    tokens = Tokens(prompt=prompt_tokens) if reported is None else dialect.tokens(reported)
    return msgspec.structs.replace(tokens, completion=max(tokens.completion, length))


def _add_usage(event: StreamEvent, begun: Tokens, dialect: Dialect) -> StreamEvent:
    """Add the tokens of the first part to the usage that the rest reports."""
    if not isinstance(event, UsageReported):
        return event
    rest = dialect.tokens(event.usage)
    return UsageReported(usage=dialect.usage(sum_tokens((begun, rest))))
