"""How good models and providers are. The three parts of this file answer three questions.

**Which model is good enough?** (``qualities``, ``choose``) Input: calls whose answers were judged
right or wrong. Output: the share of right answers of each model, with its interval, and the
cheapest model whose whole interval reaches a wanted share.

**Has a provider become worse?** (``round_of``, ``Watch``) Input: rounds of measurements, for
example one each hour. Output: an alarm when a figure has become worse. The steps for each figure:

1. A round gives one number, for example the median time to first token.
2. The number is ranked among the earlier rounds of the same part of the day. The rank is a p-value:
   near 0 when the round is worse than almost all earlier ones. As long as nothing changes, the
   p-values are independent and uniform, whatever the distribution is (Vovk, Gammerman and Shafer,
   Algorithmic Learning in a Random World, 2005).
3. A bet turns the p-value into a factor: a small p-value pays much more than 1, a large one less
   than 1. As long as nothing changes, the mean payment is 1.
4. The Shiryaev-Roberts procedure sums up the bets: evidence = (1 + evidence) * bet (Vovk, "Testing
   randomness online", 2021; Shin, Ramdas and Rinaldo, "E-detectors", 2022).
5. An alarm is raised when the evidence reaches a limit. The evidence minus the number of rounds is
   a martingale. So by Doob's inequality a false alarm within m rounds has a probability of at most
   m / limit, however often one looks.

**Which drafts should a cascade accept?** (``read_rows``, ``study_cascade``) A cascade asks the
cheap model first. It escalates the call to the strong model if the score of the draft is below a
threshold. Input: for each prompt, the score of the draft and the quality of both answers. Output:
quality and cost for each threshold, and a suggested one. Example: the cheap model is right on 60 %
of the prompts and the strong one on 80 %, so the gap is 20 points. If a cascade escalates 30 % of
the calls and is right on 76 %, it recovers 0.8 of the gap. The figures are those of RouteLLM (arXiv
2406.18665):

- PGR is the recovered part of the gap.
- APGR is the mean of PGR over all shares of strong calls; random choice has 0.5.
- CPT50 and CPT80 are the shares of strong calls that recover 50 % and 80 % of the gap.
"""

from __future__ import annotations

import csv
import math
import re
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from hashlib import blake2b
from itertools import pairwise
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from headstart.errors import ConfigError
from headstart.lab.bench import Sample  # noqa: TC001 - msgspec reads it
from headstart.policies.agreement.judge import judge
from headstart.policies.drafts import CALIBRATION_PRIORS, ScoreBasis, expected_gain, veto_draft
from headstart.report.estimates import ShareInterval, student_t, wilson_interval
from headstart.types import ChatRequest, Choice, Completion, Frozen, Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from headstart.lab.bench import Subject


_WORD = re.compile(r"\d+(?:[.,]\d+)*|\w+")


def contains(answer: str, expected: str) -> bool:
    """Tell whether the answer contains the expected words, in this order and next to each other.

    Letter case, punctuation and commas within numbers do not count: "1,200" is "1200".
    """
    said, wanted = _words(answer), _words(expected)
    size = len(wanted)
    return any(said[i : i + size] == wanted for i in range(len(said) - size + 1))


def _words(text: str) -> list[str]:
    return [each.replace(",", "") for each in _WORD.findall(text.casefold())]


class Quality(Frozen, omit_defaults=False):
    """How often one provider and model was right. Repeats of a prompt count as one prompt."""

    upstream: str
    model: str
    prompts: int
    right: float
    """Share of right answers."""
    interval: ShareInterval
    """Wilson's 95 % interval of this share."""
    cost_usd: float | None
    """Mean cost of a call."""
    behind_best: float = 0.0
    """The best model's share less this one's, over the prompts that both answered."""
    behind_interval: ShareInterval | None = None
    """The 95 % interval of this difference, from the paired differences; None: fewer than two."""


