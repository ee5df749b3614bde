"""An upstream that keeps the exact bytes of each request and answers with any bytes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headstart.config.loading import load_settings
from headstart.middleware.http_protocol import BoundedHeadProtocol
from headstart.sidecar import build_sidecar
from support.patience import PATIENCE_S
from support.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class RawUpstream:
    """Records the bytes of each request. It answers with ``answer``; None: it does not answer.

    ``breaks_off``: it closes the connection after the bytes of the answer.
    """

    def __init__(self, answer: bytes | None = OK, *, breaks_off: bool = False) -> None:
        self.answer = answer
        self.breaks_off = breaks_off
        self.requests: list[bytes] = []
        self._waiting: list[asyncio.StreamWriter] = []
        self.open = 0
        """The number of connections that the other end has not closed."""

    @property
    def targets(self) -> list[bytes]:
        return [request.split(b" ", 2)[1] for request in self.requests]

    def lines(self, number: int = 0) -> list[bytes]:
        """Return the lines of the head of a request."""
        return self.requests[number].partition(b"\r\n\r\n")[0].split(b"\r\n")

    def header(self, name: bytes, number: int = 0) -> list[bytes]:
        """Return all values of a header."""
        split = (line.partition(b": ") for line in self.lines(number)[1:])
        return [value for found, _, value in split if found.lower() == name]

    def body(self, number: int = 0) -> bytes:
        return self.requests[number].partition(b"\r\n\r\n")[2]

    def speak(self, answer: bytes) -> None:
        """Answer the requests that got no answer so far."""
        for writer in self._waiting:
            writer.write(answer)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await self._exchange(reader, writer)
                    if self.breaks_off:
                        break
        finally:
            self.open -= 1
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        number = len(self.requests)
        self.requests.append(head)
        if lengths := self.header(b"content-length", number):
            self.requests[number] += await reader.readexactly(int(lengths[0]))
        elif self.header(b"transfer-encoding", number):
            self.requests[number] += await reader.readuntil(b"0\r\n\r\n")
        if self.answer is None:
            self._waiting.append(writer)
            await reader.readexactly(1)  # until the other end closes
        else:
            writer.write(self.answer)
            await writer.drain()


@contextlib.asynccontextmanager
async def raw_upstream(upstream: RawUpstream) -> AsyncIterator[str]:
    """Serve it, and yield its base URL."""
    served: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        served.add(task)
        await upstream.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"
    finally:
        server.close()
        for task in served:
            task.cancel()
        if served:
            await asyncio.wait(served)


async def open_raw(url: str, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send bytes to a server."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(request)
    await writer.drain()
    return reader, writer


async def ask_raw(url: str, request: bytes) -> bytes:
    """Send bytes to a server; return all that it sends until it closes the connection."""
    reader, writer = await open_raw(url, request)
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def sidecar_before(
    upstream: RawUpstream,
    protocol: type[BoundedHeadProtocol] = BoundedHeadProtocol,
    /,
    **server: Any,
) -> AsyncIterator[str]:
    """Run a sidecar with its own key in front of ``upstream``, which it calls in four dialects.

    ``server`` are settings of ``[server]``.
    """
    async with raw_upstream(upstream) as base:
        dotted = {f"server.{name}": value for name, value in server.items()}
        dotted |= {"cache.store": "memory:", "cache.mode": "exact-only"}
        dotted["upstream"] = [
            {"name": name, "base_url": base, "dialect": name, "api_key_env": "PATH"}
            for name in ("openai", "anthropic", "gemini", "responses")
        ]
        settings = await asyncio.to_thread(load_settings, None, {}, dotted)
        async with serving(build_sidecar(settings), http=protocol, ws="none") as url:
            yield url
