from __future__ import annotations

import asyncio
import itertools
import os
import sys
import textwrap
import threading
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import anyio
import numpy as np
import pytest
from anyio import to_thread

from headstart.decisions import Encoding
from headstart.embeddings.encoder_worker import (
    BACKGROUND_TURN,
    MAX_QUEUE,
    EncoderWorker,
    available_cores,
)
from headstart.errors import EncoderError
from headstart.observe import Encoded, Observation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

DIMENSION = 4


class SteppedEncoder:
    """Encodes one prompt for each ``release``; a prompt has as many tokens as words."""

    namespace = "stepped"
    dimension = DIMENSION

    def __init__(self, *, stepped: bool = True) -> None:
        self.seen: list[str] = []
        self._stepped = stepped
        self._entered = threading.Semaphore(0)
        self._gate = threading.Semaphore(0)

    def encode(self, text: str) -> Encoding:
        self.seen.append(text)
        self._entered.release()
        if self._stepped:
            self._gate.acquire()
        if text == "bad":
            raise EncoderError("bad prompt")
        if text == "alien":
            raise ZeroDivisionError
        words = len(text.split())
        return Encoding(
            sentence=np.full(DIMENSION, 0.5, np.float32),
            tokens=np.zeros((words, DIMENSION), np.float32),
            spans=((0, 1),) * words,
            complete=True,
        )

    async def entered(self) -> None:
        """Wait until the worker is inside the next call of ``encode``."""
        await to_thread.run_sync(self._entered.acquire)

    def release(self, count: int = 1) -> None:
        self._gate.release(count)


class Notes:
    def __init__(self) -> None:
        self.made: list[Observation] = []

    def notify(self, observation: Observation) -> None:
        self.made.append(observation)


@asynccontextmanager
async def working(
    encoder: SteppedEncoder,
    *,
    cache_size: int = 2048,
    cache_bytes: int = 1 << 20,
    threads: int = 1,
) -> AsyncIterator[EncoderWorker]:
    worker = EncoderWorker(
        encoder,
        threads=threads,
        cache_size=cache_size,
        cache_bytes=cache_bytes,
        observer=Notes(),
        clock=lambda: float(len(encoder.seen)),  # each encoding takes a second
    )
    try:
        yield worker
    finally:
        encoder.release(100)
        await worker.aclose()


async def queue_all(worker: EncoderWorker, length: int) -> None:
    """Wait until ``length`` prompts are queued."""
    while worker.queue_length != length:
        await anyio.lowlevel.checkpoint()


async def test_foreground_goes_before_background() -> None:
    encoder = SteppedEncoder()
    async with working(encoder) as worker, anyio.create_task_group() as tasks:
        tasks.start_soon(worker.encode, "first")
        await encoder.entered()
        for text in ("later 1", "later 2"):
            tasks.start_soon(partial(worker.encode, text, background=True))
        await queue_all(worker, 2)
        for text in ("now 1", "now 2"):
            tasks.start_soon(worker.encode, text)
        await queue_all(worker, 4)
        encoder.release(5)
    assert encoder.seen == ["first", "now 1", "now 2", "later 1", "later 2"]


async def test_background_gets_a_turn_now_and_then_under_steady_load() -> None:
    encoder = SteppedEncoder()
    async with working(encoder) as worker, anyio.create_task_group() as tasks:
        tasks.start_soon(worker.encode, "0")
        await encoder.entered()
        tasks.start_soon(partial(worker.encode, "later", background=True))
        await queue_all(worker, 1)
        for number in range(1, 2 * BACKGROUND_TURN):
            tasks.start_soon(worker.encode, str(number))
        await queue_all(worker, 2 * BACKGROUND_TURN)
        encoder.release(2 * BACKGROUND_TURN + 1)
    assert encoder.seen.index("later") == BACKGROUND_TURN - 1