class QualityChoice(Frozen, omit_defaults=False):
    """The cheapest model whose share of right answers is at least ``bar``."""

    bar: float
    upstream: str | None
    """None: no model is surely good enough."""
    model: str | None
    possible: tuple[str, ...]
    """Cheaper models whose interval contains the bar. With more prompts they might reach it."""


def qualities(subjects: Iterable[Subject], samples: Sequence[Sample]) -> tuple[Quality, ...]:
    """Return the quality of each subject with judged answers, the best first."""
    shares = {subject: _shares(subject, samples) for subject in subjects}
    judged = {subject: found for subject, found in shares.items() if found}
    ordered = sorted(judged, key=lambda subject: -fmean(judged[subject].values()))
    return tuple(_quality(each, judged[each], judged[ordered[0]], samples) for each in ordered)


def choose(found: Sequence[Quality], bar: float) -> QualityChoice:
    """Return the cheapest model that surely reaches a bar: its whole interval lies above the bar.

    A model without a known price counts as the dearest.
    """
    chosen: Quality | None = None
    possible = []
    for each in sorted(
        found, key=lambda each: math.inf if each.cost_usd is None else each.cost_usd
    ):
        if each.interval.low >= bar:
            chosen = each
            break
        if each.interval.high >= bar:
            possible.append(f"{each.upstream} {each.model}")
    return QualityChoice(
        bar=bar,
        upstream=None if chosen is None else chosen.upstream,
        model=None if chosen is None else chosen.model,
        possible=tuple(possible),
    )


def _shares(subject: Subject, samples: Sequence[Sample]) -> dict[int, float]:
    """Return the share of right answers by prompt, over the calls whose answers were judged."""
    by_prompt: dict[int, list[bool]] = defaultdict(list)
    for each in samples:
        if each.subject == subject and each.right is not None:
            by_prompt[each.prompt].append(each.right)
    return {prompt: fmean(right) for prompt, right in by_prompt.items()}


def _quality(
    subject: Subject,
    own: Mapping[int, float],
    best: Mapping[int, float],
    samples: Sequence[Sample],
) -> Quality:
    right = fmean(own.values())
    interval = wilson_interval(right * len(own), len(own)) or ShareInterval(0.0, 1.0)
    behind = [best[prompt] - own[prompt] for prompt in own if prompt in best]
    costs = [s.cost_usd for s in samples if s.subject == subject and s.cost_usd is not None]
    return Quality(
        upstream=subject.upstream,
        model=subject.model,
        prompts=len(own),
        right=right,
        interval=interval,
        cost_usd=fmean(costs) if costs else None,
        behind_best=fmean(behind) if behind else 0.0,
        behind_interval=paired_interval(behind),
    )


def paired_interval(differences: Sequence[float]) -> ShareInterval | None:
    """Return Student's 95 % interval of the mean of paired differences; None: fewer than two."""
    n = len(differences)
    if n < 2:
        return None
    half = student_t(n - 1) * stdev(differences) / math.sqrt(n)
    middle = fmean(differences)
    return ShareInterval(middle - half, middle + half)


# --- changes for the worse ------------------------------------------------------------------------

Figure: TypeAlias = Literal["first token", "speed", "quality", "errors"]
FIGURES: tuple[Figure, ...] = ("first token", "speed", "quality", "errors")
_LARGER_IS_BETTER = frozenset({"speed", "quality"})
FALSE_ALARMS = 0.05
"""The probability that any alarm of a month is false, over all providers and figures."""
MONTH_S = 30 * 86_400.0
PARTS = 6
"""Parts of the day. A round is compared with rounds of the same part, because load follows the
hour."""
_DAY_S = 86_400
_LEAST = 10
"""Number of earlier rounds of the same part of the day before a bet is made on a round."""
_LAST_ROUNDS = 5
"""An alarm shows the median of this many last rounds as the present value."""
_LARGEST_BET = 1e6
"""The bet for a p-value near 0."""


