"""Writes responses to clients: stored answers, answers in flight, and errors.

- A stored answer (``Responder.hit``) is sent in the form that the client asks for: its dialect, and
  as a whole or as a stream (``render``).
- An answer in flight (``Responder.send_flight``) is sent while it arrives.
- An error (``send_error``) is written in the client's dialect. Once a stream has begun, an error is
  its last event (``_last_message``).

For example, a client asks for a stream and gets a hit::

    200, content-type: text/event-stream, cache-status: headstart; hit; ttl=3600; detail=exact
    data: {"choices": [{"delta": {"content": "Paris"}}], …}
    data: [DONE]

``own_headers`` are on every response. ``_relayed`` chooses the headers of an upstream that pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import time
from collections import OrderedDict
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import anyio
import msgspec

from headstart.attempts import Tokens, sum_costs
from headstart.decisions import BYPASS, JOINED, Lookup, Outcome
from headstart.dialects.registry import in_dialect
from headstart.dialects.responses_chains import own_id
from headstart.errors import (
    HeadstartError,
    OverLimit,
    RequestError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamUnavailable,
    booked_code,
)
from headstart.middleware.body import end_unanswered, replay_body, watch
from headstart.middleware.flights import OWN_ALONE, Flight, FlightReader
from headstart.middleware.request_context import RETRY_GRACE_S, RequestContext
from headstart.middleware.translated_reading import EventNumbers
from headstart.middleware.upstreams.app import END_S
from headstart.middleware.upstreams.outgoing import OWN_PREFIX
from headstart.policies.callers import NameMemo, NamesMemo, picker
from headstart.types import Completion, RawResponse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from headstart.dialects.dialect import Dialect, Rendered
    from headstart.middleware.concurrency import Spawn
    from headstart.reply import Reply
    from headstart.types import ASGIApp, ChatRequest, Entry, Headers, Message, Origin, Scope, Send

HeaderList: TypeAlias = "list[tuple[bytes, bytes]]"
Compose: TypeAlias = "Callable[[Flight, Reply, bytes | None], Awaitable[bytes | None]]"
"""Makes the answer for a client from the answer of a flight (None: it is too long to be kept)."""
JSON = b"application/json"
NO_STORE = (b"cache-control", b"no-store")
STREAM_HEADERS = ((b"cache-control", b"no-cache, no-transform"), (b"x-accel-buffering", b"no"))
"""They ask proxies not to collect the pieces of a stream. Express would, to compress them."""
SANDBOX: Headers = (
    (b"content-security-policy", b"default-src 'none'; sandbox"),
    (b"x-content-type-options", b"nosniff"),
)
"""Headers of all answers of providers, so that a document of a provider cannot run scripts.

