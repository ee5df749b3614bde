"""Finding the stored entry whose prompt means the same, or the reason why there is none.

======================  ===========================================================================
reason of a miss        meaning
======================  ===========================================================================
``exact-only``          there is no encoder, or the request has no text to compare
``empty-partition``     nothing comparable is stored; the prompt was not encoded
``encoder-busy``        the encoding did not come in time
``too-long``            the prompt exceeds the encoder's limit
``below-threshold``     the best neighbour is not similar enough
``veto``                ``Lookup.veto`` stopped the best neighbour: a guard, or the caller's refusal
``gone``                all similar entries have left the store
``STAGE-error``         ``encoder``, ``index`` or ``store`` failed; observers see StageFailed
======================  ===========================================================================
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeAlias

import anyio
import msgspec

from headstart.embeddings.index import pack_vector
from headstart.embeddings.replica import report
from headstart.errors import StageError
from headstart.interfaces import P
from headstart.types import Lookup, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headstart.embeddings.hot import HotTier
    from headstart.embeddings.replica import Replica
    from headstart.interfaces import MatchPolicy, Observer
    from headstart.types import Encoding, Entry, Neighbor

    Accept: TypeAlias = Callable[[Entry], str | None]
    """Returns why an entry may not serve this request, or None."""


class PromptEncoder(Protocol):
    """What the cache needs of the encoder's worker."""

    @property
    def namespace(self) -> str:
        """Vectors of another namespace are not comparable."""

    @property
    def queue_length(self) -> int:
        """Number of encodings that wait."""

    async def encode(self, text: str, *, background: bool = False) -> Encoding:
        """Encode a prompt, after all others if ``background``. Raises EncoderError.

        One that is cancelled while it waits for its turn is not encoded.
        """


class SimilarEntries(Generic[P]):
    """Encodes a prompt, searches its neighbours and lets the policy judge them, best first."""

    def __init__(
        self,
        encoder: PromptEncoder,
        policy: MatchPolicy[P],
        replica: Replica,
        hot: HotTier,
        *,
        max_wait_s: float,
        neighbors: int,
        observers: Observer,
    ) -> None:
        self._encoder = encoder
        self._policy = policy
        self._replica = replica
        self._hot = hot
        self._max_wait_s = max_wait_s
        self._neighbors = neighbors
        self._observers = observers

    async def find(self, partition: str, text: str, accept: Accept, floor: float) -> Lookup:
        """Return the first neighbour of at least ``floor`` that survives, or a miss. Fails open."""
        wanted = Wanted(partition, text, accept, floor, Stopwatch())
        try:
            lookup = await self._find(wanted)
        except StageError as error:
            report(self._observers, error)
            lookup = miss(f"{error.stage}-error")
        return msgspec.structs.replace(lookup, **wanted.watch.spent)

    async def _find(self, wanted: Wanted) -> Lookup:
        with wanted.watch.measure("encode_s"), anyio.move_on_after(self._max_wait_s) as wait:
            encoding = await self._encoder.encode(wanted.text)
        if wait.cancelled_caught:
            return miss("encoder-busy")
        if not encoding.complete:
            return miss("too-long")
        with wanted.watch.measure("lookup_s"):
            vector = pack_vector(encoding.sentence)
            near = await self._replica.search(wanted.partition, vector, self._neighbors)
        if not near:
            return miss("empty-partition")
        similar = [neighbor for neighbor in near if neighbor.similarity >= wanted.floor]
        if not similar:
            return miss("below-threshold", near[0].similarity, "threshold")
        with wanted.watch.measure("match_s"):
            prepared = self._policy.prepare(wanted.text, encoding)
        return await self._match(similar, prepared, wanted)

    async def _match(self, similar: Sequence[Neighbor], prepared: P, wanted: Wanted) -> Lookup:
        """Walk down the neighbours. The store is asked at most once, when the hot tier runs out."""
        stopped: Lookup | None = None
        read: Mapping[str, Entry] | None = None
        deletions = self._replica.deletions
        for place, neighbor in enumerate(similar):
            entry = self._hot.get(neighbor.id)
            if entry is None:
                if read is None:
                    with wanted.watch.measure("lookup_s"):
                        read = await self._read(similar[place:])
                entry = read.get(neighbor.id)
            if entry is None:
                continue
            with wanted.watch.measure("match_s"):
                lookup = self._judge(entry, neighbor.similarity, prepared, wanted.accept)
            if lookup.entry is not None:
                self._replica.keep(entry, deletions)
                return lookup
            stopped = stopped or lookup
        return stopped or miss("gone")

    async def _read(self, similar: Sequence[Neighbor]) -> Mapping[str, Entry]:
        return await self._replica.read([near.id for near in similar if near.id not in self._hot])

    def _judge(self, entry: Entry, similarity: float, prepared: P, accept: Accept) -> Lookup:
        refusal = accept(entry)
        if refusal is not None:
            return miss("veto", similarity, refusal)
        if entry.evidence_version != self._policy.version:
            return miss("veto", similarity, "evidence-version")
        candidate = self._policy.unpack(entry.evidence)
        verdict = self._policy.judge(prepared, candidate, similarity)
        if verdict.serve:
            return Lookup(outcome=Outcome.SEMANTIC, entry=entry, similarity=verdict.similarity)
        reason = "below-threshold" if verdict.veto == "threshold" else "veto"
        return miss(reason, verdict.similarity, verdict.veto)


class Wanted(NamedTuple):
    """One semantic lookup: what may answer it, and where its time goes."""

    partition: str
    text: str
    accept: Accept
    floor: float
    watch: Stopwatch


class Stopwatch:
    """Adds up seconds by the name of the Lookup field that reports them."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def measure(self, field: str) -> Iterator[None]:
        """Add the time spent inside, however it ends."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.spent[field] += time.perf_counter() - began


def miss(reason: str, similarity: float | None = None, veto: str | None = None) -> Lookup:
    """Return a miss and why."""
    return Lookup(outcome=Outcome.MISS, reason=reason, similarity=similarity, veto=veto)
