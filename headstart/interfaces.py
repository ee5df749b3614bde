"""Extension points. An implementation needs no base class: matching the Protocol is enough.

Who implements what: rooms ``embeddings`` (Encoder, VectorIndex, Store), ``policies``
(MatchPolicy, AdmissionPolicy), ``middleware`` (Upstream). A third party's store is found by its
URL's scheme under the entry point group ``STORES``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Sequence
    from contextlib import AbstractAsyncContextManager

    from headstart.attempts import Outlook
    from headstart.decisions import Comparison, Encoding, Label, Nearby, Neighbor, Verdict
    from headstart.observe import Observation, Served
    from headstart.types import (
        Call,
        ChatRequest,
        Completion,
        Entry,
        Headers,
        Logged,
        Record,
        StoreStats,
        StreamEvent,
        Turn,
        VectorRow,
    )

P = TypeVar("P")

STORES = "headstart.stores"
"""Entry point group of third parties' stores, named by URL scheme: callables ``(url, *, limits,
clock, observer)`` that return a Store."""


class Encoder(Protocol):
    """Text to vectors. Synchronous and CPU-bound: it is only ever called on the encoder thread."""

    @property
    def namespace(self) -> str:
        """Model sha, pooling, prefix and precision; vectors of two namespaces never compare."""

    @property
    def dimension(self) -> int: ...

    def encode(self, text: str) -> Encoding:
        """Encode one prompt. Raises EncoderError."""


class VectorIndex(Protocol):
    """Nearest neighbours by cosine within a partition. Thread-safe; searches release the GIL."""

    def add(self, partition: str, id: str, vector: bytes) -> None:
        """Add a unit fp16 row. The same id again replaces it."""

    def search(self, partition: str, vector: bytes, k: int) -> Sequence[Neighbor]:
        """Return up to ``k`` neighbours, most similar first. Empty for an unknown partition."""

    def remove(self, ids: Sequence[str]) -> None:
        """Forget ids; unknown ones are ignored."""

    def size(self, partition: str | None = None) -> int:
        """Number of live vectors, of one partition or of all. Never waits."""

    @property
    def partitions(self) -> int:
        """Number of partitions that hold a vector."""

    def __contains__(self, id: object) -> bool:
        """Is this id indexed? An id names one vector for ever, so it need not be added again."""


class Store(Protocol):
    """Entries and their vectors, durable where the URL says so, plus an append-and-follow log.

    Every method may raise StoreError. Expired entries are never returned.
    """

    async def open(self) -> None:
        """Open or create. Raises ConfigError when the file is locked, corrupt or not ours."""

    async def aclose(self) -> None:
        """Flush what was appended, then close."""

    async def find(self, exact: str) -> Entry | None:
        """Return the newest live entry under an exact key."""

    async def load(self, ids: Sequence[str]) -> Sequence[Entry | None]:
        """Return entries in the order of ``ids``; None where one is gone."""

    async def append(self, records: Sequence[Record]) -> str:
        """Write records; on return they are acknowledged. Returns the log's cursor.

        A Put under an exact key that exists replaces it. What was replaced, and eviction in the
        same commit, show in the log as a Delete. When cancelled, the records may be written.
        """

    async def cursor(self) -> str:
        """Return the log's end now. Taken before ``scan``, ``follow`` from it misses nothing."""

    def follow(self, after: str, *, poll_s: float = 0.2) -> AsyncIterator[Logged]:
        """Yield what was appended after ``after`` (``""``: from now on), by anyone, for ever.

        An entry without a vector, or that has left since, is skipped. Raises StoreError also when
        the log no longer reaches back to ``after``: take a new ``cursor`` and ``scan`` again.
        """

    def scan(self, batch: int = 1024) -> AsyncIterator[Sequence[VectorRow]]:
        """Yield the vectors of all live entries, oldest first, for a warm start."""

    def entries(self, batch: int = 256) -> AsyncIterator[Sequence[Entry]]:
        """Yield all live entries, oldest first, also those without a vector."""

    async def touch(self, ids: Sequence[str]) -> None:
        """Mark entries as used now; eviction takes the least recently used."""

    async def stats(self) -> StoreStats: ...

    async def label(self, labels: Sequence[Label]) -> None:
        """Append labels; on return they are acknowledged."""

    async def labels(
        self, after: str = "", limit: int = 1000, *, domain: str | None = None
    ) -> Sequence[tuple[str, Label]]:
        """Return up to ``limit`` labels after a cursor, each with its own cursor, oldest first.

        Cursors compare as strings. All who share the store see the same labels in the same order,
        and none is skipped by going on from the last cursor. The oldest leave when there are very
        many. With ``domain`` only its own.
        """

    async def keep(self, name: str, value: bytes) -> None:
        """Keep a document, such as a snapshot of what was learned; it replaces its name's."""

    async def kept(self, name: str) -> bytes | None:
        """Return a kept document, or None."""

    async def secret(self) -> bytes:
        """Return the store's 32 random bytes: made once, the same for all who share the store."""

    async def book(self, rows: Sequence[Served]) -> None:
        """Append to the books: one row a request, for ``headstart report``."""

    def books(self, since: float = 0.0) -> AsyncIterator[Served]:
        """Yield booked requests not older than ``since`` (Unix seconds), oldest first."""


