"""OpenAI Chat Completions: reading answers, and writing them as streams.

``ChatEncoder`` writes events as the chunks of a stream. ``ChatDecoder`` reads chunks and whole
answers. For example, it reads this chunk as ``TextDelta(text="Hi")``, and as ``Started`` before it
if the chunk is the first one of its stream::

    {"id": "1", "created": 1, "model": "m", "choices": [{"index": 0, "delta": {"content": "Hi"}}]}
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec

from headstart.attempts import Tokens
from headstart.dialects.dialect import (
    ENDED,
    NULL_USAGE,
    JSONDecoder,
    MalformedAnswerError,
    as_count,
    as_text,
    decode_first,
    read_whole,
    unreadable,
)
from headstart.errors import CONTEXT_CODES, HeadstartError, is_context_exceeded
from headstart.types import (
    CONTENT_BLOCKS,
    UNDECODABLE,
    ChunkForm,
    Ended,
    ErrorReported,
    ExtraDelta,
    Finished,
    LogprobsDelta,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    UsageReported,
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headstart.types import Completion, StreamEvent

REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Names under which providers of this dialect send reasoning."""

_AFTER_TEXT = b'},"logprobs":null,"finish_reason":null}]}\n\n'
_NOTHING: dict[str, Any] = {}
_OfChoice: TypeAlias = (
    TextDelta
    | ReasoningDelta
    | RefusalDelta
    | ToolCallDelta
    | LogprobsDelta
    | ExtraDelta
    | Finished
)
_encode = msgspec.json.encode


def reasoning_field(field: str) -> str:
    """Return the name under which clients of this dialect look for reasoning."""
    return field if field in REASONING_FIELDS else "reasoning_content"


