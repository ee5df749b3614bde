"""Measures providers. ``lab/commands/`` makes the calls; this file has what needs no network:

1. ``read_prompts``: the prompts that the providers are asked.
2. ``figures_of``: each call is a ``Sample``. The samples of one provider and model (its
   ``Subject``) give its figures, for example the median and the p95 of the time to first token.
3. ``capacity_of``: calls at several numbers of calls at a time give the throughput, and the knee.
4. ``recommend``: the figures of several providers of the same model give a ``[[route]]`` table.
   For example, of two providers one usually starts within 0.3 s, but 5 % of its calls take more
   than 3 s: its p95 is ten times its median, so the route is a hedge of both.

Up to the **knee**, more calls at a time bring more answers a second; beyond it each call only waits
longer. It is N* = X / x of the asymptotic bounds of a closed system without think time (Lazowska,
Zahorjan, Graham and Sevcik, Quantitative System Performance, 1984, chapter 5): X is the largest
throughput, x that of one call alone. Example: one call alone gives 0.5 answers a second, and the
largest throughput is 4 answers a second; the knee is 8 calls at a time.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections import Counter, defaultdict
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headstart.errors import ConfigError
from headstart.settings import StrategyName  # noqa: TC001 - msgspec reads it
from headstart.types import UNDECODABLE, Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# --- prompts --------------------------------------------------------------------------------------


class BenchPrompt(Frozen):
    """One request's messages, in OpenAI's form."""

    messages: tuple[dict[str, Any], ...]
    max_tokens: int | None = None
    expect: tuple[str, ...] = ()
    """The answer is right if it contains one of these texts, or if a judge says that it agrees."""


class _PromptLine(Frozen):
    """A line of a ``.jsonl`` file. Either of the first two fields has the messages."""

    prompt: str | tuple[dict[str, Any], ...] | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    max_tokens: int | None = None
    expect: str | tuple[str, ...] = ()


_decoder = msgspec.json.Decoder(_PromptLine)

_HANDBOOK = " ".join(
    f"Rule {number}: a request of kind {number} is answered by the desk that holds the file, "
    "within two working days, in the language in which it came, and never twice."
    for number in range(1, 61)
)
"""About 1,900 tokens with which several prompts begin, for the provider's prefix cache."""


def text_prompt(text: str, system: str | None = None, max_tokens: int | None = None) -> BenchPrompt:
    """Return one question, behind a system prompt if there is one."""
    asked: tuple[dict[str, Any], ...] = ({"role": "user", "content": text},)
    if system is not None:
        asked = ({"role": "system", "content": system}, *asked)
    return BenchPrompt(messages=asked, max_tokens=max_tokens)


MIX = (
    text_prompt("Complete in five words at most: The quick brown fox", max_tokens=16),
    text_prompt("Is the word 'level' a palindrome? Answer yes or no.", max_tokens=16),
    text_prompt("Summarise in two sentences why the sky is blue.", max_tokens=120),
    text_prompt("Write a polite reply to a customer whose parcel is late.", max_tokens=200),
    text_prompt("Explain to a beginner, step by step, how a bicycle gear works.", max_tokens=400),
    text_prompt("Which desk answers a request of kind 12?", _HANDBOOK, 60),
    text_prompt("How long may a request of kind 31 take?", _HANDBOOK, 60),
    text_prompt("In which language is a request of kind 45 answered?", _HANDBOOK, 60),
)
"""Short and long answers, short and long prompts, and a prefix that is shared."""


def read_prompts(name: str, lines: Iterable[bytes]) -> tuple[BenchPrompt, ...]:
    """Read one prompt from each line: a text, or an object where the file is a ``.jsonl`` file.

    An object has ``prompt``, a text or a list of messages, or ``messages``, and may have
    ``max_tokens`` and ``expect``, a right answer or a list of them. Other fields are ignored.
    Raises ConfigError for a line that cannot be read, and for a file without prompts.
    """
    rows = []
    is_json = name.endswith(".jsonl")
    for number, raw in enumerate(lines, 1):
        if not raw.strip():
            continue
        try:
            rows.append(_from_json(raw) if is_json else text_prompt(raw.decode().strip()))
        except UnicodeDecodeError as error:
            raise ConfigError(f"{name}, line {number}: not UTF-8") from error
        except (*UNDECODABLE, ValueError) as error:
            raise ConfigError(f"{name}, line {number}: {error}") from error
    if not rows:
        raise ConfigError(f"{name} has no prompt")
    return tuple(rows)


