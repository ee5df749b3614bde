"""Judges make errors at the rates that they were given."""

from __future__ import annotations

import random

import pytest

from headstart.errors import ConfigError
from headstart.lab.stream import judge_noise, noisy
from headstart.policies.agreement.judge import FREE_TEXT
from headstart.policies.learned_rule.error_limit import EXACT_JUDGE, JudgeNoise


def test_the_name_of_a_judge_gives_its_noise() -> None:
    assert judge_noise("oracle") == EXACT_JUDGE
    real = judge_noise("real")
    assert (real.false_disagree, real.unsure_same) == (FREE_TEXT.beta, FREE_TEXT.unsure)
    assert (real.false_agree, real.unsure_different) == (
        FREE_TEXT.alpha,
        FREE_TEXT.unsure_different,
    )
    noise = judge_noise("noise=0.087,0.22")
    assert (noise.false_disagree, noise.false_agree, noise.unsure_same) == (0.087, 0.22, 0.0)


@pytest.mark.parametrize(
    "name", ["", "noise", "noise=1", "noise=a,b", "noise=0.5,0.5", "noise=-1,0", "doubt=0.1,0.1"]
)
def test_other_names_say_what_there_is(name: str) -> None:
    with pytest.raises(ConfigError, match="noise=BETA,ALPHA"):
        judge_noise(name)


@pytest.mark.parametrize(("truth", "unsure", "wrong"), [(True, 0.1, 0.2), (False, 0.3, 0.4)])
def test_noisy_judge_errs_and_doubts_at_its_rates(truth: bool, unsure: float, wrong: float) -> None:
    noise = JudgeNoise(unsure_same=0.1, false_disagree=0.2, unsure_different=0.3, false_agree=0.4)
    judge = noisy(lambda _, __: truth, noise, random.Random(1).random)
    words = [judge(None, None) for _ in range(20_000)]
    sure = [word for word in words if word is not None]
    assert 1 - len(sure) / len(words) == pytest.approx(unsure, abs=0.01)
    assert sure.count(not truth) / len(sure) == pytest.approx(wrong, abs=0.015)


def test_an_unsure_judgement_stays_unknown() -> None:
    judge = noisy(lambda _, __: None, JudgeNoise(), random.Random(1).random)
    assert judge(None, None) is None
