"""Compression from its settings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headstart.compression.gate import Profile
from headstart.middleware.shaping.compress import CompressingOptions

if TYPE_CHECKING:
    from headstart.config import Settings


def compressing_options(settings: Settings) -> dict[str, CompressingOptions]:
    """Return what is done to prompts, by route; by "" for all routes that do not say."""
    chosen = settings.compression
    default = CompressingOptions(
        mode=chosen.mode,
        profile=Profile(
            prefill_tokens_per_s=chosen.prefill_tokens_per_s,
            cached_share=chosen.cached_share,
            cache_minimum=chosen.cache_minimum,
        ),
        clear_history=chosen.clear_history,
        strip_comments=chosen.strip_comments,
        dry_run=chosen.dry_run,
    )
    own = {
        route.name: replace(default, mode=route.compression)
        for route in settings.route
        if route.compression is not None
    }
    return {"": default, **own}
