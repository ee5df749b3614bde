"""Conversations: which part of a request must be equal, and which may be equal in meaning.

Everything up to the last message that is not plain text (instructions, tool calls and results,
images) must be equal. The plain turns after it, courtesies left out, are the history;
``history.py`` decides whether two of them mean the same.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from headstart.policies.guards.words import listed, word_texts
from headstart.types import Frozen, Turn

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_TURNS = 64
MOST_CHARS = 16_384
"""Of a history; a longer one only matches an equal one. It is kept with its entry."""

_COURTEOUS = frozenset(
    listed("""
    thanks thank you thx ta cheers ok okay k great lovely perfect brilliant cool nice good ah oh
    oops ha haha lol hi hello hey morning afternoon evening welcome glad alright awesome excellent
    super very so a lot that's that is all much for your the help helping i i'll will appreciate it
    wonderful no problem worries you're well then there go ahead carry on hmm um er yay phew amazing
    fantastic anytime any time pleasure my gotcha of course got understood noted to hear hold bear
    with me one moment second just
    """)
)
_LONGEST_COURTESY = 8

_QUESTION_WORDS = frozenset(
    listed("""
    how what what's whats when when's where where's which who who's whose why is are am was were do
    does did will would should has have can could may
    """)
)
_OPENINGS = frozenset(
    listed("""
    ok okay yes yeah yep no and but so well oh ah right fine sure please sorry ugh great good cool
    lovely perfect brilliant thanks thank you hi hello hey
    """)
)
_ORDERS = frozenset(listed("can could will would"))
_TELLING = frozenset(listed("tell explain say show describe"))


class Conversation(Frozen, frozen=True):
    """A request's messages before the last, split.

    ``fixed`` is JSON-able and must be equal for two conversations to be compared at all.
    """

    fixed: tuple[object, ...]
    history: tuple[Turn, ...]


def split_conversation(messages: Sequence[object]) -> Conversation | None:
    """Split canonical messages, or return None where only an equal history may do.

    That is when there is no earlier user turn in plain text, when the history is too long, and
    when the last message does not ask: "cancel it" and "yes, the first one" are orders whose
    meaning lies in what was said before, word for word.
    """
    turns = _plain_ending(messages)
    if not turns:
        return None
    last = turns.pop()
    if not last.user or len(turns) > MOST_TURNS or not any(turn.user for turn in turns):
        return None
    if sum(len(turn.text) for turn in turns) > MOST_CHARS or not asks(last.text):
        return None
    fixed = messages[: len(messages) - len(turns) - 1]
    return Conversation(fixed=tuple(fixed), history=_without_courtesies(turns))


def asks(text: str) -> bool:
    """Tell a question from an order or an answer. "Can you book it?" is an order."""
    words = word_texts(text)
    first = next((word for word in words if word not in _OPENINGS), "")
    if first in _ORDERS and next(words, "") == "you":
        return next(words, "") in _TELLING
    return "?" in text or first in _QUESTION_WORDS


def _plain_ending(messages: Sequence[object]) -> list[Turn]:
    """Return the turns after the last message that is not plain text."""
    turns: list[Turn] = []
    for message in reversed(messages):
        turn = _plain_turn(message)
        if turn is None:
            break
        turns.append(turn)
    turns.reverse()
    return turns


def _plain_turn(message: object) -> Turn | None:
    match message:
        case {"role": "user" | "assistant" as role, "content": str(text), **rest} if not rest:
            return Turn(user=role == "user", text=text)
        case _:
            return None


def _without_courtesies(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Leave out turns that say nothing; a user's "ok" after a question is an answer."""
    kept = []
    for place, turn in enumerate(turns):
        answers = turn.user and place > 0 and turns[place - 1].text.rstrip().endswith("?")
        if answers or not _is_courtesy(turn.text):
            kept.append(turn)
    return tuple(kept)


def _is_courtesy(text: str) -> bool:
    words = list(islice(word_texts(text), _LONGEST_COURTESY + 1))
    return len(words) <= _LONGEST_COURTESY and _COURTEOUS.issuperset(words)
