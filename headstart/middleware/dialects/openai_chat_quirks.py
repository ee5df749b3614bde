"""Providers that speak OpenAI's dialect and deviate from it: the edits that a request needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.errors import InvalidRequest
from headstart.middleware.dialects.request_parts import Losses

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headstart.canonical_request import Quirks
    from headstart.types import ChatRequest

DIALECT = "openai-chat"
_SAMPLING = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")


def apply_quirks(
    body: bytes, request: ChatRequest, quirks: Quirks
) -> tuple[bytes, tuple[str, ...]]:
    """Return the body as the provider takes it, and the names of the client's fields left out.

    The very same body where nothing applies or where it repeats a key. Raises InvalidRequest for
    more choices than the provider gives, and with ``quirks.refuse`` in place of leaving out.
    """
    if request.duplicate_keys:
        return body, ()
    losses = Losses(DIALECT, DIALECT, refuse=quirks.refuse)
    check_choices(request.choices, quirks)
    return edit(body, request.document, quirks, losses), losses.names


def check_choices(choices: int, quirks: Quirks) -> None:
    """Raise InvalidRequest for more choices than the provider gives."""
    if quirks.max_choices is not None and choices > quirks.max_choices:
        raise InvalidRequest(f"n: the upstream gives at most {quirks.max_choices}")


def edit(body: bytes, asked: Mapping[str, Any], quirks: Quirks, losses: Losses) -> bytes:
    """Drop and rename fields, in place. ``asked`` is what the client said: only that is a loss."""
    drops = _drops(quirks)
    if not (drops or quirks.renames or quirks.message_drops):
        return body
    document = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    losses.drop(*(name for name in drops if name in document and asked.get(name) is not None))
    edited = {
        quirks.renames.get(name, name): value
        for name, value in document.items()
        if name not in drops and not _is_replaced(name, document, quirks)
    }
    messages = _edit_messages(edited.get("messages"), quirks, losses)
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


def _edit_messages(raw: msgspec.Raw | None, quirks: Quirks, losses: Losses) -> msgspec.Raw | None:
    """Return the messages without what the provider rejects in them; None if nothing goes."""
    if raw is None or not quirks.message_drops:
        return None
    messages = msgspec.json.decode(raw, type=list[dict[str, msgspec.Raw]])
    found = {name for name in quirks.message_drops for message in messages if name in message}
    if not found:
        return None
    losses.drop(*sorted(found))
    kept = [{k: v for k, v in message.items() if k not in found} for message in messages]
    return msgspec.Raw(msgspec.json.encode(kept))
