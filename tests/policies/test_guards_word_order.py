"""Crossing: which changes of order are vetoed and which mean nothing. All examples are invented."""

from __future__ import annotations

from itertools import permutations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.decisions import Encoding, MatchContext, Neighbor, RankedNeighbor
from headstart.policies.guards.table import GUARDS
from headstart.policies.guards.word_order import MOST_WORDS, words_crossed
from headstart.policies.guards.words import Parse, pack_parse, unpack_parse
from headstart.policies.learned_rule.domain import Domain
from headstart.policies.learned_rule.error_limit import ErrorLimit
from headstart.policies.match import StaticMatch, VerifiedMatch

EMPTY = Encoding(
    sentence=np.ones(4, np.float32), tokens=np.empty((0, 4), np.float32), spans=(), complete=True
)
STATIC = StaticMatch()
ERROR_LIMIT = ErrorLimit(max_error=0.02)


def parse(text: str) -> Parse:
    return STATIC.prepare(text, EMPTY)


TRAPS = {
    "two verbs and their objects": [
        ("Refund order 1001 and cancel order 1002", "Refund order 1002 and cancel order 1001"),
        ("Export from Trello, import into Jira", "Import from Trello, export into Jira"),
        ("Sell the bike and keep the car", "Keep the bike and sell the car"),
        ("How do I gain muscle and not lose it", "How do I lose muscle and not gain it"),
        ("Lock the garage and open the gate", "Open the garage and lock the gate"),
        ("Mute Anna, then call Boris", "Mute Boris, then call Anna"),
        ("If I win, will you lose?", "If I lose, will you win?"),
        ("First paint it and then sand it", "First sand it and then paint it"),
    ],
    "subject and object": [
        ("Did Marta replace Jonas as coach?", "Did Jonas replace Marta as coach?"),
        ("Why does rain follow thunder so often", "Why does thunder follow rain so often"),
        ("Was Marta replaced by Jonas?", "Was Jonas replaced by Marta?"),
        ("Did Marta invite Jonas?", "Was Marta invited by Jonas?"),
        ("Which bank bought which insurer, Alfa bought Beta", "Which insurer, Beta bought Alfa"),
        ("The teacher thinks the pupil is late", "The pupil thinks the teacher is late"),
        ("Zora sent her cousin, Ivo Manz, a card", "Ivo Manz sent his cousin, Zora, a card"),
    ],
    "attributes": [
        ("A dry van or a commercial truck licence", "A commercial van or a dry truck licence"),
        ("Why are cheap phones in rich towns", "Why are rich phones in cheap towns"),
        ("Dye brown hair red", "Dye red hair brown"),
        ("Good marks at school, bad at work", "Bad marks at school, good at work"),
        ("Is the new roof on the old house safe", "Is the old roof on the new house safe"),
        ("How do I blow-dry my hair", "How do I dry-blow my hair"),
        ("Can a calm person become angry?", "Can an angry person become calm?"),
    ],
    "directions": [
        ("Flights between Oslo and Rome", "Flights from Rome to Oslo"),
        ("Trains between New York and Boston today", "Trains from Boston to New York today"),
        ("Turn oak tables into ash tables", "Turn ash tables into oak tables"),
        ("Move money from savings into stocks", "Move money from stocks into savings"),
        ("Is it better to live to work?", "Is it better to work to live?"),
        ("What must I learn to know Python?", "What must I know to learn Python?"),
    ],
    "numbers and their places": [
        ("What is number 1 of list xxxx0?", "What is number 0 of list xxxx1?"),
        ("Merge A1 into B2", "Merge A2 into B1"),
        ("Compare A1/B2", "Compare A2/B1"),
        ("A table for 2 adults and 3 children", "A table for 3 adults and 2 children"),
        ("Rooms for two adults, three children", "Rooms for 3 adults, 2 children"),
        ("Sales of Q1 2024 against Q2 2023", "Sales of Q2 2024 against Q1 2023"),
        ("Ship order#17 to locker#42", "Ship order#42 to locker#17"),
        ("The distance of the point (3, 4)", "The distance of the point (4, 3)"),
        ("What does max(x, y) return", "What does max(y, x) return"),
        ("Give seat 14 row 20", "Give seat 20 row 14"),
    ],
    "one word, elsewhere in the text": [
        ("Move to Bonn from Kiel: schools near Kiel", "Move to Bonn from Kiel: schools near Bonn"),
        ("I unliked a photo, who sees I liked it", "I unliked a photo, who sees I unliked it"),
    ],
    "fewer shared words": [
        ("Why do cats chase their owners at night?", "Why do owners chase and tease their cats?"),
    ],
}  # fmt: skip

