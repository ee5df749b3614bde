"""Match policies decide whether the answer of a similar prompt may be served.

The static policy asks for a similarity threshold. The verified policy applies the learned rule of a
domain. In both, guards veto.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.decisions import Rule, Verdict
from headstart.errors import ConfigError
from headstart.policies.conversation_match import compare_histories
from headstart.policies.gate import MARGIN, Gates, gate_of
from headstart.policies.guards.parse import PARSE_VERSION, pack_parse, unpack_parse
from headstart.policies.guards.table import GUARDS, parse_prompt
from headstart.policies.ratchet.features import VERSION, measure, pack_features
from headstart.policies.ratchet.settings import SOFT_GUARDS
from headstart.settings import static_threshold

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from headstart.decisions import HistoryComparison, MatchContext, RankedNeighbor
    from headstart.policies.guards.parse import Parse
    from headstart.policies.ratchet.domain import Domain
    from headstart.policies.ratchet.settings import Promise
    from headstart.types import Turn


class GuardedMatch:
    """The base of match policies with guards: the parse of a prompt, and the vetoes.

    ``soft`` guards never veto a neighbour: the policy weighs them. Raises ConfigError for an
    unknown guard.
    """

    prepare = staticmethod(parse_prompt)
    """Parses a prompt once, for all its neighbours."""
    parse_version = f"parse-{PARSE_VERSION}"
    pack = staticmethod(pack_parse)
    unpack = staticmethod(unpack_parse)

    def __init__(self, guards: Collection[str], soft: Collection[str] = ()) -> None:
        unknown = sorted(set(guards) - GUARDS.keys())
        if unknown:
            raise ConfigError(f"cache.guards: unknown {unknown}; choose from {list(GUARDS)}")
        enabled = tuple((name, guard) for name, guard in GUARDS.items() if name in guards)
        self._gates = Gates()
        self._guards = tuple(pair for pair in enabled if pair[0] not in soft)
        self._soft = tuple(pair for pair in enabled if pair[0] in soft)

    def veto(self, query: Parse, candidate: Parse) -> str | None:
        """Return the first guard that fires and is not soft, or None."""
        return _first_veto(self._guards, query, candidate)

    def soft_veto(self, query: Parse, candidate: Parse) -> str | None:
        """Return the first soft guard that fires, or None."""
        return _first_veto(self._soft, query, candidate)

    def any_veto(self, query: Parse, candidate: Parse) -> str | None:
        """Return the first guard that fires, soft or not, or None."""
        return self.veto(query, candidate) or self.soft_veto(query, candidate)

    def note_encoded(
        self,
        context: MatchContext,
        similarity: float,
        *,
        sampled: bool,
        served: bool,
        judged: bool = True,
    ) -> None:
        """Count a question that was encoded, for the gate of its domain."""
        self._gates.note(context, similarity, sampled=sampled, served=served, judged=judged)

    def reworded(self, turn: Parse, counterpart: Parse) -> bool:
        """Tell whether no guard objects to one turn of a conversation in place of another."""
        return self.any_veto(turn, counterpart) is None


class StaticMatch(GuardedMatch):
    """Serve a neighbour when its similarity reaches ``threshold`` and no guard vetoes.

    ``guards`` names the guards that are on; ``threshold`` defaults to 0.90 with all guards and to
    0.95 otherwise. Raises ConfigError for an unknown guard or a threshold outside (0, 1].
    """

    version = f"static-{PARSE_VERSION}"

    def __init__(
        self, threshold: float | None = None, guards: Collection[str] = tuple(GUARDS)
    ) -> None:
        super().__init__(guards)
        if threshold is None:
            threshold = static_threshold(guards)
        if not 0 < threshold <= 1:
            raise ConfigError(f"cache.threshold = {threshold}: use a similarity above 0, at most 1")
        self._threshold = threshold

    @property
    def minimum(self) -> float:
        """The threshold. No neighbour below it is worth loading."""
        return self._threshold

    def gate(self, context: MatchContext) -> float:
        """Return the least similarity of sketches of a question that is worth encoding."""
        return self._threshold - MARGIN - self._gates.of(context).lowered

    def compare(
        self,
        one: Sequence[Turn],
        other: Sequence[Turn],
        max_error: float | None,  # noqa: ARG002 - a static policy promises nothing
    ) -> HistoryComparison:
        """Compare two histories. Both must hold the same facts."""
        return compare_histories(one, other, self.any_veto, additions=False)

    def judge(
        self,
        query: Parse,  # noqa: ARG002 - the guards have read it
        candidate: Parse,  # noqa: ARG002
        nearby: RankedNeighbor,
        veto: str | None = None,
    ) -> Verdict:
        """Serve a neighbour that no guard vetoed and that is similar enough."""
        similarity = nearby.neighbor.similarity
        if veto is None and similarity < self._threshold:
            veto = "threshold"
        return Verdict(
            serve=veto is None, similarity=similarity, veto=veto, threshold=self._threshold
        )


def _first_veto(
    guards: Sequence[tuple[str, Callable[[Parse, Parse], bool]]], query: Parse, candidate: Parse
) -> str | None:
    for name, guard in guards:
        if guard(query, candidate):
            return name
    return None


LEAST_SIMILARITY = 0.5
"""A less similar neighbour is not even worth learning from."""

ADDITIONS_FROM = 0.05
"""From this target on one history may hold more than the other (``docs/conversations.md``)."""


def version_of(guards: Collection[str]) -> str:
    """Return the version of labels with these guards: with others, other pairs are judged."""
    off = sorted(GUARDS.keys() - set(guards))
    return VERSION + "".join(f"-no-{name}" for name in off)


class VerifiedMatch(GuardedMatch):
    """Serve the nearest neighbour that no guard vetoes if the rule of its domain allows it.

    The first neighbour without a veto is the candidate. If it is refused, the caller must not try
    the next one, or the promise is void. ``domain_of`` returns the learning domain of a request.
    Raises ConfigError for an unknown guard.
    """

    minimum = LEAST_SIMILARITY

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

    def gate(self, context: MatchContext) -> float:
        """Return the least similarity of sketches of a question that is worth encoding."""
        domain = self._domain_of(context.domain)
        record = self._gates.of(context)
        return gate_of(
            domain.sketch_labels,
            record,
            domain.noise,
            learned=domain.rule is Rule.LEARNED,
            least_served=domain.least_served,
        )

    def compare(
        self, one: Sequence[Turn], other: Sequence[Turn], max_error: float | None
    ) -> HistoryComparison:
        """Compare two histories. With a lax target one side may have said more than the other."""
        target = self.promise.max_error if max_error is None else max_error
        target = min(target, self.promise.max_error)
        return compare_histories(one, other, self.any_veto, additions=target >= ADDITIONS_FROM)

    def judge(
        self, query: Parse, candidate: Parse, nearby: RankedNeighbor, veto: str | None = None
    ) -> Verdict:
        """Measure the pair and apply the rule of the domain. The features are always returned."""
        domain = self._domain_of(nearby.context.domain)
        features = measure(query, candidate, nearby, domain.entry_record, veto)
        score = domain.score(features, nearby.neighbor.id)
        threshold = domain.threshold(nearby.context.max_error)
        rule = domain.rule
        reached = nearby.neighbor.similarity if rule is Rule.COLD_START else score
        if veto is None:
            veto = _refusal(domain, reached, threshold)
        if veto is None and rule is Rule.COLD_START:
            veto = self.soft_veto(query, candidate) or _unrelated(query, candidate)
        return Verdict(
            serve=veto is None,
            similarity=nearby.neighbor.similarity,
            veto=veto,
            rule=rule,
            score=score,
            threshold=threshold,
            features=pack_features(features),
            sketch=nearby.sketch,
        )


def _unrelated(query: Parse, candidate: Parse) -> str | None:
    """Veto texts without a content word in common: vectors can be forged (CacheAttack)."""
    apart = query.content and candidate.content and query.content.isdisjoint(candidate.content)
    return "unrelated" if apart else None


def _refusal(domain: Domain, reached: float, threshold: float | None) -> str | None:
    if domain.alarmed:
        return "alarm"
    if threshold is None:
        return "unlearned" if domain.rule is Rule.COLD_START else "unqualified"
    return None if reached >= threshold else "threshold"
