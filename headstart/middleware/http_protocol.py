"""The sidecar's HTTP server: uvicorn, with limits for request heads and a shutdown that drains."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import httptools
import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from headstart.errors import RequestError, UpstreamError
from headstart.middleware.asgi import ADMIN_PREFIX
from headstart.middleware.respond import WITH_BODY, json_headers, plain_error, send_whole
from headstart.observe import logger
from headstart.policies.callers import NamesMemo

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import FrameType

    from uvicorn._types import (
        ASGI3Application,
        ASGIReceiveCallable,
        ASGISendCallable,
        ASGISendEvent,
        Scope,
    )

MAX_HEAD_BYTES = 64 * 1024
MAX_QUEUED_BYTES = 32 * 1024
"""Bytes kept of requests that a connection sent while one is in progress."""
_REQUEST_BYTES = 256
"""Bytes that each request counts for in addition, so that many tiny requests are bounded, too."""
CONNECTIONS_FOR_CHECKS = 16
"""Connections above the limit. Of their requests, only health checks are answered."""
_CHECKS = (ADMIN_PREFIX + b"health", ADMIN_PREFIX + b"ready")
_REFUSED_S = 1.0
"""Seconds that the head and the body of a refused request may take."""
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 1\r\n"
    b"connection: close\r\n\r\n"
)
_FULL_BODY = plain_error(
    "too_many_connections", "too many connections are open: server.max_connections sets the limit"
)


class BoundedHeadProtocol(HttpToolsProtocol):
    """Bounds unfinished requests of a client, in bytes and in time.

    It answers 400 and closes the connection if a request's head is longer than ``MAX_HEAD_BYTES``,
    or what is between and after the chunks of its body. The parser collects headers without a
    bound, so a caller could fill the memory with them. Only complete reads are counted: a head that
    arrives in one read may have any length.

    It closes a connection if a head is not complete ``head_timeout_s`` after the connection was
    made, or, on a connection in use, after the head's first byte. The same limit applies to the
    rest of a body after its answer was sent. Meanwhile it reads and drops the rest, because a
    client that is cut off while it sends may not read the answer.

    It continues to read while requests wait for the one in progress, because otherwise it would not
    notice that the client leaves. It keeps ``MAX_QUEUED_BYTES`` of them. If there are more, or if
    they are not HTTP, it ignores all bytes after the last whole request, and closes the connection
    after the answer to that.
    """

    head_timeout_s: float | None = None
    max_connections: int | None = None
    """On more connections, each request but a health check is answered with 503."""
    told_full = False
    """Whether the log says that connections are refused."""

    _is_extra = False
    """The connection is one of ``CONNECTIONS_FOR_CHECKS``."""
    _in_head = False
    _in_body = False
    _head_bytes = 0
    _advances = False
    """The bytes that are being read end a head, or have a part of a body."""
    _waits: asyncio.TimerHandle | None = None
    _running: RequestResponseCycle | None = None
    _receive: _Receive | None = None
    """The ``receive`` of the request in progress."""
    _ignores = False
    """True: further bytes are read and dropped."""
    _received = b""
    """The bytes that are being read."""
    _refusal = ""
    """Why the newest request's head is refused."""
    _repeats_head = False
    """A new parser reads a head again, to know the length of the body. Its calls are ignored."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect a head."""
        super().connection_made(transport)
        self._queued: dict[RequestResponseCycle, int] = {}
        """The bytes kept of each request that waits for the one in progress."""
        extra = len(self.connections) - (self.max_connections or sys.maxsize)
        if extra > 0:
            # Some descriptors are reserved for upstreams and the store. Open connections go on.
            self._refuse_requests()
        if extra > CONNECTIONS_FOR_CHECKS:
            transport.write(_FULL)
            transport.close()
        else:
            self._wait()

    def _refuse_requests(self) -> None:
        """Answer only a health check, so that nobody restarts a server because it is busy."""
        self._is_extra, self.head_timeout_s = True, _REFUSED_S
        self.app = partial(_answer_a_check, self.app)
        if not type(self).told_full:
            type(self).told_full = True  # no access log and no books show them
            logger.warning(
                "%d connections are open: new ones get 503. server.max_connections sets the limit",
                self.max_connections,
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing more, and tell the request in progress (perhaps not the newest one)."""
        self._wait_no_more()
        super().connection_lost(exc)
        running: RequestResponseCycle | None = self._running
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
            if self._receive is not None:
                self._receive.tell()
        self.pipeline.clear()
        self._queued.clear()

    def on_message_begin(self) -> None:
        """Begin to count."""
        if self._repeats_head:
            return
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        """Stop counting."""
        self._in_head = False
        if self._ignores or self._repeats_head:
            return
        self._refusal = self._fault_of_head()
        if self._refusal:
            raise ValueError(self._refusal)  # the parser stops, and uvicorn calls send_400_response
        self._in_body = self._advances = True
        self._wait_no_more()
        super().on_headers_complete()
        if self.pipeline and self.pipeline[0][0] is self.cycle:
            head = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            self._keep(_REQUEST_BYTES + head)

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body."""
        self._advances = True
        if self._ignores:
            return
        super().on_body(body)
        if self.cycle in self._queued:
            self._keep(len(body))

    def on_message_complete(self) -> None:
        """The client has sent the whole request."""
        if self._ignores or (self._declines_upgrade() and self._framing()):
            return
        self._in_body = False
        self._wait_no_more()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Expect the rest of a body that was answered before it was complete."""
        super().on_response_complete()
        if self._in_body:
            self._wait()

    def data_received(self, data: bytes) -> None:
        """Parse the bytes that arrived."""
        if not self._ignores:
            self._received, self._advances = data, False
            super().data_received(data)
        if self._ignores or self.transport.is_closing():
            return
        if self._in_head or self._in_body:
            self._head_bytes = 0 if self._advances else self._head_bytes + len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                return self.send_400_response("The request's headers are too large.")
        cycle: RequestResponseCycle | None = self.cycle
        if self._in_head or cycle is None or cycle.response_complete:
            # Any byte, even of an empty line, ends uvicorn's wait for the next request.
            self._wait()

    def send_400_response(self, msg: str) -> None:
        """Refuse the bytes, unless an answer has to go out first."""
        running = self._running
        if running is None or running.response_complete or running.more_body:
            super().send_400_response(self._refusal or msg)
        else:
            self._ignore_the_rest()

    def _fault_of_head(self) -> str:
        """Return why RFC 9112 forbids a head that the parser accepts; "" if it does not."""
        names = [name for name, _ in self.headers]
        hosts = names.count(b"host")
        if hosts > 1 or (not hosts and self.parser.get_http_version() != "1.0"):
            return "The request needs exactly one Host header."
        if b"transfer-encoding" in names:
            codings = [value for name, value in self.headers if name == b"transfer-encoding"]
            if [value.strip().lower() for value in codings] != [b"chunked"]:
                return "The only transfer coding that is understood is chunked."
        return ""

    def _keep(self, size: int) -> None:
        """Count bytes of the newest request, which is queued, and read on."""
        self._queued[self.cycle] = self._queued.get(self.cycle, 0) + size
        if sum(self._queued.values()) > MAX_QUEUED_BYTES:
            self._ignore_the_rest()
        else:
            self.flow.resume_reading()

    def _ignore_the_rest(self) -> None:
        """Let the last whole request be the connection's last."""
        self._ignores = True
        self._in_body = False
        self._wait_no_more()
        if self.cycle in self._queued and self.cycle.more_body:
            del self._queued[self.cycle]
            self.pipeline.popleft()
        last = next(reversed(self._queued), self._running)
        assert last is not None  # bytes are only ignored behind a request that is in progress
        self.cycle = last
        last.keep_alive = False
        self.flow.resume_reading()

    def _should_upgrade(self) -> bool:
        """Tell whether a request becomes a WebSocket. During an answer it does not."""
        running = self._running
        is_free = running is None or running.response_complete
        return is_free and not self._is_extra and super()._should_upgrade()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over. This object gets no more bytes."""
        self._ignores = True
        self._wait_no_more()
        super().handle_websocket_upgrade()

    def on_url(self, url: bytes) -> None:
        """Keep the target."""
        if not self._repeats_head:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header. A trailer field is ignored: a proxy in front has not checked it."""
        if self._in_head:
            HttpToolsProtocol.on_header(self, name, value)  # ``super()`` costs more, for each one

    def _declines_upgrade(self) -> bool:
        return bool(self.parser.should_upgrade()) and not self._should_upgrade()

    def _framing(self) -> bytes:
        """Return the headers of the newest request that give the length of its body."""
        names = (b"content-length", b"transfer-encoding")
        pairs = [pair for pair in self.headers if pair[0] in names]
        return b"".join(b"%b: %b\r\n" % pair for pair in pairs)

    def _unsupported_upgrade_warning(self) -> None:
        """Read on: the request is answered without the upgrade, and nothing is logged.

        The HTTP client of Java asks for HTTP/2 like this with its first request. The parser stops
        after the head of such a request, so another one reads the body and what follows.
        """
        upgrade = sys.exception()
        assert isinstance(upgrade, httptools.HttpParserUpgrade)
        framing = self._framing()
        self.parser = httptools.HttpRequestParser(self)
        if framing:
            self._repeats_head = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing)
            self.parser.feed_data(b"\r\n")
            self._repeats_head = False
        if rest := self._received[upgrade.args[0] :]:
            self._received = rest
            super().data_received(rest)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        if self._is_extra:
            cycle.keep_alive = False
        if self._queued:
            self._queued.pop(cycle, None)
        self._receive = receive = _Receive(cycle.receive)
        super()._start_asgi_task(cycle, partial(_break_off_quietly, self.loop, cycle, receive, app))

    def _wait(self) -> None:
        if self._waits is None and self.head_timeout_s is not None:
            self._waits = self.loop.call_later(self.head_timeout_s, self._give_up)

    def _wait_no_more(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None

    def _give_up(self) -> None:
        self._waits = None
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            # The head of the next request is late: the answer to this one still goes out.
            cycle.keep_alive = False
        elif not self.transport.is_closing():
            self.transport.close()


async def _answer_a_check(
    app: ASGI3Application, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
) -> None:
    """Let the app answer a health check, and refuse other requests.

    The body is read first: a client may not read an answer if it is cut off while it sends.
    """
    if scope["type"] == "http" and scope["raw_path"] in _CHECKS:
        return await app(scope, receive, send)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REFUSED_S):
            while (await receive()).get("more_body", False):
                pass
    headers = [*json_headers(_FULL_BODY), (b"retry-after", b"1")]
    await send_whole(send, 503, headers, _FULL_BODY)  # type: ignore[arg-type]


