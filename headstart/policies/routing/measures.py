"""The measurements of upstreams: time to first token, speed, gaps, load, and lengths of answers.

``Measures`` learns from each call, and tells what to expect of the next one. A streamed call gives
``began``, ``first`` at its first token (``censored`` if it is cancelled before), ``gaps`` now and
then, and ``answered`` at its end (``ended`` without a whole answer). If ``first_token`` then says
0.4 s and 80 tokens a second, an answer of 200 tokens is expected after 0.4 + 200 / 80 = 2.9 s. The
two are learned separately, because a long prompt delays the first token but not the others.

The file begins with the estimators: quantiles, ratios, and the factor of slow calls at present.
They use constant memory, and old samples fade. Every ``now`` is in seconds of one monotonic clock.
``docs/routing.md`` has the defaults and their sources.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import OrderedDict, defaultdict, deque
from functools import partial
from itertools import accumulate, chain
from operator import mul, sub
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from headstart.attempts import PREFIX_TTL_S
from headstart.policies.routing.whole_times import WholeTimes
from headstart.types import Latest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# --- estimators ----------------------------------------------------------------------------------

GROWTH = 1.05
"""Each bin of a histogram ends at this many times its begin."""
SHORTEST_S = 0.001
LONGEST_S = 600.0
"""Shorter and longer times count in the first and in the last bin."""
_SCALE = 1 / math.log(GROWTH)
"""Bins for each factor of e: the bin of a time is ``log(time / SHORTEST_S) * _SCALE``."""
HISTOGRAM_BINS = math.ceil(math.log(LONGEST_S / SHORTEST_S) * _SCALE)
LATE = (0.5, 0.25, 0.15, 0.1, 0.075, 0.05, 0.02, 0.01)
"""The shares for which ``Quantiles.late`` returns the time that such a share of samples exceeds."""
_REBASE = 64.0
"""Number of half-lives after which the weights are scaled back to the size of one."""
_STALE = 0.02
"""The curve is computed again when samples that it lacks have this share of the weight."""


class SavedHistogram(msgspec.Struct, array_like=True):
    """A saved histogram: the bins that are not empty, with their samples and censored samples."""

    indices: list[int]
    seen: list[float]
    censored: list[float]


def _empty_bins() -> array[float]:
    return array("d", bytes(8 * HISTOGRAM_BINS))


class Quantiles:
    """Quantiles of a stream of seconds.

    A histogram whose bins grow by 5 % (DDSketch: Masson, Rim and Lee, VLDB 2019) from 1 ms to 10
    minutes: a quantile is off by 2.5 % at most, and by less where its bin is interpolated. Old
    samples fade by forward decay (Cormode, Shkapenyuk, Srivastava and Xu, ICDE 2009): a new sample
    weighs more, instead of each old one less. A call that was cancelled while it waited is a
    censored sample: it would have taken at least that long. The curve is the life-table form of
    Kaplan and Meier's estimator (Cutler and Ederer, 1958) and ends as Efron's does (1967): the
    samples that are censored in the last bin count as lying in it.

    ``at`` is a clock that does not run backwards, in the unit of ``half_life``: seconds, or a
    count of samples.
    """

    __slots__ = (
        "_added", "_base", "_censored", "_curve", "_first", "_half_life", "_highest", "_late",
        "_lowest", "_mean", "_seen", "_total", "_unit",
    )  # fmt: skip

    def __init__(self, half_life: float) -> None:
        self._half_life = half_life
        self._seen = _empty_bins()
        # None until the first one: most histograms never have one.
        self._censored: array[float] | None = None
        self._base = 0.0
        """The time at which a sample weighs one. A half-life later a sample weighs two."""
        self._total = 0.0
        """Weight of all samples."""
        self._added = 0.0
        """Weight of the samples that the curve lacks."""
        self._unit = 1.0
        """Weight of the newest sample."""
        self._lowest = HISTOGRAM_BINS
        """All bins below this one are empty."""
        self._highest = 0
        """All bins above this one are empty."""
        self._first = 0
        self._curve: list[float] = []
        """Share of the samples in the bins up to this one, from ``_first`` on."""
        self._mean = 0.0
        self._late: tuple[float, ...] = ()

    def add(self, seconds: float, at: float, *, censored: bool = False) -> None:
        """Learn a duration.

        ``censored``: it was cut short, and would have been at least this long.
        """
        self.add_all((seconds,), at, censored=censored)

    def add_all(self, seconds: Sequence[float], at: float, *, censored: bool = False) -> None:
        """Learn durations that came at the same time."""
        age = (at - self._base) / self._half_life
        if age > _REBASE or self._total == 0.0:
            self._rebase(at)
            age = 0.0
        weight = self._unit = math.exp2(age)
        bins = self._seen
        if censored:
            bins = self._censored = self._censored or _empty_bins()
        log, lowest, highest = math.log, self._lowest, self._highest
        for each in seconds:
            index = int(log(each / SHORTEST_S) * _SCALE) if each > SHORTEST_S else 0
            if index >= HISTOGRAM_BINS:
                index = HISTOGRAM_BINS - 1
            if index < lowest:  # noqa: PLR1730 - a call of min costs as much as all the rest
                lowest = index
            if index > highest:  # noqa: PLR1730
                highest = index
            bins[index] += weight
        self._lowest, self._highest = lowest, highest
        self._total += weight * len(seconds)
        self._added += weight * len(seconds)

    def weight(self, at: float) -> float:
        """Return the number of its samples. A sample that is a half-life old counts half."""
        if self._total == 0.0:
            return 0.0
        return self._total * math.exp2((self._base - at) / self._half_life)

    def quantile(self, share: float) -> float | None:
        """Return the seconds that ``share`` of the samples do not exceed; None without samples."""
        return self._at(share) if self._drawn() else None

    def late(self) -> tuple[float, ...]:
        """Return the seconds that the shares in ``LATE`` exceed; empty without samples."""
        if self._drawn() and not self._late:
            self._late = tuple(self._at(1.0 - share) for share in LATE)
        return self._late

    def mean(self) -> float | None:
        """Return the mean, winsorised so that two samples cannot move it; None without samples."""
        if not self._drawn():
            return None
        self._mean = self._mean or self._winsorised()
        return self._mean

    def saved(self, at: float) -> SavedHistogram:
        """Return the bins, with the weights that they have at the time ``at``."""
        scale = math.exp2((self._base - at) / self._half_life)
        seen = self._seen
        censored = self._censored or _empty_bins()
        indices = [i for i in range(HISTOGRAM_BINS) if (seen[i] + censored[i]) * scale > 1e-6]
        return SavedHistogram(
            indices,
            [seen[index] * scale for index in indices],
            [censored[index] * scale for index in indices],
        )

    def load(self, bins: SavedHistogram, at: float) -> None:
        """Take over saved bins, as if their samples had come at ``at``. Raises ValueError."""
        if any(not 0 <= index < HISTOGRAM_BINS for index in bins.indices):
            raise ValueError("a bin that this histogram does not have")
        self._seen = _empty_bins()
        self._censored = _empty_bins()
        for index, seen, censored in zip(bins.indices, bins.seen, bins.censored, strict=True):
            self._seen[index], self._censored[index] = seen, censored
        self._lowest = min(bins.indices, default=HISTOGRAM_BINS)
        self._highest = max(bins.indices, default=0)
        self._base, self._unit = at, 1.0
        self._total = self._added = sum(bins.seen) + sum(bins.censored)

    def _rebase(self, at: float) -> None:
        """Scale all weights so that a sample at the time ``at`` weighs one."""
        scale = math.exp2((self._base - at) / self._half_life) if self._total else 0.0
        self._seen = array("d", (weight * scale for weight in self._seen))
        if self._censored is not None:
            self._censored = array("d", (weight * scale for weight in self._censored))
        self._total *= scale
        self._added *= scale
        self._base, self._unit = at, 1.0

    def _at(self, share: float) -> float:
        """Return a quantile of the curve. Bins are interpolated on the logarithmic scale."""
        curve = self._curve
        index = min(bisect_left(curve, share), len(curve) - 1)
        below = curve[index - 1] if index else 0.0
        step = curve[index] - below
        inside = min(1.0, (share - below) / step) if step > 0.0 else 1.0
        return SHORTEST_S * math.exp((self._first + index + inside) / _SCALE)

    def _drawn(self) -> list[float]:
        """Return the curve, computed again if it lacks many samples; empty without samples."""
        if self._added > _STALE * self._total:
            self._added = 0.0
            censored = self._censored
            self._curve = self._shares() if censored is None else self._surviving_shares(censored)
            self._curve[-1] = 1.0
            self._mean, self._late = 0.0, ()
        return self._curve

    def _shares(self) -> list[float]:
        """Return the curve of a histogram without censored samples."""
        self._first = self._lowest
        total = self._total
        below = list(accumulate(self._seen[self._lowest : self._highest + 1]))
        # The curve ends where it has all the weight, but for errors of rounding.
        end = bisect_left(below, total - 1e-9 * total)
        return [weight / total for weight in below[: end + 1]]

    def _surviving_shares(self, censored: array[float]) -> list[float]:
        """Return the curve by Kaplan and Meier's estimator.

        In each bin, some of the samples that got so far (``at_risk``) end there. The share that
        goes on multiplies the share of survivors. Censored samples count half in their own bin.
        """
        curve: list[float] = []
        surviving, at_risk = 1.0, self._total
        for index in range(self._lowest, self._highest + 1):
            died, lost = self._seen[index], censored[index]
            if not curve:
                if not died and not lost:
                    continue
                self._first = index
            if died:
                surviving *= max(0.0, 1.0 - died / max(at_risk - lost / 2, died))
            at_risk -= died + lost
            curve.append(1.0 - surviving)
            if at_risk <= 1e-9 * self._total:
                break
        return curve

    def _winsorised(self) -> float:
        """Return the mean if longer times count as ``most``, which two or more samples exceed."""
        two_samples = 2.0 * self._unit / self._total
        most = self._at(1.0 - min(0.5, max(0.01, two_samples)))
        curve, first = self._curve, self._first
        shares = map(sub, curve, chain((0.0,), curve))
        # Bins from here on count as ``most``.
        past = min(max(0, bisect_left(_MIDDLES_S, most) - first), len(curve))
        whole: float = sum(map(mul, shares, _MIDDLES_S[first : first + past]))
        return whole + most * (1.0 - curve[past - 1] if past else 1.0)


_MIDDLES_S = [SHORTEST_S * math.exp((index + 0.5) / _SCALE) for index in range(HISTOGRAM_BINS)]
"""The middle of each bin, on the logarithmic scale."""


class DecayingRatio:
    """A ratio of two sums whose old terms fade: tokens to seconds, or a mean (terms to ones).

    A ratio of sums weighs each call by its size, so a call of ten tokens has less influence on a
    speed than one of a thousand.
    """

    __slots__ = ("_at", "_half_life_s", "above", "below")

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._at = 0.0
        self.above = 0.0
        self.below = 0.0

    def add(self, above: float, below: float, now: float) -> None:
        """Add a term to each sum."""
        fade = math.exp2((self._at - now) / self._half_life_s) if self.below else 0.0
        self.above = self.above * fade + above
        self.below = self.below * fade + below
        self._at = now

    @property
    def value(self) -> float | None:
        """The ratio; None before the first term."""
        return self.above / self.below if self.below else None


class PeakEWMA:
    """The factor by which calls are slower than usual at present; 1 or more.

    This is the peak EWMA of Finagle's load balancer: a slow call raises it at once, and it then
    decays with the time constant ``TAU_S``. There is one change: a model may stall for seconds
    without any effect on the next call. So only three slow calls in a row raise it (the probability
    is 1 in 8,000 while nothing is wrong), and the fastest of the three counts.
    """

    TAU_S = 30.0
    __slots__ = ("_at", "_before", "_earlier", "_level")

    def __init__(self) -> None:
        self._level = 1.0
        self._before = 1.0
        self._earlier = 1.0
        self._at = 0.0

    def add(self, factor: float, *, slow: bool, now: float) -> None:
        """Learn the ratio of a call's time to the usual time. ``slow``: it exceeds the p95."""
        factor = factor if slow else 1.0
        self._level = max(self.value(now), min(factor, self._before, self._earlier))
        self._before, self._earlier = factor, self._before
        self._at = now

    def value(self, now: float) -> float:
        """Return the factor as of ``now``."""
        return 1.0 + (self._level - 1.0) * math.exp((self._at - now) / self.TAU_S)


