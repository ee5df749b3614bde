"""Scope: whose thing it is, which kind of it, and a word that narrows it on one side only."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from headstart.policies.guards.substitution import exchanged_maxsim
from headstart.policies.guards.words import stem, stems_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.policies.guards.parse import Parse

NARROWED_MAXSIM = 0.45
"""An added modifier below it has no counterpart in the other prompt: it narrows the question."""

# "Your" is left out: "change your oil" is how people ask for "change my oil".
_OWNERS = {
    stem(word): owner
    for owner, words in {"me": "my", "us": "our", "them": "his her their"}.items()
    for word in words.split()
}
_LONGEST = 4
"""Words of an owned thing: "my company's new savings account"."""

_GROUPS = stems_of("company employer firm organisation organization business team department club")
"""Who owns things beside people."""
_PEOPLE = """
    child kid son daughter teenager stepchild
    baby infant newborn toddler
    wife husband spouse partner fiance fiancee girlfriend boyfriend
    mother mum mom father dad parent
    grandmother grandfather grandparent grandma grandpa
    brother sister sibling
    uncle aunt cousin nephew niece
    friend mate
    neighbour neighbor
    colleague coworker teammate
    boss manager supervisor employer
    contractor freelancer
    landlord tenant lodger
    roommate flatmate housemate
    student pupil
    pensioner retiree
    dog puppy
    cat kitten
"""
"""Who a question can be about. Those in a row are one another's rewording."""

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
"""Kinds of a thing: a row's groups exclude each other."""

_PERSON = {
    stem(word): place for place, row in enumerate(_PEOPLE.split("\n")) for word in row.split()
}


def _rivals() -> dict[str, frozenset[str]]:
    rivals: dict[str, set[str]] = {}
    for row in _KINDS.replace("\n        /", " /").strip().split("\n"):
        groups = [stems_of(group) for group in row.split("/")]
        for group in groups:
            others = frozenset[str]().union(*groups) - group
            for word in group:
                rivals.setdefault(word, set()).update(others)
    return {word: frozenset(others) for word, others in rivals.items()}


_RIVALS = _rivals()


def scopes_differ(a: Parse, b: Parse) -> bool:
    """Veto when the prompts ask about things of different owners, persons or kinds."""
    return _kinds_differ(a, b) or _people_differ(a, b) or _owners_differ(a, b) or _narrowed(a, b)


def _kinds_differ(a: Parse, b: Parse) -> bool:
    only_b = b.content - a.content
    return any(not only_b.isdisjoint(_RIVALS.get(word, ())) for word in a.content - b.content)


def _people_differ(a: Parse, b: Parse) -> bool:
    return _people(a) != _people(b)


def _people(parse: Parse) -> set[int]:
    return {_PERSON[word] for word in parse.content if word in _PERSON}


def _owners_differ(a: Parse, b: Parse) -> bool:
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
        for candidate in parse.stems[place + 1 : place + 1 + _LONGEST]:
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
