"""A wire format as one ``Dialect``, which has everything that is particular to it.

``registry.py`` lists the dialects. Code outside this folder asks a ``Dialect``, and never compares
the name of a dialect.

The second half of the file has the parts that several dialects share: lists of models, and helpers
for answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from headstart.dialects.json_texts import ESCAPES, mend
from headstart.dialects.requests import reasoning_mark
from headstart.types import (
    UNDECODABLE,
    Ended,
    ErrorReported,
    ExtraDelta,
    Frozen,
    LogprobsDelta,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    UsageReported,
    json_or_none,
)

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from headstart.attempts import Tokens
    from headstart.canonical_request import CanonicalRequest, Quirks, WrittenRequest
    from headstart.dialects.request_form import RequestForm
    from headstart.errors import HeadstartError
    from headstart.settings import DialectName
    from headstart.types import CacheMarks, ChatRequest, ChunkForm, Completion, Headers, StreamEvent


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One event, comment block or stray blank line, with the bytes that it came in."""

    raw: bytes
    data: bytes | None
    """The data lines, joined by line feeds; None when there is no data line."""
    event: bytes | None


class ContentTypes(NamedTuple):
    """Media types of our own answers."""

    json: bytes = b"application/json"
    stream: bytes = b"text/event-stream; charset=utf-8"


class FrameCutter(Protocol):
    """Cuts the bytes of a streamed answer into frames, however they arrive."""

    held: list[bytes]
    """The bytes of a frame that has begun and is not whole."""

    def receive(self, data: bytes) -> bytes:
        """Return the bytes from which ``cut`` takes frames, one by one, until it returns None.

        They are empty while no frame is whole. Raises UpstreamProtocolError.
        """

    def cut(self, block: bytes, start: int) -> Frame | None:
        """Return the frame at ``start``; None if it is not whole. Then the rest is kept.

        Raises UpstreamProtocolError.
        """

    def rest(self) -> bytes:
        """Return the bytes after the last whole frame."""


class EventDecoder(Protocol):
    """Reads one streamed answer, frame by frame."""

    def feed(self, frame: Frame) -> tuple[StreamEvent, ...]:
        """Return the events of a frame. Never raises.

        A frame that cannot be read is an ErrorReported with code ``upstream_protocol_error``.
        """


class EventEncoder(Protocol):
    """Writes one streamed answer, as it comes, in a dialect."""

    def feed(self, events: Sequence[StreamEvent]) -> bytes:
        """Return the bytes for these events, often none.

        ErrorReported gives the dialect's error event, and Ended its terminal event; nothing follows
        them. Events may come from any dialect. An event that this dialect cannot express is left
        out.
        """


class MakeEncoder(Protocol):
    """Returns a writer for one streamed answer."""

    def __call__(self, id: str, created: int, *, include_usage: bool) -> EventEncoder: ...


NULL_USAGE = b'"usage":null,'
"""What OpenAI's chunks have if a stream was asked for its usage, which comes in the last one."""


