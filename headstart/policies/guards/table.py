"""The table of guards, and the parse that gives them the facts of a prompt.

A guard is a pure function of two parses; any guard that returns True vetoes a neighbour
(``docs/how-a-hit-is-decided.md``). A new guard is one function and one row here, and its name among
the settings.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING

from headstart.policies.guards import facts, negation, word_order
from headstart.policies.guards.words import (
    MOST_VECTORS,
    Parse,
    is_foreign_function_word,
    is_function_word,
    languages,
    languages_differ,
    quantize_rows,
    signs_differ,
    spellings_differ,
    split_words,
    stem,
    stems_of,
    with_digits,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headstart.decisions import Encoding
    from headstart.policies.guards.words import Word
    from headstart.settings import GuardName

GUARDS: Mapping[GuardName, Callable[[Parse, Parse], bool]] = {
    "language": languages_differ,
    "number": facts.numbers_differ,
    "unit": facts.units_differ,
    "date": facts.dates_differ,
    "name": facts.names_differ,
    "sign": signs_differ,
    "spelling": spellings_differ,
    "question": facts.asked_differs,
    "connective": facts.connectives_differ,
    "quantifier": facts.quantifiers_differ,
    "comparative": facts.comparisons_differ,
    "negation": negation.negations_differ,
    "role-swap": word_order.roles_swapped,
    "scope": negation.scopes_differ,
    "antonym": negation.opposites_used,
    "crossing": word_order.words_crossed,
    "substitution": negation.words_substituted,
}
"""All guards by name, cheapest first. The first one that fires gives a veto its name."""

_SEPARATING = frozenset(",;/&")
_GIVES = re.compile(r":\s|\n")
"""What is between a task and the text that it is about."""
_FRAME = stems_of("""
    question query request message inquiry ask user customer client answer reply respond
    classify classification categorize categorise category intent intention label
""")
"""Words of tasks whose answer depends on what a text means, and not on its wording."""
_MOST_FRAME_CHARS = 400
"""Most characters of a template that only announces a question."""
_LONGEST_FRAME = 3
"""Most words of a frame around a question: "Question: …", "Classify the intent: …". A longer one
makes all prompts alike."""


@lru_cache(maxsize=256)
def task_of(template: str) -> str:
    """Return the digest of a template's words; "" for a mere frame, such as "Question:".

    The answer to a framed text depends on what the text means, and not on its wording. A long
    template is no frame.
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
    negators, negated, tone = negation.negations(words)
    stems: list[str] = []
    content = set()
    places: dict[str, Word] = {}
    commas = []
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
        places.setdefault(stemmed, word)
        if word.kind != "word" or is_function_word(word.text):
            continue
        if not (foreign and is_foreign_function_word(word.text)):
            content.add(stemmed)
    vectors = _word_vectors(tuple(places.values()), encoding)
    asks, joins, signs, spellings = facts.question_form(text, words)
    limited, bounds = facts.limits(words)
    named, when = facts.dates(words)
    parts = _GIVES.search(text)
    if task:
        given = task, _digest([word.text for word in words])
    else:
        given = ("", "") if parts is None else _parts(text, words, parts)
    return Parse(
        stems=tuple(stems),
        content=frozenset(content),
        vectors=vectors,
        quantities=facts.quantities(words),
        dates=named,
        when=when,
        roles=word_order.roles(words),
        negators=negators,
        negated=negated,
        tone=tone,
        quantifiers=facts.quantifiers(words),
        limits=limited,
        degrees=facts.degrees(words),
        names=facts.names(text, words),
        symbols=facts.symbols(text, words),
        commas=tuple(commas),
        asks=asks,
        joins=joins,
        signs=signs,
        spellings=spellings,
        bounds=bounds,
        given=given,
        foreign=foreign,
        languages=spoken,
    )


def _parts(text: str, words: Sequence[Word], parted: re.Match[str]) -> tuple[str, str]:
    """Return digests of a task and of the text after it, if the task has a content word.

    A frame and the question in it have only the first.
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


def _word_vectors(words: Sequence[Word], encoding: Encoding) -> bytes:
    """Average the token vectors of each word. Empty unless every word has tokens.

    The tokens of a word are those that overlap it. Words and spans come in text order.
    """
    if not 0 < len(words) <= MOST_VECTORS or not encoding.complete:
        return b""
    ranges = []
    spans = encoding.spans
    token = 0
    for word in words:
        while token < len(spans) and spans[token][1] <= word.start:
            token += 1
        first = token
        while token < len(spans) and spans[token][0] < word.end:
            token += 1
        if token == first:
            return b""
        ranges.append((first, token))
    # Most words are one token. A matrix product would wake BLAS threads for microseconds of work.
    rows = encoding.tokens[[first for first, _ in ranges]]
    for row, (first, last) in enumerate(ranges):
        if last > first + 1:
            rows[row] = encoding.tokens[first:last].sum(axis=0)
    return quantize_rows(rows)
