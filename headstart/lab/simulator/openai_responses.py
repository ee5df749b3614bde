"""OpenAI Responses: requests are read, and answers, streams and errors are written.

Over a WebSocket each ``response.create`` is answered with the events of a stream.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from headstart.lab.simulator.chat_request import (
    AskedMessage,
    BadRequest,
    ChatBody,
    JsonSchema,
    NamedTool,
    OfferedTool,
    WantedFormat,
    decode_as,
)
from headstart.lab.simulator.openai_chat import OpenAIWire, logprob_entries
from headstart.lab.simulator.simulated_calls import TimedPiece
from headstart.types import UNDECODABLE, Frozen

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from headstart.lab.simulator.oracle import Alternative
    from headstart.lab.simulator.simulated_calls import (
        Message,
        Pace,
        Receive,
        ScriptedError,
        Send,
        SimulatedAnswer,
        SimulatedRequest,
    )


PATH = b"/v1/responses"


async def serve_responses(
    app: Callable[[Message, Receive, Send], Awaitable[None]],
    scope: Message,
    receive: Receive,
    send: Send,
) -> None:
    """Serve one WebSocket. ``app`` answers each message as a streamed ``POST`` to the same path."""
    await receive()  # websocket.connect
    if scope["raw_path"] != PATH:
        return await send({"type": "websocket.close", "code": 1000})
    await send({"type": "websocket.accept"})
    asked: asyncio.Queue[str | bytes | None] = asyncio.Queue()
    gone = asyncio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(_read, receive, asked, gone)
        try:
            while not gone.is_set() and (text := await asked.get()) is not None:
                await _answer(app, scope, text, gone, send)
        except RuntimeError:  # an injected fault breaks the connection off
            await send({"type": "websocket.close", "code": 1011})
        group.cancel_scope.cancel()
    return None


async def _read(
    receive: Receive, asked: asyncio.Queue[str | bytes | None], gone: asyncio.Event
) -> None:
    while (message := await receive())["type"] == "websocket.receive":
        asked.put_nowait(message.get("text") or message.get("bytes") or "")
    gone.set()
    asked.put_nowait(None)


async def _answer(
    app: Callable[[Message, Receive, Send], Awaitable[None]],
    scope: Message,
    text: str | bytes,
    gone: asyncio.Event,
    send: Send,
) -> None:
    """Answer one message. Its events are those of the stream; other answers become an error."""
    try:
        body = msgspec.json.decode(text, type=dict[str, Any])
    except UNDECODABLE as error:
        return await _send_error(send, 400, {"message": f"not a JSON object: {error}"})
    if body.pop("type", None) != "response.create":
        return await _send_error(send, 400, {"message": "type: expected response.create"})
    asked = msgspec.json.encode({**body, "stream": True})
    sent = [{"type": "http.request", "body": asked, "more_body": False}]
    status, rest = 200, b""

    async def next_message() -> Message:
        if sent:
            return sent.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def take(message: Message) -> None:
        nonlocal status, rest
        if message["type"] == "http.response.start":
            status = message["status"]
            return
        rest += message["body"]
        if status != 200:
            return
        *frames, rest = rest.split(b"\n\n")
        for frame in frames:
            for line in frame.split(b"\n"):
                if line.startswith(b"data: ") and not gone.is_set():
                    await send({"type": "websocket.send", "text": line[6:].decode()})

    http = {"type": "http", "method": "POST", "raw_path": PATH, "query_string": b""}
    await app({**http, "headers": scope["headers"]}, next_message, take)
    if status != 200:
        await _send_error(send, status, msgspec.json.decode(rest)["error"])


async def _send_error(send: Send, status: int, error: dict[str, Any]) -> None:
    document = {"type": "error", "status": status, "error": error}
    await send({"type": "websocket.send", "text": msgspec.json.encode(document).decode()})


_encode = msgspec.json.encode
_LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED = "reasoning.encrypted_content"


class _ContentPart(Frozen):
    type: str
    text: str = ""


class _InputItem(Frozen):
    type: str = "message"
    role: str = "user"
    content: str | tuple[_ContentPart, ...] | None = None
    output: str | tuple[_ContentPart, ...] = ""


class _FlatTool(Frozen):
    type: str
    name: str = ""
    parameters: dict[str, Any] | None = None


class _Choice(Frozen):
    type: str
    name: str = ""


class _SchemaFormat(Frozen):
    type: str = "text"
    schema: dict[str, Any] = msgspec.field(default_factory=dict)


class _TextOptions(Frozen):
    format: _SchemaFormat | None = None


class _ReasoningWish(Frozen):
    effort: str | None = None
    summary: str | None = None


class _ResponsesBody(Frozen):
    model: str
    input: str | tuple[_InputItem, ...]
    instructions: str | None = None
    stream: bool | None = False
    max_output_tokens: int | None = None
    tools: tuple[_FlatTool, ...] | None = None
    tool_choice: str | _Choice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: _ReasoningWish | None = None
    text: _TextOptions | None = None
    include: tuple[str, ...] | None = None
    top_logprobs: int | None = None


class _Asked(ChatBody):
    """A request in the common terms, and which optional parts of a reasoning item it wants."""

    summary: bool = False
    encrypted: bool = False


_decoder = msgspec.json.Decoder(_ResponsesBody)


class ResponsesWire(OpenAIWire):
    """The dialect of ``POST /v1/responses``."""

    endpoint = "responses"
    broken_event = (
        b"event: response.output_text.delta\n"
        b'data: {"type":"response.output_text.delta","output_index":0,"delta":\n\n'
    )

    def read(self, incoming: SimulatedRequest) -> ChatBody:
        """Return the request in the common terms. Raises BadRequest."""
        body = decode_as(_decoder, incoming.body)
        messages = [AskedMessage(role="system", content=body.instructions)]
        if isinstance(body.input, str):
            messages.append(AskedMessage(role="user", content=body.input))
        else:
            messages += [_message(item) for item in body.input if item.type != "reasoning"]
        if len(messages) == 1:
            raise BadRequest("Missing required parameter: 'input'.")
        include, choice = body.include or (), body.tool_choice
        return _Asked(
            model=body.model,
            messages=tuple(messages[not body.instructions :]),
            stream=body.stream,
            logprobs=_LOGPROBS in include,
            top_logprobs=body.top_logprobs,
            max_tokens=body.max_output_tokens,
            tools=None if body.tools is None else tuple(map(_tool, body.tools)),
            tool_choice=NamedTool.of(choice.name) if isinstance(choice, _Choice) else choice,
            parallel_tool_calls=body.parallel_tool_calls,
            reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
            response_format=_format(body.text),
            summary=body.reasoning is not None and body.reasoning.summary is not None,
            encrypted=_ENCRYPTED in include,
        )

    def whole(self, answer: SimulatedAnswer) -> bytes:
        """Return the ``response`` object."""
        return _encode(_response(answer, _output(answer)))

    def events(self, answer: SimulatedAnswer, pace: Pace) -> Iterator[TimedPiece]:
        """Yield the events of a stream, numbered, each item from its beginning to its end."""
        numbers = iter(range(1_000_000))
        begun = {**_response(answer, []), "status": "in_progress", "usage": None}
        for kind in ("response.created", "response.in_progress"):
            yield TimedPiece(pace.ttft_s, _event(kind, next(numbers), response=begun))
        token, at_s = 0, pace.ttft_s
        output, alternative = _output(answer), answer.generation.alternatives[0]
        for index, item in enumerate(output):
            for kind, fields in _item_events(item, alternative):
                is_delta = kind.endswith(".delta")
                at_s = pace.at_s(token) if is_delta else at_s
                token += is_delta
                data = _event(kind, next(numbers), output_index=index, **fields)
                yield TimedPiece(at_s, data, delta=is_delta)
        response = _response(answer, output)
        last = _event(f"response.{response['status']}", next(numbers), response=response)
        yield TimedPiece(at_s, last, terminal=True)

    def error_event(self, error: ScriptedError, *, named: bool) -> bytes:
        """Return the ``error`` event."""
        return _event("error", 0, code=error.code, message=error.message, param=None)


def _event(kind: str, number: int, **fields: Any) -> bytes:
    data = _encode({"type": kind, "sequence_number": number, **fields})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def _message(item: _InputItem) -> AskedMessage:
    if item.type.endswith("_output"):
        return AskedMessage(role="tool", content=_text(item.output))
    role = "assistant" if item.type != "message" else item.role
    return AskedMessage(role=role, content=_text(item.content or ""))


def _text(content: str | tuple[_ContentPart, ...]) -> str:
    if isinstance(content, str):
        return content
    return AskedMessage.of("", [part.text for part in content]).text


def _tool(tool: _FlatTool) -> OfferedTool:
    if tool.type != "function":
        return OfferedTool()
    return OfferedTool.of(tool.name, tool.parameters)


def _format(text: _TextOptions | None) -> WantedFormat | None:
    wanted = None if text is None else text.format
    if wanted is None:
        return None
    return WantedFormat(type=wanted.type, json_schema=JsonSchema(schema=wanted.schema))


def _response(answer: SimulatedAnswer, output: list[dict[str, Any]]) -> dict[str, Any]:
    chat, finish = answer.chat, answer.generation.alternatives[0].finish
    reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
    reason = reasons.get(finish)
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": answer.created,
        "status": "completed" if reason is None else "incomplete",
        "background": False,
        "error": None,
        "incomplete_details": None if reason is None else {"reason": reason},
        "instructions": None,
        "max_output_tokens": chat.max_tokens,
        "metadata": {},
        "model": answer.model,
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": answer.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": answer.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
            "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        },
    }


def _output(answer: SimulatedAnswer) -> list[dict[str, Any]]:
    """Return the items of an answer."""
    alternative = answer.generation.alternatives[0]
    items: list[dict[str, Any]] = []
    if alternative.reasoning:
        items.append(_reasoning_item(alternative, answer))
    if alternative.tokens:
        items.append(_message_item(alternative, answer))
    for number, call in enumerate(alternative.tool_calls):
        items.append(
            {
                "id": f"fc_{answer.id}{number}",
                "type": "function_call",
                "status": "completed",
                "call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
            }
        )
    return items


def _reasoning_item(alternative: Alternative, answer: SimulatedAnswer) -> dict[str, Any]:
    chat = answer.chat
    item: dict[str, Any] = {"id": f"rs_{answer.id}", "type": "reasoning", "summary": []}
    if isinstance(chat, _Asked) and chat.summary:
        item["summary"] = [{"type": "summary_text", "text": "".join(alternative.reasoning)}]
    if isinstance(chat, _Asked) and chat.encrypted:
        item["encrypted_content"] = f"sealed:{answer.generation.class_id}"
    return item


def _message_item(alternative: Alternative, answer: SimulatedAnswer) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "refusal", "refusal": alternative.text}
    if not alternative.refusal:
        part = {"type": "output_text", "text": alternative.text, "annotations": []}
        part["logprobs"] = logprob_entries(answer.likelihoods(alternative.tokens) or ())
    status = "completed" if alternative.finish == "stop" else "incomplete"
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": [part],
    }


def _item_events(
    item: dict[str, Any], alternative: Alternative
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events of an item and their fields, without the number of the item."""
    place = {"item_id": item["id"]}
    empty = {"content": [], "summary": [], "arguments": "", "status": "in_progress"}
    begun = {name: empty.get(name, value) for name, value in item.items()}
    begun.pop("encrypted_content", None)
    yield "response.output_item.added", {"item": begun}
    for number, part in enumerate(item.get("summary", ())):
        at = {**place, "summary_index": number}
        yield "response.reasoning_summary_part.added", {**at, "part": {**part, "text": ""}}
        for token in alternative.reasoning:
            yield "response.reasoning_summary_text.delta", {**at, "delta": token}
        yield "response.reasoning_summary_text.done", {**at, "text": part["text"]}
        yield "response.reasoning_summary_part.done", {**at, "part": part}
    for number, part in enumerate(item.get("content", ())):
        yield from _part_events({**place, "content_index": number}, part, alternative)
    for call in alternative.tool_calls:
        if call.id == item.get("call_id"):
            for fragment in call.fragments:
                yield "response.function_call_arguments.delta", {**place, "delta": fragment}
            whole = {**place, "name": call.name, "arguments": call.arguments}
            yield "response.function_call_arguments.done", whole
    yield "response.output_item.done", {"item": item}


def _part_events(
    at: dict[str, Any], part: dict[str, Any], alternative: Alternative
) -> Iterator[tuple[str, dict[str, Any]]]:
    field = "refusal" if part["type"] == "refusal" else "text"
    stem = f"response.{part['type']}"
    listed = part.get("logprobs", [])
    begun = {**part, field: ""} | ({"logprobs": []} if "logprobs" in part else {})
    yield "response.content_part.added", {**at, "part": begun}
    for number, token in enumerate(alternative.tokens):
        logprobs = {"logprobs": listed[number : number + 1]} if "logprobs" in part else {}
        yield f"{stem}.delta", {**at, "delta": token, **logprobs}
    whole = {"logprobs": listed} if "logprobs" in part else {}
    yield f"{stem}.done", {**at, field: part[field], **whole}
    yield "response.content_part.done", {**at, "part": part}
