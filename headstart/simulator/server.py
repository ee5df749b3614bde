"""Serves a simulator over real sockets with uvicorn, in this event loop or as a program."""

from __future__ import annotations

import errno
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headstart.errors import ConfigError
from headstart.simulator.app import TRANSPORT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from headstart.simulator.app import Simulator


_BACKLOG = 2048


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
        backlog=_BACKLOG,
        timeout_graceful_shutdown=1,
    )


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 picks a free one. Raises ConfigError when it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol spelled out asyncio sets TCP_NODELAY; without it small writes wait 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} on {host} is already in use; choose another one with --port"
            ) from error
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    return sock


def url_of(sock: socket.socket) -> str:
    """Return the base URL of a listening socket, without a path."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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
