"""Several worker processes on one port, and the parent process that keeps them running.

The parent process opens the listening socket and gives it to each worker. So a worker that dies
takes no waiting connection with it: the others accept it.

``WorkerPool`` is the parent process. For each worker it does the following:

1. ``_run_one`` starts a process with ``headstart.cli.worker``, and sends it a ``WorkerTask``. The
   other workers wait until the first one is ready.
2. The worker says that it is ready (``_now_ready``), and both processes ask each other questions
   (``_answer``, and the table in ``worker_channel.py``).
3. If the worker ends, ``_keep`` starts another one. If workers cannot start, ``_gives_up`` ends the
   server.

``_stop`` passes SIGTERM and SIGINT on. Workers have no other memory in common than the pages of
``shared_memory``.
"""

from __future__ import annotations

import sys

assert sys.platform != "win32", "Windows runs one worker"

import asyncio
import contextlib
import mmap
import os
import signal
import socket
import tempfile
import time
from array import array
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.cli.options import print_line
from headstart.cli.reload import ReloadOnSignal
from headstart.cli.sidecar_server import GONE
from headstart.cli.worker_channel import (
    LEASES_BYTES,
    Channel,
    ChannelClosed,
    ExchangeMessage,
    LeaseTable,
)
from headstart.config.checks import refuse_fixed
from headstart.errors import HeadstartError
from headstart.middleware.upstreams.shared_states import MEMORY_BYTES
from headstart.observe import logger
from headstart.settings import Settings  # noqa: TC001 - msgspec reads it
from headstart.sockets import bind

if TYPE_CHECKING:
    from collections.abc import Callable


STABLE_S = 10.0
"""A worker that ends after it served this long is replaced at once."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
"""The wait before a worker that served for a shorter time is replaced. It doubles each time."""
MOST_DEATHS = 5
"""The parent process gives up after this number of workers in a row that ended before they were
ready, if no other serves."""
ANSWER_S = 2.0
"""Longest wait for a worker's figures, or until it takes a message."""
START_S = 300.0
"""Longest wait for a worker's new engine."""
KILL_S = 10.0
"""Workers that still run this long after the time for their last answers are killed."""