class Rendered:
    """A stored answer, encoded once. It can be sent any number of times with another id and time.

    The JSON answer is what ``head`` returns for an id and a time, and then ``body``. The stream is
    ``chunks`` with the result of ``chunk_head`` between each two of them. ``with_usage`` are the
    chunks of a stream that reports its usage, if these differ: the last one has only the usage.
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

    def json(self, id: str, created: int, echo: dict[str, Any] | None = None) -> bytes:
        """Return the body of the answer that is not streamed.

        ``echo`` are the fields with which an answer repeats its request. They follow the head.
        """
        head = self._head(id, created)
        return head + self._body if echo is None else head + _members(echo) + self._body

    def sse(
        self, id: str, created: int, echo: dict[str, Any] | None = None, *, include_usage: bool
    ) -> bytes:
        """Return the whole stream, its terminal event included."""
        head = self._chunk_head(id, created)
        if echo is not None:
            head += _members(echo)
        if not include_usage or self._with_usage is self._plain:
            return head.join(self._plain)
        *chunks, usage = self._with_usage
        return (head + NULL_USAGE).join(chunks) + head + usage


def _members(fields: dict[str, Any]) -> bytes:
    return msgspec.json.encode(fields)[1:-1] + b","


class Operations(NamedTuple):
    """The operations of a dialect whose paths name the model and tell whether to stream."""

    endpoint: str
    """Name of the endpoint of all its operations."""
    part: bytes
    """A text in every path of its operations, so that other paths are recognised quickly."""
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


class FieldUse(Enum):
    """What a body field means for the cache key."""

    KEYED = "keyed"
    """It changes the answer. Fields that no table names are keyed too."""
    IGNORED = "ignored"
    """It changes delivery, accounting or identity, not the answer."""
    RANGED = "ranged"
    """It is compared with a stored answer before that is served (``Admission.refuse_serve``)."""


def field_uses(*, keyed: str, ignored: str, ranged: str = "") -> Mapping[str, FieldUse]:
    """Return the table of these fields. Spaces separate their names."""
    return {
        **dict.fromkeys(keyed.split(), FieldUse.KEYED),
        **dict.fromkeys(ignored.split(), FieldUse.IGNORED),
        **dict.fromkeys(ranged.split(), FieldUse.RANGED),
    }


class SharedForm(NamedTuple):
    """How a plain request of a dialect gets the same key as an equal one of another dialect."""

    dialect: str
    path: bytes
    """The path of such a request."""
    of_path: bytes
    """The path in the other dialect."""
    rewrite: Callable[[dict[str, Any]], dict[str, Any] | None]
    """Returns the body in the other dialect; None if it asks for more than text."""


@dataclass(frozen=True, kw_only=True)
class KeyForm:
    """How the cache key follows from a request."""

    fields: Mapping[str, FieldUse]
    """The meaning of each field that the dialect documents."""
    canonical: Callable[[dict[str, Any]], tuple[dict[str, Any], list[Any]]]
    """Returns a body's settings and its messages, both in canonical form.

    It may change the dictionary that it gets. An unknown shape of messages stays in the settings.
    """
    target: Callable[[bytes, bytes], tuple[bytes, bytes]] | None = None
    """Returns path and query without the model and the delivery of the answer.

    None: both are keyed unchanged.
    """
    headers: frozenset[bytes] = frozenset()
    """Headers that change the meaning of the same body."""
    shared: SharedForm | None = None
    """How requests get the keys of another dialect in which they mean the same."""


class LogprobsForm(NamedTuple):
    """How a dialect writes log probabilities, beside OpenAI's form."""

    read: Callable[[dict[str, Any]], dict[str, Any]]
    """Returns log probabilities of this dialect in OpenAI's form."""
    write: Callable[[dict[str, Any]], dict[str, Any]]
    """Returns log probabilities in OpenAI's form in this dialect."""


class LimitHeaders(NamedTuple):
    """The headers in which a provider reports the rest of a limit."""

    name: str
    """A header's name, from ``unit`` (requests, tokens) and ``part`` (limit, remaining, reset)."""
    reset: Callable[[float, float], str]
    """Writes the time at which the limit begins again. Takes now and that time, in Unix seconds."""


def _keep_body(body: bytes, request: ChatRequest) -> None:
    """Return None, because no edit is needed: every answer reports its usage."""


def _asks_no_functions(request: ChatRequest) -> bool:  # noqa: ARG001
    return False


def _claims_nothing(path: bytes, headers: Headers) -> bool:  # noqa: ARG001
    """Return False: its relayed requests go to the same upstreams as Chat Completions'."""
    return False


def _no_id(answer: Completion) -> None:
    """Return None: clients of this dialect name no answer."""


