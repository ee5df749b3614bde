"""Sans-IO decoder of server-sent events that keeps every byte (WHATWG HTML, section 9.2).

Frames are cut only where the input cuts them, so the bytes of an answer can be forwarded
untouched, frame by frame, while their meaning is read on the side.
"""

from __future__ import annotations

import re

import msgspec

from headstart.errors import UpstreamProtocolError

_BOM = b"\xef\xbb\xbf"
_LF = 10

# A carriage return ends a line by itself only when the next byte is known not to be a line feed:
# otherwise the same stream, split elsewhere, would give other frames.
_LINE_END = rb"(?:\r\n|\n|\r(?=[^\n]))"
_BLANK_LINE = re.compile(_LINE_END)
_FRAME_END = re.compile(_LINE_END + _LINE_END)
_SEAM = 3  # the longest frame end is four bytes, of which at least one is new


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One event, comment block or stray blank line, with the bytes that it came in."""

    raw: bytes
    data: bytes | None
    """The data lines, joined by line feeds; None when there is no data line."""
    event: bytes | None


class SSEDecoder:
    """Cuts a byte stream into frames.

    The ``raw`` of all frames, followed by ``rest()``, is the input byte for byte, and the frames
    do not depend on how the input was split. Time is linear in the input, however small the
    pieces. A frame longer than ``max_frame_bytes`` raises UpstreamProtocolError.
    """

    def __init__(self, max_frame_bytes: int = 8 * 2**20) -> None:
        self._max = max_frame_bytes
        self._pieces: list[bytes] = []
        self._size = 0
        self._seam = b""
        self._at_start = True
        self._only_lf = True

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that ``data`` completes, oldest first. Raises UpstreamProtocolError."""
        block = self.receive(data)
        frames: list[Frame] = []
        at = 0
        while frame := self.cut(block, at):
            frames.append(frame)
            at += len(frame.raw)
        return frames

    def receive(self, data: bytes) -> bytes:
        """Return what frames are to be cut from, one by one, until ``cut`` returns None.

        Nothing while no frame can end. Raises UpstreamProtocolError.
        """
        if self._pieces:
            if not self._completes_frame(data):
                self._hold(data)
                return b""
            data = b"".join((*self._pieces, data))
            self._pieces.clear()
            self._size = 0
            self._seam = b""
        self._only_lf = b"\r" not in data
        return data

    def cut(self, block: bytes, start: int) -> Frame | None:
        """Return the frame at ``start``. None: there is no whole one, and what is left is held.

        Raises UpstreamProtocolError.
        """
        end = _frame_end(block, start, only_lf=self._only_lf)
        if end == 0:
            if start < len(block):
                self._hold(block[start:])
            return None
        if end - start > self._max:
            raise self._too_long()
        raw = block[start:end]
        if self._at_start:
            self._at_start = False
            if raw.startswith(_BOM):
                return msgspec.structs.replace(_parse(raw.removeprefix(_BOM)), raw=raw)
        return _parse(raw)

    @property
    def holds(self) -> bool:
        """Part of a frame has come."""
        return bool(self._pieces)

    def rest(self) -> bytes:
        """Return what came after the last whole frame. The specification discards it at the end."""
        return b"".join(self._pieces)

    def _completes_frame(self, data: bytes) -> bool:
        """Can a frame end in ``data``, or where it meets what is held? Reads only the new bytes."""
        if self._size <= _SEAM:
            return True
        seam = self._seam + data
        return (b"\n" in seam or b"\r" in seam) and _FRAME_END.search(seam) is not None

    def _hold(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        self._seam = (self._seam + data[-_SEAM:])[-_SEAM:]
        if self._size > self._max:
            raise self._too_long()

    def _too_long(self) -> UpstreamProtocolError:
        return UpstreamProtocolError(f"an event of the stream exceeds {self._max} bytes")


def _frame_end(data: bytes, start: int, *, only_lf: bool) -> int:
    """Return the offset just past the frame at ``start``, or 0 when it is not yet whole."""
    if only_lf:
        if start < len(data) and data[start] == _LF:
            return start + 1
        end = data.find(b"\n\n", start)
        return end + 2 if end >= 0 else 0
    match = _BLANK_LINE.match(data, start) or _FRAME_END.search(data, start)
    return match.end() if match else 0


def _parse(raw: bytes) -> Frame:
    if raw.startswith(b"data: ") and raw.find(b"\n") == len(raw) - 2 and b"\r" not in raw:
        return Frame(raw, raw[6:-2], None)  # the usual frame: one line of data
    data: list[bytes] = []
    event: bytes | None = None
    for line in raw.splitlines():
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
        elif name == b"event":
            event = value.removeprefix(b" ")
    return Frame(raw, b"\n".join(data) if data else None, event)
