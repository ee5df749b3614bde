"""The last requests, by id, for ``explain``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.observe import Served

if TYPE_CHECKING:
    from headstart.observe import Observation


class RecentRequests:
    """An Observer that keeps the last ``maxlen`` served requests: facts, never texts."""

    def __init__(self, maxlen: int = 1000) -> None:
        self.maxlen = maxlen
        self._rows: dict[str, Served] = {}

    def notify(self, observation: Observation) -> None:
        """Keep a served request; the oldest leaves when there are too many."""
        if type(observation) is not Served:
            return
        self._rows[observation.id] = observation
        if len(self._rows) > self.maxlen:
            del self._rows[next(iter(self._rows))]

    def find(self, id: str) -> Served | None:
        """Return the request with this id, or None when it is unknown or too long ago."""
        return self._rows.get(id)
