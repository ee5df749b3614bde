"""Run cascades through the real proxy, over two simulated providers, and count their cost.

    python -m benchmarks.cascade_proxy [--calls N] [--json]

Two simulators on real sockets: ``groq`` (Mixtral) makes drafts, and ``openai`` (GPT-4 Turbo)
answers if a draft is rejected. Delays and prices are those of ``profiles.toml``. The failures of
the fast model are made up: it refuses, miscalculates or breaks off stated shares of its answers,
more for hard prompts than for easy ones. So latency, cost and shares measure the proxy, and quality
says nothing about these models. Times are simulated seconds. The simulated clocks run ``SPEED``
times faster than real time, so the proxy's own time counts ``SPEED`` times as much.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
import uvicorn
from msgspec.structs import replace

from benchmarks.load import percentile
from benchmarks.overhead import gateway_of
from headstart.lab.simulator import Oracle, Simulator, Spell, Truth, find_profile, serve
from headstart.lab.simulator.app import serve_app
from headstart.lab.simulator.faults import Cut
from headstart.observe import Observation, Served

if TYPE_CHECKING:
    from collections.abc import Mapping


SPEED = 2.0
ABREAST = 16
CUT = 0.03
"""Share of the fast model's answers that break off."""
WARM = 60
"""Number of first calls that are not measured: in them the proxy learns its figures of providers
and cascades."""
FAILS = {"easy": 0.05, "hard": 0.80}
"""Shares of refused or miscalculated drafts."""
HARD = 0.3
"""Share of hard prompts."""
ANSWER_TOKENS = 80
REFUSAL = "I'm sorry, but I can't help with that."
MODES: dict[str, dict[str, Any]] = {
    "fast alone": {"upstreams": ["fast"]},
    "slow alone": {"upstreams": ["slow"]},
    "cascade": {"upstreams": ["fast", "slow"], "strategy": "cascade"},
    "cascade, escalate_early": {
        "upstreams": ["fast", "slow"],
        "strategy": "cascade",
        "escalate_early": True,
    },
}


class Weak(Oracle):
    """Knows the right answers and fails a share of them, by a hash of the prompt."""

    def truth(self, prompt: str) -> Truth:
        """Return the right answer, a refusal, or one whose arithmetic is wrong."""
        right = super().truth(prompt)
        draw = random.Random(prompt)
        if draw.random() >= FAILS[kind_of(prompt)]:
            return right
        text = REFUSAL if draw.random() < 0.5 else f"{right.text} That is 12 + 30 = 43."
        return replace(right, text=text)


def kind_of(prompt: str) -> str:
    return "hard" if prompt.startswith("If ") else "easy"


def prompts(count: int) -> list[str]:
    """Return distinct prompts in a seeded order."""
    draw = random.Random(7)
    made = []
    for number in range(count):
        if draw.random() < HARD:
            made.append(
                f"If box {number} holds twice as many apples as 3/4 of the rest, and each of the "
                f"{number % 9 + 2} others holds 5 more than the one before it, how many are left "
                "in total after 6 days?"
            )
        else:
            made.append(f"What is a good name for boat number {number}?")
    return made


@dataclass
class Tally:
    """The results of one mode, for the clients and in the books."""

    first_s: list[float] = field(default_factory=list)
    total_s: list[float] = field(default_factory=list)
    right: int = 0
    failed: int = 0
    usd: float = 0.0
    marks: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)

    def notify(self, seen: Observation) -> None:
        """Count a row of the books."""
        if isinstance(seen, Served):
            for attempt in seen.attempts:
                self.outcomes[f"{attempt.role} {attempt.outcome}"] += 1
                self.usd += attempt.cost_usd or 0.0

    def summary(self) -> dict[str, Any]:
        """Return the figures by name."""
        count = len(self.total_s) + self.failed
        return {
            "calls": count,
            "first_token_s": {f"p{q}": percentile(self.first_s, q / 100) for q in (50, 95)},
            "total_s": {f"p{q}": percentile(self.total_s, q / 100) for q in (50, 95)},
            "usd_per_1000": 1000 * self.usd / count,
            "right": self.right / count,
            "failed": self.failed / count,
            "answered_by": {name: n / count for name, n in self.marks.most_common()},
            "attempts": dict(self.outcomes.most_common()),
        }


