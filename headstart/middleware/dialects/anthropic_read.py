"""Anthropic Messages: a request, read into no dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec

from headstart.canonical_request import (
    CallPart,
    CanonicalRequest,
    ForeignPart,
    ForeignTool,
    MediaPart,
    Message,
    ReasoningPart,
    ReasoningWish,
    ResponseFormat,
    ResultPart,
    TextPart,
    Tool,
    ToolChoice,
)
from headstart.middleware.dialects.anthropic_thinking import origin
from headstart.middleware.dialects.request_fields import Fields
from headstart.middleware.dialects.request_parts import encode_text, name_results

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.canonical_request import MessagePart, Role
    from headstart.types import ChatRequest

DIALECT = "anthropic-messages"
_DISPLAYS = {"summarized": True, "omitted": False}
_MODES = {"auto": "auto", "none": "none", "any": "required", "tool": "named"}


def read_request(request: ChatRequest) -> CanonicalRequest:
    """Return the request in no dialect. Raises InvalidRequest.

    A user turn that holds tool results becomes a ``tool`` message and, for what is left, a user
    message.
    """
    fields = Fields(request.document)
    messages = (*_system(fields), *_messages(fields))
    choice, parallel = _tool_choice(fields)
    output = fields.object("output_config")
    extra: dict[str, Any] = {}
    effort = output.text("effort") if output else None
    wanted = _response_format(output) if output else None
    if output and (rest := output.rest()):
        extra["output_config"] = rest
    reasoning = _reasoning(fields, effort)
    metadata = fields.object("metadata")
    user = metadata.text("user_id") if metadata else None
    if metadata and (rest := metadata.rest()):
        extra["metadata"] = rest
    return CanonicalRequest(
        dialect=DIALECT,
        model=fields.required_text("model"),
        messages=name_results(messages),
        stream=bool(fields.boolean("stream")),
        include_usage=True,
        max_tokens=fields.integer("max_tokens"),
        temperature=fields.number("temperature"),
        top_p=fields.number("top_p"),
        top_k=fields.integer("top_k"),
        stop=fields.texts("stop_sequences"),
        tools=tuple(map(_tool, fields.objects("tools"))),
        tool_choice=choice,
        parallel_tool_calls=parallel,
        response_format=wanted,
        reasoning=reasoning,
        user=user or None,
        extra={**fields.rest(), **extra},
    )


# --- messages --------------------------------------------------------------------------------


def _system(fields: Fields) -> tuple[Message, ...]:
    parts = _content(fields, "system")
    return (Message(role="system", parts=parts),) if parts else ()


def _messages(fields: Fields) -> Iterator[Message]:
    for message in fields.objects("messages"):
        role = message.required_text("role")
        parts = _content(message, "content")
        extra = message.rest()
        results = tuple(part for part in parts if isinstance(part, ResultPart))
        if role == "user" and results:
            yield Message(role="tool", parts=results)
            parts = tuple(part for part in parts if not isinstance(part, ResultPart))
            if not parts:
                continue
        if role not in ("user", "assistant", "system"):
            raise message.invalid("role", "must be user, assistant or system")
        yield Message(role=cast("Role", role), parts=parts, extra=extra)


def _content(fields: Fields, name: str) -> tuple[MessagePart, ...]:
    if isinstance(fields.peek(name), str):
        text = fields.required_text(name)
        return (TextPart(text=text),) if text else ()
    return tuple(map(_block, fields.objects(name)))


def _block(fields: Fields) -> MessagePart:
    kind = fields.required_text("type")
    if kind == "thinking":
        signature = fields.text("signature")
        return ReasoningPart(
            text=fields.required_text("thinking"),
            signature=signature,
            field=origin(signature) or kind,
            extra=fields.rest(),
        )
    if kind == "redacted_thinking":
        data = fields.required_text("data")
        return ReasoningPart(text="", signature=data, field=kind, extra=fields.rest())
    if kind == "tool_use":
        return CallPart(
            id=fields.required_text("id"),
            name=fields.required_text("name"),
            arguments=msgspec.json.encode(fields.mapping("input") or {}).decode(),
            extra=fields.rest(),
        )
    if kind == "tool_result":
        return ResultPart(
            id=fields.required_text("tool_use_id"),
            content=_result_content(fields),
            is_error=bool(fields.boolean("is_error")),
            extra=fields.rest(),
        )
    return _said(kind, fields)


def _result_content(fields: Fields) -> tuple[TextPart | MediaPart | ForeignPart, ...]:
    if isinstance(fields.peek("content"), str):
        text = fields.required_text("content")
        return (TextPart(text=text),) if text else ()
    return tuple(_said(block.required_text("type"), block) for block in fields.objects("content"))


def _said(kind: str, fields: Fields) -> TextPart | MediaPart | ForeignPart:
    """Read a block that may also stand in a tool's result."""
    if kind == "text":
        return TextPart(text=fields.required_text("text"), extra=fields.rest())
    media = _media(kind, fields) if kind in ("image", "document") else None
    return media or ForeignPart(kind=kind, value={"type": kind, **fields.rest()})


