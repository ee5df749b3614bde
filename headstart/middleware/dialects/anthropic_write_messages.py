"""Anthropic Messages: writing the messages of a request that came in any dialect."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.canonical_request import (
    CallPart,
    MediaPart,
    ReasoningPart,
    ResultPart,
    TextPart,
)
from headstart.middleware.dialects.anthropic_thinking import origin
from headstart.middleware.dialects.request_parts import plain_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headstart.canonical_request import CanonicalRequest, Message, MessagePart
    from headstart.middleware.dialects.request_parts import Losses

_Blocks = list[dict[str, Any]]


def write_messages(
    asked: CanonicalRequest, losses: Losses
) -> tuple[str | _Blocks, list[dict[str, Any]]]:
    """Return ``system`` and the messages. Raises InvalidRequest for what none of them can say.

    System messages of other dialects all go to ``system``, in order, or are the user's where they
    are all there is. Neighbours of one role become one turn, with tool results first.
    """
    system: _Blocks = []
    turns: list[tuple[str, _Blocks, dict[str, Any]]] = []
    for position, message in enumerate(asked.messages):
        blocks = _blocks(message.parts, losses)
        extra = losses.carried(message.extra)
        if message.name is not None:
            losses.drop("name")
        role = _role(message)
        if role == "system" and (position == 0 or not losses.own):
            system.extend(blocks)
        elif turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
            turns[-1][2].update(extra)
        elif blocks or losses.own:
            turns.append((role, blocks, dict(extra)))
    if not turns and not losses.own:
        turns, system = [("user", system, {})], []
    return _content(system), [
        {"role": role, "content": _content(_results_first(blocks)), **extra}
        for role, blocks, extra in turns
    ]


def _role(message: Message) -> str:
    if message.role in ("system", "developer"):
        return "system"
    return "assistant" if message.role == "assistant" else "user"


def _results_first(blocks: _Blocks) -> _Blocks:
    return sorted(blocks, key=lambda block: block.get("type") != "tool_result")


def _content(blocks: _Blocks) -> str | _Blocks:
    """Return a single plain text as a string: it is the shorter of two equal forms."""
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"}:
        return str(blocks[0]["text"])
    return blocks


def _blocks(parts: Iterable[MessagePart], losses: Losses) -> _Blocks:
    written = []
    for part in parts:
        # Anthropic refuses blank texts, and other dialects are full of them.
        if isinstance(part, TextPart) and not part.text.strip() and not losses.own:
            continue
        if isinstance(part, ReasoningPart) and not (losses.own and origin(part.signature) is None):
            losses.drop_reasoning(part)
            continue
        written.append(_block(part, losses))
    return written


def _block(part: MessagePart, losses: Losses) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text, **losses.carried(part.extra)}
    if isinstance(part, MediaPart):
        return {**_media(part, losses), **losses.carried(part.extra)}
    if isinstance(part, CallPart):
        return {
            "type": "tool_use",
            "id": _id(part.id),
            "name": part.name,
            "input": _input(part.arguments),
            **losses.carried(part.extra),
        }
    if isinstance(part, ResultPart):
        return _result(part, losses)
    if isinstance(part, ReasoningPart):
        return _thinking(part)
    return losses.foreign(part)


def _result(part: ResultPart, losses: Losses) -> dict[str, Any]:
    content = _content(_blocks(part.content, losses))
    return {
        "type": "tool_result",
        "tool_use_id": _id(part.id),
        **({"content": content} if content else {}),
        **({"is_error": True} if part.is_error else {}),
        **losses.carried(part.extra),
    }


def _thinking(part: ReasoningPart) -> dict[str, Any]:
    if part.field == "redacted_thinking":
        return {"type": part.field, "data": part.signature, **part.extra}
    signature = {} if part.signature is None else {"signature": part.signature}
    return {"type": "thinking", "thinking": part.text, **signature, **part.extra}


def _id(id: str) -> str:
    """Return a call's id without the characters that Anthropic refuses in it."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", id) or "_"


def _input(arguments: str) -> dict[str, Any]:
    """Return the arguments as an object.

    Text that is none, which a model may have written and been told of, goes as ``_raw``: the model
    shall see its mistake, and a request with such a turn in its history still be answered.
    """
    if not arguments.strip():
        return {}
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"_raw": arguments}


def _media(part: MediaPart, losses: Losses) -> dict[str, Any]:
    if part.detail not in (None, "auto"):
        losses.drop("detail")
    if part.kind == "image":
        losses.drop_filled({"name": part.name})
        return {"type": "image", "source": _source(part)}
    if part.kind == "audio":
        raise losses.refusal("content of type audio")
    title = {} if part.name is None else {"title": part.name}
    text = plain_text(part)
    if text is not None:
        source = {"type": "text", "media_type": "text/plain", "data": text}
        return {"type": "document", "source": source, **title}
    if part.data is not None and part.media_type != "application/pdf" and not losses.own:
        raise losses.refusal(f"content of type file ({part.media_type})")
    return {"type": "document", "source": _source(part), **title}


def _source(part: MediaPart) -> dict[str, Any]:
    if part.url is not None:
        return {"type": "url", "url": part.url}
    media_type = "image/jpeg" if part.media_type == "image/jpg" else part.media_type
    return {"type": "base64", "media_type": media_type, "data": part.data}
