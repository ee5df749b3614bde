"""After its error event a stream that broke off has no end, where the server can leave it out."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import sys
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
from support.patience import until
from support.raw_upstream import RawUpstream, raw_upstream
from support.serving import free_port, listens, serving, serving_in_thread
from support.simulated import chat, exchange, send_raw, simulated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from headstart.middleware.asgi import Gateway
    from headstart.types import ASGIApp, Message, Receive, Scope, Send

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
async def test_a_client_may_leave_between_the_error_event_and_the_end(http: Any) -> None:
    returned: list[str] = []
    async with simulated(Simulator(fault=Cut(after=600, how="end"))) as provider:
        app = gateway_before(provider)

        async def noted(scope: Scope, receive: Receive, send: Send) -> None:
            await app(scope, receive, send)
            returned.append(scope["type"])

        async with serving(noted, http=http, log_level="error") as url:
            with uvicorn_log() as records:
                received = b""
                async with await send_raw(url, ASKED, HEADERS) as stream:
                    while b'"error"' not in received:
                        received += await stream.receive()
                    assert returned == ["lifespan"] * len(returned)
                await until(lambda: "http" in returned)
    assert not [record for record in records if record.levelno >= logging.ERROR]


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


def in_its_own_task(app: ASGIApp) -> ASGIApp:
    """As middleware does that waits for the app with a time limit."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        async def call() -> None:
            await app(scope, receive, send)

        async with asyncio.TaskGroup() as group:
            group.create_task(call())

    return run


@pytest.mark.anyio
@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize("wrap", [None, in_its_own_task])
async def test_a_stream_ends_in_the_transport_of_httpx_for_apps(library: Any, wrap: Any) -> None:
    """It asserts that an answer has an end, also inside an app that uvicorn serves."""
    async with simulated(Simulator(fault=Cut(after=600, how="end"))) as provider:
        app = gateway_before(provider)
        got: list[str] = []

        async def outer(_scope: Scope, _receive: Receive, send: Send) -> None:
            to_app = library.ASGITransport(wrap(app) if wrap else app)
            async with library.AsyncClient(transport=to_app, base_url="http://in") as client:
                reply = await client.post("/v1/chat/completions", json=ASKED, headers=HEADERS)
            got.append(reply.text)
            await app.aclose()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        with serving_in_thread(outer, lifespan="off") as url:
            assert (await exchange(url, ASKED, HEADERS)).status == 200
    assert last_event(got[0])["error"]


SERVERS = {
    "uvicorn": ["--log-level", "error", "--port", "{port}"],
    "hypercorn": ["--bind", "127.0.0.1:{port}"],
    "granian": ["--interface", "asgi", "--log-level", "error", "--port", "{port}"],
    "gunicorn": ["--worker-class", "asgi", "--log-level", "error", "--bind", "127.0.0.1:{port}"],
}
"""The options of the servers that break off an answer without an end."""
SERVED = """
from headstart import gateway
from headstart.settings import Settings, UpstreamSettings

upstream = UpstreamSettings(name="sim", base_url="PROVIDER", api_key_env=())
app = gateway(Settings(upstream=(upstream,)), store="memory:", mode="exact-only")
"""


@contextlib.asynccontextmanager
async def served_by(server: str, folder: Path, provider: str) -> AsyncIterator[str]:
    """Run a server with a gateway, and yield its URL. ``folder`` gets the file ``log``."""
    port = free_port()
    (folder / "served.py").write_text(SERVED.replace("PROVIDER", provider))
    options = [option.format(port=port) for option in SERVERS[server]]
    paths = os.pathsep.join([str(folder), *filter(None, sys.path)])
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", server, "served:app", *options),
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": paths},
        )
        try:
            await until(lambda: process.returncode is not None or listens(port))
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            await process.wait()


@pytest.mark.anyio
@pytest.mark.parametrize("server", SERVERS)
async def test_a_stream_breaks_off_under_each_server_without_a_traceback(
    server: str, tmp_path: Path
) -> None:
    if importlib.util.find_spec(server) is None:
        pytest.skip(f"{server} is not installed")
    async with (
        simulated(Simulator(fault=Cut(after=600, how="end"))) as provider,
        served_by(server, tmp_path, provider) as url,
    ):
        answer = await exchange(url, ASKED, HEADERS)
    assert answer.ended == "eof"
    assert last_event(answer.body)["error"]["code"] == "upstream_protocol_error"
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.anyio
async def test_a_stream_of_an_app_in_its_own_task_breaks_off() -> None:
    async with simulated(Simulator(fault=Cut(after=600, how="end"))) as provider:
        with serving_in_thread(in_its_own_task(gateway_before(provider))) as url:
            answer = await exchange(url, ASKED, HEADERS)
    assert answer.ended == "eof"
    assert last_event(answer.body)["error"]


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
