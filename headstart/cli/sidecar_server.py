"""Serves the sidecar on a listening socket, alone or as one of several workers, and reloads it.

``SidecarServer`` is the server of one process. With several workers, an ``Acceptor`` in each worker
accepts its connections. The acceptors spread them: the worker with the fewest takes the next. For
example, worker A has 3 connections and worker B has 5. A takes a new connection, and B leaves it
to A. If A is busy, B takes it after ``YIELD_S``.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import uvicorn

from headstart.cli.options import end
from headstart.errors import HeadstartError
from headstart.middleware.concurrency import Supervisor
from headstart.middleware.http_protocol import (
    BoundedHeadProtocol,
    DrainingServer,
    websocket_protocol,
)
from headstart.observe import access_logger, logger
from headstart.sidecar import Sidecar, settle_memory
from headstart.sockets import room_for_connections

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable
    from types import FrameType

    from headstart.settings import ServerSettings, Settings


SERVER_OPTIONS: dict[str, Any] = {
    "access_log": False,
    # server.trusted_proxies decides about proxy headers, by the real peer.
    "proxy_headers": False,
    "server_header": False,
    "ws": websocket_protocol,
    # Compression costs more time than it saves, and much memory.
    "ws_per_message_deflate": False,
    # Longer than clients keep idle connections (httpx: 5 s). If the server closed a connection
    # first, a request could be on its way already.
    "timeout_keep_alive": 75,
}
"""Options of ``uvicorn.Config`` for a sidecar."""


class SidecarServer(DrainingServer):
    """A uvicorn for one sidecar. ``run`` returns when the server has stopped.

    ``on_start`` is called once it accepts connections, ``on_drain`` when it begins to drain.
    ``accept`` makes the Acceptor of a worker, which shares its socket with other workers.
    """

    def __init__(
        self,
        sidecar: Sidecar,
        listening: socket.socket,
        *,
        log_level: str,
        on_start: Callable[[SidecarServer], Awaitable[None]],
        on_drain: Callable[[ServerSettings], object],
        accept: Callable[..., Acceptor] | None = None,
    ) -> None:
        class Protocol(BoundedHeadProtocol):
            """The HTTP protocol with the limits of this server (``_apply``)."""

        config = uvicorn.Config(
            sidecar, log_level=log_level, http=Protocol, lifespan="on", **SERVER_OPTIONS
        )

        def begin_to_drain() -> None:
            sidecar.draining = True
            # The signal may have come while a line is written, so a further one must wait.
            asyncio.get_running_loop().call_soon_threadsafe(on_drain, sidecar.settings.server)

        super().__init__(
            config,
            drain_s=lambda: sidecar.settings.server.effective_drain_s,
            on_drain=begin_to_drain,
        )
        self._sidecar = sidecar
        self._listening = listening
        self._on_start = on_start
        self._accept = accept
        self._protocol = Protocol
        self._acceptor: Acceptor | None = None
        self._failure: HeadstartError | None = None
        self._tasks = Supervisor()
        self.spawn = self._tasks.spawn
        self._apply(sidecar.settings.server)

    def _apply(self, server: ServerSettings) -> None:
        """Take over the limits that the HTTP server enforces itself."""
        self._protocol.head_timeout_s = server.head_timeout_s
        self._protocol.max_connections = server.max_connections or room_for_connections()
        if server.access_log != "off":
            _show_access_log()
        self.config.ws_max_size = server.max_body_bytes
        self.config.timeout_graceful_shutdown = int(server.shutdown_s) + 1

    async def replace(self, settings: Settings) -> None:
        """Serve new requests by other settings. Raises HeadstartError: nothing has changed."""
        await self._sidecar.replace(settings)
        self._apply(settings.server)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal ends it. Raises HeadstartError when it cannot start."""
        super().run(sockets or [self._listening])
        if self._failure is not None:
            raise self._failure

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the sidecar, then accept connections."""
        # Before uvicorn's own start-up, which would print a traceback over the reason.
        try:
            started = await self.completes(self._sidecar.running)
        except HeadstartError as error:
            self._failure, started = error, False
        if not started:
            self.should_exit = True
            return
        settle_memory()
        await super().startup(sockets if self._accept is None else [])
        if self._accept is not None:
            self._acceptor = self._accept(
                self._listening,
                open_now=lambda: len(self.server_state.connections),
                make=self._connection,
            )
        await self._on_start(self)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, and end with the last answers."""
        if self._acceptor is not None:
            await self._acceptor.aclose()
        await super().shutdown(sockets)
        await self._tasks.aclose()

    def _connection(self) -> asyncio.Protocol:
        return self._protocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


