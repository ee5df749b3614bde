"""Requests and replies of the simulator, their sending on time, and the statistics of the calls."""

from __future__ import annotations

import socket
import struct
from collections import Counter, deque
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias
from urllib.parse import parse_qs

import anyio
import msgspec

from headstart.lab.simulator.chat_request import BadRequest, ChatBody
from headstart.lab.simulator.oracle import Generation, Likelihood, likelihoods
from headstart.types import Frozen, Headers

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, MutableMapping

    from headstart.lab.simulator.profiles import Draw, LimitForm


CREDENTIALS = (b"authorization", b"x-api-key", b"x-goog-api-key", b"api-key")
"""The headers that may carry a key."""


class SimulatedRequest(Frozen):
    """One request, read whole. ``at_s``: simulated seconds since the start or the last reset."""

    id: str
    number: int
    at_s: float
    method: str
    path: bytes
    query: bytes
    headers: Headers
    body: bytes
    draw: Draw

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header, or None."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def credential(self) -> bytes:
        """The request's key, without ``Bearer``, or the id of its AWS key; "" if it has none."""
        for name in CREDENTIALS:
            if (value := self.header(name)) is not None:
                signed = value.partition(b"Credential=")[2].partition(b"/")[0]
                return signed or value.removeprefix(b"Bearer ")
        return parse_qs(self.query).get(b"key", [b""])[0]


Ending = Literal["end", "close", "reset"]
"""``end``: the HTTP body ends properly; ``close``: FIN in the middle of it; ``reset``: RST."""


class TimedPiece(msgspec.Struct, frozen=True):
    """Bytes that are due ``at_s`` seconds after the request; ``delta`` marks generated tokens.

    ``terminal``: without these bytes the stream has no proper end.
    """

    at_s: float
    data: bytes
    delta: bool = False
    terminal: bool = False


class ScriptedReply(Frozen):
    """A scripted HTTP answer. Times are simulated seconds since the request was read."""

    status: int
    headers: Headers
    pieces: tuple[TimedPiece, ...]
    stream: bool = False
    head_at_s: float | None = 0.0
    """The time when the status and headers are sent; None: never."""
    head_takes_s: float = 0.0
    """Above zero the head is sent slowly over this time, and the body ends the connection."""
    ending: Ending = "end"
    ending_at_s: float = 0.0

    @property
    def at_once(self) -> bool:
        """True when all of it is due at once, so that the client has no time to leave."""
        return (
            self.ending == "end"
            and self.head_takes_s == self.head_at_s == self.ending_at_s == 0.0
            and (not self.pieces or self.pieces[-1].at_s == 0.0)
        )

    @property
    def needs_transport(self) -> bool:
        """True for a broken connection or a slow head, which ASGI cannot express."""
        return self.ending != "end" or self.head_takes_s > 0

    def split(self, tokens: int) -> tuple[tuple[TimedPiece, ...], tuple[TimedPiece, ...]]:
        """Cut the pieces after ``tokens`` tokens, or an unstreamed body in its middle."""
        if not self.stream:
            (whole,) = self.pieces
            middle = len(whole.data) // 2
            first, second = whole.data[:middle], whole.data[middle:]
            return (TimedPiece(whole.at_s, first),), (TimedPiece(whole.at_s, second),)
        ends = [0, *(place for place, piece in enumerate(self.pieces, 1) if piece.delta)]
        end = ends[min(tokens, len(ends) - 1)]
        return self.pieces[:end], self.pieces[end:]

    def last_sent_s(self, sent: tuple[TimedPiece, ...]) -> float:
        """Return when the last of these pieces is due, or the head if there is none."""
        return sent[-1].at_s if sent else self.head_at_s or 0.0

    def with_body(self, body: bytes) -> ScriptedReply:
        """Return the reply with another body in one piece, due at the time of the old one."""
        piece = TimedPiece(self.last_sent_s(self.pieces), body)
        sized = self.with_header(b"content-length", b"%d" % len(body))
        return msgspec.structs.replace(sized, pieces=(piece,))

    def with_header(self, name: bytes, value: bytes) -> ScriptedReply:
        """Return the reply with a header set, in place of any of that name."""
        kept = tuple(pair for pair in self.headers if pair[0] != name)
        return msgspec.structs.replace(self, headers=(*kept, (name, value)))

    def with_headers(self, more: Headers) -> ScriptedReply:
        """Return the reply with further headers."""
        return msgspec.structs.replace(self, headers=(*self.headers, *more))

    def without_length(self) -> ScriptedReply:
        """Return the reply without ``content-length``, so that its body is sent in chunks."""
        kept = tuple(pair for pair in self.headers if pair[0] != b"content-length")
        return msgspec.structs.replace(self, headers=kept)


