"""Reads Gemini requests into the common terms."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from headstart.simulator.chat_request import (
    MOST_LOGPROBS,
    BadRequest,
    ChatBody,
    Function,
    Message,
    NamedFunction,
    NamedTool,
    ResponseFormat,
    Tool,
    decode_as,
    text_message,
    wanted_schema,
)
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.simulator.incoming import Incoming

GENERATES = re.compile(rb"/(?:v1|v1beta)/models/([^/:]+):(generateContent|streamGenerateContent)")
"""The paths that are served: model and method."""
MOST_CANDIDATES = 8


class _Result(Frozen):
    response: dict[str, Any] = msgspec.field(default_factory=dict)


class _Part(Frozen, rename="camel"):
    text: str = ""
    thought: bool = False
    function_response: _Result | None = None


class _Content(Frozen):
    parts: tuple[_Part, ...] = ()
    role: str = "user"


class _Declaration(Frozen, rename="camel"):
    name: str
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None
    snake_schema: dict[str, Any] | None = msgspec.field(default=None, name="parameters_json_schema")
    """Protocol buffers accept both spellings, and google-genai sends this one."""


class _Tools(Frozen, rename="camel"):
    function_declarations: tuple[_Declaration, ...] = ()


class _CallingConfig(Frozen, rename="camel"):
    mode: str = "AUTO"
    allowed_function_names: tuple[str, ...] = ()


class _ToolConfig(Frozen, rename="camel"):
    function_calling_config: _CallingConfig = _CallingConfig()


class _Thinking(Frozen, rename="camel"):
    include_thoughts: bool = False
    snake_thoughts: bool = msgspec.field(default=False, name="include_thoughts")

    @property
    def shown(self) -> bool:
        return self.include_thoughts or self.snake_thoughts


class _Generation(Frozen, rename="camel"):
    max_output_tokens: int | None = None
    candidate_count: Annotated[int, msgspec.Meta(ge=1, le=MOST_CANDIDATES)] | None = None
    response_mime_type: str = ""
    response_schema: dict[str, Any] | None = None
    response_json_schema: dict[str, Any] | None = None
    response_logprobs: bool | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=MOST_LOGPROBS)] | None = None
    thinking_config: _Thinking = _Thinking()


class _Body(Frozen, rename="camel"):
    contents: tuple[_Content, ...]
    system_instruction: _Content | None = None
    generation_config: _Generation = _Generation()
    tools: tuple[_Tools, ...] | None = None
    tool_config: _ToolConfig = _ToolConfig()


_decoder = msgspec.json.Decoder(_Body)


def read_gemini(incoming: Incoming) -> ChatBody:
    """Return what is asked; the path says model and mode. Raises BadRequest."""
    found = GENERATES.fullmatch(incoming.path)
    if found is None:
        raise BadRequest("no such method")
    body = decode_as(_decoder, incoming.body)
    if not body.contents:
        raise BadRequest("* GenerateContentRequest.contents: contents is not specified")
    asked = body.generation_config
    calling = body.tool_config.function_calling_config
    return ChatBody(
        model=found[1].decode("latin-1"),
        messages=tuple(_messages(body)),
        stream=found[2] == b"streamGenerateContent",
        n=asked.candidate_count,
        max_tokens=asked.max_output_tokens,
        logprobs=asked.response_logprobs,
        top_logprobs=asked.logprobs,
        tools=None if body.tools is None else tuple(_tools(body.tools)),
        tool_choice=_choice(calling),
        reasoning_effort="medium" if asked.thinking_config.shown else "none",
        response_format=_format(asked),
    )


def _messages(body: _Body) -> Iterator[Message]:
    if body.system_instruction:
        yield text_message("system", (part.text for part in body.system_instruction.parts))
    for content in body.contents:
        for part in content.parts:
            if part.function_response:
                yield Message(role="tool", content=_result(part.function_response.response))
        texts = [part.text for part in content.parts if part.text and not part.thought]
        if texts or not any(part.function_response for part in content.parts):
            yield text_message("assistant" if content.role == "model" else "user", texts)


def _result(response: dict[str, Any]) -> str:
    """Return what a tool said: the text under the usual names, else the JSON."""
    said = response.get("output", response.get("result"))
    return said if isinstance(said, str) else msgspec.json.encode(response).decode()


def _tools(groups: tuple[_Tools, ...]) -> Iterator[Tool]:
    for group in groups:
        for found in group.function_declarations:
            schema = found.parameters or found.parameters_json_schema or found.snake_schema or {}
            yield Tool(function=Function(name=found.name, parameters=_lowered(schema)))


def _lowered(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with JSON Schema's names for types, which Gemini writes in capitals."""

    def lower(name: str, value: Any) -> Any:
        if name == "type" and isinstance(value, str):
            return value.lower()
        if isinstance(value, dict):
            return _lowered(value)
        return value

    return {name: lower(name, value) for name, value in schema.items()}


def _choice(calling: _CallingConfig) -> str | NamedTool:
    if calling.mode == "ANY" and len(calling.allowed_function_names) == 1:
        return NamedTool(function=NamedFunction(name=calling.allowed_function_names[0]))
    return {"ANY": "required", "NONE": "none"}.get(calling.mode, "auto")


def _format(asked: _Generation) -> ResponseFormat | None:
    if asked.response_mime_type != "application/json":
        return None
    schema = asked.response_json_schema or asked.response_schema
    return wanted_schema(None if schema is None else _lowered(schema))
