"""OpenAI Chat Completions: writing a request that came in any dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.canonical_request import ForeignTool, Written
from headstart.middleware.dialects.openai_chat_write_messages import write_messages
from headstart.middleware.dialects.request_parts import (
    Losses,
    effort_of,
    fits_strict,
    kept_stops,
    top_level_extra,
)
from headstart.middleware.dialects.request_quirks import check_choices, edit

if TYPE_CHECKING:
    from headstart.canonical_request import CanonicalRequest, Quirks, Tool

DIALECT = "openai-chat"
_PATH = b"/v1/chat/completions"
_MOST_STOPS = 4


def write_request(asked: CanonicalRequest, quirks: Quirks) -> Written:
    """Return the request for a provider of this dialect, with what it deviates in.

    A turn of the assistant's that shall be gone on with is refused where the provider does not.
    OpenAI is told to keep strictly to a schema only where it can. Raises InvalidRequest.
    """
    losses = Losses(DIALECT, asked.dialect, refuse=quirks.refuse)
    check_choices(asked.choices, quirks)
    extra = top_level_extra(asked, losses)
    body: dict[str, Any] = {
        "model": asked.model,
        "messages": write_messages(asked, quirks, losses),
        "tools": [_tool(tool, losses) for tool in asked.tools],
        **_tool_choice(asked),
        **_response_format(asked, losses),
        **_reasoning(asked, losses),
        **_parameters(asked, losses),
        **extra,
        **_streaming(asked, quirks, extra),
    }
    if body["user"] == extra.get("safety_identifier"):
        del body["user"]
    said = {name: value for name, value in body.items() if value is not None and value != []}
    # The usage is asked for on our own account: that it cannot be is no loss of the client's.
    said_by_client = {name: value for name, value in said.items() if name != "stream_options"}
    edited = edit(msgspec.json.encode(said), said_by_client, quirks, losses)
    return Written(path=_PATH, body=edited, dropped=losses.names)


def _parameters(asked: CanonicalRequest, losses: Losses) -> dict[str, Any]:
    if not losses.own and asked.top_k is not None:
        losses.drop("top_k")
    return {
        "max_completion_tokens": asked.max_tokens,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "top_k": asked.top_k if losses.own else None,
        "frequency_penalty": asked.frequency_penalty,
        "presence_penalty": asked.presence_penalty,
        "seed": asked.seed,
        "stop": list(asked.stop if losses.own else kept_stops(asked, _MOST_STOPS, losses)),
        "n": asked.choices if asked.choices > 1 else None,
        "logprobs": asked.logprobs or None,
        "top_logprobs": asked.top_logprobs,
        "user": asked.user,
    }


def _streaming(asked: CanonicalRequest, quirks: Quirks, extra: dict[str, Any]) -> dict[str, Any]:
    if not asked.stream:
        return {}
    usage = {"include_usage": True} if asked.include_usage and quirks.stream_usage else {}
    options = {**extra.get("stream_options", {}), **usage}
    return {"stream": True, "stream_options": options or None}


# --- tools -----------------------------------------------------------------------------------


def _tool(tool: Tool | ForeignTool, losses: Losses) -> dict[str, Any]:
    if isinstance(tool, ForeignTool):
        return losses.foreign(tool)
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": _strict(tool.strict, tool.parameters, losses),
    }
    return {
        "type": "function",
        "function": {name: value for name, value in function.items() if value is not None},
        **losses.carried(tool.extra),
    }


def _tool_choice(asked: CanonicalRequest) -> dict[str, Any]:
    """Return what is said of the tools' use. OpenAI refuses it where there are no tools."""
    if not asked.tools:
        return {}
    parallel = {"parallel_tool_calls": asked.parallel_tool_calls}
    choice = asked.tool_choice
    if choice is None:
        return parallel
    named = [_reference(name, asked) for name in choice.names]
    if choice.mode == "named":
        return {"tool_choice": named[0], **parallel}
    if named:
        allowed = {"mode": choice.mode, "tools": named}
        return {"tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}, **parallel}
    return {"tool_choice": choice.mode, **parallel}


def _reference(name: str, asked: CanonicalRequest) -> dict[str, Any]:
    customs = [tool.value for tool in asked.tools if isinstance(tool, ForeignTool)]
    known = any(
        isinstance(c := tool.get("custom"), dict) and c.get("name") == name for tool in customs
    )
    kind = "custom" if known else "function"
    return {"type": kind, kind: {"name": name}}


# --- how to answer ---------------------------------------------------------------------------


def _response_format(asked: CanonicalRequest, losses: Losses) -> dict[str, Any]:
    wanted = asked.response_format
    if wanted is None:
        return {}
    if wanted.kind != "schema":
        kind = "text" if wanted.kind == "text" else "json_object"
        return {"response_format": {"type": kind}}
    schema = {
        "name": wanted.name or "response",
        "description": wanted.description,
        "schema": wanted.schema,
        "strict": _strict(wanted.strict, wanted.schema, losses),
    }
    filled = {name: value for name, value in schema.items() if value is not None}
    return {"response_format": {"type": "json_schema", "json_schema": filled}}


def _strict(strict: bool | None, schema: Any, losses: Losses) -> bool | None:  # noqa: FBT001
    if not strict or losses.own or fits_strict(schema):
        return strict
    losses.drop("strict")
    return None


def _reasoning(asked: CanonicalRequest, losses: Losses) -> dict[str, Any]:
    """Return the effort. Thinking cannot be switched off in words that all models take."""
    wish = asked.reasoning
    if wish is None:
        return {}
    losses.carried(wish.extra)
    if wish.enabled is False:
        losses.drop("thinking")
        return {}
    effort = wish.effort
    if effort is None and wish.budget_tokens is not None:
        effort = effort_of(wish.budget_tokens)
    return {"reasoning_effort": effort}
