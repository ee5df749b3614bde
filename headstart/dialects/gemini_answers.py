"""Gemini's generateContent: reading, translating and rendering answers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain, groupby, pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.dialects.dialect import (
    JSONDecoder,
    MalformedAnswerError,
    Rendered,
    as_list,
    as_object,
    as_text,
    decode_document,
    extra_events,
    read_whole,
    split_text,
    unreadable,
)
from headstart.errors import HeadstartError, is_context_exceeded
from headstart.reply import whole_call
from headstart.types import (
    CONTENT_BLOCKS,
    Ended,
    ErrorReported,
    ExtraDelta,
    Finished,
    LogprobsDelta,
    Reasoning,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    UsageReported,
    json_or_none,
    word_classes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headstart.types import Choice, Completion, Part, StreamEvent

MINTED = "call_gemini_"
"""The beginning of our ids for calls that came without one. The API never gets these ids."""

_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d+)\]|\[(?:"([^"]*)"|'([^']*)')\]""")
_PIECE = frozenset({"args", "partialArgs", "willContinue"})
_VALUES = ("stringValue", "numberValue", "boolValue", "nullValue")
_LONGEST_LIST = 10_000


def mint_id(answer: str, choice: int, position: int, arguments: str) -> str:
    """Return an id that is the same each time the same answer is read."""
    material = msgspec.json.encode((answer, choice, position, arguments))
    return MINTED + sha256(material).hexdigest()[:20]


class PartialCall:
    """A call whose arguments arrive as values at JSON paths (``partialArgs``)."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        """The fields of the part and of the call, without the arguments."""
        self._arguments: dict[str, Any] = {}
        self._growing: set[str] = set()

    def add(self, part: dict[str, Any], call: dict[str, Any]) -> bool:
        """Take in a piece. Returns True when it was the last. Raises ValueError on a bad path."""
        known = self.fields.get("functionCall", {})
        own = {name: value for name, value in call.items() if name not in _PIECE and value}
        self.fields = {**self.fields, **part, "functionCall": {**known, **own}}
        if isinstance(call.get("args"), dict):
            self._arguments.update(call["args"])
        pieces = call.get("partialArgs")
        for piece in pieces if isinstance(pieces, list) else ():
            if isinstance(piece, dict):
                self._set(piece)
        return call.get("willContinue") is not True

    def whole(self) -> dict[str, Any]:
        """Return the part in the form that it has when it comes at once."""
        call = {**self.fields["functionCall"], "args": self._arguments}
        return {**self.fields, "functionCall": call}

    def _set(self, piece: dict[str, Any]) -> None:
        """Put the value of a piece at its path. Objects and lists on the way are made."""
        path = str(piece.get("jsonPath") or "")
        steps = _steps(path)
        into: Any = self._arguments
        for step, follower in pairwise(steps):
            held = _held(into, step)
            if not isinstance(held, dict | list):
                held = into[step] = [] if isinstance(follower, int) else {}
            into = held
        value = next((piece[name] for name in _VALUES if name in piece), "")
        value = None if "nullValue" in piece else value
        known = _held(into, steps[-1])
        grows = path in self._growing and isinstance(known, str) and isinstance(value, str)
        into[steps[-1]] = known + value if grows else value
        if piece.get("willContinue") is True:
            self._growing.add(path)


def _steps(path: str) -> tuple[str | int, ...]:
    """Split a JSON path such as ``$.places[0].name``. Raises ValueError."""
    steps: list[str | int] = []
    end = 1
    while path.startswith("$") and (match := _STEP.match(path, end)) is not None:
        name, index, *quoted = match.groups()
        steps.append(int(index) if index else name or "".join(filter(None, quoted)))
        end = match.end()
    if not steps or end != len(path):
        raise ValueError("a piece of a function call has no JSON path that can be read")
    return tuple(steps)


def _held(into: Any, step: str | int) -> Any:
    """Return the value at one step of a path. A list grows until it has the place."""
    if isinstance(step, int) != isinstance(into, list):
        raise ValueError("a piece of a function call has no place")
    if isinstance(step, str):
        return into.get(step)
    if step > _LONGEST_LIST:
        raise ValueError("a piece of a function call is too far down a list")
    into.extend([None] * (step + 1 - len(into)))
    return into[step]


_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_TYPE = "type.googleapis.com/google.rpc."


def read_error(document: dict[str, Any], status: int | None) -> ErrorReported:
    """Read an error's body or chunk. Its ``status`` is a word, its ``code`` the HTTP status.

    A reason among its details says more than both.
    """
    error = document.get("error") or document
    if not isinstance(error, dict):
        return ErrorReported(message=str(error), status=status)
    message, number = error.get("message"), error.get("code")
    code = next(_details(error, "reason"), None) or error.get("status")
    if status is None and type(number) is int and 400 <= number < 600:
        status = number
    return ErrorReported(
        message=str(message or "the provider reported an error"),
        code=str(code) if code else None,
        status=status,
    )


def retry_delay_s(document: Any) -> float | None:
    """Return the seconds that an error's body asks to wait (``google.rpc.RetryInfo``), if any."""
    error = document.get("error") if isinstance(document, dict) else None
    for delay in _details(error, "retryDelay"):
        if isinstance(delay, str) and delay.endswith("s"):
            try:
                seconds = float(delay[:-1])
            except ValueError:
                continue
            return seconds if 0 <= seconds < float("inf") else None
    return None


