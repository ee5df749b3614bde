"""Makes the call of a flight: reads the upstream, feeds the flight, and stores the answer.

The steps of ``PumpedCall.run``:

1. **Call.** It waits for a place among the concurrent calls, and sends the call (``_send``).
2. **Judge the head.** Status and headers may already forbid to store the answer (``_judge_head``).
3. **Read.** Each piece goes to the flight, from which the clients take it (``_read``).
4. **Sum up** (``_sum_up``). At the terminal event the answer is whole. Its cost is known, and if it
   may be stored (``_refuse``), it becomes an entry, which exact lookups find from now on.
5. **End the flight.** Clients get the end or the error. All costs are known (``settle``).
6. **Store** (``store``). The entry goes to the store, with the text by whose meaning it is found.

For example, a stream has the pieces "Par", "is" and the terminal event. Clients get "Par" and "is"
as they come. With the terminal event the entry "Paris" is made, just before clients get this event:
so a client that asks again at once has an exact hit. Then the entry is written to the store.

The last part of the file makes entries of answers that another tool has logged.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import anyio
import msgspec
from msgspec.structs import replace

from headstart.attempts import CHARS_PER_TOKEN, AttemptCosts, Tokens, sum_costs
from headstart.dialects.registry import DOCUMENTS, DocumentForm
from headstart.errors import (
    HeadstartError,
    RequestError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
)
from headstart.middleware.endpoints import MatchedEndpoint
from headstart.middleware.learning.learner import FeedbackSample, Learner, PendingComparison
from headstart.middleware.reading import MAX_DOCUMENT_BYTES
from headstart.observe import Observer, StageFailed
from headstart.policies.admission import NEVER_STORED, has_match
from headstart.policies.freshness import StorageVerdict, is_from_cache, judge_response
from headstart.reply import AnswerWithheld, Reply, Transcript, storable
from headstart.types import Completion, Ended, Entry, Origin, RawResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from headstart.dialects.dialect import Dialect
    from headstart.embeddings.cache import SemanticCache
    from headstart.interfaces import AdmissionPolicy, Upstream
    from headstart.middleware.concurrency import ConcurrencyLimit
    from headstart.middleware.flights import Flight, Flights
    from headstart.middleware.identity import AcceptedCredentials
    from headstart.middleware.prepare import Prepared, Preparer
    from headstart.middleware.record import Recorder
    from headstart.types import CacheKey, Call, ChatRequest, Headers

_MAY_BE_STORED = StorageVerdict()
_TEXT_PASSES = frozenset({"model", "include-usage"})
"""Transforms that do not change the text of an answer."""
UNATTENDED_S = 600.0
"""Longest time of a call that no client waits for: no deadline of a caller ends it."""
CORS_HEADERS = frozenset(
    (
        b"access-control-allow-origin",
        b"access-control-allow-credentials",
        b"access-control-expose-headers",
    )
)
"""Headers without which a browser does not give the answer to the page that asked for it."""
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
"""Headers of an app's answer that describe it, or tell a browser how to treat it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pump:
    """The shared parts of the calls of all flights."""

    cache: SemanticCache | None
    learner: Learner | None
    admission: AdmissionPolicy
    accepted: AcceptedCredentials
    flights: Flights
    concurrency: ConcurrencyLimit
    clock: Callable[[], float]
    observer: Observer
    wrapped: bool
    """An app answers the calls."""
    recorder: Recorder | None = None
    keyed: Callable[[bytes], bool] = lambda _: False
    """Tells whether a request header is part of the cache key or of the scope."""


