"""Answers that call tools are replayed to exact repeats, where the operator names the tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headstart.decisions import Outcome
from support.sdks import CLIENTS, TOOL, Ask
from support.sidecar import Sidecar, sidecar

if TYPE_CHECKING:
    from support.proxied import Reply

pytestmark = [
    pytest.mark.anyio,
    # google-genai derives its own session from aiohttp's.
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]

PROMPT = "What is the weather in Paris?"


def function(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


async def ask(gateway: Sidecar, prompt: str = PROMPT, *names: str, **fields: Any) -> Reply:
    tools = [function(name) for name in names or ("get_weather",)]
    return await gateway.ask(prompt, tools=tools, **fields)


def called(reply: Reply) -> list[str]:
    (choice,) = msgspec.json.decode(reply.body)["choices"]
    return [call["function"]["name"] for call in choice["message"].get("tool_calls") or ()]


@pytest.mark.parametrize("sdk", CLIENTS)
@pytest.mark.parametrize("streams", [False, True])
async def test_an_exact_repeat_gets_the_same_call(sdk: str, streams: bool) -> None:
    upstream = {"dialect": sdk}
    async with sidecar(upstream=upstream, cache={"cached_tools": [TOOL]}) as gateway:
        asked = Ask("m", PROMPT, stream=streams, tools=True)
        first = await CLIENTS[sdk](gateway.url, asked)
        again = await CLIENTS[sdk](gateway.url, asked)
        other = await CLIENTS[sdk](gateway.url, asked._replace(stream=not streams))
        await gateway.finished(3)
    assert [call[1] for call in first.tools] == [TOOL]
    assert again.tools == first.tools
    assert [call[1:] for call in other.tools] == [call[1:] for call in first.tools]
    outcomes = [Outcome.MISS, Outcome.EXACT, Outcome.EXACT]
    assert [row.outcome for row in gateway.served] == outcomes
    assert gateway.provider.calls == 1


async def test_a_whole_loop_of_an_agent_is_replayed() -> None:
    async with sidecar(cache={"cached_tools": "*"}) as gateway:
        for _ in range(2):
            first = await CLIENTS["openai"](gateway.url, Ask("m", PROMPT, tools=True))
            followed = Ask("m", PROMPT, tools=True, result=(first, "sunny"))
            assert (await CLIENTS["openai"](gateway.url, followed)).text
        await gateway.finished(4)
    assert [row.outcome for row in gateway.served] == [Outcome.MISS] * 2 + [Outcome.EXACT] * 2


@pytest.mark.parametrize(
    ("tools", "stored"),
    [
        ([], False),
        (["send_mail"], False),
        (["get_weather"], True),
        (["get_*"], True),
        ("get_weather", True),
        ("*", True),
        (["Get_Weather"], False),
    ],
)
async def test_only_named_tools_may_be_replayed(tools: Any, stored: bool) -> None:
    async with sidecar(cache={"cached_tools": tools}) as gateway:
        first = await ask(gateway)
        again = await ask(gateway)
    assert called(first) == called(again) == ["get_weather"]
    assert first.verdict.endswith("stored" if stored else "not-stored:tool-calls")
    assert again.headers["x-cache"] == ("HIT" if stored else "MISS")


async def test_routes_have_tools_of_their_own() -> None:
    routes = (
        {"name": "replay", "match": {"header": {"x-run": "ci"}}, "cached_tools": "*"},
        {"name": "live", "match": {"header": {"x-run": "live"}}, "cached_tools": []},
    )
    cache = {"cached_tools": ["other"], "ignore_headers": ["x-run", "x-sim-fault"]}
    async with sidecar(routes=routes, cache=cache) as gateway:
        replies = [
            await gateway.ask(PROMPT, tools=[function("get_weather")], headers={"x-run": run})
            for run in ("live", "ci", "ci", "live", "none")
        ]
    verdicts = [each.verdict.removeprefix("headstart; ").split(";")[0] for each in replies]
    assert verdicts == ["fwd=miss", "fwd=miss", "hit", "fwd=miss", "fwd=miss"]
    # What one route stored, another does not serve, and says why.
    assert replies[3].verdict == "headstart; fwd=miss; detail=tool-calls/not-stored:tool-calls"
    assert replies[4].verdict == "headstart; fwd=miss; detail=tool-calls/not-stored:tool-calls"


async def test_a_call_is_never_found_by_its_meaning() -> None:
    # No question about the weather: the answer to that would be too short-lived in any case.
    first, reworded = "How do I find a recipe for bread?", "How can I find a recipe for bread?"
    cache = {"cached_tools": "*", "match": "static", "threshold": 0.5}
    async with sidecar(cache=cache) as gateway:
        assert called(await ask(gateway, first, "find_recipe")) == ["find_recipe"]
        await ask(gateway, "Tell me a joke")  # a text, which is indexed after the calls
        await gateway.indexed(1)
        other = await ask(gateway, reworded, "find_recipe")
        again = await ask(gateway, first, "find_recipe")
        assert gateway.parts[0].cache is not None
        assert (await gateway.parts[0].cache.stats()).vectors == 1
    assert other.headers["x-cache"] == "MISS"
    assert again.headers["x-cache"] == "HIT"


async def test_texts_beside_tools_are_cached_as_ever() -> None:
    async with sidecar() as gateway:
        replies = [await ask(gateway, "Tell me a joke", "get_weather") for _ in range(2)]
    assert [each.headers["x-cache"] for each in replies] == ["MISS", "HIT"]
