"""An SDK that retries after its timeout joins the call that it made before."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import openai
import pytest

from headstart.attempts import AttemptOutcome
from headstart.decisions import Outcome
from headstart.lab.simulator import Oracle
from headstart.lab.simulator.faults import Cut, Status
from headstart.lab.simulator.profiles import ProviderProfile
from headstart.middleware import respond
from support.sidecar import PROMPT, Provider, Sidecar, sidecar

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionUserMessageParam


pytestmark = pytest.mark.anyio

EXACT = {"mode": "exact-only"}
MESSAGE: ChatCompletionUserMessageParam = {"role": "user", "content": PROMPT}


def waiting(seconds: str, retries: str = "0") -> dict[str, str]:
    return {"x-stainless-read-timeout": seconds, "x-stainless-retry-count": retries}


async def said(client: openai.AsyncOpenAI, *, stream: bool) -> str:
    create, messages = client.chat.completions.create, (MESSAGE,)
    if not stream:
        return (await create(model="m", messages=messages)).choices[0].message.content or ""
    chunks = [chunk async for chunk in await create(model="m", messages=messages, stream=True)]
    return "".join(each.delta.content or "" for chunk in chunks for each in chunk.choices)


@pytest.fixture
def held() -> Provider:
    provider = Provider()
    provider.open.clear()
    return provider


async def ended(running: Sidecar) -> tuple[str | None, list[AttemptOutcome]]:
    await running.finished(1)
    [row] = running.served
    return row.error, [each.outcome for each in row.attempts]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_retry_of_an_sdk_gets_the_answer_to_its_first_try(
    stream: bool, held: Provider
) -> None:
    async with (
        sidecar(held, cache=EXACT) as running,
        openai.AsyncOpenAI(
            base_url=running.url + "/v1", api_key="sk-test", timeout=0.5, max_retries=2
        ) as client,
        asyncio.TaskGroup() as group,
    ):
        asking = group.create_task(said(client, stream=stream))
        await running.in_flight(2)  # the client that was kept, and the retry that took it
        held.open.set()
        assert await asking == Oracle().truth(PROMPT).text
        await running.finished(2)
        assert held.calls == 1
        assert sorted(running.outcomes) == sorted([Outcome.MISS, Outcome.JOINED])
        assert sum(len(row.attempts) for row in running.served) == 1


async def test_a_call_that_nobody_comes_back_for_is_cancelled_and_booked(
    held: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(respond, "RETRY_GRACE_S", 0.01)
    async with sidecar(held, cache=EXACT) as running:
        refused = await running.ask(headers=waiting("0.1"))
        assert (refused.status, refused.headers["x-should-retry"]) == (504, "true")
        assert await ended(running) == ("upstream_timeout", [AttemptOutcome.ABANDONED])
        held.open.set()


async def test_the_last_retry_ends_its_call(held: Provider) -> None:
    async with sidecar(held, cache=EXACT) as running:
        refused = await running.ask(headers=waiting("0.1", retries="2"))
        assert (refused.status, refused.headers["x-should-retry"]) == (504, "false")
        assert await ended(running) == ("upstream_timeout", [AttemptOutcome.ABANDONED])
        held.open.set()


async def test_a_call_outside_the_cache_ends_with_its_client(held: Provider) -> None:
    async with sidecar(held, cache=EXACT) as running:
        uncached = {**waiting("0.1"), "cache-control": "no-store"}
        refused = await running.ask(headers=uncached)
        assert (refused.status, refused.headers["x-should-retry"]) == (504, "false")
        assert (await ended(running))[1] == [AttemptOutcome.ABANDONED]
        held.open.set()


async def test_an_sdk_that_leaves_before_its_time_ends_its_call(held: Provider) -> None:
    async with sidecar(held, cache=EXACT) as running, asyncio.TaskGroup() as group:
        asking = group.create_task(running.ask(headers=waiting("60")))
        await running.in_flight(1)
        asking.cancel()
        assert await ended(running) == ("client-gone", [AttemptOutcome.ABANDONED])
        held.open.set()


@pytest.mark.parametrize("early", [None, 0.01])
async def test_a_stream_that_has_begun_may_take_longer_than_one_read(early: float | None) -> None:
    slow = Provider(profile=ProviderProfile(model="m", ttft_ms=100, tokens_per_s=(15.0, 15.0)))
    route = {"name": "early", "early_200_s": early}
    async with (
        sidecar(slow, cache=EXACT, routes=() if early is None else (route,)) as running,
        openai.AsyncOpenAI(
            base_url=running.url + "/v1", api_key="sk-test", timeout=0.5, max_retries=0
        ) as client,
    ):
        assert await said(client, stream=True) == Oracle().truth(PROMPT).text
        await running.finished(1)
        assert running.served[0].total_s > 0.5


async def test_a_limit_that_ends_after_its_caller_has_gone_is_told_at_once() -> None:
    limited = Status(status=429, message="slow down", headers={"retry-after": "6"})
    async with sidecar(cache=EXACT) as running:
        refused = await running.ask(fault=limited, headers=waiting("4"))
        assert (refused.status, refused.headers["retry-after"]) == (429, "6")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "outage",  # a try and a retry of ours, and then another try
    [Status(status=500, times=3), Cut(times=3)],
)
async def test_an_sdk_on_its_defaults_outlasts_an_outage_as_it_would_without_us(
    stream: bool, outage: Cut | Status
) -> None:
    async with (
        sidecar(cache=EXACT) as running,
        openai.AsyncOpenAI(
            base_url=running.url + "/v1",
            api_key="sk-test",
            default_headers={"x-sim-fault": outage.header()},
        ) as client,
    ):
        assert await said(client, stream=stream) == Oracle().truth(PROMPT).text
        assert running.provider.calls == 4


@pytest.mark.parametrize(("retries", "calls"), [(0, 2), (1, 3), (2, 4)])
async def test_only_the_first_try_of_an_sdk_gets_a_retry_of_ours(retries: int, calls: int) -> None:
    async with (
        sidecar(cache=EXACT) as running,
        openai.AsyncOpenAI(
            base_url=running.url + "/v1",
            api_key="sk-test",
            max_retries=retries,
            default_headers={"x-sim-fault": Status(status=500).header()},
        ) as client,
    ):
        with pytest.raises(openai.InternalServerError):
            await said(client, stream=False)
        assert running.provider.calls == calls


@pytest.mark.parametrize("stream", [False, True])
async def test_an_sdk_is_told_of_a_providers_redirect_and_does_not_follow_it(stream: bool) -> None:
    moved = Status(status=307, headers={"location": "http://127.0.0.1:9/v1/chat/completions"})
    async with (
        sidecar(cache=EXACT) as running,
        openai.AsyncOpenAI(
            base_url=running.url + "/v1",
            api_key="sk-test",
            default_headers={"x-sim-fault": moved.header()},
        ) as client,
    ):
        with pytest.raises(openai.InternalServerError, match=r"redirect to http.*base_url"):
            await said(client, stream=stream)
        assert running.provider.calls == 1
