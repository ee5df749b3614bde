"""Cohere v2 chat on the wire: named events and indexed parts, ended by ``message-end``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.lab.simulator.chat_request import (
    AskedMessage,
    BadRequest,
    ChatBody,
    OfferedTool,
    WantedFormat,
    decode_as,
)
from headstart.lab.simulator.openai_chat import function_call
from headstart.lab.simulator.simulated_calls import (
    ScriptedError,
    StreamedPart,
    TimedPiece,
    Wire,
)
from headstart.types import Frozen, Headers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.lab.simulator.oracle import Alternative, Likelihood
    from headstart.lab.simulator.simulated_calls import Pace, SimulatedAnswer, SimulatedRequest

_FINISHES = {
    "stop": "COMPLETE",
    "length": "MAX_TOKENS",
    "tool_calls": "TOOL_CALL",
    "content_filter": "ERROR",
}
_encode = msgspec.json.encode


class _Format(Frozen):
    type: str = "text"
    json_schema: dict[str, Any] | None = None
    schema: dict[str, Any] | None = None


class _CohereThinking(Frozen):
    type: str = "disabled"


class _CohereBody(Frozen):
    model: str
    messages: tuple[AskedMessage, ...]
    stream: bool = False
    max_tokens: int | None = None
    tools: tuple[OfferedTool, ...] | None = None
    tool_choice: str | None = None
    thinking: _CohereThinking = _CohereThinking()
    response_format: _Format = _Format()
    logprobs: bool = False


_decoder = msgspec.json.Decoder(_CohereBody)


class CohereWire(Wire):
    """The dialect of ``POST /v2/chat``."""

    endpoint = "cohere"
    refused_key = ScriptedError(401, "invalid api token")
    broken_event = b'event: content-delta\ndata: {"type":"content-delta","index":0,"delta":\n\n'

    def read(self, incoming: SimulatedRequest) -> ChatBody:
        """Read a request into the common terms. Raises BadRequest."""
        body = decode_as(_decoder, incoming.body)
        if not body.messages:
            raise BadRequest("invalid request: messages must not be empty")
        return ChatBody(
            model=body.model,
            messages=body.messages,
            stream=body.stream,
            max_tokens=body.max_tokens,
            logprobs=body.logprobs,
            tools=body.tools,
            tool_choice=(body.tool_choice or "auto").lower(),
            reasoning_effort="none" if body.thinking.type == "disabled" else "medium",
            response_format=_wanted(body.response_format),
        )

    def whole(self, answer: SimulatedAnswer) -> bytes:
        """Return the body of an answer that is not streamed."""
        choice = answer.generation.alternatives[0]
        message: dict[str, Any] = {"role": "assistant", "content": list(_content(choice))}
        if choice.tool_calls:
            message["tool_calls"] = [
                function_call(call, call.arguments) for call in choice.tool_calls
            ]
        body: dict[str, Any] = {
            "id": answer.id,
            "message": message,
            "finish_reason": _FINISHES[choice.finish],
            "usage": _usage(answer),
        }
        if (listed := answer.likelihoods(choice.tokens)) is not None:
            body["logprobs"] = list(map(_logprob, listed))
        return _encode(body)

    def events(self, answer: SimulatedAnswer, pace: Pace) -> Iterator[TimedPiece]:
        """Yield ``message-start``, each part from its start to its end, and ``message-end``."""
        choice = answer.generation.alternatives[0]
        opening = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": []}
        start = _event("message-start", id=answer.id, delta={"message": opening})
        yield TimedPiece(pace.ttft_s, start)
        at_s = yield from pace.stream(_streamed_parts(choice, answer))
        ending = {"finish_reason": _FINISHES[choice.finish], "usage": _usage(answer)}
        yield TimedPiece(at_s, _event("message-end", delta=ending), terminal=True)

    def error(self, error: ScriptedError) -> bytes:
        """Return ``{"id", "message"}``."""
        return _encode({"id": "00000000-0000-0000-0000-000000000000", "message": error.message})

    def error_event(self, error: ScriptedError, *, named: bool) -> bytes:
        """Return a ``message-end`` that finishes with an error."""
        return _event("message-end", delta={"finish_reason": "ERROR", "error": error.message})

    def headers(self, answer_id: str, ttft_s: float) -> Headers:
        """Return the trace id and the time it took."""
        return (
            (b"x-debug-trace-id", answer_id.encode()),
            (b"x-envoy-upstream-service-time", b"%d" % (ttft_s * 1000)),
        )


def _wanted(asked: _Format) -> WantedFormat | None:
    if asked.type != "json_object":
        return None
    return WantedFormat.of(asked.json_schema or asked.schema)


def _usage(answer: SimulatedAnswer) -> dict[str, Any]:
    counts = {"input_tokens": answer.prompt_tokens, "output_tokens": answer.completion_tokens}
    return {"billed_units": counts, "tokens": counts, "cached_tokens": answer.cached_tokens}


def _content(choice: Alternative) -> Iterator[dict[str, Any]]:
    if choice.reasoning:
        yield {"type": "thinking", "thinking": "".join(choice.reasoning)}
    if choice.tokens:
        yield {"type": "text", "text": choice.text}


def _logprob(likely: Likelihood) -> dict[str, Any]:
    return {"text": likely.token, "token_ids": [0], "logprobs": [likely.logprob]}


def _streamed_parts(choice: Alternative, answer: SimulatedAnswer) -> Iterator[StreamedPart]:
    index = 0
    for kind, tokens in (("thinking", choice.reasoning), ("text", choice.tokens)):
        if not tokens:
            continue
        listed = answer.likelihoods(tokens) if kind == "text" else None
        opened = _event("content-start", index, {"content": {"type": kind, kind: ""}})
        deltas = [
            _event(
                "content-delta",
                index,
                {"content": {kind: token}},
                **({} if listed is None else {"logprobs": _logprob(listed[place])}),
            )
            for place, token in enumerate(tokens)
        ]
        yield StreamedPart(opened, deltas, _event("content-end", index))
        index += 1
    for place, call in enumerate(choice.tool_calls):
        deltas = [
            _event("tool-call-delta", place, {"tool_calls": {"function": {"arguments": fragment}}})
            for fragment in call.fragments
        ]
        opened = _event("tool-call-start", place, {"tool_calls": function_call(call, "")})
        yield StreamedPart(opened, deltas, _event("tool-call-end", place))


def _event(
    type: str, index: int | None = None, message: dict[str, Any] | None = None, **fields: Any
) -> bytes:
    data: dict[str, Any] = {"type": type, **fields}
    if index is not None:
        data["index"] = index
    if message is not None:
        data["delta"] = {"message": message}
    return b"event: %b\ndata: %b\n\n" % (type.encode(), _encode(data))
