"""Clients of Azure reach the cache and every upstream, and Azure gets the calls of every client."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from headstart.config.checks import checked
from headstart.config.providers import discover_upstreams
from headstart.errors import ConfigError
from headstart.lab.simulator.faults import Status
from headstart.settings import Settings, UpstreamSettings
from support.proxied import Proxied, proxied
from support.sidecar import PROMPT, headers_of, sidecar

pytestmark = pytest.mark.anyio

VERSION = "2024-10-21"
ASKED: list[Any] = [{"role": "user", "content": PROMPT}]


def azure(url: str, **options: Any) -> openai.AsyncAzureOpenAI:
    return openai.AsyncAzureOpenAI(
        azure_endpoint=url, api_key="sk-test", api_version=VERSION, max_retries=0, **options
    )


def verdict(answer: Any) -> str:
    return str(answer.headers["cache-status"])


async def test_a_call_to_a_deployment_is_cached() -> None:
    async with sidecar() as running, azure(running.url) as client:
        create = client.chat.completions.with_raw_response.create
        first = await create(model="gpt-4o", messages=ASKED)
        again = await create(model="gpt-4o", messages=ASKED)
        other = await create(model="gpt-4o-mini", messages=ASKED)
    assert [verdict(each).partition(";")[2].split(";")[0].strip() for each in (first, again)] == [
        "fwd=miss",
        "hit",
    ]
    assert "hit" not in verdict(other)
    assert first.parse().choices[0].message.content == again.parse().choices[0].message.content
    assert running.provider.calls == 2


async def test_a_stream_of_a_deployment_is_whole_and_its_repeat_a_hit() -> None:
    async with sidecar() as running, azure(running.url) as client:
        texts = []
        for _ in range(2):
            async with client.chat.completions.stream(model="m", messages=ASKED) as stream:
                completion = await stream.get_final_completion()
            texts.append(completion.choices[0].message.content)
    assert texts[0] == texts[1]
    assert running.provider.calls == 1


async def test_embeddings_and_completions_of_a_deployment_are_cached() -> None:
    async with sidecar() as running, azure(running.url, azure_deployment="mine") as client:
        vectors = [
            (await client.embeddings.create(model="x", input=["a", "b"])).data[1].embedding
            for _ in range(2)
        ]
        texts = [
            (await client.completions.create(model="x", prompt=PROMPT)).choices[0].text
            for _ in range(2)
        ]
        models = [record.model for record in running.provider.stats.ended_calls(0)]
    assert vectors[0] == vectors[1]
    assert texts[0] == texts[1]
    assert models == ["mine", "mine"]


async def test_azures_newer_paths_are_openais() -> None:
    async with sidecar() as running:
        for base in ("/openai/v1", "/v1"):
            async with openai.AsyncOpenAI(base_url=running.url + base, api_key="k") as client:
                await client.chat.completions.create(model="m", messages=ASKED)
    assert running.provider.calls == 1


async def test_the_deployment_of_the_path_is_the_model() -> None:
    """A client with a fixed deployment may name any model: Azure does not read it."""
    async with proxied() as proxy, azure(proxy.url, azure_deployment="mine") as client:
        await client.chat.completions.create(model="whatever", messages=ASKED)
        url = f"{proxy.url}/openai/deployments/m%C3%BCll/chat/completions?api-version={VERSION}"
        async with proxy.session.post(url, json={"messages": ASKED}) as response:
            assert response.status == 200
    calls = proxy.upstream.calls
    assert [call.json["model"] for call in calls] == ["mine", "müll"]
    assert {(call.path, call.query) for call in calls} == {("/v1/chat/completions", b"")}


async def test_other_paths_are_relayed_to_openais_path() -> None:
    async with proxied() as proxy:
        for path in ("deployments/d/audio/transcriptions", "v1/files", "models"):
            url = f"{proxy.url}/openai/{path}?api-version={VERSION}&limit=3"
            async with proxy.session.post(url, data=b"\x00") as response:
                assert response.status == 200
    paths = [(call.path, call.query) for call in proxy.upstream.calls]
    assert paths == [
        ("/v1/audio/transcriptions", b"limit=3"),
        ("/v1/files", b"limit=3"),
        ("/v1/models", b"limit=3"),
    ]


async def test_an_error_is_an_error_of_the_client() -> None:
    async with sidecar() as running, azure(running.url) as client:
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(
                model="m", messages=ASKED, extra_headers=headers_of(Status(status=429))
            )


def provider(**settings: Any) -> dict[str, Any]:
    return {"preset": "azure", "api_key_env": "PATH", **settings}


async def ask(proxy: Proxied, path: str, **body: Any) -> None:
    headers = {"authorization": "Bearer k"}
    async with proxy.session.post(proxy.url + path, json=body, headers=headers) as response:
        assert response.status == 200, await response.text()


async def test_a_version_sends_calls_to_deployments() -> None:
    settings = provider(api_version=VERSION, models={"gpt-4o": "my gpt"})
    async with proxied(provider=settings) as proxy:
        await ask(proxy, "/v1/chat/completions", model="gpt-4o", messages=ASKED)
        message = {"model": "gpt-4o", "messages": ASKED, "max_tokens": 9}
        await ask(proxy, "/v1/messages", **message)
        await ask(proxy, "/openai/deployments/d/embeddings?api-version=1", input="a")
        await ask(proxy, "/v1/files")
        body = {"model": "gpt-4o", "input": "a"}
        await proxy.session.post(f"{proxy.url}/openai/responses?api-version=1", json=body)
    paths = [(call.path, call.query) for call in proxy.upstream.calls]
    stated = b"api-version=" + VERSION.encode()
    chat = "/openai/deployments/my%20gpt/chat/completions"
    assert list(dict.fromkeys(paths)) == [
        (chat, stated),
        ("/openai/deployments/d/embeddings", stated),
        ("/openai/files", stated),
        ("/openai/responses", stated),
    ]
    for call in proxy.upstream.calls:
        assert call.header(b"api-key")
        assert call.header(b"authorization") is None


async def test_without_a_version_calls_go_to_the_newer_paths() -> None:
    async with proxied(provider=provider(models={"gpt-4o": "mine"})) as proxy:
        await ask(proxy, "/v1/chat/completions", model="gpt-4o", messages=ASKED)
        await ask(proxy, "/openai/deployments/gpt-4o/chat/completions", messages=ASKED)
    (call,) = proxy.upstream.calls
    assert (call.path, call.query) == ("/openai/v1/chat/completions", b"")
    assert call.json["model"] == "mine"


async def test_no_model_leads_out_of_the_deployments() -> None:
    async with proxied(provider=provider(api_version=VERSION)) as proxy:
        body = {"model": "..", "messages": ASKED}
        async with proxy.session.post(f"{proxy.url}/v1/chat/completions", json=body) as response:
            assert response.status == 400
    assert proxy.upstream.calls == []


@pytest.mark.parametrize(
    ("url", "version", "whole"),
    [
        ("https://r.openai.azure.com", None, "https://r.openai.azure.com/openai/v1"),
        ("https://r.openai.azure.com/", VERSION, "https://r.openai.azure.com/openai"),
        ("https://gate.example/llm", VERSION, "https://gate.example/llm"),
    ],
)
async def test_a_host_alone_stands_for_azures_path(
    url: str, version: str | None, whole: str
) -> None:
    upstream = UpstreamSettings(preset="azure", base_url=url, api_version=version)
    settings = await asyncio.to_thread(checked, Settings(upstream=(upstream,)))
    assert settings.upstream[0].base_url == whole


async def test_a_version_is_for_the_dialect_of_azure_alone() -> None:
    upstream = UpstreamSettings(preset="anthropic", api_version=VERSION)
    with pytest.raises(ConfigError, match=r"upstream\[0\]\.api_version"):
        await asyncio.to_thread(checked, Settings(upstream=(upstream,)))
    _, notes = await asyncio.to_thread(discover_upstreams, {"AZURE_OPENAI_API_KEY": "k"})
    assert notes == ("AZURE_OPENAI_API_KEY: azure needs an [[upstream]] with base_url",)
