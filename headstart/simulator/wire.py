"""What every dialect of the simulator offers, and what it is given to say."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from headstart.simulator.chat_request import ChatBody  # noqa: TC001 - msgspec reads it
from headstart.simulator.generation import Generation  # noqa: TC001 - msgspec reads it
from headstart.types import Frozen, Headers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.simulator.incoming import Incoming
    from headstart.simulator.limit_headers import LimitForm
    from headstart.simulator.reply import Piece


class Answer(Frozen):
    """A whole answer before any dialect has worded it. A simulated token is a word."""

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

    @property
    def model(self) -> str:
        return self.chat.model

    @property
    def prompt_tokens(self) -> int:
        return self.chat.prompt_tokens

    @property
    def completion_tokens(self) -> int:
        return sum(said.completion_tokens for said in self.generation.alternatives)

    @property
    def reasoning_tokens(self) -> int:
        return sum(len(said.reasoning) for said in self.generation.alternatives)


class Pace(Frozen):
    """When tokens are due, in simulated seconds since the request."""

    ttft_s: float
    tokens_per_s: float

    def at_s(self, token: int) -> float:
        """Return when a token is due; the first is number 0."""
        return self.ttft_s + token / self.tokens_per_s


class RefusedKey(NamedTuple):
    """The error for a key that is not known."""

    status: int
    message: str
    code: str | None = None


class Wire(Protocol):
    """One dialect: it reads requests and writes answers, errors and headers, and does no I/O."""

    @property
    def endpoint(self) -> str:
        """The name of its calls in the books."""
        ...

    @property
    def limit_headers(self) -> LimitForm:
        """The form of its rate-limit headers, where a profile names no other."""
        ...

    @property
    def refused_key(self) -> RefusedKey:
        """How it refuses a key."""
        ...

    @property
    def keep_alive(self) -> bytes:
        """What it sends while nothing is said; may be empty."""
        ...

    @property
    def broken_event(self) -> bytes:
        """An event whose data is not JSON."""
        ...

    def read(self, incoming: Incoming) -> ChatBody:
        """Return what is asked. Raises BadRequest with a reason fit for the caller."""
        ...

    def caches_prefix(self, body: bytes) -> bool:
        """Return whether a request asks for its prefix to be cached, if only by default."""
        ...

    def whole(self, answer: Answer) -> bytes:
        """Return the body of an answer that is not streamed."""
        ...

    def events(self, answer: Answer, pace: Pace, incoming: Incoming) -> Iterator[Piece]:
        """Yield the events of a stream in order, each with the time at which it is due."""
        ...

    def error(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> bytes:
        """Return an error body; ``type`` defaults to the one that goes with the status."""
        ...

    def error_event(self, message: str, code: str | None, *, named: bool) -> bytes:
        """Return the event that ends a stream which failed."""
        ...

    def headers(self, answer_id: str, ttft_s: float) -> Headers:
        """Return what stands on every answer."""
        ...
