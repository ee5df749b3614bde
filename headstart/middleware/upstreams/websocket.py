"""The WebSocket to a provider: its handshake, its messages and its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp

from headstart.errors import UpstreamRefused
from headstart.middleware.upstreams.wire import read_head

if TYPE_CHECKING:
    from aiohttp import ClientHandlerType, ClientRequest, ClientResponse
    from aiohttp._websocket.reader import WebSocketDataQueue
    from aiohttp.http_websocket import WebSocketWriter

CLOSE_S = 1.0
"""How long the other side may take to answer a close frame."""
HEARTBEAT_S = 40.0
"""A provider that was silent for so long is asked for a sign of life, which has half the time."""
MAX_REFUSAL_BYTES = 64 * 1024
NORMAL, GOING_AWAY, NO_CODE, ABNORMAL, TOO_BIG, FAILED, RESTART = (
    1000, 1001, 1005, 1006, 1009, 1011, 1012,
)  # fmt: skip
"""Close codes (RFC 6455, 7.4.1)."""
_UNSENDABLE = frozenset((1004, NO_CODE, ABNORMAL, 1015))


class Ending(NamedTuple):
    """How one side ended a WebSocket."""

    code: int
    reason: str = ""

    def sendable(self, instead: int) -> Ending:
        """Return it with a code that a close frame may carry, ``instead`` of one that it may not.

        A side that closes without a code means the normal end.
        """
        if self.code == NO_CODE:
            return Ending(NORMAL, self.reason)
        known = 1000 <= self.code < 1015 or 3000 <= self.code < 5000
        return self if known and self.code not in _UNSENDABLE else Ending(instead, self.reason)


class Socket(aiohttp.ClientWebSocketResponse):
    """The client library's WebSocket, which can also end its connection at once."""

    def __init__(
        self,
        reader: WebSocketDataQueue,
        writer: WebSocketWriter,
        protocol: str | None,
        response: ClientResponse,
        *rest: Any,
        **options: Any,
    ) -> None:
        super().__init__(reader, writer, protocol, response, *rest, **options)
        connection = response.connection
        self._wire = None if connection is None else connection.transport

    def abort(self) -> None:
        """Drop what is unsent, and close the connection."""
        if self._wire is not None:
            self._wire.abort()


class UpstreamSocket:
    """An open WebSocket. One task reads it, one writes to it."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._is_closed = False
        self.subprotocol = socket.protocol

    async def send(self, data: bytes, *, is_text: bool) -> None:
        """Send a message, and wait while the provider does not read. Raises ConnectionError."""
        kind = aiohttp.WSMsgType.TEXT if is_text else aiohttp.WSMsgType.BINARY
        await self._socket.send_frame(data, kind)

    async def receive(self) -> bytes | str | Ending:
        """Return the next message, or how the provider ended. Pings are answered."""
        message = await self._socket.receive()
        if message.type is aiohttp.WSMsgType.BINARY:
            return bytes(message.data)
        if message.type is aiohttp.WSMsgType.TEXT:
            return str(message.data)
        if message.type is aiohttp.WSMsgType.CLOSE:
            return Ending(message.data or NO_CODE, message.extra or "")
        if message.type is aiohttp.WSMsgType.ERROR:
            if getattr(message.data, "code", None) == TOO_BIG:
                return Ending(TOO_BIG, "a message of the upstream is too large")
            return Ending(ABNORMAL, "the upstream broke the protocol")
        return Ending(ABNORMAL, "the upstream closed the connection")

    async def close(self, ending: Ending) -> None:
        """Send a close frame, or the answer to one, and end the connection within CLOSE_S.

        Safe to call twice.
        """
        if self._is_closed:
            return
        self._is_closed = True
        # A provider that reads nothing would keep the connection open with what is unsent.
        asyncio.get_running_loop().call_later(CLOSE_S, self._socket.abort)
        reason = ending.reason.encode()[:123].decode(errors="ignore").encode()
        await self._socket.close(code=ending.code, message=reason)


async def refusing(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    """Raise UpstreamRefused if the provider answers a handshake with anything but the upgrade.

    A redirect is a refusal, too: a key must not follow it.
    """
    response = await handler(request)
    if response.status == 101:
        return response
    body = b""
    try:
        while len(body) < MAX_REFUSAL_BYTES and (data := await response.content.readany()):
            body += data
    finally:
        response.close()
    headers = read_head(response.status, response.raw_headers).headers
    raise UpstreamRefused(
        f"the upstream refused the WebSocket with status {response.status}",
        status=response.status,
        headers=tuple(pair for pair in headers if pair[0] != b"content-length"),
        body=body,
        code="upstream_refused",
    )
