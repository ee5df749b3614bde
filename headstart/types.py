"""Frozen values that every room shares: requests, answers and entries, and the types of ASGI.

Below the values are the ids that name them, and small tools: bounded memory, tables of words, and
bodies that arrive in pieces.

The values have no behaviour beyond derived properties. Units are in the names: ``_s`` seconds,
``_usd`` dollars. ``created`` and ``expires`` are Unix seconds. ``similarity`` is a cosine: a higher
value means closer.
"""

from __future__ import annotations

import os
import pkgutil
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from functools import lru_cache
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar, dataclass_transform

import msgspec

from headstart.attempts import AttemptLog, AttemptRole

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
P = ParamSpec("P")
Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""ASGI header pairs in their order, repeated names included; names are lower case."""
UNDECODABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
"""The errors of decoding bytes, or a text, that are not JSON."""

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


# Type checkers do not know that subclasses of a msgspec Struct inherit ``frozen`` and ``kw_only``.
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Frozen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of the values below: immutable, keyword-only, compact when encoded."""


# --- the request ---------------------------------------------------------------------------


class ChatRequest(Frozen):
    """The parts of a request body that the engine reads, in the same form for each dialect."""

    model: str
    stream: bool
    document: dict[str, Any]
    """The decoded body. It is never mutated and never sent: the client's own bytes go upstream."""
    query: str | None
    """The text of the last message, if the user wrote it and it holds nothing but text."""
    question: str | None = None
    """The part of ``query`` that the endpoint names as the question, unchanged. None: the endpoint
    names no such part."""
    include_usage: bool = False
    max_tokens: int | None = None
    choices: int = 1
    logprobs: bool = False
    user: str | None = None
    """``user`` or ``safety_identifier``: joins the scope unless ``cache.share_users``."""
    dialect: str = ""
    """The name of the dialect that the body is in; "": none that is known here."""
    duplicate_keys: bool = False
    """The body repeats a JSON key. Two readers may disagree about it, so it is never cached."""


class Turn(Frozen, array_like=True):
    """One message of a conversation, as plain text."""

    user: bool
    text: str


class CacheKey(Frozen):
    """The callers that may share an answer, and the answers that are comparable.

    ``docs/cache-key.md`` describes it. ``partition``, ``exact`` and ``conversation`` are SHA-256
    digests, in hex, over their parts and ``scope``: two scopes never have equal digests.
    """

    scope: str
    partition: str
    exact: str
    query: str | None = None
    conversation: str | None = None
    """The digest of the same parts as ``partition``, without ``history``. None: only entries with
    an equal history may match."""
    history: tuple[Turn, ...] = ()
    """Earlier turns, which another conversation may have in other words."""
    task: str = ""
    """The digest of the template around ``query``, if its answer may depend on the wording of the
    query; "text" if the instructions show that it does ("Translate the user's text.")."""

    @property
    def group(self) -> str:
        """The digest of the entries among which neighbours are searched."""
        return self.conversation or self.partition

    @property
    def partitions(self) -> tuple[str, ...]:
        """The digests under which a search finds the entry: ``group``, and ``partition`` alone."""
        conversation, partition = self.conversation, self.partition
        return (partition,) if conversation is None else (conversation, partition)


class CacheMarks(Frozen):
    """The places of a prompt at which the provider should end a cached prefix."""

    shared: bool = False
    """Whether one ends after the tools, and one after the system text."""
    previous: bool = False
    """Whether one ends after the last message of the conversation's previous request."""
    last: bool = False
    """Whether one ends after the last message."""
    key: str = ""
    """The name that requests with the same prefix share, for providers that cache without marks;
    "": no name."""


