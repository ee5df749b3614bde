"""CPU time of hits and misses, beside a no-op app and a relay that does nothing, in one run.

    python -m benchmarks.overhead [--requests N] [--json]

Each server runs in a process of its own. CPU is the user and system time of the process per
request, which other work on the machine changes little; compare wall times only within one run.
A gateway is served as by ``headstart serve``, all other apps by a plain uvicorn. A new deployment
encodes each of its first questions: a short run shows that in "miss, encoded".
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import multiprocessing.process
import os
import random
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import uvicorn

from benchmarks.load import http_request, percentile, run_load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headstart.observe import Observer

CHAT = "/v1/chat/completions"
ANSWER = b'{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[]}'
TOPICS = [
    f"Describe the {part} of {thing}"
    for part in ("history", "main parts")
    for thing in (
        "a bicycle",
        "the steam engine",
        "a public library",
        "the printing press",
        "a coral reef",
        "the human heart",
        "an orchestra",
        "the internet",
        "a beehive",
        "the Roman senate",
        "a suspension bridge",
        "the periodic table",
    )
]
"""The topics differ so much that no answer serves another topic."""


async def noop(scope: Any, receive: Any, send: Any) -> None:
    """Read the body, answer 74 bytes."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


def noop_app() -> Any:
    """Return an app that does nothing: no ASGI app takes less time."""
    return noop


def relay_to(upstream: int) -> Any:
    """Return a relay that only forwards: no proxy on these libraries takes less time."""
    session: aiohttp.ClientSession | None = None

    async def relay(scope: Any, receive: Any, send: Any) -> None:
        nonlocal session
        if scope["type"] != "http":
            return
        if session is None:
            connector = aiohttp.TCPConnector(limit=0)
            session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = {n.decode(): v.decode() for n, v in scope["headers"] if n != b"host"}
        url = f"http://127.0.0.1:{upstream}{scope['path']}"
        async with session.post(url, data=body, headers=headers) as response:
            down = [(n, v) for n, v in response.raw_headers if n.lower() != b"transfer-encoding"]
            await send({"type": "http.response.start", "status": response.status, "headers": down})
            async for data in response.content.iter_any():
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return relay


def gateway_of(settings: dict[str, Any], *observers: Observer) -> Any:
    """Return a gateway with these settings, by default with a store in memory."""
    from headstart.config.loading import load_settings
    from headstart.middleware.asgi import not_found
    from headstart.middleware.observers import Observers
    from headstart.mount import build_gateway

    loaded = load_settings(None, {}, {"cache.store": "memory:", **settings})
    return build_gateway(loaded, not_found, observers=Observers(observers))


def headstart_to(upstream: int, mode: str) -> Any:
    """Return the sidecar's app: the gateway with a store in memory."""
    from headstart.sidecar import settle_memory

    app = gateway_of(
        {
            "cache.mode": mode,
            # An audit costs a provider's call, which takes much longer than all else here.
            "cache.audit.mode": "off",
            "cache.cold_start": "optimistic",  # rewordings are hits from the first one
            # Hits are measured, so a request must wait for a busy encoder and not become a miss.
            "encoder.max_wait_ms": 10_000.0,
            "upstream": [{"name": "sim", "base_url": f"http://127.0.0.1:{upstream}"}],
        }
    )
    settle_memory()  # as ``headstart serve`` does
    return app


def simulated() -> Any:
    """The upstream: simulated provider without delays."""
    from headstart.lab.simulator import Simulator

    return Simulator("instant", seed=1)


def _serve(make: Callable[..., Any], arguments: tuple[Any, ...], bound: socket.socket) -> None:
    app = make(*arguments)
    config = uvicorn.Config(app, log_level="error", **_options(app))
    uvicorn.Server(config).run(sockets=[bound])


