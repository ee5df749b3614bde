"""Malformed requests are refused with the place of the field at fault."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from headstart.errors import InvalidRequest
from support.translated import DIALECTS, LEAST


def said(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hi"}, {"role": "user", "content": parts}]}


def replied(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", **fields}]}


MALFORMED_CHAT: dict[str, dict[str, Any]] = {
    "messages[0].role: a string is required": {"messages": [{"content": "x"}]},
    "messages[0].role: must be": {"messages": [{"role": "owner", "content": "x"}]},
    "messages[0].content: must be an array": {"messages": [{"role": "user", "content": 1}]},
    "messages[1].content[0]: must be an object": said("x"),
    "messages[1].content[1].type: a string": said({"type": "text", "text": "x"}, {"text": "y"}),
    "messages[1].content[0].text: a string is required": said({"type": "text"}),
    "messages[1].content[0].image_url: an object": said({"type": "image_url"}),
    "messages[1].content[0].image_url.url: must be a string": said(
        {"type": "image_url", "image_url": {"url": 1}}
    ),
    "messages[1].content[0].file.file_data: must be a data: URL": said(
        {"type": "file", "file": {"file_data": "UEs="}}
    ),
    "messages[0].tool_call_id: a string is required": {
        "messages": [{"role": "tool", "content": "x"}]
    },
    "messages[0].tool_calls[0].function: an object is required": replied(tool_calls=[{"id": "c"}]),
    "messages[0].tool_calls[0].type: must be": replied(tool_calls=[{"type": "odd"}]),
    "tools[0].function.name: a string is required": {"tools": [{"function": {}}]},
    "tools[0].function.parameters: must be an object": {
        "tools": [{"function": {"name": "f", "parameters": "x"}}]
    },
    "tool_choice: must be an object": {"tool_choice": "any"},
    "tool_choice.type: must be": {"tool_choice": {"type": "odd"}},
    "tool_choice.allowed_tools.mode: must be": {
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "none"}}
    },
    "response_format.type: must be": {"response_format": {"type": "xml"}},
    "response_format.json_schema: an object": {"response_format": {"type": "json_schema"}},
    "temperature: must be a number": {"temperature": "hot"},
    "seed: must be an integer": {"seed": 1.5},
    "stop[1]: must be a string": {"stop": ["a", 1]},
    "parallel_tool_calls: must be a boolean": {"parallel_tool_calls": "no"},
}
MALFORMED_MESSAGES: dict[str, dict[str, Any]] = {
    "system[0].type: a string is required": {"system": [{"text": "x"}]},
    "messages[0].role: must be": {"messages": [{"role": "tool", "content": "x"}]},
    "messages[1].content[0].source: an object is required": said({"type": "image"}),
    "messages[1].content[0].source.media_type: a string": said(
        {"type": "image", "source": {"type": "base64", "data": "x"}}
    ),
    "messages[1].content[0].tool_use_id: a string": said({"type": "tool_result"}),
    "messages[1].content[0].content[0].text: a string": said(
        {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text"}]}
    ),
    "messages[0].content[0].input: must be an object": replied(
        content=[{"type": "tool_use", "id": "c", "name": "f", "input": "{}"}]
    ),
    "tools[0].name: a string is required": {"tools": [{"input_schema": {}}]},
    "tool_choice.type: must be": {"tool_choice": {"type": "required"}},
    "tool_choice.name: a string is required": {"tool_choice": {"type": "tool"}},
    "thinking: must be an object": {"thinking": True},
    "thinking.budget_tokens: an integer is required": {"thinking": {"type": "enabled"}},
    "output_config.format.type: must be": {"output_config": {"format": {"type": "xml"}}},
    "stop_sequences: must be an array": {"stop_sequences": 1},
}
CASES = [
    *(("openai", *case) for case in MALFORMED_CHAT.items()),
    *(("anthropic", *case) for case in MALFORMED_MESSAGES.items()),
]


@pytest.mark.parametrize(("name", "message", "fields"), CASES)
def test_malformed_field_is_named_with_its_place(
    name: str, message: str, fields: dict[str, Any]
) -> None:
    dialect = DIALECTS[name]
    request = dialect.parse_request(json.dumps({**LEAST[name], **fields}).encode())
    with pytest.raises(InvalidRequest, match="^" + re.escape(message)):
        dialect.read_request(request)
