"""A refused key is logged once, with the name of the variable that holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.attempts import AttemptOutcome
from headstart.middleware.observers import RefusedKeys
from support.booked import attempt, served

if TYPE_CHECKING:
    import pytest

    from headstart.observe import Served


def answered(upstream: str, error: str | None) -> Served:
    outcome = AttemptOutcome.WON if error is None else AttemptOutcome.FAILED
    return served(attempts=(attempt(outcome, upstream=upstream, error=error),))


def test_a_refusal_is_told_once_until_the_key_is_accepted(caplog: pytest.LogCaptureFixture) -> None:
    keys = RefusedKeys({"groq": "GROQ_API_KEY"})
    for error in ("unauthorized", "unauthorized", "server-error", "quota", None, "unauthorized"):
        keys.notify(answered("groq", error))
    told = [record.getMessage().partition(";")[0] for record in caplog.records]
    assert told == [
        "upstream groq refuses its key (GROQ_API_KEY)",
        "upstream groq has no quota left for its key (GROQ_API_KEY)",
        "upstream groq refuses its key (GROQ_API_KEY)",
    ]


def test_a_callers_own_key_is_the_callers_affair(caplog: pytest.LogCaptureFixture) -> None:
    RefusedKeys({}).notify(answered("groq", "unauthorized"))
    assert not caplog.records
