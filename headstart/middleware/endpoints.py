"""The paths whose requests are cached: those of the dialects, and the user's endpoints.

The last part reads the paths of Azure OpenAI, which may name the model.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote_to_bytes

import msgspec

from headstart.dialects.requests import decode_object, repeats_keys
from headstart.errors import ConfigError, InvalidRequest
from headstart.policies.key import QUESTION_GROUP
from headstart.policies.route_rules import REPEAT_WINDOW_S
from headstart.types import UNDECODABLE, ChatRequest, Scope, json_or_none

if TYPE_CHECKING:
    from headstart.dialects.dialect import Dialect
    from headstart.dialects.registry import DocumentForm
    from headstart.settings import OnRepeat


METHODS = ("POST", "GET", "PUT", "PATCH", "QUERY")
"""The methods of an endpoint. Others have no answer to store (HEAD), or must not be answered
twice."""
_SEGMENT = re.compile(r"(?:[A-Za-z0-9._~!$&'()+,;=:@-]|%[0-9A-Fa-f]{2})*")
"""A segment of a URL's path (RFC 3986, section 3.3), without ``*``."""
_PARAMETER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_VALUE = rb"(?:[^/%]|%(?!2[Ff]))+"
"""Matches the value of a parameter. It has no encoded slash, because an app might read it as the
end of a segment."""
_DECODINGS = 4
"""Most times that a path is decoded to find a dot segment."""
_ESCAPED_UNIT = re.compile(rb"%[uU]([0-9a-fA-F]{4})")
_OVERLONG = re.compile(
    rb"[\xc0\xc1][\x80-\xbf]|\xe0[\x80-\x9f][\x80-\xbf]|\xf0[\x80-\x8f][\x80-\xbf]{2}"
)
"""Invalid UTF-8 that uses more bytes than the character needs."""
_SLASHES = dict.fromkeys(map(ord, "\u2044\u2215\u2216\u29f5\u29f8\u29f9"), "/")
"""Characters that some servers map to a slash or backslash, in addition to NFKC."""
_SEGMENT_END = re.compile(r"[;#?]")

Prompt: TypeAlias = str | Callable[[Mapping[str, Any]], tuple[str | None, Any]]
"""A dotted path into the JSON body, or a function from the body to (prompt, everything else)."""
Query: TypeAlias = str | re.Pattern[str] | Callable[[Mapping[str, Any]], str | None]
"""A dotted path, a pattern whose group ``query`` is found in the prompt, or a function."""


@dataclass(frozen=True)
class Endpoint:
    """A path of your own app whose whole answers are cached (``docs/endpoints.md``).

    ``path`` may have parameters, each a whole segment: ``/projects/{id}/ask``. Requests to two
    projects never share an answer.

    ``prompt`` names the question in the JSON body: ``"question"``, ``"input.text"``,
    ``"messages.-1.content"``, or a function that returns the prompt and everything else. Requests
    that differ in anything else never share an answer. Without ``prompt``, only equal requests
    share one.

    ``query`` names the question *inside* a prompt that is mostly template and documents: then it
    alone is compared by meaning, and the rest of the prompt must be equal. It may also be given
    for ``/v1/chat/completions`` and ``/v1/messages``, whose prompt is the last user text.
    Functions are asked once for equal requests, so they must not depend on anything but the body.

    The app is never called more often than its clients call, unless ``idempotent`` says that one
    more call in the background changes nothing. Then hits are audited without a wait.

    ``on_repeat="fresh"`` asks the app again when a caller sends the same request within
    ``repeat_window_s`` of its answer, as a button "regenerate" does; the fresh answer replaces the
    stored one.

    ``after_checks``: the app runs first, up to its handler, which is decorated with
    ``headstart.after_checks`` and looks up when the app's own checks have let the request in.
    """

    path: str
    prompt: Prompt | None = None
    method: str = "POST"
    query: Query | None = None
    idempotent: bool = False
    on_repeat: OnRepeat = "hit"
    repeat_window_s: float = REPEAT_WINDOW_S
    after_checks: bool = False

    def __post_init__(self) -> None:
        if wrong := _wrong_path(self.path):
            raise ConfigError(f"Endpoint path {self.path!r} {wrong}")
        if self.method.upper() not in METHODS:
            raise ConfigError(
                f"Endpoint {self.path!r}: method {self.method!r} has no answer that could be "
                f"cached; use one of {', '.join(METHODS)}"
            )
        if self.on_repeat not in ("hit", "fresh"):
            raise ConfigError(f'Endpoint on_repeat is {self.on_repeat!r}; use "hit" or "fresh"')
        if not self.repeat_window_s > 0:
            raise ConfigError("Endpoint repeat_window_s must be above 0 seconds")
        if isinstance(self.query, re.Pattern) and QUESTION_GROUP not in self.query.groupindex:
            raise ConfigError(
                f"Endpoint query {self.query.pattern!r} needs a group named {QUESTION_GROUP!r}, "
                r"as in (?s).*Question: (?P<query>.+)"
            )


