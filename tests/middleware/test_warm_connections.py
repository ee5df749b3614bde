"""``upstream.warm``: a connection that a cancelled call took is replaced in the background."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from headstart.errors import UpstreamUnreachable
from headstart.middleware.upstreams.http import HTTPUpstream
from headstart.settings import UpstreamSettings
from support.candidates import chat_call, read
from support.patience import until
from support.scripted import ScriptedUpstream
from support.serving import serving

if TYPE_CHECKING:
    from headstart.middleware.concurrency import Supervisor

pytestmark = pytest.mark.anyio


class Provider(ScriptedUpstream):
    """Notes who asks: the method, and the port at the other end of the connection."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.asked.append((scope["method"], scope["client"][1]))
        await super().__call__(scope, receive, send)


async def cancel_a_call(upstream: HTTPUpstream, provider: Provider) -> None:
    provider.head_hold = asyncio.Event()
    before = len(provider.calls)

    async def ask() -> None:
        async with await upstream.send(chat_call()):
            pytest.fail("entered")

    async with asyncio.TaskGroup() as group:
        asked = group.create_task(ask())
        while len(provider.calls) == before:
            await asyncio.sleep(0.001)
        asked.cancel()
    provider.head_hold.set()


async def settled(supervisor: Supervisor) -> None:
    await until(lambda: not supervisor.running)


@pytest.mark.parametrize("warm", [True, False])
async def test_the_next_call_finds_a_connection_where_that_is_wanted(
    supervisor: Supervisor, warm: bool
) -> None:
    provider = Provider()
    async with serving(provider) as url:
        options = UpstreamSettings(name="u", base_url=url, warm=warm)
        upstream = HTTPUpstream(options, spawn=supervisor.spawn)
        await cancel_a_call(upstream, provider)
        await settled(supervisor)
        async with await upstream.send(chat_call()) as reply:
            assert await read(reply) == "Hello from upstream"
        await upstream.aclose()
    methods, ports = zip(*provider.asked, strict=True)
    assert methods == (("POST", "HEAD", "POST") if warm else ("POST", "POST"))
    assert (ports[-1] == ports[-2]) is warm
    assert ports[0] != ports[-1]


async def test_an_answer_that_was_read_leaves_its_connection(supervisor: Supervisor) -> None:
    provider = Provider()
    async with serving(provider) as url:
        settings = UpstreamSettings(name="u", base_url=url, warm=True)
        upstream = HTTPUpstream(settings, spawn=supervisor.spawn)
        for _ in range(2):
            async with await upstream.send(chat_call()) as reply:
                await read(reply)
        await upstream.aclose()
    assert [method for method, _ in provider.asked] == ["POST", "POST"]


async def test_a_provider_that_is_gone_is_the_next_calls_trouble(supervisor: Supervisor) -> None:
    provider, gone = Provider(), asyncio.Event()

    async def later(function: Any, *args: Any) -> None:
        await gone.wait()
        await function(*args)

    async with serving(provider) as url:
        options = UpstreamSettings(name="u", base_url=url, warm=True)
        upstream = HTTPUpstream(options, spawn=partial(supervisor.spawn, later))
        await cancel_a_call(upstream, provider)
    gone.set()
    await settled(supervisor)
    with pytest.raises(UpstreamUnreachable):
        async with await upstream.send(chat_call()):
            pytest.fail("entered")
    await upstream.aclose()
