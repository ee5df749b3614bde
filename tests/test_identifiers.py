"""ULIDs: their form, their order and their randomness."""

from __future__ import annotations

from headstart.types import new_ulid


def test_the_time_of_the_specifications_example_comes_first() -> None:
    assert new_ulid(lambda: 1469918176.385)[:10] == "01ARYZ6S41"


def test_random_bits_fill_the_rest_five_to_a_letter() -> None:
    assert new_ulid(lambda: 0.0, bytes) == "0" * 26
    assert new_ulid(lambda: 0.0, lambda size: b"\xff" * size) == "0" * 10 + "Z" * 16
    assert len({new_ulid(lambda: 0.0) for _ in range(100)}) == 100


def test_later_ids_sort_after_earlier_ones() -> None:
    times = [0.001, 0.032, 1.0, 1e9, 281474976710.0]
    ids = [new_ulid(iter([now]).__next__) for now in times]
    assert ids == sorted(ids)
    assert {len(each) for each in ids} == {26}
