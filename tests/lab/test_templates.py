"""The template of retrieval prompts is found, and the question in it."""

from __future__ import annotations

import re

from benchmarks.slots import retrieval_stream, slots_stream
from headstart.lab.tuning import find_templates


def test_templates_of_retrieval_prompts_name_the_question() -> None:
    rows = retrieval_stream(seed=1, prompts=300)
    templates = find_templates([row.text for row in rows])
    assert sum(template.prompts for template in templates) == 300
    assert len(templates) == 2
    named = 0
    for template in templates:
        pattern = re.compile(template.pattern)
        for row in rows:
            match = pattern.search(row.text)
            named += match is not None and match["query"] == row.query
    assert named == 300


def test_questions_alone_have_no_template() -> None:
    assert find_templates([row.text for row in slots_stream()]) == ()


def test_long_prompts_that_only_begin_alike_have_none() -> None:
    texts = [
        "I would like to know more about " + " ".join(f"{word}{number}" for word in "abcdefgh" * 9)
        for number in range(20)
    ]
    assert find_templates(texts) == ()


def test_an_instruction_before_the_question_is_a_template() -> None:
    preamble = "Answer as a pirate would, in one sentence, and never mention the sea. " * 4
    questions = [f"What is {number} plus {number * 7}?" for number in range(10)]
    (template,) = find_templates([preamble + question for question in questions])
    match = re.search(template.pattern, preamble + questions[3])
    assert match is not None
    assert match["query"].endswith(questions[3][-9:])


def test_special_characters_are_literal() -> None:
    texts = [
        "[context] (v1.0) * {a|b} ^ $ \\ +?\t\n" * 6 + f"Q: {word}?"
        for word in ("who", "when", "where", "why", "how so", "which", "what for", "whose")
    ]
    (template,) = find_templates(texts)
    assert template.prompts == 8
