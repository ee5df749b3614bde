"""What is measured by leaving some conversations alone: shorter answers, and tighter limits."""

from __future__ import annotations

from array import array
from statistics import fmean
from typing import TYPE_CHECKING

from headstart.observe import HELD_OUT
from headstart.report.statistics import difference_interval
from headstart.report.tally import succeeded
from headstart.report.values import Trial

if TYPE_CHECKING:
    from headstart.observe import Served

TRIED = ("concise", "tight")


class Trials:
    """Accumulates answers on both sides of each experiment; failed ones are left out."""

    def __init__(self) -> None:
        sides = [name + end for name in TRIED for end in ("", HELD_OUT)]
        self._tokens = {side: array("d") for side in sides}
        self._seconds = {side: array("d") for side in sides}

    def add(self, row: Served) -> None:
        """Take one request, on the sides that it was on."""
        if not row.shaped or not succeeded(row):
            return
        for shaped in row.shaped:
            if shaped.kind in self._tokens:
                self._tokens[shaped.kind].append(shaped.tokens_after)
                self._seconds[shaped.kind].append(row.total_s)

    def trials(self) -> tuple[Trial, ...]:
        """Return the experiments that were made."""
        return tuple(self._trial(name) for name in TRIED if self._tokens[name])

    def _trial(self, name: str) -> Trial:
        tokens, alone = self._tokens[name], self._tokens[name + HELD_OUT]
        saved = difference_interval(alone, tokens)
        usual = fmean(alone) if alone else 0.0
        return Trial(
            name=name,
            answers=len(tokens),
            held_out=len(alone),
            saved_tokens=saved,
            saved_share=saved.value / usual if saved is not None and usual else None,
            saved_s=difference_interval(self._seconds[name + HELD_OUT], self._seconds[name]),
        )
