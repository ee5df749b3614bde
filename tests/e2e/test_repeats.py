"""A caller that repeats a request, on real sockets: it gets another answer if it asks for one."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from headstart import Endpoint, HeadstartMiddleware
from headstart.observe import Served
from support.proxied import CHAT, Proxied, Reply, proxied, reply_of
from support.scripted import Received, ScriptedUpstream
from support.serving import serving
from support.sidecar import PROMPT, REWORDED, Provider, sidecar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


pytestmark = pytest.mark.anyio

FRESH = {"name": "chat", "on_repeat": "fresh"}
BOB = {"authorization": "Bearer bob"}


class Numbered(ScriptedUpstream):
    """Numbers its answers."""

    async def _answer(self, call: Received, send: Any) -> None:
        self.words = ["Answer", f" {len(self.calls)}"]
        await super()._answer(call, send)


@contextlib.asynccontextmanager
async def repeating(**cache: Any) -> AsyncIterator[Proxied]:
    async with proxied(
        Numbered(), routes=({**FRESH, **cache.pop("route", {})},), cache=cache
    ) as up:
        yield up


def text(reply: Reply) -> str:
    if reply.body.startswith(b"data: "):
        chunks = [json.loads(line[6:]) for line in reply.body.split(b"\n") if line[6:7] == b"{"]
        deltas = [each["delta"] for chunk in chunks for each in chunk["choices"]]
        return "".join(delta.get("content") or "" for delta in deltas)
    return str(json.loads(reply.body)["choices"][0]["message"]["content"])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_callers_repeat_is_answered_anew_and_replaces_the_answer(*, stream: bool) -> None:
    async with repeating() as proxy:
        first = await proxy.ask(stream=stream)
        await proxy.stored(1)
        again = await proxy.ask(stream=stream)
        await proxy.stored(2)
        kept = await proxy.ask(stream=stream, headers={"cache-control": "only-if-cached"})
    assert [text(each) for each in (first, again, kept)] == ["Answer 1", "Answer 2", "Answer 2"]
    assert "detail=exact-only" in first.verdict
    assert again.verdict.startswith("headstart; fwd=miss; detail=repeat")
    assert kept.verdict.endswith("detail=exact")


async def test_without_the_setting_a_repeat_is_a_hit() -> None:
    async with proxied(Numbered()) as proxy:
        await proxy.ask()
        assert (await proxy.ask()).verdict.endswith("detail=exact")


async def test_after_the_window_a_repeat_is_a_hit() -> None:
    async with repeating(route={"repeat_window_s": 1e-6}) as proxy:
        await proxy.ask()
        assert (await proxy.ask()).verdict.endswith("detail=exact")


async def test_another_caller_of_the_same_scope_gets_the_stored_answer() -> None:
    async with repeating(scope="shared") as proxy:
        await proxy.ask("Another question?", headers=BOB)  # the upstream accepts his key
        await proxy.ask()
        bobs = await proxy.ask(headers=BOB)
        anew = await proxy.ask(headers=BOB)
    assert bobs.verdict.endswith("detail=exact")
    assert "detail=repeat" in anew.verdict


async def test_two_users_of_one_key_do_not_repeat_each_other() -> None:
    async with repeating(share_users=True) as proxy:
        await proxy.ask(user="ann")
        bobs = await proxy.ask(user="bob")
        anns = await proxy.ask(user="ann")
    assert bobs.verdict.endswith("detail=exact")
    assert "detail=repeat" in anns.verdict


async def test_a_call_in_flight_is_joined_and_is_no_repeat() -> None:
    async with repeating() as proxy:
        upstream = proxy.upstream
        await proxy.ask()
        upstream.head_hold = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            anew = group.create_task(proxy.ask())
            await proxy.in_flight(1)
            retry = group.create_task(proxy.ask())
            await proxy.in_flight(2)
            upstream.head_hold.set()
        assert "detail=repeat" in anew.result().verdict
        assert "detail=joined" in retry.result().verdict
        assert text(anew.result()) == text(retry.result()) == "Answer 2"
        assert len(upstream.calls) == 2


async def test_a_client_that_leaves_at_the_last_event_has_its_answer() -> None:
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Why?"}]}
    async with repeating() as proxy:
        async with proxy.session.post(
            proxy.url + CHAT, json=body, headers={"authorization": "Bearer k"}
        ) as response:
            async for line in response.content:
                if b"[DONE]" in line:
                    break
            response.close()
        await proxy.until(Served, 1)
        assert "detail=repeat" in (await proxy.ask("Why?")).verdict


async def test_an_answer_that_the_caller_never_got_is_not_repeated() -> None:
    async with repeating() as proxy:
        proxy.upstream.status, proxy.upstream.body = 400, b'{"error":{"message":"no"}}'
        assert (await proxy.ask()).status == 400
        proxy.upstream.status, proxy.upstream.body = 200, None
        assert "detail=exact-only" in (await proxy.ask()).verdict


async def test_no_cache_replaces_the_stored_answer() -> None:
    async with proxied(Numbered()) as proxy:
        await proxy.ask()
        anew = await proxy.ask(headers={"cache-control": "no-cache"})
        kept = await proxy.ask()
    assert "detail=no-cache" in anew.verdict
    assert text(anew) == text(kept) == "Answer 2"
    assert kept.verdict.endswith("detail=exact")


async def test_a_rewording_is_no_repeat_and_what_it_was_answered_is() -> None:
    provider = Provider()
    async with sidecar(provider, routes=(FRESH,)) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        reworded = await running.ask(REWORDED)
        again = await running.ask(REWORDED)
    assert "detail=semantic" in reworded.verdict
    assert "detail=repeat" in again.verdict
    assert provider.calls == 2


async def test_an_endpoint_of_an_app_is_asked_anew() -> None:
    asked = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal asked
        asked += 1
        await receive()
        head = {"type": "http.response.start", "status": 200}
        await send({**head, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": str(asked).encode()})

    endpoint = Endpoint("/ask", prompt="question", on_repeat="fresh")
    wrapped = HeadstartMiddleware(app, endpoints=[endpoint], mode="exact-only")
    async with (
        serving(wrapped, lifespan="off") as url,
        aiohttp.ClientSession(headers={"authorization": "Bearer k"}) as session,
    ):
        said = []
        for directive in ("", "", "only-if-cached"):
            headers = {"cache-control": directive} if directive else {}
            body = {"question": "Why?"}
            async with session.post(f"{url}/ask", json=body, headers=headers) as response:
                said.append(await reply_of(response))
        await wrapped.aclose()
    assert [reply.body for reply in said] == [b"1", b"2", b"2"]
    assert "detail=repeat" in said[1].verdict
