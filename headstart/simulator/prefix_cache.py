"""A provider's prefix cache: what of a prompt it has read before, counted in whole blocks."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headstart.simulator.chat_request import ChatBody

BLOCK_TOKENS = 128
MINIMUM_TOKENS = 1024
"""Shorter prefixes are never cached, as with OpenAI and Anthropic."""
LIFETIME_S = 300.0
"""Simulated seconds after its last use until a prefix is forgotten."""

_CHARACTERS = 4
"""A simulated prompt token."""
_MOST_BLOCKS = 100_000


class PrefixCache:
    """Remembers the blocks of recent prompts, for each key and model apart."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[bytes, float] = OrderedDict()

    def clear(self) -> None:
        """Forget every prompt."""
        self._blocks.clear()

    def read(self, credential: bytes, chat: ChatBody, at_s: float) -> tuple[int, int]:
        """Return the prompt's tokens that were cached and those that are now, and remember it."""
        marks = list(_marks(credential, chat))
        known = 0
        for mark in marks:
            if at_s - self._blocks.get(mark, -LIFETIME_S) >= LIFETIME_S:
                break
            known += 1
        for mark in marks:
            self._blocks[mark] = at_s
            self._blocks.move_to_end(mark)
        while len(self._blocks) > _MOST_BLOCKS:
            self._blocks.popitem(last=False)
        cached = known * BLOCK_TOKENS
        if cached < MINIMUM_TOKENS:
            cached = 0
        whole = len(marks) * BLOCK_TOKENS
        return cached, whole - cached if whole >= MINIMUM_TOKENS else 0


def _marks(credential: bytes, chat: ChatBody) -> list[bytes]:
    """Return a mark of each whole block that also stands for all blocks before it."""
    text = chat.prompt_text
    size = BLOCK_TOKENS * _CHARACTERS
    running = blake2b(credential + b"\0" + chat.model.encode(), digest_size=16)
    marks = []
    for start in range(0, len(text) - size + 1, size):
        running.update(text[start : start + size].encode("utf-8", "surrogatepass"))
        marks.append(running.digest())
    return marks