# --- measures ------------------------------------------------------------------------------------

FORMAT = 1
"""The version of the snapshots that ``Measures.saved`` writes."""
HALF_LIFE_S = 900.0
"""Age at which a time to first token, a speed or a length counts half."""
_GAPS_HALF_LIFE = 5000.0
"""Number of newer gaps after which a gap counts half."""
_LOAD_HALF_LIFE_S = 300.0
"""The same for the number of calls in flight."""
BUCKETS = (256, 1024, 4096, 16384, 65536)
"""Largest prompts, in tokens, of all buckets but the last."""
ENOUGH = 20
"""The fewest samples for a p95: one of 20 samples exceeds it."""
OUTPUT_TOKENS = 256.0
"""Expected length of an answer while no length is known."""
_FEW_STREAMS = 8
"""From this many streams on, the times of answers that were not streamed are no longer used."""
_MOST_UNREAD = 64
_MOST_KEYS = 256
"""The most upstreams and models with figures, and the most routes and endpoints with lengths."""
_MOST_SAVED = 64
"""The most upstreams and models in a snapshot."""
_LEAST_TOKENS = 8
"""A shorter answer tells no speed."""
_MOST_TOKENS_PER_S = 10_000.0
"""No hardware is faster than this: a faster answer was not streamed, but came in one burst."""
_LEAST_GAPS = 100
"""The fewest gaps for a p99."""
_FIRST_TOKEN_LIMIT_S = 30.0
_STALL_LIMIT_S = 5.0
"""The shortest wait for the next piece of an answer; longer with the measured gaps."""
_PATIENT_STALL_LIMIT_S = 30.0
"""The same while gaps are unknown, and where tools may be called."""


