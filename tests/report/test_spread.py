"""The spread of hits, which tells how far a few held-out requests may be off."""

from __future__ import annotations

import random
from statistics import fmean, variance

from headstart.report.estimates import CountedValue, Spread, interval, mean_of, spread_of


def test_the_spread_of_counted_values_is_that_of_each_single_one() -> None:
    found = spread_of([CountedValue(3, 1.0), CountedValue(1, 5.0)])
    values = [1.0, 1.0, 1.0, 5.0]
    assert abs(found.variance - variance(values) * 3 / 4) < 1e-12
    assert spread_of([]) == Spread()
    assert spread_of([CountedValue(4, 2.0)]) == Spread(0.0, 1.0)


def test_a_small_sample_without_the_rare_long_answers_is_not_too_sure() -> None:
    rng = random.Random(7)
    answers = [20.0] * 95 + [600.0] * 5
    population = spread_of([CountedValue(1, each) for each in answers])
    truth = fmean(answers)
    alone = together = 0
    for _ in range(400):
        held_out = rng.choices(answers, k=40)
        for known in (Spread(), population):
            mean = mean_of(held_out, 1000, known)
            assert mean is not None
            found = interval(mean, 1.0)
            assert found.low is not None
            assert found.high is not None
            inside = found.low <= truth <= found.high
            if known is population:
                together += inside
            else:
                alone += inside
    assert together > 0.93 * 400
    assert alone < 0.9 * 400
