"""Answers that our own limit cut: continued, or made anew, so that nobody gets half of one.

What the client has of an answer stays as it came, to the byte. The end of a first part is held
back until it is known whether our limit made it; ``docs/output.md`` tells what follows then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from headstart.attempts import AttemptRole, Tokens
from headstart.errors import HeadstartError, UpstreamProtocolError
from headstart.middleware.shaping.measured import Length, Part
from headstart.middleware.shaping.shaper import ShapedReply, with_document
from headstart.middleware.shaping.writing import BodyWriter, StreamWriter, named
from headstart.middleware.upstreams.shown import Shown
from headstart.policies.output.continuation import Join, continuing
from headstart.policies.output.guard import MOST_CONTINUATIONS, cut_by, next_limit
from headstart.types import (
    Ended,
    ErrorReported,
    ExtraDelta,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    UsageReported,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from headstart.interfaces import Chunk, UpstreamReply
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.middleware.shaping.further import FurtherCalls
    from headstart.middleware.shaping.writing import Writer
    from headstart.policies.output.continuation import Prefill
    from headstart.types import Call, Headers, StreamEvent

_ENDINGS = (Finished, UsageReported, Ended)
_JOINABLE = (Started, TextDelta, ReasoningDelta, ExtraDelta, *_ENDINGS)


@dataclass(frozen=True)
class Continuing:
    """How a limited call goes on where its limit cut it."""

    call: Call
    """As it came, without a limit of ours."""
    limit: int
    limited: Callable[[Call, int], Call]
    """Returns a call with a limit."""
    calls: FurtherCalls
    dialect: Dialect
    prefill: Mapping[str, Prefill]
    """By upstream; those not named do not take it."""
    names: frozenset[str]
    """Of all that may be asked."""
    clock: Callable[[], float]

    def next(self, number: int, said: str, upstream: str) -> tuple[Call, int | None]:
        """Return the call for what is missing, and its limit if it has one."""
        limit = next_limit(number, self.limit, said)
        call = self.call
        if said:
            request, prefill = call.request, self.prefill.get(upstream, "no")
            assert request is not None
            call = with_document(call, continuing(request.document, said, prefill))
            if prefill != "no":
                call = msgspec.structs.replace(call, avoid=call.avoid | self.names - {upstream})
        call = msgspec.structs.replace(
            call, role=AttemptRole.CONTINUE, branch=f"{call.branch}.continue{number}"
        )
        return (call if limit is None else self.limited(call, limit)), limit


class ContinuedReply(ShapedReply):
    """A limited answer, and what follows it if the limit cut it. ``chunks`` may be called once.

    ``ended`` is called once with its whole length, also where it could not be continued. Raises
    UpstreamError then: never a silent truncation.
    """

    def __init__(
        self,
        inner: UpstreamReply,
        continuing: Continuing,
        ended: Callable[[Length], None],
        *transforms: str,
    ) -> None:
        super().__init__(inner, *transforms)
        self._continuing = continuing
        self._ended = ended
        self._parts = [Part()]
        self._is_continued = False

    @property
    def headers(self) -> Headers:
        """Without a length, which is not known yet."""
        return tuple(pair for pair in self._inner.headers if pair[0] != b"content-length")

    @property
    def transforms(self) -> tuple[str, ...]:
        return (*super().transforms, "continued") if self._is_continued else super().transforms

    @property
    def storable(self) -> bool:
        """An answer with a seam is for its own caller alone."""
        return self._inner.storable and not self._is_continued

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Yield the answer as one."""
        shown, first = Shown(), self._parts[0]
        held: list[Chunk] = []
        async for piece in self._inner.chunks():
            first.feed(piece.events)
            if held or self._waits(piece):
                held.append(piece)
            else:
                shown.add(piece)
                yield piece
        if not self._was_cut(self._continuing.limit):
            for piece in held:
                yield piece
            if first.progress.whole:
                self._ended(self._length())
            return
        self._is_continued = True
        unshown = [event for piece in held for event in piece.events]
        try:
            async for piece in self._go_on(shown, unshown):
                yield piece
        except HeadstartError as error:
            self._ended(self._length()._replace(cut=True))
            raise UpstreamProtocolError(
                f"our limit of {self._continuing.limit} tokens cut the answer, and it could not be "
                f"continued: {error}"
            ) from error
        self._ended(self._length())

    def _waits(self, piece: Chunk) -> bool:
        """Must a piece be held back? A whole body must, and the end that a limit may have made."""
        request = self._continuing.call.request
        assert request is not None
        return not request.stream or any(
            isinstance(event, Finished) and event.reason == "length" for event in piece.events
        )

    def _was_cut(self, limit: int) -> bool:
        part = self._parts[-1]
        used = part.used(self._continuing.dialect)
        return cut_by(limit, part.finish, used.completion if used else None)

    def _length(self) -> Length:
        """Return the length of all parts together."""
        lengths = [part.length(self._continuing.dialect) for part in self._parts]
        return Length(
            sum(each.tokens for each in lengths),
            any(each.estimated for each in lengths),
            lengths[-1].cut,
            len(lengths),
        )

    async def _go_on(self, shown: Shown, held: Sequence[StreamEvent]) -> AsyncIterator[Chunk]:
        how = self._continuing
        request = how.call.request
        assert request is not None
        answer = _Answer(shown, held)
        writing: Writer = BodyWriter(how.dialect, how.clock())
        if request.stream:
            start = named([*shown.events, *held])
            writing = StreamWriter(how.dialect, request, shown.events, start, how.clock())
        if answer.unshown:
            yield writing.write(answer.unshown)
        for number in range(1, MOST_CONTINUATIONS + 1):
            call, limit = how.next(number, answer.said, self.upstream)
            reply = await how.calls.begin(call)
            part = Part()
            self._parts.append(part)
            answer.begin(prefilled=how.prefill.get(self.upstream, "no") != "no")
            async for piece in reply.chunks():
                part.feed(piece.events)
                news = answer.take(piece.events)
                if news:
                    yield writing.write(news)
            if part.finish is None or limit is None or not self._was_cut(limit):
                yield writing.write([*answer.rest(), *self._ending()])
                return
            if rest := answer.rest():
                yield writing.write(rest)
        raise UpstreamProtocolError("it runs in circles")

    def _ending(self) -> list[StreamEvent]:
        finish = self._parts[-1].finish
        if finish is None:
            raise UpstreamProtocolError("its continuation did not come to an end")
        used = [part.used(self._continuing.dialect) for part in self._parts]
        reported = [each for each in used if each is not None]
        if len(reported) < len(used):
            return [finish, Ended()]
        usage = self._continuing.dialect.usage(Tokens(*map(sum, zip(*reported, strict=True))))
        return [finish, UsageReported(usage=usage), Ended()]


