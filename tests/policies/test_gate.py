"""The gate: which questions are worth encoding, and its cost."""

from __future__ import annotations

import math
import random

import pytest
from msgspec.structs import replace

from headstart.decisions import GATE_SAMPLE, Gate, MatchContext
from headstart.policies.gate import (
    ENOUGH_FOUND,
    FIRST_HIT_SHARE,
    FORGET_AT,
    HALVED_AFTER,
    HIGHEST,
    HIT_MEMORY,
    LEAST_PASSING,
    LOWEST,
    MARGIN,
    MOST_DOMAINS,
    MOST_LOST,
    NOTHING_SERVED,
    OPEN,
    STEP,
    WINDOW,
    GateCounts,
    Gates,
    SketchLabels,
    gate_of,
)
from headstart.policies.learned_rule.domain import Domain
from headstart.policies.learned_rule.error_limit import EXACT_JUDGE, ErrorLimit, JudgeNoise
from headstart.policies.match import StaticMatch, VerifiedMatch

CONTEXT = MatchContext(domain="d")
GATE = Gate(least=0.7)
LEAST_SAMPLE = GATE_SAMPLE / 4
NOTHING = SketchLabels()


def labelled(counts: dict[float, tuple[int, int]]) -> SketchLabels:
    """Return labels by similarity: how many, and how many of them had equal answers."""
    labels = NOTHING
    for similarity, (compared, same) in counts.items():
        for number in range(compared):
            labels = labels.with_label(similarity, same=number < same)
    return labels


def gate(
    labels: SketchLabels = NOTHING,
    counts: GateCounts | None = None,
    noise: JudgeNoise = EXACT_JUDGE,
    least_served: float | None = None,
    *,
    learned: bool = True,
) -> float:
    counts = counts or GateCounts()
    gate = gate_of(labels, counts, noise, learned=learned, least_served=least_served)
    return gate.least


def noted(
    counts: GateCounts, *, sampled: bool, served: bool = True, gate: Gate = GATE
) -> GateCounts:
    return counts.with_question(0.95, gate, sampled=sampled, served=served)


def fruitless(count: int, gate: Gate = GATE, counts: GateCounts | None = None) -> GateCounts:
    """Return the counts after some samples that were no hits."""
    counts = counts or GateCounts()
    for _ in range(count):
        counts = noted(counts, sampled=True, served=False, gate=gate)
    return counts


def share(counts: GateCounts, gate: Gate = GATE) -> float:
    return counts.share_below(gate.least, gate.rule, gate.equal)


def after(counts: GateCounts, hits: int, found: int) -> GateCounts:
    for number in range(hits + found):
        counts = noted(counts, sampled=number < found)
    return counts


def test_questions_of_unknown_domains_are_encoded() -> None:
    assert gate(learned=False) == OPEN
    assert gate() == LOWEST


def test_a_domain_with_equal_answers_gets_all_labels_until_its_rule_is_learned() -> None:
    labels = labelled({0.85: (50, 20), 0.45: (100, 0)})
    assert gate(labels, learned=False) == OPEN
    assert gate(labels, counts=GateCounts(lowered=0.1), learned=False) == OPEN
    assert gate(labels) == pytest.approx(0.5)


def test_the_share_of_hits_is_that_of_the_last_encoded_questions() -> None:
    match = StaticMatch(0.9)
    assert match.hit_share(CONTEXT) == FIRST_HIT_SHARE

    def see(count: int, *, served: bool, sampled: bool = False) -> float:
        for _ in range(count):
            match.note_encoded(CONTEXT, 0.9, GATE, sampled=sampled, served=served)
        return match.hit_share(CONTEXT)

    assert see(200, served=True) == pytest.approx(1.0, abs=0.01)
    assert see(HIT_MEMORY, served=False) == pytest.approx(1 / math.e, abs=0.02)
    before = match.hit_share(CONTEXT)
    assert see(20, served=True, sampled=True) == before  # it says nothing about the others
    assert match.hit_share(MatchContext(domain="other")) == FIRST_HIT_SHARE


def test_a_domain_without_equal_answers_has_a_gate_at_once() -> None:
    assert gate(labelled({0.85: (13, 0), 0.45: (13, 0)}), learned=False) == pytest.approx(0.5)
    assert gate(labelled({0.85: (25, 0)}), learned=False) == pytest.approx(HIGHEST)


