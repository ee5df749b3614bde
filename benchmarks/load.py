"""A small HTTP load generator: keep-alive connections, closed and open loops, per-request times.

It parses with httptools on a bare asyncio protocol, so that the figures show the server and not the
client.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httptools

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass
class Timings:
    """Seconds per request: to the first body byte, and to the end. ``statuses`` counts replies."""

    first_s: list[float] = field(default_factory=list)
    total_s: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter[int])
    verdicts: Counter[str] = field(default_factory=Counter[str])
    """Counts the ``Cache-Status`` of the replies."""
    wall_s: float = 0.0


class _Connection(asyncio.Protocol):
    """One connection; ``exchange`` sends a request and waits for its whole reply."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._done: asyncio.Future[None] | None = None
        self.first = 0.0
        self.status = 0
        self.verdict = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionResetError("the server closed"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"cache-status":
            self.verdict = value.decode()

    def on_body(self, body: bytes) -> None:
        if not self.first:
            self.first = time.perf_counter()

    def on_message_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    async def exchange(self, request: bytes) -> None:
        """Send a request and wait for its whole reply. Raises ConnectionError."""
        if self._transport is None:
            raise ConnectionResetError("the server closed")
        self.first, self.verdict = 0.0, ""
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._done

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def http_request(
    path: str, body: bytes, *, key: str = "bench", headers: Iterable[tuple[str, str]] = ()
) -> bytes:
    """Return the bytes of one POST."""
    more = "".join(f"{name}: {value}\r\n" for name, value in headers)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n{more}"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def run_load(port: int, requests: Iterable[bytes], concurrency: int) -> Timings:
    """Send every request once over ``concurrency`` connections to loopback ``port``."""
    timings = Timings()
    source: Iterator[bytes] = iter(requests)
    began = time.perf_counter()

    async def work() -> None:
        connection = await _connect(port)
        try:
            for request in source:
                await _timed(connection, request, timings)
        finally:
            connection.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(work())
    timings.wall_s = time.perf_counter() - began
    return timings


async def run_open_loop(port: int, requests: Iterable[bytes], per_s: float) -> Timings:
    """Send requests at a rate, whether or not the earlier ones have been answered.

    A connection whose reply is whole serves a later request, as in the pools of HTTP clients.
    ``statuses`` counts requests without a reply under 0.
    """
    timings = Timings()
    idle: list[_Connection] = []
    began = time.perf_counter()

    async def ask(request: bytes) -> None:
        try:
            while idle and not idle[-1].is_open:
                idle.pop()
            connection = idle.pop() if idle else await _connect(port)
            await _timed(connection, request, timings)
        except OSError:  # beyond its capacity a server may refuse connections
            timings.statuses[0] += 1
        else:
            idle.append(connection)

    async with asyncio.TaskGroup() as group:
        for place, request in enumerate(requests):
            await asyncio.sleep(max(0.0, began + place / per_s - time.perf_counter()))
            group.create_task(ask(request))
    for connection in idle:
        connection.close()
    timings.wall_s = time.perf_counter() - began
    return timings


async def _connect(port: int) -> _Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(_Connection, "127.0.0.1", port)
    return connection


async def _timed(connection: _Connection, request: bytes, timings: Timings) -> None:
    """Send a request, and add the times and the verdict of its reply."""
    sent = time.perf_counter()
    await connection.exchange(request)
    ended = time.perf_counter()
    timings.first_s.append((connection.first or ended) - sent)
    timings.total_s.append(ended - sent)
    timings.statuses[connection.status] += 1
    timings.verdicts[connection.verdict] += 1


def percentile(values: list[float], share: float) -> float:
    """Return the value at ``share`` (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
