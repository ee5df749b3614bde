"""CPU time of Responses beside Chat Completions: hits and misses, on defaults.

    python -m benchmarks.responses_overhead [--requests N] [--rounds N]

A simulated provider answers at once in a process of its own. Each figure is the user and system
time of one gateway per request. The cases of a round run one after the other, so other work on the
machine meets all of them, and each second round runs them in reverse order; the table has the
medians of the rounds. A hit is cheap, and the gateway writes its books once a second, so a case
makes many hits in each round.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import tempfile
from typing import Any, NamedTuple

from benchmarks.load import http_request, run_load
from benchmarks.overhead import Running, gateway_of, start, unique
from benchmarks.racing_site import load
from benchmarks.upstream_overhead import answering

SYSTEM = "You are a helpful assistant of a large public library."
HITS = 16
"""Number of hits for each miss."""
_serial = itertools.count()


class Case(NamedTuple):
    """One kind of request to one gateway."""

    server: str
    responses: bool
    stream: bool
    hit: bool

    @property
    def name(self) -> str:
        return f"{'hit' if self.hit else 'miss'}, {'streamed' if self.stream else 'whole'}"


def gateway(port: int, *, kept: bool = True) -> Any:
    """A gateway on defaults, but without the encoder. ``kept``: it keeps answers by id."""
    settings = {
        "cache.store": f"sqlite:///{tempfile.mkdtemp()}/bench.db",
        "cache.mode": "exact-only",
        "server.conversations.enabled": kept,
        "upstream": [
            {
                "name": "sim",
                "base_url": f"http://127.0.0.1:{port}",
                "also_speaks": ["responses"],
            }
        ],
    }
    return gateway_of(settings)


def forgetting(port: int) -> Any:
    """The gateway without ``server.conversations``."""
    return gateway(port, kept=False)


def request(case: Case, text: str) -> bytes:
    """Return a request with the same words in either API."""
    turn = {"role": "user", "content": text}
    if case.responses:
        path, body = "/v1/responses", {"instructions": SYSTEM, "input": [turn]}
    else:
        path = "/v1/chat/completions"
        body = {"messages": [{"role": "system", "content": SYSTEM}, turn]}
    whole = {"model": "bench", **body, **({"stream": True} if case.stream else {})}
    return http_request(path, json.dumps(whole, separators=(",", ":")).encode())


async def cpu_us(server: Running, case: Case, requests: int) -> float:
    """Return the CPU time of one request."""
    # Each API gets its own answers: they could serve each other.
    texts = [f"the same words for {case.responses}"] * requests if case.hit else None
    bodies = [
        request(case, texts[number] if texts else unique(next(_serial)))
        for number in range(requests)
    ]
    if case.hit:
        await run_load(server.port, bodies[:4], 1)
    before = server.cpu_s()
    timings = await run_load(server.port, bodies, 1)
    if set(timings.statuses) != {200}:
        raise SystemExit(f"a server answered {timings.statuses}")
    verdict = "headstart; hit" if case.hit else "headstart; fwd=miss"
    if not all(each.startswith(verdict) for each in timings.verdicts):
        raise SystemExit(f"{case} got {timings.verdicts}")
    return (server.cpu_s() - before) / requests * 1e6


async def bench(requests: int, rounds: int) -> dict[str, Any]:
    """Measure every case in turn, round after round."""
    began = load()
    provider = start(answering)
    servers = {
        "defaults": start(gateway, provider.port),
        "conversations off": start(forgetting, provider.port),
    }
    cases = [
        Case(server, responses, stream, hit)
        for hit in (False, True)
        for stream in (False, True)
        for server in servers
        for responses in (False, True)
    ]
    measured: dict[Case, list[float]] = {case: [] for case in cases}
    for case in cases:
        await cpu_us(servers[case.server], case, 100)
    for number in range(rounds):
        for case in reversed(cases) if number % 2 else cases:
            amount = requests * (HITS if case.hit else 1)
            measured[case].append(await cpu_us(servers[case.server], case, amount))
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for server in (provider, *servers.values()):
        server.process.terminate()
    return {"load": [began, load()], "measured": measured}


def table(figures: dict[str, Any]) -> str:
    """Return the medians as Markdown, and what Responses cost beside Chat in the same round."""
    measured: dict[Case, list[float]] = figures["measured"]
    lines = [
        f"Load of the machine before and after: {'; '.join(figures['load'])}.",
        "",
        "| gateway | request | Chat, us | Responses, us | beside Chat |",
        "|---|---|--:|--:|--:|",
    ]
    for case, costs in measured.items():
        if not case.responses:
            continue
        chat = measured[case._replace(responses=False)]
        ratio = statistics.median([a / b for a, b in zip(costs, chat, strict=True)])
        lines.append(
            f"| {case.server} | {case.name} | {statistics.median(chat):.0f} "
            f"| {statistics.median(costs):.0f} | {ratio - 1:+.1%} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=60, help="misses of each case and round")
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    print(table(asyncio.run(bench(arguments.requests, arguments.rounds))))


if __name__ == "__main__":
    main()