async def test_background_prompt_that_somebody_now_waits_for_moves_up() -> None:
    encoder = SteppedEncoder()
    async with working(encoder) as worker, anyio.create_task_group() as tasks:
        tasks.start_soon(worker.encode, "first")
        await encoder.entered()
        for text in ("idle", "wanted"):
            tasks.start_soon(partial(worker.encode, text, background=True))
        await queue_all(worker, 2)
        encoder.release(3)
        await worker.encode("wanted")
    assert encoder.seen == ["first", "wanted", "idle"]


async def test_prompt_cancelled_while_queued_is_never_encoded() -> None:
    encoder = SteppedEncoder()
    async with working(encoder) as worker, anyio.create_task_group() as tasks:
        tasks.start_soon(worker.encode, "first")
        await encoder.entered()
        with anyio.CancelScope() as scope:
            tasks.start_soon(cancel_when_queued, worker, scope)
            await worker.encode("gone")
        assert worker.queue_length == 0
        encoder.release(2)
        await worker.encode("last")
    assert encoder.seen == ["first", "last"]


async def cancel_when_queued(worker: EncoderWorker, scope: anyio.CancelScope) -> None:
    await queue_all(worker, 1)
    scope.cancel()


async def test_caller_that_leaves_does_not_take_the_prompt_from_another() -> None:
    encoder = SteppedEncoder()
    async with working(encoder) as worker, anyio.create_task_group() as tasks:
        tasks.start_soon(worker.encode, "first")
        await encoder.entered()
        kept: list[Encoding] = []

        async def stay() -> None:
            kept.append(await worker.encode("shared"))

        tasks.start_soon(stay)
        await queue_all(worker, 1)
        with anyio.CancelScope() as scope:
            tasks.start_soon(cancel_when_queued, worker, scope)
            await worker.encode("shared")
        encoder.release(2)
    assert encoder.seen == ["first", "shared"]
    assert len(kept) == 1


async def test_prompt_cancelled_while_it_runs_is_kept() -> None:
    encoder = SteppedEncoder()
    async with working(encoder) as worker:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.encode, "halfway")
            await encoder.entered()
            tasks.cancel_scope.cancel()
        encoder.release(2)
        await worker.encode("next")
        assert worker.peek("halfway") is not None


async def test_same_prompt_in_flight_is_encoded_once() -> None:
    encoder = SteppedEncoder()
    results: list[Encoding] = []
    async with working(encoder) as worker, anyio.create_task_group() as tasks:

        async def ask() -> None:
            results.append(await worker.encode("same"))

        tasks.start_soon(ask)
        await encoder.entered()
        for _ in range(3):
            tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        encoder.release()
    assert encoder.seen == ["same"]
    assert len(results) == 4
    assert all(result is results[0] for result in results)


async def test_recent_prompt_is_not_encoded_again() -> None:
    encoder = SteppedEncoder(stepped=False)
    async with working(encoder) as worker:
        assert worker.peek("hello") is None
        first = await worker.encode("hello")
        assert worker.peek("hello") is first
        assert await worker.encode("hello") is first
    assert encoder.seen == ["hello"]


async def test_least_recently_used_prompt_is_forgotten_first() -> None:
    async with working(SteppedEncoder(stepped=False), cache_size=2) as worker:
        await worker.encode("a")
        await worker.encode("b")
        worker.peek("a")
        await worker.encode("c")
        assert worker.peek("a") is not None
        assert worker.peek("b") is None
        assert worker.peek("c") is not None


async def test_recent_prompts_stay_within_their_bytes() -> None:
    cost = 2 * 4 * DIMENSION + 4 * 3 + 120  # vectors, three characters, one span
    async with working(SteppedEncoder(stepped=False), cache_bytes=64 * cost) as worker:
        texts = [f"{index:03}" for index in range(100)]
        for text in texts:
            await worker.encode(text)
        assert [text for text in texts if worker.peek(text)] == texts[-64:]


async def test_long_prompt_does_not_displace_many_short_ones() -> None:
    async with working(SteppedEncoder(stepped=False), cache_bytes=64 * 200) as worker:
        await worker.encode("short")
        await worker.encode("so many words that it is long")
        assert worker.peek("short") is not None
        assert worker.peek("so many words that it is long") is None


