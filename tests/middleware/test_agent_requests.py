"""Requests of coding agents that one API takes, for providers whose APIs refuse their content."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headstart.canonical_request import Quirks, portable_request
from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.openai_responses import OPENAI_RESPONSES
from headstart.dialects.registry import BY_SETTING

HI = {"role": "user", "content": "Hi"}
LOOK = {"name": "look", "input_schema": {"type": "object", "properties": {}}}


def history(content: Any) -> list[dict[str, Any]]:
    call = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": content}
    return [
        HI,
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]


def sent(target: str, **fields: Any) -> dict[str, Any]:
    """Return the request that the target gets for a request of Anthropic's."""
    body = json.dumps({"model": "m", "max_tokens": 99, "messages": [HI], **fields}).encode()
    asked = ANTHROPIC_MESSAGES.read_request(ANTHROPIC_MESSAGES.parse_request(body))
    written = BY_SETTING[target].write_request(portable_request(asked, Quirks()), Quirks())
    document: dict[str, Any] = json.loads(written.body)
    return document


@pytest.mark.parametrize(
    ("arguments", "told"),
    [("", "{}"), ('{"a": ', '{"_raw":"{\\"a\\": "}'), ('{"a": 1}', '{"a": 1}'), ("[]", None)],
)
def test_arguments_of_calls_are_objects_for_chat_templates(
    arguments: str, told: str | None
) -> None:
    call = {"type": "function_call", "call_id": "1", "name": "look", "arguments": arguments}
    result = {"type": "function_call_output", "call_id": "1", "output": "ok"}
    body = json.dumps({"model": "m", "input": [HI, call, result]}).encode()
    asked = OPENAI_RESPONSES.read_request(OPENAI_RESPONSES.parse_request(body))
    written = json.loads(BY_SETTING["openai"].write_request(asked, Quirks()).body)
    [written_call] = written["messages"][1]["tool_calls"]
    assert written_call["function"]["arguments"] == (told or '{"_raw":"[]"}')


@pytest.mark.parametrize("target", ["openai", "responses", "gemini", "cohere", "bedrock"])
def test_a_late_system_message_leaves_the_beginning_as_it_was(target: str) -> None:
    """With another beginning, the provider's prompt cache would not find the earlier turns."""
    late = {"role": "system", "content": "It is late."}
    turn = {"role": "assistant", "content": "Yes."}
    before = sent(target, system="Help.", messages=[HI, turn, HI])
    after = sent(target, system="Help.", messages=[HI, turn, HI, turn, late, HI])
    listed = next(name for name in ("messages", "contents", "input") if name in before)
    assert after[listed][: len(before[listed])] == before.pop(listed)
    assert before.items() <= after.items()
    assert "<system-reminder>" in json.dumps(after[listed][-2:])


def test_a_limit_below_that_of_responses_is_raised() -> None:
    """Claude Code tries a key with a limit of 1."""
    assert sent("responses", max_tokens=1)["max_output_tokens"] == 16
    assert sent("responses", max_tokens=17)["max_output_tokens"] == 17


@pytest.mark.parametrize("target", ["openai", "responses", "gemini", "cohere", "bedrock"])
def test_a_found_tool_is_told_as_text(target: str) -> None:
    found = [{"type": "tool_reference", "tool_name": "look"}]
    document = sent(target, messages=history(found), tools=[LOOK])
    assert "Found the tool look." in json.dumps(document)


def test_bedrock_gets_the_tools_of_earlier_calls() -> None:
    """Agents leave the tools out when they ask for a summary."""
    document = sent(
        "bedrock", messages=[*history("ok"), {"role": "assistant", "content": "Yes."}, HI]
    )
    [tool] = document["toolConfig"]["tools"]
    assert tool["toolSpec"]["name"] == "look"
    assert "toolConfig" not in sent("bedrock")


def test_bedrock_gets_no_temperature_above_its_own() -> None:
    assert "temperature" not in sent("bedrock", temperature=1.7)["inferenceConfig"]
    assert sent("bedrock", temperature=1)["inferenceConfig"]["temperature"] == 1
