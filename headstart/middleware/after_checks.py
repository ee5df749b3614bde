"""Looks requests up after the app's own checks: in the handler of an admitted request.

The middleware passes such a request into the app first. Dependencies, guards and decorators run,
and the decorator ``after_checks`` on the handler asks the engine. The handler returns a hit as a
response of its framework, so the code around the handler sees it. On a miss the handler runs, and
the app's response becomes the answer to the engine's call.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import sys
from contextvars import ContextVar
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec, TypeVar, cast

import anyio

from headstart.errors import ConfigError
from headstart.middleware.body import watch
from headstart.middleware.upstreams.app import for_all, show_written
from headstart.observe import logger
from headstart.types import ASGIApp, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from headstart.middleware.endpoints import MatchedEndpoint
    from headstart.middleware.pipeline import Engine

    P = ParamSpec("P")
    R = TypeVar("R")

LEFT = 499
"""The status for the framework if the client has left. It is never sent."""
_PLACES = ("path", "raw_path", "root_path")
"""Fields of the scope that frameworks change before the handler runs. The cache uses their values
as the client sent them."""


class HandlerAnswer(NamedTuple):
    """An answer in place of the handler's."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes | AsyncIterator[bytes]
    """The whole body, or its pieces as they arrive."""


@dataclass(eq=False, repr=False)
class CheckedRequest:
    """One request that passes the app's checks before its lookup.

    The handler looks up once; later calls get None. The engine's side runs in parallel to the
    framework's. The client's messages are read once, for both.
    """

    engine: Engine
    endpoint: MatchedEndpoint
    path: bytes
    of_client: Scope
    """The scope from the server; ``scope`` is the one that the framework gets."""
    receive: InitVar[Receive]
    host_send: Send
    _engine_side: asyncio.Task[None] | None = None
    _to_engine: Send | None = None
    """Takes the app's answer, after the engine has called the app."""
    _shared: bool = False
    """Others may wait for the app's answer, so it goes on when this client leaves."""
    _decided: asyncio.Event = field(default_factory=asyncio.Event)
    _released: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when no client waits for the app's answer any more."""
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _error: BaseException | None = None
    _refusal: Exception | None = None
    _answered: bool = False
    _status: int = 0

    def __post_init__(self, receive: Receive) -> None:
        self.scope = for_all(self.of_client)
        """The scope that the framework works with, and writes into."""
        self.loop = asyncio.get_running_loop()
        self._places = {name: self.of_client[name] for name in _PLACES if name in self.of_client}
        self._incoming = _Incoming(receive, self.engine.options.max_body_bytes)
        self._give, self._take = anyio.create_memory_object_stream[Message](2)

    async def run(self, app: ASGIApp) -> None:
        """Run the app. Raises the app's errors."""
        token = _current.set(self)
        try:
            await app(self.scope, self._receive, self._send)
        except BaseException as error:
            self._error = error
            show_written(self.of_client, self.scope)
            raise
        finally:
            _current.reset(token)
            self._over.set()
            await self._end()
        if self._to_engine is not None and self._refusal is not None:
            raise self._refusal
        if self._engine_side is None and self._status == 200:
            _warn_once(
                f"{self.endpoint.name} has an Endpoint with after_checks=True, but its handler is "
                "not decorated with headstart.after_checks, next to def: nothing is cached"
            )

    async def _end(self) -> None:
        side = self._engine_side
        self._take.close()
        if side is None:
            self._give.close()
            return
        if self._to_engine is None and not self._answered:
            side.cancel()  # the framework has answered in place of the handler
        await asyncio.wait((side,))

    async def look_up(self) -> HandlerAnswer | None:
        """Return the answer in place of the handler's; None if the handler must run.

        Raises errors of the engine, and of a run of the handler for another client.
        """
        if self._engine_side is not None or self._incoming.too_long:
            return None
        self._incoming.wanted = True
        self._engine_side = self.engine.spawn(self._ask, {**self.scope, **self._places})
        await self._decided.wait()
        if self._to_engine is not None:
            return None
        try:
            start, first = await self._take.receive(), await self._take.receive()
        except anyio.EndOfStream:
            if self._refusal is not None:
                raise self._refusal from None
            return HandlerAnswer(LEFT, [], b"")
        body, more = first.get("body", b""), first.get("more_body", False)
        return HandlerAnswer(start["status"], start["headers"], self._rest(body) if more else body)

    async def _rest(self, first: bytes) -> AsyncIterator[bytes]:
        yield first
        async for message in self._take:
            yield message.get("body", b"")
        if self._refusal is not None:
            raise self._refusal

    async def _ask(self, scope: Scope) -> None:
        """Let the engine answer."""
        try:
            receive = functools.partial(self._incoming.next, "engine")
            await self.engine.handle(
                self.endpoint, self.path, scope, receive, self._answer, self._call
            )
        except Exception as error:  # noqa: BLE001 - raised where the framework waits for it
            self._refusal = error
        finally:
            self._decided.set()
            self._give.close()

    async def _answer(self, message: Message) -> None:
        """Send a message of the engine: to the client on a miss, else to the handler."""
        if self._to_engine is not None:
            return await self.host_send(message)
        self._decided.set()
        try:
            await self._give.send(message)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return
        self._answered = not message.get("more_body", True)

    async def _call(self, _: Scope, receive: Receive, send: Send) -> None:
        """Act as the app for the engine: let the handler run, and wait until it has answered."""
        body = await receive()
        self._shared = not body.get("more_body", False)
        self._incoming.wanted = self._shared
        self._to_engine = send
        self._decided.set()
        watcher = self.engine.spawn(watch, receive, self._released.set) if self._shared else None
        try:
            await self._over.wait()
        finally:
            if watcher is not None:
                watcher.cancel()
        if isinstance(self._error, Exception) and not self._released.is_set():
            raise self._error

    async def _send(self, message: Message) -> None:
        """Send a message of the framework."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            show_written(self.of_client, self.scope)
            # Django writes the names of our headers with capitals.
            if self._engine_side is not None:
                named = [(name.lower(), value) for name, value in message.get("headers", ())]
                message = {**message, "headers": named}
        await (self.host_send if self._to_engine is None else self._to_engine)(message)

    async def _receive(self) -> Message:
        """Receive for the framework: the client's messages, and its leaving unless others wait."""
        found: Message = {"type": "http.disconnect"}
        async with anyio.create_task_group() as group:

            async def read() -> None:
                nonlocal found
                message = await self._incoming.next("app")
                if message["type"] == "http.disconnect" and self._shared:
                    return  # the app is told when the last client that waits has left
                found = message
                group.cancel_scope.cancel()

            group.start_soon(read)
            await self._released.wait()
            group.cancel_scope.cancel()
        return found


