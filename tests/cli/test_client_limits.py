"""Limits of client keys over several workers, reloads and restarts: real processes."""

from __future__ import annotations

import http.client
import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from support.held import Held
from support.served import Served, served, start, stop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

PRICE = "[upstream.price.default]\ninput_per_million = 1.0\noutput_per_million = 100.0\n"
CALL_USD = 0.05
"""What a call reserves for 500 tokens of its answer; the prompt adds a little."""


def limited(server: Served, **limits: Any) -> None:
    """Write a configuration in which the key ``a`` has limits."""
    rows = "\n".join(f"{name} = {json.dumps(value)}" for name, value in limits.items())
    server.write(rest=PRICE)
    text = server.config.read_text("utf-8")
    keys = f'[server.client_keys]\na = "key-of-a"\n[server.client_limits.a]\n{rows}\n'
    server.config.write_text(text + keys, "utf-8")


def ask(server: Served, text: str) -> int:
    """Ask over a connection of its own, so that any worker may get it."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 500}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60.0)
    headers = {"content-type": "application/json", "authorization": "Bearer key-of-a"}
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        reply = connection.getresponse()
        reply.read()
        return reply.status
    finally:
        connection.close()


@pytest.fixture
def two(tmp_path: Path, free_port: int) -> Iterator[Served]:
    with served(tmp_path, free_port, "--workers", "2") as server:
        yield server


def reload(server: Served) -> None:
    status, text = server.admin("reload", "POST")
    assert status == 200, text


def used(server: Served) -> dict[str, float]:
    status, text = server.admin("limits")
    assert status == 200, text
    return {each["limit"]: each["used"] for each in json.loads(text)}


def test_two_workers_share_a_budget_that_reloads_and_restarts_keep(two: Served) -> None:
    limited(two, usd_per_day=8.5 * CALL_USD)
    reload(two)
    with ThreadPoolExecutor(16) as pool:
        found = Counter(pool.map(lambda number: ask(two, f"question {number}"), range(100)))
    assert found[200] + found[429] == 100
    assert found[429] > 0
    two.until(lambda: two.count("headstart_requests_total") == 100)
    cost_usd = two.count("headstart_cost_usd_total")
    assert 0 < cost_usd <= 8.5 * CALL_USD
    two.until(lambda: used(two) == {"usd_per_day": pytest.approx(cost_usd)})

    limited(two, usd_per_day=0.9 * cost_usd, requests_per_minute=1000)
    reload(two)
    assert ask(two, "after the reload") == 429
    share = pytest.approx(1 / 0.9, rel=1e-3)
    assert two.count('headstart_client_limit_used_ratio{caller="a",limit="usd_per_day"}') == share
    [shown] = json.loads(two.admin("live")[1])["limits"]
    assert (shown["caller"], shown["limit"]) == ("a", "usd_per_day")
    assert used(two) == {"usd_per_day": pytest.approx(cost_usd)}

    limited(two, usd_per_day=cost_usd + 2 * CALL_USD)
    stop(two)
    with (two.folder / "log").open("ab") as log:
        two.process = start(two.folder, log, "--workers", "2")
        two.until(lambda: two.log.count("headstart is ready") == 2)
        assert used(two) == {"usd_per_day": pytest.approx(cost_usd)}
        assert ask(two, "after the restart") == 200


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_reload_in_mid_call_settles_what_was_reserved_once(
    tmp_path: Path, free_port: int, workers: str
) -> None:
    provider = Held()
    with served(tmp_path, free_port, "--workers", workers, provider=provider) as server:
        limited(server, usd_per_day=20 * CALL_USD)
        reload(server)
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(ask, server, f"question {number}") for number in range(8)]
            server.until(lambda: provider.began == 8)
            for _ in range(2):
                reload(server)
                # The new gateway knows what calls of the old one have reserved.
                assert used(server)["usd_per_day"] > 8 * CALL_USD
            limited(server, usd_per_day=8.5 * CALL_USD)
            reload(server)
            assert ask(server, "one more") == 429
            provider.open.set()
            assert {each.result() for each in asked} == {200}
        server.until(lambda: server.count("headstart_requests_total") == 9)
        cost_usd = server.count("headstart_cost_usd_total")
        assert 0 < cost_usd < 8 * CALL_USD
        server.until(lambda: used(server) == {"usd_per_day": pytest.approx(cost_usd)})
        reload(server)
        assert used(server) == {"usd_per_day": pytest.approx(cost_usd)}
        assert ask(server, "one more") == 200


def test_two_workers_share_the_requests_of_a_minute(two: Served) -> None:
    limited(two, requests_per_minute=30)
    reload(two)
    with ThreadPoolExecutor(8) as pool:
        found = Counter(pool.map(lambda _: ask(two, "the same"), range(100)))
    # The minute may end once in between.
    assert found[200] in range(30, 61)
    assert found[200] + found[429] == 100
