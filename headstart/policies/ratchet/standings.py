"""What is remembered of single entries: which share an answer, and how often they misled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.policies.ratchet.settings import MAX_STANDINGS
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Mapping


class Standing(Frozen, frozen=True, kw_only=True, array_like=True):
    """One entry: its answer group, and the model's residuals on it."""

    group: str
    """Entries of one group were judged to have the same answer. Alone: the entry's own id."""
    size: int = 1
    r: float = 0.0
    """Sum of residuals y - p of its labels."""
    q: float = 0.0
    """Sum of their weights p(1 - p)."""

    @property
    def offset(self) -> float:
        """The entry's own log-odds, shrunk to 0 while it has few labels (empirical Bayes)."""
        return self.r / (self.q + 1)


class Standings:
    """The standings of a domain's entries, bounded: the least recently labelled leave first."""

    def __init__(self, rows: Mapping[str, tuple[str, float, float]] | None = None) -> None:
        self._rows = dict(rows or {})
        self._sizes: dict[str, int] = {}
        for group, _, _ in self._rows.values():
            self._sizes[group] = self._sizes.get(group, 0) + 1

    def __len__(self) -> int:
        return len(self._rows)

    def of(self, entry: str) -> Standing:
        """Return an entry's standing; an unknown entry is alone and without offset."""
        row = self._rows.get(entry)
        if row is None:
            return Standing(group=entry)
        group, r, q = row
        return Standing(group=group, size=max(self._sizes[group], 1), r=r, q=q)

    def learn(self, entry: str, residual: float, weight: float) -> None:
        """Add a label's residual and weight to an entry's offset."""
        group, r, q = self._taken(entry)
        self._rows[entry] = (group, r + residual, q + weight)
        self._bound()

    def join(self, entry: str, neighbor: str) -> None:
        """Put a new entry into the answer group of the neighbour it was judged equal to."""
        if entry in self._rows:
            return
        group, r, q = self._taken(neighbor)
        self._rows[neighbor] = (group, r, q)
        self._rows[entry] = (group, 0.0, 0.0)
        self._sizes[group] = self._sizes.get(group, 0) + 1
        self._bound()

    def rows(self) -> dict[str, tuple[str, float, float]]:
        """Return all that is remembered: group, r and q by entry, in order of last label."""
        return dict(self._rows)

    def _taken(self, entry: str) -> tuple[str, float, float]:
        """Take an entry's row out, to be put back as the newest."""
        if entry in self._rows:
            return self._rows.pop(entry)
        self._sizes[entry] = self._sizes.get(entry, 0) + 1
        return entry, 0.0, 0.0

    def _bound(self) -> None:
        while len(self._rows) > MAX_STANDINGS:
            group, _, _ = self._rows.pop(next(iter(self._rows)))
            self._sizes[group] -= 1
            if not self._sizes[group]:
                del self._sizes[group]
