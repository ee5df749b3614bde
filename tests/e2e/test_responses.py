"""OpenAI's Responses through the gateway, with OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pydantic
import pytest

from headstart.attempts import AttemptOutcome, AttemptRole
from headstart.decisions import Outcome
from headstart.lab.simulator import Oracle
from headstart.lab.simulator.faults import Cut, ErrorFrame, Fault, Stall, Status
from support.proxied import Reply, proxied, reply_of
from support.responses import events_in
from support.scripted import ScriptedUpstream
from support.sdks import KEY
from support.sidecar import PROMPT, REWORDED, Provider, Sidecar, headers_of, sidecar
from support.simulated import simulated

pytestmark = pytest.mark.anyio

ANSWER = Oracle().truth(PROMPT).text
EXACT = {"mode": "exact-only"}
NATIVE = {"also_speaks": ["responses"]}
PATH = "/v1/responses"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
each_mode = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
each_upstream = pytest.mark.parametrize(
    "upstream", [NATIVE, {}, {"dialect": "responses"}], ids=["native", "translated", "main"]
)


def client_of(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0)


async def ask(url: str, asked: Any = PROMPT, *, stream: bool = False, **fields: Any) -> Any:
    """Return the whole response that the client makes of an answer."""
    async with client_of(url) as client:
        if not stream:
            return await client.responses.create(model="m", input=asked, **fields)
        async with client.responses.stream(model="m", input=asked, **fields) as events:
            return await events.get_final_response()


async def post(
    gateway: Sidecar, fault: Fault | None = None, more: dict[str, str] | None = None, **fields: Any
) -> Reply:
    body = {"model": "m", "input": PROMPT, **fields}
    async with gateway.session.post(
        gateway.url + PATH, json=body, headers=headers_of(fault, more)
    ) as response:
        return await reply_of(response)


@each_mode
@each_upstream
async def test_a_repeat_is_a_hit_in_either_mode(upstream: dict[str, Any], stream: bool) -> None:
    async with sidecar(upstream=upstream, cache=EXACT) as gateway:
        first = await ask(gateway.url, stream=stream)
        again = await ask(gateway.url, stream=stream)
        turned = await ask(gateway.url, stream=not stream)
        listed = await ask(gateway.url, [{"role": "user", "content": PROMPT}], stream=stream)
        assert {each.output_text for each in (first, again, turned, listed)} == {ANSWER}
        assert {each.usage.output_tokens for each in (first, again, turned)} == {
            first.usage.output_tokens
        }
        assert gateway.outcomes == [Outcome.MISS, *[Outcome.EXACT] * 3]
        assert gateway.provider.calls == 1


async def test_a_hit_of_its_own_provider_keeps_the_ids_that_later_calls_may_name() -> None:
    async with sidecar(upstream=NATIVE, cache=EXACT) as gateway:
        first, again, streamed = [await ask(gateway.url, stream=on) for on in (False, False, True)]
        assert first.id == again.id == streamed.id
        assert first.output[0].id == again.output[0].id == streamed.output[0].id


@each_upstream
async def test_a_rewording_is_a_hit(upstream: dict[str, Any]) -> None:
    async with sidecar(upstream=upstream) as gateway:
        await ask(gateway.url)
        await gateway.indexed(1)
        again = await ask(gateway.url, [{"role": "user", "content": REWORDED}], stream=True)
        assert again.output_text == ANSWER
        assert gateway.outcomes == [Outcome.MISS, Outcome.SEMANTIC]


async def test_instructions_part_the_answers() -> None:
    async with sidecar(upstream=NATIVE) as gateway:
        await ask(gateway.url, instructions="Be brief.")
        await gateway.indexed(1)
        await ask(gateway.url, REWORDED, instructions="Be long.")
        assert gateway.outcomes == [Outcome.MISS, Outcome.MISS]


@each_upstream
async def test_equal_calls_share_one(upstream: dict[str, Any]) -> None:
    async with sidecar(upstream=upstream, cache=EXACT) as gateway:
        gateway.provider.open.clear()
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(ask(gateway.url, stream=True)) for _ in range(3)]
            await gateway.in_flight(3)
            gateway.provider.open.set()
        assert {task.result().output_text for task in asking} == {ANSWER}
        assert gateway.provider.calls == 1


@each_mode
async def test_a_model_for_the_answer_is_kept_to_and_cached(stream: bool) -> None:
    class Trip(pydantic.BaseModel):
        city: str
        days: int

    async with sidecar(upstream=NATIVE, cache=EXACT) as gateway, client_of(gateway.url) as client:
        for _ in range(2):
            if stream:
                async with client.responses.stream(
                    model="m", input=PROMPT, text_format=Trip
                ) as events:
                    response = await events.get_final_response()
            else:
                response = await client.responses.parse(model="m", input=PROMPT, text_format=Trip)
            assert response.output_parsed == Trip(city="example", days=1)
        assert gateway.outcomes == [Outcome.MISS, Outcome.EXACT]


@each_mode
@each_upstream
async def test_answers_that_call_tools_are_not_kept(upstream: dict[str, Any], stream: bool) -> None:
    async with sidecar(upstream=upstream, cache=EXACT) as gateway:
        for _ in range(2):
            said = await ask(gateway.url, "The weather in Oslo", stream=stream, tools=[WEATHER])
            (call,) = said.output
            assert (call.type, call.name) == ("function_call", "get_weather")
        await gateway.finished(2)
        assert gateway.outcomes == [Outcome.MISS, Outcome.MISS]
        verdict = (await post(gateway, input="The weather in Oslo", tools=[WEATHER])).verdict
        assert verdict.endswith("not-stored:tool-calls")


@each_mode
async def test_sealed_reasoning_survives_a_replay(stream: bool) -> None:
    wish = {"effort": "high", "summary": "auto"}
    fields: dict[str, Any] = {"reasoning": wish, "include": ["reasoning.encrypted_content"]}
    async with sidecar(upstream=NATIVE, cache=EXACT) as gateway:
        first, again = [await ask(gateway.url, stream=stream, **fields) for _ in range(2)]
        assert gateway.outcomes == [Outcome.MISS, Outcome.EXACT]
        thought = first.output[0]
        assert thought.type == "reasoning"
        assert thought.encrypted_content.startswith("sealed:")
        assert again.output[0] == thought
        without = await ask(gateway.url, reasoning=wish)
        assert without.output[0].encrypted_content is None


BEYOND: dict[str, dict[str, Any]] = {
    "background": {"background": True},
    "conversation": {"conversation": "conv_1"},
    "previous-response": {"previous_response_id": "resp_1"},
    "item-reference": {"input": [{"type": "item_reference", "id": "msg_1"}]},
    "hosted-tools": {"tools": [{"type": "web_search"}]},
    "stored-prompt": {"prompt": {"id": "pmpt_1"}},
}


@each_mode
@pytest.mark.parametrize("reason", BEYOND)
async def test_state_and_tools_of_the_provider_pass_untouched(reason: str, stream: bool) -> None:
    item = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}}
    whole = {
        "id": "resp_up", "object": "response", "created_at": 1, "status": "completed",
        "model": "m", "output": [item],
    }  # fmt: skip
    answer = json.dumps(whole, indent=1).encode()
    told: list[bytes] = []
    if stream:
        for kind in ("response.created", "response.output_item.added", "response.completed"):
            data = {"type": kind, "output_index": 0, "item": item, "response": whole}
            told.append(b"event: %b\ndata:%b\n\n" % (kind.encode(), json.dumps(data).encode()))
        answer = b"".join(told)
    provider = ScriptedUpstream()
    content_type = b"text/event-stream" if stream else b"application/json"
    provider.headers, provider.body = [(b"content-type", content_type)], answer
    document = {"model": "m", "input": "Hi", "stream": stream, **BEYOND[reason]}
    body = json.dumps(document, indent=2).encode()
    async with proxied(provider, provider=NATIVE) as proxy:
        for _ in range(2):
            async with proxy.session.post(
                proxy.url + PATH, data=body, headers=headers_of()
            ) as response:
                reply = await reply_of(response)
            assert reply.body == answer
            assert reply.verdict == f"headstart; fwd=bypass; detail={reason}"
    assert [call.body for call in provider.calls] == [body] * 2


@pytest.mark.parametrize("whole", ["Sky blue.", "Sky green."])
async def test_a_stream_that_ends_with_another_text_is_not_stored(whole: str) -> None:
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
    part = {"type": "output_text", "text": whole, "annotations": []}
    said = {**item, "content": [part]}
    response = {"id": "resp_up", "object": "response", "created_at": 1, "model": "m"}
    place = {"output_index": 0, "content_index": 0, "item_id": "msg_1"}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**response, "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        *({"type": "response.output_text.delta", **place, "delta": d} for d in ("Sky", " blue.")),
        {"type": "response.output_text.done", **place, "text": whole},
        {"type": "response.output_item.done", "output_index": 0, "item": said},
        {
            "type": "response.completed",
            "response": {**response, "status": "completed", "output": [said]},
        },
    ]
    provider = ScriptedUpstream()
    provider.headers = [(b"content-type", b"text/event-stream")]
    provider.body = b"".join([b"data: %b\n\n" % json.dumps(each).encode() for each in events])
    body = {"model": "m", "input": "Sky?", "stream": True}
    async with proxied(provider, provider=NATIVE, cache=EXACT) as proxy:
        for _ in range(2):
            async with proxy.session.post(
                proxy.url + PATH, json=body, headers=headers_of()
            ) as response_:
                reply = await reply_of(response_)
                assert "checksums" not in reply.body.decode()
        assert proxy.served[0].not_stored == (None if whole == "Sky blue." else "contradictory")
    assert len(provider.calls) == (1 if whole == "Sky blue." else 2)


async def test_a_stream_passes_byte_for_byte_and_is_replayed_event_for_event() -> None:
    async with sidecar(upstream=NATIVE, cache=EXACT) as gateway:
        fields: dict[str, Any] = {"stream": True, "reasoning": {"effort": "low", "summary": "auto"}}
        passed, replayed = [await post(gateway, **fields) for _ in range(2)]
        live, stored = events_in(passed.body), events_in(replayed.body)
        assert [each["sequence_number"] for each in live] == list(range(len(live)))
        assert replayed.headers["x-cache"] == "HIT"
        kinds = [
            [e["type"] for e in told if not e["type"].endswith(".delta")] for told in (live, stored)
        ]
        assert kinds[0] == kinds[1]
        assert live[-1]["response"]["output"] == stored[-1]["response"]["output"]


@each_mode
@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        (Status(status=429), openai.RateLimitError),
        (Status(status=404), openai.NotFoundError),
        (Status(status=500), openai.InternalServerError),
    ],
)
async def test_errors_are_raised_as_the_client_knows_them(
    fault: Fault, raised: type[Exception], stream: bool
) -> None:
    async with sidecar(Provider(fault=fault), upstream=NATIVE, cache=EXACT) as gateway:
        with pytest.raises(raised):
            await ask(gateway.url, stream=stream)


class Told(Exception):
    """An event told of an error: worded in the older form, the client hands it on."""


async def listen(client: openai.AsyncOpenAI) -> None:
    """Read a stream to its end. Raises Told, or what the client raises."""
    async for event in await client.responses.create(model="m", input=PROMPT, stream=True):
        if event.type == "error":
            raise Told(event.message)


@each_upstream
async def test_an_error_in_a_stream_is_raised_and_nothing_kept(upstream: dict[str, Any]) -> None:
    fault = ErrorFrame(after=5, code="server_error", message="Oops.")
    async with (
        sidecar(Provider(fault=fault), upstream=upstream, cache=EXACT) as gateway,
        client_of(gateway.url) as client,
    ):
        with pytest.raises((openai.APIError, Told), match=r"Oops\."):
            await listen(client)
        await gateway.finished(1)
        assert not gateway.served[0].stored


def two(strategy: str, **fields: Any) -> tuple[dict[str, Any], ...]:
    route = {"name": "all", "strategy": strategy, "upstreams": ["sim", "spare"]}
    return ({**route, "equal_models": "assume", **fields},)


SPARES = [
    NATIVE,
    {},
    {"dialect": "anthropic"},
    {"dialect": "gemini", "models": {"m": "gemini-2.5-flash"}},
]


@each_mode
@pytest.mark.parametrize("other", SPARES, ids=["responses", "openai", "anthropic", "gemini"])
async def test_a_race_goes_over_two_dialects(other: dict[str, Any], stream: bool) -> None:
    slow = Provider(fault=Stall(seconds=60.0, after=0))
    async with simulated(Provider()) as spare:
        others = ({"name": "spare", "base_url": spare, "cancels_billing": True, **other},)
        async with sidecar(
            slow,
            upstream={**NATIVE, "cancels_billing": True},
            others=others,
            routes=two("race"),
            cache=EXACT,
        ) as gateway:
            said = await ask(gateway.url, stream=stream)
            assert said.output_text == ANSWER
            again = await ask(gateway.url, stream=stream)
            assert again.output_text == ANSWER
            assert gateway.outcomes == [Outcome.MISS, Outcome.EXACT]
            assert gateway.served[0].upstream == "spare"


@pytest.mark.parametrize("first", [NATIVE, {}, {"dialect": "anthropic"}], ids=["r", "o", "a"])
@pytest.mark.parametrize("other", SPARES, ids=["responses", "openai", "anthropic", "gemini"])
async def test_a_stream_that_breaks_off_is_gone_on_with_elsewhere(
    first: dict[str, Any], other: dict[str, Any]
) -> None:
    async with simulated(Provider()) as spare:
        others = ({"name": "spare", "base_url": spare, **other},)
        async with sidecar(
            Provider(fault=Cut(after=5, times=1)),
            upstream=first,
            others=others,
            routes=two("fallback"),
            cache=EXACT,
        ) as gateway:
            reply = await post(gateway, stream=True)
            told = events_in(reply.body)
            text = "".join(
                each["delta"] for each in told if each["type"] == "response.output_text.delta"
            )
            assert text == ANSWER
            last = told[-1]["response"]
            assert told[-1]["type"] == "response.completed"
            words = [part["text"] for item in last["output"] for part in item["content"]]
            assert "".join(words) == ANSWER
            assert {each["response"]["id"] for each in told if "response" in each} == {last["id"]}
            await gateway.finished(1)
            assert [
                (each.upstream, each.role, each.outcome) for each in gateway.served[0].attempts
            ] == [
                ("sim", AttemptRole.FIRST, AttemptOutcome.BROKEN),
                ("spare", AttemptRole.RESCUE, AttemptOutcome.WON),
            ]


@each_mode
async def test_a_wish_for_brevity_goes_into_the_instructions(stream: bool) -> None:
    provider = ScriptedUpstream()
    async with proxied(provider, provider=NATIVE, output={"concise": 2, "holdout": 0.0}) as proxy:
        body = {"model": "m", "input": "Why is the sky blue?", "instructions": "Be kind."}
        async with proxy.session.post(
            proxy.url + PATH, json={**body, "stream": stream}, headers=headers_of()
        ) as response:
            await response.read()
    call = provider.calls[0]
    assert call.json["instructions"].startswith("Be kind.\n\n")
    assert call.json["input"] == body["input"]
