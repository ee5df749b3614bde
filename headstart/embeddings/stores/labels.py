"""Labels as all stores keep them: an append-only sequence that each reader goes through by itself.

Unlike the log it may be empty and says nothing when the oldest have left: a reader that comes late
learns from those that are there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.embeddings.stores.codec import decode_label
from headstart.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from headstart.decisions import Label

LABEL_ROWS = 200_000
"""Kept labels: some 100 MB, in memory, on disk or in Redis."""
DOCUMENTS = 100_000
"""Kept documents; the least recently written leave first."""


class LabelReader:
    """Pages through labels past those that this version cannot decode.

    ``read`` returns up to so many rows after a cursor, of a domain or of all: each row's own
    cursor, and its envelope.
    """

    def __init__(
        self, read: Callable[[str, int, str | None], Awaitable[Sequence[tuple[str, bytes]]]]
    ) -> None:
        self._read = read
        self._asked: tuple[str, str | None] = ("", None)
        self._passed = ""

    async def labels(
        self, after: str, limit: int, domain: str | None
    ) -> Sequence[tuple[str, Label]]:
        """Return up to ``limit`` labels after a cursor; empty only when there is none yet."""
        asked = (after, domain)
        place = self._passed if asked == self._asked else after
        while rows := await self._read(place, limit, domain):
            place = rows[-1][0]
            if labels := [
                (cursor, label)
                for cursor, value in rows
                if (label := decode_label(value)) is not None
            ]:
                return labels
        # Labels of a newer version at the end must not be read again at each poll.
        self._asked, self._passed = asked, place
        return []


def row_cursor(number: int) -> str:
    """Return the cursor of a row; like the rows' numbers, cursors compare as strings."""
    return f"{number:015}"


def row_number(cursor: str) -> int:
    """Return the row that a cursor names, 0 for ``""``. Raises StoreError if it names none."""
    try:
        return int(cursor or 0)
    except ValueError as error:
        raise StoreError("this is no cursor of the store's labels") from error
