"""Anthropic Messages: thinking of other providers' models, which the API did not sign.

Clients take thinking only with a signature, and send both back: some providers refuse a turn of
theirs that lacks its reasoning. So what others thought bears a mark of ours, which tells where it
came from. The API itself refuses a signature that is not its own, and never gets to see one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

_MARK = "headstart:"
_MARK_BYTES = _MARK.encode()


def mark(field: str) -> str:
    """Return the signature of thinking that came from another provider under this name."""
    return _MARK + field


def origin(signature: str | None) -> str | None:
    """Return the name under which another provider sent the thinking; None: it is the API's."""
    if signature is None or not signature.startswith(_MARK):
        return None
    return signature.removeprefix(_MARK)


def is_shown(document: dict[str, Any]) -> bool:
    """Does the request ask for thinking, and to see it?"""
    thinking = document.get("thinking")
    return (
        isinstance(thinking, dict)
        and thinking.get("type") in ("enabled", "adaptive")
        and thinking.get("display") != "omitted"
    )


def may_hold_marks(body: bytes) -> bool:
    """Could the body hold marked thinking? Told without reading it."""
    return _MARK_BYTES in body


def without_marked(
    messages: Iterable[dict[str, msgspec.Raw]],
) -> tuple[list[dict[str, msgspec.Raw]], bool]:
    """Return the messages without marked thinking, and whether there was any.

    A message that held nothing else goes with it.
    """
    kept, found = [], False
    for message in messages:
        content = bytes(message.get("content", b""))
        if not (content[:1] == b"[" and may_hold_marks(content)):
            kept.append(message)
            continue
        blocks = msgspec.json.decode(content, type=list[msgspec.Raw])
        own = [block for block in blocks if not _is_marked(msgspec.json.decode(block))]
        found |= len(own) < len(blocks)
        if own or not blocks:
            kept.append({**message, "content": msgspec.Raw(msgspec.json.encode(own))})
    return kept, found


def _is_marked(block: Any) -> bool:
    match block:
        case {"type": "thinking", "signature": str(signature)}:
            return origin(signature) is not None
    return False
