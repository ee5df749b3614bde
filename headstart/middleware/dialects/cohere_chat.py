"""The dialect of Cohere's Chat, version 2, towards upstreams alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headstart.attempts import Tokens
from headstart.middleware.dialects import cohere_events, cohere_write
from headstart.middleware.dialects.answer_json import as_count

if TYPE_CHECKING:
    from headstart.canonical_request import CanonicalRequest, Quirks, Written
    from headstart.types import StreamEvent


class CohereChat:
    """UpstreamDialect of ``POST /v2/chat``: no client of ours speaks it."""

    name = cohere_write.NAME
    request_id_header = b"x-debug-trace-id"
    ends_at_finish = False

    def decoder(self) -> cohere_events.ChatV2Decoder:
        """Return a decoder for one stream."""
        return cohere_events.ChatV2Decoder()

    def decode_body(self, status: int, body: bytes) -> tuple[StreamEvent, ...]:
        """Read a whole JSON answer: its events and Ended, or ErrorReported alone."""
        return cohere_events.decode_body(status, body)

    def tokens(self, usage: dict[str, Any]) -> Tokens:
        """Return what was read and written; ``billed_units`` leave out the API's own prompt."""
        counted = usage.get("tokens") or usage.get("billed_units")
        counted = counted if isinstance(counted, dict) else {}
        return Tokens(
            prompt=as_count(counted.get("input_tokens")),
            completion=as_count(counted.get("output_tokens")),
            cached=as_count(usage.get("cached_tokens")),
        )

    def write_request(self, asked: CanonicalRequest, quirks: Quirks) -> Written:
        """Return the request for an upstream of this dialect. Raises InvalidRequest."""
        return cohere_write.write_request(asked, quirks)
