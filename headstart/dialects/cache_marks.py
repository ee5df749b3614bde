"""Marks in a request that steer the provider's prompt cache: where a cached prefix is to end.

Anthropic's ``cache_control`` is a member of the last block of a prefix, Bedrock's ``cachePoint`` a
block behind it. OpenAI caches by itself; its ``prompt_cache_key`` names requests that share a
prefix, and so go to the same machine. All other members of a body keep their bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.types import CacheMarks

    _Members = dict[str, msgspec.Raw]
    _Mark = Callable[[Any], Any]
    """Returns content with a mark at its end; None if it takes none."""

CACHE_POINT = "cachePoint"
"""Name of Bedrock's block; some models refuse it."""
SIGNS = (b'"cache_control"', b'"cachePoint"')
"""Names in the request of a client that sets its own marks."""
MARKED, KEYED = "cache-marks", "cache-key"
"""The transforms of requests that got marks or a key."""
KEY_SIGNS = (b'"prompt_cache_',)
"""The same for OpenAI, whose fields all begin like this."""


class _Turn(msgspec.Struct):
    role: str = ""


def mark_anthropic(body: bytes, marks: CacheMarks) -> bytes | None:
    """Return the body of a Messages request with these marks; None: there is no place for any."""
    members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    changed = False
    if marks.shared:
        changed |= _replace(members, "tools", _with_marked_tool)
        changed |= _replace(members, "system", _with_marked_block)
    changed |= _mark_turns(members, marks, _with_marked_block)
    return msgspec.json.encode(members) if changed else None


def mark_bedrock(body: bytes, marks: CacheMarks) -> bytes | None:
    """Return the body of a Converse request with these marks; None: there is no place for any."""
    members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    changed = False
    if marks.shared:
        changed |= _replace(members, "toolConfig", _with_tools_point)
        changed |= _replace(members, "system", _with_point)
    changed |= _mark_turns(members, marks, _with_point)
    return msgspec.json.encode(members) if changed else None


def add_cache_key(body: bytes, marks: CacheMarks) -> bytes | None:
    """Return the body of a request in OpenAI's dialects with the conversation's key, if any."""
    if not marks.key:
        return None
    members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    members["prompt_cache_key"] = msgspec.Raw(msgspec.json.encode(marks.key))
    return msgspec.json.encode(members)


def _replace(members: _Members, name: str, mark: _Mark) -> bool:
    """Put a mark at the end of a member, if the request has it and it takes one."""
    if name not in members:
        return False
    marked = mark(msgspec.json.decode(members[name]))
    if marked is None:
        return False
    members[name] = msgspec.Raw(msgspec.json.encode(marked))
    return True


def _mark_turns(members: _Members, marks: CacheMarks, mark: _Mark) -> bool:
    """Put marks behind the last message and behind that of the request before."""
    if not (marks.last or marks.previous) or "messages" not in members:
        return False
    turns = msgspec.json.decode(members["messages"], type=list[msgspec.Raw])
    roles = [msgspec.json.decode(turn, type=_Turn).role for turn in turns]
    asked = [number for number, role in enumerate(roles) if role != "assistant"]
    last = asked[-1] if asked else -1
    places = {last} if marks.last else set()
    if marks.previous and "assistant" in roles[: max(last, 0)]:
        answer = max(number for number in range(last) if roles[number] == "assistant")
        places.add(answer - 1)
    changed = False
    for place in places - {-1}:
        turn = msgspec.json.decode(turns[place], type=dict[str, msgspec.Raw])
        if _replace(turn, "content", mark):
            turns[place] = msgspec.Raw(msgspec.json.encode(turn))
            changed = True
    if changed:
        members["messages"] = msgspec.Raw(msgspec.json.encode(turns))
    return changed


# --- Anthropic -------------------------------------------------------------------------------

_UNMARKED = frozenset({"thinking", "redacted_thinking"})
_EPHEMERAL = {"cache_control": {"type": "ephemeral"}}


def _with_marked_block(content: Any) -> Any:
    """Mark the last block that takes a mark: no thinking, and no empty text."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        return None
    for place in range(len(content) - 1, -1, -1):
        block = content[place]
        empty = block.get("type") == "text" and not str(block.get("text", "")).strip()
        if not empty and block.get("type") not in _UNMARKED:
            return [*content[:place], block | _EPHEMERAL, *content[place + 1 :]]
    return None


def _with_marked_tool(tools: Any) -> Any:
    """Mark the last tool. A tool that is loaded later is not part of the prefix."""
    if not tools or tools[-1].get("defer_loading"):
        return None
    return [*tools[:-1], tools[-1] | _EPHEMERAL]


# --- Bedrock ---------------------------------------------------------------------------------

_POINT = {CACHE_POINT: {"type": "default"}}


def _with_point(blocks: Any) -> Any:
    return [*blocks, _POINT] if blocks else None


def _with_tools_point(config: Any) -> Any:
    tools = _with_point(config.get("tools"))
    return None if tools is None else {**config, "tools": tools}
