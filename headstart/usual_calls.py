"""The usual times of calls, with which hits are compared, and the cost of machines by the hour.

A hit saves the time that its request would have taken without the cache. That is not the time of
the call that made its answer, but the time of comparable calls at about the same moment.
``docs/report.md`` describes the method, ``docs/decisions/0043-hits-beside-recent-calls.md`` gives
the reasons.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from math import exp, log
from operator import add
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from headstart.attempts import PREFIX_TOKENS, PREFIX_TTL_S, Attempt
from headstart.decisions import Outcome
from headstart.types import Frozen, Latest, ulid_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from headstart.observe import Served


MINUTE_S = 60
BLOCK_CALLS = 25
"""The fewest calls with which a hit is compared. They are the calls of the minutes around it."""
MOST_KINDS = 200
MOST_PROMPTS = 20_000
"""The number of prompts for which the time of the last request is remembered."""
FEWEST_CALLS = 5
"""With fewer calls of a kind, the calls of a wider kind are taken, too."""
MOST_OUTLIERS = 0.005
"""The largest share of outliers. If more calls are so slow, slow calls are usual for the provider,
and none is cut."""
FENCE = 5.0
"""On a logarithmic scale, an outlier lies above the upper quartile by more than this number of
times the distance between the median and the upper quartile. If the logarithms are normal, this is
four standard deviations above the median."""


class CallKind(NamedTuple):
    """The properties that comparable calls have in common. ``""`` and None stand for any value."""

    endpoint: str
    route: str | None
    model: str
    stream: bool | None


class UsualCall(NamedTuple):
    """A call that a client waited for, without our own time. ``at`` is in Unix seconds."""

    at: float
    total_s: float
    ttft_s: float | None
    """None: it was not streamed, so the time is not known."""
    tokens: int
    """The length of the answer; of the prompt, if the answer has none."""


def kind_of(row: Served) -> CallKind:
    """Return the kind of call that a request is, or would have been."""
    return CallKind(row.endpoint, row.route, row.model, row.stream)


def tokens_of(row: Served) -> int:
    """Return the tokens on which the time of such a call depends."""
    return row.completion_tokens or row.prompt_tokens


def own_times(row: Served) -> tuple[float, float]:
    """Return total time and time to first token of a request, from the end of its body on."""
    ttft_s = row.total_s if row.ttft_s is None else row.ttft_s
    return row.total_s - row.read_s, ttft_s - row.read_s


def usual_call(row: Served) -> UsualCall | None:
    """Return the call of a request that went to the provider and succeeded, else None.

    A batch that the cache answered in part is not a usual call.
    """
    if not row.succeeded or row.outcome is not Outcome.MISS or row.saved_tokens:
        return None
    total_s, ttft_s = own_times(row)
    return UsualCall(
        row.at,
        max(0.0, total_s - row.overhead_s),
        max(0.0, ttft_s - row.overhead_s),
        tokens_of(row),
    )


def original_call(row: Served) -> UsualCall:
    """Return the call that made the answer of a hit. The id of its entry tells when it was made."""
    made_at = None if row.entry is None else ulid_time(row.entry)
    at = row.at if made_at is None else made_at
    total_s, ttft_s = own_times(row)
    first_s = None if row.saved_ttft_s is None else max(0.0, row.saved_ttft_s + ttft_s)
    return UsualCall(at, max(0.0, row.saved_total_s + total_s), first_s, tokens_of(row))


def fence(values: Sequence[float]) -> float:
    """Return the time to which longer times are cut; the largest value if there are no outliers.

    With fewer than ``FEWEST_CALLS`` values it is their median.
    """
    ordered = sorted(values)
    last = len(ordered) - 1
    if last < FEWEST_CALLS - 1:
        return ordered[last // 2]
    median, quartile = ordered[last // 2], ordered[(3 * last) // 4]
    if median <= 0.0:
        return ordered[last]
    limit = exp(log(quartile) + FENCE * (log(quartile) - log(median)))
    outliers = len(ordered) - bisect_right(ordered, limit)
    return limit if outliers <= max(1.0, MOST_OUTLIERS * len(ordered)) else ordered[last]


def freedom_of(rests: Sequence[float]) -> float:
    """Return the degrees of freedom of a variance, from the deviations ``rests`` from the mean.

    If a few values make up most of the variance, its estimate is less certain, so the degrees of
    freedom are fewer than the values: 2 n / (kurtosis - 1).
    """
    most = max(1.0, len(rests) - 1.0)
    squares = sum(rest**2 for rest in rests)
    fourth = sum(rest**4 for rest in rests)
    if not squares:
        return most
    kurtosis = len(rests) * fourth / squares**2
    return min(most, 2 * len(rests) / (kurtosis - 1)) if kurtosis > 1 else most


class RecentPrompts:
    """Remembers when stored prompts were asked, to find hits that would have been prefix reads.

    Without its cache, the provider would have read such a prompt from its own prefix cache. The
    report does the same with all times of a prompt (``report/estimates.py``).
    """

    def __init__(self) -> None:
        self._asked_at: Latest[str, float] = Latest(MOST_PROMPTS)
        """The time of the last request for an entry's prompt."""

    def prefix_usd(self, row: Served) -> float:
        """Return the savings that a hit loses because its prompt was asked shortly before."""
        if row.entry is None or not row.succeeded or row.prompt_tokens < PREFIX_TOKENS:
            return 0.0
        before = self._asked_at.get(row.entry, ulid_time(row.entry))
        self._asked_at[row.entry] = row.at
        lately = before is not None and row.at - before <= PREFIX_TTL_S
        return row.saved_prefix_usd if lately else 0.0

    def would_have_cost_usd(self, row: Served) -> float:
        """Return the bill for a request without Headstart, with a warm prefix cache."""
        return row.would_have_cost_usd - self.prefix_usd(row)


