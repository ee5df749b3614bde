"""After its error event a stream that broke off has no end, where the server can leave it out."""

from __future__ import annotations

import contextlib
import json
import logging
from typing import TYPE_CHECKING, Any

import httpx
import httpx2
import pytest

from headstart import gateway
from headstart.httpx_transport import HeadstartTransport
from headstart.lab.simulator import Simulator
from headstart.lab.simulator.faults import Cut
from headstart.middleware.http_protocol import BoundedHeadProtocol
from headstart.settings import Settings, UpstreamSettings
from support.raw_upstream import RawUpstream, raw_upstream
from support.serving import serving, serving_in_thread
from support.simulated import chat, exchange, simulated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.middleware.asgi import Gateway
    from headstart.types import Message, Receive, Scope, Send

ASKED = chat(stream=True)
HEADERS = {"authorization": "Bearer k", "content-type": "application/json"}


def gateway_before(provider: str) -> Gateway:
    upstream = UpstreamSettings(name="sim", base_url=provider, api_key_env=())
    return gateway(Settings(upstream=(upstream,)), store="memory:", mode="exact-only")


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextlib.contextmanager
def uvicorn_log() -> Iterator[list[logging.LogRecord]]:
    """Collect what uvicorn logs. Each server that starts may set up the logger anew."""
    kept, log = _Kept(), logging.getLogger("uvicorn.error")
    log.addHandler(kept)
    try:
        yield kept.records
    finally:
        log.removeHandler(kept)


def last_event(body: bytes | str) -> Any:
    text = body if isinstance(body, str) else body.decode()
    return json.loads(text.rstrip("\n").rpartition("data: ")[2])


@pytest.mark.anyio
@pytest.mark.parametrize("http", ["h11", "httptools", BoundedHeadProtocol])
async def test_a_stream_that_breaks_off_breaks_off_after_the_error_event(
    http: Any,
) -> None:
    async with (
        simulated(Simulator(fault=Cut(after=600, how="end"))) as provider,
        serving(gateway_before(provider), http=http, log_level="error") as url,
    ):
        with uvicorn_log() as records:
            answer = await exchange(url, ASKED, HEADERS)
    assert answer.ended == "eof"
    assert answer.body.count(b"data: ") > 1
    assert last_event(answer.body)["error"]["code"] == "upstream_protocol_error"
    lines = [record.getMessage() for record in records if record.levelno >= logging.ERROR]
    own = ["ASGI callable returned without completing response."]
    assert lines == ([] if http is BoundedHeadProtocol else own), "no traceback"


@pytest.mark.anyio
@pytest.mark.parametrize("http", ["h11", "httptools", BoundedHeadProtocol])
async def test_a_relayed_answer_that_breaks_off_breaks_off_without_a_traceback(http: Any) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\ncontent-length: 900\r\n\r\n"
    async with (
        raw_upstream(RawUpstream(head + b"half", breaks_off=True)) as provider,
        serving(gateway_before(provider), http=http, log_level="error") as url,
    ):
        with uvicorn_log() as records:
            path = "/v1/audio/speech"
            answer = await exchange(url, {"model": "m", "input": "Hi"}, HEADERS, path)
    assert (answer.status, answer.body, answer.ended) == (200, b"half", "eof")
    assert [record.exc_info for record in records if record.levelno >= logging.ERROR] == [None] * (
        http is not BoundedHeadProtocol
    )


@pytest.mark.anyio
async def test_a_stream_ends_where_the_server_would_leave_the_client_waiting() -> None:
    """As hypercorn does over HTTP/2, and a server that is not known."""
    async with simulated(Simulator(fault=Cut(after=600, how="end"))) as provider:
        app = gateway_before(provider)

        async def over_http_2(scope: Scope, receive: Receive, send: Send) -> None:
            of = {**scope, "http_version": "2"} if scope["type"] == "http" else scope
            await app(of, receive, send)

        async with serving(over_http_2, http="h11") as url:
            answer = await exchange(url, ASKED, HEADERS)
        assert answer.ended == "whole"
        assert last_event(answer.body)["error"]

        sent: list[Message] = []
        body = json.dumps(ASKED).encode()

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "query_string": b"",
            "headers": [(b"authorization", b"Bearer k")],
        }
        await app(scope, receive, send)
        await app.aclose()
        assert last_event(sent[-1]["body"])["error"]
        assert not sent[-1]["more_body"]


@pytest.mark.anyio
async def test_a_stream_ends_in_the_transport_of_httpx_for_apps() -> None:
    """It asserts that an answer has an end, also inside an app that uvicorn serves."""
    async with simulated(Simulator(fault=Cut(after=600, how="end"))) as provider:
        app = gateway_before(provider)
        got: list[str] = []

        async def outer(_scope: Scope, _receive: Receive, send: Send) -> None:
            inside = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://in")
            async with inside as client:
                reply = await client.post("/v1/chat/completions", json=ASKED, headers=HEADERS)
            got.append(reply.text)
            await app.aclose()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        async with serving(outer, lifespan="off") as url:
            assert (await exchange(url, ASKED, HEADERS)).status == 200
    assert last_event(got[0])["error"]


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_the_transport_raises_what_its_library_raises_for_a_broken_connection(
    library: Any,
) -> None:
    with serving_in_thread(Simulator(fault=Cut(after=600, how="end")), lifespan="off") as provider:
        transport = HeadstartTransport(f"{provider}/v1", mode="exact-only")
        url, came = f"{provider}/v1/chat/completions", list[str]()
        with (
            library.Client(transport=transport) as client,
            client.stream("POST", url, json=ASKED, headers=HEADERS) as reply,
            pytest.raises(library.RemoteProtocolError),
        ):
            came.extend(reply.iter_text())
    assert last_event("".join(came))["error"]
