"""When a follower decides that the process with its call is lost, on a virtual clock."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from headstart.middleware.concurrency import Supervisor
from headstart.middleware.flights import AnswerForm
from headstart.middleware.shared_flights import (
    DOUBT_S,
    SILENCE_S,
    BodyPart,
    OwnerLost,
    RemoteAnswer,
    SharedFlights,
)
from headstart.types import Entry, Lease
from support.fakes import Recorder

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence


pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]
LEASE = Lease(name="name", owner="owner", token=1)


class Owner:
    """An exchange with one other process, which is there as long as ``reached`` says so."""

    address = "follower"

    def __init__(self) -> None:
        self.reached = True
        self.on_ask: Callable[[], None] = lambda: None

    async def find(self, exact: str, name: str, instead_of: int = 0) -> Entry | Lease | None:
        return LEASE

    async def renew(self, leases: Sequence[Lease]) -> None:
        raise AssertionError

    def release(self, lease: Lease, *, stored: bool) -> None:
        raise AssertionError

    async def send(self, address: str, message: bytes) -> bool:
        if not message:
            self.on_ask()
        return self.reached

    async def messages(self) -> AsyncGenerator[bytes]:
        yield b""


async def followed(owner: Owner) -> RemoteAnswer:
    flights = SharedFlights(owner, Supervisor().spawn, Recorder())
    return await flights.follow(LEASE, AnswerForm(stream=True, include_usage=False), None, None)


async def lost_after(following: RemoteAnswer) -> float:
    """Return the seconds until the owner is taken for lost."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(OwnerLost) as lost:
        await following.next()
    assert lost.value.again
    return loop.time() - began


async def test_an_owner_whose_process_is_gone_is_lost_at_the_first_doubt() -> None:
    owner = Owner()
    following = await followed(owner)
    owner.reached = False
    assert await lost_after(following) == pytest.approx(DOUBT_S)


async def test_an_owner_that_says_nothing_is_lost_later() -> None:
    assert await lost_after(await followed(Owner())) == pytest.approx(SILENCE_S)


async def test_a_message_that_arrives_at_the_last_moment_counts() -> None:
    owner = Owner()
    following = await followed(owner)
    owner.reached = False
    owner.on_ask = lambda: following.take(BodyPart(1, 0, b"late"))
    assert await following.next() == BodyPart(1, 0, b"late")


async def test_a_process_that_is_not_there_is_not_followed() -> None:
    owner = Owner()
    owner.reached = False
    with pytest.raises(OwnerLost):
        await followed(owner)


async def test_a_missing_part_ends_the_answer() -> None:
    following = await followed(Owner())
    following.take(BodyPart(1, 0, b"one"))
    following.take(BodyPart(1, 7, b"three"))
    assert await following.next() == BodyPart(1, 0, b"one")
    with pytest.raises(OwnerLost, match="part"):
        await following.next()
