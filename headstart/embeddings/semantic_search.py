"""The semantic lookup: finds the stored entry whose prompt means the same, or gives a miss.

The steps of ``SemanticSearch.find``:

1. **Sketch.** Compare the sketch of the question with those of the stored entries, which is cheap.
   If the nearest one is below the gate (``policies/gate.py``), it is a miss, and nothing is encoded
   (``_pass_gate``).
2. **Encode** the question, and a few near entries that have no encoding yet (``_encode``,
   ``_encode_near``).
3. **Compare** the encodings with the question's: ``ComparedNeighbors``, of the whole group, and for
   a conversation also of the entries with an equal history.
4. **Judge** the most similar entries, one after the other, until one has no veto (``_match``). The
   policy's verdict on this one makes it a hit or a miss.
5. If it is a miss, and a near entry is on its way into the index, wait for this entry and search
   once more (``_arrives``).

For example, "how can I open an account" has a sketch near those of 40 entries. A guard vetoes the
nearest by the encodings, "how can I close an account". The second, "how do I open an account", has
no veto, and the policy serves it.

An encoder without a table of sketches encodes each question, and the index compares the encodings
(``docs/decisions/0038-sketches-before-the-encoder.md``).

======================  ===========================================================================
reason of a miss        meaning
======================  ===========================================================================
``exact-only``          there is no encoder, or the request has no text to compare
``empty-partition``     nothing comparable is stored, or nothing was stored in time
``encoder-busy``        the encoding did not come in time
``too-long``            the prompt exceeds the encoder's limit
``unknown-words``       the encoder does not know a word or a character of the prompt
``below-threshold``     the best neighbour is not similar enough; without a similarity: no sketch
                        was near enough to encode the question
``unencoded``           a nearer entry was not encoded yet
``veto``                ``Lookup.veto`` stopped the best neighbour: a guard, the domain's rule or
                        the caller's refusal; without a similarity: the domain serves nothing now,
                        so the question was not compared
``gone``                all similar entries have left the store
``STAGE-error``         ``encoder``, ``index`` or ``store`` failed; observers see StageFailed
======================  ===========================================================================
"""

from __future__ import annotations

import asyncio
import random
import time
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import compress, filterfalse, repeat
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeAlias

import anyio
import msgspec

from headstart.decisions import (
    Gate,
    Lookup,
    Neighbor,
    Outcome,
    RankedNeighbor,
    UnlabelledPair,
)
from headstart.embeddings.entry_encoder import EntryEncoder, HistoryComparer, PromptEncoder
from headstart.embeddings.index import nearest_rows, pack_vector, unpack_row
from headstart.embeddings.replica import Replica, report_failure
from headstart.errors import StageError
from headstart.interfaces import MatchPolicy, P
from headstart.observe import Gated, GateOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from headstart.decisions import Encoding, MatchContext
    from headstart.types import CacheKey, Entry

    Refuse: TypeAlias = Callable[[Entry], str | None]
    """Returns why an entry may not serve this request; None: it may."""
    _Arrivals: TypeAlias = dict[asyncio.Event, bytes | NDArray[np.float32] | None]
    """The sketches of entries on their way: rows, or f32[d] once they were compared. The event of
    an entry is set as soon as the entry has come."""

NEIGHBORS = 256
"""The number of nearest entries that a lookup fetches by their sketches, to compare their
encodings. The comparison costs a fiftieth of an encoding. With 32 entries there were 5 % fewer
hits."""
MOST_JUDGED = 8
"""The number of neighbours that the guards read, the most similar first."""
ENCODED_AT_ONCE = 2
"""The number of stored entries that are encoded while the lookup waits."""
ENCODED_NEAR = 8
"""The number of stored entries near a question that are encoded later, in idle time."""
ANY_QUESTION = Gate(least=0.0)
_GATED = {outcome: Gated(outcome=outcome) for outcome in GateOutcome}
_ID_OF, _SIMILARITY_OF = attrgetter("id"), attrgetter("similarity")
"""For ``map`` and ``bisect``: a lookup has hundreds of neighbours, and a loop in Python is
slower."""


