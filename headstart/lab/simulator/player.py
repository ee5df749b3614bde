"""Sends a scripted reply on time, with one write for all pieces that are due together."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, MutableMapping

    from headstart.lab.simulator.wire import Ending, ScriptedReply, TimedPiece

Message: TypeAlias = "MutableMapping[str, Any]"
Receive: TypeAlias = "Callable[[], Awaitable[Message]]"
Send: TypeAlias = "Callable[[Message], Awaitable[None]]"

_LINGER_ZERO = struct.pack("ii", 1, 0)
"""The ``struct linger`` with which close(2) sends RST."""


class PlayOutcome(StrEnum):
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    """The client left before the reply was whole."""
    BROKEN = "broken"
    """The simulator itself broke the connection off."""


@dataclass(slots=True, eq=False)
class Performance:
    """One reply that is being sent.

    ``deltas`` and ``sent`` (body bytes) grow meanwhile. ``head_s`` and ``first_token_s`` are the
    real seconds from the request to the headers and to the first token, None until then.
    """

    reply: ScriptedReply
    receive: Receive
    send: Send
    transport: asyncio.Transport | None
    speed: float = 1.0
    deltas: int = 0
    sent: int = 0
    head_s: float | None = None
    first_token_s: float | None = None
    _start: float = 0.0

    async def play(self) -> PlayOutcome:
        """Send the reply. Returns early, without error, when the client leaves.

        Raises RuntimeError when the reply needs a transport and there is none.
        """
        self._start = anyio.current_time()
        if self.reply.at_once:
            await self._send_head()
            self._count(sum(piece.delta for piece in self.reply.pieces))
            await self._send_body(b"".join([piece.data for piece in self.reply.pieces]), more=False)
            return PlayOutcome.COMPLETED
        if self.reply.needs_transport:
            self._connection()
        outcome = PlayOutcome.CANCELLED
        async with anyio.create_task_group() as group:
            group.start_soon(self._cancel_on_disconnect, group.cancel_scope)
            outcome = await self._play_on_time()
            group.cancel_scope.cancel()
        if self.reply.needs_transport:
            await self._disconnected()
        return outcome

    async def _cancel_on_disconnect(self, scope: anyio.CancelScope) -> None:
        await self._disconnected()
        scope.cancel()

    async def _disconnected(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def _play_on_time(self) -> PlayOutcome:
        reply = self.reply
        if reply.head_at_s is not None:
            await self._wait(reply.head_at_s)
            if reply.head_takes_s:
                await self._trickle()
                return PlayOutcome.COMPLETED
            await self._send_head()
            await self._send_pieces(reply.pieces)
        await self._wait(reply.ending_at_s)
        if reply.ending == "end":
            await self._send_body(b"", more=False)
            return PlayOutcome.COMPLETED
        self._break_off(reply.ending)
        return PlayOutcome.BROKEN

    async def _send_pieces(self, pieces: tuple[TimedPiece, ...]) -> None:
        """Send each piece when it is due; pieces that are due together share one write."""
        due: list[bytes] = []
        for piece in pieces:
            if due and self._seconds_until(piece.at_s) > 0:
                await self._send_body(b"".join(due), more=True)
                due.clear()
            await self._wait(piece.at_s)
            due.append(piece.data)
            self._count(piece.delta)
        if due:
            await self._send_body(b"".join(due), more=True)

    def _count(self, deltas: int) -> None:
        self.deltas += deltas
        if self.deltas and self.first_token_s is None:
            self.first_token_s = anyio.current_time() - self._start

    def _seconds_until(self, at_s: float) -> float:
        return self._start + at_s / self.speed - anyio.current_time()

    async def _wait(self, at_s: float) -> None:
        seconds = self._seconds_until(at_s)
        if seconds > 0:
            await anyio.sleep(seconds)

    async def _send_head(self) -> None:
        self.head_s = anyio.current_time() - self._start
        await self.send(
            {
                "type": "http.response.start",
                "status": self.reply.status,
                "headers": list(self.reply.headers),
            }
        )

    async def _send_body(self, data: bytes, *, more: bool) -> None:
        self.sent += len(data)
        await self.send({"type": "http.response.body", "body": data, "more_body": more})

    def _connection(self) -> asyncio.Transport:
        if self.transport is None:
            raise RuntimeError("this fault needs the transport: use headstart.lab.simulator.serve")
        return self.transport

    def _break_off(self, ending: Ending) -> None:
        """Close the connection after the bytes that were written."""
        if ending == "reset":
            raw = self._connection().get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self._connection().close()

    async def _trickle(self) -> None:
        """Write the head byte by byte past ASGI, then the body, and close."""
        reply = self.reply
        phrase = HTTPStatus(reply.status).phrase
        lines = [f"HTTP/1.1 {reply.status} {phrase}".encode(), b"connection: close"]
        lines += [name + b": " + value for name, value in reply.headers]
        head = b"\r\n".join(lines) + b"\r\n\r\n"
        self.head_s = anyio.current_time() - self._start
        for place in range(len(head)):
            await self._wait((reply.head_at_s or 0.0) + reply.head_takes_s * place / len(head))
            self._connection().write(head[place : place + 1])
        for piece in reply.pieces:
            await self._wait(piece.at_s)
            self._connection().write(piece.data)
            self.sent += len(piece.data)
            self._count(piece.delta)
        self._connection().close()
