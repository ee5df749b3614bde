"""Clients that do not finish what they send, on real sockets with short limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from headstart import HeadstartMiddleware
from headstart.errors import RequestTimeout
from headstart.middleware.body import read_body
from headstart.middleware.http_protocol import CONNECTIONS_FOR_CHECKS, BoundedHeadProtocol
from support.patience import PATIENCE_S, until
from support.raw_upstream import OK, RawUpstream, ask_raw, open_raw, sidecar_before
from support.scripted import ScriptedUpstream
from support.serving import KEPT_ALIVE_S, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

PATHS = ["/v1/chat/completions", "/v1/messages", "/v1beta/models/m:generateContent", "/v1/files"]
ALIVE = b"GET /_headstart/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
ALIVE_ON = ALIVE.replace(b"Connection: close\r\n", b"")


@contextlib.asynccontextmanager
async def sidecar(
    upstream: RawUpstream,
    *,
    head_s: float | None = None,
    connections: int | None = None,
    **server: Any,
) -> AsyncIterator[str]:
    """A sidecar with these limits, in front of an upstream of each dialect."""

    class Protocol(BoundedHeadProtocol):
        head_timeout_s = head_s
        max_connections = connections

    async with sidecar_before(upstream, Protocol, **server) as url:
        yield url


def post(path: str, length: int, more: str = "") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{more}\r\n"
    ).encode()


async def read_all(reader: asyncio.StreamReader) -> bytes:
    """Return what came until the connection ended, by a reset too."""
    came = b""
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                came += data
    return came


async def closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Wait until the server closes, and return what it had sent."""
    try:
        return await read_all(reader)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


# --- heads -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"\r\n",
        b"G",
        b"GET /v1/x HTTP/1.1\r\nHost: loc",
        ALIVE_ON + b"POST /v1/chat",
    ],
)
async def test_connections_without_a_whole_head_are_closed_while_others_work(begun: bytes) -> None:
    async with sidecar(RawUpstream(), head_s=0.2) as url:
        late = [await open_raw(url, begun) for _ in range(50)]
        assert b"alive" in await ask_raw(url, ALIVE)
        answers = [await closed(*each) for each in late]
    assert all((b"alive" in answer) is begun.startswith(ALIVE_ON) for answer in answers)


@pytest.mark.parametrize("begun", [b"\r\n", b"G"])
async def test_connections_in_use_without_a_whole_next_head_are_closed(begun: bytes) -> None:
    async with sidecar(RawUpstream(), head_s=0.2) as url, asyncio.timeout(KEPT_ALIVE_S / 2):
        late = [await open_raw(url, ALIVE_ON) for _ in range(50)]
        for reader, writer in late:
            assert b"alive" in await reader.readuntil(b"}")
            writer.write(begun)
        assert b"alive" in await ask_raw(url, ALIVE)
        assert {await closed(*each) for each in late} == {b""}


async def test_a_head_that_trickles_is_closed() -> None:
    async with sidecar(RawUpstream(), head_s=0.2) as url:
        reader, writer = await open_raw(url, b"GET /v1/x HTTP/1.1\r\n")

        async def trickle() -> None:
            with contextlib.suppress(ConnectionError):
                while not writer.is_closing():
                    writer.write(b"X-More: 1\r\n")
                    await writer.drain()
                    await asyncio.sleep(0.01)

        async with asyncio.TaskGroup() as group:
            trickling = group.create_task(trickle())
            assert await read_all(reader) == b""
            trickling.cancel()
        writer.close()


async def test_an_answer_on_its_way_outlives_a_late_next_head() -> None:
    upstream = RawUpstream(answer=None)
    async with sidecar(upstream, head_s=0.05) as url:
        first = b"GET /v1/x HTTP/1.1\r\nHost: localhost\r\n\r\n"
        reader, writer = await open_raw(url, first + b"GET /v1/y HT")
        await until(lambda: len(upstream.requests) == 1)
        # Only now is the next head late; silent connections show when that is.
        assert await closed(*await open_raw(url, b"")) == b""
        assert await closed(*await open_raw(url, b"")) == b""
        upstream.speak(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        async with asyncio.timeout(KEPT_ALIVE_S / 2):  # the answer ends the connection
            answer = await closed(reader, writer)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"{}")


