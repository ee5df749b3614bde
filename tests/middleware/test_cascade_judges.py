"""Judges of a cascade: which are asked, what they cost, what they learn."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headstart.attempts import RoutingEstimate
from headstart.errors import UpstreamError, UpstreamRefused
from headstart.types import ChatRequest, Completion, LogprobsDelta, Started, TextDelta
from support.candidates import Actor, Candid, Targets, chat_call, say, whole
from support.cascades import REFUSAL, ask, asking, broken, cascade, fast_says, slow_says

if TYPE_CHECKING:
    from headstart.middleware.upstreams.cascade import Cascade

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]


@pytest.mark.parametrize(
    ("judge", "answer", "passes"),
    [
        (("refusal",), REFUSAL, False),
        (("format",), REFUSAL, True),
        (("format",), "3 + 4 = 8", False),
        (("refusal",), "3 + 4 = 8", True),
        ((), "anything", True),
    ],
)
async def test_only_the_judges_that_were_asked_for_have_a_veto(
    judge: Any, answer: str, passes: bool
) -> None:
    upstream = cascade(Targets(), fast_says(answer), slow_says("strong"), judge=judge)
    said, transforms = await ask(upstream)
    assert (said == answer) == passes
    assert transforms == ("cascade:fast" if passes else "cascade:slow",)


async def test_agreement_asks_twice_and_books_the_second_as_judge() -> None:
    for second, expected in (("Paris.", "cascade:fast"), ("Lyon.", "cascade:slow")):
        targets = Targets()
        fast = Actor("fast", [whole("Paris."), whole(second)])
        upstream = cascade(
            targets, fast, slow_says("Rome."), judge=("agreement",), min_confidence=0.6
        )
        _, transforms = await ask(upstream)
        assert transforms == (expected,)
        assert ("fast", "judge") in targets.roles()
        assert targets.outcomes()[1] == ("fast", "lost")


async def test_the_second_draft_may_fail() -> None:
    fast = Actor("fast", [whole("Paris."), [UpstreamError("gone")]])
    upstream = cascade(
        Targets(), fast, slow_says("Rome."), judge=("agreement",), min_confidence=0.0
    )
    assert await ask(upstream) == ("Paris.", ("cascade:fast",))


SURE = LogprobsDelta(value={"content": [{"token": "a", "logprob": -0.001}]})
UNSURE = LogprobsDelta(value={"content": [{"token": "a", "logprob": -6.0}]})


@pytest.mark.parametrize(("word", "mark"), [(SURE, "fast"), (UNSURE, "slow")])
async def test_logprobs_are_asked_for_and_taken_out_again(word: LogprobsDelta, mark: str) -> None:
    targets = Targets()
    pieces = [
        say(Started(id="up-1", model="m", created=1)),
        say(TextDelta(text="a"), word),
        *whole()[1:],
    ]
    fast = Actor("fast", [pieces])
    upstream = cascade(targets, fast, slow_says("s"), judge=("logprob",), min_confidence=0.6)
    async with await upstream.send(chat_call()) as reply:
        data = b"".join([piece.data async for piece in reply.pieces])
        assert reply.transforms[-1] == f"cascade:{mark}"
    assert msgspec.json.decode(fast.calls[0].body)["logprobs"] is True
    if mark == "fast":
        assert reply.transforms == ("logprobs", "cascade:fast")
        assert b'"content":"a"' in data
        assert b"up-1" in data
        assert data.endswith(b"data: [DONE]\n\n")
        assert b"-0.001" not in data


async def test_a_callers_own_logprobs_pass_untouched() -> None:
    pieces = [say(Started(id="u")), say(TextDelta(text="a"), SURE), *whole()[1:]]
    fast = Actor("fast", [pieces])
    upstream = cascade(Targets(), fast, slow_says("s"), judge=("logprob",))
    async with await upstream.send(asking("Why?", logprobs=True)) as reply:
        data = b"".join([piece.data async for piece in reply.pieces])
    assert b"-0.001" in data
    assert reply.transforms == ("cascade:fast",)


async def test_a_model_that_refuses_logprobs_is_asked_without_and_never_again_with() -> None:
    refusal = UpstreamRefused("logprobs?", status=400, headers=(), body=b"", code="x")
    fast = Actor("fast", [[refusal], whole("Fine.")])
    upstream = cascade(Targets(), fast, slow_says("s"), judge=("logprob",), min_confidence=0.1)
    for _ in range(2):
        assert await ask(upstream) == ("Fine.", ("cascade:fast",))
    assert [b"logprobs" in call.body for call in fast.calls] == [True, False, False]


async def test_own_judges_veto_and_score() -> None:
    seen: list[str] = []

    def veto(request: ChatRequest, draft: Completion) -> bool:
        seen.append(draft.model)
        return False

    def fails(request: ChatRequest, draft: Completion) -> bool:
        raise KeyError(draft.model)

    async def slowly(request: ChatRequest, draft: Completion) -> float:
        await asyncio.sleep(0)
        return 0.1

    for own, mark in (
        ((veto,), "slow"),
        ((fails,), "slow"),
        ((lambda *_: True,), "fast"),
        ((lambda *_: 0.9,), "fast"),
        ((lambda *_: 0.9, lambda *_: 0.1), "slow"),
        ((slowly,), "slow"),
    ):
        upstream = cascade(Targets(), fast_says("a"), slow_says("b"), *own)
        assert (await ask(upstream))[1] == (f"cascade:{mark}",)
    assert seen == ["m"]


async def test_an_own_judge_that_fails_is_logged_without_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(request: ChatRequest, draft: Completion) -> float:
        raise KeyError(request.query)

    await ask(cascade(Targets(), fast_says("a"), slow_says("b"), fails), asking("my secret"))
    assert "KeyError" in caplog.text
    assert "secret" not in caplog.text


async def test_an_own_judge_ends_with_its_client() -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def never(request: ChatRequest, draft: Completion) -> bool:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return True

    targets, slow = Targets(), slow_says("b")
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(ask(cascade(targets, fast_says("a"), slow, never)))
        await asked.wait()
        asking.cancel()
    assert ended.is_set()
    assert slow.calls == []
    assert targets.outcomes() == [("fast", "abandoned")]


async def test_escalations_teach_what_a_score_is_worth() -> None:
    upstream = cascade(
        Targets(),
        fast_says("42"),
        Actor("slow", [*([whole("42")] * 40)]),
        lambda *_: 0.45,
        min_confidence=0.5,
    )
    marks = [(await ask(upstream))[1][0] for _ in range(12)]
    assert marks[0] == "cascade:slow"
    assert marks[-1] == "cascade:fast", "the strong model always said the same"
    other = cascade(Targets(), fast_says("42"), slow_says("42"), lambda *_: 0.45)
    other.panel.load(upstream.panel.saved())
    assert (await ask(other))[1] == ("cascade:fast",)


async def test_an_unreadable_state_of_an_earlier_run_is_ignored() -> None:
    panel = cascade(Targets(), fast_says(), slow_says()).panel
    before = panel.saved()
    for data in (b"", b"{}", before.replace(b'"version":1', b'"version":2')):
        panel.load(data)
    assert panel.saved() == before


async def test_a_checked_call_is_answered_by_the_strong_model_and_its_draft_teaches() -> None:
    targets, fast = Targets(), fast_says("41")
    slow = Actor("slow", [[*whole("42")]], before=[20])
    upstream = cascade(targets, fast, slow, lambda *_: 0.95, draw=0.0)
    for _ in range(20):
        assert await ask(upstream) == ("42", ("cascade:slow",))
        assert sorted(targets.outcomes()) == [("fast", "rejected"), ("slow", "won")]
        targets.ledger.take("call")
    upstream.draw = lambda: 1.0
    assert (await ask(upstream))[1] == ("cascade:slow",), "a sure judge was always wrong"


async def test_a_checked_call_whose_strong_model_fails_is_judged_as_any_other() -> None:
    targets = Targets()
    upstream = cascade(targets, fast_says("ok"), broken("slow"), lambda *_: 0.9, draw=0.0)
    assert await ask(upstream) == ("ok", ("cascade:fast",))
    assert sorted(targets.outcomes()) == [("fast", "won"), ("slow", "failed")]


async def test_judges_that_only_veto_need_no_checks() -> None:
    slow = slow_says("b")
    assert (await ask(cascade(Targets(), fast_says("a"), slow, draw=0.0)))[0] == "a"
    assert slow.calls == []


def priced(targets: Targets, ratio: float, draw: float, judge: Any) -> Cascade:
    """Return a cascade whose strong model costs ``ratio`` times what the fast one does."""
    fast = Candid(
        targets.target(fast_says("a")), lambda _: RoutingEstimate(name="fast", cost_usd=1.0)
    )
    slow = Candid(
        targets.target(slow_says("b")), lambda _: RoutingEstimate(name="slow", cost_usd=ratio)
    )
    return cascade(targets, fast, slow, judge, draw=draw)


async def test_a_dear_strong_model_checks_more_seldom_but_never_not_at_all() -> None:
    for ratio, draw, said in ((1, 0.015, "b"), (60, 0.015, "a"), (60, 0.0005, "b")):
        upstream = priced(Targets(), ratio, draw, lambda *_: 0.95)
        assert (await ask(upstream))[0] == said


async def test_where_much_is_escalated_checks_cost_less_than_the_rest_and_are_made() -> None:
    passes = False
    upstream = priced(Targets(), 60, 0.015, lambda *_: passes)
    for _ in range(5):
        assert (await ask(upstream))[1] == ("cascade:slow",)
    passes = True
    assert (await ask(upstream))[1] == ("cascade:slow",), "a passing draft was checked"
