"""AWS Bedrock's Converse on the wire: JSON, and streams of binary messages with checksums."""

from __future__ import annotations

import re
import struct
import zlib
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from headstart.lab.simulator.chat_request import (
    AskedCall,
    AskedMessage,
    BadRequest,
    ChatBody,
    NamedFunction,
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
    from collections.abc import Iterator

    from headstart.lab.simulator.oracle import Alternative
    from headstart.lab.simulator.simulated_calls import Pace, SimulatedAnswer, SimulatedRequest

CONVERSES = re.compile(rb"/model/([^/]+)/(converse|converse-stream)")
"""The paths of the dialect, with model and operation as groups."""


class _ToolResultText(Frozen):
    text: str = ""


class _ConverseResult(Frozen):
    content: tuple[_ToolResultText, ...] = ()


class _ConverseCall(Frozen):
    name: str = ""
    input: dict[str, Any] = msgspec.field(default_factory=dict)


class _ConverseBlock(Frozen, rename="camel"):
    text: str = ""
    tool_result: _ConverseResult | None = None
    tool_use: _ConverseCall | None = None
    cache_point: dict[str, Any] | None = None
    """The prompt up to here is to be cached."""

    @property
    def calls(self) -> tuple[AskedCall, ...]:
        if self.tool_use is None:
            return ()
        return (AskedCall.of(self.tool_use.name, self.tool_use.input),)


class _ConverseMessage(Frozen):
    role: str
    content: tuple[_ConverseBlock, ...]


class _InputSchema(Frozen):
    json: dict[str, Any] = msgspec.field(default_factory=dict)


class _ToolSpec(Frozen, rename="camel"):
    name: str
    description: str = ""
    input_schema: _InputSchema = _InputSchema()


class _ConverseTool(Frozen, rename="camel"):
    tool_spec: _ToolSpec | None = None
    cache_point: dict[str, Any] | None = None


class _ConverseChoice(Frozen):
    any: dict[str, Any] | None = None
    tool: NamedFunction | None = None


class _ConverseTools(Frozen, rename="camel"):
    tools: tuple[_ConverseTool, ...]
    tool_choice: _ConverseChoice = _ConverseChoice()


class _Inference(Frozen, rename="camel"):
    max_tokens: int | None = None


class _JsonSchema(Frozen):
    schema: str


class _Structure(Frozen, rename="camel"):
    json_schema: _JsonSchema


class _TextFormat(Frozen):
    structure: _Structure


class _Output(Frozen, rename="camel"):
    text_format: _TextFormat | None = None
    effort: str = "none"


class _ModelThinking(Frozen):
    type: str = "disabled"


class _ModelFields(Frozen):
    thinking: _ModelThinking = _ModelThinking()


class _ConverseBody(Frozen, rename="camel"):
    messages: tuple[_ConverseMessage, ...]
    system: tuple[_ConverseBlock, ...] = ()
    inference_config: _Inference = _Inference()
    tool_config: _ConverseTools | None = None
    output_config: _Output = _Output()
    additional_model_request_fields: _ModelFields = _ModelFields()

    @property
    def effort(self) -> str:
        """The effort asked for; a number of tokens to think counts as a medium one."""
        thinks = self.additional_model_request_fields.thinking.type == "enabled"
        return "medium" if thinks else self.output_config.effort


_decoder = msgspec.json.Decoder(_ConverseBody)
_encode = msgspec.json.encode
_FINISHES = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "content_filtered",
}
_EXCEPTIONS = {
    400: "validationException",
    408: "modelTimeoutException",
    429: "throttlingException",
    503: "serviceUnavailableException",
}


