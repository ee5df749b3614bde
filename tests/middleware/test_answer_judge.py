"""Judging a fresh answer: words, the encoder and, where both are unsure, a model."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import msgspec
import numpy as np
import pytest

from headstart.decisions import Encoding, Outcome
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.errors import EncoderError, UpstreamUnreachable
from headstart.middleware.learning.learner import AnswerJudge, CallBudget, ModelJudge
from headstart.middleware.upstreams.http import HTTPUpstream
from headstart.observe import Served, StageFailed
from headstart.policies.cost import Price
from headstart.settings import UpstreamSettings
from support.entries import answer
from support.fakes import Recorder, make_entry
from support.patience import PATIENCE_S
from support.scripted import ScriptedUpstream
from support.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from numpy.typing import NDArray

    from headstart.types import Entry

pytestmark = pytest.mark.anyio

OSLO = "Oslo has about seven hundred thousand inhabitants and lies at the end of a fjord."
BERGEN = "Bergen, which lies on the west coast, is known for its rain and a row of old houses."
NEARLY = "Oslo lies at the end of a fjord, and more than half a million people live in the town."


def stored(text: str) -> Entry:
    return msgspec.structs.replace(make_entry("e"), answer=answer(text))


class Broken:
    """An encoder that cannot encode."""

    namespace = "broken"

    def is_full(self, tenant: str) -> bool:
        return False

    async def encode(
        self, text: str, *, background: bool = False, tenant: str = "", priority: float = 0.0
    ) -> Encoding:
        raise EncoderError("no model")


class Opinion:
    """A second opinion that is counted."""

    def __init__(self, word: bool | Exception | None) -> None:
        self.word = word
        self.asked = 0

    async def same(self, question: str, cached: object, fresh: object) -> bool | None:
        self.asked += 1
        if isinstance(self.word, UpstreamUnreachable):
            raise self.word
        assert not isinstance(self.word, Exception)
        return self.word


async def test_equal_answers_need_neither_encoder_nor_model() -> None:
    recorder, opinion = Recorder(), Opinion(False)
    judge = AnswerJudge(Broken(), recorder, opinion)
    found = await judge.compare(stored(OSLO), "What of Oslo?", answer(OSLO))
    assert found.same is True
    assert (opinion.asked, recorder.seen) == (0, [])


async def test_a_broken_encoder_leaves_the_words_to_judge_and_is_told() -> None:
    recorder = Recorder()
    judge = AnswerJudge(Broken(), recorder)
    found = await judge.compare(stored(OSLO), "What of Oslo?", answer(NEARLY))
    assert found.same is not False
    assert recorder.seen == [StageFailed(stage="encoder", error="EncoderError")]


async def test_pairs_that_words_settle_are_not_encoded() -> None:
    recorder = Recorder()
    judge = AnswerJudge(Broken(), recorder)
    found = await judge.compare(stored(OSLO), "What of Oslo?", answer(BERGEN))
    assert found.same is False
    assert recorder.seen == []


def drawing(cosine: float) -> Callable[[str], NDArray[np.float32]]:
    """Return a sketcher by which any two texts have this cosine."""
    sketches = iter([(1.0, 0.0), (cosine, (1 - cosine**2) ** 0.5)])
    return lambda _: np.array(next(sketches), np.float32)


@pytest.mark.parametrize(
    ("cosine", "same"), [(0.0, False), (1.0, True)], ids=["far apart", "nearly equal"]
)
async def test_sketches_settle_what_no_probable_encoding_would_change(
    cosine: float, *, same: bool
) -> None:
    recorder = Recorder()
    judge = AnswerJudge(Broken(), recorder, sketch=drawing(cosine))
    found = await judge.compare(stored(OSLO), "What of Oslo?", answer(NEARLY))
    assert found.same is same
    assert recorder.seen == []


async def test_pairs_that_sketches_leave_open_are_encoded() -> None:
    recorder = Recorder()
    judge = AnswerJudge(Broken(), recorder, sketch=drawing(0.6))
    await judge.compare(stored(OSLO), "What of Oslo?", answer(NEARLY))
    assert recorder.seen == [StageFailed(stage="encoder", error="EncoderError")]


async def test_texts_without_a_known_word_are_encoded() -> None:
    recorder = Recorder()
    judge = AnswerJudge(Broken(), recorder, sketch=lambda _: np.zeros(2, np.float32))
    await judge.compare(stored(OSLO), "What of Oslo?", answer(NEARLY))
    assert recorder.seen == [StageFailed(stage="encoder", error="EncoderError")]


def unsure() -> tuple[str, str]:
    """Two answers that words alone do not settle."""
    return "I cannot help with that.", "Sorry, but I don't know the answer."


@pytest.mark.parametrize("word", [True, False, None])
async def test_where_words_are_unsure_the_model_decides(word: bool | None) -> None:
    one, other = unsure()
    opinion = Opinion(word)
    judge = AnswerJudge(None, Recorder(), opinion)
    assert (await judge.compare(stored(one), "Why?", answer(other))).same is word
    assert opinion.asked == 1


async def test_a_model_that_fails_leaves_it_unsure_and_is_told() -> None:
    one, other = unsure()
    recorder = Recorder()
    judge = AnswerJudge(None, recorder, Opinion(UpstreamUnreachable("down")))
    assert (await judge.compare(stored(one), "Why?", answer(other))).same is None
    assert recorder.seen == [StageFailed(stage="judge", error="UpstreamUnreachable")]


@asynccontextmanager
async def asking(
    provider: ScriptedUpstream, recorder: Recorder, calls: int | None = None
) -> AsyncIterator[ModelJudge]:
    """A judge that is a model behind a real socket."""
    dialect = OPENAI_CHAT
    price = Price(input_per_million=1.0, output_per_million=2.0)
    async with serving(provider) as url:
        options = UpstreamSettings(name="judge", base_url=url)
        upstream = HTTPUpstream(options, credential=())
        try:
            yield ModelJudge(
                upstream,
                dialect,
                "m",
                CallBudget(calls, None, lambda: 0.0),
                price=lambda *_: price,
                clock=lambda: 1000.0,
                new_id=lambda: "id",
                observer=recorder,
            )
        finally:
            await upstream.aclose()


@pytest.mark.parametrize(
    ("words", "same"), [(["SAME"], True), (["DIFF", "ERENT"], False), (["Well, SAME"], None)]
)
async def test_the_model_is_asked_once_and_its_call_is_booked(
    words: list[str], same: bool | None
) -> None:
    provider, recorder = ScriptedUpstream(), Recorder()
    provider.words = words
    async with asking(provider, recorder) as judge:
        assert await judge.same("What of it?", answer(OSLO), answer(BERGEN)) is same
    (call,) = provider.calls
    assert (call.json["model"], call.json["temperature"]) == ("m", 0)
    assert OSLO in call.json["messages"][1]["content"]
    (row,) = [seen for seen in recorder.seen if isinstance(seen, Served)]
    assert (row.outcome, row.reason, row.cost_usd) == (Outcome.AUDIT, "judge", 70e-6)


async def test_past_its_allowance_the_model_is_not_asked() -> None:
    provider = ScriptedUpstream()
    provider.words = ["SAME"]
    async with asking(provider, Recorder(), calls=1) as judge:
        with anyio.fail_after(PATIENCE_S):
            verdicts = [await judge.same("Q", answer(OSLO), answer(BERGEN)) for _ in range(2)]
    assert verdicts == [True, None]
    assert len(provider.calls) == 1
