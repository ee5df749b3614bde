"""Reads a request: finds the caller, parses the body, and computes the cache key.

``Preparer.prepare`` takes the ASGI scope and the body, and returns a ``Prepared``:

1. **Caller.** Headers and query tell who sends the request, and who may share its answer. They are
   read once for each combination of headers and query (``RequestHead``).
2. **Memo.** The result of an equal request is used again (``_recall``).
3. **Body.** ``ValueLimit`` refuses a body that is too expensive to decode. Then the dialect parses
   it, and the first ``[[route]]`` that fits is taken (``_parse``).
4. **Admission.** The request may have to bypass the cache (``_find_key``, ``_admit``).
5. **Key.** Otherwise it gets its key, and the conditions for the answers that may serve it
   (``_with_key``).

For example, a chat with ``{"model": "m", "messages": [{"role": "user", "content": "hi"}]}`` gets a
``Prepared`` with a ``key``. With the header ``cache-control: no-store``, its ``key`` is None and
its ``bypass`` is ``"no-store"``.

An invalid request raises a RequestError. If a step fails for another reason, the request goes on
without the cache (``bypass`` is ``FAILED``). Only an error about the caller is always raised.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import OrderedDict
from dataclasses import KW_ONLY, InitVar, dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from urllib.parse import unquote

import msgspec

from headstart.decisions import MatchContext
from headstart.dialects.registry import KEY_HEADERS, PROTOCOL_HEADERS
from headstart.errors import InvalidRequest, RequestError, RequestTooLarge
from headstart.middleware.identity import AcceptedCredentials, Caller, Callers, SharingOptions
from headstart.middleware.upstreams.outgoing import OWN_PREFIX
from headstart.observe import Observer, StageFailed
from headstart.policies.admission import NEVER_STORED, has_match
from headstart.policies.callers import NameMemo
from headstart.policies.freshness import (
    FOREVER,
    Directives,
    Lifetime,
    Lifetimes,
    QuestionClass,
    parse_directives,
)
from headstart.policies.key import (
    NOT_FOUND,
    KeyContext,
    Templates,
    chat_key,
    find_question,
    item_key,
    keyed_headers,
    raw_key,
)
from headstart.policies.route_rules import (
    NO_RULE,
    ROUTE_HEADER,
    RouteRule,
    decode_header,
    first_rule,
    match_context,
    requested_max_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headstart.interfaces import AdmissionPolicy
    from headstart.middleware.endpoints import MatchedEndpoint
    from headstart.middleware.identity import CallerHashes
    from headstart.policies.key import Question
    from headstart.types import CacheKey, ChatRequest, Headers, Scope

# --- reasons to bypass the cache ------------------------------------------------------------------

FAILED = "prepare-error"
"""The preparation of the request failed."""
LIVE_INFERENCES = "live-inferences"
"""A live draft has added inferences to the prompt."""
EDITABLE = frozenset(
    (LIVE_INFERENCES, "disabled", "no-store", NEVER_STORED, "no-identity", "sampled")
)
"""The reasons that do not forbid rescuing and shaping."""

# --- limits of time and memory --------------------------------------------------------------------

INLINE_BYTES = 1024 * 1024
"""Longest body that is read on the event loop, which takes 5 to 20 ms."""
MEMO_BYTES = 8 * 1024 * 1024
"""The estimated memory of all remembered requests."""
MEMO_BODY_BYTES = 64 * 1024
"""The size of head and body up to which a request is remembered."""
MEMO_MARKS = 16_384
"""The number of hashes by which the second time of a request is recognised."""
MEMO_HEADS, MEMO_HEAD_BYTES = 1024, 8 * 1024
"""The number of remembered heads, and the size up to which a head is remembered."""

# --- headers --------------------------------------------------------------------------------------

_SUBDIVISION = b"x-headstart-scope"
"""Header with which a caller divides its scope, so that fewer requests share answers."""
_QUERY = b"x-headstart-query"
"""Header with the question, which is a part of the last user text."""
TAGS = b"x-headstart-tags"
"""Header with names that the caller gives a request."""
DEADLINE = b"x-headstart-deadline-ms"
"""Header in which a caller bounds the time of its request."""
LIVE = b"x-headstart-live"
"""Header with the id of the live draft that a request completes."""
PACE = b"x-headstart-pace"
"""Header that asks for an answer in whole sentences."""
SENTENCES = b"sentences"
"""The only value of ``PACE``."""
_WISHES = frozenset((LIVE, PACE, TAGS, DEADLINE))
"""Our headers with what the caller wants for this one request."""
_OF_ONE_REQUEST = _WISHES | {b"cache-control"}
"""Headers that do not change the request to the provider."""
_CHECKED = frozenset((b"if-match", b"if-unmodified-since"))
"""Conditions that may turn the answer into an error (RFC 9110)."""
_CONDITIONS = _CHECKED.union((b"if-none-match", b"if-modified-since", b"if-range", b"range"))
"""All conditions: the others may turn the answer into a part of it, or into "not modified"."""
_READ_HEADERS = PROTOCOL_HEADERS.union(
    KEY_HEADERS, _CONDITIONS, (b"cache-control", b"content-encoding")
)
"""Headers that are read under all settings, beside our own."""

# --- numbers in a body ----------------------------------------------------------------------------

LONGEST_NUMBER = 1000
"""Characters of a number. The largest double takes 309, and some clients ask for 10^400 tokens."""
_IN_NUMBER = b"0123456789.eE+-"
_DIGITS_TO_ZERO = bytes(0x30 if 0x30 <= byte <= 0x39 else 0x20 for byte in range(256))
"""For ``bytes.translate``: each digit becomes a zero, each other byte a space."""
_MANY_DIGITS = b"0" * 100
"""Every longer number has this many digits in a row, because it has at most one point and one
exponent."""

# --- kinds of questions ---------------------------------------------------------------------------

# Labels of one kind tell nothing about another one. A follow-up is not called "conversation": a
# store may have labels under that name from neighbours of all histories.
_QUESTION, _FOLLOW_UP, _TEMPLATED = "question", "follow-up", "templated"

_ANY_CONTEXT = MatchContext()
_ONE_LIFE = Lifetimes()


class RequestHead(msgspec.Struct, frozen=True):
    """The caller of a request, and the caller's conditions: all that headers and query say."""

    headers: Headers
    """The headers that have an effect."""
    query_string: bytes
    found: Mapping[bytes, bytes]
    """The headers by name."""
    caller: Caller
    identity: bytes | None
    """The bytes that identify the callers who may share the answer; None: nobody may."""
    directives: Directives
    max_error: float | None
    keyed: Headers
    """The headers that belong in the cache key."""
    size: int
    """Bytes of these headers and the query."""


