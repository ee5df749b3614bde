"""An event stream as what its frames say; those that say nothing but text are read by the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.middleware.sse import SSEDecoder
from headstart.middleware.text_shape import learn_shape
from headstart.types import Ended, ErrorReported, Finished

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.middleware.dialects.dialect import UpstreamDialect
    from headstart.middleware.text_shape import TextShape
    from headstart.types import StreamEvent


class EventStream:
    """Cuts a stream into frames and decodes them, up to the terminal event.

    ``join``: a run of texts becomes one event. ``choices``: how many were asked for.
    """

    def __init__(self, dialect: UpstreamDialect, *, join: bool, choices: int = 1) -> None:
        self.ended = False
        """The terminal event came. What follows it is no part of the answer, and is not read."""
        self.closing = False
        """The answer has ended, or one of its choices has finished."""
        self._choices = choices
        self._ends_at_finish = dialect.ends_at_finish
        self._finished: set[int] = set()
        self._frames = SSEDecoder()
        self._decoder = dialect.decoder()
        self._join = join
        self._shape: TextShape | None = None

    @property
    def finished(self) -> bool:
        """Each choice that was asked for has its finish reason."""
        return len(self._finished) >= self._choices

    def feed_texts(self, data: bytes) -> tuple[tuple[StreamEvent, ...], int]:
        """Return what the frames of text say that ``data`` begins with, and where they end.

        ``feed`` takes what follows them.
        """
        if self._shape is None or self._frames.holds:
            return (), 0
        return self._shape.read(data, 0, join=self._join)

    def feed(self, data: bytes) -> Iterator[tuple[bytes, tuple[StreamEvent, ...]]]:
        """Yield each whole frame, or run of texts, with what it says.

        To be read to its end, unless the stream ends with what was read. Raises
        UpstreamProtocolError.
        """
        block = b"" if self.ended else self._frames.receive(data)
        at = 0
        while at < len(block):
            if self._shape is not None:
                texts, end = self._shape.read(block, at, join=self._join)
                if texts:
                    yield block[at:end], texts
                    at = end
            frame = self._frames.cut(block, at)
            if frame is None:
                return
            at += len(frame.raw)
            events = self._decoder.feed(frame)
            if self._ends_with(events):
                return
            if frame.data:
                self._shape = None if self.ended else learn_shape(frame.raw, events)
            yield frame.raw, events
            if self.ended:
                return

    def _ends_with(self, events: tuple[StreamEvent, ...]) -> bool:
        """Follow the events; True where they are no part of the answer, which is whole."""
        whole = self._ends_at_finish and self.finished
        for event in events:
            if type(event) is Finished:
                self._finished.add(event.choice)
                self.closing = True
            elif type(event) is Ended:
                self.ended = self.closing = True
            elif whole and type(event) is ErrorReported:
                self.ended = True
                return True
        return False

    def rest(self) -> bytes:
        """Return what came after the last whole frame."""
        return self._frames.rest()
