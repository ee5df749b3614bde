"""One upstream's answer, as the value that goes from a provider's socket to the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headstart.errors import UpstreamError
from headstart.transcript import Transcript

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
    from types import TracebackType
    from typing import Self, TypeAlias

    from headstart.types import Headers, Origin, Piece

    Closing: TypeAlias = Callable[[BaseException | None], Awaitable[None]]

HELD_BYTES = 8 * 2**20
"""An answer that is longer before its first content is let through unread."""


class FollowedAnswer(Protocol):
    """The answer to a call that another process makes."""

    @property
    def origin(self) -> Origin | None:
        """What the call took, once its answer is whole."""


class Reply:
    """An upstream's answer: status and headers at once, its body as it arrives.

    A reply has one owner: whoever sent the call, until it hands the reply on. The owner may read
    ``pieces`` once, change the other attributes, put a filter around the pieces (``filter``), and
    has to close the reply (``aclose``, or ``async with``). Any task may do so, at any time: no task
    group, timeout or cancel scope reaches from the call to the end of its reply.

    ``transforms`` names the edits of the request and of the answer; it is empty for an exchange
    that is byte-identical. ``storable`` is False for an answer that nobody else may be served, such
    as a rescued one. Both are final only when the body was read.
    """

    __slots__ = (
        "_generators", "closing", "followed", "headers", "is_plain", "is_stream", "pieces",
        "status", "storable", "transcript", "transforms", "upstream", "usual_speed",
    )  # fmt: skip

    def __init__(
        self,
        upstream: str,
        status: int,
        headers: Headers,
        pieces: AsyncGenerator[Piece],
        *,
        transforms: tuple[str, ...] = (),
        closing: Closing | None = None,
        transcript: Transcript | None = None,
    ) -> None:
        self.upstream = upstream
        self.status = status
        self.headers = headers
        self.pieces: AsyncIterator[Piece] = pieces
        """The body, once. Reading raises UpstreamError when the answer breaks off."""
        self.transforms = transforms
        self.storable = True
        self.followed: FollowedAnswer | None = None
        """Set if another process made the call. That process stores the answer and books it."""
        self.usual_speed: Callable[[], float | None] | None = None
        """Returns the usual tokens per second of this upstream with this model, if known."""
        self.is_stream, self.is_plain = form_of_body(headers)
        """Whether the body is a stream of events, and whether it is not compressed: then it can be
        read as it is."""
        self.transcript = Transcript() if transcript is None else transcript
        """The record of all pieces. Whoever makes pieces adds them to it before yielding them."""
        self.closing = closing
        """Closes the connection and books the call; an owner may put its own around it."""
        self._generators: tuple[AsyncGenerator[Piece], ...] = (pieces,)

    def filter(self, pieces: AsyncGenerator[Piece]) -> None:
        """Put ``pieces``, which reads the present ones, in their place; closing closes it, too."""
        self.pieces = pieces
        self._generators = (pieces, *self._generators)

    def rewrite(self, pieces: AsyncGenerator[Piece]) -> None:
        """Put other pieces in the place of the present ones; they get a transcript of their own."""
        self.transcript = transcript = Transcript()
        self.filter(pieces)
        self.filter(_recorded(pieces, transcript))

    def on_close(self, callback: Callable[[], object]) -> None:
        """Call a function when the reply was closed."""
        closing = self.closing

        async def close(error: BaseException | None) -> None:
            try:
                if closing is not None:
                    await closing(error)
            finally:
                callback()

        self.closing = close

    async def aclose(self, error: BaseException | None = None) -> None:
        """Close the connection of an answer that was not read to its end; once.

        ``error`` tells why the reader stops.
        """
        closing, self.closing = self.closing, None
        generators, self._generators = self._generators, ()
        try:
            for pieces in generators:
                await pieces.aclose()
        finally:
            if closing is not None:
                await closing(error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose(error)


async def _recorded(pieces: AsyncGenerator[Piece], transcript: Transcript) -> AsyncGenerator[Piece]:
    async for piece in pieces:
        transcript.add(piece)
        yield piece


async def read_whole(reply: Reply) -> Reply:
    """Read an answer to its end, or as much as may be held; it can be read again.

    Raises what reading its pieces raises.
    """
    held: list[Piece] = []
    size = 0
    async for piece in reply.pieces:
        held.append(piece)
        size += len(piece.data)
        if size > HELD_BYTES:
            break
    reply.pieces = replayed(held, reply.pieces)
    return reply


async def replayed(
    held: Sequence[Piece], rest: AsyncIterator[Piece] | None = None
) -> AsyncGenerator[Piece]:
    """Yield pieces that were held, and the rest of an answer that was too long to be held."""
    for piece in held:
        yield piece
    if rest is not None:
        async for piece in rest:
            yield piece


class AnswerWithheld(UpstreamError):
    """The provider gave a whole answer without content: its filter's veto, or nothing at all.

    Another upstream may do better. ``reply`` is that answer, for the caller if none does.
    """

    code = "upstream_withheld"

    def __init__(self, message: str, *, kind: str, reply: Reply, finished: bool = False) -> None:
        super().__init__(message, kind=kind)
        self.reply = reply
        self.finished = finished
        """It has a finish reason. A caller can bring that about with a stop sequence."""


EVENT_STREAMS = (b"text/event-stream", b"application/vnd.amazon.eventstream")
"""The beginnings of the media types of streams of events."""


def form_of_body(headers: Sequence[tuple[bytes, bytes]]) -> tuple[bool, bool]:
    """Return ``is_event_stream`` and ``is_plain`` of an answer."""
    found = dict(headers[::-1])  # of several headers with a name the first one counts
    kind, encoding = found.get(b"content-type"), found.get(b"content-encoding")
    return (
        kind is not None and kind.lower().startswith(EVENT_STREAMS),
        encoding is None or encoding.strip().lower() == b"identity",
    )


def is_event_stream(headers: Headers) -> bool:
    """Tell whether an answer is a stream of events, in any framing that a dialect knows."""
    return form_of_body(headers)[0]


def is_plain(headers: Headers) -> bool:
    """Tell whether the body can be read as it is: it is not compressed."""
    return form_of_body(headers)[1]
