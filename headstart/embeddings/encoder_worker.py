"""One thread that encodes, so that the event loop never waits for the model."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, TypeAlias, TypeVarTuple

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
SHORT_PROMPT = "Is the encoder warm?"
LONG_PROMPT = "Is the encoder warm, with a prompt that is long enough for several threads? " * 4


class EncoderWorker:
    """Encode prompts on one daemon thread, one at a time, first come first served.

    ``background`` requests get every twelfth turn while others wait. Callers of one text share its
    encoding. Recent encodings are kept, least recently used out first, at most ``cache_size`` of
    them and ``cache_bytes`` in all. ``observer`` is told of every encoding, on the loop of the
    caller that asked for it; ``clock`` returns monotonic seconds. The thread starts with the first
    request. All methods may be used from several event loops.
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
        self._foreground: OrderedDict[str, _Job] = OrderedDict()
        self._background: OrderedDict[str, _Job] = OrderedDict()
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

    def peek(self, text: str) -> Encoding | None:
        """Return the encoding of ``text`` if it is still kept. Never waits for the model."""
        with self._wakeup:
            return self._recent.get(text)

    async def encode(self, text: str, *, background: bool = False) -> Encoding:
        """Return the encoding of ``text``. Raises EncoderError, also once closed.

        Cancelling the last caller of a text that still waits takes it out of the queue; one that
        already runs is finished and kept.
        """
        waiter = asyncio.get_running_loop().create_future()
        with self._wakeup:
            found = self._recent.get(text)
            if found is not None:
                return found
            job = self._submit(text, waiter, background=background)
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
            jobs = [*self._foreground.values(), *self._background.values()]
            waiters = [waiter for job in jobs for waiter in job.waiters]
            self._foreground.clear()
            self._background.clear()
            self._wakeup.notify()
        for waiter in waiters:
            _settle(waiter, EncoderError("the encoder closed before this prompt's turn"))
        if self._thread is not None:
            await to_thread.run_sync(self._thread.join)

    def _submit(self, text: str, waiter: asyncio.Future[Outcome], *, background: bool) -> _Job:
        if self._closed:
            raise EncoderError("the encoder is closed")
        job = self._join(text, waiter, background=background)
        if job is None:
            job = _Job(text, waiter, self._clock())
            (self._background if background else self._foreground)[text] = job
            self._wakeup.notify()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name="headstart-encoder", daemon=True
            )
            self._thread.start()
        return job

    def _join(self, text: str, waiter: asyncio.Future[Outcome], *, background: bool) -> _Job | None:
        if self._running is not None and self._running.text == text:
            job = self._running
        elif text in self._foreground:
            job = self._foreground[text]
        elif text in self._background:
            job = self._background[text]
            if not background:
                self._foreground[text] = self._background.pop(text)
        else:
            return None
        job.waiters.append(waiter)
        return job

    def _leave(self, job: _Job, waiter: asyncio.Future[Outcome]) -> None:
        with self._wakeup:
            job.waiters.remove(waiter)
            if not job.waiters:
                for queue in (self._foreground, self._background):
                    if queue.get(job.text) is job:
                        del queue[job.text]

    def _work(self) -> None:
        while (job := self._next()) is not None:
            started = self._clock()
            outcome = self._run(job.text)
            encode_s = self._clock() - started
            with self._wakeup:
                self._running = None
                waiters = tuple(job.waiters)  # their loops may drop cancelled ones meanwhile
                if not isinstance(outcome, EncoderError):
                    self._recent.put(job.text, outcome)
            for waiter in waiters:
                _settle(waiter, outcome)
            if not isinstance(outcome, EncoderError):
                self._report(job, len(outcome.spans), encode_s, started)

    def _next(self) -> _Job | None:
        """Return the next job that somebody still waits for, or None once closed."""
        with self._wakeup:
            while not self._closed:
                self._turn += 1
                patient = self._background and self._turn % BACKGROUND_TURN == 0
                queue = self._background if patient else self._foreground or self._background
                if not queue:
                    self._turn = 0
                    self._wakeup.wait()
                    continue
                _, job = queue.popitem(last=False)
                if not all(waiter.cancelled() for waiter in job.waiters):
                    self._running = job
                    return job
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
    """One text to encode and who waits for it."""

    __slots__ = ("loop", "queued_at", "text", "waiters")

    def __init__(self, text: str, waiter: asyncio.Future[Outcome], queued_at: float) -> None:
        self.text = text
        self.waiters = [waiter]
        self.loop = waiter.get_loop()
        self.queued_at = queued_at


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
