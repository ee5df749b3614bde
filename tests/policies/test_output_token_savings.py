"""Ways of asking: tried by model while they save tokens, and measured against a holdout."""

from __future__ import annotations

from headstart.policies.output.answer_limits import (
    ENOUGH_PAIRS,
    MOST_MODELS,
    TRIES,
    SavingsByModel,
    experiment_arm,
    held_out,
)

CONVERSATIONS = [f"{number:032x}" for number in range(4000)]


def test_a_tenth_of_the_conversations_is_left_alone_and_stays_so() -> None:
    sides = [experiment_arm("concise", each, 0.1) for each in CONVERSATIONS]
    assert 320 < sides.count("concise-holdout") < 480
    assert sides == [experiment_arm("concise", each, 0.1) for each in CONVERSATIONS]


def test_two_experiments_leave_different_ones_alone() -> None:
    both = [held_out("concise", each, 0.1) and held_out("tight", each, 0.1)
            for each in CONVERSATIONS]  # fmt: skip
    assert sum(both) < 80


def test_all_or_none_can_be_left_alone() -> None:
    assert not any(held_out("tight", each, 0.0) for each in CONVERSATIONS)
    assert all(held_out("tight", each, 1.0) for each in CONVERSATIONS)


def add(savings: SavingsByModel, after: int, count: int = ENOUGH_PAIRS, model: str = "m") -> None:
    for _ in range(count):
        savings.add(model, 100, after)


def test_a_model_is_tried_until_enough_is_known() -> None:
    savings = SavingsByModel()
    assert savings.pays("m")
    add(savings, 120, ENOUGH_PAIRS - 1)
    assert savings.pays("m")
    add(savings, 120, 1)
    assert not savings.pays("m")
    assert savings.pays("another")


def test_a_saving_way_is_kept_in_spite_of_a_failure() -> None:
    savings = SavingsByModel()
    add(savings, 15, 20)
    add(savings, 115, 1)
    assert savings.pays("m")


def test_a_model_that_was_let_be_gets_another_try() -> None:
    savings = SavingsByModel()
    add(savings, 100)
    assert [savings.pays("m") for _ in range(2 * TRIES)].count(True) == 2
    add(savings, 15, 6)
    assert savings.pays("m")


def test_a_great_many_models_are_not_remembered() -> None:
    savings = SavingsByModel()
    for number in range(MOST_MODELS):
        savings.add(str(number), 100, 120)
    add(savings, 120)
    assert savings.pays("m")
