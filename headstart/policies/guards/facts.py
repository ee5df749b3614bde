"""The facts of a prompt: numbers and units, dates, quantifiers, comparisons, names.

Each kind of fact has a function that reads it from the words of a prompt, and a guard
(``…_differ``) that compares it with the same fact of another prompt. For example, "Do all trains to
Rome on Monday take more than 5 hours?" has the quantity ("5", "hour"), the date "monday" with the
relation "at", the quantifier "all", the limit "least" with the bound ">", and the name "rome".
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from headstart.policies.guards.words import (
    VOCABULARY,
    by_first_word,
    count_common_start,
    is_function_word,
    stem,
    stem_classes,
    stems_of,
    without_accents,
)
from headstart.types import word_classes, words_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headstart.policies.guards.words import Parse, Word

# --- numbers and units ---------------------------------------------------------------------------

_ONES = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen
"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_ORDINALS = """
    third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth
    fifteenth sixteenth seventeenth eighteenth nineteenth
"""
_SMALL = (
    {name: value for value, name in enumerate(_ONES.split())}
    | {name: value for value, name in enumerate(_ORDINALS.split(), 3)}
    | {name: 10 * value for value, name in enumerate(_TENS.split(), 2)}
    | {"twentieth": 20, "thirtieth": 30, "dozen": 12}
)
_AFTER_TENS = {"first": 1, "second": 2}
_BEFORE_LAST = frozenset({"second", "next"})
"""In "second to last" and "next to last", these words mean the one before the last."""
_SCALE = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9}
_ORDINAL_SUFFIXES = frozenset({"st", "nd", "rd", "th"})
_ROMAN = {
    "ii": "2", "iii": "3", "iv": "4", "vi": "6", "vii": "7", "viii": "8", "ix": "9", "xi": "11",
    "xii": "12", "xiii": "13", "xiv": "14", "xv": "15", "xvi": "16",
}  # fmt: skip
"""I, V and X are left out: single capitals are mostly words and names."""
_ALSO_WORDS_ROMAN = frozenset({"iv", "vi", "xi"})
_DIGITS = re.compile(r"\d+(?:\.\d+)*")

_UNIT_OF = stem_classes(by_first_word(VOCABULARY["units"]))
_ONE = frozenset({"one", "a", "an"})
_TIME_UNITS = stems_of("minute hour day week month year")
_BEFORE_TIME_UNIT = stems_of("a an of few couple several half many each every per")
"""Words before a unit of time that has no number."""
_CURRENCIES = frozenset({"usd", "eur", "pound", "jpy", "inr", "chf"})


def quantities(words: Sequence[Word]) -> tuple[tuple[str, str], ...]:
    """Return every number with its unit ("": none), sorted: (("30", "%"), ("7", "day")).

    "Five", "5", "5.0" and "5th" are equal numbers; "$5", "5 USD" and "5 dollars" are equal amounts.
    "One" is often a pronoun, "first" an adverb and "second" a unit, so these words do not count,
    but "second best" does. A number in their place in the other prompt is still a veto.
    """
    found = []
    place = 0
    while place < len(words):
        word = words[place]
        value, after = _number_at(words, place)
        if value is not None:
            found.append((value, _unit_at(words, place, after)))
        elif not word.text.isalpha():  # numbers inside a name: "GPT4", "B2B", "v2.1"
            found += [(_canonical_number(digits), "") for digits in _DIGITS.findall(word.text)]
        place = after
    return tuple(sorted(found))


def number_values() -> dict[str, str]:
    """Return the values of number words by their stems: "seven", "seventh", "dozen"."""
    return {stem(word): str(value) for word, value in _SMALL.items()}


def numbers_differ(a: Parse, b: Parse) -> bool:
    """Veto unless both prompts have the same numbers, each equally often.

    "1 litre" is "one litre" and "a litre".
    """
    ours, theirs = (Counter(value for value, _ in side.quantities) for side in (a, b))
    only_ours, only_theirs = ours - theirs, theirs - ours
    if not only_ours and not only_theirs:
        return False
    if only_ours + only_theirs != Counter(["1"]):
        return True
    with_digit, other = (a, b) if only_ours else (b, a)
    counted = {after for word, after in pairwise(with_digit.stems) if word == "1"}
    triples = zip(("", *other.stems), other.stems, other.stems[1:], strict=False)
    return counted.isdisjoint(
        after for before, word, after in triples if word in _ONE and before != "half"
    )


def units_differ(a: Parse, b: Parse) -> bool:
    """Veto if a common number has conflicting units, or is a percentage in one prompt only.

    All units in the words near a number count: "5 miles in feet" differs from "5 miles in yards".
    Units of time count without a number, too: "in a few minutes" differs from "in a few hours".
    """
    if not a.quantities or not b.quantities:
        return _vague_times_differ(a, b)
    ours, theirs = ({_UNIT_OF.get(word) for word in side.stems} for side in (a, b))
    if ours - theirs - {None} and theirs - ours - {None}:
        return True
    units_a, units_b = _units(a.quantities), _units(b.quantities)
    for value in units_a.keys() & units_b.keys():
        one, other = units_a[value], units_b[value]
        if (one and other and not one & other) or ("%" in one) != ("%" in other):
            return True
    return False


def _vague_times_differ(a: Parse, b: Parse) -> bool:
    """Tell whether each has a time that the other lacks: "a few minutes", "a few hours"."""
    ours, theirs = (
        {after for word, after in pairwise(side.stems) if word in _BEFORE_TIME_UNIT} & _TIME_UNITS
        for side in (a, b)
    )
    return bool(ours - theirs and theirs - ours)


def _units(found: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    units: dict[str, set[str]] = {}
    for value, unit in found:
        units.setdefault(value, set()).update({unit} - {""})
    return units


def _number_at(words: Sequence[Word], place: int) -> tuple[str | None, int]:
    """Return the number that begins at ``place``, or None, and the place after it."""
    word = words[place]
    if word.kind == "number":
        return _digits_at(words, place)
    if word.text in _SMALL or word.text in _SCALE:
        return _spelled_at(words, place)
    if word.text in _BEFORE_LAST:
        following = [each.text for each in words[place + 1 : place + 3]]
        if following == ["to", "last"]:
            return "-2", place + 3
        _, degree = _ADJECTIVE_FORMS.get("".join(following[:1]), ("", ""))
        if (word.text, degree) == ("second", "most"):  # "second best"
            return "2", place + 1
    if word.text in _ROMAN and (word.capital or word.text not in _ALSO_WORDS_ROMAN):
        return _ROMAN[word.text], place + 1
    return None, place + 1


def _digits_at(words: Sequence[Word], place: int) -> tuple[str, int]:
    """Return the number in digits at ``place``, and the place after it: "5", "5th", "5k"."""
    text, after = words[place].text, place + 1
    if after == len(words):
        return _canonical_number(text), after
    following = words[after]
    attached = following.start == words[place].end
    if attached and following.text in _ORDINAL_SUFFIXES:
        return _canonical_number(text), after + 1
    scale = 1000 if attached and following.text == "k" else _SCALE.get(following.text)
    if scale is None or text.count(".") > 1:
        return _canonical_number(text), after
    return _canonical_number(f"{float(text.replace(',', '')) * scale:.6f}"), after + 1


def _spelled_at(words: Sequence[Word], place: int) -> tuple[str | None, int]:
    """Return the number in words at ``place``, or None for a single "one", and the place after it.

    After "two thousand three hundred", ``total`` is 2000, and ``rest`` is 300.
    """
    start, total, rest, after_tens = place, 0, 0, False
    while place < len(words):
        text = words[place].text
        scale = _SCALE.get(text)
        small = _SMALL.get(text, _AFTER_TENS.get(text) if after_tens else None)
        continues = place == start or rest % 100 == 0
        if small is not None and (continues or (after_tens and small < 10)):
            rest += small
            after_tens = 20 <= small < 100
        elif scale == 100 and rest < 100:
            rest = max(rest, 1) * 100
        elif scale is not None and scale > 100:
            total, rest = total + max(rest, 1) * scale, 0
        else:
            break
        place += 1
    if words[start].text == "one" and place == start + 1:
        return None, place
    return str(total + rest), place


def _unit_at(words: Sequence[Word], place: int, after: int) -> str:
    """Return the unit after the number ``place:after``, or the currency before it; "": none."""
    if after < len(words):
        unit = _UNIT_OF.get(stem(words[after].text))
        if unit is not None:
            return unit
    if place > 0:
        unit = _UNIT_OF.get(stem(words[place - 1].text), "")
        return unit if unit in _CURRENCIES else ""
    return ""


def _canonical_number(digits: str) -> str:
    """Drop separators, leading zeros, and decimals if all are zero ("3.10" stays: a version)."""
    digits = digits.replace(",", "")
    whole, dot, decimals = digits.partition(".")
    whole = whole.lstrip("0") or "0"
    return whole if not decimals.strip("0") else whole + dot + decimals


# --- days and months -----------------------------------------------------------------------------

_MONTH_NAMES = """
    january february march april may june july august september october november december
