"""Health, limits and budgets of upstreams in memory that all workers share.

Each object here is the policy's own, run on the state that any worker left: it reads that state
before a method if another worker has changed it, and writes it back after a change, under a lock.
So several workers never ask more often than a single one would. Learned speeds are sent to the
other workers.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

import msgspec

from headstart.middleware.upstreams.accounting import UpstreamState, UpstreamStates
from headstart.policies.routing.failures import CircuitBreaker, RetryBudget
from headstart.policies.routing.measures import Affinities, Measures, UpstreamModel
from headstart.policies.routing.prompt_cache import PrefixReuse, SeenPrefix
from headstart.policies.routing.rate_limits import RateLimits, SavedLimits
from headstart.policies.routing.schedule import BUDGET_WINDOW, ExtraBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_HEAD = struct.Struct("<16sQI?")
"""Name, version (the time of the last change), length of the state, whether it is worth more."""
_VERSION = struct.Struct("<Q")
_VERSION_AT = 16
SLOT_BYTES = 4096
SLOTS = 4096
_NEAR = 8
"""Number of slots in which a state may be stored. If all are taken, the least valuable one is
dropped."""
LOCK_TRIES = 2000
"""Most tries for the lock. A stopped worker may hold it, and the others then go on without it."""
_ROWS = BUDGET_WINDOW + 1
"""Number of rows: a budget adds a row before it drops one."""
_BEFORE_ROWS = 6
"""First row, number of rows, what was spent of the saved calls, and the three totals."""
_RING_BYTES = 16 + 8 * (_BEFORE_ROWS + 3 * _ROWS)
RINGS = 64
TABLE_BYTES = SLOTS * SLOT_BYTES
MEMORY_BYTES = TABLE_BYTES + RINGS * _RING_BYTES


class SharedLock:
    """A lock of all processes, at one byte of an open file. It may be taken again inside.

    The system gives it up when its process dies. While a stopped process has it, the others go on
    without it (``taken``).
    """

    def __init__(self, file: int, at: int) -> None:
        self._file = file
        self._at = at
        self._depth = 0
        self.taken = False

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self.taken = self._take()

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self.taken:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._at)

    def _take(self) -> bool:
        for _ in range(LOCK_TRIES):
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._at)
            except OSError:
                os.sched_yield()  # the process with the lock may wait for this core
                continue
            return True
        return False


class SharedTable(SharedLock):
    """States by name in the bytes of an open file from ``offset`` on, with their lock."""

    def __init__(self, file: int, offset: int = 0) -> None:
        super().__init__(file, offset)
        self.memory = mmap.mmap(file, offset + MEMORY_BYTES)
        self.offset = offset

    def place(self, name: bytes) -> int:
        """Return the place of a state, which is made if it is new. Call it with the lock."""
        first = int.from_bytes(name[:8], "little")
        near = [self.offset + (first + i) % SLOTS * SLOT_BYTES for i in range(_NEAR)]
        heads = [_HEAD.unpack_from(self.memory, at) for at in near]
        for at, head in zip(near, heads, strict=True):
            if head[0] == name:
                return at
        values = [(head[3], head[1]) for head in heads]
        at = near[values.index(min(values))]
        _HEAD.pack_into(self.memory, at, name, 0, 0, False)  # noqa: FBT003 - a field
        return at

    def ring(self, name: bytes) -> memoryview[float] | None:
        """Return the numbers of a budget, zero if it is new; None if there are too many budgets."""
        start = self.offset + TABLE_BYTES
        with self:
            for at in range(start, start + RINGS * _RING_BYTES, _RING_BYTES):
                owner = self.memory[at : at + 16]
                if owner in (name, bytes(16)):
                    self.memory[at : at + 16] = name
                    return memoryview(self.memory)[at + 16 : at + _RING_BYTES].cast("d")
        return None


def _digest(*name: str) -> bytes:
    return blake2b("\0".join(name).encode(), digest_size=16).digest()


class _Cell:
    """The shared state of one object: its place, and the version that the object has."""

    def __init__(self, table: SharedTable, name: bytes) -> None:
        self.table = table
        self._name = name
        self._at = -1
        self._version = 0

    def refresh(self, shared: _OnSharedState) -> None:
        """Load the state, if another worker has changed it."""
        if self._is_here():
            (version,) = _VERSION.unpack_from(self.table.memory, self._at + _VERSION_AT)
            if version == self._version:
                return
        with self.table:
            self.load(shared)

    def load(self, shared: _OnSharedState) -> None:
        """Load the state, if another worker has changed it. Call it with the lock."""
        if not self._is_here():
            self._at = self.table.place(self._name)
        memory = self.table.memory
        _, version, length, _ = _HEAD.unpack_from(memory, self._at)
        if version not in (0, self._version):
            body = self._at + _HEAD.size
            shared.load(memory[body : body + length])
        self._version = version

    def store(self, shared: _OnSharedState) -> None:
        """Write the state back. Call it with the lock, after ``load``."""
        state = shared.save()
        if len(state) > SLOT_BYTES - _HEAD.size:
            return  # too many limits, so this worker counts them alone
        memory, body = self.table.memory, self._at + _HEAD.size
        memory[body : body + len(state)] = state
        self._version = time.monotonic_ns()
        _HEAD.pack_into(
            memory, self._at, self._name, self._version, len(state), shared.is_worth_more()
        )

    def _is_here(self) -> bool:
        return self._at >= 0 and self.table.memory[self._at : self._at + 16] == self._name


class _OnSharedState:
    """Runs a policy's methods on shared state: the mixin of the classes below."""

    cell: _Cell
    _fields: tuple[str, ...]
    _format: Any

    def save(self) -> bytes:
        """Return the state."""
        return msgspec.msgpack.encode([getattr(self, name) for name in self._fields])

    def load(self, state: bytes) -> None:
        """Take over a state."""
        values = msgspec.msgpack.decode(state, type=self._format)
        for name, value in zip(self._fields, values, strict=True):
            setattr(self, name, value)

    def is_worth_more(self) -> bool:
        """Return whether it is worth more than states of invented names."""
        return True


