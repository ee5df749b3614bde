"""OpenAI Responses: writing answers, live or stored.

``ResponsesEncoder`` writes a stream. For example, it writes ``TextDelta("Hi")`` and the end of the
answer as these events, each as ``event: response.created`` with its ``data``::

    created, in_progress                                      the response begins
      output_item.added                                       an item begins: a message
        content_part.added                                    a content part begins
          output_text.delta                                   a piece of its text
        output_text.done, content_part.done
      output_item.done
    completed                                                 the whole response, with its output

``write_body`` writes an answer that is not streamed, and ``render`` one that was stored, in both
forms. What the items of an answer keep beside their texts are their frames: see
``responses_answers.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from headstart.dialects.dialect import Rendered, as_text, is_json, split_text
from headstart.dialects.responses_answers import (
    CALLS,
    EVENTS,
    IN_PROGRESS,
    ITEMS,
    KINDS,
    MOST_PARTS,
    RAW,
    REASONS,
    RESPONSE_ID,
    SUMS,
    ResponsesDecoder,
    annotations_of,
    awaits_texts,
    error_frame,
    namespace_of,
    new_item,
    new_part,
    other_fields,
    output_items,
    parts_of,
    search_call,
    seed_of,
)
from headstart.dialects.responses_requests import SEARCH, SUMMARY, kind_of
from headstart.types import (
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
    random_bytes,
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headstart.types import Completion, StreamEvent

_encode = msgspec.json.encode
_DEFAULTS: dict[str, Any] = {
    "instructions": None,
    "parallel_tool_calls": True,
    "temperature": None,
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
}
"""Fields that clients expect in each response."""
_NO_METADATA: dict[str, Any] = {"metadata": {}}
"""A further field that clients expect. A hit has the value of its own request."""
_ECHOED: dict[str, Any] = {
    "max_output_tokens": None,
    **_NO_METADATA,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "store": True,
    "top_logprobs": 0,
    "user": None,
}
"""Fields that repeat the request, and the API's values if the request has none. Another request
may have other values here and get the same answer."""
_OF_THE_CALL = words_of(
    "completed_at prompt_cache_diagnostics prompt_cache_options prompt_cache_retention"
).union(_ECHOED)
"""Fields of an answer that belong to its own call."""
_INCOMPLETE = {canonical: own for own, canonical in REASONS.items()}


class _OutputPart:
    """A content part, or the arguments of a call, as it is written."""

    __slots__ = ("after", "before", "block", "kind", "logprobs", "middle", "number", "texts")

    def __init__(self, kind: str, block: int | None, number: int) -> None:
        self.kind = kind
        self.block = block
        self.number = number
        self.texts: list[str] = []
        self.logprobs: list[Any] = []
        self.before = self.middle = self.after = b""
        """The bytes of a delta before its number, before its text and after its text."""

    @property
    def is_summary(self) -> bool:
        return self.kind == "summary_text"


class _OutputItem:
    """An item as it is written."""

    __slots__ = ("index", "item", "native", "parts")

    def __init__(self, index: int, item: dict[str, Any], native: int | None) -> None:
        self.index = index
        """Its number in the output that we write."""
        self.item = item
        self.native = native
        """Its number in the output that the provider sent."""
        self.parts: list[_OutputPart] = []


class ResponsesEncoder:
    """EventEncoder of Responses.

    The stream begins with the first content. Reasoning under another name than the API's is left
    out, because the clients did not ask for it. Choices other than the first are left out, too.

    One message or reasoning is open at a time; calls may go on beside it. Items of an answer in
    this dialect keep their frames: the first frame of an item waits for its texts, and the last
    one ends the item. Other items get ids that follow from the answer's.
    """

    def __init__(self, id: str, created: int, *, whole: bool = False) -> None:
        """``whole``: the answer is complete, and its texts come in pieces of the usual size."""
        self._id = id
        self._head = _head(id, created)
        self._seed = id.partition("_")[2] or id
        self._number = 0
        """The number of the next event."""
        self._fields = dict(_DEFAULTS) if whole else {**_DEFAULTS, **_NO_METADATA}
        self._model = ""
        self._tier: str | None = None
        self._usage: dict[str, Any] | None = None
        self._begun = self._over = False
        self._open: _OutputItem | None = None
        """The message or the reasoning that has begun and not ended."""
        self._calls: dict[int, _OutputItem] = {}
        """The calls that were begun, by their numbers, also those that have ended."""
        self._waiting: dict[int, dict[str, Any]] = {}
        """Frames of items whose texts have not come yet, by the provider's numbers."""
        self._seen: set[int] = set()
        """The provider's numbers of the items whose frames have come."""
        self._output: dict[int, dict[str, Any]] = {}
        """The items that have ended, by our numbers."""
        self._count = 0
        """The number of items that have begun."""
        self._finished = Finished(reason="stop")

    def feed(self, events: Sequence[StreamEvent]) -> bytes:
        """Return the bytes for these events; nothing once the stream is over."""
        written: list[bytes] = []
        for place, event in enumerate(events):
            if self._over:
                break
            part = self._open.parts[-1] if self._open is not None and self._open.parts else None
            if (
                type(event) is TextDelta
                and part is not None
                and part.kind == "output_text"
                and (event.block is None or event.block == part.block)
                and not event.choice
            ):
                if event.text:
                    self._write_delta(part, event.text, _logprobs_after(events, place), written)
                continue
            self._write(event, _logprobs_after(events, place), written)
        return written[0] if len(written) == 1 else b"".join(written)

    def _write(self, event: StreamEvent, logprobs: list[Any], written: list[bytes]) -> None:
        match event:
            case Started(model=model, tier=tier):
                self._model = model or self._model
                self._tier = tier or self._tier
            case UsageReported(usage=usage):
                self._usage = usage
            case ErrorReported():
                written.append(error_frame(event, self._id, self._number))
                self._over = True
            case Ended():
                self._end_response(written)
            case ExtraDelta(fields=fields, choice=None):
                self._take_fields(fields, written)
            case Finished(choice=0):
                self._finished = event
                self._close_all(written)
            case TextDelta(choice=0, text=text, block=block) if text:
                self._add_text("output_text", block, text, logprobs, written)
            case RefusalDelta(choice=0, text=text) if text:
                self._add_text("refusal", None, text, [], written)
            case ReasoningDelta(choice=0, text=text, field=field, block=block) if text:
                if field in (SUMMARY, RAW):
                    kind = RAW if field == RAW else "summary_text"
                    self._add_text(kind, block, text, [], written)
                    self._add_signature(event.signature)
            case ToolCallDelta(choice=0):
                self._add_call(event, written)

    def _event(self, kind: str, members: dict[str, Any]) -> bytes:
        return self._numbered(kind, _encode(members)[1:])

    def _response_event(self, kind: str, fields: dict[str, Any]) -> bytes:
        """Return an event that holds the whole response."""
        return self._numbered(kind, b'"response":{%b%b}' % (self._head, _encode(fields)[1:]))

    def _numbered(self, kind: str, rest: bytes) -> bytes:
        """Return an event; ``rest`` has its members after the number, and its closing brace."""
        name, number = kind.encode(), self._number
        self._number += 1
        form = b'event: response.%b\ndata: {"type":"response.%b","sequence_number":%d,%b\n\n'
        return form % (name, name, number, rest)

    def _begin_response(self, written: list[bytes]) -> None:
        if self._begun:
            return
        self._begun = True
        fields = _response((IN_PROGRESS, None), self._model, self._tier, [], None, self._fields)
        written += [self._response_event(kind, fields) for kind in ("created", IN_PROGRESS)]

    # --- items ---

    def _take_fields(self, fields: dict[str, Any], written: list[bytes]) -> None:
        """Take the fields of the response, and the frames of its items."""
        self._fields |= other_fields(fields)
        for number, frame in fields.get(ITEMS, {}).items():
            self._take_frame(int(number), frame, written)

    def _take_frame(self, native: int, frame: dict[str, Any], written: list[bytes]) -> None:
        """Take a frame of an item. It ends the item, unless it is the frame of a beginning."""
        kind = kind_of(frame)
        has_texts = kind in CALLS or kind in ("message", "reasoning")
        if has_texts and frame.get("status") == IN_PROGRESS:
            if native not in self._seen:
                self._seen.add(native)
                self._close_open(written)
                self._waiting[native] = frame
            return
        item = self._begun_item(native, kind)
        if item is None:
            is_over = native in self._seen and native not in self._waiting
            self._seen.add(native)
            self._waiting.pop(native, None)
            if is_over or awaits_texts(frame):
                return  # the frame belongs to another answer
            self._close_open(written)
            item = self._begin_item(frame, native, written)
        if item.index not in self._output:
            self._end_item(item, frame, written)

    def _begun_item(self, native: int, kind: str) -> _OutputItem | None:
        """Return the item with the provider's number and this type, if its texts have begun."""
        for item in (self._open, *self._calls.values()):
            if item is not None and item.native == native and kind_of(item.item) == kind:
                return item
        return None

    def _begin_item(
        self, item: dict[str, Any], native: int | None, written: list[bytes]
    ) -> _OutputItem:
        self._begin_response(written)
        begun = _OutputItem(self._count, item, native)
        self._count += 1
        told = {"output_index": begun.index, "item": _opening(item)}
        written.append(self._event("output_item.added", told))
        return begun

    def _waiting_frame(self, kind: str) -> tuple[int | None, dict[str, Any] | None]:
        """Take the next frame that waits for texts of this type of item, and the item's number."""
        for native, frame in self._waiting.items():
            if kind_of(frame) == kind:
                del self._waiting[native]
                return native, frame
        return None, None

    def _add_text(
        self, kind: str, block: int | None, text: str, logprobs: list[Any], written: list[bytes]
    ) -> None:
        """Write a piece of text. If needed, begin a content part or an item for it."""
        item_kind = "message" if kind in ("output_text", "refusal") else "reasoning"
        native, frame = self._waiting_frame(item_kind)
        item = self._open
        if frame is not None or item is None or kind_of(item.item) != item_kind:
            self._close_open(written)
            own = frame or new_item(item_kind, self._seed, self._count)
            item = self._open = self._begin_item(own, native, written)
        part = item.parts[-1] if item.parts else None
        if part is None or part.kind != kind or (block is not None and block != part.block):
            if part is not None:
                self._end_part(item, part, None, written)
            part = self._begin_part(item, kind, block, written)
        self._write_delta(part, text, logprobs, written)

    def _begin_part(
        self, item: _OutputItem, kind: str, block: int | None, written: list[bytes]
    ) -> _OutputPart:
        """Begin a content part, or the arguments of a call (which are no content part)."""
        summary = kind == "summary_text"
        number = sum(each.is_summary == summary for each in item.parts)
        if item.native is not None and block is not None:
            number = block % MOST_PARTS  # as the provider numbered it
        part = _OutputPart(kind, block, number)
        item.parts.append(part)
        name, index = EVENTS[kind]
        place: dict[str, Any] = {"item_id": item.item.get("id"), "output_index": item.index}
        if index:
            place[index] = number
            stem = "reasoning_summary_part" if summary else "content_part"
            told = {**place, "part": new_part(kind)}
            written.append(self._event(f"{stem}.added", told))
        part.before = b'event: %b.delta\ndata: {"type":"%b.delta","sequence_number":' % (
            (name.encode(),) * 2
        )
        part.middle = b",%b" % _encode(place)[1:-1] + b',"delta":'
        part.after = b',"logprobs":[]}\n\n' if kind == "output_text" else b"}\n\n"
        return part

    def _write_delta(
        self, part: _OutputPart, text: str, logprobs: list[Any], written: list[bytes]
    ) -> None:
        """Write a piece of a text. All but the text was encoded when its part began."""
        part.texts.append(text)
        number, after = self._number, part.after
        self._number += 1
        if logprobs:
            part.logprobs += logprobs
            after = b',"logprobs":%b}\n\n' % _encode(logprobs)
        written.append(b"%b%d%b%b%b" % (part.before, number, part.middle, _encode(text), after))

    def _add_signature(self, signature: str | None) -> None:
        if signature is not None and self._open is not None:
            self._open.item = {**self._open.item, "encrypted_content": signature}

    def _end_part(
        self,
        item: _OutputItem,
        part: _OutputPart,
        frame: dict[str, Any] | None,
        written: list[bytes],
    ) -> None:
        """Write the end of a content part. ``frame`` is the final frame of its item."""
        name, index = EVENTS[part.kind]
        name = name.removeprefix("response.")
        place = {"item_id": item.item.get("id"), "output_index": item.index}
        whole = _whole_part(part, frame)
        if not index:  # the arguments of a call
            whole_text = {CALLS[part.kind]: "".join(part.texts)}
            if part.kind == "function_call":
                place["name"] = item.item.get("name")
            written.append(self._event(f"{name}.done", {**place, **whole_text}))
            return
        place[index] = part.number
        for number, cited in enumerate(annotations_of(whole)):
            added = {**place, "annotation_index": number, "annotation": cited}
            written.append(self._event("output_text.annotation.added", added))
        field = "refusal" if part.kind == "refusal" else "text"
        ending = {field: whole[field]}
        if part.kind == "output_text":
            ending["logprobs"] = part.logprobs
        written.append(self._event(f"{name}.done", {**place, **ending}))
        stem = "reasoning_summary_part" if part.is_summary else "content_part"
        written.append(self._event(f"{stem}.done", {**place, "part": whole}))

    def _end_item(
        self, item: _OutputItem, frame: dict[str, Any] | None, written: list[bytes]
    ) -> None:
        if item.parts:
            self._end_part(item, item.parts[-1], frame, written)
        whole = self._whole_item(item, frame)
        self._output[item.index] = whole
        told = {"output_index": item.index, "item": whole}
        written.append(self._event("output_item.done", told))
        if item is self._open:
            self._open = None

    def _whole_item(self, item: _OutputItem, frame: dict[str, Any] | None) -> dict[str, Any]:
        """Return an item with its texts. Its final frame may change its fields, but not its ids."""
        own = item.item
        whole = dict(own)
        if frame is not None:
            kept = {name: own[name] for name in own if name in ("id", "call_id", "name")}
            whole = {**frame, **kept}
        if whole.get("status") == IN_PROGRESS:
            whole["status"] = "completed"
        kind = kind_of(own)
        if kind in CALLS:
            texts = item.parts[0].texts if item.parts else []
            return {**whole, CALLS[kind]: "".join(texts)}
        for field in (SUMMARY, "content"):
            listed = {p.number: p for p in item.parts if p.is_summary == (field == SUMMARY)}
            if listed:
                told = [part for name, _, part in parts_of(frame or {}) if name == field]
                numbers = sorted({*range(len(told)), *listed})
                whole[field] = [
                    _whole_part(listed[n], frame) if n in listed else told[n] for n in numbers
                ]
        if kind == "message":
            whole.setdefault("content", [])
        elif kind == "reasoning":
            whole.setdefault(SUMMARY, [])
        return whole

    def _close_open(self, written: list[bytes]) -> None:
        if self._open is not None:
            self._end_item(self._open, None, written)

    def _close_all(self, written: list[bytes]) -> None:
        self._close_open(written)
        for call in self._calls.values():
            if call.index not in self._output:
                self._end_item(call, None, written)

    def _add_call(self, event: ToolCallDelta, written: list[bytes]) -> None:
        """Write a piece of a call.

        Pieces of several calls may alternate: each call ends when it is whole.
        """
        if event.kind == SEARCH:
            self._close_open(written)
            whole = search_call(event, self._seed, self._count)
            return self._end_item(self._begin_item(whole, None, written), None, written)
        item = self._calls.get(event.index)
        if item is None:
            self._close_open(written)
            for call in self._calls.values():
                if call.index not in self._output and _is_whole(call):
                    self._end_item(call, None, written)
            kind = KINDS.get(event.kind, "function_call")
            native, frame = self._waiting_frame(kind)
            own = frame or new_item(kind, self._seed, self._count)
            call_id = event.id or own.get("call_id") or ""
            named = {"call_id": call_id, "name": event.name or "", CALLS[kind]: ""}
            item = self._begin_item({**own, **named, **namespace_of(event)}, native, written)
            self._calls[event.index] = item
            self._begin_part(item, kind, None, written)
        if event.arguments and item.index not in self._output:
            self._write_delta(item.parts[0], event.arguments, [], written)
        return None

    def _end_response(self, written: list[bytes]) -> None:
        self._begin_response(written)
        self._close_all(written)
        output = [self._output[index] for index in sorted(self._output)]
        ending = _status(self._finished.reason, self._finished.native)
        fields = _response(ending, self._model, self._tier, output, self._usage, self._fields)
        written.append(self._response_event(ending[0], fields))
        self._over = True


