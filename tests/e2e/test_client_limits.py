"""Budgets and limits of client keys, on real sockets: the answers that callers get."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import anthropic
import anyio
import openai
import pytest
from google import genai
from google.genai import errors as gemini_errors
from google.genai import types as gemini

from headstart.decisions import Outcome
from headstart.lab.simulator.profiles import ProviderProfile
from support.patience import until
from support.redis_server import redis_server
from support.sidecar import Provider, Sidecar, sidecar

if TYPE_CHECKING:
    from pathlib import Path

    from headstart.interfaces import Store

pytestmark = pytest.mark.anyio

KEYS = {"a": "key-of-a", "b": "key-of-b"}
PRICE = {"default": {"input_per_million": 1.0, "output_per_million": 100.0}}
A, B = {"authorization": "Bearer key-of-a"}, {"authorization": "Bearer key-of-b"}


def settings(folder: Path, limits: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the sections of a sidecar whose key ``a`` has limits."""
    return {
        "server": {"client_keys": KEYS, "client_limits": {"a": limits}, **more.pop("server", {})},
        "cache": {
            "store": f"sqlite:///{folder / 'store.db'}",
            "mode": "exact-only",
            **more.pop("cache", {}),
        },
        "upstream": {"price": PRICE, **more.pop("upstream", {})},
        **more,
    }


def spent(running: Sidecar, caller: str = "a") -> float:
    """Return the dollars in the books of a caller."""
    rows = [row for row in running.served if row.caller == caller]
    return sum(each.cost_usd or 0.0 for row in rows for each in row.attempts)


async def used(running: Sidecar) -> dict[str, float]:
    ledger = running.parts[0].ledger
    assert ledger is not None
    await until(lambda: ledger._settling is None)
    return {each.limit: each.used for each in await ledger.uses()}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_hundred_calls_at_the_same_time_do_not_overrun(
    tmp_path: Path, *, stream: bool
) -> None:
    provider = Provider()
    provider.open.clear()
    sections = settings(tmp_path, {"usd_per_day": 0.52})  # each may cost 0.05 and a little
    async with sidecar(provider, **sections) as running:
        found: Counter[int] = Counter()

        async def ask(number: int) -> None:
            reply = await running.ask(f"say {number}", headers=A, max_tokens=500, stream=stream)
            found[reply.status] += 1

        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(ask, number)
            with anyio.fail_after(60):  # all that does not fit is refused while the others run
                while found[429] < 90:
                    await anyio.sleep(0.01)
            provider.open.set()
        await running.finished(100)
        assert found[200] + found[429] == 100
        assert found[200] == 10
        assert provider.calls == found[200]
        assert 0 < spent(running) <= 0.52
        assert await used(running) == {"usd_per_day": pytest.approx(spent(running))}
        # What was reserved too much is free again.
        assert (await running.ask("one more", headers=A, max_tokens=500)).status == 200
        assert (await running.ask("another caller", headers=B)).status == 200


async def test_a_hit_costs_nothing(tmp_path: Path) -> None:
    async with sidecar(**settings(tmp_path, {"usd_per_day": 0.06})) as running:
        assert (await running.ask("the same", headers=A, max_tokens=500)).status == 200
        before = await used(running)
        assert before == {"usd_per_day": pytest.approx(spent(running))}
        for _ in range(3):
            assert (await running.ask("the same", headers=A, max_tokens=500)).status == 200
            assert (await running.ask("another", headers=A, max_tokens=500)).status == 429
        assert await used(running) == before


async def test_requests_of_a_minute_are_limited_hits_included(tmp_path: Path) -> None:
    async with sidecar(**settings(tmp_path, {"requests_per_minute": 3})) as running:
        found = [await running.ask("the same", headers=A) for _ in range(5)]
        # The minute may end in between.
        assert Counter(each.status for each in found)[429] in (1, 2)
        refused = next(each for each in found if each.status == 429)
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.headers["x-should-retry"] == "true"
        assert {row.error for row in running.served if row.status == 429} == {"over_limit"}


async def test_spending_outlives_a_restart(tmp_path: Path) -> None:
    async with sidecar(**settings(tmp_path, {"usd_per_day": 0.1})) as running:
        assert (await running.ask("first", headers=A, max_tokens=500)).status == 200
        before = await used(running)
    async with sidecar(**settings(tmp_path, {"usd_per_day": 0.1})) as running:
        assert await used(running) == before
    async with sidecar(**settings(tmp_path, {"usd_per_day": 0.05})) as running:
        reply = await running.ask("second", headers=A, max_tokens=500)
        assert reply.status == 429
        assert reply.headers["x-should-retry"] == "false"


