"""Hits after the app's own checks: a revoked token gets the app's refusal, in each framework.

The checks are what each framework has for them: dependencies, guards, decorators. They run on every
request, hits among them; the handler runs on misses alone.
"""

# FastAPI resolves Annotated[...] among globals; the dependencies of these apps are closures.
# ruff: noqa: B008, FAST002

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Annotated, Any

import aiohttp
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, Header, HTTPException, Security
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes
from litestar import Litestar
from litestar import Request as LitestarRequest
from litestar import post as litestar_post
from litestar.exceptions import NotAuthorizedException
from litestar.response import Stream
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser, requires
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request  # noqa: TC002 - FastAPI reads the annotations
from starlette.responses import JSONResponse
from starlette.routing import Route

from headstart import Endpoint, HeadstartMiddleware, after_checks, gateway
from headstart.errors import ConfigError
from headstart.settings import ServerSettings, Settings
from support.django_site import django_site
from support.patience import until
from support.proxied import Reply, reply_of
from support.serving import serving
from support.simulated import chat, in_flight

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from litestar.connection import ASGIConnection

pytestmark = pytest.mark.anyio

ASK = {"question": "why?"}
TEXT = "You asked: why?"
PARTS = [b"You ", b"asked: ", b"why?"]


class App:
    """What an app below knows and counts."""

    def __init__(self) -> None:
        self.tokens = {"ann", "bob"}
        self.checked = 0
        self.asked = 0
        self.hold: asyncio.Event | None = None

    def check(self, header: str | None) -> str | None:
        """Return whose token it is, or None."""
        self.checked += 1
        token = (header or "").removeprefix("Bearer ")
        return token if token in self.tokens else None

    async def answer(self) -> dict[str, str]:
        self.asked += 1
        if self.hold is not None:
            await self.hold.wait()
        return {"answer": TEXT}

    async def parts(self) -> AsyncIterator[bytes]:
        self.asked += 1
        for part in PARTS:
            yield part


class Asked(BaseModel):
    question: str


class Answered(BaseModel):
    answer: str


def fastapi_app(own: App) -> Any:
    app = FastAPI()

    async def user(authorization: Annotated[str | None, Header()] = None) -> str:
        name = own.check(authorization)
        if name is None:
            raise HTTPException(401, "log in first")
        return name

    @app.post("/ask")
    @after_checks
    async def ask(body: Asked, name: str = Depends(user)) -> Answered:
        return Answered(**await own.answer())

    @app.post("/sync")
    @after_checks
    def ask_in_thread(body: Asked, name: str = Depends(user)) -> Answered:
        own.asked += 1
        return Answered(answer=TEXT)

    @app.post("/stream")
    @after_checks
    async def stream(body: Asked, name: str = Depends(user)) -> StreamingResponse:
        return StreamingResponse(own.parts(), media_type="text/plain")

    return app


class Backend(AuthenticationBackend):
    def __init__(self, own: App) -> None:
        self._own = own

    async def authenticate(self, conn: Any) -> tuple[AuthCredentials, SimpleUser] | None:
        name = self._own.check(conn.headers.get("authorization"))
        return None if name is None else (AuthCredentials(["known"]), SimpleUser(name))


def starlette_app(own: App) -> Any:
    @requires("known", status_code=403)
    @after_checks
    async def ask(request: Request) -> JSONResponse:
        return JSONResponse(await own.answer())

    @requires("known", status_code=403)
    @after_checks
    def ask_in_thread(request: Request) -> JSONResponse:
        own.asked += 1
        return JSONResponse({"answer": TEXT})

    @requires("known", status_code=403)
    @after_checks
    async def stream(request: Request) -> StreamingResponse:
        return StreamingResponse(own.parts(), media_type="text/plain")

    pages = {"/ask": ask, "/sync": ask_in_thread, "/stream": stream}
    return Starlette(
        routes=[Route(path, page, methods=["POST"]) for path, page in pages.items()],
        middleware=[Middleware(AuthenticationMiddleware, backend=Backend(own))],
    )


