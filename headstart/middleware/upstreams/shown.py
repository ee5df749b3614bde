"""What a client has of an answer already, and how another answer goes on from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headstart.attempts import Tokens
from headstart.errors import UpstreamProtocolError
from headstart.middleware.upstreams.recording import CHARACTERS_PER_TOKEN
from headstart.types import (
    Ended,
    ErrorReported,
    ExtraDelta,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headstart.interfaces import Chunk
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.policies.routing.seam import Continuation, Seam
    from headstart.types import StreamEvent

MOST_BYTES = 2 * 2**20
"""A longer answer is not remembered, so it cannot be rescued."""
_REPEATABLE = (Started, TextDelta, ReasoningDelta, UsageReported)
"""Events that a second answer may follow: nothing half-shown but text and reasoning."""


class Shown:
    """Remembers what passed. Adding a piece costs next to nothing: few answers break off."""

    def __init__(self) -> None:
        self._pieces: list[tuple[StreamEvent, ...]] = []
        self._size = 0

    def add(self, piece: Chunk) -> None:
        """Take in a piece that the client is about to get."""
        self._size += len(piece.data)
        if self._size <= MOST_BYTES:
            self._pieces.append(tuple(piece.events))

    @property
    def nothing(self) -> bool:
        """No byte has passed: a folded answer, of which another one can take the place."""
        return self._size == 0

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, TextDelta))

    @property
    def events(self) -> list[StreamEvent]:
        return [event for events in self._pieces for event in events]

    @property
    def id(self) -> str | None:
        starts = (event for event in self.events if isinstance(event, Started))
        return next((start.id for start in starts if start.id), None)

    @property
    def created(self) -> int:
        starts = (event for event in self.events if isinstance(event, Started))
        return next((start.created for start in starts if start.created), 0)

    @property
    def is_kept(self) -> bool:
        """All that passed is remembered."""
        return self._size <= MOST_BYTES

    @property
    def joinable(self) -> bool:
        """Whether another answer could go on from here."""
        if not self.is_kept:
            return False
        return all(isinstance(event, _REPEATABLE) or _is_beside(event) for event in self.events)

    @property
    def is_text(self) -> bool:
        """It is joinable, and shows no reasoning."""
        return self.joinable and not any(isinstance(each, ReasoningDelta) for each in self.events)

    @property
    def block(self) -> int | None:
        """The content block of the last text."""
        texts = [event for event in self.events if isinstance(event, TextDelta)]
        return texts[-1].block if texts else None

    def tokens(self, dialect: Dialect, prompt_tokens: int) -> Tokens:
        """Return what it took, by estimate where it broke off before that was reported."""
        length = round(len(self.text) / CHARACTERS_PER_TOKEN)
        reported = [event.usage for event in self.events if isinstance(event, UsageReported)]
        tokens = dialect.tokens(reported[-1]) if reported else Tokens(prompt=prompt_tokens)
        return tokens._replace(completion=max(tokens.completion, length))


def _is_beside(event: StreamEvent) -> bool:
    """Tell a chunk's own fields, such as padding, from content."""
    return isinstance(event, ExtraDelta) and event.choice is None


class Joint:
    """Turns the events of a second answer into those that follow the ones shown."""

    def __init__(self, seam: Seam | Continuation, block: int | None) -> None:
        """Join at ``seam``, in the content block ``block``."""
        self._seam = seam
        self._block = block
        self._renamed: int | None = None

    def feed(self, events: Sequence[StreamEvent]) -> Iterator[StreamEvent]:
        """Yield what is new. Raises UpstreamProtocolError where the answers diverge."""
        for event in events:
            match event:
                case Started() | ReasoningDelta():
                    # The client has the one, and has seen another reasoning than this.
                    continue
                case ErrorReported():
                    raise UpstreamProtocolError(f"the rescue failed: {event.message}")
                case TextDelta():
                    yield from self._text(event)
                case Finished() | ToolCallDelta() | Ended():
                    yield from self._news(TextDelta(text="", block=self._block), self._seam.end())
                    yield event
                case _:
                    yield event

    def _text(self, event: TextDelta) -> Iterator[StreamEvent]:
        yield from self._news(event, self._seam.feed(event.text))

    def _news(self, event: TextDelta, news: str | None) -> Iterator[StreamEvent]:
        if news is None:
            raise UpstreamProtocolError("the rescue says something else, or less")
        if not news:
            return
        if self._block is not None and self._renamed is None:
            self._renamed = event.block
        block = self._block if event.block == self._renamed else event.block
        yield msgspec.structs.replace(event, text=news, block=block)
