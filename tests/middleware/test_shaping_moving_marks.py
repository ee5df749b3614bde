"""Marks of the provider's cache move on with each turn; what was sent before them must not change.

Clients of Anthropic mark the end of what they have, in each request anew: a block that was marked
is not marked in the next request, and a text becomes a block to bear a mark.
"""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headstart.compression.compress import compress
from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.registry import DIALECTS
from headstart.middleware.shaping.quotes import number_documents
from headstart.types import Memo
from support.candidates import chat_call

if TYPE_CHECKING:
    from headstart.settings import CompressionMode

MARK = {"cache_control": {"type": "ephemeral"}}
ROWS = json.dumps([{"order": n, "status": "shipped", "warehouse": "north"} for n in range(40)])
LOG = "\n".join(f"2026-03-01 10:00:{n:02d} INFO worker {n} served request {n}" for n in range(60))
STORY = " ".join(f"The {n}th ship of the fleet was seen by {n} men in the bay." for n in range(60))
ASKED = f"<document>\n{STORY}\n</document>\nWho saw the seventh ship of the fleet?"
RESULTS = (ROWS, [{"type": "text", "text": ROWS.replace("north", "south")}], LOG, ROWS)
READ, WRITE = 0.1, 1.25


def conversation(turns: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for turn in range(turns):
        messages.append({"role": "user", "content": ASKED.replace("seventh", f"{turn}th")})
        for step, result in enumerate(copy.deepcopy(RESULTS)):
            id = f"t{turn}.{step}"
            use = {"type": "tool_use", "id": id, "name": "orders", "input": {"page": step}}
            told = {"type": "tool_result", "tool_use_id": id, "content": result}
            messages.append({"role": "assistant", "content": [use]})
            messages.append({"role": "user", "content": [told, {"type": "text", "text": "Go on"}]})
        messages.append({"role": "assistant", "content": "By seven men."})
    return messages


def marked(messages: list[dict[str, Any]], marks: str) -> dict[str, Any]:
    """Return a request with these messages, its breakpoints set as this client does."""
    messages = copy.deepcopy(messages)
    document = {"model": "claude-sonnet-4-5", "max_tokens": 100, "messages": messages}
    users = [message for message in messages if message["role"] == "user"]
    match marks:
        case "automatic":
            document |= MARK
        case "results":
            for message in [each for each in users if isinstance(each["content"], list)][-2:]:
                message["content"][0] |= MARK
        case "within results":
            for message in [each for each in users if isinstance(each["content"], list)][-2:]:
                (block, _) = message["content"]
                block["content"] = blocks(block)
                block["content"][-1] |= MARK
        case _:
            for message in users[-int(marks) :]:
                message["content"] = blocks(message)
                message["content"][-1] |= MARK
    return document


def blocks(holder: dict[str, Any]) -> list[dict[str, Any]]:
    content = holder["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def flat(document: dict[str, Any]) -> list[tuple[str, bool]]:
    """Return the blocks of a request as a cache compares them, and whether each is a breakpoint."""
    out = []
    for message in document["messages"]:
        for block in copy.deepcopy(blocks(message)):
            inner = blocks(block) if "content" in block else []
            found = [each.pop("cache_control", None) for each in (block, *inner)]
            shown = block | {"content": inner}
            out.append((json.dumps([message["role"], shown]), any(found)))
    if "cache_control" in document:
        out[-1] = (out[-1][0], True)
    return out


def prompts(marks: str) -> list[dict[str, Any]]:
    messages = conversation(3)
    ends = [n + 1 for n, message in enumerate(messages) if message["role"] == "user"]
    return [marked(messages[:end], marks) for end in ends]


def compressed(
    document: dict[str, Any], mode: CompressionMode, *, clear_history: bool
) -> dict[str, Any]:
    prompt = DIALECTS["anthropic-messages"].form.read(document)
    assert prompt is not None
    done = compress(prompt.messages, mode=mode, clear_history=clear_history)
    return prompt.with_messages(done.messages)


def numbered(document: dict[str, Any]) -> dict[str, Any]:
    body = msgspec.json.encode(document)
    dialect = ANTHROPIC_MESSAGES
    request = dialect.parse_request(body)
    call = msgspec.structs.replace(chat_call(), body=body, dialect=dialect.name, request=request)
    done = number_documents(call, request, Memo())
    assert done is not None
    return dict(msgspec.json.decode(done.call.body))


def cost(requests: list[list[tuple[str, bool]]]) -> float:
    """Return what a provider with exact breakpoints takes for these, by the character."""
    kept: set[str] = set()
    total = 0.0
    for sent in requests:
        begins = [
            ("".join(text for text, _ in sent[: n + 1]), sent[n][1]) for n in range(len(sent))
        ]
        read = max((len(begin) for begin, _ in begins if begin in kept), default=0)
        written = max((len(begin) for begin, breakpoint in begins if breakpoint), default=read)
        total += READ * read + WRITE * (written - read) + len(begins[-1][0]) - written
        kept.update(begin for begin, breakpoint in begins if breakpoint)
    return total


ALL = ["1", "2", "results", "within results", "automatic"]


@pytest.mark.parametrize("marks", ALL)
@pytest.mark.parametrize("mode", ["safe", "recoverable", "balanced", "aggressive"])
def test_a_conversation_costs_less_than_as_it_came(marks: str, mode: CompressionMode) -> None:
    asked = prompts(marks)
    sent = [flat(compressed(each, mode, clear_history=False)) for each in asked]
    for before, after in pairwise(sent):
        assert [text for text, _ in after[: len(before)]] == [text for text, _ in before]
    assert [[is_mark for _, is_mark in each] for each in sent] == [
        [is_mark for _, is_mark in flat(each)] for each in asked
    ]
    assert cost(sent) < 0.9 * cost([flat(each) for each in asked])


@pytest.mark.parametrize("marks", ALL)
def test_the_same_old_results_are_cleared_wherever_the_marks_are(marks: str) -> None:
    asked = conversation(6)
    plain, other = (
        flat(compressed(marked(asked, each), "safe", clear_history=True))
        for each in ("automatic", marks)
    )
    assert [text for text, _ in other] == [text for text, _ in plain]
    assert any("was omitted" in text for text, _ in plain)


@pytest.mark.parametrize("marks", ALL)
def test_sentences_keep_their_numbers(marks: str) -> None:
    sent = [flat(numbered(each)) for each in prompts(marks)]
    for before, after in pairwise(sent):
        assert [text for text, _ in after[: len(before)]] == [text for text, _ in before]
    assert "[q1] The 0th ship" in sent[0][0][0]
