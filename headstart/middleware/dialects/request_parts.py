"""What all writers of requests share: losses, media, reasoning budgets, strict schemas."""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.canonical_request import CallPart, ForeignTool, ResultPart
from headstart.errors import InvalidRequest
from headstart.middleware.dialects.anthropic_thinking import origin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headstart.canonical_request import (
        CanonicalRequest,
        ForeignPart,
        MediaPart,
        Message,
        MessagePart,
        ReasoningPart,
        ResponseFormat,
    )

_NEEDED = frozenset({"audio", "cachedContent", "container", "mcp_servers", "web_search_options"})
"""Top-level fields without which the answer would be another one, not merely a less tuned one."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 32768}
"""Tokens to think at an effort. Providers publish no table; these are what gateways settled on."""


class Losses:
    """Collects what a target cannot be told.

    ``target`` is the dialect that is written and ``source`` the one that the request came in.
    """

    def __init__(self, target: str, source: str, *, refuse: bool) -> None:
        self.target = target
        self.own = source == target
        """Extra fields, signatures and foreign parts travel within a dialect alone."""
        self._refuse = refuse
        self._names: set[str] = set()

    def drop(self, *names: str) -> None:
        """Leave fields out. Raises InvalidRequest where that is not wanted."""
        if self._refuse and names:
            raise self.refusal(names[0])
        self.leave(*names)

    def leave(self, *names: str) -> None:
        """Leave fields out that nobody would miss: they are named, and never refused."""
        # Names are the client's own choice, and are told in a header.
        self._names.update(name if _NAME.fullmatch(name) else "other" for name in names)

    def drop_reasoning(self, part: ReasoningPart) -> None:
        """Leave earlier reasoning out; that of others goes however strict: we handed it out."""
        leave = self.drop if origin(part.signature) is None else self.leave
        leave(part.field)

    def drop_filled(self, fields: Mapping[str, Any]) -> None:
        """Leave fields out; to leave out one that says nothing (null, false, empty) is no loss."""
        self.drop(*(name for name, value in fields.items() if _says_something(value)))

    def carried(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the extra fields that travel; the others are dropped."""
        if self.own:
            return fields
        self.drop_filled(fields)
        return {}

    def foreign(self, foreign: ForeignPart | ForeignTool) -> dict[str, Any]:
        """Return a part or tool that only its own dialect knows. Raises InvalidRequest."""
        if self.own:
            return foreign.value
        what = "tools" if isinstance(foreign, ForeignTool) else "content"
        raise self.refusal(f"{what} of type {foreign.kind}")

    def refusal(self, name: str) -> InvalidRequest:
        """Return the error for content that has no place in the target."""
        return InvalidRequest(f"{name}: cannot be expressed for an upstream of {self.target}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._names))


def top_level_extra(asked: CanonicalRequest, losses: Losses) -> dict[str, Any]:
    """Return the extra fields of the request that travel.

    Raises InvalidRequest for one without which the answer would be another.
    """
    if losses.own:
        return asked.extra
    for name, value in asked.extra.items():
        limits = name == "modalities" and value != ["text"]
        # To name the options of a search is to ask for one.
        asks = name in _NEEDED and (_says_something(value) or name == "web_search_options")
        if limits or asks:
            raise losses.refusal(name)
    # What other dialects do anyway, or are told as the user.
    said = {"modalities": ["text"], "safety_identifier": asked.user}
    losses.drop_filled({k: v for k, v in asked.extra.items() if k not in said or v != said[k]})
    return {}


def name_results(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with each tool result under the name of the tool that was called."""
    names = {
        part.id: part.name
        for message in messages
        for part in message.parts
        if isinstance(part, CallPart)
    }
    return tuple(
        msgspec.structs.replace(message, parts=tuple(_named(part, names) for part in message.parts))
        for message in messages
    )


def split_data_url(url: str) -> tuple[str, str] | None:
    """Return media type and base64 of a ``data:`` URL, or None if it is no such URL."""
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    return head[5:-7].partition(";")[0] or "text/plain", data


def data_url(media: MediaPart) -> str:
    """Return the part's URL, as a ``data:`` URL where it holds bytes."""
    return media.url or f"data:{media.media_type};base64,{media.data}"


def plain_text(media: MediaPart) -> str | None:
    """Return the text of a text file that came as bytes, or None."""
    if media.kind != "file" or media.data is None or media.media_type != "text/plain":
        return None
    try:
        return base64.b64decode(media.data).decode()
    except (binascii.Error, ValueError):
        return None


def encode_text(text: str) -> str:
    """Return a text file's base64."""
    return base64.b64encode(text.encode()).decode()


def described_schema(wanted: ResponseFormat) -> dict[str, Any] | None:
    """Return a format's schema, which tells what the format is for where that was said."""
    if wanted.schema is None or wanted.description is None:
        return wanted.schema
    return {"description": wanted.description, **wanted.schema}


def kept_stops(asked: CanonicalRequest, most: int, losses: Losses) -> tuple[str, ...]:
    """Return the stop sequences, no more of them than the target takes."""
    if len(asked.stop) > most:
        losses.drop("stop")
    return asked.stop[:most]


def budget_of(effort: str) -> int:
    """Return how many tokens an effort may think; an unknown word counts as the most."""
    return _BUDGETS.get(effort, _BUDGETS["xhigh"])


def effort_of(budget_tokens: int) -> str:
    """Return the least effort, from ``low`` to ``high``, that covers a budget."""
    return next((name for name in ("low", "medium") if budget_tokens <= _BUDGETS[name]), "high")


def fits_strict(schema: Any) -> bool:
    """May OpenAI be told to keep strictly to this schema?

    It refuses one with an object that is open or has a property that is not required.
    """
    if isinstance(schema, list):
        return all(map(fits_strict, schema))
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if schema.get("additionalProperties") is not False or not (
            isinstance(properties, dict) and isinstance(required, list)
        ):
            return False
        if any(name not in required for name in properties):
            return False
    return all(map(fits_strict, schema.values()))


def _says_something(value: Any) -> bool:
    return value is not None and value is not False and value not in ([], {}, "")


def _named(part: MessagePart, names: dict[str, str]) -> MessagePart:
    if isinstance(part, ResultPart) and part.name is None:
        return msgspec.structs.replace(part, name=names.get(part.id))
    return part
