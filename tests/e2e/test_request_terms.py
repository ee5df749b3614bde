"""Headers of one request, on real sockets: its question, its error target, the age of answers."""

from __future__ import annotations

import json

import pytest

from support.sidecar import PROMPT, REWORDED, Provider, sidecar

pytestmark = pytest.mark.anyio

TEMPLATE = "Use this document alone.\n{}\nQuestion: {}"
MANUAL, MEMO = "Sign-up needs an email address.", "Sign-up needs an invitation."
UNAUDITED = {"audit.mode": "off"}


async def test_only_the_named_question_is_compared_by_meaning() -> None:
    async with sidecar(cache=UNAUDITED) as running:
        await running.ask(TEMPLATE.format(MANUAL, PROMPT), headers={"x-headstart-query": PROMPT})
        await running.indexed(1)
        named = {"x-headstart-query": REWORDED}
        hit = await running.ask(TEMPLATE.format(MANUAL, REWORDED), headers=named)
        other = await running.ask(TEMPLATE.format(MEMO, REWORDED), headers=named)
    assert "hit" in hit.verdict
    assert "detail=semantic" in hit.verdict
    assert "detail=empty-partition" in other.verdict


@pytest.mark.parametrize("found", [True, False])
async def test_rewordings_in_a_template_that_prompts_share_are_hits(*, found: bool) -> None:
    """The prompts of a template look alike. Without it, the questions are compared."""
    template = "Please answer the question of this customer, if you can.\n\nQuestion: {}"
    things = ("a bicycle", "the moon", "an orchestra", "coral", "rain", "chess", "paper", "salt")
    async with sidecar(cache={**UNAUDITED, "templates": found, "threshold": 0.9}) as running:
        for thing in things:
            await running.ask(template.format(f"What is the history of {thing}?"))
        await running.ask(template.format(PROMPT))
        await running.indexed(len(things) + 1)
        other = await running.ask(template.format("Who was the first woman in space?"))
        reworded = await running.ask(template.format(REWORDED))
        repeated = await running.ask(template.format("What is the history of rain?"))
    assert "detail=exact" in repeated.verdict
    assert "hit" not in other.verdict
    assert ("detail=semantic" in reworded.verdict) is found


async def test_a_target_that_is_not_a_share_is_a_400_that_names_its_header() -> None:
    provider = Provider()
    async with sidecar(provider, cache=UNAUDITED) as running:
        refused = await running.ask(PROMPT, headers={"x-headstart-max-error": "lots"})
    assert refused.status == 400
    assert "x-headstart-max-error" in json.loads(refused.body)["error"]["message"]
    assert provider.calls == 0


async def test_a_live_question_is_answered_by_its_exact_repeat_alone() -> None:
    async with sidecar(cache=UNAUDITED) as running:
        await running.ask("What is the weather in Oslo?")
        await running.finished(1)
        reworded = await running.ask("What's the weather in Oslo?")
        again = await running.ask("What is the weather in Oslo?")
    assert "detail=live" in reworded.verdict
    assert "detail=exact" in again.verdict


@pytest.mark.parametrize("stream", [False, True])
async def test_a_rewording_right_after_the_first_answer_is_a_hit(*, stream: bool) -> None:
    provider = Provider()
    async with sidecar(provider, cache=UNAUDITED) as running:
        first = await running.ask(PROMPT, stream=stream)
        reworded = await running.ask(REWORDED, stream=stream)
    assert "detail=empty-partition" in first.verdict
    assert "detail=semantic" in reworded.verdict
    assert provider.calls == 1