"""
_SHORT_MONTH_NAMES = "jan feb apr jun jul aug sep sept oct nov dec"
MONTHS = stems_of(_MONTH_NAMES + _SHORT_MONTH_NAMES)
_DATE_NAMES = words_of(_MONTH_NAMES) | words_of("""
    monday tuesday wednesday thursday friday saturday sunday
    today tomorrow yesterday tonight weekend weekday
""")
_SHORT_DATE_NAMES = words_of("mon tue tues wed thu thur thurs fri " + _SHORT_MONTH_NAMES)
_DATE_OF = (
    {name: name for name in _DATE_NAMES}
    | {name + "s": name for name in _DATE_NAMES}
    | {short: next(n for n in _DATE_NAMES if n.startswith(short)) for short in _SHORT_DATE_NAMES}
    | word_classes(by_first_word(VOCABULARY["foreign_dates"]))
)
_ALSO_WORDS_DATE = frozenset({"may", "march", "mon", "wed", "fri", "jan", "jun", "dec", "marches"})
_PRONOUNS = words_of("i we you he she it they")
_BEFORE_MONTH = words_of("in since until till during last next early late mid")
_PERIOD = re.compile(
    r"(?:19|20)\d\d|[qh][1-4]|year|quarter|month|week|season|winter|summer|holidays?"
)
_CLOCK = words_of("am pm a.m p.m o'clock")
_RELATIONS = word_classes({
    "before": "before until till by", "after": "after since", "at": "on in at during",
    "from": "from",
})  # fmt: skip
_PART_OF_DAY = word_classes({
    "morning": "morning mornings", "afternoon": "afternoon afternoons",
    "evening": "evening evenings night nights",
})  # fmt: skip
_PARTS_BY_CLOCK = {"am": {"morning"}, "pm": {"afternoon", "evening"}}
_PART_OF_PERIOD = word_classes(
    {"start": "beginning start early", "middle": "middle mid", "end": "end late"}
)
_BESIDE_PERIOD = words_of("early mid late")
_LONGEST_PERIOD = 4
"""The most words after "the end" of a period: "of the following year"."""
_IN_DATE = words_of("the of early mid late first second next this my your our st nd rd th")
"""Words between a preposition and its date: "before the 4th of March"."""
_IN_PERIOD = _IN_DATE | words_of("a following past previous prior current coming upcoming around")
"""Words between "the end" and a period: "of the previous year"."""


def dates(words: Sequence[Word]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the days and months of a prompt, sorted, and the relations to all its times.

    With a day or a month, parts of the day count, too; and so does "the end of the year".
    A relation is "before", "after" or "at"; it comes from the last word before the time that is not
    part of it. Times are days, months, years, seasons and times of day ("before 3 pm").
    """
    found: set[str] = set()
    relations: set[str] = set()
    relation, read = "", 0
    for place, word in enumerate(words):
        name = _DATE_OF.get(word.text.removesuffix("'s"))
        if name is not None and (word.text not in _ALSO_WORDS_DATE or _is_date(words, place)):
            found.add(name)
        elif not (
            _PERIOD.fullmatch(word.text) or (word.kind == "number" and _is_clock(words, place))
        ):
            continue
        relation = _relation_in(words[read:place], relation)
        read = place
        relations.update(("at", "after") if relation == "from" else (relation,))
    texts = [word.text for word in words]
    if found:
        found.update(_parts_of_day(texts))
    if not _PART_OF_PERIOD.keys().isdisjoint(texts):
        found.update(_parts_of_periods(texts))
    return tuple(sorted(found)), frozenset(relations - {""})


