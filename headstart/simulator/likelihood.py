"""Simulated log-probabilities: seeded, and each answer as sure of itself as its class."""

from __future__ import annotations

import math
import random

from headstart.types import Frozen


class Likelihood(Frozen):
    """A token, its natural log-probability, and the likeliest tokens in its place, best first."""

    token: str
    logprob: float
    ranked: tuple[tuple[str, float], ...] = ()


def likelihoods(source: str, tokens: tuple[str, ...], top: int = 0) -> tuple[Likelihood, ...]:
    """Return a likelihood for each token: a pure function of its arguments.

    ``source`` (the class of the answer) draws how sure the answer is: the mean probability of its
    tokens lies between .5 and 1, and single tokens scatter around it.
    """
    sure = random.Random(f"sure/{source}").uniform(0.5, 1.0)
    rng = random.Random(f"tokens/{source}")
    return tuple(_draw(token, -math.log(sure), rng, top) for token in tokens)


def _draw(token: str, surprise: float, rng: random.Random, top: int) -> Likelihood:
    logprob = round(-min(rng.expovariate(1 / max(surprise, 1e-6)), 9.0), 6)
    ranked = tuple((token if place == 0 else f"{token}{place}", logprob - place)
                   for place in range(top))  # fmt: skip
    return Likelihood(token=token, logprob=logprob, ranked=ranked)
