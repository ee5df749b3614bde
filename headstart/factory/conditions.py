"""What is known of upstreams, kept from one run to the next."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headstart.errors import StoreError
from headstart.middleware.upstreams.conditions import Conditions
from headstart.observe import StageFailed

if TYPE_CHECKING:
    from headstart.factory.site import Site

KEPT_AS = "upstream-measures"
KEEP_S = 60.0


async def open_conditions(site: Site) -> Conditions:
    """Return what earlier runs measured; it is kept every minute, and when ``site`` is closed.

    A store that fails costs these figures, never a request.
    """
    conditions = Conditions()
    measures, loop = conditions.measures, asyncio.get_running_loop()

    async def keep() -> None:
        try:
            await site.store.keep(KEPT_AS, measures.saved(loop.time()))
        except StoreError as error:
            site.observers.notify(StageFailed(stage="measures", error=type(error).__name__))

    async def keep_on() -> None:
        while True:
            await asyncio.sleep(KEEP_S)
            await keep()

    try:
        kept = await site.store.kept(KEPT_AS)
    except StoreError:
        kept = None
    if kept is not None:
        measures.load(kept, loop.time())
    site.stack.push_async_callback(keep)
    keeping = site.supervisor.spawn(keep_on)
    site.stack.callback(keeping.cancel)
    return conditions
