"""The sidecar's HTTP server: uvicorn, with a limit for request heads and a shutdown that drains."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

MAX_HEAD_BYTES = 64 * 1024


class BoundedHeadProtocol(HttpToolsProtocol):
    """Answers 400 and closes once a request's head exceeds ``MAX_HEAD_BYTES``.

    The parser collects headers without a bound, so a caller could fill the memory with them. The
    count is by reads: a head that arrives whole in one read is served, however long.
    """

    _in_head = False
    _head_bytes = 0

    def on_message_begin(self) -> None:
        """Begin to count."""
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        """Stop counting."""
        self._in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Parse what arrived."""
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("The request's headers are too large.")


class DrainingServer(uvicorn.Server):
    """A uvicorn that drains for ``drain_s`` seconds after SIGTERM, before it stops.

    While it drains, it calls ``on_drain`` once, accepts connections and answers requests as
    before, and closes each connection after its answer. So a load balancer has the time to see
    that the server is not ready and to send new requests elsewhere. SIGINT (Ctrl-C), or a second
    signal, stops the server without draining.
    """

    def __init__(
        self, config: uvicorn.Config, *, drain_s: float, on_drain: Callable[[], object]
    ) -> None:
        super().__init__(config)
        self._drain_s = drain_s
        self._on_drain = on_drain
        self._drained_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain, or to stop."""
        if sig != signal.SIGTERM or self._drained_at is not None or not self._drain_s:
            return super().handle_exit(sig, frame)
        self._drained_at = time.monotonic() + self._drain_s
        # uvicorn adds these headers to every answer, and closes a connection that has this one.
        self.config.encoded_headers = [*self.config.encoded_headers, (b"connection", b"close")]
        self.server_state.default_headers = self.config.encoded_headers
        self._captured_signals.append(sig)  # uvicorn raises it again once it has stopped
        self._on_drain()

    async def on_tick(self, counter: int) -> bool:
        """Tell whether it is time to stop. Called ten times a second."""
        drained = self._drained_at is not None and time.monotonic() >= self._drained_at
        return await super().on_tick(counter) or drained
