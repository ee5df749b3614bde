"""Logs of requests and their answers, one JSON object a line. Three shapes are read:

- the sidecar's own record: ``{"at", "id", "scope", "dialect", "request", "response"}``;
- any other ``{"request", "response"}``; either may be wrapped as ``{"body": ...}``, as in batches;
- conversations that end with the answer: ``{"messages": [..., {"role": "assistant", ...}]}``.

``at`` is Unix seconds: lines that all have it are put in its order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.lab.labelled import LabelledDataError, decode_line, numbered
from headstart.types import CacheKey, Completion, Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

_encode = msgspec.json.encode


class Exchange(Frozen, frozen=True, kw_only=True):
    """A request body and its response body in a chat dialect, OpenAI's unless it says so."""

    line: int
    request: bytes
    response: bytes
    dialect: str = "openai-chat"
    scope: str = ""
    at: float | None = None


class Recorded(Frozen, frozen=True, kw_only=True):
    """One logged request as the cache sees it, and its answer."""

    prompt: CacheKey
    text: str | None
    """The last user text, whole: ``prompt.query`` may be but the question in it."""
    answer: Completion


class _Line(msgspec.Struct):
    request: dict[str, Any] | None = None
    response: dict[str, Any] | None = None
    messages: list[dict[str, Any]] | None = None
    model: str | None = None
    dialect: str = "openai-chat"
    scope: str = ""
    at: float | None = None


def is_log(first: dict[str, Any]) -> bool:
    """Tell a log from labelled prompts by its first line."""
    return bool(first.keys() & {"request", "messages"})


def is_cut_off(line: bytes) -> bool:
    """Tell a line whose writer was stopped in its midst from one that never was JSON."""
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        return bool(line.strip()) and str(error) == "Input data was truncated"
    return False


def read_log(lines: Iterable[bytes]) -> list[Exchange]:
    """Read a log in time order. Raises LabelledDataError."""
    found = [
        _exchange(number, decode_line(number, line, _Line)) for number, line in numbered(lines)
    ]
    times = [exchange.at for exchange in found if exchange.at is not None]
    if len(times) == len(found):
        found = [exchange for _, exchange in sorted(zip(times, found, strict=True), key=_time)]
    return found


def _time(timed: tuple[float, Exchange]) -> float:
    return timed[0]


def _exchange(number: int, line: _Line) -> Exchange:
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
    return Exchange(
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
