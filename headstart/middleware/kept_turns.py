"""The turns of kept conversations in memory (``conversations.py`` tells what they are for)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headstart.settings import ConversationSettings

CALLERS_SHARE = 4
"""One caller may use a quarter of the bounds."""
OVERHEAD_BYTES = 512
"""The memory of a kept answer without its texts."""


class KeptTurn(Frozen):
    """One answer, and the input that was sent for it."""

    id: str
    previous: str | None
    """The answer that it follows."""
    input: bytes
    """The items of the request, as a JSON array. No item refers to another one."""
    response: bytes
    """The whole response, as JSON."""
    created: float
    upstream: str
    own: bool
    """Whether the upstream has stored the answer, under this id, for the account that asked."""
    items: tuple[str, ...] = ()
    """The ids of its output items."""
    deleted: bool = False

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return len(self.input) + len(self.response) + OVERHEAD_BYTES * (1 + len(self.items))

    @property
    def is_pointer(self) -> bool:
        """Whether it has the id of an item, and only tells that the item is in ``previous``."""
        return not self.response and not self.deleted

    @property
    def order(self) -> tuple[float, bool]:
        """The last one of two turns with the same id and caller has the higher value."""
        return self.created, self.deleted


@dataclass
class _CallersTurns:
    """The turns of one caller in memory."""

    turns: OrderedDict[str, KeptTurn] = field(default_factory=OrderedDict)
    """By id, the oldest first."""
    by_item: dict[str, str] = field(default_factory=dict)
    """For the id of each output item, the id of its answer."""
    size: int = 0


class TurnMemory:
    """The turns in memory, by caller and id, within bounds.

    If a caller exceeds its share, its oldest turn is dropped. If all callers together exceed the
    bounds, the caller that was silent longest loses its oldest turn.
    """

    def __init__(self, limits: ConversationSettings) -> None:
        self._limits = limits
        self.callers_answers = max(1, limits.max_answers // CALLERS_SHARE)
        """The most answers of one caller."""
        self.callers_bytes = max(1, limits.max_bytes // CALLERS_SHARE)
        """The most bytes of the answers of one caller."""
        self._callers: OrderedDict[str, _CallersTurns] = OrderedDict()
        """By caller; the caller that was active last is the last one."""
        self._holders: dict[str, frozenset[str]] = {}
        """For each id of an answer or an item, the callers that have it."""
        self._entries: dict[str, str] = {}
        """For the id of an answer, the id of its entry in the store."""
        self._ids: dict[str, str] = {}
        """The reverse: for the id of an entry, the id of its answer."""
        self._count = 0
        self._size = 0

    def find(self, owner: str, id: str) -> KeptTurn | None:
        """Return a caller's turn."""
        kept = self._callers.get(owner)
        return None if kept is None else kept.turns.get(id)

    def find_by_item(self, owner: str, id: str) -> KeptTurn | None:
        """Return a caller's turn by the id of one of its output items."""
        kept = self._callers.get(owner)
        return None if kept is None else kept.turns.get(kept.by_item.get(id, ""))

    def holders(self, id: str) -> frozenset[str]:
        """Return the callers that have an answer or an item with this id."""
        return self._holders.get(id, frozenset())

    def put(self, owner: str, turn: KeptTurn) -> None:
        """Keep a turn, unless it alone exceeds the caller's share."""
        if turn.size > self.callers_bytes:
            return
        self.drop(owner, turn.id)
        kept = self._callers.setdefault(owner, _CallersTurns())
        self._callers.move_to_end(owner)
        self._add(owner, kept, turn)
        while len(kept.turns) > self.callers_answers or kept.size > self.callers_bytes:
            self._drop_oldest(owner, kept)
        while self._count > self._limits.max_answers or self._size > self._limits.max_bytes:
            self._drop_oldest(*next(iter(self._callers.items())))

    def drop(self, owner: str, id: str) -> None:
        """Drop a caller's turn, if it is here."""
        kept = self._callers.get(owner)
        if kept is not None and id in kept.turns:
            self._drop(owner, kept, id)

    def note_entry(self, id: str, entry: str) -> None:
        """Note the entry in which the store has the turns with an id."""
        if id in self._holders:
            self._forget_entry(id)
            self._entries[id] = entry
            self._ids[entry] = id

    def entries_of(self, id: str) -> tuple[str, ...]:
        """Return the entry that has the turns with an id, if the store has them."""
        return (self._entries[id],) if id in self._entries else ()

    def ids_of(self, entries: Iterable[str] | None) -> list[str]:
        """Return the ids of the turns in these entries; None: in all entries."""
        if entries is None:
            return list(self._entries)
        return [self._ids[entry] for entry in entries if entry in self._ids]

    def _add(self, owner: str, kept: _CallersTurns, turn: KeptTurn) -> None:
        kept.turns[turn.id] = turn
        kept.by_item.update(dict.fromkeys(turn.items, turn.id))
        self._count += 1
        self._size += turn.size
        kept.size += turn.size
        alone = frozenset((owner,))  # one object for all ids of the turn saves memory
        for id in (turn.id, *turn.items):
            holders = self._holders.setdefault(id, alone)
            if holders is not alone:
                self._holders[id] = holders | alone

    def _drop_oldest(self, owner: str, kept: _CallersTurns) -> None:
        self._drop(owner, kept, next(iter(kept.turns)))

    def _drop(self, owner: str, kept: _CallersTurns, id: str) -> None:
        turn = kept.turns.pop(id)
        self._count -= 1
        self._size -= turn.size
        kept.size -= turn.size
        # Items of equal answers may have the same ids. The items of the newer answer stay.
        gone = [id, *(each for each in turn.items if kept.by_item.get(each) == id)]
        for each in gone:
            kept.by_item.pop(each, None)
            holders = self._holders.pop(each, frozenset()) - {owner}
            if holders:
                self._holders[each] = holders
            else:
                self._forget_entry(each)
        if not kept.turns:
            self._callers.pop(owner, None)

    def _forget_entry(self, id: str) -> None:
        self._ids.pop(self._entries.pop(id, ""), None)
