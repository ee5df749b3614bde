"""A provider that closes idle connections at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from headstart.errors import UpstreamTimeout, UpstreamUnreachable
from headstart.middleware.upstreams import http
from headstart.middleware.upstreams.http import HTTPUpstream
from headstart.settings import UpstreamSettings
from headstart.sockets import NameLookups
from support.candidates import make_call
from support.patience import PATIENCE_S, until
from support.proxied import Proxied, proxied

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


pytestmark = pytest.mark.anyio

BODY = b"a request"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class ClosingProvider:
    """A provider with all its connections."""

    def __init__(self) -> None:
        self.connections: set[Connection] = set()
        self.made = 0
        """The connections that were ever made."""
        self.heard = 0
        """The requests of which it has read something."""
        self.rude = False
        """It closes a connection instead of answering its second request."""
        self.leaving: set[Connection] = set()
        """These connections are closed at their next request."""

    def close_connections(self) -> None:
        for each in self.connections:
            each.transport.close()


class Connection(asyncio.Protocol):
    """Answers each request."""

    transport: asyncio.Transport

    def __init__(self, provider: ClosingProvider) -> None:
        self._provider = provider
        self._read = b""
        self._answered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._provider.connections.add(self)
        self._provider.made += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._provider.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        self._provider.heard += not self._read
        self._read += data
        if not self._read.endswith(BODY):
            return
        self._read = b""
        if self._provider.rude and self._answered:
            self.transport.close()
            return
        self._answered += 1
        self.transport.write(ANSWER)


@contextlib.asynccontextmanager
async def upstream_of(provider: ClosingProvider) -> AsyncIterator[HTTPUpstream]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(provider), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    upstream = HTTPUpstream(UpstreamSettings(name="u", base_url=f"http://127.0.0.1:{port}"))
    try:
        yield upstream
    finally:
        await upstream.aclose()
        server.close()
        provider.close_connections()
        await server.wait_closed()


async def ask(upstream: HTTPUpstream) -> bytes:
    async with await upstream.send(make_call(BODY)) as reply:
        return b"".join([piece.data async for piece in reply.pieces])


async def ask_at_once(upstream: HTTPUpstream, count: int) -> None:
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(ask(upstream)) for _ in range(count)]
    assert [each.result() for each in asked] == [b"ok"] * count


@pytest.mark.parametrize(("lives_s", "made"), [(60.0, 1), (-1.0, 3)])
async def test_an_old_connection_is_not_used_again(
    lives_s: float, made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under steady traffic it would never be idle, and nobody would see a changed address."""
    monkeypatch.setattr(http, "LIVES_S", lives_s)
    provider = ClosingProvider()
    async with upstream_of(provider) as upstream:
        for _ in range(3):
            assert await ask(upstream) == b"ok"
    assert provider.made == made


async def test_a_search_for_the_address_that_hangs_ends_with_the_time_to_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = threading.Event()
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: ended.wait(PATIENCE_S) and [])
    monkeypatch.setattr("headstart.sockets.MOST_LOOKUPS", 2)
    settings = UpstreamSettings(name="u", base_url="http://provider.test", connect_s=0.05)
    upstreams = [HTTPUpstream(settings) for _ in range(3)]
    try:
        for upstream in upstreams[:2]:
            with pytest.raises(UpstreamTimeout, match="its name was not resolved within"):
                await ask(upstream)
        assert [each.daemon for each in threading.enumerate() if "names" in each.name] == [True] * 2
        with pytest.raises(UpstreamUnreachable, match="2 lookups of names hang"):
            await ask(upstreams[2])
    finally:
        ended.set()
        for upstream in upstreams:
            await upstream.aclose()
    await until(lambda: not NameLookups.under_way)


@pytest.mark.parametrize("turns", range(16))
async def test_a_connection_that_closes_under_a_call_costs_one_retry_at_most(turns: int) -> None:
    """The provider closes all connections after so many turns of the event loop."""
    provider = ClosingProvider()
    async with upstream_of(provider) as upstream:
        await ask_at_once(upstream, 4)
        asked = asyncio.get_running_loop().create_task(ask(upstream))
        for _ in range(turns):
            await asyncio.sleep(0)
        provider.close_connections()
        try:
            assert await asked == b"ok"
        except UpstreamUnreachable:  # it may have heard the request: the retry is booked
            assert await ask(upstream) == b"ok"


