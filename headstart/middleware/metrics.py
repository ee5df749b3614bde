"""Metrics of requests for Prometheus. ``docs/headers.md`` lists them.

``PrometheusObserver.notify`` counts each observation at once, for example a ``Served`` request into
``headstart_requests_total{endpoint="/v1/chat/completions",outcome="miss",status="2xx",...}``.
Two kinds of values are computed only when the metrics are read:

- savings and costs, which compare requests with each other (``SavingsCounters``);
- present levels, such as the number of entries, which the caller of ``expose`` gives (``Levels``).
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from prometheus_client import Counter, Gauge, Histogram, ProcessCollector, generate_latest

from headstart.attempts import PROMPT_CACHE, Attempt, AttemptOutcome, AttemptRole, ShapingEffect
from headstart.decisions import Outcome
from headstart.observe import (
    DRY_RUN,
    Committed,
    Encoded,
    Gated,
    GateOutcome,
    Labelled,
    Served,
    StageFailed,
)
from headstart.types import Frozen, LimitUse
from headstart.usual_calls import AvoidedCalls, RecentPrompts, UsualCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from prometheus_client import CollectorRegistry

    from headstart.observe import Observation, SocketTraffic

LATENCIES_S = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120,
)  # fmt: skip
GAPS_S = (0.0001, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 1)
ENCODINGS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
SPEEDS = (5, 10, 20, 40, 60, 80, 100, 150, 200, 300, 500, 800, 1200, 2500)
LOOKUPS_S = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.1, 1)

MOST_MODELS = 64
"""The most models with a label of their own. The others, which callers may invent, are
``other``."""
OTHER = "other"
MOST_CALLS = 200
"""Most calls of a kind with which hits are compared."""
MOST_UNSETTLED = 1000
"""Most requests that wait for the next reading of the metrics."""

PARTIAL = "partial"
"""The kind of savings of a batch of which the cache had a part."""
_SAVING = (Outcome.EXACT, Outcome.SEMANTIC, Outcome.JOINED)
_JUDGED = {True: "same", False: "different", None: "unsure"}

_Key = tuple[str, Outcome, int, str, str, str, "str | None", "str | None"]
"""Endpoint, outcome, first digit of the status, upstream, route, model, reason, and why the answer
was not stored. Requests with the same key have the same labels."""


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
    limits: tuple[LimitUse, ...] = ()


class _Bound(NamedTuple):
    """The metrics for requests of one kind, with bound labels: binding one takes 2 µs."""

    counters: tuple[Callable[[], None], ...]
    ttft: Callable[[float], None]
    total: Callable[[float], None]
    gap: Callable[[float], None]
    failed: Callable[[], None]


class _BoundAttempt(NamedTuple):
    """The metrics for upstream calls of one kind, with bound labels."""

    made: Callable[[], None]
    cost: Callable[[float], None]
    ttft: Callable[[float], None]
    speed: Callable[[float], None]


_Labels: TypeAlias = tuple[str, ...]
_Sums: TypeAlias = "defaultdict[tuple[Counter, _Labels], float]"
"""What to add to each counter, by its labels."""


class SavingsCounters:
    """Counts the costs and savings of requests, with the sums of the report.

    Requests are compared with the calls around them. This takes time, so it is done in ``settle``,
    before the metrics are read, and not when requests are served.
    """

    def __init__(self, counter: Callable[..., Counter], models: set[str]) -> None:
        """``counter`` makes a counter of a name, a text and labels. A counter never falls.

        ``models`` are the models that have labels of their own, of which more may come.
        """
        self._models = models
        self._rows: list[Served] = []
        self._usual, self._prompts = UsualCalls(MOST_CALLS), RecentPrompts()
        of_hits, of_requests = ("kind", "route", "model"), ("route", "model")
        self._seconds = counter(
            "saved_seconds", "Seconds that were saved, compared with the usual time of such calls.",
            *of_hits,
        )  # fmt: skip
        self._slower_seconds = counter(
            "slower_seconds", "Seconds that were lost, compared with the usual time of such calls.",
            *of_hits,
        )  # fmt: skip
        self._tokens = counter("saved_tokens", "Tokens of the calls that were not made.", *of_hits)
        self._usd = counter(
            "saved_usd", "Dollars that answers which needed no call would have cost.", *of_hits
        )
        self._would_have = counter(
            "would_have_cost_usd", "Dollars that requests would have cost without Headstart.",
            *of_requests,
        )  # fmt: skip
        self._spent = counter(
            "spent_usd", "Dollars that requests and their audits cost.", *of_requests
        )

    def note(self, row: Served) -> None:
        """Take a request, or an audit."""
        self._rows.append(row)
        if len(self._rows) >= MOST_UNSETTLED:
            self.settle()

    def settle(self) -> None:
        """Count the requests that were taken since the last time."""
        rows, self._rows = self._rows, []
        sums: _Sums = defaultdict(float)
        avoided: defaultdict[Outcome, AvoidedCalls] = defaultdict(AvoidedCalls)
        for row in rows:
            if row.outcome is Outcome.RELAY:
                continue
            self._usual.add(row)
            self._count_money(row, sums)
            if row.outcome in _SAVING and row.succeeded:
                avoided[row.outcome].add(row)
        self._count_seconds(avoided, sums)
        for (counter, labels), value in sums.items():
            counter.labels(*labels).inc(max(0.0, value))

    def _count_money(self, row: Served, sums: _Sums) -> None:
        place = (row.route, self._label(row.model))
        # The provider would have had the beginning of a prompt that was asked shortly before in its
        # own cache, at a lower price. So the hit saved less.
        prefix_usd = self._prompts.prefix_usd(row)
        sums[self._spent, place] += row.cost_usd or 0.0
        sums[self._would_have, place] += max(0.0, row.would_have_cost_usd - prefix_usd)
        kind = _kind_of_savings(row)
        if kind is not None:
            sums[self._tokens, (kind, *place)] += row.saved_tokens
            saved_usd = (row.saved_usd or 0.0) - row.saved_extra_usd - prefix_usd
            sums[self._usd, (kind, *place)] += saved_usd

    def _count_seconds(self, avoided: Mapping[Outcome, AvoidedCalls], sums: _Sums) -> None:
        """Compare the times of avoided calls with the usual times of such calls."""
        for outcome, calls in avoided.items():
            for call, minutes in calls.items():
                usual = self._usual.times_of(call)
                saved_s = 0.0 if usual is None else usual.expected(minutes).saved_s
                labels = (outcome.value, call.route or "", self._label(call.model))
                sums[self._seconds, labels] += max(0.0, saved_s)
                sums[self._slower_seconds, labels] += max(0.0, -saved_s)

    def _label(self, model: str) -> str:
        return model if model in self._models else OTHER


def _kind_of_savings(row: Served) -> str | None:
    """Return the label of a request's savings; None: it saved no call, nor a part of one."""
    if not row.succeeded or row.outcome.is_own_call:
        return None
    if row.outcome in _SAVING:
        return row.outcome.value
    return PARTIAL if row.saved_tokens else None


