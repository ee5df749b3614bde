"""Comparisons of answers: broken judges, slow models, bounds. And the places that audits take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from headstart.decisions import LabelSource, Outcome, UnlabelledPair, Verdict
from headstart.embeddings.stores.memory import MemoryStore
from headstart.errors import Overloaded
from headstart.middleware.concurrency import ConcurrencyLimit
from headstart.middleware.learning import learner as learner_module
from headstart.middleware.learning.learner import (
    AnswerJudge,
    FeedbackSample,
    Learner,
    PendingComparison,
)
from headstart.observe import StageFailed
from headstart.policies.learned_rule.features import VERSION
from headstart.types import new_ulid
from support.booked import served
from support.entries import answer
from support.fakes import FaultyStore, Recorder, make_entry
from support.learned import failed, make_domains, running

if TYPE_CHECKING:
    from headstart.middleware.learning.learner import SecondOpinion

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]

SURE = "It is 42."
VAGUE, VAGUER = "Lima", "Lima, Peru"
"""The judge cannot tell whether they say the same."""


def sample(id: str, text: str = SURE) -> FeedbackSample:
    entry = msgspec.structs.replace(make_entry(f"e-{id}", query="What is it?"), answer=answer(text))
    pair = UnlabelledPair(domain="d", entry=entry, verdict=Verdict(serves=True, similarity=0.9))
    return FeedbackSample(id, pair, LabelSource.AUDIT, "What is it?", "someone", served=True)


def make_learner(
    store: MemoryStore, recorder: Recorder, opinion: SecondOpinion | None = None
) -> Learner:
    judge = AnswerJudge(None, recorder, opinion)
    domains = make_domains(store, recorder)
    return Learner(store, domains, judge, version=VERSION, clock=lambda: 1000.0, observer=recorder)


async def labelled(store: MemoryStore, count: int) -> set[str]:
    """Wait for so many labels, and return the requests that were labelled."""
    with anyio.fail_after(10):
        while len(rows := await store.read_labels()) < count:
            await anyio.sleep(0.005)
    return {label.id for _, label in rows}


class Opinion:
    """A model that is asked: ``SURE`` answers never reach it. Slow, broken or both."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.turn = anyio.Event()

    async def same(self, question: str, cached: object, fresh: object) -> bool | None:
        if self.error is not None:
            raise self.error
        await self.turn.wait()
        return True


async def test_a_comparison_that_breaks_the_judge_costs_its_own_label_alone() -> None:
    store, recorder = MemoryStore(), Recorder()
    learner = make_learner(store, recorder, Opinion(RecursionError("too deep")))
    async with running(learner):
        learner.submit(PendingComparison(sample("vague", VAGUE), answer(VAGUER), stored=True))
        await failed(recorder, "RecursionError")
        learner.submit(PendingComparison(sample("sure"), answer(SURE), stored=True))
        assert await labelled(store, 1) == {"sure"}


async def test_a_model_that_takes_its_time_holds_up_no_other_comparison() -> None:
    store, recorder, opinion = MemoryStore(), Recorder(), Opinion()
    learner = make_learner(store, recorder, opinion)
    async with running(learner):
        learner.submit(PendingComparison(sample("vague", VAGUE), answer(VAGUER), stored=True))
        for number in range(20):
            learner.submit(PendingComparison(sample(f"sure-{number}"), answer(SURE), stored=True))
        assert "vague" not in await labelled(store, 20)
        opinion.turn.set()
        assert "vague" in await labelled(store, 21)


async def test_a_model_that_never_answers_leaves_the_answers_unsure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headstart.middleware.learning.learner.OPINION_S", 0.01)
    store, recorder = MemoryStore(), Recorder()
    learner = make_learner(store, recorder, Opinion())
    async with running(learner):
        learner.submit(PendingComparison(sample("vague", VAGUE), answer(VAGUER), stored=True))
        await labelled(store, 1)
    ((_, label),) = await store.read_labels()
    assert label.same is None
    assert StageFailed(stage="judge", error="TimeoutError") in recorder.seen


