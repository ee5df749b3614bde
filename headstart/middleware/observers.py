"""Observers: all together, the books, the log, and the last requests for ``explain``."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, ClassVar, Self, TypeAlias

import msgspec

from headstart.attempts import FAILURES, WON
from headstart.decisions import MISS, RELAY
from headstart.errors import StoreError
from headstart.observe import (
    Committed,
    Observation,
    Observer,
    Served,
    StageFailed,
    access_logger,
    logger,
)
from headstart.policies.routing.failures import FailureKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headstart.interfaces import Store
    from headstart.policies.gate import EncoderWaitLimit


class Observers:
    """Passes each observation to all observers. An observer that raises is logged and removed."""

    def __init__(self, observers: Sequence[Observer] = (), given: Observers | None = None) -> None:
        self.observers = tuple(observers)
        self._given = given
        """Observers that get each observation before these, and that outlive them."""
        self._sorted: tuple[object, dict[type, list[Observer]]] = ((), {})
        """All observers, and by the class of an observation those that want it."""

    def add(self, observer: Observer) -> None:
        """Notify ``observer`` too, from now on."""
        self.observers += (observer,)

    def for_engine(self) -> Self:
        """Return observers that notify these, too. An engine adds its own, and they end with it."""
        return type(self)((), self)

    def notify(self, observation: Observation) -> None:
        """Notify all observers that want it, in the order in which they were added."""
        given = () if self._given is None else self._given.observers
        sources, kind = (given, self.observers), type(observation)
        known, wanting = self._sorted
        if known != sources:
            wanting = {}
            self._sorted = sources, wanting
        if kind not in wanting:
            every = given + self.observers
            wanting[kind] = [each for each in every if _wants(each, kind)]
        for observer in wanting[kind]:
            try:
                observer.notify(observation)
            except Exception:  # noqa: BLE001 - it is logged, and the others go on
                logger.exception("observer %r failed and is switched off", type(observer).__name__)
                self.remove(observer)

    def remove(self, observer: Observer) -> None:
        """Notify ``observer`` no more."""
        self.observers = tuple(each for each in self.observers if each is not observer)
        if self._given is not None:
            self._given.remove(observer)


def _wants(observer: Observer, kind: type) -> bool:
    """Tell whether an observer wants observations of a class.

    An observer may have an attribute ``observes`` with another meaning, so only a tuple counts.
    """
    observes = getattr(type(observer), "observes", None)
    return not isinstance(observes, tuple) or kind in observes


FLUSH_S = 0.25
MAX_WAITING = 10_000
"""Most rows that wait while the store is slow. The oldest are dropped beyond it."""


class Bookkeeper:
    """Writes served requests to the store's books, in batches. ``flush`` writes the last rows."""

    observes: ClassVar = (Served,)

    def __init__(self, store: Store, observer: Observer) -> None:
        self._store = store
        self._observer = observer
        self._rows: list[Served] = []
        self._came = asyncio.Event()
        """A row waits."""
        self._writing = asyncio.Lock()

    def notify(self, observation: Observation) -> None:
        """Take a row; ``run`` writes it within a quarter of a second."""
        if type(observation) is not Served:
            return
        self._rows.append(observation)
        if len(self._rows) > MAX_WAITING:
            del self._rows[: MAX_WAITING // 10]
        self._came.set()

    async def run(self) -> None:
        """Write rows as they come. Each write takes all that came within a quarter of a second."""
        while True:
            await self._came.wait()
            await asyncio.sleep(FLUSH_S)
            self._came.clear()
            await self.flush()

    async def flush(self) -> None:
        """Write the waiting rows, after those that are being written now.

        If the store fails, its rows are lost.
        """
        async with self._writing:
            rows, self._rows = self._rows, []
            if rows:
                try:
                    await self._store.add_to_books(rows)
                except Exception as error:  # noqa: BLE001 - whatever it is, the next rows follow
                    self._observer.notify(StageFailed.of("books", error))


QUIET_S = 3600.0
"""Time after a line in the log until the same failure of a stage is logged again."""
STORE_QUIET_S = 60.0
"""The same for a store that has worked in between."""
UPSTREAM_QUIET_S = 60.0
"""Seconds between two log lines about an upstream. Failures in between are counted."""
MOST_CAUSES = 1000
_CALLERS_OWN = frozenset(
    kind.value
    for kind in (
        FailureKind.BAD_REQUEST,
        FailureKind.CONTEXT_TOO_LONG,
        FailureKind.CONTENT_POLICY,
        FailureKind.FILTERED,
    )
)
"""Failures that the request caused, not the upstream."""
_NOT_ASKED = {
    "upstream_unavailable": "they fail, and rest between tries",
    "rate_limit_exceeded": "their rate limits are used up",
}
"""Errors of requests for which no upstream was available, in words."""


@dataclass(eq=False, repr=False)
class FailureLog:
    """Observes failures. ``clock`` gives seconds.

    ``unpriced`` gets the requests that called an upstream.

    It logs the first failure of a stage, and then the same failure once an hour at most. For a
    store that has worked in between, it is once a minute. It logs the first failure of an upstream
    with one cause, once a minute how many more there were, and then the upstream's next answer.
    """

    observes: ClassVar = (Served, StageFailed, Committed)

    clock: Callable[[], float] = time.monotonic
    unpriced: UnpricedModels | None = None
    _quiet_until: dict[tuple[str, str], float] = field(default_factory=dict)
    _store_failures: dict[tuple[str, str], float] = field(default_factory=dict)
    """The logged failures of the store, with their times, since it took an entry."""
    _causes: dict[_Cause, _Quiet] = field(default_factory=dict)
    _failing: set[str] = field(default_factory=set)
    """The upstreams whose last logged line is a failure."""

    def notify(self, observation: Observation) -> None:
        """Log failures."""
        if type(observation) is Served:
            if observation.attempts or observation.error:
                if self._failing:
                    self._log_recovered(observation)
                for cause in _causes(observation):
                    self._log_upstream(cause)
                if self.unpriced is not None:
                    self.unpriced.notify(observation)
        elif isinstance(observation, StageFailed):
            self._log_stage(observation)
        elif self._store_failures and type(observation) is Committed:
            logger.warning("the store takes entries again")
            for failure, told_at in self._store_failures.items():
                self._quiet_until[failure] = told_at + STORE_QUIET_S
            self._store_failures.clear()

    def _log_stage(self, failed: StageFailed) -> None:
        failure, now = (failed.stage, failed.error), self.clock()
        if now < self._quiet_until.get(failure, now):
            return
        self._quiet_until[failure] = now + QUIET_S
        if failed.stage == StoreError.stage:
            self._store_failures[failure] = now
        logger.warning(
            "%s failed, and requests go on without it: %s%s; "
            "headstart_stage_errors_total counts how often",
            failed.stage,
            failed.error,
            f" ({failed.detail})" if failed.detail else "",
        )

    def _log_upstream(self, cause: _Cause) -> None:
        now, quiet = self.clock(), self._causes.get(cause)
        if quiet is not None and now < quiet.until:
            quiet.more += 1
            return
        if len(self._causes) >= MOST_CAUSES:
            self._causes.clear()
        self._causes[cause] = _Quiet(now + UPSTREAM_QUIET_S)
        upstream, error, status, reason = cause
        why = ": ".join(filter(None, (f"status {status}" if status else "", reason)))
        if upstream:
            self._failing.add(upstream)
        logger.warning(
            "%s: %s%s%s",
            f"upstream {upstream} failed" if upstream else "no upstream could be asked",
            error,
            f" ({why})" if why else "",
            f"; {quiet.more} more since the last message about it"
            if quiet is not None and quiet.more
            else "",
        )

    def _log_recovered(self, served: Served) -> None:
        """Log the first answer of an upstream after a failure that was logged."""
        for each in served.attempts:
            if each.outcome is WON and each.upstream in self._failing:
                self._failing.discard(each.upstream)
                logger.warning("upstream %s answers again", each.upstream)


_Cause: TypeAlias = tuple[str, str, int, str]
"""Upstream, kind, status and reason of a failed call."""


@dataclass(slots=True)
class _Quiet:
    """A logged cause: when it may be logged again, and how often it came meanwhile."""

    until: float
    more: int = 0


def _causes(served: Served) -> Iterator[_Cause]:
    """Yield the causes of the failed calls of a request that the log tells."""
    for each in served.attempts:
        expected = each.error == FailureKind.IDLE_CLOSED and not served.error
        if each.outcome in FAILURES and each.error not in _CALLERS_OWN and not expected:
            yield each.upstream, each.error or "error", each.status, each.reason or ""
    if not served.attempts and served.error in _NOT_ASKED:
        route = f"route {served.route}" if served.route else ""
        yield "", _NOT_ASKED[served.error], 0, route


class UnpricedModels:
    """Logs once that the price of a model is not known, after the model has answered a request.

    ``upstreams`` are the names of the upstreams that send a bill.
    """

    def __init__(self, upstreams: frozenset[str]) -> None:
        self._upstreams = upstreams
        self._warned: set[tuple[str, str]] = set()

    def notify(self, observation: Served) -> None:
        """Look at the calls of a request."""
        if observation.outcome is RELAY:
            return
        for each in observation.attempts:
            unpriced = each.cost_usd is None and each.outcome is WON
            place = (each.upstream, each.model)
            if not unpriced or each.upstream not in self._upstreams or place in self._warned:
                continue
            if len(self._warned) < MOST_CAUSES:
                self._warned.add(place)
                logger.warning(
                    "no price is known of model %s at %s: its cost is not booked, and cheapest "
                    "cannot compare it; set the price of the upstream, or try: "
                    "headstart prices import --help",
                    each.model,
                    each.upstream,
                )


class AccessLog:
    """Logs one line for each request that was answered or failed, without texts and keys.

    ``as_json`` chooses JSON; otherwise a line holds words of the form ``name=value``. ``trace_id``
    returns the id of the request's trace, "" if it has none.
    """

    observes: ClassVar = (Served,)

    def __init__(self, *, as_json: bool, trace_id: Callable[[], str] | None = None) -> None:
        self._as_json = as_json
        self._trace_id = trace_id

    def notify(self, observation: Observation) -> None:
        """Log a served request."""
        if type(observation) is not Served:
            return
        fields = access_fields(observation)
        if self._trace_id is not None and (trace := self._trace_id()):
            fields["trace_id"] = trace
        if self._as_json:
            access_logger.info("%s", msgspec.json.encode(fields).decode())
        else:
            words = (f"{name}={_quoted(value)}" for name, value in fields.items())
            access_logger.info("%s", " ".join(words))


def access_fields(served: Served) -> dict[str, str | int | float | bool]:
    """Return the fields of the access log for a request. Unknown facts are left out.

    Times are milliseconds, costs US dollars.
    """
    at = datetime.fromtimestamp(served.at, UTC).isoformat(timespec="milliseconds")
    fields: dict[str, str | int | float | bool | None] = {
        "time": at.replace("+00:00", "Z"),
        "id": served.id,
        "endpoint": served.endpoint,
        "status": served.status,
        "outcome": served.outcome.value,
        "detail": served.detail,
        "error": served.error,
        "caller": served.caller or None,
        "route": served.route or None,
        "tags": ",".join(served.tags) or None,
        "upstream": served.upstream or None,
        "model": served.model or None,
        "attempts": len(served.attempts),
        "stream": served.stream,
        "ttft_ms": _milliseconds(served.ttft_s),
        "total_ms": _milliseconds(served.total_s),
        "overhead_ms": _milliseconds(served.overhead_s),
        "prompt_tokens": served.prompt_tokens or None,
        "completion_tokens": served.completion_tokens or None,
        "cost_usd": served.cost_usd,
        "saved_usd": served.saved_usd or None,
        "audit_of": served.audit_of,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


_PLAIN = re.compile(r"[\w./:@+-]+", re.ASCII)


def _quoted(value: object) -> str:
    """Return a value as one word. Clients choose the model's name, which may contain anything."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


class RecentRequests:
    """Keeps the last ``maxlen`` served requests, without their texts."""

    observes: ClassVar = (Served,)

    def __init__(self, maxlen: int = 1000) -> None:
        self.maxlen = maxlen
        self._rows: dict[str, Served] = {}

    def notify(self, observation: Observation) -> None:
        """Keep a served request; the oldest leaves when there are too many."""
        if type(observation) is not Served:
            return
        self._rows[observation.id] = observation
        if len(self._rows) > self.maxlen:
            del self._rows[next(iter(self._rows))]

    def newest(self) -> Iterator[Served]:
        """Yield the requests, the newest first."""
        return reversed(self._rows.values())

    def find(self, id: str) -> Served | None:
        """Return the request with this id, or None if it is unknown or too old."""
        return self._rows.get(id)


class FirstBytes:
    """Passes on to ``wait_limit`` how long fresh answers take to begin."""

    observes: ClassVar = (Served,)

    def __init__(self, wait_limit: EncoderWaitLimit) -> None:
        self._wait_limit = wait_limit

    def notify(self, observation: Observation) -> None:
        """Look at one request. The time of its own lookup is not part of the answer's time."""
        if (
            isinstance(observation, Served)
            and observation.outcome is MISS
            and observation.error is None
            and observation.ttft_s is not None
            and observation.status == HTTPStatus.OK
        ):
            spent_s = observation.encode_s + observation.lookup_s
            first_byte_s = max(0.0, observation.ttft_s - spent_s)
            self._wait_limit.learn(observation.route, observation.model, first_byte_s)


_REFUSALS = {
    FailureKind.UNAUTHORIZED.value: "refuses its key",
    FailureKind.QUOTA.value: "has no quota left for its key",
}
"""Failures that are due to the key, in words."""


class RefusedKeys:
    """Logs once that an upstream refuses its key, and again only after the key was accepted.

    ``variables`` names the key variables of each upstream that has a key of its own. Refusals of
    callers' keys are not logged.
    """

    observes: ClassVar = (Served,)

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        self._warned: set[tuple[str, str]] = set()

    def notify(self, observation: Observation) -> None:
        """Look at the calls of a request."""
        if not isinstance(observation, Served):
            return
        for each in observation.attempts:
            variables = self._variables.get(each.upstream)
            if variables is None:
                continue
            if each.outcome is WON:
                self._warned -= {(each.upstream, kind) for kind in _REFUSALS}
            elif each.error in _REFUSALS and (each.upstream, each.error) not in self._warned:
                self._warned.add((each.upstream, each.error))
                logger.warning(
                    "upstream %s %s (%s); try: headstart config check --live",
                    each.upstream,
                    _REFUSALS[each.error],
                    variables,
                )
