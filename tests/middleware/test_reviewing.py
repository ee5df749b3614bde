"""Which pairs a person is asked about, and in what order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from headstart.decisions import Label, LabelSource
from headstart.embeddings.stores.memory import MemoryStore
from headstart.middleware.learning.hit_decisions import (
    MOST_SEARCHED_DOMAINS,
    Reviews,
    most_doubtful,
)
from support.administered import administered
from support.learned import make_label

if TYPE_CHECKING:
    from collections.abc import Sequence


pytestmark = pytest.mark.anyio


class CountingStore(MemoryStore):
    """Counts the labels that were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    async def read_labels(
        self, after: str = "", limit: int = 1000, *, domain: str | None = None
    ) -> Sequence[tuple[str, Label]]:
        found = await super().read_labels(after, limit, domain=domain)
        self.read += len(found)
        return found


def ids(reviews: Reviews) -> list[str]:
    return [label.id for label in reviews.unreviewed()]


async def test_labels_are_read_once() -> None:
    store, reviews = CountingStore(), Reviews()
    await store.add_labels([make_label(number) for number in range(2500)])
    await reviews.follow(store)
    await store.add_labels([make_label(2500)])
    await reviews.follow(store)
    await reviews.follow(store)
    assert store.read == 2501
    assert len(reviews.unreviewed()) == 2501


async def test_the_newest_pairs_are_kept() -> None:
    store, reviews = MemoryStore(), Reviews(most=3)
    await store.add_labels([make_label(number) for number in range(5)])
    await reviews.follow(store)
    assert ids(reviews) == ["q4", "q3", "q2"]
    assert reviews.find("q0", "e0") is None


async def test_pairs_without_two_stored_answers_are_left_out() -> None:
    store, reviews = MemoryStore(), Reviews()
    label = make_label(1)
    await store.add_labels([
        msgspec.structs.replace(label, id="a", stored=False),
        msgspec.structs.replace(label, id="b", features=b"", source=LabelSource.NULL),
        msgspec.structs.replace(label, id="c", stored=False, source=LabelSource.FEEDBACK),
    ])  # fmt: skip
    await reviews.follow(store)
    assert ids(reviews) == []


async def test_a_pair_that_was_reviewed_elsewhere_is_not_open() -> None:
    store, reviews = MemoryStore(), Reviews()
    await store.add_labels([make_label(1), make_label(2), make_label(1, source=LabelSource.REVIEW)])
    await reviews.follow(store)
    assert ids(reviews) == ["q2"]
    assert reviews.find("q1", "e1") is not None


async def test_a_pair_whose_answer_is_gone_is_forgotten() -> None:
    store, reviews = MemoryStore(), Reviews()
    await store.add_labels([make_label(1), make_label(2)])
    await reviews.follow(store)
    reviews.drop(make_label(1))
    assert ids(reviews) == ["q2"]
    assert reviews.find("q1", "e1") is None


async def test_another_store_is_read_from_its_beginning() -> None:
    reviews = Reviews()
    for number in (1, 2):
        store = MemoryStore()
        await store.add_labels([make_label(number)])
        await reviews.follow(store)
        assert ids(reviews) == [f"q{number}"]


async def test_the_nearest_to_a_decision_come_first_and_the_unsure_before_all() -> None:
    async with administered() as running:
        far, near = make_label(1, closeness=-9.0), make_label(2, closeness=1.3)
        unsure, strange = make_label(3, same=None, closeness=9.0), make_label(4)
        strange = msgspec.structs.replace(strange, version="other")
        found = await most_doubtful([strange, far, unsure, near], running.hit_decider)
    assert [doubt.label.id for doubt in found] == ["q3", "q2", "q1"]
    assert found[1].score > found[2].score


async def test_only_so_many_domains_are_brought_into_memory() -> None:
    async with administered() as running:
        labels = [
            make_label(number, domain=str(number)) for number in range(MOST_SEARCHED_DOMAINS + 5)
        ]
        found = await most_doubtful(labels, running.hit_decider)
        assert len(running.hit_decider.learner.domains) == MOST_SEARCHED_DOMAINS
    assert {doubt.label.domain for doubt in found} == {
        str(each) for each in range(MOST_SEARCHED_DOMAINS)
    }
