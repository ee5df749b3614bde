"""Models that are asked in another way only while it pays."""

from __future__ import annotations

from headstart.policies.output.worth import ENOUGH, MOST_MODELS, TRIES, Worth


def add(worth: Worth, after: int, count: int = ENOUGH, model: str = "m") -> None:
    for _ in range(count):
        worth.add(model, 100, after)


def test_a_model_is_tried_until_enough_is_known() -> None:
    worth = Worth()
    assert worth.pays("m")
    add(worth, 120, ENOUGH - 1)
    assert worth.pays("m")
    add(worth, 120, 1)
    assert not worth.pays("m")
    assert worth.pays("another")


def test_what_saves_is_gone_on_with_in_spite_of_a_failure() -> None:
    worth = Worth()
    add(worth, 15, 20)
    add(worth, 115, 1)
    assert worth.pays("m")


def test_a_model_that_was_let_be_gets_another_try() -> None:
    worth = Worth()
    add(worth, 100)
    assert [worth.pays("m") for _ in range(2 * TRIES)].count(True) == 2
    add(worth, 15, 6)
    assert worth.pays("m")


def test_a_great_many_models_are_not_remembered() -> None:
    worth = Worth()
    for number in range(MOST_MODELS):
        worth.add(str(number), 100, 120)
    add(worth, 120)
    assert worth.pays("m")