def head(path: str, more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode()


async def test_beyond_its_connections_the_server_answers_health_checks_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    upstream = RawUpstream()
    async with sidecar(upstream, connections=3) as url:
        kept = [await open_raw(url, ALIVE_ON) for _ in range(3)]
        for reader, _ in kept:
            assert b"alive" in await reader.readuntil(b"}")
        # No check asks to close the connection: the server does that.
        alive, ready = [
            await closed(*await open_raw(url, head(f"/_headstart/{path}")))
            for path in ("health", "ready")
        ]
        refused = await closed(*await open_raw(url, post(PATHS[0], 200_000) + b" " * 200_000))
        key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        upgrade = f"Connection: Upgrade\r\nUpgrade: websocket\r\n{key}"
        websocket = await closed(*await open_raw(url, head("/v1/realtime", upgrade)))
        for reader, writer in kept:
            writer.write(ALIVE)
            assert b"alive" in await closed(reader, writer)
        assert b"alive" in await ask_raw(url, ALIVE)
        assert upstream.requests == []
    assert alive.startswith(b"HTTP/1.1 200")
    assert b'"status":"ready"' in ready
    for answer in (refused, websocket):
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in answer
        assert (
            "server.max_connections"
            in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
        )
    ours = [record.getMessage() for record in caplog.records if record.name == "headstart"]
    assert ours == [
        "3 connections are open: new ones get 503. server.max_connections sets the limit"
    ]


async def test_connections_for_checks_are_few_and_soon_free_again() -> None:
    async with sidecar(RawUpstream(), connections=1) as url:
        kept, *extra = [await open_raw(url, b"") for _ in range(1 + CONNECTIONS_FOR_CHECKS)]
        assert (await closed(*await open_raw(url, b""))).startswith(b"HTTP/1.1 503")
        assert {await closed(*each) for each in extra} == {b""}
        assert b"alive" in await closed(*await open_raw(url, head("/_headstart/health")))
        kept[1].close()


# --- bodies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_that_stops_is_a_408_in_the_callers_dialect(path: str) -> None:
    upstream = RawUpstream(answer=None)
    async with sidecar(upstream, head_s=0.2, body_timeout_s=0.2) as url:
        late = [await open_raw(url, post(path, 100) + b'{"model"') for _ in range(20)]
        assert b"alive" in await ask_raw(url, ALIVE)
        answers = [await closed(*each) for each in late]
        await until(lambda: upstream.open == 0)
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 408")
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert "server.body_timeout_s" in error["message"]


async def test_a_body_that_trickles_is_a_408() -> None:
    async with sidecar(RawUpstream(), head_s=0.1, body_timeout_s=0.2) as url:
        reader, writer = await open_raw(url, post(PATHS[0], 10_000_000))

        async def trickle() -> None:
            with contextlib.suppress(ConnectionError):
                while not writer.is_closing():
                    writer.write(b" ")
                    await writer.drain()
                    await asyncio.sleep(0.01)

        async with asyncio.TaskGroup() as group:
            trickling = group.create_task(trickle())
            answer = await read_all(reader)
            trickling.cancel()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files"])
async def test_a_large_body_over_a_slow_line_comes_through(path: str) -> None:
    upstream = RawUpstream()
    pieces = [b" " * 4096] * 30
    end = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
    length = sum(map(len, pieces)) + len(end)
    async with sidecar(upstream, head_s=30, body_timeout_s=1.0) as url:
        reader, writer = await open_raw(url, post(path, length, "Connection: close\r\n"))
        for piece in pieces:  # longer in all than the timeout
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.05)
        writer.write(end)
        assert (await closed(reader, writer)).startswith(b"HTTP/1.1 ")
    assert upstream.body() == b"".join(pieces) + end


async def test_patience_is_not_saved_up() -> None:
    """A client cannot send much at once and then keep its connection for hours."""
    sent = [{"type": "http.request", "body": b"x" * 10_000_000, "more_body": True}]
    never = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if sent:
            return sent.pop()
        await never.wait()
        return {"type": "http.disconnect"}

    with pytest.raises(RequestTimeout):
        async with asyncio.timeout(PATIENCE_S):
            await read_body(receive, 20_000_000, 0.05)


async def test_a_wrapped_apps_server_has_limits_of_its_own() -> None:
    app = HeadstartMiddleware(ScriptedUpstream())
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
    async with serving(app) as url:
        head = post(PATHS[0], len(body), "Connection: close\r\nAuthorization: Bearer k\r\n")
        reader, writer = await open_raw(url, head)
        writer.write(body)
        assert (await closed(reader, writer)).startswith(b"HTTP/1.1 200")


