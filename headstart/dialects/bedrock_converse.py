"""AWS Bedrock's Converse, which only upstreams speak. Its streams are AWS's event streams.

**AWS's event streams** (``application/vnd.amazon.eventstream``): A message is a prelude (its
length, the length of its headers, their checksum), the headers, the payload, and a checksum of all
that. Numbers are big endian, checksums CRC-32.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

import msgspec

from headstart.attempts import Tokens
from headstart.canonical_request import (
    CallPart,
    CanonicalRequest,
    ForeignPart,
    ForeignTool,
    MediaPart,
    Message,
    MessagePart,
    Quirks,
    ReasoningPart,
    ResponseFormat,
    ResultPart,
    TextPart,
    Tool,
    WrittenRequest,
    safe_id,
)
from headstart.dialects.anthropic_requests import (
    check_arguments,
    fitting_budget,
    strip_end,
)
from headstart.dialects.dialect import (
    ENDED,
    Frame,
    MalformedAnswerError,
    UpstreamDialect,
    as_count,
    as_object,
    as_text,
    decode_document,
    decode_event,
    read_whole,
    unreadable,
)
from headstart.dialects.request_form import CACHE_POINT, mark_bedrock, turns_of
from headstart.dialects.requests import (
    TranslationLosses,
    budget_of,
    call_input,
    drop_extra,
    filled,
    strict_mode,
    write_dropped,
)
from headstart.errors import InvalidRequest, UpstreamProtocolError
from headstart.schemas import closed_schema, is_closed
from headstart.types import (
    ErrorReported,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    UsageReported,
    word_classes,
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.types import StreamEvent


_PRELUDE = struct.Struct(">III")
_CRC = struct.Struct(">I")
_LEAST = _PRELUDE.size + _CRC.size
_TEXT = 7
"""The type of a header whose value is a text."""
_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""The sizes of the values of other types; texts (7) and bytes (6) have their length before them."""


class MessageCutter:
    """Cuts a byte stream into messages. Raises UpstreamProtocolError for other bytes.

    A frame's ``event`` is the type of the event, or of the exception; its data is the payload.
    """

    def __init__(self, max_bytes: int = 16 * 2**20) -> None:
        self._max = max_bytes
        self.held: list[bytes] = []
        self._size = 0
        self._wanted = _PRELUDE.size

    def receive(self, data: bytes) -> bytes:
        """Return the bytes to cut messages from; none while no message is whole."""
        if not self.held:
            return data
        self._hold(data)
        if self._size < self._wanted:
            return b""
        whole = b"".join(self.held)
        self.held.clear()
        self._size = 0
        return whole

    def cut(self, block: bytes, start: int) -> Frame | None:
        """Return the message at ``start``; None if it is not whole yet. Then it is kept."""
        left = len(block) - start
        self._wanted = _PRELUDE.size
        if left >= _PRELUDE.size:
            self._wanted = self._length(block, start)
        if left < self._wanted or left < _LEAST:
            if left:
                self._hold(block[start:])
            return None
        return _parse(block[start : start + self._wanted])

    def rest(self) -> bytes:
        """Return the bytes after the last whole message."""
        return b"".join(self.held)

    def _length(self, block: bytes, start: int) -> int:
        """Return the length that the prelude names, once its checksum holds."""
        length, headers, checksum = _PRELUDE.unpack_from(block, start)
        if zlib.crc32(block[start : start + _PRELUDE.size - _CRC.size]) != checksum:
            raise UpstreamProtocolError("the head of a message has a wrong checksum")
        if not _LEAST + headers <= length <= self._max:
            raise UpstreamProtocolError(f"a message claims to have {length} bytes")
        return int(length)

    def _hold(self, data: bytes) -> None:
        self.held.append(data)
        self._size += len(data)


