"""Which misses are compared: those that help to place the threshold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from headstart.decisions import (
    LabelSource,
    Lookup,
    MatchContext,
    Outcome,
    Rule,
    UnlabelledPair,
    Verdict,
)
from headstart.middleware.learning.hit_decisions import (
    AllowedChecks,
    HitAction,
    HitDecider,
    HitDecision,
)
from headstart.middleware.learning.learner import SAVED_UP_S, Audits, ComparisonBudget
from headstart.middleware.observers import Observers
from headstart.policies.learned_rule.domain import Domain
from headstart.policies.learned_rule.error_limit import ErrorLimit
from headstart.policies.learned_rule.threshold import UNLIKELY_SCORE, UNLIKELY_SHARE
from headstart.settings import AuditSettings
from headstart.types import CacheKey
from support.fakes import make_entry
from support.learned import make_label

if TYPE_CHECKING:
    from headstart.middleware.learning.learner import FeedbackSample

KEY = CacheKey(scope="s", partition="p", exact="x", query="Why?")


class Remembering:
    """A learner that only remembers."""

    def __init__(self) -> None:
        self.samples: list[FeedbackSample] = []
        self.unserved: list[str] = []
        self.domains: Any = SimpleNamespace(find=lambda domain: None)

    def remember(self, sample: FeedbackSample) -> None:
        self.samples.append(sample)

    def mark_unserved(self, id: str) -> None:
        self.unserved.append(id)


class Dice(Audits):
    """Audits whose luck is the test's."""

    def __init__(self, *, lucky: bool) -> None:
        super().__init__(AuditSettings(mode="off"), lambda: 0.0)
        self.lucky = lucky

    def draw_share(self, share: float) -> bool:
        return share == 1 or (share > 0 and self.lucky)


def decider_with(
    learner: Remembering, dice: Audits, budget: ComparisonBudget, *, shadow: bool = False
) -> HitDecider:
    return HitDecider(
        cast("Any", learner),
        dice,
        budget=budget,
        error_limit=ErrorLimit(),
        shadow=shadow,
        shadow_first=0,
        observer=Observers(),
    )


def decide(hit_decider: HitDecider, verdict: Verdict) -> HitDecision:
    pair = UnlabelledPair(domain="d", entry=make_entry("e"), verdict=verdict)
    lookup = Lookup(outcome=Outcome.MISS, pair=pair)
    allowed = AllowedChecks(ask=True, twice=True)
    return hit_decider.decide("id", lookup, KEY, MatchContext(domain="d"), may=allowed)


@pytest.mark.parametrize(
    ("rule", "score", "lucky", "drawn"),
    [
        (Rule.LEARNED, UNLIKELY_SCORE + 1, False, 1.0),
        (Rule.LEARNED, UNLIKELY_SCORE - 1, False, None),
        (Rule.LEARNED, UNLIKELY_SCORE - 1, True, UNLIKELY_SHARE),
        (Rule.COLD_START, UNLIKELY_SCORE - 1, False, 1.0),
    ],
)
def test_only_some_of_the_pairs_that_surely_differ_are_compared(
    rule: Rule, score: float, lucky: bool, drawn: float | None
) -> None:
    learner = Remembering()
    hit_decider = decider_with(learner, Dice(lucky=lucky), ComparisonBudget(1.0, lambda: 0.0))
    verdict = Verdict(serves=False, similarity=0.7, veto="threshold", rule=rule, score=score)
    decision = decide(hit_decider, verdict)
    assert (None if decision.sample is None else decision.sample.draw_probability) == drawn
    assert [sample.id for sample in learner.samples] == ["id"]


def test_a_rate_below_the_default_halves_the_audits() -> None:
    class Certain(Remembering):
        """A learner whose one domain was audited often and never wrong."""

        def __init__(self) -> None:
            super().__init__()
            self.domains = self

        def find(self, _: str) -> Domain:
            return domain

    domain = Domain(ErrorLimit())
    for number in range(2000):
        domain.apply(make_label(number, source=LabelSource.AUDIT))
    dice = Dice(lucky=True)
    dice.settings = AuditSettings(rate=0.01)
    hit_decider = decider_with(Certain(), dice, ComparisonBudget(0.03, lambda: 0.0))
    pair = UnlabelledPair(
        domain="d", entry=make_entry("e"), verdict=Verdict(serves=True, similarity=0.95)
    )
    hit = Lookup(outcome=Outcome.SEMANTIC, entry=make_entry("e"), pair=pair)
    decision = hit_decider.decide(
        "id", hit, KEY, MatchContext(domain="d"), may=AllowedChecks(ask=True, twice=True)
    )
    assert decision.sample is not None
    assert decision.sample.draw_probability == 0.01


