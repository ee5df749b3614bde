"""CPU time and throughput of hits and misses with one and with several workers, in turns.

    python -m benchmarks.workers [--workers 2] [--requests 500] [--turns 5] [--rounds 5]
                                 [--store memory] [--json FILE]

Each server is ``headstart serve`` with exact matches, in front of a provider that repeats a
recorded answer at once. Three sets of servers are compared: one worker, several workers, and as
many separate servers of one worker, which share nothing and divide the connections. The separate
servers cost more than one server, because busy processes slow each other down on this machine. Only
the difference between several workers and the separate servers is caused by Headstart.

CPU is the user and system time of all processes, the parent process among them, for a request. The
three take turns, so other work on the machine meets all of them. In each round they are started
anew, because a process may be some percent slower than the next one all its life. Each figure is
the median of its rounds, and each round's figure the median of its turns.

Throughput is the answers in a second while the connections are always busy. It shows what several
workers gain only where the machine has a core for each worker, one for the client and one for the
provider. *A worker* in the column of connections means so many connections for each worker: then
each process has the same to do, however many there are. A process that has fewer connections pays
more for a request, because it wakes up for fewer of them at once.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from benchmarks.load import run_load
from benchmarks.overhead import TOPICS, chat, cpu_s, unique
from benchmarks.recorded import start_recorded
from benchmarks.safe_hits_programs import Program
from benchmarks.upstream_overhead import answering

if TYPE_CHECKING:
    from collections.abc import Iterator

CONNECTIONS = ("2", "16", "16 a worker")
KINDS = ("exact hit", "miss", "miss, streamed")
_serial = itertools.count()
Case: TypeAlias = tuple[str, str, str]
"""Kind of request, connections, and servers."""


class Turn(NamedTuple):
    """What a request cost in one turn of one case."""

    cpu_us: float
    wall_us: float
    """Time of the turn divided by its requests."""


Costs: TypeAlias = dict[Case, list[Turn]]


def cpu_of_all_s(pid: int) -> float:
    """Return the user and system seconds of a process and its children so far."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    return sum(map(cpu_s, (pid, *map(int, children))))


def requests_of(kind: str, count: int) -> list[bytes]:
    """Return requests that all hit, or all miss."""
    if kind == "exact hit":
        return [chat(TOPICS[i % len(TOPICS)], stream=False) for i in range(count)]
    stream = kind.endswith("streamed")
    return [chat(unique(next(_serial)), stream=stream) for _ in range(count)]


@dataclass(frozen=True)
class Served:
    """Servers that take the load of one case together."""

    programs: tuple[Program, ...]
    workers: int
    """The processes that serve, of all programs."""

    @property
    def cpu_s(self) -> float:
        """User and system seconds of all processes so far."""
        return sum(cpu_of_all_s(each.process.pid) for each in self.programs if each.process)

    async def load(self, kind: str, requests: int, connections: str) -> float:
        """Send requests to all servers at once over so many connections, and return the seconds."""
        shared = iter(requests_of(kind, requests))
        count, _, each = connections.partition(" ")
        part, rest = divmod(int(count) * (self.workers if each else 1), len(self.programs))
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number, program in enumerate(self.programs):
                port = int(program.url.rpartition(":")[2])
                if mine := part + (number < rest):
                    group.create_task(_send(port, shared, mine))
        return time.perf_counter() - started


async def _send(port: int, requests: Iterator[bytes], connections: int) -> None:
    timings = await run_load(port, requests, connections)
    if set(timings.statuses) - {200}:
        raise SystemExit(f"a server answered {timings.statuses}")


async def start_servers(
    stack: AsyncExitStack, folder: Path, provider: int, store: str, servers: int, workers: int
) -> Served:
    """Start servers that share nothing, each with so many workers."""
    programs = []
    for number in range(servers):
        config = folder / f"{workers}-{servers}-{number}.toml"
        config.write_text(
            f"""[server]
port = 0
workers = {workers}
[cache]
mode = "exact-only"
store = "{"memory:" if store == "memory" else f"sqlite:///{config.with_suffix('.db')}"}"
[[upstream]]
name = "sim"
base_url = "http://127.0.0.1:{provider}/v1"
""",
            encoding="utf-8",
        )
        program = Program(["serve", "--config", str(config)])
        await program.start()
        stack.push_async_callback(program.stop)
        programs.append(program)
    return Served(tuple(programs), servers * workers)


