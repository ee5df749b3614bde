"""OpenAI Chat Completions: writing the messages of a request that came in any dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headstart.canonical_request import (
    CallPart,
    ForeignPart,
    MediaPart,
    ReasoningPart,
    ResultPart,
    TextPart,
)
from headstart.errors import InvalidRequest
from headstart.middleware.dialects.openai_chat_encode import REASONING_FIELDS
from headstart.middleware.dialects.request_parts import data_url, plain_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headstart.canonical_request import CanonicalRequest, Message, MessagePart, Quirks
    from headstart.middleware.dialects.request_parts import Losses

_AUDIO = {"wav": "wav", "x-wav": "wav", "mp3": "mp3", "mpeg": "mp3"}


def write_messages(asked: CanonicalRequest, quirks: Quirks, losses: Losses) -> list[dict[str, Any]]:
    """Return the messages. Raises InvalidRequest for what none of them can say.

    ``tool`` messages hold text alone, so media in results follow in a user message.
    """
    written: list[dict[str, Any]] = []
    media: list[dict[str, Any]] = []
    for message in asked.messages:
        if message.role == "tool":
            for part in message.parts:
                if isinstance(part, ResultPart):
                    written.append(_result(part, losses))
                    media.extend(_result_media(part, losses))
            continue
        if media:
            written.append({"role": "user", "content": media})
            media = []
        written.append(_message(message, losses))
    if media:
        written.append({"role": "user", "content": media})
    _mark_prefill(written, quirks, losses)
    return written


def _mark_prefill(written: list[dict[str, Any]], quirks: Quirks, losses: Losses) -> None:
    """Have the model go on from a last turn of its own, as other dialects do by themselves."""
    if losses.own or not written or written[-1]["role"] != "assistant":
        return
    if quirks.prefill == "no":
        raise InvalidRequest(
            f"messages[{len(written) - 1}]: the upstream does not go on from an assistant message"
        )
    if quirks.prefill == "prefix":
        written[-1]["prefix"] = True


def _message(message: Message, losses: Losses) -> dict[str, Any]:
    said = [part for part in message.parts if _stands_in_content(part)]
    content = _content(said, "" if message.role == "assistant" else "\n", losses)
    beside = _beside_content(message.parts, losses)
    if message.name is not None:
        beside["name"] = message.name
    # An assistant message says something beside its content, or has one.
    absent = content == "" and not beside.keys().isdisjoint(("tool_calls", "refusal", "audio"))
    return {
        "role": message.role,
        "content": None if absent else content,
        **beside,
        **losses.carried(message.extra),
    }


def _stands_in_content(part: MessagePart) -> bool:
    if isinstance(part, ForeignPart):
        return part.kind not in ("audio", "custom")
    return isinstance(part, MediaPart) or (isinstance(part, TextPart) and not part.refusal)


def _beside_content(parts: Sequence[MessagePart], losses: Losses) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    calls = []
    for part in parts:
        if isinstance(part, CallPart):
            calls.append(_call(part, losses))
        elif isinstance(part, TextPart) and part.refusal:
            fields["refusal"] = fields.get("refusal", "") + part.text
        elif isinstance(part, ReasoningPart) and part.field in REASONING_FIELDS:
            # It came from a provider of this dialect; some refuse a turn that lacks it.
            fields[part.field] = fields.get(part.field, "") + part.text
        elif isinstance(part, ReasoningPart):
            losses.drop_reasoning(part)
        elif isinstance(part, ForeignPart) and part.kind == "audio":
            fields["audio"] = losses.foreign(part)
        elif isinstance(part, ForeignPart) and part.kind == "custom":
            calls.append(losses.foreign(part))
    if calls:
        fields["tool_calls"] = calls
    return fields


def _call(part: CallPart, losses: Losses) -> dict[str, Any]:
    return {
        "id": part.id,
        "type": "function",
        "function": {"name": part.name, "arguments": part.arguments},
        **losses.carried(part.extra),
    }


def _result(part: ResultPart, losses: Losses) -> dict[str, Any]:
    if part.is_error:
        losses.drop("is_error")
    said = [piece for piece in part.content if losses.own or not _is_media(piece)]
    return {
        "role": "tool",
        "tool_call_id": part.id,
        "content": _content(said, "\n", losses),
        **losses.carried(part.extra),
    }


def _result_media(part: ResultPart, losses: Losses) -> Iterator[dict[str, Any]]:
    """Yield the media of a result, which only tells of whose they are in words."""
    media = [piece for piece in part.content if not losses.own and _is_media(piece)]
    if media:
        yield {"type": "text", "text": f"Returned by the tool call {part.id}:"}
        yield from (_part(piece, losses) for piece in media)


def _is_media(part: MessagePart) -> bool:
    return isinstance(part, MediaPart) and plain_text(part) is None


# --- content ---------------------------------------------------------------------------------


def _content(
    parts: Sequence[MessagePart], joint: str, losses: Losses
) -> str | list[dict[str, Any]]:
    """Return text as a string, which all providers take, and anything else as a list."""
    written = [_part(part, losses) for part in parts]
    is_text = all(part.keys() == {"type", "text"} for part in written)
    if is_text and (len(written) < 2 or not losses.own):
        return joint.join(part["text"] for part in written)
    return written


def _part(part: MessagePart, losses: Losses) -> dict[str, Any]:
    if isinstance(part, ForeignPart):
        return losses.foreign(part)
    if isinstance(part, MediaPart):
        return {**_media(part, losses), **losses.carried(part.extra)}
    assert isinstance(part, TextPart)
    return {"type": "text", "text": part.text, **losses.carried(part.extra)}


def _media(part: MediaPart, losses: Losses) -> dict[str, Any]:
    if part.kind != "file":
        losses.drop_filled({"name": part.name})
    if part.kind == "image":
        detail = {"detail": part.detail} if part.detail is not None else {}
        return {"type": "image_url", "image_url": {"url": data_url(part), **detail}}
    if part.kind == "audio":
        form = (part.media_type or "").removeprefix("audio/")
        form = _AUDIO.get(form, form)
        if part.data is None or not (losses.own or form in _AUDIO.values()):
            raise losses.refusal(f"content of type audio ({part.media_type})")
        return {"type": "input_audio", "input_audio": {"data": part.data, "format": form}}
    text = None if losses.own else plain_text(part)
    if text is not None:
        return {"type": "text", "text": f"{part.name}:\n{text}" if part.name else text}
    if part.data is None:
        raise losses.refusal("content of type file (by URL)")
    name = part.name or (None if losses.own else "file")
    named = {"filename": name} if name is not None else {}
    return {"type": "file", "file": {**named, "file_data": data_url(part)}}
