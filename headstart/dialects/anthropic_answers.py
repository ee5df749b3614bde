"""Anthropic Messages: reading, translating and rendering answers.

An answer is a list of content blocks: texts, thinking, tool calls, and blocks that only this API
has. ``MessagesDecoder`` reads blocks as events, and ``MessagesEncoder`` writes them: for
``TextDelta(text="Hi")``, the beginning of a block of type ``text``, its delta ``Hi`` and its end.
What no event has, such as citations, is the *detail* of a block: its unknown fields and deltas,
under ``CONTENT_BLOCKS`` in an ``ExtraDelta``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from headstart.dialects.dialect import (
    ENDED,
    JSONDecoder,
    MalformedAnswerError,
    Rendered,
    as_object,
    as_text,
    decode_first,
    extra_events,
    is_json,
    read_whole,
    split_text,
    unreadable,
)
from headstart.errors import HeadstartError, is_context_exceeded, prompt_too_long
from headstart.types import (
    CONTENT_BLOCKS,
    Ended,
    ErrorReported,
    ExtraDelta,
    Finished,
    Reasoning,
    ReasoningDelta,
    Refusal,
    RefusalDelta,
    Started,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    UsageReported,
    json_or_none,
    word_classes,
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headstart.types import Choice, Completion, Part, StreamEvent

DELTAS = "deltas"
"""The field under ``CONTENT_BLOCKS`` with the deltas of a block that no part can hold."""
THINKING = "thinking"
"""The name under which the reasoning comes."""

FINISHES = word_classes(
    {
        "stop": "end_turn stop_sequence",
        "length": "max_tokens model_context_window_exceeded",
        "tool_calls": "tool_use",
        "content_filter": "refusal",
    }
)
"""Canonical names of the stop reasons. Reasons that are not listed are canonical already."""

_PARTS = {
    "text": frozenset({"type", "text"}),
    "thinking": frozenset({"type", "thinking", "signature"}),
    "tool_use": frozenset({"type", "id", "name", "input"}),
}
_MESSAGE = words_of("id type role model content stop_reason stop_sequence usage")
_STOPS = frozenset({"stop_reason", "stop_sequence"})
_MESSAGE_DELTA = frozenset({"type", "delta", "usage"})


@dataclass(slots=True, eq=False, repr=False)
class _OpenBlock:
    """A content block being read."""

    kind: str
    call: int
    """Its number among the tool calls, if the block is a tool call."""
    whole_input: Any
    """The input of a tool call, if it came at once."""
    wordless: bool = True
    """True until the first delta of its part."""


@dataclass(eq=False, repr=False)
class MessagesDecoder(JSONDecoder):
    """EventDecoder of Anthropic Messages."""

    _blocks: dict[int, _OpenBlock] = field(default_factory=dict)
    _calls: int = 0
    _usage: dict[str, Any] = field(default_factory=dict)

    def read_message(self, message: dict[str, Any]) -> tuple[StreamEvent, ...]:
        """Return the events of a whole message, or of the beginning of one."""
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
        events += extra_events(message, _MESSAGE)
        events += _finish_events(message)
        events += self._add_usage(message.get("usage"))
        return tuple(events)

    def read(self, event: dict[str, Any], name: bytes | None = None) -> tuple[StreamEvent, ...]:
        """Return the events of an object; none for pings. Raises MalformedAnswerError."""
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
                extra = (*extra_events(delta, _STOPS), *extra_events(event, _MESSAGE_DELTA))
                events = (*extra, *_finish_events(delta), *self._add_usage(event.get("usage")))
            case "message_stop":
                events = ENDED
            case kind:
                if kind == "error" or (kind is None and name == b"error"):
                    events = (read_error(event, None),)
        return events

    def _start_block(self, index: int, block: dict[str, Any]) -> tuple[StreamEvent, ...]:
        kind = as_text(block.get("type"))
        if kind is None:
            raise MalformedAnswerError("a content block has no type")
        calls = kind == "tool_use"
        began = _OpenBlock(kind, self._calls, block.get("input") if calls else None)
        self._blocks[index] = began
        known = _PARTS.get(kind, frozenset())
        unknown = {n: value for n, value in block.items() if n not in known and n != DELTAS}
        if kind not in _PARTS:
            return (_detail(index, unknown),)
        if calls:
            self._calls += 1
            id, name = as_text(block.get("id")), as_text(block.get("name"))
            return (ToolCallDelta(index=began.call, id=id, name=name, extra=unknown),)
        first = self._text_events(index, began, block.get(kind), block.get("signature"))
        return (*first, _detail(index, unknown)) if unknown else first

    def _read_delta(self, index: int, delta: dict[str, Any]) -> tuple[StreamEvent, ...]:
        block = self._blocks.get(index)
        if block is None:
            raise MalformedAnswerError("a delta belongs to no content block")
        match block.kind, delta:
            case "text", {"type": "text_delta", "text": str(text)}:
                return self._text_events(index, block, text)
            case "thinking", {"type": "thinking_delta", "thinking": str(text)}:
                return self._text_events(index, block, text)
            case "thinking", {"type": "signature_delta", "signature": str(signature)}:
                return self._text_events(index, block, "", signature)
            case "tool_use", {"type": "input_json_delta", "partial_json": str(text)}:
                if text:
                    block.wordless = False
                return (ToolCallDelta(index=block.call, arguments=text),)
            case _:
                kind = {} if block.kind in _PARTS else {"type": block.kind}
                return (_detail(index, {**kind, DELTAS: [delta]}),)

    def _text_events(
        self, index: int, block: _OpenBlock, text: Any, signature: Any = None
    ) -> tuple[StreamEvent, ...]:
        """Return the event for a piece of text or thinking, unless the piece is empty."""
        if not (text or signature):
            return ()
        if not isinstance(text, str):
            raise MalformedAnswerError("a content block's text is not a string")
        block.wordless = False
        if block.kind == "text":
            return (TextDelta(text=text, block=index),)
        signed = as_text(signature)
        return (ReasoningDelta(text=text, field=THINKING, signature=signed, block=index),)

    def _stop_block(self, index: int) -> tuple[StreamEvent, ...]:
        """Return the events of a block that ended without a delta."""
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
        """Replace the counts by later ones, which are cumulative, unless they are null."""
        if not isinstance(usage, dict):
            return ()
        for name, value in usage.items():
            if value is not None or name not in self._usage:
                self._usage[name] = value
        return (UsageReported(usage=dict(self._usage)),)


def decode_body(status: int, body: bytes) -> tuple[StreamEvent, ...]:
    """Read a whole answer: its events and Ended, or ErrorReported alone."""
    document = decode_first(body)
    if status >= 400:
        return (read_error(document if isinstance(document, dict) else {}, status),)
    if not isinstance(document, dict):
        return (unreadable("the answer is not a JSON object"),)
    if document.get("type") == "error":
        return (read_error(document, None),)
    if not isinstance(document.get("content"), list):
        return (unreadable("the answer has no content"),)
    return read_whole(MessagesDecoder().read_message, (document,))


_ERROR_STATUSES = {
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
"""Statuses by the type of an error."""
_ERROR_TYPES = {status: name for name, status in _ERROR_STATUSES.items()}


def read_error(document: dict[str, Any], status: int | None) -> ErrorReported:
    """Read an error's body or event. Inside a stream its type tells the status."""
    error = document.get("error") or document
    if not isinstance(error, dict):
        return ErrorReported(message=str(error), status=status)
    message = as_text(error.get("message")) or "the provider reported an error"
    code = as_text(error.get("type"))
    if status is None and code is not None:
        status = _ERROR_STATUSES.get(code)
    return ErrorReported(message=message, code=code, status=status)


