"""Tool calls of servers that give no ids, or give all calls the same id."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anthropic
import pytest

from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.openai_responses import OPENAI_RESPONSES
from headstart.types import ToolCall
from support.events import decoded, folded
from support.proxied import Proxied, Reply, proxied, reply_of
from support.scripted import ScriptedUpstream, chunk

if TYPE_CHECKING:
    from headstart.dialects.dialect import Dialect

pytestmark = pytest.mark.anyio

CITIES = ("Rome", "Oslo")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CLIENTS: dict[str, tuple[Dialect, str, str, dict[str, Any]]] = {
    "anthropic": (
        ANTHROPIC_MESSAGES,
        "/v1/messages",
        "messages",
        {"max_tokens": 99, "tools": [{"name": "weather", "input_schema": SCHEMA}]},
    ),
    "responses": (
        OPENAI_RESPONSES,
        "/v1/responses",
        "input",
        {"store": False, "tools": [{"type": "function", "name": "weather", "parameters": SCHEMA}]},
    ),
}
ASKED = {"role": "user", "content": "What is the weather in Rome and in Oslo?"}
"""A question that the two calls answer."""


class CallingServer(ScriptedUpstream):
    """Calls a tool for both cities, with ``id`` in both calls. None: it sends no id."""

    def __init__(self, id: str | None) -> None:
        super().__init__()
        named = {} if id is None else {"id": id}
        self.tool_calls = [
            {
                **named,
                "index": index,
                "type": "function",
                "function": {"name": "weather", "arguments": json.dumps({"city": city})},
            }
            for index, city in enumerate(CITIES)
        ]

    async def _answer(self, call: Any, send: Any) -> None:
        deltas = [{"tool_calls": [each]} for each in self.tool_calls]
        if call.json.get("stream"):
            self.headers = [(b"content-type", b"text/event-stream")]
            said = [chunk({"role": "assistant"}), *map(chunk, deltas), chunk({}, "tool_calls")]
            self.body = b"".join((*said, b"data: [DONE]\n\n"))
        else:
            self.headers = []
            message = {"role": "assistant", "content": None, "tool_calls": self.tool_calls}
            choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
            self.body = json.dumps({"id": "", "model": "m", "choices": [choice]}).encode()
        await super()._answer(call, send)


def calls_of(dialect: Dialect, reply: Reply, *, stream: bool) -> list[ToolCall]:
    assert reply.status == 200, reply.body
    events = decoded(dialect, reply.body) if stream else dialect.decode_body(200, reply.body)
    parts = folded(events).choices[0].parts
    return [part for part in parts if isinstance(part, ToolCall)]


async def ask(proxy: Proxied, client: str, history: list[Any], *, stream: bool) -> Reply:
    _, path, field, settings = CLIENTS[client]
    body = {"model": "m", "stream": stream, field: history, **settings}
    headers = {"authorization": "Bearer k", "x-api-key": "k"}
    async with proxy.session.post(proxy.url + path, json=body, headers=headers) as response:
        return await reply_of(response)


def turn_of(client: str, calls: list[ToolCall]) -> list[Any]:
    """Return the messages with the calls and their results, the last result first."""
    results = [(call.id, f"{json.loads(call.arguments)['city']}: rain") for call in calls][::-1]
    if client == "responses":
        named = [{"call_id": c.id, "name": c.name, "arguments": c.arguments} for c in calls]
        return [
            *({"type": "function_call", **each} for each in named),
            *(
                {"type": "function_call_output", "call_id": i, "output": said}
                for i, said in results
            ),
        ]
    uses = [
        {"type": "tool_use", "id": c.id, "name": c.name, "input": json.loads(c.arguments)}
        for c in calls
    ]
    told = [{"type": "tool_result", "tool_use_id": i, "content": said} for i, said in results]
    return [{"role": "assistant", "content": uses}, {"role": "user", "content": told}]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("id", [None, "", "0"])
@pytest.mark.parametrize("client", CLIENTS)
async def test_each_call_has_an_id_that_is_stored_and_names_it_in_the_next_request(
    client: str, id: str | None, stream: bool
) -> None:
    server, dialect = CallingServer(id), CLIENTS[client][0]
    cache = {"cached_tools": ["weather"]}
    async with proxied(server, cache=cache) as proxy:
        first = calls_of(dialect, await ask(proxy, client, [ASKED], stream=stream), stream=stream)
        await proxy.stored(1)
        again = await ask(proxy, client, [ASKED], stream=stream)
        assert "hit" in again.verdict
        history = [ASKED, *turn_of(client, first)]
        later = calls_of(dialect, await ask(proxy, client, history, stream=stream), stream=stream)
    assert [json.loads(call.arguments)["city"] for call in first] == list(CITIES)
    assert calls_of(dialect, again, stream=stream) == first
    assert len({call.id for call in (*first, *later)}) == 4
    sent = server.calls[-1].json["messages"]
    asked = {each["id"]: each["function"]["arguments"] for each in sent[1]["tool_calls"]}
    for result in sent[2:]:
        city = json.loads(asked[result["tool_call_id"]])["city"]
        assert result["content"] == f"{city}: rain"


@pytest.mark.parametrize("client", CLIENTS)
async def test_an_id_is_known_in_each_spelling_of_json(client: str) -> None:
    dialect, path, field, settings = CLIENTS[client]
    calls = [ToolCall(id="0", name="weather", arguments=json.dumps({"city": "Rome"}))]
    body = {"model": "m", field: [ASKED, *turn_of(client, calls)], **settings}
    data = json.dumps(body).replace('"0"', '"\\u0030"')
    assert json.loads(data) == body
    headers = {"authorization": "Bearer k", "x-api-key": "k"}
    async with (
        proxied(CallingServer("0")) as proxy,
        proxy.session.post(proxy.url + path, data=data, headers=headers) as response,
    ):
        later = calls_of(dialect, await reply_of(response), stream=False)
    assert len({call.id for call in (*calls, *later)}) == 3


@pytest.mark.parametrize("stream", [True, False])
async def test_a_provider_that_keeps_no_threads_gets_the_whole_conversation(stream: bool) -> None:
    """Anthropic's SDK sends only the new messages of a thread until it is told to send all.

    Without the history the model would answer a question that it does not know.
    """
    server = CallingServer("0")

    @anthropic.beta_async_tool
    async def weather(city: str) -> str:
        """Tell the weather."""
        return f"{city}: rain"

    async with (
        proxied(server) as proxy,
        anthropic.AsyncAnthropic(api_key="k", base_url=proxy.url, max_retries=0) as client,
    ):
        runner: Any = client.beta.messages.tool_runner(
            model="m",
            max_tokens=99,
            tools=[weather],
            messages=[{"role": "user", "content": ASKED["content"]}],
            stream=stream,
            max_iterations=2,
        )
        async for turn in runner:
            if stream:
                await turn.get_final_message()
    assert len(server.calls) == 2
    question, called, *results = server.calls[1].json["messages"]
    assert question["content"] == ASKED["content"]
    assert {each["id"] for each in called["tool_calls"]} == {
        each["tool_call_id"] for each in results
    }
    assert [each["content"] for each in results] == [f"{city}: rain" for city in CITIES]
    assert [row.error for row in proxy.served] == ["thread_unsupported_request", None, None]
