"""A wire format as one record: what is particular to it, for all code that asks.

``registry.py`` holds the records. Code outside this folder asks a record, and never compares the
name of a dialect.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Mapping, Sequence

    from headstart.attempts import Tokens
    from headstart.canonical_request import CanonicalRequest, Quirks, WrittenRequest
    from headstart.dialects.model_lists import ModelsForm
    from headstart.dialects.request_form import RequestForm
    from headstart.errors import HeadstartError
    from headstart.settings import DialectName
    from headstart.types import (
        CacheMarks,
        ChatRequest,
        Completion,
        ErrorReported,
        Headers,
        StreamEvent,
    )


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One event, comment block or stray blank line, with the bytes that it came in."""

    raw: bytes
    data: bytes | None
    """The data lines, joined by line feeds; None when there is no data line."""
    event: bytes | None


class ContentTypes(NamedTuple):
    """Media types of our own answers."""

    json: bytes
    stream: bytes


class FrameCutter(Protocol):
    """Cuts the bytes of a streamed answer into frames, however they arrive."""

    held: list[bytes]
    """The parts of a frame that has begun."""

    def receive(self, data: bytes) -> bytes:
        """Return what frames are to be cut from, one by one, until ``cut`` returns None.

        Nothing while no frame can end. Raises UpstreamProtocolError.
        """

    def cut(self, block: bytes, start: int) -> Frame | None:
        """Return the frame at ``start``. None: there is no whole one, and what is left is held.

        Raises UpstreamProtocolError.
        """

    def rest(self) -> bytes:
        """Return what came after the last whole frame."""


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
        either. Events come from any dialect; an event that this one cannot say is left out.
        """


class MakeEncoder(Protocol):
    """Returns a writer for one streamed answer."""

    def __call__(self, id: str, created: int, *, include_usage: bool) -> EventEncoder: ...


class Rendered:
    """A stored answer, ready to be sent any number of times with another id and time.

    ``head`` writes the id and the time at the beginning of the JSON body, and ``chunk_head`` at
    the beginning of each chunk of the stream that has them.
    """

    __slots__ = ("_body", "_chunk_head", "_head", "_plain", "_with_usage", "nbytes")

    def __init__(
        self,
        head: Callable[[str, int], bytes],
        chunk_head: Callable[[str, int], bytes],
        body: bytes,
        chunks: tuple[bytes, ...],
        with_usage: tuple[bytes, ...] | None = None,
    ) -> None:
        self._head = head
        self._chunk_head = chunk_head
        self._body = body
        self._plain = chunks
        self._with_usage = chunks if with_usage is None else with_usage
        self.nbytes = sum(map(len, (body, *self._with_usage, *chunks[-1:])))

    def json(self, id: str, created: int) -> bytes:
        """Return the body of the answer that is not streamed."""
        return self._head(id, created) + self._body

    def sse(self, id: str, created: int, *, include_usage: bool) -> bytes:
        """Return the whole stream, its terminal event included."""
        chunks = self._with_usage if include_usage else self._plain
        return self._chunk_head(id, created).join(chunks)


class Operations(NamedTuple):
    """The operations of a dialect whose paths name the model and tell whether to stream."""

    route: str
    """Name of the route of all its operations."""
    part: bytes
    """A part of every path of its operations: other paths are told quickly."""
    answers: Callable[[bytes, bytes], bool]
    """Tells whether a path and a query name one of the operations."""
    parse: Callable[[bytes, bytes, bytes], ChatRequest]
    """Reads a request from its path, query and body. Raises InvalidRequest."""
    with_model: Callable[[bytes, str], bytes | None]
    """Returns the path with another model; None for a path that names no model."""
    streamed: Callable[[bytes, bytes], tuple[bytes, bytes] | None]
    """Returns path and query of the same operation with a streamed answer, or None as above."""


class CountForm(NamedTuple):
    """How clients ask for the number of a prompt's tokens."""

    path: re.Pattern[bytes]
    """Fits the paths of such requests."""
    write: Callable[[int], dict[str, Any]]
    """Returns the answer."""


class Use(Enum):
    """The meaning of a body field to the cache key."""

    KEYED = "keyed"
    """It changes the answer. Fields that no table names are keyed too."""
    IGNORED = "ignored"
    """It changes delivery, accounting or identity, not the answer."""
    RANGED = "ranged"
    """It is compared with the stored answer when that is served (``Admission.refuse_serve``)."""


class SharedForm(NamedTuple):
    """How plain requests of a dialect are keyed like those of another one."""

    dialect: str
    path: bytes
    """The path of such a request."""
    of_path: bytes
    """The path in the other dialect."""
    rewrite: Callable[[dict[str, Any]], dict[str, Any] | None]
    """Returns the body in the other dialect; None if it asks for more than text."""


