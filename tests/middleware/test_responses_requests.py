"""OpenAI Responses: requests are read, translated, and edited with the fewest changes."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import openai.types.responses.response_create_params as api
import pydantic
import pytest

from headstart.canonical_request import Quirks, portable_request
from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.cohere_chat import COHERE_CHAT
from headstart.dialects.gemini_generate import GEMINI_GENERATE
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.dialects.openai_responses import OPENAI_RESPONSES
from headstart.errors import InvalidRequest
from headstart.middleware.shaping.steps import with_document
from headstart.policies.output.continuation import continuing
from support.candidates import make_call
from support.translated import CHAT, MESSAGES, PDF, PNG, PORTABLE, SCHEMA

if TYPE_CHECKING:
    from headstart.types import Call

DIALECT = OPENAI_RESPONSES
PARAMS: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(api.ResponseCreateParams)
PICTURE = f"data:image/png;base64,{PNG}"
DOCUMENT = f"data:application/pdf;base64,{PDF}"
ASKED: dict[str, Any] = {
    "model": "m",
    "instructions": "Be kind.",
    "input": [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What is this?"},
                {"type": "input_image", "image_url": PICTURE, "detail": "low"},
                {"type": "input_image", "image_url": "https://example.org/a.png"},
                {"type": "input_file", "filename": "a.pdf", "file_data": DOCUMENT},
            ],
        },
        {
            "id": "rs_1",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "Hm."}],
            "encrypted_content": "headstart:reasoning_content",
        },
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
        },
        {
            "id": "fc_1",
            "type": "function_call",
            "call_id": "call_1",
            "name": "look",
            "arguments": '{"city":"Bonn"}',
            "status": "completed",
        },
        {"type": "function_call", "call_id": "call_2", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "Rain."},
        {
            "type": "function_call_output",
            "call_id": "call_2",
            "output": [{"type": "input_text", "text": "Noon."}],
        },
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "Why?"},
    ],
    "tools": [
        {
            "type": "function",
            "name": "look",
            "description": "Look.",
            "parameters": SCHEMA,
            "strict": True,
        },
        {"type": "function", "name": "now", "parameters": None, "strict": False},
    ],
    "tool_choice": {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "look"}],
    },
    "parallel_tool_calls": False,
    "text": {"format": {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}},
    "reasoning": {"effort": "high", "summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "max_output_tokens": 100,
    "temperature": 0.5,
    "top_p": 0.9,
    "truncation": "disabled",
    "user": "u1",
    "stream": True,
}


def request_of(**fields: Any) -> Any:
    return DIALECT.parse_request(json.dumps({"model": "m", "input": "Hi", **fields}).encode())


def namespace(name: str, *tools: str, type: str = "function") -> dict[str, Any]:
    named = [{"type": type, "name": each, "parameters": SCHEMA} for each in tools]
    return {"type": "namespace", "name": name, "description": "Ours.", "tools": named}


def translate(target: Any, quirks: Quirks | None = None, **fields: Any) -> Any:
    quirks = quirks or Quirks()
    asked = portable_request(DIALECT.read_request(request_of(**fields)), quirks)
    return target.write_request(asked, quirks)


def test_a_whole_conversation_is_told_to_chat_completions() -> None:
    written = translate(OPENAI_CHAT, **ASKED)
    body = json.loads(written.body)
    assert written.dropped == ()
    function = {"description": "Look.", "name": "look", "parameters": SCHEMA, "strict": True}
    calls = [("call_1", "look", '{"city":"Bonn"}'), ("call_2", "now", "{}")]
    assert body == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be kind.\nBe brief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}},
                    {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
                    {"type": "file", "file": {"filename": "a.pdf", "file_data": DOCUMENT}},
                ],
            },
            {
                "role": "assistant",
                "content": "Let me see.",
                "reasoning_content": "Hm.",
                "tool_calls": [
                    {"id": id, "type": "function", "function": {"name": n, "arguments": given}}
                    for id, n, given in calls
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "Rain."},
            {"role": "tool", "tool_call_id": "call_2", "content": "Noon."},
            {"role": "assistant", "content": "It rains."},
            {"role": "user", "content": "Why?"},
        ],
        "tools": [
            {"type": "function", "function": function},
            {"type": "function", "function": {"name": "now", "strict": False}},
        ],
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "required",
                "tools": [{"type": "function", "function": {"name": "look"}}],
            },
        },
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "city", "schema": SCHEMA, "strict": True},
        },
        "reasoning_effort": "high",
        "max_completion_tokens": 100,
        "temperature": 0.5,
        "top_p": 0.9,
        "user": "u1",
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize("target", [ANTHROPIC_MESSAGES, GEMINI_GENERATE, COHERE_CHAT])
def test_a_whole_conversation_is_told_to_every_dialect(target: Any) -> None:
    asked = json.loads(json.dumps(ASKED))
    del asked["input"][1]["content"][3]  # Cohere takes no files
    body = translate(target, **{**asked, "model": "gemini-2.5-pro"}).body.decode()
    for words in ("Be kind.", "What is this?", "Let me see.", "Rain.", "Noon.", "Why?", "look"):
        assert words in body


@pytest.mark.parametrize(
    ("source", "document"),
    [
        (OPENAI_CHAT, PORTABLE["openai"]),
        (ANTHROPIC_MESSAGES, PORTABLE["anthropic"]),
    ],
)
def test_requests_of_other_dialects_become_valid_requests(source: Any, document: Any) -> None:
    asked = source.read_request(source.parse_request(json.dumps(document).encode()))
    written = DIALECT.write_request(asked, Quirks())
    body = PARAMS.validate_python(json.loads(written.body))
    assert written.path == b"/v1/responses"
    assert body["store"] is False, "nobody could name the answer"
    kinds = [item.get("type", item.get("role")) for item in body["input"]]
    assert "function_call" in kinds
    assert "function_call_output" in kinds


def test_fields_without_a_place_are_refused_or_named() -> None:
    sound = OPENAI_CHAT.parse_request(json.dumps(CHAT | {"n": 1}).encode())
    searched = ANTHROPIC_MESSAGES.parse_request(json.dumps(MESSAGES).encode())
    for source, request in ((OPENAI_CHAT, sound), (ANTHROPIC_MESSAGES, searched)):
        asked = source.read_request(request)
        with pytest.raises(InvalidRequest, match="cannot be expressed for an upstream of"):
            DIALECT.write_request(asked, Quirks())


def test_a_tool_is_as_strict_as_it_was() -> None:
    """This API is strict where nothing is said, Chat Completions are not."""
    loose = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
    document = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": [loose]}
    asked = OPENAI_CHAT.read_request(OPENAI_CHAT.parse_request(json.dumps(document).encode()))
    (tool,) = json.loads(DIALECT.write_request(asked, Quirks()).body)["tools"]
    assert tool == {"type": "function", "name": "f", "parameters": SCHEMA, "strict": False}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"background": True}, "background"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "item_reference"),
    ],
)
def test_state_at_a_provider_is_refused_elsewhere(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"^{name}: .* also_speaks"):
        translate(OPENAI_CHAT, **fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools of type web_search"),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "local_shell"}]}]},
            "tools of type local_shell",
        ),
        ({"tools": [{"type": "mcp", "server_label": "a"}]}, "tools of type mcp"),
        ({"input": [{"type": "web_search_call", "id": "w"}]}, "content of type web_search_call"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
            "content of type input_file",
        ),
    ],
)
def test_tools_that_a_provider_runs_are_refused_elsewhere(
    fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        translate(OPENAI_CHAT, **fields)


@pytest.mark.parametrize(
    ("fields", "dropped"),
    [
        ({"metadata": {"a": "b"}}, ("metadata",)),
        ({"text": {"verbosity": "low"}}, ("verbosity",)),
        ({"truncation": "auto"}, ("truncation",)),
        ({"include": ["file_search_call.results"]}, ("include",)),
        ({"reasoning": {"effort": "low", "mode": "pro"}}, ("mode",)),
    ],
)
def test_fields_that_only_tune_the_answer_are_named(
    fields: dict[str, Any], dropped: tuple[str, ...]
) -> None:
    assert translate(OPENAI_CHAT, **fields).dropped == dropped
    with pytest.raises(InvalidRequest, match=dropped[0]):
        translate(OPENAI_CHAT, Quirks(refuse=True), **fields)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"model": "m", "input": 7}, "input: must be a string or an array"),
        ({"model": "m", "input": ["x"]}, r"input\[0\]: must be an object"),
        ({"input": "Hi"}, "model: a string is required"),
        ({"model": "", "input": "Hi"}, "model: must not be empty"),
        ({"model": "m", "input": "Hi", "max_output_tokens": "7"}, "max_output_tokens: must be"),
        ({"model": "m", "input": "Hi", "stream": "yes"}, "stream: must be a boolean"),
    ],
)
def test_a_malformed_request_names_its_field(body: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        DIALECT.parse_request(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("asked", "query"),
    [
        ("Why?", "Why?"),
        ([{"role": "user", "content": "Why?"}], "Why?"),
        ([{"type": "message", "role": "user", "content": "Why?"}], "Why?"),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": t} for t in "ab"]}],
            "a\nb",
        ),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": PICTURE}]}], None),
        ([{"role": "assistant", "content": "Why?"}], None),
        ([{"type": "function_call_output", "call_id": "c", "output": "7"}], None),
        ("", None),
        ([], None),
        (None, None),
    ],
)
def test_the_question_is_the_last_text_of_the_user(asked: Any, query: str | None) -> None:
    request = request_of(input=asked)
    assert request.query == query


def test_a_request_with_a_stored_prompt_may_leave_the_model_to_it() -> None:
    assert DIALECT.parse_request(b'{"prompt":{"id":"p"}}').model == ""


def test_reasoning_that_we_marked_does_not_go_to_its_api() -> None:
    ours, theirs = ASKED["input"][2], {**ASKED["input"][2], "encrypted_content": "gAAA"}
    rest = [ASKED["input"][0], theirs]
    request = request_of(input=[*rest, ours])
    body = json.dumps({"model": "m", "input": [*rest, ours]}).encode()
    assert DIALECT.apply_quirks is not None
    edited, dropped = DIALECT.apply_quirks(body, request, Quirks())
    assert json.loads(edited)["input"] == rest
    assert dropped == ("reasoning",)
    plain = json.dumps({"model": "m", "input": "headstart: what is it?"}).encode()
    request = DIALECT.parse_request(plain)
    assert DIALECT.apply_quirks(plain, request, Quirks()) == (plain, ())


# --- the form --------------------------------------------------------------------------------

FORM = DIALECT.form


def call_of(**fields: Any) -> Call:
    body = json.dumps({"model": "m", "input": "Hi", **fields}).encode()
    return make_call(body, DIALECT, path=b"/v1/responses", endpoint="/v1/responses")


def edited(call: Call, document: dict[str, Any] | None) -> dict[str, Any]:
    assert document is not None
    found: dict[str, Any] = json.loads(with_document(call, document).body)
    return found


@pytest.mark.parametrize("asked", ["Hi", [{"role": "user", "content": "Hi"}]])
def test_prompts_are_edited_whether_they_are_strings_or_items(asked: Any) -> None:
    call = call_of(input=asked, instructions="Be kind.")
    assert call.request is not None
    document = call.request.document
    turn = {"role": "user", "content": "Hi"}
    longer = edited(call, FORM.with_last_text(document, "Go."))
    assert longer["input"] == [{"role": "user", "content": "Hi\n\nGo."}]
    more = edited(call, continuing(document, FORM, "The moon ", "no"))
    assert more["input"][:2] == [turn, {"role": "assistant", "content": "The moon "}]
    assert [item["role"] for item in more["input"]] == ["user", "assistant", "user"]
    told = edited(call, FORM.with_system_text(document, "Be brief."))
    assert told == {**document, "instructions": "Be kind.\n\nBe brief."}
    assert edited(call, FORM.with_limit(document, 7))["max_output_tokens"] == 7
    prompt = FORM.read(document)
    assert prompt is not None
    assert prompt.messages == [{"role": "system", "content": "Be kind."}, turn]
    shorter = [prompt.messages[0], {"role": "user", "content": "H"}]
    assert edited(call, prompt.with_messages(shorter))["input"][0]["content"] == "H"
    assert FORM.opening(document) == ["Be kind.", None, turn]


def test_a_conversation_is_read_as_one_of_the_older_api_and_written_back() -> None:
    call = call_of(**ASKED)
    assert call.request is not None
    prompt = FORM.read(call.request.document)
    assert prompt is not None
    assert [each["role"] for each in prompt.messages] == [
        "system", "developer", "user", "assistant", "assistant", "assistant", "assistant", "tool",
        "tool", "assistant", "user",
    ]  # fmt: skip
    assert edited(call, prompt.with_messages(prompt.messages)) == ASKED
    sent = list(prompt.messages)
    sent[2] = {**sent[2], "content": [{"type": "text", "text": "?"}, *sent[2]["content"][1:]]}
    sent[7] = {**sent[7], "content": "R."}
    changed = edited(call, prompt.with_messages(sent))["input"]
    assert changed[1]["content"] == [
        {"type": "input_text", "text": "?"},
        *ASKED["input"][1]["content"][1:],
    ]
    assert changed[6]["output"] == "R."
    assert [own for at, own in enumerate(changed) if at not in (1, 6)] == [
        own for at, own in enumerate(ASKED["input"]) if at not in (1, 6)
    ]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]}, None),
        ({"tools": [{"type": "web_search"}]}, "hosted-tools"),
        ({"tools": [{"type": "mcp"}]}, "hosted-tools"),
        ({"tools": [{"type": "computer_use_preview"}]}, "hosted-tools"),
        ({"tools": [namespace("n", "f")]}, None),
        ({"tools": [namespace("n", "f", type="shell")]}, "hosted-tools"),
        (
            {"input": [{"type": "additional_tools", "tools": [{"type": "file_search"}]}]},
            "hosted-tools",
        ),
        ({"background": True}, "background"),
        ({"background": False}, None),
        ({"conversation": {"id": "conv_1"}}, "conversation"),
        ({"previous_response_id": "resp_1"}, "previous-response"),
        ({"previous_response_id": None}, None),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "item-reference"),
        ({"prompt": {"id": "p"}}, "stored-prompt"),
        ({"prompt_cache_options": {"prewarm": True}}, "cache-warming"),
        ({"prompt_cache_options": {"ttl": "30m"}}, None),
    ],
)
def test_requests_that_rest_on_more_than_text_are_told(
    fields: dict[str, Any], reason: str | None
) -> None:
    assert FORM.work_beside_text(request_of(**fields).document) == reason


def test_results_of_tools_are_told() -> None:
    assert FORM.has_tool_results(ASKED)
    assert not FORM.has_tool_results({"input": "Hi"})
    assert FORM.continues_answer({"input": [{"role": "assistant", "content": "The"}]})


SOUND = {"type": "input_audio", "input_audio": {"data": "iVBO", "format": "wav"}}
ADDRESS = "https://example.org/a.pdf"


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (SOUND, SOUND),
        (
            {"type": "input_file", "filename": "a.pdf", "file_data": DOCUMENT},
            {"type": "file", "file": {"filename": "a.pdf", "file_data": DOCUMENT}},
        ),
    ],
)
def test_content_is_told_to_chat_completions(part: dict[str, Any], told: dict[str, Any]) -> None:
    text = {"type": "input_text", "text": "See:"}
    written = translate(OPENAI_CHAT, input=[{"role": "user", "content": [text, part]}])
    (turn,) = json.loads(written.body)["messages"]
    assert turn["content"] == [{"type": "text", "text": "See:"}, told]


def test_a_refusal_is_told_to_chat_completions() -> None:
    said = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    written = translate(OPENAI_CHAT, input=[said, {"role": "user", "content": "Why?"}])
    *_, turn, _ = json.loads(written.body)["messages"]
    assert turn["refusal"] == "No."


def test_a_file_at_an_address_is_told_to_anthropic_and_comes_back() -> None:
    part = {"type": "input_file", "file_url": ADDRESS}
    written = translate(
        ANTHROPIC_MESSAGES,
        Quirks(default_max_tokens=9),
        input=[{"role": "user", "content": [part]}],
    )
    ((block,),) = (turn["content"] for turn in json.loads(written.body)["messages"])
    assert block == {"type": "document", "source": {"type": "url", "url": ADDRESS}}
    asked = ANTHROPIC_MESSAGES.read_request(ANTHROPIC_MESSAGES.parse_request(written.body))
    (turn,) = json.loads(DIALECT.write_request(asked, Quirks()).body)["input"]
    assert turn["content"] == [part]


TOOLS = [{"type": "function", "name": name} for name in ("look", "now")]
NAMED = {"type": "function", "name": "look"}


@pytest.mark.parametrize(
    ("choice", "told", "tools"),
    [
        ("auto", {"type": "auto"}, ["look", "now"]),
        ("required", {"type": "any"}, ["look", "now"]),
        (NAMED, {"type": "tool", "name": "look"}, ["look", "now"]),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [NAMED]},
            {"type": "auto"},
            ["look"],
        ),
    ],
)
def test_the_choice_of_a_tool_is_told_to_anthropic_and_comes_back(
    choice: Any, told: dict[str, Any], tools: list[str]
) -> None:
    quirks = Quirks(default_max_tokens=9)
    written = translate(ANTHROPIC_MESSAGES, quirks, tools=TOOLS, tool_choice=choice)
    document = json.loads(written.body)
    assert document.get("tool_choice", {"type": "auto"}) == told
    assert [tool["name"] for tool in document["tools"]] == tools
    asked = ANTHROPIC_MESSAGES.read_request(ANTHROPIC_MESSAGES.parse_request(written.body))
    back = json.loads(DIALECT.write_request(asked, Quirks()).body)
    assert back.get("tool_choice", "auto") == ("auto" if told == {"type": "auto"} else choice)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"input": [{"role": "tool", "content": "x"}]}, "role: must be system"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "file_data: a string"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "aa"}]}]},
            "file_data: must be a data: URL",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "x", "tools": []}},
            "mode",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "web_search"}}, "tool_choice of type web_search"),
        ({"text": {"format": {"type": "xml"}}}, "type: must be text, json_object or json_schema"),
    ],
)
def test_what_cannot_be_told_is_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        translate(OPENAI_CHAT, **fields)


def test_a_later_system_message_without_a_text_is_left_out() -> None:
    said = [{"role": role, "content": "Hi"} for role in ("user", "assistant", "user")]
    empty = [{"role": "developer", "content": ""}, {"role": "system", "content": []}]
    written = json.loads(translate(OPENAI_CHAT, input=[*said, *empty]).body)
    assert written["messages"] == said


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": "x"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": ""},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
    ],
)
def test_many_items_are_joined_in_linear_time(item: dict[str, Any]) -> None:
    """By the square of their number, as it once was, they took 10 seconds."""
    user = {"role": "user", "content": "u"}
    began = time.process_time()
    written = translate(OPENAI_CHAT, input=[user, *[item] * 60_000, user])
    assert time.process_time() - began < 4.0
    assert len(written.body) > 60_000


def test_tools_that_a_choice_names_again_and_again_are_told_once() -> None:
    inside = [namespace(f"n{number}", "find") for number in range(100)]
    choice = {"type": "allowed_tools", "tools": [{"type": "function", "name": "find"}] * 100}
    asked = DIALECT.read_request(request_of(tools=inside, tool_choice=choice))
    assert asked.tool_choice is not None
    assert len(asked.tool_choice.names) == 100


def test_a_provider_that_takes_them_anywhere_gets_each_system_message_in_its_place() -> None:
    said = [{"role": "user", "content": "Hi"}, {"role": "developer", "content": "Be brief."}]
    written = translate(OPENAI_CHAT, Quirks(system="anywhere"), instructions="Be kind.", input=said)
    assert json.loads(written.body)["messages"] == [
        {"role": "system", "content": "Be kind."},
        *said,
    ]


@pytest.mark.parametrize("target", [ANTHROPIC_MESSAGES, COHERE_CHAT, GEMINI_GENERATE, OPENAI_CHAT])
def test_a_tool_of_a_namespace_has_one_name_that_providers_take(target: Any) -> None:
    long = "mcp__archive__", "a" * 40 + "b" * 30, "a" * 40 + "c" * 30
    asked = {"tools": [namespace("crm", "lookup"), namespace(*long)]}
    written = translate(target, Quirks(default_max_tokens=9), **asked)
    found = re.findall(r'"name":"([^"]*)"', written.body.decode())
    assert found[0] == "crm__lookup"
    assert all(len(name) == 64 and name.startswith(long[0]) for name in found[1:])
    named = FORM.tool_names(request_of(**asked).document)
    own = [("crm", "lookup"), (long[0], long[1]), (long[0], long[2])]
    assert [named[name] for name in found] == own


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ({"type": "function", "name": "find"}, ("named", ["crm__find"])),
        ({"type": "function", "name": "look"}, ("named", ["look"])),
        ({"type": "function", "name": "count"}, ("required", ["crm__count", "hr__count"])),
        (
            [{"type": "namespace", "name": "crm"}],
            ("auto", ["crm__look", "crm__find", "crm__count"]),
        ),
        ([NAMED, {"type": "function", "name": "find"}], ("auto", ["look", "crm__find"])),
    ],
)
def test_a_choice_of_tools_has_the_names_that_the_provider_got(choice: Any, told: Any) -> None:
    inside = [namespace("crm", "look", "find", "count"), namespace("hr", "count")]
    if isinstance(choice, list):
        choice = {"type": "allowed_tools", "tools": choice}
    asked = DIALECT.read_request(request_of(tools=[*TOOLS, *inside], tool_choice=choice))
    assert asked.tool_choice is not None
    assert (asked.tool_choice.mode, list(asked.tool_choice.names)) == told


@pytest.mark.parametrize(
    "tools",
    [
        [namespace("crm", "look"), {**TOOLS[0], "name": "crm__look"}],
        [namespace("crm", "look"), namespace("crm_", "look")],
    ],
)
def test_two_tools_that_would_have_one_name_are_refused(tools: Any) -> None:
    with pytest.raises(InvalidRequest, match="two tools with the name crm__look"):
        translate(OPENAI_CHAT, tools=tools)


@pytest.mark.parametrize(
    ("kind", "told"), [("text", None), ("json_object", {"type": "json_object"})]
)
def test_the_form_of_the_answer_is_told(kind: str, told: Any) -> None:
    written = translate(OPENAI_CHAT, text={"format": {"type": kind}})
    assert json.loads(written.body).get("response_format") in (told, {"type": kind})


@pytest.mark.parametrize(
    ("wish", "shown"),
    [
        (None, False),
        ({"effort": "low"}, False),
        ({"summary": None}, False),
        ({"summary": "auto"}, True),
        ({"generate_summary": "concise"}, True),
    ],
)
def test_reasoning_is_shown_to_who_asked_for_a_summary(wish: Any, shown: bool) -> None:
    assert DIALECT.shows_reasoning(request_of(reasoning=wish)) is shown
