"""One request that is being answered: its clock, its deadlines and its row in the books."""

from __future__ import annotations

import asyncio
import copy
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from headstart.attempts import Attempt, ShapingEffect, total_cost_usd
from headstart.decisions import BYPASS, JOINED, MISS, Lookup, Outcome
from headstart.errors import InvalidRequest
from headstart.middleware.prepare import DEADLINE, Prepared
from headstart.observe import LONGEST_TAG, MOST_TAGS, Served
from headstart.policies.agreement.judge import answer_text
from headstart.policies.freshness import Directives
from headstart.policies.routing.schedule import SDK_RETRY_COUNT
from headstart.types import Call, Entry, Headers, Origin, Receive, Scope, Send

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headstart.middleware.conversations import Chain
    from headstart.middleware.endpoints import MatchedEndpoint
    from headstart.middleware.flights import Flight, FlightReader
    from headstart.middleware.shared_flights import LeaseClaim
    from headstart.middleware.upstreams.app import AppUpstream
    from headstart.policies.live_drafts import Trigger

RETRY_GRACE_S = 10.0
"""Seconds for which a call goes on after an SDK gave it up, so that the SDK's retry can join it.
OpenAI's and Anthropic's SDKs retry after 0.5 to 8 s."""
SDK_RETRIES = 2
"""Number of retries of these SDKs by default. Each request has the number of its retry."""
_SDK_TIMEOUT = b"x-stainless-read-timeout"
_BOUNDING = frozenset((DEADLINE, _SDK_TIMEOUT, SDK_RETRY_COUNT))
_FOREVER_S = 1e9


class Deadlines(msgspec.Struct, frozen=True, gc=False):
    """Limits in seconds from now; None: no limit."""

    begin_s: float | None
    """The time until the client gets the first byte, or an error."""
    whole_s: float | None
    """The time until the end of the answer."""
    again: bool = False
    """The client's SDK sends the request again when ``begin_s`` has passed."""


def deadlines(headers: Iterable[tuple[bytes, bytes]], configured: float | None) -> Deadlines:
    """Return the strictest limits. Raises InvalidRequest for an invalid deadline.

    It reads ``x-headstart-deadline-ms`` and two headers of SDKs, ``x-stainless-read-timeout`` and
    ``x-stainless-retry-count``, in which an invalid number is ignored. An SDK's timeout bounds one
    read, so it ends with the first byte.
    """
    bound_s, sdk_s, retries = configured, None, 0.0
    for name, value in headers:
        if name not in _BOUNDING:
            continue
        if name == DEADLINE:
            asked_s = _milliseconds(value)
            bound_s = asked_s if bound_s is None else min(asked_s, bound_s)
        elif name == _SDK_TIMEOUT:
            sdk_s = _positive(value)
        else:
            retries = _positive(value) or 0.0
    if sdk_s is None or (bound_s is not None and bound_s <= sdk_s):
        return Deadlines(bound_s, bound_s)
    return Deadlines(sdk_s, bound_s, again=retries < SDK_RETRIES)


def _milliseconds(value: bytes) -> float:
    """Return the seconds of a deadline in milliseconds."""
    found = _positive(value)
    if found is None:
        raise InvalidRequest("X-Headstart-Deadline-Ms must be a number of milliseconds above 0")
    return found / 1e3


def _positive(value: bytes) -> float | None:
    """Return the number in a header, or None if it is not a valid one."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0 < number < _FOREVER_S else None


BYTES_PER_TOKEN = 4
"""Bytes of a request's body for one token, for estimates."""
GAVE_UP_SHARE = 0.8
"""Share of an SDK's timeout after which a client that leaves has given up.

The SDK began to count when it sent the first byte, and we begin when we have read the last one.
"""
HINT_SIMILARITY = 0.8
"""The least similarity of a prompt whose answer is sent to the provider as a prediction."""
_UNREAD = Prepared(request=None, key=None, directives=Directives())
_MISS = Lookup(outcome=MISS)


