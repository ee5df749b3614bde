"""Writes the request that a provider gets for a call, and begins to read its answer.

A call comes in the dialect of its client, and the provider is asked in a dialect of its ``own``:

- If they are equal, ``RequestWriter`` sends the client's bytes with the fewest edits. For example,
  an upstream with ``models = { fast = "gpt-4o-mini" }`` gets ``{"model": "gpt-4o-mini", …}`` for
  ``{"model": "fast", …}``, and ``transforms`` is ``("model",)``.
- If they differ, it writes a new request, and the answer is translated back.
- Calls that are no chats are relayed: only the name of the model may change.

``IncomingAnswer.begin`` chooses the reader of the answer's body in the same three cases.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote_to_bytes

import aiohttp
import msgspec
from msgspec.structs import replace

from headstart.attempts import Tokens
from headstart.canonical_request import Quirks, portable_request
from headstart.dialects.dialect import Dialect, translate_headers, translate_status
from headstart.dialects.registry import (
    ACCOUNT_HEADERS,
    BY_SETTING,
    DIALECTS,
    DOCUMENTS,
    KEY_HEADERS,
    TRANSLATED,
    UPSTREAM_DIALECTS,
)
from headstart.dialects.request_form import ATTRIBUTION, KEYED, MARKED
from headstart.dialects.requests import THINKING_MARK, without_dropped_tools
from headstart.errors import InvalidRequest, UpstreamProtocolError, UpstreamRefused
from headstart.middleware.reading import (
    MAX_DOCUMENT_BYTES,
    BodyReader,
    DocumentReader,
    FrameReader,
    WholeReader,
)
from headstart.middleware.translated_reading import (
    AnswerNames,
    DocumentTranslator,
    Reencoder,
    StreamAssembler,
)
from headstart.middleware.upstreams.refused_values import REFUSALS, RefusedValues, ValueRefused
from headstart.policies.callers import NameMemo, NamesMemo, is_secret, is_secret_parameter, picker
from headstart.reply import EVENT_STREAMS, Reply, Transcript
from headstart.types import (
    UNDECODABLE,
    CacheMarks,
    Call,
    ChatRequest,
    ExtraDelta,
    Headers,
    Piece,
    UsageReported,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping

    from aiohttp import ClientHandlerType, ClientRequest, ClientResponse

    from headstart.dialects.dialect import EventEncoder, UpstreamDialect
    from headstart.settings import UpstreamSettings

HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer"
    b" transfer-encoding upgrade".split()
)
_NOT_UP = HOP_BY_HOP | {b"host", b"content-length", b"expect"}
"""The headers of a client that no provider gets."""
REFUSAL_BYTES = 64 * 1024
"""The most bytes of an error's body that are read as a whole."""
OWN_PREFIX = b"x-headstart-"
SHORTEST_SECRET = 8
"""The length of the shortest key that is masked in errors. A shorter one may also be a word."""
READ_BYTES = 16 * 1024
"""The most bytes of an answer that are read before other tasks get their turn: some 10 us each."""
AFTER_END_S = 1.0
"""Seconds to wait for the end of the body after the answer is whole. If it comes in time, the next
call can use the connection."""
_NEUTRAL = frozenset(
    b"accept-language baggage traceparent tracestate user-agent x-request-id".split()
)
"""The headers of a client that have the same meaning in each dialect."""
_LISTS = ("anthropic-beta", "openai-beta")  # the caller and the settings may both name something
_FURTHER_QUIRKS = Quirks(attribution=False)
_VERSIONED = b"/v1/"
_ENCODING = b"accept-encoding"
_EVENTS = "text/event-stream"
_OF_A_DEPLOYMENT = frozenset(
    b"audio/speech audio/transcriptions audio/translations chat/completions completions"
    b" embeddings images/edits images/generations".split()
)
"""Azure's operations whose path names the deployment; for others the body names the model."""
_UNWRITABLE = bytes([*range(9), *range(10, 32), 127])
"""Control characters, which no server writes into a header."""

