"""Reading bodies, bounded concurrency, the supervisor."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from headstart.errors import Overloaded, RequestTimeout
from headstart.middleware.body import (
    DROP_S,
    ClientGone,
    iterate_body,
    read_body,
    refusing,
    replay_body,
    watch,
)
from headstart.middleware.concurrency import ConcurrencyLimit, Supervisor

if TYPE_CHECKING:
    from headstart.types import Message

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]


def receiving(*messages: dict[str, Any]) -> Any:
    left = list(messages)

    async def receive() -> dict[str, Any]:
        if left:
            return left.pop(0)
        return {"type": "http.disconnect"}

    return receive


def part(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_body_in_pieces_is_read_whole() -> None:
    body = await read_body(receiving(part(b"a", more=True), part(b"b")), 10)
    assert body == (b"ab", True, True)


@pytest.mark.parametrize("pieces", [[b"x" * 11], [b"x" * 6, b"x" * 6], [b"x" * 6, b"x" * 6, b"y"]])
async def test_a_body_past_the_limit_is_not_read_further(pieces: list[bytes]) -> None:
    parts = [part(piece, more=i < len(pieces) - 1) for i, piece in enumerate(pieces)]
    data, fits, ended = await read_body(receiving(*parts), 10)
    assert not fits
    assert len(data) <= 12
    assert ended is (len(pieces) < 3)


class PlainAwaitable:
    """Waits for a future with ``__next__`` alone, as what granian's ``receive`` returns does."""

    def __init__(self, future: asyncio.Future[dict[str, Any]]) -> None:
        self._steps = future.__await__()

    def __await__(self) -> Any:
        return self

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return next(self._steps)


async def test_a_body_is_read_from_servers_whose_receive_is_not_a_coroutine() -> None:
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[dict[str, Any]]] = [loop.create_future() for _ in range(3)]
    waiting = iter(futures)

    def receive() -> Any:
        return PlainAwaitable(next(waiting))

    loop.call_later(1, futures[0].set_result, part(b"a", more=True))
    loop.call_later(2, futures[1].set_result, part(b"b"))
    assert await read_body(receive, 10, patience_s=5) == (b"ab", True, True)
    with pytest.raises(RequestTimeout):
        await read_body(receive, 10, patience_s=5)


async def test_a_client_that_leaves_while_sending_is_gone() -> None:
    with pytest.raises(ClientGone):
        await read_body(receiving(part(b"a", more=True)), 10)
    with pytest.raises(ClientGone):
        await read_body(receiving(), 10)


async def test_a_body_cut_at_the_limit_is_handed_on_whole() -> None:
    receive = receiving(part(b"aaaa", more=True), part(b"bbbb", more=True), part(b"cc"))
    data, _, ended = await read_body(receive, 5)
    replayed = iterate_body(replay_body(data, receive, complete=ended))
    assert b"".join([piece async for piece in replayed]) == b"aaaabbbbcc"


async def test_watching_tells_once_that_the_client_left() -> None:
    supervisor = Supervisor()
    gone = asyncio.Event()
    supervisor.spawn(watch, receiving(part(b"late")), gone.set)
    await gone.wait()
    await supervisor.aclose()


async def test_watching_ends_if_the_end_of_the_body_comes_again_and_again() -> None:
    gone: list[bool] = []
    repeated = itertools.cycle([part(b"{}")])

    async def receive() -> dict[str, Any]:
        return next(repeated)  # without waiting, as middleware that read the body may do

    await watch(receive, lambda: gone.append(True))
    assert not gone


async def test_the_limit_admits_queues_and_refuses() -> None:
    limit = ConcurrencyLimit(1, 1)
    release = asyncio.Event()
    entered = []

    async def hold(name: str) -> None:
        async with limit:
            entered.append(name)
            await release.wait()

    async with asyncio.TaskGroup() as group:
        group.create_task(hold("first"))
        group.create_task(hold("second"))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await hold("third")
        assert entered == ["first"]
        release.set()
    assert entered == ["first", "second"]
    async with limit:
        assert limit.active == 1
    assert limit.active == 0


