"""One provider behind HTTP, over aiohttp (``docs/decisions/0003-aiohttp.md``)."""

from __future__ import annotations

import asyncio
import os
import re
import time
from typing import TYPE_CHECKING

import aiohttp
from yarl import URL

from headstart.errors import (
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from headstart.middleware.reading import MAX_DOCUMENT_BYTES, is_event_stream
from headstart.middleware.translation import with_retry_after
from headstart.middleware.upstreams.authorities import trusting
from headstart.middleware.upstreams.connections import connector
from headstart.middleware.upstreams.incoming import Incoming
from headstart.middleware.upstreams.options import AFTER_END_S, HTTPOptions
from headstart.middleware.upstreams.outgoing import outgoing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from types import TracebackType

    from headstart.middleware.dialects.dialect import Dialect, UpstreamDialect
    from headstart.middleware.reading import Piece
    from headstart.middleware.supervisor import Spawn
    from headstart.types import Call, Headers

__all__ = ["HTTPOptions", "HTTPReply", "HTTPUpstream"]

_FAILURES = (aiohttp.ClientError, OSError)
"""What the client library raises; its timeouts are OSErrors."""
_VERSION = re.compile(r"^/v\d+(?:alpha|beta)?\d*(?=/)")


class HTTPUpstream:
    """Streams calls to one base URL. ``aclose`` closes its connections."""

    def __init__(
        self,
        options: HTTPOptions,
        dialects: Mapping[str, Dialect],
        clock: Callable[[], float] = time.time,  # noqa: TID251 - the default of the injected clock
        *,
        spoken: Mapping[str, UpstreamDialect] | None = None,
        spawn: Spawn | None = None,
    ) -> None:
        """Know ``dialects``, which callers speak, and those that only providers do.

        ``spawn`` starts what ``options.warm`` asks for. Reads ``options.ca_file``; raises
        ConfigError if that cannot be used.
        """
        self.name = options.name
        self._options = options
        self._clock = clock
        self._dialects = dialects
        self._spoken = spoken or dialects
        self._base = URL(options.base_url.rstrip("/"))
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=options.connect_s, sock_read=options.first_token_s
        )
        ca_file = options.ca_file
        self._trusting = True if ca_file is None else trusting(options.name, ca_file)
        self._session: aiohttp.ClientSession | None = None
        self._spawn = spawn if options.warm else None
        self._warming = False
        self._ending: dict[aiohttp.ClientResponse, asyncio.TimerHandle] = {}
        """Answers that are over while their bodies are not, and when they are closed."""

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=connector(ssl=self._trusting),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                # An upstream's header lines may be long (policies, traces), but not endless.
                max_line_size=32 * 1024,
                max_field_size=32 * 1024,
                read_bufsize=256 * 1024,
            )
        return self._session

    async def aclose(self) -> None:
        """Close all connections."""
        for response in tuple(self._ending):
            self._cut(response)
        if self._session is not None:
            await self._session.close()

    def url(self, path: bytes, query: bytes) -> URL:
        """Map a request's path onto the base URL (``HTTPOptions.base_url``)."""
        raw = _as_sent(path)
        if self._base.raw_path not in ("", "/"):
            raw = self._base.raw_path + _VERSION.sub("", raw)
        if query:
            raw += "?" + _as_sent(query)
        return URL(f"{self._base.scheme}://{self._base.raw_authority}{raw}", encoded=True)

    def stream(self, call: Call, body: AsyncIterator[bytes] | None = None) -> _Sending:
        """Send the call; ``body`` streams a request body in place of ``call.body``.

        Entering waits for status and headers, and for the whole of an error.
        Leaving closes the socket unless the body was read to its end. One that is late, after an
        answer's terminal event, gets ``AFTER_END_S``, for which nobody waits. Raises
        UpstreamUnreachable, UpstreamTimeout or UpstreamProtocolError, and InvalidRequest for a
        request that the upstream's dialect cannot express.
        """
        return _Sending(self, call, body)

    async def send(
        self, call: Call, body: AsyncIterator[bytes] | None
    ) -> tuple[aiohttp.ClientResponse, Incoming, tuple[str, ...]]:
        """Return the answer's beginning, who reads it, and the names of the edits made."""
        session, incoming = self._open(), self._incoming(call)
        sent = outgoing(call, self._options, incoming.client, incoming.own)
        headers = sent.headers
        if body is not None:
            # Without the length that the caller gave, the body would go out in chunks.
            headers = [*headers, *_length_of(call.headers)]
        try:
            response = await session.request(
                call.method,
                self.url(sent.path, sent.query),
                data=body if body is not None else (sent.body or None),
                headers=headers,
                allow_redirects=False,
                timeout=self._timeout,
                proxy=self._options.proxy,
            )
        except asyncio.CancelledError:
            self.keep_warm()
            raise
        except _FAILURES as error:
            raise _as_ours(self.name, error) from error
        return response, incoming, sent.transforms

    def reply(
        self, response: aiohttp.ClientResponse, incoming: Incoming, transforms: tuple[str, ...]
    ) -> HTTPReply:
        """Return the answer that has begun. Raises UpstreamProtocolError if nobody can read it."""
        return HTTPReply(self.name, response, incoming, transforms, self._options)

    def let_end(self, response: aiohttp.ClientResponse) -> None:
        """Keep the connection if the body, of which nobody wants more, ends in time."""
        loop = asyncio.get_running_loop()
        self._ending[response] = loop.call_later(AFTER_END_S, self._cut, response)
        response.content.on_eof(lambda: self._ending.pop(response).cancel())

    def _cut(self, response: aiohttp.ClientResponse) -> None:
        self._ending.pop(response).cancel()
        response.close()

    def keep_warm(self) -> None:
        """Replace a connection that is lost with a cancelled answer, as it is with HTTP/1.1."""
        session = self._session
        if self._spawn is None or self._warming or session is None or session.closed:
            return
        self._warming = True
        self._spawn(self._warm, session)

    async def _warm(self, session: aiohttp.ClientSession) -> None:
        timeout = aiohttp.ClientTimeout(total=self._options.connect_s)
        try:
            async with session.head(
                self._base, allow_redirects=False, timeout=timeout, proxy=self._options.proxy
            ) as response:
                await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError):
            # The next call finds out for itself, and reports it.
            return
        finally:
            self._warming = False

    def _incoming(self, call: Call) -> Incoming:
        client = self._dialects.get(call.dialect) if call.request is not None else None
        own: UpstreamDialect | None = client
        if client is not None and self._options.dialect not in ("", client.name):
            own = self._spoken[self._options.dialect]
        model = "" if call.request is None else call.request.model
        real = self._options.models.get(model, model)
        return Incoming(call, client, own, self._clock(), real)