class BedrockWire(Wire):
    """The dialect of ``POST /model/{id}/converse`` and ``/converse-stream``."""

    endpoint = "converse"
    stream_type = b"application/vnd.amazon.eventstream"
    refused_key = ScriptedError(403, "The security token included in the request is invalid.")

    def __init__(self) -> None:
        self.broken_event = _message("contentBlockDelta", b'{"contentBlockIndex":0,"delta":')

    def read(self, incoming: SimulatedRequest) -> ChatBody:
        """Read a request into the common terms. Raises BadRequest."""
        found = CONVERSES.fullmatch(incoming.path)
        if found is None:
            raise BadRequest("no such operation")
        body = decode_as(_decoder, incoming.body)
        if not body.messages:
            raise BadRequest("A conversation must start with a user message.")
        if any(not message.content for message in body.messages):
            raise BadRequest("The content field in a message must not be empty.")
        tools = body.tool_config
        return ChatBody(
            model=unquote(found[1].decode("latin-1")),
            messages=tuple(_messages(body)),
            stream=found[2] == b"converse-stream",
            max_tokens=body.inference_config.max_tokens,
            tools=None if tools is None else tuple(_tools(tools)),
            tool_choice=None if tools is None else _choice(tools.tool_choice),
            reasoning_effort=body.effort,
            response_format=_format(body.output_config),
        )

    def blocks(self, body: bytes) -> list[PromptBlock]:
        """Return tools, system text and messages with their marks, four at most."""
        return checked_marks(_marked_blocks(_decoder.decode(body)))

    def whole(self, answer: SimulatedAnswer) -> bytes:
        """Return the body of an answer that is not streamed."""
        choice = answer.generation.alternatives[0]
        message = {"role": "assistant", "content": list(_blocks(choice))}
        return _encode(
            {
                "output": {"message": message},
                "stopReason": _FINISHES[choice.finish],
                "usage": _usage(answer),
                "metrics": {"latencyMs": 1},
            }
        )

    def events(self, answer: SimulatedAnswer, pace: Pace) -> Iterator[TimedPiece]:
        """Yield ``messageStart``, each block to its stop, ``messageStop`` and ``metadata``."""
        choice = answer.generation.alternatives[0]
        yield TimedPiece(pace.ttft_s, _event("messageStart", role="assistant"))
        at_s = yield from pace.stream(_streamed_parts(choice))
        yield TimedPiece(at_s, _event("messageStop", stopReason=_FINISHES[choice.finish]))
        ending = _event("metadata", usage=_usage(answer), metrics={"latencyMs": 1})
        yield TimedPiece(at_s, ending, terminal=True)

    def error(self, error: ScriptedError) -> bytes:
        """Return ``{"message"}``."""
        return _encode({"message": error.message})

    def error_event(self, error: ScriptedError, *, named: bool) -> bytes:
        """Return the exception that ends a stream."""
        kind = _EXCEPTIONS.get(error.status, "internalServerException")
        return _message(kind, self.error(error), kind="exception")

    def headers(self, answer_id: str, ttft_s: float) -> Headers:
        """Return the request id."""
        return ((b"x-amzn-requestid", answer_id.encode()),)


def _messages(body: _ConverseBody) -> Iterator[AskedMessage]:
    if body.system:
        yield AskedMessage.of("system", (block.text for block in body.system if block.text))
    for message in body.messages:
        results = [block.tool_result for block in message.content if block.tool_result]
        for result in results:
            yield AskedMessage.of("tool", (each.text for each in result.content))
        texts = [block.text for block in message.content if block.text]
        calls = tuple(call for block in message.content for call in block.calls)
        if texts or calls or not results:
            said = AskedMessage.of(message.role, texts)
            yield msgspec.structs.replace(said, tool_calls=calls or None)


def _marked_blocks(body: _ConverseBody) -> list[PromptBlock]:
    """Return the blocks in the order of the cache. A mark is a block that follows its own."""
    blocks: list[PromptBlock] = []
    for tool in () if body.tool_config is None else body.tool_config.tools:
        if tool.tool_spec is not None:
            blocks.append(PromptBlock(_tool(tool.tool_spec).text))
        elif blocks:
            blocks[-1] = blocks[-1]._replace(mark=tool.cache_point)
    said = [("system", block) for block in body.system]
    said += [(message.role, block) for message in body.messages for block in message.content]
    for role, block in said:
        if block.cache_point is not None and blocks:
            blocks[-1] = blocks[-1]._replace(mark=block.cache_point)
            continue
        result = () if block.tool_result is None else block.tool_result.content
        texts = [block.text, *(each.text for each in result)]
        counted = AskedMessage.of(role, filter(None, texts))
        counted = msgspec.structs.replace(counted, tool_calls=block.calls)
        blocks.append(PromptBlock(counted.whole_text))
    return blocks


