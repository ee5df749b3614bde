"""The hot tier: bounds, expiry and recency."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest

from headstart.embeddings.replica import DECODED, ENTRY_OVERHEAD, LONGEST_DECODED, HotTier
from headstart.types import Completion, Entry
from support.fakes import make_entry

NOW = 100.0


@pytest.fixture
def hot() -> HotTier:
    return HotTier(1 << 20, lambda: NOW)


def room_for(count: int) -> int:
    return count * (len(msgspec.msgpack.encode(make_entry("a"))) + ENTRY_OVERHEAD)


def test_an_entry_is_found_by_exact_key_and_by_id(hot: HotTier) -> None:
    entry = make_entry("a", exact="x")
    hot.put(entry)
    assert hot.find("x") is hot.get("a") is entry
    assert hot.find("a") is None
    assert "a" in hot


def test_a_long_entry_is_kept_only_once(hot: HotTier) -> None:
    entry = make_entry("a", exact="x", query="a" * LONGEST_DECODED)
    hot.put(entry)
    assert hot.find("x") == entry
    assert hot.find("x") is not entry


def test_the_least_recently_used_leaves_first() -> None:
    hot = HotTier(room_for(3), lambda: NOW)
    for id in "abc":
        hot.put(make_entry(id))
    hot.find("a")
    hot.put(make_entry("d"))
    assert [id for id in "abcd" if id in hot] == ["a", "c", "d"]
    assert hot.bytes == room_for(3)


def test_putting_an_entry_again_makes_it_recent() -> None:
    hot = HotTier(room_for(2), lambda: NOW)
    first = make_entry("a")
    for entry in (first, make_entry("b"), first, make_entry("c")):
        hot.put(entry)
    assert [id for id in "abc" if id in hot] == ["a", "c"]


def test_reading_by_id_does_not_make_an_entry_recent() -> None:
    hot = HotTier(room_for(2), lambda: NOW)
    hot.put(make_entry("a"))
    hot.put(make_entry("b"))
    hot.get("a")
    hot.put(make_entry("c"))
    assert "a" not in hot


def test_a_new_entry_under_an_exact_key_replaces_the_old(hot: HotTier) -> None:
    hot.put(make_entry("a", exact="x"))
    hot.put(make_entry("b", exact="x"))
    assert hot.get("a") is None
    assert hot.find("x") is hot.get("b")
    assert len(hot) == 1


def test_an_expired_entry_is_never_returned() -> None:
    now = 10.0
    hot = HotTier(1 << 20, lambda: now)
    hot.put(make_entry("a", expires=11.0))
    hot.put(make_entry("b", expires=11.0))
    assert hot.find("a") is not None
    now = 11.0
    assert hot.find("a") is None
    assert hot.get("b") is None
    assert (len(hot), hot.bytes) == (0, 0)


def test_an_entry_larger_than_the_tier_is_not_kept_and_displaces_nothing() -> None:
    hot = HotTier(room_for(2), lambda: NOW)
    hot.put(make_entry("a"))
    hot.put(make_entry("b", text="x" * 10_000))
    assert [id for id in "ab" if id in hot] == ["a"]


def test_an_entry_that_cannot_be_encoded_is_not_kept(hot: HotTier) -> None:
    entry = make_entry("a")
    assert isinstance(entry.answer, Completion)
    answer = msgspec.structs.replace(entry.answer, usage={"prompt_tokens": 1 << 80})
    hot.put(msgspec.structs.replace(entry, answer=answer))
    assert len(hot) == 0


def test_an_entry_is_the_same_when_only_its_encoding_is_left(hot: HotTier) -> None:
    first = make_entry("first", exact="x", text="the answer", expires=NOW + 9.0)
    hot.put(first)
    for number in range(DECODED):
        hot.put(make_entry(f"{number}"))
    again = hot.get("first")
    assert again is not first
    assert again == first
    assert hot.find("x") is again
    assert hot.find("x") is hot.get("first")


def test_the_estimate_is_near_the_memory_that_the_tier_takes() -> None:
    hot = HotTier(1 << 30, lambda: NOW)
    encode, decode = msgspec.msgpack.encode, msgspec.msgpack.Decoder(Entry).decode
    texts = {f"{number:026}": "word " * (number % 500) for number in range(4000)}
    packed = [encode(make_entry(id, exact=id * 2, text=text)) for id, text in texts.items()]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for value in packed:
            hot.put(decode(value))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert hot.bytes == pytest.approx(after - before, rel=0.15)


def test_discarding_frees_what_an_entry_held(hot: HotTier) -> None:
    hot.put(make_entry("a", exact="x"))
    hot.put(make_entry("b"))
    hot.discard(["a", "unknown"])
    assert hot.find("x") is None
    assert hot.bytes == room_for(1)
    hot.clear()
    assert (len(hot), hot.bytes) == (0, 0)


def test_while_the_log_cannot_be_read_only_exact_repeats_are_served_and_not_for_long() -> None:
    now = 1000.0
    hot = HotTier(1 << 20, lambda: now, outage_ttl_s=30.0)
    hot.put(make_entry("old", exact="old", created=10.0))
    hot.doubt()
    now += 20.0
    hot.doubt()  # a second failure begins no new time
    hot.put(make_entry("new", exact="new", created=now))
    assert (hot.get("old"), hot.get("new")) == (None, None)
    now = 1030.0
    assert hot.find("old") is not None
    now = 1030.1
    assert hot.find("old") is None
    assert hot.find("new") is not None
    now = 1050.1
    assert hot.find("new") is None
    hot.confirm()
    assert hot.find("old") is hot.get("old") is not None


def test_a_clock_that_is_put_back_does_not_lengthen_an_outage() -> None:
    now = 1000.0
    hot = HotTier(1 << 20, lambda: now, outage_ttl_s=30.0)
    hot.put(make_entry("old", exact="old", created=10.0))
    hot.doubt()
    hot.put(make_entry("new", exact="new", created=now))
    now = 20.1
    hot.put(make_entry("newest", exact="newest", created=now))
    now = 50.1
    assert [hot.find("old"), hot.find("new")] == [None, None]
    assert hot.find("newest") is not None


def test_without_time_for_an_outage_nothing_is_served_in_one() -> None:
    hot = HotTier(1 << 20, lambda: NOW)
    hot.put(make_entry("a", created=NOW - 1.0))
    hot.doubt()
    assert hot.find("a") is not None  # the failure was noted at this moment
    hot = HotTier(1 << 20, iter((NOW, NOW + 1.0)).__next__)
    hot.put(make_entry("a", created=NOW - 1.0))
    hot.doubt()
    assert hot.find("a") is None
