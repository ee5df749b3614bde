"""The simulator's WebSocket of Responses, as a client library sees it."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from headstart.lab.simulator import Simulator
from headstart.lab.simulator.faults import Cut, Status
from support.patience import until
from support.simulated import simulated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

ASK = {"type": "response.create", "model": "m", "input": "Why is the sky blue?"}


@contextlib.asynccontextmanager
async def connected(simulator: Simulator) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    async with (
        simulated(simulator) as url,
        aiohttp.ClientSession() as session,
        session.ws_connect(url + "/v1/responses") as socket,
    ):
        yield socket


async def events_of(socket: aiohttp.ClientWebSocketResponse, asked: Any) -> list[dict[str, Any]]:
    """Send one message and read its answer to the last event."""
    await socket.send_str(asked if isinstance(asked, str) else json.dumps(asked))
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] not in ("response.completed", "error"):
        events.append(await socket.receive_json(timeout=10))
    return events


async def test_each_message_is_answered_with_the_events_of_a_stream() -> None:
    simulator = Simulator()
    async with connected(simulator) as socket:
        first, second = await events_of(socket, ASK), await events_of(socket, ASK)
    for events in (first, second):
        assert [each["type"] for each in events[:2]] == ["response.created", "response.in_progress"]
        deltas = [each for each in events if each["type"] == "response.output_text.delta"]
        [item] = events[-1]["response"]["output"]
        assert "".join(each["delta"] for each in deltas) == item["content"][0]["text"] != ""
    assert simulator.stats.snapshot().completed == 2


@pytest.mark.parametrize(
    ("asked", "status"),
    [("{", 400), ({"type": "session.update"}, 400), ({**ASK, "input": 5}, 400)],
)
async def test_an_unreadable_request_is_answered_with_an_error(asked: Any, status: int) -> None:
    async with connected(Simulator()) as socket:
        [error] = await events_of(socket, asked)
        assert (error["type"], error["status"]) == ("error", status)
        assert error["error"]["message"]
        assert (await events_of(socket, ASK))[-1]["type"] == "response.completed"


async def test_faults_hit_a_socket_too() -> None:
    async with connected(Simulator(fault=Status(status=503, times=1))) as socket:
        assert (await events_of(socket, ASK))[-1]["status"] == 503
    async with connected(Simulator(fault=Cut(after=2))) as socket:
        await socket.send_json(ASK)
        while (message := await socket.receive(timeout=10)).type is aiohttp.WSMsgType.TEXT:
            assert "completed" not in json.loads(message.data)["type"]
        assert socket.close_code == 1011


async def test_other_paths_have_no_socket() -> None:
    async with simulated(Simulator()) as url, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await session.ws_connect(url + "/v1/chat/completions")


async def test_a_client_that_leaves_ends_the_answer() -> None:
    simulator = Simulator("openai")
    async with connected(simulator) as socket:
        await socket.send_json(ASK)
        await socket.receive(timeout=20)
        await socket.close()
        await until(lambda: simulator.stats.snapshot().cancelled == 1)
