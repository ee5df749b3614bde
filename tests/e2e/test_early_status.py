"""``early_200_s``: a streaming client gets the status 200 before there is an answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from headstart import gateway
from headstart.lab.simulator.faults import ErrorFrame, Fault, Status
from headstart.middleware.http_protocol import BoundedHeadProtocol
from headstart.settings import RouteSettings, Settings, UpstreamSettings
from support.patience import PATIENCE_S
from support.proxied import CHAT, read_body
from support.raw_upstream import open_raw
from support.scripted import ScriptedUpstream
from support.serving import serving
from support.sidecar import PROMPT, Sidecar, headers_of, sidecar
from support.simulated import chat

pytestmark = pytest.mark.anyio

EARLY = {"name": "early", "early_200_s": 0.02, "retries": 0}
EXACT = {"mode": "exact-only"}


async def early(gateway: Sidecar, fault: Fault | None = None) -> tuple[bytes, bytes]:
    """Ask while the provider waits; return what came before it went on, and after."""
    gateway.provider.open.clear()
    body = json.dumps(chat(PROMPT, stream=True)).encode()
    async with gateway.session.post(
        gateway.url + CHAT, data=body, headers=headers_of(fault)
    ) as reply:
        assert reply.status == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        before = await reply.content.readany()
        gateway.provider.open.set()
        return before, await read_body(reply)


async def test_a_comment_comes_first_and_the_answer_follows_whole() -> None:
    async with sidecar(cache=EXACT, routes=(EARLY,)) as gateway:
        before, after = await early(gateway)
        assert before == b": waiting\n\n"
        assert after.startswith(b"data: {")
        assert after.endswith(b"data: [DONE]\n\n")
        (row,) = gateway.served
        assert (row.status, row.error, row.upstream) == (200, None, "sim")
        hit = await gateway.ask(stream=True)
        assert "detail=exact" in hit.verdict


async def test_a_failure_is_an_event_then() -> None:
    async with sidecar(cache=EXACT, routes=(EARLY,)) as gateway:
        before, after = await early(gateway, Status(status=400, code="bad"))
        assert before == b": waiting\n\n"
        error = json.loads(after.removeprefix(b"data: "))["error"]
        assert error["code"]
        assert b"[DONE]" not in after


async def test_a_failure_in_the_answer_is_the_providers_own_event() -> None:
    fault = ErrorFrame(after=5, code="gone")
    async with sidecar(cache=EXACT, routes=(EARLY,)) as gateway:
        _, after = await early(gateway, fault)
        *texts, error = after.removesuffix(b"\n\n").split(b"\n\n")
        assert len(texts) == 6  # the role first
        later = await gateway.ask(fault=fault, stream=True)
        assert later.body.endswith(error + b"\n\n")


async def test_a_client_that_does_not_stream_gets_the_real_status() -> None:
    async with sidecar(cache=EXACT, routes=(EARLY,)) as gateway:
        reply = await gateway.ask(fault=Status(status=400, code="bad"))
        assert reply.status == 400


@pytest.mark.parametrize("http", ["h11", "httptools", BoundedHeadProtocol])
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_an_early_answer_that_breaks_off_ends_the_connection_after_its_error(
    http: Any, version: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """HTTP/1.0 has no sign for the end of a body, so the event alone tells the error."""
    body = json.dumps(chat(PROMPT, stream=True)).encode()
    provider = ScriptedUpstream()
    provider.head_hold, provider.terminal = asyncio.Event(), False
    head = b"POST /v1/chat/completions HTTP/%b\r\nHost: h\r\nAuthorization: Bearer k\r\n" % version
    length = b"Content-Length: %d\r\n\r\n" % len(body)
    async with serving(provider) as url:
        upstream = UpstreamSettings(name="sim", base_url=url, api_key_env=())
        route = RouteSettings(name="early", early_200_s=0.02, retries=0)
        settings = Settings(upstream=(upstream,), route=(route,))
        app = gateway(settings, store="memory:", mode="exact-only")
        async with serving(app, http=http) as served:
            reader, writer = await open_raw(served, head + length + body)
            async with asyncio.timeout(PATIENCE_S):
                answer = await reader.readuntil(b": waiting\n\n")
                provider.head_hold.set()
                answer += await reader.read()
            writer.close()
    head, _, said = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    if http != "httptools":  # uvicorn writes chunks there for HTTP/1.0, too
        assert (b"transfer-encoding: chunked" in head.lower()) == (version == b"1.1")
    assert not said.endswith(b"0\r\n\r\n")
    event = said.removesuffix(b"\r\n").rstrip(b"\n").rpartition(b"data: ")[2]
    assert json.loads(event)["error"]["code"] == "upstream_protocol_error"
    assert not [record for record in caplog.records if record.exc_info]
