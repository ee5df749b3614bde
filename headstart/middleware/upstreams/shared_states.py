"""Health, limits and budgets of upstreams in memory that all workers share.

``SharedBreaker``, ``SharedLimits`` and the two budgets behave like their base classes in
``policies``, but all workers have one state: together they ask a provider no more often than one
worker would. For example, ``SharedBreaker.failed`` takes the lock (``SharedLock``), finds the state
in the memory (``SharedTable``), reads what other workers have changed, calls
``CircuitBreaker.failed``, and writes the state back (``_Slot``).

Learned speeds are not in this memory: the ``Synced…`` classes collect what this worker learns, for
messages to the other workers (``take_updates``).
"""

from __future__ import annotations

import sys

assert sys.platform != "win32", "Windows runs one worker"

import ctypes
import errno
import fcntl
import mmap
import os
import struct
import time
from hashlib import blake2b
from types import GenericAlias
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack, cast

import msgspec

from headstart.middleware.upstreams.accounting import UpstreamState, UpstreamStates
from headstart.policies.routing.failures import CircuitBreaker, Permit, RetryBudget
from headstart.policies.routing.measures import Affinities, Measures, UpstreamModel
from headstart.policies.routing.prompt_cache import PrefixReuse, SeenPrefix
from headstart.policies.routing.rate_limits import (
    MOST_LIMITS,
    NOTHING_TAKEN,
    RateLimits,
    SavedLimits,
    limit_windows,
)
from headstart.policies.routing.schedule import BUDGET_WINDOW, ExtraBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headstart.policies.routing.rate_limits import LimitWindow, Taken
    from headstart.types import Headers

# --- the lock -------------------------------------------------------------------------------------

LOCK_S, LOCK_AGAIN_S = 0.1, 0.001
"""The longest waits for the lock, because the worker that holds it may have been stopped. After
0.1 s a worker goes on without it, and then waits only 1 ms each time, until it gets it again."""


class RobustMutexes(NamedTuple):
    """The C library's functions for mutexes that are robust and shared by processes.

    A robust mutex can be taken over if its holder dies. The calls keep Python's interpreter lock
    (``ctypes.PyDLL``). If they released it, a worker that holds the mutex might wait for its own
    threads, and all other workers would wait for this worker.
    """

    try_lock: Callable[[ctypes.c_void_p], int]
    unlock: Callable[[ctypes.c_void_p], int]
    repair: Callable[[ctypes.c_void_p], int]
    library: ctypes.PyDLL

    @classmethod
    def of_system(cls) -> RobustMutexes | None:
        """Return the functions, or None if the system has none."""
        try:
            library = ctypes.PyDLL(None)
            return cls(
                library.pthread_mutex_trylock,
                library.pthread_mutex_unlock,
                library.pthread_mutex_consistent,
                library,
            )
        except (AttributeError, OSError, TypeError):
            return None

    def make(self, place: ctypes.c_void_p) -> bool:
        """Make a mutex; return False if the system refuses it."""
        library, kind = self.library, ctypes.create_string_buffer(_MUTEX_BYTES)
        return not (
            library.pthread_mutexattr_init(kind)
            or library.pthread_mutexattr_setpshared(kind, _SHARED)
            or library.pthread_mutexattr_setrobust(kind, _ROBUST)
            or library.pthread_mutex_init(place, kind)
        )


_MUTEX_BYTES = 120
"""The bytes for a mutex, or for its attributes. No system needs more."""
_MADE = b"\1mutex\0\0"
"""The bytes after an initialised mutex. If they are missing, no process has made the mutex yet."""
LOCK_BYTES = _MUTEX_BYTES + len(_MADE)
_SHARED = _ROBUST = 1
"""The values of PTHREAD_PROCESS_SHARED and PTHREAD_MUTEX_ROBUST in <pthread.h> of Linux."""
_mutexes = RobustMutexes.of_system() if sys.platform == "linux" else None


