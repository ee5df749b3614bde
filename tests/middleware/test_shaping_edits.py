"""Documents changed by blocks: the answer of the client, repeated calls, and what is booked."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.gemini_generate import GEMINI_GENERATE
from headstart.errors import UpstreamProtocolError, UpstreamRefused
from headstart.middleware.shaping import edits
from headstart.middleware.shaping.edits import INSTRUCTION, AskForEdits
from headstart.policies.output.answer_limits import ENOUGH_PAIRS
from headstart.types import (
    Call,
    Ended,
    Finished,
    Piece,
    ReasoningDelta,
    Started,
    TextDelta,
)
from support.candidates import CHAT, JSON, Actor, Targets, chat_call, read, say, text, whole
from support.events import streamed

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]

DOCUMENT = "\n".join(f"line {number} of a document that is long enough" for number in range(80))
ASKED = f"Rename line 7.\n\n```text\n{DOCUMENT}\n```"
BLOCK = """<<<<<<< SEARCH
line 7 of a document that is long enough
=======
line seven
>>>>>>> REPLACE
"""
CHANGED = DOCUMENT.replace("line 7 of a document that is long enough", "line seven")
WHOLE = f"Here:\n```text\n{CHANGED}\n```"
DIALECTS: dict[str, Any] = {
    CHAT.name: CHAT,
    ANTHROPIC_MESSAGES.name: ANTHROPIC_MESSAGES,
    GEMINI_GENERATE.name: GEMINI_GENERATE,
}


def call_of(content: Any = ASKED, *, stream: bool = True, **fields: Any) -> Call:
    body = msgspec.json.encode(
        {
            "model": "m",
            "stream": stream,
            "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": content}],
            **fields,
        }
    )
    return msgspec.structs.replace(chat_call(), body=body, request=CHAT.parse_request(body))


class Scene:
    """One provider that answers with these scripts, and edits before it."""

    def __init__(self, *scripts: Any, **options: Any) -> None:
        self.targets = Targets()
        self.actor = Actor("a", list(scripts))
        self.candidate = self.targets.shaped(self.actor, AskForEdits(**options))

    async def ask(self, call: Call) -> tuple[str, tuple[str, ...]]:
        async with await self.candidate.send(call) as reply:
            return await read(reply), reply.transforms

    async def pieces(self, call: Call) -> list[Any]:
        async with await self.candidate.send(call) as reply:
            return [piece async for piece in reply.pieces]


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_blocks_come_out_as_the_whole_document_in_its_border(size: int) -> None:
    answer = f"Sure.\n{BLOCK}"
    scene = Scene(whole(*(answer[at : at + size] for at in range(0, len(answer), size))))
    shown, transforms = await scene.ask(call_of())
    assert shown == f"Sure.\n\n```text\n{CHANGED}\n```"
    assert transforms == ("edits",)
    assert scene.targets.outcomes() == [("a", "won")]
    (row,) = scene.targets.ledger.shaped("call")
    assert row.kind == "edits"
    assert row.tokens_after < 0.1 * row.tokens_before


async def test_the_stream_is_whole_and_bears_the_providers_usage() -> None:
    scene = Scene(whole(BLOCK))
    pieces = await scene.pieces(call_of(stream_options={"include_usage": True}))
    assert streamed(CHAT, pieces).choices[0].text == f"```text\n{CHANGED}\n```"
    assert streamed(CHAT, pieces).usage == {"prompt_tokens": 30, "completion_tokens": 20}


async def test_a_whole_answer_is_one_body_of_the_right_length() -> None:
    body = Piece(
        b"{}",
        (
            Started(id="up-1", model="m", created=1),
            TextDelta(text=BLOCK),
            Finished(reason="stop"),
            Ended(),
        ),
    )
    scene = Scene([body])
    scene.actor.headers = (*JSON, (b"content-length", b"2"))
    async with await scene.candidate.send(call_of(stream=False)) as reply:
        (piece,) = [piece async for piece in reply.pieces]
        assert reply.headers == JSON
    answer = msgspec.json.decode(piece.data)
    assert answer["id"] == "up-1"
    assert answer["choices"][0]["message"]["content"] == f"```text\n{CHANGED}\n```"


async def test_only_the_end_of_the_last_message_is_added_to() -> None:
    scene = Scene(whole(BLOCK))
    call = call_of()
    await scene.ask(call)
    sent = msgspec.json.decode(scene.actor.calls[0].body)["messages"]
    assert sent[0] == {"role": "system", "content": "s"}
    assert sent[1]["content"] == f"{ASKED}\n\n{INSTRUCTION}"


@pytest.mark.parametrize(
    ("dialect", "body", "last"),
    [
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": ASKED}]}]},
            ["messages", 0, "content", 1, "text"],
        ),
        (
            DIALECTS["anthropic-messages"],
            {"max_tokens": 4000, "messages": [{"role": "user", "content": ASKED}]},
            ["messages", 0, "content"],
        ),
        (
            DIALECTS["gemini-generate"],
            {"contents": [{"role": "user", "parts": [{"text": ASKED}]}]},
            ["contents", 0, "parts", 1, "text"],
        ),
    ],
)
async def test_every_dialect_is_asked_for_blocks(dialect: Any, body: Any, last: list[Any]) -> None:
    raw = msgspec.json.encode({"model": "m", **body})
    scene = Scene(whole(BLOCK))
    call = msgspec.structs.replace(
        chat_call(), body=raw, dialect=dialect.name, request=dialect.parse_request(raw)
    )
    shown, _ = await scene.ask(call)
    assert shown == f"```text\n{CHANGED}\n```"
    streaming = msgspec.structs.replace(dialect.parse_request(raw), stream=True)
    pieces = await scene.pieces(msgspec.structs.replace(call, request=streaming))
    assert streamed(dialect, pieces).choices[0].text == shown
    sent = msgspec.json.decode(scene.actor.calls[0].body)
    for step in last:
        sent = sent[step]
    assert sent.endswith(INSTRUCTION)


async def test_a_model_that_writes_the_document_is_passed_on_to_the_byte() -> None:
    script = whole(*WHOLE.split("7"))
    scene = Scene(script)
    assert await scene.pieces(call_of()) == script
    assert (await scene.ask(call_of()))[1] == ("edits:whole",)
    assert scene.targets.ledger.shaped("call") == ()


@pytest.mark.parametrize(
    "answer",
    [
        BLOCK.replace("line 7 of", "line 7  of"),
        BLOCK.replace(">>>>>>> REPLACE\n", ""),
        BLOCK.replace("line seven", "line seven\n```"),
        BLOCK + BLOCK,
    ],
)
async def test_where_in_doubt_the_call_is_made_in_the_callers_own_words(answer: str) -> None:
    scene = Scene(whole(answer), whole(WHOLE))
    call = call_of()
    shown, transforms = await scene.ask(call)
    assert shown == WHOLE
    assert transforms == ("edits:again",)
    assert scene.actor.calls[1].body == call.body
    assert [role for _, role in scene.targets.roles()] == ["first", "retry"]
    assert scene.targets.outcomes() == [("a", "rejected"), ("a", "won")]
    (row,) = scene.targets.ledger.shaped("call")
    assert row.tokens_after > row.tokens_before


@pytest.mark.parametrize("reason", ["length", "content_filter", "tool_calls"])
async def test_blocks_that_did_not_end_well_are_not_applied(reason: str) -> None:
    cut = [say(Started(id="up", model="m")), text(BLOCK), say(Finished(reason=reason), Ended())]
    scene = Scene(cut, whole(WHOLE))
    assert await scene.ask(call_of()) == (WHOLE, ("edits:again",))


async def test_the_first_doubt_ends_the_call() -> None:
    never = [text("<<<<<<< SEARCH\nnowhere\n=======\n"), AssertionError("was read on")]
    scene = Scene(never, whole(WHOLE))
    assert (await scene.ask(call_of()))[0] == WHOLE
    assert scene.actor.open == 0
    assert scene.actor.closed == [None, None]


async def test_reasoning_comes_before_the_document() -> None:
    script = whole(BLOCK)
    script.insert(1, say(ReasoningDelta(text="hm")))
    pieces = await Scene(script).pieces(call_of())
    kinds = [type(event).__name__ for piece in pieces for event in piece.events]
    assert kinds.index("ReasoningDelta") < kinds.index("TextDelta")


async def test_an_upstream_that_objects_to_our_words_is_asked_without_them() -> None:
    objection = UpstreamRefused("too long", status=400, headers=(), body=b"{}", code="x")
    scene = Scene([objection], whole(WHOLE))
    assert (await scene.ask(call_of()))[0] == WHOLE


async def test_an_upstream_that_fails_fails_the_call() -> None:
    failure = UpstreamRefused("down", status=503, headers=(), body=b"{}", code="x")
    with pytest.raises(UpstreamRefused):
        await Scene([failure]).ask(call_of())
    broken = [text(BLOCK), UpstreamProtocolError("cut")]
    with pytest.raises(UpstreamProtocolError):
        await Scene(broken).ask(call_of())


async def test_an_empty_answer_to_our_words_is_asked_for_without_them() -> None:
    scene = Scene(whole(), whole(WHOLE))
    assert (await scene.ask(call_of()))[0] == WHOLE


@pytest.mark.parametrize(
    "call",
    [
        call_of(ASKED.replace("Rename", "Summarize")),
        call_of(tools=[{"type": "function", "function": {"name": "f"}}]),
        call_of(n=2),
        call_of(stop=["x"]),
        call_of(response_format={"type": "json_object"}),
        call_of(max_tokens=700),
        call_of(prediction={"type": "content", "content": "x"}),
        msgspec.structs.replace(call_of(), editable=False),
        msgspec.structs.replace(call_of(), request=None),
        msgspec.structs.replace(call_of(), dialect="unknown"),
    ],
)
async def test_all_other_calls_pass_untouched(call: Call) -> None:
    scene = Scene(whole("Hi"))
    assert await scene.ask(call) == ("Hi", ())
    assert scene.actor.calls == [call]


async def test_an_answer_too_long_to_be_held_passes_unless_it_has_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(edits, "HELD_BYTES", 300)
    script = whole(*WHOLE.split("7"))
    assert await Scene(script).pieces(call_of()) == script
    scene = Scene(whole(BLOCK, "x" * 300, "y"), whole(WHOLE))
    assert await scene.ask(call_of()) == (WHOLE, ("edits:again",))


async def test_a_model_that_never_writes_blocks_is_let_be() -> None:
    scene = Scene(whole(WHOLE))
    seen = [(await scene.ask(call_of()))[1] for _ in range(ENOUGH_PAIRS + 1)]
    assert seen == [("edits:whole",)] * ENOUGH_PAIRS + [()]


async def test_the_document_may_be_a_prediction_instead() -> None:
    scene = Scene(whole(WHOLE), by="prediction")
    call = call_of()
    assert await scene.ask(call) == (WHOLE, ())
    (sent,) = scene.actor.calls
    assert sent.prediction == f"```text\n{DOCUMENT}\n```"
    assert sent.body == call.body
