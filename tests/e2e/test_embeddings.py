"""Embeddings are cached item by item, and clients see no difference but the time."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import httpx
import openai
import pytest
from langchain_openai import OpenAIEmbeddings
from pydantic import SecretStr

from headstart.decisions import Outcome
from support.proxied import Reply, reply_of
from support.serving import serving
from support.sidecar import Sidecar, sidecar
from support.vectors import VectorProvider, vector

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

PATH = "/v1/embeddings"
PRICE = {"default": {"input_per_million": 1000.0, "output_per_million": 0.0}}


@contextlib.asynccontextmanager
async def before(provider: VectorProvider, **options: Any) -> AsyncIterator[Sidecar]:
    """Run a gateway before a provider of vectors."""
    upstream = options.pop("upstream", {})
    async with (
        serving(provider) as url,
        sidecar(upstream={"base_url": url, **upstream}, **options) as running,
    ):
        yield running


async def embed(
    gateway: Sidecar, given: Any, headers: dict[str, str] | None = None, **fields: Any
) -> Reply:
    asking = gateway.session.post(
        gateway.url + PATH,
        json={"model": "e", "input": given, **fields},
        headers={"authorization": "Bearer sk-test", **(headers or {})},
    )
    async with asking as response:
        return await reply_of(response)


def vectors(reply: Reply) -> list[Any]:
    data = json.loads(reply.body)["data"]
    assert [row["index"] for row in data] == list(range(len(data)))
    assert {row["object"] for row in data} == {"embedding"}
    return [row["embedding"] for row in data]


def usage(reply: Reply) -> dict[str, int]:
    found: dict[str, int] = json.loads(reply.body)["usage"]
    return found


# --- what is asked for -------------------------------------------------------------------------


async def test_a_batch_asks_for_missing_items_alone_and_comes_back_in_order() -> None:
    provider = VectorProvider()
    async with before(provider) as gateway:
        first = await embed(gateway, ["a", "b"])
        second = await embed(gateway, ["c", "b", "d", "a", "c"])
        third = await embed(gateway, "d")
    assert provider.items == [["a", "b"], ["c", "d"]]
    assert vectors(first) == [vector("a", "e"), vector("b", "e")]
    assert vectors(second) == [vector(each, "e") for each in "cbdac"]
    assert vectors(third) == [vector("d", "e")]
    assert [usage(each)["total_tokens"] for each in (first, second, third)] == [10, 10, 0]
    hits = [each.headers["x-headstart-item-hits"] for each in (first, second, third)]
    assert hits == ["0/2", "2/5", "1/1"]
    assert first.verdict == "headstart; fwd=miss; detail=exact-only; stored"
    assert second.verdict == "headstart; fwd=partial; detail=partial; stored"
    assert third.verdict.startswith("headstart; hit; ttl=")
    assert [each.headers["x-cache"] for each in (first, second, third)] == ["MISS", "MISS", "HIT"]


async def test_the_order_of_a_providers_rows_does_not_matter() -> None:
    provider = VectorProvider()
    provider.reverses = True
    async with before(provider) as gateway:
        whole = await embed(gateway, ["a", "b"])
        part = await embed(gateway, ["b", "c", "a", "d"])
    # An answer to all items passes as it came.
    assert [row["index"] for row in json.loads(whole.body)["data"]] == [1, 0]
    assert vectors(part) == [vector(each, "e") for each in "bcad"]


async def test_tokens_are_items_as_texts_are() -> None:
    provider = VectorProvider()
    async with before(provider) as gateway:
        one = await embed(gateway, [1, 2, 3])
        two = await embed(gateway, [[4], [1, 2, 3]])
        text = await embed(gateway, "[1,2,3]")
    assert provider.items == [[1, 2, 3], [[4]], "[1,2,3]"]
    assert vectors(one) == [vector([1, 2, 3], "e")]
    assert vectors(two) == [vector([4], "e"), vector([1, 2, 3], "e")]
    assert text.headers["x-headstart-item-hits"] == "0/1"


async def test_long_lists_of_tokens_are_no_more_than_one_value_each() -> None:
    provider = VectorProvider()
    async with before(provider, server={"max_body_values": 50}) as gateway:
        replies = [await embed(gateway, [[n] * 40 for n in range(20)]) for _ in range(2)]
        texts = await embed(gateway, ["x"] * 60)
    assert [each.status for each in (*replies, texts)] == [200, 200, 413]
    assert replies[1].headers["x-headstart-item-hits"] == "20/20"


@pytest.mark.parametrize(
    "fields",
    [{"dimensions": 2}, {"encoding_format": "base64"}, {"model": "f"}, {"task": "query"}],
)
async def test_fields_that_change_the_vector_are_part_of_the_key(fields: dict[str, Any]) -> None:
    provider = VectorProvider()
    async with before(provider) as gateway:
        hits = [
            (await embed(gateway, "a", **each)).headers["x-headstart-item-hits"]
            for each in ({}, fields, fields, {})
        ]
    assert hits == ["0/1", "0/1", "1/1", "1/1"]


@pytest.mark.parametrize("given", [[], ["a", 1], [["a"]], {"text": "a"}, None, [1.5]])
async def test_items_in_an_unknown_form_pass_untouched(given: Any) -> None:
    provider = VectorProvider()
    provider.status = 400
    async with before(provider) as gateway:
        reply = await embed(gateway, given)
    assert reply.status == 400
    assert provider.items == [given]
    assert reply.verdict == "headstart; fwd=bypass; detail=no-items"


async def test_a_body_that_is_no_json_is_the_providers_to_judge() -> None:
    async with sidecar() as gateway:
        for body in (b"", b"{", b"[1]"):
            asking = gateway.session.post(gateway.url + PATH, data=body)
            async with asking as response:
                assert response.status == 400
                assert "detail=unreadable" in response.headers["cache-status"]
    assert gateway.provider.calls == 3


# --- clients -----------------------------------------------------------------------------------


async def test_sdks_get_from_the_cache_what_they_get_from_the_provider() -> None:
    texts = [f"text {n}" for n in range(5)]

    def ask(url: str, texts: list[str], form: Any) -> list[list[float]]:
        with openai.OpenAI(base_url=url + "/v1", api_key="k", max_retries=0) as client:
            options = {} if form is None else {"encoding_format": form}
            made = client.embeddings.create(model="e", input=texts, dimensions=32, **options)
            assert [row.index for row in made.data] == list(range(len(texts)))
            return [row.embedding for row in made.data]

    async def asked(url: str, texts: list[str], form: Any) -> list[list[float]]:
        client = openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=0)
        async with client:
            options = {} if form is None else {"encoding_format": form}
            made = await client.embeddings.create(model="e", input=texts, dimensions=32, **options)
            return [row.embedding for row in made.data]

    async with sidecar() as gateway:
        for form in (None, "float"):
            right = await asked(gateway.provider_url, texts, form)
            calls = gateway.provider.calls
            assert await asked(gateway.url, texts[:2], form) == right[:2]
            assert await anyio.to_thread.run_sync(ask, gateway.url, texts, form) == right
            assert (
                await anyio.to_thread.run_sync(ask, gateway.url, texts[::-1], form) == right[::-1]
            )
            assert gateway.provider.calls - calls == 2


@pytest.mark.parametrize("names", [True, False])
async def test_an_answer_has_an_id_if_the_provider_gave_one(names: bool, tmp_path: Path) -> None:
    """Mistral's clients for Python and Node refuse an answer without one."""
    provider = VectorProvider()
    provider.names = names
    cache = {"store": f"sqlite:///{tmp_path / 'kept.db'}"}
    replies = []
    async with serving(provider) as url:
        for _ in range(2):  # the second time the items come from the file
            async with sidecar(upstream={"base_url": url}, cache=cache) as gateway:
                replies += [await embed(gateway, [*asked]) for asked in ("a", "ba", "ab")]
    assert provider.items == [["a"], ["b"]]
    given = ["emb-1", "emb-2", "emb-1", "emb-1", "emb-2", "emb-1"]
    assert [json.loads(reply.body).get("id") for reply in replies] == (
        given if names else [None] * 6
    )