# --- connections of several workers ---------------------------------------------------------------

YIELD_S = 0.002
"""Seconds for which a worker with more connections leaves a new one to the others, which may be
busy."""
REST_S = 0.1
"""The wait after the system could not open a connection, for example because it has no free
descriptors."""
QUIET_S = 60.0
"""The log tells once in this many seconds that connections cannot be accepted."""
GONE = 2**62
"""The connection count of a worker that does not run."""


@dataclass(eq=False, repr=False)
class Acceptor:
    """Accepts connections on a socket that several workers share.

    When a connection waits, the event loop calls ``_accept`` in each worker. If another worker has
    fewer connections, this one does not watch the socket for ``YIELD_S`` (``_pause``). It takes the
    connection if that still waits then.
    """

    listening: socket.socket
    counts: memoryview
    """The connections of each worker, in memory of all workers."""
    index: int
    """The place of this worker in ``counts``."""
    _: KW_ONLY
    open_now: Callable[[], int]
    """Returns the number of connections that this worker has."""
    make: Callable[[], asyncio.Protocol]
    """Makes the protocol of a new connection."""
    _opening: Supervisor = field(default_factory=Supervisor)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _later: asyncio.TimerHandle | None = None
    """The end of the present pause."""
    _quiet_until: float = 0.0
    """The time until which no further error is logged."""
    _coming: int = 0
    """Connections that were accepted and are not open yet."""

    def __post_init__(self) -> None:
        self.listening.setblocking(False)  # noqa: FBT003 - the library's signature
        self._watch()

    async def aclose(self) -> None:
        """Stop accepting. The socket stays open for the other workers."""
        self._loop.remove_reader(self.listening.fileno())
        if self._later is not None:
            self._later.cancel()
        await self._opening.ended()
        self.counts[self.index] = GONE

    def _watch(self) -> None:
        """Let the event loop call ``_accept`` when a connection waits."""
        self._count()
        self._loop.add_reader(self.listening.fileno(), self._accept, False)  # noqa: FBT003

    def _count(self) -> int:
        """Tell the other workers how many connections this one has, and return the number."""
        mine = self.counts[self.index] = self.open_now() + self._coming
        return mine

    def _accept(self, anyway: bool) -> None:
        """Take connections while no other worker has fewer.

        With ``anyway`` take the first one in any case: the others did not take it in time.
        """
        while anyway or self._count() <= min(self.counts):
            anyway = False
            try:
                connection, _ = self.listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if self._loop.time() >= self._quiet_until:
                    self._quiet_until = self._loop.time() + QUIET_S
                    logger.error("a connection cannot be accepted: %s", error)
                return self._pause(REST_S, anyway=False)
            connection.setblocking(False)  # noqa: FBT003 - the library's signature
            self._coming += 1
            self._opening.spawn(self._open, connection)
        self._pause(YIELD_S, anyway=True)

    def _pause(self, seconds: float, *, anyway: bool) -> None:
        """Watch the socket again after ``seconds``, and then take a connection if ``anyway``."""
        self._loop.remove_reader(self.listening.fileno())
        self._later = self._loop.call_later(seconds, self._end_pause, anyway)

    def _end_pause(self, anyway: bool) -> None:
        self._later = None
        self._watch()
        if anyway:
            self._accept(True)  # noqa: FBT003

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self.make, connection)
        except OSError:
            connection.close()  # the client has left
        finally:
            self._coming -= 1
            self._count()


# --- signals and the access log -------------------------------------------------------------------


def end_process(sent: int, _: FrameType | None) -> NoReturn:
    """Handle a signal by ending this process, with 130 after Ctrl-C and else 0."""
    end(128 + sent if sent == signal.SIGINT else 0)


class AccessLogHandler(logging.StreamHandler[TextIO]):
    """Writes lines to standard output."""

    _told = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Tell once that lines are lost, in place of a traceback for each of them."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            return super().handleError(record)
        if not self._told:
            self._told = True
            logger.warning("lines of the access log are lost: %s", error.strerror)


def _show_access_log() -> None:
    """Write the lines of the access log to standard output, as they are."""
    if access_logger.handlers:
        return
    lines = AccessLogHandler(sys.stdout)
    lines.setFormatter(logging.Formatter("%(message)s"))
    access_logger.addHandler(lines)
    access_logger.setLevel(logging.INFO)
    access_logger.propagate = False