# --- the request ----------------------------------------------------------------------------------


class OutgoingRequest(msgspec.Struct, frozen=True, gc=False):
    """A request in the form in which it is sent."""

    path: bytes
    query: bytes
    headers: list[tuple[str, str]]
    body: bytes
    transforms: tuple[str, ...] = ()
    """Names of the edits made to the client's request."""


class RequestWriter:
    """Writes the requests for one upstream. It computes once what depends only on settings.

    ``credential`` has the headers with the upstream's own key. If it is None, the caller's key is
    passed on.
    """

    def __init__(self, upstream: UpstreamSettings, credential: Headers | None) -> None:
        self._upstream = upstream
        self._credential = credential
        self._dropped = _NOT_UP if credential is None else _NOT_UP | ACCOUNT_HEADERS
        self._names = NameMemo(self._passing)
        """The text of each header name that passes; "" for other names."""
        self._plain_names = NameMemo(lambda name: "" if name == _ENCODING else self._names[name])
        self._keys = as_text(credential or ())
        values = [value.rpartition(b" ")[2] for _, value in credential or ()]
        self.secrets = tuple(each for each in values if len(each) >= SHORTEST_SECRET)
        """The values of the upstream's own keys."""
        self._main = BY_SETTING[upstream.speaks]
        self._further = frozenset(BY_SETTING[each].name for each in upstream.further)
        self._has_quirks = upstream.quirks != Quirks()
        limited = isinstance(self._main, Dialect) and self._main.form.always_limited
        enabled = not upstream.quirks.refuse
        self.refused = RefusedValues(enabled=enabled, needs_limit=limited, kept=upstream.fields)
        self._raw_predict = self._main.raw_predict if upstream.quirks.raw_predict else None

    def write(
        self, call: Call, client: Dialect | None, own: UpstreamDialect | None
    ) -> OutgoingRequest:
        """Return the request to send. ``client`` is the call's dialect, ``own`` the provider's.

        Raises InvalidRequest for content that the provider's dialect cannot express.
        """
        upstream = self._upstream
        if client is None or own is None or call.request is None:
            sent = self._relay(call)
        elif client is own:
            sent = self._edit(call, call.request, client)
        else:
            sent = self._translate(call, call.request, client, own)
        if call.cache_marks is not None and own is not None and own.mark_cache is not None:
            marked = _marked(own.mark_cache, sent.body, call.cache_marks)
            if marked is not None:
                name = KEYED if call.cache_marks.key else MARKED
                sent = replace(sent, body=marked, transforms=(*sent.transforms, name))
        model = call.deployment if call.request is None else call.request.model
        real = upstream.models.get(model, model)
        if client is not own:  # a translated call is sent without the values that were refused
            body, refused = self.refused.without(real, sent.body)
            if refused:
                dropped = [f"dropped:{name}" for name in refused]
                sent = replace(sent, body=body, transforms=(*sent.transforms, *dropped))
        if self._raw_predict is not None:
            return self._at_model(sent, self._raw_predict)
        if upstream.api_version is None:
            return sent
        return _at_deployment(sent, real, upstream.api_version)

    async def sent_again(self, refused: ValueRefused, sending: Awaitable[Reply]) -> Reply:
        """Send a call without a refused value, and forget the value if that is refused, too."""
        reply = await sending
        if reply.status in REFUSALS:
            self.refused.forget(refused.value)
        return reply

    def masked(self, body: bytes, headers: Headers) -> tuple[bytes, Headers]:
        """Return an error answer without the upstream's own key, which some providers quote.

        The returned body is not compressed.
        """
        if self.secrets:
            body, headers = unpacked(body, headers)
            headers = tuple((name, _masked(value, self.secrets)) for name, value in headers)
        return _masked(body, self.secrets), headers

    def _at_model(
        self, sent: OutgoingRequest, place: Callable[[bytes, bytes, str], tuple[bytes, bytes]]
    ) -> OutgoingRequest:
        """Return a request whose path names the model. Raises InvalidRequest."""
        header = self._main.version_header
        versions = [value for name, value in sent.headers if name.lower() == header]
        version = versions[0] if versions else self._main.required_headers[header]
        path, body = place(sent.path, sent.body, version)
        headers = [pair for pair in sent.headers if pair[0].lower() != header]
        return replace(sent, path=path, query=b"", headers=headers, body=body)

    def _passing(self, name: bytes) -> str:
        if name in self._dropped or name.startswith(OWN_PREFIX):
            return ""
        if self._credential is not None and is_secret(name):
            return ""
        return name.decode("latin-1")

    def _headers_up(
        self, call: Call, spoken: UpstreamDialect, *, plain: bool = False
    ) -> list[tuple[str, str]]:
        """Return the client's end-to-end headers, without the headers that control Headstart.

        If the upstream has its own key, the client's key, its other secrets and the headers that
        belong to them are removed. If not, the client's key is also in the header of the upstream's
        main dialect. ``plain`` asks for an answer that is not compressed.
        """
        names = self._plain_names if plain else self._names
        kept: list[tuple[str, str]] = []
        named: list[str] = []
        for name, value in call.headers:
            if text := names[name]:
                if name == _ENCODING and self.secrets:  # an error must be readable, see ``masked``
                    kept.append((text, "gzip" if b"gzip" in value else "identity"))
                else:
                    kept.append((text, value.decode("latin-1")))
            elif name == b"connection" and value != b"keep-alive":
                named += [part.strip() for part in value.decode("latin-1").lower().split(",")]
        if named:
            kept = [pair for pair in kept if pair[0] not in named]
        kept += self._keys
        if plain:
            kept.append(("accept-encoding", "identity"))
        if self._credential is None and spoken is not self._main:
            kept += _key_for(self._main, call)
        return self._complete(kept, spoken)

    def _query_up(self, query: bytes) -> bytes:
        """Return the client's query, without its secrets if the upstream has another key."""
        if self._credential is None:
            return query
        return b"&".join(pair for pair in query.split(b"&") if not _holds_secret(pair))

    def _complete(
        self, headers: list[tuple[str, str]], spoken: UpstreamDialect, *, required: bool = False
    ) -> list[tuple[str, str]]:
        """Add the upstream's own headers in place of the caller's, and those that its API needs.

        If the caller's key is passed on, the caller has to send the latter, unless ``required``.
        """
        for name, value in self._upstream.headers.items():
            known = [each for each in headers if each[0].lower() == name.lower()]
            listed = [each for _, each in known] if name.lower() in _LISTS else []
            headers = [each for each in headers if each not in known]
            headers.append((name, ",".join([*listed, value])))
        if spoken.required_headers and (required or self._upstream.api_key_env):
            named = {name.lower() for name, _ in headers}
            headers.extend(pair for pair in spoken.required_headers.items() if pair[0] not in named)
        return headers

    def _relay(self, call: Call) -> OutgoingRequest:
        """Return the client's request untranslated, with the upstream's name for the model."""
        spoken = UPSTREAM_DIALECTS.get(call.dialect, self._main)
        headers = self._headers_up(call, spoken if spoken.name in self._further else self._main)
        if call.dialect in DOCUMENTS:  # we read the answers of these calls
            headers = [pair for pair in headers if pair[0] != "accept-encoding"]
            headers.append(("accept-encoding", "identity"))
        query = call.query_string and self._query_up(call.query_string)
        sent = OutgoingRequest(call.path, query, headers, call.body)
        real = self._upstream.models.get(call.model, call.model)
        return sent if real == call.model else _renamed(sent, call, real)

    def _edit(self, call: Call, request: ChatRequest, own: Dialect) -> OutgoingRequest:
        """Return the client's own request with the fewest edits, whose names are ``transforms``.

        The body keeps its bytes if the upstream takes all of its fields and the model's name, the
        answer comes in the form that the client asked for, and nothing is added: no ``fields`` of
        the settings, and no wish for the usage of a stream.
        """
        upstream, is_further = self._upstream, own is not self._main
        reads_answer = call.editable or call.streamed_upstream
        headers = self._headers_up(call, own, plain=reads_answer)
        body, path = call.body, call.path
        query = call.query_string and self._query_up(call.query_string)
        names: list[str] = []
        # The quirks of the settings belong to the upstream's main dialect.
        quirks = _FURTHER_QUIRKS if is_further else upstream.quirks
        has_quirks = ATTRIBUTION.encode() in body if is_further else self._has_quirks
        if own.apply_quirks and (has_quirks or THINKING_MARK in body):
            body, dropped = own.apply_quirks(body, request, quirks)
            names += (f"dropped:{name}" for name in dropped)
        fields: dict[str, Any] = {}
        real = upstream.models.get(request.model, request.model)
        if real != request.model:
            names.append("model")
            renamed = own.operations and own.operations.with_model(path, real)
            if renamed:
                path = renamed
            else:  # the body names the model, and not the path
                fields["model"] = real
        if call.streamed_upstream:
            names.append("fold")
            request = replace(request, stream=True)
            streamed = own.operations and own.operations.streamed(path, query)
            if streamed:
                path, query = streamed
            else:
                fields["stream"] = True
        if upstream.fields:
            names.append("fields")
            fields.update(upstream.fields)
        if fields:
            body = _with_fields(body, fields)
        asks_usage = upstream.include_usage and quirks.stream_usage
        if asks_usage and reads_answer and request.stream:
            with_usage = own.add_usage(body, request)
            if with_usage is not None:
                body = with_usage
                names.append("include-usage")
        return OutgoingRequest(path, query, headers, body, tuple(names))

    def _translate(
        self, call: Call, request: ChatRequest, client: Dialect, own: UpstreamDialect
    ) -> OutgoingRequest:
        """Return the request in the provider's dialect."""
        upstream = self._upstream
        asked = without_dropped_tools(client.read_request(request), upstream.quirks)
        asked = portable_request(asked, upstream.quirks)
        real = upstream.models.get(request.model, request.model)
        streams = asked.stream or call.streamed_upstream
        asked = replace(
            asked, model=real, stream=streams, include_usage=streams and upstream.include_usage
        )
        written = own.write_request(asked, upstream.quirks)
        names = [TRANSLATED + own.name]
        names += ["model"] if real != request.model else []
        names += ["fold"] if call.streamed_upstream else []
        names += ["fields"] if upstream.fields else []
        body = _with_fields(written.body, upstream.fields) if upstream.fields else written.body
        names += [f"dropped:{name}" for name in written.dropped]
        headers = neutral_headers(call.headers, call.query_string, self._credential, own.key_header)
        headers.append(("accept", own.stream_type if streams else "application/json"))
        headers = self._complete(headers, own, required=True)
        return OutgoingRequest(written.path, written.query, headers, body, tuple(names))


