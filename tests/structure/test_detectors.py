"""The house's own detectors work: a server starts and stops, leaks and blocking calls are seen."""

from __future__ import annotations

import asyncio
import urllib.request
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from support.leaks import leaked_sockets, leaked_tasks, open_sockets
from support.serving import bind_free_port, serving, serving_in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class EchoPath:
    """Answers with its path and records its lifespan."""

    def __init__(self, fail: bool = False) -> None:
        self.lifespan: list[str] = []
        self.fail = fail

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["raw_path"]})

    async def _live(self, receive: Any, send: Any) -> None:
        for event in ("startup", "shutdown"):
            await receive()
            self.lifespan.append(event)
            if self.fail:
                await send({"type": "lifespan.startup.failed"})
                return
            await send({"type": f"lifespan.{event}.complete"})


@pytest.mark.anyio
async def test_app_is_served_with_its_lifespan_in_the_tests_loop() -> None:
    app = EchoPath()
    async with serving(app) as url, aiohttp.ClientSession() as session:
        assert app.lifespan == ["startup"]
        async with session.get(f"{url}/path") as response:
            assert await response.text() == "/path"
    assert app.lifespan == ["startup", "shutdown"]


def test_app_is_served_in_a_thread() -> None:
    app = EchoPath()
    with serving_in_thread(app) as url, urllib.request.urlopen(f"{url}/path") as response:
        assert response.read() == b"/path"
    assert app.lifespan == ["startup", "shutdown"]


@pytest.mark.anyio
async def test_failed_lifespan_is_reported() -> None:
    with pytest.raises(RuntimeError, match="lifespan"):
        async with serving(EchoPath(fail=True)):
            pass


@pytest.mark.anyio
async def test_serve_fixture_returns_the_base_url(
    serve: Callable[[Any], Awaitable[str]],
) -> None:
    url = await serve(EchoPath())
    async with aiohttp.request("GET", url) as response:
        assert response.status == 200


@pytest.mark.anyio
async def test_task_left_running_is_named() -> None:
    before = frozenset(asyncio.all_tasks())
    forgotten = asyncio.create_task(asyncio.Event().wait(), name="forgotten")  # noqa: TID251
    assert "forgotten" in (await leaked_tasks(before, settle_s=0.01))[0]
    forgotten.cancel()
    assert await leaked_tasks(before) == []


@pytest.mark.anyio
async def test_socket_left_open_is_counted() -> None:
    before = open_sockets()
    with bind_free_port():
        assert await leaked_sockets(before, settle_s=0.01) == 1
    assert await leaked_sockets(before) == 0
