"""Tiers and machines by the hour, through the gateway."""

from __future__ import annotations

import json

import pytest

from support.raw_upstream import RawUpstream, raw_upstream
from support.sidecar import sidecar

EXACT = {"mode": "exact-only"}
REFUSED = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 2\r\n\r\n{}"


@pytest.mark.anyio
async def test_a_route_asks_the_tier_first_and_then_the_standard() -> None:
    provider = RawUpstream(REFUSED)
    route = {"name": "patient", "strategy": "fallback", "upstreams": ["openai:flex", "openai"]}
    async with raw_upstream(provider) as base:
        upstream = {
            "name": "openai", "preset": "openai", "base_url": f"{base}/v1", "api_key_env": [],
        }  # fmt: skip
        async with sidecar(upstream=upstream, routes=(route,), cache=EXACT) as gateway:
            await gateway.ask(model="gpt-5-mini")
            await gateway.finished(1)
    asked = [json.loads(provider.body(number)) for number in range(2)]
    assert [body.get("service_tier") for body in asked] == ["flex", None]
    names = [attempt.upstream for attempt in gateway.served[0].attempts]
    assert names[:2] == ["openai:flex", "openai"]


@pytest.mark.anyio
async def test_a_machine_by_the_hour_costs_nothing_a_call_and_hits_save_no_dollars() -> None:
    price = {"default": {"input_per_million": 1.0, "output_per_million": 2.0}}
    upstream = {"price_per_hour": 3.0, "price": price}
    async with sidecar(upstream=upstream, cache=EXACT) as gateway:
        for _ in range(2):
            await gateway.ask()
        await gateway.finished(2)
        miss, hit = gateway.served
    assert (miss.cost_usd, hit.saved_usd) == (0.0, 0.0)
    assert hit.saved_tokens > 0
