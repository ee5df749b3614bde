"""When a stream waits for an equal call for the whole answer, on a virtual clock."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from headstart.attempts import RoutingEstimate
from headstart.errors import UpstreamProtocolError
from headstart.middleware.flights import Flight
from headstart.middleware.upstreams.followed import AwaitedTwin, WaitingCall
from support.candidates import chat_call, reply_of
from support.entries import entry

if TYPE_CHECKING:
    from headstart.reply import Reply
    from headstart.settings import JoinStreams
    from headstart.types import Call, Entry, Headers

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]
WHOLE_S = 5.0


class App:
    """An upstream of which nothing is known."""

    name = "own"

    def __init__(self) -> None:
        self.asked = 0

    async def send(self, call: Call) -> Reply:
        self.asked += 1
        return reply_of(self.name, ())


class Provider(App):
    """An upstream whose first token comes after 1 s, and whose answers end after 5 s."""

    def estimate(self, call: Call) -> RoutingEstimate:
        return RoutingEstimate(
            name=self.name, samples=50, ttft_s=1.0, tokens_per_s=50.0, output_tokens=200.0
        )


def rendered(_: Entry) -> tuple[Headers, bytes, int]:
    return ((b"content-type", b"text/event-stream"),), b"data: [DONE]\n\n", 200


def in_flight(seconds: float) -> Flight:
    """Return a call that has been in flight for so long."""
    flight = Flight()
    flight.began = time.perf_counter() - seconds
    return flight


def awaiting(flight: Flight, upstream: App, when: JoinStreams = "sooner") -> AwaitedTwin:
    return AwaitedTwin(flight, WaitingCall(upstream, None, rendered, when))


async def test_a_stream_waits_for_a_whole_answer_that_should_come_sooner() -> None:
    flight, provider = in_flight(WHOLE_S - 0.5), Provider()
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(awaiting(flight, provider).send(chat_call()))
        await asyncio.sleep(0.5)
        assert flight.clients == 1
        flight.entry = stored = entry("whole")
        flight.finish()
        flight.settle()
    reply = asking.result()
    assert provider.asked == flight.clients == 0
    assert reply.upstream == stored.origin.upstream
    assert b"".join([piece.data async for piece in reply.pieces]) == rendered(stored)[1]


@pytest.mark.parametrize("not_stored", [False, True])
async def test_a_stream_makes_its_own_call_if_the_twin_fails_or_is_not_stored(
    not_stored: bool,
) -> None:
    flight, provider = in_flight(WHOLE_S), Provider()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(awaiting(flight, provider).send(chat_call()))
        await asyncio.sleep(0.1)
        assert provider.asked == 0
        if not_stored:
            flight.finish()
        else:
            flight.fail(UpstreamProtocolError("it broke off"))
        flight.settle()
    assert provider.asked == 1


async def test_a_stream_makes_its_own_call_if_the_whole_answer_is_late() -> None:
    flight, provider = in_flight(WHOLE_S), Provider()
    other = flight.join()
    began = asyncio.get_running_loop().time()
    await awaiting(flight, provider).send(chat_call())
    assert asyncio.get_running_loop().time() - began == pytest.approx(2.0)
    assert provider.asked == 1
    assert flight.readers == [other]


@pytest.mark.parametrize(
    ("seconds", "upstream", "when"),
    [(0.0, Provider(), "sooner"), (WHOLE_S, App(), "sooner"), (WHOLE_S, Provider(), "never")],
)
async def test_a_stream_does_not_wait_for_an_answer_that_may_take_longer(
    seconds: float, upstream: App, when: JoinStreams
) -> None:
    flight = in_flight(seconds)
    began = asyncio.get_running_loop().time()
    await awaiting(flight, upstream, when).send(chat_call())
    assert asyncio.get_running_loop().time() == began
    assert upstream.asked == 1


async def test_a_whole_answer_waits_for_a_stream_whatever_the_setting_for_streams() -> None:
    flight, provider = in_flight(0.0), Provider()
    call = chat_call(stream=False)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(awaiting(flight, provider, "never").send(call))
        await asyncio.sleep(100.0)
        assert flight.clients == 1
        flight.entry = entry("whole")
        flight.finish()
        flight.settle()
    assert provider.asked == 0
