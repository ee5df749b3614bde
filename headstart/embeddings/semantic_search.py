"""The semantic lookup: find the stored entry whose prompt means the same, or say why none does.

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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeAlias

import anyio
import msgspec

from headstart.decisions import Lookup, Outcome, RankedNeighbor, UnlabelledPair
from headstart.embeddings.index import pack_vector
from headstart.embeddings.replica import report_failure
from headstart.errors import StageError
from headstart.interfaces import P

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headstart.decisions import Encoding, MatchContext, Neighbor, UnmatchedTurn
    from headstart.embeddings.replica import Replica
    from headstart.interfaces import MatchPolicy
    from headstart.types import CacheKey, Entry

    Accept: TypeAlias = Callable[[Entry], str | None]
    """Returns why an entry may not serve this request, or None."""

NEIGHBORS = 8
"""The number of nearest entries that a lookup fetches."""
LEAST_SIMILARITY = 0.90
"""The lowest similarity of a turn and its counterpart that may mean the same."""
MOST_ENCODINGS = 12
"""The number of turns that one lookup may encode. With more turns, histories count as different."""
MOST_PARSED = 256
"""The number of parses that are kept until an answer is stored: about 5 KB each, at most 30 KB."""


class PromptEncoder(Protocol):
    """The part of the encoder's worker that the cache uses."""

    @property
    def namespace(self) -> str:
        """Vectors of another namespace are not comparable."""

    def is_full(self, tenant: str) -> bool:
        """Tell whether a tenant may not add to the background queue now."""

    async def encode(
        self, text: str, *, background: bool = False, tenant: str = "", promise: float = 0.0
    ) -> Encoding:
        """Encode a prompt; a ``background`` one comes after the others. Raises EncoderError.

        Tenants take turns; of one tenant's prompts the one with the highest ``promise`` is next. A
        call that is cancelled while it waits is not encoded.
        """


