"""Edits, quotes and predictions through the whole proxy: requests, answers, stored answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headstart.middleware.shaping.edits import INSTRUCTION
from headstart.observe import Served
from support.proxied import Proxied, Reply, proxied
from support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

LINES = [f"line {number} of a document that is long enough" for number in range(80)]
DOCUMENT = "\n".join(LINES)
ASKED = f"Rename line 7.\n\n```text\n{DOCUMENT}\n```"
BLOCK = f"<<<<<<< SEARCH\n{LINES[7]}\n=======\nline seven\n>>>>>>> REPLACE\n"
CHANGED = f"```text\n{DOCUMENT.replace(LINES[7], 'line seven')}\n```"
FACT = "The tower was built in 1889."
RETRIEVED = f"<document>\n{FACT} It is made of iron and rivets.\n</document>\nWhen?"


def saying(*words: str) -> ScriptedUpstream:
    upstream = ScriptedUpstream()
    upstream.words = list(words)
    return upstream


def text_of(reply: Reply, *, stream: bool) -> str:
    if not stream:
        return str(json.loads(reply.body)["choices"][0]["message"]["content"])
    frames = [line[6:] for line in reply.body.decode().split("\n\n") if line]
    assert frames.pop() == "[DONE]"
    deltas: list[Any] = [
        choice["delta"] for each in frames for choice in json.loads(each)["choices"]
    ]
    return "".join(delta.get("content") or "" for delta in deltas)


def transforms(reply: Reply) -> list[str]:
    return reply.headers.get("x-headstart-transforms", "").replace(" ", "").split(",")


async def served(proxy: Proxied, count: int = 1) -> list[Served]:
    await proxy.until(Served, count)
    return proxy.served


@pytest.mark.parametrize("stream", [False, True])
async def test_an_edit_is_written_in_blocks_and_kept_whole(*, stream: bool) -> None:
    async with proxied(saying(BLOCK[:30], BLOCK[30:]), output={"edits": "blocks"}) as proxy:
        first = await proxy.ask(ASKED, stream=stream)
        await proxy.stored(1)
        second = await proxy.ask(ASKED, stream=stream)
        rows = await served(proxy, 2)
        (call,) = proxy.upstream.calls
    assert text_of(first, stream=stream) == text_of(second, stream=stream) == CHANGED
    assert "edits" in transforms(first)
    assert "hit" in second.verdict
    assert call.json["messages"] == [{"role": "user", "content": f"{ASKED}\n\n{INSTRUCTION}"}]
    (row,) = rows[0].shaped
    assert (row.kind, row.tokens_after < 0.1 * row.tokens_before) == ("edits", True)
    assert rows[0].completion_tokens == 20


async def test_blocks_that_leave_a_doubt_are_booked_and_asked_for_again() -> None:
    async with proxied(
        saying("<<<<<<< SEARCH\nno such line\n=======\n"), output={"edits": "blocks"}
    ) as proxy:
        reply = await proxy.ask(ASKED, stream=True)
        (row,) = await served(proxy)
    assert "edits:again" in transforms(reply)
    assert [(each.role, each.outcome) for each in row.attempts] == [
        ("first", "rejected"),
        ("retry", "won"),
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_mark_comes_down_as_the_sentence_and_goes_up_as_a_mark(*, stream: bool) -> None:
    async with proxied(saying("It says: ⟦q", ":1⟧ So."), output={"quotes": True}) as proxy:
        reply = await proxy.ask(RETRIEVED, stream=stream)
        shown = text_of(reply, stream=stream)
        turns = [
            {"role": "user", "content": RETRIEVED},
            {"role": "assistant", "content": shown},
            {"role": "user", "content": "And then?"},
        ]
        await proxy.ask(messages=turns, stream=stream)
        first, second = (call.json["messages"] for call in proxy.upstream.calls)
    assert shown == f"It says: {FACT} So."
    assert "quotes" in transforms(reply)
    assert second[: len(first)] == first
    assert second[len(first)] == {"role": "assistant", "content": "It says: ⟦q:1⟧ So."}


async def test_the_document_is_predicted_where_the_provider_takes_that() -> None:
    quirks = {"quirks": {"prediction": True}}
    async with proxied(saying(CHANGED), provider=quirks, output={"edits": "prediction"}) as proxy:
        reply = await proxy.ask(ASKED)
        (call,) = proxy.upstream.calls
    assert call.json["prediction"] == {"type": "content", "content": f"```text\n{DOCUMENT}\n```"}
    assert "prediction" in transforms(reply)


async def test_nothing_of_it_is_done_unasked() -> None:
    async with proxied(saying(BLOCK, "⟦q:1⟧")) as proxy:
        assert text_of(await proxy.ask(ASKED), stream=False) == f"{BLOCK}⟦q:1⟧"
        await proxy.ask(RETRIEVED)
        sent = [call.json["messages"][0]["content"] for call in proxy.upstream.calls]
    assert sent == [ASKED, RETRIEVED]
