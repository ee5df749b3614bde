"""The guard ``substitution``: words that were exchanged, and words that change a question.

If only a name differs, two sentences have nearly the same vector, but the vectors of the two names
differ. So the guard compares the contextual vectors of exchanged words (late interaction: Khattab
and Zaharia, ColBERT, 2020). It needs no list of names and no capitals. Exchanged words of another
meaning are a veto; similar words alone never make a hit.

``words_substituted`` asks in this order, and stops at the first yes:

1. Is it one long text with changes (``_text_changed``)? A contract with another clause.
2. Does each quote a sentence that the other lacks (``words.sentences_quoted``)? For example two
   mails of customers in one template.
3. Have they one task with other texts (``_given_changed``)?
   "Translate: good morning" / "Translate: good evening".
4. Do they differ only in grammar (``grammar_changed``)? "Is the king …" / "Was the king …",
   "before the flight" / "during the flight", "should I go" / "may I go".
5. Were one or two content words exchanged for words that are far apart (``exchanged_maxsim``)?
   "the capital of Chile" / "the capital of Peru". "Buy a car" / "purchase a car" passes.
6. Are the words between a long common start and a long common end far apart (``_rests_differ``)?

Steps 1 to 4 do not look at vectors: there a small change has a large effect that vectors do not
show.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from headstart.policies.guards import word_order
from headstart.policies.guards.words import (
    FOREIGN_QUESTIONS,
    NEGATED_VERBS,
    VOCABULARY,
    count_common_ends,
    distinct,
    endings_of,
    rows_of,
    sentences_quoted,
    stem,
    stem_classes,
    stem_groups,
    stems_of,
    unit_rows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.policies.guards.words import Parse

# --- the guard ------------------------------------------------------------------------------------

MOST_EXCHANGED = 2
"""The most exchanged words. Two prompts with more of them are different sentences, for which the
similarity decides."""
LEAST_MAXSIM = 0.595
"""Exchanged words with a lower similarity mean different things
(``docs/how-a-hit-is-decided.md``)."""
LEAST_CONTEXT = 10
"""With fewer common words at both ends, the words between these are not compared alone."""
LEAST_CONTEXT_SHARE = 0.6
"""The share of the longer prompt that these words must have."""
LEAST_TEXT = 25
"""Fewest words that two prompts must share to be one text with changes. The share is the same."""
_IDLE = stems_of("""
    a an the this that these those am is are be do does have has there it s m re ve ll d t
    please thanks thank hi hello hey ok okay kindly