class ChatEncoder:
    """EventEncoder of Chat Completions.

    The first event of a choice writes the chunk with its role, and the end writes the usage.
    ``whole``: the answer is complete. Then log probabilities and fields beside the delta stand in
    the next chunk, as the API sends them, and the finish reason is written as it was kept.
    """

    def __init__(
        self,
        id: str,
        created: int,
        *,
        include_usage: bool,
        whole: bool = False,
    ) -> None:
        self._id = id
        self._created = created
        self._include_usage = include_usage
        self._null = NULL_USAGE if include_usage and not whole else b""
        """The usage of all chunks but the last, if the client asked for usage."""
        self._whole = whole
        self._names = Started()
        self._head = self._make_head()
        """The bytes with which each chunk begins."""
        self._before_text: dict[int, bytes] = {}
        """For each choice that has begun, the bytes before one of its texts."""
        self._beside: dict[str, Any] = {}
        """Fields that wait for the next chunk of a complete answer."""
        self._calls: dict[int, dict[int, str]] = {}
        """For each choice, the kinds of its tool calls by their numbers."""
        self._usage: dict[str, Any] | None = None
        self._extra: dict[str, Any] = {}
        """Unknown fields of the whole answer. They wait for the chunk of its end."""
        self._over = False

    def feed(self, events: Sequence[StreamEvent]) -> bytes:
        """Return the chunks for these events; nothing once the stream is over."""
        written: list[bytes] = []
        for event in events:
            if type(event) is TextDelta and not self._beside:  # like most events of a stream
                before = self._before_text.get(event.choice)
                if before is not None and event.text and not self._over:
                    written.append(before + _encode(event.text) + _AFTER_TEXT)
                    continue
            if not self._over:
                self._write(event, written)
        return written[0] if len(written) == 1 else b"".join(written)

    def _write(self, event: StreamEvent, written: list[bytes]) -> None:
        match event:
            case Started():
                self._update_head(event)
            case UsageReported(usage=usage):
                self._usage = usage
            case ExtraDelta(fields=fields, choice=None):
                self._extra.update(fields)
            case ErrorReported():
                written.append(error_frame(event, self._id))
                self._over = True
            case Ended():
                written.append(self._ending())
                self._over = True
            case TextDelta(text="") | ReasoningDelta(text="") | RefusalDelta(text=""):
                pass
            case LogprobsDelta(value=value) if self._whole:
                self._beside["logprobs"] = value
            case ExtraDelta(fields=fields, beside=True) if self._whole:
                self._beside |= fields
            case ExtraDelta(fields=fields, choice=int(choice)) if self._whole:
                written.append(self._opening(choice, own_fields(fields), self._extra))
            case _:
                choice = event.choice or 0
                if choice not in self._before_text:
                    is_call = type(event) is ToolCallDelta and event.kind != "function_call"
                    written.append(self._opening(choice, {"content": None} if is_call else {}))
                written.append(self._chunk_of(event, choice))

    def _chunk_of(self, event: _OfChoice, choice: int) -> bytes:
        """Return the chunk for an event of a choice, or nothing."""
        delta: dict[str, Any] = {}
        beside, self._beside = self._beside, {}
        match event:
            case TextDelta(text=text):
                delta = {"content": text}
            case ReasoningDelta(text=text, field=field):
                delta = {reasoning_field(field): text}
            case RefusalDelta(text=text):
                delta = {"refusal": text}
            case ToolCallDelta():
                delta = self._call_delta(event)
            case LogprobsDelta(value=value):
                beside = {"logprobs": value}
            case Finished():
                beside["finish_reason"] = self._reason(event)
            case ExtraDelta(fields=fields):
                own = own_fields(fields)
                delta, beside = ({}, own) if event.beside else (own, {})
        if not (delta or beside):
            return b""
        top: dict[str, Any] = {}
        if type(event) is Finished:
            top, self._extra = self._extra, {}
        return self._chunk(choice, delta, beside, top)

    def _call_delta(self, event: ToolCallDelta) -> dict[str, Any]:
        calls = self._calls.setdefault(event.choice, {})
        begins = event.index not in calls
        kind = calls.setdefault(event.index, event.kind)
        body = {"input" if kind == "custom" else "arguments": event.arguments}
        if begins:
            body = {"name": event.name or "", **body}
        if kind == "function_call":
            return {"function_call": body}
        named = {"id": event.id or "", "type": kind} if begins else {}
        return {"tool_calls": [{**event.extra, "index": event.index, **named, kind: body}]}

    def _reason(self, event: Finished) -> str:
        """Return the finish reason of a choice.

        Agents go on only if it says that tools were called.
        """
        calls = self._calls.get(event.choice)
        if self._whole or event.reason != "stop" or not calls:
            return event.reason
        return "function_call" if calls.get(0) == "function_call" else "tool_calls"

    def _update_head(self, event: Started) -> None:
        """Use the model's name, fingerprint and tier of the event from now on."""
        known = self._names
        self._names = Started(
            model=event.model or known.model,
            fingerprint=event.fingerprint or known.fingerprint,
            tier=event.tier or known.tier,
        )
        if self._names != known:
            self._head = self._make_head()
            self._before_text = {choice: self._text_head(choice) for choice in self._before_text}

    def _make_head(self) -> bytes:
        return chunk_head(encode_names(self._names) + self._null, self._id, self._created)

    def _text_head(self, choice: int) -> bytes:
        return b'%b"choices":[{"index":%d,"delta":{"content":' % (self._head, choice)

    def _opening(
        self, choice: int, fields: dict[str, Any] = _NOTHING, top: dict[str, Any] = _NOTHING
    ) -> bytes:
        self._before_text[choice] = self._text_head(choice)
        delta = {"role": "assistant", "content": "", "refusal": None, **fields}
        return self._chunk(choice, delta, top=top)

    def _chunk(
        self,
        choice: int,
        delta: dict[str, Any],
        beside: dict[str, Any] = _NOTHING,
        top: dict[str, Any] = _NOTHING,
    ) -> bytes:
        content = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._data({"choices": [{**content, **beside}], **top})

    def _data(self, members: dict[str, Any]) -> bytes:
        return b"%b%b\n\n" % (self._head, _encode(members)[1:])

    def _ending(self) -> bytes:
        last = b""
        if self._usage is not None and self._include_usage:
            last = self._data({"choices": [], "usage": self._usage, **self._extra})
            last = last.replace(self._null, b"", 1)
        elif self._extra:
            # A client that did not ask for usage reads the first choice of every chunk.
            last = self._chunk(0, {}, top=self._extra)
        return b"%bdata: [DONE]\n\n" % last


