"""The verified match policy: guards veto, and what was learned decides the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.decisions import Rule, Verdict
from headstart.policies.history import compare_histories
from headstart.policies.match import GUARDS, Guarded
from headstart.policies.ratchet.features import VERSION, measure, pack_features
from headstart.policies.ratchet.settings import SOFT_GUARDS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from headstart.decisions import Comparison, Nearby
    from headstart.policies.guards.parse import Parse
    from headstart.policies.ratchet.domain import Domain
    from headstart.policies.ratchet.settings import Promise
    from headstart.types import Turn

MINIMUM = 0.5
"""Below this similarity a neighbour is not even worth learning from."""

ADDITIONS_FROM = 0.05
"""Error target from which one history may hold more than the other (``docs/conversations.md``)."""


def version_of(guards: Collection[str]) -> str:
    """Name what is learned with these guards: with others, other pairs remain to be judged."""
    off = sorted(GUARDS.keys() - set(guards))
    return VERSION + "".join(f"-no-{name}" for name in off)


class VerifiedMatch(Guarded):
    """Serve the nearest neighbour that no guard vetoes when its domain's rule says so.

    The first unvetoed neighbour is the candidate; the caller must not go on to the next when it
    is refused, or the promise is void. ``domain_of`` gives the learning domain of a request.
    Raises ConfigError for an unknown guard.
    """

    minimum = MINIMUM

    def __init__(
        self,
        promise: Promise,
        domain_of: Callable[[str], Domain],
        guards: Collection[str] = tuple(GUARDS),
    ) -> None:
        super().__init__(guards, SOFT_GUARDS)
        self.promise = promise
        self.version = version_of(guards)
        self._domain_of = domain_of

    def compare(
        self, one: Sequence[Turn], other: Sequence[Turn], max_error: float | None
    ) -> Comparison:
        """Compare two histories; a lax target lets one side have said more than the other."""
        target = self.promise.max_error if max_error is None else max_error
        target = min(target, self.promise.max_error)
        return compare_histories(one, other, self.any_veto, additions=target >= ADDITIONS_FROM)

    def judge(
        self, query: Parse, candidate: Parse, nearby: Nearby, veto: str | None = None
    ) -> Verdict:
        """Measure the pair and apply the domain's rule. The features are returned in any case."""
        domain = self._domain_of(nearby.terms.domain)
        neighbor = nearby.neighbor
        features = measure(query, candidate, nearby, domain.standing, veto)
        score = domain.score(features, neighbor.id)
        threshold = domain.threshold(nearby.terms.max_error)
        rule = domain.rule
        reached = neighbor.similarity if rule is Rule.COLD_START else score
        if veto is None:
            veto = _refusal(domain, reached, threshold)
        if veto is None and rule is Rule.COLD_START:
            veto = self.soft_veto(query, candidate) or _unrelated(query, candidate)
        return Verdict(
            serve=veto is None,
            similarity=neighbor.similarity,
            veto=veto,
            rule=rule,
            score=score,
            threshold=threshold,
            features=pack_features(features),
        )


def _unrelated(query: Parse, candidate: Parse) -> str | None:
    """Stop texts without a content word in common: vectors can be made to collide (CacheAttack)."""
    apart = query.content and candidate.content and query.content.isdisjoint(candidate.content)
    return "unrelated" if apart else None


def _refusal(domain: Domain, reached: float, threshold: float | None) -> str | None:
    if domain.alarmed:
        return "alarm"
    if threshold is None:
        return "unlearned" if domain.rule is Rule.COLD_START else "unqualified"
    return None if reached >= threshold else "threshold"
