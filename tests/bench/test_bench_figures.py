from __future__ import annotations

from typing import Any

import pytest

from headstart.lab.bench import Sample, Subject, figures_of, quantiles

ONE = Subject("groq", "m", "m")


def _sample(ttft_s: float | None = 0.1, **fields: Any) -> Sample:
    given: dict[str, Any] = {"subject": ONE, "cold": False, "total_s": 1.0} | fields
    return Sample(ttft_s=ttft_s, **given)


def test_quantiles_are_nearest_ranks_and_speed_counts_from_the_slow_end() -> None:
    values = list(range(1, 101))
    found = quantiles(values)
    assert found is not None
    assert (found.p50, found.p95, found.p99) == (50, 95, 99)
    slow = quantiles(values, highest_first=True)
    assert slow is not None
    assert (slow.p50, slow.p95, slow.p99) == (51, 6, 2)
    assert quantiles([]) is None


def test_cold_calls_and_failures_are_counted_apart() -> None:
    samples = [
        _sample(
            2.0, cold=True, prompt_tokens=100, completion_tokens=90, cost_usd=0.2, estimated=True
        ),
        _sample(0.1, prompt_tokens=100, cached_tokens=50, completion_tokens=10, cost_usd=0.01),
        _sample(0.3, prompt_tokens=100, completion_tokens=20, cost_usd=0.03, tokens_per_s=50.0),
        _sample(None, error="rate-limited"),
        _sample(9.0, subject=Subject("other", "m", "m")),
    ]
    found = figures_of(ONE, samples)
    assert (found.calls, found.errors, found.error_rate) == (4, {"rate-limited": 1}, 0.25)
    assert found.ttft_s is not None
    assert (found.ttft_s.p50, found.ttft_s.p99) == (0.1, 0.3)
    assert found.cold_ttft_s is not None
    assert found.cold_ttft_s.p50 == 2.0
    assert found.tokens_per_s is not None
    assert found.cached_share == 0.25
    assert found.cost_usd == pytest.approx(0.02)
    assert found.completion_tokens == pytest.approx(15)
    assert not found.estimated


def test_nothing_answered_is_no_figure() -> None:
    found = figures_of(ONE, [_sample(None, error="unreachable")])
    assert (found.ttft_s, found.total_s, found.tokens_per_s, found.cost_usd) == (None,) * 4
    assert found.error_rate == 1.0