class SharedLock:
    """A reentrant lock that processes share.

    It is in ``LOCK_BYTES`` of an open file, from the offset ``at`` on; they are zero at first. A
    *hold* lasts from the first acquisition to the last release. If the process dies, the system
    releases the lock. If it is stopped, the others wait for a short time and go on without the lock
    (then ``taken`` is False). Without ``mutexes``, the lock is the system's lock on the file.
    """

    def __init__(self, file: int, at: int, mutexes: RobustMutexes | None = _mutexes) -> None:
        self._file = file
        self._at = at
        self._mutexes = mutexes
        self._bytes = mmap.mmap(file, at + LOCK_BYTES)
        self._place = ctypes.c_void_p()
        self._depth = 0
        self.taken = False
        self.hold = 0
        """The number of the present hold; 0: there is none."""
        self._holds = 0
        self._wait_s = LOCK_S
        if mutexes is not None and not self._find_mutex(mutexes):
            self._mutexes = None

    def __enter__(self) -> None:
        """Take the lock, and begin a hold, or go one level deeper in the present hold."""
        self._depth += 1
        if self._depth == 1:
            self._holds = self.hold = self._holds + 1
            mutexes = self._mutexes
            failure = errno.EBUSY if mutexes is None else mutexes.try_lock(self._place)
            self.taken = failure == 0 or self._wait(failure)

    def __exit__(self, *_: object) -> None:
        """Leave one level. At the last level, release the lock and end the hold."""
        self._depth -= 1
        if self._depth:
            return
        self.hold = 0
        if self.taken and self._mutexes is not None:
            self._mutexes.unlock(self._place)
        elif self.taken:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._at)

    @property
    def is_mutex(self) -> bool:
        """Whether the lock is a mutex, and not the system's lock on the file."""
        return self._mutexes is not None

    def _find_mutex(self, mutexes: RobustMutexes) -> bool:
        """Find the mutex, or make it if this process is the first; return whether there is one."""
        self._place = ctypes.c_void_p(
            ctypes.addressof(ctypes.c_char.from_buffer(self._bytes, self._at))
        )
        made = slice(self._at + _MUTEX_BYTES, self._at + LOCK_BYTES)
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, self._at)
        try:
            if self._bytes[made] != _MADE and mutexes.make(self._place):
                self._bytes[made] = _MADE
            return self._bytes[made] == _MADE
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._at)

    def _wait(self, failure: int) -> bool:
        """Wait for the lock, after a first try failed; return whether it was taken in time."""
        taken = self._is_repaired(failure) or self._try()
        until = time.monotonic() + self._wait_s
        while not taken and time.monotonic() < until:
            os.sched_yield()  # the holder of the lock may wait for this core
            taken = self._try()
        self._wait_s = LOCK_S if taken else LOCK_AGAIN_S
        return taken

    def _is_repaired(self, failure: int) -> bool:
        """Return whether we have the mutex although the try failed, because its holder died."""
        mutexes = self._mutexes
        if mutexes is None or failure != errno.EOWNERDEAD:
            return False
        return mutexes.repair(self._place) == 0

    def _try(self) -> bool:
        mutexes = self._mutexes
        if mutexes is not None:
            failure = mutexes.try_lock(self._place)
            return failure == 0 or self._is_repaired(failure)
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._at)
        except OSError:
            return False
        return True


# --- the memory -----------------------------------------------------------------------------------

_HEAD = struct.Struct("@16sQIB?")
"""Name, version (the time of the last change), length of the state, number of counts, and whether
the state is replaced later than others (``is_kept_longer``)."""
_NO_HEAD = (b"", 0, 0, 0, False)
_COUNTS = [struct.Struct(f"@{number}d") for number in range(3 * MOST_LIMITS + 1)]
"""The layout of the counts of a state, by how many there are."""
_COUNTS_AT = 32
STATE_AT = _COUNTS_AT + _COUNTS[-1].size
SLOT_BYTES = 4096
SLOTS = 4096
_NEAR = 8
"""The number of slots in which a state may be. If all are taken, the least recently used state is
replaced; those that are kept longer are replaced last."""
_FIRST_ROW, _ROW_COUNT, _SPENT, _TOTALS, _BEFORE_ROWS = 0, 1, 2, 3, 6
"""The places of a budget's numbers: the place of the first row, the number of rows, the spent part
of the saved calls, and three totals. The rows follow."""
_ROWS = BUDGET_WINDOW + 1
"""Number of rows of a budget. It is one more than the window, because a budget adds a row before it
drops one."""
_NAME_BYTES = 16
_BUDGET_BYTES = _NAME_BYTES + 8 * (_BEFORE_ROWS + 3 * _ROWS)
BUDGETS = 64
_BUDGETS_AT = SLOTS * SLOT_BYTES
_LOCK_AT = _BUDGETS_AT + BUDGETS * _BUDGET_BYTES
MEMORY_BYTES = _LOCK_AT + LOCK_BYTES


