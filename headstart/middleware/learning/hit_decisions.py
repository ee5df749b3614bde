"""Decides whether a hit is served, and whether its answer is compared with a fresh one.

``HitDecider.decide`` gets the result of a lookup, and chooses one of these ways:

=====================  ===============  ===========================================================
lookup                 action           when
=====================  ===============  ===========================================================
exact hit              serve            nearly always
exact hit              serve and audit  if a null audit is drawn: it measures how often two answers
                                        to the same question differ
semantic hit           serve            if no audit is drawn
semantic hit           serve and audit  if an audit is drawn, in the mode ``background``
semantic hit           ask              if an audit is drawn, in the mode ``sync``; and in shadow
                                        mode, where no semantic hit is served
miss with a neighbour  ask              always; a drawn share is compared with the neighbour
any other miss         ask              always; nothing is compared
=====================  ===============  ===========================================================

For example, ``audit.rate`` is 0.02. Of 100 semantic hits 98 are served, and two are served and
audited: the fresh answer is compared with the one that was served, and gives a label.

``explain`` gives the reasons of a verdict. ``Reviews`` and ``most_doubtful`` find the pairs about
which the rule is least sure, for the review page.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import anyio
import anyio.lowlevel
import msgspec

from headstart.decisions import LabelSource, Lookup, Outcome, Rule, UnlabelledPair, Verdict
from headstart.errors import StageError
from headstart.middleware.learning.learner import Audits, ComparisonBudget, FeedbackSample, Learner
from headstart.observe import Observer, StageFailed
from headstart.policies.learned_rule.domain import DomainStatus  # noqa: TC001 - msgspec reads it
from headstart.policies.learned_rule.features import unpack_features
from headstart.policies.learned_rule.threshold import comparison_share
from headstart.policies.match import FEEDBACK, question_of
from headstart.types import CacheKey, Entry, Frozen

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from headstart.decisions import Label, MatchContext
    from headstart.interfaces import Store
    from headstart.middleware.flights import Flight
    from headstart.middleware.request_context import RequestContext
    from headstart.policies.learned_rule.domain import Domain
    from headstart.policies.learned_rule.error_limit import ErrorLimit


class HitAction(Enum):
    """What happens to a request after its lookup."""

    SERVE = "serve"
    SERVE_AND_AUDIT = "serve and audit"
    """Serve the hit, and also call the provider, in the background."""
    ASK = "ask"
    """Call the provider, and send its answer to the caller."""


class HitDecision(msgspec.Struct, frozen=True):
    """What happens to a request, and why."""

    action: HitAction
    lookup: Lookup
    """The lookup to report. A hit that is not served is reported as a miss."""
    sample: FeedbackSample | None = None
    """The pair that a fresh answer labels, if the provider is asked; None: nothing is compared."""


class AllowedChecks(NamedTuple):
    """The ways in which a request's hit may be checked."""

    ask: bool
    """Let the caller wait for the provider's answer; not with ``only-if-cached``."""
    twice: bool
    """Call the provider although the hit is served, or again after a miss; not for an app that is
    not idempotent."""


