"""Serves the sidecar on a listening socket, alone or as one of several workers, and reloads it."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, cast

import uvicorn

from headstart.errors import HeadstartError
from headstart.middleware.concurrency import Supervisor
from headstart.middleware.http_protocol import (
    BoundedHeadProtocol,
    DrainingServer,
    websocket_protocol,
)
from headstart.observe import access_logger
from headstart.sidecar import settle_memory
from headstart.sockets import room_for_connections

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Awaitable, Callable

    from headstart.cli.acceptor import Acceptor, ConnectionShare
    from headstart.settings import ServerSettings, Settings
    from headstart.sidecar import Sidecar


class SidecarServer:
    """A uvicorn for one sidecar. ``run`` returns when the server has stopped.

    ``on_start`` is called once it accepts connections, ``on_drain`` when it begins to drain.
    ``share`` is a worker's place among those that accept on the same socket.
    """

    def __init__(
        self,
        sidecar: Sidecar,
        listening: socket.socket,
        *,
        log_level: str,
        on_start: Callable[[SidecarServer], Awaitable[None]],
        on_drain: Callable[[ServerSettings], object],
        share: ConnectionShare | None = None,
    ) -> None:
        self._sidecar = sidecar
        self._listening = listening
        self._on_start = on_start
        self._on_drain = on_drain
        self._share = share
        self._failure: HeadstartError | None = None
        self._tasks = Supervisor()
        self.spawn = self._tasks.spawn

        class Protocol(BoundedHeadProtocol):
            """The limits of this server."""

        self._protocol = Protocol
        self._config = uvicorn.Config(
            sidecar,
            log_level=log_level,
            access_log=False,
            # server.trusted_proxies decides about proxy headers, by the real peer.
            proxy_headers=False,
            # The upstream's Date and Server headers pass, so uvicorn must not add its own.
            date_header=False,
            server_header=False,
            http=Protocol,
            ws=cast("type[asyncio.Protocol]", websocket_protocol),
            ws_per_message_deflate=False,  # it costs more time than it saves, and much memory
            lifespan="on",
            # Longer than clients keep idle connections (httpx: 5 s). If the server closed a
            # connection first, a request could be on its way already.
            timeout_keep_alive=75,
        )
        self._apply(sidecar.settings.server)

    def _apply(self, server: ServerSettings) -> None:
        """Take over the limits that the HTTP server enforces itself."""
        self._protocol.head_timeout_s = server.head_timeout_s
        self._protocol.max_connections = server.max_connections or room_for_connections()
        if server.access_log != "off":
            _show_access_log()
        self._config.ws_max_size = server.max_body_bytes
        self._config.timeout_graceful_shutdown = int(server.shutdown_s) + 1

    async def replace(self, settings: Settings) -> None:
        """Serve new requests by other settings. Raises HeadstartError: nothing has changed."""
        await self._sidecar.replace(settings)
        self._apply(settings.server)

    def run(self) -> None:
        """Serve until a signal ends it. Raises HeadstartError when it cannot start."""
        outer = self

        class Server(DrainingServer):
            _acceptor: Acceptor | None = None

            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                # Before uvicorn's own start-up, which would print a traceback over the reason.
                try:
                    await outer._sidecar.running()
                except HeadstartError as error:
                    outer._failure = error
                    self.should_exit = True
                    return
                settle_memory()
                await super().startup(sockets if outer._share is None else [])
                if outer._share is not None:
                    self._acceptor = outer._share.accept(
                        outer._listening,
                        open_now=lambda: len(self.server_state.connections),
                        make=self._protocol,
                    )
                await outer._on_start(outer)

            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                if self._acceptor is not None:
                    await self._acceptor.aclose()
                await super().shutdown(sockets)
                await outer._tasks.aclose()

            def _protocol(self) -> asyncio.Protocol:
                return outer._protocol(
                    config=self.config,
                    server_state=self.server_state,
                    app_state=self.lifespan.state,
                )

        def begin_to_drain() -> None:
            self._sidecar.draining = True
            self._on_drain(self._sidecar.settings.server)

        server = Server(
            self._config,
            drain_s=lambda: self._sidecar.settings.server.effective_drain_s,
            on_drain=begin_to_drain,
        )
        server.run([self._listening])
        if self._failure is not None:
            raise self._failure


def _show_access_log() -> None:
    """Write the lines of the access log to standard output, as they are."""
    if access_logger.handlers:
        return
    lines = logging.StreamHandler(sys.stdout)
    lines.setFormatter(logging.Formatter("%(message)s"))
    access_logger.addHandler(lines)
    access_logger.setLevel(logging.INFO)
    access_logger.propagate = False
