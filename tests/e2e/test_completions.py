"""Legacy completions are cached exactly, streamed, joined and routed, and never translated."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import openai
import pytest

from headstart.decisions import Outcome
from headstart.lab.simulator.faults import Cut, ErrorFrame, Status
from support.proxied import read_body
from support.sidecar import Provider, headers_of, sidecar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

PATH = "/v1/completions"
EXACT = "headstart; hit; ttl=604799; detail=exact"


def client(url: str, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=0, **options)


async def complete(url: str, **fields: Any) -> Any:
    """Return what the SDK makes of an answer, without its id and time."""
    fields = {"model": "m", "prompt": "def f(", "max_tokens": 300, **fields}
    async with client(url) as sdk:
        made = await sdk.completions.create(**fields)
        return made.model_dump(exclude={"id", "created"})


async def stream(url: str, **fields: Any) -> tuple[dict[int, str], dict[int, str], Any]:
    """Return text and finish reason of each choice of a stream, and the usage."""
    fields = {"model": "m", "prompt": "def f(", "max_tokens": 300, **fields}
    texts: dict[int, str] = {}
    finishes: dict[int, str] = {}
    usage = None
    async with client(url) as sdk:
        chunks: AsyncIterator[Any] = await sdk.completions.create(**fields, stream=True)
        async for chunk in chunks:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
                if choice.finish_reason:
                    finishes[choice.index] = choice.finish_reason
    return texts, finishes, usage


CASES: list[dict[str, Any]] = [
    {},
    {"suffix": "return x"},
    {"prompt": ["one", "two"], "n": 2},
    {"prompt": [1, 2, 3]},
    {"prompt": [[1, 2], [3]]},
    {"logprobs": 2},
    {"logprobs": 0, "echo": True},
    {"max_tokens": 3},
]


@pytest.mark.parametrize("fields", CASES, ids=repr)
@pytest.mark.parametrize("first_streams", [False, True])
async def test_sdks_see_no_difference_in_a_repeat(
    fields: dict[str, Any], first_streams: bool
) -> None:
    usage = {"stream_options": {"include_usage": True}}
    async with sidecar() as gateway:
        right = await complete(gateway.provider_url, **fields)
        if first_streams:
            fresh = await stream(gateway.url, **fields, **usage)
        else:
            assert await complete(gateway.url, **fields) == right
            fresh = await stream(gateway.provider_url, **fields, **usage)
        calls = gateway.provider.calls
        again = await complete(gateway.url, **fields)
        replayed = await stream(gateway.url, **fields, **usage)
        assert gateway.provider.calls == calls
        await gateway.finished(3)
    assert again == right
    assert replayed[:2] == fresh[:2]
    assert replayed[2] == fresh[2]
    assert fresh[0] == {each["index"]: each["text"] for each in right["choices"]}
    outcomes = [Outcome.MISS, Outcome.EXACT, Outcome.EXACT]
    assert [row.outcome for row in gateway.served] == outcomes
    assert gateway.served[1].saved_tokens == right["usage"]["total_tokens"]


async def test_blocking_clients_are_served_too() -> None:
    def ask(url: str) -> list[str]:
        with openai.OpenAI(base_url=url + "/v1", api_key="k", max_retries=0) as sdk:
            made = sdk.completions.create(model="m", prompt="x", stream=True)
            return [choice.text for chunk in made for choice in chunk.choices]

    async with sidecar() as gateway:
        first = await anyio.to_thread.run_sync(ask, gateway.url)
        again = await anyio.to_thread.run_sync(ask, gateway.url)
    assert "".join(first) == "".join(again) != ""
    assert gateway.provider.calls == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"suffix": "s"}, {"echo": True}, {"logprobs": 1}, {"n": 2}, {"best_of": 2},
        {"max_tokens": 4}, {"stop": "\n"}, {"temperature": 0.5}, {"seed": 1}, {"model": "o"},
        {"prompt": "y"},
    ],
    ids=repr,
)  # fmt: skip
async def test_fields_that_steer_the_text_are_keyed(fields: dict[str, Any]) -> None:
    async with sidecar() as gateway:
        for each in ({}, fields, fields, {}):
            extra = {name: each[name] for name in each.keys() & {"best_of", "seed"}}
            rest = {name: value for name, value in each.items() if name not in extra}
            await complete(gateway.url, **rest, extra_body=extra)
        await gateway.finished(4)
    outcomes = [Outcome.MISS, Outcome.MISS, Outcome.EXACT, Outcome.EXACT]
    assert [row.outcome for row in gateway.served] == outcomes


async def test_users_and_keys_do_not_share() -> None:
    async with sidecar() as gateway:
        for user in ("a", "b", "a"):
            await complete(gateway.url, user=user)
        async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="other") as other:
            await other.completions.create(model="m", prompt="def f(", max_tokens=300, user="a")
        await gateway.finished(4)
    outcomes = [Outcome.MISS, Outcome.MISS, Outcome.EXACT, Outcome.MISS]
    assert [row.outcome for row in gateway.served] == outcomes


async def test_equal_completions_in_flight_share_one_call() -> None:
    provider = Provider()
    provider.open.clear()
    async with sidecar(provider) as gateway:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(complete(gateway.url)) for _ in range(3)]
            await gateway.in_flight(3)
            provider.open.set()
        answers = [each.result() for each in asked]
    assert answers[0] == answers[1] == answers[2]
    assert provider.calls == 1


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("fault", [Cut(after=3), ErrorFrame(after=3), Status(status=503)])
async def test_broken_answers_are_not_stored(streams: bool, fault: Any) -> None:
    body = {"model": "m", "prompt": "x", "max_tokens": 50, "stream": streams}
    async with sidecar() as gateway:
        asking = gateway.session.post(gateway.url + PATH, json=body, headers=headers_of(fault))
        try:
            async with asking as response:
                await read_body(response)
        except OSError:
            pass
        await gateway.finished(1)
        answer = await complete(gateway.url, prompt="x", max_tokens=50)
        await gateway.finished(2)
    assert answer["choices"][0]["text"]
    if streams or not isinstance(fault, ErrorFrame):
        assert [row.outcome for row in gateway.served] == [Outcome.MISS, Outcome.MISS]


@pytest.mark.parametrize("strategy", ["fallback", "race", "hedge"])
@pytest.mark.parametrize("streams", [False, True])
async def test_completions_take_routes_and_fail_over(strategy: str, streams: bool) -> None:
    down = Provider(fault=Status(status=500))
    async with sidecar() as healthy:
        others = (
            {"name": "other", "base_url": healthy.provider_url, "cancels_billing": True,
             "models": {"m": "m-there"}},
        )  # fmt: skip
        route: dict[str, Any] = {
            "name": "r", "strategy": strategy, "upstreams": ["sim", "other"],
            "match": {"path": PATH}, "equal_models": "assume",
        }  # fmt: skip
        if strategy == "fallback":
            del route["equal_models"]
        upstream = {"cancels_billing": True}
        async with sidecar(down, others=others, routes=(route,), upstream=upstream) as gateway:
            if streams:
                texts, finishes, _ = await stream(gateway.url)
                assert texts[0]
                assert finishes == {0: "stop"}
            else:
                answer = await complete(gateway.url)
                assert answer["model"] == "m-there"
                assert answer["object"] == "text_completion"
            await gateway.finished(1)
    (row,) = gateway.served
    assert row.route == "r"
    assert row.upstream == "other"
    assert {each.upstream for each in row.attempts} == {"sim", "other"}


async def test_an_upstream_of_another_dialect_is_refused_with_the_fix() -> None:
    async with sidecar(upstream={"dialect": "anthropic"}) as gateway:
        with pytest.raises(openai.BadRequestError, match="legacy completions are not translated"):
            await complete(gateway.url)
    assert gateway.provider.calls == 0
    # Whoever says that it has them is believed.
    also = {"dialect": "anthropic", "also_speaks": ["completions"]}
    async with sidecar(upstream=also) as gateway:
        assert (await complete(gateway.url))["choices"][0]["text"]


async def test_a_chat_is_never_asked_as_a_completion() -> None:
    async with sidecar(upstream={"dialect": "completions"}) as gateway:
        reply = await gateway.ask("hello")
        assert reply.status == 400
        assert b"takes no chat" in reply.body
        assert (await complete(gateway.url))["choices"][0]["text"]


async def test_completions_are_never_shaped() -> None:
    output = {"max_tokens": "guard", "concise": 3}
    compression = {"mode": "aggressive"}
    prompt = "the same line of a log\n" * 200
    async with sidecar(output=output, compression=compression) as gateway:
        async with client(gateway.url) as sdk:
            made = await sdk.completions.with_raw_response.create(
                model="m", prompt=prompt, max_tokens=5
            )
        assert "x-headstart-transforms" not in made.headers
        seen = gateway.provider.stats.ended_calls(0)
    assert seen[-1].prompt_tokens == len(prompt) // 4