def fields_of(answer: Completion) -> str | None:
    """Return "fields" for an answer with fields that only its provider has, or None."""
    return "fields" if any(answer.extra.values()) else None


@dataclass(frozen=True, kw_only=True, eq=False)
class UpstreamDialect:
    """A wire format of upstreams: their answers are read, and requests to them are written."""

    name: str
    """Its name in cache keys, stored entries and measurements."""
    setting: DialectName
    """Its name in the setting ``upstream.dialect``."""
    includes: tuple[DialectName, ...] = ()
    """Dialects whose requests pass untranslated, too. A provider that does not have them refuses
    the request itself."""
    key_header: tuple[bytes, bytes] = (b"authorization", b"Bearer ")
    """The header of an API key, and the text before the key."""
    required_headers: Mapping[str, str] = field(default_factory=dict)
    """Headers without which the provider refuses a request."""
    account_headers: frozenset[bytes] = frozenset()
    """Headers that belong to a caller's key: they name the account to bill."""
    models: ModelsForm | None = None
    """Form of the lists of models; None: providers are not asked for lists."""
    request_id_header: bytes = b"x-request-id"
    """The header in which the provider names a request, and so do our own answers."""
    ends_at_finish: bool = False
    """Its streams have no terminal event. They end with the finish reason of the last choice."""
    text_fields: frozenset[str]
    """Names of the fields under which its streams send text or reasoning."""
    logprobs: LogprobsForm | None = None
    """Form of log probabilities; None: the dialect has none."""
    retry_delay_s: Callable[[Any], float | None] | None = None
    """Returns the seconds to wait that the document of an error names."""
    raw_predict: Callable[[bytes, bytes, str], tuple[bytes, bytes]] | None = None
    """Returns the path and the body for a provider with ``quirks.raw_predict``, made from the path
    and the body of the dialect and the version in ``version_header``. Raises InvalidRequest for
    paths that such a provider does not have."""
    version_header: str = ""
    """The header of the API's version."""
    path_below_version: str | None = None
    """The path of a request below a base URL that includes the version; None: it is the same as
    below the root."""
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
    """Returns a request's body with marks for the prompt cache, or None if there is no place for
    them. None in place of the function: its requests cannot have marks."""
    write_request: Callable[[CanonicalRequest, Quirks], WrittenRequest]
    """Writes a request of another dialect for a provider that speaks this one.

    Raises InvalidRequest for content that the dialect cannot express; fields that only tune
    the answer are left out and named, or refused with ``quirks.refuse``.
    """


