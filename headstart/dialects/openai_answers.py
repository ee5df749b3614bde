"""OpenAI Chat Completions: reading, translating and rendering answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from headstart.attempts import Tokens
from headstart.dialects.dialect import (
    CHUNK_CHARACTERS,
    ENDED,
    NULL_USAGE,
    JSONDecoder,
    MalformedAnswerError,
    Rendered,
    as_count,
    as_text,
    decode_document,
    read_whole,
    split_text,
    unreadable,
)
from headstart.types import (
    CONTENT_BLOCKS,
    Ended,
    ErrorReported,
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
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from headstart.errors import HeadstartError
    from headstart.types import Choice, Completion, StreamEvent

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
        self._whole = whole
        self._names = Started()
        self._head = self._make_head()
        self._before_text: dict[int, bytes] = {}
        """For each choice that has begun, the bytes before one of its texts."""
        self._beside: dict[str, Any] = {}
        """Fields that wait for the next chunk of a complete answer."""
        self._calls: dict[int, dict[int, str]] = {}
        """For each choice, the kinds of its tool calls by their numbers."""
        self._usage: dict[str, Any] | None = None
        self._extra: dict[str, Any] = {}
        self._over = False

    def feed(self, events: Sequence[StreamEvent]) -> bytes:
        """Return the chunks for these events; nothing once the stream is over."""
        written: list[bytes] = []
        for event in events:
            if type(event) is TextDelta and not self._beside:
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
                written.append(self._opening(choice, _own_fields(fields), self._extra))
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
                own = _own_fields(fields)
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
        return _chunk_head(_encode_names(self._names) + self._null, self._id, self._created)

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
                "code": getattr(error, "code", None),
                "request_id": request_id,
            }
        }
    )


def error_frame(error: HeadstartError | ErrorReported, request_id: str) -> bytes:
    """Return one data line. With an event name or choices, some clients overlook it."""
    return b"data: %b\n\n" % error_body(error, request_id)


def _error_type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def _chunk_head(names: bytes, id: str, created: int) -> bytes:
    """Return the bytes with which each chunk of an answer begins."""
    return b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,%b' % (
        _encode(id),
        created,
        names,
    )


def _encode_names(of: Started | Completion) -> bytes:
    """Return the names of the model and its deployment, as members of each chunk.

    Whole answers may say null for the deployment. In chunks some clients take only a string.
    """
    names = {name: value for name, value in _names(of).items() if value is not None}
    return _encode(names)[1:-1] + b","


def _names(of: Started | Completion) -> dict[str, Any]:
    tier = {"service_tier": of.tier} if of.tier else {}
    return {"model": of.model or "", **tier, "system_fingerprint": of.fingerprint}


def _own_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a choice's fields without the one that only this package uses."""
    return {name: value for name, value in fields.items() if name != CONTENT_BLOCKS}


_TEXTS = frozenset({*REASONING_FIELDS, "content", "refusal"})
_MESSAGE = frozenset({*_TEXTS, "role", "tool_calls", "function_call", CONTENT_BLOCKS})
"""The known fields of a message; ``CONTENT_BLOCKS`` is a name of our own."""
_CHOICE = frozenset({"index", "delta", "message", "finish_reason", "logprobs"})
_NUMBER = "index"
_CALL = frozenset({_NUMBER, "id", "type", "function", "custom"})
_PADDING = frozenset({"obfuscation", "p"})
_CHUNK = _PADDING | words_of(
    "id object created model system_fingerprint service_tier choices usage error"
)


