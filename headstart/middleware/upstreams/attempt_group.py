"""Candidates that answer together: single, fallback, race, hedge, fastest and cheapest.

An **attempt** is one call to one member of the group. The steps of ``AttemptGroup.send``:

1. If the member to ask first is evident, it is asked at once. This is the most frequent case.
2. Otherwise the estimates of the members give the order in which they are asked (``_order``).
3. An ``AttemptSchedule`` tells which attempt to start, and when (``policies/routing/schedule.py``).
   Results are reported to it: it plans retries, fallbacks and hedges.
4. The attempts run in turn (``_in_turn``), or at the same time (``_side_by_side``). The first one
   that has content wins, and the others are cancelled and booked (``ParallelAttempts``).
5. If none answers, the error that is most useful to the caller is raised (``AttemptErrors``).

For example, a hedge asks member A. After 0.4 s without content it asks member B, too. B has content
at 0.9 s: B's reply is returned, and A's call is cancelled. If A had failed at 0.2 s, then B would
have been asked at 0.2 s, as a fallback.

Attempts that run at the same time have tasks of their own (``CallTask``); another task reads the
answer. ``RelayedInTurn`` is for relayed calls: it asks one upstream after the other until one does
not fail.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headstart.attempts import AttemptOutcome, AttemptRole, RoutingEstimate
from headstart.errors import (
    HeadstartError,
    IdleConnectionClosed,
    UpstreamError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from headstart.middleware.upstreams.accounting import classify_failure
from headstart.observe import logger
from headstart.policies.routing.ordering import as_given, by_cost, by_speed
from headstart.policies.routing.schedule import (
    SDK_RETRY_COUNT,
    AttemptRules,
    AttemptSchedule,
    AttemptStart,
    hedge_delay_s,
    hedge_usd,
)
from headstart.reply import AnswerWithheld, read_whole

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence

    from headstart.interfaces import Candidate, Upstream
    from headstart.policies.routing.failures import RetryBudget
    from headstart.policies.routing.schedule import ExtraBudget
    from headstart.reply import Closing, Reply
    from headstart.settings import Strategy
    from headstart.types import Call, Piece

SCARCE = 0.5
"""An upstream does not start in a race if less than this share of a rate limit is left."""


class _AskingOrder(NamedTuple):
    """Members in the order in which they are to be asked."""

    members: tuple[int, ...]
    estimates: tuple[RoutingEstimate, ...]
    """The estimates of these members, or empty if nothing depends on them."""


@dataclass(eq=False, repr=False)
class _Group:
    """Several candidates that answer as one."""

    name: str
    members: Sequence[Candidate]

    def __post_init__(self) -> None:
        # The identity is that of the members, whichever member, key or strategy answers.
        self.identity = ",".join(sorted({each.identity for each in self.members}))
        self.names = frozenset[str]().union(*(each.names for each in self.members))


@dataclass(eq=False, repr=False)
class AttemptGroup(_Group):
    """Asks members until one of them answers: it wins, and the calls of the others are cancelled.

    Members are candidates, so groups nest. Closing the reply ends every call that was made. If no
    member answers, ``send`` raises the error that is most useful to the caller. ``extra`` limits
    hedges, ``retrying`` retries; ``clock`` gives Unix seconds, ``draw`` random numbers in [0, 1).
    """

    strategy: Strategy
    _: KW_ONLY
    extra: ExtraBudget
    retrying: RetryBudget
    draw: Callable[[], float]
    clock: Callable[[], float]

    def estimate(self, call: Call) -> RoutingEstimate:
        """Return the estimate of the member that would be asked first.

        The cost of a race includes that of all members that lose.
        """
        allowed = self._allowed(call)
        if not allowed:
            return RoutingEstimate(name=self.name, ready=False)
        order = self._order(call, allowed)
        estimates = order.estimates or tuple(
            self.members[member].estimate(call) for member in order.members
        )
        first, cost_usd = estimates[0], estimates[0].cost_usd
        if self.strategy.strategy == "race" and cost_usd is not None:
            racing = estimates[1 : self._racing_count(estimates)]
            cost_usd += sum(each.waste_usd or 0.0 for each in racing)
        return msgspec.structs.replace(first, name=self.name, cost_usd=cost_usd)

    async def send(self, call: Call) -> Reply:
        """Ask members, and wait for the first content of one of them."""
        allowed = self._allowed(call)
        if not allowed:
            raise UpstreamUnavailable("no upstream is left to ask")
        first = self._evident_first(call, allowed)
        self.retrying.earn(asyncio.get_running_loop().time())
        if first is None:
            order = self._order(call, allowed)
            schedule, errors = self._schedule(call, order), AttemptErrors(order.members)
            if schedule.side_by_side or self.strategy.first_complete:
                return await self._side_by_side(call, schedule, errors)
            return await self._in_turn(call, schedule, errors)
        asked = call
        if len(allowed) > 1:
            asked = msgspec.structs.replace(call, has_alternative=True, queues_until=None)
        try:
            return await self.members[first].send(asked)
        except HeadstartError as error:
            # The first member failed. Only now the order of the others is needed. The schedule
            # begins with the first member, as if it had started that attempt.
            order = self._order(call, allowed, first)
            schedule, errors = self._schedule(call, order), AttemptErrors(order.members)
            schedule.due(asyncio.get_running_loop().time())
            self._failed(schedule, errors, first, error)
        return await self._in_turn(call, schedule, errors)

    def _evident_first(self, call: Call, allowed: Sequence[int]) -> int | None:
        """Return the one member to ask first; None if the choice needs the estimates of all.

        So the most frequent call, to the first upstream of a route, needs no order and no schedule.
        """
        if self.strategy.first_complete:
            return None
        if len(allowed) == 1:
            return allowed[0]
        if self.strategy.strategy not in ("single", "fallback"):
            return None
        estimate = self.members[allowed[0]].estimate(call)
        stays = estimate.warm or not self.strategy.sticky
        return allowed[0] if estimate.ready and estimate.weight >= 1.0 and stays else None

    async def _in_turn(self, call: Call, schedule: AttemptSchedule, errors: AttemptErrors) -> Reply:
        """Make one attempt after the other until a member answers."""
        loop = asyncio.get_running_loop()
        while True:
            for start in schedule.due(loop.time()):
                asked = self._call(call, start, has_alternative=schedule.others)
                try:
                    return await self.members[start.member].send(asked)
                except HeadstartError as error:
                    self._failed(schedule, errors, start.member, error)
            if schedule.over:
                raise errors.most_useful(outlasts_sdk=schedule.outlasts_sdk(loop.time()))
            await asyncio.sleep((schedule.wakes_at or 0.0) - loop.time())

    async def _side_by_side(
        self, call: Call, schedule: AttemptSchedule, errors: AttemptErrors
    ) -> Reply:
        """Make attempts at the same time until one of them wins; without a winner, close them."""
        attempts = ParallelAttempts(whole=self.strategy.first_complete)
        try:
            return await self._first_winner(call, schedule, errors, attempts)
        except BaseException as error:
            await attempts.close(error)
            raise

    async def _first_winner(
        self,
        call: Call,
        schedule: AttemptSchedule,
        errors: AttemptErrors,
        attempts: ParallelAttempts,
    ) -> Reply:
        loop = asyncio.get_running_loop()
        # Streams show their first content early, also if the client wants the answer as a whole.
        wants_whole = call.request is not None and not call.request.stream and call.editable
        streamed_upstream = wants_whole and not self.strategy.first_complete
        while True:
            for start in schedule.due(loop.time()):
                asked = self._call(
                    call,
                    start,
                    apart=True,
                    streamed_upstream=streamed_upstream,
                    has_alternative=schedule.others,
                )
                attempts.ask(start.member, self.members[start.member], asked)
            if schedule.over:
                raise errors.most_useful(outlasts_sdk=schedule.outlasts_sdk(loop.time()))
            failed = await attempts.wait(schedule.wakes_at)
            reply = attempts.winner()
            if reply is not None:
                return reply
            for member, error in failed:
                if not isinstance(error, HeadstartError):
                    raise error
                self._failed(schedule, errors, member, error)

    def _failed(
        self, schedule: AttemptSchedule, errors: AttemptErrors, member: int, error: HeadstartError
    ) -> None:
        """Tell the schedule that a member failed, and keep its error."""
        failure = classify_failure(error, self.clock())
        errors.add(member, error, blames_caller=not (failure.fail_over or failure.retry_here))
        now = asyncio.get_running_loop().time()
        if isinstance(error, UpstreamUnavailable) and not error.limited:
            schedule.avoided(member, now)  # its circuit breaker is open
        else:
            asked = not isinstance(error, UpstreamUnavailable)
            queues = isinstance(error, UpstreamRefused) and error.queues
            schedule.failed(member, failure, now, asked=asked, queues=queues)

    def _allowed(self, call: Call) -> list[int]:
        every = range(len(self.members))
        if not call.avoid:
            return list(every)
        return [each for each in every if not self.members[each].names <= call.avoid]

    def _order(self, call: Call, allowed: list[int], first: int | None = None) -> _AskingOrder:
        """Return the order to ask in; ``first`` was asked already, and stays at the beginning."""
        if len(allowed) == 1:
            return _AskingOrder(tuple(allowed), ())
        strategy = self.strategy
        estimates = [self.members[each].estimate(call) for each in allowed]
        match strategy.strategy:
            case "fastest":
                places = by_speed(estimates, draw=self.draw, max_usd=strategy.max_usd)
            case "cheapest":
                places = by_cost(estimates, draw=self.draw, within_s=strategy.within_s)
            case _:
                places = as_given(estimates, draw=self.draw, sticky=strategy.sticky)
        if strategy.strategy == "race":
            # Those that do not race come last. The order is the same otherwise: sorting is stable.
            places = tuple(sorted(places, key=lambda each: not self._races(estimates[each])))
        if first is not None:
            places = tuple(sorted(places, key=lambda each: allowed[each] != first))
        return _AskingOrder(
            tuple([allowed[each] for each in places]), tuple([estimates[each] for each in places])
        )

    def _races(self, estimate: RoutingEstimate) -> bool:
        """Tell whether a member starts with the others, or is kept in reserve (``SCARCE``)."""
        fair = self.strategy.race_billed or not estimate.bills_cancelled
        return estimate.ready and fair and estimate.allowance >= SCARCE

    def _racing_count(self, estimates: Sequence[RoutingEstimate]) -> int:
        if self.strategy.strategy != "race":
            return 1
        return max(1, sum([self._races(each) for each in estimates]))

    def _schedule(self, call: Call, order: _AskingOrder) -> AttemptSchedule:
        """Return the schedule of the attempts. A hedge earns and spends a budget."""
        now, estimates = asyncio.get_running_loop().time(), order.estimates
        awaited_until = call.awaited_until
        hedge_after_s, waste_usd = None, 0.0
        if self.strategy.strategy == "hedge" and estimates:
            earned_usd, waste_usd = hedge_usd(*estimates[:2])
            self.extra.earn(earned_usd)
            hedge_after_s = hedge_delay_s(
                estimates,
                extra_calls=self.strategy.extra_calls,
                floor_s=self.strategy.hedge_floor_s,
                deadline_in_s=None if awaited_until is None else awaited_until - now,
            )
        return AttemptSchedule(
            order.members,
            AttemptRules(self.strategy.retries, self._racing_count(estimates), hedge_after_s),
            now,
            may_retry=lambda none_left: self._may_retry(call, none_left=none_left),
            may_hedge=lambda: self.extra.spend(waste_usd),
            draw=self.draw,
            deadline=awaited_until,
            contexts=dict(
                # Without estimates, nothing is known about the members' contexts.
                zip(order.members, [each.context_tokens for each in estimates], strict=False)
            ),
        )

    def _may_retry(self, call: Call, *, none_left: bool) -> bool:
        if len(self.members) == 1 and is_sdk_retry(call):
            return False
        return self.retrying.spend(asyncio.get_running_loop().time(), none_left=none_left)

    def _call(
        self,
        call: Call,
        start: AttemptStart,
        *,
        apart: bool = False,
        streamed_upstream: bool = False,
        has_alternative: bool = False,
    ) -> Call:
        """Return the call for a member: the same object, if nothing changes.

        ``apart``: the attempt runs at the same time as others, so it gets a log of its own.
        """
        first = start.role is AttemptRole.FIRST
        special = start.ignore_breaker or start.queues_until is not None
        if first and not apart and not (special or has_alternative):
            return call
        return msgspec.structs.replace(
            call,
            role=call.role if first else start.role,
            log=call.log.branch() if apart else call.log,
            contested=call.contested or (apart and self.strategy.strategy == "race"),
            streamed_upstream=call.streamed_upstream or streamed_upstream,
            has_alternative=call.has_alternative or has_alternative,
            ignore_breaker=call.ignore_breaker or start.ignore_breaker,
            queues_until=start.queues_until,
        )


@dataclass(eq=False, repr=False)
class RelayedInTurn(_Group):
    """Asks upstreams of one dialect in their order, whatever the strategy of the route.

    No upstream is asked twice, and no two at the same time, because a relayed call may create
    something. The next upstream is asked if one fails before its answer has begun
    (``failures.fails_relayed``) and the whole body of the request is still in memory. Upstreams
    that fail at present are asked last. ``draw`` returns random numbers in [0, 1).
    """

    _: KW_ONLY
    draw: Callable[[], float]

    def estimate(self, call: Call) -> RoutingEstimate:
        """Return the estimate of the upstream that would be asked first."""
        members = self._ordered(call)
        if not members:
            return RoutingEstimate(name=self.name, ready=False)
        return msgspec.structs.replace(members[0].estimate(call), name=self.name)

    async def send(self, call: Call) -> Reply:
        """Send the call, and wait for an answer to begin. Raises UpstreamError if all fail."""
        # A member that is skipped because its circuit breaker is open comes again at the end of the
        # queue, and is then asked all the same (``insists``).
        queue = deque((each, False) for each in self._ordered(call))
        if not queue:
            raise UpstreamUnavailable("no upstream is left to ask")
        errors, role, place = AttemptErrors(range(2 * len(queue))), call.role, 0
        while queue and (call.upload is None or call.upload.whole):
            member, insists = queue.popleft()
            try:
                return await member.send(
                    msgspec.structs.replace(call, role=role, ignore_breaker=insists)
                )
            except UpstreamUnavailable as error:
                errors.add(place, error, blames_caller=False)
                if not (error.limited or insists):
                    queue.append((member, True))
            except UpstreamError as error:
                errors.add(place, error, blames_caller=False)
                role = AttemptRole.FALLBACK
            place += 1
        raise errors.most_useful()

    def _ordered(self, call: Call) -> list[Candidate]:
        members = [each for each in self.members if not each.names <= call.avoid]
        if len(members) < 2:
            return members
        estimates = [each.estimate(call) for each in members]
        return [members[place] for place in as_given(estimates, draw=self.draw)]


# --- errors of several attempts -------------------------------------------------------------------

_NO_SDK_RETRY = (b"x-should-retry", b"false")
"""The header that tells OpenAI's and Anthropic's SDKs not to retry.

