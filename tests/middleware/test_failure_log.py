"""A stage that fails is in the log, once an hour."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.middleware.failure_log import QUIET_S, FailureLog
from headstart.observe import StageFailed

if TYPE_CHECKING:
    import pytest

FULL = StageFailed(stage="store", error="OperationalError", detail="database or disk is full")


def test_a_failure_is_told_once_an_hour_and_each_by_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    log = FailureLog(lambda: now[0])
    for at in (0.0, 1.0, QUIET_S + 1.0):
        now[0] = at
        log.notify(FULL)
    log.notify(StageFailed(stage="encoder", error="RuntimeError"))
    told = [record.getMessage().partition(";")[0] for record in caplog.records]
    full = (
        "store failed, and requests go on without it: OperationalError (database or disk is full)"
    )
    assert told == [full, full, "encoder failed, and requests go on without it: RuntimeError"]
