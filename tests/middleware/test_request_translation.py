"""The content of a request, in another dialect."""

from __future__ import annotations

import base64
import json
from itertools import chain
from typing import Any

import pytest

from headstart.canonical_request import Quirks
from support.translated import (
    ANTHROPIC,
    LOOSE_SCHEMA,
    OPENAI,
    PDF,
    PNG,
    PORTABLE,
    SCHEMA,
    ask,
    translate,
)

USER = {"role": "user", "content": "Hi"}
LOOK = {"type": "function", "function": {"name": "look", "parameters": LOOSE_SCHEMA}}
NOW = {"type": "function", "function": {"name": "now"}}
CLAUDE_LOOK = {"name": "look", "input_schema": LOOSE_SCHEMA}
CLAUDE_NOW = {"name": "now", "input_schema": {"type": "object"}}


def call(id: str = "c1", name: str = "look", arguments: str = "{}") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": id, "type": "function", "function": function}],
    }


def to_anthropic(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = ask("openai", "anthropic", messages=list(messages))["messages"]
    return written


def to_openai(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = ask("anthropic", "openai", messages=list(messages))["messages"]
    return written


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def image(**source: str) -> dict[str, Any]:
    return {"type": "image", "source": source}


def image_url(url: str, **more: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


@pytest.mark.parametrize(("source", "target"), [("openai", "anthropic"), ("anthropic", "openai")])
def test_whole_request_is_one_that_the_other_sdk_would_send(source: str, target: str) -> None:
    body, dropped = translate(source, target, PORTABLE[source])
    assert len(body["messages"]) >= 5
    assert list(dropped) == sorted(set(dropped))


def test_requests_go_to_the_dialects_own_path() -> None:
    asked = OPENAI.read_request(OPENAI.parse_request(b'{"model":"m","messages":[]}'))
    assert OPENAI.write_request(asked, Quirks()).path == b"/v1/chat/completions"
    assert ANTHROPIC.write_request(asked, Quirks()).path == b"/v1/messages"


# --- messages --------------------------------------------------------------------------------


def test_system_messages_go_to_the_system_field_in_order() -> None:
    messages = [{"role": "system", "content": "A"}, USER, {"role": "developer", "content": "B"}]
    body = ask("openai", "anthropic", messages=messages)
    assert body["system"] == [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    assert body["messages"] == [USER]


def test_only_system_message_becomes_the_users() -> None:
    body = ask("openai", "anthropic", messages=[{"role": "system", "content": "Hi"}])
    assert "system" not in body
    assert body["messages"] == [USER]


def test_texts_of_a_system_field_become_one_message() -> None:
    system = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    body = ask("anthropic", "openai", system=system)
    assert body["messages"] == [{"role": "system", "content": "A\nB"}, USER]


def test_neighbours_of_one_role_become_one_turn() -> None:
    written = to_anthropic(USER, {"role": "user", "content": "there"})
    assert written == [user({"type": "text", "text": "Hi"}, {"type": "text", "text": "there"})]


def test_blank_texts_that_anthropic_refuses_are_left_out() -> None:
    blank = {"role": "assistant", "content": " \n"}
    assert to_anthropic(USER, blank, {"role": "user", "content": "there"}) == [
        user({"type": "text", "text": "Hi"}, {"type": "text", "text": "there"})
    ]


def test_refusal_is_said_as_text() -> None:
    refused = {"role": "assistant", "content": None, "refusal": "No."}
    assert to_anthropic(USER, refused, USER)[1] == {"role": "assistant", "content": "No."}


def test_results_become_one_user_turn_that_begins_with_them() -> None:
    results = [{"role": "tool", "tool_call_id": f"c{n}", "content": f"r{n}"} for n in (1, 2)]
    twice = call("c1")
    twice["tool_calls"] += call("c2")["tool_calls"]
    assert to_anthropic(USER, twice, *results, USER)[2] == user(
        {"type": "tool_result", "tool_use_id": "c1", "content": "r1"},
        {"type": "tool_result", "tool_use_id": "c2", "content": "r2"},
        {"type": "text", "text": "Hi"},
    )


def test_results_of_a_user_turn_come_before_what_it_says() -> None:
    use = {"type": "tool_use", "id": "c1", "name": "look", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "r1"}
    said = {"type": "text", "text": "Go on."}
    assert to_openai(USER, {"role": "assistant", "content": [use]}, user(said, result)) == [
        USER,
        call(arguments='{"a":1}'),
        {"role": "tool", "tool_call_id": "c1", "content": "r1"},
        {"role": "user", "content": "Go on."},
    ]


ARGUMENTS = {
    '{"a":[1]}': {"a": [1]},
    "": {},
    '{"a":': {"_raw": '{"a":'},
    "[1]": {"_raw": "[1]"},
}


@pytest.mark.parametrize(("text", "value"), ARGUMENTS.items())
def test_arguments_become_an_object_whatever_the_model_wrote(
    text: str, value: dict[str, Any]
) -> None:
    (block,) = to_anthropic(USER, call(arguments=text))[1]["content"]
    assert block == {"type": "tool_use", "id": "c1", "name": "look", "input": value}


def test_call_ids_keep_to_the_characters_that_anthropic_takes() -> None:
    result = {"role": "tool", "tool_call_id": "functions.look:0", "content": "r"}
    written = to_anthropic(USER, call("functions.look:0"), result)
    assert written[1]["content"][0]["id"] == "functions_look_0"
    assert written[2]["content"][0]["tool_use_id"] == "functions_look_0"


def test_images_of_a_result_follow_the_results() -> None:
    png = image(type="base64", media_type="image/png", data=PNG)
    uses = [{"type": "tool_use", "id": f"c{n}", "name": "look", "input": {}} for n in (1, 2)]
    results: list[dict[str, Any]] = [
        {"type": "tool_result", "tool_use_id": "c1", "content": [png]},
        {"type": "tool_result", "tool_use_id": "c2", "content": "r2"},
    ]
    written = to_openai(USER, {"role": "assistant", "content": uses}, user(*results))
    assert written[2:] == [
        {"role": "tool", "tool_call_id": "c1", "content": ""},
        {"role": "tool", "tool_call_id": "c2", "content": "r2"},
        user(
            {"type": "text", "text": "Returned by the tool call c1:"},
            image_url(f"data:image/png;base64,{PNG}"),
        ),
    ]


def test_images_of_a_result_and_the_users_text_after_it_are_one_message() -> None:
    """Chat templates of open models refuse two messages of the user in a row."""
    use = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
    png = image(type="base64", media_type="image/png", data=PNG)
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [png]}
    text = {"type": "text", "text": "And now?"}
    written = to_openai(USER, {"role": "assistant", "content": [use]}, user(result, text))
    assert [each["role"] for each in written] == ["user", "assistant", "tool", "user"]
    assert [part["type"] for part in written[-1]["content"]] == ["text", "image_url", "text"]


def test_legacy_functions_become_tools() -> None:
    legacy = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}}
    messages = [USER, legacy, {"role": "function", "name": "f", "content": "r"}]
    functions = [{"name": "f", "parameters": SCHEMA}]
    body = ask(
        "openai",
        "anthropic",
        messages=messages,
        functions=functions,
        function_call={"name": "f"},
    )
    assert body["tools"] == [{"name": "f", "input_schema": SCHEMA}]
    assert body["tool_choice"] == {"type": "tool", "name": "f"}
    (use,), (result,) = (message["content"] for message in body["messages"][1:])
    assert use["id"] == result["tool_use_id"]


# --- media -----------------------------------------------------------------------------------

IMAGES = [
    (
        image_url(f"data:image/png;base64,{PNG}"),
        image(type="base64", media_type="image/png", data=PNG),
    ),
    (image_url("https://a.org/a.png"), image(type="url", url="https://a.org/a.png")),
    (
        {
            "type": "file",
            "file": {"filename": "a", "file_data": f"data:application/pdf;base64,{PDF}"},
        },
        {
            "type": "document",
            "title": "a",
            "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
        },
    ),
]


@pytest.mark.parametrize(("chat", "block"), IMAGES, ids=["bytes", "url", "file"])
def test_media_are_the_same_both_ways(chat: dict[str, Any], block: dict[str, Any]) -> None:
    text = {"type": "text", "text": "See"}
    assert to_anthropic(user(text, chat)) == [user(text, block)]
    assert to_openai(user(text, block)) == [user(text, chat)]


def test_jpg_gets_the_name_that_anthropic_knows() -> None:
    (message,) = to_anthropic(user(image_url(f"data:image/jpg;base64,{PNG}")))
    assert message["content"][0]["source"]["media_type"] == "image/jpeg"


def test_text_file_is_a_document_to_anthropic_and_text_to_openai() -> None:
    data = base64.b64encode("Häuser".encode()).decode()
    file = {"filename": "a", "file_data": f"data:text/plain;base64,{data}"}
    (message,) = to_anthropic(user({"type": "file", "file": file}))
    source = {"type": "text", "media_type": "text/plain", "data": "Häuser"}
    assert message == user({"type": "document", "title": "a", "source": source})
    assert to_openai(message) == [{"role": "user", "content": "a:\nHäuser"}]


# --- tools -----------------------------------------------------------------------------------

CHOICES: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "unsaid": ({}, None),
    "auto": ({"tool_choice": "auto"}, {"type": "auto"}),
    "none": ({"tool_choice": "none"}, {"type": "none"}),
    "required": ({"tool_choice": "required"}, {"type": "any"}),
    "named": (
        {"tool_choice": {"type": "function", "function": {"name": "look"}}},
        {"type": "tool", "name": "look"},
    ),
    "one at a time": (
        {"parallel_tool_calls": False, "tool_choice": "auto"},
        {"type": "auto", "disable_parallel_tool_use": True},
    ),
    "one must be called": (
        {"parallel_tool_calls": False, "tool_choice": "required"},
        {"type": "any", "disable_parallel_tool_use": True},
    ),
}