A provider's error gets it if several upstreams were asked, or if the call has queued for a rate
limit as long as an SDK would wait. Otherwise the SDK retries as it would without Headstart: its
pauses are longer than ours, so it may succeed after a longer outage. Our own retries are few,
because the retry budget limits them, and an SDK's retry gets none (``is_sdk_retry``). For errors
without a status, ``sdk_may_retry`` has the same meaning.
"""


def is_sdk_retry(call: Call) -> bool:
    """Tell whether the client's SDK has sent the request before, and counts its tries.

    Such an SDK retries by itself, so our retries would only multiply with its own. This does not
    hold for a call that continues a broken stream: no SDK retries after it has begun to read.
    """
    if call.role is not AttemptRole.FIRST:
        return False
    return any(
        name == SDK_RETRY_COUNT and value.strip(b"0").isdigit() for name, value in call.headers
    )


class AttemptErrors:
    """Collects the errors of the members. ``order`` is the planned order of the members."""

    def __init__(self, order: Sequence[int]) -> None:
        self._order = order
        self._errors: dict[int, HeadstartError] = {}
        self._blamed: HeadstartError | None = None
        self._asked: set[int] = set()

    def add(self, member: int, error: HeadstartError, *, blames_caller: bool) -> None:
        """Add a member's error.

        It replaces an earlier error of the member, unless it only says that the upstream could not
        be asked or did not read the request.
        """
        error.forget_frames()
        if blames_caller:
            self._blamed = self._blamed or error
        if not isinstance(error, UpstreamUnavailable):
            self._asked.add(member)
        not_read = isinstance(error, UpstreamUnavailable | IdleConnectionClosed)
        if not not_read or member not in self._errors:
            self._errors[member] = error

    def most_useful(self, *, outlasts_sdk: bool = False) -> HeadstartError:
        """Return the most useful error for the caller.

        It is the first of these that exists:

        1. the caller's own mistake
        2. a withheld answer
        3. the first error that a provider itself sent
        4. the reason why a call got no answer
        5. the error of the upstream that can be asked again first

        ``outlasts_sdk``: the call has queued for as long as an SDK would wait.
        """
        if self._blamed is not None:
            return self._blamed
        errors = [self._errors[each] for each in self._order if each in self._errors]
        best = min(errors, key=_rank)
        if isinstance(best, UpstreamUnavailable):
            return min(
                (each for each in errors if isinstance(each, UpstreamUnavailable)), key=_wait_s
            )
        sdk_stops = outlasts_sdk or len(self._asked) > 1
        if isinstance(best, UpstreamRefused):
            if sdk_stops:
                best.queues = False
                kept = tuple(pair for pair in best.headers if pair[0] != _NO_SDK_RETRY[0])
                best.headers = (*kept, _NO_SDK_RETRY)
        elif isinstance(best, UpstreamError):
            best.sdk_may_retry = not sdk_stops and classify_failure(best, 0.0).retry_here
        return best


def _rank(error: HeadstartError) -> int:
    """Return the place of an error in the list of ``most_useful``; the smallest is best."""
    match error:
        case AnswerWithheld():
            return 0
        case UpstreamRefused():
            return 1
        case UpstreamUnavailable():
            return 3
        case _:
            return 2


def _wait_s(error: UpstreamUnavailable) -> float:
    return float("inf") if error.retry_after_s is None else error.retry_after_s


# --- attempts at the same time --------------------------------------------------------------------


class ParallelAttempts:
    """Concurrent calls of one request. The first one that answers wins.

    The others are cancelled in the next iteration of the event loop. Only closing the reply waits
    until they have ended. With ``whole``, a call has answered only when its answer is complete.
    """

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self._members: dict[CallTask, int] = {}
        self._failed: list[tuple[int, Exception]] = []
        self._news = asyncio.Event()
        self._winner: CallTask | None = None

    def ask(self, member: int, upstream: Upstream, call: Call) -> None:
        """Start a member's call."""
        self._members[CallTask(upstream, call, self._note_result, whole=self._whole)] = member

    async def wait(self, until: float | None) -> list[tuple[int, Exception]]:
        """Wait for a winner or a failure, or until ``until``, in the time of the event loop.

        Returns the members that failed since the last wait, with their errors.
        """
        if until is None:
            await self._news.wait()
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._news.wait()
        self._news.clear()
        failed, self._failed = self._failed, []
        return failed

    def winner(self) -> Reply | None:
        """Return the winner's answer, or None without a winner. Closing it closes all calls."""
        if self._winner is None:
            return None
        reply = self._winner.hand_on(self.close)
        reply.filter(self._then_cancel_others(reply.pieces))
        return reply

    async def close(self, error: BaseException | None) -> None:
        """Close the winner's call, abort all others, and wait for the end of all."""
        try:
            await close_calls(self._members, self._winner, error)
        finally:
            # The calls and the answer refer to this object. This cycle would keep them in memory.
            self._members.clear()
            self._winner = None

    async def _then_cancel_others(self, pieces: AsyncIterator[Piece]) -> AsyncGenerator[Piece]:
        """Yield the winner's pieces, then cancel the other calls, which are booked then."""
        async for piece in pieces:
            yield piece
        self._cancel_others()
        await asyncio.sleep(0)

    def _note_result(self, task: CallTask) -> None:
        if self._winner is not None:
            # The answer came too late to win. An error has no effect on the request.
            task.release()
            if task.error is not None and not isinstance(task.error, HeadstartError):
                logger.error("an upstream that lost a race failed", exc_info=task.error)
        elif task.error is not None:
            self._failed.append((self._members[task], task.error))
        else:
            self._winner = task
            for other in self._others:
                other.call.log.rule(AttemptOutcome.LOST)
            # The others are cancelled later, so that the answer is passed on without delay.
            asyncio.get_running_loop().call_soon(self._cancel_others)
        self._news.set()

    @property
    def _others(self) -> list[CallTask]:
        return [task for task in self._members if task is not self._winner]

    def _cancel_others(self) -> None:
        for other in self._others:
            other.cancel()


