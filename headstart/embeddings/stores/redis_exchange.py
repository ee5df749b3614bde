"""Leases and messages of the processes that share a Redis (``interfaces.CallExchange``).

Keys, all with the prefix of the store:

===============  =======================================================================
lease:<name>     hash: owner, token; with a short TTL, which its owner renews
tokens           stream of one row, whose place is the last token. It has the server's clock, so
                 tokens also grow after FLUSHALL
inbox:<address>  pub/sub channel of one process
===============  =======================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING, Any

from headstart.errors import StoreError
from headstart.types import Lease

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
    from contextlib import AbstractContextManager

    from redis.asyncio import Redis

    from headstart.types import Entry

LEASE_MS = 3000
"""A lease ends so long after it was taken or renewed."""
CHECK_S = 1.0
"""Shortest time between two checks that others reach us."""

FIND_OR_LEASE = """
local id = redis.call('GET', KEYS[1] .. 'exact:' .. ARGV[1])
local value = id and redis.call('HGET', KEYS[1] .. 'entry:' .. id, 'value')
if value then return {value} end
local lease = KEYS[1] .. 'lease:' .. ARGV[2]
local held = redis.call('HMGET', lease, 'owner', 'token')
if held[1] and held[2] ~= ARGV[5] then return {false, held[1], held[2]} end
if ARGV[3] == '' then return {false} end
local place = redis.pcall('XADD', KEYS[1] .. 'tokens', 'MAXLEN', 1, '*', '', '')
if place.err then return {false} end
local ms, number = string.match(place, '(%d+)-(%d+)')
local token = string.format('%.0f', ms * 1024 + number)
redis.call('HSET', lease, 'owner', ARGV[3], 'token', token)
redis.call('PEXPIRE', lease, ARGV[4])
return {false, ARGV[3], token}
"""
"""KEYS: prefix. ARGV: exact key, name, address ("": take no lease), TTL in ms, and the token of a
lease to replace or 0. Returns the entry's envelope, or else nil with owner and token of the lease;
nil alone if there is no lease, because none was to be taken or the server takes no writes now."""

RENEW = """
for place = 2, #ARGV, 2 do
    local lease = KEYS[1] .. 'lease:' .. ARGV[place]
    if redis.call('HGET', lease, 'token') == ARGV[place + 1] then
        redis.call('PEXPIRE', lease, ARGV[1])
    end
end
"""
"""KEYS: prefix. ARGV: TTL in ms, then name and token of each lease."""

RELEASE = """
local lease = KEYS[1] .. 'lease:' .. ARGV[1]
if redis.call('HGET', lease, 'token') == ARGV[2] then redis.call('DEL', lease) end
"""
"""KEYS: prefix. ARGV: name and token."""

LEASE_SCRIPTS = (FIND_OR_LEASE, RENEW, RELEASE)


class RedisExchange:
    """A CallExchange over the Redis of a store.

    ``run`` runs a script of the store, ``unpack`` returns the live entry of an envelope, and
    ``failing_fast`` turns errors of redis-py into StoreError.
    """

    def __init__(
        self,
        client: Redis,
        prefix: str,
        run: Callable[..., Awaitable[Any]],
        unpack: Callable[[bytes | None, str], Entry | None],
        failing_fast: Callable[[], AbstractContextManager[None]],
        *,
        in_cluster: bool = False,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._run = run
        self._unpack = unpack
        self._failing_fast = failing_fast
        self._in_cluster = in_cluster
        self._listens = False
        self._checked = 0.0
        self.address = secrets.token_hex(8)

    async def find(self, exact: str, name: str, instead_of: int = 0) -> Entry | Lease | None:
        """Return the entry, or else the lease, in one round trip."""
        address = self.address if self._listens else ""
        value, *held = await self._run(FIND_OR_LEASE, exact, name, address, LEASE_MS, instead_of)
        if value is not None:
            return self._unpack(value, exact)
        if not held or not self._listens:  # messages of the owner would not arrive
            return None
        owner, token = held
        return Lease(name=name, owner=owner.decode(), token=int(token))

    async def renew(self, leases: Sequence[Lease]) -> None:
        """Renew leases in one round trip."""
        pairs = [part for each in leases for part in (each.name, each.token)]
        await self._run(RENEW, LEASE_MS, *pairs)

    async def release(self, lease: Lease, *, stored: bool) -> None:
        """End a lease. A Put that was written has ended it already."""
        if not stored:
            await self._run(RELEASE, lease.name, lease.token)

    async def send(self, address: str, message: bytes) -> bool:
        """Publish a message."""
        with self._failing_fast():
            reached: int = await self._client.publish(self._inbox(address), message)
        return reached > 0

    def _inbox(self, address: str) -> str:
        return f"{self._prefix}inbox:{address}"

    async def messages(self) -> AsyncGenerator[bytes]:
        """Yield the messages over a connection of its own. Raises StoreError when it fails."""
        async with contextlib.aclosing(self._client.pubsub()) as inbox:
            try:
                with self._failing_fast():
                    await inbox.subscribe(self._inbox(self.address))
                while True:
                    with self._failing_fast():
                        message = await inbox.get_message(timeout=None)
                    if message is not None and message["type"] == "subscribe":
                        self._listens = True
                    elif message is not None and message["data"]:  # "" asks if we are there
                        yield message["data"]
                        if self._in_cluster:
                            await self._check_inbox()
            finally:
                self._listens = False

    async def _check_inbox(self) -> None:
        """Raise StoreError if others who send us a message are told that we are not there.

        After a planned failover of a Cluster the old master goes on as a replica, and so does our
        connection. Messages still arrive, but the new master, which counts who gets them, counts
        nobody.
        """
        now = asyncio.get_running_loop().time()
        if now - self._checked < CHECK_S:
            return
        self._checked = now
        if not await self.send(self.address, b""):
            raise StoreError("the master of our keys has changed")
