"""The bill line by line, for a spreadsheet.

There is one line for each day, caller, route, model, endpoint and set of tags.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, NamedTuple, TextIO

from headstart.decisions import Outcome
from headstart.report.accounts import NONE, day_of
from headstart.report.estimates import PrefixReads, PrefixSums

if TYPE_CHECKING:
    from headstart.observe import Served

MOST_LINES = 50_000
"""Clients choose the names of models, and tags. After so many lines all models are ``other``, and
requests have no tags."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet reads a cell that begins so as a formula."""


class Line(NamedTuple):
    """What the requests of a line share."""

    day: str
    caller: str
    route: str
    model: str
    endpoint: str
    tags: str
    """Separated by commas."""


class LineSums:
    """The sums of a line. ``failed`` requests count as requests, too. Audits save less than 0."""

    def __init__(self) -> None:
        self.requests = self.hits = self.failed = 0
        self.prompt_tokens = self.completion_tokens = self.saved_tokens = 0
        self.did_cost_usd = self.would_have_cost_usd = 0.0

    def add(self, row: Served) -> None:
        """Count a request, or the cost of an audit."""
        self.did_cost_usd += row.cost_usd or 0.0
        self.would_have_cost_usd += row.would_have_cost_usd
        if row.outcome.is_own_call:
            self.saved_tokens -= row.spent_tokens
            return
        self.requests += 1
        self.hits += row.outcome.is_hit
        if not row.succeeded:
            self.failed += 1
            return
        self.saved_tokens += row.saved_tokens
        if not row.outcome.is_hit:
            self.prompt_tokens += row.prompt_tokens
            self.completion_tokens += row.completion_tokens


class Breakdown:
    """Collects booked requests; ``write`` writes the lines as CSV, the earliest day first."""

    def __init__(self) -> None:
        self._lines: dict[Line, LineSums] = {}
        self._prefix: dict[Line, PrefixSums] = {}
        self._reads = PrefixReads()

    def add(self, row: Served) -> None:
        """Count a request. One of a path that is not cached has no line: it has no known price."""
        if row.outcome is Outcome.RELAY:
            return
        line = Line(
            day_of(row.at),
            row.caller or NONE,
            row.route or NONE,
            row.model or NONE,
            row.endpoint,
            ",".join(row.tags),
        )
        if line not in self._lines and len(self._lines) >= MOST_LINES:
            line = line._replace(model="other", tags="")
        self._lines.setdefault(line, LineSums()).add(row)
        self._reads.add(row, [self._prefix.setdefault(line, PrefixSums())])

    def write(self, file: TextIO) -> None:
        """Write a header and the lines. Dollars have eight digits after the point."""
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*Line._fields, *vars(LineSums()), "saved_usd"))
        self._reads.settle()
        for line, sums in sorted(self._lines.items()):
            sums.would_have_cost_usd -= self._prefix[line].likely_usd
            saved = sums.would_have_cost_usd - sums.did_cost_usd
            numbers = (*vars(sums).values(), saved)
            writer.writerow(
                (
                    *map(_as_text, line),
                    *(f"{each:.8f}" if isinstance(each, float) else each for each in numbers),
                )
            )


def _as_text(name: str) -> str:
    return f"'{name}" if name.startswith(_FORMULA) else name
