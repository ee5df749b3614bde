"""Compression from its settings."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from headstart.compression.gate import Profile
from headstart.middleware.shaping.compress import (
    Compressing,
    CompressingOptions,
    Workbench,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AsyncExitStack

    from headstart.config import Settings
    from headstart.interfaces import Candidate, Observer
    from headstart.middleware.upstreams.ledger import Ledger


def open_workbench(
    options: Mapping[str, CompressingOptions], stack: AsyncExitStack
) -> Workbench | None:
    """Return where prompts are compressed, None if none is. ``stack`` closes it."""
    if all(each.mode == "off" for each in options.values()):
        return None
    bench = Workbench()
    stack.callback(bench.close)
    threading.Thread(target=bench.warm, name="headstart-tokens", daemon=True).start()
    return bench


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


def make_compressing(
    settings: Settings, ledger: Ledger, observer: Observer, stack: AsyncExitStack
) -> Callable[[Candidate], Candidate]:
    """Return what puts compression around a candidate, where it is on."""
    options = compressing_options(settings)
    bench = open_workbench(options, stack)

    def around(candidate: Candidate) -> Candidate:
        if bench is None:
            return candidate
        return Compressing(candidate, options, bench, ledger=ledger, observer=observer)

    return around
