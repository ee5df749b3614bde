"""Reads a request body from ASGI once, with limits, and replays it for another app."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from headstart.errors import HeadstartError, RequestTimeout, RequestTooLarge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator

    from headstart.types import Headers, Message, Receive, Scope, Send


SLOWEST_BYTES_PER_S = 1024
"""Slowest rate of a client that is still sending its body."""


DROP_S = 30.0
"""Longest time for the rest of a body that was refused, as in nginx (``lingering_time``)."""
LONGEST_LENGTH = 19
"""Digits of a Content-Length that are read. Python refuses to read thousands of digits."""


CLIENT_GONE = 499
"""The booked status of clients that left before an answer began, the same as in nginx's logs."""


class ClientGone(HeadstartError):
    """The client closed the connection, so no answer is needed."""


async def end_unanswered(send: Send) -> int:
    """End a request whose client left before its answer began; return its status, 499.

    Nobody gets the status. But without an answer, middleware around Headstart would count a failure
    of the app, and Starlette's ``BaseHTTPMiddleware`` would raise RuntimeError.
    """
    with contextlib.suppress(OSError):  # by ASGI 2.4, what a server may raise if its client left
        await send({"type": "http.response.start", "status": CLIENT_GONE, "headers": []})
        await send({"type": "http.response.body", "body": b""})
    return CLIENT_GONE


def paced(
    receive: Receive, patience_s: float | None, begun: _WaitingReceive | None = None
) -> Receive:
    """Return a ``receive`` that raises RequestTimeout if a body stalls.

    It waits for the client for ``patience_s`` in total. Each piece that arrives gives time back: a
    second for each ``SLOWEST_BYTES_PER_S``. So a gap may last up to ``patience_s``, and a body of
    any length may take as long as it needs. After the whole body it waits without a limit until the
    client leaves. ``begun`` is a call of ``receive`` that is already waiting.
    """
    if patience_s is None:
        return receive
    left_s = patience_s
    whole = False

    async def receive_in_time() -> Message:
        nonlocal left_s, whole, begun
        if whole:
            return await receive()
        message = begun or _begin(receive)
        begun = None
        if isinstance(message, _WaitingReceive):  # a message that has arrived needs no timer
            loop = asyncio.get_running_loop()
            began = loop.time()
            try:
                async with asyncio.timeout(left_s):
                    message = await message
            except TimeoutError:
                raise RequestTimeout(
                    f"the request's body stopped coming: server.body_timeout_s ({patience_s:g}) "
                    f"bounds the wait for it, and {SLOWEST_BYTES_PER_S} bytes a second is the "
                    "slowest pace"
                ) from None
            left_s -= loop.time() - began
        came = len(message.get("body", b"")) / SLOWEST_BYTES_PER_S
        left_s = min(patience_s, left_s + came)
        whole = not message.get("more_body", False)
        return message

    return receive_in_time


class _WaitingReceive:
    """A call of ``receive`` that ran up to its first wait.

    Only the task that began it may await it.
    """

    __slots__ = ("_steps", "_waits_for")

    def __init__(self, steps: Iterator[object], waits_for: object) -> None:
        self._steps = steps
        self._waits_for = waits_for

    def __await__(self) -> Generator[object, Any, Message]:
        steps, waits_for = self._steps, self._waits_for
        throw = getattr(steps, "throw", None)  # granian's iterator has only ``__next__``
        try:
            while True:
                try:
                    yield waits_for
                except BaseException as error:
                    if throw is None:
                        raise
                    waits_for = throw(error)  # the waiting call gets the cancellation
                else:
                    waits_for = next(steps)
        except StopIteration as returned:
            message: Message = returned.value
            return message


def _begin(receive: Receive) -> Message | _WaitingReceive:
    """Call ``receive``. Return the message if it has arrived, else the call, which waits."""
    steps: Iterator[object] = receive().__await__()
    try:
        return _WaitingReceive(steps, next(steps))
    except StopIteration as returned:
        message: Message = returned.value
        return message


