"""Canonical forms of the parts of a chat body that JSON alone does not make canonical.

Plain text messages, the common case, are returned as they are; only messages with tool calls,
images, signatures or cache marks are rebuilt.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PLAIN = frozenset({"role", "content", "name", "refusal"})
_SIGNATURES = frozenset({"signature", "thoughtSignature", "thought_signature"})
_SIGNED_TEXT = ("text", "thinking", "reasoning", "reasoning_content")
_SCHEMAS = frozenset({"parameters", "input_schema"})
_STANDARD_ALPHABET = str.maketrans("-_", "+/")
_as_written = msgspec.json.Encoder().encode


def canonical_messages(messages: list[Any], *, string_is_one_text: bool = False) -> list[Any]:
    """Return a new list of messages in which equal conversations are equal.

    Random tool-call ids become ordinals, inline media become digests of their decoded bytes,
    opaque signatures go when the text they sign is there, and prompt-cache marks go. Where a
    string says the same as a list of one text, the list becomes the string.
    """
    ordinals: dict[str, int] = {}
    canonical = [
        message
        if isinstance(message, dict)
        and isinstance(message.get("content"), str)
        and message.keys() <= _PLAIN
        else _message(message, ordinals)
        for message in messages
    ]
    if not string_is_one_text:
        return canonical
    return [
        {**message, "content": _text_of(message["content"])}
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        else message
        for message in canonical
    ]


def canonical_system(system: object) -> object:
    """Return Anthropic's system prompt, a string or a list of texts, without marks."""
    return _text_of([_part(part, {}) for part in system]) if isinstance(system, list) else system


def canonical_tools(tools: object) -> object:
    """Return tool or function definitions with their schemas' property order kept.

    A model reads a schema in order and fills it in order, so that order can change the answer.
    """
    if not isinstance(tools, list):
        return tools
    return [_tool(tool) for tool in tools]


def keep_property_order(response_format: object) -> object:
    """Return a response format, or a configuration with one, whose schema keeps its order."""
    match response_format:
        case {"json_schema": {"schema": schema, **definition}, **rest}:
            return {**rest, "json_schema": {**definition, "schema": as_ordered(schema)}}
        case {"format": {"schema": schema, **definition}, **rest}:
            return {**rest, "format": {**definition, "schema": as_ordered(schema)}}
        case {"schema": schema, **rest}:
            return {**rest, "schema": as_ordered(schema)}
        case _:
            return response_format


CANONICAL: Mapping[str, Callable[[object], object]] = {
    "tools": canonical_tools,
    "functions": canonical_tools,
    "response_format": keep_property_order,
    "output_format": keep_property_order,
    "output_config": keep_property_order,
    "system": canonical_system,
}
"""The canonical forms of a body's fields; ``messages`` have one of their own."""


def _tool(tool: object) -> object:
    if not isinstance(tool, dict):
        return tool
    tool = _unmarked(tool)
    for name in _SCHEMAS & tool.keys():
        tool[name] = as_ordered(tool[name])
    if isinstance(function := tool.get("function"), dict) and "parameters" in function:
        tool["function"] = {**function, "parameters": as_ordered(function["parameters"])}
    return tool


def as_ordered(schema: object) -> msgspec.Raw:
    """Return a schema with its properties in the order that they came in."""
    return msgspec.Raw(_as_written(schema))


def _message(message: object, ordinals: dict[str, int]) -> object:
    if not isinstance(message, dict):
        return message
    message = unsigned(_unmarked(message))
    for name, value in message.items():
        if name == "tool_call_id":
            message[name] = ordinal(value, ordinals)
        elif name == "tool_calls" and isinstance(value, list):
            message[name] = [_tool_call(call, ordinals) for call in value]
        elif isinstance(value, list):
            message[name] = [_part(part, ordinals) for part in value]
    return message


def _text_of(content: list[object]) -> object:
    match content:
        case [{"type": "text", "text": str(text), **rest}] if not rest:
            return text
        case _:
            return content


def _tool_call(call: object, ordinals: dict[str, int]) -> object:
    if not isinstance(call, dict) or "id" not in call:
        return call
    return {**call, "id": ordinal(call["id"], ordinals)}


def ordinal(call_id: object, ordinals: dict[str, int]) -> object:
    """Number call ids by first appearance. An id that is no string is kept, marked as such."""
    if not isinstance(call_id, str):
        return _as_it_came(call_id)
    return ordinals.setdefault(call_id, len(ordinals))


def _part(part: object, ordinals: dict[str, int]) -> object:
    if not isinstance(part, dict):
        return part
    part = unsigned(_unmarked(part))
    if "tool_use_id" in part:
        part["tool_use_id"] = ordinal(part["tool_use_id"], ordinals)
    elif part.get("type") == "tool_use":
        part["id"] = ordinal(part.get("id"), ordinals)
    if isinstance(part.get("content"), list):
        part["content"] = [_part(inner, ordinals) for inner in part["content"]]
    match part:
        case {"image_url": {"url": url} as image}:
            part["image_url"] = {**image, "url": _media(url)}
        case {"input_audio": {"data": str(data)} as audio}:
            part["input_audio"] = {**audio, "data": decoded_digest(data)}
        case {"file": {"file_data": data} as file}:
            part["file"] = {**file, "file_data": _media(data)}
        case {"source": {"type": "base64", "data": str(data)} as source}:
            part["source"] = {**source, "data": decoded_digest(data)}
    return part


def _unmarked(value: dict[str, Any]) -> dict[str, Any]:
    """Copy without ``cache_control``: it steers the provider's prompt cache, not the answer."""
    return {name: item for name, item in value.items() if name != "cache_control"}


def unsigned(value: dict[str, Any]) -> dict[str, Any]:
    """Return a part without the signature of its text, if it has both."""
    if value.keys() & _SIGNATURES and any(value.get(name) for name in _SIGNED_TEXT):
        return {name: item for name, item in value.items() if name not in _SIGNATURES}
    return value


def _as_it_came(value: object) -> object:
    """Mark what a client sent where a text is replaced: it could look like the replacement.

    A replacement is a number or a list, and this is an object. So none of them are equal.
    """
    return None if value is None else {"came": value}


def _media(url: object) -> object:
    """Media type and digest of a ``data:`` URL; any other text as it is."""
    if not isinstance(url, str):
        return _as_it_came(url)
    if not url.startswith("data:"):
        return url
    media_type, comma, data = url.partition(",")
    if not comma or not media_type.endswith(";base64"):
        return url
    return [media_type, decoded_digest(data)]


def decoded_digest(data: str, *, url_safe: bool = False) -> str:
    """Return a digest of what base64 holds, or the text itself where readers may differ on it.

    Readers differ on foreign characters, on missing padding and on bits after the last byte: each
    such text is keyed as it came. ``url_safe``: the provider takes ``-_`` in place of ``+/`` too,
    in a text that does not mix the two alphabets.
    """
    text = data
    if url_safe and "+" not in data and "/" not in data:
        text = data.translate(_STANDARD_ALPHABET)
    if len(text) % 4 or "=" in text[:-4]:  # some versions of Python decode these all the same
        return data
    try:
        decoded = b64decode(text, validate=True)
    except ValueError:
        return data
    # The last four characters hold the padding, and the bits that stand for nothing.
    if b64encode(b64decode(text[-4:])).decode() != text[-4:]:
        return data
    return sha256(decoded).hexdigest()