async def test_two_nodes_share_a_budget(tmp_path: Path) -> None:
    with redis_server() as redis:
        # A Redis that has no time for 0.5 s would answer the question with 503: nothing is shared.
        url = f"{redis.url}?socket_timeout=60&socket_connect_timeout=60&timeout=60"
        sections = settings(tmp_path, {"usd_per_day": 0.52}, cache={"store": url})
        async with sidecar(**sections) as one, sidecar(**sections) as other:
            found: Counter[int] = Counter()

            async def ask(node: Sidecar, number: int) -> None:
                reply = await node.ask(f"say {number}", headers=A, max_tokens=500)
                found[reply.status] += 1

            async with anyio.create_task_group() as tasks:
                for number in range(60):
                    tasks.start_soon(ask, (one, other)[number % 2], number)
            for node in (one, other):
                await node.finished(30)
            assert found[200] + found[429] == 60
            assert found[429] > 0
            cost_usd = spent(one) + spent(other)
            assert 0 < cost_usd <= 0.52
            for node in (one, other):
                await used(node)
            assert await used(one) == {"usd_per_day": pytest.approx(cost_usd)}


async def test_the_loser_of_a_race_counts_as_in_the_books(tmp_path: Path) -> None:
    slow = {"name": "slow", "price": PRICE, "cancels_billing": False, "first_token_s": 30.0}
    route = {
        "name": "r",
        "strategy": "race",
        "upstreams": ["sim", "slow"],
        "race_billed": True,
        "equal_models": "assume",
    }
    sections = settings(tmp_path, {"usd_per_day": 1.0})
    async with sidecar(others=(slow,), routes=(route,), **sections) as running:
        assert (await running.ask("race", headers=A, max_tokens=500, stream=True)).status == 200
        await running.finished(1)
        assert len(running.served[0].attempts) == 2
        assert await used(running) == {"usd_per_day": pytest.approx(spent(running))}


async def test_the_audit_of_a_hit_counts_as_in_the_books(tmp_path: Path) -> None:
    cache = {"mode": "serve", "audit.mode": "background", "audit.null_rate": 1.0}
    async with sidecar(**settings(tmp_path, {"usd_per_day": 1.0}, cache=cache)) as running:
        for _ in range(2):
            assert (await running.ask("the same", headers=A, max_tokens=500)).status == 200
        await running.finished(3)
        assert Outcome.AUDIT in running.outcomes
        first, *_ = [row.cost_usd for row in running.served if row.outcome is Outcome.MISS]
        assert first is not None
        assert spent(running) == pytest.approx(2 * first)
        assert await used(running) == {"usd_per_day": pytest.approx(spent(running))}


async def test_a_caller_that_joins_a_refused_call_makes_its_own(tmp_path: Path) -> None:
    sections = settings(tmp_path, {"usd_per_day": 0.0}, cache={"scope": "shared"})
    async with sidecar(**sections) as running:
        ledger, gate = running.parts[0].ledger, anyio.Event()
        assert ledger is not None
        store = ledger.store

        class Waiting:
            async def charge(self, charges: Any) -> Any:
                await gate.wait()
                return await store.charge(charges)

        ledger.store = cast("Store", Waiting())
        found: dict[str, int] = {}

        async def ask(name: str, headers: dict[str, str]) -> None:
            found[name] = (await running.ask("the same", headers=headers, max_tokens=500)).status

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "a", A)
            await running.in_flight(1)
            tasks.start_soon(ask, "b", B)
            await running.in_flight(2)
            gate.set()
        assert found == {"a": 429, "b": 200}


async def test_a_race_goes_on_with_what_the_budget_has_left(tmp_path: Path) -> None:
    other = {"name": "other", "price": PRICE}
    route = {
        "name": "r",
        "strategy": "race",
        "upstreams": ["sim", "other"],
        "race_billed": True,
        "equal_models": "assume",
    }
    sections = settings(tmp_path, {"usd_per_day": 0.08})  # for one call of about 0.05
    async with sidecar(others=(other,), routes=(route,), **sections) as running:
        reply = await running.ask("race", headers=A, max_tokens=500, stream=True)
        assert reply.status == 200
        await running.finished(1)
        assert len(running.served[0].attempts) == 1


