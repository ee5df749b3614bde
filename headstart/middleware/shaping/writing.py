"""Writing an answer of several parts as one: on in a stream, or as a whole body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headstart.errors import UpstreamProtocolError
from headstart.middleware.collect import Collector
from headstart.middleware.reading import Piece
from headstart.types import Ended, Started

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.middleware.dialects.dialect import Dialect
    from headstart.types import ChatRequest, StreamEvent


class Writer(Protocol):
    """Writes events, in order; ``Ended`` is the last."""

    def write(self, events: Sequence[StreamEvent]) -> Piece: ...


class StreamWriter:
    """Goes on with a stream of which the client has ``shown`` already."""

    def __init__(
        self,
        dialect: Dialect,
        request: ChatRequest,
        shown: Sequence[StreamEvent],
        start: Started,
        now: float,
    ) -> None:
        self._encoder = dialect.encoder(
            start.id or dialect.new_id(),
            start.created or int(now),
            include_usage=request.include_usage,
        )
        # What the client has already puts the writer in the place where it goes on.
        self._encoder.feed(shown)

    def write(self, events: Sequence[StreamEvent]) -> Piece:
        """Return the bytes that say these events."""
        return Piece(self._encoder.feed(events), tuple(events))


class BodyWriter:
    """Collects an answer, which the client gets whole at its end."""

    def __init__(self, dialect: Dialect, now: float) -> None:
        self._dialect = dialect
        self._now = now
        self._collector = Collector()
        self._id: str | None = None

    def write(self, events: Sequence[StreamEvent]) -> Piece:
        """Return the events without bytes, at last with the body. Raises UpstreamProtocolError."""
        self._id = self._id or named(events).id
        self._collector.feed(events)
        body = b""
        if any(isinstance(event, Ended) for event in events):
            completion = self._collector.completion(self._now)
            if completion is None:
                raise UpstreamProtocolError("the answer did not come to an end")
            id = self._id or self._dialect.new_id()
            body = self._dialect.render(completion).json(id, completion.created)
        return Piece(body, tuple(events))


def named(events: Sequence[StreamEvent]) -> Started:
    """Return the id and the time under which an answer goes, as far as they are known."""
    starts = [event for event in events if isinstance(event, Started)]
    return Started(
        id=next((each.id for each in starts if each.id), None),
        created=next((each.created for each in starts if each.created), None),
    )