@pytest.mark.parametrize(("chat", "choice"), CHOICES.values(), ids=CHOICES)
def test_tool_choice_is_the_same_both_ways(
    chat: dict[str, Any], choice: dict[str, Any] | None
) -> None:
    there = ask("openai", "anthropic", tools=[LOOK, NOW], **chat)
    assert there.get("tool_choice") == choice
    assert there["tools"] == [CLAUDE_LOOK, CLAUDE_NOW]
    back = translate("anthropic", "openai", there)[0]
    assert {name: back.get(name) for name in chat} == chat


def test_one_call_at_a_time_needs_a_choice_to_stand_in() -> None:
    body = ask("openai", "anthropic", tools=[LOOK], parallel_tool_calls=False)
    assert body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}


def test_choice_limited_to_some_tools_leaves_the_others_out() -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "now"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    body = ask("openai", "anthropic", tools=[LOOK, NOW], tool_choice=choice)
    assert body["tools"] == [CLAUDE_NOW]
    assert body["tool_choice"] == {"type": "any"}


def test_choice_without_tools_is_not_sent() -> None:
    assert "tool_choice" not in ask("openai", "anthropic", tool_choice="auto")


# --- formats, reasoning, limits --------------------------------------------------------------


def test_schema_is_an_output_format_and_never_a_tool() -> None:
    wanted = {"name": "city", "schema": SCHEMA, "strict": True}
    chat = {"type": "json_schema", "json_schema": wanted}
    there = ask("openai", "anthropic", response_format=chat)
    assert there["output_config"] == {"format": {"type": "json_schema", "schema": SCHEMA}}
    assert "tools" not in there
    back = translate("anthropic", "openai", there)[0]["response_format"]
    assert back["json_schema"] == {**wanted, "name": "response"}


