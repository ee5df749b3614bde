"""How long an answer turned out to be, read as it passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headstart.middleware.shaping.shaper import ShapedReply
from headstart.middleware.upstreams.opening import Progress
from headstart.middleware.upstreams.recording import CHARACTERS_PER_TOKEN
from headstart.types import Finished

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from headstart.attempts import Tokens
    from headstart.interfaces import Chunk, UpstreamReply
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.types import StreamEvent


class Length(NamedTuple):
    """Of a whole answer, in tokens, reasoning included."""

    tokens: int
    estimated: bool = False
    """It was not reported."""
    cut: bool = False
    """The model would have said more."""
    parts: int = 1
    """Calls that it took."""


class Part:
    """What one call's events tell of its length and its end."""

    def __init__(self) -> None:
        self.progress = Progress()
        self.finish: Finished | None = None

    def feed(self, events: Sequence[StreamEvent]) -> None:
        """Take in the events of a piece."""
        self.progress.feed(events)
        for event in events:
            if type(event) is Finished:
                self.finish = event

    def used(self, dialect: Dialect) -> Tokens | None:
        """Return what was reported, or None."""
        usage = self.progress.usage
        return None if usage is None else dialect.tokens(usage)

    def length(self, dialect: Dialect) -> Length:
        """Return the length so far, estimated where nothing was reported."""
        cut = self.finish is not None and self.finish.reason == "length"
        used = self.used(dialect)
        if used is not None and used.completion:
            return Length(used.completion, cut=cut)
        estimate = round(self.progress.characters / CHARACTERS_PER_TOKEN)
        return Length(estimate, estimated=True, cut=cut)


class MeasuredReply(ShapedReply):
    """An answer that passes as it is. ``ended`` is called once if it comes to a clean end."""

    def __init__(
        self,
        inner: UpstreamReply,
        dialect: Dialect,
        ended: Callable[[Length], None],
        *transforms: str,
    ) -> None:
        super().__init__(inner, *transforms)
        self._dialect = dialect
        self._ended = ended

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Yield the body as it arrives. Raises UpstreamError when it breaks off."""
        part = Part()
        async for piece in self._inner.chunks():
            part.feed(piece.events)
            yield piece
        if part.progress.whole and part.progress.error is None:
            self._ended(part.length(self._dialect))
