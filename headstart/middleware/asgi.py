"""The ASGI middleware: requests of known paths go to the engine, all others pass untouched."""

from __future__ import annotations

import asyncio
import contextlib
import math
from asyncio import _get_running_loop  # None under trio
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

import anyio
import msgspec

from headstart.dialects.registry import RELAYED_PREFIXES, SOCKET_PREFIXES
from headstart.errors import ConfigError, HeadstartError
from headstart.middleware.after_checks import CheckedRequest, looked_up_before
from headstart.middleware.endpoints import EndpointTable, MatchedEndpoint, as_openai, raw_path
from headstart.middleware.respond import (
    SANDBOX,
    answer_handshake,
    json_headers,
    plain_error,
    response_start,
    send_whole,
    with_page_headers,
)
from headstart.observe import logger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from headstart.embeddings.stores.memory import MemoryStore
    from headstart.middleware.batches.service import BatchService
    from headstart.middleware.live_drafts import LiveDrafts
    from headstart.middleware.pipeline import Engine
    from headstart.middleware.relay import KeptResponses, Relay
    from headstart.middleware.telemetry import Tracing
    from headstart.middleware.websocket_relay import WebSocketRelay
    from headstart.policies.callers import OriginRules
    from headstart.types import ASGIApp, Headers, Message, Receive, Scope, Send

PREFLIGHT_S = 600
"""Seconds for which a browser remembers the answer to a preflight request."""


def adding(send: Send, page_headers: Headers) -> Send:
    """Return a ``send`` that adds headers for browsers to the response."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = with_page_headers(message["headers"], page_headers)
            message = response_start(message["status"], headers)
        await send(message)

    return sending


async def headers_for_page(scope: Scope, send: Send, rules: OriginRules) -> Headers | None:
    """Return the headers for browsers. A page of an allowed origin may read the answer.

    None: the request was the preflight (CORS) of such a page, and is answered.
    """
    origins = [value for name, value in scope["headers"] if name == b"origin"]
    if len(origins) != 1 or not rules.allows(origins[0]):
        return SANDBOX
    readable = (
        (b"access-control-allow-origin", origins[0]),
        (b"access-control-expose-headers", b"*"),
        (b"vary", b"Origin"),
    )
    asked = dict(scope["headers"])
    method = asked.get(b"access-control-request-method")
    if scope["method"] != "OPTIONS" or method is None:
        return (*SANDBOX, *readable)
    headers = [
        (b"access-control-allow-methods", method),
        (b"access-control-max-age", b"%d" % PREFLIGHT_S),
    ]
    if names := asked.get(b"access-control-request-headers"):
        headers.append((b"access-control-allow-headers", names))
    await send_whole(send, 204, (*headers, *readable), b"")
    return None


@dataclass(frozen=True)
class StartedEngine:
    """A started engine, how to stop it, and the parts beside it that answer requests."""

    engine: Engine
    aclose: Callable[[], Awaitable[None]]
    tracing: Tracing | None
    relay: Relay | None = None
    sockets: WebSocketRelay | None = None
    kept: KeptResponses | None = None
    drafts: LiveDrafts | None = None
    batches: BatchService | None = None
    memory: MemoryStore | None = None
    """The store, if it is only in this process's memory."""


TRACED = "headstart.tracing"
"""The key in the scope of a traced request; its value traces the request."""
START_PAUSE_S = 5.0
"""Seconds from a failed start to the next try. Meanwhile no request waits for a start."""
ABANDONED_S = 2.0
"""Longest time to close an engine whose event loop has ended."""


