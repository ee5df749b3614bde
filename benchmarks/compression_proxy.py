"""Time to first token through the whole proxy, with and without compression.

    python -m benchmarks.compression_proxy DATA [KIND ...] [--requests N] [--json]

``DATA`` as in ``benchmarks.compression``. Simulated providers take time for each prompt token
that is not in their prefix cache. Their random variation is switched off, so that the remaining
variation is ours. Each mode has its own proxy and providers, in their own processes. Every prompt
is sent to all proxies, one after the other in random order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
import msgspec

from benchmarks import compression_cache, compression_evidence, compression_types
from benchmarks.load import percentile
from benchmarks.overhead import CHAT, Running, gateway_of, start

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Message = dict[str, Any]
    Prompt = Sequence[Message]

MODES = ("off", "safe", "balanced", "aggressive")
KINDS = ("small", "agent", "retrieval", "log")
PROVIDERS = ("openai", "groq")
"""One that reads a thousand tokens in 60 ms, and one that takes 8."""


class Answer(NamedTuple):
    """Seconds to the first content, and the tokens of the prompt that the provider read."""

    ttft_s: float
    tokens: int


def provider(profile: str) -> Any:
    """Return a provider whose only delays are a fixed one and that of reading the prompt."""
    from headstart.lab.simulator import PROFILES, Simulator

    steady = msgspec.structs.replace(
        PROFILES[profile], ttft_sigma=0.0, stall=0.0, tokens_per_s=None
    )
    return Simulator(steady, seed=1)


def proxy(mode: str, ports: dict[str, int]) -> Any:
    """Return the gateway before both providers, found by the model's name."""
    upstreams = [
        {"name": name, "base_url": f"http://127.0.0.1:{port}/v1", "models": {name: "gpt-4o"}}
        for name, port in ports.items()
    ]
    return gateway_of({"cache.mode": "exact-only", "compression.mode": mode, "upstream": upstreams})


def prompts(data: Path) -> dict[str, Iterator[Prompt]]:
    """Return prompts by kind.

    No two prompts have the same beginning, except for the turns of one session.
    """
    return {
        "small": small(),
        "agent": agent(data),
        "retrieval": retrieval(data),
        "log": log(data),
    }


def small() -> Iterator[Prompt]:
    """Questions with nothing to compress."""
    for number in range(10**6):
        yield [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": f"Tell me in one sentence what the number {number} is."},
        ]


def agent(data: Path) -> Iterator[Prompt]:
    """Every request of long agent sessions, in order: their prefixes are in the cache."""
    for number, session in enumerate(compression_cache.sessions(data, 4)):
        first = {**session[0], "content": f"Session {number}. {session[0]['content']}"}
        for turn, message in enumerate(session):
            if message["role"] == "assistant":
                yield [first, *session[1:turn]]


def retrieval(data: Path) -> Iterator[Prompt]:
    """Questions with twenty passages."""
    for number, case in enumerate(compression_evidence.nq20(data)):
        yield [
            {"role": "system", "content": f"Request {number}."},
            {"role": "user", "content": compression_evidence.prompt_of(case)},
        ]


def log(data: Path) -> Iterator[Prompt]:
    """A tool's thousand lines of log, rotated so that no two begin alike."""
    texts = compression_types.payloads(data)
    lines = [text[0].split("\n") for kind, text in texts.items() if kind.startswith("log")]
    for number in range(10**6):
        chosen = lines[number % len(lines)]
        at = 13 * number % len(chosen)
        yield compression_types.conversation("\n".join(chosen[at:] + chosen[:at]))


async def ask(session: aiohttp.ClientSession, port: int, model: str, prompt: Prompt) -> Answer:
    """Send one streamed request."""
    body = {
        "model": model,
        "messages": list(prompt),
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 8,
    }
    began = time.perf_counter()
    first, rest = None, b""
    url = f"http://127.0.0.1:{port}{CHAT}"
    async with session.post(url, json=body, headers={"authorization": "Bearer bench"}) as response:
        response.raise_for_status()
        async for data in response.content.iter_any():
            rest += data
            if first is None and b'"content":"' in data:
                first = time.perf_counter() - began
    chunks = [line[6:] for line in rest.split(b"\n") if line.startswith(b"data: {")]
    assert first is not None
    return Answer(first, json.loads(chunks[-1])["usage"]["prompt_tokens"])


async def measure(
    proxies: dict[str, Running], model: str, source: Iterator[Prompt], requests: int
) -> dict[str, list[Answer]]:
    """Send each prompt to all proxies, and return their answers by mode."""
    answers: dict[str, list[Answer]] = {mode: [] for mode in proxies}
    async with aiohttp.ClientSession() as session:
        for prompt in islice(source, requests):
            for mode in random.sample(list(proxies), len(proxies)):
                answers[mode].append(await ask(session, proxies[mode].port, model, prompt))
    return answers


def rows(kind: str, model: str, answers: dict[str, list[Answer]]) -> Iterator[dict[str, Any]]:
    """Yield a row for each mode, compared with the mode ``off``."""
    off = answers["off"]
    for mode, found in answers.items():
        row: dict[str, Any] = {"kind": kind, "provider": model, "mode": mode}
        row["tokens"] = sum(each.tokens for each in found) / len(found)
        for name, share in (("p50", 0.5), ("p95", 0.95)):
            row[f"{name}_ms"] = percentile([each.ttft_s for each in found], share) * 1e3
            without = percentile([each.ttft_s for each in off], share) * 1e3
            row[f"{name}_change"] = row[f"{name}_ms"] / without - 1
        yield row


async def bench(data: Path, kinds: Sequence[str], requests: int) -> list[dict[str, Any]]:
    """Run these kinds of prompts against all providers."""
    running: list[Running] = []
    proxies = {}
    for mode in MODES:
        providers = {name: start(provider, name) for name in PROVIDERS}
        ports = {name: each.port for name, each in providers.items()}
        proxies[mode] = start(proxy, mode, ports)
        running += [*providers.values(), proxies[mode]]
    found: list[dict[str, Any]] = []
    try:
        for model in PROVIDERS:
            async with aiohttp.ClientSession() as session:  # connections, tokenizers, caches
                for each in proxies.values():
                    await ask(session, each.port, model, next(log(data)))
            for kind in kinds:
                answers = await measure(proxies, model, prompts(data)[kind], requests)
                found += rows(kind, model, answers)
                print(table(found[-len(MODES) :]), flush=True)
    finally:
        for each in running:
            each.process.terminate()
    return found


def table(found: Sequence[dict[str, Any]]) -> str:
    """Return rows as text."""
    return "\n".join(
        f"{row['kind']:10}{row['provider']:8}{row['mode']:11}{row['tokens']:8.0f} tokens"
        f"{row['p50_ms']:9.1f} ms p50 {row['p50_change']:+7.1%}"
        f"{row['p95_ms']:9.1f} ms p95 {row['p95_change']:+7.1%}"
        for row in found
    )


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description="measure compression through the proxy")
    parser.add_argument("data", type=Path)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="default: all of them")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = asyncio.run(bench(args.data, args.kinds or KINDS, args.requests))
    if args.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
