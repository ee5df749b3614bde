"""Providers that deviate from their dialect get the form that they accept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headstart.canonical_request import Quirks
from headstart.dialects.requests import apply_quirks
from headstart.errors import InvalidRequest
from support.translated import CHAT, OPENAI, ask

USER = {"role": "user", "content": "Hi"}
ALL = Quirks(
    drops=("seed",),
    message_drops=("name",),
    renames={"max_completion_tokens": "max_tokens"},
    max_choices=1,
    stream_usage=False,
    sampling=False,
)


def edit(quirks: Quirks, **fields: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    raw = json.dumps({"model": "m", "messages": [USER], **fields}).encode()
    body, dropped = apply_quirks(raw, OPENAI.parse_request(raw), quirks, OPENAI.name)
    return json.loads(body), dropped


@pytest.mark.parametrize("quirks", [Quirks(), ALL, Quirks(drops=("tools",))])
def test_body_that_needs_no_edit_stays_the_same_object(quirks: Quirks) -> None:
    raw = b'{ "model":"m", "messages":[ {"role":"user","content":"\\u0048i"} ], "n":1 }'
    body, dropped = apply_quirks(raw, OPENAI.parse_request(raw), quirks, OPENAI.name)
    assert body is raw
    assert dropped == ()


def test_only_what_is_edited_changes_its_bytes() -> None:
    raw = (
        b'{"model": "m", "seed": 1, "messages": [{"content":"\\u0048i" , "role":"user"}], "x":1e0}'
    )
    body, dropped = apply_quirks(
        raw, OPENAI.parse_request(raw), Quirks(drops=("seed",)), OPENAI.name
    )
    assert body == b'{"model":"m","messages":[{"content":"\\u0048i" , "role":"user"}],"x":1e0}'
    assert dropped == ("seed",)


DROPPED: list[tuple[Quirks, dict[str, Any], tuple[str, ...]]] = [
    (Quirks(drops=("logprobs", "seed")), {"seed": 0, "logprobs": True}, ("logprobs", "seed")),
    (Quirks(sampling=False), {"temperature": 0, "top_p": 1}, ("temperature", "top_p")),
    (Quirks(stream_usage=False), {"stream_options": {"include_usage": True}}, ("stream_options",)),
    (Quirks(drops=("seed",)), {"seed": None}, ()),
]


@pytest.mark.parametrize(("quirks", "fields", "names"), DROPPED)
def test_field_that_the_provider_rejects_is_dropped(
    quirks: Quirks, fields: dict[str, Any], names: tuple[str, ...]
) -> None:
    body, dropped = edit(quirks, **fields)
    assert body == {"model": "m", "messages": [USER]}
    assert dropped == names


def test_our_own_field_goes_without_a_word() -> None:
    raw = json.dumps({"model": "m", "messages": [USER], "stream": True}).encode()
    request = OPENAI.parse_request(raw)
    asking = OPENAI.add_usage(raw, request)
    assert asking is not None
    quirks = Quirks(stream_usage=False, refuse=True)
    body, dropped = apply_quirks(asking, request, quirks, OPENAI.name)
    assert json.loads(body) == json.loads(raw)
    assert dropped == ()


def test_field_of_a_message_is_dropped() -> None:
    named = {"role": "user", "content": "Hi", "name": "ann"}
    body, dropped = edit(Quirks(message_drops=("name",)), messages=[USER, named])
    assert body["messages"] == [USER, USER]
    assert dropped == ("name",)


def test_renamed_field_keeps_its_place_and_replaces_the_one_of_that_name() -> None:
    quirks = Quirks(renames={"max_completion_tokens": "max_tokens"})
    body, dropped = edit(quirks, max_tokens=5, max_completion_tokens=6, top_p=1)
    assert list(body.items())[2:] == [("max_tokens", 6), ("top_p", 1)]
    assert dropped == ()


def test_renamed_field_that_is_absent_replaces_nothing() -> None:
    quirks = Quirks(renames={"max_completion_tokens": "max_tokens"})
    assert edit(quirks, max_tokens=5)[0]["max_tokens"] == 5


def test_more_choices_than_the_provider_gives_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="the upstream gives at most 2"):
        edit(Quirks(max_choices=2), n=3)


def test_body_that_repeats_a_key_is_left_alone() -> None:
    raw = b'{"model":"m","messages":[],"seed":1,"seed":2,"n":5}'
    body, dropped = apply_quirks(raw, OPENAI.parse_request(raw), ALL, OPENAI.name)
    assert body is raw
    assert dropped == ()


@pytest.mark.parametrize(
    ("quirks", "fields", "name"),
    [
        (Quirks(drops=("seed",), refuse=True), {"seed": 1}, "seed"),
        (
            Quirks(message_drops=("name",), refuse=True),
            {"messages": [{**USER, "name": "a"}]},
            "name",
        ),
    ],
)
def test_field_that_may_not_be_dropped_is_refused(
    quirks: Quirks, fields: dict[str, Any], name: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"{name}: cannot"):
        edit(quirks, **fields)


def test_everything_else_of_a_whole_request_stays() -> None:
    body, dropped = edit(ALL, **{**CHAT, "n": 1})
    gone = {"seed", "temperature", "top_p", "frequency_penalty", "presence_penalty"}
    assert set(dropped) == gone | {"name", "stream_options"}
    assert body["max_tokens"] == CHAT["max_completion_tokens"]
    kept = CHAT.keys() - gone - {"stream_options", "messages", "n", "max_completion_tokens"}
    assert {name: body[name] for name in kept} == {name: CHAT[name] for name in kept}


def called(id: str) -> list[dict[str, Any]]:
    """Return a tool call and its result."""
    call = {"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    asking = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [asking, {"role": "tool", "tool_call_id": id, "content": "x"}]


def test_ids_that_the_provider_does_not_take_are_replaced_alike() -> None:
    messages = [USER, *called("call_1"), *called("toolu_2"), *called("D681PevKs"), USER]
    body, dropped = edit(Quirks(call_ids="short"), messages=messages)
    calls = [each["tool_calls"][0]["id"] for each in body["messages"] if "tool_calls" in each]
    results = [each["tool_call_id"] for each in body["messages"] if "tool_call_id" in each]
    assert calls == results
    assert len(set(calls)) == 3
    assert all(len(id) == 9 and id.isalnum() for id in calls)
    assert calls[2] == "D681PevKs"
    assert dropped == ()


def test_ids_that_the_provider_takes_leave_the_body_alone() -> None:
    raw = json.dumps({"model": "m", "messages": [USER, *called("D681PevKs")]}).encode()
    request, quirks = OPENAI.parse_request(raw), Quirks(call_ids="short")
    assert apply_quirks(raw, request, quirks, OPENAI.name)[0] is raw


def test_ids_are_replaced_on_the_way_from_another_dialect() -> None:
    use = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}
    turns = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    asked = ask("anthropic", "openai", Quirks(call_ids="short"), messages=[USER, *turns])
    _, call, answer = asked["messages"]
    assert call["tool_calls"][0]["id"] == answer["tool_call_id"] != "toolu_1"
