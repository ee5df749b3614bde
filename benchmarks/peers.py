"""Headstart beside other gateways: the same calls to each, in turn, in one run on one machine.

    python -m benchmarks.peers [--peer NAME=URL ...] [--requests N] [--json FILE]

It prints the address of a simulated provider, waits until every peer answers (they are started by
hand with that address as their upstream: docs/evidence/peers.md has the commands), and then goes
from target to target in small rounds, so that other work on the machine affects all targets alike.
Added times are differences of quantiles to the direct call of the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.load import Timings, percentile, run_load
from benchmarks.peers_breaks import breaks, leave
from benchmarks.peers_site import (
    STREAM,
    WHOLE,
    Site,
    Target,
    add_peer_options,
    peers_of,
    site,
    wait_for,
)
from benchmarks.peers_table import table
from benchmarks.racing_site import load

if TYPE_CHECKING:
    from collections.abc import Sequence

_KNOWN = 8
"""Prompts that are asked again and again."""
_serial = itertools.count(1000)


@dataclass(frozen=True)
class Case:
    """One kind of call, and the number of calls in each round at each target."""

    name: str
    calls: int
    concurrency: int = 1
    stream: bool = False
    repeats: bool = False

    def numbers(self) -> list[int]:
        """Return the prompts of a round. The first on each connection are not counted."""
        count = self.calls + self.concurrency
        return [i % _KNOWN if self.repeats else next(_serial) for i in range(count)]

    @property
    def prompts(self) -> str:
        return STREAM if self.stream else WHOLE


CASES = (
    Case("miss", 10),
    Case("miss, 16 at once", 48, concurrency=16),
    Case("miss, streamed", 4, stream=True),
    Case("exact hit", 24, repeats=True),
    Case("exact hit, 16 at once", 64, concurrency=16, repeats=True),
)
_KNOWN_ONCE = Case("known", _KNOWN, repeats=True)
_ROUND = CASES[0].calls


@dataclass
class Samples:
    """The measurements of a case at a target, over all rounds. Seconds."""

    first_s: list[float] = field(default_factory=list)
    total_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    cpu_s: float = 0.0
    calls: int = 0
    failed: int = 0

    def row(self) -> dict[str, Any]:
        """Return the figures: milliseconds, CPU in microseconds a call, calls a second."""
        quantiles = {
            f"{name}_p{share * 100:.0f}_ms": percentile(values or [math.nan], share) * 1e3
            for name, values in (("first", self.first_s), ("total", self.total_s))
            for share in (0.5, 0.95)
        }
        return {
            **quantiles,
            "samples": len(self.total_s),
            "calls": self.calls,
            "failed": self.failed,
            "per_s": self.calls / self.wall_s if self.calls else 0.0,
            "cpu_us": self.cpu_s / max(1, self.calls) * 1e6,
        }


async def one_round(case: Case, target: Target, samples: Samples) -> None:
    """Make a round of calls of one case to one target.

    The round fails as a whole if the target closes the connection.
    """
    bodies = [target.request(case.prompts, n, stream=case.stream) for n in case.numbers()]
    before = target.cpu_s()
    timings = Timings()
    try:
        timings = await run_load(target.port, bodies, case.concurrency)
    except* ConnectionError as closed:
        print(f"{target.name}, {case.name}: {closed.exceptions[0]!r}", file=sys.stderr)
    samples.cpu_s += target.cpu_s() - before
    samples.wall_s += timings.wall_s
    samples.calls += len(timings.total_s)
    samples.failed += len(bodies) - timings.statuses[200]
    samples.first_s += timings.first_s[case.concurrency :]
    samples.total_s += timings.total_s[case.concurrency :]


async def measure(site: Site, peers: Sequence[Target], rounds: int) -> list[dict[str, Any]]:
    """Run every case at every target, round after round, and return a row for each pair."""
    targets = [site.provider, site.relay, *site.sidecars, *peers]
    for target in targets:
        await _warm(target)
    caching = [target for target in targets[2:] if await _caches(site, target)]
    answering = {case: [site.noop, *caching] if case.repeats else targets for case in CASES}
    measured = {(case, each): Samples() for case in CASES for each in answering[case]}
    reached = dict.fromkeys(measured, 0)
    for _ in range(rounds):
        for (case, target), samples in measured.items():
            if case.repeats:  # peers with small caches have evicted the known prompts
                await one_round(_KNOWN_ONCE, target, Samples())
            before = await site.calls(case.prompts)
            await one_round(case, target, samples)
            reached[case, target] += await site.calls(case.prompts) - before
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return [
        {"case": case.name, "target": target.name, "reached": reached[case, target], **each.row()}
        for (case, target), each in measured.items()
    ]


async def _warm(target: Target) -> None:
    """Make some calls of every kind, so that the known prompts are stored."""
    for case in CASES:
        await one_round(case, target, Samples())


async def _caches(site: Site, target: Target) -> bool:
    """Ask the known prompts again. False: all of them reached the provider."""
    before = await site.calls(WHOLE)
    await one_round(_KNOWN_ONCE, target, Samples())
    return await site.calls(WHOLE) - before <= _KNOWN


async def bench(site: Site, peers: Sequence[Target], rounds: int) -> dict[str, Any]:
    """Measure everything."""
    began = load()
    rows = await measure(site, peers, rounds)
    endings = []
    for target in (site.provider, *site.sidecars, *peers):
        numbers = range(start := next(_serial) * 100, start + 100)
        endings.append(
            {
                "target": target.name,
                "client_left": await leave(site, target, numbers),
                "upstream_broke": await breaks(site, target, numbers[50:]),
            }
        )
    return {"load": [began, load()], "rounds": rounds, "rows": rows, "endings": endings}


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Start our own processes, wait for the peers, and measure."""
    peers = peers_of(arguments)
    async with site(arguments.provider_port) as here:
        print(f"provider: {here.provider.url}/v1", file=sys.stderr, flush=True)
        await wait_for(peers, arguments.wait)
        return await bench(here, peers, max(1, arguments.requests // _ROUND))


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_peer_options(parser)
    parser.add_argument("--requests", type=int, default=200, help="misses, one at a time, a target")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    figures = asyncio.run(run(arguments))
    print(table(figures))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
