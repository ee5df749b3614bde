"""Gemini's answers, as the API streams them."""

from __future__ import annotations

import json
from typing import Any

from headstart.dialects.gemini_generate import GEMINI_GENERATE
from headstart.middleware.reading import SSEDecoder
from headstart.reply import Transcript
from headstart.types import Completion, Ended, StreamEvent

DIALECT = GEMINI_GENERATE
assert DIALECT.operations is not None
OPERATIONS = DIALECT.operations
USAGE = {"promptTokenCount": 7, "candidatesTokenCount": 3, "totalTokenCount": 10}


def chunk(*parts: dict[str, Any], finish: str | None = None, **beside: Any) -> bytes:
    """Return one event of a stream, CRLF and all."""
    ending = {} if finish is None else {"finishReason": finish}
    candidate = {"content": {"parts": parts, "role": "model"}, **ending, "index": 0}
    return event(candidates=[candidate], **beside)


def event(**fields: Any) -> bytes:
    named = {"modelVersion": "gemini-2.5-flash", "responseId": "r1"}
    document = {**fields, "usageMetadata": USAGE, **named}
    return b"data: %b\r\n\r\n" % json.dumps(document).encode()


def events_in(raw: bytes) -> list[StreamEvent]:
    frames, decoder = SSEDecoder(), DIALECT.decoder()
    events = [each for frame in frames.feed(raw) for each in decoder.feed(frame)]
    assert frames.rest() == b""
    return events


def collected(events: list[StreamEvent] | tuple[StreamEvent, ...]) -> Completion:
    """Return the answer that the events of a complete stream make up."""
    transcript = Transcript()
    transcript.feed(events)
    assert transcript.finished
    transcript.feed((Ended(),))
    completion = transcript.completion(now=0)
    assert completion is not None
    return completion