async def test_langchain_embeds_thousands_of_documents_once() -> None:
    texts = [f"document {n}" for n in range(2048)]

    def embedded(url: str, texts: list[str]) -> list[list[float]]:
        with httpx.Client() as http:
            return model_at(url, http).embed_documents(texts)

    def model_at(url: str, http: httpx.Client) -> OpenAIEmbeddings:
        return OpenAIEmbeddings(
            model="e",
            base_url=url + "/v1",
            api_key=SecretStr("k"),
            chunk_size=2048,
            check_embedding_ctx_length=False,
            dimensions=64,
            max_retries=0,
            http_client=http,
        )

    async with sidecar() as gateway:
        right = await anyio.to_thread.run_sync(embedded, gateway.provider_url, texts)
        half = await anyio.to_thread.run_sync(embedded, gateway.url, texts[::2])
        whole = await anyio.to_thread.run_sync(embedded, gateway.url, texts)
        again = await anyio.to_thread.run_sync(embedded, gateway.url, texts)
        assert gateway.provider.calls == 3
        await gateway.finished(3)
    assert half == right[::2]
    assert whole == again == right
    assert [row.outcome for row in gateway.served] == [Outcome.MISS, Outcome.MISS, Outcome.EXACT]


# --- who shares --------------------------------------------------------------------------------


