"""Several workers on shared states behave as one: same decisions, one budget, one limit."""

from __future__ import annotations

import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from headstart.middleware.upstreams.accounting import UpstreamStates
from headstart.middleware.upstreams.shared_states import (
    LOCK_BYTES,
    MEMORY_BYTES,
    SLOT_BYTES,
    SLOTS,
    STATE_AT,
    SharedLock,
    SharedUpstreamStates,
)
from headstart.policies.routing.failures import FailureKind, Permit, failure
from headstart.policies.routing.measures import UpstreamModel
from headstart.policies.routing.prompt_cache import SeenPrefix
from headstart.policies.routing.rate_limits import MOST_LIMITS, NOTHING_TAKEN, RateLimits

if TYPE_CHECKING:
    from collections.abc import Iterator


HEADERS = ((b"x-ratelimit-limit-requests", b"100"), (b"x-ratelimit-remaining-requests", b"40"),
           (b"x-ratelimit-reset-requests", b"36s"))  # fmt: skip
PLACE = ("sim", "m", "1")


@pytest.fixture
def memory() -> Iterator[int]:
    with tempfile.TemporaryFile() as file:
        file.truncate(MEMORY_BYTES)
        yield file.fileno()


@pytest.fixture
def workers(memory: int) -> list[SharedUpstreamStates]:
    return [SharedUpstreamStates(memory, 0) for _ in range(3)]


@pytest.mark.parametrize("seed", range(20))
def test_breakers_of_workers_decide_as_one_would(
    workers: list[SharedUpstreamStates], seed: int
) -> None:
    draw = random.Random(seed)
    alone = UpstreamStates().of(*PLACE).breaker
    shared = [each.of(*PLACE).breaker for each in workers]
    permits: list[Permit] = []
    now = 100.0
    for _ in range(400):
        now += draw.random() * draw.choice([0.01, 0.5, 3.0])
        breaker = draw.choice(shared)
        act = draw.randrange(5)
        if act < 2:
            permit = alone.admit(now)
            assert breaker.admit(now) == permit
            if permit is not None:
                permits.append(permit)
        elif permits:
            permit = permits.pop(draw.randrange(len(permits)))
            for each in (alone, breaker):
                if act == 2:
                    each.failed(permit, failure(FailureKind.SERVER), now)
                elif act == 3:
                    each.succeeded(permit, now)
                else:
                    each.superseded(permit)
        reader = draw.choice(shared)
        assert reader.ready_in_s(now) == alone.ready_in_s(now)
        assert reader.weight(now) == alone.weight(now)
        assert reader.degraded(now) == alone.degraded(now)


@pytest.mark.parametrize("seed", range(20))
def test_limits_and_budgets_of_workers_are_one(
    workers: list[SharedUpstreamStates], seed: int
) -> None:
    draw, now = random.Random(seed), 100.0
    single = UpstreamStates()
    alone = single.of(*PLACE).limits, single.retry_budget("r", "c"), single.extra_budget(
        "r", "c", 0.1, 0.2
    )  # fmt: skip
    shared = [
        (each.of(*PLACE).limits, each.retry_budget("r", "c"), each.extra_budget("r", "c", 0.1, 0.2))
        for each in workers
    ]
    for _ in range(2500):
        now += draw.random() * 0.3
        limits, retries, extra = draw.choice(shared)
        act = draw.randrange(12)
        if act == 0:
            for each in (alone[0], limits):
                each.learn(HEADERS, now, 0.0)
        elif act < 4:
            for each in (alone[0], limits):
                each.take(1, now)
        elif act < 6:
            alone[1].earn(now)
            retries.earn(now)
        elif act < 8:
            assert retries.spend(now, none_left=True) == alone[1].spend(now, none_left=True)
        elif act < 10:
            alone[2].earn(0.5)
            extra.earn(0.5)
        else:
            assert extra.spend(0.05) == alone[2].spend(0.05)
        limits, _, extra = draw.choice(shared)
        assert limits.known == alone[0].known
        assert limits.ready_in_s(1, now) == alone[0].ready_in_s(1, now)
        assert limits.allowance(now) == alone[0].allowance(now)
        assert extra.calls_used == pytest.approx(alone[2].calls_used)
        assert extra.usd_used == pytest.approx(alone[2].usd_used)