@dataclass(frozen=True, kw_only=True, eq=False)
class Dialect(UpstreamDialect):
    """A wire format that clients speak, too."""

    is_chat: bool = True
    """Its requests hold a conversation. Other requests are never shaped, rescued or compared by
    meaning."""
    key: KeyForm
    form: RequestForm
    """The places of the prompt, and of the other facts that the engine reads in a request."""
    content_types: ContentTypes = field(default_factory=ContentTypes)
    heartbeat: bytes | None = None
    """A comment that its clients skip while they wait, or None."""
    paths: tuple[str, ...] = ()
    """The exact paths whose answers are cached."""
    names_answers: bool = False
    """Its clients name earlier answers, and items of them, by their ids."""
    known_id: Callable[[Completion], str | None] = _no_id
    """Returns the id that the provider gave to a stored answer, if clients may name it."""
    echo: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """Returns the fields with which an answer repeats its request. None: it repeats nothing."""
    beside_text: Callable[[Completion], str | None] = fields_of
    """Returns a name for content of a stored answer outside its choices, or None."""
    contradicts: Callable[[Completion], bool] | None = None
    """Tells whether a streamed answer has its text twice, and the two differ; None: this dialect
    has it once."""
    operations: Operations | None = None
    """The operations whose paths name the model."""
    count: CountForm | None = None
    """Form of requests that ask for a number of tokens; None: there are none."""
    limit_headers: LimitHeaders | None = None
    """Headers in which answers report limits; None: they report none."""
    prefixes: tuple[bytes, ...] = (b"/v1/",)
    """The beginnings of the paths that go to its providers."""
    socket_prefix: bytes | None = None
    """The beginning of the paths of WebSockets, where it is not one of ``prefixes``."""
    claims: Callable[[bytes, Headers], bool] = _claims_nothing
    """Tells whether a relayed request is of this dialect alone, by its path and headers."""
    parse_request: Callable[[bytes], ChatRequest]
    """Reads a request. Raises InvalidRequest, whose message names the field at fault.

    Only the fields that the engine reads are checked. The upstream judges the rest.
    """
    read_request: Callable[[ChatRequest], CanonicalRequest]
    """Returns the request in the common form. Raises InvalidRequest, which names the field."""
    shows_reasoning: Callable[[ChatRequest], bool]
    """Tells whether the client may see the model's reasoning, if the provider sends it."""
    reasoning_field: str = "reasoning_content"
    """The name under which its clients look for reasoning."""
    marks_reasoning: bool = False
    """Its clients take reasoning only with a signature. The reasoning of other providers gets a
    signature of ours."""
    own_statuses: frozenset[int] = frozenset()
    """Error statuses that its clients know, though HTTP does not define them."""
    tells_prompt_first: bool = False
    """Its streams begin with the length of the prompt. Streams of other dialects end with it."""
    logprobs_field: str | None = None
    """The boolean field that asks for log probabilities in OpenAI's form."""
    asks_functions: Callable[[ChatRequest], bool] = _asks_no_functions
    """Tells whether a tool call takes OpenAI's deprecated form, which has room for one call."""
    apply_quirks: Callable[[bytes, ChatRequest, Quirks], tuple[bytes, tuple[str, ...]]] | None
    """Returns the body in the form that a provider with quirks accepts, and the names of fields
    left out."""
    add_usage: Callable[[bytes, ChatRequest], bytes | None] = _keep_body
    """Returns the body edited so that the stream reports its usage; None if it needs no edit."""
    usage: Callable[[Tokens], dict[str, Any]]
    """Returns a usage object of this dialect."""
    encoder: MakeEncoder
    write_body: Callable[[Completion, str, int], bytes]
    """Returns the body of an answer that is not streamed, under an id and a time."""
    render: Callable[[Completion], Rendered]
    """Encodes an answer once, for any number of replays."""
    new_id: Callable[[], str]
    """Returns an id for an answer of ours, in the provider's style."""
    call_prefix: str = "call_"
    """The beginning of the ids of tool calls, in the provider's style."""
    error_body: Callable[[HeadstartError | ErrorReported, str], bytes]
    """Returns the body of an error answer; the text is the request's id."""
    error_frame: Callable[[HeadstartError | ErrorReported, str], bytes]
    """Returns the one event that reports an error inside a stream. Nothing may follow it."""
    bare_errors: bool = False
    """Clients also read an error that is not in an event: a JSON object in place of a line."""


# --- lists of models, in the forms of the providers' APIs -----------------------------------------


class ListedModel(Frozen):
    """A model that callers may name."""

    id: str
    owner: str = ""
    """The upstream that answers."""
    created: int = 0
    """Unix seconds; 0: not known."""
    title: str = ""
    """Its name for people."""
    form: str = ""
    """The name of the form of ``fields``."""
    fields: dict[str, Any] | None = None
    """The provider's own description."""

    def fields_in(self, form: str) -> dict[str, Any]:
        """Return the provider's own fields, if they are in this form."""
        return self.fields or {} if self.form == form else {}


class ModelsForm(NamedTuple):
    """How an API lists its models."""

    name: str
    path: bytes
    query: bytes
    """The query that asks for all models at once."""
    read: Callable[[Any], list[ListedModel]]
    """Reads a decoded list. Entries that it cannot read are left out."""
    write: Callable[[ListedModel], dict[str, Any]]
    write_list: Callable[[Sequence[ListedModel]], dict[str, Any]]


