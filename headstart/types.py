"""Frozen values that every room shares. No behaviour beyond derived properties, no I/O.

Units are in the names: ``_s`` seconds, ``_usd`` dollars; ``created`` and ``expires`` are Unix
seconds; ``similarity`` is a cosine, higher is closer.
"""

from __future__ import annotations

from typing import Any, TypeAlias, dataclass_transform

import msgspec

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""ASGI header pairs, in order, repeats kept; names are lower case."""


# Type checkers do not see that msgspec's subclasses inherit ``frozen`` and ``kw_only``.
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Frozen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of the values below: immutable, keyword-only, compact when encoded."""


# --- the request ---------------------------------------------------------------------------


class ChatRequest(Frozen):
    """What the engine needs to know of a request body, whatever its dialect."""

    model: str
    stream: bool
    document: dict[str, Any]
    """The decoded body. Never mutated, never sent: the client's own bytes go upstream."""
    query: str | None
    """The last user text if the last message is the user's and is text alone, else None."""
    question: str | None = None
    """The part of ``query`` that its endpoint names as the question, as it came; None: it does not
    name one."""
    include_usage: bool = False
    max_tokens: int | None = None
    choices: int = 1
    logprobs: bool = False
    user: str | None = None
    """``user`` or ``safety_identifier``: joins the scope unless ``cache.share_users``."""
    duplicate_keys: bool = False
    """The body repeats a JSON key: two readers may disagree on it, so it is never cached."""


class Turn(Frozen, array_like=True):
    """What one side of a conversation said, in plain text."""

    user: bool
    text: str


class CacheKey(Frozen):
    """Who may share an answer and which answers are comparable (``docs/cache-key.md``).

    ``partition``, ``exact`` and ``conversation`` are SHA-256 hex digests that already bind
    ``scope``, so equal digests can never cross scopes.
    """

    scope: str
    partition: str
    exact: str
    query: str | None = None
    conversation: str | None = None
    """Binds what ``partition`` does but for ``history``; None where only an equal one will do."""
    history: tuple[Turn, ...] = ()
    """Earlier turns whose meaning may be equal in other words."""

    @property
    def group(self) -> str:
        """The digest under which neighbours are searched."""
        return self.conversation or self.partition


class Call(Frozen):
    """One request as it travels through the engine to an upstream."""

    id: str
    method: str
    path: bytes
    """Raw path below the mount point, as the client sent it."""
    query_string: bytes
    headers: Headers
    body: bytes
    dialect: str
    endpoint: str
    route: str = ""
    """Name of the ``[[route]]`` that it takes; "": none."""
    request: ChatRequest | None = None
    editable: bool = True
    """False for calls that bypass the cache: they go up and come back byte for byte."""
    fold: bool = False
    """Ask for a stream though the client wants a whole answer, and fold it: whoever cancels a
    stream stops paying for it."""
    deadline: float | None = None
    """When the answer must have begun and ended, in the event loop's time."""
    begin_by: float | None = None
    """When its caller stops waiting for the first byte. The call may go on, for one who comes
    again; but nothing that takes longer is worth beginning."""
    affinity: str = ""
    """Digest of the conversation, which stays with its provider's prefix cache; "": none."""
    prompt_tokens: int = 0
    """Estimated length of the prompt."""
    output_tokens: float | None = None
    """Expected length of the answer where neighbours tell it."""
    prediction: str = ""
    """What the answer may look like, for providers that take such a hint; "": nobody knows."""
    role: str = "first"
    """Why the call is made: an ``attempts.AttemptRole``."""
    hurried: bool = False
    """Somebody else could be asked: an upstream that is late to begin is left."""
    anyway: bool = False
    """Ask an upstream that fails these days: nobody else is left."""
    avoid: frozenset[str] = frozenset()
    """Names of upstreams that must not be asked."""
    branch: str = ""
    """Path of the choices that led to this copy of the call (``1.2``): whoever gives up a branch
    tells the ledger so by this name."""

    @property
    def awaited_until(self) -> float | None:
        """When its caller stops waiting if there is nothing to read by then."""
        return self.deadline if self.begin_by is None else self.begin_by

    @property
    def place(self) -> str:
        """Where answers of its kind are learned about together: its route, else its endpoint."""
        return self.route or self.endpoint


# --- the answer: one canonical event model for all dialects ----------------------------------


