"""A stage that fails is logged once an hour."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from headstart.attempts import Attempt, AttemptOutcome
from headstart.embeddings.stores.memory import MemoryStore
from headstart.errors import StoreError
from headstart.middleware.observers import (
    FLUSH_S,
    MOST_CAUSES,
    QUIET_S,
    UPSTREAM_QUIET_S,
    Bookkeeper,
    FailureLog,
    Observers,
)
from headstart.observe import Committed, Observation, Served, StageFailed
from headstart.policies.routing.failures import FailureKind
from support import booked
from support.booked import served

if TYPE_CHECKING:
    from collections.abc import Sequence

FULL = StageFailed(stage="store", error="OperationalError", detail="database or disk is full")


class FailingBooks(MemoryStore):
    """A store whose first write of the books fails in a way that nobody has met."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[str, ...]] = []

    async def add_to_books(self, rows: Sequence[Served]) -> None:
        self.writes.append(tuple(row.id for row in rows))
        if len(self.writes) == 1:
            raise RuntimeError


@pytest.mark.anyio
@pytest.mark.virtual_clock
async def test_rows_are_written_in_batches_and_after_a_failure() -> None:
    store, failures = FailingBooks(), list[Observation]()

    class Watcher:
        def notify(self, observation: Observation) -> None:
            failures.append(observation)

    books = Bookkeeper(store, Observers([Watcher()]))
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(books.run())
        for ids in (("1", "2"), ("3",), ("4", "5")):
            for id in ids:
                books.notify(served(id=id))
            await asyncio.sleep(2 * FLUSH_S)
        writing.cancel()
    assert store.writes == [("1", "2"), ("3",), ("4", "5")]
    assert failures == [StageFailed(stage="books", error="RuntimeError")]


class SlowBooks(FailingBooks):
    """A store that takes a while to write to the books."""

    async def add_to_books(self, rows: Sequence[Served]) -> None:
        await asyncio.sleep(1.0)
        self.writes.append(tuple(row.id for row in rows))


@pytest.mark.anyio
@pytest.mark.virtual_clock
async def test_the_last_flush_waits_for_a_write_that_has_begun() -> None:
    store = SlowBooks()
    books = Bookkeeper(store, Observers([]))
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(books.run())
        books.notify(served(id="1"))
        await asyncio.sleep(2 * FLUSH_S)
        books.notify(served(id="2"))
        await books.flush()
        writing.cancel()
    assert store.writes == [("1",), ("2",)]


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


def test_a_store_that_fails_again_and_again_is_told_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    log = FailureLog(lambda: now[0])
    log.notify(Committed(id="1", bytes=1))
    for second in range(100):
        now[0] = float(second)
        log.notify(FULL)
        log.notify(Committed(id="1", bytes=1))
    told = [record.getMessage().partition(" failed")[0] for record in caplog.records]
    assert told == 2 * ["store", "the store takes entries again"]


def test_each_stage_that_needs_the_store_tells_what_is_wrong_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = FailureLog(lambda: 0.0)
    log.notify(StageFailed.of("books", StoreError("disk is full")))
    log.notify(StageFailed.of("encoder", RuntimeError("a text that may be a prompt")))
    told = [record.getMessage().partition(";")[0] for record in caplog.records]
    assert told == [
        "books failed, and requests go on without it: StoreError (disk is full)",
        "encoder failed, and requests go on without it: RuntimeError",
    ]


def failed(*attempts: Attempt, error: str | None = None) -> Served:
    return served(status=502, error=error, attempts=attempts)


def attempt(
    error: FailureKind | None,
    status: int = 0,
    outcome: AttemptOutcome = AttemptOutcome.FAILED,
    upstream: str = "a",
) -> Attempt:
    told = None if error is None else error.value
    return booked.attempt(outcome, upstream=upstream, status=status, error=told)


