"""What the metrics count, and which values never become a label."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from headstart.attempts import ShapingEffect
from headstart.decisions import Outcome
from headstart.middleware.metrics import (
    MOST_MODELS,
    MOST_UNSETTLED,
    Hedging,
    Levels,
    PrometheusObserver,
)
from headstart.middleware.observers import RecentRequests
from headstart.observe import (
    Committed,
    Encoded,
    Gated,
    GateOutcome,
    Observation,
    Served,
    SocketTraffic,
    StageFailed,
)
from support.booked import served

LEVELS = Levels(entries=3, bytes=400, partitions=2, in_flight=1, websockets=4, encoder_queue=5)
HIT = served(
    Outcome.EXACT, total_s=0.3, ttft_s=0.1, model="a-model", upstream="openai", lookup_s=0.001,
    completion_tokens=11,
)  # fmt: skip


def changed(**fields: Any) -> Served:
    return msgspec.structs.replace(HIT, **fields)


def counted(*observations: Observation, levels: Levels = LEVELS) -> dict[Any, float]:
    """Return samples by name and label values, after the observations."""
    observer = PrometheusObserver(CollectorRegistry())
    for observation in observations:
        observer.notify(observation)
    observer.settle()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(observer.expose(levels).decode())
        for sample in family.samples
    }


def test_requests_are_counted_by_endpoint_outcome_and_status_class() -> None:
    samples = counted(HIT, HIT, changed(status=503))
    name, place = "headstart_requests_total", ("/v1/chat/completions", "a-model", "exact", "")
    assert samples[name, *place, "2xx"] == 2
    assert samples[name, *place, "5xx"] == 1


def test_requests_are_counted_by_route_and_model() -> None:
    samples = counted(HIT, changed(route="voice"), changed(route="voice", model="b"))
    name, place = "headstart_requests_total", "/v1/chat/completions"
    assert samples[name, place, "a-model", "exact", "", "2xx"] == 1
    assert samples[name, place, "a-model", "exact", "voice", "2xx"] == 1
    assert samples[name, place, "b", "exact", "voice", "2xx"] == 1


def test_only_so_many_models_have_labels_and_none_that_never_answered() -> None:
    """Callers may name any model: made-up names must not make series."""
    failed = [changed(model=f"made-up-{n}", status=404, error="not_found") for n in range(3)]
    answered = [changed(model=f"real-{n}") for n in range(MOST_MODELS + 3)]
    samples = counted(*failed, *answered)
    models = {key[2] for key in samples if key[0] == "headstart_requests_total"}
    assert models == {"other", *(f"real-{n}" for n in range(MOST_MODELS))}
    place = ("headstart_requests_total", "/v1/chat/completions", "other", "exact", "")
    assert (samples[*place, "4xx"], samples[*place, "2xx"]) == (3, 3)


def called(seconds: float, number: int) -> Served:
    return changed(
        id=f"m{number}", outcome=Outcome.MISS, total_s=seconds, ttft_s=seconds, cost_usd=0.5,
        route="voice",
    )  # fmt: skip


def test_hits_are_compared_with_the_calls_around_them_and_what_they_lose_is_apart() -> None:
    """One slow call made the answer; such calls usually take two seconds."""
    calls = [called(2.0, number) for number in range(30)]
    faster = changed(total_s=0.5, saved_total_s=60.0, saved_tokens=50, saved_usd=0.25,
                     saved_extra_usd=0.05, route="voice")  # fmt: skip
    slower = changed(outcome=Outcome.SEMANTIC, total_s=3.0, saved_total_s=57.5, route="voice")
    broken = changed(saved_total_s=9.0, saved_usd=9.0, error="client-gone", route="voice")
    samples = counted(*calls, faster, slower, broken)
    exact, semantic = ("exact", "a-model", "voice"), ("semantic", "a-model", "voice")
    assert samples["headstart_saved_seconds_total", *exact] == pytest.approx(1.5)
    assert samples["headstart_slower_seconds_total", *exact] == 0.0
    assert samples["headstart_saved_seconds_total", *semantic] == 0.0
    assert samples["headstart_slower_seconds_total", *semantic] == pytest.approx(1.0)
    assert samples["headstart_saved_tokens_total", *exact] == 50
    assert samples["headstart_saved_usd_total", *exact] == pytest.approx(0.2)
    assert samples["headstart_spent_usd_total", "a-model", "voice"] == 15.0
    assert samples["headstart_would_have_cost_usd_total", "a-model", "voice"] == pytest.approx(15.2)


def test_a_hit_saves_less_where_the_provider_would_have_had_its_prompt() -> None:
    """As the report counts it."""
    hits = [
        changed(id=f"{n}", at=60.0 * n, entry="e", prompt_tokens=20_000, saved_usd=0.05,
                saved_prefix_usd=0.04, cost_usd=0.0)
        for n in range(3)
    ]  # fmt: skip
    samples = counted(*hits)
    place = ("a-model", "")
    expected = pytest.approx(0.05 + 2 * 0.01)
    assert samples["headstart_would_have_cost_usd_total", *place] == expected
    assert samples["headstart_saved_usd_total", "exact", *place] == expected


def test_the_part_of_a_batch_that_the_cache_had_is_a_saving_of_its_own_kind() -> None:
    part = changed(outcome=Outcome.MISS, reason="partial", saved_tokens=7, saved_usd=0.25)
    samples = counted(part, changed(outcome=Outcome.MISS))
    place = ("partial", "a-model", "")
    assert samples["headstart_saved_tokens_total", *place] == 7
    assert samples["headstart_saved_usd_total", *place] == 0.25
    assert {key[1] for key in samples if key[0] == "headstart_saved_tokens_total"} == {"partial"}


def test_audits_are_spent_and_would_not_have_been() -> None:
    audit = changed(outcome=Outcome.AUDIT, reason="audit", cost_usd=0.5, audit_of="1")
    samples = counted(HIT, audit)
    assert samples["headstart_spent_usd_total", "a-model", ""] == 0.5
    assert samples["headstart_would_have_cost_usd_total", "a-model", ""] == 0.0


def test_savings_are_settled_also_if_nobody_reads_the_metrics() -> None:
    rows = [changed(id=str(number), saved_tokens=1) for number in range(3 * MOST_UNSETTLED)]
    observer = PrometheusObserver(CollectorRegistry())
    for row in rows:
        observer.notify(row)
    text = observer.expose(LEVELS).decode()
    (counted_tokens,) = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "headstart_saved_tokens_total"
    ]
    assert counted_tokens == 3 * MOST_UNSETTLED


def test_each_help_text_is_a_sentence() -> None:
    for family in PrometheusObserver(CollectorRegistry())._registry.collect():
        if family.name.startswith("headstart_"):
            assert family.documentation.endswith("."), family
            assert len(family.documentation.split()) > 3, family


def test_a_websocket_counts_its_messages_and_its_time_and_no_duration_of_a_request() -> None:
    passed = SocketTraffic(messages_up=2, bytes_up=30, messages_down=5, bytes_down=700)
    row = changed(outcome=Outcome.BYPASS, status=101, total_s=60.0, ttft_s=None, socket=passed)
    samples = counted(row, row)
    assert samples["headstart_websocket_seconds_total", "openai"] == 120
    assert samples["headstart_websocket_messages_total", "up", "openai"] == 4
    assert samples["headstart_websocket_bytes_total", "down", "openai"] == 1400
    assert samples["headstart_websockets_open",] == 4
    assert samples["headstart_request_duration_seconds_count", "bypass", "openai"] == 0


@pytest.mark.parametrize(
    ("outcome", "reason", "sample"),
    [
        (Outcome.EXACT, None, ("headstart_hits_total", "exact")),
        (Outcome.SEMANTIC, None, ("headstart_hits_total", "semantic")),
        (Outcome.MISS, "veto", ("headstart_misses_total", "veto")),
        (Outcome.MISS, None, ("headstart_misses_total", "unknown")),
        (Outcome.BYPASS, "no-store", ("headstart_bypasses_total", "no-store")),
    ],
)
def test_an_outcome_counts_as_a_hit_a_miss_or_a_bypass_alone(
    outcome: Outcome, reason: str | None, sample: tuple[str, str]
) -> None:
    samples = counted(changed(outcome=outcome, reason=reason))
    kinds = ("headstart_hits_total", "headstart_misses_total", "headstart_bypasses_total")
    assert {key: value for key, value in samples.items() if key[0] in kinds} == {sample: 1}


def test_fresh_answers_that_are_not_kept_are_counted_by_reason() -> None:
    samples = counted(
        changed(outcome=Outcome.MISS, not_stored="set-cookie"),
        changed(outcome=Outcome.MISS),
        changed(outcome=Outcome.JOINED, not_stored="set-cookie"),
    )
    kept = {key: value for key, value in samples.items() if "not_stored_total" in key[0]}
    assert kept == {("headstart_answers_not_stored_total", "set-cookie"): 1}


def test_times_are_split_by_outcome_and_upstream() -> None:
    samples = counted(HIT, changed(outcome=Outcome.MISS, upstream="other", ttft_s=2.0, total_s=4.0))
    assert samples["headstart_time_to_first_token_seconds_sum", "exact", "openai"] == 0.1
    assert samples["headstart_request_duration_seconds_sum", "exact", "openai"] == 0.3
    assert samples["headstart_time_to_first_token_seconds_sum", "miss", "other"] == 2.0
    assert samples["headstart_request_duration_seconds_sum", "miss", "other"] == 4.0


def test_inter_token_time_is_the_mean_gap_of_a_streamed_answer() -> None:
    gap = ("headstart_inter_token_seconds_sum", "exact", "openai")
    assert counted(HIT)[gap] == pytest.approx(0.02)
    count = ("headstart_inter_token_seconds_count", "exact", "openai")
    assert counted(changed(stream=False))[count] == 0
    assert counted(changed(completion_tokens=1))[count] == 0


def test_a_request_without_an_answer_has_no_first_token_but_a_failure() -> None:
    samples = counted(changed(ttft_s=None, error="upstream_timeout"))
    assert samples["headstart_time_to_first_token_seconds_count", "exact", "openai"] == 0
    assert samples["headstart_failed_requests_total", "openai"] == 1


def test_a_dry_run_counts_as_no_saving() -> None:
    samples = counted(
        changed(shaped=(ShapingEffect(kind="compress", tokens_before=100, tokens_after=60),)),
        changed(
            shaped=(ShapingEffect(kind="compress-dry-run", tokens_before=100, tokens_after=30),)
        ),
    )
    removed = {
        name: n for name, n in samples.items() if name[0] == "headstart_tokens_removed_total"
    }
    assert removed == {("headstart_tokens_removed_total", "compress"): 40}
    assert samples["headstart_tokens_removable_total", "compress-dry-run"] == 70


def test_stages_are_observed() -> None:
    samples = counted(
        HIT,
        Encoded(encode_s=0.004, queue_s=0.002, queue_length=1, tokens=9),
        Committed(id="e", bytes=70),
        StageFailed(stage="store", error="StoreError"),
    )
    assert samples[("headstart_lookup_seconds_sum",)] == 0.001
    assert samples[("headstart_encode_seconds_sum",)] == 0.004
    assert samples[("headstart_encoder_queue_seconds_sum",)] == 0.002
    assert samples[("headstart_stored_entries_total",)] == 1
    assert samples[("headstart_stored_bytes_total",)] == 70
    assert samples["headstart_stage_errors_total", "store"] == 1


def test_a_hit_below_the_gate_counts_for_the_questions_that_were_not_looked_at() -> None:
    samples = counted(
        Gated(outcome=GateOutcome.STOPPED),
        Gated(outcome=GateOutcome.SAMPLED),
        Gated(outcome=GateOutcome.FOUND, stands_for=50.0),
        Gated(outcome=GateOutcome.FOUND, stands_for=200.0),
    )
    assert samples["headstart_gated_total", "found"] == 2
    assert samples["headstart_gate_lost_hits_total",] == 250


def test_levels_are_gauges_and_unknown_ones_are_not_numbers() -> None:
    samples = counted()
    names = ("entries", "entries_bytes", "partitions", "upstream_calls_in_flight",
             "encoder_queue_length")  # fmt: skip
    assert [samples[(f"headstart_{name}",)] for name in names] == [3, 400, 2, 1, 5]
    unknown = msgspec.structs.replace(LEVELS, entries=None)
    assert str(counted(levels=unknown)[("headstart_entries",)]) == "nan"


def test_extra_calls_are_shown_beside_their_budget() -> None:
    hedging = Hedging(
        route="chat",
        strategy="hedge(a, b)",
        extra_calls=0.02,
        extra_calls_allowed=0.05,
        extra_cost=0.01,
        extra_cost_allowed=0.1,
    )
    samples = counted(levels=msgspec.structs.replace(LEVELS, hedges=(hedging,)))
    shown = {name: value for (name, *labels), value in samples.items() if "hedge(a, b)" in labels}
    assert shown == {
        "headstart_extra_calls_ratio": 0.02,
        "headstart_extra_calls_allowed_ratio": 0.05,
        "headstart_extra_cost_ratio": 0.01,
        "headstart_extra_cost_allowed_ratio": 0.1,
    }


def test_relayed_requests_are_counted_with_their_bytes_and_without_their_path() -> None:
    row = changed(outcome=Outcome.RELAY, endpoint="/v1/files", bytes_up=5, bytes_down=70)
    samples = counted(row, row)
    assert samples["headstart_relayed_bytes_total", "up"] == 10
    assert samples["headstart_relayed_bytes_total", "down"] == 140
    assert samples["headstart_requests_total", "relay", "a-model", "relay", "", "2xx"] == 2
    assert not any("/v1/files" in key for key in samples)


def test_requests_are_summed_by_outcome() -> None:
    observer = PrometheusObserver(CollectorRegistry())
    for row in (HIT, changed(status=500), changed(outcome=Outcome.JOINED)):
        observer.notify(row)
    expected = {"exact": 2, "semantic": 0, "joined": 1, "miss": 0, "bypass": 0, "relay": 0}
    assert observer.requests_by_outcome() == expected


def test_recent_requests_forget_the_oldest() -> None:
    recent = RecentRequests(maxlen=2)
    recent.notify(Committed(id="0", bytes=1))
    for id in "123":
        recent.notify(changed(id=id))
    assert [recent.find(id) for id in "0123"] == [None, None, changed(id="2"), changed(id="3")]