def listed_objects(document: Any, field: str) -> list[dict[str, Any]]:
    """Return the objects of a decoded list of models, which may stand in a field or alone."""
    found = document.get(field) if isinstance(document, dict) else document
    found = found if isinstance(found, list) else []
    return [each for each in found if isinstance(each, dict)]


# --- the common parts of answers: JSON, stored answers, translation -------------------------------

MOST_TOKENS = 1_000_000_000
"""The largest number that is read as a count of tokens. No model reads or writes more at once."""


_decode = msgspec.json.Decoder().decode


class MalformedAnswerError(Exception):
    """The answer has a form that its API does not send."""


def decode_document(body: bytes) -> Any:
    """Return the decoded answer; None if it is not JSON."""
    try:
        return _decode(body)
    except UNDECODABLE:
        mended = mend(body)
    return None if mended == body else decode_document(mended)


def decode_first(body: bytes) -> Any:
    """Return the decoded answer, or the first item of a list: so Google sends errors of streams."""
    document = decode_document(body)
    return document[0] if isinstance(document, list) and document else document


def decode_event(data: bytes) -> dict[str, Any]:
    """Return the object of an event of a stream. Raises MalformedAnswerError."""
    try:
        event = _decode(data)
    except UNDECODABLE:
        event = decode_document(data)
        if event is None:
            raise MalformedAnswerError("an event of the stream is not JSON") from None
    if type(event) is not dict:
        raise MalformedAnswerError("an event of the stream is not an object")
    return event


def as_object(value: Any, what: str) -> dict[str, Any]:
    """Return an object. Raises MalformedAnswerError, which says that ``what`` is not one."""
    if not isinstance(value, dict):
        raise MalformedAnswerError(f"{what} is not an object")
    return value


def as_list(value: Any) -> list[Any]:
    """Return an array, an empty one for None. Raises MalformedAnswerError for anything else."""
    if not isinstance(value, list | None):
        raise MalformedAnswerError("a value that must be an array is not one")
    return value or []


def as_text(value: Any) -> str | None:
    """Return a text, None for an empty one and for anything else."""
    return value if value and isinstance(value, str) else None


def as_count(value: Any) -> int:
    """Return a number of tokens up to ``MOST_TOKENS``; 0 for any other value.

    Budgets, books and the store rely on this bound. Some APIs write whole numbers as floats.
    """
    if not value:  # the usual case: most counts are not reported
        return 0
    return int(value) if type(value) in (int, float) and 0 < value <= MOST_TOKENS else 0


def is_json(text: str) -> bool:
    """Tell whether a text is a whole JSON value."""
    return json_or_none(text, msgspec.Raw) is not None


def extra_events(
    fields: dict[str, Any], known: frozenset[str], choice: int | None = None
) -> tuple[StreamEvent, ...]:
    """Return the event for fields that are not known: of a choice, or of the whole answer."""
    unknown = {name: value for name, value in fields.items() if name not in known}
    if not unknown:
        return ()
    return (ExtraDelta(fields=unknown, choice=choice, beside=choice is not None),)


def unreadable(message: str) -> ErrorReported:
    """Return the event for an answer that cannot be read."""
    return ErrorReported(message=message, code="upstream_protocol_error", is_ours=True)


ENDED: tuple[StreamEvent, ...] = (Ended(),)
"""The events of an answer's end."""


def read_whole(
    read: Callable[[dict[str, Any]], Iterable[StreamEvent]], objects: Iterable[dict[str, Any]]
) -> tuple[StreamEvent, ...]:
    """Return the events of a whole answer and Ended, or alone the errors that it reports.

    ``read`` returns the events of one of its objects. If it raises MalformedAnswerError, this is
    the error.
    """
    events: list[StreamEvent] = []
    try:
        for each in objects:
            events += read(each)
    except MalformedAnswerError as error:
        return (unreadable(str(error)),)
    errors = [event for event in events if type(event) is ErrorReported]
    return tuple(errors or (*events, *ENDED))