def test_a_range_without_equal_answers_is_closed_with_all_below_it() -> None:
    assert gate(labelled({0.55: (20, 0)})) == LOWEST
    assert gate(labelled({0.55: (25, 0)})) == pytest.approx(0.6)
    assert gate(labelled({0.55: (25, 1)})) == LOWEST
    assert gate(labelled({0.55: (25, 0), 0.85: (25, 0)})) == pytest.approx(HIGHEST)
    assert gate(labelled({0.95: (100, 0), 0.1: (100, 0)})) == LOWEST


def test_labels_of_higher_ranges_count_for_the_lower_ones() -> None:
    assert gate(labelled({0.75: (13, 0)})) == LOWEST
    assert gate(labelled({0.75: (13, 0), 0.65: (13, 0)})) == pytest.approx(0.7)
    assert gate(labelled({0.85: (30, 15), 0.75: (13, 0), 0.65: (13, 0)})) == LOWEST
    assert gate(labelled({0.65: (10, 5), 0.85: (30, 15), 0.55: (25, 0)})) == pytest.approx(0.6)


def test_equal_answers_that_only_the_judge_s_errors_explain_do_not_count() -> None:
    labels = labelled({0.55: (50, 6)})
    assert gate(labels) == LOWEST
    assert gate(labels, noise=JudgeNoise(false_agree=0.13)) == pytest.approx(0.6)


def test_questions_that_give_no_labels_close_a_range_later() -> None:
    counts = GateCounts()
    for _ in range(90):
        counts = counts.with_question(0.55, GATE, sampled=False, served=False)
    assert gate(counts=counts) == LOWEST
    for _ in range(15):
        counts = counts.with_question(0.55, GATE, sampled=False, served=False)
    assert gate(counts=counts) == pytest.approx(0.6)
    assert gate(labelled({0.55: (5, 3)}), counts) == LOWEST


def test_hits_that_give_no_labels_close_no_range() -> None:
    counts = GateCounts()
    for _ in range(1000):
        counts = counts.with_question(0.95, GATE, sampled=False, served=True)
        counts = counts.with_question(0.75, GATE, sampled=False, served=True)
    assert gate(counts=counts, learned=False) == OPEN


def test_questions_without_a_neighbour_to_judge_close_a_range_as_labels_do() -> None:
    counts = GateCounts()
    for number in range(25):
        assert gate(counts=counts) == LOWEST, number
        counts = counts.with_question(0.55, GATE, sampled=False, served=False, judged=False)
    assert gate(counts=counts) == pytest.approx(0.6)


def test_a_range_opens_again_when_its_answers_are_equal() -> None:
    labels = labelled({0.55: (10 * FORGET_AT, 0)})
    assert gate(labels) == pytest.approx(0.6)
    for _ in range(20):
        labels = labels.with_label(0.55, same=True)
    assert gate(labels) == LOWEST


def test_a_learned_rule_has_its_gate_below_what_it_serves() -> None:
    assert gate(least_served=0.8) == pytest.approx(0.8 - MARGIN)
    assert gate(labelled({0.75: (25, 0)}), least_served=0.8) == pytest.approx(0.8)
    assert gate(least_served=0.4) == LOWEST
    assert gate(counts=GateCounts(lowered=0.1), least_served=0.8) == pytest.approx(0.7 - MARGIN)


def test_hits_below_the_gate_count_for_those_that_were_not_sampled() -> None:
    counts = noted(GateCounts(hits=950), sampled=True)
    assert counts.lost == pytest.approx(1 / GATE_SAMPLE / (950 + 1 / GATE_SAMPLE))
    assert GateCounts(hits=950).lost == 0.0
    assert GateCounts().lost == 0.0


def test_a_gate_that_costs_too_much_is_lowered_step_by_step() -> None:
    counts = after(GateCounts(), hits=100, found=0)
    assert noted(counts, sampled=True).lowered == 0.0  # one may be chance
    for step in range(1, 4):
        counts = after(counts, hits=0, found=ENOUGH_FOUND)
        assert (counts.hits, counts.found) == (0, 0)
        assert counts.lowered == pytest.approx(step * STEP)


