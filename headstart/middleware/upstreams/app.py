"""The wrapped ASGI app as an upstream, so that middleware and gateway share one pipeline."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import anyio

from headstart.dialects.dialect import Dialect, unreadable
from headstart.errors import UpstreamProtocolError
from headstart.middleware.reading import BodyReader, body_reader
from headstart.reply import Reply, Transcript
from headstart.types import ASGIApp, Call, Headers, Message, Piece, Scope

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from headstart.middleware.concurrency import Spawn

logger = logging.getLogger("headstart")

_OF_ONE_CLIENT = frozenset(
    (b"accept-encoding", b"range", b"if-range", b"if-none-match", b"if-modified-since")
)
"""Headers about one client's own copy of an answer. They are removed, because others may share the
answer, whole and plain."""

_REPLACED = frozenset(("headers", "extensions"))
"""Fields of a scope that ``for_all`` changes."""
_UNREADABLE = (unreadable("the app's answer cannot be read"),)
_BROKEN = unreadable("the app raised an error at the end of its answer")
AT_END_S = 0.1
"""The longest wait for an error that an app raises right after its answer. The whole time passes
only at the end of a stream whose background tasks take longer."""


END_S = 2.0
"""Seconds for which a cancelled request waits for its app, which knows that the client left."""


class AppUpstream:
    """Answers one request by calling the wrapped app with the request's own ASGI scope.

    Others may get the same answer. So the app is asked for the whole answer, uncompressed, without
    this client's conditional headers, and in plain body messages. When no client waits any more,
    the app gets ``http.disconnect`` and may finish its work, as with any ASGI server. It is never
    cancelled.
    """

    name = "app"

    def __init__(self, app: ASGIApp, scope: Scope, dialect: Dialect | None, spawn: Spawn) -> None:
        self._app = app
        self._scope = scope
        self._dialect = dialect
        self._spawn = spawn
        self._task: asyncio.Task[None] | None = None

    async def ended(self, within_s: float | None = None) -> None:
        """Wait until the app has returned: its background tasks run after its answer.

        A server that stops waits for open requests, but not for tasks.
        """
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=within_s)

    async def send(self, call: Call) -> Reply:
        """Call the app and wait for ``http.response.start``. Raises the app's errors."""
        run = _AppRun(self._app, self._scope, call)
        self._task = self._spawn(run.main)
        try:
            start = await run.started
            headers: Headers = tuple(
                [(bytes(name).lower(), bytes(value)) for name, value in start.get("headers", ())]
            )
            reader = _Lenient(body_reader(start["status"], headers, self._dialect))
            # Without a length, only the events of a dialect tell whether an answer is whole.
            sized = self._dialect is not None or any(
                name == b"content-length" for name, _ in headers
            )
        except BaseException:
            await run.leave()
            raise
        transcript = Transcript()
        return Reply(
            self.name,
            start["status"],
            headers,
            _pieces(run, reader, transcript, sized=sized),
            closing=run.leave,
            transcript=transcript,
        )


async def _pieces(
    run: _AppRun, reader: BodyReader, transcript: Transcript, *, sized: bool
) -> AsyncGenerator[Piece]:
    """Yield the body as the app sends it. Raises the app's errors."""
    async for message in run.messages:
        data = message.get("body", b"")
        if data:
            piece = reader.feed(data)
            transcript.add(piece)
            yield piece
        if not message.get("more_body", False):
            piece = reader.end()
            if not sized and await run.fails_at_end():
                piece = Piece(piece.data, (*piece.events, _BROKEN))
            transcript.add(piece)
            yield piece
            return
    if run.failure:
        raise run.failure[0]
    raise UpstreamProtocolError("the wrapped app ended without finishing its answer")


def for_all(scope: Scope) -> Scope:
    """Return the scope for asking an app for an answer that others may get, too."""
    headers = [pair for pair in scope["headers"] if pair[0] not in _OF_ONE_CLIENT]
    # The server's extensions (a file by its path, trailers) would bypass the body messages.
    offered = scope.get("extensions") or {}
    kept = {name: of for name, of in offered.items() if not name.startswith("http.response.")}
    return {
        **scope,
        "headers": [*headers, (b"accept-encoding", b"identity")],
        "extensions": kept,
    }


def show_written(scope: Scope, of_app: Scope) -> None:
    """Show what the app wrote into its scope (its route, its endpoint) to middleware around."""
    scope.update({name: value for name, value in of_app.items() if name not in _REPLACED})


class _AppRun:
    """One run of the app, with its own receive and send."""

    def __init__(self, app: ASGIApp, scope: Scope, call: Call) -> None:
        self._app = app
        self._of_client = scope
        self._scope = for_all(scope)
        self._id = call.id
        self._body: bytes | None = call.body
        self._whole = False
        self.gone = asyncio.Event()
        self.returned = asyncio.Event()
        self.started: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.failure: list[Exception] = []
        self._sender: MemoryObjectSendStream[Message]
        self.messages: MemoryObjectReceiveStream[Message]
        self._sender, self.messages = anyio.create_memory_object_stream[Message](16)

    async def leave(self, error: BaseException | None = None) -> None:  # noqa: ARG002 - a Closing
        """Tell the app that nobody waits any more."""
        self.gone.set()
        self.messages.close()

    async def fails_at_end(self) -> bool:
        """Return whether the app raises as soon as it has ended its answer.

        Starlette's ``BaseHTTPMiddleware`` ends a stream that broke off as if it were whole, and
        raises the error afterwards.
        """
        if not self.returned.is_set():
            with anyio.move_on_after(AT_END_S):
                await self.returned.wait()
        return bool(self.failure)

    async def main(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._send)
        except Exception as error:
            self.failure.append(error)
            if not self.started.done():
                show_written(self._of_client, self._scope)
                self.started.set_exception(error)
            elif self._whole or self.gone.is_set():
                # A server, too, logs the errors after an answer.
                logger.exception(
                    "the app raised an error that no client sees, on %s %r (request %s)",
                    self._scope["method"],
                    self._scope["path"],
                    self._id,
                )
        finally:
            self.returned.set()
            self._sender.close()
            if not self.started.done():
                self.started.set_exception(
                    UpstreamProtocolError("the wrapped app returned without an answer")
                )

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and not self.started.done():
            show_written(self._of_client, self._scope)
            self.started.set_result(message)
        elif message["type"] == "http.response.body" and not self.gone.is_set():
            self._whole = not message.get("more_body", False)
            try:
                await self._sender.send(message)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return


class _Lenient(BodyReader):
    """Reads an app's answer for the cache. An unreadable answer passes nevertheless."""

    def __init__(self, reader: BodyReader) -> None:
        self._reader = reader

    def feed(self, data: bytes) -> Piece:
        try:
            return self._reader.feed(data)
        except Exception:  # noqa: BLE001 - whatever it is, the client gets the app's bytes
            self._reader = BodyReader()
            return Piece(data, _UNREADABLE)

    def end(self) -> Piece:
        try:
            return self._reader.end()
        except Exception:  # noqa: BLE001 - the same
            return Piece(b"", _UNREADABLE)
