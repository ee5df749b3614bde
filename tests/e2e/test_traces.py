"""Traces and metrics, read back from a collector that takes them over HTTP."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import get_current_span, use_span

from headstart.errors import ConfigError, MissingExtra
from headstart.factory import telemetry
from headstart.factory.telemetry import is_wanted
from headstart.lab.simulator.faults import Cut
from headstart.lab.simulator.profiles import ProviderProfile
from headstart.middleware.asgi import not_found
from headstart.middleware.endpoints import Endpoint
from headstart.middleware.telemetry import provider_facts
from headstart.mount import HeadstartMiddleware, gateway
from headstart.settings import CacheSettings, OtelSettings, Settings, UpstreamSettings
from support.collector import Collector, attributes_of
from support.serving import bind_free_port, serving
from support.sidecar import PROMPT, REWORDED, Provider, Sidecar, sidecar
from support.simulated import simulated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"
CONTINUED = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "vendor=1"}
EXACT = {"mode": "exact-only"}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith("OTEL_")]:
        monkeypatch.delenv(name)


class Noting(Provider):
    """A provider that keeps the ``traceparent`` of each call."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.parents: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.parents.append(dict(scope["headers"]).get(b"traceparent", b"").decode())
        await super().__call__(scope, receive, send)


@contextlib.asynccontextmanager
async def traced(
    collector: Collector, provider: Provider | None = None, sample: float | None = None, **more: Any
) -> AsyncIterator[Sidecar]:
    """Run a sidecar whose traces have all come to the collector when it has stopped."""
    async with serving(collector) as url:
        otel = {"enabled": True, "endpoint": url, "sample": sample}
        async with sidecar(provider, **{"cache": EXACT, **more}, otel=otel) as proxy:
            yield proxy


def parent_of(span: Span) -> str:
    return span.parent_span_id.hex()


def header_of(span: Span) -> str:
    return f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01"


async def test_a_race_with_a_rescue_is_one_trace() -> None:
    """The winner breaks off, and the upstream that lost the race continues its answer."""
    fast = Noting(fault=Cut(after=5, times=1))
    slow = Noting(profile=ProviderProfile(model="m", ttft_ms=300, ttft_sigma=0.0))
    collector = Collector()
    async with (
        simulated(slow) as spare,
        traced(
            collector,
            fast,
            others=({"name": "spare", "base_url": spare},),
            routes=(
                {
                    "name": "all",
                    "strategy": "race",
                    "upstreams": ["sim", "spare"],
                    "equal_models": "assume",
                    "race_billed": True,
                },
            ),
        ) as proxy,
    ):
        reply = await proxy.ask(stream=True, headers=CONTINUED)
        await proxy.finished(1)
        (row,) = proxy.served
    assert reply.status == 200

    request = collector.one("POST /v1/chat/completions")
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    assert parent_of(request) == CALLER
    assert request.kind == Span.SPAN_KIND_SERVER
    facts = attributes_of(request)
    assert facts["headstart.request.id"] == row.id
    assert facts["headstart.outcome"] == "miss"
    assert facts["headstart.route"] == "all"
    assert facts["http.response.status_code"] == 200
    assert request.status.code == Status.STATUS_CODE_UNSET

    attempts = collector.named("chat m")
    assert {parent_of(span) for span in attempts} == {request.span_id.hex()}
    assert {span.kind for span in attempts} == {Span.SPAN_KIND_CLIENT}
    told = [attributes_of(span) for span in attempts]
    assert sorted(
        (
            each["headstart.upstream"],
            each["headstart.attempt.role"],
            each["headstart.attempt.outcome"],
        )
        for each in told
    ) == [("sim", "first", "broken"), ("spare", "race", "lost"), ("spare", "rescue", "won")]
    won = next(each for each in told if each["headstart.attempt.outcome"] == "won")
    assert won["gen_ai.operation.name"] == "chat"
    assert won["gen_ai.request.model"] == "m"
    assert won["gen_ai.usage.output_tokens"] > 0
    broken = next(each for each in attempts if each.status.code == Status.STATUS_CODE_ERROR)
    assert attributes_of(broken)["headstart.upstream"] == "sim"
    assert {(each["server.address"], each["gen_ai.provider.name"]) for each in told} == {
        ("127.0.0.1", "sim"),
        ("127.0.0.1", "spare"),
    }
    assert all(
        request.start_time_unix_nano <= each.start_time_unix_nano <= each.end_time_unix_nano
        for each in attempts
    )
    # Each provider got the span of its own attempt as the parent of its work.
    assert sorted(fast.parents + slow.parents) == sorted(map(header_of, attempts))


