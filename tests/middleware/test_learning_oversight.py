"""Which misses are compared: those that may say something about where to cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from headstart.decisions import Lookup, MatchContext, Outcome, Rule, UnlabelledPair, Verdict
from headstart.middleware.learning.audits import Audits
from headstart.middleware.learning.oversight import (
    UNLIKELY_SCORE,
    UNLIKELY_SHARE,
    AllowedChecks,
    Oversight,
)
from headstart.observe import Observers
from headstart.policies.ratchet.settings import Promise
from headstart.settings import AuditSettings
from headstart.types import CacheKey
from support.fakes import make_entry

if TYPE_CHECKING:
    from headstart.middleware.learning.learner import FeedbackSample

KEY = CacheKey(scope="s", partition="p", exact="x", query="Why?")


class Remembering:
    """A learner that only remembers."""

    def __init__(self) -> None:
        self.samples: list[FeedbackSample] = []

    def remember(self, sample: FeedbackSample) -> None:
        self.samples.append(sample)

    def mark_unserved(self, id: str) -> None:
        """Do nothing: no feedback follows here."""


class Dice(Audits):
    """Audits whose chance is the test's."""

    def __init__(self, *, lucky: bool) -> None:
        super().__init__(AuditSettings(mode="off"), lambda: 0.0)
        self.lucky = lucky

    def chance(self, share: float) -> bool:
        return self.lucky


@pytest.mark.parametrize(
    ("rule", "score", "lucky", "drawn"),
    [
        (Rule.LEARNED, UNLIKELY_SCORE + 1, False, 1.0),
        (Rule.LEARNED, UNLIKELY_SCORE - 1, False, None),
        (Rule.LEARNED, UNLIKELY_SCORE - 1, True, UNLIKELY_SHARE),
        (Rule.COLD_START, UNLIKELY_SCORE - 1, False, 1.0),
    ],
)
def test_of_pairs_that_surely_differ_only_some_are_compared(
    rule: Rule, score: float, lucky: bool, drawn: float | None
) -> None:
    learner = Remembering()
    oversight = Oversight(
        cast("Any", learner),
        Dice(lucky=lucky),
        promise=Promise(),
        shadow=False,
        shadow_first=0,
        observer=Observers(),
    )
    verdict = Verdict(serve=False, similarity=0.7, veto="threshold", rule=rule, score=score)
    pair = UnlabelledPair(domain="d", entry=make_entry("e"), verdict=verdict)
    lookup = Lookup(outcome=Outcome.MISS, pair=pair)
    allowed = AllowedChecks(ask=True, twice=True)
    decision = oversight.decide("id", lookup, KEY, MatchContext(domain="d"), may=allowed)
    assert (None if decision.sample is None else decision.sample.drawn) == drawn
    assert [sample.id for sample in learner.samples] == ["id"]
