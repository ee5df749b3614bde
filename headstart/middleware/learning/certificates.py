"""Sums up the audits in the store: what they prove about each learning domain, week by week.

``headstart audit`` and the admin page show it. The bounds are those of
``policies/learned_rule/threshold.py``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headstart.decisions import Label, LabelSource, Outcome, Rule
from headstart.policies.learned_rule.threshold import audits_needed, upper_bound
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headstart.interfaces import Store
    from headstart.observe import Served
    from headstart.policies.learned_rule.error_limit import ErrorLimit

WORDS = (
    "On traffic like that of its window: an upper bound that holds with 95 % confidence whenever"
    " one looks at it, from hits drawn uniformly at random and judged by the configured judge,"
    " assuming a stable rate within the window. It is an average over the domain, not a promise"
    " for each prompt, and not under attack."
)


class CertificateRow(Frozen, omit_defaults=False):
    """The audits of one domain in one ISO week (UTC), and the bounds that they prove.

    ``wrong_per_hit`` is among semantic hits, ``wrong_per_request`` among all requests; ``bound_``
    is the upper bound of each. Hits with an unsure judgement do not count.
    """

    domain: str
    week: str
    requests: int
    hits: int
    audits: int
    unsure: int
    wrong: int
    wrong_per_hit: float | None
    bound_per_hit: float
    wrong_per_request: float | None
    bound_per_request: float | None
    certified: bool
    more_audits: int | None
    """Audits needed to certify ``max_error`` at the present rate; None: the rate is too high."""
    cold_start_hits: int = 0
    """Number of ``hits`` by the cold-start rule, which ``max_error`` does not cover."""
    path: str = ""
    """Where the domain's last request arrived; "": the books have no request of it."""
    route: str = ""
    """The ``[[route]]`` of the domain; "": none."""
    caller: str = ""
    """The name of the key of its last request, if it has one."""

    @property
    def name(self) -> str:
        """A readable name of the domain."""
        words = (self.path, self.route and f"route {self.route}", self.caller)
        return ", ".join(filter(None, words)) or f"domain {self.domain}"


class WrongHit(Frozen, omit_defaults=False):
    """An audited hit whose fresh answer differed."""

    request: str
    entry: str
    domain: str
    at: float
    similarity: float


class AuditReport(Frozen, omit_defaults=False):
    """The report that ``headstart audit`` shows."""

    max_error: float
    error_of: str
    words: str
    certificates: list[CertificateRow]
    wrong_hits: list[WrongHit]


@dataclass
class _WeekCounts:
    """The requests and audits of one domain in one week."""

    requests: int = 0
    hits: int = 0
    cold_start_hits: int = 0
    judged: Counter[bool | None] = field(default_factory=Counter)
    """The audits by their result: the same answer, another one, or unsure (None)."""


async def audit_report(store: Store, error_limit: ErrorLimit, *, since: float = 0.0) -> AuditReport:
    """Sum up the audits since an instant (Unix seconds). Raises StoreError."""
    weeks: defaultdict[tuple[str, str], _WeekCounts] = defaultdict(_WeekCounts)
    wrong_hits = []
    async for label in all_labels(store):
        if label.source is not LabelSource.AUDIT or label.at < since:
            continue
        weeks[_week(label.at), label.domain].judged[label.same] += 1
        if label.same is False:
            wrong_hits.append(
                WrongHit(
                    request=label.id,
                    entry=label.entry,
                    domain=label.domain,
                    at=label.at,
                    similarity=label.similarity,
                )
            )
    last: dict[str, Served] = {}
    async for row in store.read_books(since):
        if row.domain and not row.outcome.is_own_call:
            last[row.domain] = row
            counts = weeks[_week(row.at), row.domain]
            counts.requests += 1
            if row.outcome is Outcome.SEMANTIC:
                counts.hits += 1
                counts.cold_start_hits += row.rule is Rule.COLD_START
    return AuditReport(
        max_error=error_limit.max_error,
        error_of=error_limit.error_of,
        words=WORDS,
        certificates=[
            _certificate(error_limit, week, domain, weeks[week, domain], last.get(domain))
            for week, domain in sorted(weeks)
            if weeks[week, domain].hits or weeks[week, domain].judged
        ],
        wrong_hits=wrong_hits,
    )


async def all_labels(store: Store) -> AsyncIterator[Label]:
    """Yield every kept label, oldest first. Raises StoreError."""
    cursor = ""
    while page := await store.read_labels(cursor):
        for _, label in page:
            yield label
        cursor = page[-1][0]


def _certificate(
    error_limit: ErrorLimit, week: str, domain: str, counts: _WeekCounts, last: Served | None
) -> CertificateRow:
    """Return what the audits of a week prove. ``last`` is the domain's last request."""
    requests, hits, wrong = counts.requests, counts.hits, counts.judged[False]
    audits = wrong + counts.judged[True]
    share = hits / requests if requests else 1.0
    bound = upper_bound(audits, wrong)
    target = error_limit.max_error
    if error_limit.error_of == "requests" and share:
        target = min(target / share, 0.999)
    more = audits_needed(audits, wrong, target)
    return CertificateRow(
        domain=domain,
        week=week,
        requests=requests,
        hits=hits,
        audits=audits,
        unsure=counts.judged[None],
        wrong=wrong,
        wrong_per_hit=wrong / audits if audits else None,
        bound_per_hit=bound,
        wrong_per_request=wrong / audits * share if audits and requests else None,
        bound_per_request=bound * share if requests else None,
        certified=more == 0,
        more_audits=more,
        cold_start_hits=counts.cold_start_hits,
        path="" if last is None else last.endpoint,
        route="" if last is None else last.route,
        caller="" if last is None else last.caller,
    )


def _week(at: float) -> str:
    year, week, _ = datetime.fromtimestamp(at, UTC).isocalendar()
    return f"{year}-W{week:02}"