def _details(error: Any, name: str) -> Iterator[Any]:
    """Yield the values that the error's details have under a name."""
    details = error.get("details") if isinstance(error, dict) else None
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and name in detail:
            yield detail[name]


def error_body(error: HeadstartError | ErrorReported, request_id: str) -> bytes:
    """Return ``{"error": {...}}``, which names our request id in its details."""
    status = getattr(error, "status", None) or 500
    code = getattr(error, "code", None)
    other = "INVALID_ARGUMENT" if status < 500 else "INTERNAL"
    details: list[dict[str, str]] = [{"@type": _TYPE + "RequestInfo", "requestId": request_id}]
    if code:
        reason = {"@type": _TYPE + "ErrorInfo", "reason": code, "domain": "headstart"}
        details.append(reason)
    return msgspec.json.encode(
        {
            "error": {
                "code": status,
                "message": _message(error),
                "status": _STATUSES.get(status, other),
                "details": details,
            }
        }
    )


def _message(error: HeadstartError | ErrorReported) -> str:
    """Return the error's message. It says that a prompt is too long in Google's words."""
    if not isinstance(error, ErrorReported):
        return getattr(error, "message", None) or str(error)
    told = "input token count" in error.message
    if told or not is_context_exceeded(error.status, error.code, error.message):
        return error.message or str(error)
    words = "The input token count exceeds the maximum number of tokens allowed"
    return f"{words} ({error.message})"


THOUGHT = "thought"
"""Name under which the reasoning comes."""
SIGNATURE = "thoughtSignature"
PART = "part"
"""Field of an object under ``CONTENT_BLOCKS`` with a part that has no canonical form."""

FINISHES = word_classes(
    {
        "stop": "STOP",
        "length": "MAX_TOKENS CONTINUATION",
        "content_filter": "SAFETY RECITATION LANGUAGE BLOCKLIST PROHIBITED_CONTENT SPII MODEL_ARMOR"
        " IMAGE_SAFETY IMAGE_PROHIBITED_CONTENT IMAGE_RECITATION",
    }
)
"""Canonical names of the finish reasons. Every other one is a failure: ``error``."""

_RATINGS = "safetyRatings"
_CANDIDATE = frozenset({"content", "finishReason", "index", "logprobsResult", _RATINGS})
_CHUNK = frozenset({"candidates", "usageMetadata", "modelVersion", "responseId", "error"})
_CALL = frozenset({"id", "name", "args", "partialArgs", "willContinue"})


class _Candidate:
    """The state of one candidate while its parts arrive."""

    __slots__ = ("calls", "open", "parts", "pending", "ratings")

    def __init__(self) -> None:
        self.parts = 0
        self.calls = 0
        self.open = ""
        """Kind of the last part, if the next chunk may go on with it."""
        self.pending: PartialCall | None = None
        self.ratings: dict[str | None, Any] = {}
        """The last rating of each category. Each chunk may rate the answer so far."""

    def begin(self, kind: str = "") -> int:
        """Begin a part and return its place."""
        self.parts += 1
        self.open = kind
        return self.parts - 1


