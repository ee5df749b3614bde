"""Measure whether the error promise is kept: a sidecar over HTTP, varying answers, hidden classes.

    python -m benchmarks.safe_hits_http STREAM.jsonl OUT_FOLDER [--requests N] [--rate R]
        [--max-error E] [--duration-s S] [--kill-after N] [--named] [--json]

STREAM.jsonl has ``{"prompt", "class"}`` lines (``benchmarks/safe_hits_streams.py`` makes some);
exact repeats are left out. ``headstart serve`` starts cold on a SQLite file, in front of
``headstart simulate --answers STREAM.jsonl --vary``: free text, worded anew at every call. Each
semantic hit is scored by the class of the prompt whose answer it got. ``--named`` sends a line's
``query`` in ``x-headstart-query``. ``--kill-after N`` kills the sidecar (SIGKILL) after N requests,
restarts it, and compares thresholds and the decisions on the next prompts with those before.

OUT_FOLDER gets ``requests.jsonl``, ``samples.jsonl``, ``settings.json``, ``summary.json`` and
``page.html``. No prompt and no answer is written there.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp

from benchmarks.safe_hits_files import (
    Question,
    read_labels,
    read_stream,
    write_artefacts,
    write_settings,
)
from benchmarks.safe_hits_programs import Program, count_dropped, count_labels, metric, thresholds
from benchmarks.safe_hits_scores import (
    DECISION,
    Asked,
    Sample,
    compare_decisions,
    summarize,
    text_table,
    time_apart,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


SAMPLE_EVERY = 250
PROBES = 200
"""Prompts of which the decisions before and after the kill are compared."""
TIMED = 300
"""Hits that are timed again once the run is over."""
KEY = {"authorization": "Bearer bench"}


@dataclass
class Bench:
    """A run: the two programs, the questions and the results."""

    arguments: argparse.Namespace
    http: aiohttp.ClientSession
    simulator: Program
    sidecar: Program
    truth: dict[str, str] = field(default_factory=dict)
    """The class of each request by its id, which is also that of the entry it stored."""
    rows: list[Asked] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    compared: int = 0
    dropped: int = 0
    """Counted by sidecars that were killed."""

    async def admin(self, path: str) -> Any:
        """Read a page of the admin API."""
        async with self.http.get(f"{self.sidecar.url}/_headstart/{path}") as reply:
            reply.raise_for_status()
            return await (reply.text() if path == "metrics" else reply.json())

    async def ask(self, n: int, question: Question, **headers: str) -> Asked:
        """Ask one question; return the decision from the headers of the reply."""
        body = {"model": "bench", "messages": [{"role": "user", "content": question.prompt}]}
        if self.arguments.named and question.query is not None:
            headers["x-headstart-query"] = quote(question.query)
        sent = time.monotonic()
        url = f"{self.sidecar.url}/v1/chat/completions"
        async with self.http.post(url, json=body, headers=KEY | headers) as reply:
            await reply.read()
            said = reply.headers
            status = said.get("cache-status", "")
            detail = re.search(r"detail=([\w-]+)", status)
            return Asked(
                n=n,
                at_s=sent - self.began,
                id=said["x-headstart-request-id"],
                label=question.label,
                status=reply.status,
                total_ms=(time.monotonic() - sent) * 1e3,
                outcome=detail[1] if detail else status,
                similarity=_number(said.get("x-headstart-similarity")),
                veto=said.get("x-headstart-veto"),
                timing_ms={
                    name: float(value)
                    for name, value in re.findall(
                        r"(\w+);dur=([\d.]+)", said.get("server-timing", "")
                    )
                },
            )

    async def put(self, n: int, question: Question) -> None:
        """Ask one question of the run, and score what came."""
        row = await self.ask(n, question)
        self.truth[row.id] = row.label
        if row.outcome == "semantic":
            await self.score(row)
        self.rows.append(row)

    async def score(self, row: Asked) -> None:
        """Find the prompt whose answer was served, and whether the answer is right."""
        told = await self.admin(f"explain/{row.id}")
        row.entry, row.rule = told["entry"], told["rule"]
        row.score, row.threshold = told["score"], told["threshold"]
        row.wrong = self.truth[told["entry"]] != row.label

    async def sample(self) -> None:
        """Record the present state of the sidecar."""
        metrics = await self.admin("metrics")
        audit = await self.admin("audit")
        hits = [row for row in self.rows if row.outcome == "semantic"]
        self.samples.append(
            Sample(
                n=len(self.rows),
                at_s=time.monotonic() - self.began,
                rss_mb=metric(metrics, "process_resident_memory_bytes") / 2**20,
                hits=len(hits),
                wrong=sum(row.wrong is True for row in hits),
                compared=self.compared + count_labels(metrics),
                dropped=self.dropped + count_dropped(metrics),
                learning=await self.admin("learning"),
                certificates=audit["certificates"],
            )
        )
        if not self.arguments.json:
            last = self.samples[-1]
            print(
                f"{last.n:>7,} {last.at_s:6.0f} s  hits {last.hits:,} wrong {last.wrong}"
                f"  labels {last.compared:,} dropped {last.dropped}  {last.rss_mb:.0f} MB",
                file=sys.stderr,
                flush=True,
            )

    async def run(self, questions: Sequence[Question], first: int = 0) -> None:
        """Ask questions at the steady rate, or as fast as the concurrency allows."""
        places = iter(range(len(questions)))
        rate, end_s = self.arguments.rate, self.arguments.duration_s
        began = time.monotonic()

        async def work() -> None:
            for place in places:
                if rate:
                    await asyncio.sleep(max(0.0, began + place / rate - time.monotonic()))
                if end_s is not None and time.monotonic() - self.began > end_s:
                    return
                await self.put(first + place, questions[place])
                if len(self.rows) % SAMPLE_EVERY == 0:
                    await self.sample()

        async with asyncio.TaskGroup() as group:
            for _ in range(self.arguments.concurrency):
                group.create_task(work())

    async def settle(self) -> None:
        """Wait until no more labels are learned from."""
        before = None
        while (now := await self.admin("learning")) != before:
            before = now
            await asyncio.sleep(2.0)

    async def probe(self, questions: Sequence[Question]) -> list[tuple[Any, ...]]:
        """Return the decisions on questions that are looked up and never asked upstream."""
        decisions = []
        for question in questions:
            row = await self.ask(-1, question, **{"cache-control": "only-if-cached"})
            told = await self.admin(f"explain/{row.id}")
            decisions.append(tuple(told[name] for name in DECISION))
        return decisions

    async def time_hits(self, questions: Sequence[Question]) -> dict[str, float]:
        """Time hits again, one after the other, and requests to a page that does nothing."""
        served = [row.n for row in self.rows if row.outcome == "semantic"][-TIMED:]
        hits, nothing = [], []
        for n in served:
            row = await self.ask(-1, questions[n], **{"cache-control": "only-if-cached"})
            if row.outcome == "semantic":
                hits.append(row)
            began = time.monotonic()
            await self.admin("health")
            nothing.append((time.monotonic() - began) * 1e3)
        return time_apart(hits, nothing)

    async def kill_and_restart(self, questions: Sequence[Question]) -> dict[str, Any]:
        """Kill and restart the sidecar, and compare. No provider runs, so no label is added."""
        await self.settle()
        await self.simulator.stop()
        await self.probe(questions)  # entries near a question are encoded after it is answered
        await self.settle()
        before, decided = await self.admin("learning"), await self.probe(questions)
        metrics = await self.admin("metrics")
        self.compared += count_labels(metrics)
        self.dropped += count_dropped(metrics)
        await self.sidecar.stop(signal.SIGKILL)
        await self.sidecar.start()
        again = await self.probe(questions)
        after = await self.admin("learning")
        await self.simulator.start()
        found = compare_decisions(decided, again) | {
            "after_requests": len(self.rows),
            "thresholds_before": thresholds(before),
            "thresholds_after": thresholds(after),
            "state_equal": before == after,
        }
        print(json.dumps(found, indent=1), file=sys.stderr)
        return found


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)


@contextlib.asynccontextmanager
async def started(arguments: argparse.Namespace, folder: Path) -> AsyncIterator[Bench]:
    """Start the provider and a cold sidecar in front of it."""
    options = ["--profile", "instant", "--seed", str(arguments.seed), "--answers", arguments.stream]
    simulator = Program(["simulate", "--port", "0", *map(str, options), "--vary"])
    url = await simulator.start()
    # The same port when it comes back.
    simulator.arguments[2] = url.rpartition(":")[2]
    toml = write_settings(folder, url, arguments.max_error, arguments.max_wait_ms)
    sidecar = Program(["serve", "--config", str(toml), "--port", "0"])
    try:
        await sidecar.start()
        timeout = aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            yield Bench(arguments, http, simulator, sidecar)
    finally:
        for program in (sidecar, simulator):
            if program.process is not None and program.process.returncode is None:
                await program.stop()


async def bench(arguments: argparse.Namespace) -> dict[str, Any]:
    """Play the stream, write the artefacts and return the summary."""
    questions = read_stream(arguments.stream, arguments.seed)[: arguments.requests]
    killed = None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with started(arguments, folder) as running:
            cut = arguments.kill_after or len(questions)
            await running.run(questions[:cut])
            if arguments.kill_after:
                killed = await running.kill_and_restart(questions[cut:][:PROBES])
                await running.run(questions[cut:], cut)
            await running.settle()
            await running.sample()
            timed = await running.time_hits(questions)
            config = await running.admin("config")
        labels = await read_labels(folder / "bench.db")
    rows = sorted(running.rows, key=lambda row: row.n)
    (view,) = {view["max_error"] for view in running.samples[-1].learning} or {arguments.max_error}
    found = summarize(rows, running.samples, labels, running.truth) | {"killed": killed}
    found["latency_ms"]["one_at_a_time"] = timed
    found |= {"seed": arguments.seed, "max_error": view, "stream": arguments.stream.name}
    config |= {"options": {name: str(value) for name, value in vars(arguments).items()}}
    write_artefacts(arguments.out, found, rows, running.samples, config)
    return found


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("stream", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--requests", type=int, help="how many; without it, all")
    parser.add_argument("--duration-s", type=float, help="stop after so many seconds")
    parser.add_argument("--rate", type=float, help="requests a second; without it, closed loop")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-error", type=float, help="without it, the shipped default")
    parser.add_argument("--max-wait-ms", type=float, default=5000.0, help="encoder.max_wait_ms")
    parser.add_argument("--kill-after", type=int, metavar="N")
    parser.add_argument("--named", action="store_true", help="name each line's query")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    arguments = parser.parse_args()
    found = asyncio.run(bench(arguments))
    print(json.dumps(found, indent=1) if arguments.json else text_table(found, found["max_error"]))


if __name__ == "__main__":
    main()