@dataclass(slots=True, eq=False)
class SemanticSearch(Generic[P]):
    """Encodes a prompt, searches its neighbours and lets the policy judge them, the best first."""

    encoder: PromptEncoder
    policy: MatchPolicy[P]
    replica: Replica
    max_wait_s: float
    _parsed: dict[str, P] = field(default_factory=dict)
    _expected: dict[str, set[asyncio.Event]] = field(default_factory=dict)

    # --- entries on their way into the index -----------------------------------------------------

    def expect(self, group: str) -> Callable[[], None]:
        """Let lookups of a group wait for an entry until the returned function is called."""
        arrival = asyncio.Event()
        self._expected.setdefault(group, set()).add(arrival)

        def arrived() -> None:
            arrival.set()
            expected = self._expected.get(group, set())
            expected.discard(arrival)
            if not expected:
                self._expected.pop(group, None)

        return arrived

    def expects(self, group: str) -> bool:
        """Tell whether lookups of a group wait for an entry."""
        return group in self._expected

    async def embed(self, entry: Entry, text: str, tenant: str) -> tuple[Entry, bytes | None]:
        """Return the entry with its evidence, and its vector.

        The vector is None if the tenant's queue is full, the encoder fails or the text is too long.
        """
        if self.encoder.is_full(tenant):
            return entry, None
        try:
            encoding = await self.encoder.encode(text, background=True, tenant=tenant)
            vector = pack_vector(encoding.sentence)
        except StageError as error:
            report_failure(self.replica.observers, error)
            return entry, None
        if not encoding.complete:
            return entry, None
        embedded = msgspec.structs.replace(
            entry,
            evidence=self.policy.pack(self._parse(text, encoding)),
            evidence_version=self.policy.version,
            encoder=self.replica.namespace or "",
        )
        return embedded, vector

    def _parse(self, text: str, encoding: Encoding) -> P:
        """Return the policy's parse of a prompt. Recent parses are kept.

        A prompt that missed is stored soon, so its parse is needed twice.
        """
        parsed = self._parsed.get(text)
        if parsed is None:
            parsed = self._parsed[text] = self.policy.prepare(text, encoding)
            if len(self._parsed) > MOST_PARSED:
                del self._parsed[next(iter(self._parsed))]
        return parsed

    # --- lookups ---------------------------------------------------------------------------------

    async def find(self, key: CacheKey, accept: Accept, context: MatchContext) -> Lookup:
        """Ask the policy about the best neighbour that no guard vetoes.

        ``key.query`` is the text to compare. An error of a stage is reported and gives a miss.
        """
        query = SemanticQuery(key, accept, context)
        try:
            lookup = await self._find(query)
        except StageError as error:
            query.add_time("encode_s" if error.stage == "encoder" else "lookup_s")
            report_failure(self.replica.observers, error)
            lookup = miss(f"{error.stage}-error")
        return msgspec.structs.replace(lookup, **query.spent)

    async def _find(self, query: SemanticQuery) -> Lookup:
        entries_by = anyio.current_time() + self.max_wait_s
        with anyio.move_on_after(self._wait_s(query.context)) as wait:
            encoding = await self.encoder.encode(query.text, tenant=query.context.tenant)
        query.add_time("encode_s")
        if wait.cancelled_caught:
            return miss("encoder-busy")
        if not encoding.complete:
            return miss("too-long")
        lookup = await self._search(encoding, query)
        if lookup.entry is None and await self._arrives(query, entries_by):
            lookup = await self._search(encoding, query)
        return lookup

    def _wait_s(self, context: MatchContext) -> float:
        return self.max_wait_s if context.max_wait_s is None else context.max_wait_s

    async def _arrives(self, query: SemanticQuery, deadline: float) -> bool:
        """Wait for the entries of the group that are being indexed; tell whether one has come."""
        expected = tuple(self._expected.get(query.key.group, ()))
        with anyio.CancelScope(deadline=deadline):
            for arrival in expected:
                await arrival.wait()
        query.add_time("encode_s")
        return any(arrival.is_set() for arrival in expected)

    async def _search(self, encoding: Encoding, query: SemanticQuery) -> Lookup:
        vector = pack_vector(encoding.sentence)
        near = await self.replica.search(query.key.group, vector, NEIGHBORS)
        query.add_time("lookup_s")
        if not near:
            return miss("empty-partition")
        if near[0].similarity < self.policy.minimum:
            return miss("below-threshold", near[0].similarity, "threshold")
        prepared = self._parse(query.text, encoding)
        lookup = await self._match(near, prepared, query)
        query.add_time("match_s")
        return lookup

    async def _match(self, near: Sequence[Neighbor], prepared: P, query: SemanticQuery) -> Lookup:
        """Judge the first neighbour that no guard vetoes.

        The store is read at most once, for the neighbours that the hot tier lacks. If all are
        vetoed, the miss reports the nearest neighbour, and the nearest is judged for its label.
        """
        similar = [neighbor for neighbor in near if neighbor.similarity >= self.policy.minimum]
        vetoed: _VetoedNeighbor[P] | None = None
        read: Mapping[str, Entry] | None = None
        hot, deletions = self.replica.hot, self.replica.deletions
        histories = HistoryComparer(
            self.encoder, self.policy, query.key, query.context, self._wait_s(query.context)
        )
        for rank, neighbor in enumerate(similar):
            entry = hot.get(neighbor.id)
            if entry is None:
                if read is None:
                    query.add_time("match_s")
                    ids = [each.id for each in similar[rank:] if each.id not in hot]
                    read = await self.replica.read(ids)
                    query.add_time("lookup_s")
                entry = read.get(neighbor.id)
            if entry is None:
                continue
            ranked = RankedNeighbor(query.context, near, rank)
            refusal, candidate = self._refuse(entry, prepared, query.accept)
            if refusal is None and not await histories.same(entry.key):
                # The texts of such a pair say nothing about its answers: it gives no label.
                refusal, candidate = "history", None
            if refusal is None and candidate is not None:
                lookup = self._judge(entry, prepared, candidate, ranked)
                self.replica.keep(entry, deletions)
                return lookup if vetoed is None or lookup.entry else vetoed.report(lookup)
            vetoed = vetoed or _VetoedNeighbor(entry, ranked, candidate, refusal)
        if vetoed is None:
            return miss("gone")
        if vetoed.candidate is None:
            return miss("veto", vetoed.ranked.neighbor.similarity, vetoed.veto)
        return self._judge(vetoed.entry, prepared, vetoed.candidate, vetoed.ranked, vetoed.veto)

    def _refuse(self, entry: Entry, prepared: P, accept: Accept) -> tuple[str | None, P | None]:
        """Return the veto against an entry, if any, and the entry's parse if it may be used."""
        refusal = accept(entry)
        if refusal is not None:
            return refusal, None
        if entry.evidence_version != self.policy.version:
            return "evidence-version", None
        try:
            candidate = self.policy.unpack(entry.evidence)
        except (msgspec.DecodeError, ValueError):
            return "evidence-damaged", None
        return self.policy.veto(prepared, candidate), candidate

    def _judge(
        self,
        entry: Entry,
        prepared: P,
        candidate: P,
        ranked: RankedNeighbor,
        veto: str | None = None,
    ) -> Lookup:
        verdict = self.policy.judge(prepared, candidate, ranked, veto)
        pair = UnlabelledPair(domain=ranked.context.domain, entry=entry, verdict=verdict)
        similarity = verdict.similarity
        if verdict.serve:
            return Lookup(outcome=Outcome.SEMANTIC, entry=entry, similarity=similarity, pair=pair)
        reason = "below-threshold" if verdict.veto == "threshold" else "veto"
        return miss(reason, similarity, verdict.veto, pair)


