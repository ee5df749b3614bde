"""Statistics and records of the calls that a simulated provider received."""

from __future__ import annotations

from collections import Counter, deque
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headstart.lab.simulator.player import PlayOutcome
from headstart.lab.simulator.wire import CREDENTIALS
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.lab.simulator.player import Performance
    from headstart.lab.simulator.wire import SimulatedRequest

_CANCELLATIONS = 1000
"""The number of cancelled calls with details in a snapshot."""
_RECORDS = 50_000
"""The number of calls that are remembered one by one."""


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


class CallFacts(Frozen):
    """The facts of a call that are known when its answer begins."""

    endpoint: str
    status: int
    model: str = ""
    stream: bool = False
    fault: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    answer_tokens: int = 0
    """Tokens of the whole answer, sent or not; 0 for an error."""


class Record(CallFacts, frozen=True, kw_only=True, omit_defaults=False):
    """One call from its arrival to its end. Seconds are real ones, since ``at``."""

    request_id: str
    number: int
    at: float
    """Unix seconds at which the whole request had arrived."""
    head_s: float | None
    """The time when the status line was sent; None: never."""
    first_token_s: float | None
    ended_s: float
    cancelled_at: float | None
    """Unix seconds at which the client's socket was seen closed, before the reply was whole."""
    outcome: PlayOutcome
    sent_tokens: int
    bytes_out: int
    credential: str
    """Eight hexadecimal digits that stand for the key; empty without one."""
    headers: dict[str, str]
    """The request's headers without the credentials."""

    def billed(self, *, cancels_billing: bool) -> tuple[int, int]:
        """Return the input and output tokens on the bill.

        An error costs nothing. A cancelled stream costs its prompt; if a cancellation stops
        billing, it also costs the sent tokens, else the whole answer. A cancelled call without a
        stream costs the whole answer.
        """
        if self.status >= 400 or not self.answer_tokens:
            return 0, 0
        whole = self.outcome is PlayOutcome.COMPLETED or not (self.stream and cancels_billing)
        return self.prompt_tokens, self.answer_tokens if whole else self.sent_tokens


class Snapshot(Frozen, omit_defaults=False):
    """Counts since the start or the last reset. ``calls`` is the sum of the next four."""

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
    """A call that has arrived and has not ended."""

    incoming: SimulatedRequest
    facts: CallFacts
    at: float
    since_reset: int


class SimulatorStats:
    """Counts calls. Every method is called on the event loop, with Unix time from ``clock``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._resets = 0
        self._clear()

    def _clear(self) -> None:
        self._in_flight = self._errors = 0
        self._bytes_in = self._bytes_out = self._deltas = 0
        self._endpoints: Counter[str] = Counter()
        self._outcomes: Counter[PlayOutcome] = Counter()
        self._cancellations: deque[Record] = deque(maxlen=_CANCELLATIONS)
        self._ended: deque[Record] = deque(maxlen=_RECORDS)

    def reset(self) -> None:
        """Start from zero. Calls in flight are not counted when they end."""
        self._resets += 1
        self._clear()

    def begin(self, incoming: SimulatedRequest, facts: CallFacts) -> Seen:
        """Count a call that has arrived."""
        self._in_flight += 1
        self._bytes_in += len(incoming.body)
        self._endpoints[facts.endpoint] += 1
        return Seen(incoming, facts, self._clock(), self._resets)

    def finish(self, seen: Seen, outcome: PlayOutcome, performance: Performance) -> None:
        """Count a call that has ended, and remember it."""
        if seen.since_reset != self._resets:
            return
        now = self._clock()
        self._in_flight -= 1
        self._outcomes[outcome] += 1
        self._bytes_out += performance.sent
        self._deltas += performance.deltas
        if outcome is PlayOutcome.COMPLETED:
            self._errors += seen.facts.status >= 400
        record = _record(seen, outcome, performance, now)
        self._ended.append(record)
        if outcome is PlayOutcome.CANCELLED:
            self._cancellations.append(record)

    def records(self, since: int = 0) -> tuple[Record, ...]:
        """Return the ended calls whose number is ``since`` or more, in the order of their ends."""
        return tuple(record for record in self._ended if record.number >= since)

    def snapshot(self) -> Snapshot:
        """Return the counts as they are now."""
        now = self._clock()
        return Snapshot(
            calls=self._endpoints.total(),
            in_flight=self._in_flight,
            completed=self._outcomes[PlayOutcome.COMPLETED],
            cancelled=self._outcomes[PlayOutcome.CANCELLED],
            broken=self._outcomes[PlayOutcome.BROKEN],
            errors=self._errors,
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
            deltas=self._deltas,
            endpoints=dict(self._endpoints),
            cancellations=tuple(
                Cancelled(
                    request_id=call.request_id,
                    at=call.at + call.ended_s,
                    ago_s=now - call.at - call.ended_s,
                    after_s=call.ended_s,
                    deltas=call.sent_tokens,
                )
                for call in self._cancellations
            ),
        )


def _record(seen: Seen, outcome: PlayOutcome, performance: Performance, now: float) -> Record:
    incoming, key = seen.incoming, seen.incoming.credential
    return Record(
        **msgspec.structs.asdict(seen.facts),
        request_id=incoming.id,
        number=incoming.number,
        at=seen.at,
        head_s=performance.head_s,
        first_token_s=performance.first_token_s,
        ended_s=now - seen.at,
        cancelled_at=now if outcome is PlayOutcome.CANCELLED else None,
        outcome=outcome,
        sent_tokens=performance.deltas,
        bytes_out=performance.sent,
        credential=blake2b(key, digest_size=4).hexdigest() if key else "",
        headers={
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in incoming.headers
            if name not in CREDENTIALS
        },
    )
