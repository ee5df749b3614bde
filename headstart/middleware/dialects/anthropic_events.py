"""Anthropic Messages: reading answers.

An answer is a list of content blocks. Text, thinking and the caller's tools become parts of the
canonical answer. What else there is, of those blocks or blocks of another type, is kept under
``CONTENT_BLOCKS`` by the block's index, as it came: of a stream its first event, and its deltas in
order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.middleware.dialects.answer_json import (
    UNDECODABLE,
    MalformedAnswerError,
    as_object,
    as_text,
    decode_document,
    unreadable,
)
from headstart.types import (
    CONTENT_BLOCKS,
    Ended,
    ErrorReported,
    ExtraDelta,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)

if TYPE_CHECKING:
    from headstart.middleware.sse import Frame
    from headstart.types import StreamEvent

DELTAS = "deltas"
"""Field of an object under ``CONTENT_BLOCKS``: the block's deltas that no part holds."""
THINKING = "thinking"
"""Name under which the reasoning comes."""

FINISHES = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
"""Canonical names of the stop reasons; others are canonical as they are."""

_PARTS = {
    "text": frozenset({"type", "text"}),
    "thinking": frozenset({"type", "thinking", "signature"}),
    "tool_use": frozenset({"type", "id", "name", "input"}),
}
_MESSAGE = frozenset(
    {"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"}
)
_STOPS = frozenset({"stop_reason", "stop_sequence"})
_MESSAGE_DELTA = frozenset({"type", "delta", "usage"})
_ENDED = (Ended(),)


class _Block:
    """A content block being read."""

    __slots__ = ("call", "kind", "whole_input", "wordless")

    def __init__(self, kind: str, call: int, whole_input: Any) -> None:
        self.kind = kind
        self.call = call
        """Its number among the tool calls, if it is one."""
        self.whole_input = whole_input
        """A tool call's input that came at once."""
        self.wordless = True
        """No delta of its part came yet."""


class MessagesDecoder:
    """EventDecoder of Anthropic Messages."""

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder().decode
        self._blocks: dict[int, _Block] = {}
        self._calls = 0
        self._usage: dict[str, Any] = {}

    def feed(self, frame: Frame) -> tuple[StreamEvent, ...]:
        """Return what the frame says; nothing for pings, comments and events yet unknown."""
        if not frame.data:
            return ()
        try:
            event = self._decode(frame.data)
        except UNDECODABLE:
            return (unreadable("an event of the stream is not JSON"),)
        try:
            return self._read(as_object(event, "an event of the stream"), frame.event)
        except MalformedAnswerError as error:
            return (unreadable(str(error)),)

    def read_message(self, message: dict[str, Any]) -> tuple[StreamEvent, ...]:
        """Return what a whole message says, or the beginning of one."""
        events: list[StreamEvent] = [
            Started(id=as_text(message.get("id")), model=as_text(message.get("model"))),
            TextDelta(text=""),
        ]
        blocks = message.get("content") or []
        if not isinstance(blocks, list):
            raise MalformedAnswerError("the content is not an array")
        for index, block in enumerate(blocks):
            events += self._start_block(index, as_object(block, "a content block"))
            events += self._stop_block(index)
        events += _extra(message, _MESSAGE)
        events += _stop(message)
        events += self._add_usage(message.get("usage"))
        return tuple(events)

    def _read(self, event: dict[str, Any], name: bytes | None) -> tuple[StreamEvent, ...]:
        events: tuple[StreamEvent, ...] = ()
        match event.get("type"):
            case "content_block_delta":
                events = self._read_delta(_index(event), as_object(event.get("delta"), "a delta"))
            case "content_block_start":
                block = as_object(event.get("content_block"), "a content block")
                events = self._start_block(_index(event), block)
            case "content_block_stop":
                events = self._stop_block(_index(event))
            case "message_start":
                events = self.read_message(as_object(event.get("message"), "the message"))
            case "message_delta":
                delta = as_object(event.get("delta") or {}, "a delta")
                extra = (*_extra(delta, _STOPS), *_extra(event, _MESSAGE_DELTA))
                events = (*extra, *_stop(delta), *self._add_usage(event.get("usage")))
            case "message_stop":
                events = _ENDED
            case kind:
                if kind == "error" or (kind is None and name == b"error"):
                    events = (read_error(event, None),)
        return events

    def _start_block(self, index: int, block: dict[str, Any]) -> tuple[StreamEvent, ...]:
        kind = as_text(block.get("type"))
        if kind is None:
            raise MalformedAnswerError("a content block has no type")
        calls = kind == "tool_use"
        began = _Block(kind, self._calls, block.get("input") if calls else None)
        self._blocks[index] = began
        known = _PARTS.get(kind, frozenset())
        unknown = {n: value for n, value in block.items() if n not in known and n != DELTAS}
        if kind not in _PARTS:
            return (_detail(index, unknown),)
        if calls:
            self._calls += 1
            return (
                ToolCallDelta(
                    index=began.call,
                    id=as_text(block.get("id")),
                    name=as_text(block.get("name")),
                    extra=unknown,
                ),
            )
        first = self._say(index, began, block.get(kind), block.get("signature"))
        return (*first, _detail(index, unknown)) if unknown else first

    def _read_delta(self, index: int, delta: dict[str, Any]) -> tuple[StreamEvent, ...]:
        block = self._blocks.get(index)
        if block is None:
            raise MalformedAnswerError("a delta belongs to no content block")
        match block.kind, delta:
            case "text", {"type": "text_delta", "text": str(text)}:
                return self._say(index, block, text)
            case "thinking", {"type": "thinking_delta", "thinking": str(text)}:
                return self._say(index, block, text)
            case "thinking", {"type": "signature_delta", "signature": str(signature)}:
                return self._say(index, block, "", signature)
            case "tool_use", {"type": "input_json_delta", "partial_json": str(text)}:
                if text:
                    block.wordless = False
                return (ToolCallDelta(index=block.call, arguments=text),)
            case _:
                kind = {} if block.kind in _PARTS else {"type": block.kind}
                return (_detail(index, {**kind, DELTAS: [delta]}),)

    def _say(
        self, index: int, block: _Block, text: Any, signature: Any = None
    ) -> tuple[StreamEvent, ...]:
        """Return the event of a piece of text or thinking, if there is anything in it."""
        if not (text or signature):
            return ()
        if not isinstance(text, str):
            raise MalformedAnswerError("a content block's text is not a string")
        block.wordless = False
        if block.kind == "text":
            return (TextDelta(text=text, block=index),)
        return (
            ReasoningDelta(text=text, field=THINKING, signature=as_text(signature), block=index),
        )

    def _stop_block(self, index: int) -> tuple[StreamEvent, ...]:
        """Make up for what a block without deltas did not say."""
        block = self._blocks.get(index)
        if block is None:
            raise MalformedAnswerError("a content block ends that did not begin")
        if not block.wordless or block.kind not in _PARTS:
            return ()
        if block.kind == "tool_use":
            arguments = msgspec.json.encode(block.whole_input or {}).decode()
            return (ToolCallDelta(index=block.call, arguments=arguments),)
        empty = {name: "" for name in _PARTS[block.kind] if name != "type"}
        return (_detail(index, {"type": block.kind, **empty}),)

    def _add_usage(self, usage: Any) -> tuple[StreamEvent, ...]:
        """Later counts are cumulative: they replace the earlier ones, unless null."""
        if not isinstance(usage, dict):
            return ()
        for name, value in usage.items():
            if value is not None or name not in self._usage:
                self._usage[name] = value
        return (UsageReported(usage=dict(self._usage)),)


