"""Sending an answer to the client: a hit, a flight's answer as it arrives, or an error."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headstart.attempts import extra_cost_usd
from headstart.decisions import Outcome
from headstart.errors import (
    HeadstartError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
)
from headstart.middleware.body import replay_body, watch
from headstart.middleware.reading import is_plain
from headstart.middleware.respond import (
    JSON,
    NO_STORE,
    STREAM_HEADERS,
    error_response,
    own_headers,
    relayed_headers,
    request_id_header,
    response_start,
    send_whole,
)
from headstart.types import RawResponse

if TYPE_CHECKING:
    from headstart.middleware.asgi_types import ASGIApp, Message
    from headstart.middleware.exchange import Exchange
    from headstart.middleware.flights import Client, Flight, Head
    from headstart.middleware.replay import Replays
    from headstart.middleware.supervisor import Spawn
    from headstart.types import ChatRequest, Completion, Entry, Headers


HEARTBEAT_S = 10.0
"""Between two comments, while a client that was told 200 waits for its answer."""


class Replay(NamedTuple):
    """A stored answer as it goes out."""

    headers: Headers
    body: bytes
    status: int = 200


class NotForOthers(Exception):
    """The answer that a request was to share with another is meant for that one alone."""


_OWN_ALONE = frozenset(("cache-control", "vary"))
"""Why an answer is not stored that nobody may share either (RFC 9111, section 4)."""


class Deliverer:
    """Sends answers over ASGI. Writes into the exchange what was sent and when."""

    def __init__(self, replays: Replays, spawn: Spawn) -> None:
        self._replays = replays
        self._spawn = spawn

    async def hit(self, exchange: Exchange, entry: Entry, replay: Replay, now: float) -> None:
        """Send a stored answer."""
        age = max(0, int(now - entry.created))
        ttl = None if entry.expires is None else max(0.0, entry.expires - now)
        own = own_headers(exchange.id, exchange.lookup, exchange.timings, ttl_s=ttl)
        if exchange.request is not None and not exchange.request.stream:
            saved = entry.origin.prompt_tokens + entry.origin.completion_tokens
            own.append((b"x-headstart-tokens-saved", str(saved).encode()))
        headers, body, exchange.status = replay
        exchange.take_origin(entry.origin)
        exchange.mark_first_byte()
        await send_whole(
            exchange.send,
            exchange.status,
            (
                *headers,
                (b"content-length", str(len(body)).encode()),
                (b"age", str(age).encode()),
                (request_id_header(exchange.route.dialect), exchange.id.encode()),
                *own,
            ),
            body,
        )

    def replay(self, exchange: Exchange, entry: Entry, now: float) -> Replay:
        """Return a stored answer in the mode that was asked for."""
        answer, dialect, request = entry.answer, exchange.route.dialect, exchange.request
        if isinstance(answer, RawResponse):
            return Replay((*answer.headers, NO_STORE), answer.body, answer.status)
        assert dialect is not None
        assert request is not None
        fitted = fit(answer, request)
        rendered = (
            self._replays.rendered(entry, dialect) if fitted is answer else dialect.render(fitted)
        )
        if request.stream:
            body = rendered.sse(dialect.new_id(), int(now), include_usage=request.include_usage)
            kind = (b"content-type", dialect.content_types.stream)
            return Replay((kind, *STREAM_HEADERS), body)
        kind = (b"content-type", dialect.content_types.json)
        return Replay((kind, NO_STORE), rendered.json(dialect.new_id(), int(now)))

    async def flight(
        self,
        exchange: Exchange,
        flight: Flight,
        client: Client,
        early_200_s: float | None = None,
    ) -> None:
        """Send a flight's answer as it arrives; a JSON answer is sent whole.

        Raises ClientGone, NotForOthers, or the flight's error if nothing was sent yet. A streaming
        client waits
        for its status at most ``early_200_s``, where its dialect has comments to go on with.
        """
        client.expire(exchange.begin_by)
        watcher = self._spawn(watch, exchange.receive, client.gone)
        try:
            await self._send_flight(exchange, flight, client, early_200_s)
        finally:
            watcher.cancel()

    async def _send_flight(
        self, exchange: Exchange, flight: Flight, client: Client, early_200_s: float | None
    ) -> None:
        head: Head | None = None
        if early_200_s is None or _heartbeat(exchange) is None:
            head = await client.head()
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(early_200_s):
                    head = await client.head()
        if head is None:
            return await self._send_early(exchange, flight, client)
        if exchange.lookup.outcome is Outcome.JOINED and head.not_stored in _OWN_ALONE:
            raise NotForOthers
        exchange.upstream = head.upstream
        if _is_document(exchange, head):
            body = await client.read_all()
            if body is not None:
                return await self._send_document(exchange, flight, head, body)
        await self._send_live(exchange, flight, client, head)

    async def _send_document(
        self, exchange: Exchange, flight: Flight, head: Head, body: bytes
    ) -> None:
        if flight.first_content is not None:
            exchange.timings["upstream"] = flight.first_content - flight.began
        exchange.stored = flight.stored
        exchange.status = head.status
        exchange.mark_first_byte()
        own = _own(exchange, head, stored=flight.stored, not_stored=flight.not_stored)
        origin = flight.origin
        if origin is not None and origin.cost_usd is not None:
            own.append((b"x-headstart-cost", f"{origin.cost_usd:.8f}".encode()))
            if extra_usd := extra_cost_usd(flight.attempts):
                own.append((b"x-headstart-extra-cost", f"{extra_usd:.8f}".encode()))
        # What an app says of its own answer's length is left alone: if it is wrong, it shows.
        length = None if exchange.route.dialect is None else len(body)
        headers = relayed_headers(_theirs(exchange, head), own, length=length)
        await send_whole(exchange.send, head.status, headers, body)

    async def _send_live(
        self, exchange: Exchange, flight: Flight, client: Client, head: Head
    ) -> None:
        own = _own(exchange, head, not_stored=head.not_stored)
        exchange.status = head.status
        headers = relayed_headers(_theirs(exchange, head), own, stream=head.stream)
        await exchange.send(response_start(head.status, headers))
        _bound_whole(exchange, client)
        try:
            while data := await client.read():
                if exchange.first_byte is None and flight.first_content is not None:
                    exchange.mark_first_byte()
                await exchange.send({"type": "http.response.body", "body": data, "more_body": True})
        except UpstreamError as error:
            dialect = exchange.route.dialect
            if not head.stream or dialect is None:
                raise
            exchange.error = error.code
            frame = dialect.error_frame(error, exchange.id)
            await exchange.send({"type": "http.response.body", "body": frame, "more_body": False})
            return
        exchange.stored = flight.stored
        await exchange.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_early(self, exchange: Exchange, flight: Flight, client: Client) -> None:
        """Say 200 before there is an answer, and comments until there is; errors become events."""
        dialect, heartbeat = exchange.route.dialect, _heartbeat(exchange)
        assert dialect is not None
        exchange.status = 200
        own = own_headers(exchange.id, exchange.lookup, exchange.timings)
        kind = (b"content-type", dialect.content_types.stream)
        headers = (kind, *STREAM_HEADERS, *own)
        await exchange.send(response_start(200, headers))
        body: Message = {"type": "http.response.body", "body": heartbeat, "more_body": True}
        await exchange.send(body)
        _bound_whole(exchange, client)
        head: Head | None = None
        try:
            while head is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_S):
                        head = await client.head()
                if head is None:
                    await exchange.send(body)
            exchange.upstream = head.upstream
            if not (head.stream and is_plain(head.headers)):
                raise UpstreamProtocolError("the upstream answered with something else than events")
            while data := await client.read():
                exchange.mark_first_byte()
                await exchange.send({**body, "body": data})
        except UpstreamError as error:
            exchange.error = error.code
            frame = dialect.error_frame(error, exchange.id)
            await exchange.send({**body, "body": frame, "more_body": False})
            return
        exchange.stored = flight.stored
        await exchange.send({**body, "body": b"", "more_body": False})

    async def through_app(self, exchange: Exchange, app: ASGIApp) -> None:
        """Call the wrapped app as if we were not there, but for our headers."""
        own = own_headers(exchange.id, exchange.lookup, exchange.timings)

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                theirs = [(name.lower(), value) for name, value in message.get("headers", ())]
                message = {**message, "headers": [*theirs, *own]}
            elif message["type"] == "http.response.body" and message.get("body"):
                exchange.mark_first_byte()
            await exchange.send(message)

        assert exchange.body is not None
        exchange.upstream = "app"
        await app(exchange.scope, replay_body(exchange.body, exchange.receive), send)


def _bound_whole(exchange: Exchange, client: Client) -> None:
    """Let an answer that has begun take as long as a whole one may."""
    if exchange.begin_by != exchange.deadline:
        client.expire(exchange.deadline)


def _heartbeat(exchange: Exchange) -> bytes | None:
    """Return a comment that keeps a streaming client waiting, if its dialect has any."""
    dialect, request = exchange.route.dialect, exchange.request
    if dialect is None or request is None or not request.stream:
        return None
    return dialect.heartbeat


def _is_document(exchange: Exchange, head: Head) -> bool:
    """Is the answer to be sent whole, so that its headers can say what became of it?

    That is a JSON answer: of a dialect, or of an app that knows its length, so has it whole.
    """
    if exchange.route.dialect is not None:
        return not head.stream
    theirs = dict(head.headers)
    return b"content-length" in theirs and theirs.get(b"content-type", b"").startswith(JSON)


def _own(
    exchange: Exchange, head: Head, *, stored: bool = False, not_stored: str | None = None
) -> list[tuple[bytes, bytes]]:
    own = own_headers(
        exchange.id, exchange.lookup, exchange.timings, stored=stored, not_stored=not_stored
    )
    own.append((b"x-headstart-upstream", head.upstream.encode()))
    if head.transforms:
        own.append((b"x-headstart-transforms", ",".join(head.transforms).encode()))
    return own


def _theirs(exchange: Exchange, head: Head) -> Headers:
    """Return the upstream's headers; its cookies are for the caller that it was called for."""
    if exchange.lookup.outcome is not Outcome.JOINED:
        return head.headers
    return tuple(pair for pair in head.headers if pair[0] != b"set-cookie")


def fit(answer: Completion, request: ChatRequest) -> Completion:
    """Return the stored answer without choices and log probabilities that were not asked for."""
    surplus = len(answer.choices) > request.choices
    if not surplus and (request.logprobs or not any(c.logprobs for c in answer.choices)):
        return answer
    choices = answer.choices[: request.choices]
    if not request.logprobs:
        choices = tuple(msgspec.structs.replace(choice, logprobs=None) for choice in choices)
    return msgspec.structs.replace(answer, choices=choices)


async def error_answer(exchange: Exchange, error: HeadstartError) -> None:
    """Answer with an error in the caller's dialect: the provider's own words, where it has any."""
    own = own_headers(
        exchange.id, exchange.lookup, exchange.timings, not_stored=exchange.not_stored
    )
    if isinstance(error, UpstreamRefused):
        status, body = error.status, error.body
        headers = relayed_headers(error.headers, [], length=len(body))
    else:
        status, headers, body = error_response(
            error, exchange.route.dialect, exchange.id, again=exchange.seat is not None
        )
    exchange.status = status
    if exchange.upstream:
        own.append((b"x-headstart-upstream", exchange.upstream.encode()))
    await send_whole(exchange.send, status, (*headers, *own), body)
