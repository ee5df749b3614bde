"""The prompt of any dialect as the messages that compression reads, and back into its place.

Compression reads OpenAI's form. Other dialects keep several tool results in one message of the
user's: each becomes a message of its own. What was not changed keeps its very object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from headstart.middleware.dialects.anthropic_messages import AnthropicMessages
from headstart.middleware.dialects.gemini_generate import GeminiGenerate
from headstart.middleware.dialects.openai_chat import OpenAIChat

if TYPE_CHECKING:
    from collections.abc import Sequence

Message: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Prompt:
    """Messages in OpenAI's form, those that tell the system's words included."""

    messages: list[Message]
    _document: dict[str, Any]
    _form: _Form
    _sizes: list[int]
    """How many messages each of the document's own became."""

    def with_messages(self, sent: Sequence[Message]) -> dict[str, Any]:
        """Return the document with these messages in the place of ``messages``, one for one."""
        at = len(self.messages) - sum(self._sizes)
        written = []
        for own, size in zip(self._document[self._form.field], self._sizes, strict=True):
            before, after = self.messages[at : at + size], sent[at : at + size]
            same = all(old is new for old, new in zip(before, after, strict=True))
            written.append(own if same else self._form.join(own, after))
            at += size
        return {**self._document, self._form.field: written}


def read_prompt(dialect: str, document: dict[str, Any]) -> Prompt | None:
    """Return a document's prompt; None for a dialect that is not known here, or a malformed one.

    A malformed prompt is the provider's to refuse.
    """
    form = _FORMS.get(dialect)
    if form is None:
        return None
    try:
        return _read(form, document)
    except (AttributeError, KeyError, TypeError):  # a field is missing, or of another type
        return None


def _read(form: _Form, document: dict[str, Any]) -> Prompt:
    messages = form.system(document)
    sizes = []
    previous: Message = {}
    for own in document[form.field]:
        split = form.split(own, previous)
        messages += split
        sizes.append(len(split))
        previous = own
    return Prompt(messages, document, form, sizes)


class _Form(Protocol):
    """How a dialect writes messages."""

    field: str

    def system(self, document: dict[str, Any]) -> list[Message]:
        """Return what stands outside the messages, before them."""

    def split(self, message: Message, previous: Message) -> list[Message]:
        """Return a message of the dialect's as some of OpenAI's."""

    def join(self, message: Message, sent: Sequence[Message]) -> Message:
        """Return the message with other texts; ``sent`` are the messages it was split into."""


class _OpenAIForm:
    field = "messages"

    def system(self, document: dict[str, Any]) -> list[Message]:  # noqa: ARG002 - among the others
        return []

    def split(self, message: Message, previous: Message) -> list[Message]:  # noqa: ARG002
        return [message]

    def join(self, message: Message, sent: Sequence[Message]) -> Message:  # noqa: ARG002
        return sent[0]


class _AnthropicForm:
    field = "messages"

    def system(self, document: dict[str, Any]) -> list[Message]:
        return [{"role": "system", "content": document.get("system")}]

    def split(self, message: Message, previous: Message) -> list[Message]:  # noqa: ARG002
        blocks, role = message.get("content"), message.get("role")
        if not isinstance(blocks, list) or role not in {"user", "assistant"}:
            return [message]
        if role == "assistant":
            calls = [_call(each["id"], each) for each in blocks if each.get("type") == "tool_use"]
            return [{**message, "tool_calls": calls}]
        split: list[Message] = []
        for block in blocks:
            if block.get("type") == "tool_result":
                split.append(self._result(block))
            else:
                _add_part(split, block)
        return split

    def join(self, message: Message, sent: Sequence[Message]) -> Message:
        if not isinstance(message["content"], list):
            return sent[0]
        blocks: list[Any] = []
        for each in sent:
            block = message["content"][len(blocks)]
            if each["role"] == "user":
                blocks += each["content"]
            elif each["content"] is block.get("content"):
                blocks.append(block)
            else:
                blocks.append({**block, "content": each["content"]})
        return {**message, "content": blocks}

    def _result(self, block: dict[str, Any]) -> Message:
        return {
            "role": "tool",
            "tool_call_id": block["tool_use_id"],
            "content": block.get("content"),
            "is_error": block.get("is_error"),
        }


class _GeminiForm:
    field = "contents"

    def system(self, document: dict[str, Any]) -> list[Message]:
        instruction = document.get("systemInstruction") or {}
        return [
            {"role": "system", "content": [_text_part(p) for p in instruction.get("parts", ())]}
        ]

    def split(self, message: Message, previous: Message) -> list[Message]:
        parts = message.get("parts") or []
        if message.get("role") == "model":
            calls = [_call(id, call) for id, call in _numbered("functionCall", parts).items()]
            texts = [_text_part(part) for part in parts]
            return [{"role": "assistant", "content": texts, "tool_calls": calls}]
        asked = _numbered("functionCall", previous.get("parts") or [])
        ids = {id(each): name for name, each in _numbered("functionResponse", parts).items()}
        split: list[Message] = []
        for part in parts:
            response = part.get("functionResponse")
            call = ids.get(id(response))
            if call in asked and _only_text(response) is not None:
                content = _only_text(response)
                split.append({"role": "tool", "tool_call_id": call, "content": content})
            else:
                _add_part(split, _text_part(part))
        return split

    def join(self, message: Message, sent: Sequence[Message]) -> Message:
        parts: list[Any] = []
        for each in sent:
            if each["role"] == "tool":
                parts.append(_with_response(message["parts"][len(parts)], each["content"]))
                continue
            for new in each["content"]:
                own = message["parts"][len(parts)]
                same = new["type"] != "text" or new["text"] == own["text"]
                parts.append(own if same else {"text": new["text"]})
        return {**message, "parts": parts}


def _add_part(split: list[Message], part: Any) -> None:
    """Add a part to the user's message that is being read, or begin one."""
    if not split or split[-1]["role"] != "user":
        split.append({"role": "user", "content": []})
    split[-1]["content"].append(part)


def _call(id: str, call: dict[str, Any]) -> dict[str, Any]:
    arguments = msgspec.json.encode(call.get("input", call.get("args"))).decode()
    return {"id": id, "function": {"name": call["name"], "arguments": arguments}}


def _numbered(kind: str, parts: Sequence[Any]) -> dict[str, Any]:
    """Return Gemini's calls, or responses, by what pairs them: an id, or name and number."""
    found: dict[str, Any] = {}
    names: dict[str, int] = {}
    for part in parts:
        each = part.get(kind)
        if each is None:
            continue
        name = each["name"]
        names[name] = names.get(name, 0) + 1
        found[each.get("id") or f"{name} {names[name]}"] = each
    return found


def _text_part(part: dict[str, Any]) -> dict[str, Any]:
    if part.keys() == {"text"}:
        return {"type": "text", "text": part["text"]}
    return {"type": "other"}


def _only_text(response: dict[str, Any]) -> str | None:
    """Return the text that is all that a function answered, or None."""
    match response:
        case {"response": dict(fields)} if len(fields) == 1:
            (text,) = fields.values()
            return text if isinstance(text, str) else None
    return None


def _with_response(part: dict[str, Any], text: str) -> dict[str, Any]:
    answered = part["functionResponse"]
    if _only_text(answered) == text:
        return part
    (field,) = answered["response"]
    return {**part, "functionResponse": {**answered, "response": {field: text}}}


_FORMS: dict[str, _Form] = {
    OpenAIChat.name: _OpenAIForm(),
    AnthropicMessages.name: _AnthropicForm(),
    GeminiGenerate.name: _GeminiForm(),
}