def _renamed(sent: OutgoingRequest, call: Call, real: str) -> OutgoingRequest:
    """Return a relayed request with the upstream's own name for its model, wherever it is named."""
    client = DIALECTS.get(call.dialect)
    if client is not None and client.operations is not None:
        path = client.operations.with_model(sent.path, real)
        if path is not None:
            return replace(sent, path=path, transforms=("model",))
    if not sent.body:
        return replace(sent, query=_with_model(sent.query, call.model, real))
    try:
        body = _with_fields(sent.body, {"model": real})
    except UNDECODABLE:
        # The path names the model, and the body is not a JSON object: the upstream decides.
        return sent
    return replace(sent, body=body, transforms=("model",))


def _with_model(query: bytes, named: str, real: str) -> bytes:
    """Return a query with the upstream's own name for the model in it."""
    pairs = [
        b"model=" + quote(real, safe="").encode()
        if dict(parse_qsl(pair.decode("latin-1"))).get("model") == named
        else pair
        for pair in query.split(b"&")
    ]
    return b"&".join(pairs)


def _with_fields(body: bytes, fields: Mapping[str, Any]) -> bytes:
    """Return a JSON object with these fields. The values of its other fields keep their bytes."""
    document = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    document.update((name, msgspec.Raw(msgspec.json.encode(each))) for name, each in fields.items())
    return msgspec.json.encode(document)


