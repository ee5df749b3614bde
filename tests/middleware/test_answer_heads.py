"""The heads of answers, which the sidecar's server writes itself: they are those of uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from headstart.middleware import http_protocol
from headstart.middleware.http_protocol import BoundedHeadProtocol
from headstart.middleware.respond import WITH_BODY
from support.raw_upstream import ask_raw

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from headstart.types import Receive, Scope, Send

pytestmark = pytest.mark.anyio

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = GET[:-2] + b"Connection: close\r\n\r\n"
HEAD = GET.replace(b"GET", b"HEAD")
OLD = GET.replace(b"1.1", b"1.0")
KIND = (b"content-type", b"text/plain")
SIZE = (b"content-length", b"2")
DATE = (b"date", b"Sun, 29 Nov 2026 12:00:00 GMT")


async def answer(
    protocol: type[HttpToolsProtocol],
    request: bytes,
    status: int,
    headers: Sequence[tuple[bytes, bytes]],
    common: Sequence[tuple[bytes, bytes]],
) -> bytes:
    """Return the bytes of the answers to a request and to one more, which ends the connection."""

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": status, "headers": [*headers]})
        for data, more in ((b"o", True), (b"k", False)):
            await send({"type": "http.response.body", "body": data, "more_body": more})

    async with serving(protocol, app, common) as url:
        return await ask_raw(url, request + LAST)


@contextlib.asynccontextmanager
async def serving(
    protocol: type[HttpToolsProtocol], app: Any, common: Sequence[tuple[bytes, bytes]] = (DATE,)
) -> AsyncIterator[str]:
    """Serve the app, and wait at the end until it has answered."""
    config = uvicorn.Config(app, lifespan="off", log_level="critical", access_log=False)
    config.load()
    state, loop = ServerState(), asyncio.get_running_loop()
    state.default_headers = [*common]

    def made() -> Any:
        return protocol(config=config, server_state=state, app_state={}, _loop=loop)

    server = await loop.create_server(made, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        while state.tasks:
            await asyncio.wait(state.tasks)


@pytest.mark.parametrize("request_bytes", [GET, HEAD, OLD, b""], ids=["get", "head", "1.0", "last"])
@pytest.mark.parametrize("status", [200, 204, 304, 404, 599])
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [KIND, SIZE],
        [KIND],
        [(b"X-Per%cent-%b", b"100 %d of %b"), SIZE],
        [(b"x-latin", "\u00e9".encode("latin-1")), (b"x-tab", b"a\tb"), (b"x-empty", b""), SIZE],
        [(b"Set-Cookie", b"a=1"), (b"set-cookie", b"b=2"), SIZE],
        [(b"Transfer-Encoding", b"Chunked"), KIND],
        [(b"connection", b"close"), SIZE],
        [(b"connection", b"keep-alive"), SIZE],
        [SIZE, SIZE],
    ],
)
async def test_they_are_those_of_uvicorn(
    request_bytes: bytes, status: int, headers: list[tuple[bytes, bytes]]
) -> None:
    given = request_bytes, status, headers
    # The names are known at the second time.
    for common in ([DATE], [DATE], [], [DATE, (b"connection", b"close")]):
        own = await answer(BoundedHeadProtocol, *given, common)
        theirs = await answer(HttpToolsProtocol, *given, common)
        if request_bytes is OLD:  # uvicorn sends chunks to a client that does not know them
            own, theirs = (said.partition(b"\r\n")[0] for said in (own, theirs))
        assert own == theirs


@pytest.mark.parametrize(
    "pair",
    [
        (b"x-split", b"a\r\nset-cookie: b"),
        (b"x-line", b"a\nb"),
        (b"x-nul", b"a\0b"),
        (b"x-delete", b"\x7f"),
        (b"x split", b"a"),
        (b"x:y", b"a"),
        (b"x\r\ny", b"a"),
    ],
)
async def test_a_header_that_would_become_another_one_is_refused(pair: tuple[bytes, bytes]) -> None:
    for _ in range(2):
        said = await answer(BoundedHeadProtocol, b"", 200, [KIND, pair, SIZE], [DATE])
        assert said == b""


async def test_usual_heads_are_written_without_uvicorn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the tests above would compare uvicorn with itself."""
    begun = []
    begin = http_protocol._begin_answer

    def noted(*given: Any) -> bool:
        begun.append(begin(*given))
        return begun[-1]

    monkeypatch.setattr(http_protocol, "_begin_answer", noted)
    for headers in ([KIND, SIZE], [KIND]):
        assert b"ok" in (await answer(BoundedHeadProtocol, GET, 200, headers, [DATE])).replace(
            b"o\r\n1\r\nk", b"ok"
        )
    assert begun == [True, False, True, False]


