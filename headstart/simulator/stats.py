"""What the provider saw: the other side of a client's story, for tests, benches and the demo."""

from __future__ import annotations

from collections import Counter, deque
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from headstart.simulator.incoming import CREDENTIALS
from headstart.simulator.player import Outcome
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.simulator.incoming import Incoming
    from headstart.simulator.player import Performance

_CANCELLATIONS = 1000
"""Cancelled calls whose details are in a snapshot."""
_RECORDS = 50_000
"""Calls that are remembered one by one."""


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


class Told(Frozen):
    """What a call asked for and is to be answered, as far as that is known when it begins."""

    endpoint: str
    status: int
    model: str = ""
    stream: bool = False
    fault: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    answer_tokens: int = 0
    """Of the whole answer, sent or not; 0 for an error."""


class Record(Told, frozen=True, kw_only=True, omit_defaults=False):
    """One call from its arrival to its end. Seconds are real ones, since ``at``."""

    request_id: str
    number: int
    at: float
    """Unix seconds at which the request was there, whole."""
    head_s: float | None
    """When the status line was sent; None: never."""
    first_token_s: float | None
    ended_s: float
    cancelled_at: float | None
    """Unix seconds at which the client's socket was seen closed, before the reply was whole."""
    outcome: Outcome
    sent_tokens: int
    bytes_out: int
    credential: str
    """Eight hexadecimal digits that stand for the key; empty without one."""
    headers: dict[str, str]
    """As they came, but for the credentials."""

    def billed(self, *, cancels_billing: bool) -> tuple[int, int]:
        """Return the input and output tokens on the bill.

        Errors cost nothing. A cancelled stream costs its prompt and, where an abort stops billing,
        what was sent; otherwise the whole answer, as does a cancelled call that is not streamed.
        """
        if self.status >= 400 or not self.answer_tokens:
            return 0, 0
        whole = self.outcome is Outcome.COMPLETED or not (self.stream and cancels_billing)
        return self.prompt_tokens, self.answer_tokens if whole else self.sent_tokens


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


class Seen(NamedTuple):
    """A call as it came in."""

    incoming: Incoming
    told: Told
    at: float
    since_reset: int


class _Ended(NamedTuple):
    """What a record is made of, once somebody asks for it. The request is without its body."""

    seen: Seen
    outcome: Outcome
    at: float
    head_s: float | None
    first_token_s: float | None
    deltas: int
    sent: int


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
        self._cancellations: deque[Cancelled] = deque(maxlen=_CANCELLATIONS)
        self._ended: deque[_Ended] = deque(maxlen=_RECORDS)

    def reset(self) -> None:
        """Start from zero; calls still in flight are no longer counted when they end."""
        self._resets += 1
        self._clear()

    def begin(self, incoming: Incoming, told: Told) -> Seen:
        """Count a call that was read."""
        self._in_flight += 1
        self._bytes_in += len(incoming.body)
        self._endpoints[told.endpoint] += 1
        return Seen(incoming, told, self._clock(), self._resets)

    def finish(self, seen: Seen, outcome: Outcome, performance: Performance) -> None:
        """Count how a call ended."""
        if seen.since_reset != self._resets:
            return
        now = self._clock()
        self._in_flight -= 1
        self._outcomes[outcome] += 1
        self._bytes_out += performance.sent
        self._deltas += performance.deltas
        if outcome is Outcome.COMPLETED:
            self._errors += seen.told.status >= 400
        if outcome is Outcome.CANCELLED:
            cancelled = Cancelled(
                request_id=seen.incoming.id,
                at=now,
                ago_s=0.0,
                after_s=now - seen.at,
                deltas=performance.deltas,
            )
            self._cancellations.append(cancelled)
        incoming = replace(seen.incoming, body=b"")
        self._ended.append(
            _Ended(
                seen._replace(incoming=incoming),
                outcome,
                now,
                performance.head_s,
                performance.first_token_s,
                performance.deltas,
                performance.sent,
            )
        )

    def records(self, since: int = 0) -> tuple[Record, ...]:
        """Return the calls that have ended, in that order, whose number is ``since`` or more."""
        return tuple(map(_record, (e for e in self._ended if e.seen.incoming.number >= since)))

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
            cancellations=tuple(replace(call, ago_s=now - call.at) for call in self._cancellations),
        )


def _record(ended: _Ended) -> Record:
    seen, incoming = ended.seen, ended.seen.incoming
    return Record(
        **msgspec.structs.asdict(seen.told),
        request_id=incoming.id,
        number=incoming.number,
        at=seen.at,
        head_s=ended.head_s,
        first_token_s=ended.first_token_s,
        ended_s=ended.at - seen.at,
        cancelled_at=ended.at if ended.outcome is Outcome.CANCELLED else None,
        outcome=ended.outcome,
        sent_tokens=ended.deltas,
        bytes_out=ended.sent,
        credential=_mark(incoming.credential),
        headers={
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in incoming.headers
            if name not in CREDENTIALS
        },
    )


def _mark(credential: bytes) -> str:
    return blake2b(credential, digest_size=4).hexdigest() if credential else ""
