"""The rate limits of providers that all nodes of a store share."""

from __future__ import annotations

import asyncio
import math
import random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headstart.errors import StoreError
from headstart.interfaces import SwapResult
from headstart.middleware.upstreams.accounting import UpstreamState
from headstart.middleware.upstreams.node_limits import (
    AFTER_FAILURE_S,
    AHEAD,
    FRESH_S,
    NodeLimits,
    StoredLimits,
)
from support.rate_limited import RateLimited

if TYPE_CHECKING:
    from headstart.middleware.concurrency import Supervisor

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]

UNIX = 1_760_000_000.0
SECRET = bytes(32)


class Documents:
    """A store of documents, whose answers take some time. Its clock is not that of the nodes."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[int, bytes]] = {}
        self.swaps = self.refused = 0
        self.broken = False
        self._dice = random.Random(1)

    async def swap(self, name: str, seen: int, value: bytes, ttl_s: float) -> SwapResult:
        assert ttl_s > 0.0
        await asyncio.sleep(self._dice.uniform(0.0001, 0.001))
        if self.broken:
            raise StoreError("the store is away")
        self.swaps += 1
        now = UNIX + asyncio.get_running_loop().time()
        version, found = self.kept.get(name, (0, b""))
        written = bool(value) and version == seen
        if written:
            version, found = version + 1, value
            self.kept[name] = version, value
        self.refused += bool(value) and not written
        await asyncio.sleep(self._dice.uniform(0.0001, 0.001))
        return SwapResult(written, version, found, now)


class Nodes:
    """Processes that share the limits of a provider."""

    def __init__(self, count: int, supervisor: Supervisor, documents: Documents) -> None:
        self.states = [UpstreamState() for _ in range(count)]
        for state in self.states:
            nodes = NodeLimits(documents, SECRET, supervisor.spawn)
            nodes.share(state, "https://provider", "model", "key")

    def limits(self, number: int) -> StoredLimits:
        limits = self.states[number].limits
        assert isinstance(limits, StoredLimits)
        return limits

    async def call(self, number: int, provider: RateLimited, answer_s: float = 0.3) -> float:
        """Make a call when the limits allow it; return how long it waited."""
        loop, limits = asyncio.get_running_loop(), self.limits(number)
        came, state = loop.time(), self.states[number]
        held = await limits.try_take(100, state.queued)
        assert held is not None
        if held.wait_s:
            state.queued += 1
            async with state.queue:
                while (held := await limits.try_take(100)) is not None and held.wait_s:
                    await asyncio.sleep(held.wait_s)
            state.queued -= 1
        assert held is not None
        began = loop.time()
        headers = provider.ask(began)
        await asyncio.sleep(answer_s)
        now = loop.time()
        limits.learn(headers, now, UNIX + now, held.taken, began=began)
        return began - came


async def offer(nodes: Nodes, provider: RateLimited, per_s: float, seconds: float) -> list[float]:
    """Make calls at random times, spread over the nodes; return their waits."""
    dice, tasks = random.Random(2), []
    async with asyncio.TaskGroup() as group:
        for _ in range(round(per_s * seconds)):
            number = dice.randrange(len(nodes.states))
            answer_s = dice.uniform(0.1, 0.5)
            tasks.append(group.create_task(nodes.call(number, provider, answer_s)))
            await asyncio.sleep(dice.expovariate(per_s))
    return [task.result() for task in tasks]


@pytest.mark.parametrize("windows", [False, True], ids=["bucket", "windows"])
@pytest.mark.parametrize(("limit", "window_s"), [(15, 1.0), (60, 60.0), (900, 60.0)])
async def test_six_processes_never_ask_more_often_than_the_provider_allows(
    supervisor: Supervisor, limit: int, window_s: float, windows: bool
) -> None:
    provider = RateLimited(limit, window_s, windows=windows)
    nodes = Nodes(6, supervisor, Documents())
    per_s = limit / window_s
    await offer(nodes, provider, 0.6 * per_s, max(6.0, window_s))
    assert provider.refused == 0
    seconds = max(15.0, 1.5 * window_s)
    waits = await offer(nodes, provider, 2.0 * per_s, seconds)
    assert provider.refused == 0
    least_s = seconds * (2.0 if window_s < 2.0 else 1.0) - window_s
    assert max(waits) < 1.3 * least_s + 2.0 * window_s, "the limit is used, not only kept"


async def test_processes_share_the_rate_of_a_provider_that_tells_no_limit(
    supervisor: Supervisor,
) -> None:
    nodes, loop = Nodes(6, supervisor, Documents()), asyncio.get_running_loop()
    provider, dice, came = RateLimited(15, 1.0), random.Random(3), loop.time()

    async def call(number: int) -> None:
        state, limits = nodes.states[number], nodes.limits(number)
        while True:
            state.queued += 1
            async with state.queue:
                while (held := await limits.try_take(100)) is not None and held.wait_s:
                    await asyncio.sleep(max(held.wait_s, 0.01))
            state.queued -= 1
            began, refused = loop.time(), provider.refused
            provider.ask(began)
            if provider.refused == refused:
                return
            limits.learn_refusal(0.067, began, loop.time())
            await asyncio.sleep(0.067)

    async with asyncio.TaskGroup() as group:
        for _ in range(900):
            group.create_task(call(dice.randrange(6)))
            await asyncio.sleep(dice.expovariate(30.0))
    assert loop.time() - came < 62.0, "the limit is used: it allows 900 calls in 59 s"
    assert provider.refused < 60


async def test_while_much_is_left_calls_do_not_wait_for_the_store(supervisor: Supervisor) -> None:
    provider, documents = RateLimited(10_000, 100_000.0), Documents()
    nodes = Nodes(2, supervisor, documents)
    await nodes.call(0, provider)
    await nodes.call(0, provider)
    asked = documents.swaps
    waits = [await nodes.call(0, provider, answer_s=0.0) for _ in range(100)]
    assert waits[1:] == [0.0] * 99
    assert documents.swaps <= asked + 3, "changes are written many at a time"
    await asyncio.sleep(1.0)
    await nodes.call(1, provider)
    now = asyncio.get_running_loop().time()
    for number in (0, 1):
        assert nodes.limits(number).allowance(now) == pytest.approx(0.99, abs=0.002)


async def test_calls_that_are_not_written_are_a_small_share_of_the_rest(
    supervisor: Supervisor,
) -> None:
    nodes = Nodes(1, supervisor, Documents())
    provider = RateLimited(640, 60.0)
    await nodes.call(0, provider)
    await nodes.call(0, provider, answer_s=0.0)
    limits, at_once = nodes.limits(0), 0
    for _ in range(100):
        holding = limits.try_take(1, 0)
        try:
            holding.send(None)
        except StopIteration:
            at_once += 1
        else:
            holding.close()
            break
    assert at_once == int(638 * AHEAD)


async def test_a_process_that_was_idle_asks_the_store_first(supervisor: Supervisor) -> None:
    provider = RateLimited(40, 600.0)
    nodes = Nodes(2, supervisor, Documents())
    await nodes.call(1, provider)
    for _ in range(39):
        await nodes.call(0, provider, answer_s=0.0)
    await asyncio.sleep(FRESH_S)
    held = await nodes.limits(1).try_take(1, 0)
    assert held is not None
    assert held.wait_s > 1.0, "the other process has used the whole limit"


async def test_a_provider_without_limits_costs_one_look_a_second(supervisor: Supervisor) -> None:
    documents = Documents()
    limits = Nodes(1, supervisor, documents).limits(0)
    for _ in range(100):
        held = await limits.try_take(1, 0)
        assert held is not None
        assert not held.wait_s
        limits.learn((), 0.0, UNIX)
        await asyncio.sleep(0.05)
    assert documents.swaps <= 6
    assert not documents.kept


async def test_without_the_store_a_node_goes_on_with_the_limits_that_it_saw(
    supervisor: Supervisor,
) -> None:
    provider, documents = RateLimited(4, 100.0), Documents()
    nodes = Nodes(1, supervisor, documents)
    for _ in range(2):
        await nodes.call(0, provider)
    limits, loop = nodes.limits(0), asyncio.get_running_loop()
    documents.broken = True
    assert await limits.try_take(1, 0) is None
    assert limits.known
    for _ in range(2):
        assert limits.ready_in_s(1, loop.time()) == 0.0
        limits.take(1, loop.time())
    assert limits.ready_in_s(1, loop.time()) > 1.0
    assert await limits.try_take(1, 0) is None, "the store is left alone for a moment"
    documents.broken = False
    await asyncio.sleep(AFTER_FAILURE_S)
    held = await limits.try_take(1, 0)
    assert held is not None
    assert held.wait_s == 0.0, "the store has not seen the calls in between"


async def test_a_rate_that_refusals_told_outlives_the_store(supervisor: Supervisor) -> None:
    documents, loop = Documents(), asyncio.get_running_loop()
    limits, other = (Nodes(2, supervisor, documents).limits(number) for number in range(2))
    for _ in range(3):
        await limits.try_take(1, 0)
        limits.learn_refusal(2.0, loop.time(), loop.time())
    documents.broken = True
    assert await limits.try_take(1) is None
    assert limits.ready_in_s(1, loop.time()) > 0.5, "the rate holds in this process"
    limits.learn_refusal(2.0, loop.time(), loop.time())
    documents.broken = False
    await asyncio.sleep(AFTER_FAILURE_S)
    for each in (limits, other):
        await asyncio.sleep(1.0)
        held = await each.try_take(1)
        assert held is not None
        assert "untold" in held.taken, "the store gets the rate, and the other process with it"


async def test_every_limit_outlives_the_store_whichever_call_finds_it_gone(
    supervisor: Supervisor,
) -> None:
    documents = Documents()
    nodes = NodeLimits(documents, SECRET, supervisor.spawn)
    both = [nodes.share(UpstreamState(), "https://provider", model, "key") for model in "ab"]
    loop = asyncio.get_running_loop()
    for limits in both:
        provider = RateLimited(1, 100.0)
        held = await limits.try_take(1, 0)
        assert held is not None
        limits.learn(provider.ask(0.0), loop.time(), UNIX, held.taken)
    await asyncio.sleep(1.0)
    documents.broken = True
    assert await both[0].try_take(1, 0) is None
    assert all(limits.ready_in_s(1, loop.time()) > 1.0 for limits in both)
    nodes.close()
    assert await both[1].try_take(1, 0) is None


async def test_a_new_call_does_not_overtake_those_that_wait(supervisor: Supervisor) -> None:
    provider = RateLimited(40, 40.0)
    nodes = Nodes(1, supervisor, Documents())
    for _ in range(38):
        await nodes.call(0, provider, answer_s=0.0)
    await asyncio.sleep(FRESH_S)
    held = await nodes.limits(0).try_take(1, 5)
    assert held is not None
    assert held.wait_s > 2.0, "five calls are before it, and only two fit"


async def test_a_lost_document_is_written_anew(supervisor: Supervisor) -> None:
    provider, documents = RateLimited(40, 600.0), Documents()
    nodes = Nodes(2, supervisor, documents)
    for number in (0, 1, 0, 1):
        await nodes.call(number, provider)
    documents.kept.clear()
    await asyncio.sleep(FRESH_S)
    await nodes.call(0, provider)
    await nodes.call(1, provider)
    await asyncio.sleep(1.0)
    (version, _), *_ = documents.kept.values()
    assert version >= 1
    now = asyncio.get_running_loop().time()
    assert nodes.limits(1).allowance(now) == pytest.approx(34 / 40, abs=0.02)


async def test_a_caller_that_leaves_while_the_store_is_asked_takes_no_call(
    supervisor: Supervisor,
) -> None:
    provider = RateLimited(4, 600.0)
    nodes = Nodes(1, supervisor, Documents())
    await nodes.call(0, provider)
    limits, loop = nodes.limits(0), asyncio.get_running_loop()
    for leaves_after_s in (0.0, 0.0001, 0.0002, 0.0005, 0.0008):
        await asyncio.sleep(FRESH_S)
        leaving = loop.create_task(limits.try_take(1, 0))
        await asyncio.sleep(leaves_after_s)
        assert leaving.cancel()
    await asyncio.sleep(1.0)
    for _ in range(2):
        held = await limits.try_take(1, 0)
        assert held is not None
        assert held.wait_s == 0.0


async def test_a_document_of_another_version_is_replaced(supervisor: Supervisor) -> None:
    provider, documents = RateLimited(40, 600.0), Documents()
    nodes = Nodes(1, supervisor, documents)
    await nodes.call(0, provider)
    await asyncio.sleep(FRESH_S)
    ((name, (version, _)),) = documents.kept.items()
    documents.kept[name] = version + 1, b"\x81\xa1a\x01"
    await nodes.call(0, provider)
    await asyncio.sleep(1.0)
    assert documents.kept[name][0] > version + 1
    held = await nodes.limits(0).try_take(1, 0)
    assert held is not None
    assert held.wait_s == 0.0


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, 0.0), (1, math.nan), (5, 1e300), (6, math.inf), (4, [0.0] * 100), ("at", 1e9),
     ("level", -1e300), ("ends", 1e9), ("names", b"\xff")],
)  # fmt: skip
async def test_a_damaged_document_stops_no_call(
    place: int | str, value: Any, supervisor: Supervisor
) -> None:
    provider, documents = RateLimited(40, 600.0), Documents()
    nodes = Nodes(1, supervisor, documents)
    await nodes.call(0, provider)
    await asyncio.sleep(1.0)
    ((name, (version, document)),) = documents.kept.items()
    saved, levels = msgspec.msgpack.decode(document)
    if isinstance(place, int):
        (numbers,) = saved.values()
        numbers[place] = value
    elif place != "names":
        levels[("at", "level", "ends").index(place)] += value
    document = msgspec.msgpack.encode((saved, levels))
    if place == "names":
        document = document.replace(next(iter(saved)).encode(), b"\xff" * len(next(iter(saved))))
    documents.kept[name] = version + 1, document
    held = await nodes.limits(0).try_take(1, 0)
    assert held is not None
    assert held.wait_s == 0.0
    assert nodes.limits(0).allowance(asyncio.get_running_loop().time()) > 0.9


async def test_a_document_that_others_change_all_the_time_stops_no_call(
    supervisor: Supervisor,
) -> None:
    provider, documents = RateLimited(40, 600.0), Documents()
    nodes = Nodes(1, supervisor, documents)
    await nodes.call(0, provider)
    swap = documents.swap

    async def refuse(name: str, seen: int, value: bytes, ttl_s: float) -> SwapResult:
        found = await swap(name, -1, value, ttl_s)
        return found._replace(version=found.version + 1)

    documents.swap = refuse  # type: ignore[method-assign]
    await asyncio.sleep(FRESH_S)
    async with asyncio.timeout(10.0):
        assert await nodes.limits(0).try_take(1, 0) is None  # this node goes on alone


async def test_the_names_of_documents_hold_no_key(supervisor: Supervisor) -> None:
    documents = Documents()
    await Nodes(1, supervisor, documents).call(0, RateLimited(4, 100.0))
    await asyncio.sleep(1.0)
    (name,) = documents.kept
    assert name.startswith("limits:")
    assert "key" not in name
    assert "provider" not in name
