"""What is known of upstreams, kept from one run to the next."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headstart.factory.keeping import keep
from headstart.middleware.upstreams.conditions import Conditions

if TYPE_CHECKING:
    from headstart.factory.site import Site

KEPT_AS = "upstream-measures"


async def open_conditions(site: Site) -> Conditions:
    """Return what earlier runs measured."""
    conditions = Conditions()
    measures, loop = conditions.measures, asyncio.get_running_loop()
    await keep(
        site,
        KEPT_AS,
        "measures",
        saved=lambda: measures.saved(loop.time()),
        load=lambda kept: measures.load(kept, loop.time()),
    )
    return conditions
