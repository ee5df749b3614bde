"""The WebSocket of Responses: each ``response.create`` is answered with the events of a stream."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headstart.lab.simulator.player import Message, Receive, Send

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
        except RuntimeError:  # a fault that breaks the connection off
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
    except msgspec.DecodeError as error:
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