class AvoidedSums:
    """Sums over requests that were not sent to the provider, such as hits. Times are their own."""

    __slots__ = ("first_s", "requests", "tokens", "total_s")

    def __init__(self) -> None:
        self.requests = self.tokens = 0
        self.total_s = self.first_s = 0.0

    def add(self, row: Served) -> None:
        """Add a request."""
        total_s, first_s = own_times(row)
        self.requests += 1
        self.tokens += tokens_of(row)
        self.total_s += total_s
        self.first_s += first_s

    def merge(self, other: AvoidedSums) -> None:
        """Add all requests of other sums."""
        self.requests += other.requests
        self.tokens += other.tokens
        self.total_s += other.total_s
        self.first_s += other.first_s


class AvoidedCalls(defaultdict[CallKind, defaultdict[int, AvoidedSums]]):
    """Sums over avoided calls, by kind of call and by minute."""

    def __init__(self) -> None:
        super().__init__(lambda: defaultdict(AvoidedSums))

    def add(self, row: Served) -> None:
        """Add a request."""
        self[kind_of(row)][int(row.at // MINUTE_S)].add(row)

    def merge(self, other: AvoidedCalls) -> None:
        """Add all requests of other sums."""
        for kind, minutes in other.items():
            for minute, avoided in minutes.items():
                self[kind][minute].merge(avoided)


class Expected(NamedTuple):
    """The seconds that avoided calls would have taken, as an estimate with its variance."""

    seconds: float = 0.0
    own_s: float = 0.0
    """The seconds that the requests took themselves. Only those that could be compared count."""
    requests: int = 0
    variance: float = 0.0
    outliers_s: float = 0.0
    """The seconds by which ``seconds`` would be larger if outliers counted in full."""

    @property
    def saved_s(self) -> float:
        """The seconds that these requests saved."""
        return self.seconds - self.own_s

    def plus(self, other: Expected) -> Expected:
        """Add other requests, which were compared with other calls."""
        return Expected(*map(add, self, other))


class TimedCall(NamedTuple):
    """One time of a call: the whole time, or the time to its first token."""

    at: float
    """Its arrival in Unix seconds."""
    seconds: float
    tokens: int


class _Block(NamedTuple):
    """The calls of some minutes."""

    until: float
    """Its last minute."""
    calls: int
    mean_s: float
    tokens: float
    """The mean length of the answers."""


class UsualTimes:
    """The usual times of calls of one kind, by minute and by the length of the answer.

    Times are cut at ``fence_s``. Within a block of minutes, the expected time of a call is the
    block's mean, plus ``slope`` seconds for each token above the block's mean.
    """

    def __init__(self, calls: Sequence[TimedCall]) -> None:
        """``calls``: at least one."""
        self.calls = len(calls)
        self.fence_s = fence_s = fence([call.seconds for call in calls])
        beyond = [call.seconds - fence_s for call in calls if call.seconds > fence_s]
        self.outliers = len(beyond)
        self.outlier_s = sum(beyond) / self.calls
        """The seconds that outliers add to the mean call."""
        groups = [
            [TimedCall(call.at, min(call.seconds, fence_s), call.tokens) for call in group]
            for group in _by_minutes(calls)
        ]
        self._blocks = list(map(_block_of, groups))
        moments = [
            (call.tokens - block.tokens, call.seconds - block.mean_s)
            for block, group in zip(self._blocks, groups, strict=True)
            for call in group
        ]
        self._spread = sum(x * x for x, _ in moments)
        slope = sum(x * y for x, y in moments) / self._spread if self._spread else 0.0
        self.slope = max(0.0, slope)
        rests = [y - self.slope * x for x, y in moments]
        freedom = self.calls - len(self._blocks) - (self.slope > 0.0)
        self.variance = sum(rest * rest for rest in rests) / freedom if freedom > 0 else 0.0
        """The variance of one call around its expected time."""
        self.variance_of_all = self.variance + self.slope**2 * self._spread / self.calls
        """The variance of one call, also for the length of its answer."""
        self.freedom = freedom_of(rests)

    def expected_s(self, minute: float, tokens: float) -> float:
        """Return the expected seconds of one call."""
        block = self._block(minute)
        return max(0.0, block.mean_s + self.slope * (tokens - block.tokens))

    def expected(self, minutes: Mapping[int, AvoidedSums], *, first: bool = False) -> Expected:
        """Return the expected seconds of requests. ``first``: of their first tokens."""
        sums: dict[_Block, AvoidedSums] = defaultdict(AvoidedSums)
        for minute, avoided in minutes.items():
            sums[self._block(minute)].merge(avoided)
        seconds = own_s = variance = tilt = 0.0
        requests = 0
        for block, avoided in sums.items():
            number, more = avoided.requests, avoided.tokens - avoided.requests * block.tokens
            seconds += max(0.0, number * block.mean_s + self.slope * more)
            own_s += avoided.first_s if first else avoided.total_s
            variance += number * number * self.variance / block.calls
            tilt += more
            requests += number
        if self.slope:
            variance += tilt * tilt * self.variance / self._spread
        return Expected(seconds, own_s, requests, variance, requests * self.outlier_s)

    def _block(self, minute: float) -> _Block:
        place = bisect_left(self._blocks, minute, key=lambda block: block.until)
        return self._blocks[min(place, len(self._blocks) - 1)]


def _block_of(calls: Sequence[TimedCall]) -> _Block:
    mean_s = fmean([call.seconds for call in calls])
    tokens = fmean([call.tokens for call in calls])
    return _Block(calls[-1].at // MINUTE_S, len(calls), mean_s, tokens)


def _by_minutes(calls: Sequence[TimedCall]) -> list[list[TimedCall]]:
    """Divide calls into blocks of whole minutes, each with ``BLOCK_CALLS`` calls or more."""
    blocks: list[list[TimedCall]] = [[]]
    for call in sorted(calls):
        last = blocks[-1]
        if len(last) >= BLOCK_CALLS and call.at // MINUTE_S > last[-1].at // MINUTE_S:
            blocks.append([])
        blocks[-1].append(call)
    if len(blocks) > 1 and len(blocks[-1]) < BLOCK_CALLS:
        short = blocks.pop()
        blocks[-1].extend(short)
    return blocks


class UsualCalls:
    """Collects the calls of the books, and compares hits with them.

    With ``most``, only this number of the latest calls of a kind is kept, and only ``MOST_KINDS``
    kinds.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._calls: dict[CallKind, deque[UsualCall]] = {}
        self._originals: dict[CallKind, dict[str, UsualCall]] = {}
        self._fitted: dict[tuple[CallKind, bool], UsualTimes | None] = {}

    def add(self, row: Served) -> None:
        """Look at a request. A hit brings the call that made its answer."""
        kind = kind_of(row)
        if row.outcome.is_hit:
            self._add_original(row, kind)
            return
        call = usual_call(row)
        if call is not None and self._has_room(self._calls, kind):
            self._calls.setdefault(kind, deque(maxlen=self._most)).append(call)
            self._fitted.clear()

    def _add_original(self, row: Served, kind: CallKind) -> None:
        entry = row.entry
        if entry is None or not row.succeeded or not self._has_room(self._originals, kind):
            return
        originals = self._originals.setdefault(kind, {})
        if entry not in originals and (self._most is None or len(originals) < self._most):
            originals[entry] = original_call(row)
            self._fitted.clear()

    def _has_room(self, kinds: Mapping[CallKind, object], kind: CallKind) -> bool:
        return self._most is None or kind in kinds or len(kinds) < MOST_KINDS

    def times_of(self, kind: CallKind, *, first: bool = False) -> UsualTimes | None:
        """Return the usual times of calls of a kind; None: nothing is known.

        With ``first`` they are the times until first tokens. An answer that is not streamed has its
        first token at its end.
        """
        first = first and kind.stream is True
        place = (kind, first)
        if place not in self._fitted:
            found = self._comparable(kind, first=first)
            self._fitted[place] = UsualTimes(found) if found else None
        return self._fitted[place]

    def expected(self, avoided: AvoidedCalls, *, first: bool = False) -> Expected:
        """Return the time that requests would have taken. ``first``: until their first tokens."""
        whole = Expected()
        for kind, minutes in avoided.items():
            usual = self.times_of(kind, first=first)
            if usual is not None:
                whole = whole.plus(usual.expected(minutes, first=first))
        return whole

    def outliers(self, avoided: AvoidedCalls) -> int:
        """Return the number of outliers among the calls with which requests are compared."""
        models = {self.times_of(kind) for kind in avoided}
        return sum(each.outliers for each in models if each is not None)

    def _comparable(self, kind: CallKind, *, first: bool) -> list[TimedCall]:
        """Return the calls of a kind, else of a wider kind, else those that made the answers."""
        wider = [kind, kind._replace(route=None)]
        if not first:
            wider.append(kind._replace(route=None, stream=None))
        for each in wider:
            found = self._timed(self._of(each), first=first)
            if len(found) >= FEWEST_CALLS:
                return found
        return self._timed([*self._of(kind), *self._originals.get(kind, {}).values()], first=first)

    def _of(self, kind: CallKind) -> Sequence[UsualCall]:
        if kind.route is not None:
            return self._calls.get(kind, ())
        return [
            call
            for known, calls in self._calls.items()
            if known.endpoint == kind.endpoint and known.model == kind.model
            if kind.stream is None or known.stream == kind.stream
            for call in calls
        ]

    @staticmethod
    def _timed(calls: Iterable[UsualCall], *, first: bool) -> list[TimedCall]:
        if first:
            # The length of an answer tells nothing about its first token.
            return [TimedCall(call.at, call.ttft_s, 0) for call in calls if call.ttft_s is not None]
        return [TimedCall(call.at, call.total_s, call.tokens) for call in calls]


# --- machines that cost dollars an hour -----------------------------------------------------------


class Machine(NamedTuple):
    """The prices of one upstream with ``price_per_hour``."""

    usd_per_hour: float
    metered_usd: Callable[[Attempt], float | None]
    """The cost of a call at the price by tokens; None: no price is known."""


def machine_name(upstream: str) -> str:
    """Return the upstream's name without the number of its key: its keys are one machine."""
    return upstream.partition("#")[0]


class MachineStats(Frozen, omit_defaults=False):
    """An upstream that costs dollars an hour, over some time. None means "not known"."""

    name: str
    hours: float
    usd: float
    """Its cost in this time, busy or not."""
    calls: int
    busy_share: float | None
    """The share of the time in which at least one call was under way."""
    calls_at_a_time: float
    """The mean number of calls under way."""
    prompt_tokens: int
    completion_tokens: int
    usd_per_million: float | None
    """Its whole cost for each million answer tokens, at the load of this time."""
    metered_usd: float | None
    """The cost of the same calls at the price by tokens; None: no such price is known."""
    break_even_load: float | None
    """The multiple of this time's load at which it costs as much as the price by tokens."""
    break_even_tokens_per_hour: float | None
    """The answer tokens an hour at that load."""


class MachineUse:
    """Sums over the calls of one machine."""

    __slots__ = ("called_s", "calls", "completion_tokens", "metered_usd", "prompt_tokens")

    def __init__(self) -> None:
        self.calls = self.prompt_tokens = self.completion_tokens = 0
        self.called_s = 0.0
        self.metered_usd: float | None = None

    def add(self, attempt: Attempt, machine: Machine) -> None:
        """Count one call."""
        self.calls += 1
        self.called_s += attempt.total_s
        self.prompt_tokens += attempt.prompt_tokens
        self.completion_tokens += attempt.completion_tokens
        self._charge(machine.metered_usd(attempt))

    def merge(self, other: MachineUse) -> None:
        """Add the sums of another time."""
        self.calls += other.calls
        self.called_s += other.called_s
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self._charge(other.metered_usd)

    def stats(
        self, name: str, usd_per_hour: float, seconds: float, busy_s: float | None = None
    ) -> MachineStats:
        """Return the figures over a time of this many seconds, more than 0."""
        usd = usd_per_hour * seconds / 3600
        tokens, metered = self.completion_tokens, self.metered_usd
        return MachineStats(
            name=name,
            hours=seconds / 3600,
            usd=usd,
            calls=self.calls,
            busy_share=None if busy_s is None else min(1.0, busy_s / seconds),
            calls_at_a_time=self.called_s / seconds,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=tokens,
            usd_per_million=usd / tokens * 1e6 if tokens else None,
            metered_usd=metered,
            break_even_load=usd / metered if metered else None,
            break_even_tokens_per_hour=(
                tokens * usd_per_hour / metered if metered and tokens else None
            ),
        )

    def _charge(self, usd: float | None) -> None:
        if usd is not None:
            self.metered_usd = (self.metered_usd or 0.0) + usd