def _media(kind: str, fields: Fields) -> MediaPart | None:
    """Read a block by its source; None for a source that only Anthropic can resolve."""
    value = fields.peek("source")
    if isinstance(value, dict) and value.get("type") not in ("base64", "url", "text"):
        return None
    source = fields.required_object("source")
    form = source.required_text("type")
    url = source.required_text("url") if form == "url" else None
    data = None if form == "url" else source.required_text("data")
    media_type = source.text("media_type") if form == "url" else source.required_text("media_type")
    return MediaPart(
        kind="image" if kind == "image" else "file",
        media_type=media_type,
        url=url,
        data=encode_text(data) if form == "text" and data is not None else data,
        name=fields.text("title") if kind == "document" else None,
        extra=fields.rest(),
    )


# --- tools and parameters --------------------------------------------------------------------


def _tool(fields: Fields) -> Tool | ForeignTool:
    kind = fields.text("type") or "custom"
    if kind != "custom":
        return ForeignTool(kind=kind, value={"type": kind, **fields.rest()})
    return Tool(
        name=fields.required_text("name"),
        description=fields.text("description"),
        parameters=fields.mapping("input_schema"),
        strict=fields.boolean("strict"),
        extra=fields.rest(),
    )


def _tool_choice(fields: Fields) -> tuple[ToolChoice | None, bool | None]:
    """Read the choice, and whether calls may be made in parallel."""
    choice = fields.object("tool_choice")
    if choice is None:
        return None, None
    kind = choice.required_text("type")
    if kind not in _MODES:
        raise choice.invalid("type", "must be auto, any, tool or none")
    alone = choice.boolean("disable_parallel_tool_use")
    names = (choice.required_text("name"),) if kind == "tool" else ()
    chosen = msgspec.convert({"mode": _MODES[kind], "names": names}, ToolChoice)
    return chosen, None if alone is None else not alone


def _response_format(output: Fields) -> ResponseFormat | None:
    wanted = output.object("format")
    if wanted is None:
        return None
    if wanted.required_text("type") != "json_schema":
        raise wanted.invalid("type", "must be json_schema")
    return ResponseFormat(kind="schema", schema=wanted.mapping("schema") or {}, strict=True)


def _reasoning(fields: Fields, effort: str | None) -> ReasoningWish | None:
    value = fields.peek("thinking")
    if isinstance(value, dict) and value.get("type") in ("enabled", "adaptive", "disabled"):
        thinking = fields.required_object("thinking")
        kind = thinking.required_text("type")
        budget = thinking.integer("budget_tokens") if kind == "enabled" else None
        if kind == "enabled" and budget is None:
            raise thinking.invalid("budget_tokens", "an integer is required")
        shown = _DISPLAYS.get(str(thinking.peek("display")))
        if shown is not None:
            thinking.value("display")
        return ReasoningWish(
            effort=effort,
            budget_tokens=budget,
            enabled=kind != "disabled",
            shown=shown,
            extra=thinking.rest(),
        )
    if value is not None and not isinstance(value, dict):
        raise fields.invalid("thinking", "must be an object")
    # What is left, such as ``between_tools``, has no equal elsewhere and goes with ``extra``.
    return ReasoningWish(effort=effort) if effort else None
