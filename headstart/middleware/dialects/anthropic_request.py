"""Anthropic Messages: reading a request."""

from __future__ import annotations

from typing import Any

from headstart.errors import InvalidRequest
from headstart.middleware.dialects.request_body import (
    decode_object,
    last_user_text,
    read_boolean,
    read_integer,
    read_messages,
    read_model,
    read_string,
    repeats_keys,
)
from headstart.types import ChatRequest


def parse_request(body: bytes) -> ChatRequest:
    """Read a request body. Raises InvalidRequest."""
    document = decode_object(body)
    return ChatRequest(
        model=read_model(document),
        stream=read_boolean(document, "stream"),
        document=document,
        query=last_user_text(read_messages(document)),
        include_usage=True,
        max_tokens=read_integer(document, "max_tokens"),
        user=_user(document),
        duplicate_keys=repeats_keys(body, document),
    )


def _user(document: dict[str, Any]) -> str | None:
    metadata = document.get("metadata")
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        raise InvalidRequest("metadata: must be an object")
    return read_string(metadata, "user_id") or None