def error_body(error: HeadstartError | ErrorReported, request_id: str) -> bytes:
    """Return ``{"type": "error", "error": {...}}`` as the API does, with our request id."""
    status = getattr(error, "status", None) or 500
    other = "invalid_request_error" if status < 500 else "api_error"
    message = getattr(error, "message", None) or str(error)
    if isinstance(error, ErrorReported) and is_context_exceeded(status, error.code, message):
        message = prompt_too_long(message)
    return msgspec.json.encode(
        {
            "type": "error",
            "error": {
                "type": _ERROR_TYPES.get(status, other),
                "message": message,
                "details": {"error_code": getattr(error, "code", None)},
            },
            "request_id": request_id,
        }
    )


def error_frame(error: HeadstartError | ErrorReported, request_id: str) -> bytes:
    """Return an ``error`` event: clients read its name before its data.

    It begins a line of its own: an event that was cut before it is then an error too.
    """
    return b"\nevent: error\ndata: %b\n\n" % error_body(error, request_id)


def _detail(index: int, fields: dict[str, Any]) -> ExtraDelta:
    """Return the event for the detail of a block."""
    return ExtraDelta(fields={CONTENT_BLOCKS: [{**fields, "index": index}]})


def _finish_events(fields: dict[str, Any]) -> tuple[StreamEvent, ...]:
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


