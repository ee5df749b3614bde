"""The limit on a provider's silence: it begins anew with each piece, and ends the answer."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from headstart.errors import UpstreamTimeout
from headstart.middleware.upstreams.http import HTTPUpstream
from headstart.settings import UpstreamSettings
from support.candidates import make_call
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headstart.reply import Reply

pytestmark = pytest.mark.anyio

READ_S = 0.8
PIECES = 25
GAP_S = 0.05
"""All pieces together take longer than ``READ_S``, and each comes long before it."""
CALL = make_call(method="GET", path=b"/")


@contextlib.asynccontextmanager
async def provider(*, ends: int) -> AsyncIterator[HTTPUpstream]:
    """A provider that sends its pieces one by one.

    A connection has ``ends`` answers that end, and then one that falls silent.
    """
    over = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            for left in range(ends, -1, -1):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                for _ in range(PIECES):
                    await asyncio.sleep(GAP_S)
                    writer.write(b"1\r\nx\r\n")
                if left:
                    writer.write(b"0\r\n\r\n")
            await over.wait()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    url = "http://{}:{}".format(*server.sockets[0].getsockname())
    upstream = HTTPUpstream(UpstreamSettings(name="u", base_url=url, read_s=READ_S))
    try:
        yield upstream
    finally:
        await upstream.aclose()
        over.set()
        server.close()
        await server.wait_closed()


async def test_an_answer_may_last_longer_than_a_silence() -> None:
    async with provider(ends=1) as upstream, await upstream.send(CALL) as reply:
        assert b"".join([piece.data async for piece in reply.pieces]) == b"x" * PIECES


async def test_a_provider_that_falls_silent_is_waited_for_as_long_as_a_silence_may_last() -> None:
    loop = asyncio.get_running_loop()
    came: list[tuple[bytes, float]] = []

    async def read_all(reply: Reply) -> None:
        async with asyncio.timeout(PATIENCE_S):
            async for piece in reply.pieces:
                last = piece.data, loop.time()
                came.append(last)

    async with provider(ends=1) as upstream:
        async with await upstream.send(CALL) as reply:
            assert b"".join([piece.data async for piece in reply.pieces]) == b"x" * PIECES
        await asyncio.sleep(READ_S)  # a connection that is not used may be silent for longer
        reply = await upstream.send(CALL)
        with pytest.raises(UpstreamTimeout):
            await read_all(reply)
        waited_s = loop.time() - came[-1][1]
        await reply.aclose()
    assert b"".join([data for data, _ in came]) == b"x" * PIECES
    assert waited_s >= READ_S / 2  # not at the time that an earlier piece had set
