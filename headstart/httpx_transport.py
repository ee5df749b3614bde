"""A transport that sends the requests of httpx and httpx2 clients through Headstart."""

from __future__ import annotations

import re
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Unpack

import anyio.to_thread

from headstart.clients import LocalServer, local_settings, package_of
from headstart.dialects.registry import VERSION
from headstart.errors import MissingExtra
from headstart.sidecar import build_sidecar

_libraries: dict[str, Any] = {}
"""The libraries that are installed, by name. They have the same classes."""
for _name in ("httpx", "httpx2"):
    with suppress(ImportError):
        _libraries[_name] = import_module(_name)
if not _libraries:
    raise MissingExtra("httpx", "HeadstartTransport")
_VERSION = re.compile(f"{VERSION}/".encode())

if TYPE_CHECKING:
    from pathlib import Path

    import httpx
    import httpx2

    from headstart.mount import CacheOptions
    from headstart.settings import DialectName, Settings

    class _Transport(  # type: ignore[misc]
        httpx.BaseTransport,
        httpx.AsyncBaseTransport,
        httpx2.BaseTransport,
        httpx2.AsyncBaseTransport,
    ): ...

else:
    _bases = [(each.BaseTransport, each.AsyncBaseTransport) for each in _libraries.values()]
    _Transport = type("_Transport", sum(_bases, ()), {})


class HeadstartTransport(_Transport):
    """``httpx.Client(transport=HeadstartTransport("https://api.openai.com/v1"))``.

    Clients of httpx and of httpx2 take it. Requests below ``base_url`` go through Headstart, all
    others as the client's library sends them. ``dialect`` is the wire format of the provider if its
    address is not known. ``settings`` and ``cache`` are those of ``headstart.wrap``. Closing the
    client stops the server behind the transport. Raises ConfigError.
    """

    def __init__(
        self,
        base_url: str,
        settings: Settings | Path | str | None = None,
        *,
        dialect: DialectName = "openai",
        **cache: Unpack[CacheOptions],
    ) -> None:
        self._base_url = base_url.rstrip("/")
        chosen = local_settings(base_url, dialect, settings, cache)
        self._server = LocalServer(build_sidecar(chosen))
        self._sync = {name: each.HTTPTransport() for name, each in _libraries.items()}
        self._async = {name: each.AsyncHTTPTransport() for name, each in _libraries.items()}

    def handle_request(self, request: Any) -> Any:
        """Send a request of a ``Client``; return the response of the same library."""
        return self._sync[package_of(request, _libraries)].handle_request(self._aimed(request))

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request of an ``AsyncClient``; return the response of the same library."""
        sending = self._async[package_of(request, _libraries)]
        return await sending.handle_async_request(self._aimed(request))

    def close(self) -> None:
        """Close the connections of a ``Client``, and stop the server."""
        for each in self._sync.values():
            each.close()
        self._server.close()

    async def aclose(self) -> None:
        """Close the connections of an ``AsyncClient``, and stop the server."""
        for each in self._async.values():
            await each.aclose()
        await anyio.to_thread.run_sync(self._server.close)

    def _aimed(self, request: Any) -> Any:
        """Return the request to the server if it is below ``base_url``; any other one unchanged."""
        library = _libraries[package_of(request, _libraries)]
        url, base = request.url, library.URL(self._base_url)
        path = base.raw_path.rstrip(b"/")
        same = (url.scheme, url.host, url.port) == (base.scheme, base.host, base.port)
        if not same or not url.raw_path.startswith(path + b"/"):
            return request
        rest = url.raw_path.removeprefix(path)
        # Gemini's API has two versions, and v1 takes less than v1beta.
        version = b"/v1beta" if path.endswith(b"/v1beta") else b"/v1"
        version = b"" if not path or _VERSION.match(rest) else version
        aimed = library.URL(self._server.url).copy_with(raw_path=version + rest)
        headers = [pair for pair in request.headers.raw if pair[0].lower() != b"host"]
        return library.Request(
            request.method,
            aimed,
            headers=[(b"Host", aimed.netloc), *headers],
            stream=request.stream,
            extensions=request.extensions,
        )
