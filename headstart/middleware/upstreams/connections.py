"""The connections to a provider, kept for the next call only while they are silent."""

from __future__ import annotations

import select
from functools import partial
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.client_proto import ResponseHandler

if TYPE_CHECKING:
    import asyncio
    from ssl import SSLContext

    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

KEPT_S = 75.0
"""For so long an unused connection is kept."""


def connector(*, ssl: SSLContext | bool) -> aiohttp.TCPConnector:
    """Return a pool without a limit. Call it in the event loop that uses it."""
    return _SilentPool(limit=0, keepalive_timeout=KEPT_S, ssl=ssl)


class _WatchedConnection(ResponseHandler):
    """A connection that is closed if bytes come while no call uses it.

    Such bytes answer nothing that was asked. The client library would take them for the answer to
    the next call, which may be another caller's.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.idle = False

    def data_received(self, data: bytes) -> None:
        """Read what the provider sent, unless nobody asked for it."""
        if self.idle and data:
            self.abort()
            return
        super().data_received(data)

    @property
    def silent(self) -> bool:
        """Has nothing come, read or not, since the end of the last answer?"""
        if not self.is_connected() or self.should_close or self._reading_paused:
            return False
        return not self._holds_more() and not _readable(self.transport)

    def _holds_more(self) -> bool:
        """Did the last answer's parser get the beginning of another one?"""
        if self._parser is None:
            return False
        try:
            return self._parser.feed_eof() is not None
        except Exception:  # noqa: BLE001 - whatever it cannot read is not the end of an answer
            return True


class _SilentPool(aiohttp.TCPConnector):
    """A pool that hands out silent connections alone, and closes the others."""

    def __init__(self, *, limit: int, keepalive_timeout: float, ssl: SSLContext | bool) -> None:
        super().__init__(limit=limit, keepalive_timeout=keepalive_timeout, ssl=ssl)
        watched: type[ResponseHandler] = _WatchedConnection
        self._factory = partial(watched, loop=self._loop)

    def _release(
        self, key: ConnectionKey, protocol: ResponseHandler, *, should_close: bool = False
    ) -> None:
        super()._release(key, protocol, should_close=should_close)
        if isinstance(protocol, _WatchedConnection):
            protocol.idle = True

    async def _get(self, key: ConnectionKey, traces: list[Trace]) -> Connection | None:
        while (connection := await super()._get(key, traces)) is not None:
            protocol = connection.protocol
            if isinstance(protocol, _WatchedConnection) and protocol.silent:
                protocol.idle = False
                return connection
            connection.close()
        return None


def _readable(transport: asyncio.Transport | None) -> bool:
    """Has the system bytes, or the end, that the event loop has not seen yet?"""
    socket = None if transport is None else transport.get_extra_info("socket")
    if socket is None:
        return False
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([socket.fileno()], [], [], 0)[0])
