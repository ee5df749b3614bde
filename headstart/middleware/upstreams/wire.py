"""The request that a provider gets for a call, and the reader of the provider's answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote_to_bytes

import msgspec

from headstart.attempts import Tokens
from headstart.canonical_request import Quirks
from headstart.dialects.answers import translate_headers, translate_status
from headstart.dialects.documents import DOCUMENTS
from headstart.dialects.registry import (
    ACCOUNT_HEADERS,
    BY_SETTING,
    DIALECTS,
    KEY_HEADERS,
    UPSTREAM_DIALECTS,
)
from headstart.dialects.requests import may_hold_marks
from headstart.errors import InvalidRequest, UpstreamProtocolError
from headstart.middleware.reading import BodyReader, DocumentReader, FrameReader, WholeReader
from headstart.middleware.translated_reading import DocumentTranslator, Folder, Naming, Reencoder
from headstart.policies.callers import is_secret, is_secret_parameter
from headstart.reply import is_event_stream, is_plain
from headstart.types import UsageReported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headstart.dialects.dialect import Dialect, EventEncoder, UpstreamDialect
    from headstart.settings import UpstreamSettings
    from headstart.transcript import Transcript
    from headstart.types import Call, ChatRequest, Headers

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_NOT_UP = HOP_BY_HOP | {b"host", b"content-length", b"expect"}
OWN_PREFIX = b"x-headstart-"
_NO_NAMES: frozenset[bytes] = frozenset()
_NEUTRAL = frozenset(
    (
        b"accept-language",
        b"baggage",
        b"traceparent",
        b"tracestate",
        b"user-agent",
        b"x-request-id",
    )
)


def headers_up(headers: Headers, credential: Headers | None) -> list[tuple[str, str]]:
    """Return the client's end-to-end headers for an upstream, without our own control headers.

    ``credential`` replaces the client's key, every other secret of his, and what goes with them (an
    upstream with its own key); None passes the client's own on.
    """
    dropped = _NOT_UP if credential is None else _NOT_UP | ACCOUNT_HEADERS
    named = _connection_names(headers)
    kept = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in headers
        if name not in dropped and name not in named and not name.startswith(OWN_PREFIX)
        if credential is None or not is_secret(name)
    ]
    for name, value in credential or ():
        kept.append((name.decode("latin-1"), value.decode("latin-1")))
    return kept


def query_up(query: bytes, credential: Headers | None) -> bytes:
    """Return the client's query for an upstream: without his secrets, where it has another key."""
    if credential is None or not query:
        return query
    return b"&".join(pair for pair in query.split(b"&") if not _holds_secret(pair))


def _holds_secret(pair: bytes) -> bool:
    """Tell whether a part of a query has a secret's name. Some servers split it at ``;``, too."""
    names = [part.partition(b"=")[0] for part in pair.split(b";")]
    return any(is_secret_parameter(unquote_to_bytes(name)) for name in names)


def headers_across(
    headers: Headers, query: bytes, credential: Headers | None, key_header: tuple[bytes, bytes]
) -> list[tuple[str, str]]:
    """Return the headers for a provider of another dialect than the client's.

    Only what belongs to no dialect travels. ``credential`` as in ``headers_up``; None gives the
    client's own key in the provider's ``key_header``.
    """
    kept = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in headers
        if name in _NEUTRAL
    ]
    if credential is None:
        key = _key_of(headers, query)
        name, prefix = key_header
        credential = () if key is None else ((name, prefix + key),)
    kept += [(name.decode("latin-1"), value.decode("latin-1")) for name, value in credential]
    return [*kept, ("content-type", "application/json"), ("accept-encoding", "identity")]


def _key_of(headers: Headers, query: bytes) -> bytes | None:
    """Return the caller's bare key, from whatever header or ``?key=`` it came in."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer" and key:
                return key.strip()
        elif name in KEY_HEADERS:
            return value
    pairs = parse_qsl(query.decode("latin-1"))
    return next((value.encode() for name, value in pairs if name == "key"), None)


def headers_down(headers: Headers, *, body_changed: bool) -> Headers:
    """Return an upstream's end-to-end headers for the client."""
    named = _connection_names(headers)
    dropped = HOP_BY_HOP | named if named else HOP_BY_HOP
    kept = [pair for pair in headers if pair[0] not in dropped]
    if body_changed:
        kept = [pair for pair in kept if pair[0] != b"content-length"]
    return tuple(kept)


