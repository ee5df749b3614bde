"""The dialect of Anthropic's Messages."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.attempts import Tokens
from headstart.middleware.dialects import (
    anthropic_events,
    anthropic_read,
    anthropic_request,
    anthropic_thinking,
    anthropic_write,
)
from headstart.middleware.dialects.answer_json import as_count
from headstart.middleware.dialects.anthropic_encode import MessagesEncoder
from headstart.middleware.dialects.anthropic_render import RenderedMessage
from headstart.middleware.dialects.dialect import ContentTypes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headstart.canonical_request import CanonicalRequest, Quirks, Written
    from headstart.errors import HeadstartError
    from headstart.types import ChatRequest, Completion, ErrorReported, StreamEvent

_ERROR_TYPES = {status: name for name, status in anthropic_events.STATUSES.items()}


class AnthropicMessages:
    """Dialect of ``POST /v1/messages``. ``token`` draws n random bytes as text."""

    name = "anthropic-messages"
    content_types = ContentTypes(b"application/json", b"text/event-stream; charset=utf-8")
    request_id_header = b"request-id"
    ends_at_finish = False
    heartbeat = None

    def __init__(self, token: Callable[[int], str] = secrets.token_hex) -> None:
        self._token = token

    def parse_request(self, body: bytes) -> ChatRequest:
        """Read a request. Raises InvalidRequest, whose message names the field at fault."""
        return anthropic_request.parse_request(body)

    def add_usage(self, body: bytes, request: ChatRequest) -> None:
        """Leave the request as it is: every answer tells its usage."""

    def read_request(self, request: ChatRequest) -> CanonicalRequest:
        """Return the request in no dialect. Raises InvalidRequest that names the field at fault."""
        return anthropic_read.read_request(request)

    def write_request(self, asked: CanonicalRequest, quirks: Quirks) -> Written:
        """Return the request for a provider that speaks this dialect. Raises InvalidRequest."""
        return anthropic_write.write_request(asked, quirks)

    def decoder(self) -> anthropic_events.MessagesDecoder:
        """Return a decoder for one stream."""
        return anthropic_events.MessagesDecoder()

    def decode_body(self, status: int, body: bytes) -> tuple[StreamEvent, ...]:
        """Read a whole JSON answer: its events and Ended, or ErrorReported alone."""
        return anthropic_events.decode_body(status, body)

    def usage_only(self, events: Sequence[StreamEvent]) -> bool:  # noqa: ARG002
        """Return False: nothing is sent for the usage's sake."""
        return False

    def tokens(self, usage: dict[str, Any]) -> Tokens:
        """Return what a usage object counts; its input tokens leave out what the cache holds."""
        cached = as_count(usage.get("cache_read_input_tokens"))
        written = as_count(usage.get("cache_creation_input_tokens"))
        return Tokens(
            prompt=as_count(usage.get("input_tokens")) + cached + written,
            completion=as_count(usage.get("output_tokens")),
            cached=cached,
            cache_write=written,
        )

    def usage(self, tokens: Tokens) -> dict[str, Any]:
        """Return a usage object."""
        return {
            "input_tokens": max(0, tokens.prompt - tokens.cached - tokens.cache_write),
            "cache_creation_input_tokens": tokens.cache_write,
            "cache_read_input_tokens": tokens.cached,
            "output_tokens": tokens.completion,
        }

    def shows_reasoning(self, request: ChatRequest) -> bool:
        """Return whether the request asks for thinking, and does not want it omitted."""
        return anthropic_thinking.is_shown(request.document)

    def encoder(self, id: str, created: int, *, include_usage: bool) -> MessagesEncoder:  # noqa: ARG002
        """Return a writer for one stream. It always tells the usage, and knows no time."""
        return MessagesEncoder(id, error_frame=self.error_frame)

    def render(self, completion: Completion) -> RenderedMessage:
        """Encode an answer once, for any number of replays."""
        return RenderedMessage(completion)

    def new_id(self) -> str:
        """Return a fresh ``msg_`` id."""
        return "msg_" + self._token(12)

    def error_body(self, error: HeadstartError | ErrorReported, request_id: str) -> bytes:
        """Return ``{"type": "error", "error": {...}}`` as the API does, with our request id."""
        status = getattr(error, "status", None) or 500
        other = "invalid_request_error" if status < 500 else "api_error"
        return msgspec.json.encode(
            {
                "type": "error",
                "error": {
                    "type": _ERROR_TYPES.get(status, other),
                    "message": getattr(error, "message", None) or str(error),
                    "details": {"error_code": getattr(error, "code", None)},
                },
                "request_id": request_id,
            }
        )

    def error_frame(self, error: HeadstartError | ErrorReported, request_id: str) -> bytes:
        """Return an ``error`` event: clients read its name before its data.

        It begins a line of its own: an event that was cut before it is then an error too.
        """
        return b"\nevent: error\ndata: %b\n\n" % self.error_body(error, request_id)
