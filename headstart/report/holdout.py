"""Savings measured by experiment: would-be hits sent upstream at random, beside hits."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from headstart.report.statistics import difference_interval, mean_interval
from headstart.report.tally import HITS, succeeded
from headstart.report.values import Holdout

if TYPE_CHECKING:
    from headstart.observe import Served


class Experiment:
    """Accumulates hits and held-out requests; failed ones measure nothing and are left out."""

    def __init__(self) -> None:
        self._hit_s = array("d")
        self._original_s = array("d")
        self._saved_s = array("d")
        self._saved_usd = array("d")
        self._held_out_s = array("d")
        self._held_out_usd = array("d")

    def add(self, row: Served) -> None:
        """Take one request, if it belongs to either side."""
        if not succeeded(row):
            return
        if row.outcome in HITS:
            self._hit_s.append(row.total_s)
            self._saved_s.append(row.saved_total_s)
            self._original_s.append(row.saved_total_s + row.total_s)
            if row.saved_usd is not None:
                self._saved_usd.append(row.saved_usd)
        elif row.holdout:
            self._held_out_s.append(row.total_s)
            if row.cost_usd is not None:
                self._held_out_usd.append(row.cost_usd)

    def result(self) -> Holdout | None:
        """Return both estimates, or None when nothing was held out."""
        if not self._held_out_s:
            return None
        hits = len(self._hit_s)
        # Both subtract the same hits' own times, so only the originals and the held-out differ.
        difference = difference_interval(self._original_s, self._held_out_s)
        disagree = None
        if difference is not None and difference.low is not None and difference.high is not None:
            disagree = not difference.low <= 0 <= difference.high
        return Holdout(
            hits=hits,
            held_out=len(self._held_out_s),
            by_hits_s=mean_interval(self._saved_s, times=hits),
            by_holdout_s=difference_interval(self._held_out_s, self._hit_s, times=hits),
            by_hits_usd=mean_interval(self._saved_usd, times=hits),
            by_holdout_usd=mean_interval(self._held_out_usd, times=hits),
            difference_s=difference,
            disagree=disagree,
        )
