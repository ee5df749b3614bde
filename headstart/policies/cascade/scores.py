"""Judges of a cheap model's draft: may it be the answer?

Two kinds of word: a veto (a draft nobody should get, whatever its score) and a score from 0 to 1.
Scores of different judges are not comparable: each has its own Calibration.
"""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from headstart.policies.agreement.answers import read_answer
from headstart.policies.agreement.judge import judge
from headstart.policies.cascade.arithmetic import has_wrong_equation
from headstart.policies.cascade.difficulty import expected_gain
from headstart.policies.formats import breaks_format, gemini_format
from headstart.types import Frozen

if TYPE_CHECKING:
    from headstart.policies.agreement.answers import Reply
    from headstart.types import ChatRequest, Choice, Completion

_SHAKIEST = 0.1
"""Share of the tokens, the least certain ones, whose mean makes half of the score."""
_ASKS_CODE = re.compile(
    r"\b(?:write|implement|refactor|fix|code)\b.{0,80}?"
    r"\b(?:function|class|script|program|method|code|query|regex|unit tests?|snippet)\b",
    re.IGNORECASE | re.DOTALL,
)
_HAS_CODE = re.compile(
    r"```|^ {4}\S|^\s*(?:def|class|import|from|return|function|const|let|var|public|SELECT|fn|func)"
    r"\b|[;{}]\s*$|`[^`\n]+`|=>|\(.*\):",
    re.MULTILINE,
)
_READ = 8000
"""Characters of a prompt or a draft that are searched for code."""


class Basis(StrEnum):
    """What a score rests on, best first."""

    CALLER = "caller"
    """A judge of the user's own, who gives a probability."""
    LOGPROBS = "logprobs"
    AGREEMENT = "agreement"
    """Two cheap answers say the same."""
    PROMPT = "prompt"
    """The prompt alone; nothing is known of the draft."""


class Score(Frozen):
    """A judge's word. ``value`` is from 0 to 1, higher is better."""

    basis: Basis
    value: float


def veto_draft(
    request: ChatRequest, draft: Completion, *, refusals: bool = True, formats: bool = True
) -> str | None:
    """Return why a finished draft must not be the answer, or None.

    ``truncated``; with ``refusals`` also ``refusal`` (a refusal, an "I don't know", a filtered or
    an empty answer); with ``formats`` also ``format`` (not the JSON that was asked for),
    ``no-code`` and ``arithmetic`` (an equation in it is wrong). What a limit of the caller's own
    cut off is not vetoed: the next would be, too.
    """
    for reply in read_answer(draft) or ():
        reason = _veto_reply(request, reply, refusals=refusals, formats=formats)
        if reason is not None:
            return reason
    return None if draft.choices else "refusal"


def score_draft(
    request: ChatRequest, draft: Completion, second: Completion | None = None
) -> Score | None:
    """Return the best score there is: log-probabilities, a ``second`` cheap answer, the prompt.

    None when there is nothing to go by.
    """
    certainty = score_logprobs(draft)
    if certainty is not None:
        return Score(basis=Basis.LOGPROBS, value=certainty)
    if second is not None:
        word = judge(draft, second, [request.question or request.query], None)
        return Score(basis=Basis.AGREEMENT, value=word.probability)
    return score_prompt(request)


def score_prompt(request: ChatRequest) -> Score | None:
    """Return what the last user text tells before any draft, or None if it is not text alone."""
    if request.query is None:
        return None
    return Score(basis=Basis.PROMPT, value=1.0 - expected_gain(request.query))


def score_logprobs(draft: Completion) -> float | None:
    """Return how certain a draft's tokens were, the least certain choice counting.

    Half is the geometric mean of the tokens' probabilities, half the mean over the tenth of the
    tokens that were least certain: one wrong turn does not drown in many sure words. A token's
    certainty is its margin over the next best where the provider tells it (as in UCCI, arXiv
    2605.18796), else its probability. None without log-probabilities.
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
    shaky = margins[: max(1, round(_SHAKIEST * len(margins)))]
    return (math.exp(sum(logs) / len(logs)) + sum(shaky) / len(shaky)) / 2


def _read_token(token: Any) -> tuple[float, float] | None:
    """Return a token's log-probability and its certainty, or None for what cannot be read."""
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
    # OpenAI writes -9999 for what is too unlikely to tell.
    return min(0.0, max(float(value), -100.0))


def _veto_reply(request: ChatRequest, reply: Reply, *, refusals: bool, formats: bool) -> str | None:
    if reply.truncated:
        return None if request.max_tokens is not None else "truncated"
    if reply.refuses and refusals:
        return "refusal"
    if reply.calls or not formats:
        return None
    if breaks_format(reply.text, _asked_format(request.document)):
        return "format"
    if _asks_code(request) and not _HAS_CODE.search(reply.text[:_READ]):
        return "no-code"
    return "arithmetic" if has_wrong_equation(reply.text) else None


def _asks_code(request: ChatRequest) -> bool:
    return request.query is not None and _ASKS_CODE.search(request.query[:_READ]) is not None


def _asked_format(document: dict[str, Any]) -> object:
    """Return the format that was asked for, in its place in OpenAI's, Anthropic's or Gemini's."""
    generation = document.get("generationConfig")
    if isinstance(generation, dict):
        return gemini_format(generation)
    output = document.get("output_config")
    inner = output.get("format") if isinstance(output, dict) else None
    return inner or document.get("response_format")
