"""Clients that set no marks, before providers that cache only what is marked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headstart.lab.simulator import Simulator
from headstart.lab.simulator.chat_request import BadRequest
from headstart.lab.simulator.profiles import ProviderProfile
from support.proxied import proxied
from support.sidecar import Provider, Sidecar, sidecar
from support.simulated import simulated

pytestmark = pytest.mark.anyio

PRICE = {
    "input_per_million": 100.0,
    "cached_per_million": 10.0,
    "cache_write_per_million": 125.0,
    "output_per_million": 0.0,
}
MODEL = "claude-opus-4-6"
AUTO = {"prompt_cache": "auto", "mode": "off"}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "find", "description": "word " * 1200, "parameters": {}},
    }
]
EACH_DIALECT = pytest.mark.parametrize("dialect", ["anthropic", "bedrock"])


class Seeing(Provider):
    """A provider that keeps the bodies of its calls."""

    def __init__(self) -> None:
        super().__init__(profile=ProviderProfile(model=MODEL, prefix_cache=True))
        self.bodies: list[bytes] = []

    def _admit(self, scope: Any, path: bytes, body: bytes) -> Any:
        self.bodies.append(body)
        return super()._admit(scope, path, body)


def claude(
    dialect: str = "anthropic",
    compression: dict[str, Any] | None = None,
    provider: Provider | None = None,
) -> Any:
    upstream = {"dialect": dialect, "api_key_env": [], "price": {MODEL: PRICE}}
    return sidecar(
        provider or Seeing(),
        upstream=upstream,
        compression=AUTO if compression is None else compression,
        cache={"mode": "exact-only"},
    )


def turns(count: int, opening: str = "Look for it.") -> list[dict[str, Any]]:
    """Return the messages of the request number ``count`` of an agent's session."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You find things. " * 100},
        {"role": "user", "content": opening},
    ]
    for number in range(1, count):
        call = {"name": "find", "arguments": json.dumps({"what": number})}
        calls = [{"id": f"c{number}", "type": "function", "function": call}]
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        result = f"{opening} {number} " + "line of a file\n" * 300
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": result})
    return messages


async def play(gateway: Sidecar, requests: int, **fields: Any) -> None:
    for count in range(1, requests + 1):
        body = {"model": MODEL, "messages": turns(count), "tools": TOOLS, **fields}
        reply = await gateway.post(json.dumps(body).encode())
        assert reply.status == 200, reply.body


@EACH_DIALECT
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_agents_session_before_claude_costs_less_than_half(
    dialect: str, stream: bool
) -> None:
    costs = []
    for compression in ({"mode": "off"}, AUTO):
        async with claude(dialect, compression) as gateway:
            await play(gateway, 8, stream=stream)
            await gateway.finished(8)
            rows = gateway.served
            costs.append(sum(row.cost_usd or 0.0 for row in rows))
            saved = [each for row in rows for each in row.shaped if each.kind == "prompt-cache"]
    assert costs[1] < 0.5 * costs[0]
    assert len(saved) == 8
    assert sum(each.saved_usd for each in saved) == pytest.approx(costs[0] - costs[1])
    assert sum(row.would_have_cost_usd for row in rows) == pytest.approx(costs[0])
    assert saved[0].saved_usd < 0, "the first request only writes"
    assert all(row.attempts[0].cached_tokens > 1000 for row in rows[1:])


@EACH_DIALECT
async def test_the_answer_names_the_marks(dialect: str) -> None:
    async with claude(dialect) as gateway:
        body = {"model": MODEL, "messages": turns(3), "tools": TOOLS}
        reply = await gateway.post(json.dumps(body).encode())
    assert "cache-marks" in reply.headers["x-headstart-transforms"]