def _connection_names(headers: Headers) -> frozenset[bytes]:
    """Names that the ``connection`` headers, of which there may be several, call hop by hop."""
    values = [value for name, value in headers if name == b"connection"]
    if not values:
        return _NO_NAMES
    return frozenset([part.strip().lower() for value in values for part in value.split(b",")])


class IncomingAnswer(NamedTuple):
    """The dialects of a call's client and upstream. Without them the answer passes unread."""

    call: Call
    client: Dialect | None
    own: UpstreamDialect | None
    """The upstream's."""
    now: float
    """Unix seconds."""
    model: str = ""
    """As the upstream calls the one that was asked."""

    def status(self, status: int) -> int:
        """Return an answer's status for the client."""
        if self.client is None or not self.client is not self.own:
            return status
        return translate_status(status, self.client)

    def headers(self, status: int, headers: Headers, *, strip: bool) -> Headers:
        """Return an answer's headers for the client. ``strip``: its usage chunk is removed."""
        folds = self.call.streamed_upstream and is_event_stream(headers)
        down = headers_down(headers, body_changed=strip)
        if self.client is None or self.own is None or not (self.client is not self.own or folds):
            return down
        request = self.call.request
        streams = request is not None and request.stream and status < 400
        types = self.client.content_types
        content_type = types.stream if streams else types.json
        return translate_headers(down, self.own, self.client, content_type=content_type)

    def reader(
        self, status: int, headers: Headers, transcript: Transcript, *, strip: bool
    ) -> BodyReader:
        """Return the reader of an answer with these headers, as they came.

        Raises UpstreamProtocolError for an encoded body, unless it only passes: then it passes
        unread.
        """
        request = self.call.request
        if self.client is None or self.own is None or request is None:
            held = self.call.dialect in DOCUMENTS and status < 300 and is_plain(headers)
            return WholeReader() if held else BodyReader()
        if not is_plain(headers):
            if self.client is not self.own or self.call.streamed_upstream:
                raise UpstreamProtocolError("the upstream compressed its answer against our wish")
            return BodyReader()
        streams = is_event_stream(headers)
        if self.client is not self.own:
            return self._translator(
                self.client, self.own, request, status, transcript, streams=streams
            )
        if streams and self.call.streamed_upstream:
            return Folder(self.own, self.client, self._naming(self.client), transcript)
        if streams:
            return FrameReader(
                self.client, self.call.id, strip=strip, choices=max(1, request.choices)
            )
        return DocumentReader(self.client, status)

    def _translator(
        self,
        client: Dialect,
        own: UpstreamDialect,
        request: ChatRequest,
        status: int,
        transcript: Transcript,
        *,
        streams: bool,
    ) -> BodyReader:
        naming = self._naming(client)
        if status >= 400:
            return DocumentTranslator(own, client, status, naming)
        if not request.stream:
            if streams:
                return Folder(own, client, naming, transcript)
            return DocumentTranslator(own, client, status, naming)
        encoder = self._encoder(client, request, naming)
        if streams:
            return Reencoder(own, client, naming, encoder)
        return DocumentTranslator(own, client, status, naming, encoder)

    def _naming(self, client: Dialect) -> Naming:
        request = self.call.request
        return Naming(
            self.call.id,
            client.new_id(),
            int(self.now),
            request is not None and client.asks_functions(request),
            self.call.prompt_tokens,
            shows_reasoning=request is None or client.shows_reasoning(request),
            model=self.model,
            choices=1 if request is None else max(1, request.choices),
        )

    def _encoder(self, client: Dialect, request: ChatRequest, naming: Naming) -> EventEncoder:
        encoder = client.encoder(
            naming.answer_id, naming.created, include_usage=request.include_usage
        )
        if client.tells_prompt_first:
            estimate = client.usage(Tokens(prompt=self.call.prompt_tokens))
            encoder.feed((UsageReported(usage=estimate),))
        return encoder


AFTER_END_S = 1.0
"""How long a provider may take to end the body of an answer that is whole. A body that ends in time
leaves its connection to the next call."""


