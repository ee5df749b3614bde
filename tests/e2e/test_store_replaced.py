"""Processes whose shared Redis loses its data: they share again, and never across scopes."""

from __future__ import annotations

import pytest

from support.nodes import nodes, share
from support.redis_server import redis_server
from support.sidecar import sidecar

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("first", ["running", "new"])
async def test_processes_share_again_after_redis_was_emptied(first: str) -> None:
    with redis_server() as server:
        cache = {"store": server.url, "mode": "exact-only"}
        async with nodes(server.url, server.url) as (one, two):
            await share(one, two)
            server.flush()
            if first == "running":
                await share(one, two)
            async with sidecar(cache=cache, upstream={"base_url": one.provider_url}) as new:
                await share(one, two, new)
                await share(new, one, two)
                await one.ask("What is mine?")
                for number, each in enumerate((one, two, new)):
                    stranger = {"authorization": f"Bearer another {number}"}
                    reply = await each.ask("What is mine?", headers=stranger)
                    assert "fwd=miss" in reply.verdict
