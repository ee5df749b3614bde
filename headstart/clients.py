"""Clients of providers that go through Headstart in their own process: ``wrap``.

The sidecar runs in a thread, on a free port of loopback. So sync and async clients, streams and
cancellation work as with any server.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec
import uvicorn

from headstart.config.loading import override_cache
from headstart.config.providers import providers
from headstart.errors import ConfigError, HeadstartError
from headstart.middleware.http_protocol import BoundedHeadProtocol
from headstart.mount import resolve_settings
from headstart.settings import Settings, UpstreamSettings
from headstart.sidecar import build_sidecar
from headstart.sockets import bind, url_of

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Unpack

    from headstart.mount import CacheOptions
    from headstart.settings import DialectName
    from headstart.types import ASGIApp

POLL_S = 0.01


class LocalServer:
    """An ASGI app that is served on loopback by a thread of this process, at ``url``.

    Raises HeadstartError if the app does not start. The end of the program stops the server, too.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._listening = bind("127.0.0.1", 0)
        self.url = url_of(self._listening)
        config = uvicorn.Config(
            app,
            log_level="error",
            lifespan="on",
            http=BoundedHeadProtocol,
            ws="none",
            date_header=False,
            server_header=False,
            timeout_graceful_shutdown=5,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="headstart-server", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        while not self._server.started:
            self._thread.join(POLL_S)
            if not self._thread.is_alive():
                raise HeadstartError("Headstart did not start; the log says why")

    def _run(self) -> None:
        # uvicorn exits where the app does not start.
        with self._listening, suppress(SystemExit):
            self._server.run([self._listening])
        atexit.unregister(self.close)

    def stop(self) -> None:
        """Tell the server to stop, without a wait."""
        self._server.should_exit = True

    def close(self) -> None:
        """Stop the server, and wait until it has."""
        self.stop()
        self._thread.join()


class _Client(Protocol):
    @property
    def base_url(self) -> Any: ...

    def with_options(self, *, base_url: str) -> Any: ...


Client = TypeVar("Client", bound=_Client)


def wrap(
    client: Client,
    settings: Settings | Path | str | None = None,
    **cache: Unpack[CacheOptions],
) -> Client:
    """Return a client of OpenAI's or Anthropic's SDK whose calls go through Headstart.

    ``client = headstart.wrap(OpenAI())``. Without ``settings`` the calls go to the client's own
    ``base_url`` with its own key, and answers are kept in memory. ``settings`` and ``cache`` are
    those of ``headstart.gateway``; settings with upstreams decide where calls go. The server behind
    the new client stops when nothing refers to the client any more, or when the program ends.
    Keep the new client: one that you make from it with ``with_options`` does not keep the server.

    Starting takes about a second; do it before your event loop runs. Raises ConfigError, also for a
    client that is no such SDK's.
    """
    if not hasattr(client, "with_options") or not hasattr(client, "base_url"):
        name = type(client).__name__
        raise ConfigError(
            f"wrap takes a client of the SDK of OpenAI or Anthropic, not {name}; for others set "
            "base_url to the address of headstart serve"
        )
    dialect: DialectName = "anthropic" if _package(client) == "anthropic" else "openai"
    base_url = str(client.base_url)
    server = LocalServer(build_sidecar(local_settings(base_url, dialect, settings, cache)))
    path = "/v1" if urlsplit(base_url).path.strip("/") else ""
    wrapped: Client = client.with_options(base_url=server.url + path)
    weakref.finalize(wrapped, server.stop)
    return wrapped


def _package(client: object) -> str:
    """Return the package that a client's class, or one that it extends, is of."""
    names = [each.__module__.partition(".")[0] for each in type(client).__mro__]
    return next((name for name in names if name in ("openai", "anthropic")), names[0])


def local_settings(
    base_url: str,
    dialect: DialectName,
    settings: Settings | Path | str | None,
    cache: CacheOptions,
) -> Settings:
    """Return settings with an upstream at ``base_url``, if ``settings`` have none.

    The upstream gets the caller's key. It is the preset of its host, if there is one. Raises
    ConfigError.
    """
    if settings is not None:
        chosen = resolve_settings(settings, cache)
        if chosen.upstream:
            return chosen
    else:
        chosen = Settings()
        cache = {"store": "memory:", **cache}
    host = urlsplit(base_url).netloc
    known = (each for each in providers().values() if urlsplit(each.base_url).netloc == host)
    found = next(known, None)
    upstream = (
        UpstreamSettings(base_url=base_url.rstrip("/"), dialect=dialect, api_key_env=())
        if found is None
        else UpstreamSettings(preset=found.name, api_key_env=())
    )
    return override_cache(msgspec.structs.replace(chosen, upstream=(upstream,)), cache)