class Call(Frozen, kw_only=False):
    """One request on its way through the engine to an upstream."""

    id: str
    method: str
    path: bytes
    """The raw path below the mount point, as the client sent it."""
    query_string: bytes
    headers: Headers
    body: bytes
    dialect: str
    endpoint: str
    route: str = ""
    """The name of the ``[[route]]`` that the request takes; "": it takes none."""
    request: ChatRequest | None = None
    deployment: str = ""
    """The model that the path of a relayed call named, as Azure's do; "": it named none."""
    editable: bool = True
    """False for a call that bypasses the cache: request and answer pass byte for byte."""
    streamed_upstream: bool = False
    """The client wants a whole answer, but we ask the upstream for a stream and join its pieces:
    a cancelled stream costs nothing more."""
    deadline: float | None = None
    """The event loop's time at which the answer must be complete."""
    begin_by: float | None = None
    """The event loop's time at which the caller stops waiting for the first byte. The call may go
    on, because the caller may ask again. But no attempt that takes longer should begin."""
    affinity: str = ""
    """The digest of the conversation, which should stay with one provider's prefix cache; "": there
    is none."""
    prompt_tokens: int = 0
    """The estimated length of the prompt."""
    output_tokens: float | None = None
    """The expected length of the answer, if the answers of similar prompts tell it."""
    prediction: str = ""
    """A text that the answer may resemble, for providers that take such a hint; "": unknown."""
    role: AttemptRole = AttemptRole.FIRST
    """The reason for the call."""
    contested: bool = False
    """Several upstreams are asked at once, and only the fastest answer is read."""
    cache_marks: CacheMarks | None = None
    """Where the upstream is to cache the prompt; None: the request says nothing about it."""
    has_alternative: bool = False
    """Another upstream could be asked: an upstream that begins too late is abandoned."""
    ignore_breaker: bool = False
    """Ask even an upstream whose circuit breaker is open: no other upstream is left."""
    queues_until: float | None = None
    """The event loop's time until which the call queues if the upstream's rate limit is used up;
    None: it is refused."""
    avoid: frozenset[str] = frozenset()
    """The names of upstreams that must not be asked."""
    relayed: bool = False
    """The call is not to a chat path: no dialect reads its answer, and most errors are answers
    (``failures.fails_relayed``)."""
    model: str = ""
    """The model that a relayed request names; "" if it is not known."""
    caller: str = ""
    """The name of the caller's key (``server.client_keys``); "": it has none."""
    span: str = ""
    """The id of the call's span, if it is traced."""
    upload: Upload | None = None
    """The body of a relayed request that has not arrived yet. None: it is ``body``."""
    log: AttemptLog = msgspec.field(default_factory=AttemptLog)
    """The books of the request, or the branch of them that belongs to this copy of the call."""

    @property
    def awaited_until(self) -> float | None:
        """The time at which the caller stops waiting, unless the answer has begun by then."""
        return self.deadline if self.begin_by is None else self.begin_by

    @property
    def route_or_endpoint(self) -> str:
        """The name under which answers are learned: the route, else the endpoint."""
        return self.route or self.endpoint


# --- the answer: one canonical event model for all dialects ----------------------------------


class Started(Frozen, tag="start"):
    """The answer has begun; the upstream told its names."""

    id: str | None = None
    model: str | None = None
    created: int | None = None
    fingerprint: str | None = None
    tier: str | None = None


class TextDelta(Frozen, tag="text"):
    """A piece of the answer's text. An empty text is no content: its choice has begun."""

    text: str
    choice: int = 0
    block: int | None = None
    """The number of its content block, if the provider numbers them. Texts of two blocks stay two
    parts."""


class ReasoningDelta(Frozen, tag="reasoning"):
    text: str
    choice: int = 0
    field: str = "reasoning_content"
    """The field in which the upstream sent it; a replay uses the same field."""
    signature: str | None = None
    block: int | None = None
    """Index of the block, as in ``TextDelta``."""


class RefusalDelta(Frozen, tag="refusal"):
    text: str
    choice: int = 0


class ToolCallDelta(Frozen, tag="tool"):
    index: int
    choice: int = 0
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    kind: str = "function"
    extra: dict[str, Any] = {}
    """Fields of the call that this version does not know, such as a provider's signature."""