EFFORTS = {"minimal": "low", "low": "low", "high": "high", "xhigh": "xhigh", "max": "max"}


@pytest.mark.parametrize(("effort", "told"), EFFORTS.items())
def test_effort_is_told_to_models_that_know_it(effort: str, told: str) -> None:
    body = ask("openai", "anthropic", reasoning_effort=effort)
    assert body["thinking"] == {"type": "adaptive"}
    assert body["output_config"] == {"effort": told}


@pytest.mark.parametrize(("effort", "budget"), [("low", 2048), ("medium", 8192), ("high", 16384)])
def test_effort_is_a_budget_to_models_that_know_no_other(effort: str, budget: int) -> None:
    there = ask("openai", "anthropic", Quirks(thinking="budget"), reasoning_effort=effort)
    assert there["thinking"] == {"type": "enabled", "budget_tokens": budget}
    assert there["max_tokens"] == 4096 + budget
    assert translate("anthropic", "openai", there)[0]["reasoning_effort"] == effort


@pytest.mark.parametrize("quirks", [Quirks(), Quirks(thinking="budget")])
def test_the_effort_none_switches_thinking_off(quirks: Quirks) -> None:
    body = ask("openai", "anthropic", quirks, reasoning_effort="none")
    assert body["thinking"] == {"type": "disabled"}


def test_budget_stays_below_the_limit() -> None:
    quirks = Quirks(thinking="budget")
    body = ask("openai", "anthropic", quirks, reasoning_effort="high", max_tokens=6000)
    assert body["max_tokens"] == 6000
    assert body["thinking"]["budget_tokens"] == 3000


def test_forced_tool_leaves_the_effort_but_no_thinking() -> None:
    body = ask("openai", "anthropic", tools=[LOOK], tool_choice="required", reasoning_effort="low")
    assert "thinking" not in body
    assert body["output_config"] == {"effort": "low"}


LIMITS = [
    ({"max_tokens": 7}, Quirks(), 7),
    ({"max_completion_tokens": 8, "max_tokens": 7}, Quirks(), 8),
    ({"max_tokens": -1}, Quirks(), 4096),  # for llama.cpp this is no limit
    ({}, Quirks(default_max_tokens=99), 99),
    ({}, Quirks(), 4096),
]


@pytest.mark.parametrize(("fields", "quirks", "limit"), LIMITS)
def test_anthropic_gets_the_limit_that_it_requires(
    fields: dict[str, int], quirks: Quirks, limit: int
) -> None:
    assert ask("openai", "anthropic", quirks, **fields)["max_tokens"] == limit