def _reads(method: Any) -> Any:
    """Return the method, which reads shared state."""

    def read(self: _OnSharedState, *args: Any, **named: Any) -> Any:
        self.cell.refresh(self)
        return method(self, *args, **named)

    return read


def _changes(method: Any) -> Any:
    """Return the method, which changes shared state."""

    def change(self: _OnSharedState, *args: Any, **named: Any) -> Any:
        cell = self.cell
        with cell.table:
            cell.load(self)
            result = method(self, *args, **named)
            cell.store(self)
        return result

    return change


class SharedBreaker(_OnSharedState, CircuitBreaker):
    """A circuit breaker of all workers."""

    _fields = tuple(vars(CircuitBreaker()))
    _format = tuple[
        bool, int, int, dict[int, bool], int, float, float, float, float, bool, float, int, float,
        float, float, float, float, int, float,
    ]  # fmt: skip
    """The types of the fields, in their order."""

    def __init__(self, table: SharedTable, name: bytes) -> None:
        super().__init__()
        self.cell = _Cell(table, name)

    def is_worth_more(self) -> bool:
        return self.proven

    ready_in_s = _reads(CircuitBreaker.ready_in_s)
    open_for_s = _reads(CircuitBreaker.open_for_s)
    avoided_for_s = _reads(CircuitBreaker.avoided_for_s)
    limited = _reads(CircuitBreaker.limited)
    degraded = _reads(CircuitBreaker.degraded)
    weight = _reads(CircuitBreaker.weight)
    insist = _reads(CircuitBreaker.insist)
    admit = _changes(CircuitBreaker.admit)
    succeeded = _changes(CircuitBreaker.succeeded)
    failed = _changes(CircuitBreaker.failed)
    neutral = _changes(CircuitBreaker.neutral)
    superseded = _changes(CircuitBreaker.superseded)
    close_for = _changes(CircuitBreaker.close_for)


class SharedLimits(_OnSharedState, RateLimits):
    """Rate limits of all workers."""

    def __init__(self, table: SharedTable, name: bytes) -> None:
        super().__init__()
        self.cell = _Cell(table, name)

    def save(self) -> bytes:
        return msgspec.msgpack.encode(self.saved())

    def load(self, state: bytes) -> None:
        self.restore(msgspec.msgpack.decode(state, type=SavedLimits))

    @property
    def known(self) -> bool:
        """The provider's headers have named a limit, to any worker."""
        self.cell.refresh(self)
        return self._known

    @known.setter
    def known(self, value: bool) -> None:
        self._known = value

    ready_in_s = _reads(RateLimits.ready_in_s)
    allowance = _reads(RateLimits.allowance)
    learn = _changes(RateLimits.learn)
    take = _changes(RateLimits.take)
    give_back = _changes(RateLimits.give_back)


