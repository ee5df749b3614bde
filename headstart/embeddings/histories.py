"""Compares the histories of two conversations: words first, then encodings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol

import anyio

from headstart.interfaces import P

if TYPE_CHECKING:
    from headstart.decisions import Encoding, MatchContext, UnmatchedTurn
    from headstart.interfaces import MatchPolicy
    from headstart.types import CacheKey

LEAST_SIMILARITY = 0.90
"""The lowest similarity of a turn and its counterpart that may mean the same."""
MOST_ENCODINGS = 12
"""The number of turns that one lookup may encode. With more turns, histories count as different."""


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