def litestar_app(own: App) -> Any:
    def known(connection: ASGIConnection[Any, Any, Any, Any], _: Any) -> None:
        if own.check(connection.headers.get("authorization")) is None:
            raise NotAuthorizedException("log in first")

    @litestar_post("/ask", guards=[known], status_code=200)
    @after_checks
    async def ask(request: LitestarRequest[Any, Any, Any]) -> dict[str, str]:
        return await own.answer()

    @litestar_post("/sync", guards=[known], status_code=200, sync_to_thread=True)
    @after_checks
    def ask_in_thread(request: LitestarRequest[Any, Any, Any]) -> dict[str, str]:
        own.asked += 1
        return {"answer": TEXT}

    @litestar_post("/stream", guards=[known], status_code=200)
    @after_checks
    async def stream(request: LitestarRequest[Any, Any, Any]) -> Stream:
        return Stream(own.parts(), media_type="text/plain")

    return Litestar([ask, ask_in_thread, stream])


def quart_app(own: App) -> Any:
    from functools import wraps

    from quart import Quart, Response, abort, request

    app = Quart(__name__)

    def login_required(view: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(view)
        async def checked(*args: Any, **kwargs: Any) -> Any:
            if own.check(request.headers.get("authorization")) is None:
                abort(401)
            return await app.ensure_async(view)(*args, **kwargs)

        return checked

    @app.post("/ask")
    @login_required
    @after_checks
    async def ask() -> dict[str, str]:
        assert (await request.get_json())["question"]
        return await own.answer()

    @app.post("/sync")
    @login_required
    @after_checks
    def ask_in_thread() -> dict[str, str]:
        own.asked += 1
        return {"answer": TEXT}

    @app.post("/stream")
    @login_required
    @after_checks
    async def stream() -> Response:
        return Response(own.parts(), content_type="text/plain")

    return app


class Person:
    """Whom Django's own decorators ask."""

    def __init__(self, name: str | None) -> None:
        self.is_authenticated = name is not None


def known_person(get_response: Any) -> Any:
    """Django middleware that says who is asking, as ``AuthenticationMiddleware`` does."""
    from asgiref.sync import markcoroutinefunction

    async def middleware(request: Any) -> Any:
        request.user = person = Person(django_own[0].check(request.headers.get("authorization")))

        async def asking() -> Person:
            return person

        request.auser = asking
        return await get_response(request)

    return markcoroutinefunction(middleware)


known_person.async_capable = True  # type: ignore[attr-defined]
known_person.sync_capable = False  # type: ignore[attr-defined]
django_own: list[App] = []


def django_app(own: App) -> Any:
    from django.contrib.auth.decorators import login_required
    from django.http import HttpRequest, JsonResponse, StreamingHttpResponse
    from django.utils.decorators import method_decorator
    from django.views import View

    @login_required  # type: ignore[untyped-decorator]
    @after_checks
    async def ask(request: HttpRequest) -> JsonResponse:
        return JsonResponse(await own.answer())

    class AskInThread(View):  # type: ignore[misc]
        @method_decorator(login_required)  # type: ignore[untyped-decorator]
        @method_decorator(after_checks)  # type: ignore[untyped-decorator]
        def post(self, request: HttpRequest) -> JsonResponse:
            own.asked += 1
            return JsonResponse({"answer": TEXT})

    @login_required  # type: ignore[untyped-decorator]
    @after_checks
    async def stream(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(own.parts(), content_type="text/plain")

    django_own[:] = [own]
    middleware = [
        "django.middleware.security.SecurityMiddleware",
        "django.middleware.gzip.GZipMiddleware",
        f"{__name__}.known_person",
    ]
    views = {"/ask": ask, "/sync": AskInThread.as_view(), "/stream": stream}
    return django_site(views, middleware)


FRAMEWORKS = [fastapi_app, starlette_app, litestar_app, quart_app, django_app]
PATHS = ["/ask", "/sync", "/stream"]


class Client:
    def __init__(self, url: str, session: aiohttp.ClientSession, wrapped: Any = None) -> None:
        self.url = url
        self.session = session
        self.wrapped = wrapped

    async def in_flight(self, clients: int) -> None:
        """Wait until so many callers share the calls in flight."""
        await in_flight(self.wrapped._engines[asyncio.get_running_loop()].engine.flights, clients)

    async def post(self, path: str, token: str = "ann", body: Any = ASK, **headers: str) -> Reply:
        own = {"authorization": f"Bearer {token}", **headers}
        async with self.session.post(
            self.url + path, json=body, headers=own, allow_redirects=False
        ) as response:
            return await reply_of(response)


@contextlib.asynccontextmanager
async def served(app: Any, **options: Any) -> AsyncIterator[Client]:
    endpoints = [Endpoint(path, prompt="question", after_checks=True) for path in PATHS]
    async with contextlib.AsyncExitStack() as stack:
        if isinstance(app, contextlib.AbstractContextManager):  # a Django site has its settings
            app = stack.enter_context(app)
        wrapped = HeadstartMiddleware(app, endpoints=endpoints, mode="exact-only", **options)
        url = await stack.enter_async_context(serving(wrapped))
        each = aiohttp.TCPConnector(force_close=True)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=each))
        yield Client(url, session, wrapped)