The document would have the same origin as the admin API.
"""
HEARTBEAT_S = 10.0
"""Seconds between two comments while a client that got status 200 waits for its answer."""
StoredResponse: TypeAlias = "tuple[Headers, bytes, int]"
"""Headers, body and status of a stored answer in the form in which it is sent."""


class NotForOthers(Exception):
    """The answer of a flight must not be shared: it is only for the request that began it."""


@dataclass(eq=False, repr=False)
class Responder:
    """Sends answers over ASGI. It notes in the context what was sent, and when.

    ``names_requests``: add to a hit the header in which clients look for the request's id. It is
    off for a wrapped app, whose other middleware may add an id of its own.
    """

    answers: RenderedAnswers
    spawn: Spawn
    _: KW_ONLY
    names_requests: bool = True

    def render(self, context: RequestContext, entry: Entry, now: float) -> StoredResponse:
        """Return a stored answer, whole or as a stream, as the request asks."""
        answer, dialect, request = entry.answer, context.endpoint.dialect, context.prepared.request
        if isinstance(answer, RawResponse):
            kept = with_page_headers(answer.headers, context.page_headers)
            return (*kept, NO_STORE), answer.body, answer.status
        assert dialect is not None
        assert request is not None
        # An entry of another dialect is plain text, and fits.
        is_native = entry.dialect in ("", dialect.name)
        fitted = fit(answer, request) if is_native else answer
        if fitted is answer:
            rendered = self.answers.rendered(entry, dialect)
        else:
            rendered = dialect.render(with_estimate(fitted, entry.origin, dialect))
        # A semantic hit gets its own id, because clients take equal ids for the same answer.
        keeps_id = dialect.names_answers and context.lookup.outcome is Outcome.EXACT
        context.answer_id = id = _named_id(dialect, entry) if keeps_id else dialect.new_id()
        kinds, created, echo = dialect.content_types, int(now), None
        if dialect.echo is not None:
            # The sent request has the whole conversation instead of the id that refers to it.
            previous = {"previous_response_id": context.chain.previous} if context.chain else {}
            echo = dialect.echo({**request.document, **previous})
        if request.stream:
            body = rendered.sse(id, created, echo, include_usage=request.include_usage)
            kind = (b"content-type", kinds.stream)
            return (kind, *STREAM_HEADERS, *context.page_headers), body, 200
        kind = (b"content-type", kinds.json)
        return (kind, NO_STORE, *context.page_headers), rendered.json(id, created, echo), 200

    async def hit(
        self, context: RequestContext, entry: Entry, response: StoredResponse, now: float
    ) -> None:
        """Send a stored answer."""
        headers, body, context.status = response
        origin = context.origin = entry.origin
        context.upstream = origin.upstream
        ttl_s = None if entry.expires is None else max(0.0, entry.expires - now)
        request = context.prepared.request
        start = own_headers(context, ttl_s=ttl_s)
        start += headers
        start += (
            (b"content-length", b"%d" % len(body)),
            (b"age", b"%d" % max(0, now - entry.created)),
        )
        if self.names_requests:
            start.append((request_id_header(context.endpoint.dialect), context.id.encode()))
        if request is not None and not request.stream:
            saved = origin.prompt_tokens + origin.completion_tokens
            start.append((b"x-headstart-tokens-saved", b"%d" % saved))
        context.first_byte = time.perf_counter() - context.started
        status = context.status
        begin = {"type": "http.response.start", "status": status, "headers": start, WITH_BODY: True}
        await context.send(begin)
        await context.send({"type": "http.response.body", "body": body, "more_body": False})

    async def send_flight(
        self,
        context: RequestContext,
        flight: Flight,
        early_200_s: float | None = None,
        compose: Compose | None = None,
    ) -> None:
        """Join a flight and send its answer as it arrives; a JSON answer is sent whole.

        Raises ClientGone, or, if nothing was sent yet, NotForOthers or the error of the flight. A
        streaming client gets its status after ``early_200_s`` at the latest, if its dialect has
        comments, which then follow until the answer comes. ``compose`` makes the client's answer
        from the flight's whole answer.
        """
        reader = flight.join(context.begin_by)
        context.flight = flight
        try:
            receive = context.receive
            # The sidecar's server tells that the client leaves. Of other servers a task asks it.
            when_gone = getattr(receive, "when_gone", None)
            watcher = (
                when_gone(reader.gone) if when_gone else self.spawn(watch, receive, reader.gone)
            )
            try:
                if early_200_s is None or _heartbeat(context) is None:
                    reply: Reply | None = await reader.reply()
                else:
                    reply = await _reply_within(early_200_s, reader)
                if reply is None:
                    await self._send_early(context, flight, reader)
                else:
                    await self._send_begun(context, flight, reader, reply, compose)
            finally:
                watcher.cancel()
        finally:
            if not flight.done and flight.clients == 1 and context.will_retry:
                # The client has left, and its SDK will ask again: a reader keeps the call alive.
                context.retry_reader = flight.join()
                flight.leave(reader)
            else:
                await reader.leave(context)

    async def _send_begun(
        self,
        context: RequestContext,
        flight: Flight,
        reader: FlightReader,
        reply: Reply,
        compose: Compose | None,
    ) -> None:
        """Send an answer that has begun, as it arrives; a document whole."""
        if context.lookup.outcome is JOINED and reply.not_stored in OWN_ALONE:
            raise NotForOthers  # the request then makes a call of its own
        _note_reply(context, flight, reply)
        if _is_document(context, reply):
            body = await reader.read_all()
            if compose is not None:
                body = await compose(flight, reply, body)
            if body is not None:
                return await self._send_document(context, flight, reply, body)
        send, dialect = context.send, context.endpoint.dialect
        headers = _flight_headers(context, reply, not_stored=reply.not_stored)
        await _start(context, reply.status, headers)
        _bound_whole(context, reader)
        try:
            while data := await reader.read():
                if context.first_byte is None and flight.first_content is not None:
                    context.first_byte = time.perf_counter() - context.started
                more = not (flight.ended and reader.at_end)
                await send({"type": "http.response.body", "body": data, "more_body": more})
                if not more:
                    return
        except (RequestError, UpstreamError) as error:
            if not reply.is_stream or dialect is None:
                raise
            return await send(_last_message(context, error, dialect, reply))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_document(
        self, context: RequestContext, flight: Flight, reply: Reply, body: bytes
    ) -> None:
        if flight.first_content is not None:
            context.timings[b"upstream"] = flight.first_content - flight.began
        context.mark_first_byte()
        # The length that an app states is passed on, so that a wrong length is noticed.
        length = len(body) if context.endpoint.wire else None
        headers = _flight_headers(
            context, reply, stored=flight.stored, not_stored=flight.not_stored, length=length
        )
        origin = flight.origin
        joined = context.lookup.outcome is JOINED
        if origin is not None and origin.cost_usd is not None and not joined:
            headers.append((b"x-headstart-cost", b"%.8f" % origin.cost_usd))
            if extra_usd := sum_costs(flight.attempts).extra_usd:
                headers.append((b"x-headstart-extra-cost", b"%.8f" % extra_usd))
        await _start(context, reply.status, headers, with_body=True)
        await context.send({"type": "http.response.body", "body": body, "more_body": False})

    async def _send_early(
        self, context: RequestContext, flight: Flight, reader: FlightReader
    ) -> None:
        """Send 200 before the answer comes, and comments until it comes. Errors become events."""
        dialect, heartbeat = context.endpoint.dialect, _heartbeat(context)
        assert dialect is not None
        kind = (b"content-type", dialect.content_types.stream)
        headers = [kind, *STREAM_HEADERS, *own_headers(context), *context.page_headers]
        await _start(context, 200, headers)
        body: Message = {"type": "http.response.body", "body": heartbeat, "more_body": True}
        await context.send(body)
        _bound_whole(context, reader)
        try:
            while (reply := await _reply_within(HEARTBEAT_S, reader)) is None:
                await context.send(body)
            _note_reply(context, flight, reply)
            if not (reply.is_stream and reply.is_plain):
                raise UpstreamProtocolError("the upstream's answer is not an event stream")
            while data := await reader.read():
                context.mark_first_byte()
                await context.send({**body, "body": data})
        except (RequestError, UpstreamError) as error:
            return await context.send(_last_message(context, error, dialect, flight.reply))
        await context.send({**body, "body": b"", "more_body": False})

    async def through_app(
        self, context: RequestContext, app: ASGIApp, *, complete: bool = True
    ) -> None:
        """Call the wrapped app without the cache, and add our headers.

        ``complete`` is False if the context has only the beginning of the request's body.
        """
        own = own_headers(context)

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.status = message["status"]
                theirs = [(name.lower(), value) for name, value in message.get("headers", ())]
                message = {**message, "headers": [*theirs, *own]}
            elif message["type"] == "http.response.body" and message.get("body"):
                context.mark_first_byte()
            await context.send(message)

        context.upstream = "app"
        receive = replay_body(context.body, context.receive, complete=complete)
        await app(context.scope, receive, send)


# --- stored answers -------------------------------------------------------------------------------


class RenderedAnswers:
    """The rendered answers of the entries that were used last, up to ``max_bytes`` in all."""

    def __init__(self, max_bytes: int = 32 * 2**20) -> None:
        self._max = max_bytes
        self.nbytes = 0
        """The bytes of all rendered answers that are kept."""
        self._rendered: OrderedDict[tuple[str, str], Rendered] = OrderedDict()

    def rendered(self, entry: Entry, dialect: Dialect) -> Rendered:
        """Return the entry's answer in a dialect. Raises TypeError for a raw answer."""
        key = (entry.id, dialect.name)
        rendered = self._rendered.get(key)
        if rendered is not None:
            self._rendered.move_to_end(key)
            return rendered
        answer = in_dialect(entry, dialect.name)
        if answer.usage is None:
            answer = with_estimate(answer, entry.origin, dialect)
        rendered = dialect.render(answer)
        self._rendered[key] = rendered
        self.nbytes += rendered.nbytes
        while self.nbytes > self._max:
            _, oldest = self._rendered.popitem(last=False)
            self.nbytes -= oldest.nbytes
        return rendered


