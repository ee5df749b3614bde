"""An upstream that speaks Anthropic Messages and that a test controls like ScriptedUpstream."""

from __future__ import annotations

import json
from typing import Any

from support.scripted import Received, ScriptedUpstream

USAGE = {
    "input_tokens": 10,
    "cache_creation_input_tokens": 5,
    "cache_read_input_tokens": 15,
    "output_tokens": 20,
    "service_tier": "standard",
}


def event(kind: str, **fields: Any) -> bytes:
    """Return one event as the API frames it."""
    data = json.dumps({"type": kind, **fields}, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}   \n\n".encode()


def opening(model: str = "claude-real") -> bytes:
    """Return a stream's first event."""
    message: dict[str, Any] = {
        "id": "msg_up",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**USAGE, "output_tokens": 1},
    }
    return event("message_start", message=message)


class ScriptedMessages(ScriptedUpstream):
    """Answers with one text block of ``words``, or with ``content`` if that is set."""

    def __init__(self) -> None:
        super().__init__()
        self.finish = "end_turn"
        self.content: list[dict[str, Any]] | None = None

    async def _answer(self, call: Received, send: Any) -> None:
        if self.body is None and not call.json.get("stream"):
            self.body = self._document()
            try:
                return await super()._answer(call, send)
            finally:
                self.body = None
        await super()._answer(call, send)

    def _document(self) -> bytes:
        document = {
            "id": "msg_up",
            "type": "message",
            "role": "assistant",
            "model": "claude-real",
            "content": self.content or [{"type": "text", "text": "".join(self.words)}],
            "stop_reason": self.finish,
            "stop_sequence": None,
            "usage": USAGE,
        }
        return json.dumps(document).encode()

    async def _stream(self, call: Received, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), *self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})

        async def write(data: bytes) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        await write(opening())
        await write(event("ping"))
        if self.content is None:
            await self._write_words(write)
        for index, block in enumerate(self.content or ()):
            await write(_block_events(index, block))
        if self.terminal:
            delta = {"stop_reason": self.finish, "stop_sequence": None}
            await write(event("message_delta", delta=delta, usage={"output_tokens": 20}))
            await write(event("message_stop"))
        await send({"type": "http.response.body", "body": b""})

    async def _write_words(self, write: Any) -> None:
        block = {"type": "text", "text": ""}
        await write(event("content_block_start", index=0, content_block=block))
        for number, word in enumerate(self.words):
            if number and self.hold is not None:
                await self.hold.acquire()
            delta = {"type": "text_delta", "text": word}
            await write(event("content_block_delta", index=0, delta=delta))
        await write(event("content_block_stop", index=0))


def _block_events(index: int, block: dict[str, Any]) -> bytes:
    """Return a block as a stream tells it."""
    first, deltas = dict(block), []
    if block["type"] == "text":
        first["text"] = ""
        deltas = [{"type": "text_delta", "text": block["text"]}]
    elif block["type"] == "tool_use":
        first["input"] = {}
        deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
    elif block["type"] == "thinking":
        first |= {"thinking": "", "signature": ""}
        deltas = [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    return b"".join(
        (
            event("content_block_start", index=index, content_block=first),
            *(event("content_block_delta", index=index, delta=delta) for delta in deltas),
            event("content_block_stop", index=index),
        )
    )
