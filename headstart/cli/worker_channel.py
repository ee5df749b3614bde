"""The channel between the supervisor process and a worker: either side asks, the other answers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headstart.errors import HeadstartError
from headstart.observe import logger

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

_LENGTH_BYTES = 4


class ChannelClosed(HeadstartError):
    """The other process has ended."""


class ChannelFrame(NamedTuple):
    """A question, or the answer to question ``number``. ``kind`` is "" or "error" in an answer."""

    answers: bool
    number: int
    kind: str
    payload: bytes


class Channel:
    """Frames over a socket pair. ``answer`` answers the questions of the other side.

    ``run`` has to run while the channel is used. A HeadstartError of ``answer`` is raised on the
    other side with the same text.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answer: Callable[[str, bytes], Awaitable[bytes]],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._answer = answer
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._closed = False

    @classmethod
    async def over(
        cls, sock: socket.socket, answer: Callable[[str, bytes], Awaitable[bytes]]
    ) -> Channel:
        """Return a channel over one end of a socket pair, which it owns from now on."""
        sock.setblocking(False)  # noqa: FBT003 - the library's signature
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        return cls(reader, writer, answer)

    async def run(self) -> None:
        """Answer questions until the other side has ended."""
        try:
            async with asyncio.TaskGroup() as answers:
                while True:
                    head = await self._reader.readexactly(_LENGTH_BYTES)
                    body = await self._reader.readexactly(int.from_bytes(head, "big"))
                    frame = msgspec.msgpack.decode(body, type=ChannelFrame)
                    if frame.answers:
                        self._settle(frame)
                    else:
                        answers.create_task(self._reply(frame))
        except* (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.close()

    async def ask(self, kind: str, payload: bytes = b"") -> bytes:
        """Return the other side's answer. Raises HeadstartError, or ChannelClosed."""
        if self._closed:
            raise ChannelClosed("the other process has ended")
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(ChannelFrame(answers=False, number=number, kind=kind, payload=payload))
            return await self._waiting[number]
        finally:
            del self._waiting[number]

    def tell(self, kind: str, payload: bytes = b"") -> None:
        """Send a question whose answer nobody waits for."""
        if not self._closed:
            self._send(
                ChannelFrame(answers=False, number=next(self._numbers), kind=kind, payload=payload)
            )

    def close(self) -> None:
        """Close the channel: whoever waits for an answer gets none."""
        self._closed = True
        self._writer.close()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ChannelClosed("the other process has ended"))

    async def _reply(self, question: ChannelFrame) -> None:
        kind, payload = "", b""
        try:
            payload = await self._answer(question.kind, question.payload)
        except HeadstartError as error:
            kind, payload = "error", str(error).encode()
        except Exception:  # noqa: BLE001 - it is logged, and the other side goes on
            logger.exception("the question %r of another process failed", question.kind)
            kind, payload = "error", b"internal error"
        if not self._closed:
            self._send(
                ChannelFrame(answers=True, number=question.number, kind=kind, payload=payload)
            )

    def _settle(self, answer: ChannelFrame) -> None:
        waiting = self._waiting.get(answer.number)
        if waiting is None or waiting.done():
            return
        if answer.kind:
            waiting.set_exception(HeadstartError(answer.payload.decode()))
        else:
            waiting.set_result(answer.payload)

    def _send(self, frame: ChannelFrame) -> None:
        body = msgspec.msgpack.encode(frame)
        with contextlib.suppress(ConnectionError):
            self._writer.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
