"""OpenAI Chat Completions: writing a stream as its answer comes.

A chunk differs from the next in little, so what stays is encoded once: a text delta costs the
encoding of its text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

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
    from collections.abc import Callable, Sequence

    from headstart.types import StreamEvent

REASONING_FIELDS = frozenset({"reasoning_content", "reasoning"})
"""Names under which providers of this dialect send reasoning."""

_AFTER_TEXT = b'},"logprobs":null,"finish_reason":null}]}\n\n'
_NOTHING: dict[str, Any] = {}
_OfChoice: TypeAlias = (
    TextDelta
    | ReasoningDelta
    | RefusalDelta
    | ToolCallDelta
    | LogprobsDelta
    | ExtraDelta
    | Finished
)
_encode = msgspec.json.encode


def reasoning_field(field: str) -> str:
    """Return the name under which clients of this dialect look for reasoning."""
    return field if field in REASONING_FIELDS else "reasoning_content"


class ChatEncoder:
    """EventEncoder of Chat Completions.

    A choice's role chunk waits for its first content, which decides how it reads; the usage chunk
    waits for the end. ``error_frame`` writes an error as the stream's last event.
    """

    def __init__(
        self,
        id: str,
        created: int,
        *,
        include_usage: bool,
        error_frame: Callable[[ErrorReported, str], bytes],
    ) -> None:
        self._id = id
        self._created = created
        self._include_usage = include_usage
        self._error_frame = error_frame
        self._names = Started()
        self._head = self._make_head()
        self._before_text: dict[int, bytes] = {}
        """For each choice that has begun, what stands before a text of its."""
        self._calls: dict[int, dict[int, str]] = {}
        """For each choice, the kinds of its tool calls by their numbers."""
        self._usage: dict[str, Any] | None = None
        self._extra: dict[str, Any] = {}
        self._over = False

    def feed(self, events: Sequence[StreamEvent]) -> bytes:
        """Return the chunks that say these events; nothing once the stream is over."""
        written: list[bytes] = []
        for event in events:
            if type(event) is TextDelta:
                before = self._before_text.get(event.choice)
                if before is not None and event.text and not self._over:
                    written.append(before + _encode(event.text) + _AFTER_TEXT)
                    continue
            if not self._over:
                self._write(event, written)
        return written[0] if len(written) == 1 else b"".join(written)

    def _write(self, event: StreamEvent, written: list[bytes]) -> None:
        match event:
            case Started():
                self._rename(event)
            case UsageReported(usage=usage):
                self._usage = usage
            case ExtraDelta(fields=fields, choice=None):
                self._extra.update(fields)
            case ErrorReported():
                written.append(self._error_frame(event, self._id))
                self._over = True
            case Ended():
                written.append(self._ending())
                self._over = True
            case TextDelta(text="") | ReasoningDelta(text="") | RefusalDelta(text=""):
                pass
            case _:
                if event.choice is not None and event.choice not in self._before_text:
                    written.append(self._opening(event.choice, calls=_is_call(event)))
                written.append(self._chunk_of(event))

    def _chunk_of(self, event: _OfChoice) -> bytes:
        """Return the chunk that says an event of a choice, or nothing."""
        delta: dict[str, Any] = {}
        beside: dict[str, Any] = {}
        match event:
            case TextDelta(text=text):
                delta = {"content": text}
            case ReasoningDelta(text=text, field=field):
                delta = {reasoning_field(field): text}
            case RefusalDelta(text=text):
                delta = {"refusal": text}
            case ToolCallDelta():
                delta = self._call_delta(event)
            case LogprobsDelta(value=value):
                beside = {"logprobs": value}
            case Finished():
                beside = {"finish_reason": self._reason(event)}
            case ExtraDelta(fields=fields):
                known = {name: value for name, value in fields.items() if name != CONTENT_BLOCKS}
                delta, beside = ({}, known) if event.beside else (known, {})
        if not (delta or beside):
            return b""
        top = self._take_extra() if type(event) is Finished else {}
        return self._chunk(event.choice or 0, delta, beside, top)

    def _take_extra(self) -> dict[str, Any]:
        extra, self._extra = self._extra, {}
        return extra

    def _call_delta(self, event: ToolCallDelta) -> dict[str, Any]:
        calls = self._calls.setdefault(event.choice, {})
        begins = event.index not in calls
        kind = calls.setdefault(event.index, event.kind)
        body = {"input" if kind == "custom" else "arguments": event.arguments}
        if begins:
            body = {"name": event.name or "", **body}
        if kind == "function_call":
            return {"function_call": body}
        named = {"id": event.id or "", "type": kind} if begins else {}
        return {"tool_calls": [{"index": event.index, **named, kind: body, **event.extra}]}

    def _reason(self, event: Finished) -> str:
        """Return why a choice ended. Agents go on only where it says that tools were called."""
        calls = self._calls.get(event.choice)
        if event.reason != "stop" or not calls:
            return event.reason
        return "function_call" if calls.get(0) == "function_call" else "tool_calls"

    def _rename(self, event: Started) -> None:
        known = self._names
        self._names = Started(
            model=event.model or known.model,
            fingerprint=event.fingerprint or known.fingerprint,
            tier=event.tier or known.tier,
        )
        if self._names != known:
            self._head = self._make_head()
            self._before_text = {choice: self._text_head(choice) for choice in self._before_text}

    def _make_head(self) -> bytes:
        names = self._names
        head = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": names.model or "",
            **({"service_tier": names.tier} if names.tier else {}),
            "system_fingerprint": names.fingerprint,
        }
        return b"data: %b," % _encode(head)[:-1]

    def _text_head(self, choice: int) -> bytes:
        return b'%b"choices":[{"index":%d,"delta":{"content":' % (self._head, choice)

    def _opening(self, choice: int, *, calls: bool) -> bytes:
        self._before_text[choice] = self._text_head(choice)
        content = None if calls else ""
        return self._chunk(choice, {"role": "assistant", "content": content, "refusal": None})

    def _chunk(
        self,
        choice: int,
        delta: dict[str, Any],
        beside: dict[str, Any] = _NOTHING,
        top: dict[str, Any] = _NOTHING,
    ) -> bytes:
        content = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._data({"choices": [{**content, **beside}], **top})

    def _data(self, members: dict[str, Any]) -> bytes:
        return b"%b%b\n\n" % (self._head, _encode(members)[1:])

    def _ending(self) -> bytes:
        last = b""
        if self._usage is not None and self._include_usage:
            last = self._data({"choices": [], "usage": self._usage, **self._extra})
        elif self._extra:
            # Who did not ask for usage reads the first choice of every chunk.
            last = self._chunk(0, {}, top=self._extra)
        return b"%bdata: [DONE]\n\n" % last


def _is_call(event: StreamEvent) -> bool:
    return type(event) is ToolCallDelta and event.kind != "function_call"
