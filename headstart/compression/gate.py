"""Break-even: is what a transform removes from a message worth its own time and any discount lost?

A function of what was sent so far and a static profile, never of a clock, a cache's answer or the
messages that follow: so the verdict on a message cannot change from one request to the next.
"""

from __future__ import annotations

from headstart.compression.tokens import CHARS_PER_TOKEN
from headstart.types import Frozen

_MAX_REMAINDER = 0.95
"""Of a text's characters. Closer to the original, the original is sent."""


class Profile(Frozen):
    """What tokens cost where the prompt goes. A changed profile is a changed configuration."""

    version: str = "1"
    prefill_tokens_per_s: float = 33_000.0
    """The fast end of what is published (4,000 to 33,000): slower providers gain more."""
    usd_per_million: float = 1.0
    """Zero where tokens are free: then time alone decides."""
    cached_share: float = 0.1
    """Price of a token read from the provider's prefix cache, as a share of the full price."""
    cache_minimum: int = 1024
    """Tokens below which the provider does not cache a prompt."""


def is_worth(*, before: int, after: int, sent: int, cost_ms: float, profile: Profile) -> bool:
    """Is a text of ``before`` characters better sent as ``after`` characters?

    ``sent`` are the characters of the conversation sent before it, ``cost_ms`` our own predicted
    milliseconds. Tokens are estimated from characters, as an exact count depends on what is
    installed. It must save more seconds of prefill than it takes, and more money than is lost
    where the shorter prompt falls below the size that the provider caches.
    """
    if after > before * _MAX_REMAINDER:
        return False
    removed = (before - after) / CHARS_PER_TOKEN
    saved_s = removed / profile.prefill_tokens_per_s
    if saved_s * 1000 <= cost_ms:
        return False
    minimum = profile.cache_minimum * CHARS_PER_TOKEN
    if not sent + after < minimum <= sent + before:
        return True
    again = (sent + after) / CHARS_PER_TOKEN
    lost_usd = again * (1 - profile.cached_share) * profile.usd_per_million / 1e6
    return removed * profile.usd_per_million / 1e6 >= lost_usd