def _relation_in(words: Sequence[Word], known: str) -> str:
    """Return the relation of the words before a time; ``known`` if there are none: "May 4"."""
    for word in reversed(words):
        if not (word.text.isdecimal() or word.text in _DATE_OF or word.text in _IN_DATE):
            return _RELATIONS.get(word.text, "")
    return known


def _parts_of_day(texts: Sequence[str]) -> Iterator[str]:
    for before, text in zip(("", *texts), texts, strict=False):
        if text in _PART_OF_DAY and before != "good":
            yield _PART_OF_DAY[text]


def _parts_of_periods(texts: Sequence[str]) -> Iterator[str]:
    """Yield the parts of months, years and the like: "the end of this year", "late March"."""
    for place, text in enumerate(texts):
        following = texts[place + 1 : place + 1 + _LONGEST_PERIOD]
        if text in _PART_OF_PERIOD and following[:1] == ["of"]:
            following = [text for text in following if text not in _IN_PERIOD]
        elif text not in _BESIDE_PERIOD:
            continue
        period = following[0] if following else ""
        if stem(period) in MONTHS or _PERIOD.fullmatch(period):
            yield f"{_PART_OF_PERIOD[text]} {_DATE_OF.get(period, period)}"


def _is_clock(words: Sequence[Word], place: int) -> bool:
    """Tell whether the number at ``place`` is a time of day: "3 pm"."""
    return place + 1 < len(words) and words[place + 1].text in _CLOCK


