"""Documents that all processes of a Redis change: ``SwapStore``."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from headstart.embeddings.stores.redis import PREFIX, RedisStore
from headstart.interfaces import SwapStore

if TYPE_CHECKING:
    from support.stores import Stores

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(stores: Stores) -> SwapStore:
    opened = await stores.open()
    if not isinstance(opened, SwapStore):
        pytest.skip("only stores that nodes share have such documents")
    return opened


async def test_a_document_is_replaced_by_who_has_seen_its_last_version(store: SwapStore) -> None:
    assert (await store.swap("a", 0, b"", 60.0)).version == 0
    first = await store.swap("a", 0, b"one", 60.0)
    assert (first.written, first.version, first.value) == (True, 1, b"one")
    late = await store.swap("a", 0, b"two", 60.0)
    assert (late.written, late.version, late.value) == (False, 1, b"one")
    again = await store.swap("a", 1, b"two", 60.0)
    assert (again.written, again.version) == (True, 2)
    read = await store.swap("a", 0, b"", 60.0)
    assert (read.written, read.version, read.value) == (False, 2, b"two")


async def test_a_swap_tells_the_time_of_the_store(store: SwapStore) -> None:
    before = await store.swap("a", 0, b"", 60.0)
    after = await store.swap("a", 0, b"", 60.0)
    assert before.now <= after.now
    assert abs(after.now - time.time()) < 60.0  # noqa: TID251 - the server's clock


@pytest.mark.parametrize("version", ["9" * 30, "1.5", "-1", "a text"])
async def test_a_damaged_version_is_written_anew(version: str, store: SwapStore) -> None:
    assert isinstance(store, RedisStore)
    await store.swap("a", 0, b"one", 60.0)
    await store._client.hset(f"{PREFIX}swapped:a", "version", version)
    seen = await store.swap("a", 1, b"two", 60.0)
    assert not seen.written
    assert (await store.swap("a", seen.version, b"two", 60.0)).written


async def test_the_time_goes_on_although_an_earlier_server_was_ahead(store: SwapStore) -> None:
    assert isinstance(store, RedisStore)
    await store._client.xadd(f"{PREFIX}clock", {"time": ""}, id="99999999999999-0")
    found = await store.swap("a", 0, b"", 60.0)
    assert abs(found.now - time.time()) < 60.0  # noqa: TID251 - the server's clock


async def test_bytes_stay_as_they_are(store: SwapStore) -> None:
    value = bytes(range(256))
    await store.swap("b", 0, value, 60.0)
    assert (await store.swap("b", 0, b"", 60.0)).value == value


async def test_each_of_several_writes_at_once_has_seen_the_one_before(stores: Stores) -> None:
    first, second = await stores.open(), await stores.open()
    if not isinstance(first, SwapStore) or not isinstance(second, SwapStore):
        pytest.skip("only stores that nodes share have such documents")

    async def count(store: SwapStore) -> None:
        version, value = 0, b""
        for _ in range(25):
            while True:
                number = int(value or b"0") + 1
                found = await store.swap("count", version, b"%d" % number, 60.0)
                version, value = found.version, found.value
                if found.written:
                    break

    async with asyncio.TaskGroup() as tasks:
        for store in (first, second):
            for _ in range(3):
                tasks.create_task(count(store))
    assert (await first.swap("count", 0, b"", 60.0)).value == b"150"


async def test_a_document_that_nobody_replaces_is_gone_after_its_time(store: SwapStore) -> None:
    await store.swap("short", 0, b"x", 0.05)
    await asyncio.sleep(0.2)
    assert (await store.swap("short", 0, b"", 60.0)).version == 0
