"""What every test gets: the asyncio backend, a real server, and three detectors.

An async test marked ``virtual_clock`` runs on ``support.virtual_clock``.

In a test marked ``anyio`` a blocking call made by our code on the loop is an error, and so are a
task or a socket that outlives the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from typing import TYPE_CHECKING

import pytest
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, settings

from headstart.middleware.concurrency import Supervisor
from support.leaks import leaked_sockets, leaked_tasks, open_sockets
from support.serving import free_port, serving
from support.virtual_clock import VirtualClockLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from support.serving import ASGIApp

# The time of an example depends on how busy the machine is, so there is no deadline.
settings.register_profile("headstart", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headstart")
# A shell lets processes in the background ignore Ctrl-C. Without this line the commands that a test
# starts would inherit that, and the test could not interrupt them.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without the garbage collector: modules and tests stay, so it would free little."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, object]]:
    """Headstart runs under asyncio only, because aiohttp and uvicorn do."""
    virtual = request.node.get_closest_marker("virtual_clock")
    return "asyncio", {"loop_factory": VirtualClockLoop} if virtual else {}


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    """A supervisor, which is closed after the test."""
    owner = Supervisor()
    yield owner
    await owner.aclose()


@pytest.fixture(name="free_port")
def port_for_a_server() -> int:
    """A port for a server that binds it itself."""
    return free_port()


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[ASGIApp], Awaitable[str]]]:
    """Serve apps for real in the test's loop; awaiting the fixture's value starts one."""
    async with contextlib.AsyncExitStack() as servers:

        async def start(app: ASGIApp) -> str:
            return await servers.enter_async_context(serving(app))

        yield start


@pytest.fixture(autouse=True)
def watch_loop(request: pytest.FixtureRequest) -> None:
    """Switch the detectors on for async tests. It is set up first, so it is torn down last."""
    if request.node.get_closest_marker("anyio"):
        request.getfixturevalue("no_leaks")
        request.getfixturevalue("no_blocking_calls")


@pytest.fixture
async def no_leaks() -> AsyncIterator[None]:
    """Fail when a task or a socket of the test outlives it."""
    tasks_before = frozenset(asyncio.all_tasks())
    sockets_before = open_sockets()
    yield
    assert not await leaked_tasks(tasks_before), "tasks were left running"
    assert not await leaked_sockets(sockets_before), "sockets were left open"


@pytest.fixture
def no_blocking_calls() -> Iterator[None]:
    """Raise BlockingError where our code blocks the loop: file, lock, socket, sleep, SQLite."""
    with blockbuster_ctx("headstart"):
        yield
