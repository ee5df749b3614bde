"""A stored answer of Chat Completions serves a request of Responses, and the reverse."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from headstart.decisions import Outcome
from headstart.lab.simulator import Oracle
from support.patience import until
from support.proxied import Reply, proxied, reply_of
from support.scripted import ScriptedUpstream
from support.sdks import KEY
from support.sidecar import PROMPT, REWORDED, headers_of, sidecar

pytestmark = pytest.mark.anyio

ANSWER = Oracle().truth(PROMPT).text
EXACT = {"mode": "exact-only"}
NATIVE = {"also_speaks": ["responses"]}
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}
SYSTEM = "Be kind."
each_mode = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
MAIN = {"dialect": "responses"}


async def chat(url: str, text: str = PROMPT, *, stream: bool = False, **fields: Any) -> Any:
    """Return text, and the tokens of the answer, as the client of Chat sees them."""
    messages: Any = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0) as client:
        if not stream:
            whole = await client.chat.completions.create(model="m", messages=messages, **fields)
            assert whole.usage is not None
            assert whole.choices[0].finish_reason == "stop"
            return whole.choices[0].message.content, whole.usage.completion_tokens
        told = await client.chat.completions.create(
            model="m", messages=messages, stream=True,
            stream_options={"include_usage": True}, **fields,
        )  # fmt: skip
        text, tokens = "", 0
        async for event in told:
            tokens = event.usage.completion_tokens if event.usage else tokens
            text += "".join([choice.delta.content or "" for choice in event.choices])
        return text, tokens


async def respond(url: str, asked: Any = PROMPT, *, stream: bool = False, **fields: Any) -> Any:
    """Return the response that the client makes of an answer."""
    fields.setdefault("instructions", SYSTEM)
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0) as client:
        if not stream:
            return await client.responses.create(model="m", input=asked, **fields)
        async with client.responses.stream(model="m", input=asked, **fields) as events:
            return await events.get_final_response()


@each_mode
@pytest.mark.parametrize("upstream", [NATIVE, {}], ids=["both", "chat-alone"])
async def test_an_answer_of_chat_serves_responses(upstream: dict[str, Any], stream: bool) -> None:
    async with sidecar(upstream=upstream, cache=EXACT) as gateway:
        text, tokens = await chat(gateway.url, stream=not stream)
        found = await respond(gateway.url, stream=stream)
        assert (found.output_text, found.usage.output_tokens) == (text, tokens) == (ANSWER, tokens)
        assert (found.status, tokens > 0) == ("completed", True)
        parts = [{"type": "input_text", "text": PROMPT}]
        listed = await respond(gateway.url, [{"role": "user", "content": parts}], stream=stream)
        assert listed.id == found.id
        assert gateway.outcomes == [Outcome.MISS, Outcome.EXACT, Outcome.EXACT]


@each_mode
@pytest.mark.parametrize("upstream", [NATIVE, MAIN], ids=["both", "responses-alone"])
async def test_an_answer_of_responses_serves_chat(upstream: dict[str, Any], stream: bool) -> None:
    async with sidecar(upstream=upstream, cache=EXACT) as gateway:
        first = await respond(gateway.url, stream=not stream)
        found = await chat(gateway.url, stream=stream)
        assert found == (first.output_text, first.usage.output_tokens)
        again = await respond(gateway.url, stream=stream)
        assert again.id == first.id
        assert gateway.outcomes == [Outcome.MISS, Outcome.EXACT, Outcome.EXACT]


async def test_a_conversation_goes_on_from_an_answer_of_chat() -> None:
    async with sidecar(upstream=NATIVE, cache=EXACT) as gateway:
        await chat(gateway.url)
        found = await respond(gateway.url)
        assert found.id.startswith("resp_hs")
        more = {"previous_response_id": found.id, "instructions": SYSTEM}
        first, again = [await respond(gateway.url, "And then?", **more) for _ in range(2)]
        assert first.output_text == again.output_text
        assert gateway.outcomes == [Outcome.MISS, Outcome.EXACT, Outcome.MISS, Outcome.EXACT]


async def test_a_rewording_in_the_other_api_is_a_hit() -> None:
    async with sidecar(upstream=NATIVE) as gateway:
        await chat(gateway.url)
        await gateway.indexed(1)
        found = await respond(gateway.url, REWORDED)
        assert found.output_text == ANSWER
        assert gateway.outcomes == [Outcome.MISS, Outcome.SEMANTIC]


@pytest.mark.parametrize(
    "fields",
    [
        {"instructions": "Be brief."},
        {"temperature": 0.5},
        {"reasoning": {"effort": "low"}},
        {"include": ["message.output_text.logprobs"]},
        {"text": {"verbosity": "low"}},
        {"tools": [{"type": "function", "name": "f", "parameters": {}, "strict": False}]},
        {"truncation": "auto"},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_a_request_that_means_something_else_shares_nothing(fields: dict[str, Any]) -> None:
    async with sidecar(upstream=NATIVE, cache=EXACT) as gateway:
        await chat(gateway.url)
        await respond(gateway.url, **fields)
        assert gateway.outcomes == [Outcome.MISS, Outcome.MISS]


async def test_calls_in_flight_are_not_shared_between_the_apis() -> None:
    async with sidecar(upstream=NATIVE, cache=EXACT) as gateway:
        gateway.provider.open.clear()
        async with asyncio.TaskGroup() as group:
            one = group.create_task(chat(gateway.url, stream=True))
            other = group.create_task(respond(gateway.url, stream=True))
            await until(lambda: len(gateway.parts[0].flights) >= 2)
            gateway.provider.open.set()
        assert one.result()[0] == other.result().output_text == ANSWER
        assert gateway.outcomes == [Outcome.MISS, Outcome.MISS]


async def test_upstreams_that_differ_share_nothing() -> None:
    other = {"name": "other", "dialect": "responses"}
    async with sidecar(cache=EXACT, others=(other,)) as gateway:
        await chat(gateway.url)
        await respond(gateway.url)
        assert gateway.outcomes == [Outcome.MISS, Outcome.MISS]


def whole(reasoning: int = 0, **message: Any) -> bytes:
    details = {"reasoning_tokens": reasoning}
    usage = {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}
    said = {"role": "assistant", "content": "Blue.", **message}
    choice = {"index": 0, "message": said, "finish_reason": "stop"}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return json.dumps(body | {"usage": {**usage, "completion_tokens_details": details}}).encode()


async def post(proxy: Any, api: str) -> Reply:
    turn = {"role": "user", "content": "Sky?"}
    asked = {"messages": [turn]} if api == "chat" else {"input": [turn]}
    async with proxy.session.post(
        proxy.url + PATHS[api], json={"model": "m", **asked}, headers=headers_of()
    ) as response:
        return await reply_of(response)


@pytest.mark.parametrize(
    ("first", "answer", "why"),
    [
        ("chat", whole(reasoning=7), "reasoning"),
        ("chat", whole(reasoning_content="I look up."), "parts"),
        ("chat", whole(note="of a provider"), "fields"),
        ("responses", whole(), "translated"),
    ],
    ids=["reasoned", "thought", "with-a-note", "translated"],
)
async def test_a_loss_is_named_and_each_api_keeps_its_own_answer(
    first: str, answer: bytes, why: str
) -> None:
    provider = ScriptedUpstream()
    provider.headers = [(b"content-type", b"application/json")]
    provider.body = answer
    async with proxied(provider, cache=EXACT) as proxy:
        (second,) = PATHS.keys() - {first}
        order = (first, second, first, second, first)
        verdicts = [(await post(proxy, api)).verdict for api in order]
    assert verdicts[1].startswith(f"headstart; fwd=miss; detail=other-api:{why}")
    assert [each.startswith("headstart; hit") for each in verdicts] == [
        False, False, True, True, True,
    ]  # fmt: skip
    assert len(provider.calls) == 2
