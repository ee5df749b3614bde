"""One conversation, read message by message: what is asked, what was sent, what may change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.compression.documents import Place, find_documents
from headstart.compression.duplicates import Passages
from headstart.compression.gate import is_worth
from headstart.compression.marks import CLEARED, without_marks
from headstart.compression.messages import (
    TOOL_ROLES,
    call_of,
    calls_in,
    indexed_texts,
    is_plain_text,
    with_text,
)
from headstart.compression.protection import shows_file, understand
from headstart.compression.result import Span
from headstart.compression.tokens import CHARS_PER_TOKEN
from headstart.compression.transforms import COST_MS_PER_1K, Extent, Shortened, shorten

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headstart.compression.gate import Profile
    from headstart.compression.memo import Memo
    from headstart.compression.protection import Asked

MIN_CHARS = 200
"""A shorter text is left alone: it could not pay for a mark."""


class Conversation:
    """What the messages so far say about the next one. Lives for one call of ``compress``."""

    def __init__(
        self, extent: Extent, profile: Profile, memo: Memo, cleared: frozenset[int]
    ) -> None:
        self._extent = extent
        self._profile = profile
        self._memo = memo
        self._cleared = cleared
        self._words: list[str] = []
        self._last_role: object = None
        self._calls: dict[object, tuple[str, str]] = {}
        self._passages = Passages(memo)
        self._sent = 0

    def read(self, number: int, message: Mapping[str, Any]) -> tuple[dict[str, Any], list[Span]]:
        """Return the message as it is sent, and what was done to it."""
        places = _touchable(message, self._memo)
        self._hear(message, places)
        if number in self._cleared:
            return self._omit(number, message)
        sent = message if isinstance(message, dict) else dict(message)
        call = call_of(message, self._calls) if places else ("", "")
        if message.get("role") in TOOL_ROLES and places and self._memo.call(shows_file, *call):
            places = {}
        if not places:
            for _, text in indexed_texts(message):
                self._remember(text)
            return sent, []
        asked = msgspec.structs.replace(self._understand(), call=call[1])
        spans: list[Span] = []
        for part, text in indexed_texts(message):
            new, done = self._shorten(text, places.get(part, []), asked)
            if done:
                sent = with_text(sent, part, new)
                spans += [msgspec.structs.replace(span, message=number, part=part) for span in done]
        return sent, spans

    def _omit(self, number: int, message: Mapping[str, Any]) -> tuple[dict[str, Any], list[Span]]:
        ((part, text),) = indexed_texts(message)
        span = Span(
            start=0,
            end=len(CLEARED),
            source_start=0,
            source_end=len(text),
            transforms=("history",),
            message=number,
            part=part,
        )
        return with_text(message, part, self._remember(CLEARED)), [span]

    def _hear(self, message: Mapping[str, Any], places: Mapping[int | None, list[Place]]) -> None:
        """Learn the calls that were made, and what the user asks: all words outside documents."""
        role = message.get("role")
        if role == "user":
            own = [_outside(text, places.get(part, [])) for part, text in indexed_texts(message)]
            self._words = [*(self._words if self._last_role == "user" else ()), *own]
        for id, call in calls_in(message):
            self._calls[id] = call
            self._sent += len(call[1])
        self._last_role = role

    def _understand(self) -> Asked:
        """Return what the user asks by now."""
        return self._memo.call(understand, without_marks("\n".join(self._words)))

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
            short = self._weigh(source, self._try(source, asked))
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

    def _try(self, source: str, asked: Asked) -> Shortened:
        if len(source) < MIN_CHARS:
            return Shortened(text=source)
        return shorten(source, asked, self._extent, self._passages, self._memo)

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
        if self._extent.mode in {"balanced", "aggressive"}:
            self._passages.add(text)
        return text


def is_shortenable(message: Mapping[str, Any], memo: Memo) -> bool:
    """May anything of the message be shortened? Most conversations hold no such message."""
    for _, text in indexed_texts(message):
        if len(text) >= MIN_CHARS:
            break
    else:
        return False
    places = _touchable(message, memo).values()
    return any(place.end - place.start >= MIN_CHARS for part in places for place in part)


def _touchable(message: Mapping[str, Any], memo: Memo) -> dict[int | None, list[Place]]:
    """Return where each text may be shortened: tool results, and documents beside a question."""
    role = message.get("role")
    if (role not in TOOL_ROLES and role != "user") or message.get("is_error"):
        return {}
    places = {}
    for part, text in indexed_texts(message):
        if not is_plain_text(message, part):
            continue
        whole = [Place(start=0, end=len(text))]
        if found := memo.call(find_documents, text) if role == "user" else whole:
            places[part] = found
    return places


def _outside(text: str, places: Sequence[Place]) -> str:
    kept = []
    at = 0
    for place in places:
        kept.append(text[at : place.start])
        at = place.end
    return "\n".join([*kept, text[at:]])
