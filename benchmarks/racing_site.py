"""Simulated providers, a sidecar that calls them, and a client, each in its own process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import tempfile
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import uvloop

from benchmarks.load import percentile
from benchmarks.overhead import cpu_s
from benchmarks.safe_hits_programs import Program
from headstart.lab.simulator import (
    EndedCall,
    Oracle,
    ProviderProfile,
    Simulator,
    Spell,
    find_profile,
    serve,
)

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Coroutine,
        Iterable,
        Mapping,
        Sequence,
    )
    from multiprocessing.connection import Connection

CHAT = "/v1/chat/completions"
NUMBER = "x-bench-call"
"""Header with a call's number, which travels to the provider and into its record."""
WORDS = ("harbour", "lantern", "quarry", "meadow", "compass", "granite", "orchard", "signal")


@dataclass(frozen=True)
class Provider:
    """One simulated provider. Prices are dollars per million tokens, in and out."""

    name: str
    profile: str | ProviderProfile
    seed: int
    speed: float = 1.0
    answer_tokens: int = 8
    weather: tuple[Spell, ...] = ()
    price: tuple[float, float] = (1.0, 4.0)
    cancels_billing: bool = True

    def make(self) -> Simulator:
        """Return it as an ASGI app."""
        return Simulator(
            self.profile,
            seed=self.seed,
            speed=self.speed,
            weather=self.weather,
            oracle=Oracle(answer_tokens=self.answer_tokens),
        )

    def ttft_s(self, number: int) -> float:
        """Return the real seconds to first token that its request of this number draws."""
        profile = find_profile(self.profile) if isinstance(self.profile, str) else self.profile
        return profile.draw(self.seed, number).ttft_s / self.speed

    def bill_usd(self, record: EndedCall) -> float:
        """Return the provider's charge for a call."""
        prompt, completion = record.billed(cancels_billing=self.cancels_billing)
        return (prompt * self.price[0] + completion * self.price[1]) / 1e6

    def settings(self, url: str) -> dict[str, Any]:
        """Return its ``[[upstream]]`` table."""
        return {
            "name": self.name,
            "base_url": url,
            "price": {"default": _price(self.price)},
            "cancels_billing": self.cancels_billing,
        }


def _price(price: tuple[float, float]) -> dict[str, float]:
    return {"input_per_million": price[0], "output_per_million": price[1]}


@dataclass(frozen=True)
class Sample:
    """One call as its client saw it. Seconds from when it was due to be sent."""

    number: int
    status: int
    whole: bool
    """It ended as an answer ends, without an error in it."""
    first_s: float
    total_s: float


@dataclass
class Site:
    """The running processes. ``url`` is the sidecar's; ``urls`` are the providers', by name."""

    session: aiohttp.ClientSession
    providers: tuple[Provider, ...]
    urls: dict[str, str]
    url: str
    pid: int
    samples: list[Sample] = field(default_factory=list)

    async def records(self) -> dict[str, list[EndedCall]]:
        """Return the records of each provider."""
        seen = {}
        for name, url in self.urls.items():
            async with self.session.get(url + "/_sim/requests") as response:
                seen[name] = msgspec.json.decode(await response.read(), type=list[EndedCall])
        return seen

    async def metrics(self) -> str:
        """Return the sidecar's metrics."""
        async with self.session.get(self.url + "/_headstart/metrics") as response:
            return await response.text()

    def cpu_s(self) -> float:
        """User and system seconds of the sidecar so far."""
        return cpu_s(self.pid)


def _provide(providers: tuple[Provider, ...], pipe: Connection) -> None:
    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            pipe.send([await stack.enter_async_context(serve(each.make())) for each in providers])
            await asyncio.Event().wait()

    uvloop.run(run())