@dataclass(slots=True, eq=False)
class HitDecider:
    """Decides whether hits are served and checked, by the learned rule.

    ``budget`` limits the CPU time for the comparison of misses. Audits are always compared, because
    the alarm and the certificates need them; their time counts, too. With ``shadow``, no semantic
    hit is served. With ``shadow_first``, none is served until its domain has this many labels.
    """

    learner: Learner
    audits: Audits
    budget: ComparisonBudget
    error_limit: ErrorLimit
    shadow: bool
    shadow_first: int
    observer: Observer

    async def refuse(self, context: MatchContext) -> str | None:
        """Load the request's domain; return why nothing may be matched by meaning, or None."""
        try:
            await self.learner.domains.load(context.domain)
        except StageError as error:
            self.observer.notify(StageFailed.of("learner", error))
            return "learner-error"
        return None

    def decide(
        self, id: str, lookup: Lookup, key: CacheKey, context: MatchContext, *, may: AllowedChecks
    ) -> HitDecision:
        """Decide about a finished lookup."""
        if lookup.outcome is Outcome.EXACT:
            return self._exact(id, lookup, key, context, may)
        if lookup.pair is None or key.query is None:
            action = HitAction.SERVE if lookup.entry is not None else HitAction.ASK
            return HitDecision(action, lookup)
        is_hit = lookup.entry is not None
        source = LabelSource.AUDIT if is_hit else LabelSource.MISS
        sample = FeedbackSample(
            id, lookup.pair, source, key.query, context.principal, served=is_hit,
            question_hash=question_of(key),
        )  # fmt: skip
        self.learner.remember(sample)
        decision = self._hit(lookup, sample, may) if is_hit else self._miss(lookup, sample, may)
        if decision.action is HitAction.ASK:
            self.learner.mark_unserved(id)
        return decision

    def _exact(
        self, id: str, lookup: Lookup, key: CacheKey, context: MatchContext, may: AllowedChecks
    ) -> HitDecision:
        """Serve an exact hit. Draw whether it gets a null audit."""
        if lookup.entry is None or key.query is None or not may.twice:
            return HitDecision(HitAction.SERVE, lookup)
        domain = self.learner.domains.find(context.domain)
        rate = self.audits.null_rate(0.0 if domain is None else domain.null_rate())
        if not self.audits.draw(rate):
            return HitDecision(HitAction.SERVE, lookup)
        sample = self.null_sample(id, lookup.entry, key.query, context, stores=True)
        return HitDecision(HitAction.SERVE_AND_AUDIT, lookup, sample)

    def _hit(self, lookup: Lookup, sample: FeedbackSample, may: AllowedChecks) -> HitDecision:
        """Serve a semantic hit, unless in shadow mode. Draw whether it is audited."""
        domain = self.learner.domains.find(sample.pair.domain)
        labels = 0 if domain is None else domain.labels
        if self.shadow or labels < self.shadow_first:
            self.budget.take()
            return HitDecision(HitAction.ASK, _as_miss(lookup, "shadow"), sample)
        in_background = may.twice and self.audits.settings.mode == "background"
        may_audit = in_background or may.ask
        if domain is None or not may_audit:
            return HitDecision(HitAction.SERVE, lookup, sample)
        rate = self.audits.rate(domain.audit_rate(self.audits.settings.rate))
        if not self.audits.draw(rate):
            return HitDecision(HitAction.SERVE, lookup, sample)
        self.budget.take()
        sample = sample._replace(draw_probability=rate)
        if in_background:
            return HitDecision(HitAction.SERVE_AND_AUDIT, lookup, sample)
        return HitDecision(HitAction.ASK, _as_miss(lookup, "audit"), sample)

    def _miss(self, lookup: Lookup, sample: FeedbackSample, may: AllowedChecks) -> HitDecision:
        """Draw whether a miss is compared. The draw must not depend on the fresh answer."""
        verdict, max_error = sample.pair.verdict, self.error_limit.max_error
        share = comparison_share(verdict, max_error, self.budget.left())
        if not self.audits.draw_share(share):
            return HitDecision(HitAction.ASK, lookup)
        self.budget.take()
        sample = sample._replace(draw_probability=share)
        if may.twice and self.audits.asks_twice:
            domain = self.learner.domains.find(sample.pair.domain)
            rate = 0.0 if domain is None else domain.repeat_rate(verdict, sample.pair.entry.id)
            sample = sample._replace(twice=self.audits.draw(rate))
        return HitDecision(HitAction.ASK, lookup, sample)

    def null_sample(
        self, id: str, entry: Entry, question: str, context: MatchContext, *, stores: bool
    ) -> FeedbackSample:
        """Return the sample of a null audit: another answer to the question of the entry.

        For an exact hit, the fresh answer is newer than the stored one, so it is stored. The second
        answer to a miss is not stored (``stores``), and its domain counts it. The comparison is
        charged to the budget.
        """
        self.budget.take()
        if not stores and (domain := self.learner.domains.find(context.domain)) is not None:
            domain.asked_twice += 1
        verdict = Verdict(serves=True, similarity=1.0)
        pair = UnlabelledPair(domain=context.domain, entry=entry, verdict=verdict)
        return FeedbackSample(
            id, pair, LabelSource.NULL, question, context.principal, served=True, stores=stores
        )

    def refuse_entry(self, entry: str, key: CacheKey) -> str | None:
        """Return the reason if a person called the entry wrong for the key's question, or None."""
        vetoes = self.learner.domains.vetoes
        return FEEDBACK if vetoes and vetoes.refuses(entry, question_of(key)) else None

    def book_audit(
        self,
        id: str,
        flight: Flight,
        context: RequestContext,
        sample: FeedbackSample,
        pump: asyncio.Task[None],
    ) -> None:
        """Book the cost and the outcome of an audit under a new ``id``, after its pump has ended.

        No client waits for such a call, but it costs money.
        """
        row = context.own_call(flight, Outcome.AUDIT, id, self.learner.clock())
        if row.cost_usd is not None:
            self.audits.budget.pay(row.cost_usd)
        error = flight.error
        self.observer.notify(
            msgspec.structs.replace(
                row,
                domain=sample.pair.domain,
                neighbor=sample.pair.entry.id,
                audit_of=context.id,
                reason=sample.source.value,
                stored=row.stored and sample.stores,
                error=type(error).__name__ if error is not None and not pump.cancelled() else None,
            )
        )

    def explain(self, id: str) -> Explanation | None:
        """Explain the verdict on a recent request; return None if nothing was compared.

        Raises LearnerError if its domain is not in memory any more.
        """
        sample = self.learner.recall(id)
        if sample is None:
            return None
        return explain(sample.pair, self.learner.domains.get(sample.pair.domain))

    async def score(self, label: Label) -> DoubtfulPair | None:
        """Return a labelled pair with its score now; None: it has none. Raises StoreError."""
        domain = await self.learner.domains.load(label.domain)
        if label.version != domain.version or not label.features:
            return None
        score = domain.score(unpack_features(label.features), label.entry)
        threshold = domain.threshold() if domain.rule is Rule.LEARNED else None
        distance = 0.0 if label.same is None else abs(score - (threshold or 0.0))
        return DoubtfulPair(label, score, distance)


