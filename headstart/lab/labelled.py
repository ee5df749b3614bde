"""Labelled pairs, labelled streams and logs, read from lines of JSON.

A pair is ``{"a", "b", "same_answer"}``, and a line of a stream is ``{"prompt", "class"}``. Both may
have a ``category``. Prompts are texts or lists of messages. The ``query`` of a stream's line is the
question inside a templated prompt. Other fields are ignored.

A line of a log has one of three shapes:

- a record of the sidecar: ``{"at", "id", "scope", "dialect", "request", "response"}``;
- any other ``{"request", "response"}``, whose values may be wrapped as ``{"body": ...}``;
- a conversation that ends with the answer: ``{"messages": [..., {"role": "assistant", ...}]}``.

``at`` is in Unix seconds. Where all lines have it, the log is sorted by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from headstart.errors import HeadstartError
from headstart.policies.key import KeyContext, chat_key, find_question
from headstart.types import CacheKey, ChatRequest, Completion, Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

_CONTEXT = KeyContext(dialect="openai-chat", path=b"/v1/chat/completions", upstream="")


class LabelledDataError(HeadstartError):
    """A line of a file cannot be used; the message names the line and the fix."""


class Pair(Frozen, frozen=True, kw_only=True):
    """Two prompts with their cache keys, and whether one answer is right for both."""

    a: CacheKey
    b: CacheKey
    same_answer: bool
    category: str | None = None


class LabelledPrompt(Frozen, frozen=True, kw_only=True):
    """One prompt of a stream. Prompts of the same class have the same answer."""

    prompt: CacheKey
    label: str
    category: str | None = None


class Pairs(Frozen, frozen=True, kw_only=True):
    """The pairs of a file."""

    rows: tuple[Pair, ...]


class Stream(Frozen, frozen=True, kw_only=True):
    """The prompts of a file with their classes, in the order in which they are asked."""

    rows: tuple[LabelledPrompt, ...]


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
    """Read a file of pairs or of a stream. The first line decides which of the two it is.

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


def _labelled(number: int, raw: bytes) -> LabelledPrompt:
    line = decode_line(number, raw, _StreamLine)
    prompt = _prompt(line.prompt, line.query)
    if line.query is not None and prompt.query != line.query:
        raise LabelledDataError(
            f"line {number}: query must stand in the last user text word for word"
        )
    return LabelledPrompt(prompt=prompt, label=str(line.label), category=line.category)


def _prompt(value: str | list[dict[str, Any]], query: str | None = None) -> CacheKey:
    """Return the cache key of a chat request with these messages and ``query`` as its question."""
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


_encode = msgspec.json.encode


class LoggedExchange(Frozen, frozen=True, kw_only=True):
    """A request body and its response body in a chat dialect, OpenAI's unless it says so."""

    line: int
    request: bytes
    response: bytes
    dialect: str = "openai-chat"
    scope: str = ""
    at: float | None = None


class Recorded(Frozen, frozen=True, kw_only=True):
    """One logged request with its cache key and its answer."""

    prompt: CacheKey
    text: str | None
    """The whole last user text; ``prompt.query`` may be only the question in it."""
    answer: Completion


class _LogLine(msgspec.Struct):
    request: dict[str, Any] | None = None
    response: dict[str, Any] | None = None
    messages: list[dict[str, Any]] | None = None
    model: str | None = None
    dialect: str = "openai-chat"
    scope: str = ""
    at: float | None = None


def is_log(first: dict[str, Any]) -> bool:
    """Return whether a file with this first line is a log, not labelled prompts."""
    return bool(first.keys() & {"request", "messages"})


def is_cut_off(line: bytes) -> bool:
    """Return whether a line is JSON whose end is missing, because its writer was stopped."""
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        return bool(line.strip()) and str(error) == "Input data was truncated"
    return False


def read_log(lines: Iterable[bytes]) -> list[LoggedExchange]:
    """Read a log in time order. Raises LabelledDataError."""
    found = [
        _exchange(number, decode_line(number, line, _LogLine)) for number, line in numbered(lines)
    ]
    if all(exchange.at is not None for exchange in found):
        found.sort(key=lambda exchange: exchange.at or 0.0)
    return found


def _exchange(number: int, line: _LogLine) -> LoggedExchange:
    if line.messages is not None:
        request, response = _split(number, line.messages, line.model or "unknown")
    elif line.request is not None and line.response is not None:
        request, response = _body(line.request), _body(line.response)
        request = {"model": line.model or "unknown", **request}
    else:
        raise LabelledDataError(
            f"line {number}: give request and response (OpenAI chat bodies), or messages that end "
            "with the assistant's answer"
        )
    return LoggedExchange(
        line=number,
        request=_encode(request),
        response=_encode(response),
        dialect=line.dialect,
        scope=line.scope,
        at=line.at,
    )


def _body(document: dict[str, Any]) -> dict[str, Any]:
    body = document.get("body")
    return body if isinstance(body, dict) else document


def _split(
    number: int, messages: list[dict[str, Any]], model: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    if len(messages) < 2 or messages[-1].get("role") != "assistant":
        raise LabelledDataError(f"line {number}: messages must end with the assistant's answer")
    *asked, answer = messages
    choice = {"index": 0, "message": answer, "finish_reason": "stop"}
    return {"model": model, "messages": asked}, {"model": model, "choices": [choice]}
