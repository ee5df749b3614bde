"""Faults of a simulated provider, and its weather, which decides when they occur.

A fault is one of the structs below. A test names it as JSON in the request header ``x-sim-fault``
(``Cut(after=5).header()`` makes the JSON), or gives it to the whole simulator. A fault changes the
scripted reply and does no I/O itself; ``ReplySender`` then sends that reply.

``after`` counts generated tokens. None means before the status line, 0 means after the headers and
before the first event, 5 means after the fifth token. For a reply that is not streamed any number
means the middle of its body.
"""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from headstart.errors import ConfigError
from headstart.lab.simulator.oracle import Alternative, Generation
from headstart.lab.simulator.profiles import find_named, read_table
from headstart.lab.simulator.simulated_calls import Ending, ScriptedError, ScriptedReply, TimedPiece
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headstart.lab.simulator.simulated_calls import Wire

HEADER = b"x-sim-fault"

_OOPS = "The server had an error while processing your request."
_replace = msgspec.structs.replace


class _Fault(Frozen, tag_field="fault", forbid_unknown_fields=True):
    """A fault changes a scripted reply, or the answer before it is written."""

    times: int | None = None
    """The number of requests that get the fault, counted for each distinct fault; None: all."""

    def header(self) -> str:
        """Return the value of ``x-sim-fault`` that asks for this fault."""
        return msgspec.json.encode(self).decode()

    def change_answer(self, generation: Generation) -> Generation:
        """Return the answer with this fault."""
        return generation

    def change_reply(self, reply: ScriptedReply, wire: Wire) -> ScriptedReply:
        """Return the reply with this fault, in the dialect ``wire``."""
        return reply


class Status(_Fault, tag="status"):
    """Answer with an HTTP error: a body in dialect, or ``body`` as it is."""

    status: int = 500
    message: str = _OOPS
    type: str | None = None
    """None: the type that goes with the status in the dialect."""
    code: str | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    body: str | None = None

    def change_reply(self, reply: ScriptedReply, wire: Wire) -> ScriptedReply:
        body = wire.error(ScriptedError(self.status, self.message, self.code, self.type))
        if self.body is not None:
            body = self.body.encode()
        failed = ScriptedReply(
            status=self.status, headers=reply.headers, pieces=(TimedPiece(0.0, body),)
        )
        failed = failed.with_header(b"content-type", b"application/json").with_body(body)
        for name, value in self.headers.items():
            failed = failed.with_header(name.lower().encode("latin-1"), value.encode("latin-1"))
        return failed


class ErrorFrame(_Fault, tag="error-frame"):
    """End a 200 stream with an error event and no terminal event.

    An answer that is not streamed has the status 200 and the error as its body.
    """

    after: int = 0
    message: str = _OOPS
    code: str | None = None
    named: bool = False
    """Send ``event: error`` before it, as Groq does; Anthropic always does."""

    def change_reply(self, reply: ScriptedReply, wire: Wire) -> ScriptedReply:
        failed = ScriptedError(500, self.message, self.code)
        if not reply.stream:
            return reply.with_body(wire.error(failed))
        sent, _ = reply.split(self.after)
        event = wire.error_event(failed, named=self.named)
        return _replace(reply, pieces=(*sent, TimedPiece(reply.last_sent_s(sent), event)))


class Cut(_Fault, tag="cut"):
    """Break off: by RST, by FIN inside the body, or by a proper end of a body that is too short."""

    after: int | None = None
    how: Ending = "reset"
    delay_s: float = 0.0
    """Seconds of silence before the connection breaks."""

    def __post_init__(self) -> None:
        if self.after is None and self.how == "end":
            raise ValueError("nothing can end properly before the status line; use close or reset")

    def change_reply(self, reply: ScriptedReply, wire: Wire) -> ScriptedReply:
        if self.after is None:
            at_s = reply.last_sent_s(()) + self.delay_s
            return _replace(reply, head_at_s=None, pieces=(), ending=self.how, ending_at_s=at_s)
        sent, _ = reply.split(self.after)
        at_s = reply.last_sent_s(sent) + self.delay_s
        whole = reply.without_length() if self.how == "end" else reply
        return _replace(whole, pieces=sent, ending=self.how, ending_at_s=at_s)


