"""Gemini's generateContent: reading a request, half of which stands in its path."""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from headstart.errors import InvalidRequest
from headstart.middleware.dialects.request_body import decode_object, read_integer, repeats_keys
from headstart.types import ChatRequest

_PATH = re.compile(rb"/v1(?:beta)?/models/([^/:]+):(generateContent|streamGenerateContent)")
_SNAKE = re.compile(r"_+([a-z0-9])")
_FREE = frozenset(
    {
        "args",
        "labels",
        "parameters",
        "parametersJsonSchema",
        "response",
        "responseJsonSchema",
        "responseSchema",
    }
)
"""Fields whose names within are the caller's own, or a schema's."""


class Operation(NamedTuple):
    """What a path asks for."""

    model: str
    stream: bool


def find_operation(path: bytes, query: bytes) -> Operation | None:
    """Return what is asked for, or None if it is nothing that we answer.

    A stream without ``alt=sse`` is one JSON array that grows, which nobody but the API writes.
    """
    match = _PATH.fullmatch(unquote_to_bytes(path))
    if match is None:
        return None
    stream = match[2] == b"streamGenerateContent"
    wanted = {
        pair for pair in query.split(b"&") if pair.startswith((b"alt=", b"$alt=", b"%24alt="))
    }
    if wanted - {b"alt=sse" if stream else b"alt=json"} or (stream and not wanted):
        return None
    try:
        return Operation(match[1].decode(), stream)
    except UnicodeDecodeError:
        return None


def parse_request(body: bytes, operation: Operation | None) -> ChatRequest:
    """Read a request. Raises InvalidRequest.

    The document has the API's names in one spelling, since it takes two, and tells the model.
    """
    document = decode_object(body)
    named, twice = camel_cased(document)
    if operation is not None:
        named["model"] = operation.model
    contents = _contents(named)
    config = named.setdefault("generationConfig", {})
    if not isinstance(config, dict):
        raise InvalidRequest("generationConfig: must be an object")
    choices = read_integer(config, "candidateCount")
    if choices is not None and choices < 1:
        raise InvalidRequest("generationConfig.candidateCount: must be at least 1")
    return ChatRequest(
        model=operation.model if operation is not None else "",
        stream=operation is not None and operation.stream,
        document=named,
        query=_last_user_text(contents),
        include_usage=True,
        max_tokens=read_integer(config, "maxOutputTokens"),
        choices=choices or 1,
        logprobs=config.get("responseLogprobs") is True,
        duplicate_keys=twice or repeats_keys(body, document),
    )


def camel_cased(document: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the document with every name in camel case, and whether one came in two spellings."""
    twice = False

    def renamed(value: Any) -> Any:
        nonlocal twice
        if isinstance(value, list):
            return [renamed(item) for item in value]
        if not isinstance(value, dict):
            return value
        fields: dict[str, Any] = {}
        for name, inner in value.items():
            camel = _SNAKE.sub(lambda match: match[1].upper(), name)
            twice = twice or camel in fields
            fields[camel] = inner if camel in _FREE else renamed(inner)
        return fields

    return renamed(document), twice


def _contents(document: dict[str, Any]) -> list[dict[str, Any]]:
    contents = document.get("contents")
    if not isinstance(contents, list):
        raise InvalidRequest("contents: an array is required")
    for position, content in enumerate(contents):
        if not isinstance(content, dict):
            raise InvalidRequest(f"contents[{position}]: must be an object")
    return contents


def _last_user_text(contents: list[dict[str, Any]]) -> str | None:
    """Return the last content's text if it is the user's and is text alone, else None."""
    if not contents or contents[-1].get("role", "user") != "user":
        return None
    parts = contents[-1].get("parts")
    if not isinstance(parts, list):
        return None
    texts = [
        part["text"]
        for part in parts
        if isinstance(part, dict) and part.keys() == {"text"} and isinstance(part["text"], str)
    ]
    return "\n".join(texts) or None if len(texts) == len(parts) else None
