"""Messages to fewer messages, one after the other and never looking ahead.

What is sent for message k follows from messages 1 to k and the configuration alone. So what was
sent for one request is a prefix of what is sent for the next, the provider's prefix cache keeps
its worth, and any replica makes the same bytes without sharing state.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from headstart.compression.conversation import Conversation, is_shortenable
from headstart.compression.gate import Profile
from headstart.compression.history import results_to_clear
from headstart.compression.marks import CLEARED
from headstart.compression.memo import Memo
from headstart.compression.messages import (
    TOOL_ROLES,
    call_of,
    calls_in,
    only_text,
    read_message,
    texts,
)
from headstart.compression.protection import shows_file
from headstart.compression.result import Compression, Mode, Span
from headstart.compression.transforms import Extent
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headstart.compression.messages import Dumpable

CODE_VERSION = "2"
"""Changes with any byte that any transform writes."""

_DEFAULT = Profile()
_MODES: tuple[Mode, ...] = get_args(Mode)


def compress(
    messages: Sequence[Mapping[str, Any] | Dumpable],
    *,
    model: str | None = None,
    mode: Mode = "safe",
    profile: Profile = _DEFAULT,
    clear_history: bool = False,
    strip_comments: bool = False,
    memo: Memo | None = None,
) -> Compression:
    """Return chat messages (OpenAI's form) that say the same in fewer tokens. Pure.

    Only tool results, and documents that are clearly set apart in a user's message, are ever
    touched; ``docs/compression.md`` lists what is protected. ``off`` changes nothing; ``safe``
    only what ``restore`` undoes byte for byte; ``balanced`` also leaves out repeated passages,
    repeated log lines and HTML markup; ``aggressive`` also what does not bear on the question, in
    English. ``clear_history`` also omits old tool results, in epochs: then alone a later request
    may change what an earlier one sent, where that pays. ``strip_comments`` also takes comments off
    Python that is no file of the caller's, beyond ``safe``. ``model`` names the tokenizer of the
    counts, and ``memo`` saves the time of what was compressed for an earlier request; neither
    changes a byte of the outcome.

    Messages are dicts, or what the openai SDK returns: these become dicts, as it would send them.

    Raises ConfigError for an unknown mode, TypeError for what is no message.
    """
    if mode not in _MODES:
        raise ConfigError(f"compression mode {mode!r} is none of {', '.join(_MODES)}")
    memo = Memo() if memo is None else memo
    source = [read_message(each) for each in messages]
    cleared = _clear(source) if clear_history and mode != "off" else frozenset()
    extent = Extent(mode, comments=strip_comments)
    sent: list[dict[str, Any]] = []
    spans: list[Span] = []
    if cleared or (mode != "off" and any(is_shortenable(each, memo) for each in source)):
        conversation = Conversation(extent, profile, memo, cleared)
        for number, message in enumerate(source):
            shorter, done = conversation.read(number, message)
            sent.append(shorter)
            spans += done
    else:
        sent = [each if isinstance(each, dict) else dict(each) for each in source]
    return Compression(
        messages=sent,
        spans=tuple(spans),
        version=_version(extent, profile, clear_history=clear_history),
        source=source,
        model=model or "",
    )


@lru_cache(maxsize=64)
def _version(extent: Extent, profile: Profile, *, clear_history: bool) -> str:
    configured = msgspec.json.encode(
        [CODE_VERSION, extent, msgspec.structs.asdict(profile), clear_history]
    )
    return hashlib.sha256(configured).hexdigest()[:16]


def _clear(messages: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """Return which tool results are omitted by now; never a file's or a protected one."""
    calls: dict[object, tuple[str, str]] = {}
    clearable = []
    for message in messages:
        calls.update(calls_in(message))
        result = message.get("role") in TOOL_ROLES and not message.get("is_error")
        long = result and len(only_text(message)) > len(CLEARED)
        clearable.append(long and not shows_file(*call_of(message, calls)))
    sizes = [sum(map(len, texts(message))) for message in messages]
    return results_to_clear(sizes, clearable)