class SharedTable(SharedLock):
    """The memory that workers share: the bytes of an open file from ``offset`` on.

    First come ``SLOTS`` slots. Each has one state: a head with its version, counts, and the rest.
    Most calls change only the counts and leave the version as it is, so the other workers need not
    read the rest again. Then come ``BUDGETS`` budgets of extra calls, and the lock.
    """

    def __init__(self, file: int, offset: int = 0) -> None:
        super().__init__(file, offset + _LOCK_AT)
        self.memory = mmap.mmap(file, offset + MEMORY_BYTES)
        self.offset = offset

    def slot_of(self, name: bytes) -> int:
        """Return the offset of the slot of a state, old or new. The caller has the lock."""
        first = int.from_bytes(name[:8], "little")
        places = [self.offset + (first + i) % SLOTS * SLOT_BYTES for i in range(_NEAR)]
        uses: list[tuple[bool, float]] = []
        for at in places:
            found, version, _, _, kept_longer = _HEAD.unpack_from(self.memory, at)
            if found == name:
                return at
            (last_call,) = _COUNTS[1].unpack_from(self.memory, at + _COUNTS_AT)
            uses.append((kept_longer, max(version / 1e9, last_call)))
        at = places[uses.index(min(uses))]
        _HEAD.pack_into(self.memory, at, name, 0, 0, 0, False)  # noqa: FBT003 - a field
        return at

    def budget(self, name: bytes) -> memoryview[float] | None:
        """Return the numbers of a budget, zero if it is new; None if there are too many budgets."""
        start = self.offset + _BUDGETS_AT
        with self:
            for at in range(start, start + BUDGETS * _BUDGET_BYTES, _BUDGET_BYTES):
                numbers_at = at + _NAME_BYTES
                if self.memory[at:numbers_at] in (name, bytes(_NAME_BYTES)):
                    self.memory[at:numbers_at] = name
                    return memoryview(self.memory)[numbers_at : at + _BUDGET_BYTES].cast("d")
        return None


def _digest(*name: str) -> bytes:
    return blake2b("\0".join(name).encode(), digest_size=16).digest()


# --- a policy's state in its slot -----------------------------------------------------------------


class _Slot:
    """Reads and writes the state of one object, and knows which version the object has."""

    __slots__ = ("_at", "_count_number", "_name", "_version", "hold", "table")

    def __init__(self, table: SharedTable, name: bytes) -> None:
        self.table = table
        self._name = name
        self._at = -1
        self._version = 0
        self._count_number = 0
        """The number of its counts in memory."""
        self.hold = -1
        """The hold of the lock in which the state was read. No other worker changes the state
        before the end of this hold."""

    def read(self, shared: _SharedState) -> None:
        """Read the state, if another worker has changed it. The lock is taken only then."""
        table = self.table
        if table.hold:  # this worker has the lock already
            return self.read_locked(shared)
        if (at := self._at) >= 0:
            name, version, _, number, _ = _HEAD.unpack_from(table.memory, at)
            if version == self._version and name == self._name:  # only counts may have changed
                if number:  # read without the lock, so one count may be newer than another
                    shared.counts = _COUNTS[number].unpack_from(table.memory, at + _COUNTS_AT)
                return None
        with table:
            self.read_locked(shared)

    def read_locked(self, shared: _SharedState) -> None:
        """Read the state, if another worker has changed it. The caller has the lock."""
        table = self.table
        if self.hold == table.hold:
            return
        memory, at = table.memory, self._at
        name, version, length, number, _ = _HEAD.unpack_from(memory, at) if at >= 0 else _NO_HEAD
        if name != self._name:
            self._at = at = table.slot_of(self._name)
            _, version, length, number, _ = _HEAD.unpack_from(memory, at)
        if version not in (0, self._version):  # 0: no worker has written the state yet
            body = at + STATE_AT
            shared.load(memory[body : body + length])
        if number:
            shared.counts = _COUNTS[number].unpack_from(memory, at + _COUNTS_AT)
        self._version, self._count_number = version, number
        self.hold = table.hold

    def write(self, shared: _SharedState) -> None:
        """Write the state back, after ``read_locked``. The caller has the lock."""
        state, counts = shared.save(), shared.counts
        memory, at, body = self.table.memory, self._at, self._at + STATE_AT
        memory[body : body + len(state)] = state
        self._version, self._count_number = time.monotonic_ns(), len(counts)
        _COUNTS[self._count_number].pack_into(memory, at + _COUNTS_AT, *counts)
        kept_longer = shared.is_kept_longer()
        _HEAD.pack_into(
            memory, at, self._name, self._version, len(state), self._count_number, kept_longer
        )

    def write_counts(self, shared: _SharedState) -> None:
        """Write the counts back, after ``read_locked``. The caller has the lock."""
        counts = shared.counts
        if len(counts) != self._count_number:
            return self.write(shared)
        return _COUNTS[self._count_number].pack_into(
            self.table.memory, self._at + _COUNTS_AT, *counts
        )


