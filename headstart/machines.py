"""Machines that cost dollars an hour: what a token costs on them, for the report and live page."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.attempts import Attempt


class Machine(NamedTuple):
    """The prices of one upstream with ``price_per_hour``."""

    usd_per_hour: float
    metered_usd: Callable[[Attempt], float | None]
    """What a call would cost at the price by tokens; None: no price is known."""


def machine_name(upstream: str) -> str:
    """Return the upstream's name without the number of its key: its keys are one machine."""
    return upstream.partition("#")[0]


class MachineStats(Frozen, omit_defaults=False):
    """An upstream that costs dollars an hour, over some time. None means "not known"."""

    name: str
    hours: float
    usd: float
    """What it cost in this time, busy or not."""
    calls: int
    busy_share: float | None
    """The share of the time in which at least one call was under way."""
    calls_at_a_time: float
    """The mean number of calls under way."""
    prompt_tokens: int
    completion_tokens: int
    usd_per_million: float | None
    """Its whole cost for each million answer tokens, at the load of this time."""
    metered_usd: float | None
    """What the same calls would have cost at the price by tokens; None: no such price is known."""
    break_even_load: float | None
    """At so many times the load of this time it costs as much as the price by tokens."""
    break_even_tokens_per_hour: float | None
    """The answer tokens an hour at that load."""


class MachineUse:
    """Sums over the calls of one machine."""

    __slots__ = ("called_s", "calls", "completion_tokens", "metered_usd", "prompt_tokens")

    def __init__(self) -> None:
        self.calls = self.prompt_tokens = self.completion_tokens = 0
        self.called_s = 0.0
        self.metered_usd: float | None = None

    def add(self, attempt: Attempt, machine: Machine) -> None:
        """Count one call."""
        self.calls += 1
        self.called_s += attempt.total_s
        self.prompt_tokens += attempt.prompt_tokens
        self.completion_tokens += attempt.completion_tokens
        self._charge(machine.metered_usd(attempt))

    def merge(self, other: MachineUse) -> None:
        """Add the sums of another time."""
        self.calls += other.calls
        self.called_s += other.called_s
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self._charge(other.metered_usd)

    def stats(
        self, name: str, usd_per_hour: float, seconds: float, busy_s: float | None = None
    ) -> MachineStats:
        """Return the figures over a time of so many seconds, more than 0."""
        usd = usd_per_hour * seconds / 3600
        tokens, metered = self.completion_tokens, self.metered_usd
        return MachineStats(
            name=name,
            hours=seconds / 3600,
            usd=usd,
            calls=self.calls,
            busy_share=None if busy_s is None else min(1.0, busy_s / seconds),
            calls_at_a_time=self.called_s / seconds,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=tokens,
            usd_per_million=usd / tokens * 1e6 if tokens else None,
            metered_usd=metered,
            break_even_load=usd / metered if metered else None,
            break_even_tokens_per_hour=(
                tokens * usd_per_hour / metered if metered and tokens else None
            ),
        )

    def _charge(self, usd: float | None) -> None:
        if usd is not None:
            self.metered_usd = (self.metered_usd or 0.0) + usd
