"""The certificate: an upper bound of the error that holds whenever one looks at it.

Audits are drawn uniformly. The likelihood of the audits under a Beta(1, 99) mixture of error rates,
over that under one rate, is a martingale if that rate is the true one; rates against which it ever
exceeds 20 are ruled out with 95 % confidence (Ville 1939; Howard et al. 2021). It assumes a stable
rate while the audits were made.
"""

from __future__ import annotations

from math import lgamma, log
from typing import NamedTuple

_A, _B = 1.0, 99.0
_CONFIDENCE = 0.95
_TOLERANCE = 1e-7


class Certificate(NamedTuple):
    """What audits prove, with 95 % confidence at any time."""

    audits: int
    wrong: int
    per_hit: float
    """Upper bound of the share of wrong answers among semantic hits."""
    per_request: float
    """The same among all requests."""


def certify(audits: int, wrong: int, served_share: float) -> Certificate:
    """Return what audits prove, given the share of requests that were semantic hits."""
    bound = upper_bound(audits, wrong)
    return Certificate(audits, wrong, bound, bound * served_share)


def upper_bound(audits: int, wrong: int) -> float:
    """Return the 95 % anytime-valid upper bound of the error rate; 1.0 before any audit."""
    low, high = wrong / audits if audits else 1.0, 1.0
    while high - low > _TOLERANCE:
        middle = (low + high) / 2
        if _log_evidence(audits, wrong, middle) > -log(1 - _CONFIDENCE):
            high = middle
        else:
            low = middle
    return high


def audits_needed(audits: int, wrong: int, max_error: float) -> int | None:
    """Return how many more audits certify ``max_error`` if errors go on at the rate so far.

    None when that rate is too high ever to be certified. 0: it is certified now.
    """
    if upper_bound(audits, wrong) <= max_error:
        return 0
    rate = wrong / audits if audits else 0.0
    if rate >= max_error:
        return None
    low, high = 0, 1
    while not _certified(audits + high, wrong + rate * high, max_error):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _certified(audits + middle, wrong + rate * middle, max_error):
            high = middle
        else:
            low = middle
    return high


def _certified(audits: int, wrong: float, max_error: float) -> bool:
    return _log_evidence(audits, wrong, max_error) > -log(1 - _CONFIDENCE)


def _log_evidence(audits: int, wrong: float, rate: float) -> float:
    """Return the log of the martingale against ``rate``."""
    if rate >= 1.0:
        return float("inf") if wrong < audits else 0.0
    right = audits - wrong
    mixture = _log_beta(_A + wrong, _B + right) - _log_beta(_A, _B)
    return mixture - (wrong * log(rate) if wrong else 0.0) - right * log(1 - rate)


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)
