"""Relays requests to paths that are not cached: byte for byte, both bodies as streams.

For example, ``POST /v1/audio/speech`` goes to an upstream that speaks OpenAI's API, and the client
gets the sound as it comes. The steps of ``Relay.handle``:

1. ``_call`` checks the caller and the path. ``ModelLists`` answers a request for models.
2. A task (``_RelayClient``) reads the client's body, and notices when the client leaves.
3. ``_with_body`` waits for the whole body only if something in it matters: the model, the ids of
   answers, or a prompt to count. Any other body goes up as it comes.
4. ``_pass_on`` finds the ``[[route]]``, its time limit and the limits of the caller's key.
5. ``_relay_to_upstream`` asks the upstream, and ``_send_down`` passes its answer on. A request for
   a number of tokens takes ``_relay_count``: if the upstream cannot count, we estimate the number.
6. Each request becomes one row of the books (``_RelayedRequest.served``).

``KeptResponses`` answers ``GET`` and ``DELETE /v1/responses/{id}``, and ``input_items``, for
answers that are kept here. These requests are not relayed.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import KW_ONLY, dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

import msgspec

from headstart.attempts import Attempt, AttemptOutcome
from headstart.compression.tokens import count_prompt
from headstart.decisions import Outcome
from headstart.dialects.registry import DIALECTS, claiming
from headstart.dialects.requests import (
    LONGEST_MODEL,
    decode_object,
    repeats_keys,
    too_long_model,
)
from headstart.dialects.responses_chains import list_items, list_page, read_answer, read_raws
from headstart.errors import (
    Forbidden,
    HeadstartError,
    InvalidRequest,
    NoUpstream,
    RequestError,
    RequestTooLarge,
    UnknownReference,
    UpstreamError,
    UpstreamRefused,
    UpstreamTimeout,
    booked_code,
)
from headstart.middleware.body import (
    ClientGone,
    body_too_large,
    declared_length,
    end_unanswered,
    iterate_body,
    paced,
    refusing,
    watch,
)
from headstart.middleware.conversations import Conversations, refuse_compressed
from headstart.middleware.endpoints import (
    DEPLOYMENT,
    has_dot_segment,
    named_model,
    raw_path,
    with_deployment,
)
from headstart.middleware.prepare import ValueLimit
from headstart.middleware.request_context import deadlines
from headstart.middleware.respond import (
    NO_STORE,
    STREAM_HEADERS,
    UNENDED,
    allowed_headers,
    error_response,
    json_headers,
    response_start,
    send_whole,
    server_breaks_off,
)
from headstart.middleware.router import NO_ROUTE, ModelLists, Router, chat_path, model_in
from headstart.observe import Observer, Served
from headstart.policies.route_rules import RouteRule, first_rule
from headstart.policies.routing.failures import FailureKind
from headstart.types import (
    KEPT_BYTES,
    Call,
    Headers,
    Message,
    Piece,
    Receive,
    Scope,
    Send,
    Upload,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from headstart.dialects.dialect import CountForm, Dialect
    from headstart.middleware.client_ledger import ClientLedger
    from headstart.middleware.concurrency import ConcurrencyLimit, Spawn
    from headstart.middleware.identity import AccessControl
    from headstart.middleware.kept_turns import KeptTurn
    from headstart.middleware.respond import HeaderList
    from headstart.reply import Reply
    from headstart.settings import ServerSettings


PIECES_AHEAD = 4
"""Number of pieces of a request's body that are read before the upstream takes them."""


_NO_PATH = frozenset((404, 405, 501))
"""Statuses of a server that does not know a path."""
_FREE_METHODS = frozenset(("GET", "HEAD", "OPTIONS", "DELETE"))
"""Methods of requests that cost nothing."""