async def test_a_failed_call_costs_nothing(tmp_path: Path) -> None:
    async with sidecar(**settings(tmp_path, {"usd_per_day": 0.06})) as running:
        for _ in range(3):
            reply = await running.ask(
                "x", headers={**A, "x-sim-fault": "status; status=400"}, max_tokens=500
            )
            assert reply.status == 400
        assert await used(running) == {"usd_per_day": 0.0}


async def test_a_client_that_leaves_pays_for_what_came(tmp_path: Path) -> None:
    slow = Provider(profile=ProviderProfile(model="m", tokens_per_s=(20.0, 20.0)))
    async with sidecar(slow, **settings(tmp_path, {"usd_per_day": 1.0})) as running:
        message = {"role": "user", "content": "a long story"}
        body = {"model": "m", "messages": [message], "stream": True, "max_tokens": 5000}
        async with running.session.post(
            running.url + "/v1/chat/completions", json=body, headers=A
        ) as response:
            await response.content.readany()
        await running.finished(1)
        assert spent(running) < 0.1
        assert await used(running) == {"usd_per_day": pytest.approx(spent(running))}


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
async def test_the_sdks_raise_their_errors_for_a_used_up_budget(tmp_path: Path) -> None:
    limits = {"usd_per_day": 0.0, "models": ["m"]}
    sections = settings(tmp_path, limits)
    names = ("anthropic", "gemini", "responses")
    others = tuple({"name": name, "dialect": name, "price": PRICE} for name in names)
    async with sidecar(others=others, **sections) as running:
        url = running.url
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="key-of-a") as client:
            message: Any = {"role": "user", "content": "hi"}
            with pytest.raises(openai.RateLimitError) as chat:
                await client.chat.completions.create(model="m", messages=[message])
            assert chat.value.code == "insufficient_quota"
            assert "usd_per_day = $0" in chat.value.message
            with pytest.raises(openai.RateLimitError) as responses:
                await client.responses.create(model="m", input="hi")
            assert responses.value.code == "insufficient_quota"
            with pytest.raises(openai.PermissionDeniedError) as denied:
                await client.chat.completions.create(model="n", messages=[message])
            assert denied.value.code == "model_not_found"
        async with anthropic.AsyncAnthropic(base_url=url, api_key="key-of-a") as claude:
            with pytest.raises(anthropic.RateLimitError) as limited:
                await claude.messages.create(model="m", max_tokens=9, messages=[message])
            assert limited.value.body["error"]["type"] == "rate_limit_error"  # type: ignore[index]
            with pytest.raises(anthropic.PermissionDeniedError):
                await claude.messages.create(model="n", max_tokens=9, messages=[message])
        google = genai.Client(
            api_key="key-of-a", vertexai=False, http_options=gemini.HttpOptions(base_url=url)
        )
        async with google.aio as client_of_gemini:
            with pytest.raises(gemini_errors.ClientError) as exhausted:
                await client_of_gemini.models.generate_content(model="m", contents="hi")
            assert (exhausted.value.code, exhausted.value.status) == (429, "RESOURCE_EXHAUSTED")
            with pytest.raises(gemini_errors.ClientError) as forbidden:
                await client_of_gemini.models.generate_content(model="n", contents="hi")
            assert (forbidden.value.code, forbidden.value.status) == (403, "PERMISSION_DENIED")
        # No SDK asked again: the day is over for them.
        assert len(running.served) == 7


async def test_a_model_without_a_price_is_refused_with_the_setting_that_helps(
    tmp_path: Path,
) -> None:
    upstream = {"base_url": "http://provider.example:1", "price": {}}
    async with sidecar(**settings(tmp_path, {"usd_per_day": 1.0}, upstream=upstream)) as running:
        reply = await running.ask("x", headers=A)
        assert reply.status == 403
        assert "no price is known of the model 'm'" in reply.body.decode()


