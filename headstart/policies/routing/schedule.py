"""When to ask which upstream: attempts, retries, hedges and their budgets; the pace of a batch.

Hedging follows Dean and Barroso, "The Tail at Scale" (CACM 2013): another upstream is asked if the
first one takes longer than most calls do. So the share ``extra_calls`` of the requests is sent
twice.

**The number of concurrent calls of a batch** adapts to the provider's limit, by additive increase
and multiplicative decrease as in TCP (Chiu and Jain, 1989). It doubles with each round of answers
until the first sign of too many calls. After that it rises by one call with each round, a refusal
(429) halves it, and a round of slow answers lowers it by a fifth.

The file has these parts:

- when to hedge (``hedge_delay_s``), and the budget of hedges (``ExtraBudget``);
- how long to wait before a retry (``backoff_s``);
- whether a stream waits for an equal call in flight (``join_terms``, ``twin_wait_s``);
- which member is asked when (``AttemptSchedule``). A *member* is an upstream of the route, by its
  number;
- the pace of a batch (``BatchPace``);
- whether another upstream takes over a slow stream (``ExpectedPace``).
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headstart.attempts import AttemptRole, RoutingEstimate
from headstart.policies.routing.measures import LATE
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headstart.policies.routing.failures import Failure
    from headstart.settings import JoinStreams

BUDGET_WINDOW = 1000
"""Number of requests over which a budget applies."""
BUDGET_BURST = 10.0
"""The most extra calls that can be saved up."""
BUDGET_START = 3.0
"""The extra calls of a new budget, unless it allows fewer in 1,000 requests. So a process that has
just started may hedge its first calls."""
UNKNOWN_DELAY_S = 2.0
"""The delay of hedges while there are too few measurements. It is longer than the p95 of the faster
public models."""
HEDGE_SAMPLES = 20
"""The fewest measured calls of the first upstream from which the delay of hedges is computed."""
STALL_FACTOR = 3.0
"""A time to first token longer than three times the p75 is a stall, and not just a slow call: in a
lognormal distribution with a sigma of up to 1, the p95 is shorter."""


def hedge_delay_s(
    estimates: Sequence[RoutingEstimate],
    *,
    extra_calls: float = 0.05,
    floor_s: float = 0.05,
    deadline_in_s: float | None = None,
) -> float | None:
    """Return the time without a first token after which to ask the next upstream; None: never.

    ``estimates`` are in the order in which the upstreams would be asked. The delay is the time to
    first token that the share ``extra_calls`` of the first upstream's calls exceeds: so hedges just
    use up their budget. If a larger share of its calls stalls, the delay is the time after which a
    call counts as stalled (``STALL_FACTOR``). It is at least ``floor_s``, and at most half of the
    time until the deadline. There is no hedge while all upstreams are degraded, or if no other one
    is ready.
    """
    others = estimates[1:]
    if all(each.degraded for each in estimates) or not any(each.ready for each in others):
        return None
    first = estimates[0]
    known = first.samples >= HEDGE_SAMPLES and len(first.late_ttft_s) == len(LATE)
    delay_s = _late_s(first.late_ttft_s, extra_calls) if known else UNKNOWN_DELAY_S
    delay_s = max(floor_s, delay_s)
    return delay_s if deadline_in_s is None else min(delay_s, max(0.0, deadline_in_s / 2))


def _late_s(late_s: Sequence[float], share: float) -> float:
    """Return the time that ``share`` of the calls exceed, interpolated in logarithms."""
    share = min(max(share, LATE[-1]), LATE[0])
    # The share lies between LATE[upper - 1] and LATE[upper]; ``inside`` is its place from 0 to 1.
    upper = next(i for i in range(1, len(LATE)) if LATE[i] <= share)
    inside = math.log(LATE[upper - 1] / share) / math.log(LATE[upper - 1] / LATE[upper])
    stalled_s = STALL_FACTOR * late_s[LATE.index(0.25)]
    sooner_s, later_s = min(late_s[upper - 1], stalled_s), min(late_s[upper], stalled_s)
    return sooner_s * math.pow(later_s / sooner_s, inside)


def hedge_usd(first: RoutingEstimate, second: RoutingEstimate) -> tuple[float, float]:
    """Return the dollars that a request adds to the budget, and those that its hedge may waste.

    Either of the two calls may be cancelled, so the hedge may waste the larger one of their
    ``waste_usd``. A request adds its cost at the first upstream, or at the second one if the first
    is free. If a price is not known, both results are 0, and only the number of calls is limited.
    """
    if first.cost_usd is None or second.cost_usd is None:
        return 0.0, 0.0
    return first.cost_usd or second.cost_usd, max(first.waste_usd or 0.0, second.waste_usd or 0.0)


class ExtraBudget:
    """A budget of extra calls and extra dollars, as shares of the requests and of their cost.

    Over the last 1,000 requests, the extra calls are at most the share ``calls`` of the requests,
    and their dollars at most the share ``usd`` of the requests' cost. A new budget allows three
    extra calls and the cost of three requests at once, unless it allows less for 1,000 requests. A
    token bucket spreads the extra calls over time: at most ten can be saved up.
    """

    def __init__(self, calls: float, usd: float) -> None:
        self.calls = calls
        self.usd = usd
        self._start = min(BUDGET_START, calls * BUDGET_WINDOW)
        self._saved = self._start
        self._window: deque[list[float]] = deque()
        """For each request: its extra calls, the dollars of these calls, and the request's cost."""
        self._totals = [0.0, 0.0, 0.0]
        """The sums over the window."""

    def earn(self, usd: float) -> None:
        """Count a request, with its cost without extra calls."""
        self._window.append([0.0, 0.0, usd])
        self._totals[2] += usd
        if len(self._window) > BUDGET_WINDOW:
            oldest = self._window.popleft()
            self._totals = [total - old for total, old in zip(self._totals, oldest, strict=True)]
        self._saved = min(BUDGET_BURST, self._saved + self.calls)

    def spend(self, usd: float) -> bool:
        """Take one extra call, which may waste these dollars; return False if it is not allowed."""
        calls, extra_usd, cost_usd = self._totals
        requests = len(self._window)
        # The small terms make up for rounding, so that exactly the allowed amount may be spent.
        allowed = max(self._start, self.calls * requests) + 1e-9
        if self._saved < 1.0 - 1e-9 or calls + 1 > allowed or not requests:
            return False
        # A new budget may spend the cost of three requests, unless 1,000 requests allow less.
        share = max(self.usd, min(BUDGET_START, self.usd * BUDGET_WINDOW) / requests)
        if usd > 0.0 and extra_usd + usd > share * cost_usd * (1 + 1e-9):
            return False
        self._saved -= 1.0
        for i, amount in enumerate((1.0, usd)):
            self._window[-1][i] += amount
            self._totals[i] += amount
        return True

    @property
    def calls_used(self) -> float:
        """Extra calls among the last 1,000 requests, as a share of them."""
        return self._totals[0] / len(self._window) if self._window else 0.0

    @property
    def usd_used(self) -> float:
        """Extra dollars among the last 1,000 requests, as a share of their cost."""
        return self._totals[1] / self._totals[2] if self._totals[2] > 0.0 else 0.0


