"""Cascades on real sockets: what providers see of a rejected draft and of a client that leaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

import headstart
from headstart.config.loading import load_settings
from headstart.middleware.asgi import not_found
from headstart.middleware.observers import Observers
from headstart.middleware.upstreams.accounting import UpstreamStates
from headstart.middleware.upstreams.cascade import Cascade
from headstart.middleware.upstreams.http import HTTPUpstream
from headstart.middleware.upstreams.target import Target
from headstart.mount import build_gateway
from headstart.observe import Committed, Served
from headstart.settings import RouteSettings, Settings, Strategy, UpstreamSettings
from headstart.types import ChatRequest, Completion, Text
from support.candidates import UNIX, Books, chat_call, read
from support.patience import PATIENCE_S
from support.scripted import ScriptedUpstream, chunk
from support.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from headstart.interfaces import DraftJudge, Store
    from headstart.middleware.admin_front import EngineParts

pytestmark = pytest.mark.anyio

REFUSAL = ["I'm sorry, but", " I can't help", " with that."]


def provider(*words: str) -> ScriptedUpstream:
    app = ScriptedUpstream()
    app.words = list(words)
    return app


@pytest.fixture
async def stack() -> AsyncIterator[contextlib.AsyncExitStack]:
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
        yield stack


async def cascade(
    stack: contextlib.AsyncExitStack,
    *apps: ScriptedUpstream,
    **options: Any,
) -> Cascade:
    states, members = UpstreamStates(), []
    for name, app in zip(("fast", "slow"), apps, strict=True):
        url = await stack.enter_async_context(serving(app))
        place = UpstreamSettings(name=name, base_url=url, dialect="openai", cancels_billing=True)
        upstream = HTTPUpstream(place)
        stack.push_async_callback(upstream.aclose)
        members.append(Target(upstream, place, states, lambda: UNIX))
    fast, slow = members
    return Cascade(
        "cascade",
        fast,
        slow,
        Strategy(**options),
        draw=lambda: 1.0,
        clock=lambda: UNIX,
    )


async def test_a_draft_passes_byte_for_byte(stack: contextlib.AsyncExitStack) -> None:
    fast, slow, ledger = provider("Hello", " there"), provider("no"), Books()
    upstream = await cascade(stack, fast, slow)
    async with await upstream.send(chat_call()) as reply:
        stream = b"".join([piece.data async for piece in reply.pieces])
    assert stream.startswith(chunk({"role": "assistant", "content": ""}))
    assert chunk({"content": " there"}) in stream
    assert slow.calls == []
    assert [each.outcome for each in ledger.take("call")] == ["won"]


async def test_a_whole_answer_is_escalated_and_passes(stack: contextlib.AsyncExitStack) -> None:
    fast, slow, ledger = provider(*REFUSAL), provider("Of course."), Books()
    upstream = await cascade(stack, fast, slow)
    async with await upstream.send(chat_call(stream=False)) as reply:
        body = b"".join([piece.data async for piece in reply.pieces])
    assert json.loads(body)["choices"][0]["message"]["content"] == "Of course."
    assert [each.outcome for each in ledger.take("call")] == ["rejected", "won"]


async def test_an_accepted_draft_closes_the_strong_models_socket(
    stack: contextlib.AsyncExitStack,
) -> None:
    fast, slow, ledger = provider("Fine."), provider("", "never"), Books()
    fast.head_hold = asyncio.Event()
    slow.hold = asyncio.Semaphore(0)
    upstream = await cascade(stack, fast, slow, escalate_early=True)
    request = chat_call().request
    assert request is not None
    for _ in range(30):
        await upstream.panel.judge_draft(request, None, None)

    async def release() -> None:
        while not slow.calls:
            await asyncio.sleep(0.001)
        assert fast.head_hold is not None
        fast.head_hold.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(release())
        async with await upstream.send(chat_call()) as reply:
            assert await read(reply) == "Fine."
            await slow.calls[0].left.wait()
    found = sorted((each.upstream, each.outcome.value) for each in ledger.take("call"))
    assert found == [("fast", "won"), ("slow", "lost")]


@pytest.mark.parametrize("words", [["", "never"], [*REFUSAL]])
async def test_a_client_that_leaves_closes_every_socket(
    stack: contextlib.AsyncExitStack, words: list[str]
) -> None:
    fast, slow, ledger = provider(*words), provider("", "never"), Books()
    waits = slow if words == REFUSAL else fast
    waits.hold = asyncio.Semaphore(0)
    upstream = await cascade(stack, fast, slow)

    async def ask() -> None:
        async with await upstream.send(chat_call()):
            pytest.fail("entered")

    async with asyncio.TaskGroup() as group:
        asked = group.create_task(ask())
        while not waits.calls:
            await asyncio.sleep(0.001)
        asked.cancel()
    await waits.calls[0].left.wait()
    outcomes = [each.outcome for each in ledger.take("call")]
    assert outcomes == (["rejected", "abandoned"] if waits is slow else ["abandoned"])


async def test_a_route_with_a_cascade_answers_stores_and_says_who_answered() -> None:
    observed: list[Any] = []

    class Notes:
        def notify(self, observation: Any) -> None:
            observed.append(observation)

    async with serving(provider(*REFUSAL)) as fast, serving(provider("Of course.")) as slow:
        overrides = {
            "cache.store": "memory:",
            "cache.mode": "exact-only",
            "upstream": [{"name": "fast", "base_url": fast}, {"name": "slow", "base_url": slow}],
            "route": [{"name": "all", "strategy": "cascade", "upstreams": ["fast", "slow"]}],
        }
        settings = await asyncio.to_thread(load_settings, None, {}, overrides)
        app = build_gateway(settings, not_found, observers=Observers([Notes()]))
        async with serving(app) as url, aiohttp.ClientSession() as session:
            path = f"{url}/v1/chat/completions"
            for transforms in ("include-usage,cascade:slow", None):
                async with session.post(path, data=chat_call().body) as response:
                    body = await response.read()
                    assert response.headers.get("x-headstart-transforms") == transforms
                assert b"Of course." in body
                assert b"sorry" not in body
                while not any(isinstance(each, Committed) for each in observed):
                    await asyncio.sleep(0.005)
    first, second = (each for each in observed if isinstance(each, Served))
    assert [(each.upstream, each.role, each.outcome) for each in first.attempts] == [
        ("fast", "draft", "rejected"),
        ("slow", "escalation", "won"),
    ]
    assert not second.attempts, "it came from the cache"


async def test_a_cascade_keeps_what_it_learned_over_a_restart(tmp_path: Path) -> None:
    async with serving(provider("42")) as fast, serving(provider("42")) as slow:
        route = {
            "name": "all",
            "strategy": "cascade",
            "upstreams": ["fast", "slow"],
            "judge": ["agreement"],
            "min_confidence": 1.0,
        }
        overrides = {
            "cache.store": f"sqlite:///{tmp_path}/cache.db",
            "cache.mode": "exact-only",
            "upstream": [{"name": "fast", "base_url": fast}, {"name": "slow", "base_url": slow}],
            "route": [route],
        }
        settings = await asyncio.to_thread(load_settings, None, {}, overrides)
        name = "all: cascade(fast,slow)"
        kept: list[bytes | None] = []

        def look(parts: EngineParts) -> None:
            stores.append(parts.store)

        stores: list[Store] = []
        for _ in range(2):
            app = build_gateway(settings, not_found, observers=Observers(), on_start=look)
            async with serving(app) as url, aiohttp.ClientSession() as session:
                kept.append(await stores[-1].load_document(name))
                path = f"{url}/v1/chat/completions"
                async with session.post(path, data=chat_call().body) as response:
                    assert b"42" in await response.read()
        assert kept[0] is None
        learned = json.loads(kept[1] or b"")
        assert learned["scores"]["agreement"]["seen"][-1] == 5.0, "one draft beside the prior"


def at_least_three_words(request: ChatRequest, draft: Completion) -> bool:
    said = [part.text for part in draft.choices[0].parts if isinstance(part, Text)]
    return len("".join(said).split()) >= 3


async def at_least_three_words_async(request: ChatRequest, draft: Completion) -> float:
    await asyncio.sleep(0)
    return 0.9 if at_least_three_words(request, draft) else 0.1


def settings_of(fast: str, slow: str, *routes: RouteSettings) -> Settings:
    members = {"fast": fast, "slow": slow}
    return Settings(
        upstream=tuple(UpstreamSettings(name=name, base_url=url) for name, url in members.items()),
        route=routes,
    )


async def answer(url: str, prompt: str, **headers: str) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response,
    ):
        said: str = (await response.json())["choices"][0]["message"]["content"]
        return said


@pytest.mark.parametrize("judge", [at_least_three_words, at_least_three_words_async])
async def test_a_users_own_function_judges_the_drafts_of_a_gateway(judge: DraftJudge) -> None:
    members = provider("Too short."), provider("This is long enough.")
    async with serving(members[0]) as one, serving(members[1]) as other:
        for fast, slow in ((one, other), (other, one)):
            careful = headstart.route(
                "careful", headstart.cascade("fast", "slow", judges=[judge], extra_calls=0.0)
            )
            app = headstart.gateway(
                settings_of(fast, slow, careful), store="memory:", mode="exact-only"
            )
            async with serving(app) as url:
                assert await answer(url, "Why?") == "This is long enough."
    assert [len(each.calls) for each in members] == [1, 2]


async def test_a_draft_of_a_route_without_a_judge_is_not_served_where_a_judge_vetoes() -> None:
    lax = headstart.route(
        "lax", headstart.cascade("fast", "slow", extra_calls=0.0), header={"x-lax": "*"}
    )
    judged = headstart.cascade("fast", "slow", judges=[lambda *_: False], extra_calls=0.0)
    async with serving(provider("draft")) as fast, serving(provider("strong")) as slow:
        settings = settings_of(fast, slow, lax, headstart.route("strict", judged))
        app = headstart.gateway(settings, store="memory:", mode="exact-only")
        async with serving(app) as url:
            assert await answer(url, "Why?", **{"x-lax": "1"}) == "draft"
            assert await answer(url, "Why?") == "strong"


async def test_strategies_that_judge_nothing_share_answers() -> None:
    marked = headstart.route("one", headstart.fastest("fast", "slow"), header={"x-one": "*"})
    other = headstart.route("two", headstart.fallback("slow", "fast"))
    members = provider("Fine."), provider("Fine.")
    async with serving(members[0]) as fast, serving(members[1]) as slow:
        settings = settings_of(fast, slow, marked, other)
        # The header tells routes apart, not callers.
        app = headstart.gateway(
            settings, store="memory:", mode="exact-only", ignore_headers=("x-one",)
        )
        async with serving(app) as url:
            assert await answer(url, "Why?", **{"x-one": "1"}) == "Fine."
            assert await answer(url, "Why?") == "Fine."
    assert sum(len(each.calls) for each in members) == 1
