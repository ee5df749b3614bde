"""The route that is recommended for measurements: each rule, and the order of the rules."""

from __future__ import annotations

import random
import tomllib
from typing import TYPE_CHECKING

import pytest

from headstart.lab.bench import Sample, Subject, recommend

if TYPE_CHECKING:
    from collections.abc import Callable

A = Subject("a", "m", "m", cancels_billing=True)
B = Subject("b", "m", "m", cancels_billing=True)


def _samples(
    subject: Subject,
    ttft_s: Callable[[random.Random], float],
    *,
    speed: float = 1000.0,
    tokens: tuple[int, ...] = (50,),
    cost_usd: float | None = None,
    count: int = 200,
    errors: int = 0,
) -> list[Sample]:
    rng = random.Random(subject.upstream)
    made = []
    for number in range(count):
        first, said = ttft_s(rng), tokens[number % len(tokens)]
        made.append(
            Sample(
                subject=subject,
                cold=False,
                ttft_s=first,
                total_s=first + said / speed,
                tokens_per_s=speed,
                completion_tokens=said,
                cost_usd=cost_usd,
            )
        )
    return made + [Sample(subject=subject, cold=False, error="overloaded")] * errors


def _steady(seconds: float) -> Callable[[random.Random], float]:
    return lambda rng: seconds * rng.uniform(0.95, 1.05)


def _lognormal(seconds: float, sigma: float) -> Callable[[random.Random], float]:
    return lambda rng: seconds * rng.lognormvariate(0, sigma)


def _stalling(rng: random.Random) -> float:
    return 0.4 * rng.lognormvariate(0, 0.5) + (rng.uniform(5, 30) if rng.random() < 0.05 else 0)


def _choose(samples: list[Sample], *subjects: Subject) -> tuple[str, tuple[str, ...], str]:
    found = recommend(subjects or (A, B), samples)
    assert found is not None
    return found.strategy, found.upstreams, found.why[0]


def test_stalls_are_hedged() -> None:
    samples = _samples(A, _stalling) + _samples(B, _steady(0.5))
    strategy, upstreams, why = _choose(samples)
    assert (strategy, upstreams) == ("hedge", ("a", "b"))
    assert "a stalls" in why


def test_wide_waits_are_raced_where_nobody_bills_the_loser() -> None:
    samples = _samples(A, _lognormal(0.5, 0.8)) + _samples(B, _lognormal(0.5, 0.8))
    strategy, upstreams, why = _choose(samples)
    assert strategy == "race"
    assert set(upstreams) == {"a", "b"}
    assert "sooner" in why
    billed = A._replace(cancels_billing=False)
    samples = [s for s in samples if s.subject == B] + _samples(billed, _lognormal(0.5, 0.8))
    assert _choose(samples, billed, B)[0] == "fallback"


def test_a_long_answer_is_not_raced_for_its_first_token() -> None:
    samples = _samples(A, _lognormal(0.5, 0.8), speed=20.0, tokens=(100,))
    samples += _samples(B, _lognormal(0.5, 0.8), speed=20.0, tokens=(100,))
    assert _choose(samples)[0] != "race"


def test_the_fastest_on_short_and_on_long_answers_both_stay() -> None:
    lengths = (10, 10, 400, 400)
    samples = _samples(A, _steady(0.1), speed=50, tokens=lengths)
    samples += _samples(B, _steady(0.8), speed=500, tokens=lengths)
    strategy, upstreams, why = _choose(samples)
    assert strategy == "fastest"
    assert set(upstreams) == {"a", "b"}
    assert "answers of 10 tokens" in why


def test_a_cheaper_one_that_is_hardly_slower_comes_first() -> None:
    samples = _samples(A, _steady(0.5), cost_usd=0.01) + _samples(B, _steady(0.6), cost_usd=0.002)
    found = recommend((A, B), samples)
    assert found is not None
    assert (found.strategy, found.upstreams) == ("cheapest", ("b", "a"))
    assert found.within_s == pytest.approx(0.74, abs=0.05)
    dear = _samples(A, _steady(0.5), cost_usd=0.01) + _samples(B, _steady(0.9), cost_usd=0.002)
    assert _choose(dear)[0] == "fallback"


def test_a_free_provider_cannot_be_undercut() -> None:
    samples = _samples(A, _steady(0.5), cost_usd=0.0) + _samples(B, _steady(0.6), cost_usd=0.0)
    assert _choose(samples)[0] == "fallback"


def test_a_provider_that_is_simply_best_has_the_others_behind_it() -> None:
    samples = _samples(A, _steady(0.5)) + _samples(B, _steady(0.2))
    assert _choose(samples)[:2] == ("fallback", ("b", "a"))


def test_few_answers_decide_nothing_but_the_order() -> None:
    samples = _samples(A, _stalling, count=10) + _samples(B, _steady(0.9), count=10)
    strategy, _, why = _choose(samples)
    assert strategy == "fallback"
    assert "more --calls" in why


def test_a_failing_provider_is_left_out_and_the_reason_says_so() -> None:
    samples = _samples(A, _steady(0.1), errors=50) + _samples(B, _steady(0.5))
    found = recommend((A, B), samples)
    assert found is not None
    assert (found.strategy, found.upstreams) == ("single", ("b",))
    assert found.why[1] == "a is left out: 50 of 250 calls failed (50 overloaded)"
    assert recommend((A,), [Sample(subject=A, cold=False, error="timeout")]) is None


def test_other_models_are_not_mixed_in() -> None:
    other = Subject("c", "n", "n")
    samples = _samples(other, _steady(0.1)) + _samples(A, _steady(0.5)) + _samples(B, _steady(0.6))
    found = recommend((other, A, B), samples)
    assert found is not None
    assert found.upstreams == ("a", "b")
    assert found.why[1].endswith("not mixed in: n")


def test_the_table_is_toml_whatever_the_names() -> None:
    odd = Subject("a", 'mo"del\\1', "m")
    found = recommend((odd,), _samples(odd, _steady(0.1)))
    assert found is not None
    (route,) = tomllib.loads(found.toml())["route"]
    assert route["match"] == {"model": 'mo"del\\1'}
    assert route["strategy"] == "single"
