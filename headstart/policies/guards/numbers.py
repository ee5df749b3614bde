"""Numbers and their units.

"Five", "5", "5.0" and "5th" are one number; "$5", "5 USD" and "5 dollars" one amount. "One" alone
is as often a pronoun, "first" an adverb and "second" a unit, so none of them counts as a number;
against another number the guard fires all the same.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headstart.policies.guards.words import listed, stem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headstart.policies.guards.parse import Parse
    from headstart.policies.guards.words import Word

_ONES = listed(
    """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen
    """
)
_TENS = listed("twenty thirty forty fifty sixty seventy eighty ninety")
_ORDINALS = listed(
    """
    third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth
    fifteenth sixteenth seventeenth eighteenth nineteenth
    """
)
_SMALL = (
    {name: value for value, name in enumerate(_ONES)}
    | {name: value for value, name in enumerate(_ORDINALS, 3)}
    | {name: 10 * value for value, name in enumerate(_TENS, 2)}
    | {"twentieth": 20, "thirtieth": 30, "dozen": 12}
)
_AFTER_TENS = {"first": 1, "second": 2}
_SCALE = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9}
_ORDINAL_SUFFIXES = frozenset({"st", "nd", "rd", "th"})
_ROMAN = {
    "ii": "2", "iii": "3", "iv": "4", "vi": "6", "vii": "7", "viii": "8", "ix": "9", "xi": "11",
    "xii": "12", "xiii": "13", "xiv": "14", "xv": "15", "xvi": "16",
}  # fmt: skip
"""I, V and X are left out: as capitals they are mostly words and names."""
_ALSO_WORDS = frozenset({"iv", "vi", "xi"})
_DIGITS = re.compile(r"\d+(?:\.\d+)*")

_UNITS = {
    "%": "% percent pct",
    "usd": "$ usd dollar buck",
    "eur": "€ eur euro",
    "pound": "£ gbp pound quid lb",
    "jpy": "¥ jpy yen",
    "inr": "₹ inr rupee",
    "chf": "chf franc",
    "cent": "cent penny",
    "km": "km kilometer kilometre",
    "m": "m meter metre",
    "cm": "cm centimeter centimetre",
    "mm": "mm millimeter millimetre",
    "mile": "mile mi",
    "foot": "foot ft",
    "inch": "inch",
    "yard": "yard yd",
    "kg": "kg kilo kilogram",
    "g": "g gram",
    "mg": "mg milligram",
    "oz": "oz ounce",
    "ton": "ton tonne",
    "l": "l liter litre",
    "ml": "ml milliliter millilitre",
    "gallon": "gallon gal",
    "cup": "cup",
    "tbsp": "tbsp tablespoon",
    "tsp": "tsp teaspoon",
    "ms": "ms millisecond",
    "second": "second sec",
    "minute": "minute min",
    "hour": "hour hr h",
    "day": "day",
    "week": "week",
    "month": "month",
    "year": "year yr",
    "celsius": "celsius c",
    "fahrenheit": "fahrenheit f",
    "kelvin": "kelvin k",
    "kb": "kb kilobyte",
    "mb": "mb megabyte",
    "gb": "gb gigabyte",
    "tb": "tb terabyte",
    "w": "w watt",
    "kw": "kw kilowatt",
    "v": "v volt",
    "mph": "mph",
    "kph": "kph kmh",
    "am": "am a.m",
    "pm": "pm p.m",
}
_UNIT_OF = {stem(word): unit for unit, words in _UNITS.items() for word in words.split()}
_CURRENCIES = frozenset({"usd", "eur", "pound", "jpy", "inr", "chf"})


def quantities(words: Sequence[Word]) -> tuple[tuple[str, str], ...]:
    """Return every number with its unit, or "", sorted: (("30", "%"), ("7", "day"))."""
    found = []
    place = 0
    while place < len(words):
        word = words[place]
        value, after = _number_at(words, place)
        if value is not None:
            found.append((value, _unit_at(words, place, after)))
        elif not word.text.isalpha():  # numbers inside a name: "GPT4", "B2B", "v2.1"
            found += [(_canonical(digits), "") for digits in _DIGITS.findall(word.text)]
        place = after
    return tuple(sorted(found))


def is_number_word(word: str) -> bool:
    """Tell "five" and "fifth" from other words."""
    return word in _SMALL


def number_values() -> dict[str, str]:
    """Return the number words' stems with what they stand for: "seven", "seventh", "dozen"."""
    return {stem(word): str(value) for word, value in _SMALL.items()}


