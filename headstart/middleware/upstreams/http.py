"""One provider behind HTTP, over aiohttp (``docs/decisions/0003-aiohttp.md``)."""

from __future__ import annotations

import asyncio
import os
import ssl
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp
import msgspec
from yarl import URL

from headstart.errors import (
    ConfigError,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from headstart.middleware.reading import Piece, body_reader, is_event_stream
from headstart.middleware.upstreams.headers import headers_down, headers_up

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from headstart.middleware.dialects.dialect import Dialect
    from headstart.types import Call, Headers


class HTTPUpstream:
    """Streams calls to one base URL. ``aclose`` closes its connections."""

    def __init__(
        self,
        options: HTTPOptions,
        dialects: Mapping[str, Dialect],
        clock: Callable[[], float] = time.time,  # noqa: TID251 - the default of the injected clock
    ) -> None:
        self.name = options.name
        self._options = options
        self._clock = clock
        self._dialects = dialects
        self._base = URL(options.base_url.rstrip("/"))
        self._session: aiohttp.ClientSession | None = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            context: ssl.SSLContext | bool = True
            if self._options.ca_file is not None:
                try:
                    context = ssl.create_default_context(cafile=self._options.ca_file)
                except (OSError, ssl.SSLError) as error:
                    raise ConfigError(f"upstream.ca_file: {error}") from error
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=75, ssl=context),
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
        raw = path.decode("latin-1")
        if self._base.raw_path not in ("", "/"):
            raw = self._base.raw_path + _VERSION.sub("", raw)
        if query:
            raw += "?" + query.decode("latin-1")
        return URL(f"{self._base.scheme}://{self._base.raw_authority}{raw}", encoded=True)

    @asynccontextmanager
    async def stream(
        self, call: Call, body: AsyncIterator[bytes] | None = None
    ) -> AsyncIterator[HTTPReply | ErrorReply]:
        """Send the call; ``body`` streams a request body in place of ``call.body``.

        Entering waits for status and headers, and for the whole of an error in another dialect.
        Leaving closes the socket unless the answer was read to its end. Raises
        UpstreamUnreachable, UpstreamTimeout or UpstreamProtocolError, and InvalidRequest for a
        request that the upstream's dialect cannot express.
        """
        session = self._open()
        exchange = self._exchange(call)
        sent = outgoing(call, self._options, exchange.client, exchange.own)
        timeout = aiohttp.ClientTimeout(
            total=None,
            sock_connect=self._options.connect_s,
            sock_read=self._options.first_token_s,
        )
        with translated(self.name):
            async with session.request(
                call.method,
                self.url(sent.path, sent.query),
                data=body if body is not None else (sent.body or None),
                headers=sent.headers,
                allow_redirects=False,
                timeout=timeout,
                proxy=self._options.proxy,
            ) as response:
                reply = HTTPReply(
                    self.name, response, exchange, sent.transforms, self._options.read_s
                )
                yield await reply.whole_error() if reply.is_foreign_error else reply

    def _exchange(self, call: Call) -> Exchange:
        client = self._dialects.get(call.dialect) if call.request is not None else None
        own = client
        if client is not None and self._options.dialect:
            own = self._dialects[self._options.dialect]
        return Exchange(call, client, own, self._clock())


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Turn the client library's errors into ours; cancellation and our own errors pass."""
    try:
        yield
    except (aiohttp.ServerTimeoutError, TimeoutError) as error:
        raise UpstreamTimeout(f"upstream {name} did not answer in time") from error
    except aiohttp.ClientSSLError as error:
        raise UpstreamUnreachable(f"upstream {name}: TLS failed: {error}") from error
    except aiohttp.ClientConnectorError as error:
        raise UpstreamUnreachable(f"upstream {name} cannot be reached: {_reason(error)}") from error
    except (aiohttp.ClientPayloadError, aiohttp.ClientResponseError) as error:
        raise UpstreamProtocolError(f"upstream {name} broke off its answer") from error
    except (aiohttp.ClientError, OSError) as error:
        raise UpstreamUnreachable(f"upstream {name} closed the connection") from error


def _reason(error: aiohttp.ClientConnectorError) -> str:
    """Say why in the system's words: the library's speak of its own parameters."""
    number = error.os_error.errno
    if number is not None and number > 0:
        return os.strerror(number)
    return error.os_error.strerror or type(error.os_error).__name__


@dataclass(frozen=True, slots=True)
class Exchange:
    """Who speaks what in a call."""

    call: Call
    client: Dialect | None
    """None: the answer passes unread."""
    own: Dialect | None
    """The upstream's."""
    now: float

    @property
    def translates(self) -> bool:
        """Must the answer be written in another dialect?"""
        return self.client is not self.own

    def reader(self, status: int, headers: Headers, *, strip: bool) -> BodyReader:
        """Return the reader of an answer. Raises UpstreamProtocolError for one that it cannot read.

        An answer that only passes may be encoded: then it passes unread.
        """
        client, own, call = self.client, self.own, self.call
        if client is None or own is None or call.request is None:
            return BodyReader()
        rewrites = self.translates or call.fold
        if not is_plain(headers):
            if rewrites:
                raise UpstreamProtocolError("the upstream compressed an answer against our wish")
            return BodyReader()
        streams = is_event_stream(headers)
        if not rewrites:
            if streams:
                return FrameReader(client, call.id, strip=strip)
            return DocumentReader(client, status)
        naming = Naming(call.id, client.new_id(), int(self.now))
        if streams and not call.request.stream:
            return Folder(own, client, naming)
        if not self.translates:
            return DocumentReader(client, status)
        if streams:
            return Reencoder(own, client, naming, self._encoder(client, naming))
        encoder = self._encoder(client, naming) if call.request.stream else None
        return DocumentTranslator(own, client, status, naming, encoder)

    def _encoder(self, client: Dialect, naming: Naming) -> EventEncoder:
        request = self.call.request
        encoder = client.encoder(
            naming.answer_id,
            naming.created,
            include_usage=request is not None and request.include_usage,
        )
        if self.call.prompt_tokens:
            # Anthropic's streams begin with the usage, which others tell at their end.
            estimate = client.usage(Tokens(prompt=self.call.prompt_tokens))
            encoder.feed((UsageReported(usage=estimate),))
        return encoder


class HTTPReply:
    """One provider's answer: status and headers now, the body as it arrives."""

    storable = True

    def __init__(
        self,
        upstream: str,
        response: aiohttp.ClientResponse,
        exchange: Exchange,
        transforms: tuple[str, ...],
        read_s: float,
    ) -> None:
        raw = tuple((name.lower(), value) for name, value in response.raw_headers)
        strip = "include-usage" in transforms and is_event_stream(raw)
        self.upstream = upstream
        self.status = response.status
        self.transforms = transforms
        self.headers = headers_down(raw, body_changed=strip)
        self._response = response
        self._read_s = read_s
        self._reader = body_reader(response.status, raw, dialect, strip=strip)

    async def chunks(self) -> AsyncIterator[Piece]:
        """Yield the body as it arrives. Raises UpstreamError when it breaks off."""
        content = self._response.content
        with translated(self.upstream):
            # aiohttp's own read timeout is one figure for all reads: it bounds the wait for the
            # first piece; the gap between two later ones has its own bound.
            data = await content.readany()
            while data:
                yield self._reader.feed(data)
                if self._reader.failed:
                    break
                async with asyncio.timeout(self._read_s):
                    data = await content.readany()
        yield self._reader.end()