async def test_prompt_after_an_error_is_encoded() -> None:
    encoder = SteppedEncoder(stepped=False)
    async with working(encoder) as worker:
        with pytest.raises(EncoderError, match="bad prompt"):
            await worker.encode("bad")
        assert worker.peek("bad") is None
        assert (await worker.encode("good")).complete


async def test_foreign_error_of_an_encoder_becomes_ours() -> None:
    async with working(SteppedEncoder(stepped=False)) as worker:
        with pytest.raises(EncoderError, match="ZeroDivisionError") as caught:
            await worker.encode("alien")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_closing_finishes_the_running_prompt_and_fails_the_queued() -> None:
    encoder = SteppedEncoder()
    worker = EncoderWorker(encoder, observer=Notes())
    outcomes: dict[str, str] = {}

    async def ask(text: str) -> None:
        try:
            await worker.encode(text)
            outcomes[text] = "encoded"
        except EncoderError:
            outcomes[text] = "closed"

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, "running")
        await encoder.entered()
        tasks.start_soon(ask, "queued")
        await queue_all(worker, 1)
        tasks.start_soon(worker.aclose)
        await queue_all(worker, 0)
        encoder.release()
    assert outcomes == {"running": "encoded", "queued": "closed"}
    with pytest.raises(EncoderError, match="is closed"):
        await worker.encode("late")
    assert "headstart-encoder" not in {thread.name for thread in threading.enumerate()}


async def test_closing_a_worker_that_never_worked_is_quiet() -> None:
    await EncoderWorker(SteppedEncoder(), observer=Notes()).aclose()


async def test_a_worker_closes_also_when_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")  # of Python 3.12

    encoder = SteppedEncoder()
    worker = EncoderWorker(encoder, observer=Notes())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.encode, "one")
        await encoder.entered()
        encoder.release(1)
    monkeypatch.setattr(anyio.to_thread, "run_sync", refuse)
    await worker.aclose()
    assert "headstart-encoder" not in {thread.name for thread in threading.enumerate()}


async def test_a_process_that_does_not_close_its_worker_ends_after_the_running_encoding() -> None:
    code = """
        import asyncio, time
        from headstart.embeddings.encoder_worker import EncoderWorker
        from headstart.errors import EncoderError
        from headstart.middleware.observers import Observers

        class Slow:
            def encode(self, text):
                print("begun", text, flush=True)
                time.sleep(0.3)
                print("encoded", text, flush=True)
                raise EncoderError("no model")

        async def leave():
            worker = EncoderWorker(Slow(), observer=Observers(()))
            calls = [asyncio.create_task(worker.encode(text)) for text in "ab"]
            await asyncio.sleep(0.1)

        asyncio.run(leave())
        print("left", flush=True)
    """
    program = [sys.executable, "-c", textwrap.dedent(code)]
    done = await anyio.run_process(program, check=False)
    said = b"begun a\nleft\nencoded a\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, said, b"")


