"""A transport that sends the requests of httpx clients through Headstart in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio.to_thread

from headstart.clients import LocalServer, local_settings
from headstart.errors import MissingExtra
from headstart.sidecar import build_sidecar

try:
    import httpx
except ImportError as error:
    raise MissingExtra("httpx", "HeadstartTransport") from error

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Unpack

    from headstart.mount import CacheOptions
    from headstart.settings import DialectName, Settings


class HeadstartTransport(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """``httpx.Client(transport=HeadstartTransport("https://api.openai.com/v1"))``.

    Requests below ``base_url`` go through Headstart, all others as httpx sends them. ``dialect`` is
    the wire format of the provider if its address is not known. ``settings`` and ``cache`` are
    those of ``headstart.wrap``. Closing the client stops the server behind the transport. Raises
    ConfigError.
    """

    def __init__(
        self,
        base_url: str,
        settings: Settings | Path | str | None = None,
        *,
        dialect: DialectName = "openai",
        **cache: Unpack[CacheOptions],
    ) -> None:
        self._base = httpx.URL(base_url.rstrip("/"))
        chosen = local_settings(base_url, dialect, settings, cache)
        self._server = LocalServer(build_sidecar(chosen))
        self._url = httpx.URL(self._server.url)
        self._sync = httpx.HTTPTransport()
        self._async = httpx.AsyncHTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request of a ``Client``."""
        return self._sync.handle_request(self._aimed(request))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request of an ``AsyncClient``."""
        return await self._async.handle_async_request(self._aimed(request))

    def close(self) -> None:
        """Close the connections of a ``Client``, and stop the server."""
        self._sync.close()
        self._server.close()

    async def aclose(self) -> None:
        """Close the connections of an ``AsyncClient``, and stop the server."""
        await self._async.aclose()
        await anyio.to_thread.run_sync(self._server.close)

    def _aimed(self, request: httpx.Request) -> httpx.Request:
        """Return the request to the server if it is below ``base_url``; any other one unchanged."""
        url, base = request.url, self._base
        path = base.raw_path.rstrip(b"/")
        same = (url.scheme, url.host, url.port) == (base.scheme, base.host, base.port)
        if not same or not url.raw_path.startswith(path + b"/"):
            return request
        rest = url.raw_path.removeprefix(path)
        aimed = self._url.copy_with(raw_path=b"/v1" + rest if path else rest)
        headers = [pair for pair in request.headers.raw if pair[0].lower() != b"host"]
        return httpx.Request(
            request.method,
            aimed,
            headers=[(b"Host", aimed.netloc), *headers],
            stream=request.stream,
            extensions=request.extensions,
        )