@dataclass(eq=False, repr=False)
class GenerateDecoder(JSONDecoder):
    """EventDecoder of ``streamGenerateContent?alt=sse``.

    A stream has no terminal event: it is whole when every candidate has its finish reason.
    """

    whole: bool = False
    """It reads a whole answer."""
    _named: tuple[Any, Any] = (None, None)
    _candidates: dict[int, _Candidate] = field(default_factory=dict)

    def read(self, event: dict[str, Any], name: bytes | None = None) -> tuple[StreamEvent, ...]:  # noqa: ARG002
        """Return the events of a chunk, or of a whole answer. Raises MalformedAnswerError."""
        if event.get("error"):
            return (read_error(event, None),)
        events: list[StreamEvent] = []
        named = (as_text(event.get("responseId")), as_text(event.get("modelVersion")))
        if named != self._named:
            self._named = named
            events.append(Started(id=named[0], model=named[1]))
        for position, candidate in enumerate(as_list(event.get("candidates"))):
            events += self._read_candidate(as_object(candidate, "a candidate"), position)
        events += self._blocked(event.get("promptFeedback"))
        events += extra_events(event, _CHUNK)
        usage = event.get("usageMetadata")
        if isinstance(usage, dict):
            # Each chunk has the counts of the whole answer so far.
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
        for part in as_list(content.get("parts")):
            events += self._read_part(as_object(part, "a part"), index, known)
        if isinstance(candidate.get("logprobsResult"), dict):
            events.append(LogprobsDelta(value=candidate["logprobsResult"], choice=index))
        events += extra_events(candidate, _CANDIDATE, index)
        rated = candidate.get(_RATINGS)
        for rating in rated if isinstance(rated, list) else ():
            if isinstance(rating, dict):
                known.ratings[as_text(rating.get("category"))] = rating
        reason = as_text(candidate.get("finishReason"))
        if reason is not None:
            if known.ratings:
                fields = {_RATINGS: list(known.ratings.values())}
                events.append(ExtraDelta(fields=fields, choice=index, beside=True))
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
        if known.open != "text" or self.whole:
            known.begin("text")
        return [TextDelta(text=text, choice=index, block=known.parts - 1)]

    def _think(
        self, text: str, signature: str | None, index: int, known: _Candidate
    ) -> list[StreamEvent]:
        if not (text or signature):
            return []
        if known.open != THOUGHT or self.whole:
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
        """Make an answer for a refused prompt, which has no candidate."""
        reason = as_text(feedback.get("blockReason")) if isinstance(feedback, dict) else None
        if reason is None or self._candidates:
            return []
        self._candidates[0] = _Candidate()
        return [TextDelta(text=""), Finished(reason="content_filter", native=reason)]


def _keep(
    part: dict[str, Any], rest: dict[str, Any], index: int, known: _Candidate
) -> list[StreamEvent]:
    """Read a part that becomes a block: text with further fields, or no text at all."""
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
    """Read a whole answer: its events and Ended, or ErrorReported alone.

    A provider that does not know ``alt=sse`` sends the chunks of a stream as one list.
    """
    document = decode_document(body)
    chunks = document if isinstance(document, list) and document else [document]
    if status >= 400:
        return (read_error(chunks[0] if isinstance(chunks[0], dict) else {}, status),)
    if not all(isinstance(chunk, dict) for chunk in chunks):
        return (unreadable("the answer is not a JSON object"),)
    if not any({"candidates", "promptFeedback", "error"} & chunk.keys() for chunk in chunks):
        return (unreadable("the answer has no candidates"),)
    return read_whole(GenerateDecoder(whole=len(chunks) == 1).read, chunks)


_REASONS = word_classes(
    {"STOP": "stop tool_calls function_call", "MAX_TOKENS": "length", "SAFETY": "content_filter"}
)
_NO_REASON = "OTHER"
_ONLY_TEXT = ({"text"}, {"text", "thought"})
_encode = msgspec.json.encode


