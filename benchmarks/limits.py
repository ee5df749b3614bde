"""A provider with a rate limit behind several nodes, with more calls than it allows.

    python -m benchmarks.limits [--nodes 3] [--workers 2] [--limit 15] [--window-s 1]
                                [--form bucket] [--wait exact] [--over 2] [--seconds 15]
                                [--redis URL]

It runs nodes that share a Redis (its own one, unless a URL is given) in front of a
provider on loopback that allows ``--limit`` calls in ``--window-s`` seconds. First the nodes get
60 % of the calls that the limit allows, for ``QUIET_S`` seconds, and then ``--over`` times the
limit, for ``--seconds``. It prints the statuses that clients saw, the calls that the provider
refused, and the time until all calls had an answer beside the least time that the limit allows.

``bucket``: the provider refills its limit steadily, as OpenAI, Anthropic and Groq do.
``windows``: the whole limit comes back at the end of each window. ``tokens``: a bucket of tokens;
each call takes ``CALL_TOKENS``. ``silent`` and ``silent-windows``: no header tells of the limit
before a refusal. ``--wait``: a refusal names the milliseconds until a call fits, whole seconds, or
no time.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import random
import statistics
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import aiohttp
from aiohttp import web

from benchmarks.joined import nodes, redis_url

if TYPE_CHECKING:
    from collections.abc import Sequence

QUIET_S = 6.0
QUIET_SHARE = 0.6
ANSWER_S = 0.3
"""Mean time of an answer."""
LONGEST_S = 120.0
CALL_TOKENS = 18


class LimitedProvider:
    """Answers ``limit`` calls in ``window_s``, and refuses the others with 429."""

    def __init__(self, limit: int, window_s: float, form: str, wait: str) -> None:
        self.limit = limit
        self.window_s = window_s
        self.is_silent = form.startswith("silent")
        self.has_windows = form.endswith("windows")
        self.counts_tokens = form == "tokens"
        self.wait = wait
        self.answered = self.refused = 0
        self._left, self._at = float(limit), time.monotonic()

    async def answer(self, request: web.Request) -> web.Response:
        """Answer or refuse a call."""
        await request.read()
        now = time.monotonic()
        if self.has_windows:
            if now >= self._at + self.window_s:
                self._left, self._at = float(self.limit), now
            reset_s = next_s = self._at + self.window_s - now
        else:
            per_s = self.limit / self.window_s
            self._left, self._at = min(self.limit, self._left + (now - self._at) * per_s), now
            next_s = max(0.0, 1.0 - self._left) / per_s
        allowed = self._left >= 1.0
        self._left -= allowed
        if not self.has_windows:
            reset_s = (self.limit - self._left) * self.window_s / self.limit
        headers: dict[str, str] = {}
        unit, each = ("tokens", CALL_TOKENS) if self.counts_tokens else ("requests", 1)
        if not self.is_silent:
            headers[f"x-ratelimit-limit-{unit}"] = str(self.limit * each)
            headers[f"x-ratelimit-remaining-{unit}"] = str(int(self._left * each))
            headers[f"x-ratelimit-reset-{unit}"] = f"{reset_s:.3f}s"
        if not allowed:
            self.refused += 1
            if self.wait == "exact":
                headers["retry-after-ms"] = str(int(next_s * 1000) + 1)
            elif self.wait == "seconds":
                headers["retry-after"] = str(math.ceil(next_s))
            return web.json_response({"error": {"message": "limit"}}, status=429, headers=headers)
        self.answered += 1
        await asyncio.sleep(random.uniform(0.5, 1.5) * ANSWER_S)
        return web.json_response(ANSWER, headers=headers)


ANSWER = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Look into your settings."},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18},
}


class Result(NamedTuple):
    """One answer that a client got."""

    status: int
    took_s: float
    body: bytes


async def ask(session: aiohttp.ClientSession, url: str, number: int) -> Result:
    """Ask a question that nobody asked before."""
    messages = [{"role": "user", "content": f"What does part {number} weigh?"}]
    began = time.perf_counter()
    async with session.post(url, json={"model": "m", "messages": messages}) as response:
        body = await response.read()
        return Result(response.status, time.perf_counter() - began, body)


class Load:
    """Asks questions at random times, each node in turn, and prints what came of them."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        urls: Sequence[str],
        provider: LimitedProvider,
        per_s: float,
    ) -> None:
        """``per_s`` is the rate that the provider allows, in calls a second."""
        self._session, self._urls, self._provider, self._per_s = session, urls, provider, per_s
        self._numbers = itertools.count()

    async def run(self, name: str, rate: float, seconds: float) -> None:
        """Ask ``rate`` questions a second for ``seconds``; print the results as a line of JSON."""
        refused, answered = self._provider.refused, self._provider.answered
        began = time.perf_counter()
        tasks = []
        async with asyncio.TaskGroup() as group:
            for _ in range(round(rate * seconds)):
                number = next(self._numbers)
                url = self._urls[number % len(self._urls)]
                tasks.append(group.create_task(ask(self._session, url, number)))
                await asyncio.sleep(random.expovariate(rate))
        results = [task.result() for task in tasks]
        waits = sorted(each.took_s for each in results)
        found = {
            "phase": name,
            "calls": len(results),
            "statuses": dict(Counter(each.status for each in results)),
            "provider_answered": self._provider.answered - answered,
            "provider_refused": self._provider.refused - refused,
            "took_s": round(time.perf_counter() - began, 1),
            "least_s": round(len(results) / self._per_s, 1),
            "wait_p50_s": round(statistics.median(waits), 2),
            "wait_max_s": round(waits[-1], 2),
        }
        print(json.dumps(found))
        wrong = next((each for each in results if each.status != 200), None)
        if wrong is not None:
            print(wrong.body.decode()[:400])


async def measure(options: argparse.Namespace, store: str) -> None:
    """Run the nodes before the provider, and both phases: below its limit, and above."""
    provider = LimitedProvider(options.limit, options.window_s, options.form, options.wait)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", provider.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    upstream = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    per_s = options.limit / options.window_s
    running_nodes = nodes(options.nodes, store, upstream, "--workers", str(options.workers))
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # each call may reach any worker
    headers = {"authorization": "Bearer sk-test"}
    timeout = aiohttp.ClientTimeout(total=LONGEST_S)
    loop = asyncio.get_running_loop()
    urls = await loop.run_in_executor(None, running_nodes.__enter__)
    try:
        async with aiohttp.ClientSession(
            connector=connector, headers=headers, timeout=timeout
        ) as session:
            load = Load(session, urls, provider, per_s)
            await load.run("below", QUIET_SHARE * per_s, max(QUIET_S, options.window_s))
            await load.run("above", options.over * per_s, options.seconds)
    finally:
        await loop.run_in_executor(None, running_nodes.__exit__, None, None, None)
        await runner.cleanup()


def main() -> None:
    """Run nodes before a provider with a rate limit, and print what its clients see."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=int, default=15)
    parser.add_argument("--window-s", type=float, default=1.0)
    parser.add_argument(
        "--form",
        choices=("bucket", "windows", "tokens", "silent", "silent-windows"),
        default="bucket",
    )
    parser.add_argument("--wait", choices=("exact", "seconds", "none"), default="exact")
    parser.add_argument("--over", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--redis", help="URL of a Redis; default: one of its own")
    options = parser.parse_args()
    with redis_url(options.redis) as store:
        asyncio.run(measure(options, store))


if __name__ == "__main__":
    main()