class RelayPaths:
    """The paths that may be relayed: patterns, with or without a method."""

    def __init__(self, patterns: tuple[str, ...] = ("*",)) -> None:
        self._patterns = tuple(each if " " in each else f"* {each}" for each in patterns)

    def lists(self, method: str, path: bytes) -> bool:
        """Tell whether a pattern fits."""
        asked = f"{method} {path.decode('latin-1')}"
        return any(fnmatchcase(asked, pattern) for pattern in self._patterns)

    def check(self, method: str, path: bytes) -> None:
        """Raise InvalidRequest or Forbidden unless a request may be relayed."""
        if has_dot_segment(path):
            raise InvalidRequest(
                "the path has a '.' or '..' segment, which could lead out of the upstream's "
                "base_url: send the path without it"
            )
        if not self.lists(method, path):
            raise Forbidden("this path is not cached, and server.relay_paths does not let it pass")


@dataclass(eq=False, repr=False)
class Relay:
    """Passes requests on. A request with a wrong key never reaches the upstream.

    ``router`` picks the upstreams, by the first of ``rules`` that fits. ``observer`` gets a row of
    the books for each. ``clock`` gives Unix seconds. ``concurrency`` bounds how many requests are
    relayed at once, and ``limits`` their time, their bodies and their paths. ``models`` answers
    requests for lists of models. ``kept`` checks that the answers in a body belong to the caller.
    ``ledger`` has the limits of callers' keys.
    """

    router: Router
    _: KW_ONLY
    rules: Sequence[RouteRule] = ()
    models: ModelLists
    kept: KeptResponses | None = None
    concurrency: ConcurrencyLimit
    spawn: Spawn
    clock: Callable[[], float]
    new_id: Callable[[], str]
    access: AccessControl
    ledger: ClientLedger | None = None
    limits: ServerSettings
    observer: Observer
    _models_matter: bool = field(init=False)
    _values: ValueLimit = field(init=False)
    paths: RelayPaths = field(init=False)
    """The paths that may be relayed."""

    def __post_init__(self) -> None:
        self._models_matter = any(rule.model != "*" for rule in self.rules)
        self._values = ValueLimit(self.limits.max_body_values)
        self.paths = RelayPaths(self.limits.relay_paths)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request with the upstream's answer, or with an error of our own.

        If an answer breaks off after its beginning, the server breaks off the client's answer, too.
        Raises the error for servers that would not do so otherwise.
        """
        relayed = _RelayedRequest(self.new_id(), scope, send)
        try:
            await self._relay(relayed, receive)
        except ClientGone:
            relayed.error = "client-gone"
            relayed.status = relayed.status or await end_unanswered(send)
        except (RequestError, UpstreamError) as error:
            relayed.error = booked_code(error)
            if relayed.status:
                if server_breaks_off(scope):
                    return await send({**UNENDED})
                raise
            if isinstance(error, RequestTooLarge):
                relayed.refuse(receive)
            await _refuse(relayed, error)
        finally:
            self.observer.notify(relayed.served(self.clock()))

    async def _relay(self, relayed: _RelayedRequest, receive: Receive) -> None:
        call = relayed.call = self._call(relayed.id, relayed.scope)
        if (listed := await self.models.answer(call)) is not None:
            age = () if listed.age_s is None else ((b"age", b"%d" % max(0.0, listed.age_s)),)
            return await _send_own(relayed, listed.body, b"hit; detail=models", *age)
        limit_s = deadlines(call.headers, self.limits.deadline_s).whole_s
        caller: _RelayClient | None = None
        try:
            async with asyncio.timeout(limit_s) as timer:
                caller = _RelayClient(paced(receive, self.limits.body_timeout_s), timer, limit_s)
                reading = self.spawn(caller.read)
                try:
                    async with self.concurrency:
                        await self._pass_on(relayed, call, caller)
                finally:
                    reading.cancel()
                    relayed.bytes_up, relayed.ended = caller.received, caller.ended
        except TimeoutError:
            assert caller is not None
            if caller.error is not None:  # the client left, or its body was refused
                raise caller.error from None
            raise UpstreamTimeout(
                f"the upstream did not finish within {caller.limit_s:g} s: server.deadline_s, the "
                "route's deadline_s, or the request's X-Headstart-Deadline-Ms, allows no more"
            ) from None

    def _call(self, request_id: str, scope: Scope) -> Call:
        """Return the call for the upstream. Raises RequestError if it may not be relayed."""
        caller = self.access.admit(scope)
        path = raw_path(scope)
        self.paths.check(scope["method"], path)
        if (b"upgrade", b"websocket") in [(n, v.lower()) for n, v in scope["headers"]]:
            raise InvalidRequest(
                "this server does not upgrade to a WebSocket: the ASGI server needs a WebSocket "
                "library, and the upgrade must be the first request or follow a whole answer"
            )
        headers: Headers = tuple(scope["headers"])
        dialect, named = claiming(path, headers), scope.get(DEPLOYMENT, "")
        return Call(
            id=request_id,
            method=scope["method"],
            path=path,
            query_string=scope["query_string"],
            headers=headers,
            body=b"",
            dialect=dialect.name,
            endpoint=resource_of(path),
            deployment=named,
            caller=caller,
            model=named or model_in(path, dialect),
            editable=False,
            relayed=True,
            output_tokens=0.0,
        )

    async def _pass_on(self, relayed: _RelayedRequest, call: Call, caller: _RelayClient) -> None:
        call = await self._with_body(call, caller, relayed.scope)
        if len(call.model) > LONGEST_MODEL:
            raise too_long_model()
        counting = _count_form(call)
        call = relayed.call = msgspec.structs.replace(
            call, route=self._route_of(call, is_count=counting is not None)
        )
        caller.limit(self._deadline_of(call.route, call.headers))
        if self.ledger is not None:
            relayed.add_limit_headers(self.ledger)
            is_free = counting is not None or call.method in _FREE_METHODS
            await self.ledger.admit_relayed(_with_certain_model(call), is_free=is_free)
        if counting is None:
            await self._relay_to_upstream(relayed, call)
        else:
            await self._relay_count(relayed, call, counting)

    def _route_of(self, call: Call, *, is_count: bool) -> str:
        """Return the name of the ``[[route]]``. A prompt is counted where it would be answered."""
        path = call.path.decode("latin-1")
        if is_count:
            path = chat_path(DIALECTS[call.dialect], call.model)
        return first_rule(self.rules, model=call.model, path=path, headers=call.headers).name

    async def _relay_to_upstream(self, relayed: _RelayedRequest, call: Call) -> None:
        try:
            upstream = self.router.relayed(call.dialect, call.model, call.route)
        except NoUpstream:
            # No upstream speaks this API, but the list of another API can be translated.
            if (listed := await self.models.answer_with_key(call)) is None:
                raise
            return await _send_own(relayed, listed.body, b"hit; detail=models")
        async with await upstream.send(call) as reply:
            relayed.upstream = reply.upstream
            await _send_down(relayed, call, reply)

    async def _relay_count(self, relayed: _RelayedRequest, call: Call, form: CountForm) -> None:
        """Answer a request for a number of tokens: with the upstream's count, or an estimate."""
        upstream = self.router.untranslated(call.dialect, call.model, call.route)
        if upstream is None:
            return await self._estimate(relayed, call, form)
        async with await upstream.send(call) as reply:
            relayed.upstream = reply.upstream
            if await _lacks_path(reply):
                await self._estimate(relayed, call, form)
            else:
                await _send_down(relayed, call, reply)

    async def _estimate(self, relayed: _RelayedRequest, call: Call, form: CountForm) -> None:
        """Answer a request for a number of tokens with an estimate. Raises RequestError."""
        self._values.check(call.body)
        document = decode_object(call.body)
        providers = self.router.providers_for(call.dialect, call.model, call.route)
        real = providers[0].real_name(call.model) if providers else call.model
        # The first count for a model loads its tokenizer, and a long prompt takes a while.
        tokens = await asyncio.to_thread(count_prompt, document, real)
        answer = msgspec.json.encode(form.write(tokens))
        await _send_own(relayed, answer, b"detail=counted", (b"x-headstart-estimated", b"tokens"))

    async def _with_body(self, call: Call, caller: _RelayClient, scope: Scope) -> Call:
        """Return the call with its body: whole if it must be read, else as it arrives."""
        if not _has_body(call.headers):
            return call
        kept = self.kept if self.kept is not None and self.kept.checks(call.path) else None
        if kept is not None:
            refuse_compressed(call.headers)
        must_read = kept is not None or _count_form(call) is not None
        model_decides = self._models_matter or self.router.tells_models_apart(call.dialect)
        if not (must_read or (model_decides and _is_small_json(call.headers))):
            return msgspec.structs.replace(call, upload=Upload(caller.next_piece))
        most = self.limits.max_body_bytes if must_read else KEPT_BYTES
        if must_read and (declared_length(call.headers) or 0) > most:
            raise body_too_large(most)
        body = await caller.whole_body(most)
        if kept is not None:
            await kept.check(scope, body)
        if call.deployment:
            return msgspec.structs.replace(
                call, body=with_deployment(body, call.deployment, self._values.check)
            )
        return msgspec.structs.replace(call, body=body, model=call.model or named_model(body))

    def _deadline_of(self, route: str, headers: Headers) -> float | None:
        of_route = self.router.routes.get(route, NO_ROUTE).deadline_s
        return deadlines(headers, self.limits.deadline_s if of_route is None else of_route).whole_s


