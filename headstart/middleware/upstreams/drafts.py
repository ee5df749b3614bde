"""A cheap model's draft: read whole before anybody sees it, then sent as it came."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headstart.errors import UpstreamProtocolError
from headstart.middleware.collect import Collector
from headstart.middleware.reading import Piece
from headstart.middleware.upstreams.jury import without_logprobs
from headstart.middleware.upstreams.opening import HELD_BYTES
from headstart.types import Ended, LogprobsDelta, Started

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from headstart.interfaces import Chunk, UpstreamReply
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.types import Call, Completion, Headers

_IDENTITY = (b"accept-encoding", b"identity")


class Draft(NamedTuple):
    """An answer that was read to its end."""

    reply: UpstreamReply
    pieces: Sequence[Chunk]
    answer: Completion | None
    """None: it could not be read, such as one that is compressed."""


class AnswerReply:
    """An answer with the name of who gave it among its transforms."""

    def __init__(
        self,
        reply: UpstreamReply,
        mark: str,
        chunks: Callable[[], AsyncIterator[Chunk]] | None = None,
        *,
        storable: bool = True,
        headers: Headers | None = None,
    ) -> None:
        self.upstream = reply.upstream
        self.status = reply.status
        self.headers = reply.headers if headers is None else headers
        self.chunks = chunks or reply.chunks
        self._reply = reply
        self._mark = mark
        self._storable = storable

    @property
    def transforms(self) -> tuple[str, ...]:
        return (*self._reply.transforms, self._mark)

    @property
    def storable(self) -> bool:
        return self._storable and self._reply.storable


async def read_draft(reply: UpstreamReply, now: float) -> Draft:
    """Read a draft to its end. Raises UpstreamError, also for one too long to be held.

    ``now`` is Unix seconds.
    """
    pieces: list[Chunk] = []
    collector, size = Collector(), 0
    async for piece in reply.chunks():
        pieces.append(piece)
        collector.feed(piece.events)
        size += len(piece.data)
        if size > HELD_BYTES:
            raise UpstreamProtocolError(f"the draft of upstream {reply.upstream} is too long")
    return Draft(reply, pieces, finished_answer(collector, now))


def finished_answer(collector: Collector, now: float) -> Completion | None:
    """Return the answer of a body that has ended; finish reasons stand in for a terminal event."""
    if collector.finished and not collector.ended:
        collector.feed((Ended(),))
    return collector.completion(now)


def replayed(
    draft: Draft, mark: str, after: Callable[[], Awaitable[None]], *, storable: bool = True
) -> AnswerReply:
    """Return a draft as an answer, byte for byte as it came. ``after`` is awaited at its end."""

    async def chunks() -> AsyncIterator[Chunk]:
        for piece in draft.pieces:
            yield piece
        await after()

    return AnswerReply(draft.reply, mark, chunks, storable=storable)


def readable(call: Call) -> Call:
    """Return a call whose answer comes uncompressed, so that it can be judged."""
    kept = tuple(pair for pair in call.headers if pair[0] != _IDENTITY[0])
    return msgspec.structs.replace(call, headers=(*kept, _IDENTITY))


def asking_logprobs(call: Call) -> Call:
    """Return an OpenAI chat call that asks for log-probabilities."""
    request = call.request
    assert request is not None
    body = msgspec.json.decode(call.body, type=dict[str, msgspec.Raw])
    body["logprobs"] = msgspec.Raw(b"true")
    asked = msgspec.structs.replace(
        request, document={**request.document, "logprobs": True}, logprobs=True
    )
    return msgspec.structs.replace(call, body=msgspec.json.encode(body), request=asked)


def stripped(draft: Draft, call: Call, dialect: Dialect) -> Draft:
    """Return a draft written anew without log-probabilities that the caller did not ask for."""
    answer, request = draft.answer, call.request
    events = tuple(
        event
        for piece in draft.pieces
        for event in piece.events
        if not isinstance(event, LogprobsDelta)
    )
    if answer is None or request is None:
        return draft
    plain = without_logprobs(answer)
    ids = (event.id for event in events if isinstance(event, Started))
    id = next((each for each in ids if each), None) or dialect.new_id()
    rendered = dialect.render(plain)
    if request.stream:
        data = rendered.sse(id, plain.created, include_usage=request.include_usage)
    else:
        data = rendered.json(id, plain.created)
    headers = tuple(pair for pair in draft.reply.headers if pair[0] != b"content-length")
    reply = AnswerReply(draft.reply, "logprobs", headers=headers)
    return Draft(reply, (Piece(data, events),), plain)
