"""The named question: the part of a templated or retrieval prompt that is compared by meaning.

The last user text of such a prompt is mostly template and documents. Its question stands in a
header, in the body, or where a pattern finds it. Exactly one span of the text is the question;
all the rest, copies of the question included, must be equal. So whatever a question says, it
cannot bring two different documents together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.types import Frozen

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

GROUP = "query"
"""The group of a pattern that is the question."""


class Question(Frozen, frozen=True, kw_only=True):
    """A span of the last user text, in characters; the parts of that text joined by newlines."""

    text: str
    start: int
    end: int


NOT_FOUND = Question(text="", start=0, end=0)
"""A question was named that the text does not contain."""


def find_question(
    text: str, *, names: Sequence[str] = (), pattern: re.Pattern[str] | None = None
) -> Question | None:
    """Return the question in ``text``, or None if nothing says what it is.

    The first of ``names``, spellings of the question, that occurs counts, and of its copies the
    last: templates put it at the end. Without names, what ``pattern`` matches first, without the
    spaces around it.
    """
    if names:
        found = (_last(text, name) for name in names)
        return next((question for question in found if question is not NOT_FOUND), NOT_FOUND)
    return None if pattern is None else _matched(text, pattern)


def cut(texts: str | Sequence[str], question: Question) -> list[object]:
    """Return the parts of a text, that with the question as what stands before and after it.

    A span across parts is cut out of none: then the whole text must be equal.
    """
    pieces: list[object] = []
    offset = 0
    for text in (texts,) if isinstance(texts, str) else texts:
        start, end = question.start - offset, question.end - offset
        inside = 0 <= start <= end <= len(text)
        pieces.append((text[:start], text[end:]) if inside else text)
        offset += len(text) + 1
    return pieces


def _last(text: str, question: str) -> Question:
    start = text.rfind(question)
    if not question.strip() or start < 0:
        return NOT_FOUND
    return Question(text=question, start=start, end=start + len(question))


def _matched(text: str, pattern: re.Pattern[str]) -> Question:
    match = pattern.search(text)
    question = "" if match is None else (match[GROUP] or "").strip()
    if match is None or not question:
        return NOT_FOUND
    start = text.index(question, match.start(GROUP))
    return Question(text=question, start=start, end=start + len(question))
