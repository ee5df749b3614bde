"""Which hits are sent upstream all the same, to see whether the answer would have been equal."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headstart.middleware.learning.allowance import Allowance

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class AuditOptions:
    """How hits are audited, and what that may cost.

    ``background``: the hit is served and the provider asked as well; ``sync``: the caller waits
    for the provider's answer; ``off``: never. ``floor`` and ``null_rate`` are shares of semantic
    and of exact hits.
    """

    mode: Literal["background", "sync", "off"] = "background"
    floor: float = 0.02
    null_rate: float = 0.005
    max_calls_per_hour: int | None = None
    max_usd_per_day: float | None = None


class Audits:
    """Draws audits at random, within their allowance. The generator is secret to callers."""

    def __init__(self, options: AuditOptions, clock: Callable[[], float]) -> None:
        self.options = options
        self.allowance = Allowance(options.max_calls_per_hour, options.max_usd_per_day, clock)
        self._random = random.SystemRandom()

    def rate(self, asked: float) -> float:
        """Return the share of semantic hits to draw; ``asked`` is what their domain asks for."""
        return 0.0 if self.options.mode == "off" else max(asked, self.options.floor)

    def draw(self, asked: float) -> bool:
        """Decide on one semantic hit."""
        return self._draw(self.rate(asked))

    def draw_null(self, asked: float = 0.0) -> bool:
        """Decide on one exact hit; only ever in the background, and not at a rate of 0."""
        floor = self.options.null_rate
        return self.options.mode == "background" and bool(floor) and self._draw(max(asked, floor))

    def chance(self, share: float) -> bool:
        """Draw with a probability, at no one's expense."""
        return self._random.random() < share

    def _draw(self, rate: float) -> bool:
        return self.chance(rate) and self.allowance.take()