@dataclass(frozen=True, kw_only=True)
class KeyForm:
    """The meaning of a request to its cache key."""

    fields: Mapping[str, Use]
    """By the names of the fields that the dialect documents."""
    canonical: Callable[[dict[str, Any]], tuple[dict[str, Any], list[Any]]]
    """Returns a body's settings and its messages, both in canonical form.

    It may change the dictionary that it gets. An unknown shape of messages stays in the settings.
    """
    target: Callable[[bytes, bytes], tuple[bytes, bytes]] | None = None
    """Returns path and query without the model and the delivery of the answer.

    None: both are keyed as they came.
    """
    headers: frozenset[bytes] = frozenset()
    """Headers that change the meaning of the same body."""
    shared: SharedForm | None = None
    """Requests that mean the same as those of another dialect have its keys."""


class LogprobsForm(NamedTuple):
    """How a dialect writes log probabilities, beside OpenAI's form."""

    read: Callable[[dict[str, Any]], dict[str, Any]]
    """Returns log probabilities of this dialect in OpenAI's form."""
    write: Callable[[dict[str, Any]], dict[str, Any]]
    """Returns log probabilities in OpenAI's form in this dialect."""


class LimitHeaders(NamedTuple):
    """How a provider tells in headers what is left of a limit."""

    name: str
    """The name of a header, from ``unit`` (requests, tokens) and ``part`` (limit, remaining,
    reset)."""
    reset: Callable[[float, float], str]
    """Writes when the limit begins anew. Both times are in Unix seconds: now, and then."""


def _keep_body(body: bytes, request: ChatRequest) -> None:
    """Leave the request as it is: every answer tells its usage."""


def _asks_no_functions(request: ChatRequest) -> bool:  # noqa: ARG001
    return False


def _no_id(answer: Completion) -> None:
    """Return None: clients name no answer of this dialect."""


def fields_of(answer: Completion) -> str | None:
    """Return "fields" for an answer with fields of its provider's own, or None."""
    return "fields" if any(answer.extra.values()) else None


def _never(events: Sequence[StreamEvent]) -> bool:  # noqa: ARG001
    """Return False: no frame is sent for the usage alone."""
    return False


@dataclass(frozen=True, kw_only=True, eq=False)
class UpstreamDialect:
    """A wire format of upstreams: their answers are read, and requests to them are written."""

    name: str
    """Its name in cache keys, records and measurements."""
    setting: DialectName
    """Its name in the setting ``upstream.dialect``."""
    includes: tuple[DialectName, ...] = ()
    """Dialects whose requests pass untranslated, too: a provider without them says so itself."""
    key_header: tuple[bytes, bytes] = (b"authorization", b"Bearer ")
    """The header of an API key, and the text before the key."""
    required_headers: Mapping[str, str] = field(default_factory=dict)
    """Headers without which the provider refuses a request."""
    account_headers: frozenset[bytes] = frozenset()
    """Headers that belong to a caller's key: they name whom to bill."""
    models: ModelsForm | None = None
    """How it lists models; None: we do not ask its providers."""
    request_id_header: bytes = b"x-request-id"
    """The header in which the provider names a request, and so do our own answers."""
    ends_at_finish: bool = False
    """Its streams have no terminal event: the last choice's finish reason is their end."""
    text_fields: frozenset[str]
    """Names of the fields under which its streams send text or reasoning."""
    logprobs: LogprobsForm | None = None
    """None: it has no log probabilities of tokens."""
    retry_delay_s: Callable[[Any], float | None] | None = None
    """Returns the seconds to wait that the document of an error names."""
    raw_predict: Callable[[bytes, bytes, str], tuple[bytes, bytes]] | None = None
    """Returns the path and the body of a request for a provider with ``quirks.raw_predict``, from
    those of the dialect and the version in ``version_header``. Raises InvalidRequest for what such
    a provider does not have."""
    version_header: str = ""
    """The header of the API's version."""
    path_below_version: str | None = None
    """The path of a request below a base URL that has the version; None: it has the root's."""
    stream_type: str = "text/event-stream"
    """The media type of its streams."""
    cutter: Callable[[], FrameCutter] | None = None
    """Cuts its streams into frames; None: they are server-sent events."""
    decoder: Callable[[], EventDecoder]
    decode_body: Callable[[int, bytes], tuple[StreamEvent, ...]]
    """Reads a whole JSON answer: its events and Ended, or ErrorReported alone. Never raises."""
    tokens: Callable[[dict[str, Any]], Tokens]
    """Returns the counts of a usage object; 0 for each count that was not reported."""
    mark_cache: Callable[[bytes, CacheMarks], bytes | None] | None = None
    """Returns a request's body with marks for the prompt cache, or None: there is no place for
    them. None: its requests say nothing about the cache."""
    write_request: Callable[[CanonicalRequest, Quirks], WrittenRequest]
    """Writes the request for a provider that speaks this dialect.

    Raises InvalidRequest for content that the dialect cannot express; fields that only tune
    the answer are left out and named, or refused with ``quirks.refuse``.
    """


