"""Who is asked when: one state machine for a single upstream, fallbacks, races and hedges. Pure.

It is told what happened and says whom to ask. Times are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from headstart.attempts import AttemptRole
from headstart.policies.routing.retries import backoff_s, fits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headstart.policies.routing.failures import Failure

TURNED_AWAY = 2
"""How often a member that may not be asked yet is waited for."""


class Start(NamedTuple):
    """Ask this member now."""

    member: int
    role: AttemptRole
    anyway: bool = False
    """Though it fails these days: nobody else is left."""


class Rules(NamedTuple):
    """What a strategy allows."""

    retries: int = 1
    """On the same member."""
    abreast: int = 1
    """How many are asked at once at the beginning."""
    hedge_after_s: float | None = None
    """Ask the second after so long without a first content."""


class _Planned(NamedTuple):
    at: float
    member: int
    role: AttemptRole
    anyway: bool = False


class Starts:
    """Starts of one call, until somebody wins: which nobody tells it.

    ``order`` holds members, best first. A failed member is asked again first if that may help,
    then the next is asked; while others are still running nobody is. Members that asked for time
    are waited for when nobody else is left, if the wait fits the ``deadline``; one that only fails
    these days is then asked anyway, once, as no answer is worse than a doubtful one. ``may_retry``
    and ``may_hedge`` take from budgets, so they are called only when it depends on them alone;
    ``may_retry`` is told whether nobody else is left.
    ``contexts`` are the members' largest prompts, by member.
    """

    def __init__(
        self,
        order: Sequence[int],
        rules: Rules,
        now: float,
        *,
        may_retry: Callable[[bool], bool],
        may_hedge: Callable[[], bool],
        draw: Callable[[], float],
        deadline: float | None = None,
        contexts: Mapping[int, int | None] | None = None,
    ) -> None:
        self._rules = rules
        self._may_retry = may_retry
        self._may_hedge = may_hedge
        self._draw = draw
        self._deadline = deadline
        self._contexts = contexts or {}
        self._next = deque(order)
        self._planned: list[_Planned] = []
        self._running: set[int] = set()
        self._asked: set[int] = set()
        self._retried: dict[int, int] = {}
        self._turned_away: dict[int, int] = {}
        self._patient: dict[int, float] = {}
        """Members that may be asked again, and from when on."""
        self._avoided: deque[int] = deque()
        """Members that were not asked because they fail these days."""
        self._insisted: set[int] = set()
        for place in range(min(rules.abreast, len(order))):
            role = AttemptRole.RACE if place else AttemptRole.FIRST
            self._planned.append(_Planned(now, self._next.popleft(), role))
        self._hedge_at = None
        if rules.hedge_after_s is not None and self._next:
            self._hedge_at = now + rules.hedge_after_s

    @property
    def side_by_side(self) -> bool:
        """Two members may be asked at once; until then nobody was."""
        return len(self._planned) > 1 or self._hedge_at is not None

    @property
    def others(self) -> bool:
        """Is anybody left who was not asked yet?"""
        return bool(self._next)

    @property
    def _others_left(self) -> bool:
        return bool(self._next or self._avoided)

    @property
    def over(self) -> bool:
        """Nobody is running, and nobody will be asked any more."""
        return not (self._running or self._planned)

    @property
    def wakes_at(self) -> float | None:
        """When ``due`` has something to say, if nothing happens before; None: never."""
        times = [each.at for each in self._planned]
        if self._hedge_at is not None:
            times.append(self._hedge_at)
        return min(times, default=None)

    def due(self, now: float) -> list[Start]:
        """Return who is to be asked now; they count as running."""
        if self._hedge_at is not None and now >= self._hedge_at:
            self._hedge_at = None
            if self._next and self._running and self._may_hedge():
                self._planned.append(_Planned(now, self._next.popleft(), AttemptRole.HEDGE))
        due = [each for each in self._planned if each.at <= now]
        self._planned = [each for each in self._planned if each.at > now]
        self._running.update(each.member for each in due)
        return [Start(each.member, each.role, each.anyway) for each in due]

    def avoided(self, member: int, now: float) -> None:
        """A running member was not asked, because it fails these days."""
        self._running.discard(member)
        if member not in self._insisted:
            self._avoided.append(member)
        self._go_on(now)

    def failed(self, member: int, failure: Failure, now: float, *, asked: bool = True) -> None:
        """A running member failed. ``asked`` False: no call was made, it could not be asked."""
        self._running.discard(member)
        if asked:
            self._asked.add(member)
        if not (failure.fail_over or failure.retry_here):
            self._give_up()
            return
        if failure.larger_context:
            self._next = deque(each for each in self._next if self._is_larger(each, member))
        again = (failure.retry_here and member not in self._insisted) or not asked
        if again and self._may_come_again(member, asked=asked):
            wait_s = failure.retry_after_s or failure.closes_s
            if asked and wait_s is None and not self._busy and self._retry(member, now, None):
                return
            self._patient[member] = now + (wait_s or 0.0)
        self._go_on(now)

    def _go_on(self, now: float) -> None:
        if self._busy:
            return
        if self._next:
            # A hedge that was waited for is not needed any more: its place is taken.
            self._hedge_at = None
            self._planned.append(_Planned(now, self._next.popleft(), AttemptRole.FALLBACK))
        elif self._avoided:
            member = self._avoided.popleft()
            self._insisted.add(member)
            self._planned.append(_Planned(now, member, AttemptRole.FIRST, anyway=True))
        else:
            self._wait_for_somebody(now)

    @property
    def _busy(self) -> bool:
        return bool(self._running or self._planned)

    def _give_up(self) -> None:
        self._next.clear()
        self._planned.clear()
        self._patient.clear()
        self._avoided.clear()
        self._hedge_at = None

    def _is_larger(self, other: int, member: int) -> bool:
        theirs, own = self._contexts.get(other), self._contexts.get(member)
        return theirs is None or own is None or theirs > own

    def _may_come_again(self, member: int, *, asked: bool) -> bool:
        if asked:
            return self._retried.get(member, 0) < self._rules.retries
        self._turned_away[member] = self._turned_away.get(member, 0) + 1
        return self._turned_away[member] <= TURNED_AWAY

    def _wait_for_somebody(self, now: float) -> None:
        """Plan to ask again the member that may be asked soonest, if that is worth waiting for."""
        while self._patient and not self._busy:
            member = min(self._patient, key=self._patient.__getitem__)
            wait_s = max(0.0, self._patient.pop(member) - now)
            self._retry(member, now, wait_s or None)

    def _retry(self, member: int, now: float, wait_s: float | None) -> bool:
        tries = self._retried.get(member, 0)
        delay_s = backoff_s(tries, self._draw(), wait_s)
        left_s = None if self._deadline is None else self._deadline - now
        repeats = member in self._asked
        if not fits(delay_s, left_s) or (repeats and not self._may_retry(not self._others_left)):
            return False
        self._retried[member] = tries + repeats
        role = AttemptRole.RETRY if repeats else AttemptRole.FIRST
        self._planned.append(_Planned(now + delay_s, member, role))
        return True