def test_limit_reaches_openai_under_its_present_name() -> None:
    body = ask("anthropic", "openai", max_tokens=7)
    assert body["max_completion_tokens"] == 7
    assert "max_tokens" not in body


@pytest.mark.parametrize("takes", [True, False])
def test_usage_of_a_stream_is_asked_for_where_it_can_be(takes: bool) -> None:
    body = ask("anthropic", "openai", Quirks(stream_usage=takes), stream=True)
    assert body["stream"]
    assert body.get("stream_options") == ({"include_usage": True} if takes else None)


def test_user_keeps_its_name() -> None:
    assert ask("openai", "anthropic", user="u1")["metadata"] == {"user_id": "u1"}
    assert ask("openai", "anthropic", safety_identifier="s1")["metadata"] == {"user_id": "s1"}
    assert ask("anthropic", "openai", metadata={"user_id": "u1"})["user"] == "u1"


@pytest.mark.parametrize("user", ["ann@example.org", "+1 (555) 010-9999", "5550109999", "x" * 257])
def test_a_user_that_anthropic_refuses_becomes_a_digest(user: str) -> None:
    """It answers 400 to e-mail addresses, telephone numbers and long ids."""
    sent = ask("openai", "anthropic", user=user)["metadata"]["user_id"]
    assert len(sent) == 64
    assert sent.isalnum()
    assert ask("openai", "anthropic", user=user)["metadata"]["user_id"] == sent


@pytest.mark.parametrize("user", ["x" * 256, "ann", "a-5550109999", "12345"])
def test_other_users_reach_anthropic(user: str) -> None:
    assert ask("openai", "anthropic", user=user)["metadata"] == {"user_id": user}


@pytest.mark.parametrize(("prefill", "mark"), [("plain", {}), ("prefix", {"prefix": True})])
def test_last_turn_is_gone_on_with_where_the_upstream_can(
    prefill: Any, mark: dict[str, bool]
) -> None:
    begun = {"role": "assistant", "content": "{"}
    body = ask("anthropic", "openai", Quirks(prefill=prefill), messages=[USER, begun])
    assert body["messages"] == [USER, {**begun, **mark}]
    assert to_anthropic(USER, begun) == [USER, begun]


@pytest.mark.parametrize("id", ["0", ""])
def test_calls_of_a_history_that_share_an_id_are_told_apart(id: str) -> None:
    """Anthropic refuses two calls with one id. Some servers give all calls the same one."""

    def called(*cities: str) -> list[dict[str, Any]]:
        names = [{"name": "look", "arguments": json.dumps({"city": city})} for city in cities]
        calls = [{"id": id, "type": "function", "function": name} for name in names]
        results = [{"role": "tool", "tool_call_id": id, "content": city} for city in cities]
        return [{"role": "assistant", "content": None, "tool_calls": calls}, *results]

    history = [{"role": "user", "content": "Hi"}, *called("Rome", "Oslo"), *called("Bern")]
    turns = ask("openai", "anthropic", messages=history)["messages"]
    uses, results, use, result = (turn["content"] for turn in turns[1:])
    cities = {each["id"]: each["input"]["city"] for each in (*uses, *use)}
    assert set(cities.values()) == {"Rome", "Oslo", "Bern"}
    for told in (*results, *result):
        assert told["content"] == cities[told["tool_use_id"]]


def test_a_result_belongs_to_the_call_of_its_turn() -> None:
    """The first call has no result, because the user interrupted it."""
    turns = to_openai(
        USER,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "0", "name": "look"}]},
        user({"type": "text", "text": "Wait."}),
        {"role": "assistant", "content": [{"type": "tool_use", "id": "0", "name": "now"}]},
        user({"type": "tool_result", "tool_use_id": "0", "content": "noon"}),
    )
    [first, second] = (turn["tool_calls"][0] for turn in turns if "tool_calls" in turn)
    assert (first["function"]["name"], second["function"]["name"]) == ("look", "now")
    assert first["id"] != second["id"] == turns[-1]["tool_call_id"]


def test_no_call_gets_the_id_of_another_one_in_place_of_its_own() -> None:
    ids = ["call_2_a", "a", "a", "call_1_a", "a"]
    results = [{"role": "tool", "tool_call_id": id, "content": "42"} for id in ids]
    turns = to_anthropic(USER, *chain.from_iterable(zip(map(call, ids), results, strict=True)))
    calls = [turn["content"][0]["id"] for turn in turns if turn["role"] == "assistant"]
    assert len(set(calls)) == len(ids)
    told = [turn["content"][0]["tool_use_id"] for turn in turns[1:] if turn["role"] == "user"]
    assert told == calls
