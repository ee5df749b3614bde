"""What another dialect cannot carry: content is refused, other fields are dropped by name."""

from __future__ import annotations

import json
import re
from time import process_time
from typing import Any

import pytest

from headstart.canonical_request import CanonicalRequest, Quirks, WrittenRequest, portable_request
from headstart.dialects.dialect import Dialect
from headstart.dialects.registry import BY_SETTING
from headstart.dialects.requests import without_dropped_tools
from headstart.errors import InvalidRequest
from support.translated import ANTHROPIC, PNG, SCHEMA, ask, lose, translate

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}


def said(part: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [part]}]}


def replied(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", "content": None, **fields}, USER]}


def called(block: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", "content": [block]}, USER]}


AUDIO = {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}
ZIP = {"type": "file", "file": {"filename": "a", "file_data": "data:application/zip;base64,UEs="}}
PDF_URL = {"type": "document", "source": {"type": "url", "url": "https://a.org/a.pdf"}}
IMAGE_ID = {"type": "image", "source": {"type": "file", "file_id": "f"}}
HOSTED = {"type": "web_search_20250305", "name": "web_search"}
SERVER_USE = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
BEGUN = {"messages": [USER, {"role": "assistant", "content": "{"}]}

REFUSED_BY_ANTHROPIC: dict[str, dict[str, Any]] = {
    "^n:": {"n": 2},
    "^audio:": {"audio": {"voice": "alloy", "format": "mp3"}},
    "^modalities:": {"modalities": ["text", "audio"]},
    "^web_search_options:": {"web_search_options": {"search_context_size": "low"}},
    "^web_search_options: ": {"web_search_options": {}},
    "^response_format of type json_object": {"response_format": {"type": "json_object"}},
    "^tools of type web_search:": {"tools": [{"type": "web_search"}]},
    r"^content of type audio \(audio/\w+\):": said(AUDIO),
    "^content of type audio: ": replied(audio={"id": "a"}),
    r"^content of type file \(application/zip\):": said(ZIP),
    "^content of type file:": said({"type": "file", "file": {"file_id": "f"}}),
    "^content of type video_url:": said({"type": "video_url", "video_url": {"url": "u"}}),
}
REFUSED_BY_OPENAI: dict[str, dict[str, Any]] = {
    "^tools of type web_search_20250305:": {"tools": [HOSTED]},
    "^content of type server_tool_use:": called(SERVER_USE),
    "^content of type image:": said(IMAGE_ID),
    r"^content of type file \(by URL\):": said(PDF_URL),
    "^container:": {"container": "c1"},
    r"^messages\[1\]: the upstream does not go on": BEGUN,
}


@pytest.mark.parametrize(("message", "fields"), REFUSED_BY_ANTHROPIC.items())
def test_content_that_anthropic_cannot_take_is_refused(message: str, fields: Any) -> None:
    with pytest.raises(InvalidRequest, match=message):
        ask("openai", "anthropic", **fields)


@pytest.mark.parametrize(("message", "fields"), REFUSED_BY_OPENAI.items())
def test_content_that_openai_cannot_take_is_refused(message: str, fields: Any) -> None:
    with pytest.raises(InvalidRequest, match=message):
        ask("anthropic", "openai", **fields)


def test_refusal_names_the_dialect_of_the_upstream() -> None:
    with pytest.raises(InvalidRequest, match="anthropic-messages"):
        ask("openai", "anthropic", n=2)


BUDGET = Quirks(thinking="budget")
AMID_CALLS = [
    USER,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "c", "content": "r"},
]
PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
LOST_TO_ANTHROPIC: list[tuple[str, dict[str, Any], Quirks]] = [
    ("seed", {"seed": 0}, Quirks()),
    ("frequency_penalty", {"frequency_penalty": 1}, Quirks()),
    ("presence_penalty", {"presence_penalty": 0.5}, Quirks()),
    ("logprobs", {"logprobs": True}, Quirks()),
    ("logit_bias", {"logit_bias": {"5": 1}}, Quirks()),
    ("metadata", {"metadata": {"k": "v"}}, Quirks()),
    ("made_up", {"made_up": 1}, Quirks()),
    ("name", {"messages": [{**USER, "name": "ann"}]}, Quirks()),
    ("detail", said({**PICTURE, "image_url": {**PICTURE["image_url"], "detail": "low"}}), Quirks()),  # type: ignore[dict-item]
    ("reasoning_content", replied(content="A", reasoning_content="Hm."), Quirks()),
    ("reasoning", replied(content="A", reasoning="Hm."), Quirks()),
    ("stop", {"stop": "\n"}, Quirks()),
    ("temperature", {"temperature": 1.5}, Quirks()),
    ("top_p", {"temperature": 0.5, "top_p": 0.9}, Quirks()),
    ("temperature", {"temperature": 0.5}, Quirks(sampling=False)),
    ("temperature", {"temperature": 0.5, "reasoning_effort": "low"}, Quirks()),
    ("reasoning_effort", {"reasoning_effort": "odd"}, Quirks()),
    ("reasoning_effort", {"reasoning_effort": "low", "max_tokens": 1024}, BUDGET),
    ("reasoning_effort", {"reasoning_effort": "low", "messages": AMID_CALLS}, BUDGET),
    (
        "reasoning_effort",
        {"reasoning_effort": "low", "tools": [TOOL], "tool_choice": "required"},
        BUDGET,
    ),
    ("made_up", {"made_up": 1}, Quirks(drops=("made_up",))),
    ("temperature", {"temperature": 0.5}, Quirks(drops=("temperature",))),
]
CACHED = {"cache_control": {"type": "ephemeral"}}
THOUGHT: dict[str, Any] = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
USED = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
FAILED = {"type": "tool_result", "tool_use_id": "c", "content": "No.", "is_error": True}
LOOSE = {
    "name": "look",
    "strict": True,
    "input_schema": {"type": "object", "properties": {"a": {}}},
}
LOST_TO_OPENAI: list[tuple[str, dict[str, Any], Quirks]] = [
    ("top_k", {"top_k": 5}, Quirks()),
    ("stop", {"stop_sequences": ["a", "b", "c", "d", "e"]}, Quirks()),
    ("cache_control", said({"type": "text", "text": "Hi", **CACHED}), Quirks()),
    ("cache_control", CACHED, Quirks()),
    ("thinking", called(THOUGHT), Quirks()),
    ("redacted_thinking", called({"type": "redacted_thinking", "data": "x"}), Quirks()),
    ("thinking", {"thinking": {"type": "disabled"}}, Quirks()),
    ("thinking", {"thinking": {"type": "between_tools"}}, Quirks()),
    (
        "is_error",
        {
            "messages": [
                USER,
                {"role": "assistant", "content": [USED]},
                {"role": "user", "content": [FAILED]},
            ]
        },
        Quirks(),
    ),
    ("strict", {"tools": [LOOSE]}, Quirks()),
    ("temperature", {"temperature": 0.5}, Quirks(sampling=False)),
    ("user", {"metadata": {"user_id": "u"}}, Quirks(drops=("user",))),
]


@pytest.mark.parametrize(("name", "fields", "quirks"), LOST_TO_ANTHROPIC)
def test_tuning_fields_are_dropped_by_name_for_anthropic(
    name: str, fields: dict[str, Any], quirks: Quirks
) -> None:
    assert lose("openai", "anthropic", quirks, **fields) == (name,)


@pytest.mark.parametrize(("name", "fields", "quirks"), LOST_TO_OPENAI)
def test_tuning_fields_are_dropped_by_name_for_openai(
    name: str, fields: dict[str, Any], quirks: Quirks
) -> None:
    assert lose("anthropic", "openai", quirks, **fields) == (name,)


@pytest.mark.parametrize("name", ["a\r\nset-cookie: b", "ä", "a,b", "x" * 65])
def test_name_that_fits_no_header_is_not_repeated(name: str) -> None:
    assert lose("openai", "anthropic", None, **{name: 1}) == ("other",)


def test_first_four_stop_sequences_are_kept() -> None:
    body = ask("anthropic", "openai", stop_sequences=["a", "b", "c", "d", "e"])
    assert body["stop"] == ["a", "b", "c", "d"]


NO_LOSS: dict[str, dict[str, Any]] = {
    "a field that is null": {"seed": None, "made_up": None},
    "an empty echo of the SDK's": replied(content="A", annotations=[], function_call=None),
    "defaults": {"temperature": 1, "top_p": 1, "frequency_penalty": 0, "n": 1, "store": False},
    "text alone": {"modalities": ["text"]},
    "the user under its other name": {"safety_identifier": "s1"},
    "usage": {"stream": True, "stream_options": {"include_usage": True}},
}


@pytest.mark.parametrize("fields", NO_LOSS.values(), ids=NO_LOSS)
def test_empty_fields_are_not_named_as_losses(fields: dict[str, Any]) -> None:
    assert lose("openai", "anthropic", Quirks(refuse=True), **fields) == ()


@pytest.mark.parametrize(
    ("source", "target", "fields"),
    [
        ("openai", "anthropic", {"seed": 1}),
        ("openai", "anthropic", {"made_up": 1}),
        ("anthropic", "openai", {"top_k": 1}),
        ("anthropic", "openai", CACHED),
    ],
)
def test_losses_are_refused_where_none_may_be(
    source: str, target: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(next(iter(fields)))):
        ask(source, target, Quirks(refuse=True), **fields)


def test_provider_of_the_same_dialect_gets_no_more_than_it_takes() -> None:
    chat = {"model": "m", "messages": [{**USER, "name": "ann"}], "seed": 1, "max_tokens": 5}
    quirks = Quirks(
        drops=("seed",), message_drops=("name",), renames={"max_completion_tokens": "max_tokens"}
    )
    body, dropped = translate("openai", "openai", chat, quirks)
    assert body == {"model": "m", "messages": [USER], "max_tokens": 5}
    assert dropped == ("name", "seed")


def test_more_choices_than_the_provider_gives_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="gives at most 1"):
        ask("openai", "openai", Quirks(max_choices=1), n=2)