_IN_DELTA = ("container", "stop_details")
"""Fields of a message that are in the last delta of its stream."""
_BESIDE_DELTA = ("context_management",)
"""Fields of a message that are beside the last delta of its stream."""
_USAGE_AT_START = ("cache_creation", "inference_geo", "service_tier", "speed")
"""Fields of the usage that only the first event of a stream has."""
_STOP_REASONS = word_classes(
    {
        "end_turn": "stop eos",
        "max_tokens": "length",
        "tool_use": "tool_calls function_call",
        "refusal": "content_filter",
    }
)
_OWN_REASONS = frozenset({*FINISHES, "pause_turn"})
_NO_USAGE: dict[str, Any] = {"input_tokens": 0, "output_tokens": 0}
_encode = msgspec.json.encode


def stop_reason(finish: str, native: str | None, *, calls: bool, refused: bool) -> str:
    """Return the API's name for the reason why an answer stopped.

    ``native`` counts only if it is a name of this API. Clients act on tool calls and refusals only
    if the reason names them, and the reasons of other providers may not.
    """
    if native in _OWN_REASONS:
        return native
    if finish == "stop" and (calls or refused):
        return "tool_use" if calls else "refusal"
    return _STOP_REASONS.get(finish, finish)


def render(completion: Completion) -> Rendered:
    """Encode an answer once, for any number of replays.

    It leaves out whatever the API does not have: all choices but the first, log probabilities, and
    reasoning under another name than the API's, for which its clients did not ask.
    """
    choice = completion.choices[0]
    blocks = tuple(_blocks(choice))
    usage = {**_NO_USAGE, **(completion.usage or {})}
    encoder = MessagesEncoder("")
    names, extra = Started(model=completion.model), ExtraDelta(fields=completion.extra, choice=None)
    encoder.feed((names, UsageReported(usage={**usage, "output_tokens": 0}), extra))
    start = encoder.begin().partition(b'{"id":""')[2]
    ending = (
        ExtraDelta(fields=choice.beside, beside=True),
        Finished(reason=choice.finish, native=choice.native_finish),
        UsageReported(usage=usage),
        Ended(),
    )
    body = _encode(_document(completion, blocks))[1:]
    stream = start + encoder.feed((*_block_events(blocks), *ending))
    return Rendered(_document_head, _stream_head, body, (b"", stream))


def write_body(completion: Completion, id: str, created: int) -> bytes:
    """Return the body of an answer that is not streamed."""
    blocks = tuple(_blocks(completion.choices[0]))
    return _document_head(id, created) + _encode(_document(completion, blocks))[1:]


def _document(completion: Completion, blocks: Iterable[_KeptBlock]) -> dict[str, Any]:
    """Return the members of a whole answer, without its id."""
    choice = completion.choices[0]
    calls = any(isinstance(part, ToolCall) for part in choice.parts)
    refused = any(isinstance(part, Refusal) for part in choice.parts)
    reason = stop_reason(choice.finish, choice.native_finish, calls=calls, refused=refused)
    return {
        "type": "message",
        "role": "assistant",
        "model": completion.model,
        "content": [_whole_block(block) for block in blocks],
        "stop_reason": reason,
        "stop_sequence": choice.beside.get("stop_sequence"),
        "usage": {**_NO_USAGE, **(completion.usage or {})},
        **completion.extra,
    }


def _document_head(id: str, created: int) -> bytes:  # noqa: ARG001 - the API tells no time
    return b'{"id":%b,' % _encode(id)


def _stream_head(id: str, created: int) -> bytes:  # noqa: ARG001
    return b'event: message_start\ndata: {"type":"message_start","message":{"id":%b' % _encode(id)


def _frame(event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encode(event))


class _KeptBlock(NamedTuple):
    """A content block of a stored answer."""

    part: Part | None
    fields: dict[str, Any]
    """Its other fields; all of them if it has no part."""
    deltas: list[dict[str, Any]]
    """The deltas that no part holds."""


def _blocks(choice: Choice) -> Iterator[_KeptBlock]:
    """Yield the content blocks in order. Parts fill the places that no other block has."""
    details: dict[int, dict[str, Any]] = {}
    for detail in choice.extra.get(CONTENT_BLOCKS, ()):
        details.setdefault(detail["index"], {}).update(detail)
    index = 0
    for part in choice.parts:
        if isinstance(part, Reasoning) and part.field != THINKING:
            continue
        while "type" in details.get(index, {}):
            yield _kept_block(None, details.pop(index))
            index += 1
        yield _kept_block(part, details.pop(index, {}))
        index += 1
    for _, detail in sorted(details.items()):
        if "type" in detail:
            yield _kept_block(None, detail)


