"""The access log: one line for each request, which a program can read."""

from __future__ import annotations

import json
import logging

import msgspec
import pytest

from headstart.decisions import Outcome
from headstart.middleware.observers import AccessLog
from headstart.observe import Served, StageFailed

MISS = Served(
    id="r1", at=1_700_000_000.25, endpoint="chat", outcome=Outcome.MISS, status=200, stream=True,
    total_s=0.5, ttft_s=0.1234567, model="gpt-4o", upstream="groq", route="answers",
    reason="below-threshold", prompt_tokens=40, completion_tokens=7, cost_usd=0.00012,
)  # fmt: skip


def line(caplog: pytest.LogCaptureFixture, served: Served, *, as_json: bool) -> str:
    caplog.set_level(logging.INFO, "headstart.access")
    AccessLog(as_json=as_json).notify(served)
    (record,) = caplog.records
    return record.getMessage()


def test_text_is_one_line_of_names_and_values(caplog: pytest.LogCaptureFixture) -> None:
    assert line(caplog, MISS, as_json=False) == (
        "time=2023-11-14T22:13:20.250Z id=r1 endpoint=chat status=200 outcome=miss "
        "detail=below-threshold route=answers upstream=groq model=gpt-4o attempts=0 stream=true "
        "ttft_ms=123.457 total_ms=500 overhead_ms=0 prompt_tokens=40 completion_tokens=7 "
        "cost_usd=0.00012"
    )


@pytest.mark.parametrize(
    ("reason", "veto", "detail"),
    [
        ("below-threshold", "threshold", "below-threshold"),
        ("veto", "negation", "negation"),
        (None, "negation", "negation"),
        ("live", None, "live"),
        (None, None, None),
    ],
)
def test_detail_is_the_guard_of_a_veto_and_else_the_reason(
    caplog: pytest.LogCaptureFixture, reason: str | None, veto: str | None, detail: str | None
) -> None:
    served = msgspec.structs.replace(MISS, reason=reason, veto=veto)
    assert json.loads(line(caplog, served, as_json=True)).get("detail") == detail


def test_json_has_the_same_fields(caplog: pytest.LogCaptureFixture) -> None:
    said = json.loads(line(caplog, MISS, as_json=True))
    assert (said["status"], said["cost_usd"], said["stream"]) == (200, 0.00012, True)
    caplog.clear()
    text = line(caplog, MISS, as_json=False)
    assert [word.partition("=")[0] for word in text.split()] == list(said)


@pytest.mark.parametrize("model", ["a\nstatus=200 id=forged", 'a" b', "模型", "a b=c"])
def test_a_client_cannot_forge_a_line_or_a_field(
    caplog: pytest.LogCaptureFixture, model: str
) -> None:
    text = line(caplog, msgspec.structs.replace(MISS, model=model), as_json=False)
    assert "\n" not in text
    assert f"model={json.dumps(model)} attempts=0" in text


def test_other_observations_make_no_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headstart.access")
    AccessLog(as_json=False).notify(StageFailed(stage="store", error="OperationalError"))
    assert not caplog.records
