"""Anthropic's own client sees no difference between its API and cached answers but the time."""

from __future__ import annotations

import asyncio
import contextlib
import json
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import anthropic
import anyio
import anyio.to_thread
import pytest

from headstart.decisions import Outcome
from headstart.observe import Served
from support.patience import PATIENCE_S
from support.proxied import Proxied, proxied
from support.scripted_messages import USAGE, ScriptedMessages, event, opening

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from anthropic.types import Message


pytestmark = pytest.mark.anyio

PROMPT = "How can I sign up for ChatGPT?"
REWORDED = "I want to sign up for ChatGPT"
WEATHER = {
    "name": "get_weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
THOUGHTS = [
    {"type": "thinking", "thinking": "Let me think.", "signature": "c2ln"},
    {"type": "redacted_thinking", "data": "b3BhcXVl"},
]
SEMANTIC = {"mode": "serve", "audit": {"mode": "off"}, "cold_start": "optimistic"}
"""An audit would ask the provider once more."""
PATIENT = {"max_wait_ms": 20_000.0}
"""However busy the machine is, a lookup waits for its encoding."""
CALL = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}}


class Said(NamedTuple):
    """What a client makes of an answer, but for its id."""

    content: list[Any]
    stop: str | None
    usage: dict[str, Any]
    model: str


def said(message: Message) -> Said:
    assert message.id.startswith("msg_")
    content = [
        {name: value for name, value in block.to_dict().items() if value is not None}
        for block in message.content
    ]
    usage = {name: n for name, n in message.usage.to_dict().items() if n is not None}
    return Said(content, message.stop_reason, usage, message.model)


def fields_of(prompt: str, fields: dict[str, Any]) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"model": "claude-x", "max_tokens": 500, "messages": messages, **fields}


def options(url: str) -> dict[str, Any]:
    return {"base_url": url, "api_key": "sk-test", "max_retries": 0}


def ask(url: str, prompt: str, **fields: Any) -> Said:
    with anthropic.Anthropic(**options(url)) as client:
        return said(client.messages.create(**fields_of(prompt, fields)))


def ask_stream(url: str, prompt: str, **fields: Any) -> Said:
    with (
        anthropic.Anthropic(**options(url)) as client,
        client.messages.stream(**fields_of(prompt, fields)) as stream,
    ):
        return said(stream.get_final_message())


async def ask_async(url: str, prompt: str, **fields: Any) -> Said:
    async with anthropic.AsyncAnthropic(**options(url)) as client:
        return said(await client.messages.create(**fields_of(prompt, fields)))


async def ask_async_stream(url: str, prompt: str, **fields: Any) -> Said:
    async with (
        anthropic.AsyncAnthropic(**options(url)) as client,
        client.messages.stream(**fields_of(prompt, fields)) as stream,
    ):
        return said(await stream.get_final_message())


def in_thread(call: Callable[..., Said]) -> Callable[..., Awaitable[Said]]:
    async def run(*args: Any, **fields: Any) -> Said:
        return await anyio.to_thread.run_sync(partial(call, *args, **fields))

    return run


CLIENTS: dict[str, Callable[..., Awaitable[Said]]] = {
    "json": in_thread(ask),
    "stream": in_thread(ask_stream),
    "async-json": ask_async,
    "async-stream": ask_async_stream,
}
every_client = pytest.mark.parametrize("ask", CLIENTS.values(), ids=CLIENTS)


@contextlib.asynccontextmanager
async def messages(
    upstream: ScriptedMessages | None = None, **overrides: Any
) -> AsyncIterator[Proxied]:
    provider = {"dialect": "anthropic", **overrides.pop("provider", {})}
    async with proxied(upstream or ScriptedMessages(), provider=provider, **overrides) as proxy:
        yield proxy


async def outcomes(proxy: Proxied, count: int) -> list[Outcome]:
    await proxy.until(Served, count)
    return [row.outcome for row in proxy.served]


