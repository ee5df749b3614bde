"""Traces and metrics of requests by OpenTelemetry's conventions for generative AI.

Loaded only where ``[otel]`` or a variable switches it on. Spans and metrics hold no texts or keys.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from headstart.attempts import FAILURES, Attempt
from headstart.decisions import Outcome
from headstart.dialects.requests import filled
from headstart.errors import MissingExtra
from headstart.middleware.request_context import RETRY_GRACE_S
from headstart.observe import Observation, Served
from headstart.types import Call, Latest, Scope
from headstart.usual_calls import RecentPrompts, machine_name

try:
    from opentelemetry.context import attach, detach, get_current, get_value, set_value
    from opentelemetry.trace import (
        SpanKind,
        Status,
        StatusCode,
        get_current_span,
        set_span_in_context,
    )
except ImportError as error:
    raise MissingExtra("otel", "sending traces") from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from opentelemetry.context import Context
    from opentelemetry.metrics import Histogram, Meter
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Span, Tracer

    from headstart.settings import UpstreamSettings

MOST_OPEN = 10_000
"""The most attempts whose end is not booked yet. Beyond that, the oldest are dropped."""
LATE_S = RETRY_GRACE_S + 5.0
"""A request that is not booked within these seconds after its end is traced without its result."""
_REQUEST = "headstart.tracing.request"
_OPERATIONS = {
    "/v1/embeddings": "embeddings",
    "/v1/completions": "text_completion",
    "/v1/rerank": "rerank",
    "/v2/rerank": "rerank",
    "/v1/moderations": "moderation",
}
"""The operations of endpoints that are not chats."""
_PROVIDERS = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex": "gcp.vertex_ai",
    "vertex-claude": "gcp.vertex_ai",
    "xai": "x_ai",
}
"""The ``gen_ai.provider.name`` of presets that have another name in the conventions."""


_SECONDS = tuple(0.01 * 2**n for n in range(14))
"""Bounds of the buckets of a duration, as the conventions advise. The SDK's begin at 5 s."""
_FIRST_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
"""Bounds of the buckets of the time to the first token, in seconds."""
_TOKENS = tuple(4**n for n in range(14))
"""Bounds of the buckets of token counts."""


def provider_name(upstream: UpstreamSettings) -> str:
    """Return the ``gen_ai.provider.name`` of an upstream."""
    preset = upstream.preset or upstream.name
    return _PROVIDERS.get(preset, preset)


def provider_facts(upstream: UpstreamSettings) -> dict[str, Any]:
    """Return the attributes of a span that are the same for all calls to an upstream."""
    address = urlsplit(upstream.base_url)
    facts = {
        "gen_ai.provider.name": provider_name(upstream),
        "headstart.upstream": upstream.name,
        "server.address": address.hostname,
        "server.port": address.port or {"http": 80, "https": 443}.get(address.scheme),
    }
    return filled(facts)


def operation_of(endpoint: str) -> str:
    """Return the ``gen_ai.operation.name`` of an endpoint."""
    if endpoint.endswith(("generateContent", "streamGenerateContent")):
        return "generate_content"
    return _OPERATIONS.get(endpoint, "chat")


@dataclass(slots=True, eq=False)
class _RequestTrace:
    """The span of a request, its HTTP method, and whether its result is known."""

    span: Span
    method: str
    booked: bool = False