class LogprobsDelta(Frozen, tag="logprobs"):
    """The token lists ``content`` and ``refusal``, as the upstream sent them."""

    value: dict[str, Any]
    choice: int = 0


class ExtraDelta(Frozen, tag="extra"):
    """Fields of a message or chunk that this version does not know; a replay repeats them."""

    fields: dict[str, Any]
    choice: int | None = 0
    """None: the fields stood at the top level of the chunk."""
    beside: bool = False
    """True: the fields stood in the choice, beside its message."""


class Finished(Frozen, tag="finish"):
    reason: str
    choice: int = 0
    native: str | None = None
    """The provider's own reason, if it differs. It decides whether the answer may be cached."""


class UsageReported(Frozen, tag="usage"):
    usage: dict[str, Any]
    beside: bool = False
    """Whether the provider's streams report the usage in an event that also has content. Then all
    clients get it, also those that did not ask for usage."""


class ErrorReported(Frozen, tag="error"):
    """An error inside an answer of status 200, or the decoded body of an error answer."""

    message: str
    code: str | None = None
    status: int | None = None
    is_ours: bool = False
    """The answer cannot be read, and the message is ours. It has no words of the answer."""
    is_foreign: bool = False
    """Clients of the dialect do not see an error in the event that reported it."""


class Ended(Frozen, tag="end"):
    """The dialect's terminal event: the answer is whole."""


StreamEvent: TypeAlias = (
    Started
    | TextDelta
    | ReasoningDelta
    | RefusalDelta
    | ToolCallDelta
    | LogprobsDelta
    | ExtraDelta
    | Finished
    | UsageReported
    | ErrorReported
    | Ended
)


class ChunkForm(msgspec.Struct):
    """The bytes that the frames of all streams of a provider have in common.

    A frame begins with a head, which is equal in all frames of one stream and differs between two
    streams: it has the id of the answer, for example. The form describes the bytes after the head,
    as earlier streams of the provider had them.
    """

    ends: dict[bytes, tuple[StreamEvent, ...]] = {}
    """The events of the frames that end a choice, by the bytes after the head."""
    around_text: tuple[bytes, bytes] | None = None
    """The bytes between the head and a text, and the bytes after the text."""


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Bytes of an answer for the client, and the events that they carry."""

    data: bytes
    events: tuple[StreamEvent, ...] = ()


class Text(Frozen, tag="text"):
    text: str


class Reasoning(Frozen, tag="reasoning"):
    text: str
    field: str = "reasoning_content"
    signature: str | None = None


class Refusal(Frozen, tag="refusal"):
    text: str


class ToolCall(Frozen, tag="tool"):
    id: str
    name: str
    arguments: str
    kind: str = "function"
    extra: dict[str, Any] = {}


Part: TypeAlias = Text | Reasoning | Refusal | ToolCall


NAMESPACE = "namespace"
"""The field of ``ToolCall.extra`` with the namespace of the tool, which only Responses has."""
CONTENT_BLOCKS = "content_blocks"
"""The field of ``Choice.extra`` for dialects whose answers are lists of blocks. It holds objects,
each with the ``index`` of its block. An object with a ``type`` is a block of its own; an object
without one adds fields to the block of a part."""


class Choice(Frozen):
    """One alternative of a completion. ``parts`` keep the order in which they arrived."""

    index: int
    parts: tuple[Part, ...]
    finish: str
    native_finish: str | None = None
    logprobs: dict[str, Any] | None = None
    extra: dict[str, Any] = {}
    beside: dict[str, Any] = {}
    """Unknown fields that stood beside the message."""

    @property
    def text(self) -> str:
        """The text, without reasoning and refusals."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def size(self) -> int:
        """The length of all parts in characters."""
        told = [part.arguments if isinstance(part, ToolCall) else part.text for part in self.parts]
        return sum(map(len, told))


