"""Admission: what is looked up, stored and served, and the reason when it is not."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from headstart.errors import ConfigError
from headstart.policies.admission import Admission, has_match
from headstart.types import (
    CacheKey,
    ChatRequest,
    Choice,
    Completion,
    Entry,
    Origin,
    Part,
    RawResponse,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
)

KEY = CacheKey(scope="s", partition="p", exact="e")


def request(
    query: str | None = "What is a monad?",
    *,
    choices: int = 1,
    max_tokens: int | None = None,
    duplicate_keys: bool = False,
    **fields: Any,
) -> ChatRequest:
    return ChatRequest(
        model="m",
        stream=False,
        document={"model": "m", "messages": [], **fields},
        query=query,
        choices=choices,
        max_tokens=max_tokens,
        logprobs=bool(fields.get("logprobs")),
        duplicate_keys=duplicate_keys,
    )


def answer(
    *parts: Part, finish: str = "stop", native: str | None = None, **fields: Any
) -> Completion:
    choice = Choice(
        index=0,
        parts=parts or (Text(text="A box."),),
        finish=finish,
        native_finish=native,
        **fields,
    )
    return Completion(model="m", choices=(choice,), created=1)


def entry(completion: Completion | RawResponse, completion_tokens: int = 12) -> Entry:
    origin = Origin(
        model="m", upstream="u", ttft_s=0.5, total_s=1.0, completion_tokens=completion_tokens
    )
    return Entry(id="1", key=KEY, answer=completion, origin=origin, created=1.0)


HOSTED: dict[str, Any] = {"tools": [{"type": "function", "function": {}}, {"type": "web_search"}]}


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (request(duplicate_keys=True), "duplicate-keys"),
        (request(background=True), "background"),
        (request(audio={"voice": "alto"}), "audio"),
        (request(modalities=["text", "audio"]), "audio"),
        (request(web_search_options={}), "hosted-tools"),
        (request(**HOSTED), "hosted-tools"),
        (request(mcp_servers=[{"type": "url"}]), "hosted-tools"),
        (request(container="c1"), "hosted-tools"),
        (request(enable_search=True), "hosted-tools"),
        (request(search_parameters={"mode": "auto"}), "hosted-tools"),
        (request(search_parameters={"max_search_results": 3}), "hosted-tools"),
        (request(max_tokens=0), "cache-warming"),
    ],
)
def test_requests_that_bypass_the_cache(refused: ChatRequest, reason: str) -> None:
    assert Admission().refuse_lookup(refused) == reason


@pytest.mark.parametrize(
    "allowed",
    [
        request(),
        request(temperature=1.5),
        request(background=False, audio=None, modalities=["text"], web_search_options=None),
        request(tools=[{"type": "function"}, {"type": "custom"}, {}]),
        request(tools="none"),
        request(mcp_servers=[], container=None),
        request(enable_search=False, search_parameters={"mode": "off"}),
    ],
)
def test_ordinary_requests_are_looked_up(allowed: ChatRequest) -> None:
    assert Admission().refuse_lookup(allowed) is None


@pytest.mark.parametrize(
    ("fields", "sampled"),
    [({}, True), ({"temperature": 0.7}, True), ({"temperature": 0}, False), ({"seed": 7}, False)],
)
def test_sampled_requests_follow_the_setting(fields: dict[str, Any], sampled: bool) -> None:
    deterministic, variants = Admission("deterministic"), Admission("variants:4")
    assert deterministic.refuse_lookup(request(**fields)) == ("sampled" if sampled else None)
    assert variants.refuse_lookup(request(**fields)) is None
    assert variants.variants(request(**fields)) == (4 if sampled else 1)
    assert Admission().variants(request(**fields)) == 1


@pytest.mark.parametrize("sampled", ["never", "variants", "variants:", "variants:0", "variants:-2"])
def test_unknown_setting_of_sampled_names_the_choices(sampled: str) -> None:
    with pytest.raises(ConfigError, match="deterministic"):
        Admission(sampled)


@pytest.mark.parametrize(
    ("query", "reason"),
    [(None, "no-user-text"), ("  \n", "blank"), ("What is my balance?", None)],
)
def test_semantic_answers_need_a_question(query: str | None, reason: str | None) -> None:
    assert Admission().refuse_semantic(request(query)) == reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"return_token_ids": True}, "tells-of-prompt"),
        ({"prompt_logprobs": 0}, "tells-of-prompt"),
        ({"echo": True}, "tells-of-prompt"),
        ({"echo": False, "prompt_logprobs": None}, None),
        ({"logprobs": True}, None),
    ],
)
def test_an_answer_that_repeats_its_prompt_serves_no_other_prompt(
    fields: dict[str, Any], reason: str | None
) -> None:
    assert Admission().refuse_semantic(request(**fields)) == reason


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("What is my balance?", "personal"),
        ("Tell me a joke", "personal"),
        ("My printer prints blank pages", "personal"),
        ("Track order 48213", "personal"),
        ("I ordered a lamp", "personal"),
        ("How do I order a lamp?", None),
        ("word " * 10_000, "too-long"),
        ("I'm 40, may I apply?", "personal"),
        ("What is a mortgage?", None),
        ("How do myths spread?", None),
    ],
)
def test_personal_wording_is_not_shared_between_users(query: str, reason: str | None) -> None:
    assert Admission(share_users=True).refuse_semantic(request(query)) == reason
    assert Admission().refuse_semantic(request(query)) is None


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([{"role": "tool", "content": "42"}, {"role": "user", "content": "And?"}], "tool-results"),
        ([{"role": "function", "content": "42"}], "tool-results"),
        ([{"role": "assistant", "content": "42"}, {"role": "user", "content": "And?"}], None),
        ("odd", None),
        ([None, {"role": ["tool"]}], None),
    ],
)
def test_results_of_tools_are_not_shared_between_users(
    messages: object, reason: str | None
) -> None:
    asked = request("And?", messages=messages)
    assert Admission(share_users=True).refuse_semantic(asked) == reason
    assert Admission().refuse_semantic(asked) is None


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (answer(finish="length"), "length"),
        (answer(finish="content_filter"), "content-filter"),
        (answer(finish="tool_calls"), "tool-calls"),
        (answer(finish="function_call"), "tool-calls"),
        (answer(finish="insufficient_system_resource"), "unclean-finish"),
        (answer(native="MAX_TOKENS"), "length"),
        (answer(native="SAFETY"), "content-filter"),
        (answer(native="refusal"), "refusal"),
        (answer(native="MALFORMED_FUNCTION_CALL"), "unclean-finish"),
        (answer(Refusal(text="No.")), "refusal"),
        (answer(ToolCall(id="c", name="f", arguments="{}")), "tool-calls"),
        (answer(Text(text=" \n")), "empty"),
        (answer(Reasoning(text="Hm")), "empty"),
        (answer(extra={"audio": {"id": "a"}}), "audio"),
        (answer(extra={"annotations": [{"type": "url_citation"}]}), "hosted-tools"),
    ],
)
def test_answers_that_are_never_stored(refused: Completion, reason: str) -> None:
    assert Admission().refuse_store(request(), refused) == reason


@pytest.mark.parametrize(
    "stored",
    [
        answer(),
        answer(native="end_turn"),
        answer(finish="eos_token"),  # TGI
        answer(native="STOP"),
        answer(Reasoning(text="Hm"), Text(text="A box.")),
        answer(extra={"annotations": []}),
        answer(beside={"content_filter_results": {}}),
    ],
)
def test_whole_text_answers_are_stored(stored: Completion) -> None:
    assert Admission().refuse_store(request(), stored) is None


def test_answer_with_fewer_choices_than_asked_for_is_not_stored() -> None:
    assert Admission().refuse_store(request(choices=2), answer()) == "too-few-choices"


@pytest.mark.parametrize(("flagged", "reason"), [(True, "moderation"), (False, None)])
def test_flagged_moderation_is_not_stored(flagged: bool, reason: str | None) -> None:
    whole = answer()
    moderation = {"results": [{"flagged": flagged, "categories": {}}]}
    moderated = Completion(
        model="m", choices=whole.choices, created=1, extra={"moderation": moderation}
    )
    assert Admission().refuse_store(request(), moderated) == reason


SCHEMA = {
    "type": "object",
    "required": ["city"],
    "properties": {
        "city": {"type": "string"},
        "size": {"type": ["integer", "null"]},
        "ratio": {"type": "number"},
        "open": {"type": "boolean"},
        "tag": {"enum": ["a"]},
    },
}
JSON_OBJECT = {"type": "json_object"}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "c", "schema": SCHEMA}}


@pytest.mark.parametrize(
    ("text", "response_format", "reason"),
    [
        ('{"city": "Rome"', JSON_OBJECT, "broken-format"),
        ("[1]", JSON_OBJECT, "broken-format"),
        ("```json\n{}\n```", JSON_OBJECT, "broken-format"),
        ("{}", JSON_OBJECT, None),
        ("plain words", {"type": "text"}, None),
        ("plain words", None, None),
        ("{}", JSON_SCHEMA, "broken-format"),
        ('{"city": 5}', JSON_SCHEMA, "broken-format"),
        ('{"city": "Rome", "size": "big"}', JSON_SCHEMA, "broken-format"),
        ('{"city": "Rome", "size": true}', JSON_SCHEMA, "broken-format"),
        ('{"city": "Rome", "size": 2.5}', JSON_SCHEMA, "broken-format"),
        ('{"city": "Rome", "size": 2.0, "open": true, "tag": "b"}', JSON_SCHEMA, None),
        ('{"city": "Rome", "size": null, "ratio": 1}', JSON_SCHEMA, None),
        ("[1, 2]", {"type": "json_schema", "json_schema": {"schema": {"type": "array"}}}, None),
        ('{"a": 1}', {"type": "json_schema", "json_schema": {"schema": {}}}, None),
        ("3", {"type": "json_schema"}, None),
        ("three", {"type": "json_schema"}, "broken-format"),
    ],
)
def test_json_must_keep_the_requested_format(
    text: str, response_format: Any, reason: str | None
) -> None:
    asked = request(response_format=response_format)
    assert Admission().refuse_store(asked, answer(Text(text=text))) == reason


@pytest.mark.parametrize(
    ("limit", "tokens", "reason"),
    [
        (None, 12, None),
        (12, 12, None),
        (500, 12, None),
        (11, 12, "longer-than-limit"),
        (500, 0, "unknown-length"),
    ],
)
def test_an_answer_serves_every_limit_it_fits(
    limit: int | None, tokens: int, reason: str | None
) -> None:
    stored = entry(answer(), completion_tokens=tokens)
    assert Admission().refuse_serve(request(max_tokens=limit), stored) == reason


@pytest.mark.parametrize(
    ("limit", "tokens", "choices", "reason"),
    [
        (None, 12, 1, None),
        (13, 12, 1, None),
        (12, 12, 1, "length"),
        (8, 12, 1, "length"),
        (12, 20, 2, None),
        (12, 24, 2, "length"),
        (12, 0, 1, None),
    ],
)
def test_an_answer_as_long_as_its_limit_may_be_cut(
    limit: int | None, tokens: int, choices: int, reason: str | None
) -> None:
    whole = answer()
    told = msgspec.structs.replace(whole, choices=whole.choices * choices)
    asked = request(max_tokens=limit, choices=choices)
    assert Admission().refuse_store(asked, told, (), tokens) == reason


def test_several_choices_serve_fewer_but_not_more() -> None:
    choices = tuple(Choice(index=i, parts=(Text(text="A box."),), finish="stop") for i in range(2))
    stored = entry(Completion(model="m", choices=choices, created=1))
    verdicts = [Admission().refuse_serve(request(choices=n), stored) for n in (1, 2, 3)]
    assert verdicts == [None, None, "too-few-choices"]


@pytest.mark.parametrize(
    ("limit", "reason"), [(15, None), (14, "longer-than-limit"), (1, "longer-than-limit")]
)
def test_the_longest_of_several_choices_must_fit_the_limit(limit: int, reason: str | None) -> None:
    texts = ("A box.", "A box of boxes")
    choices = tuple(Choice(index=0, parts=(Text(text=each),), finish="stop") for each in texts)
    stored = entry(Completion(model="m", choices=choices, created=1), completion_tokens=21)
    assert Admission().refuse_serve(request(choices=2, max_tokens=limit), stored) == reason


def with_logprobs(alternatives: int | None) -> Entry:
    if alternatives is None:
        return entry(answer())
    token = {"token": "A", "logprob": -0.1, "top_logprobs": [{}] * alternatives}
    return entry(answer(logprobs={"content": [token], "refusal": None}))


@pytest.mark.parametrize(
    ("stored", "asked", "reason"),
    [
        (None, {}, None),
        (5, {}, None),
        (None, {"logprobs": True}, "too-few-logprobs"),
        (0, {"logprobs": True}, None),
        (2, {"logprobs": True, "top_logprobs": 2}, None),
        (2, {"logprobs": True, "top_logprobs": 3}, "too-few-logprobs"),
        (0, {"logprobs": 1}, "too-few-logprobs"),
        (1, {"logprobs": 1}, None),
    ],
)
def test_log_probabilities_can_be_left_out_but_not_made(
    stored: int | None, asked: dict[str, Any], reason: str | None
) -> None:
    assert Admission().refuse_serve(request(**asked), with_logprobs(stored)) == reason


def test_raw_answers_have_no_ranges() -> None:
    stored = entry(RawResponse(headers=(), body=b"{}"))
    assert Admission().refuse_serve(request(max_tokens=1, choices=3), stored) is None


# --- answers that call tools ---------------------------------------------------------------------


def tool_call(
    name: str = "get_weather", arguments: str = '{"city": "Rome"}', **more: Any
) -> ToolCall:
    return ToolCall(id="call_1", name=name, arguments=arguments, **more)


@pytest.mark.parametrize(
    ("fields", "forced"),
    [
        ({"tool_choice": "required"}, True),
        ({"tool_choice": "any"}, True),
        ({"tool_choice": {"function": {"name": "get_weather"}}}, True),
        ({"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}, True),
        ({"tool_choice": {"type": "function", "name": "get_weather"}}, True),
        ({"tool_choice": {"type": "tool", "name": "get_weather"}}, True),
        ({"tool_choice": {"type": "any"}}, True),
        ({"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": []}}, True),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required"}}}, True),
        ({"function_call": {"name": "get_weather"}}, True),
        ({"tool_choice": "auto"}, False),
        ({"tool_choice": {"type": "auto"}}, False),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, False),
        ({"function_call": "none"}, False),
        ({}, False),
    ],
)
def test_a_text_in_place_of_a_forced_call_is_not_stored(
    fields: dict[str, Any], *, forced: bool
) -> None:
    asked = request(**fields)
    called = answer(tool_call(), finish="tool_calls")
    assert Admission().refuse_store(asked, called, ("*",)) is None
    assert Admission().refuse_store(asked, answer()) == ("no-tool-call" if forced else None)


@pytest.mark.parametrize(
    ("stored", "tools", "reason"),
    [
        (answer(tool_call(), finish="tool_calls"), (), "tool-calls"),
        (answer(tool_call(), finish="tool_calls"), ("get_weather",), None),
        (answer(tool_call(), finish="stop"), ("get_*",), None),
        (answer(tool_call(), finish="tool_use"), ("*",), None),
        (answer(Text(text="Let me see."), tool_call(), finish="tool_calls"), ("*",), None),
        (answer(tool_call(), tool_call("mail"), finish="tool_calls"), ("get_*",), "tool-calls"),
        (answer(tool_call(), finish="length"), ("*",), "length"),
        (answer(tool_call(), finish="content_filter"), ("*",), "content-filter"),
        (answer(tool_call(), Refusal(text="no")), ("*",), "refusal"),
        (answer(tool_call(arguments='{"city": "Ro')), ("*",), "broken-format"),
        (answer(tool_call(arguments="")), ("*",), None),
        (answer(tool_call(arguments="free text", kind="custom")), ("*",), None),
        (answer(finish="tool_calls"), ("*",), "tool-calls"),
    ],
)
def test_calls_of_named_tools_alone_are_stored(
    stored: Completion, tools: tuple[str, ...], reason: str | None
) -> None:
    assert Admission().refuse_store(request(), stored, tools) == reason


def test_calls_are_served_only_where_their_tools_are_named() -> None:
    stored = entry(answer(tool_call(), tool_call("mail"), finish="tool_calls"))
    verdicts = [
        Admission().refuse_serve(request(), stored, tools)
        for tools in ((), ("mail",), ("mail", "get_weather"))
    ]
    assert verdicts == ["tool-calls", "tool-calls", None]


def test_arguments_of_tool_calls_are_read_as_json() -> None:
    expressions = (re.compile("Hände"), re.compile("4111"))
    assert has_match({"arguments": '{"text": "H\\u00e4nde"}'}, expressions)
    assert has_match('["\\u0034111"]', expressions)
    assert not has_match('{"text": "\\u00e4"}', expressions)
    assert not has_match('{"text": "\\u00', expressions)
    assert not has_match("H\\u00e4nde", expressions)  # no JSON


@pytest.mark.parametrize(
    "value",
    [
        b"plain 4111",
        b"\xff 4111",
        b'{"text": "\\u0034111"}',
        {"4111": 0},
        {"text": ["", ("card 4111",)]},
    ],
)
def test_expressions_are_searched_for_in_all_that_a_value_holds(value: object) -> None:
    assert has_match(value, [re.compile("4111")])
    assert not has_match(value, [re.compile("5111")])
    assert not has_match(value, [])
