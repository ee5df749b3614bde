"""Any ASGI app under a real uvicorn on a free loopback port.

``serving`` runs it in the caller's own loop, for async tests; ``serving_in_thread`` in a thread
with a loop of its own, for synchronous clients. Both yield the base URL once the app's lifespan
has started, and on exit wait until its lifespan and its connections have ended. Both hold the
app to ASGI as ``Conforming`` does: a message that a strict host would refuse fails the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import socket
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import uvicorn

from headstart.lab.simulator.app import FastStopServer
from support.conforming import Conforming

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    # Each framework has its own types for scope, receive and send.
    ASGIApp = Callable[[Any, Any, Any], Awaitable[None]]

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10
"""Connections that are still open this long after the end of the test are cut."""
KEPT_ALIVE_S = 60
"""Long, because on a busy machine a client may wait longer than uvicorn's 5 s, and then send on a
connection that has just been closed."""


def bind_free_port() -> socket.socket:
    """Return a socket bound to a free loopback port; the caller closes it."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.bind(("127.0.0.1", 0))
    return bound


def listens(port: int) -> bool:
    """Tell whether a server accepts connections on a loopback port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def free_port() -> int:
    """Return a free loopback port for a server that the test starts soon.

    The system chooses ports above 32767 for ``bind_free_port`` and for connections, so it takes
    none of these. Each worker of pytest has its own thousand.
    """
    for port in _PORTS:
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as bound,
        ):
            bound.bind(("127.0.0.1", port))
            return port
    raise AssertionError("unreachable: the ports are a cycle")


def _own_ports() -> list[int]:
    """Return the ports of this worker in a random order: two runs of pytest may share a machine."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = 20_000 + 1000 * (worker % 12)
    return random.sample(range(first, first + 1000), 1000)


_PORTS = itertools.cycle(_own_ports())


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, **options: Any) -> AsyncIterator[str]:
    """Serve ``app`` in this loop and yield its base URL. ``options`` go to ``uvicorn.Config``."""
    checked = Conforming(app)
    with bind_free_port() as bound:
        server = _Server(_config(checked, options))
        # Not a task group: it would wrap a failure of the test's own body in an ExceptionGroup.
        task = asyncio.create_task(server.serve(sockets=[bound]))  # noqa: TID251
        try:
            await asyncio.wait_for(asyncio.wrap_future(server.ready), START_TIMEOUT_S)
            yield _base_url(bound, server.config)
        finally:
            server.stop()
            await task
    assert not checked.violations


@contextlib.contextmanager
def serving_in_thread(app: ASGIApp, **options: Any) -> Iterator[str]:
    """Serve ``app`` in a thread with its own loop and yield its base URL."""
    checked = Conforming(app)
    with bind_free_port() as bound:
        server = _Server(_config(checked, options))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, name="uvicorn")
        url = _base_url(bound, server.config)
        thread.start()
        try:
            server.ready.result(START_TIMEOUT_S)
            yield url
        finally:
            server.stop()
            thread.join()
    assert not checked.violations


class _Server(FastStopServer):
    """A uvicorn server that tells when it is ready, stops at once and handles no signals."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready: Future[None] = Future()
        self._stop: Callable[[], object] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit:
            self.should_exit = True
            self.ready.set_exception(RuntimeError("the app's lifespan failed to start"))

    async def main_loop(self) -> None:
        await self.on_tick(0)
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._stop = lambda: loop.call_soon_threadsafe(stopped.set)
        self.ready.set_result(None)
        await stopped.wait()

    def stop(self) -> None:
        """End ``main_loop``. May be called from any thread, also if the loop never started."""
        self.should_exit = True
        if self._stop is not None:
            self._stop()


def _config(app: ASGIApp, options: dict[str, Any]) -> uvicorn.Config:
    defaults: dict[str, Any] = {
        "lifespan": "on",
        "log_config": None,
        "access_log": False,
        "timeout_graceful_shutdown": STOP_TIMEOUT_S,
        "timeout_keep_alive": KEPT_ALIVE_S,
    }
    return uvicorn.Config(app, **(defaults | options))


def _base_url(bound: socket.socket, config: uvicorn.Config) -> str:
    host, port = bound.getsockname()
    scheme = "https" if config.ssl_certfile else "http"
    return f"{scheme}://{host}:{port}"
