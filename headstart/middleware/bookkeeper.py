"""Writes served requests to the store's books, in batches, off the request's path."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headstart.errors import StoreError
from headstart.observe import Served, StageFailed

if TYPE_CHECKING:
    from headstart.interfaces import Observer, Store
    from headstart.middleware.supervisor import Spawn
    from headstart.observe import Observation

FLUSH_S = 0.25
MAX_WAITING = 10_000
"""Rows kept while the store is slow or away; the oldest are dropped past it."""


class Bookkeeper:
    """An Observer of served requests. ``aclose`` writes what is left."""

    def __init__(self, store: Store, spawn: Spawn, observer: Observer) -> None:
        self._store = store
        self._spawn = spawn
        self._observer = observer
        self._rows: list[Served] = []
        self._flushing = False

    def notify(self, observation: Observation) -> None:
        """Take a row; a flush follows within a quarter of a second."""
        if not isinstance(observation, Served):
            return
        self._rows.append(observation)
        if len(self._rows) > MAX_WAITING:
            del self._rows[: MAX_WAITING // 10]
        if not self._flushing:
            self._flushing = True
            self._spawn(self._flush_soon)

    async def _flush_soon(self) -> None:
        try:
            await asyncio.sleep(FLUSH_S)
        finally:
            self._flushing = False
        await self.flush()

    async def flush(self) -> None:
        """Write what is waiting. A failing store costs these rows, never a request."""
        rows, self._rows = self._rows, []
        if rows:
            try:
                await self._store.book(rows)
            except StoreError as error:
                self._observer.notify(StageFailed(stage="books", error=type(error).__name__))

    async def aclose(self) -> None:
        """Write the last rows."""
        await self.flush()
