"""The form of a question: what it asks for, how it joins two things, and the signs of formulas.

Sentence vectors hardly represent any of the three. "When was she born?" and "Where was she born?",
"red and blue" and "red or blue", "15 + 20" and "15 - 20" have similarities above 0.9.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headstart.policies.guards.words import is_function_word, listed, stem, stems_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headstart.policies.guards.words import Parse, Word

# --- what is asked for ---------------------------------------------------------------------------

_COUNT = "count"
_INVERTED = frozenset(listed("when where"))
"""These words ask only before a verb: "when does it open", and not "when it opens"."""
_VERBS = frozenset(
    listed("am is are was were do does did can could will would shall should may might has have")
)
_ASKING = frozenset(listed("who why"))
_CONTRACTED = {
    word: asked
    for asked in (*_INVERTED, *_ASKING)
    for word in (f"{asked}s", f"{asked}'s", f"{asked}'re", f"{asked}'d")
}
_KINDS = {
    word: asked
    for asked, words in {
        "when": "time date day month year",
        "where": "place location city town country",
        "who": "person",
    }.items()
    for word in words.split()
}
"""Nouns that make "what" and "which" ask for a time, a place or a person."""
_MARKS = _INVERTED | _ASKING | _CONTRACTED.keys() | {"what", "which", "many", "number"}
_LISTING = stems_of("what which who whose list show find give name")
"""Words that ask for the things themselves, not for how many there are."""
_AMOUNTS = stems_of(
    """
    amount number count maximum minimum max min limit total sum average quantity size value balance
    population much many remaining left
    """
)
"""Words that may ask for a number without "how many"."""


def asks(words: Sequence[Word]) -> frozenset[str]:
    """Return what a prompt asks for: a time, a place, a person, a reason, a number of things."""
    found = set()
    for place, word in enumerate(words):
        if word.text in _MARKS:
            before = words[place - 1].text if place else ""
            after = words[place + 1].text if place + 1 < len(words) else ""
            found.add(_asked(before, word.text, after))
    return frozenset(asked for asked in found if asked is not None)


def _asked(before: str, text: str, after: str) -> str | None:
    asking = _CONTRACTED.get(text, text)
    if asking in _INVERTED:
        return asking if asking != text or after in _VERBS else None
    if asking in _ASKING:
        return asking if not before or is_function_word(before) else None
    if text in {"what", "which"}:
        return _KINDS.get(after)
    if text == "many":
        return _COUNT if before == "how" else None
    if text == "number" and after == "of":  # not "the phone number of the hotel"
        return _COUNT if before in {"", "total"} or is_function_word(before) else None
    return None


def asked_differs(a: Parse, b: Parse) -> bool:
    """Veto when the prompts ask for different things: when / where, how many / which."""
    if a.asks == b.asks:
        return False
    ours, theirs = a.asks - {_COUNT}, b.asks - {_COUNT}
    if ours and theirs and ours.isdisjoint(theirs):
        return True
    if (_COUNT in a.asks) == (_COUNT in b.asks):
        return False
    listing = (a if _COUNT in b.asks else b).stems
    return not _LISTING.isdisjoint(listing) and _AMOUNTS.isdisjoint(listing)


# --- and, or -------------------------------------------------------------------------------------

_CONNECTIVES = frozenset({"and", "or"})
_COMPARING = stems_of("between difference differ compare comparison versus vs better best prefer")
"""Beside these words, "X and Y" and "X or Y" name the same two things."""
_REACH = 3
"""Most words between a connective and the word that it joins: "2019 or in the year 2020"."""


def joins(words: Sequence[Word]) -> frozenset[tuple[str, str, str]]:
    """Return each "and" and "or" between the words that it joins: ("red", "or", "blue")."""
    texts = [word.text for word in words]
    if _CONNECTIVES.isdisjoint(texts):
        return frozenset()
    found = set()
    for place, text in enumerate(texts):
        if text in _CONNECTIVES:
            before = next(_joined(texts[max(place - _REACH, 0) : place][::-1]), "")
            after = next(_joined(texts[place + 1 : place + 1 + _REACH]), "")
            if before and after:
                found.add((before, text, after))
    return frozenset(found)


def _joined(texts: Sequence[str]) -> Iterator[str]:
    return (stem(text) for text in texts if not is_function_word(text))


def connectives_differ(a: Parse, b: Parse) -> bool:
    """Veto when both prompts ask for things, one for those of X and Y and one for those of X or Y.

    "Do you take Visa or Mastercard?" has the answer of "Are Visa and Mastercard accepted?".
    """
    if a.joins == b.joins or not a.joins or not b.joins or a.negators or b.negators:
        return False
    only_a, only_b = a.joins - b.joins, b.joins - a.joins
    pairs = {(before, after) for before, _, after in only_a}
    if not any((before, after) in pairs for before, _, after in only_b):
        return False
    return all(_lists(side) and _COMPARING.isdisjoint(side.stems) for side in (a, b))


def _lists(parse: Parse) -> bool:
    return _COUNT in parse.asks or not _LISTING.isdisjoint(parse.stems)


# --- signs ---------------------------------------------------------------------------------------

_OTHER_SIGNS = {
    "\u00d7": "*", "\u00f7": "/", "\u2212": "-", "\u2264": "<=", "\u2265": ">=", "\u2260": "!=",
}  # fmt: skip
_SAME_SIGN = str.maketrans(_OTHER_SIGNS)
_SPOKEN_SIGNS = {"plus": "+", "minus": "-", "times": "*"}
_SPOKEN = re.compile(r"(?<=\d )(?:plus|minus|times)(?= \d)", re.IGNORECASE)
_FORMATTING = re.compile(
    r"^[ \t]*[*>+-]+(?=[ \t])|\*\*(?=[^\W\d])|(?<=[^\W\d])\*\*"
    r"|[<{\[]\w[\w ]*[>}\]]|[>\\]\s*\Z",
    re.MULTILINE,
)
"""Bullets, quotes, bold text, placeholders such as "[name]", and a slip at the end."""
_FORMULA = re.compile(
    r"""
      [*^=<>|\\{}\[\]] | && | !(?==)
    | \+(?=[\w(]) | (?<=\s)\+(?=\s)
    | (?<![\w)\]}-])-(?=[\d.(]|\w\b|-\w)             # -5, -x, --force
    | (?:(?<=[\d)\]}]\ )|(?<=\b\w\ ))-(?=\ (?:[\d(]|\w\b))    # 12 - 4, x - 4
    | (?<=[\d)\]])/(?=[\d(\[])
    | \((?=\s*\() | \)(?=\s*[()])
    """,
    re.VERBOSE,
)
"""Signs that prose does not have."""
_SIGN = re.compile(
    r"[+*^=<>|\\{}\[\]()~] | && | !(?==) | [-/](?![^\W\d]{2}) | (?<![^\W\d]{2})[-/]", re.VERBOSE
)
"""Signs that count beside those. A hyphen or a slash between two words does not."""

_ANY = re.compile(rf"[-+*/^=<>|\\{{}}\[\]()&{''.join(_OTHER_SIGNS)}]|\d [pmt]", re.IGNORECASE)
"""What every formula has, and little prose."""


def signs(text: str) -> str:
    """Return the signs of a formula or of code, in their order; nothing for prose."""
    if _ANY.search(text) is None:
        return ""
    plain = _FORMATTING.sub("", text.translate(_SAME_SIGN))
    plain = _SPOKEN.sub(lambda found: _SPOKEN_SIGNS[found[0].lower()], plain)
    return "".join(_SIGN.findall(plain)) if _FORMULA.search(plain) else ""


def signs_differ(a: Parse, b: Parse) -> bool:
    """Veto unless both prompts have the same signs in their formulas and code."""
    return a.signs != b.signs