_BASE_S = 0.25
"""The longest pause before the first retry. It doubles with each further retry."""
_CAP_S = 8.0
"""The longest pause before any retry, if the provider names no time."""
_LONGEST_WAIT_S = 60.0
"""The longest wait for a retry. It is Portkey's limit on a provider's ``retry-after``, too."""


def backoff_s(attempt: int, draw: float, retry_after_s: float | None) -> float:
    """Return how long to wait before retry number ``attempt``, the first being 0.

    Full jitter (AWS Architecture Blog, "Exponential Backoff And Jitter", 2015): uniform in
    [0, min(cap, base x 2^attempt)], with ``draw`` uniform in [0, 1). If the provider names a time
    (``retry_after_s``), the wait is that time plus up to 0.25 s. So callers with the same time do
    not retry at the same moment.
    """
    if retry_after_s is not None:
        return retry_after_s + draw * _BASE_S
    return draw * min(_CAP_S, _BASE_S * 2.0 ** min(attempt, 16))


def longest_wait_s(left_s: float | None) -> float:
    """Return the longest wait for a member: a minute, or half of the time that is left if less."""
    return _LONGEST_WAIT_S if left_s is None else min(_LONGEST_WAIT_S, left_s / 2)


MOST_REFUSALS, MOST_PROVIDER_REFUSALS = 2, 5
"""How often a call queues for a member's rate limit at most: after refusals without a call, and
after refusals by the provider."""

