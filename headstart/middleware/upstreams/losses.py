"""What a contest tells its caller when nobody answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.errors import HeadstartError, UpstreamRefused, UpstreamUnavailable
from headstart.middleware.upstreams.opening import AnswerWithheld

if TYPE_CHECKING:
    from collections.abc import Sequence

_SPENT = (b"x-should-retry", b"false")
"""Tells OpenAI's and Anthropic's clients not to begin anew what was tried again already."""


class Losses:
    """Errors by member. ``order`` is the one in which members were to be asked."""

    def __init__(self, order: Sequence[int]) -> None:
        self._order = order
        self._errors: dict[int, HeadstartError] = {}
        self._blamed: HeadstartError | None = None
        self._asked = 0

    def add(self, member: int, error: HeadstartError, *, blames_caller: bool) -> None:
        """Take in a member's error. Its last real one counts: that it may not be asked is none."""
        if blames_caller:
            self._blamed = self._blamed or error
        self._asked += not isinstance(error, UpstreamUnavailable)
        if not isinstance(error, UpstreamUnavailable) or member not in self._errors:
            self._errors[member] = error

    def most_useful(self) -> HeadstartError:
        """Return what the caller shall hear.

        That is what the caller did wrong; else an answer that was withheld; else the first
        member's own words, before what kept us from having any.
        """
        if self._blamed is not None:
            return self._blamed
        errors = [self._errors[each] for each in self._order if each in self._errors]
        best = min(errors, key=_rank)
        if isinstance(best, UpstreamUnavailable):
            return min(
                (each for each in errors if isinstance(each, UpstreamUnavailable)), key=_wait_s
            )
        if isinstance(best, UpstreamRefused) and self._asked > 1:
            return _spent(best)
        return best


def _rank(error: HeadstartError) -> int:
    match error:
        case AnswerWithheld():
            return 0
        case UpstreamRefused():
            return 1
        case UpstreamUnavailable():
            return 3
        case _:
            return 2


def _wait_s(error: UpstreamUnavailable) -> float:
    return float("inf") if error.retry_after_s is None else error.retry_after_s


def _spent(error: UpstreamRefused) -> UpstreamRefused:
    """Return the error with word that trying again was tried."""
    kept = tuple(pair for pair in error.headers if pair[0] != _SPENT[0])
    spent = UpstreamRefused(
        str(error),
        status=error.status,
        headers=(*kept, _SPENT),
        body=error.body,
        code=error.code,
    )
    spent.__cause__ = error
    return spent
