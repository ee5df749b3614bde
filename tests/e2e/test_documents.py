"""Rerank and moderations are cached whole, and only for exact repeats."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from headstart.decisions import Outcome
from headstart.lab.simulator.faults import Cut, Fault, Status
from support.proxied import Reply, proxied, reply_of
from support.scripted import ScriptedUpstream
from support.sidecar import Sidecar, headers_of, sidecar

pytestmark = pytest.mark.anyio

RERANK: dict[str, Any] = {
    "model": "r",
    "query": "red car",
    "documents": ["a blue boat", "a red car", "a car"],
}


async def post(
    gateway: Sidecar,
    path: str,
    body: Any,
    fault: Fault | None = None,
    headers: dict[str, str] | None = None,
) -> Reply:
    asking = gateway.session.post(gateway.url + path, json=body, headers=headers_of(fault, headers))
    async with asking as response:
        return await reply_of(response)


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
async def test_a_repeated_rerank_is_a_hit(path: str) -> None:
    async with sidecar() as gateway:
        first = await post(gateway, path, RERANK)
        again = await post(gateway, path, dict(reversed(RERANK.items())))
        other = await post(gateway, path, RERANK | {"top_n": 1})
        await gateway.finished(3)
    order = [row["index"] for row in json.loads(first.body)["results"]]
    assert order == [1, 2, 0]
    assert first.verdict.endswith("; stored")
    assert again.body == first.body
    assert again.verdict.startswith("headstart; hit")
    assert [row["index"] for row in json.loads(other.body)["results"]] == [1]
    assert [row.outcome for row in gateway.served] == [Outcome.MISS, Outcome.EXACT, Outcome.MISS]
    assert [row.saved_tokens for row in gateway.served] == [0, 10, 0]
    assert gateway.served[0].attempts[0].prompt_tokens == 10


async def test_rerank_goes_to_the_provider_whose_path_it_is() -> None:
    others = ({"name": "cohere", "dialect": "cohere", "api_key_env": []},)
    async with sidecar(others=others) as gateway:
        upstreams = [
            (await post(gateway, path, RERANK)).headers["x-headstart-upstream"]
            for path in ("/v1/rerank", "/v2/rerank")
        ]
    assert upstreams == ["sim", "cohere"]


async def test_a_repeated_moderation_is_a_hit_for_the_same_caller_alone() -> None:
    async def flags(gateway: Sidecar, key: str, text: Any) -> list[bool]:
        client = openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key=key, max_retries=0)
        async with client:
            made = await client.moderations.create(input=text)
            return [each.flagged for each in made.results]

    async with sidecar() as gateway:
        for key in ("one", "one", "two"):
            assert await flags(gateway, key, ["good morning", "I will kill it"]) == [False, True]
        assert await flags(gateway, "one", "good morning") == [False]
        await gateway.finished(4)
    outcomes = [Outcome.MISS, Outcome.EXACT, Outcome.MISS, Outcome.MISS]
    assert [row.outcome for row in gateway.served] == outcomes


@pytest.mark.parametrize("fault", [Status(status=429), Cut(after=0, how="close")])
async def test_an_answer_that_is_not_whole_is_not_stored(fault: Fault) -> None:
    async with sidecar() as gateway:
        failed = await post(gateway, "/v1/rerank", RERANK, fault)
        fine = await post(gateway, "/v1/rerank", RERANK)
    assert failed.status == (429 if isinstance(fault, Status) else 502)
    assert fine.status == 200
    assert fine.headers["x-cache"] == "MISS"


@pytest.mark.parametrize(
    "body", [b"<p>busy</p>", b'{"error": {"message": "no"}}', b"{}", b'{"results": [ ]}']
)
async def test_an_answer_in_another_form_passes_and_is_not_stored(body: bytes) -> None:
    upstream = ScriptedUpstream()
    upstream.body = body
    async with proxied(upstream) as proxy:
        asking = proxy.session.post(
            proxy.url + "/v1/moderations", json={"input": "a"}, headers={"authorization": "k"}
        )
        async with asking as response:
            assert await response.read() == body
            status = response.headers["cache-status"]
    assert status == "headstart; fwd=miss; detail=exact-only/not-stored:unreadable"


async def test_routes_and_the_names_of_models_count() -> None:
    route = {"name": "r", "match": {"path": "/v1/rerank"}, "upstreams": ["second"]}
    others = ({"name": "second", "models": {"r": "vendor/reranker"}},)
    async with sidecar(others=others, routes=(route,)) as gateway:
        reply = await post(gateway, "/v1/rerank", RERANK)
    assert reply.headers["x-headstart-upstream"] == "second"
    assert json.loads(reply.body)["model"] == "vendor/reranker"
    assert reply.headers["x-headstart-transforms"] == "model"


async def test_a_failed_provider_is_replaced_in_a_race_and_a_fallback() -> None:
    for strategy in ("fallback", "race"):
        down = ScriptedUpstream()
        down.status, down.body = 500, b"{}"
        async with (
            sidecar() as healthy,
            proxied(
                down,
                others=(
                    {"name": "other", "base_url": healthy.provider_url, "cancels_billing": True},
                ),
                routes=({"name": "r", "strategy": strategy, "upstreams": ["sim", "other"]},),
                provider={"cancels_billing": True},
            ) as proxy,
        ):
            asking = proxy.session.post(
                proxy.url + "/v1/rerank", json=RERANK, headers={"authorization": "Bearer k"}
            )
            async with asking as response:
                assert response.status == 200
                assert response.headers["x-headstart-upstream"] == "other"
