"""Labelled prompts to judge a match policy by: pairs, or a stream with classes.

One JSON object a line. A pair is ``{"a", "b", "same_answer"}``; a stream line is
``{"prompt", "class"}``; both may have a ``category``. Prompts are texts or message lists. A stream
line's ``query`` names the question inside a templated prompt. Other fields are ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from headstart.errors import HeadstartError
from headstart.policies.key import KeyContext, chat_key
from headstart.policies.questions import find_question
from headstart.types import CacheKey, ChatRequest, Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

_CONTEXT = KeyContext(dialect="openai-chat", path=b"/v1/chat/completions", upstream="")


class LabelledDataError(HeadstartError):
    """A line of a file cannot be used; the message names the line and the fix."""


class Pair(Frozen, frozen=True, kw_only=True):
    """Two prompts, as the cache keys them, and whether one answer serves both."""

    a: CacheKey
    b: CacheKey
    same_answer: bool
    category: str | None = None


class Labelled(Frozen, frozen=True, kw_only=True):
    """One prompt of a stream. Prompts of one class have one answer."""

    prompt: CacheKey
    label: str
    category: str | None = None


class Pairs(Frozen, frozen=True, kw_only=True):
    """A file of pairs."""

    rows: tuple[Pair, ...]


class Stream(Frozen, frozen=True, kw_only=True):
    """A file of prompts with classes, in the order in which they are asked."""

    rows: tuple[Labelled, ...]


class _PairLine(msgspec.Struct):
    a: str | list[dict[str, Any]]
    b: str | list[dict[str, Any]]
    same_answer: bool
    category: str | None = None


class _StreamLine(msgspec.Struct):
    prompt: str | list[dict[str, Any]]
    label: str | int = msgspec.field(name="class")
    query: str | None = None
    category: str | None = None


def read_labelled(lines: Iterable[bytes]) -> Pairs | Stream:
    """Read a file of pairs or of a stream; its first line says which.

    Raises LabelledDataError.
    """
    rows = numbered(lines)
    fields = decode_line(*rows[0], dict[str, Any])
    if "prompt" in fields:
        return Stream(rows=tuple(_labelled(number, line) for number, line in rows))
    if "a" in fields:
        return Pairs(rows=tuple(_pair(decode_line(*row, _PairLine)) for row in rows))
    raise LabelledDataError(
        f"line {rows[0][0]}: found {sorted(fields)}; a pair needs a, b and same_answer, "
        "a stream line needs prompt and class"
    )


def numbered(lines: Iterable[bytes]) -> list[tuple[int, bytes]]:
    """Return the lines that are not blank, with their numbers. Raises LabelledDataError."""
    rows = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise LabelledDataError("the file is empty: give one JSON object a line")
    return rows


def decode_line(number: int, line: bytes, kind: type[T]) -> T:
    """Decode one line. Raises LabelledDataError."""
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LabelledDataError(f"line {number}: {error}") from error


def _pair(line: _PairLine) -> Pair:
    return Pair(
        a=_prompt(line.a), b=_prompt(line.b), same_answer=line.same_answer, category=line.category
    )


def _labelled(number: int, raw: bytes) -> Labelled:
    line = decode_line(number, raw, _StreamLine)
    prompt = _prompt(line.prompt, line.query)
    if line.query is not None and prompt.query != line.query:
        raise LabelledDataError(
            f"line {number}: query must stand in the last user text word for word"
        )
    return Labelled(prompt=prompt, label=str(line.label), category=line.category)


def _prompt(value: str | list[dict[str, Any]], query: str | None = None) -> CacheKey:
    """Return the key of a chat request that asks this, with ``query`` as its named question."""
    messages = [{"role": "user", "content": value}] if isinstance(value, str) else value
    text = _last_text(messages)
    question = find_question(text or "", names=() if query is None else (query,))
    request = ChatRequest(model="", stream=False, document={"messages": messages}, query=text)
    return chat_key(request, scope="", context=_CONTEXT, question=question)


def _last_text(messages: list[dict[str, Any]]) -> str | None:
    match messages:
        case [*_, {"role": "user", "content": str(text)}]:
            return text
        case _:
            return None
