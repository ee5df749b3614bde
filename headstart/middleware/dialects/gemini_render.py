"""Gemini's generateContent: a stored answer as byte templates, JSON and stream alike.

Everything but the id is encoded once; a replay only joins bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.middleware.dialects.chunks import split_text
from headstart.middleware.dialects.gemini_calls import MINTED
from headstart.middleware.dialects.gemini_events import FINISHES, PART, SIGNATURE, THOUGHT
from headstart.types import CONTENT_BLOCKS, Reasoning, ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.types import Choice, Completion, Part

_REASONS = {
    "stop": "STOP",
    "length": "MAX_TOKENS",
    "tool_calls": "STOP",
    "function_call": "STOP",
    "content_filter": "SAFETY",
}
_NO_REASON = "OTHER"
_ONLY_TEXT = ({"text"}, {"text", "thought"})
_encode = msgspec.json.encode


class RenderedContent:
    """One answer, prebuilt. The id is the only hole."""

    __slots__ = ("_body", "_frames", "nbytes")

    def __init__(self, completion: Completion) -> None:
        usage = {} if completion.usage is None else {"usageMetadata": completion.usage}
        named = {"modelVersion": completion.model}
        rest = {**usage, **named, **completion.extra}
        if _is_blocked(completion):
            self._body = _members(rest)
            chunks: list[dict[str, Any]] = [rest]
        else:
            whole = [
                candidate(choice.index, list(_parts(choice)), _ending(choice))
                for choice in completion.choices
            ]
            self._body = _members({"candidates": whole, **rest})
            chunks = [
                {"candidates": [piece], **named}
                for choice in completion.choices
                for piece in _pieces(choice)
            ]
            chunks[-1] = {**chunks[-1], **rest}
        # Joining by the head puts one before every chunk: hence the empty first item.
        self._frames = (b"", *(_members(chunk) + b"\n\n" for chunk in chunks))
        self.nbytes = len(self._body) + sum(map(len, self._frames))

    def json(self, id: str, created: int) -> bytes:  # noqa: ARG002
        """Return the body of the answer that is not streamed. The dialect knows no time."""
        return b'{"responseId":%b,%b' % (_encode(id), self._body)

    def sse(self, id: str, created: int, *, include_usage: bool) -> bytes:  # noqa: ARG002
        """Return the whole stream. Its last event tells the usage; nothing marks its end."""
        return (b'data: {"responseId":%b,' % _encode(id)).join(self._frames)


def candidate(index: int, parts: list[dict[str, Any]], ending: dict[str, Any]) -> dict[str, Any]:
    """Return a candidate, or a piece of one."""
    return {"content": {"parts": parts, "role": "model"}, **ending, "index": index}


def finish_reason(reason: str, native: str | None) -> str:
    """Return Gemini's own finish reason, or the nearest to one that another provider gave."""
    if native is not None and (native in FINISHES or (reason == "error" and native.isupper())):
        return native
    return _REASONS.get(reason, _NO_REASON)


def call_part(call: ToolCall) -> dict[str, Any]:
    """Return a function call as a part. Arguments that are no object are wrapped in one."""
    extra = {name: value for name, value in call.extra.items() if name != "functionCall"}
    own = {} if not call.id or call.id.startswith(MINTED) else {"id": call.id}
    unknown = call.extra.get("functionCall") or {}
    body = {**own, "name": call.name, "args": arguments_object(call.arguments), **unknown}
    return {"functionCall": body, **extra}


def arguments_object(arguments: str) -> Any:
    """Return a call's arguments as an object, in the writing of the model where that is one."""
    try:
        value = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return {"INVALID_JSON": arguments}
    if not isinstance(value, dict):
        return {"INVALID_JSON": arguments}
    # Written without line ends: an event of a stream stands on one line.
    return msgspec.Raw(msgspec.json.format(arguments.encode(), indent=-1)) if value else {}


def reasoning_part(text: str, signature: str | None) -> dict[str, Any]:
    """Return a thought as a part."""
    return {"text": text, "thought": True, **({SIGNATURE: signature} if signature else {})}


def _is_blocked(completion: Completion) -> bool:
    """Was the prompt refused? Such an answer has no candidate."""
    feedback = completion.extra.get("promptFeedback")
    blocked = isinstance(feedback, dict) and bool(feedback.get("blockReason"))
    return blocked and not any(choice.parts for choice in completion.choices)


def _members(document: dict[str, Any]) -> bytes:
    """Encode an object without its opening brace, to follow the members of a template."""
    return _encode(document)[1:]


def _ending(choice: Choice) -> dict[str, Any]:
    """Return a candidate's fields beside its content."""
    logprobs = {} if choice.logprobs is None else {"logprobsResult": choice.logprobs}
    reason = finish_reason(choice.finish, choice.native_finish)
    return {"finishReason": reason, **logprobs, **choice.beside}


def _parts(choice: Choice) -> Iterator[dict[str, Any]]:
    """Yield the parts in order: canonical ones fill the places that no other part has."""
    details = {
        (detail["index"], "type" in detail): detail[PART]
        for detail in choice.extra.get(CONTENT_BLOCKS, ())
        if PART in detail
    }
    index = 0
    # What another provider's model thought is shown to who asked for thoughts.
    shown = [p for p in choice.parts if not isinstance(p, Reasoning) or p.field == THOUGHT]
    for part in shown:
        while (own := details.pop((index, True), None)) is not None:
            yield own
            index += 1
        yield {**_part(part), **details.pop((index, False), {})}
        index += 1
    for _, own in sorted(details.items(), key=lambda item: item[0]):
        yield own


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, ToolCall):
        return call_part(part)
    if isinstance(part, Reasoning):
        return reasoning_part(part.text, part.signature)
    return {"text": part.text}


def _pieces(choice: Choice) -> Iterator[dict[str, Any]]:
    """Yield the pieces of a candidate's stream; its last one tells how it ended."""
    pieces: list[dict[str, Any]] = []
    for part in _parts(choice):
        if part.keys() in _ONLY_TEXT and isinstance(part["text"], str):
            pieces += ({**part, "text": text} for text in split_text(part["text"]))
        else:
            # What a part holds beside its text belongs to all of it.
            pieces.append(part)
    for piece in pieces[:-1]:
        yield candidate(choice.index, [piece], {})
    yield candidate(choice.index, pieces[-1:] or [{"text": ""}], _ending(choice))