# --- requests behind the one in progress ------------------------------------------------------

HELLO = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
ASK = post(PATHS[0], len(HELLO), "Authorization: Bearer k\r\n") + HELLO
RELAY = b"GET /v1/x HTTP/1.1\r\nHost: localhost\r\n\r\n"
BIG = post(PATHS[0], 1_000_000) + b" " * 1_000_000
BEHIND = {
    "a chat": ASK,
    "a relay": RELAY,
    "many": ALIVE_ON * 3000,
    "a local answer": ALIVE_ON,
    "a large body": BIG,
    "a part of a body": post("/v1/files", 1_000_000) + b"x" * 80_000,
    "a part of a head": b"GET /v1/y HTTP/1.1\r\nX-More: ",
    "a large head": b"GET /v1/y HTTP/1.1\r\nX-More: " + b"x" * 500_000,
    "no HTTP": b"\x16\x03\x01 hello\r\n\r\n",
}


@pytest.mark.parametrize("first", [ASK, RELAY], ids=["chat", "relay"])
@pytest.mark.parametrize("behind", list(BEHIND))
async def test_a_client_that_leaves_is_noticed_whatever_it_sent_behind(
    first: bytes, behind: str
) -> None:
    upstream = RawUpstream(answer=None)
    limits = {"max_relays": 2, "max_concurrency": 2, "max_queue": 2}
    async with sidecar(upstream, **limits) as url, asyncio.timeout(PATIENCE_S):
        for _ in range(6):
            upstream.requests.clear()
            _, writer = await open_raw(url, first + BEHIND[behind])
            await until(lambda: len(upstream.requests) == 1)
            writer.close()
            await until(lambda: upstream.open == 0)
        upstream.answer = OK
        for request in (ASK, RELAY):
            reader, writer = await open_raw(url, request)
            status = (await reader.readline()).split(b" ")[1]
            assert status == (b"502" if request is ASK else b"200")  # "{}" is no completion
            writer.close()


async def test_the_sidecar_notices_without_a_task_that_a_client_leaves() -> None:
    upstream = RawUpstream(answer=None)
    async with sidecar(upstream) as url, asyncio.timeout(PATIENCE_S):
        _, writer = await open_raw(url, ASK)
        await until(lambda: len(upstream.requests) == 1)
        waiting = [getattr(task.get_coro(), "__name__", "") for task in asyncio.all_tasks()]
        assert "run" in waiting  # the call itself
        assert "watch" not in waiting
        writer.close()
        await until(lambda: upstream.open == 0)


@pytest.mark.parametrize("late", [False, True])
async def test_the_sidecars_server_tells_once_that_a_client_has_left(late: bool) -> None:
    begun, left = asyncio.Event(), asyncio.Event()
    told: list[str] = []

    def tell() -> None:
        told.append("gone")
        left.set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == HELLO
        begun.set()
        if late:
            assert (await receive())["type"] == "http.disconnect"
        receive.when_gone(lambda: told.append("cancelled")).cancel()
        receive.when_gone(tell)
        assert not told  # not before the caller has the result
        await left.wait()

    async with serving(app, http=BoundedHeadProtocol, lifespan="off") as url:
        _, writer = await open_raw(url, ASK)
        async with asyncio.timeout(PATIENCE_S):
            await begun.wait()
            writer.close()
            await left.wait()
    assert told == ["gone"]


