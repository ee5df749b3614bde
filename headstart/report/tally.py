"""One pass over booked requests: counts and columns of numbers, eight bytes each."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING

from headstart.decisions import Outcome
from headstart.report.statistics import quantiles
from headstart.report.values import Group, Savings, Times

if TYPE_CHECKING:
    from headstart.observe import Served

HITS = (Outcome.EXACT, Outcome.SEMANTIC)


def succeeded(row: Served) -> bool:
    """Return whether the answer arrived whole."""
    return row.error is None and 200 <= row.status < 300


class Tally:
    """Accumulates requests; ``group`` sums them up."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.failures = 0
        self.hit_ttft = array("d")
        self.hit_total = array("d")
        self.miss_ttft = array("d")
        self.miss_total = array("d")
        self._saved_s = 0.0
        self._saved_ttft_s = 0.0
        self._overhead_s = 0.0
        self._tokens = 0
        self._usd = 0.0
        self._priced = 0
        self._estimated = 0
        self._audits = 0
        self._audit_usd = 0.0

    def add(self, row: Served) -> None:
        """Count one request, or the cost of an audit."""
        if row.outcome is Outcome.AUDIT:
            self._audits += 1
            self._audit_usd += row.cost_usd or 0.0
            return
        self.outcomes[row.outcome.value] += 1
        if row.outcome not in HITS:
            self._overhead_s += row.overhead_s
        if not succeeded(row):
            self.failures += 1
        elif row.outcome in HITS:
            self._add_hit(row)
        elif row.outcome is Outcome.MISS:
            self.miss_total.append(row.total_s)
            if row.ttft_s is not None:
                self.miss_ttft.append(row.ttft_s)

    def _add_hit(self, row: Served) -> None:
        self.hit_total.append(row.total_s)
        if row.ttft_s is not None:
            self.hit_ttft.append(row.ttft_s)
        self._saved_s += row.saved_total_s
        self._saved_ttft_s += row.saved_ttft_s
        self._tokens += row.saved_tokens
        self._estimated += row.estimated
        if row.saved_usd is not None:
            self._usd += row.saved_usd
            self._priced += 1

    @property
    def requests(self) -> int:
        """How many were counted."""
        return self.outcomes.total()

    def group(self, name: str) -> Group:
        """Return the sums, under a name."""
        hits = len(self.hit_total)
        exact, semantic = (self.outcomes[kind.value] for kind in HITS)
        return Group(
            name=name,
            requests=self.requests,
            outcomes={
                outcome.value: self.outcomes[outcome.value]
                for outcome in Outcome
                if outcome is not Outcome.AUDIT
            },
            failures=self.failures,
            hit_rate=self._rate(exact + semantic),
            exact_rate=self._rate(exact),
            semantic_rate=self._rate(semantic),
            hits=Times(ttft=quantiles(self.hit_ttft), total=quantiles(self.hit_total)),
            misses=Times(ttft=quantiles(self.miss_ttft), total=quantiles(self.miss_total)),
            savings=Savings(
                total_s=self._saved_s - self._overhead_s,
                ttft_s=self._saved_ttft_s - self._overhead_s,
                overhead_s=self._overhead_s,
                tokens=self._tokens,
                usd=self._usd - self._audit_usd if self._priced else None,
                audits=self._audits,
                audits_usd=self._audit_usd,
                unpriced_hits=hits - self._priced,
                estimated_hits=self._estimated,
            ),
        )

    def _rate(self, count: int) -> float | None:
        return count / self.requests if self.requests else None