def _tools(config: _ConverseTools) -> Iterator[OfferedTool]:
    for tool in config.tools:
        if tool.tool_spec is not None:
            yield _tool(tool.tool_spec)


def _tool(spec: _ToolSpec) -> OfferedTool:
    return OfferedTool.of(spec.name, spec.input_schema.json, spec.description)


def _choice(choice: _ConverseChoice) -> str | NamedTool:
    if choice.tool is not None:
        return NamedTool.of(choice.tool.name)
    return "auto" if choice.any is None else "required"


def _format(output: _Output) -> WantedFormat | None:
    if output.text_format is None:
        return None
    return WantedFormat.of(msgspec.json.decode(output.text_format.structure.json_schema.schema))


def _usage(answer: SimulatedAnswer) -> dict[str, int]:
    """Return the usage. Its input tokens leave out tokens of the prefix cache."""
    return {
        "inputTokens": answer.prompt_tokens - answer.cached_tokens - answer.written_tokens,
        "outputTokens": answer.completion_tokens,
        "totalTokens": answer.prompt_tokens + answer.completion_tokens,
        "cacheReadInputTokens": answer.cached_tokens,
        "cacheWriteInputTokens": answer.written_tokens,
    }


def _blocks(choice: Alternative) -> Iterator[dict[str, Any]]:
    if choice.reasoning:
        text = {"text": "".join(choice.reasoning), "signature": SIGNATURE}
        yield {"reasoningContent": {"reasoningText": text}}
    if choice.tokens:
        yield {"text": choice.text}
    for call in choice.tool_calls:
        given = msgspec.json.decode(call.arguments)
        yield {"toolUse": {"toolUseId": call.id, "name": call.name, "input": given}}


_Streamed = tuple[dict[str, Any] | None, list[dict[str, Any]], list[dict[str, Any]]]


def _streamed_parts(choice: Alternative) -> Iterator[StreamedPart]:
    for index, (start, deltas, closing) in enumerate(_streamed_blocks(choice)):
        opened = b""
        if start is not None:
            opened = _event("contentBlockStart", contentBlockIndex=index, start=start)
        written, last = (
            [_event("contentBlockDelta", contentBlockIndex=index, delta=delta) for delta in each]
            for each in (deltas, closing)
        )
        closed = b"".join(last) + _event("contentBlockStop", contentBlockIndex=index)
        yield StreamedPart(opened, written, closed)


def _streamed_blocks(choice: Alternative) -> Iterator[_Streamed]:
    """Yield the start of each block, if it has one, its deltas of one token, and the last delta."""
    if choice.reasoning:
        deltas = [{"reasoningContent": {"text": token}} for token in choice.reasoning]
        yield None, deltas, [{"reasoningContent": {"signature": SIGNATURE}}]
    if choice.tokens:
        yield None, [{"text": token} for token in choice.tokens], []
    for call in choice.tool_calls:
        deltas = [{"toolUse": {"input": part}} for part in call.fragments]
        yield {"toolUse": {"toolUseId": call.id, "name": call.name}}, deltas, []


def _event(type: str, **fields: Any) -> bytes:
    return _message(type, _encode({**fields, "p": "abcdefghij"}))


def _message(type: str, payload: bytes, kind: str = "event") -> bytes:
    """Return a message: lengths, headers and payload, with two checksums."""
    fields = (
        (f":{kind}-type", type),
        (":content-type", "application/json"),
        (":message-type", kind),
    )
    headers = b"".join(
        struct.pack(">B", len(name)) + name.encode() + struct.pack(">BH", 7, len(value)) + value
        for name, value in ((name, value.encode()) for name, value in fields)
    )
    head = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    head += struct.pack(">I", zlib.crc32(head))
    message = head + headers + payload
    return message + struct.pack(">I", zlib.crc32(message))
