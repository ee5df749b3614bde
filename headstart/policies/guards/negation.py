"""Negation: an odd against an even number of negations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.policies.guards.words import listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.policies.guards.parse import Parse
    from headstart.policies.guards.words import Word

_NEGATIONS = frozenset(
    listed("""
    not no never without cannot except excluding avoid avoids avoided avoiding none neither nobody
    nothing nowhere non unable
    dont cant wont isnt arent wasnt werent doesnt didnt couldnt shouldnt wouldnt hasnt havent hadnt
    """)
)
_PRONOUNS = frozenset(listed("i you we they he she it this that there"))

# "I can't remember my PIN" and "I forgot my PIN" ask the same; so do "Why not use X" and "or not".
_UNKNOWING = frozenset(listed("remember recall know find see figure understand tell"))
_IDIOMS = {
    "not": _UNKNOWING | {"only", "sure", "certain"},
    "n't": _UNKNOWING | {"mind", "hesitate"},
    "cannot": _UNKNOWING,
    "no": frozenset(listed("matter doubt problem idea clue")),
}
_BEFORE_NOT = frozenset({"or", "why"})


def is_negated(words: Sequence[Word]) -> bool:
    """Return the parity of the negations in a prompt, idioms left out."""
    count = 0
    for place, word in enumerate(words):
        text = word.text
        if text.endswith("n't") or text in _NEGATIONS:
            before = words[place - 1].text if place else ""
            after = words[place + 1].text if place + 1 < len(words) else ""
            count += not _is_idiom(text, before, after)
    return count % 2 == 1


def negations_differ(a: Parse, b: Parse) -> bool:
    """Veto when one prompt is negated and the other is not."""
    return a.negated != b.negated


def _is_idiom(text: str, before: str, after: str) -> bool:
    contracted = text.endswith(("n't", "nt"))
    if contracted and not before and after in _PRONOUNS:
        return True  # "Can't I …?" asks what "Can I …?" asks
    if text == "not" and before in _BEFORE_NOT:
        return True
    if text == "no" and (before == "or" or after[:1].isdecimal()):
        return True  # "whether or no", "No. 5"
    return after in _IDIOMS.get("n't" if contracted else text, ())