def text(reply: Reply) -> str:
    return json.loads(reply.body)["answer"] if reply.body[:1] == b"{" else reply.body.decode()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("make", FRAMEWORKS)
async def test_a_revoked_token_gets_no_hit(make: Callable[[App], Any], path: str) -> None:
    own = App()
    async with served(make(own)) as client:
        miss = await client.post(path)
        hit = await client.post(path)
        assert (own.asked, own.checked) == (1, 2)
        other = await client.post(path, "bob")
        own.tokens.remove("ann")
        revoked = await client.post(path)
        still = await client.post(path, "bob")
    assert [reply.status for reply in (miss, hit, other, still)] == [200] * 4
    caches = [reply.headers["x-cache"] for reply in (miss, hit, other, still)]
    assert caches == ["MISS", "HIT", "MISS", "HIT"]
    assert {text(reply) for reply in (miss, hit, other, still)} == {TEXT}
    assert hit.headers["content-type"] == miss.headers["content-type"]
    assert revoked.status in {302, 401, 403}
    assert "x-cache" not in revoked.headers
    assert TEXT.encode() not in revoked.body
    assert (own.asked, own.checked) == (2, 5)


@pytest.mark.parametrize("make", FRAMEWORKS)
async def test_a_question_in_flight_is_shared_after_each_callers_checks(
    make: Callable[[App], Any],
) -> None:
    own = App()
    own.hold = asyncio.Event()
    async with served(make(own), scope=lambda _: "all") as client, asyncio.TaskGroup() as group:
        first = group.create_task(client.post("/ask"))
        await until(lambda: own.asked == 1)
        second = group.create_task(client.post("/ask", "bob"))
        unknown = await client.post("/ask", "nobody")
        await client.in_flight(2)
        own.hold.set()
    assert unknown.status in {302, 401, 403}
    assert {text(reply.result()) for reply in (first, second)} == {TEXT}
    assert second.result().headers["cache-status"].endswith("detail=joined")
    assert own.asked == 1


@pytest.mark.parametrize("make", FRAMEWORKS)
async def test_a_caller_who_leaves_does_not_take_the_answer_from_another(
    make: Callable[[App], Any],
) -> None:
    own = App()
    own.hold = asyncio.Event()
    async with served(make(own), scope=lambda _: "all") as client:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(client.post("/ask"))
            await until(lambda: own.asked == 1)
            second = group.create_task(client.post("/ask", "bob"))
            await client.in_flight(2)
            first.cancel()
            await client.in_flight(1)
            own.hold.set()
        hit = await client.post("/ask", "bob")
    assert text(second.result()) == TEXT
    assert hit.headers["x-cache"] == "HIT"
    assert own.asked == 1


