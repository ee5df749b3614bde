"""Reading a request's JSON body: what all dialects ask of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_DEPTH = 128
"""Nesting of a request. Leaves room for recursion in whoever reads the document later."""
_TYPE_NAMES = {bool: "a boolean", int: "an integer", str: "a string"}


def decode_object(body: bytes) -> dict[str, Any]:
    """Return the body's object. Raises InvalidRequest, also for one nested too deep."""
    try:
        document = msgspec.json.decode(body)
    except UnicodeDecodeError as error:
        raise InvalidRequest("the body is not valid UTF-8") from error
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise _too_deep() from error
    if not isinstance(document, dict):
        raise InvalidRequest("the body must be a JSON object")
    if body.count(b"{") + body.count(b"[") > _MAX_DEPTH and _is_deep(document):
        raise _too_deep()
    return document


def read_model(document: dict[str, Any]) -> str:
    """Return the model's name. Raises InvalidRequest."""
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("model: a string is required")
    return model


def read_messages(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages, each an object. Raises InvalidRequest."""
    messages = document.get("messages")
    if not isinstance(messages, list):
        raise InvalidRequest("messages: an array is required")
    for position, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidRequest(f"messages[{position}]: must be an object")
    return messages


def check_types(document: dict[str, Any], types: Mapping[str, type]) -> None:
    """Raise InvalidRequest for a field that is neither of its type nor null."""
    for field, value in document.items():
        if field in types and value is not None and type(value) is not types[field]:
            raise InvalidRequest(f"{field}: must be {_TYPE_NAMES[types[field]]}")


def read_boolean(document: dict[str, Any], field: str) -> bool:
    """Return a boolean, False where it is absent or null. Raises InvalidRequest."""
    value = document.get(field)
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest(f"{field}: must be a boolean")
    return bool(value)


def read_integer(document: dict[str, Any], field: str) -> int | None:
    """Return an integer, None where it is absent or null. Raises InvalidRequest."""
    value = document.get(field)
    if value is None or type(value) is int:
        return value
    raise InvalidRequest(f"{field}: must be an integer")


def read_string(document: dict[str, Any], field: str) -> str | None:
    """Return a string, None where it is absent or null. Raises InvalidRequest."""
    value = document.get(field)
    if value is None or isinstance(value, str):
        return value
    raise InvalidRequest(f"{field}: must be a string")


def last_user_text(messages: list[dict[str, Any]]) -> str | None:
    """Return the last message's text if it is the user's and is text alone, else None.

    The texts of its parts are joined by newlines.
    """
    if not messages or messages[-1].get("role") != "user":
        return None
    content = messages[-1].get("content")
    if isinstance(content, list):
        texts = [_part_text(part) for part in content]
        content = None if None in texts else "\n".join(texts)  # type: ignore[arg-type]
    return content or None if isinstance(content, str) else None


def repeats_keys(body: bytes, document: dict[str, Any]) -> bool:
    """Does the body name a JSON key twice? ``document`` is what it decodes to."""
    # Most clients send compact JSON, and a body equal to its own re-encoding repeats nothing.
    if msgspec.json.encode(document) == body:
        return False
    try:
        json.loads(body, object_pairs_hook=_unique)
    except ValueError:
        return True
    return False


def _is_deep(document: dict[str, Any]) -> bool:
    level: list[Any] = [document]
    for _ in range(_MAX_DEPTH):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _too_deep() -> InvalidRequest:
    return InvalidRequest(f"the body is nested more than {_MAX_DEPTH} levels deep")


def _part_text(part: Any) -> str | None:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    return None


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("repeated key")
