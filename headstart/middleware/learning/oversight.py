"""What becomes of a lookup once learning has its say: serve, serve and check, or ask anew."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headstart.decisions import LabelSource, Lookup, Outcome, Rule, Trial, Verdict
from headstart.errors import StageError
from headstart.middleware.learning.explaining import Explanation, explain
from headstart.middleware.learning.learner import Lesson
from headstart.observe import StageFailed
from headstart.policies.ratchet.features import unpack_features
from headstart.policies.vetoes import FEEDBACK, question_of

if TYPE_CHECKING:
    from headstart.decisions import Label, Terms
    from headstart.interfaces import Observer
    from headstart.middleware.learning.audits import Audits
    from headstart.middleware.learning.learner import Learner
    from headstart.policies.ratchet.settings import Promise
    from headstart.types import CacheKey


DULL_SCORE = -4.0
"""Log-odds of pairs whose answers differ in 98 of 100 cases: they are far from any threshold."""
DULL_SHARE = 0.2
"""Share of them to compare all the same: a comparison may cost the encoding of an answer."""


class Course(Enum):
    """What to do with a request."""

    SERVE = "serve"
    SERVE_AND_AUDIT = "serve and audit"
    """Serve the hit and ask the provider too, in the background."""
    ASK = "ask"


class Ruling(NamedTuple):
    """A course, the lookup to report, and what a fresh answer would teach."""

    course: Course
    lookup: Lookup
    lesson: Lesson | None = None


class Allowed(NamedTuple):
    """What may be done to check a request's hit."""

    ask: bool
    """Let the caller wait for the provider's answer; not with ``only-if-cached``."""
    twice: bool
    """Call the provider although the hit is served; not an app that is not idempotent."""


class Oversight:
    """Learning as the engine sees it.

    ``shadow`` never serves a semantic hit; ``shadow_first`` does not before a domain has so many
    labels.
    """

    def __init__(
        self,
        learner: Learner,
        audits: Audits,
        *,
        promise: Promise,
        shadow: bool,
        shadow_first: int,
        observer: Observer,
    ) -> None:
        self.learner = learner
        self.audits = audits
        self.promise = promise
        self._shadow = shadow
        self._shadow_first = shadow_first
        self._observer = observer

    async def refuse(self, terms: Terms) -> str | None:
        """Bring the request's domain into memory; return why nothing may be matched by meaning."""
        try:
            await self.learner.domains.load(terms.domain)
        except StageError as error:
            cause = error.__cause__ or error
            self._observer.notify(StageFailed(stage="learner", error=type(cause).__name__))
            return "learner-error"
        return None

    def rule(self, id: str, lookup: Lookup, key: CacheKey, terms: Terms, *, may: Allowed) -> Ruling:
        """Decide about a finished lookup."""
        if lookup.outcome is Outcome.EXACT:
            return self._exact(id, lookup, key, terms, may)
        if lookup.trial is None or key.query is None:
            course = Course.SERVE if lookup.entry is not None else Course.ASK
            return Ruling(course, lookup)
        served = lookup.entry is not None
        source = LabelSource.AUDIT if served else LabelSource.MISS
        lesson = Lesson(
            id, lookup.trial, source, key.query, terms.principal, served, asked=question_of(key)
        )
        self.learner.remember(lesson)
        ruling = self._hit(lookup, lesson, may) if served else self._miss(lookup, lesson)
        if ruling.course is Course.ASK:
            self.learner.withheld(id)
        return ruling

    def refuse_entry(self, entry: str, question: str) -> str | None:
        """Return why an entry may not answer a rewording: a person called it wrong. Or None.

        ``question`` is the one asked, by ``question_of``.
        """
        refused = self.learner.domains.vetoes.refuses(entry, question)
        return FEEDBACK if refused else None

    def _miss(self, lookup: Lookup, lesson: Lesson) -> Ruling:
        """Compare a miss's answers, of pairs that are nearly sure to differ only some."""
        verdict = lesson.trial.verdict
        dull = verdict.rule is Rule.LEARNED and (verdict.score or 0.0) < DULL_SCORE
        if not dull:
            return Ruling(Course.ASK, lookup, lesson)
        if not self.audits.chance(DULL_SHARE):
            return Ruling(Course.ASK, lookup)
        return Ruling(Course.ASK, lookup, lesson._replace(drawn=DULL_SHARE))

    def explain(self, id: str) -> Explanation | None:
        """Say what a recent request's verdict was made of; None when nothing was compared.

        Raises LearnerError when its domain has left memory.
        """
        lesson = self.learner.recall(id)
        if lesson is None:
            return None
        return explain(lesson.trial, self.learner.domains.get(lesson.trial.domain))

    async def score(self, label: Label) -> float | None:
        """Return a labelled pair's score now, None without one. Raises StoreError."""
        domain = await self.learner.domains.load(label.domain)
        if label.version != domain.version or not label.features:
            return None
        return domain.score(unpack_features(label.features), label.entry)

    async def doubt(self, label: Label) -> float:
        """Return how far a labelled pair is from the threshold; 0 where the judge was unsure."""
        if label.same is None:
            return 0.0
        score = await self.score(label)
        domain = await self.learner.domains.load(label.domain)
        threshold = domain.threshold() if domain.rule is Rule.LEARNED else None
        return abs((score or 0.0) - (threshold or 0.0))

    def _hit(self, lookup: Lookup, lesson: Lesson, may: Allowed) -> Ruling:
        domain = self.learner.domains.find(lesson.trial.domain)
        labels = 0 if domain is None else domain.labels
        if self._shadow or labels < self._shadow_first:
            return Ruling(Course.ASK, _withheld(lookup, "shadow"), lesson)
        background = may.twice and self.audits.options.mode == "background"
        if domain is None or not (background or may.ask):
            return Ruling(Course.SERVE, lookup, lesson)
        if not self.audits.draw(domain.audit_rate()):
            return Ruling(Course.SERVE, lookup, lesson)
        lesson = lesson._replace(drawn=self.audits.rate(domain.audit_rate()))
        if background:
            return Ruling(Course.SERVE_AND_AUDIT, lookup, lesson)
        return Ruling(Course.ASK, _withheld(lookup, "audit"), lesson)

    def _exact(self, id: str, lookup: Lookup, key: CacheKey, terms: Terms, may: Allowed) -> Ruling:
        if lookup.entry is None or key.query is None or not may.twice:
            return Ruling(Course.SERVE, lookup)
        domain = self.learner.domains.find(terms.domain)
        if not self.audits.draw_null(0.0 if domain is None else domain.null_rate()):
            return Ruling(Course.SERVE, lookup)
        verdict = Verdict(serve=True, similarity=1.0)
        trial = Trial(domain=terms.domain, entry=lookup.entry, verdict=verdict)
        lesson = Lesson(id, trial, LabelSource.NULL, key.query, terms.principal, served=True)
        return Ruling(Course.SERVE_AND_AUDIT, lookup, lesson)


def _withheld(lookup: Lookup, reason: str) -> Lookup:
    return msgspec.structs.replace(lookup, outcome=Outcome.MISS, entry=None, reason=reason)
