"""``x-headstart-pace: sentences`` with the official clients, on real sockets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anthropic
import msgspec
import openai
import pytest
from google import genai
from google.genai import types as gemini

from headstart.lab.simulator import Oracle
from headstart.lab.simulator.faults import Cut
from headstart.policies.output.sentences import SentenceCutter
from support.sidecar import Provider, Sidecar, sidecar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = [
    pytest.mark.anyio,
    # google-genai derives its own session from aiohttp's.
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]
PACE = {"x-headstart-pace": "sentences"}
KEY = "sk-test"
SAID = (
    'Dr. Smith arrived at 3.30 p.m. on Monday. "Is it you?" she asked. Yes, it was! See '
    "example.com for more:\n\n1. The first point. \n2. The second one."
)
QUESTION = "What happened?"


class Narrator(Oracle):
    """Answers every question with the same text."""

    def _derive(self, prompt: str) -> Any:
        return msgspec.structs.replace(super()._derive(prompt), text=SAID)


async def chat(url: str) -> list[str]:
    async with openai.AsyncOpenAI(
        base_url=url + "/v1", api_key=KEY, max_retries=0, default_headers=PACE
    ) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": QUESTION}], stream=True
        )
        return [c.choices[0].delta.content or "" async for c in stream if c.choices]


async def responses(url: str) -> list[str]:
    async with openai.AsyncOpenAI(
        base_url=url + "/v1", api_key=KEY, max_retries=0, default_headers=PACE
    ) as client:
        said, whole = [], ""
        async for event in await client.responses.create(model="m", input=QUESTION, stream=True):
            if event.type == "response.output_text.delta":
                said.append(event.delta)
            if event.type == "response.completed":
                whole = event.response.output_text
        assert whole == SAID
        return said


async def messages(url: str) -> list[str]:
    async with anthropic.AsyncAnthropic(
        base_url=url, api_key=KEY, max_retries=0, default_headers=PACE
    ) as client:
        asked: Any = {"role": "user", "content": QUESTION}
        async with client.messages.stream(model="m", max_tokens=500, messages=[asked]) as stream:
            said = [text async for text in stream.text_stream]
            assert (await stream.get_final_message()).stop_reason == "end_turn"
        return said


async def gemini_api(url: str) -> list[str]:
    options = gemini.HttpOptions(base_url=url, headers=PACE)
    async with genai.Client(api_key=KEY, vertexai=False, http_options=options).aio as client:
        chunks = await client.models.generate_content_stream(model="m", contents=QUESTION)
        return [chunk.text or "" async for chunk in chunks]


CLIENTS = {
    "openai": chat,
    "responses": responses,
    "anthropic": messages,
    "gemini": gemini_api,
}


def is_whole(said: list[str], before: str = "") -> None:
    """Check that no text ends inside of a sentence."""
    whole = "".join(said)
    assert whole == before + SAID
    cutter = SentenceCutter()
    sentences = [*cutter.feed(whole), cutter.rest()]
    ends = {len("".join(sentences[:number])) for number in range(len(sentences) + 1)}
    at = 0
    for text in said:
        at += len(text)
        assert at in ends, said


def speaking(dialect: str, **provider: Any) -> Any:
    return sidecar(
        Provider(oracle=Narrator(), **provider), upstream={"dialect": dialect, "name": dialect}
    )


@pytest.mark.parametrize("client", CLIENTS)
async def test_events_hold_whole_sentences(client: str) -> None:
    ask: Callable[[str], Awaitable[list[str]]] = CLIENTS[client]
    async with speaking(client, profile="openai", speed=50) as running:
        first = await ask(running.url)
        is_whole(first)
        assert len([text for text in first if text]) >= 4
        again = await ask(running.url)
        is_whole(again)
        await running.finished(2)
        assert running.provider.calls == 1


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_translated_answer_comes_in_sentences_too(client: str) -> None:
    other = "anthropic" if client == "openai" else "openai"
    async with speaking(other) as running:
        is_whole(await CLIENTS[client](running.url))


async def plain(running: Sidecar, **fields: Any) -> str:
    reply = await running.ask(QUESTION, headers=PACE, **fields)
    assert reply.status == 200
    return reply.body.decode()


async def test_an_answer_that_is_not_streamed_is_not_changed() -> None:
    async with speaking("openai") as running:
        body = await plain(running)
        assert json.loads(body)["choices"][0]["message"]["content"] == SAID


async def test_each_choice_has_sentences_of_its_own() -> None:
    async with speaking("openai") as running:
        body = await plain(running, stream=True, n=2)
    said: dict[int, list[str]] = {0: [], 1: []}
    for line in body.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                said[choice["index"]].append(choice["delta"].get("content") or "")
    is_whole(said[0])
    is_whole(said[1], before="Put another way, variant 1: ")


async def test_a_stream_that_breaks_off_loses_no_text() -> None:
    async with speaking("openai") as running:
        reply = await running.ask(QUESTION, stream=True, fault=Cut(after=12), headers=PACE)
        said = "".join(
            choice["delta"].get("content") or ""
            for line in reply.body.decode().splitlines()
            if line.startswith("data: {")
            for choice in json.loads(line[6:]).get("choices", ())
        )
        assert said
        assert SAID.startswith(said)
        assert b'"error"' in reply.body


async def test_another_pace_is_refused() -> None:
    async with speaking("openai") as running:
        reply = await running.ask(QUESTION, headers={"x-headstart-pace": "words"})
        assert reply.status == 400
        assert b"X-Headstart-Pace" in reply.body
