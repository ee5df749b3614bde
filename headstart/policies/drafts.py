"""Decides whether a cheap model's draft may be the answer: vetoes, scores and their calibration.

A veto rejects a draft whatever its score. Scores are from 0 to 1. The scores of different judges
are not comparable, so each judge has its own Calibration. ``docs/cascade.md`` has the measurements,
and ``benchmarks/cascade.py`` repeats them.
"""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.dialects.registry import FORMS
from headstart.policies.admission import breaks_format
from headstart.policies.agreement.judge import ReadChoice, judge, read_answer
from headstart.policies.learned_rule.threshold import pool_adjacent
from headstart.types import ChatRequest, Choice, Completion, Frozen, words_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# --- vetoes and scores ---------------------------------------------------------------------------

_LEAST_CERTAIN_SHARE = 0.1
"""Half of the score is the mean over the least certain tokens: this share of all."""
_ASKS_CODE = re.compile(
    r"\b(?:write|implement|refactor|fix|code)\b.{0,80}?"
    r"\b(?:function|class|script|program|method|code|query|regex|unit tests?|snippet)\b",
    re.IGNORECASE | re.DOTALL,
)
_HAS_CODE = re.compile(
    r"```|^ {4}\S|^[^\S\n]*(?:def|class|import|from|return|function|const|let|var|public|SELECT"
    r"|fn|func)\b|[;{}][^\S\n]*$|`[^`\n]+`|=>|^[^(\n]*\(.*\):",
    re.MULTILINE,
)
_CODE_CHARACTERS = 8000
"""Number of characters of a prompt or a draft that are searched for code."""


class ScoreBasis(StrEnum):
    """The evidence behind a score, best first."""

    CALLER = "caller"
    """The result of the user's own judge, which is a probability."""
    LOGPROBS = "logprobs"
    AGREEMENT = "agreement"
    """Two cheap answers say the same."""
    PROMPT = "prompt"
    """The prompt alone; nothing is known of the draft."""


class Score(Frozen):
    """The score of a draft. ``value`` is from 0 to 1, higher is better."""

    basis: ScoreBasis
    value: float


def veto_draft(
    request: ChatRequest, draft: Completion, *, refusals: bool = True, formats: bool = True
) -> str | None:
    """Return why a finished draft must not be the answer, or None.

    ``truncated``; with ``refusals`` also ``refusal`` (a refusal, an "I don't know", a filtered or
    an empty answer); with ``formats`` also ``format`` (not the JSON that was asked for),
    ``no-code`` and ``arithmetic`` (an equation in it is wrong). A draft that the caller's own limit
    cut off is not vetoed: the limit would cut off the next answer, too.
    """
    for reply in read_answer(draft) or ():
        reason = _veto_reply(request, reply, refusals=refusals, formats=formats)
        if reason is not None:
            return reason
    return None if draft.choices else "refusal"


def score_draft(
    request: ChatRequest, draft: Completion, second: Completion | None = None
) -> Score | None:
    """Return a score from the best evidence: log-probabilities, a ``second`` answer, the prompt.

    None without any evidence.
    """
    certainty = score_logprobs(draft)
    if certainty is not None:
        return Score(basis=ScoreBasis.LOGPROBS, value=certainty)
    if second is not None:
        agreement = judge(draft, second, [request.question or request.query], None)
        return Score(basis=ScoreBasis.AGREEMENT, value=agreement.probability)
    return score_prompt(request)


def score_prompt(request: ChatRequest) -> Score | None:
    """Return the score from the last user text, before any draft.

    None if the message is not text alone.
    """
    if request.query is None:
        return None
    return Score(basis=ScoreBasis.PROMPT, value=1.0 - expected_gain(request.query))


