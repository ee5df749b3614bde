"""Calls of our own to a provider: streamed chats that no client asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.factory.clock import clock
from headstart.identifiers import new_ulid
from headstart.middleware.dialects.openai_chat import OpenAIChat
from headstart.types import Call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.types import Headers

_HEADERS: Headers = ((b"content-type", b"application/json"),)


def chat_call(
    endpoint: str, model: str, messages: Sequence[Any], max_tokens: int, **fields: Any
) -> Call:
    """Return a streamed chat in OpenAI's dialect; ``endpoint`` says what it is for."""
    dialect = OpenAIChat()
    document = {
        "model": model,
        "messages": messages,
        "max_completion_tokens": max_tokens,
        "stream": True,
        **fields,
    }
    body = msgspec.json.encode(document)
    return Call(
        id=new_ulid(clock),
        method="POST",
        path=b"/v1/chat/completions",
        query_string=b"",
        headers=_HEADERS,
        body=body,
        dialect=dialect.name,
        endpoint=endpoint,
        request=dialect.parse_request(body),
    )