def _named_id(dialect: Dialect, entry: Entry) -> str:
    """Return the id of a stored answer, for clients whose later requests refer to it.

    An equal conversation always gets the same id: the provider's, or one made from the entry.
    """
    known = None
    if entry.dialect in ("", dialect.name) and not isinstance(entry.answer, RawResponse):
        known = dialect.known_id(entry.answer)
    return known or own_id(entry.id)


def fit(answer: Completion, request: ChatRequest) -> Completion:
    """Return the stored answer without choices and log probabilities that were not asked for."""
    choices = answer.choices
    if len(choices) <= request.choices:
        if request.logprobs:
            return answer
        for choice in choices:
            if choice.logprobs:
                break
        else:
            return answer
    choices = choices[: request.choices]
    if not request.logprobs:
        choices = tuple(msgspec.structs.replace(choice, logprobs=None) for choice in choices)
    return msgspec.structs.replace(answer, choices=choices)


def with_estimate(answer: Completion, origin: Origin, dialect: Dialect) -> Completion:
    """Return an answer with its estimated usage, if it came as a stream without usage.

    Clients expect the usage in answers that are not streamed.
    """
    if answer.usage is not None or not origin.streamed:
        return answer
    tokens = Tokens(origin.prompt_tokens, origin.completion_tokens)
    return msgspec.structs.replace(answer, usage=dialect.usage(tokens))


