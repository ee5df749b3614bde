"""Gemini's generateContent: writing a stream as its events come, from whatever dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.middleware.dialects.gemini_errors import error_body
from headstart.middleware.dialects.gemini_events import THOUGHT
from headstart.middleware.dialects.gemini_render import (
    call_part,
    candidate,
    finish_reason,
    reasoning_part,
)
from headstart.types import (
    Ended,
    ErrorReported,
    Finished,
    LogprobsDelta,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    UsageReported,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.types import StreamEvent

_encode = msgspec.json.encode


class _Call:
    """A tool call being collected: the API's calls come whole."""

    __slots__ = ("arguments", "extra", "id", "name")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.extra: dict[str, Any] = {}

    def add(self, event: ToolCallDelta) -> None:
        self.id = self.id or event.id or ""
        self.name = self.name or event.name or ""
        self.arguments.append(event.arguments)
        self.extra = {**self.extra, **event.extra}

    def part(self) -> dict[str, Any]:
        arguments = "".join(self.arguments)
        return call_part(
            ToolCall(id=self.id, name=self.name, arguments=arguments, extra=self.extra)
        )


class GenerateEncoder:
    """EventEncoder of ``streamGenerateContent?alt=sse``.

    Chunks stand alone, so an encoder can begin anywhere in an answer. A choice's calls are held
    until something else of it comes, and how the answer ended until it has: the last chunk tells
    the usage. Nothing marks the end.
    """

    def __init__(self, id: str) -> None:
        self._head = {"responseId": id}
        self._calls: dict[int, dict[int, _Call]] = {}
        self._finished: dict[int, Finished] = {}
        self._usage: dict[str, Any] | None = None
        self._closed = False

    def feed(self, events: Sequence[StreamEvent]) -> bytes:
        """Return the bytes that say these events, often none."""
        return b"".join(map(self._write, events))

    def _write(self, event: StreamEvent) -> bytes:
        written = b""
        if self._closed:
            return written
        match event:
            case TextDelta() | RefusalDelta() if event.text:
                written = self._say(event.choice, {"text": event.text})
            case ReasoningDelta(field=field) if field == THOUGHT:
                if event.text or event.signature:
                    written = self._say(event.choice, reasoning_part(event.text, event.signature))
            case LogprobsDelta(value=value, choice=choice):
                written = self._chunk([candidate(choice, [], {"logprobsResult": value})])
            case ToolCallDelta():
                calls = self._calls.setdefault(event.choice, {})
                calls.setdefault(event.index, _Call()).add(event)
            case Started(model=str(model)):
                self._head = {**self._head, "modelVersion": model}
            case Finished():
                self._finished[event.choice] = event
            case UsageReported():
                self._usage = event.usage
            case ErrorReported():
                self._closed = True
                written = b"data: %b\n\n" % error_body(event, self._head["responseId"])
            case Ended():
                self._closed = True
                written = self._end()
        return written

    def _say(self, choice: int, part: dict[str, Any]) -> bytes:
        return self._chunk([candidate(choice, [*self._called(choice), part], {})])

    def _called(self, choice: int) -> list[dict[str, Any]]:
        """Return a choice's calls, all of them whole now."""
        calls = self._calls.pop(choice, {})
        return [call.part() for _, call in sorted(calls.items())]

    def _end(self) -> bytes:
        """Return the last chunk: calls still held, how each choice ended, and the usage."""
        last = []
        for index in sorted({*self._calls, *self._finished}):
            parts = self._called(index) or [{"text": ""}]
            finish = self._finished.get(index)
            reason = (
                {}
                if finish is None
                else {"finishReason": finish_reason(finish.reason, finish.native)}
            )
            last.append(candidate(index, parts, reason))
        usage = {} if self._usage is None else {"usageMetadata": self._usage}
        return self._chunk(last, usage)

    def _chunk(self, candidates: list[dict[str, Any]], rest: dict[str, Any] | None = None) -> bytes:
        return b"data: %b\n\n" % _encode({"candidates": candidates, **self._head, **(rest or {})})