def bucket_of(prompt_tokens: int) -> int:
    """Return the bucket of a prompt's length, 0 for the shortest."""
    return bisect_left(BUCKETS, prompt_tokens)


class UpstreamModel(NamedTuple):
    """An upstream and one of its models: measures are kept for each."""

    upstream: str
    model: str


class FirstToken(NamedTuple):
    """The known times to first token of one kind of prompt."""

    samples: int = 0
    mean_s: float | None = None
    """The expected time. It rises while calls are slow or many are in flight."""
    late_s: tuple[float, ...] = ()
    """For each share in ``LATE``, the time that this share of the calls exceeds."""
    tokens_per_s: float | None = None
    """The decoding speed of one call after its first token."""


class _SavedFigures(msgspec.Struct, array_like=True):
    """Figures in a snapshot. New fields go last, with a default: older snapshots lack them."""

    key: tuple[str, str]
    ttft: dict[int, SavedHistogram]
    gaps: SavedHistogram
    speed: tuple[float, float]
    prompts: tuple[float, float] = (0.0, 0.0)
    whole: dict[int, tuple[float, float, float, float, float]] = {}


class _MeasuresHead(msgspec.Struct):
    format: int


class _SavedMeasures(_MeasuresHead):
    figures: list[_SavedFigures]
    lengths: dict[str, tuple[float, float]]