def _marked(
    mark: Callable[[bytes, CacheMarks], bytes | None], body: bytes, marks: CacheMarks
) -> bytes | None:
    """Return the marked body; None also for a malformed body, which the provider will refuse."""
    try:
        return mark(body, marks)
    except (msgspec.ValidationError, LookupError, TypeError, AttributeError):
        return None


def _at_deployment(sent: OutgoingRequest, model: str, version: str) -> OutgoingRequest:
    """Return a request at the path of the model's deployment, which older versions of Azure need.

    Raises InvalidRequest for a name that would lead to another path.
    """
    if model in (".", ".."):
        raise InvalidRequest(f"model: {model!r} is not the name of a deployment")
    path, operation = sent.path, sent.path.removeprefix(_VERSIONED)
    if model and operation in _OF_A_DEPLOYMENT:
        name = quote(model, safe="").encode()
        path = b"%bdeployments/%b/%b" % (_VERSIONED, name, operation)
    stated = b"api-version=" + quote(version, safe="").encode()
    query = b"&".join(filter(None, (sent.query, stated)))
    return replace(sent, path=path, query=query)


def neutral_headers(
    headers: Headers, query: bytes, credential: Headers | None, key_header: tuple[bytes, bytes]
) -> list[tuple[str, str]]:
    """Return the headers for a provider of another dialect than the client's.

    Only headers that belong to no dialect are kept. ``credential`` has the headers with the
    upstream's own key; if it is None, the client's key is sent in the provider's ``key_header``.
    """
    kept = [pair for pair in headers if pair[0] in _NEUTRAL]
    if credential is None:
        key = _key_of(headers, query)
        name, prefix = key_header
        credential = () if key is None else ((name, prefix + key),)
    own = ("content-type", "application/json"), ("accept-encoding", "identity")
    return [*as_text((*kept, *credential)), *own]


