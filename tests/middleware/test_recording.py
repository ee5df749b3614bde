"""The costs that are booked for a call whose answer nobody reads to its end."""

from __future__ import annotations

import msgspec
import pytest

from headstart.attempts import AttemptOutcome
from headstart.policies.routing.measures import OUTPUT_TOKENS
from support.candidates import Actor, Targets, chat_call, read, text, whole

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]

PROMPT_USD, OUTPUT_USD = 10 * 1e-6, 4e-6
HI = [text("Hi"), *whole("!")]


async def lose(
    targets: Targets, *, cancels_billing: bool = True, max_tokens: int | None = None
) -> None:
    call = chat_call()
    assert call.request is not None
    request = msgspec.structs.replace(call.request, max_tokens=max_tokens)
    target = targets.target(Actor("loser", [HI]), cancels_billing=cancels_billing)
    lost = call.log.branch()
    async with await target.send(msgspec.structs.replace(call, request=request, log=lost)):
        lost.rule(AttemptOutcome.LOST)


async def win(targets: Targets) -> None:
    async with await targets.target(Actor("winner", [whole("Hi")])).send(chat_call()) as reply:
        await read(reply)


@pytest.mark.parametrize("loses_first", [False, True])
@pytest.mark.parametrize(("cancels_billing", "tokens"), [(True, 0), (False, 20)])
async def test_a_loser_that_runs_on_is_taken_to_be_as_long_as_the_winner(
    *, cancels_billing: bool, tokens: int, loses_first: bool
) -> None:
    targets = Targets()
    if not loses_first:
        await win(targets)
    await lose(targets, cancels_billing=cancels_billing)
    if loses_first:
        await win(targets)
    (lost,) = [each for each in targets.ledger.take("call") if each.outcome == "lost"]
    assert lost.cost_usd == pytest.approx(PROMPT_USD + tokens * OUTPUT_USD)
    assert lost.estimated


@pytest.mark.parametrize(("max_tokens", "tokens"), [(None, OUTPUT_TOKENS), (5, 5)])
async def test_without_a_winner_the_expected_length_counts_up_to_the_limit(
    max_tokens: int | None, tokens: float
) -> None:
    targets = Targets()
    await lose(targets, cancels_billing=False, max_tokens=max_tokens)
    (lost,) = targets.ledger.take("call")
    assert lost.cost_usd == pytest.approx(PROMPT_USD + tokens * OUTPUT_USD)
