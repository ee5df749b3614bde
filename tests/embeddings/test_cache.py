"""The semantic cache: every reason of a miss, visibility, failing stages, and following the log."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import msgspec
import pytest

from headstart.embeddings.cache import MAX_QUEUE, SemanticCache
from headstart.embeddings.index import FaissIndex, pack_vector
from headstart.embeddings.replica import INLINE_ROWS
from headstart.errors import EncoderError, StoreError
from headstart.observe import StageFailed
from headstart.types import CacheKey, Delete, Entry, Outcome, Put
from support.fakes import (
    DIMENSION,
    FakeEncoder,
    FakeMatchPolicy,
    FaultyStore,
    Recorder,
    encode_angle,
    make_entry,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from headstart.types import VectorRow

pytestmark = pytest.mark.anyio


class House:
    """A cache and the parts that a test turns."""

    def __init__(self, store: FaultyStore, *, hot_bytes: int = 1 << 20) -> None:
        self.now = 1000.0
        self.store = store
        self.index = FaissIndex(DIMENSION)
        self.encoder = FakeEncoder()
        self.recorder = Recorder()
        self.cache = SemanticCache(
            store,
            self.index,
            self.encoder,
            FakeMatchPolicy(),
            hot_bytes=hot_bytes,
            max_wait_s=0.01,
            clock=lambda: self.now,
            observers=self.recorder,
        )

    @property
    def failures(self) -> list[tuple[str, str]]:
        return [
            (seen.stage, seen.error) for seen in self.recorder.seen if isinstance(seen, StageFailed)
        ]


@asynccontextmanager
async def running(house: House) -> AsyncIterator[SemanticCache]:
    await house.cache.open()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(house.cache.run)
        yield house.cache
        tasks.cancel_scope.cancel()
    await house.cache.aclose()


@pytest.fixture
async def house() -> House:
    house = House(FaultyStore())
    await house.cache.open()
    return house


def key(query: str | None, *, exact: str = "unknown", partition: str = "p") -> CacheKey:
    return CacheKey(scope="s", partition=partition, exact=exact, query=query)


def accept(entry: Entry) -> str | None:
    return None


async def until(condition: Callable[[], object]) -> None:
    """Wait for what another task brings about."""
    with anyio.fail_after(5):
        while not condition():  # noqa: ASYNC110 - nothing announces a change of the index
            await anyio.sleep(0.001)


# --- exact ---------------------------------------------------------------------------------------


async def test_an_entry_is_visible_to_exact_lookups_before_any_wait(house: House) -> None:
    house.encoder.turn = anyio.Event()
    entry = make_entry("a", exact="x")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(house.cache.put, entry, "hello@0")
        await until(lambda: house.encoder.encoded)
        assert house.cache.peek_exact("x") is entry
        assert "append" not in house.store.calls
        house.encoder.turn.set()
    assert await house.store.find("x") is not None


async def test_exact_lookups_never_encode(house: House) -> None:
    await house.cache.put(make_entry("a", exact="x"))
    assert await house.cache.find_exact(key("hello@0", exact="x"), accept) is not None
    assert await house.cache.find_exact(key("hello@0"), accept) is None
    assert house.encoder.encoded == []


async def test_an_entry_of_the_store_is_found_and_kept_hot(house: House) -> None:
    await house.store.append([Put(entry=make_entry("a", exact="x"))])
    assert house.cache.peek_exact("x") is None
    found = await house.cache.find_exact(key(None, exact="x"), accept)
    assert found is not None
    assert house.cache.peek_exact("x") is found


@pytest.mark.parametrize("hot", [True, False])
async def test_an_entry_that_the_request_refuses_is_not_found(house: House, *, hot: bool) -> None:
    entry = make_entry("a", exact="x")
    await (house.cache.put(entry) if hot else house.store.append([Put(entry=entry)]))
    assert await house.cache.find_exact(key(None, exact="x"), lambda _: "max-tokens") is None


async def test_a_failing_store_makes_an_exact_lookup_a_miss(house: House) -> None:
    house.store.failing = {"find"}
    assert await house.cache.find_exact(key(None, exact="x"), accept) is None
    assert house.failures == [("store", "StoreError")]


async def test_an_entry_that_is_deleted_while_it_is_read_is_not_kept_hot() -> None:
    class Overtaken(FaultyStore):
        cache: SemanticCache

        async def find(self, exact: str) -> Entry | None:
            entry = await super().find(exact)
            await self.cache.invalidate(["a"])
            return entry

    store = Overtaken()
    store.cache = House(store).cache
    await store.append([Put(entry=make_entry("a", exact="x"))])
    assert await store.cache.find_exact(key(None, exact="x"), accept) is not None
    assert store.cache.peek_exact("x") is None


# --- semantic: hits ------------------------------------------------------------------------------


async def test_a_similar_prompt_is_answered_with_its_similarity_and_times(house: House) -> None:
    await house.cache.put(make_entry("a"), "one@0")
    lookup = await house.cache.find_semantic(key("uno@10"), accept)
    assert lookup.outcome is Outcome.SEMANTIC
    assert lookup.entry is not None
    assert lookup.entry.id == "a"
    assert lookup.similarity == pytest.approx(0.9848, abs=1e-3)
    assert min(lookup.encode_s, lookup.lookup_s, lookup.match_s) > 0


async def test_a_hot_entry_is_judged_without_asking_the_store(house: House) -> None:
    await house.cache.put(make_entry("a"), "one@0")
    await house.cache.put(make_entry("b"), "two@5")
    house.store.failing = {"load"}
    assert (await house.cache.find_semantic(key("uno@0"), accept)).outcome is Outcome.SEMANTIC


async def test_entries_that_are_not_hot_are_read_at_once_and_the_hit_is_kept_hot() -> None:
    house = House(FaultyStore())
    writer = House(house.store)
    await writer.cache.put(make_entry("a"), "not one@0")
    await writer.cache.put(make_entry("b"), "not two@1")
    await writer.cache.put(make_entry("c"), "three@2")
    await house.cache.open()
    lookup = await house.cache.find_semantic(key("uno@0"), accept)
    assert lookup.entry is not None
    assert lookup.entry.id == "c"
    assert house.store.calls.count("load") == 1
    assert [id for id in "abc" if house.cache.peek_exact(id)] == ["c"]


async def test_the_best_neighbour_that_survives_is_the_hit(house: House) -> None:
    await house.cache.put(make_entry("vetoed"), "not one@0")
    await house.cache.put(make_entry("refused"), "two@1")
    await house.cache.put(make_entry("served"), "three@2")
    await house.cache.put(make_entry("farther"), "four@3")
    lookup = await house.cache.find_semantic(
        key("uno@0"), lambda entry: "stale" if entry.id == "refused" else None
    )
    assert lookup.entry is not None
    assert lookup.entry.id == "served"


async def test_partitions_are_never_crossed(house: House) -> None:
    await house.cache.put(make_entry("a", partition="p"), "one@0")
    await house.cache.put(make_entry("b", partition="q"), "one@60")
    lookup = await house.cache.find_semantic(key("one@0", partition="q"), accept)
    assert (lookup.reason, lookup.entry) == ("below-threshold", None)


async def test_a_large_partition_is_searched_too(house: House) -> None:
    await house.cache.put(make_entry("a"), "one@0")
    far = pack_vector(encode_angle("far@90").sentence)
    for number in range(INLINE_ROWS):
        house.index.add("p", f"far-{number}", far)
    lookup = await house.cache.find_semantic(key("uno@1"), accept)
    assert lookup.entry is not None
    assert lookup.entry.id == "a"


# --- semantic: reasons of a miss -----------------------------------------------------------------


async def test_no_text_to_compare_is_exact_only(house: House) -> None:
    assert (await house.cache.find_semantic(key(None), accept)).reason == "exact-only"


async def test_no_encoder_is_exact_only() -> None:
    cache = SemanticCache(
        FaultyStore(),
        FaissIndex(DIMENSION),
        None,
        FakeMatchPolicy(),
        hot_bytes=1 << 20,
        max_wait_s=0.01,
        clock=lambda: 0.0,
        observers=Recorder(),
    )
    await cache.open()
    await cache.put(make_entry("a"), "one@0")
    assert (await cache.find_semantic(key("one@0"), accept)).reason == "exact-only"
    assert cache.peek_exact("a") is not None


async def test_an_empty_partition_is_a_miss_that_encodes_nothing(house: House) -> None:
    await house.cache.put(make_entry("a", partition="q"), "one@0")
    house.encoder.encoded.clear()
    lookup = await house.cache.find_semantic(key("one@0"), accept)
    assert (lookup.outcome, lookup.reason) == (Outcome.MISS, "empty-partition")
    assert house.encoder.encoded == []


async def test_a_busy_encoder_is_not_waited_for(house: House) -> None:
    await house.cache.put(make_entry("a"), "one@0")
    house.encoder.turn = anyio.Event()
    lookup = await house.cache.find_semantic(key("one@0"), accept)
    assert (lookup.outcome, lookup.reason) == (Outcome.MISS, "encoder-busy")
    assert lookup.encode_s > 0


async def test_a_prompt_beyond_the_limit_is_too_long(house: House) -> None:
    await house.cache.put(make_entry("a"), "one@0")
    house.encoder.complete = False
    assert (await house.cache.find_semantic(key("one@0"), accept)).reason == "too-long"


async def test_a_far_neighbour_is_below_the_threshold_and_is_not_loaded(house: House) -> None:
    await house.cache.put(make_entry("a"), "one@0")
    house.store.failing = {"load"}
    lookup = await house.cache.find_semantic(key("uno@80"), accept)
    assert (lookup.reason, lookup.veto) == ("below-threshold", "threshold")
    assert lookup.similarity == pytest.approx(0.1736, abs=1e-3)


async def test_a_neighbour_that_the_policy_finds_too_far_is_below_the_threshold(
    house: House,
) -> None:
    await house.cache.put(make_entry("a"), "one@0")
    lookup = await house.cache.find_semantic(key("uno@30"), accept)
    assert (lookup.reason, lookup.veto) == ("below-threshold", "threshold")
    assert lookup.similarity == pytest.approx(0.8660, abs=1e-3)


async def test_a_request_may_ask_for_more_similarity_but_not_for_less(house: House) -> None:
    await house.cache.put(make_entry("a"), "one@0")
    strict = await house.cache.find_semantic(key("uno@10"), accept, minimum=0.99)
    assert strict.reason == "below-threshold"
    lax = await house.cache.find_semantic(key("uno@80"), accept, minimum=0.1)
    assert lax.reason == "below-threshold"


async def test_a_veto_is_reported_with_the_best_similarity(house: House) -> None:
    await house.cache.put(make_entry("a"), "not one@0")
    await house.cache.put(make_entry("b"), "two@40")
    lookup = await house.cache.find_semantic(key("uno@10"), accept)
    assert (lookup.outcome, lookup.reason, lookup.veto) == (Outcome.MISS, "veto", "negation")
    assert lookup.similarity == pytest.approx(0.9848, abs=1e-3)


async def test_a_refusal_of_the_request_is_reported_as_the_veto(house: House) -> None:
    await house.cache.put(make_entry("a"), "one@0")
    lookup = await house.cache.find_semantic(key("uno@0"), lambda _: "max-tokens")
    assert (lookup.reason, lookup.veto) == ("veto", "max-tokens")


async def test_evidence_of_another_policy_is_never_judged(house: House) -> None:
    entry = msgspec.structs.replace(
        make_entry("a"), evidence=b"\xff", evidence_version="other", encoder="angles"
    )
    vector = pack_vector(encode_angle("one@0").sentence)
    await house.store.append([Put(entry=entry, vector=vector)])
    await house.cache.open()
    lookup = await house.cache.find_semantic(key("one@0"), accept)
    assert (lookup.reason, lookup.veto) == ("veto", "evidence-version")


async def test_an_entry_that_left_the_store_is_skipped_and_forgotten(house: House) -> None:
    vector = pack_vector(encode_angle("one@0").sentence)
    house.index.add("p", "left", vector)
    assert (await house.cache.find_semantic(key("one@0"), accept)).reason == "gone"
    assert house.index.size() == 0
    house.index.add("p", "left", vector)
    await house.cache.put(make_entry("a"), "one@5")
    lookup = await house.cache.find_semantic(key("one@0"), accept)
    assert lookup.entry is not None
    assert lookup.entry.id == "a"


async def test_an_expired_entry_is_not_served(house: House) -> None:
    await house.cache.put(make_entry("a", expires=house.now + 5), "one@0")
    house.now += 5
    assert house.cache.peek_exact("a") is None
    assert (await house.cache.find_semantic(key("one@0"), accept)).reason == "gone"


# --- failing stages ------------------------------------------------------------------------------


async def test_a_failing_encoder_makes_a_lookup_a_miss(house: House) -> None:
    await house.cache.put(make_entry("a"), "one@0")
    house.encoder.error = EncoderError("broken")
    lookup = await house.cache.find_semantic(key("one@0"), accept)
    assert (lookup.outcome, lookup.reason) == (Outcome.MISS, "encoder-error")
    assert house.failures == [("encoder", "EncoderError")]


async def test_an_index_that_fails_makes_a_lookup_a_miss() -> None:
    house = House(FaultyStore())
    wrong = FaissIndex(DIMENSION + 1)
    wrong.add("p", "a", bytes(2 * DIMENSION + 2))
    cache = SemanticCache(
        house.store,
        wrong,
        house.encoder,
        FakeMatchPolicy(),
        hot_bytes=0,
        max_wait_s=1.0,
        clock=lambda: 0.0,
        observers=house.recorder,
    )
    assert (await cache.find_semantic(key("one@0"), accept)).reason == "index-error"
    assert house.failures == [("index", "VectorIndexError")]


async def test_a_store_that_fails_makes_a_semantic_lookup_a_miss() -> None:
    house = House(FaultyStore(), hot_bytes=0)
    await house.cache.put(make_entry("a"), "one@0")
    house.store.failing = {"load"}
    assert (await house.cache.find_semantic(key("one@0"), accept)).reason == "store-error"
    assert house.failures == [("store", "StoreError")]


async def test_an_entry_whose_encoding_fails_is_stored_for_exact_lookups(house: House) -> None:
    house.encoder.error = EncoderError("broken")
    await house.cache.put(make_entry("a", exact="x"), "one@0")
    assert await house.store.find("x") is not None
    assert house.index.size() == 0
    assert house.failures == [("encoder", "EncoderError")]


async def test_an_entry_beyond_the_encoders_limit_is_stored_for_exact_lookups(
    house: House,
) -> None:
    house.encoder.complete = False
    await house.cache.put(make_entry("a", exact="x"), "one@0")
    assert await house.store.find("x") is not None
    assert house.index.size() == 0


async def test_a_full_encoder_queue_is_not_lengthened(house: House) -> None:
    house.encoder.queue_length = MAX_QUEUE
    await house.cache.put(make_entry("a", exact="x"), "one@0")
    assert house.encoder.encoded == []
    assert await house.store.find("x") is not None


async def test_an_entry_that_the_store_refuses_stays_hot(house: House) -> None:
    house.store.failing = {"append"}
    await house.cache.put(make_entry("a", exact="x"), "one@0")
    assert house.cache.peek_exact("x") is not None
    assert house.index.size() == 0
    assert house.failures == [("store", "StoreError")]


async def test_new_entries_are_encoded_in_the_background(house: House) -> None:
    await house.cache.put(make_entry("a"), "one@0")
    await house.cache.find_semantic(key("uno@0"), accept)
    assert house.encoder.encoded == [("one@0", True), ("uno@0", False)]


async def test_cancelling_a_lookup_is_not_a_miss(house: House) -> None:
    await house.cache.put(make_entry("a"), "one@0")
    house.encoder.turn = anyio.Event()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await house.cache.find_semantic(key("one@0"), accept)
    assert scope.cancelled_caught
    assert house.failures == []


# --- concurrency ---------------------------------------------------------------------------------


async def test_many_puts_and_lookups_at_once_agree(house: House) -> None:
    found: dict[int, str] = {}

    async def put_then_find(number: int) -> None:
        partition = f"p{number % 5}"
        await house.cache.put(make_entry(f"e{number}", partition=partition), f"one@{number}")
        lookup = await house.cache.find_semantic(key(f"uno@{number}", partition=partition), accept)
        assert lookup.entry is not None
        found[number] = lookup.entry.id

    async with anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(put_then_find, number)
    assert found == {number: f"e{number}" for number in range(100)}
    stats = await house.cache.stats()
    assert (stats.entries, stats.partitions, stats.vectors) == (100, 5, 100)


async def test_a_slow_put_does_not_displace_a_newer_entry(house: House) -> None:
    house.encoder.turn = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(house.cache.put, make_entry("old", exact="x"), "one@0")
        await until(lambda: house.encoder.encoded)
        newer = make_entry("new", exact="x")
        await house.cache.put(newer)
        house.encoder.turn.set()
    assert house.cache.peek_exact("x") is newer


# --- the store's other users ---------------------------------------------------------------------


async def test_a_warm_start_answers_as_the_live_cache_did(house: House) -> None:
    for number in range(150):
        partition = f"p{number % 3 * (number % 2)}"
        await house.cache.put(
            make_entry(f"e{number}", partition=partition), f"prompt {number}@{number}"
        )
    await house.cache.invalidate(["e3", "e4"])
    warm = House(house.store)
    await warm.cache.open()
    for number in range(150):
        for partition in ("p0", "p1", "p2"):
            asked = key(f"uno@{number + 0.2}", partition=partition)
            live = await house.cache.find_semantic(asked, accept)
            again = await warm.cache.find_semantic(asked, accept)
            assert (live.reason, live.similarity, live.entry) == (
                again.reason,
                again.similarity,
                again.entry,
            )


async def test_vectors_of_another_encoder_are_not_indexed(house: House) -> None:
    await house.cache.put(make_entry("a"), "one@0")
    other = House(house.store)
    other.encoder.namespace = "other"
    cache = SemanticCache(
        house.store,
        other.index,
        FakeEncoder("other"),
        FakeMatchPolicy(),
        hot_bytes=1 << 20,
        max_wait_s=0.01,
        clock=lambda: 0.0,
        observers=other.recorder,
    )
    await cache.open()
    assert other.index.size() == 0


async def test_a_vector_that_does_not_fit_is_reported_and_the_others_are_indexed(
    house: House,
) -> None:
    await house.cache.put(make_entry("a"), "one@0")
    broken = msgspec.structs.replace(make_entry("b"), encoder="angles")
    await house.store.append([Put(entry=broken, vector=b"\0\0")])
    await house.cache.put(make_entry("c"), "one@9")
    warm = House(house.store)
    await warm.cache.open()
    assert [id for id in "abc" if id in warm.index] == ["a", "c"]
    assert warm.failures == [("index", "VectorIndexError")]


async def test_what_another_process_stores_and_deletes_is_followed() -> None:
    store = FaultyStore()
    here, there = House(store), House(store)
    async with running(here) as cache:
        await there.cache.put(make_entry("a", exact="x"), "one@0")
        await until(lambda: "a" in here.index)
        assert (await cache.find_semantic(key("uno@0"), accept)).outcome is Outcome.SEMANTIC
        assert cache.peek_exact("x") is not None
        await there.cache.invalidate(["a"])
        await until(lambda: "a" not in here.index)
        assert cache.peek_exact("x") is None


async def test_an_entry_that_another_process_replaced_is_no_longer_hot() -> None:
    store = FaultyStore()
    here, there = House(store), House(store)
    async with running(here) as cache:
        await cache.put(make_entry("old", exact="x"), "one@0")
        await there.cache.put(make_entry("new", exact="x"), "one@0")
        await until(lambda: cache.peek_exact("x") is None)
        found = await cache.find_exact(key(None, exact="x"), accept)
        assert found is not None
        assert found.id == "new"
        await until(lambda: "new" in here.index)
        assert "old" not in here.index


async def test_what_is_appended_during_a_warm_start_is_not_missed() -> None:
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
    writer, here = House(store), House(store)
    await writer.cache.put(make_entry("early"), "one@0")
    async with running(here):
        await until(lambda: "after-1" in here.index and "early" not in here.index)
        assert {"before-1", "amid", "after-1"} == {
            id for id in ("early", "before-1", "amid", "after-1") if id in here.index
        }


async def test_after_a_lost_log_nothing_deleted_meanwhile_is_served() -> None:
    store = FaultyStore()
    here, there = House(store), House(store)
    async with running(here) as cache:
        await cache.put(make_entry("a", exact="x"), "one@0")
        await until(lambda: store.calls.count("follow") >= 2)
        store.failing = {"follow"}
        await there.cache.put(make_entry("b"), "one@9")
        await until(lambda: here.failures)
        store.first_cursor = int(await store.append([Delete(ids=("a",))]))
        store.failing = set()
        await until(lambda: cache.peek_exact("x") is None)
        await until(lambda: "b" in here.index)
        lookup = await cache.find_semantic(key("uno@0"), accept)
        assert lookup.entry is not None
        assert lookup.entry.id == "b"


# --- administration ------------------------------------------------------------------------------


async def test_an_invalidated_entry_is_served_by_no_tier(house: House) -> None:
    await house.cache.put(make_entry("a", exact="x"), "one@0")
    await house.cache.invalidate(["a"])
    assert house.cache.peek_exact("x") is None
    assert await house.cache.find_exact(key(None, exact="x"), accept) is None
    assert (await house.cache.find_semantic(key("one@0"), accept)).reason == "empty-partition"


async def test_an_invalidation_that_the_store_refuses_is_an_error(house: House) -> None:
    await house.cache.put(make_entry("a", exact="x"), "one@0")
    house.store.failing = {"append"}
    with pytest.raises(StoreError):
        await house.cache.invalidate(["a"])
    assert house.cache.peek_exact("x") is None


async def test_hits_of_every_kind_are_touched_in_one_batch(house: House) -> None:
    await house.cache.put(make_entry("peeked", exact="x", partition="q"), "one@0")
    await house.cache.put(make_entry("similar"), "one@0")
    await house.store.append([Put(entry=make_entry("stored", exact="y"))])
    house.cache.peek_exact("x")
    await house.cache.find_exact(key(None, exact="y"), accept)
    await house.cache.find_semantic(key("uno@0"), accept)
    house.cache.touch(["named"])
    await house.cache.aclose()
    assert sorted(house.store.touched) == ["named", "peeked", "similar", "stored"]
    assert house.store.calls.count("touch") == 1


async def test_the_store_hears_of_hits_while_running() -> None:
    store = FaultyStore()
    house = House(store)
    house.cache = SemanticCache(
        store,
        house.index,
        house.encoder,
        FakeMatchPolicy(),
        hot_bytes=1 << 20,
        max_wait_s=1.0,
        clock=lambda: 0.0,
        observers=house.recorder,
        touch_s=0.001,
    )
    async with running(house) as cache:
        store.failing = {"touch"}
        cache.touch(["a"])
        await until(lambda: house.failures)
        store.failing = set()
        cache.touch(["b"])
        await until(lambda: store.touched == ["b"])


async def test_stats_count_every_tier(house: House) -> None:
    await house.cache.put(make_entry("a"), "one@0")
    await house.cache.put(make_entry("b", partition="q"), "one@0")
    await house.cache.put(make_entry("c"))
    stats = await house.cache.stats()
    assert (stats.entries, stats.partitions, stats.vectors, stats.hot_entries) == (3, 2, 2, 3)
    assert stats.bytes > 0
    assert stats.hot_bytes > 0
