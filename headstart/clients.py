"""Clients that go through Headstart: ``wrap`` for the SDKs of providers, and ``LiveDraft``.

The sidecar runs in a thread, on a free port of loopback. So sync and async clients, streams and
cancellation work as with any server.

``LiveDraft`` sends a prompt to a Headstart server while it is being typed.
"""

from __future__ import annotations

import _thread
import asyncio
import atexit
import contextlib
import re
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar, Unpack
from urllib.parse import urlsplit

import aiohttp
import msgspec
import uvicorn

from headstart.config.loading import override_cache
from headstart.config.providers import providers
from headstart.errors import ConfigError, HeadstartError
from headstart.middleware.http_protocol import BoundedHeadProtocol
from headstart.mount import CacheOptions, resolve_settings
from headstart.settings import DialectName, Settings, UpstreamSettings
from headstart.sidecar import build_sidecar
from headstart.sockets import bind, client_session, url_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path
    from socket import socket
    from types import TracebackType

    from headstart.types import ASGIApp


P = ParamSpec("P")
T = TypeVar("T")

POLL_S = 0.01
"""Seconds between two checks whether the server has started."""


class _LastingPool(ThreadPoolExecutor):
    """A thread pool that still works while the program ends.

    When the main thread has ended, pools take no more work. Other threads of the program may go on,
    and a server that stops writes files. So from then on the event loop does the work itself.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function in a thread, or here."""
        with suppress(RuntimeError):
            return super().submit(fn, *args, **kwargs)
        done = Future[T]()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the future raises it
            done.set_exception(error)
        return done


class _ServerWithPool(uvicorn.Server):
    program_ends = False
    """Whether the program ends. Then no client reads the answers in flight, and the server does not
    wait for them."""

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        if self.program_ends:
            for connection in list(self.server_state.connections):
                connection.transport.abort()
        await super().shutdown(sockets)

    async def serve(self, sockets: list[socket] | None = None) -> None:
        asyncio.get_running_loop().set_default_executor(_LastingPool())
        await super().serve(sockets)


class LocalServer:
    """An ASGI app that is served on loopback by a thread of this process, at ``url``.

    Raises HeadstartError if the app does not start. The end of the program stops the server, too.
    """

    def __init__(self, app: ASGIApp) -> None:
        if _thread.start_new_thread.__module__.startswith(("gevent.", "eventlet.")):
            raise ConfigError(
                "gevent or eventlet has replaced the threads of this program, and no event loop "
                "can run in theirs: start headstart serve, and give its address to the client as "
                "base_url"
            )
        self._listening = bind("127.0.0.1", 0)
        self.url = url_of(self._listening)
        config = uvicorn.Config(
            app,
            log_level="error",
            lifespan="on",
            http=BoundedHeadProtocol,
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=5,
        )
        self._server = _ServerWithPool(config)
        self._thread = threading.Thread(target=self._run, name="headstart-server", daemon=True)
        self._thread.start()
        atexit.register(self._end)
        while not self._server.started:
            self._thread.join(POLL_S)
            if not self._thread.is_alive():
                raise HeadstartError("Headstart did not start; the log says why")

    def _run(self) -> None:
        # uvicorn exits where the app does not start.
        with self._listening, suppress(SystemExit):
            try:
                self._server.run([self._listening])
            except RuntimeError:
                # The event loop ends its thread pool with a new thread. Python 3.12 starts none
                # while the interpreter ends.
                if not self._server.should_exit:
                    raise
        atexit.unregister(self._end)

    def _end(self) -> None:
        self._server.program_ends = True
        self.close()

    def stop(self) -> None:
        """Tell the server to stop, and do not wait for it."""
        self._server.should_exit = True

    def close(self) -> None:
        """Stop the server, and wait until it has."""
        self.stop()
        self._thread.join()


