"""The official client accepts what the simulator says; the client may be sync or async."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import openai
import pydantic
import pytest

from headstart.lab.simulator import Oracle, Simulator
from headstart.lab.simulator.faults import Cut, ErrorFrame, Status
from support.simulated import simulated

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

pytestmark = pytest.mark.anyio

ASK = "How do TCP and UDP differ?"
ANSWER = Oracle().truth(ASK).text
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": ASK}]


def _client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-test", max_retries=0)


async def test_async_completion() -> None:
    async with simulated(Simulator(api_keys=["sk-test"])) as url, _client(url) as client:
        answer = await client.chat.completions.create(model="m", messages=MESSAGES)
    assert answer.choices[0].message.content == ANSWER
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(ANSWER.split())


async def test_async_stream() -> None:
    async with (
        simulated(Simulator()) as url,
        _client(url) as client,
        client.chat.completions.stream(
            model="m", messages=MESSAGES, stream_options={"include_usage": True}
        ) as stream,
    ):
        kinds = {event.type async for event in stream}
        final = await stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == ANSWER
    assert final.usage is not None
    assert final.usage.completion_tokens == len(ANSWER.split())


def _ask_synchronously(url: str, *, stream: bool) -> str | None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="sk-test", max_retries=0) as client:
        if not stream:
            answer = client.chat.completions.create(model="m", messages=MESSAGES)
            return answer.choices[0].message.content
        chunks = client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


@pytest.mark.parametrize("stream", [True, False])
async def test_the_synchronous_client(stream: bool) -> None:
    async with simulated(Simulator()) as url:
        said = await anyio.to_thread.run_sync(partial(_ask_synchronously, url, stream=stream))
    assert said == ANSWER


async def test_tools_and_several_choices_accumulate() -> None:
    tools: Any = [
        {
            "type": "function",
            "function": {
                "name": name,
                "strict": True,
                "parameters": {
                    "type": "object",
                    "properties": {"host": {"type": "string"}},
                    "required": ["host"],
                    "additionalProperties": False,
                },
            },
        }
        for name in ("ping_host", "trace_host")
    ]
    async with (
        simulated(Simulator()) as url,
        _client(url) as client,
        client.chat.completions.stream(
            model="m",
            messages=[{"role": "user", "content": "Ping and trace the host example"}],
            tools=tools,
            n=2,
        ) as stream,
    ):
        final = await stream.get_final_completion()
    assert len(final.choices) == 2
    for choice in final.choices:
        assert choice.finish_reason == "tool_calls"
        calls = choice.message.tool_calls or []
        names = [call.function.name for call in calls]
        assert names == ["ping_host", "trace_host"]
        assert len({call.id for call in calls}) == 2


async def test_the_sdk_parses_a_structured_output() -> None:
    class Verdict(pydantic.BaseModel):
        lossless: bool
        note: str | None

    async with simulated(Simulator()) as url, _client(url) as client:
        answer = await client.chat.completions.parse(
            model="m", messages=MESSAGES, response_format=Verdict
        )
    assert answer.choices[0].message.parsed == Verdict(lossless=True, note="example")


async def test_embeddings_and_models() -> None:
    async with simulated(Simulator("groq")) as url, _client(url) as client:
        vectors = await client.embeddings.create(model="e", input=["a", "b"], dimensions=16)
        models = await client.models.list()
        model = await client.models.retrieve(models.data[0].id)
    assert [len(item.embedding) for item in vectors.data] == [16, 16]
    assert model.id == "mixtral-8x7b-32768"


async def test_errors_become_the_clients_own() -> None:
    limited = Status(
        status=429, code="rate_limit_exceeded", type="requests", headers={"retry-after": "2"}
    )
    async with simulated(Simulator(api_keys=["other"])) as url, _client(url) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(model="m", messages=MESSAGES)
    async with simulated(Simulator(fault=limited)) as url, _client(url) as client:
        with pytest.raises(openai.RateLimitError) as raised:
            await client.chat.completions.create(model="m", messages=MESSAGES)
    assert raised.value.code == "rate_limit_exceeded"
    assert raised.value.response.headers["retry-after"] == "2"
    assert (raised.value.request_id or "").startswith("req_")


async def test_an_error_inside_a_stream_is_raised() -> None:
    said: list[str] = []

    async def read(stream: openai.AsyncStream[ChatCompletionChunk]) -> None:
        async for chunk in stream:
            said.append(chunk.choices[0].delta.content or "")  # noqa: PERF401 - it raises

    fault = ErrorFrame(after=3, message="out of memory")
    async with simulated(Simulator(fault=fault)) as url, _client(url) as client:
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="out of memory"):
            await read(stream)
    assert "".join(said) == " ".join(ANSWER.split()[:3])


async def test_the_clients_retry_survives_one_reset() -> None:
    simulator = Simulator(fault=Cut(times=1))
    async with (
        simulated(simulator) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=1) as client,
    ):
        answer = await client.chat.completions.create(model="m", messages=MESSAGES)
    assert answer.choices[0].message.content == ANSWER
    assert simulator.stats.snapshot().broken == 1
