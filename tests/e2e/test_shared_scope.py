"""``cache.scope = "shared"``: a caller gets an answer only if its upstream accepted that caller."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import pytest
from yarl import URL

from headstart.decisions import Outcome
from support.sidecar import Provider, Sidecar, sidecar
from support.simulated import chat, simulated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.proxied import Reply

pytestmark = pytest.mark.anyio

SHARED = {"scope": "shared"}
GOOD = {"authorization": "Bearer sk-good"}
ALSO_GOOD = {"authorization": "Bearer sk-also-good"}
BOGUS = {"authorization": "Bearer sk-bogus"}
NOBODY = {"authorization": ""}
"""As a client without a key sends it."""
HITS = (Outcome.EXACT, Outcome.SEMANTIC, Outcome.JOINED)


class Strict(Provider):
    """Answers who has one of its keys, in a header or in ``?key=``."""

    keys = ("sk-good", "sk-also-good")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not self._knows(scope):
            body = b'{"error":{"message":"no such key","code":401,"status":"UNAUTHENTICATED"}}'
            head = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 401, "headers": head})
            await send({"type": "http.response.body", "body": body})
            return
        await super().__call__(scope, receive, send)

    def _knows(self, scope: Any) -> bool:
        headers, query = dict(scope["headers"]), dict(parse_qsl(scope["query_string"].decode()))
        given = headers.get(b"authorization", b"").removeprefix(b"Bearer ").decode()
        return bool({given, query.get("key")} & {*self.keys})


class AnyParameter(Strict):
    """Answers who has one of its keys at the end of its query, under whatever name."""

    def _knows(self, scope: Any) -> bool:
        named = scope["query_string"].decode().rpartition("=")[2] in self.keys
        return named or super()._knows(scope)


@contextlib.asynccontextmanager
async def two(*routes: dict[str, Any], **sections: Any) -> AsyncIterator[Sidecar]:
    """Run a gateway of a provider that knows its callers, and of one that takes anything."""
    async with simulated(Provider()) as url:
        strict, lax = (
            {"name": "strict", "models": {"gpt": "gpt"}},
            {"name": "lax", "models": {"llama": "llama"}},
        )
        async with sidecar(
            Strict(),
            upstream=strict,
            others=({**lax, "base_url": url},),
            routes=routes,
            cache=SHARED,
            **sections,
        ) as running:
            yield running


async def test_a_key_that_one_upstream_accepts_proves_nothing_to_another() -> None:
    async with two() as running:
        for _ in range(2):
            paid = await running.ask(model="gpt", headers=GOOD)
        refused = await running.ask(model="gpt", headers=BOGUS)
        taken = await running.ask(model="llama", headers=BOGUS)
        again = await running.ask(model="gpt", headers=BOGUS)
        own = await running.ask(model="llama", headers=BOGUS)
        other = await running.ask(model="gpt", headers=ALSO_GOOD)
        proven = await running.ask(model="gpt", headers=ALSO_GOOD)
    assert "detail=exact" in paid.verdict
    assert (refused.status, taken.status, again.status) == (401, 200, 401)
    assert "detail=exact" in own.verdict
    assert "detail=unproven-key" in other.verdict
    assert "detail=exact" in proven.verdict


@pytest.mark.parametrize("headers", [BOGUS, NOBODY], ids=["bogus", "none"])
async def test_on_loopback_too_a_key_that_nobody_accepted_reads_nothing(
    headers: dict[str, str],
) -> None:
    async with two() as running:
        await running.ask(model="gpt", headers=GOOD)
        refused = await running.ask(model="gpt", headers=headers)
        asked = await running.ask(
            model="gpt", headers={**headers, "cache-control": "only-if-cached"}
        )
    assert (refused.status, asked.status) == (401, 504)
    assert "x-headstart-similarity" not in {**refused.headers, **asked.headers}


@pytest.mark.parametrize("query", ["", "?key=sk-bogus", "?key=", "?%6bey=sk-bogus"])
async def test_a_key_in_the_query_counts_as_one(query: str) -> None:
    body = json.dumps({"contents": [{"role": "user", "parts": [{"text": "What is a cat?"}]}]})
    async with sidecar(Strict(), upstream={"dialect": "gemini"}, cache=SHARED) as running:

        async def ask(query: str) -> tuple[int, str]:
            url = f"{running.url}/v1beta/models/m:generateContent{query}"
            async with running.session.post(url, data=body) as response:
                await response.read()
                return response.status, response.headers.get("cache-status", "")

        for _ in range(2):
            status, verdict = await ask("?key=sk-good")
        assert (status, "detail=exact" in verdict) == (200, True)
        status, verdict = await ask(query)
        assert status == 401
        assert "hit" not in verdict


@pytest.mark.parametrize("scope", ["shared", "credential"])
@pytest.mark.parametrize(
    "name",
    ["access_token", "$key", "%6bey", "api_key", "subscription-key", "x", "prettyPrint=true;key"],
)
async def test_any_parameter_of_the_query_may_be_a_credential(scope: str, name: str) -> None:
    body = json.dumps({"contents": [{"role": "user", "parts": [{"text": "What is a cat?"}]}]})
    upstream = {"dialect": "gemini"}
    async with sidecar(AnyParameter(), upstream=upstream, cache={"scope": scope}) as running:

        async def ask(query: str) -> tuple[int, str]:
            url = URL(f"{running.url}/v1beta/models/m:generateContent{query}", encoded=True)
            async with running.session.post(url, data=body) as response:
                await response.read()
                return response.status, response.headers.get("cache-status", "")

        for _ in range(2):
            status, verdict = await ask(f"?{name}=sk-good")
        assert (status, "detail=exact" in verdict) == (200, True)
        for other in ("", f"?{name}=sk-bogus", "?alt=json", f"?{name}="):
            assert (await ask(other))[0] == 401
        assert "hit" not in (await ask(f"?{name}=sk-also-good"))[1]
        assert "detail=exact" in (await ask(f"?{name}=sk-good"))[1]


@pytest.mark.parametrize("name", ["access_token", "$key", "%6bey", "api_key", "subscription-key"])
async def test_a_parameter_that_was_accepted_proves_nothing_for_callers_without_it(
    name: str,
) -> None:
    async with sidecar(AnyParameter(), upstream={"dialect": "gemini"}, cache=SHARED) as running:

        async def ask(text: str, query: str, headers: dict[str, str]) -> int:
            body = json.dumps({"contents": [{"role": "user", "parts": [{"text": text}]}]})
            url = URL(f"{running.url}/v1beta/models/m:generateContent{query}", encoded=True)
            async with running.session.post(url, data=body, headers=headers) as response:
                await response.read()
                return response.status

        assert await ask("What is a cat?", "", GOOD) == 200
        assert await ask("Who was Bach?", f"?{name}=sk-good", {}) == 200
        assert await ask("What is a cat?", "", {}) == 401


async def test_the_delivery_of_an_answer_is_not_a_credential() -> None:
    body = json.dumps({"contents": [{"role": "user", "parts": [{"text": "What is a cat?"}]}]})
    async with sidecar(Strict(), upstream={"dialect": "gemini"}, cache=SHARED) as running:
        verdicts: list[str] = []
        for query in ("", "?alt=json", "?alt=json&prettyPrint=false"):
            url = URL(f"{running.url}/v1beta/models/m:generateContent{query}", encoded=True)
            async with running.session.post(url, data=body, headers=GOOD) as response:
                await response.read()
                verdicts.append(response.headers.get("cache-status", ""))
    assert ["detail=exact" in verdict for verdict in verdicts] == [False, True, True]


@pytest.mark.parametrize("strategy", ["fallback", "race", "fastest", "cheapest", "hedge"])
async def test_the_upstream_that_answered_has_to_know_the_key(
    strategy: str,
) -> None:
    route = {"name": "r", "strategy": strategy, "upstreams": ["strict", "lax"]}
    async with two(route) as running:
        for number in range(20):
            for headers in (GOOD, BOGUS, ALSO_GOOD, NOBODY):
                await running.ask(f"Question number {number % 5}?", headers=headers)
        known = {row.scope for row in running.served}
        by_strict = [row for row in running.served if row.upstream == "strict"]
        calls = [each for row in running.served for each in row.attempts]
    assert len(known) == 1
    assert {(each.upstream, each.status) for each in calls} & {("strict", 200), ("lax", 200)}
    # The third and the fourth of each four have no key that the strict one knows.
    asked = [("good", "bogus", "good", "none")[n % 4] for n in range(len(running.served))]
    of = dict(zip((row.id for row in running.served), asked, strict=True))
    assert {of[row.id] for row in by_strict if row.outcome in HITS} <= {"good"}


@pytest.mark.parametrize("seed", range(3))
async def test_no_order_of_calls_lets_a_stranger_read(seed: int) -> None:
    """Any mix of callers, models and routes, many at once: only proven callers read."""
    draw = random.Random(seed)
    route = {
        "name": "both",
        "match": {"model": "both"},
        "strategy": "race",
        "upstreams": ["strict", "lax"],
    }
    async with two(route) as running:

        async def ask(headers: dict[str, str], model: str, number: int) -> tuple[Any, Reply]:
            asked = await running.ask(f"Question number {number}?", headers=headers, model=model)
            return headers, asked

        replies: list[tuple[Any, Reply]] = []
        for _ in range(12):
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(
                        ask(
                            draw.choice((GOOD, ALSO_GOOD, BOGUS, NOBODY)),
                            draw.choice(("gpt", "llama", "both")),
                            draw.randrange(3),
                        )
                    )
                    for _ in range(6)
                ]
            replies += [task.result() for task in tasks]
        await running.finished(len(replies))
        upstreams = {row.id: row.upstream for row in running.served}
    read = [
        upstreams[reply.headers["x-headstart-request-id"]]
        for headers, reply in replies
        if headers in (BOGUS, NOBODY) and reply.status == 200
    ]
    assert read
    assert set(read) == {"lax"}
    assert any(reply.headers.get("x-cache") == "HIT" for _, reply in replies)


async def test_a_refusal_ends_what_was_proven() -> None:
    async with two() as running:
        for _ in range(2):
            await running.ask(model="gpt", headers=GOOD)
        running.provider.keys = ("sk-also-good",)  # type: ignore[attr-defined]
        revoked = await running.ask("Another question?", model="gpt", headers=GOOD)
        again = await running.ask(model="gpt", headers=GOOD)
    assert (revoked.status, again.status) == (401, 401)


async def test_an_unproven_caller_joins_no_other_callers_call() -> None:
    async with two() as running:
        running.provider.open.clear()
        async with asyncio.TaskGroup() as group:
            calls = [
                group.create_task(running.ask(model="gpt", headers=headers))
                for headers in (GOOD, BOGUS, BOGUS)
            ]
            await running.in_flight(3)
            running.provider.open.set()
        outcomes = sorted(row.outcome for row in running.served)
    assert [call.result().status for call in calls] == [200, 401, 401]
    assert outcomes == [Outcome.JOINED, Outcome.MISS, Outcome.MISS]  # the two of one caller


@pytest.mark.parametrize("client_keys", [[], ["sk-client"]], ids=["loopback", "client-keys"])
async def test_with_the_operators_key_whoever_may_come_in_may_read(
    client_keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPERATORS_KEY", "sk-good")
    client = {"authorization": "Bearer sk-client"}
    async with sidecar(
        Strict(),
        upstream={"api_key_env": "OPERATORS_KEY"},
        cache=SHARED,
        server={"client_keys": client_keys},
    ) as running:
        first = await running.ask(headers=client)
        again = await running.ask(headers=client)
        stranger = await running.ask(headers=BOGUS)
    assert first.status == 200
    assert "detail=exact" in again.verdict
    if client_keys:
        assert stranger.status == 401
    else:
        assert "detail=exact" in stranger.verdict


async def test_the_first_answer_of_a_caller_is_stored_for_all() -> None:
    async with sidecar(cache=SHARED) as running:
        first = await running.post(json.dumps(chat()).encode())
        second = await running.post(json.dumps(chat()).encode())
    assert "stored" in first.verdict
    assert "detail=exact" in second.verdict
