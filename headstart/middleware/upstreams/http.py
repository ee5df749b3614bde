"""One provider behind HTTP: the calls to it, and the connections that carry them.

``HTTPUpstream.send`` gets a ``Call``, such as a client's request to ``/v1/chat/completions``, and
returns the provider's ``Reply``:

1. ``RequestWriter`` (``outgoing.py``) writes the request in the provider's dialect.
2. ``_request`` sends it, and waits for the head of the answer. ``_post`` sends a short POST; the
   session of the client library (aiohttp) sends any other request.
3. ``_reply`` chooses the reader of the body. It reads the body of an error whole.
4. ``_pieces`` yields the body as it arrives. ``_finish`` then frees or closes the connection.

The second half makes the client library's connections safe to use again: a call never gets bytes
that belong to another call.
"""

from __future__ import annotations

import asyncio
import io
import math
import select
import sys
import time
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import aiohttp
from aiohttp import ClientRequest, http_writer
from aiohttp.client_proto import ResponseHandler
from aiohttp.helpers import TimerNoop
from aiohttp.http import HttpResponseParser
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import EMPTY_PAYLOAD
from msgspec.structs import replace
from yarl import URL

from headstart.dialects.registry import (
    BY_SETTING,
    DIALECTS,
    path_below,
    spoken_dialects,
    with_retry_after,
)
from headstart.errors import IdleConnectionClosed, UpstreamProtocolError
from headstart.middleware.reading import MAX_DOCUMENT_BYTES, BodyReader, begins_events, in_time
from headstart.middleware.upstreams.accounting import upstream_error
from headstart.middleware.upstreams.outgoing import (
    AFTER_END_S,
    NOT_ADDED,
    READ_BYTES,
    AnswerHead,
    IncomingAnswer,
    MaskedBody,
    OutgoingRequest,
    RequestWriter,
    Socket,
    as_text,
    pieces_of,
    read_head,
    socket_session,
    to_text,
)
from headstart.middleware.upstreams.refused_values import ValueRefused
from headstart.reply import Reply, Transcript
from headstart.sockets import CLOSE_S, HEARTBEAT_S, UpstreamSocket, resolver, tls_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from ssl import SSLContext

    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace
    from aiohttp.typedefs import RawHeaders

    from headstart.dialects.dialect import UpstreamDialect
    from headstart.middleware.concurrency import Spawn
    from headstart.middleware.upstreams.signers import Signer
    from headstart.settings import UpstreamSettings
    from headstart.types import Call, Headers, Piece

FIRST_BYTE_S = 600.0
"""Longest wait for a first byte on a socket. The caller sets the limit that counts."""
LONG_BODY_BYTES = 1024 * 1024
"""The longest body that the client library gets whole. A longer one would block the event loop."""
SHORT_BODY_BYTES = 48 * 1024
"""The longest body that ``_post`` sends: the library would not wait for the socket to take it."""
LINE_BYTES = 32 * 1024
"""An upstream's header lines may be long (policies, traces), but not endless."""
BUFFER_BYTES = 256 * 1024
"""The bytes of an answer that are read before their reader takes them."""
CROSSED_S = 1.0
"""A request crossed the end of its connection if this end came within this many seconds."""
MOST_URLS = 64
LONGEST_PATH = 256
"""The longest path whose URL is kept, so that the client library works out its parts once."""
_FRAMING = frozenset(("connection", "content-length", "expect", "host", "transfer-encoding"))
"""Headers with which the client library sends a body in another way."""
_FAILURES = (aiohttp.ClientError, HttpProcessingError, OSError)
"""The errors of the client library. Its timeouts are OSErrors."""
_LIBRARY_REQUEST = aiohttp.ClientSession._request  # noqa: SLF001
"""Tracers (ddtrace, New Relic) and tools for tests (aioresponses) put a function in its place."""
POSTS_ITSELF = aiohttp.__version__.startswith("3.14.") and (
    getattr(_LIBRARY_REQUEST, "__globals__", None) is vars(aiohttp.client)
)
"""Whether ``_post`` knows the installed client library. If not, its sessions send all calls."""


