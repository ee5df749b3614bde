"""Comparatives: "cheaper than" against "the cheapest", "at least 5" against "at most 5"."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from headstart.policies.guards.words import listed, stem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.policies.guards.parse import Parse
    from headstart.policies.guards.words import Word

_LEAST, _MOST, _EXACT = "least", "most", "exact"
_OPPOSITE = {_LEAST: _MOST, _MOST: _LEAST, _EXACT: _EXACT}
_LIMITS = {
    **dict.fromkeys(listed("least over above exceeding minimum min after beyond"), _LEAST),
    **dict.fromkeys(listed("most under below maximum max before until till within by"), _MOST),
    **dict.fromkeys(listed("exactly precisely"), _EXACT),
}
"""Before a number: "over 18"."""
_THAN = {
    **dict.fromkeys(listed("more greater larger bigger higher longer older later"), _LEAST),
    **dict.fromkeys(listed("less fewer smaller lower shorter younger earlier cheaper"), _MOST),
}
"""With "than" before a number: "more than 5"; with "or" after it: "5 or more"."""
_OR = {**_THAN, "over": _LEAST, "above": _LEAST, "under": _MOST, "below": _MOST}
_DENIALS = frozenset({"no", "not"})

_NOT_SUPERLATIVE = frozenset(
    listed("""
    arrest attest bequest conquest contest detest digest divest earnest forest guest harvest
    honest infest ingest interest invest manifest modest molest protest request suggest tempest
    """)
)
_LONG_ENOUGH = 6
_REACH = 4
"""Words between a comparative and its "than"."""


def limits(words: Sequence[Word]) -> frozenset[str]:
    """Return which limits a prompt sets on its numbers: ``least``, ``most``, ``exact``."""
    found = set()
    for place, word in enumerate(words):
        if word.kind != "number":
            continue
        before = [other.text for other in words[max(place - 4, 0) : place] if other.kind == "word"]
        after = [other.text for other in words[place + 1 : place + 4]]
        limit = _limit_before(before)
        if limit is None and len(after) > 1:
            limit = next((_OR.get(other) for one, other in pairwise(after) if one == "or"), None)
        if limit is not None:
            found.add(limit)
    return frozenset(found)


def _limit_before(before: Sequence[str]) -> str | None:
    if not before:
        return None
    *rest, last = before
    if last == "than" and rest:
        limit, denied = _THAN.get(rest[-1]), rest[-2:-1]
    elif last == "to" and rest and rest[-1] == "up":
        limit, denied = _MOST, []
    else:
        limit, denied = _LIMITS.get(last), rest[-1:]
    if limit is not None and not _DENIALS.isdisjoint(denied):
        return _OPPOSITE[limit]
    return limit


def degrees(words: Sequence[Word]) -> frozenset[tuple[str, str]]:
    """Return the adjectives that a prompt compares: ("cheap", "than"), ("cheap", "most")."""
    found = set()
    for place, word in enumerate(words):
        text = word.text
        following = words[place + 1] if place + 1 < len(words) else None
        if text in {"more", "most", "less", "least"} and following is not None:
            base = stem(following.text)
            superlative = text in {"most", "least"}
        elif text.endswith("er"):
            base, superlative = stem(_base(text, 2)), False
        elif text.endswith("est") and text not in _NOT_SUPERLATIVE and len(text) >= _LONG_ENOUGH:
            base, superlative = stem(_base(text, 3)), True
        else:
            continue
        if superlative:
            found.add((base, "most"))
        elif any(other.text == "than" for other in words[place + 1 : place + 1 + _REACH]):
            found.add((base, "than"))
    return frozenset(found)


def _base(text: str, suffix: int) -> str:
    base = text[:-suffix]
    return base[:-1] + "y" if base.endswith("i") else base


def comparisons_differ(a: Parse, b: Parse) -> bool:
    """Veto when limits conflict, or one prompt compares what the other takes to the extreme."""
    if a.limits and b.limits and a.limits.isdisjoint(b.limits):
        return True
    return _to_extreme(a, b) or _to_extreme(b, a)


def _to_extreme(a: Parse, b: Parse) -> bool:
    return any(
        degree == "most" and (base, "than") in b.degrees and (base, "most") not in b.degrees
        for base, degree in a.degrees
    )