class _Sending:
    """A call from its request to the end of its answer."""

    def __init__(
        self, upstream: HTTPUpstream, call: Call, body: AsyncIterator[bytes] | None
    ) -> None:
        self._upstream = upstream
        self._call = call
        self._body = body
        self._response: aiohttp.ClientResponse
        self._reply: HTTPReply | None = None

    async def __aenter__(self) -> HTTPReply:
        self._response, incoming, transforms = await self._upstream.send(self._call, self._body)
        try:
            self._reply = reply = self._upstream.reply(self._response, incoming, transforms)
            if incoming.own is not None and self._response.status >= 400:
                await reply.read_ahead()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return reply

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._reply is not None and self._reply.is_late:
            return self._upstream.let_end(self._response)
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            self._upstream.keep_warm()
        try:
            await self._response.__aexit__(kind, error, trace)
        except _FAILURES as failure:
            raise _as_ours(self._upstream.name, failure) from failure


def _length_of(headers: Headers) -> Iterator[tuple[str, str]]:
    for name, value in headers:
        if name == b"content-length":
            yield "content-length", value.decode("latin-1")


def _as_sent(target: bytes) -> str:
    """Return a path or query as text that goes out as the same bytes: the client writes UTF-8."""
    try:
        return target.decode()
    except UnicodeDecodeError:
        return "".join([chr(byte) if byte < 0x80 else f"%{byte:02X}" for byte in target])


