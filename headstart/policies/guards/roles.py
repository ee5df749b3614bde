"""Role swap: the same words with their parts exchanged, "from A to B" against "from B to A"."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headstart.policies.guards.words import is_function_word, listed, stem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.policies.guards.parse import Parse
    from headstart.policies.guards.words import Word

_PREPOSITIONS = frozenset(listed("from to into than over by of for with before after"))
_DIRECTED = frozenset(listed("from than before after"))
"""Another argument is another question; after the rest only an exchange with the words before."""
_DETERMINERS = frozenset(
    listed("a an the this that these those some any each every my your our his her its their")
)
_MOST = 24
"""Roles of a prompt that are compared, each with each of the other's."""
_LONGEST = 3
"""Content words of an argument: "to the new savings account"."""


class Role(NamedTuple):
    """A preposition between the content words before it and those it governs."""

    preposition: str
    before: frozenset[str]
    argument: tuple[str, ...]


def roles(words: Sequence[Word]) -> tuple[Role, ...]:
    """Return the prepositions of a prompt that have an argument, in order."""
    found: list[Role] = []
    before: set[str] = set()
    for place, word in enumerate(words):
        if word.text in _PREPOSITIONS:
            argument = _argument(words, place + 1)
            if argument and len(found) < _MOST:
                preposition = "to" if word.text == "into" else word.text
                found.append(Role(preposition, frozenset(before), argument))
        elif not is_function_word(word.text):
            before.add(stem(word.text))
    return tuple(found)


def _argument(words: Sequence[Word], place: int) -> tuple[str, ...]:
    while place < len(words) and words[place].text in _DETERMINERS:
        place += 1
    if place < len(words) and words[place].text.endswith("ing") and not words[place].capital:
        return ()  # "from renewing" names no place
    argument = []
    for word in words[place : place + _LONGEST]:
        if is_function_word(word.text):
            break
        argument.append(stem(word.text))
    return tuple(argument)


def roles_swapped(a: Parse, b: Parse) -> bool:
    """Veto when a preposition's arguments changed places.

    A mere change of order is not a swap: "At the pharmacy, can I …" asks what "Can I … at the
    pharmacy" asks. The order of all other words is the crossing guard's.
    """
    return a.stems != b.stems and _arguments_swapped(a, b)


def _arguments_swapped(a: Parse, b: Parse) -> bool:
    if not a.roles or not b.roles:
        return False
    if _source_is_goal(a, b) or _source_is_goal(b, a):
        return True
    words_a, words_b = frozenset(a.stems), frozenset(b.stems)
    for one in a.roles:
        for other in b.roles:
            if one.preposition != other.preposition:
                continue
            ours, theirs = frozenset(one.argument), frozenset(other.argument)
            ours, theirs = ours - theirs, theirs - ours
            if not (ours and theirs and ours <= words_b and theirs <= words_a):
                continue
            # "Dollars to euros" against "euros to dollars", whatever stands between.
            crossed = theirs <= one.before and ours <= other.before
            if crossed or one.preposition in _DIRECTED:
                return True
    return False


def _source_is_goal(a: Parse, b: Parse) -> bool:
    """Find where ``a`` comes from among the places that ``b`` alone goes to."""
    return not (_arguments(a, "from") & _arguments(b, "to")).issubset(
        _arguments(a, "to") | _arguments(b, "from")
    )


def _arguments(parse: Parse, preposition: str) -> frozenset[str]:
    return frozenset(
        word for role in parse.roles if role.preposition == preposition for word in role.argument
    )