# --- answers in flight ----------------------------------------------------------------------------


async def _reply_within(seconds: float, reader: FlightReader) -> Reply | None:
    """Wait for status and headers. Return None if they do not come in time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await reader.reply()
    return None


def _note_reply(context: RequestContext, flight: Flight, reply: Reply) -> None:
    """Note the upstream of an answer that has begun, and whether another process made the call."""
    context.upstream = reply.upstream
    if flight.followed:
        context.lookup = Lookup(outcome=JOINED)


def _bound_whole(context: RequestContext, reader: FlightReader) -> None:
    """Let the time limit for the whole answer apply to an answer that has begun."""
    if context.begin_by != context.deadline:
        reader.set_deadline(context.deadline)


def _heartbeat(context: RequestContext) -> bytes | None:
    """Return a comment that keeps a streaming client waiting, if its dialect has comments."""
    dialect, request = context.endpoint.dialect, context.prepared.request
    if dialect is None or request is None or not request.stream:
        return None
    return dialect.heartbeat


def _is_document(context: RequestContext, reply: Reply) -> bool:
    """Return whether the answer is sent whole, so that its headers can tell whether it is stored.

    This is a JSON answer in a dialect, or a JSON answer of an app that knows its length and so has
    it whole.
    """
    if context.endpoint.wire:
        return not reply.is_stream
    theirs = dict(reply.headers)
    return b"content-length" in theirs and theirs.get(b"content-type", b"").startswith(JSON)


# --- errors, clients that leave, and answers that break off ---------------------------------------


async def send_error(context: RequestContext, error: HeadstartError) -> None:
    """Answer with an error in the caller's dialect, or with the provider's own error."""
    if isinstance(error, UpstreamRefused):
        status, body = error.status, error.body
        headers = _relayed(context, error.headers, length=len(body))
        context.upstream = error.upstream or context.upstream
    else:
        status, headers, body = error_response(
            error, context.endpoint.dialect, context.id, again=context.retry_reader is not None
        )
        headers += context.page_headers
    headers += own_headers(context, not_stored=context.not_stored)
    if context.upstream:
        headers.append((b"x-headstart-upstream", context.upstream.encode()))
    context.status = status
    await send_whole(context.send, status, headers, body)


def error_response(
    error: HeadstartError, dialect: Dialect | None, request_id: str, *, again: bool = False
) -> tuple[int, HeaderList, bytes]:
    """Return status, headers and body of an error, in the caller's dialect.

    The caller of this function adds our own headers, because a matched request has more of them
    than a relayed one. ``again``: the call goes on, and a retry will join it.
    """
    status = error.status if isinstance(error, (RequestError, UpstreamError)) else 500
    if dialect is not None:
        body = dialect.error_body(error, request_id)
    else:
        body = plain_error(getattr(error, "code", "error"), str(error))
    headers = [*json_headers(body), (request_id_header(dialect), request_id.encode()), NO_STORE]
    if isinstance(error, UpstreamUnavailable):
        wait_s = 1.0 if error.retry_after_s is None else error.retry_after_s
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(wait_s))))
    elif isinstance(error, OverLimit):
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))))
        headers.append((b"x-should-retry", b"false" if error.lasts else b"true"))
    elif isinstance(error, UpstreamError):
        if again or not error.sdk_may_retry:
            headers.append((b"x-should-retry", b"true" if again else b"false"))
    elif status in (429, 503):
        headers.append((b"retry-after", b"1"))
    return status, headers, body


def request_id_header(dialect: Dialect | None) -> bytes:
    """Return the header in which a dialect's clients expect the request's id."""
    return b"x-request-id" if dialect is None else dialect.request_id_header


def plain_error(code: str, message: str) -> bytes:
    """Return an error body in JSON for a path that has no dialect."""
    return msgspec.json.encode({"error": {"message": message, "type": code, "code": code}})


async def end_left(context: RequestContext, send: Send) -> None:
    """Note that the client has left, and end the request if its answer has not begun."""
    if not context.delivered:
        context.error = "client-gone"
        context.status = context.status or await end_unanswered(send)


async def end_app(context: RequestContext) -> None:
    """Wait a little for the wrapped app of a request that the stopping server cancels.

    The server may stop the event loop next. A task that is still in the loop would keep its threads
    alive, and so the process.
    """
    if context.app_call is not None:
        await context.app_call.ended(END_S)


async def leave_to_retry(context: RequestContext, reader: FlightReader) -> None:
    """Keep a call alive for the client's retry, by a reader that leaves later.

    The reader leaves if no retry comes in time, or if it is not needed any more: the answer is
    whole, has failed, or is too long to be joined.
    """
    try:
        with anyio.move_on_after(RETRY_GRACE_S), contextlib.suppress(HeadstartError):
            await reader.read_all()
    finally:
        await reader.leave(context)


CUT_OFF = "headstart.cut_off"
"""The key of the last message of an answer that is left without its end. Servers ignore it."""
CUT_OFF_AFTER_S = 0.2
"""Time from a stream's error event to the end of its connection. Some clients lose the event if
both come together."""
UNENDED = {"type": "http.response.body", "body": b"", "more_body": True, CUT_OFF: True}
"""The last message of a relayed answer that is left without its end."""
_BREAKING_SERVERS = {
    "anycorn": "1",
    "granian": "12",
    "gunicorn": "1",
    "httpx": "",
    "httpx2": "",
    "hypercorn": "1",
    "uvicorn": "1",
}
"""Servers that break off an answer without an end at once, with at most one line in the log, and
the versions of HTTP for which they do. Other servers leave their clients waiting (daphne, pyvoy;
hypercorn over HTTP/2), and httpx's transport for apps fails."""