def dates_differ(a: Parse, b: Parse) -> bool:
    """Veto unless both prompts name the same days and months, with the same relations.

    "7 am" is "7 in the morning". "When is the start of the day?" is "When does the day start?".
    """
    units = (unit for _, unit in (*a.quantities, *b.quantities))
    parts_by_clock = frozenset[str]().union(*(_PARTS_BY_CLOCK.get(unit, ()) for unit in units))
    if _more_dates(a, b) - parts_by_clock or _more_dates(b, a) - parts_by_clock:
        return True
    return bool(a.when and b.when) and a.when.isdisjoint(b.when)


def _more_dates(parse: Parse, other: Parse) -> set[str]:
    """Return the dates that the other prompt does not name, and not as a verb: "start"."""
    more = {*parse.dates} - {*other.dates}
    if any(" " in each for each in other.dates):  # it names another part of a period
        return more
    others = {"start" if word == "begin" else word for word in other.stems}
    return {each for each in more if each.partition(" ")[0] not in others}


def _is_date(words: Sequence[Word], place: int) -> bool:
    """Tell "May" from "may" and "March" from "march", by the capital or by the words around it."""
    if words[place + 1 : place + 2] and words[place + 1].text in _PRONOUNS:
        return False  # "May I …?"
    if place > 0 and (words[place].capital or words[place - 1].text in _BEFORE_MONTH):
        return True
    beside = (*words[max(place - 1, 0) : place], *words[place + 1 : place + 2])
    return any(word.text[0].isdecimal() for word in beside)


# --- quantifiers ---------------------------------------------------------------------------------

_ONLY = "only"
_QUANTIFIER_CLASS = word_classes({
    "all": "all every each everyone everybody everything entire whole",
    "some": "some half someone somebody", "both": "both", "either": "either", "one": "one single",
    "several": "several multiple", _ONLY: "only solely exclusively",
})  # fmt: skip
_RIVAL_QUANTIFIERS = (
    ("all", "some"), ("all", "one"), ("all", "any"), ("both", "either"), ("one", "several"),
    ("all", "most"), ("any", "most"), ("some", "most"),
)  # fmt: skip
_FOREIGN_CLASS = word_classes(
    {"all": VOCABULARY["foreign_all"], "some": VOCABULARY["foreign_some"]}
)
_BEFORE_ANY = words_of("am is are was were there do does did have has")
_BEFORE_SUPERLATIVE = words_of("the at")
_PLURALS = words_of("of people men women children")
_NO_PLURALS = ("ss", "us", "is", "less", "ous")
_TIMES = words_of("time day night week month year hour minute morning evening single")
_BEFORE_ALL = words_of("at after above in")
_DETERMINERS = words_of("of the this that these those my your his her its our their")
"""Words after an "all" that means each thing: "in all the shops", but "ten in all"."""
_BEFORE_OF_ALL = words_of("out first best most least last worst")
_AFTER_ONLY = words_of("been way ways reason")
_AFTER_ALL = words_of("right set about time")
_AFTER_SOME = words_of("reason help information info advice more time ideas tips way")