def render(completion: Completion) -> Rendered:
    """Encode an answer once, for any number of replays."""
    encoder = GenerateEncoder("", whole=True)
    stream = encoder.feed((*_events(completion), Ended()))
    # The quotes of a head cannot be in a JSON text, so each head that is found begins a chunk.
    chunks = stream.split(_chunk_head("", 0))
    body = _encode(_document(completion))[1:]
    return Rendered(_document_head, _chunk_head, body, tuple(chunks))


def write_body(completion: Completion, id: str, created: int) -> bytes:
    """Return the body of an answer that is not streamed."""
    return _document_head(id, created) + _encode(_document(completion))[1:]


def _document(completion: Completion) -> dict[str, Any]:
    """Return the members of a whole answer, without its id."""
    usage = {} if completion.usage is None else {"usageMetadata": completion.usage}
    whole = [
        candidate(each.index, list(_parts(each)), _ending(each)) for each in _shown(completion)
    ]
    candidates = {"candidates": whole} if whole else {}
    return {**candidates, **usage, "modelVersion": completion.model, **completion.extra}


def _shown(completion: Completion) -> tuple[Choice, ...]:
    """Return the choices that the answer shows: none where the prompt was refused."""
    says = any(choice.parts for choice in completion.choices)
    return completion.choices if says or not _is_blocked(completion.extra) else ()


def _document_head(id: str, created: int) -> bytes:  # noqa: ARG001 - the API tells no time
    return b'{"responseId":%b,' % _encode(id)


def _chunk_head(id: str, created: int) -> bytes:  # noqa: ARG001
    return b'data: {"responseId":%b,' % _encode(id)


def candidate(index: int, parts: list[dict[str, Any]], ending: dict[str, Any]) -> dict[str, Any]:
    """Return a candidate, or a piece of one."""
    return {"content": {"parts": parts, "role": "model"}, **ending, "index": index}


def finish_reason(reason: str, native: str | None) -> str:
    """Return Gemini's own finish reason, or the one that is nearest to another provider's."""
    if native is not None and (native in FINISHES or (reason == "error" and native.isupper())):
        return native
    return _REASONS.get(reason, _NO_REASON)


def call_part(call: ToolCall) -> dict[str, Any]:
    """Return a function call as a part. Arguments that are not an object are wrapped in one."""
    extra = {name: value for name, value in call.extra.items() if name != "functionCall"}
    own = {} if not call.id or call.id.startswith(MINTED) else {"id": call.id}
    unknown = call.extra.get("functionCall") or {}
    body = {**own, "name": call.name, "args": arguments_object(call.arguments), **unknown}
    return {"functionCall": body, **extra}


def arguments_object(arguments: str) -> Any:
    """Return a call's arguments as an object, as the model wrote them if that is an object."""
    value = json_or_none(arguments or "{}", dict[str, Any])
    if value is None:
        return {"INVALID_JSON": arguments}
    # It is written without line ends, because an event of a stream is one line.
    return msgspec.Raw(msgspec.json.format(arguments.encode(), indent=-1)) if value else {}


def reasoning_part(text: str, signature: str | None) -> dict[str, Any]:
    """Return a thought as a part."""
    return {"text": text, "thought": True, **({SIGNATURE: signature} if signature else {})}


_BESIDE_TEXT = {"thought", "thoughtSignature"}


def join_pieces(contents: list[Any]) -> list[Any]:
    """Return the contents with each answer of the model as one content, as it is without a stream.

    Google's SDKs keep each event of a stream as a content of its own, and send all of them back.
    """
    joined: list[Any] = []
    for answers, group in groupby(contents, _is_answer):
        if answers:
            pieces = chain.from_iterable(content["parts"] for content in group)
            joined.append({"role": "model", "parts": _whole_parts(pieces)})
        else:
            joined += group
    return joined


def _is_answer(content: Any) -> bool:
    match content:
        case {"role": "model", "parts": list(), **rest}:
            return not rest
    return False


