"""The output items of a Responses answer: how a stored answer keeps them, and gives them back.

A stored answer keeps its texts and calls as parts, like one of any dialect. What stands around
them (ids, phases, annotations, encrypted reasoning, and whole items that no other dialect has)
stays in the frames of the items, under ``ITEMS`` in ``Completion.extra``. ``output_items`` puts
both together.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec

from headstart.dialects.responses_requests import SUMMARY, kind_of
from headstart.types import Reasoning, Refusal, Text, ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headstart.types import Completion, Part

ITEMS = "output_items"
"""The field of ``Completion.extra`` with the frames of items, by their numbers in the output."""
RESPONSE_ID = "response_id"
"""The field of ``Completion.extra`` with the provider's own id of the answer."""
SUMS = "text_checksums"
"""The field of ``Completion.extra`` with the checksums of the whole texts, by numbers of items."""
RAW = "reasoning_text"
"""The name under which reasoning goes that is no summary."""
IN_PROGRESS = "in_progress"
CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""The items that are calls of the caller's tools, and the fields of what they are called with."""
KINDS = {"function": "function_call", "custom": "custom_tool_call"}
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}
_TEXTS = {"output_text": "text", "refusal": "refusal", "summary_text": "text", RAW: "text"}
"""The fields of texts, by the types of content parts."""
_LISTS = {"message": ("content",), "reasoning": (SUMMARY, "content")}
"""The fields of an item that list its content parts."""


