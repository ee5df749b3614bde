"""Cascades: which draft is served, who is asked when, what ends, what is booked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headstart.attempts import Outlook
from headstart.errors import UpstreamError, UpstreamRefused, UpstreamUnavailable
from headstart.middleware.upstreams.cascade import Cascade, CascadeOptions
from headstart.policies.cascade.scores import score_prompt
from headstart.policies.routing.hedging import ExtraBudget
from headstart.types import Finished, LogprobsDelta, Started, TextDelta
from support.candidates import (
    DIALECTS,
    UNIX,
    Actor,
    Candid,
    House,
    chat_call,
    read,
    say,
    whole,
)

if TYPE_CHECKING:
    from headstart.interfaces import Candidate
    from headstart.types import Call, ChatRequest, Completion
    from support.candidates import Step

pytestmark = pytest.mark.anyio

REFUSAL = "I'm sorry, but I can't help with that."
HARD = "If every box holds twice as many apples as 3/4 of the rest, how many are left in total?"


def cascade(
    house: House,
    fast: Actor | Candidate,
    slow: Actor | Candidate,
    *own: Any,
    draw: float = 1.0,
    **options: Any,
) -> Cascade:
    members = [house.target(each) if isinstance(each, Actor) else each for each in (fast, slow)]
    return Cascade(
        "cascade",
        *members,
        CascadeOptions(**options),
        ledger=house.ledger,
        dialects=DIALECTS,
        extra=ExtraBudget(1.0, 100.0),
        draw=lambda: draw,
        clock=lambda: UNIX,
        judges=own,
    )


def fast_says(*words: str) -> Actor:
    return Actor("fast", [whole(*words)])


def slow_says(*words: str) -> Actor:
    return Actor("slow", [whole(*words)])


def broken(name: str) -> Actor:
    return Actor(name, [[UpstreamRefused("down", status=500, headers=(), body=b"", code="x")]])


def asking(prompt: str, **fields: Any) -> Call:
    call = chat_call()
    document = {
        "model": "m",
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        **fields,
    }
    body = msgspec.json.encode(document)
    return msgspec.structs.replace(
        call, body=body, request=DIALECTS[call.dialect].parse_request(body)
    )


async def ask(upstream: Cascade, call: Call | None = None) -> tuple[str, tuple[str, ...]]:
    async with upstream.stream(call or chat_call()) as reply:
        return await read(reply), reply.transforms


async def test_a_draft_that_passes_is_replayed_byte_for_byte_and_nobody_else_is_asked() -> None:
    house, fast, slow = House(), fast_says("a", "b"), slow_says("no")
    async with cascade(house, fast, slow).stream(chat_call()) as reply:
        assert reply.transforms == ("cascade:fast",)
        assert reply.storable
        assert fast.open == 0, "it was read to its end"
        data = b"".join([piece.data async for piece in reply.chunks()])
    assert data == b"".join(piece.data for piece in whole("a", "b"))  # type: ignore[union-attr]
    assert slow.calls == []
    assert house.outcomes() == [("fast", "won")]
    assert house.roles() == [("fast", "draft")]


async def test_a_vetoed_draft_is_never_seen_and_the_strong_model_streams_live() -> None:
    house, more = House(), asyncio.Event()
    slow = Actor("slow", [[*whole("yes")[:2], more, *whole("yes")[2:]]])
    async with cascade(house, fast_says(REFUSAL), slow).stream(chat_call()) as reply:
        chunks = reply.chunks()
        first = [await anext(chunks), await anext(chunks)]
        assert b"yes" in first[1].data
        more.set()
        async for _ in chunks:
            pass
        assert reply.transforms == ("cascade:slow",)
        assert reply.storable
    assert house.outcomes() == [("fast", "rejected"), ("slow", "won")]
    assert house.roles() == [("fast", "draft"), ("slow", "escalation")]
    house.ledger.take("call")
    assert len(house.ledger) == 0, "rulings are forgotten with the call"


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
    upstream = cascade(House(), fast_says(answer), slow_says("strong"), judge=judge)
    said, transforms = await ask(upstream)
    assert (said == answer) == passes
    assert transforms == ("cascade:fast" if passes else "cascade:slow",)


FAILING: dict[str, list[Step]] = {
    "refused": [UpstreamRefused("no", status=404, headers=(), body=b"", code="x")],
    "cut": [*whole("half")[:2]],
    "breaks off": [*whole("half")[:2], UpstreamError("gone")],
    "nothing": [],
}


@pytest.mark.parametrize("failing", FAILING)
async def test_where_the_draft_fails_the_strong_model_is_asked_at_once(failing: str) -> None:
    house, slow = House(), slow_says("strong")
    said = await ask(cascade(house, Actor("fast", [FAILING[failing]]), slow))
    assert said == ("strong", ("cascade:slow",))
    assert house.roles()[1] == ("slow", "fallback")
    assert house.outcomes()[1] == ("slow", "won")


async def test_a_doubted_draft_is_better_than_none_but_is_not_stored() -> None:
    house = House()
    upstream = cascade(house, fast_says("so so"), broken("slow"), lambda *_: 0.2)
    async with upstream.stream(chat_call()) as reply:
        assert (await read(reply), reply.transforms) == ("so so", ("cascade:draft",))
        assert not reply.storable
    assert house.outcomes() == [("fast", "won"), ("slow", "failed")]


async def test_a_vetoed_draft_is_not_served_even_if_nobody_else_answers() -> None:
    house = House()
    with pytest.raises(UpstreamRefused) as caught:
        await ask(cascade(house, fast_says(REFUSAL), broken("slow")))
    assert caught.value.status == 500
    assert house.outcomes() == [("fast", "rejected"), ("slow", "failed")]


async def test_where_both_fail_the_strong_models_words_are_handed_over() -> None:
    slow = Actor("slow", [[UpstreamRefused("s", status=503, headers=(), body=b"s", code="x")]])
    with pytest.raises(UpstreamRefused) as caught:
        await ask(cascade(House(), broken("fast"), slow))
    assert caught.value.body == b"s"


def early(house: House, fast: Actor, slow: Actor) -> Cascade:
    upstream = cascade(house, fast, slow, escalate_early=True)
    request = asking(HARD).request
    assert request is not None
    for _ in range(30):
        upstream.jury.rule(request, None, None)
    assert upstream.jury.expects_failure(request)
    return upstream


async def test_a_likely_failure_starts_both_and_an_accepted_draft_ends_the_other() -> None:
    house, slow = House(), Actor("slow", [[asyncio.Event()]])
    fast = Actor("fast", [[*whole("good")]], before=[20])
    async with early(house, fast, slow).stream(asking(HARD)) as reply:
        assert len(slow.calls) == 1
        assert (await read(reply), reply.transforms) == ("good", ("cascade:fast",))
        while slow.open:
            await asyncio.sleep(0)
    assert sorted(house.outcomes()) == [("fast", "won"), ("slow", "lost")]


async def test_a_likely_failure_has_the_strong_answer_under_way() -> None:
    house, slow = House(), slow_says("strong")
    draft_may_end = asyncio.Event()
    fast = Actor("fast", [[*whole(REFUSAL)[:2], draft_may_end, *whole("")[1:]]])
    upstream = early(house, fast, slow)
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(ask(upstream, asking(HARD)))
        while not slow.calls:
            await asyncio.sleep(0)
        draft_may_end.set()
        assert await asked == ("strong", ("cascade:slow",))
    assert sorted(house.outcomes()) == [("fast", "rejected"), ("slow", "won")]


async def test_without_escalate_early_the_strong_model_waits_for_the_judge() -> None:
    house, slow = House(), slow_says("strong")
    fast = Actor("fast", [whole("good")], before=[20])
    upstream = early(house, fast, slow)
    upstream._options = CascadeOptions()
    assert (await ask(upstream, asking(HARD)))[0] == "good"
    assert slow.calls == []


def hard(house: House, fast: Actor, slow: Actor, **options: Any) -> Cascade:
    return cascade(house, fast, slow, judge=("prompt", "refusal"), min_confidence=0.99, **options)


async def test_a_hard_prompt_goes_straight_to_the_strong_model() -> None:
    house, fast = House(), fast_says("draft")
    assert await ask(hard(house, fast, slow_says("strong"))) == ("strong", ("cascade:slow",))
    assert fast.calls == []
    assert house.roles() == [("slow", "escalation")]


async def test_a_hard_prompt_gets_a_draft_where_the_strong_model_fails() -> None:
    house = House()
    said = await ask(hard(house, fast_says("draft"), broken("slow")))
    assert said == ("draft", ("cascade:draft",))
    assert house.roles() == [("slow", "escalation"), ("fast", "fallback")]


async def test_agreement_asks_twice_and_books_the_second_as_judge() -> None:
    for second, expected in (("Paris.", "cascade:fast"), ("Lyon.", "cascade:slow")):
        house = House()
        fast = Actor("fast", [whole("Paris."), whole(second)])
        upstream = cascade(
            house, fast, slow_says("Rome."), judge=("agreement",), min_confidence=0.6
        )
        _, transforms = await ask(upstream)
        assert transforms == (expected,)
        assert ("fast", "judge") in house.roles()
        assert house.outcomes()[1] == ("fast", "lost")


async def test_the_second_draft_may_fail() -> None:
    fast = Actor("fast", [whole("Paris."), [UpstreamError("gone")]])
    upstream = cascade(House(), fast, slow_says("Rome."), judge=("agreement",), min_confidence=0.0)
    assert await ask(upstream) == ("Paris.", ("cascade:fast",))


SURE = LogprobsDelta(value={"content": [{"token": "a", "logprob": -0.001}]})
UNSURE = LogprobsDelta(value={"content": [{"token": "a", "logprob": -6.0}]})


@pytest.mark.parametrize(("word", "mark"), [(SURE, "fast"), (UNSURE, "slow")])
async def test_logprobs_are_asked_for_and_taken_out_again(word: LogprobsDelta, mark: str) -> None:
    house = House()
    pieces = [
        say(Started(id="up-1", model="m", created=1)),
        say(TextDelta(text="a"), word),
        *whole()[1:],
    ]
    fast = Actor("fast", [pieces])
    upstream = cascade(house, fast, slow_says("s"), judge=("logprob",), min_confidence=0.6)
    async with upstream.stream(chat_call()) as reply:
        data = b"".join([piece.data async for piece in reply.chunks()])
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
    upstream = cascade(House(), fast, slow_says("s"), judge=("logprob",))
    async with upstream.stream(asking("Why?", logprobs=True)) as reply:
        data = b"".join([piece.data async for piece in reply.chunks()])
    assert b"-0.001" in data
    assert reply.transforms == ("cascade:fast",)


async def test_a_model_that_refuses_logprobs_is_asked_without_and_never_again_with() -> None:
    refusal = UpstreamRefused("logprobs?", status=400, headers=(), body=b"", code="x")
    fast = Actor("fast", [[refusal], whole("Fine.")])
    upstream = cascade(House(), fast, slow_says("s"), judge=("logprob",), min_confidence=0.1)
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

    for own, mark in (
        ((veto,), "slow"),
        ((fails,), "slow"),
        ((lambda *_: True,), "fast"),
        ((lambda *_: 0.9,), "fast"),
        ((lambda *_: 0.9, lambda *_: 0.1), "slow"),
    ):
        upstream = cascade(House(), fast_says("a"), slow_says("b"), *own)
        assert (await ask(upstream))[1] == (f"cascade:{mark}",)
    assert seen == ["m"]


async def test_escalations_teach_what_a_score_is_worth() -> None:
    upstream = cascade(
        House(),
        fast_says("42"),
        Actor("slow", [*([whole("42")] * 40)]),
        lambda *_: 0.45,
        min_confidence=0.5,
    )
    marks = [(await ask(upstream))[1][0] for _ in range(12)]
    assert marks[0] == "cascade:slow"
    assert marks[-1] == "cascade:fast", "the strong model always said the same"
    other = cascade(House(), fast_says("42"), slow_says("42"), lambda *_: 0.45)
    other.jury.load(upstream.jury.saved())
    assert (await ask(other))[1] == ("cascade:fast",)


async def test_what_cannot_be_read_of_another_run_is_ignored() -> None:
    jury = cascade(House(), fast_says(), slow_says()).jury
    before = jury.saved()
    for data in (b"", b"{}", before.replace(b'"version":1', b'"version":2')):
        jury.load(data)
    assert jury.saved() == before


async def test_a_checked_call_is_answered_by_the_strong_model_and_its_draft_teaches() -> None:
    house, fast = House(), fast_says("41")
    slow = Actor("slow", [[*whole("42")]], before=[20])
    upstream = cascade(house, fast, slow, lambda *_: 0.95, draw=0.0, checked=0.5)
    for _ in range(20):
        assert await ask(upstream) == ("42", ("cascade:slow",))
        assert sorted(house.outcomes()) == [("fast", "rejected"), ("slow", "won")]
        house.ledger.take("call")
    upstream._draw = lambda: 1.0
    assert (await ask(upstream))[1] == ("cascade:slow",), "a sure judge was always wrong"


async def test_a_checked_call_whose_strong_model_fails_is_judged_as_any_other() -> None:
    house = House()
    upstream = cascade(house, fast_says("ok"), broken("slow"), lambda *_: 0.9, draw=0.0)
    assert await ask(upstream) == ("ok", ("cascade:fast",))
    assert sorted(house.outcomes()) == [("fast", "won"), ("slow", "failed")]


async def test_what_only_vetoes_needs_no_checks() -> None:
    slow = slow_says("b")
    assert (await ask(cascade(House(), fast_says("a"), slow, draw=0.0)))[0] == "a"
    assert slow.calls == []


async def test_the_consumers_cancellation_ends_everything() -> None:
    never: list[Step] = [whole("a")[0], asyncio.Event()]
    house, fast, slow = House(), Actor("fast", [never]), Actor("slow", [never])
    upstream = early(house, fast, slow)
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(ask(upstream, asking(HARD)))
        while not (fast.open and slow.open):
            await asyncio.sleep(0)
        asked.cancel()
    assert fast.open == slow.open == 0
    assert sorted(house.outcomes()) == [("fast", "abandoned"), ("slow", "abandoned")]


async def test_an_error_of_the_reader_ends_the_answer_and_passes() -> None:
    slow = Actor("slow", [[*whole("yes")[:2], asyncio.Event()]])
    with pytest.raises(ZeroDivisionError):
        async with cascade(House(), fast_says(REFUSAL), slow).stream(chat_call()):
            raise ZeroDivisionError
    assert slow.open == 0


async def test_those_to_be_avoided_are_left_out() -> None:
    house, fast, slow = House(), fast_says("a"), slow_says("b")
    upstream = cascade(house, fast, slow)
    avoids = (("fast",), ("b", "cascade:slow")), (("slow",), ("a", "cascade:draft"))
    for avoid, (said, mark) in avoids:
        assert await ask(upstream, chat_call(avoid=frozenset(avoid))) == (said, (mark,))
    with pytest.raises(UpstreamUnavailable):
        await ask(upstream, chat_call(avoid=frozenset(("fast", "slow"))))


async def test_a_rescue_goes_on_in_the_strong_models_words() -> None:
    upstream = cascade(House(), fast_says("a"), slow_says("b"))
    for avoid in ((), ("slow",)):
        call = chat_call(role="rescue", avoid=frozenset(avoid))
        assert await ask(upstream, call) == ("b", ("cascade:slow",))


async def test_a_whole_answer_is_judged_as_a_stream_is() -> None:
    for said, mark in ((REFUSAL, "slow"), ("fine", "fast")):
        upstream = cascade(House(), fast_says(said), slow_says("b"))
        assert (await ask(upstream, chat_call(stream=False)))[1] == (f"cascade:{mark}",)


async def test_a_call_that_nobody_can_read_goes_to_the_strong_model() -> None:
    call = msgspec.structs.replace(chat_call(), request=None)
    assert await ask(cascade(House(), fast_says("a"), slow_says("b")), call) == (
        "b",
        ("cascade:slow",),
    )


async def test_what_one_cascade_lets_pass_a_stricter_one_does_not_share() -> None:
    house = House()
    members = fast_says("a"), slow_says("b")
    found = {
        cascade(house, *members, judge=judge, min_confidence=least).identity
        for judge in (("format",), ("format", "prompt"))
        for least in (0.5, 0.9)
    }
    assert len(found) == 4


async def test_its_outlook_is_a_whole_draft_and_a_share_of_the_other() -> None:
    house = House()
    fast = Outlook(name="fast", ttft_s=0.1, tokens_per_s=100, output_tokens=100, cost_usd=1.0)
    slow = Outlook(name="slow", ready=False, ttft_s=1.0, tokens_per_s=50, cost_usd=10.0)
    upstream = cascade(
        house,
        Candid(house.target(fast_says()), lambda _: fast),
        Candid(house.target(slow_says()), lambda _: slow),
    )
    request = chat_call().request
    assert request is not None
    assert score_prompt(request) is not None
    share = upstream.jury.failure_rate(request)
    found = upstream.outlook(chat_call())
    assert 0.0 < share < 1.0
    assert found.ready
    assert found.ttft_s == pytest.approx(1.1 + share * 1.0)
    assert found.cost_usd == pytest.approx(1.0 + share * 10.0)
