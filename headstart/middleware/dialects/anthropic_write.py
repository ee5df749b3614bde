"""Anthropic Messages: writing a request that came in any dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.canonical_request import CallPart, ForeignTool, Tool, Written
from headstart.middleware.dialects.anthropic_write_messages import write_messages
from headstart.middleware.dialects.request_parts import (
    Losses,
    budget_of,
    described_schema,
    effort_of,
    top_level_extra,
)
from headstart.middleware.dialects.request_quirks import edit

if TYPE_CHECKING:
    from headstart.canonical_request import CanonicalRequest, Quirks, ReasoningWish

DIALECT = "anthropic-messages"
_PATH = b"/v1/messages"
_MAX_TOKENS = 4096
"""The limit where nobody named one: the most that every Claude model can say."""
_LEAST_BUDGET = 1024
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh"}
_EFFORTS["max"] = "max"
_MODES = {"auto": "auto", "none": "none", "required": "any", "named": "tool"}


def write_request(asked: CanonicalRequest, quirks: Quirks) -> Written:
    """Return the request for a provider of this dialect. Raises InvalidRequest.

    A limit that the client did not name is ``quirks.default_max_tokens`` or 4096, on top of what
    may be thought. A wish to think yields to a forced tool and to a limit too small for it.
    """
    losses = Losses(DIALECT, asked.dialect, refuse=quirks.refuse)
    if asked.choices > 1:
        raise losses.refusal("n")
    extra = top_level_extra(asked, losses)
    system, messages = write_messages(asked, losses)
    thinking, effort = _reasoning(asked, quirks, losses)
    limit = asked.max_tokens
    if limit is None:
        limit = (quirks.default_max_tokens or _MAX_TOKENS) + _thought(thinking, effort)
    body: dict[str, Any] = {
        **extra,
        "model": asked.model,
        "max_tokens": limit,
        "system": system or None,
        "messages": messages,
        **_tools(asked, losses),
        "thinking": thinking or extra.get("thinking"),
        "output_config": _output(asked, effort, extra, losses),
        **_sampling(asked, quirks, losses, thinks=thinking.get("type") in ("enabled", "adaptive")),
        "stop_sequences": _stop(asked, losses),
        "metadata": _metadata(asked, extra),
        "stream": asked.stream or None,
    }
    _drop_unknown(asked, losses)
    said = {name: value for name, value in body.items() if value is not None}
    edited = edit(msgspec.json.encode(said), said, quirks, losses)
    return Written(path=_PATH, body=edited, dropped=losses.names)


def _drop_unknown(asked: CanonicalRequest, losses: Losses) -> None:
    losses.drop_filled(
        {
            "frequency_penalty": asked.frequency_penalty or None,
            "presence_penalty": asked.presence_penalty or None,
            "seed": asked.seed,
            "logprobs": asked.logprobs,
            "top_logprobs": asked.top_logprobs,
        }
    )


def _metadata(asked: CanonicalRequest, extra: dict[str, Any]) -> dict[str, Any] | None:
    user = {"user_id": asked.user} if asked.user else {}
    return {**extra.get("metadata", {}), **user} or None


def _stop(asked: CanonicalRequest, losses: Losses) -> list[str] | None:
    """Return the stop sequences; Anthropic refuses blank ones."""
    kept = [text for text in asked.stop if losses.own or text.strip()]
    if len(kept) < len(asked.stop):
        losses.drop("stop")
    return kept or None


def _sampling(
    asked: CanonicalRequest, quirks: Quirks, losses: Losses, *, thinks: bool
) -> dict[str, Any]:
    """Return temperature and its like, without what Anthropic refuses.

    It takes a temperature up to 1, which is also its default, not together with ``top_p``, and
    none of them from who wants it to think.
    """
    wanted = {"temperature": asked.temperature, "top_p": asked.top_p, "top_k": asked.top_k}
    said = {name: value for name, value in wanted.items() if value is not None}
    if losses.own and quirks.sampling:
        return said
    said = {name: v for name, v in said.items() if name == "top_k" or v != 1}
    refused = set(said) if thinks or not quirks.sampling else set()
    if said.get("temperature", 0) > 1:
        refused.add("temperature")
    if "temperature" in said.keys() - refused and "top_p" in said:
        refused.add("top_p")
    losses.drop(*sorted(refused))
    return {name: value for name, value in said.items() if name not in refused}


# --- tools and format ------------------------------------------------------------------------


def _tools(asked: CanonicalRequest, losses: Losses) -> dict[str, Any]:
    """Return tools and choice. A choice limited to some tools leaves the others out."""
    choice = asked.tool_choice
    limited = choice.names if choice and choice.mode in ("auto", "required") else ()
    tools = [
        _tool(tool, losses)
        for tool in asked.tools
        if not limited or (isinstance(tool, Tool) and tool.name in limited)
    ]
    if not tools:
        return {}
    alone = {"disable_parallel_tool_use": True} if asked.parallel_tool_calls is False else {}
    if choice is None:
        return {"tools": tools, **({"tool_choice": {"type": "auto", **alone}} if alone else {})}
    written: dict[str, Any] = {"type": _MODES[choice.mode]}
    if choice.mode == "named":
        written["name"] = choice.names[0]
    if choice.mode != "none":
        written.update(alone)
    return {"tools": tools, "tool_choice": written}


def _tool(tool: Tool | ForeignTool, losses: Losses) -> dict[str, Any]:
    if isinstance(tool, ForeignTool):
        return losses.foreign(tool)
    schema = tool.parameters or {}
    written = {
        "name": tool.name,
        "description": tool.description,
        "input_schema": schema if "type" in schema else {"type": "object", **schema},
        "strict": tool.strict,
    }
    filled = {name: value for name, value in written.items() if value is not None}
    return {**filled, **losses.carried(tool.extra)}


def _output(
    asked: CanonicalRequest, effort: str | None, extra: dict[str, Any], losses: Losses
) -> dict[str, Any] | None:
    output = dict(extra.get("output_config", {}))
    if effort is not None:
        output["effort"] = effort
    wanted = asked.response_format
    if wanted is not None and wanted.kind == "json":
        raise losses.refusal("response_format of type json_object (name a json_schema)")
    if wanted is not None and wanted.kind == "schema":
        output["format"] = {"type": "json_schema", "schema": described_schema(wanted) or {}}
    return output or None


# --- thinking --------------------------------------------------------------------------------


def _reasoning(
    asked: CanonicalRequest, quirks: Quirks, losses: Losses
) -> tuple[dict[str, Any], str | None]:
    """Return ``thinking`` and the effort."""
    wish = asked.reasoning
    if wish is None:
        return {}, None
    if losses.own:
        return _own_thinking(wish), wish.effort
    losses.carried(wish.extra)
    if wish.enabled is False or wish.effort == "none":
        return {"type": "disabled"}, None
    if quirks.thinking == "budget":
        return _budgeted(asked, wish, losses), None
    effort = wish.effort
    if effort is None and wish.budget_tokens is not None:
        effort = effort_of(wish.budget_tokens)
    if effort is not None and effort not in _EFFORTS:
        losses.drop("reasoning_effort")
        return {}, None
    thinking = {} if _forces_tool(asked) else {"type": "adaptive", **_display(wish)}
    return thinking, None if effort is None else _EFFORTS[effort]


def _thought(thinking: dict[str, Any], effort: str | None) -> int:
    """Return how many tokens the model may think before it says anything."""
    if thinking.get("type") == "adaptive":
        return budget_of(effort or "medium")
    return int(thinking.get("budget_tokens", 0))


def _own_thinking(wish: ReasoningWish) -> dict[str, Any]:
    if wish.enabled is None:
        return {}
    told = {**_display(wish), **wish.extra}
    if wish.budget_tokens is not None:
        return {"type": "enabled", "budget_tokens": wish.budget_tokens, **told}
    return {"type": "adaptive" if wish.enabled else "disabled", **told}


def _display(wish: ReasoningWish) -> dict[str, str]:
    if wish.shown is None:
        return {}
    return {"display": "summarized" if wish.shown else "omitted"}


def _budgeted(asked: CanonicalRequest, wish: ReasoningWish, losses: Losses) -> dict[str, Any]:
    """Return a budget, at most half of the limit if it would not fit below that.

    None for a turn whose tool calls were made without thinking: Anthropic refuses to begin then.
    """
    budget = wish.budget_tokens or budget_of(wish.effort or "medium")
    budget = max(budget, _LEAST_BUDGET)
    if asked.max_tokens is not None and budget >= asked.max_tokens:
        budget = asked.max_tokens // 2
    if budget < _LEAST_BUDGET or _forces_tool(asked) or _is_amid_calls(asked):
        losses.drop("reasoning_effort")
        return {}
    return {"type": "enabled", "budget_tokens": budget, **_display(wish)}


def _forces_tool(asked: CanonicalRequest) -> bool:
    return asked.tool_choice is not None and asked.tool_choice.mode in ("required", "named")


def _is_amid_calls(asked: CanonicalRequest) -> bool:
    for message in reversed(asked.messages):
        if message.role == "user":
            return False
        if any(isinstance(part, CallPart) for part in message.parts):
            return True
    return False