def score_logprobs(draft: Completion) -> float | None:
    """Return the certainty of a draft's tokens; of several choices the least certain counts.

    One half of the score is the geometric mean of the tokens' probabilities. The other half is the
    mean over the least certain tenth of the tokens, so that a single error shows among many certain
    tokens. The certainty of a token is its margin over the second best token (as in UCCI, arXiv
    2605.18796), or its probability if the provider does not report that token. None without
    log-probabilities.
    """
    scores = [_score_choice(choice) for choice in draft.choices]
    known = [score for score in scores if score is not None]
    return min(known) if known and len(known) == len(scores) else None


def _score_choice(choice: Choice) -> float | None:
    tokens = choice.logprobs.get("content") if choice.logprobs else None
    if not isinstance(tokens, list):
        return None
    pairs = [_read_token(token) for token in tokens]
    logs = [pair[0] for pair in pairs if pair is not None]
    if not logs:
        return None
    margins = sorted(pair[1] for pair in pairs if pair is not None)
    unsure = margins[: max(1, round(_LEAST_CERTAIN_SHARE * len(margins)))]
    return (math.exp(sum(logs) / len(logs)) + sum(unsure) / len(unsure)) / 2


def _read_token(token: Any) -> tuple[float, float] | None:
    """Return the log-probability and the certainty of a token; None: it cannot be read."""
    log = _log_of(token)
    if log is None:
        return None
    top = token.get("top_logprobs")
    others = [
        other_log
        for other in (top if isinstance(top, list) else ())
        if isinstance(other, dict) and other.get("token") != token.get("token")
        for other_log in (_log_of(other),)
        if other_log is not None
    ]
    next_best = math.exp(max(others)) if others else 0.0
    return log, max(0.0, math.exp(log) - next_best)


def _log_of(token: Any) -> float | None:
    value = token.get("logprob") if isinstance(token, dict) else None
    if not isinstance(value, int | float) or math.isnan(value):
        return None
    # OpenAI writes -9999 for a token that is too unlikely.
    return min(0.0, max(float(value), -100.0))


def _veto_reply(
    request: ChatRequest, reply: ReadChoice, *, refusals: bool, formats: bool
) -> str | None:
    if reply.truncated:
        return None if request.max_tokens is not None else "truncated"
    if reply.refuses and refusals:
        return "refusal"
    if reply.calls or not formats:
        return None
    if breaks_format(reply.text, FORMS[request.dialect].response_format(request.document)):
        return "format"
    asked, given = ((text or "")[:_CODE_CHARACTERS] for text in (request.query, reply.text))
    if _ASKS_CODE.search(asked) and not _HAS_CODE.search(given):
        return "no-code"
    return "arithmetic" if has_wrong_equation(reply.text) else None


# --- difficulty of a prompt ----------------------------------------------------------------------

_PROMPT_CHARACTERS = 4000
"""Number of characters of a prompt that are read."""
_WORD = re.compile(r"[A-Za-z']+")
_PROMPT_NUMBER = re.compile(r"\d+(?:[.,/]\d+)*")
_BROKEN_NUMBER = re.compile(r"\d[./]\d")
_SENTENCE = re.compile(r"[.!?](?:\s|$)")
_SYMBOL = re.compile(r"[=+*^\\<>_{}|]")
_NAME = re.compile(r"\b[A-Z][a-z]+")
_NEGATIONS = words_of("not except never without neither nor unless")
_QUANTITIES = words_of("""
    than more less fewer twice half third quarter double triple times ratio percent remaining
    rest left each every per total difference average
""")
_STEPS = words_of("""
    then after before if when first next finally because therefore while until suppose given
    assume prove derive explain calculate compute find determine how
""")
_FRACTIONS = words_of("half third fourth quarter fifth twice thrice")
_LONG_WORD = 10

_GAIN_WEIGHTS = {
    "length": 0.1161,
    "thousands of characters": -0.1976,
    "words in a sentence": -0.0028,
    "sentences": 0.0304,
    "numbers": 0.0324,
    "numbers a word": -0.2163,
    "broken numbers": -0.1106,
    "quantities": 0.0204,
    "fractions": 0.0691,
    "steps": 0.0058,
    "negations": 0.0305,
    "questions": -0.0332,
    "lines": -0.0380,
    "word length": -0.0062,
    "distinct words": -0.0686,
    "long words": -0.1134,
    "names": 0.3567,
    "symbols": -0.0041,
}
PROMPT_FEATURES = tuple(_GAIN_WEIGHTS)
_GAIN_CONSTANT = -0.4330


