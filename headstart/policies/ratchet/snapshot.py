"""Snapshots of a domain: a versioned envelope that another version's reader refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from headstart.errors import HeadstartError
from headstart.policies.ratchet.alarm import Alarm  # noqa: TC001 - msgspec reads it
from headstart.policies.ratchet.cold_start import Tripwire
from headstart.policies.ratchet.features import NAMES
from headstart.policies.ratchet.memory import Memory, Row, no_memory, remembered
from headstart.policies.ratchet.model import Model
from headstart.policies.ratchet.settings import ENOUGH_LABELS
from headstart.policies.ratchet.standings import Standings
from headstart.policies.ratchet.state import Counts, State
from headstart.policies.ratchet.threshold import Curve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

FORMAT = 1


class SnapshotError(HeadstartError, ValueError):
    """A snapshot cannot be used here; the message says why and what to do."""


class _Array(msgspec.Struct, array_like=True):
    type: str
    shape: tuple[int, ...]
    data: bytes


class _Head(msgspec.Struct):
    format: int
    version: str
    features: tuple[str, ...]


class _Envelope(_Head):
    model: tuple[_Array, ...]
    memory: tuple[_Array, ...]
    pending: tuple[_Array, ...]
    curve: tuple[_Array, ...]
    alarm: Alarm
    alarmed: bool
    lessons: int
    since_update: int
    counts: Counts
    standings: dict[str, tuple[str, float, float]]
    tripwire: Tripwire | None = None
    """None in snapshots that were written before near misses were counted."""


def dump(state: State, standings: Standings, version: str) -> bytes:
    """Serialise a state and its standings: about 70 bytes a candidate and 80 an entry."""
    return msgspec.msgpack.encode(
        _Envelope(
            format=FORMAT,
            version=version,
            features=NAMES,
            model=_packed(state.model),
            memory=_packed(state.memory),
            pending=_packed(remembered(no_memory(), state.pending)),
            curve=_packed(state.curve),
            alarm=state.alarm,
            alarmed=state.alarmed,
            lessons=state.lessons,
            since_update=state.since_update,
            counts=state.counts,
            standings=standings.rows(),
            tripwire=state.tripwire,
        )
    )


def load(data: bytes, version: str, *, exact: bool = False) -> tuple[State, Standings]:
    """Read what ``dump`` wrote. Raises SnapshotError for another version's or a damaged one.

    ``exact`` also refuses a snapshot of a cold start in which near misses were not yet counted:
    its labels, applied anew, lead to another state.
    """
    try:
        head = msgspec.msgpack.decode(data, type=_Head)
        if head != _Head(format=FORMAT, version=version, features=NAMES):
            raise SnapshotError(
                f"the snapshot was learned by {head.version!r} (format {head.format}), this is "
                f"{version!r} (format {FORMAT}): what was learned does not carry over; start anew"
            )
        envelope = msgspec.msgpack.decode(data, type=_Envelope)
        state = State(
            model=Model(*_unpacked(envelope.model)),
            memory=Memory(*_unpacked(envelope.memory)),
            pending=_rows(Memory(*_unpacked(envelope.pending))),
            curve=Curve(*_unpacked(envelope.curve)),
            alarm=envelope.alarm,
            alarmed=envelope.alarmed,
            lessons=envelope.lessons,
            since_update=envelope.since_update,
            counts=envelope.counts,
            tripwire=envelope.tripwire or Tripwire(),
        )
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise SnapshotError(f"the snapshot is damaged or not one of ours: {error}") from error
    if exact and envelope.tripwire is None and state.lessons < ENOUGH_LABELS:
        raise SnapshotError("the snapshot is older than the count of near misses")
    return state, Standings(envelope.standings)


def _packed(value: Model | Memory | Curve) -> tuple[_Array, ...]:
    arrays = msgspec.structs.astuple(value)
    return tuple(_Array(array.dtype.str, array.shape, array.tobytes()) for array in arrays)


def _unpacked(arrays: tuple[_Array, ...]) -> Iterator[NDArray[Any]]:
    for array in arrays:
        yield np.frombuffer(array.data, array.type).reshape(array.shape)


def _rows(memory: Memory) -> tuple[Row, ...]:
    return tuple(
        Row(features.astype(np.float64), *values)
        for features, *values in zip(
            memory.features,
            memory.same.tolist(),
            memory.offset.tolist(),
            memory.mass.tolist(),
            memory.similarity.tolist(),
            memory.principal.tolist(),
            strict=True,
        )
    )