def _from_json(raw: bytes) -> BenchPrompt:
    line = _decoder.decode(raw)
    asked = line.messages or line.prompt
    if not asked:
        raise ValueError("give 'prompt' or 'messages'")
    expect = (line.expect,) if isinstance(line.expect, str) else line.expect
    if not all(map(str.strip, expect)):
        raise ValueError("'expect' is empty: give a text that a right answer contains")
    if isinstance(asked, str):
        asked = ({"role": "user", "content": asked},)
    return BenchPrompt(messages=asked, max_tokens=line.max_tokens, expect=expect)


# --- figures of one provider ----------------------------------------------------------------------


class Subject(NamedTuple):
    """A model at a provider that is measured. ``weights`` is one name for all names of a model."""

    upstream: str
    model: str
    """The model's name as the user gave it."""
    weights: str
    cancels_billing: bool = False
    """The provider is known to stop billing when a call is cancelled."""
    region: str = ""
    """The region of the upstream's settings."""


class Sample(Frozen):
    """One call. Times are seconds from sending the request."""

    subject: Subject
    cold: bool
    """The call had a new connection and a prompt that the provider had not seen before."""
    ttft_s: float | None = None
    """Time to the first content; None: the answer had no content."""
    total_s: float = 0.0
    tokens_per_s: float | None = None
    """Speed after the first token; None: too few tokens to measure it."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    estimated: bool = False
    """The provider reported no token counts, so they are estimates."""
    cost_usd: float | None = None
    error: str | None = None
    """The kind of the failure; None: the call was answered."""
    concurrency: int = 1
    """The calls of this subject at a time."""
    ended_s: float = 0.0
    """When the call ended, in seconds since the first call of its step began."""
    prompt: int = 0
    """The number of its prompt."""
    right: bool | None = None
    """Whether the answer is right; None: that is not known."""


class SampleQuantiles(Frozen, omit_defaults=False):
    """Nearest-rank quantiles; with fewer than a hundred samples p99 is the largest."""

    p50: float
    p95: float
    p99: float


class ProviderFigures(Frozen, omit_defaults=False):
    """The results of one provider and model. Times are in seconds, money is in dollars.

    ``calls`` and ``errors`` count all calls, and ``cold_ttft_s`` is of cold calls. All other fields
    are of warm calls that were answered. Quantiles are None without such a call.
    """

    upstream: str
    model: str
    calls: int
    errors: dict[str, int]
    """Failed calls by kind, the cold calls included."""
    cold_ttft_s: SampleQuantiles | None
    ttft_s: SampleQuantiles | None
    tokens_per_s: SampleQuantiles | None
    """p95 and p99 are the slow end: 95 % and 99 % of the calls are faster."""
    total_s: SampleQuantiles | None
    completion_tokens: float
    """Mean length of an answer."""
    cached_share: float
    """Share of warm prompt tokens that came from the provider's cache."""
    cost_usd: float | None
    """Mean cost of a call; None: no price is known."""
    estimated: bool
    """Some token counts are estimates, so cost and speed are estimates, too."""
    error_rate: float
    """The failed share of all calls."""


def figures_of(subject: Subject, samples: Iterable[Sample]) -> ProviderFigures:
    """Return the figures of one subject's samples."""
    own = [each for each in samples if each.subject == subject]
    answered = [each for each in own if each.error is None]
    warm = [each for each in answered if not each.cold]
    errors = Counter(each.error for each in own if each.error is not None)
    prompt_tokens = sum(each.prompt_tokens for each in warm)
    costs = [each.cost_usd for each in warm if each.cost_usd is not None]
    return ProviderFigures(
        upstream=subject.upstream,
        model=subject.model,
        calls=len(own),
        errors=dict(errors),
        cold_ttft_s=quantiles(each.ttft_s for each in answered if each.cold),
        ttft_s=quantiles(each.ttft_s for each in warm),
        tokens_per_s=quantiles((each.tokens_per_s for each in warm), highest_first=True),
        total_s=quantiles(each.total_s for each in warm),
        completion_tokens=fmean(each.completion_tokens for each in warm) if warm else 0.0,
        cached_share=sum(s.cached_tokens for s in warm) / prompt_tokens if prompt_tokens else 0.0,
        cost_usd=fmean(costs) if costs else None,
        estimated=any(each.estimated for each in warm),
        error_rate=sum(errors.values()) / len(own) if own else 0.0,
    )