async def test_a_label_that_cannot_be_written_is_lost_and_told_and_the_next_is_written() -> None:
    store, recorder = FaultyStore(), Recorder()
    learner = make_learner(store, recorder)
    async with running(learner):
        store.failing = {"add_labels"}
        learner.submit(PendingComparison(sample("lost"), answer(SURE), stored=True))
        await failed(recorder, "StoreError")
        store.failing = set()
        learner.submit(PendingComparison(sample("kept"), answer(SURE), stored=True))
        assert await labelled(store, 1) == {"kept"}


@pytest.mark.parametrize(
    ("bound", "most"), [("MOST_WAITING_CHARS", 3 * len(SURE)), ("MOST_WAITING", 3)]
)
async def test_waiting_comparisons_are_bounded(
    bound: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner_module, bound, most)
    store, recorder = MemoryStore(), Recorder()
    learner = make_learner(store, recorder)
    for number in range(5):
        learner.submit(PendingComparison(sample(str(number)), answer(SURE), stored=True))
    dropped = [each.error for each in recorder.seen if isinstance(each, StageFailed)]
    assert dropped == ["WouldBlock"] * 2
    async with running(learner):
        assert await labelled(store, 3) == {"0", "1", "2"}
        learner.submit(PendingComparison(sample("again"), answer(SURE), stored=True))
        assert "again" in await labelled(store, 4)


async def test_a_comparison_submitted_after_the_end_is_only_reported() -> None:
    recorder = Recorder()
    learner = make_learner(MemoryStore(), recorder)
    async with running(learner):
        await anyio.lowlevel.checkpoint()
    learner.submit(PendingComparison(sample("late"), answer(SURE), stored=True))
    assert recorder.seen == [StageFailed(stage="learner", error="ClosedResourceError")]


async def test_a_megabyte_of_answers_is_judged_off_the_loop() -> None:
    store, recorder = MemoryStore(), Recorder()
    learner = make_learner(store, recorder)
    rows: list[dict[str, Any]] = [{"row": number} for number in range(2000)]
    document = msgspec.json.encode(rows).decode()
    async with running(learner):
        learner.submit(PendingComparison(sample("long", document), answer(document), stored=True))
        await labelled(store, 1)
    ((_, label),) = await store.read_labels()
    assert label.same is True


async def test_recent_requests_are_remembered_without_their_answers() -> None:
    learner = make_learner(MemoryStore(), Recorder())
    learner.remember(sample("q", VAGUE * 1000))
    remembered = learner.recall("q")
    assert remembered is not None
    assert remembered.pair.entry.id == "e-q"
    assert len(msgspec.msgpack.encode(remembered)) < 1000
    async with running(learner):
        assert await learner.feedback("q", same=False)
        await anyio.lowlevel.checkpoint()


async def test_a_word_on_a_hit_of_another_process_holds_when_it_is_taken() -> None:
    """Nothing reads labels in the background here."""
    store = MemoryStore()
    hit = new_ulid(lambda: 1000.0)
    await store.add_to_books([served(Outcome.SEMANTIC, id=hit, entry="wrong")])
    learner = make_learner(store, Recorder())
    assert not learner.domains.vetoes.refuses("wrong", "What is it?")
    assert await learner.feedback(hit, same=False)
    assert learner.domains.vetoes.refuses("wrong", "What is it?")
    ((_, label),) = await store.read_labels()
    await learner.review(label, same=True)
    assert not learner.domains.vetoes.refuses("wrong", "What is it?")
    async with running(learner):
        await anyio.lowlevel.checkpoint()


async def test_calls_that_nobody_waits_for_take_only_half_of_the_places() -> None:
    concurrency = ConcurrencyLimit(4, 0)
    with concurrency.spare(), concurrency.spare():
        with pytest.raises(Overloaded), concurrency.spare():
            pass
        async with concurrency, concurrency:
            assert concurrency.active == 4
            with pytest.raises(Overloaded):
                await concurrency.__aenter__()
    assert concurrency.active == 0
    with concurrency.spare():
        assert concurrency.active == 1


async def test_a_spare_place_goes_to_a_client_that_waits() -> None:
    concurrency = ConcurrencyLimit(1, 1)
    entered = anyio.Event()

    async def client() -> None:
        async with concurrency:
            entered.set()

    async with anyio.create_task_group() as tasks:
        with concurrency.spare():
            tasks.start_soon(client)
            await anyio.lowlevel.checkpoint()
            assert not entered.is_set()
        await entered.wait()
    assert concurrency.active == 0