def _whole_parts(pieces: Iterable[Any]) -> list[Any]:
    """Join the pieces of each text and of each thought, which end with their signature."""
    runs: list[list[Any]] = []
    for piece in pieces:
        match runs[-1][-1] if runs else None, piece:
            case {"text": str(), **told}, {"text": str(), **more} if (
                told in ({}, {"thought": True}) and more.keys() <= _BESIDE_TEXT
                and more.get("thought") == told.get("thought")
            ):  # fmt: skip
                runs[-1].append(piece)
            case _:
                runs.append([piece])
    return [
        {**run[-1], "text": "".join([each["text"] for each in run])} if run[1:] else run[0]
        for run in runs
    ]


def error_frame(error: HeadstartError | ErrorReported, request_id: str) -> bytes:
    """Return the error twice: as data, and as Google writes it, as JSON without ``data:``.

    Google's client for Go takes an error in data for an empty chunk, and the one for Java reads
    nothing but data. Clients look for ``error`` at the very beginning.
    """
    body = error_body(error, request_id)
    return b"data: %b\n\n%b\n" % (body, body)


def _is_blocked(extra: dict[str, Any]) -> bool:
    """Tell whether the prompt was refused. Such an answer has no candidate."""
    feedback = extra.get("promptFeedback")
    return isinstance(feedback, dict) and bool(feedback.get("blockReason"))


def _ending(choice: Choice) -> dict[str, Any]:
    """Return a candidate's fields beside its content."""
    logprobs = {} if choice.logprobs is None else {"logprobsResult": choice.logprobs}
    reason = finish_reason(choice.finish, choice.native_finish)
    return {"finishReason": reason, **logprobs, **choice.beside}


def _parts(choice: Choice) -> Iterator[dict[str, Any]]:
    """Yield the parts in order: canonical ones fill the places that no other part has."""
    details = {
        (detail["index"], "type" in detail): detail[PART]
        for detail in choice.extra.get(CONTENT_BLOCKS, ())
        if PART in detail
    }
    index = 0
    # The thoughts of another provider's model are shown if the client asked for thoughts.
    shown = [p for p in choice.parts if not isinstance(p, Reasoning) or p.field == THOUGHT]
    for part in shown:
        while (own := details.pop((index, True), None)) is not None:
            yield own
            index += 1
        yield {**_part(part), **details.pop((index, False), {})}
        index += 1
    for _, own in sorted(details.items(), key=lambda item: item[0]):
        yield own


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, ToolCall):
        return call_part(part)
    if isinstance(part, Reasoning):
        return reasoning_part(part.text, part.signature)
    return {"text": part.text}


def _events(completion: Completion) -> Iterator[StreamEvent]:
    """Yield the events of a stored answer, without its end."""
    yield Started(model=completion.model)
    for choice in _shown(completion):
        for part in _parts(choice):
            yield from _part_events(part, choice.index)
        if choice.logprobs is not None:
            yield LogprobsDelta(value=choice.logprobs, choice=choice.index)
        yield ExtraDelta(fields=choice.beside, choice=choice.index, beside=True)
        yield Finished(reason=choice.finish, choice=choice.index, native=choice.native_finish)
    if completion.usage is not None:
        yield UsageReported(usage=completion.usage)
    yield ExtraDelta(fields=completion.extra, choice=None)


def _part_events(part: dict[str, Any], choice: int) -> Iterator[StreamEvent]:
    text = part.get("text")
    if not (part.keys() in _ONLY_TEXT and isinstance(text, str)):
        # The other fields of a part belong to its whole text.
        yield ExtraDelta(fields={CONTENT_BLOCKS: [{"type": "part", PART: part}]}, choice=choice)
        return
    for piece in split_text(text):
        if THOUGHT in part:
            yield ReasoningDelta(text=piece, field=THOUGHT, choice=choice)
        else:
            yield TextDelta(text=piece, choice=choice)


