"""The other dialects on the wire, read without a client that would smooth things over."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from headstart.lab.simulator import Oracle, ProviderProfile, Simulator
from headstart.lab.simulator.faults import (
    Cut,
    Empty,
    ErrorFrame,
    Filtered,
    InvalidEvent,
    LongLine,
    NoDone,
    Stall,
    Status,
)
from headstart.lab.simulator.oracle import split_tokens
from support.simulated import Wire, chat, exchange, simulated

if TYPE_CHECKING:
    from headstart.lab.simulator.faults import Fault

pytestmark = pytest.mark.anyio

ASK = "I want to sign up for ChatGPT"
SAID = Oracle().truth(ASK).text
TOKENS = split_tokens(SAID)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
ARGUMENTS = {"city": "example", "days": 1}
DIALECTS = ("anthropic", "gemini", "cohere", "responses")


class Asked(NamedTuple):
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


def ask(dialect: str, prompt: str = ASK, *, stream: bool = True, tools: bool = False) -> Asked:
    """Return one question in a dialect."""
    if dialect == "gemini":
        method = "streamGenerateContent?alt=sse" if stream else "generateContent"
        body: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": prompt}]}]}
        if tools:
            declared = {"name": "get_weather", "parameters": SCHEMA}
            body["tools"] = [{"functionDeclarations": [declared]}]
        return Asked(f"/v1beta/models/m:{method}", {"x-goog-api-key": "k"}, body)
    if dialect == "responses":
        body = {"model": "m", "input": prompt, "stream": stream}
        if tools:
            body["tools"] = [{"type": "function", "name": "get_weather", "parameters": SCHEMA}]
        return Asked("/v1/responses", {"authorization": "Bearer k"}, body)
    body = chat(prompt, stream=stream)
    if dialect == "anthropic":
        body["max_tokens"] = 1000
        if tools:
            body["tools"] = [{"name": "get_weather", "input_schema": SCHEMA}]
        headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
        return Asked("/v1/messages", headers, body)
    if tools:
        function = {"name": "get_weather", "parameters": SCHEMA}
        body["tools"] = [{"type": "function", "function": function}]
    return Asked("/v2/chat", {"authorization": "Bearer k"}, body)


async def tell(
    asked: Asked, simulator: Simulator | None = None, fault: Fault | None = None
) -> Wire:
    """Return what a simulator answers."""
    headers = asked.headers if fault is None else asked.headers | {"x-sim-fault": fault.header()}
    async with simulated(simulator or Simulator()) as url:
        return await exchange(url, asked.body, headers, asked.path)


def events(wire: Wire) -> list[dict[str, Any]]:
    """Return the data of every event, which must all be JSON."""
    lines = wire.body.decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


def text_of(event: dict[str, Any]) -> str:
    """Return the text that an event of any of the dialects adds."""
    if "candidates" in event:
        return "".join(
            part.get("text", "")
            for candidate in event["candidates"]
            for part in candidate["content"]["parts"]
        )
    delta = event.get("delta", {})
    if isinstance(delta, str):
        return delta
    if event.get("type") == "content-delta":
        return str(delta["message"]["content"]["text"])
    return str(delta.get("text", ""))


async def test_anthropic_streams_named_events_in_order() -> None:
    wire = await tell(ask("anthropic"))
    names = [line[7:] for line in wire.body.decode().splitlines() if line.startswith("event: ")]
    told = events(wire)
    assert names == [event["type"] for event in told]
    assert names[:3] == ["message_start", "content_block_start", "ping"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(map(text_of, told)) == SAID
    assert told[-2]["delta"]["stop_reason"] == "end_turn"
    assert told[-2]["usage"]["output_tokens"] == len(TOKENS)
    assert told[0]["message"]["usage"]["input_tokens"] == 8


async def test_responses_stream_numbered_events_in_order() -> None:
    asked = ask("responses")
    asked.body["reasoning"] = {"effort": "low", "summary": "auto"}
    wire = await tell(asked)
    names = [line[7:] for line in wire.body.decode().splitlines() if line.startswith("event: ")]
    told = events(wire)
    assert names == [event["type"] for event in told]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    kinds = [name.removeprefix("response.") for name in names if not name.endswith(".delta")]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    said = [e for e in told if e["type"] == "response.output_text.delta"]
    assert "".join(map(text_of, said)) == SAID
    last = told[-1]["response"]
    assert last["usage"]["output_tokens"] == len(TOKENS) + 20
    whole = json.loads((await tell(asked._replace(body={**asked.body, "stream": False}))).body)
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message"]
    assert whole["output"][1]["content"] == last["output"][1]["content"]


async def test_a_response_that_is_cut_is_incomplete() -> None:
    asked = ask("responses", stream=False)
    cut = json.loads((await tell(asked._replace(body={**asked.body, "max_output_tokens": 3}))).body)
    assert (cut["status"], cut["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )


async def test_gemini_streams_crlf_frames_with_cumulative_usage() -> None:
    wire = await tell(ask("gemini"))
    assert b"\r\n\r\ndata: " in wire.body
    told = events(wire)
    assert "".join(map(text_of, told)) == SAID
    counts = [event["usageMetadata"]["candidatesTokenCount"] for event in told]
    assert counts == [*range(1, len(TOKENS) + 1), len(TOKENS)]
    finishes = [event["candidates"][0].get("finishReason") for event in told]
    assert finishes == [None] * len(TOKENS) + ["STOP"]
    assert len({event["responseId"] for event in told}) == 1


async def test_gemini_without_sse_streams_a_json_array() -> None:
    asked = ask("gemini")
    wire = await tell(asked._replace(path=asked.path.partition("?")[0]))
    assert "".join(map(text_of, json.loads(wire.body))) == SAID


async def test_cohere_streams_parts_between_message_start_and_end() -> None:
    told = events(await tell(ask("cohere")))
    kinds = [event["type"] for event in told]
    assert kinds[:2] == ["message-start", "content-start"]
    assert kinds[-2:] == ["content-end", "message-end"]
    assert "".join(map(text_of, told[2:])) == SAID
    assert told[-1]["delta"]["finish_reason"] == "COMPLETE"
    assert told[-1]["delta"]["usage"]["tokens"]["output_tokens"] == len(TOKENS)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_every_dialect_says_the_same_unstreamed(dialect: str) -> None:
    told = json.loads((await tell(ask(dialect, stream=False))).body)
    said = {
        "anthropic": lambda: told["content"][0]["text"],
        "gemini": lambda: told["candidates"][0]["content"]["parts"][0]["text"],
        "cohere": lambda: told["message"]["content"][0]["text"],
        "responses": lambda: told["output"][0]["content"][0]["text"],
    }[dialect]()
    assert said == SAID


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_prompt_that_mentions_a_tool_calls_it(dialect: str, stream: bool) -> None:
    asked = ask(dialect, "What is the weather in Ulm?", stream=stream, tools=True)
    wire = await tell(asked)
    if dialect == "gemini":
        told = events(wire)[0] if stream else json.loads(wire.body)
        (part,) = told["candidates"][0]["content"]["parts"]
        called = part["functionCall"]["name"], part["functionCall"]["args"]
    elif stream:
        called = _streamed_call(events(wire))
    else:
        message = json.loads(wire.body)
        if dialect == "anthropic":
            assert message["stop_reason"] == "tool_use"
            called = message["content"][0]["name"], message["content"][0]["input"]
        elif dialect == "responses":
            (item,) = message["output"]
            called = item["name"], json.loads(item["arguments"])
        else:
            assert message["finish_reason"] == "TOOL_CALL"
            function = message["message"]["tool_calls"][0]["function"]
            called = function["name"], json.loads(function["arguments"])
    assert called == ("get_weather", ARGUMENTS)


def _streamed_call(told: list[dict[str, Any]]) -> tuple[str, Any]:
    name, arguments = "", ""
    for event in told:
        if event["type"] == "content_block_start":
            name = event["content_block"]["name"]
        if event["type"] == "tool-call-start":
            name = event["delta"]["message"]["tool_calls"]["function"]["name"]
        if event["type"] == "tool-call-delta":
            arguments += event["delta"]["message"]["tool_calls"]["function"]["arguments"]
        if event["type"] == "response.output_item.added":
            name = event["item"]["name"]
        if event["type"] == "response.function_call_arguments.delta":
            arguments += event["delta"]
        elif event["type"] == "content_block_delta":
            arguments += event["delta"].get("partial_json", "")
    return name, json.loads(arguments)


async def test_a_conversation_with_tools_is_one_conversation_in_every_dialect() -> None:
    ask_it = "What is the weather in Ulm?"
    openai = chat(ask_it)
    openai["messages"] += [
        {"role": "assistant", "content": None},
        {"role": "tool", "tool_call_id": "c", "content": "rain"},
    ]
    claude = ask("anthropic", ask_it)
    claude.body["messages"] += [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "n"}]},
        {"role": "user", "content": [{"type": "tool_result", "content": "rain"}]},
    ]
    gemini = ask("gemini", ask_it)
    gemini.body["contents"] += [
        {"role": "model", "parts": [{"functionCall": {"name": "n", "args": {}}}]},
        {"parts": [{"functionResponse": {"name": "n", "response": {"output": "rain"}}}]},
    ]
    cohere = ask("cohere", ask_it)
    cohere.body["messages"] = openai["messages"]
    responses = ask("responses", ask_it)
    responses.body["input"] = [
        {"role": "user", "content": ask_it},
        {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "rain"},
    ]
    asked = [Asked("/v1/chat/completions", {}, openai), claude, gemini, cohere, responses]
    classes = set()
    for one in asked:
        wire = await tell(one)
        classes |= {line for line in wire.head.split(b"\r\n") if line.startswith(b"x-sim-class")}
    assert len(classes) == 1


async def test_thinking_comes_first_and_is_signed() -> None:
    asked = ask("anthropic")
    asked.body["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    told = events(await tell(asked))
    deltas = [event["delta"]["type"] for event in told if event["type"] == "content_block_delta"]
    assert deltas[0] == "thinking_delta"
    assert deltas.count("signature_delta") == 1
    gemini = ask("gemini")
    gemini.body["generationConfig"] = {"thinkingConfig": {"includeThoughts": True}}
    first, *_, last = events(await tell(gemini))
    assert first["candidates"][0]["content"]["parts"][0]["thought"] is True
    assert last["usageMetadata"]["thoughtsTokenCount"] >= 20


@pytest.mark.parametrize(
    ("fields", "version", "message"),
    [
        ({}, None, "anthropic-version"),
        ({"max_tokens": None}, "2023-06-01", "max_tokens"),
        ({"temperature": 0}, "2026-10-21", "not supported by this version"),
    ],
)
async def test_anthropic_refuses_what_it_must(
    fields: dict[str, Any], version: str | None, message: str
) -> None:
    asked = ask("anthropic")
    headers = {} if version is None else {"anthropic-version": version}
    body = {name: value for name, value in (asked.body | fields).items() if value is not None}
    wire = await tell(Asked(asked.path, headers, body))
    refused = json.loads(wire.body)
    assert (wire.status, refused["error"]["type"]) == (400, "invalid_request_error")
    assert message in refused["error"]["message"]


@pytest.mark.parametrize(
    ("dialect", "status"),
    [("anthropic", 401), ("gemini", 400), ("cohere", 401), ("responses", 401)],
)
async def test_an_unknown_key_is_refused_in_dialect(dialect: str, status: int) -> None:
    assert (await tell(ask(dialect), Simulator(api_keys=["k"]))).status == 200
    wire = await tell(ask(dialect), Simulator(api_keys=["other"]))
    assert wire.status == status
    if dialect == "gemini":
        assert json.loads(wire.body)["error"]["details"][0]["reason"] == "API_KEY_INVALID"


@pytest.mark.parametrize(
    ("dialect", "status", "path", "value"),
    [
        ("anthropic", 529, ("error", "type"), "overloaded_error"),
        ("anthropic", 429, ("error", "type"), "rate_limit_error"),
        ("gemini", 503, ("error", "status"), "UNAVAILABLE"),
        ("gemini", 429, ("error", "code"), 429),
        ("cohere", 500, ("message",), "oops"),
        ("responses", 429, ("error", "message"), "oops"),
    ],
)
async def test_an_error_status_has_the_dialects_body(
    dialect: str, status: int, path: tuple[str, ...], value: object
) -> None:
    wire = await tell(ask(dialect), fault=Status(status=status, message="oops"))
    assert wire.status == status
    found: Any = json.loads(wire.body)
    for name in path:
        found = found[name]
    assert found == value


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_faults_strike_every_dialect_after_the_fifth_token(dialect: str) -> None:
    cut = await tell(ask(dialect), fault=Cut(after=5))
    assert cut.ended == "reset"
    assert "".join(map(text_of, events(cut))) == "".join(TOKENS[:5])
    failed = events(await tell(ask(dialect), fault=ErrorFrame(after=5, message="oops")))
    assert "oops" in json.dumps(failed[-1])
    with pytest.raises(json.JSONDecodeError):
        events(await tell(ask(dialect), fault=InvalidEvent(after=5)))
    long = await tell(ask(dialect), fault=LongLine(after=5, bytes=100_000))
    assert "".join(map(text_of, events(long))) == SAID
    assert max(map(len, long.body.splitlines())) > 100_000


@pytest.mark.parametrize(
    ("dialect", "last"),
    [
        ("anthropic", "message_stop"),
        ("cohere", "message-end"),
        ("responses", "response.completed"),
    ],
)
async def test_the_last_event_can_be_missing_or_alone(dialect: str, last: str) -> None:
    (alone,) = events(await tell(ask(dialect), fault=Empty(done=True)))
    assert alone["type"] == last
    assert last not in [event["type"] for event in events(await tell(ask(dialect), fault=NoDone()))]


@pytest.mark.parametrize(
    ("dialect", "finish"),
    [
        ("anthropic", "refusal"),
        ("gemini", "SAFETY"),
        ("cohere", "ERROR"),
        ("responses", "content_filter"),
    ],
)
async def test_a_filtered_answer_says_nothing_but_why(dialect: str, finish: str) -> None:
    wire = await tell(ask(dialect), fault=Filtered())
    assert wire.status == 200
    told = events(wire)
    assert "".join(map(text_of, told)) == ""
    assert f'"{finish}"' in json.dumps(told[-2:])


async def test_a_filtered_openai_answer_has_no_content() -> None:
    wire = await tell(Asked("/v1/chat/completions", {}, chat(ASK, stream=True)), fault=Filtered())
    assert wire.text == ""
    assert '"finish_reason":"content_filter"' in wire.body.decode()


async def test_a_stall_can_be_kept_alive() -> None:
    fault = Stall(after=5, seconds=3, keep_alive_s=1)
    told = events(await tell(ask("anthropic"), Simulator(speed=1000), fault))
    assert [event["type"] for event in told].count("ping") == 1 + 3
    openai = Asked("/v1/chat/completions", {}, chat(ASK, stream=True))
    wire = await tell(openai, Simulator(speed=1000), fault)
    assert wire.body.count(b": PROCESSING\n\n") == 3
    assert wire.text == SAID


async def test_an_answer_can_be_continued_where_the_profile_says_so() -> None:
    half = "".join(TOKENS[:5])
    asked = ask("anthropic")
    asked.body["messages"].append({"role": "assistant", "content": half})
    continued = await tell(asked, Simulator(ProviderProfile(model="m", prefill="continued")))
    assert half + "".join(map(text_of, events(continued))) == SAID
    refused = await tell(asked, Simulator(ProviderProfile(model="m", prefill="refused")))
    assert refused.status == 400
    assert "prefill" in json.loads(refused.body)["error"]["message"]


async def test_more_candidates_than_gemini_gives_are_refused() -> None:
    gemini = ask("gemini", stream=False)
    gemini.body["generationConfig"] = {"candidateCount": 100_000}
    refused = await tell(gemini, Simulator())
    assert refused.status == 400
    assert "candidateCount" in json.loads(refused.body)["error"]["message"]


async def test_structured_output_and_limits_are_read_from_every_dialect() -> None:
    claude = ask("anthropic", stream=False)
    claude.body["output_config"] = {"format": {"type": "json_schema", "schema": SCHEMA}}
    gemini = ask("gemini", stream=False)
    upper = {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}, "required": ["city"]}
    wanted = {"responseMimeType": "application/json", "responseSchema": upper}
    gemini.body["generationConfig"] = wanted
    cohere = ask("cohere", stream=False)
    cohere.body["response_format"] = {"type": "json_object", "json_schema": SCHEMA}
    assert '{\\"city\\":\\"example\\"' in (await tell(claude)).body.decode()
    assert '{\\"city\\":\\"example\\"}' in (await tell(gemini)).body.decode()
    assert '{\\"city\\":\\"example\\"' in (await tell(cohere)).body.decode()
    gemini.body["generationConfig"] = {"maxOutputTokens": 5}
    (candidate,) = json.loads((await tell(gemini)).body)["candidates"]
    assert candidate["finishReason"] == "MAX_TOKENS"
    assert candidate["content"]["parts"][0]["text"] == "".join(TOKENS[:5])


async def test_log_probabilities_belong_to_their_tokens_and_to_the_class() -> None:
    gemini = ask("gemini", stream=False)
    gemini.body["generationConfig"] = {"responseLogprobs": True, "logprobs": 2}
    (candidate,) = json.loads((await tell(gemini)).body)["candidates"]
    chosen = candidate["logprobsResult"]["chosenCandidates"]
    assert [entry["token"] for entry in chosen] == list(TOKENS)
    assert all(len(row["candidates"]) == 2 for row in candidate["logprobsResult"]["topCandidates"])
    cohere = ask("cohere")
    cohere.body["logprobs"] = True
    told = events(await tell(cohere))
    rows = [event["logprobs"] for event in told if event["type"] == "content-delta"]
    values = [row["logprobs"][0] for row in rows]
    assert values == [entry["logProbability"] for entry in chosen]
    assert -0.8 < sum(values) / len(values) < 0
