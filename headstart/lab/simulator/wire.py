"""Requests, answers and replies of the simulator, and the base of its dialects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import parse_qs

import msgspec

from headstart.lab.simulator.chat_request import BadRequest, ChatBody
from headstart.lab.simulator.generation import Generation  # noqa: TC001 - msgspec reads it
from headstart.types import Frozen, Headers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
        """The key that came along, without ``Bearer``, or the id of AWS's; "" without any."""
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
        """Cut the pieces after so many tokens, or the body in its middle if it is not streamed."""
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
    """An error before any dialect has worded it."""

    status: int
    message: str
    code: str | None = None
    type: str | None = None
    """None: the type that goes with the status in the dialect."""
    retry_after_s: float | None = None


def error_reply(wire: Wire, error: ScriptedError) -> ScriptedReply:
    """Return an error in a dialect."""
    return json_reply(error.status, wire.error(error))


def unknown_url(wire: Wire, method: str, path: bytes) -> ScriptedReply:
    """Return the 404 for a path or method that is not served."""
    message = f"Unknown request URL: {method} {path.decode('latin-1')}."
    return error_reply(wire, ScriptedError(404, message, "unknown_url"))


class PromptBlock(NamedTuple):
    """A block of a prompt: a tool, a text, a call or a result."""

    text: str
    """What is counted of it."""
    lifetime_s: float | None = None
    """The prompt up to its end is to be cached for so long. None: it has no mark."""


MOST_MARKS = 4


def within_marks(blocks: Iterable[PromptBlock]) -> list[PromptBlock]:
    """Return the blocks. Raises BadRequest for more than four marks, as the providers do."""
    listed = list(blocks)
    found = sum(block.lifetime_s is not None for block in listed)
    if found > MOST_MARKS:
        raise BadRequest(
            f"A maximum of {MOST_MARKS} blocks with cache_control may be provided. Found {found}."
        )
    return listed


def lifetime_s(mark: dict[str, Any] | None) -> float | None:
    """Return the life that a mark asks for: an hour, or five minutes."""
    if mark is None:
        return None
    return 3600.0 if mark.get("ttl") == "1h" else 300.0


class SimulatedAnswer(Frozen):
    """A whole answer before any dialect has worded it. A simulated token is one word."""

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


class Pace(Frozen):
    """The times when tokens are due, in simulated seconds since the request."""

    ttft_s: float
    tokens_per_s: float

    def at_s(self, token: int) -> float:
        """Return when a token is due; the first is number 0."""
        return self.ttft_s + token / self.tokens_per_s


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

    def blocks(self, body: bytes) -> list[PromptBlock] | None:  # noqa: ARG002 - for the others
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