def decode_body(status: int, body: bytes) -> tuple[StreamEvent, ...]:
    """Read a whole answer: its events and Ended, or ErrorReported alone."""
    document = decode_document(body)
    if status >= 400:
        return (read_error(document if isinstance(document, dict) else {}, status),)
    if not isinstance(document, dict):
        return (unreadable("the answer is not a JSON object"),)
    if document.get("type") == "error":
        return (read_error(document, None),)
    if not isinstance(document.get("content"), list):
        return (unreadable("the answer has no content"),)
    try:
        return (*MessagesDecoder().read_message(document), *_ENDED)
    except MalformedAnswerError as error:
        return (unreadable(str(error)),)


STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""By the type of an error."""


def read_error(document: dict[str, Any], status: int | None) -> ErrorReported:
    """Read an error's body or event. Inside a stream its type tells the status."""
    error = document.get("error") or document
    if not isinstance(error, dict):
        return ErrorReported(message=str(error), status=status)
    message = as_text(error.get("message")) or "the provider reported an error"
    code = as_text(error.get("type"))
    if status is None and code is not None:
        status = STATUSES.get(code)
    return ErrorReported(message=message, code=code, status=status)


def _detail(index: int, fields: dict[str, Any]) -> ExtraDelta:
    return ExtraDelta(fields={CONTENT_BLOCKS: [{**fields, "index": index}]})


def _extra(fields: dict[str, Any], known: frozenset[str]) -> tuple[StreamEvent, ...]:
    unknown = {name: value for name, value in fields.items() if name not in known}
    return (ExtraDelta(fields=unknown, choice=None),) if unknown else ()


def _stop(fields: dict[str, Any]) -> tuple[StreamEvent, ...]:
    reason = as_text(fields.get("stop_reason"))
    if reason is None:
        return ()
    name = FINISHES.get(reason, reason)
    finished = Finished(reason=name, native=reason if name != reason else None)
    sequence = fields.get("stop_sequence")
    if sequence is None:
        return (finished,)
    return (ExtraDelta(fields={"stop_sequence": sequence}, beside=True), finished)


def _index(event: dict[str, Any]) -> int:
    index = event.get("index")
    if type(index) is not int:
        raise MalformedAnswerError("an event names no content block")
    return index
