"""A provider's weather: when it fails, flaps, slows down or dies, by the simulated clock."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headstart.errors import ConfigError
from headstart.simulator.faults import Fault  # noqa: TC001 - msgspec reads it
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable


class Conditions(Frozen):
    """What befalls one request."""

    fault: Fault | None = None
    slower: float = 1.0
    """Time to first token is multiplied by it, and decoding speed divided."""


class Spell(Frozen, forbid_unknown_fields=True):
    """A stretch of bad weather. Times are simulated seconds since the start or the last reset."""

    from_s: float = 0.0
    to_s: float | None = None
    """None: it never ends."""
    fault: Fault | None = None
    share: float = 1.0
    """The share of requests that the fault strikes."""
    slower: float = 1.0
    worsens: bool = False
    """``share`` and ``slower`` grow evenly from nothing, and are reached at ``to_s``."""
    period_s: float | None = None
    """The weather comes and goes: each period is fair first, then bad."""
    fair_share: float = 0.5
    """How much of each period is fair."""

    def __post_init__(self) -> None:
        if self.worsens and self.to_s is None:
            raise ValueError("weather that worsens needs to_s, by which it is at its worst")

    def strength(self, at_s: float) -> float:
        """Return how bad it is: 0 for fair, 1 for the worst."""
        if at_s < self.from_s or (self.to_s is not None and at_s >= self.to_s):
            return 0.0
        if self.period_s and (at_s - self.from_s) % self.period_s < self.fair_share * self.period_s:
            return 0.0
        if self.worsens and self.to_s is not None:
            return (at_s - self.from_s) / (self.to_s - self.from_s)
        return 1.0


def conditions(spells: Iterable[Spell], at_s: float, draw: float) -> Conditions:
    """Return what befalls a request at a time: a pure function of its arguments.

    ``draw``, uniform on [0, 1), decides whether it is among the share that a fault strikes; of
    several faults the first wins, and slowness multiplies.
    """
    fault, slower = None, 1.0
    for spell in spells:
        strength = spell.strength(at_s)
        slower *= 1 + (spell.slower - 1) * strength
        if fault is None and draw < spell.share * strength:
            fault = spell.fault
    return Conditions(fault=fault, slower=slower)


class _WeatherFile(Frozen, forbid_unknown_fields=True):
    spell: tuple[Spell, ...]


WEATHERS: dict[str, tuple[Spell, ...]] = msgspec.toml.decode(
    Path(__file__).with_name("weather.toml").read_bytes(), type=dict[str, tuple[Spell, ...]]
)
"""The named weathers of ``weather.toml``."""


def read_weather(toml: bytes) -> tuple[Spell, ...]:
    """Read ``[[spell]]`` tables. Raises ConfigError naming what is wrong."""
    try:
        return msgspec.toml.decode(toml, type=_WeatherFile).spell
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the weather cannot be read: {error}") from error


def find_weather(name: str) -> tuple[Spell, ...]:
    """Return a weather by name. Raises ConfigError with the nearest valid name."""
    if name in WEATHERS:
        return WEATHERS[name]
    nearest = difflib.get_close_matches(name, WEATHERS, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(WEATHERS)}"
    raise ConfigError(f"unknown weather {name!r}; {hint}")
