"""What a question asks for, as terms to be found in one scan of a text."""

from __future__ import annotations

import re

from headstart.types import Frozen

_STOPWORDS = {
    "a", "about", "after", "all", "also", "am", "an", "and", "any", "are", "as", "at", "be",
    "because", "been", "before", "being", "between", "both", "but", "by", "can", "could", "did",
    "do", "does", "doing", "down", "during", "each", "find", "for", "from", "further", "get",
    "give", "had", "has", "have", "having", "he", "her", "here", "hers", "him", "his", "how",
    "i", "if", "in", "into", "is", "it", "its", "just", "know", "let", "like", "list", "may",
    "me", "might", "more", "most", "much", "must", "my", "need", "no", "not", "now", "of",
    "off", "on", "one", "only", "or", "other", "our", "out", "over", "own", "please", "s",
    "same", "say", "says", "she", "should", "show", "so", "some", "such", "t", "tell", "than",
    "that", "the", "their", "them", "then", "there", "these", "they", "this", "those",
    "through", "to", "too", "under", "up", "us", "use", "used", "using", "very", "want", "was",
    "we", "were", "what", "when", "where", "which", "while", "who", "whom", "whose", "why",
    "will", "with", "would", "you", "your", "many", "name", "named", "answer", "question", "based",
    "following", "given", "provided", "according",
}  # fmt: skip
_WORD = re.compile(r"[A-Za-z0-9]+(?:['\u2019.\-][A-Za-z0-9]+)*")
_ENDINGS = r"(?:s|es|ed|er|ers|ing|ings|ion|ions|ly|e|y|ies|ied|al|ment|ments|or|ors|'s|\u2019s)?"
_STRIPPED = re.compile(
    r"(?<=\w{3})(?:ations?|ements?|ments?|ions?|ings?|ers?|ors?|ies|ied|ed|es|ly|al|s|e|y)$"
)
_KINDS = (
    (
        re.compile(r"\b(?:when|what year|which year|what date)\b", re.IGNORECASE),
        re.compile(r"\b\d{3,4}s?\b"),
    ),
    (
        re.compile(r"\bhow (?:many|much|long|old|far|tall|big|often)\b", re.IGNORECASE),
        re.compile(r"\d"),
    ),
    (
        re.compile(r"\b(?:who|whom|whose)\b", re.IGNORECASE),
        re.compile(r"(?<=[a-z,] )[A-Z][\w\u2019'-]+ [A-Z][\w\u2019'-]+"),
    ),
)


_LABEL = re.compile(
    r"^[#* \t]*+(?:(?:user )?question|query)[* \t]*+:", re.MULTILINE | re.IGNORECASE
)
_ASKING = re.compile(r"(?<![^.!?\n])[^.!?\n]*+\?")


class Query(Frozen):
    """Terms are stems, each once; a pair is two neighbouring terms' numbers."""

    text: str
    terms: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]

    def pattern(self) -> re.Pattern[str]:
        """Return what finds each term in lower-cased text, as its first group."""
        longest_first = sorted(self.terms, key=len, reverse=True)
        return re.compile(rf"\b({'|'.join(map(re.escape, longest_first))}){_ENDINGS}\b")

    def answer_shape(self) -> re.Pattern[str] | None:
        """Return what an answer to who, when or how many must hold, or None."""
        return next((shape for asks, shape in _KINDS if asks.search(self.text)), None)


def focus(words: str) -> str:
    """Return what is asked, without the instructions around it.

    That is what follows the last ``Question:``, else the sentences that end in a question mark,
    else all.
    """
    labels = list(_LABEL.finditer(words))
    if labels:
        return words[labels[-1].end() :]
    return " ".join(_ASKING.findall(words)) or words


def parse_query(text: str) -> Query:
    """Return the content words of an English question, stemmed."""
    numbers: dict[str, int] = {}
    pairs: dict[tuple[int, int], None] = {}
    previous = None
    for word in _WORD.findall(text.lower()):
        if word in _STOPWORDS:
            continue
        number = numbers.setdefault(stem(word), len(numbers))
        if previous is not None and previous != number:
            pairs[previous, number] = None
        previous = number
    return Query(text=text, terms=tuple(numbers), pairs=tuple(pairs))


def stem(word: str) -> str:
    """Strip one ending, so that forms of a word meet. Words with digits stay as they are."""
    return word if not word.isalpha() else _STRIPPED.sub("", word)
