"""Audits under stress: slow providers, leaving callers, shutdowns, apps that fail."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import aiohttp
import anyio.lowlevel
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from headstart import Endpoint, HeadstartMiddleware
from headstart.config.loading import load_settings
from headstart.decisions import Label, LabelSource, Outcome
from headstart.middleware import pump
from headstart.observe import Labelled, Served
from headstart.policies.learned_rule.domain import Domain
from support.fakes import Recorder
from support.patience import PATIENCE_S, until
from support.proxied import Reply, reply_of
from support.serving import serving
from support.sidecar import PROMPT, REWORDED, Provider, Sidecar, sidecar

NEGATED = "How can I not sign up for ChatGPT?"

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request


pytestmark = pytest.mark.anyio

REWORDINGS = (
    REWORDED,
    "I'd like to sign up for ChatGPT",
    "I want to sign up to ChatGPT",
    "How do I sign up for ChatGPT?",
)
AUDITED: dict[str, Any] = {"audit.mode": "background", "audit.rate": 1.0, "audit.null_rate": 0.0}


async def only_label(running: Sidecar) -> Label:
    """Wait for the one label in the store."""
    store = running.parts[0].store
    async with asyncio.timeout(PATIENCE_S):
        while not (found := await store.read_labels()):
            await asyncio.sleep(0.005)
    ((_, label),) = found
    return label


async def test_audits_of_a_slow_provider_leave_half_of_the_places_to_callers() -> None:
    provider = Provider()
    async with sidecar(provider, cache=AUDITED, server={"max_concurrency": 4}) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        provider.open.clear()
        concurrency = running.parts[0].concurrency
        for question in REWORDINGS:
            assert "detail=semantic" in (await running.ask(question)).verdict
        # Two are in flight, the others gave way and are booked as such.
        await until(lambda: running.outcomes.count(Outcome.AUDIT) == 2)
        assert concurrency.active == 2
        refused = [row for row in running.served if row.outcome is Outcome.AUDIT]
        assert {row.error for row in refused} == {"Overloaded"}
        async with asyncio.TaskGroup() as callers:
            asked = [callers.create_task(running.ask(f"Who was number {n}?")) for n in (5, 6)]
            await until(lambda: concurrency.active == 4)
            provider.open.set()
        assert [reply.result().status for reply in asked] == [200, 200]
        await until(lambda: running.outcomes.count(Outcome.AUDIT) == len(REWORDINGS))


async def test_an_audit_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump, "UNATTENDED_S", 0.05)
    provider = Provider()
    async with sidecar(provider, cache=AUDITED) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        provider.open.clear()
        await running.ask(REWORDED)
        await until(lambda: Outcome.AUDIT in running.outcomes)
        assert running.parts[0].concurrency.active == 0
        assert running.served[-1].error == "UpstreamTimeout"
        provider.open.set()


async def test_a_caller_who_leaves_in_a_synchronous_audit_takes_its_call_along() -> None:
    provider = Provider()
    cache = {**AUDITED, "audit.mode": "sync"}
    async with sidecar(provider, cache=cache) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        provider.open.clear()
        asking = asyncio.get_running_loop().create_task(running.ask(REWORDED))
        await running.in_flight(1)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        await running.finished(2)
        await until(lambda: running.parts[0].concurrency.active == 0)
        assert running.served[-1].error == "client-gone"
        provider.open.set()
        again = await running.ask(REWORDED)
        assert "detail=audit" in again.verdict


async def test_a_streamed_hit_is_audited_by_a_stream() -> None:
    async with sidecar(cache=AUDITED) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        hit = await running.ask(REWORDED, stream=True)
        assert "detail=semantic" in hit.verdict
        label = await only_label(running)
    assert (label.source, label.same, label.stored) == (LabelSource.AUDIT, True, True)


async def test_a_hit_held_out_teaches_like_an_audit_and_is_called_once() -> None:
    async with sidecar(cache={**AUDITED, "holdout": 1.0}) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        held = await running.ask(REWORDED)
        label = await only_label(running)
        assert running.provider.calls == 2
    assert "detail=holdout" in held.verdict
    assert (label.source, label.served) == (LabelSource.AUDIT, True)


async def test_shutting_down_ends_audits_that_a_provider_does_not_answer() -> None:
    provider = Provider()
    async with asyncio.timeout(PATIENCE_S):
        async with sidecar(provider, cache=AUDITED, server={"shutdown_s": 0.1}) as running:
            await running.ask(PROMPT)
            await running.indexed(1)
            provider.open.clear()
            await running.ask(REWORDED)
            await until(lambda: running.parts[0].concurrency.active == 1)
        provider.open.set()
    assert running.parts[0].concurrency.active == 0
    booked = [row.outcome async for row in running.parts[0].store.read_books()]
    assert booked.count(Outcome.AUDIT) == 1


async def test_an_exact_hit_asked_again_stays_an_exact_one() -> None:
    live = "What is the weather in Oslo right now?"
    async with sidecar(cache={**AUDITED, "audit.null_rate": 1.0}) as running:
        await running.ask(live)
        await running.ask(live)
        await until(lambda: Outcome.AUDIT in running.outcomes)
        assert (await only_label(running)).source is LabelSource.NULL
        cache = running.parts[0].cache
        assert cache is not None
        assert (await cache.stats()).vectors == 0


# --- wrapped apps ---------------------------------------------------------------------------------

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


class App:
    """An app whose middleware sets a context variable, and that can hang or fail."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        """Who asked, by the app's own context."""
        self.failing = False
        self.open = asyncio.Event()
        self.open.set()
        self.left = 0

    async def ask(self, request: Request) -> JSONResponse:
        assert (await request.json())["question"]
        self.asked.append(WHO.get())
        if self.failing:
            raise RuntimeError("the app's own")
        try:
            await self.open.wait()
        finally:
            self.left += 1
        return JSONResponse({"answer": "By its web page."})


