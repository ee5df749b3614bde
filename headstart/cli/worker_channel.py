"""What the workers of one machine share: leases, messages, and the channel to their parent process.

So they make identical calls only once, like replicas that share a store (``CallExchange``). The
worker that wants to make a call takes a *lease* for it. Another worker that wants to make the same
call finds the lease, and asks its owner for the answer by messages.

1. ``LeaseTable`` has the leases, in memory that all workers share.
2. ``WorkerExchange`` is the ``CallExchange`` of one engine of a worker. Its address begins with the
   number of the worker. ``ParentLink`` connects the exchanges of a worker with its channel.
3. ``Channel`` is the channel between the parent process and a worker. Either side asks, the other
   one answers. The parent process passes the messages of exchanges on.

The questions on the channel:

=========  ================  =====================================================================
question   asked by          answer, or effect
=========  ================  =====================================================================
ready      a worker          the parent process counts it as serving
learned    a worker          the parent process tells the other workers (``learn``)
reload     a worker          all workers get the new configuration (``replace``)
gather     a worker          the figures of all workers (``show``)
send       a worker          passes a message on to another worker (``mail``); b"" if it is away
show       the parent        the figures of this worker
learn      the parent        takes what another worker has learned of the upstreams
replace    the parent        serves with other settings
mail       the parent        takes a message for one of its exchanges
=========  ================  =====================================================================
"""

from __future__ import annotations

import sys

assert sys.platform != "win32", "Windows runs one worker"

import asyncio
import contextlib
import itertools
import mmap
import secrets
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headstart.errors import HeadstartError, StoreError
from headstart.middleware.upstreams.shared_states import LOCK_BYTES, SharedLock
from headstart.observe import logger
from headstart.types import Entry, Lease

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence

    from headstart.interfaces import Store


