"""The framing of AWS's event streams (``application/vnd.amazon.eventstream``).

A message is a prelude (its length, the length of its headers, their checksum), the headers, the
payload, and a checksum of all that. Numbers are big endian, checksums CRC-32.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

from headstart.dialects.dialect import Frame
from headstart.errors import UpstreamProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PRELUDE = struct.Struct(">III")
_CRC = struct.Struct(">I")
_LEAST = _PRELUDE.size + _CRC.size
_TEXT = 7
"""The type of a header whose value is a text."""
_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""The sizes of the values of other types; texts (7) and bytes (6) have their length before them."""


class MessageCutter:
    """Cuts a byte stream into messages. Raises UpstreamProtocolError for what is none.

    A frame's ``event`` is the type of the event, or of the exception; its data is the payload.
    """

    def __init__(self, max_bytes: int = 16 * 2**20) -> None:
        self._max = max_bytes
        self.held: list[bytes] = []
        self._size = 0
        self._wanted = _PRELUDE.size

    def receive(self, data: bytes) -> bytes:
        """Return what messages are to be cut from; nothing while no message can end."""
        if not self.held:
            return data
        self._hold(data)
        if self._size < self._wanted:
            return b""
        whole = b"".join(self.held)
        self.held.clear()
        self._size = 0
        return whole

    def cut(self, block: bytes, start: int) -> Frame | None:
        """Return the message at ``start``. None: it is not whole yet, and is held."""
        left = len(block) - start
        self._wanted = _PRELUDE.size
        if left >= _PRELUDE.size:
            self._wanted = self._length(block, start)
        if left < self._wanted or left < _LEAST:
            if left:
                self._hold(block[start:])
            return None
        return _parse(block[start : start + self._wanted])

    def rest(self) -> bytes:
        """Return what came after the last whole message."""
        return b"".join(self.held)

    def _length(self, block: bytes, start: int) -> int:
        """Return the length that the prelude names, once its checksum holds."""
        length, headers, checksum = _PRELUDE.unpack_from(block, start)
        if zlib.crc32(block[start : start + _PRELUDE.size - _CRC.size]) != checksum:
            raise UpstreamProtocolError("the head of a message has a wrong checksum")
        if not _LEAST + headers <= length <= self._max:
            raise UpstreamProtocolError(f"a message claims to have {length} bytes")
        return int(length)

    def _hold(self, data: bytes) -> None:
        self.held.append(data)
        self._size += len(data)


def _parse(raw: bytes) -> Frame:
    (checksum,) = _CRC.unpack_from(raw, len(raw) - _CRC.size)
    if zlib.crc32(raw[: -_CRC.size]) != checksum:
        raise UpstreamProtocolError("a message has a wrong checksum")
    end = _PRELUDE.size + _PRELUDE.unpack_from(raw)[1]
    headers = _read_headers(raw[_PRELUDE.size : end])
    payload = raw[end : -_CRC.size]
    match headers.get(b":message-type"):
        case b"exception":
            event = headers.get(b":exception-type")
        case b"error":
            event = headers.get(b":error-code", b"error")
            payload = headers.get(b":error-message", payload)
        case _:
            event = headers.get(b":event-type")
    return Frame(raw, payload, event)


def _read_headers(data: bytes) -> dict[bytes, bytes]:
    """Return the headers that are texts."""
    headers: dict[bytes, bytes] = {}
    at = 0
    try:
        while at < len(data):
            past = at + 1 + data[at]
            name, kind = data[at + 1 : past], data[past]
            past += 1
            if kind in _SIZES:
                at = past + _SIZES[kind]
                continue
            size = int.from_bytes(data[past : past + 2], "big")
            at = past + 2 + size
            if kind == _TEXT:
                headers[name] = data[past + 2 : at]
    except IndexError:
        at = len(data) + 1
    if at != len(data):
        raise UpstreamProtocolError("the headers of a message cannot be read")
    return headers


def encode_message(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Return a message with headers that are texts."""
    written = b"".join(
        b"%c%b%c%b%b" % (len(name), name.encode(), _TEXT, struct.pack(">H", len(value)), value)
        for name, value in ((name, value.encode()) for name, value in headers.items())
    )
    length = _LEAST + len(written) + len(payload)
    prelude = struct.pack(">II", length, len(written))
    head = prelude + _CRC.pack(zlib.crc32(prelude)) + written + payload
    return head + _CRC.pack(zlib.crc32(head))