def server_breaks_off(scope: Scope) -> bool:
    """Tell whether the server breaks off an answer that the app leaves without its end.

    ASGI leaves this to the server, and does not name the server. Its functions run this code, and
    those of a transport or a test client for apps may run inside of them. These do not tell which
    version of ASGI they speak; the servers do.
    """
    if "spec_version" not in scope.get("asgi", ()):
        return False
    frame = inspect.currentframe()
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        versions = _BREAKING_SERVERS.get(package)
        if versions is not None:
            return scope.get("http_version", "1.1")[0] in versions
        frame = frame.f_back
    return False


def _last_message(
    context: RequestContext, error: HeadstartError, dialect: Dialect, reply: Reply | None
) -> Message:
    """Note that a stream broke off, and return its last event: the provider's own, if any.

    Some clients overlook our event, and would take the answer for whole. So the answer has no end
    if the server then breaks it off.
    """
    context.error = booked_code(error)
    error.forget_frames()
    message = {"type": "http.response.body", "more_body": False}
    numbers = EventNumbers(b"" if reply is None else reply.transcript.numbered)
    if isinstance(error, UpstreamRefused) and error.event:
        return {**message, "body": numbers.feed(error.event)}
    message["body"] = numbers.feed(dialect.error_frame(error, context.id))
    if server_breaks_off(context.scope):
        context.cut_off = message["more_body"] = message[CUT_OFF] = True
    return message