@dataclass(slots=True, eq=False)
class SemanticSearch(Generic[P]):
    """Searches the neighbours of a prompt and lets the policy judge them, the best first."""

    encoder: PromptEncoder
    entries: EntryEncoder[P]
    policy: MatchPolicy[P]
    replica: Replica
    max_wait_s: float
    draw: Callable[[], float] = random.random
    _expected: dict[str, _Arrivals] = field(default_factory=dict)
    """By group: the entries on their way into the index."""

    # --- entries on their way into the index -----------------------------------------------------

    def expect(self, key: CacheKey, tenant: str) -> Callable[[], None]:
        """Let lookups of a group wait for an entry until the returned function is called."""
        arrival, group = asyncio.Event(), key.group
        sketch = None if key.query is None else self.entries.sketch(key.query, tenant)
        self._expected.setdefault(group, {})[arrival] = sketch

        def arrived() -> None:
            arrival.set()
            expected = self._expected.get(group, {})
            expected.pop(arrival, None)
            if not expected:
                self._expected.pop(group, None)

        return arrived

    # --- lookups ---------------------------------------------------------------------------------

    async def find(
        self,
        key: CacheKey,
        refuse: Refuse,
        context: MatchContext,
        max_wait: Callable[[], float] | None = None,
    ) -> Lookup:
        """Return the nearest entry that may answer, or a miss. Never raises the errors of stages.

        ``key.query`` is the text that is compared by meaning. ``refuse`` returns why an entry may
        not answer this request. ``max_wait`` returns the longest wait for the question's encoding
        in seconds; it is called only if the question is encoded. If a stage fails, observers get
        the failure, and the lookup is a miss.
        """
        group = key.group
        if not self.replica.index.size(group) and group not in self._expected:
            return miss("empty-partition")
        query = SemanticQuery(
            key, group, key.query or "", refuse, context, asyncio.get_running_loop().time(),
            self.max_wait_s, max_wait,
        )  # fmt: skip
        try:
            lookup = await self._search(query)
            # Only a miss can become a hit, and only if another entry could be one.
            is_final = lookup.entry or query.refused or query.gate.refusal
            waiting = None if is_final else self._expected.get(group)
            if waiting and await self._arrives(waiting, query):
                lookup = await self._search(query)
        except StageError as error:
            query.add_time("encode_s" if error.stage == "encoder" else "lookup_s")
            report_failure(self.replica.observers, error)
            lookup = miss(f"{error.stage}-error")
        self._report_gate(query, lookup)
        return msgspec.structs.replace(lookup, **query.spent)

    async def _arrives(self, waiting: _Arrivals, query: SemanticQuery) -> bool:
        """Wait for near entries on their way into the index; tell whether one has come."""
        expected = self._near_arrivals(waiting, query)
        if not expected:
            return False
        with anyio.CancelScope(deadline=query.began + query.longest_s):
            for arrival in expected:
                await arrival.wait()
        query.add_time("encode_s")
        return any(arrival.is_set() for arrival in expected)

    def _near_arrivals(self, waiting: _Arrivals, query: SemanticQuery) -> list[asyncio.Event]:
        """Return the events of the entries on their way that are near the question.

        Their sketches reach the gate. An entry without a sketch counts as near.
        """
        if query.sketch is None:
            return [*waiting]
        own, near = unpack_row(query.sketch), []
        for arrival, row in waiting.items():
            sketch = waiting[arrival] = unpack_row(row) if isinstance(row, bytes) else row
            if sketch is None or own.dot(sketch) >= query.gate.least:
                near.append(arrival)
        return near

    async def _search(self, query: SemanticQuery) -> Lookup:
        """Search the entries that are in the index now."""
        near: Sequence[Neighbor] | None = None
        vectors: Mapping[str, bytes] | None = None
        if self.replica.table is not None:
            found = await self._near_sketches(query)
            if isinstance(found, Lookup):
                return found
            near, vectors = found, self.replica.vectors
        encoding = await self._encode(query)
        if encoding is None:
            return query.miss("encoder-busy")
        if not encoding.complete:
            return query.miss("unknown-words" if encoding.unknown_words else "too-long")
        vector = pack_vector(encoding.sentence)
        if near is None:  # there are no sketches, so the index compares the encodings
            near = await self._near(query.group, vector, query)
        if not near:
            return miss("empty-partition")
        lists = [near]
        if query.key.conversation is not None:
            # Many conversations end with the same words, so the nearest of the group may all have
            # other histories.
            equal = await self._near(query.key.partition, query.sketch or vector, query)
            lists = [equal, near] if equal else lists
        compared = []
        for each in lists:
            await self._encode_near(each, query)
            compared.append(ComparedNeighbors.of(each, vectors, vector, query.priority))
        tenant, task = query.context.tenant, query.key.task
        prepared = self.entries.parse(query.text, encoding, tenant, task)
        lookup = await self._match(compared, prepared, query)
        query.add_time("match_s")
        return lookup

    async def _near(self, partition: str, row: bytes, query: SemanticQuery) -> Sequence[Neighbor]:
        """Return the nearest entries of a partition or group: by sketches, if there are some."""
        near = await self.replica.search(partition, row, NEIGHBORS)
        query.add_time("lookup_s")
        return near

    # --- the gate --------------------------------------------------------------------------------

    async def _near_sketches(self, query: SemanticQuery) -> Sequence[Neighbor] | Lookup:
        """Return the entries with the nearest sketches, or a miss without an encoding."""
        sketch = await self._pass_gate(query)
        if isinstance(sketch, Lookup):
            return sketch
        near = await self._near(query.group, sketch, query)
        if not near:
            return miss("empty-partition")
        query.priority = near[0].similarity
        return near

    async def _pass_gate(self, query: SemanticQuery) -> bytes | Lookup:
        """Return the question's sketch, or a miss if the nearest stored one is below the gate.

        A small share of the questions below the gate passes nevertheless (``Gate.share``). If no
        question can be a hit now, only a share of the questions is compared (``Gate.passing``). Of
        the others, which are skipped, only those pass that may have the same words as an entry.
        """
        query.sketch = sketch = self.entries.sketch(query.text, query.context.tenant)
        if sketch is None:
            too_long = self.entries.is_too_long(query.text)
            return query.miss("too-long" if too_long else "unknown-words")
        if query.gated is None:
            query.gate = self.policy.gate(query.context)
        gate = query.gate
        is_skipped = gate.passing < 1 and self.draw() >= gate.passing
        least = max(gate.least, gate.same_words_from) if is_skipped else gate.least
        nearest: Sequence[Neighbor] = ()
        if least < inf:
            nearest = await self.replica.search(query.group, sketch, 1, least)
            query.add_time("lookup_s")
        if nearest and nearest[0].similarity >= least:
            query.gated = GateOutcome.PASSED
        elif is_skipped:
            query.gated = GateOutcome.SKIPPED
            return query.miss("veto", gate.refusal)
        elif not nearest and not self.replica.index.size(query.group):
            return miss("empty-partition")
        elif query.gated is None:  # a second search keeps the draw of the first one
            is_sampled = self.draw() * gate.passing < gate.share
            query.gated = GateOutcome.SAMPLED if is_sampled else GateOutcome.STOPPED
        return BELOW_GATE if query.gated is GateOutcome.STOPPED else sketch

    def _report_gate(self, query: SemanticQuery, lookup: Lookup) -> None:
        """Tell the policy and the observers whether the question was worth its encoding."""
        gated = query.gated
        if gated is None:
            return
        served, sampled = lookup.entry is not None, gated is GateOutcome.SAMPLED
        if query.encoding is not None:
            is_near = lookup.pair is not None or lookup.reason != "below-threshold"
            judged = is_near and not query.vetoed
            self.policy.note_encoded(
                query.context,
                query.priority,
                query.gate,
                sampled=sampled,
                served=served,
                judged=judged,
            )
        seen = _GATED[gated]
        if served and sampled:  # this hit stands for those that were not drawn
            seen = Gated(outcome=GateOutcome.FOUND, stands_for=1 / query.gate.share)
        self.replica.observers.notify(seen)

    # --- encodings -------------------------------------------------------------------------------

    async def _encode(self, query: SemanticQuery) -> Encoding | None:
        """Return the question's encoding, or None if it does not come in time."""
        if query.encoding is None:
            with anyio.CancelScope(deadline=query.began + query.wait_s()):
                query.encoding = await self.encoder.encode(
                    query.text, tenant=query.context.tenant, priority=query.priority
                )
            query.add_time("encode_s")
            if query.encoding is None:
                self.entries.note_busy(query.text)
        return query.encoding

    async def _encode_near(self, near: Sequence[Neighbor], query: SemanticQuery) -> None:
        """Encode the nearest entries without a vector: a few of them now, some more later."""
        ids = self._unencoded(near, query)
        if not ids:
            return
        now = ids[:ENCODED_AT_ONCE]
        unknown = [id for id in now if self.replica.hot.get(id) is None]
        read = await self.replica.read(unknown) if unknown else {}
        query.add_time("lookup_s")
        for id in now:
            entry = self.replica.hot.get(id) or read.get(id)
            if entry is not None:
                await self._encode_entry(entry, query)
        self.entries.want(self._unencoded(near, query)[:ENCODED_NEAR], query.context.tenant)

    def _unencoded(self, near: Sequence[Neighbor], query: SemanticQuery) -> list[str]:
        """Return the ids of near entries that have no vector, the nearest first.

        Near are the entries whose sketches reach the gate, and the nearest one.
        """
        if query.sketch is None:
            return []
        least = min(query.gate.least, near[0].similarity)
        too_far = bisect_left(near[::-1], least, key=_SIMILARITY_OF)
        reaching = near[: len(near) - too_far]
        unencoded = filterfalse(self.replica.vectors.__contains__, map(_ID_OF, reaching))
        return [id for id in unencoded if id in self.replica.index]

    async def _encode_entry(self, entry: Entry, query: SemanticQuery) -> Entry | None:
        """Encode an entry; return it with its parse. None: it was not encoded, or not in time."""
        if query.encodings_left <= 0:
            return None
        query.encodings_left -= 1
        encoded = None
        with anyio.CancelScope(deadline=query.began + query.wait_s()):
            encoded = await self.entries.encode(
                entry, query.context.tenant, priority=query.priority
            )
        query.add_time("encode_s")
        return encoded

    async def _parsed(self, entry: Entry, query: SemanticQuery) -> Entry | None:
        """Return an entry with a parse that the policy can read; None if it is not made in time."""
        if entry.key.query is None or self.entries.is_encoded(entry):
            return entry
        encoded = await self._encode_entry(entry, query)
        if encoded is None:
            self.entries.want((entry.id,), query.context.tenant)
        return encoded

    # --- the decision ----------------------------------------------------------------------------

    async def _match(
        self, compared: Sequence[ComparedNeighbors], prepared: P, query: SemanticQuery
    ) -> Lookup:
        """Let the policy judge the nearest neighbour that has no veto; return a hit or a miss.

        A miss reports the veto of the nearest neighbour; a neighbour with an equal history comes
        before the others. For example, a guard vetoes the first neighbour, and the second one is
        not similar enough. Then the miss has the veto of the first one, and the pair to label is
        that of the second one. If all neighbours have a veto, the reported one is judged
        nevertheless, so that it can get a label. No neighbour is judged while a nearer one is not
        encoded.
        """
        unencoded = [self._unencoded(each.near, query) for each in compared]
        similar = most_similar(compared, self.policy.minimum)
        if not similar and not any(unencoded):
            best = compared[-1].encoded[0][0] if compared[-1].encoded else None
            return miss("below-threshold", best, "threshold")
        read = ReadAhead(self.replica, [each.id for each in similar], query)
        histories = HistoryComparer(
            self.encoder, self.policy, query.key, query.context, query.wait_s()
        )
        deletions = self.replica.deletions
        reported: _ReadNeighbor[P] | None = None
        for similarity, id, place, number in similar:
            entry = await read.entry(id)
            if entry is None:
                continue  # it has left the store
            nearer_unencoded = compared[number].any_nearer(unencoded[number], id)
            parsed = None if nearer_unencoded else await self._parsed(entry, query)
            if parsed is None:
                return miss("unencoded", similarity)
            veto, candidate = await self._refuse(parsed, prepared, query.refuse, histories)
            equal_history = parsed.key.partition == query.key.partition
            ranked = compared[number].ranked(query.context, place)
            neighbor = _ReadNeighbor(parsed, ranked, candidate, veto, equal_history)
            if reported is None or (equal_history and not reported.equal_history):
                reported = neighbor
            if veto is None:
                lookup = self._judge(neighbor, prepared)
                self.replica.keep(parsed, deletions)
                return lookup if lookup.entry else reported.report(lookup)
        if reported is None:
            return miss("unencoded" if any(unencoded) else "gone")
        query.vetoed = reported.candidate is not None
        return self._judge(reported, prepared)

    async def _refuse(
        self, entry: Entry, prepared: P, refuse: Refuse, histories: HistoryComparer[P]
    ) -> tuple[str | None, P | None]:
        """Return the veto against an entry, and the parse of its prompt.

        The first is None if there is no veto, the second if the parse may not be used.
        """
        refusal = refuse(entry)
        if refusal is not None:
            return refusal, None
        if entry.evidence_version != self.policy.parse_version:
            return "evidence-version", None
        try:
            candidate = self.policy.unpack(entry.evidence)
        except (msgspec.DecodeError, ValueError):
            return "evidence-damaged", None
        veto = self.policy.veto(prepared, candidate)
        if veto is None and not await histories.same(entry.key):
            # The two last questions alone say nothing about the answers, so there is no label.
            return "history", None
        return veto, candidate

    def _judge(self, neighbor: _ReadNeighbor[P], prepared: P) -> Lookup:
        """Return a hit or a miss by the policy's verdict.

        If the neighbour's parse may not be used, there is no verdict: the miss has the veto.
        """
        entry, ranked, candidate, veto, _ = neighbor
        if candidate is None:
            return miss("veto", ranked.neighbor.similarity, veto)
        verdict = self.policy.judge(prepared, candidate, ranked, veto)
        pair = UnlabelledPair(domain=ranked.context.domain, entry=entry, verdict=verdict)
        similarity = verdict.similarity
        if verdict.serves:
            return Lookup(outcome=Outcome.SEMANTIC, entry=entry, similarity=similarity, pair=pair)
        reason = "below-threshold" if verdict.veto == "threshold" else "veto"
        return miss(reason, similarity, verdict.veto, pair)