class Round(Frozen, omit_defaults=False):
    """One round of one provider and model, as the history keeps it."""

    at: float
    """Unix seconds."""
    upstream: str
    model: str
    calls: int
    errors: int
    ttft_s: float | None
    tokens_per_s: float | None
    right: float | None
    """Share of right answers; None: no prompt has a right answer."""
    cost_usd: float
    """The cost of the round."""
    price: tuple[float, float] | None = None
    """Dollars per million tokens of input and output."""
    samples: tuple[Sample, ...] = ()

    def figure(self, name: Figure) -> float | None:
        """Return a figure; None: it is not known."""
        figures: dict[Figure, float | None] = {
            "first token": self.ttft_s,
            "speed": self.tokens_per_s,
            "quality": self.right,
            "errors": self.errors / self.calls,
        }
        return figures[name]


class DriftAlarm(Frozen, omit_defaults=False):
    """One figure of one provider and model has changed."""

    at: float
    upstream: str
    model: str
    figure: Figure | Literal["price"]
    before: float
    """The usual value: the median of the earlier rounds. A price is the output's, if that has
    changed, else the input's."""
    now: float
    """The median of the last rounds."""


def limit_for(every_s: float, series: int) -> float:
    """Return the limit of the evidence with which ``FALSE_ALARMS`` holds for all tests together.

    ``every_s`` is the time between two rounds, and ``series`` is the number of tests. One test
    raises a false alarm within a month with a probability of at most rounds / limit. For all
    tests the probabilities add up.
    """
    rounds_of_month = MONTH_S / every_s
    return rounds_of_month * max(1, series) / FALSE_ALARMS


class Change(NamedTuple):
    """The usual value of a figure, and the present one. Larger is worse."""

    usual: float
    present: float


class DriftTest:
    """The test of one figure. ``name`` seeds the draws that break ties between equal values.

    All its values are numbers of which the larger is worse.
    """

    def __init__(self, name: str, limit: float) -> None:
        self._name = name
        self._limit = limit
        self._draws = 0
        self._restart()

    def _restart(self) -> None:
        self._earlier: list[list[float]] = [[] for _ in range(PARTS)]
        """The sorted values of earlier rounds, for each part of the day."""
        self._last: list[float] = []
        """The values of the last rounds, in order of time."""
        self._evidence = 0.0

    @property
    def evidence(self) -> float:
        """The evidence for a change, as a share of the limit of an alarm."""
        return self._evidence / self._limit

    def add(self, value: float, at: float) -> Change | None:
        """Add a round's value. Return the change on an alarm.

        After an alarm the test starts again: the values that follow become the usual ones.
        """
        earlier = self._earlier[int(at % _DAY_S * PARTS / _DAY_S)]
        if len(earlier) >= _LEAST:
            self._evidence = (1.0 + self._evidence) * _bet(self._p_value(value, earlier))
        insort(earlier, value)
        self._last = [*self._last, value][-_LAST_ROUNDS:]
        if self._evidence < self._limit:
            return None
        usual = median(each for part in self._earlier for each in part)
        change = Change(usual, median(self._last))
        self._restart()
        return change

    def _p_value(self, value: float, earlier: Sequence[float]) -> float:
        """Return the share of rounds that are at least as bad, this round included.

        Of the rounds with the same value, a random share counts. Without that, the p-values of a
        figure with few different values, such as the share of failed calls, would not be uniform.
        """
        first, after = bisect_left(earlier, value), bisect_right(earlier, value)
        worse = len(earlier) - after
        equal = after - first + 1
        return (worse + self._draw() * equal) / (len(earlier) + 1)

    def _draw(self) -> float:
        """Return a number from 0 to 1: by chance, but the same when a history is read again."""
        self._draws += 1
        seed = f"{self._name}/{self._draws}".encode()
        return int.from_bytes(blake2b(seed, digest_size=6).digest()) / 2**48


