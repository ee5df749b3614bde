"""Metrics of requests for Prometheus. ``docs/headers.md`` lists them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import Counter, Gauge, Histogram, ProcessCollector, generate_latest

from headstart.decisions import Outcome
from headstart.observe import DRY_RUN, Committed, Encoded, Gated, Labelled, Served, StageFailed
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

    from headstart.attempts import Attempt, AttemptOutcome, AttemptRole
    from headstart.observe import Observation, SocketTraffic

LATENCIES_S = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120,
)  # fmt: skip
GAPS_S = (0.0001, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 1)
ENCODINGS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
SPEEDS = (5, 10, 20, 40, 60, 80, 100, 150, 200, 300, 500, 800, 1200, 2500)
LOOKUPS_S = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.1, 1)

_JUDGED = {True: "same", False: "different", None: "unsure"}

_Key = tuple[str, Outcome, int, str, "str | None", "str | None"]


class Hedging(Frozen, omit_defaults=False):
    """Extra calls among a strategy's last 1,000 requests: their shares, and the limits."""

    route: str
    strategy: str
    extra_calls: float
    extra_calls_allowed: float
    extra_cost: float
    extra_cost_allowed: float


class Levels(Frozen):
    """The values of gauges: present levels. None: the store failed."""

    entries: int | None
    bytes: int | None
    partitions: int | None
    in_flight: int
    websockets: int
    encoder_queue: int
    hedges: tuple[Hedging, ...] = ()


class _Bound(NamedTuple):
    """The metrics for requests of one kind, with bound labels: binding one takes 2 µs."""

    counters: tuple[Callable[[], None], ...]
    ttft: Callable[[float], None]
    total: Callable[[float], None]
    gap: Callable[[float], None]
    failed: Callable[[], None]


class _BoundAttempt(NamedTuple):
    """The same for an upstream call of one kind."""

    made: Callable[[], None]
    cost: Callable[[float], None]
    ttft: Callable[[float], None]
    speed: Callable[[float], None]


