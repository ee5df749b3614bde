"""The common parts of answers: JSON, stored answers, translation between dialects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.dialects.requests import mark
from headstart.types import (
    ErrorReported,
    ExtraDelta,
    LogprobsDelta,
    ReasoningDelta,
    Started,
    ToolCallDelta,
    UsageReported,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.dialects.dialect import Dialect, UpstreamDialect
    from headstart.types import Headers, StreamEvent

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors of decoding bytes that are no JSON."""
MOST_TOKENS = 1_000_000_000
"""More than any model reads or writes at once: a larger number is no count of tokens."""


_decode = msgspec.json.Decoder().decode


class MalformedAnswerError(Exception):
    """The answer has a shape that its API does not send."""


def decode_document(body: bytes) -> Any:
    """Return what a whole answer decodes to, None if it is no JSON."""
    try:
        return msgspec.json.decode(body)
    except UNDECODABLE:
        return None


def decode_first(body: bytes) -> Any:
    """Return what an answer decodes to, of a list the first: so Google sends errors of streams."""
    document = decode_document(body)
    return document[0] if isinstance(document, list) and document else document


def decode_event(data: bytes) -> dict[str, Any]:
    """Return the object of an event of a stream. Raises MalformedAnswerError."""
    try:
        event = _decode(data)
    except UNDECODABLE:
        raise MalformedAnswerError("an event of the stream is not JSON") from None
    if type(event) is not dict:
        raise MalformedAnswerError("an event of the stream is not an object")
    return event


def as_object(value: Any, what: str) -> dict[str, Any]:
    """Return an object. Raises MalformedAnswerError that says ``what`` is none."""
    if not isinstance(value, dict):
        raise MalformedAnswerError(f"{what} is not an object")
    return value


def as_text(value: Any) -> str | None:
    """Return a text, None for an empty one and for anything else."""
    return value if value and isinstance(value, str) else None


def as_count(value: Any) -> int:
    """Return a number of tokens, 0 for whatever cannot be one.

    Budgets, books and the store rely on its bound. Some APIs write whole numbers as floats.
    """
    if not value:  # most counts of an answer are left out
        return 0
    return int(value) if type(value) in (int, float) and 0 < value <= MOST_TOKENS else 0


def unreadable(message: str) -> ErrorReported:
    """Return what is reported of an answer that cannot be read."""
    return ErrorReported(message=message, code="upstream_protocol_error")


CHUNK_CHARACTERS = 200
"""Clients spend about 0.3 ms on a chunk: one a token, as providers send them, wastes that."""


def split_text(text: str) -> list[str]:
    """Return the text in pieces of ``CHUNK_CHARACTERS``, the last shorter; none for no text."""
    starts = range(0, len(text), CHUNK_CHARACTERS)
    return [text[start : start + CHUNK_CHARACTERS] for start in starts]


_CAPACITY = frozenset({498, 529})
"""Statuses of providers that have no capacity: Groq's and Anthropic's own."""
_OF_THE_BODY = frozenset(
    {
        b"content-type",
        b"content-length",
        b"content-encoding",
        b"content-md5",
        b"digest",
        b"etag",
        b"set-cookie",
    }
)


def translate_events(
    events: Sequence[StreamEvent],
    source: UpstreamDialect,
    target: Dialect,
    *,
    shows_reasoning: bool = True,
) -> tuple[StreamEvent, ...]:
    """Return what ``events`` of one dialect say in another's canonical form.

    Usage becomes the target's, and so does the name under which reasoning comes if the client
    asked to see it. Signatures and all that only one provider knows are left out; ids and the
    native finish reason stay.
    """
    if source.name == target.name:
        return tuple(events)
    return tuple(
        translated
        for event in events
        if (translated := _translate(event, source, target, shows_reasoning)) is not None
    )


def _translate(
    event: StreamEvent,
    source: UpstreamDialect,
    target: Dialect,
    shows_reasoning: bool,  # noqa: FBT001
) -> StreamEvent | None:
    translated: StreamEvent | None = event
    match event:
        case UsageReported(usage=usage):
            translated = UsageReported(usage=target.usage(source.tokens(usage)))
        case Started(id=id, model=model, created=created):
            translated = Started(id=id, model=model, created=created)
        case ReasoningDelta():
            translated = _translate_reasoning(event, target) if shows_reasoning else _hidden(event)
        case ToolCallDelta(extra=extra) if extra:
            translated = msgspec.structs.replace(event, extra={})
        case ErrorReported(status=int(status)):
            translated = msgspec.structs.replace(event, status=translate_status(status, target))
        case LogprobsDelta(value=value, choice=choice):
            translated = _translate_logprobs(value, choice, source, target)
        case ExtraDelta():
            translated = None
    return translated


def _translate_logprobs(
    value: dict[str, Any], choice: int, source: UpstreamDialect, target: Dialect
) -> LogprobsDelta | None:
    if source.logprobs is None or target.logprobs is None:
        return None
    return LogprobsDelta(value=target.logprobs.write(source.logprobs.read(value)), choice=choice)


def _translate_reasoning(event: ReasoningDelta, target: Dialect) -> ReasoningDelta:
    return ReasoningDelta(
        text=event.text,
        choice=event.choice,
        field=target.reasoning_field,
        signature=mark(event.field) if target.marks_reasoning else None,
        block=event.block,
    )


def _hidden(event: ReasoningDelta) -> ReasoningDelta:
    """Return reasoning under a name under which only OpenAI's clients look for it."""
    return ReasoningDelta(text=event.text, choice=event.choice, block=event.block)


def translate_status(status: int, target: Dialect) -> int:
    """Return an error's status as the target's clients know it."""
    return 503 if status in _CAPACITY and status not in target.own_statuses else status


def translate_headers(
    headers: Headers, source: UpstreamDialect, target: Dialect, *, content_type: bytes
) -> Headers:
    """Return an answer's headers for a body in another dialect.

    The provider's request id goes under the name that the target's clients read.
    """
    kept = [(name, value) for name, value in headers if name not in _OF_THE_BODY]
    names = {name for name, _ in kept}
    if target.request_id_header not in names:
        ids = [value for name, value in kept if name == source.request_id_header]
        kept += [(target.request_id_header, value) for value in ids[:1]]
    return (*kept, (b"content-type", content_type))