def _options(app: Any) -> dict[str, Any]:
    """Return the options of a server: those of ``headstart serve`` for a gateway."""
    from headstart.cli.sidecar_server import SERVER_OPTIONS
    from headstart.middleware.asgi import Gateway
    from headstart.middleware.http_protocol import BoundedHeadProtocol

    if not isinstance(app, Gateway):
        # Longer than a client keeps idle connections: it must not ask on one that is being closed.
        return {"access_log": False, "timeout_keep_alive": 75}

    class Protocol(BoundedHeadProtocol):
        """The limits of a sidecar, by default."""

        head_timeout_s = 30.0
        max_connections = 10_000

    return {**SERVER_OPTIONS, "http": Protocol}


def cpu_s(pid: int) -> float:
    """Return the user and system seconds of a process so far."""
    return time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid(3) does


@dataclass
class Running:
    """A server process."""

    port: int
    process: multiprocessing.process.BaseProcess

    def cpu_s(self) -> float:
        """User and system seconds so far."""
        assert self.process.pid is not None
        return cpu_s(self.process.pid)

    def rss_mb(self) -> float:
        """Resident memory."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


def start(make: Callable[..., Any], *arguments: Any, port: int = 0) -> Running:
    """Run a server in a fresh process and wait until it accepts. ``port`` 0: any free one."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    port = bound.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_serve, args=(make, arguments, bound), daemon=True)
    process.start()
    bound.close()
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return Running(port, process)
        if not process.is_alive():
            break
        time.sleep(0.05)
    raise SystemExit("a bench server did not start")


def chat(
    text: str, *, stream: bool, key: str = "bench", headers: Iterable[tuple[str, str]] = ()
) -> bytes:
    """Return one chat request; each ``key`` learns by itself."""
    messages = [
        {"role": "system", "content": "You are a helpful assistant of a large public library."},
        {"role": "user", "content": text},
    ]
    body = {"model": "bench", "messages": messages, **({"stream": True} if stream else {})}
    encoded = json.dumps(body, separators=(",", ":")).encode()
    return http_request(CHAT, encoded, key=key, headers=headers)


