"""One thread that encodes, so that the event loop never waits for the model."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, TypeVarTuple

from anyio import to_thread

from headstart.errors import EncoderError
from headstart.observe import Encoded

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.decisions import Encoding
    from headstart.interfaces import Encoder, Observer

Outcome: TypeAlias = "Encoding | EncoderError"
Ts = TypeVarTuple("Ts")

CACHE_BYTES = 16 * 1024 * 1024
LARGEST_SHARE = 64
"""An encoding over 1/64 of the cache's bytes is not kept: one long prompt displaces dozens."""
BACKGROUND_TURN = 12
"""Every twelfth encoding is a background one while any waits: under steady load learning goes on,
and answers, which are longer than prompts, take a third of the time at most."""
MAX_QUEUE = 1000
"""Background encodings that wait, some 8 s of work: past it, a tenant that has its part of them
may add none."""
IDLE_TENANTS = 64
"""Tenants without a job whose time is remembered, before those that no longer count are dropped."""
SHORT_PROMPT = "Is the encoder warm?"
LONG_PROMPT = "Is the encoder warm, with a prompt that is long enough for several threads? " * 4


class EncoderWorker:
    """Encode prompts on one daemon thread, one at a time, in turn by tenant.

    The tenant whose prompts took the least time goes first, and its own prompts in the order in
    which they came: however many one tenant sends, another's prompt waits for few of them.
    ``background`` requests get every twelfth turn while others wait. A tenant's callers of one
    text share its encoding, and whoever asks for the one that runs shares it too.

    Recent encodings are kept, least recently used out first, at most ``cache_size`` of them and
    ``cache_bytes`` in all. ``observer`` is told of every encoding, on the loop of the caller that
    asked for it; ``clock`` returns monotonic seconds. The thread starts with the first request.
    All methods may be used from several event loops.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        cache_size: int = 2048,
        cache_bytes: int = CACHE_BYTES,
        observer: Observer,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._encoder = encoder
        self._observer = observer
        self._clock = clock
        self._recent = _RecentEncodings(cache_size, cache_bytes)
        self._foreground = FairQueue[_Job]()
        self._background = FairQueue[_Job]()
        self._running: _Job | None = None
        self._wakeup = threading.Condition()  # guards everything above and below
        self._thread: threading.Thread | None = None
        self._closed = False
        self._turn = 0

    @property
    def namespace(self) -> str:
        """The encoder's namespace."""
        return self._encoder.namespace

    @property
    def dimension(self) -> int:
        """The encoder's dimension."""
        return self._encoder.dimension

    @property
    def queue_length(self) -> int:
        """Number of encodings that wait, without the one that runs."""
        return len(self._foreground) + len(self._background)

    def is_full(self, tenant: str) -> bool:
        """Tell whether a tenant may add nothing to the background.

        While there is room for ``MAX_QUEUE`` in all, one tenant may have it all. Past that, each
        may have an equal part.
        """
        with self._wakeup:
            queue = self._background
            waiting = queue.waiting(tenant)
            tenants = queue.tenants + (0 if waiting else 1)
            return len(queue) >= MAX_QUEUE and waiting >= MAX_QUEUE // tenants

    def peek(self, text: str) -> Encoding | None:
        """Return the encoding of ``text`` if it is still kept. Never waits for the model."""
        with self._wakeup:
            return self._recent.get(text)

    async def encode(self, text: str, *, background: bool = False, tenant: str = "") -> Encoding:
        """Return the encoding of ``text``. Raises EncoderError, also once closed.

        Cancelling the last caller of a text that still waits takes it out of the queue; one that
        already runs is finished and kept. Its time is counted for ``tenant``.
        """
        waiter = asyncio.get_running_loop().create_future()
        with self._wakeup:
            found = self._recent.get(text)
            if found is not None:
                return found
            job = self._submit(text, waiter, tenant, background=background)
        try:
            outcome: Outcome = await waiter
        except asyncio.CancelledError:
            self._leave(job, waiter)
            raise
        if isinstance(outcome, EncoderError):
            raise outcome
        return outcome

    async def warm(self) -> None:
        """Encode a short and a long prompt, which brings the model's pages and threads up."""
        await self.encode(SHORT_PROMPT)
        await self.encode(LONG_PROMPT)

    async def aclose(self) -> None:
        """Finish the encoding that runs, fail those that wait with EncoderError, end the thread."""
        with self._wakeup:
            self._closed = True
            jobs = [*self._foreground.clear(), *self._background.clear()]
            waiters = [waiter for job in jobs for waiter in job.waiters]
            self._wakeup.notify()
        for waiter in waiters:
            _settle(waiter, EncoderError("the encoder closed before this prompt's turn"))
        if self._thread is not None:
            await to_thread.run_sync(self._thread.join)

    def _submit(
        self, text: str, waiter: asyncio.Future[Outcome], tenant: str, *, background: bool
    ) -> _Job:
        if self._closed:
            raise EncoderError("the encoder is closed")
        queue = self._background if background else self._foreground
        job = self._join(text, tenant, background=background)
        if job is not None:
            job.waiters.append(waiter)
        else:
            job = _Job(text, tenant, waiter, self._clock())
            queue.add(job)
            self._wakeup.notify()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name="headstart-encoder", daemon=True
            )
            self._thread.start()
        return job

    def _join(self, text: str, tenant: str, *, background: bool) -> _Job | None:
        """Return the job that will bring an encoding as soon as one of its own would."""
        if self._running is not None and self._running.text == text:
            return self._running
        job = self._foreground.find(tenant, text)
        if job is not None:
            return job
        job = self._background.find(tenant, text)
        if job is not None and not background:
            self._background.remove(job)
            self._foreground.add(job)
        return job

    def _leave(self, job: _Job, waiter: asyncio.Future[Outcome]) -> None:
        with self._wakeup:
            job.waiters.remove(waiter)
            if not job.waiters:
                self._foreground.remove(job)
                self._background.remove(job)

    def _work(self) -> None:
        while (found := self._next()) is not None:
            job, queue = found
            started = self._clock()
            outcome = self._run(job.text)
            encode_s = self._clock() - started
            with self._wakeup:
                self._running = None
                queue.charge(job.tenant, encode_s)
                waiters = tuple(job.waiters)  # their loops may drop cancelled ones meanwhile
                if not isinstance(outcome, EncoderError):
                    self._recent.put(job.text, outcome)
            for waiter in waiters:
                _settle(waiter, outcome)
            if not isinstance(outcome, EncoderError):
                self._report(job, len(outcome.spans), encode_s, started)

    def _next(self) -> tuple[_Job, FairQueue[_Job]] | None:
        """Return the next job that somebody still waits for, and its queue; None once closed."""
        with self._wakeup:
            while not self._closed:
                self._turn += 1
                patient = self._background and self._turn % BACKGROUND_TURN == 0
                queue = self._background if patient else self._foreground or self._background
                if not queue:
                    self._turn = 0
                    self._wakeup.wait()
                    continue
                job = queue.take()
                if all(waiter.cancelled() for waiter in job.waiters):
                    continue
                known = self._recent.get(job.text)
                if known is not None:  # another tenant had it encoded meanwhile
                    for waiter in job.waiters:
                        _settle(waiter, known)
                    continue
                self._running = job
                return job, queue
        return None

    def _run(self, text: str) -> Outcome:
        try:
            return self._encoder.encode(text)
        except EncoderError as error:
            return error
        except Exception as error:  # noqa: BLE001 - a third party's encoder must not end the thread
            failure = EncoderError(f"the encoder failed: {type(error).__name__}")
            failure.__cause__ = error
            return failure

    def _report(self, job: _Job, tokens: int, encode_s: float, started: float) -> None:
        observation = Encoded(
            encode_s=encode_s,
            queue_s=started - job.queued_at,
            queue_length=self.queue_length,
            tokens=tokens,
        )
        _call_soon(job.loop, self._observer.notify, observation)


