"""A matrix of hosts: around, inside and beside each framework's own middleware, on real sockets.

Every cell asks twice. The second answer is a hit with the first one's body, and each middleware
has done its own work on both. ``serving`` holds every message to strict ASGI.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp
import anyio
import pytest
from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from fastapi.sse import EventSourceResponse
from litestar import Litestar, post
from litestar.config.compression import CompressionConfig
from litestar.config.cors import CORSConfig
from litestar.middleware.rate_limit import RateLimitConfig
from litestar.response import ServerSentEvent as LitestarEvents
from litestar.response import Stream
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware  # noqa: TID251 - the host's, not ours
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request  # noqa: TC002 - FastAPI reads the annotations
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from headstart import Endpoint, HeadstartMiddleware, after_checks, gateway
from headstart.lab.simulator import Simulator
from headstart.settings import Settings, UpstreamSettings
from support.django_site import django_site
from support.patience import until
from support.proxied import Reply, reply_of
from support.serving import serving
from support.simulated import chat, simulated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from headstart.types import Message, Receive, Scope, Send

pytestmark = pytest.mark.anyio

ORIGIN = "https://app.example"
BROWSER = {"authorization": "Bearer me", "origin": ORIGIN, "accept-encoding": "gzip"}
LONG = "word " * 200
CHAT = "/v1/chat/completions"


class Timed(BaseHTTPMiddleware):
    """A subclass that sets a header, as half the applications have one."""

    async def dispatch(
        self, request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        response = await call_next(request)
        response.headers["x-process-time"] = "1"
        return response


async def timed(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Set a header, word for word as the FastAPI tutorial does."""
    response = await call_next(request)
    response.headers["X-Process-Time"] = "1"
    return response


MIDDLEWARE: dict[str, tuple[Callable[[FastAPI], None], str]] = {
    # name: (adds it to an app, the header that shows it)
    "function": (
        lambda app: app.add_middleware(BaseHTTPMiddleware, dispatch=timed),
        "x-process-time",
    ),
    "subclass": (lambda app: app.add_middleware(Timed), "x-process-time"),
    "gzip": (lambda app: app.add_middleware(GZipMiddleware, minimum_size=10), ""),
    "cors": (
        lambda app: app.add_middleware(CORSMiddleware, allow_origins=[ORIGIN]),
        "access-control-allow-origin",
    ),
    "any-origin": (
        lambda app: app.add_middleware(CORSMiddleware, allow_origins=["*"]),
        "access-control-allow-origin",
    ),
    "session": (lambda app: app.add_middleware(SessionMiddleware, secret_key="s"), ""),
    "trusted-host": (
        lambda app: app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1"]),
        "",
    ),
}
CORS = ("cors", "any-origin")
OUTSIDE, INSIDE = "outside", "inside"
ENDPOINTS = [Endpoint("/ask", prompt="question"), Endpoint("/stream"), Endpoint("/boom")]


def chunks(text: str) -> list[bytes]:
    words = [{"content": word} for word in text.split(" ")]
    frames = [{"choices": [{"index": 0, "delta": delta}]} for delta in words]
    frames.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return [b"data: " + json.dumps(head | each).encode() + b"\n\n" for each in frames] + [
        b"data: [DONE]\n\n"
    ]


class Asked:
    """How often the app's own functions ran."""

    def __init__(self) -> None:
        self.times = 0
        self.release = asyncio.Event()
        self.release.set()


