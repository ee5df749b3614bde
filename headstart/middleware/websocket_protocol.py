"""The sidecar's WebSocket connections: uvicorn's class, with a quiet log and a limit on closing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    import asyncio

    import uvicorn
    from uvicorn._types import ASGISendEvent
    from uvicorn.server import ServerState

_QUIET = logging.getLogger("headstart.websocket")
_QUIET.setLevel(logging.WARNING)


class QuietWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket whose log shows no address, header or message: they may contain secrets.

    Once its app has ended, a client that reads nothing keeps the connection for ``close_timeout``
    seconds at most.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.logger = self.conn.logger = _QUIET
        self.conn.debug = False
        self._cut: asyncio.TimerHandle | None = None

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message of the app."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # otherwise uvicorn logs an incomplete handshake

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """The app has ended."""
        super().on_task_complete(task)
        if not self.disconnected:
            self._cut = self.loop.call_later(self.close_timeout, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed; without a close frame, that is code 1006 (uvicorn: 1005)."""
        if self.conn.close_rcvd is None:
            self.queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
        super().connection_lost(exc)
        if self._cut is not None:
            self._cut.cancel()
