"""Keys of requests to OpenAI's Responses."""

from __future__ import annotations

import json
from typing import Any

import openai.types.responses.response_create_params as api
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.dialects.dialect import FieldUse
from headstart.dialects.openai_responses import OPENAI_RESPONSES
from headstart.policies.admission import Admission
from headstart.policies.key import KeyContext, chat_key
from headstart.types import CacheKey, Choice, Completion, Entry, Origin, Text

DOCUMENTED = sorted(
    name
    for kind in (api.ResponseCreateParamsStreaming, api.ResponseCreateParamsNonStreaming)
    for name in kind.__annotations__
)
CONTEXT = KeyContext(dialect=OPENAI_RESPONSES.name, path=b"/v1/responses", upstream="u")


def key(asked: Any = "Why?", **fields: Any) -> CacheKey:
    body = json.dumps({"model": "m", "input": asked, **fields}).encode()
    request = OPENAI_RESPONSES.parse_request(body)
    return chat_key(request, scope="s", context=CONTEXT)


def user(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts), **more}


def text(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "input_text", "text": text, **more}


def test_every_documented_field_has_a_use() -> None:
    assert set(DOCUMENTED) <= OPENAI_RESPONSES.key.fields.keys()


# Their types are checked, and they name more than one use.
_CHECKED = {"input", "model", "include", "stream", "max_output_tokens", "top_logprobs", "user"}
_CHECKED |= {"safety_identifier"}


@given(
    name=st.sampled_from(sorted(set(DOCUMENTED) - _CHECKED)),
    values=st.tuples(st.integers(), st.integers()).filter(lambda pair: pair[0] != pair[1]),
)
def test_a_field_changes_the_key_unless_its_table_says_otherwise(
    name: str, values: tuple[int, int]
) -> None:
    before, after = (key(**{name: value}) for value in values)
    assert (before.exact != after.exact) == (OPENAI_RESPONSES.key.fields[name] is FieldUse.KEYED)


def test_unknown_fields_are_keyed_and_stand_apart() -> None:
    assert key(made_up=1).exact != key().exact
    assert key(messages=[1]).exact != key(messages=[2]).exact
    assert key(messages=[{"role": "user", "content": "Why?"}]).exact != key().exact


def test_instructions_belong_to_the_partition_and_the_question_does_not() -> None:
    assert key(instructions="a").partition != key(instructions="b").partition
    assert key("Why?").partition == key("How?").partition
    assert key("Why?").exact != key("How?").exact
    assert key("Why?").query == "Why?"


def test_a_string_is_one_message_of_one_text() -> None:
    marked = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    same = [
        "Why?",
        [{"role": "user", "content": "Why?"}],
        [{"type": "message", "role": "user", "content": "Why?"}],
        [user(text("Why?"))],
        [user(text("Why?", **marked))],
        [user(text("Why?"), id="msg_1", status="completed")],
    ]
    assert len({key(asked) for asked in same}) == 1
    others = [user(text("Why?"), text("")), user(text("Why?", odd=1)), user(text("Why?"), odd=1)]
    assert len({key(asked).exact for asked in ("Why?", *([each] for each in others))}) == 4


def test_ids_of_items_do_not_matter_but_the_pairing_of_calls_does() -> None:
    def talk(item: str, first: str, second: str, answered: str) -> CacheKey:
        calls = [
            {"type": "function_call", "id": item + id, "call_id": id, "name": "f", "arguments": ""}
            for id in (first, second)
        ]
        result = {"type": "function_call_output", "call_id": answered, "output": "7"}
        return key(["Why?" and user(text("Why?")), *calls, result])

    assert talk("x", "a", "b", "a") == talk("y", "c", "d", "c")
    assert talk("x", "a", "b", "a").exact != talk("x", "a", "b", "b").exact


def test_sealed_reasoning_is_keyed_where_nothing_else_tells_it() -> None:
    def talk(sealed: str, *summaries: str) -> CacheKey:
        summary = [{"type": "summary_text", "text": each} for each in summaries]
        item = {"type": "reasoning", "id": f"rs_{sealed}", "summary": summary}
        return key([{**item, "encrypted_content": sealed}, user(text("Why?"))])

    assert talk("a", "Hm.") == talk("b", "Hm.")
    assert talk("a", "Hm.").exact != talk("a", "Oh.").exact
    assert talk("a").exact != talk("b").exact


