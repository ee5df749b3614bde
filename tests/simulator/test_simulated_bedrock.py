"""Bedrock's Converse in the simulator, read by the code of the cache, and counts of tokens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import types as gemini

from headstart.dialects.bedrock_converse import BEDROCK_CONVERSE
from headstart.lab.simulator import Oracle, Simulator
from headstart.lab.simulator.faults import Cut, ErrorFrame, Fault, InvalidEvent, Status
from headstart.middleware.reading import EventStream
from headstart.types import (
    Ended,
    ErrorReported,
    StreamEvent,
    Text,
    TextDelta,
    ToolCall,
    UsageReported,
)
from support.events import folded
from support.sidecar import Provider, sidecar
from support.simulated import exchange, simulated

if TYPE_CHECKING:
    from collections.abc import Iterable


pytestmark = pytest.mark.anyio

ASK = "I want to sign up for ChatGPT"
SAID = Oracle().truth(ASK).text
MODEL = "us.amazon.nova-2-lite-v1%3A0"
TOOL = {"toolSpec": {"name": "get_weather", "inputSchema": {"json": {"type": "object"}}}}


def asked(prompt: str = ASK, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"text": prompt}]}], **fields}


async def tell(
    operation: str, body: dict[str, Any], fault: Fault | None = None
) -> tuple[int, bytes]:
    headers = {"authorization": "Bearer k"}
    if fault is not None:
        headers["x-sim-fault"] = fault.header()
    async with simulated(Simulator()) as url:
        wire = await exchange(url, body, headers, f"/model/{MODEL}/{operation}")
    return wire.status, wire.body


def read(data: bytes) -> list[StreamEvent]:
    stream = EventStream(BEDROCK_CONVERSE, join_texts=False)
    return [event for _, found in stream.feed(data) for event in found]


def parts(events: Iterable[StreamEvent]) -> tuple[Any, ...]:
    return folded(events).choices[0].parts


async def test_both_forms_say_the_same() -> None:
    _, whole = await tell("converse", asked())
    _, stream = await tell("converse-stream", asked())
    said = BEDROCK_CONVERSE.decode_body(200, whole)
    streamed = read(stream)
    assert parts(said) == parts(streamed) == (Text(text=SAID),)
    usage = [[e for e in each if isinstance(e, UsageReported)] for each in (said, streamed)]
    assert usage[0] == usage[1]
    assert usage[0][0].usage["inputTokens"] == -(-len(ASK) // 4)
    assert isinstance(streamed[-1], Ended)


async def test_tools_are_called() -> None:
    fields = {"toolConfig": {"tools": [TOOL], "toolChoice": {"any": {}}}}
    for operation in ("converse", "converse-stream"):
        _, body = await tell(operation, asked("Weather?", **fields))
        events = (
            read(body) if operation.endswith("stream") else BEDROCK_CONVERSE.decode_body(200, body)
        )
        (call,) = parts(events)
        assert isinstance(call, ToolCall)
        assert call.name == "get_weather"
        assert json.loads(call.arguments) == {}


@pytest.mark.parametrize(
    "fault", [Cut(after=2, how="close"), ErrorFrame(after=2), InvalidEvent(after=2)]
)
async def test_faults_come_in_its_form(fault: Fault) -> None:
    _, body = await tell("converse-stream", asked(), fault)
    events = read(body)
    errors = [event for event in events if isinstance(event, ErrorReported)]
    assert len(errors) == (not isinstance(fault, Cut))
    said = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert said
    assert SAID.startswith(said)
    if not isinstance(fault, InvalidEvent):  # after this one the stream goes on
        assert not any(isinstance(event, Ended) for event in events)


async def test_errors_are_errors_of_bedrock() -> None:
    status, body = await tell("converse", asked(), Status(status=503))
    assert status == 503
    assert json.loads(body).keys() == {"message"}
    assert (await tell("converse", {"messages": []}))[0] == 400


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_of_openai_reaches_it_through_the_sidecar(
    monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.delenv("AWS_BEARER_TOKEN_BEDROCK", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    provider = Provider(api_keys=["AKID"])
    async with sidecar(provider, upstream={"preset": "bedrock", "region": "us-east-1"}) as running:
        async with openai.AsyncOpenAI(
            base_url=f"{running.url}/v1", api_key="k", max_retries=0
        ) as client:
            for _ in range(2):
                messages: Any = [{"role": "user", "content": ASK}]
                if stream:
                    async with client.chat.completions.stream(model="m", messages=messages) as got:
                        answer: Any = await got.get_final_completion()
                else:
                    answer = await client.chat.completions.create(model="m", messages=messages)
                assert answer.choices[0].message.content == SAID
        assert running.provider.calls == 1


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
async def test_sdks_count_tokens() -> None:
    text = "How many tokens are these?"
    async with simulated(Simulator()) as url:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client:
            found = await client.messages.count_tokens(
                model="m", messages=[{"role": "user", "content": text}]
            )
        google = genai.Client(
            api_key="k", vertexai=False, http_options=gemini.HttpOptions(base_url=url)
        ).aio
        try:
            counted = await google.models.count_tokens(model="m", contents=text)
        finally:
            await google.aclose()
    assert found.input_tokens == counted.total_tokens == -(-len(text) // 4)


async def test_bedrock_counts_tokens_and_refuses_in_its_form() -> None:
    status, body = await tell("count-tokens", {"input": {"converse": asked()}})
    assert (status, json.loads(body)) == (200, {"inputTokens": -(-len(ASK) // 4)})
    status, body = await tell("count-tokens", {"input": {}})
    assert (status, json.loads(body).keys()) == (400, {"message"})
