"""OpenAI Responses: reading answers, and keeping their output items in a stored answer.

The output of a response is a list of items: messages, reasoning, calls. A stored answer keeps the
texts and calls of the items as parts, like an answer of any dialect. Everything around them is in
the *frames* of the items: ids, phases, annotations, encrypted reasoning, and whole items that no
other dialect has. For example, ``Text("Hi")`` and the frame without ``text`` keep this item::

    {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
     "content": [{"type": "output_text", "text": "Hi", "annotations": []}]}

``ResponsesDecoder`` makes parts and frames of an answer. The frames are under ``ITEMS`` in
``Completion.extra``. ``output_items`` joins parts and frames again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import msgspec

from headstart.dialects import openai_answers
from headstart.dialects.dialect import (
    ENDED,
    JSONDecoder,
    MalformedAnswerError,
    as_object,
    as_text,
    decode_document,
    unreadable,
)
from headstart.dialects.requests import call_input
from headstart.dialects.responses_requests import SEARCH, SUMMARY, kind_of
from headstart.types import (
    CONTENT_BLOCKS,
    NAMESPACE,
    ErrorReported,
    ExtraDelta,
    Finished,
    LogprobsDelta,
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
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headstart.dialects.dialect import Frame
    from headstart.errors import HeadstartError
    from headstart.types import Completion, Part, StreamEvent


ITEMS = "output_items"
"""The field of ``Completion.extra`` with the frames of items, by their numbers in the output."""
RESPONSE_ID = "response_id"
"""The field of ``Completion.extra`` with the provider's own id of the answer."""
SUMS = "text_checksums"
"""The field of ``Completion.extra`` with the checksums of the whole texts, by numbers of items.
They show whether the pieces of a stream make these texts."""
RAW = "reasoning_text"
"""The name of reasoning that is not a summary."""
IN_PROGRESS = "in_progress"
CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""The items that are calls of the caller's tools, each with the field of its arguments."""
KINDS = {"function": "function_call", "custom": "custom_tool_call"}
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}
_TEXT_FIELDS = {"output_text": "text", "refusal": "refusal", "summary_text": "text", RAW: "text"}
"""The fields of texts, by the types of content parts."""
_LISTS = {"message": ("content",), "reasoning": (SUMMARY, "content")}
"""The fields of an item that list its content parts."""