async def run(mode: Mapping[str, Any], calls: int) -> Tally:
    """Send all prompts through a proxy of its own."""
    async with AsyncExitStack() as stack:
        cut = Spell(fault=Cut(after=ANSWER_TOKENS // 3, how="reset"), share=CUT)
        providers = {
            "fast": ("groq", Weak(answer_tokens=ANSWER_TOKENS), (cut,)),
            "slow": ("openai", Oracle(answer_tokens=ANSWER_TOKENS), ()),
        }
        upstreams = []
        for name, (profile, oracle, weather) in providers.items():
            figures = replace(find_profile(profile), requests_per_minute=None)
            simulator = Simulator(figures, speed=SPEED, oracle=oracle, weather=weather)
            price = figures.usd_per_million
            assert price is not None
            upstreams.append(
                {
                    "name": name,
                    "base_url": await stack.enter_async_context(serve(simulator)),
                    "price": {
                        "m": {"input_per_million": price.input, "output_per_million": price.output}
                    },
                }
            )
        tally = Tally()
        settings = {
            "cache.mode": "exact-only",
            "upstream": upstreams,
            "route": [{"name": "all", **mode}],
        }
        app = gateway_of(settings, tally)
        config = uvicorn.Config(app, log_level="error", access_log=False, lifespan="on")
        _, url = await stack.enter_async_context(serve_app(config))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await send(session, url, prompts(calls + WARM)[calls:], Tally())
        tally.outcomes.clear()
        tally.usd = 0.0
        await send(session, url, prompts(calls), tally)
    return tally


async def send(session: aiohttp.ClientSession, url: str, asked: list[str], tally: Tally) -> None:
    """Ask everything, some side by side."""
    waiting, truth = iter(asked), Oracle(answer_tokens=ANSWER_TOKENS)

    async def client() -> None:
        for prompt in waiting:
            await ask(session, url, prompt, truth, tally)

    async with asyncio.TaskGroup() as group:
        for _ in range(ABREAST):
            group.create_task(client())


async def ask(
    session: aiohttp.ClientSession, url: str, prompt: str, truth: Oracle, tally: Tally
) -> None:
    """Stream one answer, time it and judge it."""
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": prompt}]}
    sent, first, text = time.perf_counter(), 0.0, ""
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        marks = response.headers.get("x-headstart-transforms", "").split(",")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if response.status != 200 or "error" in event:
                break
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
            first = first or (time.perf_counter() if text else 0.0)
    ended = time.perf_counter()
    if not first or response.status != 200:
        tally.failed += 1
        return
    tally.first_s.append((first - sent) * SPEED)
    tally.total_s.append((ended - sent) * SPEED)
    tally.right += truth.judge(prompt, text)
    tally.marks[next((mark for mark in marks if mark.startswith("cascade:")), "its only one")] += 1


def show(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a table."""
    print(f"{'':25}{'first token, s':>16}{'whole, s':>16}{'$ per':>8}{'':>8}{'by the':>8}")
    print(f"{'':25}{'p50':>8}{'p95':>8}{'p50':>8}{'p95':>8}{'1,000':>8}{'right':>8}{'slow':>8}")
    for name, row in found.items():
        times = (row[at][q] for at in ("first_token_s", "total_s") for q in ("p50", "p95"))
        slow = row["answered_by"].get("cascade:slow", float(name == "slow alone"))
        print(
            f"{name:25}" + "".join(f"{each:8.2f}" for each in times)
            + f"{row['usd_per_1000']:8.3f}{row['right']:8.1%}{slow:8.1%}"
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {name: asyncio.run(run(mode, options.calls)).summary() for name, mode in MODES.items()}
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)


if __name__ == "__main__":
    main()
