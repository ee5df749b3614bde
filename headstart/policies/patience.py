"""How long a question may wait for the encoder: a share of the time that a hit would save it.

A hit saves the time to the first byte of a fresh answer. It is learned by route and model.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from headstart.policies.routing.measures import Quantiles

SHARE = 0.25
"""A question waits for a quarter of what a hit would save: about every fourth one is a hit."""
SHORTEST_S = 0.02
LONGEST_S = 0.25
UNKNOWN_S = 0.1
"""The wait while nothing is known. Few providers answer in less than 0.4 s."""
HALF_LIFE = 50.0
"""Answers after which an old one counts half."""
RENEWED_EVERY = 8
"""After so many answers of a route the wait is computed anew; the first eight renew it each."""
MOST_KNOWN = 1024
"""Pairs of route and model that are remembered, some 2 KB each."""


@dataclass(slots=True, eq=False)
class _Answers:
    """The times to the first byte of one route and model."""

    times: Quantiles = field(default_factory=lambda: Quantiles(HALF_LIFE))
    count: int = 0
    wait_s: float | None = None
    """None: it must be computed anew."""


class LookupPatience:
    """Learns from misses how long a question may wait."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], _Answers] = OrderedDict()
        self._learned = 0

    def learn(self, route: str, model: str, first_byte_s: float) -> None:
        """Note the time to the first byte of a fresh answer."""
        key = route, model
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Answers()
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        self._learned += 1
        known.times.add(first_byte_s, float(self._learned))
        known.count += 1
        if known.count <= RENEWED_EVERY or known.count % RENEWED_EVERY == 0:
            known.wait_s = None

    def wait_s(self, route: str, model: str) -> float:
        """Return the longest wait for the encoder."""
        known = self._known.get((route, model))
        if known is None:
            return UNKNOWN_S
        if known.wait_s is None:
            typical_s = known.times.quantile(0.5)
            wait_s = UNKNOWN_S if typical_s is None else SHARE * typical_s
            known.wait_s = min(max(wait_s, SHORTEST_S), LONGEST_S)
        return known.wait_s
