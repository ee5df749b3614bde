"""Provider profiles: dated figures from ``profiles.toml`` and the seeded draws made from them."""

from __future__ import annotations

import difflib
import math
import random
from pathlib import Path
from typing import Literal

import msgspec

from headstart.errors import ConfigError
from headstart.simulator.limit_headers import LimitForm  # noqa: TC001 - msgspec reads it
from headstart.types import Frozen


class Price(Frozen):
    """Dollars per million tokens."""

    input: float
    output: float


class Draw(Frozen):
    """What one call will experience: seconds to the first token, then tokens per second."""

    ttft_s: float = 0.0
    tokens_per_s: float = math.inf
    stalled: bool = False
    fails: bool = False


_INSTANT = Draw()


class Profile(Frozen, forbid_unknown_fields=True):
    """How one provider behaves; the fields are explained at the top of ``profiles.toml``."""

    model: str
    ttft_ms: float = 0.0
    ttft_sigma: float = 0.0
    stall: float = 0.0
    stall_s: tuple[float, float] = (5.0, 30.0)
    error: float = 0.0
    tokens_per_s: tuple[float, float] | None = None
    """None: the whole answer at once."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    limit_headers: LimitForm | None = None
    prefill_ms_per_1k: float = 0.0
    prefix_cache: bool = False
    prefill: Literal["ignored", "continued", "refused"] = "ignored"
    usd_per_million: Price | None = None
    assumed: tuple[str, ...] = ()
    notes: str = ""

    @property
    def instant(self) -> bool:
        """True when no call can ever wait or fail, so that nothing need be drawn."""
        return not (self.ttft_ms or self.stall or self.error or self.tokens_per_s)

    def prefill_s(self, tokens: int) -> float:
        """Return the seconds that reading so many tokens of a prompt takes."""
        return self.prefill_ms_per_1k * tokens / 1e6

    def draw(self, seed: int, call: int) -> Draw:
        """Return what the ``call``-th request experiences: a pure function of its arguments."""
        if self.instant:
            return _INSTANT
        rng = random.Random(f"{seed}/{call}")
        ttft_s = self.ttft_ms / 1000 * math.exp(self.ttft_sigma * rng.gauss())
        stalled = rng.random() < self.stall
        stall_s = rng.uniform(*self.stall_s)
        fails = rng.random() < self.error
        speed = rng.uniform(*self.tokens_per_s) if self.tokens_per_s else math.inf
        return Draw(
            ttft_s=ttft_s + stall_s * stalled, tokens_per_s=speed, stalled=stalled, fails=fails
        )


class _ProfileFile(Frozen, forbid_unknown_fields=True):
    as_of: str
    profiles: dict[str, Profile]


_DATA = msgspec.toml.decode(
    Path(__file__).with_name("profiles.toml").read_bytes(), type=_ProfileFile
)
PROFILES = _DATA.profiles
"""All profiles by name, in the order of the file."""
FIGURES_AS_OF = _DATA.as_of
"""The date of the figures, ``YYYY-MM-DD``."""


def find_profile(name: str) -> Profile:
    """Return a profile by name. Raises ConfigError with the nearest valid name."""
    if name in PROFILES:
        return PROFILES[name]
    nearest = difflib.get_close_matches(name, PROFILES, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(PROFILES)}"
    raise ConfigError(f"unknown profile {name!r}; {hint}")
