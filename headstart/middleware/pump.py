"""Runs one flight: reads the upstream, feeds the flight, and stores what is whole."""

from __future__ import annotations

import asyncio
import time
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import anyio
from msgspec.structs import replace

from headstart.attempts import Tokens, total_cost_usd
from headstart.compression.tokens import count_at_once
from headstart.errors import (
    HeadstartError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
)
from headstart.middleware.collect import Collector, storable
from headstart.middleware.flights import LOG_BYTES, Head
from headstart.middleware.learning.learner import Comparison
from headstart.middleware.reading import MAX_DOCUMENT_BYTES, is_plain
from headstart.middleware.tokenizers import load_soon
from headstart.middleware.upstreams.opening import AnswerWithheld
from headstart.middleware.upstreams.recording import CHARACTERS_PER_TOKEN
from headstart.observe import StageFailed
from headstart.policies.responses import Storing, judge_response
from headstart.types import Ended, Entry, Frozen, Origin, RawResponse, ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from headstart.embeddings.cache import SemanticCache
    from headstart.interfaces import AdmissionPolicy, Observer, Upstream, UpstreamReply
    from headstart.middleware.endpoints import Route
    from headstart.middleware.flights import Flight, Flights
    from headstart.middleware.identity import AcceptedCredentials
    from headstart.middleware.learning.learner import Learner, Lesson
    from headstart.middleware.limits import Gate
    from headstart.middleware.record import Recorder
    from headstart.middleware.upstreams.ledger import Ledger
    from headstart.policies.freshness import Lifetime
    from headstart.types import CacheKey, Call, ChatRequest, Completion, Headers

UNATTENDED_S = 600.0
"""Longest call that nobody waits for: no caller's deadline ends it."""
CORS_HEADERS = frozenset(
    (
        b"access-control-allow-origin",
        b"access-control-allow-credentials",
        b"access-control-expose-headers",
    )
)
"""Without them a browser keeps an answer from the page that asked for it."""
STORED_HEADERS = CORS_HEADERS.union(
    (
        b"content-type",
        b"content-language",
        b"content-disposition",
        b"content-location",
        b"content-security-policy",
        b"location",
        b"x-content-type-options",
    )
)
"""Headers of an app's answer that say what it is, and how a browser may treat it."""


class Plan(Frozen):
    """One upstream call to make. ``key`` is None when its answer must not be stored."""

    call: Call
    upstream: Upstream
    route: Route
    identity: Hashable
    key: CacheKey | None
    semantic: bool
    lifetime: Lifetime
    """How long its answer may be served; without end: until it is evicted."""
    tenant: str
    """Whose turn at the encoder its answer takes."""
    lesson: Lesson | None
    """What the answer teaches about the neighbour that was, or was not, served in its place."""
    holder: str
    """Under which to note whether upstreams accept the caller's key; "" when nobody asks."""
    wrapped: bool


