"""Why a neighbour did, or did not, answer: its verdict taken apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.decisions import Rule
from headstart.policies.ratchet.domain import Status  # noqa: TC001 - msgspec reads it
from headstart.types import Frozen

if TYPE_CHECKING:
    from headstart.decisions import Trial, Verdict
    from headstart.policies.ratchet.domain import Domain

NO_FEATURES = frozenset(("bias", "entry", "uncertainty"))
"""Contributions that are no property of the two questions."""


class Explanation(Frozen, omit_defaults=False):
    """Why a neighbour did, or did not, answer."""

    neighbor: str
    rule: Rule
    veto: str | None
    qualified: bool
    """The rule let it answer. An audit, shadow mode or the request may have said no all the same:
    the request's own ``outcome`` and ``reason`` tell."""
    similarity: float
    score: float | None
    threshold: float | None
    """What the score, or at cold start the similarity, had to reach."""
    short_by: float | None
    flips: str
    """What would have turned the verdict around."""
    contributions: dict[str, float]
    """Each feature's share of the score, largest first; they sum up to ``score_now``.

    ``entry`` is what labels of this very neighbour add, ``uncertainty`` what caution takes off.
    """
    score_now: float | None
    """The score by what was learned since; ``score`` was that of the request."""
    domain: Status


class Explained(Frozen):
    """What ``explain/{id}`` adds to a request's own facts; None: no neighbour was judged."""

    verdict: Explanation | None = None


def explain(trial: Trial, domain: Domain) -> Explanation:
    """Take a verdict apart. Contributions and status are those of now: later labels show in them.

    Contributions are empty where the features are of another version.
    """
    verdict = trial.verdict
    short = None
    if verdict.threshold is not None:
        short = max(0.0, verdict.threshold - _reached(verdict))
    contributions = _contributions(trial, domain)
    return Explanation(
        neighbor=trial.entry.id,
        rule=verdict.rule,
        veto=verdict.veto,
        qualified=verdict.serve,
        similarity=verdict.similarity,
        score=verdict.score,
        threshold=verdict.threshold,
        short_by=short,
        flips=_flips(verdict, short, contributions),
        contributions=contributions,
        score_now=sum(contributions.values()) if contributions else None,
        domain=domain.status(),
    )


def _contributions(trial: Trial, domain: Domain) -> dict[str, float]:
    if not trial.verdict.features:
        return {}
    shares = domain.contributions(trial.verdict.features)
    shares["entry"] = domain.standing(trial.entry.id).offset
    return dict(sorted(shares.items(), key=lambda each: -abs(each[1])))


def _reached(verdict: Verdict) -> float:
    if verdict.rule is Rule.LEARNED and verdict.score is not None:
        return verdict.score
    return verdict.similarity


def _flips(verdict: Verdict, short: float | None, contributions: dict[str, float]) -> str:
    quantity = "score" if verdict.rule is Rule.LEARNED else "similarity"
    if verdict.serve:
        return f"a threshold above {_reached(verdict):.3f}, or any guard's veto"
    match verdict.veto:
        case "threshold" if short is not None:
            return f"a {quantity} higher by {short:.3f}{_without(verdict, short, contributions)}"
        case "unlearned":
            return "enough labels for the learned rule, or near misses with fewer other answers"
        case "unqualified":
            return "a larger max_error, or labels that show fewer wrong answers among such pairs"
        case "alarm":
            return "enough new labels after the alarm, with no more wrong than max_error"
        case guard:
            more = f", and a {quantity} higher by {short:.3f}" if short else ""
            return f"the guard {guard!r} switched off, or questions in which it finds nothing{more}"


def _without(verdict: Verdict, short: float, contributions: dict[str, float]) -> str:
    """Name the features each of which alone kept a score below the threshold."""
    if verdict.rule is not Rule.LEARNED:
        return ""
    enough = [
        name for name, share in contributions.items() if name not in NO_FEATURES and -share >= short
    ]
    return f", such as without {' or '.join(map(repr, enough))}" if enough else ""
