"""Old tool results cleared in epochs: rarely, and only when the rewritten prefix pays for itself.

Removing R old tokens that S others follow costs the cached price of those once and saves R with
each later request: it pays after about 11.5 * S / R requests at usual prices. So results are
cleared together when they are many, and the same ones stay cleared until the next time. When that
is follows from the messages alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.compression.tokens import CHARS_PER_TOKEN

if TYPE_CHECKING:
    from collections.abc import Sequence

KEPT = 3
"""Results that stay in sight: the latest."""
_MIN_TOKENS = 1500
_MIN_SHARE = 0.3
"""Of the tokens that the provider must read again."""


def results_to_clear(sizes: Sequence[int], clearable: Sequence[bool]) -> frozenset[int]:
    """Return the numbers of messages whose text is cleared by now.

    ``sizes`` are characters of each message, ``clearable`` says which are tool results that may
    go. What is cleared for some messages is cleared for more messages too.
    """
    cleared: set[int] = set()
    waiting: list[int] = []
    for number in range(len(sizes)):
        if not clearable[number]:
            continue
        waiting.append(number)
        old = waiting[:-KEPT]
        if not old:
            continue
        removed = sum(sizes[one] for one in old)
        again = sum(sizes[old[0] : number + 1]) - removed
        if removed >= max(_MIN_TOKENS * CHARS_PER_TOKEN, _MIN_SHARE * again):
            cleared.update(old)
            waiting = waiting[-KEPT:]
    return frozenset(cleared)