@dataclass(slots=True, eq=False, repr=False)
class RequestContext:
    """One request that is being answered: its call, its flight, and the sent part of its answer.

    ``path`` has matched ``endpoint`` (``endpoints.raw_path``).

    ``started`` and ``read_at`` (the end of its body) are seconds of ``time.perf_counter``;
    ``first_byte`` and ``total_s`` are seconds since ``started``. ``held_out`` is the answer of the
    cache that was not served, because the call measures what hits save.
    """

    id: str
    endpoint: MatchedEndpoint
    path: bytes
    scope: Scope
    receive: Receive
    send: Send
    affinity: str = ""
    """The live draft that it belongs to, whose calls should stay with one provider."""
    started: float = field(default_factory=time.perf_counter)
    read_at: float = field(default_factory=time.perf_counter)
    timings: dict[bytes, float] = field(default_factory=dict)
    """Seconds by stage, as ``Server-Timing`` names the stages."""
    caller: str = ""
    """The name of the caller's key (``server.client_keys``); "": it has none."""
    body: bytes = b""
    prepared: Prepared = _UNREAD
    page_headers: Headers = ()
    """Headers for browsers, which every response to this request carries."""
    lookup: Lookup = _MISS
    begin_by: float | None = None
    """The time by which the first byte must be sent, in the event loop's time."""
    deadline: float | None = None
    """The time by which the whole answer must be sent."""
    retry_from: float | None = None
    """From this time on a client that leaves has given up, and its SDK will retry.

    None: never.
    """
    flight: Flight | None = None
    """The upstream call whose answer it gets."""
    app_call: AppUpstream | None = None
    """The call of the wrapped app that it began and waits for."""
    claim: LeaseClaim | None = None
    """What its lookup found out about equal calls of other processes."""
    retry_reader: FlightReader | None = None
    """Its second reader in the flight, which waits for the retry of the client's SDK."""
    origin: Origin | None = None
    """The source of its answer."""
    upstream: str = ""
    status: int = 0
    chain: Chain | None = None
    """The kept answers that it refers to."""
    answer_id: str = ""
    """The id under which a stored answer is sent."""
    first_byte: float | None = None
    total_s: float | None = None
    upstream_s: float | None = None
    stored: bool = False
    delivered: bool = False
    """The client has the whole answer, so it may leave."""
    error: str | None = None
    cut_off: bool = False
    """Its answer has no end, because the provider's stream broke off."""
    held_out: Entry | None = None
    not_stored: str | None = None
    """The reason why the answer is not stored."""
    attempts: tuple[Attempt, ...] = ()
    """The upstream calls that this request itself caused."""
    items: int = 0
    """The number of its items, if each is cached alone."""
    item_hits: int = 0
    """The number of its items that the cache had."""
    partly_saved: Origin | None = None
    """The cost of the items that the cache had, if others were asked for."""

    def limit(self, configured: float | None) -> None:
        """Limit the time until the first byte, and until the whole answer.

        Both count from the end of the body. Raises InvalidRequest.
        """
        found = deadlines(self.scope["headers"], configured)
        begin_s, whole_s = found.begin_s, found.whole_s
        since_s = time.perf_counter() - self.read_at
        read_at = asyncio.get_running_loop().time() - since_s
        self.begin_by = None if begin_s is None else read_at + begin_s
        self.deadline = None if whole_s is None else read_at + whole_s
        if begin_s is not None and found.again:
            self.retry_from = read_at + GAVE_UP_SHARE * begin_s

    @property
    def will_retry(self) -> bool:
        """Whether its SDK has waited for its whole timeout without an answer, so it will retry."""
        if self.retry_from is None or self.status:
            return False
        return asyncio.get_running_loop().time() >= self.retry_from

    @property
    def succeeded(self) -> bool:
        """The client has a whole answer."""
        return self.error is None and 200 <= self.status < 300

    def without_client(self, id: str) -> RequestContext:
        """Return the same request for a call that no client waits for: ``UNATTENDED_S`` bounds it.

        It has a scope and a ``state`` of its own, because an app writes into them.
        """
        asked = copy.copy(self)
        asked.id, asked.scope = id, dict(self.scope)
        if "state" in asked.scope:
            asked.scope["state"] = dict(asked.scope["state"])
        asked.begin_by = asked.deadline = None
        return asked

    def call(
        self,
        *,
        editable: bool,
        predicts: bool = False,
        body: bytes | None = None,
        checks: bool = False,
    ) -> Call:
        """Return the call for an upstream.

        ``predicts``: the call has the answer to a similar prompt, as a prediction for providers
        that take one. ``body`` replaces the client's body. ``checks``: the answer checks a
        hit, so no other cache may give it.
        """
        pair, document, scope = self.lookup.pair, self.endpoint.document, self.scope
        request = self.prepared.request
        sent = self.body if body is None else body
        # A provider also reads the text that an id refers to.
        read = sent if self.chain is None else self.chain.whole
        headers = tuple(scope["headers"])
        if checks or self.held_out is not None:
            headers = (*headers, (b"cache-control", b"no-cache"))
        output_tokens = None if pair is None else pair.entry.origin.completion_tokens or None
        if document is not None:  # a call that is not a chat has no text
            output_tokens = 0
        near = predicts and pair is not None and (self.lookup.similarity or 0.0) >= HINT_SIMILARITY
        return Call(
            self.id,
            scope["method"],
            self.path,
            scope["query_string"],
            headers,
            sent,
            self.endpoint.wire,
            self.endpoint.name,
            caller=self.caller,
            route=self.prepared.route,
            request=request,
            model="" if request is None or document is None else request.model,
            editable=editable,
            deadline=self.deadline,
            begin_by=self.begin_by,
            affinity=self.affinity,
            prompt_tokens=max(len(sent), len(read)) // BYTES_PER_TOKEN,
            output_tokens=output_tokens,
            prediction=answer_text(pair.entry.answer) if near and pair is not None else "",
        )

    def elapsed(self) -> float:
        """Return the seconds since the request arrived."""
        return time.perf_counter() - self.started

    def mark_first_byte(self) -> None:
        """Note that the first content byte goes to the client now."""
        if self.first_byte is None:
            self.first_byte = time.perf_counter() - self.started

    def own_call(self, flight: Flight, outcome: Outcome, id: str, now: float) -> Served:
        """Return the row of a call that no client of this request waited for."""
        origin, request = flight.origin, self.prepared.request
        total_s = time.perf_counter() - flight.began if origin is None else origin.total_s
        if flight.reply is not None:
            status = flight.reply.status
        else:
            status = flight.attempts[-1].status if flight.attempts else 0
        return Served(
            id=id,
            at=now - total_s,
            endpoint=self.endpoint.name,
            outcome=outcome,
            status=status,
            stream=request is not None and request.stream,
            total_s=total_s,
            scope=self.prepared.scope,
            caller=self.caller,
            tags=booked_tags(self.prepared.tags),
            route=self.prepared.route,
            model="" if request is None else request.model,
            upstream="" if flight.reply is None else flight.reply.upstream,
            prompt_tokens=0 if origin is None else origin.prompt_tokens,
            completion_tokens=0 if origin is None else origin.completion_tokens,
            cost_usd=total_cost_usd(flight.attempts),
            attempts=flight.attempts,
            estimated=origin is not None and origin.estimated,
            stored=flight.stored,
        )

    def served(self, now: float) -> Served:
        """Return the row for the books. ``now`` is in Unix seconds."""
        elapsed = time.perf_counter() - self.started
        total_s = elapsed if self.total_s is None else self.total_s
        prepared, lookup, origin, attempts = self.prepared, self.lookup, self.origin, self.attempts
        request, outcome, timings = prepared.request, lookup.outcome, self.timings
        stream = request is not None and request.stream
        read_s = self.read_at - self.started
        # Few rows have these fields. A constructor that gets all fields by name takes 6 µs.
        shaped = self.flight.shaped if attempts and self.flight is not None else ()
        has_rare = self.caller or self.error or self.not_stored or prepared.tags or shaped
        rare = self._rare_fields(shaped) if has_rare else {}
        if origin is not None and origin.estimated:
            rare["estimated"] = True
        entry, pair, held_out = lookup.entry, lookup.pair, self.held_out
        if entry is not None or held_out is not None:
            rare["entry"] = (entry or held_out).id  # type: ignore[union-attr]
            rare["holdout"] = held_out is not None
        if lookup.encode_s or lookup.similarity is not None or lookup.veto is not None:
            rare["encode_s"] = lookup.encode_s
            rare["similarity"], rare["veto"] = lookup.similarity, lookup.veto
        if pair is not None:
            rare["neighbor"], verdict = pair.entry.id, pair.verdict
            if verdict is not None:
                rare["rule"], rare["score"] = verdict.rule, verdict.score
                rare["threshold"] = verdict.threshold
        avoided = self.partly_saved or (origin if outcome is JOINED else None)
        if entry is not None:  # a hit saves the original call's figures less its own
            avoided = entry.origin
            own_s = (self.first_byte or total_s) - read_s
            if not stream:  # a whole answer's first token is at its end
                rare["saved_ttft_s"] = avoided.total_s - own_s
            elif avoided.streamed:
                rare["saved_ttft_s"] = avoided.ttft_s - own_s
            rare["saved_total_s"] = avoided.total_s - (total_s - read_s)
        if avoided is not None:
            tokens = avoided.prompt_tokens + avoided.completion_tokens + avoided.extra_tokens
            rare["saved_tokens"], rare["saved_usd"] = tokens, avoided.cost_usd
            rare["saved_extra_usd"] = avoided.extra_usd
            rare["saved_prefix_usd"] = avoided.prefix_usd
        return Served(
            self.id,
            now - elapsed,
            self.endpoint.name,
            outcome,
            self.status,
            stream,
            total_s,
            self.first_byte,
            prepared.scope,
            model="" if request is None else request.model,
            upstream=self.upstream,
            reason=lookup.reason,
            domain="" if outcome is BYPASS else prepared.match_context.domain,
            lookup_s=timings.get(b"lookup", 0.0),
            upstream_s=self.upstream_s,
            prompt_tokens=0 if origin is None else origin.prompt_tokens,
            completion_tokens=0 if origin is None else origin.completion_tokens,
            cost_usd=total_cost_usd(attempts) if attempts else None if origin is None else 0.0,
            route=prepared.route,
            attempts=attempts,
            overhead_s=sum(timings.values()) - timings.get(b"upstream", 0.0),
            stored=self.stored,
            read_s=read_s,
            **rare,
        )

    def _rare_fields(self, shaped: tuple[ShapingEffect, ...]) -> dict[str, Any]:
        """Return fields of the row that only some deployments, and failed requests, have."""
        return {
            "caller": self.caller,
            "error": self.error,
            "not_stored": None if self.stored else self.not_stored,
            "tags": booked_tags(self.prepared.tags),
            "shaped": shaped,
        }


class KeptCall(NamedTuple):
    """A call that was made before its client asked. ``reader`` keeps the call going."""

    flight: Flight
    reader: FlightReader
    context: RequestContext
    text: str
    trigger: Trigger
    """The reason why it was made."""
    discount_usd: float
    """The dollars by which a cancelled call costs less than its booked price, because its prompt
    was cached."""
    reserved_usd: float
    """The dollars that were set aside for its waste."""


def booked_tags(tags: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tags that the books keep."""
    return tuple([tag for tag in tags if len(tag) <= LONGEST_TAG][:MOST_TAGS])


class KeptCalls(Protocol):
    """The calls of live drafts."""

    def take_call(self, context: RequestContext) -> KeptCall | bytes | None:
        """Return the call that already answers a request, a body to send instead, or None."""
