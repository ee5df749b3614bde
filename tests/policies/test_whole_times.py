"""Answers that are not streamed teach routing, on simulated providers with known figures."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from headstart.policies.routing.measures import Measures, UpstreamModel
from headstart.policies.routing.ordering import (
    Availability,
    CallShape,
    by_speed,
    predict_call,
)
from headstart.policies.routing.whole_times import WholeTimes


class Truth(NamedTuple):
    first_s: float
    tokens_per_s: float

    def draw(self, tokens: int, rng: random.Random) -> tuple[float, float]:
        first_s = self.first_s * rng.lognormvariate(-0.08, 0.4)
        return first_s, tokens / self.tokens_per_s * rng.lognormvariate(-0.005, 0.1)


QUICK = Truth(0.2, 40.0)
"""Sooner on short answers."""
STRONG = Truth(1.2, 120.0)
"""Sooner on long answers: from 60 tokens on."""
PAIR = {UpstreamModel("quick", "m"): QUICK, UpstreamModel("strong", "m"): STRONG}


def expected_order(measures: Measures, tokens: float, now: float) -> str:
    estimates = [
        predict_call(key.upstream, key, CallShape(100, tokens), Availability(), measures, now)
        for key in PAIR
    ]
    return estimates[by_speed(estimates, draw=lambda: 0.999)[0]].name


def play(share_streamed: float, *, calls: int = 400, seed: int = 1) -> Measures:
    measures, rng = Measures(), random.Random(seed)
    for number in range(calls):
        for key, truth in PAIR.items():
            tokens = round(rng.lognormvariate(4.5, 0.8)) + 1
            first_s, decoding_s = truth.draw(tokens, rng)
            streamed = rng.random() < share_streamed
            measures.began(key, number)
            if streamed:
                measures.first(key, 100, first_s, number)
            measures.answered(
                key,
                number,
                route_or_endpoint="r",
                estimated=100,
                reported=100,
                completion=tokens,
                decoding_s=decoding_s if streamed else 0.0,
                gaps=(),
                whole_s=0.0 if streamed else first_s + decoding_s,
            )
    return measures


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share_streamed", [0.0, 0.01, 0.5, 1.0])
def test_each_length_goes_to_the_provider_that_is_truly_faster(
    share_streamed: float, seed: int
) -> None:
    measures = play(share_streamed, seed=seed)
    assert expected_order(measures, 10, 400.0) == "quick"
    assert expected_order(measures, 400, 400.0) == "strong"


@pytest.mark.parametrize("truth", [QUICK, STRONG])
def test_first_token_and_speed_are_solved_from_whole_times(truth: Truth) -> None:
    whole, rng = WholeTimes(900.0), random.Random(7)
    for number in range(500):
        tokens = round(rng.lognormvariate(4.5, 0.8)) + 1
        whole.add(tokens, sum(truth.draw(tokens, rng)), number)
    first_s, token_s = whole.line()
    assert first_s == pytest.approx(truth.first_s, abs=0.15)
    assert 1 / token_s == pytest.approx(truth.tokens_per_s, rel=0.1)


def test_streams_decide_alone_where_there_are_enough() -> None:
    mixed, key = Measures(), UpstreamModel("quick", "m")
    for number in range(10):
        mixed.first(key, 100, 0.2, number)
        mixed.speed(key, 100, 2.0, number)
    before = mixed.first_token(key, 100, 10.0)
    for _ in range(100):
        mixed.whole(key, [(100, 50, 30.0, 10.0)])
    assert mixed.first_token(key, 100, 10.0) == before


def test_answers_of_one_length_give_the_right_time_of_that_length() -> None:
    whole = WholeTimes(900.0)
    for number in range(50):
        whole.add(100, 2.0, number)
    first_s, token_s = whole.line()
    assert first_s + 100 * token_s == pytest.approx(2.0)
    assert first_s >= 0.0


def test_answers_without_tokens_have_a_time_and_no_speed() -> None:
    whole = WholeTimes(900.0)
    for number in range(20):
        whole.add(0, 0.25, number)
    first_s, token_s = whole.line()
    assert (first_s, token_s) == pytest.approx((0.25, 0.0))


def test_one_stall_does_not_bend_the_line() -> None:
    whole, rng = WholeTimes(900.0), random.Random(3)
    for number in range(100):
        tokens = rng.randint(20, 300)
        whole.add(tokens, sum(STRONG.draw(tokens, rng)), number)
    whole.add(20, 600.0, 100)
    first_s, token_s = whole.line()
    assert first_s + 100 * token_s == pytest.approx(1.2 + 100 / 120, rel=0.1)


def test_the_line_follows_a_provider_that_becomes_slower() -> None:
    whole = WholeTimes(900.0)
    for number in range(200):
        whole.add(50 + number % 100, 1.0 + (50 + number % 100) / 100, number)
    for number in range(200):
        whole.add(50 + number % 100, 2.0 + (50 + number % 100) / 50, 9000.0 + number)
    first_s, token_s = whole.line()
    assert first_s + 100 * token_s == pytest.approx(4.0, rel=0.05)


def test_a_snapshot_keeps_what_whole_times_taught() -> None:
    measures, restored = play(0.0), Measures()
    assert restored.load(measures.saved(400.0), 0.0)
    key = UpstreamModel("strong", "m")
    old, new = measures.first_token(key, 100, 400.0), restored.first_token(key, 100, 0.0)
    assert new.mean_s == pytest.approx(old.mean_s, rel=1e-3)
    assert new.tokens_per_s == pytest.approx(old.tokens_per_s, rel=1e-3)
    assert new.samples == old.samples


def test_answers_of_one_length_are_taken_for_tokens_alone() -> None:
    times = WholeTimes(100.0)
    for _ in range(20):
        times.add(100, 2.0, 0.0)
    assert times.line() == pytest.approx((0.0, 0.02))


def test_a_small_difference_of_lengths_tells_little() -> None:
    times = WholeTimes(100.0)
    times.add(100, 1.0, 0.0)
    times.add(102, 1.5, 0.0)
    first_s, token_s = times.line()
    assert first_s + 101 * token_s == pytest.approx(1.25)
    assert token_s == pytest.approx(1.25 / 101, rel=0.1)
    times.add(100, 1.5, 0.0)
    times.add(102, 1.0, 0.0)
    assert times.line()[1] == pytest.approx(1.25 / 101, rel=0.1)