@dataclass(slots=True, eq=False, repr=False)
class PumpedCall:
    """One upstream call: it feeds a flight with the answer, and stores an answer that is whole.

    ``key`` is None when the answer must not be stored. ``sample`` is the pair of question and
    neighbour that the answer labels; None: it labels nothing.
    """

    pump: Pump
    flight: Flight
    call: Call
    upstream: Upstream
    dialect: Dialect | None
    prepared: Prepared
    _: KW_ONLY
    key: CacheKey | None
    join_key: Hashable
    sample: FeedbackSample | None
    _stores: bool = field(init=False)
    """The answer is stored. Otherwise it is only compared with the neighbour of ``sample``."""
    _holder: str = field(init=False)
    """The hash of the caller's credentials, under which we note whether upstreams accept them;
    "": we note nothing."""
    _document: DocumentForm | None = field(init=False)
    """The form of the answer to a call that is no chat, such as embeddings."""
    _keeps_body: bool = field(init=False)
    """The answer is in no dialect, and is stored byte for byte."""
    _body: bytes | None = None
    """The whole body of such an answer; None: it may not be stored."""
    _storing: StorageVerdict = _MAY_BE_STORED
    """The verdict on storing the answer that follows from its status and headers."""
    _readable: bool = False
    """The answer is in a dialect, and can be read."""
    _completion: Completion | None = None
    """The whole answer, once it was read."""
    _storable: Completion | None = None
    """The same, as a store can keep it."""
    _judged: bool = False
    """The admission policy has judged the answer, and ``_refusal`` has the result."""
    _refusal: str | None = None
    """Why the policy refuses to store the answer; None: it may be stored."""
    _arrived: Callable[[], None] | None = None
    """Ends the wait of lookups by meaning for the answer's entry."""

    def __post_init__(self) -> None:
        self._stores = self.sample is None or self.sample.stores
        self._holder = self.prepared.holder
        self._document = DOCUMENTS.get(self.call.dialect)
        self._keeps_body = self.dialect is None and self.key is not None

    async def run(self) -> None:
        """Make the call, publish its answer and store it. Errors go to the flight's clients."""
        flight = self.flight
        try:
            unseen = await self._feed_flight()
            await self.store()
        finally:
            # If memory has no room for the entry, the flight ends only now, so that others could
            # join until here.
            self.pump.flights.remove(self.join_key, flight)
            if flight.owned is not None:
                flight.owned.end()
            if self._arrived is not None:
                self._arrived()
        if unseen is not None:
            raise unseen

    async def store(self) -> None:
        """Store a whole answer, even if its clients have left or its body has not ended."""
        entry, pump, sample = self.flight.entry, self.pump, self.sample
        if entry is None or pump.cache is None:
            return
        is_chat = self.dialect is None or self.dialect.is_chat
        if pump.recorder is not None and is_chat and self._document is None and self._stores:
            pump.recorder.add(self.call, self.dialect, entry)
        tenant = self.prepared.match_context.tenant
        owned = self.flight.owned
        lease = None if owned is None else owned.lease
        stored = self._stores and await pump.cache.put(
            entry, text=searched_text(self.prepared, entry), tenant=tenant, lease=lease
        )
        if owned is not None:
            owned.stored = stored
        if sample is not None and pump.learner is not None and not calls_tools(entry):
            pump.learner.submit(PendingComparison(sample, entry.answer, stored=stored))

    def adopt(self, key: CacheKey, prepared: Prepared) -> bool:
        """Let the answer be stored under a key, for a client that asks after the call has begun.

        Return whether the answer is whole, so that ``store`` has to store it.
        """
        flight, pump, request = self.flight, self.pump, self.call.request
        self.key, self.prepared = key, prepared
        reply = flight.reply
        if reply is None or request is None or pump.cache is None:
            return False
        self._storing = self._judge_head(reply)
        if flight.origin is None:
            return False
        flight.not_stored = self._refuse(reply, request)
        if flight.not_stored is not None:
            return False
        flight.entry = self._entry(reply, flight.origin, key)
        pump.cache.keep(flight.entry)
        return flight.pump is None or flight.pump.done()

    # --- the call ---------------------------------------------------------------------------

    async def _feed_flight(self) -> Exception | None:
        """Make the call and publish its answer; return an unexpected error that no client gets."""
        flight = self.flight
        unseen: Exception | None = None
        try:
            asked = flight.readers and flight.unasked is None
            await (self._run_attended() if asked else self._run_unattended())
        except Exception as error:  # noqa: BLE001 - told to the clients, or returned
            self._take_attempts()
            if isinstance(error, UpstreamRefused) and self.key is not None:
                flight.not_stored = "status"
            flight.fail(error)
            if not isinstance(error, HeadstartError) and not flight.readers:
                unseen = error
        finally:
            self._take_attempts()
            if not flight.done:
                flight.fail(UpstreamProtocolError("the call was cancelled"))
            broken = flight.error is not None and flight.reply is not None and flight.entry is None
            if broken and self.key is not None:
                flight.not_stored = flight.not_stored or "incomplete"
            flight.settle()
            if flight.entry is None:
                self.pump.flights.remove(self.join_key, flight)
        return unseen

    async def _run_attended(self) -> None:
        """Make a call that clients wait for."""
        concurrency = self.pump.concurrency
        if not concurrency.take():
            await concurrency.wait()
        try:
            await self._send()
        finally:
            concurrency.give_back()

    async def _run_unattended(self) -> None:
        """Make a call that no client waits for.

        It gives way to clients' calls, and has a time limit.
        """
        with self.pump.concurrency.spare(), anyio.move_on_after(UNATTENDED_S):
            return await self._send()
        raise UpstreamTimeout("a call that no client waits for took too long")

    async def _send(self) -> None:
        try:
            async with await self.upstream.send(self.call) as reply:
                await self._publish(reply)
        # No upstream did better, so the caller gets the empty answer.
        except AnswerWithheld as withheld:
            await self._publish(withheld.reply)

    def _take_attempts(self) -> None:
        """Give the flight the attempts that were booked since the last call."""
        log, flight = self.call.log, self.flight
        if log.rows:
            attempts = log.take()
            flight.attempts += attempts
            for each in attempts if self._holder else ():
                if each.error is None or each.status >= 400:
                    self.pump.accepted.note(self._holder, each.upstream, each.status)
        if log.shaped:
            flight.shaped += log.take_shaped()

    # --- the answer -------------------------------------------------------------------------

    async def _publish(self, reply: Reply) -> None:
        """Give the answer to the flight, piece by piece, and make an entry of it."""
        flight = self.flight
        self._storing = self._judge_head(reply)
        self._readable = self.dialect is not None and reply.status == 200 and reply.is_plain
        reply.not_stored = self._storing.refusal
        self._note_source(reply)
        try:
            await self._read(reply)
        except asyncio.CancelledError:
            # The flight cuts off the rest of a whole answer whose clients have left.
            if not flight.was_cut_off():
                raise
        except Exception:
            # If the answer is whole, only the rest of its body has failed: it is stored.
            if flight.whole and flight.origin is None:
                reply.transcript.feed((Ended(),))
                self._sum_up(reply)
            raise
        if reply.is_stream and flight.origin is None:
            await asyncio.sleep(0)  # let clients get the last piece before the work below
        transcript = reply.transcript
        if self._readable and not self.pump.wrapped:
            if transcript.error is not None or not transcript.ended:
                _end_or_refuse(transcript, stream=reply.is_stream, cacheable=self.key is not None)
        elif transcript.finished and not transcript.ended:
            # A wrapped app may give any answer: a broken one passes, and is not stored.
            transcript.feed((Ended(),))
        flight.whole = True
        self._sum_up(reply)
        if transcript.failure is not None:
            self._note_failed_stage(transcript.failure)
        flight.finish()

    def _note_source(self, reply: Reply) -> None:
        """Note the answer's source: another process, or an upstream that saw the caller's key."""
        if reply.followed is not None:
            self.flight.followed = True
            self.key = None  # the process that made the call stores the answer
            self._holder = ""  # that process also notes which callers' keys were accepted
        # An app makes no attempts. For providers, the attempts show which keys were accepted.
        elif self._holder and self.pump.wrapped:
            self.pump.accepted.note(self._holder, reply.upstream, reply.status)

    async def _read(self, reply: Reply) -> None:
        """Give each piece to the flight, and note when the answer is whole."""
        flight, keeps_body = self.flight, self._keeps_body
        dialect, request = self.dialect, self.call.request
        ends_at_finish = self._readable and dialect is not None and dialect.ends_at_finish
        choices = 1 if request is None else max(1, request.choices)
        body: list[bytes] | None = [] if keeps_body and self._storing.refusal is None else None
        flight.is_read = True
        flight.open(reply)
        try:
            async for piece in reply.pieces:
                transcript = reply.transcript
                if flight.first_content is None and (transcript.content_started or keeps_body):
                    flight.first_content = time.perf_counter()
                if body is not None:
                    body.append(piece.data)
                    if flight.full:  # it is too large to be stored
                        body = None
                if transcript.ended and not flight.whole:
                    flight.whole = transcript.error is None
                    if flight.whole and reply.is_stream:
                        # A client may ask again as soon as it has the terminal event.
                        self._sum_up(reply)
                elif ends_at_finish and not flight.whole:
                    flight.whole = transcript.has_finished(choices)
                if piece.data:
                    flight.push(piece.data)
                    if flight.full:
                        await flight.room()
        finally:
            flight.is_read = False
        self._body = None if body is None else b"".join(body)

    def _sum_up(self, reply: Reply) -> None:
        """Note the cost of a whole answer, and let exact lookups find it from now on.

        This happens at its terminal event, or else at its end. At the end it is done again only if
        further attempts were booked in between.
        """
        flight, booked = self.flight, len(self.flight.attempts)
        try:
            self._take_attempts()
            if flight.origin is None or len(flight.attempts) > booked:
                self._make_entry(reply, sum_costs(flight.attempts))
        except Exception as error:  # noqa: BLE001 - the answer came, whatever we make of it
            flight.not_stored = self._note_failed_stage(error)

    def _make_entry(self, reply: Reply, costs: AttemptCosts) -> None:
        """Note the cost of a whole answer; make its entry, if it may be stored."""
        flight, pump, request, prepared = self.flight, self.pump, self.call.request, self.prepared
        origin = self._origin(reply, costs)
        if self._holder:  # noted now: the caller's next request may come before the books
            pump.accepted.note(self._holder, reply.upstream, reply.status)
        flight.origin = origin
        flight.entry = entry = None
        if self.key is not None and request is not None and pump.cache is not None:
            flight.not_stored = self._refuse(reply, request)
            if flight.not_stored is None:
                flight.entry = entry = self._entry(reply, origin, self.key)
                is_new = self._stores and self._arrived is None
                if is_new and searched_text(prepared, entry) is not None:
                    self._arrived = pump.cache.expect(self.key, prepared.match_context.tenant)
        if entry is None or (self._stores and pump.cache is not None and pump.cache.keep(entry)):
            # The next equal request finds the entry, or asks for a new answer.
            pump.flights.remove(self.join_key, flight)

    def _origin(self, reply: Reply, costs: AttemptCosts) -> Origin:
        """Return the source of a whole answer, and its cost.

        Its tokens are estimated if the upstream reports none.
        """
        if reply.followed is not None and reply.followed.origin is not None:
            return reply.followed.origin
        flight, request, counts = self.flight, self.call.request, self.dialect or self._document
        answer, tokens, estimated = self._read_whole(reply), None, False
        if counts is not None and request is not None:
            tokens = reply.transcript.tokens(counts.tokens)
        if tokens is None and answer is not None and request is not None:
            prompt = round(len(self.call.body) / CHARS_PER_TOKEN)
            tokens = Tokens(prompt, _estimated_tokens(answer, request.max_tokens))
            estimated = True
        tokens = tokens or Tokens()
        first, total_s = flight.first_content, time.perf_counter() - flight.began
        names_model = request if answer is None else answer
        return Origin(
            model="" if names_model is None else names_model.model,
            upstream=reply.upstream,
            ttft_s=total_s if first is None else first - flight.began,
            total_s=total_s,
            streamed=reply.is_stream,
            prompt_tokens=tokens.prompt,
            completion_tokens=tokens.completion,
            extra_tokens=costs.extra_tokens,
            cost_usd=costs.total_usd,
            extra_usd=costs.extra_usd,
            prefix_usd=costs.prefix_usd,
            estimated=estimated,
        )

    def _read_whole(self, reply: Reply) -> Completion | None:
        """Return the whole answer, if it can be read."""
        if self._completion is None and self._readable:
            found, request = reply.transcript.completion(self.pump.clock()), self.call.request
            if found is not None and not found.model and request is not None:
                found = replace(found, model=request.model)  # the provider did not name the model
            self._completion = found
            self._storable = None if found is None else storable(found)
        return self._completion

    # --- whether the answer may be stored, and its entry -------------------------------------

    def _judge_head(self, reply: Reply) -> StorageVerdict:
        """Return the verdict of status and headers on storing the answer."""
        if self.key is None:
            return _MAY_BE_STORED
        if (self._keeps_body and self._document is None) or self.pump.wrapped:
            return self._judge_head_of_app(reply)
        # A provider's caching headers are about answers to a POST in general.
        if reply.status != 200 or not reply.is_plain:
            return StorageVerdict("status" if reply.status != 200 else "content-encoding")
        cached = is_from_cache(reply.headers)
        return StorageVerdict("other-cache") if cached else _MAY_BE_STORED

    def _judge_head_of_app(self, reply: Reply) -> StorageVerdict:
        """Judge by the rules of HTTP caches, because the app's author chose the headers."""
        pump, custom = self.pump, self._keeps_body
        try:
            verdict = judge_response(
                reply.status, reply.headers, keyed=pump.keyed, custom=custom, now=pump.clock()
            )
        except Exception as error:  # noqa: BLE001 - the answer came, whatever we make of it
            return StorageVerdict(self._note_failed_stage(error))
        # A completion is stored without headers, and the app's CORS headers are added after us.
        if not custom and any(name in CORS_HEADERS for name, _ in reply.headers):
            return StorageVerdict(verdict.refusal or "cors")
        return verdict

    def _note_failed_stage(self, error: Exception) -> str:
        """Report a step that failed; return why the answer is not stored."""
        self.pump.observer.notify(StageFailed(stage="admission", error=type(error).__name__))
        return "admission-error"

    def _refuse(self, reply: Reply, request: ChatRequest) -> str | None:
        """Return why nothing of a whole answer may be stored, or None."""
        if self._storing.refusal is not None:
            return self._storing.refusal
        if not reply.storable:
            return "composed"
        if self._keeps_body:
            return self._refuse_raw(reply)
        if self._storable is None:
            return self._refuse_unread(reply.transcript)
        if not self._judged:  # an answer may be summed up twice, but is judged once
            self._refusal = self._refuse_content(request, self._storable, reply.transforms)
            self._judged = True
        return self._refusal

    def _refuse_content(
        self, request: ChatRequest, answer: Completion, transforms: Sequence[str]
    ) -> str | None:
        """Return why an answer in a dialect may not be stored, or None."""
        origin, prepared = self.flight.origin, self.prepared
        if prepared.never_stored and has_match(msgspec.to_builtins(answer), prepared.never_stored):
            return NEVER_STORED
        tokens = 0 if origin is None or origin.estimated else origin.completion_tokens
        refusal = self.pump.admission.refuse_store(request, answer, prepared.cached_tools, tokens)
        contradicts = self.dialect and self.dialect.contradicts
        if refusal is None and contradicts and _TEXT_PASSES.issuperset(transforms):
            refusal = "contradictory" if contradicts(answer) else None
        return refusal

    def _refuse_unread(self, transcript: Transcript) -> str:
        if transcript.error is not None:
            return "error"
        too_large = transcript.overflowed or transcript.size > MAX_DOCUMENT_BYTES
        return "too-large" if too_large and self._completion is None else "unreadable"

    def _refuse_raw(self, reply: Reply) -> str | None:
        """Return why an answer that is in no dialect may not be stored, or None."""
        if self._body is None:
            return "too-large"
        broken = reply.transcript.error is not None
        if broken or not _has_its_length(reply.headers, reply.transcript.size):
            return "incomplete"
        if self._document is not None and not self._document.is_whole(self._body):
            return "unreadable"
        if self.prepared.never_stored and has_match(self._body, self.prepared.never_stored):
            return NEVER_STORED
        return None if self._body else "no-content"

    def _entry(self, reply: Reply, origin: Origin, key: CacheKey) -> Entry:
        """Return the entry of a whole answer."""
        answer: Completion | RawResponse
        if self.dialect is None or self._storable is None:
            answer = RawResponse(
                headers=tuple(pair for pair in reply.headers if pair[0] in STORED_HEADERS),
                body=self._body or b"",
                status=reply.status,
            )
        else:
            answer = self._storable
            if origin.estimated and not self.pump.wrapped:
                # Clients rely on the usage in whole answers, which this one may serve as.
                tokens = Tokens(origin.prompt_tokens, origin.completion_tokens)
                answer = replace(answer, usage=self.dialect.usage(tokens))
        now, life_s = self.pump.clock(), self.prepared.lifetime.seconds
        fresh_s = self._storing.fresh_s
        if life_s is None or (fresh_s is not None and fresh_s < life_s):
            life_s = fresh_s
        return Entry(
            id=self.call.id,
            key=key,
            answer=answer,
            origin=origin,
            created=now,
            expires=None if life_s is None else now + life_s,
            tags=self.prepared.tags,
            transforms=reply.transforms,
            dialect="" if self.dialect is None else self.dialect.name,
        )