class Stall(_Fault, tag="stall"):
    """Fall silent for a while, then go on as if nothing had happened."""

    seconds: float = 30.0
    after: int | None = None
    keep_alive_s: float | None = None
    """The interval of the dialect's keep-alive bytes during the silence; None: no such bytes."""

    def __post_init__(self) -> None:
        if self.keep_alive_s is not None and self.keep_alive_s <= 0:
            raise ValueError("keep_alive_s has to be above zero")

    def change_reply(self, reply: ScriptedReply, wire: Wire) -> ScriptedReply:
        if self.after is None:
            head_at_s = reply.last_sent_s(()) + self.seconds
            return _replace(reply, head_at_s=head_at_s, pieces=self._delay(reply.pieces))
        sent, rest = reply.split(self.after)
        alive = self._keep_alive(reply.last_sent_s(sent), wire)
        return _replace(reply, pieces=sent + alive + self._delay(rest))

    def _keep_alive(self, from_s: float, wire: Wire) -> tuple[TimedPiece, ...]:
        if self.keep_alive_s is None or not wire.keep_alive:
            return ()
        count = math.ceil(self.seconds / self.keep_alive_s)
        times = (from_s + number * self.keep_alive_s for number in range(count))
        return tuple(TimedPiece(at_s, wire.keep_alive) for at_s in times)

    def _delay(self, pieces: tuple[TimedPiece, ...]) -> tuple[TimedPiece, ...]:
        return tuple(_replace(piece, at_s=piece.at_s + self.seconds) for piece in pieces)


class Trickle(_Fault, tag="trickle"):
    """Send the body a few bytes at a time."""

    bytes: int = 1
    every_s: float = 0.05

    def __post_init__(self) -> None:
        if self.bytes < 1:
            raise ValueError("a trickle has at least one byte at a time")

    def change_reply(self, reply: ScriptedReply, wire: Wire) -> ScriptedReply:
        return _replace(reply, pieces=tuple(self._drip(reply.pieces)))

    def _drip(self, pieces: tuple[TimedPiece, ...]) -> Iterator[TimedPiece]:
        free_s = 0.0
        for piece in pieces:
            drops = range(0, len(piece.data), self.bytes)
            for start in drops:
                at_s = max(piece.at_s, free_s)
                drop = piece.data[start : start + self.bytes]
                yield TimedPiece(at_s, drop, delta=piece.delta and start == drops[-1])
                free_s = at_s + self.every_s


class SlowHeaders(_Fault, tag="slow-headers"):
    """Send the status line and headers byte by byte, over this many seconds."""

    seconds: float = 1.0

    def change_reply(self, reply: ScriptedReply, wire: Wire) -> ScriptedReply:
        return _replace(reply, head_takes_s=self.seconds)


class Empty(_Fault, tag="empty"):
    """Answer 200 with no body, or with the last event alone, such as a bare ``[DONE]``."""

    done: bool = False

    def change_reply(self, reply: ScriptedReply, wire: Wire) -> ScriptedReply:
        at_s = reply.last_sent_s(())
        ends = (piece for piece in reply.pieces if piece.terminal and self.done)
        body = tuple(TimedPiece(at_s, end.data, terminal=True) for end in ends)
        return _replace(reply.without_length(), pieces=body)


class InvalidEvent(_Fault, tag="invalid-event"):
    """Send one event that is not JSON, then go on; without a stream, a body that is not JSON."""

    after: int = 0

    def change_reply(self, reply: ScriptedReply, wire: Wire) -> ScriptedReply:
        sent, rest = reply.split(self.after)
        if not reply.stream:
            return reply.with_body(sent[0].data)
        broken = TimedPiece(reply.last_sent_s(sent), wire.broken_event)
        return _replace(reply, pieces=(*sent, broken, *rest))


class LongLine(_Fault, tag="long-line"):
    """Pad the next event's line with this much white space; without a stream, pad the body."""

    after: int = 0
    bytes: int = 1 << 20

    def change_reply(self, reply: ScriptedReply, wire: Wire) -> ScriptedReply:
        sent, rest = reply.split(self.after)
        padding = b" " * self.bytes
        if not reply.stream:
            return reply.with_body(padding + sent[0].data + rest[0].data)
        line = rest[0].data.replace(b"data: ", b"data: " + padding, 1)
        return _replace(reply, pieces=(*sent, _replace(rest[0], data=line), *rest[1:]))


class Gzip(_Fault, tag="gzip"):
    """Compress the body, though the client did not ask for it."""

    def change_reply(self, reply: ScriptedReply, wire: Wire) -> ScriptedReply:
        packed = tuple(self._compress(reply.pieces))
        return _replace(
            reply.without_length().with_header(b"content-encoding", b"gzip"), pieces=packed
        )

    def _compress(self, pieces: tuple[TimedPiece, ...]) -> Iterator[TimedPiece]:
        packer = zlib.compressobj(wbits=31)
        for piece in pieces:
            data = packer.compress(piece.data) + packer.flush(zlib.Z_SYNC_FLUSH)
            yield _replace(piece, data=data)
        yield TimedPiece(pieces[-1].at_s, packer.flush())


class ContentType(_Fault, tag="content-type"):
    """Claim another content type."""

    value: str = "text/html"

    def change_reply(self, reply: ScriptedReply, wire: Wire) -> ScriptedReply:
        return reply.with_header(b"content-type", self.value.encode("latin-1"))