SDK_RETRY_COUNT = b"x-stainless-retry-count"
"""The header with the number of times that an SDK has sent the request again; first 0."""
SDK_PAUSES_S = 1.5
"""The longest pauses of OpenAI's and Anthropic's SDKs between their three tries, in seconds."""


class JoinTerms(NamedTuple):
    """The estimates by which a stream decides whether to wait for an equal whole answer in flight.

    ``first_token_s`` is the time to first token of the stream's own call; if it is infinite, the
    stream waits as long as it takes. ``whole_s`` is the usual time of a call for the whole answer.
    """

    first_token_s: float
    whole_s: float


ANY_WAIT = JoinTerms(math.inf, 0.0)
MOST_WAITED = 2.0
"""A stream waits at most this multiple of the time to first token of its own call."""
LEAST_SAMPLES = 8
"""The fewest measured calls for which a stream may wait."""


def join_terms(when: JoinStreams, own: RoutingEstimate | None) -> JoinTerms | None:
    """Return the terms on which a stream waits for a whole answer in flight; None: it never waits.

    ``own`` is the estimate of the stream's own call, or None if there is none.
    """
    if when == "always":
        return ANY_WAIT
    if when == "never" or own is None:
        return None
    if not own.ready:
        return ANY_WAIT  # its own call would be refused, so it waits as long as it takes
    known = own.samples >= LEAST_SAMPLES and own.tokens_per_s
    if not known or own.ttft_s is None or own.completion_s is None:
        return None
    return JoinTerms(own.ttft_s, own.completion_s)


def twin_wait_s(terms: JoinTerms | None, elapsed_s: float) -> float | None:
    """Return how long a stream waits for a whole answer, or None if it does not wait.

    The call for the whole answer began ``elapsed_s`` seconds ago. If it is late already, the rest
    is expected to take as long again as it is late.
    """
    if terms is None or abs(terms.whole_s - elapsed_s) > terms.first_token_s:
        return None
    return MOST_WAITED * terms.first_token_s


class AttemptStart(NamedTuple):
    """A member to ask now."""

    member: int
    role: AttemptRole
    ignore_breaker: bool = False
    """Whether to ask the member although it fails at present, because no other member is left."""
    queues_until: float | None = None
    """The time until which the call queues for the member's rate limit; None: it does not."""


class AttemptRules(NamedTuple):
    """The limits of a strategy."""

    retries: int = 1
    """Retries on the same member."""
    at_once: int = 1
    """The number of members that are asked at the same time at the beginning."""
    hedge_after_s: float | None = None
    """The time without a first content after which the second member is asked."""


@dataclass(slots=True, eq=False)
class _Tried:
    """The attempts of a call with one member."""

    asked: bool = False
    forced: bool = False
    """Whether it was asked although it fails at present."""
    retries: int = 0
    retries_freely: bool = False
    """Whether its next retry is not charged to the budget."""
    refusals: int = 0
    """How often it refused the call for its rate limit, after which the call queued."""
    full: int = 0
    """How often no call was made, because its rate limit was used up."""
    limited: bool = False
    """Whether its rate limit is used up, so that the next attempt queues for it."""
    queues_until: float | None = None
    """The time until which the call queues for it, also when it queues again."""

    def may_queue(self, *, asked: bool) -> bool:
        """Count a refusal, with or without a call; tell whether the call may queue after it."""
        if asked:
            self.refusals += 1
            return self.refusals <= MOST_PROVIDER_REFUSALS
        self.full += 1
        return self.full <= MOST_REFUSALS

    def may_retry(self, failure: Failure, most_retries: int) -> bool:
        """Tell whether the member may be asked again after a failure, without a queue."""
        # A limit for which the call has queued already does not end soon.
        in_vain = failure.ends_with_time and self.queues_until is not None
        return failure.retry_here and self.retries < most_retries and not (self.forced or in_vain)