class Started(Frozen, tag="start"):
    """The upstream named its answer."""

    id: str | None = None
    model: str | None = None
    created: int | None = None
    fingerprint: str | None = None
    tier: str | None = None


class TextDelta(Frozen, tag="text"):
    """Text. An empty one only says that its choice has begun: it is not content."""

    text: str
    choice: int = 0
    block: int | None = None
    """Its content block, if the provider numbers them: the texts of two are two parts."""


class ReasoningDelta(Frozen, tag="reasoning"):
    text: str
    choice: int = 0
    field: str = "reasoning_content"
    """The name under which the upstream sent it; replays use the same."""
    signature: str | None = None
    block: int | None = None
    """As in TextDelta."""


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
    """Unknown fields of the call, such as a provider's signature of it."""


class LogprobsDelta(Frozen, tag="logprobs"):
    """``content`` and ``refusal`` token lists as the upstream sent them."""

    value: dict[str, Any]
    choice: int = 0


class ExtraDelta(Frozen, tag="extra"):
    """Fields of a message or chunk that this version does not know; replayed as they came."""

    fields: dict[str, Any]
    choice: int | None = 0
    """None: top level of the chunk."""
    beside: bool = False
    """True: the fields stood in the choice, beside its message, not in it."""


class Finished(Frozen, tag="finish"):
    reason: str
    choice: int = 0
    native: str | None = None
    """The provider's own reason when it differs; cacheability is judged on it."""


class UsageReported(Frozen, tag="usage"):
    usage: dict[str, Any]


class ErrorReported(Frozen, tag="error"):
    """An error inside a 200 answer, or the decoded body of an error answer."""

    message: str
    code: str | None = None
    status: int | None = None


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


CONTENT_BLOCKS = "content_blocks"
"""Field of ``Choice.extra`` where answers are lists of blocks: objects, each with the ``index`` of
its block. One with a ``type`` is a block of its own; one without holds more of a part's block."""


class Choice(Frozen):
    """One alternative of a completion; ``parts`` keep the order in which they arrived."""

    index: int
    parts: tuple[Part, ...]
    finish: str
    native_finish: str | None = None
    logprobs: dict[str, Any] | None = None
    extra: dict[str, Any] = {}
    beside: dict[str, Any] = {}
    """Unknown fields that stood beside the message, not in it."""


class Completion(Frozen, tag="completion"):
    """A whole answer, replayable as JSON or as a stream without loss."""

    model: str
    choices: tuple[Choice, ...]
    created: int
    usage: dict[str, Any] | None = None
    fingerprint: str | None = None
    tier: str | None = None
    extra: dict[str, Any] = {}


class RawResponse(Frozen, tag="raw"):
    """A custom endpoint's whole answer, byte for byte."""

    headers: Headers
    body: bytes
    status: int = 200


# --- entries ---------------------------------------------------------------------------------


class Origin(Frozen):
    """What the original call cost: a hit's saving is this minus the hit's own."""

    model: str
    upstream: str
    ttft_s: float
    total_s: float
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None
    estimated: bool = False
    """True when tokens or cost were estimated, not reported by the upstream."""


class Entry(Frozen):
    """One stored answer. ``evidence`` belongs to the MatchPolicy named by ``evidence_version``."""

    id: str
    key: CacheKey
    answer: Completion | RawResponse
    origin: Origin
    created: float
    expires: float | None = None
    tags: tuple[str, ...] = ()
    transforms: tuple[str, ...] = ()
    evidence: bytes = b""
    evidence_version: str = ""
    encoder: str = ""
    """Namespace of the encoder that made the vector; other namespaces never match."""


class Put(Frozen, tag="put"):
    """An entry to store. ``vector`` is a unit fp16 row, little endian, or None."""

    entry: Entry
    vector: bytes | None = None


class Delete(Frozen, tag="delete"):
    """Entries to delete; in the log those that left (evicted, expired or invalidated)."""

    ids: tuple[str, ...]


Record: TypeAlias = Put | Delete


class VectorRow(Frozen):
    """What an index needs of a stored entry: its place there, not its answer."""

    id: str
    partition: str
    encoder: str
    vector: bytes


class Logged(Frozen):
    """What was stored or left; pass its ``cursor`` to ``Store.follow`` to go on after it."""

    cursor: str
    record: VectorRow | Delete


class StoreStats(Frozen):
    entries: int
    bytes: int
