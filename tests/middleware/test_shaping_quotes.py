"""Quotes by number through a provider: the request, the answer, and what stays unchanged."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headstart import reply
from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.gemini_generate import GEMINI_GENERATE
from headstart.middleware.shaping import quotes as module
from headstart.middleware.shaping.prompt_compression import TextWorker
from headstart.middleware.shaping.quotes import INSTRUCTION, QuoteByNumber
from headstart.observe import Observation, StageFailed
from headstart.types import (
    Call,
    Ended,
    ExtraDelta,
    Finished,
    Piece,
    Started,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
)
from support.candidates import CHAT, JSON, Actor, Targets, chat_call, read, say, text, whole
from support.events import streamed

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]

ONE = "The tower was built in 1889."
TWO = "It is made of iron and rivets."
ASKED = f"<document>\n{ONE} {TWO}\n</document>\nWhen was it built?"
NUMBERED = f"<document>\n[q1] {ONE} [q2] {TWO}\n</document>\nWhen was it built?"
ANTHROPIC, GEMINI = ANTHROPIC_MESSAGES, GEMINI_GENERATE
DIALECTS: dict[str, Any] = {each.name: each for each in (CHAT, ANTHROPIC, GEMINI)}


@pytest.fixture(scope="module")
def bench() -> Iterator[TextWorker]:
    bench = TextWorker()
    yield bench
    bench.close()


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def call_of(*messages: Any, stream: bool = True, **fields: Any) -> Call:
    asked = list(messages) or [user(ASKED)]
    body = msgspec.json.encode({"model": "m", "stream": stream, "messages": asked, **fields})
    return msgspec.structs.replace(chat_call(), body=body, request=CHAT.parse_request(body))


class Scene:
    """One provider that answers with this script, and quotes before it."""

    def __init__(self, bench: TextWorker, *script: Any) -> None:
        self.targets = Targets()
        self.observed: list[Observation] = []
        self.actor = Actor("a", [list(script) or whole("Hi")])
        self.candidate = self.targets.shaped(self.actor, QuoteByNumber(bench), observers=[self])

    def notify(self, observation: Observation) -> None:
        self.observed.append(observation)

    async def ask(self, call: Call) -> tuple[str, tuple[str, ...]]:
        async with await self.candidate.send(call) as reply:
            return await read(reply), reply.transforms

    async def pieces(self, call: Call) -> list[Any]:
        async with await self.candidate.send(call) as reply:
            return [piece async for piece in reply.pieces]

    async def sent(self, call: Call) -> list[Any]:
        await self.ask(call)
        messages = msgspec.json.decode(self.actor.calls[-1].body)["messages"]
        assert isinstance(messages, list)
        return messages


async def test_sentences_go_up_numbered_and_the_mark_comes_down_as_text(bench: TextWorker) -> None:
    scene = Scene(bench, *whole("It says: ⟦q:", "1-2⟧."))
    assert await scene.ask(call_of()) == (f"It says: {ONE} {TWO}.", ("quotes",))
    sent = msgspec.json.decode(scene.actor.calls[0].body)["messages"]
    assert sent == [{"role": "system", "content": INSTRUCTION}, user(NUMBERED)]
    (row,) = scene.targets.ledger.shaped("call")
    assert row.kind == "quotes"
    assert row.tokens_after < row.tokens_before


async def test_each_turn_sends_the_one_before_to_the_byte(bench: TextWorker) -> None:
    scene = Scene(bench)
    system = {"role": "system", "content": "s"}
    more = f"<document>\n{TWO}\nIt was repainted in 2024.\n</document>\nAnd then?"
    turns = [
        system,
        user(ASKED),
        assistant(f"See: {ONE}"),
        user(more),
        assistant("Yes."),
        user("?"),
    ]
    sent = [await scene.sent(call_of(*turns[:end])) for end in (2, 4, 6)]
    for shorter, longer in itertools.pairwise(sent):
        assert longer[: len(shorter)] == shorter
    assert sent[2][2] == assistant("See: ⟦q:1⟧")
    assert sent[2][3]["content"].startswith(f"<document>\n[q3] {TWO}\n[q4] It was")


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (
            ANTHROPIC,
            {
                "max_tokens": 10,
                "system": [{"type": "text", "text": "s"}],
                "messages": [user([{"type": "text", "text": ASKED}])],
            },
        ),
        (GEMINI, {"contents": [{"role": "user", "parts": [{"text": ASKED}]}]}),
    ],
)
async def test_other_dialects_are_numbered_too(dialect: Any, body: Any, bench: TextWorker) -> None:
    raw = msgspec.json.encode({"model": "m", **body})
    scene = Scene(bench, *whole("⟦q:2⟧"))
    call = msgspec.structs.replace(
        chat_call(), body=raw, dialect=dialect.name, request=dialect.parse_request(raw)
    )
    assert (await scene.ask(call))[0] == TWO
    sent = scene.actor.calls[0].body.decode()
    assert "[q2] It is" in sent
    assert INSTRUCTION in sent


async def test_an_answer_without_marks_passes_to_the_byte(bench: TextWorker) -> None:
    script = whole("It was ", "in 1889.")
    assert await Scene(bench, *script).pieces(call_of()) == script
    body = Piece(b"{}", (TextDelta(text="no mark"), Finished(reason="stop"), Ended()))
    scene = Scene(bench, body)
    scene.actor.headers = JSON
    assert await scene.pieces(call_of(stream=False)) == [body]


async def test_an_answer_too_long_to_be_remembered_passes(
    bench: TextWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply, "MOST_CONTINUED_BYTES", 200)
    script = whole("x" * 300, "⟦q:1⟧")
    assert await Scene(bench, *script).pieces(call_of()) == script
    monkeypatch.setattr(module, "HELD_BYTES", 5)
    body = [Piece(b"{" + b" " * 10), Piece(b"}", (TextDelta(text="⟦q:1⟧"), Ended()))]
    assert await Scene(bench, *body).pieces(call_of(stream=False)) == body


ANSWER = "A ⟦q:1⟧ b ⟦q:9⟧ ⟦q:1-2⟧\n```\n⟦q:1⟧\n```\n⟦q:2⟧ ⟦q:"
SHOWN = f"A {ONE} b ⟦q:9⟧ {ONE} {TWO}\n```\n⟦q:1⟧\n```\n{TWO} ⟦q:"


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, len(ANSWER)), max_size=12).map(sorted))
async def test_a_stream_split_anywhere_reads_the_same(cuts: list[int], bench: TextWorker) -> None:
    chunks = [ANSWER[a:b] for a, b in zip([0, *cuts], [*cuts, len(ANSWER)], strict=True)]
    encoder = CHAT.encoder("up-1", 1, include_usage=False)
    padding = ExtraDelta(fields={"obfuscation": "xx"}, choice=None)
    groups: list[tuple[StreamEvent, ...]] = [(Started(id="up-1", model="m", created=1),)]
    groups += [(TextDelta(text=chunk), padding) for chunk in chunks]
    groups.append((Finished(reason="stop"), Ended()))
    script = [Piece(encoder.feed(events), events) for events in groups]
    assert streamed(CHAT, await Scene(bench, *script).pieces(call_of())).choices[0].text == SHOWN


@pytest.mark.parametrize("dialect", [CHAT, ANTHROPIC, GEMINI], ids=lambda each: each.name)
async def test_a_stream_goes_on_in_its_own_dialect(dialect: Any, bench: TextWorker) -> None:
    encoder = dialect.encoder("up-1", 1, include_usage=False)
    groups: list[tuple[StreamEvent, ...]] = [
        (Started(id="up-1", model="m", created=1), TextDelta(text="It ", block=0)),
        (TextDelta(text="says ", block=0),),
        (TextDelta(text="⟦q:1", block=0),),
        (TextDelta(text="⟧.", block=0),),
        (Finished(reason="stop"), Ended()),
    ]
    script = [Piece(encoder.feed(events), events) for events in groups]
    asked: dict[str, dict[str, Any]] = {
        CHAT.name: {"messages": [user(ASKED)]},
        ANTHROPIC.name: {"max_tokens": 10, "messages": [user(ASKED)]},
        GEMINI.name: {"contents": [{"role": "user", "parts": [{"text": ASKED}]}]},
    }
    raw = msgspec.json.encode({"model": "m", "stream": True, **asked[dialect.name]})
    request = msgspec.structs.replace(dialect.parse_request(raw), stream=True)
    call = msgspec.structs.replace(chat_call(), body=raw, dialect=dialect.name, request=request)
    pieces = await Scene(bench, *script).pieces(call)
    assert pieces[:2] == script[:2]
    assert streamed(dialect, pieces).choices[0].text == f"It says {ONE}."


async def test_a_mark_that_its_content_block_cuts_stays_in_its_block(bench: TextWorker) -> None:
    encoder = ANTHROPIC.encoder("up-1", 1, include_usage=False)
    groups: list[tuple[StreamEvent, ...]] = [
        (Started(id="up-1", model="m", created=1), TextDelta(text="One ⟦q:", block=0)),
        (TextDelta(text="1⟧ two.", block=1),),
        (Finished(reason="stop"), Ended()),
    ]
    script = [Piece(encoder.feed(events), events) for events in groups]
    raw = msgspec.json.encode(
        {"model": "m", "stream": True, "max_tokens": 10, "messages": [user(ASKED)]}
    )
    request = ANTHROPIC.parse_request(raw)
    call = msgspec.structs.replace(chat_call(), body=raw, dialect=ANTHROPIC.name, request=request)
    pieces = await Scene(bench, *script).pieces(call)
    said = [each for piece in pieces for each in piece.events if isinstance(each, TextDelta)]
    texts = ["".join(each.text for each in said if each.block == block) for block in (0, 1)]
    assert texts == ["One ⟦q:", "1⟧ two."]


async def test_a_whole_answer_is_expanded_whole(bench: TextWorker) -> None:
    body = Piece(
        b'{"short": 1}',
        (
            Started(id="up-1", model="m", created=1),
            TextDelta(text=ANSWER),
            Finished(reason="stop"),
            Ended(),
        ),
    )
    scene = Scene(bench, body)
    scene.actor.headers = (*JSON, (b"content-length", b"12"))
    async with await scene.candidate.send(call_of(stream=False)) as reply:
        (piece,) = [piece async for piece in reply.pieces]
        assert reply.headers == JSON
    assert msgspec.json.decode(piece.data)["choices"][0]["message"]["content"] == SHOWN
    assert scene.targets.ledger.shaped("call")


async def test_a_tools_arguments_are_never_expanded(bench: TextWorker) -> None:
    calls = ToolCallDelta(index=0, id="1", name="f", arguments='{"a":"⟦q:1⟧"}')
    script = [text("See ⟦q:1"), say(calls), say(Finished(reason="tool_calls"), Ended())]
    pieces = await Scene(bench, *script).pieces(call_of())
    events = [event for piece in pieces for event in piece.events]
    assert calls in events
    words = [event.text for event in events if isinstance(event, TextDelta)]
    assert "".join(words) == "See ⟦q:1"


@pytest.mark.parametrize(
    "call",
    [
        call_of(user("No document here.")),
        call_of(user("Hello."), assistant("Hi."), user(ASKED)),
        call_of(user([{"type": "text", "text": ASKED, "citations": []}])),
        call_of({"role": "system", "content": ASKED}, user("When?")),
        call_of(response_format={"type": "json_object"}),
        call_of(tools=[{"type": "function", "function": {"name": "f"}}]),
        call_of(stop=["."]),
        call_of(logprobs=True),
        msgspec.structs.replace(call_of(), editable=False),
        msgspec.structs.replace(call_of(), request=None),
        msgspec.structs.replace(call_of(), dialect="unknown"),
    ],
)
async def test_all_other_calls_pass_untouched(call: Call, bench: TextWorker) -> None:
    scene = Scene(bench, *whole("⟦q:1⟧"))
    assert await scene.ask(call) == ("⟦q:1⟧", ())
    assert scene.actor.calls == [call]


DATA = {
    "JSON": '{\n  "about": "It asks each merchant for a number. It checks the number."\n}',
    "JSON in a line": '[{"about": "It asks each merchant for a number. It checks the number."}]',
    "JSON lines": '{"about": "It asks each merchant."}\n{"about": "It checks the number, too."}',
    "CSV": "customer,city,plan,since\nAnna Schmidt,Berlin,premium,March\nBob,London,basic plan,May",
    "TSV": "customer\tresidence\nAnna Schmidt\tthe city of Berlin\nBob Miller\tthe city of London",
    "code": "def total_of(orders, tax):\n    return sum(order.price for order in orders) * tax",
}


@pytest.mark.parametrize("data", DATA.values(), ids=DATA.keys())
async def test_code_and_data_get_no_ids(data: str, bench: TextWorker) -> None:
    for border in ("</document>\n<document>", "Document [1]"):
        asked = f"<document>\n{data}\n{border}\n{ONE} {TWO}\n</document>\nWhen was it built?"
        scene = Scene(bench)
        await scene.ask(call_of(user(asked)))
        (call,) = scene.actor.calls
        assert call.request is not None
        sent = call.request.document["messages"][-1]["content"]
        assert sent == asked.replace(ONE, f"[q1] {ONE}").replace(TWO, f"[q2] {TWO}")


async def test_a_failure_sends_the_prompt_as_it_came(
    bench: TextWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("numbers ran out")

    monkeypatch.setattr(module, "number_documents", fail)
    scene = Scene(bench)
    call = call_of()
    assert await scene.ask(call) == ("Hi", ())
    assert scene.actor.calls == [call]
    assert scene.observed == [StageFailed(stage="output", error="RuntimeError")]
