"""Measure the cost of long prompts: CPU of a request, and the longest pause of the event loop.

    python -m benchmarks.long_prompts [--requests N] [--json]

Prompts of 1,000 to 200,000 tokens are sessions of a coding agent (``benchmarks.agent_sessions``),
several after each other if one is too short. No two are equal, so each is a miss. Proxy and
provider are processes of their own; the provider answers at once. A timer of one
millisecond inside the proxy measures the pauses: if the timer is late, all other requests wait for
the same time. Prompts are sent one at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from benchmarks.agent_sessions import coding, tools
from benchmarks.load import percentile
from benchmarks.overhead import CHAT, Running, gateway_of, start
from headstart.sidecar import settle_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    Message = dict[str, Any]

SIZES = (1_000, 10_000, 50_000, 200_000)
MODES = ("off", "safe", "balanced", "recoverable")
CHARS_PER_TOKEN = 4
_TICK_S = 0.001


def provider() -> Any:
    """Return a provider that answers at once."""
    from headstart.lab.simulator import ProviderProfile, Simulator

    return Simulator(ProviderProfile(model="m"), seed=1)


def proxy(mode: str, port: int) -> Any:
    """Return the gateway, with ``/pauses``: the longest pause of its loop since the last answer."""
    upstream = {"base_url": f"http://127.0.0.1:{port}", "api_key_env": []}
    settings = {"cache.mode": "exact-only", "compression.mode": mode, "upstream": [upstream]}
    return WatchedApp(gateway_of(settings))


class WatchedApp:
    """An ASGI app whose loop is watched from its first request on."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._longest_s = 0.0
        self._watched = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer ``/pauses``; everything else is the app's."""
        if scope["type"] != "http" or scope["path"] != "/pauses":
            await self._app(scope, receive, send)
            return
        if not self._watched:
            self._watched = True
            settle_memory()  # as ``headstart serve`` does once it has started
            self._wait()
        body = b"%f" % self._longest_s
        self._longest_s = 0.0
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    def _wait(self) -> None:
        due = time.perf_counter() + _TICK_S
        asyncio.get_running_loop().call_later(_TICK_S, self._look, due)

    def _look(self, due: float) -> None:
        self._longest_s = max(self._longest_s, time.perf_counter() - due)
        self._wait()


def prompts(tokens: int) -> Iterator[bytes]:
    """Yield bodies of about so many tokens."""
    rng = random.Random(tokens)
    for session in coding(10_000):
        messages: list[Message] = [{**session[0], "content": f"{rng.random()} " * 3}]
        left = tokens * CHARS_PER_TOKEN
        for more in (session, *coding(40)):
            for message in more[1:]:
                size = len(json.dumps(message))
                if size < left:
                    messages.append(message)
                    left -= size
            if left < 1000:
                break
        body = {"model": "m", "messages": messages, "tools": tools(), "max_tokens": 5}
        yield msgspec.json.encode(body)


async def measure(running: Running, tokens: int, requests: int) -> dict[str, float]:
    """Return milliseconds of CPU for a request, and of the longest pauses."""
    pauses, cpu = [], []
    base = f"http://127.0.0.1:{running.port}"
    headers = {"authorization": "Bearer k", "content-type": "application/json"}
    async with aiohttp.ClientSession(headers=headers) as client:

        async def pause_s() -> float:
            async with client.get(f"{base}/pauses") as answer:
                return float(await answer.read())

        for number, body in enumerate(prompts(tokens)):
            await pause_s()
            await asyncio.sleep(0.05)
            await pause_s()
            before = running.cpu_s()
            async with client.post(base + CHAT, data=body) as answer:
                await answer.read()
                assert answer.status == 200, answer.status
            pauses.append(await pause_s())
            cpu.append(running.cpu_s() - before)
            if number > requests:
                break
    # The first two requests load modules and ranks.
    return {
        "bytes": len(body),
        "cpu_ms": 1e3 * percentile(cpu[2:], 0.5),
        "pause_p50_ms": 1e3 * percentile(pauses[2:], 0.5),
        "pause_max_ms": 1e3 * max(pauses[2:]),
    }


async def bench(requests: int) -> list[dict[str, Any]]:
    """Return a row for each mode and length."""
    upstream = start(provider)
    rows = []
    for mode in MODES:
        running = start(proxy, mode, upstream.port)
        for tokens in SIZES:
            found = await measure(running, tokens, requests)
            rows.append({"mode": mode, "tokens": tokens, **found})
        running.process.terminate()
    upstream.process.terminate()
    return rows


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = asyncio.run(bench(args.requests))
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    print("| mode | tokens | CPU, ms | pause p50, ms | longest pause, ms |\n|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['mode']} | {row['tokens']:,} | {row['cpu_ms']:.1f} | {row['pause_p50_ms']:.1f}"
            f" | {row['pause_max_ms']:.1f} |"
        )


if __name__ == "__main__":
    main()