async def test_callers_with_other_keys_or_users_never_share() -> None:
    provider = VectorProvider()
    async with before(provider) as gateway:
        mine = await embed(gateway, ["a"])
        theirs = await embed(gateway, ["a"], {"authorization": "Bearer sk-other"})
        user = await embed(gateway, ["a"], user="u1")
        other = await embed(gateway, ["a"], user="u2")
        again = await embed(gateway, ["a"], user="u1")
    hits = [each.headers["x-headstart-item-hits"] for each in (mine, theirs, user, other, again)]
    assert hits == ["0/1", "0/1", "0/1", "0/1", "1/1"]
    assert provider.keys[:2] == ["Bearer sk-test", "Bearer sk-other"]


async def test_a_shared_answer_needs_a_key_that_its_provider_accepted() -> None:
    provider = VectorProvider()
    async with before(provider, cache={"scope": "shared"}) as gateway:
        await embed(gateway, ["a", "b"])
        stranger = await embed(gateway, ["a"], {"authorization": "Bearer sk-other"})
        known = await embed(gateway, ["b"], {"authorization": "Bearer sk-other"})
    assert stranger.verdict == "headstart; fwd=miss; detail=unproven-key; stored"
    assert known.verdict.startswith("headstart; hit")
    assert provider.items == [["a", "b"], ["a"]]


async def test_the_callers_cache_control_counts() -> None:
    provider = VectorProvider()
    async with before(provider) as gateway:
        only = await embed(gateway, ["a"], {"cache-control": "only-if-cached"})
        await embed(gateway, ["a"])
        fresh = await embed(gateway, ["a"], {"cache-control": "no-cache"})
        apart = await embed(gateway, ["a"], {"cache-control": "no-store"})
        part = await embed(gateway, ["a", "b"], {"cache-control": "only-if-cached"})
    assert [each.status for each in (only, part)] == [504, 504]
    assert fresh.verdict == "headstart; fwd=miss; detail=no-cache; stored"
    assert apart.verdict == "headstart; fwd=bypass; detail=no-store"
    assert provider.items == [["a"], ["a"], ["a"]]


async def test_a_repeat_is_asked_anew_unless_only_the_cache_may_answer() -> None:
    provider = VectorProvider()
    async with before(provider, routes=({"name": "e", "on_repeat": "fresh"},)) as gateway:
        await embed(gateway, ["a"])
        kept = await embed(gateway, ["a"], {"cache-control": "only-if-cached"})
        anew = await embed(gateway, ["a"])
    assert kept.verdict.endswith("detail=exact")
    assert "detail=repeat" in anew.verdict
    assert provider.items == [["a"], ["a"]]


# --- what providers do -------------------------------------------------------------------------


async def test_an_answer_with_too_few_items_passes_and_is_not_stored() -> None:
    provider = VectorProvider()
    async with before(provider) as gateway:
        await embed(gateway, ["a"])
        provider.drops = 1
        few = await embed(gateway, ["b", "c"])
        part = await embed(gateway, ["a", "b", "c"])
        provider.drops = 0
        whole = await embed(gateway, ["a", "b", "c"])
        await gateway.finished(4)
    assert provider.items == [["a"], ["b", "c"], ["b", "c"], ["a", "b", "c"], ["b", "c"]]
    assert len(json.loads(few.body)["data"]) == 1
    assert few.verdict == "headstart; fwd=miss; detail=exact-only/not-stored:unreadable"
    # What cannot be put together is asked for as the client asked for it.
    assert len(json.loads(part.body)["data"]) == 2
    assert part.headers["x-headstart-item-hits"] == "0/3"
    assert part.verdict == "headstart; fwd=partial; detail=partial/not-stored:unreadable"
    assert vectors(whole) == [vector(each, "e") for each in "abc"]
    assert [len(row.attempts) for row in gateway.served] == [1, 1, 2, 1]


