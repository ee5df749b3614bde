"""What processes that share a store have in common: what was learned, and the secret."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headstart.errors import StoreError
from headstart.observe import StageFailed, logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.factory.site import Site

KEEP_S = 60.0
SECRET_S = 2.0
"""How soon a process notices that the store has another secret."""


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


def follow_secret(site: Site, renew: Callable[[bytes], bool]) -> None:
    """Pass the store's secret on, time and again, until the site closes.

    A Redis that was emptied, or came back without its data, gets a new secret from the first
    process that asks. All others have to take it over: by another one they name each scope
    differently, and share nothing.
    """

    async def follow() -> None:
        while True:
            await asyncio.sleep(SECRET_S)
            try:
                renewed = renew(await site.store.secret())
            except StoreError:
                continue  # lookups tell of it
            if renewed:
                logger.warning("the store was emptied or replaced: sharing starts anew with it")

    following = site.supervisor.spawn(follow)
    site.stack.callback(following.cancel)
