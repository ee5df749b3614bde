"""Comparatives: "cheaper than" against "the cheapest", "at least 5" against "at most 5"."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from headstart.policies.guards.numbers import is_number_word
from headstart.policies.guards.words import listed

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

_DEGREES = {"more": "more", "most": "most"}
_ADJECTIVES = """
    good great nice fine
    bad poor terrible
    cheap affordable inexpensive
    expensive costly pricey dear
    big large huge
    small little tiny
    fast quick rapid
    slow
    near close
    far distant
    new late recent
    old early
    easy simple
    hard difficult tough
    high tall
    low
    heavy
    light
    strong
    weak
    long
    short
    safe
    dangerous risky
    popular famous
    warm hot
    cold cool
    young
    rich wealthy
    deep
    wide broad
    loud noisy
    quiet
    bright
    dark
    clean
    healthy
"""
"""What is compared; adjectives in a row are one another's rewording."""
_IRREGULAR = {"better": ("good", "more"), "best": ("good", "most"), "worse": ("bad", "more"),
              "worst": ("bad", "most"), "furthest": ("far", "most")}  # fmt: skip
_ALONE = frozenset(
    listed("""
    better worse cheaper heavier lighter harder stronger weaker faster slower safer easier bigger
    larger smaller
    """)
)
"""Comparatives that need no "than" to be one: "lower" is a verb, "earlier" an adverb as well."""
_WAYS = frozenset(listed("way ways method methods"))
"""The best way is the easiest way, as people ask for it."""
_REACH = 4
"""Words between a comparative and its "than"."""


def _forms() -> dict[str, tuple[str, str]]:
    forms = dict(_IRREGULAR)
    for row in _ADJECTIVES.split("\n"):
        for word in row.split():
            name, base = row.split()[0], word.removesuffix("e")
            if base.endswith("y"):
                base = base[:-1] + "i"
            for ending, degree in (("er", "more"), ("est", "most")):
                forms[base + ending] = forms[base + base[-1] + ending] = (name, degree)
            forms[word] = (name, "")
    return forms


_FORMS = _forms()


def limits(words: Sequence[Word]) -> frozenset[str]:
    """Return which limits a prompt sets on its numbers: ``least``, ``most``, ``exact``."""
    found = set()
    for place, word in enumerate(words):
        if word.kind != "number" and not is_number_word(word.text):
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
    """Return what a prompt compares, and how: ("cheap", "more"), ("cheap", "most")."""
    found = set()
    for place, word in enumerate(words):
        if word.text not in _FORMS:
            continue
        name, degree = _FORMS[word.text]
        if not degree and place:
            degree = _DEGREES.get(words[place - 1].text, "")
        after = [other.text for other in words[place + 1 : place + 1 + _REACH]]
        if degree == "most" and _WAYS.isdisjoint(after[:1]):
            found.add((name, "most"))
        elif degree == "more" and (word.text in _ALONE or "than" in after):
            found.add((name, "more"))
    return frozenset(found)


def comparisons_differ(a: Parse, b: Parse) -> bool:
    """Veto when limits conflict, or the prompts compare by different things or degrees."""
    if a.limits and b.limits and a.limits.isdisjoint(b.limits):
        return True
    return bool(a.degrees and b.degrees) and a.degrees.isdisjoint(b.degrees)
