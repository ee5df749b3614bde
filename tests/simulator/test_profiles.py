from __future__ import annotations

import pytest

from headstart.errors import ConfigError
from headstart.lab.simulator import PROFILES, find_profile
from headstart.lab.simulator.profiles import ProviderProfile

CALLS = 20_000


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


def test_draws_are_a_pure_function_of_seed_and_call() -> None:
    profile = find_profile("stalls")
    assert [profile.draw(7, call) for call in range(50)] == [
        profile.draw(7, call) for call in range(50)
    ]
    assert profile.draw(7, 1) != profile.draw(7, 2)
    assert profile.draw(7, 1) != profile.draw(8, 1)


def test_first_token_times_are_lognormal_around_the_median() -> None:
    profile = ProviderProfile(model="m", ttft_ms=1000, ttft_sigma=0.5)
    times = [profile.draw(0, call).ttft_s for call in range(CALLS)]
    assert _percentile(times, 0.50) == pytest.approx(1.00, rel=0.05)
    assert _percentile(times, 0.95) == pytest.approx(2.28, rel=0.05)
    assert _percentile(times, 0.99) == pytest.approx(3.19, rel=0.05)


@pytest.mark.parametrize(
    ("name", "p95", "p99"),
    [("lognormal-05", 2.28, 3.19), ("lognormal-08", 3.73, 6.44), ("lognormal-10", 5.18, 10.3)],
)
def test_the_named_lognormals_are_those_of_the_racing_tables(
    name: str, p95: float, p99: float
) -> None:
    profile = find_profile(name)
    times = [profile.draw(3, call).ttft_s / profile.ttft_ms * 1000 for call in range(CALLS)]
    assert _percentile(times, 0.50) == pytest.approx(1.0, rel=0.05)
    assert _percentile(times, 0.95) == pytest.approx(p95, rel=0.07)
    assert _percentile(times, 0.99) == pytest.approx(p99, rel=0.10)


def test_the_faster_of_two_providers_is_as_fast_as_theory_says() -> None:
    profile = find_profile("lognormal-08")
    pairs = (
        min(profile.draw(seed, call).ttft_s for seed in (1, 2)) / profile.ttft_ms * 1000
        for call in range(CALLS)
    )
    times = list(pairs)
    assert _percentile(times, 0.50) == pytest.approx(0.65, rel=0.05)
    assert _percentile(times, 0.95) == pytest.approx(1.84, rel=0.07)


def test_stalls_are_as_frequent_and_as_long_as_the_profile_says() -> None:
    profile = find_profile("stalls")
    draws = [profile.draw(0, call) for call in range(CALLS)]
    stalled = [draw.ttft_s for draw in draws if draw.stalled]
    assert len(stalled) / CALLS == pytest.approx(0.05, rel=0.1)
    assert min(stalled) > 5
    assert _percentile(stalled, 0.5) == pytest.approx(17.9, rel=0.1)


def test_failures_are_as_frequent_as_the_profile_says() -> None:
    profile = find_profile("flaky")
    failed = sum(profile.draw(0, call).fails for call in range(CALLS))
    assert failed / CALLS == pytest.approx(0.05, rel=0.1)


def test_speed_stays_within_the_published_range() -> None:
    speeds = [find_profile("openai").draw(0, call).tokens_per_s for call in range(500)]
    assert 45 <= min(speeds) < 46
    assert 54 < max(speeds) <= 55


def test_the_instant_profile_never_waits() -> None:
    profile = find_profile("instant")
    assert profile.instant
    assert profile.draw(0, 0).ttft_s == 0
    assert profile.draw(0, 0) is profile.draw(1, 1)


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_says_what_was_assumed(name: str) -> None:
    profile = PROFILES[name]
    assert profile.notes
    assert set(profile.assumed) <= set(ProviderProfile.__struct_fields__)


def test_an_unknown_profile_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'openai'"):
        find_profile("opnai")
    with pytest.raises(ConfigError, match="known: openai, anthropic"):
        find_profile("zzz")
