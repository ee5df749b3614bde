"""Requests with every field of their dialects, and functions that translate them."""

from __future__ import annotations

import base64
import copy
import json
from typing import TYPE_CHECKING, Any

import anthropic.types.message_create_params as messages_api
import msgspec
import openai.types.chat.completion_create_params as chat_api
import pydantic

from headstart.canonical_request import CanonicalRequest, Quirks
from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.openai_chat import OPENAI_CHAT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.dialects.dialect import Dialect

OPENAI = OPENAI_CHAT
ANTHROPIC = ANTHROPIC_MESSAGES
DIALECTS: dict[str, Dialect] = {"openai": OPENAI, "anthropic": ANTHROPIC}
_SCHEMAS: dict[str, pydantic.TypeAdapter[Any]] = {
    "openai": pydantic.TypeAdapter(chat_api.CompletionCreateParams),
    "anthropic": pydantic.TypeAdapter(messages_api.MessageCreateParams),
}

PNG = base64.b64encode(b"\x89PNG").decode()
PDF = base64.b64encode(b"%PDF").decode()
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
LOOSE_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}

CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "system", "content": "Be kind.", "name": "sys"},
        {
            "role": "user",
            "name": "ann",
            "content": [
                {"type": "text", "text": "What is this?"},
                {
                    "type": "image_url",
                    "image_url": {"url": f"data:image/png;base64,{PNG}", "detail": "low"},
                },
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
                {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
                {
                    "type": "file",
                    "file": {
                        "filename": "a.pdf",
                        "file_data": f"data:application/pdf;base64,{PDF}",
                    },
                },
                {"type": "file", "file": {"file_id": "file-1"}},
            ],
        },
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "look", "arguments": '{"city":"Bonn"}'},
                },
                {"id": "call_2", "type": "custom", "custom": {"name": "sh", "input": "ls"}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain."},
        {
            "role": "tool",
            "tool_call_id": "call_2",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        },
        {"role": "assistant", "content": None, "refusal": "I cannot."},
        {"role": "assistant", "content": None, "audio": {"id": "audio_1"}},
        {"role": "user", "content": "Why?"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "look",
                "description": "Look.",
                "parameters": LOOSE_SCHEMA,
                "strict": True,
            },
        },
        {"type": "custom", "custom": {"name": "sh"}},
    ],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "required",
            "tools": [
                {"type": "function", "function": {"name": "look"}},
                {"type": "custom", "custom": {"name": "sh"}},
            ],
        },
    },
    "parallel_tool_calls": False,
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "city", "description": "A", "schema": SCHEMA, "strict": True},
    },
    "reasoning_effort": "high",
    "max_completion_tokens": 100,
    "temperature": 0.5,
    "top_p": 0.9,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.2,
    "seed": 0,
    "stop": ["END", "\n"],
    "n": 2,
    "logprobs": True,
    "top_logprobs": 3,
    "user": "u1",
    "safety_identifier": "s1",
    "stream": True,
    "stream_options": {"include_usage": True, "include_obfuscation": False},
    "logit_bias": {"5": 1},
    "metadata": {"k": "v"},
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy", "format": "mp3"},
    "service_tier": "flex",
    "prompt_cache_key": "p",
    "made_up": {"a": [1]},
}

MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 5000,
    "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?", "cache_control": {"type": "ephemeral"}},
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": PNG},
                },
                {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
                {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
                {
                    "type": "document",
                    "title": "A",
                    "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
                },
                {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": "Häuser"},
                    "citations": {"enabled": True},
                },
                {"type": "document", "source": {"type": "content", "content": "x"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "text", "text": "Let me see."},
                {
                    "type": "tool_use",
                    "id": "toolu_1",
                    "name": "look",
                    "input": {"city": "Bonn"},
                    "cache_control": {"type": "ephemeral"},
                },
                {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}},
                {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Rain."},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "is_error": True,
                    "content": [
                        {"type": "text", "text": "No clock."},
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": "image/png", "data": PNG},
                        },
                    ],
                },
                {"type": "text", "text": "Go on."},
            ],
        },
        {"role": "system", "content": "Now in German."},
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "Because"},
    ],
    "tools": [
        {
            "name": "look",
            "description": "Look.",
            "input_schema": LOOSE_SCHEMA,
            "strict": True,
            "cache_control": {"type": "ephemeral"},
        },
        {"name": "now", "input_schema": {"type": "object", "properties": {}}},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 2},
    ],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 2048, "display": "omitted"},
    "output_config": {
        "effort": "high",
        "format": {"type": "json_schema", "schema": SCHEMA},
        "made_up": 1,
    },
    "temperature": 1.0,
    "top_p": 0.95,
    "top_k": 40,
    "stop_sequences": ["END", "a", "b", "c", "d"],
    "stream": True,
    "metadata": {"user_id": "u1", "made_up": "x"},
    "service_tier": "standard_only",
    "cache_control": {"type": "ephemeral"},
    "made_up": {"a": [1]},
}
WHOLE = {"openai": CHAT, "anthropic": MESSAGES}


def _portable_chat() -> dict[str, Any]:
    chat = copy.deepcopy(CHAT)
    for name in ("n", "modalities", "audio"):
        del chat[name]
    messages = chat["messages"]
    del messages[2]["content"][5]  # a file that only OpenAI can find
    del messages[2]["content"][3]  # a sound
    del messages[3]["tool_calls"][1], messages[7], messages[5]  # a custom tool, its result, audio
    del chat["tools"][1], chat["tool_choice"]["allowed_tools"]["tools"][1]
    return chat


def _portable_messages() -> dict[str, Any]:
    request = copy.deepcopy(MESSAGES)
    content = request["messages"][0]["content"]
    del content[6], content[3]  # nested content, and a file that only Anthropic has
    del request["messages"][1]["content"][5], request["tools"][2]  # a tool that Anthropic runs
    del request["messages"][-1]  # a turn to go on with
    return request


PORTABLE = {"openai": _portable_chat(), "anthropic": _portable_messages()}
"""The same requests without the parts that a translation must refuse."""

LEAST: dict[str, dict[str, Any]] = {
    "openai": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    "anthropic": {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "Hi"}]},
}


def translate(
    source: str, target: str, document: dict[str, Any], quirks: Quirks | None = None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a request in another dialect, and the names of what was dropped.

    The new request is checked against the types of the target's official SDK.
    """
    dialect = DIALECTS[source]
    request = dialect.parse_request(json.dumps(document).encode())
    written = DIALECTS[target].write_request(dialect.read_request(request), quirks or Quirks())
    body = json.loads(written.body)
    _exhaust(_SCHEMAS[target].validate_python(body))
    return body, written.dropped


def ask(source: str, target: str, quirks: Quirks | None = None, **fields: Any) -> dict[str, Any]:
    """Return a small request with these fields in another dialect."""
    return translate(source, target, {**LEAST[source], **fields}, quirks)[0]


def lose(source: str, target: str, quirks: Quirks | None = None, **fields: Any) -> tuple[str, ...]:
    """Return the names of what a small request with these fields loses in another dialect."""
    return translate(source, target, {**LEAST[source], **fields}, quirks)[1]


def _exhaust(value: Any) -> None:
    """Walk through a value, because pydantic validates lazy parts only when they are read."""
    if isinstance(value, dict):
        for item in value.values():
            _exhaust(item)
    elif not isinstance(value, str | bytes) and hasattr(value, "__iter__"):
        for item in value:
            _exhaust(item)


def unread_values(document: dict[str, Any], asked: CanonicalRequest) -> set[str]:
    """Return the values of a request's document that its common form does not have."""
    found = "\n".join(map(str, _values(msgspec.to_builtins(asked))))
    wanted = {str(value).rpartition(";base64,")[2] for value in _values(document)}
    return {value for value in wanted if value not in found}


def _values(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _values(each)
    else:
        yield value
