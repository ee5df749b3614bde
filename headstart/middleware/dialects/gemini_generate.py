"""The dialect of Gemini's generateContent."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from headstart.attempts import Tokens
from headstart.errors import InvalidRequest
from headstart.middleware.dialects import (
    gemini_errors,
    gemini_events,
    gemini_read,
    gemini_request,
    gemini_write,
)
from headstart.middleware.dialects.answer_json import as_count
from headstart.middleware.dialects.dialect import ContentTypes
from headstart.middleware.dialects.gemini_encode import GenerateEncoder
from headstart.middleware.dialects.gemini_render import RenderedContent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headstart.canonical_request import CanonicalRequest, Quirks, Written
    from headstart.errors import HeadstartError
    from headstart.types import ChatRequest, Completion, ErrorReported, StreamEvent


class GeminiGenerate:
    """Dialect of ``POST /v1beta/models/{model}:generateContent`` and ``:streamGenerateContent``.

    Model and streaming stand in the path, so requests are read with ``parse``. ``token`` draws n
    random bytes as text.
    """

    name = gemini_read.NAME
    content_types = ContentTypes(b"application/json; charset=UTF-8", b"text/event-stream")
    request_id_header = b"x-request-id"
    ends_at_finish = True
    heartbeat = None

    def __init__(self, token: Callable[[int], str] = secrets.token_urlsafe) -> None:
        self._token = token

    def answers(self, path: bytes, query: bytes) -> bool:
        """Is this an operation of the dialect? A stream that is no SSE is not."""
        return gemini_request.find_operation(path, query) is not None

    def parse(self, path: bytes, query: bytes, body: bytes) -> ChatRequest:
        """Read a request to a path that this dialect ``answers``. Raises InvalidRequest."""
        operation = gemini_request.find_operation(path, query)
        if operation is None:
            raise InvalidRequest("the path names no model and no method that generates content")
        return gemini_request.parse_request(body, operation)

    def parse_request(self, body: bytes) -> ChatRequest:
        """Read a request's body alone: one of no model, not streamed. Raises InvalidRequest."""
        return gemini_request.parse_request(body, None)

    def add_usage(self, body: bytes, request: ChatRequest) -> None:
        """Leave the request as it is: every answer tells its usage."""

    def read_request(self, request: ChatRequest) -> CanonicalRequest:
        """Return the request in no dialect. Raises InvalidRequest."""
        return gemini_read.read_request(request)

    def write_request(self, asked: CanonicalRequest, quirks: Quirks) -> Written:
        """Return the request for an upstream of this dialect. Raises InvalidRequest."""
        return gemini_write.write_request(asked, quirks)

    def decoder(self) -> gemini_events.GenerateDecoder:
        """Return a decoder for one stream."""
        return gemini_events.GenerateDecoder()

    def decode_body(self, status: int, body: bytes) -> tuple[StreamEvent, ...]:
        """Read a whole JSON answer: its events and Ended, or ErrorReported alone."""
        return gemini_events.decode_body(status, body)

    def usage_only(self, events: Sequence[StreamEvent]) -> bool:  # noqa: ARG002
        """Return False: nothing is sent for the usage's sake."""
        return False

    def tokens(self, usage: dict[str, Any]) -> Tokens:
        """Return what a ``usageMetadata`` counts: thoughts are completion, tools' use is prompt."""
        thoughts = as_count(usage.get("thoughtsTokenCount"))
        return Tokens(
            prompt=as_count(usage.get("promptTokenCount"))
            + as_count(usage.get("toolUsePromptTokenCount")),
            completion=as_count(usage.get("candidatesTokenCount")) + thoughts,
            cached=as_count(usage.get("cachedContentTokenCount")),
            reasoning=thoughts,
        )

    def usage(self, tokens: Tokens) -> dict[str, Any]:
        """Return a ``usageMetadata``."""
        usage = {
            "promptTokenCount": tokens.prompt,
            "candidatesTokenCount": tokens.completion - tokens.reasoning,
            "totalTokenCount": tokens.prompt + tokens.completion,
        }
        if tokens.cached:
            usage["cachedContentTokenCount"] = tokens.cached
        if tokens.reasoning:
            usage["thoughtsTokenCount"] = tokens.reasoning
        return usage

    def shows_reasoning(self, request: ChatRequest) -> bool:
        """Return whether the request asks for thoughts."""
        match request.document:
            case {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}}:
                return True
        return False

    def encoder(self, id: str, created: int, *, include_usage: bool) -> GenerateEncoder:  # noqa: ARG002
        """Return a writer for one streamed answer, which always tells the usage."""
        return GenerateEncoder(id)

    def render(self, completion: Completion) -> RenderedContent:
        """Encode an answer once, for any number of replays."""
        return RenderedContent(completion)

    def new_id(self) -> str:
        """Return a fresh ``responseId``."""
        return self._token(16)

    def error_body(self, error: HeadstartError | ErrorReported, request_id: str) -> bytes:
        """Return ``{"error": {...}}`` as the API does, with our request id in its details."""
        return gemini_errors.error_body(error, request_id)

    def error_frame(self, error: HeadstartError | ErrorReported, request_id: str) -> bytes:
        """Return one data line: clients look for ``error`` at its very beginning."""
        return b"data: %b\n\n" % self.error_body(error, request_id)
