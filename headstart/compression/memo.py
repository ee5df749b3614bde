"""Remembers results of pure functions, because the next request has the same history again."""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

_OVERHEAD = 200
"""The number of characters that each result counts for in addition to its own."""


class Memo:
    """Keeps results, bounded by characters; the least recently used are evicted.

    It saves time and changes no byte. Only one thread may use it at a time.
    """

    def __init__(self, max_chars: int = 16_000_000) -> None:
        self._max_chars = max_chars
        self._answers: dict[object, object] = {}
        self._chars = 0

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return ``function(*args)``, computed or remembered. The arguments are texts."""
        key = (function, *args)
        if key in self._answers:
            answer = self._answers[key] = self._answers.pop(key)
            return answer  # type: ignore[return-value]  # what this function answered before
        answer = function(*args, **kwargs)
        self._answers[key] = answer
        self._chars += _size(key)
        while self._chars > self._max_chars:
            oldest = next(iter(self._answers))
            del self._answers[oldest]
            self._chars -= _size(oldest)
        return answer


def _size(key: object) -> int:
    """Return twice the length of the texts: a result is about as long as its arguments."""
    parts = key if isinstance(key, tuple) else ()
    return _OVERHEAD + 2 * sum(len(part) for part in parts if isinstance(part, str))