class _SharedState:
    """Mixin: lets the methods of a policy run on shared state.

    For example, ``SharedBreaker.failed`` writes all fields, and ``SharedLimits.take`` the counts.
    """

    counts: Sequence[float] = ()
    """The numbers that each call changes. The first one is the time of the last call."""
    _fields: tuple[str, ...]
    """The names of all other fields that workers share."""
    _types: Any  # a tuple of their types

    def __init__(self, table: SharedTable, name: bytes) -> None:
        super().__init__()
        self.slot = _Slot(table, name)

    def save(self) -> bytes:
        """Return the state without the counts."""
        return msgspec.msgpack.encode([vars(self)[name] for name in self._fields])

    def load(self, state: bytes) -> None:
        """Take over a state."""
        values = msgspec.msgpack.decode(state, type=self._types)
        vars(self).update(zip(self._fields, values, strict=True))

    def is_kept_longer(self) -> bool:
        """Tell whether the state is kept longer than others.

        Callers can invent names of models, whose states must not displace those of real models.
        """
        return True


def _reading(method: Any) -> Any:
    """Wrap a method that reads: before each call it gets what other workers have changed."""

    def read(self: _SharedState, *args: Any, **named: Any) -> Any:
        slot = self.slot
        if slot.hold != slot.table.hold:  # the state was not read in the present hold
            slot.read(self)
        return method(self, *args, **named)

    return read


def _changing(method: Any, write: Callable[[_Slot, Any], None] = _Slot.write) -> Any:
    """Wrap a method that writes: it runs under the lock, and its changes are written back."""

    def change(self: _SharedState, *args: Any, **named: Any) -> Any:
        slot = self.slot
        with slot.table:
            slot.read_locked(self)
            result = method(self, *args, **named)
            write(slot, self)
        return result

    return change


def _counting(method: Any) -> Any:
    """Wrap a method as ``_changing`` does, but write back only the counts."""
    return _changing(method, _Slot.write_counts)


_BREAKER_TYPES: dict[str, Any] = {  # by the names of the fields
    name: dict[int, bool] if name == "_unanswered" else type(value)
    for name, value in vars(CircuitBreaker()).items()
    if name not in ("_admitted", "_calls", "_errors", "_counted_at")  # see ``counts``
}