def websocket_protocol(**options: Any) -> asyncio.Protocol:
    """Return the protocol of a connection that becomes a WebSocket.

    The first one loads the library, because most deployments have none.
    """
    from headstart.middleware.websocket_protocol import QuietWebSocket

    return QuietWebSocket(**options)


def _do_nothing() -> None:
    """Do nothing."""


class _Receive(partial[Any]):
    """The ``receive`` of a request. It can also call a function when the client leaves.

    So a call needs no task that waits for this (``watch`` in ``body.py``). It is a ``partial``
    because its call, which each request makes, then takes no function in Python.
    """

    _on_gone: Callable[[], object] = staticmethod(_do_nothing)

    def when_gone(self, on_gone: Callable[[], object]) -> _Receive:
        """Call ``on_gone`` once the client leaves, but not before this returns, nor if cancelled.

        Call it after the whole body was received.
        """
        cycle: RequestResponseCycle = self.func.__self__  # type: ignore[attr-defined]
        self._on_gone = on_gone
        if cycle.disconnected:
            asyncio.get_running_loop().call_soon(self.tell)
        else:
            cycle.flow.resume_reading()  # as ``receive`` does: a long body pauses it
        return self

    def cancel(self) -> None:
        """Call nothing any more."""
        self._on_gone = _do_nothing

    def tell(self) -> None:
        """Note that the client has left."""
        on_gone, self._on_gone = self._on_gone, _do_nothing
        on_gone()