def _key_for(main: UpstreamDialect, call: Call) -> list[tuple[str, str]]:
    """Return the caller's key in the header of the main dialect, if that header is missing."""
    name, prefix = main.key_header
    key = _key_of(call.headers, call.query_string)
    if key is None or any(known == name for known, _ in call.headers):
        return []
    return as_text([(name, prefix + key)])


def _key_of(headers: Headers, query: bytes) -> bytes | None:
    """Return the caller's bare key, from a header or from ``?key=``. Raises InvalidRequest."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer" and key:
                return key.strip()
        elif name in KEY_HEADERS:
            return value
    pairs = parse_qsl(query.decode("latin-1"))
    named = next((value for name, value in pairs if name == "key"), "")
    if not named.isprintable():
        raise InvalidRequest("key: this API key has a control character, which no header can hold")
    return named.encode() or None


def _holds_secret(pair: bytes) -> bool:
    """Tell whether a ``name=value`` of a query is a secret, by its name.

    ``;`` separates such pairs, too, because some servers read it so.
    """
    names = [part.partition(b"=")[0] for part in pair.split(b";")]
    return any(is_secret_parameter(unquote_to_bytes(name)) for name in names)


def as_text(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def to_text(target: bytes) -> str:
    """Decode a path or query so that aiohttp, which writes UTF-8, sends exactly these bytes."""
    try:
        return target.decode()
    except UnicodeDecodeError:
        return "".join([chr(byte) if byte < 0x80 else f"%{byte:02X}" for byte in target])


# --- the answer -----------------------------------------------------------------------------------


class AnswerHead(msgspec.Struct, frozen=True, gc=False):
    """The status and the headers of an upstream's answer."""

    status: int
    headers: Headers
    """The end-to-end headers, with names in lower case."""
    is_stream: bool
    is_plain: bool
    """The body is not compressed."""
    has_length: bool

    def labelled(self, *, is_stream: bool) -> AnswerHead:
        """Return the head with the media type of an event stream, or of JSON."""
        kept = tuple([pair for pair in self.headers if pair[0] != b"content-type"])
        media_type = _EVENTS if is_stream else "application/json"
        headers = (*kept, (b"content-type", media_type.encode()))
        return replace(self, headers=headers, is_stream=is_stream)


