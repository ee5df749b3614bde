"""What is learned of upstreams: time to first token, speed, gaps, load, and lengths of answers.

Time to first token and tokens per second are learned apart and only ever added up as times. All
``now`` are seconds of one clock that does not run backwards. ``docs/routing.md`` has the defaults
and where they come from.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from headstart.policies.routing.averages import Ratio
from headstart.policies.routing.figures import HALF_LIFE_S, Figures, SavedFigures, restored
from headstart.policies.routing.quantiles import Quantiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FORMAT = 1
BUCKETS = (256, 1024, 4096, 16384, 65536)
"""Largest prompts, in tokens, of all buckets but the last."""
ENOUGH = 20
"""Samples from which a p95 means something: then one lies beyond it."""
OUTPUT_TOKENS = 256.0
"""Length of an answer of which nothing is known."""
_MOST_KEYS = 256
_MOST_SAVED = 64
_LEAST_TOKENS = 8
_MOST_TOKENS_PER_S = 10_000.0
"""Faster than any hardware: such an answer was not streamed, it came in one burst."""

F = TypeVar("F")


def bucket_of(prompt_tokens: int) -> int:
    """Return the bucket of a prompt's length, 0 for the shortest."""
    return bisect_left(BUCKETS, prompt_tokens)


_PATIENT_S = 30.0


class Key(NamedTuple):
    """Whose figures they are."""

    upstream: str
    model: str


class _Head(msgspec.Struct):
    format: int


class _Saved(_Head):
    figures: list[SavedFigures]
    lengths: dict[str, tuple[float, float]]