def _as_miss(lookup: Lookup, reason: str) -> Lookup:
    return msgspec.structs.replace(lookup, outcome=Outcome.MISS, entry=None, reason=reason)


# --- explanations of verdicts ---------------------------------------------------------------------

NO_FEATURES = frozenset(("bias", "entry", "uncertainty"))
"""Contributions that do not come from the two questions."""


class Explanation(Frozen, omit_defaults=False):
    """The reasons why a neighbour did, or did not, answer."""

    neighbor: str
    rule: Rule
    veto: str | None
    qualified: bool
    """Whether the rule allowed its answer. An audit, shadow mode or the request may still have
    refused it: see ``outcome`` and ``reason`` of the request."""
    similarity: float
    score: float | None
    threshold: float | None
    """The value that the score, or at cold start the similarity, had to reach."""
    short_by: float | None
    flips: str
    """Changes that would have reversed the verdict."""
    contributions: dict[str, float]
    """Each feature's share of the score, largest first; they sum up to ``score_now``.

    ``entry`` is the part of labels of this neighbour, ``uncertainty`` the deduction for caution.
    """
    score_now: float | None
    """The present score, after later labels. ``score`` is the score at the request."""
    domain: DomainStatus


class Explained(Frozen):
    """The explanation that ``explain/{id}`` adds; None: no neighbour was judged."""

    verdict: Explanation | None = None


def explain(pair: UnlabelledPair, domain: Domain) -> Explanation:
    """Explain a verdict. Contributions and status are the present ones, after later labels.

    Contributions are empty if the features are of another version.
    """
    verdict = pair.verdict
    short_by = None
    if verdict.threshold is not None:
        short_by = max(0.0, verdict.threshold - _reached(verdict))
    contributions = _contributions(pair, domain)
    return Explanation(
        neighbor=pair.entry.id,
        rule=verdict.rule,
        veto=verdict.veto,
        qualified=verdict.serves,
        similarity=verdict.similarity,
        score=verdict.score,
        threshold=verdict.threshold,
        short_by=short_by,
        flips=_flips(verdict, short_by, contributions),
        contributions=contributions,
        score_now=sum(contributions.values()) if contributions else None,
        domain=domain.status(),
    )


def _contributions(pair: UnlabelledPair, domain: Domain) -> dict[str, float]:
    """Return each feature's share of the score now, the largest first."""
    if not pair.verdict.features:
        return {}
    shares = domain.contributions(pair.verdict.features)
    shares["entry"] = domain.entry_stats(pair.entry.id).offset
    return dict(sorted(shares.items(), key=lambda each: -abs(each[1])))


def _reached(verdict: Verdict) -> float:
    """Return the value that was compared with the threshold."""
    if verdict.rule is Rule.LEARNED and verdict.score is not None:
        return verdict.score
    return verdict.similarity