class Recorded:
    """A connection that notes its calls of ``write``."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        self.transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


def recording(recorded: list[Recorded]) -> type[BoundedHeadProtocol]:
    """Return the protocol of a server that records the writes of each connection."""

    class Protocol(BoundedHeadProtocol):
        def connection_made(self, transport: Any) -> None:
            recorded.append(Recorded(transport))
            super().connection_made(recorded[-1])  # type: ignore[arg-type]

    return Protocol


@pytest.mark.parametrize("headers", [[KIND, SIZE], [KIND]], ids=["whole", "chunked"])
async def test_the_head_leaves_with_the_first_piece_of_the_body(
    headers: list[tuple[bytes, bytes]],
) -> None:
    recorded: list[Recorded] = []
    said = await answer(recording(recorded), GET, 200, headers, [DATE])
    head, _, piece = recorded[0].writes[0].partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert piece in (b"o", b"1\r\no\r\n")
    assert b"".join(recorded[0].writes) == said


async def test_the_head_does_not_wait_for_a_body_that_is_late() -> None:
    seen = asyncio.Event()

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [KIND, SIZE]})
        await asyncio.wait_for(seen.wait(), 10.0)
        await send({"type": "http.response.body", "body": b"ok"})

    async with serving(BoundedHeadProtocol, app) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(GET)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        seen.set()
        assert await reader.readexactly(2) == b"ok"
        writer.close()
        await writer.wait_closed()


async def test_a_head_whose_body_follows_waits_for_it_without_a_timer() -> None:
    """A timer would cost one more turn of the event loop for each answer."""

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await receive()
        begin = {"type": "http.response.start", "status": 200, "headers": [KIND, SIZE]}
        await send({**begin, WITH_BODY: True})
        await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": b"ok"})

    recorded: list[Recorded] = []
    async with serving(recording(recorded), app) as url:
        await ask_raw(url, GET + LAST)
    assert recorded[0].writes[0].endswith(b"\r\n\r\nok")


@pytest.mark.parametrize("more", [{}, {WITH_BODY: True}], ids=["alone", "with its body"])
@pytest.mark.parametrize("waits", [False, True])
async def test_an_app_that_fails_after_the_head_ends_the_answer_there(
    waits: bool, more: dict[str, bool]
) -> None:
    begin = {"type": "http.response.start", "status": 200, **more}

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({**begin, "headers": [KIND, SIZE]})
        if waits:
            await asyncio.sleep(0.05)
        raise RuntimeError("no body")

    said = []
    for protocol in (BoundedHeadProtocol, HttpToolsProtocol):
        async with serving(protocol, app) as url:
            said.append(await ask_raw(url, GET))
    assert said[0] == said[1]
    assert said[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert said[0].endswith(b"\r\n\r\n")


async def test_an_answer_in_the_turn_in_which_the_client_leaves_raises_nothing() -> None:
    """Python 3.12 and later raise TypeError if ``writelines`` is called here."""
    left, ends = asyncio.Event(), []

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await left.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [KIND, SIZE]})
        await send({"type": "http.response.body", "body": b"ok"})
        ends.append("answered")

    class Protocol(BoundedHeadProtocol):
        def eof_received(self) -> None:
            left.set()
            super().eof_received()

    async with serving(Protocol, app) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(GET)
        writer.write_eof()
        await reader.read()
        writer.close()
        await writer.wait_closed()
    assert ends == ["answered"]


async def test_a_head_that_waits_while_the_client_leaves_raises_nothing() -> None:
    """A write to a connection that is closed raises RuntimeError with uvloop."""
    failed = []

    async def check() -> None:
        loop, left, gone = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        loop.set_exception_handler(lambda _, context: failed.append(context))

        async def app(_: Scope, receive: Receive, send: Send) -> None:
            await receive()
            await left.wait()
            await send({"type": "http.response.start", "status": 200, "headers": [KIND, SIZE]})
            await gone.wait()

        class Protocol(BoundedHeadProtocol):
            def eof_received(self) -> None:
                left.set()
                super().eof_received()

            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                loop.call_later(0.01, gone.set)

        async with serving(Protocol, app) as url:
            _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            writer.write(GET)
            writer.close()
            await writer.wait_closed()
            await gone.wait()

    await asyncio.to_thread(uvloop.run, check())
    assert not failed


async def test_no_interim_answer_follows_the_head() -> None:
    """The client has sent its body without waiting for permission (100 Continue)."""
    began = asyncio.Event()

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await began.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [KIND, SIZE]})
        await receive()
        await send({"type": "http.response.body", "body": b"ok"})

    class Protocol(BoundedHeadProtocol):
        def on_message_complete(self) -> None:
            super().on_message_complete()
            began.set()

    asked = b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\na"
    async with serving(Protocol, app) as url:
        said = await ask_raw(url, GET.replace(b"GET", b"POST")[:-2] + asked + LAST)
    assert b"100 Continue" not in said
    assert said.count(b"\r\n\r\nok") == 2
