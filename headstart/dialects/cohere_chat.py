"""Cohere's Chat, version 2, which only upstreams speak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headstart.attempts import Tokens
from headstart.canonical_request import (
    CallPart,
    CanonicalRequest,
    ForeignPart,
    MediaPart,
    Message,
    MessagePart,
    Quirks,
    ReasoningOptions,
    ReasoningPart,
    ResponseFormat,
    ResultPart,
    TextPart,
    Tool,
    ToolChoice,
    WrittenRequest,
)
from headstart.dialects.dialect import (
    ENDED,
    JSONDecoder,
    MalformedAnswerError,
    UpstreamDialect,
    as_count,
    as_list,
    as_object,
    as_text,
    decode_document,
    read_whole,
    unreadable,
)
from headstart.dialects.openai_requests import image_block
from headstart.dialects.requests import (
    TranslationLosses,
    budget_of,
    described_schema,
    drop_extra,
    filled,
    kept_stops,
    titled_text,
    write_dropped,
)
from headstart.errors import InvalidRequest
from headstart.types import (
    ErrorReported,
    ExtraDelta,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.types import StreamEvent

PLAN = "tool_plan"
THINKING = "thinking"
"""Names under which reasoning comes."""

FINISHES = {
    "COMPLETE": "stop",
    "STOP_SEQUENCE": "stop",
    "MAX_TOKENS": "length",
    "TOOL_CALL": "tool_calls",
}
_FAILURES = frozenset({"ERROR", "TIMEOUT"})


class ChatV2Decoder(JSONDecoder):
    """EventDecoder of ``POST /v2/chat``."""

    def read(self, event: dict[str, Any], name: bytes | None = None) -> tuple[StreamEvent, ...]:  # noqa: ARG002
        """Return the events of an object; none if its type is unknown."""
        delta = as_object(event.get("delta") or {}, "a delta")
        message = as_object(delta.get("message") or {}, "a delta's message")
        events: tuple[StreamEvent, ...] = ()
        match event.get("type"):
            case "message-start":
                events = (Started(id=as_text(event.get("id"))), TextDelta(text=""))
            case "content-start" | "content-delta":
                events = _read_content(message.get("content"), event.get("index"))
            case "tool-plan-delta":
                events = _reasoning(message.get(PLAN), PLAN)
            case "tool-call-start" | "tool-call-delta":
                events = (_read_call(message.get("tool_calls"), event.get("index")),)
            case "citation-start":
                events = (ExtraDelta(fields={"citations": [message.get("citations")]}),)
            case "message-end":
                events = (*_end(delta), *ENDED)
            case None if "message" in event:
                events = (read_error(event, None),)
        return events


def decode_body(status: int, body: bytes) -> tuple[StreamEvent, ...]:
    """Read a whole answer: its events and Ended, or ErrorReported alone."""
    document = decode_document(body)
    if status >= 400:
        return (read_error(document if isinstance(document, dict) else {}, status),)
    if not isinstance(document, dict) or not isinstance(document.get("message"), dict):
        return (unreadable("the answer has no message"),)
    return read_whole(_whole, (document,))


def read_error(document: dict[str, Any], status: int | None) -> ErrorReported:
    """Read an error's body, ``{"id"?, "message"}``."""
    message = as_text(document.get("message")) or "the provider reported an error"
    return ErrorReported(message=message, status=status)


def _whole(document: dict[str, Any]) -> list[StreamEvent]:
    message = document["message"]
    events: list[StreamEvent] = [Started(id=as_text(document.get("id"))), TextDelta(text="")]
    events += _reasoning(message.get(PLAN), PLAN)
    for index, block in enumerate(as_list(message.get("content"))):
        events += _read_content(block, index)
    for index, call in enumerate(as_list(message.get("tool_calls"))):
        events.append(_read_call(call, index))
    if citations := as_list(message.get("citations")):
        events.append(ExtraDelta(fields={"citations": citations}))
    events += _end(document)
    return events


def _read_content(block: Any, index: Any) -> tuple[StreamEvent, ...]:
    """Read a content block, or a piece of the block with this number."""
    block = as_object(block or {}, "a content block")
    place = index if type(index) is int else None
    if text := as_text(block.get(THINKING)):
        return _reasoning(text, THINKING, place)
    text = as_text(block.get("text"))
    return (TextDelta(text=text, block=place),) if text else ()


def _reasoning(text: Any, field: str, block: int | None = None) -> tuple[StreamEvent, ...]:
    text = as_text(text)
    return (ReasoningDelta(text=text, field=field, block=block),) if text else ()


def _read_call(call: Any, index: Any) -> ToolCallDelta:
    call = as_object(call, "a tool call")
    function = as_object(call.get("function") or {}, "a tool call's function")
    if type(index) is not int:
        raise MalformedAnswerError("a tool call has no number")
    arguments = function.get("arguments")
    return ToolCallDelta(
        index=index,
        id=as_text(call.get("id")),
        name=as_text(function.get("name")),
        arguments=arguments if isinstance(arguments, str) else "",
    )


