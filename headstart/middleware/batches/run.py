"""Sends the requests of a batch through an engine of this process, as fast as providers allow.

A ``BatchRun`` asks each request as a client would (``ask``). A request goes through these steps:

1. It waits for its turn (``_waiting``). If an equal request waits or runs already, it waits for the
   answer of that one first (``_equal``).
2. The engine looks it up in the cache. Up to ``LOOKUPS`` requests do this at the same time.
3. After a miss it waits for a place among the calls. ``BatchPace`` sets their number: it rises
   while the answers come as fast as before, and falls when the provider refuses calls.
4. ``_is_final`` decides about the answer: the journal keeps it, the request waits for another try,
   or the run stops.

With a ``tier``, a request that is not in the cache waits until a batch of the provider has its
answer (``_deferred``). Then it is asked again (``upstreams/batched.py``).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import anyio
import msgspec

from headstart.attempts import FAILURES, AttemptOutcome
from headstart.decisions import Outcome
from headstart.dialects.registry import DIALECTS
from headstart.errors import HeadstartError
from headstart.middleware.batches.documents import MapOptions, MappedRequest, MapStep, StepError
from headstart.middleware.batches.journal import (
    BatchResult,
    body_of,
    error_message,
    in_prefix_order,
    output_row,
)
from headstart.middleware.body import replay_body
from headstart.middleware.respond import plain_error
from headstart.observe import Observation, Served
from headstart.policies.routing import schedule
from headstart.policies.routing.failures import FailureKind
from headstart.policies.routing.rate_limits import retry_after_s
from headstart.policies.routing.schedule import BatchPace
from headstart.usual_calls import RecentPrompts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headstart.middleware.batches.journal import BatchJournal, BatchRequest, CallPlace
    from headstart.middleware.concurrency import ConcurrencyLimit
    from headstart.middleware.upstreams.batched import BatchTier
    from headstart.types import ASGIApp, Headers, Message


LOOKUPS = 32
"""The number of requests that are looked up at the same time, without those that have a call or may
have one next."""
MOST_TRIES = 3
"""The most attempts of a request that fails for another reason than a limit."""
_LIMITED = (FailureKind.RATE_LIMITED, FailureKind.OVERLOADED)
_HOPELESS = (FailureKind.QUOTA, FailureKind.UNAUTHORIZED)
"""Failures that only a person can correct: all other requests would fail, too."""
_TRANSIENT = frozenset((408, 409, 425, 500, 502, 504))
_LIMITED_STATUSES = frozenset((429, 503, 529))
_REQUEST_ID = b"x-headstart-request-id"
_REQUIRED: dict[str, Headers] = {
    path: tuple((name.encode(), value.encode()) for name, value in each.required_headers.items())
    for each in DIALECTS.values()
    for path in each.paths
}
"""The headers that clients of an API always send, by path."""


class BatchReply(NamedTuple):
    """A whole answer."""

    status: int
    headers: Headers
    body: bytes


async def ask(app: ASGIApp, path: str, headers: Headers, body: bytes) -> BatchReply:
    """Send a POST to an ASGI app of this process, and return its whole answer."""
    status = 0
    sent: Headers = ()
    parts: list[bytes] = []

    async def receive_more() -> Message:
        await anyio.sleep_forever()
        raise AssertionError("unreachable")

    async def send(message: Message) -> None:
        nonlocal status, sent
        if message["type"] == "http.response.start":
            status, sent = message["status"], tuple(message["headers"])
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    raw, _, query = path.encode().partition(b"?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": raw.decode(),
        "raw_path": raw,
        "query_string": query,
        "root_path": "",
        "headers": [*headers, (b"content-length", b"%d" % len(body))],
        "client": None,
        "server": None,
    }
    await app(scope, replay_body(body, receive_more, complete=True), send)
    return BatchReply(status, sent, b"".join(parts))


class BatchBooks:
    """Observes the engine's books: keeps the row of each request until it is read, and sums."""

    def __init__(self) -> None:
        self.vetoes = Counter[str]()
        """Semantic hits that were refused, by the reason."""
        self.would_have_cost_usd = 0.0
        self.calls = 0
        """The calls to providers, also those that failed."""
        self._paid_usd = 0.0
        self._priced = 0
        """Number of requests whose cost is known."""
        self._prompts = RecentPrompts()
        self._rows: dict[str, Served] = {}

    @property
    def paid_usd(self) -> float | None:
        """The cost of all requests; None: no price is known."""
        return self._paid_usd if self._priced else None

    def notify(self, observation: Observation) -> None:
        """Take an observation."""
        if not isinstance(observation, Served):
            return
        self.calls += len(observation.attempts)
        self._paid_usd += observation.cost_usd or 0.0
        self._priced += observation.has_known_cost
        self.would_have_cost_usd += self._prompts.would_have_cost_usd(observation)
        if observation.veto is not None and not observation.outcome.is_hit:
            self.vetoes[observation.veto] += 1
        if not observation.outcome.is_own_call:
            self._rows[observation.id] = observation

    def take(self, id: str) -> Served | None:
        """Return the row of a request, and forget it."""
        return self._rows.pop(id, None)


