from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest

from headstart.decisions import LabelSource, Rule
from headstart.embeddings.stores.memory import MemoryStore
from headstart.errors import StoreError
from headstart.middleware.learning.domains import Domains, LearnerError
from headstart.observe import Learned, StageFailed
from support.fakes import FaultyStore, Recorder
from support.learned import labels_for, make_domains, make_label
from support.patience import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headstart.policies.learned_rule.domain import Domain

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]


@asynccontextmanager
async def following(domains: Domains) -> AsyncIterator[Domains]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(domains.run)
        yield domains
        tasks.cancel_scope.cancel()


async def labelled(domain: Domain, count: int) -> None:
    await until(lambda: domain.labels >= count)


async def test_two_processes_that_share_a_store_learn_the_same() -> None:
    store = MemoryStore()
    async with following(make_domains(store)) as here, following(make_domains(store)) as there:
        one, other = await here.load("d"), await there.load("d")
        await store.add_labels(labels_for(300))
        here.wake()
        there.wake()
        await labelled(one, 300)
        await labelled(other, 300)
    assert one.snapshot() == other.snapshot()
    assert one.rule is Rule.LEARNED


async def test_a_restart_goes_on_with_the_same_threshold() -> None:
    store = MemoryStore()
    before = make_domains(store)
    domain = await before.load("d")
    await store.add_labels(labels_for(260))
    async with following(before):
        before.wake()
        await labelled(domain, 260)
    await before.aclose()
    assert await store.load_document("learned/d") is not None
    after = await make_domains(store).load("d")
    assert after.snapshot() == domain.snapshot()
    assert after.threshold() == domain.threshold()


async def test_a_killed_process_loses_nothing_that_was_labelled() -> None:
    store = MemoryStore()
    await store.add_labels(labels_for(120))
    first = make_domains(store)
    await first.load("d")
    await first.aclose()
    await store.add_labels(labels_for(240)[120:])
    again = await make_domains(store).load("d")
    straight = await make_domains(FreshFrom(store)).load("d")
    assert again.labels == 240
    assert again.snapshot() == straight.snapshot()


class FreshFrom(MemoryStore):
    """The labels of another store, without its documents."""

    def __init__(self, other: MemoryStore) -> None:
        super().__init__()
        self.read_labels = other.read_labels  # type: ignore[method-assign]


async def test_a_domain_that_left_memory_comes_back_as_it_was() -> None:
    store = MemoryStore()
    domains = make_domains(store, most=1)
    await store.add_labels(labels_for(60, "one") + labels_for(40, "two"))
    one = await domains.load("one")
    await domains.load("two")
    assert domains.names() == ("two",)
    with pytest.raises(LearnerError):
        domains.get("one")
    back = await domains.load("one")
    assert back is not one
    assert back.snapshot() == one.snapshot()


async def test_labels_of_other_domains_are_left_alone() -> None:
    store = MemoryStore()
    domains = make_domains(store)
    async with following(domains):
        mine = await domains.load("mine")
        await store.add_labels(labels_for(50, "other") + labels_for(3, "mine"))
        domains.wake()
        await labelled(mine, 3)
    assert mine.labels == 3


async def test_many_who_wait_for_a_domain_get_the_same() -> None:
    domains = make_domains(MemoryStore())
    found: list[Domain] = []

    async def load() -> None:
        found.append(await domains.load("d"))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(load)
    assert len({id(domain) for domain in found}) == 1


async def test_a_snapshot_of_another_version_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    await store.add_labels(labels_for(5))
    domains = make_domains(store)
    await domains.load("d")
    await store.save_document("learned/d", b"\x93no snapshot")
    with caplog.at_level(logging.WARNING, "headstart"):
        domain = await make_domains(store).load("d")
    assert domain.labels == 5
    assert "learning it again" in caplog.text


async def test_an_alarm_is_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    store, recorder = MemoryStore(), Recorder()
    domains = make_domains(store, recorder)
    wrong = [make_label(number, same=False, source=LabelSource.AUDIT) for number in range(40)]
    with caplog.at_level(logging.WARNING, "headstart"):
        async with following(domains):
            domain = await domains.load("d")
            await store.add_labels(wrong)
            domains.wake()
            await labelled(domain, 40)
    assert domain.status().alarm
    assert any(isinstance(seen, Learned) and seen.alarm for seen in recorder.seen)
    assert "wrong hits" in caplog.text


async def test_a_failing_store_is_told_and_asked_again() -> None:
    store, recorder = FaultyStore(), Recorder()
    domains = make_domains(store, recorder)
    async with following(domains):
        domain = await domains.load("d")
        store.failing.add("read_labels")
        domains.wake()
        await until(lambda: any(isinstance(seen, StageFailed) for seen in recorder.seen))
        with pytest.raises(StoreError):
            await domains.load("other")
        store.failing.clear()
        await store.add_labels(labels_for(2))
        await labelled(domain, 2)
