"""Counters with limits, which all processes of a store share: what every Store promises of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from headstart.types import Charge, Charged
from support.entries import NOW

if TYPE_CHECKING:
    from headstart.interfaces import Store
    from support.stores import Stores

pytestmark = pytest.mark.anyio

LATER = NOW + 60.0


async def test_a_counter_begins_at_nothing_and_adds_up(stores: Stores) -> None:
    store = await stores.open()
    assert await store.charge([Charge("a", 3, LATER)]) == Charged(added=True, values=(3,))
    charged = await store.charge([Charge("a", 4, LATER), Charge("b", 2**52, LATER)])
    assert charged == Charged(added=True, values=(7, 2**52))


async def test_a_charge_above_its_limit_adds_to_no_counter(stores: Stores) -> None:
    store = await stores.open()
    await store.charge([Charge("a", 3, LATER), Charge("b", 9, LATER)])
    over = [Charge("a", 5, LATER), Charge("b", 2, LATER, 10)]
    assert await store.charge(over) == Charged(added=False, values=(3, 9))
    fits = [Charge("a", 5, LATER, 8), Charge("b", 1, LATER, 10)]
    assert await store.charge(fits) == Charged(added=True, values=(8, 10))


async def test_returned_amounts_can_be_taken_again(stores: Stores) -> None:
    store = await stores.open()
    await store.charge([Charge("a", 10, LATER, 10)])
    assert not (await store.charge([Charge("a", 1, LATER, 10)])).added
    assert (await store.charge([Charge("a", -4, LATER, 5)])).values == (6,)  # lowers: no limit
    assert (await store.charge([Charge("a", 4, LATER, 10)])).values == (10,)
    assert await store.charge([Charge("a", 0, LATER, 5)]) == Charged(added=True, values=(10,))


async def test_an_amount_returned_to_a_lost_counter_is_no_credit(stores: Stores) -> None:
    store = await stores.open()
    charged = await store.charge([Charge("lost", -4, LATER), Charge("b", 2, LATER)])
    assert charged == Charged(added=True, values=(0, 2))
    assert not (await store.charge([Charge("lost", 11, LATER, 10)])).added
    assert (await store.charge([Charge("lost", 10, LATER, 10)])).values == (10,)


async def test_a_node_whose_clock_is_wrong_ends_no_counter_of_the_others(stores: Stores) -> None:
    if not stores.url.startswith("redis"):
        pytest.skip("the processes of one machine have one clock")
    store = await stores.open()
    await store.charge([Charge("a", 3, LATER)])
    stores.clock.now = LATER + 1.0
    await store.charge([Charge("a", -1, LATER)])
    await anyio.sleep(0.01)  # time enough for a counter that lives for a millisecond
    assert (await store.charge([Charge("a", 0, LATER)])).values == (2,)


async def test_many_charges_at_once_do_not_pass_the_limit(stores: Stores) -> None:
    store = await stores.open()
    other = await stores.open_beside(store)
    charged: list[Charged] = []

    async def charge(store: Store) -> None:
        charged.append(await store.charge([Charge("a", 1, LATER, 30)]))

    async with anyio.create_task_group() as tasks:
        for _ in range(25):
            tasks.start_soon(charge, store)
            tasks.start_soon(charge, other)
    assert sum(each.added for each in charged) == 30


async def test_a_counter_is_gone_when_it_has_expired(stores: Stores) -> None:
    if stores.url.startswith("redis"):
        pytest.skip("the server's own clock decides")
    store = await stores.open()
    await store.charge([Charge("a", 3, LATER), Charge("b", 3, LATER + 60)])
    stores.clock.now = LATER
    charged = await store.charge([Charge("a", 1, LATER + 60, 1), Charge("b", 1, LATER + 60)])
    assert charged == Charged(added=True, values=(1, 4))


async def test_a_clock_that_is_ahead_for_a_moment_ends_no_counter(stores: Stores) -> None:
    store = await stores.open()
    await store.charge([Charge("a", 3, LATER)])
    stores.clock.now = LATER + 86_400
    await store.charge([Charge("b", 1, LATER + 100_000)])
    stores.clock.now = LATER - 60
    assert (await store.charge([Charge("a", 1, LATER)])).values == (4,)


async def test_a_restart_keeps_the_counters(stores: Stores, durable_url: str) -> None:
    first = await stores.open()
    await first.charge([Charge("a", 3, LATER)])
    await first.aclose()
    assert durable_url == stores.url
    assert (await (await stores.open()).charge([Charge("a", 1, LATER)])).values == (4,)
