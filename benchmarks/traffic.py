"""The CPU of a miss with default settings, and the hits under load, for four kinds of traffic.

    python benchmarks/convert.py naturalqa NQ.json > questions.jsonl
    python benchmarks/convert.py clinc150 data_full.json > intents.jsonl
    python -m benchmarks.traffic questions.jsonl intents.jsonl [--peer NAME=URL --pid NAME=PID]

``questions``: questions that have little in common. ``frame``: other ones of them in one frame, so
that all look alike. ``intents``: many wordings of some intents. ``rewordings``: known questions in
other words; each could be a hit. Each kind goes over 1, 16 and 64 connections to a relay that does
nothing else, to Headstart with ``exact-only``, to Headstart with its defaults, and to the peers,
which are started by hand (docs/evidence/peers.md) with the provider that this program names.

A hit is *possible* if Headstart serves it when it may wait for the encoder as long as it takes.
The second table is an open loop of rewordings before a provider that takes 300 ms: requests come at
a rate, whether or not the earlier ones have been answered. The rates are shares of the *capacity*:
of the encodings a second of the server that may wait, when 64 connections ask it. There the hits
are possible that a server, as new as the measured one, serves if it is asked the same prompts one
after the other.

*Encodings* are of questions and entries, *answers* of answers that are compared. CPU is the user
and system time of the server's process for a request. Compare wall times only within one run.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import aiohttp

from benchmarks.load import Timings, percentile, run_load, run_open_loop
from benchmarks.overhead import Running, chat, gateway_of, relay_to, start
from benchmarks.peers_site import add_peer_options, peers_of, wait_for
from headstart.middleware.learning.learner import COMPARED
from headstart.observe import Encoded, Observation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


CONNECTIONS = (1, 16, 64)
KINDS = ("questions", "frame", "intents", "rewordings")
KNOWN = 100
"""The known questions of which there are rewordings."""
SHARES = (0.25, 0.5, 0.9, 1.5, 3.0)
SLOW_MS = 300.0
CAPACITY_REQUESTS = 2000
"""Some four seconds: over a shorter time the capacity of a busy machine differs by a fifth."""
OPENINGS = ("", "please tell me: ", "Hi, ", "hello! ", "quick question: ", "i want to know ")
CLOSINGS = ("", "?", " please", " thanks", "? Thank you.", " ... any idea?", "!")
ENDINGS = sorted(filter(None, CLOSINGS), key=len, reverse=True)
ENCODINGS = "/encodings"


def provider(ttft_ms: float, classes: dict[str, str]) -> Any:
    """A provider whose answers take so long to begin, and then come at once.

    Prompts of one class, and the rewordings of one question, have the same answer.
    """
    from headstart.lab.simulator import Oracle, ProviderProfile, Simulator

    class Answers(Oracle):
        def truth_of_messages(self, messages: Any, occasion: str = "") -> Any:
            text = messages[-1].text
            return self.truth(classes.get(text) or plain(text))

    return Simulator(ProviderProfile(model="bench", ttft_ms=ttft_ms), seed=1, oracle=Answers())


def plain(text: str) -> str:
    """Return the question in a rewording."""
    text = " ".join(text.split())
    text = next((text.removeprefix(o) for o in OPENINGS if o and text.startswith(o)), text)
    text = next((text.removesuffix(c) for c in ENDINGS if text.endswith(c)), text)
    return text.rstrip("?")


class Counter:
    """Counts the prompts that were encoded, and the answers that were encoded to compare them."""

    prompts = 0
    answers = 0

    def notify(self, observation: Observation) -> None:
        """Count an encoding."""
        if isinstance(observation, Encoded) and observation.tenant == COMPARED:
            self.answers += 1
        elif isinstance(observation, Encoded):
            self.prompts += 1


def headstart_to(upstream: int, changes: dict[str, Any]) -> Any:
    """The sidecar with its defaults, a memory store, and trust in the similarity from the start.

    Without the trust no rewording is a hit before some hundreds of requests.
    """
    from headstart.sidecar import settle_memory

    upstreams = [{"name": "sim", "base_url": f"http://127.0.0.1:{upstream}"}]
    counter = Counter()
    gateway = gateway_of(
        {"cache.cold_start": "optimistic", "upstream": upstreams, **changes}, counter
    )
    settle_memory()  # as ``headstart serve`` does

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path") != ENCODINGS:
            await gateway(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        counted = b"%d %d" % (counter.prompts, counter.answers)
        await send({"type": "http.response.body", "body": counted})

    return app


@dataclass
class Kinds:
    """The prompts of each kind, each once."""

    questions: list[str]
    intents: list[str]
    _next: dict[str, Iterator[str]] = field(init=False)

    def __post_init__(self) -> None:
        """Divide the questions among the kinds. No answer to one kind serves another kind."""
        third = len(self.questions) // 3
        known = self.questions[: min(KNOWN, third)]
        self.known = known
        framed = (f"Translate to French: {text}" for text in self.questions[2 * third :])
        self._next = {
            "questions": iter(self.questions[third : 2 * third]),
            "frame": framed,
            "intents": iter(self.intents),
            "rewordings": _reworded(known),
        }

    def draw(self, kind: str, count: int) -> list[str]:
        """Return prompts that nobody has asked, as many as there are left."""
        return list(itertools.islice(self._next[kind], count))


def _reworded(known: Sequence[str]) -> Iterator[str]:
    random_ = random.Random(5)
    asked = set(known)
    while True:
        text = random_.choice(known)
        text = random_.choice(OPENINGS) + text.rstrip("?") + random_.choice(CLOSINGS)
        words = text.split(" ")
        place = random_.randrange(len(words))
        words[place] += " " * random_.randint(0, 3)
        text = " ".join(words)
        if text not in asked:
            asked.add(text)
            yield text


class Server(Protocol):
    """A process that listens on a port of loopback."""

    @property
    def port(self) -> int: ...

    def cpu_s(self) -> float:
        """User and system seconds so far."""


@dataclass(frozen=True)
class Target:
    """A measured server."""

    name: str
    server: Server
    ours: bool = True
    headers: tuple[tuple[str, str], ...] = ()

    def requests(self, texts: Sequence[str], key: str) -> list[bytes]:
        """Return the requests for some prompts. Each key has a cache of its own."""
        return [chat(text, stream=False, key=key, headers=self.headers) for text in texts]

    async def encodings(self) -> tuple[int, int]:
        """Return how many prompts and how many answers were encoded."""
        if not self.ours:
            return 0, 0
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.server.port}{ENCODINGS}") as response,
        ):
            prompts, answers = (await response.text()).split()
            return int(prompts), int(answers)


def hits(timings: Timings) -> int:
    """Return the number of answers from the cache."""
    return sum(count for verdict, count in timings.verdicts.items() if "hit" in verdict)


async def measure(
    target: Target, kind: str, texts: Sequence[str], connections: int
) -> dict[str, Any]:
    """Ask all prompts over so many connections. The encodings that follow count, too."""
    before, encoded = target.server.cpu_s(), await target.encodings()
    timings = await run_load(target.server.port, target.requests(texts, kind), connections)
    await asyncio.sleep(1.0)
    count = len(timings.total_s)
    prompts, answers = await target.encodings()
    return {
        "target": target.name,
        "kind": kind,
        "connections": connections,
        "requests": count,
        "cpu_us": (target.server.cpu_s() - before) / count * 1e6,
        "p50_ms": percentile(timings.total_s, 0.5) * 1e3,
        "p99_ms": percentile(timings.total_s, 0.99) * 1e3,
        "encodings": (prompts - encoded[0]) / count,
        "answers": (answers - encoded[1]) / count,
        "hits": hits(timings) / count,
        "per_s": count / timings.wall_s,
        "failed": count - timings.statuses[200],
    }


async def ask_known(target: Target, kinds: Kinds) -> None:
    """Store the known questions, and wait until they can be found by meaning."""
    await run_load(target.server.port, target.requests(kinds.known, "rewordings"), 16)
    await asyncio.sleep(3.0)


async def closed(
    targets: Sequence[Target], kinds: Kinds, warm: int, requests: int
) -> list[dict[str, Any]]:
    """Measure each target with each kind, one after the other, with the same prompts.

    The first prompts of a kind are not measured: from them a learning domain learns.
    """
    for target in targets:
        await ask_known(target, kinds)
    for kind in KINDS:
        texts = kinds.draw(kind, warm)
        for target in targets:
            await run_load(target.server.port, target.requests(texts, kind), 4)
    await asyncio.sleep(2.0)
    rows = []
    for connections in CONNECTIONS:
        for kind in KINDS:
            texts = kinds.draw(kind, requests)
            for target in targets:
                rows.append(await measure(target, kind, texts, connections))
                print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return rows


async def rates(
    fast: Target, patient: Target, fresh: Target, kinds: Kinds, seconds: float
) -> dict[str, Any]:
    """Ask rewordings at shares of the capacity, before a provider that takes 300 ms.

    ``fresh`` is asked the same prompts, one after the other: its hits are the possible ones. It is
    as new as ``fast``, because a server that has seen more rewordings knows more of them.
    """
    for target in (fast, patient, fresh):
        await ask_known(target, kinds)
    await run_load(
        patient.server.port, patient.requests(kinds.draw("rewordings", 200), "rewordings"), 64
    )
    busy = await measure(patient, "rewordings", kinds.draw("rewordings", CAPACITY_REQUESTS), 64)
    capacity = busy["per_s"] * max(busy["encodings"], 0.01)
    rows = []
    for share in SHARES:
        per_s = capacity * share
        texts = kinds.draw("rewordings", max(50, int(per_s * seconds)))
        timings = await run_open_loop(fast.server.port, fast.requests(texts, "rewordings"), per_s)
        await asyncio.sleep(2.0)
        alone = await run_load(fresh.server.port, fresh.requests(texts, "rewordings"), 1)
        rows.append(
            {
                "share": share,
                "per_s": per_s,
                "requests": len(texts),
                "hits": hits(timings) / len(texts),
                "possible": hits(alone) / len(texts),
                "of_possible": hits(timings) / max(hits(alone), 1),
                "p50_ms": percentile(timings.total_s, 0.5) * 1e3,
            }
        )
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {"capacity_per_s": capacity, "rates": rows}


async def bench(arguments: argparse.Namespace) -> dict[str, Any]:
    """Start the servers and measure."""
    classes = _prompts(arguments.intents)
    kinds = Kinds(list(_prompts(arguments.questions)), list(classes))
    instant = start(provider, 0.0, classes, port=arguments.provider_port)
    slow = start(provider, SLOW_MS, classes)
    print(f"provider: http://127.0.0.1:{instant.port}/v1", file=sys.stderr, flush=True)
    patient = {"encoder.max_wait_ms": 10_000.0, "cache.audit.mode": "off"}
    servers = [instant, slow]

    def run(make: Callable[..., Any], *given: Any) -> Running:
        servers.append(start(make, *given))
        return servers[-1]

    targets = [
        Target("relay", run(relay_to, instant.port), ours=False),
        Target("exact-only", run(headstart_to, instant.port, {"cache.mode": "exact-only"})),
        Target("default", run(headstart_to, instant.port, {})),
        Target("may wait", run(headstart_to, instant.port, patient)),
    ]
    peers = peers_of(arguments)
    targets += [Target(peer.name, peer, ours=False, headers=peer.headers) for peer in peers]
    behind = Target("default, 300 ms", run(headstart_to, slow.port, {}))
    fresh = Target("one at a time", run(headstart_to, instant.port, patient))
    try:
        await wait_for(peers, arguments.wait)
        rows = await closed(targets, kinds, arguments.warm, arguments.requests)
        opened = await rates(behind, targets[3], fresh, kinds, arguments.seconds)
    finally:
        for server in servers:
            server.process.terminate()
    return {"closed": rows, "open": opened}


def _prompts(path: Path) -> dict[str, str]:
    """Return each prompt with its class."""
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {line["prompt"]: line["class"] for line in lines}


def table(figures: dict[str, Any]) -> str:
    """Return the figures as text."""
    possible = {
        (row["kind"], row["connections"]): row["hits"]
        for row in figures["closed"]
        if row["target"] == "may wait"
    }
    head = (
        f"{'traffic':12}{'c':>4} {'target':16}{'CPU us':>8}{'p50 ms':>8}{'p99':>8}{'req/s':>8}"
        f"{'encodings':>11}{'answers':>9}{'hits %':>8}{'of possible %':>15}{'failed':>8}"
    )
    lines = [head]
    for row in sorted(figures["closed"], key=lambda row: (row["kind"], row["connections"])):
        most = possible[row["kind"], row["connections"]]
        share = f"{row['hits'] / most * 100:.0f}" if most and "relay" not in row["target"] else ""
        lines.append(
            f"{row['kind']:12}{row['connections']:>4} {row['target']:16}{row['cpu_us']:>8.0f}"
            f"{row['p50_ms']:>8.2f}{row['p99_ms']:>8.1f}{row['per_s']:>8.0f}"
            f"{row['encodings']:>11.2f}{row['answers']:>9.2f}{row['hits'] * 100:>8.1f}"
            f"{share:>15}{row['failed']:>8}"
        )
    opened = figures["open"]
    lines.append(
        f"\nrewordings at a rate, provider of {SLOW_MS:.0f} ms; capacity "
        f"{opened['capacity_per_s']:.0f} encodings/s"
    )
    lines += [
        f"{row['share']:>5.2f} of capacity {row['per_s']:>7.0f}/s: {row['hits'] * 100:5.1f} % hits,"
        f" {row['of_possible'] * 100:5.1f} % of possible, p50 {row['p50_ms']:.1f} ms"
        for row in opened["rates"]
    ]
    return "\n".join(lines)


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("questions", type=Path, help="lines with a prompt")
    parser.add_argument("intents", type=Path, help="lines with a prompt")
    parser.add_argument("--requests", type=int, default=150, help="of a kind, for each server")
    parser.add_argument("--warm", type=int, default=600, help="of a kind, before the measured ones")
    parser.add_argument("--seconds", type=float, default=6.0, help="at each rate")
    add_peer_options(parser)
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    figures = asyncio.run(bench(arguments))
    print(table(figures))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
