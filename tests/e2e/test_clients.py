"""Real clients see no difference between a provider and its cached answers but the time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import anyio.to_thread
import openai
import pytest
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from headstart.decisions import Outcome
from headstart.lab.simulator import Oracle
from headstart.lab.simulator.faults import Cut, ErrorFrame, Status
from support.patience import until
from support.sidecar import PROMPT, REWORDED, Provider, sidecar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from langchain_core.messages import AIMessage
    from openai.types.chat import ChatCompletion

pytestmark = pytest.mark.anyio

ANSWER = Oracle().truth(PROMPT).text
KEY = "sk-test"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


class Said(NamedTuple):
    """What a client makes of an answer: text, tool calls (id, name, arguments), token counts."""

    text: str
    tools: tuple[tuple[str, str, Any], ...]
    tokens: tuple[int, int, int]


def said(completion: ChatCompletion) -> Said:
    message, usage = completion.choices[0].message, completion.usage
    assert usage is not None
    tools = tuple(
        (call.id, call.function.name, call.function.arguments)
        for call in message.tool_calls or ()
        if call.type == "function"
    )
    tokens = (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
    return Said(message.content or "", tools, tokens)


def said_to_langchain(message: AIMessage) -> Said:
    usage = message.usage_metadata
    assert usage is not None
    assert isinstance(message.content, str)
    tools = tuple((call["id"] or "", call["name"], call["args"]) for call in message.tool_calls)
    tokens = (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"])
    return Said(message.content, tools, tokens)


def without_ids(answer: Said) -> Said:
    return answer._replace(tools=tuple(("", name, given) for _, name, given in answer.tools))


def openai_fields(prompt: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": prompt}], **fields}


STREAM: dict[str, Any] = {"stream_options": {"include_usage": True}}


def openai_sync(url: str, prompt: str, headers: dict[str, str], **fields: Any) -> Said:
    with openai.OpenAI(
        base_url=f"{url}/v1", api_key=KEY, max_retries=0, default_headers=headers
    ) as client:
        return said(client.chat.completions.create(**openai_fields(prompt, fields)))


def openai_sync_stream(url: str, prompt: str, headers: dict[str, str], **fields: Any) -> Said:
    with (
        openai.OpenAI(
            base_url=f"{url}/v1", api_key=KEY, max_retries=0, default_headers=headers
        ) as client,
        client.chat.completions.stream(**openai_fields(prompt, STREAM | fields)) as stream,
    ):
        return said(stream.get_final_completion())


async def openai_async(url: str, prompt: str, headers: dict[str, str], **fields: Any) -> Said:
    async with openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key=KEY, max_retries=0, default_headers=headers
    ) as client:
        return said(await client.chat.completions.create(**openai_fields(prompt, fields)))


async def openai_async_stream(
    url: str, prompt: str, headers: dict[str, str], **fields: Any
) -> Said:
    async with (
        openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key=KEY, max_retries=0, default_headers=headers
        ) as client,
        client.chat.completions.stream(**openai_fields(prompt, STREAM | fields)) as stream,
    ):
        return said(await stream.get_final_completion())


async def langchain(
    url: str, prompt: str, headers: dict[str, str], *, stream: bool, **fields: Any
) -> Said:
    # Clients of its own: the shared ones that it makes otherwise outlive the test's loop.
    async with openai.DefaultAsyncHttpxClient() as http:
        with openai.DefaultHttpxClient() as blocking:
            model = ChatOpenAI(
                model="m",
                base_url=f"{url}/v1",
                api_key=SecretStr(KEY),
                max_retries=0,
                stream_usage=True,
                default_headers=headers,
                http_async_client=http,
                http_client=blocking,
            ).bind(**fields)
            if not stream:
                return said_to_langchain(await model.ainvoke(prompt))
            chunks = [chunk async for chunk in model.astream(prompt)]
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk  # type: ignore[assignment]  # it adds up to a message
    return said_to_langchain(whole)


def in_thread(call: Callable[..., Said]) -> Callable[..., Awaitable[Said]]:
    async def run(*args: Any, **fields: Any) -> Said:
        return await anyio.to_thread.run_sync(partial(call, *args, **fields))

    return run


CLIENTS: dict[str, Callable[..., Awaitable[Said]]] = {
    "openai": in_thread(openai_sync),
    "openai-stream": in_thread(openai_sync_stream),
    "async-openai": openai_async,
    "async-openai-stream": openai_async_stream,
    "langchain": partial(langchain, stream=False),
    "langchain-stream": partial(langchain, stream=True),
}
every_client = pytest.mark.parametrize("ask", CLIENTS.values(), ids=CLIENTS)


@every_client
async def test_a_miss_an_exact_and_a_semantic_hit_say_the_same(
    ask: Callable[..., Awaitable[Said]],
) -> None:
    async with sidecar() as gateway:
        miss = await ask(gateway.url, PROMPT, {})
        await gateway.indexed(1)
        exact = await ask(gateway.url, PROMPT, {})
        semantic = await ask(gateway.url, REWORDED, {})
        await gateway.finished(3)
        assert gateway.outcomes == [Outcome.MISS, Outcome.EXACT, Outcome.SEMANTIC]
        assert gateway.provider.calls == 1
    assert miss.text == ANSWER
    assert miss.tokens[1] == len(ANSWER.split())
    assert miss == exact == semantic


@every_client
async def test_concurrent_identical_calls_get_one_answer(
    ask: Callable[..., Awaitable[Said]],
) -> None:
    answers: list[Said] = []
    async with sidecar() as gateway:

        async def call() -> None:
            answers.append(await ask(gateway.url, PROMPT, {}))

        gateway.provider.open.clear()
        async with anyio.create_task_group() as callers:
            callers.start_soon(call)
            callers.start_soon(call)
            await gateway.in_flight(2)
            gateway.provider.open.set()
        await gateway.finished(2)
        assert sorted(gateway.outcomes) == [Outcome.JOINED, Outcome.MISS]
        assert gateway.provider.calls == 1
    assert answers[0] == answers[1]
    assert answers[0].text == ANSWER


async def test_a_stored_stream_answers_json_and_the_other_way_round() -> None:
    async with sidecar() as gateway:
        streamed = await openai_async_stream(gateway.url, PROMPT, {})
        assert await openai_async(gateway.url, PROMPT, {}) == streamed
        other = "What is the boiling point of water?"
        whole = await openai_async(gateway.url, other, {})
        assert await openai_async_stream(gateway.url, other, {}) == whole
        assert gateway.provider.calls == 2


@every_client
async def test_tool_calls_pass_whole_and_are_never_replayed(
    ask: Callable[..., Awaitable[Said]],
) -> None:
    fields = {"tools": [WEATHER], "tool_choice": "required"}
    async with sidecar() as gateway:
        first = await ask(gateway.url, "What is the weather in Oslo?", {}, **fields)
        again = await ask(gateway.url, "What is the weather in Oslo?", {}, **fields)
        await gateway.finished(2)
        assert gateway.outcomes == [Outcome.MISS, Outcome.MISS]
        direct = await ask(gateway.provider_url, "What is the weather in Oslo?", {}, **fields)
    assert [name for _, name, _ in first.tools] == ["get_weather"]
    assert without_ids(first) == without_ids(again) == without_ids(direct)


@every_client
async def test_a_wrong_key_is_the_clients_authentication_error(
    ask: Callable[..., Awaitable[Said]],
) -> None:
    async with sidecar(Provider(api_keys=["another"])) as gateway:
        with pytest.raises(openai.AuthenticationError, match="Incorrect API key provided"):
            await ask(gateway.url, PROMPT, {})


@every_client
async def test_a_missing_gateway_key_is_the_clients_authentication_error(
    ask: Callable[..., Awaitable[Said]],
) -> None:
    async with sidecar(server={"client_keys": ["let-me-in"]}) as gateway:
        with pytest.raises(openai.AuthenticationError) as caught:
            await ask(gateway.url, PROMPT, {})
        assert gateway.provider.calls == 0
    assert caught.value.code == "invalid_api_key"


@every_client
async def test_a_rate_limit_is_the_clients_rate_limit_error(
    ask: Callable[..., Awaitable[Said]],
) -> None:
    limit = Status(status=429, code="rate_limit_exceeded", headers={"retry-after": "1"})
    async with sidecar() as gateway:
        with pytest.raises(openai.RateLimitError) as caught:
            await ask(gateway.url, PROMPT, {"x-sim-fault": limit.header()})
    assert caught.value.code == "rate_limit_exceeded"
    assert caught.value.response.headers["retry-after"] == "1"


@pytest.mark.parametrize("name", ["openai-stream", "async-openai-stream", "langchain-stream"])
@pytest.mark.parametrize("fault", [ErrorFrame(after=3), Cut(after=3), Cut(after=3, how="end")])
async def test_a_stream_that_breaks_is_the_clients_api_error(
    name: str, fault: ErrorFrame | Cut
) -> None:
    async with sidecar() as gateway:
        with pytest.raises(openai.APIError):
            await CLIENTS[name](gateway.url, PROMPT, {"x-sim-fault": fault.header()})
        healthy = await CLIENTS[name](gateway.url, PROMPT, {})
        await gateway.finished(2)
        assert gateway.outcomes == [Outcome.MISS, Outcome.MISS]
    assert healthy.text == ANSWER


async def test_a_client_that_stops_reading_a_stream_cancels_it_upstream() -> None:
    async with sidecar(Provider(profile="groq", speed=0.1)) as gateway:
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=KEY) as client:
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": PROMPT}], stream=True
            )
            await anext(aiter(stream))
            await stream.close()
        await until(lambda: gateway.provider.stats.snapshot().cancelled)
