"""Histories: which ones may mean the same, and what keeps two of them apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headstart.policies.guards.table import parse_prompt
from headstart.policies.match import MOST_UNMATCHED, StaticMatch, compare_histories
from headstart.types import Turn

if TYPE_CHECKING:
    from headstart.decisions import Encoding
    from headstart.policies.guards.words import Parse

VETO = StaticMatch().veto
TENT = ("My red tent has a hole near the door.", "Sorry to hear that. When did you buy it?")


def told(*texts: str) -> tuple[Turn, ...]:
    """Return a history of user and assistant in turn, the user first."""
    return tuple(Turn(user=place % 2 == 0, text=text) for place, text in enumerate(texts))


def conflict(one: tuple[str, ...], other: tuple[str, ...]) -> str | None:
    here, there = told(*one), told(*other)
    found = compare_histories(here, there, VETO, additions=True).conflict
    assert compare_histories(there, here, VETO, additions=True).conflict == found
    return found


def test_a_turn_is_parsed_anew_for_each_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def parse(text: str, encoding: Encoding) -> Parse:
        parsed.append(text)
        return parse_prompt(text, encoding)

    monkeypatch.setattr("headstart.policies.match.parse_prompt", parse)
    one, other = told("My secret plan is the moon.", "Ok."), told("Secret plan: the moon.", "Ok.")
    counts = []
    for tenant in ("a", "a", "b"):
        StaticMatch().compare(one, other, None, tenant)
        counts.append(len(parsed))
    # The second comparison needs no parse. It must not be faster because of another tenant.
    assert counts == [2, 2, 4]


def test_case_spaces_and_closing_punctuation_do_not_count() -> None:
    one = told("My  red tent has a hole", "Sorry to hear that!")
    other = told("my red tent has a hole.", "sorry to hear that.")
    assert compare_histories(one, other, VETO, additions=True) == (None, ())


def test_a_turn_that_adds_small_talk_is_contained() -> None:
    longer = ("Hi! My red tent has a hole near the door, what a pity.", TENT[1])
    assert compare_histories(told(*TENT), told(*longer), VETO, additions=True) == (None, ())


def test_an_aside_before_the_last_exchange_is_contained() -> None:
    aside = ("Do you like camping?", "Who does not!", *TENT)
    assert compare_histories(told(*TENT), told(*aside), VETO, additions=True) == (None, ())


def test_a_reworded_turn_is_left_to_the_encoder() -> None:
    reworded = "There is a hole beside the entrance of my red tent."
    found = compare_histories(told(*TENT), told(reworded, TENT[1]), VETO, additions=True)
    assert found.conflict is None
    assert [(turn.text, turn.counterparts) for turn in found.unmatched] == [(TENT[0], (reworded,))]


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        (("I want to send 4,500 pounds.", "Ok."), ("I want to send 6,500 pounds.", "Ok."), "fact"),
        (("I fly on Monday.", "Fine."), ("I fly on Friday.", "Fine."), "fact"),
        (("I want a room.", "Fine."), ("I want a room for 2 people.", "Fine."), "fact"),
        (("I want a room.", "Fine."), ("I want a room for Monday.", "Fine."), "fact"),
        (("I am off to Greece soon.", "Nice."), ("I am off to Turkey soon.", "Nice."), "fact"),
        (
            ("I want a tent.", "The red one is 80 pounds."),
            ("I want a tent please.", "The red one is 90 pounds."),
            "fact",
        ),
        (
            ("I am one of the weekly paid staff, since this week.", "Welcome."),
            ("I am one of the monthly paid staff, since this week.", "Welcome."),
            "substitution",
        ),
        (
            ("I have opened the parcel from you.", "I see."),
            ("I have not opened the parcel from you.", "I see."),
            "negation",
        ),
        (
            (
                "My tent has a hole.",
                "Do you have the receipt?",
                "yes, the receipt is here",
                "Good.",
            ),
            ("My tent has a hole.", "Do you have the receipt?", "no", "Good."),
            "polarity",
        ),
        (
            ("I want the tent.", "Sure."),
            ("I want the tent, actually the tent for children.", "Sure."),
            "correction",
        ),
        (
            ("I want the tent.", "I've booked it for you."),
            ("So I want the tent.", "I see."),
            "action",
        ),
        (
            ("I want the tent.", "It is the red one."),
            ("I want the tent.", "It is the blue one."),
            "answer",
        ),
        (
            ("Look at if (a == b) here.", "I see."),
            ("Look at if (a != b) here.", "I see."),
            "code",
        ),
        (TENT, (*TENT, "Do you sell stoves?", "We do."), "end"),
        (
            ("I cannot find my debit card.", "I see."),
            ("Someone stole the phone that I was given.", "I see."),
            "unmatched",
        ),
    ],
)
def test_differences_that_keep_histories_apart(
    one: tuple[str, ...], other: tuple[str, ...], reason: str
) -> None:
    assert conflict(one, other) == reason


def test_too_many_reworded_turns_are_not_compared() -> None:
    count = MOST_UNMATCHED + 1
    names = ("door", "pole", "bag", "floor", "roof", "peg")[:count]
    one = [text for name in names for text in (f"The {name} broke in strong wind.", "I see.")]
    other = [text for name in names for text in (f"Heavy storms broke our {name}.", "I see.")]
    assert conflict(tuple(one), tuple(other)) == "unmatched"
