"""Guards about times, ranks, answers and added instructions. All examples are invented."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headstart.policies.guards.table import GUARDS
from policies.test_guards import parse

if TYPE_CHECKING:
    from headstart.settings import GuardName

VETOED = [
    ("scope", "Who built the old bridge?", "Who built the old bridge? Reply as a limerick."),
    ("scope", "Is rye bread healthy?", "Is rye bread healthy? Please give two reasons."),
    ("scope", "Who won the cup?", "Who won the cup? Also mention the coach."),
    ("scope", "How do tides form?", "Imagine you are a sailor. How do tides form?"),
    ("scope", "How do tides form?", "You are a poet. How do tides form?"),
    ("scope", "How do tides form?", "Answer in rhymes: how do tides form?"),
    ("date", "Book a table on Sunday", "Book a table on Sunday evening"),
    ("date", "Book a table at 8 am on Sunday", "Book a table at 8 on Sunday night"),
    ("date", "Show what starts at the end of May", "Show what ends at the start of May"),
    ("antonym", "Does it close at noon?", "Does it close at midnight?"),
    ("date", "Show my shifts in August", "Show my shifts in late August"),
    ("date", "Costs of this quarter", "Costs at the end of this quarter"),
    (
        "date",
        "Trips between the start of June and the end of July",
        "Trips between the end of June and the start of July",
    ),
    ("unit", "Call me back in a few minutes", "Call me back in a few hours"),
    ("unit", "Send $10 to my savings", "Send 10¢ to my savings"),
    ("unit", "Change 500 ₽ for me", "Change 500 ₺ for me"),
    ("unit", "A slope of 5%", "A slope of 5‰"),
    ("number", "Add 1 cup of rice", "Add half a cup of rice"),
    ("antonym", "Sales of the previous season", "Sales of the upcoming season"),
    ("substitution", "Bonus for the current term", "Bonus for the previous term"),
    ("substitution", "Can I return it because it is old?", "Can I return it although it is old?"),
    ("negation", "You can find gold in this river", "You can't find gold in this river"),
    ("date", "What did the café earn this month?", "What did the café earn each month?"),
    ("date", "Visitors of the zoo last quarter", "Visitors of the zoo by quarter"),
    ("date", "Show the hours I worked this week", "Show the hours I worked last week"),
    ("negation", "Yes, I want to keep the room", "No, I don't want to keep the room"),
    ("negation", "yes my key is lost", "no my key is not lost"),
    ("negation", "No, I'd like a window seat", "Yes, I'd like a window seat"),
    ("negation", "My bike was stolen", "No, my bike wasn't stolen"),
    ("negation", "I want to delete my diary", "I don't want to delete my diary"),
    ("negation", "Unsubscribe me", "I don't want you to unsubscribe me"),
    ("negation", "I remember my PIN and want in", "I don't remember my PIN and want in"),
    ("negation", "I found the key under the mat", "I didn't find the key under the mat"),
    ("negation", "I was able to find the gate", "I was unable to find the gate"),
    ("negation", "I have a problem with the oven", "I have no problem with the oven"),
    ("antonym", "Which farm has the most cows?", "Which farm has the fewest cows?"),
    ("number", "Who is the fastest runner?", "Who is the second fastest runner?"),
    ("scope", "Who won the gold medal in judo?", "Who won the bronze medal in judo?"),
    ("question", "How old is the oldest lift?", "Which is the oldest lift?"),
    ("question", "How deep is the deepest lake?", "What is the deepest lake?"),
    ("question", "What did the vikings eat in winter?", "When did the vikings eat in winter?"),
    ("question", "What did the painter die of?", "Where did the painter die?"),
    ("quantifier", "How many eggs are in all boxes?", "How many eggs are in each box?"),
    ("quantifier", "Who is the tallest of all the teams?", "Who is the tallest of every team?"),
    ("connective", "Find the name of the lifeguard", "Find the id and name of the lifeguard"),
]
PASSES = [
    ("scope", "Who built the old bridge?", "Who built the old bridge? Please explain."),
    ("scope", "My parcel is lost", "My parcel is lost. Please help me."),
    ("scope", "How do tides form?", "How do tides form? Answer the question."),
    ("scope", "How do tides form?", "Answer this question: how do tides form?"),
    ("scope", "How do tides form?", "You are a helpful assistant. How do tides form?"),
    ("date", "Book a table at 8 am on Sunday", "Book a table at 8 on Sunday morning"),
    ("date", "Open 8 am to 9 pm on Sunday", "Open 8 in the morning to 9 at night on Sunday"),
    ("date", "When does the season start?", "When is the start of the season?"),
    ("date", "When does the season begin?", "When is the beginning of the season?"),
    ("date", "Is rent due at the end of the month?", "Is rent due at the month's end?"),
    ("date", "Show my shifts on Sunday", "Good morning, show my shifts on Sunday"),
    ("date", "Costs at the end of last week", "Costs at the end of the previous week"),
    ("date", "When does the sale end this year?", "When is the sale over this year?"),
    ("unit", "How long does the repair take?", "How many days does the repair take?"),
    ("unit", "Send 10 cents to my savings", "Send 10¢ to my savings"),
    ("number", "Add 1 cup of rice", "Add one cup of rice"),
    ("number", "Book 1 room", "Book a room"),
    ("crossing", "What happened on 4 July 1802 in Oslo?", "What happened on July 4 1802 in Oslo?"),
    ("role-swap", "I am away from Monday till Friday", "I am away from Monday to Friday"),
    ("negation", "Can't I pay by card?", "Can I pay by card?"),
    ("negation", "I can't log in today", "I cannot log in today"),
    ("negation", "I can't find my ticket", "Where can I find my ticket?"),
    ("date", "What did the café earn in the past month?", "What did the café earn last month?"),
    ("date", "What did the café earn per month?", "What did the café earn each month?"),
    ("negation", "I didn't get the key", "No, I didn't get the key"),
    ("negation", "I don't want the magazine", "Cancel the magazine"),
    ("negation", "I don't want to get letters", "Stop sending letters"),
    ("negation", "Isn't there a fee?", "Is there a fee?"),
    ("negation", "Is the key for room no. 5 here?", "Is the key for room 5 here?"),
    ("number", "Who is the 2nd fastest runner?", "Who is the second fastest runner?"),
    ("number", "Who made the second guest list?", "Who made the guest list?"),
    ("question", "How old is the oldest lift?", "What is the age of the oldest lift?"),
    ("question", "What does an orange lamp mean?", "Why is the lamp orange?"),
    ("quantifier", "List all lighthouses", "List every lighthouse"),
    ("quantifier", "How many eggs are in each box?", "How many eggs are in every box?"),
    ("connective", "id like to rent a kayak", "I'd like to rent a kayak"),
    ("question", "How far is the nearest bank?", "What is the distance to the nearest bank?"),
]


@pytest.mark.parametrize(("guard", "one", "other"), VETOED)
def test_another_time_or_instruction_is_vetoed(guard: GuardName, one: str, other: str) -> None:
    assert GUARDS[guard](parse(one), parse(other))
    assert GUARDS[guard](parse(other), parse(one))


@pytest.mark.parametrize(("guard", "one", "other"), PASSES)
def test_the_same_time_or_request_passes(guard: GuardName, one: str, other: str) -> None:
    assert not GUARDS[guard](parse(one), parse(other))
    assert not GUARDS[guard](parse(other), parse(one))


@pytest.mark.parametrize(
    ("one", "other", "negated"),
    [
        # Portuguese: "no" is "in the".
        ("Há wifi no quarto?", "Não há wifi no quarto?", True),
        ("Posso fumar no terraço", "Não posso fumar no terraço", True),
        ("Tem café no bar?", "Tem café no bar em Lisboa?", False),
        ("Onde fica a saída no aeroporto?", "Em que piso no aeroporto é a saída?", False),
        # Spanish: "no" negates, also at the beginning.
        ("Quiero cancelar mi cita", "No quiero cancelar mi cita", True),
        ("Puedo fumar en la terraza", "No puedo fumar en la terraza", True),
        ("No puedo fumar en la terraza", "No puedo fumar nunca en la terraza", False),
        # English: "no" at the beginning answers, and elsewhere it negates.
        ("I want to keep it", "No, I want to keep it", False),
        ("I want to keep it", "No, I don't want to keep it", True),
        ("Is there wifi in the room?", "Is there no wifi in the room?", True),
    ],
)
def test_a_no_negates_as_it_does_in_the_language_of_the_prompts(
    one: str, other: str, negated: bool
) -> None:
    a, b = parse(one), parse(other)
    assert GUARDS["negation"](a, b) is negated
    assert GUARDS["negation"](b, a) is negated