class NoDone(_Fault, tag="no-done"):
    """Leave out the last event, such as ``[DONE]``; the body ends properly."""

    def change_reply(self, reply: ScriptedReply, wire: Wire) -> ScriptedReply:
        return _replace(reply, pieces=tuple(p for p in reply.pieces if not p.terminal))


class LateEnd(_Fault, tag="late-end"):
    """Keep the body open for this long after its last event."""

    seconds: float = 0.05

    def change_reply(self, reply: ScriptedReply, wire: Wire) -> ScriptedReply:
        end_s = reply.last_sent_s(reply.pieces) + self.seconds
        return _replace(reply.without_length(), ending_at_s=end_s)


class UnknownFields(_Fault, tag="unknown-fields"):
    """Put a field that no client knows into each event; without a stream, into the body."""

    def change_reply(self, reply: ScriptedReply, wire: Wire) -> ScriptedReply:
        field = b'{"x_future":{"level":[1,null,"a"]},'
        if not reply.stream:
            return reply.with_body(reply.pieces[0].data.replace(b"{", field, 1))
        return _replace(
            reply,
            pieces=tuple(
                _replace(piece, data=piece.data.replace(b"data: {", b"data: " + field))
                for piece in reply.pieces
            ),
        )


class Filtered(_Fault, tag="filtered"):
    """Answer 200, say nothing, and finish as a content filter does."""

    def change_answer(self, generation: Generation) -> Generation:
        blocked = Alternative(finish="content_filter")
        return _replace(generation, alternatives=(blocked,) * len(generation.alternatives))


Fault: TypeAlias = (
    Status
    | ErrorFrame
    | Cut
    | Stall
    | SlowHeaders
    | Empty
    | InvalidEvent
    | LongLine
    | Gzip
    | ContentType
    | NoDone
    | Trickle
    | LateEnd
    | UnknownFields
    | Filtered
)

_decoder: msgspec.json.Decoder[Fault] = msgspec.json.Decoder(Fault)


def decode_fault(value: bytes) -> Fault:
    """Decode an ``x-sim-fault`` header. Raises msgspec.DecodeError naming what is wrong."""
    return _decoder.decode(value)


class WeatherEffect(Frozen):
    """The fault and the slowness of one request."""

    fault: Fault | None = None
    slower: float = 1.0
    """Multiplies the time to first token, and divides the decoding speed."""


class Spell(Frozen, forbid_unknown_fields=True):
    """A stretch of bad weather. Times are simulated seconds since the start or the last reset."""

    from_s: float = 0.0
    to_s: float | None = None
    """None: the bad weather never ends."""
    fault: Fault | None = None
    share: float = 1.0
    """The share of requests that get the fault."""
    slower: float = 1.0
    worsens: bool = False
    """``share`` and ``slower`` grow evenly from nothing to their full values at ``to_s``."""
    period_s: float | None = None
    """The length of a period, which has fair weather first and then bad weather."""
    fair_share: float = 0.5
    """The share of fair weather in each period."""

    def __post_init__(self) -> None:
        if self.worsens and self.to_s is None:
            raise ValueError("weather that worsens needs to_s, by which it is at its worst")

    def strength(self, at_s: float) -> float:
        """Return how bad the weather is: 0 for fair, 1 for the worst."""
        if at_s < self.from_s or (self.to_s is not None and at_s >= self.to_s):
            return 0.0
        if self.period_s and (at_s - self.from_s) % self.period_s < self.fair_share * self.period_s:
            return 0.0
        if self.worsens and self.to_s is not None:
            return (at_s - self.from_s) / (self.to_s - self.from_s)
        return 1.0


def weather_effect(spells: Iterable[Spell], at_s: float, draw: float) -> WeatherEffect:
    """Return the fault and slowness of a request at this time.

    ``draw``, uniform on [0, 1), decides whether the request belongs to the share with the fault. Of
    several faults the first one applies; several slownesses multiply.
    """
    fault, slower = None, 1.0
    for spell in spells:
        strength = spell.strength(at_s)
        slower *= 1 + (spell.slower - 1) * strength
        if fault is None and draw < spell.share * strength:
            fault = spell.fault
    return WeatherEffect(fault=fault, slower=slower)


class _WeatherFile(Frozen, forbid_unknown_fields=True):
    spell: tuple[Spell, ...]


WEATHERS = read_table("weather.toml", dict[str, tuple[Spell, ...]])
"""The named weathers of ``weather.toml``."""


def read_weather(toml: bytes) -> tuple[Spell, ...]:
    """Read ``[[spell]]`` tables. Raises ConfigError naming what is wrong."""
    try:
        return msgspec.toml.decode(toml, type=_WeatherFile).spell
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the weather cannot be read: {error}") from error


def find_weather(name: str) -> tuple[Spell, ...]:
    """Return a weather by name. Raises ConfigError with the nearest valid name."""
    return find_named("weather", WEATHERS, name)
