"""Every metric and label that the dashboard and the alerts name exists in a scrape."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from headstart.attempts import Attempt, AttemptOutcome, AttemptRole, ShapingEffect
from headstart.decisions import LabelSource, Outcome, Rule
from headstart.middleware.metrics import Hedging, Levels, PrometheusObserver
from headstart.observe import (
    Committed,
    Encoded,
    Gated,
    GateOutcome,
    Labelled,
    Learned,
    Served,
    StageFailed,
)
from headstart.settings import CacheSettings, ServerSettings, Settings, UpstreamSettings
from headstart.sidecar import build_sidecar
from headstart.types import LimitUse
from support.patience import PATIENCE_S
from support.repository import ROOT
from support.serving import serving_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GRAFANA = ROOT / "deploy" / "grafana"
PROMETHEUS = ROOT / "deploy" / "prometheus"
OF_PROMETHEUS = {"job", "instance", "le"}
"""Labels that a scrape adds, or a histogram's own."""
_SELECTOR = re.compile(r"\b((?:headstart|process)_\w+|up)\b(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
_GROUPED = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")


@pytest.fixture(scope="module")
def scraped() -> dict[str, dict[str, set[str]]]:
    """Return what a server of every kind of traffic exposes: values by label, by sample's name."""
    observer = PrometheusObserver(CollectorRegistry())
    for observation in _traffic():
        observer.notify(observation)
    observer.settle()
    hedging = Hedging(
        route="r", strategy="hedge", extra_calls=0.1, extra_calls_allowed=0.2, extra_cost=0.1,
        extra_cost_allowed=0.2,
    )  # fmt: skip
    limits = tuple(
        LimitUse(caller="a", limit=name, used=1.0, most=2.0, resets_at=0.0)
        for name in ("usd_per_day", "tokens_per_minute")
    )
    levels = Levels(
        entries=1, bytes=1, partitions=1, in_flight=1, websockets=0, encoder_queue=0,
        hedges=(hedging,), limits=limits,
    )  # fmt: skip
    found: dict[str, dict[str, set[str]]] = {"up": {}}
    for family in text_string_to_metric_families(observer.expose(levels).decode()):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found


def _traffic() -> Iterator[Any]:
    attempts = tuple(
        Attempt(
            upstream="u", model="m", role=role, outcome=outcome, at=1.0, total_s=1.0, ttft_s=0.1,
            tokens_per_s=50.0, cost_usd=0.1,
        )
        for role in AttemptRole
        for outcome in AttemptOutcome
    )  # fmt: skip
    for outcome in Outcome:
        for status in (200, 404, 500):
            yield Served(
                id="1", at=1.0, endpoint="/v1/chat/completions", outcome=outcome, status=status,
                stream=True, total_s=1.0, ttft_s=0.1, model="m", upstream="u", route="r",
                reason="veto", attempts=attempts, cost_usd=0.1, saved_usd=0.1, saved_tokens=9,
                saved_total_s=1.0, completion_tokens=9, lookup_s=0.1,
                error=None if status == 200 else "x", not_stored="error",
                shaped=(ShapingEffect(kind="compress", tokens_before=2, tokens_after=1),),
            )  # fmt: skip
    yield Encoded(encode_s=0.1, queue_s=0.1, queue_length=1, tokens=9)
    yield Committed(id="1", bytes=1)
    yield StageFailed(stage="store", error="StoreError")
    yield Gated(outcome=GateOutcome.PASSED)
    yield Labelled(source=LabelSource.MISS, same=True)
    yield Learned(
        domain="d", rule=Rule.COLD_START, threshold=None, alarm=True, serves=0.0,
        cold_start_serves=0.0,
    )  # fmt: skip


def expressions() -> list[tuple[str, str]]:
    """Return every query with where it stands."""
    dashboard = json.loads((GRAFANA / "headstart.json").read_text("utf-8"))
    found = [
        (panel["title"], target["expr"])
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]
    found += [
        (each["name"], each.get("definition", "")) for each in dashboard["templating"]["list"]
    ]
    for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text("utf-8"))["groups"]:
        found += [(rule["alert"], rule["expr"]) for rule in group["rules"]]
    return [(place, text) for place, text in found if text]


QUERIES = expressions()


