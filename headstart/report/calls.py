"""Upstream calls by provider and model: who answered, who was too slow, and what it all cost."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING

from headstart.attempts import AttemptOutcome
from headstart.report.statistics import quantile, quantiles
from headstart.report.values import Calls, Extra, Reshaped

if TYPE_CHECKING:
    from headstart.attempts import Attempt
    from headstart.observe import Served

MAX_NAMES = 40
"""A request may name any model: those seen after the first 40 are one row, ``other``."""
FAILURES = (AttemptOutcome.FAILED, AttemptOutcome.BROKEN)


class CallTally:
    """Accumulates the attempts of one provider and model."""

    def __init__(self) -> None:
        self._outcomes: Counter[AttemptOutcome] = Counter()
        self._roles: Counter[str] = Counter()
        self._ttft = array("d")
        self._speeds = array("d")
        self._tokens = 0
        self._usd = 0.0
        self._priced = False
        self._estimated = 0

    def add(self, attempt: Attempt) -> None:
        """Count one upstream call."""
        self._outcomes[attempt.outcome] += 1
        self._roles[attempt.role.value] += 1
        if attempt.ttft_s is not None:
            self._ttft.append(attempt.ttft_s)
        if attempt.tokens_per_s is not None:
            self._speeds.append(attempt.tokens_per_s)
        self._tokens += attempt.completion_tokens
        self._estimated += attempt.estimated
        if attempt.cost_usd is not None:
            self._priced = True
            self._usd += attempt.cost_usd

    def calls(self, name: str) -> Calls:
        """Return the sums, under a name."""
        speeds = sorted(self._speeds)
        return Calls(
            name=name,
            calls=self._outcomes.total(),
            won=self._outcomes[AttemptOutcome.WON],
            lost=self._outcomes[AttemptOutcome.LOST] + self._outcomes[AttemptOutcome.REJECTED],
            failed=sum(self._outcomes[each] for each in FAILURES),
            abandoned=self._outcomes[AttemptOutcome.ABANDONED],
            roles=dict(self._roles.most_common()),
            ttft=quantiles(self._ttft),
            tokens_per_s=quantile(speeds, 0.5) if speeds else None,
            completion_tokens=self._tokens,
            usd=self._usd if self._priced else None,
            estimated=self._estimated,
        )


class CallAccounts:
    """Accumulates the calls of booked requests."""

    def __init__(self) -> None:
        self._tallies: dict[str, CallTally] = {}
        self._requests = 0
        self._calls = 0
        self._usd = 0.0
        self._extra_usd = 0.0
        self._shaped: dict[str, list[int]] = {}

    def add(self, row: Served) -> None:
        """Count one request's calls, and what was done to its prompt and answer."""
        for shaped in row.shaped:
            sums = self._shaped.setdefault(shaped.kind, [0, 0, 0])
            sums[0] += 1
            sums[1] += shaped.tokens_before
            sums[2] += shaped.tokens_after
        if not row.attempts:
            return
        self._requests += 1
        self._calls += len(row.attempts)
        for attempt in row.attempts:
            name = f"{attempt.upstream} {attempt.model}".strip()
            known = name in self._tallies or len(self._tallies) < MAX_NAMES
            self._tallies.setdefault(name if known else "other", CallTally()).add(attempt)
            self._usd += attempt.cost_usd or 0.0
            if attempt.outcome is not AttemptOutcome.WON:
                self._extra_usd += attempt.cost_usd or 0.0

    def calls(self) -> tuple[Calls, ...]:
        """Return what each provider and model did, busiest first."""
        found = [tally.calls(name) for name, tally in self._tallies.items()]
        return tuple(sorted(found, key=lambda each: -each.calls))

    def extra(self) -> Extra | None:
        """Return what calls beyond the answering ones were, or None without any call."""
        if not self._requests:
            return None
        return Extra(
            requests=self._requests,
            calls_share=self._calls / self._requests - 1.0,
            usd=self._extra_usd,
            usd_share=self._extra_usd / self._usd if self._usd else None,
        )

    def reshaped(self) -> tuple[Reshaped, ...]:
        """Return what was taken off prompts and answers, by kind, where the rows tell that."""
        return tuple(
            Reshaped(kind=kind, requests=requests, tokens_before=before, tokens_after=after)
            for kind, (requests, before, after) in sorted(self._shaped.items())
            if before != after
        )
