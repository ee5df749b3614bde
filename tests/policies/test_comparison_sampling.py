"""Which misses are compared while the CPU is scarce."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headstart.decisions import Rule, Verdict
from headstart.policies.learned_rule.error_limit import LEAST_DRAW_PROBABILITY, is_near_miss
from headstart.policies.learned_rule.threshold import PLENTY, UNLIKELY_SHARE, comparison_share

TARGET = 0.02
SHARES = st.floats(0.0, 1.0)


def learned(score: float, threshold: float | None = 2.0) -> Verdict:
    return Verdict(
        serves=False, similarity=0.8, rule=Rule.LEARNED, score=score, threshold=threshold
    )


def cold(similarity: float) -> Verdict:
    return Verdict(serves=False, similarity=similarity, rule=Rule.COLD_START)


@given(similarity=SHARES, score=st.floats(-3.9, 5.0), left=st.floats(PLENTY, 1.0))
def test_with_cpu_enough_all_are_compared_but_the_unlikely(
    similarity: float, score: float, left: float
) -> None:
    assert comparison_share(cold(similarity), TARGET, left) == 1.0
    assert comparison_share(learned(score), TARGET, left) == 1.0
    assert comparison_share(learned(-5.0), TARGET, left) == UNLIKELY_SHARE


@given(score=st.floats(-10.0, 5.0), left=st.floats(-5.0, 1.0))
def test_a_pair_is_drawn_with_a_probability_that_its_label_can_make_up_for(
    score: float, left: float
) -> None:
    share = comparison_share(learned(score), TARGET, left)
    assert share == 0.0 if left <= 0 else LEAST_DRAW_PROBABILITY <= share <= 1.0


@given(similarities=st.tuples(SHARES, SHARES), left=st.floats(0.0, 1.0))
def test_all_near_misses_of_a_cold_start_have_one_probability(
    similarities: tuple[float, float], left: float
) -> None:
    """The domain trusts its cold start by the plain share of near misses that differ."""
    shares = {
        comparison_share(cold(each), TARGET, left)
        for each in similarities
        if is_near_miss(each, TARGET)
    }
    assert len(shares) <= 1


@given(left=st.floats(0.05, PLENTY * 0.9))
def test_pairs_near_the_boundary_go_first(left: float) -> None:
    assert comparison_share(learned(1.0), TARGET, left) > comparison_share(
        learned(-1.0), TARGET, left
    )
    assert comparison_share(cold(0.85), TARGET, left) > comparison_share(cold(0.6), TARGET, left)
    assert comparison_share(learned(-1.0, None), TARGET, left) > comparison_share(
        learned(-3.0, None), TARGET, left
    )
