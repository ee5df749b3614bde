"""Rescue by prefill through a whole route: what the provider that goes on is sent."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import msgspec
import pytest

from headstart.attempts import AttemptRole
from headstart.config.loading import load_settings
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.lab.simulator import Simulator
from headstart.lab.simulator.faults import Cut
from headstart.lab.simulator.profiles import find_profile
from headstart.middleware.asgi import not_found
from headstart.middleware.observers import Observers
from headstart.mount import build_gateway
from headstart.observe import Observation, Served
from support.candidates import chat_call
from support.events import decoded, folded, said
from support.scripted import ScriptedUpstream
from support.scripted_messages import ScriptedMessages
from support.serving import serving
from support.simulated import simulated

pytestmark = pytest.mark.anyio

SHOWN = "Once upon a time there was a"
WHOLE = f"{SHOWN} fox."


class Notes:
    def __init__(self) -> None:
        self.rows: list[Served] = []

    def notify(self, observation: Observation) -> None:
        if isinstance(observation, Served):
            self.rows.append(observation)


async def post(overrides: dict[str, Any], notes: Notes) -> bytes:
    """Return the stream that a gateway with these settings answers."""
    settings = await asyncio.to_thread(load_settings, None, {}, overrides)
    app = build_gateway(settings, not_found, observers=Observers([notes]))
    async with (
        serving(app) as url,
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", data=chat_call().body) as response,
    ):
        return await response.read()


def settings_of(*upstreams: dict[str, Any]) -> dict[str, Any]:
    route = {
        "name": "all",
        "strategy": "fallback" if len(upstreams) > 1 else "single",
        "upstreams": [each["name"] for each in upstreams],
        "rescue": "prefill",
    }
    return {
        "cache.store": "memory:",
        "cache.mode": "exact-only",
        "upstream": [*upstreams],
        "route": [route],
    }


@pytest.mark.parametrize(
    ("dialect", "quirks", "turn"),
    [
        ("anthropic", {"prefill": "plain"}, {"role": "assistant", "content": SHOWN}),
        ("openai", {"prefill": "plain"}, {"role": "assistant", "content": SHOWN}),
        (
            "openai",
            {"prefill": "prefix"},
            {"role": "assistant", "content": SHOWN, "prefix": True},
        ),
    ],
)
async def test_the_shown_text_is_sent_and_the_rest_is_received(
    dialect: str, quirks: dict[str, str], turn: dict[str, Any]
) -> None:
    cut, unable, notes = ScriptedUpstream(), ScriptedUpstream(), Notes()
    able = ScriptedMessages() if dialect == "anthropic" else ScriptedUpstream()
    cut.words, cut.terminal, able.words = [SHOWN], False, [" fox", "."]
    async with serving(cut) as a, serving(unable) as b, serving(able) as c:
        stream = await post(
            settings_of(
                {"name": "cut", "base_url": a},
                {"name": "unable", "base_url": b},
                {"name": "able", "base_url": c, "dialect": dialect, "quirks": quirks},
            ),
            notes,
        )
    completion = folded(decoded(OPENAI_CHAT, stream))
    assert said(completion.choices[0]) == [("text", WHOLE)]
    assert completion.choices[0].finish == "stop"
    (sent,) = able.calls
    last = sent.json["messages"][-1]
    content = last["content"]
    if isinstance(content, list):
        content = content[0]["text"]
    assert {**last, "content": content} == turn
    assert unable.calls == []
    (row,) = notes.rows
    assert [each.role for each in row.attempts] == [AttemptRole.FIRST, AttemptRole.RESCUE]
    assert row.completion_tokens == 20 + len(SHOWN) // 4
    assert not row.stored


@pytest.mark.parametrize("after", [9, 20])
async def test_two_providers_of_a_model_give_the_whole_answer(after: int) -> None:
    profile = msgspec.structs.replace(find_profile("instant"), prefill="continued")
    broken = Simulator(profile, fault=Cut(after=after))
    notes = Notes()
    async with simulated(broken) as a, simulated(Simulator(profile)) as b:
        able = {"quirks": {"prefill": "plain"}}
        stream = await post(
            settings_of({"name": "a", "base_url": a}, {"name": "b", "base_url": b, **able}), notes
        )
        whole = await post(settings_of({"name": "b", "base_url": b}), notes)
    answers = [folded(decoded(OPENAI_CHAT, each)).choices[0] for each in (stream, whole)]
    assert said(answers[0]) == said(answers[1])
    assert [len(row.attempts) for row in notes.rows] == [2, 1]