def _parse(raw: bytes) -> Frame:
    (checksum,) = _CRC.unpack_from(raw, len(raw) - _CRC.size)
    if zlib.crc32(raw[: -_CRC.size]) != checksum:
        raise UpstreamProtocolError("a message has a wrong checksum")
    end = _PRELUDE.size + _PRELUDE.unpack_from(raw)[1]
    headers = _read_headers(raw[_PRELUDE.size : end])
    payload = raw[end : -_CRC.size]
    match headers.get(b":message-type"):
        case b"exception":
            event = headers.get(b":exception-type")
        case b"error":
            event = headers.get(b":error-code", b"error")
            payload = headers.get(b":error-message", payload)
        case _:
            event = headers.get(b":event-type")
    return Frame(raw, payload, event)


def _read_headers(data: bytes) -> dict[bytes, bytes]:
    """Return the headers whose values are texts."""
    headers: dict[bytes, bytes] = {}
    at = 0
    try:
        while at < len(data):
            past = at + 1 + data[at]
            name, kind = data[at + 1 : past], data[past]
            past += 1
            if kind in _SIZES:
                at = past + _SIZES[kind]
                continue
            size = int.from_bytes(data[past : past + 2], "big")
            at = past + 2 + size
            if kind == _TEXT:
                headers[name] = data[past + 2 : at]
    except IndexError:
        at = len(data) + 1
    if at != len(data):
        raise UpstreamProtocolError("the headers of a message cannot be read")
    return headers


# --- Converse -------------------------------------------------------------------------------------

NAME = "bedrock-converse"
_Blocks: TypeAlias = list[dict[str, Any]]
REASONING = "reasoningContent"
"""Name under which reasoning comes."""

FINISHES = word_classes(
    {
        "stop": "end_turn stop_sequence",
        "length": "max_tokens model_context_window_exceeded",
        "tool_calls": "tool_use",
        "content_filter": "guardrail_intervened content_filtered",
    }
)
_STATUSES = {
    "internalServerException": 500,
    "modelStreamErrorException": 424,
    "modelTimeoutException": 408,
    "serviceUnavailableException": 503,
    "throttlingException": 429,
    "validationException": 400,
}
"""The statuses of errors that come inside a stream."""
_EVENTS = words_of("messageStart contentBlockStart contentBlockDelta messageStop metadata")
"""The events that are read; others need not be JSON."""


# --- answers ---------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class ConverseDecoder:
    """EventDecoder of ``/model/{id}/converse-stream``."""

    _calls: dict[int, int] = field(default_factory=dict)
    """The number of a tool call, by the number of its block."""

    def feed(self, frame: Frame) -> tuple[StreamEvent, ...]:
        """Return the events of a message; none for unknown events."""
        kind = "" if frame.event is None else frame.event.decode("utf-8", "replace")
        if kind in _STATUSES or kind.endswith(("Exception", "Error")):
            return (_error_of(kind, frame.data or b""),)
        if kind not in _EVENTS:
            return ()
        try:
            return self._read(kind, decode_event(frame.data or b"{}"))
        except MalformedAnswerError as error:
            return (unreadable(str(error)),)

    def _read(self, kind: str, event: dict[str, Any]) -> tuple[StreamEvent, ...]:
        match kind:
            case "messageStart":
                return (Started(), TextDelta(text=""))
            case "contentBlockStart":
                return self._start(_block_number(event), event.get("start"))
            case "contentBlockDelta":
                delta = as_object(event.get("delta"), "a delta")
                return self._delta(_block_number(event), delta)
            case "messageStop":
                return (_finished(event.get("stopReason")),)
            case "metadata":
                return (*_usage_in(event), *ENDED)
        return ()

    def _start(self, block: int, start: Any) -> tuple[StreamEvent, ...]:
        match start:
            case {"toolUse": dict(call)}:
                index = self._calls.setdefault(block, len(self._calls))
                id, name = as_text(call.get("toolUseId")), as_text(call.get("name"))
                return (ToolCallDelta(index=index, id=id, name=name),)
        return ()

    def _delta(self, block: int, delta: dict[str, Any]) -> tuple[StreamEvent, ...]:
        match delta:
            case {"text": str(text)}:
                return (TextDelta(text=text, block=block),)
            case {"toolUse": {"input": str(arguments)}}:
                index = self._calls.setdefault(block, len(self._calls))
                return (ToolCallDelta(index=index, arguments=arguments),)
            case {"reasoningContent": dict(reasoning)}:
                return _reasoning(reasoning, block)
        return ()