class _Job:
    """One text to encode, for which tenant, and who waits for it."""

    __slots__ = ("loop", "queued_at", "tenant", "text", "waiters")

    def __init__(
        self, text: str, tenant: str, waiter: asyncio.Future[Outcome], queued_at: float
    ) -> None:
        self.text = text
        self.tenant = tenant
        self.waiters = [waiter]
        self.loop = waiter.get_loop()
        self.queued_at = queued_at


class Queued(Protocol):
    """What a queue needs to know of a job."""

    @property
    def tenant(self) -> str: ...

    @property
    def text(self) -> str: ...


J = TypeVar("J", bound=Queued)


class FairQueue(Generic[J]):
    """Jobs of tenants, each with one job for a text. The tenant that took the least time is next.

    This is start-time fair queueing. A tenant that comes anew begins where the last one ended: it
    has saved up nothing by staying away, and many new ones do not keep an old one waiting. One
    that goes for a moment keeps what it took. So of two tenants that always have a job, neither
    takes more time than the other by more than one job of each. Among equals, the one that was
    served longest ago is next.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, OrderedDict[str, J]] = {}
        self._accounts: dict[str, _Account] = {}
        self._last = _Account(0.0, 0)
        self._level = 0.0
        """What the tenant that was served last had taken before: nobody waiting has less."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def tenants(self) -> int:
        """Number of tenants that have a job."""
        return len(self._jobs)

    def waiting(self, tenant: str) -> int:
        """Number of a tenant's jobs."""
        return len(self._jobs.get(tenant, ()))

    def find(self, tenant: str, text: str) -> J | None:
        """Return a tenant's job for a text."""
        jobs = self._jobs.get(tenant)
        return None if jobs is None else jobs.get(text)

    def add(self, job: J) -> None:
        """Add a job behind its tenant's others."""
        jobs = self._jobs.get(job.tenant)
        if jobs is None:
            jobs = self._jobs[job.tenant] = OrderedDict()
            account = self._accounts.get(job.tenant, _Account(0.0, 0))
            if account.taken_s <= self._level:
                account = account._replace(taken_s=self._last.taken_s)
            self._accounts[job.tenant] = account
        jobs[job.text] = job
        self._length += 1

    def remove(self, job: J) -> None:
        """Take a job out if it is in the queue."""
        if self.find(job.tenant, job.text) is job:
            self._pop(job.tenant, job.text)

    def take(self) -> J:
        """Take out the next job; there must be one."""
        tenant = min(self._jobs, key=self._accounts.__getitem__)
        self._level, _ = self._accounts[tenant]
        return self._pop(tenant, next(iter(self._jobs[tenant])))

    def charge(self, tenant: str, seconds: float) -> None:
        """Count the time of a tenant's job, after it was taken out and before the next one is."""
        taken_s, _ = self._accounts[tenant]
        self._last = _Account(taken_s + seconds, self._last.turn + 1)
        self._accounts[tenant] = self._last
        if len(self._accounts) > 2 * len(self._jobs) + IDLE_TENANTS:
            self._accounts = {
                name: account
                for name, account in self._accounts.items()
                if name in self._jobs or account.taken_s > self._level
            }

    def clear(self) -> list[J]:
        """Take out all jobs."""
        jobs = [job for jobs in self._jobs.values() for job in jobs.values()]
        self._jobs.clear()
        self._length = 0
        return jobs

    def _pop(self, tenant: str, text: str) -> J:
        jobs = self._jobs[tenant]
        job = jobs.pop(text)
        if not jobs:
            del self._jobs[tenant]
        self._length -= 1
        return job


