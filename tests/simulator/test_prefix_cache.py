from __future__ import annotations

import json

import pytest

from headstart.lab.simulator import Simulator, find_profile
from headstart.lab.simulator.app import LIFETIME_S, PrefixCache
from headstart.lab.simulator.chat_request import AskedMessage, ChatBody
from headstart.lab.simulator.simulated_calls import PromptBlock
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
    cold, warm = simulator.stats.ended_calls()
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


def _blocks(*texts: str, marks: tuple[int, ...]) -> list[PromptBlock]:
    return [PromptBlock(text, {} if number in marks else None) for number, text in enumerate(texts)]


LONG = "abcd" * 1500


def test_a_marked_prefix_is_written_once_and_read_by_a_longer_prompt() -> None:
    cache = PrefixCache()
    assert cache.read_marked(b"k", "m", _blocks(LONG, "one.", marks=(1,)), 0) == (0, 1501)
    longer = _blocks(LONG, "one.", "said", LONG, marks=(3,))
    assert cache.read_marked(b"k", "m", longer, 1) == (1501, 1501), "found three blocks before"
    assert cache.read_marked(b"k", "m", longer, 2) == (3002, 0)
    assert cache.read_marked(b"k", "m", _blocks(LONG, "two.", marks=(1,)), 3) == (0, 1501)
    assert cache.read_marked(b"other", "m", longer, 4) == (0, 3002)


def test_a_prompt_without_marks_reads_and_writes_nothing() -> None:
    cache = PrefixCache()
    cache.read_marked(b"k", "m", _blocks(LONG, "one.", marks=(0,)), 0)
    assert cache.read_marked(b"k", "m", _blocks(LONG, "one.", marks=()), 1) == (0, 0)
    assert cache.read_marked(b"k", "m", _blocks("short", marks=(0,)), 1) == (0, 0)


def test_a_prefix_is_not_found_more_than_twenty_blocks_before_a_mark() -> None:
    cache = PrefixCache()
    cache.read_marked(b"k", "m", _blocks(LONG, marks=(0,)), 0)
    near = _blocks(LONG, *["text"] * 19, marks=(19,))
    assert cache.read_marked(b"k", "m", near, 1) == (1500, 19)
    cache.clear()
    cache.read_marked(b"k", "m", _blocks(LONG, marks=(0,)), 0)
    far = _blocks(LONG, *["text"] * 20, marks=(20,))
    assert cache.read_marked(b"k", "m", far, 1) == (0, 1520)


def test_a_read_renews_the_life_of_a_marked_prefix() -> None:
    cache = PrefixCache()
    prompt = _blocks(LONG, marks=(0,))
    cache.read_marked(b"k", "m", prompt, 0)
    assert cache.read_marked(b"k", "m", prompt, LIFETIME_S - 1) == (1500, 0)
    assert cache.read_marked(b"k", "m", prompt, 2 * LIFETIME_S - 2) == (1500, 0)
    assert cache.read_marked(b"k", "m", prompt, 4 * LIFETIME_S) == (0, 1500)


@pytest.mark.anyio
async def test_tools_and_calls_are_counted_and_a_fifth_mark_is_refused() -> None:
    simulator = Simulator("prefix", speed=1000)
    tool = {"name": "find", "description": "abcd" * 1280, "input_schema": {"type": "object"}}
    mark = {"cache_control": {"type": "ephemeral"}}
    headers = {"anthropic-version": "2023-06-01"}
    call = {"type": "tool_use", "id": "t", "name": "find", "input": {"for": "abcd" * 100}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "abcd" * 100}
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result | mark]},
    ]
    body = chat("hello", max_tokens=3) | {"tools": [tool | mark], "messages": messages}
    async with simulated(simulator) as url:
        told = json.loads((await exchange(url, body, headers, "/v1/messages")).body)["usage"]
        assert told["cache_creation_input_tokens"] > 1480
        assert told["input_tokens"] <= 1
        refused = body | {"tools": [tool | mark] * 4}
        answer = await exchange(url, refused, headers, "/v1/messages")
    assert answer.status == 400
    assert b"maximum of 4" in answer.body


@pytest.mark.anyio
async def test_a_tokenizer_may_count_the_tokens_of_marked_prompts() -> None:
    simulator = Simulator("prefix", speed=1000, count=lambda text: len(text.split()))
    marked = {"type": "text", "text": "a " * 1280, "cache_control": {"type": "ephemeral"}}
    headers = {"anthropic-version": "2023-06-01"}
    body = chat("hello there", max_tokens=3) | {"system": [marked]}
    async with simulated(simulator) as url:
        told = json.loads((await exchange(url, body, headers, "/v1/messages")).body)["usage"]
    assert (told["input_tokens"], told["cache_creation_input_tokens"]) == (2, 1280)