def application(asked: Asked) -> FastAPI:
    app = FastAPI()

    @app.post("/ask")
    async def ask(request: Request) -> dict[str, str]:
        asked.times += 1
        question = (await request.json())["question"]
        if "refuse" in question:
            raise HTTPException(422, "no")
        return {"answer": LONG}

    @app.post("/boom")
    async def boom() -> None:
        asked.times += 1
        raise ValueError("broken")

    @app.post("/stream")
    async def stream() -> StreamingResponse:
        asked.times += 1

        async def parts() -> AsyncIterator[bytes]:
            yield b"one "
            await asked.release.wait()
            yield LONG.encode()

        return StreamingResponse(parts(), media_type="text/plain")

    @app.post(CHAT)
    async def completions(request: Request) -> Any:
        asked.times += 1
        if (await request.json()).get("stream"):
            return StreamingResponse(iter(chunks(LONG)), media_type="text/event-stream")
        return {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": LONG},
                    "finish_reason": "stop",
                }
            ],
        }

    return app


REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "json": ("/ask", {"question": "why?"}),
    "text-stream": ("/stream", {}),
    "chat": (CHAT, chat("why?")),
    "chat-stream": (CHAT, chat("why?", stream=True)),
}


def stacked(asked: Asked, *, inside: tuple[str, ...] = (), outside: tuple[str, ...] = ()) -> Any:
    """Return the app with middleware on both sides of ours; what is added last is outermost."""
    app = application(asked)
    for name in inside:
        MIDDLEWARE[name][0](app)
    app.add_middleware(HeadstartMiddleware, endpoints=ENDPOINTS, mode="exact-only")
    for name in outside:
        MIDDLEWARE[name][0](app)
    return app


@contextlib.asynccontextmanager
async def served(app: Any) -> AsyncIterator[Client]:
    # A connection each: uvicorn closes the one on which an app has raised.
    each = aiohttp.TCPConnector(force_close=True)
    async with serving(app) as url, aiohttp.ClientSession(connector=each) as session:
        yield Client(url, session)


class Client:
    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def get(self, path: str, **headers: str) -> Reply:
        async with self.session.get(self.url + path, headers={**BROWSER, **headers}) as response:
            return await reply_of(response)

    async def post(self, path: str, body: Any, **headers: str) -> Reply:
        async with self.session.post(
            self.url + path, json=body, headers={**BROWSER, **headers}
        ) as response:
            return await reply_of(response)


def says(reply: Reply) -> Any:
    """Return what an answer says, without what differs from answer to answer (ids, times)."""
    if not reply.headers["content-type"].startswith("text/event-stream"):
        choices = json.loads(reply.body).get("choices") if reply.body[:1] == b"{" else None
        return reply.body if choices is None else choices[0]["message"]["content"]
    frames = [line.removeprefix("data: ") for line in reply.body.decode().split("\n\n") if line]
    assert frames.pop() == "[DONE]"
    deltas = [json.loads(frame)["choices"] for frame in frames]
    return "".join(delta[0]["delta"].get("content") or "" for delta in deltas if delta)


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("side", [OUTSIDE, INSIDE])
@pytest.mark.parametrize("name", MIDDLEWARE)
async def test_a_repeat_is_a_hit_on_either_side_of_a_middleware(
    name: str, side: str, kind: str
) -> None:
    asked = Asked()
    path, body = REQUESTS[kind]
    async with served(stacked(asked, **{side: (name,)})) as client:
        miss = await client.post(path, body)
        hit = await client.post(path, body)
    assert (miss.status, miss.headers["x-cache"]) == (200, "MISS")
    # A chat answer is kept as what it says, without the headers that a browser asks for.
    lost = name in CORS and side == INSIDE and kind.startswith("chat")
    assert (hit.status, hit.headers["x-cache"]) == (200, "MISS" if lost else "HIT")
    assert says(miss) == says(hit)
    assert asked.times == (2 if lost else 1)
    _, header = MIDDLEWARE[name]
    for reply in (miss, hit):
        if name in CORS or side == OUTSIDE:
            assert not header or header in reply.headers
        if name == "gzip" and side == OUTSIDE and kind != "chat-stream":
            assert reply.headers["content-encoding"] == "gzip"


