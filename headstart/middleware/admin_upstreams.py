"""``GET upstreams``: how each upstream stands, what was measured of it, and who hedged how much."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from litestar import get

from headstart.middleware.admin_cache import Engine  # noqa: TC001 - Litestar reads it
from headstart.middleware.admin_state import read_hedges
from headstart.policies.routing.measures import Key
from headstart.types import Frozen

if TYPE_CHECKING:
    from headstart.middleware.upstreams.conditions import Condition
    from headstart.policies.routing.measures import Measures

TYPICAL_TOKENS = 500
"""Length of the prompts that the times to first token are shown for."""


class UpstreamStatus(Frozen, omit_defaults=False):
    """One model of an upstream, under one key. Seconds; None: not known yet."""

    upstream: str
    model: str
    ready: bool
    ready_in_s: float
    """Until its breaker closes or its rate limit is refilled."""
    degraded: bool
    in_flight: int
    samples: int
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    ttft_p99_s: float | None
    tokens_per_s: float | None
    first_token_limit_s: float
    """Longest wait for first content, unless ``first_token_s`` is set."""
    stall_limit_s: float


@get("/upstreams")
async def upstreams(engine: Engine) -> dict[str, Any]:
    """Show what is known of upstreams since they were first called."""
    conditions = engine.conditions
    if conditions is None:
        return {"upstreams": [], "hedges": ()}
    now = asyncio.get_running_loop().time()
    found = [
        _status(Key(upstream, model), condition, conditions.measures, now)
        for (upstream, model, _), condition in conditions.items()
    ]
    found.sort(key=lambda each: (each.upstream, each.model))
    return {"upstreams": found, "hedges": read_hedges(engine)}


def _status(key: Key, condition: Condition, measures: Measures, now: float) -> UpstreamStatus:
    wait_s = max(condition.breaker.avoided_for_s(now), condition.limits.ready_in_s(0, now))
    p50_s, p95_s, p99_s = (
        measures.ttft_s(key, TYPICAL_TOKENS, share, now) for share in (0.5, 0.95, 0.99)
    )
    return UpstreamStatus(
        upstream=key.upstream,
        model=key.model,
        ready=wait_s <= 0.0,
        ready_in_s=wait_s,
        degraded=condition.breaker.degraded(now),
        in_flight=measures.in_flight(key),
        samples=measures.samples(key, TYPICAL_TOKENS, now),
        ttft_p50_s=p50_s,
        ttft_p95_s=p95_s,
        ttft_p99_s=p99_s,
        tokens_per_s=measures.tokens_per_s(key),
        first_token_limit_s=measures.first_token_limit_s(key, TYPICAL_TOKENS, now),
        stall_limit_s=measures.stall_limit_s(key),
    )
