"""The versioned envelope of what stores keep: one version byte, then MessagePack.

A store may hold values that a newer version wrote, or that rotted; decoding skips them, so that a
rollback or a bad row costs a miss and never a crash.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import msgspec

from headstart.decisions import Label
from headstart.errors import StoreError
from headstart.observe import Served
from headstart.types import Entry, VectorRow

T = TypeVar("T")

VERSION = b"\x01"

_encoder = msgspec.msgpack.Encoder()
_entry_decoder = msgspec.msgpack.Decoder(Entry)
_served_decoder = msgspec.msgpack.Decoder(Served)
_label_decoder = msgspec.msgpack.Decoder(Label)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a store; None: unbounded. The least recently used entries leave first."""

    ttl_s: float | None = None
    """Life of an entry that states no ``expires`` of its own, from its ``created``."""
    max_entries: int | None = None
    max_bytes: int | None = None
    """Of encoded entries and their vectors; what a store adds around them is not counted."""


class Sealed(NamedTuple):
    """A Put in the form that stores write: the columns they search by, and the envelope."""

    id: str
    exact: str
    partition: str
    scope: str
    encoder: str
    created: float
    expires: float | None
    value: bytes
    vector: bytes | None

    @property
    def size(self) -> int:
        """Bytes that count against ``max_bytes``."""
        return len(self.value) + len(self.vector or b"")

    def row(self) -> VectorRow | None:
        """Return what a warm start needs, or None without a vector."""
        if self.vector is None:
            return None
        return VectorRow(
            id=self.id, partition=self.partition, encoder=self.encoder, vector=self.vector
        )


def seal(entry: Entry, vector: bytes | None, limits: Limits) -> Sealed:
    """Encode an entry, dated by ``limits.ttl_s`` where it states no end of its own.

    Raises StoreError when a value cannot be encoded or exceeds ``max_bytes`` alone.
    """
    if entry.expires is None and limits.ttl_s is not None:
        entry = msgspec.structs.replace(entry, expires=entry.created + limits.ttl_s)
    sealed = Sealed(
        id=entry.id,
        exact=entry.key.exact,
        partition=entry.key.group,
        scope=entry.key.scope,
        encoder=entry.encoder,
        created=entry.created,
        expires=entry.expires,
        value=_encode(entry),
        vector=vector,
    )
    if limits.max_bytes is not None and sealed.size > limits.max_bytes:
        raise StoreError(f"an entry of {sealed.size} bytes exceeds cache.max_bytes")
    return sealed


def open_entry(value: bytes) -> Entry | None:
    """Decode an envelope; None when its version or its contents are not known here."""
    return _decode(_entry_decoder, value)


def encode_served(row: Served) -> bytes:
    """Encode a row of the books. Raises StoreError when it cannot be."""
    return _encode(row)


def decode_served(value: bytes) -> Served | None:
    """Decode a row of the books; None when its version or its contents are not known here."""
    return _decode(_served_decoder, value)


def encode_label(label: Label) -> bytes:
    """Encode a label. Raises StoreError when it cannot be."""
    return _encode(label)


def decode_label(value: bytes) -> Label | None:
    """Decode a label; None when its version or its contents are not known here."""
    return _decode(_label_decoder, value)


def _encode(value: Entry | Served | Label) -> bytes:
    try:
        return VERSION + _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise StoreError(f"a value cannot be stored: {type(error).__name__}") from error


def _decode(decoder: msgspec.msgpack.Decoder[T], value: bytes) -> T | None:
    if value[:1] != VERSION:
        return None
    try:
        return decoder.decode(memoryview(value)[1:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
