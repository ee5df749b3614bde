"""The words of two texts, and how alike they are: the features of a logistic regression."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from math import exp, log
from typing import TYPE_CHECKING, NamedTuple

from headstart.policies.guards.words import is_function_word, listed, stem

if TYPE_CHECKING:
    from collections.abc import Sequence

# --- words ---------------------------------------------------------------------------------------

SHORT_WORDS = 5
"""Most words of a label. A longer text is prose."""
_SHORT_CHARS = 100
JUDGED_CHARS = 6000
"""Number of characters at the beginning of an answer that are compared."""
MOST_QUESTION_WORDS = 60
"""A longer question holds documents. Its words do not count as given to the answer."""

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
    """The number of its words."""
    content: frozenset[str]
    names: frozenset[str]
    """The content words with a capital."""
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
    keys = {token: _content_key(token.lower()) for token in set(tokens)}
    content = frozenset(keys.values()) - _NOTHING
    opening = frozenset(keys.get(token, "") for token in _TOKEN.findall(_first_sentence(plain)))
    first, lower = tokens[0].lower() if tokens else "", {token.lower() for token in keys}
    return Wording(
        length=len(tokens),
        content=content,
        names=frozenset(key for token, key in keys.items() if token[0].isupper()) - _NOTHING,
        numbers=frozenset(key for key in content if key[0].isdecimal()),
        opening=opening - _NOTHING,
        polarity=(first in _YES) - (first in _NO),
        negated=any(token in _NEGATIONS or token.endswith("n't") for token in lower),
    )


def question_words(question: str | None) -> frozenset[str]:
    """Return the words that an answer can take from its question; none of a long question."""
    if not question:
        return frozenset()
    tokens = _TOKEN.findall(_plain(question[:JUDGED_CHARS]))
    words = frozenset(_content_key(token.lower()) for token in tokens) - _NOTHING
    return words if len(words) <= MOST_QUESTION_WORDS else frozenset()


def short_form(text: str) -> tuple[str, ...] | None:
    """Return the words of a text of up to ``SHORT_WORDS``; None for a longer text.

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
def _content_key(token: str) -> str:
    """Return the form in which a lower-case token is compared; "" for a word without content."""
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


# --- likeness ------------------------------------------------------------------------------------

LIKENESS_FEATURES = (
    "bias",
    "cosine",
    "cosine above 0.8",
    "novel words covered, least",
    "novel words covered, most",
    "nothing novel",
    "words in common",
    "novel opening covered",
    "keys covered",
    "no keys",
    "no novel number in common",
    "a novel number in common",
    "question words in common",
    "length ratio",
    "words exchanged",
    "keys exchanged",
)
"""Names of the features. A *novel* word is in an answer but in no question. A *key* is a name or a
number. An *exchanged* word or key is in one text only, while the rest of the two texts is alike."""

WITHOUT_COSINE = tuple(name for name in LIKENESS_FEATURES if not name.startswith("cosine"))

_ALIKE = 0.4
"""Least share of common words (Jaccard) of two texts whose exchanged words count."""
_UNKNOWN_SHARE = 0.5
"""The share of question words in common, if no question is known."""
_NEARLY_EQUAL = 0.6
"""Least share of common words of two texts in which one negation reverses the meaning."""


def compare_words(
    a: Wording, b: Wording, given: frozenset[str], cosine: float | None
) -> tuple[float, ...]:
    """Return the ``LIKENESS_FEATURES`` of two texts, or those ``WITHOUT_COSINE``.

    ``given`` are the words of their questions.
    """
    common, either = a.content & b.content, a.content | b.content
    jaccard = _ratio(len(common), len(either))
    novel_a, novel_b = a.content - given, b.content - given
    covers = (_cover(novel_a, novel_b), _cover(novel_b, novel_a))
    keys_a, keys_b = (a.names | a.numbers) - given, (b.names | b.numbers) - given
    numbers_a, numbers_b = a.numbers - given, b.numbers - given
    exchange = max(jaccard - _ALIKE, 0.0)
    return (
        1.0,
        *(() if cosine is None else (cosine, max(cosine - 0.8, 0.0))),
        min(covers),
        max(covers),
        float(not (novel_a and novel_b)),
        jaccard,
        max(_cover(a.opening - given, novel_b), _cover(b.opening - given, novel_a)),
        max(_cover(keys_a, novel_b), _cover(keys_b, novel_a)),
        float(not (keys_a and keys_b)),
        float(bool(numbers_a and numbers_b) and not numbers_a & numbers_b),
        float(bool(numbers_a & numbers_b)),
        _ratio(len(common & given), len(either & given)) if given else _UNKNOWN_SHARE,
        abs(log(1 + a.length) - log(1 + b.length)),
        exchange * bool(a.content - common and b.content - common),
        exchange * bool(keys_a - common and keys_b - common),
    )


def probability(features: Sequence[float], weights: Sequence[float]) -> float:
    """Return the logistic function of the weighted features."""
    logit = sum(weight * value for weight, value in zip(weights, features, strict=True))
    return 1 / (1 + exp(-max(min(logit, 30.0), -30.0)))


def answers_oppose(a: Wording, b: Wording) -> bool:
    """Tell whether one text begins with yes and the other with no."""
    return a.polarity * b.polarity < 0


def may_oppose(a: Wording, b: Wording) -> bool:
    """Tell whether the texts have nearly the same words and only one of them has a negation."""
    if a.negated == b.negated:
        return False
    return len(a.content & b.content) >= _NEARLY_EQUAL * len(a.content | b.content)


def _cover(words: frozenset[str], others: frozenset[str]) -> float:
    return _ratio(len(words & others), len(words))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
