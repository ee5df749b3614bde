"""Stages that fail cost a request the cache and nothing else."""

from __future__ import annotations

import anyio
import pytest

from headstart.decisions import Outcome
from headstart.embeddings.index import FaissIndex
from headstart.errors import EncoderError
from support.caches import House, key, make_cache, refuse_none
from support.fakes import DIMENSION, FaultyStore, make_entry

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]


async def test_a_failing_encoder_makes_a_lookup_a_miss(house: House) -> None:
    await house.cache.put(make_entry("a"), "one@0")
    house.encoder.error = EncoderError("broken")
    lookup = await house.cache.find_semantic(key("one@0"), refuse_none)
    assert (lookup.outcome, lookup.reason) == (Outcome.MISS, "encoder-error")
    assert house.failures == [("encoder", "EncoderError")]


async def test_an_index_that_fails_makes_a_lookup_a_miss() -> None:
    house = House(FaultyStore())
    wrong = FaissIndex(DIMENSION + 1)
    wrong.add("p", "a", bytes(2 * DIMENSION + 2))
    cache = make_cache(house.store, wrong, house.encoder, house.recorder)
    assert (await cache.find_semantic(key("one@0"), refuse_none)).reason == "index-error"
    assert house.failures == [("index", "VectorIndexError")]


async def test_a_store_that_fails_makes_a_semantic_lookup_a_miss() -> None:
    house = House(FaultyStore(), hot_bytes=0)
    await house.cache.put(make_entry("a"), "one@0")
    house.store.failing = {"load"}
    assert (await house.cache.find_semantic(key("one@0"), refuse_none)).reason == "store-error"
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


async def test_a_full_encoder_queue_is_not_lengthened_by_the_tenant_that_filled_it(
    house: House,
) -> None:
    house.encoder.full = {"flood"}
    await house.cache.put(make_entry("a", exact="x"), "one@0", tenant="flood")
    assert house.encoder.encoded == []
    assert await house.store.find("x") is not None
    await house.cache.put(make_entry("b", exact="y"), "one@0", tenant="other")
    assert "b" in house.index
    assert house.encoder.tenants == ["other"]


async def test_an_entry_that_the_store_refuses_stays_hot_as_long_as_in_an_outage(
    house: House,
) -> None:
    house.store.failing = {"append"}
    await house.cache.put(make_entry("a", exact="x", created=house.now), "one@0")
    house.now += 29.0
    assert house.cache.peek_exact("x") is not None
    assert house.index.size() == 0
    assert house.failures == [("store", "StoreError")]
    house.now += 1.0
    assert house.cache.peek_exact("x") is None


async def test_new_entries_are_encoded_in_the_background(house: House) -> None:
    await house.cache.put(make_entry("a"), "one@0")
    await house.cache.find_semantic(key("uno@0"), refuse_none)
    assert house.encoder.encoded == [("one@0", True), ("uno@0", False)]


async def test_cancelling_a_lookup_is_not_a_miss(house: House) -> None:
    await house.cache.put(make_entry("a"), "one@0")
    house.encoder.turn = anyio.Event()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await house.cache.find_semantic(key("one@0"), refuse_none)
    assert scope.cancelled_caught
    assert house.failures == []
