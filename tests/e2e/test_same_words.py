"""The first repeat with courtesy, over HTTP, with the strict cold start that is the default."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headstart.settings import CacheSettings
from support.proxied import Reply, reply_of
from support.sidecar import Sidecar, sidecar

pytestmark = pytest.mark.anyio

QUESTION = "How do I reset my password?"
COURTEOUS = "Hi, how do I reset my password please?"
OTHER = "How do I reset my router?"


def chat(prompt: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": 4000}


def responses(prompt: str) -> dict[str, Any]:
    return {"model": "m", "input": prompt}


def gemini(prompt: str) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [{"text": prompt}]}]}


CLIENTS = {
    "/v1/chat/completions": chat,
    "/v1/responses": responses,
    "/v1/messages": chat,
    "/v1beta/models/m:generateContent": gemini,
}


async def ask(running: Sidecar, path: str, prompt: str, *, stream: bool, **fields: Any) -> Reply:
    """Ask as a client of the path's API does. ``fields`` are instructions."""
    body = CLIENTS[path](prompt)
    before = fields.pop("messages", [])
    body = {**body, **fields, **({"messages": [*before, *body["messages"]]} if before else {})}
    if stream and CLIENTS[path] is gemini:
        path = path.replace(":generateContent", ":streamGenerateContent?alt=sse")
    elif stream:
        body["stream"] = True
    headers = dict.fromkeys(("x-api-key", "x-goog-api-key"), "k") | {"authorization": "Bearer k"}
    async with running.session.post(running.url + path, json=body, headers=headers) as response:
        return await reply_of(response)


def said(reply: Reply) -> str:
    """Return all texts of an answer or of its pieces, joined, as they are in its JSON."""
    lines = [line for line in reply.body.decode().splitlines() if line.startswith("data: {")]
    documents = [json.loads(line[6:]) for line in lines] or [json.loads(reply.body)]
    texts: list[str] = []

    def collect(value: Any, name: str = "") -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                collect(each, key)
        elif isinstance(value, list):
            for each in value:
                collect(each, name)
        elif name in ("content", "text", "delta") and isinstance(value, str):
            texts.append(value)

    for document in documents:
        collect(document)
    return "".join(texts)


@pytest.mark.parametrize("path", CLIENTS)
async def test_a_question_with_courtesy_is_a_hit_and_one_with_another_word_is_not(
    path: str,
) -> None:
    start = CacheSettings().cold_start
    assert start == "strict"
    async with sidecar(cache={"cold_start": start}) as running:
        first = await ask(running, path, QUESTION, stream=False)
        await running.indexed(1)
        hits = [await ask(running, path, COURTEOUS, stream=stream) for stream in (True, False)]
        assert running.provider.calls == 1
        others = [await ask(running, path, OTHER, stream=stream) for stream in (True, False)]
    answer = said(first)
    assert answer
    for hit in hits:
        assert (hit.status, hit.verdict[:16]) == (200, "headstart; hit; ")
        assert hit.verdict.endswith("detail=semantic")
        assert answer in said(hit)
    assert "fwd=miss" in others[0].verdict
    assert others[1].verdict.endswith("detail=exact")  # it has got its own answer
    assert running.provider.calls == 2


@pytest.mark.parametrize("path", CLIENTS)
async def test_where_the_instructions_ask_for_a_translation_courtesy_is_part_of_the_text(
    path: str,
) -> None:
    told = "Translate the text of the user into French."
    fields: dict[str, Any] = {"system": told}
    if CLIENTS[path] is gemini:
        fields = {"systemInstruction": {"parts": [{"text": told}]}}
    elif path == "/v1/responses":
        fields = {"instructions": told}
    elif path == "/v1/chat/completions":
        fields = {"messages": [{"role": "system", "content": told}]}
    async with sidecar(cache={"cold_start": "strict"}) as running:
        await ask(running, path, QUESTION, stream=False, **fields)
        await running.indexed(1)
        reply = await ask(running, path, COURTEOUS, stream=False, **fields)
        assert "fwd=miss" in reply.verdict
        assert running.provider.calls == 2


def conversation(topic: str, question: str) -> dict[str, Any]:
    """A chat whose last question is about the topic of the first one."""
    turns = [f"Tell me about the {topic}.", f"The {topic} is for sale.", question]
    roles = ("user", "assistant", "user")
    messages = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=True)]
    return {"model": "m", "messages": messages}


async def test_in_a_conversation_courtesy_is_a_hit_only_after_the_same_turns() -> None:
    async with sidecar(cache={"cold_start": "strict"}) as running:

        async def verdict(topic: str, question: str) -> str:
            body = conversation(topic, question)
            headers = {"authorization": "Bearer k"}
            address = f"{running.url}/v1/chat/completions"
            async with running.session.post(address, json=body, headers=headers) as response:
                return (await reply_of(response)).verdict

        await verdict("red bicycle", "How much does it cost?")
        await running.indexed(1)
        assert "fwd=miss" in await verdict("blue car", "How much does it cost, please?")
        await running.indexed(2)
        for topic in ("red bicycle", "blue car"):
            assert "hit; " in await verdict(topic, "Hi, how much does it cost please?")
        assert running.provider.calls == 2


@pytest.mark.parametrize(("field", "known", "asked"), [("order", 17, 18), ("locale", "en", "de")])
async def test_in_json_courtesy_is_no_hit_beside_another_field(
    field: str, known: object, asked: object
) -> None:
    path = "/v1/chat/completions"
    async with sidecar(cache={"cold_start": "strict"}) as running:
        prompt = json.dumps({"question": QUESTION, field: known})
        await ask(running, path, prompt, stream=False)
        await running.indexed(1)
        prompt = json.dumps({"question": COURTEOUS, field: asked})
        reply = await ask(running, path, prompt, stream=False)
    assert "fwd=miss" in reply.verdict