class SharedBreaker(_SharedState, CircuitBreaker):
    """A circuit breaker of all workers."""

    _fields = tuple(_BREAKER_TYPES)
    _types = GenericAlias(tuple, tuple(_BREAKER_TYPES.values()))

    def is_kept_longer(self) -> bool:
        return self.proven

    ready_in_s = _reading(CircuitBreaker.ready_in_s)
    open_for_s = _reading(CircuitBreaker.open_for_s)
    avoided_for_s = _reading(CircuitBreaker.avoided_for_s)
    limited = _reading(CircuitBreaker.limited)
    degraded = _reading(CircuitBreaker.degraded)
    weight = _reading(CircuitBreaker.weight)
    insist = _reading(CircuitBreaker.insist)
    neutral = _changing(CircuitBreaker.neutral)
    superseded = _changing(CircuitBreaker.superseded)
    pause_for = _changing(CircuitBreaker.pause_for)
    failed = _changing(CircuitBreaker.failed)
    _succeeded = _changing(CircuitBreaker.succeeded)

    def admit(self, now: float) -> Permit | None:
        """Return a permit, or None. Most permits change nothing but the counts."""
        slot = self.slot
        with slot.table:
            slot.read_locked(self)
            permit = super().admit(now)
            if permit is not None:
                (slot.write if permit.probe else slot.write_counts)(self)
        return permit

    def succeeded(self, permit: Permit, now: float) -> None:
        """Report an answer. Most answers change nothing, and need no lock."""
        self.slot.read(self)
        if self.learns_from_success(permit, now):
            self._succeeded(permit, now)

    @property
    def counts(self) -> Sequence[float]:
        """The time of the last call, the number of calls, and recent calls and errors."""
        return self._counted_at, self._admitted, self._calls, self._errors

    @counts.setter
    def counts(self, values: Sequence[float]) -> None:
        self._counted_at, admitted, self._calls, self._errors = values
        self._admitted = int(admitted)


class SharedLimits(_SharedState, RateLimits):
    """Rate limits of all workers.

    ``known`` reads the changes of other workers. ``needs_headers`` is called directly after it, so
    it does not read them again.
    """

    def save(self) -> bytes:
        return msgspec.msgpack.encode(self.saved())

    def load(self, state: bytes) -> None:
        self.restore(msgspec.msgpack.decode(state, type=SavedLimits))

    @property
    def known(self) -> bool:
        """A limit is known to any worker."""
        if self.slot.hold != self.slot.table.hold:
            self.slot.read(self)
        return self._known

    @known.setter
    def known(self, value: bool) -> None:
        self._known = value

    def learn(
        self,
        headers: Headers,
        now: float,
        unix: float,
        taken: Taken = NOTHING_TAKEN,
        _: Sequence[LimitWindow] | None = None,
        *,
        began: float | None = None,
    ) -> bool:
        """Learn the limits that headers name. They are read before the lock is taken."""
        read = limit_windows(headers, unix)
        return bool(read) and self._learn(headers, now, unix, taken, read, began=began)

    ready_in_s = _reading(RateLimits.ready_in_s)
    allowance = _reading(RateLimits.allowance)
    _learn = _changing(RateLimits.learn)
    learn_refusal = _changing(RateLimits.learn_refusal)
    take = _counting(RateLimits.take)
    give_back = _counting(RateLimits.give_back)
    copy_from = _changing(RateLimits.copy_from)
    counts = RateLimits.levels


class SharedRetryBudget(_SharedState, RetryBudget):
    """A budget of retries of all workers."""

    _fields = ("_level", "_at")
    _types = tuple[float, float | None]

    def earn(self, now: float) -> None:
        """Count a call that is not a retry. A full budget needs no lock."""
        self.slot.read(self)
        if self._level < self._burst:
            self._earn(now)

    _earn = _changing(RetryBudget.earn)
    spend = _changing(RetryBudget.spend)


class _Window:
    """The window of a budget in shared memory. It has the methods of a deque that a budget uses."""

    def __init__(self, numbers: memoryview[float]) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return int(self._numbers[_ROW_COUNT])

    def __getitem__(self, number: int) -> memoryview[float]:
        row = int(self._numbers[_FIRST_ROW]) + (len(self) + number if number < 0 else number)
        at = _BEFORE_ROWS + 3 * (row % _ROWS)
        return self._numbers[at : at + 3]

    def append(self, row: Sequence[float]) -> None:
        place = self[len(self)]
        for i, number in enumerate(row):
            place[i] = number
        self._numbers[_ROW_COUNT] += 1

    def popleft(self) -> list[float]:
        row = list(self[0])
        self._numbers[_FIRST_ROW] = (int(self._numbers[_FIRST_ROW]) + 1) % _ROWS
        self._numbers[_ROW_COUNT] -= 1
        return row