@dataclass(eq=False, repr=False)
class AttemptSchedule:
    """The attempts of one call: a state machine for one upstream, fallbacks, races and hedges.

    Its user reports events to it, and it returns which members to ask and when, until a member
    wins. Times are seconds of one monotonic clock.

    ``order`` has the members, the best first. A member that fails is asked again if that may help.
    Otherwise the next member is asked, unless other members are still running. If no other member
    is left, the schedule waits for members that asked for a wait, as far as the ``deadline``
    allows. Members whose circuit breaker is open are skipped at first. They are asked once, if no
    other member is left.

    For example, members 0 and 1 with ``retries=1`` and ``hedge_after_s=2.0``, begun at 0.0::

        due(0.0)                       member 0, FIRST
        due(2.0)                       member 1, HEDGE: no content has come for 2 s
        failed(1, server error, 2.5)   member 0 is still running, so nothing is planned
        failed(0, server error, 4.0)   a retry is planned, 0 to 0.25 s later
        due(wakes_at)                  member 0, RETRY

    ``may_retry`` and ``may_hedge`` take from budgets, so they are called only if all other
    conditions are met. The argument of ``may_retry`` tells whether no other member is left.
    ``contexts`` has the largest prompts that the members accept, in tokens.
    """

    order: InitVar[Sequence[int]]
    rules: AttemptRules
    began: float
    _: KW_ONLY
    may_retry: Callable[[bool], bool]
    may_hedge: Callable[[], bool]
    draw: Callable[[], float]
    deadline: float | None = None
    contexts: Mapping[int, int | None] = field(default_factory=dict)
    _planned: list[tuple[float, AttemptStart]] = field(default_factory=list)
    """The attempts that are not due yet, with their times."""
    _running: set[int] = field(default_factory=set)
    _retry_at: dict[int, float] = field(default_factory=dict)
    """The members that may be asked again, with the earliest time for each."""
    _avoided: deque[int] = field(default_factory=deque)
    """Members that were not asked because they fail at present."""
    _given_up: bool = False
    """No further member is asked: a failure was the caller's fault."""
    _hedge_at: float | None = None
    """When the next member is asked as a hedge; None: there is no hedge (any more)."""

    def __post_init__(self, order: Sequence[int]) -> None:
        self._next = deque(order)
        self._tried: defaultdict[int, _Tried] = defaultdict(_Tried)
        for place in range(min(self.rules.at_once, len(order))):
            role = AttemptRole.RACE if place else AttemptRole.FIRST
            self._plan(self.began, self._next.popleft(), role)
        if self.rules.hedge_after_s is not None and self._next:
            self._hedge_at = self.began + self.rules.hedge_after_s

    @property
    def side_by_side(self) -> bool:
        """Whether two members may be asked at the same time. Ask before the first ``due``."""
        return len(self._planned) > 1 or self._hedge_at is not None

    @property
    def others(self) -> bool:
        """Whether there are members that were not asked yet."""
        return bool(self._next)

    @property
    def over(self) -> bool:
        """Whether no member is running, and no further one will be asked."""
        return not (self._running or self._planned)

    @property
    def wakes_at(self) -> float | None:
        """The next time at which ``due`` returns members without a further event; None: never."""
        times = [at for at, _ in self._planned]
        if self._hedge_at is not None:
            times.append(self._hedge_at)
        return min(times, default=None)

    def due(self, now: float) -> list[AttemptStart]:
        """Return the members to ask now. They count as running."""
        if self._hedge_at is not None and now >= self._hedge_at:
            self._hedge_at = None
            if self._next and self._running and self.may_hedge():
                self._plan(now, self._next.popleft(), AttemptRole.HEDGE)
        due = [start for at, start in self._planned if at <= now]
        self._planned = [(at, start) for at, start in self._planned if at > now]
        for start in due:
            self._running.add(start.member)
        return due

    def avoided(self, member: int, now: float) -> None:
        """Note that a running member was not asked, because it fails at present."""
        self._running.discard(member)
        if not self._tried[member].forced:
            self._avoided.append(member)
        self._plan_next(now)

    def failed(
        self,
        member: int,
        failure: Failure,
        now: float,
        *,
        asked: bool = True,
        queues: bool = False,
    ) -> None:
        """Note that a running member failed.

        ``asked`` is False if no call was made, because the rate limit is used up. ``queues`` is
        True if the provider refused the call for its rate limit, for which a call may queue.
        """
        self._running.discard(member)
        tried = self._tried[member]
        tried.asked = tried.asked or asked
        tried.limited = (queues or not asked) and tried.may_queue(asked=asked)
        if self._given_up or not (failure.fail_over or failure.retry_here):
            self._give_up()
            return
        tried.retries_freely = failure.retries_freely
        if failure.larger_context:
            self._next = deque(each for each in self._next if self._is_larger(each, member))
        if tried.limited or (asked and tried.may_retry(failure, self.rules.retries)):
            wait_s = failure.retry_after_s or failure.pauses_s
            # Without a wait to observe, the same member is retried before the next one is asked.
            if asked and wait_s is None and self.over and self._retry(member, now, None):
                return
            self._retry_at[member] = now + (wait_s or 0.0)
        self._plan_next(now)

    def outlasts_sdk(self, now: float) -> bool:
        """Tell whether the call has queued for a rate limit for as long as an SDK would wait."""
        queues = any(each.queues_until is not None for each in self._tried.values())
        return queues and now - self.began >= SDK_PAUSES_S

    def _plan_next(self, now: float) -> None:
        """If no member is running, plan the next one: a new one, an avoided one, or a retry."""
        if self._given_up or not self.over:
            return
        if self._next:
            # This attempt replaces a planned hedge.
            self._hedge_at = None
            self._plan(now, self._next.popleft(), AttemptRole.FALLBACK)
        elif self._avoided:
            member = self._avoided.popleft()
            self._tried[member].forced = True
            self._plan(now, member, AttemptRole.FIRST, ignore_breaker=True)
        else:
            self._plan_soonest_retry(now)

    def _give_up(self) -> None:
        """Start no more attempts. Those that run may still answer."""
        self._given_up = True
        self._next.clear()
        self._planned.clear()
        self._hedge_at = None

    def _is_larger(self, other: int, member: int) -> bool:
        """Tell whether another member may accept larger prompts than this one."""
        theirs, own = self.contexts.get(other), self.contexts.get(member)
        return theirs is None or own is None or theirs > own

    def _plan_soonest_retry(self, now: float) -> None:
        """Plan a retry of the member that may be asked soonest, if the deadline allows the wait."""
        while self._retry_at and self.over:
            member = min(self._retry_at, key=self._retry_at.__getitem__)
            wait_s = max(0.0, self._retry_at.pop(member) - now)
            self._retry(member, now, wait_s or None)

    def _retry(self, member: int, now: float, wait_s: float | None) -> bool:
        """Plan a retry of a member, or a place in the queue for its rate limit.

        ``wait_s`` is the wait that the provider asks for. Return False and plan nothing if the wait
        would be too long, or the budget of retries is used up.
        """
        tried = self._tried[member]
        delay_s = backoff_s(tried.retries, self.draw(), wait_s)
        longest_s = longest_wait_s(None if self.deadline is None else self.deadline - now)
        if delay_s > longest_s:
            return False
        if tried.limited:
            if tried.queues_until is None:
                tried.queues_until = now + longest_s
            if now + delay_s > tried.queues_until:
                return False
            role = AttemptRole.RETRY if tried.asked else AttemptRole.FIRST
            # It is due at once, because the call itself waits in the queue.
            self._plan(now, member, role, queues_until=tried.queues_until)
            return True
        if not (tried.retries_freely or self.may_retry(not (self._next or self._avoided))):
            return False
        tried.retries += 1
        self._plan(now + delay_s, member, AttemptRole.RETRY)
        return True

    def _plan(
        self,
        at: float,
        member: int,
        role: AttemptRole,
        *,
        ignore_breaker: bool = False,
        queues_until: float | None = None,
    ) -> None:
        self._planned.append((at, AttemptStart(member, role, ignore_breaker, queues_until)))