async def test_each_encoding_is_observed_with_its_times() -> None:
    encoder, notes = SteppedEncoder(), Notes()
    ticks = itertools.count()
    worker = EncoderWorker(encoder, observer=notes, clock=lambda: float(next(ticks)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.encode, "one two three")  # queued at 0, started at 1
        await encoder.entered()
        tasks.start_soon(worker.encode, "four")  # queued at 2
        await queue_all(worker, 1)
        encoder.release(2)  # ended at 3; the next from 4 to 5
    await worker.aclose()
    await anyio.lowlevel.checkpoint()
    assert notes.made == [
        Encoded(encode_s=2.0, queue_s=1.0, queue_length=1, tokens=3),
        Encoded(encode_s=1.0, queue_s=2.0, queue_length=0, tokens=1),
    ]


async def test_warming_reaches_the_encoder() -> None:
    encoder = SteppedEncoder(stepped=False)
    async with working(encoder) as worker:
        await worker.warm()
    assert len(encoder.seen) == 2


@pytest.mark.parametrize("background", [False, True])
async def test_a_flood_of_one_tenant_costs_another_one_turn(*, background: bool) -> None:
    encoder = SteppedEncoder()
    async with working(encoder) as worker, anyio.create_task_group() as tasks:

        def ask(text: str, tenant: str) -> None:
            tasks.start_soon(partial(worker.encode, text, background=background, tenant=tenant))

        ask("0", "flood")
        await encoder.entered()
        for number in range(1, 40):
            ask(str(number), "flood")
        await queue_all(worker, 39)
        for text in ("one", "two"):
            ask(text, "quiet")
        await queue_all(worker, 41)
        encoder.release(42)
    assert encoder.seen[:6] == ["0", "one", "1", "two", "2", "3"]
    assert encoder.seen[6:] == [str(number) for number in range(4, 40)]


async def test_the_most_promising_prompt_of_a_tenant_goes_first() -> None:
    encoder = SteppedEncoder()
    async with working(encoder) as worker, anyio.create_task_group() as tasks:
        tasks.start_soon(worker.encode, "0")
        await encoder.entered()
        for text, priority in (("a", 0.1), ("b", 0.9), ("c", 0.1), ("d", 0.9), ("e", 0.5)):
            tasks.start_soon(partial(worker.encode, text, priority=priority))
        await queue_all(worker, 5)
        encoder.release(6)
    assert encoder.seen == ["0", "b", "d", "e", "a", "c"]


async def test_priority_takes_no_turn_of_another_tenant() -> None:
    encoder = SteppedEncoder()
    async with working(encoder) as worker, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(worker.encode, "0", tenant="flood"))
        await encoder.entered()
        for number in range(1, 4):
            ask = partial(worker.encode, str(number), tenant="flood", priority=1.0)
            tasks.start_soon(ask)
        await queue_all(worker, 3)
        tasks.start_soon(partial(worker.encode, "one", tenant="quiet"))
        await queue_all(worker, 4)
        encoder.release(5)
    assert encoder.seen[:2] == ["0", "one"]


async def test_several_threads_encode_at_once_and_background_leaves_one_free() -> None:
    encoder = SteppedEncoder()
    async with working(encoder, threads=3) as worker, anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(partial(worker.encode, f"later {number}", background=True))
        await encoder.entered()
        await encoder.entered()
        await queue_all(worker, 3)
        assert len(encoder.seen) == 2
        tasks.start_soon(worker.encode, "now")
        await encoder.entered()
        assert encoder.seen[2] == "now"
        encoder.release(6)
    assert sorted(encoder.seen) == [*(f"later {number}" for number in range(5)), "now"]


async def test_no_tenant_sees_by_the_time_what_another_one_asked() -> None:
    encoder = SteppedEncoder()
    async with working(encoder) as worker, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(worker.encode, "x", tenant="one"))
        await encoder.entered()
        tasks.start_soon(partial(worker.encode, "x", tenant="two"))
        await queue_all(worker, 1)  # it does not join the one that runs
        encoder.release(3)
        await worker.encode("x", tenant="three")
        assert worker.peek("x", "one") is not None
        assert worker.peek("x", "four") is None
    assert encoder.seen == ["x", "x", "x"]


async def test_lookups_of_a_flood_go_before_what_another_tenant_stores() -> None:
    encoder = SteppedEncoder()
    async with working(encoder) as worker, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(worker.encode, "0", tenant="flood"))
        await encoder.entered()
        tasks.start_soon(partial(worker.encode, "later", background=True, tenant="quiet"))
        for number in range(1, 5):
            tasks.start_soon(partial(worker.encode, str(number), tenant="flood"))
        await queue_all(worker, 5)
        encoder.release(6)
    assert encoder.seen == ["0", "1", "2", "3", "4", "later"]


async def test_a_text_that_another_tenants_flood_holds_up_is_encoded_in_its_own_turn() -> None:
    encoder = SteppedEncoder()
    async with working(encoder) as worker, anyio.create_task_group() as tasks:
        for text in ("0", "1", "2", "shared"):
            tasks.start_soon(partial(worker.encode, text, tenant="flood"))
        await encoder.entered()
        await queue_all(worker, 3)
        tasks.start_soon(partial(worker.encode, "shared", tenant="quiet"))
        await queue_all(worker, 4)
        encoder.release(5)
    assert encoder.seen == ["0", "shared", "1", "2", "shared"]


