"""Providers that deviate from the dialect they speak: the edits that a request needs.

For the dialects whose requests hold ``messages``: OpenAI's and Anthropic's.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.errors import InvalidRequest
from headstart.middleware.dialects.anthropic_thinking import may_hold_marks, without_marked
from headstart.middleware.dialects.request_parts import Losses

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headstart.canonical_request import Quirks
    from headstart.types import ChatRequest

_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_SAMPLING = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")


def apply_quirks(
    body: bytes, request: ChatRequest, quirks: Quirks, dialect: str
) -> tuple[bytes, tuple[str, ...]]:
    """Return the body as the provider takes it, and the names of the client's fields left out.

    So go the thoughts of others, where an Anthropic client sends back what it got of them.
    The very same body where nothing applies or where it repeats a key. Raises InvalidRequest for
    more choices than the provider gives, and with ``quirks.refuse`` in place of leaving out.
    """
    if request.duplicate_keys:
        return body, ()
    losses = Losses(dialect, dialect, refuse=quirks.refuse)
    check_choices(request.choices, quirks)
    return edit(body, request.document, quirks, losses), losses.names


def check_choices(choices: int, quirks: Quirks) -> None:
    """Raise InvalidRequest for more choices than the provider gives."""
    if quirks.max_choices is not None and choices > quirks.max_choices:
        raise InvalidRequest(f"n: the upstream gives at most {quirks.max_choices}")


def edit(body: bytes, asked: Mapping[str, Any], quirks: Quirks, losses: Losses) -> bytes:
    """Drop and rename fields, in place. ``asked`` is what the client said: only that is a loss."""
    drops = _drops(quirks)
    marked = may_hold_marks(body)
    if not (drops or quirks.renames or quirks.message_drops or marked or quirks.call_ids != "any"):
        return body
    document = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    losses.drop(*(name for name in drops if name in document and asked.get(name) is not None))
    edited = {
        quirks.renames.get(name, name): value
        for name, value in document.items()
        if name not in drops and not _is_replaced(name, document, quirks)
    }
    messages = _edit_messages(edited.get("messages"), quirks, losses, marked=marked)
    if messages is not None:
        edited["messages"] = messages
    elif list(edited) == list(document):
        return body
    return msgspec.json.encode(edited)


def _drops(quirks: Quirks) -> set[str]:
    return {
        *quirks.drops,
        *(() if quirks.sampling else _SAMPLING),
        *(() if quirks.stream_usage else ("stream_options",)),
    }


def _is_replaced(name: str, document: Mapping[str, object], quirks: Quirks) -> bool:
    """Does another field of the request take this one's name?"""
    return any(new == name and old in document for old, new in quirks.renames.items())


def _edit_messages(
    raw: msgspec.Raw | None, quirks: Quirks, losses: Losses, *, marked: bool
) -> msgspec.Raw | None:
    """Return the messages as the provider takes them; None if nothing changes in them."""
    if raw is None or not (quirks.message_drops or marked or quirks.call_ids != "any"):
        return None
    messages, thought = without_marked(msgspec.json.decode(raw, type=list[dict[str, msgspec.Raw]]))
    if thought:
        losses.leave("thinking")
    found = {name for name in quirks.message_drops for message in messages if name in message}
    losses.drop(*sorted(found))
    edited = [{k: v for k, v in message.items() if k not in found} for message in messages]
    renamed = [_shorten_ids(message) for message in edited] if quirks.call_ids == "short" else []
    changed = thought or found or any(renamed)
    return msgspec.Raw(msgspec.json.encode(edited)) if changed else None


def _shorten_ids(message: dict[str, msgspec.Raw]) -> bool:
    """Give tool calls and their results ids of nine characters, in place; False: they have."""
    changed = False
    if "tool_call_id" in message:
        id = msgspec.json.decode(message["tool_call_id"])
        changed = short_id(id) != id
        message["tool_call_id"] = msgspec.Raw(msgspec.json.encode(short_id(id)))
    if b'"id"' in (raw := bytes(message.get("tool_calls", b""))):
        calls = msgspec.json.decode(raw)
        renamed = [{**call, "id": short_id(call.get("id"))} for call in calls]
        changed |= renamed != calls
        message["tool_calls"] = msgspec.Raw(msgspec.json.encode(renamed))
    return changed


def short_id(id: Any) -> Any:
    """Return the id that stands for this one where only nine letters or digits will do.

    Equal ids give equal ones, so a result still names its call.
    """
    if not isinstance(id, str) or _SHORT_ID.fullmatch(id):
        return id
    return hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:9]