@pytest.mark.parametrize("kind", REQUESTS)
async def test_all_middleware_at_once(kind: str) -> None:
    asked = Asked()
    path, body = REQUESTS[kind]
    names = tuple(MIDDLEWARE)
    within = tuple(name for name in names if name not in CORS)
    async with served(stacked(asked, inside=within, outside=names)) as client:
        miss, hit = await client.post(path, body), await client.post(path, body)
    assert [reply.headers["x-cache"] for reply in (miss, hit)] == ["MISS", "HIT"]
    assert says(miss) == says(hit)


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("side", [OUTSIDE, INSIDE])
async def test_each_client_can_read_what_a_compressing_app_answered_to_another(
    side: str, kind: str
) -> None:
    path, body = REQUESTS[kind]
    for first, second in (("gzip", "identity"), ("identity", "gzip")):
        async with served(stacked(Asked(), **{side: ("gzip",)})) as client:
            miss = await client.post(path, body, **{"accept-encoding": first})
            hit = await client.post(path, body, **{"accept-encoding": second})
        for reply, accepted in ((miss, first), (hit, second)):
            assert reply.headers.get("content-encoding", "identity") in {"identity", accepted}
        assert hit.headers["x-cache"] == "HIT"
        assert says(miss) == says(hit)


def sending_files(app: Any) -> Any:
    """Offer what granian and hypercorn offer: to send a file that is named by its path."""

    async def server(scope: Any, receive: Any, send: Any) -> None:
        async def written(message: Any) -> None:
            if message["type"] == "http.response.pathsend":
                data = await anyio.Path(message["path"]).read_bytes()
                message = {"type": "http.response.body", "body": data, "more_body": False}
            await send(message)

        await app({**scope, "extensions": {"http.response.pathsend": {}}}, receive, written)

    return server


