"""Machines that cost dollars an hour: how busy they are, and what a token costs on them."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

from headstart.report.values import MachineStats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headstart.attempts import Attempt
    from headstart.observe import Served


class Machine(NamedTuple):
    """The prices of one upstream with ``price_per_hour``."""

    usd_per_hour: float
    metered_usd: Callable[[Attempt], float | None]
    """What a call would cost at the price by tokens; None: no price is known."""


class _Use:
    """The calls of one machine."""

    def __init__(self) -> None:
        self.began = array("d")
        self.ended = array("d")
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.metered_usd: float | None = None

    def busy_s(self) -> float:
        """Return the seconds in which at least one call was under way."""
        busy, until = 0.0, float("-inf")
        for began, ended in sorted(zip(self.began, self.ended, strict=True)):
            busy += max(0.0, ended - max(began, until))
            until = max(until, ended)
        return busy


class MachineAccounts:
    """Sums the calls to machines, from booked requests in any order."""

    def __init__(self, machines: Mapping[str, Machine]) -> None:
        self._machines = machines
        self._uses = {name: _Use() for name in machines}
        self._first, self._last = float("inf"), float("-inf")

    def add(self, row: Served) -> None:
        """Count the calls of a request. Requests without a call tell how long the time is."""
        self._first = min(self._first, row.at)
        self._last = max(self._last, row.at + row.total_s)
        for attempt in row.attempts:
            name = attempt.upstream.partition("#")[0]  # one upstream under several keys
            machine = self._machines.get(name)
            if machine is None:
                continue
            use = self._uses[name]
            use.began.append(attempt.at)
            use.ended.append(attempt.at + attempt.total_s)
            use.prompt_tokens += attempt.prompt_tokens
            use.completion_tokens += attempt.completion_tokens
            metered = machine.metered_usd(attempt)
            if metered is not None:
                use.metered_usd = (use.metered_usd or 0.0) + metered

    def machines(self) -> tuple[MachineStats, ...]:
        """Return the figures over the time from the first request to the end of the last."""
        seconds = self._last - self._first
        if seconds <= 0:
            return ()
        return tuple(
            _figures(name, self._machines[name], use, seconds) for name, use in self._uses.items()
        )


def _figures(name: str, machine: Machine, use: _Use, seconds: float) -> MachineStats:
    usd = machine.usd_per_hour * seconds / 3600
    tokens, metered = use.completion_tokens, use.metered_usd
    return MachineStats(
        name=name,
        hours=seconds / 3600,
        usd=usd,
        calls=len(use.began),
        busy_share=min(1.0, use.busy_s() / seconds),
        calls_at_a_time=(sum(use.ended) - sum(use.began)) / seconds,
        prompt_tokens=use.prompt_tokens,
        completion_tokens=tokens,
        usd_per_million=usd / tokens * 1e6 if tokens else None,
        metered_usd=metered,
        break_even_load=usd / metered if metered else None,
        break_even_tokens_per_hour=(
            tokens * machine.usd_per_hour / metered if metered and tokens else None
        ),
    )