def searching(others: int, choice: dict[str, str]) -> CanonicalRequest:
    """Return a request with Anthropic's search, and with another tool if ``others`` is 1."""
    look = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
    tools = [HOSTED, look][: 1 + others]
    fields = {"model": "m", "max_tokens": 9, "messages": [USER], "tools": tools}
    request = ANTHROPIC.parse_request(json.dumps({**fields, "tool_choice": choice}).encode())
    return ANTHROPIC.read_request(request)


@pytest.mark.parametrize("dialect", ["openai", "gemini", "cohere"])
@pytest.mark.parametrize("others", [0, 1])
def test_a_choice_of_a_tool_that_is_left_out_is_left_out_too(dialect: str, others: int) -> None:
    """Claude Code has its searches done in requests with this tool alone, and forces it."""
    quirks = Quirks(drops=("web_search_20250305",))
    asked = searching(others, {"type": "tool", "name": "web_search"})
    asked = without_dropped_tools(asked, quirks)
    written = BY_SETTING[dialect].write_request(asked, quirks)
    assert (b"look" in written.body) == bool(others)
    assert b"web_search" not in written.body
    assert json.loads(written.body).keys().isdisjoint({"tool_choice", "toolConfig"})
    assert {*written.dropped} == {"tool_choice", "web_search_20250305"}


