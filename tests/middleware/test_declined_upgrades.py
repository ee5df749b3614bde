"""Requests that ask for another protocol, as the HTTP client of Java asks for HTTP/2."""

from __future__ import annotations

import asyncio
import re

import pytest

from support.patience import PATIENCE_S
from support.raw_upstream import RawUpstream, ask_raw, open_raw, sidecar_before

pytestmark = pytest.mark.anyio

ASKS = (
    b"Host: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
)
BODY = b'{"purpose": "batch"}'
SIZED = b"POST /v1/files HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (ASKS, len(BODY), BODY)
CHUNKS = b"9\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (BODY[:9], len(BODY) - 9, BODY[9:])
IN_CHUNKS = b"POST /v1/files HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n%b" % (ASKS, CHUNKS)
EMPTY = b"GET /v1/files HTTP/1.1\r\n%b\r\n" % ASKS
LAST = b"GET /v1/last HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("asked", "sent"),
    [(SIZED, BODY), (IN_CHUNKS, BODY), (EMPTY, b"")],
    ids=["sized", "chunks", "empty"],
)
async def test_a_request_is_answered_without_the_upgrade_that_it_asks_for(
    asked: bytes, sent: bytes
) -> None:
    upstream = RawUpstream()
    async with sidecar_before(upstream) as url:
        answers = await ask_raw(url, asked + LAST)
    assert answers.count(b"HTTP/1.1 200") == 2
    assert upstream.targets == [b"/v1/files", b"/v1/last"]
    assert upstream.header(b"upgrade") == upstream.header(b"http2-settings") == []
    # It may go up in other chunks.
    assert re.sub(rb"[0-9a-f]*\r\n", b"", upstream.body()) == sent


@pytest.mark.parametrize("whole", [SIZED, IN_CHUNKS], ids=["sized", "chunks"])
async def test_the_body_of_a_declined_upgrade_may_come_in_any_pieces(whole: bytes) -> None:
    upstream = RawUpstream()
    async with sidecar_before(upstream) as url:
        reader, writer = await open_raw(url, b"")
        for at in range(len(whole)):
            writer.write(whole[at : at + 1])
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(LAST)
        async with asyncio.timeout(PATIENCE_S):
            answers = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert answers.count(b"HTTP/1.1 200") == 2
    assert len(upstream.requests) == 2


async def test_a_chat_of_java_is_answered() -> None:
    """The body comes behind the head, in a segment of its own, and it is long."""
    chat = b'{"model": "m", "messages": [{"role": "user", "content": "%b"}]}' % (b"a" * 200_000)
    head = b"POST /v1/chat/completions HTTP/1.1\r\n%bContent-Length: %d\r\n" % (ASKS, len(chat))
    upstream = RawUpstream()
    async with sidecar_before(upstream) as url:
        reader, writer = await open_raw(url, head + b"Content-Type: application/json\r\n\r\n")
        await asyncio.sleep(0)
        writer.write(chat)
        async with asyncio.timeout(PATIENCE_S):
            await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
    assert upstream.body() == chat
