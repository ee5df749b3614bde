from __future__ import annotations

from typing import Any

import pytest

from headstart.canonical_request import (
    CanonicalRequest,
    Message,
    ResponseFormat,
    TextPart,
    Tool,
)
from headstart.policies.output.answer_limits import (
    cut_by,
    loops,
    next_limit,
    refuse_limit,
    refuses_limits,
)
from headstart.types import Finished

QUESTION = (Message(role="user", parts=(TextPart(text="Tides?"),)),)
ANSWERED = (*QUESTION, Message(role="assistant", parts=(TextPart(text="The"),)))


def asked(**fields: Any) -> CanonicalRequest:
    return CanonicalRequest(**{"model": "m", "messages": QUESTION, **fields})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"response_format": ResponseFormat(kind="text")}, None),
        ({"max_tokens": 10}, "client-limit"),
        ({"max_tokens": 1_000_000}, "client-limit"),
        ({"choices": 2}, "choices"),
        ({"logprobs": True}, "choices"),
        ({"tools": (Tool(name="f"),)}, "tools"),
        ({"response_format": ResponseFormat(kind="json")}, "format"),
        ({"response_format": ResponseFormat(kind="schema")}, "format"),
        ({"messages": ANSWERED}, "no-question"),
        ({"messages": ()}, "no-question"),
        ({"extra": {"prediction": {"type": "content"}}}, "prediction"),
        ({"extra": {"modalities": ["text", "audio"]}}, "modalities"),
    ],
)
def test_only_plain_text_without_a_limit_of_its_own_is_limited(
    fields: dict[str, Any], reason: str | None
) -> None:
    assert refuse_limit(asked(**fields)) == reason


@pytest.mark.parametrize(
    ("finish", "tokens", "ours"),
    [
        (Finished(reason="length"), 100, True),
        (Finished(reason="length"), 99, True),
        (Finished(reason="length"), None, True),
        (Finished(reason="length"), 60, False),
        (Finished(reason="length", native="model_context_window_exceeded"), None, False),
        (Finished(reason="stop"), 100, False),
        (None, 100, False),
    ],
)
def test_our_limit_is_told_from_the_models_own(
    finish: Finished | None, tokens: int | None, ours: bool
) -> None:
    assert cut_by(100, finish, tokens) is ours


def test_the_last_continuation_gets_far_more_unless_the_answer_runs_in_circles() -> None:
    prose = "".join(f"{number} is followed by {number + 1}. " for number in range(300))
    assert next_limit(1, 100, 800, prose) == 100
    assert next_limit(2, 100, 800, prose) == 800
    assert next_limit(2, 900, 800, prose) == 900
    assert next_limit(2, 100, None, prose) is None
    assert next_limit(1, 100, 800, "and so on " * 300) == 25
    assert next_limit(2, 100, 800, "and so on " * 300) == 25
    assert next_limit(1, 100, 800, "") is None


def test_only_a_long_repetition_is_a_loop() -> None:
    assert loops("and so on, " * 400)
    assert not loops("and so on, " * 100)
    rows = "".join(f"| {row} | {row * 7 % 100} | item {row * 31 % 77} |\n" for row in range(200))
    assert not loops(rows)


@pytest.mark.parametrize(
    ("status", "body", "is_one"),
    [
        (400, b'{"error":{"message":"max_tokens is too large: 6000"}}', True),
        (400, b"Unrecognized request argument: max_completion_tokens", True),
        (422, b"This model's maximum context length is 8192 tokens", True),
        (400, b"messages: an array is required", False),
        (429, b"max_tokens exceed your tokens per minute", False),
    ],
)
def test_a_refused_limit_is_told_from_a_refused_request(
    status: int, body: bytes, is_one: bool
) -> None:
    assert refuses_limits(status, body) is is_one
