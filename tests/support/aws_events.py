"""Writes AWS's event streams, as Bedrock sends them."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

TEXT = 7
"""The type of a header whose value is a text."""
FRAME_BYTES = 16
"""Bytes of a message without headers and payload: two lengths and two checksums."""


def encode_message(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Return a message with headers whose values are texts."""
    written = b"".join(
        b"%c%b%c%b%b" % (len(name), name.encode(), TEXT, struct.pack(">H", len(value)), value)
        for name, value in ((name, value.encode()) for name, value in headers.items())
    )
    prelude = struct.pack(">II", FRAME_BYTES + len(written) + len(payload), len(written))
    head = prelude + _checksum(prelude) + written + payload
    return head + _checksum(head)


def _checksum(data: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(data))