class _RelayedRequest:
    """One relayed request, and its facts for the books."""

    def __init__(self, id: str, scope: Scope, send: Send) -> None:
        self.id = id
        self.scope = scope
        self.call: Call | None = None
        """None: the request may not be relayed."""
        self.status = 0
        self.error: str | None = None
        self.upstream = ""
        self.bytes_up = 0
        self.ended = False
        """The whole body has arrived."""
        self.bytes_down = 0
        self._send = send
        self._started = time.perf_counter()

    async def send(self, message: Message) -> None:
        """Send a message to the client."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.bytes_down += len(message["body"])
        await self._send(message)

    def refuse(self, receive: Receive) -> None:
        """Let the answer refuse the body."""
        unread = not self.bytes_up
        self._send = refusing(self.scope, receive, self._send, unread=unread, ended=self.ended)

    def add_limit_headers(self, ledger: ClientLedger) -> None:
        """Add headers with the rest of the caller's limits."""
        if self.call is not None:
            form = DIALECTS[self.call.dialect].limit_headers
            self._send = ledger.with_limit_headers(self._send, self.call.caller, form)

    def served(self, now: float) -> Served:
        """Return the row for the books. ``now`` is in Unix seconds."""
        elapsed_s, call = time.perf_counter() - self._started, self.call
        attempts = () if call is None else call.log.take()
        if self.error == UpstreamTimeout.code:
            # The upstreams do not know that the caller's time is over.
            attempts = tuple(map(_timed_out, attempts))
        return Served(
            id=self.id,
            at=now - elapsed_s,
            endpoint=resource_of(raw_path(self.scope)),
            outcome=Outcome.RELAY,
            status=self.status,
            stream=False,
            total_s=elapsed_s,
            model="" if call is None else call.model,
            upstream=self.upstream,
            caller="" if call is None else call.caller,
            route="" if call is None else call.route,
            error=self.error,
            attempts=attempts,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
        )


