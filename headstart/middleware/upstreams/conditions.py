"""What is known of upstreams, for the whole process: figures, health, limits, conversations."""

from __future__ import annotations

from collections import OrderedDict

from headstart.policies.routing.health import Breaker
from headstart.policies.routing.limits import Limits
from headstart.policies.routing.measures import Measures
from headstart.policies.routing.outlooks import Affinities

MOST_CONDITIONS = 1024


class Condition:
    """Health and limits of one (upstream, model, key)."""

    __slots__ = ("breaker", "limits")

    def __init__(self) -> None:
        self.breaker = Breaker()
        self.limits = Limits()


class Conditions:
    """One for all targets. Callers name models, so the least recently used leave past ``most``."""

    def __init__(self, measures: Measures | None = None, *, most: int = MOST_CONDITIONS) -> None:
        self.measures = measures or Measures()
        self.affinities = Affinities()
        self._most = most
        self._conditions: OrderedDict[tuple[str, str, str], Condition] = OrderedDict()

    def of(self, upstream: str, model: str, key: str) -> Condition:
        """Return the condition of an upstream's model under a key. Never log the key."""
        place = (upstream, model, key)
        condition = self._conditions.get(place)
        if condition is None:
            condition = self._conditions[place] = Condition()
            if len(self._conditions) > self._most:
                self._conditions.popitem(last=False)
        else:
            self._conditions.move_to_end(place)
        return condition

    def items(self) -> tuple[tuple[tuple[str, str, str], Condition], ...]:
        """Return all conditions with what they are of, for metrics and pages."""
        return tuple(self._conditions.items())
