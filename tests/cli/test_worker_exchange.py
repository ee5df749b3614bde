"""Leases and messages of workers: the shared table, and the worker's end of the channel."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
import sys
import tempfile
import time
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec
import pytest

from headstart.cli.worker_channel import (
    BUCKET,
    BUCKETS,
    LEASE_S,
    LEASES_BYTES,
    Channel,
    ExchangeMessage,
    LeaseTable,
    ParentLink,
    WorkerExchange,
)
from headstart.embeddings.stores.memory import MemoryStore
from headstart.errors import StoreError
from headstart.types import Lease
from support.entries import entry, put
from support.patience import PATIENCE_S, until
from support.stores import Clock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@contextlib.contextmanager
def memory() -> Iterator[int]:
    """Yield an open file that is large enough for leases."""
    with tempfile.TemporaryFile() as file:
        file.truncate(LEASES_BYTES)
        yield file.fileno()


@pytest.fixture
def table() -> Iterator[LeaseTable]:
    """A table whose clock only the test moves."""
    with memory() as file:
        yield LeaseTable(file, 0, Clock())


def named(call: object) -> str:
    """Return the name of a call's lease."""
    return blake2b(str(call).encode(), digest_size=20).hexdigest()


NAME, OTHER = named("a call"), named("another call")


def take(table: LeaseTable, owner: str, instead_of: int = 0, name: str = NAME) -> Lease:
    lease = table.take(name, owner, instead_of)
    assert lease is not None
    return lease


def test_the_first_one_has_the_lease_until_it_is_released(table: LeaseTable) -> None:
    lease = take(table, "0:a")
    assert take(table, "1:b") == lease
    table.release(lease)
    later = take(table, "1:b")
    assert (later.owner, later.token > lease.token) == ("1:b", True)
    table.release(lease)  # it is not the owner any more
    assert take(table, "0:a") == later


def test_only_one_takes_a_lost_lease_over(table: LeaseTable) -> None:
    lost = take(table, "0:a")
    found = [take(table, owner, lost.token) for owner in ("1:b", "2:c")]
    assert [each.owner for each in found] == ["1:b", "1:b"]


def test_a_lease_ends_unless_it_is_renewed() -> None:
    with memory() as file:
        clock = Clock()
        table = LeaseTable(file, 0, clock)
        lease = take(table, "0:a")
        clock.now += LEASE_S * 0.9
        table.renew((lease,))
        clock.now += LEASE_S * 0.9
        assert take(table, "1:b") == lease
        clock.now += LEASE_S * 0.2
        assert take(table, "1:b").owner == "1:b"
        table.renew((lease,))
        assert take(table, "0:a").owner == "1:b"


def test_the_leases_of_a_worker_end_with_it(table: LeaseTable) -> None:
    mine, other = take(table, "1:a"), take(table, "11:a", name=OTHER)
    table.drop(1)
    assert take(table, "2:b").token > mine.token
    assert take(table, "2:b", name=OTHER) == other


def test_a_full_table_gives_no_lease_and_room_comes_back(table: LeaseTable) -> None:
    places = BUCKET * BUCKETS
    held = [table.take(named(i), "0:a") for i in range(places * 4)]
    had = [each for each in held if each is not None]
    assert places * 0.9 < len(had) <= places
    refused = next(named(i) for i, each in enumerate(held) if each is None)
    for each in had:
        table.release(each)
    assert take(table, "1:b", name=refused).owner == "1:b"


def test_a_lease_has_one_owner_whatever_processes_take_it() -> None:
    """Real processes take and release the same few leases: two never have one at a time."""
    with memory() as file:
        code = "import sys; from cli.test_worker_exchange import contend; contend(*sys.argv[1:])"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        running = [
            subprocess.Popen(
                [sys.executable, "-c", code, str(file), f"{worker}:x"],
                env=environment,
                pass_fds=(file,),
                stdout=subprocess.PIPE,
            )
            for worker in range(3)
        ]
        periods = [
            (float(line.split()[1]), float(line.split()[2]), line.split()[0])
            for each in running
            for line in each.communicate(timeout=PATIENCE_S)[0].decode().splitlines()
        ]
        assert [each.returncode for each in running] == [0, 0, 0]
    assert len(periods) == 3 * CONTESTS
    for name in {period[2] for period in periods}:
        own = sorted(period for period in periods if period[2] == name)
        for (_, end, _), (begin, _, _) in itertools.pairwise(own):
            assert end <= begin


CONTESTS = 300


def contend(file: str, owner: str) -> None:
    """Take and release leases; print when each was held (in one of the processes above)."""
    table = LeaseTable(int(file), 0, time.monotonic)
    had = 0
    while had < CONTESTS:
        name = named(had % 3)
        lease = table.take(name, owner)
        if lease is not None and lease.owner == owner:
            begin = time.monotonic()
            time.sleep(0.0001)
            print(name, begin, time.monotonic())  # noqa: T201 - read by the test
            table.release(lease)
            had += 1


class ParentProcess:
    """Two workers' exchanges, and what answers them in place of a parent process."""

    def __init__(self, file: int) -> None:
        self.store = MemoryStore()
        self.links = [ParentLink(), ParentLink()]
        self.exchanges = [
            WorkerExchange(number, self.store, link, LeaseTable(file, 0, time.monotonic))
            for number, link in enumerate(self.links)
        ]

    async def answer(self, kind: str, payload: bytes) -> bytes:
        assert kind == "send"
        return self.links[msgspec.msgpack.decode(payload, type=ExchangeMessage).worker].deliver(
            payload
        )


async def nothing(kind: str, payload: bytes) -> bytes:
    raise AssertionError


@contextlib.asynccontextmanager
async def with_parent() -> AsyncIterator[ParentProcess]:
    """Run the channels of both workers; they close at the end."""
    channels: list[Channel] = []
    with memory() as file:
        found = ParentProcess(file)
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


@pytest.mark.anyio
async def test_workers_share_leases_and_messages() -> None:
    async with with_parent() as found, asyncio.TaskGroup() as tasks:
        one, two = found.exchanges
        got: list[bytes] = []
        running = [tasks.create_task(received(each, got)) for each in (one, two)]
        await until(lambda: all(link.inboxes for link in found.links))
        lease = await one.find("exact-a", NAME)
        assert isinstance(lease, Lease)
        assert lease.owner == one.address
        assert await two.find("exact-a", NAME) == lease
        assert await two.send(one.address, b"hello")
        await until(lambda: got == [b"hello"])
        assert not await two.send("0:gone", b"hello")
        await found.store.append([put("a")])
        assert await two.find("exact-a", NAME) == entry("a")
        one.release(lease, stored=True)
        assert await two.find("exact-a", NAME) == entry("a")  # and it gives the lease back
        found_by_one = await one.find("exact-b", NAME)
        assert isinstance(found_by_one, Lease)
        assert found_by_one.owner == one.address
        for task in running:
            task.cancel()


@pytest.mark.anyio
async def test_a_worker_whose_parent_process_has_ended_asks_for_itself() -> None:
    async with with_parent() as found, asyncio.TaskGroup() as tasks:
        one = found.exchanges[0]
        running = tasks.create_task(lost(one))
        await until(lambda: bool(found.links[0].inboxes))
        found.links[0].close()
        await running
        assert await one.find("exact-a", NAME) is None
        with pytest.raises(StoreError, match="ended"):
            await one.send(found.exchanges[1].address, b"hello")