def parts_of(item: dict[str, Any]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield the content parts of a message or of reasoning: field, number and part."""
    for name in _LISTS.get(kind_of(item), ()):
        listed = item.get(name)
        for number, part in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(part, dict):
                yield name, number, part


def text_of(part: dict[str, Any]) -> str:
    """Return the text of a content part; "" if it has none."""
    text = part.get(_TEXT_FIELDS.get(str(part.get("type")), ""))
    return text if isinstance(text, str) else ""


def annotations_of(part: dict[str, Any]) -> list[Any]:
    """Return the annotations of a text, such as citations."""
    listed = part.get("annotations")
    return listed if isinstance(listed, list) else []


def awaits_texts(frame: dict[str, Any]) -> bool:
    """Tell whether a frame lacks its texts, because they are stored as parts of the answer."""
    return kind_of(frame) in CALLS or any(
        _TEXT_FIELDS.get(str(part.get("type")), "type") not in part
        for _, _, part in parts_of(frame)
    )


def frame_of(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item without the content that is in the parts of a stored answer.

    Of log probabilities it keeps only the number.
    """
    kind = kind_of(item)
    if kind in CALLS:
        held = ("call_id", "name", CALLS[kind])
        return {name: value for name, value in item.items() if name not in held}
    frame = dict(item)
    for name, number, part in parts_of(item):
        if frame[name] is item[name]:
            frame[name] = list(item[name])
        frame[name][number] = _part_frame(part)
    return frame


def _part_frame(part: dict[str, Any]) -> dict[str, Any]:
    frame = dict(part)
    if text_of(part):
        del frame[_TEXT_FIELDS[part["type"]]]
    listed = part.get("logprobs")
    if isinstance(listed, list):
        frame["logprobs"] = len(listed)
    return frame


def checksums(item: dict[str, Any]) -> list[int]:
    """Return the checksums of the texts of a message."""
    texts = [text_of(part) for _, _, part in parts_of(item) if part.get("type") == "output_text"]
    return [crc32(text.encode("utf-8", "surrogatepass")) for text in texts if text]


def contradicts(completion: Completion) -> bool:
    """Tell whether the pieces of a stream differ from the whole texts at its end."""
    told = completion.extra.get(SUMS)
    if not isinstance(told, dict):
        return False
    wanted = [each for number in sorted(told, key=int) for each in told[number]]
    texts = [part.text for part in completion.choices[0].parts if isinstance(part, Text)]
    return wanted != [crc32(text.encode("utf-8", "surrogatepass")) for text in texts]


class Source:
    """Gives out the parts of a stored answer in order, to fill the frames of its items."""

    def __init__(self, parts: Iterable[Part], logprobs: Sequence[Any] = ()) -> None:
        self._parts: dict[object, deque[Part]] = {}
        """The parts that are left, by the type of the content part that needs them."""
        for part in parts:
            self._parts.setdefault(_content_type_of(part), deque()).append(part)
        self._logprobs = deque(logprobs)

    def text(self, kind: str) -> str | None:
        """Return the next text for a content part of this type; None if there is none."""
        queue = self._parts.get(kind)
        part = queue.popleft() if queue else None
        return None if part is None or isinstance(part, ToolCall) else part.text

    def call(self) -> ToolCall | None:
        queue = self._parts.get(ToolCall)
        part = queue.popleft() if queue else None
        return part if isinstance(part, ToolCall) else None

    def logprobs(self, count: int) -> list[Any]:
        """Return this number of log probabilities, or as many as there are."""
        return [self._logprobs.popleft() for _ in range(min(count, len(self._logprobs)))]

    def left(self) -> list[Part]:
        """Return the parts that are left."""
        return [part for queue in self._parts.values() for part in queue]


def _content_type_of(part: Part) -> object:
    """Return the type of the content part that holds a part; for a call, the class ``ToolCall``."""
    match part:
        case Text():
            return "output_text"
        case Refusal():
            return "refusal"
        case Reasoning(field=field):
            return {SUMMARY: "summary_text", RAW: RAW}.get(field, field)
    return ToolCall


def output_items(completion: Completion, seed: str) -> list[dict[str, Any]]:
    """Return the whole output of a stored answer. Missing ids are made from ``seed``."""
    choice = completion.choices[0]
    listed = (choice.logprobs or {}).get("content")
    logprobs = listed if isinstance(listed, list) else []
    frames = _frames(completion)
    if not frames:
        items = list(_new_items(choice.parts, seed, 0))
        texts = [part for item in items for _, _, part in parts_of(item) if "logprobs" in part]
        if len(texts) == 1:
            texts[0]["logprobs"] = logprobs
        return items
    source = Source(choice.parts, logprobs)
    items = [_filled(frame, source) for frame in frames]
    # No frame has a place for these parts.
    others = [part for part in source.left() if not isinstance(part, Reasoning)]
    return [*items, *_new_items(others, seed, len(items))]


def seed_of(completion: Completion) -> str:
    """Return a text that is the same for equal answers, for the ids of their items (``is_own``)."""
    told = msgspec.json.encode((completion.choices[0].parts, completion.created))
    return "hs" + blake2b(told, digest_size=16).hexdigest()


def _frames(completion: Completion) -> list[dict[str, Any]]:
    kept = completion.extra.get(ITEMS)
    numbered = sorted(kept.items(), key=lambda pair: int(pair[0])) if isinstance(kept, dict) else []
    return [frame for _, frame in numbered]


def _filled(frame: dict[str, Any], source: Source) -> dict[str, Any]:
    """Return the item of a frame, with its texts or its call from ``source``."""
    kind = kind_of(frame)
    item = dict(frame)
    if item.get("status") == IN_PROGRESS and kind in _PREFIXES:
        item["status"] = "completed"  # no event has reported the status
    if kind in CALLS:
        call = source.call()
        if call is not None:
            item |= {"call_id": call.id, "name": call.name, CALLS[kind]: call.arguments}
        return item
    if kind == "message" and "content" not in item:
        item["content"] = [{"type": "output_text", "annotations": []}]
    for name, number, part in parts_of(item):
        if item[name] is frame.get(name):
            item[name] = list(item[name])
        item[name][number] = _filled_part(part, source)
    return item


def _filled_part(part: dict[str, Any], source: Source) -> dict[str, Any]:
    kind = str(part.get("type"))
    name = _TEXT_FIELDS.get(kind)
    whole = dict(part)
    if name is not None and name not in whole:
        whole[name] = source.text(kind) or ""
    if isinstance(whole.get("logprobs"), int):
        whole["logprobs"] = source.logprobs(whole["logprobs"])
    return whole


def _new_items(parts: Iterable[Part], seed: str, first: int) -> Iterator[dict[str, Any]]:
    """Yield items for the parts of an answer without items."""
    number, content = first, list[dict[str, Any]]()
    for part in parts:
        if isinstance(part, Text | Refusal):
            content.append(new_part("refusal" if isinstance(part, Refusal) else "output_text"))
            content[-1][_TEXT_FIELDS[content[-1]["type"]]] = part.text
            continue
        if content:
            yield {**new_item("message", seed, number), "content": content}
            number, content = number + 1, []
        if isinstance(part, ToolCall) and part.kind == SEARCH:
            yield search_call(part, seed, number)
        elif isinstance(part, ToolCall):
            kind = KINDS.get(part.kind, "function_call")
            item = new_item(kind, seed, number)
            named = {"call_id": part.id or item["call_id"], "name": part.name}
            yield {**item, **named, CALLS[kind]: part.arguments, **namespace_of(part)}
        elif part.field not in (SUMMARY, RAW):
            continue
        else:
            yield _new_thought(part, seed, number)
        number += 1
    if content or number == first == 0:
        yield {**new_item("message", seed, number), "content": content or [new_part("output_text")]}


def search_call(call: ToolCall | ToolCallDelta, seed: str, number: int) -> dict[str, Any]:
    """Return the item of a search for tools, which has its arguments as an object."""
    return {
        "id": f"tsc_{seed}{number:02x}",
        "type": "tool_search_call",
        "call_id": call.id or f"call_{seed}{number:02x}",
        "execution": "client",
        "arguments": call_input(call.arguments),
        "status": "completed",
    }


def namespace_of(call: ToolCall | ToolCallDelta) -> dict[str, Any]:
    """Return the namespace of a call, as the field of its item."""
    return {NAMESPACE: call.extra[NAMESPACE]} if NAMESPACE in call.extra else {}


def _new_thought(part: Reasoning, seed: str, number: int) -> dict[str, Any]:
    item = new_item("reasoning", seed, number)
    field, kind = (SUMMARY, "summary_text") if part.field == SUMMARY else ("content", RAW)
    item[field] = [{**new_part(kind), "text": part.text}]
    return item if part.signature is None else {**item, "encrypted_content": part.signature}


def new_item(kind: str, seed: str, number: int) -> dict[str, Any]:
    """Return a new item without its content.

    A call gets an id for its result if the provider gave none.
    """
    item = {"id": f"{_PREFIXES[kind]}_{seed}{number:02x}", "type": kind}
    if kind in CALLS:
        item["call_id"] = f"call_{seed}{number:02x}"
    if kind == "reasoning":
        return {**item, SUMMARY: []}
    role = {"role": "assistant"} if kind == "message" else {}
    return {**item, "status": "completed", **role}


def new_part(kind: str) -> dict[str, Any]:
    """Return an empty content part."""
    part: dict[str, Any] = {"type": kind, _TEXT_FIELDS[kind]: ""}
    return {**part, "annotations": [], "logprobs": []} if kind == "output_text" else part


# --- reading answers ------------------------------------------------------------------------------

_encode = msgspec.json.encode
_RESPONSE = words_of(
    "id object created_at status error incomplete_details model output service_tier usage"
).union((ITEMS, RESPONSE_ID, SUMS))
"""Fields of a response that have their own place in a stored answer."""
MOST_PARTS = 256
"""The most content parts of an item; an item and a part make one number of a content block."""


class _TextEvent(NamedTuple):
    """The fields of the events that bring a text: pieces (``.delta``), then its end (``.done``)."""

    kind: str
    """The type of the content part with the text, or of the call with the arguments."""
    part_field: str
    """The field with the number of the content part; "": a call has none."""
    text_field: str
    """The field of the last event with the whole text."""


_TEXTS = {
    "response.output_text": _TextEvent("output_text", "content_index", "text"),
    "response.refusal": _TextEvent("refusal", "content_index", "refusal"),
    "response.reasoning_summary_text": _TextEvent("summary_text", "summary_index", "text"),
    "response.reasoning_text": _TextEvent(RAW, "content_index", "text"),
    "response.function_call_arguments": _TextEvent("function_call", "", "arguments"),
    "response.custom_tool_call_input": _TextEvent("custom_tool_call", "", "input"),
}
"""By the beginnings of their names."""
_BESIDE = frozenset(
    b"response.queued response.in_progress response.content_part.added response.content_part.done "
    b"response.reasoning_summary_part.added response.reasoning_summary_part.done".split()
)
"""Names of events that only repeat other events."""
EVENTS = {text.kind: (name, text.part_field) for name, text in _TEXTS.items()}
"""By the type of a content part or a call: the beginning of the names of its events, and the field
with the number of the content part."""


@dataclass(eq=False, repr=False)
class ResponsesDecoder(JSONDecoder):
    """EventDecoder of Responses.

    A stream tells each text up to four times: as deltas, and whole at the end of its content part,
    of its item and of the answer. The first of them counts: a text without deltas is read at its
    first end. A whole answer (``read_response``) is read like the end of a stream.
    """

    _fields: dict[str, Any] | None = None
    """The fields of the response that were reported so far; None: it has not begun."""
    _calls: dict[int, int] = field(default_factory=dict)
    """The number of each tool call, by its number in the output."""
    _parts_read: set[tuple[str, int, int]] = field(default_factory=set)
    """The texts of which a piece was read: type, number of the item, number of the content part."""
    _begun: set[int] = field(default_factory=set)
    """The numbers of the items that have begun."""
    _done: set[int] = field(default_factory=set)
    """The numbers of the items that were read to their ends."""
    _items_ended: int = 0
    """The number of items that events reported as ended, under any number."""

    def feed(self, frame: Frame) -> tuple[StreamEvent, ...]:
        """Return the events of a frame; none for comments and for steps of hosted tools."""
        if frame.event in _BESIDE and self._fields is not None:
            return ()
        return super().feed(frame)

    def read(self, event: dict[str, Any], name: bytes | None = None) -> tuple[StreamEvent, ...]:
        """Return the events of an object. Raises MalformedAnswerError."""
        if event.get("type") == "response.output_text.delta":  # like most events of a stream
            return self._delta("output_text", *_place(event, "content_index"), event, "delta")
        return tuple(self._read(event, name))

    def read_response(self, response: dict[str, Any]) -> tuple[StreamEvent, ...]:
        """Return the events of a whole answer. Raises MalformedAnswerError."""
        return tuple(self._end_answer(response))

    def _read(self, event: dict[str, Any], name: bytes | None) -> Iterator[StreamEvent]:
        kind = event.get("type")
        stem, _, step = kind.rpartition(".") if isinstance(kind, str) else ("", "", "")
        if stem in _TEXTS:
            yield from self._read_text(event, stem, step)
        elif kind == "response.output_item.added":
            yield from self._begin_item(*_item(event))
        elif kind == "response.output_item.done":
            self._items_ended += 1
            yield from self.read_item(*_item(event))
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            yield from self._end_answer(as_object(event.get("response"), "the response"))
        elif kind == "error" or (kind is None and name == b"error"):
            yield read_error({**event, "type": None})
        elif self._fields is None and isinstance(event.get("response"), dict):
            yield from self._begin_answer(event["response"])

    def _read_text(self, event: dict[str, Any], stem: str, step: str) -> Iterator[StreamEvent]:
        text = _TEXTS[stem]
        output, part = _place(event, text.part_field)
        if step == "delta":
            yield from self._delta(text.kind, output, part, event, "delta")
        elif step == "done" and (text.kind, output, part) not in self._parts_read:
            yield from self._delta(text.kind, output, part, event, text.text_field)

    def _delta(
        self, kind: str, output: int, part: int, fields: dict[str, Any], name: str
    ) -> tuple[StreamEvent, ...]:
        """Return the event for a piece of text or of a call's arguments, unless it is empty.

        It is the field ``name``. ``kind``, ``output`` and ``part`` are its place (``_parts_read``).
        """
        text = fields.get(name)
        if kind in CALLS:
            text = openai_answers.text_of_arguments(text)
        if not text:
            return ()
        if type(text) is not str:
            raise MalformedAnswerError("a text is not a string")
        self._parts_read.add((kind, output, part))
        block = output * MOST_PARTS + part
        if kind == "output_text":
            said = TextDelta(text=text, block=block)
            listed = fields.get("logprobs")
            if listed and type(listed) is list:
                value = {"content": listed, "refusal": None}
                return said, LogprobsDelta(value=value)
            return (said,)
        if kind in CALLS:
            return (ToolCallDelta(index=self._call_number(output), arguments=text),)
        if kind == "refusal":
            return (RefusalDelta(text=text),)
        return (ReasoningDelta(text=text, field=SUMMARY if kind != RAW else RAW, block=block),)

    def _call_number(self, output: int) -> int:
        return self._calls.setdefault(output, len(self._calls))

    def _begin_answer(self, response: dict[str, Any]) -> Iterator[StreamEvent]:
        self._fields = other_fields(response)
        created = response.get("created_at")
        yield Started(
            id=as_text(response.get("id")),
            model=as_text(response.get("model")),
            created=int(created) if isinstance(created, int | float) and created > 0 else None,
            tier=as_text(response.get("service_tier")),
        )
        yield TextDelta(text="")
        named = {RESPONSE_ID: response["id"]} if as_text(response.get("id")) else {}
        if fields := {**named, **self._fields}:
            yield ExtraDelta(fields=fields, choice=None)

    def _begin_item(self, index: int, item: dict[str, Any]) -> Iterator[StreamEvent]:
        self._begun.add(index)
        kind = kind_of(item)
        if kind in CALLS:
            yield _frame_event(index, {**frame_of(item), "status": IN_PROGRESS})
            yield ToolCallDelta(
                index=self._call_number(index),
                id=as_text(item.get("call_id")),
                name=as_text(item.get("name")),
                kind="function" if kind == "function_call" else "custom",
                extra={NAMESPACE: item[NAMESPACE]} if as_text(item.get(NAMESPACE)) else {},
            )
        elif kind in ("message", "reasoning"):
            begun = {"content", SUMMARY, "encrypted_content"}
            frame = {name: value for name, value in item.items() if name not in begun}
            yield _frame_event(index, {**frame, "status": IN_PROGRESS})
        else:
            yield _foreign_event(index, item.get("type"))
            yield _frame_event(index, item)

    def read_item(self, index: int, item: dict[str, Any]) -> Iterator[StreamEvent]:
        """Yield the events of a whole item of the output. Raises MalformedAnswerError."""
        if index not in self._begun:
            yield from self._begin_item(index, item)
        self._done.add(index)
        kind = kind_of(item)
        if kind in CALLS and (kind, index, 0) not in self._parts_read:
            yield from self._delta(kind, index, 0, item, CALLS[kind])
        for _, number, part in parts_of(item):
            name = str(part.get("type"))
            if (name, index, number) not in self._parts_read and text_of(part):
                whole = {"text": text_of(part), "logprobs": part.get("logprobs")}
                yield from self._delta(name, index, number, whole, "text")
            for cited in annotations_of(part):
                yield _foreign_event(index, cited.get("type") if isinstance(cited, dict) else None)
        if sums := checksums(item):
            yield ExtraDelta(fields={SUMS: {str(index): sums}}, choice=None)
        frame = frame_of(item)
        if frame.get("status") == IN_PROGRESS:
            frame["status"] = "completed"
        yield _frame_event(index, frame)

    def _end_answer(self, response: dict[str, Any]) -> Iterator[StreamEvent]:
        """Yield the rest of an answer, and how it ended."""
        if self._fields is None:
            yield from self._begin_answer(response)
        status = response.get("status")
        if status == "failed" or (response.get("error") and status != "completed"):
            yield read_error(response)
            return
        output = response.get("output")
        if not isinstance(output, list | None):
            raise MalformedAnswerError("the output is not an array")
        # Some servers number items in events differently from items in the whole answer.
        left = output if output and self._items_ended < len(output) else ()
        for index, item in enumerate(left):
            if index not in self._done:
                yield from self.read_item(index, as_object(item, "an item of the output"))
        known = self._fields or {}
        if news := {
            name: value
            for name, value in response.items()
            if value is not None and name not in _RESPONSE and known.get(name) != value
        }:
            yield ExtraDelta(fields=news, choice=None)
        if isinstance(response.get("usage"), dict):
            yield UsageReported(usage=response["usage"])
        yield self._finish(response)
        yield from ENDED

    def _finish(self, response: dict[str, Any]) -> Finished:
        status = as_text(response.get("status")) or "completed"
        if status == "completed":
            return Finished(reason="tool_calls" if self._calls else "stop")
        details = response.get("incomplete_details")
        reason = as_text(details.get("reason")) if isinstance(details, dict) else None
        if status != "incomplete":
            return Finished(reason=status)
        if reason is None:  # the API allows it; clients of other APIs know no "incomplete"
            return Finished(reason="length")
        if reason in REASONS:
            return Finished(reason=REASONS[reason])
        return Finished(reason=status, native=reason)


REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}
"""Canonical names of the reasons why an answer is incomplete."""