def _as_ours(name: str, error: Exception) -> UpstreamError:
    """Return the error of ours that stands for one of the client library's."""
    match error:
        case TimeoutError():
            return UpstreamTimeout(f"upstream {name} did not answer in time")
        case aiohttp.ClientSSLError():
            return UpstreamUnreachable(f"upstream {name}: TLS failed: {error}")
        case aiohttp.ClientConnectorError():
            return UpstreamUnreachable(f"upstream {name} cannot be reached: {_reason(error)}")
        case aiohttp.ClientPayloadError() | aiohttp.ClientResponseError():
            return UpstreamProtocolError(f"upstream {name} broke off its answer")
        case _:
            return UpstreamUnreachable(f"upstream {name} closed the connection")


def _reason(error: aiohttp.ClientConnectorError) -> str:
    """Say why in the system's words: the library's speak of its own parameters."""
    number = error.os_error.errno
    if number is not None and number > 0:
        return os.strerror(number)
    return error.os_error.strerror or type(error.os_error).__name__


class HTTPReply:
    """One provider's answer: status and headers now, the body as it arrives."""

    storable = True

    def __init__(
        self,
        upstream: str,
        response: aiohttp.ClientResponse,
        incoming: Incoming,
        transforms: tuple[str, ...],
        options: HTTPOptions,
    ) -> None:
        raw = tuple([(name.lower(), value) for name, value in response.raw_headers])
        strip = "include-usage" in transforms and is_event_stream(raw)
        self.upstream = upstream
        self.status = incoming.status(response.status)
        self.transforms = transforms
        self.headers = incoming.headers(response.status, raw, strip=strip)
        self._response = response
        self._options = options
        self._reader = incoming.reader(response.status, raw, strip=strip)
        self._ends_at_finish = incoming.own is not None and incoming.own.ends_at_finish
        self._read: bytes | None = None
        """The body, where it was read ahead."""

    @property
    def is_late(self) -> bool:
        """The answer is over, and its body has not ended, nor broken off."""
        content = self._response.content
        is_open = not content.is_eof() and content.exception() is None
        return is_open and self._reader.closing and self._reader.ended

    async def read_ahead(self) -> None:
        """Read the body of an error, whose headers may depend on it. Raises UpstreamError."""
        content, parts, size = self._response.content, [], 0
        try:
            async with asyncio.timeout(self._options.read_s):
                while size <= MAX_DOCUMENT_BYTES and (data := await content.readany()):
                    size += len(data)
                    parts.append(data)
        except _FAILURES as error:
            raise _as_ours(self.upstream, error) from error
        self._read = b"".join(parts)
        self.headers = with_retry_after(self.headers, self._read)

    async def chunks(self) -> AsyncIterator[Piece]:
        """Yield the answer as it arrives. Raises UpstreamError when it breaks off.

        It is over at its terminal event, whatever becomes of its body.
        """
        reader, until = self._reader, None
        if self._read is not None:
            yield reader.feed(self._read)
        else:
            content = self._response.content
            try:
                data = await content.readany()
                self._begun()
                while data:
                    piece = reader.feed(data)
                    yield piece
                    if reader.failed:
                        break
                    if not reader.closing:
                        data = await content.readany()
                        continue
                    if not content.at_eof() and reader.ended:
                        break
                    if until is None or piece.events:
                        until = asyncio.get_running_loop().time() + AFTER_END_S
                    data = await (self._last(until) if reader.finished else content.readany())
            except _FAILURES as error:
                if not (reader.finished and self._ends_at_finish):
                    raise _as_ours(self.upstream, error) from error
        yield reader.end()

    async def _last(self, until: float) -> bytes:
        """Return what follows the finish reasons, if it comes in time."""
        try:
            async with asyncio.timeout_at(until):
                return await self._response.content.readany()
        except TimeoutError:
            return b""

    def _begun(self) -> None:
        """The first piece came: from now on its bound is that of the gap between two."""
        options, connection = self._options, self._response.connection
        if options.read_s == options.first_token_s or connection is None:
            return
        protocol = connection.protocol
        if protocol is not None:
            protocol.read_timeout = options.read_s
            protocol.start_timeout()