@pytest.mark.parametrize("make", FRAMEWORKS)
async def test_a_request_that_bypasses_the_cache_reaches_the_handler(
    make: Callable[[App], Any],
) -> None:
    own = App()
    async with served(make(own)) as client:
        for _ in range(2):
            reply = await client.post("/ask", **{"cache-control": "no-store"})
            assert (reply.status, reply.headers["x-cache"], text(reply)) == (200, "BYPASS", TEXT)
        only = await client.post("/ask", **{"cache-control": "only-if-cached"})
    assert only.status == 504
    assert own.asked == 2


async def test_fastapi_checks_bodies_scopes_and_open_dependencies_on_a_hit_too() -> None:
    own, events = App(), list[str]()
    bearer = HTTPBearer()
    app = FastAPI()

    async def session() -> AsyncIterator[str]:
        events.append("open")
        try:
            yield "session"
        finally:
            events.append("close")

    def scoped(
        scopes: SecurityScopes, given: HTTPAuthorizationCredentials = Depends(bearer)
    ) -> str:
        if scopes.scopes == ["ask"] and given.credentials in own.tokens:
            return given.credentials
        raise HTTPException(403, "not in scope")

    @app.post("/ask", response_model=Answered, status_code=200)
    @after_checks
    async def ask(
        body: Asked,
        background: BackgroundTasks,
        name: str = Security(scoped, scopes=["ask"]),
        opened: str = Depends(session),
    ) -> dict[str, str]:
        background.add_task(events.append, "task")
        return {**await own.answer(), "secret": "left out by the response model"}

    async with served(app) as client:
        miss = await client.post("/ask")
        await until(lambda: events[-1] == "close")
        hit = await client.post("/ask")
        await until(lambda: events.count("close") == 2)
        bad = await client.post("/ask", body={"question": 7})
        unknown = await client.post("/ask", "nobody")
    assert json.loads(miss.body) == json.loads(hit.body) == {"answer": TEXT}
    assert [reply.status for reply in (miss, hit, bad, unknown)] == [200, 200, 422, 403]
    assert events[:5] == ["open", "task", "close", "open", "close"]
    assert (own.asked, hit.headers["x-cache"]) == (1, "HIT")


async def test_a_streamed_answer_passes_while_the_handler_still_writes() -> None:
    release = asyncio.Event()
    app = FastAPI()

    @app.post("/stream")
    @after_checks
    async def stream() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            yield b"one "
            await release.wait()
            yield b"two"

        return StreamingResponse(parts(), media_type="text/plain")

    async with served(app) as client:
        url, headers = client.url + "/stream", {"authorization": "Bearer ann"}
        async with (
            client.session.post(url, json={}, headers=headers) as live,
            client.session.post(url, json={}, headers=headers) as joining,
        ):
            assert await live.content.readany() == b"one "
            assert await joining.content.readany() == b"one "
            release.set()
            assert await live.read() == b"two"
            assert await joining.read() == b"two"
        hit = await client.post("/stream", body={})
    assert (hit.body, hit.headers["x-cache"]) == (b"one two", "HIT")


async def test_middleware_around_sees_which_handler_answered_hits_among_them() -> None:
    seen: list[tuple[str, str]] = []
    app = fastapi_app(App())
    endpoint = Endpoint("/ask", prompt="question", after_checks=True)
    app.add_middleware(HeadstartMiddleware, endpoints=[endpoint], mode="exact-only")

    async def metrics(scope: Any, receive: Any, send: Any) -> None:
        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                seen.append((scope["endpoint"].__name__, scope["route"].path))
            await send(message)

        await app(scope, receive, sending)

    async with serving(metrics) as url, aiohttp.ClientSession() as session:
        client = Client(url, session)
        replies = [await client.post("/ask") for _ in range(2)]
    assert [reply.headers["x-cache"] for reply in replies] == ["MISS", "HIT"]
    assert seen == [("ask", "/ask")] * 2


async def test_an_error_of_the_handler_is_the_frameworks_to_answer() -> None:
    app = FastAPI()
    asked = []

    @app.post("/ask")
    @after_checks
    async def ask(body: Asked) -> None:
        asked.append(body.question)
        if body.question == "refused":
            raise HTTPException(402, "pay first")
        raise ValueError("broken")

    async with served(app) as client:
        refused = [await client.post("/ask", body={"question": "refused"}) for _ in range(2)]
        broken = [await client.post("/ask", body={"question": "broken"}) for _ in range(2)]
    assert [(reply.status, json.loads(reply.body)["detail"]) for reply in refused] == [
        (402, "pay first")
    ] * 2
    assert [reply.status for reply in broken] == [500, 500]
    assert asked == ["refused", "refused", "broken", "broken"]