class SharedExtraBudget(ExtraBudget):
    """A budget of extra calls of all workers."""

    def __init__(
        self, calls: float, usd: float, table: SharedTable, numbers: memoryview[float]
    ) -> None:
        # The start values of the base class must not replace what other workers have counted.
        self._numbers = memoryview(bytearray(8 * _BEFORE_ROWS)).cast("d")
        super().__init__(calls, usd)
        self._numbers, self._table = numbers, table
        self._window = _Window(numbers)  # type: ignore[assignment]

    @property
    def _saved(self) -> float:
        # The memory holds the spent part, not the saved part, so zeros mean a new budget.
        return self._start - self._numbers[_SPENT]

    @_saved.setter
    def _saved(self, value: float) -> None:
        self._numbers[_SPENT] = self._start - value

    @property
    def _totals(self) -> list[float]:
        return cast("list[float]", self._numbers[_TOTALS:_BEFORE_ROWS])

    @_totals.setter
    def _totals(self, values: Sequence[float]) -> None:
        for i, value in enumerate(values):
            self._numbers[_TOTALS + i] = value

    def earn(self, usd: float) -> None:
        """Count a request of any worker."""
        with self._table:
            super().earn(usd)

    def spend(self, usd: float) -> bool:
        """Take one extra call, if the budget of all workers allows it."""
        with self._table:
            return super().spend(usd)


# --- what workers learn from each other ----------------------------------------------------------


class AnswerFacts(TypedDict):
    """The arguments of ``Measures.answered``."""

    route_or_endpoint: str
    estimated: int
    reported: int
    completion: int
    decoding_s: float
    gaps: Sequence[float]
    whole_s: float


class AnswersUpdate(msgspec.Struct, array_like=True):
    """The figures of a worker's whole answers of one kind, since the last update."""

    upstream: str
    model: str
    route_or_endpoint: str
    answers: int = 0
    tokens: int = 0
    estimated: int = 0
    reported: int = 0
    """Tokens of the prompts that the provider has counted: its counts and our estimates."""
    last: float = 0.0
    gaps: list[float] = []
    speeds: list[tuple[int, float, float]] = []
    """Arguments of ``Measures.speed``."""
    wholes: list[tuple[int, int, float, float]] = []
    """Arguments of ``Measures.whole``."""

    def add(self, now: float, facts: AnswerFacts) -> None:
        """Add an answer."""
        completion, estimated = facts["completion"], facts["estimated"]
        self.answers += 1
        self.tokens += completion
        self.last = now
        if estimated > 0 and facts["reported"] > 0:
            self.estimated += estimated
            self.reported += facts["reported"]
        self.gaps += facts["gaps"]
        if facts["decoding_s"]:
            self.speeds.append((completion, facts["decoding_s"], now))
        if facts["whole_s"]:
            self.wholes.append((estimated, completion, facts["whole_s"], now))

    def teach(self, measures: Measures) -> None:
        """Add the update to the measures of another worker."""
        key = UpstreamModel(self.upstream, self.model)
        Measures.gaps(measures, key, self.gaps)
        Measures.prompt(measures, key, self.estimated, self.reported, self.last)
        Measures.length(
            measures, self.route_or_endpoint, self.tokens, self.last, answers=self.answers
        )
        for speed in self.speeds:
            Measures.speed(measures, key, *speed)
        if self.wholes:
            Measures.whole(measures, key, self.wholes)


class _Synced:
    """Mixin: ``publish`` sends what this worker learns to the other workers."""

    def __init__(self, publish: Callable[[str, tuple[Any, ...]], None]) -> None:
        super().__init__()
        self.publish = publish


def _publishing(name: str, method: Any) -> Any:
    """Wrap a method that learns: the other workers get its arguments under this name."""

    def learn(self: _Synced, *given: Any) -> None:
        method(self, *given)
        self.publish(name, given)

    return learn