async def test_a_client_that_sets_a_mark_is_left_alone() -> None:
    marked = {"type": "text", "text": "word " * 2000, "cache_control": {"type": "ephemeral"}}
    body = {
        "model": MODEL,
        "max_tokens": 9,
        "messages": [{"role": "user", "content": [marked]}],
        "system": "word " * 2000,
        "tools": [{"name": "find", "input_schema": {"type": "object"}}],
    }
    async with claude() as gateway:
        raw = json.dumps(body).encode()
        async with gateway.session.post(
            gateway.url + "/v1/messages",
            data=raw,
            headers={"x-api-key": "k", "anthropic-version": "2023-06-01"},
        ) as reply:
            assert reply.status == 200
            assert "cache-marks" not in reply.headers.get("x-headstart-transforms", "")
        provider = gateway.provider
        assert provider.bodies == [raw]


async def test_single_questions_are_not_marked_until_they_come_again() -> None:
    async with claude() as gateway:
        provider = gateway.provider
        for number in range(20):
            await gateway.ask(f"Question {number}? " + "word " * 2000, model=MODEL)
        assert not any(b"cache_control" in body for body in provider.bodies)


async def test_a_system_text_that_all_questions_share_is_marked_alone() -> None:
    async with claude() as gateway:
        provider = gateway.provider
        system = {"role": "system", "content": "word " * 2000}
        for number in range(20):
            messages = [system, {"role": "user", "content": f"Question {number}?"}]
            body = json.dumps({"model": MODEL, "messages": messages}).encode()
            await gateway.post(body)
        await gateway.finished(20)
        last = json.loads(provider.bodies[-1])
        assert "cache_control" in json.dumps(last["system"])
        assert "cache_control" not in json.dumps(last["messages"])
        assert gateway.served[-1].attempts[0].cached_tokens > 2000


def two_upstreams(strategy: str, first: str | None = None) -> Any:
    """Run a route with two upstreams; ``first`` is the address of the first one."""
    upstream = {"dialect": "anthropic", "api_key_env": [], "price": {MODEL: PRICE}}
    address = {} if first is None else {"base_url": first}
    route = {"name": "r", "strategy": strategy, "upstreams": ["sim", "b"], "equal_models": "assume"}
    return sidecar(
        Seeing(),
        upstream={**upstream, **address},
        others=({"name": "b", **upstream},),
        routes=({**route, "hedge_floor_s": 0.05},),
        compression=AUTO,
        cache={"mode": "exact-only"},
    )


async def test_races_are_not_marked() -> None:
    async with two_upstreams("race") as gateway:
        await play(gateway, 3, stream=True)
        assert gateway.provider.bodies
        assert not any(b"cache_control" in body for body in gateway.provider.bodies)


async def test_a_hedge_is_not_marked_and_the_conversation_stays_with_who_answered() -> None:
    slow = Simulator(ProviderProfile(model=MODEL, prefix_cache=True, ttft_ms=60_000))
    async with simulated(slow) as late, two_upstreams("hedge", late) as gateway:
        await play(gateway, 3, stream=True)
        await gateway.finished(3)
        marked = [b"cache_control" in body for body in gateway.provider.bodies]
        assert marked == [False, True, True]
        assert slow.stats.snapshot().calls == 1


async def test_openai_is_told_the_conversation() -> None:
    provider = {"quirks": {"prompt_cache_key": True}}
    async with proxied(provider=provider, compression=AUTO) as proxy:
        first = [{"role": "user", "content": "one"}]
        longer = [*first, {"role": "assistant", "content": "1"}, {"role": "user", "content": "two"}]
        await proxy.ask(messages=first)
        await proxy.ask(messages=longer)
        await proxy.ask("other")
        await proxy.ask(prompt_cache_key="mine")
        keys = [call.json.get("prompt_cache_key") for call in proxy.upstream.calls]
    assert keys[0] == keys[1] != keys[2]
    assert keys[3] == "mine"


