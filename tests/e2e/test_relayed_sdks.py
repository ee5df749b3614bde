"""The official clients on paths that are no chat: lists, counts, embeddings, a broken upstream."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import types as gemini

from headstart.lab.simulator import ProviderProfile, Simulator
from support.relaying import RelayingGateway, relay_to
from support.simulated import simulated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.genai.client import AsyncClient


pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]

OPENAI = ProviderProfile(model="gpt-sim")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "operators")


@contextlib.asynccontextmanager
async def gateway(
    *upstreams: dict[str, Any] | None, routes: tuple[dict[str, Any], ...] = ()
) -> AsyncIterator[RelayingGateway]:
    """A gateway before simulated providers named a, b ...; None is one that is down."""
    async with contextlib.AsyncExitStack() as stack:
        options = []
        for settings in upstreams:
            own: dict[str, Any] = {"api_key_env": "KEY", **(settings or {})}
            if settings is not None:
                url = await stack.enter_async_context(simulated(Simulator(profile=OPENAI)))
                own["base_url"] = url
            options.append(own)
        places = (None,) * len(options)
        yield await stack.enter_async_context(
            relay_to(*places, routes=routes, options=tuple(options))
        )


@contextlib.asynccontextmanager
async def openai_client(gate: RelayingGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=gate.url + "/v1", api_key="mine", max_retries=0
    ) as client:
        yield client


@contextlib.asynccontextmanager
async def anthropic_client(gate: RelayingGateway) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=gate.url, api_key="mine", max_retries=0) as client:
        yield client


@contextlib.asynccontextmanager
async def gemini_client(gate: RelayingGateway) -> AsyncIterator[AsyncClient]:
    options = gemini.HttpOptions(base_url=gate.url, api_version="v1beta")
    client = genai.Client(api_key="mine", vertexai=False, http_options=options).aio
    try:
        yield client
    finally:
        await client.aclose()


BOTH = {"name": "both", "upstreams": ["a", "b"], "strategy": "fallback"}


async def test_openais_client_lists_and_embeds_behind_a_broken_first_upstream() -> None:
    async with gateway(None, {}, routes=(BOTH,)) as gate, openai_client(gate) as client:
        listed = [model async for model in client.models.list()]
        assert [(model.id, model.owned_by) for model in listed] == [("gpt-sim", "b")]
        model = await client.models.retrieve("gpt-sim")
        assert (model.id, model.owned_by, model.object) == ("gpt-sim", "b", "model")
        embedded = await client.embeddings.create(model="gpt-sim", input=["one", "two"])
        assert [len(each.embedding) > 0 for each in embedded.data] == [True, True]
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("nothing-of-this-name")


async def test_anthropics_client_lists_and_counts() -> None:
    messages: Any = [{"role": "user", "content": "How many tokens are there in this text?"}]
    claude = {"dialect": "anthropic", "models": {"claude-sim": "claude-sim"}}
    async with gateway(None, claude, routes=(BOTH,)) as gate, anthropic_client(gate) as client:
        listed = [model async for model in client.models.list()]
        assert [model.id for model in listed] == ["claude-sim", "gpt-sim"]
        assert (listed[0].display_name, listed[0].created_at.year) == ("claude-sim", 1970)
        model = await client.models.retrieve("claude-sim")
        assert model.id == "claude-sim"
        counted = await client.messages.with_raw_response.count_tokens(
            model="claude-sim", messages=messages
        )
    assert (await counted.parse()).input_tokens > 5
    assert counted.headers["x-headstart-upstream"] == "b"
    assert "x-headstart-estimated" not in counted.headers


async def test_anthropics_client_gets_an_estimate_if_the_request_would_be_translated() -> None:
    text = "How many tokens are there in this text? " * 30
    options = {"models": {"claude": "gpt-4o"}}
    async with gateway(options) as gate, anthropic_client(gate) as client:
        counted = await client.messages.with_raw_response.count_tokens(
            model="claude", messages=[{"role": "user", "content": text}]
        )
    assert 270 <= (await counted.parse()).input_tokens <= 330
    assert counted.headers["x-headstart-estimated"] == "tokens"


async def test_geminis_client_lists_and_counts() -> None:
    settings = {"dialect": "gemini", "models": {"flash": "gemini-sim"}}
    async with gateway(settings) as gate, gemini_client(gate) as client:
        listed = [model async for model in await client.models.list()]
        assert listed[0].name == "models/flash"
        assert listed[0].display_name == "flash"
        counted = await client.models.count_tokens(model="flash", contents="Some words to count.")
        assert (counted.total_tokens or 0) > 2
        assert gate.served[-1].upstream == "a"


async def test_geminis_client_gets_an_estimate_if_the_request_would_be_translated() -> None:
    settings = {"models": {"flash": "gpt-4o"}}
    async with gateway(settings) as gate, gemini_client(gate) as client:
        counted = await client.models.count_tokens(model="flash", contents="Some words to count.")
        assert 5 <= (counted.total_tokens or 0) <= 12
        assert gate.served[-1].upstream == ""
