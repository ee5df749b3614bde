"""Role swap: the same words with their parts exchanged, "from A to B" against "from B to A"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.policies.guards.words import is_function_word, listed, stem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.policies.guards.parse import Parse
    from headstart.policies.guards.words import Word

_PREPOSITIONS = frozenset(listed("from to into than over by of for with before after"))
_SYMMETRIC = frozenset(listed("and or vs versus"))
_REACH = 4
"""Words after a preposition among which its argument is sought: "to the very same Rome"."""


def roles(words: Sequence[Word]) -> tuple[tuple[str, str], ...]:
    """Return each preposition with the stem of its argument: (("from", "pari"), ("to", "rom"))."""
    found = []
    for place, word in enumerate(words):
        if word.text in _PREPOSITIONS:
            for argument in words[place + 1 : place + 1 + _REACH]:
                if not is_function_word(argument.text):
                    found.append((word.text, stem(argument.text)))
                    break
    return tuple(found)


def roles_swapped(a: Parse, b: Parse) -> bool:
    """Veto when a preposition's arguments changed places, or two words did and nothing else.

    A mere change of order is not a swap: "At the pharmacy, can I …" asks what "Can I … at the
    pharmacy" asks. Nor is one around "and", "or" or "versus".
    """
    return _arguments_swapped(a, b) or _words_swapped(a.stems, b.stems)


def _arguments_swapped(a: Parse, b: Parse) -> bool:
    ours, theirs = set(a.roles), set(b.roles)
    for preposition, argument in ours - theirs:
        if argument not in b.stems:
            continue
        for other, counterpart in theirs - ours:
            if other == preposition and counterpart in a.stems:
                return True
    return False


def _words_swapped(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    if len(a) != len(b) or a == b:
        return False
    changed = [place for place, (one, other) in enumerate(zip(a, b, strict=True)) if one != other]
    if len(changed) != 2:
        return False
    first, second = changed
    if a[first] != b[second] or a[second] != b[first]:
        return False
    if is_function_word(a[first]) or is_function_word(a[second]):
        return False
    return _SYMMETRIC.isdisjoint(a[first:second])