async def test_one_tenant_may_fill_the_room_and_another_still_has_its_part() -> None:
    encoder = SteppedEncoder()
    async with working(encoder) as worker, anyio.create_task_group() as tasks:
        tasks.start_soon(worker.encode, "first")
        await encoder.entered()
        for number in range(MAX_QUEUE):
            assert not worker.is_full("flood")
            worker_job = partial(worker.encode, str(number), background=True, tenant="flood")
            tasks.start_soon(worker_job)
            await queue_all(worker, number + 1)
        assert worker.is_full("flood")
        admitted = 0
        while not worker.is_full("quiet"):
            quiet = partial(worker.encode, f"q{admitted}", background=True, tenant="quiet")
            tasks.start_soon(quiet)
            admitted += 1
            await queue_all(worker, MAX_QUEUE + admitted)
        assert admitted == MAX_QUEUE // 2
        assert worker.is_full("flood")
        tasks.cancel_scope.cancel()
        encoder.release()
    assert worker.queue_length == 0


async def test_loop_that_closed_stops_nobody_else() -> None:
    encoder = SteppedEncoder()
    worker = EncoderWorker(encoder, observer=Notes())

    async def abandon() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.encode, "orphan")
            await encoder.entered()
            tasks.cancel_scope.cancel()

    async def take_over() -> Encoding:
        encoder.release(2)
        await worker.encode("heir")
        found = await worker.encode("orphan")
        await worker.aclose()
        return found

    await to_thread.run_sync(asyncio.run, abandon())
    encoding = await to_thread.run_sync(asyncio.run, take_over())
    assert encoding.complete
    assert encoder.seen == ["orphan", "heir"]


# --- cores ----------------------------------------------------------------------------------------

SYSTEMD = "0::/system.slice/headstart.service\n"
DOCKER_1 = "5:memory:/docker/1f\n4:cpu,cpuacct:/docker/1f\n0::/\n"
POD = "/kubepods.slice/pod7.slice/cri-1f.scope"


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        (SYSTEMD, {"system.slice/headstart.service/cpu.max": "200000 100000\n"}, 2),
        (SYSTEMD, {"system.slice/headstart.service/cpu.max": "max 100000\n"}, 8),
        (SYSTEMD, {"system.slice/headstart.service/cpu.max": "390000 100000\n"}, 3),
        (SYSTEMD, {"system.slice/headstart.service/cpu.max": "50000 100000\n"}, 1),
        (SYSTEMD, {"system.slice/headstart.service/cpu.max": "9900000 100000\n"}, 8),
        (SYSTEMD, {"system.slice/cpu.max": "300000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "100000 50000\n"}, 2),
        (f"0::{POD}\n", {"cpu.max": "100000 100000\n"}, 1),
        (DOCKER_1, {"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "50000\n"}, 3),
        (DOCKER_1, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        (
            DOCKER_1,
            {
                "cpu/docker/1f/cpu.cfs_quota_us": "200000\n",
                "cpu/docker/1f/cpu.cfs_period_us": "100000\n",
                "cpu/cpu.cfs_quota_us": "-1\n",
                "cpu/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        (DOCKER_1, {}, 8),
        ("0::/\n", {"cpu.max": "garbled"}, 8),
        ("0::/\n", {"cpu.max": "50000 0\n"}, 8),
        ("garbled\n\n0::/\n", {"cpu.max": "300000 100000\n"}, 3),
        ("0::/gr\udcfc\udcdf\n", {"cpu.max": "300000 100000\n"}, 3),
        (None, {}, 8),
    ],
)
async def test_a_limit_of_cpu_time_counts_as_cores(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    groups: str | None,
    files: dict[str, str],
    cores: int,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert await to_thread.run_sync(_cores, tmp_path, groups, files) == cores


def _cores(root: Path, groups: str | None, files: dict[str, str]) -> int:
    if groups is not None:
        files = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
        files["proc/self/cgroup"] = groups
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, "utf-8", "surrogateescape")
    return available_cores(root)