class Mounted:
    """The app behind the middleware, and what was observed of it."""

    def __init__(self, app: App, url: str, session: aiohttp.ClientSession) -> None:
        self.app = app
        self.url = url
        self.session = session
        self.recorder = Recorder()

    def seen(self, outcome: Outcome) -> list[Served]:
        rows = (row for row in self.recorder.seen if isinstance(row, Served))
        return [row for row in rows if row.outcome is outcome]

    async def ask(self, question: str) -> Reply:
        headers = {"authorization": "Bearer me"}
        async with self.session.post(
            self.url + "/api/ask", json={"question": question}, headers=headers
        ) as response:
            return await reply_of(response)

    async def warm(self) -> None:
        """Ask until a reworded question is compared: then the first answer is indexed."""
        await self.ask(PROMPT)
        asked = 0
        async with asyncio.timeout(PATIENCE_S):
            while "detail=empty-partition" in (await self.ask(f"Who is number {asked}?")).verdict:
                asked += 1
        self.app.asked.clear()


@contextlib.asynccontextmanager
async def mounted(
    mode: str, *, idempotent: bool, ask_twice: bool = False
) -> AsyncIterator[Mounted]:
    app = App()
    settings = load_settings(
        None,
        {},
        {
            "cache.store": "memory:",
            "cache.audit.mode": mode,
            "cache.audit.rate": 1.0,
            "cache.audit.null_rate": 0.0,
            "cache.audit.ask_twice": ask_twice,
            "cache.cold_start": "optimistic",
            "encoder.max_wait_ms": 20_000.0,
            "learning.cpu_share": 1.0,
            "server.shutdown_s": 0.1,
        },
    )
    async with aiohttp.ClientSession() as session:
        running = Mounted(app, "", session)
        wrapped = HeadstartMiddleware(
            Starlette(routes=[Mount("/api", routes=[Route("/ask", app.ask, methods=["POST"])])]),
            settings,
            endpoints=[Endpoint("/api/ask", prompt="question", idempotent=idempotent)],
            observers=[running.recorder],
        )

        async def authenticated(scope: Any, receive: Any, send: Any) -> None:
            WHO.set("me")
            await wrapped(scope, receive, send)

        async with serving(authenticated) as running.url:
            yield running


async def test_an_idempotent_app_is_asked_in_the_background_as_the_caller() -> None:
    async with mounted("background", idempotent=True) as running:
        await running.warm()
        hit = await running.ask(REWORDED)
        assert "detail=semantic" in hit.verdict
        await until(lambda: Labelled(source=LabelSource.AUDIT, same=True) in running.recorder.seen)
    assert running.app.asked == ["me"]
    (audit,) = running.seen(Outcome.AUDIT)
    assert (audit.status, audit.error, audit.stored) == (200, None, True)


async def test_an_app_that_is_asked_twice_gets_the_scope_that_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with mounted("background", idempotent=True, ask_twice=True) as running:
        await running.warm()
        monkeypatch.setattr(Domain, "repeat_rate", lambda *_: 1.0)
        miss = await running.ask(NEGATED)
        assert "fwd=miss" in miss.verdict
        await until(lambda: Labelled(source=LabelSource.NULL, same=True) in running.recorder.seen)
    assert running.app.asked == ["me", "me"]
    assert [row.status for row in running.seen(Outcome.AUDIT)] == [200]


async def test_an_app_that_is_not_idempotent_is_asked_only_while_its_caller_waits() -> None:
    async with mounted("background", idempotent=False) as running:
        await running.warm()
        asked = await running.ask(REWORDED)
        assert "detail=audit" in asked.verdict
        await until(lambda: Labelled(source=LabelSource.AUDIT, same=True) in running.recorder.seen)
    assert running.app.asked == ["me"]
    assert not running.seen(Outcome.AUDIT)


async def test_an_app_that_fails_in_an_audit_costs_the_caller_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with mounted("background", idempotent=True) as running:
        await running.warm()
        running.app.failing = True
        with caplog.at_level(logging.CRITICAL, "uvicorn.error"):
            hit = await running.ask(REWORDED)
            await until(lambda: bool(running.seen(Outcome.AUDIT)))
        running.app.failing = False
        again = await running.ask(REWORDINGS[1])
    assert ("detail=semantic" in hit.verdict, "detail=semantic" in again.verdict) == (True, True)
    assert running.seen(Outcome.AUDIT)[0].status == 500


async def test_an_app_that_hangs_in_an_audit_is_ended_by_the_shutdown() -> None:
    async with asyncio.timeout(PATIENCE_S):
        async with mounted("background", idempotent=True) as running:
            await running.warm()
            left = running.app.left
            running.app.open.clear()
            await running.ask(REWORDED)
            await until(lambda: bool(running.app.asked))
        await anyio.lowlevel.checkpoint()
    assert running.app.left == left + 1