# --- headers (``docs/headers.md``) ---------------------------------------------------------------

_OWN_ANYWHERE = frozenset((b"cache-status", b"x-cache"))
_OWN = _OWN_ANYWHERE | {b"age", b"server-timing"}
_is_own_anywhere = NameMemo(lambda name: name in _OWN_ANYWHERE or name.startswith(OWN_PREFIX))
_is_own = NameMemo(lambda name: name in _OWN or name.startswith(OWN_PREFIX))
_ABOUT_THE_ORIGIN = frozenset(
    b"accept-ch alt-svc clear-site-data critical-ch date nel report-to reporting-endpoints server "
    b"service-worker-allowed strict-transport-security".split()
)
"""Headers of a provider that are about its own host and port. In our answers they would be about
ours: some send clients to another port, or the error reports of browsers to the provider. Our ASGI
server writes its own ``date`` and ``server``, and an answer may have each only once (RFC 9110)."""
_SANDBOX_NAMES = _ABOUT_THE_ORIGIN.union(name for name, _ in SANDBOX)
_FORWARDS = frozenset(("stale", "partial"))
"""Reasons of a miss that are values of ``fwd`` in RFC 9211."""
_HITS = {Outcome.EXACT: b"exact", Outcome.SEMANTIC: b"semantic"}
_X_CACHE = {Outcome.EXACT: b"HIT", Outcome.SEMANTIC: b"HIT", Outcome.BYPASS: b"BYPASS"}