@dataclass(eq=False, repr=False)
class ChatDecoder(JSONDecoder):
    """EventDecoder of Chat Completions."""

    done = ENDED
    _named: tuple[Any, ...] = (None, None, None)
    _calls: dict[int, _ToolCalls] = field(default_factory=dict)

    def read(self, event: dict[str, Any], name: bytes | None = None) -> tuple[StreamEvent, ...]:
        """Return the events of one chunk, or of one whole answer. Raises MalformedAnswerError."""
        if name is not None and name == b"error" and "error" not in event:
            return (_read_event_error(event),)
        events: list[StreamEvent] = []
        named = (event.get("model"), event.get("system_fingerprint"), event.get("service_tier"))
        if named != self._named:
            self._named = named
            _read_names(event, named, events)
        for position, choice in enumerate(_list(event.get("choices"))):
            self._read_choice(choice, position, events)
        _read_rest(event, events)
        return tuple(events)

    def _read_choice(self, choice: Any, position: int, events: list[StreamEvent]) -> None:
        if type(choice) is not dict:
            raise MalformedAnswerError("a choice is not an object")
        index = choice.get("index")
        if type(index) is not int:
            index = position
        delta = choice.get("delta")
        if delta is None:
            delta = choice.get("message") or _NOTHING
        if type(delta) is not dict:
            raise MalformedAnswerError("a choice's delta is not an object")
        calls = self._calls.get(index)
        if calls is None:
            calls = self._calls[index] = _ToolCalls(whole="message" in choice)
            events.append(TextDelta(text="", choice=index))
        _read_message(delta, index, calls, events)
        logprobs = choice.get("logprobs")
        if type(logprobs) is dict:
            events.append(LogprobsDelta(value=logprobs, choice=index))
        if not _CHOICE.issuperset(choice):
            unknown = _unknown(choice, _CHOICE)
            events.append(ExtraDelta(fields=unknown, choice=index, beside=True))
        reason = choice.get("finish_reason")
        if reason and type(reason) is str:
            native = choice.get("native_finish_reason")
            native = native if type(native) is str and native != reason else None
            events.append(Finished(reason=reason, choice=index, native=native))


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
    document = decode_document(body)
    if isinstance(document, list) and document:
        document = document[0]  # Gemini's OpenAI endpoint wraps its errors in a list
    if status >= 400:
        return (read_error(document if isinstance(document, dict) else _NOTHING, status),)
    if not isinstance(document, dict):
        return (unreadable("the answer is not a JSON object"),)
    if isinstance(document.get("choices"), list):
        return read_whole(decoder().read, (document,))
    if document.get("error") or document.get("object") == "error" or document.get("error_code"):
        return (read_error(document, None),)
    return (unreadable("the answer has no choices"),)


def _read_names(chunk: dict[str, Any], named: tuple[Any, ...], events: list[StreamEvent]) -> None:
    id, model, fingerprint, tier = [
        text if type(text) is str and text else None for text in (chunk.get("id"), *named)
    ]
    if model or fingerprint or tier:
        created = chunk.get("created")
        created = created if isinstance(created, int) and created else None
        started = Started(id=id, model=model, created=created, fingerprint=fingerprint, tier=tier)
        events.append(started)


def _read_message(
    delta: dict[str, Any], index: int, calls: _ToolCalls, events: list[StreamEvent]
) -> None:
    content = delta.get("content")
    if len(delta) == 1 and type(content) is str:
        if content:
            events.append(TextDelta(text=content, choice=index))
        return
    delta, content = _divide(delta) if type(content) is list else (delta, content)
    unknown: dict[str, Any] = {}
    for name, value in delta.items():
        if value is None:
            continue
        if name in REASONING_FIELDS and type(value) is str:
            if value:
                events.append(ReasoningDelta(text=value, choice=index, field=name))
        elif name not in _MESSAGE or (name in _TEXTS and type(value) is not str):
            unknown[name] = value
    if content and type(content) is str:
        events.append(TextDelta(text=content, choice=index))
    refusal = delta.get("refusal")
    if refusal and type(refusal) is str:
        events.append(RefusalDelta(text=refusal, choice=index))
    events += [_read_call(call, index, calls) for call in _list(delta.get("tool_calls"))]
    if delta.get("function_call"):
        events.append(_read_function_call(delta["function_call"], index, calls))
    if unknown:
        events.append(ExtraDelta(fields=unknown, choice=index))


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
    index = call.get(_NUMBER)
    arguments = body.get("input" if kind == "custom" else "arguments")
    place = calls.place(index if type(index) is int else None, call_id or "", named=bool(name))
    extra = _unknown(call, _CALL | {kind})
    # Mistral, whose calls have no type, and DeepSeek number the calls of whole answers, too.
    if type(index) is int and (calls.whole or (name and "type" not in call)):
        extra[_NUMBER] = index
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
    usage = chunk.get("usage")
    of_groq = not usage and "x_groq" in chunk and isinstance(chunk["x_groq"], dict)
    if of_groq:
        usage = chunk["x_groq"].get("usage")
    if type(usage) is dict:
        choices: Any = chunk.get("choices")
        if choices and all(type(event) is Started for event in events):
            # A chunk with choices is part of the answer, not the usage chunk.
            events.append(TextDelta(text=""))
        beside = "delta" in choices[0] if choices and not of_groq else False
        events.append(UsageReported(usage=usage, beside=beside))
    if chunk.get("error") or chunk.get("object") == "error":
        events.append(_read_event_error(chunk))
    elif "choices" not in chunk:
        if chunk.get("error_code"):  # FastChat and LMDeploy's proxy
            events.append(_read_event_error(chunk))
    elif not _CHUNK.issuperset(chunk):
        events.append(ExtraDelta(fields=_unknown(chunk, _CHUNK), choice=None))


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


