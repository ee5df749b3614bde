from __future__ import annotations

import json

import pytest

from headstart.lab.simulator import Simulator, find_profile
from headstart.lab.simulator.app import LIFETIME_S, PrefixCache
from headstart.lab.simulator.chat_request import AskedMessage, ChatBody
from support.simulated import chat, exchange, simulated


def _chat(tokens: int, question: str = "", model: str = "m") -> ChatBody:
    system = AskedMessage(role="system", content="abcd" * tokens)
    return ChatBody(model=model, messages=(system, AskedMessage(role="user", content=question)))


def test_a_shared_prefix_is_cached_in_whole_blocks() -> None:
    cache = PrefixCache()
    assert cache.read(b"k", _chat(1300, "one"), 0) == (0, 1280)
    assert cache.read(b"k", _chat(1300, "two"), 1) == (1280, 0)
    assert cache.read(b"k", _chat(2000, "two"), 2) == (1280, 640)
    assert cache.read(b"k", _chat(1300, "three"), 2) == (1280, 0)


def test_short_prompts_other_keys_and_other_models_share_nothing() -> None:
    cache = PrefixCache()
    assert cache.read(b"k", _chat(1000), 0) == (0, 0)
    assert cache.read(b"k", _chat(1300), 0) == (0, 1280), "under 1,024 tokens nothing counts"
    assert cache.read(b"other", _chat(1300), 0) == (0, 1280)
    assert cache.read(b"k", _chat(1300, model="n"), 0) == (0, 1280)


def test_a_prefix_is_forgotten_a_while_after_its_last_use() -> None:
    cache = PrefixCache()
    cache.read(b"k", _chat(1300), 0)
    assert cache.read(b"k", _chat(1300), LIFETIME_S - 1)[0] == 1280
    assert cache.read(b"k", _chat(1300), 2 * LIFETIME_S - 2)[0] == 1280
    assert cache.read(b"k", _chat(1300), 4 * LIFETIME_S)[0] == 0


def test_reading_a_prompt_takes_time_by_its_length() -> None:
    assert find_profile("prefix").prefill_s(5000) == pytest.approx(1.0)


@pytest.mark.anyio
async def test_a_warm_prompt_says_so_and_starts_sooner() -> None:
    simulator = Simulator("prefix", speed=100)
    system = {"role": "system", "content": "abcd" * 5120}
    body = chat("hello", max_tokens=3)
    body["messages"].insert(0, system)
    async with simulated(simulator) as url:
        used = [json.loads((await exchange(url, body)).body)["usage"] for _ in range(2)]
    assert [one["prompt_tokens_details"]["cached_tokens"] for one in used] == [0, 5120]
    cold, warm = simulator.stats.records()
    assert cold.cached_tokens == 0
    assert warm.cached_tokens == 5120
    assert cold.ended_s >= 1.12 / 100, "0.1 s, 5 x 0.2 s for the prompt, three tokens"


@pytest.mark.anyio
async def test_anthropic_caches_what_is_marked_and_counts_it_apart() -> None:
    simulator = Simulator("prefix", speed=1000)
    text = {"type": "text", "text": "abcd" * 1280}
    marked = text | {"cache_control": {"type": "ephemeral"}}
    headers = {"anthropic-version": "2023-06-01"}
    seen = []
    async with simulated(simulator) as url:
        for block in (text, marked, marked):
            body = chat("hello", max_tokens=3) | {"system": [block]}
            told = json.loads((await exchange(url, body, headers, "/v1/messages")).body)["usage"]
            seen.append(
                (
                    told["input_tokens"],
                    told["cache_creation_input_tokens"],
                    told["cache_read_input_tokens"],
                )
            )
    assert seen == [(1282, 0, 0), (2, 1280, 0), (2, 0, 1280)]