def decode_body(status: int, body: bytes) -> tuple[StreamEvent, ...]:
    """Read a whole answer: its events and Ended, or ErrorReported alone."""
    document = decode_document(body)
    if status >= 400:
        return (_read_error(document, status=status),)
    match document:
        case {"output": {"message": {"content": list()}}}:
            return read_whole(_whole, (document,))
    return (unreadable("the answer has no message"),)


def _whole(document: dict[str, Any]) -> list[StreamEvent]:
    events: list[StreamEvent] = [Started(), TextDelta(text="")]
    calls = 0
    for number, block in enumerate(document["output"]["message"]["content"]):
        match as_object(block, "a content block"):
            case {"text": str(text)}:
                events.append(TextDelta(text=text, block=number))
            case {"reasoningContent": dict(reasoning)}:
                events += _reasoning(reasoning.get("reasoningText", reasoning), number)
            case {"citationsContent": {"content": list(parts)}}:
                cited = (as_text(as_object(part, "a cited text").get("text")) for part in parts)
                events += (TextDelta(text=text, block=number) for text in cited if text)
            case {"toolUse": dict(call)}:
                events.append(
                    ToolCallDelta(
                        index=calls,
                        id=as_text(call.get("toolUseId")),
                        name=as_text(call.get("name")),
                        arguments=msgspec.json.encode(call.get("input", {})).decode(),
                    )
                )
                calls += 1
    return [*events, _finished(document.get("stopReason")), *_usage_in(document)]


def _reasoning(reasoning: Any, block: int) -> tuple[StreamEvent, ...]:
    if not isinstance(reasoning, dict):
        raise MalformedAnswerError("reasoning is not an object")
    text, signature = as_text(reasoning.get("text")), as_text(reasoning.get("signature"))
    if not text and not signature:
        return ()  # hidden reasoning: only the provider can read it
    return (ReasoningDelta(text=text or "", field=REASONING, signature=signature, block=block),)


def _finished(reason: Any) -> Finished:
    native = reason if isinstance(reason, str) else None
    return Finished(reason=FINISHES.get(native or "", "error"), native=native)


def _usage_in(fields: dict[str, Any]) -> tuple[StreamEvent, ...]:
    usage = fields.get("usage")
    return (UsageReported(usage=usage),) if isinstance(usage, dict) else ()


def _block_number(event: dict[str, Any]) -> int:
    number = event.get("contentBlockIndex")
    if type(number) is not int:
        raise MalformedAnswerError("a content block has no number")
    return number


def _error_of(kind: str, payload: bytes) -> ErrorReported:
    return _read_error(decode_document(payload), status=_STATUSES.get(kind, 500), code=kind)


def _read_error(document: Any, *, status: int, code: str | None = None) -> ErrorReported:
    """Read an error's body, ``{"message"}``; some parts of AWS write ``Message``."""
    fields = document if isinstance(document, dict) else {}
    message = as_text(fields.get("message")) or as_text(fields.get("Message"))
    kind = as_text(fields.get("__type"))
    return ErrorReported(
        message=message or "the provider reported an error",
        status=status,
        code=code or (None if kind is None else kind.rpartition("#")[2]),
    )


def _tokens(usage: dict[str, Any]) -> Tokens:
    """Return the counts of a usage object, whose input leaves out the prefix cache."""
    read = as_count(usage.get("cacheReadInputTokens"))
    written = as_count(usage.get("cacheWriteInputTokens"))
    return Tokens(
        prompt=as_count(usage.get("inputTokens")) + read + written,
        completion=as_count(usage.get("outputTokens")),
        cached=read,
        cache_write=written,
        hour_write=min(written, _kept_for_an_hour(usage.get("cacheDetails"))),
    )


