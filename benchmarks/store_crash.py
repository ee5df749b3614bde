"""Kill a writer (kill -9) during 1,000 writes, and check that no acknowledged write is lost.

    python -m benchmarks.store_crash [--writes N] [--kills N] [--seed N] [--json]

A separate process appends entries of 1 to 20 KB, each with a label, to a SQLite store, eight at a
time, and prints the id when both are acknowledged. It is killed at random places and restarted on
the same file. A write that was not acknowledged when the process died may be in the file or not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from headstart.decisions import Label, LabelSource
from headstart.embeddings.stores.sqlite import SQLiteStore
from headstart.types import CacheKey, Choice, Completion, Entry, Origin, Put, Text

APPENDERS = 8
VECTOR = bytes(768)


# --- the process to be killed ------------------------------------------------------------------


async def write(path: str, name: str, writes: int) -> None:
    """Append entries and their labels; print each id once both are acknowledged, one a line."""
    store = SQLiteStore(path)
    await store.open()
    numbers = iter(range(writes))

    async def append() -> None:
        for number in numbers:
            entry = make_entry(f"{name}-{number:06}")
            await store.append([Put(entry=entry, vector=VECTOR)])
            await store.add_labels([make_label(entry.id)])
            os.write(1, f"{entry.id}\n".encode())

    async with asyncio.TaskGroup() as tasks:
        for _ in range(APPENDERS):
            tasks.create_task(append())
    await store.aclose()


def make_entry(id: str) -> Entry:
    """Return an entry of 1 to 20 KB, the same for the same id."""
    text = id * random.Random(id).randrange(80, 1500)
    choice = Choice(index=0, parts=(Text(text=text),), finish="stop")
    return Entry(
        id=id,
        key=CacheKey(scope="s", partition="p", exact=id),
        answer=Completion(model="m", choices=(choice,), created=0),
        origin=Origin(model="m", upstream="u", ttft_s=0.1, total_s=1.0),
        created=0.0,
    )


def make_label(id: str) -> Label:
    """Return a label, the same for the same id."""
    return Label(
        id=id, entry=id, domain="d", source=LabelSource.MISS, same=True, at=0.0, similarity=0.9
    )


# --- the process that kills --------------------------------------------------------------------


def kill_once(path: Path, name: str, writes: int, after: int) -> list[str]:
    """Kill a writer after so many acknowledgements; return all ids that it acknowledged."""
    arguments = ["--write", str(path), "--name", name, "--writes", str(writes)]
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.store_crash", *arguments],
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        acknowledged = [writer.stdout.readline().strip() for _ in range(after)]
        writer.send_signal(signal.SIGKILL)
        # Behind the last newline an id may be cut off.
        return acknowledged + writer.stdout.read().split("\n")[:-1]


async def read_labels(store: SQLiteStore) -> dict[str, Label]:
    """Return all labels by id."""
    labels: dict[str, Label] = {}
    after = ""
    while page := await store.read_labels(after):
        labels |= {label.id: label for _, label in page}
        after = page[-1][0]
    return labels


async def recover(path: Path, acknowledged: list[str]) -> dict[str, Any]:
    """Open the file again and compare it with the acknowledged writes."""
    started = time.perf_counter()
    store = SQLiteStore(path)
    await store.open()
    opened_s = time.perf_counter() - started
    loaded = await store.load(acknowledged)
    labels = await read_labels(store)
    recovered = sum(
        entry == make_entry(id) and labels.get(id) == make_label(id)
        for id, entry in zip(acknowledged, loaded, strict=True)
    )
    stats = await store.stats()
    await store.aclose()
    with closing(sqlite3.connect(path)) as file:
        (verdict,) = file.execute("PRAGMA integrity_check").fetchone()
    return {
        "acknowledged": len(acknowledged),
        "recovered": recovered,
        "lost": len(acknowledged) - recovered,
        "beyond": stats.entries - recovered,
        "integrity": verdict,
        "open_ms": round(opened_s * 1000, 1),
    }


async def run(writes: int, kills: int, seed: int) -> list[dict[str, Any]]:
    """Kill as often as asked, each time on the file that the last one left; sums grow."""
    places = random.Random(seed)
    acknowledged: list[str] = []
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        for number in range(kills):
            after = places.randrange(1, writes)
            acknowledged += await asyncio.to_thread(
                kill_once, path, f"life-{number}", writes, after
            )
            rounds.append({"kill": number + 1, **await recover(path, acknowledged)})
    return rounds


def main() -> int:
    """Run, print, and return 1 if anything acknowledged was lost or the file was damaged."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--writes", type=int, default=1000, help="that each process sets out on")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--name", default="writer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        asyncio.run(write(options.write, options.name, options.writes))
        return 0
    rounds = asyncio.run(run(options.writes, options.kills, options.seed))
    if options.json:
        print(json.dumps({"writes": options.writes, "seed": options.seed, "rounds": rounds}))
    else:
        print(" ".join(f"{name:>12}" for name in rounds[0]))
        for figures in rounds:
            print(" ".join(f"{value:>12}" for value in figures.values()))
    return int(any(figures["lost"] or figures["integrity"] != "ok" for figures in rounds))


if __name__ == "__main__":
    sys.exit(main())
