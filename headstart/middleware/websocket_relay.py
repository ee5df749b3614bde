"""Relays WebSockets: passes messages both ways as they come, and caches none.

Each side has its own pings. If one side does not take messages, the other side is not read. The
steps of a WebSocket:

1. ``WebSocketRelay.handle`` checks the caller and the limits, and picks the upstreams.
2. ``_RelayedSocket.run`` connects to the first upstream that answers the handshake (``_connect``).
   Only then the client is accepted, so that a refusal still has an HTTP status.
3. Two tasks pass messages on, one for each direction (``_pass_up``, ``_pass_down``).
4. The first of these ends it: the client, the upstream, a time limit (``_watch``), or the stop of
   the server. Then both sides are closed, each with a code that it may get (``_close``).
5. It becomes one row of the books (``_book``).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import msgspec

from headstart.attempts import Attempt, AttemptOutcome, AttemptRole
from headstart.decisions import Outcome
from headstart.dialects.registry import ACCOUNT_HEADERS
from headstart.dialects.requests import LONGEST_MODEL, too_long_model
from headstart.errors import (
    HeadstartError,
    InvalidRequest,
    Overloaded,
    RequestError,
    ServerStopping,
    UpstreamError,
    UpstreamRefused,
    UpstreamTimeout,
    booked_code,
)
from headstart.middleware.body import ClientGone
from headstart.middleware.endpoints import raw_path
from headstart.middleware.relay import RelayPaths
from headstart.middleware.respond import allowed_headers, answer_handshake, error_response
from headstart.middleware.upstreams.accounting import classify_failure
from headstart.observe import Observer, Served, SocketTraffic
from headstart.policies.callers import is_secret
from headstart.sockets import ABNORMAL, CLOSE_S, FAILED, GOING_AWAY, RESTART, TOO_BIG, Ending
from headstart.types import Call, Headers, Receive, Scope, Send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headstart.middleware.client_ledger import ClientLedger
    from headstart.middleware.concurrency import ConcurrencyLimit, Spawn
    from headstart.middleware.identity import AccessControl
    from headstart.middleware.upstreams.http import HTTPUpstream
    from headstart.settings import ServerSettings
    from headstart.sockets import UpstreamSocket

ENDPOINT = "websocket"
"""The name of all WebSockets in the books."""
_KEY_REFUSED = frozenset({401, 403})
"""Statuses with which an upstream refuses a key."""
HANDSHAKE_S = 30.0
"""The longest wait for a provider's answer to the handshake."""
STOPPING = "this server stops and takes no new WebSockets: connect again"
_KEY_PROTOCOL = "openai-insecure-api-key."
"""Beginning of the subprotocol in which browsers send a key, because they can set no header."""


