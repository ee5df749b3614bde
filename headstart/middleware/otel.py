"""Served requests as OpenTelemetry metrics (extra ``otel``).

Names and attributes follow the GenAI semantic conventions (opentelemetry.io/docs/specs/semconv/
gen-ai/gen-ai-metrics); what is ours alone is under ``headstart.``. Only the API is used: without
a configured provider every measurement is a no-op.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.errors import MissingExtra
from headstart.observe import Served

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from headstart.observe import Observation


class OpenTelemetryObserver:
    """Records duration, time to first token and tokens of each served request.

    ``meter`` defaults to the global provider's. Raises MissingExtra without the extra.
    """

    def __init__(self, meter: Meter | None = None) -> None:
        if meter is None:
            try:
                from opentelemetry.metrics import get_meter
            except ImportError as error:
                raise MissingExtra("otel", "the OpenTelemetry observer") from error
            meter = get_meter("headstart")
        self._duration = meter.create_histogram(
            "gen_ai.client.operation.duration", "s", "Time to the end of the answer"
        )
        self._first = meter.create_histogram(
            "gen_ai.server.time_to_first_token", "s", "Time to the first content sent"
        )
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Tokens paid for"
        )
        self._saved = meter.create_counter(
            "headstart.saved.tokens", "{token}", "Tokens that hits did not ask a provider for"
        )

    def notify(self, observation: Observation) -> None:
        """Record a served request; other observations have no convention."""
        if not isinstance(observation, Served):
            return
        row = observation
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": row.model,
            "gen_ai.provider.name": row.upstream,
            "headstart.outcome": str(row.outcome),
        }
        if row.error is not None or row.status >= 400:
            attributes["error.type"] = row.error or str(row.status)
        self._duration.record(row.total_s, attributes)
        if row.ttft_s is not None:
            self._first.record(row.ttft_s, attributes)
        if row.saved_tokens:
            self._saved.add(row.saved_tokens, attributes)
        else:
            for kind, tokens in (("input", row.prompt_tokens), ("output", row.completion_tokens)):
                self._tokens.record(tokens, {**attributes, "gen_ai.token.type": kind})