def _kept_for_an_hour(details: Any) -> int:
    lives = details if isinstance(details, list) else []
    hour = [each for each in lives if isinstance(each, dict) and each.get("ttl") == "1h"]
    return sum(as_count(each.get("inputTokens")) for each in hour)


# --- requests --------------------------------------------------------------------------------


def write_request(asked: CanonicalRequest, quirks: Quirks) -> WrittenRequest:
    """Return the request for Bedrock. Raises InvalidRequest (see ``Dialect.write_request``)."""
    losses = TranslationLosses(NAME, refuse=quirks.refuse)
    if asked.choices > 1:
        raise InvalidRequest("n: this upstream gives one choice")
    drop_extra(asked, losses)
    system, messages = _messages(asked, losses)
    if CACHE_POINT in quirks.drops:
        system = _without_points(system)
        messages = [{**turn, "content": _without_points(turn["content"])} for turn in messages]
    document = {
        "messages": messages,
        **({"system": system} if system else {}),
        **_inference(asked, quirks, losses),
        **_tools(asked, losses),
        **_output(asked, quirks, losses),
    }
    fields = _model_fields(asked, quirks, losses)
    if fields:
        document["additionalModelRequestFields"] = fields
    losses.drop_filled(
        {
            "frequency_penalty": asked.frequency_penalty,
            "presence_penalty": asked.presence_penalty,
            "seed": asked.seed,
            "user": asked.user,
            "parallel_tool_calls": asked.parallel_tool_calls is False,
            "logprobs": asked.logprobs,
            "top_logprobs": asked.top_logprobs,
        }
    )
    operation = "converse-stream" if asked.stream else "converse"
    path = f"/model/{quote(asked.model, safe='')}/{operation}".encode()
    return write_dropped(path, document, quirks, losses)


def _without_points(blocks: _Blocks) -> _Blocks:
    return [block for block in blocks if CACHE_POINT not in block]


def _inference(
    asked: CanonicalRequest, quirks: Quirks, losses: TranslationLosses
) -> dict[str, Any]:
    limit = quirks.default_max_tokens if asked.max_tokens is None else asked.max_tokens
    sampling = {"temperature": asked.temperature, "topP": asked.top_p}
    if not quirks.sampling:
        losses.drop_filled({"temperature": asked.temperature, "top_p": asked.top_p})
        sampling = {}
    if (asked.temperature or 0) > 1 and sampling:
        losses.drop("temperature")
        del sampling["temperature"]
    settings = {"maxTokens": limit, **sampling, "stopSequences": list(asked.stop) or None}
    told = filled(settings)
    return {"inferenceConfig": told} if told else {}


def _model_fields(
    asked: CanonicalRequest, quirks: Quirks, losses: TranslationLosses
) -> dict[str, Any]:
    """Return the fields that only some models take, under the names that Claude has for them."""
    fields: dict[str, Any] = {}
    if asked.top_k is not None:
        if quirks.sampling:
            fields["top_k"] = asked.top_k
        else:
            losses.drop("top_k")
    budget = _budget(asked, quirks, losses)
    if budget is not None:
        fields["thinking"] = {"type": "enabled", "budget_tokens": budget}
    return fields


def _budget(asked: CanonicalRequest, quirks: Quirks, losses: TranslationLosses) -> int | None:
    """Return the tokens to think; None for a model that takes an effort, or cannot think now."""
    wish = asked.reasoning
    if wish is None or wish.enabled is False or wish.effort == "none":
        return None
    budget = wish.budget_tokens
    if budget is None:
        if wish.effort is None or quirks.thinking == "effort":
            return None
        budget = budget_of(wish.effort)
    fitting = fitting_budget(budget, asked)
    if fitting is None:
        losses.drop("reasoning")
    return fitting


