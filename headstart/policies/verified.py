"""The verified match policy: guards veto, and what was learned decides the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headstart.decisions import Rule, Verdict
from headstart.errors import ConfigError
from headstart.policies.guards.parse import Parse, parse_prompt
from headstart.policies.match import GUARDS
from headstart.policies.ratchet.features import VERSION, measure, pack_features

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from headstart.decisions import Encoding, Nearby
    from headstart.policies.ratchet.domain import Domain
    from headstart.policies.ratchet.settings import Promise

MINIMUM = 0.5
"""Below this similarity a neighbour is not even worth learning from."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Parse).decode


def version_of(guards: Collection[str]) -> str:
    """Name what is learned with these guards: with others, other pairs remain to be judged."""
    off = sorted(GUARDS.keys() - set(guards))
    return VERSION + "".join(f"-no-{name}" for name in off)


class VerifiedMatch:
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
        unknown = sorted(set(guards) - GUARDS.keys())
        if unknown:
            raise ConfigError(f"cache.guards: unknown {unknown}; choose from {list(GUARDS)}")
        self.promise = promise
        self.version = version_of(guards)
        self._domain_of = domain_of
        self._guards = tuple((name, guard) for name, guard in GUARDS.items() if name in guards)

    def prepare(self, text: str, encoding: Encoding) -> Parse:
        """Parse a prompt once, for all its neighbours."""
        return parse_prompt(text, encoding)

    def pack(self, prepared: Parse) -> bytes:
        """Serialise a parse: about 400 bytes a content word at 384 dimensions."""
        return _encode(prepared)

    def unpack(self, evidence: bytes) -> Parse:
        """Read what ``pack`` wrote. Raises msgspec.DecodeError on anything else."""
        return _decode(evidence)

    def veto(self, query: Parse, candidate: Parse) -> str | None:
        """Return the first guard that fires, or None."""
        for name, guard in self._guards:
            if guard(query, candidate):
                return name
        return None

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
        return Verdict(
            serve=veto is None,
            similarity=neighbor.similarity,
            veto=veto,
            rule=rule,
            score=score,
            threshold=threshold,
            features=pack_features(features),
        )


def _refusal(domain: Domain, reached: float, threshold: float | None) -> str | None:
    if domain.alarmed:
        return "alarm"
    if threshold is None:
        return "unqualified"
    return None if reached >= threshold else "threshold"
