"""The table of guards, and the parse that gives them the facts of a prompt.

The vectors of two prompts show that they have one topic. They hardly show a word that changes the
question, so guards read the words. There are two steps:

1. ``parse_prompt`` reads the facts of a prompt once: its stems, numbers, dates, names, negations
   and so on (``words.Parse``). The parse is stored with the entry.
2. A guard compares two parses, and returns True to veto the neighbour: its answer may be wrong for
   the question. Guards are pure and symmetric. They are asked in the order of ``GUARDS``, and the
   first True is the veto.

Each line has a guard and two prompts that it vetoes:

``words.py``: how the prompts are written
    language      Where is the station? / Wo ist der Bahnhof?
    sign          Solve x + 5 = 2 / Solve x - 5 = 2
    spelling      Say "red" in French / Say "blue" in French
``facts.py``: facts, each of which is in a list of its own in the parse
    number        Name 5 hotels / Name 10 hotels
    unit          Is the discount 30 %? / Is the discount 30 dollars?
    name          Are there flights to Rome? / Are there flights to Oslo?
    comparative   Are loans over 5 years possible? / Are loans under 5 years possible?
``negation.py``: single words that reverse or limit a question
    date          Are there trains on Monday? / Are there trains on Friday?
    quantifier    Do all cars have radios? / Do some cars have radios?
    negation      Cancel my order / Don't cancel my order
    scope         Block my card / Block his card
    antonym       Is the shop open? / Is the shop closed?
``word_order.py``: the same words in other places
    role-swap     A ticket from Rome to Bonn / A ticket from Bonn to Rome
    crossing      Does the dog chase the cat? / Does the cat chase the dog?
``substitution.py``: exchanged words that no list knows
    substitution  What is the capital of Chile? / What is the capital of Peru?
this file: the form of the question
    question      When was she born? / Where was she born?
    connective    Are there shirts in red? / Are there shirts in red and blue?

``docs/how-a-hit-is-decided.md`` has more examples, also of pairs that pass. A new guard needs a
function, a row in ``GUARDS``, a line above, and its name in the settings.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from headstart.policies.guards import facts, negation, substitution, word_order
from headstart.policies.guards.words import (
    ABOUT_CASE,
    FORMATTING,
    FORMULA,
    MAY_BE_FORMULA,
    MOST_VECTORS,
    PAST_FORMS,
    SAME_SIGN,
    SPELLED,
    VOCABULARY,
    Parse,
    count_common_start,
    is_foreign_function_word,
    is_function_word,
    languages,
    languages_differ,
    quantize_rows,
    signs,
    signs_differ,
    spellings,
    spellings_differ,
    split_words,
    stem,
    stems_of,
    with_digits,
)
from headstart.types import word_classes, words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headstart.decisions import Encoding
    from headstart.policies.guards.words import Word
    from headstart.settings import GuardName

# --- what is asked for ---------------------------------------------------------------------------

COUNT = "count"
_INVERTED = words_of("when where")
"""Words that ask only before a verb: "when does it open" asks, "when it opens" does not."""
_VERBS = words_of(
    "am is are was were do does did can could will would shall should may might has have"
)
_ALWAYS_ASKING = words_of("who why")
"""Words that ask at the beginning of a text and after a function word."""
_FOREIGN_ASKING = {
    "when": "wann cuándo wanneer kiedy",
    "where": "wo dónde où gdzie",
    "who": "wer wen wem quién quiénes kto",
    "why": "warum wieso weshalb pourquoi porquê waarom dlaczego varför",
    "count": "cuántos cuántas quantos quantas quanti quante hoeveel",
}
"""Question words that ask at any place of a prompt."""
_FOREIGN_OPENERS = {
    "when": "quand quando när",
    "where": "onde dove waar var",
    "who": "qui quem chi vem",
}
"""Question words that ask at the beginning. Elsewhere some of them mean "if", "as" or "that"."""
_FOREIGN_PHRASES = {
    **dict.fromkeys(
        [("wie", "viele"), ("combien", "de"), ("hur", "många"), ("hoe", "veel")], COUNT
    ),
    ("que", "é"): "definition",
    ("qué", "es"): "definition",
    ("cos'", "è"): "definition",
}
_ASKING, _OPENERS = word_classes(_FOREIGN_ASKING), word_classes(_FOREIGN_OPENERS)
_PRICE = ("kost", "temps", "tijd", "cuesta", "costa")
"""Beginnings of words which, after "how much", make it a question for a price or a time."""
_CONTRACTED = {
    word: asked for asked in (*_INVERTED, *_ALWAYS_ASKING) for word in (f"{asked}s", f"{asked}'s")
}
_ASKED_BY_NOUN = word_classes(
    {
        "when": "time date day month year",
        "where": "place location city town country",
        "who": "person",
        "what": "did does",
    }
)
"""Words after "what" and "which" that make them ask for a time, a place, a person or a thing."""
MAY_ASK = (
    _INVERTED | _ALWAYS_ASKING | _CONTRACTED.keys() | {"what", "which", "many", "number", "count"}
)
_AMOUNTS = stems_of("""
    amount number count maximum minimum max min limit total sum average quantity size value balance
    population much many remaining left anzahl número numero nombre aantal liczba antal límite