def test_a_gate_that_costs_little_stays_and_rises_again_if_it_costs_nothing() -> None:
    hits = int(ENOUGH_FOUND / GATE_SAMPLE / MOST_LOST)
    counts = after(GateCounts(hits=hits, lowered=0.1), hits=0, found=ENOUGH_FOUND - 1)
    assert noted(counts, sampled=True).lowered == 0.1
    assert after(GateCounts(lowered=0.1), hits=WINDOW, found=0).lowered == pytest.approx(0.1 - STEP)
    assert after(GateCounts(lowered=0.1), hits=WINDOW, found=1).lowered == 0.1


@pytest.mark.parametrize(("lost", "lowered"), [(0.10, True), (0.001, False)])
def test_the_measured_loss_decides(lost: float, lowered: bool) -> None:
    random.seed(7)
    counts = GateCounts()
    for _ in range(20_000):
        if random.random() >= lost:
            counts = noted(counts, sampled=False)
        elif random.random() < share(counts):
            counts = noted(counts, sampled=True, gate=replace(GATE, share=share(counts)))
    assert (counts.lowered > 0.05) is lowered


def test_fewer_questions_are_sampled_the_longer_none_of_them_was_a_hit() -> None:
    assert share(GateCounts()) == GATE_SAMPLE
    assert share(fruitless(HALVED_AFTER)) == pytest.approx(GATE_SAMPLE / 2)
    shares = [share(fruitless(count)) for count in (0, 20, 100, 140)]
    assert shares == sorted(set(shares), reverse=True)
    assert share(fruitless(150)) == share(fruitless(10_000)) == LEAST_SAMPLE


def test_one_hit_below_the_gate_restores_the_full_sample() -> None:
    counts = noted(fruitless(150), sampled=True)
    assert share(counts) == GATE_SAMPLE
    assert share(fruitless(HALVED_AFTER, counts=counts)) == pytest.approx(GATE_SAMPLE / 2)


def test_questions_that_passed_do_not_change_the_sample() -> None:
    counts = fruitless(HALVED_AFTER)
    for served in (True, False):
        counts = noted(counts, sampled=False, served=served)
    assert share(counts) == pytest.approx(GATE_SAMPLE / 2)


@pytest.mark.parametrize(
    "changed",
    [
        Gate(least=GATE.least + 0.1, rule=2, equal=5.0),
        Gate(least=GATE.least - 0.1, rule=2, equal=5.0),
        Gate(least=GATE.least, rule=3, equal=5.0),
        Gate(least=GATE.least, rule=2, equal=6.0),
    ],
    ids=["a higher gate", "a lower gate", "another rule", "an equal answer"],
)
def test_other_traffic_restores_the_full_sample(changed: Gate) -> None:
    gate = Gate(least=GATE.least, rule=2, equal=5.0)
    counts = fruitless(150, gate)
    assert share(counts, gate) == LEAST_SAMPLE
    assert share(counts, changed) == GATE_SAMPLE
    assert share(fruitless(150, changed, counts), changed) == LEAST_SAMPLE


def test_where_nothing_is_served_only_equal_answers_restore_the_full_sample() -> None:
    gate = Gate(least=GATE.least, rule=NOTHING_SERVED, equal=5.0)
    equal = Gate(least=GATE.least, rule=NOTHING_SERVED, equal=6.0)
    counts = fruitless(1, gate)
    assert share(GateCounts(), gate) == share(counts, gate) == LEAST_SAMPLE
    assert share(counts, equal) == GATE_SAMPLE
    assert share(fruitless(HALVED_AFTER, equal, counts), equal) == pytest.approx(GATE_SAMPLE / 2)


def test_a_judge_that_errs_needs_more_than_chance_to_restore_the_full_sample() -> None:
    rule, noise = NOTHING_SERVED, JudgeNoise(false_agree=0.133)

    def gate_after(labels: SketchLabels, counts: GateCounts) -> Gate:
        return gate_of(labels, counts, noise, learned=False, least_served=None, rule=rule)

    labels = labelled({0.55: (100, 13), 0.85: (100, 0)})
    counts = fruitless(1, gate_after(labels, GateCounts()))
    for equal, sign in ((1, False), (2, True)):
        more = labels
        for _ in range(equal):
            more = more.with_label(0.55, same=True)
        assert (gate_after(more, counts).share == GATE_SAMPLE) is sign
    for number in range(16):
        labels = labels.with_label(0.55, same=number % 8 == 0)
        assert gate_after(labels, counts).share == LEAST_SAMPLE


