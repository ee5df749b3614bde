"""Measures: what is learned about upstreams, and from which others it is borrowed."""

from __future__ import annotations

import math
import random

import msgspec
import pytest

from headstart.policies.routing.measures import (
    BUCKETS,
    ENOUGH,
    OUTPUT_TOKENS,
    Measures,
    UpstreamModel,
    bucket_of,
)
from headstart.policies.routing.schedule import ExpectedPace

A, B = UpstreamModel("a", "m"), UpstreamModel("b", "m")


def taught(
    ttft_s: float, *, key: UpstreamModel = A, prompt: int = 100, times: int = 50
) -> Measures:
    return teach(Measures(), ttft_s, key=key, prompt=prompt, times=times)


def teach(
    measures: Measures, ttft_s: float, *, key: UpstreamModel = A, prompt: int = 100, times: int = 50
) -> Measures:
    for number in range(times):
        measures.first(key, prompt, ttft_s, number * 0.1)
    return measures


def test_buckets_grow_fourfold_and_hold_every_length() -> None:
    assert [bucket_of(n) for n in (0, 256, 257, 1024, 65536, 10**7)] == [0, 0, 1, 1, 4, 5]
    assert bucket_of(BUCKETS[-1] + 1) == len(BUCKETS)


def test_nothing_is_known_of_an_upstream_that_was_never_asked() -> None:
    measures = Measures()
    assert measures.ttft_s(A, 100, 0.95, 0.0) is None
    assert measures.first_token(A, 100, 0.0).mean_s is None
    assert measures.tokens_per_s(A) is None
    assert measures.first_token(A, 100, 0.0).samples == measures.in_flight(A) == 0
    assert measures.first_token_limit_s(A, 100, 0.0) == 30.0
    assert measures.stall_limits_s(A)[0] == 30.0
    assert measures.expected_length("chat") == OUTPUT_TOKENS


def test_each_length_of_prompt_has_its_own_times() -> None:
    measures = teach(taught(0.2), 4.0, prompt=50_000)
    assert measures.ttft_s(A, 100, 0.5, 5.0) == pytest.approx(0.2, rel=0.05)
    assert measures.ttft_s(A, 50_000, 0.5, 5.0) == pytest.approx(4.0, rel=0.05)
    assert measures.prefill_s(A, 50_000, 5.0) == pytest.approx(3.8, rel=0.06)


def test_a_bucket_of_few_samples_borrows_from_the_nearest_that_has_enough() -> None:
    measures = teach(teach(taught(0.2), 9.0, prompt=100_000), 1.0, prompt=500, times=ENOUGH - 10)
    assert measures.ttft_s(A, 500, 0.5, 5.0) == pytest.approx(0.2, rel=0.05)
    assert measures.ttft_s(A, 20_000, 0.5, 5.0) == pytest.approx(9.0, rel=0.05)
    assert measures.prefill_s(A, 500, 5.0) == 0.0


def test_where_none_has_enough_the_one_with_most_samples_speaks() -> None:
    measures = teach(taught(0.2, times=3), 1.0, prompt=500, times=6)
    assert measures.ttft_s(A, 100, 0.5, 1.0) == pytest.approx(1.0, rel=0.05)
    assert measures.first_token(A, 100, 1.0).samples == 6


def test_three_slow_calls_in_a_row_raise_the_expectation_at_once_and_it_comes_back() -> None:
    measures = taught(0.2, times=200)
    usual = measures.first_token(A, 100, 20.0).mean_s
    assert usual == pytest.approx(0.2, rel=0.05)
    measures.first(A, 100, 2.0, 20.0)
    measures.first(A, 100, 2.0, 20.0)
    assert measures.first_token(A, 100, 20.0).mean_s == pytest.approx(usual, rel=0.1)
    measures.censored(A, 100, 2.0, 20.1)
    assert measures.first_token(A, 100, 20.1).mean_s == pytest.approx(2.0, rel=0.15)
    assert measures.first_token(A, 100, 200.0).mean_s == pytest.approx(usual, rel=0.15)


def test_calls_that_pile_up_beyond_the_usual_raise_the_expectation() -> None:
    measures, now = taught(0.2), 5.0
    for _ in range(200):
        measures.began(A, now)
        measures.ended(A)
    calm = measures.first_token(A, 100, now).mean_s or 0.0
    for _ in range(30):
        measures.began(A, now)
    assert measures.in_flight(A) == 30
    assert (measures.first_token(A, 100, now).mean_s or 0.0) > 3 * calm
    for _ in range(31):
        measures.ended(A)
    assert measures.in_flight(A) == 0
    assert measures.first_token(A, 100, now).mean_s == pytest.approx(calm)


def test_a_prompt_is_expected_to_count_as_those_before_it_did() -> None:
    measures = Measures()
    assert measures.prompt_tokens(A, 120) == 120
    measures.prompt(A, 100, 80, 0.0)
    measures.prompt(A, 300, 240, 1.0)
    measures.prompt(A, 50, 0, 2.0)  # not reported
    assert measures.prompt_tokens(A, 120) == 96
    assert measures.prompt_tokens(B, 120) == 120


def test_the_usual_number_in_flight_costs_nothing() -> None:
    measures, noise = taught(0.2), random.Random(1)
    for number in range(2000):
        measures.began(A, number * 0.1)
        if measures.in_flight(A) > 40 or (measures.in_flight(A) > 30 and noise.random() < 0.5):
            measures.ended(A)
    assert measures.first_token(A, 100, 200.0).mean_s == pytest.approx(0.2, rel=0.05)