@pytest.mark.parametrize("others", [0, 1])
def test_a_forced_call_of_any_tool_needs_another_tool(others: int) -> None:
    asked = searching(others, {"type": "any"})
    left = without_dropped_tools(asked, Quirks(drops=("web_search_20250305",))).tool_choice
    assert left == (asked.tool_choice if others else None)


# --- Responses: what is left of a provider's own tools -------------------------------------------

ASKS = {"role": "user", "content": "?"}
SEARCHED = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}}
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
SEARCH = {"type": "web_search"}
REASONED: dict[str, Any] = {
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "Hm."}],
}
ANSWER: dict[str, Any] = {
    "role": "assistant",
    "content": [{"type": "output_text", "text": "It rains."}],
}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "x"}


HEIC = {"inlineData": {"mimeType": "image/HEIC", "data": PNG}}
PDF = {"inlineData": {"mimeType": "application/pdf", "data": PNG}}
WEBP = {"inlineData": {"mimeType": "image/webp", "data": PNG}}


def shown(target: str, part: dict[str, Any]) -> bytes:
    """Return what a provider of another API gets for a file that a client of Gemini sends."""
    body = {"contents": [{"role": "user", "parts": [{"text": "What is it?"}, part]}]}
    gemini = BY_SETTING["gemini"]
    assert isinstance(gemini, Dialect)
    read = gemini.read_request(gemini.parse_request(json.dumps(body).encode()))
    return BY_SETTING[target].write_request(read, Quirks(default_max_tokens=9)).body


@pytest.mark.parametrize("target", ["openai", "responses", "anthropic", "cohere", "bedrock"])
def test_an_image_that_only_gemini_takes_is_refused_elsewhere(target: str) -> None:
    with pytest.raises(
        InvalidRequest, match=r"(?i)^content of type image \(image/heic\): .* of \w"
    ):
        shown(target, HEIC)
    assert b"webp" in shown(target, WEBP)
    assert b"image/HEIC" in shown("gemini", HEIC)


def test_a_file_that_cohere_does_not_take_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"^content of type file \(application/pdf\): "):
        shown("cohere", PDF)


