"""An upstream in OpenAI's dialect that a test controls: it waits, breaks off and counts."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Received:
    """One call as the upstream saw it."""

    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: bytes) -> bytes | None:
        return dict(self.headers).get(name)


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    body = {
        "id": "up-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m-real",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    return b"data: " + json.dumps(body).encode() + b"\n\n"


USAGE = {"prompt_tokens": 30, "completion_tokens": 20, "total_tokens": 50}
USAGE_CHUNK = (
    b'data: {"id":"up-1","object":"chat.completion.chunk","created":1,"model":"m-real",'
    b'"choices":[],"usage":' + json.dumps(USAGE).encode() + b"}\n\n"
)


class ScriptedUpstream:
    """Answers chat calls with ``words``. ``hold`` (if set) is awaited before each word but the
    first; ``status``, ``body`` and ``headers`` override the answer; ``extra`` headers are added.
    """

    def __init__(self) -> None:
        self.calls: list[Received] = []
        self.words = ["Hello", " from", " upstream"]
        self.hold: asyncio.Semaphore | None = None
        self.head_hold: asyncio.Event | None = None
        self.status = 200
        self.body: bytes | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.finish = "stop"
        self.terminal = True

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await lifespan(receive, send)
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        call = Received(scope["raw_path"].decode(), scope["query_string"], scope["headers"], body)
        self.calls.append(call)
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(_watch(receive, call, asyncio.current_task()))
            try:
                await self._answer(call, send)
            except asyncio.CancelledError:
                if not call.left.is_set():
                    raise
                task = asyncio.current_task()
                assert task is not None
                task.uncancel()
            watch.cancel()

    async def _answer(self, call: Received, send: Any) -> None:
        if self.head_hold is not None:
            await self.head_hold.wait()
        if self.body is not None:
            await _whole(send, self.status, self.body, self.headers)
        elif call.body.startswith(b"{") and call.json.get("stream"):
            await self._stream(call, send)
        else:
            text = "".join(self.words)
            document = {
                "id": "up-1",
                "object": "chat.completion",
                "created": 1,
                "model": "m-real",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": text},
                        "finish_reason": self.finish,
                    }
                ],
                "usage": USAGE,
            }
            await _whole(send, self.status, json.dumps(document).encode(), self.headers)

    async def _stream(self, call: Received, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream"), *self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})

        async def write(data: bytes) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        await write(chunk({"role": "assistant", "content": ""}))
        for number, word in enumerate(self.words):
            if number and self.hold is not None:
                await self.hold.acquire()
            await write(chunk({"content": word}))
        if self.terminal:
            await write(chunk({}, self.finish))
            if (call.json.get("stream_options") or {}).get("include_usage"):
                await write(USAGE_CHUNK)
            await write(b"data: [DONE]\n\n")
        await send({"type": "http.response.body", "body": b""})


async def _whole(send: Any, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    own = [(b"content-length", b"%d" % len(body))]
    if not any(name == b"content-type" for name, _ in headers):
        own.append((b"content-type", b"application/json"))
    start = {"type": "http.response.start", "status": status, "headers": [*own, *headers]}
    await send(start)
    await send({"type": "http.response.body", "body": body})


async def _watch(receive: Any, call: Received, answering: asyncio.Task[Any] | None) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    call.left.set()
    assert answering is not None
    answering.cancel()


async def whole_body(receive: Any) -> bytes:
    """Read the body of a request."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def lifespan(receive: Any, send: Any) -> None:
    """Answer the messages of the lifespan, for an app without start and stop code."""
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return