@pytest.mark.parametrize("step_s", [None, 0.25], ids=["fine", "coarse"])
async def test_a_request_that_was_not_written_is_sent_on_another_connection(
    monkeypatch: pytest.MonkeyPatch, step_s: float | None
) -> None:
    provider = ClosingProvider()
    if step_s is not None:  # the clock of Windows steps, too
        loop = asyncio.get_running_loop()
        fine = loop.time
        monkeypatch.setattr(loop, "time", lambda: fine() // step_s * step_s)
    is_silent, closed = http._WatchedConnection.is_silent, []

    def close_when_chosen(connection: http._WatchedConnection) -> bool:
        silent = is_silent(connection)
        assert connection.transport is not None
        closed.append(connection)
        # The client library hears of the end after we have tried to write. Its own session writes
        # in a task before Python 3.12.
        if http.POSTS_ITSELF or sys.version_info >= (3, 12):
            connection.transport.close()
        else:
            asyncio.get_running_loop().call_soon(connection.transport.close)
        return silent

    async with upstream_of(provider) as upstream:
        await ask_at_once(upstream, 4)
        monkeypatch.setattr(http._WatchedConnection, "is_silent", close_when_chosen)
        assert await ask(upstream) == b"ok"
        assert len(closed) == 1
        assert provider.heard == 5


async def test_a_retry_meets_no_connection_that_was_idle_when_the_first_one_closed() -> None:
    provider = ClosingProvider()
    async with upstream_of(provider) as upstream:
        await ask_at_once(upstream, 8)
        provider.rude = True
        with pytest.raises(UpstreamUnreachable, match="closed an idle connection"):
            await ask(upstream)
        assert await ask(upstream) == b"ok"
        assert provider.heard == 10


DOCUMENT = (
    b'{"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [{"index": 0,'
    b' "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]}'
)


class Chat(Connection):
    """Answers each chat, whose body ends with a brace."""

    def data_received(self, data: bytes) -> None:
        if not data.endswith(b"}"):
            return
        if self in self._provider.leaving:
            self.transport.close()
        else:
            length = b"content-length: %d\r\n" % len(DOCUMENT)
            self.transport.write(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n" + DOCUMENT)


BURST = 40
"""More requests than the retry budget has retries."""


@contextlib.asynccontextmanager
async def chatting(provider: ClosingProvider) -> AsyncIterator[str]:
    server = await asyncio.get_running_loop().create_server(lambda: Chat(provider), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.close()
        provider.close_connections()
        await server.wait_closed()


async def chat_at_once(proxy: Proxied, text: str) -> list[int]:
    """Return the statuses of a burst of chats."""
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(proxy.ask(f"{text} {each}")) for each in range(BURST)]
    return [each.result().status for each in asked]


async def test_requests_that_cross_the_end_of_idle_connections_are_all_retried() -> None:
    """From a provider far away, the end of a connection arrives after a request was written."""
    provider = ClosingProvider()
    async with chatting(provider) as url, proxied(provider={"base_url": url}) as proxy:
        await chat_at_once(proxy, "first")
        provider.leaving = {*provider.connections}
        statuses = await chat_at_once(proxy, "then")
        assert statuses == [200] * BURST
        retried = sum(len(row.attempts) == 2 for row in proxy.served)
        assert retried > BURST / 2  # the budget alone has ten at once, and a fifth of the calls


async def test_a_provider_that_fails_while_it_thinks_is_retried_within_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "CROSSED_S", 0.0)
    provider = ClosingProvider()
    async with chatting(provider) as url, proxied(provider={"base_url": url}) as proxy:
        await chat_at_once(proxy, "first")
        provider.leaving = {*provider.connections}
        statuses = await chat_at_once(proxy, "then")
        assert {*statuses} == {200, 502}
