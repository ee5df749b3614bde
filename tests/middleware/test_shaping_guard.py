"""Limited answers: nobody gets half of one, whatever the upstream does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headstart.errors import UpstreamProtocolError, UpstreamRefused
from headstart.middleware.collect import Collector
from headstart.middleware.dialects.anthropic_messages import AnthropicMessages
from headstart.middleware.dialects.gemini_generate import GeminiGenerate
from headstart.middleware.dialects.openai_chat import OpenAIChat
from headstart.middleware.reading import FrameReader, Piece
from headstart.middleware.shaping.guard import Guard, GuardOptions
from headstart.observe import Observers, StageFailed
from headstart.policies.output.continuation import INSTRUCTION, anchor
from headstart.policies.output.lengths import ENOUGH, Key, Lengths
from headstart.types import (
    Call,
    Ended,
    Finished,
    ReasoningDelta,
    Started,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)
from support.candidates import JSON, SSE, Actor, House, Step

if TYPE_CHECKING:
    from headstart.interfaces import Chunk
    from headstart.middleware.dialects.dialect import Dialect
    from headstart.observe import Observation
    from headstart.types import Completion

pytestmark = pytest.mark.anyio

DIALECTS: dict[str, Dialect] = {
    each.name: each for each in (OpenAIChat(), AnthropicMessages(), GeminiGenerate())
}
CHAT = DIALECTS[OpenAIChat.name]
BEGINNING = "Tides follow the moon. Twice a day the sea rises along the shore and the wa"
REST = "ter falls again some six hours later."
KEY = Key("route", "m")


def a_call(*, stream: bool = True, dialect: str = OpenAIChat.name, **fields: Any) -> Call:
    asked = [{"role": "user", "content": "Tides?"}]
    document = {"model": "m", "messages": asked, "stream": stream, **fields}
    path = b"/v1/chat/completions"
    if dialect == GeminiGenerate.name:
        document = {"contents": [{"role": "user", "parts": [{"text": "Tides?"}]}], **fields}
        path = b"/v1beta/models/m:" + (b"streamGenerateContent" if stream else b"generateContent")
    body = msgspec.json.encode(document)
    reader = DIALECTS[dialect]
    request = (
        reader.parse(path, b"alt=sse" if stream else b"", body)
        if isinstance(reader, GeminiGenerate)
        else reader.parse_request(body)
    )
    return Call(
        id="call", method="POST", path=path, query_string=b"", headers=(), body=body,
        dialect=dialect, endpoint="chat", request=request, prompt_tokens=10,
    )  # fmt: skip


def events(*texts: str, reason: str = "stop", tokens: int | None = 40) -> list[StreamEvent]:
    used = CHAT.usage(CHAT.tokens({"prompt_tokens": 10, "completion_tokens": tokens or 0}))
    return [
        Started(id="up-1", model="m", created=7),
        *(TextDelta(text=each) for each in texts),
        Finished(reason=reason),
        *(() if tokens is None else (UsageReported(usage=used),)),
        Ended(),
    ]


def frames(said: list[StreamEvent], dialect: Dialect = CHAT) -> list[Step]:
    """Return a stream as its provider sends it, a piece an event."""
    encoder = dialect.encoder("up-1", 7, include_usage=True)
    return [Piece(encoder.feed([event]), (event,)) for event in said]


def body(said: list[StreamEvent], dialect: Dialect = CHAT) -> list[Step]:
    """Return a whole answer: its bytes come before what they mean."""
    collector = Collector()
    collector.feed(said)
    completion = collector.completion(7.0)
    assert completion is not None
    return [Piece(dialect.render(completion).json("up-1", 7)), Piece(b"", tuple(said))]


@dataclass
class Site:
    """A guard in front of one target."""

    scripts: list[list[Step]]
    options: dict[str, Any] = field(default_factory=dict)
    lengths: Lengths = field(default_factory=Lengths)
    headers: Any = SSE
    seen: list[Observation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.house = House()
        self.actor = Actor("a", list(self.scripts), headers=self.headers)
        self.guard = Guard(
            self.house.target(self.actor),
            GuardOptions("route", **{"budget": 40, **self.options}),
            self.lengths,
            dialects=DIALECTS,
            ledger=self.house.ledger,
            observer=Observers([self]),
            clock=lambda: 7.0,
        )

    def notify(self, observation: Observation) -> None:
        self.seen.append(observation)

    async def ask(self, call: Call) -> Answer:
        async with self.guard.stream(call) as reply:
            pieces = [piece async for piece in reply.chunks()]
            return Answer(call, pieces, reply.transforms, reply.storable)

    def asked(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(call.body) for call in self.actor.calls]


@dataclass
class Answer:
    call: Call
    pieces: list[Chunk]
    transforms: tuple[str, ...]
    storable: bool

    @property
    def data(self) -> bytes:
        return b"".join(piece.data for piece in self.pieces)

    @property
    def completion(self) -> Completion:
        """What the client reads, which is what is stored."""
        dialect = DIALECTS[self.call.dialect]
        assert self.call.request is not None
        if self.call.request.stream:
            reader = FrameReader(dialect, "call")
            said = reader.feed(self.data).events + reader.end().events
        else:
            said = dialect.decode_body(200, self.data)
        read = _completion(said)
        kept = _completion([event for piece in self.pieces for event in piece.events])
        assert (read.choices[0].parts, read.choices[0].finish) == (
            kept.choices[0].parts,
            kept.choices[0].finish,
        )
        return read

    @property
    def text(self) -> str:
        return "".join(getattr(part, "text", "") for part in self.completion.choices[0].parts)


def _completion(said: Any) -> Completion:
    collector = Collector()
    collector.feed(said)
    if not collector.ended:
        collector.feed([Ended()])
    completion = collector.completion(7.0)
    assert completion is not None
    return completion


def site(*answers: list[StreamEvent], stream: bool = True, **options: Any) -> Site:
    pieces = [frames(each) if stream else body(each) for each in answers]
    return Site(pieces, options, headers=SSE if stream else JSON)


def learned() -> Lengths:
    lengths = Lengths()
    for _ in range(ENOUGH):
        lengths.add(KEY, 100)
    return lengths


# --- limits ----------------------------------------------------------------------------------


async def test_an_answer_within_its_limit_passes_byte_for_byte() -> None:
    place = site(events("Hi", " there", tokens=2))
    answer = await place.ask(a_call())
    assert answer.data == b"".join(
        each.data for each in frames(events("Hi", " there", tokens=2)) if isinstance(each, Piece)
    )
    assert (answer.transforms, answer.storable) == (("guard",), True)
    assert place.asked()[0]["max_completion_tokens"] == 40
    assert place.actor.calls[0].request is not None
    assert place.actor.calls[0].request.max_tokens == 40


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 5000},
        {"max_completion_tokens": 5},
        {"n": 2},
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
)
async def test_what_names_a_limit_or_is_no_plain_text_goes_up_as_it_came(
    fields: dict[str, Any],
) -> None:
    place, call = site(events("Hi", reason="length")), a_call(**fields)
    answer = await place.ask(call)
    assert place.actor.calls[0].body == call.body
    assert (answer.transforms, answer.completion.choices[0].finish) == ((), "length")


async def test_anthropics_callers_have_a_limit_of_their_own() -> None:
    place, call = site(events("Hi")), a_call(dialect=AnthropicMessages.name)
    async with place.guard.stream(call) as reply:
        assert reply.transforms == ()
    assert place.actor.calls[0].body == call.body


async def test_a_limit_is_learned_from_the_answers_that_pass() -> None:
    place = site(events("Hi", tokens=100), budget="guard")
    for _ in range(ENOUGH):
        assert (await place.ask(a_call())).transforms == ()
    assert (await place.ask(a_call())).transforms == ("guard",)
    assert place.asked()[-1]["max_completion_tokens"] == pytest.approx(150, rel=0.05)


async def test_geminis_limit_stands_in_its_config() -> None:
    gemini = DIALECTS[GeminiGenerate.name]
    call = a_call(dialect=GeminiGenerate.name, generationConfig={"temperature": 1})
    said = events(BEGINNING, reason="length", tokens=None)
    place = Site([frames(said, gemini), frames(events(REST, tokens=None), gemini)])
    answer = await place.ask(call)
    assert place.asked()[0]["generationConfig"] == {"temperature": 1, "maxOutputTokens": 40}
    assert [turn["role"] for turn in place.asked()[1]["contents"]] == ["user", "model", "user"]
    assert answer.text == BEGINNING + REST


# --- continuations ---------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("more", [REST, anchor(BEGINNING) + REST])
@pytest.mark.parametrize("tokens", [40, None])
async def test_a_cut_answer_is_continued_as_one(
    more: str, tokens: int | None, *, stream: bool
) -> None:
    place = site(
        events(BEGINNING[:20], BEGINNING[20:], reason="length", tokens=tokens),
        events(more[:9], more[9:40], more[40:], tokens=tokens and 9),
        stream=stream,
    )
    answer = await place.ask(a_call(stream=stream, stream_options={"include_usage": True}))
    assert answer.text == BEGINNING + REST
    assert answer.completion.choices[0].finish == "stop"
    assert (answer.transforms, answer.storable) == (("guard", "continued"), False)
    assert answer.data.count(b"up-1") > 0
    assert b'"length"' not in answer.data
    usage = answer.completion.usage
    assert (usage and (usage["prompt_tokens"], usage["completion_tokens"])) == (
        None if tokens is None else (20, 49)
    )
    messages = place.asked()[1]["messages"]
    assert messages[1:] == [
        {"role": "assistant", "content": BEGINNING},
        {"role": "user", "content": INSTRUCTION + anchor(BEGINNING)},
    ]
    assert place.house.roles() == [("a", "first"), ("a", "continue")]
    (row,) = place.house.ledger.shaped("call")
    assert (row.kind, row.tokens_after) == ("guard", 49 if tokens else row.tokens_after)


async def test_what_the_client_had_of_a_cut_answer_stays_to_the_byte() -> None:
    first = frames(events(BEGINNING, reason="length"))
    place = site(events(BEGINNING, reason="length"), events(REST))
    answer = await place.ask(a_call())
    assert answer.data.startswith(b"".join(p.data for p in first[:2] if isinstance(p, Piece)))
    assert answer.data.count(b'"role"') == 1
    assert answer.data.endswith(b"data: [DONE]\n\n")


async def test_one_piece_may_hold_a_whole_cut_answer() -> None:
    said = events(BEGINNING, reason="length")
    data = b"".join(each.data for each in frames(said) if isinstance(each, Piece))
    place = Site([[Piece(data, tuple(said))], frames(events(REST))])
    assert (await place.ask(a_call())).text == BEGINNING + REST


async def test_an_answer_that_the_model_ended_itself_passes_with_its_reason() -> None:
    place = site(events(BEGINNING, reason="length", tokens=12))
    answer = await place.ask(a_call())
    assert answer.completion.choices[0].finish == "length"
    assert len(place.actor.calls) == 1


async def test_the_second_continuation_has_no_limit() -> None:
    parts = ["one two", " three four", " five six."]
    place = site(
        events(parts[0], reason="length"),
        events(parts[1], reason="length"),
        events(parts[2], tokens=400),
    )
    assert (await place.ask(a_call())).text == "".join(parts)
    limits = [asked.get("max_completion_tokens") for asked in place.asked()]
    assert limits == [40, 40, None]
    assert place.house.ledger.shaped("call")[0].tokens_after == 480


async def test_an_answer_that_runs_in_circles_ends_in_an_error() -> None:
    circles = events("and so on, " * 400, reason="length")
    place = site(circles, circles, circles)
    with pytest.raises(UpstreamProtocolError, match="runs in circles"):
        await place.ask(a_call())
    assert len(place.actor.calls) == 3


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "second", [[Piece(b"broken")], [*frames([*events("ter")[:2]])], [UpstreamProtocolError("no")]]
)
async def test_what_cannot_be_continued_is_an_error_and_never_a_short_answer(
    second: list[Step], *, stream: bool
) -> None:
    cut = events(BEGINNING, reason="length")
    place = Site([frames(cut) if stream else body(cut), second], headers=SSE if stream else JSON)
    async with place.guard.stream(a_call(stream=stream)) as reply:
        seen: list[StreamEvent] = []

        async def read() -> None:
            async for piece in reply.chunks():
                seen.extend(piece.events)

        with pytest.raises(UpstreamProtocolError, match="our limit of 40 tokens"):
            await read()
    assert not any(isinstance(event, Finished | Ended) for event in seen)


async def test_a_provider_that_takes_a_beginning_goes_on_from_it() -> None:
    place = site(events(BEGINNING + " ", reason="length"), events(REST), prefill={"a": "prefix"})
    answer = await place.ask(a_call())
    assert answer.text == BEGINNING + " " + REST
    assert place.asked()[1]["messages"][1:] == [
        {"role": "assistant", "content": BEGINNING, "prefix": True}
    ]


async def test_leaving_early_leaves_no_call_open() -> None:
    place = Site([frames(events(BEGINNING, reason="length")), [*frames(events(REST))[:2], 10_000]])
    async with place.guard.stream(a_call()) as reply:
        async for piece in reply.chunks():
            if any(isinstance(each, TextDelta) and each.text == REST for each in piece.events):
                break
    assert place.actor.open == 0


# --- answers that are made anew --------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("thought", [[], [ReasoningDelta(text="hm")]])
async def test_a_model_that_was_cut_while_it_thought_is_asked_without_a_limit(
    thought: list[StreamEvent], *, stream: bool
) -> None:
    start, *end = events(reason="length")
    place = site([start, *thought, *end], events("Twice a day."), stream=stream)
    answer = await place.ask(a_call(stream=stream))
    assert answer.text.removeprefix("hm") == "Twice a day."
    assert answer.completion.choices[0].finish == "stop"
    assert place.actor.calls[-1].body == a_call(stream=stream).body


async def test_a_whole_answer_that_is_no_text_after_all_is_made_anew() -> None:
    start, *end = events(reason="length")
    called = [start, ToolCallDelta(index=0, id="1", name="f", arguments='{"a'), *end]
    place = site(called, events("Twice a day."), stream=False)
    assert (await place.ask(a_call(stream=False))).text == "Twice a day."


async def test_a_stream_that_is_no_text_after_all_is_an_error() -> None:
    start, *end = events(reason="length")
    called = [start, ToolCallDelta(index=0, id="1", name="f", arguments='{"a'), *end]
    with pytest.raises(UpstreamProtocolError, match="not plain text"):
        await site(called).ask(a_call())


async def test_an_upstream_that_refuses_the_limit_is_asked_without_ever_after() -> None:
    refusal = UpstreamRefused(
        "no", status=400, headers=(), body=b'{"error":"max_tokens is too large"}', code="x"
    )
    place = Site([[refusal], frames(events("Hi")), frames(events("Ho"))])
    answers = [await place.ask(a_call()) for _ in range(2)]
    assert [each.text for each in answers] == ["Hi", "Ho"]
    assert [each.transforms for each in answers] == [(), ()]
    assert [asked.get("max_completion_tokens") for asked in place.asked()] == [40, None, None]
    assert place.seen == [StageFailed(stage="output", error="LimitRefused")]


async def test_a_refused_request_is_the_callers_to_know() -> None:
    refusal = UpstreamRefused("no", status=400, headers=(), body=b"bad words", code="x")
    place = Site([[refusal]])
    with pytest.raises(UpstreamRefused):
        await place.ask(a_call())
    assert len(place.actor.calls) == 1


# --- tight -----------------------------------------------------------------------------------


async def test_tight_leaves_a_share_of_the_conversations_alone_and_measures_both() -> None:
    place = Site([frames(events("Hi", tokens=7))], {"budget": "tight"}, learned())
    kinds = set()
    for number in range(60):
        asked = [{"role": "user", "content": f"Tides of day {number}?"}]
        answer = await place.ask(a_call(messages=asked))
        (row,) = place.house.ledger.shaped("call")
        assert answer.transforms == (("tight",) if row.kind == "tight" else ())
        assert row.tokens_after == 7
        kinds.add(row.kind)
    assert kinds == {"tight", "tight-holdout"}
    limits = [asked.get("max_completion_tokens") for asked in place.asked()]
    assert all(each in (None, pytest.approx(100, rel=0.05)) for each in limits)
    assert {each is None for each in limits} == {True, False}
