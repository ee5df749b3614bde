"""Finds tasks, sockets and requests that a test began and did not end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from headstart.middleware.request_context import RequestContext
from headstart.middleware.upstreams.attempt_group import CallTask

if TYPE_CHECKING:
    from collections.abc import Iterator

DESCRIPTORS = Path("/dev/fd")

SETTLE_S = 1.0
"""A cancelled task or closed socket may need some turns of the loop to end. One that still lives
after this time is a leak."""
TURNS = 50


def open_sockets() -> frozenset[int]:
    """Return the inodes of this process's sockets. Empty where the system has no ``/dev/fd``."""
    inodes = set()
    for descriptor in DESCRIPTORS.iterdir() if DESCRIPTORS.is_dir() else ():
        with contextlib.suppress(OSError):  # the listing's own descriptor, closed by now
            status = os.fstat(int(descriptor.name))
            if stat.S_ISSOCK(status.st_mode):
                inodes.add(status.st_ino)
    return frozenset(inodes)


async def leaked_tasks(
    before: frozenset[asyncio.Task[object]], settle_s: float = SETTLE_S
) -> list[str]:
    """Wait up to ``settle_s`` for tasks begun since ``before``; return the names of the others."""
    started = asyncio.all_tasks() - before - {asyncio.current_task()}
    ours = [task for task in started if not _is_runner(task)]
    if not ours:
        return []
    await asyncio.wait(ours, timeout=settle_s)
    for _ in range(TURNS):  # on a busy machine the process may have had no turn during the wait
        await asyncio.sleep(0)
    pending = (task for task in ours if not task.done())
    return sorted(f"{task.get_name()}: {task.get_coro()!r}" for task in pending)


async def leaked_sockets(before: frozenset[int], settle_s: float = SETTLE_S) -> int:
    """Wait up to ``settle_s`` for sockets opened since ``before``; return how many stayed open."""
    for _ in range(TURNS):
        if not open_sockets() - before:
            return 0
        await asyncio.sleep(settle_s / TURNS)
    return len(open_sockets() - before)


@contextlib.contextmanager
def requests_leave_memory() -> Iterator[None]:
    """Fail if requests or calls of this block stay in memory until Python looks for cycles."""
    before = _requests_in_memory()  # other tests may have left some
    gc.disable()
    try:
        yield
        left = _requests_in_memory() - before
    finally:
        gc.enable()
    assert not left


def _requests_in_memory() -> set[int]:
    return {id(each) for each in gc.get_objects() if type(each) in (RequestContext, CallTask)}


def _is_runner(task: asyncio.Task[object]) -> bool:
    """Return whether the task is anyio's runner, which waits for the calling test or fixture."""
    return getattr(task.get_coro(), "__qualname__", "").startswith("TestRunner.")
