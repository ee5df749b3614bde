"""The memory of labelled candidates, from which the threshold is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from headstart.policies.ratchet.features import NAMES
from headstart.policies.ratchet.settings import MEMORY, PRINCIPAL_SHARE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Row(NamedTuple):
    """One labelled candidate that no guard vetoed."""

    features: NDArray[np.float64]
    same: bool
    offset: float
    mass: float
    """Candidates for which it stands: an audit stands for the hits that were not audited."""
    similarity: float
    principal: int


class Memory(msgspec.Struct, frozen=True):
    """Rows as columns, oldest first. Never mutated."""

    features: NDArray[np.float16]
    same: NDArray[np.bool_]
    offset: NDArray[np.float32]
    mass: NDArray[np.float32]
    similarity: NDArray[np.float32]
    principal: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.same)


def no_memory() -> Memory:
    """Return an empty memory."""
    few = np.empty(0, np.float32)
    return Memory(
        np.empty((0, len(NAMES)), np.float16),
        np.empty(0, np.bool_),
        few,
        few,
        few,
        np.empty(0, np.int64),
    )


def remembered(memory: Memory, rows: Sequence[Row]) -> Memory:
    """Append rows, forget the oldest beyond ``MEMORY``, and hold each principal to its share."""
    if not rows:
        return memory
    features, same, offset, mass, similarity, principal = zip(*rows, strict=True)
    joined = Memory(
        np.concatenate([memory.features, np.array(features, np.float16)]),
        np.concatenate([memory.same, np.array(same, np.bool_)]),
        np.concatenate([memory.offset, np.array(offset, np.float32)]),
        np.concatenate([memory.mass, np.array(mass, np.float32)]),
        np.concatenate([memory.similarity, np.array(similarity, np.float32)]),
        np.concatenate([memory.principal, np.array(principal, np.int64)]),
    )
    return _chosen(joined, _fair(joined.principal)[-MEMORY:])


def _fair(principals: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the places of the newest rows of each principal, up to its share.

    A share is 5 % of the memory, or an equal part where fewer than 20 principals ask.
    """
    different, inverse, counts = np.unique(principals, return_inverse=True, return_counts=True)
    most = int(MEMORY * max(PRINCIPAL_SHARE, 1 / len(different)))
    if counts.max() <= most:
        return np.arange(len(principals))
    kept = np.ones(len(principals), np.bool_)
    for which in np.flatnonzero(counts > most):
        kept[np.flatnonzero(inverse == which)[:-most]] = False
    return np.flatnonzero(kept)


def _chosen(memory: Memory, places: NDArray[np.intp]) -> Memory:
    return Memory(*(getattr(memory, name)[places] for name in memory.__struct_fields__))
