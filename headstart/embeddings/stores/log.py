"""The append-and-follow log that all stores keep: one row for each entry stored or gone.

Rows name entries and hold no values; whoever follows reads the vector beside them. The log is
pruned to ``LOG_ROWS`` but never empty, so a cursor is always the place of a row: a follower reads
from its cursor on, that row included, and knows from its absence that it has been overtaken.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import anyio

from headstart.errors import StoreError
from headstart.types import Delete, Logged

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

    from headstart.types import VectorRow

LOG_ROWS = 65_536
"""Kept rows: a follower that polls every 0.2 s is overtaken above 300,000 writes a second."""
BOOK_ROWS = 200_000
"""Kept rows of the books: some 40 MB."""
AT_ONCE = 1024
"""Entries that leave in one commit at most, and rows read at a time: no commit takes long."""


class LogRow(NamedTuple):
    """One entry was stored, or is gone."""

    cursor: str
    deleted: bool
    id: str


def stored_ids(rows: Sequence[LogRow]) -> tuple[str, ...]:
    """Return the ids of the entries whose vectors ``records`` needs."""
    return tuple(row.id for row in rows if not row.deleted)


def records(rows: Sequence[LogRow], vectors: Mapping[str, VectorRow]) -> Iterator[Logged]:
    """Yield what rows mean: a run of deletions is one Delete, who has no vector is left out."""
    for deleted, run in groupby(rows, key=lambda row: row.deleted):
        if deleted:
            gone = tuple(run)
            yield Logged(cursor=gone[-1].cursor, record=Delete(ids=tuple(row.id for row in gone)))
        else:
            for row in run:
                if (vector := vectors.get(row.id)) is not None:
                    yield Logged(cursor=row.cursor, record=vector)


def after_cursor(rows: Sequence[LogRow], cursor: str) -> Sequence[LogRow]:
    """Drop the cursor's own row from rows read from it on. Raises StoreError if it is missing."""
    if not rows or rows[0].cursor != cursor:
        raise StoreError("the store's log no longer reaches back to this cursor")
    return rows[1:]


async def follow_log(
    cursor: str,
    read: Callable[[str], Awaitable[tuple[Sequence[LogRow], Mapping[str, VectorRow]]]],
    poll_s: float,
) -> AsyncIterator[Logged]:
    """Yield records after ``cursor`` for ever; ``read`` gets rows after it and their vectors."""
    while True:
        rows, vectors = await read(cursor)
        for logged in records(rows, vectors):
            yield logged
        if rows:
            cursor = rows[-1].cursor
        else:
            await anyio.sleep(poll_s)