_JSON = (b"content-type", b"application/json")


def json_reply(
    status: int, body: bytes, headers: Headers = (), *, at_s: float = 0.0
) -> ScriptedReply:
    """Return a JSON reply with head and body due at the same time."""
    length = (b"content-length", b"%d" % len(body))
    return ScriptedReply(
        status=status,
        headers=(_JSON, length, *headers),
        pieces=(TimedPiece(at_s, body),),
        head_at_s=at_s,
    )


class ScriptedError(NamedTuple):
    """An error, from which a dialect writes its own form of error."""

    status: int
    message: str
    code: str | None = None
    type: str | None = None
    """None: the type that goes with the status in the dialect."""
    retry_after_s: float | None = None


def error_reply(wire: Wire, error: ScriptedError) -> ScriptedReply:
    """Return an error in a dialect."""
    return json_reply(error.status, wire.error(error))


SIGNATURE = "c2ltdWxhdGVkLXNpZ25hdHVyZQ=="
"""What dialects with signatures put beside reasoning and calls."""


class PromptBlock(NamedTuple):
    """A block of a prompt: a tool, a text, a call or a result."""

    text: str
    """The text of it that counts as tokens."""
    mark: dict[str, Any] | None = None
    """Asks for the prompt up to the end of this block to be cached."""

    @property
    def lifetime_s(self) -> float | None:
        """Seconds for which it is cached: an hour, or five minutes. None: it has no mark."""
        if self.mark is None:
            return None
        return 3600.0 if self.mark.get("ttl") == "1h" else 300.0


MOST_MARKS = 4
"""Most marks for the prompt cache in a request, as at Anthropic."""


def checked_marks(blocks: Iterable[PromptBlock]) -> list[PromptBlock]:
    """Return the blocks. Raises BadRequest if they have more than four marks, as providers do."""
    listed = list(blocks)
    found = sum(block.mark is not None for block in listed)
    if found > MOST_MARKS:
        raise BadRequest(
            f"A maximum of {MOST_MARKS} blocks with cache_control may be provided. Found {found}."
        )
    return listed


class SimulatedAnswer(Frozen):
    """A whole answer before a dialect writes it. A simulated token is one word."""

    id: str
    """Hexadecimal; the dialect puts its prefix before it."""
    created: int
    """Unix seconds."""
    chat: ChatBody
    generation: Generation
    cached_tokens: int = 0
    """Tokens of the prompt that were read from the prefix cache."""
    written_tokens: int = 0
    """Tokens of the prompt that were written to it."""
    counted: int | None = None
    """Tokens of the prompt, if a tokenizer counted them."""
    query: bytes = b""
    """The query string of the request."""

    @property
    def model(self) -> str:
        return self.chat.model

    @property
    def prompt_tokens(self) -> int:
        return self.chat.prompt_tokens if self.counted is None else self.counted

    @property
    def completion_tokens(self) -> int:
        return sum(choice.completion_tokens for choice in self.generation.alternatives)

    @property
    def reasoning_tokens(self) -> int:
        return sum(len(choice.reasoning) for choice in self.generation.alternatives)

    def likelihoods(self, tokens: tuple[str, ...]) -> tuple[Likelihood, ...] | None:
        """Return the log-probabilities of tokens; None if the request does not ask for them."""
        if not self.chat.logprobs:
            return None
        return likelihoods(self.generation.class_id, tokens, self.chat.top_logprobs or 0)


class Pace(Frozen):
    """The times when tokens are due, in simulated seconds since the request."""

    ttft_s: float
    tokens_per_s: float

    def at_s(self, token: int) -> float:
        """Return when a token is due; the first is number 0."""
        return self.ttft_s + token / self.tokens_per_s

    def stream(self, parts: Iterable[StreamedPart]) -> Generator[TimedPiece, None, float]:
        """Yield the events when they are due. Return the time of the last one."""
        token, at_s = 0, self.ttft_s
        for part in parts:
            at_s = self.at_s(token)
            if part.opened:
                yield TimedPiece(at_s, part.opened)
            for delta in part.deltas:
                at_s = self.at_s(token)
                yield TimedPiece(at_s, delta, delta=True)
                token += 1
            yield TimedPiece(at_s, part.closed)
        return at_s


class StreamedPart(NamedTuple):
    """The events of one part of an answer: its begin, one for each token, and its end."""

    opened: bytes
    """Empty where the dialect has no such event."""
    deltas: Iterable[bytes]
    closed: bytes