def spoken(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


async def test_small_requests_behind_one_another_are_answered_in_order() -> None:
    upstream = RawUpstream(answer=None)
    last = RELAY.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    async with sidecar(upstream) as url:
        reader, writer = await open_raw(url, RELAY + ALIVE_ON * 40 + last)
        await until(lambda: len(upstream.requests) == 1)
        upstream.answer = spoken(b"second")
        upstream.speak(spoken(b"first"))
        answer = await closed(reader, writer)
    words = [answer.find(word) for word in (b"first", b"alive", b"second")]
    assert -1 not in words
    assert words == sorted(words)
    assert answer.count(b"HTTP/1.1 200") == 42
    assert answer.endswith(b"second")


async def test_a_body_behind_a_request_in_progress_comes_through() -> None:
    upstream = RawUpstream(answer=None)
    body = b"x" * 20_000
    async with sidecar(upstream) as url:
        reader, writer = await open_raw(url, RELAY + post("/v1/files", len(body)) + body[:9000])
        await until(lambda: len(upstream.requests) == 1)
        writer.write(body[9000:] + ALIVE)
        upstream.answer = OK
        upstream.speak(OK)
        answer = await closed(reader, writer)
    assert upstream.body(1) == body
    assert answer.count(b"HTTP/1.1 200") == 3
    assert b"alive" in answer


@pytest.mark.parametrize("behind", ["many", "a large body", "a large head", "no HTTP"])
async def test_requests_beyond_the_bound_are_dropped_and_the_others_answered(behind: str) -> None:
    upstream = RawUpstream(answer=None)
    async with sidecar(upstream) as url:
        reader, writer = await open_raw(url, RELAY + ALIVE_ON + BEHIND[behind])
        await until(lambda: len(upstream.requests) == 1)
        upstream.speak(spoken(b"first"))
        async with asyncio.timeout(PATIENCE_S):
            assert b"first" in await reader.readuntil(b"first")
            assert b"alive" in await reader.readuntil(b"}")
        answer = await closed(reader, writer)
    assert len(upstream.requests) == 1
    assert b"HTTP/1.1 4" not in answer
    assert 1 + answer.count(b"HTTP/1.1 200") < 200


# --- the key before the body -----------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
async def test_a_wrong_key_is_refused_before_the_body_comes(path: str) -> None:
    wrong = "Authorization: Bearer wrong\r\n"
    async with sidecar(RawUpstream(), head_s=0.2, client_keys=["right"]) as url:
        reader, writer = await open_raw(url, post(path, 30_000_000, wrong) + b"x" * 1000)
        async with asyncio.timeout(PATIENCE_S):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 401")
        await closed(reader, writer)  # though the rest of the body never comes


async def test_a_client_with_a_wrong_key_that_sends_its_whole_body_reads_the_refusal() -> None:
    wrong = "Authorization: Bearer wrong\r\n"
    async with sidecar(RawUpstream(), head_s=20, client_keys=["right"]) as url:
        body = b"x" * 5_000_000
        reader, writer = await open_raw(url, post(PATHS[0], len(body), wrong))
        writer.write(body)
        await writer.drain()
        async with asyncio.timeout(PATIENCE_S):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            assert b"invalid_api_key" in await reader.readexactly(length)
        writer.write(ALIVE)
        answer = await closed(reader, writer)
    assert head.startswith(b"HTTP/1.1 401")
    assert b"alive" in answer  # the connection is still good: all of the body was dropped


# --- what is not relayed ---------------------------------------------------------------------


async def test_only_listed_paths_are_relayed_if_there_is_a_list() -> None:
    upstream = RawUpstream()
    listed = ["/v1/models", "GET /v1/models/*", "POST /v1/embeddings"]
    cases = {
        ("GET", "/v1/models"): 200,
        ("GET", "/v1/models/m"): 200,
        ("POST", "/v1/embeddings"): 200,
        ("GET", "/v1/embeddings"): 403,
        ("DELETE", "/v1/models/m"): 403,
        ("GET", "/v1/files"): 403,
        ("GET", "/v1//models"): 403,
        ("GET", "/v1/%6dodels"): 403,
        ("GET", "/v1/models/%2e%2e/files"): 400,
    }
    async with sidecar(upstream, relay_paths=listed) as url:
        for (method, path), status in cases.items():
            head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            head += "Content-Length: 0\r\n\r\n"
            answer = await ask_raw(url, head.encode())
            assert answer.startswith(f"HTTP/1.1 {status}".encode()), (method, path, answer)
            assert (b"server.relay_paths" in answer) is (status == 403)
    # Beside them there are only our own requests for the lists of models.
    asked = {b" ".join(request.split(b" ", 2)[:2]).decode() for request in upstream.requests}
    relayed = {each for each in asked if "?" not in each}
    assert relayed == {f"{method} {path}" for (method, path), ok in cases.items() if ok == 200}


async def test_a_websocket_is_answered_clearly_where_the_server_knows_none() -> None:
    upgrade = (
        b"GET /v1/realtime?model=m HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    upstream = RawUpstream()
    async with sidecar(upstream) as url:
        reader, writer = await open_raw(url, upgrade)
        async with asyncio.timeout(PATIENCE_S):
            answer = await reader.readuntil(b"}}")
        writer.close()
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"does not upgrade" in answer
    assert upstream.requests == []