def test_many_different_answers_of_the_past_do_not_hide_a_change() -> None:
    noise = JudgeNoise(false_agree=0.133)
    labels, counts, number = labelled({0.55: (30, 0), 0.85: (60, 0)}), GateCounts(), 0

    def gate_now() -> Gate:
        return gate_of(labels, counts, noise, learned=False, least_served=None, rule=NOTHING_SERVED)

    for _ in range(300):
        labels = labels.with_label(0.55, same=False)
        counts = fruitless(1, gate_now(), counts)
        assert gate_now().share == LEAST_SAMPLE
    while gate_now().share == LEAST_SAMPLE:
        number += 1
        labels = labels.with_label(0.55, same=True)
        counts = fruitless(1, gate_now(), counts)
    assert number <= 5


def test_while_nothing_is_served_hardly_any_question_is_encoded_for_its_label_alone() -> None:
    def passing(labels: SketchLabels, rule: int = NOTHING_SERVED, lowered: float = 0.0) -> float:
        counts = GateCounts(lowered=lowered)
        gate = gate_of(labels, counts, EXACT_JUDGE, learned=False, least_served=None, rule=rule)
        return gate.passing

    hopeless = labelled({0.85: (40, 0), 0.95: (100, 0)})
    assert passing(NOTHING) == 1.0
    assert passing(hopeless) == LEAST_PASSING
    hopeful = hopeless.with_label(0.95, same=True).with_label(0.95, same=True)
    assert passing(hopeful) > LEAST_PASSING
    assert passing(hopeless, rule=0) == 1.0  # there any question may be a hit
    some = {0.65: (100, 0), 0.75: (20, 1), 0.85: (20, 1), 0.95: (60, 3)}
    assert passing(labelled(some)) == pytest.approx(0.5, rel=0.1)
    assert passing(labelled({0.85: (40, 4), 0.95: (60, 6), 0.45: (200, 40)})) == 1.0
    # What the gate stops says nothing about the questions that it lets pass.
    assert passing(labelled({0.65: (300, 0), 0.85: (20, 4)})) == 1.0
    # With a low gate each compared question would need the encodings of many entries.
    assert passing(labelled({0.55: (100, 0), 0.95: (100, 0)})) == 1.0
    near = labelled({0.65: (100, 0), 0.95: (100, 0)})
    assert passing(near) == LEAST_PASSING
    assert passing(near, lowered=0.05) == 1.0


def test_where_nothing_is_served_a_higher_gate_is_no_sign_and_a_lower_one_is() -> None:
    gate = Gate(least=0.6, rule=NOTHING_SERVED, equal=5.0)
    higher = Gate(least=0.8, rule=NOTHING_SERVED, equal=9.0)
    counts = fruitless(1, gate)
    assert share(counts, higher) == LEAST_SAMPLE
    counts = fruitless(1, higher, counts)
    assert share(counts, gate) == GATE_SAMPLE


def test_samples_count_on_when_a_rule_serves_nothing_any_more_and_anew_when_one_serves() -> None:
    serving = Gate(least=GATE.least, rule=1)
    nothing = Gate(least=GATE.least, rule=NOTHING_SERVED)
    counts = fruitless(HALVED_AFTER, serving)
    assert share(counts, nothing) == pytest.approx(GATE_SAMPLE / 2)
    counts = fruitless(HALVED_AFTER, nothing, counts)
    assert share(counts, nothing) == pytest.approx(GATE_SAMPLE / 3)
    assert share(counts, serving) == GATE_SAMPLE


def test_neither_a_gate_that_hardly_moved_nor_halved_counts_restore_the_full_sample() -> None:
    gate = Gate(least=GATE.least, equal=8.0)
    counts = fruitless(150, gate)
    halved = Gate(least=GATE.least + 0.01, equal=4.0)
    assert share(counts, halved) == LEAST_SAMPLE
    counts = fruitless(1, halved, counts)
    assert share(counts, halved) == LEAST_SAMPLE
    assert share(counts, Gate(least=GATE.least, equal=5.0)) == GATE_SAMPLE


