"""Custom endpoints on real sockets: which answers are stored, and the reasons for others."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from fastapi import FastAPI
from litestar import Litestar, post
from litestar import Request as LitestarRequest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request  # noqa: TC002 - FastAPI reads the annotations
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from yarl import URL

from headstart import Endpoint, HeadstartMiddleware
from headstart.observe import Observation, Served
from support.patience import PATIENCE_S, until
from support.proxied import Reply, proxied, reply_of
from support.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from headstart.types import Receive, Scope, Send

pytestmark = pytest.mark.anyio

ASK = Endpoint("/ask", prompt="question")


@dataclass
class Client:
    """A client of a wrapped app, and what the observers were told."""

    url: str
    session: aiohttp.ClientSession
    seen: list[Observation] = field(default_factory=list)

    def notify(self, observation: Observation) -> None:
        self.seen.append(observation)

    async def ask(
        self, path: str = "/ask", question: str = "why?", method: str = "POST", **headers: str
    ) -> Reply:
        sent = {"authorization": "Bearer me", **headers}
        body = {"question": question} if method == "POST" else None
        url = URL(self.url + path, encoded=True)
        async with self.session.request(method, url, json=body, headers=sent) as response:
            return await reply_of(response)

    async def served(self, count: int) -> list[Served]:
        """Wait until so many requests were booked."""
        async with asyncio.timeout(PATIENCE_S):
            while len(rows := [row for row in self.seen if isinstance(row, Served)]) < count:
                await asyncio.sleep(0.005)
        return rows


@contextlib.asynccontextmanager
async def wrapped(app: Any, *endpoints: Endpoint, **options: Any) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession() as session:
        client = Client("", session)
        options = {"mode": "exact-only", "observers": [client], **options}
        async with serving(
            HeadstartMiddleware(app, endpoints=endpoints or (ASK,), **options)
        ) as client.url:
            yield client


class Answers:
    """An app that gives the same answer each time, and says in it how often it was asked."""

    def __init__(self, status: int, headers: Mapping[str, str], *, body: str = "asked") -> None:
        self.asked = 0
        self.status = status
        self.headers = headers
        self.body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(_: Request) -> Response:
            self.asked += 1
            body = f'"{self.body} {self.asked}"' if self.body else b""
            headers = {"content-type": "application/json", **self.headers}
            return Response(body, self.status, headers)

        await Starlette(routes=[Route("/ask", answer, methods=["POST", "GET"])])(
            scope, receive, send
        )


LATER = formatdate(4_000_000_000, usegmt=True)


async def test_a_hit_has_only_the_request_id_of_the_middleware_around() -> None:
    chat = {"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}]}

    async def answer(_: Request) -> Response:
        return JSONResponse(chat)

    paths = ("/ask", "/v1/chat/completions")
    app = Starlette(routes=[Route(path, answer, methods=["POST"]) for path in paths])
    inner = HeadstartMiddleware(app, endpoints=[ASK], mode="exact-only")

    async def named(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_named(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"].append((b"x-request-id", b"mine"))
            await send(message)

        await inner(scope, receive, send_named)

    body = {"question": "why?", "model": "m", "messages": [{"role": "user", "content": "why?"}]}
    async with serving(named) as url, aiohttp.ClientSession(url) as session:
        for path in paths:
            for verdict in ("MISS", "HIT"):
                key = {"authorization": "Bearer me"}
                async with session.post(path, json=body, headers=key) as response:
                    assert response.headers["x-cache"] == verdict
                    assert response.headers.getall("x-request-id") == ["mine"]


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (200, {}),
        (201, {}),
        (201, {"location": "/things/7", "content-location": "/things/7"}),
        (203, {}),
        (202, {"cache-control": "public"}),
        (207, {"cache-control": "s-maxage=60"}),
        (200, {"cache-control": "must-revalidate, max-age=60"}),
        (200, {"expires": LATER}),
        (200, {"vary": "Authorization, Cookie, Accept-Encoding, Origin"}),
        (200, {"content-language": "en", "x-content-type-options": "nosniff"}),
    ],
)
async def test_a_complete_success_is_stored_with_its_status(
    status: int, headers: dict[str, str]
) -> None:
    app = Answers(status, headers)
    async with wrapped(app) as client:
        miss, hit = await client.ask(), await client.ask()
        rows = await client.served(2)
    assert miss.verdict == "headstart; fwd=miss; detail=exact-only; stored"
    assert hit.headers["x-cache"] == "HIT"
    assert (hit.status, hit.body) == (miss.status, miss.body) == (status, b'"asked 1"')
    kept = {"content-type", *headers} - {"cache-control", "expires", "vary"}
    assert {name: hit.headers.get(name) for name in kept} == {
        name: miss.headers[name] for name in kept
    }
    assert app.asked == 1
    assert [(row.status, row.stored, row.not_stored) for row in rows] == [
        (status, True, None),
        (status, False, None),
    ]


@pytest.mark.parametrize(
    ("status", "headers", "why"),
    [
        (202, {}, "status"),
        (206, {"cache-control": "max-age=60"}, "status"),
        (299, {}, "status"),
        (300, {}, "status"),
        (404, {}, "status"),
        (500, {}, "status"),
        (200, {"set-cookie": "a=b"}, "set-cookie"),
        (200, {"cache-control": "no-store"}, "cache-control"),
        (200, {"cache-control": "private, max-age=60"}, "cache-control"),
        (200, {"cache-control": "no-cache"}, "cache-control"),
        (200, {"pragma": "no-cache"}, "cache-control"),
        (200, {"cache-control": "max-age=0"}, "expired"),
        (200, {"expires": "0"}, "expired"),
        (200, {"vary": "Accept-Language"}, "vary"),
        (200, {"vary": "*"}, "vary"),
        (200, {"content-encoding": "br"}, "content-encoding"),
    ],
)
async def test_an_answer_that_is_not_stored_says_why(
    status: int, headers: dict[str, str], why: str
) -> None:
    app = Answers(status, headers)
    async with wrapped(app) as client:
        client.session._auto_decompress = False
        replies = [await client.ask(allow="1") for _ in range(2)]
        rows = await client.served(2)
    assert [reply.verdict for reply in replies] == [
        f"headstart; fwd=miss; detail=exact-only/not-stored:{why}"
    ] * 2
    assert app.asked == 2
    assert [(row.stored, row.not_stored) for row in rows] == [(False, why)] * 2


@pytest.mark.parametrize("status", [204, 205])
async def test_an_answer_without_content_is_not_stored(status: int) -> None:
    app = Answers(status, {}, body="")
    async with wrapped(app) as client:
        replies = [await client.ask() for _ in range(2)]
    assert {reply.verdict.partition("not-stored:")[2] for reply in replies} == {"no-content"}
    assert app.asked == 2


async def test_an_empty_body_is_not_stored() -> None:
    async with wrapped(Answers(200, {}, body="")) as client:
        assert (await client.ask()).verdict.endswith("not-stored:no-content")


async def test_litestar_answers_201_and_is_cached() -> None:
    asked: list[str] = []

    @post("/ask")
    async def ask(request: LitestarRequest[Any, Any, Any]) -> dict[str, str]:
        asked.append((await request.json())["question"])
        return {"answer": "because"}

    async with wrapped(Litestar([ask])) as client:
        replies = [await client.ask() for _ in range(3)]
    assert [(reply.status, reply.headers["x-cache"]) for reply in replies] == [
        (201, "MISS"),
        (201, "HIT"),
        (201, "HIT"),
    ]
    assert asked == ["why?"]


@pytest.mark.parametrize(
    ("said", "least", "most"),
    [
        ({"cache-control": "max-age=600, s-maxage=60"}, 50, 60),
        ({"cache-control": "max-age=100", "age": "40"}, 50, 60),
        ({"cache-control": "max-age=999999999"}, 590, 600),
        ({}, 590, 600),
    ],
)
async def test_an_answer_lives_as_long_as_it_says_and_no_longer_than_is_configured(
    said: dict[str, str], least: int, most: int
) -> None:
    async with wrapped(Answers(200, said), ttl_s=600.0) as client:
        await client.ask()
        hit = await client.ask()
    ttl = int(hit.verdict.partition("ttl=")[2].partition(";")[0])
    assert least <= ttl <= most


async def test_a_cookie_in_vary_is_for_those_whose_cookies_are_not_in_the_scope() -> None:
    app = Answers(200, {"vary": "Cookie"})
    async with wrapped(app, scope=lambda _: "team") as client:
        assert (await client.ask()).verdict.endswith("not-stored:vary")
    async with wrapped(app, scope=lambda _: "team", key_headers=("Cookie",)) as client:
        assert (await client.ask()).verdict.endswith("; stored")


# --- streams and broken answers -------------------------------------------------------------------


async def test_a_stream_that_ends_cleanly_is_stored_and_one_that_may_not_be_says_so_at_once() -> (
    None
):
    private = False

    async def ask(_: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"one "
            yield b"two"

        headers = {"cache-control": "private"} if private else {}
        return StreamingResponse(parts(), 201, headers, "text/plain")

    async with wrapped(Starlette(routes=[Route("/ask", ask, methods=["POST"])])) as client:
        miss, hit = await client.ask(), await client.ask()
        private = True
        refused = await client.ask(question="how?")
        rows = await client.served(3)
    assert (
        miss.verdict == "headstart; fwd=miss; detail=exact-only"
    )  # what its end tells is not known
    assert (hit.status, hit.headers["x-cache"], hit.body) == (201, "HIT", b"one two")
    assert refused.verdict == "headstart; fwd=miss; detail=exact-only/not-stored:cache-control"
    assert [row.not_stored for row in rows] == [None, None, "cache-control"]


class Raw:
    """An app that sends just these messages after the start; without ``ends`` it then fails."""

    def __init__(
        self, headers: list[tuple[bytes, bytes]], *bodies: bytes, ends: bool = True
    ) -> None:
        self.headers = headers
        self.bodies = bodies
        self.ends = ends
        self.asked = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError
        self.asked += 1
        await send({"type": "http.response.start", "status": 200, "headers": self.headers})
        for number, body in enumerate(self.bodies, 1):
            more = number < len(self.bodies) or not self.ends
            await send({"type": "http.response.body", "body": body, "more_body": more})
        if not self.ends:
            raise RuntimeError("the app failed in the middle of its answer")


@pytest.mark.parametrize(
    ("app", "why"),
    [
        (Raw([], b"one ", b"two", ends=False), "incomplete"),
        (Raw([], b"x" * 2**20, *[b"x" * 2**20] * 8), "too-large"),
    ],
    ids=["breaks off", "too large"],
)
async def test_an_answer_that_is_not_whole_or_too_large_is_not_stored(app: Raw, why: str) -> None:
    async with wrapped(app) as client:
        for _ in range(2):
            with contextlib.suppress(aiohttp.ClientError):
                await client.ask()
        rows = await client.served(2)
    assert app.asked == 2
    assert [(row.stored, row.not_stored) for row in rows] == [(False, why)] * 2


@pytest.mark.parametrize("kind", [b"text/plain", b"application/json"])
@pytest.mark.parametrize("body", [b"", b"short", b"longer than it says"])
async def test_an_answer_of_another_length_than_it_says_passes_and_is_not_stored(
    kind: bytes, body: bytes
) -> None:
    app = Raw([(b"content-length", b"10"), (b"content-type", kind)], body)
    client = Client("", aiohttp.ClientSession())
    middleware = HeadstartMiddleware(app, endpoints=[ASK], observers=[client], mode="exact-only")
    sent: list[Any] = []
    bodies: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        if not bodies:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": bodies.pop()}

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/ask",
        "query_string": b"",
        "headers": [(b"authorization", b"Bearer me")],
    }
    # No server that keeps to HTTP would let such an answer through.
    for _ in range(2):
        sent.clear()
        bodies.append(b'{"question": "why?"}')
        await middleware(scope, receive, send)
        assert (b"content-length", b"10") in sent[0]["headers"]
        assert b"".join(message["body"] for message in sent[1:]) == body
    await middleware.aclose()
    await client.session.close()
    assert app.asked == 2
    assert {row.not_stored for row in await client.served(2)} == {"incomplete"}


async def test_an_error_after_the_answer_is_logged_with_its_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def clean_up() -> None:
        raise RuntimeError("the clean-up failed")

    async def answer(_: Request) -> Response:
        return JSONResponse("done", background=BackgroundTask(clean_up))

    app = Starlette(routes=[Route("/ask", answer, methods=["POST"])])
    async with wrapped(app, ASK) as client:
        reply = await client.ask()
        async with asyncio.timeout(PATIENCE_S):
            while not (logged := [each for each in caplog.records if each.name == "headstart"]):
                await asyncio.sleep(0.005)
    assert reply.status == 200
    (record,) = logged
    assert "POST '/ask'" in record.getMessage()
    assert reply.headers["x-headstart-request-id"] in record.getMessage()
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "the clean-up failed"


async def test_an_answer_for_one_alone_is_given_to_nobody_who_waits_for_the_same() -> None:
    asked, release = 0, asyncio.Event()

    async def ask(request: Request) -> Response:
        nonlocal asked
        asked += 1
        await release.wait()
        headers = {"cache-control": "private"}
        return JSONResponse(request.headers["authorization"], headers=headers)

    app = Starlette(routes=[Route("/ask", ask, methods=["POST"])])
    async with wrapped(app, scope=lambda _: "team") as client:
        async with asyncio.TaskGroup() as group:
            both = [group.create_task(client.ask(authorization=who)) for who in ("ada", "bob")]
            await until(lambda: asked)
            await asyncio.sleep(0.2)
            release.set()
        replies = [task.result() for task in both]
    assert [reply.body for reply in replies] == [b'"ada"', b'"bob"']
    assert asked == 2
    assert {reply.verdict for reply in replies} == {
        "headstart; fwd=miss; detail=exact-only/not-stored:cache-control"
    }


# --- paths ----------------------------------------------------------------------------------------


async def test_projects_never_share_an_answer() -> None:
    asked: list[str] = []
    app = FastAPI()

    @app.post("/projects/{id}/ask", status_code=201)
    async def ask(id: str) -> dict[str, str]:
        asked.append(id)
        return {"project": id}

    @app.get("/projects/{id}/ask")
    async def look(id: str, q: str = "", key: str = "") -> dict[str, str]:
        asked.append(id)
        return {"project": id, "q": q + key}

    endpoints = [
        Endpoint("/projects/{id}/ask", prompt="question"),
        Endpoint("/projects/{id}/ask", method="GET"),
    ]
    async with wrapped(app, *endpoints, scope=lambda _: "team") as client:
        for path in ("/projects/7/ask", "/projects/8/ask", "/projects/a%20b/ask"):
            miss, hit = await client.ask(path), await client.ask(path)
            assert (miss.headers["x-cache"], hit.headers["x-cache"]) == ("MISS", "HIT")
            assert miss.body == hit.body
        assert asked == ["7", "8", "a b"]
        other = await client.ask("/projects/7%2F8/ask")
        assert (other.status, "x-cache" in other.headers) == (404, False)
        looks = [
            await client.ask(f"/projects/7/ask?{query}", method="GET")
            for query in ("q=a", "q=b", "key=a", "key=b", "q=a")
        ]
        rows = await client.served(11)
    assert [look.headers["x-cache"] for look in looks] == ["MISS"] * 4 + ["HIT"]
    assert len({look.body for look in looks}) == 2
    assert {row.endpoint for row in rows} == {"/projects/{id}/ask"}


# --- providers' answers say it too ----------------------------------------------------------------


async def test_a_providers_answer_says_why_it_is_not_stored() -> None:
    async with proxied() as proxy:
        said: list[str | None] = []
        for finish in ("length", "content_filter", "tool_calls", "odd"):
            proxy.upstream.finish = finish
            reply = await proxy.ask(finish)
            said.append(reply.verdict.partition("detail=exact-only/not-stored:")[2])
            streamed = await proxy.ask(finish + "!", stream=True)
            assert streamed.verdict == "headstart; fwd=miss; detail=exact-only"
        proxy.upstream.finish = "stop"
        proxy.upstream.status, proxy.upstream.body = 404, b'{"error":{"message":"no"}}'
        refused = await proxy.ask("status")
        assert refused.status == 404
        said.append(refused.verdict.partition("not-stored:")[2])
        rows = proxy.served
    assert said == ["length", "content-filter", "tool-calls", "unclean-finish", "status"]
    assert [row.not_stored for row in rows] == [each for each in said[:-1] for _ in range(2)] + [
        "status"
    ]
