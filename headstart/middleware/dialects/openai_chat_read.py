"""OpenAI Chat Completions: a request, read into no dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headstart.canonical_request import (
    CanonicalRequest,
    ForeignTool,
    ReasoningWish,
    ResponseFormat,
    Tool,
    ToolChoice,
)
from headstart.middleware.dialects.openai_chat_read_messages import read_messages
from headstart.middleware.dialects.request_fields import Fields

if TYPE_CHECKING:
    from headstart.types import ChatRequest

DIALECT = "openai-chat"


def read_request(request: ChatRequest) -> CanonicalRequest:
    """Return the request in no dialect. Raises InvalidRequest.

    The legacy ``functions`` and ``function_call`` become tools, ``function`` messages results.
    """
    fields = Fields(request.document)
    wanted = (fields.integer("max_completion_tokens"), fields.integer("max_tokens"))
    tools = (*_tools(fields), *_functions(fields))
    choice = _tool_choice(fields) or _function_choice(fields)
    logprobs, top_logprobs = _logprobs(fields)
    include_usage, options = _stream_options(fields)
    user = fields.text("user")
    return CanonicalRequest(
        dialect=DIALECT,
        model=fields.required_text("model"),
        messages=read_messages(fields),
        stream=bool(fields.boolean("stream")),
        include_usage=include_usage,
        max_tokens=next((limit for limit in wanted if limit is not None), None),
        temperature=fields.number("temperature"),
        top_p=fields.number("top_p"),
        top_k=fields.integer("top_k"),
        frequency_penalty=fields.number("frequency_penalty"),
        presence_penalty=fields.number("presence_penalty"),
        seed=fields.integer("seed"),
        stop=fields.texts("stop"),
        choices=fields.integer("n") or 1,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=fields.boolean("parallel_tool_calls"),
        response_format=_response_format(fields),
        reasoning=_reasoning(fields),
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        user=user or request.user,
        extra={**fields.rest(), **options},
    )


# --- tools -----------------------------------------------------------------------------------


def _tools(fields: Fields) -> tuple[Tool | ForeignTool, ...]:
    tools: list[Tool | ForeignTool] = []
    for tool in fields.objects("tools"):
        kind = tool.text("type") or "function"
        if kind == "function":
            tools.append(_tool(tool.required_object("function"), tool.rest()))
        else:
            tools.append(ForeignTool(kind=kind, value={"type": kind, **tool.rest()}))
    return tuple(tools)


def _functions(fields: Fields) -> tuple[Tool, ...]:
    return tuple(_tool(function, {}) for function in fields.objects("functions"))


def _tool(function: Fields, extra: dict[str, Any]) -> Tool:
    return Tool(
        name=function.required_text("name"),
        description=function.text("description"),
        parameters=function.mapping("parameters"),
        strict=function.boolean("strict"),
        extra=extra,
    )


def _tool_choice(fields: Fields) -> ToolChoice | None:
    value = fields.peek("tool_choice")
    if value in ("auto", "none", "required"):
        return ToolChoice(mode=fields.value("tool_choice"))
    choice = fields.object("tool_choice")
    if choice is None:
        return None
    kind = choice.text("type") or "function"
    if kind == "allowed_tools":
        return _allowed(choice.required_object("allowed_tools"))
    if kind not in ("function", "custom"):
        raise choice.invalid("type", "must be function, custom or allowed_tools")
    return ToolChoice(mode="named", names=(choice.required_object(kind).required_text("name"),))


def _allowed(fields: Fields) -> ToolChoice:
    mode = fields.text("mode") or "auto"
    if mode not in ("auto", "required"):
        raise fields.invalid("mode", "must be auto or required")
    names = []
    for tool in fields.objects("tools"):
        kind = "custom" if "custom" in tool else "function"
        names.append(tool.required_object(kind).required_text("name"))
    return ToolChoice(mode="auto" if mode == "auto" else "required", names=tuple(names))


def _function_choice(fields: Fields) -> ToolChoice | None:
    value = fields.peek("function_call")
    if value in ("auto", "none"):
        return ToolChoice(mode=fields.value("function_call"))
    choice = fields.object("function_call")
    if choice is None:
        return None
    return ToolChoice(mode="named", names=(choice.required_text("name"),))


# --- parameters ------------------------------------------------------------------------------


def _response_format(fields: Fields) -> ResponseFormat | None:
    wanted = fields.object("response_format")
    if wanted is None:
        return None
    kind = wanted.required_text("type")
    if kind == "text":
        return ResponseFormat(kind="text")
    if kind == "json_object":
        return ResponseFormat(kind="json")
    if kind != "json_schema":
        raise wanted.invalid("type", "must be text, json_object or json_schema")
    schema = wanted.required_object("json_schema")
    return ResponseFormat(
        kind="schema",
        name=schema.text("name"),
        schema=schema.mapping("schema"),
        strict=schema.boolean("strict"),
        description=schema.text("description"),
    )


def _reasoning(fields: Fields) -> ReasoningWish | None:
    effort = fields.text("reasoning_effort")
    return ReasoningWish(effort=effort) if effort else None


def _logprobs(fields: Fields) -> tuple[bool, int | None]:
    """Read whether token probabilities are wanted; some providers take a number for both."""
    top = fields.integer("top_logprobs")
    if type(fields.peek("logprobs")) is int:
        count = fields.integer("logprobs")
        return True, count if top is None else top
    return bool(fields.boolean("logprobs")), top


def _stream_options(fields: Fields) -> tuple[bool, dict[str, Any]]:
    """Read whether the usage is wanted, and what else the options hold."""
    options = fields.object("stream_options")
    if options is None:
        return False, {}
    wanted = bool(options.boolean("include_usage"))
    others = options.rest()
    return wanted, {"stream_options": others} if others else {}