TAKER = f"""
import sys
from headstart.middleware.upstreams.shared_states import SharedUpstreamStates
state = SharedUpstreamStates(int(sys.argv[1]), 0).of(*{PLACE!r})
sys.stdin.readline()
taken = 0
for _ in range(200):
    with state.lock:
        if state.limits.ready_in_s(1, 1000.0) <= 0.0:
            state.limits.take(1, 1000.0)
            taken += 1
print(taken)
"""
ADMITTED = f"""
import sys
from headstart.middleware.upstreams.shared_states import SharedUpstreamStates
breaker = SharedUpstreamStates(int(sys.argv[1]), 0).of(*{PLACE!r}).breaker
sys.stdin.readline()
print(*(breaker.admit(1000.0).number for _ in range(500)))
"""


def run_at_once(code: str, memory: int) -> list[str]:
    """Run a program in four processes that begin together; return what they printed."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(memory)],
            pass_fds=(memory,), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(4)
    ]  # fmt: skip
    for each in running:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    return [each.communicate(timeout=60)[0] for each in running]


def test_processes_that_take_at_once_take_what_is_there(
    memory: int, workers: list[SharedUpstreamStates]
) -> None:
    workers[0].of(*PLACE).limits.learn(HEADERS, 1000.0, 0.0)
    assert sum(map(int, run_at_once(TAKER, memory))) == 40


def test_workers_share_the_rate_of_a_provider_that_tells_no_limit(
    workers: list[SharedUpstreamStates],
) -> None:
    first, second, _ = (each.of(*PLACE).limits for each in workers)
    first.learn_refusal(1.0, 10.0, 10.0)
    assert second.known
    assert second.ready_in_s(0, 10.1) == first.ready_in_s(0, 10.1) > 0.0
    assert second.ready_in_s(0, 11.0) == 0.0
    second.take(0, 11.0)
    assert first.ready_in_s(0, 11.0) > 0.0, "the other worker took the only call"
    second.learn_refusal(2.0, 12.0, 12.0)
    assert first.ready_in_s(0, 12.1) == second.ready_in_s(0, 12.1) > 0.0


def test_processes_that_ask_at_once_get_different_permits(memory: int) -> None:
    numbers = " ".join(run_at_once(ADMITTED, memory)).split()
    assert sorted(map(int, numbers)) == [*range(1, 4 * 500 + 1)]


def test_a_state_that_displaces_another_does_not_inherit_its_calls(
    workers: list[SharedUpstreamStates],
) -> None:
    """All slots are taken again and again, and a new state begins with its first call."""
    for number in range(3 * SLOTS):
        permit = workers[number % 2].of("sim", f"model-{number}", "1").breaker.admit(1.0)
        assert permit is not None
        assert permit.number == 1


def test_a_provider_that_invents_limits_takes_a_bounded_part_of_the_memory(
    workers: list[SharedUpstreamStates],
) -> None:
    """It renames its limits with each answer, in the longest names."""
    first, second, _ = (each.of(*PLACE).limits for each in workers)
    for number in range(100):
        name = b"requests-" + (f"{number}-" + "x" * 60)[: 60 - len("remaining-requests-")].encode()
        first.learn(((b"x-ratelimit-remaining-" + name, b"5"),), 1.0, 0.0)
        first.take(1, 1.0)
        assert second.ready_in_s(1, 1.0) == first.ready_in_s(1, 1.0)
    assert second.take(1, 1.0).keys() == first.take(1, 1.0).keys()
    assert len(first.take(1, 1.0)) == MOST_LIMITS


HOLDER = """
import sys, time
from middleware.test_shared_states import lock_of
with lock_of(int(sys.argv[1]), sys.argv[2] == "mutex"):
    print("held", flush=True)
    time.sleep(600)
"""
ADDER = """
import sys
from middleware.test_shared_states import add_under_lock
add_under_lock(int(sys.argv[1]), sys.argv[2] == "mutex")
"""
ADDED = 3000


def lock_of(file: int, mutex: bool) -> SharedLock:
    """Return the lock of a file in one of its two forms: a mutex, or the system's lock."""
    lock = SharedLock(file, 0) if mutex else SharedLock(file, 0, None)
    assert lock.is_mutex == mutex
    return lock


def add_under_lock(file: int, mutex: bool) -> None:
    lock, memory = lock_of(file, mutex), mmap.mmap(file, 2 * LOCK_BYTES)
    count = memoryview(memory).cast("q")
    added = 0
    while added < ADDED:
        with lock:
            if not lock.taken:  # the others may keep it from this process for long
                continue
            seen = count[-1]
            with lock:  # it may be taken again inside
                pass
            count[-1] = seen + 1
            added += 1


def run_beside(code: str, file: int, *, mutex: bool) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(file), "mutex" if mutex else "file"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        pass_fds=(file,), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


