"""Prompts in three dialects, with texts that can be compressed."""

from __future__ import annotations

import json
from typing import Any

ROWS = [{"flight_number": f"HAT{n:03}", "status": "available", "price": n} for n in range(300)]
TABLE = json.dumps(ROWS)
"""A tool's result that becomes a table."""
QUESTION = "Which flight is the cheapest one?"
ARGUMENTS = {"origin": "JFK"}


def chat(result: str = TABLE, tool: str = "search_flights") -> dict[str, Any]:
    """Return OpenAI messages with the result of a tool."""
    function = {"name": tool, "arguments": json.dumps(ARGUMENTS)}
    return {
        "model": "gpt-4o",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": QUESTION},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": result},
        ],
    }


def messages(result: str | list[Any] = TABLE, tool: str = "search_flights") -> dict[str, Any]:
    """Return such messages for Anthropic: the user's message has two results and a text."""
    return {
        "model": "claude-sonnet-4-5",
        "max_tokens": 100,
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": QUESTION},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "tool_use", "id": "t1", "name": tool, "input": ARGUMENTS},
                    {"type": "tool_use", "id": "t2", "name": "now", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": result},
                    {"type": "tool_result", "tool_use_id": "t2", "content": "12:00"},
                    {"type": "text", "text": "Go on, please."},
                ],
            },
        ],
    }


def contents(result: str = TABLE, tool: str = "search_flights") -> dict[str, Any]:
    """Return the same for Gemini."""
    return {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [{"text": QUESTION}]},
            {
                "role": "model",
                "parts": [
                    {"functionCall": {"name": tool, "args": ARGUMENTS}, "thoughtSignature": "s"}
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"name": tool, "response": {"output": result}}},
                    {"text": "Go on, please."},
                ],
            },
        ],
    }