def _flips(verdict: Verdict, short_by: float | None, contributions: dict[str, float]) -> str:
    """Name the changes that would have reversed a verdict, for ``Explanation.flips``."""
    if verdict.serves:
        return f"a threshold above {_reached(verdict):.3f}, or any guard's veto"
    quantity = "score" if verdict.rule is Rule.LEARNED else "similarity"
    match verdict.veto:
        case "threshold" if short_by is not None:
            higher = f"a {quantity} higher by {short_by:.3f}"
            return higher + _without_features(verdict, short_by, contributions)
        case "unlearned" | "doubtful":
            return "enough labels for the learned rule, or near misses with fewer other answers"
        case "unqualified":
            return "a larger max_error, or labels that show fewer wrong answers among such pairs"
        case "alarm":
            return "enough new labels after the alarm, with no more wrong than max_error"
        case guard:
            higher = f", and a {quantity} higher by {short_by:.3f}" if short_by else ""
            return (
                f"the guard {guard!r} switched off, or questions in which it finds nothing{higher}"
            )


def _without_features(verdict: Verdict, short_by: float, contributions: dict[str, float]) -> str:
    """Name each feature without which the score would have reached the threshold."""
    if verdict.rule is not Rule.LEARNED:
        return ""
    enough = [
        name
        for name, share in contributions.items()
        if name not in NO_FEATURES and -share >= short_by
    ]
    return f", such as without {' or '.join(map(repr, enough))}" if enough else ""


# --- pairs for the review page --------------------------------------------------------------------

MOST_PAIRS = 5000
"""Number of the newest pairs among which doubtful ones are looked for."""
MOST_SEARCHED_DOMAINS = 32
"""Most learning domains that are searched, because each must be loaded into memory."""
SCORED_AT_ONCE = 100
"""Number of pairs scored before other tasks get their turn."""


class DoubtfulPair(NamedTuple):
    """A pair and its score now."""

    label: Label
    score: float
    distance: float
    """How far the score is from the threshold; 0 where the judge was unsure."""


class Reviews:
    """The newest pairs whose two answers are stored, and which of them were reviewed."""

    def __init__(self, most: int = MOST_PAIRS) -> None:
        self._most = most
        self._store: Store | None = None
        self._cursor = ""
        self._pairs: OrderedDict[tuple[str, str], Label] = OrderedDict()
        """By request and entry, the oldest first."""
        self._reviewed: set[tuple[str, str]] = set()
        self._lock = anyio.Lock()

    async def follow(self, store: Store) -> None:
        """Read the labels since the last call; the first call reads all. Raises StoreError."""
        async with self._lock:
            if store is not self._store:
                self._store, self._cursor = store, ""
                self._pairs.clear()
                self._reviewed.clear()
            while page := await store.read_labels(self._cursor):
                for _, label in page:
                    self._note(label)
                self._cursor = page[-1][0]

    def find(self, id: str, entry: str) -> Label | None:
        """Return the newest label of a pair, reviewed or not."""
        return self._pairs.get((id, entry))

    def unreviewed(self) -> list[Label]:
        """Return the pairs that nobody has reviewed, newest first."""
        pairs = reversed(self._pairs.items())
        return [label for pair, label in pairs if pair not in self._reviewed]

    def drop(self, label: Label) -> None:
        """Forget a pair with an answer that the store has lost."""
        self._pairs.pop((label.id, label.entry), None)
        self._reviewed.discard((label.id, label.entry))

    def _note(self, label: Label) -> None:
        pair = label.id, label.entry
        if label.source is LabelSource.REVIEW:
            if pair in self._pairs:
                self._reviewed.add(pair)
            return
        if not (label.stored and label.features):
            return
        self._pairs[pair] = label
        self._pairs.move_to_end(pair)
        if len(self._pairs) > self._most:
            oldest, _ = self._pairs.popitem(last=False)
            self._reviewed.discard(oldest)


async def most_doubtful(labels: Sequence[Label], hit_decider: HitDecider) -> list[DoubtfulPair]:
    """Order pairs, given newest first, by their distance from a decision. Raises StoreError.

    Labels of another policy version are left out, because nothing is learned from them.
    """
    newest_first = dict.fromkeys(label.domain for label in labels)
    domains = set(islice(newest_first, MOST_SEARCHED_DOMAINS))
    found = []
    for number, label in enumerate(labels):
        if number % SCORED_AT_ONCE == 0:
            await anyio.lowlevel.checkpoint()
        if label.domain not in domains:
            continue
        pair = await hit_decider.score(label)
        if pair is not None:
            found.append(pair)
    return sorted(found, key=lambda each: each.distance)