async def _break_off_quietly(
    loop: asyncio.AbstractEventLoop,
    cycle: RequestResponseCycle,
    receive: ASGIReceiveCallable,
    app: ASGI3Application,
    scope: Scope,
    _: ASGIReceiveCallable,
    send: ASGISendCallable,
) -> None:
    """Break off an answer whose upstream broke off, with a line in the log, not a traceback.

    The app gets ``receive`` in place of the server's.
    """
    if cycle.scope["http_version"] == "1.0":
        cycle.waiting_for_100_continue = False  # HTTP/1.0 has no interim answers
        cycle.chunked_encoding = False
        send = partial(_send_until_closed, cycle, send)
    elif cycle.waiting_for_100_continue:
        send = partial(_send_before_the_body, loop, cycle, send)
    else:
        send = partial(_send, loop, cycle, send)
    try:
        await app(scope, receive, send)
        if cycle.response_started and not cycle.response_complete:
            _end_without_answer(cycle)
    except (RequestError, UpstreamError) as error:
        if not cycle.response_started:
            raise
        # The failure log warns of the upstream, once a minute for each cause.
        logger.info("an answer that had begun was broken off: %s", error)
        _end_without_answer(cycle)
    except asyncio.CancelledError:
        # The server stops and waits no longer. uvicorn would log a traceback for each request.
        _end_without_answer(cycle)


