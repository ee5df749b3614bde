"""What is known of upstreams, for the whole process: figures, health, limits, budgets."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, TypeAlias

from headstart.policies.routing.health import Breaker
from headstart.policies.routing.limits import Limits
from headstart.policies.routing.measures import Measures
from headstart.policies.routing.outlooks import Affinities

if TYPE_CHECKING:
    from headstart.policies.routing.hedging import ExtraBudget

_Place: TypeAlias = tuple[str, str, str]
MOST_CONDITIONS = 1024


class Condition:
    """Health and limits of one (upstream, model, key)."""

    __slots__ = ("breaker", "limits")

    def __init__(self) -> None:
        self.breaker = Breaker()
        self.limits = Limits()


class Conditions:
    """One for all targets: the least recently used leave past ``most``.

    Callers name models. So what never answered has a table of its own, as long as the other:
    made-up names put nothing out that serves.
    """

    def __init__(self, measures: Measures | None = None, *, most: int = MOST_CONDITIONS) -> None:
        self.measures = measures or Measures()
        self.affinities = Affinities()
        self.hedges: dict[tuple[str, str], ExtraBudget] = {}
        """What routes may ask twice, by the route's name and the strategy as code has it."""
        self._most = most
        self._proven: OrderedDict[_Place, Condition] = OrderedDict()
        self._unproven: OrderedDict[_Place, Condition] = OrderedDict()

    def of(self, upstream: str, model: str, key: str) -> Condition:
        """Return the condition of an upstream's model under a key. Never log the key."""
        place = (upstream, model, key)
        condition = self._proven.get(place)
        if condition is not None:
            self._proven.move_to_end(place)
            return condition
        condition = self._unproven.pop(place, None) or Condition()
        table = self._proven if condition.breaker.proven else self._unproven
        table[place] = condition
        if len(table) > self._most:
            table.popitem(last=False)
        return condition

    def items(self) -> tuple[tuple[_Place, Condition], ...]:
        """Return all conditions with what they are of, for metrics and pages."""
        return (*self._proven.items(), *self._unproven.items())