@dataclass(eq=False, repr=False)
class CallTask:
    """Sends a call and closes its reply in one task, while another task reads the answer.

    ``changed`` is called once, in the event loop, when ``reply`` or ``error`` is known. With
    ``whole``, this is when the answer was read to its end. An error while the reply is closed has
    no effect, because nobody needs the answer any more.
    """

    upstream: InitVar[Upstream]
    call: Call
    changed: Callable[[CallTask], None] | None = None
    _: KW_ONLY
    whole: bool = False
    reply: Reply | None = None
    error: Exception | None = None
    _known: asyncio.Event = field(default_factory=asyncio.Event)
    """``reply`` or ``error`` is known."""
    _released: asyncio.Event = field(default_factory=asyncio.Event)
    """Nobody reads the reply any more, so the task may close it."""
    _cancelled: bool = False
    _closing: Closing | None = None
    """Closes the upstream's reply."""

    def __post_init__(self, upstream: Upstream) -> None:
        self._task: asyncio.Task[None] | None = asyncio.create_task(  # noqa: TID251 - its maker owns it, and awaits its end
            self._keep(upstream)
        )

    async def answer(self) -> Reply:
        """Wait until the answer has begun (with ``whole``: ended); return it. Raises its error."""
        await self._known.wait()
        if self.reply is None:
            assert self.error is not None
            raise self.error
        return self.reply

    def hand_on(self, closing: Closing) -> Reply:
        """Return the reply for another reader. The task waits until ``closing`` ends the reply."""
        reply = self.reply
        assert reply is not None
        self._closing, reply.closing = reply.closing, closing
        return reply

    def release(self) -> None:
        """Close the reply, whose answer was read to its end."""
        self._released.set()

    def cancel(self) -> None:
        """Abort the call. A second call of this method has no effect."""
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    async def ended(self) -> None:
        """Wait until the call was closed, and so is booked."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def _keep(self, upstream: Upstream) -> None:
        """Send the call, keep its reply until it is released or the task is cancelled, close it."""
        try:
            reply = await upstream.send(self.call)
            self._closing = reply.aclose
            failure: BaseException | None = None
            try:
                if self.whole:
                    await read_whole(reply)
                self.reply = reply
                self._note_known()
                await self._released.wait()
            except BaseException as error:
                failure = error
                raise
            finally:
                if self._closing is not None:
                    await self._closing(failure)
        except Exception as error:  # noqa: BLE001 - whatever it is, the waiting task raises it
            if self.reply is None:
                self.error = error
                self._note_known()
        finally:
            # A cancelled task keeps its traceback, which refers to this object. Each loser would
            # leave such a cycle.
            self._task = None

    def _note_known(self) -> None:
        self._known.set()
        if self.changed is not None:
            self.changed(self)


async def close_calls(
    tasks: Collection[CallTask], served: CallTask | None, error: BaseException | None
) -> None:
    """Close the served call, abort all others, and wait until all were closed.

    After an ``error`` the served call is aborted, too. If the waiting task is cancelled, it goes on
    waiting.
    """
    for task in tasks:
        if error is None and task is served:
            task.release()
        else:
            task.cancel()
    cancelled: asyncio.CancelledError | None = None
    for task in tasks:
        while True:
            try:
                await task.ended()
            except asyncio.CancelledError as cancellation:
                cancelled = cancellation
            else:
                break
    if cancelled is not None:
        raise cancelled
