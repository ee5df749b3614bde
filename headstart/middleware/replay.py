"""Stored completions as bytes: rendered once, kept while they are in use."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from headstart.types import Completion

if TYPE_CHECKING:
    from headstart.middleware.dialects.dialect import Dialect, Rendered
    from headstart.types import Entry


class Replays:
    """Rendered answers of the entries used last, up to ``max_bytes`` together."""

    def __init__(self, max_bytes: int = 32 * 2**20) -> None:
        self._max = max_bytes
        self._size = 0
        self._rendered: OrderedDict[tuple[str, str], Rendered] = OrderedDict()

    def rendered(self, entry: Entry, dialect: Dialect) -> Rendered:
        """Return the entry's answer in a dialect. Raises TypeError for a raw answer."""
        key = (entry.id, dialect.name)
        rendered = self._rendered.get(key)
        if rendered is not None:
            self._rendered.move_to_end(key)
            return rendered
        if not isinstance(entry.answer, Completion):
            raise TypeError(f"entry {entry.id} holds a raw answer, which is replayed as it is")
        rendered = dialect.render(entry.answer)
        self._rendered[key] = rendered
        self._size += rendered.nbytes
        while self._size > self._max:
            _, oldest = self._rendered.popitem(last=False)
            self._size -= oldest.nbytes
        return rendered

    @property
    def nbytes(self) -> int:
        """Size of what is kept."""
        return self._size
