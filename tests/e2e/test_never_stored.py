"""Texts that are never stored: neither in the store's file, nor for the next request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import aiohttp
import openai
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from headstart import Endpoint, HeadstartMiddleware
from headstart.config.checks import checked
from headstart.config.loading import load_settings
from headstart.errors import ConfigError
from headstart.lab.simulator import Oracle
from support.serving import serving
from support.sidecar import PROMPT, sidecar

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request

pytestmark = pytest.mark.anyio

CARD = "4111 1111 1111 1111"
CARDS = r"\b(?:\d[ -]?){13,16}\b"
WORD = Oracle().truth(PROMPT).text.split()[0]


def files_of(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in folder.iterdir())


def store(folder: Path, **cache: Any) -> dict[str, Any]:
    return {"store": f"sqlite:///{folder / 'kept.db'}", **cache}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_with_such_a_text_is_neither_looked_up_nor_stored(
    tmp_path: Path, *, stream: bool
) -> None:
    history = [
        {"role": "user", "content": [{"type": "text", "text": f"My card is {CARD}."}]},
        {"role": "assistant", "content": "Thanks."},
        {"role": "user", "content": PROMPT},
    ]
    body = json.dumps({"model": "m", "messages": history, "stream": stream}).encode()
    async with sidecar(cache=store(tmp_path, never_stored=CARDS)) as gateway:
        replies = [await gateway.post(body) for _ in range(2)]
        await gateway.ask("Which bird sings at night?")
        await gateway.finished(3)
        assert gateway.provider.calls == 3
    for reply in replies:
        assert reply.headers["cache-status"] == "headstart; fwd=bypass; detail=never-stored"
    assert [row.reason for row in gateway.served][:2] == ["never-stored"] * 2
    found = files_of(tmp_path)
    assert CARD.encode() not in found
    assert b"nightingale" in found or b"bird" in found  # the other request is there


async def test_a_text_that_is_escaped_in_the_json_counts(tmp_path: Path) -> None:
    escaped = json.dumps({"model": "m", "messages": [{"role": "user", "content": "für Hände"}]})
    assert "\\u00e4" in escaped
    async with sidecar(cache=store(tmp_path, never_stored="Hände")) as gateway:
        reply = await gateway.post(escaped.encode())
    assert "never-stored" in reply.headers["cache-status"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_with_such_a_text_is_sent_and_not_stored(
    tmp_path: Path, *, stream: bool
) -> None:
    async with sidecar(cache=store(tmp_path, never_stored=[CARDS, f"{WORD}"])) as gateway:
        replies = [await gateway.ask(stream=stream) for _ in range(2)]
        await gateway.finished(2)
        assert gateway.provider.calls == 2
    assert all(WORD.encode() in reply.body for reply in replies)
    assert WORD.encode() not in files_of(tmp_path)


async def test_an_answer_of_responses_is_not_kept_for_later_calls(tmp_path: Path) -> None:
    upstream = {"also_speaks": ["responses"]}
    async with sidecar(upstream=upstream, cache=store(tmp_path, never_stored=WORD)) as gateway:
        client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0)
        async with client:
            answer = await client.responses.create(model="m", input=PROMPT)
        await gateway.finished(1)
    assert WORD in answer.output_text
    assert WORD.encode() not in files_of(tmp_path)


async def test_the_prompt_of_an_app_and_its_answer_count(tmp_path: Path) -> None:
    async def answer(request: Request) -> JSONResponse:
        return JSONResponse({"answer": f"for {(await request.json())['to']}: Hände"})

    app = Starlette(routes=[Route("/ask", answer, methods=["POST"])])
    wrapped = HeadstartMiddleware(
        app,
        endpoints=[Endpoint("/ask", prompt="question")],
        store=f"sqlite:///{tmp_path / 'kept.db'}",
        never_stored=[CARDS, "an [H]ände", "Anna: H"],
    )
    async with serving(wrapped) as url, aiohttp.ClientSession() as session:

        async def ask(question: str, to: str) -> str:
            body, headers = {"question": question, "to": to}, {"authorization": "Bearer k"}
            async with session.post(f"{url}/ask", json=body, headers=headers) as reply:
                assert reply.status == 200
                return reply.headers["cache-status"]

        assert "never-stored" in await ask(f"Is {CARD} right?", "Ben")
        assert "never-stored" in await ask("Is it right?", CARD)
        for _ in range(2):  # the answer is JSON, in which the text may be escaped
            assert "fwd=miss" in await ask("Is it right?", "Anna")
        await ask("Is it right?", "Ben")
        assert "hit" in await ask("Is it right?", "Ben")
    assert CARD.encode() not in files_of(tmp_path)


async def test_items_that_are_escaped_in_the_json_count(tmp_path: Path) -> None:
    body = json.dumps({"model": "m", "input": ["für Hände", "x"]})
    async with sidecar(cache=store(tmp_path, never_stored="Hände")) as gateway:
        headers = {"authorization": "Bearer k", "content-type": "application/json"}
        asked = gateway.session.post(f"{gateway.url}/v1/embeddings", data=body, headers=headers)
        async with asked as reply:
            assert "never-stored" in reply.headers["cache-status"]


async def test_a_route_has_expressions_of_its_own(tmp_path: Path) -> None:
    routes = (
        {"name": "free", "match": {"header": {"x-team": "free"}}, "never_stored": []},
        {"name": "ward", "match": {"header": {"x-team": "ward"}}, "never_stored": "patient"},
    )
    async with sidecar(cache=store(tmp_path, never_stored=CARDS), routes=routes) as gateway:
        told = [
            (await gateway.ask(text, headers={"x-team": team})).headers["cache-status"]
            for team, text in (
                ("free", CARD), ("ward", CARD), ("ward", "the patient"), ("none", CARD),
                ("none", "the patient"),
            )
        ]  # fmt: skip
    assert ["never-stored" in each for each in told] == [False, False, True, True, False]


@pytest.mark.parametrize("wrong", ["(", "x*"])
async def test_a_wrong_expression_is_named(wrong: str) -> None:
    given: dict[str, Any] = {"cache.never_stored": [wrong]}
    given["upstream"] = [{"base_url": "http://127.0.0.1:1"}]
    with pytest.raises(ConfigError, match=r"cache\.never_stored"):
        checked(load_settings(None, {}, given))