def _logprobs_after(events: Sequence[StreamEvent], place: int) -> list[Any]:
    """Return the log probabilities of a text, which follow it."""
    if place + 1 < len(events) and type(found := events[place + 1]) is LogprobsDelta:
        listed = found.value.get("content")
        return listed if isinstance(listed, list) and type(events[place]) is TextDelta else []
    return []


def _opening(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item in the form that it has at its beginning."""
    kind = kind_of(item)
    if kind in CALLS:
        return {**item, "status": IN_PROGRESS, CALLS[kind]: ""}
    if kind == "message":
        return {**item, "status": IN_PROGRESS, "content": []}
    if kind != "reasoning":
        return item
    left = ("encrypted_content", "content", "status")
    return {**{n: v for n, v in item.items() if n not in left}, SUMMARY: []}


def _whole_part(part: _OutputPart, frame: dict[str, Any] | None) -> dict[str, Any]:
    """Return a content part with its text and the other fields from its item's frame."""
    if part.kind in CALLS:
        return {}
    framed = [
        each
        for field, number, each in parts_of(frame or {})
        if number == part.number and part.is_summary == (field == SUMMARY)
    ]
    whole = dict(framed[0]) if framed else new_part(part.kind)
    whole["refusal" if part.kind == "refusal" else "text"] = "".join(part.texts)
    return {**whole, "logprobs": part.logprobs} if "logprobs" in whole else whole


def _is_whole(call: _OutputItem) -> bool:
    """Tell whether a call may end here: its arguments are JSON. A text may always go on."""
    return kind_of(call.item) == "function_call" and is_json("".join(call.parts[0].texts))


def _head(id: str, created: int) -> bytes:
    return b'"id":%b,"object":"response","created_at":%d,' % (_encode(id), created)


_Status: TypeAlias = tuple[str, dict[str, Any] | None]


def _status(finish: str, native: str | None) -> _Status:
    """Return how an answer ended, and why it is incomplete if it is."""
    reason = native if finish == "incomplete" else _INCOMPLETE.get(finish)
    return ("completed", None) if reason is None else ("incomplete", {"reason": reason})


def _response(
    status: _Status,
    model: str,
    tier: str | None,
    output: list[dict[str, Any]],
    usage: dict[str, Any] | None,
    fields: dict[str, Any],
) -> dict[str, Any]:
    """Return the members of a response, without its id and time."""
    return {
        "status": status[0],
        "error": None,
        "incomplete_details": status[1],
        "model": model,
        "output": output,
        **({} if tier is None else {"service_tier": tier}),
        **fields,
        "usage": usage,
    }


def _document(completion: Completion, output: list[dict[str, Any]]) -> dict[str, Any]:
    choice = completion.choices[0]
    status = _status(choice.finish, choice.native_finish)
    fields = {**_DEFAULTS, **other_fields(completion.extra)}
    return _response(status, completion.model, completion.tier, output, completion.usage, fields)


def write_body(completion: Completion, id: str, created: int) -> bytes:
    """Return the body of an answer that is not streamed."""
    output = output_items(completion, id.partition("_")[2] or id)
    document = {**_NO_METADATA, **_document(completion, output)}
    return b"{" + _head(id, created) + _encode(document)[1:]


def echo(document: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with which an answer repeats this request."""
    return {
        name: own if (asked := document.get(name)) is None else asked
        for name, own in _ECHOED.items()
    }


def known_id(completion: Completion) -> str | None:
    """Return the id that the provider gave to an answer. The next call may name it."""
    return as_text(completion.extra.get(RESPONSE_ID))


_REPEATED = words_of("background max_tool_calls reasoning text truncation").union(
    _OF_THE_CALL, _DEFAULTS, (ITEMS, RESPONSE_ID, SUMS)
)
"""Fields that tell nothing about the answer to a request for text."""
_MESSAGE = frozenset({"id", "type", "role", "status", "content"})


def beside_text(completion: Completion) -> str | None:
    """Return a name for content that is neither text nor a repetition of the request, or None."""
    if any(value for name, value in completion.extra.items() if name not in _REPEATED):
        return "fields"
    for frame in completion.extra.get(ITEMS, {}).values():
        kind = kind_of(frame)
        if kind != "message":
            return kind
        if not frame.keys() <= _MESSAGE:
            return "phase" if "phase" in frame else "fields"
        for _, _, part in parts_of(frame):
            if annotations_of(part):
                return "annotations"
            if part.get("logprobs"):
                return "logprobs"
    return None


def render(completion: Completion) -> Rendered:
    """Encode an answer once, for any number of replays.

    Fields that only repeat the request of another call are left out; see ``echo``.
    """
    kept = {n: value for n, value in completion.extra.items() if n not in _OF_THE_CALL}
    completion = msgspec.structs.replace(completion, extra=kept)
    output = output_items(completion, seed_of(completion))
    # No answer can contain this id by chance, so each head that is found begins a response.
    mark = random_bytes(16).hex()
    stream = ResponsesEncoder(mark, 0, whole=True).feed(tuple(_events(completion, output)))
    body = _encode(_document(completion, output))[1:]

    def document_head(id: str, created: int) -> bytes:
        return b"{" + _head(id, created)

    return Rendered(document_head, _head, body, tuple(stream.split(_head(mark, 0))))


def _events(completion: Completion, output: list[dict[str, Any]]) -> Iterator[StreamEvent]:
    """Yield the events of a stored answer whose output is ``output``."""
    choice = completion.choices[0]
    yield Started(model=completion.model, tier=completion.tier)
    yield ExtraDelta(fields=other_fields(completion.extra), choice=None)
    if completion.usage is not None:
        yield UsageReported(usage=completion.usage)
    decoder = ResponsesDecoder()
    for index, item in enumerate(output):
        for event in decoder.read_item(index, item):
            yield from _split(event)
    yield Finished(reason=choice.finish, native=choice.native_finish)
    yield Ended()


def _split(event: StreamEvent) -> Iterator[StreamEvent]:
    """Yield a text in pieces of the usual size."""
    if isinstance(event, TextDelta | ReasoningDelta | RefusalDelta):
        for text in split_text(event.text):
            yield msgspec.structs.replace(event, text=text)
    elif isinstance(event, ToolCallDelta) and event.arguments:
        for text in split_text(event.arguments):
            yield msgspec.structs.replace(event, arguments=text)
    else:
        yield event