async def test_a_cancelled_waiter_gives_its_place_back() -> None:
    limit = ConcurrencyLimit(1, 1)
    async with asyncio.TaskGroup() as group, limit:
        waiting = group.create_task(_enter(limit))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        group.create_task(_enter(limit))
        await asyncio.sleep(0)
    assert limit.active == 0


async def test_waiters_that_leave_just_as_places_come_free_are_passed_over() -> None:
    limit = ConcurrencyLimit(1, 3)
    async with asyncio.TaskGroup() as group, limit:
        leaving = [group.create_task(_enter(limit)) for _ in range(2)]
        staying = group.create_task(_enter(limit))
        await asyncio.sleep(0)
        for task in leaving:
            task.cancel()
    assert [task.cancelled() for task in (*leaving, staying)] == [True, True, False]
    assert limit.active == 0


async def _enter(limit: ConcurrencyLimit) -> None:
    async with limit:
        pass


async def test_the_supervisor_outlives_a_failing_task_and_cancels_the_rest() -> None:
    supervisor = Supervisor()
    cancelled = asyncio.Event()

    async def fail() -> None:
        raise ValueError("broken")

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    failed = supervisor.spawn(fail)
    supervisor.spawn(wait)
    await asyncio.wait([failed])
    assert supervisor.running == 1
    await supervisor.aclose()
    assert cancelled.is_set()
    with pytest.raises(RuntimeError):
        supervisor.spawn(wait)
    await supervisor.aclose()


@pytest.mark.virtual_clock
async def test_a_supervisor_that_drains_gives_its_tasks_time_to_end() -> None:
    supervisor = Supervisor()
    tasks = [supervisor.spawn(asyncio.sleep, seconds) for seconds in (1, 3)]
    began = asyncio.get_running_loop().time()
    await supervisor.drain(2)
    assert asyncio.get_running_loop().time() - began == pytest.approx(2)
    assert [task.cancelled() for task in tasks] == [False, True]
    with pytest.raises(RuntimeError):
        supervisor.spawn(asyncio.sleep, 1)


@pytest.mark.parametrize("length", [b"11", b"9" * 5000])
async def test_of_a_body_that_is_declared_too_long_nothing_is_read(length: bytes) -> None:
    async def receive() -> Message:
        raise AssertionError

    headers = ((b"content-length", length),)
    assert await read_body(receive, 10, headers=headers) == (b"", False, False)


@pytest.mark.parametrize("length", [b"10", b"-1", b"0x10"])
async def test_other_bodies_are_read(length: bytes) -> None:
    headers = ((b"content-length", length),)
    assert await read_body(receiving(part(b"x")), 10, headers=headers) == (b"x", True, True)


async def refuse(receive: Any, version: str = "1.1", **options: Any) -> list[Message]:
    """Send a refusal, and return the messages that the server gets."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "http_version": version, "headers": [], **options}
    send_first = refusing(scope, receive, send, unread=True, ended=False)
    await send_first({"type": "http.response.start", "status": 413, "headers": []})
    await send_first({"type": "http.response.body", "body": b"long", "more_body": False})
    return sent


@pytest.mark.parametrize("version", ["1.1", "2"])
async def test_the_rest_of_a_refused_body_is_dropped_behind_the_answer(version: str) -> None:
    receive = receiving(*[part(b"x", more=True)] * 3, part(b"x"), part(b"next"))
    start, *bodies = await refuse(receive, version)
    assert start["headers"] == ([(b"connection", b"close")] if version == "1.1" else [])
    assert [(each["body"], each["more_body"]) for each in bodies] == [(b"long", True), (b"", False)]
    assert await receive() == part(b"next")


async def test_a_client_that_waits_to_send_its_body_is_not_waited_for() -> None:
    async def receive() -> Message:
        raise AssertionError

    assert len(await refuse(receive, headers=[(b"expect", b"100-Continue")])) == 3


async def test_the_rest_of_a_refused_body_is_not_read_for_ever() -> None:
    async def receive() -> Message:
        await asyncio.sleep(1)
        return part(b"x", more=True)

    began = asyncio.get_running_loop().time()
    assert len(await refuse(receive)) == 3
    assert asyncio.get_running_loop().time() - began == pytest.approx(DROP_S)