def _kept_block(part: Part | None, detail: dict[str, Any]) -> _KeptBlock:
    fields = {name: value for name, value in detail.items() if name not in ("index", DELTAS)}
    return _KeptBlock(part, fields, detail.get(DELTAS, []))


def _part_block(part: Part) -> dict[str, Any]:
    """Return a part as a whole block."""
    if isinstance(part, ToolCall):
        input = _input(part.arguments) if part.arguments else {}
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": input, **part.extra}
    if isinstance(part, Reasoning):
        return {"type": "thinking", "thinking": part.text, "signature": part.signature or ""}
    return {"type": "text", "text": part.text}


def _block_events(blocks: Iterable[_KeptBlock]) -> Iterator[StreamEvent]:
    """Yield the events of the content blocks of a stored answer."""
    calls = 0
    for index, (part, kept, deltas) in enumerate(blocks):
        fields, late = kept, deltas
        cited = kept.get("citations")
        if cited and isinstance(cited, list):
            # Clients append citations to those that a block begins with.
            fields = {**kept, "citations": []}
            late = [*deltas, *({"type": "citations_delta", "citation": each} for each in cited)]
        if isinstance(part, ToolCall) and (kept or deltas):
            yield _detail(index, _kept_call(part, fields, late))
            continue
        match part:  # of an empty part there are no pieces, so its whole block is told
            case Text(text="") | Refusal(text="") | Reasoning(text="", signature=None | ""):
                fields = {**_part_block(part), **fields}
        if fields:
            yield _detail(index, fields)
        if part is not None:
            yield from _part_events(part, index, calls)
            calls += isinstance(part, ToolCall)
        if late:
            yield _detail(index, {DELTAS: late})


