"""The opening of an answer: everything before its first content, which decides who has won.

Until then an answer may turn out to be none: an error, an empty stream, a filter's veto. Whatever
came is held, so the caller sees either an answer from its first byte or a proper error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headstart.errors import UpstreamError, UpstreamProtocolError, UpstreamRefused
from headstart.middleware.reading import is_event_stream, is_plain
from headstart.policies.routing.failures import FailureKind, failure, failure_of
from headstart.types import (
    Ended,
    ErrorReported,
    ExtraDelta,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from typing import Any

    from headstart.errors import HeadstartError
    from headstart.interfaces import Chunk, UpstreamReply
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.policies.routing.failures import Failure
    from headstart.types import Call, Headers, StreamEvent

HELD_BYTES = 8 * 2**20
"""An answer that is longer before its first content is let through unread."""
REFUSAL_BYTES = 64 * 1024
"""A longer error body is replaced by one of ours."""
FILTER_REASON = "content_filter"
LIMIT_REASON = "length"


class AnswerWithheld(UpstreamError):
    """The provider gave a whole answer without content: its filter's veto, or nothing at all.

    Somebody else may do better. ``reply`` is that answer, for the caller if nobody does.
    """

    code = "upstream_withheld"

    def __init__(
        self, message: str, *, kind: FailureKind, reply: UpstreamReply, finished: bool = False
    ) -> None:
        super().__init__(message, kind=kind)
        self.reply = reply
        self.finished = finished
        """It has a finish reason. Whoever asks can bring that about, with a stop sequence."""


class ReadReply:
    """An answer whose pieces are here."""

    def __init__(
        self,
        reply: UpstreamReply,
        pieces: Sequence[Chunk],
        rest: AsyncIterator[Chunk] | None = None,
    ) -> None:
        self.upstream = reply.upstream
        self.status = reply.status
        self.headers = reply.headers
        self.transforms = reply.transforms
        self.storable = reply.storable
        self._pieces = pieces
        self._rest = rest

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Yield the pieces, and the rest of an answer that was too long to be read ahead."""
        for piece in self._pieces:
            yield piece
        if self._rest is not None:
            async for piece in self._rest:
                yield piece


async def read_whole(reply: UpstreamReply) -> ReadReply:
    """Read an answer to its end, or as much as may be held. Raises what its ``chunks`` raise."""
    pieces: list[Chunk] = []
    size, source = 0, reply.chunks()
    async for piece in source:
        pieces.append(piece)
        size += len(piece.data)
        if size > HELD_BYTES:
            return ReadReply(reply, pieces, source)
    return ReadReply(reply, pieces)


class Progress:
    """What the events of one answer told so far."""

    __slots__ = ("_begun", "_over", "characters", "content", "cut", "ended", "error", "extras",
                 "filtered", "usage")  # fmt: skip

    def __init__(self) -> None:
        self.content = False
        """Text, reasoning, a tool call or a refusal came: not a role, nor an empty text."""
        self.extras = False
        """Content came that this version does not know, such as sound."""
        self.ended = False
        self.filtered = False
        self.cut = False
        """A limit on the answer's length ended it."""
        self.error: ErrorReported | None = None
        self.usage: dict[str, Any] | None = None
        self.characters = 0
        self._begun: set[int] = set()
        self._over: set[int] = set()

    def feed(self, events: Sequence[StreamEvent]) -> None:
        """Take in the events of a piece."""
        for event in events:
            match event:
                case TextDelta() | ReasoningDelta() | RefusalDelta():
                    self._add(event.choice, len(event.text))
                case ToolCallDelta():
                    self._add(event.choice, len(event.arguments))
                    self.content = True
                case Finished():
                    self._over.add(event.choice)
                    self.filtered |= FILTER_REASON in (event.reason, event.native)
                    self.cut |= event.reason == LIMIT_REASON
                case UsageReported():
                    self.usage = event.usage
                case ExtraDelta(choice=int(), beside=False):
                    self.extras |= any(event.fields.values())
                case ErrorReported():
                    self.error = self.error or event
                case Ended():
                    self.ended = True

    def _add(self, choice: int, length: int) -> None:
        self._begun.add(choice)
        if length:
            self.characters += length
            self.content = True

    @property
    def finished(self) -> bool:
        """Each choice that began has a finish reason: it stands in for a missing terminal event."""
        return bool(self._over) and self._begun <= self._over

    @property
    def whole(self) -> bool:
        return self.ended or self.finished