def numbers_differ(a: Parse, b: Parse) -> bool:
    """Veto unless both prompts hold the same numbers, each as often."""
    return [value for value, _ in a.quantities] != [value for value, _ in b.quantities]


def units_differ(a: Parse, b: Parse) -> bool:
    """Veto when a shared number has units that conflict, or is a percentage on one side only."""
    if a.quantities == b.quantities:
        return False
    units_a, units_b = _units(a.quantities), _units(b.quantities)
    for value in units_a.keys() & units_b.keys():
        one, other = units_a[value], units_b[value]
        if (one and other and not one & other) or ("%" in one) != ("%" in other):
            return True
    return False


def _units(found: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    units: dict[str, set[str]] = {}
    for value, unit in found:
        units.setdefault(value, set()).update({unit} - {""})
    return units


def _number_at(words: Sequence[Word], place: int) -> tuple[str | None, int]:
    """Return the number that begins at ``place``, if any, and the place after it."""
    word = words[place]
    if word.kind == "number":
        return _digits_at(words, place)
    if word.text in _SMALL or word.text in _SCALE:
        return _spelled_at(words, place)
    if word.text in _ROMAN and (word.capital or word.text not in _ALSO_WORDS):
        return _ROMAN[word.text], place + 1
    return None, place + 1


def _digits_at(words: Sequence[Word], place: int) -> tuple[str, int]:
    text, after = words[place].text, place + 1
    if after == len(words):
        return _canonical(text), after
    following = words[after]
    attached = following.start == words[place].end
    if attached and following.text in _ORDINAL_SUFFIXES:
        return _canonical(text), after + 1
    scale = 1000 if attached and following.text == "k" else _SCALE.get(following.text)
    if scale is None or text.count(".") > 1:
        return _canonical(text), after
    return _canonical(f"{float(text.replace(',', '')) * scale:.6f}"), after + 1


def _spelled_at(words: Sequence[Word], place: int) -> tuple[str | None, int]:
    start, total, current, tens = place, 0, 0, False
    while place < len(words):
        text = words[place].text
        scale = _SCALE.get(text)
        small = _SMALL.get(text, _AFTER_TENS.get(text) if tens else None)
        if small is not None and (place == start or current % 100 == 0 or (tens and small < 10)):
            current += small
            tens = 20 <= small < 100
        elif scale == 100 and current < 100:
            current = max(current, 1) * 100
        elif scale is not None and scale > 100:
            total, current = total + max(current, 1) * scale, 0
        else:
            break
        place += 1
    if words[start].text == "one" and place == start + 1:
        return None, place
    return str(total + current), place


def _unit_at(words: Sequence[Word], place: int, after: int) -> str:
    if after < len(words):
        unit = _UNIT_OF.get(stem(words[after].text))
        if unit is not None:
            return unit
    if place > 0:
        unit = _UNIT_OF.get(stem(words[place - 1].text), "")
        return unit if unit in _CURRENCIES else ""
    return ""


def _canonical(digits: str) -> str:
    """Drop separators, leading zeros and decimals that are all zero ("3.10" is not "3.1")."""
    digits = digits.replace(",", "")
    whole, dot, decimals = digits.partition(".")
    whole = whole.lstrip("0") or "0"
    return whole if not decimals.strip("0") else whole + dot + decimals
