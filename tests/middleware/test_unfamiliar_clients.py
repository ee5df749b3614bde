"""Clients in other languages, as the exact bytes that they send.

The bytes are those of Go 1.19, Net::HTTP of Ruby 3.1, httpc of Erlang 25, Apache HttpClient 4.5,
HttpWebRequest of Mono 6.8, and of small devices.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import http.client
import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import pytest
import requests

from headstart import Endpoint, HeadstartMiddleware
from headstart.middleware.http_protocol import BoundedHeadProtocol
from support.patience import PATIENCE_S
from support.raw_upstream import RawUpstream, ask_raw, open_raw, sidecar_before
from support.serving import serving

if TYPE_CHECKING:
    from headstart.types import Receive, Scope, Send

pytestmark = pytest.mark.anyio

CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "Hello"}]}'
SAID = (
    b'{"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": ['
    b'{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}'
)
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(SAID),
    SAID,
)
STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
)
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    b"2\r\n{}\r\n0\r\n\r\n"
)
LAST = (
    b"GET /v1/files HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer right\r\n"
    b"Connection: close\r\n\r\n"
)


def head(*lines: bytes, key: bytes = b"right", version: bytes = b"1.1") -> bytes:
    """The head of a chat."""
    first = b"POST /v1/chat/completions HTTP/" + version
    common = (first, b"Host: localhost", b"Authorization: Bearer " + key)
    return b"\r\n".join((*common, *lines, b"", b""))


SIZED = b"Content-Length: %d" % len(CHAT)
WAITS = b"Expect: 100-continue"
HOST = b"Host: localhost"


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        return await reader.read()


# --- those that wait for permission to send their body -----------------------------------------


@pytest.mark.parametrize("framing", [SIZED, b"Transfer-Encoding: chunked"])
async def test_a_client_that_is_refused_before_its_body_may_leave_the_body_out(
    framing: bytes,
) -> None:
    """Go, Ruby, Erlang and Apache's client do, and send the next request on the same connection."""
    async with sidecar_before(RawUpstream(), client_keys=["right"]) as url:
        reader, writer = await open_raw(url, head(framing, WAITS, key=b"wrong"))
        answer = await until_closed(reader)  # nothing else ends this connection
        writer.close()
    assert answer.startswith(b"HTTP/1.1 401")
    assert answer.count(b"connection: close\r\n") == 1
    assert b"100 Continue" not in answer


async def test_a_refused_client_that_has_sent_its_body_keeps_the_connection() -> None:
    asked = head(SIZED, WAITS, key=b"wrong") + CHAT
    async with sidecar_before(RawUpstream(), client_keys=["right"]) as url:
        answers = await ask_raw(url, asked + LAST)
    assert answers.startswith(b"HTTP/1.1 401")
    assert answers.count(b"HTTP/1.1 200") == 1


async def test_an_admitted_client_sends_its_body_and_keeps_the_connection() -> None:
    upstream = RawUpstream(ANSWER)
    async with sidecar_before(upstream, client_keys=["right"]) as url:
        reader, writer = await open_raw(url, head(SIZED, WAITS))
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(CHAT + LAST)
        answers = await until_closed(reader)
        writer.close()
    assert answers.count(b"HTTP/1.1 ") == 2
    assert upstream.targets == [b"/v1/chat/completions", b"/v1/files"]
    assert upstream.header(b"expect") == []


# --- bodies above server.max_body_bytes ----------------------------------------------------------

MOST = 100_000
COUNT = b"POST /v1/messages/count_tokens HTTP/1.1"
DIALECTS = {
    b"POST /v1/chat/completions HTTP/1.1": ("error", "code", "request_too_large"),
    b"POST /v1/messages HTTP/1.1": ("error", "type", "request_too_large"),
    b"POST /v1beta/models/m:generateContent HTTP/1.1": ("error", "code", 413),
    COUNT: ("error", "type", "request_too_large"),
}