class SharedRetries(_OnSharedState, RetryBudget):
    """A budget of retries of all workers."""

    _fields = ("_level", "_at")
    _format = tuple[float, float | None]

    def __init__(self, table: SharedTable, name: bytes) -> None:
        super().__init__()
        self.cell = _Cell(table, name)

    earn = _changes(RetryBudget.earn)
    spend = _changes(RetryBudget.spend)


class _Window:
    """The window of a budget in shared memory, as far as the budget uses a deque."""

    def __init__(self, numbers: memoryview[float]) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return int(self._numbers[1])

    def __getitem__(self, number: int) -> memoryview[float]:
        place = int(self._numbers[0]) + (len(self) + number if number < 0 else number)
        at = _BEFORE_ROWS + 3 * (place % _ROWS)
        return self._numbers[at : at + 3]

    def append(self, row: Sequence[float]) -> None:
        place = self[len(self)]
        for i, number in enumerate(row):
            place[i] = number
        self._numbers[1] += 1

    def popleft(self) -> list[float]:
        row = list(self[0])
        self._numbers[0] = (int(self._numbers[0]) + 1) % _ROWS
        self._numbers[1] -= 1
        return row


class SharedExtra(ExtraBudget):
    """A budget of extra calls of all workers."""

    def __init__(
        self, calls: float, usd: float, table: SharedTable, numbers: memoryview[float]
    ) -> None:
        self._numbers: memoryview[float] | None = None
        super().__init__(calls, usd)
        self._numbers, self._table = numbers, table
        # As much of a deque as a budget uses.
        self._window = _Window(numbers)  # type: ignore[assignment]

    @property
    def _saved(self) -> float:
        # It is stored as the spent part, so that empty memory is a new budget.
        return self._start - (0.0 if self._numbers is None else float(self._numbers[2]))

    @_saved.setter
    def _saved(self, value: float) -> None:
        if self._numbers is not None:
            self._numbers[2] = self._start - value

    @property
    def _totals(self) -> list[float]:
        return (
            [0.0, 0.0, 0.0]
            if self._numbers is None
            else cast("list[float]", self._numbers[3:_BEFORE_ROWS])
        )

    @_totals.setter
    def _totals(self, values: Sequence[float]) -> None:
        if self._numbers is not None:
            for i, value in enumerate(values):
                self._numbers[3 + i] = value

    def earn(self, usd: float) -> None:
        """Count a request of any worker."""
        with self._table:
            super().earn(usd)

    def spend(self, usd: float) -> bool:
        """Take one extra call, if the budget of all workers allows it."""
        with self._table:
            return super().spend(usd)


class AnswerFacts(TypedDict):
    """The arguments of ``Measures.answered``."""

    route_or_endpoint: str
    estimated: int
    reported: int
    completion: int
    decoding_s: float
    gaps: Sequence[float]
    whole_s: float


class ToldMeasures(Measures):
    """Figures that all workers learn. ``tell`` passes each lesson on to the others."""

    def __init__(self, tell: Callable[[str, tuple[Any, ...]], None]) -> None:
        super().__init__()
        self._tell = tell

    def first(self, key: UpstreamModel, prompt_tokens: int, ttft_s: float, now: float) -> None:
        """Learn a time to the first token."""
        super().first(key, prompt_tokens, ttft_s, now)
        self._tell("first", (key, prompt_tokens, ttft_s, now))

    def censored(self, key: UpstreamModel, prompt_tokens: int, waited_s: float, now: float) -> None:
        """Learn that the first token would have come later."""
        super().censored(key, prompt_tokens, waited_s, now)
        self._tell("censored", (key, prompt_tokens, waited_s, now))

    def gaps(self, key: UpstreamModel, seconds: Sequence[float]) -> None:
        """Learn gaps."""
        super().gaps(key, seconds)
        self._tell("gaps", (key, tuple(seconds)))

    def ended(self, key: UpstreamModel, now: float, gaps: Sequence[float] = ()) -> None:
        """Count the end of a call, and learn its last gaps."""
        super().ended(key, now, gaps)
        if gaps:
            self._tell("gaps", (key, tuple(gaps)))

    def answered(self, key: UpstreamModel, now: float, **facts: Unpack[AnswerFacts]) -> None:
        """Learn from a whole answer."""
        super().answered(key, now, **facts)
        facts["gaps"] = tuple(facts["gaps"])
        self._tell("answered", (key, now, facts))