def quantiles(
    values: Iterable[float | None], *, highest_first: bool = False
) -> SampleQuantiles | None:
    """Return the quantiles of the known values, or None where no value is known."""
    ranked = sorted((each for each in values if each is not None), reverse=highest_first)
    if not ranked:
        return None
    p50, p95, p99 = (ranked[math.ceil(len(ranked) * q) - 1] for q in (0.5, 0.95, 0.99))
    return SampleQuantiles(p50=p50, p95=p95, p99=p99)


# --- load, and the knee ---------------------------------------------------------------------------

CALLS_PER_SLOT = 4
"""A step with N calls at a time makes at least this many times N calls. The first N and the last N
are not measured."""
BEYOND_KNEE = 1.25
"""A knee is reported if a step has this many times as many calls as the knee."""
MOST_ERRORS = 0.10
"""Largest share of failed calls in a step. A step with more shows the limits of a key, not the
throughput."""


class LoadStep(Frozen, omit_defaults=False):
    """The results of one provider and model at one number of calls at a time."""

    concurrency: int
    calls: int
    errors: int
    answers_per_s: float | None
    """Whole answers a second; None: too few answers."""
    tokens_per_s: float | None
    """Answer tokens a second of all calls together."""
    ttft_s: SampleQuantiles | None
    call_tokens_per_s: SampleQuantiles | None
    """Tokens a second of one call after its first token; p95 is the slow end."""
    total_s: SampleQuantiles | None
    usd_per_hour: float | None
    """The cost of an hour at this throughput."""
    tokens_per_s_per_usd: float | None
    """Answer tokens a second for one dollar an hour."""


class Capacity(Frozen, omit_defaults=False):
    """The steps of one provider and model, and its knee."""

    upstream: str
    model: str
    region: str
    steps: tuple[LoadStep, ...]
    knee: float | None
    """The number of calls at a time above which throughput does not grow; None: no step went beyond
    it."""


def capacity_of(
    subject: Subject, samples: Iterable[Sample], price_per_hour: float | None = None
) -> Capacity:
    """Return the steps of one subject. ``price_per_hour`` is the price of your own machine."""
    by_step: dict[int, list[Sample]] = defaultdict(list)
    for each in samples:
        if each.subject == subject and not each.cold:
            by_step[each.concurrency].append(each)
    steps = tuple(_step(at, by_step[at], price_per_hour) for at in sorted(by_step))
    return Capacity(
        upstream=subject.upstream,
        model=subject.model,
        region=subject.region,
        steps=steps,
        knee=knee_of(steps),
    )


def knee_of(steps: Sequence[LoadStep]) -> float | None:
    """Return the knee of steps in rising order, or None if no step went beyond it."""
    usable = [
        (step.concurrency, step.answers_per_s)
        for step in steps
        if step.answers_per_s and step.errors <= MOST_ERRORS * step.calls
    ]
    if len(usable) < 2:
        return None
    (fewest_calls, lowest_rate), (most_calls, _) = usable[0], usable[-1]
    rate_of_one_call = lowest_rate / fewest_calls
    knee = max(rate for _, rate in usable) / rate_of_one_call
    return knee if most_calls >= BEYOND_KNEE * knee else None


def _step(concurrency: int, samples: Sequence[Sample], price_per_hour: float | None) -> LoadStep:
    answered = [each for each in samples if each.error is None]
    rate, tokens = _throughput(concurrency, answered)
    costs = [each.cost_usd for each in answered if each.cost_usd is not None]
    usd_per_hour = price_per_hour
    if usd_per_hour is None and costs and rate is not None:
        usd_per_hour = 3600.0 * rate * sum(costs) / len(costs)
    return LoadStep(
        concurrency=concurrency,
        calls=len(samples),
        errors=len(samples) - len(answered),
        answers_per_s=rate,
        tokens_per_s=tokens,
        ttft_s=quantiles(each.ttft_s for each in answered),
        call_tokens_per_s=quantiles((s.tokens_per_s for s in answered), highest_first=True),
        total_s=quantiles(each.total_s for each in answered),
        usd_per_hour=usd_per_hour,
        tokens_per_s_per_usd=tokens / usd_per_hour if tokens and usd_per_hour else None,
    )


