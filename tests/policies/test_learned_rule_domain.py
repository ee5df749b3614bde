"""A learning domain: labels in, thresholds out, the same for all who apply the same labels."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest

from headstart.decisions import GATE_SAMPLE, Label, LabelSource, Rule, Verdict
from headstart.errors import ConfigError
from headstart.policies.gate import GateCounts
from headstart.policies.learned_rule import error_limit as constants
from headstart.policies.learned_rule.domain import Domain, SnapshotError
from headstart.policies.learned_rule.error_limit import (
    EXACT_JUDGE,
    MIN_LABELS,
    MOST_ENTRY_STATS,
    STRICT,
    ErrorLimit,
    expected_hit_rate,
)
from headstart.policies.learned_rule.features import (
    NAMES,
    VERSION,
    EntryStats,
    EntryStatsTable,
    LabelledRow,
    pack_features,
    unpack_features,
)
from headstart.policies.learned_rule.threshold import (
    MEMORY,
    PRINCIPAL_SHARE,
    Alarm,
    no_memory,
    remember_rows,
)

ERROR_LIMIT = ErrorLimit(max_error=0.05, judge=EXACT_JUDGE)
SETTLED = ErrorLimit(max_error=0.05, judge=EXACT_JUDGE, cold_start="optimistic")


def label(number: int, strength: float, same: bool | None, **fields: object) -> Label:
    features = np.zeros(len(NAMES))
    features[0] = 1
    features[1] = strength
    return msgspec.structs.replace(
        Label(
            id=f"q{number}",
            entry=f"e{number % 97}",
            domain="d",
            source=LabelSource.MISS,
            same=same,
            at=float(number),
            similarity=0.6 + 0.1 * strength,
            version=VERSION,
            features=pack_features(features),
            stored=True,
        ),
        **fields,
    )


def labels(count: int, seed: int = 0) -> list[Label]:
    """Pairs that are the same when strong, and as often as not when weak."""
    rng = np.random.default_rng(seed)
    strengths = rng.uniform(-1, 3, count)
    return [
        label(n, strength, bool(strength > 1 or rng.random() < 0.4), principal=f"p{n % 40}")
        for n, strength in enumerate(strengths.tolist())
    ]


def taught(count: int, error_limit: ErrorLimit = ERROR_LIMIT) -> Domain:
    domain = Domain(error_limit)
    for each in labels(count):
        domain.apply(each)
    return domain


def test_a_fresh_domain_follows_the_cold_start_rule() -> None:
    domain = Domain(SETTLED)
    assert domain.rule is Rule.COLD_START
    assert (domain.threshold(), domain.threshold(0.01)) == (0.86, 0.94)
    assert domain.threshold(0.5) == domain.threshold()
    assert Domain(ERROR_LIMIT).threshold() == Domain(ERROR_LIMIT).threshold(0.01) == STRICT


def test_labels_teach_a_threshold_and_a_stricter_request_is_answered_at_once() -> None:
    domain = taught(1500)
    assert domain.rule is Rule.LEARNED
    threshold, stricter = domain.threshold(), domain.threshold(0.02)
    assert threshold is not None
    assert stricter is None or stricter >= threshold
    assert domain.score(unpack_features(label(0, 2.5, None).features), "x") > threshold
    assert domain.score(unpack_features(label(0, -0.5, None).features), "x") < threshold


def test_the_learned_rule_begins_with_the_first_labels_that_suffice_for_a_threshold() -> None:
    before, after = taught(MIN_LABELS - 1), taught(MIN_LABELS)
    assert before.rule is Rule.COLD_START
    assert (after.rule, after.threshold() is None) == (Rule.LEARNED, False)


def test_where_nothing_can_be_told_apart_nothing_is_served() -> None:
    domain = Domain(ERROR_LIMIT)
    rng = np.random.default_rng(1)
    for n in range(1500):
        domain.apply(label(n, 2.0, bool(rng.random() < 0.6)))
    assert domain.rule is Rule.LEARNED
    assert domain.threshold() is None
    assert domain.status().serves == 0.0
    assert domain.status().cold_start_serves == 0.0


def test_the_least_similarity_follows_new_labels() -> None:
    domain = taught(1500)
    before = domain.least_served
    assert before is not None
    assert 0.6 < before < 0.72
    for number in range(3000):
        strength = 2.0 + number % 10 / 10
        domain.apply(label(number, strength, True))
        domain.apply(label(number, strength - 1.2, False))
    assert (domain.least_served or 0.0) > before + 0.05


def test_a_domain_that_serves_nothing_has_no_least_similarity() -> None:
    assert Domain(ERROR_LIMIT).least_served is None
    domain = Domain(ERROR_LIMIT)
    for number in range(1600):
        domain.apply(label(number, number % 3, number % 2 == 0))
    assert (domain.rule, domain.threshold()) == (Rule.LEARNED, None)
    assert domain.least_served is None


def test_each_rule_of_a_domain_has_a_gate_of_its_own() -> None:
    serving, alarmed = taught(1500), taught(1500)
    while not alarmed.status().alarm:
        alarmed.apply(label(1, 2.5, False, source=LabelSource.AUDIT))
    unqualified = Domain(ERROR_LIMIT)
    for number in range(1600):
        unqualified.apply(label(number, number % 3, number % 2 == 0))
    assert (unqualified.rule, unqualified.threshold()) == (Rule.LEARNED, None)
    domains = (Domain(ERROR_LIMIT), serving, alarmed, unqualified)
    assert len({domain.gate(GateCounts()).rule for domain in domains}) == len(domains)
    for domain in (Domain(ERROR_LIMIT), serving, alarmed):
        assert domain.gate(GateCounts()).share == GATE_SAMPLE
    assert unqualified.gate(GateCounts()).share < GATE_SAMPLE / 2
    refusals = [domain.gate(GateCounts()).refusal for domain in domains]
    assert refusals == [None, None, "alarm", "unqualified"]


def test_the_gate_tells_of_equal_answers_below_it() -> None:
    domain = Domain(ERROR_LIMIT)
    for number in range(100):
        domain.apply(label(number, 0.0, False, sketch=0.55))
    assert domain.gate(GateCounts()).equal == 0.0
    domain.apply(label(101, 0.0, True, sketch=0.55))
    gate = domain.gate(GateCounts())
    assert gate.least == pytest.approx(0.6)
    assert gate.equal == 1.0


def test_labels_are_counted_by_the_nearest_sketch() -> None:
    domain = Domain(ERROR_LIMIT)
    for veto, same in ((None, True), ("number", True), ("threshold", True), (None, False)):
        domain.apply(label(0, 1.0, same, sketch=0.65, veto=veto))
    domain.apply(label(1, 1.0, True))
    domain.apply(label(2, 1.0, None, sketch=0.65))
    compared, equal, *_ = _saved_sketches(domain)
    assert compared == [0, 0, 0, 4, 0, 0]
    assert equal == [0, 0, 0, 2, 0, 0]
    for same in (True, False, False):
        domain.apply(label(3, 1.0, same, sketch=0.95))
    assert _saved_sketches(domain)[2:] == [3, 1]
    assert _saved_sketches(Domain.restore(ERROR_LIMIT, domain.snapshot())) == _saved_sketches(
        domain
    )


def _saved_sketches(domain: Domain) -> list[Any]:
    """Return the counts of labels by the nearest sketch, as a snapshot has them."""
    sketches: list[Any] = msgspec.msgpack.decode(domain.snapshot())["sketches"]
    return sketches


def test_two_that_apply_the_same_labels_are_the_same() -> None:
    assert taught(777).snapshot() == taught(777).snapshot()


def test_a_restored_domain_goes_on_where_it_stood() -> None:
    first = Domain(ERROR_LIMIT)
    for each in labels(900)[:640]:
        first.apply(each)
    second = Domain.restore(ERROR_LIMIT, first.snapshot())
    assert second.status() == first.status()
    for each in labels(900)[640:]:
        assert second.apply(each) == first.apply(each)
    assert second.snapshot() == first.snapshot()


def test_a_prior_lends_what_was_learned_but_no_entries() -> None:
    source = taught(1500)
    domain = Domain(ERROR_LIMIT, source.snapshot())
    assert domain.rule is Rule.LEARNED
    assert domain.entry_stats("e1").weights == 0.0 < source.entry_stats("e1").weights


@pytest.mark.parametrize("data", [b"", b"\x80", b"junk"])
def test_a_damaged_snapshot_is_refused(data: bytes) -> None:
    with pytest.raises(SnapshotError, match="damaged"):
        Domain.restore(ERROR_LIMIT, data)


def test_a_snapshot_of_another_version_is_refused() -> None:
    with pytest.raises(SnapshotError, match=r"^the snapshot was learned by"):
        Domain(ERROR_LIMIT, taught(10).snapshot(), version="verified-0")


def test_labels_of_another_version_teach_nothing() -> None:
    domain = Domain(ERROR_LIMIT)
    change = domain.apply(label(0, 1.0, True, version="static-1", features=b""))
    assert not change.used
    assert domain.snapshot() == Domain(ERROR_LIMIT).snapshot()


def test_an_unsure_label_is_counted_and_teaches_nothing() -> None:
    domain = Domain(ERROR_LIMIT)
    assert not domain.apply(label(0, 1.0, None)).used
    assert (domain.status().labels, domain.status().unsure) == (1, 1)
    assert domain.status().candidates == 0


@pytest.mark.parametrize(
    ("veto", "candidates"),
    [("number", 0), ("threshold", 1), ("alarm", 1), ("unqualified", 1), ("substitution", 1)],
)
def test_only_what_the_learned_rule_could_have_served_is_a_candidate(
    veto: str, candidates: int
) -> None:
    domain = Domain(ERROR_LIMIT)
    domain.apply(label(0, 1.0, True, veto=veto))
    assert domain.status().candidates == candidates
    assert domain.entry_stats("e0").weights > 0


def test_null_audits_measure_the_judge() -> None:
    domain = Domain(ErrorLimit())
    before = domain.status().false_disagree
    for n in range(50):
        domain.apply(label(n, 0.0, n % 5 > 0, source=LabelSource.NULL))
    assert domain.status().nulls == 50
    assert domain.status().false_disagree == pytest.approx((20 * before + 10) / 70)


def test_null_audits_that_do_not_contradict_the_known_error_leave_it_as_it_is() -> None:
    domain = Domain(ErrorLimit())
    before = domain.status().false_disagree
    for n in range(60):
        domain.apply(label(n, 0.0, n != 30, source=LabelSource.NULL))
    assert domain.status().false_disagree == before
    for n in range(60):
        domain.apply(label(n, 0.0, n % 10 > 0, source=LabelSource.NULL))
    assert domain.status().false_disagree > 2 * before


def test_exact_hits_are_asked_again_more_often_until_the_judge_is_known() -> None:
    domain = Domain(ERROR_LIMIT)
    assert domain.null_rate() > 0
    for n in range(constants.NULLS_WANTED):
        domain.apply(label(n, 0.0, True, source=LabelSource.NULL))
    assert domain.null_rate() == 0


NEAR = 0.85
"""The similarity of a near miss."""


def asked_again(domain: Domain, *, similarity: float = NEAR, strength: float = 3.0) -> float:
    """Return the share of such misses that are asked twice."""
    features = label(0, strength, True).features
    return domain.repeat_rate(
        Verdict(serves=False, similarity=similarity, features=features), "new"
    )


def noisy_labels(count: int, share: float, start: int = 0) -> list[Label]:
    """Near misses with equal answers; the judge calls this share of them different."""
    return [
        label(n, 2.0 + n % 7 / 7, n % round(1 / share) > 0, similarity=NEAR, entry=f"e{n}")
        for n in range(start, start + count)
    ]


def noisy_domain(max_error: float = 0.02) -> Domain:
    """Return a domain that has learned from 600 of these, of which one in twelve is different."""
    domain = Domain(ErrorLimit(max_error=max_error))
    for each in noisy_labels(600, 1 / 12):
        domain.apply(each)
    return domain


def test_misses_are_asked_twice_while_the_judge_may_be_why_nothing_is_served() -> None:
    domain = Domain(ErrorLimit(max_error=0.02))
    for each in noisy_labels(constants.REPEATS_FROM - 1, 1 / 12):
        domain.apply(each)
    assert asked_again(domain) == 0
    for each in noisy_labels(600, 1 / 12, constants.REPEATS_FROM):
        domain.apply(each)
    assert asked_again(domain) == constants.FIRST_REPEAT_RATE
    assert asked_again(domain, similarity=0.7) == 0  # such pairs tell nothing about hits
    assert asked_again(domain, strength=-1.0) == 0
    assert domain.status().rule is Rule.COLD_START
    for n in range(60):
        domain.apply(label(n, 0.0, n % 14 > 0, source=LabelSource.NULL))
    assert asked_again(domain) == 0
    for each in noisy_labels(60, 1 / 12, 700):  # until the next update
        domain.apply(each)
    assert asked_again(domain) == constants.REPEAT_RATE
    for n in range(100):
        domain.apply(label(n, 0.0, n % 10 > 0, source=LabelSource.NULL))
    for each in noisy_labels(400, 1 / 12, 760):  # with the measured error of the judge
        domain.apply(each)
    assert domain.threshold() is not None
    assert domain.status().rule is Rule.LEARNED
    assert asked_again(domain) == 0


def test_misses_are_not_asked_twice_if_no_error_of_the_judge_explains_the_labels() -> None:
    domain = Domain(ErrorLimit(max_error=0.02))
    for each in noisy_labels(600, 1 / 2):
        domain.apply(each)
    for n in range(constants.FIRST_REPEATS):
        domain.apply(label(n, 0.0, True, source=LabelSource.NULL))
    assert asked_again(domain) == 0


def test_no_miss_is_asked_twice_for_a_target_that_null_audits_are_too_rough_for() -> None:
    for target, rate in ((0.02, constants.FIRST_REPEAT_RATE), (0.01, 0.0)):
        assert asked_again(noisy_domain(target)) == rate


def test_misses_are_asked_twice_a_limited_number_of_times() -> None:
    domain = noisy_domain()
    for n in range(constants.MOST_REPEATS):
        domain.apply(label(n, 0.0, n % 40 > 0, source=LabelSource.NULL))
    assert asked_again(domain) == 0


def test_misses_are_not_asked_twice_for_ever_where_the_judge_is_never_sure() -> None:
    domain = noisy_domain()
    for n in range(constants.MOST_REPEATS):
        assert asked_again(domain) == constants.FIRST_REPEAT_RATE
        domain.apply(label(n, 0.0, None, source=LabelSource.NULL))
    assert asked_again(domain) == 0


def test_misses_are_not_asked_twice_for_ever_where_their_labels_do_not_come() -> None:
    domain = noisy_domain()
    domain.asked_twice = constants.MOST_REPEATS
    assert asked_again(domain) == 0


def test_wrong_audits_raise_the_alarm_and_labels_end_it() -> None:
    domain = taught(1500)
    changes = [
        domain.apply(label(n, 2.5, False, source=LabelSource.AUDIT, served=True)) for n in range(6)
    ]
    assert any(change.alarm for change in changes)
    assert domain.status().alarm
    assert domain.threshold() is None
    assert domain.status().candidates < 6
    for each in labels(900, seed=5):
        domain.apply(each)
    assert not domain.status().alarm
    assert domain.threshold() is not None
    assert domain.rule is Rule.LEARNED


def test_after_an_alarm_the_cold_start_rule_never_returns() -> None:
    domain = Domain(ERROR_LIMIT)
    for n in range(9):
        domain.apply(label(n, 2.5, False, source=LabelSource.AUDIT, served=True))
    assert domain.status().alarms
    for each in labels(150):
        domain.apply(each)
    assert domain.rule is Rule.LEARNED


def test_audits_grow_rarer() -> None:
    domain = Domain(ERROR_LIMIT)
    rates = [domain.audit_rate()]
    for n in range(500):
        domain.apply(label(n, 2.5, True, source=LabelSource.AUDIT, served=True))
        rates.append(domain.audit_rate())
    assert rates[0] == constants.MAX_AUDIT_RATE
    assert rates[-1] == constants.MIN_AUDIT_RATE
    assert all(one >= other for one, other in pairwise(rates))
    assert (
        constants.LEAST_DRAW_PROBABILITY
        < domain.audit_rate(constants.LEAST_DRAW_PROBABILITY)
        < rates[-1]
    )


def test_a_stored_miss_joins_the_group_of_its_equal() -> None:
    domain = Domain(ERROR_LIMIT)
    domain.apply(label(1, 1.0, True, id="a", entry="x"))
    domain.apply(label(2, 1.0, True, id="b", entry="a"))
    domain.apply(label(3, 1.0, False, id="c", entry="a"))
    domain.apply(label(4, 1.0, True, id="d", entry="a", stored=False))
    assert domain.entry_stats("a").group == domain.entry_stats("b").group == "x"
    assert domain.entry_stats("x").size == 3
    assert domain.entry_stats("c").group == "c"
    assert domain.entry_stats("d").group == "d"


def test_contributions_add_up_to_the_score() -> None:
    domain = taught(300)
    features = label(0, 1.5, None).features
    shares = domain.contributions(features)
    assert sum(shares.values()) == pytest.approx(domain.score(unpack_features(features), "new"))
    assert list(shares) == sorted(shares, key=lambda name: -abs(shares[name]))


def test_entry_records_are_bounded() -> None:
    stats = EntryStatsTable()
    for n in range(MOST_ENTRY_STATS + 10):
        stats.learn(str(n), 0.1, 0.1)
    assert len(stats) == MOST_ENTRY_STATS
    assert stats.of("0").weights == 0.0
    assert stats.of(str(MOST_ENTRY_STATS)).weights > 0


def test_entries_that_join_a_group_are_bounded_too() -> None:
    stats = EntryStatsTable()
    for n in range(MOST_ENTRY_STATS + 10):
        stats.join(f"new {n}", "first")
    assert len(stats) == MOST_ENTRY_STATS
    assert stats.of("first").size == MOST_ENTRY_STATS
    assert stats.of("new 0") == EntryStats(group="new 0")


def row(principal: int) -> LabelledRow:
    return LabelledRow(
        np.zeros(len(NAMES)), same=True, offset=0, mass=1, similarity=0.9, principal=principal
    )


def test_memory_is_bounded_and_no_principal_fills_it() -> None:
    memory = remember_rows(no_memory(), [row(n % 50) for n in range(MEMORY)])
    for _ in range(100):
        memory = remember_rows(memory, [row(99)] * 50)
    assert len(memory) <= MEMORY
    assert (memory.principal == 99).sum() <= MEMORY * PRINCIPAL_SHARE


def test_a_single_principal_may_fill_the_memory() -> None:
    memory = remember_rows(no_memory(), [row(0)] * (MEMORY + 50))
    assert len(memory) == MEMORY


def test_alarm_evidence_is_small_when_the_promise_is_kept() -> None:
    rng = np.random.default_rng(3)
    raised = 0
    for _ in range(200):
        alarm = Alarm()
        for wrong in rng.random(300) < 0.05:
            alarm = alarm.count_audit(same=not wrong)
            if alarm.raised(0.05):
                raised += 1
                break
    assert raised <= 10


@pytest.mark.parametrize(("max_error", "confidence"), [(0.0, 0.84), (0.7, 0.84), (0.02, 0.5)])
def test_an_impossible_promise_is_refused(max_error: float, confidence: float) -> None:
    with pytest.raises(ConfigError, match="cache"):
        ErrorLimit(max_error=max_error, confidence=confidence)


def test_a_stricter_target_or_a_judge_that_errs_promises_fewer_hits() -> None:
    assert expected_hit_rate(ErrorLimit().max_error) >= 0.15
    assert expected_hit_rate(0.001) == 0.0
    assert expected_hit_rate(0.01) < expected_hit_rate(0.03) < expected_hit_rate(0.05)


def test_a_hit_drawn_for_an_audit_stands_for_those_that_were_not() -> None:
    def served(drawn: float) -> float:
        domain = taught(800)
        for n in range(60):
            audit = label(5000 + n, 2.9, True, source=LabelSource.AUDIT, draw_probability=drawn)
            domain.apply(audit)
        return domain.status().serves

    assert served(0.1) > served(1.0) > 0


def test_features_that_are_not_numbers_are_refused() -> None:
    features = np.zeros(len(NAMES))
    features[3] = np.nan
    with pytest.raises(ValueError, match="finite"):
        unpack_features(pack_features(features))