class _Figures:
    """The figures of one (upstream, model): times to first token by prompt length, and others."""

    __slots__ = (
        "gaps", "gaps_seen", "in_flight", "load", "peak", "prompts", "speed", "ttft", "unread",
        "whole",
    )  # fmt: skip

    def __init__(self) -> None:
        self.ttft = defaultdict[int, Quantiles](partial(Quantiles, HALF_LIFE_S))
        self.speed = DecayingRatio(HALF_LIFE_S)
        self.prompts = DecayingRatio(HALF_LIFE_S)
        """The ratio of the provider's count of prompt tokens to our estimates."""
        self.gaps = Quantiles(_GAPS_HALF_LIFE)
        self.gaps_seen = 0
        self.in_flight = 0
        self.load = DecayingRatio(_LOAD_HALF_LIFE_S)
        self.peak = PeakEWMA()
        self.whole = defaultdict[int, WholeTimes](partial(WholeTimes, HALF_LIFE_S))
        """Times of answers that were not streamed, by prompt length."""
        self.unread: deque[tuple[int, int, float, float]] = deque(maxlen=_MOST_UNREAD)
        """Times that are not in ``whole`` yet. ``read_whole`` adds them when they are needed."""

    def read_whole(self) -> None:
        """Add the times of answers that were not streamed."""
        while self.unread:
            prompt_tokens, completion, whole_s, at = self.unread.popleft()
            self.whole[bucket_of(prompt_tokens)].add(completion, whole_s, at)

    def end(self, gaps: Sequence[float]) -> None:
        """Count the end of a call, and learn the last gaps between its pieces."""
        if self.in_flight > 0:
            self.in_flight -= 1
        if gaps:
            self.learn_gaps(gaps)

    def learn_gaps(self, seconds: Sequence[float]) -> None:
        """Learn the seconds between the pieces of one answer."""
        self.gaps_seen += len(seconds)
        self.gaps.add_all(seconds, self.gaps_seen)

    def learn_speed(self, tokens: int, seconds: float, now: float) -> None:
        """Learn that ``tokens`` came in these seconds after the first one. A burst is ignored."""
        if tokens >= _LEAST_TOKENS and 0.0 < tokens <= seconds * _MOST_TOKENS_PER_S:
            self.speed.add(tokens, seconds, now)

    def stall_limits_s(self) -> tuple[float, float]:
        """Return how long to wait for a piece, without and with tools."""
        gap_s = self.gaps.quantile(0.99) if self.gaps_seen >= _LEAST_GAPS else None
        if gap_s is None:
            return _PATIENT_STALL_LIMIT_S, _PATIENT_STALL_LIMIT_S
        return max(_STALL_LIMIT_S, 10 * gap_s), max(_PATIENT_STALL_LIMIT_S, 10 * gap_s)

    def saved(self, key: tuple[str, str], now: float) -> _SavedFigures:
        """Return the figures to keep: all but the calls in flight and the present load."""
        self.read_whole()
        return _SavedFigures(
            key,
            {bucket: times.saved(now) for bucket, times in self.ttft.items()},
            self.gaps.saved(self.gaps_seen),
            (self.speed.above, self.speed.below),
            (self.prompts.above, self.prompts.below),
            {bucket: whole.saved(now) for bucket, whole in self.whole.items()},
        )

    @classmethod
    def restored(cls, saved: _SavedFigures, now: float) -> _Figures:
        """Return saved figures as if they were learned just now. Raises ValueError."""
        figures = cls()
        for bucket, bins in saved.ttft.items():
            figures.ttft[bucket].load(bins, now)
        figures.gaps.load(saved.gaps, 0.0)
        figures.gaps_seen = round(figures.gaps.weight(0.0))
        figures.speed.add(*saved.speed, now)
        figures.prompts.add(*saved.prompts, now)
        for bucket, sums in saved.whole.items():
            figures.whole[bucket].load(sums, now)
        return figures