async def _send(
    loop: asyncio.AbstractEventLoop,
    cycle: RequestResponseCycle,
    send: ASGISendCallable,
    message: ASGISendEvent,
) -> None:
    if cycle.response_started or not _begin_answer(loop, cycle, message):
        await send(message)


def _begin_answer(
    loop: asyncio.AbstractEventLoop, cycle: RequestResponseCycle, message: ASGISendEvent
) -> bool:
    """Write the head of a usual answer, as uvicorn does, for a quarter of its instructions.

    uvicorn looks at each header with two regular expressions. What follows from the names is
    remembered here, and the values are looked at together. The head leaves together with the first
    piece of the body, if that follows at once. Return False for another message, or if the head is
    not usual: uvicorn then writes it, or refuses it.
    """
    is_usual = cycle.keep_alive and cycle.chunked_encoding is None and not cycle.access_log
    is_free = not (cycle.disconnected or cycle.flow.write_paused)
    if not (is_usual and is_free and message["type"] == "http.response.start"):
        return False
    status, headers = message["status"], [*cycle.default_headers, *message.get("headers", ())]
    values = tuple([value for _, value in headers])
    form = _head_forms[tuple([name for name, _ in headers])]
    written = b"".join(values)
    has_body = status >= 200 and status not in (204, 304) and cycle.scope["method"] != "HEAD"
    if form is None or not has_body or len(written.translate(None, _UNWRITABLE)) != len(written):
        return False
    if form.length is None:
        cycle.chunked_encoding = True
    else:
        cycle.chunked_encoding, cycle.expected_content_length = False, int(values[form.length])
    cycle.response_started, cycle.waiting_for_100_continue = True, False
    head = _UnsentHead(cycle, STATUS_LINE[status] + form.lines % values)
    if WITH_BODY not in message:
        loop.call_soon(head.leave)
    return True


class _UnsentHead:
    """The head of an answer, in place of the cycle's connection until it is written.

    It leaves with what is written next. If nothing may follow at once, ``leave`` has to be called
    at the end of this turn of the event loop. So a whole answer is one call of the system and one
    packet, not two.
    """

    __slots__ = ("_cycle", "_head", "_transport")

    def __init__(self, cycle: RequestResponseCycle, head: bytes) -> None:
        self._cycle, self._head, self._transport = cycle, head, cycle.transport
        cycle.transport = self  # type: ignore[assignment]

    def write(self, data: bytes) -> None:
        """Write the head and a piece of the body.

        asyncio's own ``writelines`` is not used: in Python 3.12 and 3.13 it tries without end to
        send an empty piece, fails if the client has left, and does not pause a fast app.
        """
        self._cycle.transport = self._transport
        self._transport.write(self._head + data)

    def leave(self) -> None:
        """Write the head, if nothing has followed it. uvloop takes nothing if the client left."""
        connection: object = self._cycle.transport
        if connection is self:
            self._cycle.transport = self._transport
            if not self._transport.is_closing():
                self._transport.write(self._head)

    def close(self) -> None:
        """Write the head, and close the connection."""
        self.leave()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _HeadForm(msgspec.Struct, frozen=True):
    """What follows from the names of the headers of an answer."""

    lines: bytes
    """The lines of the headers, with ``%b`` in place of each value."""
    length: int | None
    """The place of ``content-length``. None: the body is sent in chunks."""


_UNWRITABLE = bytes([*range(9), *range(10, 32), 127])
"""Control characters, which uvicorn refuses in a value."""
_OF_THE_CONNECTION = (b"connection", b"transfer-encoding")


