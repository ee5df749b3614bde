"""Measure the vector index: the time of a warm start, bytes for each entry, time of a lookup.

    python -m benchmarks.index [--entries N] [--partitions N] [--json]

Two shapes of the same cache: all entries in one partition, and partitions of one to three entries.
Entries lie in a real SQLite store; each measurement starts in a process of its own. Allocated
bytes are those of the index alone, as glibc counts them; resident bytes include the memory of the
allocator and of SQLite. The times of lookups do not include encoding.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headstart.decisions import Encoding, Gate, HistoryComparison, Outcome, RankedNeighbor, Verdict
from headstart.embeddings.cache import SemanticCache
from headstart.embeddings.index import FaissIndex, pack_vector
from headstart.embeddings.replica import HotTier, Replica
from headstart.embeddings.stores.sqlite import SQLiteStore
from headstart.middleware.observers import Observers
from headstart.types import CacheKey, Choice, Completion, Entry, Origin, Put, Text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from headstart.decisions import MatchContext
    from headstart.types import Turn

DIMENSION = 384
NAMESPACE = "benchmark"
LOOKUPS = 1000
HOT_BYTES = 64 << 20


def row(number: int) -> NDArray[np.float32]:
    """Return the unit vector of an entry, the same in every process."""
    vector = np.random.default_rng(number).standard_normal(DIMENSION).astype(np.float32)
    return np.asarray(vector / np.linalg.norm(vector), np.float32)


def entries(shape: str, count: int) -> Iterator[Entry]:
    """Yield ``count`` entries, or those of ``count`` partitions; each answers 500 characters."""
    owners = [0] * count if shape == "one" else [p for p in range(count) for _ in range(1 + p % 3)]
    for number, owner in enumerate(owners):
        yield Entry(
            id=f"{number:026d}",
            key=CacheKey(scope=f"{0:064x}", partition=f"{owner:064x}", exact=f"{number:064x}"),
            answer=Completion(
                model="m",
                choices=(Choice(index=0, parts=(Text(text="x" * 500),), finish="stop"),),
                created=1,
            ),
            origin=Origin(model="m", upstream="u", ttft_s=0.5, total_s=2.0),
            created=1.0,
            encoder=NAMESPACE,
        )


async def fill(path: Path, shape: str, count: int) -> int:
    """Write the store; return its number of entries."""
    store = SQLiteStore(path)
    await store.open()
    batch: list[Put] = []
    total = 0
    for entry in entries(shape, count):
        batch.append(Put(entry=entry, vector=pack_vector(row(int(entry.id)))))
        if len(batch) == 500:
            await store.append(batch)
            total, batch = total + len(batch), []
    await store.append(batch)
    await store.aclose()
    return total + len(batch)


class InstantEncoder:
    """Knows the vector of an entry whose number is the prompt."""

    namespace = NAMESPACE

    def is_full(self, tenant: str) -> bool:
        """Tell that there is always room."""
        return False

    def peek(self, text: str, tenant: str = "") -> Encoding | None:
        """Remember nothing."""
        return None

    async def encode(
        self, text: str, *, background: bool = False, tenant: str = "", priority: float = 0.0
    ) -> Encoding:
        """Encode at once."""
        vector = row(int(text))
        return Encoding(sentence=vector, tokens=vector[None, :], spans=((0, 1),), complete=True)


class NearEnough:
    """Serves every neighbour of at least 0.9."""

    version = ""
    parse_version = ""
    minimum = 0.9

    def gate(self, context: MatchContext) -> Gate:
        """Encode every question."""
        return Gate(least=0.0)

    def hit_share(self, context: MatchContext) -> float:
        return 1.0

    def note_encoded(
        self,
        context: MatchContext,
        similarity: float,
        gate: Gate,
        *,
        sampled: bool,
        served: bool,
        judged: bool = True,
    ) -> None:
        """Count nothing."""

    def prepare(self, text: str, encoding: Encoding, task: str = "") -> None:
        """Parse nothing."""

    def pack(self, prepared: None) -> bytes:
        """Keep nothing."""
        return b""

    def unpack(self, evidence: bytes) -> None:
        """Find nothing."""

    def veto(self, query: None, candidate: None) -> None:
        """Let every neighbour pass."""

    def compare(
        self,
        one: Sequence[Turn],
        other: Sequence[Turn],
        max_error: float | None,
        tenant: str = "",
    ) -> HistoryComparison:
        """Tell every history apart."""
        return HistoryComparison("unmatched")

    def reworded(self, turn: None, counterpart: None) -> bool:
        """Take none for another."""
        return False

    def judge(
        self, query: None, candidate: None, nearby: RankedNeighbor, veto: str | None = None
    ) -> Verdict:
        """Serve."""
        return Verdict(serves=True, similarity=nearby.neighbor.similarity)


async def measure_memory(path: Path) -> dict[str, float]:
    """Return the allocated memory after a warm start, and the numbers of entries and partitions."""
    store, index = SQLiteStore(path), FaissIndex(DIMENSION)
    index.search("", bytes(2 * DIMENSION), 1)
    await store.open()
    replica = Replica(store, index, HotTier(0, time.monotonic), NAMESPACE, Observers())
    gc.collect()
    before = allocated()
    await replica.load()
    await store.aclose()
    gc.collect()
    return {
        "entries": index.size(),
        "partitions": index.partitions,
        "allocated_bytes": allocated() - before,
    }


async def measure_time(path: Path) -> dict[str, float]:
    """Return seconds of a warm start, and microseconds of searches and lookups."""
    store, index = SQLiteStore(path), FaissIndex(DIMENSION)
    cache = SemanticCache(
        store,
        index,
        InstantEncoder(),
        NearEnough(),
        hot_bytes=HOT_BYTES,
        outage_ttl_s=30.0,
        max_wait_s=60.0,
        clock=time.monotonic,
        observers=Observers(),
    )
    before = resident()
    wall, cpu = time.perf_counter(), time.process_time()
    await cache.open()
    result = {
        "start_s": time.perf_counter() - wall,
        "start_cpu_s": time.process_time() - cpu,
        "resident_bytes": resident() - before,
    }
    total = index.size()
    sample = [number * total // LOOKUPS for number in range(LOOKUPS)] if total else []
    keys = await partitions_of(store, sample)

    async def search(number: int) -> None:
        found = index.search(keys[number], vectors[number], 8)
        assert int(found[0].id) == number

    async def look_up(number: int) -> None:
        key = CacheKey(scope="", partition=keys[number], exact="", query=str(number))
        lookup = await cache.find_semantic(key, lambda _: None)
        assert lookup.outcome is Outcome.SEMANTIC
        spent.append(lookup.lookup_s + lookup.match_s)

    vectors = {number: pack_vector(row(number)) for number in sample}
    spent: list[float] = []
    result |= await timed("search", sample, search)
    for state in ("cold", "hot"):
        spent.clear()
        for number in sample:
            await look_up(number)
        result |= percentiles(f"{state}_hit", spent)
    await cache.aclose()
    return result


async def partitions_of(store: SQLiteStore, sample: list[int]) -> dict[int, str]:
    """Return the partitions of entries by number."""
    found = await store.load([f"{number:026d}" for number in sample])
    return {int(entry.id): entry.key.partition for entry in found if entry is not None}


async def timed(
    name: str, sample: list[int], operation: Callable[[int], Awaitable[None]]
) -> dict[str, float]:
    """Run an operation for each of the sample; return percentiles in microseconds, and CPU."""
    await operation(sample[0])
    seconds = []
    cpu = time.process_time()
    for number in sample:
        began = time.perf_counter()
        await operation(number)
        seconds.append(time.perf_counter() - began)
    cpu = time.process_time() - cpu
    return {f"{name}_cpu_us": 1e6 * cpu / len(sample)} | percentiles(name, seconds)


def percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    """Return p50 and p99 in microseconds."""
    p50, p99 = np.percentile(seconds, (50, 99)) * 1e6
    return {f"{name}_p50_us": float(p50), f"{name}_p99_us": float(p99)}


def allocated() -> float:
    """Return the bytes that malloc has given out; NaN without glibc 2.33."""

    class Info(ctypes.Structure):
        _fields_ = [
            (name, ctypes.c_size_t)
            for name in ("a", "b", "c", "d", "mapped", "e", "f", "used", "g", "h")
        ]

    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return float("nan")
    mallinfo.restype = Info
    info = mallinfo()
    return float(info.used + info.mapped)


def resident() -> float:
    """Return this process's resident bytes; NaN where the system has no ``/proc``."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return float("nan")
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def run_apart(kind: str, path: Path) -> dict[str, float]:
    """Measure in a fresh process. For memory, Python's objects come from malloc, which counts."""
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.index", "--measure", kind, "--path", str(path)],
        env=os.environ | ({"PYTHONMALLOC": "malloc"} if kind == "memory" else {}),
        check=True,
        capture_output=True,
    )
    measured: dict[str, float] = json.loads(result.stdout)
    return measured


