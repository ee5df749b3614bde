"""``[compression]``: what may be done to prompts on their way to a provider."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from headstart.config.section import Section, Share

CompressionMode: TypeAlias = Literal["off", "safe", "balanced", "aggressive"]


class CompressionSettings(Section):
    """``[compression]``; a route may set its own mode."""

    mode: CompressionMode = "safe"
    dry_run: bool = False
    clear_history: bool = False
    strip_comments: bool = False
    prefill_tokens_per_s: Annotated[float, msgspec.Meta(gt=0.0)] = 33_000.0
    cached_share: Share = 0.1
    cache_minimum: Annotated[int, msgspec.Meta(ge=0)] = 1024