class GenerateEncoder:
    """EventEncoder of ``streamGenerateContent?alt=sse``.

    Chunks stand alone, so an encoder can begin anywhere in an answer. The calls of a choice are
    kept until another part of it comes, and its finish reason until the answer has ended, because
    the last chunk has the usage. No event marks the end. ``whole``: the answer is complete, so the
    finish reason of a choice is beside its last part, and the usage beside the last part of all.
    """

    def __init__(self, id: str, *, whole: bool = False) -> None:
        self._id = id
        self._whole = whole
        self._model: dict[str, Any] = {}
        self._calls: dict[int, dict[int, list[ToolCallDelta]]] = {}
        """For each choice, the pieces of its calls by their numbers: the API's calls come whole."""
        self._finished: dict[int, Finished] = {}
        self._usage: dict[str, Any] = {}
        self._extra: dict[str, Any] = {}
        self._last: dict[str, Any] | None = None
        """The candidate of the next chunk, which waits for its ending."""
        self._beside: dict[str, Any] = {}
        """Fields beside the content of this candidate."""
        self._closed = False

    def feed(self, events: Sequence[StreamEvent]) -> bytes:
        """Return the bytes for these events, often none."""
        written: list[bytes] = []
        for event in events:
            if not self._closed:
                self._write(event, written)
        return b"".join(written)

    def _write(self, event: StreamEvent, written: list[bytes]) -> None:
        match event:
            case TextDelta() | RefusalDelta() if event.text:
                self._write_part(event.choice, {"text": event.text}, written)
            case ReasoningDelta(field=field) if field == THOUGHT:
                if event.text or event.signature:
                    part = reasoning_part(event.text, event.signature)
                    self._write_part(event.choice, part, written)
            case ToolCallDelta():
                calls = self._calls.setdefault(event.choice, {})
                calls.setdefault(event.index, []).append(event)
            case Started(model=str(model)):
                self._model = {"modelVersion": model}
            case UsageReported(usage=usage):
                self._usage = {"usageMetadata": usage}
            case ErrorReported():
                self._closed = True
                written.append(error_frame(event, self._id))
            case Ended():
                self._closed = True
                written.append(self._end())
            case _ if self._whole:
                self._write_whole(event, written)
            case LogprobsDelta(value=value, choice=choice):
                written.append(self._chunk([candidate(choice, [], {"logprobsResult": value})]))
            case Finished():
                self._finished[event.choice] = event

    def _write_whole(self, event: StreamEvent, written: list[bytes]) -> None:
        """Write an event of a complete answer that only its own dialect knows, or its ending."""
        match event:
            case ExtraDelta(fields=fields, choice=None):
                self._extra = fields
            case ExtraDelta(fields=fields, beside=True):
                self._beside.update(fields)
            case ExtraDelta(fields=fields, choice=int(choice)):
                for detail in fields.get(CONTENT_BLOCKS, ()):
                    self._write_part(choice, detail[PART], written)
            case LogprobsDelta(value=value):
                self._beside["logprobsResult"] = value
            case Finished(choice=choice):
                if self._last is None or self._last["index"] != choice:
                    self._write_part(choice, {"text": ""}, written)
                assert self._last is not None
                reason = finish_reason(event.reason, event.native)
                ending = {"finishReason": reason, **self._beside}
                self._last = candidate(choice, self._last["content"]["parts"], ending)
                self._beside = {}

    def _write_part(self, choice: int, part: dict[str, Any], written: list[bytes]) -> None:
        said: dict[str, Any] | None = candidate(choice, [*self._called(choice), part], {})
        if self._whole:
            said, self._last = self._last, said
        if said is not None:
            written.append(self._chunk([said]))

    def _called(self, choice: int) -> list[dict[str, Any]]:
        """Return the calls of a choice, which are all whole now."""
        calls = self._calls.pop(choice, {})
        return [call_part(whole_call(calls[number])) for number in sorted(calls)]

    def _end(self) -> bytes:
        """Return the last chunk: the calls that were kept, the finish reasons, and the usage."""
        last = [] if self._last is None else [self._last]
        for index in sorted({*self._calls, *self._finished}):
            parts = self._called(index) or [{"text": ""}]
            ending = {}
            if (finish := self._finished.get(index)) is not None:
                ending = {"finishReason": finish_reason(finish.reason, finish.native)}
            last.append(candidate(index, parts, ending))
        return self._chunk(last, {**self._usage, **self._model, **self._extra})

    def _chunk(self, candidates: list[dict[str, Any]], rest: dict[str, Any] | None = None) -> bytes:
        chunk: dict[str, Any] = {"responseId": self._id}
        if candidates or not _is_blocked(self._extra):
            chunk |= {"candidates": candidates, **self._model}
        return b"data: %b\n\n" % _encode({**chunk, **(rest or {})})