def quantifiers(words: Sequence[Word], *, foreign: bool = False) -> frozenset[str]:
    """Return the classes of the quantifiers in a prompt, without those in idioms.

    "Any" counts only in questions such as "Are any …?". Elsewhere it may mean "all": "Can I use any
    card?".
    """
    found = set()
    for place, word in enumerate(words):
        name = _QUANTIFIER_CLASS.get(word.text)
        if name is None and foreign:
            name = _FOREIGN_CLASS.get(word.text)
        before = words[place - 1].text if place else ""
        after = words[place + 1].text if place + 1 < len(words) else ""
        if word.text == "any" and before in _BEFORE_ANY:
            name = "any"
        elif word.text == "most" and before not in _BEFORE_SUPERLATIVE and _is_plural(after):
            name = "most"
        if name is None:
            continue
        last = words[max(place - 2, 0) : place + 1]
        if not (_is_quantifier_idiom(word.text, before, after) or _is_out_of_all(last)):
            found.add(name)
    return frozenset(found)


def _is_plural(word: str) -> bool:
    """Tell whether "most" before this word means most of these things: "most birds"."""
    return word in _PLURALS or (word.endswith("s") and not word.endswith(_NO_PLURALS))


def quantifiers_differ(a: Parse, b: Parse) -> bool:
    """Veto if the prompts have rival quantifiers, or if only one of them says "only"."""
    only_a, only_b = a.quantifiers - b.quantifiers, b.quantifiers - a.quantifiers
    if _ONLY in only_a or _ONLY in only_b:
        return True
    return any(
        (one in only_a and other in only_b) or (one in only_b and other in only_a)
        for one, other in _RIVAL_QUANTIFIERS
    )


def _is_quantifier_idiom(text: str, before: str, after: str) -> bool:
    if text == "all":
        ends = not after or (is_function_word(after) and after not in _DETERMINERS)
        return before == "not" or after in _AFTER_ALL or (before in _BEFORE_ALL and ends)
    if text == "some":
        return after in _AFTER_SOME
    if text in {"every", "each"}:
        return after in _TIMES
    if text in {"one", "single"}:  # "one" may be a pronoun: "which one is it"
        return before in {"every", "each", "than"} or not after or is_function_word(after)
    return text == _ONLY and (before in {"not", "if"} or after in _AFTER_ONLY)


def _is_out_of_all(words: Sequence[Word]) -> bool:
    """Tell whether up to three words end with an "of all" that names what to choose from.

    Yes: "(Out) of all seats, which are free?", "first of all". No: "get rid of all of my orders".
    """
    texts = [word.text for word in words]
    if texts[-2:] != ["of", "all"]:
        return False
    begins = len(words) == 2 or (words[-2].capital and not words[-1].capital)
    return begins or texts[0] in _BEFORE_OF_ALL


# --- comparisons ---------------------------------------------------------------------------------

_LEAST, _MOST, _EXACT = "least", "most", "exact"
_OPPOSITE = {_LEAST: _MOST, _MOST: _LEAST, _EXACT: _EXACT}
_LIMITS = word_classes({
    _LEAST: "least over above exceeding minimum min after beyond",
    _MOST: "most under below maximum max before until till within by",
    _EXACT: "exactly precisely",
})  # fmt: skip
"""Words that set a limit before a number: "over 18"."""
_THAN = word_classes({
    _LEAST: "more greater larger bigger higher longer older later",
    _MOST: "less fewer smaller lower shorter younger earlier cheaper",
})  # fmt: skip
"""Words that set a limit together with "than" before a number ("more than 5"), or with "or" after
it ("5 or more")."""
_BESIDE_OR = _THAN | word_classes({_LEAST: "over above", _MOST: "under below"})
DENIALS = frozenset({"no", "not"})
"""Words that reverse a limit after them: "no more than 5"."""
_INCLUSIVE = {_LEAST: ">=", _MOST: "<="}
_AFTER_AT = {"least": _LEAST, "most": _MOST}
_BEFORE_AMOUNT = words_of("rs inr usd eur gbp")
"""Currencies between a limit and its number: "under Rs 500"."""

_ADJECTIVES = VOCABULARY["adjectives"]
_GOOD = "good"
_PLAIN_FORMS = {
    name: stems_of(group) for name, group in by_first_word(_ADJECTIVES + "/ much many").items()
}
_IRREGULARS = {
    "better": ("good", "more"), "best": ("good", "most"), "worse": ("bad", "more"),
    "worst": ("bad", "most"), "furthest": ("far", "most"), "many": ("much", ""),
    "less": ("little", "more"), "more": ("much", "more"), "much": ("much", ""),
}  # fmt: skip
_ALONE = words_of("""
    better worse cheaper heavier lighter harder stronger weaker faster slower safer easier bigger
    larger smaller
""")
"""Words that also compare without "than". "Lower" and "earlier" are left out: the first may be a
verb, the second an adverb."""
LISTING = stems_of("""
    what which who whose list show find give name
    welche welcher welches cuál cuáles quel quelle quels quale quali
""")
"""Words that ask for the things themselves, and not for their number."""
_WAYS = words_of("way ways method methods")
"""The best way and the easiest way are taken to be the same."""
_THAN_REACH = 4
"""The most words between a comparative and its "than"."""