class _EndToEnd(msgspec.Struct, frozen=True):
    """Facts about the headers of an answer that follow from their names."""

    names: tuple[bytes, ...]
    """The names of the end-to-end headers, in lower case."""
    pick: Callable[[Headers], Headers]
    """Takes these headers out of all headers."""
    are_lower: bool
    """The upstream writes these names in lower case, too."""
    connection: tuple[int, ...]
    """The places of the headers ``connection``, which name further hop-by-hop headers."""
    kind: int | None
    """The place of the first ``content-type`` among ``names``."""
    encoding: int | None
    has_length: bool


def _end_to_end(names: tuple[bytes, ...]) -> _EndToEnd:
    lower = [name.lower() for name in names]
    places = [place for place, name in enumerate(lower) if name not in HOP_BY_HOP]
    kept = tuple([lower[place] for place in places])
    return _EndToEnd(
        kept,
        picker(places),
        all(names[place] == lower[place] for place in places),
        tuple([place for place, name in enumerate(lower) if name == b"connection"]),
        kept.index(b"content-type") if b"content-type" in kept else None,
        kept.index(b"content-encoding") if b"content-encoding" in kept else None,
        b"content-length" in kept,
    )


_heads = NamesMemo(_end_to_end)


def read_head(status: int, headers: Headers, secrets: tuple[bytes, ...] = ()) -> AnswerHead:
    """Read the headers of an answer, with asterisks in place of ``secrets``.

    Raises UpstreamProtocolError for a status or a header that no server could pass on.
    """
    if not 200 <= status < 600:
        raise UpstreamProtocolError(f"the upstream answered with status {status}")
    found = _heads[tuple([name for name, _ in headers])]
    kept = found.pick(headers)
    values = [value for _, value in kept]
    written = b"".join(values)
    if len(written.translate(None, _UNWRITABLE)) != len(written):
        raise UpstreamProtocolError("a header of the upstream has control characters")
    if secrets:  # some providers return what they were sent
        values = [_masked(value, secrets) for value in values]
    if secrets or not found.are_lower:
        kept = tuple(zip(found.names, values, strict=True))
    kind = None if found.kind is None else values[found.kind]
    encoding = None if found.encoding is None else values[found.encoding]
    is_stream = kind is not None and kind.lower().startswith(EVENT_STREAMS)
    is_plain = encoding is None or encoding.strip().lower() == b"identity"
    for place in found.connection:
        named = {part.strip().lower() for part in headers[place][1].split(b",")} - HOP_BY_HOP
        kept = tuple(pair for pair in kept if pair[0] not in named) if named else kept
    return AnswerHead(status, kept, is_stream, is_plain, found.has_length)