_Identified: TypeAlias = "tuple[Caller, bytes | None]"
"""The caller, and the bytes that identify the callers who may share the answer."""


class Repeat(NamedTuple):
    """The mark of a request and its caller, by which a repeat is recognised."""

    digest: bytes
    """Hash of the exact caller and the request: two users of one scope do not repeat each other."""
    window_s: float


class Prepared(msgspec.Struct, frozen=True):
    """A request after it was read. ``key`` is None if it must bypass the cache (``bypass``)."""

    request: ChatRequest | None
    key: CacheKey | None
    directives: Directives
    scope: str = ""
    bypass: str | None = None
    semantic_refusal: str | None = None
    """Why the answer to a similar prompt must not serve, so that only an exact repeat may."""
    match_context: MatchContext = _ANY_CONTEXT
    lifetime: Lifetime = FOREVER
    route: str = ""
    """Name of the ``[[route]]`` that it takes."""
    cached_tools: tuple[str, ...] = ()
    """Patterns of the tools whose calls may be replayed to an exact repeat."""
    never_stored: tuple[re.Pattern[str], ...] = ()
    """An answer in which one of them matches is not stored."""
    repeat: Repeat | None = None
    """Set if a repeat by the same caller gets a fresh answer."""
    holder: str = ""
    """Hash of the keys that upstreams must have accepted; "" unless all callers share answers."""
    upstreams: frozenset[str] = frozenset()
    """Upstreams that may be asked."""
    readable: frozenset[str] | None = None
    """Upstreams whose answers may be read; None: all of them."""
    owner: str = ""
    """Digest of the exact caller, if a dialect's clients name answers; "" if it is not known."""
    has_deadline: bool = False
    """The caller set a deadline in a header of ours."""
    tags: tuple[str, ...] = ()
    """The names that the caller gave the request, for reports, and its answer, for invalidation."""
    in_sentences: bool = False
    """The answer is to come in whole sentences."""
    variants: int = 1
    """The number of answers that are kept of it, of which a hit draws one."""
    live: str = ""
    """The id of its live draft; "": it has none."""