MOST_IN_EVENT = 4096
"""Most choices, or tool calls of a choice, in one event: 70,000 would stop other requests."""


def _list(value: Any) -> list[Any]:
    if value is not None and type(value) is not list:
        raise MalformedAnswerError("choices or tool calls are not an array")
    if value and len(value) > MOST_IN_EVENT:
        raise MalformedAnswerError("an event has too many choices or tool calls")
    return value or []


_DONE = b"data: [DONE]\n\n"


def render(completion: Completion) -> Rendered:
    """Encode an answer once, for any number of replays."""
    encoder = ChatEncoder("", 0, include_usage=True, whole=True)
    names = _encode_names(completion)
    # The quotes of a head cannot be in a JSON text, so each head that is found begins a chunk.
    head = _chunk_head(names, "", 0)
    *chunks, last = b"".join(map(encoder.feed, _frames(completion))).split(head)
    ending, *usage_chunk = encoder.feed((Ended(),)).split(head)
    unasked = last
    if completion.usage_beside:  # a chunk ends with "}\n\n"
        unasked = b"%b,%b\n\n" % (last[:-3], _encode({"usage": completion.usage})[1:])
    return Rendered(
        _document_head,
        partial(_chunk_head, names),
        _encode(_document(completion))[1:],
        (*chunks, unasked + _DONE),
        (*chunks, last + ending, *usage_chunk) if usage_chunk else None,
    )


def write_body(completion: Completion, id: str, created: int) -> bytes:
    """Return the body of an answer that is not streamed."""
    return _document_head(id, created) + _encode(_document(completion))[1:]


def _document_head(id: str, created: int) -> bytes:
    return b'{"id":%b,"object":"chat.completion","created":%d,' % (_encode(id), created)


def _document(completion: Completion) -> dict[str, Any]:
    """Return the members of a whole answer, without its id and time."""
    usage = {} if completion.usage is None else {"usage": completion.usage}
    choices = [_whole_choice(choice) for choice in completion.choices]
    return {**_names(completion), "choices": choices, **usage, **completion.extra}


def _whole_choice(choice: Choice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "message": _message(choice),
        "logprobs": choice.logprobs,
        "finish_reason": choice.finish,
        **choice.beside,
    }


def _message(choice: Choice) -> dict[str, Any]:
    text = _joined(choice, Text)
    calls = [part for part in choice.parts if isinstance(part, ToolCall)]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": text or (None if _calls_alone(choice) or _joined(choice, Refusal) else ""),
        "refusal": _joined(choice, Refusal) or None,
    }
    for part in choice.parts:
        if isinstance(part, Reasoning):
            field = reasoning_field(part.field)
            message[field] = message.get(field, "") + part.text
    if functions := [call for call in calls if call.kind == "function_call"]:
        message["function_call"] = _named(functions[0])["function_call"]
    if tools := [_named(call) for call in calls if call not in functions]:
        message["tool_calls"] = tools
    message.update(_own_fields(choice.extra))
    if text and isinstance(message["content"], list):
        # Mistral's reasoning arrives as content parts, and its text after them as a string.
        message["content"] = [*message["content"], {"type": "text", "text": text}]
    return message


def _calls_alone(choice: Choice) -> bool:
    """Tell whether a choice has calls, and no empty content beside them as Mistral's have."""
    calls = [part for part in choice.parts if isinstance(part, ToolCall)]
    return bool(calls) and _NUMBER not in calls[0].extra


def _joined(choice: Choice, kind: type[Text | Refusal]) -> str:
    return "".join(part.text for part in choice.parts if isinstance(part, kind))


def _named(call: ToolCall) -> dict[str, Any]:
    """Return a call in the form of JSON answers."""
    body = {"name": call.name, "input" if call.kind == "custom" else "arguments": call.arguments}
    return {"id": call.id, "type": call.kind, call.kind: body, **call.extra}