def _end_or_refuse(transcript: Transcript, *, stream: bool, cacheable: bool) -> None:
    """End the answer, or raise if it is not whole: a cut answer must never look finished.

    Some providers leave out a stream's terminal event; then the finish reasons of all choices
    replace it. A body with status 200 that is not an answer is refused if we read it for the cache,
    because no client library would notice it.
    """
    if not stream:
        if cacheable and transcript.error is not None:
            raise UpstreamProtocolError(f"the upstream answered 200: {transcript.error.message}")
        return
    if transcript.ended or transcript.error is not None:
        return
    if not transcript.finished:
        raise UpstreamProtocolError("the upstream's stream ended before its answer did")
    transcript.feed((Ended(),))


def searched_text(prepared: Prepared, entry: Entry) -> str | None:
    """Return the text by whose meaning the entry is found.

    None: only exact lookups find it, as all answers that call tools.
    """
    if prepared.semantic_refusal is not None or calls_tools(entry):
        return None
    return entry.key.query


def calls_tools(entry: Entry) -> bool:
    """Tell whether an answer calls tools. Such answers are not compared, nor found by meaning."""
    return isinstance(entry.answer, Completion) and bool(entry.answer.called_tools)


def _has_its_length(headers: Headers, size: int) -> bool:
    """Return whether the body is as long as its headers announced (RFC 9111, section 3.3)."""
    return all(value == b"%d" % size for name, value in headers if name == b"content-length")