def expected_gain(text: str) -> float:
    """Return how much more often a strong model is expected to be right than a weak one.

    This is a share in [0, 1], from a linear regression on surface features. It was fitted to
    *strong right minus weak right*, and not to *weak wrong*: a question that both models get wrong
    is difficult, too, but to escalate it has no use. A Calibration learns what the value means for
    two given models.
    """
    terms = zip(_GAIN_WEIGHTS.values(), read_features(text), strict=True)
    return min(1.0, max(0.0, _GAIN_CONSTANT + sum(weight * value for weight, value in terms)))


def read_features(text: str) -> tuple[float, ...]:
    """Return the PROMPT_FEATURES. Only the beginning of a long prompt is read."""
    text = text[:_PROMPT_CHARACTERS]
    words = _WORD.findall(text)
    lower = [word.lower() for word in words]
    count = max(1, len(words))
    sentences = len(_SENTENCE.findall(text)) + 1
    numbers = len(_PROMPT_NUMBER.findall(text))
    return (
        math.log1p(len(text)),
        len(text) / 1000,
        math.log(count / sentences),
        math.log1p(sentences),
        math.log1p(numbers),
        min(1.0, numbers / count),
        math.log1p(len(_BROKEN_NUMBER.findall(text))),
        _count_capped(lower, _QUANTITIES),
        _count_capped(lower, _FRACTIONS),
        _count_capped(lower, _STEPS),
        _count_capped(lower, _NEGATIONS),
        min(4.0, text.count("?")),
        math.log1p(text.count("\n")),
        sum(map(len, words)) / count,
        len(set(lower)) / count,
        sum(len(word) >= _LONG_WORD for word in words) / count,
        len(_NAME.findall(text)) / count,
        math.log1p(len(_SYMBOL.findall(text))),
    )


def _count_capped(words: list[str], vocabulary: frozenset[str]) -> float:
    return min(4.0, sum(word in vocabulary for word in words))


# --- arithmetic of a draft -----------------------------------------------------------------------

_EQUATION_CHARACTERS = 8000
"""Number of characters of a draft that are searched."""
_MOST_EQUATIONS = 50
_SIGNS = str.maketrans(
    {"\N{MULTIPLICATION SIGN}": "*", "\N{DIVISION SIGN}": "/", "\N{MINUS SIGN}": "-"}
)
_EQUATION_NUMBER = r"\$?\d{1,15}(?:,\d{3})*(?:\.\d{1,10})?"
_OPERATOR = "[-+*/x]"
_EQUATION = re.compile(
    rf"""
    (?<![\w.)%^=+*/-])(?<![=+*/x-]\s)
    (?P<left>{_EQUATION_NUMBER}(?:\s?{_OPERATOR}\s?{_EQUATION_NUMBER}){{1,8}})
    \s?=\s?
    (?P<right>-?{_EQUATION_NUMBER})
    (?![\w%/]|[.,]\d|\s?[-+*/x(^])
    """,
    re.VERBOSE,
)
_TERM = re.compile(rf"({_OPERATOR})?\s?\$?([\d,]+(?:\.\d+)?)")
_RELATIVE_TOLERANCE = 0.006
"""Answers round their intermediate results."""


def has_wrong_equation(text: str) -> bool:
    """Tell whether ``text`` holds an equation of numbers such as ``16 - 3 = 12`` that is wrong.

    This judge needs no second model: on real drafts for GSM8K, most of those with a wrong equation
    have a wrong answer. It knows sums, differences, products and quotients without brackets, and
    accepts rounded results. Only the beginning of a long text is read.
    """
    found = _EQUATION.finditer(text[:_EQUATION_CHARACTERS].translate(_SIGNS))
    return any(
        _is_wrong_equation(match) for match, _ in zip(found, range(_MOST_EQUATIONS), strict=False)
    )


