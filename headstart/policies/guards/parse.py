"""The parse of a prompt that all guards compare: made once, stored with the entry.

``table.parse_prompt`` makes it. Word vectors are kept in steps of four bits: 192 bytes a word at
384 dimensions, in storage. Measured against int8 (``docs/how-a-hit-is-decided.md``), these are half
the bytes and give the same verdict on 99 % of exchanged words; projections to 128 dimensions (PCA,
random, Hadamard) keep 86 to 92 %.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from headstart.types import Frozen

if TYPE_CHECKING:
    from numpy.typing import NDArray

PARSE_VERSION = 2
"""Raise it whenever a stored parse or a guard's verdict could change meaning. Stored prompts of
another version are not compared, and older labels are forgotten. A new guard does not need that,
since it only removes candidates, nor does a new field of the parse with a default."""

_LARGEST = 7
_CLIP = 2.6
"""The largest step stands for this many root mean squares of a row: rare outliers are cut."""
_ZERO = 8
"""Added to a step to make it a nibble. No step makes the nibble 0: it fills the last byte."""


class Role(NamedTuple):
    """A preposition between the content words before it and the words that it governs."""

    preposition: str
    before: frozenset[str]
    argument: tuple[str, ...]


class Parse(Frozen, frozen=True, kw_only=True, array_like=True):
    """The facts for the guards. ``pack_parse`` makes 200 bytes of each word at 384 dimensions."""

    stems: tuple[str, ...]
    """Every word and number, in order."""
    content: frozenset[str]
    """The stems that carry content. Numbers are not among them: they have guards of their own."""
    vectors: bytes
    """One int8 row for each different stem in order of appearance, in steps of -7 to 7.
    Empty when there are too many words or the encoder did not see them all."""
    quantities: tuple[tuple[str, str], ...] = ()
    dates: tuple[str, ...] = ()
    roles: tuple[Role, ...] = ()
    negators: frozenset[str] = frozenset()
    """Stems of the words that negate."""
    negated: bool = False
    """The number of negators is odd."""
    tone: frozenset[str] = frozenset()
    """Words for problems, complaints and endings: they may mean a negation."""
    quantifiers: frozenset[str] = frozenset()
    limits: frozenset[str] = frozenset()
    degrees: frozenset[tuple[str, str]] = frozenset()
    names: tuple[str, ...] = ()
    symbols: frozenset[str] = frozenset()
    commas: tuple[int, ...] = ()
    """Places of the stems that follow a comma, a semicolon, "/" or "&". Entries that were stored
    before this field existed have none: their lists without "and" or "or" are in one order only."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Parse).decode


def pack_parse(prepared: Parse) -> bytes:
    """Serialise a parse for storage."""
    return _encode(msgspec.structs.replace(prepared, vectors=to_nibbles(prepared.vectors)))


def unpack_parse(evidence: bytes) -> Parse:
    """Read what ``pack_parse`` wrote. Raises msgspec.DecodeError on anything else."""
    parse = _decode(evidence)
    return msgspec.structs.replace(parse, vectors=from_nibbles(parse.vectors))


def quantize_rows(rows: NDArray[np.float32]) -> bytes:
    """Return ``rows`` f32[n, d] as int8 steps, each row to its own scale, which is dropped."""
    mean_square = np.einsum("ij,ij->i", rows, rows) / np.float32(rows.shape[1])
    steps = rows * (_LARGEST / (_CLIP * np.sqrt(mean_square)))[:, None]
    np.rint(steps, out=steps)
    np.minimum(np.maximum(steps, -_LARGEST, out=steps), _LARGEST, out=steps)
    quantized: bytes = steps.astype(np.int8).tobytes()
    return quantized


@lru_cache(maxsize=256)
def different(stems: tuple[str, ...]) -> tuple[str, ...]:
    """Return each stem once, in order of appearance, as the rows of a parse's vectors stand."""
    return tuple(dict.fromkeys(stems))


@lru_cache(maxsize=256)
def unit_rows(quantized: bytes, count: int) -> NDArray[np.float32]:
    """Return the ``count`` rows of ``quantized`` as unit vectors. They must not be changed."""
    rows = np.frombuffer(quantized, np.int8).reshape(count, -1).astype(np.float32)
    rows /= np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
    return rows


def to_nibbles(quantized: bytes) -> bytes:
    """Pack two steps into each byte, for storage."""
    nibbles = np.frombuffer(quantized + b"\xf8" * (len(quantized) % 2), np.uint8) + np.uint8(_ZERO)
    packed: bytes = (nibbles[0::2] << 4 | nibbles[1::2]).tobytes()
    return packed


def from_nibbles(packed: bytes) -> bytes:
    """Return the steps of ``to_nibbles``."""
    pairs = np.frombuffer(packed, np.uint8)
    steps = np.stack((pairs >> 4, pairs & 15), axis=1).astype(np.int8) - np.int8(_ZERO)
    quantized: bytes = steps.tobytes()
    return quantized.removesuffix(b"\xf8")
