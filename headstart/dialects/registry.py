"""All wire formats, by their names: dialects of chats, and calls that are not chats.

A new dialect gets a line here. Requests of two dialects may have the same cache key
(``KeyForm.shared``). Then the answer to one request serves the other one if nothing is lost, that
is, if the answer is text and nothing else.

**Calls that are not chats** have one JSON document as their answer. They are not translated: a
provider gets the body as it came, with its own name of the model.

Answers to embeddings requests are split into vectors, and put together from vectors.
"""

from __future__ import annotations

import math
import re
from array import array
from base64 import b64decode, b64encode
from dataclasses import dataclass
from sys import byteorder
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from headstart.attempts import Tokens
from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.bedrock_converse import BEDROCK_CONVERSE
from headstart.dialects.cohere_chat import COHERE_CHAT
from headstart.dialects.dialect import Dialect, UpstreamDialect, as_count
from headstart.dialects.gemini_generate import GEMINI_GENERATE
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.dialects.openai_completions import OPENAI_COMPLETIONS
from headstart.dialects.openai_responses import OPENAI_RESPONSES
from headstart.dialects.request_form import RequestForm
from headstart.dialects.requests import LONGEST_MODEL, decode_object, repeats_keys, too_long_model
from headstart.errors import InvalidRequest
from headstart.types import (
    UNDECODABLE,
    ChatRequest,
    Choice,
    Completion,
    Entry,
    Headers,
    Text,
    json_or_none,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headstart.settings import DialectName


TRANSLATED = "translated:"
"""The beginning of the transform of an answer whose provider speaks another dialect."""
_ENDINGS = frozenset({"stop", "length"})
"""The finish reasons that every dialect has."""


def is_translated(transforms: Iterable[str]) -> bool:
    """Tell whether an answer with these transforms came in another dialect than the client's."""
    return any(name.startswith(TRANSLATED) for name in transforms)


def refuse_in_dialect(request: ChatRequest, entry: Entry) -> str | None:
    """Return why an entry cannot be sent in the dialect of a request, or None."""
    answer, target = entry.answer, DIALECTS.get(request.dialect)
    if target is None or entry.dialect == target.name or not isinstance(answer, Completion):
        return None
    source = DIALECTS.get(entry.dialect)
    if source is None:  # an entry from before dialects shared keys
        return None if target.key.shared is None else "other-api:unknown"
    lost = source.beside_text(answer)
    if is_translated(entry.transforms):
        lost = "translated"  # the translation may have lost something
    if lost is None and answer.usage and source.tokens(answer.usage).reasoning:
        lost = "reasoning"  # only some dialects have it
    if lost is None:
        lost = _beside_one_text(answer)
    return None if lost is None else f"other-api:{lost}"


def _beside_one_text(answer: Completion) -> str | None:
    if len(answer.choices) != 1:
        return "choices"
    choice = answer.choices[0]
    if choice.logprobs:
        return "logprobs"
    if choice.finish not in _ENDINGS or choice.native_finish not in (None, choice.finish):
        return "finish-reason"
    if any(choice.extra.values()) or any(choice.beside.values()):
        return "fields"
    return None if [*map(type, choice.parts)] == [Text] else "parts"


def in_dialect(entry: Entry, name: str) -> Completion:
    """Return the answer of an entry for clients of a dialect, if ``refuse_in_dialect`` allows it.

    Raises TypeError for a raw answer.
    """
    answer = entry.answer
    if not isinstance(answer, Completion):
        raise TypeError(f"entry {entry.id} holds a raw answer, which is sent as it is")
    if entry.dialect in ("", name):
        return answer
    source, target, choice = DIALECTS[entry.dialect], DIALECTS[name], answer.choices[0]
    usage = None if answer.usage is None else target.usage(source.tokens(answer.usage))
    plain = Choice(index=0, parts=choice.parts, finish=choice.finish)
    return replace(answer, choices=(plain,), usage=usage, fingerprint=None, extra={})


_CLIENTS = (
    OPENAI_CHAT,
    OPENAI_RESPONSES,
    ANTHROPIC_MESSAGES,
    GEMINI_GENERATE,
    OPENAI_COMPLETIONS,
)

DIALECTS: Mapping[str, Dialect] = {each.name: each for each in _CLIENTS}
"""The dialects that clients may speak, by name."""

_UPSTREAMS = (COHERE_CHAT, BEDROCK_CONVERSE)

UPSTREAM_DIALECTS: Mapping[str, UpstreamDialect] = {
    **DIALECTS,
    **{each.name: each for each in _UPSTREAMS},
}
"""The dialects that upstreams may speak, by name."""

KEY_HEADERS = tuple(
    dict.fromkeys((*(each.key_header[0] for each in UPSTREAM_DIALECTS.values()), b"api-key"))
)
"""Headers in which the providers' own client libraries send a key, with Azure's."""

ACCOUNT_HEADERS = frozenset[bytes]().union(
    *(each.account_headers for each in UPSTREAM_DIALECTS.values())
)
"""Headers that name the account to bill for a caller's key."""

PROTOCOL_HEADERS = frozenset[bytes]().union(*(each.key.headers for each in _CLIENTS))
"""Headers that change the meaning of the same body."""

RELAYED_PREFIXES = tuple(dict.fromkeys(prefix for each in _CLIENTS for prefix in each.prefixes))
"""The beginnings of the paths that go to providers."""

SOCKET_PREFIXES = (
    *RELAYED_PREFIXES,
    *(each.socket_prefix for each in _CLIENTS if each.socket_prefix is not None),
)
"""The beginnings of the paths of WebSockets that go to providers."""

TEXT_FIELDS = frozenset[str]().union(*(each.text_fields for each in UPSTREAM_DIALECTS.values()))
"""Names of the fields under which streams send text or reasoning."""

BY_SETTING: Mapping[str, UpstreamDialect] = {
    each.setting: each for each in UPSTREAM_DIALECTS.values()
}
"""The dialects that upstreams may speak, by the setting ``upstream.dialect``."""


def spoken_dialects(
    main: DialectName, further: Iterable[DialectName]
) -> tuple[UpstreamDialect, ...]:
    """Return the dialects whose requests an upstream gets untranslated, its main one first."""
    named = (main, *further, *BY_SETTING[main].includes)
    return tuple(BY_SETTING[each] for each in dict.fromkeys(named))


VERSION = r"/v\d+(?:alpha|beta)?\d*"
"""Matches the version of an API in a path."""
_FIRST_VERSION = re.compile(rf"^{VERSION}(?=/)")
_LAST_VERSION = re.compile(rf"{VERSION}$")
_OWN_VERSION = re.compile(rf"{VERSION}(?:$|/projects/)")
"""The version of an API at the end of a base URL, or at the beginning of one of Google Cloud."""
_ROOTED = ("/ws/", "/upload/")
"""The beginnings of paths that no version comes before: of Gemini's WebSockets and its files."""


def path_below(base: str, path: str, dialect: DialectName) -> str:
    """Return the path at the provider, for a request's path and the path of a base URL.

    A base URL has the form of the SDKs of its dialect. If it has a path
    (``https://api.groq.com/openai/v1``), this path replaces the request's leading ``/v1``,
    ``/v1beta`` or ``/v2``. The SDKs of Anthropic, Google and Cohere add the version themselves: if
    the base URL names no version (``https://api.deepseek.com/anthropic``), the request keeps its
    own.
    """
    base = base.rstrip("/")
    if path.startswith(_ROOTED):
        return _LAST_VERSION.sub("", base) + path
    has_version = BY_SETTING[dialect].path_below_version is not None or _OWN_VERSION.search(base)
    return base + (_FIRST_VERSION.sub("", path) if base and has_version else path)


class _Forms(dict[str, RequestForm]):
    """The forms by dialect. A request of another API is read like OpenAI's."""

    def __missing__(self, dialect: str) -> RequestForm:
        return OPENAI_CHAT.form


FORMS: Mapping[str, RequestForm] = _Forms({name: each.form for name, each in DIALECTS.items()})
"""The form of a request by ``ChatRequest.dialect``, which may be any name."""


def claiming(path: bytes, headers: Headers) -> Dialect:
    """Return the dialect of a relayed request. Only the first dialect takes any path."""
    return next(each for each in reversed(_CLIENTS) if each.claims(path, headers))


_OF_OPENAI = (OPENAI_CHAT.name, OPENAI_RESPONSES.name)


def takers_of(dialect: str) -> tuple[str, ...]:
    """Return the dialects whose upstreams may take relayed requests of one, the best first.

    OpenAI's two dialects share files, batches and the like.
    """
    if dialect not in _OF_OPENAI:
        return (dialect,)
    return (dialect, *(each for each in _OF_OPENAI if each != dialect))


def with_retry_after(headers: Headers, body: bytes) -> Headers:
    """Return an error's headers with the wait that some providers name in its body alone."""
    if any(name == b"retry-after" for name, _ in headers):
        return headers
    document = json_or_none(body, object)
    if document is None:
        return headers
    for dialect in UPSTREAM_DIALECTS.values():
        delay_s = dialect.retry_delay_s and dialect.retry_delay_s(document)
        if delay_s is not None:
            return (*headers, (b"retry-after", b"%d" % math.ceil(delay_s)))
    return headers


# --- calls that are not chats: embeddings, rerank, moderations ------------------------------------

_SINGLE, _DOUBLE, _BASE64, _AS_IT_CAME = range(4)
"""How a vector is kept: as numbers of 4 or 8 bytes, as the bytes that base64 holds, or as JSON."""
_EMPTY = frozenset({b"null", b'""', b"[]"})
"""Values that some providers send in place of a vector that they failed to make."""
_OWN = ("object", "index", "embedding")
_NO_USAGE = msgspec.Raw(b'{"prompt_tokens":0,"total_tokens":0}')


class Vectors(NamedTuple):
    """A whole answer, taken apart."""

    head: dict[str, msgspec.Raw]
    """All fields but the vectors."""
    items: list[bytes]
    """The packed vectors, in the order of the items that were asked for."""

    @property
    def model(self) -> str:
        """The model's name in the answer, or an empty text."""
        return json_or_none(self.head.get("model", b""), str) or ""


def read_vectors(body: bytes, count: int) -> Vectors | None:
    """Return an answer's vectors; None unless it has exactly one for each of ``count`` items."""
    try:
        head = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        rows = msgspec.json.decode(head.pop("data", b""), type=list[dict[str, msgspec.Raw]])
        if len(rows) != count or "error" in head:
            return None
        packed = {msgspec.json.decode(row["index"], type=int): _pack(row) for row in rows}
        return Vectors(head, [packed[index] for index in range(count)])
    except (*UNDECODABLE, KeyError, ValueError):  # ValueError: the vector is not base64
        return None


def write_vectors(
    items: Sequence[bytes],
    *,
    head: dict[str, msgspec.Raw] | None = None,
    model: str = "",
    answer_id: bytes = b"",
) -> bytes:
    """Return an answer with these packed vectors.

    ``head`` has the other fields of a provider's answer to some of the items. Without ``head`` no
    provider was asked, so the answer reports no tokens. ``answer_id`` is JSON.
    """
    data = msgspec.Raw(b"[%b]" % b",".join(_unpacked(items)))
    if head is None:
        known = {"model": msgspec.Raw(msgspec.json.encode(model)), "usage": _NO_USAGE}
        named = {"id": msgspec.Raw(answer_id)} if answer_id else {}
        return msgspec.json.encode({**named, "object": "list", "data": data, **known})
    first = {"object": head["object"]} if "object" in head else {}
    return msgspec.json.encode({**first, "data": data, **head})


def _pack(row: dict[str, msgspec.Raw]) -> bytes:
    """Return a vector and the fields beside it in the fewest bytes that keep them exactly."""
    vector = bytes(row["embedding"])
    if vector in _EMPTY:
        raise KeyError("embedding")
    kind, kept = _pack_vector(vector)
    more = {name: value for name, value in row.items() if name not in _OWN}
    return msgspec.msgpack.encode((kind, kept, msgspec.json.encode(more) if more else b""))


def _pack_vector(text: bytes) -> tuple[int, bytes]:
    if text.startswith(b'"'):
        encoded = msgspec.json.decode(text, type=str)
        decoded = b64decode(encoded, validate=True)
        return (_BASE64, decoded) if b64encode(decoded).decode() == encoded else (_AS_IT_CAME, text)
    if b"." not in text:  # a vector of integers, which is quantised
        return _AS_IT_CAME, text
    exact = array("d", msgspec.json.decode(text, type=list[float]))
    try:
        single = array("f", exact)
    except OverflowError:
        return _DOUBLE, _little(exact)
    return (_SINGLE, _little(single)) if array("d", single) == exact else (_DOUBLE, _little(exact))


def _unpacked(items: Iterable[bytes]) -> Iterable[bytes]:
    """Yield packed vectors as the rows of an answer."""
    for index, item in enumerate(items):
        kind, kept, more = msgspec.msgpack.decode(item, type=tuple[int, bytes, bytes])
        vector: Any
        if kind == _BASE64:
            vector = b'"%b"' % b64encode(kept)
        elif kind == _AS_IT_CAME:
            vector = kept
        else:
            numbers = array("f" if kind == _SINGLE else "d", kept)
            if byteorder == "big":
                numbers.byteswap()
            vector = msgspec.json.encode(numbers.tolist())
        rest = b"," + more[1:-1] if more else b""
        yield b'{"object":"embedding","index":%d,"embedding":%b%b}' % (index, vector, rest)


def _little(numbers: array[float]) -> bytes:
    if byteorder == "big":
        numbers = array(numbers.typecode, numbers)
        numbers.byteswap()
    return numbers.tobytes()


MOST_ITEMS = 8192
"""A request with more items bypasses the cache. Providers accept up to 2,048."""
_TOKENS = re.compile(rb"\[[\d\s,]*+\]")
"""A list of tokens, which is read as one value."""
_SPACE = b" \t\r\n"
_USAGE = re.compile(rb'"usage" ?: ?(\{[^{}]*\})')
_END, _LONG = 2048, 512 * 1024
"""Bytes at the ends of a long answer, and the length of one."""
_encode = msgspec.json.Encoder().encode


class _Usage(msgspec.Struct):
    usage: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class DocumentForm:
    """The wire format of one kind of these calls."""

    name: str
    """Its name in calls and cache keys."""
    paths: tuple[str, ...]
    spoken_by: tuple[str, ...]
    """The dialects of providers that have these paths, the most likely first."""
    results: str
    """The field of every whole answer that holds the list of results."""
    items: str | None = None
    """The field of a request with its items, each of which is cached alone; None: the answer is
    cached as a whole."""
    ignored: frozenset[str] = frozenset({"user", "cache"})
    """The fields that are not keyed: the user joins the scope, and ``cache`` is litellm's own."""

    def countable(self, body: bytes) -> bytes:
        """Return a body in which each value costs as much as it costs to read this one."""
        return body if self.items is None else _TOKENS.sub(b"[]", body)

    def parse(self, body: bytes) -> ChatRequest:
        """Read a request. Raises InvalidRequest for a body that is not a JSON object.

        ``document`` has the keyed fields as ``rest``, and the ``items`` as JSON: none if they are
        in a form that is not known.
        """
        if self.items is None:
            document = decode_object(body)
            return self._request(document, {}, repeats=repeats_keys(body, document))
        try:
            raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        except UNDECODABLE as error:
            raise InvalidRequest(f"the body is not a JSON object: {error}") from error
        counted = self.countable(body)
        repeats = repeats_keys(counted, decode_object(counted))
        fields = {n: msgspec.json.decode(value) for n, value in raw.items() if n != self.items}
        items = read_items(bytes(raw.get(self.items, b"")))
        return self._request(fields, {"items": items}, repeats=repeats)

    def _request(
        self, fields: dict[str, Any], more: dict[str, Any], *, repeats: bool
    ) -> ChatRequest:
        model, user = fields.get("model"), fields.get("user")
        if isinstance(model, str) and len(model) > LONGEST_MODEL:
            raise too_long_model()
        rest = {name: value for name, value in fields.items() if name not in self.ignored}
        return ChatRequest(
            model=model if isinstance(model, str) else "",
            stream=False,
            document={"rest": rest, **more},
            query=None,
            user=user if isinstance(user, str) else None,
            duplicate_keys=repeats,
        )

    def with_items(self, body: bytes, items: list[bytes]) -> bytes:
        """Return a body that asks for these items alone."""
        assert self.items is not None
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        fields[self.items] = msgspec.Raw(b"[%b]" % b",".join(items))
        return msgspec.json.encode(fields)

    def tokens(self, usage: dict[str, Any]) -> Tokens:
        """Return the counts of a usage object; some providers report the total alone."""
        prompt = usage.get("prompt_tokens") or usage.get("total_tokens")
        return Tokens(prompt=as_count(prompt))

    def is_whole(self, body: bytes) -> bool:
        """Tell whether a body under status 200 is such an answer."""
        document = json_or_none(body, dict[str, msgspec.Raw])
        if document is None:
            return False
        results = bytes(document.get(self.results, b""))
        has_any = results.startswith(b"[") and not results[1:].lstrip(_SPACE).startswith(b"]")
        return has_any and "error" not in document


def read_usage(body: bytes) -> dict[str, Any] | None:
    """Return the usage that an answer reports, or None.

    In a long answer, both ends are searched first, because decoding 66 MB takes a tenth of a
    second.
    """
    ends = (body[-_END:], body[:_END]) if len(body) > _LONG else ()
    found = next(filter(None, map(_USAGE.search, ends)), None)
    if found is not None:
        return json_or_none(found[1], dict[str, Any])
    whole = json_or_none(body, _Usage)
    return None if whole is None else whole.usage


def read_items(field: bytes) -> list[bytes] | None:
    """Return the items of a request, each as JSON; None for a form that is not known.

    A string is one item, and so is a list of tokens. A list of strings or of such lists has
    several.
    """
    if field.startswith(b'"'):
        return [_encode(msgspec.json.decode(field, type=str))]
    inner = field[1:].lstrip(_SPACE)[:1] if field.startswith(b"[") else b""
    if inner.isdigit():
        return [field.translate(None, _SPACE)] if _TOKENS.fullmatch(field) else None
    if inner not in (b'"', b"["):
        return None
    try:
        if inner == b'"':
            items = list(map(_encode, msgspec.json.decode(field, type=list[str])))
        else:
            items = [bytes(raw) for raw in msgspec.json.decode(field, type=list[msgspec.Raw])]
            if not all(map(_TOKENS.fullmatch, items)):
                return None
            items = [item.translate(None, _SPACE) for item in items]
    except UNDECODABLE:
        return None
    return items if len(items) <= MOST_ITEMS else None


EMBEDDINGS = DocumentForm(
    name="openai-embeddings",
    paths=("/v1/embeddings",),
    spoken_by=(OPENAI_CHAT.name,),
    results="data",
    items="input",
)
MODERATIONS = DocumentForm(
    name="openai-moderations",
    paths=("/v1/moderations",),
    spoken_by=(OPENAI_CHAT.name,),
    results="results",
)
RERANK = DocumentForm(
    name="rerank",
    paths=("/v1/rerank",),
    spoken_by=(OPENAI_CHAT.name, COHERE_CHAT.name),
    results="results",
)
COHERE_RERANK = DocumentForm(
    name="cohere-rerank",
    paths=("/v2/rerank",),
    spoken_by=(COHERE_CHAT.name, OPENAI_CHAT.name),
    results="results",
)

DOCUMENTS: Mapping[str, DocumentForm] = {
    each.name: each for each in (EMBEDDINGS, MODERATIONS, RERANK, COHERE_RERANK)
}
"""All these calls, by name."""
