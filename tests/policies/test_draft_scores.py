"""Judges of drafts: which drafts must not pass, and what scores mean."""

from __future__ import annotations

from math import log, log1p
from typing import Any

import pytest
from msgspec.structs import replace

from headstart.policies.drafts import (
    PROMPT_FEATURES,
    ScoreBasis,
    expected_gain,
    has_wrong_equation,
    read_features,
    score_draft,
    score_logprobs,
    score_prompt,
    veto_draft,
)
from headstart.types import ChatRequest, Choice, Completion, Part, Refusal, Text, ToolCall


def ask(
    query: str | None = "What is the capital?", max_tokens: int | None = None, **fields: object
) -> ChatRequest:
    return ChatRequest(model="m", stream=True, document=fields, query=query, max_tokens=max_tokens)


def draft(*parts: Part | str, finish: str = "stop", logs: object = None) -> Completion:
    said = tuple(Text(text=part) if isinstance(part, str) else part for part in parts)
    logprobs = None if logs is None else {"content": logs}
    choice = Choice(index=0, parts=said, finish=finish, logprobs=logprobs)
    return Completion(model="m", choices=(choice,), created=0)


def tokens(*logs: float) -> list[dict[str, Any]]:
    return [{"token": "t", "logprob": log} for log in logs]


JSON = {"type": "json_object"}
SCHEMA = {
    "type": "json_schema",
    "schema": {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}},
}


@pytest.mark.parametrize(
    ("request_", "answer", "reason"),
    [
        (ask(), draft("Paris."), None),
        (ask(), draft("I'm sorry, but I can't help with that."), "refusal"),
        (ask(), draft("I don't know."), "refusal"),
        (ask(), draft(Refusal(text="No.")), "refusal"),
        (ask(), draft("", finish="content_filter"), "refusal"),
        (ask(), draft(""), "refusal"),
        (ask(), Completion(model="m", choices=(), created=0), "refusal"),
        (ask(), draft("Par", finish="length"), "truncated"),
        (ask(max_tokens=1), draft("Par", finish="length"), None),
        (ask(response_format=JSON), draft('{"a": 1}'), None),
        (ask(response_format=JSON), draft("Sure! {"), "format"),
        (ask(output_config={"format": SCHEMA}), draft('{"a": "x"}'), "format"),
        (ask(output_config={"format": SCHEMA}), draft('{"a": 2}'), None),
        (
            replace(
                ask(generationConfig={"responseMimeType": "application/json"}),
                dialect="gemini-generate",
            ),
            draft("no"),
            "format",
        ),
        (ask("Write a Python function that adds"), draft("First, think of a number."), "no-code"),
        (ask("Write a Python function that adds"), draft("```python\nx\n```"), None),
        (ask("Write a Python function that adds"), draft("def add(a, b):\n    return a"), None),
        (ask(), draft("16 - 3 = 12, so 12."), "arithmetic"),
        (ask(response_format=JSON), draft(ToolCall(id="1", name="f", arguments="{}")), None),
    ],
)
def test_a_draft_nobody_should_get_is_vetoed(
    request_: ChatRequest, answer: Completion, reason: str | None
) -> None:
    assert veto_draft(request_, answer) == reason


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("16 - 3 = 13", False),
        ("16 - 3 = 12", True),
        ("2 + 3 * 4 = 14", False),
        ("2 + 3 * 4 = 20", True),
        ("$1,200 \u00d7 2 = $2,400.", False),
        ("1,350 + 6 = 1,356", False),
        ("10 / 3 = 3.33", False),
        ("10 \u00f7 3 = 3", False),
        ("10 / 4 = 3.5", True),
        ("9 \u2212 4 = 6", True),
        ("8 + 3 * 8 = $8 + $24 = $32", False),
        ("1/2 = 2/4", False),
        ("(25 + 35) * 2 = 120", False),
        ("5 / 0 = 7", False),
        ("x = 5", False),
        ("3 == 4", False),
        ("20 * 30 = 60%", False),
        ("", False),
    ],
)
def test_equations_of_numbers_are_checked(text: str, wrong: bool) -> None:
    assert has_wrong_equation(text) is wrong


def test_checking_stays_quick_on_hostile_text() -> None:
    assert not has_wrong_equation("1+" * 100_000)
    assert not has_wrong_equation("1 + 1 = " * 100_000)