def _estimated_tokens(answer: Completion, limit: int | None) -> int:
    """Estimate the tokens of an answer that came to its own end.

    Later requests compare their limit with the estimate of the longest choice. So the answer fits
    the limit of its own request, and no text has 0 tokens.
    """
    sizes = [choice.size for choice in answer.choices]
    if not any(sizes):
        return 0
    tokens = max(round(sum(sizes) / CHARS_PER_TOKEN), 1)
    return min(tokens, limit * sum(sizes) // max(sizes)) if limit else tokens


# --- entries of answers that another tool has logged ----------------------------------------------

IMPORTED = "imported"
"""The tag of these entries, by which they can be deleted."""


class LoggedAnswer(NamedTuple):
    """One call of a log: the bodies of the request and of its answer, and the time."""

    dialect: Dialect
    path: str
    headers: Headers
    """The headers that the callers of the server send."""
    request: bytes
    response: bytes
    at: float
    """Unix seconds."""


@dataclass(frozen=True)
class AnswerLog:
    """Stores logged answers under the same keys, and by the same rules, as upstream answers."""

    preparer: Preparer
    admission: AdmissionPolicy
    cache: SemanticCache
    clock: Callable[[], float]
    new_id: Callable[[], str]

    async def keep(self, logged: LoggedAnswer) -> str | None:
        """Store an answer; return the reason if it is not stored, or None.

        A newer answer under its key stays. Its lifetime counts from the logged time.
        """
        scope = {
            "type": "http",
            "method": "POST",
            "path": logged.path,
            "headers": logged.headers,
            "query_string": b"",
        }
        endpoint = MatchedEndpoint(logged.path, logged.dialect)
        try:
            prepared = self.preparer.prepare(endpoint, scope, logged.request)
        except RequestError:
            return "invalid-request"
        entry = self._entry(prepared, logged)
        if isinstance(entry, str):
            return entry
        known = await self.cache.find_exact(entry.key, lambda _: None)
        if known is not None and known.created >= entry.created:
            return "known"
        text, tenant = searched_text(prepared, entry), prepared.match_context.tenant
        return None if await self.cache.put(entry, text, tenant=tenant) else "store-failed"

    def _entry(self, prepared: Prepared, logged: LoggedAnswer) -> Entry | str:
        """Return the entry of an answer, or the reason why it may not be stored."""
        if prepared.key is None or prepared.request is None:
            return prepared.bypass or "no-key"
        dialect, transcript = logged.dialect, Transcript()
        transcript.feed(dialect.decode_body(200, logged.response))
        completion = transcript.completion(logged.at)
        answer = None if completion is None else storable(completion)
        if answer is None:
            return "no-whole-answer"
        tokens = transcript.tokens(dialect.tokens) or Tokens()
        refusal = self.admission.refuse_store(
            prepared.request, answer, prepared.cached_tools, tokens.completion
        )
        if refusal is not None:
            return refusal
        life_s = prepared.lifetime.seconds
        expires = None if life_s is None else logged.at + life_s
        if expires is not None and expires <= self.clock():
            return "expired"
        return Entry(
            id=self.new_id(),
            key=prepared.key,
            answer=answer,
            origin=Origin(
                model=answer.model,
                upstream=min(prepared.upstreams, default=""),
                ttft_s=0.0,
                total_s=0.0,
                prompt_tokens=tokens.prompt,
                completion_tokens=tokens.completion,
            ),
            created=logged.at,
            expires=expires,
            tags=(IMPORTED,),
            dialect=dialect.name,
        )
