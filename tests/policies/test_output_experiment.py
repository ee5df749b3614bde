from __future__ import annotations

from headstart.policies.output.experiment import arm, held_out

CONVERSATIONS = [f"{number:032x}" for number in range(4000)]


def test_a_tenth_of_the_conversations_is_left_alone_and_stays_so() -> None:
    sides = [arm("concise", each, 0.1) for each in CONVERSATIONS]
    assert 320 < sides.count("concise-holdout") < 480
    assert sides == [arm("concise", each, 0.1) for each in CONVERSATIONS]


def test_two_experiments_leave_different_ones_alone() -> None:
    both = [held_out("concise", each, 0.1) and held_out("tight", each, 0.1)
            for each in CONVERSATIONS]  # fmt: skip
    assert sum(both) < 80


def test_all_or_none_can_be_left_alone() -> None:
    assert not any(held_out("tight", each, 0.0) for each in CONVERSATIONS)
    assert all(held_out("tight", each, 1.0) for each in CONVERSATIONS)
