"""Compressed prompts: what is sent, what is reported, and what can go wrong."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headstart.compression import tokens
from headstart.compression.lossless import expand
from headstart.errors import InvalidRequest
from headstart.middleware.shaping import prompt_compression
from headstart.middleware.shaping import prompt_compression as module
from headstart.middleware.shaping.prompt_compression import (
    CompressPrompts,
    TextWorker,
)
from headstart.observe import Observation, StageFailed
from headstart.reply import AnswerWithheld
from headstart.settings import CompressionSettings
from headstart.types import Call, Finished
from support.candidates import CHAT, Actor, Targets, chat_call, read, say, whole
from support.patience import until
from support.prompts import ROWS, TABLE, chat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headstart.attempts import ShapingEffect

pytestmark = pytest.mark.anyio


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[TextWorker]:
    monkeypatch.setattr(tokens, "_encodings", {})
    bench = TextWorker()
    yield bench
    bench.close()


class Scene:
    """One provider, and compression before it."""

    def __init__(self, bench: TextWorker, *script: Any, **options: Any) -> None:
        self.targets = Targets()
        self.observed: list[Observation] = []
        self.actor = Actor("a", [list(script) or whole("Hi")])
        step = CompressPrompts(CompressionSettings(**options), bench)
        self.candidate = self.targets.shaped(self.actor, step, observers=[self])

    def notify(self, observation: Observation) -> None:
        self.observed.append(observation)

    async def ask(self, call: Call) -> tuple[str, ...]:
        async with await self.candidate.send(call) as reply:
            assert await read(reply) == "Hi"
            return reply.transforms

    @property
    def sent(self) -> Call:
        return self.actor.calls[-1]

    def booked(self) -> tuple[ShapingEffect, ...]:
        return self.targets.ledger.shaped("call")


def call_of(document: dict[str, Any], mode: str | None = None, **fields: Any) -> Call:
    body = msgspec.json.encode(document)
    headers = () if mode is None else ((b"x-headstart-compress", mode.encode()),)
    return msgspec.structs.replace(
        chat_call(), body=body, request=CHAT.parse_request(body), headers=headers, **fields
    )


async def test_a_long_result_goes_up_shorter_and_is_booked(bench: TextWorker) -> None:
    scene = Scene(bench)
    call = call_of(chat())
    assert await scene.ask(call) == ("compressed:safe",)
    sent = msgspec.json.decode(scene.sent.body)
    assert json.loads(expand(sent["messages"][3]["content"])) == ROWS
    assert scene.sent.request is not None
    assert scene.sent.request.document == sent
    (row,) = scene.booked()
    assert (row.kind, row.estimated) == ("compress", True)
    assert row.tokens_after < 0.6 * row.tokens_before
    assert row.own_s > 0


@pytest.mark.parametrize("length", ["short", "long"])
async def test_the_loop_and_the_thread_make_the_same_bytes(
    length: str, bench: TextWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.INLINE_BYTES, "safe", 10**9 if length == "short" else 0)
    scene = Scene(bench)
    await scene.ask(call_of(chat()))
    document = chat()
    document["messages"][3]["content"] = msgspec.json.decode(scene.sent.body)["messages"][3][
        "content"
    ]
    assert scene.sent.body == msgspec.json.encode(document)


@pytest.mark.parametrize(("lines", "where"), [(100, "loop"), (1000, "thread")])
async def test_a_short_body_of_many_lines_is_shortened_on_the_thread(
    lines: int, where: str, bench: TextWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []

    def watched(name: str) -> Callable[..., Any]:
        method = getattr(bench, f"on_{name}")

        def note(work: Any) -> Any:
            used.append(name)
            return method(work)

        return note

    for name in ("loop", "thread"):
        monkeypatch.setattr(bench, f"on_{name}", watched(name))
    document = chat()
    document["messages"][3]["content"] = '{"a": 1, "b": "x"}\n' * lines
    await Scene(bench).ask(call_of(document))
    assert used[0] == where


async def test_the_first_answer_has_the_tokenizer_loaded_for_those_after_it(
    bench: TextWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_compression, "LOAD_AFTER_S", 0.0)
    scene = Scene(bench)
    await scene.ask(call_of(chat()))
    await until(lambda: tokens.is_loaded("gpt-4o"))
    await scene.ask(call_of(chat()))
    first, second = scene.booked()
    assert (first.estimated, second.estimated) == (True, False)


@pytest.mark.parametrize(
    "call",
    [
        call_of({"model": "m", "messages": [{"role": "user", "content": "x" * 5000}]}),
        call_of(chat(), editable=False),
        call_of(chat(), mode="off"),
    ],
    ids=["nothing-to-do", "bypass", "asked-not-to"],
)
async def test_a_prompt_that_is_left_alone_keeps_its_very_bytes(
    call: Call, bench: TextWorker
) -> None:
    scene = Scene(bench)
    assert await scene.ask(call) == ()
    assert scene.sent.body is call.body
    assert scene.booked() == ()


@pytest.mark.parametrize(
    ("configured", "asked", "transforms"),
    [
        ("off", "aggressive", ()),
        ("safe", "balanced", ("compressed:safe",)),
        ("balanced", "safe", ("compressed:safe",)),
        ("balanced", " Balanced ", ("compressed:balanced",)),
        ("balanced", None, ("compressed:balanced",)),
    ],
)
async def test_a_caller_may_ask_for_less_and_not_for_more(
    configured: str, asked: str | None, transforms: tuple[str, ...], bench: TextWorker
) -> None:
    scene = Scene(bench, mode=configured)
    assert await scene.ask(call_of(chat(), asked, route="another")) == transforms


async def test_an_unknown_mode_is_the_callers_mistake(bench: TextWorker) -> None:
    with pytest.raises(InvalidRequest, match="x-headstart-compress"):
        await Scene(bench).candidate.send(call_of(chat(), "yes"))


async def test_a_dry_run_books_and_sends_what_came(bench: TextWorker) -> None:
    scene = Scene(bench, dry_run=True)
    call = call_of(chat())
    assert await scene.ask(call) == ()
    assert scene.sent.body is call.body
    (row,) = scene.booked()
    assert row.kind == "compress-dry-run"
    assert row.tokens_after < row.tokens_before


@pytest.mark.parametrize("content", [5, [5], [{"type": "tool_result"}], {"text": TABLE}])
@pytest.mark.parametrize("dialect", ["openai-chat", "anthropic-messages"])
async def test_a_malformed_message_is_the_providers_to_refuse(
    bench: TextWorker, dialect: str, content: Any
) -> None:
    scene = Scene(bench)
    document = {"model": "m", "messages": [{"role": "user", "content": content}]}
    call = call_of(document, dialect=dialect)
    assert await scene.ask(call) == ()
    assert scene.sent.body is call.body
    assert scene.observed == []


async def test_a_closed_bench_costs_nothing_but_the_saving(bench: TextWorker) -> None:
    bench.close()
    scene = Scene(bench)
    long = chat(TABLE.replace("available", "available, but only on request" * 9))
    assert await scene.ask(call_of(long)) == ()
    assert [type(each) for each in scene.observed] == [StageFailed]


async def test_an_answer_that_is_withheld_says_that_its_prompt_was_compressed(
    bench: TextWorker,
) -> None:
    scene = Scene(bench, say(Finished(reason="content_filter")), say(*whole()[-1].events))  # type: ignore[union-attr]
    with pytest.raises(AnswerWithheld) as caught:
        await scene.ask(call_of(chat()))
    assert caught.value.reply.transforms == ("compressed:safe",)


async def test_nothing_points_to_what_the_provider_will_remove(bench: TextWorker) -> None:
    scene = Scene(bench, mode="balanced")
    document = chat(TABLE)
    messages = document["messages"]
    document["messages"] = [*messages, *messages[-2:]]
    await scene.ask(call_of(document))
    assert b"the same as the latest above" in scene.sent.body
    await scene.ask(call_of(document | {"context_management": {"edits": [{"type": "clear"}]}}))
    assert b"the same as the latest above" not in scene.sent.body