def decode_body(status: int, body: bytes) -> tuple[StreamEvent, ...]:
    """Read a whole answer: its events and Ended, or ErrorReported alone."""
    document = decode_document(body)
    if status >= 400:
        return openai_answers.decode_body(status, body)
    if not isinstance(document, dict):
        return (unreadable("the answer is not a JSON object"),)
    if not (document.get("error") or isinstance(document.get("output"), list)):
        return (unreadable("the answer has no output"),)
    try:
        events = ResponsesDecoder().read_response(document)
    except MalformedAnswerError as error:
        return (unreadable(str(error)),)
    errors = tuple(event for event in events if isinstance(event, ErrorReported))
    return errors or events


_STATUSES = {"rate_limit_exceeded": 429, "server_error": 500, "vector_store_timeout": 504}
_FAULTS = ("invalid", "image", "unsupported", "empty", "failed_to_download", "bio_", "misalignment")
"""Beginnings of the codes of errors that the request causes."""


def read_error(document: dict[str, Any]) -> ErrorReported:
    """Read an ``error`` event or a failed response. The status follows from the code."""
    error = openai_answers.read_error(document, None)
    if error.status is not None or error.code is None:
        return error
    fault = 400 if error.code.startswith(_FAULTS) else None
    return msgspec.structs.replace(error, status=_STATUSES.get(error.code, fault))


