"""Which judged pairs a person's word would help most with: those the rule nearly got wrong."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

import anyio
import anyio.lowlevel

from headstart.decisions import LabelSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.decisions import Label
    from headstart.interfaces import Store
    from headstart.middleware.learning.oversight import Oversight

MOST = 5000
"""The newest pairs among which the doubtful ones are looked for."""
MOST_DOMAINS = 32
"""Learning domains looked at, those with the newest pairs: each must be brought into memory."""
SCORED_AT_ONCE = 100
"""Pairs scored before others get their turn on the loop."""


class Doubt(NamedTuple):
    """A pair and its score now."""

    label: Label
    score: float


class Reviews:
    """The newest pairs whose two answers are stored, and which of them a person has labelled."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._store: Store | None = None
        self._cursor = ""
        self._pairs: OrderedDict[tuple[str, str], Label] = OrderedDict()
        self._reviewed: set[tuple[str, str]] = set()
        self._lock = anyio.Lock()

    async def follow(self, store: Store) -> None:
        """Read the labels written since the last call, at first all. Raises StoreError."""
        async with self._lock:
            if store is not self._store:
                self._store, self._cursor = store, ""
                self._pairs.clear()
                self._reviewed.clear()
            while page := await store.labels(self._cursor):
                for _, label in page:
                    self._note(label)
                self._cursor = page[-1][0]

    def find(self, id: str, entry: str) -> Label | None:
        """Return a pair's newest label, also of one that was reviewed."""
        return self._pairs.get((id, entry))

    def open(self) -> list[Label]:
        """Return the pairs that nobody has reviewed, newest first."""
        pairs = reversed(self._pairs.items())
        return [label for pair, label in pairs if pair not in self._reviewed]

    def drop(self, label: Label) -> None:
        """Forget a pair: one of its answers has left the store."""
        self._pairs.pop((label.id, label.entry), None)
        self._reviewed.discard((label.id, label.entry))

    def _note(self, label: Label) -> None:
        pair = label.id, label.entry
        if label.source is LabelSource.REVIEW:
            if pair in self._pairs:
                self._reviewed.add(pair)
            return
        if not (label.stored and label.features):
            return
        self._pairs[pair] = label
        self._pairs.move_to_end(pair)
        if len(self._pairs) > self._most:
            oldest, _ = self._pairs.popitem(last=False)
            self._reviewed.discard(oldest)


async def most_doubtful(labels: Sequence[Label], oversight: Oversight) -> list[Doubt]:
    """Order pairs, given newest first, by their distance from a decision. Raises StoreError.

    Labels of another policy version are left out: nothing could be learned from them.
    """
    domains = set(list(dict.fromkeys(label.domain for label in labels))[:MOST_DOMAINS])
    found = []
    for number, label in enumerate(labels):
        if number % SCORED_AT_ONCE == 0:
            await anyio.lowlevel.checkpoint()
        if label.domain not in domains:
            continue
        score = await oversight.score(label)
        if score is not None:
            found.append((await oversight.doubt(label), Doubt(label, score)))
    found.sort(key=lambda each: each[0])
    return [doubt for _, doubt in found]
