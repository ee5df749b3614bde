"""OpenAI Chat Completions: reading answers, with the deviations of providers that speak it.

Groq reports errors as ``event: error`` and usage under ``x_groq``; OpenRouter mixes errors with
choices; Azure opens with an unnamed chunk; Mistral numbers no tool calls and pads its chunks;
vLLM names its fingerprint in the usage chunk alone; several send reasoning under their own name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.middleware.dialects.answer_json import (
    UNDECODABLE,
    MalformedAnswerError,
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
    LogprobsDelta,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headstart.middleware.sse import Frame
    from headstart.types import StreamEvent

_REASONING = ("reasoning_content", "reasoning")
_TEXTS = frozenset({*_REASONING, "content", "refusal"})
_MESSAGE = frozenset({*_TEXTS, "role", "tool_calls", "function_call", CONTENT_BLOCKS})
"""Fields of a message that are no unknown ones; ``CONTENT_BLOCKS`` is a name of our own."""
_CHOICE = frozenset({"index", "delta", "message", "finish_reason", "logprobs"})
_CALL = frozenset({"index", "id", "type", "function", "custom"})
_PADDING = frozenset({"obfuscation", "p"})
_CHUNK = _PADDING | {
    "id",
    "object",
    "created",
    "model",
    "system_fingerprint",
    "service_tier",
    "choices",
    "usage",
    "error",
}
_NO_FIELDS: dict[str, Any] = {}
_ENDED = (Ended(),)
_decode = msgspec.json.Decoder().decode


class ChatDecoder:
    """EventDecoder of Chat Completions."""

    def __init__(self) -> None:
        self._named: tuple[Any, ...] = (None, None, None)
        self._calls: dict[int, _ToolCalls] = {}

    def feed(self, frame: Frame) -> tuple[StreamEvent, ...]:
        """Return what the frame says; nothing for comments and keep-alives."""
        data = frame.data
        if not data:
            return ()
        if data.startswith(b"[DONE]"):
            return _ENDED
        try:
            chunk = _decode(data)
        except UNDECODABLE:
            return (unreadable("an event of the stream is not JSON"),)
        if not isinstance(chunk, dict):
            return (unreadable("an event of the stream is not an object"),)
        if frame.event == b"error" and "error" not in chunk:
            return (read_error(chunk, None),)
        return self.read(chunk)

    def read(self, chunk: dict[str, Any]) -> tuple[StreamEvent, ...]:
        """Return what one decoded chunk, or one whole answer, says."""
        events: list[StreamEvent] = []
        named = (chunk.get("model"), chunk.get("system_fingerprint"), chunk.get("service_tier"))
        if named != self._named:
            self._named = named
            _read_names(chunk, events)
        try:
            for position, choice in enumerate(_list(chunk.get("choices"))):
                self._read_choice(choice, position, events)
        except MalformedAnswerError as error:
            return (unreadable(str(error)),)
        _read_rest(chunk, events)
        return tuple(events)

    def _read_choice(self, choice: Any, position: int, events: list[StreamEvent]) -> None:
        if type(choice) is not dict:
            raise MalformedAnswerError("a choice is not an object")
        index = choice.get("index")
        if type(index) is not int:
            index = position
        calls = self._calls.get(index)
        if calls is None:
            calls = self._calls[index] = _ToolCalls()
            events.append(TextDelta(text="", choice=index))
        delta = choice.get("delta")
        if delta is None:
            delta = choice.get("message") or _NO_FIELDS
        if type(delta) is not dict:
            raise MalformedAnswerError("a choice's delta is not an object")
        _read_message(delta, index, calls, events)
        logprobs = choice.get("logprobs")
        if type(logprobs) is dict:
            events.append(LogprobsDelta(value=logprobs, choice=index))
        if not choice.keys() <= _CHOICE:
            unknown = _unknown(choice, _CHOICE)
            events.append(ExtraDelta(fields=unknown, choice=index, beside=True))
        reason = choice.get("finish_reason")
        if reason and type(reason) is str:
            native = choice.get("native_finish_reason")
            native = native if type(native) is str and native != reason else None
            events.append(Finished(reason=reason, choice=index, native=native))


class _ToolCalls:
    """Numbers one choice's tool calls from 0 in order of arrival, whatever the provider does."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._slots: dict[int, int] = {}

    def place(self, index: int | None, id: str, *, named: bool) -> int:
        """Return the number of the call that a fragment belongs to.

        Without an index a new id or a name begins a call. With one, a name and another id begin
        a call too: some endpoints give every parallel call the index 0.
        """
        if index is None:
            if id in self._ids and not named:
                return self._ids.index(id)
            return self._begin(id) if id or named or not self._ids else len(self._ids) - 1
        slot = self._slots.get(index)
        if slot is None or (named and id and self._ids[slot] not in ("", id)):
            slot = self._slots[index] = self._begin(id)
        return slot

    def _begin(self, id: str) -> int:
        self._ids.append(id)
        return len(self._ids) - 1