def own_headers(
    context: RequestContext,
    *,
    ttl_s: float | None = None,
    stored: bool = False,
    not_stored: str | None = None,
) -> HeaderList:
    """Return the headers that every answer of a matched request carries."""
    lookup = context.lookup
    times = [b"%b;dur=%.2f" % (name, s * 1e3) for name, s in context.timings.items()]
    headers = [
        (b"cache-status", _cache_status(lookup, ttl_s, not_stored, stored=stored)),
        (b"x-cache", _X_CACHE.get(lookup.outcome, b"MISS")),
        (b"x-headstart-request-id", context.id.encode()),
        (b"server-timing", b", ".join(times)),
    ]
    if lookup.similarity is not None:
        headers.append((b"x-headstart-similarity", b"%.4f" % lookup.similarity))
    if lookup.veto is not None:
        headers.append((b"x-headstart-veto", lookup.veto.encode()))
    if context.items:
        headers.append((b"x-headstart-item-hits", b"%d/%d" % (context.item_hits, context.items)))
    return headers


def _cache_status(
    lookup: Lookup, ttl_s: float | None, not_stored: str | None, *, stored: bool
) -> bytes:
    """Return the ``Cache-Status`` value (RFC 9211) of an answer.

    The RFC has one word, ``detail``, for both reasons: why nothing was found and why nothing is
    stored.
    """
    hit = _HITS.get(lookup.outcome)
    if hit is not None:
        ttl = b"" if ttl_s is None else b"; ttl=%d" % ttl_s
        return b"headstart; hit%b; detail=%b" % (ttl, hit)
    if lookup.outcome is JOINED:
        return b"headstart; fwd=miss; collapsed; detail=" + (lookup.reason or "joined").encode()
    forward = "bypass" if lookup.outcome is BYPASS else "miss"
    if lookup.reason in _FORWARDS:
        forward = lookup.reason
    detail = lookup.reason or ""
    if not_stored is not None:
        detail += f"{'/' if detail else ''}not-stored:{not_stored}"
    detail = f"; detail={detail}" if detail else ""
    return f"headstart; fwd={forward}{detail}{'; stored' if stored else ''}".encode()


def _flight_headers(
    context: RequestContext,
    reply: Reply,
    *,
    stored: bool = False,
    not_stored: str | None = None,
    length: int | None = None,
) -> HeaderList:
    """Return the headers of an upstream's answer."""
    theirs = reply.headers
    if context.lookup.outcome is JOINED:  # cookies are only for the caller that came first
        theirs = tuple(pair for pair in theirs if pair[0] != b"set-cookie")
    headers = _relayed(context, theirs, stream=reply.is_stream, length=length)
    headers += own_headers(context, stored=stored, not_stored=not_stored)
    headers.append((b"x-headstart-upstream", reply.upstream.encode()))
    if reply.transforms:
        headers.append((b"x-headstart-transforms", ",".join(reply.transforms).encode()))
    return headers


def allowed_headers(headers: Headers) -> HeaderList:
    """Return the headers of a relayed answer without those that only we may set.

    With these, an upstream (which may be another Headstart) could claim that the answer was a hit,
    and its similarity or source. The cache was not asked, so the upstream may send an age and a
    timing.
    """
    return [pair for pair in headers if not _is_own_anywhere[pair[0]]]


class _HeaderPlan(msgspec.Struct, frozen=True):
    """Which headers of an upstream a client gets. This depends only on their names.

    An upstream always sends the same names, so each plan is made once, and remembered.
    """

    pick: Callable[[Headers], Headers]
    """Takes the headers for the client out of all headers."""
    added: Headers
    """Our headers that the upstream did not send."""
    cache_control: int | None
    """The place of a stream's ``cache-control`` in the result, if the upstream sent it."""


def _plan_headers(
    names: tuple[bytes, ...], *, stream: bool, sized: bool, replaced: Callable[[bytes], bool]
) -> _HeaderPlan:
    """Return the plan for headers of these names. ``sized``: their length is replaced by ours."""
    drops_length = stream or sized
    places = [
        place
        for place, name in enumerate(names)
        if not (_is_own[name] or replaced(name) or (drops_length and name == b"content-length"))
    ]
    kept = [names[place] for place in places]
    ours = STREAM_HEADERS if stream else (NO_STORE,)
    return _HeaderPlan(
        picker(places),
        tuple([pair for pair in ours if pair[0] not in names]),
        kept.index(b"cache-control") if stream and b"cache-control" in kept else None,
    )