def _timed_out(attempt: Attempt) -> Attempt:
    if attempt.outcome is not AttemptOutcome.ABANDONED:
        return attempt
    return msgspec.structs.replace(
        attempt, outcome=AttemptOutcome.FAILED, error=FailureKind.TIMEOUT.value
    )


_RESOURCE = re.compile(rb"(?:/upload)?/v\d[a-z0-9]{0,8}/[a-z_]{1,32}(?![^/:])")
"""Matches the version and the kind of resource at the beginning of a path."""
_METHOD = re.compile(rb"/v1beta/.*(:[A-Za-z]{1,32})$")
"""Matches a path of Gemini's API, whose end names what is done with the resource."""


def resource_of(path: bytes) -> str:
    """Return the kind of resource that a path names, for the books.

    The resource itself may be private: ``/v1/files/file-abc/content`` becomes ``/v1/files``, and
    ``/v1beta/models/my-model:countTokens`` becomes ``/v1beta/models:countTokens``.
    """
    found = _RESOURCE.match(path)
    if found is None:
        return "other"
    method = _METHOD.match(path)
    return (found[0] + (b"" if method is None else method[1])).decode()


class _RelayClient:
    """Reads the messages of a client: the body, and then that it left.

    ``error`` is the reason why the call must end before its answer; ``timer`` ends the call.
    """

    def __init__(self, receive: Receive, timer: asyncio.Timeout, limit_s: float | None) -> None:
        self.error: HeadstartError | None = None
        self.received = 0
        """Bytes of the body."""
        self.ended = False
        self._receive = receive
        self._timer = timer
        self.limit_s = limit_s
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(PIECES_AHEAD)

    async def read(self) -> None:
        """Read until the client has left. The task is cancelled at the end of the answer."""
        try:
            async for piece in iterate_body(self._receive):
                self.received += len(piece)
                await self._pieces.put(piece)
                self._restart_timer()  # the limit counts from the last byte of an upload
            self.ended = True
            await self._pieces.put(None)
            await watch(self._receive, self._leave)
        except (ClientGone, RequestError) as error:
            self.error = error
            self._end()

    async def next_piece(self) -> bytes | None:
        """Wait for the next piece of the body; None is its end. A cancellation loses nothing."""
        return await self._pieces.get()

    async def whole_body(self, most: int) -> bytes:
        """Wait for the whole body. Raises RequestTooLarge."""
        body = bytearray()
        while (piece := await self._pieces.get()) is not None:
            body += piece
            if len(body) > most:
                raise body_too_large(most)
        return bytes(body)

    def limit(self, limit_s: float | None) -> None:
        """Set another time limit, which counts from now on."""
        if limit_s != self.limit_s:
            self.limit_s = limit_s
            self._restart_timer()

    def _restart_timer(self) -> None:
        """Let the time limit count from now on, unless the call must end already."""
        if self.error is None and not self._timer.expired():
            now = asyncio.get_running_loop().time()
            self._timer.reschedule(None if self.limit_s is None else now + self.limit_s)

    def _leave(self) -> None:
        self.error = ClientGone()
        self._end()

    def _end(self) -> None:
        if not self._timer.expired():
            self._timer.reschedule(asyncio.get_running_loop().time())


