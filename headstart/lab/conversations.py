"""Do two conversations, before their last question, come to the same? As the cache decides it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from headstart.embeddings.histories import LEAST_SIMILARITY, MOST_ENCODINGS

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.decisions import Unsaid
    from headstart.interfaces import MatchPolicy
    from headstart.lab.stream import Prepared
    from headstart.types import CacheKey

P = TypeVar("P")


def history_judge(
    policy: MatchPolicy[P], prepare: Callable[[str], Prepared[P]]
) -> Callable[[CacheKey, CacheKey], bool]:
    """Return a judge of histories: by words, then reworded turns by their encodings."""

    def same(asked: CacheKey, stored: CacheKey) -> bool:
        if asked.partition == stored.partition:
            return True
        found = policy.compare(asked.history, stored.history, None)
        if found.conflict is not None:
            return False
        encodings = sum(1 + len(turn.counterparts) for turn in found.unsaid)
        return encodings <= MOST_ENCODINGS and all(map(said, found.unsaid))

    def said(turn: Unsaid) -> bool:
        mine = prepare(turn.text)
        return any(meets(mine, prepare(text)) for text in turn.counterparts)

    def meets(mine: Prepared[P], theirs: Prepared[P]) -> bool:
        return (
            mine.usable
            and theirs.usable
            and float(mine.vector @ theirs.vector) >= LEAST_SIMILARITY
            and policy.reworded(mine.parse, theirs.parse)
        )

    return same