async def test_a_reworded_hit_shows_its_lookup_and_its_encoding() -> None:
    collector = Collector()
    async with traced(collector, cache={}) as proxy:
        await proxy.ask(PROMPT)
        await proxy.indexed(1)
        assert (await proxy.ask(REWORDED)).headers["x-cache"] == "HIT"
        await proxy.finished(2)
    _, hit = collector.named("POST ")
    assert attributes_of(hit)["headstart.outcome"] == "semantic"
    assert attributes_of(hit)["headstart.similarity"] > 0.8
    inside = [span for span in collector.spans if span.trace_id == hit.trace_id]
    assert sorted(span.name for span in inside) == ["POST /v1/chat/completions", "encode", "lookup"]
    lookup, encode = (next(s for s in inside if s.name == name) for name in ("lookup", "encode"))
    assert lookup.parent_span_id == hit.span_id
    assert encode.parent_span_id == lookup.span_id
    assert (
        hit.start_time_unix_nano
        <= lookup.start_time_unix_nano
        <= encode.start_time_unix_nano
        <= encode.end_time_unix_nano
        <= lookup.end_time_unix_nano
        <= hit.end_time_unix_nano
    )


async def test_a_miss_shows_its_lookup_also_if_nothing_is_stored() -> None:
    collector = Collector()
    async with traced(collector) as proxy:
        await proxy.ask()
        await proxy.finished(1)
    request, lookup = collector.one("POST "), collector.one("lookup")
    assert lookup.parent_span_id == request.span_id
    assert attributes_of(lookup)["headstart.outcome"] == "miss"
    assert lookup.end_time_unix_nano > lookup.start_time_unix_nano


async def test_metrics_go_to_the_collector_too() -> None:
    collector = Collector()
    async with traced(collector) as proxy:
        await proxy.ask()
        await proxy.ask()
        await proxy.finished(2)
    points = collector.metrics["gen_ai.client.operation.duration"].histogram.data_points
    outcomes = {attributes_of(point)["headstart.outcome"]: point.count for point in points}
    assert outcomes == {"miss": 1, "exact": 1}
    assert collector.resource["service.name"] == "headstart"
    assert collector.scopes == {("headstart", version("headstart"))}


async def test_a_relayed_call_and_a_refused_one_have_spans() -> None:
    collector = Collector()
    async with traced(collector) as proxy:
        await proxy.session.get(f"{proxy.url}/v1/files", headers=CONTINUED)
        assert (await proxy.post(b"no JSON")).status == 400
        await proxy.finished(2)
    relayed, call = collector.named("GET relay")
    assert parent_of(relayed) == CALLER
    assert parent_of(call) == relayed.span_id.hex()
    assert "gen_ai.operation.name" not in attributes_of(call)
    refused = attributes_of(collector.one("POST "))
    assert refused["http.response.status_code"] == 400
    assert refused["error.type"] == "invalid_request"


async def test_a_caller_that_does_not_sample_is_not_traced_and_its_header_goes_on() -> None:
    collector, provider = Collector(), Noting()
    async with traced(collector, provider) as proxy:
        await proxy.ask(headers={"traceparent": f"00-{TRACE}-{CALLER}-00"})
        await proxy.finished(1)
    assert collector.spans == []
    (parent,) = provider.parents
    assert parent.startswith(f"00-{TRACE}-")
    assert parent.endswith("-00")


