"""Every official SDK, twice without a pause: the second call is a hit, however bodies end."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeAlias

import anthropic
import anyio.to_thread
import openai
import pytest
from google import genai
from google.genai import types as gemini
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from headstart.decisions import Outcome
from headstart.observe import Served
from support.endings import TEXT, Ending, EndingProvider, ending
from support.proxied import proxied
from support.sdks import KEY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Ask: TypeAlias = Callable[[str, str], Awaitable[list[str]]]
    """Asks a model the same twice."""

pytestmark = [
    pytest.mark.anyio,
    # google-genai derives its own session from aiohttp's.
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]

DIALECTS = ("openai", "anthropic", "gemini", "cohere", "responses")
ENDINGS = {
    "0 ms": Ending(0.0),
    "2 ms": Ending(0.002),
    "50 ms": Ending(0.05),
    "1 s": Ending(1.0),
    "never": Ending(None),
    "reset": Ending(0.0, reset=True),
}
TWICE = range(2)


def threaded(once: Callable[[str, str], str]) -> Ask:
    """Return a synchronous client's function for this loop, which asks twice."""

    async def run(model: str, prompt: str) -> list[str]:
        return [await anyio.to_thread.run_sync(once, model, prompt) for _ in TWICE]

    return run


def twice(once: Callable[[str, str], Awaitable[str]]) -> Ask:
    """Return an asynchronous client's function that asks twice."""

    async def run(model: str, prompt: str) -> list[str]:
        return [await once(model, prompt) for _ in TWICE]

    return run


def messages(prompt: str) -> list[Any]:
    return [{"role": "user", "content": prompt}]


@contextlib.asynccontextmanager
async def openai_sync(url: str, *, stream: bool) -> AsyncIterator[Ask]:
    with openai.OpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0) as client:
        create = client.chat.completions.create

        def once(model: str, prompt: str) -> str:
            if not stream:
                whole = create(model=model, messages=messages(prompt))
                return whole.choices[0].message.content or ""
            chunks = create(model=model, messages=messages(prompt), stream=True)
            return "".join(each.choices[0].delta.content or "" for each in chunks)

        yield threaded(once)


@contextlib.asynccontextmanager
async def openai_async(url: str, *, stream: bool) -> AsyncIterator[Ask]:
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0) as client:
        create = client.chat.completions.create

        async def once(model: str, prompt: str) -> str:
            if not stream:
                whole = await create(model=model, messages=messages(prompt))
                return whole.choices[0].message.content or ""
            chunks = await create(model=model, messages=messages(prompt), stream=True)
            return "".join([each.choices[0].delta.content or "" async for each in chunks])

        yield twice(once)


@contextlib.asynccontextmanager
async def responses_sync(url: str, *, stream: bool) -> AsyncIterator[Ask]:
    with openai.OpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0) as client:

        def once(model: str, prompt: str) -> str:
            if not stream:
                return client.responses.create(model=model, input=prompt).output_text
            with client.responses.stream(model=model, input=prompt) as events:
                return events.get_final_response().output_text

        yield threaded(once)


@contextlib.asynccontextmanager
async def responses_async(url: str, *, stream: bool) -> AsyncIterator[Ask]:
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0) as client:
        create = client.responses.create

        async def once(model: str, prompt: str) -> str:
            if not stream:
                return (await create(model=model, input=prompt)).output_text
            said = ""
            async for event in await create(model=model, input=prompt, stream=True):
                if event.type == "response.output_text.delta":
                    said += event.delta
                if event.type == "response.completed":
                    break  # as some programs do
            return said

        yield twice(once)


@contextlib.asynccontextmanager
async def anthropic_sync(url: str, *, stream: bool) -> AsyncIterator[Ask]:
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client:

        def once(model: str, prompt: str) -> str:
            asked: dict[str, Any] = {"model": model, "messages": messages(prompt)}
            asked["max_tokens"] = 100
            if not stream:
                return str(client.messages.create(**asked).content[0].text)
            with client.messages.stream(**asked) as events:
                return events.get_final_text()

        yield threaded(once)