@pytest.mark.parametrize("first", DIALECTS)
@pytest.mark.parametrize("waits", [True, False])
async def test_a_body_that_is_declared_too_long_is_refused_unread(
    first: bytes, *, waits: bool
) -> None:
    outer, inner, code = DIALECTS[first]
    lines = [first, HOST, b"Authorization: Bearer right", b"Content-Length: %d" % (2 * MOST)]
    lines += [WAITS] if waits else []
    upstream = RawUpstream(ANSWER)
    async with sidecar_before(upstream, client_keys=["right"], max_body_bytes=MOST) as url:
        reader, writer = await open_raw(url, b"\r\n".join((*lines, b"", b"")))
        async with asyncio.timeout(PATIENCE_S):
            said = await reader.readuntil(b"\r\n\r\n")
            length = int(said.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            body = json.loads(await reader.readexactly(length))
        if not waits:
            writer.write(b"x" * (2 * MOST))
        assert await until_closed(reader) == b""
        writer.close()
    assert said.startswith(b"HTTP/1.1 413")
    assert said.count(b"connection: close\r\n") == 1
    assert body[outer][inner] == code
    assert b"server.max_body_bytes" in json.dumps(body).encode()
    assert upstream.targets == []


def by_curl(url: str, *options: str) -> int:
    command = ["curl", "-s", "-o", os.devnull, "-w", "%{http_code}", "--data-binary", "@-", url]
    found = subprocess.run([*command, *options], input=LONG, capture_output=True, check=False)
    return int(found.stdout)


def by_http_client(url: str) -> int:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.netloc)
    with contextlib.closing(connection):
        connection.request("POST", address.path, body=LONG)  # sends the whole body first
        return connection.getresponse().status


LONG = b"x" * (200 * MOST)
SENDERS = {
    "httpx": lambda url: httpx.post(url, content=LONG).status_code,
    "requests": lambda url: requests.post(url, data=LONG, timeout=PATIENCE_S).status_code,
    "http.client": by_http_client,
    "curl": by_curl,
    "curl, and waits": lambda url: by_curl(url, "-H", "Expect: 100-continue"),
    "curl, in chunks": lambda url: by_curl(url, "-H", "Transfer-Encoding: chunked"),
}


def if_here(name: str) -> Any:
    is_missing = name.startswith("curl") and shutil.which("curl") is None
    return pytest.param(name, marks=pytest.mark.skipif(is_missing, reason="no curl here"))


@pytest.mark.parametrize("sender", list(map(if_here, SENDERS)))
async def test_clients_see_that_their_body_is_too_long(sender: str) -> None:
    async with sidecar_before(RawUpstream(), max_body_bytes=MOST) as url:
        for _ in range(3):
            chat = url + "/v1/chat/completions"
            assert await asyncio.to_thread(SENDERS[sender], chat) == 413


# --- heads that RFC 9112 refuses, and the parser does not ----------------------------------------

POST = b"POST /v1/chat/completions HTTP/1.1"


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([POST, SIZED], b"exactly one Host"),
        ([POST, SIZED, HOST, HOST], b"exactly one Host"),
        ([POST, HOST, b"Transfer-Encoding: gzip, chunked"], b"transfer coding"),
        (
            [POST, HOST, b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked"],
            b"transfer coding",
        ),
    ],
)
async def test_a_head_that_proxies_may_read_otherwise_is_refused_with_the_reason(
    lines: list[bytes], why: bytes
) -> None:
    upstream = RawUpstream(ANSWER)
    body = CHAT if SIZED in lines else b"%x\r\n%b\r\n0\r\n\r\n" % (len(CHAT), CHAT)
    asked = b"\r\n".join((*lines, b"Authorization: Bearer right", b"", body))
    async with sidecar_before(upstream, client_keys=["right"]) as url:
        answer = await ask_raw(url, asked + LAST)
    assert answer.startswith(b"HTTP/1.1 400")
    assert why in answer
    assert answer.count(b"HTTP/1.1 ") == 1
    assert upstream.targets == []


@pytest.mark.parametrize(
    "lines",
    [
        [POST, HOST, b"Transfer-Encoding:  Chunked "],
        [POST.replace(b"1.1", b"1.0"), SIZED],
    ],
)
async def test_an_unusual_head_that_is_right_is_served(lines: list[bytes]) -> None:
    body = CHAT if SIZED in lines else b"%x\r\n%b\r\n0\r\n\r\n" % (len(CHAT), CHAT)
    asked = (*lines, b"Authorization: Bearer right", b"Connection: close", b"", body)
    async with sidecar_before(RawUpstream(ANSWER), client_keys=["right"]) as url:
        assert b"200 OK" in (await ask_raw(url, b"\r\n".join(asked)))[:20]


# --- fields behind the body ----------------------------------------------------------------------