async def test_fields_that_a_provider_adds_are_kept() -> None:
    provider = VectorProvider()
    provider.more = {"encoding_format": "float", "truncated": False}
    async with before(provider) as gateway:
        replies = [await embed(gateway, given) for given in ("a", ["b", "a"], ["a", "b"])]
    rows = [row for each in replies for row in json.loads(each.body)["data"]]
    assert all(row.items() >= provider.more.items() for row in rows)
    assert [json.loads(each.body)["model"] for each in replies] == ["e-001"] * 3


async def test_an_error_of_the_provider_reaches_the_client() -> None:
    provider = VectorProvider()
    async with before(provider) as gateway:
        await embed(gateway, ["a"])
        provider.status = 429
        refused = await embed(gateway, ["a", "b"])
        cached = await embed(gateway, ["a"])
        provider.status = 200
    assert refused.status == 429
    assert b'"message": "no"' in refused.body
    assert "stored" not in refused.verdict.removesuffix("not-stored:status")
    assert cached.headers["x-headstart-item-hits"] == "1/1"


async def test_a_provider_that_dies_in_its_answer_is_replaced_by_an_equal_one() -> None:
    dying, equal = VectorProvider(), VectorProvider()
    dying.breaks = True
    async with serving(equal) as other:
        route = {"name": "r", "strategy": "fallback", "upstreams": ["sim", "equal"], "retries": 0}
        others = ({"name": "equal", "base_url": other},)
        async with before(dying, others=others, routes=(route,)) as gateway:
            reply = await embed(gateway, ["a", "b"])
            await gateway.finished(1)
    assert vectors(reply) == [vector("a", "e"), vector("b", "e")]
    assert reply.headers["x-headstart-upstream"] == "equal"
    (row,) = gateway.served
    assert [(each.upstream, each.role.value) for each in row.attempts] == [
        ("sim", "first"),
        ("equal", "fallback"),
    ]
    assert row.route == "r"


async def test_a_provider_that_dies_alone_is_an_error_and_nothing_is_stored() -> None:
    dying = VectorProvider()
    dying.breaks = True
    async with before(dying) as gateway:
        reply = await embed(gateway, ["a"])
        dying.breaks = False
        again = await embed(gateway, ["a"])
    assert reply.status == 502
    assert again.headers["x-headstart-item-hits"] == "0/1"


async def test_upstreams_with_another_model_never_answer() -> None:
    down, different = VectorProvider(), VectorProvider()
    down.status = 500
    route = {"name": "r", "strategy": "fallback", "upstreams": ["sim", "different"], "retries": 0}
    async with serving(different) as other:
        others = ({"name": "different", "base_url": other, "models": {"e": "large"}},)
        upstream = {"models": {"e": "small"}}
        async with before(down, others=others, routes=(route,), upstream=upstream) as gateway:
            reply = await embed(gateway, ["a"])
            down.status = 200
            other_model = await embed(gateway, ["a"], model="x")
    assert reply.status == 500
    assert different.asked == []
    assert down.asked[0]["model"] == "small"
    assert other_model.status == 200


async def test_the_operator_may_say_that_models_are_equal() -> None:
    down, equal = VectorProvider(), VectorProvider()
    down.status = 500
    route = {
        "name": "r", "strategy": "fallback", "upstreams": ["sim", "equal"], "retries": 0,
        "equal_models": "assume",
    }  # fmt: skip
    async with serving(equal) as other:
        others = ({"name": "equal", "base_url": other, "models": {"e": "vendor/e"}},)
        async with before(down, others=others, routes=(route,)) as gateway:
            reply = await embed(gateway, ["a"])
    assert reply.status == 200
    assert [each["model"] for each in equal.asked] == ["vendor/e"]
    assert reply.headers["x-headstart-transforms"] == "model"


