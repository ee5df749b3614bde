"""Anthropic Messages: requests are read, and answers, streams and errors are written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from headstart.lab.simulator.chat_request import (
    AskedCall,
    AskedMessage,
    BadRequest,
    ChatBody,
    ContentPart,
    NamedTool,
    OfferedTool,
    WantedFormat,
    decode_as,
)
from headstart.lab.simulator.simulated_calls import (
    SIGNATURE,
    PromptBlock,
    ScriptedError,
    StreamedPart,
    TimedPiece,
    Wire,
    checked_marks,
)
from headstart.types import Frozen, Headers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headstart.lab.simulator.oracle import Alternative, CalledTool
    from headstart.lab.simulator.simulated_calls import Pace, SimulatedAnswer, SimulatedRequest

_WITHOUT_SAMPLING = b"2026-10-21"
"""This version of the API, and any later one, refuses sampling fields."""
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


_Mark = dict[str, Any]
"""``cache_control``."""


class _InputBlock(Frozen):
    type: str
    text: str = ""
    content: str | tuple[ContentPart, ...] = ()
    """The result of a tool."""
    name: str = ""
    input: dict[str, Any] = msgspec.field(default_factory=dict)
    cache_control: _Mark | None = None

    @property
    def call(self) -> AskedCall:
        return AskedCall.of(self.name, self.input)


class _SystemText(ContentPart):
    cache_control: _Mark | None = None


class _Message(Frozen):
    role: Literal["user", "assistant", "system"]
    content: str | tuple[_InputBlock, ...]


class _Tool(Frozen):
    name: str
    description: str = ""
    input_schema: dict[str, Any] = msgspec.field(default_factory=dict)
    cache_control: _Mark | None = None


class _ToolChoice(Frozen):
    type: str = "auto"
    name: str = ""
    disable_parallel_tool_use: bool = False


class _Kind(Frozen):
    type: str = "disabled"


class _OutputFormat(Frozen):
    schema: dict[str, Any] = msgspec.field(default_factory=dict)


class _OutputConfig(Frozen):
    format: _OutputFormat | None = None


class _AnthropicBody(Frozen):
    model: str
    max_tokens: int
    messages: tuple[_Message, ...]
    system: str | tuple[_SystemText, ...] = ()
    stream: bool = False
    tools: tuple[_Tool, ...] | None = None
    tool_choice: _ToolChoice | None = None
    thinking: _Kind | None = None
    output_config: _OutputConfig | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


_decoder = msgspec.json.Decoder(_AnthropicBody)


def _messages(body: _AnthropicBody) -> Iterator[AskedMessage]:
    if body.system:
        texts = (body.system,) if isinstance(body.system, str) else _texts(body.system)
        yield AskedMessage.of("system", texts)
    for message in body.messages:
        if isinstance(message.content, str):
            yield AskedMessage(role=message.role, content=message.content)
            continue
        for block in message.content:
            if block.type == "tool_result":
                result = block.content
                yield AskedMessage.of(
                    "tool", (result,) if isinstance(result, str) else _texts(result)
                )
        texts = tuple(block.text for block in message.content if block.type == "text")
        calls = tuple(block.call for block in message.content if block.type == "tool_use")
        if texts or calls or not any(block.type == "tool_result" for block in message.content):
            said = AskedMessage.of(message.role, texts)
            yield msgspec.structs.replace(said, tool_calls=calls or None)


def _marked_blocks(body: _AnthropicBody) -> Iterator[PromptBlock]:
    """Yield the blocks in the order of the cache: tools, system, messages."""
    for tool in body.tools or ():
        yield PromptBlock(_tool(tool).text, tool.cache_control)
    if isinstance(body.system, str):
        yield PromptBlock(body.system)
    else:
        for part in body.system:
            yield PromptBlock(part.text, part.cache_control)
    for message in body.messages:
        if isinstance(message.content, str):
            yield PromptBlock(message.content)
            continue
        for block in message.content:
            counted = AskedMessage(
                role=message.role,
                content=block.content if block.type == "tool_result" else block.text,
                tool_calls=(block.call,) if block.type == "tool_use" else None,
            )
            yield PromptBlock(counted.whole_text, block.cache_control)


def _texts(parts: Iterable[ContentPart]) -> tuple[str, ...]:
    return tuple(part.text for part in parts if part.type == "text")


def _tool(tool: _Tool) -> OfferedTool:
    return OfferedTool.of(tool.name, tool.input_schema, tool.description)


def _choice(choice: _ToolChoice) -> str | NamedTool:
    if choice.type == "tool":
        return NamedTool.of(choice.name)
    return _CHOICES.get(choice.type, "auto")


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
_PING = b'event: ping\ndata: {"type": "ping"}\n\n'
_encode = msgspec.json.encode


class AnthropicWire(Wire):
    """The dialect of ``POST /v1/messages``, in both versions of the API."""

    endpoint = "messages"
    limit_headers = "anthropic"
    refused_key = ScriptedError(401, "invalid x-api-key")
    keep_alive = _PING
    broken_event = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,\n\n'

    def read(self, incoming: SimulatedRequest) -> ChatBody:
        """Read a request into the common terms.

        Raises BadRequest, also where the version of the API forbids a field.
        """
        version = incoming.header(b"anthropic-version")
        if version is None:
            raise BadRequest("anthropic-version: header is required")
        body = decode_as(_decoder, incoming.body)
        if not body.messages:
            raise BadRequest("messages: at least one message is required")
        sampled = (body.temperature, body.top_p, body.top_k) != (None, None, None)
        if sampled and version >= _WITHOUT_SAMPLING:
            raise BadRequest("temperature, top_p and top_k are not supported by this version")
        choice = body.tool_choice or _ToolChoice()
        return ChatBody(
            model=body.model,
            messages=tuple(_messages(body)),
            stream=body.stream,
            max_tokens=body.max_tokens,
            tools=None if body.tools is None else tuple(map(_tool, body.tools)),
            tool_choice=_choice(choice),
            parallel_tool_calls=not choice.disable_parallel_tool_use,
            reasoning_effort="none" if (body.thinking or _Kind()).type == "disabled" else "medium",
            response_format=(
                WantedFormat.of(body.output_config.format.schema)
                if body.output_config and body.output_config.format
                else None
            ),
        )

    def blocks(self, body: bytes) -> list[PromptBlock]:
        """Return tools, system text and messages with their marks, four at most."""
        return checked_marks(_marked_blocks(_decoder.decode(body)))

    def whole(self, answer: SimulatedAnswer) -> bytes:
        """Return the ``message`` object."""
        choice = answer.generation.alternatives[0]
        return _encode(
            {
                **_message(answer),
                "content": list(_blocks(choice)),
                "stop_reason": _STOP_REASONS[choice.finish],
                "usage": _usage(answer, answer.completion_tokens),
            }
        )

    def events(self, answer: SimulatedAnswer, pace: Pace) -> Iterator[TimedPiece]:
        """Yield ``message_start``, each block from its start to its stop, and the two last events.

        A ping follows the first block's start.
        """
        choice = answer.generation.alternatives[0]
        start = {**_message(answer), "usage": _usage(answer, 1)}
        yield TimedPiece(pace.ttft_s, _event("message_start", message=start))
        at_s = yield from pace.stream(_streamed_parts(choice))
        delta = {"stop_reason": _STOP_REASONS[choice.finish], "stop_sequence": None}
        usage = _usage(answer, answer.completion_tokens)
        yield TimedPiece(at_s, _event("message_delta", delta=delta, usage=usage))
        yield TimedPiece(at_s, _event("message_stop"), terminal=True)

    def error(self, error: ScriptedError) -> bytes:
        """Return ``{"type": "error", "error": {type, message}}``."""
        kind = error.type or _ERROR_TYPES.get(error.status, "api_error")
        return _encode({"type": "error", "error": {"type": kind, "message": error.message}})

    def error_event(self, error: ScriptedError, *, named: bool) -> bytes:
        """Return the ``error`` event; ``code`` is the type of the error."""
        typed = error._replace(type=error.code or "api_error")
        return b"event: error\ndata: %b\n\n" % self.error(typed)

    def headers(self, answer_id: str, ttft_s: float) -> Headers:
        """Return the request id."""
        return (
            (b"request-id", b"req_" + answer_id.encode()),
            (b"anthropic-organization-id", b"00000000-0000-0000-0000-000000000000"),
        )


def _message(answer: SimulatedAnswer) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _usage(answer: SimulatedAnswer, output_tokens: int) -> dict[str, Any]:
    """Return the usage block. Its input tokens leave out tokens of the prefix cache."""
    return {
        "input_tokens": answer.prompt_tokens - answer.cached_tokens - answer.written_tokens,
        "cache_creation_input_tokens": answer.written_tokens,
        "cache_read_input_tokens": answer.cached_tokens,
        "output_tokens": output_tokens,
        "service_tier": "standard",
    }


def _blocks(choice: Alternative) -> Iterator[dict[str, Any]]:
    if choice.reasoning:
        yield {"type": "thinking", "thinking": "".join(choice.reasoning), "signature": SIGNATURE}
    if choice.tokens:
        yield {"type": "text", "text": choice.text}
    for call in choice.tool_calls:
        yield _tool_use(call) | {"input": msgspec.json.decode(call.arguments)}


_Streamed = tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]


def _streamed_parts(choice: Alternative) -> Iterator[StreamedPart]:
    for index, (block, deltas, closing) in enumerate(_streamed_blocks(choice)):
        opened = _event("content_block_start", index=index, content_block=block)
        written, last = (
            [_event("content_block_delta", index=index, delta=delta) for delta in each]
            for each in (deltas, closing)
        )
        closed = b"".join(last) + _event("content_block_stop", index=index)
        yield StreamedPart(opened + _PING * (index == 0), written, closed)


def _streamed_blocks(choice: Alternative) -> Iterator[_Streamed]:
    """Yield each block's first event, its deltas of one token, and its deltas without text."""
    if choice.reasoning:
        block = {"type": "thinking", "thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": token} for token in choice.reasoning]
        yield block, deltas, [{"type": "signature_delta", "signature": SIGNATURE}]
    if choice.tokens:
        deltas = [{"type": "text_delta", "text": token} for token in choice.tokens]
        yield {"type": "text", "text": ""}, deltas, []
    for call in choice.tool_calls:
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in call.fragments]
        yield _tool_use(call) | {"input": {}}, deltas, []


def _tool_use(call: CalledTool) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id.replace("call_", "toolu_"), "name": call.name}


def _event(type: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (type.encode(), _encode({"type": type, **fields}))
