"""Synthetic questions whose answer depends on one slot: an entity, a number, an order, a "not".

All questions of a family have similar words, so near neighbours are often traps. Every answer is
asked for in several wordings, so that genuine semantic hits exist. Seeded: the same seed gives the
same stream on any machine.
"""

from __future__ import annotations

import random
import tomllib
from itertools import permutations, product
from pathlib import Path
from typing import NamedTuple


class Asked(NamedTuple):
    """One prompt of a stream. Prompts of one class have one answer."""

    text: str
    label: str


class Retrieved(NamedTuple):
    """A retrieval prompt: instructions, a document and a question; only ``query`` is named."""

    text: str
    query: str
    label: str


class _Family(NamedTuple):
    wordings: list[str]
    answers: list[tuple[str, ...]]


OPENINGS = ("", "", "", "Hi, ", "Hello! ", "Quick question: ", "Please help: ")
CLOSINGS = ("", "", "", "", " Thanks!", " Thank you.", " please")
MOST_ASKED = 8


def slots_stream(seed: int = 0) -> list[Asked]:
    """Return about 3,000 distinct questions with 700 answers, shuffled."""
    random_ = random.Random(seed)
    asked = [
        Asked(_asked(random_, wording, answer), f"{place}/{'/'.join(answer)}")
        for place, family in enumerate(_families())
        for answer in family.answers
        for wording in random_.choices(
            random_.sample(family.wordings, min(3, len(family.wordings))),
            k=random_.randint(2, MOST_ASKED),
        )
    ]
    random_.shuffle(asked)
    return list({row.text: row for row in asked}.values())


def _asked(random_: random.Random, wording: str, answer: tuple[str, ...]) -> str:
    return random_.choice(OPENINGS) + wording.format(*answer) + random_.choice(CLOSINGS)


def _families() -> list[_Family]:
    text = Path(__file__).with_suffix(".toml").read_text("utf-8")
    return [
        _Family(
            row["wordings"],
            [
                (*slots, *order)
                for slots in product(*row.get("slots", []))
                for order in (permutations(row["orders"], 2) if "orders" in row else [()])
            ],
        )
        for row in tomllib.loads(text)["family"]
    ]


TEMPLATES = {
    "Alder Bank": (
        "You are the help desk of {company}. Answer the question with the document below, in at "
        "most three sentences. If it does not say, answer that you do not know.\n\n"
        "### Document\n{document}\n\n### Question\n{query}\n\n### Answer\n"
    ),
    "Birch Airlines": (
        "Use only this context to answer.\n<context>\n{document}\n</context>\n"
        "A customer of {company} asks: {query}\nBe short and friendly, and name your source."
    ),
}
"""The words with which each company's application wraps a question."""
RULES = (
    "Requests about {0} are handled by the team for {1} within two working days.",
    "Fees for {0} are listed in the annex; those for {1} were dropped last spring.",
    "Before {0} can be arranged, {1} must be confirmed by letter or at the counter.",
    "Customers who ask for {0} also receive a notice about {1}.",
    "Neither {0} nor {1} is part of the basic contract.",
)
SUBJECTS = (
    "a change of address", "a new card", "a refund", "a late payment", "the yearly statement",
    "a second device", "travel abroad", "the closing of an account", "a lost password",
    "an upgrade", "the cancellation period", "a discount for students",
)  # fmt: skip


def retrieval_stream(seed: int = 0, prompts: int = 1500) -> list[Retrieved]:
    """Return distinct retrieval prompts: a template, a document and a question in many wordings.

    Each company has a document for each family of questions, so the prompts of one document
    differ in their question alone. The class is the question's answer from that document.
    """
    random_ = random.Random(seed)
    families = _families()
    documents = {
        (company, place): _document(random_)
        for company in TEMPLATES
        for place in range(len(families))
    }
    found: dict[str, Retrieved] = {}
    while len(found) < prompts:
        company, place = random_.choice(list(documents))
        answer = random_.choice(families[place].answers[:12])
        query = _asked(random_, random_.choice(families[place].wordings), answer)
        document = documents[company, place]
        text = TEMPLATES[company].format(company=company, document=document, query=query)
        found.setdefault(text, Retrieved(text, query, f"{company}/{place}/{'/'.join(answer)}"))
    return list(found.values())


def _document(random_: random.Random) -> str:
    return " ".join(random_.choice(RULES).format(*random_.sample(SUBJECTS, 2)) for _ in range(10))