async def test_the_list_of_models_shows_what_a_caller_may_use(tmp_path: Path) -> None:
    upstream = {"models": {"small-1": "m", "large-1": "m"}}
    sections = settings(tmp_path, {"models": ["small-*"]}, upstream=upstream)
    async with sidecar(**sections) as running:
        found = {}
        for name, headers in (("a", A), ("b", B)):
            async with running.session.get(running.url + "/v1/models", headers=headers) as listed:
                found[name] = {each["id"] for each in (await listed.json())["data"]}
        assert found["a"] == {"small-1"}
        assert {"small-1", "large-1"} <= found["b"]
        async with running.session.get(running.url + "/v1/models/large-1", headers=A) as one:
            assert one.status == 403


async def test_a_call_reserves_the_answers_that_it_names_by_id(tmp_path: Path) -> None:
    sections = settings(tmp_path, {"tokens_per_day": 6000}, upstream={"dialect": "responses"})
    async with sidecar(**sections) as running:

        async def ask(**fields: Any) -> tuple[int, Any]:
            body = {"model": "m", "max_output_tokens": 300, **fields}
            async with running.session.post(
                running.url + "/v1/responses", json=body, headers=A
            ) as response:
                return response.status, await response.json()

        status, first = await ask(input="word " * 1600)
        assert status == 200
        assert 1500 < (await used(running))["tokens_per_day"] < 3000
        status, refused = await ask(input="and?", previous_response_id=first["id"])
        assert status == 429, refused
        assert (await ask(input="and?"))[0] == 200