class Measures:
    """Figures by (upstream, model), in bounded memory: the least recently used keys leave."""

    def __init__(self) -> None:
        self._figures: OrderedDict[Key, Figures] = OrderedDict()
        self._lengths: OrderedDict[str, Ratio] = OrderedDict()

    # --- learning --------------------------------------------------------------------------

    def began(self, key: Key, now: float) -> None:
        """A call started. Each one also ends."""
        figures = self._of(key)
        figures.load.add(figures.in_flight, 1.0, now)
        figures.in_flight += 1

    def ended(self, key: Key, now: float) -> None:  # noqa: ARG002 - the pair of ``began``
        """A call ended, however it did."""
        figures = self._of(key)
        figures.in_flight = max(0, figures.in_flight - 1)

    def first(self, key: Key, prompt_tokens: int, ttft_s: float, now: float) -> None:
        """The first token came."""
        self._learn(key, prompt_tokens, ttft_s, now, censored=False)

    def censored(self, key: Key, prompt_tokens: int, waited_s: float, now: float) -> None:
        """A call was cancelled before its first token, which would have come later than this.

        Hedging cancels the slow ones: leaving them out would make the rest look fast.
        """
        self._learn(key, prompt_tokens, waited_s, now, censored=True)

    def speed(self, key: Key, tokens: int, seconds: float, now: float) -> None:
        """So many tokens came in the time after the first. A burst says nothing and is ignored."""
        if tokens >= _LEAST_TOKENS and 0.0 < tokens <= seconds * _MOST_TOKENS_PER_S:
            self._of(key).speed.add(tokens, seconds, now)

    def gap(self, key: Key, seconds: float) -> None:
        """Two pieces of one answer came so far apart."""
        figures = self._of(key)
        figures.gaps_seen += 1
        figures.gaps.add(seconds, figures.gaps_seen)

    def length(self, place: str, tokens: int, now: float) -> None:
        """An answer had so many tokens. ``place`` is its call's, or "" for none."""
        for name in {place, ""}:
            _touched(self._lengths, name, lambda: Ratio(HALF_LIFE_S)).add(tokens, 1.0, now)

    def prompt(self, key: Key, estimated: int, reported: int, now: float) -> None:
        """A prompt that was estimated had so many tokens in the provider's count."""
        if estimated > 0 and reported > 0:
            self._of(key).prompts.add(reported, estimated, now)
            self._figures.move_to_end(key)

    # --- expecting -------------------------------------------------------------------------

    def sketch(self, key: Key, prompt_tokens: int, now: float) -> Quantiles | None:
        """Return the times to first token of such prompts, or of those nearest in length."""
        figures = self._figures.get(key)
        return None if figures is None else _nearest(figures.ttft, bucket_of(prompt_tokens), now)

    def ttft_s(self, key: Key, prompt_tokens: int, share: float, now: float) -> float | None:
        """Return the time to first token that ``share`` of the calls do not exceed."""
        sketch = self.sketch(key, prompt_tokens, now)
        return None if sketch is None else sketch.quantile(share)

    def samples(self, key: Key, prompt_tokens: int, now: float) -> int:
        """Return how many samples the time to first token rests on; old ones count less."""
        sketch = self.sketch(key, prompt_tokens, now)
        return 0 if sketch is None else round(sketch.weight(now))

    def expected_ttft_s(self, key: Key, prompt_tokens: int, now: float) -> float | None:
        """Return the mean time to first token, longer while calls are slow or pile up."""
        figures = self._figures.get(key)
        sketch = self.sketch(key, prompt_tokens, now)
        mean = None if sketch is None else sketch.mean()
        if figures is None or mean is None:
            return None
        return mean * figures.peak.value(now) * _crowding(figures)

    def prefill_s(self, key: Key, prompt_tokens: int, now: float) -> float:
        """Return how much later the first token of such a prompt comes than of a short one.

        The medians differ by that; 0 where either rests on too few samples.
        """
        figures = self._figures.get(key)
        buckets = figures.ttft if figures is not None else {}
        long, short = buckets.get(bucket_of(prompt_tokens)), buckets.get(0)
        if long is None or short is None:
            return 0.0
        if min(long.weight(now), short.weight(now)) < ENOUGH:
            return 0.0
        return max(0.0, (long.quantile(0.5) or 0.0) - (short.quantile(0.5) or 0.0))

    def tokens_per_s(self, key: Key) -> float | None:
        """Return the decoding speed of one call after its first token."""
        figures = self._figures.get(key)
        return None if figures is None else figures.speed.value

    def expected_length(self, place: str) -> float:
        """Return the mean length of answers of this place, else of all, else a default."""
        lengths = self._lengths.get(place) or self._lengths.get("")
        return (lengths and lengths.value) or OUTPUT_TOKENS

    def prompt_tokens(self, key: Key, estimated: int) -> int:
        """Return what the provider will count for a prompt, so far as its past counts tell."""
        figures = self._figures.get(key)
        ratio = None if figures is None else figures.prompts.value
        return estimated if ratio is None else round(estimated * ratio)

    def in_flight(self, key: Key) -> int:
        """Return how many calls are under way."""
        figures = self._figures.get(key)
        return 0 if figures is None else figures.in_flight

    def gap_p99_s(self, key: Key) -> float | None:
        """Return the gap between pieces that one in a hundred exceeds."""
        figures = self._figures.get(key)
        if figures is None or figures.gaps_seen < 100:
            return None
        return figures.gaps.quantile(0.99)

    def first_token_limit_s(self, key: Key, prompt_tokens: int, now: float) -> float:
        """Return how long to wait for a first token: 30 s, or four times its p99 if more."""
        return max(30.0, 4 * (self.ttft_s(key, prompt_tokens, 0.99, now) or 0.0))

    def stall_limit_s(self, key: Key, *, calls_tools: bool = False) -> float:
        """Return how long to wait for the next piece: 5 s, or ten times the p99 gap if more.

        Not under 30 s while gaps are unknown, nor where tools may be called: some providers say
        nothing while they write a call, and send it whole.
        """
        gap_s = self.gap_p99_s(key)
        least_s = _PATIENT_S if gap_s is None or calls_tools else 5.0
        return max(least_s, 10 * (gap_s or 0.0))

    # --- keeping ---------------------------------------------------------------------------

    def saved(self, now: float) -> bytes:
        """Return a snapshot of what was learned, of the keys used last."""
        recent = list(self._figures.items())[-_MOST_SAVED:]
        figures = [each.saved(key, now) for key, each in recent]
        lengths = {name: (each.above, each.below) for name, each in self._lengths.items()}
        return msgspec.msgpack.encode(_Saved(FORMAT, figures, lengths))

    def load(self, data: bytes, now: float) -> bool:
        """Take a snapshot over, as if learned just now; False where it is not one of this version.

        What this object has learned of the same keys is replaced.
        """
        try:
            if msgspec.msgpack.decode(data, type=_Head).format != FORMAT:
                return False
            saved = msgspec.msgpack.decode(data, type=_Saved)
            learned = {Key(*each.key): restored(each, now) for each in saved.figures}
        except (msgspec.DecodeError, ValueError):
            return False
        for key, figures in learned.items():
            figures.in_flight = self.in_flight(key)
            self._figures[key] = figures
        for name, (above, below) in saved.lengths.items():
            _touched(self._lengths, name, lambda: Ratio(HALF_LIFE_S)).add(above, below, now)
        return True

    # --- internals -------------------------------------------------------------------------

    def _of(self, key: Key) -> Figures:
        """Return a key's figures. What has learned nothing leaves first: callers name models."""
        figures = self._figures.get(key)
        if figures is None:
            if len(self._figures) >= _MOST_KEYS:
                self._figures.popitem(last=False)
            figures = self._figures[key] = Figures()
        self._figures.move_to_end(key, last=figures.learned)
        return figures

    def _learn(
        self, key: Key, prompt_tokens: int, seconds: float, now: float, *, censored: bool
    ) -> None:
        figures, bucket = self._of(key), bucket_of(prompt_tokens)
        sketch = figures.ttft.get(bucket)
        if sketch is None:
            sketch = figures.ttft[bucket] = Quantiles(HALF_LIFE_S)
            self._figures.move_to_end(key)
        elif sketch.weight(now) >= ENOUGH:
            usual, late = sketch.mean(), sketch.quantile(0.95)
            if usual and late and (seconds > late or not censored):
                figures.peak.add(seconds / usual, slow=seconds > late, now=now)
        sketch.add(seconds, now, censored=censored)