@dataclass(frozen=True)
class MatchedEndpoint:
    """A matched path: of a dialect, of a document's form, or of a custom endpoint."""

    name: str
    dialect: Dialect | None
    custom: Endpoint | None = None
    document: DocumentForm | None = None
    """The wire format of a provider's calls that are not chats."""

    @cached_property
    def wire(self) -> str:
        """The name of the wire format; "" for a custom endpoint."""
        form = self.dialect or self.document
        return "" if form is None else form.name

    @cached_property
    def is_chat(self) -> bool:
        """Whether its requests hold a conversation, or go to an endpoint of the user's own."""
        return self.document is None and (self.dialect is None or self.dialect.is_chat)

    @cached_property
    def idempotent(self) -> bool:
        """Whether the wrapped app may be called once more for the same request."""
        custom = self.custom
        return custom is not None and custom.idempotent and not custom.after_checks

    @cached_property
    def after_checks(self) -> bool:
        """Whether the app's handler looks up, and not the middleware."""
        return self.custom is not None and self.custom.after_checks

    @cached_property
    def repeat_window_s(self) -> float | None:
        """Time after an answer in which a repeat gets a fresh one; None: a repeat never does."""
        custom = self.custom
        return None if custom is None or custom.on_repeat == "hit" else custom.repeat_window_s

    @cached_property
    def pattern(self) -> re.Pattern[str] | None:
        """The pattern that finds the question in the prompt."""
        query = None if self.custom is None else self.custom.query
        return query if isinstance(query, re.Pattern) else None

    def parse(self, body: bytes, path: bytes = b"", query: bytes = b"") -> ChatRequest:
        """Read the request. Raises InvalidRequest, also if a custom body is not JSON."""
        if self.document is not None:
            return self.document.parse(body)
        if self.dialect is None:
            assert self.custom is not None
            return parse_custom(self.custom, body)
        if self.dialect.operations is not None:
            return self.dialect.operations.parse(path.partition(b"?")[0], query, body)
        request = self.dialect.parse_request(body)
        if self.custom is None:
            return request
        question = _named(self.custom, request.document)
        return msgspec.structs.replace(request, question=question)

    def without(self, question: str, request: ChatRequest) -> ChatRequest:
        """Return the request without the field that only repeats its question."""
        path = None if self.custom is None else self.custom.query
        if not isinstance(path, str):
            return request
        steps = path.split(".") if self.dialect is not None else ["rest", *path.split(".")]
        found, document = _split(request.document, steps)
        if found != question:
            return request
        return msgspec.structs.replace(request, document=document)


class EndpointTable:
    """Finds endpoints by method and raw path, which must match a path or a pattern exactly.

    A path without parameters comes before one with them.
    """

    def __init__(
        self,
        dialects: Iterable[Dialect],
        endpoints: tuple[Endpoint, ...],
        documents: Iterable[DocumentForm] = (),
    ) -> None:
        dialects = tuple(dialects)
        by_path = {path: dialect for dialect in dialects for path in dialect.paths}
        self._operations = [
            (each.operations, MatchedEndpoint(each.operations.endpoint, each))
            for each in dialects
            if each.operations is not None
        ]
        self._table = {
            ("POST", path.encode()): MatchedEndpoint(path, dialect)
            for path, dialect in by_path.items()
        }
        for form in documents:
            for path in form.paths:
                self._table["POST", path.encode()] = MatchedEndpoint(path, None, document=form)
        patterns: dict[str, list[Endpoint]] = {}
        for endpoint in endpoints:
            if not isinstance(endpoint, Endpoint):
                raise ConfigError(
                    f"endpoints holds {endpoint!r}, which is not a headstart.Endpoint"
                )
            key = (endpoint.method.upper(), endpoint.path.encode())
            dialect = None
            if endpoint.prompt is None and key[0] == "POST":
                dialect = by_path.get(endpoint.path)
            if dialect is None and endpoint.prompt is None and endpoint.query is not None:
                raise ConfigError(
                    f"Endpoint {endpoint.path!r}: query needs prompt, because it names a part of it"
                )
            known = self._table.get(key)
            if known is not None and known.custom is not None:
                raise ConfigError(f"endpoints has {endpoint.method} {endpoint.path!r} twice")
            if "{" in endpoint.path:
                patterns.setdefault(key[0], []).append(endpoint)
            else:
                self._table[key] = MatchedEndpoint(endpoint.path, dialect, endpoint)
        self._patterns = {method: _Patterns(each) for method, each in patterns.items()}

    def match(self, method: str, path: bytes, query: bytes = b"") -> MatchedEndpoint | None:
        """Return the endpoint of a request, or None."""
        endpoint = self._table.get((method, path))
        if endpoint is not None:
            return endpoint
        for operations, endpoint in self._operations if method == "POST" else ():
            if operations.part in path:
                if has_dot_segment(path):
                    return None
                if operations.answers(path, query):
                    return endpoint
        patterns = self._patterns.get(method)
        return None if patterns is None else patterns.match(path)