_UNKNOWN = _Figures()
"""The figures of an (upstream, model) of which nothing is known. They are only read."""


class Measures:
    """Figures by (upstream, model), in bounded memory: the least recently used are evicted."""

    def __init__(self) -> None:
        self._figures: OrderedDict[UpstreamModel, _Figures] = OrderedDict()
        self._lengths: Latest[str, DecayingRatio] = Latest(_MOST_KEYS)

    @property
    def is_empty(self) -> bool:
        """True before the first call."""
        return not self._figures

    # --- learning --------------------------------------------------------------------------

    def began(self, key: UpstreamModel, now: float) -> tuple[float, float]:
        """Count the start of a call, which must also end (``ended`` or ``answered``).

        Return its ``stall_limits_s``.
        """
        figures = self._of(key)
        figures.load.add(figures.in_flight, 1.0, now)
        figures.in_flight += 1
        return figures.stall_limits_s()

    def ended(self, key: UpstreamModel, gaps: Sequence[float] = ()) -> None:
        """Count the end of a call, however it ended, and learn its last gaps."""
        self._of(key).end(gaps)

    def answered(
        self,
        key: UpstreamModel,
        now: float,
        *,
        route_or_endpoint: str,
        estimated: int,
        reported: int,
        completion: int,
        decoding_s: float,
        gaps: Sequence[float],
        whole_s: float,
    ) -> None:
        """Learn from a call that ended with its whole answer.

        ``estimated`` is our estimate of the prompt's tokens, ``reported`` the provider's count (0:
        it reported none), ``completion`` the tokens of the answer. ``decoding_s`` are the seconds
        from the first token to the end of a streamed answer, ``whole_s`` the seconds of an answer
        that was not streamed; the other one is 0. ``route_or_endpoint`` is that of ``length``,
        ``gaps`` are as in ``ended``.
        """
        figures = self._of(key)
        figures.end(gaps)
        if reported > 0 and estimated > 0:
            figures.prompts.add(reported, estimated, now)
            self._figures.move_to_end(key)
        self.length(route_or_endpoint, completion, now)
        if decoding_s:
            figures.learn_speed(completion, decoding_s, now)
        if whole_s:
            figures.unread.append((estimated, completion, whole_s, now))

    def whole(self, key: UpstreamModel, answers: Sequence[tuple[int, int, float, float]]) -> None:
        """Learn answers that were not streamed.

        Each is a tuple: tokens of the prompt, tokens of the answer, its seconds, and ``now``.
        """
        self._of(key).unread.extend(answers)

    def first(self, key: UpstreamModel, prompt_tokens: int, ttft_s: float, now: float) -> None:
        """Learn the time to the first token of a call."""
        self._learn(key, prompt_tokens, ttft_s, now, censored=False)

    def censored(self, key: UpstreamModel, prompt_tokens: int, waited_s: float, now: float) -> None:
        """Learn that a call was cancelled before its first token, which would have come later.

        Hedging cancels the slow calls. Without them, the rest would look fast.
        """
        self._learn(key, prompt_tokens, waited_s, now, censored=True)

    def speed(self, key: UpstreamModel, tokens: int, seconds: float, now: float) -> None:
        """Learn that ``tokens`` came in these seconds after the first one. A burst is ignored."""
        self._of(key).learn_speed(tokens, seconds, now)

    def gaps(self, key: UpstreamModel, seconds: Sequence[float]) -> None:
        """Learn the seconds between the pieces of one answer."""
        if seconds:
            self._of(key).learn_gaps(seconds)

    def length(self, route_or_endpoint: str, tokens: int, now: float, answers: float = 1.0) -> None:
        """Learn the sum of the ``tokens`` of some answers of a route or an endpoint."""
        for name in {route_or_endpoint, ""}:
            self._length_of(name).add(tokens, answers, now)

    def prompt(self, key: UpstreamModel, estimated: int, reported: int, now: float) -> None:
        """Learn the provider's token count of a prompt that was estimated."""
        if estimated > 0 and reported > 0:
            self._of(key).prompts.add(reported, estimated, now)
            self._figures.move_to_end(key)

    # --- expecting -------------------------------------------------------------------------

    def first_token(self, key: UpstreamModel, prompt_tokens: int, now: float) -> FirstToken:
        """Return the known times to first token of prompts of this length, and the speed.

        If there were few streams, and more answers that were not streamed, both figures are
        estimated from the times of the latter.
        """
        figures = self._figures.get(key, _UNKNOWN)
        if figures.unread:
            figures.read_whole()
        samples = _nearest(figures.ttft, bucket_of(prompt_tokens), now)
        if figures.whole and (samples is None or samples.weight(now) < _FEW_STREAMS):
            whole = _nearest(figures.whole, bucket_of(prompt_tokens), now)
            if whole is not None and (samples is None or whole.weight(now) > samples.weight(now)):
                # The line through the times of answers by their lengths: seconds to the first
                # token, and for each token after it.
                first_s, token_s = whole.line()
                first_s *= _crowding(figures)
                speed = 1.0 / token_s if token_s else None
                return FirstToken(round(whole.weight(now)), first_s, (), speed)
        mean_s = None if samples is None else samples.mean()
        if samples is None or mean_s is None:
            return FirstToken()
        mean_s *= figures.peak.value(now) * _crowding(figures)
        count = round(samples.weight(now))
        return FirstToken(count, mean_s, samples.late(), figures.speed.value)

    def ttft_s(
        self, key: UpstreamModel, prompt_tokens: int, share: float, now: float
    ) -> float | None:
        """Return the time to first token that ``share`` of the calls do not exceed."""
        samples = _nearest(self._figures.get(key, _UNKNOWN).ttft, bucket_of(prompt_tokens), now)
        return None if samples is None else samples.quantile(share)

    def prefill_s(self, key: UpstreamModel, prompt_tokens: int, now: float) -> float:
        """Return the seconds that the first token takes longer than after a short prompt.

        This is the difference of the medians, or 0 if one of them has too few samples.
        """
        buckets = self._figures.get(key, _UNKNOWN).ttft
        long, short = buckets.get(bucket_of(prompt_tokens)), buckets.get(0)
        if long is None or short is None or min(long.weight(now), short.weight(now)) < ENOUGH:
            return 0.0
        return max(0.0, (long.quantile(0.5) or 0.0) - (short.quantile(0.5) or 0.0))

    def tokens_per_s(self, key: UpstreamModel) -> float | None:
        """Return the decoding speed of one call after its first token."""
        return self._figures.get(key, _UNKNOWN).speed.value

    def expected_length(self, route_or_endpoint: str) -> float:
        """Return the mean length of answers of a route or endpoint, else of all, else a default."""
        lengths = self._lengths.get(route_or_endpoint) or self._lengths.get("")
        return (lengths and lengths.value) or OUTPUT_TOKENS

    def prompt_tokens(self, key: UpstreamModel, estimated: int) -> int:
        """Return the tokens that the provider will count for a prompt, by its past counts."""
        ratio = self._figures.get(key, _UNKNOWN).prompts.value
        return estimated if ratio is None else round(estimated * ratio)

    def in_flight(self, key: UpstreamModel) -> int:
        """Return how many calls are under way."""
        return self._figures.get(key, _UNKNOWN).in_flight

    def first_token_limit_s(self, key: UpstreamModel, prompt_tokens: int, now: float) -> float:
        """Return how long to wait for a first token: 30 s, or four times its p99 if more."""
        return max(_FIRST_TOKEN_LIMIT_S, 4 * (self.ttft_s(key, prompt_tokens, 0.99, now) or 0.0))

    def stall_limits_s(self, key: UpstreamModel) -> tuple[float, float]:
        """Return how long to wait for the next piece, without and with tools.

        It is 5 s, or ten times the p99 gap if more. It is at least 30 s while gaps are unknown, and
        where tools may be called: some providers send nothing while they write a call, and then
        send it whole.
        """
        return self._figures.get(key, _UNKNOWN).stall_limits_s()

    # --- keeping ---------------------------------------------------------------------------

    def saved(self, now: float) -> bytes:
        """Return a snapshot of the figures of the keys that were used last."""
        recent = list(self._figures.items())[-_MOST_SAVED:]
        figures = [each.saved(key, now) for key, each in recent]
        lengths = {name: (each.above, each.below) for name, each in self._lengths.items()}
        return msgspec.msgpack.encode(_SavedMeasures(FORMAT, figures, lengths))

    def load(self, data: bytes, now: float) -> bool:
        """Take over a snapshot, as if it was learned just now; False if its version differs.

        It replaces the figures of the same keys.
        """
        try:
            if msgspec.msgpack.decode(data, type=_MeasuresHead).format != FORMAT:
                return False
            saved = msgspec.msgpack.decode(data, type=_SavedMeasures)
            learned = {
                UpstreamModel(*each.key): _Figures.restored(each, now) for each in saved.figures
            }
        except (msgspec.DecodeError, ValueError):
            return False
        for key, figures in learned.items():
            figures.in_flight = self.in_flight(key)
            self._figures[key] = figures
        for name, (above, below) in saved.lengths.items():
            self._length_of(name).add(above, below, now)
        return True

    # --- internals -------------------------------------------------------------------------

    def _of(self, key: UpstreamModel) -> _Figures:
        """Return the figures of a key, to learn. Keys without figures are evicted first.

        Callers name models, so most keys may be made up. A key has figures once an answer has come.
        """
        figures = self._figures.get(key)
        if figures is None:
            if len(self._figures) >= _MOST_KEYS:
                self._figures.popitem(last=False)
            figures = self._figures[key] = _Figures()
        known = figures.ttft or figures.whole or figures.unread or figures.prompts.below
        self._figures.move_to_end(key, last=bool(known))
        return figures

    def _length_of(self, route_or_endpoint: str) -> DecayingRatio:
        """Return the lengths of a route or endpoint, to learn, as the most recently used ones."""
        lengths = self._lengths.get(route_or_endpoint)
        if lengths is None:
            lengths = self._lengths[route_or_endpoint] = DecayingRatio(HALF_LIFE_S)
        else:
            self._lengths.move_to_end(route_or_endpoint)
        return lengths

    def _learn(
        self, key: UpstreamModel, prompt_tokens: int, seconds: float, now: float, *, censored: bool
    ) -> None:
        """Learn a time to first token, and whether the upstream is slower than usual at present."""
        figures, bucket = self._of(key), bucket_of(prompt_tokens)
        samples = figures.ttft.get(bucket)
        if samples is None:
            samples = figures.ttft[bucket]
            self._figures.move_to_end(key)
        elif samples.weight(now) >= ENOUGH:
            late = samples.quantile(0.95)
            # A call that was cancelled before it was late may have been slow or quick.
            if late and (seconds > late or not censored):
                slow = seconds > late
                factor = seconds / (samples.mean() or seconds) if slow else 1.0
                figures.peak.add(factor, slow=slow, now=now)
        samples.add(seconds, now, censored=censored)


