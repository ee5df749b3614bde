"""Answers as the events and bytes that carry them, for tests of dialects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headstart.middleware.reading import SSEDecoder
from headstart.transcript import Transcript
from headstart.types import Choice, Completion, Reasoning, Text, TextDelta, ToolCall, ToolCallDelta

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headstart.dialects.dialect import Dialect
    from headstart.types import StreamEvent


def encoded(
    dialect: Dialect, events: Iterable[StreamEvent], *, include_usage: bool = True
) -> bytes:
    """Write events one by one, as a stream brings them."""
    encoder = dialect.encoder("id-1", 7, include_usage=include_usage)
    return b"".join(encoder.feed((event,)) for event in events)


def decoded(dialect: Dialect, stream: bytes) -> list[StreamEvent]:
    """Read a stream."""
    decoder = dialect.decoder()
    return [event for frame in SSEDecoder().feed(stream) for event in decoder.feed(frame)]


def folded(events: Sequence[StreamEvent]) -> Completion:
    """Fold events to the answer that they tell."""
    transcript = Transcript()
    transcript.feed(events)
    completion = transcript.completion(now=0)
    assert completion is not None
    return completion


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
    """Return what every dialect can carry of a choice: texts and tool calls, in order."""
    told: list[tuple[str, ...]] = []
    for part in choice.parts:
        if isinstance(part, Text):
            told.append(("text", part.text))
        elif isinstance(part, ToolCall):
            told.append(("call", part.id, part.name, part.arguments))
        elif isinstance(part, Reasoning):
            told.append(("reasoning", part.text))
    return told
