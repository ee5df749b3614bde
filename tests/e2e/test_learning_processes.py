"""Learning across processes, kills, restarts, and a store that leaves and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headstart.decisions import LabelSource
from headstart.embeddings.stores import memory as memory_room
from headstart.embeddings.stores.store_urls import open_store
from headstart.middleware.learning import domains as domains_module
from headstart.policies.learned_rule.domain import Domain
from support.fakes import FaultyStore
from support.learned import ERROR_LIMIT, digest, make_domains, make_label
from support.patience import PATIENCE_S, until
from support.redis_server import RedisServer, redis_server
from support.repository import ROOT
from support.sidecar import PROMPT, REWORDED, Sidecar, sidecar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from headstart.middleware.learning.learner import Learner

pytestmark = pytest.mark.anyio

REWORDINGS = (REWORDED, "I'd like to sign up for ChatGPT", "How do I sign up for ChatGPT?")
AUDITED: dict[str, Any] = {"audit.mode": "background", "audit.rate": 1.0, "audit.null_rate": 0.0}


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    server: RedisServer = request.getfixturevalue("redis")
    server.flush()
    return server.url


@contextlib.asynccontextmanager
async def process(
    url: str, name: str, count: int, total: int
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a process that writes ``count`` labels and learns from ``total``."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "support.learning_process", url, name, str(count), str(total),
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


async def last_word(started: asyncio.subprocess.Process) -> str:
    assert started.stdout is not None
    return (await started.stdout.read()).decode().strip().splitlines()[-1]


async def relearned(url: str) -> str:
    """Return what the labels of a store alone teach."""
    store = open_store(url)
    await store.open()
    fresh = memory_room.MemoryStore()
    await fresh.add_labels([label for _, label in await store.read_labels()])
    await store.aclose()
    return digest(await make_domains(fresh).load("d"))


def domain_of(running: Sidecar) -> Domain:
    hit_decider = running.parts[0].hit_decider
    assert hit_decider is not None
    (name,) = hit_decider.learner.domains.names()
    return hit_decider.learner.domains.get(name)


async def learned(running: Sidecar, count: int) -> None:
    """Wait until the one domain has learned from so many labels."""
    await until(lambda: domain_of(running).labels >= count)


# --- processes ------------------------------------------------------------------------------------


async def test_two_processes_that_share_a_store_know_the_same(url: str) -> None:
    async with process(url, "one", 105, 210) as one, process(url, "two", 105, 210) as two:
        words = [await last_word(one), await last_word(two)]
    assert words == [f"learned {await relearned(url)}"] * 2


async def test_a_process_killed_in_the_middle_has_lost_nothing_that_it_wrote(url: str) -> None:
    async with process(url, "killed", 100_000, 100_000) as victim:
        assert victim.stdout is not None
        written = 0
        while written < 230:
            written = int((await victim.stdout.readline()).split()[1])
        victim.kill()
        await victim.wait()
    store = open_store(url)
    await store.open()
    try:
        labels = await store.read_labels()
        back = await make_domains(store).load("d")
    finally:
        await store.aclose()
    assert len(labels) >= written
    assert back.labels >= written
    assert digest(back) == await relearned(url)
    # Without what it learned about pairs with the same words, it would not serve them.
    forgetful = Domain(ERROR_LIMIT)
    for _, label in labels:
        forgetful.apply(msgspec.structs.replace(label, same_words=False))
    assert back.serves_same_words()
    assert not forgetful.serves_same_words()


async def test_a_restarted_sidecar_decides_as_it_did_before(url: str) -> None:
    cache = {"store": url, "audit.mode": "off"}
    questions = (*REWORDINGS, "How can I not sign up for ChatGPT?", "How do I leave ChatGPT?")
    async with sidecar(cache={**cache, "mode": "shadow"}) as first:
        await first.ask(PROMPT)
        await first.indexed(1)
        for question in questions:
            await first.ask(question)
        await learned(first, len(questions))
        before, name = domain_of(first), first.served[0].domain
        known = before.snapshot()
    async with sidecar(cache=cache) as second:
        # The question that brings the domain into memory teaches it only later.
        hit_decider = second.parts[0].hit_decider
        assert hit_decider is not None
        after = await hit_decider.learner.domains.load(name)
        assert after.snapshot() == known
        assert after.threshold() == before.threshold()


# --- people's vetoes ------------------------------------------------------------------------------


def learner_of(running: Sidecar) -> Learner:
    hit_decider = running.parts[0].hit_decider
    assert hit_decider is not None
    return hit_decider.learner


async def test_a_persons_veto_holds_on_every_node_and_after_a_restart(url: str) -> None:
    cache = {"store": url, "audit.mode": "off"}
    async with sidecar(cache=cache) as one:
        await one.ask(PROMPT)
        await one.indexed(1)
        beside = partial(sidecar, cache=cache, upstream={"base_url": one.provider_url})
        async with beside() as two:
            await two.indexed(1)
            assert "detail=semantic" in (await two.ask(REWORDINGS[1])).verdict
            hit = await one.ask(REWORDED)
            assert "detail=semantic" in hit.verdict
            assert await learner_of(one).feedback(hit.headers["x-headstart-request-id"], same=False)
            await until(lambda: len(learner_of(two).domains.vetoes))
            vetoed = [await two.ask(REWORDINGS[2])]
        async with beside() as third:
            await third.indexed(1)
            vetoed.append(await third.ask(REWORDED))
            exact = await third.ask(PROMPT)
            # It never saw the hit; the veto itself knows what it was placed on.
            await learner_of(third).feedback(hit.headers["x-headstart-request-id"], same=True)
            assert not len(learner_of(third).domains.vetoes)
    assert [reply.headers.get("x-headstart-veto") for reply in vetoed] == ["feedback"] * 2
    assert "detail=exact" in exact.verdict


async def test_a_veto_survives_a_kill_before_it_was_saved(url: str) -> None:
    """The labels alone tell it: the document is only the short way."""
    store = open_store(url)
    await store.open()
    try:
        await store.add_labels([make_label(n) for n in range(5)])
        wrong = msgspec.structs.replace(
            make_label(5, source=LabelSource.FEEDBACK, same=False), served=True, question="q"
        )
        await store.add_labels([wrong])
        assert await store.load_document("vetoes") is None
        killed = make_domains(store)
        await killed.load("d")
        assert killed.vetoes.refuses(wrong.entry, "another")
        await killed.aclose()
        assert await store.load_document("vetoes") is not None
        await store.add_labels([msgspec.structs.replace(wrong, id="later", entry="e9")])
        again = make_domains(store)
        await again.load("another domain")
        assert again.vetoes.refuses("e9", "another")
        assert again.vetoes.refuses(wrong.entry, "another")
    finally:
        await store.aclose()


# --- a store that leaves and comes back -----------------------------------------------------------


async def test_a_redis_that_leaves_and_comes_back_costs_labels_and_nothing_else(
    redis: RedisServer,
) -> None:
    redis.flush()
    async with sidecar(cache={"store": redis.url, "audit.mode": "off"}) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        await running.ask("How can I not sign up for ChatGPT?")
        await learned(running, 1)
        with redis.hanging():
            away = await running.ask("How could I never sign up for ChatGPT?")
            hit = await running.ask(REWORDED)
        assert (away.status, hit.status) == (200, 200)
        async with asyncio.timeout(PATIENCE_S):
            while domain_of(running).labels < 2:
                await running.ask(f"Can I not sign up for ChatGPT {len(running.served)} times?")
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("method", ["add_labels", "read_labels", "save_document", "load_document"])
async def test_callers_are_answered_while_the_store_fails_for_learning(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(domains_module, "SAVE_S", 0.0)
    store = FaultyStore()
    monkeypatch.setattr(memory_room, "MemoryStore", lambda **_: store)
    async with sidecar(cache=AUDITED) as running:
        store.failing = {method}
        for question in (PROMPT, "How can I not sign up for ChatGPT?", *REWORDINGS):
            assert (await running.ask(question)).status == 200
        store.failing = set()
        asked = 0
        async with asyncio.timeout(PATIENCE_S):
            while not await store.read_labels():
                asked += 1
                await running.ask(f"Can I not sign up for ChatGPT {asked} times?")
        await learned(running, 1)