class Wire:
    """One dialect: it reads requests and writes answers, errors and headers, and does no I/O."""

    endpoint: str
    """The name of its calls in the statistics."""
    limit_headers: LimitForm = "none"
    """The form of its rate-limit headers, where a profile names no other."""
    refused_key: ScriptedError
    """Its error for a key that is not known."""
    stream_type = b"text/event-stream; charset=utf-8"
    """The media type of its streams."""
    keep_alive = b""
    """The bytes that keep a silent connection alive; empty where the dialect has none."""
    broken_event: bytes
    """An event whose data is not JSON."""

    def read(self, incoming: SimulatedRequest) -> ChatBody:
        """Return the request in the common terms. Raises BadRequest, whose text the caller gets."""
        raise NotImplementedError

    def blocks(self, body: bytes) -> list[PromptBlock] | None:
        """Return a prompt's blocks, where only marked prefixes are cached.

        None: the provider caches every prompt, as most do.
        """
        return None

    def whole(self, answer: SimulatedAnswer) -> bytes:
        """Return the body of an answer that is not streamed."""
        raise NotImplementedError

    def events(self, answer: SimulatedAnswer, pace: Pace) -> Iterator[TimedPiece]:
        """Yield the events of a stream in order, each with the time at which it is due."""
        raise NotImplementedError

    def error(self, error: ScriptedError) -> bytes:
        """Return an error body."""
        raise NotImplementedError

    def error_event(self, error: ScriptedError, *, named: bool) -> bytes:
        """Return the event that ends a stream which failed."""
        raise NotImplementedError

    def headers(self, answer_id: str, ttft_s: float) -> Headers:
        """Return the headers of every answer."""
        raise NotImplementedError


# --- sending on time ------------------------------------------------------------------------------

Message: TypeAlias = "MutableMapping[str, Any]"
Receive: TypeAlias = "Callable[[], Awaitable[Message]]"
Send: TypeAlias = "Callable[[Message], Awaitable[None]]"

_LINGER_ZERO = struct.pack("ii", 1, 0)
"""The ``struct linger`` with which close(2) sends RST."""


class CallOutcome(StrEnum):
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    """The client left before the reply was whole."""
    BROKEN = "broken"
    """The simulator itself broke the connection off."""


