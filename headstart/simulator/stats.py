"""What the provider saw: the other side of a client's story, for tests and the demo."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

import msgspec

from headstart.simulator.player import Outcome
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Callable

_REMEMBERED = 1000
"""Cancelled calls whose details are kept."""


class Cancelled(Frozen):
    """A call whose client left before the reply was whole."""

    request_id: str
    at: float
    """Unix seconds at which the disconnect was seen."""
    ago_s: float
    """Seconds from the disconnect to this snapshot."""
    after_s: float
    """Seconds from the request to the disconnect."""
    deltas: int
    """Generated tokens sent by then."""


class Snapshot(Frozen, omit_defaults=False):
    """Counts since the start or the last reset. ``calls`` = the next four together."""

    calls: int
    in_flight: int
    completed: int
    cancelled: int
    broken: int
    errors: int
    """Replies with a status of 400 or more; part of ``completed``."""
    bytes_in: int
    bytes_out: int
    deltas: int
    endpoints: dict[str, int]
    cancellations: tuple[Cancelled, ...]


class Seen(Frozen):
    """A call as it came in."""

    request_id: str
    at: float
    since_reset: int


class Stats:
    """Counts calls. Every method is called on the event loop, with Unix time from ``clock``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._resets = 0
        self._clear()

    def _clear(self) -> None:
        self._in_flight = self._errors = 0
        self._bytes_in = self._bytes_out = self._deltas = 0
        self._endpoints: Counter[str] = Counter()
        self._outcomes: Counter[Outcome] = Counter()
        self._cancellations: deque[Cancelled] = deque(maxlen=_REMEMBERED)

    def reset(self) -> None:
        """Start from zero; calls still in flight are no longer counted when they end."""
        self._resets += 1
        self._clear()

    def begin(self, request_id: str, endpoint: str, bytes_in: int) -> Seen:
        """Count a call that was read."""
        self._in_flight += 1
        self._bytes_in += bytes_in
        self._endpoints[endpoint] += 1
        return Seen(request_id=request_id, at=self._clock(), since_reset=self._resets)

    def finish(self, seen: Seen, outcome: Outcome, *, status: int, sent: int, deltas: int) -> None:
        """Count how a call ended."""
        if seen.since_reset != self._resets:
            return
        self._in_flight -= 1
        self._outcomes[outcome] += 1
        self._bytes_out += sent
        self._deltas += deltas
        if outcome is Outcome.COMPLETED:
            self._errors += status >= 400
        if outcome is Outcome.CANCELLED:
            now = self._clock()
            self._cancellations.append(
                Cancelled(
                    request_id=seen.request_id,
                    at=now,
                    ago_s=0.0,
                    after_s=now - seen.at,
                    deltas=deltas,
                )
            )

    def snapshot(self) -> Snapshot:
        """Return the counts as they are now."""
        now = self._clock()
        return Snapshot(
            calls=self._endpoints.total(),
            in_flight=self._in_flight,
            completed=self._outcomes[Outcome.COMPLETED],
            cancelled=self._outcomes[Outcome.CANCELLED],
            broken=self._outcomes[Outcome.BROKEN],
            errors=self._errors,
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
            deltas=self._deltas,
            endpoints=dict(self._endpoints),
            cancellations=tuple(
                msgspec.structs.replace(call, ago_s=now - call.at) for call in self._cancellations
            ),
        )
