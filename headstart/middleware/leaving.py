"""How a client leaves a flight: what it has to book, and how long its call waits for its retry."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio

from headstart.errors import HeadstartError
from headstart.middleware.deadlines import RETRY_GRACE_S
from headstart.middleware.upstreams.options import AFTER_END_S

if TYPE_CHECKING:
    from headstart.middleware.exchange import Exchange
    from headstart.middleware.flights import Client, Flight

SETTLE_S = 1.0
"""Longest wait for cancelled calls to end, before the request is booked without them."""


async def leave(exchange: Exchange, flight: Flight, client: Client) -> None:
    """Leave, and take over what is this request's to book.

    The last one to leave cancels a call whose answer is not whole.
    """
    whole = client.has_all
    if whole:
        exchange.delivered = True
        if exchange.total_s is None:
            exchange.over()
    last = flight.leave(client)
    if (last or flight.done or whole) and not flight.settled.is_set():
        # Calls are still being booked, and others may wait for the end of a body.
        limit_s = SETTLE_S + AFTER_END_S * whole
        with anyio.move_on_after(limit_s, shield=True):
            await flight.settled.wait()
    if flight.first_content is not None:
        upstream_s = max(0.0, flight.first_content - exchange.started)
        if exchange.total_s is None or upstream_s <= exchange.total_s:
            exchange.upstream_s = upstream_s
    if flight.origin is not None:
        exchange.take_origin(flight.origin)
    exchange.stored = exchange.stored or flight.stored
    exchange.not_stored = flight.not_stored
    exchange.pay(flight.claim(client), flight.shaped)


async def leave_to_retry(exchange: Exchange, flight: Flight, seat: Client) -> None:
    """Keep a call alive for its client's retry, as a reader of its own, and leave then.

    That is when nobody has come back in time, or when nobody who did needs the seat any more: the
    answer is whole, has failed, or is too long to be joined.
    """
    try:
        with anyio.move_on_after(RETRY_GRACE_S), contextlib.suppress(HeadstartError):
            await seat.read_all()
    finally:
        await leave(exchange, flight, seat)
