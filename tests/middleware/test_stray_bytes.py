"""A provider that sends more than was asked: its bytes never answer the next call."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

import aiohttp
import pytest

from headstart.errors import UpstreamError
from headstart.middleware.concurrency import Supervisor
from headstart.middleware.upstreams.http import HTTPUpstream
from headstart.middleware.upstreams.outgoing import READ_BYTES
from headstart.settings import UpstreamSettings
from support.candidates import make_call
from support.patience import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headstart.types import Call

pytestmark = pytest.mark.anyio

SECOND = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nSMUGGLED"
STRAY = {
    "a second answer": SECOND,
    "many answers": SECOND * 20,
    "an early hint": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n",
    "half a head": SECOND[:21],
    "half an answer": SECOND[:-3],
    "an empty line and an answer": b"\r\n" + SECOND,
    "a chunk": b"8\r\nSMUGGLED\r\n0\r\n\r\n",
    "noise": b"\x00\x01 not HTTP",
}
ENDINGS = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b",
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n",
    "204": b"HTTP/1.1 204 No Content\r\n\r\n",
    "304": b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n",
}


class Stray(NamedTuple):
    """What follows the first answer: in its segment, and later, each piece after so many seconds"""

    joined: bytes = b""
    later: tuple[tuple[float, bytes], ...] = ()


class Hostile:
    """Answers each request with its own path, and the first one of all with more than that."""

    def __init__(self, ending: str, stray: Stray) -> None:
        self._ending = ENDINGS[ending]
        self._stray = stray
        self._writers: list[asyncio.StreamWriter] = []
        self.sent = asyncio.Event()
        """All of the stray bytes went out, or their connection was closed."""
        self.asked: list[tuple[str, str, int]] = []
        """Method, path and the number of the connection."""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        number = len(self._writers)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, path, _ = head.split(b" ", 2)
                self.asked.append((method.decode(), path.decode(), number))
                await self._answer(writer, method, path, first=len(self.asked) == 1)
        writer.close()

    async def _answer(
        self, writer: asyncio.StreamWriter, method: bytes, path: bytes, *, first: bool
    ) -> None:
        ending = self._ending if first else ENDINGS["length"]
        if method == b"HEAD":
            answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
        else:
            answer = ending % (len(path), path) if b"%b" in ending else ending
        # Head and body apart, so that the body's end and what follows it come in one segment.
        cut = answer.index(b"\r\n\r\n") + 4 if b"%b" in ending else 0
        writer.write(answer[:cut])
        await writer.drain()
        await asyncio.sleep(0.002 if first and cut else 0)
        writer.write(answer[cut:] + (self._stray.joined if first else b""))
        await writer.drain()
        if not first:
            return
        with contextlib.suppress(ConnectionError):
            for wait_s, piece in self._stray.later:
                await asyncio.sleep(wait_s)
                writer.write(piece)
                await writer.drain()
        self.sent.set()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@contextlib.asynccontextmanager
async def hostile(ending: str, stray: Stray) -> AsyncIterator[tuple[Hostile, str]]:
    peer = Hostile(ending, stray)
    server = await asyncio.start_server(peer.talk, "127.0.0.1", 0)
    try:
        yield peer, "http://{}:{}".format(*server.sockets[0].getsockname())
    finally:
        server.close()
        peer.close()
        await server.wait_closed()


def call_of(path: str, method: str = "GET") -> Call:
    return make_call(method=method, path=path.encode())


async def ask(upstream: HTTPUpstream, path: str, method: str = "GET") -> bytes:
    async with await upstream.send(call_of(path, method)) as reply:
        return b"".join([piece.data async for piece in reply.pieces])


async def answers_after(ending: str, stray: Stray, method: str = "GET") -> list[bytes]:
    """Return what three calls got that were made after a first one, and its stray bytes."""
    async with hostile(ending, stray) as (peer, url):
        upstream = HTTPUpstream(UpstreamSettings(name="u", base_url=url))
        try:
            # An answer that is not HTTP from its second byte on may fail; the next ones may not.
            with contextlib.suppress(UpstreamError):
                await ask(upstream, "/first", method)
            async with asyncio.timeout(PATIENCE_S):
                await peer.sent.wait()
                return [await ask(upstream, f"/{number}") for number in range(3)]
        finally:
            await upstream.aclose()


OWN = [b"/0", b"/1", b"/2"]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("stray", STRAY)
@pytest.mark.parametrize("wait_s", [0.0, 0.001, 0.05])
async def test_bytes_after_an_answer_reach_no_other_call(
    ending: str, stray: str, wait_s: float
) -> None:
    assert await answers_after(ending, Stray(later=((wait_s, STRAY[stray]),))) == OWN


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("stray", STRAY)
async def test_bytes_in_the_segment_of_an_answers_end_reach_no_other_call(
    ending: str, stray: str
) -> None:
    assert await answers_after(ending, Stray(joined=STRAY[stray])) == OWN


@pytest.mark.parametrize("ending", ["length", "chunked"])
@pytest.mark.parametrize("cut", range(1, len(SECOND), 6))
async def test_bytes_that_come_in_parts_reach_no_other_call(ending: str, cut: int) -> None:
    parts = Stray(SECOND[:cut], ((0.001, SECOND[cut:]),))
    assert await answers_after(ending, parts) == OWN
    parts = Stray(later=((0.0, SECOND[:cut]), (0.001, SECOND[cut:])))
    assert await answers_after(ending, parts) == OWN


@pytest.mark.parametrize("stray", STRAY)
async def test_a_body_after_an_answer_to_head_reaches_no_other_call(stray: str) -> None:
    assert await answers_after("length", Stray(joined=STRAY[stray]), "HEAD") == OWN
    assert await answers_after("length", Stray(later=((0.001, STRAY[stray]),)), "HEAD") == OWN


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\nX-A : secret\r\n\r\n", "Invalid header token"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na", "Content-Length"),
        (b"secret nonsense\r\n\r\n", "HTTP"),
    ],
)
async def test_an_answer_that_is_not_http_is_told_and_not_quoted(head: bytes, reason: str) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        url = "http://{}:{}".format(*server.sockets[0].getsockname())
        upstream = HTTPUpstream(UpstreamSettings(name="u", base_url=url))
        with pytest.raises(UpstreamError, match="no valid HTTP") as raised:
            await ask(upstream, "/0")
        await upstream.aclose()
    assert reason in str(raised.value)
    assert "secret" not in str(raised.value)


async def test_a_silent_connection_is_used_again() -> None:
    async with hostile("length", Stray()) as (peer, url):
        upstream = HTTPUpstream(UpstreamSettings(name="u", base_url=url))
        for number in range(3):
            await ask(upstream, f"/{number}")
        await upstream.aclose()
    assert {connection for *_, connection in peer.asked} == {1}


async def test_a_warmed_connection_with_more_on_it_is_not_used() -> None:
    supervisor = Supervisor()
    async with hostile("length", Stray(joined=SECOND, later=((0.001, SECOND),))) as (peer, url):
        options = UpstreamSettings(name="u", base_url=url, warm=True)
        upstream = HTTPUpstream(options, spawn=supervisor.spawn)
        upstream._open()
        upstream._keep_warm()
        await peer.sent.wait()
        await until(lambda: not supervisor.running)
        assert [await ask(upstream, f"/{number}") for number in range(3)] == OWN
        await upstream.aclose()
    await supervisor.aclose()
    assert peer.asked[0][0] == "HEAD"


async def test_the_plain_client_library_would_have_mixed_them_up() -> None:
    """Say so if a later version needs no pool of ours."""
    async with (
        hostile("length", Stray(later=((0.0, SECOND),))) as (peer, url),
        aiohttp.ClientSession() as session,
    ):
        async with session.get(url + "/first") as response:
            await response.read()
        await peer.sent.wait()
        async with session.get(url + "/0") as response:
            assert await response.read() == b"SMUGGLED"


@pytest.mark.parametrize("interim", ["100 Continue", "103 Early Hints"])
async def test_interim_answers_without_end_are_given_up(interim: str) -> None:
    many = f"HTTP/1.1 {interim}\r\nX-A: b\r\n\r\n".encode() * 1000

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(many)
                await writer.drain()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        url = "http://{}:{}".format(*server.sockets[0].getsockname())
        upstream = HTTPUpstream(UpstreamSettings(name="u", base_url=url))
        with pytest.raises(UpstreamError, match="no end"):
            async with asyncio.timeout(PATIENCE_S):
                await ask(upstream, "/0")
        await upstream.aclose()


async def test_interim_answers_may_come_before_a_long_body() -> None:
    body = b"x" * 3_000_000
    before = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 1000
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(before + head + body)
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        url = "http://{}:{}".format(*server.sockets[0].getsockname())
        upstream = HTTPUpstream(UpstreamSettings(name="u", base_url=url))
        for _ in range(10):  # some of them on a kept connection
            assert await ask(upstream, "/0") == body
        await upstream.aclose()


async def test_others_get_their_turn_while_a_flood_of_tiny_events_is_read() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + b": x\n\n" * 200_000)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
            await reader.read()  # until the client leaves
        writer.close()

    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        url = "http://{}:{}".format(*server.sockets[0].getsockname())
        upstream = HTTPUpstream(UpstreamSettings(name="u", base_url=url))
        async with await upstream.send(call_of("/0")) as reply, asyncio.TaskGroup() as group:
            await anext(reply.pieces)
            await asyncio.sleep(0.3)  # many events have arrived
            counting = group.create_task(count_turns())
            for read in range(5):
                piece = await anext(reply.pieces)
                assert len(piece.data) <= READ_BYTES
                assert turns >= read
            counting.cancel()
        await upstream.aclose()
