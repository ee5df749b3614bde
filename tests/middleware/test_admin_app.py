"""The admin pages, mounted in apps of several frameworks, on real sockets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from fastapi import FastAPI
from litestar import Litestar, asgi, post
from litestar.params import JSONBody  # noqa: TC002 - Litestar reads the annotations
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from headstart import (
    AdminApp,
    ConfigError,
    Endpoint,
    HeadstartMiddleware,
    Settings,
    UpstreamSettings,
    gateway,
)
from headstart.lab.simulator import Simulator
from support.proxied import Reply, reply_of
from support.serving import serving

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request


pytestmark = pytest.mark.anyio

ENDPOINTS = [Endpoint("/ask", prompt="question")]
QUESTION = "How are you today?"
BEARER = {"authorization": "Bearer secret"}


async def answer(request: Request) -> JSONResponse:
    return JSONResponse({"answer": str((await request.json())["question"])})


def starlette_app(admin: AdminApp) -> Any:
    app = Starlette(
        routes=[Route("/ask", answer, methods=["POST"]), Mount("/in/headstart", app=admin)]
    )
    app.add_middleware(
        HeadstartMiddleware, endpoints=ENDPOINTS, scope=lambda _: "all", mode="exact-only",
        admin=admin,
    )  # fmt: skip
    return app


def fastapi_app(admin: AdminApp) -> Any:
    app = FastAPI()
    app.add_route("/ask", answer, methods=["POST"])
    app.mount("/in/headstart", admin)
    return HeadstartMiddleware(
        app, endpoints=ENDPOINTS, scope=lambda _: "all", mode="exact-only", admin=admin
    )


@post("/ask")
async def litestar_answer(data: JSONBody[dict[str, str]]) -> dict[str, str]:
    return {"answer": data["question"]}


def litestar_app(admin: AdminApp) -> Any:
    @asgi("/in/headstart", is_mount=True, copy_scope=True)
    async def pages(scope: Any, receive: Any, send: Any) -> None:
        await admin(scope, receive, send)

    app: Any = Litestar([litestar_answer, pages])
    return HeadstartMiddleware(
        app, endpoints=ENDPOINTS, scope=lambda _: "all", mode="exact-only", admin=admin
    )


FRAMEWORKS = [starlette_app, fastapi_app, litestar_app]


async def get(session: aiohttp.ClientSession, path: str, **options: Any) -> Reply:
    async with session.get(f"/in/headstart{path}", **options) as response:
        return await reply_of(response)


@pytest.mark.parametrize("build", FRAMEWORKS)
async def test_the_pages_of_the_sidecar_are_in_the_app(build: Callable[[AdminApp], Any]) -> None:
    found = ""
    async with (
        serving(build(AdminApp())) as url,
        aiohttp.ClientSession(url) as session,
    ):
        for _ in range(2):
            async with session.post("/ask", json={"question": QUESTION}) as response:
                found = response.headers["x-headstart-request-id"]
                assert response.ok
        page = await get(session, "/")
        assert page.status == 200
        assert b"<title>Headstart</title>" in page.body
        assert "script-src 'sha256-" in page.headers["content-security-policy"]
        live = json.loads((await get(session, "/live?window_s=900")).body)
        assert live["view"]["totals"]["outcomes"] == {"miss": 1, "exact": 1}
        assert [row["outcome"] for row in live["requests"]] == ["exact", "miss"]
        assert json.loads((await get(session, f"/explain/{found}")).body)["outcome"] == "exact"
        assert (await get(session, "/review/page")).status == 200
        assert b"headstart_requests_total{" in (await get(session, "/metrics")).body
        assert (await get(session, "/ready")).status == 200
        assert (await get(session, "/no-such-page")).status == 404
        assert b"<title>Headstart</title>" in (await get(session, "")).body
        assert QUESTION not in json.dumps(live)


async def test_a_mounted_gateway_has_them_too() -> None:
    admin = AdminApp(token="secret")
    async with serving(Simulator(), lifespan="off") as provider:
        upstream = UpstreamSettings(name="sim", base_url=f"{provider}/v1")
        llm = gateway(
            Settings(upstream=(upstream,)), store="memory:", mode="exact-only", admin=admin
        )
        app = Starlette(routes=[Mount("/llm", app=llm), Mount("/in/headstart", app=admin)])
        async with serving(app) as url, aiohttp.ClientSession(url, headers=BEARER) as session:
            assert (await get(session, "/live")).status == 503  # it starts with its first request
            body = {"model": "m", "messages": [{"role": "user", "content": QUESTION}]}
            async with session.post("/llm/v1/chat/completions", json=body) as response:
                assert response.ok
            live = json.loads((await get(session, "/live")).body)
            assert [each["upstream"] for each in live["upstreams"]] == ["sim"]
        await llm.aclose()


async def test_the_data_need_the_token() -> None:
    async with (
        serving(starlette_app(AdminApp(token="secret"))) as url,
        aiohttp.ClientSession(url) as session,
    ):
        assert (await get(session, "/")).status == 200
        assert (await get(session, "/live")).status == 401
        wrong = {"authorization": "Bearer wrong"}
        assert (await get(session, "/metrics", headers=wrong)).status == 401
        assert (await get(session, "/metrics", headers=BEARER)).status == 200


@pytest.mark.parametrize(
    "headers",
    [{"x-forwarded-for": "10.0.0.1"}, {"host": "evil.example"}, {"sec-fetch-site": "cross-site"}],
)
async def test_without_a_token_only_this_machine_may_ask(headers: dict[str, str]) -> None:
    async with (
        serving(starlette_app(AdminApp()), proxy_headers=False) as url,
        aiohttp.ClientSession(url) as session,
    ):
        assert (await get(session, "/live")).status == 200
        refused = await get(session, "/live", headers=headers)
        assert refused.status == 403
        assert b"AdminApp(token=" in refused.body


@pytest.mark.parametrize(
    ("client", "server"),
    [
        (("10.0.0.1", 1), ("127.0.0.1", 80)),
        (("127.0.0.1", 1), ("10.0.0.2", 80)),
        (None, ("/run/a.sock", None)),
    ],
)  # fmt: skip
async def test_without_a_token_it_is_closed_to_other_machines(client: Any, server: Any) -> None:
    admin = AdminApp()
    starlette_app(admin).build_middleware_stack()
    scope: dict[str, Any] = {
        "type": "http", "method": "GET", "path": "/health", "headers": [], "client": client,
        "server": server,
    }  # fmt: skip
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await admin(scope, None, send)
    assert sent[0]["status"] == 403
    assert b"AdminApp(token=" in sent[1]["body"]


async def test_an_app_of_no_middleware_says_what_to_do() -> None:
    async with (
        serving(AdminApp(token="secret"), lifespan="off") as url,
        aiohttp.ClientSession(url) as session,
        session.get("/live") as response,
    ):
        assert response.status == 503
        assert "admin=" in await response.text()


async def test_an_empty_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="the token is empty"):
        AdminApp(token=" ")
