"""Custom tools, whose input is free text, and searches for tools, at providers without them."""

from __future__ import annotations

import json
import tracemalloc
from itertools import pairwise
from time import process_time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headstart.canonical_request import Quirks, portable_request
from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.dialects.openai_responses import OPENAI_RESPONSES
from headstart.dialects.registry import BY_SETTING
from headstart.errors import InvalidRequest
from headstart.middleware.translated_reading import AnswerNames, Reencoder
from headstart.types import Ended, Finished, Started, TextDelta, ToolCall, ToolCallDelta
from support.events import decoded, encoded, folded

RULES = 'start: "*** Begin Patch" LF'
GRAMMAR = {"syntax": "lark", "definition": RULES}
TOOL = {"name": "patch", "description": "Edits files."}
CHAT_TOOL = {
    "type": "custom",
    "custom": {**TOOL, "format": {"type": "grammar", "grammar": GRAMMAR}},
}
RESPONSES_TOOL = {"type": "custom", **TOOL, "format": {"type": "grammar", **GRAMMAR}}
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
INPUT = '*** Begin Patch\n+"Grüße" \U0001f600\t\\n'
HI = {"role": "user", "content": "Hi"}
CALL = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "patch", "input": INPUT}
RESULT = {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"}
ASKED: dict[str, dict[str, Any]] = {
    "responses": {"input": [HI, CALL, RESULT], "tools": [RESPONSES_TOOL, LOOK]},
    "openai": {
        "messages": [
            HI,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c1", "type": "custom", "custom": {"name": "patch", "input": INPUT}}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "done"},
        ],
        "tools": [CHAT_TOOL],
    },
}
CHOICES: dict[str, dict[str, Any]] = {
    "responses": {"type": "custom", "name": "patch"},
    "openai": {"type": "custom", "custom": {"name": "patch"}},
}
CLIENTS = {"responses": OPENAI_RESPONSES, "openai": OPENAI_CHAT}
TARGETS = ["anthropic", "gemini", "bedrock", "cohere", "openai", "responses"]
WAYS = [(client, target) for client in CLIENTS for target in TARGETS if client != target]


def sent(client: str, target: str, **fields: Any) -> dict[str, Any]:
    """Return the request that the target gets for a request of the client."""
    quirks, dialect = Quirks(default_max_tokens=9), CLIENTS[client]
    request = dialect.parse_request(json.dumps({"model": "m", **fields}).encode())
    asked = portable_request(dialect.read_request(request), quirks)
    written = BY_SETTING[target].write_request(asked, quirks)
    document: dict[str, Any] = json.loads(written.body)
    return document


def objects(value: Any) -> list[dict[str, Any]]:
    """Return all objects within a value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = [value] if isinstance(value, dict) else []
    return [*own, *(found for each in inner for found in objects(each))]


@pytest.mark.parametrize(("client", "target"), WAYS)
def test_a_custom_tool_becomes_a_function_that_takes_its_text(client: str, target: str) -> None:
    written = sent(client, target, **ASKED[client], tool_choice=CHOICES[client])
    everything = objects(written)
    [function] = [o for o in everything if o.get("name") == "patch" and "description" in o]
    assert function["description"].startswith("Edits files.\n\n")
    assert "`input`" in function["description"]
    assert function["description"].endswith(f"(lark):\n{RULES}")
    [schema] = [o for o in objects(function) if "properties" in o and "input" in o["properties"]]
    assert schema["properties"]["input"]["type"].lower() == "string"
    assert schema["required"] == ["input"]
    told = json.dumps(written)
    assert '"custom' not in told
    named = [o for o in everything if o.get("name") == "patch" and "description" not in o]
    said = [json.loads(o["arguments"]) for o in named if "arguments" in o]
    said += [o[field] for o in named for field in ("input", "args") if field in o]
    assert said == [{"input": INPUT}]
    assert "(no result)" not in told


@pytest.mark.parametrize("client", CLIENTS)
def test_a_custom_tool_needs_a_name_and_a_grammar_its_rules(client: str) -> None:
    tool: dict[str, Any] = {"format": {"type": "grammar"}}
    for message, name in (("name: ", {}), ("definition: ", {"name": "a"})):
        own = {**tool, **name}
        tools = [{"type": "custom", **(own if client == "responses" else {"custom": own})}]
        with pytest.raises(InvalidRequest, match=message):
            sent(client, "anthropic", **{**ASKED[client], "tools": tools})


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("first", [0, 1])
def test_a_function_with_the_name_of_a_custom_tool_is_refused(client: str, first: int) -> None:
    """Elsewhere both would be functions, and the client would get each call as a custom one."""
    function = {"name": "patch", "parameters": LOOK["parameters"]}
    if client == "responses":
        tools = [RESPONSES_TOOL, {"type": "function", **function}]
    else:
        tools = [CHAT_TOOL, {"type": "function", "function": function}]
    asked = {**ASKED[client], "tools": [tools[first], tools[1 - first]]}
    with pytest.raises(InvalidRequest, match=r"\bpatch\b"):
        sent(client, "anthropic", **asked)
    for tool in tools:
        assert sent(client, "anthropic", **{**ASKED[client], "tools": [tool]})


def test_a_function_with_the_name_of_the_search_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="two tools with the name tool_search"):
        sent("responses", "openai", input=[HI], tools=[SEARCH, {**LOOK, "name": "tool_search"}])


def test_a_custom_tool_of_a_namespace_is_found_again() -> None:
    space = {"type": "namespace", "name": "git", "description": "x", "tools": [RESPONSES_TOOL]}
    asked: dict[str, Any] = {"input": [HI, {**CALL, "namespace": "git"}, RESULT], "tools": [space]}
    written = sent("responses", "openai", **asked)
    assert written["tools"][0]["function"]["name"] == "git__patch"
    assert written["messages"][1]["tool_calls"][0]["function"]["name"] == "git__patch"
    form, document = OPENAI_RESPONSES.form, {"model": "m", **asked}
    assert form.call_kinds(document) == {"git__patch": "custom"}
    assert form.tool_names(document) == {"git__patch": ("git", "patch")}


def test_a_custom_tool_with_a_name_that_others_refuse_is_found_again() -> None:
    tool = {"type": "custom", "custom": {"name": "edit.file"}}
    form = OPENAI_CHAT.form
    [(short, kind)] = form.call_kinds({"tools": [tool]}).items()
    assert kind == "custom"
    assert form.tool_names({"tools": [tool]}) == {short: ("", "edit.file")}


def test_tools_named_custom_by_anthropic_are_functions() -> None:
    tools = [{"type": "custom", "name": "look", "input_schema": {"type": "object"}}]
    assert ANTHROPIC_MESSAGES.form.call_kinds({"tools": tools}) == {}


# --- answers ---------------------------------------------------------------------------------


def answered(client: str, pieces: list[str]) -> tuple[list[ToolCall], list[str]]:
    """Return the calls that a client reads from a stream of Anthropic's, and the pieces of text.

    The model calls ``patch`` with arguments that come in these pieces.
    """
    target = CLIENTS[client]
    events: list[Any] = [
        Started(id="i", model="m"),
        *(
            ToolCallDelta(index=0, id=None if n else "t1", name=None if n else "patch", arguments=p)
            for n, p in enumerate(["", *pieces])
        ),
        Finished(reason="tool_calls"),
        Ended(),
    ]
    naming = AnswerNames("01H", "id-1", 7, call_kinds={"patch": "custom"})
    encoder = target.encoder("id-1", 7, include_usage=True)
    reader = Reencoder(ANTHROPIC_MESSAGES, target, naming, encoder)
    written = reader.feed(encoded(ANTHROPIC_MESSAGES, events)).data + reader.end().data
    read = decoded(target, written)
    parts = folded(read).choices[0].parts
    deltas = [each.arguments for each in read if isinstance(each, ToolCallDelta)]
    return [part for part in parts if isinstance(part, ToolCall)], deltas


@given(
    text=st.text(st.characters(codec="utf-8")),
    cuts=st.lists(st.integers(0, 400)),
    ascii=st.booleans(),
    spaces=st.sampled_from(("", " ", "\n  ")),
)
@example(text="\U0001f600", cuts=list(range(60)), ascii=True, spaces="")
@example(text='"\\u\\ud83d"\\', cuts=list(range(60)), ascii=True, spaces=" ")
@pytest.mark.parametrize("client", CLIENTS)
def test_the_text_of_a_call_is_the_clients_again_however_it_is_cut(
    client: str, text: str, cuts: list[int], ascii: bool, spaces: str
) -> None:
    whole = f'{spaces}{{{spaces}"input"{spaces}:{spaces}{json.dumps(text, ensure_ascii=ascii)}}}'
    places = sorted({0, *(cut for cut in cuts if cut < len(whole)), len(whole)})
    pieces = [whole[a:b] for a, b in pairwise(places)]
    [call], _ = answered(client, pieces)
    assert (call.kind, call.name, call.arguments) == ("custom", "patch", text)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "a\\nb"}', "a\nb"),
        ('{"input": "a", "more": 1}', "a"),
        ('{"input": "cut of\\u00', "cut of"),
        ('{"input": "half \\ud83d"}', "half \ufffd"),
        ('{"input": "half \\ude00\\ud83dx"}', "half \ufffd\ufffdx"),
        ('{"input": "no JSON: \\d \\uxyz1 \n"}', "no JSON: \\d \\uxyz1 \n"),
        ('{"why": "b", "input": "a"}', "a"),
        ('{"input": ["a"]}', '{"input": ["a"]}'),
        ('{"patch": "a"}', "a"),
        ('{"a": "b", "c": "d"}', '{"a": "b", "c": "d"}'),
        ('"a\\nb"', "a\nb"),
        ("*** Begin Patch", "*** Begin Patch"),
        ("{} || {}", "{} || {}"),
        ("{}", ""),
        ("", ""),
        ("x" * 600, "x" * 600),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("client", CLIENTS)
def test_arguments_in_another_form_are_handed_on_as_text(
    client: str, size: int, arguments: str, text: str
) -> None:
    pieces = [arguments[at : at + size] for at in range(0, len(arguments), size)]
    [call], _ = answered(client, pieces)
    assert (call.kind, call.arguments) == ("custom", text)


def test_a_text_of_many_escapes_takes_little_memory() -> None:
    lines = "\n" * 200_000
    tracemalloc.start()
    try:
        [call], _ = answered("responses", [json.dumps({"input": lines})])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert call.arguments == lines
    assert most < 60 * len(lines)


def test_the_text_is_sent_as_it_comes() -> None:
    _, deltas = answered("responses", ['{"inp', 'ut": "one ', "two\\", 'n three"', "}"])
    assert [each for each in deltas if each] == ["one ", "two", "\n three"]


# --- searches for tools ----------------------------------------------------------------------

SEARCH: dict[str, Any] = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
}
FOUND: dict[str, Any] = {
    "type": "namespace",
    "name": "mcp__docs",
    "description": "The docs.",
    "tools": [{**LOOK, "defer_loading": True}],
}
SEARCHED: list[dict[str, Any]] = [
    HI,
    {
        "type": "tool_search_call",
        "call_id": "s1",
        "execution": "client",
        "arguments": {"query": "docs"},
        "status": "completed",
    },
    {
        "type": "tool_search_output",
        "call_id": "s1",
        "execution": "client",
        "tools": [FOUND],
        "status": "completed",
    },
]


def test_a_search_of_the_client_is_a_function_and_what_it_finds_can_be_called() -> None:
    again = [{**item, "call_id": "s2"} for item in SEARCHED[1:]]
    asked: dict[str, Any] = {"input": [*SEARCHED, *again], "tools": [LOOK, SEARCH]}
    written = sent("responses", "openai", **asked)
    tools = [each["function"] for each in written["tools"]]
    assert [each["name"] for each in tools] == ["look", "tool_search", "mcp__docs__look"]
    assert tools[1]["parameters"] == SEARCH["parameters"]
    assert tools[2]["description"] == "The docs."
    call, result = written["messages"][1], written["messages"][2]
    assert call["tool_calls"][0]["function"] == {
        "name": "tool_search",
        "arguments": '{"query":"docs"}',
    }
    assert result["content"] == "Found the tool mcp__docs__look."
    form, document = OPENAI_RESPONSES.form, {"model": "m", **asked}
    assert form.tool_names(document) == {"mcp__docs__look": ("mcp__docs", "look")}
    assert form.call_kinds(document) == {"tool_search": "tool_search"}
    assert form.work_beside_text(document) is None


def test_the_description_of_a_namespace_is_told_once_however_its_tools_are_found() -> None:
    tools = [{**LOOK, "name": name, "description": name} for name in ("look", "list", "read")]
    listed, found = ({**FOUND, "tools": some} for some in (tools[:1], tools[1:]))
    output = {**SEARCHED[2], "tools": [found]}
    for offered, expected in (
        ([SEARCH], ["The docs.\n\nlist", "read"]),
        ([SEARCH, listed], ["The docs.\n\nlook", "list", "read"]),
    ):
        written = sent("responses", "openai", input=[*SEARCHED[:2], output], tools=offered)
        told = [each["function"]["description"] for each in written["tools"][1:]]
        assert told == expected


def test_a_search_may_find_tools_of_any_kind() -> None:
    tools = [{**LOOK, "name": "crm.look"}, RESPONSES_TOOL, LOOK]
    asked: dict[str, Any] = {"input": [*SEARCHED[:2], {**SEARCHED[2], "tools": tools}]}
    asked["tools"] = [SEARCH, LOOK]
    names = [each["function"]["name"] for each in sent("responses", "openai", **asked)["tools"]]
    assert names[:2] == ["tool_search", "look"]
    [short] = [name for name in names[2:] if name != "patch"]
    form = OPENAI_RESPONSES.form
    assert form.tool_names(asked) == {short: ("", "crm.look")}
    assert form.call_kinds(asked) == {"tool_search": "tool_search", "patch": "custom"}
    hosted = [*SEARCHED[:2], {**SEARCHED[2], "tools": [{"type": "web_search"}]}]
    with pytest.raises(InvalidRequest, match=r"^tools of type web_search: "):
        sent("responses", "openai", input=hosted, tools=[SEARCH])


def test_a_search_that_finds_nothing_has_a_result() -> None:
    nothing = [*SEARCHED[:2], {**SEARCHED[2], "tools": []}]
    written = sent("responses", "openai", input=nothing, tools=[SEARCH])
    assert written["messages"][2]["content"] == "Found no tool."


@pytest.mark.parametrize("tools", [[{"type": "tool_search"}], [{**SEARCH, "execution": "server"}]])
def test_a_search_of_the_provider_is_refused_elsewhere(tools: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^tools of type tool_search: "):
        sent("responses", "openai", input=[HI], tools=tools)
    assert OPENAI_RESPONSES.form.work_beside_text({"tools": tools}) == "hosted-tools"


def test_a_call_of_the_search_is_the_clients_again() -> None:
    pieces = ['{"query"', ':"docs"}']
    events: list[Any] = [
        Started(id="i", model="m"),
        ToolCallDelta(index=0, id="t1", name="tool_search"),
        *(ToolCallDelta(index=0, arguments=piece) for piece in pieces),
        Finished(reason="tool_calls"),
        Ended(),
    ]
    naming = AnswerNames("01H", "id-1", 7, call_kinds={"tool_search": "tool_search"})
    encoder = OPENAI_RESPONSES.encoder("id-1", 7, include_usage=True)
    reader = Reencoder(ANTHROPIC_MESSAGES, OPENAI_RESPONSES, naming, encoder)
    piece = reader.feed(encoded(ANTHROPIC_MESSAGES, events))
    written = piece.data + reader.end().data
    lines = [line[6:] for line in written.split(b"\n") if line.startswith(b"data: ")]
    told = list(map(json.loads, lines))
    [item] = [each["item"] for each in told if each["type"] == "response.output_item.done"]
    id = item.pop("id")
    assert id.startswith("tsc_")
    assert item == SEARCHED[1] | {"call_id": "t1"}
    whole = OPENAI_RESPONSES.write_body(folded(piece.events), "id-1", 7)
    assert json.loads(whole)["output"][0] == {"id": id, **item}


@pytest.mark.parametrize("source", [ANTHROPIC_MESSAGES, OPENAI_CHAT])
def test_a_search_is_sent_before_what_follows_it(source: Any) -> None:
    call = ToolCallDelta(index=1, id="t1", name="look", arguments="{}")
    search = [
        ToolCallDelta(index=0, id="t0", name="tool_search", arguments='{"query":'),
        ToolCallDelta(index=0, arguments='"}"}'),
    ]
    second = ToolCallDelta(index=2, id="t2", name="tool_search", arguments='{"query":"x"}')
    events: list[Any] = [Started(id="i", model="m"), *search, call, second]
    events += [
        TextDelta(text="And"),
        TextDelta(text=" so."),
        Finished(reason="tool_calls"),
        Ended(),
    ]
    naming = AnswerNames("01H", "id-1", 7, call_kinds={"tool_search": "tool_search"})
    encoder = OPENAI_RESPONSES.encoder("id-1", 7, include_usage=True)
    reader = Reencoder(source, OPENAI_RESPONSES, naming, encoder)
    piece = reader.feed(encoded(source, events))
    lines = (piece.data + reader.end().data).split(b"\n")
    told = [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]
    items = [each["item"] for each in told if each["type"] == "response.output_item.added"]
    kinds = ["tool_search_call", "function_call", "tool_search_call", "message"]
    assert [item["type"] for item in items] == kinds
    assert [item.get("call_id") for item in items[:3]] == ["t0", "t1", "t2"]
    assert items[0]["arguments"] == {"query": "}"}
    assert told[-1]["response"]["output"][0]["call_id"] == "t0"
    assert [item["type"] for item in told[-1]["response"]["output"]] == kinds
    assert [each["sequence_number"] for each in told] == list(range(len(told)))


def test_a_long_search_between_texts_is_read_in_linear_time() -> None:
    pieces = ['{"query":"', *("{}" * 100 for _ in range(8_000)), '"', "}", "\n"]
    events: list[Any] = [ToolCallDelta(index=0, id="t0", name="tool_search")]
    for piece in pieces:
        events += [ToolCallDelta(index=0, arguments=piece), TextDelta(text=".")]
    events += [Finished(reason="tool_calls"), Ended()]
    naming = AnswerNames("01H", "id-1", 7, call_kinds={"tool_search": "tool_search"})
    encoder = OPENAI_RESPONSES.encoder("id-1", 7, include_usage=True)
    reader = Reencoder(OPENAI_CHAT, OPENAI_RESPONSES, naming, encoder)
    stream = encoded(OPENAI_CHAT, [Started(id="i", model="m"), *events])
    began = process_time()
    lines = (reader.feed(stream).data + reader.end().data).split(b"\n")
    assert process_time() - began < 4.0
    told = json.loads(lines[-3].removeprefix(b"data: "))
    output = {item["type"]: item for item in told["response"]["output"]}
    assert output["tool_search_call"]["arguments"] == json.loads("".join(pieces))


def test_calls_are_whole_if_the_stream_ends_without_a_reason() -> None:
    """Some servers of Chat Completions leave out ``finish_reason``."""
    events: list[Any] = [
        Started(id="i", model="m"),
        ToolCallDelta(index=0, id="t0", name="patch", arguments='{"text": "a"}'),
        ToolCallDelta(index=1, id="t1", name="tool_search", arguments='{"query":"docs"}'),
        Ended(),
    ]
    kinds = {"patch": "custom", "tool_search": "tool_search"}
    naming = AnswerNames("01H", "id-1", 7, call_kinds=kinds)
    encoder = OPENAI_RESPONSES.encoder("id-1", 7, include_usage=True)
    reader = Reencoder(OPENAI_CHAT, OPENAI_RESPONSES, naming, encoder)
    lines = encoded(OPENAI_CHAT, events).splitlines(keepends=True)
    sent = b"".join(line for line in lines if b'finish_reason":"' not in line)
    written = reader.feed(sent).data + reader.end().data
    parts = folded(decoded(OPENAI_RESPONSES, written)).choices[0].parts
    [call] = [part for part in parts if isinstance(part, ToolCall)]
    assert (call.kind, call.arguments) == ("custom", "a")
    assert b'"type":"tool_search_call"' in written


def test_names_of_many_tools_are_compared_in_linear_time() -> None:
    functions = [{"type": "function", "function": {"name": f"look{n}"}} for n in range(12_000)]
    customs = [{"type": "custom", "custom": {"name": f"patch{n}"}} for n in range(12_000)]
    body = json.dumps({"model": "m", "messages": [HI], "tools": functions + customs}).encode()
    request = OPENAI_CHAT.parse_request(body)
    began = process_time()
    asked = OPENAI_CHAT.read_request(request)
    assert process_time() - began < 2.0
    assert len(asked.tools) == 24_000
