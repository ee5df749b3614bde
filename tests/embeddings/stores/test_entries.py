"""The entries that a store lists: all that have not expired, with a vector or without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headstart.types import Delete, Put
from support.entries import NOW, entry, put

if TYPE_CHECKING:
    from headstart.interfaces import Store
    from support.stores import Stores

pytestmark = pytest.mark.anyio


async def listed(store: Store, batch: int = 256) -> list[str]:
    return [entry.id async for entries in store.entries(batch) for entry in entries]


async def test_entries_come_oldest_first_in_batches(stores: Stores) -> None:
    store = await stores.open()
    await store.append([put(f"id-{number}") for number in range(5)])
    assert await listed(store, batch=2) == [f"id-{number}" for number in range(5)]


async def test_entries_without_a_vector_are_listed(stores: Stores) -> None:
    store = await stores.open()
    await store.append([Put(entry=entry("exact-only"))])
    assert await listed(store) == ["exact-only"]


async def test_expired_and_deleted_entries_are_not_listed(stores: Stores) -> None:
    store = await stores.open()
    await store.append([put("kept"), put("expired", expires=NOW + 1), put("deleted")])
    await store.append([Delete(ids=("deleted",))])
    stores.clock.now += 2
    assert await listed(store) == ["kept"]


async def test_an_empty_store_lists_nothing(stores: Stores) -> None:
    assert await listed(await stores.open()) == []