class Tracing:
    """An observer that makes the spans of each request: for itself, its lookup and each attempt.

    ``request`` begins the span of a request, and ``attempt`` the span of an upstream call. The
    booked row of the request ends them, so each span has the same outcome as the books.
    """

    def __init__(self, tracer: Tracer, propagator: TextMapPropagator) -> None:
        """``propagator`` reads the caller's ``traceparent``, and writes the one for upstreams."""
        self._tracer = tracer
        self._propagator = propagator
        self._fields = frozenset(name.lower() for name in propagator.fields)
        self._facts: dict[str, dict[str, Any]] = {}
        """The attributes of all spans of calls to an upstream, by its name."""
        self._open: Latest[str, Span] = Latest(MOST_OPEN)
        """The spans of the attempts whose end is not booked, by their ids."""

    @contextmanager
    def request(self, scope: Scope) -> Iterator[None]:
        """Trace the request that is handled inside. The span's end is the booked one."""
        outer = get_current()
        inside = get_current_span(outer).get_span_context().is_valid
        parent = outer if inside else self._propagator.extract(self._carried(scope), outer)
        # A WebSocket's scope has no method: its handshake is a GET.
        method = scope.get("method", "GET")
        span = self._tracer.start_span(
            method,
            parent,
            # The framework around us traces the server's side, if it traces anything.
            SpanKind.INTERNAL if inside else SpanKind.SERVER,
            {"http.request.method": method},
        )
        trace = _RequestTrace(span, method)
        token = attach(set_value(_REQUEST, trace, set_span_in_context(span, parent)))
        try:
            yield
        finally:
            detach(token)
            if not trace.booked:  # the booking may wait for a retry of the client's SDK
                asyncio.get_running_loop().call_later(LATE_S, span.end)

    def _carried(self, scope: Scope) -> dict[str, str]:
        """Return the headers of a trace that a request carries."""
        named = ((name.decode("latin-1"), value) for name, value in scope["headers"])
        return {name: value.decode("latin-1") for name, value in named if name in self._fields}

    def attempt(self, call: Call, upstream: UpstreamSettings, model: str) -> Call:
        """Begin the span of an upstream call; return the call with the headers that continue it."""
        facts = self._facts.get(upstream.name)
        if facts is None:
            facts = self._facts[upstream.name] = provider_facts(upstream)
        attributes = {**facts, "headstart.attempt.role": str(call.role)}
        if call.relayed:  # the operation of a relayed call is not known
            name = f"{call.method} relay"
        else:
            operation = operation_of(call.endpoint)
            name = f"{operation} {model}".rstrip()
            attributes |= {"gen_ai.operation.name": operation, "gen_ai.request.model": model}
        span = self._tracer.start_span(name, None, SpanKind.CLIENT, attributes)
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(span))
        sent = {name.lower().encode(): value.encode("latin-1") for name, value in carrier.items()}
        kept = (pair for pair in call.headers if pair[0] not in sent)
        headers = (*kept, *sent.items())
        if not span.is_recording():
            return msgspec.structs.replace(call, headers=headers)
        id = f"{span.get_span_context().span_id:016x}"
        self._open[id] = span
        return msgspec.structs.replace(call, headers=headers, span=id)

    @staticmethod
    def trace_id() -> str:
        """Return the id of the trace of the request that is handled now; "": it is not traced."""
        trace = get_value(_REQUEST)
        if not isinstance(trace, _RequestTrace):
            return ""
        context = trace.span.get_span_context()
        return f"{context.trace_id:032x}" if context.trace_flags.sampled else ""

    def notify(self, observation: Observation) -> None:
        """End the spans of a booked request, and of its attempts."""
        if type(observation) is not Served:
            return
        trace = get_value(_REQUEST)
        for attempt in observation.attempts:
            self._end_attempt(attempt)
        if isinstance(trace, _RequestTrace) and not observation.outcome.is_own_call:
            self._end_request(trace, observation)

    def _end_attempt(self, attempt: Attempt) -> None:
        span = self._open.pop(attempt.span, None)
        if span is None:
            return
        failed = attempt.outcome in FAILURES
        facts = {
            "headstart.attempt.outcome": attempt.outcome.value,
            "http.response.status_code": attempt.status or None,
            "gen_ai.usage.input_tokens": attempt.prompt_tokens or None,
            "gen_ai.usage.output_tokens": attempt.completion_tokens or None,
            "gen_ai.usage.cache_read.input_tokens": attempt.cached_tokens or None,
            "gen_ai.response.time_to_first_chunk": attempt.ttft_s,
            "headstart.cost_usd": attempt.cost_usd,
            "error.type": attempt.error or ("error" if failed else None),
        }
        span.set_attributes(filled(facts))
        if failed:
            span.set_status(Status(StatusCode.ERROR, attempt.reason or attempt.error))
        span.end(_nanoseconds(attempt.at + attempt.total_s))

    def _end_request(self, trace: _RequestTrace, row: Served) -> None:
        span = trace.span
        booked, trace.booked = trace.booked, True
        if booked or not span.is_recording():
            return
        # Callers may name any path of a relayed request.
        place = "relay" if row.outcome is Outcome.RELAY else row.endpoint
        self._stages(row, set_span_in_context(span))
        span.update_name(f"{trace.method} {place}")
        facts = {
            "http.route": place,
            "http.response.status_code": row.status or None,
            "gen_ai.request.model": row.model or None,
            "error.type": row.error or (str(row.status) if row.status >= 500 else None),
            "headstart.request.id": row.id,
            "headstart.outcome": row.outcome.value,
            "headstart.reason": row.detail,
            "headstart.similarity": row.similarity,
            "headstart.route": row.route or None,
            "headstart.caller": row.caller or None,
            "headstart.upstream": row.upstream or None,
            "headstart.time_to_first_token": row.ttft_s,
            "headstart.cost_usd": row.cost_usd,
        }
        span.set_attributes(filled(facts))
        if row.status >= 500 or row.error is not None:
            span.set_status(Status(StatusCode.ERROR, row.error))
        span.end(_nanoseconds(row.at + row.total_s))

    def _stages(self, row: Served, inside: Context) -> None:
        """Make the spans of the lookup and of the encoder, of which only the lengths are known.

        They are placed at the end of our own time before the answer.
        """
        spent_s = row.lookup_s + row.encode_s
        if not spent_s:
            return
        began = row.at + max(0.0, row.overhead_s - spent_s)
        facts = {
            "headstart.outcome": row.outcome.value,
            "headstart.reason": row.detail,
            "headstart.similarity": row.similarity,
        }
        lookup = self._tracer.start_span(
            "lookup", inside, attributes=filled(facts), start_time=_nanoseconds(began)
        )
        if row.encode_s:
            encode = self._tracer.start_span(
                "encode", set_span_in_context(lookup), start_time=_nanoseconds(began)
            )
            encode.end(_nanoseconds(began + row.encode_s))
        lookup.end(_nanoseconds(began + spent_s))


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