class SyncedMeasures(_Synced, Measures):
    """Measures that all workers learn.

    ``publish_answer`` collects the figures of whole answers, which are sent together.
    """

    def __init__(
        self,
        publish: Callable[[str, tuple[Any, ...]], None],
        publish_answer: Callable[[UpstreamModel, float, AnswerFacts], None],
    ) -> None:
        super().__init__(publish)
        self._publish_answer = publish_answer

    first = _publishing("first", Measures.first)
    censored = _publishing("censored", Measures.censored)

    def gaps(self, key: UpstreamModel, seconds: Sequence[float]) -> None:
        """Learn gaps."""
        super().gaps(key, seconds)
        self.publish("gaps", (key, tuple(seconds)))

    def ended(self, key: UpstreamModel, gaps: Sequence[float] = ()) -> None:
        """Count the end of a call, and learn its last gaps."""
        super().ended(key, gaps)
        if gaps:
            self.publish("gaps", (key, tuple(gaps)))

    def answered(self, key: UpstreamModel, now: float, **facts: Unpack[AnswerFacts]) -> None:
        """Learn from a whole answer."""
        super().answered(key, now, **facts)
        self._publish_answer(key, now, facts)


class SyncedAffinities(_Synced, Affinities):
    """The upstreams that served conversations, from any worker."""

    served = _publishing("served", Affinities.served)


class SyncedPrefixReuse(_Synced, PrefixReuse):
    """The prefixes that any worker sent."""

    used = _publishing("prefix", PrefixReuse.used)


_UPDATES: dict[str, Callable[..., None]] = {
    "first": Measures.first,
    "censored": Measures.censored,
    "gaps": Measures.gaps,
}
_update_decoder = msgspec.msgpack.Decoder(tuple[list[tuple[str, list[Any]]], list[AnswersUpdate]])
MOST_UPDATES = 1000
"""Most updates that wait to be sent. Further ones are dropped."""


class SharedUpstreamStates(UpstreamStates):
    """The states of upstreams of all workers, in the memory ``file`` from ``offset`` on."""

    def __init__(self, file: int, offset: int) -> None:
        super().__init__()
        self.measures = SyncedMeasures(self._publish, self._publish_answer)
        self.affinities = SyncedAffinities(self._publish)
        self.reuse = SyncedPrefixReuse(self._publish)
        self._table = SharedTable(file, offset)
        self._updates: list[tuple[str, tuple[Any, ...]]] = []
        self._answers: dict[tuple[UpstreamModel, str], AnswersUpdate] = {}
        self._queued = 0

    def take_updates(self) -> bytes:
        """Return what this worker has learned since the last call; b"": nothing."""
        if not self._queued:
            return b""
        updates, answers = self._updates, list(self._answers.values())
        self._updates, self._answers, self._queued = [], {}, 0
        return msgspec.msgpack.encode((updates, answers))

    def learn(self, updates: bytes) -> None:
        """Learn from an update of another worker."""
        singly, answers = _update_decoder.decode(updates)
        for update in answers:
            update.teach(self.measures)
        for name, given in singly:
            if name == "served":
                Affinities.served(self.affinities, *given)
            elif name == "prefix":
                PrefixReuse.used(self.reuse, SeenPrefix(*given[0]))
            else:
                _UPDATES[name](self.measures, UpstreamModel(*given[0]), *given[1:])

    def make(self, upstream: str, model: str, key: str) -> UpstreamState:
        """Return the state that all workers share."""
        breaker = SharedBreaker(self._table, _digest("breaker", upstream, model, key))
        limits = SharedLimits(self._table, _digest("limits", upstream, model, key))
        return UpstreamState(breaker, limits, self._table)

    def extra_budget(self, route: str, composition: str, calls: float, usd: float) -> ExtraBudget:
        """Return a budget that all workers share."""
        numbers = self._table.budget(_digest("extra", route, composition))
        if numbers is None:
            return super().extra_budget(route, composition, calls, usd)
        return SharedExtraBudget(calls, usd, self._table, numbers)

    def retry_budget(self, route: str, composition: str) -> RetryBudget:
        """Return a budget that all workers share."""
        return SharedRetryBudget(self._table, _digest("retry", route, composition))

    def _publish(self, name: str, given: tuple[Any, ...]) -> None:
        if self._queued < MOST_UPDATES:
            self._queued += 1
            self._updates.append((name, given))

    def _publish_answer(self, key: UpstreamModel, now: float, facts: AnswerFacts) -> None:
        if self._queued >= MOST_UPDATES:
            return
        self._queued += 1
        route = facts["route_or_endpoint"]
        update = self._answers.get((key, route))
        if update is None:
            update = self._answers[key, route] = AnswersUpdate(*key, route)
        update.add(now, facts)
