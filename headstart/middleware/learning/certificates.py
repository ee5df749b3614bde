"""Certificates: the bounds that audits prove, by learning domain and week."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headstart.decisions import LabelSource, Outcome, Rule
from headstart.policies.ratchet.threshold import audits_needed, certify
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headstart.decisions import Label
    from headstart.interfaces import Store
    from headstart.observe import Served
    from headstart.policies.ratchet.settings import Promise

WORDS = (
    "On traffic like that of its window: an upper bound that holds with 95 % confidence whenever"
    " one looks at it, from hits drawn uniformly at random and judged by the configured judge,"
    " assuming a stable rate within the window. It is an average over the domain, not a promise"
    " for each prompt, and not under attack."
)


class CertificateRow(Frozen, omit_defaults=False):
    """The audits of one domain in one ISO week (UTC), and the bounds that they prove.

    ``wrong_per_hit`` is among semantic hits, ``wrong_per_request`` among all requests; ``bound_``
    is the upper bound of each. Hits that the judge was unsure of do not count.
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
    """Where the domain's last request arrived; "": the books have none of its requests any more."""
    route: str = ""
    """The ``[[route]]`` of the domain; "": none."""
    caller: str = ""
    """The name of the key of its last request, if it has one."""

    @property
    def name(self) -> str:
        """What a person calls the domain."""
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


async def audit_report(store: Store, promise: Promise, *, since: float = 0.0) -> AuditReport:
    """Sum up the audits since an instant (Unix seconds). Raises StoreError."""
    audits: defaultdict[tuple[str, str], Counter[bool | None]] = defaultdict(Counter)
    wrong_hits = []
    async for label in all_labels(store):
        if label.source is not LabelSource.AUDIT or label.at < since:
            continue
        audits[label.domain, _week(label.at)][label.same] += 1
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
    requests: Counter[tuple[str, str]] = Counter()
    hits: Counter[tuple[str, str]] = Counter()
    cold: Counter[tuple[str, str]] = Counter()
    places: dict[str, Served] = {}
    async for row in store.books(since):
        if row.domain and not row.outcome.is_own_call:
            places[row.domain] = row
            requests[row.domain, _week(row.at)] += 1
            hit = row.outcome is Outcome.SEMANTIC
            hits[row.domain, _week(row.at)] += hit
            cold[row.domain, _week(row.at)] += hit and row.rule is Rule.COLD_START
    rows = [
        _row(
            promise, key, audits[key], requests[key], hits[key], cold[key], last=places.get(key[0])
        )
        for key in sorted(audits.keys() | hits.keys(), key=lambda key: (key[1], key[0]))
        if hits[key] or audits[key]
    ]
    return AuditReport(
        max_error=promise.max_error,
        error_of=promise.error_of,
        words=WORDS,
        certificates=rows,
        wrong_hits=wrong_hits,
    )


async def all_labels(store: Store) -> AsyncIterator[Label]:
    """Yield every kept label, oldest first. Raises StoreError."""
    cursor = ""
    while page := await store.labels(cursor):
        for _, label in page:
            yield label
        cursor = page[-1][0]


def _row(
    promise: Promise,
    key: tuple[str, str],
    counts: Counter[bool | None],
    requests: int,
    hits: int,
    cold_start_hits: int,
    *,
    last: Served | None,
) -> CertificateRow:
    wrong, audits = counts[False], counts[False] + counts[True]
    share = hits / requests if requests else 1.0
    found = certify(audits, wrong, share)
    by_request = promise.error_of == "requests"
    target = promise.max_error
    if by_request and share:
        target = min(target / share, 0.999)
    more = audits_needed(audits, wrong, target)
    return CertificateRow(
        domain=key[0],
        week=key[1],
        requests=requests,
        hits=hits,
        audits=audits,
        unsure=counts[None],
        wrong=wrong,
        wrong_per_hit=wrong / audits if audits else None,
        bound_per_hit=found.per_hit,
        wrong_per_request=wrong / audits * share if audits and requests else None,
        bound_per_request=found.per_request if requests else None,
        certified=more == 0,
        more_audits=more,
        cold_start_hits=cold_start_hits,
        path="" if last is None else last.endpoint,
        route="" if last is None else last.route,
        caller="" if last is None else last.caller,
    )


def _week(at: float) -> str:
    year, week, _ = datetime.fromtimestamp(at, UTC).isocalendar()
    return f"{year}-W{week:02}"
