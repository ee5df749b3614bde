"""A gateway in front of raw upstreams, for tests of relayed requests."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from headstart.config.loading import load_settings
from headstart.middleware.asgi import not_found
from headstart.middleware.http_protocol import BoundedHeadProtocol
from headstart.middleware.observers import Observers
from headstart.mount import build_gateway
from headstart.observe import Served
from support.fakes import Recorder
from support.raw_upstream import RawUpstream, ask_raw, raw_upstream
from support.serving import bind_free_port, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from headstart.middleware.admin_front import EngineParts

EMBED = b'{"model":"embed","input":["a"]}'


def says(status: str, body: bytes = b"{}", headers: bytes = b"") -> bytes:
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n"
    return head % (status.encode(), len(body), headers) + body


def request(
    target: str = "/v1/audio/speech", body: bytes = EMBED, headers: str = "", method: str = "POST"
) -> bytes:
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    kind = "Content-Type: application/json\r\n" if body else ""
    return f"{head}{kind}{length}{headers}\r\n".encode() + body


class RelayingGateway:
    """A gateway before several upstreams."""

    def __init__(self, url: str, parts: list[EngineParts], seen: Sequence[object]) -> None:
        self.url, self.parts, self._seen = url, parts, seen

    @property
    def served(self) -> list[Served]:
        return [row for row in self._seen if isinstance(row, Served)]

    async def ask(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, str], bytes]:
        answer = await ask_raw(self.url, request(*args, **kwargs))
        head, _, body = answer.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        named = (line.partition(": ") for line in lines[1:])
        return int(lines[0].split()[1]), {name: value for name, _, value in named}, body


FALLBACK = {"name": "both", "upstreams": ["a", "b"], "strategy": "fallback"}


@contextlib.asynccontextmanager
async def relay_to(
    *upstreams: RawUpstream | None,
    routes: tuple[dict[str, Any], ...] = (FALLBACK,),
    options: tuple[dict[str, Any], ...] = (),
    **dotted: Any,
) -> AsyncIterator[RelayingGateway]:
    """Serve a gateway in front of upstreams named a, b ...; None is a port without a server."""
    async with contextlib.AsyncExitStack() as stack:
        tables = []
        for place, upstream in enumerate(upstreams):
            if upstream is None:
                bound = stack.enter_context(bind_free_port())
                base = "http://{}:{}".format(*bound.getsockname())
            else:
                base = await stack.enter_async_context(raw_upstream(upstream))
            more = options[place] if place < len(options) else {}
            tables.append({"name": "abcd"[place], "base_url": base, **more})
        settings = await asyncio.to_thread(
            load_settings,
            None,
            {},
            {
                "cache.store": "memory:",
                "cache.mode": "exact-only",
                "upstream": tables,
                "route": list(routes),
                **dotted,
            },
        )
        parts: list[EngineParts] = []
        recorder = Recorder()
        app = build_gateway(
            settings, not_found, observers=Observers([recorder]), on_start=parts.append
        )
        url = await stack.enter_async_context(serving(app, http=BoundedHeadProtocol))
        yield RelayingGateway(url, parts, recorder.seen)
