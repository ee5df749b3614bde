"""Gemini generateContent: requests are read, and answers, streams and errors are written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from headstart.lab.simulator.chat_request import (
    MOST_LOGPROBS,
    AskedMessage,
    BadRequest,
    ChatBody,
    NamedTool,
    OfferedTool,
    WantedFormat,
    decode_as,
)
from headstart.lab.simulator.simulated_calls import SIGNATURE, ScriptedError, TimedPiece, Wire
from headstart.types import Frozen, Headers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.lab.simulator.oracle import Alternative
    from headstart.lab.simulator.simulated_calls import Pace, SimulatedAnswer, SimulatedRequest

GENERATES = re.compile(rb"/(?:v1|v1beta)/models/([^/:]+):(generateContent|streamGenerateContent)")
"""The paths of the dialect, with model and method as groups."""
MOST_CANDIDATES = 8


class _Result(Frozen):
    response: dict[str, Any] = msgspec.field(default_factory=dict)


class _GeminiPart(Frozen, rename="camel"):
    text: str = ""
    thought: bool = False
    function_response: _Result | None = None


class _Content(Frozen):
    parts: tuple[_GeminiPart, ...] = ()
    role: str = "user"


class _Declaration(Frozen, rename="camel"):
    name: str
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None
    snake_schema: dict[str, Any] | None = msgspec.field(default=None, name="parameters_json_schema")
    """Protocol buffers accept both spellings, and google-genai sends this one."""


class _Tools(Frozen, rename="camel"):
    function_declarations: tuple[_Declaration, ...] = ()


class _CallingConfig(Frozen, rename="camel"):
    mode: str = "AUTO"
    allowed_function_names: tuple[str, ...] = ()


class _ToolConfig(Frozen, rename="camel"):
    function_calling_config: _CallingConfig = _CallingConfig()


class _GeminiThinking(Frozen, rename="camel"):
    include_thoughts: bool = False
    snake_thoughts: bool = msgspec.field(default=False, name="include_thoughts")

    @property
    def shown(self) -> bool:
        return self.include_thoughts or self.snake_thoughts


class _Generation(Frozen, rename="camel"):
    max_output_tokens: int | None = None
    candidate_count: Annotated[int, msgspec.Meta(ge=1, le=MOST_CANDIDATES)] | None = None
    response_mime_type: str = ""
    response_schema: dict[str, Any] | None = None
    response_json_schema: dict[str, Any] | None = None
    response_logprobs: bool | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=MOST_LOGPROBS)] | None = None
    thinking_config: _GeminiThinking = _GeminiThinking()


class _GeminiBody(Frozen, rename="camel"):
    contents: tuple[_Content, ...]
    system_instruction: _Content | None = None
    generation_config: _Generation = _Generation()
    tools: tuple[_Tools, ...] | None = None
    tool_config: _ToolConfig = _ToolConfig()


_decoder = msgspec.json.Decoder(_GeminiBody)


def _messages(body: _GeminiBody) -> Iterator[AskedMessage]:
    if body.system_instruction:
        yield AskedMessage.of("system", (part.text for part in body.system_instruction.parts))
    for content in body.contents:
        for part in content.parts:
            if part.function_response:
                yield AskedMessage(role="tool", content=_result(part.function_response.response))
        texts = [part.text for part in content.parts if part.text and not part.thought]
        if texts or not any(part.function_response for part in content.parts):
            yield AskedMessage.of("assistant" if content.role == "model" else "user", texts)


def _result(response: dict[str, Any]) -> str:
    """Return the result of a tool: the text under one of the usual names, else the JSON."""
    output = response.get("output", response.get("result"))
    return output if isinstance(output, str) else msgspec.json.encode(response).decode()


def _tools(groups: tuple[_Tools, ...]) -> Iterator[OfferedTool]:
    for group in groups:
        for found in group.function_declarations:
            schema = found.parameters or found.parameters_json_schema or found.snake_schema or {}
            yield OfferedTool.of(found.name, _lowered(schema))


def _lowered(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with JSON Schema's names for types, which Gemini writes in capitals."""

    def lower(name: str, value: Any) -> Any:
        if name == "type" and isinstance(value, str):
            return value.lower()
        if isinstance(value, dict):
            return _lowered(value)
        return value

    return {name: lower(name, value) for name, value in schema.items()}