@dataclass(slots=True, eq=False)
class ReplySender:
    """Sends one reply when its pieces are due.

    ``deltas`` and ``sent`` (body bytes) grow meanwhile. ``head_s`` and ``first_token_s`` are the
    real seconds from the request to the headers and to the first token, None until then.
    """

    reply: ScriptedReply
    receive: Receive
    send: Send
    transport: asyncio.Transport | None
    speed: float = 1.0
    deltas: int = 0
    sent: int = 0
    head_s: float | None = None
    first_token_s: float | None = None
    _start: float = 0.0

    async def run(self) -> CallOutcome:
        """Send the reply. Returns early, without error, when the client leaves.

        Raises RuntimeError when the reply needs a transport and there is none.
        """
        self._start = anyio.current_time()
        if self.reply.at_once:
            await self._send_head()
            self._count(sum(piece.delta for piece in self.reply.pieces))
            await self._send_body(b"".join([piece.data for piece in self.reply.pieces]), more=False)
            return CallOutcome.COMPLETED
        if self.reply.needs_transport:
            self._connection()
        outcome = CallOutcome.CANCELLED
        async with anyio.create_task_group() as group:
            group.start_soon(self._cancel_on_disconnect, group.cancel_scope)
            outcome = await self._send_on_time()
            group.cancel_scope.cancel()
        if self.reply.needs_transport:
            await self._disconnected()
        return outcome

    async def _cancel_on_disconnect(self, scope: anyio.CancelScope) -> None:
        await self._disconnected()
        scope.cancel()

    async def _disconnected(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def _send_on_time(self) -> CallOutcome:
        reply = self.reply
        if reply.head_at_s is not None:
            await self._wait(reply.head_at_s)
            if reply.head_takes_s:
                await self._trickle()
                return CallOutcome.COMPLETED
            await self._send_head()
            await self._send_pieces(reply.pieces)
        await self._wait(reply.ending_at_s)
        if reply.ending == "end":
            await self._send_body(b"", more=False)
            return CallOutcome.COMPLETED
        self._break_off(reply.ending)
        return CallOutcome.BROKEN

    async def _send_pieces(self, pieces: tuple[TimedPiece, ...]) -> None:
        """Send each piece when it is due; pieces that are due together share one write."""
        due: list[bytes] = []
        for piece in pieces:
            if due and self._seconds_until(piece.at_s) > 0:
                await self._send_body(b"".join(due), more=True)
                due.clear()
            await self._wait(piece.at_s)
            due.append(piece.data)
            self._count(piece.delta)
        if due:
            await self._send_body(b"".join(due), more=True)

    def _count(self, deltas: int) -> None:
        self.deltas += deltas
        if self.deltas and self.first_token_s is None:
            self.first_token_s = anyio.current_time() - self._start

    def _seconds_until(self, at_s: float) -> float:
        return self._start + at_s / self.speed - anyio.current_time()

    async def _wait(self, at_s: float) -> None:
        seconds = self._seconds_until(at_s)
        if seconds > 0:
            await anyio.sleep(seconds)

    async def _send_head(self) -> None:
        self.head_s = anyio.current_time() - self._start
        await self.send(
            {
                "type": "http.response.start",
                "status": self.reply.status,
                "headers": list(self.reply.headers),
            }
        )

    async def _send_body(self, data: bytes, *, more: bool) -> None:
        self.sent += len(data)
        await self.send({"type": "http.response.body", "body": data, "more_body": more})

    def _connection(self) -> asyncio.Transport:
        if self.transport is None:
            raise RuntimeError("this fault needs the transport: use headstart.lab.simulator.serve")
        return self.transport

    def _break_off(self, ending: Ending) -> None:
        """Close the connection after the bytes that were written."""
        if ending == "reset":
            raw = self._connection().get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self._connection().close()

    async def _trickle(self) -> None:
        """Write the head byte by byte past ASGI, then the body, and close."""
        reply = self.reply
        phrase = HTTPStatus(reply.status).phrase
        lines = [f"HTTP/1.1 {reply.status} {phrase}".encode(), b"connection: close"]
        lines += [name + b": " + value for name, value in reply.headers]
        head = b"\r\n".join(lines) + b"\r\n\r\n"
        self.head_s = anyio.current_time() - self._start
        for place in range(len(head)):
            await self._wait((reply.head_at_s or 0.0) + reply.head_takes_s * place / len(head))
            self._connection().write(head[place : place + 1])
        for piece in reply.pieces:
            await self._wait(piece.at_s)
            self._connection().write(piece.data)
            self.sent += len(piece.data)
            self._count(piece.delta)
        self._connection().close()


# --- records and statistics of the calls ----------------------------------------------------------

_CANCELLATIONS = 1000
"""The number of cancelled calls with details in a snapshot."""
_ENDED_CALLS = 50_000
"""The number of calls that are remembered one by one."""


class Cancelled(Frozen):
    """A call whose client left before the reply was whole."""

    request_id: str
    at: float
    """Unix seconds at which the disconnect was seen."""
    ago_s: float
    """Seconds from the disconnect to this snapshot."""
    after_s: float
    """Seconds from the request to the disconnect."""
    deltas: int
    """Generated tokens sent by then."""


class CallFacts(Frozen):
    """The facts of a call that are known when its answer begins."""

    endpoint: str
    status: int
    model: str = ""
    stream: bool = False
    fault: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    answer_tokens: int = 0
    """Tokens of the whole answer, sent or not; 0 for an error."""


class AnsweredCall(NamedTuple):
    """The facts of a call, and its reply."""

    facts: CallFacts
    reply: ScriptedReply


def answered_call(
    endpoint: str, model: str, document: dict[str, Any], prompt_tokens: int = 0
) -> AnsweredCall:
    """Return the answer to a call that is not a chat."""
    facts = CallFacts(endpoint=endpoint, status=200, model=model, prompt_tokens=prompt_tokens)
    return AnsweredCall(facts, json_reply(200, msgspec.json.encode(document)))


class EndedCall(CallFacts, kw_only=True, omit_defaults=False):
    """One call from its arrival to its end. Seconds are real ones, since ``at``."""

    request_id: str
    number: int
    at: float
    """Unix seconds at which the whole request had arrived."""
    head_s: float | None
    """The time when the status line was sent; None: never."""
    first_token_s: float | None
    ended_s: float
    cancelled_at: float | None
    """Unix seconds at which the client's socket was seen closed, before the reply was whole."""
    outcome: CallOutcome
    sent_tokens: int
    bytes_out: int
    credential: str
    """Eight hexadecimal digits that identify the key; empty without one."""
    headers: dict[str, str]
    """The request's headers without the credentials."""

    def billed(self, *, cancels_billing: bool) -> tuple[int, int]:
        """Return the input and output tokens on the bill.

        An error costs nothing. A cancelled stream costs its prompt; if a cancellation stops
        billing, it also costs the sent tokens, else the whole answer. A cancelled call without a
        stream costs the whole answer.
        """
        if self.status >= 400 or not self.answer_tokens:
            return 0, 0
        whole = self.outcome is CallOutcome.COMPLETED or not (self.stream and cancels_billing)
        return self.prompt_tokens, self.answer_tokens if whole else self.sent_tokens


class Snapshot(Frozen, omit_defaults=False):
    """Counts since the start or the last reset. ``calls`` is the sum of the next four."""

    calls: int
    in_flight: int
    completed: int
    cancelled: int
    broken: int
    errors: int
    """Replies with a status of 400 or more; part of ``completed``."""
    bytes_in: int
    bytes_out: int
    deltas: int
    endpoints: dict[str, int]
    cancellations: tuple[Cancelled, ...]


class OpenCall(NamedTuple):
    """A call that has arrived and has not ended."""

    incoming: SimulatedRequest
    facts: CallFacts
    at: float
    since_reset: int


class SimulatorStats:
    """Counts calls. Every method is called on the event loop, with Unix time from ``clock``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._resets = 0
        self._clear()

    def _clear(self) -> None:
        self._in_flight = self._errors = 0
        self._bytes_in = self._bytes_out = self._deltas = 0
        self._endpoints: Counter[str] = Counter()
        self._outcomes: Counter[CallOutcome] = Counter()
        self._cancellations: deque[EndedCall] = deque(maxlen=_CANCELLATIONS)
        self._ended: deque[EndedCall] = deque(maxlen=_ENDED_CALLS)

    def reset(self) -> None:
        """Start from zero. Calls in flight are not counted when they end."""
        self._resets += 1
        self._clear()

    def begin(self, incoming: SimulatedRequest, facts: CallFacts) -> OpenCall:
        """Count a call that has arrived."""
        self._in_flight += 1
        self._bytes_in += len(incoming.body)
        self._endpoints[facts.endpoint] += 1
        return OpenCall(incoming, facts, self._clock(), self._resets)

    def finish(self, seen: OpenCall, outcome: CallOutcome, sender: ReplySender) -> None:
        """Count a call that has ended, and remember it."""
        if seen.since_reset != self._resets:
            return
        now = self._clock()
        self._in_flight -= 1
        self._outcomes[outcome] += 1
        self._bytes_out += sender.sent
        self._deltas += sender.deltas
        if outcome is CallOutcome.COMPLETED:
            self._errors += seen.facts.status >= 400
        call = _end(seen, outcome, sender, now)
        self._ended.append(call)
        if outcome is CallOutcome.CANCELLED:
            self._cancellations.append(call)

    def ended_calls(self, since: int = 0) -> tuple[EndedCall, ...]:
        """Return the calls whose number is ``since`` or more, in the order of their ends."""
        return tuple(call for call in self._ended if call.number >= since)

    def snapshot(self) -> Snapshot:
        """Return the counts as they are now."""
        now = self._clock()
        return Snapshot(
            calls=self._endpoints.total(),
            in_flight=self._in_flight,
            completed=self._outcomes[CallOutcome.COMPLETED],
            cancelled=self._outcomes[CallOutcome.CANCELLED],
            broken=self._outcomes[CallOutcome.BROKEN],
            errors=self._errors,
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
            deltas=self._deltas,
            endpoints=dict(self._endpoints),
            cancellations=tuple(
                Cancelled(
                    request_id=call.request_id,
                    at=call.at + call.ended_s,
                    ago_s=now - call.at - call.ended_s,
                    after_s=call.ended_s,
                    deltas=call.sent_tokens,
                )
                for call in self._cancellations
            ),
        )


def _end(seen: OpenCall, outcome: CallOutcome, sender: ReplySender, now: float) -> EndedCall:
    incoming, key = seen.incoming, seen.incoming.credential
    return EndedCall(
        **msgspec.structs.asdict(seen.facts),
        request_id=incoming.id,
        number=incoming.number,
        at=seen.at,
        head_s=sender.head_s,
        first_token_s=sender.first_token_s,
        ended_s=now - seen.at,
        cancelled_at=now if outcome is CallOutcome.CANCELLED else None,
        outcome=outcome,
        sent_tokens=sender.deltas,
        bytes_out=sender.sent,
        credential=blake2b(key, digest_size=4).hexdigest() if key else "",
        headers={
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in incoming.headers
            if name not in CREDENTIALS
        },
    )