def _nearest(ttft: Mapping[int, Quantiles], bucket: int, now: float) -> Quantiles | None:
    """Return the bucket's samples, or those of the nearest that has enough, or the most."""
    own = ttft.get(bucket)
    if own is not None and own.weight(now) >= ENOUGH:
        return own
    near = sorted(ttft, key=lambda other: abs(other - bucket))
    weights = [(ttft[each].weight(now), each) for each in near]
    enough = next((each for weight, each in weights if weight >= ENOUGH), None)
    if enough is None and weights:
        enough = max(weights, key=lambda each: each[0])[1]
    return None if enough is None else ttft[enough]


def _crowding(figures: Figures) -> float:
    """Return how much longer a call waits for those in flight: least-loaded's in flight plus one.

    Measured times already hold the usual load, so only what exceeds it by more than chance does
    (two standard deviations of a Poisson count) makes a call wait longer, in proportion.
    """
    usual = 1.0 + (figures.load.value or 0.0)
    return max(1.0, (figures.in_flight + 1) / (usual + 2 * math.sqrt(usual)))


K = TypeVar("K")


def _touched(table: OrderedDict[K, F], key: K, make: Callable[[], F]) -> F:
    """Return a key's value, made where it is missing, as the most recently used one."""
    value = table.get(key)
    if value is None:
        value = table[key] = make()
        if len(table) > _MOST_KEYS:
            table.popitem(last=False)
    else:
        table.move_to_end(key)
    return value