@asynccontextmanager
async def site(
    providers: Iterable[Provider], routes: Sequence[Mapping[str, Any]] | None, **settings: Any
) -> AsyncIterator[Site]:
    """Run providers, and before them a sidecar with these ``[[route]]``s; None: no sidecar."""
    providers = tuple(providers)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_provide, args=(providers, theirs), daemon=True)
    process.start()
    theirs.close()  # So that a process that dies is an end of file, not a wait.
    urls = dict(zip((each.name for each in providers), ours.recv(), strict=True))
    connector = aiohttp.TCPConnector(limit=0)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "headstart.toml")
        toml = _toml(providers, urls, routes or (), settings)
        await asyncio.to_thread(config.write_text, toml, encoding="utf-8")
        sidecar = Program(["serve", "--config", str(config), "--port", "0"])
        async with aiohttp.ClientSession(connector=connector) as session:
            try:
                url = "" if routes is None else await sidecar.start()
                pid = 0 if sidecar.process is None else sidecar.process.pid
                yield Site(session, providers, urls, url, pid)
            finally:
                if sidecar.process is not None:
                    await sidecar.stop()
                process.terminate()


def _toml(
    providers: tuple[Provider, ...],
    urls: Mapping[str, str],
    routes: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
) -> str:
    tables: dict[str, Any] = {
        "cache": {"store": "memory:", "mode": "exact-only", "audit": {"mode": "off"}},
        "upstream": [each.settings(urls[each.name]) for each in providers],
        "route": [{"name": f"bench{place}", **each} for place, each in enumerate(routes)],
        **settings,
    }
    return "".join(f"{name} = {_value(value)}\n" for name, value in tables.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_value(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)


def prompt(number: int, words: int = 60) -> str:
    """Return a text that nothing before it resembles."""
    noise = random.Random(number)
    return f"Call {number}: " + " ".join(noise.choices(WORDS, k=words))


async def ask(
    site: Site,
    url: str,
    number: int,
    due: float,
    *,
    stream: bool = True,
    model: str = "bench",
    max_tokens: int | None = None,
) -> Sample:
    """Make one call and read its answer to the end."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt(number)}],
        "stream": stream,
        **({} if max_tokens is None else {"max_tokens": max_tokens}),
    }
    headers = {NUMBER: str(number), "authorization": "Bearer bench"}
    status, first, tail, now = 0, 0.0, b"", time.perf_counter
    try:
        async with site.session.post(url + CHAT, json=body, headers=headers) as response:
            status = response.status
            async for data in response.content.iter_any():
                first = first or now()
                tail = tail[-500:] + data
    except aiohttp.ClientError:
        tail = b""
    ended = now()
    right = tail.endswith(b"data: [DONE]\n\n") if stream else tail.endswith(b"}")
    whole = status == 200 and right and b'"error"' not in tail
    return Sample(number, status, whole, (first or ended) - due, ended - due)


async def drive(
    calls: int,
    per_s: float,
    one: Callable[[int, float], Coroutine[Any, Any, Sample]],
) -> list[Sample]:
    """Make calls as they come in: at random, whether or not earlier ones have been answered."""
    noise, now = random.Random(1), time.perf_counter  # uvloop's own clock ticks in whole ms
    due = now()
    samples: list[Sample] = []

    async def take(made: Awaitable[Sample]) -> None:
        samples.append(await made)

    async with asyncio.TaskGroup() as group:
        for number in range(calls):
            due += noise.expovariate(per_s)
            await asyncio.sleep(max(0.0, due - now()))
            group.create_task(take(one(number, now())))
    return sorted(samples, key=lambda each: each.number)


def by_number(records: Mapping[str, list[EndedCall]]) -> dict[int, dict[str, list[EndedCall]]]:
    """Return the providers' records by the number of the call that caused them."""
    grouped: dict[int, dict[str, list[EndedCall]]] = {}
    for name, seen in records.items():
        for record in seen:
            calls = grouped.setdefault(int(record.headers[NUMBER]), {})
            calls.setdefault(name, []).append(record)
    return grouped


def quantiles(values: list[float]) -> dict[str, float]:
    """Return the median, p95 and p99, in seconds."""
    return {f"p{share * 100:.0f}": percentile(values, share) for share in (0.5, 0.95, 0.99)}


def load() -> str:
    """Say how busy this machine is, for the page."""
    return f"{os.getloadavg()[0]:.2f} on {os.cpu_count()} cores, {time.strftime('%H:%M')}"