LEASE_S = 3.0
"""Seconds after which a lease ends, unless it is renewed."""
_LEASE = struct.Struct("<dQ16s20s4x")
"""The form of a ``_StoredLease``, padded so that the numbers of each place are aligned."""
_END = struct.Struct("<d")
"""The form of the first field of a ``_StoredLease``."""
_COUNT = struct.Struct("<Q")
"""The number of leases that were taken so far, which is stored before the first lease."""
BUCKET = 4
"""The places of a bucket. The digest of a lease's name chooses its bucket, and the lease is in any
place of the bucket."""
BUCKETS = 2048
"""The number of buckets. A full bucket gives no lease."""
PLACES = BUCKET * BUCKETS
# The table: the count of leases (in the room of one place), the places, the lock.
_LOCK_AT = -(-_LEASE.size * (1 + PLACES) // 8) * 8
LEASES_BYTES = _LOCK_AT + LOCK_BYTES


# --- leases ---------------------------------------------------------------------------------------


class _StoredLease(NamedTuple):
    """A place of the table."""

    until: float
    """The time of its end."""
    token: int
    owner: bytes
    """The owner's address, with zero bytes at its end."""
    digest: bytes
    """The digest of its name."""


class LeaseTable:
    """The leases of all workers, in the bytes of an open file from ``offset`` on.

    ``clock`` gives seconds, the same in all processes. If all places for a name are taken, there is
    no lease, and each process makes its own call.
    """

    def __init__(self, file: int, offset: int, clock: Callable[[], float]) -> None:
        self._memory = mmap.mmap(file, offset + LEASES_BYTES)
        self._offset = offset
        self._lock = SharedLock(file, offset + _LOCK_AT)
        self._clock = clock

    def take(self, name: str, owner: str, instead_of: int = 0) -> Lease | None:
        """Return the lease of a name, which ``owner`` takes if no exchange has it.

        ``owner`` also takes it if its token is ``instead_of``. None: all places are taken, or the
        lock of the table is not free.
        """
        digest, now = bytes.fromhex(name), self._clock()
        # A name has the places of one bucket only, so no other place is searched.
        first = self._at(int.from_bytes(digest[:4], "little") % BUCKETS * BUCKET)
        with self._lock:
            if not self._lock.taken:
                return None
            place = None  # of the last lease of this name, or else the first one that is free
            for at in range(first, first + BUCKET * _LEASE.size, _LEASE.size):
                found = self._read(at)
                if found.digest == digest:
                    if found.until > now and found.token != instead_of:
                        holder = found.owner.rstrip(b"\0").decode()
                        return Lease(name=name, owner=holder, token=found.token)
                    place = at
                    break
                if place is None and found.until <= now:
                    place = at
            if place is None:
                return None
            token = self._new_token(place)
            _LEASE.pack_into(self._memory, place, now + LEASE_S, token, owner.encode(), digest)
        return Lease(name=name, owner=owner, token=token)

    def _new_token(self, at: int) -> int:
        """Count a lease that begins at ``at``, and return its token. The lock must be held.

        The token is the number of leases so far times ``PLACES``, plus the number of the place. So
        no two leases have one token, and a token tells where its lease is (``_set_end``).
        """
        count: int = 1 + _COUNT.unpack_from(self._memory, self._offset)[0]
        _COUNT.pack_into(self._memory, self._offset, count)
        return count * PLACES + (at - self._at(0)) // _LEASE.size

    def renew(self, leases: Iterable[Lease]) -> None:
        """Renew leases: they last ``LEASE_S`` from now on."""
        until = self._clock() + LEASE_S
        with self._lock:
            for lease in leases:
                self._set_end(lease, until)

    def release(self, lease: Lease) -> None:
        """End a lease that was taken here.

        This needs no lock: it writes one number, and only the owner of a lease writes it.
        """
        self._set_end(lease, 0.0)

    def _set_end(self, lease: Lease, until: float) -> None:
        """Write the end of a lease, unless another lease has taken its place."""
        at = self._at(lease.token % PLACES)
        if self._read(at).token == lease.token:
            _END.pack_into(self._memory, at, until)

    def _read(self, at: int) -> _StoredLease:
        return _StoredLease(*_LEASE.unpack_from(self._memory, at))

    def _at(self, place: int) -> int:
        """Return where a place begins."""
        return self._offset + _LEASE.size * (1 + place)

    def drop(self, worker: int) -> None:
        """End the leases of a worker that has ended."""
        own = f"{worker}:".encode()
        with self._lock:
            for at in map(self._at, range(PLACES)):
                if self._read(at).owner.startswith(own):
                    _END.pack_into(self._memory, at, 0.0)


# --- the exchange ---------------------------------------------------------------------------------


class ExchangeMessage(msgspec.Struct, frozen=True):
    """A message to an exchange."""

    address: str
    message: bytes

    @property
    def worker(self) -> int:
        """The number of the worker that has the exchange."""
        return int(self.address.partition(":")[0])


class ParentLink:
    """What the exchanges of a worker share: the channel to the parent process, and the inboxes."""

    def __init__(self) -> None:
        self.channel: Channel | None = None
        """None before it is open, and after the parent process has ended."""
        self.opened = asyncio.Event()
        self.inboxes: dict[str, asyncio.Queue[bytes | None]] = {}
        """Messages by address. None in a queue means that no more will come."""

    def open(self, channel: Channel) -> None:
        """Use a channel."""
        self.channel = channel
        self.opened.set()

    def close(self) -> None:
        """Note that the parent process has ended."""
        self.channel = None
        for inbox in self.inboxes.values():
            inbox.put_nowait(None)

    def deliver(self, payload: bytes) -> bytes:
        """Take a message; return b"" if nobody has its address."""
        mail = msgspec.msgpack.decode(payload, type=ExchangeMessage)
        inbox = self.inboxes.get(mail.address)
        if inbox is None:
            return b""
        inbox.put_nowait(mail.message)
        return b"delivered"


class WorkerExchange:
    """The exchange of one engine of a worker."""

    def __init__(self, worker: int, store: Store, link: ParentLink, leases: LeaseTable) -> None:
        self.address = f"{worker}:{secrets.token_hex(4)}"
        self._store = store
        self._link = link
        self._leases = leases

    async def find(self, exact: str, name: str, instead_of: int = 0) -> Entry | Lease | None:
        """Return the stored answer, or else the lease of its call, which another owner may have.

        The lease is read first, and the store afterwards. The owner of a lease stores its answer
        before it releases the lease. So if there is no lease any more, the store has the answer.
        """
        lease, entry = None, None
        if self.address in self._link.inboxes:
            lease = self._leases.take(name, self.address, instead_of)
        try:
            entry = await self._store.find(exact)
        finally:
            if entry is not None and lease is not None and lease.owner == self.address:
                self._leases.release(lease)
        return lease if entry is None else entry

    async def renew(self, leases: Sequence[Lease]) -> None:
        """Renew leases."""
        self._leases.renew(leases)

    def release(self, lease: Lease, *, stored: bool) -> None:
        """End a lease."""
        self._leases.release(lease)

    async def send(self, address: str, message: bytes) -> bool:
        """Send a message, and wait until its worker has it."""
        if self._link.channel is None:
            raise StoreError("the parent process has ended")
        payload = msgspec.msgpack.encode(ExchangeMessage(address, message))
        try:
            return bool(await self._link.channel.ask("send", payload))
        except HeadstartError as error:
            raise StoreError(f"the parent process failed: {error}") from error

    async def messages(self) -> AsyncGenerator[bytes]:
        """Yield the messages. Raises StoreError when the parent process has ended."""
        await self._link.opened.wait()
        inbox = self._link.inboxes[self.address] = asyncio.Queue()
        try:
            while self._link.channel is not None:
                if (message := await inbox.get()) is not None:
                    yield message
        finally:
            del self._link.inboxes[self.address]
        raise StoreError("the parent process has ended")


# --- the channel ----------------------------------------------------------------------------------

_LENGTH_BYTES = 4
"""The bytes before each frame, which tell its length."""


class ChannelClosed(HeadstartError):
    """The other process has ended."""


class ChannelFrame(NamedTuple):
    """A question, or the answer to question ``number``."""

    answers: bool
    """True: it is an answer."""
    number: int
    """Each side numbers its own questions."""
    kind: str
    """The name of the question; in an answer "error", or "" if all went well."""
    payload: bytes


@dataclass(eq=False, repr=False)
class Channel:
    """Frames over a socket pair. ``answer`` answers the questions of the other side.

    ``run`` has to run while the channel is used. A HeadstartError of ``answer`` is raised on the
    other side with the same text.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    answer: Callable[[str, bytes], Awaitable[bytes]]
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _waiting: dict[int, asyncio.Future[bytes]] = field(default_factory=dict)
    """The answers that are awaited, by the numbers of their questions."""
    _closed: bool = False

    @classmethod
    async def over(
        cls, sock: socket.socket, answer: Callable[[str, bytes], Awaitable[bytes]]
    ) -> Channel:
        """Return a channel over one end of a socket pair, which it owns from now on."""
        sock.setblocking(False)  # noqa: FBT003 - the library's signature
        reader, writer = await asyncio.open_connection(sock=sock)
        return cls(reader, writer, answer)

    async def run(self) -> None:
        """Answer questions until the other side has ended."""
        try:
            async with asyncio.TaskGroup() as answers:
                while True:
                    head = await self.reader.readexactly(_LENGTH_BYTES)
                    body = await self.reader.readexactly(int.from_bytes(head, "big"))
                    frame = msgspec.msgpack.decode(body, type=ChannelFrame)
                    if frame.answers:
                        self._settle(frame)
                    else:
                        answers.create_task(self._reply(frame))
        except* (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.close()

    async def ask(self, kind: str, payload: bytes = b"") -> bytes:
        """Return the other side's answer. Raises HeadstartError, or ChannelClosed."""
        if self._closed:
            raise ChannelClosed("the other process has ended")
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(ChannelFrame(answers=False, number=number, kind=kind, payload=payload))
            return await self._waiting[number]
        finally:
            del self._waiting[number]

    def tell(self, kind: str, payload: bytes = b"") -> None:
        """Send a question whose answer nobody waits for."""
        if not self._closed:
            self._send(
                ChannelFrame(answers=False, number=next(self._numbers), kind=kind, payload=payload)
            )

    def close(self) -> None:
        """Close the channel. Open questions fail with ChannelClosed."""
        self._closed = True
        self.writer.close()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ChannelClosed("the other process has ended"))

    async def _reply(self, question: ChannelFrame) -> None:
        """Answer a question of the other side."""
        kind, payload = "", b""
        try:
            payload = await self.answer(question.kind, question.payload)
        except HeadstartError as error:
            kind, payload = "error", str(error).encode()
        except Exception:  # noqa: BLE001 - it is logged, and the other side goes on
            logger.exception("the request %r of another process failed", question.kind)
            kind, payload = "error", b"internal error"
        answer = ChannelFrame(answers=True, number=question.number, kind=kind, payload=payload)
        if not self._closed:
            self._send(answer)

    def _settle(self, answer: ChannelFrame) -> None:
        """Give an answer to the caller of ``ask``, if it still waits."""
        waiting = self._waiting.get(answer.number)
        if waiting is None or waiting.done():
            return
        if answer.kind:
            waiting.set_exception(HeadstartError(answer.payload.decode()))
        else:
            waiting.set_result(answer.payload)

    def _send(self, frame: ChannelFrame) -> None:
        body = msgspec.msgpack.encode(frame)
        with contextlib.suppress(ConnectionError):
            self.writer.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