def _frames(completion: Completion) -> Iterator[tuple[StreamEvent, ...]]:
    """Yield the events of a stored answer; the events of one part come together."""
    yield (
        Started(model=completion.model, fingerprint=completion.fingerprint, tier=completion.tier),
        # SDKs look for these fields in the first chunk.
        ExtraDelta(fields=completion.extra, choice=None),
    )
    if completion.usage is not None:
        yield (UsageReported(usage=completion.usage),)
    last = completion.choices[-1]
    for choice in completion.choices:
        yield (ExtraDelta(fields=_first_fields(choice), choice=choice.index),)
        left = yield from _pieces(choice)
        closing: list[StreamEvent] = []
        if left is not None:
            closing.append(LogprobsDelta(value=left, choice=choice.index))
        if choice.beside:
            closing.append(ExtraDelta(fields=choice.beside, choice=choice.index, beside=True))
        if choice is last:  # the last chunk also has the fields of the whole answer
            closing.append(ExtraDelta(fields=completion.extra, choice=None))
        yield (*closing, Finished(reason=choice.finish, choice=choice.index))


def _first_fields(choice: Choice) -> dict[str, Any]:
    text = None if _calls_alone(choice) and not _joined(choice, Text) else ""
    told = {name: value for name, value in _own_fields(choice.extra).items() if value != []}
    return {"content": text, **told}


def _pieces(choice: Choice) -> Generator[tuple[StreamEvent, ...], None, dict[str, Any] | None]:
    """Yield the deltas, each with its log probabilities.

    Returns the log probabilities that are left.
    """
    left = dict(choice.logprobs or {})
    nothing = dict.fromkeys(left)
    calls = 0
    for part in choice.parts:
        if isinstance(part, ToolCall):
            whole = msgspec.structs.asdict(part)  # Mistral's client refuses a part without a name
            yield (ToolCallDelta(index=calls, choice=choice.index, **whole),)
            calls += 1
            continue
        key = _logprobs_field(part)
        shares = _by_tokens(part.text, left.get(key)) if key else None
        if shares is None:
            yield tuple([_text_delta(part, text, choice) for text in split_text(part.text)])
            continue
        for text, tokens in shares:
            value = {**nothing, key: tokens}
            logprobs = LogprobsDelta(value=value, choice=choice.index)
            yield logprobs, _text_delta(part, text, choice)
        left[key] = None
    return left if left != nothing or choice.logprobs == {} else None


def _logprobs_field(part: Text | Reasoning | Refusal) -> str:
    """Return the field of a part's log probabilities; "" if it has none."""
    if isinstance(part, Reasoning):
        return ""
    return "content" if isinstance(part, Text) else "refusal"


def _text_delta(part: Text | Reasoning | Refusal, text: str, choice: Choice) -> StreamEvent:
    if isinstance(part, Reasoning):
        return ReasoningDelta(text=text, field=part.field, choice=choice.index)
    kind = TextDelta if isinstance(part, Text) else RefusalDelta
    return kind(text=text, choice=choice.index)


def _by_tokens(text: str, tokens: Any) -> list[tuple[str, list[Any]]] | None:
    """Cut a text between tokens; each piece has its tokens. None if the tokens are not the text.

    A token may end inside a character. So a piece ends only where the bytes so far are whole
    characters.
    """
    if not tokens or not isinstance(tokens, list):
        return None
    raw = text.encode()
    shares: list[tuple[str, list[Any]]] = []
    start = end = first = 0
    for position, token in enumerate(tokens, 1):
        spelled = _token_bytes(token)
        if spelled is None or not raw.startswith(spelled, end):
            return None
        end += len(spelled)
        if position < len(tokens):
            inside_character = end < len(raw) and raw[end] & 0xC0 == 0x80
            if inside_character or end - start < CHUNK_CHARACTERS:
                continue
        elif end < len(raw):
            return None
        shares.append((raw[start:end].decode(), tokens[first:position]))
        start, first = end, position
    return shares


def _token_bytes(token: Any) -> bytes | None:
    if not isinstance(token, dict):
        return None
    codes, spelled = token.get("bytes"), token.get("token")
    if isinstance(codes, list) and all(type(code) is int and 0 <= code < 256 for code in codes):
        return bytes(codes)
    return spelled.encode() if isinstance(spelled, str) else None
