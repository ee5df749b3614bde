"""Word vectors in steps of four bits: 192 bytes a word at 384 dimensions, in storage.

Measured against int8 (``docs/how-a-hit-is-decided.md``): half the bytes and the same verdict on
99 % of exchanges, where projections to 128 dimensions (PCA, random, Hadamard) keep 86 to 92 %.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LARGEST = 7
_CLIP = 2.6
"""Root mean squares of a row that the largest step stands for: rare outliers are cut."""
_ZERO = 8
"""Added to a step to make it a nibble. No step makes the nibble 0: it fills the last byte."""


def quantize_rows(rows: NDArray[np.float32]) -> bytes:
    """Return ``rows`` f32[n, d] as int8 steps, each row to its own scale, which is dropped."""
    mean_square = np.einsum("ij,ij->i", rows, rows) / np.float32(rows.shape[1])
    steps = rows * (_LARGEST / (_CLIP * np.sqrt(mean_square)))[:, None]
    np.rint(steps, out=steps)
    np.minimum(np.maximum(steps, -_LARGEST, out=steps), _LARGEST, out=steps)
    quantized: bytes = steps.astype(np.int8).tobytes()
    return quantized


def unit_rows(quantized: bytes, count: int) -> NDArray[np.float32]:
    """Return the ``count`` rows of ``quantized`` as unit vectors."""
    rows = np.frombuffer(quantized, np.int8).reshape(count, -1).astype(np.float32)
    rows /= np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
    return rows


def to_nibbles(quantized: bytes) -> bytes:
    """Pack two steps a byte, for storage."""
    nibbles = np.frombuffer(quantized + b"\xf8" * (len(quantized) % 2), np.uint8) + np.uint8(_ZERO)
    packed: bytes = (nibbles[0::2] << 4 | nibbles[1::2]).tobytes()
    return packed


def from_nibbles(packed: bytes) -> bytes:
    """Return the steps of ``to_nibbles``."""
    pairs = np.frombuffer(packed, np.uint8)
    steps = np.stack((pairs >> 4, pairs & 15), axis=1).astype(np.int8) - np.int8(_ZERO)
    quantized: bytes = steps.tobytes()
    return quantized.removesuffix(b"\xf8")