class Refusing(Seeing):
    """A provider whose models know no marks."""

    def _serve(self, incoming: Any, *how: Any) -> Any:
        if b"cache_control" in incoming.body:
            raise BadRequest("tools.0.cache_control: Extra inputs are not permitted")
        return super()._serve(incoming, *how)


async def test_a_model_that_refuses_marks_is_called_without() -> None:
    async with claude(provider=Refusing()) as gateway:
        await play(gateway, 3)
        marked = [b"cache_control" in body for body in gateway.provider.bodies]
    assert marked == [True, False, False, False]


def responses_body(turn: int) -> tuple[str, dict[str, Any]]:
    said: list[dict[str, Any]] = [{"role": "user", "content": "Look for it. " + "word " * 2000}]
    for number in range(1, turn):
        call = {"type": "function_call", "call_id": f"c{number}", "name": "find"}
        said.append({**call, "arguments": "{}"})
        said.append({"type": "function_call_output", "call_id": f"c{number}", "output": "no"})
    tool = {"type": "function", "name": "find", "parameters": {"type": "object"}}
    body = {"model": MODEL, "instructions": "Be brief.", "input": said, "tools": [tool]}
    return "/v1/responses", body


def gemini_body(turn: int) -> tuple[str, dict[str, Any]]:
    said = [{"role": "user", "parts": [{"text": "Look for it. " + "word " * 2000}]}]
    for number in range(1, turn):
        said.append({"role": "model", "parts": [{"text": f"No {number}"}]})
        said.append({"role": "user", "parts": [{"text": f"Again {number}"}]})
    tools = [{"functionDeclarations": [{"name": "find"}]}]
    return f"/v1beta/models/{MODEL}:generateContent", {"contents": said, "tools": tools}


def messages_body(turn: int) -> tuple[str, dict[str, Any]]:
    said: list[dict[str, Any]] = [{"role": "user", "content": "Look for it. " + "word " * 2000}]
    for number in range(1, turn):
        call = {"type": "tool_use", "id": f"c{number}", "name": "find", "input": {}}
        said.append({"role": "assistant", "content": [call]})
        result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": "no"}
        said.append({"role": "user", "content": [result]})
    tools = [{"name": "find", "input_schema": {"type": "object"}}]
    return "/v1/messages", {"model": MODEL, "max_tokens": 50, "messages": said, "tools": tools}


@EACH_DIALECT
@pytest.mark.parametrize("body_of", [responses_body, gemini_body, messages_body])
async def test_clients_of_every_dialect_read_what_their_last_request_wrote(
    body_of: Any, dialect: str
) -> None:
    headers = {"authorization": "Bearer k", "anthropic-version": "2023-06-01"}
    async with claude(dialect) as gateway:
        for turn in range(1, 5):
            path, body = body_of(turn)
            async with gateway.session.post(
                gateway.url + path, json=body, headers=headers
            ) as reply:
                assert reply.status == 200, await reply.text()
        await gateway.finished(4)
        cached = [row.attempts[0].cached_tokens for row in gateway.served]
    assert cached[0] == 0
    assert all(each > 1000 for each in cached[1:])


@pytest.mark.parametrize("wrong", [{"tools": {"a": 1}}, {"tools": ["x"]}, {"system": ["x"]}])
async def test_a_malformed_request_is_the_providers_to_refuse(wrong: dict[str, Any]) -> None:
    provider = Seeing()
    async with claude(provider=provider) as running:
        messages = [
            {"role": "user", "content": "word " * 3000},
            {"role": "assistant", "content": "yes"},
            {"role": "user", "content": "go on"},
        ]
        body = {"model": MODEL, "max_tokens": 9, "messages": messages, **wrong}
        headers = {"anthropic-version": "2023-06-01", "x-api-key": "k"}
        async with running.session.post(
            running.url + "/v1/messages", json=body, headers=headers
        ) as response:
            assert response.status != 500, await response.text()
        assert json.loads(provider.bodies[-1]) == body