class _Throughput(NamedTuple):
    """None: too few answers."""

    answers_per_s: float | None = None
    tokens_per_s: float | None = None


def _throughput(concurrency: int, answered: Sequence[Sample]) -> _Throughput:
    """Return the throughput while ``concurrency`` calls were under way.

    All calls begin together, so the first ``concurrency`` answers come in a burst; the last ones
    come while fewer and fewer calls are under way. Neither tells the throughput. So the time is
    measured from the end of the first burst to the last answer before the calls become fewer.
    """
    ordered = sorted(answered, key=lambda each: each.ended_s)
    if concurrency == 1:
        begin_s, inside = 0.0, ordered
    else:
        inside = ordered[concurrency : len(ordered) - concurrency]
        begin_s = ordered[concurrency - 1].ended_s if inside else 0.0
    seconds = inside[-1].ended_s - begin_s if inside else 0.0
    if seconds <= 0:
        return _Throughput()
    tokens = sum(each.completion_tokens for each in inside)
    return _Throughput(len(inside) / seconds, tokens / seconds)


# --- the recommended route ------------------------------------------------------------------------

MAX_ERROR_RATE = 0.10
"""A provider that fails more often is left out."""
LEAST_SAMPLES = 20
"""Fewest answers for a statement about a tail or a race."""
TAIL_RATIO = 6.0
"""A provider stalls when its p95 of the time to first token is this many times its median.

Lognormal distributions, which are wide but do not stall, have 3.7 (sigma 0.8) and 5.2 (sigma 1).
From a hundred samples on the p99 may count instead, with twice this ratio (6.4 and 10.3).
"""
RACE_GAIN = 0.25
"""A race, which costs two prompts, is recommended only if it saves at least this share of the
median time to first token."""
RACE_TTFT_SHARE = 0.5
"""A race is recommended only if the time to first token is at least this share of the whole time: a
race does not shorten the rest."""
DISAGREEMENT = 0.15
"""Another provider has to be faster by this share on short or on long answers."""
CHEAPER = 0.8
"""The largest price of a provider that is recommended for its price, as a share of the price of the
fastest provider."""
SLOWER = 1.5
"""The p95 of the whole answers of such a provider may be at most this many times the p95 of the
fastest provider."""


class Recommendation(Frozen, omit_defaults=False):
    """A route and the reasons for it."""

    strategy: StrategyName
    model: str
    """The name that all upstreams were asked for. If the names differ: the name of the weights."""
    upstreams: tuple[str, ...]
    within_s: float | None
    """For ``cheapest``: the time within which an answer has to be complete."""
    race_billed: bool
    """For ``hedge``: the route includes providers that may bill a cancelled call in full."""
    why: tuple[str, ...]

    def toml(self) -> str:
        """Return the ``[[route]]`` table, with the reasons as comments."""
        names = ", ".join(json.dumps(name, ensure_ascii=False) for name in self.upstreams)
        comment = textwrap.TextWrapper(78, initial_indent="# ", subsequent_indent="#   ")
        lines = [line for reason in self.why for line in comment.wrap(reason)]
        lines += [
            "[[route]]",
            'name = "bench"',
            f"match = {{ model = {json.dumps(self.model, ensure_ascii=False)} }}",
            f'strategy = "{self.strategy}"',
            f"upstreams = [{names}]",
        ]
        if self.within_s is not None:
            lines.append(f"within_s = {self.within_s:g}")
        if self.race_billed:
            lines.append("race_billed = true")
        return "\n".join(lines) + "\n"


