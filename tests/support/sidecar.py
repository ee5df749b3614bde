"""The gateway in front of a simulated provider, both on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp

from headstart.config.loading import load_settings
from headstart.lab.simulator import Simulator
from headstart.middleware.asgi import not_found
from headstart.middleware.http_protocol import BoundedHeadProtocol
from headstart.middleware.observers import Observers
from headstart.mount import build_gateway
from headstart.observe import Served
from support.fakes import Recorder
from support.patience import PATIENCE_S, until
from support.proxied import CHAT, Reply, RunningParts, reply_of
from support.serving import serving
from support.simulated import chat, simulated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from headstart.decisions import Label, Outcome
    from headstart.lab.simulator.faults import Fault
    from headstart.middleware.admin_front import EngineParts
    from headstart.types import ASGIApp

PROMPT = "How can I sign up for ChatGPT?"
REWORDED = "I want to sign up for ChatGPT"


class Provider(Simulator):
    """A simulator that can be told to keep its callers waiting."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.open = asyncio.Event()
        """Each call waits for this event before it is read."""
        self.open.set()
        self.began = 0
        """The number of calls that have arrived, also of those that wait."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.began += scope["type"] == "http"
        await self.open.wait()
        await super().__call__(scope, receive, send)

    @property
    def calls(self) -> int:
        return self.stats.snapshot().calls


@dataclass
class Sidecar(RunningParts):
    """A running gateway, with its provider and the observations that were made."""

    url: str
    provider_url: str
    provider: Provider
    session: aiohttp.ClientSession
    recorder: Recorder
    observers: Observers
    parts: list[EngineParts]

    @property
    def served(self) -> list[Served]:
        return [row for row in self.recorder.seen if isinstance(row, Served)]

    @property
    def outcomes(self) -> list[Outcome]:
        return [row.outcome for row in self.served]

    @property
    def readers(self) -> int:
        """The number of clients of all flights, and of other nodes that follow a flight."""
        return sum(flight.clients for flight in self.parts[0].flights.values())

    async def labels(self, count: int) -> list[Label]:
        """Wait until the store has this many labels; return them."""
        store = self.parts[0].store
        async with asyncio.timeout(PATIENCE_S):
            while len(found := await store.read_labels()) < count:
                await asyncio.sleep(0.005)
        assert len(found) == count
        return [label for _, label in found]

    async def finished(self, count: int) -> None:
        """Wait until this many requests have ended, with an answer or without."""
        await until(lambda: len(self.served) == count)

    async def ask(
        self,
        prompt: str = PROMPT,
        *,
        fault: Fault | None = None,
        headers: dict[str, str] | None = None,
        **fields: Any,
    ) -> Reply:
        """Send a chat request; ``fault`` is the fault of the provider's answer."""
        return await self.post(json.dumps(chat(prompt, **fields)).encode(), fault, headers)

    async def post(
        self, body: Any, fault: Fault | None = None, headers: dict[str, str] | None = None
    ) -> Reply:
        """Send bytes, or an asynchronous iterator of them, as the body of a chat request."""
        async with self.session.post(
            self.url + CHAT, data=body, headers=headers_of(fault, headers)
        ) as response:
            return await reply_of(response)


def headers_of(fault: Fault | None = None, more: dict[str, str] | None = None) -> dict[str, str]:
    """Return the headers of a chat request."""
    named = {} if fault is None else {"x-sim-fault": fault.header()}
    return {
        "authorization": "Bearer sk-test",
        "content-type": "application/json",
        **named,
        **(more or {}),
    }


@contextlib.asynccontextmanager
async def sidecar(
    provider: Provider | None = None,
    *,
    upstream: dict[str, Any] | None = None,
    others: tuple[dict[str, Any], ...] = (),
    routes: tuple[dict[str, Any], ...] = (),
    behind: Callable[[Sidecar], ASGIApp] | None = None,
    **sections: dict[str, Any],
) -> AsyncIterator[Sidecar]:
    """Run a gateway and its provider. ``upstream`` and ``sections`` override settings.

    ``others`` are more upstreams. Without a URL of their own they call the same provider.
    ``routes`` are the ``[[route]]`` tables. ``behind`` makes an app for the requests that the
    gateway does not serve; without it these get a 404.
    """
    provider = provider or Provider()
    async with simulated(provider) as base, aiohttp.ClientSession() as session:
        cache = {
            "store": "memory:",
            # Audits are drawn at random, so they are off unless a test asks for them.
            "audit.mode": "off",
            "ignore_headers": ["x-sim-fault"],  # it asks for a fault, and names nobody
            **sections.get("cache", {}),
        }
        if not cache.keys() & {"match", "threshold"}:
            # Rewordings shall be hits at once; a strict start would wait for near misses first.
            cache = {"cold_start": "optimistic", **cache}
        sections = {
            **sections,
            "cache": cache,
            # However busy the machine is, a lookup waits for its encoding.
            "encoder": {"max_wait_ms": 20_000.0},
            "learning": {"cpu_share": 1.0},
        }
        dotted = {
            f"{section}.{name}": value
            for section, table in sections.items()
            for name, value in table.items()
        }
        first = {"name": "sim", "base_url": base, **(upstream or {})}
        others = tuple({"base_url": base, **each} for each in others)
        settings = await asyncio.to_thread(
            load_settings, None, {}, {**dotted, "upstream": [first, *others], "route": list(routes)}
        )
        recorder = Recorder()
        running = Sidecar("", base, provider, session, recorder, Observers([recorder]), [])
        app = build_gateway(
            settings,
            behind(running) if behind is not None else not_found,
            observers=running.observers,
            on_start=running.parts.append,
        )
        async with serving(app, http=BoundedHeadProtocol) as running.url:
            yield running