def _is_wrong_equation(equation: re.Match[str]) -> bool:
    value = _evaluate(equation["left"])
    if value is None:
        return False
    right = equation["right"].replace("$", "").replace(",", "")
    decimals = len(right.partition(".")[2])
    tolerance = max(0.51 * 10.0**-decimals, _RELATIVE_TOLERANCE * abs(value))
    return abs(value - float(right)) > tolerance


def _evaluate(text: str) -> float | None:
    """Return the value of a chain of operations, or None for a division by zero."""
    terms = [0.0]
    for operator, digits in _TERM.findall(text):
        number = float(digits.replace(",", ""))
        if operator in ("*", "x"):
            terms[-1] *= number
        elif operator == "/":
            if number == 0:
                return None
            terms[-1] /= number
        else:
            terms.append(-number if operator == "-" else number)
    return sum(terms)


# --- calibration ---------------------------------------------------------------------------------

CALIBRATION_BINS = 10
_PRIOR_WEIGHT = 4.0
"""The weight of the prior: it counts as this number of drafts in each bin, so that the first real
drafts change it only a little."""
_DRAFTS_REMEMBERED = 400.0
"""Number of drafts that a bin remembers. Older ones fade, because models change."""


class Calibration(Frozen):
    """P(good | score), learned as answers come in. Immutable: ``learn`` returns the next one.

    Isotonic regression (pool adjacent violators: Ayer et al. 1955; for calibration Zadrozny and
    Elkan 2002) over ten bins of the score. UCCI (arXiv 2605.18796) reports an expected calibration
    error of .03 with isotonic calibration, and of .12 with raw margins.
    """

    good: tuple[float, ...]
    """Weight of good drafts in each tenth of the score."""
    seen: tuple[float, ...]
    """Weight of all drafts there."""

    def probability(self, score: float) -> float:
        """Return P(good), linear between the centres of the bins. It never falls with the score."""
        shares = [good / seen for good, seen in zip(self.good, self.seen, strict=True)]
        blocks = pool_adjacent(shares, self.seen)
        heights = [block.mean for block in blocks for _ in range(block.size)]
        place = min(1.0, max(0.0, score)) * CALIBRATION_BINS - 0.5
        low = min(CALIBRATION_BINS - 2, max(0, int(place)))
        share = min(1.0, max(0.0, place - low))
        return heights[low] * (1 - share) + heights[low + 1] * share

    def learn(self, score: float, *, good: bool, weight: float = 1.0) -> Calibration:
        """Return the calibration after one more draft.

        If only a share of such drafts is checked, the ``weight`` of each is 1 / share.
        """
        at = min(CALIBRATION_BINS - 1, max(0, int(score * CALIBRATION_BINS)))
        keep = min(1.0, _DRAFTS_REMEMBERED / (self.seen[at] + weight))
        return msgspec.structs.replace(
            self,
            good=_with_item(self.good, at, (self.good[at] + good * weight) * keep),
            seen=_with_item(self.seen, at, (self.seen[at] + weight) * keep),
        )


def calibration_prior(heights: Sequence[float]) -> Calibration:
    """Return a calibration that starts with ``heights``: P(good) in each bin."""
    return Calibration(
        good=tuple(height * _PRIOR_WEIGHT for height in heights),
        seen=(_PRIOR_WEIGHT,) * CALIBRATION_BINS,
    )