class _Rated(NamedTuple):
    """A subject with its figures. A figure that is not known counts as the worst."""

    subject: Subject
    figures: ProviderFigures
    samples: tuple[Sample, ...]
    """Warm calls that were answered."""

    @property
    def is_reliable(self) -> bool:
        return bool(self.samples) and self.figures.error_rate <= MAX_ERROR_RATE

    @property
    def typical_s(self) -> float:
        return self.figures.total_s.p50 if self.figures.total_s else math.inf

    @property
    def p95_s(self) -> float:
        return self.figures.total_s.p95 if self.figures.total_s else math.inf

    @property
    def ttft_s(self) -> float:
        return self.figures.ttft_s.p50 if self.figures.ttft_s else math.inf

    def completion_s(self, tokens: float) -> float:
        """Return the expected time of an answer of that length."""
        speed = self.figures.tokens_per_s
        return self.ttft_s + (tokens / speed.p50 if speed else 0.0)


class _RouteChoice(NamedTuple):
    """A strategy for a group. ``within_s`` and ``race_billed`` are those of a recommendation."""

    strategy: StrategyName
    order: tuple[_Rated, ...]
    """The providers of the route, in the order in which it names them."""
    why: str
    within_s: float | None = None
    race_billed: bool = False


def recommend(subjects: Sequence[Subject], samples: Sequence[Sample]) -> Recommendation | None:
    """Return the route for the largest group of equal models; None if no provider is reliable.

    The result depends on the arguments alone. Of groups of equal size the faster one is taken.
    """
    all_rated = [_rate(subject, samples) for subject in subjects]
    fit = [rated for rated in all_rated if rated.is_reliable]
    if not fit:
        return None
    notes = [
        f"{rated.subject.upstream} is left out: {_failures(rated.figures)}"
        for rated in all_rated
        if not rated.is_reliable
    ]
    groups = _by_weights(fit)
    group = min(groups.values(), key=lambda members: (-len(members), members[0].typical_s))
    if len(groups) > 1:
        others = ", ".join(sorted(set(groups) - {group[0].subject.weights}))
        notes.append(f"other models do not give the same answers, so are not mixed in: {others}")
    choice = _choose(group)
    first = choice.order[0].subject
    alike = all(rated.subject.model == first.model for rated in choice.order)
    return Recommendation(
        strategy=choice.strategy,
        model=first.model if alike else first.weights,
        upstreams=tuple(rated.subject.upstream for rated in choice.order),
        within_s=choice.within_s,
        race_billed=choice.race_billed,
        why=(choice.why, *notes),
    )


def _by_weights(fit: Sequence[_Rated]) -> dict[str, list[_Rated]]:
    """Return the providers of each model, the fastest first, and each provider once."""
    groups: dict[str, dict[str, _Rated]] = defaultdict(dict)
    for rated in sorted(fit, key=lambda rated: rated.typical_s):
        groups[rated.subject.weights].setdefault(rated.subject.upstream, rated)
    return {weights: list(members.values()) for weights, members in groups.items()}


def _rate(subject: Subject, samples: Sequence[Sample]) -> _Rated:
    own = tuple(
        each for each in samples if each.subject == subject and not each.cold and each.error is None
    )
    return _Rated(subject, figures_of(subject, samples), own)


def _failures(figures: ProviderFigures) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in figures.errors.items())
    return f"{sum(figures.errors.values())} of {figures.calls} calls failed ({kinds or 'none'})"


def _choose(group: Sequence[_Rated]) -> _RouteChoice:
    """Return the first strategy whose condition the figures of the group meet.

    The group has the fastest provider first.
    """
    best = group[0]
    if len(group) == 1:
        reason = f"{best.subject.upstream} is the only one to choose"
        return _RouteChoice("single", (best,), reason)
    enough = min(len(rated.samples) for rated in group) >= LEAST_SAMPLES
    for rule in (_hedge, _race, _fastest, _cheapest) if enough else ():
        if (choice := rule(group)) is not None:
            return choice
    reason = f"{best.subject.upstream} is the fastest; the rest take over when it fails"
    if not enough:
        reason += f" (fewer than {LEAST_SAMPLES} answers each: ask for more --calls)"
    return _RouteChoice("fallback", tuple(group), reason)


