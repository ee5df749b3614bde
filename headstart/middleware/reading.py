"""Reading an answer's bytes as they pass: what they mean, and which of them the client gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headstart.errors import UpstreamProtocolError
from headstart.middleware.event_stream import EventStream
from headstart.types import Ended, ErrorReported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.middleware.dialects.dialect import Dialect, UpstreamDialect
    from headstart.types import Headers, StreamEvent

MAX_DOCUMENT_BYTES = 8 * 1024 * 1024
"""A longer JSON answer is forwarded but neither read nor stored."""
MOST_TRIES = 8
"""Bounds what is decoded in vain, in lengths of the answer, to find a JSON body's end."""


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Bytes for the client and the events that they carry."""

    data: bytes
    events: tuple[StreamEvent, ...] = ()


class BodyReader:
    """Sans-IO: feed an answer's bytes, get pieces; ``end`` gives what only the end can tell."""

    failed = False
    """The answer reported an error. ``end`` gives it as the last piece; nothing good follows."""

    closing = False
    """The answer may be whole: see ``ended`` and ``finished``, which take longer to tell."""

    @property
    def ended(self) -> bool:
        """The answer is whole: its terminal event came, or all of its JSON. ``end`` follows."""
        return False

    @property
    def finished(self) -> bool:
        """Each choice has its finish reason: little may follow."""
        return False

    def feed(self, data: bytes) -> Piece:
        """Return the piece for bytes that just arrived."""
        return Piece(data)

    def end(self) -> Piece:
        """Return the last piece, often without data. Raises UpstreamProtocolError."""
        return Piece(b"")


class StreamReader(BodyReader):
    """An event stream that passes as it comes, whatever it holds, to the last byte."""

    def __init__(self, dialect: Dialect) -> None:
        self._stream = EventStream(dialect, join=True)

    def feed(self, data: bytes) -> Piece:
        """Decode the frames that are whole."""
        events = [event for _, found in self._stream.feed(data) for event in found]
        return Piece(data, tuple(events))


class FrameReader(BodyReader):
    """An event stream whose frames pass as they came, each when it is whole.

    So an answer that breaks off ends between two frames, where another can take over. An error
    waits for the end, apart from the frames before it; a frame that cannot be read is an error in
    the client's dialect. ``strip`` removes the usage chunk that we asked for. The terminal event
    is the last frame that passes.
    """

    def __init__(
        self, dialect: Dialect, request_id: str, *, strip: bool = False, choices: int = 1
    ) -> None:
        self._dialect = dialect
        self._request_id = request_id
        self._stream = EventStream(dialect, join=True, choices=choices)
        self._strip = strip
        self._error = Piece(b"")

    @property
    def ended(self) -> bool:
        return self._stream.ended

    @property
    def finished(self) -> bool:
        return self._stream.finished

    def feed(self, data: bytes) -> Piece:
        """Return the whole frames, up to an error."""
        texts, end = self._stream.feed_texts(data)
        if end == len(data):
            return Piece(data, texts)
        kept = [data[:end]]
        events = [*texts]
        for raw, found in self._stream.feed(data[end:]):
            if error_in(found) is not None:
                self._fail(raw, found)
                break
            events += found
            if not (self._strip and self._dialect.usage_only(found)):
                kept.append(raw)
        self.closing = self._stream.closing
        return Piece(b"".join(kept), tuple(events))

    def end(self) -> Piece:
        """Return the error, or what is left: a last frame that nothing ended."""
        return self._error if self.failed else Piece(self._stream.rest())

    def _fail(self, raw: bytes, found: tuple[StreamEvent, ...]) -> None:
        self.failed = True
        error = error_in(found)
        if error is not None and error.code == UpstreamProtocolError.code:
            raw = self._dialect.error_frame(error, self._request_id)
        self._error = Piece(raw, found)


class Document:
    """A whole JSON answer in the making, up to ``MAX_DOCUMENT_BYTES``."""

    def __init__(self, dialect: UpstreamDialect, status: int) -> None:
        self._dialect = dialect
        self._status = status
        self._parts: list[bytes] = []
        self._size = 0
        self._tried = 0

    @property
    def too_long(self) -> bool:
        return self._size > MAX_DOCUMENT_BYTES

    @property
    def ended(self) -> bool:
        """What came is a whole answer. To be asked only while the body's own end is missing."""
        if self.too_long:
            return False
        self._tried += self._size
        if self._tried > MOST_TRIES * self._size:
            return False
        events = self.events()
        return bool(events) and type(events[-1]) is Ended

    def add(self, data: bytes) -> bool:
        """Keep what came, unless it is too long; tell whether a document may end there."""
        self._size += len(data)
        if self.too_long:
            self._parts.clear()
        else:
            self._parts.append(data)
        return data[-8:].rstrip().endswith(b"}")

    def events(self) -> tuple[StreamEvent, ...]:
        """Decode the answer."""
        return self._dialect.decode_body(self._status, b"".join(self._parts))


class DocumentReader(BodyReader):
    """A whole JSON answer, decoded at its end."""

    def __init__(self, dialect: Dialect, status: int) -> None:
        self._document = Document(dialect, status)

    @property
    def ended(self) -> bool:
        return self._document.ended

    def feed(self, data: bytes) -> Piece:
        """Keep a copy of what passes."""
        self.closing = self._document.add(data)
        return Piece(data)

    def end(self) -> Piece:
        """Decode the document, unless it was too long."""
        if self._document.too_long:
            return Piece(b"")
        return Piece(b"", self._document.events())


def error_in(events: Sequence[StreamEvent]) -> ErrorReported | None:
    """Return the error among the events of a frame."""
    for event in events:
        if type(event) is ErrorReported:
            return event
    return None


def body_reader(status: int, headers: Headers, dialect: Dialect | None) -> BodyReader:
    """Return the reader for an answer that passes as it is; an encoded body passes unread."""
    if dialect is None or not is_plain(headers):
        return BodyReader()
    if is_event_stream(headers):
        return StreamReader(dialect)
    return DocumentReader(dialect, status)


def is_event_stream(headers: Headers) -> bool:
    """True for ``text/event-stream`` answers."""
    for name, value in headers:
        if name == b"content-type":
            return value.lower().startswith(b"text/event-stream")
    return False


def is_plain(headers: Headers) -> bool:
    """Whether the body can be read as it is: nobody compressed it."""
    for name, value in headers:
        if name == b"content-encoding":
            return value.strip().lower() == b"identity"
    return True
