"""Confidence is calibrated as answers come in, and decides who answers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.policies.drafts import (
    CALIBRATION_BINS,
    CALIBRATION_PRIORS,
    Calibration,
    Score,
    ScoreBasis,
    calibration_prior,
    decide_draft,
    start_both,
)

FLAT = calibration_prior([0.5] * CALIBRATION_BINS)
SURE = Score(basis=ScoreBasis.LOGPROBS, value=0.95)


@pytest.mark.parametrize("basis", list(ScoreBasis))
def test_every_basis_has_a_prior_that_rises(basis: ScoreBasis) -> None:
    found = [CALIBRATION_PRIORS[basis].probability(step / 100) for step in range(101)]
    assert found == sorted(found)
    assert found[-1] > found[0]


def test_what_is_learned_overrules_the_prior() -> None:
    draw, learned = random.Random(1), CALIBRATION_PRIORS[ScoreBasis.LOGPROBS]
    for _ in range(4000):
        score = draw.random()
        learned = learned.learn(score, good=draw.random() < score**2)
    for score in (0.15, 0.55, 0.95):
        assert learned.probability(score) == pytest.approx(score**2, abs=0.08)


def test_a_changed_model_is_noticed() -> None:
    learned = FLAT
    for _ in range(2000):
        learned = learned.learn(0.95, good=True)
    for _ in range(800):
        learned = learned.learn(0.95, good=False)
    assert learned.probability(0.95) < 0.2


def test_learning_leaves_the_old_calibration_as_it_was() -> None:
    before = FLAT.probability(0.5)
    FLAT.learn(0.5, good=True)
    assert FLAT.probability(0.5) == before


def test_a_rarely_checked_kind_of_draft_weighs_more() -> None:
    once, many = FLAT.learn(0.5, good=True), FLAT.learn(0.5, good=True, weight=10.0)
    assert many.probability(0.5) > once.probability(0.5)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.floats(0.1, 50)), max_size=60),
    st.floats(-1, 2),
    st.floats(-1, 2),
)
def test_probabilities_never_fall_with_the_score(
    drafts: list[tuple[float, bool, float]], one: float, other: float
) -> None:
    learned: Calibration = FLAT
    for score, good, weight in drafts:
        learned = learned.learn(score, good=good, weight=weight)
    low, high = learned.probability(min(one, other)), learned.probability(max(one, other))
    assert -1e-9 <= low <= high + 1e-9 <= 1.0 + 1e-8


def test_a_confident_draft_is_accepted() -> None:
    found = decide_draft(SURE, CALIBRATION_PRIORS[ScoreBasis.LOGPROBS], 0.8)
    assert (found.accept, found.reason) == (True, "confident")


def test_an_unsure_draft_is_escalated() -> None:
    assert FLAT.probability(SURE.value) == 0.5
    assert decide_draft(SURE, FLAT, 0.5).accept
    found = decide_draft(SURE, FLAT, 0.51)
    assert (found.accept, found.reason) == (False, "unsure")


@pytest.mark.parametrize(("score", "calibration"), [(None, FLAT), (SURE, None), (None, None)])
def test_what_cannot_be_judged_is_escalated(
    score: Score | None, calibration: Calibration | None
) -> None:
    found = decide_draft(score, calibration, 0.0)
    assert (found.accept, found.reason) == (False, "unjudged")


@pytest.mark.parametrize(("accepted", "both"), [(0.9, False), (0.5, False), (0.2, True)])
def test_the_strong_model_starts_at_once_where_escalation_is_likely(
    accepted: float,
    both: bool,
) -> None:
    prompt = Score(basis=ScoreBasis.PROMPT, value=0.8)
    assert start_both(prompt, calibration_prior([accepted] * CALIBRATION_BINS)) is both


def test_without_a_prompt_or_history_the_draft_is_waited_for() -> None:
    assert not start_both(None, FLAT)
    assert not start_both(SURE, None)