class _Incoming:
    """The client's messages. They are received once, for two readers: the app and the engine.

    Messages that the engine has not read yet are kept up to ``limit`` bytes.
    """

    def __init__(self, receive: Receive, limit: int) -> None:
        self.wanted = False
        self._receive = receive
        self._left = limit
        self._messages: list[Message] = []
        self._dropped = 0
        self._positions = {"app": 0, "engine": 0}
        self._reading = asyncio.Lock()

    @property
    def too_long(self) -> bool:
        """More bytes were read than the engine accepts."""
        return self._left < 0

    async def next(self, reader: Literal["app", "engine"]) -> Message:
        """Return the next message for one of the readers."""
        at = self._positions[reader]
        while at - self._dropped >= len(self._messages):
            async with self._reading:
                if at - self._dropped < len(self._messages):
                    break
                message = await self._receive()
                self._messages.append(message)
                self._left -= len(message.get("body", b""))
        message = self._messages[at - self._dropped]
        # A disconnect is the last message: both readers get it as often as they ask.
        if message["type"] != "http.disconnect":
            self._positions[reader] = at + 1
            self._drop()
        return message

    def _drop(self) -> None:
        kept = self.wanted or not self.too_long
        done = min(self._positions.values()) if kept else self._positions["app"]
        del self._messages[: done - self._dropped]
        self._dropped = done


_current: ContextVar[CheckedRequest | None] = ContextVar("headstart_checked_request", default=None)
_before: ContextVar[MatchedEndpoint | None] = ContextVar("headstart_endpoint", default=None)
_warned: set[str] = set()
"""The log lines about wrong handlers that were written already."""


