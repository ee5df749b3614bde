"""Chat messages in OpenAI's form: the places of their texts, and the tool calls in them.

A message of another form counts as empty. It is left to the provider to refuse it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TOOL_ROLES = ("tool", "function")


class Dumpable(Protocol):
    """A message, or a call, as the openai SDK returns it."""

    def model_dump(self, *, mode: str, exclude_unset: bool) -> dict[str, Any]:
        """Return the fields that were set, as JSON values."""


def read_message(given: Mapping[str, Any] | Dumpable) -> Mapping[str, Any]:
    """Return a message as the openai SDK would send it; a mapping of plain values stays the same.

    Raises TypeError for a value that is no mapping and has no ``model_dump``.
    """
    if type(given) is dict and "tool_calls" not in given:
        return given
    if not isinstance(given, Mapping):
        if not hasattr(given, "model_dump"):
            raise TypeError(
                f"a {type(given).__name__} is no chat message: give OpenAI's chat messages, as "
                "dicts or as the openai SDK returns them"
            )
        message: Mapping[str, Any] = _plain(given)
        return message
    calls = _calls(given)
    if not any(hasattr(call, "model_dump") for call in calls):
        return given
    return {**given, "tool_calls": [_plain(call) for call in calls]}


def _plain(given: Any) -> Any:
    if hasattr(given, "model_dump"):
        return given.model_dump(mode="json", exclude_unset=True)
    return given


def text_at(message: Mapping[str, Any], part: int | None) -> str:
    """Return the text of a message, or the text of one of its parts."""
    content = message["content"]
    return str(content if part is None else content[part]["text"])


def with_text(message: Mapping[str, Any], part: int | None, text: str) -> dict[str, Any]:
    """Return a copy of the message with another text in this place."""
    if part is None:
        return {**message, "content": text}
    content = list(message["content"])
    content[part] = {**content[part], "text": text}
    return {**message, "content": content}


def indexed_texts(message: Mapping[str, Any]) -> Iterator[tuple[int | None, str]]:
    """Yield each text of a message with the index of its part; None if the content is a text."""
    content = message.get("content")
    if isinstance(content, str):
        yield None, content
    elif isinstance(content, list):
        for index, part in enumerate(content):
            match part:
                case {"type": "text", "text": str(text)}:
                    yield index, text


def only_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message if its content is one text, else ""."""
    content = message.get("content")
    if isinstance(content, list) and len(content) > 1:
        return ""
    return next((text for part, text in indexed_texts(message) if is_plain_text(message, part)), "")


def is_plain_text(message: Mapping[str, Any], part: int | None) -> bool:
    """Return whether a part has no fields beside its text, which would have to change with it.

    Marks of the provider's prefix cache do not count: they move from one request to the next, and
    a message must always be sent in the same form.
    """
    return part is None or message["content"][part].keys() - {"cache_control"} == {"type", "text"}


def texts(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield all that the model reads of a message: texts, and names and arguments of calls."""
    content = message.get("content")
    for part in content if isinstance(content, list) else [{"text": content}]:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]
    for call in _calls(message):
        match call:
            case {"function": {"name": str(name), "arguments": str(arguments)}}:
                yield name
                yield arguments


def calls_in(message: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the id of each call that a message makes, with its name and arguments."""
    for call in _calls(message):
        match call:
            case {"id": str(id), "function": {"name": str(name), "arguments": str(arguments)}}:
                yield id, (name, arguments)


def call_of(message: Mapping[str, Any], calls: Mapping[object, tuple[str, str]]) -> tuple[str, str]:
    """Return name and arguments of the call that a message answers, as far as known."""
    id = message.get("tool_call_id")
    known = calls.get(id) if isinstance(id, str) else None
    return known or (str(message.get("name") or ""), "")


def _calls(message: Mapping[str, Any]) -> Sequence[object]:
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list | tuple) else ()
