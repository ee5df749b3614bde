"""Frozen values of a decision: what a match is asked, what it answers, what is learned from it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headstart.types import Entry, Frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray


class Encoding(msgspec.Struct, frozen=True):
    """One prompt, encoded: ``sentence`` f32[d], unit; ``tokens`` f32[n, d]; n ``spans``."""

    sentence: NDArray[np.float32]
    tokens: NDArray[np.float32]
    spans: tuple[tuple[int, int], ...]
    complete: bool
    """False when the prompt exceeded the encoder's limit: never serve it semantically."""


class Neighbor(Frozen):
    id: str
    similarity: float


class Terms(Frozen):
    """What a request asks of a match by meaning, beyond the neighbours themselves."""

    domain: str = ""
    """The learning domain: where what was learned about such matches lives."""
    max_error: float | None = None
    """Share of wrong hits that this request accepts; None: what the policy was set to."""
    principal: str = ""
    """Hash of who asks, whoever else shares the domain: no one may fill its memory alone."""
    tenant: str = ""
    """Hash of who takes turns with others at the encoder, however it divides its requests."""


class Nearby(msgspec.Struct, frozen=True):
    """One neighbour among its peers, as a MatchPolicy is asked about it."""

    terms: Terms
    neighbors: Sequence[Neighbor]
    """All that were found, most similar first."""
    rank: int
    """The place of the one in question."""

    @property
    def neighbor(self) -> Neighbor:
        """The neighbour in question."""
        return self.neighbors[self.rank]


class Unsaid(NamedTuple):
    """A user turn whose words the other user did not use, and turns that may mean the same."""

    text: str
    counterparts: tuple[str, ...]


class Comparison(NamedTuple):
    """What words alone can tell of two histories: what keeps them apart, if anything.

    Without a ``conflict`` they mean the same if, for each of ``unsaid``, one of its counterparts
    does: similar enough, and no guard fires.
    """

    conflict: str | None
    unsaid: tuple[Unsaid, ...] = ()


class Rule(StrEnum):
    """What a verdict rests on."""

    STATIC = "static"
    COLD_START = "cold-start"
    """Too little was learned yet: every guard and a conservative threshold decide."""
    LEARNED = "learned"


class Verdict(Frozen):
    """A MatchPolicy's word on one neighbour.

    ``veto`` names the guard that fired, or else ``threshold``, ``alarm``, ``unlearned`` (nothing
    may be served before enough was learned) or ``unqualified`` (enough was learned, and no
    threshold keeps the promise).
    """

    serve: bool
    similarity: float
    veto: str | None = None
    rule: Rule = Rule.STATIC
    score: float | None = None
    """Log-odds that the answers are the same, less the uncertainty."""
    threshold: float | None = None
    """What ``score`` (by ``Rule.COLD_START`` and ``Rule.STATIC``: ``similarity``) had to reach."""
    features: bytes = b""
    """The policy's view of the pair as fp16, to be learned from; empty when it does not learn."""


class Trial(Frozen):
    """A pair whose label is not known yet: a fresh answer to the query will tell."""

    domain: str
    entry: Entry
    verdict: Verdict


class LabelSource(StrEnum):
    """Where a label comes from."""

    MISS = "miss"
    """The fresh answer of a miss against its neighbour's cached one."""
    AUDIT = "audit"
    """A hit, drawn at random, whose prompt was sent upstream all the same."""
    NULL = "null"
    """An exact hit asked again: a difference is the judge's noise or the answer's age."""
    FEEDBACK = "feedback"
    REVIEW = "review"


class Label(Frozen):
    """One judged pair: the unit of learning. The order of labels in the store is what counts."""

    id: str
    """The request whose answer was judged; its fresh answer's entry, if it was stored."""
    entry: str
    """The neighbour whose answer was, or would have been, served."""
    domain: str
    source: LabelSource
    same: bool | None
    """None: the judge was not sure."""
    at: float
    similarity: float
    version: str = ""
    """The MatchPolicy that made ``features``."""
    features: bytes = b""
    veto: str | None = None
    """The guard that had vetoed the pair."""
    served: bool = False
    stored: bool = False
    """An entry with the fresh answer exists under ``id``."""
    drawn: float = 1.0
    """The probability with which it was labelled at all: a hit is only when drawn for an audit."""
    principal: str = ""
    """Hash of who asked: no one may fill a domain's memory alone."""
    question: str = ""
    """Hash of what was asked, as people's words remember it."""
    pair_only: bool = False
    """A person's "wrong" is about this pair, not about the entry's answer to other rewordings."""


class Outcome(StrEnum):
    """How a request was answered; the value is the ``detail`` of ``Cache-Status`` on a hit."""

    EXACT = "exact"
    SEMANTIC = "semantic"
    JOINED = "joined"
    MISS = "miss"
    BYPASS = "bypass"
    AUDIT = "audit"
    """Our own call, to check a hit; no client waits for it."""


class Lookup(Frozen):
    """The cache's answer for a request. On a miss ``reason``, ``similarity``, ``veto`` say why."""

    outcome: Outcome
    entry: Entry | None = None
    similarity: float | None = None
    veto: str | None = None
    reason: str | None = None
    trial: Trial | None = None
    """The candidate as it was judged; on a miss the one whose label the fresh answer gives."""
    encode_s: float = 0.0
    """Waiting for the encoding, its time in the encoder's queue included."""
    lookup_s: float = 0.0
    """Searching the index and loading candidates."""
    match_s: float = 0.0
    """Parsing the prompt and judging candidates."""
