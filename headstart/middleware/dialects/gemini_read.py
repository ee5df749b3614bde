"""Gemini's generateContent: a request, read into no dialect."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Literal

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
from headstart.middleware.dialects.gemini_calls import MINTED
from headstart.middleware.dialects.gemini_events import THOUGHT
from headstart.middleware.dialects.gemini_schema import json_schema
from headstart.middleware.dialects.request_fields import Fields

if TYPE_CHECKING:
    from headstart.canonical_request import MessagePart
    from headstart.types import ChatRequest

NAME = "gemini-generate"
_MODES: dict[str, Literal["auto", "none", "required"]] = {"NONE": "none", "ANY": "required"}


def read_request(request: ChatRequest) -> CanonicalRequest:
    """Return the request in no dialect. Raises InvalidRequest that names the field at fault.

    ``request.document`` has the names that ``gemini_request.parse_request`` gives it.
    """
    fields = Fields({**request.document, "model": request.model})
    config = fields.object("generationConfig") or Fields({})
    thinking = config.object("thinkingConfig")
    choices = fields.object("toolConfig") or Fields({})
    calling = choices.object("functionCallingConfig")
    stop = config.texts("stopSequences")
    asked = CanonicalRequest(
        dialect=NAME,
        model=fields.required_text("model"),
        messages=_messages(fields),
        stream=request.stream,
        include_usage=True,
        max_tokens=config.integer("maxOutputTokens"),
        temperature=config.number("temperature"),
        top_p=config.number("topP"),
        top_k=_whole(config.number("topK")),
        frequency_penalty=config.number("frequencyPenalty"),
        presence_penalty=config.number("presencePenalty"),
        seed=config.integer("seed"),
        stop=stop,
        choices=config.integer("candidateCount") or 1,
        tools=tuple(tool for each in fields.objects("tools") for tool in _tools(each)),
        tool_choice=None if calling is None else _choice(calling),
        response_format=_format(config),
        reasoning=None if thinking is None else _reasoning(thinking),
        logprobs=config.boolean("responseLogprobs") or False,
        top_logprobs=config.integer("logprobs"),
    )
    return msgspec.structs.replace(asked, extra=_extra(fields, config, choices))


def _extra(fields: Fields, config: Fields, choices: Fields) -> dict[str, Any]:
    modalities = [name.lower() for name in config.texts("responseModalities")]
    settings, extra = config.rest(), fields.rest()
    if modalities not in ([], ["text"]):
        extra["modalities"] = modalities
    if settings:
        extra["generationConfig"] = settings
    if rest := choices.rest():
        extra["toolConfig"] = rest
    return extra


# --- messages --------------------------------------------------------------------------------


class _Calls:
    """Names the calls and results that came without an id, and pairs them in their order."""

    def __init__(self) -> None:
        self._count = 0
        self._open: dict[str, deque[str]] = {}

    def call(self, id: str | None, name: str) -> str:
        self._count += 1
        id = id or f"{MINTED}{self._count}"
        self._open.setdefault(name, deque()).append(id)
        return id

    def result(self, id: str | None, name: str) -> str:
        waiting = self._open.get(name)
        if id is not None:
            if waiting and id in waiting:
                waiting.remove(id)
            return id
        if waiting:
            return waiting.popleft()
        self._count += 1
        return f"{MINTED}{self._count}"


def _messages(fields: Fields) -> tuple[Message, ...]:
    messages: list[Message] = []
    instruction = fields.object("systemInstruction")
    if instruction is not None:
        parts = tuple(_part(part, _Calls()) for part in instruction.objects("parts"))
        messages.append(Message(role="system", parts=parts))
    calls = _Calls()
    for content in fields.objects("contents"):
        model = content.text("role") == "model"
        parts = tuple(_part(part, calls) for part in content.objects("parts"))
        if model:
            messages.append(Message(role="assistant", parts=parts))
            continue
        results = tuple(part for part in parts if isinstance(part, ResultPart))
        others = tuple(part for part in parts if not isinstance(part, ResultPart))
        if results:
            messages.append(Message(role="tool", parts=results))
        if others:
            messages.append(Message(role="user", parts=others))
    return tuple(messages)


def _part(part: Fields, calls: _Calls) -> MessagePart:
    if "functionCall" in part:
        return _call(part, calls)
    if "functionResponse" in part:
        return _result(part, calls)
    for name, source in (("inlineData", "data"), ("fileData", "fileUri")):
        if name in part:
            return _media(part, part.required_object(name), source)
    if "text" not in part:
        rest = part.rest()
        return ForeignPart(kind=next(iter(rest), "empty"), value=rest)
    text = part.required_text("text")
    if part.boolean("thought"):
        return ReasoningPart(
            text=text,
            signature=part.text("thoughtSignature"),
            field=THOUGHT,
            extra=part.rest(),
        )
    return TextPart(text=text, extra=part.rest())


def _media(part: Fields, media: Fields, source: str) -> MediaPart:
    media_type = media.text("mimeType")
    content = media.required_text(source)
    return MediaPart(
        kind=_kind(media_type),
        media_type=media_type,
        data=content if source == "data" else None,
        url=content if source != "data" else None,
        name=media.text("displayName"),
        extra=part.rest(),
    )


def _call(part: Fields, calls: _Calls) -> CallPart:
    call = part.required_object("functionCall")
    name = call.required_text("name")
    arguments = msgspec.json.encode(call.mapping("args") or {}).decode()
    id = calls.call(call.text("id"), name)
    return CallPart(id=id, name=name, arguments=arguments, extra=part.rest())


def _result(part: Fields, calls: _Calls) -> ResultPart:
    result = part.required_object("functionResponse")
    name = result.required_text("name")
    response = result.mapping("response") or {}
    id = calls.result(result.text("id"), name)
    media = tuple(
        inner
        for inner in (_part(each, calls) for each in result.objects("parts"))
        if isinstance(inner, TextPart | MediaPart | ForeignPart)
    )
    text, failed = _said(response)
    return ResultPart(
        id=id, name=name, content=(TextPart(text=text), *media), is_error=failed, extra=part.rest()
    )


def _said(response: dict[str, Any]) -> tuple[str, bool]:
    """Return a function's result as text. ``output`` and ``error`` are the API's own names."""
    match response:
        case {"output": str(text), **rest} if not rest:
            return text, False
        case {"error": str(text), **rest} if not rest:
            return text, True
        case _:
            return msgspec.json.encode(response).decode(), False


def _kind(media_type: str | None) -> Literal["image", "audio", "file"]:
    kind = (media_type or "").partition("/")[0]
    if kind == "image":
        return "image"
    return "audio" if kind == "audio" else "file"


# --- settings --------------------------------------------------------------------------------


def _tools(tool: Fields) -> tuple[Tool | ForeignTool, ...]:
    functions = tuple(_function(each) for each in tool.objects("functionDeclarations"))
    hosted = tuple(ForeignTool(kind=kind, value={kind: v}) for kind, v in tool.rest().items())
    return (*functions, *hosted)


def _function(function: Fields) -> Tool:
    own = function.mapping("parameters")
    schema = function.mapping("parametersJsonSchema")
    return Tool(
        name=function.required_text("name"),
        description=function.text("description"),
        parameters=schema if own is None else json_schema(own),
        extra=function.rest(),
    )


def _choice(calling: Fields) -> ToolChoice:
    mode = _MODES.get((calling.text("mode") or "").upper(), "auto")
    names = calling.texts("allowedFunctionNames")
    if mode == "required" and len(names) == 1:
        return ToolChoice(mode="named", names=names)
    return ToolChoice(mode=mode, names=names)


def _format(config: Fields) -> ResponseFormat | None:
    media_type = config.text("responseMimeType")
    own = config.mapping("responseSchema")
    schema = config.mapping("responseJsonSchema")
    if own is not None:
        schema = json_schema(own)
    if schema is not None:
        return ResponseFormat(kind="schema", schema=schema)
    return ResponseFormat(kind="json") if media_type == "application/json" else None


def _reasoning(thinking: Fields) -> ReasoningWish:
    level = thinking.text("thinkingLevel")
    budget = thinking.integer("thinkingBudget")
    enabled = None if budget is None else budget != 0
    return ReasoningWish(
        effort=level.lower() if level else None,
        budget_tokens=budget if budget is not None and budget > 0 else None,
        enabled=enabled,
        shown=thinking.boolean("includeThoughts"),
        extra=thinking.rest(),
    )


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)