@dataclass(eq=False, repr=False)
class WebSocketRelay:
    """Passes WebSockets on. A WebSocket with a wrong key never reaches the upstream.

    ``upstreams_for`` picks the upstreams, each under its keys, by path, model and headers; it may
    raise NoUpstream. If one fails, the next one is asked; if it refuses its key, its next key is
    tried first. ``concurrency`` bounds the number of open ones. ``limits`` has the time limits and
    the largest size of a message.
    """

    upstreams_for: Callable[[bytes, str, Headers], Sequence[Sequence[HTTPUpstream]]]
    _: KW_ONLY
    concurrency: ConcurrencyLimit
    spawn: Spawn
    new_id: Callable[[], str]
    access: AccessControl
    ledger: ClientLedger | None = None
    limits: ServerSettings
    observer: Observer
    clock: Callable[[], float]
    _open: set[_RelayedSocket] = field(default_factory=set)
    _stops: bool = False
    _paths: RelayPaths = field(init=False)

    def __post_init__(self) -> None:
        self._paths = RelayPaths(self.limits.relay_paths)

    async def handle(
        self, scope: Scope, receive: Receive, send: Send, *, draining: bool = False
    ) -> None:
        """Relay one WebSocket to its end, or refuse its handshake with an HTTP status."""
        relayed = _RelayedSocket(self.new_id(), scope, receive, send, self.limits, self.spawn)
        error: HeadstartError | None = None
        try:
            call = self._call(relayed.id, scope, draining=draining)
            relayed.caller = call.caller
            if self.ledger is not None:
                # Only in the realtime API is the model fixed for the whole WebSocket.
                is_fixed = call.path.endswith(b"/realtime")
                named = call if is_fixed else msgspec.structs.replace(call, model="")
                await self.ledger.admit_relayed(named, is_free=False)
            upstreams = self.upstreams_for(call.path, call.model, call.headers)
            if not self.concurrency.take():
                raise Overloaded("too many WebSockets are open: server.max_websockets is reached")
            self._open.add(relayed)
            try:
                await relayed.run(upstreams, call)
            finally:
                relayed.over.set_result(None)
                self._open.discard(relayed)
                self.concurrency.give_back()
        except ClientGone:
            pass
        except (RequestError, UpstreamError) as refusal:
            error = refusal
            await relayed.refuse(refusal)
        self._book(relayed, error)

    async def aclose(self) -> None:
        """Close all WebSockets, because the server stops, and accept no more."""
        self._stops = True
        for relayed in tuple(self._open):
            relayed.end(Ending(RESTART, "the server restarts"))
        if self._open:
            await asyncio.wait([each.over for each in self._open], timeout=2 * CLOSE_S)

    def _call(self, id: str, scope: Scope, *, draining: bool) -> Call:
        """Return the call for the upstream. Raises RequestError if it may not be relayed."""
        caller = self.access.admit({**scope, "headers": with_key_header(scope)})
        path = raw_path(scope)
        self._paths.check("GET", path)
        if draining or self._stops:
            raise ServerStopping(STOPPING)
        asked = parse_qsl(scope["query_string"].decode("latin-1"))
        models = [value for name, value in asked if name == "model"]
        if len(models) > 1:  # several models: the provider may read another one than we do
            raise InvalidRequest("model: name it once")
        model = models[0] if models else ""
        if len(model) > LONGEST_MODEL:
            raise too_long_model()
        return Call(
            id=id,
            method="GET",
            path=path,
            query_string=scope["query_string"],
            headers=tuple((name.lower(), value) for name, value in scope["headers"]),
            body=b"",
            dialect="",
            endpoint=ENDPOINT,
            caller=caller,
            model=model,
            editable=False,
        )

    def _book(self, relayed: _RelayedSocket, error: HeadstartError | None) -> None:
        total_s = time.perf_counter() - relayed.started
        at = self.clock() - total_s
        self.observer.notify(
            Served(
                id=relayed.id,
                at=at,
                endpoint=ENDPOINT,
                outcome=Outcome.RELAY,
                reason="relayed",
                status=relayed.status,
                stream=True,
                total_s=total_s,
                caller=relayed.caller,
                upstream=relayed.upstream,
                error=None if error is None else booked_code(error),
                attempts=tuple(
                    msgspec.structs.replace(each, at=at + each.at - relayed.started)
                    for each in relayed.failed
                ),
                socket=relayed.traffic(),
            )
        )


