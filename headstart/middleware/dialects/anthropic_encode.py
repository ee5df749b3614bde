"""Anthropic Messages: writing a stream as its answer comes.

Content blocks follow one another, and only the last one grows. So what comes while a tool call is
still open waits for its turn: other providers send the arguments of several calls in turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from headstart.middleware.dialects.anthropic_events import DELTAS, THINKING
from headstart.middleware.dialects.anthropic_render import (
    BESIDE_DELTA,
    IN_DELTA,
    NO_USAGE,
    stop_reason,
)
from headstart.types import (
    CONTENT_BLOCKS,
    Ended,
    ErrorReported,
    ExtraDelta,
    Finished,
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

_Key: TypeAlias = tuple[str, int | None]
"""A content block: its type, and its number at the provider (a tool call's among the calls)."""
_Said: TypeAlias = TextDelta | RefusalDelta | ReasoningDelta | ToolCallDelta
_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_FIELDS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
_encode = msgspec.json.encode


class MessagesEncoder:
    """EventEncoder of Anthropic Messages.

    It begins with the first content, with the usage known by then, and tells the usage and why
    the answer stopped at its end. Reasoning under another name than the API's is left out, for
    its clients did not ask for it, and so are choices other than the first.
    """

    def __init__(self, id: str, *, error_frame: Callable[[ErrorReported, str], bytes]) -> None:
        self._id = id
        self._error_frame = error_frame
        self._model = ""
        self._usage = NO_USAGE
        self._extra: dict[str, Any] = {}
        self._begun = False
        self._over = False
        self._blocks = 0
        """How many were begun; the last is open if ``_open`` says so."""
        self._open: _Key | None = None
        self._before_delta = b""
        self._arguments: list[str] = []
        """Of the open tool call."""
        self._signature: str | None = None
        """Of the open thinking, told at its end."""
        self._called: set[_Key] = set()
        self._waiting: dict[_Key, list[_Said]] = {}
        self._fields: dict[int | None, dict[str, Any]] = {}
        """Unknown fields of blocks that are yet to begin."""
        self._finished = Finished(reason="stop")
        self._stop_sequence: Any = None
        self._refused = False

    def feed(self, events: Sequence[StreamEvent]) -> bytes:
        """Return the events that say these; nothing once the stream is over."""
        written: list[bytes] = []
        for event in events:
            if type(event) is TextDelta:
                open_ = self._open
                if open_ and open_[0] == "text" and open_[1] == event.block and event.text:
                    if not event.choice:
                        written.append(self._before_delta + _encode(event.text) + b"}}\n\n")
                    continue
            if not self._over:
                self._write(event, written)
        return written[0] if len(written) == 1 else b"".join(written)

    def _write(self, event: StreamEvent, written: list[bytes]) -> None:
        match event:
            case Started(model=model):
                self._model = model or self._model
            case UsageReported(usage=usage):
                self._usage = {**NO_USAGE, **usage}
            case ErrorReported():
                written.append(self._error_frame(event, self._id))
                self._over = True
                self._open = None
            case Ended():
                self._end(written)
            case ExtraDelta():
                self._add_extra(event, written)
            case Finished(choice=0):
                self._finished = event
                self._close_all(written)
            case TextDelta(choice=0) | ReasoningDelta(choice=0) | RefusalDelta(choice=0):
                if event.text or (type(event) is ReasoningDelta and event.signature):
                    self._add(event, written)
            case ToolCallDelta(choice=0):
                self._add(event, written)

    def _add_extra(self, event: ExtraDelta, written: list[bytes]) -> None:
        fields = event.fields
        if event.choice is None:
            self._extra.update(fields)
        elif event.choice == 0 and event.beside:
            self._stop_sequence = fields.get("stop_sequence", self._stop_sequence)
        elif event.choice == 0:
            for detail in fields.get(CONTENT_BLOCKS, ()):
                self._add_detail(detail, written)

    def _add(self, event: _Said, written: list[bytes]) -> None:
        """Write a piece of a block, or let it wait."""
        self._begin(written)
        if type(event) is ReasoningDelta and event.field != THINKING:
            return
        self._refused |= type(event) is RefusalDelta
        key = _key(event)
        if key == self._open:
            self._say(event, written)
        elif key in self._called and key not in self._waiting:
            return  # what follows whole arguments is blank
        elif self._waiting or not self._call_is_whole():
            self._waiting.setdefault(key, []).append(event)
            if type(event) is ToolCallDelta:
                self._called.add(key)
        else:
            self._begin_with(key, event, written)

    def _begin_with(self, key: _Key, event: _Said, written: list[bytes]) -> None:
        block: dict[str, Any]
        match event:
            case ToolCallDelta(id=id, name=name, extra=extra):
                self._called.add(key)
                block = {"type": "tool_use", "id": id or "", "name": name or "", "input": {}}
                block |= extra
            case ReasoningDelta():
                block = {"type": "thinking", "thinking": "", "signature": ""}
            case _:
                block = {"type": "text", "text": ""}
        self._begin_block(key, {**block, **self._fields.pop(key[1], {})}, written)
        self._say(event, written)

    def _say(self, event: _Said, written: list[bytes]) -> None:
        """Write a piece of the open block."""
        text = event.arguments if isinstance(event, ToolCallDelta) else event.text
        if text:
            written.append(self._before_delta + _encode(text) + b"}}\n\n")
        if type(event) is ToolCallDelta:
            self._arguments.append(text)
        elif type(event) is ReasoningDelta:
            self._signature = event.signature or self._signature

    def _add_detail(self, detail: dict[str, Any], written: list[bytes]) -> None:
        """Write what no other dialect has: a block of another type, or more of a known one's."""
        fields = {name: value for name, value in detail.items() if name not in ("index", DELTAS)}
        index, deltas = detail["index"], detail.get(DELTAS, ())
        mine = self._open is not None and self._open[1] == index and self._open[0] != "tool_use"
        if "type" in fields:
            if not mine:
                self._begin(written)
                self._begin_block(("block", index), fields, written)
        elif not deltas:
            self._fields[index] = fields
        elif not mine:
            block = {"type": "text", "text": "", **self._fields.pop(index, {})}
            self._begin(written)
            self._begin_block(("text", index), block, written)
        written.extend(self._delta(delta) for delta in deltas)

    def _begin(self, written: list[bytes]) -> None:
        if self._begun:
            return
        self._begun = True
        late = (*IN_DELTA, *BESIDE_DELTA)
        message = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage,
            **{name: value for name, value in self._extra.items() if name not in late},
        }
        self._extra = {name: value for name, value in self._extra.items() if name in late}
        written.append(_frame({"type": "message_start", "message": message}))

    def _begin_block(self, key: _Key, block: dict[str, Any], written: list[bytes]) -> None:
        self._close(written)
        index = self._blocks
        written.append(
            _frame({"type": "content_block_start", "index": index, "content_block": block})
        )
        self._blocks += 1
        self._open = key
        self._arguments = []
        kind, field = _FIELDS.get(key[0], ("", ""))
        self._before_delta = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"%b","%b":' % (index, kind.encode(), field.encode())
        )

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _frame({"type": "content_block_delta", "index": self._blocks - 1, "delta": delta})

    def _call_is_whole(self) -> bool:
        """Can the open block end here? A tool call can once its arguments are whole."""
        if self._open is None or self._open[0] != "tool_use":
            return True
        try:
            msgspec.json.decode("".join(self._arguments), type=msgspec.Raw)
        except (msgspec.DecodeError, RecursionError):
            return False
        return True

    def _close(self, written: list[bytes]) -> None:
        if self._open is not None:
            self._open = None
            if self._signature is not None:
                signature, self._signature = self._signature, None
                written.append(self._delta({"type": "signature_delta", "signature": signature}))
            written.append(_frame({"type": "content_block_stop", "index": self._blocks - 1}))

    def _close_all(self, written: list[bytes]) -> None:
        """Close the open block, and write those that waited for it."""
        self._close(written)
        waiting, self._waiting = self._waiting, {}
        for key, (first, *rest) in waiting.items():
            self._begin_with(key, first, written)
            for event in rest:
                self._say(event, written)
        self._close(written)

    def _end(self, written: list[bytes]) -> None:
        self._begin(written)
        self._close_all(written)
        finished = self._finished
        delta = {
            "stop_reason": stop_reason(
                finished.reason, finished.native, calls=bool(self._called), refused=self._refused
            ),
            "stop_sequence": self._stop_sequence,
            **{name: value for name, value in self._extra.items() if name in IN_DELTA},
        }
        beside = {name: value for name, value in self._extra.items() if name not in IN_DELTA}
        ending = {"type": "message_delta", "delta": delta, "usage": self._usage, **beside}
        written += (_frame(ending), _STOP)
        self._over = True


def _key(event: _Said) -> _Key:
    match event:
        case ToolCallDelta(index=index):
            return "tool_use", index
        case ReasoningDelta(block=block):
            return "thinking", block
        case TextDelta(block=block):
            return "text", block
    return "text", None


def _frame(event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encode(event))