@pytest.mark.parametrize(("place", "query"), QUERIES, ids=[place for place, _ in QUERIES])
def test_every_metric_and_label_of_a_query_is_scraped(
    place: str, query: str, scraped: dict[str, dict[str, set[str]]]
) -> None:
    selectors = _SELECTOR.findall(query)
    assert selectors, "a query without a metric shows nothing"
    named: set[str] = set(OF_PROMETHEUS)
    for name, matchers in selectors:
        assert name in scraped, f"{name} is not exposed"
        labels = scraped[name]
        named |= set(labels)
        for label, value in _MATCHER.findall(matchers):
            assert label in set(labels) | OF_PROMETHEUS, f"{name} has no label {label}"
            if label in labels and "$" not in value:
                known = labels[label]
                wrong = [each for each in value.split("|") if each not in known]
                assert not wrong, f"{name} has no {label} {wrong}: {sorted(known)}"
    for group in _GROUPED.findall(query):
        labels_used = {label.strip() for label in group.split(",") if label.strip()}
        assert labels_used <= named, f"no metric of the query has {labels_used - named}"


def test_a_running_server_exposes_the_metrics_of_all_queries() -> None:
    settings = Settings(
        cache=CacheSettings(store="memory:", mode="exact-only"),
        upstream=(UpstreamSettings(base_url="http://127.0.0.1:9/v1", name="one"),),
    )
    with serving_in_thread(build_sidecar(settings)) as url:
        scrape = urlopen(f"{url}/_headstart/metrics", timeout=PATIENCE_S).read().decode()
    exposed = {family.name for family in text_string_to_metric_families(scrape)}
    for place, query in QUERIES:
        for name, _ in _SELECTOR.findall(query):
            family = re.sub(r"_(total|bucket|sum|count)$", "", name)
            assert {name, family} & {*exposed, "up"}, f"{place}: {name}"


def test_a_query_with_a_wrong_name_or_label_is_found(
    scraped: dict[str, dict[str, set[str]]],
) -> None:
    for query in (
        "rate(headstart_no_such_total[5m])",
        'headstart_requests_total{colour="red"}',
        'headstart_requests_total{outcome="maybe"}',
        "sum by (colour) (headstart_requests_total)",
    ):
        with pytest.raises(AssertionError):
            test_every_metric_and_label_of_a_query_is_scraped("", query, scraped)


def test_panels_have_places_of_their_own_and_a_data_source() -> None:
    panels = json.loads((GRAFANA / "headstart.json").read_text("utf-8"))["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_each_alert_says_what_happens_and_what_to_do() -> None:
    (group,) = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"].keys() == {"summary", "description"}


def test_the_alert_for_calls_in_flight_knows_the_default_limit() -> None:
    (group,) = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text("utf-8"))["groups"]
    (rule,) = [each for each in group["rules"] if each["alert"] == "HeadstartNearItsLimit"]
    limit = ServerSettings().max_concurrency
    assert f"({limit})" in rule["annotations"]["summary"]
    assert float(rule["expr"].rpartition(">")[2]) < limit


def test_prometheus_reads_the_metrics_with_the_admin_token() -> None:
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text("utf-8"))
    (job,) = config["scrape_configs"]
    assert job["metrics_path"] == "/_headstart/metrics"
    assert job["job_name"] == "headstart"
    assert all((PROMETHEUS / name).is_file() for name in config["rule_files"])


PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool, a part of Prometheus, is not installed")
def test_promtool_accepts_the_rules_and_the_dashboards_queries(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    rules = [
        {"record": f"q{number}", "expr": re.sub(r"\$__\w+", "5m", query).replace("$", "")}
        for number, (_, query) in enumerate(QUERIES)
        if not query.startswith("label_values")
    ]
    queries = tmp_path / "queries.yml"
    queries.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    for arguments in (
        ["check", "rules", str(PROMETHEUS / "alerts.yml"), str(queries)],
        ["check", "config", "--syntax-only", str(PROMETHEUS / "prometheus.yml")],
    ):
        done = subprocess.run([PROMTOOL, *arguments], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


ALERT_TESTS = ROOT / "tests" / "deploy" / "alerts.test.yml"


def test_each_alert_has_a_case_in_which_it_fires() -> None:
    (group,) = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text("utf-8"))["groups"]
    cases = yaml.safe_load(ALERT_TESTS.read_text("utf-8"))["tests"]
    fired = {
        case["alertname"]
        for test in cases
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert fired == {rule["alert"] for rule in group["rules"]}


@pytest.mark.skipif(PROMTOOL is None, reason="promtool, a part of Prometheus, is not installed")
def test_alerts_fire_when_they_should_and_not_before() -> None:
    assert PROMTOOL is not None
    command = [PROMTOOL, "test", "rules", str(ALERT_TESTS)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