def _has_body(headers: Headers) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in headers
    )


def _count_form(call: Call) -> CountForm | None:
    """Return the form of a request for a number of tokens; None for any other request."""
    form = DIALECTS[call.dialect].count
    asks = form is not None and call.method == "POST" and form.path.fullmatch(call.path)
    return form if asks else None


async def _lacks_path(reply: Reply) -> bool:
    """Tell whether the upstream answers that it has no such path, and not that it lacks the model.

    A compressed answer is not read. The reply keeps all of its pieces.
    """
    if reply.status not in _NO_PATH or not reply.is_plain:
        return False
    pieces = reply.pieces
    first = await anext(pieces, Piece(b""))

    async def whole() -> AsyncGenerator[Piece]:
        yield first
        async for piece in pieces:
            yield piece

    reply.filter(whole())
    return b'"error"' not in first.data


def _is_small_json(headers: Headers) -> bool:
    """Tell whether a body is JSON, and states a length that may be kept."""
    kind, length = dict(headers).get(b"content-type", b""), declared_length(headers)
    is_json = kind.partition(b";")[0].strip().lower() in (b"", b"application/json")
    return is_json and length is not None and length <= KEPT_BYTES


def _with_certain_model(call: Call) -> Call:
    """Return the call, without its model if the provider may read another one than we do."""
    return msgspec.structs.replace(call, model="") if _may_name_two_models(call.body) else call