""")
"""Words that never change the answer, not even in a long text. Was, will and may can change it."""


def words_substituted(a: Parse, b: Parse) -> bool:
    """Veto if words were exchanged that change the question, or content words of another meaning.

    In a language that the encoder hardly knows, the exchange of many words is a veto, too.
    """
    if (
        _text_changed(a, b)
        or sentences_quoted(a, b)
        or _given_changed(a, b)
        or grammar_changed(a, b)
    ):
        return True
    only_a, only_b = a.content - b.content, b.content - a.content
    if not only_a and not only_b:
        return False
    most = max(len(only_a), len(only_b))
    if most > MOST_EXCHANGED and a.foreign and b.foreign:
        return True
    few_exchanged = bool(only_a and only_b) and most <= MOST_EXCHANGED
    same_task = bool(a.given[0]) and a.given == b.given
    if few_exchanged or same_task:
        maxsim = exchanged_maxsim(a, b)
        if maxsim is None or maxsim < LEAST_MAXSIM:
            return True
    return _rests_differ(a, b)


def _text_changed(a: Parse, b: Parse) -> bool:
    """Tell whether the prompts are one long text with changes.

    Any other word or word order counts. In a long text neither the similarity nor the vectors show
    what such a change means.
    """
    shorter, longer = sorted((len(a.stems), len(b.stems)))
    least = max(LEAST_TEXT, LEAST_CONTEXT_SHARE * longer)
    if shorter < least or (Counter(a.stems) & Counter(b.stems)).total() < least:
        return False
    code = bool(a.signs and b.signs)  # in code "a" is a name, not an article
    one, other = (
        [word for word in side.stems if word not in _IDLE or (code and len(word) == 1)]
        for side in (a, b)
    )
    return one != other


def _given_changed(a: Parse, b: Parse) -> bool:
    """Tell whether both prompts have the same task, followed by different texts."""
    (task, text), (other_task, other_text) = a.given, b.given
    return bool(task) and task == other_task and text != other_text


def _rests_differ(a: Parse, b: Parse) -> bool:
    """Tell whether the words between a long common start and end are far apart.

    There the similarity of the prompts comes mostly from the common words.
    """
    shorter, longer = sorted((len(a.stems), len(b.stems)))
    if shorter < LEAST_CONTEXT or not a.vectors or not b.vectors:
        return False
    start, end = count_common_ends(a.stems, b.stems)
    if start + end < max(LEAST_CONTEXT, LEAST_CONTEXT_SHARE * longer):
        return False
    rest_a, rest_b = (
        side.content.intersection(side.stems[start : len(side.stems) - end]) for side in (a, b)
    )
    if rest_a <= rest_b or rest_b <= rest_a:
        return False
    return mean_maxsim(a, b, (rest_a, rest_b)) < LEAST_MAXSIM


# --- vectors of exchanged words -------------------------------------------------------------------


def exchanged_maxsim(a: Parse, b: Parse) -> float | None:
    """Return the similarity of the exchanged content words to the other prompt, from -1 to 1.

    A word is exchanged if only one prompt has it. For each, take the cosine to the most similar
    word of the other prompt, by contextual vectors. The result is the mean over both prompts, or
    None without exchanged words or without vectors.
    """
    only_a, only_b = a.content - b.content, b.content - a.content
    if not (only_a or only_b) or not a.vectors or not b.vectors:
        return None
    return mean_maxsim(a, b, (frozenset(a.stems), frozenset(b.stems)))


def mean_maxsim(a: Parse, b: Parse, parts: tuple[frozenset[str], frozenset[str]]) -> float:
    """Do the same as ``exchanged_maxsim`` for a part of each prompt, given as stems."""
    part_a, part_b = parts
    words_a, words_b = distinct(a.stems), distinct(b.stems)
    vectors_a, vectors_b = unit_rows(a.vectors, len(words_a)), unit_rows(b.vectors, len(words_b))
    content_a, content_b = part_a & a.content, part_b & b.content
    rows_a, rows_b = _rows(words_a, content_a - content_b), _rows(words_b, content_b - content_a)
    best = [
        *(vectors_a[rows_a] @ vectors_b[_rows(words_b, part_b)].T).max(axis=1),
        *(vectors_b[rows_b] @ vectors_a[_rows(words_a, part_a)].T).max(axis=1),
    ]
    return float(sum(best)) / len(best)


def _rows(words: Sequence[str], wanted: frozenset[str]) -> list[int]:
    return [row for row, word in enumerate(words) if word in wanted]


# --- grammar ---------------------------------------------------------------------------------

_TENSES = stem_classes(
    {
        "past": "was were did had",
        "present": "am is are do does",
        "future": "will shall",
        "change": "become becomes becoming became",
        "": "be been being have has",
    }
)
_BEFORE_TO = {"going": "future", "use": "past", "used": "past"}
"""The perfect has no tense here: "it was declined", "it is declined" and "it has been declined"."""
_VERB_OF = {"cant": "can", "wont": "will", "shant": "shall", "aint": "is"}
_UNCONTRACTED = {
    stem(word): (stem(_VERB_OF.get(word, word.removesuffix("nt"))), "not") for word in NEGATED_VERBS
}
"""The stems of "is not" for "isn't"."""
_CONTRACTING = stems_of("it that there what who where when how he she")
"""Words with which "is" is contracted. The stem of "what's" is that of "what"."""

_CONTRAST_ROWS = [*map(stem_groups, rows_of(VOCABULARY["contrasts"]))]
_FOREIGN_ROWS = [*map(stem_groups, rows_of(VOCABULARY["foreign_contrasts"]))]
_CONTRASTED = stems_of(VOCABULARY["contrasts"].replace("/", " "))
_CONTRASTED_FOREIGN = stems_of(VOCABULARY["foreign_contrasts"].replace("/", " "))

_OTHERS = FOREIGN_QUESTIONS | stems_of("other another else even bis jusqu hasta até fino tot")
"""Words that change what a prompt asks for, unless the other prompt has the same words. "Bis"
and the words after it mean "until"."""
_BESIDE = _OTHERS | stems_of("khi lúc ở tại vì")
"""``_OTHERS``, and the words that Vietnamese puts before its question words."""
_ADDED = stems_of("again too also more when where who whose")
"""Words that change what a prompt asks for if one of them is all that the other prompt lacks:
"Can I …?", "When can I …?"."""
_MODALS = stem_groups("can could may might would / should ought / must")
_MANNER = stems_of("how what where which")
"""After these words, different modals ask the same: "How can I pay?", "How should I pay?"."""
_HAVE = stems_of("have has")
_COURTESY = stems_of("a an the please thanks thank hi hello hey ok okay kindly")


def grammar_changed(a: Parse, b: Parse) -> bool:
    """Tell whether the prompts differ only in their tense, or only in one function word.

    The content words must be equal, but for one, or for words that grammar uses in contrasts.
    """
    other_words = _OTHERS.intersection(a.stems) != _OTHERS.intersection(b.stems)
    if other_words and a.content - _BESIDE == b.content - _BESIDE:
        return True  # "the card" / "the other card"
    if len((a.content ^ b.content) - _CONTRASTED) > 1:
        return False
    (tenses, rest), (other_tenses, other_rest) = _tense(a), _tense(b)
    if rest == other_rest:  # "is the king" / "was the king"
        tenses = (tenses or _past_tense(a, b)) - {""}
        other_tenses = (other_tenses or _past_tense(b, a)) - {""}
        return bool(tenses and other_tenses) and tenses != other_tenses
    only = [*(rest - other_rest).elements()]
    only_other = [*(other_rest - rest).elements()]
    if _contrasted(only, only_other, foreign=a.foreign and b.foreign):
        return True  # "before the flight" / "during the flight"
    added = [word for word in only + only_other if word not in _COURTESY]
    if len(added) == 1 and added[0] in _ADDED:
        return True  # "can I edit" / "when can I edit"
    # "should I go" / "may I go"
    return len(only) <= 1 and len(only_other) <= 1 and _modals_differ(a, b, *only, *only_other)


def _contrasted(only: Sequence[str], only_other: Sequence[str], *, foreign: bool) -> bool:
    """Tell whether the words that only one prompt has are two words in contrast.

    With them there may be words of courtesy; in other languages there may be any words.
    """
    said, said_other = ([w for w in side if w not in _COURTESY] for side in (only, only_other))
    if _contrast(only, only_other, _CONTRAST_ROWS) or _contrast(said, said_other, _CONTRAST_ROWS):
        return True
    if not foreign:
        return False
    ours, theirs = ([w for w in side if w in _CONTRASTED_FOREIGN] for side in (only, only_other))
    return _contrast(ours, theirs, _FOREIGN_ROWS)


def _modals_differ(a: Parse, b: Parse, *words: str) -> bool:
    """Tell whether these words are other modals, or one modal in place of "do"."""
    found = [group for word in words for group in _MODALS if word in group]
    if len(found) != len(words) or (len(found) == 2 and found[0] == found[1]):
        return False
    if len(found) == 1 and word_order.DO.isdisjoint(a.stems) and word_order.DO.isdisjoint(b.stems):
        return False
    asking = _MANNER if len(found) == 2 else _MANNER | word_order.WHO | _ADDED
    return not any(
        before in asking and word in words
        for side in (a, b)
        for before, word in pairwise(side.stems)
    )


def _contrast(
    only: Sequence[str], only_other: Sequence[str], rows: Sequence[Sequence[frozenset[str]]]
) -> bool:
    """Tell whether each prompt has one of these words, in other groups of one row."""
    if not len(only) == len(only_other) == 1:
        return False
    found = (
        [[word in group for group in groups] for word in (*only, *only_other)] for groups in rows
    )
    return any(any(ours) and any(theirs) and ours != theirs for ours, theirs in found)


def _tense(parse: Parse) -> tuple[set[str], Counter[str]]:
    """Return the tenses of a prompt's auxiliary verbs ("" for "have" and "be"), and other words."""
    stems = tuple(chain(*(_UNCONTRACTED.get(word, (word,)) for word in parse.stems)))
    endings = endings_of(parse)
    tenses, words = set(), Counter(word for word in stems if word != "together")
    if any(endings.get(word) == "-" for word in _CONTRACTING):
        tenses.add("present")
    for place, word in enumerate(stems):
        tense = _TENSES.get(word)
        if word in _HAVE and stems[place + 1 : place + 2] == ("to",):
            words["must"] += 1  # "do I have to" is "must I"
            words.subtract((word, "to", "do"))
        elif tense is not None:
            tenses.add(tense)
            words[word] -= 1
        elif word in _BEFORE_TO and stems[place + 1 : place + 2] == ("to",):
            tenses.add(_BEFORE_TO[word])
            words.subtract((word, "to"))
    return tenses, +words


def _past_tense(parse: Parse, other: Parse) -> set[str]:
    """Return "past" if a verb is a past form here, and not in the other prompt: "fell", "fall"."""
    endings, others = endings_of(parse), endings_of(other)
    past = any(ending == "d" != others.get(word, "d") for word, ending in endings.items())
    return {"past"} if past else set()
