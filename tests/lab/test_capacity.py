"""The knee of simulated servers whose number of slots is known."""

from __future__ import annotations

import pytest

from benchmarks.buying import ONE, knee_errors
from benchmarks.buying import step_samples as steps
from headstart.lab.bench import Sample, capacity_of


@pytest.mark.parametrize("slots", [6, 10, 24, 48])
def test_the_knee_is_the_number_of_slots(slots: int) -> None:
    errors = knee_errors(slots, 40)
    assert sum(error <= 0.15 for error in errors) >= 38, sorted(errors)[-4:]


def test_a_server_that_no_step_fills_has_no_knee() -> None:
    assert capacity_of(ONE, steps(200, 1, 1, 4, 16, 64)).knee is None


def test_one_step_has_no_knee() -> None:
    found = capacity_of(ONE, steps(8, 1, 16))
    assert found.knee is None
    assert [step.concurrency for step in found.steps] == [16]


def test_refused_calls_are_no_throughput() -> None:
    samples = steps(8, 1, 1, 16, 64)
    for sample in samples[-256:]:
        sample_error = Sample(subject=ONE, cold=False, concurrency=64, error="rate-limited")
        samples[samples.index(sample)] = sample_error
    found = capacity_of(ONE, samples)
    assert found.steps[-1].errors == found.steps[-1].calls == 256
    assert found.steps[-1].answers_per_s is None
    assert found.knee == pytest.approx(8, rel=0.2)


def test_metered_calls_cost_by_the_call_and_a_machine_by_the_hour() -> None:
    samples = steps(8, 3, 1, 64)
    metered = capacity_of(ONE, samples).steps
    own = capacity_of(ONE, samples, price_per_hour=3.0).steps
    for step in metered:
        assert step.usd_per_hour == pytest.approx((step.answers_per_s or 0) * 0.002 * 3600)
    assert {step.usd_per_hour for step in own} == {3.0}
    alone, full = (step.tokens_per_s_per_usd or 0.0 for step in own)
    assert full / alone == pytest.approx(8, rel=0.2), "a full machine is eight times as good value"
    alone, full = (step.tokens_per_s_per_usd or 0.0 for step in metered)
    assert full == pytest.approx(alone, rel=0.2), "metered tokens cost the same at any load"
