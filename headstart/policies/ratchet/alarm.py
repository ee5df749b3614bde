"""The alarm: sequential evidence from audits that hits are wrong more often than promised.

The likelihood of the audits under a Beta(1, 9) mixture of error rates, over that under the promised
one, is an e-value: it exceeds 20 by chance with probability 1/20 at most, whenever one looks
(Ville 1939; Ramdas et al. 2023).
"""

from __future__ import annotations

from math import exp, lgamma, log

from headstart.policies.ratchet.settings import ALARM_EVIDENCE, ALARM_WINDOW
from headstart.types import Frozen

_MIXTURE = (1.0, 9.0)
_CERTAIN = 1e-9


class Alarm(Frozen, frozen=True, kw_only=True, array_like=True):
    """Audits since the evidence last started anew."""

    audits: int = 0
    wrong: int = 0

    def audited(self, *, same: bool) -> Alarm:
        """Count one audit; a full window starts anew."""
        if self.audits >= ALARM_WINDOW:
            return Alarm(audits=1, wrong=int(not same))
        return Alarm(audits=self.audits + 1, wrong=self.wrong + (not same))

    def evidence(self, rate: float) -> float:
        """Return the e-value against an error ``rate`` at most."""
        rate = min(max(rate, _CERTAIN), 1 - _CERTAIN)
        a, b = _MIXTURE
        right = self.audits - self.wrong
        mixture = _log_beta(a + self.wrong, b + right) - _log_beta(a, b)
        return exp(mixture - self.wrong * log(rate) - right * log(1 - rate))

    def raised(self, rate: float) -> bool:
        """Is there evidence enough that the error exceeds ``rate``?"""
        return self.wrong > rate * self.audits and self.evidence(rate) > ALARM_EVIDENCE


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)
