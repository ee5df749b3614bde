"""Messages to fewer messages, one after the other and never looking ahead.

What is sent for message k follows from messages 1 to k and the configuration alone. So what was
sent for one request is a prefix of what is sent for the next, the provider's prefix cache keeps
its worth, and any replica makes the same bytes without sharing state.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from headstart.compression.documents import Place, find_documents
from headstart.compression.duplicates import Passages
from headstart.compression.gate import Profile, is_worth
from headstart.compression.memo import Memo
from headstart.compression.protection import Asked, shows_file, understand
from headstart.compression.result import Compression, Mode, Span, with_text
from headstart.compression.tokens import CHARS_PER_TOKEN
from headstart.compression.transforms import COST_MS_PER_1K, Shortened, shorten
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

CODE_VERSION = "1"
"""Changes with any byte that any transform writes."""

MIN_CHARS = 200
"""A shorter text is left alone: it could not pay for a mark."""

_TOOL_ROLES = frozenset(("tool", "function"))
_DEFAULT = Profile()


def compress(
    messages: Sequence[Mapping[str, Any]],
    *,
    model: str | None = None,
    mode: Mode = "safe",
    profile: Profile = _DEFAULT,
    memo: Memo | None = None,
) -> Compression:
    """Return chat messages (OpenAI's form) that say the same in fewer tokens. Pure.

    Only tool results, and documents that are clearly set apart in a user's message, are ever
    touched; ``docs/compression.md`` lists what is protected. ``off`` changes nothing; ``safe``
    only what ``restore`` undoes byte for byte; ``balanced`` also leaves out repeated passages,
    repeated log lines and HTML markup; ``aggressive`` also what does not bear on the question, in
    English. ``model`` names the tokenizer of the counts, and ``memo`` saves the time of what was
    compressed for an earlier request; neither changes a byte of the outcome.

    Raises ConfigError for an unknown mode.
    """
    if mode not in get_args(Mode):
        raise ConfigError(f"compression mode {mode!r} is none of {', '.join(get_args(Mode))}")
    conversation = _Conversation(mode, profile, Memo() if memo is None else memo)
    sent: list[dict[str, Any]] = []
    spans: list[Span] = []
    for number, message in enumerate(messages):
        shorter, done = conversation.read(number, message)
        sent.append(shorter)
        spans += done
    return Compression(
        messages=sent,
        spans=tuple(spans),
        version=_version(mode, profile),
        source=messages,
        model=model or "",
    )


def _version(mode: Mode, profile: Profile) -> str:
    configured = msgspec.json.encode([CODE_VERSION, mode, msgspec.to_builtins(profile)])
    return hashlib.sha256(configured).hexdigest()[:16]


class _Conversation:
    """What the messages so far say about the next one. Lives for one call of ``compress``."""

    def __init__(self, mode: Mode, profile: Profile, memo: Memo) -> None:
        self._mode = mode
        self._profile = profile
        self._memo = memo
        self._words: list[str] = []
        self._asked = Asked()
        self._last_role: object = None
        self._calls: dict[object, tuple[str, str]] = {}
        self._passages = Passages(memo)
        self._sent = 0

    def read(self, number: int, message: Mapping[str, Any]) -> tuple[dict[str, Any], list[Span]]:
        """Return the message as it is sent, and what was done to it."""
        places = {} if self._mode == "off" else _touchable(message)
        self._hear(message, places)
        call = self._calls.get(message.get("tool_call_id"), (str(message.get("name") or ""), ""))
        if message.get("role") in _TOOL_ROLES and shows_file(*call):
            places = {}
        asked = msgspec.structs.replace(self._asked, call=call[1])
        sent = message if isinstance(message, dict) else dict(message)
        spans: list[Span] = []
        for part, text in _texts(message):
            new, done = self._shorten(text, places.get(part, []), asked)
            if done:
                sent = with_text(sent, part, new)
                spans += [msgspec.structs.replace(span, message=number, part=part) for span in done]
        return sent, spans

    def _hear(self, message: Mapping[str, Any], places: Mapping[int | None, list[Place]]) -> None:
        """Learn the calls that were made, and what the user asks: all words outside documents."""
        role = message.get("role")
        if role == "user":
            own = [_outside(text, places.get(part, [])) for part, text in _texts(message)]
            self._words = [*(self._words if self._last_role == "user" else ()), *own]
            self._asked = understand("\n".join(self._words).strip())
        for call in message.get("tool_calls") or ():
            match call:
                case {"id": str(id), "function": {"name": str(name), "arguments": str(arguments)}}:
                    self._calls[id] = (name, arguments)
                    self._sent += len(arguments)
        self._last_role = role

    def _shorten(
        self, text: str, places: Sequence[Place], asked: Asked
    ) -> tuple[str, Sequence[Span]]:
        """Shorten a text in these places. What is sent of it becomes part of what stands above."""
        out: list[str] = []
        spans: list[Span] = []
        at = length = 0
        for place in places:
            out.append(self._remember(text[at : place.start]))
            source = text[place.start : place.end]
            short = shorten(source, asked, self._mode, self._passages, self._memo)
            short = self._weigh(source, short)
            out.append(self._remember(short.text))
            length += place.start - at
            if short.applied:
                span = Span(
                    start=length,
                    end=length + len(short.text),
                    source_start=place.start,
                    source_end=place.end,
                    transforms=short.applied,
                    layout=short.layout,
                )
                spans.append(span)
            length += len(short.text)
            at = place.end
        out.append(self._remember(text[at:]))
        return "".join(out), spans

    def _weigh(self, source: str, short: Shortened) -> Shortened:
        cost_ms = sum(COST_MS_PER_1K[transform] for transform in short.applied)
        worth = is_worth(
            before=len(source),
            after=len(short.text),
            sent=self._sent,
            cost_ms=cost_ms * len(source) / CHARS_PER_TOKEN / 1000,
            profile=self._profile,
        )
        return short if worth else Shortened(text=source)

    def _remember(self, text: str) -> str:
        self._sent += len(text)
        if self._mode in {"balanced", "aggressive"}:
            self._passages.add(text)
        return text


def _touchable(message: Mapping[str, Any]) -> dict[int | None, list[Place]]:
    """Return where each text may be shortened: tool results, and documents beside a question."""
    role = message.get("role")
    if (role not in _TOOL_ROLES and role != "user") or "cache_control" in message:
        return {}
    places = {}
    for part, text in _texts(message):
        content = message["content"]
        if part is not None and set(content[part]) != {"type", "text"}:
            continue
        found = find_documents(text) if role == "user" else [Place(start=0, end=len(text))]
        places[part] = [place for place in found if place.end - place.start >= MIN_CHARS]
    return places


def _texts(message: Mapping[str, Any]) -> Iterator[tuple[int | None, str]]:
    """Yield each text of a message with its part's index, None for a content of one text."""
    content = message.get("content")
    if isinstance(content, str):
        yield None, content
    elif isinstance(content, list):
        for index, part in enumerate(content):
            match part:
                case {"type": "text", "text": str(text)}:
                    yield index, text


def _outside(text: str, places: Sequence[Place]) -> str:
    kept = []
    at = 0
    for place in places:
        kept.append(text[at : place.start])
        at = place.end
    return "\n".join([*kept, text[at:]])
