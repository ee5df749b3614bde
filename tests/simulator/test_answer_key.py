"""What a labelled stream is answered with."""

from __future__ import annotations

import re
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import pytest

from headstart.errors import ConfigError
from headstart.lab.simulator import AnswerKey, AnswerKeyRow, Oracle, read_answer_key
from headstart.lab.simulator.chat_request import AskedMessage
from headstart.lab.simulator.oracle import FORMS, draw_facts, split_tokens, write_answer

if TYPE_CHECKING:
    from collections.abc import Mapping

FAMILY = {f"what is thing {n}?": f"things/{n}" for n in range(40)}
LONERS = {f"how do I do {n}?": f"deed-{n}" for n in range(200)}
CLASSES = FAMILY | LONERS


def _key(classes: Mapping[str, str], *, vary: bool = False) -> AnswerKey:
    rows = [
        AnswerKeyRow(prompt=each, question=each, label=label) for each, label in classes.items()
    ]
    return AnswerKey(rows, vary=vary)


def _asked(text: str) -> list[AskedMessage]:
    return [AskedMessage(role="user", content=text)]


def _answers(key: AnswerKey, classes: Mapping[str, str], occasion: str = "") -> list[str]:
    return [key.truth_of_messages(_asked(prompt), occasion).text for prompt in classes]


def test_prompts_of_one_class_share_an_answer_and_others_do_not() -> None:
    key = _key({**CLASSES, "tell me of thing 3": "things/3"})
    assert _answers(key, {"tell me of thing 3": ""}) == _answers(key, {"what is thing 3?": ""})
    answers = _answers(key, CLASSES)
    assert len(set(answers)) == len(answers)


def test_answers_are_free_text_of_35_to_120_words() -> None:
    lengths = [len(split_tokens(text)) for text in _answers(_key(CLASSES), CLASSES)]
    assert min(lengths) >= 35
    assert max(lengths) <= 120


def test_no_slot_and_no_choice_is_left_in_an_answer() -> None:
    assert not any(re.search(r"[][{}|]", text) for text in _answers(_key(CLASSES), CLASSES))


def test_every_wording_of_a_statement_states_the_same_facts() -> None:
    for form in FORMS:
        for wordings in form.statements:
            stated = {tuple(sorted(re.findall(r"\{(\w+)\}", each))) for each in wordings}
            assert len(stated) == 1, wordings


def test_a_varied_answer_is_worded_anew_and_says_the_same() -> None:
    key = _key(CLASSES, vary=True)
    for prompt, label in list(CLASSES.items())[::10]:
        told = [_answers(key, {prompt: label}, f"occasion {n}")[0] for n in range(5)]
        assert len(set(told)) == 5
        for _, value in draw_facts(label).values:
            assert all(value.casefold() in text.casefold() for text in told)


def test_without_vary_every_occasion_has_the_same_words() -> None:
    key = _key(CLASSES)
    assert _answers(key, CLASSES, "one") == _answers(key, CLASSES, "two")


def test_siblings_differ_in_few_facts() -> None:
    facts = [dict(draw_facts(label).values) for label in FAMILY.values()]
    differing = [sum(a[name] != b[name] for name in a) for a, b in combinations(facts, 2)]
    assert sum(count <= 2 for count in differing) > len(differing) / 4


def test_strangers_differ_in_most_facts() -> None:
    for a, b in pairwise(map(draw_facts, LONERS.values())):
        assert len(set(a.values) & set(b.values)) <= 2


def test_facts_that_are_taken_are_drawn_again() -> None:
    labels = {f"q{n}": f"f/{n}" for n in range(3000)}
    key = _key(labels)
    assert len(set(_answers(key, labels))) == 3000


def test_prompts_outside_the_stream_are_answered_as_ever() -> None:
    asked = _asked("Why is the sky blue?")
    assert _key(CLASSES).truth_of_messages(asked) == Oracle().truth_of_messages(asked)


def test_a_stream_is_read_with_texts_messages_and_queries() -> None:
    turns = '[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]'
    rows = read_answer_key(
        [
            b'{"prompt": "What is new?", "class": 7, "category": "news"}\n',
            b"\n",
            f'{{"prompt": {turns}, "class": "greeting"}}\n'.encode(),
            b'{"prompt": "Documents ... Where?", "class": "a", "query": "Where?"}',
        ]
    )
    assert [(row.prompt, row.question, row.label) for row in rows] == [
        ("What is new?", "What is new?", "7"),
        ("user: Hi\nassistant: Hello", "Hello", "greeting"),
        ("Documents ... Where?", "Where?", "a"),
    ]


@pytest.mark.parametrize("line", [b"{", b'{"prompt": "a"}', b'{"prompt": 3, "class": "a"}'])
def test_a_line_that_cannot_be_used_is_named(line: bytes) -> None:
    with pytest.raises(ConfigError, match="line 2 is not a labelled prompt"):
        read_answer_key([b'{"prompt": "a", "class": 1}', line])


def test_a_prompt_with_two_classes_is_refused() -> None:
    rows = [AnswerKeyRow(prompt="a", question="a", label=label) for label in "xy"]
    with pytest.raises(ConfigError, match="two classes: 'y'"):
        AnswerKey(rows)


def test_the_seed_alone_decides_the_words() -> None:
    facts = draw_facts("things/1")
    assert write_answer(facts, "a") == write_answer(facts, "a")
    assert write_answer(facts, "a") != write_answer(facts, "b")


def test_an_answer_says_in_words_of_its_class_what_was_asked() -> None:
    classes = {"Where is it [now]?": "place", "Where can I find it?": "place", "Why?": "reason"}
    key = _key(classes, vary=True)
    told = [_answers(key, {"Where is it [now]?": ""}, f"{n}")[0] for n in range(40)]
    echoed = [("Where is it [now]" in text, "Where can I find it" in text) for text in told]
    assert {(True, False), (False, True)} == set(echoed)


def test_a_long_question_is_not_said_again() -> None:
    long = "word " * 100
    assert "word word" not in _answers(_key({long: "a"}, vary=True), {long: ""})[0]