def _bet(p: float) -> float:
    """Return the payment for a p-value: the mean of e * p ** (e - 1) over all e from 0 to 1."""
    if p >= 1.0:
        return 0.5
    if p <= 1e-9:
        return _LARGEST_BET
    log = math.log(p)
    if log > -1e-3:  # near p = 1 the fraction is 0 / 0, so its limit is used
        return 0.5
    return (1.0 - p + p * log) / (p * log * log)


class Watch:
    """The tests of all providers and figures. Feed it the history, then each new round."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._tests: dict[tuple[str, str, Figure], DriftTest] = {}
        self._prices: dict[tuple[str, str], tuple[float, float]] = {}

    def add(self, round: Round) -> list[DriftAlarm]:
        """Return the alarms that a round raises."""
        alarms = list(self._price_alarms(round))
        for figure in FIGURES:
            value = round.figure(figure)
            if value is None:
                continue
            key = (round.upstream, round.model, figure)
            test = self._tests.get(key)
            if test is None:
                test = self._tests[key] = DriftTest("/".join(key), self._limit)
            sign = -1 if figure in _LARGER_IS_BETTER else 1  # in a test, larger is worse
            change = test.add(sign * value, round.at)
            if change is not None:
                usual, present = sign * change.usual, sign * change.present
                alarms.append(_alarm(round, figure, usual, present))
        return alarms

    def evidence(self, round: Round) -> float:
        """Return the largest evidence against a provider, as a share of the limit of an alarm."""
        place = (round.upstream, round.model)
        return max((t.evidence for key, t in self._tests.items() if key[:2] == place), default=0.0)

    def _price_alarms(self, round: Round) -> Iterable[DriftAlarm]:
        """Compare the price with the last known one. It needs no test, because it has no noise."""
        place, price = (round.upstream, round.model), round.price
        if price is None:
            return
        before = self._prices.get(place)
        self._prices[place] = price
        if before is not None and before != price:
            shown = 1 if before[1] != price[1] else 0  # the output's price, if that has changed
            yield _alarm(round, "price", before[shown], price[shown])


def _alarm(
    round: Round, figure: Figure | Literal["price"], before: float, now: float
) -> DriftAlarm:
    return DriftAlarm(
        at=round.at, upstream=round.upstream, model=round.model, figure=figure, before=before,
        now=now,
    )  # fmt: skip


def round_of(
    samples: Sequence[Sample], at: float, price: tuple[float, float] | None = None
) -> Round:
    """Return the round of the samples of one subject, of which there is at least one."""
    subject = samples[0].subject
    answered = [each for each in samples if each.error is None]
    right = [each.right for each in answered if each.right is not None]
    first = [each.ttft_s for each in answered if each.ttft_s is not None]
    speeds = [each.tokens_per_s for each in answered if each.tokens_per_s is not None]
    return Round(
        at=at,
        upstream=subject.upstream,
        model=subject.model,
        calls=len(samples),
        errors=len(samples) - len(answered),
        ttft_s=median(first) if first else None,
        tokens_per_s=median(speeds) if speeds else None,
        right=sum(right) / len(right) if right else None,
        cost_usd=sum(each.cost_usd or 0.0 for each in samples),
        price=price,
        samples=tuple(samples),
    )


def spent_usd(history: Iterable[Round], now: float) -> float:
    """Return the cost of the rounds of the last 24 hours."""
    return sum(each.cost_usd for each in history if each.at > now - _DAY_S)


# --- cascades -------------------------------------------------------------------------------------

_POINTS = 101
"""The most points of the curve in a report."""
KEPT = 0.8
"""The part of the gap that the suggested threshold keeps."""
_QUALITY_OF_WORD = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}


class CascadeRow(NamedTuple):
    """One prompt that both models answered."""

    score: float
    """The score of the cheap draft, from 0 to 1. Drafts below the threshold are escalated."""
    cheap: float
    """Quality of the cheap answer, from 0 to 1."""
    strong: float
    """Quality of the strong answer, from 0 to 1."""
    cheap_usd: float = 0.0
    strong_usd: float = 0.0
    length: int = 0
    """The number of characters of the prompt; 0: the table had a score, so no prompt was read."""
    vetoed: bool = False
    """The draft is escalated with any score."""


class CascadePoint(Frozen, omit_defaults=False):
    """The results of one threshold, if drafts with a lower score are escalated."""

    threshold: float
    """The lowest score that is accepted; above 1: no draft is accepted."""
    strong_share: float
    quality: float
    recovered: float | None
    """The recovered part of the gap; None where the strong model is not better."""
    cost_usd: float
    """Mean cost of a call, with the drafts of escalated calls."""


class CascadeReport(Frozen, omit_defaults=False):
    """The results of a cascade on one set of prompts."""

    n: int
    cheap: float
    strong: float
    either: float
    """Quality of an ideal cascade, which always takes the better answer."""
    apgr: float | None
    cpt50: float | None
    cpt80: float | None
    curve: tuple[CascadePoint, ...]
    suggested: CascadePoint | None
    """The cheapest point that keeps ``KEPT`` of the gap; None without a gap."""


class Baseline(Frozen, omit_defaults=False):
    """The results of another way to choose, on the same prompts."""

    name: str
    apgr: float | None
    cpt50: float | None
    cpt80: float | None


class CascadeTuning(Frozen, omit_defaults=False):
    """A cascade, measured on a table of outcomes, and the settings that follow."""

    report: CascadeReport
    baselines: tuple[Baseline, ...]
    judge: str
    """The judge that these settings are for."""
    min_confidence: float | None
    """None where the strong model is not better, so that escalation gains nothing."""
    at_min_confidence: CascadePoint | None
    """The results of this setting on these prompts, with calibrated scores."""


def study_cascade(rows: Sequence[CascadeRow]) -> CascadeTuning:
    """Measure a cascade beside two simpler choices, and suggest its settings.

    The simpler choices are chance and the length of the prompt. ``min_confidence`` is a calibrated
    probability, not a score. Raises ConfigError without rows.
    """
    report = tune_cascade(rows)
    scored_by_prompt = all(row.length for row in rows)
    basis = ScoreBasis.PROMPT if scored_by_prompt else ScoreBasis.LOGPROBS
    suggested = tune_cascade(_with_probabilities(rows, basis)).suggested
    baselines = [_chance(report)]
    if scored_by_prompt:
        baselines.append(_length_of_prompt(rows))
    return CascadeTuning(
        report=report,
        baselines=tuple(baselines),
        judge="prompt" if scored_by_prompt else "logprob",
        min_confidence=None if suggested is None else _min_confidence(suggested),
        at_min_confidence=suggested,
    )


def _with_probabilities(rows: Sequence[CascadeRow], basis: ScoreBasis) -> list[CascadeRow]:
    """Return the rows with calibrated probabilities in place of the scores.

    The calibration learns from the rows as a running cascade does: it begins with the prior of a
    new cascade.
    """
    calibration = CALIBRATION_PRIORS[basis]
    judged = [row for row in rows if not row.vetoed]
    # Tables are often sorted, and a calibration forgets old rows. So the rows are shuffled.
    for at in np.random.default_rng(0).permutation(len(judged)):
        row = judged[at]
        calibration = calibration.learn(row.score, good=row.cheap >= row.strong)
    return [
        row._replace(score=0.0 if row.vetoed else calibration.probability(row.score))
        for row in rows
    ]


def _chance(report: CascadeReport) -> Baseline:
    """Return the expected results of random choice. Drawing would only add noise."""
    has_gap = report.apgr is not None
    half, most = (0.5, 0.8) if has_gap else (None, None)
    return Baseline(name="chance", apgr=half, cpt50=half, cpt80=most)


def _length_of_prompt(rows: Sequence[CascadeRow]) -> Baseline:
    """Return the results of a cascade that escalates the longest prompts."""
    found = tune_cascade([row._replace(score=-float(row.length)) for row in rows])
    return Baseline(
        name="length of the prompt", apgr=found.apgr, cpt50=found.cpt50, cpt80=found.cpt80
    )


def _min_confidence(point: CascadePoint) -> float:
    """Return the threshold with three digits, rounded down so that no more drafts are escalated.

    It is a probability, so at most 1.
    """
    return min(1.0, math.floor(point.threshold * 1000) / 1000)


def tune_cascade(rows: Sequence[CascadeRow]) -> CascadeReport:
    """Measure a cascade on prompts that both models answered. Raises ConfigError without rows.

    Rows of equal score are escalated together, because no threshold separates them.
    """
    if not rows:
        raise ConfigError("no prompt that both models answered: nothing to tune a cascade on")
    table = np.array(list(map(tuple, rows)), dtype=[(name, "f8") for name in CascadeRow._fields])
    table = table[np.argsort(table["score"], kind="stable")]  # the lowest score first
    points = _points(table)
    drawn = np.unique(np.linspace(0, len(points) - 1, _POINTS).astype(int))
    good = [point for point in points if point.recovered is not None and point.recovered >= KEPT]
    return CascadeReport(
        n=len(rows),
        cheap=float(table["cheap"].mean()),
        strong=float(table["strong"].mean()),
        either=float(np.maximum(table["cheap"], table["strong"]).mean()),
        apgr=_mean_recovered(points),
        cpt50=_first_share(points, 0.5),
        cpt80=_first_share(points, 0.8),
        curve=tuple(points[i] for i in drawn),
        suggested=min(good, key=lambda point: point.strong_share, default=None),
    )


def _points(table: NDArray[np.void]) -> list[CascadePoint]:
    """Return a point for each threshold that matters, ordered by the share of strong calls.

    ``table`` has the columns of a ``CascadeRow``, the lowest score first. So each threshold
    escalates the first rows of the table, up to a row whose score differs from the next one.
    """
    n = len(table)
    scores = table["score"]
    # Item k of these is the mean over all calls if the first k rows are escalated.
    gains = np.concatenate([[0.0], np.cumsum(table["strong"] - table["cheap"])]) / n
    strong_usd = np.concatenate([[0.0], np.cumsum(table["strong_usd"])]) / n
    gap = float(gains[n])
    cheap = float(table["cheap"].mean())
    drafts_usd = float(table["cheap_usd"].mean())
    above_all = float(np.nextafter(scores[-1], np.inf))
    counts = [0, *(np.flatnonzero(np.diff(scores)) + 1).tolist(), n]
    return [
        CascadePoint(
            threshold=float(scores[escalated]) if escalated < n else above_all,
            strong_share=escalated / n,
            quality=cheap + float(gains[escalated]),
            recovered=float(gains[escalated]) / gap if gap > 0 else None,
            cost_usd=drafts_usd + float(strong_usd[escalated]),
        )
        for escalated in counts
    ]


def _mean_recovered(points: Sequence[CascadePoint]) -> float | None:
    """Return the APGR: the area under the recovered part, by trapezoids. None without a gap."""
    known = [(each.strong_share, each.recovered) for each in points if each.recovered is not None]
    if len(known) != len(points):
        return None
    return sum(
        (share - last_share) * (recovered + last) / 2
        for (last_share, last), (share, recovered) in pairwise(known)
    )


def _first_share(points: Sequence[CascadePoint], wanted: float) -> float | None:
    """Return the share of strong calls that recovers ``wanted``; equal scores are interpolated."""
    for last, point in pairwise(points):
        if last.recovered is None or point.recovered is None:
            return None
        if point.recovered >= wanted:
            part = (wanted - last.recovered) / (point.recovered - last.recovered)
            return last.strong_share + part * (point.strong_share - last.strong_share)
    return None


# --- tables of outcomes of a cascade --------------------------------------------------------------


def read_rows(path: Path, cheap: str = "cheap", strong: str = "strong") -> list[CascadeRow]:
    """Read a table of outcomes, or all tables of a folder: CSV with a header, or JSON lines.

    ``cheap`` and ``strong`` name the columns with the outcomes (true, false, or 0 to 1). Without
    outcomes, the table needs the texts of both answers, in ``cheap_answer`` and ``strong_answer``
    (or ``_response``): the quality of the cheap answer is then its agreement with the strong one. A
    ``score`` column is used as it is; without it the ``prompt`` is scored, and a draft that would
    be vetoed has the score 0. ``cheap_usd`` and ``strong_usd`` are optional. Raises ConfigError for
    a table without these columns.
    """
    if path.is_dir():
        tables = sorted(each for each in path.iterdir() if each.suffix in (".csv", ".jsonl"))
        if not tables:
            raise ConfigError(f"{path.name}: no .csv and no .jsonl file is in it")
        return [row for table in tables for row in read_rows(table, cheap, strong)]
    with path.open(newline="", encoding="utf-8") as file:
        records: Iterable[dict[str, Any]] = csv.DictReader(file)
        if path.suffix != ".csv":
            lines = filter(str.strip, file)
            records = (msgspec.json.decode(line, type=dict[str, Any]) for line in lines)
        try:
            return [_read_row(record, cheap, strong) for record in records]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{path.name} needs the columns {cheap!r}, {strong!r} and 'prompt' or 'score': "
                f"{error}"
            ) from error


def _read_row(record: dict[str, Any], cheap: str, strong: str) -> CascadeRow:
    draft = _answer(record, cheap)
    score, length, vetoed = record.get("score"), 0, False
    if score in (None, ""):
        prompt = record["prompt"]
        length, vetoed = len(prompt), draft is not None and _is_vetoed(prompt, draft)
        score = 0.0 if vetoed else 1.0 - expected_gain(prompt)
    cheap_quality, strong_quality = _read_qualities(record, draft, cheap, strong)
    return CascadeRow(
        score=float(score),
        cheap=cheap_quality,
        strong=strong_quality,
        cheap_usd=float(record.get("cheap_usd") or 0.0),
        strong_usd=float(record.get("strong_usd") or 0.0),
        length=length,
        vetoed=vetoed,
    )


def _read_qualities(
    record: dict[str, Any], draft: Completion | None, cheap: str, strong: str
) -> tuple[float, float]:
    """Return the qualities of the cheap and of the strong answer.

    Without outcomes, the strong answer is taken to be right, and the cheap one to be as good as it
    agrees with it.
    """
    other = _answer(record, strong)
    has_outcomes = record.get(cheap) is not None or record.get(strong) is not None
    if not has_outcomes and draft is not None and other is not None:
        agreed = judge(draft, other, [record.get("prompt")], None)
        return (agreed.probability if agreed.same is None else float(agreed.same)), 1.0
    return _outcome(record, cheap), _outcome(record, strong)


def _answer(record: dict[str, Any], name: str) -> Completion | None:
    text = record.get(f"{name}_answer") or record.get(f"{name}_response")
    if not isinstance(text, str):
        return None
    choice = Choice(index=0, parts=(Text(text=text),), finish="stop")
    return Completion(model=name, choices=(choice,), created=0)


def _is_vetoed(prompt: str, draft: Completion) -> bool:
    request = ChatRequest(model="", stream=False, document={}, query=prompt)
    return veto_draft(request, draft) is not None


def _outcome(record: dict[str, Any], name: str) -> float:
    value = record.get(name)
    if value is None:
        raise KeyError(name)
    text = str(value).strip().lower()
    return _QUALITY_OF_WORD[text] if text in _QUALITY_OF_WORD else float(text)