_Samples = TypeVar("_Samples", Quantiles, WholeTimes)


def _nearest(by_bucket: Mapping[int, _Samples], bucket: int, now: float) -> _Samples | None:
    """Return the samples of the bucket, if there are enough, or else of the nearest with enough.

    If no bucket has enough samples, return those of the bucket with the most.
    """
    own = by_bucket.get(bucket)
    if own is not None and (len(by_bucket) == 1 or own.weight(now) >= ENOUGH):
        return own
    near = [by_bucket[each] for each in sorted(by_bucket, key=lambda other: abs(other - bucket))]
    enough = (samples for samples in near if samples.weight(now) >= ENOUGH)
    return next(enough, None) or max(near, key=lambda samples: samples.weight(now), default=None)


def _crowding(figures: _Figures) -> float:
    """Return the factor by which calls in flight delay a call, as in least-loaded balancing.

    Measured times already hold the usual load. So only a load that chance cannot explain (two
    standard deviations of a Poisson count above the usual) makes a call wait longer, in proportion.
    """
    usual = 1.0 + (figures.load.value or 0.0)
    return max(1.0, (figures.in_flight + 1) / (usual + 2 * math.sqrt(usual)))


class Affinities:
    """Remembers which upstream served a conversation: its prompt cache may still have the prefix.

    Providers keep an unused prefix for ``ttl_s``: Anthropic five minutes, OpenAI five to ten.
    """

    def __init__(self, ttl_s: float = PREFIX_TTL_S, most: int = 10_000) -> None:
        self._ttl_s = ttl_s
        self._most = most
        self._served: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def served(self, affinity: str, name: str, now: float) -> None:
        """Remember which upstream served a conversation; ``affinity`` "" names none."""
        if not affinity:
            return
        self._served[affinity] = (name, now + self._ttl_s)
        self._served.move_to_end(affinity)
        if len(self._served) > self._most:
            self._served.popitem(last=False)

    def of(self, affinity: str, now: float) -> str | None:
        """Return the name of the upstream that served this conversation lately, or None."""
        name, until = self._served.get(affinity, (None, 0.0))
        return name if now < until else None
