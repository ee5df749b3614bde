"""What the books say of a request, so that the report can tell what hits saved."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from headstart.decisions import Outcome
from headstart.lab.simulator.faults import Stall
from support.proxied import CHAT, proxied
from support.sidecar import PROMPT, REWORDED, Provider, sidecar
from support.simulated import simulated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

PRICE = {"default": {"input_per_million": 1.0, "output_per_million": 2.0}}
KEY = {"authorization": "Bearer k", "content-type": "application/json"}
BODY = b'{"model":"m","messages":[{"role":"user","content":"Why?"}]}'
UPLOAD_S = 0.2


async def slow_upload() -> AsyncIterator[bytes]:
    yield BODY[:20]
    await asyncio.sleep(UPLOAD_S)
    yield BODY[20:]


async def test_the_time_of_an_upload_is_booked_apart() -> None:
    async with proxied() as proxy:
        for _ in range(2):
            async with proxy.session.post(
                proxy.url + CHAT, data=slow_upload(), headers=KEY
            ) as response:
                await response.read()
        miss, hit = proxy.served
    assert (miss.outcome, hit.outcome) == (Outcome.MISS, Outcome.EXACT)
    for row in (miss, hit):
        assert UPLOAD_S * 0.9 < row.read_s < row.total_s
        assert row.overhead_s < row.total_s - row.read_s
    original_s = hit.saved_total_s + hit.total_s - hit.read_s
    assert original_s < miss.total_s - miss.read_s + 1e-3


@pytest.mark.parametrize(
    ("first", "then", "known"),
    [(True, True, True), (False, True, False), (True, False, True), (False, False, True)],
)
async def test_the_first_token_of_a_whole_answer_is_not_known(
    *, first: bool, then: bool, known: bool
) -> None:
    async with proxied() as proxy:
        await proxy.ask(stream=first)
        await proxy.ask(stream=then)
        miss, hit = proxy.served
    assert (miss.outcome, hit.outcome) == (Outcome.MISS, Outcome.EXACT)
    assert miss.ttft_s is not None  # of a whole answer: the time until it was sent
    assert hit.ttft_s is not None
    assert 0.0 < miss.ttft_s <= miss.total_s
    assert (hit.saved_ttft_s is not None) == known
    if not then and hit.saved_ttft_s is not None:  # its first token is at its end
        assert hit.saved_ttft_s == pytest.approx(hit.saved_total_s, abs=0.05)


async def test_a_hit_saves_the_tokens_and_the_cost_of_all_calls_for_its_answer() -> None:
    async with simulated(Provider()) as quick:
        slow = {"name": "slow", "price": PRICE}
        others = ({"name": "quick", "price": PRICE, "base_url": quick},)
        route = {
            "name": "chat", "strategy": "hedge", "upstreams": ["slow", "quick"],
            "equal_models": "assume", "extra_calls": 1.0, "extra_cost": 0.9,
        }  # fmt: skip
        stalling = Provider(fault=Stall(seconds=60.0, after=0))
        async with sidecar(stalling, others=others, routes=(route,), upstream=slow) as running:
            await running.ask(PROMPT, headers={"x-headstart-deadline-ms": "1000"})
            await running.ask(PROMPT)
            miss, hit = running.served
    assert len(miss.attempts) == 2
    assert hit.outcome is Outcome.EXACT
    assert hit.saved_tokens == miss.spent_tokens > miss.prompt_tokens + miss.completion_tokens
    assert hit.saved_usd == pytest.approx(miss.cost_usd)
    assert 0.0 < hit.saved_extra_usd < (miss.cost_usd or 0.0)
    assert hit.would_have_cost_usd == pytest.approx(miss.would_have_cost_usd)


async def test_the_saving_of_the_prefix_cache_is_booked() -> None:
    price = {"default": {**PRICE["default"], "cached_per_million": 0.1}}
    async with proxied(provider={"price": price}) as proxy:
        await proxy.ask()
        await proxy.ask()
        miss, hit = proxy.served
    (attempt,) = miss.attempts
    spared = miss.prompt_tokens * 0.9e-6
    assert attempt.prefix_usd == pytest.approx(spared)
    assert hit.saved_prefix_usd == pytest.approx(spared)


@pytest.mark.parametrize("withheld", [{"mode": "shadow"}, {"shadow_first": 5}])
async def test_only_hits_that_would_be_served_are_held_out(withheld: dict[str, object]) -> None:
    cache = {**withheld, "holdout": 0.999999, "audit.mode": "off"}
    async with sidecar(cache=cache) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        asked = await running.ask(REWORDED)
        exact = await running.ask(PROMPT)
        rows = running.served
    assert "detail=shadow" in asked.verdict
    assert "detail=holdout" in exact.verdict
    assert [row.holdout for row in rows] == [False, False, True]


async def test_tags_are_booked_within_bounds() -> None:
    tags = ", ".join([f"t{n}" for n in range(20)])
    async with proxied() as proxy:
        await proxy.ask(headers={"x-headstart-tags": " billing,feature-x ,,billing"})
        await proxy.ask(headers={"x-headstart-tags": f"{'x' * 65},{tags}"})
        await proxy.ask()
        booked = [row.tags for row in proxy.served]
    assert booked == [("billing", "feature-x"), tuple(f"t{n}" for n in range(8)), ()]


async def test_a_tag_changes_nothing_about_the_answer() -> None:
    async with proxied() as proxy:
        await proxy.ask(headers={"x-headstart-tags": "a"})
        hit = await proxy.ask(headers={"x-headstart-tags": "b"})
        row = proxy.served[-1]
    assert hit.headers["x-cache"] == "HIT"
    assert row.tags == ("b",)
