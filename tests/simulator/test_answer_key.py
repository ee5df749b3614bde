"""What a labelled stream is answered with."""

from __future__ import annotations

import re
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import pytest

from headstart.errors import ConfigError
from headstart.simulator import AnswerKey, Oracle, read_answer_key
from headstart.simulator.chat_request import Message
from headstart.simulator.facts import FORMS, draw_facts, tell
from headstart.simulator.prose import split_tokens

if TYPE_CHECKING:
    from collections.abc import Mapping

FAMILY = {f"what is thing {n}?": f"things/{n}" for n in range(40)}
LONERS = {f"how do I do {n}?": f"deed-{n}" for n in range(200)}
CLASSES = FAMILY | LONERS


def _asked(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


def _answers(key: AnswerKey, classes: Mapping[str, str], occasion: str = "") -> list[str]:
    return [key.truth_of_messages(_asked(prompt), occasion).text for prompt in classes]


def test_prompts_of_one_class_share_an_answer_and_others_do_not() -> None:
    key = AnswerKey({**CLASSES, "tell me of thing 3": "things/3"})
    assert _answers(key, {"tell me of thing 3": ""}) == _answers(key, {"what is thing 3?": ""})
    answers = _answers(key, CLASSES)
    assert len(set(answers)) == len(answers)


def test_answers_are_free_text_of_35_to_120_words() -> None:
    lengths = [len(split_tokens(text)) for text in _answers(AnswerKey(CLASSES), CLASSES)]
    assert min(lengths) >= 35
    assert max(lengths) <= 120


def test_no_slot_and_no_choice_is_left_in_an_answer() -> None:
    assert not any(re.search(r"[][{}|]", text) for text in _answers(AnswerKey(CLASSES), CLASSES))


def test_every_wording_of_a_statement_states_the_same_facts() -> None:
    for form in FORMS:
        for wordings in form.statements:
            stated = {tuple(sorted(re.findall(r"\{(\w+)\}", each))) for each in wordings}
            assert len(stated) == 1, wordings


def test_a_varied_answer_is_worded_anew_and_says_the_same() -> None:
    key = AnswerKey(CLASSES, vary=True)
    for prompt, label in list(CLASSES.items())[::10]:
        told = [_answers(key, {prompt: label}, f"occasion {n}")[0] for n in range(5)]
        assert len(set(told)) == 5
        for _, value in draw_facts(label).values:
            assert all(value.casefold() in text.casefold() for text in told)


def test_without_vary_every_occasion_has_the_same_words() -> None:
    key = AnswerKey(CLASSES)
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
    key = AnswerKey(labels)
    assert len(set(_answers(key, labels))) == 3000


def test_prompts_outside_the_stream_are_answered_as_ever() -> None:
    asked = _asked("Why is the sky blue?")
    assert AnswerKey(CLASSES).truth_of_messages(asked) == Oracle().truth_of_messages(asked)


def test_a_stream_is_read_with_texts_and_messages() -> None:
    turns = '[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]'
    classes = read_answer_key(
        [
            b'{"prompt": "What is new?", "class": 7, "category": "news"}\n',
            b"\n",
            f'{{"prompt": {turns}, "class": "greeting"}}\n'.encode(),
        ]
    )
    assert classes == {"What is new?": "7", "user: Hi\nassistant: Hello": "greeting"}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([b'{"prompt": "a", "class": 1}', b"{"], "line 2 is no labelled prompt"),
        ([b'{"prompt": "a"}'], "line 1 is no labelled prompt"),
        ([b'{"prompt": "a", "class": 1}', b'{"prompt": "a", "class": 2}'], "line 2: this prompt"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(lines: list[bytes], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_answer_key(lines)


def test_the_seed_alone_decides_the_words() -> None:
    facts = draw_facts("things/1")
    assert tell(facts, "a") == tell(facts, "a")
    assert tell(facts, "a") != tell(facts, "b")