FORMS = [
    pytest.param(True, marks=pytest.mark.skipif(sys.platform != "linux", reason="a Linux mutex")),
    False,
]


@pytest.mark.parametrize("mutex", FORMS)
def test_only_one_process_at_a_time_has_the_lock(memory: int, mutex: bool) -> None:
    adders = [run_beside(ADDER, memory, mutex=mutex) for _ in range(3)]
    assert [adder.communicate(timeout=60)[0] for adder in adders] == ["", "", ""]
    assert [adder.returncode for adder in adders] == [0, 0, 0]
    assert memoryview(mmap.mmap(memory, 2 * LOCK_BYTES)).cast("q")[-1] == 3 * ADDED


@pytest.mark.parametrize("mutex", FORMS)
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_ends_or_stops_with_the_lock_holds_up_nobody(
    memory: int, sent: signal.Signals, mutex: bool
) -> None:
    with run_beside(HOLDER, memory, mutex=mutex) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        lock = lock_of(memory, mutex)
        with lock:
            assert not lock.taken
        os.kill(holder.pid, sent)
        if sent == signal.SIGKILL:
            holder.wait()
        began = time.monotonic()
        for _ in range(3):
            with lock:
                assert lock.taken == (sent == signal.SIGKILL)
        assert time.monotonic() - began < 10.0
        holder.kill()


def test_many_models_push_out_those_that_never_answered(
    workers: list[SharedUpstreamStates],
) -> None:
    first, second, _ = workers
    breaker = first.of(*PLACE).breaker
    permit = breaker.admit(1.0)
    assert permit is not None
    breaker.succeeded(permit, 1.0)
    breaker.pause_for(1e6, 1.0)
    for number in range(6000):
        first.of("sim", f"made-up-{number}", "1").breaker.admit(1.0)
    assert second.of(*PLACE).breaker.ready_in_s(2.0) > 1000


def test_workers_learn_from_each_other() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(MEMORY_BYTES)
        told, other = (SharedUpstreamStates(file.fileno(), 0) for _ in range(2))
        key, whole = UpstreamModel("sim", "m"), UpstreamModel("whole", "m")
        told.measures.began(key, 1.0)
        for _ in range(20):
            told.measures.first(key, 100, 0.25, 1.0)
            told.measures.answered(
                key, 2.0, route_or_endpoint="r", estimated=100, reported=120, completion=40,
                decoding_s=1.0, gaps=(0.01, 0.02), whole_s=0.0,
            )  # fmt: skip
            told.measures.answered(
                whole, 2.0, route_or_endpoint="r", estimated=100, reported=120, completion=40,
                decoding_s=0.0, gaps=(), whole_s=3.0,
            )  # fmt: skip
        told.affinities.served("a conversation", "sim", 1.0)
        told.reuse.used(SeenPrefix("a prefix", "later r", "a request", 1.0, cached=True))
        other.learn(told.take_updates())
        assert told.take_updates() == b"" == other.take_updates()
        for learned in (told, other):
            figures = learned.measures
            assert figures.first_token(key, 100, 1.0).mean_s == pytest.approx(0.25, rel=0.05)
            assert figures.tokens_per_s(key) == pytest.approx(40.0)
            first = figures.first_token(whole, 100, 2.0)
            assert first.samples == 20
            assert (first.mean_s or 0.0) + 40 / (first.tokens_per_s or 1) == pytest.approx(3.0)
            assert figures.expected_length("r") == pytest.approx(40.0)
            assert figures.prompt_tokens(key, 100) == 120
            assert learned.affinities.of("a conversation", 2.0) == "sim"
            assert learned.reuse.of("a prefix", "later r", 2.0).cached
        assert other.measures.in_flight(key) == 0


def test_the_longest_state_of_limits_fits_its_slot() -> None:
    limits = RateLimits()
    for used in range(1, 20):
        values = (
            ("limit", 1000.5),
            ("remaining", 1000.25 - 30 * used),
            ("reset", 59.7 - 0.1 * used),
        )
        headers = tuple(
            (f"x-tokenlimit-{field}-{'a' * 47}-{number:02}".encode(), str(value).encode())
            for number in range(MOST_LIMITS)
            for field, value in values
        )
        taken = limits.take(1, 0.1 * used) if limits.known else NOTHING_TAKEN
        limits.learn(headers, 0.1 * used, 1e9, taken)
    saved = limits.saved()
    assert len(saved) == MOST_LIMITS
    assert any(each[2] for each in saved.values()), "they are windows, which have more numbers"
    assert len(msgspec.msgpack.encode(saved)) < SLOT_BYTES - STATE_AT