class IncomingAnswer(msgspec.Struct, frozen=True):
    """The dialects of a call's client and upstream. Without both, an answer passes unread."""

    call: Call
    client: Dialect | None
    own: UpstreamDialect | None
    """The upstream's dialect."""
    now: float
    """Unix seconds."""
    model: str = ""
    """The upstream's name of the requested model."""
    usage_beside: bool = False
    """The upstream has no option to ask for the usage of a stream. It may report it anyway."""

    def may_be_labelled_wrongly(self, head: AnswerHead) -> bool:
        """Tell whether an answer may be what was asked for, although its media type is another.

        The providers' own clients ignore the media type.
        """
        own = self.own
        if own is None or self.call.request is None:
            return False
        return head.is_plain and head.status < 300 and own.stream_type == _EVENTS

    def begin(
        self, head: AnswerHead, transcript: Transcript, *, strip_usage: bool
    ) -> tuple[int, Headers, BodyReader]:
        """Return the answer's status and headers for the client, and the reader of its body.

        ``strip_usage``: remove the chunk with the usage. Raises UpstreamProtocolError if the body
        has to be translated or assembled and is compressed.
        """
        status, headers = head.status, head.headers
        client, own, call = self.client, self.own, self.call
        request = call.request
        if strip_usage and head.has_length:
            headers = tuple([pair for pair in headers if pair[0] != b"content-length"])
        if client is None or own is None or request is None:
            held = call.dialect in DOCUMENTS and status < 300 and head.is_plain
            return status, headers, WholeReader() if held else BodyReader()
        if client is not own or call.streamed_upstream:
            if not head.is_plain:
                raise UpstreamProtocolError("the upstream compressed its answer against our wish")
            if client is not own or head.is_stream:
                return self._begin_rewritten(head, headers, transcript, client, own, request)
        if not head.is_plain:
            return status, headers, BodyReader()
        if head.is_stream:
            choices = max(1, request.choices)
            frames = FrameReader(client, call.id, strip_usage=strip_usage, choices=choices)
            return status, headers, frames
        return status, headers, DocumentReader(client, status, usage_beside=self.usage_beside)

    def _begin_rewritten(
        self,
        head: AnswerHead,
        headers: Headers,
        transcript: Transcript,
        client: Dialect,
        own: UpstreamDialect,
        request: ChatRequest,
    ) -> tuple[int, Headers, BodyReader]:
        """Begin an answer that is translated, or a stream that becomes one document."""
        status, types = head.status, client.content_types
        as_stream = request.stream and status < 400
        content_type = types.stream if as_stream else types.json
        headers = translate_headers(headers, own, client, content_type=content_type)
        naming = self._naming(client, request)
        if client is own:
            return status, headers, StreamAssembler(own, client, naming, transcript)
        encoder = self._encoder(client, request, naming) if as_stream else None
        reader: BodyReader
        if status >= 400 or not head.is_stream:
            reader = DocumentTranslator(own, client, status, naming, encoder)
        elif encoder is None:
            reader = StreamAssembler(own, client, naming, transcript)
        else:
            reader = Reencoder(own, client, naming, encoder)
        return translate_status(status, client), headers, reader

    def _naming(self, client: Dialect, request: ChatRequest) -> AnswerNames:
        return AnswerNames(
            self.call.id,
            client.new_id(),
            int(self.now),
            client.asks_functions(request),
            self.call.prompt_tokens,
            shows_reasoning=client.shows_reasoning(request),
            model=self.model,
            choices=max(1, request.choices),
            echo=None if client.echo is None else client.echo(request.document),
            asked=request.document,
            tool_names=client.form.tool_names(request.document),
            call_kinds=client.form.call_kinds(request.document),
        )

    def _encoder(self, client: Dialect, request: ChatRequest, naming: AnswerNames) -> EventEncoder:
        encoder = client.encoder(
            naming.answer_id, naming.created, include_usage=request.include_usage
        )
        if naming.echo is not None:
            encoder.feed((ExtraDelta(fields=naming.echo, choice=None),))
        if client.tells_prompt_first:
            estimate = client.usage(Tokens(prompt=self.call.prompt_tokens))
            encoder.feed((UsageReported(usage=estimate),))
        return encoder


