from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headstart.canonical_request import (
    CanonicalRequest,
    Message,
    ReasoningOptions,
    ResponseFormat,
    TextPart,
    Tool,
)
from headstart.policies.output.answer_limits import (
    directive,
    refuse_concise,
    refuses_concise,
)

if TYPE_CHECKING:
    from headstart.canonical_request import Role

WORDS = directive(2, examples=False)


def turn(role: Role, text: str) -> Message:
    return Message(role=role, parts=(TextPart(text=text),))


def asked(*texts: str, system: str | None = None, **fields: Any) -> CanonicalRequest:
    roles: tuple[Role, Role] = ("user", "assistant")
    turns = [turn(roles[place % 2], text) for place, text in enumerate(texts)]
    if system is not None:
        turns.insert(0, turn("system", system))
    return CanonicalRequest(**{"model": "gpt-4o", "messages": tuple(turns), **fields})


QUESTION = "Why does the moon move the sea?"


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (asked(QUESTION), None),
        (asked(QUESTION, system="You are kind."), None),
        (asked(QUESTION, "Gravity.", "And what does the sun do?"), None),
        (asked(QUESTION, tools=(Tool(name="f"),)), "tools"),
        (asked(QUESTION, response_format=ResponseFormat(kind="schema")), "format"),
        (asked(QUESTION, system="Reply in JSON."), "format"),
        (asked("What is the moon? Answer as a YAML document"), "format"),
        (asked(QUESTION, reasoning=ReasoningOptions(effort="high")), "reasoning"),
        (asked(QUESTION, reasoning=ReasoningOptions(effort="none")), None),
        (asked(QUESTION, model="o3-mini"), "reasoning"),
        (asked(QUESTION, model="openai/gpt-5-mini"), "reasoning"),
        (asked(QUESTION, model="deepseek-reasoner"), "reasoning"),
        (asked("What is 12 * 17?"), "reasoning"),
        (asked("Tom has 3 apples and eats one. How many are left for him?"), "reasoning"),
        (asked("How do I sort this with a regex?"), "code"),
        (asked("Why does ```x = 1``` fail?"), "code"),
        (asked("Explain the tides in detail"), "length"),
        (asked("What is this in French? Translate: the sea"), "length"),
        (asked("Warum bewegt der Mond das Meer?"), "language"),
        (asked("月はなぜ海を動かすのですか"), "language"),
        (asked("Café: what is it?"), "language"),
        (asked(QUESTION, "Gravity."), "no-question"),
        (asked(QUESTION, extra={"prediction": {"content": "x"}}), "no-question"),
    ],
)
def test_only_plain_english_questions_are_asked_for_short_answers(
    request_: CanonicalRequest, reason: str | None
) -> None:
    assert refuse_concise(request_) == reason


LATER = ["Gravity.", "How long is a tide? List all of the 2 kinds, at 3 places, in detail.",
         "```py\n1\n```", "Schreib eine Funktion, als JSON.", "So.", "Thanks!"]  # fmt: skip


@pytest.mark.parametrize(("first", "reason"), [(QUESTION, None), ("How do I debug this?", "code")])
def test_all_turns_of_a_conversation_are_judged_by_its_first_question(
    first: str, reason: str | None
) -> None:
    for turns in range(0, len(LATER) + 1, 2):
        assert refuse_concise(asked(first, *LATER[:turns], system="You are kind.")) == reason


def test_messages_above_the_first_question_count_too() -> None:
    greeting = turn("assistant", "Here is a ```template```.")
    assert refuse_concise(asked(messages=(greeting, turn("user", QUESTION)))) == "code"
    greeting = turn("assistant", "I format nothing. What may I tell you?")
    assert refuse_concise(asked(messages=(greeting, turn("user", QUESTION)))) is None


@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_words_are_the_same_for_every_request(level: int) -> None:
    assert directive(level, examples=True).startswith(directive(level, examples=False))
    assert len({directive(each, examples=False) for each in (1, 2, 3)}) == 3


USER = {"role": "user", "content": QUESTION}
BLOCK = {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    ("transforms", "level", "refused"),
    [((), 2, False), (("concise:2", "guard"), 2, False), (("concise:2",), 0, True),
     (("concise:2",), 1, True), (("compressed:safe",), 0, False)],
)  # fmt: skip
def test_a_short_answer_serves_only_where_it_was_asked_for(
    transforms: tuple[str, ...], level: int, *, refused: bool
) -> None:
    assert refuses_concise(transforms, level) is refused
