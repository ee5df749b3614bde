"""Leases and messages of workers: the supervisor's table, and the worker's end of the channel."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import msgspec
import pytest

from headstart.cli.worker_channel import Channel
from headstart.cli.worker_exchange import (
    LEASE_S,
    LeaseTable,
    Mail,
    SupervisorLink,
    Wanted,
    WorkerExchange,
)
from headstart.embeddings.stores.memory import MemoryStore
from headstart.errors import StoreError
from headstart.types import Lease
from support.entries import entry, put
from support.patience import PATIENCE_S
from support.simulated import until
from support.stores import Clock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio


class Table:
    """A table, and a clock that only the test moves."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.leases = LeaseTable(self.clock)

    def take(self, owner: str, instead_of: int = 0, name: str = "name") -> Lease:
        wanted = msgspec.msgpack.encode(Wanted(name, owner, instead_of))
        return msgspec.msgpack.decode(self.leases.answer("lease", wanted), type=Lease)

    def tell(self, kind: str, *leases: Lease) -> None:
        assert self.leases.answer(kind, msgspec.msgpack.encode(leases)) == b""


async def test_the_first_one_has_the_lease_until_it_is_released() -> None:
    table = Table()
    lease = table.take("0:a")
    assert table.take("1:b") == lease
    table.tell("release", lease)
    later = table.take("1:b")
    assert (later.owner, later.token > lease.token) == ("1:b", True)
    table.tell("release", lease)  # it is not the owner any more
    assert table.take("0:a") == later


async def test_only_one_takes_a_lost_lease_over() -> None:
    table = Table()
    lost = table.take("0:a")
    found = [table.take(owner, lost.token) for owner in ("1:b", "2:c")]
    assert [each.owner for each in found] == ["1:b", "1:b"]


async def test_a_lease_ends_unless_it_is_renewed() -> None:
    table = Table()
    lease = table.take("0:a")
    table.clock.now += LEASE_S * 0.9
    table.tell("renew", lease)
    table.clock.now += LEASE_S * 0.9
    assert table.take("1:b") == lease
    table.clock.now += LEASE_S * 0.2
    assert table.take("1:b").owner == "1:b"
    table.tell("renew", lease)
    assert table.take("0:a").owner == "1:b"


async def test_the_leases_of_a_worker_end_with_it() -> None:
    table = Table()
    mine, other = table.take("1:a"), table.take("11:a", name="other")
    table.leases.drop(1)
    assert table.take("2:b").token > mine.token
    assert table.take("2:b", name="other") == other


class Supervisor:
    """Two workers' exchanges, and what answers them in place of a supervisor process."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.links = [SupervisorLink(), SupervisorLink()]
        self.exchanges = [
            WorkerExchange(number, self.store, link) for number, link in enumerate(self.links)
        ]
        self._leases = LeaseTable(Clock())

    async def answer(self, kind: str, payload: bytes) -> bytes:
        if kind == "send":
            return self.links[msgspec.msgpack.decode(payload, type=Mail).worker].deliver(payload)
        return self._leases.answer(kind, payload)


async def nothing(kind: str, payload: bytes) -> bytes:
    raise AssertionError


@contextlib.asynccontextmanager
async def supervised() -> AsyncIterator[Supervisor]:
    """Run the channels of both workers; they close at the end."""
    found = Supervisor()
    channels: list[Channel] = []
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        for link in found.links:
            ours, theirs = socket.socketpair()
            ends = await Channel.over(ours, found.answer), await Channel.over(theirs, nothing)
            for end in ends:
                tasks.create_task(end.run())
            channels += ends
            link.open(ends[1])
        yield found
        for channel in channels:
            channel.close()


async def received(exchange: WorkerExchange, into: list[bytes]) -> None:
    async with contextlib.aclosing(exchange.messages()) as messages:
        async for message in messages:
            into.append(message)  # noqa: PERF401 - the test looks on


async def lost(exchange: WorkerExchange) -> None:
    with pytest.raises(StoreError, match="ended"):
        await received(exchange, [])


async def test_workers_share_leases_and_messages() -> None:
    async with supervised() as found, asyncio.TaskGroup() as tasks:
        one, two = found.exchanges
        got: list[bytes] = []
        running = [tasks.create_task(received(each, got)) for each in (one, two)]
        await until(lambda: all(link.inboxes for link in found.links))
        lease = await one.find("exact-a", "name")
        assert isinstance(lease, Lease)
        assert lease.owner == one.address
        assert await two.find("exact-a", "name") == lease
        assert await two.send(one.address, b"hello")
        await until(lambda: got == [b"hello"])
        assert not await two.send("0:gone", b"hello")
        await found.store.append([put("a")])
        assert await two.find("exact-a", "name") == entry("a")
        await one.release(lease, stored=True)
        assert await two.find("exact-a", "name") == entry("a")  # and it gives the lease back
        found_by_one = await one.find("exact-b", "name")
        assert isinstance(found_by_one, Lease)
        assert found_by_one.owner == one.address
        for task in running:
            task.cancel()


async def test_a_worker_whose_supervisor_has_ended_asks_for_itself() -> None:
    async with supervised() as found, asyncio.TaskGroup() as tasks:
        one = found.exchanges[0]
        running = tasks.create_task(lost(one))
        await until(lambda: bool(found.links[0].inboxes))
        found.links[0].close()
        await running
        assert await one.find("exact-a", "name") is None
        with pytest.raises(StoreError, match="ended"):
            await one.send(found.exchanges[1].address, b"hello")
