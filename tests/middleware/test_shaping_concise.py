from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.middleware.shaping.answer_length import AskBriefly
from headstart.policies.output.answer_limits import directive
from headstart.settings import OutputSettings
from support.candidates import Actor, Targets, make_call, whole

if TYPE_CHECKING:
    from headstart.attempts import ShapingEffect
    from headstart.dialects.dialect import Dialect
    from headstart.types import Call

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]

DIALECTS: dict[str, Dialect] = {each.name: each for each in (OPENAI_CHAT, ANTHROPIC_MESSAGES)}
QUESTION = "Why does the moon move the sea?"


def a_call(text: str = QUESTION, dialect: str = OPENAI_CHAT.name, **fields: Any) -> Call:
    asked = [{"role": "user", "content": text}]
    body = msgspec.json.encode({"model": "gpt-4o", "messages": asked, "stream": True, **fields})
    return make_call(body, DIALECTS[dialect], prompt_tokens=10)


async def ask(
    call: Call, *, usage: bool = True, **options: Any
) -> tuple[Call, tuple[str, ...], tuple[ShapingEffect, ...]]:
    """Return the call that went up, the answer's transforms and what was booked."""
    targets, actor = Targets(), Actor("a", [whole("Gra", "vity.", usage=usage)])
    step = AskBriefly(OutputSettings(**{"concise": 2, "holdout": 0.0, **options}))
    concise = targets.shaped(actor, step)
    async with await concise.send(call) as reply:
        pieces = [piece async for piece in reply.pieces]
        transforms = reply.transforms
    assert pieces == whole("Gra", "vity.", usage=usage)
    return actor.calls[0], transforms, tuple(call.log.shaped)


async def test_the_model_is_asked_for_a_short_answer_which_says_so() -> None:
    sent, transforms, (row,) = await ask(a_call())
    messages = msgspec.json.decode(sent.body)["messages"]
    assert messages == [
        {"role": "system", "content": directive(2, examples=False)},
        {"role": "user", "content": QUESTION},
    ]
    assert transforms == ("concise:2",)
    assert (row.kind, row.tokens_before, row.tokens_after) == ("concise", 20, 20)
    assert not row.estimated


async def test_each_turn_of_a_conversation_begins_with_the_bytes_of_the_one_before() -> None:
    turns = [QUESTION, "Gravity.", "How long does a tide take? List all.", "```6```", "And 7 of 8?"]
    roles = ("user", "assistant")
    talk = [{"role": roles[place % 2], "content": text} for place, text in enumerate(turns)]
    before: list[Any] = []
    for end in (1, 3, 5):
        sent, transforms, _ = await ask(a_call(messages=talk[:end]))
        messages = msgspec.json.decode(sent.body)["messages"]
        assert messages[: len(before)] == before
        assert transforms == ("concise:2",)
        before = messages


async def test_examples_are_shown_where_they_are_wanted() -> None:
    sent, _, _ = await ask(a_call(), concise_examples=True, concise=3)
    words = msgspec.json.decode(sent.body)["messages"][0]["content"]
    assert words == directive(3, examples=True)


async def test_anthropics_system_text_is_not_a_message() -> None:
    sent, _, _ = await ask(a_call(dialect=ANTHROPIC_MESSAGES.name, system="Be kind."))
    document = msgspec.json.decode(sent.body)
    assert document["system"] == "Be kind.\n\n" + directive(2, examples=False)
    assert len(document["messages"]) == 1


async def test_a_conversation_held_out_goes_up_as_it_came_and_is_measured() -> None:
    call = a_call()
    sent, transforms, (row,) = await ask(call, holdout=1.0)
    assert (sent.body, transforms, row.kind) == (call.body, (), "concise-holdout")


async def test_all_turns_of_a_conversation_are_on_one_side() -> None:
    sides = set()
    for number in range(40):
        first = {"role": "user", "content": f"{QUESTION} {number}"}
        more = [first, {"role": "assistant", "content": "So."}, {"role": "user", "content": "Why?"}]
        kinds = {(await ask(a_call(messages=turns), holdout=0.5))[2][0].kind
                 for turns in ([first], more)}  # fmt: skip
        assert len(kinds) == 1
        sides |= kinds
    assert sides == {"concise", "concise-holdout"}


@pytest.mark.parametrize(
    "call",
    [
        a_call("Write a Python function"),
        a_call(response_format={"type": "json_object"}),
        a_call(reasoning_effort="high"),
        a_call(tools=[{"type": "function", "function": {"name": "f"}}]),
        msgspec.structs.replace(a_call(), editable=False),
        msgspec.structs.replace(a_call(), request=None, dialect=""),
    ],
)
async def test_code_forms_reasoning_and_tools_are_left_alone(call: Call) -> None:
    assert await ask(call) == (call, (), ())


async def test_a_length_that_was_not_reported_is_an_estimate() -> None:
    _, _, (row,) = await ask(a_call(), usage=False)
    assert (row.tokens_after, row.estimated) == (2, True)