""")
"""Words with which a prompt may ask for a number without "how many"."""
_MEASURED = stems_of("tall high long old big large wide deep heavy fast far small short young")
"""After "how", these words ask for a measure, which "what is its height" does, too."""
_MEASURES = _AMOUNTS | stems_of("height length age width depth weight speed distance time duration")
_UNITS_OF_TIME = stems_of("minute hour day night week month year")
"""With these words, "how many" may mean "when": "how many days until the match"."""


def asks(words: Sequence[Word], *, foreign: bool) -> frozenset[str]:
    """Return what a prompt asks for: a time, a place, a person, a reason, a number of things."""
    found = set(_foreign_asks([word.text for word in words]) if foreign else ())
    for place, word in enumerate(words):
        if word.text in MAY_ASK:
            before = words[place - 1].text if place else ""
            after = words[place + 1].text if place + 1 < len(words) else ""
            found.add(_asked(before, word.text, after) or "")
    return frozenset(found - {""})


def _foreign_asks(texts: Sequence[str]) -> Iterator[str]:
    """Yield what a prompt in another language asks for."""
    for place, (text, after) in enumerate(zip(texts, (*texts[1:], ""), strict=True)):
        asked = _ASKING.get(text)
        if asked is None and (not place or (place == 1 and is_foreign_function_word(texts[0]))):
            asked = _OPENERS.get(text)
        if asked is None:
            asked = _FOREIGN_PHRASES.get((text, after))
        if asked is not None and not after.startswith(_PRICE):
            yield asked


def _asked(before: str, text: str, after: str) -> str | None:
    asking = _CONTRACTED.get(text, text)
    if asking in _INVERTED:
        return asking if asking != text or after in _VERBS else None
    if asking in _ALWAYS_ASKING:
        return asking if not before or is_function_word(before) else None
    if text in {"what", "which"}:
        return _ASKED_BY_NOUN.get(after)
    if text == "many":
        return COUNT if before == "how" else None
    if text in {"number", "count"} and after == "of":  # not "the phone number of the hotel"
        return COUNT if before in {"", "total"} or is_function_word(before) else None
    return None


def asked_differs(a: Parse, b: Parse) -> bool:
    """Veto if the prompts ask for different kinds of things: when and where, how many and which.

    "How old is the oldest lift?" and "Which is the oldest lift?" ask for different things, too.
    """
    if a.asks == b.asks or _measure_asked(a, b):
        return _measure_asked(a, b)
    ours, theirs = a.asks - {COUNT}, b.asks - {COUNT}
    if ours and theirs and ours.isdisjoint(theirs) and ours | theirs != {"what", "why"}:
        return True
    if (COUNT in a.asks) == (COUNT in b.asks):
        return False
    counting, things = (a, b) if COUNT in a.asks else (b, a)
    if not _AMOUNTS.isdisjoint(things.stems):
        return False
    if "all" in things.quantifiers - counting.quantifiers:
        return True
    # "How many came, and when did they?" and "When did they come?" may have one answer.
    asks_else = bool(things.asks) and counting.asks == {COUNT}
    if things.asks == {"when"} and not _UNITS_OF_TIME.isdisjoint(counting.stems):
        asks_else = False
    return asks_else or not facts.LISTING.isdisjoint(things.stems)


def _measure_asked(a: Parse, b: Parse) -> bool:
    """Tell whether one prompt asks for a measure of the most … thing, and the other for the thing.

    "How long is the longest track?" asks what "What is the length of the longest track?" asks.
    """
    measured = [
        any(how == "how" and word in _MEASURED for how, word in pairwise(side.stems))
        for side in (a, b)
    ]
    if measured[0] == measured[1] or all(degree != "most" for _, degree in a.degrees & b.degrees):
        return False
    things = {*(b if measured[0] else a).stems}
    return not things.isdisjoint(facts.LISTING) and things.isdisjoint(_MEASURES)


# --- and, or -------------------------------------------------------------------------------------

_CONNECTIVES = frozenset({"and", "or"})
_ADDING = tuple(
    tuple(stem(word) for word in phrase.split())
    for phrase in ("plus", "along with", "together with", "as well as", "in addition to")
)
"""What begins an added part as "and" does."""
_ADDING_WORDS = frozenset({phrase[0] for phrase in _ADDING})
_COMPARING = stems_of("between difference differ compare comparison versus vs better best prefer")
"""In a prompt with one of these words, "X and Y" and "X or Y" mean the same two things."""
_BEING = stems_of("am is are was were")
_STARTING = stems_of("go come try")
"""Words with which "and" adds nothing: "go ahead and book it"."""
_THANKING = stems_of("thanks thank thx cheers")
_THANKS = 4
"""The most words from such a word to the end of a prompt: "thank you very much"."""
_PARTING = stems_of("""
    regards wishes best kind warm day evening weekend good great nice lovely take care bye goodbye
