"""Turns answers into events and bytes, and back, for tests of dialects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headstart.middleware.reading import SSEDecoder
from headstart.reply import Transcript
from headstart.types import (
    Choice,
    Completion,
    Ended,
    ExtraDelta,
    Finished,
    LogprobsDelta,
    Reasoning,
    ReasoningDelta,
    Refusal,
    RefusalDelta,
    Started,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    UsageReported,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headstart.dialects.dialect import Dialect
    from headstart.types import Piece, StreamEvent


def encoded(
    dialect: Dialect, events: Iterable[StreamEvent], *, include_usage: bool = True
) -> bytes:
    """Return the bytes of events that are written one by one, as in a stream."""
    encoder = dialect.encoder("id-1", 7, include_usage=include_usage)
    return b"".join(encoder.feed((event,)) for event in events)


def decoded(dialect: Dialect, stream: bytes) -> list[StreamEvent]:
    """Read a stream."""
    decoder = dialect.decoder()
    return [event for frame in SSEDecoder().feed(stream) for event in decoder.feed(frame)]


def folded(events: Iterable[StreamEvent], now: float = 0.0) -> Completion:
    """Return the answer that the events make up."""
    transcript = Transcript()
    transcript.feed(tuple(events))
    completion = transcript.completion(now)
    assert completion is not None
    return completion


def streamed(dialect: Dialect, pieces: Iterable[Piece]) -> Completion:
    """Return the answer that a client reads from a stream, which must be complete."""
    events = decoded(dialect, b"".join(piece.data for piece in pieces))
    return folded((*events, Ended()) if dialect.ends_at_finish else events)


def crumbled(events: Iterable[StreamEvent]) -> list[StreamEvent]:
    """Cut texts and arguments into small deltas, as providers send them."""
    pieces: list[StreamEvent] = []
    for event in events:
        if isinstance(event, TextDelta):
            texts = [event.text[at : at + 7] for at in range(0, len(event.text), 7)] or [""]
            pieces += [msgspec.structs.replace(event, text=text) for text in texts]
        elif isinstance(event, ToolCallDelta):
            pieces.append(msgspec.structs.replace(event, arguments=""))
            pieces += [
                ToolCallDelta(
                    index=event.index,
                    choice=event.choice,
                    kind=event.kind,
                    arguments=event.arguments[at : at + 7],
                )
                for at in range(0, len(event.arguments), 7)
            ]
        else:
            pieces.append(event)
    return pieces


def said(choice: Choice) -> list[tuple[str, ...]]:
    """Return the parts of a choice that every dialect has: texts, tool calls and reasoning."""
    told: list[tuple[str, ...]] = []
    for part in choice.parts:
        if isinstance(part, Text):
            told.append(("text", part.text))
        elif isinstance(part, ToolCall):
            told.append(("call", part.id, part.name, part.arguments))
        elif isinstance(part, Reasoning):
            told.append(("reasoning", part.text))
    return told


def events_of(completion: Completion) -> tuple[StreamEvent, ...]:
    """Return events from which a Transcript makes ``completion`` again."""
    return tuple(_unfold(completion))


def _unfold(completion: Completion) -> Iterator[StreamEvent]:
    yield Started(
        model=completion.model,
        created=completion.created,
        fingerprint=completion.fingerprint,
        tier=completion.tier,
    )
    for choice in completion.choices:
        yield from _unfold_choice(choice)
    if completion.extra:
        yield ExtraDelta(fields=completion.extra, choice=None)
    if completion.usage is not None:
        yield UsageReported(usage=completion.usage, beside=completion.usage_beside)
    yield Ended()


def _unfold_choice(choice: Choice) -> Iterator[StreamEvent]:
    index = choice.index
    calls = 0
    for block, part in enumerate(choice.parts):
        match part:
            case Text(text=text):
                yield TextDelta(text=text, choice=index, block=block)
            case Reasoning(text=text, field=field, signature=signature):
                yield ReasoningDelta(
                    text=text, choice=index, field=field, signature=signature, block=block
                )
            case Refusal(text=text):
                yield RefusalDelta(text=text, choice=index)
            case ToolCall(id=id, name=name, arguments=arguments, kind=kind, extra=extra):
                yield ToolCallDelta(
                    index=calls,
                    choice=index,
                    id=id or None,
                    name=name or None,
                    arguments=arguments,
                    kind=kind,
                    extra=extra,
                )
                calls += 1
    if choice.logprobs is not None:
        yield LogprobsDelta(value=choice.logprobs, choice=index)
    if choice.extra:
        yield ExtraDelta(fields=choice.extra, choice=index)
    if choice.beside:
        yield ExtraDelta(fields=choice.beside, choice=index, beside=True)
    yield Finished(reason=choice.finish, choice=index, native=choice.native_finish)