def parts_of(item: dict[str, Any]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield the content parts of a message or of reasoning: field, number and part."""
    for field in _LISTS.get(kind_of(item), ()):
        listed = item.get(field)
        for number, part in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(part, dict):
                yield field, number, part


def text_of(part: dict[str, Any]) -> str:
    """Return the text of a content part, "" for one without."""
    text = part.get(_TEXTS.get(str(part.get("type")), ""))
    return text if isinstance(text, str) else ""


def annotations_of(part: dict[str, Any]) -> list[Any]:
    """Return what a text cites."""
    listed = part.get("annotations")
    return listed if isinstance(listed, list) else []


def awaits_texts(frame: dict[str, Any]) -> bool:
    """Tell whether a frame lacks texts, which stand elsewhere."""
    return kind_of(frame) in CALLS or any(
        _TEXTS.get(str(part.get("type")), "type") not in part for _, _, part in parts_of(frame)
    )


def frame_of(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item without what the parts of a stored answer hold.

    Of log probabilities it keeps the number.
    """
    kind = kind_of(item)
    if kind in CALLS:
        held = ("call_id", "name", CALLS[kind])
        return {name: value for name, value in item.items() if name not in held}
    frame = dict(item)
    for field, number, part in parts_of(item):
        if frame[field] is item[field]:
            frame[field] = list(item[field])
        frame[field][number] = _part_frame(part)
    return frame


def _part_frame(part: dict[str, Any]) -> dict[str, Any]:
    frame = dict(part)
    if text_of(part):
        del frame[_TEXTS[part["type"]]]
    listed = part.get("logprobs")
    if isinstance(listed, list):
        frame["logprobs"] = len(listed)
    return frame


def checksums(item: dict[str, Any]) -> list[int]:
    """Return those of the texts of a message."""
    texts = [text_of(part) for _, _, part in parts_of(item) if part.get("type") == "output_text"]
    return [crc32(text.encode("utf-8", "surrogatepass")) for text in texts if text]


def contradicts(completion: Completion) -> bool:
    """Tell whether the pieces of a stream made other texts than those that its end told whole."""
    told = completion.extra.get(SUMS)
    if not isinstance(told, dict):
        return False
    wanted = [each for _, sums in sorted(told.items(), key=_number) for each in sums]
    texts = [part.text for part in completion.choices[0].parts if isinstance(part, Text)]
    return wanted != [crc32(text.encode("utf-8", "surrogatepass")) for text in texts]


def _number(pair: tuple[str, Any]) -> int:
    return int(pair[0])


class Source:
    """The parts of a stored answer, taken one after the other to fill the frames of its items."""

    def __init__(self, parts: Iterable[Part], logprobs: Sequence[Any] = ()) -> None:
        self._parts: dict[object, deque[Part]] = {}
        for part in parts:
            self._parts.setdefault(_place(part), deque()).append(part)
        self._logprobs = deque(logprobs)

    def text(self, kind: str) -> str | None:
        """Return the next text for a content part of this type; None: there is none."""
        queue = self._parts.get(kind)
        part = queue.popleft() if queue else None
        return None if part is None or isinstance(part, ToolCall) else part.text

    def call(self) -> ToolCall | None:
        queue = self._parts.get(ToolCall)
        part = queue.popleft() if queue else None
        return part if isinstance(part, ToolCall) else None

    def logprobs(self, count: int) -> list[Any]:
        """Return as many log probabilities, as far as there are any."""
        return [self._logprobs.popleft() for _ in range(min(count, len(self._logprobs)))]

    def left(self) -> list[Part]:
        """Return the parts that no frame took."""
        return [part for queue in self._parts.values() for part in queue]


def _place(part: Part) -> object:
    """Return the type of the content part that holds a part, or that it is a call."""
    match part:
        case Text():
            return "output_text"
        case Refusal():
            return "refusal"
        case Reasoning(field=field):
            return {SUMMARY: "summary_text", RAW: RAW}.get(field, field)
    return ToolCall


def output_items(completion: Completion, seed: str) -> list[dict[str, Any]]:
    """Return the output of a stored answer, whole. ``seed`` makes the ids that it does not have."""
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
    own = [part for part in source.left() if not isinstance(part, Reasoning)]
    return [*items, *_new_items(own, seed, len(items))]


def seed_of(completion: Completion) -> str:
    """Return a text that is the same for equal answers, for the ids of their items."""
    told = msgspec.json.encode((completion.choices[0].parts, completion.created))
    return blake2b(told, digest_size=16).hexdigest()


def _frames(completion: Completion) -> list[dict[str, Any]]:
    kept = completion.extra.get(ITEMS)
    numbered = sorted(kept.items(), key=lambda pair: int(pair[0])) if isinstance(kept, dict) else []
    return [frame for _, frame in numbered]


def _filled(frame: dict[str, Any], source: Source) -> dict[str, Any]:
    kind = kind_of(frame)
    item = dict(frame)
    if item.get("status") == IN_PROGRESS and kind in _PREFIXES:
        item["status"] = "completed"  # it was never told to be so
    if kind in CALLS:
        call = source.call()
        if call is not None:
            item |= {"call_id": call.id, "name": call.name, CALLS[kind]: call.arguments}
        return item
    if kind == "message" and "content" not in item:
        item["content"] = [{"type": "output_text", "annotations": []}]
    for field, number, part in parts_of(item):
        if item[field] is frame.get(field):
            item[field] = list(item[field])
        item[field][number] = _filled_part(part, source)
    return item


def _filled_part(part: dict[str, Any], source: Source) -> dict[str, Any]:
    kind = str(part.get("type"))
    field = _TEXTS.get(kind)
    whole = dict(part)
    if field is not None and field not in whole:
        whole[field] = source.text(kind) or ""
    if isinstance(whole.get("logprobs"), int):
        whole["logprobs"] = source.logprobs(whole["logprobs"])
    return whole


def _new_items(parts: Iterable[Part], seed: str, first: int) -> Iterator[dict[str, Any]]:
    """Yield items for the parts of an answer that has none of its own."""
    number, content = first, list[dict[str, Any]]()
    for part in parts:
        if isinstance(part, Text | Refusal):
            content.append(new_part("refusal" if isinstance(part, Refusal) else "output_text"))
            content[-1][_TEXTS[content[-1]["type"]]] = part.text
            continue
        if content:
            yield {**new_item("message", seed, number), "content": content}
            number, content = number + 1, []
        if isinstance(part, ToolCall):
            kind = KINDS.get(part.kind, "function_call")
            item = new_item(kind, seed, number)
            named = {"call_id": part.id or item["call_id"], "name": part.name}
            yield {**item, **named, CALLS[kind]: part.arguments}
        elif part.field not in (SUMMARY, RAW):
            continue
        else:
            yield _new_thought(part, seed, number)
        number += 1
    if content or number == first == 0:
        yield {**new_item("message", seed, number), "content": content or [new_part("output_text")]}


def _new_thought(part: Reasoning, seed: str, number: int) -> dict[str, Any]:
    item = new_item("reasoning", seed, number)
    field, kind = (SUMMARY, "summary_text") if part.field == SUMMARY else ("content", RAW)
    item[field] = [{**new_part(kind), "text": part.text}]
    return item if part.signature is None else {**item, "encrypted_content": part.signature}


def new_item(kind: str, seed: str, number: int) -> dict[str, Any]:
    """Return an item of ours, whole but for its content.

    A call has an id for its result, if the provider gives none.
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
    part: dict[str, Any] = {"type": kind, _TEXTS[kind]: ""}
    return {**part, "annotations": [], "logprobs": []} if kind == "output_text" else part