_NO_PAGE, _ANY_PAGE, _ALLOWED_PAGE = 0, len(SANDBOX), len(SANDBOX) + 1
"""Numbers of our headers for browsers: none if an app is wrapped, those of ``SANDBOX``, or more, by
which the page of an allowed origin may read the answer."""


def _replaced_by(added: int) -> Callable[[bytes], bool]:
    """Return a function that tells whether this number of our headers replaces a header."""
    if added >= _ALLOWED_PAGE:
        return lambda name: name in _SANDBOX_NAMES or name.startswith(b"access-control-")
    return _SANDBOX_NAMES.__contains__ if added else lambda _: False


_plans = {
    (stream, sized, added): NamesMemo(
        partial(_plan_headers, stream=stream, sized=sized, replaced=_replaced_by(added))
    )
    for stream in (False, True)
    for sized in (False, True)
    for added in (_NO_PAGE, _ANY_PAGE, _ALLOWED_PAGE)
}


def _relayed(
    context: RequestContext, headers: Headers, *, stream: bool = False, length: int | None = None
) -> HeaderList:
    """Return an upstream's headers for the client, without our own.

    ``length`` is the length of a body that is sent whole. A stream has no length, because an error
    of ours follows if it breaks off.
    """
    added = min(len(context.page_headers), _ALLOWED_PAGE)
    names = tuple([name for name, _ in headers])
    plan = _plans[stream, length is not None, added][names]
    relayed = [*plan.pick(headers)]
    if (place := plan.cache_control) is not None and b"no-transform" not in relayed[place][1]:
        relayed[place] = (b"cache-control", relayed[place][1] + b", no-transform")
    relayed += context.page_headers
    relayed += plan.added
    if length is not None:
        relayed.append((b"content-length", b"%d" % length))
    return relayed


def with_page_headers(headers: Iterable[tuple[bytes, bytes]], added: Headers) -> HeaderList:
    """Return headers with ``added``, which replace an upstream's headers of the same names."""
    if not added:
        return [*headers]
    is_replaced = _replaced_by(len(added))
    kept = [pair for pair in headers if not is_replaced(pair[0])]
    kept += added
    return kept


WITH_BODY = "headstart.with_body"
"""The key of the message that begins an answer if the body follows at once. The sidecar's server
sends both together. Other servers ignore it."""


def json_headers(body: bytes) -> HeaderList:
    """Return the type and the length of a JSON body."""
    return [(b"content-type", JSON), (b"content-length", b"%d" % len(body))]


def response_start(status: int, headers: Iterable[tuple[bytes, bytes]]) -> Message:
    """Return the message that begins an answer.

    Its headers are a new list each time: middleware around ours appends to this list (Starlette's
    ``MutableHeaders``), so it must not be a tuple or be shared with another answer.
    """
    return {"type": "http.response.start", "status": status, "headers": [*headers]}


def _start(
    context: RequestContext, status: int, headers: HeaderList, *, with_body: bool = False
) -> Awaitable[None]:
    """Begin the answer to a request. ``headers`` are a list of its own: see ``response_start``."""
    context.status = status
    begin: Message = {"type": "http.response.start", "status": status, "headers": headers}
    if with_body:
        begin[WITH_BODY] = True
    return context.send(begin)


async def send_whole(
    send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes
) -> None:
    """Send a whole answer in two messages."""
    await send({**response_start(status, headers), WITH_BODY: True})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def answer_handshake(
    scope: Scope, send: Send, status: int, headers: HeaderList, body: bytes
) -> None:
    """Refuse a WebSocket with this answer, or, if the server cannot send it, with a plain 403."""
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    start = "websocket.http.response.start"
    await send({"type": start, "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})
