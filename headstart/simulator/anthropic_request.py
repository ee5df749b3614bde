"""Reads Anthropic Messages requests into the common terms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from headstart.simulator.chat_request import (
    BadRequest,
    ChatBody,
    ContentPart,
    Function,
    Message,
    NamedFunction,
    NamedTool,
    Tool,
    decode_as,
    text_message,
    wanted_schema,
)
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.simulator.incoming import Incoming

_WITHOUT_SAMPLING = b"2026-10-21"
"""From this version of the API on, sampling fields are refused."""
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class _Block(Frozen):
    type: str
    text: str = ""
    content: str | tuple[ContentPart, ...] = ()
    """What a tool returned."""


class _Message(Frozen):
    role: Literal["user", "assistant", "system"]
    content: str | tuple[_Block, ...]


class _Tool(Frozen):
    name: str
    input_schema: dict[str, Any] = msgspec.field(default_factory=dict)


class _ToolChoice(Frozen):
    type: str = "auto"
    name: str = ""
    disable_parallel_tool_use: bool = False


class _Kind(Frozen):
    type: str = "disabled"


class _OutputFormat(Frozen):
    schema: dict[str, Any] = msgspec.field(default_factory=dict)


class _OutputConfig(Frozen):
    format: _OutputFormat | None = None


class _Body(Frozen):
    model: str
    max_tokens: int
    messages: tuple[_Message, ...]
    system: str | tuple[ContentPart, ...] = ()
    stream: bool = False
    tools: tuple[_Tool, ...] | None = None
    tool_choice: _ToolChoice | None = None
    thinking: _Kind | None = None
    output_config: _OutputConfig | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


_decoder = msgspec.json.Decoder(_Body)


def read_anthropic(incoming: Incoming) -> ChatBody:
    """Return what is asked. Raises BadRequest, also where the version forbids a field."""
    version = incoming.header(b"anthropic-version")
    if version is None:
        raise BadRequest("anthropic-version: header is required")
    body = decode_as(_decoder, incoming.body)
    if not body.messages:
        raise BadRequest("messages: at least one message is required")
    sampled = (body.temperature, body.top_p, body.top_k) != (None, None, None)
    if sampled and version >= _WITHOUT_SAMPLING:
        raise BadRequest("temperature, top_p and top_k are not supported by this version")
    choice = body.tool_choice or _ToolChoice()
    return ChatBody(
        model=body.model,
        messages=tuple(_messages(body)),
        stream=body.stream,
        max_tokens=body.max_tokens,
        tools=None if body.tools is None else tuple(map(_tool, body.tools)),
        tool_choice=_choice(choice),
        parallel_tool_calls=not choice.disable_parallel_tool_use,
        reasoning_effort="none" if (body.thinking or _Kind()).type == "disabled" else "medium",
        response_format=(
            wanted_schema(body.output_config.format.schema)
            if body.output_config and body.output_config.format
            else None
        ),
    )


def _messages(body: _Body) -> Iterator[Message]:
    if body.system:
        texts = (body.system,) if isinstance(body.system, str) else _texts(body.system)
        yield text_message("system", texts)
    for message in body.messages:
        if isinstance(message.content, str):
            yield Message(role=message.role, content=message.content)
            continue
        for block in message.content:
            if block.type == "tool_result":
                result = block.content
                yield text_message("tool", (result,) if isinstance(result, str) else _texts(result))
        texts = tuple(block.text for block in message.content if block.type == "text")
        if texts or not any(block.type == "tool_result" for block in message.content):
            yield text_message(message.role, texts)


def _texts(parts: tuple[ContentPart, ...]) -> tuple[str, ...]:
    return tuple(part.text for part in parts if part.type == "text")


def _tool(tool: _Tool) -> Tool:
    return Tool(function=Function(name=tool.name, parameters=tool.input_schema))


def _choice(choice: _ToolChoice) -> str | NamedTool:
    if choice.type == "tool":
        return NamedTool(function=NamedFunction(name=choice.name))
    return _CHOICES.get(choice.type, "auto")