_NOTHING: Mapping[str, str] = {}
_NO_QUIRKS = Quirks()
_VERSIONED = b"/v1/"
_OF_A_DEPLOYMENT = frozenset(
    (
        b"audio/speech",
        b"audio/transcriptions",
        b"audio/translations",
        b"chat/completions",
        b"completions",
        b"embeddings",
        b"images/edits",
        b"images/generations",
    )
)
"""Azure's operations whose path names the deployment; for others the body names the model."""


class OutgoingRequest(NamedTuple):
    """A request as it goes out."""

    path: bytes
    query: bytes
    headers: list[tuple[str, str]]
    body: bytes
    transforms: tuple[str, ...] = ()
    """Names of the edits made to the client's request."""


def outgoing(
    call: Call,
    upstream: UpstreamSettings,
    credential: Headers | None,
    client: Dialect | None,
    own: UpstreamDialect | None,
) -> OutgoingRequest:
    """Return the request to send. ``client`` is the call's dialect, ``own`` the provider's.

    ``credential`` is the upstream's own key; None: the caller's key passes.
    Raises InvalidRequest for what the provider's dialect cannot express.
    """
    sent = _outgoing(call, upstream, credential, client, own)
    if upstream.api_version is None:
        return sent
    model = call.deployment if call.request is None else call.request.model
    return _at_deployment(sent, upstream.models.get(model, model), upstream.api_version)


def _at_deployment(sent: OutgoingRequest, model: str, version: str) -> OutgoingRequest:
    """Return a request at the path of the model's deployment, as older versions of Azure want it.

    Raises InvalidRequest for a name that would lead to another path.
    """
    if model in (".", ".."):
        raise InvalidRequest(f"model: {model!r} is no name of a deployment")
    path, operation = sent.path, sent.path.removeprefix(_VERSIONED)
    if model and operation in _OF_A_DEPLOYMENT:
        name = quote(model, safe="").encode()
        path = b"%bdeployments/%b/%b" % (_VERSIONED, name, operation)
    stated = b"api-version=" + quote(version, safe="").encode()
    query = b"&".join(filter(None, (sent.query, stated)))
    return sent._replace(path=path, query=query)


def _outgoing(
    call: Call,
    upstream: UpstreamSettings,
    credential: Headers | None,
    client: Dialect | None,
    own: UpstreamDialect | None,
) -> OutgoingRequest:
    if client is None or own is None or call.request is None:
        sent = _relay(call, upstream, credential)
        return _uncompressed(sent) if call.dialect in DOCUMENTS else sent
    if client.name != own.name:
        return _translate(call, call.request, upstream, credential, client, own)
    return _edit(call, call.request, upstream, credential, client)


def _uncompressed(sent: OutgoingRequest) -> OutgoingRequest:
    """Return a request whose answer can be read."""
    headers = [pair for pair in sent.headers if pair[0] != "accept-encoding"]
    return sent._replace(headers=[*headers, ("accept-encoding", "identity")])


def _relay(call: Call, upstream: UpstreamSettings, credential: Headers | None) -> OutgoingRequest:
    """Return a request that nobody translates, under the upstream's name of its model."""
    main, headers = BY_SETTING[upstream.speaks], headers_up(call.headers, credential)
    spoken = UPSTREAM_DIALECTS.get(call.dialect, main)
    if spoken.setting not in upstream.further:
        spoken = main
    elif credential is None:
        headers += _key_for(main, call)
    headers = _complete(headers, upstream, _required(upstream, spoken))
    query = query_up(call.query_string, credential)
    real = upstream.models.get(call.model, call.model)
    operations = None if call.dialect not in DIALECTS else DIALECTS[call.dialect].operations
    path = None if operations is None else operations.with_model(call.path, real)
    if real == call.model or not (call.body or path):
        return OutgoingRequest(call.path, query, headers, call.body)
    if path is not None:
        return OutgoingRequest(path, query, headers, call.body, ("model",))
    body = _with_members(call.body, {"model": real})
    return OutgoingRequest(call.path, query, headers, body, ("model",))


