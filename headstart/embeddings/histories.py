"""Whether two conversations, before their last question, came to the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

import anyio

from headstart.interfaces import P

if TYPE_CHECKING:
    from headstart.decisions import Terms, Unsaid
    from headstart.embeddings.similar import PromptEncoder
    from headstart.interfaces import MatchPolicy
    from headstart.types import CacheKey

LEAST_SIMILARITY = 0.90
"""Of a turn and its counterpart in other words."""
MOST_ENCODINGS = 12
"""Turns encoded for one lookup; past it, histories count as different."""


class Histories(Generic[P]):
    """Compares histories for one lookup: by words, then reworded turns by their encodings.

    All its comparisons together wait at most ``max_wait_s`` for encodings.
    """

    def __init__(
        self,
        encoder: PromptEncoder,
        policy: MatchPolicy[P],
        key: CacheKey,
        terms: Terms,
        *,
        max_wait_s: float,
    ) -> None:
        self._encoder = encoder
        self._policy = policy
        self._key = key
        self._terms = terms
        self._left_s = max_wait_s
        self._left = MOST_ENCODINGS

    async def same(self, other: CacheKey) -> bool:
        """Tell whether the other key's history means the same. Raises EncoderError."""
        if other.partition == self._key.partition:
            return True
        found = self._policy.compare(self._key.history, other.history, self._terms.max_error)
        if found.conflict is not None:
            return False
        began = anyio.current_time()
        try:
            with anyio.move_on_after(max(0.0, self._left_s)):
                for turn in found.unsaid:
                    if not await self._said(turn):
                        return False
                return True
            return False
        finally:
            self._left_s -= anyio.current_time() - began

    async def _said(self, turn: Unsaid) -> bool:
        """Tell whether one of a turn's counterparts means the same."""
        self._left -= 1 + len(turn.counterparts)
        if self._left < 0:
            return False
        tenant = self._terms.tenant
        mine = await self._encoder.encode(turn.text, tenant=tenant)
        parsed = self._policy.prepare(turn.text, mine)
        for text in turn.counterparts:
            theirs = await self._encoder.encode(text, tenant=tenant)
            if not (mine.complete and theirs.complete):
                continue
            similarity = float(mine.sentence @ theirs.sentence)
            if similarity < LEAST_SIMILARITY:
                continue
            if self._policy.reworded(parsed, self._policy.prepare(text, theirs)):
                return True
        return False