def _choice(calling: _CallingConfig) -> str | NamedTool:
    if calling.mode == "ANY" and len(calling.allowed_function_names) == 1:
        return NamedTool.of(calling.allowed_function_names[0])
    return {"ANY": "required", "NONE": "none"}.get(calling.mode, "auto")


def _format(asked: _Generation) -> WantedFormat | None:
    if asked.response_mime_type != "application/json":
        return None
    schema = asked.response_json_schema or asked.response_schema
    return WantedFormat.of(None if schema is None else _lowered(schema))


_FINISHES = {
    "stop": "STOP",
    "length": "MAX_TOKENS",
    "tool_calls": "STOP",
    "content_filter": "SAFETY",
}
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
_encode = msgspec.json.encode


class GeminiWire(Wire):
    """The dialect of ``…/models/{model}:generateContent`` and ``:streamGenerateContent``."""

    endpoint = "gemini"
    refused_key = ScriptedError(
        400, "API key not valid. Please pass a valid API key.", code="api_key_invalid"
    )
    broken_event = b'data: {"candidates": [{"content": {"parts": [{"text":\r\n\r\n'

    def read(self, incoming: SimulatedRequest) -> ChatBody:
        """Read a request into the common terms; the path says model and mode. Raises BadRequest."""
        found = GENERATES.fullmatch(incoming.path)
        if found is None:
            raise BadRequest("no such method")
        body = decode_as(_decoder, incoming.body)
        if not body.contents:
            raise BadRequest("* GenerateContentRequest.contents: contents is not specified")
        asked = body.generation_config
        calling = body.tool_config.function_calling_config
        return ChatBody(
            model=found[1].decode("latin-1"),
            messages=tuple(_messages(body)),
            stream=found[2] == b"streamGenerateContent",
            n=asked.candidate_count,
            max_tokens=asked.max_output_tokens,
            logprobs=asked.response_logprobs,
            top_logprobs=asked.logprobs,
            tools=None if body.tools is None else tuple(_tools(body.tools)),
            tool_choice=_choice(calling),
            reasoning_effort="medium" if asked.thinking_config.shown else "none",
            response_format=_format(asked),
        )

    def whole(self, answer: SimulatedAnswer) -> bytes:
        """Return one ``GenerateContentResponse``."""
        candidates = [
            _candidate(place, list(_parts(choice)), choice.finish) | _logprobs(choice, answer)
            for place, choice in enumerate(answer.generation.alternatives)
        ]
        return _encode(_response(answer, candidates, answer.completion_tokens))

    def events(self, answer: SimulatedAnswer, pace: Pace) -> Iterator[TimedPiece]:
        """Yield one response for each token, as events, or as a JSON array without ``alt=sse``."""
        chunks = list(_chunks(answer, pace))
        if b"alt=sse" in answer.query:
            for at_s, body, delta in chunks:
                yield TimedPiece(at_s, b"data: %b\r\n\r\n" % body, delta=delta)
            return
        for place, (at_s, body, delta) in enumerate(chunks):
            yield TimedPiece(at_s, (b",\r\n" if place else b"[") + body, delta=delta)
        yield TimedPiece(chunks[-1][0], b"]", terminal=True)

    def error(self, error: ScriptedError) -> bytes:
        """Return ``{"error": {code, message, status, details}}``; a detail gives our ``code``."""
        name = error.type or _STATUSES.get(error.status, "UNKNOWN")
        body: dict[str, Any] = {"code": error.status, "message": error.message, "status": name}
        details: list[dict[str, Any]] = []
        if error.code is not None:
            reason = {"reason": error.code.upper(), "domain": "googleapis.com"}
            details.append({"@type": _ERROR_INFO, **reason})
        if error.retry_after_s is not None:
            details.append({"@type": _RETRY_INFO, "retryDelay": f"{error.retry_after_s:g}s"})
        if details:
            body["details"] = details
        return _encode({"error": body})

    def error_event(self, error: ScriptedError, *, named: bool) -> bytes:
        """Return the error object as the last frame."""
        return b"data: %b\r\n\r\n" % self.error(ScriptedError(error.status, error.message))

    def headers(self, answer_id: str, ttft_s: float) -> Headers:
        """Return the processing time; the id is in the body."""
        return ((b"server-timing", b"gfet4t7; dur=%d" % (ttft_s * 1000)),)