class _Patterns:
    """The endpoints of one method whose paths have parameters, as one regular expression."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        for place, endpoint in enumerate(endpoints):
            for other in endpoints[:place]:
                if _overlap(endpoint.path, other.path):
                    raise ConfigError(
                        f"endpoints {other.path!r} and {endpoint.path!r} match the same paths: "
                        "leave one out, or let them differ in a segment that is not a parameter"
                    )
        self._matched = [MatchedEndpoint(endpoint.path, None, endpoint) for endpoint in endpoints]
        self._any = re.compile(b"|".join(b"(%b)" % _regex(each.path) for each in endpoints))

    def match(self, path: bytes) -> MatchedEndpoint | None:
        match = self._any.fullmatch(path)
        if match is None or match.lastindex is None or has_dot_segment(path):
            return None
        return self._matched[match.lastindex - 1]


def _regex(path: str) -> bytes:
    segments = path.split("/")
    return b"/".join(
        _VALUE if _PARAMETER.fullmatch(each) else re.escape(each.encode()) for each in segments
    )


def _overlap(one: str, other: str) -> bool:
    """Return whether some path matches both patterns."""
    pairs = list(zip(one.split("/"), other.split("/"), strict=False))
    if one.count("/") != other.count("/"):
        return False
    return all(a == b or _PARAMETER.fullmatch(a) or _PARAMETER.fullmatch(b) for a, b in pairs)


def _wrong_path(path: str) -> str | None:
    """Return why no request can have such a path, or None."""
    if not path.startswith("/"):
        return "must start with '/'"
    if "?" in path or "#" in path:
        return "must be a path alone: a query is part of the cache key by itself"
    segments = path.split("/")
    wrong = next(filter(None, map(_wrong_segment, segments)), None)
    names = [segment for segment in segments if _PARAMETER.fullmatch(segment)]
    twice = next((name for name in names if names.count(name) > 1), None)
    return wrong or (twice and f"names the parameter {twice} twice")


def _wrong_segment(segment: str) -> str | None:
    if _PARAMETER.fullmatch(segment):
        return None
    if "{" in segment or "}" in segment:
        return f"has {segment!r}: a parameter is a whole segment with a plain name, as in /{{id}}/"
    if "*" in segment:
        return "has a '*', which has no meaning here: name a parameter, as in /items/{id}/ask"
    if segment in (".", ".."):
        return f"has {segment!r}, which clients resolve before they send a request"
    if not _SEGMENT.fullmatch(segment):
        return f"has {segment!r}: write it percent-encoded, as clients send it"
    return None


def parse_custom(endpoint: Endpoint, body: bytes) -> ChatRequest:
    """Split a custom endpoint's JSON body into its prompt and everything else."""
    document: dict[str, Any] = decode_object(body) if body else {}
    query: str | None = None
    rest: Any = document
    if callable(endpoint.prompt):
        query, rest = _asked(endpoint.prompt, document)
    elif endpoint.prompt is not None:
        query, rest = _split(document, endpoint.prompt.split("."))
    if not isinstance(query, str):
        query, rest = None, document
    question = _named(endpoint, document)
    return ChatRequest(
        model="",
        stream=False,
        document={"rest": rest},
        query=query,
        question=question,
        duplicate_keys=bool(body) and repeats_keys(body, document),
    )


def _named(endpoint: Endpoint, document: dict[str, Any]) -> str | None:
    """Return the question that ``query`` names in the body; None if ``query`` is a pattern.

    If the body has no such field, the result is ``""``, which is in no prompt.
    """
    query = endpoint.query
    if query is None or isinstance(query, re.Pattern):
        return None
    found = _asked(query, document) if callable(query) else _split(document, query.split("."))[0]
    return found if isinstance(found, str) else ""


def _asked(function: Callable[[Mapping[str, Any]], Any], document: dict[str, Any]) -> Any:
    """Call the user's function. Raises InvalidRequest if it fails."""
    try:
        return function(document)
    except Exception as error:
        name = getattr(function, "__name__", "function")
        raise InvalidRequest(f"{name} cannot read the body: {error!r}") from error


