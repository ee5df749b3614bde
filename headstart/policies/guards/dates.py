"""Days, months and relative days."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.policies.guards.words import listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.policies.guards.parse import Parse
    from headstart.policies.guards.words import Word

_NAMES = listed(
    """
    monday tuesday wednesday thursday friday saturday sunday
    january february march april may june july august september october november december
    today tomorrow yesterday tonight weekend weekday
    """
)
_SHORT = listed("mon tue tues wed thu thur thurs fri jan feb apr jun jul aug sep sept oct nov dec")
_DATE_OF = (
    {name: name for name in _NAMES}
    | {name + "s": name for name in _NAMES}
    | {short: next(name for name in _NAMES if name.startswith(short)) for short in _SHORT}
)
_ALSO_WORDS = frozenset({"may", "march", "mon", "wed", "fri", "jan", "jun", "dec", "marches"})
_PRONOUNS = frozenset(listed("i we you he she it they"))
_BEFORE_MONTH = frozenset(listed("in since until till during last next early late mid"))


def dates(words: Sequence[Word]) -> tuple[str, ...]:
    """Return the days and months that a prompt names, sorted, each once."""
    found = set()
    for place, word in enumerate(words):
        name = _DATE_OF.get(word.text.removesuffix("'s"))
        if name is not None and (word.text not in _ALSO_WORDS or _is_date(words, place)):
            found.add(name)
    return tuple(sorted(found))


def is_date_name(word: str) -> bool:
    """Tell a day's or a month's name, short or long, from other capitalised words."""
    return word in _DATE_OF


def dates_differ(a: Parse, b: Parse) -> bool:
    """Veto unless both prompts name the same days and months."""
    return a.dates != b.dates


def _is_date(words: Sequence[Word], place: int) -> bool:
    """Tell "May" from "may" and "March" from "march" by capital or company."""
    if words[place + 1 : place + 2] and words[place + 1].text in _PRONOUNS:
        return False  # "May I …?"
    if place > 0 and (words[place].capital or words[place - 1].text in _BEFORE_MONTH):
        return True
    beside = (*words[max(place - 1, 0) : place], *words[place + 1 : place + 2])
    return any(word.text[0].isdecimal() for word in beside)