class OpenTelemetryObserver:
    """Records duration, time to first token and tokens of each served request with ``meter``."""

    def __init__(self, meter: Meter, upstreams: Iterable[UpstreamSettings] = ()) -> None:
        self._providers = {each.name: provider_name(each) for each in upstreams}
        self._prompts = RecentPrompts()

        def histogram(name: str, unit: str, text: str, bounds: Sequence[float]) -> Histogram:
            return meter.create_histogram(
                f"gen_ai.{name}", unit, text, explicit_bucket_boundaries_advisory=bounds
            )

        self._duration = histogram(
            "client.operation.duration", "s", "Time to the end of the answer", _SECONDS
        )
        self._ttft = histogram(
            "server.time_to_first_token", "s", "Time to the first content sent", _FIRST_SECONDS
        )
        self._tokens = histogram(
            "client.token.usage", "{token}", "Tokens that were paid for", _TOKENS
        )
        self._saved = meter.create_counter(
            "headstart.saved.tokens", "{token}", "Tokens of the calls that were not made"
        )
        self._cost = meter.create_counter(
            "headstart.cost", "{USD}", "Dollars that requests and their audits cost"
        )
        self._cost_without = meter.create_counter(
            "headstart.cost.without",
            "{USD}",
            "Dollars that requests would have cost without Headstart",
        )

    def notify(self, observation: Observation) -> None:
        """Count a served request; other observations have no convention, nor have relayed ones."""
        if not isinstance(observation, Served) or observation.outcome is Outcome.RELAY:
            return
        row = observation
        route = {"headstart.route": row.route}
        self._cost.add(row.cost_usd or 0.0, route)
        self._cost_without.add(max(0.0, self._prompts.would_have_cost_usd(row)), route)
        if row.outcome.is_own_call:
            return  # such a call has a cost, but no client and no times
        attributes = {
            "gen_ai.operation.name": operation_of(row.endpoint),
            "gen_ai.request.model": row.model,
            "gen_ai.provider.name": self._providers.get(machine_name(row.upstream), row.upstream),
            "headstart.upstream": row.upstream,
            "headstart.outcome": str(row.outcome),
        }
        if row.error is not None or row.status >= 400:
            attributes["error.type"] = row.error or str(row.status)
        self._duration.record(row.total_s, attributes)
        if row.ttft_s is not None:
            self._ttft.record(row.ttft_s, attributes)
        if row.saved_tokens:
            self._saved.add(row.saved_tokens, attributes)
        if not row.outcome.is_hit and row.outcome is not Outcome.JOINED:
            for kind, tokens in (("input", row.prompt_tokens), ("output", row.completion_tokens)):
                self._tokens.record(tokens, {**attributes, "gen_ai.token.type": kind})