def test_speed_is_tokens_over_their_time_and_a_burst_says_nothing() -> None:
    measures = Measures()
    measures.speed(A, 500, 0.0, 0.0)
    measures.speed(A, 500, 0.0004, 0.0)
    measures.speed(A, 3, 0.5, 0.0)
    assert measures.tokens_per_s(A) is None
    measures.speed(A, 100, 2.0, 0.0)
    measures.speed(A, 900, 8.0, 0.0)
    assert measures.tokens_per_s(A) == pytest.approx(100.0)


def test_a_limit_on_silence_follows_what_was_measured() -> None:
    measures = taught(20.0)
    measures.gaps(A, [1.5] * 200)
    assert measures.first_token_limit_s(A, 100, 5.0) == pytest.approx(80.0, rel=0.06)
    assert measures.stall_limits_s(A)[0] == pytest.approx(15.0, rel=0.06)


def test_an_answers_length_is_its_routes_then_that_of_all() -> None:
    measures = Measures()
    for _ in range(10):
        measures.length("code", 900, 0.0)
        measures.length("", 100, 0.0)
    assert measures.expected_length("code") == pytest.approx(900)
    assert measures.expected_length("never seen") == pytest.approx(500)


def test_memory_is_bounded_and_the_least_recently_used_leave() -> None:
    measures = Measures()
    for number in range(1000):
        measures.first(A, 100, 0.2, 0.0)
        measures.first(UpstreamModel("a", f"made up {number}"), 100, 0.2, 0.0)
        measures.length(f"route {number}", 10, 0.0)
    assert measures.first_token(A, 100, 0.0).samples == 1000
    assert measures.first_token(UpstreamModel("a", "made up 0"), 100, 0.0).samples == 0
    assert measures.first_token(UpstreamModel("a", "made up 999"), 100, 0.0).samples == 1


def test_made_up_models_put_none_out_that_answers_whole() -> None:
    measures = Measures()
    measures.prompt(A, 100, 130, 0.0)
    for number in range(1000):
        measures.began(UpstreamModel("a", f"made up {number}"), 0.0)
    assert measures.prompt_tokens(A, 1000) == 1300


def test_a_snapshot_without_counts_of_prompts_brings_back_the_rest() -> None:
    older = {
        "format": 1,
        "figures": [[["a", "m"], {}, [[], [], []], [500.0, 10.0]]],
        "lengths": {},
    }
    measures = Measures()
    assert measures.load(msgspec.msgpack.encode(older), 0.0)
    assert measures.tokens_per_s(A) == 50.0
    assert measures.prompt_tokens(A, 1000) == 1000


def test_a_snapshot_brings_back_what_was_learned() -> None:
    noise, measures = random.Random(2), Measures()
    for number in range(300):
        measures.first(A, 100, 0.3 * math.exp(noise.gauss(0, 0.5)), number)
        measures.speed(A, 100, 1.0, number)
        measures.gaps(A, [0.8])
        measures.length("chat", 120, number)
        measures.prompt(A, 100, 130, number)
    measures.censored(B, 100, 4.0, 300.0)
    data, loaded = measures.saved(300.0), Measures()
    loaded.began(A, 7.0)
    assert loaded.load(data, 7.0)
    for share in (0.5, 0.95):
        assert loaded.ttft_s(A, 100, share, 7.0) == pytest.approx(
            measures.ttft_s(A, 100, share, 300.0), rel=0.02
        )
    assert loaded.tokens_per_s(A) == pytest.approx(100.0)
    assert loaded.stall_limits_s(A)[0] == pytest.approx(8.0, rel=0.06)
    assert loaded.expected_length("chat") == pytest.approx(120)
    assert loaded.prompt_tokens(A, 1000) == 1300
    assert loaded.first_token(B, 100, 7.0).samples == 1
    assert loaded.in_flight(A) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no snapshot",
        msgspec.msgpack.encode({"format": 99}),
        msgspec.msgpack.encode({"format": 1}),
        msgspec.msgpack.encode(
            {
                "format": 1,
                "figures": [[["a", "m"], {0: [[9999], [1.0], [0.0]]}, [[], [], []], [0.0, 0.0]]],
                "lengths": {},
            }
        ),
    ],
)
def test_a_snapshot_of_something_else_is_left_alone(data: bytes) -> None:
    measures = taught(0.2)
    assert not measures.load(data, 0.0)
    assert measures.first_token(A, 100, 4.9).samples == 50


def test_a_stall_is_told_sooner_once_gaps_are_known_but_not_where_tools_are_called() -> None:
    measures = Measures()
    measures.gaps(A, [0.02] * 200)
    assert measures.stall_limits_s(A)[0] == 5.0
    assert measures.stall_limits_s(A)[1] == 30.0


def test_a_stream_lags_if_it_drips_and_not_if_it_pauses_or_is_a_little_slow() -> None:
    def lags(tokens: float, waits: list[float]) -> bool:
        pace = ExpectedPace(50.0)
        told = [pace.lags(tokens, each) for each in waits]
        return any(told)

    assert lags(2.0, [1.0] * 12)
    assert not lags(10.0, [1.0] * 12)
    assert not lags(1.0, [0.1] * 20 + [9.0] + [0.1] * 20), "it thinks"
    assert not lags(1.0, [4.0] * 4), "so few pieces are a silence"
    assert not lags(0.0, [1.0] * 12), "pings say nothing"
