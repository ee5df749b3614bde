"""What ``headstart tune`` recommends for the results of a log."""

from __future__ import annotations

import tomllib

import msgspec
import pytest

from headstart.lab.rates import Ordering, count_rates
from headstart.lab.tuning import Advice, Static, TargetResult, advise, advise_static


def rates(n: int, hits: int, wrong: int) -> Ordering:
    return Ordering(seed=None, audits=0, refused={}, categories={}, **count_rates(n, hits, wrong))


def target(
    max_error: float, hits: int, wrong: int = 0, late: tuple[int, int] | None = None
) -> TargetResult:
    """Return the result of 2,000 prompts; ``late`` are hits and wrong hits of the second half."""
    late_hits, late_wrong = late or (hits // 2, wrong // 2)
    return TargetResult(
        max_error=max_error,
        rates=rates(2000, hits, wrong),
        late=rates(1000, late_hits, late_wrong),
    )


def pasted(advice: Advice) -> object:
    return tomllib.loads(advice.toml)["cache"]


def test_the_wanted_target_is_recommended_with_what_to_expect() -> None:
    targets = [target(0.01, 100), target(0.02, 300, 3, late=(200, 1)), target(0.05, 600, 9)]
    advice = advise(targets, 0.02, "learned.bin")
    assert pasted(advice) == {"max_error": 0.02, "state": "learned.bin"}
    assert advice.words == (
        (
            "Set max_error = 0.02: expect semantic hits for about 20 % of the prompts, as in the "
            "second half of this log, when most was learned. In the whole log 3 of 300 hits were "
            "wrong (1 %)."
        ),
    )


def test_a_target_without_hits_gives_way_to_the_next_less_strict() -> None:
    targets = [target(0.01, 0), target(0.02, 8), target(0.05, 600, 9)]
    advice = advise(targets, 0.02, "s")
    assert pasted(advice) == {"max_error": 0.05, "state": "s"}
    assert "The target 2 % gave hits for only 0.4 % of the prompts." in advice.words


def test_a_broken_target_gives_way_to_a_stricter_one_and_is_explained() -> None:
    targets = [target(0.01, 200, 1), target(0.02, 300, 60), target(0.05, 600, 9)]
    advice = advise(targets, 0.02, "s")
    assert pasted(advice) == {"max_error": 0.01, "state": "s"}
    assert "The target 2 % was not kept." in advice.words
    assert advice.words[-1] == (
        "Target 2 %: 60 of 300 hits were wrong (20 %). Chance does not explain that. The "
        "borderline pairs of --html show whether these answers really differ."
    )


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (target(0.01, 14, 1), "So few hits exceed it by chance; about 300 hits would show it."),
        (
            target(0.01, 300, 12, late=(200, 1)),
            (
                "That was while little was learned: in the second half it was 0.5 %. The state "
                "that was learned lets a server begin there."
            ),
        ),
    ],
)
def test_a_target_that_was_exceeded_is_explained(result: TargetResult, why: str) -> None:
    advice = advise([result, target(0.02, 300, 1)], 0.02, "s")
    assert pasted(advice) == {"max_error": 0.02, "state": "s"}
    assert advice.words[-1].endswith(why)


def test_a_short_log_is_told_so() -> None:
    advice = advise([target(0.02, 25)], 0.02, "s")
    assert "The log is short: 25 hits in 2,000 prompts. Some thousand prompts would show more." in (
        advice.words
    )


def test_without_hits_only_exact_repeats_are_recommended() -> None:
    advice = advise([target(0.01, 0), target(0.02, 4)], 0.02, "s")
    assert pasted(advice) == {"mode": "exact-only"}
    assert advice.words[0].startswith("Serve only exact repeats")


def test_a_log_from_which_nothing_was_learned_asks_for_more() -> None:
    unlearned = msgspec.structs.replace(target(0.02, 0), learned=False)
    advice = advise([unlearned], 0.02, "s")
    assert advice.words[0].startswith("The log is too short to tell")
    assert tomllib.loads(advice.toml) == {"cache": {"mode": "shadow"}, "record": {"enabled": True}}
    learned = advise([unlearned, target(0.05, 0)], 0.02, "s")
    assert pasted(learned) == {"mode": "exact-only"}


def test_a_fixed_threshold_is_recommended_with_its_bound() -> None:
    advice = advise_static(Static(threshold=0.93, rates=rates(2000, 400, 2)))
    assert pasted(advice) == {"match": "static", "threshold": 0.93}
    assert "20 % of the prompts" in advice.words[0]
    assert "0.5 % of these hits wrong (95 % bound: 1.8 %)" in advice.words[0]