class HTTPUpstream:
    """Streams calls to one base URL. ``aclose`` closes its connections."""

    def __init__(
        self,
        settings: UpstreamSettings,
        clock: Callable[[], float] = time.time,  # noqa: TID251 - the default of the injected clock
        *,
        credential: Headers | None = None,
        signer: Signer | None = None,
        spawn: Spawn | None = None,
    ) -> None:
        """Send ``credential`` (None: the caller's key) and ``signer``'s headers with each call.

        Where ``settings.dialect`` is None, the provider speaks what the caller speaks. ``spawn``
        starts the task that ``settings.warm`` asks for. Reads the files of certificates; raises
        ConfigError if they cannot be used.
        """
        self.name = settings.name
        self._settings = settings
        self.writer = RequestWriter(settings, credential)
        self.passes_keys = credential is None
        """True if the caller's own key is sent."""
        self._signer = signer
        self._clock = clock
        self._own = None if settings.dialect is None else BY_SETTING[settings.dialect]
        _, *further = spoken_dialects(settings.speaks, settings.further)
        self._further = frozenset(each.name for each in further)
        self._base = URL(settings.base_url.rstrip("/"))
        self._kept_url = lru_cache(MOST_URLS)(self._url)
        # ``sock_connect`` alone does not bound the search for the address.
        self._timeout = aiohttp.ClientTimeout(
            connect=settings.connect_s, sock_connect=settings.connect_s, sock_read=FIRST_BYTE_S
        )
        self._tls = tls_of(settings.name, settings.ca_file, settings.client_cert_file)
        self._session: aiohttp.ClientSession | None = None
        self._pool: _SilentPool  # of this session
        self._socket_session: aiohttp.ClientSession | None = None
        self._origin: _Origin | None = None
        """Where ``_post`` connects. None: the session sends all calls."""
        self._spawn = spawn if settings.warm else None
        self._warming = False
        self._ending: dict[_Response, asyncio.TimerHandle] = {}
        """Whole answers whose bodies have not ended, with the times when they are closed."""

    async def send(self, call: Call) -> Reply:
        """Send the call, with ``call.upload`` as it arrives.

        Waits for the head of the answer, and for the whole of an error. If the reply is closed
        before the end of its body, the connection is closed, too; if only the end is missing, it is
        kept for ``AFTER_END_S``. Raises UpstreamError, or InvalidRequest for an inexpressible call.
        """
        incoming = self._incoming(call)
        sent = self.writer.write(call, incoming.client, incoming.own)
        url = self.url(sent.path, sent.query)
        if call.upload is not None:
            # Without the length that the caller gave, the body would go out in chunks.
            length = [pair for pair in call.headers if pair[0] == b"content-length"]
            sent = replace(sent, headers=[*sent.headers, *as_text(length)])
        if self._signer is not None:
            body = sent.body if call.upload is None else None
            signed = await self._signer.headers(call.method, url, sent.headers, body)
            sent = replace(sent, headers=[*sent.headers, *signed])
        try:
            response = await self._request(call, sent, url)
        except asyncio.CancelledError:
            self._keep_warm()
            raise
        except _FAILURES as error:
            raise upstream_error(self._settings, error, FIRST_BYTE_S) from error
        try:
            return await self._reply(response, incoming, sent)
        except BaseException as error:
            await self._close(response, error)
            if isinstance(error, ValueRefused):
                return await self.writer.sent_again(error, self.send(call))
            raise

    async def connect(
        self, call: Call, *, subprotocols: tuple[str, ...], max_bytes: int
    ) -> UpstreamSocket:
        """Open a WebSocket. A message of the provider may have ``max_bytes``.

        Raises UpstreamRefused with the provider's own answer, UpstreamUnreachable, UpstreamTimeout
        or UpstreamProtocolError.
        """
        session = self._socket_session
        if session is None or session.closed:
            session = self._socket_session = socket_session(self._open().connector, self._timeout)
        sent = self.writer.write(call, None, None)
        # The library makes its own handshake.
        headers = [pair for pair in sent.headers if not pair[0].startswith("sec-websocket-")]
        try:
            socket = await session.ws_connect(
                self.url(sent.path, sent.query),
                protocols=subprotocols,
                headers=headers,
                proxy=self._settings.proxy,
                max_msg_size=max_bytes,
                heartbeat=HEARTBEAT_S,
                autoclose=False,
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),
            )
        except aiohttp.WSServerHandshakeError as error:
            raise UpstreamProtocolError(
                f"upstream {self.name} answered the WebSocket's handshake wrongly: {error.message}"
            ) from error
        except _FAILURES as error:
            raise upstream_error(self._settings, error, FIRST_BYTE_S) from error
        assert isinstance(socket, Socket)
        return UpstreamSocket(socket, socket.abort)

    def url(self, path: bytes, query: bytes) -> URL:
        """Return the address of a request's path at the provider (``path_below``)."""
        # A query may contain a secret, so it is not kept.
        is_kept = not query and len(path) <= LONGEST_PATH
        return (self._kept_url if is_kept else self._url)(path, query)

    def _url(self, path: bytes, query: bytes) -> URL:
        raw = path_below(self._base.raw_path, to_text(path), self._settings.speaks)
        if query:
            raw += "?" + to_text(query)
        return URL(f"{self._base.scheme}://{self._base.raw_authority}{raw}", encoded=True)

    async def aclose(self) -> None:
        """Close all connections."""
        for response in tuple(self._ending):
            self._cut(response)
        for session in (self._socket_session, self._session):
            if session is not None:
                await session.close()

    def _open(self) -> aiohttp.ClientSession:
        """Return the session for calls. Its pool has all connections to the provider."""
        if self._session is None or self._session.closed:
            self._pool = _SilentPool(ssl=self._tls)
            self._session = session = aiohttp.ClientSession(
                connector=self._pool,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=NOT_ADDED,
                max_line_size=LINE_BYTES,
                max_field_size=LINE_BYTES,
                read_bufsize=BUFFER_BYTES,
            )
            # Other tracers (OpenTelemetry, Sentry) give each session hooks, which only it calls.
            if not session.trace_configs and self._can_post_itself():
                origin = aiohttp.ClientRequest(
                    "GET", self._base, skip_auto_headers=NOT_ADDED, session=session
                )
                self._origin = _Origin(origin, origin.connection_key)
        return self._session

    def _can_post_itself(self) -> bool:
        """Tell whether ``_post`` sends what the session would send, under these settings."""
        settings = self._settings
        return (
            POSTS_ITSELF
            and settings.proxy is None
            and self._signer is None
            and "@" not in self._base.raw_authority
            and all(name.islower() and name not in _FRAMING for name in settings.headers)
        )

    async def _request(self, call: Call, sent: OutgoingRequest, url: URL) -> _Response:
        """Send a request, and wait for the head of its answer.

        A provider may close an idle connection when it is used again. If a request was not written,
        it is sent once more. If it crossed the connection's end, this raises IdleConnectionClosed.
        """
        is_short = call.upload is None and 0 < len(sent.body) <= SHORT_BODY_BYTES
        is_patched = aiohttp.ClientSession._request is not _LIBRARY_REQUEST  # noqa: SLF001
        posts = call.method == "POST" and is_short and not is_patched
        may_repeat = call.upload is None  # what was read of an upload cannot be sent again
        while True:
            _is_reused.set(False)
            began = time.perf_counter()
            try:
                session = self._open()
                if posts and self._origin is not None:
                    return await self._post(self._origin, sent, url)
                return await self._send_by(session, call, sent, url)
            except aiohttp.ClientConnectorError:
                raise  # no connection was made, so none was idle
            except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
                self._pool.drop_idle()
                # This is the cause if nothing was written, also in ``_WatchedConnection.send``.
                unwritten = isinstance(error.__cause__, aiohttp.ClientConnectionResetError)
                if unwritten and may_repeat:
                    may_repeat = False
                    continue
                if _is_reused.get() and time.perf_counter() - began < CROSSED_S:
                    raise IdleConnectionClosed(
                        f"upstream {self.name} closed an idle connection when it was used again"
                    ) from error
                raise

    async def _send_by(
        self, session: aiohttp.ClientSession, call: Call, sent: OutgoingRequest, url: URL
    ) -> aiohttp.ClientResponse:
        """Send a request of any kind with the client library's session."""
        # The library writes a file piece by piece.
        whole = io.BytesIO(sent.body) if len(sent.body) > LONG_BODY_BYTES else sent.body or None
        return await session.request(
            call.method,
            url,
            data=whole if call.upload is None else call.upload.read(),
            headers=sent.headers,
            allow_redirects=False,
            timeout=self._timeout,
            proxy=self._settings.proxy,
        )

    async def _post(self, origin: _Origin, sent: OutgoingRequest, url: URL) -> _PlainAnswer:
        """Send a short POST as the session's ``request`` does, in a third of the time.

        It calls the same parts of the client library: the pool, the writer of heads, the parser.
        """
        connection = await self._pool.take(origin, self._timeout)
        try:
            protocol = connection.protocol
            assert isinstance(protocol, _WatchedConnection)
            length = ("Content-Length", str(len(sent.body)))
            fields: Any = _Fields((*origin.request.headers.items(), *sent.headers, length))
            line = f"POST {url.raw_path_qs} HTTP/1.1"
            head = http_writer._serialize_headers(line, fields)  # noqa: SLF001
            protocol.send(head + sent.body, self._timeout.sock_read)
            is_interim = True
            while is_interim:
                message, content = await protocol.read()
                is_interim = 100 <= message.code < 200 and message.code != 101
        except BaseException:
            connection.close()
            raise
        answer = _PlainAnswer(message.code, message.raw_headers, content, connection)
        content.on_eof(answer.release)
        return answer

    def _incoming(self, call: Call) -> IncomingAnswer:
        """Return the dialects of a call's client and of its answer."""
        client = DIALECTS.get(call.dialect) if call.request is not None else None
        own: UpstreamDialect | None = client
        # The provider also speaks the further dialects, so their calls are not translated.
        if client is not None and self._own is not None and client.name not in self._further:
            own = self._own
        model = "" if call.request is None else call.request.model
        real = self._settings.models.get(model, model)
        beside = not self._settings.quirks.stream_usage
        return IncomingAnswer(call, client, own, self._clock(), real, usage_beside=beside)

    async def _reply(
        self, response: _Response, incoming: IncomingAnswer, sent: OutgoingRequest
    ) -> Reply:
        """Return the answer that has begun. Raises UpstreamProtocolError or ValueRefused."""
        transcript, first, secrets = Transcript(), b"", self.writer.secrets
        content = MaskedBody(response.content, secrets) if secrets else response.content
        head = read_head(response.status, response.raw_headers, secrets)
        request = incoming.call.request
        streams = request is not None and (request.stream or incoming.call.streamed_upstream)
        if streams != head.is_stream and incoming.may_be_labelled_wrongly(head):
            # The first bytes show what the answer is.
            try:
                first = await content.read(READ_BYTES)
            except _FAILURES as error:
                raise upstream_error(self._settings, error, FIRST_BYTE_S) from error
            if begins_events(first) == streams:
                head = head.labelled(is_stream=streams)
        strip_usage = head.is_stream and "include-usage" in sent.transforms
        error_body: bytes | None = None
        if head.status >= 400 and (incoming.own is not None or not self.passes_keys):
            head, error_body = await self._read_error(response, head, incoming, sent)
        status, headers, reader = incoming.begin(head, transcript, strip_usage=strip_usage)
        if error_body is None:
            pieces = self._pieces(response, content, first, reader, transcript, incoming.own)
        else:
            headers = with_retry_after(headers, error_body)
            pieces = pieces_of(error_body, reader, transcript)
        return Reply(
            self.name,
            status,
            headers,
            pieces,
            transforms=sent.transforms,
            closing=partial(self._finish, response, reader),
            transcript=transcript,
            form=(head.is_stream, head.is_plain) if headers is head.headers else None,
        )

    async def _read_error(
        self, response: _Response, head: AnswerHead, incoming: IncomingAnswer, sent: OutgoingRequest
    ) -> tuple[AnswerHead, bytes]:
        """Return head and body of an error, without the upstream's own key.

        The body is read whole, because it may tell when to retry. Raises UpstreamError, and
        ValueRefused if the call can be sent again without the value that the provider refuses.
        """
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._settings.read_s):
                while size <= MAX_DOCUMENT_BYTES and (data := await response.content.readany()):
                    size += len(data)
                    parts.append(data)
        except _FAILURES as error:
            raise upstream_error(self._settings, error, self._settings.read_s) from error
        body, headers = self.writer.masked(b"".join(parts), head.headers)
        if incoming.client is not incoming.own:
            self.writer.refused.check(incoming.model, head.status, sent.body, body)
        is_plain = head.is_plain or bool(self.writer.secrets)  # ``masked`` has decompressed it
        return replace(head, headers=headers, is_plain=is_plain), body

    async def _pieces(
        self,
        response: _Response,
        content: MaskedBody | aiohttp.StreamReader,
        first: bytes,
        reader: BodyReader,
        transcript: Transcript,
        own: UpstreamDialect | None,
    ) -> AsyncGenerator[Piece]:
        """Yield the answer as it arrives, after the ``first`` bytes, which were read already.

        It is over at its terminal event, even if its body goes on. After the last finish reason,
        the wait for this event is ``AFTER_END_S``. Raises UpstreamError when it breaks off.
        """
        end_by = None  # the end of the wait for the terminal event
        try:
            data = first or await content.read(READ_BYTES)
            if (connection := response.connection) is not None and connection.protocol is not None:
                connection.protocol.read_timeout = self._settings.read_s  # between two pieces
                connection.protocol.start_timeout()
            while data:
                piece = reader.feed(data)
                transcript.add(piece)
                yield piece
                if reader.failed:
                    break
                if len(data) >= READ_BYTES:  # there may be much more
                    await asyncio.sleep(0)
                if not reader.closing:
                    data = await content.read(READ_BYTES)
                    continue
                if content.at_eof() or reader.ended:
                    break
                # Some choices may still go on. Only without them the wait has a limit.
                if end_by is None or piece.events:
                    end_by = asyncio.get_running_loop().time() + AFTER_END_S
                data = await in_time(content.read(READ_BYTES), end_by if reader.finished else None)
        except _FAILURES as error:
            # A stream that has no terminal event is whole after its last finish reason.
            if not (reader.finished and own is not None and own.ends_at_finish):
                raise upstream_error(self._settings, error, self._settings.read_s) from error
        piece = reader.end()
        if piece.data or piece.events:
            transcript.add(piece)
            yield piece

    async def _finish(
        self, response: _Response, reader: BodyReader, error: BaseException | None
    ) -> None:
        """Close an answer. If only its end is missing, its connection is kept for a while."""
        body = response.content
        is_open = not body.is_eof() and body.exception() is None
        if is_open and reader.closing and reader.ended:
            self._let_end(response)
        else:
            await self._close(response, error)

    async def _close(self, response: _Response, error: BaseException | None) -> None:
        if isinstance(error, asyncio.CancelledError):
            self._keep_warm()
        if response.connection is None:
            return  # its end was read, so the next call can use the connection
        if isinstance(response, _PlainAnswer):
            return response.close()
        try:
            await response.__aexit__(None, None, None)
        except _FAILURES as failure:
            raise upstream_error(self._settings, failure, self._settings.read_s) from failure

    def _let_end(self, response: _Response) -> None:
        """Keep the connection if the rest of the body, which is not read, ends in time."""
        timer = asyncio.get_running_loop().call_later(AFTER_END_S, self._cut, response)
        self._ending[response] = timer
        response.content.on_eof(lambda: self._ending.pop(response).cancel())

    def _cut(self, response: _Response) -> None:
        self._ending.pop(response).cancel()
        response.close()

    def _keep_warm(self) -> None:
        """Replace a connection that a cancelled answer has cost, as happens with HTTP/1.1."""
        session = self._session
        if self._spawn is not None and session is not None and not session.closed:
            self.connect_early(self._spawn)

    def connect_early(self, spawn: Spawn) -> None:
        """Open a connection for a call that is about to come."""
        if not self._warming:
            self._warming = True
            spawn(self._warm, self._open())

    async def _warm(self, session: aiohttp.ClientSession) -> None:
        timeout = aiohttp.ClientTimeout(total=self._settings.connect_s)
        try:
            async with session.head(
                self._base, allow_redirects=False, timeout=timeout, proxy=self._settings.proxy
            ) as response:
                await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return  # the next call meets the same error and reports it
        finally:
            self._warming = False


