"""A refused key is in the log, once, with the variable that holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.attempts import Attempt, AttemptOutcome, AttemptRole
from headstart.decisions import Outcome
from headstart.middleware.observers import RefusedKeys
from headstart.observe import Served

if TYPE_CHECKING:
    import pytest


def served(upstream: str, error: str | None) -> Served:
    outcome = AttemptOutcome.WON if error is None else AttemptOutcome.FAILED
    attempt = Attempt(
        upstream=upstream,
        model="m",
        role=AttemptRole.FIRST,
        outcome=outcome,
        at=0.0,
        total_s=0.1,
        error=error,
    )
    return Served(
        id="1",
        at=0.0,
        endpoint="/v1/chat/completions",
        outcome=Outcome.MISS,
        status=200,
        stream=True,
        total_s=0.1,
        attempts=(attempt,),
    )


def test_a_refusal_is_told_once_until_the_key_is_accepted(caplog: pytest.LogCaptureFixture) -> None:
    keys = RefusedKeys({"groq": "GROQ_API_KEY"})
    for error in ("unauthorized", "unauthorized", "server-error", "quota", None, "unauthorized"):
        keys.notify(served("groq", error))
    told = [record.getMessage().partition(";")[0] for record in caplog.records]
    assert told == [
        "upstream groq refuses its key (GROQ_API_KEY)",
        "upstream groq has no quota left for its key (GROQ_API_KEY)",
        "upstream groq refuses its key (GROQ_API_KEY)",
    ]


def test_a_callers_own_key_is_the_callers_affair(caplog: pytest.LogCaptureFixture) -> None:
    RefusedKeys({}).notify(served("groq", "unauthorized"))
    assert not caplog.records