def _end(fields: dict[str, Any]) -> tuple[StreamEvent, ...]:
    """Read how the answer ended, and its usage."""
    reason = as_text(fields.get("finish_reason"))
    events: list[StreamEvent] = []
    if reason in _FAILURES:
        message = as_text(fields.get("error")) or "the provider broke the answer off"
        return (ErrorReported(message=message, code=reason),)
    if reason is not None:
        events.append(Finished(reason=FINISHES.get(reason, "error"), native=reason))
    if isinstance(fields.get("usage"), dict):
        events.append(UsageReported(usage=fields["usage"]))
    return tuple(events)


NAME = "cohere-chat"
_MOST_STOPS = 5
_SEEDS = range(2**64)
_LEAST_P, _MOST_P = 0.01, 0.99
_LEAST = {"frequency_penalty": 0.0, "presence_penalty": 0.0}
_MOST = {"frequency_penalty": 1.0, "presence_penalty": 1.0, "k": 500}
"""Ranges that the API documents; it refuses a request with a value beyond them."""


def write_request(asked: CanonicalRequest, quirks: Quirks) -> WrittenRequest:
    """Return the request for Cohere. Raises InvalidRequest (see ``Dialect.write_request``)."""
    losses = TranslationLosses(NAME, refuse=quirks.refuse)
    if asked.choices > 1:
        raise InvalidRequest("n: this upstream gives one choice")
    drop_extra(asked, losses)
    document = {
        "model": asked.model,
        "stream": asked.stream,
        "messages": list(_messages(asked.messages, losses)),
        **_settings(asked, quirks, losses),
        **_sampling(asked, quirks, losses),
        **_tools(asked, losses),
    }
    lost = {
        "user": asked.user,
        "parallel_tool_calls": asked.parallel_tool_calls is False,
        # The API gives log probabilities of stretches of text, not of their tokens.
        "logprobs": asked.logprobs,
        "top_logprobs": asked.top_logprobs,
    }
    losses.drop_filled(lost)
    return write_dropped(b"/v2/chat", document, quirks, losses)


def _settings(asked: CanonicalRequest, quirks: Quirks, losses: TranslationLosses) -> dict[str, Any]:
    limit, seed = asked.max_tokens, asked.seed
    if seed is not None and seed not in _SEEDS:
        losses.drop("seed")
        seed = None
    settings = {
        "max_tokens": quirks.default_max_tokens if limit is None else limit,
        "seed": seed,
        "stop_sequences": kept_stops(asked, _MOST_STOPS, losses) or None,
        "response_format": _format(asked.response_format),
        "thinking": None if asked.reasoning is None else _thinking(asked.reasoning, losses),
    }
    return filled(settings)


def _sampling(asked: CanonicalRequest, quirks: Quirks, losses: TranslationLosses) -> dict[str, Any]:
    """Return temperature and its like, without what Cohere refuses."""
    wanted = {
        "temperature": asked.temperature,
        # Other APIs write 1 for all of the probability, Cohere 0.99.
        "p": None if asked.top_p is None else min(max(asked.top_p, _LEAST_P), _MOST_P),
        "k": asked.top_k,
        "frequency_penalty": asked.frequency_penalty,
        "presence_penalty": asked.presence_penalty,
    }
    sampling = filled(wanted)
    for name, value in filled(wanted).items():
        fits = _LEAST.get(name, value) <= value <= _MOST.get(name, value)
        if not (fits and quirks.sampling):
            losses.drop(f"top_{name}" if name in ("p", "k") else name)
            del sampling[name]
    return sampling


def _format(wanted: ResponseFormat | None) -> dict[str, Any] | None:
    if wanted is None or wanted.kind == "text":
        return None
    schema = described_schema(wanted)
    return {"type": "json_object", **({} if schema is None else {"json_schema": schema})}


def _thinking(wish: ReasoningOptions, losses: TranslationLosses) -> dict[str, Any] | None:
    losses.drop_filled(wish.extra)
    if wish.enabled is False or wish.effort == "none":
        return {"type": "disabled"}
    budget = wish.budget_tokens
    if budget is None and wish.effort is not None:
        budget = budget_of(wish.effort)
    if budget is None and not wish.enabled:
        return None
    return {"type": "enabled", **({} if budget is None else {"token_budget": budget})}


def _tools(asked: CanonicalRequest, losses: TranslationLosses) -> dict[str, Any]:
    if not asked.tools:
        return {}
    choice = asked.tool_choice
    names = () if choice is None else choice.names
    tools = []
    for tool in asked.tools:
        if not isinstance(tool, Tool):
            losses.refuse_foreign(tool)
        if not names or tool.name in names:
            # A choice limited to some tools is expressed by leaving out the others.
            tools.append({"type": "function", "function": _function(tool, losses)})
    return {"tools": tools, **_tool_choice(choice)}