def test_log_probabilities_are_preferred_to_a_second_answer_and_that_to_the_prompt() -> None:
    sure = draft("Paris", logs=tokens(-0.01))
    by_logs = score_draft(ask(), sure, draft("Rome"))
    by_second = score_draft(ask(), draft("Paris"), draft("Rome"))
    by_prompt = score_draft(ask(), draft("Paris"))
    assert by_logs
    assert by_second
    assert by_prompt
    assert [by_logs.basis, by_second.basis, by_prompt.basis] == list(ScoreBasis)[1:]


def test_two_cheap_answers_that_agree_score_higher() -> None:
    same = score_draft(ask(), draft("Paris"), draft("paris."))
    other = score_draft(ask(), draft("Paris"), draft("Rome"))
    assert same
    assert other
    assert (same.value > 0.9, other.value < 0.1) == (True, True)


def test_a_draft_without_any_evidence_has_no_score() -> None:
    assert score_draft(ask(None), draft("Paris")) is None
    assert score_prompt(ask(None)) is None


def test_one_wrong_turn_does_not_drown_in_sure_words() -> None:
    sure = score_logprobs(draft("x", logs=tokens(*[-0.01] * 20)))
    once = score_logprobs(draft("x", logs=tokens(*[-0.01] * 19, -3.0)))
    assert sure
    assert once
    assert sure > 0.95
    assert once < sure - 0.2


def test_a_close_second_best_makes_a_token_uncertain() -> None:
    one = {"token": "a", "logprob": -0.7, "top_logprobs": [{"token": "a", "logprob": -0.7}]}
    two = one | {"top_logprobs": [*one["top_logprobs"], {"token": "b", "logprob": -0.72}]}  # type: ignore[misc]
    clear, close = score_logprobs(draft("x", logs=[one])), score_logprobs(draft("x", logs=[two]))
    assert clear
    assert close
    assert close < clear


def test_the_least_certain_choice_counts() -> None:
    first, second = (draft("x", logs=tokens(log)).choices[0] for log in (-0.01, -2.0))
    both = Completion(model="m", choices=(first, second), created=0)
    assert score_logprobs(both) == pytest.approx(score_logprobs(draft("x", logs=tokens(-2.0))))


@pytest.mark.parametrize(
    "logs",
    [
        [], "x", [None], [{}], [{"logprob": "x"}], [{"logprob": float("nan")}],
        [{"token": "a"}],
    ],
)  # fmt: skip
def test_unreadable_log_probabilities_are_none(logs: object) -> None:
    assert score_logprobs(draft("x", logs=logs)) is None


def test_odd_neighbours_and_impossible_values_are_tolerated() -> None:
    odd = [{"token": "a", "logprob": -9999.0, "top_logprobs": [None, {"logprob": None}]}]
    assert score_logprobs(draft("x", logs=odd)) == pytest.approx(0.0, abs=1e-9)


def test_a_long_word_problem_gains_more_from_a_strong_model_than_a_greeting() -> None:
    problem = (
        "Janet has 16 eggs. She eats three for breakfast, then bakes muffins with four, and sells "
        "the rest to Kylar for twice the price of the market. How much does Janet make in total?"
    )
    assert expected_gain(problem) > expected_gain("Hi there") + 0.1
    hard, easy = score_prompt(ask(problem)), score_prompt(ask("Hi there"))
    assert hard
    assert easy
    assert hard.value < easy.value


@pytest.mark.parametrize("text", ["", "?", "\x00" * 10, "a" * 100_000, "1" * 5000, "ab. " * 5000])
def test_any_prompt_has_a_gain_within_bounds(text: str) -> None:
    assert len(read_features(text)) == len(PROMPT_FEATURES)
    assert 0.0 <= expected_gain(text) <= 1.0


def test_the_features_of_a_prompt_are_counted() -> None:
    text = (
        "Ann has 16 eggs. She sells half, and then 3/4 of each\n"
        "afterwards eggs. How many = not sold?"
    )
    assert dict(zip(PROMPT_FEATURES, read_features(text), strict=True)) == pytest.approx(
        {
            "length": log1p(len(text)),
            "thousands of characters": len(text) / 1000,
            "words in a sentence": log(16 / 4),
            "sentences": log1p(4),
            "numbers": log1p(2),
            "numbers a word": 2 / 16,
            "broken numbers": log1p(1),
            "quantities": 2,
            "fractions": 1,
            "steps": 2,
            "negations": 1,
            "questions": 1,
            "lines": log1p(1),
            "word length": 63 / 16,
            "distinct words": 15 / 16,
            "long words": 1 / 16,
            "names": 3 / 16,
            "symbols": log1p(1),
        }
    )