@dataclass(eq=False, repr=False)
class JSONDecoder:
    """EventDecoder of a stream whose frames are JSON objects. Subclasses read the objects."""

    done: ClassVar[tuple[StreamEvent, ...]] = ()
    """The events of ``[DONE]``, which providers also send in APIs that do not have it."""
    is_usual: bool = False
    """``read_usual`` may be able to read the next frame."""
    form: ChunkForm | None = None
    """The form of the stream, if it is usual; then ``head`` is the beginning of its frames."""
    head: bytes = b""
    _half: bytes = b""
    """The escape of the first half of a character, which waits for the second half."""
    _unpaired: tuple[StreamEvent, ...] = ()
    """The event in place of that half if the second half does not come."""

    def read_usual(self, data: bytes) -> tuple[StreamEvent, ...] | None:  # noqa: ARG002
        """Return the events of the data of a usual frame; None: only ``feed`` can read it."""
        return None

    def feed(self, frame: Frame) -> tuple[StreamEvent, ...]:
        """Return the events of a frame; none for comments and keep-alives."""
        data = frame.data
        if not data:
            return ()
        if data.startswith(b"[DONE]"):
            return self.done
        try:
            event = None if self._half else _decode(data)
        except UNDECODABLE:
            event = None
        try:
            if type(event) is dict:
                return self.read(event, frame.event)
            return self._read_halves(data, frame.event)
        except MalformedAnswerError as error:
            return (unreadable(str(error)),)

    def _read_halves(self, data: bytes, name: bytes | None) -> tuple[StreamEvent, ...]:
        """Read a frame that may have halves of surrogate pairs, or the frame after a first half.

        A provider that cuts its text by UTF-16 units splits an emoji over two events. Client
        libraries join the halves; here the second event gets both. A half without the other
        becomes U+FFFD, in its own choice and part. Raises MalformedAnswerError.
        """
        waiting, self._half = self._half, b""
        unpaired, last, mended, end = self._unpaired, b"", bytearray(), 0
        for found in ESCAPES.finditer(data):
            half = found[1]
            if not half:
                continue
            mended += data[end : found.start()]
            end = found.end()
            is_first = half[2:3] in b"89abAB"
            if waiting and not is_first and data.startswith(b'"', found.start() - 1):
                mended += waiting + found[0]
                waiting = b""
            else:
                mended += b"\\ufffd"
            if is_first and data.startswith(b'"', end):
                last = found[0]
        mended += data[end:]
        events = self.read(decode_event(bytes(mended)), name)
        if last:
            events = self._held_back(events, last)
        return (*unpaired, *events) if waiting else events

    def _held_back(self, events: tuple[StreamEvent, ...], half: bytes) -> tuple[StreamEvent, ...]:
        """Return the events without the U+FFFD of a half that the next event may complete."""
        alone: StreamEvent
        for place, event in enumerate(events):
            match event:
                case TextDelta(text=text) | ReasoningDelta(text=text) | RefusalDelta(text=text):
                    name, alone = "text", event
                case ToolCallDelta(arguments=text):
                    name = "arguments"
                    alone = ToolCallDelta(index=event.index, choice=event.choice)
                case _:
                    continue
            if text.endswith("\ufffd"):
                self._half, self._unpaired = half, (replace(alone, **{name: "\ufffd"}),)
                short = replace(event, **{name: text[:-1]})
                return (*events[:place], short, *events[place + 1 :])
        return events

    def read(self, event: dict[str, Any], name: bytes | None = None) -> tuple[StreamEvent, ...]:
        """Return the events of an object. ``name`` is the frame's own name for it.

        Raises MalformedAnswerError.
        """
        raise NotImplementedError


