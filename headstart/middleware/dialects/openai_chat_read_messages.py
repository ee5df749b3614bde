"""OpenAI Chat Completions: the messages of a request, read into no dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from headstart.canonical_request import (
    CallPart,
    ForeignPart,
    MediaPart,
    Message,
    ReasoningPart,
    ResultPart,
    TextPart,
)
from headstart.middleware.dialects.request_parts import name_results, split_data_url

if TYPE_CHECKING:
    from headstart.canonical_request import MessagePart, Role
    from headstart.middleware.dialects.request_fields import Fields

_REASONING = ("reasoning_content", "reasoning")
"""Names under which providers of this dialect hand out reasoning."""


def read_messages(fields: Fields) -> tuple[Message, ...]:
    """Take the messages of a request. Raises InvalidRequest."""
    messages = []
    function = ""
    for position, message in enumerate(fields.objects("messages")):
        role = message.required_text("role")
        if "function_call" in message:
            # The legacy form names no call: its result is the next ``function`` message.
            function = f"call_{position}"
        messages.append(_message(role, message, function))
    return name_results(messages)


def _message(role: str, fields: Fields, function: str) -> Message:
    if role in ("tool", "function"):
        return _result(fields, function if role == "function" else None)
    parts: tuple[MessagePart, ...]
    if role == "assistant":
        parts = (*_reasoning_parts(fields), *_content(fields), *_said(fields, function))
    else:
        parts = _content(fields)
    if role not in ("system", "developer", "user", "assistant"):
        raise fields.invalid("role", "must be system, developer, user, assistant, tool or function")
    name = fields.text("name")
    return Message(role=cast("Role", role), parts=parts, name=name, extra=fields.rest())


def _result(fields: Fields, function: str | None) -> Message:
    part = ResultPart(
        id=fields.required_text("tool_call_id") if function is None else function,
        name=fields.text("name"),
        content=_content(fields),
        extra=fields.rest(),
    )
    return Message(role="tool", parts=(part,))


def _reasoning_parts(fields: Fields) -> tuple[ReasoningPart, ...]:
    texts = {name: fields.text(name) for name in _REASONING}
    return tuple(ReasoningPart(text=text, field=name) for name, text in texts.items() if text)


def _said(fields: Fields, function: str) -> tuple[MessagePart, ...]:
    """Read what an assistant message holds beside its content."""
    parts: list[MessagePart] = []
    refusal = fields.text("refusal")
    if refusal:
        parts.append(TextPart(text=refusal, refusal=True))
    audio = fields.mapping("audio")
    if audio is not None:
        parts.append(ForeignPart(kind="audio", value=audio))
    parts.extend(map(_call, fields.objects("tool_calls")))
    legacy = fields.object("function_call")
    if legacy is not None:
        name = legacy.required_text("name")
        parts.append(CallPart(id=function, name=name, arguments=legacy.text("arguments") or ""))
    return tuple(parts)


def _call(fields: Fields) -> MessagePart:
    kind = fields.text("type") or "function"
    if kind not in ("function", "custom"):
        raise fields.invalid("type", "must be function or custom")
    if kind == "custom":
        return ForeignPart(kind=kind, value={"type": kind, **fields.rest()})
    function = fields.required_object("function")
    return CallPart(
        id=fields.required_text("id"),
        name=function.required_text("name"),
        arguments=function.text("arguments") or "",
        extra=fields.rest(),
    )


def _content(fields: Fields) -> tuple[TextPart | MediaPart | ForeignPart, ...]:
    if isinstance(fields.peek("content"), str):
        text = fields.required_text("content")
        return (TextPart(text=text),) if text else ()
    return tuple(map(_part, fields.objects("content")))


def _part(fields: Fields) -> TextPart | MediaPart | ForeignPart:
    kind = fields.required_text("type")
    if kind == "text":
        return TextPart(text=fields.required_text("text"), extra=fields.rest())
    if kind == "refusal":
        return TextPart(text=fields.required_text("refusal"), refusal=True, extra=fields.rest())
    if kind == "image_url":
        return _image(fields)
    if kind == "input_audio":
        audio = fields.required_object("input_audio")
        return MediaPart(
            kind="audio",
            media_type="audio/" + audio.required_text("format"),
            data=audio.required_text("data"),
            extra=fields.rest(),
        )
    if kind == "file":
        return _file(fields)
    return ForeignPart(kind=kind, value={"type": kind, **fields.rest()})


def _image(fields: Fields) -> MediaPart:
    image = fields.required_object("image_url")
    url, detail = image.required_text("url"), image.text("detail")
    bytes_ = split_data_url(url)
    media_type, data = bytes_ or (None, None)
    return MediaPart(
        kind="image",
        media_type=media_type,
        url=None if bytes_ else url,
        data=data,
        detail=detail,
        extra=fields.rest(),
    )


def _file(fields: Fields) -> MediaPart | ForeignPart:
    file = fields.required_object("file")
    name, data = file.text("filename"), file.text("file_data")
    if data is None:
        value = {**({"filename": name} if name else {}), **file.rest()}
        return ForeignPart(kind="file", value={"type": "file", "file": value, **fields.rest()})
    found = split_data_url(data)
    if found is None:
        raise file.invalid("file_data", "must be a data: URL with base64")
    return MediaPart(
        kind="file", media_type=found[0], data=found[1], name=name, extra=fields.rest()
    )
