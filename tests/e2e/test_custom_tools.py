"""Custom tools, whose input is free text, through the whole gateway with OpenAI's client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from support.proxied import Proxied, proxied
from support.scripted import ScriptedUpstream, chunk

pytestmark = pytest.mark.anyio

INPUT = '*** Begin Patch\n+"Grüße" \U0001f600 \\n\n*** End Patch'
ARGUMENTS = json.dumps({"input": INPUT})
TOOLS = [
    {"type": "custom", "name": "patch", "description": "Edits files."},
    {
        "type": "function",
        "name": "look",
        "parameters": {"type": "object", "properties": {"input": {"type": "string"}}},
    },
]
ASKED = {"role": "user", "content": "Write the greeting into the file."}


class CallingServer(ScriptedUpstream):
    """Calls each tool of the request, in pieces that alternate. After results it says "Done."."""

    async def _answer(self, call: Any, send: Any) -> None:
        tools = call.json["tools"]
        assert [tool["type"] for tool in tools] == ["function", "function"]
        begun: list[dict[str, Any]] = [
            {
                "index": index,
                "id": f"call_{index}",
                "type": "function",
                "function": {"name": tool["function"]["name"], "arguments": ""},
            }
            for index, tool in enumerate(tools)
        ]
        pieces = [
            {"index": index, "function": {"arguments": ARGUMENTS[at : at + 7]}}
            for at in range(0, len(ARGUMENTS), 7)
            for index in range(len(tools))
        ]
        done = call.json["messages"][-1]["role"] == "tool"
        if call.json.get("stream"):
            deltas = (
                [{"content": "Done."}] if done else [{"tool_calls": [c]} for c in begun + pieces]
            )
            said = [chunk({"role": "assistant"}), *map(chunk, deltas), chunk({}, "stop")]
            self.headers = [(b"content-type", b"text/event-stream")]
            self.body = b"".join((*said, b"data: [DONE]\n\n"))
        else:
            calls = [
                {**each, "function": {**each["function"], "arguments": ARGUMENTS}} for each in begun
            ]
            message = {"content": "Done."} if done else {"content": None, "tool_calls": calls}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self.headers = []
            self.body = json.dumps({"id": "", "model": "m", "choices": [choice]}).encode()
        await super()._answer(call, send)


async def ask(proxy: Proxied, history: list[Any], *, stream: bool, **fields: Any) -> Any:
    asked: dict[str, Any] = {"model": "m", "input": history, "tools": TOOLS, **fields}
    async with openai.AsyncOpenAI(base_url=proxy.url + "/v1", api_key="k") as client:
        if not stream:
            return await client.responses.create(**asked)
        async with client.responses.stream(**asked) as events:
            deltas = [
                each.delta
                async for each in events
                if each.type == "response.custom_tool_call_input.delta"
            ]
            response = await events.get_final_response()
            texts = [each.input for each in response.output if each.type == "custom_tool_call"]
            assert "".join(deltas) == "".join(texts)
            return response


@pytest.mark.parametrize("stream", [True, False])
async def test_a_custom_tool_is_called_stored_and_named_in_the_next_request(stream: bool) -> None:
    server = CallingServer()
    async with proxied(server, cache={"cached_tools": ["patch", "look"]}) as proxy:
        first = await ask(proxy, [ASKED], stream=stream, store=False)
        await proxy.stored(1)
        again = [await ask(proxy, [ASKED], stream=each, store=False) for each in (True, False)]
        assert len(server.calls) == 1
        results = [
            {"type": each.type + "_output", "call_id": each.call_id, "output": f"ok {place}"}
            for place, each in enumerate(first.output)
        ]
        calls = [each.model_dump(exclude_none=True) for each in first.output]
        choice = {"type": "custom", "name": "patch"}
        history = [ASKED, *calls, *results]
        last = await ask(proxy, history, stream=stream, store=False, tool_choice=choice)
    for response in (first, *again):
        custom, function = response.output
        assert (custom.type, custom.name, custom.input) == ("custom_tool_call", "patch", INPUT)
        assert (function.type, function.arguments) == ("function_call", ARGUMENTS)
    assert last.output_text == "Done."
    sent = server.calls[1].json
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "patch"}}
    called = [each["function"] for each in sent["messages"][1]["tool_calls"]]
    assert [json.loads(each["arguments"]) for each in called] == [{"input": INPUT}] * 2
    assert [each["content"] for each in sent["messages"][2:]] == ["ok 0", "ok 1"]


async def test_the_next_request_may_name_the_answer_with_the_call() -> None:
    server = CallingServer()
    async with proxied(server) as proxy:
        first = await ask(proxy, [ASKED], stream=False)
        results = [
            {"type": each.type + "_output", "call_id": each.call_id, "output": "ok"}
            for each in first.output
        ]
        last = await ask(proxy, results, stream=True, previous_response_id=first.id)
    assert last.output_text == "Done."
    called = [each["function"] for each in server.calls[1].json["messages"][1]["tool_calls"]]
    assert [json.loads(each["arguments"]) for each in called] == [{"input": INPUT}] * 2


@pytest.mark.parametrize("stream", [True, False])
async def test_chat_completions_passes_a_custom_tool_as_it_is(stream: bool) -> None:
    server = ScriptedUpstream()
    tool = {"type": "custom", "custom": {"name": "patch", "format": {"type": "text"}}}
    body = {"model": "m", "stream": stream, "messages": [ASKED], "tools": [tool]}
    async with proxied(server) as proxy:
        url = proxy.url + "/v1/chat/completions"
        headers = {"authorization": "Bearer k"}
        async with proxy.session.post(url, json=body, headers=headers) as response:
            assert response.status == 200
    assert server.calls[0].json["tools"] == [tool]