def _adjective_forms() -> dict[str, tuple[str, str]]:
    forms = dict(_IRREGULARS)
    for word, name in word_classes(by_first_word(_ADJECTIVES)).items():
        base = word.removesuffix("e")
        if base.endswith("y"):
            base = base[:-1] + "i"
        for ending, degree in (("er", "more"), ("est", "most")):
            forms[base + ending] = forms[base + base[-1] + ending] = (name, degree)
        forms[word] = (name, "")
    return forms


_ADJECTIVE_FORMS = _adjective_forms()
_AFTER_AMOUNT = frozenset({"than", *_ADJECTIVE_FORMS})  # "more than 5", "more expensive than"


def limits(words: Sequence[Word]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the kinds of limits on the numbers of a prompt, and their bounds.

    The kinds are ``least``, ``most`` and ``exact``. A bound says whether the number itself is
    included: ``>=`` for "at least 5" and "5 or more", ``>`` for "more than 5", and likewise ``<=``
    and ``<``. "Over 5" is ambiguous and has no bound.
    """
    found, bounds = set(), set()
    for place, word in enumerate(words):
        if word.kind != "number" and word.text not in _SMALL:
            continue
        before = [other.text for other in words[max(place - 5, 0) : place] if other.kind == "word"]
        after = [other.text for other in words[place + 1 : place + 4]]
        limit = next((_BESIDE_OR.get(other) for one, other in pairwise(after) if one == "or"), None)
        bound = _INCLUSIVE.get(limit or "")
        if limit is None:  # not "5 or more"
            limit, bound = _limit_before([text for text in before if text not in _BEFORE_AMOUNT])
        if limit is not None:
            found.add(limit)
        if bound is not None:
            bounds.add(bound)
    return frozenset(found), frozenset(bounds)


def _limit_before(before: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the limit that the words before a number set, and its bound. Each may be None."""
    if not before:
        return None, None
    *rest, last = before
    bound = None
    if last == "than" and rest:  # "more than"
        limit, may_deny = _THAN.get(rest[-1]), rest[-2:-1]
        bound = {_LEAST: ">", _MOST: "<"}.get(limit or "")
    elif last == "to" and rest and rest[-1] == "up":
        limit, may_deny = _MOST, []
    else:  # "over"
        limit, may_deny = _LIMITS.get(last), rest[-1:]
        if last in _AFTER_AT and may_deny == ["at"]:
            bound = _INCLUSIVE[_AFTER_AT[last]]
    if limit is not None and not DENIALS.isdisjoint(may_deny):  # "no more than"
        limit = _OPPOSITE[limit]
        bound = None if bound is None else _INCLUSIVE[limit]
    return limit, bound


def degrees(words: Sequence[Word]) -> frozenset[tuple[str, str]]:
    """Return the comparisons in a prompt: ("cheap", "more"), with "most" or with "same"."""
    found = set()
    for place, word in enumerate(words):
        if word.text not in _ADJECTIVE_FORMS:
            continue
        name, degree = _ADJECTIVE_FORMS[word.text]
        before = words[place - 1].text if place else ""
        degree = degree or (before if before in {"more", "most"} else "")
        after = [other.text for other in words[place + 1 : place + 1 + _THAN_REACH]]
        if name in {"much", "little"} and not _AFTER_AMOUNT.isdisjoint(after[:1]):
            continue
        if not degree and "as" in after and before == "as":
            found.add((name, "same"))
        elif degree == "most" and _WAYS.isdisjoint(after[:1]):
            found.add((name, "most"))
        elif degree == "more" and (word.text in _ALONE or "than" in after):
            found.add((name, "more"))
    return frozenset(found)


def comparisons_differ(a: Parse, b: Parse) -> bool:
    """Veto if limits conflict, or if the prompts compare different things or in different degrees.

    If both prompts have numbers, a bound in one of them is also a veto if the other has no limit.
    """
    both_have_limits = bool(a.limits and b.limits)
    if both_have_limits and a.limits.isdisjoint(b.limits):
        return True
    # A limit without a bound is ambiguous: "over 5" may mean "at least 5".
    comparable = (a.bounds and b.bounds) or not both_have_limits
    if comparable and a.bounds != b.bounds and a.quantities and b.quantities:
        return True
    ours, theirs = a.degrees, b.degrees
    if all(_asks_for_good(side) for side in (a, b)):
        ours, theirs = (
            frozenset(each for each in side if each[0] != _GOOD) for side in (ours, theirs)
        )
    if ours and theirs:
        return ours.isdisjoint(theirs)
    # "The cheapest phone" is not "a cheap phone".
    plain = {*(b if ours else a).stems}
    return any(degree == "most" and plain & _PLAIN_FORMS[name] for name, degree in {*ours, *theirs})


def _asks_for_good(parse: Parse) -> bool:
    """Tell whether a prompt asks for good things.

    "Some good books" then equals "the best books".
    """
    praises = any(name == _GOOD for name, _ in parse.degrees)
    praises = praises or not _PLAIN_FORMS[_GOOD].isdisjoint(parse.stems)
    return praises and bool(parse.asks or not LISTING.isdisjoint(parse.stems))


# --- names ---------------------------------------------------------------------------------------

_SENTENCE_END = re.compile(r"[.?!:;¿¡…\n\"(\[]\s*$|^\s*$")
_SYMBOL = re.compile(r"[+#_]|\w\.\w|^\.")
_MODEL = re.compile(r"([\d.,]*\d)([^\W\d_]+)")
_PLAIN_ENDINGS = {*_ORDINAL_SUFFIXES, *"skKxX"}
"""Letters after a number that do not make it the name of a model: "1980s", "4th", "10k", "2x"."""
_ABBREVIATION = re.compile(r"(?:\w\.)+\w")
_DERIVED = words_of("a e i n s y an en ean ian ese ish") | {""}
"""Endings in which the names of a country and of its people differ: Italy, Italian."""
_LEAST_SHARED_LETTERS = 4
_PLURAL_NAME = re.compile(r"\w[^\W\d_A-Z]*[^\W\d_A-Zsui]s")
"""Matches a capital letter, small letters and the ending of a plural."""
_ANY_NUMBER = "'s"
"""Marks a name that may mean the same as its plural: "Wendy's" and "Wendys", "a Tesla" and
"Teslas"."""
_BEFORE_ONE = words_of("a an my")
_TITLE_SHARE = 0.8
"""A prompt with this share of capitalised words is a title, and its capitals do not show names."""


def symbols(text: str, words: Sequence[Word]) -> frozenset[str]:
    """Return the names with a sign, and of one letter: "c++", "main.py", the "b" in "plan B"."""
    found = {
        word.text
        for word in words
        if word.kind == "word"
        and not word.text.isalnum()
        and _SYMBOL.search(word.text)
        and not _is_prose(text[word.start : word.end])
    }
    if _DIGITS.search(text):
        found.update(_models(text, words))
    if not text.isupper():
        found |= {
            word.text
            for before, word in pairwise(words)
            if len(word.text) == 1
            and word.capital
            and word.text != "i"
            and before.kind == "word"
            and not is_function_word(before.text)
        }
    return frozenset(found)


def _models(text: str, words: Sequence[Word]) -> Iterator[str]:
    """Yield the names of models in a series: "255s", "4o", and "pro" in "Phone 15 Pro"."""
    for series, number, mark in zip((None, *words), words, words[1:], strict=False):
        letters, gap = mark.text, text[number.end : mark.start]
        is_unit = stem(letters) in _UNIT_OF or (len(letters) > 1 and is_function_word(letters))
        if is_unit or mark.kind != "word" or not letters.isalpha():
            continue
        has_series = series is not None and not is_function_word(series.text)
        is_variant = mark.capital and not mark.acronym
        if not gap and number.kind == "number":
            if text[mark.start : mark.end] not in _PLAIN_ENDINGS:
                yield number.text + letters
        elif has_series and is_variant and gap == " " and _DIGITS.search(number.text):
            yield letters


def _is_prose(token: str) -> bool:
    """Tell whether a word with a dot is no name: "a.m", or a missing space ("Thanks.When")."""
    _, *parts = token.split(".")
    return any(part.istitle() or is_function_word(part) for part in parts if part) or bool(
        _ABBREVIATION.fullmatch(token)
    )


def names(text: str, words: Sequence[Word]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the capitalised words inside sentences, and those of them that are plurals.

    They are stems, the first ones in their order. A plural such as "Aliens" counts only if the name
    has one word, as "New Years Eve" has not. The others may have ``_ANY_NUMBER``. In a prompt with
    nearly all words capitalised, capitals do not show names: both are empty.
    """
    plain = [word for word in words if word.kind == "word" and len(word.text) > 1]
    # In titles, too, "'ll" and ".env" begin with a sign.
    capitals = sum([word.capital or not text[word.start].isalpha() for word in plain])
    if capitals >= _TITLE_SHARE * len(plain) and len(plain) > 2:
        return (), frozenset()
    found: dict[str, None] = {}
    plurals = set()
    for place, word in enumerate(words):
        if word.kind != "word" or not word.capital or not _is_name(text, word):
            continue
        stemmed = stem(word.text.replace(".", ""))
        found[stemmed] = None
        if _PLURAL_NAME.fullmatch(text, word.start, word.end):
            beside = *words[max(place - 1, 1) : place], *words[place + 1 : place + 2]
            if not any(each.capital for each in beside):
                plurals.add(stemmed)
        elif word.text.endswith("'s") or (place and words[place - 1].text in _BEFORE_ONE):
            plurals.add(stemmed + _ANY_NUMBER)
    return tuple(found), frozenset(plurals)


def _is_name(text: str, word: Word) -> bool:
    if word.acronym:
        return True
    if is_function_word(word.text) or word.text in _DATE_OF:
        return False
    return not _SENTENCE_END.search(text, max(word.start - 4, 0), word.start)


def names_differ(a: Parse, b: Parse) -> bool:
    """Veto if each prompt has a name that the other does not contain at all.

    If only one prompt has such a name, this guard vetoes only for a name from ``symbols``.
    """
    if a.symbols != b.symbols and (_unmatched_symbol(a, b) or _unmatched_symbol(b, a)):
        return True
    other_names = a.names != b.names and _names_exchanged(a, b)
    return other_names or _numbers_of_names_differ(a, b)


def _names_exchanged(a: Parse, b: Parse) -> bool:
    """Tell whether each prompt has a name that is no word of the other one, nor a form of it."""
    words_a, words_b = (
        {*map(without_accents, side.names), *map(without_accents, side.stems)} for side in (a, b)
    )
    only_a = [name for name in a.names if without_accents(name) not in words_b]
    only_b = [name for name in b.names if without_accents(name) not in words_a]
    return bool(only_a and only_b) and not _names_alike(only_a, only_b)


def _numbers_of_names_differ(a: Parse, b: Parse) -> bool:
    """Tell whether all that differs is a name, a plural in one of them: "Alien", "Aliens"."""
    if a.plural_names == b.plural_names or a.content != b.content:
        return False
    either = a.plural_names | b.plural_names
    return any(
        name in a.names and name in b.names and name + _ANY_NUMBER not in either
        for name in a.plural_names ^ b.plural_names
    )


def _unmatched_symbol(a: Parse, b: Parse) -> bool:
    """Tell whether ``b`` lacks a name from ``symbols`` that ``a`` has. "node" equals "node.js"."""
    return any(
        _lacks(b, name)
        for name in a.symbols - b.symbols
        if stem(name.replace(".", "")) not in b.stems
    )


def _lacks(parse: Parse, name: str) -> bool:
    """Tell whether a prompt has no word that may mean the name."""
    model = _MODEL.fullmatch(name)
    if model is not None:  # "5 GHz" counts as "5GHz", and "two-factor" is not a model beside "2FA"
        return model[1] in parse.stems and model[2] not in parse.stems
    return "." not in name or stem(name.strip(".").split(".")[0]) not in parse.stems


def _names_alike(one: Sequence[str], other: Sequence[str]) -> bool:
    """Tell whether names may mean the same: "UK" and "United Kingdom", "Italian" and "Italy"."""
    initials, other_initials = ("".join(name[0] for name in side) for side in (one, other))
    if initials in other or other_initials in one:
        return True
    return any(
        all(any(_derived(a, b) for b in theirs) for a in ours)
        for ours, theirs in ((one, other), (other, one))
    )


def _derived(one: str, other: str) -> bool:
    shared = count_common_start(one, other)
    if shared == min(len(one), len(other)) and max(len(one), len(other)) <= _LEAST_SHARED_LETTERS:
        return True  # US, USA
    return shared >= _LEAST_SHARED_LETTERS and {one[shared:], other[shared:]} <= _DERIVED
