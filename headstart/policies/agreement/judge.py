"""Does a fresh answer say what a cached one says? Decided without a language model.

Answers with a canonical form (labels, numbers, JSON, tool calls, code) are compared by it. Free
text goes through a logistic regression over the cosine of the texts and the words they share, with
a band of doubt. How it was measured and fitted: ``docs/agreement.md``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from headstart.policies.agreement.answers import read_answer
from headstart.policies.agreement.documents import compare_calls, compare_code, compare_json
from headstart.policies.agreement.fitted import WITH_COSINE, WORDS_ALONE
from headstart.policies.agreement.likeness import (
    answers_oppose,
    compare_words,
    may_oppose,
    probability,
)
from headstart.policies.agreement.wording import question_words, read_words, short_form
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.policies.agreement.answers import Reply
    from headstart.policies.agreement.documents import Difference
    from headstart.policies.agreement.fitted import Fit
    from headstart.types import Completion, RawResponse

ENCODED_CHARS = 600
"""So much of a text is worth encoding: about the 256 tokens of the default encoder."""


class Method(StrEnum):
    """What an agreement rests on."""

    EQUAL = "equal"
    STRUCTURED = "structured"
    """Tool calls, JSON or code, by canonical equality."""
    SHORT = "short"
    """Labels, numbers, yes and no: up to five words, by normalised equality."""
    REFUSAL = "refusal"
    """One answers, the other refuses or does not know; unsure when both do, in other words."""
    TRUNCATED = "truncated"
    """Only one was cut off at its token limit."""
    TEXT = "text"
    UNREADABLE = "unreadable"
    """Bytes that are no text, and are not equal."""


class Agreement(Frozen):
    """The judge's word on two answers. ``same`` is None when it is not sure."""

    same: bool | None
    probability: float
    """That the answers say the same."""
    method: Method


_EQUAL = Agreement(same=True, probability=1.0, method=Method.EQUAL)
_UNREADABLE = Agreement(same=None, probability=0.5, method=Method.UNREADABLE)
_CERTAINTY = {True: 0.99, None: 0.5, False: 0.01}


def texts_to_encode(
    fresh: Completion | RawResponse, cached: Completion | RawResponse
) -> tuple[str, ...]:
    """Return the two texts whose cosine ``judge`` needs, or () when it needs none."""
    replies, others = read_answer(fresh), read_answer(cached)
    if replies is None or others is None or len(replies) != len(others):
        return ()
    settled = [_settle(one, other) for one, other in zip(replies, others, strict=True)]
    if any(isinstance(word, Agreement) and word.same is False for word in settled):
        return ()
    open_pairs = [word for word in settled if not isinstance(word, Agreement)]
    return tuple("\n".join(texts)[:ENCODED_CHARS] for texts in zip(*open_pairs, strict=True))


def judge(
    fresh: Completion | RawResponse,
    cached: Completion | RawResponse,
    questions: Sequence[str | None],
    cosine: float | None,
    fit: Fit | None = None,
) -> Agreement:
    """Judge two answers to ``questions``: the last user texts that each was given to, if known.

    ``cosine`` is that of the ``texts_to_encode``; without it (the encoder failed) free text is
    judged by its words alone, and more of it is unsure. Choices are compared in order, and the
    least alike counts. ``fit`` replaces the weights that ship; it must match ``cosine``.
    Symmetric in the answers; never raises.
    """
    replies, others = read_answer(fresh), read_answer(cached)
    if replies is None or others is None:
        return _EQUAL if fresh == cached else _UNREADABLE
    if len(replies) != len(others):
        return _settled(Method.STRUCTURED, same=None)
    given = frozenset().union(*map(question_words, questions))
    fit = fit or (WORDS_ALONE if cosine is None else WITH_COSINE)
    found = [
        word if isinstance(word, Agreement) else _judge_texts(*word, given, cosine, fit)
        for one, other in zip(replies, others, strict=True)
        for word in (_settle(one, other),)
    ]
    return min(found, key=_doubt, default=_EQUAL)


def _doubt(word: Agreement) -> tuple[int, float]:
    return {False: 0, None: 1, True: 2}[word.same], word.probability


def _settle(a: Reply, b: Reply) -> Agreement | tuple[str, str]:
    """Return the word on two replies that have a canonical form, else the texts to judge."""
    if a.calls or b.calls:
        return _structured(compare_calls(a.calls, b.calls))
    if a.text == b.text:
        return _EQUAL
    if a.truncated != b.truncated:
        cut, whole = (a.text, b.text) if a.truncated else (b.text, a.text)
        return _settled(Method.TRUNCATED, same=True if cut and whole.startswith(cut) else None)
    if a.refuses or b.refuses:
        return _settled(Method.REFUSAL, same=None if a.refuses and b.refuses else False)
    return _settle_texts(a.text, b.text)


def _settle_texts(a: str, b: str) -> Agreement | tuple[str, str]:
    difference = compare_json(a, b) or compare_code(a, b)
    if difference is not None:
        return _structured(difference)
    words_a, words_b = short_form(a), short_form(b)
    if words_a is None or words_b is None:
        return a, b
    return _settled(Method.SHORT, same=_compare_short(words_a, words_b))


def _structured(difference: Difference) -> Agreement | tuple[str, str]:
    if difference.prose:
        ours, theirs = zip(*difference.prose, strict=True)
        return "\n".join(ours), "\n".join(theirs)
    return _settled(Method.STRUCTURED, same=difference.same)


def _compare_short(a: tuple[str, ...], b: tuple[str, ...]) -> bool | None:
    """Unsure when one only adds words ("Lima", "Lima, Peru"), or when nothing is left of one."""
    if a == b:
        return True if a else None
    return None if set(a) <= set(b) or set(b) <= set(a) else False


def _judge_texts(
    a: str, b: str, given: frozenset[str], cosine: float | None, fit: Fit
) -> Agreement:
    words_a, words_b = read_words(a), read_words(b)
    if answers_oppose(words_a, words_b):
        return _settled(Method.TEXT, same=False)
    likely = probability(compare_words(words_a, words_b, given, cosine), fit.weights)
    if likely <= fit.different_to:
        return Agreement(same=False, probability=likely, method=Method.TEXT)
    if likely < fit.same_from:
        return Agreement(same=None, probability=likely, method=Method.TEXT)
    if may_oppose(words_a, words_b):
        return _settled(Method.TEXT, same=None)
    return Agreement(same=True, probability=likely, method=Method.TEXT)


def _settled(method: Method, *, same: bool | None) -> Agreement:
    return Agreement(same=same, probability=_CERTAINTY[same], method=method)
