"""The words of an answer, as far as two answers are compared by them."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple

from headstart.policies.guards.words import is_function_word, listed, stem

SHORT_WORDS = 5
"""Up to here a text is a label, compared as such; beyond it is prose."""
_SHORT_CHARS = 100
JUDGED_CHARS = 6000
"""Answers are compared by this much of their beginning."""
MOST_QUESTION_WORDS = 60
"""A longer question holds documents: what an answer quotes of them is not given by the question."""

_TOKEN = re.compile(
    r"""
      \d[\d,]*(?:\.\d+)?                                       # 1,000.50
    | [\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]   # scripts without spaces
    | [^\W\d_]+(?:'[^\W\d_]+)?(?:\+\+|\#)?                     # don't, C++
    """,
    re.VERBOSE,
)
_COUNTS = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen twenty
    """
_NUMBER_WORDS = {name: str(value) for value, name in enumerate(listed(_COUNTS))} | {
    "first": "1",
    "second": "2",
    "third": "3",
    "fourth": "4",
    "fifth": "5",
    "sixth": "6",
}
_SUFFIXES = frozenset({"st", "nd", "rd", "th"})
_ARTICLES = frozenset({"a", "an", "the"})
_YES = frozenset({"yes", "yeah", "yep", "true", "correct", "absolutely", "certainly"})
_NO = frozenset({"no", "nope", "false", "incorrect"})
_NEGATIONS = frozenset({"not", "no", "never", "none", "neither", "nor", "cannot", "without"})
_NOTHING = frozenset({""})
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_FIRST_SENTENCE_MIN = 25


class Wording(NamedTuple):
    """The words of one text: stems of its content words, of which some are names or numbers."""

    length: int
    """In words."""
    content: frozenset[str]
    names: frozenset[str]
    """Content words with a capital."""
    numbers: frozenset[str]
    opening: frozenset[str]
    """Content words of the first sentence."""
    polarity: int
    """1 when the text begins with yes, -1 with no, else 0."""
    negated: bool


def read_words(text: str) -> Wording:
    """Return the wording of the first ``JUDGED_CHARS`` of a text."""
    plain = _plain(text[:JUDGED_CHARS])
    tokens = _TOKEN.findall(plain)
    keys = {token: _key(token.lower()) for token in set(tokens)}
    content = frozenset(keys.values()) - _NOTHING
    opening = frozenset(keys.get(token, "") for token in _TOKEN.findall(_first_sentence(plain)))
    return Wording(
        length=len(tokens),
        content=content,
        names=frozenset(key for token, key in keys.items() if token[0].isupper()) - _NOTHING,
        numbers=frozenset(key for key in content if key[0].isdecimal()),
        opening=opening - _NOTHING,
        polarity=_polarity(tokens),
        negated=any(_negates(token.lower()) for token in keys),
    )


def question_words(question: str | None) -> frozenset[str]:
    """Return what an answer gets from its question for free; nothing of a long question."""
    if not question:
        return frozenset()
    tokens = _TOKEN.findall(_plain(question[:JUDGED_CHARS]))
    words = frozenset(_key(token.lower()) for token in tokens) - _NOTHING
    return words if len(words) <= MOST_QUESTION_WORDS else frozenset()


def short_form(text: str) -> tuple[str, ...] | None:
    """Return the words of a text of up to ``SHORT_WORDS``, None of a longer one.

    They come without case, accents, punctuation and articles.
    """
    if len(text) > _SHORT_CHARS:
        return None
    tokens = [token.lower() for token in _TOKEN.findall(_plain(text))]
    if len(tokens) > SHORT_WORDS:
        return None
    return tuple(_number(token) for token in tokens if token not in _ARTICLES)


def _plain(text: str) -> str:
    text = text.replace("\u2019", "'")
    if text.isascii():
        return text
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(char for char in decomposed if not unicodedata.combining(char))


def _first_sentence(text: str) -> str:
    for found in _SENTENCE_END.finditer(text, _FIRST_SENTENCE_MIN):
        return text[: found.start()]
    return text


@lru_cache(maxsize=16_384)
def _key(token: str) -> str:
    """Return what a lower-case token is compared by; "" for words that carry no content."""
    number = _number(token)
    if number[0].isdecimal():
        return number
    if token in _SUFFIXES or is_function_word(token):
        return ""
    return stem(token)


def _number(token: str) -> str:
    if not token[0].isdecimal():
        return _NUMBER_WORDS.get(token, token)
    whole, _, decimals = token.replace(",", "").partition(".")
    decimals = decimals.rstrip("0")
    whole = whole.lstrip("0") or "0"
    return f"{whole}.{decimals}" if decimals else whole


def _polarity(tokens: list[str]) -> int:
    first = tokens[0].lower() if tokens else ""
    return (first in _YES) - (first in _NO)


def _negates(token: str) -> bool:
    return token in _NEGATIONS or token.endswith("n't")
