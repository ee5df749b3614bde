"""Compression from its settings."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from headstart.compression.gate import Profile
from headstart.middleware.shaping.compress import CompressingOptions, Workbench

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from headstart.config import RouteSettings, Settings


def open_workbench(settings: Settings, stack: AsyncExitStack) -> Workbench | None:
    """Return where prompts are compressed, None if none is. ``stack`` closes it."""
    if all(compressing_options(settings, route).mode == "off" for route in (None, *settings.route)):
        return None
    bench = Workbench()
    stack.callback(bench.close)
    threading.Thread(target=bench.warm, name="headstart-tokens", daemon=True).start()
    return bench


def compressing_options(settings: Settings, route: RouteSettings | None) -> CompressingOptions:
    """Return what is done to prompts of a route; None: where no route fits."""
    chosen = settings.compression
    own = None if route is None else route.compression
    return CompressingOptions(
        mode=chosen.mode if own is None else own,
        profile=Profile(
            prefill_tokens_per_s=chosen.prefill_tokens_per_s,
            cached_share=chosen.cached_share,
            cache_minimum=chosen.cache_minimum,
        ),
        clear_history=chosen.clear_history,
        dry_run=chosen.dry_run,
    )
