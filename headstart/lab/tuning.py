r"""Studies a log of prompts for ``headstart tune``. The parts of this file, in order:

1. **The study of a log.** ``lab/stream.py`` plays the prompts of the log through the cache, once
   for each error target. Here the plays become results: hits and wrong hits for each target, ROC
   curves, the learned threshold over time, and the pairs of prompts nearest to the threshold.
2. **Advice.** What the results recommend, in words and as lines for ``headstart.toml``. For
   example: "Set max_error = 0.02: expect semantic hits for about 12 % of the prompts, …".
3. **Templates.** Many prompts may be one text with another question in it. For example (shorter
   than real ones), ``You answer for the shop. Question: Where is my parcel? Answer briefly.`` and
   its like give ``^You answer for the shop\. Question: (?P<query>[\s\S]+?) Answer briefly\.$``, a
   pattern for ``[[route]] query``.
4. **The page.** ``render_tuning`` writes all results as one self-contained HTML page.

A target is **kept** unless its play shows, with a certainty of 95 %, that more of the hits were
wrong than it allows.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from difflib import SequenceMatcher
from html import escape
from itertools import groupby
from math import ceil, log10
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from headstart.decisions import Rule
from headstart.lab.rates import Ordering, Rates, ordering_report, percent
from headstart.report.sections import (
    LEFT,
    ReportSection,
    Table,
    counted,
    curve_through,
    frame,
    grid,
    key,
    place_x,
    place_y,
    render_document,
    tick,
)
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from headstart.lab.stream import PlayedPrompt


# --- the study of a log ---------------------------------------------------------------------------

TARGETS = (0.005, 0.01, 0.02, 0.05, 0.10)
"""Error targets that are compared."""
THRESHOLDS = tuple(round(0.80 + step / 100, 2) for step in range(20))
"""Similarities among which a static threshold is chosen."""
BORDERLINE = 20
"""The number of listed pairs: half of them were served, half were refused."""
ROC_POINTS = 200
WINDOWS = 40
"""The number of parts of a stream for which rates are drawn."""


class TargetResult(Frozen, omit_defaults=False):
    """A stream, played from an empty cache with one error target."""

    max_error: float
    rates: Ordering
    late: Ordering
    """The rates of the second half, after most of the learning."""
    learned: bool = True
    """The learned rule decided at the end; False: the cold start has not ended."""


class Roc(Frozen, omit_defaults=False):
    """The ROC curve of a number that separates pairs with the same answer from other pairs."""

    name: str
    area: float
    """The area under the curve: 0.5 is chance, 1 is perfect."""
    points: tuple[tuple[float, float], ...]
    """(share of different pairs above a threshold, share of same pairs above it)."""


class StreamPart(Frozen, omit_defaults=False):
    """The threshold and the rates in one part of a stream."""

    n: int
    """The number of prompts up to the end of this part."""
    rule: str
    threshold: float | None
    """The threshold of the score under the learned rule, else of the similarity; None: none."""
    hit_rate: float
    wrong_per_hit: float | None


class Borderline(Frozen, omit_defaults=False):
    """A pair near the threshold. ``margin`` is the difference of its score and the threshold."""

    asked: str
    stored: str
    similarity: float
    margin: float
    served: bool
    same: bool | None


class Static(Frozen, omit_defaults=False):
    """The best static threshold in hindsight: the lowest one that certainly kept the target."""

    threshold: float
    rates: Ordering


class Advice(Frozen, omit_defaults=False):
    """The recommendations from a log."""

    words: tuple[str, ...]
    """Sentences for the operator, the recommendation first."""
    toml: str
    """The lines for ``headstart.toml``."""


class Tuning(Frozen, omit_defaults=False):
    """All results of ``headstart tune``."""

    n: int
    skipped: dict[str, int]
    """The number of lines that the cache would not store, by reason."""
    max_error: float
    chosen: Ordering
    """The results for ``max_error``."""
    targets: tuple[TargetResult, ...]
    roc: tuple[Roc, ...]
    course: tuple[StreamPart, ...]
    borderline: tuple[Borderline, ...]
    templates: tuple[Template, ...] = ()
    static: Static | None = None
    advice: Advice | None = None
    """None: nothing was written that could be pasted."""


def target_of(max_error: float, steps: Sequence[PlayedPrompt[Any]]) -> TargetResult:
    """Count one play: the whole stream, and its second half."""
    return TargetResult(
        max_error=max_error,
        rates=ordering_report(steps, None),
        late=ordering_report(steps[len(steps) // 2 :], None),
        learned=any(each.verdict and each.verdict.rule is Rule.LEARNED for each in steps),
    )


def rocs(steps: Iterable[PlayedPrompt[Any]]) -> tuple[Roc, ...]:
    """Return the curves of similarity and of the learned score, over pairs that no guard vetoed."""
    judged = [
        (step.verdict, step.right)
        for step in steps
        if step.verdict is not None and step.veto is None and step.right is not None
    ]
    same = np.array([right for _, right in judged], bool)
    if not same.any() or same.all():
        return ()
    similarity = [verdict.similarity for verdict, _ in judged]
    found = [_roc("similarity", np.array(similarity), same)]
    scores = [verdict.score for verdict, _ in judged if verdict.score is not None]
    if len(scores) == len(judged):
        found.append(_roc("learned score", np.array(scores), same))
    return tuple(found)


def _roc(name: str, values: np.ndarray, same: np.ndarray) -> Roc:
    best_first = np.argsort(-values, kind="stable")
    ordered = same[best_first]
    right = np.concatenate(([0.0], np.cumsum(ordered) / ordered.sum()))
    wrong = np.concatenate(([0.0], np.cumsum(~ordered) / (~ordered).sum()))
    shown = np.unique(np.linspace(0, len(wrong) - 1, ROC_POINTS).astype(int))
    return Roc(
        name=name,
        area=float(np.trapezoid(right, wrong)),
        points=tuple(zip(wrong[shown].tolist(), right[shown].tolist(), strict=True)),
    )


def course(steps: Sequence[PlayedPrompt[Any]]) -> tuple[StreamPart, ...]:
    """Return the threshold and the rates over the stream, in at most ``WINDOWS`` parts."""
    size = max(1, -(-len(steps) // WINDOWS))
    found = []
    rule, threshold = Rule.COLD_START, None
    for start in range(0, len(steps), size):
        part = steps[start : start + size]
        for step in part:
            if step.verdict is not None and step.verdict.rule is not Rule.SAME_WORDS:
                rule, threshold = step.verdict.rule, step.verdict.threshold
        rates = ordering_report(part, None)
        found.append(
            StreamPart(
                n=start + len(part),
                rule=rule.value,
                threshold=threshold,
                hit_rate=rates.hit_rate or 0.0,
                wrong_per_hit=rates.wrong_per_hit,
            )
        )
    return tuple(found)


def borderline(steps: Iterable[PlayedPrompt[Any]]) -> tuple[Borderline, ...]:
    """Return the pairs nearest to the threshold in force, served and refused, nearest first.

    Pairs that were judged by their similarity count only if no rule was learned, because that rule
    has a threshold of another number.
    """
    by_rule: dict[Rule, list[Borderline]] = defaultdict(list)
    for step in steps:
        pair = _borderline(step)
        if pair is not None and step.verdict is not None:
            by_rule[step.verdict.rule].append(pair)
    by_similarity = [*by_rule[Rule.COLD_START], *by_rule[Rule.SAME_WORDS]]
    found = by_rule[Rule.LEARNED] or by_similarity
    nearest = sorted(found, key=lambda pair: abs(pair.margin))
    served = [pair for pair in nearest if pair.served][: BORDERLINE // 2]
    refused = [pair for pair in nearest if not pair.served][: BORDERLINE // 2]
    return (*served, *refused)


def _borderline(step: PlayedPrompt[Any]) -> Borderline | None:
    verdict = step.verdict
    if verdict is None or verdict.threshold is None or step.veto is not None:
        return None
    reached = verdict.score if verdict.rule is Rule.LEARNED else verdict.similarity
    if reached is None or step.neighbor is None:
        return None
    return Borderline(
        asked=step.row.prompt.query,
        stored=step.neighbor.prompt.query,
        similarity=verdict.similarity,
        margin=reached - verdict.threshold,
        served=step.served,
        same=step.right,
    )


def best_static(
    max_error: float, played: Iterable[tuple[float, Sequence[PlayedPrompt[Any]]]]
) -> Static | None:
    """Return the static threshold with most hits whose errors were at most ``max_error``.

    The upper end of the error's 95 % interval counts, so that a few lucky hits decide nothing.
    """
    kept = []
    for threshold, steps in played:
        rates = ordering_report(steps, None)
        interval = rates.intervals["wrong_per_hit"]
        if interval is not None and interval.high <= max_error:
            kept.append(Static(threshold=threshold, rates=rates))
    return max(kept, key=lambda found: found.rates.hits, default=None)


# --- advice ---------------------------------------------------------------------------------------

WORTH_IT = 0.01
"""With a lower share of late hits, matching by meaning gains next to nothing."""
FEW_HITS = 30
"""With fewer hits, the rates are rough."""


def advise(targets: Sequence[TargetResult], max_error: float, state: str) -> Advice:
    """Recommend a target, the wanted ``max_error`` if it is worth it and was kept.

    ``targets`` are sorted by their target. ``state`` is the file with the learned state.
    """
    wanted = next(each for each in targets if each.max_error == max_error)
    pick = _pick(targets, wanted)
    if pick is not None:
        words = _recommend(pick, wanted)
        toml = f"[cache]\nmax_error = {pick.max_error:g}\nstate = {json.dumps(state)}"
    elif any(each.learned for each in targets):
        nothing = (
            "Serve only exact repeats: no target that was kept gave semantic hits for at least "
            f"{_rounded(WORTH_IT)} of the prompts."
        )
        words = [nothing]
        toml = '[cache]\nmode = "exact-only"'
    else:
        short = (
            f"The log is too short to tell: in {wanted.rates.n:,} prompts no target ended the "
            "cold start, which takes at least 200 comparisons of answers. Record some thousand "
            "prompts with the lines below, which serve only exact repeats, and run tune again."
        )
        words = [short]
        toml = '[cache]\nmode = "shadow"\n\n[record]\nenabled = true'
    exceeded = (each for each in targets if (each.rates.wrong_per_hit or 0.0) > each.max_error)
    return Advice(words=(*words, *map(_explain, exceeded)), toml=toml)


def _pick(targets: Sequence[TargetResult], wanted: TargetResult) -> TargetResult | None:
    """Return the wanted target; else a stricter one that was kept, else the next less strict."""
    stricter = [each for each in reversed(targets) if each.max_error < wanted.max_error]
    others = [each for each in targets if each.max_error > wanted.max_error]
    order = [wanted, *others] if _kept(wanted) else [*stricter, *others]
    worth_it = (each for each in order if (each.late.hit_rate or 0.0) >= WORTH_IT)
    return next(filter(_kept, worth_it), None)


def _kept(target: TargetResult) -> bool:
    """Tell whether a target may have been kept: the lower bound of its error does not exceed it."""
    return target.rates.wrong_per_hit_at_least <= target.max_error


def _recommend(pick: TargetResult, wanted: TargetResult) -> list[str]:
    """Return the sentences that recommend a target, and say why it is not the wanted one."""
    words = [f"Set max_error = {pick.max_error:g}: {_expect(pick)}."]
    if pick is not wanted:
        why = (
            f"gave hits for only {_rounded(wanted.late.hit_rate)} of the prompts"
            if _kept(wanted)
            else "was not kept"
        )
        words.append(f"The target {_rounded(wanted.max_error)} {why}.")
    if pick.rates.hits < FEW_HITS:
        words.append(
            f"The log is short: {counted(pick.rates.hits, 'hit')} in {pick.rates.n:,} prompts. "
            "Some thousand prompts would show more."
        )
    return words


def _expect(target: TargetResult) -> str:
    return (
        f"expect semantic hits for about {_rounded(target.late.hit_rate)} of the prompts, as in "
        f"the second half of this log, when most was learned. In the whole log {_wrong(target)}"
    )


def _wrong(target: TargetResult) -> str:
    rates = target.rates
    if not rates.wrong:
        return f"none of {counted(rates.hits, 'hit')} was wrong"
    were, share = "was" if rates.wrong == 1 else "were", _rounded(rates.wrong_per_hit)
    return f"{rates.wrong:,} of {counted(rates.hits, 'hit')} {were} wrong ({share})"


def _explain(target: TargetResult) -> str:
    """Say why more hits were wrong than a target allows."""
    begin = f"Target {_rounded(target.max_error)}: {_wrong(target)}."
    if _kept(target):
        # About this many hits without a wrong one would prove the target (the rule of three).
        enough = ceil(3 / target.max_error)
        return f"{begin} So few hits exceed it by chance; about {enough:,} hits would show it."
    late = target.late.wrong_per_hit
    if (late or 0.0) <= target.max_error:
        return (
            f"{begin} That was while little was learned: in the second half it was "
            f"{_rounded(late)}. The state that was learned lets a server begin there."
        )
    return (
        f"{begin} Chance does not explain that. The borderline pairs of --html show whether these "
        "answers really differ."
    )


def advise_static(found: Static) -> Advice:
    """Recommend a fixed threshold."""
    interval = found.rates.intervals["wrong_per_hit"]
    bound = "" if interval is None else f" (95 % bound: {_rounded(interval.high)})"
    words = (
        f"Set threshold = {found.threshold:.2f}: {_rounded(found.rates.hit_rate)} of the prompts "
        "of this log would have been semantic hits, and "
        f"{_rounded(found.rates.wrong_per_hit)} of these hits wrong{bound}."
    )
    toml = f'[cache]\nmatch = "static"\nthreshold = {found.threshold:.2f}'
    return Advice(words=(words,), toml=toml)


def _rounded(share: float | None) -> str:
    """Return a share as a percentage with at most three digits, for a sentence."""
    return f"{100 * (share or 0.0):.3g} %"


# --- templates ------------------------------------------------------------------------------------

MIN_CHARS = 200
"""A shorter prompt is a question without a template."""
OPENING_CHARS = 24
"""Prompts with the same first characters may have the same template."""
MIN_PROMPTS = 8
SAMPLE = 12
"""The number of prompts that are aligned. The pattern is then tried on all prompts."""
MIN_LITERAL = 12
"""A shorter common part, in characters, is taken for chance."""
MIN_TEMPLATE = 80
"""Fewest characters of a template. A shorter common text is only a common phrase."""
MIN_SHARE = 0.9
"""The share of prompts with the same beginning that a pattern has to match."""
MOST_CHARS = 20_000
"""A longer prompt is not aligned, because that would take seconds."""
_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
_SPECIAL = re.compile(r"[.^$*+?{}\[\]\\|()]")
_BREAK = "two tokens"
"""A mark between blocks that equals no token."""


class Template(Frozen):
    """A pattern whose group ``query`` is the question, and the number of matching prompts."""

    pattern: str
    prompts: int
    template_chars: int
    """The number of characters that all these prompts share."""


def find_templates(texts: Sequence[str]) -> tuple[Template, ...]:
    """Return the templates of distinct texts, the most used first."""
    groups: dict[str, list[str]] = defaultdict(list)
    for text in dict.fromkeys(texts):
        if MIN_CHARS <= len(text) <= MOST_CHARS:
            groups[text[:OPENING_CHARS]].append(text)
    large = (group for group in groups.values() if len(group) >= MIN_PROMPTS)
    found = [template for template in map(_template, large) if template is not None]
    return tuple(sorted(found, key=lambda template: -template.prompts))


def _template(group: Sequence[str]) -> Template | None:
    """Return the template of prompts with the same beginning; None if they have none.

    A sample of them is aligned. The tokens that all of the sample have in common, in order, are the
    literals of the template. The texts between the literals are its gaps, and one gap holds the
    question.
    """
    step = max(1, len(group) // SAMPLE)
    sample = group[::step][:SAMPLE]
    literals = _common(sample)
    template_chars = sum(map(len, literals))
    if template_chars < MIN_TEMPLATE:
        return None
    gaps = [found for text in sample if (found := _gaps(text, literals)) is not None]
    question = _question_gap(gaps) if len(gaps) == len(sample) else None
    if question is None:
        return None
    pattern = _pattern(literals, question, closed=not any(each[-1] for each in gaps))
    compiled = re.compile(pattern)
    matching = sum(compiled.search(text) is not None for text in group)
    if matching < MIN_SHARE * len(group):
        return None
    return Template(pattern=pattern, prompts=matching, template_chars=template_chars)


def _common(sample: Sequence[str]) -> list[str]:
    """Return the literal parts that all texts have in this order."""
    blocks = [_TOKEN.findall(sample[0])]
    for text in sample[1:]:
        blocks = _shared(blocks, _TOKEN.findall(text))
    return ["".join(block) for block in blocks]


def _shared(blocks: Sequence[list[str]], other: Sequence[str]) -> list[list[str]]:
    """Return the parts of the blocks that a text has as well, in order.

    The blocks are compared as one list, with a mark after each, so that no part reaches over the
    end of its block.
    """
    flat: list[str] = []
    for block in blocks:
        flat += [*block, _BREAK]
    matches = SequenceMatcher(None, flat, other, autojunk=False).get_matching_blocks()
    found = [flat[match.a : match.a + match.size] for match in matches]
    return [block for block in found if len("".join(block)) >= MIN_LITERAL]


def _gaps(text: str, literals: Sequence[str]) -> list[str] | None:
    """Return the texts before, between and after the literals; None if a literal is missing.

    So gap k is before literal k, and the last gap is after the last literal.
    """
    gaps = []
    start = 0
    for literal in literals:
        found = text.find(literal, start)
        if found < 0:
            return None
        gaps.append(text[start:found])
        start = found + len(literal)
    return [*gaps, text[start:]]


def _question_gap(gaps: Sequence[Sequence[str]]) -> int | None:
    """Return the varying gap that is most like a question: question marks count, then brevity.

    ``gaps`` has one row for each text. A gap varies if most texts have their own text there, and
    none is empty. Of two equal gaps the later one is taken.
    """
    texts_of_gap = list(zip(*gaps, strict=True))
    varying = [
        gap
        for gap, texts in enumerate(texts_of_gap)
        if len(set(texts)) > len(texts) // 2 and all(text.strip() for text in texts)
    ]

    def likeness(gap: int) -> tuple[float, float, int]:
        texts = texts_of_gap[gap]
        asked = sum("?" in text for text in texts) / len(texts)
        return round(asked, 1), -median(map(len, texts)), gap

    return max(varying, key=likeness, default=None)


def _pattern(literals: Sequence[str], question: int, *, closed: bool) -> str:
    """Return a pattern of the template's opening and of the literals around the question.

    ``question`` is the number of the question's gap. ``closed``: each text ends with the last
    literal. The literal before the question is matched at its last place, because a document in the
    prompt may hold it, too.
    """
    opening = literals[: min(1, question)]
    before = literals[question - 1 : question] if question > 1 else []
    after = literals[question : question + 1]
    head = r"[\s\S]*".join(map(_escape, (*opening, *before)))
    tail = "".join(map(_escape, after))
    is_last_gap = question == len(literals)
    ends_after_next_literal = closed and question == len(literals) - 1
    end = "$" if is_last_gap or ends_after_next_literal else ""
    return f"^{head}(?P<query>[\\s\\S]+?){tail}{end}"


def _escape(literal: str) -> str:
    """Return a literal as a pattern on one line, for TOML. ``re.escape`` escapes far more."""
    return _SPECIAL.sub(r"\\\g<0>", literal).replace("\n", r"\n").replace("\t", r"\t")


# --- the page -------------------------------------------------------------------------------------

NOTES = """\
Each target was played in time order from an empty cache, with the same learning as in production.
"Late" is the second half, after most of the learning. "Wrong" is an answer that the labels, or the
agreement judge, call different; intervals are Wilson's at 95 %. A target that no threshold meets
serves nothing."""
_LOWEST, _HIGHEST = 0.004, 0.12
"""The error targets at the ends of a logarithmic axis."""


def render_tuning(found: Tuning) -> str:
    """Return the findings as an HTML document."""
    return render_document(
        title="Headstart tune",
        heading="What this log allows",
        period=f"{found.n:,} prompts; chosen target {found.max_error:.2%}",
        parts=_sections(found),
        notes=NOTES,
    )


def _sections(found: Tuning) -> Iterator[ReportSection]:
    targets, course = found.targets, found.course
    if found.advice is not None:
        words = "\n".join(found.advice.words)
        yield ReportSection("Recommendation", note=words, plot=_code(found.advice.toml))
    yield ReportSection(
        "Hits against the error target", _targets(targets), plot=lambda: _hits(targets)
    )
    if any(_learned(part) is not None for part in course):
        yield ReportSection("The learned threshold over time", plot=lambda: _thresholds(course))
    if course:
        yield ReportSection("Hit rate over time", plot=lambda: _rates(course))
    if found.roc:
        yield ReportSection(
            "Telling same from different answers", plot=lambda: _roc_plot(found.roc)
        )
    if found.borderline:
        yield ReportSection("Borderline pairs", _pairs(found.borderline))
    for template in found.templates:
        words = f"{template.prompts:,} prompts share {template.template_chars:,} characters:"
        yield ReportSection("A template", note=words, plot=_code(template.pattern))


def _code(text: str) -> Callable[[], str]:
    return lambda: f'<pre style="overflow-x:auto"><code>{escape(text)}</code></pre>'


def _targets(targets: Sequence[TargetResult]) -> Table:
    header = (
        "error target", "hits", "late hits", "wrong per hit", "95 %", "wrong per request", "95 %",
    )  # fmt: skip
    rows = [
        (
            f"{target.max_error:.1%}",
            percent(target.rates.hit_rate),
            percent(target.late.hit_rate),
            percent(target.rates.wrong_per_hit),
            _interval(target.rates, "wrong_per_hit"),
            percent(target.rates.wrong_per_request),
            _interval(target.rates, "wrong_per_request"),
        )
        for target in targets
    ]
    return Table(header, rows)


def _hits(targets: Sequence[TargetResult]) -> str:
    def x(max_error: float) -> float:
        return place_x(log10(max_error / _LOWEST) / log10(_HIGHEST / _LOWEST))

    def points(rates: Sequence[Rates]) -> list[tuple[float, float]]:
        return [
            (x(target.max_error), place_y(each.hit_rate or 0.0))
            for target, each in zip(targets, rates, strict=True)
        ]

    parts = [*grid(), *(tick(x(each.max_error), f"{each.max_error:.1%}") for each in targets)]
    # The kinds of outcomes only name the colours here.
    parts.append(curve_through("semantic", points([target.rates for target in targets])))
    parts.append(curve_through("exact", points([target.late for target in targets])))
    marks = key((("semantic", "whole log"), ("exact", "its second half")))
    return marks + frame("Hit rate against error target", parts)


def _thresholds(course: Sequence[StreamPart]) -> str:
    """Draw the learned threshold; a gap is a cold start, or a time without a threshold."""
    known = [(part.n, _learned(part)) for part in course]
    values = [value for _, value in known if value is not None]
    low, high = min(values) - 0.5, max(values) + 0.5
    parts = grid(lambda share: f"{low + (high - low) * share:.1f}")
    for is_gap, run in groupby(known, key=lambda each: each[1] is None):
        if not is_gap:
            points = [
                (place_x(n / course[-1].n), place_y((value - low) / (high - low)))
                for n, value in run
                if value is not None
            ]
            parts.append(curve_through("semantic", points))
    return frame("The learned threshold over time", [*parts, *_time_axis(course)])


def _learned(part: StreamPart) -> float | None:
    return part.threshold if part.rule == Rule.LEARNED.value else None


def _rates(course: Sequence[StreamPart]) -> str:
    last = course[-1].n
    points = [(place_x(part.n / last), place_y(part.hit_rate)) for part in course]
    parts = [*grid(), curve_through("semantic", points), *_time_axis(course)]
    return frame("Hit rate over time", parts)


def _time_axis(course: Sequence[StreamPart]) -> Iterator[str]:
    yield tick(LEFT, "0", "start")
    yield tick(place_x(1.0), f"{course[-1].n:,} prompts", "end")


def _roc_plot(curves: Sequence[Roc]) -> str:
    kinds = ("miss", "semantic")
    marks = key(
        (kind, f"{curve.name}: area {curve.area:.3f}")
        for kind, curve in zip(kinds, curves, strict=False)
    )
    parts = grid()
    parts += [tick(place_x(share / 4), f"{share * 25} %") for share in range(5)]
    parts += [
        curve_through(kind, [(place_x(wrong), place_y(right)) for wrong, right in curve.points])
        for kind, curve in zip(kinds, curves, strict=False)
    ]
    words = '<p class="soft">Share of same answers (up) and of different ones (right) above any '
    return words + "threshold.</p>" + marks + frame("ROC", parts)


def _pairs(pairs: Sequence[Borderline]) -> Table:
    rows = [
        (
            f"{pair.asked} / {pair.stored}",
            f"{pair.similarity:.3f}",
            f"{pair.margin:+.2f}",
            "yes" if pair.served else "no",
            {True: "yes", False: "no", None: "unsure"}[pair.same],
        )
        for pair in pairs
    ]
    return Table(("asked / stored", "similarity", "margin", "served", "same answer"), rows)


def _interval(rates: Rates, name: str) -> str:
    interval = rates.intervals[name]
    return "" if interval is None else f"{interval.low:.2%} to {interval.high:.2%}"