def _head_form(names: tuple[bytes, ...]) -> _HeadForm | None:
    """Return the form of a usual head; None: uvicorn has to write it."""
    lower = [name.lower() for name in names]
    lengths = [place for place, name in enumerate(lower) if name == b"content-length"]
    if len(lengths) > 1 or any(name in _OF_THE_CONNECTION for name in lower):
        return None
    if any(HEADER_RE.search(name) for name in lower):
        return None
    lines = b"".join([name.replace(b"%", b"%%") + b": %b\r\n" for name in lower])
    if lengths:
        return _HeadForm(lines + b"\r\n", lengths[0])
    return _HeadForm(lines + b"transfer-encoding: chunked\r\n\r\n", None)


_head_forms = NamesMemo(_head_form)


def _end_without_answer(cycle: RequestResponseCycle) -> None:
    cycle.disconnected = True  # the server then expects no end of the answer
    cycle.transport.close()


async def _send_until_closed(
    cycle: RequestResponseCycle, send: ASGISendCallable, message: ASGISendEvent
) -> None:
    """Send to a client of HTTP/1.0, which knows no chunks: the answer ends with the connection."""
    if message["type"] == "http.response.body":
        cycle.expected_content_length = len(message.get("body", b""))
    await send(message)


async def _send_before_the_body(
    loop: asyncio.AbstractEventLoop,
    cycle: RequestResponseCycle,
    send: ASGISendCallable,
    message: ASGISendEvent,
) -> None:
    """Send to a client that waits for permission (100 Continue) before it sends its body.

    After a refusal some clients still send the body, and others send their next request, which
    would be read as the body. So the connection does not serve another request.
    """
    if cycle.waiting_for_100_continue and cycle.more_body and not cycle.body:
        cycle.keep_alive = False
    await _send(loop, cycle, send, message)


CANCELS_AGAIN_S = 2.0
"""A start that continues after a signal is cancelled again after this many seconds."""


class DrainingServer(uvicorn.Server):
    """A uvicorn that drains for ``drain_s()`` seconds after SIGTERM, before it stops.

    While it drains, it calls ``on_drain`` once, accepts connections and answers requests as
    before, and closes each connection after its answer. So a load balancer has the time to see
    that the server is not ready and to send new requests elsewhere. SIGINT (Ctrl-C), or a second
    signal, stops the server without draining.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        drain_s: Callable[[], float],
        on_drain: Callable[[], object],
    ) -> None:
        super().__init__(config)
        self._drain_s = drain_s
        self._on_drain = on_drain
        self._drained_at: float | None = None
        self._end_start: Callable[[], object] = _do_nothing

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain, or to stop."""
        self._end_start()
        if sig != signal.SIGTERM or self._drained_at is not None or not self._drain_s():
            return super().handle_exit(sig, frame)
        self._drained_at = time.monotonic() + self._drain_s()
        # uvicorn adds these headers to every answer, and closes a connection that has this one.
        self.config.encoded_headers = [*self.config.encoded_headers, (b"connection", b"close")]
        self.server_state.default_headers = self.config.encoded_headers
        self._captured_signals.append(sig)  # uvicorn raises it again once it has stopped
        self._on_drain()

    async def completes(self, start: Callable[[], Awaitable[object]]) -> bool:
        """Run a start, which may wait for a disk. Returns False if a signal came before its end."""
        if self.should_exit or self._drained_at is not None:
            return False
        loop, starting = asyncio.get_running_loop(), asyncio.current_task()

        def cancel() -> None:
            if self._end_start is end_start and starting is not None:
                starting.cancel()
                # A library that connects may swallow a cancellation.
                loop.call_later(CANCELS_AGAIN_S, cancel)

        self._end_start = end_start = partial(loop.call_soon_threadsafe, cancel)
        try:
            await start()
        except asyncio.CancelledError:
            while starting is not None and starting.uncancel():
                pass
            return False
        finally:
            self._end_start = _do_nothing
        return True

    async def on_tick(self, counter: int) -> bool:
        """Tell whether it is time to stop. Called ten times a second."""
        drained = self._drained_at is not None and time.monotonic() >= self._drained_at
        return await super().on_tick(counter) or drained
