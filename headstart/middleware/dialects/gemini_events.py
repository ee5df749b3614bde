"""Gemini's generateContent: reading answers.

A candidate is a list of parts. Text, thoughts and function calls become parts of the canonical
answer. Every other part, and what a text part holds beside its text, is kept under
``CONTENT_BLOCKS`` by its place, as it came. A stream's chunks go on with the last part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.middleware.dialects.answer_json import (
    UNDECODABLE,
    MalformedAnswerError,
    as_object,
    as_text,
    decode_document,
    unreadable,
)
from headstart.middleware.dialects.gemini_calls import PartialCall, mint_id
from headstart.middleware.dialects.gemini_errors import read_error
from headstart.types import (
    CONTENT_BLOCKS,
    Ended,
    ErrorReported,
    ExtraDelta,
    Finished,
    LogprobsDelta,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)

if TYPE_CHECKING:
    from headstart.middleware.sse import Frame
    from headstart.types import StreamEvent

THOUGHT = "thought"
"""Name under which the reasoning comes."""
SIGNATURE = "thoughtSignature"
PART = "part"
"""Field of an object under ``CONTENT_BLOCKS``: a part that is none of the canonical ones."""

FINISHES = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    **dict.fromkeys(
        (
            "SAFETY",
            "RECITATION",
            "LANGUAGE",
            "BLOCKLIST",
            "PROHIBITED_CONTENT",
            "SPII",
            "MODEL_ARMOR",
            "IMAGE_SAFETY",
            "IMAGE_PROHIBITED_CONTENT",
            "IMAGE_RECITATION",
        ),
        "content_filter",
    ),
}
"""Canonical names of the finish reasons. Every other one is a failure: ``error``."""

_CANDIDATE = frozenset({"content", "finishReason", "index", "logprobsResult"})
_CHUNK = frozenset({"candidates", "usageMetadata", "modelVersion", "responseId", "error"})
_CALL = frozenset({"id", "name", "args", "partialArgs", "willContinue"})
_ENDED = (Ended(),)


class _Candidate:
    """What is known of one candidate while its parts arrive."""

    __slots__ = ("calls", "open", "parts", "pending")

    def __init__(self) -> None:
        self.parts = 0
        self.calls = 0
        self.open = ""
        """Kind of the last part, if the next chunk may go on with it."""
        self.pending: PartialCall | None = None

    def begin(self, kind: str = "") -> int:
        """Begin a part and return its place."""
        self.parts += 1
        self.open = kind
        return self.parts - 1


class GenerateDecoder:
    """EventDecoder of ``streamGenerateContent?alt=sse``.

    A stream has no terminal event: it is whole when every candidate has its finish reason.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self._decode = msgspec.json.Decoder().decode
        self._whole = whole
        self._named: tuple[Any, Any] = (None, None)
        self._candidates: dict[int, _Candidate] = {}

    def feed(self, frame: Frame) -> tuple[StreamEvent, ...]:
        """Return what the frame says; nothing for comments and blank lines."""
        if not frame.data:
            return ()
        try:
            chunk = self._decode(frame.data)
        except UNDECODABLE:
            return (unreadable("an event of the stream is not JSON"),)
        if not isinstance(chunk, dict):
            return (unreadable("an event of the stream is not an object"),)
        return self.read(chunk)

    def read(self, chunk: dict[str, Any]) -> tuple[StreamEvent, ...]:
        """Return what a decoded chunk, or a whole answer, says."""
        if chunk.get("error"):
            return (read_error(chunk, None),)
        events: list[StreamEvent] = []
        named = (as_text(chunk.get("responseId")), as_text(chunk.get("modelVersion")))
        if named != self._named:
            self._named = named
            events.append(Started(id=named[0], model=named[1]))
        try:
            for position, candidate in enumerate(_list(chunk.get("candidates"))):
                events += self._read_candidate(as_object(candidate, "a candidate"), position)
            events += self._blocked(chunk.get("promptFeedback"))
        except MalformedAnswerError as error:
            return (unreadable(str(error)),)
        events += _unknown(chunk, _CHUNK, None)
        usage = chunk.get("usageMetadata")
        if isinstance(usage, dict):
            # Each chunk's counts are those of the whole answer so far.
            events.append(UsageReported(usage=usage))
        return tuple(events)

    def _read_candidate(self, candidate: dict[str, Any], position: int) -> list[StreamEvent]:
        index = candidate.get("index", position)
        if type(index) is not int:
            raise MalformedAnswerError("a candidate's index is not a number")
        events: list[StreamEvent] = []
        known = self._candidates.get(index)
        if known is None:
            known = self._candidates[index] = _Candidate()
            events.append(TextDelta(text="", choice=index))
        content = as_object(candidate.get("content") or {}, "a candidate's content")
        for part in _list(content.get("parts")):
            events += self._read_part(as_object(part, "a part"), index, known)
        if isinstance(candidate.get("logprobsResult"), dict):
            events.append(LogprobsDelta(value=candidate["logprobsResult"], choice=index))
        events += _unknown(candidate, _CANDIDATE, index)
        reason = as_text(candidate.get("finishReason"))
        if reason is not None:
            if known.pending is not None:
                events += self._call(known.pending.whole(), index, known)
                known.pending = None
            events.append(_finished(reason, index, called=known.calls > 0))
        return events

    def _read_part(self, part: dict[str, Any], index: int, known: _Candidate) -> list[StreamEvent]:
        if isinstance(part.get("functionCall"), dict):
            return self._read_call(part, part["functionCall"], index, known)
        rest = {n: v for n, v in part.items() if n not in ("text", THOUGHT) and v is not None}
        text = part.get("text")
        if part.get(THOUGHT) is True and isinstance(text, str) and rest.keys() <= {SIGNATURE}:
            return self._think(text, as_text(rest.get(SIGNATURE)), index, known)
        if rest or not isinstance(text, str):
            return _keep(part, rest, index, known)
        if not text:
            return []
        if known.open != "text" or self._whole:
            known.begin("text")
        return [TextDelta(text=text, choice=index, block=known.parts - 1)]

    def _think(
        self, text: str, signature: str | None, index: int, known: _Candidate
    ) -> list[StreamEvent]:
        if not (text or signature):
            return []
        if known.open != THOUGHT or self._whole:
            known.begin(THOUGHT)
        block = known.parts - 1
        if signature:
            known.open = ""
        return [
            ReasoningDelta(text=text, choice=index, field=THOUGHT, signature=signature, block=block)
        ]

    def _read_call(
        self, part: dict[str, Any], call: dict[str, Any], index: int, known: _Candidate
    ) -> list[StreamEvent]:
        if known.pending is None and call.get("willContinue") is not True:
            return self._call(part, index, known)
        known.pending = known.pending or PartialCall()
        try:
            last = known.pending.add(part, call)
        except ValueError as error:
            raise MalformedAnswerError(str(error)) from error
        if not last:
            return []
        whole, known.pending = known.pending.whole(), None
        return self._call(whole, index, known)

    def _call(self, part: dict[str, Any], index: int, known: _Candidate) -> list[StreamEvent]:
        known.begin()
        call = part["functionCall"]
        arguments = msgspec.json.encode(call.get("args") or {}).decode()
        extra = {name: value for name, value in part.items() if name != "functionCall"}
        if unknown := {name: value for name, value in call.items() if name not in _CALL}:
            extra["functionCall"] = unknown
        known.calls += 1
        return [
            ToolCallDelta(
                index=known.calls - 1,
                choice=index,
                id=as_text(call.get("id"))
                or mint_id(self._named[0] or "", index, known.calls, arguments),
                name=as_text(call.get("name")),
                arguments=arguments,
                extra=extra,
            )
        ]

    def _blocked(self, feedback: Any) -> list[StreamEvent]:
        """A prompt that was refused has no candidate: make the answer that it stands for."""
        reason = as_text(feedback.get("blockReason")) if isinstance(feedback, dict) else None
        if reason is None or self._candidates:
            return []
        self._candidates[0] = _Candidate()
        return [TextDelta(text=""), Finished(reason="content_filter", native=reason)]