# --- the pace of a batch --------------------------------------------------------------------------

FIRST_LIMIT = 4.0
"""The number of concurrent calls with which a batch begins."""
AFTER_REFUSAL, AFTER_SLOW_ROUND = 0.5, 0.8
"""The factors that lower the limit."""
SLOW = 2.0
"""A round of answers that takes this many times the usual time is a sign of too many calls."""
LEAST_ANSWERS = 16
"""A round has as many answers as the limit, but at least this number for a meaningful mean."""
SLOWER_STILL = 1.1
"""A slow round that takes this multiple of the slow one before starts a new row of slow rounds."""
MOST_SLOW_ROUNDS, STILL_SLOW = 3, 0.75
"""If three lower limits in a row do not bring the time below 75 %, the limit is not the reason: the
requests now take longer, and the new time becomes the usual one."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""The pause after a refusal that names no time. It doubles until a call is answered."""
MOST_REFUSED_ROUNDS = 10
"""Number of refused rounds in a row that end the batch."""


class BatchPace(Frozen):
    """The state of the search for the provider's limit. Times are of one monotonic clock."""

    most: int
    """The limit never rises above this number of calls."""
    limit: float = FIRST_LIMIT
    searching: bool = True
    """Whether there was no sign of too many calls yet."""
    lowered_at: float = -math.inf
    """The time of the last change. A call that began earlier says nothing about the present
    limit."""
    resumes_at: float = -math.inf
    """No call may begin before this time."""
    refusals: int = 0
    """Refused rounds since the last answer."""
    usual_s: float | None = None
    """The time of an answer while the limit is not reached."""
    slow_rounds: int = 0
    """Slow rounds in a row, each with a lower limit."""
    slow_s: float = 0.0
    """The mean time of an answer in the first of the slow rounds."""
    answers: int = 0
    """The answers of this round."""
    seconds: float = 0.0
    """The sum of the times of this round's answers."""
    most_in_flight: int = 0
    """The most calls that ran at once in this round."""

    @property
    def calls(self) -> int:
        """The number of calls that may run at once."""
        return max(1, min(int(self.limit), self.most))

    @property
    def gives_up(self) -> bool:
        """Whether the provider refuses everything, so that the batch ends."""
        return self.refusals >= MOST_REFUSED_ROUNDS


