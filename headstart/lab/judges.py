"""Who says whether two answers agree, when learning asks: the truth, or a judge that errs."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

from headstart.errors import ConfigError
from headstart.policies.agreement.fitted import FREE_TEXT
from headstart.policies.ratchet.settings import EXACT_JUDGE, JudgeNoise

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")
Judge: TypeAlias = "Callable[[R, R], bool | None]"
"""Returns whether a fresh row's answer is a cached row's; None when it is not sure."""


def judge_noise(name: str) -> JudgeNoise:
    """Return the errors of a judge: ``oracle``, ``real`` or ``noise=BETA,ALPHA``.

    BETA is the share of same answers called different, ALPHA that of different answers called the
    same. Raises ConfigError.
    """
    kind, _, numbers = name.partition("=")
    if name == "oracle":
        return EXACT_JUDGE
    if name == "real":
        return JudgeNoise(
            false_disagree=FREE_TEXT.beta,
            false_agree=FREE_TEXT.alpha,
            unsure_same=FREE_TEXT.unsure,
            unsure_different=FREE_TEXT.unsure_different,
        )
    try:
        beta, alpha = (float(number) for number in numbers.split(","))
    except ValueError as error:
        raise ConfigError(f"--judge {name}: {_CHOICES}") from error
    if kind != "noise" or min(alpha, beta) < 0 or alpha + beta >= 1:
        raise ConfigError(f"--judge {name}: {_CHOICES}, two shares whose sum is below 1")
    return JudgeNoise(false_disagree=beta, false_agree=alpha, unsure_same=0.0, unsure_different=0.0)


_CHOICES = "use oracle, real or noise=BETA,ALPHA, as in noise=0.087,0.22"


def noisy(truth: Judge[R], noise: JudgeNoise, draw: Callable[[], float]) -> Judge[R]:
    """Return a judge that errs, and doubts, as often as ``noise`` says."""

    def judge(fresh: R, cached: R) -> bool | None:
        same = truth(fresh, cached)
        if same is None:
            return None
        unsure, wrong = (
            (noise.unsure_same, noise.false_disagree)
            if same
            else (noise.unsure_different, noise.false_agree)
        )
        if draw() < unsure:
            return None
        return same != (draw() < wrong)

    return judge
