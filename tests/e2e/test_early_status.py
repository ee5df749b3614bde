"""``early_200_s``: a streaming client gets the status 200 before there is an answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from headstart.lab.simulator.faults import ErrorFrame, Status
from support.proxied import CHAT, read_body
from support.sidecar import PROMPT, headers_of, sidecar
from support.simulated import chat

if TYPE_CHECKING:
    from headstart.lab.simulator.faults import Fault
    from support.sidecar import Sidecar

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