def _output(asked: CanonicalRequest, quirks: Quirks, losses: TranslationLosses) -> dict[str, Any]:
    config: dict[str, Any] = {}
    wanted = asked.response_format
    if wanted is not None and wanted.kind != "text":
        config["textFormat"] = _format(wanted, losses)
    wish = asked.reasoning
    if wish is not None:
        losses.drop_filled({**wish.extra, "display": wish.shown is False})
        if wish.enabled is False or wish.effort == "none":
            losses.drop("reasoning")
        elif wish.effort is not None and wish.budget_tokens is None and quirks.thinking == "effort":
            config["effort"] = wish.effort
        elif wish.enabled and wish.budget_tokens is None:
            losses.drop("reasoning")
    return {"outputConfig": config} if config else {}


def _format(wanted: ResponseFormat, losses: TranslationLosses) -> dict[str, Any]:
    if wanted.schema is None:
        raise losses.refusal("response_format of type json_object (name a json_schema)")
    schema = {
        "schema": msgspec.json.encode(closed_schema(wanted.schema)).decode(),
        "name": wanted.name,
        "description": wanted.description,
    }
    return {"type": "json_schema", "structure": {"jsonSchema": filled(schema)}}


def _called_tools(asked: CanonicalRequest) -> tuple[Tool | ForeignTool, ...]:
    """Return the request's tools; if it has none, those that its earlier turns call.

    Bedrock refuses calls in a request without tools. Agents leave the tools out when they ask for a
    summary of the conversation.
    """
    if asked.tools:
        return asked.tools
    names = dict.fromkeys(
        part.name
        for message in asked.messages
        for part in message.parts
        if isinstance(part, CallPart)
    )
    return tuple(Tool(name=name, parameters={"type": "object"}) for name in names)


def _tools(asked: CanonicalRequest, losses: TranslationLosses) -> dict[str, Any]:
    choice = asked.tool_choice
    names = () if choice is None else choice.names
    mode = "auto" if choice is None else choice.mode
    # A choice limited to some tools is expressed by leaving out the others.
    sent = [
        tool
        for tool in _called_tools(asked)
        if not isinstance(tool, Tool) or not names or tool.name in names
    ]
    tools = [block for tool in sent for block in _tool(tool, losses)]
    if not tools:
        return {}
    check_arguments(sent, asked.model, losses)
    if mode == "none":
        if not _holds_calls(asked.messages):
            return {}
        losses.drop("tool_choice")  # Bedrock requires the tools of calls in the conversation
    chosen: dict[str, Any] = {}
    if mode in ("required", "named"):
        named = {"tool": {"name": names[0]}} if mode == "named" and len(names) == 1 else {"any": {}}
        chosen = {"toolChoice": named}
    return {"toolConfig": {"tools": tools, **chosen}}


def _holds_calls(messages: Sequence[Message]) -> bool:
    parts = (part for message in messages for part in message.parts)
    return any(isinstance(part, CallPart | ResultPart) for part in parts)


def _tool(tool: Tool | ForeignTool, losses: TranslationLosses) -> _Blocks:
    if not isinstance(tool, Tool):
        losses.refuse_foreign(tool)
    described = {"description": tool.description} if tool.description else {}
    strict = filled({"strict": strict_mode(tool.strict, tool.parameters, losses, is_closed)})
    schema = {"json": tool.parameters or {"type": "object", "properties": {}}}
    spec = {"name": tool.name, **described, "inputSchema": schema, **strict}
    return [{"toolSpec": spec}, *_cache_point(tool.extra, losses)]


# --- messages --------------------------------------------------------------------------------

_UNSAFE_TITLE = re.compile(r"[^A-Za-z0-9 \-()\[\]]+")
_FILES = {
    "application/pdf": "pdf",
    "text/plain": "txt",
    "text/markdown": "md",
    "text/csv": "csv",
    "text/html": "html",
    "application/msword": "doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
}
_IMAGES = frozenset({"png", "jpeg", "gif", "webp"})
_SOUNDS = {"audio/mpeg": "mp3", "audio/mp3": "mp3", "audio/wav": "wav", "audio/x-wav": "wav"}
_SOUNDS |= {f"audio/{kind}": kind for kind in ("aac", "flac", "ogg", "opus", "webm", "mp4", "pcm")}