@pytest.mark.parametrize("target", ["anthropic", "bedrock"])
@pytest.mark.parametrize("name", ["$filter", "filter[id]", "a b", "ä", "", "x" * 65, "a\n"])
def test_an_argument_that_claude_refuses_is_named(target: str, name: str) -> None:
    def write(model: str, argument: str) -> bytes:
        schema = {"type": "object", "properties": {"path": {}, argument: {"type": "string"}}}
        tool = {"type": "function", "function": {"name": "list", "parameters": schema}}
        fields = {"model": model, "messages": [USER], "tools": [tool]}
        openai = BY_SETTING["openai"]
        assert isinstance(openai, Dialect)
        request = openai.parse_request(json.dumps(fields).encode())
        read = openai.read_request(request)
        return BY_SETTING[target].write_request(read, Quirks(default_max_tokens=9)).body

    with pytest.raises(InvalidRequest) as refused:
        write("eu.anthropic.claude-sonnet-4-5", name)
    assert json.dumps(name, ensure_ascii=False)[:80].removesuffix('"') in str(refused.value)
    assert "of list: cannot be expressed" in str(refused.value)
    assert b'"list"' in write("another-model", name)
    for allowed in ("x" * 64, "a.B-c_9"):
        assert b'"list"' in write("claude-x", allowed)


def told(target: str, drops: tuple[str, ...], **fields: Any) -> WrittenRequest:
    """Return what a provider of another API gets for a request of Responses."""
    responses, quirks = BY_SETTING["responses"], Quirks(drops=drops, default_max_tokens=9)
    assert isinstance(responses, Dialect)
    request = responses.parse_request(json.dumps({"model": "m", **fields}).encode())
    asked = without_dropped_tools(responses.read_request(request), quirks)
    return BY_SETTING[target].write_request(portable_request(asked, quirks), quirks)


@pytest.mark.parametrize("target", ["openai", "anthropic", "gemini", "bedrock", "cohere"])
def test_what_a_dropped_tool_did_earlier_is_left_out_with_it(target: str) -> None:
    said = [ASKS, REASONED, SEARCHED, ANSWER, SEARCHED, CALL, OUTPUT, SEARCHED, ANSWER, ASKS]
    written = told(target, ("web_search",), input=said, tools=[LOOK, SEARCH])
    assert b"web_search" not in written.body
    assert "web_search" in written.dropped
    left = [item for item in said if item is not SEARCHED]
    assert written.body == told(target, (), input=left, tools=[LOOK]).body


@pytest.mark.parametrize(
    ("drops", "kind"),
    [
        ("web_search_preview_2025_03_11", "web_search_call"),
        ("mcp", "mcp_list_tools"),
        ("mcp", "mcp_call"),
        ("code_interpreter", "code_interpreter_call"),
        ("local_shell", "local_shell_call_output"),
        ("computer_use_preview", "computer_call"),
        ("programmatic_tool_calling", "program"),
        ("programmatic_tool_calling", "program_output"),
    ],
)
def test_the_work_of_each_tool_of_the_provider_is_known(drops: str, kind: str) -> None:
    said = [ASKS, {"type": kind, "id": "x"}, ANSWER, ASKS]
    assert drops in told("openai", (drops,), input=said).dropped
    for others in ((), ("search",), ("web",), ("None",)):
        with pytest.raises(InvalidRequest, match=rf"^content of type {kind}: .*drops = \["):
            told("openai", others, input=said)


def test_the_error_names_the_setting_that_leaves_a_search_out() -> None:
    with pytest.raises(InvalidRequest) as refused:
        told("openai", (), input=[ASKS, SEARCHED, ASKS])
    assert 'drops = ["web_search"]' in str(refused.value)


def test_a_search_of_anthropic_in_the_conversation_is_left_out_with_it() -> None:
    result = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    text = {"type": "text", "text": "It rains."}
    content = [SERVER_USE, result, text]
    messages = [USER, {"role": "assistant", "content": content}, USER]
    fields = {"model": "m", "max_tokens": 9, "messages": messages}
    request = ANTHROPIC.parse_request(json.dumps(fields).encode())
    quirks = Quirks(drops=("web_search_20250305",))
    asked = without_dropped_tools(ANTHROPIC.read_request(request), quirks)
    written = json.loads(BY_SETTING["openai"].write_request(asked, quirks).body)
    assert [message["content"] for message in written["messages"]] == ["Hi", "It rains.", "Hi"]


