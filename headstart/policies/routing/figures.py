"""What is known of one (upstream, model), and its form in a snapshot."""

from __future__ import annotations

import msgspec

from headstart.policies.routing.averages import Peak, Ratio
from headstart.policies.routing.quantiles import Bins, Quantiles

HALF_LIFE_S = 900.0
_GAPS = 5000.0
"""Gaps after which an old one counts half."""
_LOAD_HALF_LIFE_S = 300.0


class SavedFigures(msgspec.Struct, array_like=True):
    """Figures in a snapshot. New fields go last, with a default: older snapshots lack them."""

    key: tuple[str, str]
    ttft: dict[int, Bins]
    gaps: Bins
    speed: tuple[float, float]
    prompts: tuple[float, float] = (0.0, 0.0)


class Figures:
    """Times to first token by bucket of prompt length, and what does not depend on it."""

    __slots__ = ("gaps", "gaps_seen", "in_flight", "load", "peak", "prompts", "speed", "ttft")

    def __init__(self) -> None:
        self.ttft: dict[int, Quantiles] = {}
        self.speed = Ratio(HALF_LIFE_S)
        self.prompts = Ratio(HALF_LIFE_S)
        """Tokens of prompts in the provider's count, to those estimated."""
        self.gaps = Quantiles(_GAPS)
        self.gaps_seen = 0
        self.in_flight = 0
        self.load = Ratio(_LOAD_HALF_LIFE_S)
        self.peak = Peak()

    @property
    def learned(self) -> bool:
        """An answer has come: whole ones teach the counts of prompts alone."""
        return bool(self.ttft or self.prompts.below)

    def saved(self, key: tuple[str, str], now: float) -> SavedFigures:
        """Return what is worth keeping: not what is in flight, nor the moment's load."""
        return SavedFigures(
            key,
            {bucket: sketch.saved(now) for bucket, sketch in self.ttft.items()},
            self.gaps.saved(self.gaps_seen),
            (self.speed.above, self.speed.below),
            (self.prompts.above, self.prompts.below),
        )


def restored(saved: SavedFigures, now: float) -> Figures:
    """Return saved figures as if learned just now. Raises ValueError."""
    figures = Figures()
    for bucket, bins in saved.ttft.items():
        figures.ttft[bucket] = Quantiles(HALF_LIFE_S)
        figures.ttft[bucket].load(bins, now)
    figures.gaps.load(saved.gaps, 0.0)
    figures.gaps_seen = round(figures.gaps.weight(0.0))
    figures.speed.add(*saved.speed, now)
    figures.prompts.add(*saved.prompts, now)
    return figures
