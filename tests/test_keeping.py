"""The learned state is kept in the store from one run to the next."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from headstart.embeddings.stores.memory import MemoryStore
from headstart.embeddings.stores.store_urls import open_store
from headstart.errors import StoreError
from headstart.factory.context import BuildContext, persist
from headstart.factory.upstreams import MEASURES_NAME, open_states
from headstart.middleware.concurrency import Supervisor
from headstart.middleware.observers import Observers
from headstart.observe import Observation, StageFailed
from headstart.policies.routing.measures import UpstreamModel
from headstart.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from headstart.interfaces import Store

pytestmark = pytest.mark.anyio

KEY = UpstreamModel("sim", "m")


class Recorder:
    def __init__(self) -> None:
        self.seen: list[Observation] = []

    def notify(self, observation: Observation) -> None:
        self.seen.append(observation)


class UnkeepingStore(MemoryStore):
    """Keeps no documents."""

    async def save_document(self, name: str, value: bytes) -> None:
        raise StoreError("the disk is full")

    async def load_document(self, name: str) -> bytes | None:
        raise StoreError("the disk is gone")


class ClosingStore(MemoryStore):
    """Notes when it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = asyncio.Event()

    async def aclose(self) -> None:
        self.closed.set()
        await super().aclose()


@asynccontextmanager
async def a_run(store: Store, recorder: Recorder | None = None) -> AsyncIterator[BuildContext]:
    """The life of a server that has opened nothing yet."""
    async with AsyncExitStack() as stack:
        supervisor = Supervisor()
        stack.push_async_callback(supervisor.aclose)
        await store.open()
        stack.push_async_callback(store.aclose)
        observers = Observers([recorder] if recorder is not None else [])
        yield BuildContext(Settings(), store, observers, supervisor, stack)


async def test_measures_outlive_a_restart(tmp_path: Path) -> None:
    url, now = f"sqlite:///{tmp_path / 'kept.db'}", asyncio.get_running_loop().time()
    async with a_run(open_store(url)) as site:
        measures = (await open_states(site)).measures
        assert measures.first_token(KEY, 100, now).samples == 0
        for _ in range(20):
            measures.first(KEY, 100, 0.25, now)
        measured = measures.first_token(KEY, 100, now).samples
    async with a_run(open_store(url)) as site:
        measures = (await open_states(site)).measures
        assert measures.first_token(KEY, 100, now).samples == measured > 0
        assert measures.first_token(KEY, 100, now).mean_s == pytest.approx(0.25, rel=0.05)


async def test_an_unreadable_state_is_begun_anew() -> None:
    store = MemoryStore()
    await store.save_document(MEASURES_NAME, b"of another version")
    async with a_run(store) as site:
        assert (await open_states(site)).items() == ()
    assert await store.load_document(MEASURES_NAME) != b"of another version"


async def test_a_store_that_fails_costs_what_was_learned_and_no_server() -> None:
    recorder = Recorder()
    async with a_run(UnkeepingStore(), recorder) as site:
        states = await open_states(site)
        states.measures.first(KEY, 100, 0.25, asyncio.get_running_loop().time())
        assert recorder.seen == []
    failure = StageFailed(stage="measures", error="StoreError", detail="the disk is full")
    assert recorder.seen == [failure]


async def test_the_state_is_saved_while_the_server_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headstart.factory.context.SAVE_S", 0.001)
    kept = asyncio.Event()

    class Store(MemoryStore):
        async def save_document(self, name: str, value: bytes) -> None:
            await super().save_document(name, value)
            kept.set()

    loaded: list[bytes] = []
    async with a_run(store := Store()) as site:
        await persist(site, "name", "stage", saved=lambda: b"value", load=loaded.append)
        await kept.wait()
        assert await store.load_document("name") == b"value"
    assert loaded == []


async def test_background_work_ends_before_what_it_uses_is_closed() -> None:
    store = ClosingStore()
    open_at_end: list[bool] = []

    async def use() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):  # as a task group that waits for its tasks
                await asyncio.sleep(0)
            open_at_end.append(not store.closed.is_set())

    async with a_run(store) as build:
        build.run(use)
        await asyncio.sleep(0)
    assert open_at_end == [True]
    assert store.closed.is_set()
