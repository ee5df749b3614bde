"""What a wire format must offer: one implementation a file, shared by every front door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.attempts import Tokens
    from headstart.canonical_request import CanonicalRequest, Quirks, Written
    from headstart.errors import HeadstartError
    from headstart.middleware.sse import Frame
    from headstart.types import ChatRequest, Completion, ErrorReported, StreamEvent


class ContentTypes(NamedTuple):
    """Media types of our own answers."""

    json: bytes
    stream: bytes


class EventDecoder(Protocol):
    """Reads one streamed answer, frame by frame."""

    def feed(self, frame: Frame) -> tuple[StreamEvent, ...]:
        """Return what the frame says. Never raises.

        A frame that cannot be read is an ErrorReported with code ``upstream_protocol_error``.
        """


class EventEncoder(Protocol):
    """Writes one streamed answer, as it comes, in a dialect."""

    def feed(self, events: Sequence[StreamEvent]) -> bytes:
        """Return the bytes that say these events, often none.

        ErrorReported gives the dialect's error event, Ended its terminal event; nothing follows
        either. Events come from any dialect; what this one cannot say is left out.
        """


class Rendered(Protocol):
    """A stored answer, ready to be sent any number of times."""

    @property
    def nbytes(self) -> int:
        """Size in memory."""

    def json(self, id: str, created: int) -> bytes:
        """Return the body of the answer that is not streamed."""

    def sse(self, id: str, created: int, *, include_usage: bool) -> bytes:
        """Return the whole stream, its terminal event included."""


class UpstreamDialect(Protocol):
    """What an upstream's own wire format must offer: answers are read, requests written."""

    @property
    def name(self) -> str: ...

    @property
    def request_id_header(self) -> bytes:
        """The header in which the provider names a request, and so do our own answers."""

    @property
    def ends_at_finish(self) -> bool:
        """Its streams have no terminal event: the last choice's finish reason is their end."""

    def decoder(self) -> EventDecoder: ...

    def decode_body(self, status: int, body: bytes) -> tuple[StreamEvent, ...]:
        """Read a whole JSON answer: its events and Ended, or ErrorReported alone. Never raises."""

    def tokens(self, usage: dict[str, Any]) -> Tokens:
        """Return what a usage object of this dialect counts; 0 for what was not reported."""

    def write_request(self, asked: CanonicalRequest, quirks: Quirks) -> Written:
        """Return the request for a provider that speaks this dialect.

        Raises InvalidRequest for content that the dialect cannot express; fields that only tune
        the answer are left out and named, or refused with ``quirks.refuse``.
        """


class Dialect(UpstreamDialect, Protocol):
    """Translates between a provider's wire format and the canonical model. Holds no state."""

    @property
    def content_types(self) -> ContentTypes: ...

    @property
    def heartbeat(self) -> bytes | None:
        """A comment that its clients skip while they wait, or None."""

    def parse_request(self, body: bytes) -> ChatRequest:
        """Read a request. Raises InvalidRequest, whose message names the field at fault.

        Only what the engine reads is checked: the rest is the upstream's to judge.
        """

    def add_usage(self, body: bytes, request: ChatRequest) -> bytes | None:
        """Return ``body`` edited so that the stream reports its usage; None if nothing to do."""

    def usage_only(self, events: Sequence[StreamEvent]) -> bool:
        """Is a frame with these events the extra one that ``add_usage`` asked for?"""

    def usage(self, tokens: Tokens) -> dict[str, Any]:
        """Return a usage object of this dialect."""

    def read_request(self, request: ChatRequest) -> CanonicalRequest:
        """Return the request in no dialect. Raises InvalidRequest that names the field at fault."""

    def shows_reasoning(self, request: ChatRequest) -> bool:
        """Does the client get to see what a model thought, where its provider tells?"""

    def encoder(self, id: str, created: int, *, include_usage: bool) -> EventEncoder:
        """Return a writer for one streamed answer."""

    def render(self, completion: Completion) -> Rendered: ...

    def new_id(self) -> str:
        """Return an id for an answer of ours, in the provider's style."""

    def error_body(self, error: HeadstartError | ErrorReported, request_id: str) -> bytes:
        """Return the body of an error answer."""

    def error_frame(self, error: HeadstartError | ErrorReported, request_id: str) -> bytes:
        """Return the one event that reports an error inside a stream. Nothing may follow it."""


class Operations(Dialect, Protocol):
    """A dialect whose paths name the model, and tell whether the answer streams."""

    def answers(self, path: bytes, query: bytes) -> bool:
        """Is this one of its operations?"""

    def parse(self, path: bytes, query: bytes, body: bytes) -> ChatRequest:
        """Read a request to a path that this dialect ``answers``. Raises InvalidRequest."""
