"""Predicted outputs: which models get one, which refuse it, and what it saves."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headstart.attempts import ShapingEffect
from headstart.errors import UpstreamRefused
from headstart.middleware.shaping.edits import SendPrediction
from headstart.policies.output.document_edits import MIN_PREDICTED_CHARS
from headstart.types import Call, Ended, Finished, UsageReported
from support.candidates import CHAT, Actor, Targets, chat_call, read, say, text, whole

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]

GUESS = "A guess. " * 50


def call_of(guess: str = GUESS, **fields: Any) -> Call:
    body = msgspec.json.encode(
        {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}], **fields}
    )
    return msgspec.structs.replace(
        chat_call(), body=body, request=CHAT.parse_request(body), prediction=guess
    )


class Scene:
    """One provider that takes predictions, more or less."""

    def __init__(self, *scripts: Any) -> None:
        self.targets = Targets()
        self.actor = Actor("a", list(scripts) or [whole("Hi")])
        self.candidate = self.targets.shaped(self.actor, SendPrediction())

    async def ask(self, call: Call) -> tuple[str, ...]:
        async with await self.candidate.send(call) as reply:
            assert await read(reply) == "Hi"
            return reply.transforms

    def sent(self, number: int = -1) -> Any:
        return msgspec.json.decode(self.actor.calls[number].body)


async def test_a_prediction_goes_up_with_the_call() -> None:
    scene = Scene()
    assert await scene.ask(call_of()) == ("prediction",)
    assert scene.sent()["prediction"] == {"type": "content", "content": GUESS}
    assert scene.targets.ledger.shaped("call") == ()


async def test_accepted_and_rejected_tokens_are_booked() -> None:
    details = {"accepted_prediction_tokens": 80, "rejected_prediction_tokens": 20}
    usage = {"completion_tokens": 120, "completion_tokens_details": details}
    scene = Scene([text("Hi"), say(Finished(reason="stop"), UsageReported(usage=usage), Ended())])
    await scene.ask(call_of())
    row = ShapingEffect(kind="prediction", tokens_before=100, tokens_after=20, estimated=False)
    assert scene.targets.ledger.shaped("call") == (row,)
    (attempt,) = scene.targets.ledger.attempts("call")
    assert attempt.completion_tokens == 120


async def test_a_prediction_that_the_provider_did_not_use_is_not_booked() -> None:
    details = {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
    used = UsageReported(usage={"completion_tokens": 1, "completion_tokens_details": details})
    scene = Scene([text("Hi"), say(Finished(reason="stop"), used, Ended())])
    await scene.ask(call_of())
    assert scene.targets.ledger.shaped("call") == ()


@pytest.mark.parametrize(
    "call",
    [
        call_of(""),
        call_of("x" * (MIN_PREDICTED_CHARS - 1)),
        call_of(n=2),
        call_of(tools=[{"type": "function", "function": {"name": "f"}}]),
        call_of(logprobs=True),
        call_of(max_completion_tokens=100),
        call_of(presence_penalty=0.5),
        call_of(modalities=["text", "audio"]),
        call_of(prediction={"type": "content", "content": "the caller's own"}),
        msgspec.structs.replace(call_of(), editable=False),
        msgspec.structs.replace(call_of(), request=None),
        msgspec.structs.replace(call_of(), dialect="anthropic-messages"),
    ],
)
async def test_calls_that_may_not_bear_one_pass_untouched(call: Call) -> None:
    scene = Scene()
    async with await scene.candidate.send(call) as reply:
        assert reply.transforms == ()
    assert scene.actor.calls == [call]


def refusal(status: int = 400) -> UpstreamRefused:
    return UpstreamRefused("no", status=status, headers=(), body=b"{}", code="x")


async def test_a_model_that_refuses_is_called_without_and_asked_no_more() -> None:
    scene = Scene([refusal()], whole("Hi"))
    assert await scene.ask(call_of()) == ()
    assert await scene.ask(call_of()) == ()
    assert ["prediction" in scene.sent(number) for number in range(3)] == [True, False, False]
    await scene.ask(call_of(model="another"))
    assert "prediction" in scene.sent()


async def test_a_request_that_is_refused_either_way_tells_nothing_of_predictions() -> None:
    scene = Scene([refusal()], [refusal()], whole("Hi"))
    with pytest.raises(UpstreamRefused):
        await scene.ask(call_of())
    assert await scene.ask(call_of()) == ("prediction",)


async def test_another_failure_is_the_callers_to_see() -> None:
    scene = Scene([refusal(503)])
    with pytest.raises(UpstreamRefused):
        await scene.ask(call_of())
    assert len(scene.actor.calls) == 1
