"""What the admin API shows of upstreams, through a real gateway."""

from __future__ import annotations

import pytest

from headstart.lab.simulator.faults import Stall
from support.administered import administered
from support.sidecar import Provider
from support.simulated import simulated

pytestmark = pytest.mark.anyio


async def test_an_upstream_is_shown_with_what_was_measured() -> None:
    async with administered() as running:
        assert await running.get("upstreams") == {"upstreams": [], "hedges": []}
        await running.gateway.ask(stream=True)
        (shown,) = (await running.get("upstreams"))["upstreams"]
        assert shown["ready"]
        assert shown["in_flight"] == 0
        assert shown["ttft_p50_s"] > 0
        assert shown["first_token_limit_s"] >= 30


async def test_what_hedges_cost_is_told_beside_their_budget() -> None:
    price = {"default": {"input_per_million": 1.0, "output_per_million": 1.0}}
    async with simulated(Provider()) as quick:
        slow = {"name": "slow", "price": price}
        others = ({"name": "quick", "price": price, "base_url": quick},)
        route = {
            "name": "chat",
            "strategy": "hedge",
            "upstreams": ["slow", "quick"],
            "equal_models": "assume",
            "extra_calls": 1.0,
            "extra_cost": 0.9,
        }
        chosen = {"upstream": slow, "others": others, "routes": (route,)}
        stalling = Provider(fault=Stall(seconds=60.0, after=0))
        async with administered(upstreams={"provider": stalling, **chosen}) as running:
            reply = await running.gateway.ask(headers={"x-headstart-deadline-ms": "1000"})
            (hedging,) = (await running.get("upstreams"))["hedges"]
            metrics = (await running.call("GET", "metrics")).body.decode()
    assert reply.headers["x-headstart-upstream"] == "quick"
    extra_usd = float(reply.headers["x-headstart-extra-cost"])
    assert 0.0 < extra_usd < float(reply.headers["x-headstart-cost"])
    assert 0.0 < hedging.pop("extra_cost") < 0.9
    assert hedging == {
        "route": "chat",
        "strategy": "hedge(slow, quick)",
        "extra_calls": 1.0,
        "extra_calls_allowed": 1.0,
        "extra_cost_allowed": 0.9,
    }
    assert 'headstart_extra_calls_ratio{route="chat",strategy="hedge(slow, quick)"} 1.0' in metrics