""")
"""The content words of an ending that adds nothing after thanks: "thanks and regards"."""
_LONGEST_PART = 5
"""The most words of "and Y": "and in the second trial"."""
_JOIN_REACH = 3
"""Most words between a connective and the word that it joins: "2019 or in the year 2020"."""


def _joins(words: Sequence[Word]) -> frozenset[tuple[str, str, str]]:
    """Return each "and" and "or" between the words that it joins: ("red", "or", "blue")."""
    texts = [word.text for word in words]
    found = set()
    for place, text in enumerate(texts):
        if text in _CONNECTIVES:
            before = next(_joined(texts[max(place - _JOIN_REACH, 0) : place][::-1]), "")
            after = next(_joined(texts[place + 1 : place + 1 + _JOIN_REACH]), "")
            if before and after:
                found.add((before, text, after))
    return frozenset(found)


def _joined(texts: Sequence[str]) -> Iterator[str]:
    return (stem(text) for text in texts if not is_function_word(text))


def connectives_differ(a: Parse, b: Parse) -> bool:
    """Veto if one prompt has "X and Y" where the other has "X or Y".

    An exception outside code: "Do you take Visa or Mastercard?" and "Are Visa and Mastercard
    accepted?" have one answer.
    """
    if a.joins == b.joins and _ADDING_WORDS.isdisjoint((*a.stems, *b.stems)):
        return False
    if _part_added(a, b):
        return True
    if not a.joins or not b.joins or a.negators or b.negators:
        return False
    only_a, only_b = a.joins - b.joins, b.joins - a.joins
    pairs = {(before, after) for before, _, after in only_a}
    if not any((before, after) in pairs for before, _, after in only_b):
        return False
    if a.code and b.code:
        return True
    return all(_lists(side) and _COMPARING.isdisjoint(side.stems) for side in (a, b))


def _part_added(a: Parse, b: Parse) -> bool:
    """Tell whether one prompt is the other with a short "and Y", "as well as Y" or "or Y".

    Or with one more item of a list: "X, Y and Z" and "X and Z". "Is it full?" asks what "Is it full
    or empty?" asks, and "go ahead and book it" adds nothing.
    """
    commas = a.commas if len(a.stems) > len(b.stems) else b.commas
    shorter, longer = (a.stems, b.stems) if len(a.stems) < len(b.stems) else (b.stems, a.stems)
    more = len(longer) - len(shorter)
    if not shorter or not 0 < more <= _LONGEST_PART:
        return False
    start = count_common_start(shorter, longer)
    if shorter[start:] != longer[start + more :]:
        return False
    content = a.content | b.content
    thanks = start == len(shorter) and not _THANKING.isdisjoint(shorter[-_THANKS:])
    for first in range(start, -1, -1):  # "the [first and the] last": "the first [and the last]"
        added = longer[first : first + more]
        ends = {added[0], added[-1], *(shorter[first : first + 1] if first in commas else ())}
        joined = _CONNECTIVES & ends
        parts = thanks and content.intersection(added) <= _PARTING
        idle = parts or added[0] in _STARTING
        if joined and not idle and not content.isdisjoint(added):
            return "and" in joined or shorter[0] not in _BEING
        if any(not content.isdisjoint(added[len(each) :]) for each in _adding(added)):
            return True
        if not first or longer[first - 1] != added[-1]:
            return False
    return False


def _adding(words: Sequence[str]) -> Iterator[Sequence[str]]:
    return (phrase for phrase in _ADDING if tuple(words[: len(phrase)]) == phrase)


def _lists(parse: Parse) -> bool:
    return COUNT in parse.asks or not facts.LISTING.isdisjoint(parse.stems)


# --- code --------------------------------------------------------------------------------------

_CALL = re.compile(r"[^\W\d]\w*(?:\((?!e?s\))|\[\w)")
"""Matches a call or an index: "f(a, b)", "a[i]", but not "item(s)"."""
_INDEX = re.compile(r"(?<=[\w)\]])\[(?=\w)")
_PIECE = re.compile(
    r"(?P<name>[^\W\d]\w*(?:\.\w+)*)|(?P<tuple>\((?=\w+(?:, ?\w+)+\)))|(?P<open>[(\[{])"
    r"|(?P<close>[)\]}])|(?P<sign>[-+*/%^&|=<>!~]+)|(?P<gap>\s+)|(?P<other>.)"
)
_PROSE_SIGNS = frozenset("-/&")
"""Signs that are also between words of prose: "well-known", "and/or", "one - two"."""
_NO_PARTS = frozenset({"is", "are", "be", "'", '"', "`", ";"})
"""Words before a sign that name nothing ("where x is > 5"), and quotes."""


def code_parts(text: str) -> list[str]:
    """Return the names beside the signs of formulas and code, and all that is in their brackets.

    Word order hardly changes a vector, and "i", "a" and "ok" are function words of prose.
    """
    # A space after the bracket tells an index from a placeholder such as "[name]".
    plain = FORMATTING.sub("", _INDEX.sub("[ ", text.translate(SAME_SIGN)))
    if FORMULA.search(plain) is None and _CALL.search(text) is None:
        return []
    pieces = [("", ""), ("", "")]
    pieces += [(found.lastgroup or "", found[0]) for found in _PIECE.finditer(plain)]
    pieces += pieces[:2]
    inside = _inside_brackets(pieces)
    parts: list[str] = []
    for place, (kind, piece) in enumerate(pieces):
        if kind in {"", "gap"} or piece in _NO_PARTS:
            continue
        before, after = pieces[place - 2 : place][::-1], pieces[place + 1 : place + 3]
        calls = after[0][0] in {"open", "tuple"}
        if inside[place] or (
            kind == "name" and (calls or _is_operator(*before) or _is_operator(*after))
        ):
            parts.append(piece.lower())
    return parts


def _inside_brackets(pieces: Sequence[tuple[str, str]]) -> list[bool]:
    """Tell for each piece whether it is between a pair of brackets that belong to code."""
    steps = [0] * len(pieces)
    opened: list[tuple[int, bool]] = []
    for place, (kind, piece) in enumerate(pieces):
        if kind in {"open", "tuple"}:
            called = pieces[place - 1][0] in {"name", "close"}
            opened.append((place, called or kind == "tuple" or piece != "("))
        elif kind == "close" and opened:
            first, is_code = opened.pop()
            if is_code:
                steps[first] += 1
                steps[place] -= 1
    return [depth > 0 for depth in accumulate(steps)]


def _is_operator(beside: tuple[str, str], further: tuple[str, str]) -> bool:
    """Tell whether a sign of code is beside a name. ``further`` is the piece after ``beside``."""
    if beside == ("gap", " "):
        return further[0] == "sign" and further[1] not in _PROSE_SIGNS
    is_prose = beside[1] in _PROSE_SIGNS and further[0] == "name"
    return beside[0] == "sign" and not is_prose


# --- guards and parse ----------------------------------------------------------------------------

GUARDS: Mapping[GuardName, Callable[[Parse, Parse], bool]] = {
    "language": languages_differ,
    "number": facts.numbers_differ,
    "unit": facts.units_differ,
    "date": negation.times_differ,
    "name": facts.names_differ,
    "sign": signs_differ,
    "spelling": spellings_differ,
    "question": asked_differs,
    "connective": connectives_differ,
    "quantifier": negation.amounts_differ,
    "comparative": facts.comparisons_differ,
    "negation": negation.negations_differ,
    "role-swap": word_order.roles_swapped,
    "scope": negation.scopes_differ,
    "antonym": negation.opposites_used,
    "crossing": word_order.words_crossed,
    "substitution": substitution.words_substituted,
}
"""All guards by name, cheapest first. The first one that fires gives a veto its name."""

_SEPARATING = frozenset(",;/&")
_MARK = re.compile(
    r"""
      (?<![\w"'\u2019\u201d)\].,!?;:\u2026])[.,!?;:\u2026](?!\s*\Z)    # no word before it
    | [.,!?;:\u2026](?![\s"'\u2019\u201d)\].,!?;:\u2026]|\Z)          # no space after it: 10:30
    | \((?!\w) | (?<![\w.!?"'\u2019\u201d])\)
    | (?<=\d)-(?=\d) | (?<=\w)[-\u2013\u2014](?!\w) | (?<!\w)[-\u2013\u2014](?!\s)
    | [^\w\s.,!?;:\u2026"'`\u2018\u2019\u201c\u201d()\[\]\u2013\u2014\xad\u200b-\u200f\u2060\ufeff-]
    """,
    re.VERBOSE,
)
"""Matches a sign that is no pause after a word, no quote, no hyphen and no bracket of prose."""
_GIVES = re.compile(r":\s|\n")
"""Matches what is between a task and the text that the task is about."""
_FRAME = stems_of(VOCABULARY["frame_words"])
"""Words of tasks whose answer depends on what a text means, and not on its wording, and of courtesy
before a colon: "Quick question: …"."""
_MOST_FRAME_CHARS = 400
"""Most characters of a template that only announces a question."""
_LONGEST_FRAME = 3
"""The most words of a frame around a question: "Question: …", "Classify the intent: …". With a
longer frame all prompts look alike."""


@lru_cache(maxsize=256)
def task_of(template: str) -> str:
    """Return the digest of a template's words, or "" for a short frame such as "Question:".

    A framed question is compared like a question alone: its answer depends on its meaning, and not
    on its wording.
    """
    if len(template) > _MOST_FRAME_CHARS:
        return _digest([template])
    words = [word.text for word in split_words(template)]
    return "" if all(map(_frames, words)) else _digest(words)


def _frames(word: str) -> bool:
    return is_function_word(word) or stem(word) in _FRAME


def parse_prompt(text: str, encoding: Encoding, task: str = "") -> Parse:
    """Parse a prompt.

    ``encoding`` must belong to the same text, because its spans locate the words. ``task`` is the
    digest of a template that was around the text.
    """
    words = split_words(text)
    spoken, foreign = languages(words)
    if foreign:
        words = with_digits(words, spoken)
    negators, negated, tone = negation.negations(words, spoken)
    stems, content, commas, first_words, endings = _read_stems(text, words, foreign=foreign)
    vectors, rare = _word_vectors(first_words, encoding)
    names, plural_names = facts.names(text, words)
    limited, bounds = facts.limits(words)
    named, when = facts.dates(words)
    # Most prompts have no formula, no quote and no question word: a quick look spares the search.
    used = {word.text for word in words}
    may_ask = foreign or not MAY_ASK.isdisjoint(used)
    may_be_formula = MAY_BE_FORMULA.search(text) is not None
    in_code = code_parts(text) if may_be_formula else []
    about_case = not ABOUT_CASE.isdisjoint(used)
    may_be_spelled = about_case or SPELLED.search(text) is not None
    parts = _GIVES.search(text)
    if task:
        given = task, _digest([word.text for word in words])
    else:
        given = ("", "") if parts is None else _parts(text, words, parts)
    return Parse(
        stems=stems,
        content=content,
        vectors=vectors,
        quantities=facts.quantities(words),
        dates=named,
        when=when,
        roles=word_order.roles(words),
        negators=negators,
        negated=negated,
        tone=tone,
        quantifiers=facts.quantifiers(words, foreign=foreign),
        limits=limited,
        degrees=facts.degrees(words),
        names=names,
        symbols=facts.symbols(text, words),
        commas=commas,
        asks=asks(words, foreign=foreign) if may_ask else frozenset(),
        joins=frozenset() if _CONNECTIVES.isdisjoint(used) else _joins(words),
        signs=signs(text) if may_be_formula else "",
        spellings=spellings(text, words, about_case=about_case) if may_be_spelled else frozenset(),
        bounds=bounds,
        given=given,
        foreign=foreign,
        languages=spoken,
        rare=rare,
        plural_names=plural_names,
        endings=endings if "en" in spoken and not foreign else "",
        code=_digest(in_code) if in_code else "",
        marks="".join(_MARK.findall(text)) + "?" * ("?" in text),
    )


def _read_stems(
    text: str, words: Sequence[Word], *, foreign: bool
) -> tuple[tuple[str, ...], frozenset[str], tuple[int, ...], Mapping[str, Word], str]:
    """Return the stems, those that carry content, and the places of stems after a comma.

    Also each stem's first word, and the signs of the endings (``Parse.endings``). A currency or "%"
    has no stem.
    """
    stems: list[str] = []
    content = set()
    commas = []
    first_words: dict[str, Word] = {}
    endings: dict[str, str] = {}
    end = 0
    for word in words:
        if word.kind == "sign":
            continue
        stemmed = stem(word.text)
        gap = text[end : word.start]
        if stems and gap != " " and not _SEPARATING.isdisjoint(gap):
            commas.append(len(stems))
        end = word.end
        stems.append(stemmed)
        first_words.setdefault(stemmed, word)
        ending = "=" if word.text == stemmed else "e" if word.text == stemmed + "e" else "-"
        if ending == "-" and (word.text in PAST_FORMS or word.text.endswith("ed")):
            ending = "d"
        if endings.setdefault(stemmed, ending) != ending:
            endings[stemmed] = "-"
        if word.kind != "word" or is_function_word(word.text):
            continue
        if not (foreign and is_foreign_function_word(word.text)):
            content.add(stemmed)
    signs_of_endings = "".join(endings.values())
    return tuple(stems), frozenset(content), tuple(commas), first_words, signs_of_endings


def _parts(text: str, words: Sequence[Word], parted: re.Match[str]) -> tuple[str, str]:
    """Return digests of a task and of the text after it, if the task has a content word.

    A question in a frame has only the first digest.
    """
    task = [word.text for word in words if word.end <= parted.start()]
    given = [word.text for word in words if word.start >= parted.end()]
    if not given or all(map(is_function_word, task)):
        return "", ""
    frame = len(task) <= _LONGEST_FRAME and not _GIVES.search(text.rstrip(), parted.end())
    frame = frame and all(map(_frames, task))
    return _digest([stem(word) for word in task]), "" if frame else _digest(given)


def _digest(words: Sequence[str]) -> str:
    return blake2b(" ".join(words).encode("utf-8", "replace"), digest_size=8).hexdigest()


def _word_vectors(words: Mapping[str, Word], encoding: Encoding) -> tuple[bytes, frozenset[str]]:
    """Average the token vectors of each word, and return the stems of words with several tokens.

    ``words`` has each stem's first word. Both are empty unless every word has tokens. The tokens of
    a word are those that overlap it. Words and spans come in text order.
    """
    if not 0 < len(words) <= MOST_VECTORS or not encoding.complete:
        return b"", frozenset()
    ranges = []
    spans = encoding.spans
    token = 0
    for word in words.values():
        while token < len(spans) and spans[token][1] <= word.start:
            token += 1
        first = token
        while token < len(spans) and spans[token][0] < word.end:
            token += 1
        if token == first:
            return b"", frozenset()
        ranges.append((first, token))
    # Most words are one token. A matrix product would wake BLAS threads for microseconds of work.
    rows = encoding.tokens[[first for first, _ in ranges]]
    rare = set()
    for row, (stemmed, (first, last)) in enumerate(zip(words, ranges, strict=True)):
        if last > first + 1:
            rows[row] = encoding.tokens[first:last].sum(axis=0)
            rare.add(stemmed)
    return quantize_rows(rows), frozenset(rare)