class Completion(Frozen, tag="completion"):
    """A whole answer. It can be replayed as JSON or as a stream without loss."""

    model: str
    choices: tuple[Choice, ...]
    created: int
    usage: dict[str, Any] | None = None
    fingerprint: str | None = None
    tier: str | None = None
    extra: dict[str, Any] = {}
    usage_beside: bool = False
    """As ``UsageReported.beside``."""

    @property
    def called_tools(self) -> frozenset[str]:
        """The names of the tools that it calls."""
        parts = [part for choice in self.choices for part in choice.parts]
        return frozenset([part.name for part in parts if isinstance(part, ToolCall)])


class RawResponse(Frozen, tag="raw"):
    """The whole answer of a custom endpoint, byte for byte."""

    headers: Headers
    body: bytes
    status: int = 200


Answer: TypeAlias = Completion | RawResponse


# --- entries ---------------------------------------------------------------------------------


class Origin(Frozen):
    """The times and the cost of the call that gave the answer. A hit saves them, less its own."""

    model: str
    upstream: str
    ttft_s: float
    total_s: float
    streamed: bool = False
    """``ttft_s`` ends at a first token. False: the answer came whole, or nobody noted it."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    extra_tokens: int = 0
    """The tokens of calls whose answer no client got: lost races, failures, drafts."""
    cost_usd: float | None = None
    """The cost of all calls for the answer."""
    extra_usd: float = 0.0
    """The part of ``cost_usd`` for calls whose answer no client got."""
    prefix_usd: float = 0.0
    """The dollars that the call would have saved if the provider had read the whole prompt from its
    prefix cache."""
    estimated: bool = False
    """The upstream reported no tokens or no cost, so they are estimates."""


class Entry(Frozen):
    """One stored answer. A MatchPolicy made ``evidence``, its parse of the prompt."""

    id: str
    key: CacheKey
    answer: Answer
    origin: Origin
    created: float
    expires: float | None = None
    tags: tuple[str, ...] = ()
    transforms: tuple[str, ...] = ()
    evidence: bytes = b""
    evidence_version: str = ""
    encoder: str = ""
    """The namespace of the encoder that made the vector. Other namespaces never match."""
    dialect: str = ""
    """The name of the dialect that the answer was asked for in; "": nobody noted it."""


class EntryFilter(Frozen):
    """The conditions of an operator, all of which an entry must fit. None, or (): no condition."""

    ids: tuple[str, ...] = ()
    tag: str | None = None
    model: str | None = None
    scope: str | None = None
    """The first hex digits of a scope."""
    partition: str | None = None
    """The first hex digits of a partition."""
    prefix: str | None = None
    """The first characters of the question: the text of the last user message."""
    before: float | None = None
    """Only entries that were created before this time, in Unix seconds."""

    @property
    def is_empty(self) -> bool:
        """Whether every entry fits."""
        return self == EntryFilter()

    def fits(self, entry: Entry) -> bool:
        """Tell whether an entry fits all conditions."""
        return (
            (not self.ids or entry.id in self.ids)
            and (self.tag is None or self.tag in entry.tags)
            and (self.model is None or self.model == entry.origin.model)
            and entry.key.scope.startswith(self.scope or "")
            and entry.key.partition.startswith(self.partition or "")
            and (self.prefix is None or (entry.key.query or "").startswith(self.prefix))
            and (self.before is None or entry.created < self.before)
        )


class Sketch(Frozen):
    """A cheap vector of a prompt, as a unit row of fp16, and the namespace of its table."""

    table: str
    row: bytes


class Lease(Frozen):
    """The right of one process to make a call that other processes follow."""

    name: str
    """Digest of all that makes two calls equal: 40 hexadecimal digits."""
    owner: str
    """Address of the process (``interfaces.CallExchange``)."""
    token: int
    """Number of this lease: a later lease of the same name has a higher one."""


class Put(Frozen, tag="put"):
    """An entry to store. ``vector`` is a unit row of fp16, little endian, or None."""

    entry: Entry
    vector: bytes | None = None
    sketch: Sketch | None = None
    amends: bool = False
    """Only the stored entry of the same id is replaced, in its place. If it is gone, nothing is
    written."""
    lease: Lease | None = None
    """The lease of the call that gave the answer. A store that gives leases ends this one, and
    writes nothing if another process has taken the same lease later."""
    value: bytes | None = None
    """The entry in MessagePack, if it was encoded before."""


class Delete(Frozen, tag="delete"):
    """Entries to delete; in the log: entries that were evicted, expired or invalidated."""

    ids: tuple[str, ...]


Record: TypeAlias = Put | Delete


class VectorRow(Frozen):
    """The part of a stored entry that an index needs: its partitions, vector and sketch.

    It has a vector, a sketch, or both.
    """

    id: str
    partitions: tuple[str, ...]
    encoder: str
    vector: bytes | None = None
    sketch: Sketch | None = None


class Logged(Frozen):
    """One change in the store's log. Pass ``cursor`` to ``Store.follow`` to go on after it."""

    cursor: str
    record: VectorRow | Delete


