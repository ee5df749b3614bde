"""Targets: what counts as an answer, what is booked, and that every call ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from itertools import chain, cycle
from typing import TYPE_CHECKING, cast

import pytest

from headstart.attempts import AttemptOutcome
from headstart.errors import (
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
    UpstreamUnreachable,
)
from headstart.reply import AnswerWithheld
from headstart.types import (
    Ended,
    ErrorReported,
    Finished,
    Piece,
    RefusalDelta,
    Started,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)
from support.candidates import JSON, Actor, Targets, chat_call, read, say, text, thought, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.types import Headers
    from support.candidates import Step

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]

OPENING = say(Started(id="up-1"), TextDelta(text=""))
DONE = say(Finished(reason="stop"), Ended())
PING = Piece(b": ping\n\n")
VETO = say(Finished(reason="content_filter"), Ended())


@pytest.mark.parametrize(
    "content",
    [
        TextDelta(text="Hi"),
        ToolCallDelta(index=0, name="f"),
        RefusalDelta(text="No"),
        thought("hm").events[0],
    ],
)
async def test_entering_waits_for_the_first_content_and_loses_nothing(content: StreamEvent) -> None:
    targets, come = Targets(), asyncio.Event()
    actor = Actor("a", [[OPENING, come, say(content), DONE]])
    entered = asyncio.Event()

    async def ask() -> list[Piece]:
        async with await targets.target(actor).send(chat_call()) as reply:
            entered.set()
            return [piece async for piece in reply.pieces]

    async with asyncio.TaskGroup() as group:
        asked = group.create_task(ask())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not entered.is_set()
        come.set()
    assert asked.result() == [OPENING, say(content), DONE]
    assert targets.outcomes() == [("a", "won")]


async def test_an_answer_is_booked_with_its_tokens_as_soon_as_it_ended() -> None:
    targets = Targets()
    async with await targets.target(Actor("a", [whole("Hi", " there")])).send(chat_call()) as reply:
        assert await read(reply) == "Hi there"
        (attempt,) = targets.ledger.take("call")
    assert (attempt.outcome, attempt.status, attempt.model) == (AttemptOutcome.WON, 200, "m")
    assert (attempt.prompt_tokens, attempt.completion_tokens) == (30, 20)
    assert attempt.cost_usd == pytest.approx((30 * 1 + 20 * 4) / 1e6)
    assert not attempt.estimated
    assert attempt.ttft_s is not None
    assert targets.ledger.take("call") == ()


@pytest.mark.parametrize(
    ("steps", "error", "kind"),
    [
        ([], UpstreamProtocolError, "empty"),
        ([OPENING], UpstreamProtocolError, "empty"),
        ([say(Ended())], AnswerWithheld, "empty"),
        ([OPENING, DONE], AnswerWithheld, "empty"),
        ([OPENING, VETO], AnswerWithheld, "filtered"),
        ([OPENING, UpstreamUnreachable("gone")], UpstreamUnreachable, "unreachable"),
    ],
)
async def test_an_empty_answer_or_an_error_does_not_win(
    steps: list[Piece], error: type[UpstreamError], kind: str
) -> None:
    targets, actor = Targets(), Actor("a", [steps])
    with pytest.raises(error):
        async with await targets.target(actor).send(chat_call()):
            pytest.fail("entered")
    (attempt,) = targets.ledger.attempts("call")
    assert (attempt.outcome, attempt.error) == (AttemptOutcome.FAILED, kind)
    assert actor.open == 0


async def test_an_error_in_a_200_stream_is_a_proper_error_before_its_first_content() -> None:
    targets = Targets()
    frame = say(ErrorReported(message="over capacity", code="overloaded_error", status=503))
    with pytest.raises(UpstreamRefused) as caught:
        async with await targets.target(Actor("a", [[OPENING, frame]])).send(chat_call()):
            pytest.fail("entered")
    assert caught.value.status == 503
    assert b"over capacity" in caught.value.body
    (attempt,) = targets.ledger.attempts("call")
    assert (attempt.error, attempt.cost_usd) == ("overloaded", 0.0)


async def test_an_error_status_comes_with_the_providers_own_body() -> None:
    targets = Targets()
    body = b'{"error":{"message":"no such model","code":"model_not_found"}}'
    actor = Actor("a", [[Piece(body)]], status=404, headers=JSON)
    with pytest.raises(UpstreamRefused) as caught:
        async with await targets.target(actor).send(chat_call()):
            pytest.fail("entered")
    assert (caught.value.status, caught.value.body) == (404, body)
    assert targets.ledger.attempts("call")[0].error == "no-such-model"


@pytest.mark.parametrize(
    ("code", "booked"),
    [
        ("rate_limit_exceeded", "rate_limit_exceeded"),
        ("ThrottlingException:http://internal.example/", None),
        ("com.amazon.service#Throttled", None),
        ("My prompt: how do I leave?", "upstream_error"),
        ("two\nlines", "upstream_error"),
        ("x" * 65, "upstream_error"),
        ("", "upstream_error"),
    ],
)
async def test_a_code_that_is_a_text_stays_out_of_the_books(code: str, booked: str | None) -> None:
    body = json.dumps({"error": {"message": "no", "code": code}}).encode()
    frame = say(ErrorReported(message="no", code=code, status=500))
    for actor in (
        Actor("a", [[Piece(body, frame.events)]], status=500, headers=JSON),
        Actor("a", [[OPENING, frame]]),
    ):
        with pytest.raises(UpstreamRefused) as caught:
            async with await Targets().target(actor).send(chat_call()):
                pytest.fail("entered")
        assert caught.value.code == (code if booked is None else booked)


async def test_an_endless_error_body_is_replaced() -> None:
    pieces = [Piece(b"x" * 8192)] * 1000
    actor = Actor("a", [pieces], status=500, headers=JSON)
    with pytest.raises(UpstreamRefused) as caught:
        async with await Targets().target(actor).send(chat_call()):
            pytest.fail("entered")
    assert len(caught.value.body) < 1000


async def test_a_vetoed_answer_can_still_be_delivered() -> None:
    with pytest.raises(AnswerWithheld) as caught:
        async with await Targets().target(Actor("a", [[OPENING, VETO]])).send(chat_call()):
            pytest.fail("entered")
    assert [piece async for piece in caught.value.reply.pieces] == [OPENING, VETO]


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        ([text("Hi")], "cut"),
        ([text("Hi"), say(ErrorReported(message="boom", code="server_error"))], "server-error"),
        ([text("Hi"), asyncio.Event()], "stalled"),
    ],
)
async def test_a_broken_answer_is_never_taken_for_a_whole_one(
    steps: list[Piece], kind: str
) -> None:
    targets, actor = Targets(), Actor("a", [steps])
    async with await targets.target(actor, stall_s=0.05).send(chat_call()) as reply:
        with pytest.raises(UpstreamError):
            await read(reply)
        assert actor.open == 0, "the broken call is closed though its context is still open"
    (attempt,) = targets.ledger.attempts("call")
    assert (attempt.outcome, attempt.error, attempt.estimated) == ("broken", kind, True)


async def test_pings_alone_keep_no_answer_alive_for_ever() -> None:
    targets = Targets()
    steps = cast("Sequence[Step]", chain([text("Hi")], cycle([0.01, PING])))
    async with await targets.target(Actor("a", [steps]), stall_s=0.02).send(chat_call()) as reply:
        with pytest.raises(UpstreamTimeout):
            await read(reply)
    (attempt,) = targets.ledger.attempts("call")
    assert (attempt.outcome, attempt.error) == ("broken", "stalled")


async def test_pings_between_words_do_not_count_as_silence() -> None:
    steps: list[Step] = [0.15, PING, 0.15, text("x")]
    targets, actor = Targets(), Actor("a", [[*steps * 20, DONE]])
    async with await targets.target(actor, stall_s=0.2).send(chat_call()) as reply:
        assert await read(reply) == "x" * 20


@pytest.mark.parametrize("last", [[], [asyncio.Event()]])
async def test_finished_choices_stand_in_for_a_missing_end(last: list[Piece]) -> None:
    targets = Targets()
    steps = [text("Hi"), say(Finished(reason="stop")), *last]
    async with await targets.target(Actor("a", [steps])).send(chat_call()) as reply:
        assert await read(reply) == "Hi"
    assert targets.outcomes() == [("a", "won")]


async def test_a_silent_provider_is_left_at_the_first_token_limit() -> None:
    targets, actor = Targets(), Actor("a", [[OPENING, asyncio.Event()]])
    with pytest.raises(UpstreamTimeout):
        async with await targets.target(actor, first_token_s=0.02).send(chat_call()):
            pytest.fail("entered")
    (attempt,) = targets.ledger.attempts("call")
    assert (attempt.error, attempt.estimated) == ("silent", True)
    assert actor.open == 0


async def test_the_callers_deadline_ends_the_call_without_blaming_the_provider() -> None:
    targets, actor = Targets(), Actor("a", [[OPENING, asyncio.Event()]])
    target = targets.target(actor)
    for _ in range(6):
        deadline = asyncio.get_running_loop().time() + 0.005
        with pytest.raises(UpstreamTimeout):
            async with await target.send(chat_call(deadline=deadline)):
                pytest.fail("entered")
    assert target.estimate(chat_call()).ready
    assert not target.estimate(chat_call()).degraded
    reasons = {each.reason for each in targets.ledger.attempts("call")}
    assert reasons == {"was not done by the request's deadline"}


async def test_an_open_breaker_refuses_without_a_call() -> None:
    targets, actor = Targets(), Actor("a", [[UpstreamUnreachable("down")]])
    target = targets.target(actor)
    for _ in range(5):
        with pytest.raises(UpstreamUnreachable):
            async with await target.send(chat_call()):
                pytest.fail("entered")
    with pytest.raises(UpstreamUnavailable) as caught:
        async with await target.send(chat_call()):
            pytest.fail("entered")
    assert caught.value.retry_after_s is not None
    assert len(actor.calls) == len(targets.ledger.attempts("call")) == 5
    assert not target.estimate(chat_call()).ready


@pytest.mark.parametrize("stop_after", [0, 1])
async def test_a_cancelled_call_is_closed_and_booked_once(stop_after: int) -> None:
    targets, actor = Targets(), Actor("a", [[text("Hi")] * stop_after + [asyncio.Event()]])
    target = targets.target(actor)

    async def ask() -> None:
        async with await target.send(chat_call()) as reply:
            await read(reply)

    async with asyncio.TaskGroup() as group:
        asked = group.create_task(ask())
        for _ in range(10):
            await asyncio.sleep(0)
        asked.cancel()
    (attempt,) = targets.ledger.attempts("call")
    assert (attempt.outcome, attempt.estimated) == (AttemptOutcome.ABANDONED, True)
    assert actor.open == 0
    assert not target.estimate(chat_call()).degraded


async def test_a_caller_that_leaves_halfway_is_booked_as_such() -> None:
    targets, actor = Targets(), Actor("a", [whole("a", "b", "c")])
    async with await targets.target(actor).send(chat_call()) as reply:
        async for _ in reply.pieces:
            break
    assert targets.outcomes() == [("a", "abandoned")]
    assert actor.open == 0


async def test_a_caller_that_leaves_at_the_terminal_event_leaves_a_success() -> None:
    """The breaker, the figures and the books all see one, though the body never ends."""
    targets, actor = Targets(), Actor("a", [[*whole("Hi", " there"), asyncio.Event()]])
    target = targets.target(actor)
    for number in range(6):
        async with await target.send(chat_call(str(number))) as reply:
            async for piece in reply.pieces:
                if any(isinstance(event, Ended) for event in piece.events):
                    (attempt,) = targets.ledger.take(str(number))
                    break
        assert attempt.outcome is AttemptOutcome.WON
        assert (attempt.completion_tokens, attempt.estimated) == (20, False)
        assert targets.ledger.attempts(str(number)) == ()
    expected = target.estimate(chat_call())
    assert expected.ready
    assert not expected.degraded
    assert expected.output_tokens == pytest.approx(20, rel=0.5)
    assert actor.open == 0


async def test_whole_answers_enter_at_their_end() -> None:
    body = b'{"choices":[{"index":0,"message":{"content":"Hi"},"finish_reason":"stop"}]}'
    events = (TextDelta(text="Hi"), Finished(reason="stop"), Ended())
    actor = Actor("a", [[Piece(body[:20]), Piece(body[20:]), Piece(b"", events)]], headers=JSON)
    targets = Targets()
    async with await targets.target(actor).send(chat_call(stream=False)) as reply:
        assert b"".join([piece.data async for piece in reply.pieces]) == body
    (attempt,) = targets.ledger.attempts("call")
    assert (attempt.outcome, attempt.ttft_s) == ("won", None)


async def test_a_body_that_nobody_can_read_enters_at_its_first_byte_and_passes() -> None:
    targets, call = Targets(), chat_call(editable=False)
    actor = Actor("a", [[Piece(b"\x00"), Piece(b"\x01")]], headers=JSON)
    async with await targets.target(actor).send(call) as reply:
        assert b"".join([piece.data async for piece in reply.pieces]) == b"\x00\x01"
    assert targets.outcomes() == [("a", "won")]


async def test_a_redirect_is_an_error_that_names_the_address() -> None:
    location = (b"location", b"https://me:secret@api.example.com/v1/chat/completions?key=secret")
    actor, targets = (
        Actor("a", [[Piece(b"moved")]], status=308, headers=(*JSON, location)),
        Targets(),
    )
    for _ in range(20):  # it is no outage: each caller is told
        with pytest.raises(UpstreamProtocolError, match=r"a redirect to .*base_url") as raised:
            await targets.target(actor).send(chat_call())
        assert "https://***@api.example.com/v1/chat/completions" in str(raised.value)
        assert "secret" not in str(raised.value)
    assert len(actor.calls) == 20
    assert actor.open == 0


async def test_a_providers_own_limits_are_obeyed() -> None:
    limits = ((b"x-ratelimit-limit-requests", b"1"), (b"x-ratelimit-remaining-requests", b"0"),
              (b"x-ratelimit-reset-requests", b"60s"))  # fmt: skip
    actor = Actor(
        "a", [whole("Hi")], headers=(*JSON[:0], (b"content-type", b"text/event-stream"), *limits)
    )
    targets = Targets()
    target = targets.target(actor)
    async with await target.send(chat_call()) as reply:
        await read(reply)
    with pytest.raises(UpstreamUnavailable):
        async with await target.send(chat_call()):
            pytest.fail("entered")
    assert len(actor.calls) == 1


def limited(left: int) -> Headers:
    """Return the headers of an answer that leave so many of 100 calls."""
    return (
        (b"content-type", b"text/event-stream"),
        (b"x-ratelimit-limit-requests", b"100"),
        (b"x-ratelimit-remaining-requests", str(left).encode()),
        (b"x-ratelimit-reset-requests", b"1h"),
    )


@pytest.mark.parametrize(("status", "later_s", "left"), [(200, 0.0, 0.98), (200, 1.0, 0.0),
                                                         (429, 0.0, 0.0)])  # fmt: skip
async def test_ample_limits_are_read_now_and_then_and_from_each_refusal(
    status: int, later_s: float, left: float
) -> None:
    actor, targets = Actor("a", [whole("Hi")], headers=limited(99)), Targets()
    target, call = targets.target(actor), chat_call()
    async with await target.send(call) as reply:
        await read(reply)
    await asyncio.sleep(later_s)
    actor.status, actor.headers = status, limited(0)
    with contextlib.suppress(UpstreamRefused):
        async with await target.send(call) as reply:
            await read(reply)
    assert target.estimate(call).allowance == pytest.approx(left, abs=0.001)


async def test_a_refusal_that_names_no_limit_slows_no_later_call() -> None:
    refusal = (
        (b"content-type", b"application/json"),
        (b"x-ratelimit-remaining-requests", b"0"),
        (b"retry-after", b"5"),
    )
    actor, targets = Actor("a", [whole("Hi")], status=429, headers=refusal), Targets()
    target, call = targets.target(actor), chat_call()
    with pytest.raises(UpstreamRefused):
        await target.send(call)
    with pytest.raises(UpstreamUnavailable):
        await target.send(call)
    actor.status, actor.headers = 200, ((b"content-type", b"text/event-stream"),)
    await asyncio.sleep(10.0)
    for _ in range(10):  # not one call for each `retry-after`
        async with await target.send(call) as reply:
            await read(reply)
    assert len(actor.calls) == 11


async def test_a_refused_request_gives_its_tokens_back() -> None:
    tokens = (
        (b"content-type", b"text/event-stream"),
        (b"x-ratelimit-limit-tokens", b"1000"),
        (b"x-ratelimit-remaining-tokens", b"600"),
        (b"x-ratelimit-reset-tokens", b"1h"),
    )
    actor, targets = Actor("a", [whole("Hi")], headers=tokens), Targets()
    target, call = targets.target(actor), chat_call()
    async with await target.send(call) as reply:
        await read(reply)
    left = target.estimate(call).allowance
    actor.status, actor.headers = 400, JSON
    for _ in range(20):
        with pytest.raises(UpstreamRefused):
            await target.send(call)
    assert len(actor.calls) == 21
    assert target.estimate(call).allowance == pytest.approx(left, abs=0.02)


async def test_a_conversation_is_warm_where_it_was_served() -> None:
    targets = Targets()
    target = targets.target(Actor("a", [whole("Hi")]))
    call = chat_call(affinity="talk")
    assert not target.estimate(call).warm
    async with await target.send(call) as reply:
        await read(reply)
    assert target.estimate(call).warm


async def test_a_billed_call_without_an_answer_is_booked() -> None:
    veto = say(
        Finished(reason="content_filter"), UsageReported(usage={"prompt_tokens": 1000}), Ended()
    )
    targets = Targets()
    with pytest.raises(AnswerWithheld):
        async with await targets.target(Actor("a", [[veto]])).send(chat_call()):
            pytest.fail("entered")
    (attempt,) = targets.ledger.attempts("call")
    assert attempt.cost_usd == pytest.approx(1000 / 1e6)


async def test_lengths_are_learned_by_route_and_without_one_by_endpoint() -> None:
    targets = Targets()
    for route, words in (("short", 1), ("long", 40), ("", 10)):
        target = targets.target(Actor("a", [whole(*["four"] * words, usage=False)]))
        async with await target.send(chat_call(route=route)) as reply:
            await read(reply)
    measured = targets.states.measures.expected_length
    assert [round(measured(place)) for place in ("short", "long", "chat")] == [1, 40, 10]