def share_of(settings: Settings, index: int, count: int) -> Settings:
    """Return the settings of one of ``count`` workers: the machine's limits are divided.

    For example, of 10 calls at the same time the workers 0 and 1 of four get 3, and the others 2.
    """
    from headstart.embeddings.encoder_worker import spare_threads

    def part(limit: int, least: int = 1) -> int:
        """Return this worker's part of a limit. The first workers get what is left over."""
        return max(least, limit // count + (index < limit % count))

    server, cache = settings.server, settings.cache
    audit, judge, kept = cache.audit, cache.judge, server.conversations
    replace = msgspec.structs.replace

    def budget(calls: int | None, usd: float | None) -> dict[str, Any]:
        """Return the fields of a budget of our own calls; None: it has no limit."""
        return {
            "max_calls_per_hour": None if calls is None else part(calls, 0),
            "max_usd_per_day": None if usd is None else usd / count,
        }

    return replace(
        settings,
        server=replace(
            server,
            max_connections=server.max_connections and part(server.max_connections),
            max_concurrency=part(server.max_concurrency),
            max_relays=part(server.max_relays),
            max_websockets=part(server.max_websockets),
            max_queue=part(server.max_queue, 0),
            conversations=replace(
                kept, max_answers=part(kept.max_answers), max_bytes=part(kept.max_bytes)
            ),
        ),
        cache=replace(
            cache,
            hot_bytes=part(cache.hot_bytes, 0),
            audit=replace(audit, **budget(audit.max_calls_per_hour, audit.max_usd_per_day)),
            judge=judge
            and replace(judge, **budget(judge.max_calls_per_hour, judge.max_usd_per_day)),
        ),
        encoder=replace(
            settings.encoder, threads=part(settings.encoder.threads or spare_threads())
        ),
    )


_LASTING = ("metrics", "counts")
"""The questions (``show``) about sums that must not fall when a worker ends."""


class WorkerTask(msgspec.Struct):
    """The task that a worker reads from its standard input at its start."""

    settings: Settings
    index: int
    count: int
    log_level: str
    listening: int
    """The number of the open file that is the listening socket."""
    channel: int
    """The number of the open file that is the worker's end of its channel."""
    shared: int
    """The number of the open file of ``shared_memory``."""


def shared_memory(count: int) -> tuple[int, memoryview]:
    """Return the open file that is the memory of all workers, and its counts of connections.

    The counts are on its first page (``connection_counts``). The states of upstreams begin on the
    second page (``shared_states.py``), and the leases of calls follow them (``lease_table``).
    """
    if hasattr(os, "memfd_create"):
        shared = os.memfd_create("headstart")
    else:
        with tempfile.TemporaryFile() as file:
            shared = os.dup(file.fileno())
    os.ftruncate(shared, mmap.PAGESIZE + MEMORY_BYTES + LEASES_BYTES)
    counts = connection_counts(shared, count)
    counts[:] = memoryview(array("q", [GONE] * count))
    return shared, counts


def connection_counts(shared: int, count: int) -> memoryview:
    """Return the number of connections of each of ``count`` workers, in shared memory."""
    return memoryview(mmap.mmap(shared, mmap.PAGESIZE)).cast("q")[:count]


def lease_table(shared: int) -> LeaseTable:
    """Return the leases of calls of all workers, in shared memory."""
    return LeaseTable(shared, mmap.PAGESIZE + MEMORY_BYTES, time.monotonic)


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker process and the parent process's end of its channel."""

    index: int
    process: asyncio.subprocess.Process
    channel: Channel
    settings: Settings
    """The settings that it has, or will have when it is ready."""
    ready_at: float | None = None
    """The monotonic time since which it serves; None: it does not serve yet."""
    reported: dict[str, bytes] = field(default_factory=dict)
    """Its last answers to the questions ``_LASTING``."""


@dataclass(eq=False, repr=False)
class WorkerPool:
    """Keeps ``count`` workers running until a signal ends them; ``run`` returns the exit status.

    ``load`` reads the configuration again. ``banner`` gets the port, and is printed when all
    workers are ready.
    """

    settings: Settings
    listening: socket.socket
    _: KW_ONLY
    count: int
    load: Callable[[], Settings]
    log_level: str
    banner: Callable[[int], str]
    _workers: dict[int, _Worker] = field(default_factory=dict)
    _reloading: asyncio.Lock = field(default_factory=asyncio.Lock)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _started: asyncio.Event = field(default_factory=asyncio.Event)
    """The first worker is ready, or never will be."""
    _announced: bool = False
    """The banner was printed: all workers were ready once."""
    _early_deaths: int = 0
    """The workers that ended before they were ready, since the last one was ready."""
    _status: int = 0
    _ended: dict[str, bytes] = field(default_factory=dict)
    """The last answers of all ended workers to the questions ``_LASTING``, merged."""

    def __post_init__(self) -> None:
        self._shared, self._counts = shared_memory(self.count)
        self._leases = lease_table(self._shared)

    async def run(self) -> int:
        """Run the workers."""
        loop = asyncio.get_running_loop()
        for sent in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sent, self._stop, sent)
        self.listening.set_inheritable(True)
        async with asyncio.TaskGroup() as tasks:
            reloads = ReloadOnSignal(self._reload, partial(self._stop, signal.SIGTERM))
            self._reload_and_log = reloads
            reloads.listen(lambda function: tasks.create_task(function()))
            keepers = [tasks.create_task(self._keep(index)) for index in range(self.count)]
            await self._stopping.wait()
            server = self.settings.server
            await asyncio.wait(
                keepers, timeout=server.effective_drain_s + server.shutdown_s + KILL_S
            )
            self._kill_the_rest()
        return self._status

    async def _keep(self, index: int) -> None:
        """Run one worker, and another one whenever it has ended."""
        deaths = 0  # in a row, each within ``STABLE_S``
        while not self._stopping.is_set():
            served_s, status = await self._run_one(index)
            if self._stopping.is_set() or self._gives_up(index, served_s, status):
                return
            deaths = 0 if served_s >= STABLE_S else deaths + 1
            wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (deaths - 1)) if deaths else 0.0
            logger.warning(
                "worker %d ended (%s); another starts in %.1f s", index, _end_text(status), wait_s
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._stopping.wait()

    async def _run_one(self, index: int) -> tuple[float, int]:
        """Run one worker until it ends; return how long it served, and its exit status."""
        ours, theirs = socket.socketpair()
        files = (self.listening.fileno(), theirs.fileno(), self._shared)
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "headstart.cli.worker",
                stdin=asyncio.subprocess.PIPE,
                pass_fds=files,
                # Ctrl-C in a terminal goes to the parent process alone, which passes it on.
                start_new_session=True,
            )  # fmt: skip
        channel = await Channel.over(ours, partial(self._answer, index))
        worker = self._workers[index] = _Worker(index, process, channel, self.settings)
        if index:
            # Only the first one creates the store, and reports errors in the settings.
            await self._started.wait()
            worker.settings = self.settings
        task = WorkerTask(worker.settings, index, self.count, self.log_level, *files)
        assert process.stdin is not None
        process.stdin.write(msgspec.msgpack.encode(task))
        process.stdin.close()
        if self._stopping.is_set():
            process.terminate()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(channel.run())
            status = await process.wait()
            channel.close()
        self._forget(worker)
        return 0.0 if worker.ready_at is None else time.monotonic() - worker.ready_at, status

    def _forget(self, worker: _Worker) -> None:
        """Free what an ended worker held, and keep its lasting figures."""
        del self._workers[worker.index]
        self._leases.drop(worker.index)
        self._counts[worker.index] = GONE
        for what, last in worker.reported.items():
            from headstart.middleware.admin_state import merge_ended

            before = self._ended.get(what)
            self._ended[what] = last if before is None else merge_ended(what, (before, last))

    def _gives_up(self, index: int, served_s: float, status: int) -> bool:
        """Stop the server if no worker serves and none can start.

        Before all workers were ready once, one death is enough: the settings may be wrong. Later
        the cause may pass, so it takes ``MOST_DEATHS``.
        """
        self._early_deaths = 0 if served_s else self._early_deaths + 1
        may_pass = self._announced and self._early_deaths < MOST_DEATHS
        if served_s or self._ready_workers() or may_pass:
            return False
        logger.error(
            "worker %d ended at its start (%s) and no other serves, so the server stops",
            index,
            _end_text(status),
        )
        self._status = status if status > 0 else 1
        self._stop(signal.SIGTERM)
        return True

    def _stop(self, sent: int) -> None:
        """Pass a signal on to all workers, and start no other."""
        if sent == signal.SIGINT and not self._status:
            self._status = 128 + sent
        # Otherwise connections would wait here after the workers closed their copies.
        self.listening.close()
        self._stopping.set()
        self._started.set()
        for worker in self._workers.values():
            with contextlib.suppress(ProcessLookupError):
                worker.process.send_signal(sent if worker.ready_at is not None else signal.SIGTERM)

    def _kill_the_rest(self) -> None:
        """Kill the workers that did not stop in time."""
        for worker in self._workers.values():
            logger.error("worker %d does not stop, and is killed", worker.index)
            with contextlib.suppress(ProcessLookupError):
                worker.process.kill()

    # --- what workers ask -------------------------------------------------------------------------

    async def _answer(self, index: int, kind: str, payload: bytes) -> bytes:
        """Answer a question of a worker: see the table in ``worker_channel.py``."""
        if kind == "ready":
            await self._now_ready(self._workers[index])
        elif kind == "learned":
            for worker in self._ready_workers():
                if worker.index != index:
                    worker.channel.tell("learn", payload)
        elif kind == "reload":
            await self._reload_and_log()
        elif kind == "gather":
            return await self._gather(payload.decode())
        elif kind == "send":
            return await self._pass_on(payload)
        return b""

    async def _pass_on(self, payload: bytes) -> bytes:
        """Pass a message on to a worker; return b"" if it is not there."""
        worker = self._workers.get(msgspec.msgpack.decode(payload, type=ExchangeMessage).worker)
        with contextlib.suppress(HeadstartError, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                return b"" if worker is None else await worker.channel.ask("mail", payload)
        return b""

    async def _now_ready(self, worker: _Worker) -> None:
        """Note that a worker serves. When all do, print the banner."""
        worker.ready_at = time.monotonic()
        self._early_deaths = 0
        self._started.set()
        # The configuration was reloaded while the worker started.
        if worker.settings is not self.settings:
            await self._hand_over(worker, self.settings)
        if not self._announced and self.count == len(self._ready_workers()):
            self._announced = True
            print_line(self.banner(self.listening.getsockname()[1]))

    def _ready_workers(self) -> list[_Worker]:
        return [each for each in self._workers.values() if each.ready_at is not None]

    async def _gather(self, what: str) -> bytes:
        """Return the answers of all workers to one question about their figures."""
        answers: list[bytes] = []

        async def ask(worker: _Worker) -> None:
            with contextlib.suppress(HeadstartError, TimeoutError):
                async with asyncio.timeout(ANSWER_S):
                    answer = await worker.channel.ask("show", what.encode())
                answers.append(answer)
                if what in _LASTING:
                    worker.reported[what] = answer

        async with asyncio.TaskGroup() as tasks:
            for worker in self._ready_workers():
                tasks.create_task(ask(worker))
        ended = [self._ended[what]] if what in self._ended else []
        return msgspec.msgpack.encode({"live": answers, "ended": ended})

    # --- reload -----------------------------------------------------------------------------------

    async def _reload(self) -> None:
        """Let all workers serve with the present configuration.

        Raises HeadstartError if a worker refuses it; then all serve as before.
        """
        async with self._reloading:
            settings = await asyncio.to_thread(self.load)
            refuse_fixed(self.settings, settings)
            done: list[_Worker] = []
            for worker in self._ready_workers():
                try:
                    await self._hand_over(worker, settings)
                except ChannelClosed:
                    continue  # the worker ended, and the next one starts with the new settings
                except HeadstartError:
                    for changed in done:
                        await self._hand_over(changed, self.settings)
                    raise
                done.append(worker)
            self.settings = settings
        print_line("the configuration was reloaded")

    async def _hand_over(self, worker: _Worker, settings: Settings) -> None:
        """Let a worker serve with other settings. Raises HeadstartError."""
        async with asyncio.timeout(START_S):
            await worker.channel.ask("replace", msgspec.msgpack.encode(settings))
        worker.settings = settings


def _end_text(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):
        return f"by {signal.Signals(-status).name}"
    return f"by signal {-status}"


def run_workers(
    settings: Settings,
    count: int,
    *,
    load: Callable[[], Settings],
    log_level: str,
    banner: Callable[[int], str],
) -> None:
    """Serve with several processes until interrupted. Exits with their status if they fail."""
    with bind(settings.server.host, settings.server.port) as listening:
        pool = WorkerPool(
            settings, listening, count=count, load=load, log_level=log_level, banner=banner
        )
        status = asyncio.run(pool.run())
    if status:
        sys.exit(status)