class ToldAffinities(Affinities):
    """The upstreams that served conversations, from any worker."""

    def __init__(self, tell: Callable[[str, tuple[Any, ...]], None]) -> None:
        super().__init__()
        self._tell = tell

    def served(self, affinity: str, name: str, now: float) -> None:
        """Remember which upstream served a conversation."""
        super().served(affinity, name, now)
        if affinity:
            self._tell("served", (affinity, name, now))


class ToldReuse(PrefixReuse):
    """The prefixes that any worker sent."""

    def __init__(self, tell: Callable[[str, tuple[Any, ...]], None]) -> None:
        super().__init__()
        self._tell = tell

    def used(self, use: SeenPrefix) -> None:
        """Learn that a request used a prefix."""
        super().used(use)
        self._tell("prefix", tuple(use))


_LESSONS: dict[str, Callable[..., None]] = {
    "first": Measures.first,
    "censored": Measures.censored,
    "gaps": Measures.gaps,
}
MOST_LESSONS = 1000
"""Most lessons that wait to be sent. Further ones are dropped."""


class SharedUpstreamStates(UpstreamStates):
    """The states of upstreams of all workers, in the memory ``file`` from ``offset`` on."""

    def __init__(self, file: int, offset: int) -> None:
        super().__init__(ToldMeasures(self._tell))
        self.affinities = ToldAffinities(self._tell)
        self.reuse = ToldReuse(self._tell)
        self._table = SharedTable(file, offset)
        self._lessons: list[tuple[str, tuple[Any, ...]]] = []

    def take_lessons(self) -> bytes:
        """Return what this worker has learned since the last call; b"": nothing."""
        lessons, self._lessons = self._lessons, []
        return msgspec.msgpack.encode(lessons) if lessons else b""

    def learn(self, lessons: bytes) -> None:
        """Learn what another worker has learned."""
        for name, given in msgspec.msgpack.decode(lessons, type=list[tuple[str, list[Any]]]):
            if name == "served":
                Affinities.served(self.affinities, *given)
                continue
            if name == "prefix":
                PrefixReuse.used(self.reuse, SeenPrefix(*given))
                continue
            key = UpstreamModel(*given[0])
            if name == "answered":
                self._learn_answer(key, *given[1:])
            else:
                _LESSONS[name](self.measures, key, *given[1:])

    def _learn_answer(self, key: UpstreamModel, now: float, facts: AnswerFacts) -> None:
        """Learn from an answer that another worker got. Its call does not count here."""
        completion, measures = facts["completion"], self.measures
        Measures.gaps(measures, key, facts["gaps"])
        Measures.prompt(measures, key, facts["estimated"], facts["reported"], now)
        Measures.length(measures, facts["route_or_endpoint"], completion, now)
        if facts["decoding_s"]:
            Measures.speed(measures, key, completion, facts["decoding_s"], now)
        if facts["whole_s"]:
            Measures.whole(measures, key, facts["estimated"], completion, facts["whole_s"], now)

    def make(self, upstream: str, model: str, key: str) -> UpstreamState:
        """Return the state that all workers share."""
        breaker = SharedBreaker(self._table, _digest("breaker", upstream, model, key))
        limits = SharedLimits(self._table, _digest("limits", upstream, model, key))
        return UpstreamState(breaker, limits, self._table)

    def extra_budget(self, route: str, composition: str, calls: float, usd: float) -> ExtraBudget:
        """Return a budget that all workers share."""
        numbers = self._table.ring(_digest("extra", route, composition))
        if numbers is None:
            return super().extra_budget(route, composition, calls, usd)
        return SharedExtra(calls, usd, self._table, numbers)

    def retry_budget(self, route: str, composition: str) -> RetryBudget:
        """Return a budget that all workers share."""
        return SharedRetries(self._table, _digest("retry", route, composition))

    def _tell(self, name: str, given: tuple[Any, ...]) -> None:
        if len(self._lessons) < MOST_LESSONS:
            self._lessons.append((name, given))
