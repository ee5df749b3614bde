"""Semantic lookups: what is served, and every reason of a miss."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from headstart.decisions import Encoding, Lookup, MatchContext, Outcome
from headstart.embeddings.cache import SemanticCache
from headstart.embeddings.entry_encoder import MOST_PARSED
from headstart.embeddings.index import FaissIndex, pack_vector
from headstart.embeddings.replica import INLINE_ROWS
from headstart.errors import EncoderError
from headstart.types import Entry, Put
from support.caches import CacheRig, key, make_cache, refuse_none
from support.fakes import (
    DIMENSION,
    FakeEncoder,
    FakeMatchPolicy,
    FaultyStore,
    Recorder,
    encode_angle,
    make_entry,
)
from support.patience import until

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]


async def test_a_similar_prompt_is_answered_with_its_similarity_and_times(
    rig: CacheRig,
) -> None:
    await rig.cache.put(make_entry("a"), "one@0")
    lookup = await rig.cache.find_semantic(key("uno@10"), refuse_none)
    assert lookup.outcome is Outcome.SEMANTIC
    assert lookup.entry is not None
    assert lookup.entry.id == "a"
    assert lookup.similarity == pytest.approx(0.9848, abs=1e-3)
    assert min(lookup.encode_s, lookup.lookup_s, lookup.match_s) > 0


async def test_a_hot_entry_is_judged_without_asking_the_store(rig: CacheRig) -> None:
    await rig.cache.put(make_entry("a"), "one@0")
    await rig.cache.put(make_entry("b"), "two@5")
    rig.store.failing = {"load"}
    assert (await rig.cache.find_semantic(key("uno@0"), refuse_none)).outcome is Outcome.SEMANTIC


async def test_entries_that_are_not_hot_are_read_at_once_and_the_hit_is_kept_hot() -> None:
    rig = CacheRig(FaultyStore())
    writer = CacheRig(rig.store)
    await writer.cache.put(make_entry("a"), "not one@0")
    await writer.cache.put(make_entry("b"), "not two@1")
    await writer.cache.put(make_entry("c"), "three@2")
    await rig.cache.open()
    lookup = await rig.cache.find_semantic(key("uno@0"), refuse_none)
    assert lookup.entry is not None
    assert lookup.entry.id == "c"
    assert rig.store.calls.count("load") == 1
    assert [id for id in "abc" if rig.cache.peek_exact(id)] == ["c"]


async def test_the_best_neighbour_that_survives_is_the_hit(rig: CacheRig) -> None:
    await rig.cache.put(make_entry("vetoed"), "not one@0")
    await rig.cache.put(make_entry("refused"), "two@1")
    await rig.cache.put(make_entry("served"), "three@2")
    await rig.cache.put(make_entry("farther"), "four@3")
    lookup = await rig.cache.find_semantic(
        key("uno@0"), lambda entry: "stale" if entry.id == "refused" else None
    )
    assert lookup.entry is not None
    assert lookup.entry.id == "served"


async def test_partitions_are_never_crossed(rig: CacheRig) -> None:
    await rig.cache.put(make_entry("a", partition="p"), "one@0")
    await rig.cache.put(make_entry("b", partition="q"), "one@60")
    lookup = await rig.cache.find_semantic(key("one@0", partition="q"), refuse_none)
    assert (lookup.reason, lookup.entry) == ("below-threshold", None)


async def test_a_large_partition_is_searched_and_grows_too(rig: CacheRig) -> None:
    await rig.cache.put(make_entry("a"), "one@0")
    far = pack_vector(encode_angle("far@90").sentence)
    for number in range(INLINE_ROWS):
        rig.index.add(("p",), f"far-{number}", far)
    lookup = await rig.cache.find_semantic(key("uno@1"), refuse_none)
    assert lookup.entry is not None
    assert lookup.entry.id == "a"
    await rig.cache.put(make_entry("b"), "one@45")
    assert "b" in rig.index


async def test_no_text_to_compare_is_exact_only(rig: CacheRig) -> None:
    assert (await rig.cache.find_semantic(key(None), refuse_none)).reason == "exact-only"


async def test_no_encoder_is_exact_only() -> None:
    cache = make_cache(FaultyStore(), FaissIndex(DIMENSION), None, Recorder())
    await cache.open()
    await cache.put(make_entry("a"), "one@0")
    assert (await cache.find_semantic(key("one@0"), refuse_none)).reason == "exact-only"
    assert cache.peek_exact("a") is not None


async def test_an_empty_partition_is_a_miss_that_encodes_nothing(rig: CacheRig) -> None:
    await rig.cache.put(make_entry("a", partition="q"), "one@0")
    rig.encoder.encoded.clear()
    lookup = await rig.cache.find_semantic(key("one@0"), refuse_none)
    assert (lookup.outcome, lookup.reason) == (Outcome.MISS, "empty-partition")
    assert rig.encoder.encoded == []


async def put_expected(rig: CacheRig, entry: Entry, text: str) -> None:
    """Put an entry for which lookups by meaning wait."""
    arrived = rig.cache.expect(entry.key, "")
    try:
        await rig.cache.put(entry, text)
    finally:
        arrived()


@pytest.mark.parametrize("stored", ["", "veto", "far"])
async def test_a_lookup_waits_for_the_encodings_of_its_partition(
    rig: CacheRig, stored: str
) -> None:
    if stored:
        await rig.cache.put(make_entry(stored), "not one@0" if stored == "veto" else "one@90")
    rig.encoder.background_turn = anyio.Event()
    found: list[Lookup] = []

    async def find() -> None:
        found.append(await rig.cache.find_semantic(key("uno@1"), refuse_none))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(put_expected, rig, make_entry("a"), "one@0")
        await until(lambda: ("one@0", True) in rig.encoder.encoded)
        tasks.start_soon(find)
        await until(lambda: ("uno@1", False) in rig.encoder.encoded)
        await anyio.wait_all_tasks_blocked()
        assert found == []
        rig.encoder.background_turn.set()
    (lookup,) = found
    assert lookup.entry is not None
    assert lookup.entry.id == "a"


async def test_a_hit_does_not_wait_for_what_is_still_to_be_encoded(rig: CacheRig) -> None:
    await rig.cache.put(make_entry("a"), "one@0")
    rig.encoder.background_turn = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.cache.put, make_entry("b"), "two@1")
        await until(lambda: ("two@1", True) in rig.encoder.encoded)
        with anyio.fail_after(5):
            lookup = await rig.cache.find_semantic(key("uno@1"), refuse_none)
        rig.encoder.background_turn.set()
    assert lookup.entry is not None
    assert lookup.entry.id == "a"


async def test_nothing_is_waited_for_in_another_partition(rig: CacheRig) -> None:
    rig.encoder.background_turn = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.cache.put, make_entry("a", partition="q"), "one@0")
        await until(lambda: rig.encoder.encoded)
        with anyio.fail_after(5):
            lookup = await rig.cache.find_semantic(key("uno@1"), refuse_none)
        rig.encoder.background_turn.set()
    assert lookup.reason == "empty-partition"
    assert rig.encoder.encoded == [("one@0", True)]


async def test_a_lookup_waits_for_its_partition_no_longer_than_for_its_own_encoding() -> None:
    rig = CacheRig(FaultyStore(), max_wait_s=0.01)
    rig.encoder.background_turn = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.cache.put, make_entry("a"), "one@0")
        await until(lambda: rig.encoder.encoded)
        with anyio.fail_after(5):
            lookup = await rig.cache.find_semantic(key("uno@1"), refuse_none)
        assert rig.index.size() == 0
        rig.encoder.background_turn.set()
    assert lookup.reason == "empty-partition"


@pytest.mark.parametrize("ending", ["encoder", "store", "cancelled"])
async def test_a_lookup_does_not_wait_for_an_entry_that_will_not_come(
    rig: CacheRig, ending: str
) -> None:
    rig.encoder.background_turn = anyio.Event()
    putting = anyio.CancelScope()
    found: list[Lookup] = []

    async def put() -> None:
        with putting:
            await put_expected(rig, make_entry("a"), "one@0")

    async def find() -> None:
        found.append(await rig.cache.find_semantic(key("uno@1"), refuse_none))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(put)
            await until(lambda: rig.encoder.encoded)
            tasks.start_soon(find)
            await until(lambda: ("uno@1", False) in rig.encoder.encoded)
            if ending == "encoder":
                rig.encoder.error = EncoderError("broken")
            elif ending == "store":
                rig.store.failing = {"append"}
            else:
                putting.cancel()
            rig.encoder.background_turn.set()
    assert [lookup.reason for lookup in found] == ["empty-partition"]
    assert (await rig.cache.find_semantic(key("uno@1"), refuse_none)).reason == "empty-partition"


async def test_encodings_are_asked_for_in_the_name_of_the_tenant(rig: CacheRig) -> None:
    await rig.cache.put(make_entry("a"), "one@0", tenant="ann")
    await rig.cache.find_semantic(key("uno@1"), refuse_none, MatchContext(tenant="bob"))
    assert rig.encoder.tenants == ["ann", "bob"]


async def test_a_busy_encoder_is_not_waited_for() -> None:
    rig = CacheRig(FaultyStore(), max_wait_s=0.0)
    await rig.cache.put(make_entry("a"), "one@0")
    rig.encoder.turn = anyio.Event()
    lookup = await rig.cache.find_semantic(key("one@0"), refuse_none)
    assert (lookup.outcome, lookup.reason) == (Outcome.MISS, "encoder-busy")
    assert lookup.encode_s > 0


async def test_a_request_may_wait_longer_or_shorter_than_the_cache_is_set() -> None:
    rig = CacheRig(FaultyStore(), max_wait_s=0.0)
    await rig.cache.put(make_entry("a"), "one@0")
    asked, context = key("one@0"), MatchContext()
    patient = await rig.cache.find_semantic(asked, refuse_none, context, lambda: 60.0)
    assert patient.outcome is Outcome.SEMANTIC
    rig.encoder.turn = anyio.Event()
    hurried = await rig.cache.find_semantic(asked, refuse_none, context, lambda: 0.0)
    assert hurried.reason == "encoder-busy"


async def test_a_prompt_beyond_the_limit_is_too_long(rig: CacheRig) -> None:
    await rig.cache.put(make_entry("a"), "one@0")
    rig.encoder.complete = False
    assert (await rig.cache.find_semantic(key("one@0"), refuse_none)).reason == "too-long"


async def test_a_prompt_with_unknown_words_has_its_own_reason(rig: CacheRig) -> None:
    await rig.cache.put(make_entry("a"), "one@0")
    rig.encoder.complete, rig.encoder.unknown_words = False, True
    assert (await rig.cache.find_semantic(key("one@0"), refuse_none)).reason == "unknown-words"


async def test_a_far_neighbour_is_below_the_threshold_and_is_not_loaded(rig: CacheRig) -> None:
    await rig.cache.put(make_entry("a"), "one@0")
    rig.store.failing = {"load"}
    lookup = await rig.cache.find_semantic(key("uno@80"), refuse_none)
    assert (lookup.reason, lookup.veto) == ("below-threshold", "threshold")
    assert lookup.similarity == pytest.approx(0.1736, abs=1e-3)


async def test_a_neighbour_that_the_policy_finds_too_far_is_below_the_threshold(
    rig: CacheRig,
) -> None:
    await rig.cache.put(make_entry("a"), "one@0")
    lookup = await rig.cache.find_semantic(key("uno@30"), refuse_none)
    assert (lookup.reason, lookup.veto) == ("below-threshold", "threshold")
    assert lookup.similarity == pytest.approx(0.8660, abs=1e-3)


async def test_a_veto_is_reported_with_the_best_similarity(rig: CacheRig) -> None:
    await rig.cache.put(make_entry("a"), "not one@0")
    await rig.cache.put(make_entry("b"), "two@40")
    lookup = await rig.cache.find_semantic(key("uno@10"), refuse_none)
    assert (lookup.outcome, lookup.reason, lookup.veto) == (Outcome.MISS, "veto", "negation")
    assert lookup.similarity == pytest.approx(0.9848, abs=1e-3)


async def test_a_refusal_of_the_request_is_reported_as_the_veto(rig: CacheRig) -> None:
    await rig.cache.put(make_entry("a"), "one@0")
    lookup = await rig.cache.find_semantic(key("uno@0"), lambda _: "max-tokens")
    assert (lookup.reason, lookup.veto) == ("veto", "max-tokens")


@pytest.mark.parametrize(
    ("version", "veto"), [("fake-1", "evidence-damaged"), ("other", "evidence-version")]
)
async def test_evidence_that_is_damaged_or_of_another_policy_is_never_judged(
    rig: CacheRig, version: str, veto: str
) -> None:
    entry = msgspec.structs.replace(
        make_entry("a"), evidence=b"\xff", evidence_version=version, encoder="angles"
    )
    vector = pack_vector(encode_angle("one@0").sentence)
    await rig.store.append([Put(entry=entry, vector=vector)])
    await rig.cache.open()
    lookup = await rig.cache.find_semantic(key("one@0"), refuse_none)
    assert (lookup.reason, lookup.veto) == ("veto", veto)


async def test_an_entry_that_left_the_store_is_skipped_and_forgotten(rig: CacheRig) -> None:
    vector = pack_vector(encode_angle("one@0").sentence)
    rig.index.add(("p",), "left", vector)
    assert (await rig.cache.find_semantic(key("one@0"), refuse_none)).reason == "gone"
    assert rig.index.size() == 0
    rig.index.add(("p",), "left", vector)
    await rig.cache.put(make_entry("a"), "one@5")
    lookup = await rig.cache.find_semantic(key("one@0"), refuse_none)
    assert lookup.entry is not None
    assert lookup.entry.id == "a"


async def test_an_expired_entry_is_not_served(rig: CacheRig) -> None:
    await rig.cache.put(make_entry("a", expires=rig.now + 5), "one@0")
    rig.now += 5
    assert rig.cache.peek_exact("a") is None
    assert (await rig.cache.find_semantic(key("one@0"), refuse_none)).reason == "gone"


class CountingPolicy(FakeMatchPolicy):
    """Notes what it was asked to parse."""

    def __init__(self) -> None:
        super().__init__()
        self.parsed: list[str] = []

    def prepare(self, text: str, encoding: Encoding, task: str = "") -> str:
        self.parsed.append(text)
        return text


async def test_a_prompt_that_was_looked_up_is_not_parsed_again_to_be_stored() -> None:
    policy = CountingPolicy()
    cache = SemanticCache(
        FaultyStore(),
        FaissIndex(DIMENSION),
        FakeEncoder(),
        policy,
        hot_bytes=1 << 20,
        outage_ttl_s=30.0,
        max_wait_s=60.0,
        clock=lambda: 1000.0,
        observers=Recorder(),
    )
    await cache.open()
    await cache.put(make_entry("a"), "one@0")
    assert (await cache.find_semantic(key("uno@40"), refuse_none)).reason == "below-threshold"
    await cache.put(make_entry("b"), "uno@40")
    assert policy.parsed == ["one@0", "uno@40"]
    for number in range(MOST_PARSED):
        await cache.put(make_entry(f"n{number}"), f"{number}@90")
    await cache.put(make_entry("c"), "uno@40")
    assert policy.parsed.count("uno@40") == 2
    await cache.aclose()