@every_client
async def test_a_miss_an_exact_and_a_semantic_hit_say_the_same(
    ask: Callable[..., Awaitable[Said]],
) -> None:
    upstream = ScriptedMessages()
    upstream.content = [*THOUGHTS, {"type": "text", "text": "Hello"}]
    async with messages(upstream, cache=SEMANTIC, encoder=PATIENT) as proxy:
        miss = await ask(proxy.url, PROMPT)
        await proxy.indexed(1)
        exact = await ask(proxy.url, PROMPT)
        semantic = await ask(proxy.url, REWORDED)
        seen = await outcomes(proxy, 3)
        assert seen == [Outcome.MISS, Outcome.EXACT, Outcome.SEMANTIC]
        assert len(upstream.calls) == 1
    assert miss == exact == semantic
    assert miss == Said(upstream.content, "end_turn", USAGE, "claude-real")


async def test_a_stored_stream_answers_json_and_the_other_way_round() -> None:
    async with messages() as proxy:
        streamed = await ask_async_stream(proxy.url, PROMPT)
        assert await ask_async(proxy.url, PROMPT) == streamed
        other = "What is the boiling point of water?"
        whole = await ask_async(proxy.url, other)
        assert await ask_async_stream(proxy.url, other) == whole
        assert len(proxy.upstream.calls) == 2


@every_client
async def test_concurrent_identical_calls_get_one_answer(
    ask: Callable[..., Awaitable[Said]],
) -> None:
    upstream = ScriptedMessages()
    upstream.head_hold = asyncio.Event()
    answers: list[Said] = []
    async with messages(upstream) as proxy:

        async def call() -> None:
            answers.append(await ask(proxy.url, PROMPT))

        async with anyio.create_task_group() as callers:
            callers.start_soon(call)
            callers.start_soon(call)
            while not proxy.parts:
                await asyncio.sleep(0.005)
            await proxy.in_flight(2)
            upstream.head_hold.set()
        assert sorted(await outcomes(proxy, 2)) == [Outcome.JOINED, Outcome.MISS]
        assert len(upstream.calls) == 1
    assert answers[0] == answers[1]


@every_client
async def test_tool_calls_pass_whole_and_are_never_replayed(
    ask: Callable[..., Awaitable[Said]],
) -> None:
    upstream = ScriptedMessages()
    upstream.content = [{"type": "text", "text": "Let me see."}, CALL]
    upstream.finish = "tool_use"
    async with messages(upstream) as proxy:
        first = await ask(proxy.url, PROMPT, tools=[WEATHER], tool_choice={"type": "any"})
        again = await ask(proxy.url, PROMPT, tools=[WEATHER], tool_choice={"type": "any"})
        assert await outcomes(proxy, 2) == [Outcome.MISS, Outcome.MISS]
    assert first == again == Said(upstream.content, "tool_use", USAGE, "claude-real")


async def test_equal_tool_conversations_are_one_key_whatever_their_ids() -> None:
    def conversation(id: str) -> list[dict[str, Any]]:
        result = {"type": "tool_result", "tool_use_id": id, "content": "12 degrees"}
        return [
            {"role": "user", "content": PROMPT},
            {"role": "assistant", "content": [{**CALL, "id": id}]},
            {"role": "user", "content": [result]},
        ]

    async with messages() as proxy:
        for id in ("toolu_1", "toolu_2"):
            await ask_async(proxy.url, "", messages=conversation(id), tools=[WEATHER])
        assert await outcomes(proxy, 2) == [Outcome.MISS, Outcome.EXACT]


ERRORS: dict[str, tuple[int, str, type[anthropic.APIStatusError]]] = {
    "authentication": (401, "authentication_error", anthropic.AuthenticationError),
    "rate limit": (429, "rate_limit_error", anthropic.RateLimitError),
    "overload": (529, "overloaded_error", anthropic.OverloadedError),
}


@every_client
@pytest.mark.parametrize(("status", "type_", "exception"), ERRORS.values(), ids=ERRORS)
async def test_a_providers_error_is_the_clients_own(
    ask: Callable[..., Awaitable[Said]],
    status: int,
    type_: str,
    exception: type[anthropic.APIStatusError],
) -> None:
    upstream = ScriptedMessages()
    error = {"type": type_, "message": "No."}
    upstream.body = json.dumps({"type": "error", "error": error, "request_id": "req_1"}).encode()
    upstream.status = status
    upstream.headers = [(b"retry-after", b"1"), (b"request-id", b"req_1")]
    async with messages(upstream) as proxy:
        with pytest.raises(exception) as caught:
            await ask(proxy.url, PROMPT)
    assert (caught.value.type, caught.value.request_id) == (type_, "req_1")
    assert caught.value.response.headers["retry-after"] == "1"