def _split(value: Any, path: list[str]) -> tuple[Any, Any]:
    """Return the value at ``path`` and a copy of the document with null in its place."""
    step, *more = path
    try:
        key: Any = int(step) if isinstance(value, list) else step
        inner = value[key]
    except (KeyError, IndexError, TypeError, ValueError):
        return None, value
    found, rest = _split(inner, more) if more else (inner, None)
    copy = list(value) if isinstance(value, list) else dict(value)
    copy[key] = rest
    return found, copy


def raw_path(scope: Scope) -> bytes:
    """Return the path below ``root_path``, in the form that the client sent."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    path = path.partition(b"?")[0]
    root = scope.get("root_path", "").encode()
    if not root:
        return path
    if b"%" in path and not path.startswith(root):
        begin = b"/".join(path.split(b"/")[: root.count(b"/") + 1])
        if unquote_to_bytes(begin) == root:  # servers decode the root
            root = begin
    below = path.removeprefix(root)
    return below if below[:1] in (b"", b"/") else path  # "/a" is no root of "/ask"


def has_dot_segment(path: bytes) -> bool:
    """Return whether a path has a ``.`` or ``..`` segment, in any spelling a server may decode.

    Servers differ in several ways: which encodings they decode and how often, whether a backslash
    separates segments, which characters they drop, and which text they cut off after a semicolon,
    ``#`` or ``?``. This function assumes that a server does all of this.
    """
    for _ in range(_DECODINGS):
        decoded = _OVERLONG.sub(_shortest, _ESCAPED_UNIT.sub(_unit, unquote_to_bytes(path)))
        if decoded == path:
            break
        path = decoded
    text = unicodedata.normalize("NFKC", path.decode("utf-8", "replace").translate(_SLASHES))
    return any(
        "".join(filter(_is_kept, _SEGMENT_END.split(segment, maxsplit=1)[0])) in (".", "..")
        for segment in text.replace("\\", "/").split("/")
    )


def _is_kept(character: str) -> bool:
    """Tell whether every server keeps a character: some drop invisible or invalid ones."""
    return unicodedata.category(character)[0] in "LNPS" and character != "\ufffd"


def _unit(escape: re.Match[bytes]) -> bytes:
    return chr(int(escape[1], 16)).encode("utf-8", "replace")


def _shortest(match: re.Match[bytes]) -> bytes:
    """Return the character that lax decoders read from an overlong form."""
    form = match[0]
    code = form[0] & (0x7F >> len(form))
    for byte in form[1:]:
        code = code << 6 | byte & 0x3F
    return chr(code).encode("utf-8", "replace")


DEPLOYMENT = "headstart.deployment"
"""The key in the scope for the model that the path named; an empty text if it named none."""
_PATH = re.compile(rb"/openai/(?:deployments/([^/]+)/|v1/)?(?=.)")


class _Named(msgspec.Struct):
    model: str = ""


_read_named = msgspec.json.Decoder(_Named).decode


def named_model(body: bytes) -> str:
    """Return the model that a JSON body names, or ""."""
    try:
        return _read_named(body).model
    except UNDECODABLE:
        return ""


def as_openai(scope: Scope) -> Scope | None:
    """Return the scope of a request to one of Azure's paths, with OpenAI's path in its place.

    None: the path is not Azure's. The scope has the model from the path under ``DEPLOYMENT``. The
    query loses ``api-version``, because each upstream has its own, and the ``deployment`` of a
    WebSocket becomes its ``model``.
    """
    path = raw_path(scope)
    found = _PATH.match(path)
    if found is None:
        return None
    own = b"/v1/" + path[found.end() :]
    pairs = scope["query_string"].split(b"&")
    kept = [
        pair.replace(b"deployment=", b"model=", 1) if pair.startswith(b"deployment=") else pair
        for pair in pairs
        if not pair.startswith(b"api-version=")
    ]
    return {
        **scope,
        "root_path": "",
        "path": unquote_to_bytes(own).decode("utf-8", "replace"),
        "raw_path": own,
        "query_string": b"&".join(kept),
        DEPLOYMENT: unquote_to_bytes(found[1] or b"").decode("utf-8", "replace"),
    }


def with_deployment(body: bytes, name: str, check: Callable[[bytes], None]) -> bytes:
    """Return the body with the deployment as its model, because Azure ignores the body's model.

    A body that is not a JSON object stays unchanged. ``check`` refuses one that is too expensive to
    decode.
    """
    check(body)
    if named_model(body) == name:
        return body
    fields = json_or_none(body, dict[str, msgspec.Raw])
    return body if fields is None else msgspec.json.encode({**fields, "model": name})
