"""A gateway in front of a scripted upstream, both on real sockets, and a client of it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp

from headstart.config.loading import load_settings
from headstart.middleware.asgi import not_found
from headstart.middleware.observers import Observers
from headstart.mount import build_gateway
from headstart.observe import Committed, Observation, Served
from support.patience import PATIENCE_S
from support.scripted import ScriptedUpstream
from support.serving import serving
from support.simulated import in_flight

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headstart.middleware.admin_front import EngineParts
    from headstart.types import ASGIApp

CHAT = "/v1/chat/completions"


@dataclass
class Reply:
    """A whole reply."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def verdict(self) -> str:
        return self.headers.get("cache-status", "")


class RunningParts:
    """Waits for events in the parts of a running gateway."""

    parts: list[EngineParts]

    async def indexed(self, count: int) -> None:
        """Wait until ``count`` entries can be found by meaning."""
        cache = self.parts[0].cache
        assert cache is not None
        async with asyncio.timeout(PATIENCE_S):
            while (await cache.stats()).vectors < count:
                await asyncio.sleep(0.005)

    async def in_flight(self, clients: int) -> None:
        """Wait until ``clients`` callers share the calls in flight."""
        await in_flight(self.parts[0].flights, clients)


@dataclass
class Proxied(RunningParts):
    """The running gateway and its upstream, with the observations that were made."""

    url: str
    upstream: ScriptedUpstream
    session: aiohttp.ClientSession
    app: ASGIApp | None = None
    observed: list[Observation] = field(default_factory=list)
    seen: asyncio.Condition = field(default_factory=asyncio.Condition)
    parts: list[EngineParts] = field(default_factory=list)

    def notify(self, observation: Observation) -> None:
        self.observed.append(observation)

    @property
    def served(self) -> list[Served]:
        return [row for row in self.observed if isinstance(row, Served)]

    async def until(self, kind: type[Any], count: int) -> None:
        """Wait until ``count`` observations of a kind were made."""
        async with asyncio.timeout(PATIENCE_S):
            while sum(isinstance(seen, kind) for seen in self.observed) < count:
                await asyncio.sleep(0.005)

    async def stored(self, count: int) -> None:
        """Wait until the store has acknowledged ``count`` entries."""
        await self.until(Committed, count)

    async def ask(self, text: str = "Why is the sky blue?", **options: Any) -> Reply:
        headers = {"authorization": "Bearer k", **options.pop("headers", {})}
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **options}
        async with self.session.post(self.url + CHAT, json=body, headers=headers) as response:
            return await reply_of(response)


async def read_body(response: aiohttp.ClientResponse) -> bytes:
    """Return the body. The connection may break off only after an error event."""
    body = b""
    try:
        async for piece in response.content.iter_any():
            body += piece
    except aiohttp.ClientPayloadError:
        if b'"error"' not in body and b'"response.failed"' not in body:
            raise
    return body


async def reply_of(response: aiohttp.ClientResponse) -> Reply:
    body = await read_body(response)
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Reply(response.status, headers, body)


@contextlib.asynccontextmanager
async def proxied(
    upstream: ScriptedUpstream | None = None,
    others: tuple[dict[str, Any], ...] = (),
    routes: tuple[dict[str, Any], ...] = (),
    **overrides: Any,
) -> AsyncIterator[Proxied]:
    """Run the gateway and its upstream. ``overrides`` are settings by section.

    The store is in memory.

    ``others`` are more upstreams, ``routes`` the ``[[route]]`` tables.
    """
    upstream = upstream or ScriptedUpstream()
    async with serving(upstream) as up, aiohttp.ClientSession() as session:
        proxy = Proxied("", upstream, session)
        cache = {"store": "memory:", "mode": "exact-only", **overrides.pop("cache", {})}
        if not cache.keys() & {"match", "threshold"}:
            # Rewordings shall be hits at once; a strict start would wait for near misses first.
            cache = {"cold_start": "optimistic", **cache}
        provider = {"name": "sim", "base_url": up, **overrides.pop("provider", {})}
        dotted = {
            f"{section}.{name}": value
            for section, table in {**overrides, "cache": cache}.items()
            for name, value in table.items()
        }
        settings = await asyncio.to_thread(
            load_settings,
            None,
            {},
            {**dotted, "upstream": [provider, *others], "route": list(routes)},
        )
        proxy.app = app = build_gateway(
            settings, not_found, observers=Observers([proxy]), on_start=proxy.parts.append
        )
        async with serving(app) as proxy.url:
            yield proxy