@contextlib.asynccontextmanager
async def anthropic_async(url: str, *, stream: bool) -> AsyncIterator[Ask]:
    async with anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0) as client:

        async def once(model: str, prompt: str) -> str:
            asked: dict[str, Any] = {"model": model, "messages": messages(prompt)}
            asked["max_tokens"] = 100
            if not stream:
                return str((await client.messages.create(**asked)).content[0].text)
            said = ""
            async for event in await client.messages.create(**asked, stream=True):
                if event.type == "content_block_delta":
                    said += event.delta.text
                if event.type == "message_stop":
                    break  # as some programs do
            return said

        yield twice(once)


def gemini_client(url: str) -> genai.Client:
    return genai.Client(api_key=KEY, vertexai=False, http_options=gemini.HttpOptions(base_url=url))


@contextlib.asynccontextmanager
async def gemini_sync(url: str, *, stream: bool) -> AsyncIterator[Ask]:
    with gemini_client(url) as client:

        def once(model: str, prompt: str) -> str:
            if not stream:
                return client.models.generate_content(model=model, contents=prompt).text or ""
            chunks = client.models.generate_content_stream(model=model, contents=prompt)
            return "".join(each.text or "" for each in chunks)

        yield threaded(once)


@contextlib.asynccontextmanager
async def gemini_async(url: str, *, stream: bool) -> AsyncIterator[Ask]:
    async with gemini_client(url).aio as client:

        async def once(model: str, prompt: str) -> str:
            if not stream:
                return (
                    await client.models.generate_content(model=model, contents=prompt)
                ).text or ""
            chunks = await client.models.generate_content_stream(model=model, contents=prompt)
            return "".join([each.text or "" async for each in chunks])

        yield twice(once)


def langchain(url: str, model: str) -> ChatOpenAI:
    return ChatOpenAI(model=model, base_url=url + "/v1", api_key=SecretStr(KEY), max_retries=0)


@contextlib.asynccontextmanager
async def langchain_sync(url: str, *, stream: bool) -> AsyncIterator[Ask]:
    models = {f"via-{each}": langchain(url, f"via-{each}") for each in DIALECTS}

    def once(model: str, prompt: str) -> str:
        if not stream:
            return str(models[model].invoke(prompt).content)
        return "".join(str(each.content) for each in models[model].stream(prompt))

    yield threaded(once)
    for each in models.values():
        each.root_client.close()
        await each.root_async_client.close()


@contextlib.asynccontextmanager
async def langchain_async(url: str, *, stream: bool) -> AsyncIterator[Ask]:
    models = {f"via-{each}": langchain(url, f"via-{each}") for each in DIALECTS}

    async def once(model: str, prompt: str) -> str:
        if not stream:
            return str((await models[model].ainvoke(prompt)).content)
        return "".join([str(each.content) async for each in models[model].astream(prompt)])

    yield twice(once)
    for each in models.values():
        each.root_client.close()
        await each.root_async_client.close()


CLIENTS: dict[str, Any] = {
    "openai": openai_sync,
    "openai async": openai_async,
    "responses": responses_sync,
    "responses async": responses_async,
    "anthropic": anthropic_sync,
    "anthropic async": anthropic_async,
    "gemini": gemini_sync,
    "gemini async": gemini_async,
    "langchain": langchain_sync,
    "langchain async": langchain_async,
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
async def test_the_second_of_two_equal_requests_is_a_hit(client: Any, stream: bool) -> None:
    provider = EndingProvider()
    async with ending(provider):
        first, *others = (
            {"name": each, "dialect": each, "base_url": provider.url,
             # Gemini is told how much to think by the generation of its model.
             "models": {f"via-{each}": "gemini-2.5-flash" if each == "gemini" else "m"}}
            for each in DIALECTS
        )  # fmt: skip
        async with (
            proxied(provider=first, others=tuple(others)) as proxy,
            client(proxy.url, stream=stream) as ask,
        ):
            for dialect in DIALECTS:
                for name, how in ENDINGS.items():
                    provider.ending, provider.calls = how, 0
                    assert await ask(f"via-{dialect}", f"Why {name}?") == [TEXT, TEXT]
                    assert provider.calls == 1, (dialect, name)
                    await proxy.until(Served, 2)
                    outcomes = [row.outcome for row in proxy.served]
                    assert sorted(outcomes) == sorted([Outcome.MISS, Outcome.EXACT]), (
                        dialect,
                        name,
                    )
                    proxy.observed.clear()
