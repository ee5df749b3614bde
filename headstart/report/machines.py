"""How busy machines that cost dollars an hour are, and what a token costs on them."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from headstart.machines import MachineUse, machine_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headstart.machines import Machine, MachineStats
    from headstart.observe import Served


class MachineAccounts:
    """Sums the calls to machines, from booked requests in any order."""

    def __init__(self, machines: Mapping[str, Machine]) -> None:
        self._machines = machines
        self._uses = {name: MachineUse() for name in machines}
        self._began = {name: array("d") for name in machines}
        self._ended = {name: array("d") for name in machines}
        self._first, self._last = float("inf"), float("-inf")

    def add(self, row: Served) -> None:
        """Count the calls of a request. Requests without a call tell how long the time is."""
        self._first = min(self._first, row.at)
        self._last = max(self._last, row.at + row.total_s)
        for attempt in row.attempts:
            name = machine_name(attempt.upstream)
            machine = self._machines.get(name)
            if machine is not None:
                self._uses[name].add(attempt, machine)
                self._began[name].append(attempt.at)
                self._ended[name].append(attempt.at + attempt.total_s)

    def machines(self) -> tuple[MachineStats, ...]:
        """Return the figures over the time from the first request to the end of the last."""
        seconds = self._last - self._first
        if seconds <= 0:
            return ()
        return tuple(
            use.stats(name, self._machines[name].usd_per_hour, seconds, self._busy_s(name))
            for name, use in self._uses.items()
        )

    def _busy_s(self, name: str) -> float:
        """Return the seconds in which at least one call was under way."""
        busy, until = 0.0, float("-inf")
        for began, ended in sorted(zip(self._began[name], self._ended[name], strict=True)):
            busy += max(0.0, ended - max(began, until))
            until = max(until, ended)
        return busy