class _Account(NamedTuple):
    """What a tenant took so far, and the number of its last turn."""

    taken_s: float
    turn: int


class _RecentEncodings:
    """Encodings by text, least recently used out first, bounded in number and in bytes."""

    def __init__(self, size: int, capacity: int) -> None:
        self._size = size
        self._capacity = capacity
        self._bytes = 0
        self._kept: OrderedDict[str, Encoding] = OrderedDict()

    def get(self, text: str) -> Encoding | None:
        encoding = self._kept.get(text)
        if encoding is not None:
            self._kept.move_to_end(text)
        return encoding

    def put(self, text: str, encoding: Encoding) -> None:
        cost = _weigh(text, encoding)
        if cost > self._capacity // LARGEST_SHARE:
            return
        self._kept[text] = encoding
        self._bytes += cost
        while len(self._kept) > self._size or self._bytes > self._capacity:
            self._bytes -= _weigh(*self._kept.popitem(last=False))


def _weigh(text: str, encoding: Encoding) -> int:
    """Bytes that keeping an encoding costs: arrays, text, spans (two tuples and ints each)."""
    arrays = encoding.sentence.nbytes + encoding.tokens.nbytes
    return arrays + 4 * len(text) + 120 * len(encoding.spans)


def _settle(waiter: asyncio.Future[Outcome], outcome: Outcome) -> None:
    """Hand the outcome to a waiter, on its own loop."""
    _call_soon(waiter.get_loop(), _resolve, waiter, outcome)


def _resolve(waiter: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not waiter.done():
        waiter.set_result(outcome)


def _call_soon(
    loop: asyncio.AbstractEventLoop, callback: Callable[[*Ts], object], *args: *Ts
) -> None:
    with contextlib.suppress(RuntimeError):  # the loop closed: nobody listens any more
        loop.call_soon_threadsafe(callback, *args)
