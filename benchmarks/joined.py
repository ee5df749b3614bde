"""Equal calls of several nodes: how many calls the provider gets, and the cost of joining.

    python -m benchmarks.joined [--calls 1000] [--nodes 3] [--misses 300] [--redis URL]

It runs nodes that share a Redis (its own one, unless a URL is given) in front of a
provider on loopback. It prints how many calls the provider gets for equal calls that come at the
same time, spread over the nodes; the time of misses that nobody shares, with joining on and off,
in turns; and the time from the end of an answer until another node has a hit for it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import aiohttp

from benchmarks.start import Provider, redis_binary, running

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOW_S = 3.0
"""The time that the provider takes for the equal calls. All of them arrive within this time."""
OFF = "HEADSTART_CACHE__JOIN_PROCESSES"
QUIET_S = 2.0
"""The wait after the start, until the nodes know of each other."""
TURNS = 6


class CountingProvider(Provider):
    """Counts its calls, and takes its time for a question that says so."""

    wbufsize = -1  # an answer is one packet
    disable_nagle_algorithm = True
    calls = 0
    lock = threading.Lock()

    def do_POST(self) -> None:  # noqa: N802 - the library's name
        with self.lock:
            CountingProvider.calls += 1
        if "x-slow" in self.headers:
            time.sleep(SLOW_S)
        super().do_POST()


@contextlib.contextmanager
def redis_url(given: str | None) -> Iterator[str]:
    """Run a Redis on a free port, unless there is one."""
    if given is not None:
        yield given
        return
    binary = redis_binary()
    if binary is None:
        raise SystemExit("There is no redis-server: install one, or give --redis URL.")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [binary, "--port", str(port), "--save", ""]
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
        try:
            yield f"redis://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait()


@contextlib.contextmanager
def nodes(count: int, store: str, upstream: str, *arguments: str) -> Iterator[list[str]]:
    """Run nodes that know only exact repeats, and yield their addresses.

    ``arguments`` are more arguments of ``headstart serve``.
    """
    os.environ["HEADSTART_CACHE__MODE"] = "exact-only"
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        servers = [
            stack.enter_context(running(["--store", store, *arguments], upstream, folder, folder))
            for _ in range(count)
        ]
        time.sleep(QUIET_S)
        yield [f"http://127.0.0.1:{server.port}/v1/chat/completions" for server in servers]


class Asking:
    """Asks nodes over connections that it keeps."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def ask(self, url: str, text: str, **headers: str) -> tuple[int, str, bytes]:
        """Return status, ``Cache-Status`` and body of an answer."""
        body = {"model": "m", "messages": [{"role": "user", "content": text}]}
        async with self._session.post(url, json=body, headers=headers) as response:
            return response.status, response.headers["cache-status"], await response.read()


async def burst(asking: Asking, urls: list[str], calls: int) -> None:
    """Make equal calls at the same time, and print how they were answered."""
    before, began = CountingProvider.calls, time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        asked = [
            tasks.create_task(asking.ask(urls[number % len(urls)], "equal", **{"x-slow": "yes"}))
            for number in range(calls)
        ]
    answers = [task.result() for task in asked]
    joined = sum("joined" in status for _, status, _ in answers)
    print(
        f"{calls} equal calls over {len(urls)} nodes: {CountingProvider.calls - before} upstream, "
        f"{sum(status == HTTPStatus.OK for status, _, _ in answers)} answered, {joined} joined, "
        f"{len({body for _, _, body in answers})} different answers, "
        f"{time.perf_counter() - began:.1f} s (the provider takes {SLOW_S:.0f} s)"
    )


async def until_hits(asking: Asking, urls: list[str], count: int) -> None:
    """Print the time from the end of an answer until another node has a hit for it."""
    waits = []
    for number in range(count):
        text = f"Where is shelf {number} of the second hall?"
        await asking.ask(urls[0], text)
        began = time.perf_counter()
        only = {"cache-control": "only-if-cached"}
        while (await asking.ask(urls[1], text, **only))[0] != HTTPStatus.OK:
            pass
        waits.append((time.perf_counter() - began) * 1e3)
    print(f"time until a hit elsewhere: {spread(waits)}")


async def misses(asking: Asking, url: str, numbers: Iterator[int], count: int) -> list[float]:
    """Return the milliseconds of misses without an equal call at the same time."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        await asking.ask(url, f"What does part {next(numbers)} of the engine weigh?")
        times.append((time.perf_counter() - began) * 1e3)
    return times


def spread(times_ms: list[float]) -> str:
    """Describe times."""
    p50, p99 = statistics.median(times_ms), statistics.quantiles(times_ms, n=100)[98]
    return f"p50 {p50:.2f} ms, p99 {p99:.2f} ms ({len(times_ms)} times)"


async def measure(options: argparse.Namespace, store: str, upstream: str) -> None:
    """Run the parts."""
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"authorization": "Bearer sk-test"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        asking: Any = Asking(session)
        with nodes(options.nodes, store, upstream) as urls:
            await burst(asking, urls, options.calls)
            await until_hits(asking, urls, options.misses)
        numbers = itertools.count()
        with nodes(1, store, upstream) as [on]:
            os.environ[OFF] = "false"
            with nodes(1, store, upstream) as [off]:
                times: dict[str, list[float]] = {on: [], off: []}
                for turn in range(TURNS):
                    for url in (on, off) if turn % 2 else (off, on):
                        times[url] += await misses(asking, url, numbers, options.misses // TURNS)
        print(f"a miss that nobody shares, joining on: {spread(times[on])}")
        print(f"the same with join_processes = false:  {spread(times[off])}")


def main() -> None:
    """Run nodes, and print what joining does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--misses", type=int, default=300)
    parser.add_argument("--redis", help="URL of a Redis; default: one of its own")
    options = parser.parse_args()
    provider = ThreadingHTTPServer(("127.0.0.1", 0), CountingProvider)
    threading.Thread(target=provider.serve_forever, daemon=True).start()
    with redis_url(options.redis) as store:
        upstream = f"http://127.0.0.1:{provider.server_port}/v1"
        asyncio.run(measure(options, store, upstream))
    provider.shutdown()


if __name__ == "__main__":
    main()
