"""Orders of candidates: as configured, by predicted completion time, or by cost. Pure.

Each function returns indices into ``outlooks``, best first. Who would not take the call comes
last, the soonest first; before them who is over the ceiling, and before those who is degraded, and
who comes back after an outage, but for a share ``weight`` of the calls (Envoy's slow start).
``draw`` returns uniform random numbers in [0, 1).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headstart.attempts import Outlook

FEW_SAMPLES = 8
"""Below this, a candidate has yet to be measured."""
EXPLORE = 0.1
"""Share of the calls that measure such a candidate."""
NEAR = 1.1
"""Predictions this close to one another are equal."""


def as_given(
    outlooks: Sequence[Outlook], *, draw: Callable[[], float], sticky: bool = False
) -> tuple[int, ...]:
    """Keep the configured order of those who are ready, degraded or not.

    ``sticky``: a conversation stays with its warm upstream, unless that one is degraded.
    """
    held_back = _held_back(outlooks, draw)

    def place(i: int) -> tuple[bool, float, bool, bool]:
        each = outlooks[i]
        stays = sticky and each.warm and not each.degraded
        return not each.ready, each.ready_in_s, i in held_back, not stays

    return tuple(sorted(range(len(outlooks)), key=place))


def by_speed(
    outlooks: Sequence[Outlook], *, draw: Callable[[], float], max_usd: float | None = None
) -> tuple[int, ...]:
    """Order by predicted completion time: time to first token plus expected length over speed.

    A conversation stays with its warm upstream unless another gains more than the prefill that its
    cache saves. Among near equals two are drawn and the better one goes first (Mitzenmacher's power
    of two choices), so that many callers do not herd. One in ten calls measures who has few
    samples. ``max_usd``: whoever costs more, or has no price, comes after all others.
    """

    def time_s(i: int) -> float:
        each = outlooks[i]
        completion_s = math.inf if each.completion_s is None else each.completion_s
        return completion_s - (each.warm_s if each.warm else 0.0)

    times = [time_s(i) for i in range(len(outlooks))]
    tiers = _tiers(outlooks, draw, max_usd)
    order = sorted(range(len(outlooks)), key=lambda i: (*tiers[i], times[i], not outlooks[i].warm))
    best = [i for i in order if tiers[i] == (0, 0.0)]
    first = _first(outlooks, best, times, draw)
    return tuple(order) if first is None else (first, *(i for i in order if i != first))


def by_cost(
    outlooks: Sequence[Outlook], *, draw: Callable[[], float], within_s: float | None = None
) -> tuple[int, ...]:
    """Order by expected cost those who complete within ``within_s``; after them the rest, by time.

    What a warm prefix cache saves is part of the cost. With ``within_s``, one in ten calls measures
    who has few samples.
    """

    def worth(i: int) -> tuple[float, ...]:
        each = outlooks[i]
        time_s = math.inf if each.completion_s is None else each.completion_s
        cost_usd = math.inf if each.cost_usd is None else each.cost_usd
        if within_s is not None and time_s > within_s:
            return (1.0, time_s, cost_usd)
        return (0.0, cost_usd, time_s)

    tiers = _tiers(outlooks, draw, None)
    order = sorted(range(len(outlooks)), key=lambda i: (*tiers[i], *worth(i)))
    best = [i for i in order if tiers[i] == (0, 0.0)]
    first = None if within_s is None else _unmeasured(outlooks, best, draw)
    return tuple(order) if first is None else (first, *(i for i in order if i != first))


def _tiers(
    outlooks: Sequence[Outlook], draw: Callable[[], float], max_usd: float | None
) -> list[tuple[int, float]]:
    held_back = _held_back(outlooks, draw)

    def tier(i: int) -> tuple[int, float]:
        each = outlooks[i]
        if not each.ready:
            return 3, each.ready_in_s
        if max_usd is not None and (each.cost_usd is None or each.cost_usd > max_usd):
            return 2, 0.0
        return int(each.degraded or i in held_back), 0.0

    return [tier(i) for i in range(len(outlooks))]


def _held_back(outlooks: Sequence[Outlook], draw: Callable[[], float]) -> set[int]:
    """Draw who of those that come back after an outage is spared this call."""
    return {
        i
        for i, each in enumerate(outlooks)
        if each.ready and each.weight < 1.0 and draw() >= each.weight
    }


def _first(
    outlooks: Sequence[Outlook], best: list[int], times: list[float], draw: Callable[[], float]
) -> int | None:
    """Return who goes first among the best, or None: the order stands."""
    if len(best) < 2:
        return None
    explored = _unmeasured(outlooks, best, draw)
    if explored is not None:
        return explored
    near = [i for i in best if times[i] <= max(times[best[0]], 0.0) * NEAR]
    if len(near) < 2 or outlooks[best[0]].warm:
        return None
    warm = next((i for i in near if outlooks[i].warm), None)
    if warm is not None:
        return warm
    one = int(draw() * len(near))
    other = (one + 1 + int(draw() * (len(near) - 1))) % len(near)
    return near[min(one, other)]


def _unmeasured(
    outlooks: Sequence[Outlook], best: list[int], draw: Callable[[], float]
) -> int | None:
    """Return one of the best that has few samples: always while nobody has more, else rarely."""
    unknown = [i for i in best if outlooks[i].samples < FEW_SAMPLES]
    if not unknown or any(outlooks[i].warm for i in best):
        return None
    if len(unknown) < len(best) and draw() >= EXPLORE:
        return None
    return unknown[int(draw() * len(unknown))]
