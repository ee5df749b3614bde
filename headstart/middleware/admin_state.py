"""What the admin API looks at: a started engine's parts and the observers beside it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from headstart.errors import StoreError
from headstart.middleware.learning.reviewing import Reviews
from headstart.middleware.metrics import Hedging, Levels

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headstart.embeddings.cache import SemanticCache
    from headstart.embeddings.encoder_worker import EncoderWorker
    from headstart.interfaces import Store
    from headstart.middleware.learning.oversight import Oversight
    from headstart.middleware.limits import Gate
    from headstart.middleware.metrics import PrometheusObserver
    from headstart.middleware.recent import RecentRequests
    from headstart.middleware.upstreams.conditions import Conditions


class EngineParts(Protocol):
    """A started engine, as far as the admin API uses it."""

    @property
    def store(self) -> Store: ...

    @property
    def cache(self) -> SemanticCache | None: ...

    @property
    def encoder(self) -> EncoderWorker | None: ...

    @property
    def oversight(self) -> Oversight | None: ...

    @property
    def gate(self) -> Gate: ...

    @property
    def relays(self) -> Gate: ...

    @property
    def conditions(self) -> Conditions | None: ...


@dataclass(frozen=True)
class AdminState:
    """What the admin API shows. ``engine`` returns None until the engine has started."""

    engine: Callable[[], EngineParts | None]
    metrics: PrometheusObserver
    recent: RecentRequests
    config: Mapping[str, Any]
    """The settings, masked."""
    clock: Callable[[], float]
    """Unix seconds."""
    started: float
    """When this process came up, in Unix seconds."""
    draining: Callable[[], bool] = lambda: False
    """True once the server was told to stop."""
    reviews: Reviews = field(default_factory=Reviews)


def read_hedges(engine: EngineParts) -> tuple[Hedging, ...]:
    """Return what was asked twice, by route and strategy."""
    if engine.conditions is None:
        return ()
    return tuple(
        Hedging(
            route=route,
            strategy=strategy,
            extra_calls=budget.calls_used,
            extra_calls_allowed=budget.calls,
            extra_cost=budget.usd_used,
            extra_cost_allowed=budget.usd,
        )
        for (route, strategy), budget in engine.conditions.hedges.items()
    )


async def read_levels(engine: EngineParts) -> Levels:
    """Return how much there is now. A store that fails costs its own numbers alone."""
    entries = size = partitions = None
    with contextlib.suppress(StoreError):
        if engine.cache is not None:
            kept = await engine.cache.stats()
            entries, size, partitions = kept.entries, kept.bytes, kept.partitions
        else:
            stored = await engine.store.stats()
            entries, size, partitions = stored.entries, stored.bytes, 0
    return Levels(
        entries=entries,
        bytes=size,
        partitions=partitions,
        in_flight=engine.gate.active + engine.relays.active,
        encoder_queue=0 if engine.encoder is None else engine.encoder.queue_length,
        hedges=read_hedges(engine),
    )