def pace_after_answer(
    pace: BatchPace, *, began: float, took_s: float, in_flight: int, now: float
) -> BatchPace:
    """Return the pace after an answer of a provider.

    The call began at ``began``, and its first content came ``took_s`` later. ``in_flight`` is the
    number of calls that ran, with this one: if there were fewer than allowed, they did not test the
    limit.
    """
    pace = msgspec.structs.replace(pace, refusals=0)
    if began < pace.lowered_at:
        return pace
    pace = msgspec.structs.replace(
        pace,
        answers=pace.answers + 1,
        seconds=pace.seconds + took_s,
        most_in_flight=max(pace.most_in_flight, in_flight),
    )
    return _after_round(pace, now) if pace.answers >= max(LEAST_ANSWERS, pace.limit) else pace


def _after_round(pace: BatchPace, now: float) -> BatchPace:
    """Return the pace after a round of answers: a lower one if they took long."""
    mean_s = pace.seconds / pace.answers
    tested = pace.most_in_flight >= pace.calls  # else the limit was not reached, and stays
    pace = msgspec.structs.replace(pace, answers=0, seconds=0.0, most_in_flight=0)
    usual_s = mean_s if pace.usual_s is None else min(mean_s, pace.usual_s)
    if mean_s <= SLOW * usual_s:
        raised = pace.limit * 2.0 if pace.searching else pace.limit + 1.0
        limit = min(float(pace.most), raised) if tested else pace.limit
        return msgspec.structs.replace(pace, limit=limit, usual_s=usual_s, slow_rounds=0)
    rounds, slow_s = pace.slow_rounds + 1, pace.slow_s
    if rounds == 1 or mean_s > SLOWER_STILL * slow_s:
        rounds, slow_s = 1, mean_s
    elif rounds > MOST_SLOW_ROUNDS and mean_s > STILL_SLOW * slow_s:
        return msgspec.structs.replace(pace, usual_s=mean_s, slow_rounds=0)
    pace = msgspec.structs.replace(pace, slow_rounds=rounds, slow_s=slow_s)
    return _lowered(pace, AFTER_SLOW_ROUND, now)


