"""A simulator on a real socket, and the raw wire beside it."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import anyio

from headstart.lab.simulator import Simulator, serve
from support.patience import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from anyio.abc import SocketStream

    from headstart.middleware.flights import Flights


@contextlib.asynccontextmanager
async def simulated(simulator: Simulator) -> AsyncIterator[str]:
    """Serve a simulator and yield its base URL, without ``/v1``."""
    with anyio.fail_after(PATIENCE_S):
        async with serve(simulator) as url:
            yield url


async def in_flight(flights: Flights, clients: int) -> None:
    """Wait until so many callers share the calls in flight."""
    await until(lambda: sum(flight.clients for flight in flights.values()) == clients)


def chat(prompt: str = "hello", **fields: Any) -> dict[str, Any]:
    """Return a chat request."""
    return {"model": "m", "messages": [{"role": "user", "content": prompt}], **fields}


class Wire(NamedTuple):
    """What a raw client saw: the head, the decoded body and how the connection ended."""

    head: bytes
    body: bytes
    ended: str
    """``whole``: HTTP says the body is complete; ``eof`` or ``reset``: it broke off."""

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1])

    @property
    def events(self) -> list[str]:
        """The data of the server-sent events."""
        lines = self.body.decode().split("\n")
        return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]

    @property
    def text(self) -> str:
        """All content of the stream's first choice."""
        parsed = (json.loads(event) for event in self.events if event != "[DONE]")
        deltas = (chunk["choices"][0]["delta"] for chunk in parsed if chunk.get("choices"))
        return "".join(delta.get("content") or "" for delta in deltas)


async def send_raw(
    url: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
    path: str = "/v1/chat/completions",
) -> SocketStream:
    """Open a connection and send one chat request over it."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    stream = await anyio.connect_tcp(parts.hostname, parts.port)
    payload = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: sim", f"content-length: {len(payload)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    await stream.send("\r\n".join(lines).encode() + b"\r\n\r\n" + payload)
    return stream


async def exchange(
    url: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
    path: str = "/v1/chat/completions",
) -> Wire:
    """Send one chat request and read until HTTP or the connection ends."""
    received, ended = b"", "whole"
    async with await send_raw(url, body, headers, path) as stream:
        while not _is_whole(received):
            try:
                received += await stream.receive()
            except anyio.EndOfStream:
                ended = "eof"
                break
            except anyio.BrokenResourceError:
                ended = "reset"
                break
    head, _, rest = received.partition(b"\r\n\r\n")
    return Wire(head, _unchunk(rest) if _is_chunked(head) else rest, ended)


def _is_chunked(head: bytes) -> bool:
    return b"transfer-encoding: chunked" in head.lower()


def _is_whole(received: bytes) -> bool:
    head, found, rest = received.partition(b"\r\n\r\n")
    if not found:
        return False
    if _is_chunked(head):
        return rest.endswith(b"0\r\n\r\n")
    for line in head.split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(rest) >= int(line.partition(b":")[2])
    return False


def _unchunk(rest: bytes) -> bytes:
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return body
