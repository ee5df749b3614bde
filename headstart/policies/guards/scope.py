"""Scope and substitution: other owners, kinds or modifiers, and words of another meaning.

Two names in the same sentence have nearly the same sentence vector, but their token vectors differ.
So the substitution guard needs no list of names and no capitals: it compares the contextual vectors
of the exchanged words (late interaction, Khattab and Zaharia 2020, used as a veto, not as a score).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from headstart.policies.guards.words import different, stem, stems_of, unit_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.policies.guards.words import Parse

MOST_EXCHANGED = 2
"""With more words of its own a prompt is a new sentence, which the similarity judges."""
LEAST_MAXSIM = 0.595
"""Less similar words mean different things (``docs/how-a-hit-is-decided.md``)."""


def words_substituted(a: Parse, b: Parse) -> bool:
    """Veto when a few content words were exchanged and their vectors are far apart.

    Without vectors (very long prompts) an exchange cannot be checked, so it is a veto.
    """
    only_a, only_b = a.content - b.content, b.content - a.content
    if not 1 <= len(only_a) <= MOST_EXCHANGED or not 1 <= len(only_b) <= MOST_EXCHANGED:
        return False
    maxsim = exchanged_maxsim(a, b)
    return maxsim is None or maxsim < LEAST_MAXSIM


def exchanged_maxsim(a: Parse, b: Parse) -> float | None:
    """Return how near the content words of one prompt alone are to the other prompt, -1 to 1.

    This is the mean over these words of both prompts: for each, the cosine to the most similar word
    of the other prompt, both in context. None when there are no such words, or no vectors.
    """
    only_a, only_b = a.content - b.content, b.content - a.content
    if not (only_a or only_b) or not a.vectors or not b.vectors:
        return None
    words_a, words_b = different(a.stems), different(b.stems)
    vectors_a, vectors_b = unit_rows(a.vectors, len(words_a)), unit_rows(b.vectors, len(words_b))
    rows_a = [row for row, word in enumerate(words_a) if word in only_a]
    rows_b = [row for row, word in enumerate(words_b) if word in only_b]
    best = [
        *(vectors_a[rows_a] @ vectors_b.T).max(axis=1),
        *(vectors_b[rows_b] @ vectors_a.T).max(axis=1),
    ]
    return float(sum(best)) / len(best)


NARROWED_MAXSIM = 0.45
"""A less similar modifier has no counterpart in the other prompt: it narrows the question."""

# "Your" is left out: "change your oil" is how people ask for "change my oil".
_OWNERS = {
    stem(word): owner
    for owner, words in {"me": "my", "us": "our", "them": "his her their"}.items()
    for word in words.split()
}
_LONGEST_THING = 4
"""Most words of an owned thing: "my company's new savings account"."""

_GROUPS = stems_of("company employer firm organisation organization business team department club")
"""Owners of things that are not people."""
_PEOPLE = """
    child kid son daughter teenager stepchild / baby infant newborn toddler
    / wife husband spouse partner fiance fiancee girlfriend boyfriend
    / mother mum mom father dad parent / grandmother grandfather grandparent grandma grandpa
    / brother sister sibling / uncle aunt cousin nephew niece / friend mate / neighbour neighbor
    / colleague coworker teammate / boss manager supervisor employer / contractor freelancer
    / landlord tenant lodger / roommate flatmate housemate / student pupil / pensioner retiree
    / dog puppy / cat kitten
"""
"""People that a question can be about. The words of one group mean the same."""

_KINDS = """
    home house contents building / car motor auto vehicle / travel trip / pet / life
        / health medical / dental / renter
    personal private individual / business corporate company commercial / joint shared
    free basic standard / premium pro enterprise plus / student
    economy / business / first
    domestic / international overseas abroad
    hand cabin carry / checked hold
    delivery shipping / billing
    employee staff salaried / contractor freelance freelancer self agency / volunteer / intern
    permanent / temporary casual zero
    adult / child kid infant / senior pensioner / student
    undergraduate bachelor / postgraduate graduate master phd doctorate
    home / abroad overseas / office
    flat apartment house home / office shop
    savings saver / current checking / credit
    instant / fixed / notice
    debit / credit / prepaid
    desktop laptop computer / mobile phone tablet
    ios iphone ipad / android
    windows / mac macos / linux
    man / woman
    indoor / outdoor
    primary / secondary
    local / remote
    employer / employee
    physical / virtual
    dollar usd / euro eur / pound gbp sterling / yen jpy / rupee inr / franc chf / yuan cny / peso
"""
"""Kinds of a thing: the groups of one row exclude each other."""

_PERSON = {
    stem(word): place for place, group in enumerate(_PEOPLE.split("/")) for word in group.split()
}


def _rival_kinds() -> dict[str, frozenset[str]]:
    rivals: dict[str, set[str]] = {}
    for row in _KINDS.replace("\n        /", " /").strip().split("\n"):
        groups = [stems_of(group) for group in row.split("/")]
        for group in groups:
            others = frozenset[str]().union(*groups) - group
            for word in group:
                rivals.setdefault(word, set()).update(others)
    return {word: frozenset(others) for word, others in rivals.items()}


_RIVAL_KINDS = _rival_kinds()


def scopes_differ(a: Parse, b: Parse) -> bool:
    """Veto when the prompts ask about things of different owners, persons or kinds."""
    only_a, only_b = a.content - b.content, b.content - a.content
    if any(not only_b.isdisjoint(_RIVAL_KINDS.get(word, ())) for word in only_a):
        return True
    people, others = ({_PERSON[word] for word in side.content & _PERSON.keys()} for side in (a, b))
    return people != others or _owners_differ(a, b) or _narrowed(a, b)


def _owners_differ(a: Parse, b: Parse) -> bool:
    """Tell whether the prompts name different owners of one thing."""
    ours, theirs = _owners(a), _owners(b)
    return any(ours[thing] != theirs[thing] for thing in ours.keys() & theirs.keys())


def _owners(parse: Parse) -> dict[str, set[str]]:
    owners: dict[str, set[str]] = {}
    for thing, owner in _owned(parse):
        owners.setdefault(thing, set()).add(owner)
    return owners


def _owned(parse: Parse) -> Iterator[tuple[str, str]]:
    """Yield the things that a prompt says are someone's, with their owners."""
    for place, word in enumerate(parse.stems):
        owner = _OWNERS.get(word)
        if owner is None:
            continue
        thing = None
        for candidate in parse.stems[place + 1 : place + 1 + _LONGEST_THING]:
            if candidate not in parse.content:
                break
            if thing in _GROUPS:
                owner = thing
            thing = candidate
        if thing is not None:
            yield thing, owner


def _narrowed(a: Parse, b: Parse) -> bool:
    """Find the one content word that was put before one of both: "a joint account"."""
    added = a.content ^ b.content
    if len(added) != 1:
        return False
    (word,) = added
    longer, shorter = (a, b) if word in a.content else (b, a)
    neighbors = set(pairwise(("", *shorter.stems)))
    inserted = any(
        middle == word and after in longer.content and (before, after) in neighbors
        for before, middle, after in zip(
            ("", *longer.stems), longer.stems, longer.stems[1:], strict=False
        )
    )
    if not inserted:
        return False
    maxsim = exchanged_maxsim(a, b)
    return maxsim is None or maxsim < NARROWED_MAXSIM
