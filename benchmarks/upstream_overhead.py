"""CPU time of strategies: each call of ``headstart`` beside a relay that does nothing.

    python -m benchmarks.upstream_overhead [--requests N] [--json FILE]

Three simulated providers answer at once in a process of their own. Each row is the user and system
time of one server process per call; the calls of a race to three providers are part of its cost,
so it is compared with one and with three calls of the relay. Every prompt is new and misses.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.load import run_load
from benchmarks.overhead import Running, chat, gateway_of, relay_to, start, unique
from benchmarks.racing_site import load

RACERS = 3
STRATEGIES: dict[str, dict[str, Any] | None] = {
    "one upstream": None,
    "single": {"strategy": "single"},
    "fallback of three": {"strategy": "fallback"},
    "hedge of three, not firing": {"strategy": "hedge", "hedge_floor_s": 30.0},
    "race of three": {"strategy": "race", "race_billed": True},
}
_serial = itertools.count()


def answering() -> Any:
    """A provider that answers at once with ten tokens."""
    from headstart.lab.simulator import Oracle, Simulator

    return Simulator("instant", seed=1, oracle=Oracle(answer_tokens=10))


def proxy(ports: list[int], rules: dict[str, Any] | None) -> Any:
    """The gateway with one route; None: no route, and one upstream."""
    from headstart.sidecar import settle_memory

    names = [f"sim{port}" for port in ports]
    settings: dict[str, Any] = {
        "cache.mode": "exact-only",
        "cache.audit.mode": "off",
        "upstream": [
            {"name": name, "base_url": f"http://127.0.0.1:{port}"}
            for name, port in zip(names, ports, strict=True)
        ],
    }
    if rules is None:
        settings["upstream"] = settings["upstream"][:1]
    else:
        chosen = names[:1] if rules["strategy"] == "single" else names
        settings["route"] = [{"name": "bench", **rules, "upstreams": chosen}]
    app = gateway_of(settings)
    settle_memory()  # as ``headstart serve`` does
    return app


async def cpu_us(server: Running, requests: int, concurrency: int, *, stream: bool) -> float:
    """Return the CPU time of one call."""
    bodies = [chat(unique(next(_serial)), stream=stream) for _ in range(requests)]
    before = server.cpu_s()
    timings = await run_load(server.port, bodies, concurrency)
    if set(timings.statuses) != {200}:
        raise SystemExit(f"a server answered {timings.statuses}")
    return (server.cpu_s() - before) / requests * 1e6


async def bench(requests: int, rounds: int) -> dict[str, Any]:
    """Measure every server in turn, round after round; a row is the median of its rounds."""
    began = load()
    provided = [start(answering) for _ in range(RACERS)]
    ports = [each.port for each in provided]
    servers = {"relay": start(relay_to, ports[0])}
    servers |= {name: start(proxy, ports, rules) for name, rules in STRATEGIES.items()}
    cases = [(stream, concurrency) for stream in (False, True) for concurrency in (1, 16)]
    measured: dict[tuple[str, bool, int], list[float]] = {}
    for server in servers.values():
        await cpu_us(server, 200, 16, stream=True)
    for _ in range(rounds):
        for name, server in servers.items():
            for stream, concurrency in cases:
                cost = await cpu_us(server, requests, concurrency, stream=stream)
                measured.setdefault((name, stream, concurrency), []).append(cost)
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for server in (*provided, *servers.values()):
        server.process.terminate()
    rows = [
        {
            "server": name,
            "stream": stream,
            "concurrency": concurrency,
            "cpu_us": statistics.median(costs),
            "beside_relay": statistics.median(costs)
            / statistics.median(measured["relay", stream, concurrency]),
        }
        for (name, stream, concurrency), costs in measured.items()
    ]
    return {"load": [began, load()], "requests": requests, "rounds": rounds, "rows": rows}


def table(figures: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    heads = ("whole, 1 at a time", "whole, 16", "streamed, 1 at a time", "streamed, 16")
    lines = [
        f"Load of the machine before and after: {'; '.join(figures['load'])}.",
        "",
        f"| CPU µs a call | {' | '.join(heads)} |",
        "|---" * (len(heads) + 1) + "|",
    ]
    for name, rows in itertools.groupby(figures["rows"], key=lambda row: row["server"]):
        cells = (f"{row['cpu_us']:.0f} ({row['beside_relay']:.2f}x)" for row in rows)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=800, help="of each case and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    figures = asyncio.run(bench(arguments.requests, arguments.rounds))
    print(table(figures))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