class _Answer:
    """What was said of an answer so far, and what its next part adds to it."""

    def __init__(self, shown: Shown, held: Sequence[StreamEvent]) -> None:
        """Raises UpstreamProtocolError for an answer that nothing can follow."""
        events = [*shown.events, *held]
        texts = [event for event in events if isinstance(event, TextDelta) and event.text]
        joinable = shown.is_kept and all(isinstance(event, _JOINABLE) for event in events)
        if not (joinable or shown.nothing):
            raise UpstreamProtocolError("it is not plain text")
        self._anew = shown.nothing and not (joinable and texts)
        """Nothing was shown, and nothing is worth keeping: the next part is the answer."""
        self.said = ""
        self.unshown: list[StreamEvent] = []
        """What the client has yet to get of the first part."""
        self._block: int | None = None
        if not self._anew:
            self.said = "".join(each.text for each in texts)
            self.unshown = [event for event in held if not isinstance(event, _ENDINGS)]
            self._block = texts[-1].block if texts else None
        self._join = Join("", prefilled=False)

    def begin(self, *, prefilled: bool) -> None:
        """Another part follows."""
        self._join = Join(self.said, prefilled=prefilled)

    def take(self, events: Sequence[StreamEvent]) -> list[StreamEvent]:
        """Return what a piece of the part adds. Raises UpstreamProtocolError."""
        news: list[StreamEvent] = []
        for event in events:
            match event:
                case ErrorReported():
                    raise UpstreamProtocolError(event.message)
                case TextDelta():
                    news += self._say(self._join.feed(event.text))
                case _ if isinstance(event, _ENDINGS):
                    continue
                case _ if self._anew:
                    news.append(event)
                case Started() | ReasoningDelta() | ExtraDelta():
                    continue  # the client has those of the first part
                case _:
                    raise UpstreamProtocolError("its continuation is not plain text")
        return news

    def rest(self) -> list[StreamEvent]:
        """Return what was held back of a part that is over."""
        return self._say(self._join.end())

    def _say(self, text: str) -> list[StreamEvent]:
        self.said += text
        return [TextDelta(text=text, block=self._block)] if text else []