def error_body(error: HeadstartError | ErrorReported, request_id: str) -> bytes:
    """Return ``{"error": {...}}`` as the API does, with our request id in it."""
    status = getattr(error, "status", None) or 500
    return _encode(
        {
            "error": {
                "message": getattr(error, "message", None) or str(error),
                "type": _error_type(status),
                "param": getattr(error, "param", None),
                "code": _error_code(error),
                "request_id": request_id,
            }
        }
    )


def error_frame(error: HeadstartError | ErrorReported, request_id: str) -> bytes:
    """Return one data line. With an event name or choices, some clients overlook it."""
    return b"data: %b\n\n" % error_body(error, request_id)


def _error_code(error: HeadstartError | ErrorReported) -> str | None:
    """Return the error's code. Clients know a prompt that is too long by OpenAI's code for it."""
    code: str | None = getattr(error, "code", None)
    if isinstance(error, ErrorReported) and is_context_exceeded(error.status, code, error.message):
        return CONTEXT_CODES[0]
    return code


def _error_type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def chunk_head(names: bytes, id: str, created: int) -> bytes:
    """Return the bytes with which each chunk of an answer begins."""
    return b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,%b' % (
        _encode(id),
        created,
        names,
    )


def encode_names(of: Started | Completion) -> bytes:
    """Return the names of the model and its deployment, as members of each chunk.

    Whole answers may say null for the deployment. In chunks some clients take only a string.
    """
    names = {name: value for name, value in names_of(of).items() if value is not None}
    return _encode(names)[1:-1] + b","


def names_of(of: Started | Completion) -> dict[str, Any]:
    tier = {"service_tier": of.tier} if of.tier else {}
    return {"model": of.model or "", **tier, "system_fingerprint": of.fingerprint}


def own_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a choice's fields without the one that only this package uses."""
    return {name: value for name, value in fields.items() if name != CONTENT_BLOCKS}


_TEXTS = frozenset({*REASONING_FIELDS, "content", "refusal"})
_MESSAGE = frozenset({*_TEXTS, "role", "tool_calls", "function_call", CONTENT_BLOCKS})
"""The known fields of a message; ``CONTENT_BLOCKS`` is a name of our own."""
_CHOICE = frozenset({"index", "delta", "message", "finish_reason", "logprobs"})
NUMBER = "index"
"""The field of a tool call that numbers it."""
_CALL = frozenset({NUMBER, "id", "type", "function", "custom"})
_PADDING = frozenset({"obfuscation", "p"})
_CHUNK = _PADDING | words_of(
    "id object created model system_fingerprint service_tier choices usage error"
)


MOST_IN_EVENT = 4096
"""Most choices, or tool calls of a choice, in one event: 70,000 would stop other requests."""


