"""Leases and messages of the workers of one machine, through their supervisor.

The supervisor keeps the leases (``LeaseTable``) and passes messages on; a worker reaches it by its
channel (``WorkerExchange``, a ``CallExchange``). The address of an exchange begins with the number
of its worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from typing import TYPE_CHECKING

import msgspec

from headstart.errors import HeadstartError, StoreError
from headstart.types import Lease

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from headstart.cli.worker_channel import Channel
    from headstart.interfaces import Store
    from headstart.types import Entry

LEASE_S = 3.0
"""A lease ends so long after it was taken or renewed."""


class Wanted(msgspec.Struct, frozen=True):
    """A lease that an exchange wants. It may replace the one with the token ``instead_of``."""

    name: str
    owner: str
    instead_of: int = 0


class Mail(msgspec.Struct, frozen=True):
    """A message to an exchange."""

    address: str
    message: bytes

    @property
    def worker(self) -> int:
        """The number of the worker that has the exchange."""
        return int(self.address.partition(":")[0])


class LeaseTable:
    """The leases of all workers. ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: dict[str, tuple[Lease, float]] = {}
        self._tokens = itertools.count(1)

    def answer(self, kind: str, payload: bytes) -> bytes:
        """Do what a worker asks for: ``lease``, ``renew`` or ``release``."""
        if kind == "lease":
            wanted = msgspec.msgpack.decode(payload, type=Wanted)
            return msgspec.msgpack.encode(self._take(wanted))
        for lease in msgspec.msgpack.decode(payload, type=list[Lease]):
            if self._held.get(lease.name, (None, 0.0))[0] != lease:
                continue
            if kind == "renew":
                self._held[lease.name] = lease, self._clock() + LEASE_S
            else:
                del self._held[lease.name]
        return b""

    def drop(self, worker: int) -> None:
        """End the leases of a worker that has ended."""
        own = f"{worker}:"
        self._held = {
            name: held for name, held in self._held.items() if not held[0].owner.startswith(own)
        }

    def _take(self, wanted: Wanted) -> Lease:
        now = self._clock()
        held, until = self._held.get(wanted.name, (None, 0.0))
        if held is not None and until > now and held.token != wanted.instead_of:
            return held
        lease = Lease(name=wanted.name, owner=wanted.owner, token=next(self._tokens))
        self._held[wanted.name] = lease, now + LEASE_S
        return lease


class SupervisorLink:
    """What the exchanges of one worker share: the channel to the supervisor, and their inboxes."""

    def __init__(self) -> None:
        self.channel: Channel | None = None
        """None: it is not open yet, or the supervisor has ended."""
        self.opened = asyncio.Event()
        self.inboxes: dict[str, asyncio.Queue[bytes | None]] = {}
        """Messages by address; None: no more will come."""

    def open(self, channel: Channel) -> None:
        """Use a channel."""
        self.channel = channel
        self.opened.set()

    def close(self) -> None:
        """Note that the supervisor has ended."""
        self.channel = None
        for inbox in self.inboxes.values():
            inbox.put_nowait(None)

    def deliver(self, payload: bytes) -> bytes:
        """Take a message; return b"" if nobody has its address."""
        mail = msgspec.msgpack.decode(payload, type=Mail)
        inbox = self.inboxes.get(mail.address)
        if inbox is None:
            return b""
        inbox.put_nowait(mail.message)
        return b"delivered"


class WorkerExchange:
    """The exchange of one engine of a worker."""

    def __init__(self, worker: int, store: Store, link: SupervisorLink) -> None:
        self.address = f"{worker}:{secrets.token_hex(4)}"
        self._store = store
        self._link = link

    async def find(self, exact: str, name: str, instead_of: int = 0) -> Entry | Lease | None:
        """Return the entry, or else the lease. The lease comes first: its owner may end meanwhile.

        An owner stores the answer before it gives its lease up, so no answer is missed.
        """
        lease, entry = None, None
        wanted = Wanted(name, self.address, instead_of)
        if self.address in self._link.inboxes:
            with contextlib.suppress(StoreError):
                found = await self._ask("lease", msgspec.msgpack.encode(wanted))
                lease = msgspec.msgpack.decode(found, type=Lease)
        try:
            entry = await self._store.find(exact)
        finally:
            if entry is not None and lease is not None and lease.owner == self.address:
                await self.release(lease, stored=False)
        return lease if entry is None else entry

    async def renew(self, leases: Sequence[Lease]) -> None:
        """Renew leases."""
        self._tell("renew", leases)

    async def release(self, lease: Lease, *, stored: bool) -> None:
        """End a lease."""
        self._tell("release", (lease,))

    async def send(self, address: str, message: bytes) -> bool:
        """Send a message, and wait until its worker has it."""
        return bool(await self._ask("send", msgspec.msgpack.encode(Mail(address, message))))

    async def messages(self) -> AsyncGenerator[bytes]:
        """Yield the messages. Raises StoreError when the supervisor has ended."""
        await self._link.opened.wait()
        inbox = self._link.inboxes[self.address] = asyncio.Queue()
        try:
            while self._link.channel is not None:
                if (message := await inbox.get()) is not None:
                    yield message
        finally:
            del self._link.inboxes[self.address]
        raise StoreError("the supervisor process has ended")

    async def _ask(self, kind: str, payload: bytes) -> bytes:
        channel = self._link.channel
        if channel is None:
            raise StoreError("the supervisor process has ended")
        try:
            return await channel.ask(kind, payload)
        except HeadstartError as error:
            raise StoreError(f"the supervisor process failed: {error}") from error

    def _tell(self, kind: str, leases: Sequence[Lease]) -> None:
        channel = self._link.channel
        if channel is not None:
            channel.tell(kind, msgspec.msgpack.encode(leases))
