"""The certificates of hand-made audits: weeks, domains, both definitions of the error."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import pytest

from headstart.decisions import Label, LabelSource, Outcome, Rule
from headstart.embeddings.stores.memory import MemoryStore
from headstart.middleware.learning.certificates import audit_report
from headstart.policies.learned_rule.error_limit import ErrorLimit
from headstart.policies.learned_rule.threshold import audits_needed, upper_bound
from support.booked import served
from support.learned import make_label

if TYPE_CHECKING:
    from headstart.observe import Served

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]

ERROR_LIMIT = ErrorLimit(max_error=0.02)
SUNDAY = datetime(2026, 1, 4, 23, 59, 59, tzinfo=UTC).timestamp()
MONDAY = SUNDAY + 1


def audits(
    right: int, wrong: int = 0, unsure: int = 0, *, at: float = MONDAY, domain: str = "d"
) -> list[Label]:
    words = [True] * right + [False] * wrong + [None] * unsure
    return [
        make_label(number, source=LabelSource.AUDIT, same=same, at=at, domain=domain)
        for number, same in enumerate(words)
    ]


def rows(outcome: Outcome, count: int, *, at: float = MONDAY, domain: str = "d") -> list[Served]:
    return [
        served(outcome, id=f"{outcome}-{number}", at=at, domain=domain) for number in range(count)
    ]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


async def test_an_empty_store_proves_nothing(store: MemoryStore) -> None:
    report = await audit_report(store, ERROR_LIMIT)
    assert (report.certificates, report.wrong_hits) == ([], [])
    assert "95 % confidence" in report.words


async def test_hits_that_the_promise_does_not_cover_are_counted_apart(store: MemoryStore) -> None:
    hits = rows(Outcome.SEMANTIC, 5)
    cold = [msgspec.structs.replace(hit, rule=Rule.COLD_START) for hit in hits[:2]]
    learned = [msgspec.structs.replace(hit, rule=Rule.LEARNED) for hit in hits[2:]]
    misses = rows(Outcome.MISS, 3)
    refused = [msgspec.structs.replace(miss, rule=Rule.COLD_START) for miss in misses]
    await store.add_to_books([*cold, *learned, *refused])
    (row,) = (await audit_report(store, ERROR_LIMIT)).certificates
    assert (row.hits, row.cold_start_hits) == (5, 2)


async def test_requests_without_a_semantic_hit_need_no_certificate(store: MemoryStore) -> None:
    await store.add_to_books(rows(Outcome.MISS, 5) + rows(Outcome.EXACT, 5))
    assert (await audit_report(store, ERROR_LIMIT)).certificates == []


async def test_hits_without_an_audit_have_no_error_rate_and_the_widest_bound(
    store: MemoryStore,
) -> None:
    await store.add_to_books(rows(Outcome.SEMANTIC, 4) + rows(Outcome.MISS, 12))
    (row,) = (await audit_report(store, ERROR_LIMIT)).certificates
    assert (row.requests, row.hits, row.audits) == (16, 4, 0)
    assert (row.wrong_per_hit, row.wrong_per_request) == (None, None)
    assert (row.bound_per_hit, row.bound_per_request) == (1.0, 0.25)
    assert not row.certified
    assert row.more_audits == audits_needed(0, 0, 0.02)


async def test_audits_without_a_hit_tell_of_hits_alone(store: MemoryStore) -> None:
    """Shadow mode audits what it would have served; nothing was."""
    await store.add_labels(audits(40))
    await store.add_to_books(rows(Outcome.MISS, 40))
    (row,) = (await audit_report(store, ERROR_LIMIT)).certificates
    assert (row.wrong_per_hit, row.wrong_per_request, row.bound_per_request) == (0.0, 0.0, 0.0)
    assert row.bound_per_hit == pytest.approx(upper_bound(40, 0))


async def test_both_definitions_of_the_error_are_shown(store: MemoryStore) -> None:
    await store.add_labels(audits(right=18, wrong=2))
    await store.add_to_books(
        rows(Outcome.SEMANTIC, 25) + rows(Outcome.MISS, 75) + rows(Outcome.AUDIT, 20)
    )
    (row,) = (await audit_report(store, ERROR_LIMIT)).certificates
    assert (row.requests, row.hits, row.audits, row.wrong) == (100, 25, 20, 2)
    assert row.wrong_per_hit == pytest.approx(0.1)
    assert row.wrong_per_request == pytest.approx(0.025)
    assert row.bound_per_hit == pytest.approx(upper_bound(20, 2))
    assert row.bound_per_request == pytest.approx(upper_bound(20, 2) / 4)
    assert row.more_audits is None


async def test_unsure_judgements_count_neither_way(store: MemoryStore) -> None:
    await store.add_labels(audits(right=10, unsure=7))
    (row,) = (await audit_report(store, ERROR_LIMIT)).certificates
    assert (row.audits, row.unsure, row.wrong) == (10, 7, 0)
    assert row.more_audits == audits_needed(10, 0, 0.02)


async def test_labels_of_other_sources_prove_nothing(store: MemoryStore) -> None:
    for source in set(LabelSource) - {LabelSource.AUDIT}:
        await store.add_labels([make_label(1, source=source, same=False, at=MONDAY)])
    report = await audit_report(store, ERROR_LIMIT)
    assert (report.certificates, report.wrong_hits) == ([], [])


async def test_enough_right_audits_certify(store: MemoryStore) -> None:
    enough = audits_needed(0, 0, 0.02)
    assert enough is not None
    await store.add_labels(audits(enough, domain="enough") + audits(enough - 1, domain="one less"))
    found = {row.domain: row for row in (await audit_report(store, ERROR_LIMIT)).certificates}
    assert (found["enough"].certified, found["enough"].more_audits) == (True, 0)
    assert (found["one less"].certified, found["one less"].more_audits) == (False, 1)


async def test_a_promise_of_requests_is_certified_by_fewer_audits(store: MemoryStore) -> None:
    await store.add_labels(audits(60))
    await store.add_to_books(rows(Outcome.SEMANTIC, 10) + rows(Outcome.MISS, 90))
    (of_hits,) = (await audit_report(store, ERROR_LIMIT)).certificates
    error_limit = ErrorLimit(max_error=0.02, error_of="requests")
    report = await audit_report(store, error_limit)
    assert report.error_of == "requests"
    assert not of_hits.certified
    assert report.certificates[0].certified


async def test_weeks_begin_on_monday_in_utc_and_domains_stay_apart(store: MemoryStore) -> None:
    await store.add_labels(
        audits(3, at=SUNDAY) + audits(2, at=MONDAY) + audits(1, at=MONDAY, domain="b")
    )
    await store.add_to_books(rows(Outcome.SEMANTIC, 9, at=SUNDAY))
    found = (await audit_report(store, ERROR_LIMIT)).certificates
    assert [(row.week, row.domain, row.audits, row.hits) for row in found] == [
        ("2026-W01", "d", 3, 9), ("2026-W02", "b", 1, 0), ("2026-W02", "d", 2, 0),
    ]  # fmt: skip


async def test_since_leaves_older_labels_and_rows_out(store: MemoryStore) -> None:
    await store.add_labels(audits(3, 1, at=SUNDAY) + audits(2, 1, at=MONDAY))
    await store.add_to_books(rows(Outcome.SEMANTIC, 9, at=SUNDAY) + rows(Outcome.SEMANTIC, 5))
    report = await audit_report(store, ERROR_LIMIT, since=MONDAY)
    (row,) = report.certificates
    assert (row.audits, row.hits) == (3, 5)
    (wrong,) = report.wrong_hits
    assert (wrong.request, wrong.entry, wrong.at) == ("q2", "e2", MONDAY)