@every_client
async def test_a_missing_gateway_key_is_the_clients_authentication_error(
    ask: Callable[..., Awaitable[Said]],
) -> None:
    async with messages(server={"client_keys": ["let-me-in"]}) as proxy:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            await ask(proxy.url, PROMPT)
        assert proxy.upstream.calls == []
    assert caught.value.type == "authentication_error"
    assert caught.value.error_code == "invalid_api_key"
    assert caught.value.request_id


@pytest.mark.parametrize("name", ["stream", "async-stream"])
async def test_a_stream_that_breaks_is_the_clients_api_error(name: str) -> None:
    upstream = ScriptedMessages()
    upstream.terminal = False
    async with messages(upstream) as proxy:
        with pytest.raises(anthropic.APIStatusError) as caught:
            await CLIENTS[name](proxy.url, PROMPT)
        assert caught.value.error_code == "upstream_protocol_error"
        upstream.terminal = True
        healthy = await CLIENTS[name](proxy.url, PROMPT)
        assert await outcomes(proxy, 2) == [Outcome.MISS, Outcome.MISS]
    assert healthy.stop == "end_turn"


@pytest.mark.parametrize(
    "cut", [b"event: content_bl", b'event: ping\ndata: {"type', b"event: ping\n"]
)
async def test_a_stream_cut_inside_an_event_is_the_clients_api_error(cut: bytes) -> None:
    upstream = ScriptedMessages()
    upstream.headers = [(b"content-type", b"text/event-stream")]
    upstream.body = opening() + cut
    async with messages(upstream) as proxy:
        with pytest.raises(
            anthropic.APIStatusError, match=r"ended before its answer did|answered with nothing"
        ):
            await ask_async_stream(proxy.url, PROMPT)


async def test_an_error_event_inside_a_stream_is_the_clients_own_and_never_stored() -> None:
    upstream = ScriptedMessages()
    upstream.headers = [(b"content-type", b"text/event-stream")]
    upstream.body = event("error", error={"type": "overloaded_error", "message": "Overloaded"})
    async with messages(upstream) as proxy:
        for _ in range(2):
            with pytest.raises(anthropic.APIStatusError) as caught:
                await ask_async_stream(proxy.url, PROMPT)
            assert caught.value.type == "overloaded_error"
        assert await outcomes(proxy, 2) == [Outcome.MISS, Outcome.MISS]


async def test_a_client_that_stops_reading_a_stream_cancels_it_upstream() -> None:
    upstream = ScriptedMessages()
    upstream.hold = asyncio.Semaphore(0)
    async with messages(upstream) as proxy:
        async with anthropic.AsyncAnthropic(**options(proxy.url)) as client:
            stream = await client.messages.create(**fields_of(PROMPT, {"stream": True}))
            await anext(aiter(stream))
            await stream.close()
        async with asyncio.timeout(PATIENCE_S):
            await upstream.calls[0].left.wait()


async def test_a_hit_has_a_request_id_where_the_client_looks_for_it() -> None:
    async with messages() as proxy, anthropic.AsyncAnthropic(**options(proxy.url)) as client:
        await client.messages.create(**fields_of(PROMPT, {}))
        hit = await client.messages.create(**fields_of(PROMPT, {}))
        assert await outcomes(proxy, 2) == [Outcome.MISS, Outcome.EXACT]
        assert hit._request_id == proxy.served[1].id


async def test_tokens_are_counted_and_models_listed_by_the_provider() -> None:
    upstream = ScriptedMessages()
    upstream.body = b'{"input_tokens": 12}'
    async with messages(upstream) as proxy, anthropic.AsyncAnthropic(**options(proxy.url)) as ours:
        asked: dict[str, Any] = {
            "model": "claude-x",
            "messages": [{"role": "user", "content": PROMPT}],
        }
        counted = await ours.messages.count_tokens(**asked)
        assert counted.input_tokens == 12
        upstream.body = b'{"data": [], "has_more": false, "first_id": null, "last_id": null}'
        assert (await ours.models.list()).data == []
    paths = [call.path for call in upstream.calls]
    assert paths == ["/v1/messages/count_tokens", "/v1/models"]
