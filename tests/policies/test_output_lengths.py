from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from headstart.policies.output.answer_limits import (
    ENOUGH,
    LEAST_LAST,
    LEAST_LIMIT,
    MOST_CONTINUATIONS,
    LengthKey,
    Lengths,
    next_limit,
)

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = LengthKey("route", "m")


def learned(count: int, *, seed: int = 1) -> Lengths:
    lengths, draw = Lengths(), random.Random(seed)
    for _ in range(count):
        lengths.add(KEY, round(draw.lognormvariate(5.5, 0.6)))
    return lengths


def test_no_limit_is_learned_from_too_few_answers() -> None:
    assert learned(ENOUGH - 1).limit(KEY, "guard") is None
    assert learned(ENOUGH).limit(KEY, "guard") is not None
    assert learned(ENOUGH).limit(LengthKey("route", "other"), "guard") is None


def test_limits_follow_the_quantiles_of_what_was_seen() -> None:
    lengths = learned(5000)
    # exp(5.5 + 0.6 z): 1.5 x p99 = 1482, p95 = 656
    assert lengths.limit(KEY, "guard") == pytest.approx(1482, rel=0.1)
    assert lengths.limit(KEY, "tight") == pytest.approx(656, rel=0.1)
    assert lengths.limit(KEY, 100) == 100


def test_the_last_limit_is_far_beyond_what_was_seen() -> None:
    lengths = Lengths()
    for _ in range(5000):
        lengths.add(KEY, 3000)
    assert lengths.last_limit(KEY) == pytest.approx(8 * 3000, rel=0.1)
    assert learned(5000).last_limit(KEY) == LEAST_LAST
    assert learned(ENOUGH - 1).last_limit(KEY) is None
    assert Lengths().last_limit(KEY) is None


def _is_whole(lengths: Lengths, tokens: int) -> bool:
    """Tell whether an answer of this length reaches its client whole. If so, it is learned."""
    limit = lengths.limit(KEY, "guard")
    room = limit
    for number in range(1, MOST_CONTINUATIONS + 1):
        more = next_limit(number, limit or 0, lengths.last_limit(KEY), "The words so far.")
        room = None if room is None or more is None else room + more
    whole = room is None or tokens <= room
    if whole:
        lengths.add(KEY, tokens)
    return whole


def _few_long_ones(draw: random.Random) -> list[int]:
    return [2000 if draw.random() < 0.005 else draw.randint(2, 8) for _ in range(6000)]


def _long_from_now_on(draw: random.Random) -> list[int]:
    return [draw.randint(2, 8) for _ in range(3000)] + [draw.randint(900, 2500) for _ in range(900)]


def _growing(draw: random.Random) -> list[int]:
    return [round(draw.lognormvariate(3.4 + n / 2000, 0.4)) for n in range(9000)]


def _heavy_tail(draw: random.Random) -> list[int]:
    return [min(15_000, round(50 / (1 - draw.random()))) for _ in range(6000)]


@pytest.mark.parametrize("stream", [_few_long_ones, _long_from_now_on, _growing, _heavy_tail])
def test_no_answer_of_a_usual_length_is_lost_whatever_came_before(
    stream: Callable[[random.Random], list[int]],
) -> None:
    lengths = Lengths()
    assert all(_is_whole(lengths, tokens) for tokens in stream(random.Random(5)))


def test_a_number_needs_no_learning() -> None:
    assert Lengths().limit(KEY, 300) == 300


def test_short_answers_are_not_limited_to_a_word() -> None:
    lengths = Lengths()
    for _ in range(ENOUGH):
        lengths.add(KEY, 1)
    assert lengths.limit(KEY, "guard") == LEAST_LIMIT


def test_old_lengths_are_forgotten() -> None:
    lengths = learned(5000)
    for _ in range(40_000):
        lengths.add(KEY, 4000)
    limit = lengths.limit(KEY, "tight")
    assert limit is not None
    assert limit == pytest.approx(4000, rel=0.05)


def test_a_limit_that_was_refused_is_not_tried_again() -> None:
    lengths = learned(ENOUGH)
    lengths.refuse(KEY)
    assert lengths.limit(KEY, "guard") is None
    assert lengths.limit(KEY, 100) is None


def test_learned_lengths_survive_a_restart() -> None:
    lengths, restarted = learned(2000), Lengths()
    assert restarted.load(lengths.saved())
    assert restarted.limit(KEY, "guard") == pytest.approx(lengths.limit(KEY, "guard"), rel=0.01)
    restarted.add(KEY, 100)


@pytest.mark.parametrize("data", [b"", b"\x81\xa6format\x63", b"\xc1"])
def test_a_snapshot_of_another_version_is_left_alone(data: bytes) -> None:
    assert not Lengths().load(data)


def test_memory_is_bounded() -> None:
    lengths = learned(ENOUGH)
    for number in range(300):
        lengths.add(LengthKey("route", str(number)), 10)
    assert lengths.limit(KEY, "guard") is None
