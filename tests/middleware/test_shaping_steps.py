"""A step that fails does not lose the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headstart.attempts import Tokens
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.errors import UpstreamUnreachable
from headstart.middleware.observers import Observers
from headstart.middleware.shaping.steps import ShapedCandidate, StepContext, answer_writer
from headstart.observe import Observation, StageFailed
from headstart.types import Call, ChatRequest, Ended, Finished, Started, TextDelta
from support.candidates import Actor, Targets, read, whole
from support.events import decoded, folded
from support.guarded import a_call

if TYPE_CHECKING:
    from headstart.middleware.shaping.steps import RestOfSteps, Send
    from headstart.reply import Reply

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]


class Failing:
    """Fails over a call, or over its answer."""

    stage = "output"

    def __init__(self, error: Exception, *, at_once: bool = False) -> None:
        self._error = error
        self._at_once = at_once

    def __call__(self, call: Call, request: ChatRequest, context: StepContext) -> Send | None:
        if self._at_once:
            raise self._error

        async def send(rest: RestOfSteps) -> Reply:
            await rest.send(call, "lost")
            raise self._error

        return send


class Naming:
    """Gives answers a transform."""

    stage = "output"

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, call: Call, request: ChatRequest, context: StepContext) -> Send | None:
        return lambda rest: rest.send(call, self._name)


class Watcher:
    def __init__(self) -> None:
        self.seen: list[Observation] = []

    def notify(self, observation: Observation) -> None:
        self.seen.append(observation)


def behind(actor: Actor, watcher: Watcher, *steps: Failing | Naming) -> ShapedCandidate:
    targets = Targets()
    context = StepContext(Observers([watcher]), lambda: 7.0)
    return ShapedCandidate(targets.target(actor), steps, context)


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_step_that_fails_is_left_out_and_the_others_are_not(*, at_once: bool) -> None:
    scripts = [whole("Hi")] if at_once else [whole("lost"), whole("Hi")]
    actor, watcher = Actor("a", list(scripts)), Watcher()
    failing = Failing(KeyError("x"), at_once=at_once)
    shaped = behind(actor, watcher, Naming("one"), failing, Naming("two"))
    async with await shaped.send(a_call()) as reply:
        assert await read(reply) == "Hi"
        assert reply.transforms == ("one", "two")
    assert watcher.seen == [StageFailed(stage="output", error="KeyError")]
    assert actor.open == 0


async def test_an_upstreams_error_is_not_the_steps() -> None:
    actor, watcher = Actor("a", [whole("lost")]), Watcher()
    shaped = behind(actor, watcher, Failing(UpstreamUnreachable("gone")))
    with pytest.raises(UpstreamUnreachable):
        async with await shaped.send(a_call()):
            pytest.fail("entered")
    assert watcher.seen == []


async def test_an_unexpected_error_of_the_candidate_is_raised_once() -> None:
    actor, watcher = Actor("a", [[KeyError("x")]]), Watcher()
    shaped = behind(actor, watcher, Naming("one"), Naming("two"))
    with pytest.raises(KeyError):
        async with await shaped.send(a_call()):
            pytest.fail("entered")
    assert (len(actor.calls), watcher.seen) == (1, [])


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("transforms", [("translated:openai-chat",), ()])
async def test_only_a_translated_answer_that_we_write_gets_an_estimated_usage(
    transforms: tuple[str, ...], *, stream: bool
) -> None:
    events = (TextDelta(text="The quick brown fox."), Finished(reason="stop"), Ended())
    call = a_call(stream=stream, stream_options={"include_usage": True})
    body = answer_writer(call, transforms, 7.0, Started())(events).data
    found = decoded(OPENAI_CHAT, body) if stream else OPENAI_CHAT.decode_body(200, body)
    usage = folded(found).usage
    assert (usage is not None) == bool(transforms)
    if usage is not None:
        assert OPENAI_CHAT.tokens(usage) == Tokens(call.prompt_tokens, 5)
