"""The examples as a reader runs them: real servers, real clients, the simulated provider."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import sys
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from examples import agent, openai_client, retrieval
from headstart.lab.simulator import Simulator
from support.django_site import django_settings
from support.proxied import Reply, reply_of
from support.serving import serving
from support.sidecar import sidecar
from support.simulated import chat, simulated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

RETRIEVED = (
    "How many days do I have to return something?",
    "How many days do I have to return anything?",
    "How many days does a delivery take?",
)
ASK = {"question": "What is a semantic cache?"}


@contextlib.asynccontextmanager
async def running(name: str) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    """Serve an example, imported afresh so that no test finds another's answers."""
    sys.modules.pop(f"examples.{name}", None)
    with contextlib.ExitStack() as settings:
        if name.startswith("django"):
            settings.enter_context(django_settings(ROOT_URLCONF=f"examples.{name}"))
        app = importlib.import_module(f"examples.{name}").app
        async with serving(app) as url, aiohttp.ClientSession() as session:
            yield url, session


async def post(session: aiohttp.ClientSession, url: str, body: dict[str, Any], token: str) -> Reply:
    headers = {"authorization": f"Bearer {token}"}
    async with session.post(url, json=body, headers=headers) as response:
        return await reply_of(response)


async def test_a_repeated_question_to_the_fastapi_app_is_a_hit() -> None:
    async with running("fastapi_app") as (url, session):
        first = await post(session, url + "/ask", ASK, "me")
        again = await post(session, url + "/ask", ASK, "me")
        stranger = await post(session, url + "/ask", ASK, "you")
    assert [reply.headers["x-cache"] for reply in (first, again, stranger)] == [
        "MISS",
        "HIT",
        "MISS",
    ]
    assert json.loads(again.body) == {"answer": "You asked: What is a semantic cache?"}


LOGINS = ["fastapi_auth", "fastapi_depends", "litestar_guards", "django_login"]


@pytest.mark.parametrize("name", LOGINS)
async def test_a_login_that_is_revoked_gets_no_hit(name: str) -> None:
    async with running(name) as (url, session):
        sessions = sys.modules[f"examples.{name}"].SESSIONS
        await post(session, url + "/ask", ASK, "token-of-ann")
        hit = await post(session, url + "/ask", ASK, "token-of-ann")
        others = await post(session, url + "/ask", ASK, "token-of-bob")
        del sessions["token-of-ann"]
        revoked = await post(session, url + "/ask", ASK, "token-of-ann")
    assert (hit.status, hit.headers["x-cache"]) == (200, "HIT")
    assert (others.status, others.headers["x-cache"]) == (200, "MISS")
    assert revoked.status == 401
    assert b"You asked" not in revoked.body
    assert "x-cache" not in revoked.headers
    if name == "fastapi_auth":
        assert json.loads(revoked.body) == {"error": "log in first"}


async def test_two_tokens_of_one_user_share_answers() -> None:
    async with running("fastapi_auth") as (url, session):
        sys.modules["examples.fastapi_auth"].SESSIONS["second-token-of-ann"] = "ann"
        await post(session, url + "/ask", ASK, "token-of-ann")
        hit = await post(session, url + "/ask", ASK, "second-token-of-ann")
    assert hit.headers["x-cache"] == "HIT"


async def test_the_gateway_answers_below_its_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    async with simulated(Simulator("instant")) as provider:
        upstream = json.dumps([{"base_url": f"{provider}/v1"}])
        monkeypatch.setenv("HEADSTART_UPSTREAM", upstream)
        async with running("gateway_in_starlette") as (url, session):
            body = chat("How can I sign up for ChatGPT?")
            miss = await post(session, url + "/llm/v1/chat/completions", body, "me")
            hit = await post(session, url + "/llm/v1/chat/completions", body, "me")
            async with session.get(url + "/llm/v1/models") as models:
                assert models.status == 200
    assert (miss.headers["x-cache"], hit.headers["x-cache"]) == ("MISS", "HIT")
    assert json.loads(hit.body)["choices"] == json.loads(miss.body)["choices"]


async def test_the_openai_client_sees_a_miss_then_a_hit_then_a_reworded_hit() -> None:
    async with sidecar() as running_sidecar:
        base_url = running_sidecar.url + "/v1"

        async def ask(question: str) -> tuple[str, str]:
            return await asyncio.to_thread(openai_client.ask, base_url, question)

        missed, verdict = await ask("How can I sign up for ChatGPT?")
        assert "fwd=miss" in verdict
        await running_sidecar.indexed(1)
        for question, kind in (
            ("How can I sign up for ChatGPT?", "exact"),
            ("I want to sign up for ChatGPT", "semantic"),
        ):
            answer, verdict = await ask(question)
            assert answer == missed
            assert verdict.startswith("headstart; hit;")
            assert verdict.endswith(f"detail={kind}")


async def test_langchain_sees_a_miss_then_a_hit() -> None:
    langchain = pytest.importorskip("examples.langchain_chat")
    async with sidecar() as running_sidecar:
        question = "How can I sign up for ChatGPT?"
        asked = [
            await asyncio.to_thread(langchain.ask, running_sidecar.url + "/v1", question)
            for _ in range(2)
        ]
    (missed, first), (answer, second) = asked
    assert "fwd=miss" in first
    assert second.endswith("detail=exact")
    assert answer == missed


async def test_a_reworded_question_about_the_same_document_is_a_hit() -> None:
    async with sidecar() as running_sidecar:
        base_url = running_sidecar.url + "/v1"
        first, second, other = RETRIEVED
        missed, verdict = await asyncio.to_thread(retrieval.ask, base_url, first)
        assert "fwd=miss" in verdict
        await running_sidecar.indexed(1)
        answer, verdict = await asyncio.to_thread(retrieval.ask, base_url, second)
        assert verdict.endswith("detail=semantic")
        assert answer == missed
        _, verdict = await asyncio.to_thread(retrieval.ask, base_url, other)
        assert "fwd=miss" in verdict


async def test_an_agent_that_does_its_task_again_gets_hits() -> None:
    task = "What is the weather in Paris?"
    async with sidecar(cache={"cached_tools": ["get_weather"]}) as running_sidecar:
        first, asked = await asyncio.to_thread(agent.run, running_sidecar.url + "/v1", task)
        again, repeated = await asyncio.to_thread(agent.run, running_sidecar.url + "/v1", task)
    assert len(asked) == len(repeated) == 2
    assert all("fwd=miss" in verdict for verdict in asked)
    assert all(verdict.endswith("detail=exact") for verdict in repeated)
    assert first == again
