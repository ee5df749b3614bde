"""The static match policy: a similarity threshold and guards that veto.

Guards are the recipe of ``docs/how-a-hit-is-decided.md``: each is a pure function of two parses,
named here, and any one of them vetoes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.decisions import Verdict
from headstart.errors import ConfigError
from headstart.policies.guards.antonyms import opposites_used
from headstart.policies.guards.comparative import comparisons_differ
from headstart.policies.guards.crossing import words_crossed
from headstart.policies.guards.dates import dates_differ
from headstart.policies.guards.names import names_differ
from headstart.policies.guards.negation import negations_differ
from headstart.policies.guards.numbers import numbers_differ, units_differ
from headstart.policies.guards.parse import (
    PARSE_VERSION,
    pack_parse,
    parse_prompt,
    unpack_parse,
)
from headstart.policies.guards.quantifiers import quantifiers_differ
from headstart.policies.guards.roles import roles_swapped
from headstart.policies.guards.scope import scopes_differ
from headstart.policies.guards.substitution import words_substituted
from headstart.policies.history import compare_histories

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from headstart.decisions import Comparison, Encoding, Nearby
    from headstart.policies.guards.parse import Parse
    from headstart.types import Turn

GUARDS: Mapping[str, Callable[[Parse, Parse], bool]] = {
    "number": numbers_differ,
    "unit": units_differ,
    "date": dates_differ,
    "name": names_differ,
    "quantifier": quantifiers_differ,
    "comparative": comparisons_differ,
    "negation": negations_differ,
    "role-swap": roles_swapped,
    "scope": scopes_differ,
    "antonym": opposites_used,
    "crossing": words_crossed,
    "substitution": words_substituted,
}
"""All guards by name, cheapest first."""

GUARDED_THRESHOLD = 0.90
BARE_THRESHOLD = 0.95


class Guarded:
    """What match policies with guards share: the parse of a prompt, and the vetoes.

    ``soft`` guards never veto a neighbour: what they say is the policy's to weigh. Raises
    ConfigError for an unknown guard.
    """

    def __init__(self, guards: Collection[str], soft: Collection[str] = ()) -> None:
        unknown = sorted(set(guards) - GUARDS.keys())
        if unknown:
            raise ConfigError(f"cache.guards: unknown {unknown}; choose from {list(GUARDS)}")
        enabled = tuple((name, guard) for name, guard in GUARDS.items() if name in guards)
        self._guards = tuple(pair for pair in enabled if pair[0] not in soft)
        self._soft = tuple(pair for pair in enabled if pair[0] in soft)

    def prepare(self, text: str, encoding: Encoding) -> Parse:
        """Parse a prompt once, for all its neighbours."""
        return parse_prompt(text, encoding)

    def pack(self, prepared: Parse) -> bytes:
        """Serialise a parse: about 200 bytes a word at 384 dimensions."""
        return pack_parse(prepared)

    def unpack(self, evidence: bytes) -> Parse:
        """Read what ``pack`` wrote. Raises msgspec.DecodeError on anything else."""
        return unpack_parse(evidence)

    def veto(self, query: Parse, candidate: Parse) -> str | None:
        """Return the first guard that fires and that nothing may overrule, or None."""
        return _first(self._guards, query, candidate)

    def soft_veto(self, query: Parse, candidate: Parse) -> str | None:
        """Return the first soft guard that fires, or None."""
        return _first(self._soft, query, candidate)

    def any_veto(self, query: Parse, candidate: Parse) -> str | None:
        """Return the first guard that fires, soft or not, or None."""
        return self.veto(query, candidate) or self.soft_veto(query, candidate)

    def reworded(self, turn: Parse, counterpart: Parse) -> bool:
        """Tell whether no guard at all objects to one turn of a conversation for another."""
        return self.any_veto(turn, counterpart) is None


class StaticMatch(Guarded):
    """Serve a neighbour when its similarity reaches ``threshold`` and no guard vetoes.

    ``guards`` names those that are on; ``threshold`` defaults to 0.90 with all of them and to
    0.95 otherwise. Raises ConfigError for an unknown guard or a threshold outside (0, 1].
    """

    version = f"static-{PARSE_VERSION}"

    def __init__(
        self, threshold: float | None = None, guards: Collection[str] = tuple(GUARDS)
    ) -> None:
        super().__init__(guards)
        if threshold is None:
            threshold = GUARDED_THRESHOLD if set(guards) == GUARDS.keys() else BARE_THRESHOLD
        if not 0 < threshold <= 1:
            raise ConfigError(f"cache.threshold = {threshold}: use a similarity above 0, at most 1")
        self._threshold = threshold

    @property
    def minimum(self) -> float:
        """The threshold: below it no neighbour is worth loading."""
        return self._threshold

    def compare(
        self,
        one: Sequence[Turn],
        other: Sequence[Turn],
        max_error: float | None,  # noqa: ARG002 - a static policy promises nothing
    ) -> Comparison:
        """Compare two histories; both must hold the same."""
        return compare_histories(one, other, self.any_veto, additions=False)

    def judge(
        self,
        query: Parse,  # noqa: ARG002 - the guards have read it
        candidate: Parse,  # noqa: ARG002
        nearby: Nearby,
        veto: str | None = None,
    ) -> Verdict:
        """Serve what no guard vetoed and is similar enough."""
        similarity = nearby.neighbor.similarity
        if veto is None and similarity < self._threshold:
            veto = "threshold"
        return Verdict(
            serve=veto is None, similarity=similarity, veto=veto, threshold=self._threshold
        )


def _first(
    guards: Sequence[tuple[str, Callable[[Parse, Parse], bool]]], query: Parse, candidate: Parse
) -> str | None:
    for name, guard in guards:
        if guard(query, candidate):
            return name
    return None