async def test_the_access_log_names_the_trace(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headstart.access")
    async with traced(Collector(), server={"access_log": "json"}) as proxy:
        await proxy.ask(headers=CONTINUED)
        await proxy.ask(headers={"traceparent": f"00-{TRACE}-{CALLER}-00"})
        await proxy.finished(2)
    lines = [json.loads(each.message) for each in caplog.records if "access" in each.name]
    assert [line.get("trace_id") for line in lines] == [TRACE, None]


async def test_no_share_of_the_traces_sends_none() -> None:
    collector = Collector()
    async with traced(collector, sample=0.0) as proxy:
        await proxy.ask()
        await proxy.finished(1)
    assert collector.spans == []


async def test_spans_hold_no_text_and_no_key() -> None:
    collector = Collector()
    async with traced(collector) as proxy:
        await proxy.ask("a secret question")
        await proxy.finished(1)
    sent = str(collector.spans)
    assert "POST /v1/chat/completions" in sent
    assert "secret question" not in sent
    assert "sk-test" not in sent


async def test_off_changes_no_header(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Noting()
    async with sidecar(provider, cache=EXACT) as proxy:
        await proxy.ask(headers=CONTINUED)
        await proxy.finished(1)
        assert proxy.served[0].attempts[0].span == ""
    assert provider.parents == [CONTINUED["traceparent"]]


async def test_a_collector_that_is_away_costs_no_request_and_one_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telemetry, "STOP_S", 0.2)
    with bind_free_port() as nobody:
        port = nobody.getsockname()[1]
    otel = {"enabled": True, "endpoint": f"http://127.0.0.1:{port}"}
    async with sidecar(cache=EXACT, otel=otel) as proxy:
        assert (await proxy.ask()).status == 200
        await proxy.finished(1)
    told = sorted(each.message.split(",")[0] for each in caplog.records)
    assert told == ["the collector takes no metrics", "the collector takes no traces"]


class Failing:
    """An exporter that fails as long as it should."""

    def __init__(self) -> None:
        self.result = SpanExportResult.FAILURE

    def export(self, batch: object) -> SpanExportResult:
        return self.result

    def shutdown(self) -> None:
        """Do nothing."""


async def test_a_collector_that_comes_back_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing()
    exporter = telemetry._QuietExporter(failing, "traces")
    for _ in range(3):
        exporter.export(())
    failing.result = SpanExportResult.SUCCESS
    for _ in range(3):
        exporter.export(())
    failing.result = SpanExportResult.FAILURE
    exporter.export(())
    lost, back, again = [each.message for each in caplog.records]
    assert lost.startswith("the collector takes no traces")
    assert back == "the collector takes traces again"
    assert again == lost


async def test_a_span_of_the_app_around_us_is_the_parent() -> None:
    """An instrumented framework has begun the server's span; a client's header is its business."""
    collector = Collector()
    outer = TracerProvider().get_tracer("app").start_span("outer")
    id = f"{outer.get_span_context().span_id:016x}"

    with use_span(outer):  # the servers' tasks copy this context
        async with traced(collector) as proxy:
            await proxy.ask(headers=CONTINUED)
            await proxy.finished(1)
    request = collector.one("POST ")
    assert parent_of(request) == id
    assert request.kind == Span.SPAN_KIND_INTERNAL


async def test_a_wrapped_app_continues_the_trace_and_a_hit_does_not_reach_it() -> None:
    collector, inner = Collector(), []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await not_found(scope, receive, send)
        inner.append(f"{get_current_span().get_span_context().span_id:016x}")
        while (await receive()).get("more_body"):
            pass
        body = b'{"answer": "Paris"}'
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async with serving(collector) as url, aiohttp.ClientSession() as session:
        settings = Settings(
            cache=CacheSettings(store="memory:", mode="exact-only"),
            otel=OtelSettings(enabled=True, endpoint=url),
        )
        wrapped = HeadstartMiddleware(
            app, settings, endpoints=[Endpoint("/ask", prompt="question")], scope=lambda _: "all"
        )
        async with serving(wrapped) as base:
            for _ in range(2):
                async with session.post(f"{base}/ask", json={"question": "Capital?"}) as answer:
                    assert answer.status == 200
    miss, hit = collector.named("POST /ask")
    assert inner == [miss.span_id.hex()]
    assert attributes_of(hit)["headstart.outcome"] == "exact"


@pytest.mark.parametrize(
    ("upstream", "facts"),
    [
        (
            {"preset": "azure", "name": "eu", "base_url": "https://eu.openai.azure.com"},
            ("azure.ai.openai", "eu", "eu.openai.azure.com", 443),
        ),
        (
            {"preset": "groq", "name": "groq#2", "base_url": "https://api.groq.com/openai/v1"},
            ("groq", "groq#2", "api.groq.com", 443),
        ),
        (
            {"name": "own", "base_url": "http://[::1]:8000/v1"},
            ("own", "own", "::1", 8000),
        ),
    ],
)
async def test_spans_name_the_provider_as_the_conventions_do(
    upstream: dict[str, Any], facts: tuple[str, str, str, int]
) -> None:
    found = provider_facts(UpstreamSettings(**upstream))
    assert tuple(found.values()) == facts
    assert tuple(found) == (
        "gen_ai.provider.name", "headstart.upstream", "server.address", "server.port",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "variables", "asked"),
    [
        ({}, {}, False),
        ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({}, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({}, {"OTEL_TRACES_EXPORTER": "console"}, True),
        ({}, {"OTEL_TRACES_EXPORTER": "none"}, False),
        ({}, {"OTEL_SERVICE_NAME": "x"}, False),
        ({"enabled": True}, {}, True),
        ({"enabled": False}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, False),
        ({"enabled": True}, {"OTEL_SDK_DISABLED": "true"}, False),
    ],
)
async def test_the_setting_decides_else_the_variables(
    settings: dict[str, Any], variables: dict[str, str], asked: bool
) -> None:
    assert is_wanted(OtelSettings(**settings), variables) is asked


async def started(**otel: Any) -> None:
    """Start a gateway, and stop it."""
    settings = Settings(
        cache=CacheSettings(store="memory:", mode="exact-only"),
        upstream=(UpstreamSettings(base_url="http://127.0.0.1:1"),),
        otel=OtelSettings(**otel),
    )
    app = gateway(settings)
    await app.running()
    await app.aclose()


async def test_an_unknown_exporter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "pigeon")
    with pytest.raises(ConfigError, match=r"'pigeon' for metrics: set OTEL_METRICS_EXPORTER to"):
        await started(enabled=True)


async def test_without_the_extra_a_setting_is_refused_and_a_variable_only_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in [each for each in sys.modules if each.startswith("opentelemetry.sdk")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    await started()
    assert "pip install 'headstart[otel]'" in caplog.text
    with pytest.raises(MissingExtra, match=r"pip install 'headstart\[otel\]'"):
        await started(enabled=True)