GENUINE = {
    "lists": [
        ("Tea and coffee compared", "Coffee and tea compared"),
        ("What is the difference of jam and jelly", "What is the difference of jelly and jam"),
        ("The distance between Oslo and Rome", "The distance between Rome and Oslo"),
        ("Compare Rust and Go for servers", "Compare Go and Rust for servers"),
        ("Rust vs Go for servers", "Go vs Rust for servers"),
        ("Is red or green tea better", "Is green or red tea better"),
        ("Are lemons and limes related", "Are limes and lemons related"),
        ("Buy milk, eggs and flour", "Buy flour, milk and eggs"),
        ("Buy milk, eggs & flour", "Buy eggs, milk & flour"),
        ("Sort, store and share photos", "Share, store and sort photos"),
        ("Differences of green tea and black tea", "Differences of black tea and green tea"),
        ("Is it a pop song or a folk song?", "Is it a folk song or a pop song?"),
        ("Live in Rome or live in Oslo", "Live in Oslo or live in Rome"),
        ("Lock the gate and feed the dog", "Feed the dog and lock the gate"),
        ("Refund order 1001 and cancel order 1002", "Cancel order 1002 and refund order 1001"),
        ("The sum of 3 and 5", "The sum of 5 and 3"),
    ],
    "phrases that moved": [
        ("Can I print at the library?", "At the library, can I print?"),
        ("How do I merge cells in a sheet?", "In a sheet, how do I merge cells?"),
        ("What happens if the train is late?", "If the train is late, what happens?"),
        ("To open a shop, what papers do I need?", "What papers do I need to open a shop?"),
        ("Fly from Oslo to Rome", "Fly to Rome from Oslo"),
        ("Which classes are offered next winter?", "Next winter, which classes are offered?"),
        ("Answer a question on the forum in private", "Answer a question in private on the forum"),
    ],
    "compounds": [
        ("What is my date of birth", "What is my birth date"),
        ("Rules of chess", "Chess rules"),
        ("The opening hours of the museum", "The museum opening hours"),
        ("A ticket for the train", "A train ticket"),
    ],
    "active and passive": [
        ("Did Marta invite Jonas?", "Was Jonas invited by Marta?"),
        ("Can my friends pay my bill?", "Can my bill be paid by my friends?"),
    ],
    "lone words": [
        ("Can I still cancel my order now?", "Can I now still cancel my order?"),
        ("Why is the parcel late?", "The parcel is late, why?"),
        ("What is the weather in Oslo today?", "What is today the weather in Oslo?"),
        ("Hello, how do I reset it? Thanks", "Thanks, hi, how do I reset it?"),
        ("What is the capital of Peru?", "The capital of Peru is what?"),
        ("Do you know what the fee is", "Do you know what is the fee"),
    ],
    "no order to compare": [
        ("", "Hello"),
        ("?!", "?"),
        ("один два три", "один два"),
        ("How do I bake bread at home?", "Is it hard to bake your own rye bread?"),
        ("Seven days in Rome", "7 days in Rome"),
    ],
}  # fmt: skip


def flat(pairs: dict[str, list[tuple[str, str]]]) -> list[tuple[str, str]]:
    return [pair for group in pairs.values() for pair in group]


@pytest.mark.parametrize(("one", "other"), flat(TRAPS))
def test_words_that_changed_places_are_vetoed(one: str, other: str) -> None:
    a, b = parse(one), parse(other)
    assert words_crossed(a, b)
    assert words_crossed(b, a)


@pytest.mark.parametrize(("one", "other"), flat(GENUINE))
def test_orders_that_mean_the_same_are_left_alone(one: str, other: str) -> None:
    a, b = parse(one), parse(other)
    assert not words_crossed(a, b)
    assert not words_crossed(b, a)


