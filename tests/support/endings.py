"""A provider on raw sockets that speaks every dialect and ends its bodies in unusual ways."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

TEXT = "Blue light scatters most."
WORDS = ("Blue light", " scatters", " most.")
TOKENS = (30, 20)
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ntransfer-encoding: chunked\r\n\r\n"


class Ending(NamedTuple):
    """How a body goes on and ends after the last event of its answer."""

    after_s: float | None = 0.0
    """When the body ends, in seconds; None: it does not end while the connection is open."""
    reset: bool = False
    """At this time the connection is reset, in place of a proper end."""
    chatter: bytes = b""
    """More bytes of the body, before its end."""
    endless: bool = False
    """The chatter is repeated without an end."""


ON_TIME = Ending()
"""The body ends with the event, in one packet."""


def frame(document: Any, event: str | None = None) -> bytes:
    named = b"" if event is None else b"event: %s\n" % event.encode()
    return named + b"data: " + json.dumps(document).encode() + b"\n\n"


def _openai(asked: dict[str, Any], words: Sequence[str]) -> list[bytes]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {"id": "up", "object": "chat.completion.chunk", "created": 1, "model": "m",
                "choices": [choice]}  # fmt: skip

    usage = {"prompt_tokens": TOKENS[0], "completion_tokens": TOKENS[1],
             "total_tokens": sum(TOKENS)}  # fmt: skip
    if not asked.get("stream"):
        message = {"role": "assistant", "content": "".join(words)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        whole = {**chunk({}), "object": "chat.completion", "choices": [choice], "usage": usage}
        return [json.dumps(whole).encode()]
    frames = [chunk({"role": "assistant", "content": ""})]
    frames += [chunk({"content": word}) for word in words]
    frames.append(chunk({}, "stop"))
    if (asked.get("stream_options") or {}).get("include_usage"):
        frames.append({**chunk({}), "choices": [], "usage": usage})
    return [*map(frame, frames), b"data: [DONE]\n\n"]


def _anthropic(asked: dict[str, Any], words: Sequence[str]) -> list[bytes]:
    usage = {"input_tokens": TOKENS[0], "output_tokens": TOKENS[1]}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m",
               "content": [{"type": "text", "text": "".join(words)}], "stop_reason": "end_turn",
               "stop_sequence": None, "usage": usage}  # fmt: skip
    if not asked.get("stream"):
        return [json.dumps(message).encode()]
    begun = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0,
             "delta": {"type": "text_delta", "text": word}}
            for word in words
        ),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None},
         "usage": {"output_tokens": TOKENS[1]}},
        {"type": "message_stop"},
    ]  # fmt: skip
    return [frame(event, event["type"]) for event in events]


def _responses(asked: dict[str, Any], words: Sequence[str]) -> list[bytes]:
    part = {"type": "output_text", "text": "".join(words), "annotations": [], "logprobs": []}
    item = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant",
            "content": [part]}  # fmt: skip
    usage = {"input_tokens": TOKENS[0], "output_tokens": TOKENS[1], "total_tokens": sum(TOKENS)}
    whole = {"id": "resp_1", "object": "response", "created_at": 1, "status": "completed",
             "model": "m", "output": [item], "usage": usage}  # fmt: skip
    if not asked.get("stream"):
        return [json.dumps(whole).encode()]
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    opening = {**item, "status": "in_progress", "content": []}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": opening},
        {"type": "response.content_part.added", **at, "part": {**part, "text": ""}},
        *({"type": "response.output_text.delta", **at, "delta": word} for word in words),
        {"type": "response.output_text.done", **at, "text": "".join(words)},
        {"type": "response.content_part.done", **at, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    numbered = [{**each, "sequence_number": number} for number, each in enumerate(events)]
    return [frame(each, each["type"]) for each in numbered]


def _gemini(words: Sequence[str], *, stream: bool) -> list[bytes]:
    def chunk(text: str, finish: str | None = None) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"parts": [{"text": text}], "role": "model"}}
        candidate |= {"finishReason": finish} if finish else {}
        usage = {"promptTokenCount": TOKENS[0], "candidatesTokenCount": TOKENS[1],
                 "totalTokenCount": sum(TOKENS)}  # fmt: skip
        return {"candidates": [{**candidate, "index": 0}], "usageMetadata": usage,
                "modelVersion": "m", "responseId": "up"}  # fmt: skip

    if not stream:
        return [json.dumps(chunk("".join(words), "STOP")).encode()]
    *first, last = words
    return [*(frame(chunk(word)) for word in first), frame(chunk(last, "STOP"))]


def _cohere(asked: dict[str, Any], words: Sequence[str]) -> list[bytes]:
    tokens = {"input_tokens": TOKENS[0], "output_tokens": TOKENS[1]}
    usage = {"billed_units": tokens, "tokens": tokens}
    if not asked.get("stream"):
        whole = {"id": "up", "finish_reason": "COMPLETE", "usage": usage,
                 "message": {"role": "assistant",
                             "content": [{"type": "text", "text": "".join(words)}]}}  # fmt: skip
        return [json.dumps(whole).encode()]
    empty = {"message": {"content": {"type": "text", "text": ""}}}
    events: list[dict[str, Any]] = [
        {"type": "message-start", "id": "up", "delta": {"message": {"role": "assistant"}}},
        {"type": "content-start", "index": 0, "delta": empty},
        *(
            {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": word}}}}
            for word in words
        ),
        {"type": "content-end", "index": 0},
        {"type": "message-end", "delta": {"finish_reason": "COMPLETE", "usage": usage}},
    ]
    return [frame(event, event["type"]) for event in events]


def answer(path: str, body: bytes, words: Sequence[str] = WORDS) -> tuple[list[bytes], bool]:
    """Return the frames of an answer, ending with its last event, and whether it streams."""
    if ":streamGenerateContent" in path or ":generateContent" in path:
        stream = ":stream" in path
        return _gemini(words, stream=stream), stream
    asked = json.loads(body)
    say = _anthropic if path.endswith("/messages") else _openai
    say = _cohere if path.endswith("/v2/chat") else say
    say = _responses if path.endswith("/responses") else say
    return say(asked, words), bool(asked.get("stream"))


@dataclass
class EndingProvider:
    """Counts calls and connections.

    ``cut`` frames are left out at the end of an answer, ``skip`` before its last one; ``more``
    frames are added. ``hold`` (if set) is awaited before the last frame.
    """

    ending: Ending = ON_TIME
    words: Sequence[str] = WORDS
    cut: int = 0
    skip: int = 0
    more: list[bytes] = field(default_factory=list)
    usage: bool = True
    hold: asyncio.Event | None = None
    calls: int = 0
    connections: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the other side closed a connection before the body had ended."""
    frames: list[bytes] | None = None
    """Frames to send in place of those of the answer."""
    last: bytes | None = None
    """A frame to send in place of the last one."""
    ended: int = 0
    """The number of bodies that have ended properly."""
    url: str = ""
    _handlers: set[asyncio.Task[Any]] = field(default_factory=set)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while await self._answer(reader, writer):
                    pass
        finally:
            self._handlers.discard(task)
            writer.close()

    @property
    def open(self) -> int:
        """Number of connections now."""
        return len(self._handlers)

    async def aclose(self) -> None:
        """Close what is open."""
        for handler in self._handlers:
            handler.cancel()
        if self._handlers:
            await asyncio.wait(tuple(self._handlers))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ", 2)[1]
        lines = head.lower().split("\r\n")
        lengths = [line for line in lines if line.startswith("content-length:")]
        body = await reader.readexactly(int(lengths[0].partition(":")[2])) if lengths else b""
        self.calls += 1
        frames, streams = answer(path, body, self.words)
        frames = self.frames or frames
        frames = [*frames[: len(frames) - self.cut], *self.more]
        if self.skip:
            del frames[-1 - self.skip : -1]
        if self.last is not None:
            frames[-1] = self.last
        if not self.usage:
            frames = [_without_usage(each) for each in frames]
        kind = b"text/event-stream" if streams else b"application/json"
        writer.write(_HEAD % kind)
        async with asyncio.TaskGroup() as tasks:
            gone = tasks.create_task(_gone(reader))
            try:
                return await self._end(frames, writer, gone)
            except ConnectionError:
                self.left.set()
                return False
            finally:
                gone.cancel()

    async def _end(
        self, frames: list[bytes], writer: asyncio.StreamWriter, gone: asyncio.Task[None]
    ) -> bool:
        """Send the answer and end its body; True where the connection may be used again."""
        *first, last = frames
        for each in first:
            writer.write(_chunk(each))
            await asyncio.sleep(0)
        while self.hold is not None and not self.hold.is_set():
            if await self._is_left(gone, 0.005):
                return False
        ending, end = self.ending, b"0\r\n\r\n"
        chatter = _chunk(ending.chatter) if ending.chatter else b""
        if ending is ON_TIME:
            writer.write(_chunk(last) + end)
            self.ended += 1
            return True
        writer.write(_chunk(last))
        await writer.drain()
        writer.write(chatter)
        while ending.endless:
            if await self._is_left(gone, 0.02):
                return False
            writer.write(chatter)
        if await self._is_left(gone, ending.after_s):
            return False
        if ending.reset:
            made: socket.socket = writer.get_extra_info("socket")
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return False
        writer.write(end)
        self.ended += 1
        return True

    async def _is_left(self, gone: asyncio.Task[None], within_s: float | None) -> bool:
        done, _ = await asyncio.wait((gone,), timeout=within_s)
        if done:
            self.left.set()
        return bool(done)


async def _gone(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        await reader.read(1)


def _without_usage(said: bytes) -> bytes:
    """Return one of Gemini's frames without its counts."""
    chunk = json.loads(said.removeprefix(b"data: "))
    if "candidates" not in chunk:
        return said
    return frame({name: value for name, value in chunk.items() if name != "usageMetadata"})


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@contextlib.asynccontextmanager
async def ending(provider: EndingProvider) -> AsyncIterator[EndingProvider]:
    """Serve a provider; leaving closes its connections."""
    server = await asyncio.start_server(provider._serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    provider.url = f"http://{host}:{port}"
    try:
        yield provider
    finally:
        server.close()
        await provider.aclose()
        await server.wait_closed()