def _may_name_two_models(body: bytes) -> bool:
    """Tell whether a JSON body that was read may have the key ``model`` twice."""
    if body.count(b'"model"') < 2 and b"\\u" not in body:
        return False
    try:
        return repeats_keys(body, decode_object(body))
    except InvalidRequest:
        return True


async def _send_down(relayed: _RelayedRequest, call: Call, reply: Reply) -> None:
    """Pass an upstream's answer on to the client, as it comes."""
    headers = _headers_down(reply.headers, reply.upstream, call.id)
    if reply.transforms:
        headers.append((b"x-headstart-transforms", ",".join(reply.transforms).encode()))
    if reply.status == 304:  # a 304 may state the length of a body that it does not have
        headers = [pair for pair in headers if pair[0] != b"content-length"]
    await relayed.send(response_start(reply.status, headers))
    async for piece in reply.pieces:
        message = {"type": "http.response.body", "body": piece.data, "more_body": True}
        await relayed.send(message)
    await relayed.send({"type": "http.response.body", "body": b"", "more_body": False})


def _headers_down(headers: Headers, upstream: str, request_id: str) -> HeaderList:
    """Return an upstream's headers for the client, with our own."""
    allowed = allowed_headers(headers)
    if dict(headers).get(b"content-type", b"").startswith(b"text/event-stream"):
        allowed = _as_stream(allowed)
    return [
        *allowed,
        (b"cache-status", b"headstart; fwd=bypass; detail=relayed"),
        (b"x-headstart-request-id", request_id.encode()),
        (b"x-headstart-upstream", upstream.encode()),
    ]


def _as_stream(headers: HeaderList) -> HeaderList:
    """Return the headers of a stream with those that keep proxies from collecting it."""
    places = {name: place for place, (name, _) in enumerate(headers)}
    added = [pair for pair in STREAM_HEADERS if pair[0] not in places]
    last = places.get(b"cache-control")
    if last is None or any(n == b"cache-control" and b"no-transform" in v for n, v in headers):
        return [*headers, *added]
    told = (b"cache-control", headers[last][1] + b", no-transform")
    return [*headers[:last], told, *headers[last + 1 :], *added]


async def _send_own(
    relayed: _RelayedRequest, body: bytes, status: bytes, *more: tuple[bytes, bytes]
) -> None:
    """Answer with a JSON document of our own; ``status`` is for ``cache-status``."""
    await send_whole(relayed.send, 200, [*_headers(body, status, relayed.id), *more], body)


def _headers(document: bytes, status: bytes, request_id: str) -> HeaderList:
    return [
        *json_headers(document),
        (b"cache-status", b"headstart; " + status),
        (b"x-headstart-request-id", request_id.encode()),
    ]


async def _refuse(relayed: _RelayedRequest, error: RequestError | UpstreamError) -> None:
    """Answer with an upstream's own error, byte for byte, or ours in the client's dialect."""
    if isinstance(error, UpstreamRefused):
        relayed.upstream = error.upstream
        headers = _headers_down(error.headers, error.upstream, relayed.id)
        return await send_whole(relayed.send, error.status, headers, error.body)
    dialect = claiming(raw_path(relayed.scope), tuple(relayed.scope["headers"]))
    status, own, body = error_response(error, dialect, relayed.id)
    own.append((b"x-headstart-request-id", relayed.id.encode()))
    await send_whole(relayed.send, status, own, body)


# --- answers of Responses that we hold ------------------------------------------------------------

_PATH = re.compile(rb"/v1/+responses/+([^/]+)(/.*)?", re.IGNORECASE)
"""The paths of answers: the id, and what follows it. Some servers accept other spellings, too."""
_BELOW = re.compile(rb"/v1/+responses(/.*)?", re.IGNORECASE)
"""Paths whose bodies may name answers, such as ``/v1/responses/compact``."""
_ANSWERED = frozenset({("GET", None), ("GET", b"/input_items"), ("DELETE", None)})
"""The methods and path endings that are answered here. For others, such as ``/cancel``, only ids
are checked."""
HELD = "held"
"""The reason in the books for requests that were answered here."""
PAGE = 20
"""The number of items that ``input_items`` returns if the request names none, as at OpenAI."""
LARGEST_PAGE = 100
"""The highest number that a request may name, as at OpenAI."""


