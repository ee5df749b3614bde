"""Calls with a short body, which are sent with lower-level parts of the client library."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from headstart.errors import UpstreamError, UpstreamTimeout
from headstart.middleware.upstreams import http
from headstart.middleware.upstreams.http import HTTPUpstream
from headstart.settings import UpstreamSettings
from support.candidates import make_call
from support.patience import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headstart.types import Headers

pytestmark = pytest.mark.anyio

HEADERS: Headers = (
    (b"host", b"gateway.test"),
    (b"content-type", b"application/json"),
    (b"content-length", b"9"),
    (b"accept", b"*/*"),
    (b"x-names", b"first"),
    (b"x-names", "zw\u00f6lf".encode("latin-1")),
    (b"connection", b"keep-alive"),
    (b"user-agent", b"a client"),
)
OK = b"HTTP/1.1 200 OK\r\nx-limit: 1\r\nContent-Length: 2\r\n\r\nok"


class Provider:
    """Keeps what it reads, and answers each request with ``answer``."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.closes = False
        """It closes the connection after its answer."""
        self.read = b""
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError):
            while data := await reader.read(2**20):
                self.read += data
                _, found, body = self.read.rpartition(b"\r\n\r\n")
                if not (found and body == b"a request"):
                    continue
                writer.write(self.answer)
                if self.closes:
                    break
        writer.close()


@contextlib.asynccontextmanager
async def upstream_of(provider: Provider, **settings: Any) -> AsyncIterator[HTTPUpstream]:
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    base = settings.pop("base_url", "http://127.0.0.1:{port}").format(port=port)
    upstream = HTTPUpstream(UpstreamSettings(name="u", base_url=base, **settings))
    try:
        yield upstream
    finally:
        await upstream.aclose()
        server.close()


async def ask(upstream: HTTPUpstream) -> tuple[Any, ...]:
    call = make_call(b"a request", headers=HEADERS, query_string=b"a=%20b")
    try:
        async with await upstream.send(call) as reply:
            return reply.status, reply.headers, b"".join([p.data async for p in reply.pieces])
    except UpstreamError as error:
        return type(error), str(error)


async def test_a_new_version_of_the_client_library_needs_a_look_at_its_parts() -> None:
    """Compare ``aiohttp.ClientSession._request`` with ``HTTPUpstream._post``.

    If they still do the same, name the version in ``POSTS_ITSELF``.
    """
    assert http.POSTS_ITSELF, f"calls take longer with aiohttp {aiohttp.__version__}"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"headers": {"x-own": "1"}},
        {"headers": {"Host": "other.test"}},
        {"headers": {"X-Names": "1"}},
        {"base_url": "http://user:secret@127.0.0.1:{port}/v2"},
        {"base_url": "http://:secret@127.0.0.1:{port}"},
        {"base_url": "http://localhost:{port}"},
    ],
    ids=["plain", "own", "host", "other-case", "credentials", "password", "name"],
)
@pytest.mark.parametrize(
    "answer",
    [
        OK,
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 429 Slow Down\r\nretry-after: 3\r\nContent-Length: 2\r\n\r\nno",
        b"HTTP/1.1 204 No Content\r\nset-cookie: a=b\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nlocation: /elsewhere\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ],
    ids=["whole", "interim", "refusal", "empty", "redirect", "chunked", "no-http"],
)
async def test_they_are_the_calls_of_the_client_library(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, settings: dict[str, Any]
) -> None:
    """The provider reads the same bytes, on as many connections, and the caller gets the same."""
    seen = []
    for itself in (True, False):
        monkeypatch.setattr(http, "POSTS_ITSELF", itself)
        provider = Provider(answer)
        async with upstream_of(provider, **settings) as upstream:
            answers = [await ask(upstream) for _ in range(2)]
            port = str(upstream._base.port).encode()
        seen.append((answers, provider.read.replace(port, b"PORT"), provider.connections))
    assert seen[0] == seen[1]


async def test_tracers_and_tools_for_tests_see_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """They replace ``ClientSession._request``, before or after the upstream opens its session."""
    plain, seen = aiohttp.ClientSession._request, []

    async def traced(session: Any, method: str, url: Any, **options: Any) -> Any:
        headers = [*options.pop("headers"), ("traceparent", "00-of-the-tracer")]
        seen.append((method, url.path))
        return await plain(session, method, url, headers=headers, **options)

    provider = Provider(OK)
    async with upstream_of(provider) as upstream:
        await ask(upstream)
        monkeypatch.setattr(aiohttp.ClientSession, "_request", traced)
        assert (await ask(upstream))[0] == 200
    assert seen == [("POST", "/v1/chat/completions")]
    assert provider.read.count(b"traceparent: 00-of-the-tracer") == 1
    assert provider.connections == 1


async def test_tracers_that_give_each_session_their_hooks_see_each_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """OpenTelemetry and Sentry replace ``ClientSession.__init__``."""
    plain, seen = aiohttp.ClientSession.__init__, []

    async def begin(_: Any, __: Any, about: aiohttp.TraceRequestStartParams) -> None:
        about.headers["traceparent"] = "00-of-the-tracer"
        seen.append((about.method, about.url.path))

    def traced(session: aiohttp.ClientSession, **options: Any) -> None:
        hooks = aiohttp.TraceConfig()
        hooks.on_request_start.append(begin)
        plain(session, trace_configs=[hooks], **options)

    provider = Provider(OK)
    monkeypatch.setattr(aiohttp.ClientSession, "__init__", traced)
    async with upstream_of(provider) as upstream:
        assert [(await ask(upstream))[0] for _ in range(2)] == [200, 200]
    assert seen == [("POST", "/v1/chat/completions")] * 2
    assert provider.read.count(b"traceparent: 00-of-the-tracer") == 2
    assert provider.connections == 1


@pytest.mark.parametrize("itself", [True, False])
async def test_without_an_answer_the_connection_is_closed(
    monkeypatch: pytest.MonkeyPatch, *, itself: bool
) -> None:
    monkeypatch.setattr(http, "POSTS_ITSELF", itself)
    monkeypatch.setattr(http, "FIRST_BYTE_S", 0.05)
    provider = Provider(b"")
    async with upstream_of(provider) as upstream:
        with pytest.raises(UpstreamTimeout, match="sent nothing"):
            await upstream.send(make_call(b"a request"))
        asked = asyncio.get_running_loop().create_task(ask(upstream))
        await until(lambda: provider.read.count(b"a request") == 2)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        session = upstream._session
        assert session is not None
        assert session.connector is not None
        assert not session.connector._acquired
        assert not session.connector._conns
        provider.answer = OK
        assert (await ask(upstream))[0] == 200
    assert provider.connections == 3


@pytest.mark.parametrize("itself", [True, False])
async def test_a_provider_that_closes_without_an_answer(
    monkeypatch: pytest.MonkeyPatch, *, itself: bool
) -> None:
    monkeypatch.setattr(http, "POSTS_ITSELF", itself)
    provider = Provider(b"")
    provider.closes = True
    async with upstream_of(provider) as upstream:
        _, told = await ask(upstream)
        assert told == "upstream u closed the connection without an answer"
        provider.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"
        _, told = await ask(upstream)
        assert told == "upstream u broke off its answer"
