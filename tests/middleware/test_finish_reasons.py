"""Each finish reason that an SDK knows has a meaning here: a new version may bring new ones."""

from __future__ import annotations

from typing import get_args

from anthropic.types.beta import BetaStopReason
from google.genai.types import FinishReason

from headstart.dialects import anthropic_answers, gemini_answers
from headstart.types import words_of

GEMINI_FAILURES = words_of(
    "FINISH_REASON_UNSPECIFIED OTHER MALFORMED_FUNCTION_CALL IMAGE_OTHER NO_IMAGE ESCALATION"
    " UNEXPECTED_TOOL_CALL TOO_MANY_TOOL_CALLS MISSING_THOUGHT_SIGNATURE MALFORMED_RESPONSE"
    " PUP_LIMITED_DISABLED"
)
"""Reasons that other APIs do not have. Their clients read ``error``."""
ANTHROPIC_PAUSES = words_of("pause_turn compaction")
"""Reasons after which the client sends the answer back, and the model goes on."""


def test_each_finish_reason_of_gemini_has_a_meaning() -> None:
    known = gemini_answers.FINISHES.keys() | GEMINI_FAILURES
    assert {reason.value for reason in FinishReason} <= known


def test_each_stop_reason_of_anthropic_has_a_meaning() -> None:
    known = anthropic_answers.FINISHES.keys() | ANTHROPIC_PAUSES
    assert set(get_args(BetaStopReason)) <= known
