"""The front of the admin API: answers probes, and builds the API at the first other request.

The API's library takes a tenth of a second of CPU and 10 MB to load, and most processes only ever
see probes. So ``AdminFront`` answers these itself::

    GET /_headstart/ready      {"status": "degraded", "reasons": ["the store does not answer: …"]}

This file also has the values that the API gets: ``AdminState`` for the process, and ``EngineParts``
for its engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import msgspec
from anyio import to_thread

from headstart.errors import StoreError
from headstart.middleware.asgi import ADMIN_PREFIX, not_found, send_json
from headstart.middleware.endpoints import raw_path
from headstart.middleware.learning.hit_decisions import HitDecider, Reviews
from headstart.types import ASGIApp, Frozen, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from headstart.embeddings.cache import SemanticCache
    from headstart.embeddings.encoder_worker import EncoderWorker
    from headstart.interfaces import Store
    from headstart.middleware.client_ledger import ClientLedger
    from headstart.middleware.concurrency import ConcurrencyLimit
    from headstart.middleware.flights import Flights
    from headstart.middleware.live import LiveTotals
    from headstart.middleware.metrics import PrometheusObserver
    from headstart.middleware.observers import Observers, RecentRequests
    from headstart.middleware.upstreams.accounting import UpstreamStates
    from headstart.usual_calls import Machine

STORE_WAIT_S = 0.5
"""Longest wait of ``ready`` for the store, because probes give up after a second."""
_SECURITY_HEADERS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
"""Headers of answers that no browser or proxy may keep, or take for a page or a script."""


@dataclass(frozen=True)
class EngineParts:
    """The parts of a started engine that the admin API and the metrics show."""

    store: Store
    cache: SemanticCache | None
    encoder: EncoderWorker | None
    hit_decider: HitDecider | None
    flights: Flights
    concurrency: ConcurrencyLimit
    """Limits the calls to upstreams."""
    relays: ConcurrencyLimit
    """Limits the relayed requests."""
    sockets: ConcurrencyLimit
    """Limits the relayed WebSockets."""
    ledger: ClientLedger | None
    """Counts the use of the limits of client keys; None: there are no limits."""
    states: UpstreamStates | None
    """The health and figures of upstreams; None where a wrapped app answers."""
    machines: Mapping[str, Machine]
    """The upstreams that are paid by the hour, by name."""


@dataclass
class LivePages:
    """The live pages that are open, and the totals that they show."""

    totals: LiveTotals | None = None
    """None: no page was opened yet, so nothing is summed up."""
    read_at: float = 0.0
    """When the totals were read from the store, in Unix seconds."""
    open: int = 0
    """The number of pages."""
    stream_s: float = 60.0
    """Longest time of a stream of events; then the page opens the next one. So a reload of the
    configuration does not wait for pages that are open."""
    starting: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while the totals are read, so that only one page reads them."""


class WorkerAnswers(Frozen):
    """The answers of all workers, and the last metrics or counts of workers that have ended."""

    live: list[bytes]
    ended: tuple[bytes, ...] = ()


Gather: TypeAlias = "Callable[[str], Awaitable[WorkerAnswers]]"
"""Asks all workers, including this one, for the result of ``own_figures``."""


@dataclass(frozen=True)
class AdminState:
    """The parts that the admin API shows. ``engine`` returns None until the engine has started."""

    engine: Callable[[], EngineParts | None]
    metrics: PrometheusObserver
    recent: RecentRequests
    observers: Observers
    """The observers of the engine, to which the totals of a page are added."""
    config: Mapping[str, Any]
    """The settings, masked."""
    clock: Callable[[], float]
    """Unix seconds."""
    started: float
    """When this process started, on the monotonic clock."""
    draining: Callable[[], bool] = lambda: False
    """True after the server got the signal to stop."""
    reviews: Reviews = field(default_factory=Reviews)
    pages: LivePages = field(default_factory=LivePages)
    reload: Callable[[], Awaitable[None]] | None = None
    """Reads the configuration again, and raises HeadstartError if it is wrong."""
    gather: Gather | None = None
    """None: there are no other workers."""


class Health(Frozen, omit_defaults=False):
    """The process lives."""

    status: str = "alive"


class Readiness(Frozen, omit_defaults=False):
    """Whether requests can be served. ``reasons`` lists the causes if they cannot, or only in part.

    ``status`` is ``starting`` or ``draining`` with 503, and ``ready`` or ``degraded`` with 200:
    without its store the server still answers, from memory and from the upstreams.
    """

    status: str
    reasons: list[str]

    @property
    def code(self) -> int:
        """The HTTP status."""
        return 200 if self.status in ("ready", "degraded") else 503


async def readiness(state: AdminState) -> Readiness:
    """Return whether requests can be served now. Waits at most ``STORE_WAIT_S``."""
    if state.draining():
        why = "the server was told to stop, and stops after server.drain_s"
        return Readiness(status="draining", reasons=[why])
    engine = state.engine()
    if engine is None:
        why = "the engine has not started: the encoder is not warm, the store is not open"
        return Readiness(status="starting", reasons=[why])
    try:
        with anyio.fail_after(STORE_WAIT_S):
            failed = (await engine.store.stats()).write_error
    except (StoreError, TimeoutError):
        failed = "the store does not answer"
    if failed:
        why = f"{failed}: new answers are kept in memory only, for cache.outage_ttl_s"
        return Readiness(status="degraded", reasons=[why])
    return Readiness(status="ready", reasons=[])


class AdminFront:
    """Answers ``GET health`` and ``GET ready`` itself until something else is asked.

    Then it calls ``build`` once, in a thread, and passes all further requests to the app that it
    returns.
    """

    def __init__(self, state: AdminState, build: Callable[[], ASGIApp]) -> None:
        self._state = state
        self._build = build
        self._app: ASGIApp | None = None
        self._building = anyio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope under ``/_headstart/``, or the lifespan."""
        if scope["type"] == "lifespan":
            return await not_found(scope, receive, send)
        send = _with_security_headers(send)
        if self._app is None and scope["method"] == "GET":
            match raw_path(scope).removeprefix(ADMIN_PREFIX):
                case b"health":
                    return await send_json(send, 200, msgspec.json.encode(Health()))
                case b"ready":
                    found = await readiness(self._state)
                    return await send_json(send, found.code, msgspec.json.encode(found))
        await (await self._built())(scope, receive, send)

    async def _built(self) -> ASGIApp:
        async with self._building:
            if self._app is None:
                self._app = await to_thread.run_sync(self._build)
        return self._app


def _with_security_headers(send: Send) -> Send:
    """Return a ``send`` that adds those ``_SECURITY_HEADERS`` that an answer does not have."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message["headers"])
            named = {name for name, _ in headers}
            headers += [pair for pair in _SECURITY_HEADERS if pair[0] not in named]
            message = {**message, "headers": headers}
        await send(message)

    return with_headers
