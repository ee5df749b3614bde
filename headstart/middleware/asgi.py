"""The pure ASGI middleware: matched requests go to the engine, everything else passes untouched."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headstart.errors import ConfigError, HeadstartError
from headstart.middleware.after_checks import Visit, looked_up_before
from headstart.middleware.browsers import allowed_origin, answer_preflight, sandboxed
from headstart.middleware.exchange import raw_path
from headstart.middleware.respond import JSON, plain_error, send_whole
from headstart.observe import logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headstart.middleware.asgi_types import ASGIApp, Message, Receive, Scope, Send
    from headstart.middleware.endpoints import Routes
    from headstart.middleware.pipeline import Engine
    from headstart.middleware.relay import Relay
    from headstart.policies.origins import OriginRules


@dataclass(frozen=True)
class Running:
    """A started engine and how to stop it."""

    engine: Engine
    relay: Relay | None
    aclose: Callable[[], Awaitable[None]]


REST_S = 5.0
"""After a start that failed, until the next try: requests do not wait for each."""


class Gateway:
    """Wraps an ASGI app. Starts with the app's lifespan, else with the first matched request.

    ``start`` opens the store, the encoder and the upstreams; ``relay_prefixes`` name the paths
    that go to an upstream when no route matches, and ``origins`` says whose pages may read answers.
    One instance serves one event loop at a time. Where it wraps an app, a store that is away keeps
    neither the app nor a request from going on; settings that are wrong keep the app from starting,
    which says so at once.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        routes: Routes,
        start: Callable[[], Awaitable[Running]],
        relay_prefixes: tuple[bytes, ...] = (),
        origins: OriginRules | None = None,
    ) -> None:
        self.app = app
        self.draining = False
        """Set by the server when it will stop soon: it still answers, but is not ready."""
        self._routes = routes
        self._start = start
        self._relay_prefixes = relay_prefixes
        self._origins = origins
        self._started: Running | None = None
        self._starting: asyncio.Future[Running] | None = None
        self._rests_until = -math.inf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                return await self._lifespan(scope, receive, send)
            return await self.app(scope, receive, send)
        path = raw_path(scope)
        route = self._routes.match(scope["method"], path, scope["query_string"])
        if route is None and not path.startswith(self._relay_prefixes):
            return await self.app(scope, receive, send)
        if self._relay_prefixes:  # what providers answer is no page of the app around us
            origin = allowed_origin(scope, self._origins)
            if origin is not None and await answer_preflight(scope, send):
                return None
            send = sandboxed(send, origin)
        running = self._started or await self._try_to_start()
        if running is None:
            return await self._without_engine(scope, receive, send)
        if route is not None and route.after_checks:
            await Visit(running.engine, route, scope, receive, send).run(self.app)
        elif route is not None:
            with looked_up_before(route):
                await running.engine.handle(route, scope, receive, send, self.app)
        elif running.relay is not None:
            await running.relay.handle(scope, receive, send)

    async def _try_to_start(self) -> Running | None:
        if asyncio.get_running_loop().time() < self._rests_until:
            return None
        try:
            return await self.running()
        except HeadstartError as error:
            logger.error("the engine cannot start: %s", error)
            return None

    async def _without_engine(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Fail open to a wrapped app; a gateway has nowhere to go."""
        if not self._relay_prefixes:
            return await self.app(scope, receive, send)
        await answer_json(send, 503, "not_ready", "the gateway cannot start; its log says why")

    async def running(self) -> Running:
        """Return the started engine, starting it on first use. Raises HeadstartError."""
        if self._started is not None:
            return self._started
        future = self._starting
        if future is not None and future.get_loop() is asyncio.get_running_loop():
            return await asyncio.shield(future)
        self._starting = future = asyncio.get_running_loop().create_future()
        try:
            started = await self._start()
        except BaseException as error:
            self._starting = None
            self._rests_until = asyncio.get_running_loop().time() + REST_S
            future.set_exception(error)
            future.exception()  # Retrieved here: nobody else may be waiting for it.
            raise
        self._started, self._starting = started, None
        future.set_result(started)
        return started

    async def aclose(self) -> None:
        """Stop the engine: drain, cancel, flush, close. Safe to call twice."""
        started, self._started = self._started, None
        if started is not None:
            await started.aclose()

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        answered = False

        async def around(message: Message) -> None:
            nonlocal answered
            answered = True
            if message["type"] == "lifespan.startup.complete":
                try:
                    await self.running()
                except HeadstartError as error:
                    logger.error("start-up failed: %s", error)
                    if self._relay_prefixes or isinstance(error, ConfigError):
                        message = {"type": "lifespan.startup.failed", "message": str(error)}
            elif message["type"] == "lifespan.shutdown.complete":
                await self.aclose()
            await send(message)

        try:
            await self.app(scope, receive, around)
        except Exception:
            if answered:
                raise
            # The app has no lifespan (Django): ours still starts and stops.
            await _own_lifespan(receive, around)


async def _own_lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """The app behind a gateway that wraps none: it only knows its lifespan and 404."""
    if scope["type"] == "lifespan":
        return await _own_lifespan(receive, send)
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    await answer_json(send, 404, "not_found", "no such path")


async def answer_json(send: Send, status: int, code: str, message: str) -> None:
    """Answer with an error of our own on a path without a dialect."""
    body = plain_error(code, message)
    headers = ((b"content-type", JSON), (b"content-length", b"%d" % len(body)))
    await send_whole(send, status, headers, body)