async def pieces_of(
    body: bytes, reader: BodyReader, transcript: Transcript
) -> AsyncGenerator[Piece]:
    """Yield the pieces of a body that is whole."""
    for piece in (reader.feed(body), reader.end()):
        transcript.add(piece)
        yield piece


class MaskedBody:
    """Reads a body with asterisks in place of secrets.

    If the last bytes may be the beginning of a secret, they are kept back until more bytes come.
    """

    def __init__(self, content: aiohttp.StreamReader, secrets: tuple[bytes, ...]) -> None:
        self._content = content
        self._secrets = secrets
        self._within = frozenset(b"".join(secrets))
        self._rest = b""

    def at_eof(self) -> bool:
        """Tell whether all bytes were read."""
        return not self._rest and self._content.at_eof()

    async def read(self, most: int) -> bytes:
        """Return bytes, and wait for them if none have arrived. ``b""`` is the end of the body."""
        while True:
            read = await self._content.read(most)
            data, self._rest = _masked(self._rest + read, self._secrets), b""
            if not (read and data[-1] in self._within):
                return data
            start = len(data) - self._begun(data)
            data, self._rest = data[:start], data[start:]
            if data:
                return data

    def _begun(self, data: bytes) -> int:
        """Return the length of the longest suffix of ``data`` that is a prefix of a secret."""
        return max(
            length
            for secret in self._secrets
            for length in range(len(secret))
            if data.endswith(secret[:length])
        )


def _masked(data: bytes, secrets: tuple[bytes, ...]) -> bytes:
    """Return bytes with asterisks in place of secrets."""
    for secret in secrets:
        data = data.replace(secret, b"*" * len(secret))
    return data


def unpacked(body: bytes, headers: Headers) -> tuple[bytes, Headers]:
    """Return an error answer uncompressed, or without its body if that cannot be decompressed."""
    encodings = {value.strip().lower() for name, value in headers if name == b"content-encoding"}
    if encodings <= {b"identity"}:
        return body, headers
    about_body = (b"content-encoding", b"content-length")
    headers = tuple(pair for pair in headers if pair[0] not in about_body)
    if not encodings <= {b"gzip", b"x-gzip", b"deflate"}:
        return b"", headers
    reader = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        plain = reader.decompress(body, MAX_DOCUMENT_BYTES)
    except zlib.error:
        return b"", headers
    return plain if reader.eof else b"", headers


# --- WebSockets -----------------------------------------------------------------------------------

NOT_ADDED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""The headers that the client library would add to a request."""


def socket_session(
    pool: aiohttp.BaseConnector | None, timeout: aiohttp.ClientTimeout
) -> aiohttp.ClientSession:
    """Return a session that opens WebSockets. Its connections are those of the ``pool``."""
    return aiohttp.ClientSession(
        connector=pool,
        connector_owner=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=NOT_ADDED,
        auto_decompress=False,
        timeout=timeout,
        middlewares=(_refusing,),
        ws_response_class=Socket,
    )


class Socket(aiohttp.ClientWebSocketResponse):
    """The client library's WebSocket, which can also end its connection at once."""

    def __init__(self, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        response: ClientResponse = parts[3]
        connection = response.connection
        self._wire = None if connection is None else connection.transport

    def abort(self) -> None:
        """Drop unsent bytes, and close the connection."""
        if self._wire is not None:
            self._wire.abort()


async def _refusing(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    """Raise UpstreamRefused if the provider answers a handshake with anything but the upgrade.

    A redirect is a refusal, too: a key must not follow it.
    """
    response = await handler(request)
    if response.status == 101:
        return response
    body = b""
    try:
        while len(body) < REFUSAL_BYTES and (data := await response.content.readany()):
            body += data
    finally:
        response.close()
    headers = read_head(response.status, response.raw_headers).headers
    raise UpstreamRefused(
        f"the upstream refused the WebSocket with status {response.status}",
        status=response.status,
        headers=tuple(pair for pair in headers if pair[0] != b"content-length"),
        body=body,
        code="upstream_refused",
    )