@pytest.mark.parametrize(
    ("root", "prefix"),
    [("/a", ""), ("/a", "/a"), ("", ""), ("/t/Zoë & Co", ""), ("/t/Zoë & Co", "/t/Zoë & Co")],
)
async def test_a_path_below_a_root_is_matched(root: str, prefix: str) -> None:
    """Most servers leave a path alone if a proxy has stripped the root; uvicorn puts it back."""
    app = HeadstartMiddleware(application(Asked()), endpoints=ENDPOINTS, mode="exact-only")

    async def server(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            raw = quote(prefix).encode() + b"/ask"
            scope = {**scope, "root_path": root, "path": prefix + "/ask", "raw_path": raw}
        await app(scope, receive, send)

    async with served(server) as client:
        replies = [await client.post("/ask", {"question": "why?"}) for _ in range(2)]
    assert [reply.headers.get("x-cache") for reply in replies] == ["MISS", "HIT"]


@pytest.mark.parametrize("condition", ["range", "if-none-match", "if-modified-since"])
async def test_the_conditions_of_one_client_reach_no_other(tmp_path: Path, condition: str) -> None:
    file = tmp_path / "file.txt"
    file.write_text(LONG)
    app = Starlette(routes=[Route("/file", lambda _: FileResponse(file))])
    wrapped = HeadstartMiddleware(
        app, endpoints=[Endpoint("/file", method="GET")], mode="exact-only"
    )
    async with served(sending_files(wrapped)) as client:
        past = await client.get("/file", **{"cache-control": "no-store"})
        own = {
            "range": "bytes=0-3",
            "if-none-match": past.headers["etag"],
            "if-modified-since": past.headers["last-modified"],
        }
        first = await client.get("/file", **{condition: own[condition]})
        other = await client.get("/file")
    assert past.headers["x-cache"] == "BYPASS"
    assert (first.status, first.headers["x-cache"], first.body) == (200, "MISS", LONG.encode())
    assert (other.status, other.headers["x-cache"], other.body) == (200, "HIT", LONG.encode())


@pytest.mark.parametrize("side", [OUTSIDE, INSIDE])
@pytest.mark.parametrize("name", MIDDLEWARE)
async def test_errors_pass_a_middleware_on_either_side(name: str, side: str) -> None:
    asked = Asked()
    async with served(stacked(asked, **{side: (name,)})) as client:
        refused = [await client.post("/ask", {"question": "refuse"}) for _ in range(2)]
        broken = [await client.post("/boom", {}) for _ in range(2)]
        only = await client.post("/ask", {"question": "new"}, **{"cache-control": "only-if-cached"})
        unknown = await client.post("/nowhere", {})
    assert [reply.status for reply in refused] == [422, 422]
    assert {json.loads(reply.body)["detail"] for reply in refused} == {"no"}
    assert [reply.status for reply in broken] == [500, 500]
    assert (only.status, unknown.status) == (504, 404)
    assert asked.times == 4


@pytest.mark.parametrize("name", MIDDLEWARE)
async def test_requests_that_are_not_looked_up_pass_a_middleware(name: str) -> None:
    async with served(stacked(Asked(), inside=(name,), outside=(name,))) as client:
        for path, body in REQUESTS.values():
            reply = await client.post(path, body, **{"cache-control": "no-store"})
            assert (reply.status, reply.headers["x-cache"]) == (200, "BYPASS")


@pytest.mark.parametrize("path", ["/ask", "/boom"])
async def test_middleware_around_sees_which_endpoint_answered(path: str) -> None:
    """Metrics and logs name a request by the route that the app wrote into its scope."""
    app, seen = application(Asked()), []
    app.add_middleware(HeadstartMiddleware, endpoints=ENDPOINTS, mode="exact-only")

    async def metrics(scope: Any, receive: Any, send: Any) -> None:
        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                seen.append(scope["endpoint"].__name__)
            await send(message)

        await app(scope, receive, sending)

    async with served(metrics) as client:
        await client.post(path, {"question": "why?"})
    assert seen == [path[1:]]


@pytest.mark.parametrize("name", ["function", "subclass", "cors", "session", "trusted-host"])
async def test_a_stream_is_not_held_back_by_a_middleware_around_it(name: str) -> None:
    asked = Asked()
    asked.release.clear()
    async with (
        served(stacked(asked, inside=(name,), outside=(name,))) as client,
        client.session.post(client.url + "/stream", json={}, headers=BROWSER) as live,
    ):
        assert await live.content.readany() == b"one "
        asked.release.set()
        assert (await live.read()) == LONG.encode()


@pytest.mark.parametrize("place", ["middleware-around", "none"])
@pytest.mark.parametrize("name", MIDDLEWARE)
async def test_a_mounted_gateway_answers_and_relays_below_a_middleware(
    name: str, place: str
) -> None:
    async with simulated(Simulator("instant")) as provider:
        upstream = UpstreamSettings(name="sim", base_url=f"{provider}/v1")
        llm = gateway(Settings(upstream=(upstream,)), store="memory:", mode="exact-only")
        app = application(Asked())
        app.mount("/llm", llm)
        if place == "middleware-around":
            MIDDLEWARE[name][0](app)
        try:
            async with served(app) as client:
                for fields in ({}, {"stream": True}):
                    body = chat("How can I sign up?", **fields)
                    miss = await client.post("/llm" + CHAT, body)
                    hit = await client.post("/llm" + CHAT, body)
                    assert (miss.status, hit.status) == (200, 200)
                    assert says(miss) == says(hit)
                    assert hit.headers["x-cache"] == "HIT"
                malformed = await client.post("/llm" + CHAT, {"model": "m"})
                assert malformed.status == 400
                async with client.session.get(
                    client.url + "/llm/v1/models", headers=BROWSER
                ) as models:
                    assert models.status == 200
                    assert models.headers["cache-status"].endswith("detail=relayed")
                    assert (await models.json())["data"]
                failed = await client.post("/llm/v1/nowhere", {})
                assert failed.status == 404
        finally:
            await llm.aclose()


@pytest.mark.parametrize("side", [OUTSIDE, INSIDE])
async def test_each_page_is_let_in_by_its_own_origin(side: str) -> None:
    async with served(stacked(Asked(), **{side: ("cors",)})) as client:
        without = await client.post("/ask", {"question": "why?"}, origin="null")
        page = [await client.post("/ask", {"question": "why?"}) for _ in range(2)]
    assert "access-control-allow-origin" not in without.headers
    assert [reply.headers["access-control-allow-origin"] for reply in page] == [ORIGIN, ORIGIN]
    assert page[1].headers["x-cache"] == "HIT"


@pytest.mark.parametrize("checks", [False, True])
async def test_a_stream_that_breaks_off_inside_of_a_middleware_is_not_stored(
    *, checks: bool
) -> None:
    """``BaseHTTPMiddleware`` ends it as if it were whole, and raises the error afterwards."""
    asked, app = Asked(), FastAPI()

    async def parts() -> AsyncIterator[bytes]:
        yield b"Do not "
        if asked.times == 1:
            raise ConnectionError("the provider broke off")
        yield b"panic"

    async def stream() -> StreamingResponse:
        asked.times += 1
        return StreamingResponse(parts(), media_type="text/plain")

    app.post("/broken")(after_checks(stream) if checks else stream)
    app.add_middleware(Timed)
    endpoint = Endpoint("/broken", after_checks=checks)
    app.add_middleware(HeadstartMiddleware, endpoints=[endpoint], mode="exact-only")
    async with served(app) as client:
        replies = [await client.post("/broken", {}) for _ in range(3)]
    assert [(reply.body, reply.headers["x-cache"]) for reply in replies] == [
        (b"Do not ", "MISS"),
        (b"Do not panic", "MISS"),
        (b"Do not panic", "HIT"),
    ]


async def test_background_tasks_after_a_stream_do_not_keep_it_from_being_stored() -> None:
    app, release = FastAPI(), asyncio.Event()

    @app.post("/stream")
    async def stream() -> StreamingResponse:
        return StreamingResponse(iter([b"one"]), background=BackgroundTask(release.wait))

    app.add_middleware(HeadstartMiddleware, endpoints=ENDPOINTS, mode="exact-only")
    async with served(app) as client:
        replies = [await client.post("/stream", {}) for _ in range(2)]
        release.set()
    assert [(reply.body, reply.headers["x-cache"]) for reply in replies] == [
        (b"one", "MISS"),
        (b"one", "HIT"),
    ]


def fastapi_events(times: list[int]) -> Any:
    app = FastAPI()

    @app.post("/stream", response_class=EventSourceResponse)
    async def stream() -> AsyncIterator[str]:
        times.append(1)
        yield "one"

    return app


def litestar_events(times: list[int]) -> Any:
    @post("/stream")
    async def stream() -> LitestarEvents:
        times.append(1)
        return LitestarEvents(iter(["one"]))

    return Litestar([stream])


@pytest.mark.parametrize("make", [fastapi_events, litestar_events])
async def test_the_event_streams_of_a_framework_get_hits(make: Callable[[list[int]], Any]) -> None:
    """They come with ``Cache-Control: no-cache``."""
    times: list[int] = []
    app = HeadstartMiddleware(make(times), endpoints=ENDPOINTS, mode="exact-only")
    async with served(app) as client:
        replies = [await client.post("/stream", {}) for _ in range(2)]
    assert [reply.headers["x-cache"] for reply in replies] == ["MISS", "HIT"]
    assert replies[0].body == replies[1].body
    assert len(times) == 1


def litestar_stack(asked: Asked) -> Any:
    """Litestar with what it brings along: compression, CORS, a limit of the rate."""

    @post("/ask", status_code=200)
    async def ask() -> dict[str, str]:
        asked.times += 1
        return {"answer": LONG}

    @post("/stream", status_code=200)
    async def stream() -> Stream:
        asked.times += 1
        return Stream(iter(LONG.encode().split(b" ")), media_type="text/plain")

    @post("/boom")
    async def boom() -> None:
        asked.times += 1
        raise ValueError("broken")

    return Litestar(
        [ask, stream, boom],
        compression_config=CompressionConfig(backend="gzip", minimum_size=10),
        cors_config=CORSConfig(allow_origins=[ORIGIN]),
        middleware=[RateLimitConfig(("minute", 99)).middleware],
    )


def quart_stack(asked: Asked) -> Any:
    """Quart with hooks and its signed session."""
    from quart import Quart, Response, session

    app = Quart(__name__)
    app.secret_key = "s"

    @app.after_request
    async def timed(response: Response) -> Response:
        response.headers["X-Process-Time"] = "1"
        return response

    @app.post("/ask")
    async def ask() -> dict[str, str]:
        asked.times += 1
        assert session.get("user") is None
        return {"answer": LONG}

    @app.post("/stream")
    async def stream() -> Response:
        asked.times += 1

        async def parts() -> AsyncIterator[bytes]:
            for word in LONG.encode().split(b" "):
                yield word

        return Response(parts(), content_type="text/plain")

    @app.post("/boom")
    async def boom() -> Response:
        asked.times += 1
        raise ValueError("broken")

    return app


def django_stack(asked: Asked) -> Any:
    """Django with the middleware of a new project, as far as it needs no database."""
    from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
    from django.views.decorators.csrf import csrf_exempt

    async def ask(request: HttpRequest) -> JsonResponse:
        asked.times += 1
        assert request.session.get("user") is None
        return JsonResponse({"answer": LONG})

    def stream(request: HttpRequest) -> StreamingHttpResponse:
        asked.times += 1

        async def parts() -> AsyncIterator[bytes]:
            for word in LONG.encode().split(b" "):
                yield word

        return StreamingHttpResponse(parts(), content_type="text/plain")

    def boom(request: HttpRequest) -> HttpResponse:
        asked.times += 1
        raise ValueError("broken")

    views = {"/ask": ask, "/stream": stream, "/boom": boom}
    names = (
        "security.SecurityMiddleware",
        "gzip.GZipMiddleware",
        "http.ConditionalGetMiddleware",
        "common.CommonMiddleware",
        "csrf.CsrfViewMiddleware",
        "clickjacking.XFrameOptionsMiddleware",
    )
    return django_site(
        {path: csrf_exempt(view) for path, view in views.items()},
        ["django.contrib.sessions.middleware.SessionMiddleware"]
        + [f"django.middleware.{name}" for name in names],
        SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
    )


@pytest.mark.parametrize("around", [None, "gzip", "subclass"])
@pytest.mark.parametrize("stack", [litestar_stack, quart_stack, django_stack])
async def test_a_frameworks_own_stack_gets_hits(
    stack: Callable[[Asked], Any], around: str | None
) -> None:
    asked = Asked()
    async with contextlib.AsyncExitStack() as entered:
        app = stack(asked)
        if isinstance(app, contextlib.AbstractContextManager):  # a Django site has its settings
            app = entered.enter_context(app)
        app = HeadstartMiddleware(app, endpoints=ENDPOINTS, mode="exact-only")
        if around == "gzip":
            app = GZipMiddleware(app, minimum_size=10)
        elif around == "subclass":
            app = Timed(app)
        client = await entered.enter_async_context(served(app))
        for path in ("/ask", "/stream"):
            plain = await client.post(path, {}, **{"accept-encoding": "identity"})
            packed = await client.post(path, {})
            assert [reply.headers["x-cache"] for reply in (plain, packed)] == ["MISS", "HIT"]
            assert says(plain) == says(packed)
            assert LONG.replace(" ", "") in plain.body.decode().replace(" ", "")
            assert "content-encoding" not in plain.headers
            assert ("content-encoding" in packed.headers) == (around == "gzip")
            assert ("x-process-time" in packed.headers) or around != "subclass"
        broken = [await client.post("/boom", {}) for _ in range(2)]
        own = await client.post(path, {}, **{"cache-control": "no-store"})
    assert [reply.status for reply in broken] == [500, 500]
    assert (own.status, own.headers["x-cache"]) == (200, "BYPASS")
    assert asked.times == 5


async def test_scopes_other_than_http_pass_as_they_are() -> None:
    seen: list[tuple[object, object, object]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, receive, send))

    async def receive() -> dict[str, Any]:
        raise AssertionError("the app alone reads its messages")

    async def send(message: Any) -> None:
        raise AssertionError("the app alone sends its messages")

    wrapped = HeadstartMiddleware(app, endpoints=ENDPOINTS, mode="exact-only")
    for kind in ("websocket", "a.later.kind"):
        scope: dict[str, Any] = {"type": kind, "path": "/ask", "headers": []}
        before = dict(scope)
        await wrapped(scope, receive, send)
        got = seen.pop()
        assert got[0] is scope
        assert scope == before
        assert got[1:] == (receive, send)
    with pytest.raises(NotImplementedError):
        await gateway(mode="exact-only")({"type": "a.later.kind"}, receive, send)