# --- the values of one lookup ---------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class SemanticQuery:
    """One semantic lookup: its key, its conditions, and the time of each part."""

    key: CacheKey
    group: str
    """The name of the entries that may be compared with the question: ``CacheKey.group``."""
    text: str
    """The text that is compared by meaning."""
    refuse: Refuse
    context: MatchContext
    began: float
    """The loop's time at the start."""
    longest_s: float
    """The cache's own limit of a wait, in seconds."""
    max_wait: Callable[[], float] | None
    """Returns the limit for this question. It is called late: most are never encoded."""
    priority: float = 0.0
    """The similarity of the nearest sketch: the most promising questions are encoded first."""
    sketch: bytes | None = None
    gate: Gate = ANY_QUESTION
    """The gate of the question, which is known as soon as the question has a sketch. It does not
    change after its decision, because a hit of a sampled question counts by the share of its
    draw."""
    encoding: Encoding | None = None
    encodings_left: int = ENCODED_AT_ONCE
    """The number of entries that may still be encoded while the request waits."""
    gated: GateOutcome | None = None
    """The gate's decision about the question; None: it did not come to the gate."""
    vetoed: bool = False
    """Guards vetoed all neighbours."""
    refused: bool = False
    """The question itself cannot be compared with any entry."""
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds by the field of ``Lookup`` that reports them."""
    _counted_until: float = field(default_factory=time.perf_counter)

    def wait_s(self) -> float:
        """Return the longest wait for the question's encoding, and for those of its history."""
        return self.longest_s if self.max_wait is None else self.max_wait()

    def miss(self, reason: str, veto: str | None = None) -> Lookup:
        """Return a miss that follows from the question or its domain: no entry can change it."""
        self.refused = True
        return miss(reason, veto=veto)

    def add_time(self, name: str) -> None:
        """Add the time since the last call, or since the start, to a field."""
        now = time.perf_counter()
        self.spent[name] = self.spent.get(name, 0.0) + now - self._counted_until
        self._counted_until = now


