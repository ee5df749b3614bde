"""OpenTelemetry: the SDK and its exporters from ``[otel]`` and the ``OTEL_*`` variables."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from importlib.metadata import entry_points, version
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from headstart.errors import ConfigError, MissingExtra
from headstart.middleware.observers import QUIET_S
from headstart.observe import logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import TracerProvider

    from headstart.factory.context import BuildContext
    from headstart.middleware.telemetry import Tracing
    from headstart.settings import OtelSettings

_ADDRESSES = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)
_EXPORTERS = ("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER")
STOP_S = 5.0
"""Longest time for the last spans and metrics when the engine stops."""


def is_wanted(otel: OtelSettings, environ: Mapping[str, str]) -> bool:
    """Tell whether traces and metrics are to be sent: the setting decides, else the variables."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if otel.enabled is not None:
        return otel.enabled
    named = any(environ.get(name, "none") not in ("", "none") for name in _EXPORTERS)
    return named or any(environ.get(name) for name in _ADDRESSES)


async def open_telemetry(build: BuildContext) -> Tracing | None:
    """Start OpenTelemetry, and return the part that traces requests; None: it is off.

    Providers that the app around us has set are used as they are. Without the extra it stays off
    with a line in the log, unless the setting asks for it: then it raises MissingExtra.
    """
    otel = build.settings.otel
    if not is_wanted(otel, os.environ):
        return None
    try:
        # The SDK takes a quarter of a second to load.
        sending = await asyncio.to_thread(_Sending, otel, os.environ)
        from opentelemetry.propagate import get_global_textmap

        from headstart.middleware.telemetry import OpenTelemetryObserver, Tracing
    except ImportError as error:
        missing = MissingExtra("otel", "OpenTelemetry")
        if otel.enabled:
            raise missing from error
        logger.warning("an OTEL_ variable asks for traces, and none are sent: %s", missing)
        return None
    build.stack.push_async_callback(sending.aclose)
    tracing = Tracing(sending.tracer.get_tracer(*sending.scope), get_global_textmap())
    build.observers.add(tracing)
    meter = sending.meter.get_meter(*sending.scope)
    build.observers.add(OpenTelemetryObserver(meter, build.settings.upstream))
    return tracing


class _Sending:
    """The providers of tracers and meters, with the exporters of our own providers."""

    def __init__(self, otel: OtelSettings, environ: Mapping[str, str]) -> None:
        """Raises ConfigError for an exporter that is not installed."""
        from opentelemetry.metrics import get_meter_provider
        from opentelemetry.sdk.metrics import MeterProvider as SDKMeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.trace import TracerProvider as SDKTracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
        from opentelemetry.trace import get_tracer_provider

        self.scope = "headstart", version("headstart")
        self.tracer: TracerProvider = get_tracer_provider()
        self.meter: MeterProvider = get_meter_provider()
        traces_here = not isinstance(self.tracer, SDKTracerProvider)
        meters_here = not isinstance(self.meter, SDKMeterProvider)
        spans_to = _opened("traces", otel, environ) if traces_here else []
        metrics_to = _opened("metrics", otel, environ) if meters_here else []
        self._exporters = [*spans_to, *metrics_to]
        self._own: list[SDKTracerProvider | SDKMeterProvider] = []
        resource = _resource(otel)
        if traces_here:
            sampler = None if otel.sample is None else ParentBasedTraceIdRatio(otel.sample)
            # ``aclose`` stops it, also at a reload.
            self.tracer = tracer = SDKTracerProvider(sampler, resource, shutdown_on_exit=False)
            for exporter in spans_to:
                tracer.add_span_processor(BatchSpanProcessor(exporter))
            self._own.append(tracer)
        if meters_here:
            readers = [PeriodicExportingMetricReader(each) for each in metrics_to]
            self.meter = meter = SDKMeterProvider(readers, resource, shutdown_on_exit=False)
            self._own.append(meter)

    async def aclose(self) -> None:
        """Send the last spans and metrics, and stop. A collector that is away delays STOP_S."""

        def stop() -> None:
            for provider in self._own:
                provider.shutdown()

        try:
            stopping = asyncio.get_running_loop().run_in_executor(None, stop)
        except RuntimeError:  # the interpreter ends: its thread pools take no work
            return stop()
        done, _ = await asyncio.wait((stopping,), timeout=STOP_S)
        if not done:
            for exporter in self._exporters:
                exporter.shutdown()  # a shut-down exporter makes no further try
        await stopping


class _QuietExporter:
    """An exporter whose failures are logged in one line once an hour. Their end is logged once.

    The official exporters log each try.
    """

    def __init__(self, exporter: Any, signal: str) -> None:
        self._exporter = exporter
        self._signal = signal
        self._quiet_until = 0.0
        self._failing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exporter, name)

    def export(self, *batch: Any, **options: Any) -> Any:
        """Export a batch."""
        result = self._exporter.export(*batch, **options)
        failed = result.name != "SUCCESS"
        if failed and time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + QUIET_S
            logger.warning(
                "the collector takes no %s, and those of this time are lost: check otel.endpoint "
                "and OTEL_EXPORTER_OTLP_ENDPOINT, or run: headstart doctor",
                self._signal,
            )
        elif self._failing and not failed:
            self._quiet_until = 0.0
            logger.warning("the collector takes %s again", self._signal)
        self._failing = failed
        return result


def _opened(signal: str, otel: OtelSettings, environ: Mapping[str, str]) -> list[Any]:
    theirs = logging.getLogger("opentelemetry.exporter")
    if theirs.level == logging.NOTSET and theirs.getEffectiveLevel() > logging.DEBUG:
        theirs.setLevel(logging.CRITICAL)
    return [_QuietExporter(each, signal) for each in _exporters(signal, otel, environ)]


def _resource(otel: OtelSettings) -> Resource:
    """Return the resource that sends: the service and its instance, which is the process.

    Variables come before the settings.
    """
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    own = Resource(
        {
            "service.name": otel.service_name,
            "service.version": version("headstart"),
            "service.instance.id": str(uuid4()),
        }
    )
    return Resource.create().merge(own).merge(OTELResourceDetector().detect())


def _exporters(signal: str, otel: OtelSettings, environ: Mapping[str, str]) -> Iterator[Any]:
    """Yield the exporters of a signal, ``traces`` or ``metrics``. Raises ConfigError.

    They are found by the names under which their packages register them.
    """
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    for name in map(str.strip, (environ.get(variable) or "otlp").split(",")):
        if name in ("", "none"):
            continue
        options = {}
        registered = name
        if name == "otlp":
            registered = f"otlp_proto_{_protocol(signal, otel, environ)}"
            if otel.endpoint is not None:
                options["endpoint"] = f"{otel.endpoint.rstrip('/')}/v1/{signal}"
        found = list(entry_points(group=f"opentelemetry_{signal}_exporter", name=registered))
        if not found:
            raise ConfigError(
                f"no package provides the exporter {registered!r} for {signal}: set {variable} to "
                "otlp, console or none, or install the package of this exporter"
            )
        yield found[0].load()(**options)


def _protocol(signal: str, otel: OtelSettings, environ: Mapping[str, str]) -> str:
    """Return the protocol of OTLP: ``http`` or ``grpc``. ``otel.endpoint`` speaks HTTP."""
    named = (
        environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL")
        or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or "http/protobuf"
    )
    return "http" if otel.endpoint is not None else named.partition("/")[0]