def test_comparisons_keep_to_their_cpu_and_prefer_pairs_near_the_boundary() -> None:
    """A hundred misses a second, of which ten are near, each comparison 10 ms: 3 may be made."""
    now = 0.0
    budget = ComparisonBudget(0.03, lambda: now)
    dice = Audits(AuditSettings(mode="off"), lambda: 0.0)
    hit_decider = decider_with(Remembering(), dice, budget)
    near = Verdict(serves=False, similarity=0.8, rule=Rule.LEARNED, score=1.0, threshold=2.0)
    far = Verdict(serves=False, similarity=0.8, rule=Rule.LEARNED, score=-2.0, threshold=2.0)
    drawn = {near: 0, far: 0}
    for number in range(100 * 400):
        now = number / 100
        verdict = far if number % 10 else near
        sample = decide(hit_decider, verdict).sample
        if now > 10 * SAVED_UP_S and sample is not None:
            drawn[verdict] += 1
        if sample is not None:
            budget.spend(0.01)
            budget.compared()
    assert 0.9 * 300 < sum(drawn.values()) < 1.1 * 300  # 100 s at 3 a second
    assert drawn[near] / 10 > 3 * drawn[far] / 90


def test_without_cpu_nothing_is_compared_and_after_a_while_it_goes_on() -> None:
    now = 0.0
    budget = ComparisonBudget(0.03, lambda: now)
    hit_decider = decider_with(Remembering(), Dice(lucky=True), budget)
    verdict = Verdict(serves=False, similarity=0.85, rule=Rule.COLD_START)
    for _ in range(300):
        sample = decide(hit_decider, verdict).sample
        if sample is None:
            break
    assert sample is None
    now = SAVED_UP_S
    again = decide(hit_decider, verdict).sample
    assert again is not None
    assert again.draw_probability == 1.0


def test_dearer_comparisons_are_drawn_less() -> None:
    def drawn(cost_s: float) -> int:
        budget = ComparisonBudget(0.03, lambda: 0.0)
        for _ in range(500):
            budget.spend(cost_s)
            budget.compared()
        hit_decider = decider_with(Remembering(), Dice(lucky=True), budget)
        verdict = Verdict(serves=False, similarity=0.85, rule=Rule.COLD_START)
        return sum(decide(hit_decider, verdict).sample is not None for _ in range(2000))

    assert drawn(0.001) > 5 * drawn(0.02)


def test_a_share_of_nothing_compares_no_miss() -> None:
    hit_decider = decider_with(Remembering(), Dice(lucky=True), ComparisonBudget(0.0, lambda: 0.0))
    verdict = Verdict(serves=False, similarity=0.85, rule=Rule.COLD_START)
    assert decide(hit_decider, verdict).sample is None


@pytest.mark.parametrize("shadow", [True, False])
def test_feedback_on_a_hit_that_is_not_served_is_about_the_fresh_answer(*, shadow: bool) -> None:
    learner, entry = Remembering(), make_entry("e")
    hit_decider = decider_with(
        learner, Dice(lucky=False), ComparisonBudget(1.0, lambda: 0.0), shadow=shadow
    )
    verdict = Verdict(serves=True, similarity=0.9, rule=Rule.LEARNED, score=3.0, threshold=2.0)
    pair = UnlabelledPair(domain="d", entry=entry, verdict=verdict)
    lookup = Lookup(outcome=Outcome.SEMANTIC, entry=entry, pair=pair)
    allowed = AllowedChecks(ask=True, twice=True)
    decision = hit_decider.decide("id", lookup, KEY, MatchContext(domain="d"), may=allowed)
    assert (decision.action is HitAction.ASK) == shadow
    assert learner.unserved == (["id"] if shadow else [])