def measure(shape: str, count: int) -> dict[str, Any]:
    """Fill a store and measure both ways."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cache.db")
        asyncio.run(fill(path, shape, count))
        result = run_apart("memory", path) | run_apart("time", path)
    for kind in ("allocated", "resident"):
        used = result.pop(f"{kind}_bytes")
        result[f"{kind}_bytes_an_entry"] = used / result["entries"]
        result[f"{kind}_bytes_a_partition"] = used / result["partitions"]
    vectors = 2 * DIMENSION * result["entries"]
    result["overhead_bytes_a_partition"] = (
        result["allocated_bytes_a_partition"] - vectors / result["partitions"]
    )
    result["overhead_bytes_an_entry"] = result["allocated_bytes_an_entry"] - 2 * DIMENSION
    return result


def table(rows: dict[str, dict[str, float]]) -> str:
    """Return the figures side by side."""
    names = list(next(iter(rows.values())))
    lines = ["".join((f"{'':32}", *(f"{shape:>20}" for shape in rows)))]
    lines += [
        "".join((f"{name:32}", *(f"{figures[name]:>20,.2f}" for figures in rows.values())))
        for name in names
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure both shapes and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=20_000, help="in the one partition")
    parser.add_argument("--partitions", type=int, default=10_000, help="of one to three entries")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--measure", choices=("memory", "time"), help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        job = measure_memory if arguments.measure == "memory" else measure_time
        print(json.dumps(asyncio.run(job(arguments.path))))
        return
    rows = {
        "one partition": measure("one", arguments.entries),
        "small partitions": measure("many", arguments.partitions),
    }
    print(json.dumps(rows, indent=1) if arguments.json else table(rows))


if __name__ == "__main__":
    main()