def test_items_that_others_refer_to_keep_their_ids() -> None:
    def talk(id: str) -> CacheKey:
        return key([{"type": "mcp_approval_request", "id": id}, user(text("Why?"))])

    assert talk("a").exact != talk("b").exact


def test_the_phase_of_a_message_is_part_of_the_key() -> None:
    def talk(**phase: Any) -> CacheKey:
        said = {"role": "assistant", "content": "Because.", **phase}
        return key([user(text("Why?")), said, user(text("And?"))])

    keys = [talk(), talk(phase="commentary"), talk(phase="final_answer")]
    assert len({each.exact for each in keys}) == 3


def test_media_are_keyed_by_their_bytes() -> None:
    def picture(url: str) -> str:
        return key([user({"type": "input_image", "image_url": url}, text("Why?"))]).exact

    assert picture("data:image/png;base64,aGk=") != picture("data:image/png;base64,aG8=")
    assert picture("data:image/png;base64,aGk=") != picture("data:image/gif;base64,aGk=")
    assert picture("https://a.test/1") != picture("https://a.test/2")


def test_conversations_have_a_history() -> None:
    answered = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "By card.", "annotations": []}],
    }
    found = key([user(text("How do I pay?")), answered, user(text("What does it cost?"))])
    assert found.conversation is not None
    assert [turn.text for turn in found.history] == ["How do I pay?", "By card."]


def test_schemas_keep_the_order_of_their_properties() -> None:
    def schema(*names: str) -> dict[str, Any]:
        return {"type": "object", "properties": {name: {"type": "string"} for name in names}}

    def asked(*names: str) -> tuple[str, ...]:
        tool = {"type": "function", "name": "f", "parameters": schema(*names)}
        wanted = {"type": "json_schema", "name": "n", "schema": schema(*names)}
        group = {"type": "namespace", "name": "n", "tools": [tool]}
        fields = ({"tools": [tool]}, {"tools": [group]}, {"text": {"format": wanted}})
        return tuple(key(**each).exact for each in fields)

    pairs = zip(asked("a", "b"), asked("b", "a"), strict=True)
    assert all(one != other for one, other in pairs)


def test_wanted_extra_fields_are_keyed_unless_they_can_be_left_out() -> None:
    encrypted, listed = "reasoning.encrypted_content", "message.output_text.logprobs"
    assert key(include=[]) == key(include=[listed]) == key()
    assert key(include=[encrypted]).exact != key().exact
    assert key(include=[encrypted, listed]) == key(include=[encrypted])


@pytest.mark.parametrize(
    ("kept", "asked", "reason"),
    [
        (2, {}, None),
        (2, {"top_logprobs": 2}, None),
        (2, {"top_logprobs": 3}, "too-few-logprobs"),
        (None, {}, "too-few-logprobs"),
    ],
)
def test_log_probabilities_can_be_left_out_and_not_added(
    kept: int | None, asked: dict[str, Any], reason: str | None
) -> None:
    token = {"token": "a", "logprob": -1.0, "top_logprobs": [{"token": "b"}] * (kept or 0)}
    logprobs = None if kept is None else {"content": [token], "refusal": None}
    choice = Choice(index=0, parts=(Text(text="a"),), finish="stop", logprobs=logprobs)
    origin = Origin(model="m", upstream="u", ttft_s=0.1, total_s=0.2, completion_tokens=7)
    answer = Completion(model="m", choices=(choice,), created=0)
    dialect = OPENAI_RESPONSES.name
    entry = Entry(id="e", key=key(), answer=answer, origin=origin, created=0.0, dialect=dialect)
    body = {"model": "m", "input": "Why?", "include": ["message.output_text.logprobs"], **asked}
    request = OPENAI_RESPONSES.parse_request(json.dumps(body).encode())
    assert Admission().refuse_serve(request, entry) == reason
    limited = {"model": "m", "input": "Why?", "max_output_tokens": 6}
    request = OPENAI_RESPONSES.parse_request(json.dumps(limited).encode())
    assert Admission().refuse_serve(request, entry) == "longer-than-limit"
