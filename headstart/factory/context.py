"""The build context: settings, store, supervisor and clock that all builders share."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from headstart.errors import StoreError
from headstart.observe import StageFailed, logger
from headstart.types import new_ulid

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AsyncExitStack

    from headstart.interfaces import Store
    from headstart.middleware.concurrency import Supervisor
    from headstart.middleware.observers import Observers
    from headstart.settings import Settings

clock = time.time  # noqa: TID251
new_id = partial(new_ulid, clock)
SAVE_S = 60.0
"""The time between two saves of a state."""
SECRET_S = 2.0
"""The time between two looks at the store's secret."""


@dataclass(frozen=True)
class BuildContext:
    """The settings and the parts that all builders need."""

    settings: Settings
    store: Store
    observers: Observers
    supervisor: Supervisor
    """Owns the tasks that outlive a request."""
    stack: AsyncExitStack
    """Closes all opened parts, the last one first."""

    def run(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a function in the background. It ends before the parts that are open now close."""
        task = self.supervisor.spawn(function)
        self.stack.push_async_callback(self.supervisor.stop, task)


async def persist(
    build: BuildContext,
    name: str,
    stage: str,
    *,
    saved: Callable[[], bytes],
    load: Callable[[bytes], object],
) -> None:
    """Load a state that an earlier run saved under ``name``; save it every minute and at the end.

    If the store fails, the state is lost, but no request fails.
    """

    async def save_now() -> None:
        try:
            await build.store.save_document(name, saved())
        except StoreError as error:
            build.observers.notify(StageFailed.of(stage, error))

    async def save_regularly() -> None:
        while True:
            await asyncio.sleep(SAVE_S)
            await save_now()

    try:
        kept = await build.store.load_document(name)
    except StoreError:
        kept = None
    if kept is not None:
        load(kept)
    build.stack.push_async_callback(save_now)
    build.run(save_regularly)


def follow_secret(build: BuildContext, renew: Callable[[bytes], bool]) -> None:
    """Call ``renew`` with the store's secret every two seconds, until the engine stops.

    If a Redis was emptied or lost its data, the first process that asks gives it a new secret. All
    processes must use the same secret: the names of scopes depend on it, so processes with
    different secrets share no answers.
    """

    async def follow() -> None:
        while True:
            await asyncio.sleep(SECRET_S)
            try:
                renewed = renew(await build.store.secret())
            except StoreError:
                continue  # lookups report the failure
            if renewed:
                logger.warning(
                    "the store was emptied or replaced: it has a new secret, so older answers are "
                    "not served"
                )

    build.run(follow)
