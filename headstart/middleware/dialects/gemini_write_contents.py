"""Gemini's generateContent: messages, written as contents."""

from __future__ import annotations

import mimetypes
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.canonical_request import (
    CallPart,
    ForeignPart,
    MediaPart,
    ReasoningPart,
    ResultPart,
    TextPart,
)
from headstart.middleware.dialects.gemini_calls import MINTED
from headstart.middleware.dialects.gemini_events import SIGNATURE
from headstart.middleware.dialects.gemini_render import arguments_object, reasoning_part
from headstart.middleware.dialects.gemini_thinking import ANY_SIGNATURE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headstart.canonical_request import Message, MessagePart
    from headstart.middleware.dialects.request_parts import Losses

_Parts = list[dict[str, Any]]


class ContentWriter:
    """Writes the messages of one request.

    ``signatures``: the model refuses calls without one.
    """

    def __init__(self, losses: Losses, *, signatures: bool) -> None:
        self._losses = losses
        self._signatures = signatures

    def write(self, messages: Iterable[Message]) -> tuple[_Parts, _Parts]:
        """Return the parts of the system instruction, and the contents.

        Neighbours of one role are one content: results must stand together as their calls do.
        """
        system: _Parts = []
        contents: _Parts = []
        for message in messages:
            if message.name is not None:
                self._losses.drop("name")
            self._losses.drop_filled(message.extra)
            parts = self._message(message)
            role = "model" if message.role == "assistant" else "user"
            if message.role in ("system", "developer"):
                system += parts
            elif parts and contents and contents[-1]["role"] == role:
                contents[-1]["parts"] += parts
            elif parts:
                contents.append({"role": role, "parts": parts})
        if system and not contents:
            # The API refuses instructions alone.
            system, contents = [], [{"role": "user", "parts": system}]
        return system, contents

    def _message(self, message: Message) -> _Parts:
        parts = [written for part in message.parts if (written := self._part(part)) is not None]
        if self._signatures:
            first = next((part for part in parts if "functionCall" in part), None)
            if first is not None:
                first.setdefault(SIGNATURE, ANY_SIGNATURE)
        return parts

    def _part(self, part: MessagePart) -> dict[str, Any] | None:
        written: dict[str, Any] | None = None
        carried = self._losses.carried
        match part:
            case TextPart() if part.text:
                written = {"text": part.text, **carried(part.extra)}
            case ReasoningPart() if not self._losses.own:
                # Another model's thoughts are none of this one's.
                self._losses.drop_reasoning(part)
            case ReasoningPart():
                written = {**reasoning_part(part.text, part.signature), **part.extra}
            case CallPart():
                written = self._call(part)
            case ResultPart():
                written = {"functionResponse": self._result(part), **carried(part.extra)}
            case MediaPart():
                if part.detail not in (None, "auto"):
                    self._losses.drop("detail")
                written = {**_media(part), **carried(part.extra)}
            case ForeignPart():
                written = self._losses.foreign(part)
        return written

    def _call(self, part: CallPart) -> dict[str, Any]:
        arguments = arguments_object(part.arguments)
        body = {**_id(part.id), "name": part.name, "args": arguments}
        signature = _signature(part.extra)
        rest = {n: v for n, v in part.extra.items() if n not in (SIGNATURE, "extra_content")}
        return {"functionCall": body, **signature, **self._losses.carried(rest)}

    def _result(self, part: ResultPart) -> dict[str, Any]:
        texts = [each.text for each in part.content if isinstance(each, TextPart)]
        others = [each for each in part.content if not isinstance(each, TextPart)]
        media = [written for each in others if (written := self._part(each)) is not None]
        return {
            **_id(part.id),
            "name": part.name or part.id,
            "response": _response("\n".join(texts), failed=part.is_error),
            **({"parts": media} if media else {}),
        }


def _id(id: str) -> dict[str, str]:
    return {} if id.startswith(MINTED) else {"id": id}


def _signature(extra: dict[str, Any]) -> dict[str, str]:
    """Return a call's signature, also where Google's OpenAI endpoint puts it."""
    match extra:
        case {"thoughtSignature": str(signature)}:
            return {SIGNATURE: signature}
        case {"extra_content": {"google": {"thought_signature": str(signature)}}}:
            return {SIGNATURE: signature}
        case _:
            return {}


def _response(text: str, *, failed: bool) -> dict[str, Any]:
    """Return a function's result, which must be an object: text goes under the API's own names."""
    if failed:
        return {"error": text}
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {"output": text}
    return value if isinstance(value, dict) else {"output": text}


def _media(part: MediaPart) -> dict[str, Any]:
    guessed = mimetypes.guess_type(part.name or part.url or "")[0]
    media_type = part.media_type or guessed
    kind = {"mimeType": media_type} if media_type else {}
    name = {"displayName": part.name} if part.name else {}
    if part.data is not None:
        return {"inlineData": {**kind, "data": part.data, **name}}
    return {"fileData": {**kind, "fileUri": part.url, **name}}
