"""OpenAI Chat Completions: reading a request, and the one edit made to a streamed one."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from headstart.errors import InvalidRequest
from headstart.middleware.dialects.request_body import (
    check_types,
    decode_object,
    last_user_text,
    read_integer,
    read_messages,
    read_model,
    repeats_keys,
)
from headstart.types import ChatRequest

_OPTIONS = "stream_options"
_TYPES = {
    "max_completion_tokens": int,
    "n": int,
    "stream": bool,
    "user": str,
    "safety_identifier": str,
}


def parse_request(body: bytes) -> ChatRequest:
    """Read a request body. Raises InvalidRequest."""
    document = decode_object(body)
    model = read_model(document)
    messages = read_messages(document)
    check_types(document, _TYPES)
    limit = document.get("max_completion_tokens")
    if limit is None:
        limit = read_integer(document, "max_tokens")
    choices = document.get("n")
    if choices is not None and choices < 1:
        raise InvalidRequest("n: must be at least 1")
    logprobs = document.get("logprobs")
    if not isinstance(logprobs, bool | int | None):
        raise InvalidRequest("logprobs: must be a boolean")
    return ChatRequest(
        model=model,
        stream=bool(document.get("stream")),
        document=document,
        query=last_user_text(messages),
        include_usage=_includes_usage(document),
        max_tokens=limit,
        choices=choices or 1,
        logprobs=bool(logprobs),
        user=_user(document),
        duplicate_keys=repeats_keys(body, document),
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
    user, safety = document.get("user"), document.get("safety_identifier")
    if user and safety:
        return msgspec.json.encode((user, safety)).decode()
    return user or safety or None
