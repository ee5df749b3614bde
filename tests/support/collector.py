"""An OpenTelemetry collector that receives OTLP over HTTP and keeps the spans and metrics."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from support.scripted import lifespan, whole_body

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """An ASGI app. It keeps the received spans and metrics, and their resource and scopes."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.metrics: dict[str, Any] = {}
        self.resource: dict[str, Any] = {}
        self.scopes: set[tuple[str, str]] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await lifespan(receive, send)
        body = await whole_body(receive)
        if dict(scope["headers"]).get(b"content-encoding") == b"gzip":
            body = gzip.decompress(body)
        self._keep(scope["path"], body)
        headers = [(b"content-type", b"application/x-protobuf"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def _keep(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            traces = ExportTraceServiceRequest.FromString(body)
            for resource in traces.resource_spans:
                self.resource = attributes_of(resource.resource)
                for scope in resource.scope_spans:
                    self.scopes.add((scope.scope.name, scope.scope.version))
                    self.spans += scope.spans
        else:
            assert path == "/v1/metrics"
            for group in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for measured in group.scope_metrics:
                    self.scopes.add((measured.scope.name, measured.scope.version))
                    self.metrics |= {each.name: each for each in measured.metrics}

    def named(self, start: str) -> list[Span]:
        """Return the spans whose names begin with ``start``, in the order of their times."""
        found = [span for span in self.spans if span.name.startswith(start)]
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    def one(self, start: str) -> Span:
        """Return the only span whose name begins with ``start``."""
        (span,) = self.named(start)
        return span


def attributes_of(holder: Any) -> dict[str, Any]:
    """Return the attributes of a span or a resource as plain values."""
    return {
        each.key: getattr(each.value, str(each.value.WhichOneof("value")))
        for each in holder.attributes
    }