class StoreStats(Frozen):
    entries: int
    bytes: int
    write_error: str = ""
    """The reason why this process's last write failed, such as a full disk; "": it succeeded."""


class Charge(NamedTuple):
    """An amount to add to a counter of the store. A negative amount gives back."""

    counter: str
    amount: int
    expires: float
    """The Unix time at which the counter ends."""
    most: int | None = None
    """The highest value that the counter may reach; None: no limit."""


class Charged(NamedTuple):
    """The result of charges: all were added, or none."""

    added: bool
    values: tuple[int, ...]
    """The values of their counters now, in the order of the charges."""


class LimitUse(Frozen, omit_defaults=False):
    """The used part of one limit, including the reservations of calls in flight."""

    caller: str
    limit: str
    """The name of its setting."""
    used: float
    """Dollars or tokens."""
    most: float
    resets_at: float
    """Unix seconds."""

    @property
    def share(self) -> float:
        """The used part: 1 is the whole limit."""
        return self.used / self.most if self.most else 1.0


# --- ids: ULIDs, sortable by time and unique without coordination (github.com/ulid/spec) -------

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
_FROM_BYTE = (_ALPHABET * 8).encode()
"""One letter for each byte, by its low five bits."""


def ulid_time(id: str) -> float | None:
    """Return the time at which a ULID was made, in Unix seconds; None if ``id`` is no ULID."""
    if len(id) != 26 or not set(id) <= set(_ALPHABET):
        return None
    ms = 0
    for letter in id[:10]:
        ms = ms * 32 + _ALPHABET.index(letter)
    return ms / 1000


_drawn: list[bytes] = []
"""Random bytes from the system, of which 16 are used at a time."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drawn.clear)


def random_bytes(count: int) -> bytes:
    """Return up to 16 random bytes, for an id. The system is asked for many at a time."""
    try:
        return _drawn.pop()[:count]  # ``pop`` is atomic: no other thread gets the same bytes
    except IndexError:
        drawn = os.urandom(16 * 256)
        _drawn.extend(drawn[at : at + 16] for at in range(16, len(drawn), 16))
        return drawn[:count]


def new_ulid(clock: Callable[[], float], entropy: Callable[[int], bytes] = random_bytes) -> str:
    """Return 26 characters: 48 bits of milliseconds, then 80 random bits."""
    ms = int(clock() * 1000)
    return _ulid_head(ms >> 10) + _PAIRS[ms & 1023] + entropy(16).translate(_FROM_BYTE).decode()


@lru_cache(maxsize=4)
def _ulid_head(seconds: int) -> str:
    """Return the first eight characters, which change about once a second."""
    return "".join(_PAIRS[seconds >> shift & 1023] for shift in (30, 20, 10, 0))


class Latest(OrderedDict[K, V]):
    """A dict that keeps only the ``most`` keys that were set last."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)


# --- remembered results ---------------------------------------------------------------------------

_RESULT_CHARS = 200
"""The number of characters that each result counts for in addition to its own."""


