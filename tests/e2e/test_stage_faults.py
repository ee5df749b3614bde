"""When an encoder or a store fails, the request goes on without the cache."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headstart.embeddings import encoder as encoder_room
from headstart.embeddings.stores import memory as memory_room
from headstart.errors import EncoderError
from headstart.lab.simulator.faults import Cut, ErrorFrame, Gzip, Status
from headstart.observe import StageFailed
from support.fakes import FaultyStore
from support.patience import PATIENCE_S, until
from support.sidecar import REWORDED, Sidecar, sidecar

if TYPE_CHECKING:
    from headstart.decisions import Encoding
    from headstart.types import Entry

pytestmark = pytest.mark.anyio

EXACT = {"mode": "exact-only"}


class FaultyEncoder(encoder_room.OnnxEncoder):
    """The default encoder until ``broken`` is set."""

    broken: Exception | None = None

    def encode(self, text: str) -> Encoding:
        if self.broken is not None:
            raise self.broken
        return super().encode(text)


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> FaultyEncoder:
    """The encoder of the gateways that the test starts."""
    made = FaultyEncoder()
    monkeypatch.setattr(encoder_room, "OnnxEncoder", lambda *_, **__: made)
    return made


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FaultyStore:
    """The store of the gateway that the test starts."""
    made = FaultyStore()
    monkeypatch.setattr(memory_room, "MemoryStore", lambda **_: made)
    return made


def failures(gateway: Sidecar) -> set[str]:
    return {seen.stage for seen in gateway.recorder.seen if isinstance(seen, StageFailed)}


@pytest.mark.parametrize("error", [EncoderError("broken"), ValueError("a third party's own")])
async def test_an_encoder_that_fails_makes_a_reworded_question_a_miss(
    encoder: FaultyEncoder, error: Exception
) -> None:
    async with sidecar() as gateway:
        await gateway.ask()
        await gateway.indexed(1)
        encoder.broken = error
        failed = await gateway.ask(REWORDED)
        assert (failed.status, failed.headers["x-cache"]) == (200, "MISS")
        assert "detail=encoder-error" in failed.verdict
        await until(lambda: failures(gateway) == {"encoder"})
        assert (await gateway.ask()).verdict.endswith("detail=exact")
        encoder.broken = None
        assert (await gateway.ask("How do I sign up for ChatGPT?")).verdict.endswith("semantic")


async def test_an_answer_whose_prompt_could_not_be_encoded_is_found_by_meaning_later(
    encoder: FaultyEncoder,
) -> None:
    async with sidecar() as gateway:
        encoder.broken = EncoderError("broken")
        assert (await gateway.ask()).status == 200
        await gateway.indexed(1)
        # Before anything is learned, each question that has a neighbour is encoded.
        assert (await gateway.ask("How many moons has Mars?")).status == 200
        assert failures(gateway) == {"encoder"}
        encoder.broken = None
        assert (await gateway.ask()).verdict.endswith("detail=exact")
        assert (await gateway.ask(REWORDED)).verdict.endswith("semantic")


async def test_a_store_that_cannot_find_makes_a_request_a_miss(store: FaultyStore) -> None:
    async with sidecar(cache={"hot_bytes": 0, **EXACT}) as gateway:
        await gateway.ask()
        await until(lambda: "append" in store.calls)
        store.failing = {"find"}
        failed = await gateway.ask()
        assert (failed.status, failed.headers["x-cache"]) == (200, "MISS")
        assert failures(gateway) == {"store"}
        store.failing = set()
        assert (await gateway.ask()).headers["x-cache"] == "HIT"


class FarStore(FaultyStore):
    """A store that needs 50 ms to find an answer."""

    async def find(self, exact: str) -> Entry | None:
        await asyncio.sleep(0.05)
        return await super().find(exact)


async def test_the_wait_for_a_far_store_counts_as_our_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = FarStore()
    monkeypatch.setattr(memory_room, "MemoryStore", lambda **_: store)
    async with sidecar(cache={"hot_bytes": 0, **EXACT}) as gateway:
        await gateway.ask()
        await until(lambda: "append" in store.calls)
        await gateway.ask()
        await gateway.finished(2)
    miss, hit = gateway.served
    assert (miss.outcome, hit.outcome) == ("miss", "exact")
    assert min(miss.lookup_s, hit.lookup_s) >= 0.05
    assert miss.overhead_s >= miss.lookup_s
    assert miss.ttft_s is not None
    assert miss.ttft_s >= miss.lookup_s


@pytest.mark.parametrize("stream", [False, True])
async def test_a_store_that_cannot_append_keeps_nothing_and_the_answer_arrives(
    store: FaultyStore, stream: bool
) -> None:
    async with sidecar(cache={"hot_bytes": 0, **EXACT}) as gateway:
        store.failing = {"append"}
        failed = await gateway.ask(stream=stream)
        assert failed.status == 200
        await until(lambda: failures(gateway) == {"store"})
        store.failing = set()
        assert (await gateway.ask(stream=stream)).headers["x-cache"] == "MISS"
        await until(lambda: store.calls.count("append") == 2)
        assert (await gateway.ask(stream=stream)).headers["x-cache"] == "HIT"


async def test_a_store_that_cannot_load_makes_a_reworded_question_a_miss(
    store: FaultyStore, encoder: FaultyEncoder
) -> None:
    async with sidecar(cache={"hot_bytes": 0}) as gateway:
        await gateway.ask()
        await gateway.indexed(1)
        store.failing = {"load"}
        failed = await gateway.ask(REWORDED)
        assert (failed.status, failed.headers["x-cache"]) == (200, "MISS")
        store.failing = set()
        assert (await gateway.ask("How do I sign up for ChatGPT?")).headers["x-cache"] == "HIT"


STATUS = Path("/proc/self/statm")


def resident_bytes() -> int:
    gc.collect()
    return int(STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not STATUS.exists(), reason="resident memory is read from /proc")
async def test_faults_leave_no_memory_behind() -> None:
    faults = [None, Cut(), Cut(after=3), Cut(after=0, how="end"), ErrorFrame(), Status(), Gzip()]

    async def round_of_calls(gateway: Sidecar, rounds: int) -> None:
        for _ in range(rounds):
            for number, fault in enumerate(faults):
                for stream in (False, True):
                    await gateway.ask(f"question {number}", fault=fault, stream=stream)
            await gateway.post(b"[" * 100_000)
            await gateway.post(b"x" * 500_000)

    async with asyncio.timeout(PATIENCE_S), sidecar(cache=EXACT) as gateway:
        await round_of_calls(gateway, 6)
        before = resident_bytes()
        await round_of_calls(gateway, 20)
        assert resident_bytes() - before < 24 << 20
