"""Why a neighbour did, or did not, answer: its verdict taken apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.decisions import Rule
from headstart.policies.ratchet.domain import Status  # noqa: TC001 - msgspec reads it
from headstart.types import Frozen

if TYPE_CHECKING:
    from headstart.decisions import Trial, Verdict
    from headstart.policies.ratchet.domain import Domain


class Explanation(Frozen, omit_defaults=False):
    """Why a neighbour did, or did not, answer."""

    neighbor: str
    rule: Rule
    veto: str | None
    served: bool
    similarity: float
    score: float | None
    threshold: float | None
    """What the score, or at cold start the similarity, had to reach."""
    short_by: float | None
    flips: str
    """What would have turned the verdict around."""
    contributions: dict[str, float]
    """Each feature's share of the score, largest first."""
    domain: Status


def explain(trial: Trial, domain: Domain) -> Explanation:
    """Take a verdict apart. Shares and status are those of now: later labels show in them."""
    verdict = trial.verdict
    reached = _reached(verdict)
    short = None
    if verdict.threshold is not None and reached is not None:
        short = max(0.0, verdict.threshold - reached)
    return Explanation(
        neighbor=trial.entry.id,
        rule=verdict.rule,
        veto=verdict.veto,
        served=verdict.serve,
        similarity=verdict.similarity,
        score=verdict.score,
        threshold=verdict.threshold,
        short_by=short,
        flips=_flips(verdict, short),
        contributions=domain.contributions(verdict.features) if verdict.features else {},
        domain=domain.status(),
    )


def _reached(verdict: Verdict) -> float | None:
    return verdict.score if verdict.rule is Rule.LEARNED else verdict.similarity


def _flips(verdict: Verdict, short: float | None) -> str:
    quantity = "score" if verdict.rule is Rule.LEARNED else "similarity"
    if verdict.serve:
        return f"a threshold above {_reached(verdict):.3f}, or any guard's veto"
    match verdict.veto:
        case "threshold" if short is not None:
            return f"a {quantity} higher by {short:.3f}"
        case "unqualified":
            return "a larger max_error, or labels that show fewer wrong answers among such pairs"
        case "alarm":
            return "enough new labels after the alarm, with no more wrong than max_error"
        case guard:
            return f"the guard {guard!r} switched off, and a {quantity} of the threshold or more"
