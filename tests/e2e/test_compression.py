"""Compressed prompts through the whole proxy: what is sent, reported, booked and shared."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from headstart.compression.lossless import expand
from headstart.middleware.shaping import prompt_compression as module
from headstart.observe import Served
from support.patience import until
from support.prompts import ROWS, chat, messages
from support.proxied import CHAT, Proxied, Reply, proxied, reply_of
from support.scripted_messages import ScriptedMessages

if TYPE_CHECKING:
    from headstart.attempts import ShapingEffect

pytestmark = pytest.mark.anyio

LOG = "\n".join(f"2026-11-21 10:00:{n % 60:02} INFO worker {n} is alive" for n in range(400))


async def post(
    proxy: Proxied, document: dict[str, Any], mode: str | None = None, path: str = CHAT
) -> Reply:
    """Send a request; ``mode`` is what its caller allows."""
    headers = {"authorization": "Bearer k", "x-api-key": "k"}
    if mode is not None:
        headers["x-headstart-compress"] = mode
    async with proxy.session.post(proxy.url + path, json=document, headers=headers) as response:
        return await reply_of(response)


def transforms(reply: Reply) -> set[str]:
    return set(reply.headers.get("x-headstart-transforms", "").replace(" ", "").split(","))


async def shaped(proxy: Proxied, count: int = 1) -> ShapingEffect:
    """Return what was booked of the only request that was compressed."""
    await proxy.until(Served, count)
    (row,) = [each for served in proxy.served for each in served.shaped]
    return row


@pytest.mark.parametrize("stream", [False, True])
async def test_results_go_up_shorter_and_the_answer_says_so(*, stream: bool) -> None:
    async with proxied() as proxy:
        reply = await post(proxy, {**chat(), "stream": stream})
        (call,) = proxy.upstream.calls
        row = await shaped(proxy)
    sent = call.json["messages"]
    assert json.loads(expand(sent[3]["content"])) == ROWS
    assert sent[:3] == chat()["messages"][:3]
    assert len(sent[3]["content"]) < 0.6 * len(chat()["messages"][3]["content"])
    assert "compressed:safe" in transforms(reply)
    assert row.kind == "compress"
    assert row.tokens_after < 0.6 * row.tokens_before


async def test_without_a_cache_prompts_are_compressed_all_the_same() -> None:
    async with proxied(cache={"enabled": False}) as proxy:
        reply = await post(proxy, chat())
    assert "compressed:safe" in transforms(reply)
    assert "detail=disabled" in reply.headers["cache-status"]


@pytest.mark.parametrize("upstreams", [{}, {"upstreams": ["sim"]}])
async def test_a_route_has_a_mode_of_its_own(upstreams: dict[str, Any]) -> None:
    routes = tuple(
        {"name": mode, "match": {"model": mode}, "compression": mode, **upstreams}
        for mode in ("off", "balanced")
    )
    async with proxied(routes=routes) as proxy:
        replies = [
            await post(proxy, {**chat(), "model": model}) for model in ("off", "balanced", "m")
        ]
        first, _, _ = proxy.upstream.calls
    assert first.json["messages"] == chat()["messages"]
    assert [
        {each for each in transforms(reply) if each.startswith("compressed")} for reply in replies
    ] == [set(), {"compressed:balanced"}, {"compressed:safe"}]


async def test_anthropics_prompts_are_compressed_too() -> None:
    async with proxied(ScriptedMessages(), provider={"dialect": "anthropic"}) as proxy:
        reply = await post(proxy, messages(), path="/v1/messages")
        (call,) = proxy.upstream.calls
    assert reply.status == 200
    assert "compressed:safe" in transforms(reply)
    first, *others = call.json["messages"][2]["content"]
    assert json.loads(expand(first["content"])) == ROWS
    assert others == messages()["messages"][2]["content"][1:]
    assert call.json["system"] == messages()["system"]


async def test_a_request_for_less_compression_gets_no_answer_with_more() -> None:
    async with proxied(compression={"mode": "balanced"}) as proxy:
        first = await post(proxy, chat())
        await proxy.stored(1)
        again = await post(proxy, chat(), "balanced")
        off = await post(proxy, chat(), "off")
        await proxy.stored(2)
        off_again = await post(proxy, chat(), "off")
        anyone = await post(proxy, chat())
        calls = proxy.upstream.calls
    assert "compressed:balanced" in transforms(first)
    assert "detail=exact" in again.verdict
    assert "detail=compressed" in off.verdict
    assert [call.json["messages"] == chat()["messages"] for call in calls] == [False, True]
    assert "detail=exact" in off_again.verdict
    assert "detail=exact" in anyone.verdict


async def test_callers_who_allow_different_modes_share_no_call_in_the_air() -> None:
    async with proxied() as proxy:
        proxy.upstream.head_hold = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(post(proxy, chat(), mode)) for mode in ("safe", "off")]
            await until(lambda: len(proxy.upstream.calls) >= 2)
            proxy.upstream.head_hold.set()
    assert ["compressed:safe" in transforms(each.result()) for each in asked] == [True, False]


async def test_an_unknown_mode_is_a_400_that_names_the_modes() -> None:
    async with proxied() as proxy:
        reply = await post(proxy, chat(), "on")
    assert reply.status == 400
    assert (
        "off, safe, recoverable, balanced, aggressive" in json.loads(reply.body)["error"]["message"]
    )
    assert proxy.upstream.calls == []


async def test_a_dry_run_sends_the_callers_own_bytes_and_books_what_it_would_save() -> None:
    async with proxied(compression={"mode": "balanced", "dry_run": True}) as proxy:
        reply = await post(proxy, chat(LOG))
        (call,) = proxy.upstream.calls
        row = await shaped(proxy)
    assert call.json["messages"] == chat(LOG)["messages"]
    assert not any(each.startswith("compressed") for each in transforms(reply))
    assert row.kind == "compress-dry-run"
    assert row.tokens_after < row.tokens_before


async def test_compression_that_fails_costs_nobody_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("the secret prompt")

    monkeypatch.setattr(module, "compress", fail)
    async with proxied() as proxy:
        reply = await post(proxy, chat())
        (call,) = proxy.upstream.calls
    assert reply.status == 200
    assert call.json["messages"] == chat()["messages"]
