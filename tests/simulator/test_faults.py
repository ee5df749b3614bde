"""Each fault as a raw client sees it, and when it is due."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import anyio
import pytest

from headstart.lab.simulator import Oracle, ProviderProfile, Simulator
from headstart.lab.simulator.faults import (
    ContentType,
    Cut,
    Empty,
    ErrorFrame,
    Gzip,
    InvalidEvent,
    LateEnd,
    LongLine,
    NoDone,
    SlowHeaders,
    Stall,
    Status,
    UnknownFields,
    decode_fault,
)
from headstart.lab.simulator.oracle import split_tokens
from support.patience import until
from support.simulated import Wire, chat, exchange, send_raw, simulated

if TYPE_CHECKING:
    from headstart.lab.simulator.faults import Fault

pytestmark = pytest.mark.anyio

ASK = "Why is the sky blue?"
TOKENS = split_tokens(Oracle().truth(ASK).text)
HOUR = 3600.0


async def _strike(fault: Fault, *, stream: bool = True) -> Wire:
    async with simulated(Simulator()) as url:
        return await exchange(url, chat(ASK, stream=stream), {"x-sim-fault": fault.header()})


def _first(count: int) -> str:
    return "".join(TOKENS[:count])


async def test_status_answers_with_an_error_in_dialect() -> None:
    fault = Status(status=429, code="rate_limit_exceeded", headers={"Retry-After": "2"})
    wire = await _strike(fault)
    assert wire.status == 429
    assert b"\r\nretry-after: 2" in wire.head
    assert b"\r\nx-request-id: req_" in wire.head
    assert json.loads(wire.body)["error"]["code"] == "rate_limit_exceeded"


async def test_status_can_have_any_body() -> None:
    html = Status(status=502, body="<h1>Bad gateway</h1>", headers={"content-type": "text/html"})
    wire = await _strike(html, stream=False)
    assert wire.status == 502
    assert wire.head.count(b"content-type") == 1
    assert wire.body == b"<h1>Bad gateway</h1>"


@pytest.mark.parametrize("after", [0, 5])
async def test_an_error_frame_ends_a_stream_without_a_terminal_event(after: int) -> None:
    wire = await _strike(ErrorFrame(after=after))
    assert wire.status == 200
    assert wire.ended == "whole"
    *_, last = wire.events
    assert json.loads(last)["error"]["type"] == "server_error"
    assert wire.text == _first(after)


async def test_an_error_frame_can_be_named() -> None:
    wire = await _strike(ErrorFrame(named=True))
    assert wire.body.startswith(b"event: error\ndata: ")


async def test_an_error_body_under_status_200() -> None:
    wire = await _strike(ErrorFrame(), stream=False)
    assert wire.status == 200
    assert list(json.loads(wire.body)) == ["error"]


@pytest.mark.parametrize(("how", "ended"), [("reset", "reset"), ("close", "eof"), ("end", "whole")])
async def test_a_cut_after_five_tokens(how: str, ended: str) -> None:
    fault = decode_fault(json.dumps({"fault": "cut", "after": 5, "how": how}).encode())
    wire = await _strike(fault)
    assert wire.ended == ended
    assert wire.text == _first(5)


@pytest.mark.parametrize(("how", "ended"), [("reset", "reset"), ("close", "eof")])
async def test_a_cut_before_any_byte(how: str, ended: str) -> None:
    fault = decode_fault(json.dumps({"fault": "cut", "how": how}).encode())
    wire = await _strike(fault)
    assert wire.ended == ended
    assert wire.head == b""


async def test_a_cut_after_the_headers() -> None:
    wire = await _strike(Cut(after=0, how="close"))
    assert wire.status == 200
    assert wire.body == b""
    assert wire.ended == "eof"


async def test_a_truncated_json_body_that_http_calls_complete() -> None:
    wire = await _strike(Cut(after=0, how="end"), stream=False)
    assert wire.ended == "whole"
    assert b"content-length" not in wire.head
    assert wire.body.startswith(b'{"id":')
    with pytest.raises(json.JSONDecodeError):
        json.loads(wire.body)


async def test_a_json_body_shorter_than_its_length() -> None:
    wire = await _strike(Cut(after=0, how="close"), stream=False)
    assert wire.ended == "eof"
    assert b"content-length" in wire.head
    assert wire.body


@pytest.mark.parametrize(
    ("after", "seen"), [(None, b""), (0, b"\r\n\r\n"), (2, TOKENS[1].encode() + b'"')]
)
async def test_a_stall_holds_what_follows_until_the_client_leaves(
    after: int | None, seen: bytes
) -> None:
    simulator = Simulator(fault=Stall(seconds=HOUR, after=after))
    async with simulated(simulator) as url:
        received = b""
        async with await send_raw(url, chat(ASK, stream=True)) as stream:
            await until(lambda: simulator.stats.snapshot().in_flight == 1)
            while seen not in received:
                received += await stream.receive()
        await until(lambda: simulator.stats.snapshot().cancelled == 1)
    assert TOKENS[2].encode() not in received
    assert simulator.stats.snapshot().deltas == (after or 0)


async def test_a_stall_that_ends_loses_nothing() -> None:
    async with simulated(Simulator(speed=1000)) as url:
        headers = {"x-sim-fault": Stall(seconds=5, after=3).header()}
        wire = await exchange(url, chat(ASK, stream=True), headers)
    assert wire.text == _first(len(TOKENS))
    assert wire.events[-1] == "[DONE]"


@pytest.mark.parametrize("stream", [True, False])
async def test_slow_headers_are_followed_by_the_whole_body(stream: bool) -> None:
    async with simulated(Simulator(speed=100)) as url:
        headers = {"x-sim-fault": SlowHeaders(seconds=1).header()}
        wire = await exchange(url, chat(ASK, stream=stream), headers)
    assert wire.status == 200
    assert b"\r\nconnection: close" in wire.head
    said = wire.text if stream else json.loads(wire.body)["choices"][0]["message"]["content"]
    assert said == _first(len(TOKENS))


async def test_an_empty_stream() -> None:
    wire = await _strike(Empty())
    assert (wire.status, wire.body, wire.ended) == (200, b"", "whole")


async def test_a_stream_may_have_nothing_but_done() -> None:
    wire = await _strike(Empty(done=True))
    assert wire.body == b"data: [DONE]\n\n"


async def test_one_event_that_is_not_json() -> None:
    wire = await _strike(InvalidEvent(after=2))
    broken = []
    for event in wire.events[:-1]:
        try:
            json.loads(event)
        except json.JSONDecodeError:
            broken.append(event)
    assert len(broken) == 1
    assert wire.events[-1] == "[DONE]"


async def test_a_body_that_is_not_json_but_as_long_as_it_says() -> None:
    wire = await _strike(InvalidEvent(), stream=False)
    assert b"content-length: %d" % len(wire.body) in wire.head
    with pytest.raises(json.JSONDecodeError):
        json.loads(wire.body)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_absurdly_long_line_is_valid_all_the_same(stream: bool) -> None:
    wire = await _strike(LongLine(after=1, bytes=2_000_000), stream=stream)
    assert len(max(wire.body.split(b"\n"), key=len)) > 2_000_000
    said = wire.text if stream else json.loads(wire.body)["choices"][0]["message"]["content"]
    assert said == _first(len(TOKENS))


@pytest.mark.parametrize("stream", [True, False])
async def test_a_gzip_body_that_nobody_asked_for(stream: bool) -> None:
    wire = await _strike(Gzip(), stream=stream)
    assert b"content-encoding: gzip" in wire.head
    assert TOKENS[0].encode() in gzip.decompress(wire.body)


async def test_a_wrong_content_type() -> None:
    wire = await _strike(ContentType(value="text/html"))
    assert wire.head.count(b"content-type") == 1
    assert b"content-type: text/html" in wire.head
    assert wire.text == _first(len(TOKENS))


async def test_a_stream_without_done() -> None:
    wire = await _strike(NoDone())
    assert wire.ended == "whole"
    assert json.loads(wire.events[-1])["choices"][0]["finish_reason"] == "stop"


async def test_a_fault_can_strike_a_number_of_times() -> None:
    simulator = Simulator(fault=Status(status=503, times=2))
    async with simulated(simulator) as url:
        statuses = [(await exchange(url, chat())).status for _ in range(4)]
    assert statuses == [503, 503, 200, 200]


async def test_a_requests_own_fault_comes_before_the_simulators() -> None:
    async with simulated(Simulator(fault=Status(status=503))) as url:
        headers = {"x-sim-fault": Status(status=418).header()}
        assert (await exchange(url, chat(), headers)).status == 418


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("cut", "malformed"),
        ('{"fault":"cutt"}', "Invalid value 'cutt'"),
        ('{"fault":"cut","aftr":5}', "unknown field `aftr`"),
        ('{"fault":"cut","how":"end"}', "use close or reset"),
    ],
)
async def test_a_fault_that_makes_no_sense_is_refused(header: str, reason: str) -> None:
    async with simulated(Simulator()) as url:
        wire = await exchange(url, chat(), {"x-sim-fault": header})
    assert wire.status == 400
    assert reason in json.loads(wire.body)["error"]["message"]


async def test_faults_that_break_connections_need_our_server() -> None:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: object) -> None:
        raise AssertionError(message)

    scope = {
        "type": "http", "method": "GET", "raw_path": b"/v1/echo", "query_string": b"",
        "headers": [],
    }  # fmt: skip
    with pytest.raises(RuntimeError, match=r"use headstart\.lab\.simulator\.serve"):
        await Simulator(fault=Cut(how="close"))(scope, receive, send)


async def test_faults_strike_every_endpoint() -> None:
    simulator = Simulator(ProviderProfile(model="m"), fault=Status(status=500))
    async with simulated(simulator) as url:
        assert (await exchange(url, {"not": "a chat"})).status == 500
    assert simulator.stats.snapshot().errors == 1


async def test_late_end_keeps_the_body_open_after_its_last_event() -> None:
    async with simulated(Simulator()) as url:
        headers = {"x-sim-fault": LateEnd(seconds=HOUR).header()}
        async with await send_raw(url, chat(ASK, stream=True), headers) as stream:
            received = b""
            while b"[DONE]" not in received:
                received += await stream.receive()
            with anyio.move_on_after(0.05) as waiting:
                await stream.receive()
            assert waiting.cancelled_caught
            assert not received.endswith(b"0\r\n\r\n")
    assert (await _strike(LateEnd(seconds=0.01))).ended == "whole"


@pytest.mark.parametrize("stream", [True, False])
async def test_unknown_fields_stand_in_each_event(stream: bool) -> None:
    wire = await _strike(UnknownFields(), stream=stream)
    documents = [each for each in wire.events if each != "[DONE]"] or [wire.body.decode()]
    assert all("x_future" in json.loads(each) for each in documents)
    assert _first(len(TOKENS)) in wire.text or not stream
