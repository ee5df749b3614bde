"""OpenAI Chat Completions: reading a request, and the one edit made to a streamed one."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from headstart.errors import InvalidRequest
from headstart.types import ChatRequest

_MAX_DEPTH = 128
"""Nesting of a request. Leaves room for recursion in whoever reads the document later."""

_OPTIONS = "stream_options"


def parse_request(body: bytes) -> ChatRequest:
    """Read a request body. Raises InvalidRequest."""
    document = _decode(body)
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("model: a string is required")
    messages = document.get("messages")
    if not isinstance(messages, list):
        raise InvalidRequest("messages: an array is required")
    for position, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidRequest(f"messages[{position}]: must be an object")
    limit = _integer(document, "max_completion_tokens")
    if limit is None:
        limit = _integer(document, "max_tokens")
    choices = _integer(document, "n")
    if choices is not None and choices < 1:
        raise InvalidRequest("n: must be at least 1")
    logprobs = document.get("logprobs")
    if not isinstance(logprobs, bool | int | None):
        raise InvalidRequest("logprobs: must be a boolean")
    return ChatRequest(
        model=model,
        stream=_boolean(document, "stream"),
        document=document,
        query=_query(messages),
        include_usage=_includes_usage(document),
        max_tokens=limit,
        choices=choices or 1,
        logprobs=bool(logprobs),
        user=_user(document),
        duplicate_keys=_repeats_keys(body, document),
    )


def add_usage(body: bytes, request: ChatRequest) -> bytes | None:
    """Ask for the usage chunk with the smallest edit of the client's own bytes.

    None when there is nothing to add, or when the edit could not be proved to change only that.
    """
    if not request.stream or request.include_usage or request.duplicate_keys:
        return None
    if _OPTIONS not in request.document:
        head, brace, tail = body.partition(b"{")
        return b'%b%b"stream_options":{"include_usage":true},%b' % (head, brace, tail)
    return _replace_options(body, request.document)


def _replace_options(body: bytes, document: dict[str, Any]) -> bytes | None:
    options = {**(document[_OPTIONS] or {}), "include_usage": True}
    wanted = {**document, _OPTIONS: options}
    raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw])[_OPTIONS]
    # The name can also stand deeper in the body, so an edit counts only if it reads as wanted.
    pattern = rb'(?<!\\)("stream_options"\s*:\s*)' + re.escape(bytes(raw))
    for match in re.finditer(pattern, body):
        parts = (body[: match.end(1)], msgspec.json.encode(options), body[match.end() :])
        edited = b"".join(parts)
        if msgspec.json.decode(edited) == wanted:
            return edited
    return None


def _decode(body: bytes) -> dict[str, Any]:
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


def _boolean(document: dict[str, Any], field: str) -> bool:
    value = document.get(field)
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest(f"{field}: must be a boolean")
    return bool(value)


def _integer(document: dict[str, Any], field: str) -> int | None:
    value = document.get(field)
    if value is None or type(value) is int:
        return value
    raise InvalidRequest(f"{field}: must be an integer")


def _string(document: dict[str, Any], field: str) -> str | None:
    value = document.get(field)
    if value is None or isinstance(value, str):
        return value
    raise InvalidRequest(f"{field}: must be a string")


def _includes_usage(document: dict[str, Any]) -> bool:
    options = document.get(_OPTIONS)
    if options is None:
        return False
    if not isinstance(options, dict):
        raise InvalidRequest("stream_options: must be an object")
    value = options.get("include_usage")
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest("stream_options.include_usage: must be a boolean")
    return bool(value)


def _user(document: dict[str, Any]) -> str | None:
    user = _string(document, "user")
    safety = _string(document, "safety_identifier")
    if user and safety:
        return msgspec.json.encode((user, safety)).decode()
    return user or safety or None


def _query(messages: list[dict[str, Any]]) -> str | None:
    if not messages or messages[-1].get("role") != "user":
        return None
    content = messages[-1].get("content")
    if isinstance(content, list):
        texts = [_part_text(part) for part in content]
        content = None if None in texts else "\n".join(texts)  # type: ignore[arg-type]
    return content or None if isinstance(content, str) else None


def _part_text(part: Any) -> str | None:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    return None


def _repeats_keys(body: bytes, document: dict[str, Any]) -> bool:
    # Most clients send compact JSON, and a body equal to its own re-encoding repeats nothing.
    if msgspec.json.encode(document) == body:
        return False
    try:
        json.loads(body, object_pairs_hook=_unique)
    except ValueError:
        return True
    return False


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("repeated key")