class ValueLimit:
    """Tells whether a JSON body is too expensive to decode, before any of its values is made.

    A value costs 50 to 100 bytes of memory and a microsecond to decode and to key, even if it is
    short. So a limit on bytes does not bound memory and time. ``{"a": [1, "x, y"]}`` has four
    values: the object, the list, 1 and the text.

    To count them, a pattern reads the body up to the comma or the opening bracket that begins one
    value too many. The first value counts, and each value after a comma or after the bracket that
    opens its list or object. Strings and empty brackets are skipped, so a long text with many
    commas is one value. In invalid JSON, the values up to the first error count, as a decoder would
    make them.

    A number's time grows with the square of its length, so its length has a limit, too.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        # "*+" and "}+" never give back what they have read, so the time is linear.
        string, empty = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', rb"[\[{][ \t\r\n]*+[\]}]"
        number = rb"[0-9-][0-9.eE+-]{0,%d}+(?![0-9.eE+-])" % (LONGEST_NUMBER - 1)
        rest = rb'[^",\[{0-9-]*+'
        # Python 3.11.2 goes on where a repetition failed, unless an alternative fails at once.
        within_value = rb"%b(?:(?:%b|%b|%b)%b|(?!))*+" % (rest, string, empty, number, rest)
        self._fitting = re.compile(
            rb"(?:%b[,\[{]|(?!)){0,%d}+%b" % (within_value, most - 1, within_value), re.DOTALL
        )

    def refusal(self, body: bytes) -> str | None:
        """Return why the body is refused, or None. Takes 10 to 20 ms a megabyte at worst."""
        few = len(body) < self.most or sum(map(body.count, (b",", b"[", b"{"))) < self.most
        if few and _MANY_DIGITS not in body.translate(_DIGITS_TO_ZERO):
            return None  # this is quick to find out, and true of most bodies
        fitting = self._fitting.match(body)
        assert fitting is not None  # the pattern matches an empty text
        stop = body[fitting.end() : fitting.end() + 1]
        if stop and stop in b",[{":
            return f"the body holds more JSON values than server.max_body_values ({self.most})"
        if stop and stop in _IN_NUMBER:
            return (
                f"the body holds a number of more than {LONGEST_NUMBER} characters: send it as a "
                "string"
            )
        return None  # the end of the body, or the first error in it, is reached

    def check(self, body: bytes) -> None:
        """Raise RequestTooLarge for a body that is too expensive to decode."""
        if refusal := self.refusal(body):
            raise RequestTooLarge(refusal)


ANY_VALUES = ValueLimit(100_000)
"""The default of ``server.max_body_values``."""


@dataclass(eq=False, repr=False)
class Preparer:
    """Prepares requests for the cache. A step that fails is reported to ``observer``."""

    sharing: SharingOptions
    admission: AdmissionPolicy
    accepted: AcceptedCredentials
    _: KW_ONLY
    secret: InitVar[bytes]
    """The store's secret, with which the names of scopes are hashed."""
    upstreams: Callable[[str, str, str], tuple[str, frozenset[str]]]
    """Takes dialect, model and route. Returns the identity of the upstream for the cache key, and
    the names of all upstreams that may answer."""
    observer: Observer
    semantic: bool = True
    """Answers may serve similar prompts; False: only exact repeats share answers."""
    rules: Sequence[RouteRule] = ()
    """The ``[[route]]`` tables. The first one that fits a request counts."""
    max_error: float | None = None
    """The error target of routes without a value of their own. The next two are like it."""
    cached_tools: tuple[str, ...] = ()
    never_stored: tuple[re.Pattern[str], ...] = ()
    learning: str = ""
    """Names the encoder and the guards that a learning domain belongs to."""
    lifetimes: Lifetimes = _ONE_LIFE
    """Say how long answers are kept."""
    values: ValueLimit = ANY_VALUES
    """The number of JSON values that a body may hold."""
    templates: InitVar[bool] = True
    """Templates that prompts share are found, and only the rest is compared by meaning."""
    _heads: dict[tuple[Headers, bytes], RequestHead] = field(default_factory=dict)
    """The heads of earlier requests, by their headers and query."""
    _memo: OrderedDict[tuple[object, ...], tuple[Prepared, int]] = field(
        default_factory=OrderedDict
    )
    """The results of requests that came at least twice, each with the memory that it takes."""
    _memo_size: int = 0
    _marks: set[int] = field(default_factory=set)
    """The hashes of requests that came."""
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a long request is read in a thread."""
    _callers: Callers = field(init=False)
    _templates: Templates | None = field(init=False)
    _templates_lock: threading.Lock = field(default_factory=threading.Lock)
    """A long request is read in a thread, while others are read on the event loop."""
    _known_names: frozenset[bytes] = field(init=False)
    """The names of all headers that are read, beside our own and those of callers."""
    _reads: NameMemo[bool] = field(init=False)
    """Tells whether a header of this name has an effect."""

    def __post_init__(self, secret: bytes, templates: bool) -> None:
        self._callers = Callers(self.sharing, self.accepted, secret)
        self._templates = Templates() if templates and self.semantic else None
        matched = {name for rule in self.rules for name, _ in rule.headers}
        self._known_names = _READ_HEADERS.union(self.sharing.key_headers, matched)
        self._reads = NameMemo(self._has_effect)

    def prepare(
        self, endpoint: MatchedEndpoint, scope: Scope, body: bytes, known: _Identified | None = None
    ) -> Prepared:
        """Read the request. Raises RequestError, and any error of the ``scope=`` function.

        The caller is identified first, unless it is ``known``. An error there is never ignored.
        """
        reads, callers = self._reads, self._callers
        headers: Headers = tuple([(name, value) for name, value in scope["headers"] if reads[name]])
        query = scope["query_string"]
        head = self._heads.get((headers, query))
        if known is not None:
            caller, identity = known
        elif head is None or callers.read_scopes:  # they read more than headers and query
            caller = callers.caller(headers, query) if head is None else head.caller
            identity = callers.identify(scope, headers, caller)
        else:
            caller, identity = head.caller, head.identity
        try:
            if head is None:
                head = self._read_head(headers, query, caller, identity)
            prepared = self._recall(endpoint, scope, head, identity, body)
        except RequestError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the request goes on
            return self._give_up(error)
        if prepared.key is None or not prepared.holder:
            return prepared
        # This is not part of the memo: it changes when an upstream accepts or refuses the caller.
        readable = callers.readable(prepared.holder, prepared.upstreams)
        if readable is None:
            return prepared
        return msgspec.structs.replace(prepared, readable=readable)

    async def prepare_in_thread(
        self, endpoint: MatchedEndpoint, scope: Scope, body: bytes
    ) -> Prepared:
        """Read a long request as ``prepare`` does, and let the event loop go on in the meantime.

        It still waits for single steps, such as the decoding, because threads share the
        interpreter. So one body is read at a time. The ``scope=`` function runs on the event loop.
        """
        known = self._identify(scope)
        async with self._one_at_a_time:
            return await asyncio.to_thread(self.prepare, endpoint, scope, body, known)

    def owner(self, scope: Scope) -> str | None:
        """Return the digest of the exact caller, by key; None if the caller is not known.

        Raises any error of the ``scope=`` function.
        """
        caller, identity = self._identify(scope)
        return None if identity is None else self._owner(identity, caller, scope["headers"])

    def conditions(self, scope: Scope) -> frozenset[tuple[bytes, bytes]]:
        """Return the headers that change the request to the provider, or its credentials."""
        return frozenset(
            pair
            for pair in scope["headers"]
            if self._reads[pair[0]] and pair[0] not in _OF_ONE_REQUEST
        )

    def renew(self, secret: bytes) -> bool:
        """Take the store's present secret for the names of scopes; return whether it is new."""
        if not self._callers.renew(secret):
            return False
        self._memo.clear()
        self._memo_size = 0
        return True

    # --- caller and memo ------------------------------------------------------------------------

    def _has_effect(self, name: bytes) -> bool:
        return name in self._known_names or name.startswith(OWN_PREFIX) or self._callers.reads(name)

    def _identify(self, scope: Scope) -> _Identified:
        """Find the caller, without the memo. Raises any error of the ``scope=`` function."""
        reads, callers = self._reads, self._callers
        headers: Headers = tuple([(name, value) for name, value in scope["headers"] if reads[name]])
        query = scope["query_string"]
        head = self._heads.get((headers, query))
        caller = callers.caller(headers, query) if head is None else head.caller
        return caller, callers.identify(scope, headers, caller)

    def _owner(self, identity: bytes, caller: Caller, headers: Headers) -> str:
        subdivision = dict(headers).get(_SUBDIVISION)
        return self._callers.hashes_of(identity, caller, subdivision, None, None).exact_caller

    def _read_head(
        self, headers: Headers, query_string: bytes, caller: Caller, identity: bytes | None
    ) -> RequestHead:
        """Read the headers and the query. Most requests of a caller have the same ones."""
        head = RequestHead(
            headers=headers,
            query_string=query_string,
            found=dict(headers),
            caller=caller,
            identity=identity,
            directives=parse_directives(headers),
            max_error=requested_max_error(headers),
            keyed=keyed_headers(headers, self.sharing.key_headers),
            size=len(query_string) + sum([len(name) + len(value) for name, value in headers]),
        )
        if head.size > MEMO_HEAD_BYTES:
            return head
        if len(self._heads) >= MEMO_HEADS:
            self._heads.clear()
        self._heads[headers, query_string] = head
        return head

    def _recall(
        self,
        endpoint: MatchedEndpoint,
        scope: Scope,
        head: RequestHead,
        identity: bytes | None,
        body: bytes,
    ) -> Prepared:
        """Return the remembered result of an equal request, or read this one."""
        method, path = scope["method"], scope.get("raw_path") or scope["path"].encode()
        headers, query = head.headers, head.query_string
        memo_key = (method, endpoint.name, path, query, headers, identity, body)
        remembered = self._memo.get(memo_key)
        if remembered is not None:
            self._memo.move_to_end(memo_key)
            return remembered[0]
        prepared = self._parse(endpoint, head, identity, body, method=method, path=path)
        # Clients of such a dialect name earlier answers, which only their exact caller may use.
        if identity is not None and endpoint.dialect is not None and endpoint.dialect.names_answers:
            owner = self._owner(identity, head.caller, headers)
            prepared = msgspec.structs.replace(prepared, owner=owner)
        if not _WISHES.isdisjoint(head.found):
            prepared = _with_wishes(prepared, head.found)
        if prepared.bypass == FAILED:
            return prepared
        # Most requests come once and are not worth remembering, so only a mark of them is kept.
        mark = hash(memo_key)
        if mark in self._marks:
            self._remember(memo_key, prepared, head.size + len(path) + len(body))
        else:
            if len(self._marks) >= MEMO_MARKS:
                self._marks.clear()
            self._marks.add(mark)
        return prepared

    def _remember(self, memo_key: tuple[object, ...], prepared: Prepared, size: int) -> None:
        """Keep a result of a request of ``size`` bytes; drop the oldest ones to make room."""
        if size > MEMO_BODY_BYTES:
            return
        weight = 8 * size + 2048  # a decoded document takes several times the memory of its text
        self._memo[memo_key] = prepared, weight
        self._memo_size += weight
        while self._memo_size > MEMO_BYTES:
            _, (_, weight) = self._memo.popitem(last=False)
            self._memo_size -= weight

    # --- body, admission and key ----------------------------------------------------------------

    def _parse(
        self,
        endpoint: MatchedEndpoint,
        head: RequestHead,
        identity: bytes | None,
        body: bytes,
        *,
        method: str,
        path: bytes,
    ) -> Prepared:
        """Parse the body, choose the route, and go on to the key."""
        headers, found, directives = head.headers, head.found, head.directives
        if b"content-encoding" in found:
            return Prepared(None, None, directives, bypass="encoded-body")
        document = endpoint.document
        if refusal := self.values.refusal(document.countable(body) if document else body):
            raise RequestTooLarge(refusal)
        try:
            request = endpoint.parse(body, path, head.query_string)
        except InvalidRequest:
            if document is None:
                raise
            # A provider may read more than our form of such a document does.
            rule = first_rule(self.rules, model="", path=endpoint.name, headers=headers)
            return Prepared(None, None, directives, bypass="unreadable", route=rule.name)
        rule = NO_RULE
        if self.rules or ROUTE_HEADER in found:
            rule = first_rule(self.rules, model=request.model, path=endpoint.name, headers=headers)
        try:
            if identity is None:
                bypass, _ = self._admit(endpoint, method, head, request)
                bypass = _stronger(bypass, "no-identity")
                return Prepared(request, None, directives, bypass=bypass, route=rule.name)
            return self._find_key(endpoint, head, identity, request, rule, method=method, path=path)
        except RequestError:
            raise
        except Exception as error:  # noqa: BLE001 - the request was read, so it takes its route
            return self._give_up(error, request, directives, rule.name)

    def _find_key(
        self,
        endpoint: MatchedEndpoint,
        head: RequestHead,
        identity: bytes,
        request: ChatRequest,
        rule: RouteRule,
        *,
        method: str,
        path: bytes,
    ) -> Prepared:
        """Return the request with its key, or with the reason why it must bypass the cache."""
        bypass, variants = self._admit(endpoint, method, head, request)
        directives = head.directives
        never_stored = self.never_stored if rule.never_stored is None else rule.never_stored
        texts = (request.query, request.question, request.document)
        if never_stored and has_match(texts, never_stored):
            bypass = _stronger(bypass, NEVER_STORED)
            directives = msgspec.structs.replace(directives, no_store=True)

        # A wrapped app may admit a caller at one place and not at another.
        place = b"%b %b" % (method.encode(), path) if self.sharing.wrapped else None
        subdivision = head.found.get(_SUBDIVISION)
        hashes = self._callers.hashes_of(identity, head.caller, subdivision, request.user, place)
        if bypass is not None:
            return Prepared(
                request, None, directives, hashes.scope, bypass, route=rule.name,
                holder=hashes.holder,
            )  # fmt: skip

        upstream, upstreams = self.upstreams(endpoint.wire, request.model, rule.name)
        context = KeyContext(
            dialect=endpoint.wire or ("custom" if method == "POST" else f"custom {method}"),
            path=path,
            upstream=upstream,
            query_string=head.query_string,
            headers=head.keyed,
            wrapped_app=self.sharing.wrapped,
        )
        return self._with_key(
            endpoint, head, request, rule, hashes, context,
            upstreams=upstreams, never_stored=never_stored, variants=variants,
        )  # fmt: skip

    def _with_key(
        self,
        endpoint: MatchedEndpoint,
        head: RequestHead,
        request: ChatRequest,
        rule: RouteRule,
        hashes: CallerHashes,
        context: KeyContext,
        *,
        upstreams: frozenset[str],
        never_stored: tuple[re.Pattern[str], ...],
        variants: int,
    ) -> Prepared:
        """Return a request that may use the cache, with its key and the conditions for answers."""
        header, pattern = head.found.get(_QUERY), rule.query or endpoint.pattern
        question = None
        if header is not None or pattern is not None or request.question is not None:
            question = _find_question(request, header, pattern)
        is_compared = self.semantic and rule.semantic and endpoint.document is None
        key, learned_as = self._key(
            endpoint, request, hashes.scope, context, question, is_compared=is_compared
        )

        named = None if question is NOT_FOUND else question
        asked = (request.query if named is None else named.text) or ""
        asked_in_template = (key.query or "") if learned_as == _TEMPLATED else ""
        lifetime = self.lifetimes.of(asked, rule.ttl_s, asked_in_template)
        semantic_refusal: str | None = "exact-only"
        if is_compared:
            semantic_refusal = self._refuse_semantic(endpoint, request, question, lifetime)
        window_s, repeat = rule.repeat_window_s or endpoint.repeat_window_s, None
        if window_s is not None:
            repeat = Repeat(sha256(f"{hashes.exact_caller}{key.exact}".encode()).digest(), window_s)
        return Prepared(
            request,
            key,
            head.directives,
            hashes.scope,
            semantic_refusal=semantic_refusal,
            match_context=match_context(
                (hashes.scope, endpoint.name, rule.name, learned_as),
                (self.max_error if rule.max_error is None else rule.max_error, head.max_error),
                self.learning,
                hashes.principal,
                hashes.tenant,
            ),
            lifetime=lifetime,
            route=rule.name,
            cached_tools=self.cached_tools if rule.cached_tools is None else rule.cached_tools,
            never_stored=never_stored,
            repeat=repeat,
            holder=hashes.holder,
            upstreams=upstreams,
            variants=variants,
        )

    def _admit(
        self, endpoint: MatchedEndpoint, method: str, head: RequestHead, request: ChatRequest
    ) -> tuple[str | None, int]:
        """Return why a request must bypass the cache, or None, and how many answers are kept."""
        bypass, variants = None, 1
        if endpoint.dialect is not None:
            variants = self.admission.variants(request)
            bypass = self.admission.refuse_lookup(request)
        elif request.duplicate_keys:
            bypass = "duplicate-keys"
        elif request.document.get("items", ()) is None:
            bypass = "no-items"
        # A wrapped app gets a GET request without most conditions, and gives the whole answer.
        conditions = _CHECKED if self.sharing.wrapped and method == "GET" else _CONDITIONS
        if head.directives.no_store:
            bypass = _stronger(bypass, "no-store")
        elif not conditions.isdisjoint(head.found):
            bypass = _stronger(bypass, "conditional")
        return bypass, variants

    def _key(
        self,
        endpoint: MatchedEndpoint,
        request: ChatRequest,
        scope: str,
        context: KeyContext,
        question: Question | None,
        *,
        is_compared: bool,
    ) -> tuple[CacheKey, str]:
        """Return the cache key, and the kind of question, under which the match learns.

        A named question is compared by meaning, and the rest of the prompt must be equal. If none
        is named, a template that many prompts share is such a rest.
        """
        named = None if question is NOT_FOUND else question
        if named is not None:
            request = endpoint.without(named.text, request)
        if endpoint.dialect is not None:
            key = chat_key(
                request, scope=scope, context=context, question=named, semantic=self.semantic
            )
        else:
            rest = request.document["rest"]  # the body without the prompt or the items
            key = raw_key(rest, query=request.query, scope=scope, context=context, question=named)
            if items := request.document.get("items"):
                exact = item_key(key.partition, b",".join(items))
                key = msgspec.structs.replace(key, exact=exact)
        if is_compared and question is None and self._templates is not None:
            with self._templates_lock:
                shorter = self._templates.take_out(key)
            if shorter is not key:
                return shorter, _TEMPLATED
        return key, _QUESTION if key.conversation is None else _FOLLOW_UP

    def _refuse_semantic(
        self,
        endpoint: MatchedEndpoint,
        request: ChatRequest,
        question: Question | None,
        lifetime: Lifetime,
    ) -> str | None:
        """Return why the answer to a similar prompt must not serve, or None."""
        if request.query is None and endpoint.dialect is None:
            named = endpoint.custom is not None and endpoint.custom.prompt is not None
            return "prompt-not-found" if named else "no-prompt"
        if question is NOT_FOUND:
            return "query-not-found"
        if question is not None:
            request = msgspec.structs.replace(request, query=question.text)
        refusal = self.admission.refuse_semantic(request)
        if refusal is None and lifetime.kind is QuestionClass.LIVE:
            return "live"
        return refusal

    def _give_up(
        self,
        error: Exception,
        request: ChatRequest | None = None,
        directives: Directives = Directives(),  # noqa: B008 - frozen
        route: str = "",
    ) -> Prepared:
        """Report a step that failed. The request then bypasses the cache."""
        self.observer.notify(StageFailed(stage="prepare", error=type(error).__name__))
        return Prepared(request, None, directives, bypass=FAILED, route=route)