def _kept_call(
    call: ToolCall, fields: dict[str, Any], deltas: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return a call of the provider that has more fields than the canonical form can hold."""
    kind, field = _DELTA_FIELDS["tool_use"]
    own = [{"type": kind, field: text} for text in split_text(call.arguments)]
    block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}, **call.extra}
    return {**block, **fields, DELTAS: [*own, *deltas]}


def _part_events(part: Part, index: int, call: int) -> Iterator[StreamEvent]:
    if isinstance(part, ToolCall):
        yield ToolCallDelta(index=call, id=part.id, name=part.name, extra=part.extra)
        for text in split_text(part.arguments):
            yield ToolCallDelta(index=call, arguments=text)
    elif isinstance(part, Reasoning):
        for text in split_text(part.text):
            yield ReasoningDelta(text=text, field=THINKING, block=index)
        if part.signature:
            yield ReasoningDelta(text="", field=THINKING, signature=part.signature, block=index)
    else:
        refuses = isinstance(part, Refusal)
        for text in split_text(part.text):
            yield RefusalDelta(text=text) if refuses else TextDelta(text=text, block=index)


def _whole_block(block: _KeptBlock) -> dict[str, Any]:
    """Return the whole block, from a part or a stream's first event, and the deltas."""
    whole = {**({} if block.part is None else _part_block(block.part)), **block.fields}
    json_pieces = []
    for delta in block.deltas:
        match delta:
            case {"type": "input_json_delta", "partial_json": str(piece)}:
                json_pieces.append(piece)
            case {"type": "citations_delta", "citation": citation}:
                known = whole.get("citations")
                whole["citations"] = [*(known if isinstance(known, list) else ()), citation]
            case _:
                _add_fields(whole, delta)
    if arguments := "".join(json_pieces):
        whole["input"] = _input(arguments)
    return whole


def _add_fields(whole: dict[str, Any], delta: dict[str, Any]) -> None:
    """Add a delta of any type: texts are appended, other fields are replaced."""
    for name, value in delta.items():
        if name == "type":
            continue
        known = whole.get(name)
        both = isinstance(known, str) and isinstance(value, str)
        whole[name] = known + value if both else value


def _input(arguments: str) -> Any:
    """Return a tool call's input. If it was cut, it is wrapped as the API's guide says."""
    if json_or_none(arguments, dict[str, Any]) is None:
        return {"INVALID_JSON": arguments}
    return msgspec.Raw(arguments.encode())


class _BlockKey(NamedTuple):
    """What tells the content blocks of an answer apart."""

    kind: str
    """The type of its pieces; "block": it has no pieces of ours."""
    number: int | None
    """Its number; of a tool call: among the calls."""


_BlockPiece: TypeAlias = TextDelta | RefusalDelta | ReasoningDelta | ToolCallDelta
_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_DELTA_FIELDS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""For each type of block, the type of its deltas and the field with their text."""


class MessagesEncoder:
    """EventEncoder of Anthropic Messages.

    The stream begins with the first content and the usage that is known by then. Its end reports
    the usage and the reason to stop. Reasoning under another name than the API's is left out,
    because the clients did not ask for it. Choices other than the first are left out, too.

    Only one block can be open in this API, while other providers send pieces of several calls in
    turns. Blocks that begin before the open call is whole wait until the end of the answer: the
    pieces A1 B1 A2 B2 of two calls are written as A1 A2, and at the end B1 B2.
    """

    def __init__(self, id: str) -> None:
        self._id = id
        self._model = ""
        self._usage = self._begun_with = _NO_USAGE
        self._extra: dict[str, Any] = {}
        self._begun = self._over = False
        self._count = 0
        """The number of blocks that were begun. ``_open`` is the last one, if it has not ended."""
        self._open: _BlockKey | None = None
        self._before_delta = b""
        """The bytes of a delta of the open block before its text."""
        self._arguments: list[str] = []
        """The pieces of the open tool call's arguments."""
        self._signature: str | None = None
        """The signature of the open thinking block. It is sent at the end of the block."""
        self._called: set[_BlockKey] = set()
        """The tool calls that were begun or wait."""
        self._waiting: list[tuple[_BlockKey, list[_BlockPiece]]] = []
        """The blocks that are written at the end of the answer, with their pieces."""
        self._fields: dict[int | None, dict[str, Any]] = {}
        """Unknown fields of blocks that are yet to begin."""
        self._finished = Finished(reason="stop")
        self._stop_sequence: Any = None
        self._refused = False

    def feed(self, events: Sequence[StreamEvent]) -> bytes:
        """Return the bytes for these events; nothing once the stream is over."""
        written: list[bytes] = []
        for event in events:
            if type(event) is TextDelta:
                open_ = self._open
                if open_ and open_.kind == "text" and open_.number == event.block and event.text:
                    if not event.choice:
                        written.append(self._before_delta + _encode(event.text) + b"}}\n\n")
                    continue
            if not self._over:
                self._write(event, written)
        return written[0] if len(written) == 1 else b"".join(written)

    def begin(self) -> bytes:
        """Return the event that begins the answer, unless it was written already."""
        written: list[bytes] = []
        self._begin(written)
        return b"".join(written)

    def _write(self, event: StreamEvent, written: list[bytes]) -> None:
        match event:
            case Started(model=model):
                self._model = model or self._model
            case UsageReported(usage=usage):
                self._usage = {**_NO_USAGE, **usage}
            case ErrorReported():
                written.append(error_frame(event, self._id))
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
                    self._add_piece(event, written)
            case ToolCallDelta(choice=0):
                self._add_piece(event, written)

    def _add_extra(self, event: ExtraDelta, written: list[bytes]) -> None:
        if event.choice is None:
            self._extra.update(event.fields)
        elif event.choice == 0 and event.beside:
            self._stop_sequence = event.fields.get("stop_sequence", self._stop_sequence)
        elif event.choice == 0:
            for detail in event.fields.get(CONTENT_BLOCKS, ()):
                self._write_detail(detail, written)

    def _add_piece(self, event: _BlockPiece, written: list[bytes]) -> None:
        """Write a piece of a block, or keep it until its block can be written."""
        self._begin(written)
        if type(event) is ReasoningDelta and event.field != THINKING:
            return
        self._refused |= type(event) is RefusalDelta
        key = _key(event)
        if key == self._open:
            self._write_piece(event, written)
        elif key in self._called and all(key != waits for waits, _ in self._waiting):
            return  # its block has ended: only white space can follow complete arguments
        elif self._waiting or not self._call_is_whole():
            self._keep_piece(key, event)  # also a text: it comes after the blocks that wait
        else:
            self._begin_with(key, event, written)

    def _keep_piece(self, key: _BlockKey, event: _BlockPiece) -> None:
        """Keep a piece for the end of the answer: with its call, or in the order of arrival."""
        if type(event) is ToolCallDelta:
            self._called.add(key)
        for waits, pieces in self._waiting if key in self._called else self._waiting[-1:]:
            if waits == key:
                return pieces.append(event)
        self._waiting.append((key, [event]))

    def _begin_with(self, key: _BlockKey, event: _BlockPiece, written: list[bytes]) -> None:
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
        self._begin_block(key, {**block, **self._fields.pop(key.number, {})}, written)
        self._write_piece(event, written)

    def _write_piece(self, event: _BlockPiece, written: list[bytes]) -> None:
        """Write a piece of the open block."""
        text = event.arguments if isinstance(event, ToolCallDelta) else event.text
        if text:
            written.append(self._before_delta + _encode(text) + b"}}\n\n")
        if type(event) is ToolCallDelta:
            self._arguments.append(text)
        elif type(event) is ReasoningDelta:
            self._signature = event.signature or self._signature

    def _write_detail(self, detail: dict[str, Any], written: list[bytes]) -> None:
        """Write a detail: a block of its own if it has a type, else a part of another block."""
        fields = {name: value for name, value in detail.items() if name not in ("index", DELTAS)}
        index, deltas = detail["index"], detail.get(DELTAS, ())
        open_ = self._open
        is_open = open_ is not None and open_.number == index and open_.kind != "tool_use"
        if "type" in fields:
            if not is_open:
                key = _BlockKey("block", index)
                if fields["type"] == "tool_use":
                    self._called.add(key)
                self._begin_block(key, fields, written)
        elif not deltas:
            self._fields[index] = fields  # they wait for their block
        elif not is_open:
            block = {"type": "text", "text": "", **self._fields.pop(index, {})}
            self._begin_block(_BlockKey("text", index), block, written)
        written.extend(self._delta(delta) for delta in deltas)

    def _begin(self, written: list[bytes]) -> None:
        if self._begun:
            return
        self._begun, self._begun_with = True, self._usage
        late = (*_IN_DELTA, *_BESIDE_DELTA)
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

    def _begin_block(self, key: _BlockKey, block: dict[str, Any], written: list[bytes]) -> None:
        self._begin(written)
        self._close(written)
        index = self._count
        start = {"type": "content_block_start", "index": index, "content_block": block}
        written.append(_frame(start))
        self._count += 1
        self._open = key
        self._arguments = []
        kind, field = _DELTA_FIELDS.get(key.kind, ("", ""))
        self._before_delta = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"%b","%b":' % (index, kind.encode(), field.encode())
        )

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _frame({"type": "content_block_delta", "index": self._count - 1, "delta": delta})

    def _call_is_whole(self) -> bool:
        """Tell whether the open block may end: a tool call needs whole arguments."""
        is_call = self._open is not None and self._open.kind == "tool_use"
        return not is_call or is_json("".join(self._arguments))

    def _close(self, written: list[bytes]) -> None:
        if self._open is not None:
            self._open = None
            if self._signature is not None:
                signature, self._signature = self._signature, None
                written.append(self._delta({"type": "signature_delta", "signature": signature}))
            written.append(_frame({"type": "content_block_stop", "index": self._count - 1}))

    def _close_all(self, written: list[bytes]) -> None:
        """Close the open block, and write the blocks that waited for it."""
        self._close(written)
        waiting, self._waiting = self._waiting, []
        for key, (first, *rest) in waiting:
            self._begin_with(key, first, written)
            for event in rest:
                self._write_piece(event, written)
        self._close(written)

    def _end(self, written: list[bytes]) -> None:
        self._begin(written)
        self._close_all(written)
        reason, native = self._finished.reason, self._finished.native
        calls = bool(self._called)
        delta = {
            "stop_reason": stop_reason(reason, native, calls=calls, refused=self._refused),
            "stop_sequence": self._stop_sequence,
            **{name: self._extra[name] for name in _IN_DELTA if name in self._extra},
        }
        beside = {name: value for name, value in self._extra.items() if name not in _IN_DELTA}
        usage = {
            name: value
            for name, value in self._usage.items()
            if name not in _USAGE_AT_START or name not in self._begun_with
        }
        ending = {"type": "message_delta", "delta": delta, "usage": usage, **beside}
        written += (_frame(ending), _STOP)
        self._over = True


def _key(event: _BlockPiece) -> _BlockKey:
    if isinstance(event, ToolCallDelta):
        return _BlockKey("tool_use", event.index)
    kind = "thinking" if isinstance(event, ReasoningDelta) else "text"
    return _BlockKey(kind, None if isinstance(event, RefusalDelta) else event.block)