@pytest.mark.parametrize(
    ("observation", "lines"),
    [
        (failed(attempt(FailureKind.UNREACHABLE)), ["upstream a failed: unreachable"]),
        (
            failed(attempt(FailureKind.SERVER, 500)),
            ["upstream a failed: server-error (status 500)"],
        ),
        (
            failed(attempt(FailureKind.CUT, 200, AttemptOutcome.BROKEN)),
            ["upstream a failed: cut (status 200)"],
        ),
        (
            failed(attempt(FailureKind.UNAUTHORIZED, 401), attempt(FailureKind.SILENT)),
            ["upstream a failed: unauthorized (status 401)", "upstream a failed: silent"],
        ),
        (failed(attempt(FailureKind.IDLE_CLOSED), attempt(None, 200, AttemptOutcome.WON)), []),
        (
            failed(attempt(FailureKind.IDLE_CLOSED), error="upstream_unreachable"),
            ["upstream a failed: idle-closed"],
        ),
        (failed(attempt(FailureKind.BAD_REQUEST, 400)), []),
        (failed(attempt(FailureKind.CONTEXT_TOO_LONG, 400)), []),
        (failed(attempt(FailureKind.CONTENT_POLICY, 403)), []),
        (failed(attempt(FailureKind.FILTERED, 200)), []),
        (failed(attempt(None, 200, AttemptOutcome.WON)), []),
        (failed(attempt(None, 200, AttemptOutcome.LOST)), []),
        (failed(attempt(None, 200, AttemptOutcome.ABANDONED)), []),
        (
            failed(error="upstream_unavailable"),
            ["no upstream could be asked: they fail, and rest between tries"],
        ),
        (
            msgspec.structs.replace(failed(error="rate_limit_exceeded"), route="chat"),
            ["no upstream could be asked: their rate limits are used up (route chat)"],
        ),
        (failed(error="client-gone"), []),
        (failed(), []),
    ],
)
def test_the_log_line_on_an_upstream(
    observation: Observation, lines: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    FailureLog(lambda: 0.0).notify(observation)
    assert caplog.messages == lines
    assert {record.levelname for record in caplog.records} <= {"WARNING"}


def test_an_upstreams_failures_are_told_once_a_minute_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    log = FailureLog(lambda: now[0])
    down = failed(attempt(FailureKind.UNREACHABLE))
    for number in range(600):  # five a second for two minutes
        now[0] = number / 5
        log.notify(down)
    now[0] = 2 * UPSTREAM_QUIET_S
    log.notify(failed(attempt(FailureKind.UNREACHABLE, upstream="b")))
    log.notify(failed(attempt(FailureKind.SERVER, 500)))
    now[0] = 10 * UPSTREAM_QUIET_S
    log.notify(down)
    assert caplog.messages == [
        "upstream a failed: unreachable",
        "upstream a failed: unreachable; 299 more since the last message about it",
        "upstream b failed: unreachable",
        "upstream a failed: server-error (status 500)",
        "upstream a failed: unreachable; 299 more since the last message about it",
    ]


def test_the_first_answer_after_a_failure_is_told(caplog: pytest.LogCaptureFixture) -> None:
    log = FailureLog(lambda: 0.0)
    down, up = failed(attempt(FailureKind.UNREACHABLE)), attempt(None, 200, AttemptOutcome.WON)
    log.notify(failed(up))
    log.notify(down)
    log.notify(failed(attempt(None, 200, AttemptOutcome.WON, upstream="b")))
    log.notify(failed(up))
    log.notify(failed(up))
    log.notify(down)  # not told a second time within the minute
    log.notify(failed(up))
    assert caplog.messages == ["upstream a failed: unreachable", "upstream a answers again"]


def test_causes_are_bounded_in_memory() -> None:
    log = FailureLog(lambda: 0.0)
    for status in range(3 * MOST_CAUSES):
        log.notify(failed(attempt(FailureKind.SERVER, status)))
    assert len(log._causes) <= MOST_CAUSES
