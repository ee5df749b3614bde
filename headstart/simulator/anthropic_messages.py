"""Anthropic Messages on the wire: named events, typed blocks, errors by status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.simulator.anthropic_request import read_anthropic
from headstart.simulator.reply import Piece
from headstart.simulator.wire import RefusedKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.simulator.chat_request import ChatBody
    from headstart.simulator.generation import Alternative, CalledTool
    from headstart.simulator.incoming import Incoming
    from headstart.simulator.limit_headers import LimitForm
    from headstart.simulator.wire import Answer, Pace
    from headstart.types import Headers

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
_encode = msgspec.json.encode


class AnthropicMessages:
    """The dialect of ``POST /v1/messages``, in both versions of the API."""

    endpoint = "messages"
    limit_headers: LimitForm = "anthropic"
    refused_key = RefusedKey(401, "invalid x-api-key")
    keep_alive = b'event: ping\ndata: {"type": "ping"}\n\n'
    broken_event = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,\n\n'

    def read(self, incoming: Incoming) -> ChatBody:
        """Read a request into the common terms. Raises BadRequest."""
        return read_anthropic(incoming)

    def caches_prefix(self, body: bytes) -> bool:
        """Anthropic caches what is marked for it."""
        return b'"cache_control"' in body

    def whole(self, answer: Answer) -> bytes:
        """Return the ``message`` object."""
        said = answer.generation.alternatives[0]
        return _encode(
            {
                **_message(answer),
                "content": list(_blocks(said)),
                "stop_reason": _STOP_REASONS[said.finish],
                "usage": _usage(answer, answer.completion_tokens),
            }
        )

    def events(
        self,
        answer: Answer,
        pace: Pace,
        incoming: Incoming,  # noqa: ARG002 - the body has said it all
    ) -> Iterator[Piece]:
        """Yield ``message_start``, each block from its start to its stop, and the two last events.

        A ping follows the first block's start.
        """
        said = answer.generation.alternatives[0]
        start = {**_message(answer), "usage": _usage(answer, 1)}
        yield Piece(pace.ttft_s, _event("message_start", message=start))
        token, at_s = 0, pace.ttft_s
        for index, (block, deltas, closing) in enumerate(_streamed_blocks(said)):
            at_s = pace.at_s(token)
            opened = _event("content_block_start", index=index, content_block=block)
            yield Piece(at_s, opened + self.keep_alive * (index == 0))
            for delta in deltas:
                at_s = pace.at_s(token)
                data = _event("content_block_delta", index=index, delta=delta)
                yield Piece(at_s, data, delta=True)
                token += 1
            closed = b"".join(
                _event("content_block_delta", index=index, delta=delta) for delta in closing
            )
            yield Piece(at_s, closed + _event("content_block_stop", index=index))
        delta = {"stop_reason": _STOP_REASONS[said.finish], "stop_sequence": None}
        usage = _usage(answer, answer.completion_tokens)
        yield Piece(at_s, _event("message_delta", delta=delta, usage=usage))
        yield Piece(at_s, _event("message_stop"), terminal=True)

    def error(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        code: str | None = None,  # noqa: ARG002 - the dialect has none
        retry_after_s: float | None = None,  # noqa: ARG002 - the headers say it
    ) -> bytes:
        """Return ``{"type": "error", "error": {type, message}}``."""
        type = type or _ERROR_TYPES.get(status, "api_error")
        return _encode({"type": "error", "error": {"type": type, "message": message}})

    def error_event(self, message: str, code: str | None, *, named: bool) -> bytes:  # noqa: ARG002 - always named
        """Return the ``error`` event; ``code`` is the type of the error."""
        type = code or "api_error"
        return b"event: error\ndata: %b\n\n" % self.error(500, message, type=type)

    def headers(self, answer_id: str, ttft_s: float) -> Headers:  # noqa: ARG002 - it does not say
        """Return the request id."""
        return (
            (b"request-id", b"req_" + answer_id.encode()),
            (b"anthropic-organization-id", b"00000000-0000-0000-0000-000000000000"),
        )


def _message(answer: Answer) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _usage(answer: Answer, output_tokens: int) -> dict[str, Any]:
    """Return the usage block, whose input tokens leave out what the cache read and wrote."""
    return {
        "input_tokens": answer.prompt_tokens - answer.cached_tokens - answer.written_tokens,
        "cache_creation_input_tokens": answer.written_tokens,
        "cache_read_input_tokens": answer.cached_tokens,
        "output_tokens": output_tokens,
        "service_tier": "standard",
    }


def _blocks(said: Alternative) -> Iterator[dict[str, Any]]:
    if said.reasoning:
        yield {"type": "thinking", "thinking": "".join(said.reasoning), "signature": _SIGNATURE}
    if said.tokens:
        yield {"type": "text", "text": said.text}
    for call in said.tool_calls:
        yield _tool_use(call) | {"input": msgspec.json.decode(call.arguments)}


_SIGNATURE = "c2ltdWxhdGVkLXNpZ25hdHVyZQ=="
_Streamed = tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]


def _streamed_blocks(said: Alternative) -> Iterator[_Streamed]:
    """Yield each block as it opens, its deltas of one token, and those that say nothing."""
    if said.reasoning:
        block = {"type": "thinking", "thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": token} for token in said.reasoning]
        yield block, deltas, [{"type": "signature_delta", "signature": _SIGNATURE}]
    if said.tokens:
        deltas = [{"type": "text_delta", "text": token} for token in said.tokens]
        yield {"type": "text", "text": ""}, deltas, []
    for call in said.tool_calls:
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in call.fragments]
        yield _tool_use(call) | {"input": {}}, deltas, []


def _tool_use(call: CalledTool) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id.replace("call_", "toolu_"), "name": call.name}


def _event(type: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (type.encode(), _encode({"type": type, **fields}))