async def test_an_apps_own_chat_route_is_looked_up_after_its_checks() -> None:
    own = App()
    app = FastAPI()

    @app.post("/v1/chat/completions")
    @after_checks
    async def completions(request: Request, authorization: str = Header()) -> Any:
        if own.check(authorization) is None:
            raise HTTPException(401, "log in first")
        own.asked += 1
        message = {"role": "assistant", "content": TEXT}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]}

    wrapped = HeadstartMiddleware(
        app, endpoints=[Endpoint("/v1/chat/completions", after_checks=True)], mode="exact-only"
    )
    async with serving(wrapped) as url, aiohttp.ClientSession() as session:
        client = Client(url, session)
        replies = [await client.post("/v1/chat/completions", body=chat("why?")) for _ in range(2)]
    assert [reply.headers["x-cache"] for reply in replies] == ["MISS", "HIT"]
    assert own.asked == 1


async def test_a_long_body_reaches_the_handler_whole() -> None:
    app = FastAPI()

    @app.post("/ask")
    @after_checks
    async def ask(request: Request) -> dict[str, int]:
        return {"length": len(await request.body())}

    settings = Settings(server=ServerSettings(max_body_bytes=1000))
    wrapped = HeadstartMiddleware(
        app, settings, endpoints=[Endpoint("/ask", after_checks=True)], store="memory:"
    )
    async with serving(wrapped) as url, aiohttp.ClientSession() as session:
        for data in (b'"' + b"x" * 500_000 + b'"', b'"x"'):
            async with session.post(url + "/ask", data=data) as response:
                assert await response.json() == {"length": len(data)}


async def test_a_handler_that_is_looked_up_before_its_checks_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = FastAPI()

    @app.post("/ask")
    @after_checks
    async def ask(body: Asked) -> None: ...

    wrapped = HeadstartMiddleware(app, endpoints=[Endpoint("/ask")], mode="exact-only")
    async with serving(wrapped) as url, aiohttp.ClientSession() as session:
        assert (await Client(url, session).post("/ask")).status == 500
    assert "give Endpoint('/ask') after_checks=True" in caplog.text


async def test_a_half_of_the_setup_alone_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    app = FastAPI()

    @app.post("/ask")
    async def undecorated() -> dict[str, str]:
        return {"answer": TEXT}

    @app.post("/elsewhere")
    @after_checks
    async def without_endpoint() -> dict[str, str]:
        return {"answer": TEXT}

    async with served(app) as client:
        for path in ("/ask", "/elsewhere"):
            replies = [await client.post(path) for _ in range(2)]
            assert [text(reply) for reply in replies] == [TEXT, TEXT]
            assert "x-cache" not in replies[1].headers
    said = [record.getMessage() for record in caplog.records if record.name == "headstart"]
    assert len([line for line in said if "its handler is not decorated" in line]) == 1
    assert len([line for line in said if "without_endpoint is decorated" in line]) == 1


async def test_a_function_that_cannot_be_decorated_is_refused() -> None:
    async def yields() -> AsyncIterator[bytes]:
        yield b""

    with pytest.raises(ConfigError, match="next to def"):
        after_checks(litestar_post("/ask"))
    with pytest.raises(ConfigError, match="yields: let it return a streaming response"):
        after_checks(yields)


async def test_a_decorated_handler_is_still_the_function_outside_a_request() -> None:
    @after_checks
    def double(number: int) -> int:
        return 2 * number

    assert double(2) == 4
    assert double.__name__ == "double"


async def test_a_gateway_has_no_handler_to_look_up() -> None:
    with pytest.raises(ConfigError, match="after_checks is for HeadstartMiddleware"):
        gateway(endpoints=[Endpoint("/v1/chat/completions", after_checks=True)])
