"""Reading an answer's bytes as they pass: what they mean, and which of them the client gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headstart.middleware.sse import SSEDecoder

if TYPE_CHECKING:
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.types import Headers, StreamEvent

MAX_FRAME_BYTES = 8 * 1024 * 1024
MAX_DOCUMENT_BYTES = 8 * 1024 * 1024
"""A longer JSON answer is forwarded but neither read nor stored."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes for the client and the events that they carry."""

    data: bytes
    events: tuple[StreamEvent, ...] = ()


class BodyReader:
    """Sans-IO: feed an answer's bytes, get pieces; ``end`` gives what only the end can tell."""

    def feed(self, data: bytes) -> Piece:
        """Return the piece for bytes that just arrived."""
        return Piece(data)

    def end(self) -> Piece:
        """Return the last piece, often without data."""
        return Piece(b"")


class StreamReader(BodyReader):
    """An event stream; ``strip`` removes the usage chunk that we asked for."""

    def __init__(self, dialect: Dialect, *, strip: bool) -> None:
        self._dialect = dialect
        self._frames = SSEDecoder(max_frame_bytes=MAX_FRAME_BYTES)
        self._decoder = dialect.decoder()
        self._strip = strip

    def feed(self, data: bytes) -> Piece:
        """Decode whole frames. Only a stripped stream holds back an unfinished one."""
        frames = self._frames.feed(data)
        read = self._decoder.feed
        events: list[StreamEvent] = []
        if not self._strip:
            for frame in frames:
                events += read(frame)
            return Piece(data, tuple(events))
        kept: list[bytes] = []
        for frame in frames:
            found = read(frame)
            events += found
            if not self._dialect.usage_only(found):
                kept.append(frame.raw)
        return Piece(b"".join(kept), tuple(events))

    def end(self) -> Piece:
        """Hand out an unfinished frame that was held back."""
        return Piece(self._frames.rest() if self._strip else b"")


class DocumentReader(BodyReader):
    """A whole JSON answer, decoded at its end."""

    def __init__(self, dialect: Dialect, status: int) -> None:
        self._dialect = dialect
        self._status = status
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Piece:
        """Keep a copy of what passes."""
        self._size += len(data)
        if self._size <= MAX_DOCUMENT_BYTES:
            self._parts.append(data)
        return Piece(data)

    def end(self) -> Piece:
        """Decode the document, unless it was too long."""
        if self._size > MAX_DOCUMENT_BYTES:
            return Piece(b"")
        return Piece(b"", self._dialect.decode_body(self._status, b"".join(self._parts)))


def body_reader(
    status: int, headers: Headers, dialect: Dialect | None, *, strip: bool = False
) -> BodyReader:
    """Return the reader for an answer; an encoded or foreign body is passed on unread."""
    if dialect is None or not is_plain(headers):
        return BodyReader()
    if is_event_stream(headers):
        return StreamReader(dialect, strip=strip)
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
