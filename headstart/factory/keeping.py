"""What was learned, kept in the store from one run to the next."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headstart.errors import StoreError
from headstart.observe import StageFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.factory.site import Site

KEEP_S = 60.0


async def keep(
    site: Site,
    name: str,
    stage: str,
    *,
    saved: Callable[[], bytes],
    load: Callable[[bytes], object],
) -> None:
    """Load what an earlier run kept under ``name``; keep it every minute and at the end.

    A store that fails costs what was learned, never a request.
    """

    async def keep_now() -> None:
        try:
            await site.store.keep(name, saved())
        except StoreError as error:
            site.observers.notify(StageFailed(stage=stage, error=type(error).__name__))

    async def keep_on() -> None:
        while True:
            await asyncio.sleep(KEEP_S)
            await keep_now()

    try:
        kept = await site.store.kept(name)
    except StoreError:
        kept = None
    if kept is not None:
        load(kept)
    site.stack.push_async_callback(keep_now)
    keeping = site.supervisor.spawn(keep_on)
    site.stack.callback(keeping.cancel)