class PrometheusObserver:
    """An Observer that counts into ``registry``, and its text exposition."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._bound: dict[_Key, _Bound] = {}
        self._models: set[str] = {""}
        """The models that have labels of their own."""
        self._bound_attempts: dict[tuple[str, AttemptRole, AttemptOutcome], _BoundAttempt] = {}
        self._define_counters(registry)
        self._define_histograms(registry)
        self._define_gauges(registry)

    def _define_counters(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"headstart_{name}", text, labels, registry=registry)

        self._requests = counter(
            "requests", "Requests that were answered or refused.",
            "endpoint", "outcome", "status", "route", "model",
        )  # fmt: skip
        self._hits = counter("hits", "Requests that the cache answered.", "kind")
        self._misses = counter("misses", "Requests for which the cache had no answer.", "reason")
        self._gated = counter(
            "gated", "Questions by what their sketches decided: to encode them or not.", "outcome"
        )
        self._lost_hits = counter("gate_lost_hits", "Estimated number of hits that the gate cost.")
        self._bypasses = counter("bypasses", "Requests that did not use the cache.", "reason")
        self._not_stored = counter(
            "answers_not_stored", "Answers of providers that were not stored.", "reason"
        )
        self._failed = counter("failed_requests", "Requests that ended in an error.", "upstream")
        self._stage_errors = counter(
            "stage_errors", "Failures of cache, encoder or store that cost no request.", "stage"
        )
        self._audits = counter("audits", "Calls to providers made only to check hits.", "kind")
        self._drafts = counter(
            "draft_calls", "Calls to providers made while a prompt was being written.", "kind"
        )
        self._labels = counter(
            "labels", "Pairs of answers that were compared to learn.", "source", "judged"
        )
        self._alarms = counter(
            "alarms", "Times that wrong hits made Headstart stop serving reworded questions."
        )
        self._attempts = counter(
            "attempts", "Calls to providers, also those that lost a race.",
            "upstream", "role", "outcome",
        )  # fmt: skip
        self._cost = counter(
            "cost_usd", "Dollars that calls to providers cost.", "upstream", "outcome"
        )
        self._savings = SavingsCounters(counter, self._models)
        self._removed = counter(
            "tokens_removed", "Tokens that were removed from prompts and answers.", "kind"
        )
        self._removable = counter(
            "tokens_removable", "Tokens that would have been removed without the dry run.", "kind"
        )
        self._socket_seconds = counter(
            "websocket_seconds", "Seconds that WebSockets were open.", "upstream"
        )
        self._socket_messages = counter(
            "websocket_messages", "Messages that passed on WebSockets.", "upstream", "direction"
        )
        self._socket_bytes = counter(
            "websocket_bytes", "Bytes of the messages on WebSockets.", "upstream", "direction"
        )
        self._relayed = counter(
            "relayed_bytes", "Bytes of bodies that passed without the cache.", "direction"
        )
        self._stored = counter("stored_entries", "Answers that the store has written.")
        self._stored_bytes = counter("stored_bytes", "Bytes of the answers that it has written.")

    def _define_histograms(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(
                f"headstart_{name}_seconds", text, labels, registry=registry, buckets=buckets
            )

        kind = ("outcome", "upstream")
        self._ttft = histogram(
            "time_to_first_token", "Seconds from arrival to the first content.", LATENCIES_S, *kind
        )
        self._total = histogram(
            "request_duration", "Seconds from arrival to the last byte.", LATENCIES_S, *kind
        )
        self._gap = histogram(
            "inter_token", "Mean seconds between two tokens of a streamed answer.", GAPS_S, *kind
        )
        self._attempt_ttft = histogram(
            "attempt_time_to_first_token",
            "Seconds to the first token of calls to providers.",
            LATENCIES_S,
            "upstream",
        )
        self._speed = Histogram(
            "headstart_attempt_tokens_per_second", "Tokens a second after the first token.",
            ("upstream",), registry=registry, buckets=SPEEDS,
        )  # fmt: skip
        self._lookup = histogram("lookup", "Seconds to look for an answer in the cache.", LOOKUPS_S)
        self._encode = histogram("encode", "Seconds to encode one question.", ENCODINGS_S)
        self._queue = histogram("encoder_queue", "Seconds of waiting for the encoder.", ENCODINGS_S)

    def _define_gauges(self, registry: CollectorRegistry) -> None:
        self._levels = {
            field: Gauge(f"headstart_{name}", text, registry=registry)
            for field, name, text in (
                ("entries", "entries", "Answers in the store."),
                ("bytes", "entries_bytes", "Bytes of the answers in the store."),
                (
                    "partitions",
                    "partitions",
                    "Groups of requests that may share answers by meaning.",
                ),
                ("in_flight", "upstream_calls_in_flight", "Calls to providers that run now."),
                ("websockets", "websockets_open", "WebSockets that are open now."),
                ("encoder_queue", "encoder_queue_length", "Texts that wait for the encoder now."),
            )
        }
        """By the names of the fields of ``Levels``."""
        self._hedges = {
            field: Gauge(f"headstart_{field}_ratio", text, ("route", "strategy"), registry=registry)
            for field, text in (
                ("extra_calls", "Extra calls, as a share of the last 1,000 requests."),
                ("extra_calls_allowed", "Highest share of extra calls that is allowed."),
                ("extra_cost", "Expected cost of extra calls, as a share of all cost."),
                ("extra_cost_allowed", "Highest share of the expected cost that is allowed."),
            )
        }
        self._limits = Gauge(
            "headstart_client_limit_used_ratio",
            "Used share of the limits of client keys; calls in flight count.",
            ("caller", "limit"), registry=registry,
        )  # fmt: skip
        ProcessCollector(registry=registry)

    def notify(self, observation: Observation) -> None:
        """Count one observation."""
        if isinstance(observation, Served):
            for attempt in observation.attempts:
                self._attempted(attempt)
            self._savings.note(observation)
            if observation.outcome is Outcome.AUDIT:
                self._audits.labels(observation.reason or "").inc()
            elif observation.outcome is Outcome.DRAFT:
                self._drafts.labels(observation.reason or "").inc()
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
            if observation.outcome is GateOutcome.FOUND:
                self._lost_hits.inc(observation.stands_for)
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
            row.route,
            row.model if row.model in self._models else self._model_of(row),
            row.reason,
            row.not_stored,
        )
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = self._bind(key)
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
            self._shaped(shaped)

    def _shaped(self, shaped: ShapingEffect) -> None:
        if shaped.kind == PROMPT_CACHE:
            return  # the prompt cache removes no tokens
        removed = self._removable if shaped.kind.endswith(DRY_RUN) else self._removed
        removed.labels(shaped.kind).inc(max(0, shaped.tokens_before - shaped.tokens_after))

    def _model_of(self, row: Served) -> str:
        """Return the label of a model without one. It gets its own once it has answered."""
        if len(self._models) > MOST_MODELS or not row.succeeded:
            return OTHER
        self._models.add(row.model)
        return row.model

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

    def _bind(self, key: _Key) -> _Bound:
        endpoint, outcome, status, upstream, route, model, reason, not_stored = key
        counters = [self._requests.labels(endpoint, outcome.value, f"{status}xx", route, model).inc]
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
        found = {each.value: 0 for each in Outcome if not each.is_own_call}
        for metric in self._requests.collect():
            for sample in metric.samples:
                if sample.name.endswith("_total"):
                    found[sample.labels["outcome"]] += int(sample.value)
        return found

    def settle(self) -> None:
        """Count the savings of requests. Call it before ``expose``, in the thread that notifies."""
        self._savings.settle()

    def expose(self, levels: Levels) -> bytes:
        """Return all metrics as Prometheus text. Reads the process's figures: call off the loop."""
        for field, gauge in self._levels.items():
            level = getattr(levels, field)
            gauge.set(math.nan if level is None else level)
        for hedging in levels.hedges:
            for field, gauge in self._hedges.items():
                gauge.labels(hedging.route, hedging.strategy).set(getattr(hedging, field))
        self._limits.clear()
        for limit in levels.limits:
            self._limits.labels(limit.caller, limit.limit).set(limit.share)
        return generate_latest(self._registry)