def _keep(
    part: dict[str, Any], rest: dict[str, Any], index: int, known: _Candidate
) -> list[StreamEvent]:
    """Read a part that is a block of its own: text with more beside it, or not text at all."""
    block = known.begin()
    text = part.get("text")
    if isinstance(text, str) and text and THOUGHT not in part:
        return [
            TextDelta(text=text, choice=index, block=block),
            ExtraDelta(fields={CONTENT_BLOCKS: [{"index": block, PART: rest}]}, choice=index),
        ]
    kind = "text" if isinstance(text, str) else next(iter(part), "empty")
    detail = {"index": block, "type": kind, PART: part}
    return [ExtraDelta(fields={CONTENT_BLOCKS: [detail]}, choice=index)]


def _finished(reason: str, index: int, *, called: bool) -> Finished:
    name = FINISHES.get(reason, "error")
    # The API has no reason of its own for an answer that calls tools.
    name = "tool_calls" if called and name == "stop" else name
    return Finished(reason=name, choice=index, native=reason)


def decode_body(status: int, body: bytes) -> tuple[StreamEvent, ...]:
    """Read a whole answer: its events and Ended, or ErrorReported alone."""
    document = decode_document(body)
    if isinstance(document, list) and document:
        document = document[0]  # errors of a stream without alt=sse come in a list
    if status >= 400:
        return (read_error(document if isinstance(document, dict) else {}, status),)
    if not isinstance(document, dict):
        return (unreadable("the answer is not a JSON object"),)
    if not ({"candidates", "promptFeedback", "error"} & document.keys()):
        return (unreadable("the answer has no candidates"),)
    events = GenerateDecoder(whole=True).read(document)
    errors = tuple(event for event in events if isinstance(event, ErrorReported))
    return errors or (*events, *_ENDED)


def _unknown(
    fields: dict[str, Any], known: frozenset[str], choice: int | None
) -> tuple[StreamEvent, ...]:
    unknown = {name: value for name, value in fields.items() if name not in known}
    return (ExtraDelta(fields=unknown, choice=choice, beside=choice is not None),) * bool(unknown)


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise MalformedAnswerError("what should be an array is none")
    return value
