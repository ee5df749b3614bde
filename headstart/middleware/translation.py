"""What an answer in one dialect means in another: events, statuses and headers. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from headstart.middleware.dialects import anthropic_events, gemini_events, gemini_logprobs
from headstart.middleware.dialects.anthropic_messages import AnthropicMessages
from headstart.middleware.dialects.anthropic_thinking import mark
from headstart.middleware.dialects.gemini_errors import retry_delay_s
from headstart.middleware.dialects.gemini_generate import GeminiGenerate
from headstart.middleware.dialects.openai_chat import OpenAIChat
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

    from headstart.middleware.dialects.dialect import Dialect, UpstreamDialect
    from headstart.types import Headers, StreamEvent

_REASONING = {
    AnthropicMessages.name: anthropic_events.THINKING,
    GeminiGenerate.name: gemini_events.THOUGHT,
}
"""Under which name clients look for reasoning, where it is not OpenAI's."""
_LOGPROBS = {
    (GeminiGenerate.name, OpenAIChat.name): gemini_logprobs.from_gemini,
    (OpenAIChat.name, GeminiGenerate.name): gemini_logprobs.from_openai,
}
"""By the provider's dialect and the client's; no others can tell them."""
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
            convert = _LOGPROBS.get((source.name, target.name))
            translated = convert and LogprobsDelta(value=convert(value), choice=choice)
        case ExtraDelta():
            translated = None
    return translated


def _translate_reasoning(event: ReasoningDelta, target: Dialect) -> ReasoningDelta:
    signs = target.name == AnthropicMessages.name
    return ReasoningDelta(
        text=event.text,
        choice=event.choice,
        field=_REASONING.get(target.name, "reasoning_content"),
        signature=mark(event.field) if signs else None,
        block=event.block,
    )


def _hidden(event: ReasoningDelta) -> ReasoningDelta:
    """Return reasoning under a name under which only OpenAI's clients look for it."""
    return ReasoningDelta(text=event.text, choice=event.choice, block=event.block)


def translate_status(status: int, target: Dialect) -> int:
    """Return an error's status as the target's clients know it."""
    if status in _CAPACITY and not (status == 529 and target.name == AnthropicMessages.name):
        return 503
    return status


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


def with_retry_after(headers: Headers, body: bytes) -> Headers:
    """Return an error's headers with the wait that Gemini names in its body alone."""
    if any(name == b"retry-after" for name, _ in headers):
        return headers
    try:
        delay_s = retry_delay_s(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return headers
    if delay_s is None:
        return headers
    return (*headers, (b"retry-after", b"%d" % math.ceil(delay_s)))
