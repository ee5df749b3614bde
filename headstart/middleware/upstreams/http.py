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
from headstart.middleware.upstreams.options import HTTPOptions
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
        Leaving closes the socket unless the answer was read to its end. Raises
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
        return Incoming(call, client, own, self._clock())


class _Sending:
    """A call from its request to the end of its answer."""

    def __init__(
        self, upstream: HTTPUpstream, call: Call, body: AsyncIterator[bytes] | None
    ) -> None:
        self._upstream = upstream
        self._call = call
        self._body = body
        self._response: aiohttp.ClientResponse

    async def __aenter__(self) -> HTTPReply:
        self._response, incoming, transforms = await self._upstream.send(self._call, self._body)
        try:
            reply = self._upstream.reply(self._response, incoming, transforms)
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
        self._read: bytes | None = None
        """The body, where it was read ahead."""

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
        """Yield the body as it arrives. Raises UpstreamError when it breaks off."""
        reader = self._reader
        if self._read is not None:
            yield reader.feed(self._read)
        else:
            content = self._response.content
            try:
                data = await content.readany()
                self._begun()
                while data:
                    yield reader.feed(data)
                    if reader.failed:
                        break
                    data = await content.readany()
            except _FAILURES as error:
                raise _as_ours(self.upstream, error) from error
        yield reader.end()

    def _begun(self) -> None:
        """The first piece came: from now on its bound is that of the gap between two."""
        options, connection = self._options, self._response.connection
        if options.read_s == options.first_token_s or connection is None:
            return
        protocol = connection.protocol
        if protocol is not None:
            protocol.read_timeout = options.read_s
            protocol.start_timeout()
