"""Relays requests to paths that are not cached: byte for byte, both bodies as streams."""

from __future__ import annotations

import asyncio
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from headstart.errors import (
    Forbidden,
    HeadstartError,
    InvalidRequest,
    RequestError,
    UpstreamError,
    UpstreamTimeout,
)
from headstart.middleware.azure_paths import deployment
from headstart.middleware.body import ClientGone, iterate_body, paced, watch
from headstart.middleware.endpoints import has_dot_segment, raw_path
from headstart.middleware.request_context import deadlines
from headstart.middleware.respond import error_response, foreign, response_start, send_whole
from headstart.observe import UpstreamFailed
from headstart.types import Call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from headstart.middleware.asgi_types import Message, Receive, Scope, Send
    from headstart.middleware.concurrency import Gate, Spawn
    from headstart.middleware.identity import AccessControl
    from headstart.middleware.upstreams.http import HTTPUpstream
    from headstart.observe import Observer
    from headstart.types import Headers

PIECES_AHEAD = 4
"""Number of pieces of a request's body that are read before the upstream takes them."""


class Relay:
    """Passes requests on. A request with a wrong key never reaches the upstream.

    ``upstream_for`` picks the upstream by path and headers; it may raise NoUpstream. ``observer``
    hears of failures. ``gate`` bounds how many requests are relayed at once, ``deadline_s`` how
    long each may take, and ``body_timeout_s`` the wait for its body. ``paths`` are patterns of the
    paths that may be relayed, with or without a method.
    """

    def __init__(
        self,
        upstream_for: Callable[[bytes, Headers], HTTPUpstream],
        *,
        gate: Gate,
        spawn: Spawn,
        new_id: Callable[[], str],
        access: AccessControl,
        deadline_s: float | None,
        body_timeout_s: float | None,
        observer: Observer,
        paths: tuple[str, ...] = ("*",),
    ) -> None:
        self._upstream_for = upstream_for
        self._gate = gate
        self._spawn = spawn
        self._new_id = new_id
        self._access = access
        self._deadline_s = deadline_s
        self._observer = observer
        self._body_timeout_s = body_timeout_s
        self._paths = tuple(each if " " in each else f"* {each}" for each in paths)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request with the upstream's answer, or with an error of our own.

        Raises the error if an answer that has begun breaks off. The server then breaks off the
        answer to the client, too.
        """
        request_id = self._new_id()
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._relay(request_id, scope, receive, sending)
        except ClientGone:
            return
        except (RequestError, UpstreamError) as error:
            if started:
                raise
            await _refuse(send, error, request_id)

    async def _relay(self, request_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        call = self._call(request_id, scope)
        upstream = self._upstream_for(call.path, call.headers)
        limit_s = deadlines(call.headers, self._deadline_s).whole_s
        caller: _RelayClient | None = None
        try:
            async with asyncio.timeout(limit_s) as timer:
                caller = _RelayClient(paced(receive, self._body_timeout_s), timer, limit_s)
                reading = self._spawn(caller.read)
                try:
                    await self._pass_on(call, upstream, caller, send)
                except UpstreamError as error:
                    self._note(upstream, error)
                    raise
                finally:
                    reading.cancel()
        except TimeoutError:
            if caller is not None and caller.error is not None:
                raise caller.error from None
            late = UpstreamTimeout(
                f"upstream {upstream.name} did not finish within {limit_s:g} s: "
                "server.deadline_s, or the request's X-Headstart-Deadline-Ms, allows no more"
            )
            self._note(upstream, late)
            raise late from None

    def _note(self, upstream: HTTPUpstream, error: UpstreamError) -> None:
        self._observer.notify(UpstreamFailed(upstream=upstream.name, error=error.code))

    def _call(self, request_id: str, scope: Scope) -> Call:
        """Return the call for the upstream. Raises RequestError if it may not be relayed."""
        self._access.admit(scope)
        path = raw_path(scope)
        if has_dot_segment(path):
            raise InvalidRequest(
                "the path has a '.' or '..' segment, which could lead out of the upstream's "
                "base_url: send the path without it"
            )
        asked = f"{scope['method']} {path.decode('latin-1')}"
        if not any(fnmatchcase(asked, pattern) for pattern in self._paths):
            raise Forbidden("this path is not cached, and server.relay_paths does not let it pass")
        if (b"upgrade", b"websocket") in [(n, v.lower()) for n, v in scope["headers"]]:
            raise InvalidRequest(
                "websockets are not relayed: connect to the provider itself for this path"
            )
        return Call(
            id=request_id,
            method=scope["method"],
            path=path,
            query_string=scope["query_string"],
            headers=tuple(scope["headers"]),
            body=b"",
            dialect="",
            endpoint="relay",
            deployment=deployment(scope),
            editable=False,
        )

    async def _pass_on(
        self, call: Call, upstream: HTTPUpstream, caller: _RelayClient, send: Send
    ) -> None:
        body = caller.body() if _has_body(call.headers) else None
        async with self._gate, await upstream.send(call, body) as reply:
            if reply.status >= 500:
                failed = UpstreamFailed(
                    upstream=reply.upstream, error="server-error", status=reply.status
                )
                self._observer.notify(failed)
            own = (
                (b"cache-status", b"headstart; fwd=bypass; detail=relayed"),
                (b"x-headstart-request-id", call.id.encode()),
                (b"x-headstart-upstream", reply.upstream.encode()),
            )
            theirs = foreign(reply.headers, relayed=True)
            if reply.status == 304:  # it may state a length although it has no body
                theirs = [pair for pair in theirs if pair[0] != b"content-length"]
            await send(response_start(reply.status, (*theirs, *own)))
            async for piece in reply.pieces:
                await send({"type": "http.response.body", "body": piece.data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class _RelayClient:
    """Reads the messages of a client: the body, and then the client's leaving.

    ``error`` is the reason why the call must end before its answer; ``timer`` ends the call.
    """

    def __init__(self, receive: Receive, timer: asyncio.Timeout, limit_s: float | None) -> None:
        self.error: HeadstartError | None = None
        self._receive = receive
        self._timer = timer
        self._limit_s = limit_s
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(PIECES_AHEAD)

    async def read(self) -> None:
        """Read until the client has left. The task is cancelled at the end of the answer."""
        try:
            async for piece in iterate_body(self._receive):
                await self._pieces.put(piece)
                self._extend()
            await self._pieces.put(None)
            await watch(self._receive, self._leave)
        except (ClientGone, RequestError) as error:
            self.error = error
            self._end()

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""
        while (piece := await self._pieces.get()) is not None:
            yield piece

    def _extend(self) -> None:
        """The time limit is counted from the last byte of an upload."""
        if self._limit_s is not None and not self._timer.expired():
            self._timer.reschedule(asyncio.get_running_loop().time() + self._limit_s)

    def _leave(self) -> None:
        self.error = ClientGone()
        self._end()

    def _end(self) -> None:
        if not self._timer.expired():
            self._timer.reschedule(asyncio.get_running_loop().time())


def _has_body(headers: Headers) -> bool:
    for name, value in headers:
        if name == b"transfer-encoding" or (name == b"content-length" and value != b"0"):
            return True
    return False


async def _refuse(send: Send, error: HeadstartError, request_id: str) -> None:
    status, headers, body = error_response(error, None, request_id)
    own = ((b"x-headstart-request-id", request_id.encode()),)
    await send_whole(send, status, (*headers, *own), body)
