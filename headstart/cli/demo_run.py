"""What the demo runs: simulated providers, the sidecar in front of them, a client, a tally."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp
import msgspec
import uvicorn

from headstart.cli.demo_failover import ROUTE, failing_providers, routes
from headstart.config import PriceSettings, Settings, UpstreamSettings, checked
from headstart.config.settings import CacheSettings
from headstart.middleware.sse import SSEDecoder
from headstart.sidecar import build_sidecar
from headstart.simulator import Simulator, serve
from headstart.sockets import bind, url_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headstart.simulator import Oracle

_KEY = {"authorization": "Bearer demo", "content-type": "application/json"}


class _Delta(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


@dataclass(frozen=True)
class Answer:
    """One streamed answer as the client saw it. Times in seconds from sending the request."""

    prompt: str
    text: str
    kind: str
    """``exact``, ``semantic``, ``joined`` or ``miss``."""
    ttft_s: float
    total_s: float
    similarity: float | None = None
    veto: str | None = None
    request_id: str = ""
    wrong: bool = False
    """A hit with another answer than the truth: the simulator knows it."""

    @property
    def is_hit(self) -> bool:
        return self.kind in ("exact", "semantic")


@dataclass
class Tally:
    """Running counts. Money and tokens come from the sidecar's own books."""

    kinds: Counter[str] = field(default_factory=Counter)
    vetoes: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    hit_ttft_s: list[float] = field(default_factory=list)
    miss_ttft_s: list[float] = field(default_factory=list)

    def add(self, answer: Answer) -> None:
        """Count one answer."""
        self.kinds[answer.kind] += 1
        self.wrong += answer.wrong
        if answer.veto is not None and answer.veto != "threshold":
            self.vetoes[answer.veto] += 1
        (self.hit_ttft_s if answer.is_hit else self.miss_ttft_s).append(answer.ttft_s)

    @property
    def total(self) -> int:
        return self.kinds.total()

    @property
    def hits(self) -> int:
        return self.kinds["exact"] + self.kinds["semantic"]


@dataclass(frozen=True)
class Demo:
    """A running demo: where to ask, and who knows the truth."""

    url: str
    admin_url: str
    session: aiohttp.ClientSession
    oracle: Oracle
    model: str

    async def ask(self, prompt: str, route: str | None = None) -> Answer:
        """Stream one answer and judge it."""
        body = {
            "model": self.model,
            "stream": True,
            "messages": [{"role": "user", "content": prompt}],
        }
        sent = time.perf_counter()
        first: float | None = None
        parts: list[str] = []
        frames = SSEDecoder()
        headers = _KEY if route is None else {**_KEY, ROUTE: route}
        async with self.session.post(
            self.url, data=msgspec.json.encode(body), headers=headers
        ) as response:
            response.raise_for_status()
            async for data in response.content.iter_any():
                for frame in frames.feed(data):
                    text = _text(frame.data)
                    if text and first is None:
                        first = time.perf_counter()
                    parts.append(text)
            status = response.headers.get("cache-status", "")
            similarity = response.headers.get("x-headstart-similarity")
            veto = response.headers.get("x-headstart-veto")
            request_id = response.headers.get("x-headstart-request-id", "")
        ended = time.perf_counter()
        text = "".join(parts)
        kind = _kind(status)
        return Answer(
            prompt=prompt,
            text=text,
            kind=kind,
            ttft_s=(first or ended) - sent,
            total_s=ended - sent,
            similarity=float(similarity) if similarity else None,
            veto=veto,
            request_id=request_id,
            wrong=kind in ("exact", "semantic") and not self.oracle.judge(prompt, text),
        )


def _text(data: bytes | None) -> str:
    if not data or data == b"[DONE]":
        return ""
    chunk = msgspec.json.decode(data, type=_Chunk)
    return "".join(choice.delta.content or choice.delta.refusal or "" for choice in chunk.choices)


def _kind(cache_status: str) -> str:
    for kind in ("exact", "semantic", "joined"):
        if cache_status.endswith(f"detail={kind}"):
            return kind
    return "miss"


@contextlib.asynccontextmanager
async def running_demo(profile: str, seed: int, speed: float, store: str) -> AsyncIterator[Demo]:
    """Run providers and sidecar on free loopback ports in this loop, and close them after."""
    simulator = Simulator(profile, seed=seed, speed=speed)
    async with contextlib.AsyncExitStack() as stack:
        provider = await stack.enter_async_context(serve(simulator))
        price = simulator.profile.usd_per_million
        prices = {}
        if price is not None:
            prices["default"] = PriceSettings(
                input_per_million=price.input, output_per_million=price.output
            )
        upstream = UpstreamSettings(
            name=f"simulated-{profile}", base_url=f"{provider}/v1", price=prices
        )
        failing = await stack.enter_async_context(failing_providers(profile, seed, speed, prices))
        settings = checked(
            Settings(
                # So few requests are no time to watch near misses first.
                cache=CacheSettings(store=store, cold_start="optimistic"),
                upstream=(upstream, *failing),
                route=routes(upstream.name),
            )
        )
        sidecar = await stack.enter_async_context(_serving(settings))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Demo(
            url=f"{sidecar}/v1/chat/completions",
            admin_url=f"{sidecar}/_headstart",
            session=session,
            oracle=simulator.oracle,
            model=simulator.profile.model,
        )


@contextlib.asynccontextmanager
async def _serving(settings: Settings) -> AsyncIterator[str]:
    sock = bind("127.0.0.1", 0)
    config = uvicorn.Config(
        build_sidecar(settings), log_level="error", access_log=False, lifespan="on"
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup([sock])
    try:
        yield url_of(sock)
    finally:
        await server.shutdown([sock])