def _response(
    answer: SimulatedAnswer, candidates: list[dict[str, Any]], completion_tokens: int
) -> dict[str, Any]:
    thoughts = min(answer.reasoning_tokens, completion_tokens)
    usage: dict[str, Any] = {
        "promptTokenCount": answer.prompt_tokens,
        "candidatesTokenCount": completion_tokens - thoughts,
        "totalTokenCount": answer.prompt_tokens + completion_tokens,
    }
    if thoughts:
        usage["thoughtsTokenCount"] = thoughts
    if answer.cached_tokens:
        usage["cachedContentTokenCount"] = answer.cached_tokens
    return {
        "candidates": candidates,
        "usageMetadata": usage,
        "modelVersion": answer.model,
        "responseId": answer.id,
    }


def _candidate(
    place: int, parts: list[dict[str, Any]], finish: str | None = None
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": place}
    if finish is not None:
        candidate["finishReason"] = _FINISHES[finish]
    return candidate


def _parts(choice: Alternative) -> Iterator[dict[str, Any]]:
    if choice.reasoning:
        yield {"text": "".join(choice.reasoning), "thought": True}
    if choice.tokens:
        yield {"text": choice.text}
    for call in choice.tool_calls:
        arguments = msgspec.json.decode(call.arguments)
        yield {
            "functionCall": {"name": call.name, "args": arguments},
            "thoughtSignature": SIGNATURE,
        }


def _chunks(answer: SimulatedAnswer, pace: Pace) -> Iterator[tuple[float, bytes, bool]]:
    """Yield for each response: the time when it is due, its body, and whether it has content.

    Its usage counts the tokens up to this response. A function call is due with its last token.
    """
    said_tokens, at_s = 0, pace.ttft_s
    alternatives = answer.generation.alternatives
    for place, choice in enumerate(alternatives):
        for tokens, part in _streamed_parts(choice):
            said_tokens += tokens
            at_s = pace.at_s(said_tokens - 1)
            body = _response(answer, [_candidate(place, [part])], said_tokens)
            yield at_s, _encode(body), True
    for place, choice in enumerate(alternatives):
        candidate = _candidate(place, [{"text": ""}], choice.finish) | _logprobs(choice, answer)
        yield at_s, _encode(_response(answer, [candidate], said_tokens)), False


def _streamed_parts(choice: Alternative) -> Iterator[tuple[int, dict[str, Any]]]:
    for token in choice.reasoning:
        yield 1, {"text": token, "thought": True}
    for token in choice.tokens:
        yield 1, {"text": token}
    calls = msgspec.structs.replace(choice, tokens=(), reasoning=())
    for call, part in zip(choice.tool_calls, _parts(calls), strict=True):
        yield len(call.fragments), part


def _logprobs(choice: Alternative, answer: SimulatedAnswer) -> dict[str, Any]:
    listed = answer.likelihoods(choice.tokens)
    if listed is None:
        return {}
    chosen = [{"token": likely.token, "logProbability": likely.logprob} for likely in listed]
    ranked = [
        {"candidates": [{"token": token, "logProbability": value} for token, value in row.ranked]}
        for row in listed
        if row.ranked
    ]
    mean = sum(likely.logprob for likely in listed) / max(len(listed), 1)
    return {
        "avgLogprobs": mean,
        "logprobsResult": {"chosenCandidates": chosen, "topCandidates": ranked},
    }
