"""When a stage fails, the request goes on without the cache."""

from __future__ import annotations

import anyio
import pytest

from headstart.decisions import Outcome
from headstart.embeddings.index import FaissIndex
from headstart.errors import EncoderError
from support.caches import CacheRig, key, make_cache, refuse_none
from support.fakes import DIMENSION, FaultyStore, make_entry

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]


async def test_a_failing_encoder_makes_a_lookup_a_miss(rig: CacheRig) -> None:
    await rig.cache.put(make_entry("a"), "one@0")
    rig.encoder.error = EncoderError("broken")
    lookup = await rig.cache.find_semantic(key("one@0"), refuse_none)
    assert (lookup.outcome, lookup.reason) == (Outcome.MISS, "encoder-error")
    assert rig.failures == [("encoder", "EncoderError")]


async def test_an_index_that_fails_makes_a_lookup_a_miss() -> None:
    rig = CacheRig(FaultyStore())
    wrong = FaissIndex(DIMENSION + 1)
    wrong.add(("p",), "a", bytes(2 * DIMENSION + 2))
    cache = make_cache(rig.store, wrong, rig.encoder, rig.recorder)
    assert (await cache.find_semantic(key("one@0"), refuse_none)).reason == "index-error"
    assert rig.failures == [("index", "VectorIndexError")]


async def test_a_store_that_fails_makes_a_semantic_lookup_a_miss() -> None:
    rig = CacheRig(FaultyStore(), hot_bytes=0)
    await rig.cache.put(make_entry("a"), "one@0")
    rig.store.failing = {"load"}
    assert (await rig.cache.find_semantic(key("one@0"), refuse_none)).reason == "store-error"
    assert rig.failures == [("store", "StoreError")]


async def test_an_entry_whose_encoding_fails_is_stored_for_exact_lookups(rig: CacheRig) -> None:
    rig.encoder.error = EncoderError("broken")
    await rig.cache.put(make_entry("a", exact="x"), "one@0")
    assert await rig.store.find("x") is not None
    assert rig.index.size() == 0
    assert rig.failures == [("encoder", "EncoderError")]


async def test_an_entry_beyond_the_encoders_limit_is_stored_for_exact_lookups(
    rig: CacheRig,
) -> None:
    rig.encoder.complete = False
    await rig.cache.put(make_entry("a", exact="x"), "one@0")
    assert await rig.store.find("x") is not None
    assert rig.index.size() == 0


async def test_a_full_encoder_queue_is_not_lengthened_by_the_tenant_that_filled_it(
    rig: CacheRig,
) -> None:
    rig.encoder.full = {"flood"}
    await rig.cache.put(make_entry("a", exact="x"), "one@0", tenant="flood")
    assert rig.encoder.encoded == []
    assert await rig.store.find("x") is not None
    await rig.cache.put(make_entry("b", exact="y"), "one@0", tenant="other")
    assert "b" in rig.index
    assert rig.encoder.tenants == ["other"]


async def test_an_entry_that_the_store_refuses_stays_hot_as_long_as_in_an_outage(
    rig: CacheRig,
) -> None:
    rig.store.failing = {"append"}
    await rig.cache.put(make_entry("a", exact="x", created=rig.now), "one@0")
    rig.now += 29.0
    assert rig.cache.peek_exact("x") is not None
    assert rig.index.size() == 0
    assert rig.failures == [("store", "StoreError")]
    rig.now += 1.0
    assert rig.cache.peek_exact("x") is None


async def test_new_entries_are_encoded_in_the_background(rig: CacheRig) -> None:
    await rig.cache.put(make_entry("a"), "one@0")
    await rig.cache.find_semantic(key("uno@0"), refuse_none)
    assert rig.encoder.encoded == [("one@0", True), ("uno@0", False)]


async def test_cancelling_a_lookup_is_not_a_miss(rig: CacheRig) -> None:
    await rig.cache.put(make_entry("a"), "one@0")
    rig.encoder.turn = anyio.Event()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await rig.cache.find_semantic(key("one@0"), refuse_none)
    assert scope.cancelled_caught
    assert rig.failures == []
