"""Answers made of several calls: the length of the parts, and the writer that joins them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from headstart.attempts import Shaped, Tokens
from headstart.errors import UpstreamProtocolError
from headstart.policies.output.answer_limits import cut_by
from headstart.transcript import Transcript
from headstart.types import Ended, Piece, UsageReported

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

    from headstart.dialects.dialect import Dialect
    from headstart.reply import Reply
    from headstart.types import ChatRequest, Started, StreamEvent

    WriteEvents: TypeAlias = Callable[[Sequence[StreamEvent]], Piece]


class AnswerLength(NamedTuple):
    """The length of a whole answer in tokens, reasoning included."""

    tokens: int
    estimated: bool = False
    """The upstream did not report it."""
    cut: bool = False
    """The model was stopped before the end of its answer."""
    parts: int = 1
    """The number of calls that the answer took."""

    def as_shaped(self, kind: str) -> Shaped:
        """Return the observation of an experiment, which has only one length."""
        return Shaped(
            kind=kind,
            tokens_before=self.tokens,
            tokens_after=self.tokens,
            estimated=self.estimated,
        )


def length_of(parts: Sequence[Transcript], dialect: Dialect) -> AnswerLength:
    """Return the length of an answer in several parts, each from another call."""
    tokens, estimated = 0, False
    for part in parts:
        used = _used(part, dialect)
        reported = 0 if used is None else used.completion
        tokens += reported or part.estimated_tokens
        estimated |= not reported
    finish = parts[-1].finish
    cut = finish is not None and finish.reason == "length"
    return AnswerLength(tokens, estimated, cut, len(parts))


def was_cut(part: Transcript, dialect: Dialect, limit: int | None) -> bool:
    """Tell whether our limit ended a part."""
    used = _used(part, dialect)
    return limit is not None and cut_by(limit, part.finish, used and used.completion)


def ending_of(parts: Sequence[Transcript], dialect: Dialect) -> list[StreamEvent]:
    """Return the last events of an answer in several parts. Raises UpstreamProtocolError."""
    finish = parts[-1].finish
    if finish is None:
        raise UpstreamProtocolError("its continuation did not come to an end")
    reported = [used for part in parts if (used := _used(part, dialect)) is not None]
    if len(reported) < len(parts):
        return [finish, Ended()]
    usage = dialect.usage(Tokens(*map(sum, zip(*reported, strict=True))))
    return [finish, UsageReported(usage=usage), Ended()]


def _used(part: Transcript, dialect: Dialect) -> Tokens | None:
    return None if part.usage is None else dialect.tokens(part.usage)


def measure(reply: Reply, dialect: Dialect, ended: Callable[[AnswerLength], None]) -> None:
    """Have ``ended`` called with the length of an answer, if it comes to a clean end."""

    def then(transcript: Transcript) -> None:
        if transcript.whole and transcript.error is None:
            ended(length_of([transcript], dialect))

    when_read(reply, then)


def when_read(reply: Reply, then: Callable[[Transcript], None]) -> None:
    """Have ``then`` called with the transcript of an answer, once its last piece was read."""
    reply.filter(_followed(reply.pieces, reply.transcript, then))


async def _followed(
    pieces: AsyncIterator[Piece], transcript: Transcript, then: Callable[[Transcript], None]
) -> AsyncGenerator[Piece]:
    async for piece in pieces:
        yield piece
    then(transcript)


def answer_writer(
    dialect: Dialect,
    request: ChatRequest,
    now: float,
    start: Started,
    shown: Sequence[StreamEvent] = (),
) -> WriteEvents:
    """Return a function that writes the rest of an answer: a stream, or a body at the end.

    The client has the events ``shown``. ``start`` names a stream. The function returns the bytes
    for the next events, of which ``Ended`` is the last. It raises UpstreamProtocolError.
    """
    if not request.stream:
        return partial(_write_body, Transcript(), dialect, now)
    id, created = start.id or dialect.new_id(), start.created or int(now)
    encoder = dialect.encoder(id, created, include_usage=request.include_usage)
    # The encoder must know where the client's part ends.
    encoder.feed(shown)
    return lambda events: Piece(encoder.feed(events), tuple(events))


def _write_body(
    transcript: Transcript, dialect: Dialect, now: float, events: Sequence[StreamEvent]
) -> Piece:
    transcript.feed(events)
    body = b""
    if transcript.ended:
        completion = transcript.completion(now)
        if completion is None:
            raise UpstreamProtocolError("the answer did not come to an end")
        id = transcript.start.id or dialect.new_id()
        body = dialect.write_body(completion, id, completion.created)
    return Piece(body, tuple(events))