class PrometheusObserver:
    """An Observer that counts into ``registry``, and its text exposition."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._bound: dict[_Key, _Bound] = {}
        self._bound_attempts: dict[tuple[str, AttemptRole, AttemptOutcome], _BoundAttempt] = {}
        self._define_counters(registry)
        self._define_histograms(registry)
        self._define_gauges(registry)

    def _define_counters(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"headstart_{name}", text, labels, registry=registry)

        self._requests = counter(
            "requests", "Requests to cached endpoints.", "endpoint", "outcome", "status"
        )
        self._hits = counter("hits", "Requests answered from the cache.", "kind")
        self._misses = counter("misses", "Requests whose lookup found no answer.", "reason")
        self._gated = counter("gated", "Questions by what their sketch decided.", "outcome")
        self._bypasses = counter("bypasses", "Requests that bypassed the cache.", "reason")
        self._not_stored = counter(
            "answers_not_stored", "Fresh answers that are not stored.", "reason"
        )
        self._failed = counter("failed_requests", "Requests that ended in an error.", "upstream")
        self._stage_errors = counter("stage_errors", "Failures of optional stages.", "stage")
        self._audits = counter("audits", "Upstream calls made to check hits.", "kind")
        self._labels = counter("labels", "Judged pairs of answers.", "source", "judged")
        self._alarms = counter("alarms", "Learning domains that wrong audits stopped.")
        self._attempts = counter(
            "attempts", "Upstream calls, by role and outcome.",
            "upstream", "role", "outcome",
        )  # fmt: skip
        self._cost = counter("cost_usd", "Cost of upstream calls.", "upstream", "outcome")
        self._removed = counter("tokens_removed", "Tokens removed from texts.", "kind")
        self._removable = counter("tokens_removable", "Tokens that dry runs would remove.", "kind")
        self._socket_seconds = counter(
            "websocket_seconds", "Time that WebSockets were open.", "upstream"
        )
        self._socket_messages = counter(
            "websocket_messages", "Messages on WebSockets.", "upstream", "direction"
        )
        self._socket_bytes = counter(
            "websocket_bytes", "Bytes of messages on WebSockets.", "upstream", "direction"
        )
        self._relayed = counter("relayed_bytes", "Bytes of relayed bodies.", "direction")
        self._stored = counter("stored_entries", "Entries that the store acknowledged.")
        self._stored_bytes = counter("stored_bytes", "Bytes of the acknowledged entries.")

    def _define_histograms(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(
                f"headstart_{name}_seconds", text, labels, registry=registry, buckets=buckets
            )

        kind = ("outcome", "upstream")
        self._ttft = histogram(
            "time_to_first_token", "Time from arrival to the first content.", LATENCIES_S, *kind
        )
        self._total = histogram(
            "request_duration", "Time from arrival to the last byte.", LATENCIES_S, *kind
        )
        self._gap = histogram(
            "inter_token", "Mean time between two tokens of a streamed answer.", GAPS_S, *kind
        )
        self._attempt_ttft = histogram(
            "attempt_time_to_first_token", "Time to first token of calls.", LATENCIES_S, "upstream"
        )
        self._speed = Histogram(
            "headstart_attempt_tokens_per_second", "Speed of upstream calls after the first token.",
            ("upstream",), registry=registry, buckets=SPEEDS,
        )  # fmt: skip
        self._lookup = histogram("lookup", "Time to find and load candidates.", LOOKUPS_S)
        self._encode = histogram("encode", "Time to encode one prompt.", ENCODINGS_S)
        self._queue = histogram("encoder_queue", "Time in the encoder's queue.", ENCODINGS_S)

    def _define_gauges(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"headstart_{name}", text, registry=registry)

        self._entries = gauge("entries", "Entries in the store.")
        self._bytes = gauge("entries_bytes", "Bytes of the entries in the store.")
        self._partitions = gauge("partitions", "Partitions with a vector in the index.")
        self._in_flight = gauge("upstream_calls_in_flight", "Upstream calls in flight.")
        self._websockets = gauge("websockets_open", "WebSockets that are relayed now.")
        self._encoder_queue = gauge("encoder_queue_length", "Prompts that wait for the encoder.")
        self._hedges = {
            field: Gauge(f"headstart_{field}_ratio", text, ("route", "strategy"), registry=registry)
            for field, text in (
                ("extra_calls", "Calls that hedges added to the last 1,000 requests."),
                ("extra_calls_allowed", "Limit of the calls that hedges may add."),
                ("extra_cost", "Expected waste of hedges, as a share of all cost."),
                ("extra_cost_allowed", "Limit of the expected waste of hedges."),
            )
        }
        ProcessCollector(registry=registry)

    def notify(self, observation: Observation) -> None:
        """Count one observation."""
        if isinstance(observation, Served):
            for attempt in observation.attempts:
                self._attempted(attempt)
            if observation.outcome is Outcome.AUDIT:
                self._audits.labels(observation.reason or "").inc()
            else:
                self._served(observation)
        elif isinstance(observation, Encoded):
            self._encode.observe(observation.encode_s)
            self._queue.observe(observation.queue_s)
        elif isinstance(observation, Committed):
            self._stored.inc()
            self._stored_bytes.inc(observation.bytes)
        elif isinstance(observation, StageFailed):
            self._stage_errors.labels(observation.stage).inc()
        elif isinstance(observation, Gated):
            self._gated.labels(observation.outcome.value).inc()
        elif isinstance(observation, Labelled):
            self._labels.labels(observation.source.value, _JUDGED[observation.same]).inc()
        elif observation.alarm:
            self._alarms.inc()

    def _served(self, row: Served) -> None:
        relayed = row.outcome is Outcome.RELAY and row.socket is None
        if relayed:
            self._relayed.labels("up").inc(row.bytes_up)
            self._relayed.labels("down").inc(row.bytes_down)
        key = (
            # Callers may name any path.
            "relay" if relayed else row.endpoint,
            row.outcome,
            row.status // 100,
            row.upstream,
            row.reason,
            row.not_stored,
        )
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = self._bind(*key)
        for count in bound.counters:
            count()
        if row.socket is None:
            bound.total(row.total_s)
        else:
            self._relayed_socket(row, row.socket)
        if row.ttft_s is not None:
            bound.ttft(row.ttft_s)
            if row.stream and row.completion_tokens > 1:
                bound.gap((row.total_s - row.ttft_s) / (row.completion_tokens - 1))
        if row.lookup_s:
            self._lookup.observe(row.lookup_s)
        if row.error is not None:
            bound.failed()

        for shaped in row.shaped:
            removed = self._removable if shaped.kind.endswith(DRY_RUN) else self._removed
            removed.labels(shaped.kind).inc(max(0, shaped.tokens_before - shaped.tokens_after))

    def _relayed_socket(self, row: Served, traffic: SocketTraffic) -> None:
        self._socket_seconds.labels(row.upstream).inc(row.total_s)
        for direction, messages, size in (
            ("up", traffic.messages_up, traffic.bytes_up),
            ("down", traffic.messages_down, traffic.bytes_down),
        ):
            self._socket_messages.labels(row.upstream, direction).inc(messages)
            self._socket_bytes.labels(row.upstream, direction).inc(size)

    def _attempted(self, attempt: Attempt) -> None:
        key = (attempt.upstream, attempt.role, attempt.outcome)
        bound = self._bound_attempts.get(key)
        if bound is None:
            bound = self._bound_attempts[key] = self._bind_attempt(*key)
        bound.made()
        if attempt.cost_usd:
            bound.cost(attempt.cost_usd)
        if attempt.ttft_s is not None:
            bound.ttft(attempt.ttft_s)
        if attempt.tokens_per_s is not None:
            bound.speed(attempt.tokens_per_s)

    def _bind_attempt(
        self, upstream: str, role: AttemptRole, outcome: AttemptOutcome
    ) -> _BoundAttempt:
        return _BoundAttempt(
            made=self._attempts.labels(upstream, role.value, outcome.value).inc,
            cost=self._cost.labels(upstream, outcome.value).inc,
            ttft=self._attempt_ttft.labels(upstream).observe,
            speed=self._speed.labels(upstream).observe,
        )

    def _bind(
        self,
        endpoint: str,
        outcome: Outcome,
        status: int,
        upstream: str,
        reason: str | None,
        not_stored: str | None,
    ) -> _Bound:
        counters = [self._requests.labels(endpoint, outcome.value, f"{status}xx").inc]
        if outcome in (Outcome.EXACT, Outcome.SEMANTIC):
            counters.append(self._hits.labels(outcome.value).inc)
        elif outcome is Outcome.MISS:
            counters.append(self._misses.labels(reason or "unknown").inc)
        elif outcome is Outcome.BYPASS:
            counters.append(self._bypasses.labels(reason or "unknown").inc)
        if not_stored is not None and outcome is Outcome.MISS:
            counters.append(self._not_stored.labels(not_stored).inc)
        return _Bound(
            counters=tuple(counters),
            ttft=self._ttft.labels(outcome.value, upstream).observe,
            total=self._total.labels(outcome.value, upstream).observe,
            gap=self._gap.labels(outcome.value, upstream).observe,
            failed=self._failed.labels(upstream).inc,
        )

    def requests_by_outcome(self) -> dict[str, int]:
        """Return how many requests had each outcome."""
        found = {each.value: 0 for each in Outcome if each is not Outcome.AUDIT}
        for metric in self._requests.collect():
            for sample in metric.samples:
                if sample.name.endswith("_total"):
                    found[sample.labels["outcome"]] += int(sample.value)
        return found

    def expose(self, levels: Levels) -> bytes:
        """Return all metrics as Prometheus text. Reads the process's figures: call off the loop."""
        self._entries.set(_known(levels.entries))
        self._bytes.set(_known(levels.bytes))
        self._partitions.set(_known(levels.partitions))
        self._in_flight.set(levels.in_flight)
        self._websockets.set(levels.websockets)
        self._encoder_queue.set(levels.encoder_queue)
        for hedging in levels.hedges:
            for field, gauge in self._hedges.items():
                gauge.labels(hedging.route, hedging.strategy).set(getattr(hedging, field))
        return generate_latest(self._registry)


def _known(level: int | None) -> float:
    return math.nan if level is None else level
