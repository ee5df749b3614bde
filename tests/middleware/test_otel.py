"""OpenTelemetry metrics, read back through the real SDK."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from headstart.decisions import Outcome
from headstart.middleware.telemetry import OpenTelemetryObserver
from headstart.observe import Served, StageFailed
from headstart.settings import UpstreamSettings


def row(outcome: Outcome, **fields: Any) -> Served:
    values: dict[str, Any] = {
        "id": "r",
        "at": 1.0,
        "endpoint": "/v1/chat/completions",
        "outcome": outcome,
        "status": 200,
        "stream": True,
        "total_s": 2.0,
        "ttft_s": 0.5,
        "model": "m",
        "upstream": "sim",
    }
    return Served(**(values | fields))


def measured(*rows: Served) -> dict[str, list[Any]]:
    reader = InMemoryMetricReader()
    upstreams = [UpstreamSettings(name="eu", preset="azure")]
    observer = OpenTelemetryObserver(MeterProvider([reader]).get_meter("test"), upstreams)
    observer.notify(StageFailed(stage="store", error="StoreError"))
    for each in rows:
        observer.notify(each)
    data = reader.get_metrics_data()
    if data is None:
        return {}
    return {
        metric.name: list(metric.data.data_points)
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
    }


def test_a_miss_records_its_times_and_the_tokens_paid_for() -> None:
    found = measured(row(Outcome.MISS, prompt_tokens=30, completion_tokens=20))
    (duration,) = found["gen_ai.client.operation.duration"]
    assert duration.sum == 2.0
    assert dict(duration.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.provider.name": "sim",
        "headstart.upstream": "sim",
        "headstart.outcome": "miss",
    }
    assert found["gen_ai.server.time_to_first_token"][0].sum == 0.5
    tokens = {
        point.attributes["gen_ai.token.type"]: point.sum
        for point in found["gen_ai.client.token.usage"]
    }
    assert tokens == {"input": 30, "output": 20}


def test_a_hit_counts_what_it_saved_and_pays_nothing() -> None:
    found = measured(row(Outcome.SEMANTIC, saved_tokens=50, prompt_tokens=30))
    assert found["headstart.saved.tokens"][0].value == 50
    assert "gen_ai.client.token.usage" not in found


def test_a_batch_that_the_cache_answered_in_part_pays_for_the_rest() -> None:
    found = measured(row(Outcome.MISS, saved_tokens=7, prompt_tokens=30))
    assert found["headstart.saved.tokens"][0].value == 7
    assert sum(point.sum for point in found["gen_ai.client.token.usage"]) == 30


def test_the_provider_has_the_name_of_the_conventions_as_in_the_spans() -> None:
    rows = row(Outcome.MISS, upstream="eu"), row(Outcome.MISS, upstream="eu#2")
    points = measured(*rows)["gen_ai.client.operation.duration"]
    assert [
        (each.attributes["gen_ai.provider.name"], each.attributes["headstart.upstream"])
        for each in points
    ] == [("azure.ai.openai", "eu"), ("azure.ai.openai", "eu#2")]


def test_quantiles_can_be_read_from_the_buckets() -> None:
    """The SDK's own buckets begin at 5, so all seconds would be in one."""
    quick = row(Outcome.MISS, total_s=0.03, ttft_s=0.015, prompt_tokens=3, completion_tokens=900)
    slow = row(Outcome.MISS, total_s=3.0, ttft_s=0.7, prompt_tokens=60, completion_tokens=9000)
    found = measured(quick, slow)
    for name in (
        "gen_ai.client.operation.duration",
        "gen_ai.server.time_to_first_token",
        "gen_ai.client.token.usage",
    ):
        for point in found[name]:
            assert [count for count in point.bucket_counts if count] == [1, 1], name
    assert found["gen_ai.client.operation.duration"][0].explicit_bounds[-1] == 81.92


def test_a_failure_names_its_type() -> None:
    found = measured(row(Outcome.MISS, status=502, error="upstream_unreachable", ttft_s=None))
    (duration,) = found["gen_ai.client.operation.duration"]
    assert duration.attributes["error.type"] == "upstream_unreachable"
    assert "gen_ai.server.time_to_first_token" not in found


def test_a_hit_saves_less_where_the_provider_would_have_had_its_prompt() -> None:
    hits = [
        row(Outcome.EXACT, at=60.0 * n, entry="e", prompt_tokens=20_000, saved_usd=0.5,
            saved_prefix_usd=0.25)
        for n in range(2)
    ]  # fmt: skip
    (without,) = measured(*hits)["headstart.cost.without"]
    assert without.value == 0.75


def test_the_bill_is_counted_with_and_without_headstart_by_route() -> None:
    miss = row(Outcome.MISS, cost_usd=0.5, route="voice")
    hit = row(Outcome.EXACT, saved_usd=0.5, cost_usd=0.0, route="voice")
    audit = row(Outcome.AUDIT, cost_usd=0.25, route="voice", audit_of="r")
    found = measured(miss, hit, audit)
    (spent,) = found["headstart.cost"]
    (without,) = found["headstart.cost.without"]
    assert (spent.value, without.value) == (0.75, 1.0)
    assert dict(spent.attributes) == {"headstart.route": "voice"}
    assert sum(each.count for each in found["gen_ai.client.operation.duration"]) == 2
