"""Rescue: the caller of an answer that breaks off sees one answer, or an error."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from headstart.attempts import AttemptRole, RoutingEstimate
from headstart.dialects.gemini_generate import GEMINI_GENERATE
from headstart.dialects.openai_responses import OPENAI_RESPONSES
from headstart.errors import UpstreamError, UpstreamProtocolError, UpstreamUnreachable
from headstart.middleware.shaping.steps import with_document
from headstart.middleware.shared_flights import OwnerLost
from headstart.middleware.upstreams.attempt_group import AttemptGroup
from headstart.middleware.upstreams.rescue import RescuedCandidate
from headstart.policies.routing.failures import RetryBudget
from headstart.policies.routing.measures import UpstreamModel
from headstart.policies.routing.schedule import ExtraBudget
from headstart.settings import Strategy
from headstart.types import (
    Ended,
    ErrorReported,
    Finished,
    Piece,
    Started,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)
from support.candidates import (
    CHAT,
    UNIX,
    Actor,
    Targets,
    chat_call,
    make_call,
    read,
    reply_of,
    text,
    thought,
)
from support.guarded import a_call

if TYPE_CHECKING:
    from headstart.middleware.upstreams.target import Target
    from headstart.reply import Reply
    from headstart.types import Call, StreamEvent
    from support.candidates import Step

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]

NOBODY: dict[str, str] = {}
USAGE = {"prompt_tokens": 30, "completion_tokens": 20, "total_tokens": 50}


def spoken(*words: str, id: str = "up-1", end: bool = True) -> list[Step]:
    """Return the pieces of an answer as a provider streams them, bytes and all."""
    encoder = CHAT.encoder(id, 7, include_usage=True)
    events: list[StreamEvent] = [Started(id=id, model="m", created=7)]
    events += [TextDelta(text=word) for word in words]
    if end:
        events += [Finished(reason="stop"), UsageReported(usage=USAGE), Ended()]
    return [Piece(encoder.feed((event,)), (event,)) for event in events]


def rescued(
    targets: Targets,
    *actors: Actor,
    mode: Any = "restart",
    prefill: Any = NOBODY,
    stall_s: float = 0.05,
) -> RescuedCandidate:
    members = [targets.target(each, stall_s=stall_s) for each in actors]
    strategy = AttemptGroup(
        "route",
        members,
        Strategy(strategy="fallback", retries=0),
        extra=ExtraBudget(0.0, 0.0),
        retrying=RetryBudget(),
        draw=lambda: 0.0,
        clock=lambda: UNIX,
    )
    return RescuedCandidate(strategy, mode=mode, prefill=prefill)


def chunks_of(stream: bytes) -> list[dict[str, Any]]:
    frames = stream.decode().split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]


@pytest.mark.parametrize("end", [[], [asyncio.Event()], [UpstreamUnreachable("reset")]])
async def test_a_broken_answer_goes_on_elsewhere_as_one_stream(end: list[Step]) -> None:
    targets = Targets()
    first = Actor("a", [[*spoken("Once upon", " a ti", end=False), *end]])
    second = Actor("b", [spoken("Once", " upon a", " time", ".", id="up-2")])
    async with await rescued(targets, first, second).send(chat_call()) as reply:
        stream = b"".join([piece.data async for piece in reply.pieces])
        assert first.open == 0
        assert (reply.storable, reply.transforms) == (False, ("rescued",))
    chunks = chunks_of(stream)
    assert {each["id"] for each in chunks} == {"up-1"}
    deltas = [each["choices"][0]["delta"] for each in chunks if each["choices"]]
    assert "".join(each.get("content") or "" for each in deltas) == "Once upon a time."
    assert sum("role" in each for each in deltas) == 1
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert targets.outcomes() == [("a", "broken"), ("b", "won")]
    assert targets.roles() == [("a", "first"), ("b", "rescue")]
    assert second.open == 0


async def test_the_same_upstream_is_asked_again_where_there_is_no_other() -> None:
    targets = Targets()
    actor = Actor("a", [spoken("Hello", end=False), spoken("Hel", "lo you")])
    async with await rescued(targets, actor).send(chat_call()) as reply:
        assert await read(reply) == "Hello you"


@pytest.mark.parametrize(
    "other",
    [
        spoken("Once there", " was"),
        spoken("Once"),
        spoken("Once up", end=False),
        [UpstreamUnreachable("down")],
        [Piece(b"t", (ToolCallDelta(index=0, name="f"),)), Piece(b"", (Ended(),))],
        [*spoken("Once up", end=False), Piece(b"{}", (ErrorReported(message="overloaded"),))],
    ],
    ids=["diverges", "shorter", "breaks too", "down", "calls a tool", "reports an error"],
)
async def test_where_it_cannot_go_on_the_first_error_comes_out(other: list[Step]) -> None:
    targets = Targets()
    actors = Actor("a", [spoken("Once upon", end=False)]), Actor("b", [other])
    async with await rescued(targets, *actors).send(chat_call()) as reply:
        with pytest.raises(UpstreamProtocolError, match="upstream a ended before its answer did"):
            await read(reply)
    assert [each.open for each in actors] == [0, 0]


@pytest.mark.parametrize(
    ("mode", "shown", "fields"),
    [
        ("off", spoken("Once", end=False), {}),
        (
            "restart",
            [Piece(b"t", (ToolCallDelta(index=0, name="f", arguments='{"a'),))],
            {},
        ),
        ("restart", spoken("Once", end=False), {"editable": False}),
    ],
    ids=["switched off", "tools half shown", "passes untouched"],
)
async def test_some_answers_are_not_rescued(
    mode: str, shown: list[Step], fields: dict[str, Any]
) -> None:
    targets, second = Targets(), Actor("b", [spoken("Once")])
    upstream = rescued(targets, Actor("a", [shown]), second, mode=mode)
    async with await upstream.send(chat_call(**fields)) as reply:
        with pytest.raises(UpstreamError):
            await read(reply)
    assert second.calls == []


async def test_an_answer_that_broke_while_it_thought_thinks_no_second_time() -> None:
    targets = Targets()
    first = Actor("a", [[*spoken(end=False), thought("Let me see")]])
    second = Actor("b", [[*spoken(end=False), thought("Well"), *spoken("Four.")[1:]]])
    async with await rescued(targets, first, second).send(chat_call()) as reply:
        events = [event async for piece in reply.pieces for event in piece.events]
    assert "Well" not in repr(events)
    assert TextDelta(text="Four.") in events


OVERLOADED = Piece(b'{"error":{}}', (ErrorReported(message="overloaded", status=503),))


@pytest.mark.parametrize("mode", ["restart", "off"])
@pytest.mark.parametrize("end", [UpstreamUnreachable("cut"), OVERLOADED], ids=["cut", "error"])
async def test_a_folded_answer_is_simply_begun_anew(mode: str, end: Step) -> None:
    targets = Targets()
    body = Piece(b'{"whole":true}', (Finished(reason="stop"), Ended()))
    first = Actor("a", [[Piece(b"", (TextDelta(text="x"),)), end]])
    second = Actor("b", [[Piece(b"", (TextDelta(text="y"),)), body]])
    upstream = rescued(targets, first, second, mode=mode)
    async with await upstream.send(chat_call(stream=False, streamed_upstream=True)) as reply:
        assert b"".join([piece.data async for piece in reply.pieces]) == body.data
        assert reply.transcript.ended  # the books tell of the answer that was sent


async def test_there_is_no_rescue_after_the_deadline() -> None:
    targets, second = Targets(), Actor("b", [spoken("Once")])
    first = Actor("a", [[*spoken("Once", end=False), asyncio.Event()]])
    call = chat_call(deadline=asyncio.get_running_loop().time() + 0.03)
    async with await rescued(targets, first, second).send(call) as reply:
        with pytest.raises(UpstreamError):
            await read(reply)
    assert second.calls == []


async def test_a_vetoed_answer_is_delivered_when_nobody_gave_another() -> None:
    veto = [text(""), Piece(b"veto", (Finished(reason="content_filter"), Ended()))]
    targets = Targets()
    upstream = rescued(targets, Actor("a", [veto]), Actor("b", [veto]))
    async with await upstream.send(chat_call()) as reply:
        assert [piece async for piece in reply.pieces] == veto


@pytest.mark.parametrize("turns", range(0, 40, 3))
async def test_leaving_ends_the_rescue_too(turns: int) -> None:
    targets = Targets()
    first = Actor("a", [spoken("Once", end=False)])
    second = Actor("b", [[5, *spoken("Once", " more", end=False), asyncio.Event()]])
    upstream = rescued(targets, first, second)

    async def ask() -> None:
        async with await upstream.send(chat_call()) as reply:
            await read(reply)

    async with asyncio.TaskGroup() as group:
        asked = group.create_task(ask())
        for _ in range(turns):
            await asyncio.sleep(0)
        asked.cancel()
    assert first.open == second.open == 0
    calls = len(first.calls) + len(second.calls)
    assert len(targets.ledger.attempts("call")) == calls


BEGUN = "Once upon a time there was a "
ABLE = {"b": "plain", "c": "prefix", "d": "no"}


async def went_on(targets: Targets, *actors: Actor, **fields: Any) -> list[dict[str, Any]]:
    """Return the chunks that the client gets where upstreams go on as ABLE says."""
    upstream = rescued(targets, *actors, mode="prefill", prefill=ABLE)
    async with await upstream.send(chat_call(**fields)) as reply:
        stream = b"".join([piece.data async for piece in reply.pieces])
        assert (reply.storable, reply.transforms) == (False, ("rescued",))
    return chunks_of(stream)


def text_of(chunks: list[dict[str, Any]]) -> str:
    deltas = [each["choices"][0]["delta"] for each in chunks if each["choices"]]
    return "".join(each.get("content") or "" for each in deltas)


def last_message(actor: Actor) -> Any:
    (call,) = actor.calls
    assert call.request is not None
    assert json.loads(call.body) == call.request.document
    return call.request.document["messages"][-1]


async def test_an_upstream_with_prefill_is_asked_for_the_rest_alone() -> None:
    targets = Targets()
    first, second = Actor("a", [spoken(BEGUN, end=False)]), Actor("b", [spoken(" fox", ".")])
    unable = Actor("d", [spoken("Never")])
    chunks = await went_on(targets, first, unable, second)
    assert text_of(chunks) == "Once upon a time there was a fox."
    assert {each["id"] for each in chunks} == {"up-1"}
    assert last_message(second) == {"role": "assistant", "content": BEGUN.rstrip()}
    assert targets.roles() == [("a", "first"), ("b", "rescue")]
    assert targets.outcomes() == [("a", "broken"), ("b", "won")]
    assert unable.calls == []


async def test_the_only_upstream_that_goes_on_may_be_the_one_that_broke_off() -> None:
    actor = Actor("b", [spoken(BEGUN, end=False), spoken("fox.")])
    assert text_of(await went_on(Targets(), actor)) == BEGUN + "fox."
    assert last_message_of_all([actor])["role"] == "assistant"


async def test_another_upstream_goes_on_before_the_one_that_broke_off() -> None:
    broken, other = Actor("b", [spoken(BEGUN, end=False)]), Actor("c", [spoken(BEGUN + "fox.")])
    assert text_of(await went_on(Targets(), broken, other)) == BEGUN + "fox."
    assert len(broken.calls) == 1
    assert last_message(other)["prefix"] is True


async def test_a_request_for_one_form_of_prefix_is_not_sent_to_another_upstream() -> None:
    down = Actor("b", [[UpstreamUnreachable("no")]])
    other = Actor("c", [spoken(BEGUN + "fox"), spoken(BEGUN + "fox")])
    chunks = await went_on(Targets(), Actor("a", [spoken(BEGUN, end=False)]), down, other)
    assert text_of(chunks) == BEGUN + "fox"
    assert last_message(other)["role"] == "user"
    assert other.open == 0


async def test_a_request_that_continues_an_answer_itself_is_begun_anew() -> None:
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Once"}]
    call = with_document(chat_call(), {"model": "m", "messages": said, "stream": True})
    second = Actor("b", [spoken(BEGUN + "fox")])
    first = Actor("a", [spoken(BEGUN, end=False)])
    upstream = rescued(Targets(), first, second, mode="prefill", prefill=ABLE)
    async with await upstream.send(call) as reply:
        assert await read(reply) == BEGUN + "fox"
    assert last_message(second) == said[-1]


async def test_a_second_answer_without_a_last_event_gets_one() -> None:
    second = Actor("b", [spoken("Once", " more")[:-1]])
    upstream = rescued(Targets(), Actor("a", [spoken("Once", end=False)]), second)
    async with await upstream.send(chat_call()) as reply:
        stream = b"".join([piece.data async for piece in reply.pieces])
    assert text_of(chunks_of(stream)) == "Once more"


async def test_a_provider_that_wants_a_prefix_marked_gets_it_marked() -> None:
    second = Actor("c", [spoken("Once upon a time there was a fox.")])
    chunks = await went_on(Targets(), Actor("a", [spoken(BEGUN, end=False)]), second)
    assert text_of(chunks) == "Once upon a time there was a fox."
    assert last_message(second)["prefix"] is True


async def test_a_dialect_without_prefill_is_begun_anew() -> None:
    second = Actor("b", [spoken(BEGUN, "fox", ".")])
    upstream = rescued(
        Targets(), Actor("a", [spoken(BEGUN, end=False)]), second, mode="prefill", prefill=ABLE
    )
    call = a_call(dialect=GEMINI_GENERATE.name)
    async with await upstream.send(call) as reply:
        events = [event async for piece in reply.pieces for event in piece.events]
    said = "".join(each.text for each in events if isinstance(each, TextDelta))
    assert said == "Once upon a time there was a fox."
    assert [each.body for each in second.calls] == [call.body]


async def test_usage_is_that_of_both_parts() -> None:
    targets, asked = Targets(), []
    first, second = Actor("a", [spoken(BEGUN, end=False)]), Actor("b", [spoken(" fox.")])
    upstream = rescued(targets, first, second, mode="prefill", prefill=ABLE)
    async with await upstream.send(chat_call()) as reply:
        async for piece in reply.pieces:
            asked += [each.usage for each in piece.events if isinstance(each, UsageReported)]
    assert [(each["prompt_tokens"], each["completion_tokens"]) for each in asked] == [(40, 27)]


async def test_a_second_answer_without_text_means_that_the_first_was_whole() -> None:
    silent = [*spoken()]
    chunks = await went_on(
        Targets(), Actor("a", [spoken(BEGUN + "fox.", end=False)]), Actor("b", [silent])
    )
    assert text_of(chunks) == BEGUN + "fox."
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("shown", "others"),
    [
        (["Once upon"], [Actor("b", [spoken("Once upon a fox")])]),
        ([BEGUN], [Actor("d", [spoken(BEGUN + "fox")])]),
        ([BEGUN], [Actor("b", [[UpstreamUnreachable("no")], spoken(BEGUN + "fox")])]),
    ],
    ids=["too little was shown", "nobody takes it", "nobody answers"],
)
async def test_without_an_upstream_that_continues_the_answer_is_begun_anew(
    shown: list[str], others: list[Actor]
) -> None:
    chunks = await went_on(Targets(), Actor("a", [spoken(*shown, end=False)]), *others)
    assert text_of(chunks).endswith("a fox")
    assert last_message_of_all(others) == {"role": "user", "content": "hi"}


def last_message_of_all(actors: list[Actor]) -> Any:
    request = actors[-1].calls[-1].request
    assert request is not None
    return request.document["messages"][-1]


async def test_an_answer_that_thought_aloud_is_begun_anew() -> None:
    thinking = Piece(b"", thought("Hm").events)
    first = Actor("a", [[*spoken(end=False), thinking, *spoken(BEGUN, end=False)[1:]]])
    second = Actor("b", [spoken(BEGUN, "fox")])
    assert text_of(await went_on(Targets(), first, second)) == BEGUN + "fox"
    assert last_message(second)["role"] == "user"


async def test_a_continuation_that_tells_another_tale_is_no_rescue() -> None:
    other = Actor("b", [spoken("Once upon a time there were two foxes.")])
    upstream = rescued(
        Targets(), Actor("a", [spoken(BEGUN, end=False)]), other, mode="prefill", prefill=ABLE
    )
    async with await upstream.send(chat_call()) as reply:
        with pytest.raises(UpstreamProtocolError, match="upstream a ended before its answer did"):
            await read(reply)
    assert other.open == 0


def dripping(*words: str, every_s: float = 1.0) -> list[Step]:
    """Return an answer whose pieces come one by one, with pauses."""
    return [step for piece in spoken(*words) for step in (every_s, piece)]


async def known(
    targets: Targets, *actors: Actor, words: str = "A word. " * 200
) -> RescuedCandidate:
    """Return a rescue whose first upstream is known to be fast."""
    key = UpstreamModel(actors[0].name, "m")
    targets.states.measures.speed(key, len(words) // 4, 4.0, asyncio.get_running_loop().time())
    return rescued(targets, *actors, stall_s=30.0)


WORDS = [f"word {n}, " for n in range(60)]


async def test_a_stream_that_drips_is_overtaken_by_another_upstream() -> None:
    targets, loop = Targets(), asyncio.get_running_loop()
    slow, fast = Actor("a", [dripping(*WORDS)]), Actor("b", [spoken(*WORDS, id="up-2")])
    began = loop.time()
    async with await (await known(targets, slow, fast)).send(chat_call()) as reply:
        assert await read(reply) == "".join(WORDS)
        assert (reply.storable, reply.transforms) == (False, ("rescued",))
    assert loop.time() - began < 20
    assert targets.roles() == [("b", "rescue"), ("a", "first")]
    assert (slow.open, fast.open) == (0, 0)


@pytest.mark.parametrize(
    "other",
    [[spoken("Something else entirely.", *WORDS)], [[UpstreamUnreachable("down")]]],
)
async def test_a_slow_stream_goes_on_where_nobody_overtakes_it(other: list[Any]) -> None:
    targets = Targets()
    slow, second = Actor("a", [dripping(*WORDS)]), Actor("b", other)
    async with await (await known(targets, slow, second)).send(chat_call()) as reply:
        assert await read(reply) == "".join(WORDS)
        assert (reply.storable, reply.transforms) == (True, ())
    assert len(second.calls) == 1


async def test_an_answer_that_was_overtaken_and_broke_off_is_not_begun_a_third_time() -> None:
    targets = Targets()
    broken = [*spoken(*WORDS[:40], end=False), UpstreamUnreachable("down")]
    slow, second = Actor("a", [dripping(*WORDS)]), Actor("b", [broken])
    async with await (await known(targets, slow, second)).send(chat_call()) as reply:
        with pytest.raises(UpstreamUnreachable, match="down"):
            await read(reply)
    assert (len(slow.calls), len(second.calls)) == (1, 1)
    assert (slow.open, second.open) == (0, 0)


class OwnersAnswer:
    """Follows a process that rescues its answer and then ends; a rescue goes to a real target."""

    def __init__(self, inner: Target) -> None:
        self.inner = inner
        self.name, self.identity, self.names = inner.name, inner.identity, inner.names

    def estimate(self, call: Call) -> RoutingEstimate:
        return self.inner.estimate(call)

    async def send(self, call: Call) -> Reply:
        if call.role is AttemptRole.RESCUE:
            return await self.inner.send(call)
        reply = reply_of("a", [*spoken("Once", end=False), OwnerLost("it ended", again=True)])
        reply.transforms = ("rescued",)
        return reply


async def test_an_answer_that_another_process_rescued_is_rescued_again_if_that_process_ends() -> (
    None
):
    inner = Targets().target(Actor("b", [spoken("Once", " upon a time.", id="up-2")]))
    async with await RescuedCandidate(OwnersAnswer(inner)).send(chat_call()) as reply:
        assert await read(reply) == "Once upon a time."
        assert (reply.storable, reply.transforms) == (False, ("rescued",))


async def test_a_slow_reader_is_no_slow_upstream() -> None:
    targets = Targets()
    first, second = Actor("a", [spoken(*WORDS)]), Actor("b", [spoken(*WORDS)])
    async with await (await known(targets, first, second)).send(chat_call()) as reply:
        async for _ in reply.pieces:
            await asyncio.sleep(1.0)
    assert second.calls == []


async def test_numbers_go_on_after_frames_that_have_none() -> None:
    def spoken_in_responses(*words: str, end: bool) -> list[Step]:
        encoder = OPENAI_RESPONSES.encoder("resp_1", 7, include_usage=True)
        events: list[StreamEvent] = [Started(id="resp_1", model="m", created=7)]
        events += [TextDelta(text=word) for word in words]
        events += [Finished(reason="stop"), Ended()] if end else []
        return [Piece(encoder.feed((event,)), (event,)) for event in events]

    targets = Targets()
    told = spoken_in_responses("Once upon", " a", " time", end=False)
    first = Actor("a", [[*told, Piece(b": ping\n\n"), UpstreamUnreachable("reset")]])
    second = Actor("b", [spoken_in_responses("Once upon", " a time", ", far away.", end=True)])
    body = {"model": "m", "stream": True, "input": "Tell me.", "max_output_tokens": 99}
    call = make_call(json.dumps(body).encode(), OPENAI_RESPONSES)
    async with await rescued(targets, first, second).send(call) as reply:
        stream = b"".join([piece.data async for piece in reply.pieces])
        assert reply.transforms == ("rescued",)
    frames = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: ")]
    assert "".join(each.get("delta", "") for each in frames) == "Once upon a time, far away."
    assert [each["sequence_number"] for each in frames] == list(range(len(frames)))