@dataclass(eq=False, repr=False)
class Gateway:
    """Wraps an ASGI app. Starts with the app's lifespan, else with the first matched request.

    ``start`` opens the store, the encoder and the upstreams. ``relays``: requests and WebSockets
    that match no endpoint go to an upstream, if their paths begin like those of providers; all
    others go to the wrapped app. ``origins`` has the web pages that may read answers. Each event
    loop has its own engine, because a test client may run each request in a new loop. A wrapped app
    starts even if the store does not answer, but not with wrong settings.
    """

    app: ASGIApp
    _: KW_ONLY
    endpoints: EndpointTable
    start: Callable[..., Awaitable[StartedEngine]]
    relays: bool = False
    origins: OriginRules | None = None
    draining: bool = False
    """The server sets it before it stops: it still answers, but is not ready."""
    _engines: dict[asyncio.AbstractEventLoop | None, StartedEngine] = field(default_factory=dict)
    _starting: dict[asyncio.AbstractEventLoop, asyncio.Future[StartedEngine]] = field(
        default_factory=dict
    )
    _guards: dict[asyncio.AbstractEventLoop, AsyncGenerator[None]] = field(default_factory=dict)
    """They close engines when their loops end."""
    _memory: MemoryStore | None = None
    """The store of an engine whose loop has ended, for the next engine."""
    _start_paused_until: float = -math.inf

    def __post_init__(self) -> None:
        self._prefixes = RELAYED_PREFIXES if self.relays else ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope. A traced request enters twice: the second time in its span."""
        if scope["type"] != "http":
            others = {"lifespan": self._lifespan, "websocket": self._relay_socket}
            return await others.get(scope["type"], self.app)(scope, receive, send)
        path = raw_path(scope)
        endpoint = self.endpoints.match(scope["method"], path, scope["query_string"])
        if endpoint is None and not path.startswith(self._prefixes):
            elsewhere = self._try_azure if self.relays else self.app
            return await elsewhere(scope, receive, send)
        page_headers = SANDBOX
        if self.relays and self.origins is not None and self.origins.origins:
            found = await headers_for_page(scope, send, self.origins)
            if found is None:
                return None
            page_headers = found
        running = self._engines.get(_get_running_loop()) or await self._try_to_start()
        tracing = None if running is None else running.tracing
        if tracing is not None and scope.get(TRACED) is not tracing:
            scope[TRACED] = tracing
            with tracing.request(scope):
                return await self(scope, receive, send)
        if endpoint is not None and not endpoint.is_chat:
            endpoint = _if_listed(endpoint, running, path)
        if endpoint is not None and not self.relays:
            await self._serve_wrapped(running, endpoint, path, scope, receive, send)
        elif endpoint is None or running is None:
            await self._relay(running, scope, receive, adding(send, page_headers))
        else:
            await running.engine.handle(
                endpoint, path, scope, receive, send, self.app, page_headers=page_headers
            )

    async def _serve_wrapped(
        self,
        running: StartedEngine | None,
        endpoint: MatchedEndpoint,
        path: bytes,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Serve a matched request of a wrapped app, which also goes on without an engine."""
        if running is None:
            await self.app(scope, receive, send)
        elif endpoint.after_checks:
            await CheckedRequest(running.engine, endpoint, path, scope, receive, send).run(self.app)
        else:
            with looked_up_before(endpoint):
                await running.engine.handle(endpoint, path, scope, receive, send, self.app)

    async def _try_azure(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to one of Azure's paths; any other goes to the app."""
        meant = as_openai(scope)
        if meant is None:
            await self.app(scope, receive, send)
        else:
            await self(meant, receive, send)

    async def _try_to_start(self) -> StartedEngine | None:
        try:
            if _running_loop().time() < self._start_paused_until:
                return None
            return await self.running()
        except HeadstartError as error:
            logger.error("the engine cannot start: %s", error)
            return None

    async def _relay(
        self, running: StartedEngine | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if running is None:
            await answer_json(send, 503, "not_ready", "the gateway cannot start; its log says why")
            return
        if raw_path(scope).startswith(_VERSION_TWICE):
            return await not_found(scope, receive, send)
        if running.kept is not None and await running.kept.answer(scope, send):
            return
        if running.drafts is not None and await running.drafts.answer(scope, receive, send):
            return
        if running.batches is not None and await running.batches.answer(scope, receive, send):
            return
        if running.relay is not None:
            await running.relay.handle(scope, receive, send)

    async def _relay_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.relays:
            scope = as_openai(scope) or scope
        if not (self.relays and raw_path(scope).startswith(SOCKET_PREFIXES)):
            return await self.app(scope, receive, send)
        running = self._engines.get(_get_running_loop()) or await self._try_to_start()
        tracing = None if running is None else running.tracing
        if tracing is not None and scope.get(TRACED) is not tracing:
            scope[TRACED] = tracing
            with tracing.request(scope):
                return await self._relay_socket(scope, receive, send)
        drafts = None if running is None else running.drafts
        if drafts is not None and await drafts.socket(scope, receive, send):
            return
        if running is not None and running.sockets is not None:
            await running.sockets.handle(scope, receive, send, draining=self.draining)
        else:
            await refuse_socket(scope, send, 503, "not_ready", "the gateway cannot start")

    async def running(self) -> StartedEngine:
        """Return the started engine, starting it on first use. Raises HeadstartError."""
        loop = _running_loop()
        if (started := self._engines.get(loop)) is not None:
            return started
        if (future := self._starting.get(loop)) is not None:
            await asyncio.wait((future,))
            # It is cancelled if the client of the request that began the start has left.
            return await self.running() if future.cancelled() else future.result()
        self._starting[loop] = future = loop.create_future()
        try:
            started = await self._open(loop)
        except asyncio.CancelledError:
            future.cancel()
            raise
        except BaseException as error:
            self._start_paused_until = loop.time() + START_PAUSE_S
            future.set_exception(error)
            future.exception()  # The error is read here, because perhaps nobody waits for it.
            raise
        finally:
            del self._starting[loop]
        future.set_result(started)
        return started

    async def _open(self, loop: asyncio.AbstractEventLoop) -> StartedEngine:
        await self._leave_ended_loops()
        memory, self._memory = self._memory, None
        try:
            self._engines[loop] = started = await self.start(memory=memory)
        except BaseException:
            self._memory = memory
            raise
        self._guards[loop] = guard = self._close_with_loop(loop)
        await anext(guard)
        return started

    async def _close_with_loop(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None]:
        """Close the engine when its loop ends: ``asyncio.run`` then closes all generators."""
        try:
            yield
        finally:
            self._guards.pop(loop, None)
            if (started := self._engines.pop(loop, None)) is not None:
                try:
                    await started.aclose()
                finally:
                    self._memory = started.memory

    async def _leave_ended_loops(self) -> None:
        """Close the engines of loops that were closed without their generators.

        Parts that need the old loop fail at once; a thread may hang.
        """
        for loop in [loop for loop in tuple(self._guards) if loop.is_closed()]:
            self._guards.pop(loop, None)
            if (left := self._engines.pop(loop, None)) is not None:  # no other thread was faster
                self._memory = left.memory
                with anyio.move_on_after(ABANDONED_S), contextlib.suppress(Exception):
                    await left.aclose()

    async def aclose(self) -> None:
        """Stop the engine: drain, cancel, flush, close. Safe to call twice."""
        loop = _running_loop()
        if (started := self._engines.pop(loop, None)) is not None:
            await self._guards.pop(loop).aclose()
            await started.aclose()

    async def _start_error(self) -> HeadstartError | None:
        """Start the engine. Return an error with which the server must not go on, if any."""
        try:
            await self.running()
        except HeadstartError as error:
            logger.error("start-up failed: %s", error)
            if self.relays or isinstance(error, ConfigError):
                return error
        return None

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = answered = ""
        failed: HeadstartError | None = None

        async def asking() -> Message:
            nonlocal asked
            # If we cannot start, the app has started, and its server will not tell it to stop.
            message = {"type": "lifespan.shutdown"} if failed else await receive()
            asked = message["type"]
            return message

        async def around(message: Message) -> None:
            nonlocal answered, failed
            if failed:
                return
            if message["type"] == "lifespan.startup.complete":
                if failed := await self._start_error():
                    message = {"type": "lifespan.startup.failed", "message": str(failed)}
            elif message["type"] in _STOPPED:
                await self.aclose()
            await send(message)
            answered = message["type"]

        try:
            await self.app(scope, asking, around)
        except Exception:
            if asked == "lifespan.shutdown":
                await self.aclose()
            if asked or answered:
                raise
        if answered not in _LAST:
            # The app answers no lifespan messages (Django), or not all, so we answer the rest.
            await _own_lifespan(asking, around, "" if answered.startswith(asked) else asked)
        if failed:
            raise failed  # as Starlette does: its test client would go on otherwise


def _running_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop. Raises ConfigError if the server has another one than asyncio's."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigError(
            "Headstart needs asyncio, and this server runs the app without it: with hypercorn, "
            "take a worker of the class asyncio or uvloop, not trio"
        ) from None


def _if_listed(
    endpoint: MatchedEndpoint, running: StartedEngine | None, path: bytes
) -> MatchedEndpoint | None:
    """Return the endpoint of a call that is not a chat; None if the relay would refuse the call."""
    if running is None or running.relay is None:
        return endpoint
    return endpoint if running.relay.paths.lists("POST", path) else None


_STOPPED = ("lifespan.shutdown.complete", "lifespan.shutdown.failed")
_LAST = ("lifespan.startup.failed", *_STOPPED)
"""The messages that end a lifespan."""


async def _own_lifespan(receive: Receive, send: Send, asked: str = "") -> None:
    """Answer the server's messages, first ``asked``, which the app received and did not answer."""
    while True:
        asked = asked or (await receive())["type"]
        await send({"type": asked + ".complete"})
        if asked == "lifespan.shutdown":
            return
        asked = ""


_NO_PATH = (
    "no such path: the base URL of OpenAI's clients ends in /v1, and that of Anthropic's and "
    "Google's clients does not (if it fails without, try /v1 or /v1beta). The native paths of "
    "other APIs and servers (such as /generate, /completion, /v2/models/...) are not served: take "
    "a client of OpenAI for their models"
)
_NO_COHERE_PATH = (
    "no such path: of the paths of Cohere's clients only /v2/rerank is served. Chat with Cohere's "
    "models through a client of OpenAI, Anthropic or Google"
)
_NO_OLLAMA_PATH = (
    b'{"error":"no such path: the paths of Ollama\'s own clients are not served. Take a client of '
    b'OpenAI, with a base URL that ends in /v1: Ollama answers it, too"}'
)
"""In Ollama's form, because its clients show nothing of an error that is an object."""
_OLLAMA_PATHS = frozenset(
    b"/api/" + name
    for name in b"chat embed embeddings generate show tags version ps pull create".split()
)
_COHERE_PATHS = frozenset((b"/v2/chat", b"/v2/embed"))
_VERSION_TWICE = b"/v1/v1/"
"""The beginning of a path if both the base URL and the client add the version."""


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """The app behind a gateway that wraps no app. It answers 404."""
    if scope["type"] == "lifespan":
        return await _own_lifespan(receive, send)
    if scope["type"] == "websocket":
        return await refuse_socket(scope, send, 404, "not_found", _NO_PATH)
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    path = raw_path(scope)
    if path in _OLLAMA_PATHS:
        return await send_json(send, 404, _NO_OLLAMA_PATH)
    if path in _COHERE_PATHS:
        # In Cohere's form: of another one the AI SDK's Cohere provider shows nothing.
        return await send_json(send, 404, msgspec.json.encode({"message": _NO_COHERE_PATH}))
    await answer_json(send, 404, "not_found", _NO_PATH)


async def answer_json(send: Send, status: int, code: str, message: str) -> None:
    """Answer with an error of our own on a path without a dialect."""
    await send_json(send, status, plain_error(code, message))


async def send_json(send: Send, status: int, body: bytes) -> None:
    """Answer with a JSON document."""
    await send_whole(send, status, json_headers(body), body)


async def refuse_socket(scope: Scope, send: Send, status: int, code: str, message: str) -> None:
    """Answer a WebSocket's handshake with an error of our own."""
    body = plain_error(code, message)
    await answer_handshake(scope, send, status, json_headers(body), body)


ADMIN_PREFIX = b"/_headstart/"


def behind_gateway(admin: ASGIApp, *, home: bool = False) -> ASGIApp:
    """Return the app behind the sidecar's gateway: the admin app on its prefix, else 404.

    ``home``: ``GET /`` leads to the live page. Litestar rewrites paths (adds slashes, decodes
    ``%2F``), so it only ever sees its own.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path = raw_path(scope) if scope["type"] == "http" else b""
        if scope["type"] == "lifespan" or path.startswith(ADMIN_PREFIX):
            await admin(scope, receive, send)
        elif home and path == b"/" and scope.get("method") == "GET":
            place = scope.get("root_path", "").encode() + ADMIN_PREFIX
            headers = ((b"location", place), (b"content-length", b"0"))
            await send_whole(send, 307, headers, b"")
        else:
            await not_found(scope, receive, send)

    return app