def judge(error: HeadstartError, unix: float) -> Failure:
    """Return what to do about an error of an upstream; ``unix`` is now in Unix seconds.

    A request that one upstream's dialect cannot express is that upstream's shortcoming.
    """
    if not isinstance(error, UpstreamError):
        return msgspec.structs.replace(failure(FailureKind.BAD_REQUEST), fail_over=True)
    found = failure_of(error, unix)
    if isinstance(error, AnswerWithheld) and error.finished:
        # No mark against the provider: a caller could have it taken from all others.
        found = msgspec.structs.replace(found, charges=False)
    return found


def is_readable(call: Call, headers: Headers) -> bool:
    """Tell whether a 200 answer's events say all that there is to say.

    A whole answer to a call that passes untouched may be anything: it is the caller's to read.
    """
    return is_plain(headers) and (call.editable or is_event_stream(headers))


async def open_answer(
    reply: UpstreamReply,
    source: AsyncIterator[Chunk],
    progress: Progress,
    dialect: Dialect | None,
    request_id: str,
) -> list[Chunk]:
    """Read an answer up to its first content; return the pieces that were held until then.

    With ``dialect`` None nobody can tell content from the rest: its first bytes will do. Raises
    UpstreamRefused, AnswerWithheld, or UpstreamProtocolError for a stream with nothing in it.
    """
    if reply.status >= 300:
        raise await _refusal(reply, source, dialect, request_id)
    held: list[Chunk] = []
    size = 0
    async for piece in source:
        held.append(piece)
        size += len(piece.data)
        progress.feed(piece.events)
        if progress.error is not None and dialect is not None:
            raise reported(progress.error, reply, dialect, request_id)
        if progress.content or size > HELD_BYTES or (size and dialect is None):
            return held
        if progress.ended:
            break
    if dialect is None or progress.extras or progress.cut or reply.status != 200:
        return held
    if not progress.whole:
        raise UpstreamProtocolError(
            f"upstream {reply.upstream} answered with nothing", kind=FailureKind.EMPTY
        )
    raise AnswerWithheld(
        f"upstream {reply.upstream} gave no answer",
        kind=FailureKind.FILTERED if progress.filtered else FailureKind.EMPTY,
        reply=ReadReply(reply, held),
        finished=progress.finished,
    )


def reported(
    event: ErrorReported, reply: UpstreamReply, dialect: Dialect, request_id: str
) -> UpstreamRefused:
    """Return the error that stood in a 200 answer as the error status that it should have been."""
    status = event.status if event.status is not None and 400 <= event.status < 600 else 502
    return UpstreamRefused(
        f"upstream {reply.upstream} answered 200 with an error: {event.message}",
        status=status,
        headers=_own_headers(reply.headers, dialect),
        body=dialect.error_body(event, request_id),
        code=event.code or "upstream_error",
    )


async def _refusal(
    reply: UpstreamReply, source: AsyncIterator[Chunk], dialect: Dialect | None, request_id: str
) -> UpstreamRefused:
    body = bytearray()
    event: ErrorReported | None = None
    async for piece in source:
        body += piece.data
        event = next((each for each in piece.events if isinstance(each, ErrorReported)), event)
        if len(body) > REFUSAL_BYTES:
            break
    message = event.message if event is not None else f"the upstream answered {reply.status}"
    headers = reply.headers
    if len(body) > REFUSAL_BYTES and dialect is not None:
        event = ErrorReported(message=message, status=reply.status)
        body[:] = dialect.error_body(event, request_id)
        headers = _own_headers(headers, dialect)
    return UpstreamRefused(
        f"upstream {reply.upstream}: {message}",
        status=reply.status,
        headers=headers,
        body=bytes(body),
        code=(event and event.code) or "upstream_error",
    )


def _own_headers(headers: Headers, dialect: Dialect) -> Headers:
    """Return a provider's headers for a body of ours."""
    kept = tuple(pair for pair in headers if not pair[0].startswith(b"content-"))
    return (*kept, (b"content-type", dialect.content_types.json))