@dataclass
class BatchCounts:
    """The results of the requests so far, also in earlier runs of the same batch."""

    total: int
    outcomes: Counter[str] = field(default_factory=Counter[str])
    """Number of answered requests, by the way the answer came."""
    failed: int = 0
    resumed: int = 0
    """Requests that earlier runs had answered."""
    refusals: int = 0
    """Answers of this run that said to wait."""
    parts: int = 0
    """The known calls for documents that were split."""
    parts_done: int = 0

    @property
    def done(self) -> int:
        """The requests that need no further call."""
        return self.outcomes.total() + self.failed


@dataclass
class _SplitRequest:
    """A request whose document is split (``documents.py``), while its calls run."""

    request: BatchRequest
    mapped: MappedRequest
    outcome: str = str(Outcome.EXACT)
    """``exact`` if all its calls were exact hits."""
    usd: float = 0.0
    failed: bool = False

    def take(self, step: MapStep, result: BatchResult) -> None:
        """Take the answer to a call. Raises StepError."""
        now = time.time()  # noqa: TID251 - as the books
        self.mapped.take(step.number, body_of(result.row), now)
        self.usd += result.usd
        if result.outcome != Outcome.EXACT:
            self.outcome = result.outcome


@dataclass(eq=False, repr=False)
class BatchRun:
    """One run of a batch.

    A request with a document becomes several calls, as ``mapped`` says, and is counted once. Of
    equal requests, the others wait for the first one, so that the cache can answer them and no call
    is made twice. The pace sets the limit of the engine's ``concurrency``, which counts calls and
    not lookups. ``stop`` lets the calls in flight end. ``stopped_by`` says why a run ended early.
    """

    app: ASGIApp
    concurrency: ConcurrencyLimit
    books: BatchBooks
    journal: BatchJournal
    requests: InitVar[Iterable[BatchRequest]]
    _: KW_ONLY
    headers: Headers
    most: InitVar[int]
    mapped: MapOptions | None = None
    tier: BatchTier | None = None
    stopped_by: str | None = None
    _open: int = 0
    """The number of requests that run, with or without a call."""
    _tries: Counter[CallPlace] = field(default_factory=Counter)
    """The answers to each call that were no refusals."""
    _deferred: list[tuple[BatchRequest, str]] = field(default_factory=list)
    """The requests that wait for the provider's batch, with the digests of their calls."""
    _settled: set[CallPlace] = field(default_factory=set)
    """The calls whose answer is in a batch that has ended."""
    _documents: dict[int, _SplitRequest] = field(default_factory=dict)
    """Documents by the place of their request."""
    _equal: dict[tuple[str, bytes], list[BatchRequest]] = field(default_factory=dict)
    """By the identity of each call that waits or runs, the equal calls that wait for its answer."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request ends or the run is stopped."""

    def __post_init__(self, requests: Iterable[BatchRequest], most: int) -> None:
        # The answer to a call decides whether the next one may begin.
        self.concurrency.admits_at_once = False
        self._headers = (*self.headers, (b"content-type", b"application/json"))
        self.pace = BatchPace(most=most)
        self.counts = BatchCounts(0)
        calls: list[BatchRequest] = []
        for each in requests:
            self.counts.total += 1
            if not self.journal.succeeded(each.place):
                calls += filter(self._is_first, self._calls_of(each))
        self._waiting = deque(in_prefix_order(calls))
        for result in self.journal.results:
            if result.succeeded:
                self.counts.outcomes[result.outcome] += 1
                self.counts.resumed += 1

    @property
    def in_flight(self) -> int:
        """The calls that run."""
        return self.concurrency.active

    def stop(self, reason: str) -> None:
        """Begin no further call."""
        self.stopped_by = self.stopped_by or reason
        self.concurrency.resize(0)
        self.concurrency.refuse_waiting()
        self._changed.set()

    async def run(self) -> None:
        """Ask all requests that have no answer yet. An error of the provider's batches stops it."""
        await self._ask_waiting()
        try:
            while self.tier is not None and self._deferred and self.stopped_by is None:
                await self._ask_in_batches(self.tier)
        except HeadstartError as error:
            self.stop(str(error))

    async def _ask_in_batches(self, tier: BatchTier) -> None:
        """Ask the deferred requests in batches of the provider. Raises HeadstartError."""
        settled = await tier.settle(self._sleep)
        deferred, self._deferred = self._deferred, []
        if not settled:
            return
        self._settled = {each.call for each, _ in deferred}
        for request, digest in deferred:
            error = tier.desk.error(digest)
            if error is None:
                self._waiting.append(request)
            else:
                self._keep(request, BatchReply(error.status, (), error.body), "", None)
        await self._ask_waiting()
        if self.stopped_by is None:
            await tier.close_round()

    async def _sleep(self, seconds: float) -> bool:
        """Wait for these seconds; return False if the run is stopped meanwhile."""
        with anyio.move_on_after(seconds):
            while self.stopped_by is None:
                self._changed.clear()
                await self._changed.wait()
        return self.stopped_by is None

    async def _ask_waiting(self) -> None:
        """Ask the requests that wait, until each has an answer or is deferred."""
        async with asyncio.TaskGroup() as group:
            syncing = group.create_task(self._keep_synced())
            while self.stopped_by is None and (self._waiting or self._open):
                self.concurrency.resize(self.pace.calls if self._pause_s() <= 0.0 else 0)
                if self._waiting and self._is_dropped(self._waiting[0]):
                    self._release(self._waiting.popleft())
                elif self._waiting and self._has_room():
                    self._open += 1
                    group.create_task(self._run_request(self._waiting.popleft()))
                    # A hit ends without waiting, so this lets other tasks run.
                    await asyncio.sleep(0)
                else:
                    await self._wait_for_change()
            while self._open:
                self.concurrency.refuse_waiting()
                await self._wait_for_change()
            syncing.cancel()
        await asyncio.to_thread(self.journal.sync)

    def _has_room(self) -> bool:
        """Return whether another request may be looked up: a call of it must not wait for long."""
        concurrency = self.concurrency
        lookups = self._open - concurrency.active - concurrency.waiting
        return lookups < LOOKUPS and concurrency.waiting < self.pace.calls

    def _pause_s(self) -> float:
        return self.pace.resumes_at - asyncio.get_running_loop().time()

    async def _wait_for_change(self) -> None:
        """Wait until a call ends, the run is stopped, or a pause is over."""
        self._changed.clear()
        pause_s = self._pause_s()
        with anyio.move_on_after(pause_s if pause_s > 0.0 else None):
            await self._changed.wait()

    async def _keep_synced(self) -> None:
        """Sync the journal to the disk, about once a second."""
        synced = -1
        while True:
            await asyncio.sleep(1.0)
            if self.counts.done != synced:
                synced = self.counts.done
                await asyncio.to_thread(self.journal.sync)

    async def _run_request(self, request: BatchRequest) -> None:
        try:
            await self._ask_once(request)
        finally:
            self._open -= 1
            self._changed.set()

    async def _ask_once(self, request: BatchRequest) -> None:
        """Ask a request; keep its answer, or leave the request to a later try."""
        headers = (*self._headers, *_REQUIRED.get(request.path, ()))
        settled = request.call in self._settled
        if settled:  # the provider's batch has an answer that was paid for: do not ask the cache
            headers = (*headers, (b"cache-control", b"no-cache"))
        reply = await ask(self.app, request.path, headers, request.body)
        id = dict(reply.headers).get(_REQUEST_ID, b"").decode()
        digest = None if self.tier is None else self.tier.defers(id, again=settled)
        if digest is not None:
            if not settled:
                self._deferred.append((request, digest))
                return
            body = plain_error("no_answer", "the provider's batch has no usable answer to it")
            reply = BatchReply(422, reply.headers, body)
        booked = self.books.take(id)
        if self._is_final(request, reply, booked):
            self._keep(request, reply, id, booked)

    def _is_final(self, request: BatchRequest, reply: BatchReply, booked: Served | None) -> bool:
        """Learn from an answer; return whether the request keeps it.

        Otherwise the request is asked again later, or the run stops.
        """
        now, unix = asyncio.get_running_loop().time(), time.time()  # noqa: TID251 - as the books
        attempts = () if booked is None else booked.attempts
        # Without a call, the engine itself refused it. That says nothing new about the provider.
        began = now - (unix - attempts[0].at) if attempts else -math.inf
        hopeless = _is_hopeless(booked)
        if reply.status in _LIMITED_STATUSES and not hopeless:
            # The next run asks a request that ``stop`` refused.
            refused_by_stop = not attempts and self.stopped_by is not None
            if not refused_by_stop:
                self._slow_down(request, reply, began)
            return False
        if booked is not None and attempts:
            self._learn(booked, began, now)
        if hopeless and reply.status >= 400:
            self.stop(f"only a person can correct this: {error_text(reply)}")
            return False
        self._tries[request.call] += 1
        if reply.status in _TRANSIENT and self._tries[request.call] < MOST_TRIES:
            self._waiting.append(request)
            return False
        return True

    def _slow_down(self, request: BatchRequest, reply: BatchReply, began: float) -> None:
        """Let a refused request wait, and begin fewer calls. Stop if everything is refused."""
        self.counts.refusals += 1
        now, unix = asyncio.get_running_loop().time(), time.time()  # noqa: TID251 - as the books
        wait_s = retry_after_s(reply.headers, unix)
        self.pace = schedule.pace_after_refusal(self.pace, began=began, wait_s=wait_s, now=now)
        if self.pace.gives_up:
            self.stop(f"the providers refuse all calls: {error_text(reply)}")
        else:
            self._waiting.appendleft(request)

    def _learn(self, booked: Served, began: float, now: float) -> None:
        """Learn from a provider's answer how many calls at a time it accepts."""
        last = booked.attempts[-1]
        refused_by = {
            each.upstream
            for each in booked.attempts
            if each.outcome in FAILURES and each.error in _LIMITED
        }
        if refused_by:
            self.counts.refusals += 1
        if last.upstream in refused_by and last.outcome is AttemptOutcome.WON:
            self.pace = schedule.pace_after_late_answer(self.pace, began=began, now=now)
        if booked.succeeded:
            took_s = booked.total_s if booked.upstream_s is None else booked.upstream_s
            self.pace = schedule.pace_after_answer(
                self.pace,
                began=began,
                took_s=took_s,
                in_flight=self.concurrency.active + 1,
                now=now,
            )

    def _keep(
        self, request: BatchRequest, reply: BatchReply, id: str, booked: Served | None
    ) -> None:
        """Keep an answer, or an error after which the request is not asked again."""
        succeeded, (place, step) = 200 <= reply.status < 300, request.call
        outcome = "relay" if booked is None else str(booked.outcome)
        usd = (booked.cost_usd if booked is not None else None) or 0.0
        row = output_row(request, id, reply.status, reply.body)
        result = BatchResult(
            place=place, outcome=outcome, succeeded=succeeded, usd=usd, row=row, step=step
        )
        if step is None:
            self._keep_result(result)
        else:
            self._keep_step(step, result, id, reply)
        self._release(request)

    def _release(self, request: BatchRequest) -> None:
        """Start the requests that waited for an equal one."""
        self._waiting.extendleft(reversed(self._equal.pop(request.identity, [])))

    def _write(self, result: BatchResult) -> bool:
        """Write a result to the journal, and return whether that was possible."""
        try:
            self.journal.add(result)
        except OSError as error:
            self.stop(f"the journal cannot be written: {error}")
            return False
        return True

    def _keep_result(self, result: BatchResult) -> None:
        """Keep the result of a whole request."""
        if not self._write(result):
            return
        if result.succeeded:
            self.counts.outcomes[result.outcome] += 1
        else:
            self.counts.failed += 1

    def _is_first(self, call: BatchRequest) -> bool:
        """Return whether no equal call waits or runs. Otherwise let the call wait for that one."""
        if call.identity in self._equal:
            self._equal[call.identity].append(call)
            return False
        self._equal[call.identity] = []
        return True

    # --- documents --------------------------------------------------------------------------------

    def _calls_of(self, request: BatchRequest) -> list[BatchRequest]:
        """Return the calls of a request: itself, or the calls for the parts of its document."""
        if self.mapped is None or request.document is None:
            return [request]
        mapped = MappedRequest(request.path, request.body, request.document, self.mapped)
        self._documents[request.place] = document = _SplitRequest(request, mapped)
        return self._next_calls(document)

    def _next_calls(self, document: _SplitRequest) -> list[BatchRequest]:
        """Return the next calls for a document. If none are left, keep its answer.

        The parts of a document are one level of calls. If their answers are joined by further
        calls (``--reduce``), these are the next levels. The journal has the answers of an earlier
        run: a level that it has whole is not asked again, and the next level follows.
        """
        request, mapped = document.request, document.mapped
        while True:
            missing: list[BatchRequest] = []  # the calls of this level without an answer
            for number, body in enumerate(mapped.bodies):
                step = MapStep(mapped.level, number)
                kept = self.journal.result_of_step(request.place, step)
                self.counts.parts += 1
                if kept is None:
                    missing.append(request._replace(body=body, document=None, step=step))
                else:
                    self.counts.parts_done += 1
                    document.take(step, kept)
            if missing:
                return missing
            if not mapped.begin_next_level():
                self._end_document(document)
                return []

    def _is_dropped(self, call: BatchRequest) -> bool:
        """Return whether the call is for a document with a failed part."""
        return call.step is not None and self._documents[call.place].failed

    def _keep_step(self, step: MapStep, result: BatchResult, id: str, reply: BatchReply) -> None:
        """Keep the answer to one call for a document, and go on with the document."""
        document = self._documents[result.place]
        if not result.succeeded:
            return self._fail_document(step, result, id, reply.status, error_text(reply))
        try:
            document.take(step, result)
        except StepError as error:
            return self._fail_document(step, result, id, 502, str(error))
        self.counts.parts_done += 1
        if self._write(result) and document.mapped.is_answered and not document.failed:
            if document.mapped.begin_next_level():
                calls = self._next_calls(document)
                self._waiting.extendleft(filter(self._is_first, reversed(calls)))
            else:
                self._end_document(document)

    def _fail_document(
        self, step: MapStep, result: BatchResult, id: str, status: int, reason: str
    ) -> None:
        """Keep the error of the first call that failed as the answer to the whole document."""
        document = self._documents[result.place]
        if document.failed:
            return
        document.failed = True
        what = "part" if step.level == 0 else f"--reduce, level {step.level}, call"
        message = f"{what} {step.number + 1} of {len(document.mapped.bodies)}: {reason}"
        row = output_row(document.request, id, status, plain_error("part_failed", message))
        self._keep_result(msgspec.structs.replace(result, succeeded=False, row=row, step=None))

    def _end_document(self, document: _SplitRequest) -> None:
        """Keep the answer to a whole document."""
        request = document.request
        id = f"map-{request.place + 1}"
        row = output_row(request, id, 200, document.mapped.joined(id))
        result = BatchResult(
            place=request.place, outcome=document.outcome, succeeded=True, usd=document.usd, row=row
        )
        self._keep_result(result)
        del self._documents[request.place]


def _is_hopeless(booked: Served | None) -> bool:
    """Return whether the last call failed in a way in which all others would fail, too."""
    return bool(
        booked is not None
        and booked.attempts
        and booked.attempts[-1].outcome in FAILURES
        and booked.attempts[-1].error in _HOPELESS
    )


def error_text(reply: BatchReply) -> str:
    """Return the message of an error, or the status if it has none."""
    message = error_message(reply.body)
    return f"status {reply.status}" if message is None else f"{reply.status}: {message}"
