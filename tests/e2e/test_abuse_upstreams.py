"""Attacks of a caller on others, on an operator's keys and on providers (``docs/abuse.md``)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headstart.attempts import AttemptOutcome
from headstart.lab.simulator.faults import Gzip
from headstart.policies.routing.measures import UpstreamModel
from support.proxied import Reply, proxied, read_body
from support.scripted import ScriptedUpstream
from support.serving import serving
from support.sidecar import Provider, sidecar

pytestmark = pytest.mark.anyio
FRESH = {"cache-control": "no-store"}
LIMITS = [
    (b"x-ratelimit-limit-tokens", b"10000"),
    (b"x-ratelimit-remaining-tokens", b"10000"),
    (b"x-ratelimit-reset-tokens", b"0s"),
]


def len_of(number: int) -> str:
    return f"{'-' * (number < 0)}{number.bit_length()} bits"


@pytest.fixture
def own_key(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return settings of an upstream with a key of its own."""
    monkeypatch.setenv("OPERATORS_KEY", "sk-operator")
    return {"api_key_env": "OPERATORS_KEY"}


async def refuse(gateway: Any, upstream: ScriptedUpstream, body: str, **asked: Any) -> Reply:
    """Ask for what the provider refuses with 400."""
    upstream.status, upstream.body = 400, json.dumps({"error": {"message": body}}).encode()
    reply: Reply = await gateway.ask("refused", **asked)
    upstream.status, upstream.body = 200, None
    return reply


@pytest.mark.parametrize("headers", [{}, FRESH], ids=["cached", "bypassed"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models"])
async def test_nothing_of_a_callers_key_goes_out_beside_the_operators(
    own_key: dict[str, Any], headers: dict[str, str], path: str
) -> None:
    theirs = {
        "authorization": "Bearer sk-caller",
        "cookie": "session=caller",
        "openai-organization": "org-caller",
        "openai-project": "proj-caller",
        "ocp-apim-subscription-key": "caller",
        "x-portkey-api-key": "caller",
        "x-auth-token": "caller",
        "cf-aig-authorization": "Bearer caller",
        "set-cookie": "session=caller",
        "proxy-authorization": "Basic caller",
    }
    async with proxied(provider=own_key) as gateway:
        asked = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        query = "&".join(f"{name}=caller" for name in ("key", "%6bey", "KEY", "api_key", "token"))
        url = f"{gateway.url}{path}?a=1&{query}&b"
        async with gateway.session.post(url, json=asked, headers={**theirs, **headers}):
            pass
        (sent,) = gateway.upstream.calls
        assert b"caller" not in b"".join(name + value for name, value in sent.headers) + sent.body
        assert (sent.query, sent.header(b"authorization")) == (b"a=1&b", b"Bearer sk-operator")


async def test_a_callers_key_goes_with_all_that_belongs_to_it_where_it_is_the_one_used() -> None:
    async with proxied() as gateway:
        await gateway.ask(headers={"openai-organization": "org-caller"})
        (sent,) = gateway.upstream.calls
        assert sent.header(b"openai-organization") == b"org-caller"
        assert sent.header(b"authorization") == b"Bearer k"


@pytest.mark.parametrize("number", [10**400, 10**9, 0, -1, -(10**30)], ids=len_of)
async def test_any_number_of_tokens_may_be_asked_for(number: int) -> None:
    upstream = ScriptedUpstream()
    upstream.headers = LIMITS
    async with proxied(upstream) as gateway:
        await gateway.ask("first")
        assert (await gateway.ask(max_tokens=number)).status == 200


async def test_a_refused_call_uses_up_no_rate_limit(own_key: dict[str, Any]) -> None:
    upstream = ScriptedUpstream()
    upstream.headers = LIMITS
    async with proxied(upstream, provider=own_key) as gateway:
        await gateway.ask("first")
        upstream.headers = []
        assert (await refuse(gateway, upstream, "too many", max_tokens=10**9)).status == 400
        assert (await gateway.ask("second", max_tokens=5000)).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_its_callers_limit_cut_is_not_asked_for_again(stream: bool) -> None:
    upstream = ScriptedUpstream()
    upstream.words, upstream.finish = [], "length"
    async with proxied(upstream) as gateway:
        assert (await gateway.ask(max_tokens=1, stream=stream)).status == 200
        assert len(upstream.calls) == 1
        assert [each.outcome for each in gateway.served[0].attempts] == [AttemptOutcome.WON]


async def test_answers_that_a_caller_makes_empty_do_not_close_a_provider_to_others() -> None:
    preferred, spare = ScriptedUpstream(), ScriptedUpstream()
    async with serving(spare) as url:
        route = {"name": "r", "strategy": "fallback", "upstreams": ["sim", "spare"]}
        others = ({"name": "spare", "base_url": url},)
        async with proxied(preferred, others=others, routes=(route,)) as gateway:
            preferred.words = spare.words = []
            for number in range(6):
                assert (await gateway.ask(f"evil {number}", stop=["H"])).status == 200
            preferred.words = ["Hello"]
            assert (await gateway.ask("good")).headers["x-headstart-upstream"] == "sim"


async def test_made_up_models_do_not_drive_out_what_was_learned() -> None:
    async with proxied() as gateway:
        await gateway.ask(stream=True)
        states = gateway.parts[0].states
        assert states is not None
        for number in range(300):
            key = UpstreamModel("sim", f"made up {number}")
            states.measures.began(key, 0.0)
            states.measures.ended(key)
        assert states.measures.first_token(UpstreamModel("sim", "m"), 10, 0.0).mean_s is not None


@pytest.mark.parametrize("headers", [{}, FRESH], ids=["cached", "bypassed"])
async def test_an_early_200_is_never_followed_by_what_its_header_did_not_say(
    headers: dict[str, str],
) -> None:
    route = {"name": "r", "upstreams": ["sim"], "early_200_s": 0.01}
    provider = Provider(fault=Gzip())
    async with sidecar(provider, routes=(route,), cache={"mode": "exact-only"}) as gateway:
        provider.open.clear()
        async with gateway.session.post(
            gateway.url + "/v1/chat/completions",
            json={"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True},
            headers={"authorization": "Bearer k", "accept-encoding": "gzip", **headers},
        ) as response:
            provider.open.set()
            body = await read_body(response)
        assert response.status == 200
        assert b"error" in body
        assert "accept-encoding" not in provider.stats.ended_calls()[0].headers or (
            provider.stats.ended_calls()[0].headers["accept-encoding"] == "identity"
        )
