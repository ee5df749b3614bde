"""Lookups in two steps: sketches decide what is encoded, and entries are encoded late."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import anyio
import msgspec
import numpy as np
import pytest

from headstart.decisions import Lookup, MatchContext, Neighbor, Outcome, RankedNeighbor, Verdict
from headstart.embeddings.index import FaissIndex, pack_row, pack_vector
from headstart.embeddings.replica import (
    INLINE_ROWS,
    INLINE_SIGNS,
    INLINE_SKETCHES,
    HotTier,
    Replica,
)
from headstart.embeddings.semantic_search import ENCODED_AT_ONCE, ENCODED_NEAR, NEIGHBORS
from headstart.errors import EncoderError
from headstart.observe import Gated, GateOutcome
from headstart.types import Put, VectorRow
from support.caches import CacheRig, key, refuse_none, running
from support.fakes import SKETCH_DIMENSION, FakeSketcher, FaultyStore, encode_angle, make_entry
from support.patience import until

if TYPE_CHECKING:
    from collections.abc import Sequence


pytestmark = pytest.mark.anyio


def sketching(
    store: FaultyStore | None = None, *, table: str = "table", max_wait_s: float = 60.0
) -> CacheRig:
    return CacheRig(store or FaultyStore(), sketcher=FakeSketcher(table), max_wait_s=max_wait_s)


@pytest.fixture
async def rig() -> CacheRig:
    rig = sketching()
    await rig.cache.open()
    return rig


async def put(rig: CacheRig, id: str, text: str) -> None:
    await rig.cache.put(make_entry(id, query=text), text)


async def find(rig: CacheRig, text: str) -> Lookup:
    return await rig.cache.find_semantic(key(text), refuse_none)


def encoded(rig: CacheRig) -> list[str]:
    return [text for text, _ in rig.encoder.encoded]


def gated(rig: CacheRig) -> list[GateOutcome]:
    return [seen.outcome for seen in rig.recorder.seen if isinstance(seen, Gated)]


async def rows(rig: CacheRig) -> dict[str, VectorRow]:
    return {row.id: row async for page in rig.store.scan() for row in page}


# --- the gate ----------------------------------------------------------------------------------


async def test_a_question_that_is_near_nothing_is_a_miss_and_nothing_is_encoded(
    rig: CacheRig,
) -> None:
    rig.cache._search.draw = lambda: 0.5  # type: ignore[union-attr]
    await put(rig, "a", "one@0")
    lookup = await find(rig, "uno@0~80")
    assert (lookup.outcome, lookup.reason, lookup.veto, lookup.similarity) == (
        Outcome.MISS, "below-threshold", "threshold", None,
    )  # fmt: skip
    assert encoded(rig) == []
    assert gated(rig) == [GateOutcome.STOPPED]


async def test_how_long_to_wait_is_asked_only_for_a_question_that_is_encoded(rig: CacheRig) -> None:
    rig.cache._search.draw = lambda: 0.5  # type: ignore[union-attr]
    waits: list[float] = []

    def max_wait() -> float:
        waits.append(60.0)
        return 60.0

    await put(rig, "a", "one@0")
    await rig.cache.find_semantic(key("uno@0~80"), refuse_none, max_wait=max_wait)
    assert waits == []
    lookup = await rig.cache.find_semantic(key("uno@0"), refuse_none, max_wait=max_wait)
    assert lookup.outcome is Outcome.SEMANTIC
    assert waits


@pytest.mark.parametrize(
    ("rows", "gate", "on_loop"),
    [
        (INLINE_ROWS, 0.0, True),
        (INLINE_SKETCHES, 0.0, False),
        (INLINE_SKETCHES, 0.8, True),
        (INLINE_SIGNS, 0.8, False),
    ],
)
async def test_a_question_is_compared_on_the_loop_with_more_sketches_than_neighbours(
    rig: CacheRig, rows: int, gate: float, on_loop: bool
) -> None:
    rig.policy.least = gate
    searched: list[tuple[int, bool]] = []
    index, main = rig.cache._index, threading.current_thread()
    search = index.search

    def searching(partition: str, row: bytes, k: int, least: float = -1.0) -> Sequence[Neighbor]:
        searched.append((k, threading.current_thread() is main))
        return search(partition, row, k, least)

    await put(rig, "a", "one@0")
    far = pack_row(np.array([0.0, 1.0] + [0.0] * (SKETCH_DIMENSION - 2), np.float32))
    for number in range(rows):
        index.add(("p",), f"far-{number}", far)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(index, "search", searching)
        assert (await find(rig, "uno@1")).entry is not None
    assert searched == [(1, on_loop), (NEIGHBORS, False)]


async def test_the_event_loop_does_not_wait_for_a_search_in_a_thread(rig: CacheRig) -> None:
    index, replica, main = rig.cache._index, rig.cache._replica, threading.current_thread()
    search, add = index.search, index.add
    on_loop: list[bool] = []
    begun, may_end = threading.Event(), threading.Event()

    def searching(partition: str, row: bytes, k: int, least: float = -1.0) -> Sequence[Neighbor]:
        if k == NEIGHBORS:
            begun.set()
            may_end.wait(30)
        on_loop.append(threading.current_thread() is main)
        return search(partition, row, k, least)

    def adding(partitions: tuple[str, ...], id: str, vector: bytes) -> None:
        on_loop.append(threading.current_thread() is main)
        add(partitions, id, vector)

    await put(rig, "a", "one@0")
    (row,) = (await rows(rig)).values()
    assert row.sketch is not None
    for number in range(INLINE_ROWS):
        add(("p",), f"far-{number}", row.sketch.row)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(index, "search", searching)
        patched.setattr(index, "add", adding)
        for is_searching in (True, False):
            async with anyio.create_task_group() as tasks:
                if is_searching:
                    tasks.start_soon(replica.search, "p", row.sketch.row, NEIGHBORS)
                    await anyio.to_thread.run_sync(begun.wait)
                await replica.search("p", row.sketch.row, 1, 0.8)
                await replica.add([msgspec.structs.replace(row, id=f"new-{is_searching}")])
                assert on_loop == [not is_searching] * 2
                may_end.set()
            on_loop.clear()


async def test_a_question_below_the_gate_may_be_sampled_though_its_neighbour_is_not_known(
    rig: CacheRig,
) -> None:
    index = rig.cache._index
    search = index.search

    def near_ones(partition: str, row: bytes, k: int, least: float = -1.0) -> Sequence[Neighbor]:
        found = search(partition, row, k, least)
        return [near for near in found if near.similarity >= least]

    await put(rig, "a", "one@0")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(index, "search", near_ones)
        rig.cache._search.draw = lambda: 0.5  # type: ignore[union-attr]
        assert (await find(rig, "uno@0~80")).reason == "below-threshold"
        rig.cache._search.draw = lambda: 0.0  # type: ignore[union-attr]
        assert (await find(rig, "uno@0~80")).entry is not None
    assert gated(rig) == [GateOutcome.STOPPED, GateOutcome.FOUND]


async def test_a_text_without_a_sketch_is_not_kept(rig: CacheRig) -> None:
    await put(rig, "a", "one@0")
    text = "long" * 1000
    before = sys.getrefcount(text)
    lookup = await rig.cache.find_semantic(key(text), refuse_none)
    assert lookup.reason == "too-long"
    del lookup
    assert sys.getrefcount(text) == before


async def test_a_text_with_unknown_words_is_not_called_too_long(rig: CacheRig) -> None:
    await put(rig, "a", "one@0")
    assert (await find(rig, "🙂@0")).reason == "unknown-words"


async def test_a_near_question_is_encoded_and_so_is_the_entry(rig: CacheRig) -> None:
    await put(rig, "a", "one@0~20")
    lookup = await find(rig, "uno@10~0")
    assert lookup.entry is not None
    assert lookup.entry.id == "a"
    assert lookup.similarity == pytest.approx(0.9848, abs=1e-3)
    assert encoded(rig) == ["uno@10~0", "one@0~20"]
    assert gated(rig) == [GateOutcome.PASSED]
    assert rig.policy.hits == [False]


async def test_an_entry_is_encoded_once(rig: CacheRig) -> None:
    await put(rig, "a", "one@0")
    for number in range(3):
        assert (await find(rig, f"{number}@1")).entry is not None
    assert encoded(rig) == ["0@1", "one@0", "1@1", "2@1"]


async def test_the_neighbour_with_the_nearest_encoding_answers(rig: CacheRig) -> None:
    await put(rig, "nearest sketch", "one@20~0")
    await put(rig, "nearest encoding", "two@1~20")
    lookup = await find(rig, "uno@0")
    assert lookup.entry is not None
    assert lookup.entry.id == "nearest encoding"


async def test_the_policy_sees_the_nearest_by_their_encodings_and_the_nearest_sketch(
    rig: CacheRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[RankedNeighbor] = []
    judge = rig.policy.judge

    def note(query: str, candidate: str, nearby: RankedNeighbor, veto: str | None) -> Verdict:
        asked.append(nearby)
        return judge(query, candidate, nearby, veto)

    monkeypatch.setattr(rig.policy, "judge", note)
    for number in range(5):
        await put(rig, f"{number}", f"{number}@{0 if number == 1 else 25}~{10 * number}")
    await find(rig, "uno@0")
    await find(rig, "dos@0")
    ranked = asked[-1]
    assert ranked.neighbor.id == "1"
    far = encode_angle("@25").sentence[0]
    assert len(ranked.neighbors) > 2
    for neighbor in ranked.neighbors:
        cosine = 1.0 if neighbor.id == "1" else far
        assert neighbor.similarity == pytest.approx(cosine, abs=1e-3)
    assert ranked.sketch == pytest.approx(1.0, abs=1e-3)


async def test_a_sampled_question_below_the_gate_may_be_a_hit(rig: CacheRig) -> None:
    rig.cache._search.draw = lambda: 0.0  # type: ignore[union-attr]
    await put(rig, "a", "one@0~80")
    lookup = await find(rig, "uno@0")
    assert lookup.entry is not None
    assert rig.policy.hits == [True]
    assert (await find(rig, "uno@40~0")).entry is None
    assert gated(rig) == [GateOutcome.FOUND, GateOutcome.SAMPLED]


async def test_a_question_is_drawn_with_the_share_of_its_gate_and_a_hit_stands_for_the_others(
    rig: CacheRig,
) -> None:
    rig.policy.share = 0.01
    await put(rig, "a", "one@0~80")
    for drawn in (0.011, 0.009):
        rig.cache._search.draw = lambda drawn=drawn: drawn  # type: ignore[union-attr]
        await find(rig, "uno@0")
    seen = [each for each in rig.recorder.seen if isinstance(each, Gated)]
    assert [each.outcome for each in seen] == [GateOutcome.STOPPED, GateOutcome.FOUND]
    assert seen[1].stands_for == pytest.approx(100)


async def test_where_nothing_is_served_only_a_share_of_the_questions_is_compared(
    rig: CacheRig,
) -> None:
    rig.policy.passing, rig.policy.refusal = 0.25, "unlearned"
    await put(rig, "a", "one@0")
    for drawn, texts in ((0.26, []), (0.24, ["uno@70~0", "one@0"])):
        rig.cache._search.draw = lambda drawn=drawn: drawn  # type: ignore[union-attr]
        lookup = await find(rig, "uno@70~0")
        assert lookup.entry is None
        assert encoded(rig) == texts
        if not texts:
            assert (lookup.reason, lookup.veto, lookup.similarity) == ("veto", "unlearned", None)
    assert gated(rig) == [GateOutcome.SKIPPED, GateOutcome.PASSED]
    assert rig.policy.judged == [False]  # a question that was not compared is not counted


async def test_a_question_that_may_have_the_same_words_is_compared_in_any_case(
    rig: CacheRig,
) -> None:
    rig.policy.passing, rig.policy.refusal, rig.policy.same_words_from = 0.25, "unlearned", 0.9
    rig.cache._search.draw = lambda: 0.26  # type: ignore[union-attr]
    await put(rig, "a", "one@0")
    assert (await find(rig, "uno@0~30")).veto == "unlearned"  # its sketch is not near enough
    assert (await find(rig, "uno@0~10")).entry is not None
    assert gated(rig) == [GateOutcome.SKIPPED, GateOutcome.PASSED]


async def test_as_many_questions_below_the_gate_are_sampled_where_not_all_are_compared(
    rig: CacheRig,
) -> None:
    rig.policy.passing, rig.policy.refusal, rig.policy.share = 0.25, "unlearned", 0.01
    await put(rig, "a", "one@0")
    for drawn in ((0.2, 0.039), (0.2, 0.041)):
        rig.cache._search.draw = iter(drawn).__next__  # type: ignore[union-attr]
        await find(rig, "uno@0~80")
    assert gated(rig)[-1] is GateOutcome.STOPPED
    assert gated(rig)[0] in (GateOutcome.SAMPLED, GateOutcome.FOUND)


async def test_a_question_that_cannot_be_a_hit_does_not_wait_for_an_entry(rig: CacheRig) -> None:
    rig.policy.refusal = "unqualified"
    await put(rig, "a", "far@80")
    arrived = rig.cache.expect(key("one@0"), "")
    with anyio.fail_after(10):
        assert (await find(rig, "uno@0")).entry is None
    arrived()


async def test_the_gate_learns_whether_a_question_had_a_neighbour_to_judge(
    rig: CacheRig,
) -> None:
    await put(rig, "a", "one@70~0")
    assert (await find(rig, "uno@0")).reason == "below-threshold"
    assert (await find(rig, "dos@40~0")).reason == "below-threshold"
    assert rig.policy.judged == [False, True]


async def test_a_question_whose_neighbours_are_all_vetoed_had_none_to_judge(
    rig: CacheRig,
) -> None:
    await put(rig, "a", "not one@0~0")
    await put(rig, "b", "not two@4~4")
    assert (await find(rig, "uno@0")).reason == "veto"
    await put(rig, "c", "three@30~8")
    assert (await find(rig, "dos@0")).veto == "negation"
    assert rig.policy.judged == [False, True]


async def test_a_prompt_that_cannot_be_encoded_as_a_whole_is_never_encoded(
    rig: CacheRig,
) -> None:
    await put(rig, "a", "one@0")
    await put(rig, "b", "long@0")
    assert (await find(rig, "long@0")).reason == "too-long"
    assert encoded(rig) == []
    assert rig.index.size() == 1
    assert rig.cache.peek_exact("b") is not None


# --- entries that are not encoded yet ----------------------------------------------------------


async def test_few_entries_are_encoded_while_a_request_waits_and_some_later() -> None:
    rig = sketching()
    async with running(rig.cache):
        for number in range(20):
            await put(rig, f"{number:02}", f"{number}@0~{10 + 1.25 * number}")
        first = await find(rig, "uno@60~0")
        assert first.entry is None
        now = [text for text, background in rig.encoder.encoded if not background]
        nearest = [f"{number}@0~{10 + 1.25 * number}" for number in range(ENCODED_AT_ONCE)]
        assert now == ["uno@60~0", *nearest]
        await until(lambda: len(rig.encoder.encoded) == 1 + ENCODED_AT_ONCE + ENCODED_NEAR)
        await anyio.wait_all_tasks_blocked()
    assert len(rig.encoder.encoded) == 1 + ENCODED_AT_ONCE + ENCODED_NEAR


async def test_no_worse_neighbour_answers_while_a_nearer_one_is_not_encoded() -> None:
    rig = sketching()
    async with running(rig.cache):
        await put(rig, "far", "far@20~20")
        assert (await find(rig, "dos@20~20")).entry is not None
        for number in range(ENCODED_AT_ONCE + 1):
            await put(rig, f"{number}", f"{number}@{50 - number}~{number}")
        rig.encoder.background_turn = anyio.Event()
        lookup = await find(rig, "uno@10~0")
        assert (lookup.reason, lookup.entry, lookup.pair) == ("unencoded", None, None)
        rig.encoder.background_turn.set()
        await until(lambda: len(rig.cache._replica.vectors) == 4)
        again = await find(rig, "uno@10~0")
        assert again.entry is not None
        assert again.entry.id == "far"


async def test_a_new_entry_takes_the_encoding_of_its_lookup(rig: CacheRig) -> None:
    rig.encoder.recent["one@0"] = encode_angle("one@0")
    await put(rig, "a", "one@0")
    assert (await rows(rig))["a"].vector == pack_vector(encode_angle("one@0").sentence)
    assert (await find(rig, "uno@1")).entry is not None
    assert encoded(rig) == ["uno@1"]


async def test_a_late_vector_reaches_the_store_other_nodes_and_a_restart() -> None:
    store = FaultyStore()
    here, there = sketching(store), sketching(store)
    async with running(there.cache), running(here.cache):
        await put(here, "a", "one@0")
        await until(lambda: "a" in there.index)
        assert there.cache.peek_exact("a") is None
        await there.cache.find_exact(key("one@0", exact="a"), refuse_none)
        assert (await find(here, "uno@1")).entry is not None
        await until(lambda: "a" in there.cache._replica.vectors)
        assert (await find(there, "dos@1")).entry is not None
        assert encoded(there) == ["dos@1"]
    again = sketching(store)
    await again.cache.open()
    assert (await find(again, "tres@1")).entry is not None
    assert encoded(again) == ["tres@1"]
    assert (await store.stats()).entries == 1


async def test_a_late_vector_does_not_bring_back_a_deleted_entry() -> None:
    rig = sketching()
    async with running(rig.cache):
        await put(rig, "a", "one@0")
        rig.encoder.turn = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(find, rig, "uno@1")
            await until(lambda: rig.encoder.encoded)
            await rig.cache.invalidate(["a"])
            rig.encoder.turn.set()
        await anyio.wait_all_tasks_blocked()
        assert (await rig.store.stats()).entries == 0
        assert (await find(rig, "uno@1")).reason == "empty-partition"
    assert rig.cache._replica.vectors == {}


async def busy_miss(rig: CacheRig, id: str, text: str) -> None:
    """Miss because the encoder does not come to an end, and store the answer from upstream."""
    assert (await find(rig, text)).reason == "encoder-busy"
    await put(rig, id, text)


async def test_prompts_that_a_busy_encoder_left_out_are_encoded_in_idle_time() -> None:
    rig = sketching(max_wait_s=0.01)
    async with running(rig.cache):
        await put(rig, "a", "one@0")
        rig.encoder.turn = anyio.Event()
        await busy_miss(rig, "b", "uno@1")
        rig.encoder.turn.set()
        await until(lambda: "b" in rig.cache._replica.vectors)
        assert rig.encoder.encoded[-1] == ("uno@1", True)
        await until(lambda: rig.cache._index.size() == 2)


async def test_no_question_waits_for_the_encoding_of_what_was_left_out() -> None:
    rig = sketching(max_wait_s=0.3)
    async with running(rig.cache):
        await put(rig, "a", "one@0")
        assert (await find(rig, "eins@0")).entry is not None
        rig.encoder.turn = anyio.Event()
        await busy_miss(rig, "b", "uno@1")
        rig.encoder.turn.set()
        rig.encoder.encoded.clear()
        lookup = await find(rig, "dos@1")  # nearer to b, which is not in the index yet
        assert lookup.entry is not None
        assert lookup.entry.id == "a"
        assert encoded(rig)[0] == "dos@1"
        assert ("uno@1", False) not in rig.encoder.encoded
        await until(lambda: rig.cache._index.size() == 2)
        lookup = await find(rig, "tres@1")
        assert lookup.entry is not None
        assert lookup.entry.id == "b"


async def test_an_entry_that_was_left_out_is_found_after_a_restart() -> None:
    store = FaultyStore()
    rig = sketching(store, max_wait_s=0.01)
    await rig.cache.open()
    await put(rig, "a", "one@0")
    rig.encoder.turn = anyio.Event()
    await busy_miss(rig, "b", "uno@1")
    assert rig.cache._index.size() == 1
    again = sketching(store)
    await again.cache.open()
    assert again.cache._index.size() == 2


async def test_an_entry_that_was_left_out_and_deleted_does_not_come_back() -> None:
    rig = sketching(max_wait_s=0.01)
    async with running(rig.cache):
        await put(rig, "a", "one@0")
        rig.encoder.turn = anyio.Event()
        await busy_miss(rig, "b", "uno@1")
        await rig.cache.invalidate(["b"])
        rig.encoder.turn.set()
        await anyio.wait_all_tasks_blocked()
        assert rig.cache._index.size() == 1
        assert rig.cache._replica.vectors == {}


async def test_an_entry_that_was_left_out_joins_the_index_if_its_encoding_fails() -> None:
    rig = sketching(max_wait_s=0.01)
    async with running(rig.cache):
        await put(rig, "a", "one@0")
        rig.encoder.turn = anyio.Event()
        await busy_miss(rig, "b", "uno@1")
        rig.encoder.error = EncoderError("broken")
        rig.encoder.turn.set()
        await until(lambda: rig.cache._index.size() == 2)
        rig.encoder.error = None
        with anyio.fail_after(10):
            while (lookup := await find(rig, "dos@1")).reason == "unencoded":
                pass  # a busy machine may take longer to encode than a question waits
        assert lookup.entry is not None
        assert lookup.entry.id == "b"


async def test_entries_beyond_those_that_may_wait_join_the_index_with_their_sketch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headstart.embeddings.entry_encoder.MOST_WANTED", 2)
    rig = sketching(max_wait_s=0.01)
    await rig.cache.open()
    await put(rig, "a", "one@0")
    rig.encoder.turn = anyio.Event()
    for number in range(4):
        await busy_miss(rig, f"late {number}", f"{number}@1")
    assert rig.cache._index.size() == 1
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.cache.run)
        await until(lambda: rig.cache._index.size() == 3)
        tasks.cancel_scope.cancel()


async def test_an_encoder_that_fails_makes_a_miss_and_the_entry_waits(rig: CacheRig) -> None:
    await put(rig, "a", "one@0")
    rig.encoder.error = EncoderError("broken")
    assert (await find(rig, "uno@1")).reason == "encoder-error"
    rig.encoder.error = None
    assert (await find(rig, "uno@1")).entry is not None


async def test_a_cancelled_lookup_leaves_the_entry_to_the_next(rig: CacheRig) -> None:
    await put(rig, "a", "one@0")
    rig.encoder.turn = anyio.Event()
    with anyio.move_on_after(0.01):
        await find(rig, "uno@1")
    rig.encoder.turn.set()
    assert (await find(rig, "uno@1")).entry is not None


# --- entries on their way ----------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "waits"), [("uno@1", True), ("far@80", False)])
async def test_only_a_near_question_waits_for_an_entry_on_its_way(
    rig: CacheRig, asked: str, waits: bool
) -> None:
    rig.cache._search.draw = lambda: 0.5  # type: ignore[union-attr]
    arrived = rig.cache.expect(key("one@0"), "")
    found: list[Lookup] = []

    async def ask() -> None:
        found.append(await find(rig, asked))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        assert (found == []) is waits
        await put(rig, "a", "one@0")
        arrived()
    assert (found[0].entry is not None) is waits


async def test_a_question_that_waits_for_an_entry_keeps_the_gate_at_which_it_was_drawn(
    rig: CacheRig,
) -> None:
    rig.policy.share = 0.01
    rig.cache._search.draw = lambda: 0.0  # type: ignore[union-attr]
    await put(rig, "a", "far@80")
    arrived = rig.cache.expect(key("one@0~20"), "")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(find, rig, "uno@0")
        await anyio.wait_all_tasks_blocked()
        rig.policy.least, rig.policy.share = 0.99, 0.5
        await put(rig, "b", "one@0~20")
        arrived()
    assert gated(rig) == [GateOutcome.PASSED]
    assert rig.policy.hits == [False]


# --- stores of earlier versions ----------------------------------------------------------------


@pytest.mark.parametrize("table", ["", "older table"])
async def test_an_entry_without_a_sketch_of_this_table_is_sketched_from_its_question(
    table: str,
) -> None:
    store = FaultyStore()
    older = CacheRig(store) if not table else sketching(store, table=table)
    await older.cache.open()
    await put(older, "a", "one@0")
    rig = sketching(store)
    async with running(rig.cache):
        await until(lambda: "a" in rig.index)
        assert (await find(rig, "uno@1")).entry is not None
        assert encoded(rig) == (["uno@1", "one@0"] if table else ["uno@1"])
        await until(lambda: rig.store.calls.count("append") > 1)
    row = (await rows(rig))["a"]
    assert row.sketch is not None
    assert row.sketch.table == "table"
    assert row.vector == pack_vector(encode_angle("one@0").sentence)


async def test_an_entry_waits_once_for_its_sketch_however_often_the_store_is_read() -> None:
    older = CacheRig(FaultyStore())
    await older.cache.open()
    await put(older, "a", "one@0")
    hot = HotTier(1 << 20, lambda: older.now)
    index = FaissIndex(SKETCH_DIMENSION)
    replica = Replica(older.store, index, hot, older.encoder.namespace, older.recorder, "table")
    await replica.load()
    await replica.load()
    assert len(replica.unsketched) == 1


async def test_an_entry_with_the_parse_of_another_version_is_encoded_again(
    rig: CacheRig,
) -> None:
    await put(rig, "a", "one@0")
    assert (await find(rig, "uno@1")).entry is not None
    await rig.cache.aclose()
    newer = sketching(rig.store)
    newer.policy.parse_version = "fake-2"
    await newer.cache.open()
    assert (await find(newer, "uno@1")).entry is not None
    assert encoded(newer) == ["uno@1", "one@0"]
    assert (await find(newer, "dos@1")).entry is not None
    assert encoded(newer) == ["uno@1", "one@0", "dos@1"]


async def test_a_question_goes_in_the_name_of_its_tenant(rig: CacheRig) -> None:
    await put(rig, "a", "one@0")
    await rig.cache.find_semantic(key("uno@1"), refuse_none, MatchContext(tenant="bob"))
    assert rig.encoder.tenants == ["bob", "bob"]


async def test_a_sketch_alone_is_what_the_store_gets_at_first(rig: CacheRig) -> None:
    await put(rig, "a", "one@0")
    row = (await rows(rig))["a"]
    assert (row.vector, row.sketch is not None) == (None, True)
    assert rig.encoder.encoded == []
    stored = await rig.store.find("a")
    assert stored is not None
    assert (stored.evidence, stored.encoder) == (b"", "")
    await rig.store.append([Put(entry=make_entry("b"))])
    assert set(await rows(rig)) == {"a"}
