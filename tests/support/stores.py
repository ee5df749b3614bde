"""Opens stores of any kind on the same data, with a clock that only tests move."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import anyio

from headstart.embeddings.stores.records import StoreCipher, StoreLimits, encode_put
from headstart.embeddings.stores.redis import PREFIX, RedisStore
from headstart.embeddings.stores.store_urls import open_store
from headstart.observe import Committed, Observation
from support.entries import NOW
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from headstart.interfaces import Store
    from headstart.types import Logged, Put


@dataclass
class Clock:
    now: float = NOW

    def __call__(self) -> float:
        return self.now


@dataclass
class Stores:
    """Opens stores on ``url`` and closes them when ``exits`` closes. Observes their commits."""

    url: str
    exits: AsyncExitStack
    clock: Clock = field(default_factory=Clock)
    cipher: StoreCipher | None = None
    committed: list[Committed] = field(default_factory=list)

    async def open(self, **limits: Any) -> Store:
        limits = {"cipher": self.cipher, **limits}
        store = open_store(self.url, clock=self.clock, observer=self, **limits)
        await store.open()
        self.exits.push_async_callback(store.aclose)
        return store

    async def pass_to(self, store: Store, now: float) -> None:
        """Set the clock. Redis has its own clock: there delete the entries that have expired."""
        self.clock.now = now
        if isinstance(store, RedisStore):
            client: Any = store._client
            async for key in client.scan_iter(f"{PREFIX}entry:*"):
                ends, exact = await client.hmget(key, "expires", "exact")
                if ends is not None and float(ends) <= now:
                    await client.delete(key, f"{PREFIX}exact:{exact.decode()}")

    def size(self, record: Put) -> int:
        """Return the bytes that a record counts in the limits of the store."""
        sealed = 0 if self.cipher is None else len(self.cipher.seal(b"", b""))
        parts = 1 + (record.vector is not None) + (record.sketch is not None)
        return encode_put(record, StoreLimits()).size + sealed * parts

    async def open_beside(self, store: Store) -> Store:
        """Return another store on the same data. A store in memory is returned itself."""
        return store if self.url == "memory:" else await self.open()

    def notify(self, observation: Observation) -> None:
        assert isinstance(observation, Committed)
        self.committed.append(observation)


async def follow(store: Store, after: str, count: int) -> list[Logged]:
    """Return the next ``count`` records after a cursor."""
    records = cast("AsyncGenerator[Logged]", store.follow(after, poll_s=0.01))
    logged: list[Logged] = []
    with anyio.fail_after(PATIENCE_S):
        async with aclosing(records):
            while len(logged) < count:
                logged.append(await anext(records))
    return logged


async def scan(store: Store, batch: int = 1024) -> list[str]:
    """Return the ids of a whole scan."""
    return [row.id async for rows in store.scan(batch) for row in rows]
