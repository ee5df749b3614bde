"""Rescue by prefill through a whole route: what the provider that goes on is sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from headstart.attempts import AttemptRole
from headstart.config import load_settings
from headstart.middleware.asgi import not_found
from headstart.middleware.dialects.openai_chat import OpenAIChat
from headstart.mount import build_gateway
from headstart.observe import Observers, Served
from support.candidates import chat_call
from support.events import decoded, folded, said
from support.scripted import ScriptedUpstream
from support.scripted_messages import ScriptedMessages
from support.serving import serving

if TYPE_CHECKING:
    from headstart.observe import Observation

pytestmark = pytest.mark.anyio

SHOWN = "Once upon a time there was a"
WHOLE = f"{SHOWN} fox."


class Notes:
    def __init__(self) -> None:
        self.rows: list[Served] = []

    def notify(self, observation: Observation) -> None:
        if isinstance(observation, Served):
            self.rows.append(observation)


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
async def test_what_was_shown_goes_up_and_the_rest_comes_down(
    dialect: str, quirks: dict[str, str], turn: dict[str, Any]
) -> None:
    cut, unable, notes = ScriptedUpstream(), ScriptedUpstream(), Notes()
    able = ScriptedMessages() if dialect == "anthropic" else ScriptedUpstream()
    cut.words, cut.terminal, able.words = [SHOWN], False, [" fox", "."]
    async with serving(cut) as a, serving(unable) as b, serving(able) as c:
        overrides = {
            "cache.store": "memory:",
            "upstream": [
                {"name": "cut", "base_url": a},
                {"name": "unable", "base_url": b},
                {"name": "able", "base_url": c, "dialect": dialect, "quirks": quirks},
            ],
            "route": [
                {
                    "name": "all",
                    "strategy": "fallback",
                    "upstreams": ["cut", "unable", "able"],
                    "rescue": "prefill",
                }
            ],
        }
        settings = await asyncio.to_thread(load_settings, None, {}, overrides)
        app = build_gateway(settings, not_found, observers=Observers([notes]))
        async with (
            serving(app) as url,
            aiohttp.ClientSession() as session,
            session.post(f"{url}/v1/chat/completions", data=chat_call().body) as response,
        ):
            stream = await response.read()
    completion = folded(decoded(OpenAIChat(), stream))
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
