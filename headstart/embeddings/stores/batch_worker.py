"""A thread that runs jobs of an event loop in batches.

An executor wakes its thread and the loop once for each call. Here both wake once for all jobs that
came together. Under load the jobs share the cost of the two wake-ups, and a writer gets group
commits.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headstart.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Job = TypeVar("Job")
Result = TypeVar("Result")

BATCH = 256
"""The largest number of jobs in one batch: the first job waits for the last."""


class BatchWorker(Generic[Job, Result]):
    """Runs jobs on its own thread. One event loop submits them.

    ``run`` gets the jobs that came together, in their order, and returns a result or an exception
    for each. With ``tick_s`` it is also called without jobs if none came for that time. Such a call
    has no caller, so its failure is ignored.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Sequence[Job]], Sequence[Result | Exception]],
        *,
        tick_s: float | None = None,
    ) -> None:
        self._run = run
        self._tick_s = tick_s
        self._jobs: queue.SimpleQueue[tuple[Job, asyncio.Future[Result]] | None] = (
            queue.SimpleQueue()
        )
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._closing = False
        # A daemon: a process that ends without aclose() must not hang, and a commit is atomic.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    async def submit(self, job: Job) -> Result:
        """Run a job after the earlier ones. A job whose caller is cancelled runs all the same."""
        if self._closing:
            raise StoreError("the store is closed")
        future: asyncio.Future[Result] = self._loop.create_future()
        self._jobs.put((job, future))
        return await future

    async def aclose(self) -> None:
        """Run all submitted jobs, then end the thread. May be called twice."""
        if not self._closing:
            self._closing = True
            self._jobs.put(None)
        await asyncio.shield(self._ended)

    def _serve(self) -> None:
        closing = False
        while not closing:
            batch, closing = self._collect()
            outcomes = self._outcomes([job for job, _ in batch])
            if batch:
                self._deliver([future for _, future in batch], outcomes)
        self._deliver([self._ended], [None])

    def _collect(self) -> tuple[list[tuple[Job, asyncio.Future[Result]]], bool]:
        """Wait for a job or a tick; return the jobs that came, and whether they are the last."""
        batch: list[tuple[Job, asyncio.Future[Result]]] = []
        with contextlib.suppress(queue.Empty):
            item = self._jobs.get(timeout=self._tick_s)
            while item is not None:
                batch.append(item)
                if len(batch) == BATCH:
                    return batch, False
                item = self._jobs.get_nowait()
            return batch, True
        return batch, False

    def _outcomes(self, jobs: Sequence[Job]) -> Sequence[Result | Exception]:
        try:
            return self._run(jobs)
        except Exception as error:  # noqa: BLE001 - each caller gets it; the thread continues
            return [error] * len(jobs)

    def _deliver(self, futures: Sequence[asyncio.Future[Any]], outcomes: Sequence[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
            self._loop.call_soon_threadsafe(_resolve, futures, outcomes)


def _resolve(futures: Sequence[asyncio.Future[Any]], outcomes: Sequence[Any]) -> None:
    for future, outcome in zip(futures, outcomes, strict=True):
        if future.done():  # its caller was cancelled
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