class _Client(Protocol):
    @property
    def base_url(self) -> Any: ...

    def with_options(self, *, base_url: str = ...) -> Any: ...


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
    Tools that trace one client, such as LangSmith's ``wrap_openai``, take the new client.

    Starting takes about a second; do it before your event loop runs. Raises ConfigError, also for a
    client that is no such SDK's.
    """
    is_like_one = hasattr(client, "with_options") and hasattr(client, "base_url")
    # Tracing tools put their own class around a client; ``with_options`` returns the SDK's.
    package = package_of(client.with_options(), ("openai", "anthropic")) if is_like_one else ""
    if not package:
        name = type(client).__name__
        raise ConfigError(
            f"wrap takes a client of the SDK of OpenAI or Anthropic, not {name}; for others set "
            "base_url to the address of headstart serve"
        )
    dialect: DialectName = "anthropic" if package == "anthropic" else "openai"
    base_url = str(client.base_url)
    server = LocalServer(build_sidecar(local_settings(base_url, dialect, settings, cache)))
    # Anthropic's SDK adds the version to each path itself; its client for Vertex does not.
    has_version = dialect == "openai" or re.search(r"/v\d+/?$", base_url)
    wrapped: Client = client.with_options(base_url=server.url + ("/v1" if has_version else ""))
    weakref.finalize(wrapped, server.stop)
    return wrapped


def package_of(made: object, packages: Collection[str]) -> str:
    """Return the one of these packages that has an object's class, or a base of it; "" if none."""
    names = (each.__module__.partition(".")[0] for each in type(made).__mro__)
    return next((name for name in names if name in packages), "")


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


# --- live drafts ----------------------------------------------------------------------------------

INTERVAL_S = 0.1
"""Seconds between two sent states of a text, at least."""


class LiveDraft:
    """One prompt that is being written; ``docs/live-drafts.md`` has an example.

    ``request`` is the body of the final call, with ``{{draft}}`` in the place of the text; ``url``
    is the server's address. ``headers`` are those of the final call that say who is calling, such
    as ``authorization``. Give ``write`` each state of the text: it never waits, and sends the last
    state at most every ``interval_s`` seconds. Then make the final call with ``call_headers``.

    Only the beginning of ``async with`` raises HeadstartError. If something fails later, the final
    call is an ordinary one.
    """

    def __init__(
        self,
        url: str,
        request: Mapping[str, Any],
        *,
        headers: Mapping[str, str] | None = None,
        path: str = "/v1/chat/completions",
        stages: Sequence[str] | None = None,
        budget_usd: float | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._url = url.rstrip("/").removesuffix("/v1") + "/v1/live"
        opening = {"request": request, "path": path, "stages": stages, "budget_usd": budget_usd}
        self._opening = {name: value for name, value in opening.items() if value is not None}
        self._headers = {**(headers or {}), "content-type": "application/json"}
        self._interval_s = interval_s
        self._text = ""
        self._news = asyncio.Event()
        self._session: aiohttp.ClientSession | None = None
        self._sending: asyncio.Task[None] | None = None
        self.state: dict[str, Any] = {}
        """The last state from the server: ``rev``, ``cache``, ``warm``, ``answer``,
        ``spent_usd``."""

    @property
    def call_headers(self) -> dict[str, str]:
        """The header for the final call (``extra_headers`` of the SDKs)."""
        return {"x-headstart-live": self.state["id"]} if self.state else {}

    def write(self, text: str) -> None:
        """Send the present text of the prompt."""
        if text != self._text:
            self._text = text
            self._news.set()

    async def __aenter__(self) -> Self:
        self._session = session = client_session(headers=self._headers)
        try:
            self.state = await self._begin(session)
        except BaseException:
            await session.close()
            raise
        self._sending = asyncio.create_task(self._send_all(session))  # noqa: TID251 - ended below
        return self

    async def _begin(self, session: aiohttp.ClientSession) -> dict[str, Any]:
        """Send the request; return the first state of the draft. Raises HeadstartError."""
        body = msgspec.json.encode(self._opening)
        try:
            async with session.post(self._url, data=body) as response:
                answer = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise HeadstartError(f"the live draft did not begin: {error}") from error
        if response.status != 201:
            told = answer.decode(errors="replace")
            hint = " (is live.enabled set on the server?)" if response.status == 404 else ""
            raise HeadstartError(f"the live draft was refused{hint}: {told}")
        return msgspec.json.decode(answer, type=dict[str, Any])

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the draft, unless the final call has taken it."""
        assert self._session is not None
        assert self._sending is not None
        self._sending.cancel()
        await asyncio.wait([self._sending])
        with contextlib.suppress(aiohttp.ClientError, OSError):
            async with self._session.delete(f"{self._url}/{self.state['id']}"):
                pass
        await self._session.close()

    async def _send_all(self, session: aiohttp.ClientSession) -> None:
        rev = 0
        while True:
            await self._news.wait()
            self._news.clear()
            rev += 1
            body = msgspec.json.encode({"rev": rev, "text": self._text})
            with contextlib.suppress(aiohttp.ClientError, OSError, msgspec.DecodeError):
                async with session.put(f"{self._url}/{self.state['id']}", data=body) as response:
                    if response.status == 202:
                        self.state = msgspec.json.decode(await response.read())
            await asyncio.sleep(self._interval_s)
