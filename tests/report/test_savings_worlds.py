"""The savings in worlds whose truth is known. The draws are seeded, so each run is the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.savings import WORLDS, play

RUNS = 25
BY_NAME = {world.name: replace(world, requests=600) for world in WORLDS}
TYPICAL = (
    "ordinary, holdout 10 %",
    "heavy tail",
    "outliers",
    "twice as fast at the end",
    "questions differ",
    "lengths vary",
    "prefix cache, holdout 10 %",
    "mixed modes",
    "slow lookup",
)


@pytest.mark.parametrize("name", TYPICAL)
def test_sums_are_right_on_average_and_intervals_contain_the_truth(name: str) -> None:
    found = play(BY_NAME[name], RUNS)
    assert found["disagree"] <= 0.2
    for measure in ("total_s by calls", "ttft_s by calls", "tokens by calls", "usd by calls"):
        figures = found["sums"][measure]
        assert abs(figures["mean_error"]) < 0.05, measure
        assert figures["covered"] >= 0.88, measure


def test_outliers_are_told_beside_the_sum() -> None:
    figures = play(BY_NAME["outliers"], RUNS)["sums"]
    assert abs(figures["total_s with outliers"]["mean_error"]) < 0.1


@pytest.mark.parametrize("name", ["hits are slower", "hits are slower, holdout 10 %"])
def test_no_interval_is_above_zero_where_hits_are_a_loss(name: str) -> None:
    found = play(BY_NAME[name], RUNS)
    assert found["negative"] == RUNS
    times = [
        each for name, each in found["sums"].items() if name.split()[0] in ("total_s", "ttft_s")
    ]
    assert sum(each["positive"] for each in times) == 0
    assert all(abs(each["mean_error"]) < 0.05 for each in times)


def test_a_holdout_and_audits_make_the_interval_narrower() -> None:
    alone, beside = (
        play(BY_NAME[name], 10)["sums"]["total_s by calls"]["half_width"]
        for name in ("ordinary", "ordinary, holdout 10 %")
    )
    assert beside < 0.7 * alone