class _Origin(NamedTuple):
    """The address of a provider, in the forms that the client library's pool takes."""

    request: ClientRequest
    """A request to the base URL. The pool connects to its address; it is never sent."""
    place: ConnectionKey
    """The place of the provider's connections in the pool."""


class _Fields(list[tuple[str, str]]):
    """The headers of a plain call. The client library takes a dict, and reads only its items."""

    items = list.copy


@dataclass(slots=True, eq=False)
class _PlainAnswer:
    """The answer to a plain call: the part of ``ClientResponse`` that is needed here.

    Its connection can serve the next call as soon as its body has ended (``release``).
    """

    status: int
    raw_headers: RawHeaders
    content: aiohttp.StreamReader
    connection: Connection | None

    def release(self) -> None:
        """Give the connection back. It is closed if the body has not ended."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.release()

    def close(self) -> None:
        """Close the connection, if the body has not ended."""
        connection, self.connection = self.connection, None
        if connection is not None:
            self.content.set_exception(aiohttp.ClientConnectionError("the answer was closed"))
            connection.close()


_Response: TypeAlias = "aiohttp.ClientResponse | _PlainAnswer"

# --- connections ----------------------------------------------------------------------------------

KEPT_S = 75.0
"""Seconds for which an unused connection is kept."""
LIVES_S = 300.0
"""Seconds after which a connection is not used again: the provider's address may have changed."""
HEAD_PART_BYTES = 16 * 1024
"""The bytes before a body that are read at once: some 600 interim answers."""
MOST_HEAD_BYTES = 256 * 1024
"""Most bytes of all heads of one answer."""
_NO_TIMER = TimerNoop()
_is_reused: ContextVar[bool] = ContextVar("is_reused")
"""Whether the running request got a connection that had been idle."""