def _function(tool: Tool, losses: TranslationLosses) -> dict[str, Any]:
    losses.drop_filled({"strict": tool.strict, **tool.extra})
    described = {} if tool.description is None else {"description": tool.description}
    empty = {"type": "object", "properties": {}}
    return {"name": tool.name, **described, "parameters": tool.parameters or empty}


def _tool_choice(choice: ToolChoice | None) -> dict[str, str]:
    mode = "auto" if choice is None else choice.mode
    return {} if mode == "auto" else {"tool_choice": "NONE" if mode == "none" else "REQUIRED"}


# --- messages --------------------------------------------------------------------------------


def _messages(messages: tuple[Message, ...], losses: TranslationLosses) -> Iterator[dict[str, Any]]:
    """Yield the messages. ``tool`` messages hold text, so images of results follow in another."""
    images: list[dict[str, Any]] = []
    for message in (*messages, None):
        if images and (message is None or message.role != "tool"):
            yield {"role": "user", "content": images}
            images = []
        for part in () if message is None else message.parts:
            if isinstance(part, ResultPart) and (found := list(filter(_is_image, part.content))):
                images.append({"type": "text", "text": f"Returned by the tool call {part.id}:"})
                images += [_block(image, losses) for image in found]
        if message is not None:
            yield from _message(message, losses)


def _is_image(part: MessagePart) -> bool:
    return isinstance(part, MediaPart) and part.kind == "image"


def _message(message: Message, losses: TranslationLosses) -> Iterator[dict[str, Any]]:
    """Yield the messages for this one. Each tool result becomes a message."""
    losses.drop_beside(message)
    if message.role == "tool":
        for part in message.parts:
            if isinstance(part, ResultPart):
                losses.drop_filled({"is_error": part.is_error, **part.extra})
                text = [piece for piece in part.content if not _is_image(piece)]
                found = _joined(tuple(text), losses)
                yield {"role": "tool", "tool_call_id": part.id, "content": found}
        return
    for part in message.parts:
        if isinstance(part, ReasoningPart):
            losses.drop_reasoning(part)
    calls = [_write_call(part, losses) for part in message.parts if isinstance(part, CallPart)]
    content = _write_content(message.parts, losses)
    role = "system" if message.role == "developer" else message.role
    if calls:
        said = {"content": content} if content else {}
        yield {"role": role, **said, "tool_calls": calls}
    elif content:
        yield {"role": role, "content": content}


def _write_call(part: CallPart, losses: TranslationLosses) -> dict[str, Any]:
    losses.drop_filled(part.extra)
    function = {"name": part.name, "arguments": part.arguments or "{}"}
    return {"id": part.id, "type": "function", "function": function}


def _write_content(
    parts: tuple[MessagePart, ...], losses: TranslationLosses
) -> str | list[dict[str, Any]]:
    said = [part for part in parts if isinstance(part, TextPart | MediaPart | ForeignPart)]
    if all(isinstance(part, TextPart) for part in said):
        return _joined(tuple(said), losses)
    return [_block(part, losses) for part in said]


def _block(part: TextPart | MediaPart | ForeignPart, losses: TranslationLosses) -> dict[str, Any]:
    if isinstance(part, ForeignPart):
        losses.refuse_foreign(part)
    losses.drop_filled(part.extra)
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if part.kind != "image":
        text = titled_text(part)
        if text is None:
            kind = part.media_type or "by URL"
            raise losses.refusal(f"content of type {part.kind} ({kind})")
        return {"type": "text", "text": text}
    return image_block(part, losses)


def _joined(
    parts: tuple[TextPart | MediaPart | ForeignPart, ...], losses: TranslationLosses
) -> str:
    """Return the text of parts that must be text alone. Raises InvalidRequest."""
    blocks = [_block(part, losses) for part in parts]
    for block in blocks:
        if "text" not in block:
            raise losses.refusal(f"a tool's result of type {block['type']}")
    return "\n".join(block["text"] for block in blocks)


def _tokens(usage: dict[str, Any]) -> Tokens:
    """Return the counts of a usage object; ``billed_units`` leave out the API's own prompt."""
    counted = usage.get("tokens") or usage.get("billed_units")
    counted = counted if isinstance(counted, dict) else {}
    return Tokens(
        prompt=as_count(counted.get("input_tokens")),
        completion=as_count(counted.get("output_tokens")),
        cached=as_count(usage.get("cached_tokens")),
    )


COHERE_CHAT = UpstreamDialect(
    name=NAME,
    setting="cohere",
    request_id_header=b"x-debug-trace-id",
    text_fields=frozenset({"text", "thinking"}),
    decoder=ChatV2Decoder,
    decode_body=decode_body,
    tokens=_tokens,
    write_request=write_request,
)
