"""Which stored entries an operator means, for a list or a deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.types import Frozen

if TYPE_CHECKING:
    from headstart.types import Entry


class EntryFilter(Frozen):
    """Conditions that an entry must all fit. None, or an empty tuple: any entry fits."""

    ids: tuple[str, ...] = ()
    tag: str | None = None
    model: str | None = None
    scope: str | None = None
    """The first hex digits of a scope."""
    partition: str | None = None
    """The first hex digits of a partition."""
    prefix: str | None = None
    """The first characters of the question: the text of the last user message."""
    before: float | None = None
    """Only entries that were created before this time, in Unix seconds."""

    @property
    def is_empty(self) -> bool:
        """Whether every entry fits."""
        return self == EntryFilter()

    def fits(self, entry: Entry) -> bool:
        """Tell whether an entry fits all conditions."""
        return (
            (not self.ids or entry.id in self.ids)
            and (self.tag is None or self.tag in entry.tags)
            and (self.model is None or self.model == entry.origin.model)
            and entry.key.scope.startswith(self.scope or "")
            and entry.key.partition.startswith(self.partition or "")
            and (self.prefix is None or (entry.key.query or "").startswith(self.prefix))
            and (self.before is None or entry.created < self.before)
        )
