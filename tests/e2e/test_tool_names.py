"""Tools with names that only their own API takes, at providers of other dialects."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest

from headstart.canonical_request import portable_name
from support.proxied import Proxied, proxied
from support.scripted import ScriptedUpstream, chunk
from support.scripted_messages import ScriptedMessages

pytestmark = pytest.mark.anyio

SCHEMA = {"type": "object", "properties": {"key": {"type": "string"}}}
TOOLS = [
    {"type": "function", "name": "lookup", "parameters": SCHEMA},
    {
        "type": "namespace",
        "name": "crm",
        "description": "Our customers.",
        "tools": [
            {"type": "function", "name": "lookup", "description": "Find.", "parameters": SCHEMA},
            {"type": "function", "name": "count", "description": "Count.", "parameters": SCHEMA},
        ],
    },
]
ASKED = {"role": "user", "content": "Which address has customer 7?"}


class CallingServer(ScriptedUpstream):
    """Calls each tool of the request once, in its order. After results it says "Done."."""

    async def _answer(self, call: Any, send: Any) -> None:
        names = [each["function"]["name"] for each in call.json.get("tools", [])]
        calls = [
            {
                "index": index,
                "id": f"call_{index}",
                "type": "function",
                "function": {"name": name, "arguments": '{"key":"7"}'},
            }
            for index, name in enumerate(names)
        ]
        said: dict[str, Any] = {"role": "assistant", "tool_calls": calls}
        reason = "tool_calls"
        if call.json["messages"][-1]["role"] == "tool":
            said, reason = {"role": "assistant", "content": "Done."}, "stop"
        if call.json.get("stream"):
            self.headers = [(b"content-type", b"text/event-stream")]
            self.body = chunk(said) + chunk({}, reason) + b"data: [DONE]\n\n"
        else:
            self.headers = []
            choice = {"index": 0, "message": said, "finish_reason": reason}
            self.body = json.dumps({"id": "", "model": "m", "choices": [choice]}).encode()
        await super()._answer(call, send)


async def ask(proxy: Proxied, history: list[Any], *, stream: bool) -> Any:
    asked: dict[str, Any] = {"model": "m", "input": history, "tools": TOOLS, "store": False}
    async with openai.AsyncOpenAI(base_url=proxy.url + "/v1", api_key="k") as client:
        if not stream:
            return await client.responses.create(**asked)
        async with client.responses.stream(**asked) as events:
            added = [e.item async for e in events if e.type == "response.output_item.added"]
            begun = [getattr(item, "namespace", None) for item in added]
            assert begun == [None, "crm", "crm"]
            return await events.get_final_response()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_tool_of_a_namespace_is_called_stored_and_named_in_the_next_request(
    stream: bool,
) -> None:
    server = CallingServer()
    async with proxied(server, cache={"cached_tools": ["lookup", "count"]}) as proxy:
        first = await ask(proxy, [ASKED], stream=stream)
        await proxy.stored(1)
        again = await ask(proxy, [ASKED], stream=stream)
        assert len(server.calls) == 1
        results = [
            {"type": "function_call_output", "call_id": each.call_id, "output": "7 Elm Street"}
            for each in first.output
        ]
        calls = [each.model_dump(exclude_none=True) for each in first.output]
        last = await ask(proxy, [ASKED, *calls, *results], stream=False)
    for response in (first, again):
        told = [(each.namespace, each.name, each.arguments) for each in response.output]
        assert told == [
            (None, "lookup", '{"key":"7"}'),
            ("crm", "lookup", '{"key":"7"}'),
            ("crm", "count", '{"key":"7"}'),
        ]
    assert last.output_text == "Done."
    sent = server.calls[0].json["tools"]
    assert [(t["function"]["name"], t["function"].get("description")) for t in sent] == [
        ("lookup", None),
        ("crm__lookup", "Our customers.\n\nFind."),
        ("crm__count", "Count."),
    ]
    called = server.calls[1].json["messages"][1]["tool_calls"]
    assert [each["function"]["name"] for each in called] == ["lookup", "crm__lookup", "crm__count"]


LONG = "mcp__plugin_with_a_long_name__" + "search_" * 6 + "everything"
"""A name of 82 characters, as Anthropic takes it."""


@pytest.mark.parametrize("stream", [True, False])
async def test_a_tool_with_a_long_name_is_called_and_named_in_the_next_request(
    stream: bool,
) -> None:
    server = CallingServer()
    question: Any = {"role": "user", "content": "Find it."}
    asked: dict[str, Any] = {
        "model": "m",
        "max_tokens": 99,
        "tools": [{"name": name, "input_schema": SCHEMA} for name in ("look", LONG)],
        "tool_choice": {"type": "tool", "name": LONG},
    }
    async with (
        proxied(server) as proxy,
        anthropic.AsyncAnthropic(api_key="k", base_url=proxy.url) as client,
    ):
        if stream:
            async with client.messages.stream(messages=[question], **asked) as events:
                said = await events.get_final_message()
        else:
            said = await client.messages.create(messages=[question], **asked)
        uses = [each for each in said.content if each.type == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": each.id, "content": "4"} for each in uses]
        history: list[Any] = [
            question,
            {"role": "assistant", "content": [each.model_dump() for each in uses]},
            {"role": "user", "content": results},
        ]
        await client.messages.create(messages=history, **asked)
    assert [each.name for each in uses] == ["look", LONG]
    first, last = server.calls[0].json, server.calls[1].json
    look, short = [tool["function"]["name"] for tool in first["tools"]]
    assert (look, len(short)) == ("look", 64)
    assert first["tool_choice"]["function"]["name"] == short
    assert [each["function"]["name"] for each in last["messages"][1]["tool_calls"]] == [look, short]


@pytest.mark.parametrize(
    ("own", "begins"), [("crm.find:all", "crm_find_all_"), ("3d", "_3d_"), ("-x", "_-x_")]
)
async def test_a_name_of_geminis_api_is_one_that_all_providers_take(own: str, begins: str) -> None:
    server = CallingServer()
    tools = [{"functionDeclarations": [{"name": own, "parametersJsonSchema": SCHEMA}]}]
    asked = {"contents": [{"role": "user", "parts": [{"text": "Find it."}]}], "tools": tools}
    async with (
        proxied(server) as proxy,
        proxy.session.post(
            f"{proxy.url}/v1beta/models/m:generateContent",
            json=asked,
            headers={"x-goog-api-key": "k"},
        ) as response,
    ):
        answer = await response.json()
    (part,) = answer["candidates"][0]["content"]["parts"]
    assert part["functionCall"]["name"] == own
    name = server.calls[0].json["tools"][0]["function"]["name"]
    assert name.startswith(begins)


async def test_a_function_of_the_older_api_is_called_by_its_own_name() -> None:
    server = ScriptedMessages()
    name = portable_name("crm.find")
    server.content = [{"type": "tool_use", "id": "toolu_1", "name": name, "input": {}}]
    async with proxied(server, provider={"dialect": "anthropic"}) as proxy:
        reply = await proxy.ask(functions=[{"name": "crm.find", "parameters": SCHEMA}])
    assert server.calls[0].json["tools"][0]["name"] == name
    message = json.loads(reply.body)["choices"][0]["message"]
    assert message["function_call"]["name"] == "crm.find"
