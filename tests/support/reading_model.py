"""A provider whose model calls tools as a script says; it speaks three APIs."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from support.scripted import Received, ScriptedUpstream, chunk
from support.scripted_messages import event, opening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Says(NamedTuple):
    text: str


class Thinks(NamedTuple):
    text: str
    signature: str


class Calls(NamedTuple):
    id: str
    name: str
    arguments: dict[str, Any]


Answer = list[Says | Thinks | Calls]

USAGE = (1000, 20)
"""The tokens of the prompt and of the answer, for every call."""


class ReadingModel(ScriptedUpstream):
    """Gives the answers that ``script`` returns for a request's document.

    ``pause_s`` is the time between two events, so that each event arrives alone. Only the end of a
    content block arrives together with its last text.
    """

    def __init__(self, script: Callable[[dict[str, Any]], Answer], *, pause_s: float = 0.0) -> None:
        super().__init__()
        self.script = script
        self._pause_s = pause_s

    async def _answer(self, call: Received, send: Any) -> None:
        if self.status != 200:
            return await super()._answer(call, send)
        answer, stream = self.script(call.json), bool(call.json.get("stream"))
        if "/messages" in call.path:
            parts = _messages_stream(answer) if stream else [_message(answer)]
        elif "enerateContent" in call.path:
            stream = "stream" in call.path
            parts = [_candidates(answer, stream=stream)]
        else:
            asks_usage = bool((call.json.get("stream_options") or {}).get("include_usage"))
            parts = _chat_stream(answer, usage=asks_usage) if stream else [_chat(answer)]
        kind = b"text/event-stream" if stream else b"application/json"
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}
        )
        for part in parts:
            if b"content_block_stop" not in part:
                await asyncio.sleep(self._pause_s)
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _finish(answer: Answer, call: str, stop: str) -> str:
    return call if any(isinstance(each, Calls) for each in answer) else stop


def _chat_usage() -> dict[str, Any]:
    prompt, completion = USAGE
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _chat_call(each: Calls) -> dict[str, Any]:
    function = {"name": each.name, "arguments": json.dumps(each.arguments)}
    return {"id": each.id, "type": "function", "function": function}


def _chat(answer: Answer) -> bytes:
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    if said := "".join(each.text for each in answer if isinstance(each, Says)):
        message["content"] = said
    if calls := [_chat_call(each) for each in answer if isinstance(each, Calls)]:
        message["tool_calls"] = calls
    finish = _finish(answer, "tool_calls", "stop")
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    whole = {"id": "up-1", "object": "chat.completion", "created": 1, "model": "m-real"}
    return json.dumps({**whole, "choices": [choice], "usage": _chat_usage()}).encode()


def _chat_stream(answer: Answer, *, usage: bool) -> Iterator[bytes]:
    yield chunk({"role": "assistant", "content": ""})
    number = 0
    for each in answer:
        if isinstance(each, Says):
            for word in each.text.split(" "):
                yield chunk({"content": word + " "})
        elif isinstance(each, Calls):
            made = _chat_call(each)
            arguments = made["function"].pop("arguments")
            made["function"]["arguments"] = ""
            yield chunk({"tool_calls": [{"index": number, **made}]})
            for at in range(0, len(arguments), 7):
                piece = {"index": number, "function": {"arguments": arguments[at : at + 7]}}
                yield chunk({"tool_calls": [piece]})
            number += 1
    yield chunk({}, _finish(answer, "tool_calls", "stop"))
    if usage:
        last = {"id": "up-1", "object": "chat.completion.chunk", "created": 1, "model": "m-real",
                "choices": [], "usage": _chat_usage()}  # fmt: skip
        yield b"data: " + json.dumps(last).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for each in answer:
        match each:
            case Says(text):
                blocks.append({"type": "text", "text": text})
            case Thinks(text, signature):
                blocks.append({"type": "thinking", "thinking": text, "signature": signature})
            case Calls(id, name, arguments):
                blocks.append({"type": "tool_use", "id": id, "name": name, "input": arguments})
    return blocks


def _message(answer: Answer) -> bytes:
    prompt, completion = USAGE
    document = {
        "id": "msg_up",
        "type": "message",
        "role": "assistant",
        "model": "claude-real",
        "content": _blocks(answer),
        "stop_reason": _finish(answer, "tool_use", "end_turn"),
        "stop_sequence": None,
        "usage": {"input_tokens": prompt, "output_tokens": completion},
    }
    return json.dumps(document).encode()


_EMPTY: dict[str, dict[str, Any]] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}


def _messages_stream(answer: Answer) -> Iterator[bytes]:
    yield opening()
    for number, block in enumerate(_blocks(answer)):
        kind = block["type"]
        yield event("content_block_start", index=number, content_block={**block, **_EMPTY[kind]})
        for delta in _deltas(block):
            yield event("content_block_delta", index=number, delta=delta)
        yield event("content_block_stop", index=number)
    stop = {"stop_reason": _finish(answer, "tool_use", "end_turn"), "stop_sequence": None}
    yield event("message_delta", delta=stop, usage={"output_tokens": USAGE[1]})
    yield event("message_stop")


def _deltas(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if block["type"] == "text":
        for word in block["text"].split(" "):
            yield {"type": "text_delta", "text": word + " "}
    elif block["type"] == "thinking":
        yield {"type": "thinking_delta", "thinking": block["thinking"]}
        yield {"type": "signature_delta", "signature": block["signature"]}
    else:
        arguments = json.dumps(block["input"])
        for at in range(0, len(arguments), 7):
            yield {"type": "input_json_delta", "partial_json": arguments[at : at + 7]}


def _candidates(answer: Sequence[Any], *, stream: bool) -> bytes:
    parts: list[dict[str, Any]] = []
    for each in answer:
        if isinstance(each, Says):
            parts.append({"text": each.text})
        elif isinstance(each, Thinks):
            parts.append({"text": each.text, "thought": True})
        else:
            call = {"name": each.name, "args": each.arguments}
            parts.append({"functionCall": call, "thoughtSignature": f"sig-{each.id}"})
    prompt, completion = USAGE
    document = {
        "candidates": [
            {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
        ],
        "usageMetadata": {
            "promptTokenCount": prompt,
            "candidatesTokenCount": completion,
            "totalTokenCount": prompt + completion,
        },
        "modelVersion": "gemini-real",
        "responseId": "r-1",
    }
    data = json.dumps(document).encode()
    return b"data: " + data + b"\r\n\r\n" if stream else data