class ComparedNeighbors(NamedTuple):
    """Neighbours of a question, and the similarity of each neighbour that is encoded."""

    near: Sequence[Neighbor]
    """The most similar first: by their sketches, or by their encodings without a table."""
    encoded: list[tuple[float, int]]
    """The similarity and the rank in ``near`` of each encoded neighbour, the most similar first.

    With a table of sketches these are ``MOST_JUDGED`` at most."""
    sketch: float | None = None
    """The similarity of the nearest sketch; None: the encoder has no table."""

    @classmethod
    def of(
        cls,
        near: Sequence[Neighbor],
        vectors: Mapping[str, bytes] | None,
        vector: bytes,
        sketch: float,
    ) -> ComparedNeighbors:
        """Compare the encodings of neighbours with the question's, ``vector``.

        ``vectors`` has the known encodings, by id. None: there is no table of sketches, so the
        index has compared the encodings. ``sketch`` is the similarity of the nearest sketch of the
        group.
        """
        if vectors is None:
            return cls(near, [(each.similarity, rank) for rank, each in enumerate(near)])
        # Loops in C: there are hundreds of neighbours.
        rows = [*map(vectors.get, map(_ID_OF, near), repeat(b""))]
        fits = [*map(len(vector).__eq__, map(len, rows))]
        ranks = [*compress(range(len(rows)), fits)]
        nearest = nearest_rows([*compress(rows, fits)], vector, MOST_JUDGED)
        encoded = [(similarity, ranks[place]) for similarity, place in nearest]
        return cls(near, encoded, sketch)

    def rank_of(self, id: str) -> int:
        """Return the place of a neighbour in ``near``."""
        return next(rank for rank, each in enumerate(self.near) if each.id == id)

    def any_nearer(self, ids: Sequence[str], id: str) -> bool:
        """Tell whether one of ``ids``, which are neighbours with the nearest first, is nearer."""
        return bool(ids) and self.rank_of(ids[0]) < self.rank_of(id)

    def ranked(self, context: MatchContext, place: int) -> RankedNeighbor:
        """Return the question to the policy about one of the nearest encoded neighbours."""
        nearest = [
            Neighbor(id=self.near[rank].id, similarity=similarity)
            for similarity, rank in self.encoded[:MOST_JUDGED]
        ]
        return RankedNeighbor(context, nearest, place, self.sketch)


