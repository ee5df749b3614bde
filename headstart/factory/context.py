"""The build context: settings, store, supervisor and clock that all builders share."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headstart.errors import StoreError
from headstart.observe import StageFailed, logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack

    from headstart.interfaces import Store
    from headstart.middleware.concurrency import Supervisor
    from headstart.observe import Observers
    from headstart.settings import Settings

clock = time.time  # noqa: TID251


KEEP_S = 60.0
SECRET_S = 2.0
"""How soon a process notices that the store has another secret."""


async def keep(
    build: BuildContext,
    name: str,
    stage: str,
    *,
    saved: Callable[[], bytes],
    load: Callable[[bytes], object],
) -> None:
    """Load the state that an earlier run kept under ``name``; keep it every minute and at the end.

    A store that fails costs what was learned, never a request.
    """

    async def keep_now() -> None:
        try:
            await build.store.keep(name, saved())
        except StoreError as error:
            build.observers.notify(StageFailed(stage=stage, error=type(error).__name__))

    async def keep_on() -> None:
        while True:
            await asyncio.sleep(KEEP_S)
            await keep_now()

    try:
        kept = await build.store.kept(name)
    except StoreError:
        kept = None
    if kept is not None:
        load(kept)
    build.stack.push_async_callback(keep_now)
    keeping = build.supervisor.spawn(keep_on)
    build.stack.callback(keeping.cancel)


def follow_secret(build: BuildContext, renew: Callable[[bytes], bool]) -> None:
    """Pass the store's secret on every two seconds, until the engine stops.

    A Redis that was emptied, or came back without its data, gets a new secret from the first
    process that asks. All others have to take it over: by another one they name each scope
    differently, and share nothing.
    """

    async def follow() -> None:
        while True:
            await asyncio.sleep(SECRET_S)
            try:
                renewed = renew(await build.store.secret())
            except StoreError:
                continue  # lookups tell of it
            if renewed:
                logger.warning("the store was emptied or replaced: sharing starts anew with it")

    following = build.supervisor.spawn(follow)
    build.stack.callback(following.cancel)


@dataclass(frozen=True)
class BuildContext:
    """Settings, the parts that all builders need, and the stack that closes opened parts."""

    settings: Settings
    store: Store
    observers: Observers
    supervisor: Supervisor
    stack: AsyncExitStack