def _messages(asked: CanonicalRequest, losses: TranslationLosses) -> tuple[_Blocks, _Blocks]:
    """Return ``system`` and the messages."""

    def write(message: Message) -> _Blocks:
        losses.drop_beside(message)
        return [block for part in message.parts for block in _blocks(part, losses)]

    system, turns = turns_of(asked.messages, write)
    if turns[-1][0] == "assistant":
        strip_end(turns[-1][1])
    return system, [{"role": role, "content": blocks} for role, blocks in turns]


def _blocks(part: MessagePart, losses: TranslationLosses) -> _Blocks:
    """Return the blocks for a part, and the mark after it, if a cached prefix ends there."""
    match part:
        case ReasoningPart():
            losses.drop_reasoning(part)
            return []
        case TextPart():
            # Bedrock refuses blank texts, which are common in other dialects.
            said: _Blocks = [{"text": part.text}] if part.text.strip() else []
        case MediaPart():
            said = [_media(part, losses)]
        case CallPart():
            said = [{"toolUse": _call(part)}]
        case ResultPart():
            said = [{"toolResult": _result(part, losses)}]
        case ForeignPart():
            losses.refuse_foreign(part)
    return [*said, *_cache_point(part.extra, losses)]


def _cache_point(extra: dict[str, Any], losses: TranslationLosses) -> _Blocks:
    """Return the block for Anthropic's ``cache_control``; other extras are lost."""
    losses.drop_filled({name: value for name, value in extra.items() if name != "cache_control"})
    match extra.get("cache_control"):
        case {"type": "ephemeral", **more}:
            ttl = {"ttl": more["ttl"]} if more.get("ttl") in ("5m", "1h") else {}
            return [{CACHE_POINT: {"type": "default", **ttl}}]
    return []


def _call(part: CallPart) -> dict[str, Any]:
    arguments = call_input(part.arguments)
    return {"toolUseId": safe_id(part.id)[:64], "name": part.name, "input": arguments}


def _result(part: ResultPart, losses: TranslationLosses) -> dict[str, Any]:
    content = [block for each in part.content for block in _blocks(each, losses)]
    for block in content:
        if not block.keys() & {"text", "image", "document"}:
            raise losses.refusal(f"a tool's result of type {next(iter(block))}")
    status = {"status": "error"} if part.is_error else {}
    return {"toolUseId": safe_id(part.id)[:64], "content": content or [{"text": "-"}], **status}


def _media(part: MediaPart, losses: TranslationLosses) -> dict[str, Any]:
    losses.drop_filled({"detail": None if part.detail == "auto" else part.detail})
    if part.data is None and not (part.url or "").startswith("s3://"):
        raise losses.refusal(f"content of type {part.kind} (by URL)")
    source: dict[str, Any] = (
        {"bytes": part.data} if part.data is not None else {"s3Location": {"uri": part.url}}
    )
    kind = part.media_type or ""
    if part.kind == "image":
        losses.drop_filled({"name": part.name})
        name = kind.removeprefix("image/").replace("jpg", "jpeg")
        if name not in _IMAGES:
            raise losses.refusal(f"content of type image ({kind})")
        return {"image": {"format": name, "source": source}}
    if part.kind == "audio":
        losses.drop_filled({"name": part.name})
        if kind not in _SOUNDS:
            raise losses.refusal(f"content of type audio ({kind})")
        return {"audio": {"format": _SOUNDS[kind], "source": source}}
    if kind not in _FILES:
        raise losses.refusal(f"content of type file ({kind})")
    title = _UNSAFE_TITLE.sub(" ", part.name or "document").strip()[:200] or "document"
    return {"document": {"format": _FILES[kind], "name": title, "source": source}}


BEDROCK_CONVERSE = UpstreamDialect(
    name=NAME,
    setting="bedrock",
    request_id_header=b"x-amzn-requestid",
    text_fields=frozenset({"text"}),
    stream_type="application/vnd.amazon.eventstream",
    cutter=MessageCutter,
    decoder=ConverseDecoder,
    decode_body=decode_body,
    mark_cache=mark_bedrock,
    tokens=_tokens,
    write_request=write_request,
)