class MatchPolicy(Protocol[P]):
    """Decides whether a neighbour may answer a prompt. Pure; ``P`` is its parse of a prompt."""

    @property
    def version(self) -> str:
        """Changes whenever a stored parse or a verdict could change meaning."""

    @property
    def minimum(self) -> float:
        """Neighbours below this similarity are never judged, so need not be loaded."""

    def prepare(self, text: str, encoding: Encoding) -> P:
        """Parse a prompt once."""

    def pack(self, prepared: P) -> bytes:
        """Serialise a parse, to be stored with the entry."""

    def unpack(self, evidence: bytes) -> P: ...

    def veto(self, query: P, candidate: P) -> str | None:
        """Return the guard that keeps a neighbour's answer from this prompt, or None."""

    def compare(
        self, one: Sequence[Turn], other: Sequence[Turn], max_error: float | None
    ) -> Comparison:
        """Compare two histories for a request that accepts ``max_error``; None: the policy's own.

        The more wrong hits are accepted, the more one side may have said than the other.
        """

    def reworded(self, turn: P, counterpart: P) -> bool:
        """Tell whether nothing objects to taking one turn of a conversation for another."""

    def judge(self, query: P, candidate: P, nearby: Nearby, veto: str | None = None) -> Verdict:
        """Judge one neighbour that ``veto`` returned this for; a vetoed one is never served."""


class AdmissionPolicy(Protocol):
    """Decides what may be looked up, stored and served: each ``refuse_`` gives None or a reason."""

    def refuse_lookup(self, request: ChatRequest) -> str | None:
        """May this request be answered from the cache at all?"""

    def refuse_semantic(self, request: ChatRequest) -> str | None:
        """May it be answered by another prompt's answer?"""

    def refuse_store(self, request: ChatRequest, answer: Completion) -> str | None:
        """May this answer, which ended cleanly with status 200, be stored?"""

    def variants(self, request: ChatRequest) -> int:
        """How many answers to keep for this request, to be drawn from at random."""

    def refuse_serve(self, request: ChatRequest, entry: Entry) -> str | None:
        """Range check: may this stored answer serve this request's limits, n and logprobs?"""


class Chunk(Protocol):
    """A piece of an upstream's answer: the bytes for the client and what they mean."""

    @property
    def data(self) -> bytes: ...

    @property
    def events(self) -> Sequence[StreamEvent]: ...


class UpstreamReply(Protocol):
    """An upstream's answer, once its status and headers are known."""

    @property
    def upstream(self) -> str: ...

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Headers: ...

    @property
    def transforms(self) -> tuple[str, ...]:
        """What was edited on the way up or down; empty for a byte-identical exchange."""

    @property
    def storable(self) -> bool:
        """False if the answer must not be served to anybody else, such as one that was rescued.

        Final only once the body was read.
        """

    def chunks(self) -> AsyncIterator[Chunk]:
        """Yield the body as it arrives. Raises UpstreamError when it breaks off."""


class Upstream(Protocol):
    """Something that answers calls. Races, hedges and fallbacks are upstreams made of upstreams."""

    @property
    def name(self) -> str: ...

    def stream(self, call: Call) -> AbstractAsyncContextManager[UpstreamReply]:
        """Send the call; entering waits for status and headers, leaving closes the socket.

        Raises UpstreamError. Cancellation aborts the upstream call at once.
        """


class Candidate(Upstream, Protocol):
    """An upstream that strategies choose among.

    Entering ``stream`` waits for the answer's first content, so whoever got in first has won; an
    error status, an empty answer or an error in its place raise UpstreamError instead.
    """

    def outlook(self, call: Call) -> Outlook:
        """Return what to expect of this call, now. Quick, and without a side effect."""

    @property
    def identity(self) -> str:
        """Names whose answers these are: it is part of the cache key."""

    @property
    def names(self) -> frozenset[str]:
        """Names of all upstreams inside, for ``Call.avoid``."""


class Observer(Protocol):
    """Receives what happened. Must be quick and must not raise; it is called on the loop."""

    def notify(self, observation: Observation) -> None: ...


class DraftJudge(Protocol):
    """A judge of a cascade's drafts: a function, plain or async. Plain ones run on the event loop.

    One that raises vetoes. An async one is cancelled when the client leaves.
    """

    def __call__(
        self, request: ChatRequest, draft: Completion, /
    ) -> bool | float | Awaitable[bool | float]:
        """Judge a draft: False is a veto, True is no objection, a number is how good it is.

        Numbers are from 0 to 1; what each is worth is learned.
        """
