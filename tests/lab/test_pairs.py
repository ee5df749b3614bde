"""The pairs that are served. Vectors and verdicts are small enough to check by hand."""

from __future__ import annotations

import pytest

from headstart.lab.rates import Pair, Pairs, judge_pairs, pairs_in_order
from support.angles import ByAngle, conversation, key, pair, prepare


def test_pairs_are_counted_by_kind_and_category() -> None:
    report = judge_pairs(
        [
            pair("north", "northish", same=True, category="near"),
            pair("north", "east", same=True, category="far"),
            pair("north", "northish", same=False, category="near"),
            pair("north", "not north", same=False, category="near"),
        ],
        prepare,
        ByAngle(),
    )
    assert (report.n, report.hits, report.wrong) == (4, 2, 1)
    assert (report.hit_rate, report.wrong_per_hit, report.wrong_per_request) == (0.5, 0.5, 0.25)
    assert (report.genuine_served, report.genuine) == (1, 2)
    assert (report.traps_served, report.traps) == (1, 2)
    assert report.categories["near"].traps == 2
    assert report.categories["far"].genuine_served == 0
    assert report.refused == {"threshold": 1, "negation": 1}


@pytest.mark.parametrize(
    ("judged", "served"),
    [
        (pair("north", "north", same=True, history="[1]"), False),
        (pair("north", "endless", same=True), False),
        (pair("endless", "endless", same=True), True),
        (Pair(a=key(None, "h"), b=key(None, "i"), same_answer=True), False),
    ],
    ids=["other history", "beyond the limit", "exact repeat", "no text"],
)
def test_only_comparable_prompts_or_exact_repeats_are_served(judged: Pair, served: bool) -> None:
    report = judge_pairs([judged], prepare, ByAngle())
    assert report.hits == int(served)
    assert report.refused == ({} if served else {"not-comparable": 1})


def test_nothing_served_has_no_error_rate() -> None:
    report = judge_pairs([pair("north", "east", same=True)], prepare, ByAngle())
    assert report.wrong_per_hit is None
    assert report.intervals["wrong_per_hit"] is None
    assert judge_pairs([], prepare, ByAngle()).hit_rate is None


def test_a_neighbour_too_far_to_be_loaded_is_not_judged() -> None:
    report = judge_pairs([pair("north", "northish", same=True)], prepare, ByAngle(minimum=0.99))
    assert report.refused == {"threshold": 1}


@pytest.mark.parametrize(
    ("turns", "refusals"),
    [
        (("north",), {}),
        (("northish",), {}),
        (("northeast",), {"history": 1}),
        (("not north",), {"history": 1}),
        (("endless",), {"history": 1}),
        ((), {"history": 1}),
        (("north",) * 12, {"history": 1}),
    ],
    ids=["equal", "reworded", "other", "vetoed", "too long", "conflict", "too many"],
)
def test_conversations_must_have_come_to_the_same(
    turns: tuple[str, ...], refusals: dict[str, int]
) -> None:
    judged = Pair(a=conversation("east", "north"), b=conversation("east", *turns), same_answer=True)
    assert judge_pairs([judged], prepare, ByAngle()).refused == refusals


def test_pairs_as_a_stream_meet_their_own_half_alone() -> None:
    pairs = Pairs(
        rows=(pair("north", "east", same=True, category="c"), pair("north", "east", same=False))
    )
    a, b, c, d = pairs_in_order(pairs)
    assert (a.label == b.label, c.label == d.label) == (True, False)
    assert a.prompt.group == b.prompt.group != c.prompt.group == d.prompt.group
    assert len({row.prompt.exact for row in (a, b, c, d)}) == 4
    assert (b.category, d.category) == ("c", None)