def test_a_found_hit_counts_for_as_many_questions_as_its_share_told_at_its_draw() -> None:
    counts = fruitless(150, counts=GateCounts(hits=100_000.0))
    counts = noted(counts, sampled=True, gate=replace(GATE, share=share(counts)))
    assert counts.missed == pytest.approx(1 / LEAST_SAMPLE)
    counts = noted(counts, sampled=True, gate=GATE)
    assert counts.missed == pytest.approx(1 / LEAST_SAMPLE + 1 / GATE_SAMPLE)


def test_the_estimate_of_the_lost_hits_is_right_on_average_though_the_share_changes() -> None:
    random.seed(11)
    lost, sampled, questions = 0, 0, 400_000
    counts = GateCounts(hits=1e9)  # so many that found hits do not lower the gate
    for _ in range(questions):
        served = random.random() < 0.01
        lost += served
        gate = replace(GATE, share=share(counts))
        if random.random() < gate.share:
            sampled += 1
            counts = noted(counts, sampled=True, served=served, gate=gate)
    assert sampled < 0.7 * GATE_SAMPLE * questions
    assert counts.missed == pytest.approx(lost, rel=0.1)


@pytest.mark.parametrize("hits_below", [0.1, 0.5])
def test_hits_that_come_below_the_gate_later_lower_it(hits_below: float) -> None:
    random.seed(3)
    asked = []
    for _ in range(200):
        counts, number = fruitless(1000), 0
        while not counts.lowered:
            number += 1
            gate = replace(GATE, share=share(counts))
            if random.random() < gate.share:
                served = random.random() < hits_below
                counts = noted(counts, sampled=True, served=served, gate=gate)
        asked.append(number)
    least, full = 1 / (LEAST_SAMPLE * hits_below), 1 / (GATE_SAMPLE * hits_below)
    assert sum(asked) / len(asked) == pytest.approx(least + full, rel=0.2)


def test_equal_answers_below_the_gate_are_those_of_the_ranges_that_it_closes() -> None:
    labels = labelled({0.35: (100, 1), 0.55: (100, 1), 0.85: (100, 50)})

    def equal(labels: SketchLabels) -> float:
        return gate_of(labels, GateCounts(), EXACT_JUDGE, learned=True, least_served=None).equal

    assert equal(labels) == 2
    assert equal(labels.with_label(0.55, same=True)) == 1  # this opens its range
    assert equal(labels.with_label(0.35, same=True)) == 3


def test_each_domain_has_its_own_record() -> None:
    match = StaticMatch(0.9)
    before = match.gate(CONTEXT)
    for _ in range(ENOUGH_FOUND):
        match.note_encoded(CONTEXT, 0.5, before, sampled=True, served=True)
    assert match.gate(CONTEXT).least == pytest.approx(before.least - STEP)
    assert match.gate(MatchContext(domain="other")) == before
    assert before.least == pytest.approx(0.9 - MARGIN)


def test_a_verified_match_asks_the_domain_of_the_request() -> None:
    domain = Domain(ErrorLimit())
    match = VerifiedMatch(ErrorLimit(), lambda _: domain)
    for _ in range(110):
        match.note_encoded(CONTEXT, 0.55, GATE, sampled=False, served=False)
    assert match.gate(CONTEXT).least == pytest.approx(0.6)
    assert match.gate(MatchContext(domain="other")).least == OPEN


def test_old_labels_of_a_range_fade_and_keep_their_share() -> None:
    labels = labelled({0.55: (FORGET_AT, FORGET_AT // 2)})
    place = labels.compared.index(FORGET_AT)
    labels = labels.with_label(0.55, same=False)
    assert labels.compared[place] == FORGET_AT / 2 + 1
    assert labels.same[place] == FORGET_AT / 4


def test_only_the_domains_that_were_used_last_keep_their_counts() -> None:
    gates = Gates()
    contexts = [MatchContext(domain=str(number)) for number in range(MOST_DOMAINS + 1)]
    for context in (*contexts[:-1], contexts[0], contexts[-1]):
        gates.note(context, 0.9, GATE, sampled=False, served=True)
    kept = [gates.of(context).hits > 0 for context in contexts]
    assert kept == [True, False, *[True] * (MOST_DOMAINS - 1)]