async def read_body(
    receive: Receive, limit: int, patience_s: float | None = None, headers: Headers = ()
) -> tuple[bytes, bool, bool]:
    """Read the body up to ``limit`` bytes; return it, whether it fits, and whether it has ended.

    A body that is too long is read only until this is known. If ``headers`` tell it, nothing is
    read, so a client that waits for 100 Continue does not get it.

    Raises ClientGone. With ``patience_s`` it raises RequestTimeout as ``paced`` does.
    """
    length = dict(headers).get(b"content-length", b"0")  # as ``declared_length``, without a call
    if length.isdigit() and int(length[:LONGEST_LENGTH]) > limit:
        return b"", False, False
    message = await receive() if patience_s is None else _begin(receive)
    if isinstance(message, _WaitingReceive):
        receive = paced(receive, patience_s, message)
        message = await receive()
    elif message.get("more_body", False):
        receive = paced(receive, patience_s)
    if message["type"] == "http.disconnect":
        raise ClientGone
    data: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        return data, len(data) <= limit, True
    parts = [data]
    size = len(data)
    while size <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        parts.append(part)
        size += len(part)
        if not message.get("more_body", False):
            return b"".join(parts), size <= limit, True
    return b"".join(parts), False, False


def refusing(scope: Scope, receive: Receive, send: Send, *, unread: bool, ended: bool) -> Send:
    """Return a ``send`` for the refusal of a body, which may not have ended.

    The client gets the whole answer at once. Many clients read no answer until they have sent the
    body, and none if the connection breaks meanwhile. So for ``DROP_S`` the rest is read and
    dropped, and then the connection is closed. A client that waits for 100 Continue sends no body
    if it is still ``unread``.
    """
    if ended:
        return send
    waits = (b"expect", b"100-continue") in [(n, value.lower()) for n, value in scope["headers"]]
    is_http_1 = scope.get("http_version", "1.1").startswith("1")  # HTTP/2 forbids this header

    async def send_first(message: Message) -> None:
        if message["type"] == "http.response.start" and is_http_1:
            message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        if message["type"] != "http.response.body" or message.get("more_body", False):
            return await send(message)
        await send({**message, "more_body": True})
        if not (unread and waits):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DROP_S):
                    while (await receive()).get("more_body", False):  # a disconnect has none
                        pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return send_first


def declared_length(headers: Headers) -> int | None:
    """Return the length that a body is to have; None if the headers do not tell it."""
    length = dict(headers).get(b"content-length", b"")
    return int(length[:LONGEST_LENGTH]) if length.isdigit() else None


def body_too_large(limit: int) -> RequestTooLarge:
    """Return the error for a body of more than ``limit`` bytes."""
    return RequestTooLarge(f"the body exceeds server.max_body_bytes ({limit})")


def replay_body(data: bytes, receive: Receive, *, complete: bool) -> Receive:
    """Return a ``receive`` that hands out the ``data`` read so far, then uses the real one."""
    handed = False

    async def replay() -> Message:
        nonlocal handed
        if handed:
            return await receive()
        handed = True
        return {"type": "http.request", "body": data, "more_body": not complete}

    return replay


async def iterate_body(receive: Receive) -> AsyncIterator[bytes]:
    """Yield a request body as it arrives. Raises ClientGone, and RequestTimeout where paced."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        if part := message.get("body", b""):
            yield part
        if not message.get("more_body", False):
            return


async def watch(receive: Receive, on_gone: Callable[[], object]) -> None:
    """Call ``on_gone`` once the client leaves. Cancel this task when that does not matter any more.

    Not every ASGI server raises from ``send`` after the client has left, but ``receive`` reports
    it. Some middleware repeats the end of the body on each call of ``receive``, without waiting.
    Then the client's leaving cannot be noticed, and further calls would block the event loop.
    """
    ended = False
    while (message := await receive())["type"] != "http.disconnect":
        if not message.get("more_body", False):
            if ended:
                return
            ended = True
    on_gone()
