"""Cohere's Chat, version 2: reading answers.

A plan for the tools comes as reasoning, under its own name. Citations are kept beside the text.
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

PLAN = "tool_plan"
THINKING = "thinking"
"""Names under which reasoning comes."""

FINISHES = {
    "COMPLETE": "stop",
    "STOP_SEQUENCE": "stop",
    "MAX_TOKENS": "length",
    "TOOL_CALL": "tool_calls",
}
_FAILURES = frozenset({"ERROR", "TIMEOUT"})
_ENDED = (Ended(),)


class ChatV2Decoder:
    """EventDecoder of ``POST /v2/chat``."""

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder().decode

    def feed(self, frame: Frame) -> tuple[StreamEvent, ...]:
        """Return what the frame says; nothing for comments and events yet unknown."""
        if not frame.data or frame.data.startswith(b"[DONE]"):
            return ()
        try:
            event = self._decode(frame.data)
        except UNDECODABLE:
            return (unreadable("an event of the stream is not JSON"),)
        try:
            return self._read(as_object(event, "an event of the stream"))
        except MalformedAnswerError as error:
            return (unreadable(str(error)),)

    def _read(self, event: dict[str, Any]) -> tuple[StreamEvent, ...]:
        delta = as_object(event.get("delta") or {}, "a delta")
        message = as_object(delta.get("message") or {}, "a delta's message")
        events: tuple[StreamEvent, ...] = ()
        match event.get("type"):
            case "message-start":
                events = (Started(id=as_text(event.get("id"))), TextDelta(text=""))
            case "content-start" | "content-delta":
                events = _content(message.get("content"), event.get("index"))
            case "tool-plan-delta":
                events = _reasoning(message.get(PLAN), PLAN)
            case "tool-call-start" | "tool-call-delta":
                events = (_call(message.get("tool_calls"), event.get("index")),)
            case "citation-start":
                events = (ExtraDelta(fields={"citations": [message.get("citations")]}),)
            case "message-end":
                events = (*_end(delta), *_ENDED)
            case None if "message" in event:
                events = (read_error(event, None),)
        return events


def decode_body(status: int, body: bytes) -> tuple[StreamEvent, ...]:
    """Read a whole answer: its events and Ended, or ErrorReported alone."""
    document = decode_document(body)
    if status >= 400:
        return (read_error(document if isinstance(document, dict) else {}, status),)
    if not isinstance(document, dict) or not isinstance(document.get("message"), dict):
        return (unreadable("the answer has no message"),)
    try:
        events = tuple(_whole(document, document["message"]))
    except MalformedAnswerError as error:
        return (unreadable(str(error)),)
    errors = tuple(event for event in events if isinstance(event, ErrorReported))
    return errors or (*events, *_ENDED)


def read_error(document: dict[str, Any], status: int | None) -> ErrorReported:
    """Read an error's body, ``{"id"?, "message"}``."""
    message = as_text(document.get("message")) or "the provider reported an error"
    return ErrorReported(message=message, status=status)


def _whole(document: dict[str, Any], message: dict[str, Any]) -> list[StreamEvent]:
    events: list[StreamEvent] = [Started(id=as_text(document.get("id"))), TextDelta(text="")]
    events += _reasoning(message.get(PLAN), PLAN)
    for index, block in enumerate(_list(message.get("content"))):
        events += _content(block, index)
    for index, call in enumerate(_list(message.get("tool_calls"))):
        events.append(_call(call, index))
    if citations := _list(message.get("citations")):
        events.append(ExtraDelta(fields={"citations": citations}))
    events += _end(document)
    return events


def _content(block: Any, index: Any) -> tuple[StreamEvent, ...]:
    """Read a content block or a piece of one; its number says which."""
    block = as_object(block or {}, "a content block")
    place = index if type(index) is int else None
    if text := as_text(block.get(THINKING)):
        return _reasoning(text, THINKING, place)
    text = as_text(block.get("text"))
    return (TextDelta(text=text, block=place),) if text else ()


def _reasoning(text: Any, field: str, block: int | None = None) -> tuple[StreamEvent, ...]:
    text = as_text(text)
    return (ReasoningDelta(text=text, field=field, block=block),) if text else ()


def _call(call: Any, index: Any) -> ToolCallDelta:
    call = as_object(call, "a tool call")
    function = as_object(call.get("function") or {}, "a tool call's function")
    if type(index) is not int:
        raise MalformedAnswerError("a tool call has no number")
    arguments = function.get("arguments")
    return ToolCallDelta(
        index=index,
        id=as_text(call.get("id")),
        name=as_text(function.get("name")),
        arguments=arguments if isinstance(arguments, str) else "",
    )


def _end(fields: dict[str, Any]) -> tuple[StreamEvent, ...]:
    """Read how the answer ended, and what it used."""
    reason = as_text(fields.get("finish_reason"))
    events: list[StreamEvent] = []
    if reason in _FAILURES:
        message = as_text(fields.get("error")) or "the provider broke the answer off"
        return (ErrorReported(message=message, code=reason),)
    if reason is not None:
        events.append(Finished(reason=FINISHES.get(reason, "error"), native=reason))
    if isinstance(fields.get("usage"), dict):
        events.append(UsageReported(usage=fields["usage"]))
    return tuple(events)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list | None):
        raise MalformedAnswerError("what should be an array is none")
    return value or []
