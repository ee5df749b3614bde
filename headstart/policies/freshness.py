"""How long an answer stays true, by the words of its question.

The words are English. They say what a hurried reader would see in the question, no more.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MOST_CHARACTERS = 600
"""Of a longer text only its two ends are read: that is where a question stands."""


class QuestionClass(StrEnum):
    """How fast the answer to a question ages."""

    LIVE = "live"
    """Within minutes: weather, prices, scores, what is open now."""
    DATED = "dated"
    """Within hours or days: the latest of something, what is on this week."""
    STABLE = "stable"


_LIVE = (
    r"(?:right|just|as of) now",
    r"(?:is|are|am|'s) (?:\S+ ){1,6}now\s*\?",
    r"at (?:the|this) moment",
    r"currently",
    r"what time is it|what day is (?:it|today)|what(?:'s| is) today'?s? date|current time",
    r"(?:what(?:'s| is) the )?time (?:in [a-z]+\s*\??$|now)|what(?:'s| is) the time\s*[?.!]*$",
    r"weather|forecast|temperature (?:outside|today)",
    r"(?:is|will) it (?:be )?(?:rain|snow|cold|hot|sunny|wind)\w*",
    r"(?:live|current|final|latest|game|match|football|soccer|basketball|baseball) scores?",
    r"score of the [^.?!]*(?:game|match)|who(?:'s| is) (?:winning|leading)",
    r"who won (?:today|tonight|yesterday|last night)",
    r"(?:stock|share|market|gas|fuel|oil|gold|silver|bitcoin|crypto) prices?|price of",
    r"stock(?:s)? (?:trading|doing|worth)|(?:trading|selling) (?:at|for)",
    r"(?:exchange|conversion|mortgage|interest|today'?s) rates? (?:today|now|between|from)",
    r"today'?s (?:news|headlines|price|rate|score)s?|breaking news|news (?:today|now)",
    r"traffic (?:like|on|to|in)|(?:flight|train|bus|order|delivery|service) status",
    r"open (?:now|yet|tonight)|(?:^|(?<=[.?!,] ))(?:is|are) (?:\S+ ){1,5}open(?: today)?\s*[?.!]*$",
    r"in stock|(?:any|many) (?:seats?|rooms?|tickets?|tables?) (?:left|available|free)",
)
_PERIODS = (
    r"morning|afternoon|evening|night|week(?:end)?|month|quarter|year|season"
    r"|(?:mon|tues|wednes|thurs|fri|satur|sun)day"
)
_CHANGING = (
    r"president|prime minister|ceo|leader|champion|version|release|laws?|rules?|rates?|prices?"
    r"|state|events?|situation|year|records?"
)
_DATED = (
    r"today(?:'?s)?|tonight(?:'?s)?|tomorrow(?:'?s)?|yesterday(?:'?s)?",
    rf"(?:this|next|last|past|coming) (?:{_PERIODS})(?:'?s)?",
    r"latest|newest|most recent|recent|recently|up[- ]to[- ]date|so far",
    rf"current (?:\w+ )?(?:{_CHANGING})",
    r"news|headlines|upcoming|nowadays|these days|as of 20\d\d",
    r"(?:has|have) (?:\S+ ){1,6}(?:yet|been released|come out)",
    r"when (?:is|will) (?:\S+ ){0,6}(?:next|be released|come out)",
)


def _any_of(words: Iterable[str]) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)")


_TABLE = ((QuestionClass.LIVE, _any_of(_LIVE)), (QuestionClass.DATED, _any_of(_DATED)))


def question_class(text: str) -> QuestionClass:
    """Say how fast the answer to a question ages, by its words."""
    if len(text) > MOST_CHARACTERS:
        half = MOST_CHARACTERS // 2
        text = f"{text[:half]}\n{text[-half:]}"
    # Patterns that heed case are twice as fast.
    text = text.replace("\u2019", "'").lower()
    found = (kind for kind, words in _TABLE if words.search(text))
    return next(found, QuestionClass.STABLE)


class Lifetimes(Frozen, frozen=True, kw_only=True):
    """How long answers are kept, in seconds: all of them, and those of each ageing class."""

    ttl_s: float | None = None
    by_class: Mapping[QuestionClass, float] = {}

    def of(self, kind: QuestionClass, route_s: float | None = None) -> float | None:
        """Return the life of an answer; ``route_s`` stands in for ``ttl_s``. None: for ever."""
        bounds = (self.ttl_s if route_s is None else route_s, self.by_class.get(kind))
        return min((bound for bound in bounds if bound is not None), default=None)


class Lifetime:
    """How long the answer to one question lives. The question is read once somebody wants to know.

    ``route_s`` stands in for ``lifetimes.ttl_s``.
    """

    def __init__(self, question: str, lifetimes: Lifetimes, route_s: float | None = None) -> None:
        self._question = question
        self._lifetimes = lifetimes
        self._route_s = route_s

    @cached_property
    def kind(self) -> QuestionClass:
        """How fast the answer ages."""
        return question_class(self._question)

    @cached_property
    def seconds(self) -> float | None:
        """Longest life of an answer, stored now or before; None: without end."""
        return self._lifetimes.of(self.kind, self._route_s)


FOREVER = Lifetime("", Lifetimes())