def with_key_header(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Return the headers of a handshake, with the key that a browser sent as a subprotocol."""
    keys = [
        (b"authorization", b"Bearer " + protocol.removeprefix(_KEY_PROTOCOL).encode("latin-1"))
        for protocol in scope.get("subprotocols", ())
        if protocol.startswith(_KEY_PROTOCOL)
    ]
    return [*scope["headers"], *keys]


def upstream_protocols(protocols: Iterable[str], *, keys: bool) -> tuple[str, ...]:
    """Return the subprotocols for an upstream.

    Without ``keys``, those with a caller's key are removed.
    """
    return tuple([each for each in protocols if keys or not _tells_key(each.lower().encode())])


def _tells_key(protocol: bytes) -> bool:
    return is_secret(protocol) or protocol.partition(b".")[0] in ACCOUNT_HEADERS


@dataclass(eq=False, repr=False)
class _RelayedSocket:
    """One WebSocket, from its handshake to its end."""

    id: str
    scope: Scope
    receive: Receive
    send: Send
    limits: ServerSettings
    spawn: Spawn
    caller: str = ""
    upstream: str = ""
    failed: list[Attempt] = field(default_factory=list)
    """The handshakes that failed; ``at`` is their beginning in this process's time."""
    status: int = 0
    """The status of the handshake for the client; 0: the client left before."""
    started: float = field(default_factory=time.perf_counter)
    _up: tuple[int, int] = (0, 0)
    """The number of messages from the client, and their bytes."""
    _down: tuple[int, int] = (0, 0)
    """The same from the upstream."""
    _code: int = 0
    """The code with which it ended."""

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._connected: asyncio.Future[UpstreamSocket] = loop.create_future()
        self._ended: asyncio.Future[tuple[str, Ending]] = loop.create_future()
        """Set by the first side that ends it: "client", "upstream" or "us", and how it ends."""
        self.over: asyncio.Future[None] = loop.create_future()
        """Set when both sides are closed."""
        self._last = loop.time()
        """The time of the last message."""

    def traffic(self) -> SocketTraffic:
        """Return the traffic so far."""
        return SocketTraffic(
            messages_up=self._up[0],
            bytes_up=self._up[1],
            messages_down=self._down[0],
            bytes_down=self._down[1],
            close_code=self._code,
        )

    def end(self, ending: Ending, by: str = "us") -> None:
        """End both sides, unless one of them has ended it already."""
        if not self._ended.done():
            self._ended.set_result((by, ending))

    async def run(self, upstreams: Sequence[Sequence[HTTPUpstream]], call: Call) -> None:
        """Relay to the end. Raises RequestError or UpstreamError before the client is accepted."""
        tasks = [self.spawn(self._pass_up), self.spawn(self._connect, upstreams, call)]
        try:
            await asyncio.wait((self._ended, self._connected), return_when=asyncio.FIRST_COMPLETED)
            if not self._connected.done():
                if self._ended.result()[0] == "client":
                    raise ClientGone
                raise ServerStopping(STOPPING)
            socket = self._connected.result()
            if not self._ended.done():
                await self._accept(socket)
                tasks.append(self.spawn(self._pass_down, socket, tasks[0]))
                await self._watch()
            await self._close(socket, *self._ended.result())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            # The handshake may have finished while its task was being cancelled.
            if self._connected.done() and self._connected.exception() is None:
                await self._connected.result().close(Ending(GOING_AWAY))

    async def _connect(self, upstreams: Sequence[Sequence[HTTPUpstream]], call: Call) -> None:
        """Connect to the first upstream that does not fail, under the first key that it takes."""
        error: HeadstartError | None = None
        for keys in upstreams:
            for upstream in keys:
                try:
                    return self._connected.set_result(await self._try(upstream, call))
                except HeadstartError as failure:
                    error = failure
                refuses_key = _refuses_key(error, upstream)
                if not (refuses_key or _is_upstreams_fault(error)):
                    # the caller's fault: another upstream would say the same
                    return self._connected.set_exception(error)
                if not refuses_key:
                    break  # another key of this upstream would not help
        assert error is not None  # the router returns at least one upstream, so one has failed
        self._connected.set_exception(error)
        return None

    async def _try(self, upstream: HTTPUpstream, call: Call) -> UpstreamSocket:
        """Connect to an upstream, or note how that failed."""
        self.upstream, began = upstream.name, time.perf_counter()
        try:
            return await self._shake_hands(upstream, call)
        except UpstreamError as failure:
            if isinstance(failure, UpstreamRefused):
                failure.body, failure.headers = upstream.writer.masked(
                    failure.body, failure.headers
                )
            status = _status_of(failure)
            # Other refusals of a caller's own key are no failures of the upstream.
            if _is_upstreams_fault(failure) or status == 429 or not upstream.passes_keys:
                why = classify_failure(failure, 0.0)
                failed = Attempt(
                    upstream=upstream.name,
                    model=call.model,
                    role=AttemptRole.FALLBACK if self.failed else AttemptRole.FIRST,
                    outcome=AttemptOutcome.FAILED,
                    at=began,
                    total_s=time.perf_counter() - began,
                    status=status,
                    error=why.kind.value,
                    reason=why.reason,
                )
                self.failed.append(failed)
            raise

    async def _shake_hands(self, upstream: HTTPUpstream, call: Call) -> UpstreamSocket:
        protocols = upstream_protocols(
            self.scope.get("subprotocols", ()), keys=upstream.passes_keys
        )
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                return await upstream.connect(
                    call, subprotocols=protocols, max_bytes=self.limits.max_body_bytes
                )
        except TimeoutError:
            raise UpstreamTimeout(
                f"upstream {upstream.name} did not answer the handshake in {HANDSHAKE_S:g} s"
            ) from None

    async def _accept(self, socket: UpstreamSocket) -> None:
        self.status = 101
        own = [
            (b"x-headstart-request-id", self.id.encode()),
            (b"x-headstart-upstream", self.upstream.encode()),
        ]
        accept = {"type": "websocket.accept", "subprotocol": socket.subprotocol, "headers": own}
        with contextlib.suppress(OSError):  # the client has left, which ``_pass_up`` notices
            await self.send(accept)

    async def _pass_up(self) -> None:
        """Pass the client's messages on until it leaves."""
        while True:
            message = await self.receive()
            if message["type"] == "websocket.disconnect":
                ending = Ending(message.get("code") or ABNORMAL, message.get("reason") or "")
                return self.end(ending, "client")
            if message["type"] != "websocket.receive":
                continue
            text = message.get("text")
            data = message["bytes"] if text is None else text.encode()
            if len(data) > self.limits.max_body_bytes:
                return self.end(Ending(TOO_BIG, "a message exceeds server.max_body_bytes"))
            self._up = (self._up[0] + 1, self._up[1] + len(data))
            self._last = asyncio.get_running_loop().time()
            try:
                socket = await asyncio.shield(self._connected)
                await socket.send(data, is_text=text is not None)
            except (HeadstartError, OSError):
                # ``run`` handles a refusal, and ``_pass_down`` reads the reason after the
                # provider's last messages.
                return None

    async def _pass_down(self, socket: UpstreamSocket, other: asyncio.Task[None]) -> None:
        """Pass the provider's messages on until it leaves."""
        while True:
            found = await socket.receive()
            if isinstance(found, Ending):
                return self.end(found, "upstream")
            is_text = isinstance(found, str)
            size = len(found.encode()) if isinstance(found, str) else len(found)
            self._down = (self._down[0] + 1, self._down[1] + size)
            self._last = asyncio.get_running_loop().time()
            try:
                await self.send({"type": "websocket.send", "text" if is_text else "bytes": found})
            except OSError:
                # The client has left. The other task gets the code, unless it waits for the
                # provider to read.
                await asyncio.wait((other,), timeout=CLOSE_S)
                return self.end(Ending(ABNORMAL), "client")

    async def _watch(self) -> None:
        """Wait for the end, and end a WebSocket that is idle or too old."""
        loop, limits = asyncio.get_running_loop(), self.limits
        idle_s = limits.websocket_idle_s
        try:
            async with asyncio.timeout(limits.websocket_deadline_s):
                while not self._ended.done():
                    left_s = None if idle_s is None else self._last + idle_s - loop.time()
                    if left_s is not None and left_s <= 0:
                        self.end(Ending(GOING_AWAY, "no message came in server.websocket_idle_s"))
                    else:
                        await asyncio.wait((self._ended,), timeout=left_s)
        except TimeoutError:
            self.end(Ending(GOING_AWAY, "server.websocket_deadline_s is over"))

    async def _close(self, socket: UpstreamSocket, by: str, ending: Ending) -> None:
        """Close both sides. The side that ended it gets the answer to its close frame."""
        self._code = ending.code
        up = ending.sendable(GOING_AWAY)
        # Only servers send this code: our own server closed the client's side.
        if ending.code == RESTART:
            up = Ending(GOING_AWAY, ending.reason)
        down = ending.sendable(FAILED)
        if by == "client":
            await socket.close(up)
            return
        message = {"type": "websocket.close", "code": down.code, "reason": down.reason}
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):  # a client that reads nothing takes no frame
                await self.send(message)
        await socket.close(up)

    async def refuse(self, error: HeadstartError) -> None:
        """Answer the handshake with the error's status, if the server offers that; else with 403.

        A refusal of the provider passes with its body.
        """
        status, headers, body = error_response(error, None, self.id)
        if isinstance(error, UpstreamRefused):
            body = error.body
            headers = [
                *allowed_headers(error.headers),
                (b"content-length", b"%d" % len(body)),
                (b"x-headstart-request-id", self.id.encode()),
            ]
        self.status = status
        with contextlib.suppress(OSError):
            await answer_handshake(self.scope, self.send, status, headers, body)


def _status_of(error: HeadstartError) -> int:
    """Return the status with which an upstream refused a handshake; 0: it did not answer."""
    return error.status if isinstance(error, UpstreamRefused) else 0


def _is_upstreams_fault(error: HeadstartError) -> bool:
    status = _status_of(error)
    return isinstance(error, UpstreamError) and (status == 0 or status >= 500)


def _refuses_key(error: HeadstartError, upstream: HTTPUpstream) -> bool:
    """Tell whether the upstream may accept another key: this one is wrong or at its limit."""
    status = _status_of(error)
    return status == 429 or (status in _KEY_REFUSED and not upstream.passes_keys)