async def test_the_key_has_the_model_of_the_upstream() -> None:
    small, large = VectorProvider(), VectorProvider()
    routes = ({"name": "s", "upstreams": ["sim"]}, {"name": "l", "upstreams": ["large"]})
    async with serving(large) as other:
        others = ({"name": "large", "base_url": other, "models": {"e": "large"}},)
        async with before(
            small, others=others, routes=routes, upstream={"models": {"e": "small"}}
        ) as gateway:
            replies = [await embed(gateway, ["a"], {"x-headstart-route": name}) for name in "slsl"]
    assert [vectors(each) for each in replies] == [
        [vector("a", "small")],
        [vector("a", "large")],
    ] * 2
    hits = [each.headers["x-headstart-item-hits"] for each in replies]
    assert hits == ["0/1", "0/1", "1/1", "1/1"]


async def test_upstreams_without_embeddings_are_never_asked() -> None:
    provider = VectorProvider()
    route = {"name": "r", "upstreams": ["claude"]}
    others = ({"name": "claude", "base_url": "http://127.0.0.1:9", "dialect": "anthropic"},)
    async with before(provider, others=others, routes=(route,)) as gateway:
        reply = await embed(gateway, ["a"], {"x-headstart-route": "r"})
    assert reply.status == 404
    assert b"route 'r' has no upstream for this path" in reply.body
    only = {"dialect": "anthropic"}
    async with before(provider, upstream=only) as gateway:
        nobody = await embed(gateway, ["a"])
    assert nobody.status == 404
    assert b'dialect = \\"openai\\"' in nobody.body


# --- together ----------------------------------------------------------------------------------


async def test_equal_batches_in_flight_are_asked_for_once() -> None:
    provider = VectorProvider()
    provider.hold = asyncio.Event()
    async with before(provider) as gateway:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(embed(gateway, ["a", "b"])) for _ in range(4)]
            await gateway.in_flight(4)
            provider.hold.set()
        replies = [each.result() for each in asked]
        later = await embed(gateway, ["b"])
    assert provider.items == [["a", "b"]]
    assert {tuple(map(tuple, vectors(each))) for each in replies} == {
        (tuple(vector("a", "e")), tuple(vector("b", "e")))
    }
    joined = [each for each in replies if "collapsed; detail=joined" in each.verdict]
    assert len(joined) == 3
    assert later.headers["x-headstart-item-hits"] == "1/1"


async def test_items_outlive_the_process(tmp_path: Path) -> None:
    provider = VectorProvider()
    cache = {"store": f"sqlite:///{tmp_path / 'kept.db'}"}
    texts = [f"text {n}" for n in range(600)]
    async with (
        serving(provider) as url,
        sidecar(upstream={"base_url": url}, cache=cache) as gateway,
    ):
        await embed(gateway, texts)
    async with sidecar(upstream={"base_url": url}, cache=cache) as gateway:
        reply = await embed(gateway, texts[::-1])
    assert reply.headers["x-headstart-item-hits"] == "600/600"
    assert vectors(reply) == [vector(each, "e") for each in texts[::-1]]
    assert len(provider.asked) == 1


async def test_books_count_what_items_cost_and_what_they_save() -> None:
    provider = VectorProvider()
    async with before(provider, upstream={"price": PRICE}) as gateway:
        await embed(gateway, ["aaaa", "bbbb"])
        await embed(gateway, ["aaaa", "cccc"])
        await embed(gateway, ["aaaa", "bbbb", "cccc"])
        await gateway.finished(3)
    miss, part, hit = gateway.served
    assert [row.prompt_tokens for row in (miss, part, hit)] == [16, 8, 24]
    assert [row.cost_usd for row in (miss, part, hit)] == [0.016, 0.008, 0.0]
    assert [row.saved_tokens for row in (miss, part, hit)] == [0, 8, 24]
    assert [row.saved_usd for row in (miss, part, hit)] == [None, 0.008, 0.024]
    assert [row.endpoint for row in (miss, part, hit)] == [PATH] * 3
    assert [row.stored for row in (miss, part, hit)] == [True, True, False]


async def test_paths_that_the_operator_does_not_list_stay_closed() -> None:
    provider = VectorProvider()
    async with before(provider, server={"relay_paths": ["/v1/models"]}) as gateway:
        closed = await embed(gateway, ["a"])
    assert closed.status == 403
    assert provider.asked == []
