"""The evaluation counts what a policy serves. Vectors and verdicts are small enough to check."""

from __future__ import annotations

import numpy as np
import pytest

from headstart.decisions import Encoding, Nearby, Verdict
from headstart.policies.evaluation import Prepared, judge_pairs, judge_stream, wilson_interval
from headstart.policies.labelled import Labelled, Pair, Prompt

ANGLES = {"north": 0, "northish": 10, "northeast": 30, "east": 90, "not north": 1, "endless": 0}


class ByAngle:
    """Serves above a threshold, but vetoes prompts that say "not"."""

    version = "test"
    minimum = 0.9

    def prepare(self, text: str, encoding: Encoding) -> str:
        return text

    def pack(self, prepared: str) -> bytes:
        return prepared.encode()

    def unpack(self, evidence: bytes) -> str:
        return evidence.decode()

    def veto(self, query: str, candidate: str) -> str | None:
        return "negation" if ("not" in query.split()) != ("not" in candidate.split()) else None

    def judge(self, query: str, candidate: str, nearby: Nearby, veto: str | None = None) -> Verdict:
        similarity = nearby.neighbor.similarity
        if veto is None and similarity < self.minimum:
            veto = "threshold"
        return Verdict(serve=veto is None, similarity=similarity, veto=veto)


def prepare(text: str) -> Prepared[str]:
    angle = np.deg2rad(ANGLES[text])
    vector = np.array([np.cos(angle), np.sin(angle)], np.float32)
    return Prepared(vector, text, usable=text != "endless")


def pair(a: str, b: str, *, same: bool, category: str | None = None, history: str = "") -> Pair:
    return Pair(
        a=Prompt(history="", text=a),
        b=Prompt(history=history, text=b),
        same_answer=same,
        category=category,
    )


def labelled(text: str | None, label: str, history: str = "") -> Labelled:
    return Labelled(prompt=Prompt(history=history, text=text), label=label)


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
        (
            Pair(
                a=Prompt(history="h", text=None), b=Prompt(history="i", text=None), same_answer=True
            ),
            False,
        ),
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


def test_stream_hits_what_it_stored_and_stores_only_misses() -> None:
    report = judge_stream(
        [
            labelled("north", "n"),  # miss, stored
            labelled("northish", "n"),  # hit, right, not stored
            labelled("northeast", "e"),  # 20 degrees from northish, but that is not stored: miss
            labelled("northish", "e"),  # nearest is north: wrong
        ],
        prepare,
        ByAngle(),
    )
    assert (report.n, report.hits, report.wrong) == (4, 2, 1)


def test_stream_serves_the_best_survivor_past_a_veto() -> None:
    report = judge_stream(
        [labelled("not north", "x"), labelled("northish", "n"), labelled("north", "n")],
        prepare,
        ByAngle(),
    )
    assert (report.hits, report.wrong) == (1, 0)
    assert report.refused == {"threshold": 1, "negation": 1}


def test_stream_never_crosses_histories_nor_uses_what_it_cannot_compare() -> None:
    report = judge_stream(
        [
            labelled("north", "n", history="a"),
            labelled("north", "n", history="b"),
            labelled(None, "n"),
            labelled("endless", "n", history="a"),
        ],
        prepare,
        ByAngle(),
    )
    assert report.hits == 0
    assert report.refused == {"threshold": 2, "not-comparable": 2}


def test_partition_grows_past_its_first_block() -> None:
    rows = [labelled("east", "e")] + [labelled("not north", "x")] * 200 + [labelled("north", "n")]
    report = judge_stream(rows, prepare, ByAngle())
    assert report.hits == 199


def test_wilson_interval_agrees_with_published_values() -> None:
    # Brown, Cai and DasGupta 2001 give Wilson's 95 % interval for 10 of 20 as 0.299 to 0.701.
    interval = wilson_interval(10, 20)
    assert interval == pytest.approx((0.2993, 0.7007), abs=1e-4)
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson_interval(0, 0) is None
