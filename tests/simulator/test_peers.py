from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from benchmarks.peers import bench
from benchmarks.peers_breaks import breaks
from benchmarks.peers_site import Provider, Site, Target
from benchmarks.peers_table import table
from headstart.lab.simulator import serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """The provider, asked directly under every name."""
    provider: Any = Provider()
    async with serve(provider) as url, aiohttp.ClientSession() as session:
        direct = Target("direct", url)
        yield Site(direct, Target("relay", url), Target("no-op app", url), (), session)


async def test_the_direct_call_is_seen_to_break_and_to_be_cancelled(site: Site) -> None:
    figures = await bench(site, [], 1)
    [direct] = figures["endings"]
    assert [row["verdict"] for row in direct["upstream_broke"].values()] == [
        "connection broken",
        "connection broken",
        "silent: 40 tokens, no [DONE]",
    ]
    assert direct["client_left"]["cancelled"]
    assert not any(row["failed"] for row in figures["rows"])
    assert "\n| relay | " in table(figures)


async def test_a_client_that_asks_again_after_a_break_gets_the_whole_answer(site: Site) -> None:
    await breaks(site, site.provider, range(3))
    again = await breaks(site, site.provider, range(3))
    assert {row["verdict"] for row in again.values()} == {"whole answer"}
