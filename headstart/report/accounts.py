"""From booked requests to a Report."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING

from headstart.decisions import Outcome
from headstart.report.calls import CallAccounts
from headstart.report.experiments import Trials
from headstart.report.holdout import Experiment
from headstart.report.statistics import curve
from headstart.report.tally import Tally
from headstart.report.values import Report, Span

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headstart.observe import Served
    from headstart.report.values import Group

MAX_GROUPS = 20
"""Clients choose the names of models: those seen after the first 20 are one group, ``other``."""
MAX_BARS = 60
STEPS_S = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 86400, 7 * 86400, 30 * 86400)


class Accounts:
    """Accumulates booked requests, in any order; ``report`` sums up. 100 bytes a request."""

    def __init__(self) -> None:
        self._overall = Tally()
        self._models: dict[str, Tally] = {}
        self._endpoints: dict[str, Tally] = {}
        self._reasons: Counter[str] = Counter()
        self._arrivals: dict[Outcome, array[float]] = {each: array("d") for each in Outcome}
        self._experiment = Experiment()
        self._calls = CallAccounts()
        self._trials = Trials()

    def add(self, row: Served) -> None:
        """Count one request."""
        self._overall.add(row)
        _member(self._models, row.model or "(none)").add(row)
        _member(self._endpoints, row.endpoint).add(row)
        self._calls.add(row)
        if row.outcome is Outcome.AUDIT:
            return
        self._arrivals[row.outcome].append(row.at)
        self._experiment.add(row)
        self._trials.add(row)
        if row.outcome in (Outcome.MISS, Outcome.BYPASS) and row.reason is not None:
            self._reasons[row.reason] += 1

    def report(self) -> Report:
        """Return the report over what was added."""
        columns = [column for column in self._arrivals.values() if column]
        first = min((min(column) for column in columns), default=None)
        last = max((max(column) for column in columns), default=None)
        step_s = 0.0 if first is None or last is None else _step(last - first)
        return Report(
            first=first,
            last=last,
            overall=self._overall.group("all"),
            models=_groups(self._models),
            endpoints=_groups(self._endpoints),
            reasons=dict(self._reasons.most_common()),
            holdout=self._experiment.result(),
            hit_curve=curve(self._overall.hit_ttft),
            miss_curve=curve(self._overall.miss_ttft),
            timeline=_timeline(self._arrivals, step_s) if step_s else (),
            timeline_step_s=step_s,
            calls=self._calls.calls(),
            extra=self._calls.extra(),
            reshaped=self._calls.reshaped(),
            trials=self._trials.trials(),
        )


def _member(tallies: dict[str, Tally], name: str) -> Tally:
    known = name in tallies or len(tallies) < MAX_GROUPS
    return tallies.setdefault(name if known else "other", Tally())


def _groups(tallies: Mapping[str, Tally]) -> tuple[Group, ...]:
    """Sum up, busiest first."""
    order = sorted(tallies, key=lambda name: -tallies[name].requests)
    return tuple(tallies[name].group(name) for name in order)


def _step(span_s: float) -> float:
    """Return a round width with which the span takes no more than ``MAX_BARS`` bars."""
    return next((step for step in STEPS_S if span_s < step * (MAX_BARS - 1)), span_s / MAX_BARS)


def _timeline(arrivals: Mapping[Outcome, array[float]], step_s: float) -> tuple[Span, ...]:
    """Count arrivals by bar; bars without any are left out."""
    bars: dict[int, Counter[str]] = {}
    for outcome, instants in arrivals.items():
        for instant in instants:
            bars.setdefault(int(instant // step_s), Counter())[outcome.value] += 1
    return tuple(Span(start=bar * step_s, outcomes=dict(bars[bar])) for bar in sorted(bars))
