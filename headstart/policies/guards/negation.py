"""Negation: an odd against an even number of negations."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from headstart.policies.guards.antonyms import opposites_exchanged
from headstart.policies.guards.words import is_negated_verb, listed, stem, stems_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.policies.guards.parse import Parse
    from headstart.policies.guards.words import Word

_NEGATIONS = frozenset(
    listed("""
    not no never without cannot except excluding none neither nobody nothing nowhere non unable
    hardly barely scarcely rarely seldom
    """)
)
_CEASING = stems_of("stop quit cease prevent halt keep")
"""They negate the verb that they govern: "stop watering", "keep it from renewing"."""
_AVOIDING = stems_of("avoid refrain")
"""They negate nouns as well: "avoid nuts"."""
_DENIALS = frozenset({"no", "not"})
_REACH = 6
"""Words that a negation looks ahead: "prevent … from renewing"."""
_FREE_OF = frozenset(
    listed(
        "sugar gluten dairy lactose nut meat alcohol caffeine fat smoke interest fee tax duty rent"
    )
)
"""What "-free" denies; "the pool is free" denies nothing."""
_ENDING = stems_of(
    """
    cancel unsubscribe deregister disable deactivate remove delete off end terminate block ban mute
    quit stop prevent halt cease avoid rid discontinue opt
    """
)

# "I can't remember my PIN" and "I forgot my PIN" ask the same; so do "Why not use X" and "or not".
_PRONOUNS = frozenset(listed("i you we they he she it this that there"))
_UNKNOWING = frozenset(
    listed("""
    remember recall know find see figure understand tell locate recognise recognize sure certain
    """)
)
_IDIOMS = {
    "not": _UNKNOWING | {"only", "just", "yet"},
    "n't": _UNKNOWING | {"mind", "hesitate"},
    "cannot": _UNKNOWING,
    "unable": _UNKNOWING,
    "no": frozenset(listed("matter doubt problem problems idea clue worries reason luck")),
}
_PASSED_OVER = frozenset(listed("i we seem to be able even really quite"))
"""Between the negation and what it negates: "I can't seem to find it"."""
_BEFORE_NOT = frozenset({"or", "why", "if", "whether"})

_WORKING = stems_of(
    """
    work go going come show appear arrive receive accept load open complete process respond get
    got let allow use able happy pleased
    """
)
"""What is not so when something is wrong: "it isn't working", "it won't go through"."""
_WANTING = stems_of("want need")
_TROUBLE = stems_of(
    """
    fail failure decline reject refuse deny block break broken error issue problem wrong trouble
    missing lost stuck pending damage unusable unavailable unsuccessful delay late crash freeze
    mistake dissatisfied unhappy disappointed disallow incorrect faulty
    """
)
_COMPLAINS, _TROUBLED, _CEASES, _ENDS = "complains", "troubled", "ceases", "ends"
_ALIKE = (({_COMPLAINS}, {_COMPLAINS, _TROUBLED}), ({_CEASES}, {_ENDS}))
"""A negation on one side that a word on the other makes up for."""


def negation(words: Sequence[Word]) -> tuple[frozenset[str], bool, frozenset[str]]:
    """Return a prompt's negations, idioms left out, their parity, and what else bears on them."""
    negators = []
    tone = set()
    for place, word in enumerate(words):
        stemmed = stem(word.text)
        if is_negated_verb(word.text) or word.text in _NEGATIONS:
            if _is_idiom(words, place):
                tone |= _unknowing(words, place)
            else:
                negators.append(stemmed)
                tone |= _implied(words, place)
        elif word.text == "free" and place and words[place - 1].text in _FREE_OF:
            negators.append(stemmed)
        elif stemmed in _AVOIDING or (stemmed in _CEASING and _ceases(words, place)):
            negators.append(stemmed)
            tone.add(_CEASES)
        elif stemmed in _ENDING:
            tone.add(_ENDS)
        if stemmed in _TROUBLE:
            tone.add(_TROUBLED)
    return frozenset(negators), len(negators) % 2 == 1, frozenset(tone)


def negations_differ(a: Parse, b: Parse) -> bool:
    """Veto when one prompt is negated and the other is not.

    Not when both complain ("My card isn't working", "My card fails") or both end something
    ("Stop sending letters", "Cancel letters"), nor when an opposite makes up for the negation
    ("not correct", "wrong").
    """
    if a.negated == b.negated:
        return False
    negated, other = (a.tone, b.tone) if a.negated else (b.tone, a.tone)
    made_up = any(negated & ours and other & theirs for ours, theirs in _ALIKE)
    return not made_up and not opposites_exchanged(a, b)


def _ceases(words: Sequence[Word], place: int) -> bool:
    """Find the verb that "stop" governs: "stop watering", "stop it from renewing"."""
    following = words[place + 1 : place + 2 + _REACH]
    if following and _is_gerund(following[0]) and words[place].text[:4] != "keep":
        return True
    return any(word.text == "from" and _is_gerund(verb) for word, verb in pairwise(following))


def _is_gerund(word: Word) -> bool:
    return len(word.text) > len("king") and word.text.endswith("ing")


def _implied(words: Sequence[Word], place: int) -> set[str]:
    """Hear the complaint in "it isn't working", "not there yet", the end in "I don't want it"."""
    following = [stem(word.text) for word in words[place + 1 : place + 1 + _REACH]]
    tone = set()
    if not _WORKING.isdisjoint(following[:5]) or "yet" in following:
        tone.add(_COMPLAINS)
    if not _WANTING.isdisjoint(following[:2]):
        tone.add(_CEASES)
    return tone


def _unknowing(words: Sequence[Word], place: int) -> set[str]:
    """Hear the trouble in "I can't find it"; "yes or no" has none."""
    following = [word.text for word in words[place + 1 : place + 1 + _REACH]]
    return set() if _UNKNOWING.isdisjoint(following) else {_TROUBLED}


def _is_idiom(words: Sequence[Word], place: int) -> bool:
    text = words[place].text
    before = words[place - 1].text if place else ""
    following = (word.text for word in words[place + 1 : place + 1 + _REACH])
    after = next((text for text in following if text not in _PASSED_OVER), "")
    contracted = is_negated_verb(text)
    if contracted and not before and after in _PRONOUNS:
        return True  # "Can't I …?" asks what "Can I …?" asks
    if text == "not" and before in _BEFORE_NOT:
        return True
    if text == "no" and (before == "or" or after[:1].isdecimal()):
        return True  # "whether or no", "No. 5"
    if text in _DENIALS and [word.text for word in words[place + 2 : place + 3]] == ["than"]:
        return True  # "no more than": a limit, see ``comparative``
    return after in _IDIOMS.get("n't" if contracted else text, ())