NOUNS = ("heron", "ferry", "violin", "ledger", "walnut", "turbine", "order 17", "plan b2")
NAMES = st.permutations(NOUNS).map(lambda nouns: nouns[:3])
DIRECTED = (
    "move the {a} behind the {b}",
    "does the {a} replace the {b} this year",
    "export the {a} and delete the {b}",
    "which {a} needs a new {b}",
    "send the {a} to the {b} before noon",
    "is the {a} heavier than the {b}",
    "the {a} was sold by the {b}",
    "if the {a} fails, restart the {b}",
    "swap the old {a} for a new {b}",
)
SYMMETRIC = (
    "what is the difference between the {a} and the {b}",
    "compare the {a} and the {b} for me",
    "the {a} vs the {b}, in short",
    "is the {a} or the {b} cheaper",
    "are the {a} and the {b} related",
    "pack the {a}, the {b} and the {c}",
    "list the {a}, the {b} or the {c} by weight",
)


def served(match: StaticMatch | VerifiedMatch, query: str, stored: str) -> bool:
    """Tell whether a prompt that looks the same to the encoder is answered from the cache."""
    one, other = match.prepare(query, EMPTY), match.unpack(match.pack(parse(stored)))
    nearby = RankedNeighbor(MatchContext(), [Neighbor(id="x", similarity=0.999)], 0)
    return match.judge(one, other, nearby, match.veto(one, other)).serves


@pytest.mark.parametrize(
    "match", [STATIC, VerifiedMatch(ERROR_LIMIT, lambda _: Domain(ERROR_LIMIT))]
)
@given(nouns=NAMES, directed=st.sampled_from(DIRECTED), symmetric=st.sampled_from(SYMMETRIC))
@settings(max_examples=60, deadline=None)
def test_exchanged_words_are_served_in_symmetric_sentences_alone(
    match: StaticMatch | VerifiedMatch, nouns: list[str], directed: str, symmetric: str
) -> None:
    first, second, third = nouns
    assert not served(match, directed.format(a=first, b=second), directed.format(a=second, b=first))
    stored = symmetric.format(a=first, b=second, c=third)
    count = 3 if "{c}" in symmetric else 2
    for order in permutations(nouns[:count]):
        names = dict(zip("abc", order, strict=False))
        assert served(match, symmetric.format(**names), stored)


def test_only_this_guard_sees_two_orders_exchanged() -> None:
    one, other = (
        parse("Refund order 1001 and cancel order 1002"),
        parse("Refund order 1002 and cancel order 1001"),
    )
    assert [name for name, guard in GUARDS.items() if guard(one, other)] == ["crossing"]


def test_a_parse_of_before_the_commas_is_read() -> None:
    """Its list whose items only commas part has one order: a miss, and never a wrong hit."""
    now = parse("Buy milk, eggs and flour")
    fields = msgspec.msgpack.decode(pack_parse(now))
    stored = fields[: Parse.__struct_fields__.index("commas")]
    before = unpack_parse(msgspec.msgpack.encode(stored))
    assert now.commas == (2,)
    assert before == msgspec.structs.replace(
        now, commas=(), joins=frozenset(), languages=frozenset(), endings=""
    )
    assert not words_crossed(before, parse("Buy milk, eggs and flour, please"))
    assert words_crossed(before, parse("Buy flour, milk and eggs"))


@pytest.mark.parametrize("far", [MOST_WORDS // 2, MOST_WORDS, 4 * MOST_WORDS])
def test_words_far_apart_are_seen(far: int) -> None:
    filler = " ".join(f"{chr(97 + n % 26)}{chr(97 + n // 26)}o" for n in range(far))
    one = parse(f"Mail the contract to Anna {filler} and the invoice to Boris")
    other = parse(f"Mail the invoice to Anna {filler} and the contract to Boris")
    assert words_crossed(one, other)
    assert not words_crossed(
        one, parse(f"Please mail the contract to Anna {filler} and the invoice to Boris, thanks")
    )


@pytest.mark.parametrize(
    "words", [("x", "y"), ("and", "x", ",", "y"), ("by", "was", "x", "between")]
)
def test_hostile_orders_are_compared(words: tuple[str, ...]) -> None:
    for count in (MOST_WORDS, 40 * MOST_WORDS):
        one, other = parse(" ".join(words * count)), parse(" ".join(words[::-1] * count))
        assert words_crossed(one, other) == words_crossed(other, one)
