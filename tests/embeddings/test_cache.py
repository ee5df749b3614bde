"""The cache: put, exact lookups, invalidation, uses, counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from headstart.errors import StoreError
from headstart.types import Entry, Put
from support.caches import CacheRig, key, refuse_none, running
from support.fakes import FaultyStore, make_entry
from support.patience import until

if TYPE_CHECKING:
    from headstart.embeddings.cache import SemanticCache

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]


async def test_an_entry_is_visible_to_exact_lookups_before_any_wait(rig: CacheRig) -> None:
    rig.encoder.turn = anyio.Event()
    entry = make_entry("a", exact="x")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.cache.put, entry, "hello@0")
        await until(lambda: rig.encoder.encoded)
        assert rig.cache.peek_exact("x") is entry
        assert "append" not in rig.store.calls
        rig.encoder.turn.set()
    assert await rig.store.find("x") is not None


async def test_waiting_clients_get_an_answer_before_the_store_does(rig: CacheRig) -> None:
    entry, answered = make_entry("a", exact="x"), anyio.Event()

    async def answer() -> None:
        assert rig.cache.peek_exact("x") is entry
        assert "append" not in rig.store.calls
        answered.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.cache.put, entry)
        tasks.start_soon(answer)
    assert answered.is_set()
    assert "append" in rig.store.calls


async def test_exact_lookups_never_encode(rig: CacheRig) -> None:
    await rig.cache.put(make_entry("a", exact="x"))
    assert await rig.cache.find_exact(key("hello@0", exact="x"), refuse_none) is not None
    assert await rig.cache.find_exact(key("hello@0"), refuse_none) is None
    assert rig.encoder.encoded == []


async def test_an_entry_of_the_store_is_found_and_kept_hot(rig: CacheRig) -> None:
    await rig.store.append([Put(entry=make_entry("a", exact="x"))])
    assert rig.cache.peek_exact("x") is None
    found = await rig.cache.find_exact(key(None, exact="x"), refuse_none)
    assert found is not None
    assert rig.cache.peek_exact("x") is found


@pytest.mark.parametrize("hot", [True, False])
async def test_an_entry_that_the_request_refuses_is_not_found(rig: CacheRig, *, hot: bool) -> None:
    entry = make_entry("a", exact="x")
    await (rig.cache.put(entry) if hot else rig.store.append([Put(entry=entry)]))
    assert await rig.cache.find_exact(key(None, exact="x"), lambda _: "max-tokens") is None


async def test_a_failing_store_makes_an_exact_lookup_a_miss(rig: CacheRig) -> None:
    rig.store.failing = {"find"}
    assert await rig.cache.find_exact(key(None, exact="x"), refuse_none) is None
    assert rig.failures == [("store", "StoreError")]


async def test_an_entry_that_is_deleted_while_it_is_read_is_not_kept_hot() -> None:
    class Overtaken(FaultyStore):
        cache: SemanticCache

        async def find(self, exact: str) -> Entry | None:
            entry = await super().find(exact)
            await self.cache.invalidate(["a"])
            return entry

    store = Overtaken()
    store.cache = CacheRig(store).cache
    await store.append([Put(entry=make_entry("a", exact="x"))])
    assert await store.cache.find_exact(key(None, exact="x"), refuse_none) is not None
    assert store.cache.peek_exact("x") is None


async def test_many_puts_and_lookups_at_once_agree(rig: CacheRig) -> None:
    found: dict[int, str] = {}

    async def put_then_find(number: int) -> None:
        partition = f"p{number % 5}"
        await rig.cache.put(make_entry(f"e{number}", partition=partition), f"one@{number}")
        lookup = await rig.cache.find_semantic(
            key(f"uno@{number}", partition=partition), refuse_none
        )
        assert lookup.entry is not None
        found[number] = lookup.entry.id

    async with anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(put_then_find, number)
    assert found == {number: f"e{number}" for number in range(100)}
    stats = await rig.cache.stats()
    assert (stats.entries, stats.partitions, stats.vectors) == (100, 5, 100)


async def test_a_slow_put_does_not_displace_a_newer_entry(rig: CacheRig) -> None:
    rig.encoder.turn = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.cache.put, make_entry("old", exact="x"), "one@0")
        await until(lambda: rig.encoder.encoded)
        newer = make_entry("new", exact="x")
        await rig.cache.put(newer)
        rig.encoder.turn.set()
    assert rig.cache.peek_exact("x") is newer


async def test_an_invalidated_entry_is_served_by_no_tier(rig: CacheRig) -> None:
    await rig.cache.put(make_entry("a", exact="x"), "one@0")
    await rig.cache.invalidate(["a"])
    assert rig.cache.peek_exact("x") is None
    assert await rig.cache.find_exact(key(None, exact="x"), refuse_none) is None
    assert (await rig.cache.find_semantic(key("one@0"), refuse_none)).reason == "empty-partition"


async def test_an_invalidation_that_the_store_refuses_is_an_error(rig: CacheRig) -> None:
    await rig.cache.put(make_entry("a", exact="x"), "one@0")
    rig.store.failing = {"append"}
    with pytest.raises(StoreError):
        await rig.cache.invalidate(["a"])
    assert rig.cache.peek_exact("x") is None


async def test_hits_of_every_kind_are_touched_in_one_batch(rig: CacheRig) -> None:
    await rig.cache.put(make_entry("peeked", exact="x", partition="q"), "one@0")
    await rig.cache.put(make_entry("similar"), "one@0")
    await rig.store.append([Put(entry=make_entry("stored", exact="y"))])
    rig.cache.peek_exact("x")
    await rig.cache.find_exact(key(None, exact="y"), refuse_none)
    await rig.cache.find_semantic(key("uno@0"), refuse_none)
    rig.cache.touch(["named"])
    await rig.cache.aclose()
    assert sorted(rig.store.touched) == ["named", "peeked", "similar", "stored"]
    assert rig.store.calls.count("touch") == 1


async def test_the_store_hears_of_hits_while_running() -> None:
    rig = CacheRig(store := FaultyStore(), touch_s=0.001)
    async with running(rig.cache) as cache:
        store.failing = {"touch"}
        cache.touch(["a"])
        await until(lambda: rig.failures)
        store.failing = set()
        cache.touch(["b"])
        await until(lambda: store.touched == ["b"])


async def test_stats_count_the_store_and_the_index(rig: CacheRig) -> None:
    await rig.cache.put(make_entry("a"), "one@0")
    await rig.cache.put(make_entry("b", partition="q"), "one@0")
    await rig.cache.put(make_entry("c"))
    stats = await rig.cache.stats()
    assert (stats.entries, stats.partitions, stats.vectors) == (3, 2, 2)
    assert stats.bytes > 0


async def test_an_entry_that_is_kept_is_found_before_it_is_stored(rig: CacheRig) -> None:
    entry = make_entry("a", exact="x")
    assert rig.cache.keep(entry)
    assert rig.cache.peek_exact("x") is entry
    assert await rig.store.find("x") is None
    assert rig.encoder.encoded == []
    await rig.cache.put(entry, "one@0")
    assert await rig.store.find("x") is not None


async def test_an_entry_that_memory_has_no_room_for_is_not_kept(rig: CacheRig) -> None:
    assert not rig.cache.keep(make_entry("a", exact="x", text="x" * (2 << 20)))
    assert rig.cache.peek_exact("x") is None