class _SilentPool(aiohttp.TCPConnector):
    """A pool without a limit. It hands out only silent connections, and closes the others.

    Make it in the event loop that uses it.
    """

    def __init__(self, *, ssl: SSLContext | bool) -> None:
        super().__init__(limit=0, keepalive_timeout=KEPT_S, ssl=ssl, resolver=resolver())
        watched: type[ResponseHandler] = _WatchedConnection
        self._factory = partial(watched, loop=self._loop)
        self._stale_until = -1.0
        """Connections that are idle since this time, or since an earlier one, are not used again.
        Equal times count as earlier, because the clock of Windows steps by 16 ms."""

    async def take(self, origin: _Origin, limits: aiohttp.ClientTimeout) -> Connection:
        """Return an idle connection; if there is none, a new one. Raises ClientError."""
        connection = await self._get(origin.place, [])
        if connection is None:
            try:
                connection = await self.connect(origin.request, traces=[], timeout=limits)
            except TimeoutError as error:
                host = origin.request.url.host
                raise aiohttp.ConnectionTimeoutError(f"no connection to {host}") from error
        return connection

    def drop_idle(self) -> None:
        """Use none of the connections again that are idle now.

        A provider that closes one idle connection mostly closes others at the same time.
        """
        self._stale_until = self._loop.time()

    async def _get(self, key: ConnectionKey, traces: list[Trace]) -> Connection | None:
        """Return an idle connection that may be used. The library then makes no new one."""
        while (connection := await super()._get(key, traces)) is not None:
            protocol = connection.protocol
            if (
                isinstance(protocol, _WatchedConnection)
                and protocol.idle_since > self._stale_until
                and protocol.is_silent()
            ):
                protocol.idle = False
                protocol.head_bytes, protocol._payload = 0, None  # noqa: SLF001 - of its base
                _is_reused.set(True)
                return connection
            connection.close()
        return None

    def _release(
        self, key: ConnectionKey, protocol: ResponseHandler, *, should_close: bool = False
    ) -> None:
        """Take a connection back after its answer."""
        if isinstance(protocol, _WatchedConnection):
            protocol.idle, protocol.idle_since = True, self._loop.time()
            should_close = should_close or protocol.idle_since - protocol.made_at > LIVES_S
        super()._release(key, protocol, should_close=should_close)