@pytest.mark.parametrize(
    ("tool", "names", "results"),
    [
        (
            "code_execution_20250825",
            ["code_execution", "bash_code_execution", "text_editor_code_execution"],
            ["code_execution", "bash_code_execution", "text_editor_code_execution"],
        ),
        ("web_fetch_20250910", ["web_fetch"], ["web_fetch"]),
        ("tool_search_tool_regex_20251119", ["tool_search_tool_regex"], ["tool_search"]),
        ("advisor_20260301", ["advisor"], ["advisor"]),
        ("mcp_toolset", [], ["mcp"]),
    ],
)
def test_all_that_a_tool_of_anthropic_did_is_left_out_with_it(
    tool: str, names: list[str], results: list[str]
) -> None:
    content = [{"type": "server_tool_use", "id": "s", "name": name, "input": {}} for name in names]
    content += [
        {"type": f"{result}_tool_result", "tool_use_id": "s", "content": []} for result in results
    ]
    content += [{"type": "mcp_tool_use", "id": "t", "name": "x", "input": {}}] * (tool[:3] == "mcp")
    content.append({"type": "text", "text": "It rains."})
    messages = [USER, {"role": "assistant", "content": content}, USER]
    body = json.dumps({"model": "m", "max_tokens": 9, "messages": messages}).encode()
    read = ANTHROPIC.read_request(ANTHROPIC.parse_request(body))
    quirks = Quirks(drops=(tool,))
    written = BY_SETTING["openai"].write_request(without_dropped_tools(read, quirks), quirks)
    told = [message["content"] for message in json.loads(written.body)["messages"]]
    assert told == ["Hi", "It rains.", "Hi"]
    with pytest.raises(InvalidRequest, match=r"drops = \["):
        BY_SETTING["openai"].write_request(read, Quirks())


def test_code_that_gemini_ran_is_left_out_with_its_tool() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "print(1)"}}
    ran = [code, {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}}, {"text": "1."}]
    contents = [{"parts": [{"text": "Hi"}]}, {"role": "model", "parts": ran}]
    contents.append({"parts": [{"text": "Hi"}]})
    body = {"contents": contents, "tools": [{"codeExecution": {}}]}
    gemini = BY_SETTING["gemini"]
    assert isinstance(gemini, Dialect)
    read = gemini.read_request(gemini.parse_request(json.dumps(body).encode()))
    quirks = Quirks(drops=("codeExecution",))
    written = BY_SETTING["openai"].write_request(without_dropped_tools(read, quirks), quirks)
    told = [message["content"] for message in json.loads(written.body)["messages"]]
    assert told == ["Hi", "1.", "Hi"]
    assert written.dropped == ("codeExecution",)


def test_many_tools_are_left_out_in_linear_time() -> None:
    """By the square of their number, as it once was, they took half a minute."""
    tools = [{**SEARCH, "number": number} for number in range(30_000)]
    began = process_time()
    assert b"web_search" not in told("openai", ("web_search",), input=[ASKS], tools=tools).body
    assert process_time() - began < 4.0


ONLY_SEARCH = {"type": "allowed_tools", "mode": "auto", "tools": [SEARCH]}
BOTH = {"type": "allowed_tools", "mode": "required", "tools": [SEARCH, LOOK]}


@pytest.mark.parametrize(
    ("choice", "others", "left"),
    [
        (SEARCH, True, None),
        (SEARCH, False, None),
        (ONLY_SEARCH, True, "none"),
        (ONLY_SEARCH, False, None),
        (BOTH, True, {"type": "function", "function": {"name": "look"}}),
    ],
)
def test_the_choice_of_a_dropped_tool_goes_with_it(choice: Any, others: bool, left: Any) -> None:
    tools = [SEARCH, LOOK][: 1 + others]
    fields = {"input": [ASKS], "tools": tools, "tool_choice": choice}
    written = told("openai", ("web_search",), **fields)
    chosen = json.loads(written.body).get("tool_choice")
    if choice is BOTH:
        assert chosen["allowed_tools"] == {"mode": "required", "tools": [left]}
    else:
        assert chosen == left
        assert "tool_choice" in written.dropped
    with pytest.raises(InvalidRequest, match=r'type web_search: .*drops = \["web_search"\]'):
        told("openai", (), **fields)


def test_a_long_type_of_content_is_read_in_linear_time() -> None:
    """By the square of its length, 60 kB took 1.3 s, and all requests waited."""
    part = {"type": "code_execution_" * 20_000 + "!"}
    began = process_time()
    with pytest.raises(InvalidRequest, match=r"^content of type code_execution"):
        ask("openai", "anthropic", **said(part))
    assert process_time() - began < 2.0
