"""Upstream calls in the report: each one counts, and what it cost is never lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headstart.attempts import Attempt, AttemptOutcome, AttemptRole, ShapingEffect
from headstart.decisions import Outcome
from headstart.report.sections import render_page
from support.booked import attempt, report_on, served

if TYPE_CHECKING:
    from headstart.observe import Served

WON = attempt(
    upstream="groq", model="llama", ttft_s=0.2, tokens_per_s=100.0, status=200, prompt_tokens=50,
    completion_tokens=80, cost_usd=0.03,
)  # fmt: skip
LOST = msgspec.structs.replace(
    WON,
    upstream="together",
    role=AttemptRole.HEDGE,
    outcome=AttemptOutcome.LOST,
    ttft_s=None,
    tokens_per_s=None,
    completion_tokens=0,
    cost_usd=0.01,
    estimated=True,
)


def asked(*attempts: Attempt, **changes: Any) -> Served:
    return served(attempts=attempts, **changes)


def test_calls_are_counted_by_provider_and_model() -> None:
    groq, together = report_on(asked(WON, LOST), asked(WON)).calls
    assert (groq.name, groq.calls, groq.won, groq.lost, groq.usd) == ("groq llama", 2, 2, 0, 0.06)
    assert (together.calls, together.lost, together.estimated) == (1, 1, 1)
    assert groq.tokens_per_s == 100.0
    assert groq.ttft is not None
    assert groq.ttft.p50_s == 0.2
    assert together.ttft is None
    assert together.roles == {"hedge": 1}


def test_calls_that_answered_nobody_are_the_overhead() -> None:
    extra = report_on(asked(WON, LOST), asked(WON)).extra
    assert extra is not None
    assert extra.calls_share == 0.5
    assert extra.usd == pytest.approx(0.01)
    assert extra.usd_share == pytest.approx(1 / 7)


def test_calls_of_audits_count_too() -> None:
    report = report_on(asked(WON, outcome=Outcome.AUDIT))
    assert report.calls[0].calls == 1


def test_requests_without_calls_have_no_overhead() -> None:
    report = report_on(asked(outcome=Outcome.EXACT))
    assert (report.calls, report.extra) == ((), None)


def test_models_that_clients_make_up_cannot_grow_the_report() -> None:
    odd = (msgspec.structs.replace(WON, model=f"m{i}") for i in range(100))
    calls = report_on(*(asked(attempt) for attempt in odd)).calls
    assert len(calls) == 41
    assert sum(each.calls for each in calls) == 100


def test_shaping_effects_are_summed_by_kind() -> None:
    shaped = ShapingEffect(kind="compress", tokens_before=1000, tokens_after=600)
    (reshaped,) = report_on(asked(WON, shaped=(shaped,)), asked(WON, shaped=(shaped,))).reshaped
    assert (reshaped.requests, reshaped.tokens_before, reshaped.tokens_after) == (2, 2000, 1200)


def test_the_page_shows_calls() -> None:
    shaped = ShapingEffect(kind="compress", tokens_before=1000, tokens_after=600)
    page = render_page(report_on(asked(WON, LOST, shaped=(shaped,))))
    assert "together llama" in page
    assert "100.0 % extra calls for 1 request; calls whose answer no client got cost $0.01" in page
    assert "40.0 %" in page
