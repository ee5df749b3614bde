"""The dialect of OpenAI Chat Completions and of the many providers that speak it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.attempts import Tokens
from headstart.middleware.dialects import (
    openai_chat_events,
    openai_chat_read,
    openai_chat_request,
    openai_chat_write,
)
from headstart.middleware.dialects.answer_json import as_count
from headstart.middleware.dialects.dialect import ContentTypes
from headstart.middleware.dialects.openai_chat_encode import ChatEncoder
from headstart.middleware.dialects.openai_chat_render import RenderedChat
from headstart.types import ExtraDelta, Started, UsageReported

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headstart.canonical_request import CanonicalRequest, Quirks, Written
    from headstart.errors import HeadstartError
    from headstart.types import ChatRequest, Completion, ErrorReported, StreamEvent


class OpenAIChat:
    """Dialect of ``POST /v1/chat/completions``. ``token`` draws n random bytes as text."""

    name = "openai-chat"
    content_types = ContentTypes(b"application/json", b"text/event-stream; charset=utf-8")
    request_id_header = b"x-request-id"
    ends_at_finish = False
    heartbeat = b": waiting\n\n"

    def __init__(self, token: Callable[[int], str] = secrets.token_hex) -> None:
        self._token = token

    def parse_request(self, body: bytes) -> ChatRequest:
        """Read a request. Raises InvalidRequest, whose message names the field at fault."""
        return openai_chat_request.parse_request(body)

    def add_usage(self, body: bytes, request: ChatRequest) -> bytes | None:
        """Return ``body`` with ``stream_options.include_usage``; None if nothing to do."""
        return openai_chat_request.add_usage(body, request)

    def read_request(self, request: ChatRequest) -> CanonicalRequest:
        """Return the request in no dialect. Raises InvalidRequest that names the field at fault."""
        return openai_chat_read.read_request(request)

    def write_request(self, asked: CanonicalRequest, quirks: Quirks) -> Written:
        """Return the request for a provider that speaks this dialect. Raises InvalidRequest."""
        return openai_chat_write.write_request(asked, quirks)

    def decoder(self) -> openai_chat_events.ChatDecoder:
        """Return a decoder for one stream."""
        return openai_chat_events.ChatDecoder()

    def decode_body(self, status: int, body: bytes) -> tuple[StreamEvent, ...]:
        """Read a whole JSON answer: its events and Ended, or ErrorReported alone."""
        return openai_chat_events.decode_body(status, body)

    def usage_only(self, events: Sequence[StreamEvent]) -> bool:
        """Is this the chunk without choices? Clients that did not ask index into it and fail."""
        reports = False
        for event in events:
            if isinstance(event, UsageReported):
                reports = True
            elif not isinstance(event, Started) and not (
                isinstance(event, ExtraDelta) and event.choice is None
            ):
                return False
        return reports

    def tokens(self, usage: dict[str, Any]) -> Tokens:
        """Return what a usage object counts. DeepSeek names cached tokens in its own way."""
        prompt, completion = _object(usage, "prompt"), _object(usage, "completion")
        cached = prompt.get("cached_tokens") or usage.get("prompt_cache_hit_tokens")
        return Tokens(
            prompt=as_count(usage.get("prompt_tokens")),
            completion=as_count(usage.get("completion_tokens")),
            cached=as_count(cached),
            cache_write=as_count(prompt.get("cache_write_tokens")),
            reasoning=as_count(completion.get("reasoning_tokens")),
        )

    def usage(self, tokens: Tokens) -> dict[str, Any]:
        """Return a usage object."""
        written = {"cache_write_tokens": tokens.cache_write} if tokens.cache_write else {}
        return {
            "prompt_tokens": tokens.prompt,
            "completion_tokens": tokens.completion,
            "total_tokens": tokens.prompt + tokens.completion,
            "prompt_tokens_details": {"cached_tokens": tokens.cached, **written},
            "completion_tokens_details": {"reasoning_tokens": tokens.reasoning},
        }

    def shows_reasoning(self, request: ChatRequest) -> bool:  # noqa: ARG002
        """Return True: clients need not ask."""
        return True

    def encoder(self, id: str, created: int, *, include_usage: bool) -> ChatEncoder:
        """Return a writer for one stream."""
        return ChatEncoder(id, created, include_usage=include_usage, error_frame=self.error_frame)

    def render(self, completion: Completion) -> RenderedChat:
        """Encode an answer once, for any number of replays."""
        return RenderedChat(completion)

    def new_id(self) -> str:
        """Return a fresh ``chatcmpl-`` id."""
        return "chatcmpl-" + self._token(12)

    def error_body(self, error: HeadstartError | ErrorReported, request_id: str) -> bytes:
        """Return ``{"error": {...}}`` as the API does, with our request id in it."""
        status = getattr(error, "status", None) or 500
        message = getattr(error, "message", None) or str(error)
        return msgspec.json.encode(
            {
                "error": {
                    "message": message,
                    "type": _error_type(status),
                    "param": None,
                    "code": getattr(error, "code", None),
                    "request_id": request_id,
                }
            }
        )

    def error_frame(self, error: HeadstartError | ErrorReported, request_id: str) -> bytes:
        """Return one data line: no event name and no choices, or some clients overlook it."""
        return b"data: %b\n\n" % self.error_body(error, request_id)


def _object(usage: dict[str, Any], side: str) -> dict[str, Any]:
    details = usage.get(side + "_tokens_details")
    return details if isinstance(details, dict) else {}


def _error_type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
