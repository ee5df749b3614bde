"""The books' row for an audit: a call that no client waits for costs money all the same."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headstart.attempts import total_cost_usd
from headstart.decisions import Outcome
from headstart.observe import Served

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from headstart.interfaces import Observer
    from headstart.middleware.exchange import Exchange
    from headstart.middleware.flights import Flight
    from headstart.middleware.learning.audits import Audits
    from headstart.middleware.learning.learner import Lesson


class AuditBooking:
    """Called when an audit's pump is done; books it under ``id``."""

    def __init__(
        self, observer: Observer, audits: Audits, clock: Callable[[], float], id: str
    ) -> None:
        self._observer = observer
        self._audits = audits
        self._clock = clock
        self._id = id

    def __call__(
        self, flight: Flight, exchange: Exchange, lesson: Lesson, pump: asyncio.Task[None]
    ) -> None:
        """Book the call's cost and outcome."""
        origin, error = flight.origin, flight.error
        cost_usd = total_cost_usd(flight.attempts)
        if cost_usd is not None:
            self._audits.allowance.pay(cost_usd)
        total_s = time.perf_counter() - flight.began
        self._observer.notify(
            Served(
                id=self._id,
                at=self._clock() - total_s,
                endpoint=exchange.route.name,
                outcome=Outcome.AUDIT,
                status=_status(flight),
                stream=exchange.request is not None and exchange.request.stream,
                total_s=total_s,
                scope=exchange.scope_name,
                domain=lesson.trial.domain,
                neighbor=lesson.trial.entry.id,
                audit_of=exchange.id,
                reason=lesson.source.value,
                model=exchange.request.model if exchange.request is not None else "",
                upstream="" if flight.head is None else flight.head.upstream,
                error=type(error).__name__ if error is not None and not pump.cancelled() else None,
                prompt_tokens=0 if origin is None else origin.prompt_tokens,
                completion_tokens=0 if origin is None else origin.completion_tokens,
                cost_usd=cost_usd,
                attempts=flight.attempts,
                estimated=origin is not None and origin.estimated,
                stored=flight.stored,
            )
        )


def _status(flight: Flight) -> int:
    """Return what the upstream answered; an error ends a call before it has a head of its own."""
    if flight.head is not None:
        return flight.head.status
    return flight.attempts[-1].status if flight.attempts else 0
