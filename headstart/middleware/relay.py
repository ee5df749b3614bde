"""Relaying what is not cached: byte for byte, both bodies streamed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headstart.errors import HeadstartError, RequestError, UpstreamError
from headstart.middleware.body import ClientGone, iterate_body, watch
from headstart.middleware.exchange import raw_path
from headstart.middleware.identity import check_client_key
from headstart.middleware.respond import error_response, response_start, send_whole
from headstart.types import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.middleware.asgi_types import Message, Receive, Scope, Send
    from headstart.middleware.limits import Gate
    from headstart.middleware.supervisor import Spawn
    from headstart.middleware.upstreams.http import HTTPUpstream
    from headstart.types import Headers


class Relay:
    """Passes requests on. Fails closed: a wrong key never reaches the upstream.

    ``upstream_for`` picks it by path and headers; it may raise NoUpstream.
    """

    def __init__(
        self,
        upstream_for: Callable[[bytes, Headers], HTTPUpstream],
        *,
        gate: Gate,
        spawn: Spawn,
        new_id: Callable[[], str],
        client_keys: tuple[bytes, ...],
    ) -> None:
        self._upstream_for = upstream_for
        self._gate = gate
        self._spawn = spawn
        self._new_id = new_id
        self._client_keys = client_keys

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request with the upstream's answer, or with an error of our own."""
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
        headers: Headers = tuple(scope["headers"])
        check_client_key(headers, scope["query_string"], self._client_keys)
        call = Call(
            id=request_id,
            method=scope["method"],
            path=raw_path(scope),
            query_string=scope["query_string"],
            headers=headers,
            body=b"",
            dialect="",
            endpoint="relay",
            editable=False,
        )
        upstream = self._upstream_for(call.path, headers)
        body = iterate_body(None, receive) if _has_body(headers) else None
        async with self._gate, upstream.stream(call, body) as reply:
            own = (
                (b"cache-status", b"headstart; fwd=bypass; detail=relayed"),
                (b"x-headstart-request-id", request_id.encode()),
                (b"x-headstart-upstream", reply.upstream.encode()),
            )
            await send(response_start(reply.status, (*reply.headers, *own)))
            task = asyncio.current_task()
            assert task is not None
            gone = False

            def leave() -> None:
                nonlocal gone
                gone = True
                task.cancel()

            watcher = self._spawn(watch, receive, leave)
            try:
                async for piece in reply.chunks():
                    await send(
                        {"type": "http.response.body", "body": piece.data, "more_body": True}
                    )
            except asyncio.CancelledError:
                if not gone:
                    raise
                task.uncancel()
                raise ClientGone from None
            finally:
                watcher.cancel()
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _has_body(headers: Headers) -> bool:
    for name, value in headers:
        if name == b"transfer-encoding" or (name == b"content-length" and value != b"0"):
            return True
    return False


async def _refuse(send: Send, error: HeadstartError, request_id: str) -> None:
    status, headers, body = error_response(error, None, request_id)
    own = ((b"x-headstart-request-id", request_id.encode()),)
    await send_whole(send, status, (*headers, *own), body)