CALIBRATION_PRIORS: Mapping[ScoreBasis, Calibration] = {
    basis: calibration_prior(heights)
    for basis, heights in {
        # Assumed: a usual token margin, before anything is known of the model. It is overconfident.
        ScoreBasis.LOGPROBS: (0.20, 0.30, 0.40, 0.48, 0.56, 0.64, 0.71, 0.78, 0.85, 0.92),
        # Most answers that agree are right. The judge's own doubt is in the middle.
        ScoreBasis.AGREEMENT: (0.35, 0.38, 0.42, 0.48, 0.55, 0.62, 0.68, 0.74, 0.80, 0.86),
        # Measured: Mixtral 8x7B on GSM8K and MMLU. A prompt alone tells little (docs/cascade.md).
        ScoreBasis.PROMPT: (0.40, 0.40, 0.40, 0.40, 0.40, 0.53, 0.54, 0.60, 0.70, 0.72),
        # The caller's probabilities are believed until drafts show otherwise.
        ScoreBasis.CALLER: (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95),
    }.items()
}


def _with_item(values: tuple[float, ...], at: int, value: float) -> tuple[float, ...]:
    return (*values[:at], value, *values[at + 1 :])


# --- decision ------------------------------------------------------------------------------------

_EVEN = 0.5
"""Both models are asked at the same time if the probability of failure is higher than this."""


class DraftDecision(Frozen):
    """The decision about a draft."""

    accept: bool
    reason: str
    """``confident``, ``unsure``, ``unjudged``, ``passed`` or a veto."""


def decide_draft(
    score: Score | None, calibration: Calibration | None, min_confidence: float
) -> DraftDecision:
    """Accept a draft that is good with ``min_confidence``.

    ``calibration`` belongs to the basis of the score. A draft that cannot be judged is escalated.
    """
    if score is None or calibration is None:
        return DraftDecision(accept=False, reason="unjudged")
    if calibration.probability(score.value) >= min_confidence:
        return DraftDecision(accept=True, reason="confident")
    return DraftDecision(accept=False, reason="unsure")


def start_both(prompt: Score | None, acceptance: Calibration | None) -> bool:
    """Tell whether to start the strong model at once, without waiting for the draft's judge.

    ``acceptance`` is a Calibration over scores of prompts whose "good" means "was accepted".
    If escalation is likelier than not, the draft would mostly cost time.
    """
    if prompt is None or acceptance is None:
        return False
    return 1.0 - acceptance.probability(prompt.value) > _EVEN


# --- checks --------------------------------------------------------------------------------------

CHECKED = 0.02
"""The share of the calls that is checked if that is cheap enough."""
LEAST_CHECKED = 0.001
"""The least share of the calls that is checked, whatever a check costs: without checks, nothing is
learned about drafts that pass. If all calls went to the strong model, they would cost a thousand
times as much as these checks."""
_ESCALATIONS_REMEMBERED = 1000.0
"""Number of drafts over which escalations are averaged."""


class Escalations(Frozen):
    """The share of recent drafts that was escalated. Immutable: ``after`` returns the next one.

    An escalated draft is compared with the strong model's answer, which is needed anyway. A draft
    that passes would never be compared. So for some calls the cascade asks both models, although
    one would be enough. Such a check costs one more call: the more that call costs, the fewer
    checks are made (``check_share``).
    """

    share: float = 0.0
    drafts: float = 0.0

    def after(self, *, escalated: bool) -> Escalations:
        """Return the share after one more draft."""
        drafts = min(_ESCALATIONS_REMEMBERED, self.drafts + 1.0)
        share = self.share + (escalated - self.share) / drafts
        return msgspec.structs.replace(self, share=share, drafts=drafts)


def check_share(call_usd: float, check_usd: float, *, checked: float, extra_cost: float) -> float:
    """Return the probability with which to check a call.

    ``checked`` is the highest result. ``extra_cost`` limits the cost of checks, as a share of the
    cost of calls: ``call_usd`` is the mean cost of a call without a check, ``check_usd`` the cost
    that a check adds. The result is at least ``LEAST_CHECKED``, unless ``checked`` or
    ``extra_cost`` is smaller.
    """
    if check_usd <= 0.0:
        return checked
    least = min(LEAST_CHECKED, extra_cost)
    return min(checked, max(least, extra_cost * call_usd / check_usd))
