"""Candidates that answer together: single, fallback, race, hedge, fastest and cheapest.

They differ in the order of their members and in when each is asked; ``docs/strategies.md`` explains
them. The decisions are ``policies.routing``'s: here calls are made and ended.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec

from headstart.attempts import AttemptRole, Outlook
from headstart.errors import HeadstartError, UpstreamUnavailable
from headstart.middleware.upstreams.heat import Heat
from headstart.middleware.upstreams.holding import Handed, tended
from headstart.middleware.upstreams.losses import Losses
from headstart.middleware.upstreams.opening import judge
from headstart.policies.routing.hedging import hedge_delay_s, hedge_usd
from headstart.policies.routing.ordering import as_given, by_cost, by_speed
from headstart.policies.routing.starts import Rules, Start, Starts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from headstart.interfaces import Candidate, UpstreamReply
    from headstart.middleware.upstreams.holding import Found
    from headstart.middleware.upstreams.ledger import Ledger
    from headstart.policies.routing.hedging import ExtraBudget
    from headstart.policies.routing.retries import RetryBudget
    from headstart.types import Call

StrategyName: TypeAlias = Literal["single", "fallback", "race", "hedge", "fastest", "cheapest"]


SCARCE = 0.5
"""Share of a rate limit below which its upstream stands by in a race."""


@dataclass(frozen=True)
class ContestOptions:
    """One strategy; ``docs/configuration.md`` has the settings of these names."""

    strategy: StrategyName = "single"
    retries: int = 1
    extra_calls: float = 0.05
    hedge_floor_s: float = 0.05
    within_s: float | None = None
    max_usd: float | None = None
    race_billed: bool = False
    first_complete: bool = False
    sticky: bool = False
    fold: bool = True
    """Ask for a stream where the client wants a whole answer, so that losers stop early."""


class _Field(NamedTuple):
    """Members in the order in which they are to be asked."""

    order: tuple[int, ...]
    outlooks: tuple[Outlook, ...]
    """In that order; empty where nothing depends on them."""


class Contest:
    """Asks members until one of them has entered: it wins, and the others are cancelled.

    Members are candidates, so contests nest. Leaving ``stream`` ends every call that was made.
    Entering raises what is most useful to the caller when nobody answers. ``extra`` limits hedges,
    ``retrying`` retries; ``clock`` gives Unix seconds, ``draw`` random numbers in [0, 1).
    """

    def __init__(
        self,
        name: str,
        members: Sequence[Candidate],
        options: ContestOptions,
        *,
        ledger: Ledger,
        extra: ExtraBudget,
        retrying: RetryBudget,
        draw: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        # Answers are its members', whoever of them came first, by which key and strategy.
        self.identity = ",".join(sorted({each.identity for each in members}))
        self.names = frozenset().union(*(each.names for each in members))
        self._members = tuple(members)
        self._options = options
        self._ledger = ledger
        self._extra = extra
        self._retrying = retrying
        self._draw = draw
        self._clock = clock

    def outlook(self, call: Call) -> Outlook:
        """Return the outlook of the member that would go first; a race costs what all waste."""
        allowed = self._allowed(call)
        if not allowed:
            return Outlook(name=self.name, ready=False)
        field = self._field(call, allowed)
        outlooks = field.outlooks or tuple(
            self._members[member].outlook(call) for member in field.order
        )
        first, cost_usd = outlooks[0], outlooks[0].cost_usd
        if self._options.strategy == "race" and cost_usd is not None:
            racing = outlooks[1 : self._abreast(outlooks)]
            cost_usd += sum(each.waste_usd or 0.0 for each in racing)
        return msgspec.structs.replace(first, name=self.name, cost_usd=cost_usd)

    def stream(self, call: Call) -> Handed:
        """Ask members; entering waits for the first content of one of them."""
        return Handed(self._find, call)

    async def _find(self, call: Call) -> Found:
        """Return the call that has won, and its answer."""
        allowed, now = self._allowed(call), asyncio.get_running_loop().time()
        if not allowed:
            raise UpstreamUnavailable("no upstream is left to ask")
        self._retrying.earn(now)
        first = self._first(call, allowed)
        if first is None:
            field = self._field(call, allowed)
            starts, losses = self._starts(call, field), Losses(field.order)
            if starts.side_by_side or self._options.first_complete:
                heat = self._in_heat(call, starts, losses)
                return heat, await heat.__aenter__()
            return await self._in_turn(call, starts, losses)
        try:
            return await self._ask(call, Start(first, AttemptRole.FIRST), others=len(allowed) > 1)
        except HeadstartError as error:
            # Only now it matters who else could be asked.
            field = self._field(call, allowed, first)
            starts, losses = self._starts(call, field), Losses(field.order)
            starts.due(asyncio.get_running_loop().time())
            self._lost(starts, losses, first, error)
        return await self._in_turn(call, starts, losses)

    def _first(self, call: Call, allowed: list[int]) -> int | None:
        """Return who is asked first, and alone; None: that takes a look at all of them."""
        if self._options.first_complete:
            return None
        if len(allowed) == 1:
            return allowed[0]
        if self._options.strategy not in ("single", "fallback"):
            return None
        outlook = self._members[allowed[0]].outlook(call)
        stays = outlook.warm or not self._options.sticky
        return allowed[0] if outlook.ready and outlook.weight >= 1.0 and stays else None

    async def _ask(self, call: Call, start: Start, *, others: bool) -> Found:
        asked = self._call(call, start, hurried=others)
        sending = self._members[start.member].stream(asked)
        return sending, await sending.__aenter__()

    async def _in_turn(self, call: Call, starts: Starts, losses: Losses) -> Found:
        loop = asyncio.get_running_loop()
        while True:
            for start in starts.due(loop.time()):
                try:
                    return await self._ask(call, start, others=starts.others)
                except HeadstartError as error:
                    self._lost(starts, losses, start.member, error)
            if starts.over:
                raise losses.most_useful()
            await asyncio.sleep((starts.wakes_at or 0.0) - loop.time())

    @asynccontextmanager
    async def _in_heat(
        self, call: Call, starts: Starts, losses: Losses
    ) -> AsyncIterator[UpstreamReply]:
        async with tended(self._heat) as heat:
            yield await self._side_by_side(call, starts, losses, heat)

    def _heat(self, group: asyncio.TaskGroup) -> Heat:
        return Heat(group, self._ledger, whole=self._options.first_complete)

    async def _side_by_side(
        self, call: Call, starts: Starts, losses: Losses, heat: Heat
    ) -> UpstreamReply:
        loop, number = asyncio.get_running_loop(), 0
        folds = self._options.fold and not self._options.first_complete and _wants_whole(call)
        while True:
            for start in starts.due(loop.time()):
                asked = self._call(call, start, branch=number, fold=folds, hurried=starts.others)
                heat.ask(start.member, self._members[start.member], asked)
                number += 1
            if starts.over:
                raise losses.most_useful()
            failed = await heat.news(starts.wakes_at)
            if heat.winner is not None:
                return heat.winner
            for member, error in failed:
                if not isinstance(error, HeadstartError):
                    raise error
                self._lost(starts, losses, member, error)

    def _lost(self, starts: Starts, losses: Losses, member: int, error: HeadstartError) -> None:
        """Take in that a member failed. Raises what is the caller's own fault."""
        failure = judge(error, self._clock())
        losses.add(member, error, blames_caller=not (failure.fail_over or failure.retry_here))
        now = asyncio.get_running_loop().time()
        if isinstance(error, UpstreamUnavailable) and not error.limited:
            starts.avoided(member, now)
        else:
            starts.failed(member, failure, now, asked=not isinstance(error, UpstreamUnavailable))

    def _allowed(self, call: Call) -> list[int]:
        every = range(len(self._members))
        if not call.avoid:
            return list(every)
        return [each for each in every if not self._members[each].names <= call.avoid]

    def _field(self, call: Call, allowed: list[int], first: int | None = None) -> _Field:
        """Return the order to ask in; ``first`` was asked already."""
        if len(allowed) == 1:
            return _Field(tuple(allowed), ())
        options = self._options
        outlooks = [self._members[each].outlook(call) for each in allowed]
        match options.strategy:
            case "fastest":
                order = by_speed(outlooks, draw=self._draw, max_usd=options.max_usd)
            case "cheapest":
                order = by_cost(outlooks, draw=self._draw, within_s=options.within_s)
            case _:
                order = as_given(outlooks, draw=self._draw, sticky=options.sticky)
        if options.strategy == "race":
            order = tuple(sorted(order, key=lambda each: not self._races(outlooks[each])))
        if first is not None:
            order = tuple(sorted(order, key=lambda each: allowed[each] != first))
        return _Field(
            tuple(allowed[each] for each in order), tuple(outlooks[each] for each in order)
        )

    def _races(self, outlook: Outlook) -> bool:
        """Does it start with the others? What is rationed is kept for when nobody else answers."""
        fair = self._options.race_billed or not outlook.bills_cancelled
        return outlook.ready and fair and outlook.allowance >= SCARCE

    def _abreast(self, outlooks: Sequence[Outlook]) -> int:
        if self._options.strategy != "race":
            return 1
        return max(1, sum(self._races(each) for each in outlooks))

    def _starts(self, call: Call, field: _Field) -> Starts:
        now, outlooks = asyncio.get_running_loop().time(), field.outlooks
        awaited_until = call.awaited_until
        hedge_after_s, may_hedge = None, _never
        if self._options.strategy == "hedge" and outlooks:
            earned_usd, waste_usd = hedge_usd(*outlooks[:2])
            self._extra.earn(earned_usd)
            hedge_after_s = hedge_delay_s(
                outlooks,
                extra_calls=self._options.extra_calls,
                floor_s=self._options.hedge_floor_s,
                deadline_in_s=None if awaited_until is None else awaited_until - now,
            )

            def may_hedge() -> bool:
                return self._extra.spend(waste_usd)

        return Starts(
            field.order,
            Rules(self._options.retries, self._abreast(outlooks), hedge_after_s),
            now,
            may_retry=self._may_retry,
            may_hedge=may_hedge,
            draw=self._draw,
            deadline=awaited_until,
            contexts=dict(
                zip(field.order, (each.context_tokens for each in outlooks), strict=False)
            ),
        )

    def _may_retry(self, last: bool) -> bool:  # noqa: FBT001 - Starts calls it
        return self._retrying.spend(asyncio.get_running_loop().time(), last=last)

    def _call(
        self,
        call: Call,
        start: Start,
        *,
        branch: int | None = None,
        fold: bool = False,
        hurried: bool = False,
    ) -> Call:
        """Return the call as a member gets it: the very one where nothing is to be said."""
        first = start.role is AttemptRole.FIRST
        if first and branch is None and not (start.anyway or hurried):
            return call
        return msgspec.structs.replace(
            call,
            role=call.role if first else start.role,
            branch=call.branch if branch is None else f"{call.branch}.{branch}",
            fold=call.fold or fold,
            hurried=call.hurried or hurried,
            anyway=call.anyway or start.anyway,
        )


def _wants_whole(call: Call) -> bool:
    return call.request is not None and not call.request.stream and call.editable


def _never() -> bool:
    return False
