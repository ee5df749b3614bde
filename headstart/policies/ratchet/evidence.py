"""Sequential evidence from audits: the alarm, and the certificate of an error bound.

Both compare the likelihood of the audits under a Beta mixture of error rates with that under one
rate. If that rate is the true one, the ratio is an e-value: it exceeds 20 by chance with a
probability of at most 1/20, whenever one looks (Ville 1939; Howard et al. 2021; Ramdas et al.
2023). The alarm tests the promised rate with a Beta(1, 9) mixture. The certificate rules out rates
with a Beta(1, 99) mixture. Audits are drawn uniformly; a certificate assumes that the rate was
stable while they were made.
"""

from __future__ import annotations

from math import exp, lgamma, log
from typing import NamedTuple

from headstart.policies.ratchet.settings import ALARM_EVIDENCE, ALARM_WINDOW
from headstart.types import Frozen

_CERTIFICATE_MIXTURE = (1.0, 99.0)
_ALARM_MIXTURE = (1.0, 9.0)
"""Parameters of the Beta distributions of error rates."""
_CONFIDENCE = 0.95
_TOLERANCE = 1e-7


class Certificate(NamedTuple):
    """The error rates that audits prove, with 95 % confidence at any time."""

    audits: int
    wrong: int
    per_hit: float
    """Upper bound of the share of wrong answers among semantic hits."""
    per_request: float
    """Upper bound of the same share among all requests."""


def certify(audits: int, wrong: int, served_share: float) -> Certificate:
    """Return the certificate, given the share of requests that were semantic hits."""
    bound = upper_bound(audits, wrong)
    return Certificate(audits, wrong, bound, bound * served_share)


def upper_bound(audits: int, wrong: int) -> float:
    """Return the 95 % anytime-valid upper bound of the error rate; 1.0 before any audit."""
    low, high = wrong / audits if audits else 1.0, 1.0
    while high - low > _TOLERANCE:
        middle = (low + high) / 2
        if _certified(audits, wrong, middle):
            high = middle
        else:
            low = middle
    return high


def audits_needed(audits: int, wrong: int, max_error: float) -> int | None:
    """Return how many more audits certify ``max_error`` if errors go on at the rate so far.

    0: it is certified now. None: that rate is too high ever to be certified.
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


def _certified(audits: int, wrong: float, rate: float) -> bool:
    if rate >= 1.0:
        return wrong < audits
    return _log_evidence(_CERTIFICATE_MIXTURE, audits, wrong, rate) > -log(1 - _CONFIDENCE)


_CERTAIN = 1e-9


class Alarm(Frozen, frozen=True, kw_only=True, array_like=True):
    """Audits since the evidence was last reset."""

    audits: int = 0
    wrong: int = 0

    def audited(self, *, same: bool) -> Alarm:
        """Count one audit; a full window is reset."""
        if self.audits >= ALARM_WINDOW:
            return Alarm(audits=1, wrong=int(not same))
        return Alarm(audits=self.audits + 1, wrong=self.wrong + (not same))

    def evidence(self, rate: float) -> float:
        """Return the e-value against an error of at most ``rate``."""
        rate = min(max(rate, _CERTAIN), 1 - _CERTAIN)
        return exp(_log_evidence(_ALARM_MIXTURE, self.audits, self.wrong, rate))

    def raised(self, rate: float) -> bool:
        """Tell whether there is enough evidence that the error exceeds ``rate``."""
        return self.wrong > rate * self.audits and self.evidence(rate) > ALARM_EVIDENCE


def _log_evidence(mixture: tuple[float, float], audits: int, wrong: float, rate: float) -> float:
    """Return the log of the likelihood ratio: a mixture of error rates against one rate."""
    a, b = mixture
    right = audits - wrong
    likelihood = _log_beta(a + wrong, b + right) - _log_beta(a, b)
    return likelihood - (wrong * log(rate) if wrong else 0.0) - right * log(1 - rate)


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)
