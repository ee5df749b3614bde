"""A provider of WebSockets and a gateway in front of it, for the client of ``websockets``."""

from __future__ import annotations

import asyncio
import contextlib
import http
from typing import TYPE_CHECKING, Any

from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from headstart.config.loading import load_settings
from headstart.middleware.asgi import Gateway, not_found
from headstart.middleware.http_protocol import BoundedHeadProtocol
from headstart.middleware.observers import Observers
from headstart.middleware.websocket_protocol import QuietWebSocket
from headstart.mount import build_gateway
from headstart.observe import Served
from headstart.policies.callers import OriginRules
from support.fakes import Recorder
from support.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from websockets.http11 import Request, Response

    from headstart.middleware.admin_front import EngineParts


async def echo(socket: ServerConnection) -> None:
    """Send each message back."""
    async for message in socket:
        await socket.send(message)


class Provider:
    """Keeps the received handshakes. ``talk`` is its side of each WebSocket.

    ``refuses`` is the status with which it refuses handshakes: all, or those with ``refused_key``.
    ``delay_s`` is its wait before each answer.
    """

    def __init__(
        self,
        talk: Callable[[ServerConnection], Awaitable[None]] = echo,
        *,
        refuses: int = 0,
        refused_key: str | None = None,
        delay_s: float = 0.0,
        **options: Any,
    ) -> None:
        self.talk = talk
        self.refuses = refuses
        self.refused_key = refused_key
        self.delay_s = delay_s
        self.options = options
        self.requests: list[Request] = []
        self.sockets: list[ServerConnection] = []
        self.ended: list[tuple[int | None, str | None]] = []
        """Code and reason with which each WebSocket ended."""

    async def _handshake(self, socket: ServerConnection, request: Request) -> Response | None:
        self.requests.append(request)
        await asyncio.sleep(self.delay_s)
        taken = self.refused_key not in (None, request.headers.get("Authorization"))
        if not self.refuses or taken:
            return None
        response = socket.respond(http.HTTPStatus(self.refuses), '{"error":{"message":"no"}}')
        response.headers["x-request-id"] = "req_provider"
        if self.refuses in (302, 307):
            response.headers["location"] = "/v1/elsewhere"
        return response

    async def _talk(self, socket: ServerConnection) -> None:
        self.sockets.append(socket)
        try:
            await self.talk(socket)
        finally:
            await socket.wait_closed()
            self.ended.append((socket.close_code, socket.close_reason))

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        options: dict[str, Any] = {"compression": None, **self.options}
        async with serve(
            self._talk, "127.0.0.1", 0, process_request=self._handshake, **options
        ) as server:
            host, port = server.sockets[0].getsockname()[:2]
            yield f"http://{host}:{port}"


class Before:
    """A gateway before the provider."""

    def __init__(
        self, url: str, app: Gateway, recorder: Recorder, parts: list[EngineParts]
    ) -> None:
        self.url, self.app, self.recorder, self.parts = url, app, recorder, parts

    @property
    def open(self) -> int:
        """WebSockets that are relayed now."""
        return self.parts[0].sockets.active

    @property
    def booked(self) -> list[Served]:
        return [seen for seen in self.recorder.seen if isinstance(seen, Served)]

    def connect(self, path: str = "/v1/realtime", **options: Any) -> connect:
        return connect(
            self.url.replace("http", "ws", 1) + path,
            **{"compression": None, "proxy": None, **options},
        )


@contextlib.asynccontextmanager
async def before(
    provider: Provider,
    *,
    guarded: bool = False,
    own_key: bool = False,
    at: str = "",
    path: str = "",
    dialect: str = "openai",
    ca_file: str = "",
    others: Sequence[dict[str, Any]] = (),
    routes: Sequence[dict[str, Any]] = (),
    provider_settings: dict[str, Any] | None = None,
    **server: Any,
) -> AsyncIterator[Before]:
    """Serve a provider and a gateway. ``guarded``: with the sidecar's rules for web pages.

    The gateway calls the provider at the URL ``at``, followed by ``path``.
    """
    async with provider.serving() as base:
        dotted = {f"server.{name}": value for name, value in server.items()}
        dotted |= {"cache.store": "memory:", "cache.mode": "exact-only"}
        upstream = {"name": "sim", "base_url": (at or base) + path, "dialect": dialect}
        upstream |= provider_settings or {}
        if ca_file:
            upstream["ca_file"] = ca_file
        if own_key:
            upstream["api_key_env"] = "PATH"
        dotted["upstream"] = [upstream, *others]
        dotted["route"] = list(routes)
        settings = await asyncio.to_thread(load_settings, None, {}, dotted)
        parts: list[EngineParts] = []
        recorder = Recorder()
        app = build_gateway(
            settings,
            not_found,
            observers=Observers([recorder]),
            origins=OriginRules() if guarded else None,
            on_start=parts.append,
        )
        options = {"ws_max_size": settings.server.max_body_bytes, "ws_per_message_deflate": False}
        async with serving(app, http=BoundedHeadProtocol, ws=QuietWebSocket, **options) as url:
            yield Before(url, app, recorder, parts)
