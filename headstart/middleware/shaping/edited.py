"""Answers made of search/replace blocks, and the documents that come of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from headstart.middleware.shaping.shaper import ShapedReply
from headstart.middleware.upstreams.opening import HELD_BYTES, Progress
from headstart.policies.output.edit_blocks import EditReader
from headstart.types import Finished, RefusalDelta, TextDelta, ToolCallDelta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from headstart.interfaces import Chunk, UpstreamReply
    from headstart.policies.output.edit_intent import EditRequest
    from headstart.types import Headers, StreamEvent

_DELTA_CHARS = 2000


class EditAnswer:
    """An answer to a call that asked for blocks, read to its end or to its first doubt."""

    def __init__(self, edit: EditRequest) -> None:
        self.reader = EditReader(edit.document)
        self.progress = Progress()
        self.pieces: list[Chunk] = []
        self.said: list[str] = []
        self.text: str | None = None
        """For the client; None: no document came of it."""
        self.own_s = 0.0
        self._edit = edit
        self._stopped = False
        self._strange = False

    @property
    def events(self) -> Sequence[StreamEvent]:
        """Return what came so far."""
        return [event for piece in self.pieces for event in piece.events]

    async def read(self, source: AsyncIterator[Chunk]) -> None:
        """Read it, as far as it may be held."""
        size = 0
        async for piece in source:
            began = time.perf_counter()
            self.pieces.append(piece)
            self._feed(piece)
            self.own_s += time.perf_counter() - began
            size += len(piece.data)
            if self.reader.doubt is not None or size > HELD_BYTES:
                return
        began = time.perf_counter()
        edited = self.reader.end()
        whole = self._stopped and not self._strange and self.progress.error is None
        if edited is not None and whole:
            document = self._edit.bordered(edited.document)
            parts = (edited.before, document, edited.after)
            self.text = None if document is None else "\n\n".join(part for part in parts if part)
        self.own_s += time.perf_counter() - began

    def _feed(self, piece: Chunk) -> None:
        self.progress.feed(piece.events)
        for event in piece.events:
            match event:
                case TextDelta():
                    self.said.append(event.text)
                    self.reader.feed(event.text)
                case Finished():
                    self._stopped = event.reason == "stop"
                case ToolCallDelta() | RefusalDelta():
                    self._strange = True


class EditedReply(ShapedReply):
    """An answer that is here, or as much of it as could be held, and what follows."""

    def __init__(
        self,
        inner: UpstreamReply,
        transform: str,
        pieces: Sequence[Chunk],
        rest: AsyncIterator[Chunk] | None = None,
    ) -> None:
        super().__init__(inner, transform)
        self._pieces = pieces
        self._rest = rest

    @property
    def headers(self) -> Headers:
        """As they came; without a length if the body is another."""
        if self._rest is not None:
            return self._inner.headers
        return tuple(pair for pair in self._inner.headers if pair[0] != b"content-length")

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Yield the body. Raises UpstreamError when it breaks off."""
        for piece in self._pieces:
            yield piece
        if self._rest is not None:
            async for piece in self._rest:
                yield piece


def with_text(events: Sequence[StreamEvent], text: str) -> list[StreamEvent]:
    """Return the events with another text in the place of theirs."""
    kept: list[StreamEvent] = []
    said = False
    for event in events:
        if not isinstance(event, TextDelta):
            kept.append(event)
        elif event.text and not said:
            said = True
            kept += [
                msgspec.structs.replace(event, text=text[at : at + _DELTA_CHARS])
                for at in range(0, len(text), _DELTA_CHARS)
            ]
    return kept