@dataclass(eq=False, repr=False)
class KeptResponses:
    """Answers requests for kept answers of the caller. ``owner`` names the caller of a request.

    An id of ours, or of another caller, that this caller does not have is answered with 404. The
    provider answers for all other ids.
    """

    conversations: Conversations
    _: KW_ONLY
    observer: Observer
    clock: Callable[[], float]
    access: AccessControl
    owner: Callable[[Scope], str | None]
    dialect: Dialect
    new_id: Callable[[], str]

    async def answer(self, scope: Scope, send: Send) -> bool:
        """Answer a request, or return False if it is to be relayed."""
        match = _PATH.fullmatch(raw_path(scope))
        if match is None or scope["method"] == "OPTIONS":
            return False
        request_id, began, at = self.new_id(), time.perf_counter(), self.clock()
        status, code, caller = 200, None, ""
        try:
            caller = self.access.admit(scope)
            id = unquote(match[1].decode("latin-1"))
            document = await self._document(scope, id, match[2])
        except HeadstartError as error:
            status, headers, body = error_response(error, self.dialect, request_id)
            code = getattr(error, "code", "error")
            await send_whole(send, status, headers, body)
        else:
            if document is None:
                return False
            headers = [*_headers(document, b"hit; detail=held", request_id), NO_STORE]
            await send_whole(send, status, headers, document)
        row = Served(
            id=request_id,
            at=at,
            endpoint=self.dialect.paths[0],
            outcome=Outcome.RELAY,
            status=status,
            stream=False,
            total_s=time.perf_counter() - began,
            caller=caller,
            reason=HELD,
            error=code,
        )
        self.observer.notify(row)
        return True

    def checks(self, path: bytes) -> bool:
        """Tell whether the body of a relayed request to a path may name answers."""
        return _BELOW.fullmatch(path) is not None

    async def check(self, scope: Scope, body: bytes) -> None:
        """Raise UnknownReference for a body that names an answer which the caller does not have."""
        await self.conversations.open(self.owner(scope), body)

    async def _document(self, scope: Scope, id: str, end: bytes | None) -> bytes | None:
        """Return the body for a request; None: the provider answers it.

        ``end`` is the part of the path after the id. Raises UnknownReference, and
        AnswersUnavailable if the store fails.
        """
        owner = self.owner(scope)
        turn = None if owner is None else await self.conversations.find(owner, id)
        if turn is None or owner is None:
            if not await self.conversations.may_ask_provider(owner, id):
                raise _not_found(id)
            return None
        if turn.deleted:
            raise _not_found(id)
        if (scope["method"], end) not in _ANSWERED:
            return None
        if scope["method"] == "DELETE":
            await self.conversations.delete(owner, turn)
            return msgspec.json.encode({"id": id, "object": "response", "deleted": True})
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        if end is not None:
            return await self._list(owner, turn, query)
        if query.get("stream") == "true":
            if turn.own:
                return None
            raise InvalidRequest("stream: an answer that Headstart keeps is sent whole")
        return turn.response

    async def _list(self, owner: str, turn: KeptTurn, query: dict[str, str]) -> bytes:
        if query.get("order", "desc") not in ("asc", "desc"):
            raise InvalidRequest("order: must be 'asc' or 'desc'")
        items: list[dict[str, Any]] = []
        for each in await self.conversations.turns_up_to(owner, turn.id) or [turn]:
            items += list_items(read_raws(each.input), each.id)
            answer = None if each is turn else read_answer(each.response)
            items += [msgspec.json.decode(raw) for raw in answer.output] if answer else []
        return msgspec.json.encode(list_page(items[::-1], query, size=PAGE, largest=LARGEST_PAGE))


def _not_found(id: str) -> UnknownReference:
    return UnknownReference(f"Response with id '{id}' not found.", status=404, param=None)
