"""Reading Gemini's requests, and writing them."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from headstart.canonical_request import CallPart, MediaPart, Quirks, ResultPart, WrittenRequest
from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.errors import InvalidRequest
from support.gemini_stream import DIALECT, OPERATIONS
from support.translated import unread_values

if TYPE_CHECKING:
    from headstart.types import ChatRequest

ASK = {"contents": [{"role": "user", "parts": [{"text": "Why?"}]}]}
PATH = b"/v1beta/models/gemini-2.5-flash:"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def parse(document: dict[str, Any], method: bytes = b"generateContent") -> ChatRequest:
    query = b"alt=sse" if method != b"generateContent" else b""
    return OPERATIONS.parse(PATH + method, query, json.dumps(document).encode())


def written(document: dict[str, Any], quirks: Quirks | None = None) -> WrittenRequest:
    """Write an OpenAI request for Gemini."""
    chat = {"model": "gemini-2.5-flash", "messages": [{"role": "user", "content": "Hi"}]}
    openai = OPENAI_CHAT
    asked = openai.read_request(openai.parse_request(json.dumps({**chat, **document}).encode()))
    return DIALECT.write_request(asked, quirks or Quirks())


def body_of(document: dict[str, Any], **quirks: Any) -> Any:
    return json.loads(written(document, Quirks(**quirks)).body)


@pytest.mark.parametrize(
    ("path", "query", "answered"),
    [
        (b"/v1beta/models/m:generateContent", b"", True),
        (b"/v1/models/m:generateContent", b"key=k", True),
        (b"/v1beta/models/m%3AgenerateContent", b"alt=json", True),
        (b"/v1beta/models/m:streamGenerateContent", b"key=k&alt=sse", True),
        (b"/v1beta/models/m:streamGenerateContent", b"", False),
        (b"/v1beta/models/m:generateContent", b"alt=proto", False),
        (b"/v1beta/models/m:countTokens", b"", False),
        (b"/v1beta/models/a/b:generateContent", b"", False),
        (b"/v1beta/models", b"", False),
        (b"/v1beta/models/\xff:generateContent", b"", False),
    ],
)
def test_paths_that_are_answered(path: bytes, query: bytes, answered: bool) -> None:
    assert OPERATIONS.answers(path, query) is answered


def test_path_names_model_and_streaming() -> None:
    request = parse(
        {**ASK, "generation_config": {"max_output_tokens": 9}}, b"streamGenerateContent"
    )
    assert (request.model, request.stream) == ("gemini-2.5-flash", True)
    assert (request.query, request.max_tokens, request.choices) == ("Why?", 9, 1)
    assert not parse(ASK).stream


def test_names_are_read_in_both_spellings_and_the_callers_own_are_left() -> None:
    snake = {
        "contents": [{"parts": [{"function_call": {"name": "f", "args": {"my_arg": 1}}}]}],
        "system_instruction": {"parts": [{"text": "Be brief."}]},
        "tools": [{"function_declarations": [{"name": "f", "parameters": {"any_of": []}}]}],
    }
    document = parse(snake).document
    assert document["systemInstruction"] == snake["system_instruction"]
    assert document["contents"][0]["parts"] == [
        {"functionCall": {"name": "f", "args": {"my_arg": 1}}}
    ]
    assert document["tools"][0]["functionDeclarations"][0]["parameters"] == {"any_of": []}


def test_a_long_name_is_read_in_linear_time() -> None:
    """By the square of its length, as it once was, a name of 60 KB took a minute."""
    began = time.process_time()
    assert "_" * 60_000 in parse({**ASK, "_" * 60_000: 1}).document
    assert time.process_time() - began < 1.0


def test_a_name_in_two_spellings_counts_as_repeated() -> None:
    both = {**ASK, "tool_config": {}, "toolConfig": {}}
    assert parse(both).duplicate_keys
    assert not parse(ASK).duplicate_keys


@pytest.mark.parametrize(
    ("contents", "query"),
    [
        ([{"parts": [{"text": "a"}, {"text": "b"}]}], "a\nb"),
        ([{"role": "model", "parts": [{"text": "a"}]}], None),
        ([{"parts": [{"text": "a"}, {"inlineData": {}}]}], None),
        ([{"parts": [{"text": "a", "thought": True}]}], None),
        ([{"parts": []}], None),
        ([{}], None),
        ([], None),
    ],
)
def test_only_the_users_plain_text_is_the_query(contents: list[Any], query: str | None) -> None:
    assert parse({"contents": contents}).query == query


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({}, "contents"),
        ({"contents": ["Hi"]}, r"contents\[0\]"),
        ({**ASK, "generationConfig": []}, "generationConfig"),
        ({**ASK, "generationConfig": {"candidateCount": 0}}, "candidateCount"),
        ({**ASK, "generationConfig": {"maxOutputTokens": "9"}}, "maxOutputTokens"),
    ],
)
def test_a_field_at_fault_is_named(document: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        parse(document)


# --- to and from other dialects --------------------------------------------------------------


def test_every_value_of_a_request_is_read() -> None:
    document = {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {
                "role": "user",
                "parts": [
                    {"text": "Look"},
                    {"inlineData": {"mimeType": "image/png", "data": "aQ=="}},
                ],
            },
            {
                "role": "model",
                "parts": [
                    {"text": "Hm.", "thought": True, "thoughtSignature": "s1"},
                    {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "s2"},
                    {"executableCode": {"code": "1"}},
                ],
            },
            {
                "role": "user",
                "parts": [{"functionResponse": {"name": "f", "response": {"output": "x"}}}],
            },
        ],
        "tools": [
            {"functionDeclarations": [{"name": "f", "parametersJsonSchema": {"type": "object"}}]},
            {"googleSearch": {}},
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
        "safetySettings": [{"category": "x", "threshold": "y"}],
        "cachedContent": "cachedContents/1",
        "generationConfig": {
            "temperature": 0.5,
            "topP": 0.9,
            "topK": 3,
            "seed": 7,
            "stopSequences": ["END"],
            "candidateCount": 2,
            "maxOutputTokens": 9,
            "responseLogprobs": True,
            "logprobs": 2,
            "responseMimeType": "application/json",
            "responseJsonSchema": {"type": "object"},
            "mediaResolution": "LOW",
            "responseModalities": ["TEXT", "IMAGE"],
            "thinkingConfig": {"thinkingBudget": 100, "includeThoughts": False},
        },
    }
    renamed = {"model", "ANY", "TEXT", "IMAGE", "application/json"}
    assert unread_values(document, DIALECT.read_request(parse(document))) == renamed


def test_calls_without_ids_are_paired_with_their_results_in_order() -> None:
    call = {"functionCall": {"name": "f", "args": {}}}
    result = {"functionResponse": {"name": "f", "response": {"error": "no"}}}
    contents = [
        *ASK["contents"],
        {"role": "model", "parts": [call, call]},
        {"role": "user", "parts": [result, result, {"text": "Well?"}]},
    ]
    messages = DIALECT.read_request(parse({"contents": contents})).messages
    assert [message.role for message in messages] == ["user", "assistant", "tool", "user"]
    calls = [part.id for part in messages[1].parts if isinstance(part, CallPart)]
    results = [part for part in messages[2].parts if isinstance(part, ResultPart)]
    assert len(set(calls)) == 2
    assert [part.id for part in results] == calls
    assert all(part.is_error for part in results)


def test_calls_that_share_an_id_are_told_apart_for_other_providers() -> None:
    cities = ("Rome", "Oslo")
    calls = [{"functionCall": {"id": "0", "name": "f", "args": {"city": c}}} for c in cities]
    results = [
        {"functionResponse": {"id": "0", "name": "f", "response": {"city": c}}} for c in cities
    ]
    contents = [
        *ASK["contents"],
        {"role": "model", "parts": calls},
        {"role": "user", "parts": results},
    ]
    asked = DIALECT.read_request(parse({"contents": contents}))
    [_, call, *told] = json.loads(OPENAI_CHAT.write_request(asked, Quirks()).body)["messages"]
    made = {each["id"]: each["function"]["arguments"] for each in call["tool_calls"]}
    assert len(made) == 2
    for each in told:
        assert json.loads(each["content"]) == json.loads(made[each["tool_call_id"]])


def test_geminis_schemas_become_json_schema() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {"tags": {"type": "ARRAY", "items": {"type": "STRING"}, "maxItems": "3"}},
        "propertyOrdering": ["tags"],
        "nullable": True,
    }
    tools = [{"functionDeclarations": [{"name": "f", "parameters": schema}]}]
    asked = DIALECT.read_request(parse({**ASK, "tools": tools}))
    said = json.loads(OPENAI_CHAT.write_request(asked, Quirks()).body)
    assert said["tools"][0]["function"]["parameters"] == {
        "type": ["object", "null"],
        "properties": {"tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3}},
    }


def test_an_invalid_count_of_a_schema_passes_unchanged() -> None:
    schema = {"type": "array", "maxItems": "1" * 5000}
    tools = [{"functionDeclarations": [{"name": "f", "parameters": schema}]}]
    asked = DIALECT.read_request(parse({**ASK, "tools": tools}))
    said = json.loads(OPENAI_CHAT.write_request(asked, Quirks()).body)
    assert said["tools"][0]["function"]["parameters"] == schema


@pytest.mark.parametrize("target", [OPENAI_CHAT, ANTHROPIC_MESSAGES])
def test_fields_that_other_dialects_lack_are_dropped_or_refused(target: Any) -> None:
    safe = DIALECT.read_request(parse({**ASK, "safetySettings": [{"category": "x"}]}))
    assert target.write_request(safe, Quirks()).dropped == ("safetySettings",)
    with pytest.raises(InvalidRequest, match="safetySettings"):
        target.write_request(safe, Quirks(refuse=True))
    search: dict[str, Any] = {"tools": [{"googleSearch": {}}]}
    for foreign in ({"cachedContent": "c"}, search):
        with pytest.raises(InvalidRequest):
            target.write_request(DIALECT.read_request(parse({**ASK, **foreign})), Quirks())


def test_openais_request_is_written_for_gemini() -> None:
    request = written(
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Weather?"},
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": n, "type": "function", "function": {"name": "f", "arguments": "{}"}}
                        for n in ("a", "b")
                    ],
                },
                {"role": "tool", "tool_call_id": "a", "content": "cold"},
                {"role": "tool", "tool_call_id": "b", "content": '{"t": 3}'},
            ],
            "tools": [TOOL],
            "tool_choice": "required",
            "stream": True,
            "max_completion_tokens": 9,
            "response_format": {"type": "json_object"},
            "user": "u",
            "n": 2,
        }
    )
    assert request.path == b"/v1beta/models/gemini-2.5-flash:streamGenerateContent"
    assert request.query == b"alt=sse"
    assert request.dropped == ("user",)
    document = json.loads(request.body)
    assert document["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    roles = [(content["role"], len(content["parts"])) for content in document["contents"]]
    assert roles == [("user", 1), ("model", 2), ("user", 2)]
    results = [part["functionResponse"] for part in document["contents"][2]["parts"]]
    assert [(r["id"], r["name"], r["response"]) for r in results] == [
        ("a", "f", {"output": "cold"}),
        ("b", "f", {"t": 3}),
    ]
    assert document["toolConfig"] == {"functionCallingConfig": {"mode": "ANY"}}
    assert document["generationConfig"] == {
        "maxOutputTokens": 9,
        "candidateCount": 2,
        "responseMimeType": "application/json",
    }


def test_ids_of_our_own_making_are_kept_from_the_api() -> None:
    call = {"functionCall": {"name": "f", "args": {}}}
    contents = [*ASK["contents"], {"role": "model", "parts": [call]}]
    asked = DIALECT.read_request(parse({"contents": contents}))
    sent = json.loads(DIALECT.write_request(asked, Quirks()).body)
    assert sent["contents"][1]["parts"] == [call]


def test_calls_that_come_back_unsigned_are_marked_for_models_that_ask() -> None:
    made = {"id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}
    messages = [{"role": "assistant", "tool_calls": [made, made]}]
    for model, mark in (
        ("gemini-3-pro", "skip_thought_signature_validator"),
        ("gemini-2.5-pro", None),
    ):
        parts = body_of({"model": model, "messages": messages})["contents"][0]["parts"]
        assert [part.get("thoughtSignature") for part in parts] == [mark, None]
    signed = {**made, "extra_content": {"google": {"thought_signature": "c2ln"}}}
    document = {
        "model": "gemini-3-pro",
        "messages": [{"role": "assistant", "tool_calls": [signed]}],
    }
    assert body_of(document)["contents"][0]["parts"][0]["thoughtSignature"] == "c2ln"


@pytest.mark.parametrize(
    ("model", "effort", "config"),
    [
        ("gemini-3-pro", "low", {"thinkingLevel": "low"}),
        ("gemini-3-pro", "none", {"thinkingLevel": "minimal"}),
        ("gemini-2.5-flash", "medium", {"thinkingBudget": 8192}),
        ("gemini-2.5-flash", "none", {"thinkingBudget": 0}),
        ("gemini-2.5-pro", "none", {"thinkingBudget": 128}),
        ("gemini-3-pro", "max", {"thinkingLevel": "high"}),
        ("gemini-3-pro", "odd", None),
        ("gemini-2.0-flash", "low", None),
    ],
)
def test_efforts_are_told_as_each_generation_takes_them(
    model: str, effort: str, config: dict[str, Any] | None
) -> None:
    request = written({"model": model, "reasoning_effort": effort})
    said = json.loads(request.body).get("generationConfig", {}).get("thinkingConfig")
    assert said == config
    assert request.dropped == (("reasoning_effort",) if config is None else ())


def test_a_model_that_does_not_think_loses_nothing_by_not_thinking() -> None:
    assert written({"model": "gemini-2.0-flash", "reasoning_effort": "none"}).dropped == ()


def test_fields_that_the_api_refuses_are_not_sent() -> None:
    request = written({"seed": 2**31, "stop": list("abcdef"), "top_logprobs": 2})
    assert json.loads(request.body)["generationConfig"] == {"stopSequences": list("abcde")}
    assert request.dropped == ("seed", "stop", "top_logprobs")
    request = written({"seed": 2**31 - 1, "logprobs": True, "top_logprobs": 2})
    assert json.loads(request.body)["generationConfig"] == {
        "seed": 2**31 - 1,
        "responseLogprobs": True,
        "logprobs": 2,
    }


def test_instructions_alone_are_the_users_words() -> None:
    document = body_of({"messages": [{"role": "system", "content": "Say hi."}]})
    assert document == {"contents": [{"role": "user", "parts": [{"text": "Say hi."}]}]}


@pytest.mark.parametrize(
    ("config", "shown"),
    [(None, False), ({"includeThoughts": False}, False), ({"includeThoughts": True}, True)],
)
def test_thoughts_are_shown_to_who_asked_for_them(config: Any, shown: bool) -> None:
    settings = {} if config is None else {"generationConfig": {"thinkingConfig": config}}
    assert DIALECT.shows_reasoning(parse({**ASK, **settings})) is shown


def test_quirks_of_an_upstream_are_kept() -> None:
    asked = {"temperature": 0.5, "seed": 7}
    request = written(asked, Quirks(sampling=False, drops=("seed",), default_max_tokens=64))
    assert request.dropped == ("seed", "temperature")
    assert json.loads(request.body)["generationConfig"] == {"maxOutputTokens": 64}
    with pytest.raises(InvalidRequest, match="n:"):
        written({"n": 3}, Quirks(max_choices=2))


def test_media_are_told_by_their_bytes_or_their_address() -> None:
    url = "https://example.com/cat.png"
    images = [
        {"type": "image_url", "image_url": {"url": u}} for u in (url, "data:image/gif;base64,aQ==")
    ]
    parts = body_of({"messages": [{"role": "user", "content": images}]})["contents"][0]["parts"]
    assert parts == [
        {"fileData": {"mimeType": "image/png", "fileUri": url}},
        {"inlineData": {"mimeType": "image/gif", "data": "aQ=="}},
    ]
    (message,) = DIALECT.read_request(parse({"contents": [{"parts": parts}]})).messages
    assert [part.url for part in message.parts if isinstance(part, MediaPart)] == [url, None]


def test_an_answer_that_comes_back_in_events_is_whole_for_other_providers() -> None:
    """Google's SDKs send each event of a stream back as a content of its own."""
    thought = {"text": "thinking", "thought": True, "thoughtSignature": "s"}
    texts = [{"text": "Be"}, {"text": "cause."}, {"text": ""}]
    events = [{"text": "I am ", "thought": True}, thought, *texts]
    contents = [*ASK["contents"], *({"role": "model", "parts": [event]} for event in events)]
    asked = DIALECT.read_request(parse({"contents": [*contents, *ASK["contents"]]}))
    assert [len(message.parts) for message in asked.messages] == [1, 2, 1]
    openai = json.loads(OPENAI_CHAT.write_request(asked, Quirks()).body)
    assert [each["content"] for each in openai["messages"]] == ["Why?", "Because.", "Why?"]
    anthropic = json.loads(ANTHROPIC_MESSAGES.write_request(asked, Quirks()).body)
    assert [each["content"] for each in anthropic["messages"]] == ["Why?", "Because.", "Why?"]


def test_a_type_of_an_image_may_have_capitals_and_parameters() -> None:
    """A program may copy the type from an HTTP header."""
    image = {"inlineData": {"mimeType": "image/PNG; charset=utf-8", "data": "iVBO"}}
    asked = DIALECT.read_request(parse({"contents": [{"role": "user", "parts": [image]}]}))
    sent = json.loads(ANTHROPIC_MESSAGES.write_request(asked, Quirks()).body)
    (block,) = sent["messages"][0]["content"]
    assert block["source"] == {"type": "base64", "media_type": "image/png", "data": "iVBO"}
    OPENAI_CHAT.write_request(asked, Quirks())
