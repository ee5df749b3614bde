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


@dataclass(frozen=True)
class HTTPOptions:
    """Where a provider is and how long to wait for it (seconds)."""

    name: str
    base_url: str
    credential: Headers | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    defaults: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers for calls that have none of that name."""
    models: Mapping[str, str] = field(default_factory=dict)
    include_usage: bool = True
    connect_s: float = 10.0
    first_token_s: float = 120.0
    read_s: float = 120.0
    proxy: str | None = None
    ca_file: str | None = None


class HTTPUpstream:
    """Streams calls to one base URL. ``aclose`` closes its connections."""

    def __init__(self, options: HTTPOptions, dialects: Mapping[str, Dialect]) -> None:
        self.name = options.name
        self._options = options
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
        """Map a client's path onto the base URL; a base without a path keeps ``/v1``."""
        raw = path.decode("latin-1")
        if self._base.raw_path not in ("", "/"):
            raw = self._base.raw_path + raw.removeprefix("/v1")
        if query:
            raw += "?" + query.decode("latin-1")
        return URL(f"{self._base.scheme}://{self._base.raw_authority}{raw}", encoded=True)

    @asynccontextmanager
    async def stream(
        self, call: Call, body: AsyncIterator[bytes] | None = None
    ) -> AsyncIterator[HTTPReply]:
        """Send the call; ``body`` streams a request body in place of ``call.body``.

        Entering waits for status and headers. Leaving closes the socket unless the answer was
        read to its end. Raises UpstreamUnreachable, UpstreamTimeout or UpstreamProtocolError.
        """
        session = self._open()
        edited, transforms = self._edit(call)
        headers = headers_up(call.headers, self._options.credential)
        if call.request is not None and call.editable:
            headers = [pair for pair in headers if pair[0] != "accept-encoding"]
            headers.append(("accept-encoding", "identity"))
        headers.extend(self._options.headers.items())
        named = {name.lower() for name, _ in headers}
        headers.extend(pair for pair in self._options.defaults.items() if pair[0] not in named)
        timeout = aiohttp.ClientTimeout(
            total=None,
            sock_connect=self._options.connect_s,
            sock_read=self._options.first_token_s,
        )
        with translated(self.name):
            async with session.request(
                call.method,
                self.url(call.path, call.query_string),
                data=body if body is not None else (edited or None),
                headers=headers,
                allow_redirects=False,
                timeout=timeout,
                proxy=self._options.proxy,
            ) as response:
                dialect = self._dialects.get(call.dialect) if call.request is not None else None
                yield HTTPReply(self.name, response, dialect, transforms, self._options.read_s)

    def _edit(self, call: Call) -> tuple[bytes, tuple[str, ...]]:
        """Return the body to send and the names of the edits made to the client's own."""
        request = call.request
        if request is None or call.dialect not in self._dialects:
            return call.body, ()
        body, transforms = call.body, []
        real = self._options.models.get(request.model)
        if real is not None and real != request.model:
            fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            fields["model"] = msgspec.Raw(msgspec.json.encode(real))
            body = msgspec.json.encode(fields)
            transforms.append("model")
        if self._options.include_usage and call.editable:
            with_usage = self._dialects[call.dialect].add_usage(body, request)
            if with_usage is not None:
                body = with_usage
                transforms.append("include-usage")
        return body, tuple(transforms)


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


class HTTPReply:
    """One provider's answer: status and headers now, the body as it arrives."""

    def __init__(
        self,
        upstream: str,
        response: aiohttp.ClientResponse,
        dialect: Dialect | None,
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
                async with asyncio.timeout(self._read_s):
                    data = await content.readany()
        yield self._reader.end()
