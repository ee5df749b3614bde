"""Named things: C and C++, files, versions and identifiers, Niger and Nigeria, UK and US."""

from __future__ import annotations

import re
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

from headstart.policies.guards.dates import is_date_name
from headstart.policies.guards.words import is_function_word, listed, stem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.policies.guards.parse import Parse
    from headstart.policies.guards.words import Word

_SENTENCE_END = re.compile(r"[.?!:;\n\"(\[]\s*$|^\s*$")
_SYMBOL = re.compile(r"[+#_]|\w\.\w|^\.")
_ABBREVIATION = re.compile(r"(?:\w\.)+\w")
_DERIVED = frozenset({"", *listed("a e i n s y an en ean ian ese ish")})
"""Endings of a country and its people: Italy, Italian."""
_LEAST_SHARED = 4
_TITLE_SHARE = 0.8
"""Share of capitalised words from which a prompt is a title, where capitals mean nothing."""


def symbols(text: str, words: Sequence[Word]) -> frozenset[str]:
    """Return names that are told apart by a sign or one letter: "c++", "main.py", plan "b"."""
    found = {
        word.text
        for word in words
        if word.kind == "word"
        and not word.text.isalnum()
        and _SYMBOL.search(word.text)
        and not _is_prose(text[word.start : word.end])
    }
    if not text.isupper():
        found.update(
            word.text
            for before, word in pairwise(words)
            if len(word.text) == 1
            and word.capital
            and word.text != "i"
            and before.kind == "word"
            and not is_function_word(before.text)
        )
    return frozenset(found)


def _is_prose(token: str) -> bool:
    """Tell "a.m" and sentences without a space, "Thanks.When" or "sure...is", from names."""
    _, *parts = token.split(".")
    return any(part.istitle() or is_function_word(part) for part in parts if part) or bool(
        _ABBREVIATION.fullmatch(token)
    )


def names(text: str, words: Sequence[Word]) -> tuple[str, ...]:
    """Return the capitalised words inside sentences, in order, lower-case; none of a title's."""
    plain = [word for word in words if word.kind == "word" and len(word.text) > 1]
    capitals = sum(word.capital for word in plain)
    if capitals >= _TITLE_SHARE * len(plain) and len(plain) > 2:
        return ()
    return tuple(
        dict.fromkeys(
            stem(word.text.replace(".", ""))
            for word in words
            if word.kind == "word" and word.capital and _is_name(text, word)
        )
    )


def _is_name(text: str, word: Word) -> bool:
    if word.acronym:
        return True
    if is_function_word(word.text) or is_date_name(word.text):
        return False
    return not _SENTENCE_END.search(text, max(word.start - 4, 0), word.start)


def names_differ(a: Parse, b: Parse) -> bool:
    """Veto when each prompt names something that the other does not mention at all.

    A name on one side only is left to the other guards, except one told apart by symbols.
    """
    if a.symbols != b.symbols and (_unmatched_symbol(a, b) or _unmatched_symbol(b, a)):
        return True
    if a.names == b.names:
        return False
    only_a, only_b = _only(a, b), _only(b, a)
    return bool(only_a and only_b) and not _alike(only_a, only_b)


def _unmatched_symbol(a: Parse, b: Parse) -> bool:
    """Find a symbolic name of ``a`` that ``b`` lacks; "node" stands for "node.js"."""
    return any(
        "." not in name or stem(name.strip(".").split(".")[0]) not in b.stems
        for name in a.symbols - b.symbols
        if stem(name.replace(".", "")) not in b.stems
    )


def _only(a: Parse, b: Parse) -> list[str]:
    return [name for name in a.names if name not in b.names and name not in b.stems]


def _alike(one: Sequence[str], other: Sequence[str]) -> bool:
    """Tell an acronym from other names: "UK" for "United Kingdom", and "Italian" for "Italy"."""
    if _initials(one) in other or _initials(other) in one:
        return True
    return all(any(_derived(a, b) for b in other) for a in one)


def _initials(names: Sequence[str]) -> str:
    return "".join(name[0] for name in names)


def _derived(one: str, other: str) -> bool:
    shared = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    )
    if shared == min(len(one), len(other)) and max(len(one), len(other)) <= _LEAST_SHARED:
        return True  # US, USA
    return shared >= _LEAST_SHARED and {one[shared:], other[shared:]} <= _DERIVED
