"""CPU time of hits and misses with one and with several workers, in turns.

    python -m benchmarks.workers [--workers 2] [--requests 1500] [--turns 5] [--json FILE]

Each server is ``headstart serve`` with exact matches and a store in SQLite, in front of a simulated
provider that answers at once. CPU is the user and system time of all its processes, the supervisor
among them, for a request. The servers take turns, and each figure is the median of its turns, so
other work on the machine meets all of them. Wall times need more cores than workers.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks.load import run_load
from benchmarks.overhead import TOPICS, chat, start, unique
from benchmarks.safe_hits_programs import Program
from benchmarks.upstream_overhead import answering

CONNECTIONS = (1, 16)
KINDS = ("exact hit", "miss", "miss, streamed")
_serial = itertools.count()


def cpu_s(pid: int) -> float:
    """Return the user and system seconds of a process and its children so far."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    clocks = [~each << 3 | 2 for each in (pid, *map(int, children))]  # as clock_getcpuclockid(3)
    return sum(map(time.clock_gettime, clocks))


def requests_of(kind: str, count: int) -> list[bytes]:
    """Return requests that all hit, or all miss."""
    if kind == "exact hit":
        return [chat(TOPICS[i % len(TOPICS)], stream=False) for i in range(count)]
    stream = kind.endswith("streamed")
    return [chat(unique(next(_serial)), stream=stream) for _ in range(count)]


async def bench(workers: int, requests: int, turns: int) -> list[dict[str, Any]]:
    """Measure a server with one worker and one with several, in turns."""
    provider = start(answering)
    costs: dict[tuple[str, int, int], list[float]] = {}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {}
        for count in (1, workers):
            config = folder / f"{count}.toml"
            config.write_text(
                f"""[server]
port = 0
allowed_hosts = ["bench"]
workers = {count}
[cache]
mode = "exact-only"
store = "sqlite:///{folder}/{count}.db"
[[upstream]]
name = "sim"
base_url = "http://127.0.0.1:{provider.port}/v1"
""",
                encoding="utf-8",
            )
            servers[count] = program = Program(["serve", "--config", str(config)])
            url = await program.start()
            stack.push_async_callback(program.stop)
            await run_load(int(url.rpartition(":")[2]), requests_of("exact hit", 200), 16)
        for turn in range(turns):
            for count, program in (*servers.items(),)[:: 1 if turn % 2 else -1]:
                assert program.process is not None
                port = int(program.url.rpartition(":")[2])
                for kind, connections in itertools.product(KINDS, CONNECTIONS):
                    asked = requests_of(kind, requests)
                    before = cpu_s(program.process.pid)
                    timings = await run_load(port, asked, connections)
                    if set(timings.statuses) != {200}:
                        raise SystemExit(f"a server answered {timings.statuses}")
                    await asyncio.sleep(0.2)  # what follows the answers counts
                    cost = (cpu_s(program.process.pid) - before) / requests * 1e6
                    costs.setdefault((kind, connections, count), []).append(cost)
    provider.process.terminate()
    return [
        {
            "kind": kind,
            "connections": connections,
            **{
                f"cpu_us_{count}": statistics.median(costs[kind, connections, count])
                for count in servers
            },
            "ratio": statistics.median(
                several / one
                for several, one in zip(
                    costs[kind, connections, workers], costs[kind, connections, 1], strict=True
                )
            ),
        }
        for kind, connections in itertools.product(KINDS, CONNECTIONS)
    ]


def table(rows: list[dict[str, Any]], workers: int) -> str:
    """Return the rows as Markdown."""
    lines = [
        f"| CPU µs | connections | one worker | {workers} workers | |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['kind']} | {row['connections']} | {row['cpu_us_1']:.0f} "
        f"| {row[f'cpu_us_{workers}']:.0f} | {row['ratio']:.2f}x |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--requests", type=int, default=1500, help="of each case and turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    rows = asyncio.run(bench(arguments.workers, arguments.requests, arguments.turns))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(table(rows, arguments.workers))


if __name__ == "__main__":
    main()
