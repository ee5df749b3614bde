"""The books of calls under way: every upstream call that a request caused, booked once."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from headstart.attempts import AttemptOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.attempts import Attempt
    from headstart.observe import Shaped

CostOf: TypeAlias = "Callable[[int], float]"
"""Dollars by tokens of the answer."""
MOST_CALLS = 10_000
_GIVES_WAY = (AttemptOutcome.WON, AttemptOutcome.ABANDONED)
"""Outcomes that a target cannot know better than the strategy that gave its branch up."""


class Ledger:
    """Attempts by call id, until they are taken. The oldest calls leave past ``most``.

    Targets book what they did. Strategies ``rule`` on the branches that they give up, before or
    after these are booked: only a race knows who lost it, only a judge whose draft was rejected.
    """

    def __init__(self, most: int = MOST_CALLS) -> None:
        self._most = most
        self._pages: OrderedDict[str, _Page] = OrderedDict()

    def book(
        self, call_id: str, attempt: Attempt, branch: str = "", *, runs_on: CostOf | None = None
    ) -> None:
        """Add an attempt that the call's ``branch`` made.

        ``runs_on``: what it costs if its provider goes on with it up to this many tokens. Once it
        is known how long the answer was, that is what it costs.
        """
        page = self._page(call_id)
        page.rows.append(_Row(branch, _ruled(attempt, page.ruling(branch)), runs_on))

    def rule(self, call_id: str, branch: str, outcome: AttemptOutcome) -> None:
        """Give attempts of this branch, and of those below it, an outcome: LOST or REJECTED.

        Those that failed keep theirs.
        """
        page = self._page(call_id)
        page.rulings[branch] = outcome
        page.rows = [
            row._replace(attempt=_ruled(row.attempt, page.ruling(row.branch))) for row in page.rows
        ]

    def ruling(self, call_id: str, branch: str) -> AttemptOutcome | None:
        """Return what a branch was ruled, or None: it is still in the running."""
        page = self._pages.get(call_id)
        return None if page is None else page.ruling(branch)

    def settle(self, call_id: str, branch: str) -> None:
        """Forget the ruling on a branch: nothing of it will be booked any more."""
        page = self._pages.get(call_id)
        if page is not None:
            page.rulings.pop(branch, None)
            self._drop_empty(call_id, page)

    def attempts(self, call_id: str) -> tuple[Attempt, ...]:
        """Return what was booked of a call so far."""
        page = self._pages.get(call_id)
        return () if page is None else tuple(row.attempt for row in page.rows)

    def take(self, call_id: str) -> tuple[Attempt, ...]:
        """Return what was booked of a call since it was last taken, and let go of it."""
        page = self._pages.get(call_id)
        if page is None:
            return ()
        taken = _settled(page.rows)
        page.rows = []
        self._drop_empty(call_id, page)
        return taken

    def shape(self, call_id: str, shaped: Shaped) -> None:
        """Note what was done to a call's prompt or answer on its way."""
        self._page(call_id).shaped.append(shaped)

    def shaped(self, call_id: str) -> tuple[Shaped, ...]:
        """Return what was noted of a call by ``shape`` since the last time, and let go of it."""
        page = self._pages.get(call_id)
        if page is None:
            return ()
        taken = tuple(page.shaped)
        page.shaped = []
        self._drop_empty(call_id, page)
        return taken

    def __len__(self) -> int:
        """Number of calls of which something is kept."""
        return len(self._pages)

    def _page(self, call_id: str) -> _Page:
        page = self._pages.get(call_id)
        if page is None:
            page = self._pages[call_id] = _Page()
            if len(self._pages) > self._most:
                self._pages.popitem(last=False)
        return page

    def _drop_empty(self, call_id: str, page: _Page) -> None:
        if not (page.rows or page.rulings or page.shaped):
            del self._pages[call_id]


class _Row(NamedTuple):
    branch: str
    attempt: Attempt
    runs_on: CostOf | None


class _Page:
    __slots__ = ("rows", "rulings", "shaped")

    def __init__(self) -> None:
        self.rows: list[_Row] = []
        self.rulings: dict[str, AttemptOutcome] = {}
        self.shaped: list[Shaped] = []

    def ruling(self, branch: str) -> AttemptOutcome | None:
        """Return the ruling on a branch, or on the nearest one above it."""
        if not self.rulings:
            return None
        while branch and branch not in self.rulings:
            branch = branch.rpartition(".")[0]
        return self.rulings.get(branch)


def _ruled(attempt: Attempt, ruling: AttemptOutcome | None) -> Attempt:
    if ruling is None or attempt.outcome not in _GIVES_WAY:
        return attempt
    return msgspec.structs.replace(attempt, outcome=ruling)


def _settled(rows: list[_Row]) -> tuple[Attempt, ...]:
    """Return attempts; those that run on unread are taken to be as long as the answer."""
    tokens = max((_tokens(row.attempt) for row in rows), default=0)
    if not tokens:
        return tuple(row.attempt for row in rows)
    return tuple(
        row.attempt
        if row.runs_on is None
        else msgspec.structs.replace(row.attempt, cost_usd=row.runs_on(tokens))
        for row in rows
    )


def _tokens(attempt: Attempt) -> int:
    return attempt.completion_tokens if attempt.outcome is AttemptOutcome.WON else 0
