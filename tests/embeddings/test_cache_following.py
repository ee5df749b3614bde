"""A warm start, and following what other processes store and delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from headstart.decisions import Outcome
from headstart.embeddings.index import FaissIndex
from headstart.embeddings.stores.sqlite import SQLiteStore
from headstart.errors import StoreError
from headstart.types import Delete, Logged, Put, VectorRow
from support.caches import CacheRig, key, make_cache, refuse_none, running
from support.fakes import DIMENSION, FakeEncoder, FaultyStore, Recorder, make_entry
from support.patience import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path


pytestmark = pytest.mark.anyio


async def test_a_warm_start_answers_as_the_live_cache_did(rig: CacheRig) -> None:
    for number in range(150):
        partition = f"p{number % 3 * (number % 2)}"
        await rig.cache.put(
            make_entry(f"e{number}", partition=partition), f"prompt {number}@{number}"
        )
    await rig.cache.invalidate(["e3", "e4"])
    warm = CacheRig(rig.store)
    await warm.cache.open()
    for number in range(150):
        for partition in ("p0", "p1", "p2"):
            asked = key(f"uno@{number + 0.2}", partition=partition)
            live = await rig.cache.find_semantic(asked, refuse_none)
            again = await warm.cache.find_semantic(asked, refuse_none)
            assert (live.reason, live.similarity, live.entry) == (
                again.reason,
                again.similarity,
                again.entry,
            )


async def test_vectors_of_another_encoder_are_not_indexed(rig: CacheRig) -> None:
    await rig.cache.put(make_entry("a"), "one@0")
    index = FaissIndex(DIMENSION)
    await make_cache(rig.store, index, FakeEncoder("other"), Recorder()).open()
    assert index.size() == 0


async def test_a_vector_that_does_not_fit_is_reported_and_the_others_are_indexed(
    rig: CacheRig,
) -> None:
    await rig.cache.put(make_entry("a"), "one@0")
    broken = msgspec.structs.replace(make_entry("b"), encoder="angles")
    await rig.store.append([Put(entry=broken, vector=b"\0\0")])
    await rig.cache.put(make_entry("c"), "one@9")
    warm = CacheRig(rig.store)
    await warm.cache.open()
    assert [id for id in "abc" if id in warm.index] == ["a", "c"]
    assert warm.failures == [("index", "VectorIndexError")]


async def test_changes_of_another_process_are_followed() -> None:
    store = FaultyStore()
    here, there = CacheRig(store), CacheRig(store)
    async with running(here.cache) as cache:
        await there.cache.put(make_entry("a", exact="x"), "one@0")
        await until(lambda: "a" in here.index)
        assert (await cache.find_semantic(key("uno@0"), refuse_none)).outcome is Outcome.SEMANTIC
        assert cache.peek_exact("x") is not None
        await there.cache.invalidate(["a"])
        await until(lambda: "a" not in here.index)
        assert cache.peek_exact("x") is None


async def test_two_caches_share_one_sqlite_file(tmp_path: Path) -> None:
    followed = FaissIndex(DIMENSION)
    here, there = (
        make_cache(SQLiteStore(tmp_path / "cache.db"), index, FakeEncoder(), Recorder())
        for index in (followed, FaissIndex(DIMENSION))
    )
    await there.open()
    await there.put(make_entry("early"), "one@0")
    async with running(here):
        assert "early" in followed
        await there.put(make_entry("late"), "two@45")
        await until(lambda: "late" in followed)
        lookup = await here.find_semantic(key("dos@45"), refuse_none)
        assert lookup.entry is not None
        assert lookup.entry.id == "late"
        await there.invalidate(["late"])
        await until(lambda: "late" not in followed)
        assert here.peek_exact("late") is None
    await there.aclose()


async def test_an_entry_that_another_process_replaced_is_no_longer_hot() -> None:
    store = FaultyStore()
    here, there = CacheRig(store), CacheRig(store)
    async with running(here.cache) as cache:
        await cache.put(make_entry("old", exact="x"), "one@0")
        await there.cache.put(make_entry("new", exact="x"), "one@0")
        await until(lambda: cache.peek_exact("x") is None)
        found = await cache.find_exact(key(None, exact="x"), refuse_none)
        assert found is not None
        assert found.id == "new"
        await until(lambda: "new" in here.index)
        assert "old" not in here.index


async def test_an_append_during_a_warm_start_is_not_missed() -> None:
    class Busy(FaultyStore):
        """Another process appends before, amid and after each scan."""

        scans = 0

        async def scan(self, batch: int = 1024) -> AsyncIterator[Sequence[VectorRow]]:
            self.scans += 1
            await writer.cache.put(make_entry(f"before-{self.scans}"), "one@0")
            async for rows in super().scan(1):
                yield rows
                if self.scans == 1:
                    await writer.cache.put(make_entry("amid"), "one@0")
                    await writer.cache.invalidate(["early"])
            await writer.cache.put(make_entry(f"after-{self.scans}"), "one@0")

    store = Busy()
    writer, here = CacheRig(store), CacheRig(store)
    await writer.cache.put(make_entry("early"), "one@0")
    async with running(here.cache):
        await until(lambda: "after-1" in here.index and "early" not in here.index)
        assert {"before-1", "amid", "after-1"} == {
            id for id in ("early", "before-1", "amid", "after-1") if id in here.index
        }


async def test_after_a_lost_log_nothing_deleted_meanwhile_is_served() -> None:
    store = FaultyStore()
    here, there = CacheRig(store), CacheRig(store)
    async with running(here.cache) as cache:
        await cache.put(make_entry("a", exact="x"), "one@0")
        await until(lambda: store.calls.count("follow") >= 2)
        store.failing = {"follow"}
        await there.cache.put(make_entry("b"), "one@9")
        await until(lambda: here.failures)
        store.first_cursor = int(await store.append([Delete(ids=("a",))]))
        store.failing = set()
        await until(lambda: cache.peek_exact("x") is None)
        await until(lambda: "b" in here.index)
        lookup = await cache.find_semantic(key("uno@0"), refuse_none)
        assert lookup.entry is not None
        assert lookup.entry.id == "b"


@pytest.mark.virtual_clock
async def test_a_store_that_is_away_leaves_exact_repeats_for_a_while() -> None:
    store = FaultyStore()
    rig, other = CacheRig(store, outage_ttl_s=30.0), CacheRig(store)
    async with running(rig.cache) as cache:
        await cache.put(make_entry("a", exact="x", created=rig.now), "one@0")
        await until(lambda: store.calls.count("follow") >= 2)
        store.failing = {"follow", "find", "load", "cursor"}
        await other.cache.put(make_entry("b"), "one@9")
        await until(lambda: rig.failures)
        rig.now += 30.0
        assert cache.peek_exact("x") is not None
        assert (await cache.find_semantic(key("uno@0"), refuse_none)).entry is None
        rig.now += 0.1
        assert cache.peek_exact("x") is None
        store.failing = set()
        await until(lambda: store.calls.count("scan") >= 2)
        assert (await cache.find_exact(key(None, exact="x"), refuse_none)) is not None
        await until(lambda: cache.peek_exact("x") is not None)
        assert (await cache.find_semantic(key("uno@0"), refuse_none)).entry is not None


async def test_a_warm_start_that_fails_closes_the_store() -> None:
    rig = CacheRig(store := FaultyStore())
    store.failing = {"scan"}
    with pytest.raises(StoreError):
        await rig.cache.open()
    assert store.calls[-1] == "aclose"


class DamagedStore(FaultyStore):
    """A store with a row that cannot be read once: somebody else wrote it."""

    async def follow(self, after: str, *, poll_s: float = 0.001) -> AsyncIterator[Logged]:
        if "follow" not in self.calls:
            self.calls.append("follow")
            raise ValueError("no row")
        async for logged in super().follow(after, poll_s=poll_s):
            yield logged


async def test_deletions_are_followed_after_a_row_that_cannot_be_read() -> None:
    store = DamagedStore()
    here, there = CacheRig(store), CacheRig(store)
    async with running(here.cache) as cache:
        await there.cache.put(make_entry("a", exact="x"), "one@0")
        await until(lambda: "a" in here.index)
        assert here.failures == [("store", "ValueError")]
        await cache.find_exact(key("one@0", exact="x"), refuse_none)
        await there.cache.invalidate(["a"])
        await until(lambda: "a" not in here.index)
        assert cache.peek_exact("x") is None