def read_error(document: Mapping[str, Any], status: int | None) -> ErrorReported:
    """Read an error object in any of the shapes that providers send."""
    error = document.get("error") or document
    if not isinstance(error, dict):
        return ErrorReported(message=str(error), status=status)
    message = error.get("message") or error.get("detail") or "the provider reported an error"
    code = error.get("code") or error.get("type")
    for candidate in (error.get("status_code"), error.get("code")):
        if status is None and type(candidate) is int and 400 <= candidate < 600:
            status = candidate
    return ErrorReported(message=str(message), code=str(code) if code else None, status=status)


def decode_body(status: int, body: bytes) -> tuple[StreamEvent, ...]:
    """Read a whole answer: its events and Ended, or ErrorReported alone."""
    document = decode_document(body)
    if isinstance(document, list) and document:
        document = document[0]  # Gemini's OpenAI endpoint wraps its errors in a list
    if status >= 400:
        return (read_error(document if isinstance(document, dict) else _NO_FIELDS, status),)
    if not isinstance(document, dict):
        return (unreadable("the answer is not a JSON object"),)
    if not document.get("error") and not isinstance(document.get("choices"), list):
        return (unreadable("the answer has no choices"),)
    events = ChatDecoder().read(document)
    errors = [event for event in events if type(event) is ErrorReported]
    return tuple(errors) or (*events, *_ENDED)


def _read_names(chunk: dict[str, Any], events: list[StreamEvent]) -> None:
    created = chunk.get("created")
    model = as_text(chunk.get("model"))
    fingerprint = as_text(chunk.get("system_fingerprint"))
    tier = as_text(chunk.get("service_tier"))
    if model or fingerprint or tier:
        events.append(
            Started(
                id=as_text(chunk.get("id")),
                model=model,
                created=created if isinstance(created, int) and created else None,
                fingerprint=fingerprint,
                tier=tier,
            )
        )


def _read_message(
    delta: dict[str, Any], index: int, calls: _ToolCalls, events: list[StreamEvent]
) -> None:
    content = delta.get("content")
    if len(delta) == 1 and type(content) is str:
        if content:
            events.append(TextDelta(text=content, choice=index))
        return
    unknown: dict[str, Any] = {}
    for name, value in delta.items():
        if value is None:
            continue
        if name in _REASONING and type(value) is str:
            if value:
                events.append(ReasoningDelta(text=value, choice=index, field=name))
        elif name not in _MESSAGE or (name in _TEXTS and type(value) is not str):
            unknown[name] = value
    if content and type(content) is str:
        events.append(TextDelta(text=content, choice=index))
    refusal = delta.get("refusal")
    if refusal and type(refusal) is str:
        events.append(RefusalDelta(text=refusal, choice=index))
    events += [_read_call(call, index, calls) for call in _list(delta.get("tool_calls"))]
    if delta.get("function_call"):
        events.append(_read_function_call(delta["function_call"], index, calls))
    if unknown:
        events.append(ExtraDelta(fields=unknown, choice=index))


def _read_call(call: Any, choice: int, calls: _ToolCalls) -> ToolCallDelta:
    if type(call) is not dict:
        raise MalformedAnswerError("a tool call is not an object")
    kind = as_text(call.get("type")) or ("custom" if "custom" in call else "function")
    body = call.get(kind) or _NO_FIELDS
    if type(body) is not dict:
        raise MalformedAnswerError("a tool call's body is not an object")
    call_id = as_text(call.get("id"))
    name = as_text(body.get("name"))
    index = call.get("index")
    arguments = body.get("input" if kind == "custom" else "arguments")
    return ToolCallDelta(
        index=calls.place(index if type(index) is int else None, call_id or "", named=bool(name)),
        choice=choice,
        id=call_id,
        name=name,
        arguments=_arguments(arguments),
        kind=kind,
        extra=_unknown(call, _CALL | {kind}),
    )


def _read_function_call(body: Any, choice: int, calls: _ToolCalls) -> ToolCallDelta:
    """Read the deprecated form, which has no id and no index."""
    if type(body) is not dict:
        raise MalformedAnswerError("function_call is not an object")
    return ToolCallDelta(
        index=calls.place(0, "", named=False),
        choice=choice,
        name=as_text(body.get("name")),
        arguments=_arguments(body.get("arguments")),
        kind="function_call",
    )


def _arguments(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return msgspec.json.encode(value).decode()  # some local servers send an object


def _read_rest(chunk: dict[str, Any], events: list[StreamEvent]) -> None:
    usage = chunk.get("usage")
    if not usage and "x_groq" in chunk and isinstance(chunk["x_groq"], dict):
        usage = chunk["x_groq"].get("usage")
    if type(usage) is dict:
        if chunk.get("choices") and all(type(event) is Started for event in events):
            events.append(TextDelta(text=""))  # not the extra chunk: it is part of the answer
        events.append(UsageReported(usage=usage))
    if chunk.get("error") or chunk.get("object") == "error":
        events.append(read_error(chunk, None))
    elif "choices" in chunk and not chunk.keys() <= _CHUNK:
        events.append(ExtraDelta(fields=_unknown(chunk, _CHUNK), choice=None))


def _unknown(fields: dict[str, Any], known: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in known}


def _list(value: Any) -> list[Any]:
    if value is not None and type(value) is not list:
        raise MalformedAnswerError("choices or tool calls are not an array")
    return value or []