@contextlib.contextmanager
def looked_up_before(endpoint: MatchedEndpoint) -> Iterator[None]:
    """Mark the code inside: it serves a request that was looked up before its checks."""
    token = _before.set(endpoint)
    try:
        yield
    finally:
        _before.reset(token)


def after_checks(handler: Callable[P, R]) -> Callable[P, R]:
    """Decorate a handler so that the cache is asked when the app's own checks have passed.

    Put it next to the function, below the framework's decorators and below decorators that check,
    such as ``login_required``. ``HeadstartMiddleware`` needs ``Endpoint(path, after_checks=True)``
    for the path. On a hit the handler does not run; dependencies, guards and middleware do. It
    works in FastAPI, Starlette, Litestar, Quart and Django; with ``async def``, and with ``def``
    where the framework runs it in a thread.
    """
    if not (inspect.isroutine(handler) or isinstance(handler, functools.partial)):
        raise ConfigError(
            f"after_checks takes a function, not {handler!r}: put it below the framework's "
            "decorator, next to def"
        )
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise ConfigError(
            f"after_checks cannot wrap {_name(handler)}, which yields: let it return a "
            "streaming response"
        )
    if inspect.iscoroutinefunction(handler):

        @functools.wraps(handler)
        async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            checked = _checked_request(handler)
            answer = None if checked is None else await checked.look_up()
            if checked is None or answer is None:
                return await handler(*args, **kwargs)
            return _response(checked.scope, args, answer)

        return cast("Callable[P, R]", awaited)

    @functools.wraps(handler)
    def called(*args: P.args, **kwargs: P.kwargs) -> Any:
        checked = _checked_request(handler)
        if checked is None:
            return handler(*args, **kwargs)
        answer = asyncio.run_coroutine_threadsafe(
            checked.look_up(), _outside(checked.loop)
        ).result()
        if answer is None:
            return handler(*args, **kwargs)
        return _response(checked.scope, args, answer)

    return cast("Callable[P, R]", called)


def _checked_request(handler: Callable[..., Any]) -> CheckedRequest | None:
    checked, endpoint = _current.get(), _before.get()
    name = _name(handler)
    if checked is None and endpoint is not None:
        raise ConfigError(
            f"{name} is decorated with after_checks, but the cache was asked before it: give "
            f"Endpoint({endpoint.name!r}) after_checks=True"
        )
    if checked is None:
        _warn_once(
            f"{name} is decorated with after_checks, but no HeadstartMiddleware around it has an "
            "Endpoint(..., after_checks=True) for its path: nothing is cached"
        )
    return checked


def _name(handler: Callable[..., Any]) -> str:
    return getattr(handler, "__qualname__", repr(handler))


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        logger.warning("%s", message)


def _outside(loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
    """Return the loop. Raises ConfigError if the caller runs on it and would block it."""
    with contextlib.suppress(RuntimeError):
        if asyncio.get_running_loop() is loop:
            raise ConfigError(
                "after_checks: a handler that is not a coroutine must run in a thread: write async "
                "def, or in Litestar sync_to_thread=True"
            )
    return loop


def _response(scope: Scope, args: tuple[object, ...], answer: HandlerAnswer) -> object:
    """Return an answer as a response of the framework that called the handler."""
    status, body = answer.status, cast("Any", answer.body)
    is_whole = isinstance(body, bytes)
    if "django" in sys.modules:
        from django import http

        if any(isinstance(each, http.HttpRequest) for each in args):
            kind = http.HttpResponse if is_whole else http.StreamingHttpResponse
            return kind(body, status=status, headers=_texts(answer.headers))
    if "quart" in sys.modules:
        import quart

        if quart.has_request_context():
            return quart.Response(body, status, headers=_texts(answer.headers))
    if "litestar_app" in scope:
        from litestar.response import Response, Stream

        return (Response if is_whole else Stream)(
            body, status_code=status, headers=_texts(answer.headers)
        )
    from starlette import responses

    response = (responses.Response if is_whole else responses.StreamingResponse)(body, status)
    response.raw_headers = [*answer.headers]
    return response


def _texts(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers as text; the values of equal names are joined in one line."""
    texts: dict[str, str] = {}
    for name, value in headers:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        texts[key] = f"{texts[key]}, {text}" if key in texts else text
    return texts
