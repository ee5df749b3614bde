"""Processes whose shared Redis loses its data: they share again, and never across scopes."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import pytest

from headstart.observe import Committed
from support.patience import PATIENCE_S
from support.redis_server import redis_server
from support.sidecar import sidecar
from support.simulated import until

if TYPE_CHECKING:
    from support.sidecar import Sidecar

pytestmark = pytest.mark.anyio


NUMBERS = itertools.count()


def committed(asking: Sidecar) -> int:
    return sum(isinstance(seen, Committed) for seen in asking.recorder.seen)


async def share(asking: Sidecar, others: tuple[Sidecar, ...]) -> None:
    """Ask new questions until all processes answer one from what the first stored."""
    async with asyncio.timeout(PATIENCE_S):
        for number in NUMBERS:
            question = f"What is question {number}?"
            before = committed(asking)
            await asking.ask(question)
            await until(lambda: committed(asking) > before)  # noqa: B023 - awaited in its round
            verdicts = [(await other.ask(question)).verdict for other in others]
            if all(verdict.endswith("detail=exact") for verdict in verdicts):
                return


@pytest.mark.parametrize("first", ["running", "new"])
async def test_processes_share_again_after_redis_was_emptied(first: str) -> None:
    with redis_server() as server:
        cache = {"store": server.url, "mode": "exact-only"}
        async with sidecar(cache=cache) as one:
            same = {"base_url": one.provider_url}  # answers of another provider are not shared
            async with sidecar(cache=cache, upstream=same) as two:
                await share(one, (two,))
                server.flush()
                if first == "running":
                    await share(one, (two,))
                async with sidecar(cache=cache, upstream=same) as new:
                    await share(one, (two, new))
                    await share(new, (one, two))
                    await one.ask("What is mine?")
                    for number, each in enumerate((one, two, new)):
                        stranger = {"authorization": f"Bearer another {number}"}
                        reply = await each.ask("What is mine?", headers=stranger)
                        assert "fwd=miss" in reply.verdict
