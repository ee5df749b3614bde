"""The benchmark of the event loop: its counts, and the differences between its gateways."""

from __future__ import annotations

import sys

import pytest

from benchmarks.event_loop import Gateway, answer, app_of, count_opcodes, measure

VOCABULARY = [f"word{number}" for number in range(200)]
QUESTIONS = [
    "who wrote the play about the prince of denmark",
    "how tall is the highest mountain of africa",
    "when does the next train leave for the coast",
    "which metal melts in a warm hand",
]


def test_each_question_has_an_answer_of_its_own() -> None:
    assert answer("one", VOCABULARY) == answer("one", VOCABULARY)
    assert answer("one", VOCABULARY) != answer("two", VOCABULARY)


@pytest.mark.anyio
async def test_the_default_encodes_first_questions_and_the_stopped_gateway_does_not() -> None:
    gateways = {mode: Gateway(mode, app_of(VOCABULARY)) for mode in ("default", "stopped")}
    await measure(gateways, QUESTIONS)
    assert gateways["default"].seen.questions > 0
    assert gateways["stopped"].seen.questions == 0
    assert all(len(gateway.turns_us) == 1 for gateway in gateways.values())
    for gateway in gateways.values():
        await gateway.aclose()


@pytest.mark.anyio
async def test_the_bytecodes_of_a_lookup_are_those_that_exact_only_lacks() -> None:
    gateways = {mode: Gateway(mode, app_of(VOCABULARY)) for mode in ("exact-only", "stopped")}
    counts = await count_opcodes(gateways, QUESTIONS)
    assert sys.gettrace() is None
    names = {
        mode: {code.co_qualname for code in found if "semantic_search" in code.co_filename}
        for mode, found in counts.items()
    }
    assert "SemanticSearch.find" in names["stopped"]
    assert not names["exact-only"]
    for gateway in gateways.values():
        await gateway.aclose()
