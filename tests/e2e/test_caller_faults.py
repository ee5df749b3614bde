"""A caller's mistake gets a 4xx in the caller's dialect and is not sent to the provider."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from headstart.lab.simulator.faults import Stall, Status
from support.patience import until
from support.proxied import CHAT
from support.sidecar import PROMPT, Provider, Sidecar, headers_of, sidecar
from support.simulated import chat

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.proxied import Reply

pytestmark = pytest.mark.anyio

EXACT = {"mode": "exact-only"}
BODY = json.dumps(chat(PROMPT)).encode()
MEBIBYTE = b"x" * (1 << 20)


def assert_refused(reply: Reply, status: int, code: str) -> None:
    error = json.loads(reply.body)["error"]
    assert (reply.status, error["code"]) == (status, code)
    assert error["type"] == "invalid_request_error"
    assert error["message"]


async def assert_healthy(gateway: Sidecar, calls: int = 0) -> None:
    """A first good call is a miss: nothing was stored, and only ``calls`` went upstream."""
    assert gateway.provider.calls == calls
    reply = await gateway.ask()
    assert (reply.status, reply.headers["x-cache"]) == (200, "MISS")
    assert gateway.provider.calls == calls + 1


BAD_BODIES = {
    "empty": b"",
    "not-json": b"How can I sign up?",
    "cut-json": BODY[:-5],
    "not-an-object": b"[1, 2]",
    "invalid-utf-8": BODY.replace(b"ChatGPT", b"Chat\xff\xfeGPT"),
    "deep-nesting": BODY[:-1] + b', "metadata": ' + b"[" * 90_000 + b"]" * 90_000 + b"}",
    "deep-objects": BODY[:-1] + b', "metadata": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_001,
    "no-model": b'{"messages": []}',
    "model-of-wrong-type": BODY.replace(b'"m"', b"7"),
    "messages-of-wrong-type": b'{"model": "m", "messages": "hello"}',
    "message-of-wrong-type": b'{"model": "m", "messages": ["hello"]}',
    "stream-of-wrong-type": BODY[:-1] + b', "stream": "yes"}',
    "limit-of-wrong-type": BODY[:-1] + b', "max_tokens": "many"}',
    "choices-of-wrong-type": BODY[:-1] + b', "n": 0}',
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
async def test_a_body_that_cannot_be_read_is_an_invalid_request(body: bytes) -> None:
    async with sidecar(cache=EXACT) as gateway:
        assert_refused(await gateway.post(body), 400, "invalid_request")
        await assert_healthy(gateway)


async def test_half_an_emoji_in_a_body_is_told_with_its_place() -> None:
    body = BODY.replace(b"ChatGPT", rb"\ud83d\ude00 and \ud83d")
    async with sidecar(cache=EXACT) as gateway:
        reply = await gateway.post(body)
        assert_refused(reply, 400, "invalid_request")
        message = json.loads(reply.body)["error"]["message"]
        place = f"\\ud83d at byte {body.rindex(b'd83d') - 2} is half of a character"
        assert message.startswith(f"the body is not valid JSON: {place}")


async def test_a_body_of_50_mb_is_too_large() -> None:
    async with sidecar(cache=EXACT) as gateway:
        assert_refused(await gateway.post(BytesIO(MEBIBYTE * 50)), 413, "request_too_large")
        await assert_healthy(gateway)


async def test_a_chunked_body_of_50_mb_is_too_large() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield MEBIBYTE

    async with sidecar(cache=EXACT) as gateway:
        assert_refused(await gateway.post(chunks()), 413, "request_too_large")
        await assert_healthy(gateway)


async def test_a_chunked_and_slow_body_is_read_whole() -> None:
    async def dribble() -> AsyncIterator[bytes]:
        for byte in BODY:
            yield bytes([byte])
            await asyncio.sleep(0)

    async with sidecar(cache=EXACT) as gateway:
        assert (await gateway.post(dribble())).headers["x-cache"] == "MISS"
        assert (await gateway.ask()).headers["x-cache"] == "HIT"


@contextlib.asynccontextmanager
async def wire(gateway: Sidecar) -> AsyncIterator[tuple[asyncio.StreamReader, Any]]:
    address = urlsplit(gateway.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):  # a server that refuses may reset
            await writer.wait_closed()


def head(length: int, *more: str) -> bytes:
    fields = [f"{name}: {value}" for name, value in headers_of().items()]
    lines = [f"POST {CHAT} HTTP/1.1", "host: h", f"content-length: {length}", *fields, *more]
    return "\r\n".join([*lines, "", ""]).encode()


BOMBS = {
    "one-long-header": ("x-bomb: " + "b" * (4 << 20),),
    "many-headers": tuple(f"x-{number}: {number}" for number in range(100_000)),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
async def test_a_header_bomb_is_refused_unread(bomb: tuple[str, ...]) -> None:
    async with sidecar(cache=EXACT) as gateway:
        address, loop = urlsplit(gateway.url), asyncio.get_running_loop()
        with socket.create_connection((address.hostname, address.port)) as caller:
            caller.setblocking(False)
            with contextlib.suppress(ConnectionError):  # refused before all of it was sent
                await loop.sock_sendall(caller, head(len(BODY), *bomb) + BODY)
            assert await loop.sock_recv(caller, 12) == b"HTTP/1.1 400"
        await assert_healthy(gateway)


async def test_an_unknown_model_is_the_providers_own_404() -> None:
    unknown = Status(status=404, type="invalid_request_error", code="model_not_found")
    async with sidecar(cache=EXACT) as gateway:
        assert_refused(await gateway.ask(fault=unknown), 404, "model_not_found")
        await assert_healthy(gateway, calls=1)


async def test_no_key_is_refused_before_anything_is_read() -> None:
    async with sidecar(cache=EXACT, server={"client_keys": ["sk-test"]}) as gateway:
        refused = await gateway.ask(headers={"authorization": ""})
        assert_refused(refused, 401, "invalid_api_key")
        await assert_healthy(gateway)


async def test_no_key_for_the_provider_is_the_providers_own_401() -> None:
    async with sidecar(Provider(api_keys=["sk-test"]), cache=EXACT) as gateway:
        for _ in range(2):
            refused = await gateway.ask(headers={"authorization": "Bearer none"})
            assert_refused(refused, 401, "invalid_api_key")
        await assert_healthy(gateway, calls=2)


async def leave_in_the_head(gateway: Sidecar) -> None:
    async with wire(gateway) as (_, writer):
        writer.write(head(len(BODY))[:60])
        await writer.drain()


async def leave_in_the_body(gateway: Sidecar) -> None:
    async with wire(gateway) as (_, writer):
        writer.write(head(len(BODY)) + BODY[:20])
        await writer.drain()
    await gateway.finished(1)
    assert gateway.served[0].error == "client-gone"


@pytest.mark.parametrize("leave", [leave_in_the_head, leave_in_the_body])
async def test_a_client_that_leaves_before_its_request_is_whole_calls_nobody(leave: Any) -> None:
    async with sidecar(cache=EXACT) as gateway:
        await leave(gateway)
        await assert_healthy(gateway)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", [None, 0, 5])
async def test_a_client_that_leaves_while_it_waits_cancels_the_call(
    after: int | None, stream: bool
) -> None:
    body = json.dumps(chat(PROMPT, stream=stream)).encode()
    stall = "x-sim-fault: " + Stall(after=after, seconds=30).header()
    async with sidecar(cache=EXACT) as gateway:
        async with wire(gateway) as (reader, writer):
            writer.write(head(len(body), stall) + body)
            await until(lambda: gateway.provider.stats.snapshot().in_flight == 1)
            if stream and after:
                await reader.readuntil(b"content")
        await until(lambda: gateway.provider.stats.snapshot().cancelled == 1)
        await gateway.finished(1)
        assert gateway.served[0].error == "client-gone"
        await assert_healthy(gateway, calls=1)


async def test_a_client_that_leaves_during_a_hit_harms_nobody() -> None:
    async with sidecar(cache=EXACT) as gateway:
        await gateway.ask()
        async with wire(gateway) as (_, writer):
            writer.write(head(len(BODY)) + BODY)
        await gateway.finished(2)
        assert (await gateway.ask()).headers["x-cache"] == "HIT"
        assert gateway.provider.calls == 1
