"""The bounded tier of recently used entries in memory: what the event loop may read at once."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headstart.types import Entry

ENTRY_OVERHEAD = 1600
"""Bytes that an entry's objects and its places in the tables take beyond its encoded length."""


class Held(NamedTuple):
    entry: Entry
    size: int


class HotTier:
    """Entries by id and by exact key, the least recently used leaving first.

    ``max_bytes`` bounds an estimate, true to some 5 %. An expired entry is never returned;
    ``clock`` gives Unix seconds. An entry that alone exceeds the bound, or that no store could
    encode, is not kept. Not thread-safe: it belongs to the loop.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float]) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._held: OrderedDict[str, Held] = OrderedDict()
        self._by_exact: dict[str, str] = {}
        self._bytes = 0
        self._encoder = msgspec.msgpack.Encoder()

    @property
    def bytes(self) -> int:
        """Estimated bytes of all entries held."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, id: object) -> bool:
        return id in self._held

    def put(self, entry: Entry) -> None:
        """Hold an entry as the most recently used; it replaces its id and its exact key."""
        held = self._held.get(entry.id)
        if held is not None and held.entry is entry:
            self._held.move_to_end(entry.id)
            return
        self.discard((entry.id, self._by_exact.get(entry.key.exact, "")))
        size = self._size(entry)
        if size is None or size > self._max_bytes:
            return
        self._held[entry.id] = Held(entry, size)
        self._by_exact[entry.key.exact] = entry.id
        self._bytes += size
        while self._bytes > self._max_bytes:
            self.discard((next(iter(self._held)),))

    def find(self, exact: str) -> Entry | None:
        """Return the live entry under an exact key, now the most recently used."""
        id = self._by_exact.get(exact)
        if id is None or (entry := self.get(id)) is None:
            return None
        self._held.move_to_end(id)
        return entry

    def get(self, id: str) -> Entry | None:
        """Return the live entry of an id; its place among the recently used stays."""
        held = self._held.get(id)
        if held is None:
            return None
        if held.entry.expires is not None and held.entry.expires <= self._clock():
            self.discard((id,))
            return None
        return held.entry

    def discard(self, ids: Iterable[str]) -> None:
        """Forget ids; unknown ones are ignored."""
        for id in ids:
            held = self._held.pop(id, None)
            if held is not None:
                del self._by_exact[held.entry.key.exact]
                self._bytes -= held.size

    def clear(self) -> None:
        """Forget all."""
        self.discard(tuple(self._held))

    def _size(self, entry: Entry) -> int | None:
        try:
            return len(self._encoder.encode(entry)) + ENTRY_OVERHEAD
        except (OverflowError, RecursionError, TypeError, ValueError):
            return None