async def test_relayed_calls_need_a_known_cost(tmp_path: Path) -> None:
    async with sidecar(**settings(tmp_path, {"usd_per_day": 1.0})) as running:

        async def call(method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
            async with running.session.request(
                method, running.url + path, headers=headers, json={"model": "m"}
            ) as response:
                return response.status, await response.text()

        status, text = await call("POST", "/v1/batches", A)
        assert status == 403
        assert "unknown_cost" in json.loads(text)["error"]["message"]
        assert (await call("GET", "/v1/files", A))[0] != 403
        assert (await call("POST", "/v1/batches", B))[0] != 403


async def test_a_websocket_needs_a_known_cost(tmp_path: Path) -> None:
    async with sidecar(**settings(tmp_path, {"usd_per_day": 1.0})) as running:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await running.session.ws_connect(running.url + "/v1/realtime?model=m", headers=A)
        assert refused.value.status == 403


async def test_legacy_completions_reserve_what_they_may_cost(tmp_path: Path) -> None:
    async with sidecar(**settings(tmp_path, {"tokens_per_day": 5000})) as running:

        async def ask(**fields: Any) -> int:
            body = {"model": "m", "prompt": "x", **fields}
            async with running.session.post(
                running.url + "/v1/completions", json=body, headers=A
            ) as response:
                await response.read()
                return response.status

        assert await ask(max_tokens=6000) == 429
        assert await ask(max_tokens=500, best_of=12) == 429
        assert await ask(max_tokens=500, prompt=["x"] * 12) == 429
        assert await ask(max_tokens=500, n=2) == 200


@pytest.mark.parametrize("number", [10**20, 10**400])
async def test_absurd_numbers_in_a_request_reach_no_counter(tmp_path: Path, number: int) -> None:
    sections = settings(tmp_path, {"usd_per_day": 1.0}, upstream={"price": {}})  # it is local: free
    async with sidecar(**sections) as running:
        one: dict[str, Any] = {"n": number}
        other: dict[str, Any] = {"max_tokens": number}
        for fields in (one, other):
            reply = await running.ask("x", headers=A, **fields)
            assert reply.status in (200, 400), fields
        assert (await running.ask("y", headers=A)).status == 200
        assert await used(running) == {"usd_per_day": 0.0}


async def test_a_caller_names_no_other_model_in_a_second_place(tmp_path: Path) -> None:
    async with sidecar(**settings(tmp_path, {"models": ["m"]})) as running:
        assert (await running.ask("x", headers=A, models=["m"])).status == 200
        assert (await running.ask("y", headers=A, models=["m", "large"])).status == 403
        assert (await running.ask("y", headers=B, models=["m", "large"])).status == 200
        # Each message of such a WebSocket names its model.
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await running.session.ws_connect(running.url + "/v1/responses?model=m", headers=A)
        assert refused.value.status == 403
        await (await running.session.ws_connect(running.url + "/v1/responses", headers=B)).close()


@pytest.mark.parametrize(
    ("limits", "twice"),
    [
        ({"models": ["m"]}, '"model":"large","model":"m"'),
        ({"models": ["m"]}, '"mod\\u0065l":"large","model":"m"'),
        ({"usd_per_day": 1.0}, '"model":"m","max_tokens":90000,"max_tokens":1'),
    ],
)
async def test_a_request_that_can_be_read_in_two_ways_is_refused(
    tmp_path: Path, limits: dict[str, Any], twice: str
) -> None:
    """Some providers take the first of two equal keys, and we the last."""
    body = "{" + twice + ',"messages":[{"role":"user","content":"x"}]}'
    async with sidecar(**settings(tmp_path, limits)) as running:
        for headers, status in ((A, 403), (B, 200)):
            async with running.session.post(
                running.url + "/v1/chat/completions", data=body, headers=headers
            ) as response:
                assert response.status == status


async def test_a_relayed_call_that_names_two_models_is_refused(tmp_path: Path) -> None:
    upstream = {"models": {"small": "m"}}
    async with sidecar(**settings(tmp_path, {"models": ["small"]}, upstream=upstream)) as running:
        for model, status in (('"model":"small"', 404), ('"model":"large","model":"small"', 403)):
            async with running.session.post(
                running.url + "/v1/images/generations",
                data=f'{{{model},"prompt":"x"}}',
                headers={**A, "content-type": "application/json"},
            ) as response:
                assert response.status == status
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await running.session.ws_connect(
                running.url + "/v1/realtime?model=large&model=small", headers=A
            )
        assert refused.value.status == 400


async def test_the_larger_of_two_limits_of_an_answer_is_reserved(tmp_path: Path) -> None:
    """Many providers know only ``max_tokens``."""
    async with sidecar(**settings(tmp_path, {"usd_per_day": 1.0})) as running:
        asked: list[dict[str, Any]] = [
            {"max_tokens": 1, "max_completion_tokens": 90_000},
            {"max_completion_tokens": 1, "max_tokens": 90_000},
        ]
        for limits in asked:
            reply = await running.ask("x", headers=A, **limits)
            assert reply.status == 429
        assert (await running.ask("x", headers=A, max_tokens=9)).status == 200


async def test_a_negative_limit_reserves_as_none(tmp_path: Path) -> None:
    """For LM Studio and llama.cpp, -1 is no limit."""
    limits = {"tokens_per_day": 5000, "output_reserve": 6000}
    async with sidecar(**settings(tmp_path, limits)) as running:
        both: dict[str, Any] = {"max_completion_tokens": -1, "max_tokens": 9}
        for fields in ({"max_tokens": -1}, both):
            assert (await running.ask("x", headers=A, **fields)).status == 429
        body = {"model": "m", "prompt": "x", "max_tokens": -1}
        url = running.url + "/v1/completions"
        async with running.session.post(url, json=body, headers=A) as response:
            assert response.status == 429
        assert (await running.ask("x", headers=A, max_tokens=9)).status == 200


async def test_a_request_that_cannot_be_read_needs_a_known_cost(tmp_path: Path) -> None:
    async with sidecar(**settings(tmp_path, {"tokens_per_day": 5000})) as running:
        body = gzip.compress(json.dumps({"model": "m", "messages": []}).encode())
        for headers, refused in ((A, True), (B, False)):
            async with running.session.post(
                running.url + "/v1/chat/completions",
                data=body,
                headers={**headers, "content-encoding": "gzip"},
            ) as response:
                text = await response.text()
                assert ("unknown_cost" in text) == refused
                assert (response.status == 403) == refused


class Rude(Provider):
    """A provider whose counts of tokens mean nothing."""

    def __init__(self, count: bytes) -> None:
        super().__init__()
        self.told_count = count

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def tell(message: Any) -> None:
            if body := message.get("body"):
                counts = rb'("(?:prompt|completion)_tokens":)\d+'
                told = re.sub(counts, rb"\g<1>" + self.told_count, body)
                message = {**message, "body": told}
            elif message["type"] == "http.response.start":
                named = [pair for pair in message["headers"] if pair[0] != b"content-length"]
                message = {**message, "headers": named}
            await send(message)

        await super().__call__(scope, receive, tell)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("count", [b"0", b"-5000", b"null", b"99999999999999999999"])
async def test_an_answer_with_useless_counts_is_charged_by_estimate(
    tmp_path: Path, count: bytes, *, stream: bool
) -> None:
    async with sidecar(Rude(count), **settings(tmp_path, {"tokens_per_day": 9000})) as running:
        assert (await running.ask("x", headers=A, max_tokens=300, stream=stream)).status == 200
        assert 50 < (await used(running))["tokens_per_day"] < 1000


def told(headers: Any, form: str, unit: str) -> tuple[str | None, ...]:
    names = [form.format(unit=unit, part=part) for part in ("limit", "remaining", "reset")]
    return tuple(headers.get(name) for name in names)


OPENAI_FORM, ANTHROPIC_FORM = "x-ratelimit-{part}-{unit}", "anthropic-ratelimit-{unit}-{part}"


async def test_answers_tell_what_is_left_of_the_keys_own_limits(tmp_path: Path) -> None:
    provider = Provider(
        profile=ProviderProfile(model="sim", requests_per_minute=777, tokens_per_minute=999_999)
    )
    limits = {"requests_per_minute": 400, "tokens_per_minute": 50_000}
    async with sidecar(provider, **settings(tmp_path, limits)) as running:
        other = await running.ask("of another key", headers=B)
        assert other.headers["x-ratelimit-limit-requests"] == "777", "the provider's own"
        replies = [await running.ask("the same", headers=A, max_tokens=500) for _ in range(2)]
        replies.append(await running.ask("streamed", headers=A, max_tokens=500, stream=True))
        assert [each.headers["x-cache"] for each in replies] == ["MISS", "HIT", "MISS"]
        seen = [told(each.headers, OPENAI_FORM, "requests") for each in replies]
        assert [each[0] for each in seen] == ["400"] * 3
        left = [int(each[1] or 0) for each in seen]
        assert left in ([399, 398, 397], [399, 398, 399], [399, 399, 398]), "a minute may end"
        assert all(re.fullmatch(r"1m0s|[0-9]{1,2}s", each[2] or "") for each in seen)
        limit, first, _ = told(replies[0].headers, OPENAI_FORM, "tokens")
        assert limit == "50000"
        assert 49_000 < int(first or 0) <= 50_000 - 500, "the call has reserved its max_tokens"


async def test_a_refusal_tells_that_nothing_is_left(tmp_path: Path) -> None:
    async with sidecar(**settings(tmp_path, {"requests_per_minute": 3})) as running:
        found = [await running.ask("the same", headers=A) for _ in range(8)]
    refused = next(each for each in found if each.status == 429)
    assert told(refused.headers, OPENAI_FORM, "requests")[:2] == ("3", "0")
    assert told(refused.headers, OPENAI_FORM, "tokens") == (None, None, None)


async def test_anthropics_sdk_reads_what_is_left(tmp_path: Path) -> None:
    limits = {"requests_per_minute": 50, "tokens_per_minute": 50_000}
    async with (
        sidecar(**settings(tmp_path, limits)) as running,
        anthropic.AsyncAnthropic(base_url=running.url, api_key="key-of-a") as client,
    ):
        raw = await client.messages.with_raw_response.create(
            model="sim", max_tokens=100, messages=[{"role": "user", "content": "Hi"}]
        )
        counted = await client.messages.with_raw_response.count_tokens(
            model="sim", messages=[{"role": "user", "content": "Hi"}]
        )
    for reply in (raw, counted):
        limit, left, reset = told(reply.headers, ANTHROPIC_FORM, "requests")
        assert (limit, int(left or 0) in (48, 49)) == ("50", True)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:00Z", reset or "")
        assert told(reply.headers, ANTHROPIC_FORM, "tokens")[0] == "50000"
        assert not any(name.startswith("x-ratelimit") for name in reply.headers)


async def test_two_nodes_tell_of_one_minute(tmp_path: Path) -> None:
    with redis_server() as redis:
        limits = {"tokens_per_minute": 50_000}
        sections = settings(tmp_path, limits, cache={"store": redis.url})
        async with sidecar(**sections) as one, sidecar(**sections) as other:
            first = await one.ask("say one", headers=A, max_tokens=9_000)
            second = await other.ask("say two", headers=A, max_tokens=9_000)
    left = [int(told(each.headers, OPENAI_FORM, "tokens")[1] or 0) for each in (first, second)]
    assert left[0] <= 41_000
    assert left[1] <= 41_000
    assert told(first.headers, OPENAI_FORM, "requests") == (None, None, None)