def unique(number: int) -> str:
    """A prompt that nothing stored resembles."""
    rng = random.Random(number)
    return " ".join("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(12))


_spaced = itertools.count()


def respaced(number: int) -> str:
    """A known prompt with other spacing: never an exact repeat, always the same meaning."""
    words = TOPICS[number % len(TOPICS)].split()
    code = next(_spaced) + 1
    gaps = [" " * (1 + (code >> 2 * i & 3)) for i in range(len(words) - 1)]
    return (
        "".join(w + g for w, g in zip(words, [*gaps, "?" * (code >> 2 * len(gaps))], strict=True))
        + "."
    )


async def measure(
    name: str, server: Running, make: Callable[[int], bytes], requests: int, concurrency: int
) -> dict[str, Any]:
    """Run one scenario and return its row."""
    bodies = [make(i) for i in range(requests)]
    await run_load(server.port, bodies[: max(8, concurrency)], concurrency)
    before = server.cpu_s()
    timings = await run_load(server.port, bodies[max(8, concurrency) :], concurrency)
    count = len(timings.total_s)
    return {
        "scenario": name,
        "concurrency": concurrency,
        "requests": count,
        "first_p50_ms": percentile(timings.first_s, 0.5) * 1e3,
        "first_p99_ms": percentile(timings.first_s, 0.99) * 1e3,
        "total_p50_ms": percentile(timings.total_s, 0.5) * 1e3,
        "total_p99_ms": percentile(timings.total_s, 0.99) * 1e3,
        "cpu_us": (server.cpu_s() - before) / count * 1e6,
        "per_s": count / timings.wall_s,
        "rss_mb": server.rss_mb(),
        "statuses": timings.statuses,
        "verdicts": dict(timings.verdicts.most_common(3)),
    }


async def bench(requests: int) -> list[dict[str, Any]]:
    """Run every scenario at every concurrency."""
    provider = start(simulated)
    floor = start(noop_app)
    relay = start(relay_to, provider.port)
    full = start(headstart_to, provider.port, "serve")
    exact = start(headstart_to, provider.port, "exact-only")
    for topic in TOPICS:
        await run_load(full.port, [chat(topic, stream=False)], 1)
    await asyncio.sleep(1.0)  # Stored entries are indexed in the background.
    rows = []
    serial = itertools.count()
    for concurrency in (1, 16, 64):
        n = requests if concurrency > 1 else requests // 2
        scenarios: list[tuple[str, Running, Callable[[int], bytes], int]] = [
            ("no-op app", floor, lambda i: chat(TOPICS[i % 24], stream=False), n),
            ("exact hit", full, lambda i: chat(TOPICS[i % 24], stream=False), n),
            ("exact hit, stream", full, lambda i: chat(TOPICS[i % 24], stream=True), n),
            ("semantic hit", full, lambda i: chat(respaced(i), stream=False), n // 4),
            ("relay", relay, lambda _: chat(unique(next(serial)), stream=False), n // 2),
            ("miss, exact-only", exact, lambda _: chat(unique(next(serial)), stream=False), n // 2),
            (
                "miss, encoded",
                full,
                lambda _: chat(unique(next(serial)), stream=False, key="misses"),
                n // 4,
            ),
            ("relay, stream", relay, lambda _: chat(unique(next(serial)), stream=True), n // 2),
            (
                "miss, exact-only, stream",
                exact,
                lambda _: chat(unique(next(serial)), stream=True),
                n // 2,
            ),
        ]
        for name, server, make, count in scenarios:
            rows.append(await measure(name, server, make, count, concurrency))
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for server in (provider, floor, relay, full, exact):
        server.process.terminate()
    return rows


BESIDE = {
    "exact hit": "no-op app",
    "exact hit, stream": "no-op app",
    "miss, exact-only": "relay",
    "miss, encoded": "relay",
    "miss, exact-only, stream": "relay, stream",
}

LEGEND = """
first, total: ms from the request to the first and to the last byte; c: requests at a time.
beside: hits against the no-op app, misses against the relay, in this run."""


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as text, with the ratios to the floor of the same run."""
    by_key = {(row["scenario"], row["concurrency"]): row for row in rows}
    head = (
        f"{'scenario':26}{'c':>4}{'first p50':>11}{'p99':>8}{'total p50':>11}{'p99':>8}"
        f"{'CPU us':>8}{'req/s':>8}{'MB':>6}  beside"
    )
    lines = [head]
    for row in rows:
        floor = by_key.get((BESIDE.get(row["scenario"], ""), row["concurrency"]))
        beside = ""
        if floor is not None:
            added = row["first_p50_ms"] - floor["first_p50_ms"]
            beside = (
                f"{row['total_p50_ms'] / floor['total_p50_ms']:.2f}x p50, "
                f"{row['cpu_us'] / floor['cpu_us']:.2f}x CPU, {added:+.2f} ms to first byte"
            )
        lines.append(
            f"{row['scenario']:26}{row['concurrency']:>4}{row['first_p50_ms']:>11.2f}"
            f"{row['first_p99_ms']:>8.1f}{row['total_p50_ms']:>11.2f}{row['total_p99_ms']:>8.1f}"
            f"{row['cpu_us']:>8.0f}{row['per_s']:>8.0f}{row['rss_mb']:>6.0f}  {beside}"
        )
    return "\n".join([*lines, LEGEND])


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--requests", type=int, default=4000, help="per scenario, at least 300 (default: 4000)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    arguments = parser.parse_args()
    if arguments.requests < 300:
        parser.error("--requests: the scenarios with 64 requests at a time need at least 300")
    rows = asyncio.run(bench(arguments.requests))
    print(json.dumps(rows, indent=1) if arguments.json else table(rows))


if __name__ == "__main__":
    main()
