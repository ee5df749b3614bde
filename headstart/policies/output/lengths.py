"""How long answers are, by route and model, learned online: what limits on them rest on."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from headstart.policies.routing.quantiles import Bins, Quantiles

FORMAT = 1
ENOUGH = 500
"""Answers before a limit is drawn from them: five lie beyond their p99."""
GUARD_SHARE = 0.99
GUARD_FACTOR = 1.5
TIGHT_SHARE = 0.95
LEAST_LIMIT = 64
"""A shorter limit has nothing to save."""
_HALF_LIFE = 5000.0
"""Answers after which an old one counts half."""
_TOKENS = 1e-3
"""``Quantiles`` reaches from a thousandth to 600: from one token to 600,000."""
_MOST_KEYS = 256

Budget: TypeAlias = Literal["guard", "tight"] | int
"""How an answer's limit is found; a number is the limit."""


class Key(NamedTuple):
    """Whose answers they are: a route's, of one model."""

    place: str
    model: str


class _Saved(msgspec.Struct, array_like=True):
    key: Key
    seen: int
    bins: Bins


class _Head(msgspec.Struct):
    format: int


class _Snapshot(_Head):
    lengths: list[_Saved]


class _Learned:
    __slots__ = ("lengths", "refused", "seen")

    def __init__(self) -> None:
        self.lengths = Quantiles(_HALF_LIFE)
        self.seen = 0
        self.refused = False


class Lengths:
    """Lengths in tokens, reasoning included, in bounded memory: keys long unused leave."""

    def __init__(self) -> None:
        self._learned: OrderedDict[Key, _Learned] = OrderedDict()

    def add(self, key: Key, tokens: int) -> None:
        """Learn the length of an answer that came to its own end: a runaway's tells nothing."""
        learned = self._of(key)
        learned.seen += 1
        learned.lengths.add(tokens * _TOKENS, learned.seen)

    def refuse(self, key: Key) -> None:
        """An upstream takes no such limit: draw none any more, until the next start."""
        self._of(key).refused = True

    def limit(self, key: Key, budget: Budget) -> int | None:
        """Return how long an answer may be, or None while too little is known."""
        learned = self._learned.get(key)
        if learned is not None and learned.refused:
            return None
        if isinstance(budget, int):
            return budget
        if learned is None or learned.seen < ENOUGH:
            return None
        share, factor = (TIGHT_SHARE, 1.0) if budget == "tight" else (GUARD_SHARE, GUARD_FACTOR)
        length = learned.lengths.quantile(share) or 0.0
        return max(LEAST_LIMIT, math.ceil(factor * length / _TOKENS))

    def saved(self) -> bytes:
        """Return a snapshot of what was learned."""
        rows = [
            _Saved(key, each.seen, each.lengths.saved(each.seen))
            for key, each in self._learned.items()
            if each.seen
        ]
        return msgspec.msgpack.encode(_Snapshot(FORMAT, rows))

    def load(self, data: bytes) -> bool:
        """Take a snapshot over; False where it is not one of this version."""
        try:
            if msgspec.msgpack.decode(data, type=_Head).format != FORMAT:
                return False
            rows = msgspec.msgpack.decode(data, type=_Snapshot).lengths
            learned = {each.key: _restored(each) for each in rows}
        except (msgspec.DecodeError, ValueError):
            return False
        self._learned.update(learned)
        return True

    def _of(self, key: Key) -> _Learned:
        learned = self._learned.get(key)
        if learned is None:
            learned = self._learned[key] = _Learned()
            if len(self._learned) > _MOST_KEYS:
                self._learned.popitem(last=False)
        else:
            self._learned.move_to_end(key)
        return learned


def _restored(saved: _Saved) -> _Learned:
    learned = _Learned()
    learned.seen = saved.seen
    learned.lengths.load(saved.bins, saved.seen)
    return learned