CHUNK_CHARACTERS = 200
"""Characters of a chunk. Clients spend about 0.3 ms on each, so a chunk for each token would waste
their time."""


def split_text(text: str) -> list[str]:
    """Return the text in pieces of ``CHUNK_CHARACTERS``, the last shorter; none for no text."""
    starts = range(0, len(text), CHUNK_CHARACTERS)
    return [text[start : start + CHUNK_CHARACTERS] for start in starts]


_CAPACITY = frozenset({498, 529})
"""Statuses with which Groq and Anthropic say that they have no capacity."""
_OF_THE_BODY = frozenset(
    b"content-type content-length content-encoding content-md5 digest etag set-cookie".split()
)


def translate_events(
    events: Sequence[StreamEvent],
    source: UpstreamDialect,
    target: Dialect,
    *,
    shows_reasoning: bool = True,
) -> tuple[StreamEvent, ...]:
    """Return the events of one dialect in the canonical form of another.

    The usage takes the form of the target. So does the name of the reasoning, if the client asked
    to see it. Signatures and all content that only one provider knows are left out; ids and the
    native finish reason stay.
    """
    if source.name == target.name:
        return tuple(events)
    return tuple(
        translated
        for event in events
        if (translated := _translate(event, source, target, shows_reasoning)) is not None
    )


def _translate(
    event: StreamEvent,
    source: UpstreamDialect,
    target: Dialect,
    shows_reasoning: bool,  # noqa: FBT001
) -> StreamEvent | None:
    translated: StreamEvent | None = event
    match event:
        case UsageReported(usage=usage):
            translated = UsageReported(usage=target.usage(source.tokens(usage)))
        case Started(id=id, model=model, created=created):
            translated = Started(id=id, model=model, created=created)
        case ReasoningDelta():
            translated = _translate_reasoning(event, target) if shows_reasoning else _hidden(event)
        case ToolCallDelta(extra=extra) if extra:
            translated = replace(event, extra={})
        case ErrorReported(status=int(status)):
            translated = replace(event, status=translate_status(status, target))
        case LogprobsDelta(value=value, choice=choice):
            translated = _translate_logprobs(value, choice, source, target)
        case ExtraDelta():
            translated = None
    return translated


def _translate_logprobs(
    value: dict[str, Any], choice: int, source: UpstreamDialect, target: Dialect
) -> LogprobsDelta | None:
    if source.logprobs is None or target.logprobs is None:
        return None
    return LogprobsDelta(value=target.logprobs.write(source.logprobs.read(value)), choice=choice)


def _translate_reasoning(event: ReasoningDelta, target: Dialect) -> ReasoningDelta:
    return ReasoningDelta(
        text=event.text,
        choice=event.choice,
        field=target.reasoning_field,
        signature=reasoning_mark(event.field) if target.marks_reasoning else None,
        block=event.block,
    )


def _hidden(event: ReasoningDelta) -> ReasoningDelta:
    """Return reasoning under a name under which only OpenAI's clients look for it."""
    return ReasoningDelta(text=event.text, choice=event.choice, block=event.block)


def translate_status(status: int, target: Dialect) -> int:
    """Return an error's status in a form that the target's clients know."""
    return 503 if status in _CAPACITY and status not in target.own_statuses else status


def translate_headers(
    headers: Headers, source: UpstreamDialect, target: Dialect, *, content_type: bytes
) -> Headers:
    """Return an answer's headers for a body in another dialect.

    The provider's request id gets the name that the target's clients read.
    """
    kept = [(name, value) for name, value in headers if name not in _OF_THE_BODY]
    names = {name for name, _ in kept}
    if target.request_id_header not in names:
        ids = [value for name, value in kept if name == source.request_id_header]
        kept += [(target.request_id_header, value) for value in ids[:1]]
    return (*kept, (b"content-type", content_type))