class Memo:
    """Remembers the results of pure functions, for the next request with the same history.

    ``max_chars`` bounds the estimated size of the results; the least recently used are evicted. Not
    thread-safe: only one thread may use it at a time.
    """

    def __init__(self, max_chars: int = 16_000_000) -> None:
        self._max_chars = max_chars
        self._answers: dict[object, object] = {}
        self._chars = 0

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return ``function(*args)``, computed or remembered. The arguments are texts."""
        key = (function, *args)
        if key in self._answers:
            answer = self._answers[key] = self._answers.pop(key)
            return answer  # type: ignore[return-value]  # what this function answered before
        answer = function(*args, **kwargs)
        self._answers[key] = answer
        self._chars += _size(key)
        while self._chars > self._max_chars:
            oldest = next(iter(self._answers))
            del self._answers[oldest]
            self._chars -= _size(oldest)
        return answer


def _size(key: object) -> int:
    """Estimate the characters of a call and its result, which is about as long as its arguments."""
    parts = key if isinstance(key, tuple) else ()
    return _RESULT_CHARS + 2 * sum(len(part) for part in parts if isinstance(part, str))


# --- tables of words -------------------------------------------------------------------------


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text. Long lists of words are easier to read as a text."""
    return frozenset(text.split())


def lower_case(text: str) -> str:
    """Return a text in lower case, with as many characters: those of Turkish may become two."""
    return text.replace("\u0130", "I").lower()


def word_classes(words: Mapping[K, str]) -> dict[str, K]:
    """Return the class of each word: {"was": "past", "did": "past"} for {"past": "was did"}."""
    return {word: name for name, text in words.items() for word in text.split()}


def read_vocabulary(module: str) -> dict[str, str]:
    """Return the lists of words in ``vocabulary.toml``, beside a module, by name."""
    data = pkgutil.get_data(module, "vocabulary.toml")
    return msgspec.toml.decode(data or b"", type=dict[str, str])


def is_pattern(name: str) -> bool:
    """Tell whether a model's name in a route is a pattern for several names."""
    return not {"*", "?", "["}.isdisjoint(name)


def json_or_none(data: bytes | str | msgspec.Raw, kind: type[T]) -> T | None:
    """Return the JSON value of this type; None for data that is no JSON, or of another type."""
    try:
        return msgspec.json.decode(data, type=kind)
    except UNDECODABLE:
        return None


# --- bodies that arrive in pieces ----------------------------------------------------------------

KEPT_BYTES = 1024 * 1024
"""The longest body that is kept for another upstream."""


class Upload:
    """The body of a request, which several upstreams may read, one after the other.

    ``receive`` waits for the next piece and returns it, or None at the end of the body. If it is
    cancelled, no piece is lost. Each reader begins at the beginning of the body. When a new reader
    begins, the earlier ones end.
    """

    def __init__(
        self, receive: Callable[[], Awaitable[bytes | None]], kept_bytes: int = KEPT_BYTES
    ) -> None:
        self._receive = receive
        self._kept_bytes = kept_bytes
        self._kept: list[bytes] = []
        self._ended = False
        self._readers = 0
        self.size = 0
        """The number of bytes that have arrived."""

    @property
    def whole(self) -> bool:
        """Whether all bytes that have arrived are kept, so that another upstream can read them."""
        return self.size <= self._kept_bytes

    async def read(self) -> AsyncGenerator[bytes]:
        """Yield the body from its beginning, as it arrives. A new reader needs ``whole``."""
        self._readers += 1
        reader, place = self._readers, 0
        while reader == self._readers:
            if place < len(self._kept):
                place += 1
                yield self._kept[place - 1]
            elif self._ended:
                return
            else:
                piece = await self._receive()
                if piece is None:
                    self._ended = True
                    return
                self.size += len(piece)
                if self.whole:
                    self._kept.append(piece)
                    continue
                self._kept.clear()
                place = 0
                yield piece
