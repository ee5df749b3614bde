"""An app that is called in several event loops, one after the other or side by side.

Test clients, ``asyncio.run``, asgiref's ``async_to_sync`` and hosts of functions make a new loop
for each request, or start and stop the app for each.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import warnings
from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from headstart import Endpoint, HeadstartMiddleware, Settings, UpstreamSettings, gateway
from headstart.lab.simulator import Simulator
from headstart.middleware.asgi import Gateway, StartedEngine
from headstart.settings import CacheSettings, ServerSettings
from support.serving import serving_in_thread

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

CHAT = "/v1/chat/completions"


def provider() -> AbstractContextManager[str]:
    """Serve a provider in a thread: it outlives the loops of the requests."""
    return serving_in_thread(Simulator(), lifespan="off")


async def ask(app: Any, question: str) -> tuple[int, str]:
    """Send one chat; return the status and ``Cache-Status``."""
    body = {"model": "m", "messages": [{"role": "user", "content": question}]}
    headers = {"authorization": "Bearer key"}
    to_app = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=to_app, base_url="http://localhost") as client:
        reply = await client.post(CHAT, json=body, headers=headers)
    return reply.status_code, reply.headers.get("cache-status", "")


def gateway_to(url: str, store: str) -> Gateway:
    settings = Settings(upstream=(UpstreamSettings(base_url=f"{url}/v1"),))
    return gateway(settings, store=store, mode="exact-only")


@pytest.mark.parametrize("store", ["memory:", "sqlite:///{}/answers.db"])
def test_each_request_may_have_its_own_event_loop(store: str, tmp_path: Path) -> None:
    with provider() as url:
        app = gateway_to(url, store.format(tmp_path))
        questions = ("Which city?", "Whose city?", "Which city?", "What city?", "Whose city?")
        answers = [asyncio.run(ask(app, question)) for question in questions]
    assert [status for status, _ in answers] == [200] * 5
    assert ["hit" in cache_status for _, cache_status in answers] == [
        False,
        False,
        True,
        False,
        True,
    ]


def test_event_loops_that_run_side_by_side_have_their_own_engines() -> None:
    with provider() as url:
        app = gateway_to(url, "memory:")
        loops = [asyncio.new_event_loop() for _ in range(2)]
        threads = [threading.Thread(target=loop.run_forever) for loop in loops]
        for thread in threads:
            thread.start()
        try:
            for hit in (False, True):
                for loop in loops:
                    answered = asyncio.run_coroutine_threadsafe(ask(app, "Which city?"), loop)
                    status, cache_status = answered.result(10)
                    assert (status, "hit" in cache_status) == (200, hit)
        finally:
            for loop, thread in zip(loops, threads, strict=True):
                asyncio.run_coroutine_threadsafe(app.aclose(), loop).result(10)
                loop.call_soon_threadsafe(loop.stop)
                thread.join(10)
                loop.close()


@pytest.mark.parametrize("ended", [True, False])
def test_a_loop_that_cancels_no_task_leaves_nothing_in_the_log(
    caplog: pytest.LogCaptureFixture, ended: bool
) -> None:
    loop = asyncio.new_event_loop()
    with provider() as url, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the connection ends with the program
        warnings.simplefilter("error", pytest.PytestUnraisableExceptionWarning)
        app = gateway_to(url, "memory:")
        assert loop.run_until_complete(ask(app, "Which city?"))[0] == 200
        if ended:
            loop.close()
        del app
        gc.collect()
        if not ended:  # it closes what nobody refers to
            loop.run_until_complete(asyncio.sleep(0.1))
            assert not asyncio.all_tasks(loop)
            loop.close()
    assert not [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_client_that_leaves_during_the_start_stops_no_other_request() -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def start(memory: object = None) -> StartedEngine:
            await gate.wait()
            return StartedEngine(cast("Any", None), app.aclose, None)

        app = Gateway(cast("Any", None), endpoints=cast("Any", None), start=start)
        async with asyncio.TaskGroup() as tasks:
            leaving, waiting = (tasks.create_task(app.running()) for _ in range(2))
            await asyncio.sleep(0)
            leaving.cancel()
            gate.set()
        assert leaving.cancelled()
        assert not waiting.cancelled()

    asyncio.run(main())


class Recorder:
    """Counts the observations of requests."""

    requests = 0

    def notify(self, observation: object) -> None:
        self.requests += type(observation).__name__ == "Served"


def host(recorder: Recorder, **settings: Any) -> tuple[FastAPI, list[str]]:
    """Return an app in the middleware, and the questions that its handler got."""
    app, asked = FastAPI(), []

    @app.post("/ask")
    async def handler(body: dict[str, str]) -> dict[str, str]:
        asked.append(body["question"])
        return {"answer": "Rome."}

    app.add_middleware(
        HeadstartMiddleware,
        Settings(cache=CacheSettings(store="memory:", mode="exact-only"), **settings),
        endpoints=[Endpoint("/ask", prompt="question")],
        scope=lambda _: "all",
        observers=[recorder],
    )
    return app, asked


def test_a_test_client_works_without_and_then_with_a_lifespan() -> None:
    recorder = Recorder()
    app, asked = host(recorder)
    question = {"question": "Which city?"}
    client = TestClient(app)
    assert [client.post("/ask", json=question).status_code for _ in range(3)] == [200] * 3
    assert len(asked) == 1
    for _ in range(2):
        with TestClient(app) as running:
            assert running.post("/ask", json=question).status_code == 200
            assert "hit" in running.post("/ask", json=question).headers["cache-status"]
    assert recorder.requests == 7


def test_an_app_that_starts_again_logs_each_request_once(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    app, _ = host(recorder, server=ServerSettings(access_log="text"))
    caplog.set_level(logging.INFO)
    for start in range(3):
        caplog.clear()
        with TestClient(app) as running:
            running.post("/ask", json={"question": f"Question {start}?"})
        assert len([each for each in caplog.records if each.name == "headstart.access"]) == 1
        assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert recorder.requests == 3