def _hedge(group: Sequence[_Rated]) -> _RouteChoice | None:
    """Recommend a hedge if most calls are quick and some stall.

    A hedge wastes fewer calls than a race, so it also pays where cancelled calls are billed in
    full.
    """
    pair = group[:2]
    best = pair[0]
    ttft_s = best.figures.ttft_s
    if ttft_s is None:
        return None
    if ttft_s.p95 >= TAIL_RATIO * ttft_s.p50:
        name, tail_s = "p95", ttft_s.p95
    elif len(best.samples) >= 100 and ttft_s.p99 >= 2 * TAIL_RATIO * ttft_s.p50:
        name, tail_s = "p99", ttft_s.p99
    else:
        return None
    reason = (
        f"{best.subject.upstream} stalls: its {name} to the first token, {tail_s:.2f} s, is "
        f"{tail_s / ttft_s.p50:.1f} times its median, and a second provider rarely stalls with it"
    )
    billed = [rated.subject.upstream for rated in pair if not rated.subject.cancels_billing]
    if billed:
        reason += (
            f"; {' and '.join(billed)} may bill cancelled calls in full: extra_cost limits that to "
            "5 % of what the route costs"
        )
    return _RouteChoice("hedge", tuple(pair), reason, race_billed=bool(billed))


def _race(group: Sequence[_Rated]) -> _RouteChoice | None:
    """Recommend a race if no provider is always first and a cancelled call costs little."""
    racers = [rated for rated in group if rated.subject.cancels_billing][:2]
    if len(racers) < 2 or racers[0] is not group[0]:
        return None
    first_s, second_s = (
        [each.ttft_s for each in rated.samples if each.ttft_s is not None] for rated in racers
    )
    alone_s = median(first_s)
    # Every call of one provider is paired with every call of the other.
    race_s = median(min(one, other) for one in first_s for other in second_s)
    gain = 1 - race_s / alone_s if alone_s else 0.0
    if gain < RACE_GAIN or alone_s < RACE_TTFT_SHARE * racers[0].typical_s:
        return None
    reason = (
        f"the faster of the two has its first token {gain:.0%} sooner than "
        f"{racers[0].subject.upstream} alone, and neither bills cancelled calls"
    )
    return _RouteChoice("race", tuple(racers), reason)


def _fastest(group: Sequence[_Rated]) -> _RouteChoice | None:
    """Recommend ``fastest`` if one provider is first on short and another on long answers."""
    # Short and long are the lengths at a tenth and at nine tenths of all answers.
    lengths = sorted(each.completion_tokens for rated in group for each in rated.samples)
    short, long = lengths[len(lengths) // 10], lengths[len(lengths) * 9 // 10]
    best_short = min(group, key=lambda rated: rated.completion_s(short))
    best_long = min(group, key=lambda rated: rated.completion_s(long))
    if best_short is best_long:
        return None
    faster_short = 1 - best_short.completion_s(short) / best_long.completion_s(short)
    faster_long = 1 - best_long.completion_s(long) / best_short.completion_s(long)
    if min(faster_short, faster_long) < DISAGREEMENT:
        return None
    reason = (
        f"{best_short.subject.upstream} is {faster_short:.0%} faster on answers of {short} tokens, "
        f"{best_long.subject.upstream} {faster_long:.0%} on those of {long}"
    )
    return _RouteChoice("fastest", tuple(group), reason)


def _cheapest(group: Sequence[_Rated]) -> _RouteChoice | None:
    """Recommend ``cheapest`` if another provider costs much less and is hardly slower."""
    best = group[0]
    costs = {rated.subject.upstream: rated.figures.cost_usd for rated in group}
    if not (price := costs[best.subject.upstream]):
        return None
    for rated in sorted(group, key=lambda rated: costs[rated.subject.upstream] or math.inf):
        cost = costs[rated.subject.upstream]
        if cost is None or cost > CHEAPER * price or rated.p95_s > SLOWER * best.p95_s:
            continue
        reason = (
            f"{rated.subject.upstream} costs {1 - cost / price:.0%} less than "
            f"{best.subject.upstream}, and 95 % of its answers are there in {rated.p95_s:.2f} s"
        )
        within_s = float(f"{rated.p95_s * 1.1:.2g}")  # 10 % of slack, and two digits
        order = (rated, *(other for other in group if other is not rated))
        return _RouteChoice("cheapest", order, reason, within_s)
    return None
