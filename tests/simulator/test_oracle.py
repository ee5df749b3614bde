from __future__ import annotations

import pytest

from headstart.lab.simulator import Oracle
from headstart.lab.simulator.chat_request import AskedMessage
from headstart.lab.simulator.oracle import TOPICS, Topic, split_tokens

ORACLE = Oracle()


def _user(text: str) -> AskedMessage:
    return AskedMessage(role="user", content=text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("How can I sign up for ChatGPT?", "I want to sign up for ChatGPT"),
        ("What is the difference between TCP and UDP?", "How do TCP and UDP differ?"),
        ("Cancel my subscription", "please CANCEL  my subscription"),
    ],
)
def test_rewordings_share_class_and_answer(one: str, other: str) -> None:
    assert ORACLE.truth(one) == ORACLE.truth(other)


@pytest.mark.parametrize(
    ("prompt", "trap"),
    [
        ("Cancel my subscription", "Don't cancel my subscription"),
        ("What does HTTP status 404 mean?", "What does HTTP status 403 mean?"),
        ("What is the capital of Australia?", "What is the capital of Austria?"),
        ("What was the world population in 2000?", "What was the world population in 1950?"),
    ],
)
def test_traps_have_another_answer(prompt: str, trap: str) -> None:
    assert not ORACLE.judge(trap, ORACLE.truth(prompt).text)
    assert ORACLE.judge(trap, ORACLE.truth(trap).text)


def test_no_two_classes_share_an_answer() -> None:
    prompts = [text for topic in TOPICS for text in (topic.wordings[0], *_traps(topic))]
    prompts += [f"unscripted question {number}" for number in range(500)]
    answers = {ORACLE.truth(prompt).text for prompt in prompts}
    assert len(answers) == len(prompts)


def _traps(topic: Topic) -> list[str]:
    return [trap.text for trap in topic.traps]


def test_the_catalogue_is_large_enough_for_a_demo() -> None:
    assert len(TOPICS) >= 60
    for topic in TOPICS:
        assert 4 <= len(topic.wordings) <= 8, topic.id
        assert topic.traps, topic.id


def test_answers_have_40_to_200_tokens() -> None:
    prompts = [text for topic in TOPICS for text in (topic.wordings[0], *_traps(topic))]
    prompts += [f"unscripted question {number}" for number in range(200)]
    lengths = [len(split_tokens(ORACLE.truth(prompt).text)) for prompt in prompts]
    assert min(lengths) >= 40
    assert max(lengths) <= 200


def test_a_prompt_in_two_classes_is_refused() -> None:
    twins = [Topic(id=name, answer=name, wordings=("Same?",)) for name in ("a", "b")]
    with pytest.raises(ValueError, match=r"two classes: 'Same\?'"):
        Oracle(twins)


def test_unknown_prompts_are_classes_of_their_own() -> None:
    one, other = ORACLE.truth("Where is Ulm?"), ORACLE.truth("Where is Ulm ?")
    assert one.class_id.startswith("unknown-")
    assert one.class_id != other.class_id
    assert one.text != other.text
    assert Oracle().truth("Where is Ulm?") == one


def test_answers_to_unknown_prompts_can_have_a_fixed_length() -> None:
    text = Oracle(answer_tokens=50).truth("Where is Ulm?").text
    assert len(split_tokens(text)) == 50


def test_a_system_prompt_does_not_change_the_class() -> None:
    system = AskedMessage(role="system", content="Be brief.")
    asked = [system, _user("Why is the sky blue?")]
    assert ORACLE.truth_of_messages(asked).class_id == "sky-blue"


def test_the_same_last_question_after_another_turn_is_another_class() -> None:
    answered = AskedMessage(role="assistant", content="Paris.")
    first = [_user("Capital of France?"), answered, _user("Why is the sky blue?")]
    second = [_user("Capital of Italy?"), answered, _user("Why is the sky blue?")]
    classes = {ORACLE.truth_of_messages(turns).class_id for turns in (first, second)}
    assert len(classes | {"sky-blue"}) == 3
