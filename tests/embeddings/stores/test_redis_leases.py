"""Leases of calls in Redis, and the writes that they guard."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import msgspec
import pytest

from headstart.embeddings.stores import redis as redis_store
from headstart.embeddings.stores.redis import RedisExchange, RedisStore
from headstart.errors import StoreError
from headstart.types import Delete, Entry, Lease
from support.entries import entry, put
from support.patience import PATIENCE_S, until
from support.redis_server import RedisServer, redis_server
from support.stores import Stores, follow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headstart.interfaces import Store

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Store]:
    async with AsyncExitStack() as exits:
        yield await Stores(redis_url, exits).open()


@pytest.fixture
async def plain(redis: RedisServer) -> AsyncIterator[Store]:
    """A store in a server of the simplest kind."""
    redis.flush()
    async with AsyncExitStack() as exits:
        yield await Stores(redis.url, exits).open()


class Listening:
    """An exchange, and the messages that it got."""

    def __init__(self, exchange: RedisExchange) -> None:
        self.exchange = exchange
        self.got: list[bytes] = []

    async def run(self) -> None:
        async with contextlib.aclosing(self.exchange.messages()) as messages:
            async for message in messages:
                self.got.append(message)


@contextlib.asynccontextmanager
async def exchanges(store: Store, count: int = 2) -> AsyncIterator[list[Listening]]:
    assert isinstance(store, RedisStore)
    found = [Listening(store.exchange()) for _ in range(count)]
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each.run()) for each in found]
        for each in found:
            while not await each.exchange.send(each.exchange.address, b"are you there?"):
                await asyncio.sleep(0.001)
            await until(lambda each=each: each.got)  # type: ignore[misc]
            each.got.clear()
        yield found
        for task in running:
            task.cancel()


async def taken(listening: Listening, instead_of: int = 0) -> Lease:
    found = await listening.exchange.find("exact-a", "name", instead_of)
    assert isinstance(found, Lease)
    return found


async def released(listening: Listening, lease: Lease) -> None:
    ending = listening.exchange.release(lease, stored=False)
    assert ending is not None
    await ending


async def test_the_first_one_has_the_lease_until_it_is_released(store: Store) -> None:
    async with exchanges(store) as (one, two):
        lease = await taken(one)
        assert lease.owner == one.exchange.address
        assert await taken(two) == lease
        await released(one, lease)
        later = await taken(two)
        assert later.owner == two.exchange.address
        assert later.token > lease.token
        await released(one, lease)  # it is not the owner any more
        assert await taken(one) == later


async def test_only_one_takes_a_lost_lease_over(store: Store) -> None:
    async with exchanges(store, 3) as (lost, one, two):
        lease = await taken(lost)
        found = [await taken(each, lease.token) for each in (one, two)]
        assert found[0] == found[1]
        assert found[0].owner == one.exchange.address
        assert found[0].token > lease.token


async def test_a_lease_ends_unless_it_is_renewed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "LEASE_MS", 500)  # a busy machine renews in this time
    async with exchanges(store) as (one, two):
        lease = await taken(one)
        monkeypatch.setattr(redis_store, "LEASE_MS", 60_000)
        await one.exchange.renew([lease])
        await asyncio.sleep(0.6)
        assert await taken(two) == lease
        monkeypatch.setattr(redis_store, "LEASE_MS", 20)
        await one.exchange.renew([lease])
        while (await taken(two)).owner != two.exchange.address:
            await asyncio.sleep(0.005)


async def test_an_entry_comes_before_any_lease(store: Store) -> None:
    async with exchanges(store) as (one, _):
        await store.append([put("a")])
        assert await one.exchange.find("exact-a", "name") == entry("a")
        assert isinstance(await one.exchange.find("exact-b", "name"), Lease)


async def test_a_process_that_gets_no_messages_gets_no_lease(store: Store) -> None:
    assert isinstance(store, RedisStore)
    async with exchanges(store) as (one, _):
        lease = await taken(one)
        deaf = store.exchange()
        assert await deaf.find("exact-a", "name") is None
        assert await taken(one) == lease


async def test_messages_arrive_in_order_and_nobody_is_nobody(store: Store) -> None:
    async with exchanges(store) as (one, two):
        for number in range(100):
            assert await one.exchange.send(two.exchange.address, b"%d" % number)
        await until(lambda: len(two.got) == 100)
        assert two.got == [b"%d" % number for number in range(100)]
        assert not await one.exchange.send("nobody", b"hello")


async def test_an_answer_ends_its_lease(store: Store) -> None:
    async with exchanges(store) as (one, two):
        lease = await taken(one)
        await store.append([msgspec.structs.replace(put("a"), lease=lease)])
        assert await two.exchange.find("exact-a", "name") == entry("a")
        await store.append([Delete(ids=("a",))])
        assert (await taken(two)).owner == two.exchange.address


async def test_an_owner_that_lost_its_lease_writes_nothing(store: Store) -> None:
    async with exchanges(store) as (slow, fast):
        old = await taken(slow)
        new = await taken(fast, old.token)
        cursor = await store.cursor()
        late = msgspec.structs.replace(put("late", exact="exact-a"), lease=old)
        await store.append([late])  # while the new owner asks
        assert await store.find("exact-a") is None
        await store.append([msgspec.structs.replace(put("a"), lease=new)])
        await store.append([late])  # and when it has written
        assert isinstance(found := await store.find("exact-a"), Entry)
        assert found.id == "a"
        records = [logged.record for logged in await follow(store, cursor, 3)]
        assert [r.ids if isinstance(r, Delete) else r.id for r in records] == [
            ("late",), "a", ("late",),
        ]  # fmt: skip


async def test_tokens_grow_when_redis_was_emptied(plain: Store, redis: RedisServer) -> None:
    async with exchanges(plain) as (one, _):
        lease = await taken(one)
        redis.flush()
        assert (await taken(one)).token > lease.token


async def test_a_server_without_room_gives_entries_and_no_leases(
    plain: Store, redis: RedisServer
) -> None:
    async with exchanges(plain) as (one, _):
        await plain.append([put("a")])
        with contextlib.closing(redis.client()) as client:
            client.config_set("maxmemory", 1)
            try:
                assert await one.exchange.find("exact-a", "name") == entry("a")
                assert await one.exchange.find("exact-b", "name") is None
            finally:
                client.config_set("maxmemory", 0)


async def test_messages_end_with_an_error_when_the_server_dies() -> None:
    with redis_server() as server:
        async with AsyncExitStack() as exits:
            store = await Stores(server.url, exits).open()
            assert isinstance(store, RedisStore)
            listening = Listening(store.exchange())
            async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
                running = tasks.create_task(swallowed(listening.run()))
                while not await listening.exchange.send(listening.exchange.address, b"hello"):
                    await asyncio.sleep(0.001)
                server.kill()
                await running


async def swallowed(running: object) -> None:
    with pytest.raises(StoreError):
        await running  # type: ignore[misc]