async def test_the_state_of_the_apps_lifespan_reaches_its_requests() -> None:
    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[dict[str, str]]:
        yield {"pool": "open"}

    def ask(request: Request) -> JSONResponse:
        return JSONResponse({"pool": request.state.pool})

    app = Starlette(routes=[Route("/ask", ask, methods=["POST"])], lifespan=lifespan)
    wrapped = HeadstartMiddleware(app, endpoints=ENDPOINTS, mode="exact-only")
    async with served(wrapped) as client:
        replies = [await client.post("/ask", {}) for _ in range(2)]
    assert [json.loads(reply.body) for reply in replies] == [{"pool": "open"}] * 2


async def test_a_client_that_leaves_before_its_answer_is_no_failure_of_the_app() -> None:
    """Without an answer, ``BaseHTTPMiddleware`` raises, and monitors around us count a 500."""
    asked, release, statuses = asyncio.Event(), asyncio.Event(), []

    async def slow(request: Request) -> Response:
        asked.set()
        await release.wait()
        return JSONResponse({})

    async def noted(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        response = await call_next(request)
        statuses.append(response.status_code)
        return response

    app = Starlette(routes=[Route("/ask", slow, methods=["POST"])])
    app.add_middleware(HeadstartMiddleware, endpoints=ENDPOINTS, mode="exact-only")
    app.add_middleware(BaseHTTPMiddleware, dispatch=noted)
    async with served(app) as client:
        async with asyncio.TaskGroup() as group:
            call = group.create_task(client.post("/ask", {"question": "why?"}))
            await asked.wait()
            call.cancel()
        try:
            await until(lambda: bool(statuses))
        finally:
            release.set()
    assert statuses == [499]


async def test_a_request_that_its_server_cancels_ends_after_its_app() -> None:
    """Daphne cancels open requests when it stops, and then stops the loop."""
    begun, ended = asyncio.Event(), []
    body: list[Message] = [{"type": "http.request", "body": b"{}", "more_body": False}]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        await asyncio.sleep(0.05)
        ended.append("app")

    async def receive() -> Message:
        if body:
            return body.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            begun.set()

    scope = {
        "type": "http", "method": "POST", "path": "/ask", "raw_path": b"/ask", "query_string": b"",
        "headers": [(b"authorization", b"Bearer me")], "client": None, "server": None,
        "root_path": "", "http_version": "1.1", "scheme": "http", "asgi": {"version": "3.0"},
    }  # fmt: skip
    wrapped = HeadstartMiddleware(app, endpoints=ENDPOINTS, mode="exact-only")
    async with asyncio.TaskGroup() as group:
        request = group.create_task(wrapped(scope, receive, send))
        await begun.wait()
        request.cancel()
        await asyncio.wait((request,))
        assert ended == ["app"]
    await wrapped.aclose()