def error_frame(
    error: HeadstartError | ErrorReported, request_id: str, sequence_number: int = 0
) -> bytes:
    """Return an ``error`` event, with its fields in the places of old and of new clients.

    It begins a line of its own: an event that was cut before it is then an error too.
    """
    fields = msgspec.json.decode(openai_answers.error_body(error, request_id))["error"]
    told = {name: fields[name] for name in ("code", "message", "param")}
    numbered = {"type": "error", "sequence_number": sequence_number}
    return b"\nevent: error\ndata: %b\n\n" % _encode({**numbered, **told, "error": fields})


def _place(event: dict[str, Any], part: str) -> tuple[int, int]:
    """Return the numbers of an event's item and content part."""
    output, number = event.get("output_index"), event.get(part) if part else 0
    if type(output) is not int:
        raise MalformedAnswerError("an event names no item of the output")
    return output, number if type(number) is int else 0


def _item(event: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return _place(event, "")[0], as_object(event.get("item"), "an item of the output")


def other_fields(response: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a response that have a value but no place of their own."""
    return {n: v for n, v in response.items() if n not in _RESPONSE and v is not None}


def _frame_event(index: int, frame: dict[str, Any]) -> ExtraDelta:
    """Return the event for an item's frame, which goes with the texts in it."""
    return ExtraDelta(fields={ITEMS: {str(index): frame}}, choice=None)


def _foreign_event(index: int, kind: Any) -> ExtraDelta:
    """Return the event for content that no other dialect has."""
    block = {"index": index, "type": kind if isinstance(kind, str) else "unknown"}
    return ExtraDelta(fields={CONTENT_BLOCKS: [block]})