class Pump:
    """Carries out plans. One instance serves all flights of an engine."""

    def __init__(
        self,
        *,
        cache: SemanticCache | None,
        learner: Learner | None,
        admission: AdmissionPolicy,
        accepted: AcceptedCredentials,
        flights: Flights,
        gate: Gate,
        ledger: Ledger,
        clock: Callable[[], float],
        observer: Observer,
        recorder: Recorder | None = None,
        keyed: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        """Compose the parts. ``keyed`` tells of a request header whether key or scope bind it."""
        self._cache = cache
        self._learner = learner
        self._admission = admission
        self._accepted = accepted
        self._flights = flights
        self._gate = gate
        self._ledger = ledger
        self._clock = clock
        self._recorder = recorder
        self._observer = observer
        self._keyed = keyed

    async def run(self, flight: Flight, plan: Plan) -> None:
        """Make the call and publish its answer to the flight. Errors go to the flight's clients."""
        unseen: Exception | None = None
        try:
            if flight.clients:
                async with self._gate:
                    await self._call(flight, plan)
            else:
                with self._gate.spare():
                    await self._audit(flight, plan)
        except Exception as error:  # noqa: BLE001 - told to the clients, or raised below
            self._settle(flight, plan)
            if isinstance(error, UpstreamRefused) and plan.key is not None:
                flight.not_stored = "status"
            flight.fail(error)
            if not isinstance(error, HeadstartError) and not flight.clients:
                unseen = error
        finally:
            self._settle(flight, plan)
            if not flight.done:
                flight.fail(UpstreamProtocolError("the call was cancelled"))
            broken = flight.error is not None and flight.head is not None and flight.entry is None
            if broken and plan.key is not None:
                flight.not_stored = flight.not_stored or "incomplete"
            flight.settled.set()
            if flight.entry is None:
                self._flights.remove(plan.identity, flight)
        try:
            await self._store(flight, plan)
        finally:
            # Only now, where memory has no room for the entry: until here others may join.
            self._flights.remove(plan.identity, flight)
        if unseen is not None:
            raise unseen

    async def _store(self, flight: Flight, plan: Plan) -> None:
        """Store a whole answer, whatever became of its clients and of its body's end."""
        entry = flight.entry
        if entry is None or self._cache is None:
            return
        if self._recorder is not None:
            self._recorder.add(plan.call, plan.route.dialect, entry)
        text = entry.key.query if plan.semantic else None
        stored = await self._cache.put(entry, text=text, tenant=plan.tenant)
        if plan.lesson is not None and self._learner is not None:
            self._learner.submit(Comparison(plan.lesson, entry.answer, stored=stored))

    def _settle(self, flight: Flight, plan: Plan) -> None:
        """Hand over what the calls cost, also where the answer never came."""
        attempts = self._ledger.take(plan.call.id)
        flight.attempts += attempts
        if plan.holder:
            for each in attempts:
                if each.error is None or each.status >= 400:
                    self._accepted.note(plan.holder, each.upstream, each.status)
        flight.shaped += self._ledger.shaped(plan.call.id)

    async def _audit(self, flight: Flight, plan: Plan) -> None:
        """Make a call that no client waits for: it gives way to theirs, and it ends."""
        with anyio.move_on_after(UNATTENDED_S):
            return await self._call(flight, plan)
        raise UpstreamTimeout("the audit took too long")

    async def _call(self, flight: Flight, plan: Plan) -> None:
        try:
            async with plan.upstream.stream(plan.call) as reply:
                await self._carry(flight, plan, reply)
        except AnswerWithheld as withheld:  # an answer without content is an answer all the same
            await self._carry(flight, plan, withheld.reply)

    async def _carry(self, flight: Flight, plan: Plan, reply: UpstreamReply) -> None:
        storing = self._judge(plan, reply)
        head = Head(reply.status, reply.headers, reply.upstream, reply.transforms, storing.refusal)
        flight.open(head)
        if plan.holder and plan.wrapped:  # of others the books tell, too
            self._accepted.note(plan.holder, reply.upstream, reply.status)
        answer = _Answer(plan, reply, storing, self._clock)
        collector = answer.collector
        try:
            with anyio.CancelScope() as flight.reading:
                await self._read(flight, head, answer)
        except Exception:
            if flight.whole and flight.origin is None:  # what fails now was not the answer
                collector.feed((Ended(),))
                self._sum_up_now(flight, answer)
            raise
        if head.stream:
            await asyncio.sleep(0)  # its last piece goes out before the answer is summed up
        if answer.reads and not plan.wrapped:
            # A wrapped app may answer as it likes: what it sends passes, and is just not stored.
            _refuse_broken(collector, stream=head.stream, cacheable=plan.key is not None)
        elif collector.finished and not collector.ended:
            collector.feed((Ended(),))
        flight.whole = True
        try:
            tokens, booked = await answer.counted(), len(flight.attempts)
            self._settle(flight, plan)
            if flight.origin is None or tokens.estimated or len(flight.attempts) > booked:
                self._sum_up(flight, answer, tokens)
        except Exception as error:  # noqa: BLE001 - the answer came, whatever we make of it
            flight.not_stored = self._failed(error)
        if collector.failure is not None:
            self._failed(collector.failure)
        flight.finish()

    async def _read(self, flight: Flight, head: Head, answer: _Answer) -> None:
        collector, ends_at_finish = answer.collector, answer.ends_at_finish
        custom = answer.plan.route.dialect is None and answer.plan.key is not None
        raw: list[bytes] | None = [] if custom and answer.storing.refusal is None else None
        async for piece in answer.reply.chunks():
            if piece.events:
                collector.feed(piece.events)
            answer.size += len(piece.data)
            if flight.first_content is None and (collector.content_started or custom):
                flight.first_content = time.perf_counter()
            if raw is not None:
                raw.append(piece.data)
                if flight.full:
                    raw = None
            if (collector.ended or ends_at_finish) and not flight.whole and answer.is_whole:
                flight.whole = True
                if head.stream and collector.ended:
                    # A client may ask again as soon as it has the terminal event.
                    self._sum_up_now(flight, answer)
            if piece.data:
                await flight.push(piece.data)
        answer.raw = None if raw is None else b"".join(raw)

    def _sum_up_now(self, flight: Flight, answer: _Answer) -> None:
        try:
            self._sum_up(flight, answer, answer.estimated())
        except Exception as error:  # noqa: BLE001 - the stream goes on
            flight.not_stored = self._failed(error)

    def _sum_up(self, flight: Flight, answer: _Answer, tokens: _Tokens) -> None:
        """Tell what a whole answer took, and let exact lookups find it from now on."""
        plan, reply = answer.plan, answer.reply
        self._settle(flight, plan)
        if plan.holder:  # whose next request may come before this call is in the books
            self._accepted.note(plan.holder, reply.upstream, reply.status)
        flight.origin = _origin(answer, tokens, flight)
        flight.entry = entry = None
        if plan.key is not None and plan.call.request is not None and self._cache is not None:
            flight.not_stored = self._refuse(answer, plan.call.request)
            if flight.not_stored is None:
                flight.entry = entry = self._entry(answer, flight.origin, plan.key)
        if entry is None or (self._cache is not None and self._cache.keep(entry)):
            # The next equal request finds the entry, or asks for an answer of its own.
            self._flights.remove(plan.identity, flight)

    def _judge(self, plan: Plan, reply: UpstreamReply) -> Storing:
        """Say what status and headers make of an answer that is to be stored."""
        if plan.key is None:
            return Storing()
        custom = plan.route.dialect is None
        try:
            if custom or plan.wrapped:
                now = self._clock()
                storing = judge_response(
                    reply.status, reply.headers, keyed=self._keyed, custom=custom, now=now
                )
                # A completion is kept without headers, and the app's own CORS stands behind us.
                if not custom and any(name in CORS_HEADERS for name, _ in reply.headers):
                    return Storing(storing.refusal or "cors")
                return storing
        except Exception as error:  # noqa: BLE001 - the answer came, whatever we make of it
            return Storing(self._failed(error))
        # What providers say of caching is said of answers to a POST in general.
        if reply.status != 200:
            return Storing("status")
        return Storing(None if is_plain(reply.headers) else "content-encoding")

    def _failed(self, error: Exception) -> str:
        """Tell of a step that failed; return why the answer is not stored."""
        self._observer.notify(StageFailed(stage="admission", error=type(error).__name__))
        return "admission-error"

    def _refuse(self, whole: _Answer, request: ChatRequest) -> str | None:
        """Return why nothing of a whole answer may be stored, or None."""
        composed = None if whole.reply.storable else "composed"
        refusal = whole.storing.refusal or composed or whole.refusal
        if refusal is not None or whole.kept is None:
            return refusal
        return self._admission.refuse_store(request, whole.kept)

    def _entry(self, whole: _Answer, origin: Origin, key: CacheKey) -> Entry:
        """Return what is stored of a whole answer."""
        plan, reply = whole.plan, whole.reply
        answer: Completion | RawResponse
        if plan.route.dialect is None or whole.kept is None:
            answer = RawResponse(
                headers=tuple(pair for pair in reply.headers if pair[0] in STORED_HEADERS),
                body=whole.raw or b"",
                status=reply.status,
            )
        else:
            answer = whole.kept
            if origin.estimated and not plan.wrapped:
                # Clients rely on the usage in whole answers, which this one may serve as.
                tokens = Tokens(origin.prompt_tokens, origin.completion_tokens)
                answer = replace(answer, usage=plan.route.dialect.usage(tokens))
        now, lives_s = self._clock(), (plan.lifetime.seconds, whole.storing.fresh_s)
        life_s = min((each for each in lives_s if each is not None), default=None)
        return Entry(
            id=plan.call.id,
            key=key,
            answer=answer,
            origin=origin,
            created=now,
            expires=None if life_s is None else now + life_s,
            tags=_tags(plan.call.headers),
            transforms=reply.transforms,
        )


class _Tokens(NamedTuple):
    prompt: int
    completion: int
    estimated: bool


class _Answer:
    """The answer to a plan's call, read as it passes."""

    def __init__(
        self, plan: Plan, reply: UpstreamReply, storing: Storing, clock: Callable[[], float]
    ) -> None:
        dialect, request = plan.route.dialect, plan.call.request
        self.plan = plan
        self.reply = reply
        self.storing = storing
        """What its status and headers say."""
        self.collector = Collector(max_bytes=LOG_BYTES)
        self.reads = dialect is not None and reply.status == 200 and is_plain(reply.headers)
        self.raw: bytes | None = None
        """The whole body of an answer that is in no dialect; None if it may not be stored."""
        self.size = 0
        """Bytes of the body so far."""
        self._clock = clock
        self.ends_at_finish = self.reads and dialect is not None and dialect.ends_at_finish
        self._choices = 1 if request is None else max(1, request.choices)
        self._completion: Completion | None = None

    @property
    def is_whole(self) -> bool:
        """Its terminal event has come."""
        collector = self.collector
        if collector.ended:
            return collector.error is None
        return self.ends_at_finish and collector.has_finished(self._choices)

    @property
    def completion(self) -> Completion | None:
        """The whole answer, if it could be read."""
        if self._completion is None and self.reads:
            found, request = self.collector.completion(self._clock()), self.plan.call.request
            if found is not None and not found.model and request is not None:
                found = replace(found, model=request.model)  # its provider did not say
            self._completion = found
        return self._completion

    @cached_property
    def kept(self) -> Completion | None:
        """The whole answer as stores can keep it. To be asked for when it is whole."""
        return None if self.completion is None else storable(self.completion)

    @property
    def refusal(self) -> str | None:
        """Why the body is nothing to store, or None."""
        if self.plan.route.dialect is None:
            if self.raw is None:
                return "too-large"
            if not _has_its_length(self.reply.headers, self.size):
                return "incomplete"
            return None if self.raw else "no-content"
        if self.completion is not None:
            return "unreadable" if self.kept is None else None
        if self.collector.error is not None:
            return "error"
        too_large = self.collector.overflowed or self.size > MAX_DOCUMENT_BYTES
        return "too-large" if too_large else "unreadable"

    def estimated(self) -> _Tokens:
        """Return the answer's usage, by a rough estimate where the upstream did not report it."""
        reported = self._reported()
        if reported is not None:
            return reported
        prompt = round(len(self.plan.call.body) / CHARACTERS_PER_TOKEN)
        return _Tokens(prompt, round(len(self._said()) / CHARACTERS_PER_TOKEN), estimated=True)

    async def counted(self) -> _Tokens:
        """Return the answer's usage, counted and marked where the upstream did not report it."""
        reported, request = self._reported(), self.plan.call.request
        if reported is not None or request is None:
            return reported or _Tokens(0, 0, estimated=False)
        load_soon(request.model)
        return await asyncio.to_thread(_count, self.plan.call.body, self._said(), request.model)

    def _reported(self) -> _Tokens | None:
        """Return the usage as it was reported, or nothing where none is to be reported."""
        dialect, usage = self.plan.route.dialect, self.collector.usage
        if dialect is not None and usage is not None and self.plan.call.request is not None:
            used = dialect.tokens(usage)
            return _Tokens(used.prompt, used.completion, estimated=False)
        return _Tokens(0, 0, estimated=False) if self.completion is None else None

    def _said(self) -> str:
        choices = () if self.completion is None else self.completion.choices
        parts = (part for choice in choices for part in choice.parts)
        return "".join(
            part.arguments if isinstance(part, ToolCall) else part.text for part in parts
        )


def _origin(answer: _Answer, tokens: _Tokens, flight: Flight) -> Origin:
    request, completion = answer.plan.call.request, answer.completion
    model = completion.model if completion is not None else request.model if request else ""
    first, total_s = flight.first_content, time.perf_counter() - flight.began
    return Origin(
        model=model,
        upstream=answer.reply.upstream,
        ttft_s=total_s if first is None else first - flight.began,
        total_s=total_s,
        prompt_tokens=tokens.prompt,
        completion_tokens=tokens.completion,
        cost_usd=total_cost_usd(flight.attempts),
        estimated=tokens.estimated,
    )


def _refuse_broken(collector: Collector, *, stream: bool, cacheable: bool) -> None:
    """Raise unless the answer was whole: one cut short must never look finished.

    Some providers leave out a stream's terminal event; every choice's finish reason stands in for
    it. A body under status 200 that is no answer is refused where we read it for the cache: no
    client's library would notice.
    """
    if not stream:
        if cacheable and collector.error is not None:
            raise UpstreamProtocolError(f"the upstream answered 200: {collector.error.message}")
        return
    if collector.ended or collector.error is not None:
        return
    if not collector.finished:
        raise UpstreamProtocolError("the upstream's stream ended before its answer did")
    collector.feed((Ended(),))


def _count(body: bytes, said: str, model: str) -> _Tokens:
    # A request's body is its prompt and some JSON around it: close enough for an estimate.
    prompt = count_at_once(body.decode("utf-8", "replace"), model).tokens
    return _Tokens(prompt, count_at_once(said, model).tokens, estimated=True)


def _has_its_length(headers: Headers, size: int) -> bool:
    """Is the body as long as the answer said it would be (RFC 9111, section 3.3)?"""
    return all(value == b"%d" % size for name, value in headers if name == b"content-length")


def _tags(headers: Headers) -> tuple[str, ...]:
    """Return the labels of ``x-headstart-tags``, for invalidation."""
    for name, value in headers:
        if name == b"x-headstart-tags":
            words = (word.strip() for word in value.decode("latin-1").split(","))
            return tuple(word for word in words if word)
    return ()