@dataclass(frozen=True, kw_only=True, eq=False)
class Dialect(UpstreamDialect):
    """A wire format that clients speak, too."""

    is_chat: bool = True
    """Its requests hold a conversation. Others are never shaped, rescued or compared by meaning."""
    key: KeyForm
    form: RequestForm
    """Where its requests hold the prompt, and what else they ask for."""
    content_types: ContentTypes
    heartbeat: bytes | None = None
    """A comment that its clients skip while they wait, or None."""
    paths: tuple[str, ...] = ()
    """The exact paths whose answers are cached."""
    names_answers: bool = False
    """Its clients name earlier answers, and items of them, by their ids."""
    known_id: Callable[[Completion], str | None] = _no_id
    """Returns the id that the provider gave to a stored answer, if clients may name it."""
    beside_text: Callable[[Completion], str | None] = fields_of
    """Returns what a stored answer says that stands in no choice, or None."""
    contradicts: Callable[[Completion], bool] | None = None
    """Tells whether a streamed answer told its text twice, and not the same one; None: this
    dialect tells it once."""
    operations: Operations | None = None
    """The operations whose paths name the model."""
    count: CountForm | None = None
    """None: its clients do not ask for numbers of tokens."""
    limit_headers: LimitHeaders | None = None
    """None: its answers do not tell what is left of limits."""
    prefix: bytes = b"/v1/"
    """The beginning of the paths that go to its providers."""
    socket_prefix: bytes | None = None
    """The beginning of the paths of WebSockets, where it differs from ``prefix``."""
    claims: Callable[[bytes, Headers], bool]
    """Tells whether a path that is only relayed, or its headers, are of this dialect alone."""
    parse_request: Callable[[bytes], ChatRequest]
    """Reads a request. Raises InvalidRequest, whose message names the field at fault.

    Only the fields that the engine reads are checked: the rest is the upstream's to judge.
    """
    read_request: Callable[[ChatRequest], CanonicalRequest]
    """Returns the request in no dialect. Raises InvalidRequest that names the field at fault."""
    shows_reasoning: Callable[[ChatRequest], bool]
    """Tells whether the client gets to see the model's reasoning, where its provider sends it."""
    reasoning_field: str = "reasoning_content"
    """The name under which its clients look for reasoning."""
    marks_reasoning: bool = False
    """Its clients take reasoning only with a signature: ours marks other providers' reasoning."""
    own_statuses: frozenset[int] = frozenset()
    """Error statuses that its clients know, though HTTP does not define them."""
    tells_prompt_first: bool = False
    """Its streams begin with the prompt's length, which others tell at their end."""
    logprobs_field: str | None = None
    """The boolean field that asks for log probabilities in OpenAI's form."""
    asks_functions: Callable[[ChatRequest], bool] = _asks_no_functions
    """Tells whether tool calls go in OpenAI's deprecated form, which has room for one."""
    apply_quirks: Callable[[bytes, ChatRequest, Quirks], tuple[bytes, tuple[str, ...]]] | None
    """Returns the body as a provider with quirks takes it, and the names of fields left out."""
    add_usage: Callable[[bytes, ChatRequest], bytes | None] = _keep_body
    """Returns the body edited so that the stream reports its usage; None if nothing to do."""
    usage_only: Callable[[Sequence[StreamEvent]], bool] = _never
    """Tells whether a frame with these events is the extra one that ``add_usage`` asked for."""
    usage: Callable[[Tokens], dict[str, Any]]
    """Returns a usage object of this dialect."""
    encoder: MakeEncoder
    write_body: Callable[[Completion, str, int], bytes]
    """Returns the body of an answer that is not streamed, under an id and a time."""
    render: Callable[[Completion], Rendered]
    """Encodes an answer once, for any number of replays."""
    new_id: Callable[[], str]
    """Returns an id for an answer of ours, in the provider's style."""
    error_body: Callable[[HeadstartError | ErrorReported, str], bytes]
    """Returns the body of an error answer; the text is the request's id."""
    error_frame: Callable[[HeadstartError | ErrorReported, str], bytes]
    """Returns the one event that reports an error inside a stream. Nothing may follow it."""