class _WatchedConnection(ResponseHandler):
    """A connection of the client library, which parses answers, with three changes.

    - It is closed if bytes come while no call uses it. Such bytes answer no request. The library
      would take them for the answer to the next call, which may be another caller's.
    - A provider cannot send interim answers without end: see ``MOST_HEAD_BYTES``.
    - One timer bounds the silence of the provider (``read_timeout``). If bytes came before it
      fires, it is set again. The library sets and clears timers for each call and piece.

    Most methods take the place of methods of the library, which calls them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.idle = False
        """Whether the connection waits in the pool for a call."""
        self.made_at = self.idle_since = 0.0  # in the loop's time
        self._silent_until = math.inf
        """The time when the silence becomes too long."""
        self.head_bytes: int | None = 0
        """The bytes that came before the body. It is None while a body is read."""
        self._has_news: Callable[[], object] = bool  # bool() is False
        """Tells whether bytes, or the end, have come that the event loop has not read yet."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, and prepare ``_has_news`` for it."""
        super().connection_made(transport)
        self.made_at = self._loop.time()
        socket = transport.get_extra_info("socket")
        if socket is not None:
            self._has_news = _news_of(socket.fileno())

    def send(self, request: bytes, silence_s: float | None) -> None:
        """Write a plain request, and expect its answer. Raises ClientOSError if it is too late."""
        transport = self.transport
        if transport is None or transport.is_closing():
            closed = "the connection was closed"
            raise aiohttp.ClientOSError(closed) from aiohttp.ClientConnectionResetError(closed)
        # What ``set_response_params`` does for any call.
        self._skip_payload = False
        self._read_bufsize, self._read_timeout = BUFFER_BYTES, silence_s
        self._parser = HttpResponseParser(
            self,
            self._loop,
            BUFFER_BYTES,
            timer=_NO_TIMER,
            max_line_size=LINE_BYTES,
            max_field_size=LINE_BYTES,
            payload_exception=aiohttp.ClientPayloadError,
            read_until_eof=True,
            auto_decompress=False,
        )
        transport.write(request)
        self.start_timeout()

    def data_received(self, data: bytes) -> None:
        """Read bytes of the provider, unless no call is under way."""
        if self.idle and data:
            self.abort()
            return
        if self.head_bytes is not None:
            self.head_bytes += len(data)
            if self.head_bytes > HEAD_PART_BYTES:
                self._receive_heads(data, self.head_bytes - len(data))
                return
        ResponseHandler.data_received(self, data)  # ``super()`` costs more, for each piece
        if self._exception is not None:
            self._break_off()

    def _receive_heads(self, data: bytes, parsed: int) -> None:
        """Read in parts until the body begins. ``parsed`` is the length of the heads before.

        A provider may send any number of interim heads (1xx), which would hold up the event loop.
        """
        while data and self._exception is None and self._payload in (None, EMPTY_PAYLOAD):
            if parsed > MOST_HEAD_BYTES:
                self.set_exception(HttpProcessingError(message="its head has no end"))
                if self.transport is not None:
                    self.transport.abort()
                return
            part, data = data[:HEAD_PART_BYTES], data[HEAD_PART_BYTES:]
            ResponseHandler.data_received(self, part)
            parsed += len(part)
        if self._exception is not None:
            self._break_off()
        elif data:
            self.head_bytes = None  # the rest is of the body
            self.data_received(data)

    def _break_off(self) -> None:
        """Report to the reader of the body that it is broken. The client library does not."""
        body = self._payload
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError("the body cannot be read"))

    def resume_reading(self, *arguments: Any, **options: Any) -> None:
        """Go on reading after a pause.

        The client library calls this after each piece, and parses again even without a pause.
        """
        if self._reading_paused:
            super().resume_reading(*arguments, **options)

    def _reschedule_timeout(self) -> None:
        """Begin the silence anew: bytes have come, or a request was sent."""
        limit_s, timer = self._read_timeout, self._read_timeout_handle
        self._silent_until = until = self._loop.time() + (limit_s or math.inf)
        if limit_s and (timer is None or timer.when() > until):  # else it will look again
            super()._drop_timeout()
            self._read_timeout_handle = self._loop.call_at(until, self._on_read_timeout)

    def _drop_timeout(self) -> None:
        """Allow any silence. While the connection is open, its timer runs on for the next call."""
        self._silent_until = math.inf
        if not self.is_connected():
            super()._drop_timeout()

    def _on_read_timeout(self) -> None:
        """End the call if the silence is too long; if it began later, set the timer again."""
        self._read_timeout_handle, until = None, self._silent_until
        if self._loop.time() >= until:
            super()._on_read_timeout()
        elif until < math.inf:
            self._read_timeout_handle = self._loop.call_at(until, self._on_read_timeout)

    def is_silent(self) -> bool:
        """Tell whether nothing came, read or not, since the end of the last answer."""
        if not self.is_connected() or self.should_close or self._reading_paused:
            return False
        try:
            # The last answer's parser may hold the beginning of another one.
            if self._parser is not None and self._parser.feed_eof() is not None:
                return False
        except Exception:  # noqa: BLE001 - unreadable bytes are not the end of an answer
            return False
        return not self._has_news()

    def close(self) -> None:
        """Close the connection, and drop unsent bytes after CLOSE_S.

        A provider that reads nothing would keep the connection open for ever.
        """
        transport = self.transport
        unsent = 0 if transport is None else transport.get_write_buffer_size()
        super().close()
        if transport is not None and unsent:
            self._loop.call_later(CLOSE_S, transport.abort)


def _news_of(descriptor: int) -> Callable[[], object]:
    """Return a function that tells whether a socket has something to read, or its end."""
    if sys.platform == "win32":
        return lambda: select.select([descriptor], [], [], 0)[0]
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return partial(poll.poll, 0)
