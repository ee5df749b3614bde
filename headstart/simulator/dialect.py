"""The OpenAI wire format: completions, chunks, errors and models as bytes."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.simulator.reply import Piece
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headstart.simulator.chat_request import ChatBody
    from headstart.simulator.generation import Alternative, Generation

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.encode


class Envelope(Frozen):
    """What all chunks of one answer share."""

    id: str
    created: int
    model: str
    tier: str = "default"
    fingerprint: str = "fp_simulated"


def render_error(
    message: str,
    *,
    type: str = "invalid_request_error",
    code: str | None = None,
    param: str | None = None,
) -> bytes:
    """Return an error body; inside a stream it is the data of the error event."""
    return _encode({"error": {"message": message, "type": type, "param": param, "code": code}})


def frame(data: bytes) -> bytes:
    """Wrap data into one server-sent event."""
    return b"data: " + data + b"\n\n"


def usage_of(chat: ChatBody, generation: Generation) -> dict[str, Any]:
    """Return the usage block. A simulated token is a word, so counts equal the deltas sent."""
    completion = sum(said.completion_tokens for said in generation.alternatives)
    reasoning = sum(len(said.reasoning) for said in generation.alternatives)
    return {
        "prompt_tokens": chat.prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": chat.prompt_tokens + completion,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": reasoning,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def render_completion(envelope: Envelope, chat: ChatBody, generation: Generation) -> bytes:
    """Return the body of an answer that is not streamed."""
    return _encode(
        {
            "id": envelope.id,
            "object": "chat.completion",
            "created": envelope.created,
            "model": envelope.model,
            "choices": [
                _choice(place, said, chat) for place, said in enumerate(generation.alternatives)
            ],
            "usage": usage_of(chat, generation),
            "service_tier": envelope.tier,
            "system_fingerprint": envelope.fingerprint,
        }
    )


def _choice(place: int, said: Alternative, chat: ChatBody) -> dict[str, Any]:
    text = "".join(said.tokens)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if said.refusal or said.tool_calls else text,
        "refusal": text if said.refusal else None,
        "annotations": [],
    }
    if said.reasoning:
        message["reasoning_content"] = "".join(said.reasoning)
    if said.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": "".join(call.fragments)},
            }
            for call in said.tool_calls
        ]
    return {
        "index": place,
        "message": message,
        "logprobs": _logprobs(said.tokens, chat, refusal=said.refusal) if chat.logprobs else None,
        "finish_reason": said.finish,
    }


def _logprobs(tokens: Sequence[str], chat: ChatBody, *, refusal: bool) -> dict[str, Any]:
    listed = [_logprob(token, chat.top_logprobs or 0) for token in tokens]
    return {"content": None, "refusal": listed} if refusal else {"content": listed, "refusal": None}


def _logprob(token: str, top: int) -> dict[str, Any]:
    likely = -0.01 - len(token) % 7 / 10
    ranked = [(token, likely), *((f"{token}{place}", likely - place) for place in range(1, top))]
    entries = [
        {"token": text, "logprob": value, "bytes": list(text.encode())} for text, value in ranked
    ]
    return {**entries[0], "top_logprobs": entries[:top]}


def render_chunks(
    envelope: Envelope,
    chat: ChatBody,
    generation: Generation,
    *,
    ttft_s: float,
    tokens_per_s: float,
) -> Iterator[Piece]:
    """Yield the events of a stream in order, each with the time at which it is due.

    Role first, then deltas (choices interleaved), a finish chunk a choice, the usage chunk with
    no choices if it was asked for, and ``[DONE]``.
    """
    head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,' % (
        _encode(envelope.id),
        envelope.created,
        _encode(envelope.model),
    )
    head += b'"service_tier":%b,"system_fingerprint":%b,"choices":[' % (
        _encode(envelope.tier),
        _encode(envelope.fingerprint),
    )
    tail = b'],"usage":null}\n\n' if chat.include_usage else b"]}\n\n"
    per_token = 1 / tokens_per_s
    for place, said in enumerate(generation.alternatives):
        content = b"null" if said.tool_calls or said.refusal else b'""'
        role = b'{"role":"assistant","content":%b,"refusal":null}' % content
        yield Piece(ttft_s, head + _chunk_choice(place, role) + tail)
    streams = [
        list(_deltas(place, said, chat)) for place, said in enumerate(generation.alternatives)
    ]
    at_s = ttft_s
    for step, row in enumerate(zip_longest(*streams)):
        at_s = ttft_s + step * per_token
        for choice in row:
            if choice is not None:
                yield Piece(at_s, head + choice + tail, delta=True)
    for place, said in enumerate(generation.alternatives):
        yield Piece(at_s, head + _chunk_choice(place, b"{}", _encode(said.finish)) + tail)
    if chat.include_usage:
        yield Piece(at_s, head + b'],"usage":%b}\n\n' % _encode(usage_of(chat, generation)))
    yield Piece(at_s, DONE)


def _chunk_choice(
    place: int, delta: bytes, finish: bytes = b"null", logprobs: bytes = b"null"
) -> bytes:
    return b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}' % (
        place,
        delta,
        logprobs,
        finish,
    )


def _deltas(place: int, said: Alternative, chat: ChatBody) -> Iterator[bytes]:
    """Yield the choices of the delta chunks of one alternative."""
    for token in said.reasoning:
        yield _chunk_choice(place, b'{"reasoning_content":%b}' % _encode(token))
    field = b"refusal" if said.refusal else b"content"
    logprobs = b"null"
    for token in said.tokens:
        if chat.logprobs:
            logprobs = _encode(_logprobs([token], chat, refusal=said.refusal))
        delta = b'{"%b":%b}' % (field, _encode(token))
        yield _chunk_choice(place, delta, logprobs=logprobs)
    for index, call in enumerate(said.tool_calls):
        for part, fragment in enumerate(call.fragments):
            function = {"arguments": fragment}
            tool: dict[str, Any] = {"index": index, "function": function}
            if part == 0:
                tool |= {"id": call.id, "type": "function"}
                function["name"] = call.name
            yield _chunk_choice(place, _encode({"tool_calls": [tool]}))


def render_models(models: Sequence[str], created: int) -> bytes:
    """Return the body of ``GET /v1/models``."""
    return _encode({"object": "list", "data": [_model(model, created) for model in models]})


def render_model(model: str, created: int) -> bytes:
    """Return the body of ``GET /v1/models/{model}``."""
    return _encode(_model(model, created))


def _model(model: str, created: int) -> dict[str, Any]:
    return {"id": model, "object": "model", "created": created, "owned_by": "headstart-simulator"}
