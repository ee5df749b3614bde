"""The anthropic client against the simulator: what it accepts is what the real one sends."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from headstart.lab.simulator import Oracle, Simulator
from headstart.lab.simulator.faults import ErrorFrame, Status
from support.simulated import simulated

pytestmark = pytest.mark.anyio

ASK: Any = [{"role": "user", "content": "I want to sign up for ChatGPT"}]
SAID = Oracle().truth("I want to sign up for ChatGPT").text
WEATHER: Any = {
    "name": "get_weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


def _client(url: str) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0)


async def test_a_message_and_a_stream_say_the_same() -> None:
    async with simulated(Simulator()) as url, _client(url) as client:
        whole = await client.messages.create(model="m", max_tokens=1000, messages=ASK)
        async with client.messages.stream(model="m", max_tokens=1000, messages=ASK) as stream:
            text = "".join([part async for part in stream.text_stream])
            final = await stream.get_final_message()
    assert text == SAID
    for message in (whole, final):
        (block,) = message.content
        assert block.type == "text"
        assert block.text == SAID
        assert message.stop_reason == "end_turn"
        assert message.usage.output_tokens == len(SAID.split())


async def test_tools_and_thinking_accumulate() -> None:
    messages: Any = [{"role": "user", "content": "What is the weather in Ulm?"}]
    async with simulated(Simulator()) as url, _client(url) as client:
        async with client.messages.stream(
            model="m", max_tokens=1000, messages=messages, tools=[WEATHER]
        ) as stream:
            called = await stream.get_final_message()
        async with client.messages.stream(
            model="m", max_tokens=1000, messages=ASK, thinking={"type": "adaptive"}
        ) as stream:
            thought = await stream.get_final_message()
    (block,) = called.content
    assert block.type == "tool_use"
    assert (block.name, block.input) == ("get_weather", {"city": "example"})
    assert called.stop_reason == "tool_use"
    assert [block.type for block in thought.content] == ["thinking", "text"]
    assert thought.content[0].type == "thinking"
    assert thought.content[0].signature


async def test_errors_become_the_clients_own() -> None:
    async with simulated(Simulator(fault=Status(status=529))) as url, _client(url) as client:
        with pytest.raises(anthropic.APIStatusError) as raised:
            await client.messages.create(model="m", max_tokens=5, messages=ASK)
    assert raised.value.status_code == 529
    assert (raised.value.request_id or "").startswith("req_")
    async with simulated(Simulator(fault=ErrorFrame(after=3))) as url, _client(url) as client:
        with pytest.raises(anthropic.APIStatusError, match="had an error"):
            async with client.messages.stream(model="m", max_tokens=50, messages=ASK) as stream:
                await stream.get_final_message()