async def bench(
    workers: int, requests: int, turns: int, rounds: int, store: str
) -> list[dict[str, Any]]:
    """Measure one worker, several workers, and as many servers of one worker."""
    provider = await start_recorded(answering)
    costs: Costs = {}
    for _ in range(rounds):
        for case, turns_of_round in (
            await measure_round(provider.port, workers, requests, turns, store)
        ).items():
            median = Turn(*map(statistics.median, zip(*turns_of_round, strict=True)))
            costs.setdefault(case, []).append(median)
    provider.process.terminate()
    return [row(costs, *case) for case in itertools.product(KINDS, CONNECTIONS)]


async def measure_round(
    provider: int, workers: int, requests: int, turns: int, store: str
) -> Costs:
    """Start the servers, and return their costs for a request in each turn."""
    costs: Costs = {}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shapes = {"one": (1, 1), "workers": (1, workers), "apart": (workers, 1)}
        served = {
            name: await start_servers(stack, folder, provider, store, *shape)
            for name, shape in shapes.items()
        }
        for each in served.values():
            for kind in KINDS:
                await each.load(kind, 200, "16")
        for turn in range(turns):
            order = [*served.items()]
            for name, each in order[turn % 3 :] + order[: turn % 3]:
                for kind, connections in itertools.product(KINDS, CONNECTIONS):
                    before = each.cpu_s
                    wall_s = await each.load(kind, requests, connections)
                    await asyncio.sleep(0.2)  # what follows the answers counts
                    used_s = each.cpu_s - before
                    turn_costs = Turn(used_s / requests * 1e6, wall_s / requests * 1e6)
                    costs.setdefault((kind, connections, name), []).append(turn_costs)
    return costs


def row(costs: Costs, kind: str, connections: str) -> dict[str, Any]:
    """Return the figures of one case: medians, and the medians of the ratios of each round."""
    rounds = {name: costs[kind, connections, name] for name in ("one", "workers", "apart")}
    cpu = {name: [each.cpu_us for each in turns] for name, turns in rounds.items()}
    wall = {name: [each.wall_us for each in turns] for name, turns in rounds.items()}
    return {
        "kind": kind,
        "connections": connections,
        **{f"cpu_us_{name}": statistics.median(each) for name, each in cpu.items()},
        **{f"per_s_{name}": 1e6 / statistics.median(each) for name, each in wall.items()},
        "workers_to_one": ratio(cpu["workers"], cpu["one"]),
        "apart_to_one": ratio(cpu["apart"], cpu["one"]),
        "workers_to_apart": ratio(cpu["workers"], cpu["apart"]),
        "throughput_workers_to_one": ratio(wall["one"], wall["workers"]),
        "throughput_apart_to_one": ratio(wall["one"], wall["apart"]),
    }


def ratio(costs: list[float], base: list[float]) -> float:
    """Return the median of the ratios of each round."""
    return statistics.median([cost / least for cost, least in zip(costs, base, strict=True)])


def table(rows: list[dict[str, Any]], workers: int) -> str:
    """Return the rows as two Markdown tables: CPU, and throughput."""
    named = f"one worker | {workers} workers | {workers} servers apart"
    lines = [
        f"| CPU µs | connections | {named} | workers/one | apart/one | workers/apart |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['kind']} | {row['connections']} | {row['cpu_us_one']:.0f} "
        f"| {row['cpu_us_workers']:.0f} | {row['cpu_us_apart']:.0f} | {row['workers_to_one']:.2f}x "
        f"| {row['apart_to_one']:.2f}x | {row['workers_to_apart']:.2f}x |"
        for row in rows
    ]
    lines += [
        "",
        f"| answers a second | connections | {named} | workers/one | apart/one |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['kind']} | {row['connections']} | {row['per_s_one']:.0f} "
        f"| {row['per_s_workers']:.0f} | {row['per_s_apart']:.0f} "
        f"| {row['throughput_workers_to_one']:.2f}x | {row['throughput_apart_to_one']:.2f}x |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--requests", type=int, default=500, help="of each case and turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5, help="how often the servers start anew")
    parser.add_argument("--store", choices=("sqlite", "memory"), default="sqlite")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    rows = asyncio.run(
        bench(
            arguments.workers,
            arguments.requests,
            arguments.turns,
            arguments.rounds,
            arguments.store,
        )
    )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(table(rows, arguments.workers))


if __name__ == "__main__":
    main()