@dataclass(slots=True, eq=False)
class SemanticQuery:
    """One semantic lookup: its key, what may answer it, and the time that each part took."""

    key: CacheKey
    accept: Accept
    context: MatchContext
    spent: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by the field of ``Lookup`` that reports them."""
    _counted_until: float = field(default_factory=time.perf_counter)

    @property
    def text(self) -> str:
        """The text that is compared by meaning."""
        return self.key.query or ""

    def add_time(self, name: str) -> None:
        """Add the time since the last call, or since the start, to a field."""
        now = time.perf_counter()
        self.spent[name] += now - self._counted_until
        self._counted_until = now


class _VetoedNeighbor(NamedTuple, Generic[P]):
    """The nearest neighbour with a veto. ``candidate`` is None if its parse may not be used."""

    entry: Entry
    ranked: RankedNeighbor
    candidate: P | None
    veto: str | None

    def report(self, judged: Lookup) -> Lookup:
        """Return a miss with this neighbour's reason and the label's pair of ``judged``."""
        return miss("veto", self.ranked.neighbor.similarity, self.veto, judged.pair)


def miss(
    reason: str,
    similarity: float | None = None,
    veto: str | None = None,
    pair: UnlabelledPair | None = None,
) -> Lookup:
    """Return a miss and its reason."""
    return Lookup(outcome=Outcome.MISS, reason=reason, similarity=similarity, veto=veto, pair=pair)


@dataclass(slots=True, eq=False)
class HistoryComparer(Generic[P]):
    """Compares the histories of conversations for one lookup: words first, then encodings.

    All comparisons together wait at most ``left_s`` for encodings.
    """

    encoder: PromptEncoder
    policy: MatchPolicy[P]
    key: CacheKey
    context: MatchContext
    left_s: float
    left: int = MOST_ENCODINGS

    async def same(self, other: CacheKey) -> bool:
        """Tell whether the other key's history means the same. Raises EncoderError."""
        if other.partition == self.key.partition:
            return True
        found = self.policy.compare(self.key.history, other.history, self.context.max_error)
        if found.conflict is not None:
            return False
        began = anyio.current_time()
        try:
            with anyio.move_on_after(max(0.0, self.left_s)):
                for turn in found.unmatched:
                    if not await self._has_counterpart(turn):
                        return False
                return True
            return False
        finally:
            self.left_s -= anyio.current_time() - began

    async def _has_counterpart(self, turn: UnmatchedTurn) -> bool:
        """Tell whether one of a turn's counterparts means the same."""
        self.left -= 1 + len(turn.counterparts)
        if self.left < 0:
            return False
        tenant = self.context.tenant
        mine = await self.encoder.encode(turn.text, tenant=tenant)
        parsed = self.policy.prepare(turn.text, mine)
        for text in turn.counterparts:
            theirs = await self.encoder.encode(text, tenant=tenant)
            if not (mine.complete and theirs.complete):
                continue
            if float(mine.sentence @ theirs.sentence) < LEAST_SIMILARITY:
                continue
            if self.policy.reworded(parsed, self.policy.prepare(text, theirs)):
                return True
        return False