async def test_a_field_behind_the_body_is_not_a_header() -> None:
    """A proxy in front has not checked it."""
    fields = b"OpenAI-Organization: other\r\nCache-Control: no-store\r\n"
    body = b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(CHAT), CHAT, fields)
    upstream = RawUpstream(ANSWER)
    async with sidecar_before(upstream) as url:
        sent = head(b"Transfer-Encoding: chunked", b"Trailer: OpenAI-Organization")
        answers = await ask_raw(url, sent + body + LAST)
    assert upstream.targets == [b"/v1/chat/completions", b"/v1/files"]
    assert upstream.header(b"openai-organization") == []
    assert b"no-store" not in answers.partition(b"cache-status: ")[2].partition(b"\r\n")[0]


@pytest.mark.parametrize("key", [b"right", b"wrong"])
@pytest.mark.parametrize("begun", [b"0\r\nX-Long: ", b"2;"], ids=["trailer", "extension"])
async def test_bytes_that_belong_to_no_body_are_bounded(begun: bytes, key: bytes) -> None:
    """The parser would collect it, and block all callers while it does."""
    async with sidecar_before(RawUpstream(), client_keys=["right"]) as url:
        begun = head(b"Transfer-Encoding: chunked", key=key) + begun
        _, writer = await open_raw(url, begun)
        sent = 0
        while not writer.transport.is_closing() and sent < 64 * 2**20:
            writer.write(bytes(65536).replace(b"\0", b"x"))
            sent += 65536
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await writer.drain()
            except ConnectionError:
                break
        writer.close()
    assert sent < 64 * 2**20


async def test_a_long_head_in_one_read_is_no_part_of_the_count() -> None:
    """Its body comes later: what is counted begins behind the head."""

    class InOneRead(BoundedHeadProtocol):
        held: bytes | None = b""

        def data_received(self, data: bytes) -> None:
            if self.held is not None:
                data, self.held = self.held + data, self.held + data
                if not data.endswith(b"\r\n\r\n"):
                    return
                self.held = None
            super().data_received(data)

    upstream = RawUpstream(ANSWER)
    async with sidecar_before(upstream, InOneRead) as url:
        long = head(SIZED, b"X-Headstart-Note: " + b"x" * 100_000, b"Connection: close", WAITS)
        reader, writer = await open_raw(url, long)
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(CHAT)
        assert (await until_closed(reader)).startswith(b"HTTP/1.1 200")
        writer.close()


# --- HTTP/1.0 ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "body"), [(STREAM, b"data: [DONE]\n\n"), (CHUNKED, b"{}")])
async def test_a_client_of_http_1_0_gets_no_chunks(answer: bytes, body: bytes) -> None:
    """Boards with an ESP32 speak it, to read an answer piece by piece."""
    asked = b"GET /v1/files HTTP/1.0\r\nHost: localhost\r\n\r\n"
    async with sidecar_before(RawUpstream(answer)) as url:
        got, _, came = (await ask_raw(url, asked)).partition(b"\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 200")
    assert b"transfer-encoding" not in got
    assert came == body


async def test_a_client_of_http_1_0_gets_one_answer() -> None:
    async with sidecar_before(RawUpstream(ANSWER)) as url:
        asked = head(SIZED, WAITS, version=b"1.0") + CHAT
        assert (await ask_raw(url, asked)).count(b"HTTP/1.1 ") == 1


# --- byte order marks ---------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 2])
async def test_a_byte_order_mark_before_the_body_is_skipped(pieces: int) -> None:
    """A StreamWriter of .NET with Encoding.UTF8 writes one."""
    body = codecs.BOM_UTF8 + CHAT
    upstream = RawUpstream(ANSWER)
    async with sidecar_before(upstream) as url:
        sized = head(b"Content-Length: %d" % len(body), b"Connection: close")
        reader, writer = await open_raw(url, sized + body[: len(body) // pieces])
        await asyncio.sleep(0.05)
        writer.write(body[len(body) // pieces :])
        answer = await until_closed(reader)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200")
    assert json.loads(upstream.body()) == json.loads(CHAT)


async def test_a_wrapped_app_gets_each_byte_of_its_request() -> None:
    body = codecs.BOM_UTF8 + b'{"question": "Hello"}'
    got: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            got.append((await receive())["body"])
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    wrapped = HeadstartMiddleware(app, endpoints=[Endpoint("/ask", prompt="question")])
    asked = b"POST /ask HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
    async with serving(wrapped) as url:
        assert (await ask_raw(url, asked % (len(body), body))).startswith(b"HTTP/1.1 200")
    await wrapped.aclose()
    assert got == [body]
