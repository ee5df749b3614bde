"""Checks of answers, and the choice of the cheapest model that reaches a bar."""

from __future__ import annotations

import random

import pytest

from headstart.lab.bench import Sample, Subject
from headstart.lab.quality import choose, contains, paired_interval, qualities


@pytest.mark.parametrize(
    ("answer", "expected", "right"),
    [
        ("The capital is **Paris**.", "paris", True),
        ("It costs $1,200.50 in all", "1200.50", True),
        ("There are 112 of them", "12", False),
        ("Parisians live there", "Paris", False),
        ("New  York City", "new york", True),
        ("York is new", "new york", False),
        ("", "x", False),
    ],
)
def test_an_answer_is_right_if_it_contains_the_words(
    answer: str, expected: str, right: bool
) -> None:
    assert contains(answer, expected) is right


def samples(name: str, share: float, usd: float, *, prompts: int, seed: int) -> list[Sample]:
    rng = random.Random(seed)
    subject = Subject(name, name, name)
    return [
        Sample(subject=subject, cold=False, cost_usd=usd, prompt=n, right=rng.random() < share)
        for n in range(prompts)
    ]


def test_the_cheapest_model_that_surely_holds_the_bar_is_named() -> None:
    found = [
        *samples("tiny", 0.60, 0.0001, prompts=400, seed=1),
        *samples("small", 0.95, 0.001, prompts=400, seed=2),
        *samples("large", 0.97, 0.01, prompts=400, seed=3),
    ]
    judged = qualities(dict.fromkeys(each.subject for each in found), found)
    choice = choose(judged, 0.9)
    assert (choice.model, choice.possible) == ("small", ())
    tiny = next(each for each in judged if each.model == "tiny")
    assert tiny.interval.low < 0.60 < tiny.interval.high
    assert tiny.behind_interval is not None
    assert tiny.behind_interval.low > 0.25


def test_a_bar_that_few_prompts_cannot_decide_names_nobody() -> None:
    found = samples("small", 0.95, 0.001, prompts=10, seed=2)
    judged = qualities([found[0].subject], found)
    choice = choose(judged, 0.9)
    assert choice.model is None
    assert choice.possible == ("small small",)


def test_repeats_of_a_prompt_do_not_make_the_interval_narrower() -> None:
    once = samples("m", 0.5, 0.001, prompts=20, seed=4)
    (alone,), (often,) = (qualities([once[0].subject], rows) for rows in (once, once * 50))
    assert often.interval == alone.interval
    assert often.prompts == 20


def test_the_paired_interval_contains_the_truth_as_often_as_it_says() -> None:
    rng, inside = random.Random(5), 0
    for _ in range(400):
        interval = paired_interval([rng.gauss(0.1, 0.3) for _ in range(30)])
        assert interval is not None
        inside += interval.low <= 0.1 <= interval.high
    assert 0.92 <= inside / 400 <= 0.98
    assert paired_interval([0.5]) is None