class _ChoiceFields(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The usual fields of a choice. A chunk has a ``delta``, a whole answer a ``message``."""

    index: int
    delta: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    message: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None


class _UsualChunk(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A chunk, or a whole answer, that has only the fields that most providers send.

    It takes half of the time of a dict to decode and to read. Others do not fit into it.
    """

    id: str
    created: int
    model: str
    choices: Annotated[list[_ChoiceFields], msgspec.Meta(max_length=MOST_IN_EVENT)]
    object: Literal["chat.completion", "chat.completion.chunk"] = "chat.completion"
    system_fingerprint: str | None = None
    service_tier: str | None = None
    usage: dict[str, Any] | None = None
    obfuscation: str = ""


_decode_usual = msgspec.json.Decoder(_UsualChunk).decode
_BEGUN = TextDelta(text="")
"""Says that the first choice has begun."""


@dataclass(eq=False, repr=False)
class ChatDecoder(JSONDecoder):
    """EventDecoder of Chat Completions.

    There are two ways to read a chunk, with the same events. ``read_usual`` is for chunks that fit
    into ``_UsualChunk``; it is faster. ``read`` is for all chunks, as dicts. They differ only in
    how they take the fields from a chunk: the methods ``_add_…`` make the events of the fields.

    ``read_usual`` also learns the bytes that all streams of a provider have in common
    (``ChunkForm``). So it need not decode the chunk that ends a choice, and the caller can find the
    texts of a stream without decoding its chunks.
    """

    done = ENDED
    is_usual: bool = True
    _named: tuple[Any, ...] = (None, None, None)
    """The model, the fingerprint and the tier that the last chunk named."""
    _begun: dict[int, bool] = field(default_factory=dict)
    """The choices that have begun, and whether the whole answer came at once."""
    _calls: dict[int, _ToolCalls] = field(default_factory=dict)
    """The tool calls of each choice."""

    def read_usual(self, data: bytes) -> tuple[StreamEvent, ...] | None:
        """Return the events of a usual chunk, or of a usual whole answer; None: it is not usual."""
        if self._half or not data.startswith(b"{"):
            return self.done if data.startswith(b"[DONE]") else None
        form, rest = self.form, b""
        if form is not None and data.startswith(self.head):
            rest = data[len(self.head) :]  # an earlier stream may have shown its events
            if known := form.ends.get(rest):
                return known
        events: list[StreamEvent] = []
        try:
            chunk = _decode_usual(data)
            named = (chunk.model, chunk.system_fingerprint, chunk.service_tier)
            if named != self._named:
                self._add_names(named, chunk.id, chunk.created, events)
            for choice in chunk.choices:
                self._add_choice(choice, events)
        except (*UNDECODABLE, MalformedAnswerError):
            self.is_usual = False  # ``feed`` reports what is wrong
            return None
        if chunk.usage is not None:
            has_delta = bool(chunk.choices) and chunk.choices[0].delta is not msgspec.UNSET
            _add_usage(chunk.usage, events, in_part=bool(chunk.choices), beside=has_delta)
        if form is not None and rest and len(events) == 1:
            only = events[0]
            if type(only) is Finished:
                _learn_end(form, rest, only)
            elif type(only) is TextDelta:
                _learn_text(form, rest, only)
        elif len(events) == 2 and events[1] is _BEGUN and type(events[0]) is Started:
            self._learn_head(data)
        return tuple(events)

    def _learn_head(self, first: bytes) -> None:
        """Learn the head and the form of the stream that begins with this chunk."""
        mark = b'"choices":[' if b'"choices":[' in first else b'"choices": ['
        top, mark, rest = first.partition(mark)
        # There is one brace before them, so these are the choices of the chunk itself.
        if top.count(b"{") == 1 and len(rest) <= _LONGEST_REST:
            self.head, self.form = top + mark, _form_of(rest)

    def read(self, event: dict[str, Any], name: bytes | None = None) -> tuple[StreamEvent, ...]:
        """Return the events of one chunk, or of one whole answer. Raises MalformedAnswerError."""
        if name is not None and name == b"error" and "error" not in event:
            return (_read_event_error(event),)
        events: list[StreamEvent] = []
        named = (event.get("model"), event.get("system_fingerprint"), event.get("service_tier"))
        if named != self._named:
            self._add_names(named, event.get("id"), event.get("created"), events)
        for position, fields in enumerate(_list(event.get("choices"))):
            choice = _read_choice(fields, position)
            unknown = _NOTHING if _CHOICE.issuperset(fields) else _unknown(fields, _CHOICE)
            self._add_choice(choice, events, unknown)
        _read_rest(event, events)
        return tuple(events)

    def _add_names(
        self, named: tuple[Any, ...], id: Any, created: Any, events: list[StreamEvent]
    ) -> None:
        """Add the names of the answer, which are new."""
        self._named, self.form = named, None  # other names follow another head
        id, model, fingerprint, tier = [
            text if type(text) is str and text else None for text in (id, *named)
        ]
        if model or fingerprint or tier:
            created = created if isinstance(created, int) and created else None
            events.append(
                Started(id=id, model=model, created=created, fingerprint=fingerprint, tier=tier)
            )

    def _add_choice(
        self, choice: _ChoiceFields, events: list[StreamEvent], unknown: dict[str, Any] = _NOTHING
    ) -> None:
        """Add the events of a choice. ``unknown`` are its fields beside the usual ones."""
        index = choice.index
        if index not in self._begun:
            self._begun[index] = choice.message is not msgspec.UNSET
            events.append(TextDelta(text="", choice=index) if index else _BEGUN)
        message = choice.message if choice.delta is msgspec.UNSET else choice.delta
        if message is not msgspec.UNSET:
            self._add_message(message, index, events)
        if choice.logprobs is not None:
            events.append(LogprobsDelta(value=choice.logprobs, choice=index))
        if unknown:
            events.append(ExtraDelta(fields=unknown, choice=index, beside=True))
        reason = choice.finish_reason
        if reason:
            native = unknown.get("native_finish_reason")
            native = native if type(native) is str and native != reason else None
            events.append(Finished(reason=reason, choice=index, native=native))

    def _add_message(self, message: dict[str, Any], index: int, events: list[StreamEvent]) -> None:
        """Add the events of a message or of a delta."""
        content = message.get("content")
        if len(message) == 1 and type(content) is str:  # like most deltas of a stream
            if content:
                events.append(TextDelta(text=content, choice=index))
            return
        message, content = _divide(message) if type(content) is list else (message, content)
        unknown: dict[str, Any] = {}
        for name, value in message.items():
            if value is None:
                continue
            if name in REASONING_FIELDS and type(value) is str:
                if value:
                    events.append(ReasoningDelta(text=value, choice=index, field=name))
            elif name not in _MESSAGE or (name in _TEXTS and type(value) is not str):
                unknown[name] = value
        if content and type(content) is str:
            events.append(TextDelta(text=content, choice=index))
        refusal = message.get("refusal")
        if refusal and type(refusal) is str:
            events.append(RefusalDelta(text=refusal, choice=index))
        if message.get("tool_calls") is not None or message.get("function_call"):
            self._add_calls(message, index, events)
        if unknown:
            events.append(ExtraDelta(fields=unknown, choice=index))

    def _add_calls(self, message: dict[str, Any], index: int, events: list[StreamEvent]) -> None:
        if index not in self._calls:
            self._calls[index] = _ToolCalls(whole=self._begun[index])
        calls = self._calls[index]
        told = message.get("tool_calls")
        if type(told) is dict and "function" in told:  # TGI up to 3.0 streams one call, unwrapped
            told = [told]
        events += [_read_call(call, index, calls) for call in _list(told)]
        if message.get("function_call"):
            events.append(_read_function_call(message["function_call"], index, calls))


_LONGEST_REST = 512
"""The longest rest of a chunk that is remembered, in bytes. The rest is what follows the head."""
_MOST_ENDS = 16
"""The most ends that are remembered for a form. APIs have some five finish reasons."""
_USUAL_REST = re.compile(
    rb'\{[^][{}]*"delta": ?\{(?:"\w+": ?(?:null|""|"assistant")(?:, ?)?)*\}[^][{}]*\}\]'
    rb'(?:, ?"usage": ?null)?\}'
)
"""Matches the rest of a chunk that has one choice, no text and nothing else.

If the choice has begun, such a rest has the same events in each stream. A text must not be kept for
other streams. A field that comes twice could hide one.
"""


@lru_cache(maxsize=64)
def _form_of(first_rest: bytes) -> ChunkForm | None:
    """Return the form of the streams whose first chunk has this rest; None: it is not usual."""
    return ChunkForm() if _USUAL_REST.fullmatch(first_rest) else None


def _learn_end(form: ChunkForm, rest: bytes, end: Finished) -> None:
    """Learn the rest of a chunk that only says how a choice ended."""
    has_room = len(rest) <= _LONGEST_REST and len(form.ends) < _MOST_ENDS
    if end.choice == 0 and has_room and _USUAL_REST.fullmatch(rest):
        form.ends[rest] = (end,)


def _learn_text(form: ChunkForm, rest: bytes, delta: TextDelta) -> None:
    """Learn what is before and after the text in the rest of a chunk that only has this text."""
    if delta.choice or len(rest) > _LONGEST_REST:
        return
    text = delta.text.encode("utf-8", "surrogatepass")
    for mark in (b'"content":"', b'"content": "'):
        parts = rest.split(b'%b%b"' % (mark, text))
        # Only a text without escapes is found.
        if len(parts) == 2 and _USUAL_REST.fullmatch((mark + b'"').join(parts)):
            form.around_text = parts[0] + mark, b'"' + parts[1]


def _read_choice(choice: Any, position: int) -> _ChoiceFields:
    """Read the usual fields of a choice. Fields of other types than usual are left out."""
    if type(choice) is not dict:
        raise MalformedAnswerError("a choice is not an object")
    message = choice.get("delta")
    if message is None:
        message = choice.get("message") or _NOTHING
    if type(message) is not dict:
        raise MalformedAnswerError("a choice's delta is not an object")
    index, logprobs = choice.get("index"), choice.get("logprobs")
    reason = choice.get("finish_reason")
    return _ChoiceFields(
        index if type(index) is int else position,
        message,
        message if "message" in choice else msgspec.UNSET,
        logprobs if type(logprobs) is dict else None,
        reason if type(reason) is str else None,
    )


class _ToolCalls:
    """Numbers one choice's tool calls from 0 in the order of arrival, for any provider."""

    def __init__(self, *, whole: bool) -> None:
        self.whole = whole
        """The calls are in a whole answer."""
        self._ids: list[str] = []
        self._slots: dict[int, int] = {}

    def place(self, index: int | None, id: str, *, named: bool) -> int:
        """Return the number of the call that a fragment belongs to.

        Without an index a new id or a name begins a call. With one, a name and another id begin
        a call too: some endpoints give every parallel call the index 0.
        """
        if index is None:
            if id in self._ids and not named:
                return self._ids.index(id)
            return self._begin(id) if id or named or not self._ids else len(self._ids) - 1
        slot = self._slots.get(index)
        if slot is None or (named and id and self._ids[slot] not in ("", id)):
            slot = self._slots[index] = self._begin(id)
        return slot

    def _begin(self, id: str) -> int:
        self._ids.append(id)
        return len(self._ids) - 1


def read_error(document: Mapping[str, Any], status: int | None) -> ErrorReported:
    """Read an error object in any of the shapes that providers send."""
    error = document.get("error") or document
    if error is True:
        error = document
    if not isinstance(error, dict):
        return ErrorReported(message=str(error), status=status)
    told = (error.get(name) for name in ("message", "detail", "text"))
    message = next(filter(None, told), "the provider reported an error")
    code = error.get("code") or error.get("type") or error.get("error_code")
    for name in ("status_code", "code", "status", "http_status_code"):
        candidate = error.get(name)
        if status is None and type(candidate) is int and 400 <= candidate < 600:
            status = candidate
    return ErrorReported(message=str(message), code=str(code) if code else None, status=status)


def _read_event_error(event: dict[str, Any]) -> ErrorReported:
    """Read an error in a stream. Clients of OpenAI look for the field ``error`` alone."""
    error = read_error(event, None)
    return error if event.get("error") else msgspec.structs.replace(error, is_foreign=True)


def decode_body(
    status: int, body: bytes, decoder: Callable[[], JSONDecoder] = ChatDecoder
) -> tuple[StreamEvent, ...]:
    """Read a whole answer: its events and Ended, or ErrorReported alone."""
    if decoder is ChatDecoder and status < 400 and body[:1] == b"{":  # and not a stream's [DONE]
        usual = ChatDecoder().read_usual(body)
        if usual is not None:
            return usual + ENDED
    document = decode_first(body)
    if status >= 400:
        return (read_error(document if isinstance(document, dict) else _NOTHING, status),)
    if not isinstance(document, dict):
        return (unreadable("the answer is not a JSON object"),)
    if isinstance(document.get("choices"), list):
        return read_whole(decoder().read, (document,))
    if document.get("error") or document.get("object") == "error" or document.get("error_code"):
        return (read_error(document, None),)
    return (unreadable("the answer has no choices"),)


def _divide(message: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Divide a message with content in parts (Mistral's thinking): into the rest, and its texts.

    If something else is between the texts or after them, all parts stay.
    """
    parts = message["content"]
    first = len(parts)
    while first and type(part := parts[first - 1]) is dict and part.keys() == {"type", "text"}:
        first -= 1
    texts = [part["text"] for part in parts[first:]]
    mixed = any(type(part) is dict and part.get("type") == "text" for part in parts[:first])
    if mixed or not all(type(text) is str for text in texts):
        return message, ""
    return {**message, "content": parts[:first] or None}, "".join(texts)


def _read_call(call: Any, choice: int, calls: _ToolCalls) -> ToolCallDelta:
    if type(call) is not dict:
        raise MalformedAnswerError("a tool call is not an object")
    kind = as_text(call.get("type")) or ("custom" if "custom" in call else "function")
    body = call.get(kind) or _NOTHING
    if type(body) is not dict:
        raise MalformedAnswerError("a tool call's body is not an object")
    call_id = as_text(call.get("id"))
    name = as_text(body.get("name"))
    index = call.get(NUMBER)
    arguments = body.get("input" if kind == "custom" else "arguments")
    place = calls.place(index if type(index) is int else None, call_id or "", named=bool(name))
    extra = _unknown(call, _CALL | {kind})
    # Mistral, whose calls have no type, and DeepSeek number the calls of whole answers, too.
    if type(index) is int and (calls.whole or (name and "type" not in call)):
        extra[NUMBER] = index
    return ToolCallDelta(
        index=place,
        choice=choice,
        id=call_id,
        name=name,
        arguments=text_of_arguments(arguments),
        kind=kind,
        extra=extra,
    )


def _read_function_call(body: Any, choice: int, calls: _ToolCalls) -> ToolCallDelta:
    """Read the deprecated form, which has no id and no index."""
    if type(body) is not dict:
        raise MalformedAnswerError("function_call is not an object")
    return ToolCallDelta(
        index=calls.place(0, "", named=False),
        choice=choice,
        name=as_text(body.get("name")),
        arguments=text_of_arguments(body.get("arguments")),
        kind="function_call",
    )


def text_of_arguments(value: Any) -> str:
    """Return the arguments of a call as JSON text."""
    if value is None or isinstance(value, str):
        return value or ""
    # Some local servers send an object instead of JSON text.
    return msgspec.json.encode(value).decode()


def _read_rest(chunk: dict[str, Any], events: list[StreamEvent]) -> None:
    """Add the events of the fields beside the choices: usage, an error and unknown fields."""
    usage = chunk.get("usage")
    of_groq = not usage and "x_groq" in chunk and isinstance(chunk["x_groq"], dict)
    if of_groq:
        usage = chunk["x_groq"].get("usage")
    if type(usage) is dict:
        choices = chunk.get("choices")
        beside = "delta" in choices[0] if choices and not of_groq else False
        _add_usage(usage, events, in_part=bool(choices), beside=beside)
    if chunk.get("error") or chunk.get("object") == "error":
        events.append(_read_event_error(chunk))
    elif "choices" not in chunk:
        if chunk.get("error_code"):  # FastChat and LMDeploy's proxy
            events.append(_read_event_error(chunk))
    elif not _CHUNK.issuperset(chunk):
        events.append(ExtraDelta(fields=_unknown(chunk, _CHUNK), choice=None))


def _add_usage(
    usage: dict[str, Any], events: list[StreamEvent], *, in_part: bool, beside: bool
) -> None:
    """Add the usage. ``in_part``: its chunk has choices, so it is a part of the answer.

    Such a chunk gets an empty text if it has no other content. Without it, the chunk would look
    like the one after the answer that has nothing but the usage.
    """
    if in_part and all(type(event) is Started for event in events):
        events.append(TextDelta(text=""))
    events.append(UsageReported(usage=usage, beside=beside))


def usage_tokens(usage: dict[str, Any]) -> Tokens:
    """Return the counts of a usage object. DeepSeek has its own name for cached tokens.

    xAI counts reasoning beside the completion, which the total shows.
    """
    asked, said = token_details(usage, "prompt"), token_details(usage, "completion")
    cached = asked.get("cached_tokens") or usage.get("prompt_cache_hit_tokens")
    prompt = as_count(usage.get("prompt_tokens"))
    completion = as_count(usage.get("completion_tokens"))
    reasoning = as_count(said.get("reasoning_tokens"))
    if reasoning and usage.get("total_tokens") == prompt + completion + reasoning:
        completion += reasoning
    return Tokens(
        prompt=prompt,
        completion=completion,
        cached=as_count(cached),
        cache_write=as_count(asked.get("cache_write_tokens")),
        reasoning=reasoning,
    )


def token_details(usage: dict[str, Any], side: str) -> dict[str, Any]:
    """Return the detailed counts of a usage object, for its prompt or for its answer."""
    details = usage.get(side + "_tokens_details")
    return details if isinstance(details, dict) else {}


def _unknown(fields: dict[str, Any], known: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in known}


def _list(value: Any) -> list[Any]:
    if value is not None and type(value) is not list:
        raise MalformedAnswerError("choices or tool calls are not an array")
    if value and len(value) > MOST_IN_EVENT:
        raise MalformedAnswerError("an event has too many choices or tool calls")
    return value or []