class SimilarNeighbor(NamedTuple):
    """A neighbour to judge."""

    similarity: float
    id: str
    place: int
    """Its place among the encoded neighbours of its list."""
    number: int
    """The number of its list."""


def most_similar(compared: Sequence[ComparedNeighbors], minimum: float) -> list[SimilarNeighbor]:
    """Return the neighbours to judge, up to ``MOST_JUDGED`` of each list, the most similar first.

    A neighbour of several lists belongs to the first one.
    """
    found = [
        SimilarNeighbor(similarity, each.near[rank].id, place, number)
        for number, each in enumerate(compared)
        for place, (similarity, rank) in enumerate(each.encoded[:MOST_JUDGED])
        if similarity >= minimum
    ]
    if len(compared) == 1:
        return found
    first = {each.id: each for each in reversed(found)}
    return sorted(first.values(), key=lambda each: (-each.similarity, each.number, each.place))


@dataclass(slots=True, eq=False)
class ReadAhead:
    """Returns the entries of ``ids``, which are asked for in this order.

    When the first entry that is not in memory is asked for, all others that are not in memory are
    read from the store, too, in one call.
    """

    replica: Replica
    ids: Sequence[str]
    query: SemanticQuery
    _read: Mapping[str, Entry] | None = None

    async def entry(self, id: str) -> Entry | None:
        """Return an entry, or None if it has left the store. Raises StoreError."""
        entry = self.replica.hot.get(id)
        if entry is not None:
            return entry
        if self._read is None:
            self.query.add_time("match_s")
            rest = self.ids[self.ids.index(id) :]
            wanted = [each for each in rest if self.replica.hot.get(each) is None]
            self._read = await self.replica.read(wanted)
            self.query.add_time("lookup_s")
        return self._read.get(id)


class _ReadNeighbor(NamedTuple, Generic[P]):
    """A neighbour whose entry was read."""

    entry: Entry
    ranked: RankedNeighbor
    candidate: P | None
    """The parse of the entry; None: it may not be used."""
    veto: str | None
    """Why it may not serve; None: the policy decides."""
    equal_history: bool
    """Whether its history equals the question's."""

    def report(self, judged: Lookup) -> Lookup:
        """Return the miss ``judged`` with this neighbour's veto as its reason, if it has one."""
        if self.veto is None:
            return judged
        return miss("veto", self.ranked.neighbor.similarity, self.veto, judged.pair)


def miss(
    reason: str,
    similarity: float | None = None,
    veto: str | None = None,
    pair: UnlabelledPair | None = None,
) -> Lookup:
    """Return a miss and its reason."""
    return Lookup(outcome=Outcome.MISS, reason=reason, similarity=similarity, veto=veto, pair=pair)


BELOW_GATE = miss("below-threshold", veto="threshold")
"""The lookup of a question that is near nothing. Most questions have it, so it is made once."""