def pace_after_refusal(
    pace: BatchPace, *, began: float, wait_s: float | None, now: float
) -> BatchPace:
    """Return the pace after a refusal.

    ``wait_s`` is the time after which the provider may be asked again; None: it names none.
    """
    if began >= pace.lowered_at:  # only the first refusal of a round lowers the limit
        pace = msgspec.structs.replace(
            _lowered(pace, AFTER_REFUSAL, now), refusals=pace.refusals + 1
        )
    if wait_s is None:
        doubled_s = FIRST_PAUSE_S * 2.0 ** (pace.refusals - 1)
        wait_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, doubled_s))
    return msgspec.structs.replace(pace, resumes_at=max(pace.resumes_at, now + wait_s))


def pace_after_late_answer(pace: BatchPace, *, began: float, now: float) -> BatchPace:
    """Return the pace after a call that was refused first and answered on a later try."""
    return _lowered(pace, AFTER_REFUSAL, now) if began >= pace.lowered_at else pace


def _lowered(pace: BatchPace, factor: float, now: float) -> BatchPace:
    """Return the pace with a lower limit, at the beginning of a new round."""
    return msgspec.structs.replace(
        pace,
        limit=max(1.0, pace.limit * factor),
        searching=False,
        lowered_at=now,
        answers=0,
        seconds=0.0,
        most_in_flight=0,
    )


# --- slow streams ---------------------------------------------------------------------------------

SLOW_FACTOR = 10.0
"""A stream that is slower than usual by this factor lags."""
_SLOW_WINDOW_S = 10.0
"""The seconds of waiting over which the speed of a stream is judged."""
_SLOW_PIECES = 5
"""The fewest pieces in the window. With fewer, the stream has paused, and only the limits for
silence apply."""
_LONGEST_WAIT = 0.5
"""The largest share of the window for a single wait. After a longer wait the stream has paused, and
only the limits for silence apply."""


class ExpectedPace:
    """Detects a stream that is alive but far slower than usual for its upstream.

    Only the seconds of waiting for the upstream count, because a slow reader does not make an
    upstream slow.
    """

    __slots__ = ("_longest_s", "_pieces", "_tokens", "_usual", "_waited_s")

    def __init__(self, tokens_per_s: float) -> None:
        self._usual = tokens_per_s
        self._pieces = 0
        self._tokens = self._waited_s = self._longest_s = 0.0

    def lags(self, tokens: float, waited_s: float) -> bool:
        """Add a piece of ``tokens``, for which we waited ``waited_s`` seconds.

        Return whether the last window was far too slow.
        """
        self._pieces += tokens > 0
        self._tokens += tokens
        self._waited_s += waited_s
        self._longest_s = max(self._longest_s, waited_s)
        if self._waited_s < _SLOW_WINDOW_S:
            return False
        slow = self._tokens * SLOW_FACTOR < self._usual * self._waited_s
        steady = self._longest_s <= _LONGEST_WAIT * self._waited_s
        late = slow and steady and self._pieces >= _SLOW_PIECES
        self._pieces = 0
        self._tokens = self._waited_s = self._longest_s = 0.0
        return late
