"""Finding the stored entry whose prompt means the same, or the reason why there is none.

======================  ===========================================================================
reason of a miss        meaning
======================  ===========================================================================
``exact-only``          there is no encoder, or the request has no text to compare
``empty-partition``     nothing comparable is stored, or nothing was encoded in time
``encoder-busy``        the encoding did not come in time
``too-long``            the prompt exceeds the encoder's limit
``below-threshold``     the best neighbour is not similar enough
``veto``                ``Lookup.veto`` stopped the best neighbour: a guard, or the caller's refusal
``gone``                all similar entries have left the store
``STAGE-error``         ``encoder``, ``index`` or ``store`` failed; observers see StageFailed
======================  ===========================================================================
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeAlias

import anyio
import msgspec

from headstart.decisions import Lookup, Nearby, Outcome, Trial
from headstart.embeddings.histories import Histories
from headstart.embeddings.index import pack_vector
from headstart.embeddings.replica import report
from headstart.errors import StageError
from headstart.interfaces import P

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headstart.decisions import Encoding, Neighbor, Terms
    from headstart.embeddings.hot import HotTier
    from headstart.embeddings.replica import Replica
    from headstart.interfaces import MatchPolicy, Observer
    from headstart.types import CacheKey, Entry

    Accept: TypeAlias = Callable[[Entry], str | None]
    """Returns why an entry may not serve this request, or None."""


MOST_PARSED = 256
"""Prompts whose parses are kept until their answers come: some 5 KB each, 30 KB at most."""


class PromptEncoder(Protocol):
    """What the cache needs of the encoder's worker."""

    @property
    def namespace(self) -> str:
        """Vectors of another namespace are not comparable."""

    def is_full(self, tenant: str) -> bool:
        """Tell whether a tenant may add nothing to the background."""

    async def encode(self, text: str, *, background: bool = False, tenant: str = "") -> Encoding:
        """Encode a prompt, after all others if ``background``. Raises EncoderError.

        Tenants take turns. One that is cancelled while it waits for its turn is not encoded.
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
        self._parsed: dict[str, P] = {}
        self._expected: dict[str, set[asyncio.Event]] = {}

    @contextmanager
    def expecting(self, group: str) -> Iterator[None]:
        """Let lookups of a group wait while an entry is on its way into the index, inside."""
        arrival = asyncio.Event()
        self._expected.setdefault(group, set()).add(arrival)
        try:
            yield
        finally:
            arrival.set()
            self._expected[group].discard(arrival)
            if not self._expected[group]:
                del self._expected[group]

    def expects(self, group: str) -> bool:
        """Tell whether an entry of a group is on its way into the index."""
        return group in self._expected

    def parse(self, text: str, encoding: Encoding) -> P:
        """Return a prompt as the policy reads it, without reading the last ones again.

        What is looked up in vain is stored soon.
        """
        parsed = self._parsed.get(text)
        if parsed is None:
            parsed = self._parsed[text] = self._policy.prepare(text, encoding)
            if len(self._parsed) > MOST_PARSED:
                del self._parsed[next(iter(self._parsed))]
        return parsed

    async def find(self, key: CacheKey, accept: Accept, terms: Terms) -> Lookup:
        """Ask the policy about the first similar enough neighbour that no guard vetoes.

        ``key.query`` is the text to compare. Fails open: an error is a miss.
        """
        wanted = Wanted(key, accept, terms, Stopwatch())
        try:
            lookup = await self._find(wanted)
        except StageError as error:
            report(self._observers, error)
            lookup = miss(f"{error.stage}-error")
        return msgspec.structs.replace(lookup, **wanted.watch.spent)

    async def _find(self, wanted: Wanted) -> Lookup:
        with wanted.watch.measure("encode_s"), anyio.move_on_after(self._max_wait_s) as wait:
            encoding = await self._encoder.encode(wanted.text, tenant=wanted.terms.tenant)
        if wait.cancelled_caught:
            return miss("encoder-busy")
        if not encoding.complete:
            return miss("too-long")
        lookup = await self._search(encoding, wanted)
        if lookup.entry is None and await self._arrives(wanted, wait.deadline):
            lookup = await self._search(encoding, wanted)
        return lookup

    async def _arrives(self, wanted: Wanted, deadline: float) -> bool:
        """Wait for the entries that the group expects now; tell whether one has come."""
        expected = tuple(self._expected.get(wanted.key.group, ()))
        with wanted.watch.measure("encode_s"), anyio.CancelScope(deadline=deadline):
            for arrival in expected:
                await arrival.wait()
        return any(arrival.is_set() for arrival in expected)

    async def _search(self, encoding: Encoding, wanted: Wanted) -> Lookup:
        with wanted.watch.measure("lookup_s"):
            vector = pack_vector(encoding.sentence)
            near = await self._replica.search(wanted.key.group, vector, self._neighbors)
        if not near:
            return miss("empty-partition")
        if near[0].similarity < self._policy.minimum:
            return miss("below-threshold", near[0].similarity, "threshold")
        with wanted.watch.measure("match_s"):
            prepared = self.parse(wanted.text, encoding)
        return await self._match(near, prepared, wanted)

    async def _match(self, near: Sequence[Neighbor], prepared: P, wanted: Wanted) -> Lookup:
        """Walk down the neighbours to the first that no guard vetoes: the candidate.

        The store is asked at most once, when the hot tier runs out. If none survives, the nearest
        is what the miss reports and what is learned from.
        """
        similar = [neighbor for neighbor in near if neighbor.similarity >= self._policy.minimum]
        stopped: _Stopped[P] | None = None
        read: Mapping[str, Entry] | None = None
        deletions = self._replica.deletions
        histories = Histories(
            self._encoder,
            self._policy,
            wanted.key,
            wanted.terms,
            max_wait_s=self._max_wait_s,
        )
        for rank, neighbor in enumerate(similar):
            entry = self._hot.get(neighbor.id)
            if entry is None:
                if read is None:
                    with wanted.watch.measure("lookup_s"):
                        read = await self._read(similar[rank:])
                entry = read.get(neighbor.id)
            if entry is None:
                continue
            nearby = Nearby(wanted.terms, near, rank)
            with wanted.watch.measure("match_s"):
                refusal, candidate = self._refuse(entry, prepared, wanted.accept)
                if refusal is None and not await histories.same(entry.key):
                    # Of such a pair the texts say nothing: it teaches nothing either.
                    refusal, candidate = "history", None
                if refusal is None and candidate is not None:
                    lookup = self._judge(entry, prepared, candidate, nearby)
                    self._replica.keep(entry, deletions)
                    return lookup if stopped is None or lookup.entry else stopped.report(lookup)
            stopped = stopped or _Stopped(entry, nearby, candidate, refusal)
        if stopped is None:
            return miss("gone")
        if stopped.candidate is None:
            return miss("veto", stopped.nearby.neighbor.similarity, stopped.veto)
        with wanted.watch.measure("match_s"):
            return self._judge(
                stopped.entry, prepared, stopped.candidate, stopped.nearby, stopped.veto
            )

    async def _read(self, similar: Sequence[Neighbor]) -> Mapping[str, Entry]:
        return await self._replica.read([near.id for near in similar if near.id not in self._hot])

    def _refuse(self, entry: Entry, prepared: P, accept: Accept) -> tuple[str | None, P | None]:
        """Return what stops an entry, if anything, and its parse unless that must not be used."""
        refusal = accept(entry)
        if refusal is not None:
            return refusal, None
        if entry.evidence_version != self._policy.version:
            return "evidence-version", None
        try:
            candidate = self._policy.unpack(entry.evidence)
        except (msgspec.DecodeError, ValueError):
            return "evidence-damaged", None
        return self._policy.veto(prepared, candidate), candidate

    def _judge(
        self, entry: Entry, prepared: P, candidate: P, nearby: Nearby, veto: str | None = None
    ) -> Lookup:
        verdict = self._policy.judge(prepared, candidate, nearby, veto)
        trial = Trial(domain=nearby.terms.domain, entry=entry, verdict=verdict)
        similarity = verdict.similarity
        if verdict.serve:
            return Lookup(outcome=Outcome.SEMANTIC, entry=entry, similarity=similarity, trial=trial)
        reason = "below-threshold" if verdict.veto == "threshold" else "veto"
        return miss(reason, similarity, verdict.veto, trial)


class _Stopped(NamedTuple, Generic[P]):
    """The nearest neighbour that something stopped; ``candidate`` is None if it may not be used."""

    entry: Entry
    nearby: Nearby
    candidate: P | None
    veto: str | None

    def report(self, judged: Lookup) -> Lookup:
        """Return a miss whose candidate was ``judged``, with the nearest neighbour's reason."""
        return miss("veto", self.nearby.neighbor.similarity, self.veto, judged.trial)


class Wanted(NamedTuple):
    """One semantic lookup: what may answer it, and where its time goes."""

    key: CacheKey
    accept: Accept
    terms: Terms
    watch: Stopwatch

    @property
    def text(self) -> str:
        """What is compared by meaning."""
        return self.key.query or ""


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


def miss(
    reason: str,
    similarity: float | None = None,
    veto: str | None = None,
    trial: Trial | None = None,
) -> Lookup:
    """Return a miss and why."""
    return Lookup(
        outcome=Outcome.MISS, reason=reason, similarity=similarity, veto=veto, trial=trial
    )