def _edit(
    call: Call,
    request: ChatRequest,
    upstream: UpstreamSettings,
    credential: Headers | None,
    own: Dialect,
) -> OutgoingRequest:
    """Return the client's own request with the fewest edits.

    The quirks are those of the upstream's main dialect.
    """
    is_further = own.setting != upstream.speaks
    quirks = _NO_QUIRKS if is_further else upstream.quirks
    headers = headers_up(call.headers, credential)
    if credential is None and is_further:
        headers += _key_for(BY_SETTING[upstream.speaks], call)
    if call.editable or call.streamed_upstream:
        headers = [pair for pair in headers if pair[0] != "accept-encoding"]
        headers.append(("accept-encoding", "identity"))
    body, path = call.body, call.path
    query = query_up(call.query_string, credential)
    names: list[str] = []
    if own.apply_quirks and (quirks != _NO_QUIRKS or may_hold_marks(body)):
        body, dropped = own.apply_quirks(body, request, quirks)
        names += (f"dropped:{name}" for name in dropped)
    members: dict[str, Any] = {}
    real = upstream.models.get(request.model, request.model)
    if real != request.model:
        names.append("model")
        renamed = own.operations and own.operations.with_model(path, real)
        if renamed:
            path = renamed
        else:
            members["model"] = real
    if call.streamed_upstream:
        names.append("fold")
        streamed = own.operations and own.operations.streamed(path, query)
        if streamed:
            path, query = streamed
        else:
            members["stream"] = True
        request = msgspec.structs.replace(request, stream=True)
    if upstream.fields:
        members.update(upstream.fields)
        names.append("fields")
    body = _with_members(body, members)
    if upstream.include_usage and quirks.stream_usage and (call.editable or call.streamed_upstream):
        with_usage = own.add_usage(body, request)
        if with_usage is not None:
            body = with_usage
            names.append("include-usage")
    headers = _complete(headers, upstream, _required(upstream, own))
    return OutgoingRequest(path, query, headers, body, tuple(names))


def _translate(
    call: Call,
    request: ChatRequest,
    upstream: UpstreamSettings,
    credential: Headers | None,
    client: Dialect,
    own: UpstreamDialect,
) -> OutgoingRequest:
    """Return the request in the provider's dialect."""
    asked = client.read_request(request)
    real = upstream.models.get(request.model, request.model)
    streams = asked.stream or call.streamed_upstream
    asked = msgspec.structs.replace(
        asked, model=real, stream=streams, include_usage=streams and upstream.include_usage
    )
    written = own.write_request(asked, upstream.quirks)
    names = [f"translated:{own.name}"]
    names += ["model"] if real != request.model else []
    names += ["fold"] if call.streamed_upstream else []
    names += ["fields"] if upstream.fields else []
    names += [f"dropped:{name}" for name in written.dropped]
    headers = headers_across(call.headers, call.query_string, credential, own.key_header)
    headers.append(("accept", own.stream_type if streams else "application/json"))
    body = _with_members(written.body, upstream.fields)
    headers = _complete(headers, upstream, own.required_headers)
    return OutgoingRequest(written.path, written.query, headers, body, tuple(names))


def _with_members(body: bytes, members: Mapping[str, Any]) -> bytes:
    if not members:
        return body
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    fields.update(
        (name, msgspec.Raw(msgspec.json.encode(value))) for name, value in members.items()
    )
    return msgspec.json.encode(fields)


def _required(upstream: UpstreamSettings, spoken: UpstreamDialect) -> Mapping[str, str]:
    """Return the headers that the API asks for, where the key is the upstream's own."""
    return spoken.required_headers if upstream.api_key_env else _NOTHING


def _key_for(main: UpstreamDialect, call: Call) -> list[tuple[str, str]]:
    """Return the caller's key in the header of an upstream's main dialect, if it has none."""
    name, prefix = main.key_header
    key = _key_of(call.headers, call.query_string)
    if key is None or any(known == name for known, _ in call.headers):
        return []
    return [(name.decode("latin-1"), (prefix + key).decode("latin-1"))]


def _complete(
    headers: list[tuple[str, str]], upstream: UpstreamSettings, required: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Add the upstream's own headers, and required ones where nothing of that name is there."""
    headers.extend(upstream.headers.items())
    if required:
        named = {name.lower() for name, _ in headers}
        headers.extend(pair for pair in required.items() if pair[0] not in named)
    return headers
