"""Serves a simulator over real sockets with uvicorn, in this event loop or as a program."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headstart.simulator.app import TRANSPORT
from headstart.sockets import BACKLOG, bind, url_of

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable

    from headstart.simulator.app import Simulator


class _Protocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, handing the app its transport so that it can break connections."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        extensions: dict[str, Any] = {TRANSPORT: self.transport}
        self.scope["extensions"] = extensions


def _configure(simulator: Simulator) -> uvicorn.Config:
    return uvicorn.Config(
        simulator,
        http=_Protocol,
        lifespan="off",
        log_level="critical",
        access_log=False,
        server_header=False,
        ws="none",
        backlog=BACKLOG,
        timeout_graceful_shutdown=1,
    )


@asynccontextmanager
async def serve(simulator: Simulator, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve in the running event loop for the length of the block; yields the base URL.

    Append ``/v1`` for an OpenAI client. Leaving aborts what is still in flight.
    """
    sock = bind(host, port)
    config = _configure(simulator)
    config.load()
    server = uvicorn.Server(config)
    # startup and shutdown are all of ``serve`` but signal handlers and a ticking task.
    server.lifespan = config.lifespan_class(config)
    await server.startup([sock])
    try:
        yield url_of(sock)
    finally:
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        await server.shutdown([sock])


class _Program(uvicorn.Server):
    """A server that says when it serves, by which time the signals are in its hands."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()


def run(simulator: Simulator, sock: socket.socket, announce: Callable[[], None]) -> None:
    """Call ``announce`` once it serves. SIGINT raises KeyboardInterrupt, SIGTERM ends us."""
    _Program(_configure(simulator), announce).run([sock])
