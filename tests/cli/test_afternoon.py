"""An afternoon of a new operator: two providers, teams with budgets, a failure, a reload, a bill.

``pytest -s tests/cli/test_afternoon.py`` prints the commands with what they answered.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from headstart.lab.simulator import Simulator
from support.repository import ROOT
from support.served import Served, served
from support.serving import serving_in_thread

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

PRICE = "[upstream.price.default]\ninput_per_million = 1.0\noutput_per_million = 100.0\n"
TEAMS = {"team-a": "key-of-a", "team-b": "key-of-b"}


def configure(server: Served, mortal: str, *, entries: int) -> None:
    """Write a configuration with both providers, the keys of two teams, and a budget of one."""
    server.write(
        cache=f"max_entries = {entries}",
        rest=f"""{PRICE}
[[upstream]]
name = "mortal"
base_url = "{mortal}/v1"
{PRICE}
[[route]]
name = "chat"
strategy = "fallback"
upstreams = ["mortal", "sim"]
[server.client_keys]
team-a = "{TEAMS["team-a"]}"
team-b = "{TEAMS["team-b"]}"
[server.client_limits.team-b]
usd_per_day = 0.055
""",
    )


def ask(server: Served, team: str, text: str) -> int:
    """Ask over a connection of its own, and return the status."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 500}
    headers = {"content-type": "application/json", "authorization": f"Bearer {TEAMS[team]}"}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60.0)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        reply = connection.getresponse()
        reply.read()
        return reply.status


def attempts(server: Served, upstream: str) -> tuple[float, float]:
    """Return how many calls of an upstream failed, and how many there were, from a scrape."""
    failed = every = 0.0
    for family in text_string_to_metric_families(server.admin("metrics")[1]):
        for sample in family.samples:
            if sample.name == "headstart_attempts_total" and sample.labels["upstream"] == upstream:
                every += sample.value
                failed += sample.value * (sample.labels["outcome"] in ("failed", "broken"))
    return failed, every


def alert_share() -> float:
    """Return above which share of failed calls the alert of a provider fires."""
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text("utf-8"))
    [expression] = [
        rule["expr"]
        for group in rules["groups"]
        for rule in group["rules"]
        if rule["alert"] == "HeadstartProviderFails"
    ]
    assert "headstart_attempts_total" in expression
    assert 'outcome=~"failed|broken"' in expression
    found = re.search(r"> ([0-9.]+)\s*$", expression)
    assert found is not None
    return float(found[1])


def show(command: str, answer: object) -> None:
    print(f"$ {command}\n{answer}\n")  # noqa: T201 - this test is a record, too


def test_a_new_user_gets_through_the_first_afternoon(tmp_path: Path, free_port: int) -> None:
    with contextlib.ExitStack() as first_provider:
        mortal = first_provider.enter_context(serving_in_thread(Simulator(), lifespan="off"))
        with served(tmp_path, free_port) as server:
            # Two providers, and the keys of two teams.
            configure(server, mortal, entries=1000)
            checked = server.run("config", "check")
            show("headstart config check", checked.stdout or checked.stderr)
            assert checked.returncode == 0
            show("POST /_headstart/reload", reloaded := server.admin("reload", "POST"))
            assert reloaded == (200, '{"reloaded":true}')
            statuses = [ask(server, "team-a", f"question {number % 5}") for number in range(10)]
            assert statuses == [200] * 10
            assert attempts(server, "mortal") == (0, 5)  # the others were hits

            # A call reserves 5 cents and costs about one: the budget of 5.5 cents allows no second.
            statuses = [ask(server, "team-b", f"of b {number}") for number in range(3)]
            show("three calls of team-b", statuses)
            assert statuses == [200, 429, 429]

            # A provider dies. Nobody notices, but the log and the alert do.
            before = attempts(server, "mortal")
            first_provider.close()
            statuses = [ask(server, "team-a", f"after {number}") for number in range(10)]
            assert statuses == [200] * 10
            server.until(lambda: "mortal" in server.log)
            failed, every = (
                now - then for now, then in zip(attempts(server, "mortal"), before, strict=True)
            )
            show("grep mortal log", [line for line in server.log.splitlines() if "mortal" in line])
            show("failed calls of the provider that died", f"{failed:.0f} of {every:.0f}")
            assert failed / every > alert_share()
            assert attempts(server, "sim")[0] == 0

            # A reload under load fails no request.
            over = threading.Event()
            seen: list[int] = []
            thread = threading.Thread(target=_load, args=(server, over, seen))
            thread.start()
            try:
                for entries in (2000, 3000):
                    server.until(lambda: len(seen) % 10 == 9)
                    configure(server, mortal, entries=entries)
                    assert server.admin("reload", "POST")[0] == 200
                    config = json.loads(server.admin("config")[1])
                    assert config["cache"]["max_entries"] == entries
            finally:
                over.set()
                thread.join()
            show("two reloads under load: statuses", set(seen))
            assert set(seen) == {200}

        # What it cost, by team.
        report = server.run("report", "--json")
        assert report.returncode == 0, report.stderr
        callers: dict[str, Any] = {
            each["name"]: each for each in json.loads(report.stdout)["callers"]
        }
        show("headstart report --json: callers", json.dumps(callers, indent=1)[:1500])
        assert callers.keys() == set(TEAMS)
        assert callers["team-a"]["requests"] == 20 + len(seen)
        assert (callers["team-b"]["requests"], callers["team-b"]["failures"]) == (3, 2)
        show("headstart report", server.run("report").stdout)


def _load(server: Served, over: threading.Event, seen: list[int]) -> None:
    while not over.is_set():
        seen.append(ask(server, "team-a", f"load {len(seen)}"))