def _with_wishes(prepared: Prepared, found: Mapping[bytes, bytes]) -> Prepared:
    """Return a request with the values of the headers ``_WISHES``. Raises InvalidRequest."""
    pace = found.get(PACE)
    if pace is not None and pace.strip().lower() != SENTENCES:
        raise InvalidRequest('X-Headstart-Pace must be "sentences"')
    return msgspec.structs.replace(
        prepared,
        has_deadline=DEADLINE in found,
        tags=read_tags(found.get(TAGS, b"")),
        in_sentences=pace is not None,
        live=found.get(LIVE, b"").decode("latin-1"),
    )


def read_tags(header: bytes) -> tuple[str, ...]:
    """Return the tags of ``x-headstart-tags``: words between commas."""
    words = (word.strip() for word in header.decode("latin-1").split(","))
    return tuple(dict.fromkeys(word for word in words if word))


def _stronger(content: str | None, other: str) -> str:
    """Return the reason that counts: that of the content if it forbids edits, or the other."""
    return other if content is None or content in EDITABLE else content


def _find_question(
    request: ChatRequest, header: bytes | None, pattern: re.Pattern[str] | None
) -> Question | None:
    """Return the question in the last user text that the header, the pattern or the body names.

    NOT_FOUND: the text does not contain it. None: there is no text, or nothing names a question.
    """
    if request.query is None:
        return None
    names: tuple[str, ...] = ()
    if header is not None:
        plain = decode_header(header)
        names = (plain.strip(), unquote(plain).strip())
    elif pattern is None and request.question is not None:
        names = (request.question,)
    return find_question(request.query, names=names, pattern=pattern)
