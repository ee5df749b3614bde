"""Learning while labels, snapshots, stores and evictions fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import msgspec
import pytest

from headstart.embeddings.stores.memory import MemoryStore
from headstart.middleware.learning import domains as domains_module
from headstart.middleware.learning.domains import SavedDomain
from headstart.observe import StageFailed
from headstart.policies.learned_rule.domain import Domain
from headstart.policies.learned_rule.features import VERSION
from support.fakes import FaultyStore, Recorder
from support.learned import ERROR_LIMIT, failed, labels_for, make_domains, make_label, running
from support.patience import until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.decisions import Label

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]


async def learned(domain: Domain, count: int) -> None:
    await until(lambda: domain.labels >= count)


# --- labels and snapshots that cannot be read -----------------------------------------------------


async def test_a_snapshot_that_an_upgrade_cannot_read_is_learned_again_from_the_labels() -> None:
    store = MemoryStore()
    await store.add_labels(labels_for(5))
    old = Domain(ERROR_LIMIT, version="of last year").snapshot()
    await store.save_document(
        "learned/d", msgspec.msgpack.encode(SavedDomain(cursor="", snapshot=old))
    )
    domain = await make_domains(store).load("d")
    assert (domain.version, domain.labels) == (VERSION, 5)


@pytest.mark.parametrize("features", [b"", b"\x00" * 7, b"\x00" * 400])
async def test_a_label_that_teaches_nothing_is_passed_over_by_all(features: bytes) -> None:
    store, recorder = MemoryStore(), Recorder()
    domains = make_domains(store, recorder)
    async with running(domains):
        follower = await domains.load("d")
        await store.add_labels([msgspec.structs.replace(make_label(0), features=features)])
        await store.add_labels(labels_for(60))
        domains.wake()
        await failed(recorder, "ValueError")
        await learned(follower, 60)
    latecomer = await make_domains(store).load("d")
    assert latecomer.snapshot() == follower.snapshot()


async def test_learning_goes_on_after_an_error_that_no_store_should_raise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(domains_module, "RETRY_S", 0.0)
    store, recorder = Surprising(), Recorder()
    domains = make_domains(store, recorder)
    async with running(domains):
        domain = await domains.load("d")
        store.surprising = True
        await failed(recorder, "LookupError")
        store.surprising = False
        await store.add_labels(labels_for(3))
        await learned(domain, 3)


class Surprising(MemoryStore):
    """A third party's store with a bug."""

    surprising = False

    async def read_labels(
        self, after: str = "", limit: int = 1000, *, domain: str | None = None
    ) -> Sequence[tuple[str, Label]]:
        if self.surprising:
            raise LookupError("a bug")
        return await super().read_labels(after, limit, domain=domain)


# --- a store that fails ---------------------------------------------------------------------------


async def test_a_store_that_takes_no_documents_does_not_fill_the_memory() -> None:
    store, recorder = FaultyStore(), Recorder()
    domains = make_domains(store, recorder, most=2)
    store.failing = {"save_document"}
    for name in "abcde":
        await store.add_labels(labels_for(3, name))
        assert (await domains.load(name)).labels == 3
    assert domains.names() == ("d", "e")
    told = StageFailed(stage="learner", error="StoreError", detail="save_document failed")
    assert told in recorder.seen
    assert (await domains.load("a")).labels == 3


async def test_domains_that_learned_much_leave_memory_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(domains_module, "MOST_LABELS", 50)
    store = MemoryStore()
    domains = make_domains(store)
    for name in "abc":
        await store.add_labels(labels_for(20, name))
        await domains.load(name)
    assert domains.names() == ("b", "c")
    await store.add_labels(labels_for(60, "much"))
    assert (await domains.load("much")).labels == 60
    assert domains.names() == ("much",)


@pytest.mark.parametrize("method", ["load_document", "read_labels"])
async def test_a_domain_that_could_not_be_loaded_is_loaded_once_the_store_is_back(
    method: str,
) -> None:
    store = FaultyStore()
    domains = make_domains(store)
    await store.add_labels(labels_for(4))
    store.failing = {method}
    with pytest.raises(Exception, match=f"{method} failed"):
        await domains.load("d")
    assert len(domains) == 0
    store.failing = set()
    assert (await domains.load("d")).labels == 4


async def test_a_state_that_could_not_be_saved_is_saved_later() -> None:
    store = FaultyStore()
    domains = make_domains(store, Recorder())
    await store.add_labels(labels_for(4))
    domain = await domains.load("d")
    store.failing = {"save_document"}
    await domains.aclose()
    assert await store.load_document("learned/d") is None
    store.failing = set()
    await domains.aclose()
    kept = await store.load_document("learned/d")
    assert kept is not None
    assert msgspec.msgpack.decode(kept, type=SavedDomain).snapshot == domain.snapshot()


# --- a store that is slow -------------------------------------------------------------------------


class Slow(MemoryStore):
    """A store whose documents wait for ``turn``."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = anyio.Event()
        self.waiting = anyio.Event()

    async def _wait(self) -> None:
        self.waiting.set()
        await self.turn.wait()

    async def load_document(self, name: str) -> bytes | None:
        await self._wait()
        return await super().load_document(name)


class SlowKeeping(Slow):
    """A store that is slow to keep what it is given."""

    async def save_document(self, name: str, value: bytes) -> None:
        await self._wait()
        await super().save_document(name, value)

    async def load_document(self, name: str) -> bytes | None:
        return await MemoryStore.load_document(self, name)


async def test_a_request_that_leaves_while_it_loads_a_domain_leaves_it_to_the_next() -> None:
    store = Slow()
    await store.add_labels(labels_for(3))
    domains = make_domains(store)
    found: list[Domain] = []

    async def load() -> None:
        found.append(await domains.load("d"))

    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as first:
            tasks.start_soon(load)  # waits for the one below
            async with anyio.create_task_group() as leaving:
                leaving.start_soon(domains.load, "d")
                await store.waiting.wait()
                first.cancel()
        store.turn.set()
    assert [domain.labels for domain in found] == [3]


async def test_a_domain_that_is_asked_for_while_it_leaves_stays() -> None:
    store = SlowKeeping()
    await store.add_labels(labels_for(3, "old") + labels_for(3, "middle") + labels_for(3, "new"))
    domains = make_domains(store, most=2)
    old = await domains.load("old")
    await domains.load("middle")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(domains.load, "new")
        await store.waiting.wait()
        assert await domains.load("old") is old
        store.turn.set()
    assert domains.get("old") is old
    assert set(domains.names()) == {"new", "old"}


async def test_a_long_past_is_learned_in_turns() -> None:
    store = MemoryStore()
    await store.add_labels(labels_for(400))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        await make_domains(store).load("d")
        tasks.cancel_scope.cancel()
    assert turns >= 400 / domains_module.LABELS_PER_TURN
