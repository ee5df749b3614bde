"""A provider that repeats two recorded answers, for benchmarks that need a very fast provider.

It is a bare asyncio protocol on uvloop: one process gives some 20,000 answers a second, where a
simulated provider gives 4,000.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
from typing import TYPE_CHECKING, Any

import aiohttp
import httptools
import uvloop

from benchmarks.overhead import Running, start

if TYPE_CHECKING:
    from collections.abc import Callable

PATH = "/v1/chat/completions"
FRAMING = (b"content-length", b"transfer-encoding", b"connection")
EVENT_END = b"\n\n"
QUESTION: dict[str, Any] = {
    "model": "bench",
    "messages": [{"role": "user", "content": "Say something."}],
}


class Recorded(asyncio.Protocol):
    """One connection: answers each request with the bytes for streams, or for whole answers."""

    def __init__(self, whole: bytes, streamed: bytes) -> None:
        self._answers = {False: whole, True: streamed}
        self._transport: Any = None
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._transport.write(self._answers[b'"stream":true' in self._body.replace(b" ", b"")])


async def start_recorded(make: Callable[..., Any]) -> Running:
    """Record what an app answers, and start a process that repeats it."""
    recorded = start(make)
    try:
        answers = [await _record(recorded.port, stream=stream) for stream in (False, True)]
    finally:
        recorded.process.terminate()
    bound = socket.create_server(("127.0.0.1", 0), backlog=1024)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_serve, args=(bound, *answers), daemon=True)
    process.start()
    port = bound.getsockname()[1]
    bound.close()
    return Running(port, process)


async def _record(port: int, *, stream: bool) -> bytes:
    """Return the bytes of an answer, head and all; of a stream, with a chunk for each event."""
    url = f"http://127.0.0.1:{port}{PATH}"
    async with (
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.post(url, json=QUESTION | {"stream": stream}) as response,
    ):
        body = await response.read()
        headers = [each for each in response.raw_headers if each[0].lower() not in FRAMING]
    if stream:
        headers.append((b"transfer-encoding", b"chunked"))
        events = body.split(EVENT_END)[:-1]
        body = b"".join(_chunk(event + EVENT_END) for event in events) + b"0\r\n\r\n"
    else:
        headers.append((b"content-length", b"%d" % len(body)))
    lines = b"".join(b"%s: %s\r\n" % each for each in headers)
    return b"HTTP/1.1 200 OK\r\n" + lines + b"\r\n" + body


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _serve(bound: socket.socket, whole: bytes, streamed: bytes) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Recorded(whole, streamed), sock=bound)
        await server.serve_forever()

    uvloop.run(run())
