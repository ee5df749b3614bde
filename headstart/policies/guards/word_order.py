"""Guards for word order: both prompts have the same words, but in other roles or places.

The encoder's vectors of two such prompts are nearly equal, so they do not show the difference.

**Roles** (``roles_swapped``): a preposition, or a word such as "each", belongs to another word:
"from Rome to Bonn" and "from Bonn to Rome".

**Crossing** (``words_crossed``): the common words have another order. "Export from A, import into
B" and "Export from B, import into A" have. The steps:

1. Leave out words whose place is a matter of grammar only: "is", "please" (``_ordered_text``).
   Digits are words, also those in "xxxx1" and "A1": a number must follow the same word in both.
2. If only a part of the words is common, an exchange of two words is a veto, and nothing else
   (``_places_exchanged``): each has the neighbours that the other one has in the other prompt.
3. If nearly all words are common, cut both prompts into blocks of words that they share. For "In
   June can I pay?" and "Can I pay in June?" the blocks are "in june" and "i pay".
4. Undo harmless changes of the order, one after the other (``_undo_one_change``): in the items of a
   list, of a whole phrase ("in may"), in a compound ("date of birth", "birth date"), between active
   and passive, of a single adverb or question word. If another order remains, it is a veto.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from itertools import combinations, pairwise, takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from headstart.policies.guards.facts import MONTHS, number_values
from headstart.policies.guards.words import (
    FOREIGN_OPENING,
    FOREIGN_QUESTIONS,
    Role,
    count_common_ends,
    is_foreign_function_word,
    is_function_word,
    stem,
    stems_of,
)
from headstart.types import words_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headstart.policies.guards.words import Parse, Word

_BE = stems_of("am is are was were be been being")
_PREPOSITIONS = stems_of("""
    about at by for with from to into onto in out on off over under up down through across via per
    between among against during before after until since within upon without near of than
""")

# --- roles -----------------------------------------------------------------------------------

_ROLE_PREPOSITIONS = words_of("from to into onto than over by of for with before after")
_DIRECTED = words_of("from than before after")
"""With another argument of these prepositions, it is another question. With the other prepositions,
it is another question only if the argument and the words before were exchanged."""
_DETERMINERS = words_of(
    "a an the this that these those some any each every my your our his her its their"
)
_GOALS = frozenset({"to", "for"})
WHO = words_of("who whom which what")
_ANYBODY = stems_of("person people one")
DO = stems_of("do does did")
_BINDING = stems_of("each every per first last")
_MOST_ROLES = 24
"""The most roles of a prompt. Each is compared with each role of the other prompt."""
_LONGEST_ARGUMENT = 3
"""The most content words of an argument: "to the new savings account"."""


def roles(words: Sequence[Word]) -> tuple[Role, ...]:
    """Return the prepositions of a prompt that have an argument, in their order."""
    found: list[Role] = []
    before: set[str] = set()
    for place, word in enumerate(words):
        if word.text in _ROLE_PREPOSITIONS:
            after = words[place + 1].text if place + 1 < len(words) else ""
            is_followed = word.text == "than" and after in _PREPOSITIONS  # "than for silver"
            argument = _argument(words, place + 2 if is_followed else place + 1)
            if word.text in {"before", "after"}:
                argument = tuple(map(stem, argument))
            if argument and len(found) < _MOST_ROLES:
                preposition = "to" if word.text in {"into", "onto"} else word.text
                found.append(Role(preposition, frozenset(before), argument))
        elif not is_function_word(word.text):
            before.add(stem(word.text))
    return tuple(found)


def _argument(words: Sequence[Word], place: int) -> tuple[str, ...]:
    """Return the content words that begin at ``place``, after a determiner: "to the new shop"."""
    while place < len(words) and words[place].text in _DETERMINERS:
        place += 1
    if place < len(words) and words[place].text.endswith("ing") and not words[place].capital:
        # Words are compared here, not stems: "from renewing" and "to renew" name no common place.
        return () if is_function_word(words[place].text) else (words[place].text,)
    argument = []
    for word in words[place : place + _LONGEST_ARGUMENT]:
        if is_function_word(word.text):
            break
        argument.append(stem(word.text))
    return tuple(argument)


def roles_swapped(a: Parse, b: Parse) -> bool:
    """Veto if the arguments of prepositions, or the nouns after "each" and "first", were exchanged.

    A phrase that only moved is no exchange: "At the pharmacy, can I …". ``words_crossed`` compares
    the order.
    """
    if a.stems == b.stems:
        return False
    return (
        _arguments_swapped(a, b)
        or _way_turned(a, b)
        or _other_person_asked(a, b)
        or _bound_nouns_swapped(a, b)
    )


def _arguments_swapped(a: Parse, b: Parse) -> bool:
    """Tell whether a preposition has an argument that has another place in the other prompt."""
    if not a.roles or not b.roles:
        return False
    if _source_is_goal(a, b) or _source_is_goal(b, a):
        return True
    words_a, words_b = frozenset(a.stems), frozenset(b.stems)
    ours_kept, theirs_kept = _kept_roles(a, b), _kept_roles(b, a)
    for one in a.roles:
        for other in b.roles:
            if one.preposition != other.preposition or (one in ours_kept and other in theirs_kept):
                continue
            only_one = frozenset(one.argument).difference(other.argument)
            only_other = frozenset(other.argument).difference(one.argument)
            are_known = only_one <= words_b and only_other <= words_a  # else it is no exchange
            if not (only_one and only_other and are_known):
                continue
            # "Dollars to euros" and "euros to dollars", with any words between.
            with_words_before = only_other <= one.before and only_one <= other.before
            if with_words_before or one.preposition in _DIRECTED:
                return True
    return False


def _source_is_goal(a: Parse, b: Parse) -> bool:
    """Tell whether ``a`` begins at a place at which only ``b`` ends: "from Rome", "to Rome".

    Two places are different if each has a word of its own: "from my old phone", "to a new phone".
    """
    places_a_ends, places_b_begins = _arguments(a, "to"), _arguments(b, "from")
    in_both_directions = frozenset().union(*places_a_ends, *places_b_begins)
    return any(
        not (source & goal).issubset(in_both_directions)
        for source in _arguments(a, "from")
        for goal in _arguments(b, "to")
        if source <= goal or goal <= source
    )


def _arguments(parse: Parse, preposition: str) -> list[frozenset[str]]:
    return [frozenset(role.argument) for role in parse.roles if role.preposition == preposition]


def _kept_roles(parse: Parse, other: Parse) -> frozenset[Role]:
    """Return the roles that the other prompt has, too, after the same of the common words."""

    def place(role: Role) -> tuple[str, tuple[str, ...], frozenset[str]]:
        return role.preposition, role.argument, role.before & common

    common = frozenset(parse.stems).intersection(other.stems)
    theirs = set(map(place, other.roles))
    return frozenset(role for role in parse.roles if place(role) in theirs)


def _way_turned(a: Parse, b: Parse) -> bool:
    """Tell whether one prompt goes from X to Y and the other to X: "X to Y", "leaving Y for X"."""
    if _GOALS.isdisjoint(a.stems) or _GOALS.isdisjoint(b.stems):
        return False
    others = _ways(b)
    return any((goal, start) in others for start, goal in _ways(a))


def _ways(parse: Parse) -> set[tuple[str, str]]:
    """Return each start and goal with only "to" or "for" between them."""
    stems = parse.stems
    return {
        (start, goal)
        for start, word, goal in zip(stems, stems[1:], stems[2:], strict=False)
        if word in _GOALS and start in parse.content and goal in parse.content
    }


def _other_person_asked(a: Parse, b: Parse) -> bool:
    """Tell whether one prompt asks who did something, and the other to whom it was done."""
    if WHO.isdisjoint(a.stems) or a.content - _ANYBODY != b.content - _ANYBODY:
        return False
    one, other = _person_asked(a), _person_asked(b)
    return one is not None and other is not None and one != other


def _person_asked(parse: Parse) -> str | None:
    """Return "doer" or "done to" for a question with "who", or None if its form is ambiguous.

    A doer: "Who called Ann?", "Who was Ann called by?". Done to: "Who did Ann call?", "Who was
    called by Ann?".
    """
    stems = parse.stems
    for place, word in enumerate(stems):
        after = stems[place + 1 :]
        if word in {"which", "what"} and after[:1] and after[0] in _ANYBODY:
            after = after[1:]  # "which person" is "who"
        elif word not in {"who", "whom"}:
            continue
        if stems[max(place - 1, 0)] == "by":
            return "doer"
        if not after:
            return None
        if after[0] in DO:
            clause = [word for word in after[1:] if word not in _DETERMINERS]
            return "done to" if clause[1:2] and clause[1] in parse.content else None
        if after[0] in _BE and "by" in after:
            return "doer" if after[-1] == "by" else "done to"
        return "doer" if after[0] in parse.content else None
    return None


def _bound_nouns_swapped(a: Parse, b: Parse) -> bool:
    """Tell whether "each" or "first" has other nouns: "each user per day", "per user each day"."""
    ours, theirs = _bound_nouns(a, b), _bound_nouns(b, a)
    return any(
        word == other and nouns.isdisjoint(other_nouns)
        for word, nouns in ours - theirs
        for other, other_nouns in theirs - ours
    )


def _bound_nouns(parse: Parse, other: Parse) -> set[tuple[str, frozenset[str]]]:
    """Return "each", "first" and the like, with those nouns after them that both prompts have.

    In "the last git commit" both nouns belong to "last".
    """
    found = set()
    for place, word in enumerate(parse.stems):
        if word in _BINDING:
            after = takewhile(parse.content.__contains__, parse.stems[place + 1 :])
            if nouns := other.content.intersection(after):
                found.add((word, nouns))
    return found


# --- crossing --------------------------------------------------------------------------------

LEAST_ALIKE = 0.85
"""Texts with this share of common words, or more, must have these words in the same order."""
LEAST_ALIKE_LONG = 0.75
LONG = 12
"""From this number of words on, ``LEAST_ALIKE_LONG`` is used: a long text may change more words and
still be a reordered version of the same text."""
LEAST_COMPARABLE = 0.5
"""The least share of common words at which an exchange of two words is searched."""
MOST_WORDS = 40
"""The most words between a common start and end that are compared block by block. Beyond that,
every change in the order of the content words is a veto."""
MOST_BLOCKS = 6
"""The most blocks in another order for which a harmless cause is searched."""
MOST_MOVED = 24
"""The most words with other neighbours that are compared pair by pair."""
_LIST_REACH = 3
"""The most words that the items of a list may have in common: "bacterial DNA and human DNA"."""

_UNORDERED = _BE | stems_of("""
    a an the this that these those some any
    do does did have has had can could will would shall should may might must
    there it its s t d m ll re ve etc
    please thanks thank hi hello hey ok okay kindly basically
""")
"""Words whose place is a matter of grammar only: "how do I", "what it is"."""
_JOINING = frozenset({"and", "or", "nor", "vs", "versus", ","})
_LINKING = _PREPOSITIONS | _BE
_PRONOUNS = stems_of("i you we they he she my your our his her their me")
_OPENING = (_PREPOSITIONS - {"of", "than"} | _PRONOUNS) | stems_of("""
    as while because if when where how what why which who whom whose although though whether
    next last every each
""")
"""Words with which a phrase or clause begins."""
_NOT_CLOSING = _PREPOSITIONS | _JOINING | _PRONOUNS
"""Words with which no phrase ends."""
_BREAKING = _OPENING | _UNORDERED | _JOINING
"""Words that belong to no phrase before them."""
_ROAMING = FOREIGN_QUESTIONS | stems_of("""
    also even still yet already ever again here there now currently today tonight tomorrow yesterday
    too then so just really quite very actually instead why when where
""")
"""Words that mean the same at every place in a sentence."""
_REQUESTS = stems_of("""
    activate cancel change close delay delete deliver download install join open redeem remove renew
    reset return track unblock unlock update upload verify withdraw
""")
"""Verbs that mean the same before and after their object: "cancel card", "card cancel"."""
_PIECES = re.compile(r"\d+(?:\.\d+)*|[^\W\d_]+")
_NUMBERS = number_values()


class _Route(NamedTuple):
    """The way that a text names: "from Rome to Bonn", "between Rome and Bonn"."""

    opening: str
    start: tuple[str, ...]
    goal: tuple[str, ...]


class _Spot(NamedTuple):
    """The place of a word, and its neighbours. A neighbour is "" at the ends of a text."""

    place: int
    before: str
    after: str


class _OrderedText(NamedTuple):
    """A text for the comparison of order, such as "Is my card in the red box?"."""

    words: tuple[str, ...]
    """The words whose order matters: "my card in red box". Commas are words, too."""
    every: tuple[str, ...]
    """All words."""
    places: tuple[int, ...]
    """For each of ``words`` its place in ``every``."""
    counts: Counter[str]
    """How often each of the words occurs, without commas."""
    spots: dict[str, _Spot]
    """The spot in ``words`` of each content word that occurs once."""
    route: _Route | None
    foreign: bool

    def between(self, end: int, start: int) -> tuple[str, ...]:
        """Return every word from the end of one block of ``words`` to the start of another."""
        return self.every[self.places[end - 1] + 1 : self.places[start]]


class _WordBlock(NamedTuple):
    """Adjacent words that both texts have: ``first:last`` in one, ``start:end`` in the other."""

    first: int
    last: int
    start: int
    end: int
    moved: bool = False
    """Its parts had another order, which was a harmless change. It is moved once at most."""


def words_crossed(a: Parse, b: Parse) -> bool:
    """Veto if the common words have another order that may change the meaning."""
    if a.stems == b.stems:
        return False
    code = bool(a.signs and b.signs)
    foreign = a.foreign and b.foreign
    texts = (_ordered_text(side.stems, side.commas, code=code, foreign=foreign) for side in (a, b))
    one, other = sorted(texts, key=attrgetter("words"))  # so that both orders get one verdict
    alike = _share(one, other)
    if alike < LEAST_COMPARABLE:
        return False
    if _reversed_route(one, other) or _voice_changed(one, other):
        return True
    is_long = max(len(one.words), len(other.words)) >= LONG
    if alike < (LEAST_ALIKE_LONG if is_long else LEAST_ALIKE):
        return _places_exchanged(one, other)
    return one.words != other.words and _reordered(one, other)


# --- the words whose order matters ---------------------------------------------------------------


@lru_cache(maxsize=512)
def _ordered_text(
    stems: tuple[str, ...], commas: tuple[int, ...], *, code: bool, foreign: bool
) -> _OrderedText:
    """Return a text for the comparison of order. In code "a" is a name, not an article."""
    every: list[str] = []
    words: list[str] = []
    places: list[int] = []

    def add(word: str, *, is_ordered: bool) -> None:
        if is_ordered:
            words.append(word)
            places.append(len(every))
        every.append(word)

    after_comma = frozenset(commas)
    for place, word in enumerate(_months_first(stems)):
        if place in after_comma:
            add(",", is_ordered=True)
        if word.isalpha():
            is_variable = code and len(word) == 1
            add(_NUMBERS.get(word, word), is_ordered=is_variable or word not in _UNORDERED)
        else:
            for piece in _PIECES.findall(word) or (word,):
                add(piece, is_ordered=True)
    counts = Counter(words)
    del counts[","]
    padded = ("", *words, "")
    spots = {
        word: _Spot(place, padded[place], padded[place + 2])
        for place, word in enumerate(words)
        if counts[word] == 1 and _is_content(word)
    }
    route = _route(words)
    return _OrderedText(tuple(words), tuple(every), tuple(places), counts, spots, route, foreign)


def _months_first(stems: tuple[str, ...]) -> list[str]:
    """Return the stems with "4 July" as "July 4"."""
    ordered = [*stems]
    for place, (day, month) in enumerate(pairwise(stems)):
        if month in MONTHS and day.isdecimal() and len(day) <= len("31"):
            ordered[place : place + 2] = month, day
    return ordered


def _route(words: Sequence[str]) -> _Route | None:
    """Return the route that a text names, if it names one."""
    for opening, joining in (("between", "and"), ("from", "to")):
        if opening in words:
            start = words.index(opening) + 1
            if joining in words[start:]:
                middle = words.index(joining, start)
                goal = takewhile(_is_content, words[middle + 1 :])
                return _Route(opening, tuple(words[start:middle]), tuple(goal))
    return None


def _is_content(word: str) -> bool:
    return word not in _JOINING and not is_function_word(word)


def _share(one: _OrderedText, other: _OrderedText) -> float:
    """Return the share of the words of the longer text that the other text has, too."""
    ours, theirs = one.counts, other.counts
    shared = sum(min(count, theirs[word]) for word, count in ours.items() if word in theirs)
    return shared / max(ours.total(), theirs.total(), 1)


# --- routes, voices, and exchanges of two words ---------------------------------------------------


def _reversed_route(one: _OrderedText, other: _OrderedText) -> bool:
    """Tell whether the texts have "between A and B" and "from B to A", which has a direction."""
    ours, theirs = one.route, other.route
    if ours is None or theirs is None or ours.opening == theirs.opening:
        return False
    return all(
        start and goal[: len(start)] == start
        for start, goal in ((ours.start, theirs.goal), (theirs.start, ours.goal))
    )


def _voice_changed(one: _OrderedText, other: _OrderedText) -> bool:
    """Tell whether one text has "was invited by Bob" where the other has "invited Bob"."""
    ours, theirs = set(_passives(one)), set(_passives(other))
    if bool(ours) == bool(theirs):
        return False
    active = other if ours else one
    return not (ours or theirs).isdisjoint(pairwise(filter(_is_content, active.words)))


def _passives(text: _OrderedText) -> Iterator[tuple[str, str]]:
    """Yield verbs and agents: "was invited by Bob"."""
    if "by" not in text.counts:
        return
    for place, word in enumerate(text.every):
        if word == "by" and not _BE.isdisjoint(text.every[max(0, place - 3) : place - 1]):
            agent = next(filter(_is_content, text.every[place + 1 :]), "")
            yield text.every[place - 1], agent


def _places_exchanged(one: _OrderedText, other: _OrderedText) -> bool:
    """Tell whether two words changed places: each has the neighbours of the other one."""
    if any(_passives(one)) != any(_passives(other)):
        return False
    ours, theirs = one.spots, other.spots
    moved = [
        word
        for word, spot in ours.items()
        if word in theirs
        and spot.before != theirs[word].before
        and spot.after != theirs[word].after
    ]
    for first, second in combinations(moved[:MOST_MOVED], 2):
        first_here, second_here = ours[first], ours[second]
        first_there, second_there = theirs[first], theirs[second]
        turned = (first_here.place < second_here.place) != (first_there.place < second_there.place)
        if not turned or second in first_here:  # neighbours are no exchange
            continue
        if _share_neighbour(first_here, second_there) and _share_neighbour(
            second_here, first_there
        ):
            low, high = sorted((first_here.place, second_here.place))
            their_low, their_high = sorted((first_there.place, second_there.place))
            exchanged = _WordBlock(low, high + 1, their_low, their_high + 1)
            if not _is_list(one, other, exchanged):
                return True
    return False


def _share_neighbour(one: _Spot, other: _Spot) -> bool:
    return any(word and word == twin for word, twin in zip(one[1:], other[1:], strict=True))


# --- another order of nearly all words ------------------------------------------------------------


def _reordered(one: _OrderedText, other: _OrderedText) -> bool:
    """Tell whether the common words have another order that no harmless change explains."""
    ours, theirs = one.words, other.words
    start, tail = count_common_ends(ours, theirs)
    end, other_end = len(ours) - tail, len(theirs) - tail
    if max(end, other_end) - start > MOST_WORDS:
        return _any_inversion(ours[start:end], theirs[start:other_end])
    blocks = [
        _WordBlock(start + first, start + first + length, start + place, start + place + length)
        for first, place, length in _runs(ours[start:end], theirs[start:other_end])
        if not _NOT_CLOSING.issuperset(ours[start + first : start + first + length])
    ]
    if _replaced_by_known_word(one, other, (start, end, other_end), blocks):
        return True
    return not _explained(one, other, blocks)


def _any_inversion(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Tell whether content words have another order. Equal words are matched one after another."""
    places = {word: place for place, word in enumerate(_numbered(theirs))}
    order = [places[word] for word in _numbered(ours) if word in places]
    return order != sorted(order)


def _numbered(words: Sequence[str]) -> Iterator[tuple[str, int]]:
    seen: Counter[str] = Counter()
    for word in words:
        if _is_content(word):
            yield word, seen[word]
            seen[word] += 1


def _runs(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, int, int]]:
    """Cover both texts with common runs of words, the longest first.

    Returns for each run (place, place in the other text, length), ordered by place.
    """
    where: dict[str, list[int]] = {}
    for place, word in enumerate(theirs):
        where.setdefault(word, []).append(place)
    free, other_free = [True] * len(ours) + [False], [True] * len(theirs) + [False]
    # True: the word is in no run yet. The False at the end stops a run there.

    def longest_run() -> tuple[int, int, int]:
        """Return the longest run of free words. Of equal ones, take that which moved least."""
        best, best_rank = (0, 0, 0), (0, 0, 0)
        for first, word in enumerate(ours):
            for place in where.get(word, ()):
                length = 0
                while (
                    free[first + length]
                    and other_free[place + length]
                    and ours[first + length] == theirs[place + length]
                ):
                    length += 1
                rank = (length, -abs(first - place), -first)
                if length and rank > best_rank:
                    best, best_rank = (first, place, length), rank
        return best

    found = []
    run = longest_run()
    while run[2] > 1:
        first, place, length = run
        free[first : first + length] = [False] * length
        other_free[place : place + length] = [False] * length
        found.append(run)
        run = longest_run()
    for first, word in enumerate(ours):  # the single words that are left
        places = [place for place in where.get(word, ()) if other_free[place]]
        if free[first] and places:
            nearest = min(places, key=lambda place: abs(first - place))
            other_free[nearest] = False
            found.append((first, nearest, 1))
    return sorted(found)


def _replaced_by_known_word(
    one: _OrderedText,
    other: _OrderedText,
    bounds: tuple[int, int, int],
    blocks: Sequence[_WordBlock],
) -> bool:
    """Tell whether a word was replaced by one that the other text has elsewhere, too.

    "Copy red to blue, delete red" and "copy red to blue, delete blue". The word is the only one
    between two blocks that follow each other in both texts.
    """
    start, end, other_end = bounds
    common_start = _WordBlock(start, start, start, start)
    common_end = _WordBlock(end, end, other_end, other_end)
    edges = [common_start, *blocks, common_end]
    following = dict(pairwise(sorted(edges, key=lambda block: (block.start, block.end))))
    for before, after in pairwise(edges):
        if following.get(before) != after:
            continue
        ours = [word for word in one.words[before.last : after.first] if _is_content(word)]
        theirs = [word for word in other.words[before.end : after.start] if _is_content(word)]
        is_replaced = len(ours) == len(theirs) == 1 and ours != theirs
        if is_replaced and (ours[0] in other.words or theirs[0] in one.words):
            return True
    return False


def _explained(one: _OrderedText, other: _OrderedText, blocks: Sequence[_WordBlock]) -> bool:
    """Tell whether harmless changes alone turn the order of one text into that of the other.

    Each step undoes one change and joins its blocks, until a single block is left.
    """
    left = _merged(blocks)
    while 1 < len(left) <= MOST_BLOCKS:
        simpler = _undo_one_change(one, other, left)
        if simpler is None:
            return False
        left = _merged(simpler)
    return len(left) <= 1


def _merged(blocks: Sequence[_WordBlock]) -> list[_WordBlock]:
    """Join neighbours that follow each other in both texts."""
    following = dict(pairwise(sorted(blocks, key=lambda block: block.start)))
    merged: list[_WordBlock] = []
    previous = None
    for block in blocks:
        if previous is not None and following.get(previous) == block:
            last = merged[-1]
            moved = last.moved or block.moved
            merged[-1] = _WordBlock(last.first, block.last, last.start, block.end, moved)
        else:
            merged.append(block)
        previous = block
    return merged


def _undo_one_change(
    one: _OrderedText, other: _OrderedText, blocks: list[_WordBlock]
) -> list[_WordBlock] | None:
    """Join the blocks that one harmless change has reordered. None if there is no such change."""
    windows = [*_windows(blocks)]
    for first, window in windows:
        if _is_list(one, other, _joined(window)):
            return [*blocks[:first], _joined(window), *blocks[first + len(window) :]]
    for first, window in windows:
        if not any(block.moved for block in window) and _means_nothing(one, other, window):
            joined = _joined(window)._replace(moved=True)
            return [*blocks[:first], joined, *blocks[first + len(window) :]]
    return None


def _windows(blocks: list[_WordBlock]) -> Iterator[tuple[int, list[_WordBlock]]]:
    """Yield blocks that are together in both texts, with the place of the first one."""
    in_other = sorted(blocks, key=lambda block: block.start)
    ranks = {block: rank for rank, block in enumerate(in_other)}
    for size in range(2, len(blocks) + 1):
        for first in range(len(blocks) - size + 1):
            window = blocks[first : first + size]
            window_ranks = [ranks[block] for block in window]
            if max(window_ranks) - min(window_ranks) < size:
                yield first, window


def _joined(window: Sequence[_WordBlock]) -> _WordBlock:
    return _WordBlock(
        window[0].first,
        window[-1].last,
        min(block.start for block in window),
        max(block.end for block in window),
    )


def _is_list(one: _OrderedText, other: _OrderedText, window: _WordBlock) -> bool:
    """Tell whether the window, with some words around it, lists the same items in both texts.

    The words around it are the same in both: "human" and "ape" are a window in "human and ape DNA".
    """
    ours, theirs = one.words, other.words
    first, last, start, end, _ = window
    our_window, their_window = ours[first:last], theirs[start:end]
    if _JOINING.isdisjoint(our_window) or _JOINING.isdisjoint(their_window):
        return False
    if _words_of_items(our_window) != _words_of_items(their_window):
        return False
    for after in range(_LIST_REACH + 1):
        if after and ours[last : last + after] != theirs[end : end + after]:
            break
        for before in range(_LIST_REACH + 1):
            low, other_low = first - before, start - before
            if min(low, other_low) < 0 or ours[low:first] != theirs[other_low:start]:
                break
            if _same_items(ours[low : last + after], theirs[other_low : end + after]):
                return True
    return False


def _words_of_items(words: Sequence[str]) -> list[str]:
    return sorted(word for word in words if word not in _JOINING)


def _same_items(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    items = _items(ours)
    if items != _items(theirs):
        return False
    # Commas alone may also separate coordinates or arguments, whose order matters.
    has_and = not all(word == "," for word in ours if word in _JOINING)
    return has_and or all(
        len(item) > 1 or (item[0].isalpha() and len(item[0]) > 1) for item in items
    )


def _items(words: Sequence[str]) -> list[tuple[str, ...]]:
    items: list[list[str]] = [[]]
    for word in words:
        if word in _JOINING:
            items.append([])
        else:
            items[-1].append(word)
    return sorted(tuple(item) for item in items if item)


def _means_nothing(one: _OrderedText, other: _OrderedText, window: Sequence[_WordBlock]) -> bool:
    """Tell whether the blocks of a window mean the same in both orders."""
    if len(window) == 2:
        return _moved_freely(one, other, *window)
    if len(window) != 3:
        return False
    # Active and passive: "Ann called Bob", "Bob was called by Ann".
    front, verb, back = window
    is_passive = _is_passive(one, verb.first, verb.last, back.first)
    return is_passive != _is_passive(other, verb.start, verb.end, front.start)


def _moved_freely(
    one: _OrderedText, other: _OrderedText, front: _WordBlock, back: _WordBlock
) -> bool:
    """Tell whether two exchanged neighbours mean the same in both orders."""
    blocks = (front, back)
    single_words = {one.words[each.first] for each in blocks if each.last - each.first == 1}
    if not _ROAMING.isdisjoint(single_words):
        return True
    are_whole_text = len(one.words) == len(other.words) == back.last - front.first
    if are_whole_text and not _REQUESTS.isdisjoint(single_words):
        return True  # "cancel my order", "my order cancel": only a verb and its object
    if any(
        _is_phrase(one, block.first, block.last) and _is_phrase(other, block.start, block.end)
        for block in blocks
    ):
        return True
    is_extraposed = _is_extraposed(one, other, front.first, front.last)
    if is_extraposed or _is_extraposed(other, one, back.start, back.end):
        return True
    # A compound: "date of birth" has a linking word between its parts, and "birth date" has none.
    is_linked = not _LINKING.isdisjoint(one.between(front.last, back.first))
    other_is_linked = not _LINKING.isdisjoint(other.between(back.end, front.start))
    return is_linked != other_is_linked


def _is_extraposed(text: _OrderedText, other: _OrderedText, first: int, last: int) -> bool:
    """Tell whether "it is safe to eat eggs" stands for "eggs are safe to eat" in the other text.

    ``first:last`` are the words of "safe to eat".
    """
    start = text.places[first]
    opens = "it" in text.every[max(0, start - 2) : start] and "it" not in other.every
    return opens and "to" in text.words[first + 1 : last - 1]


def _is_phrase(text: _OrderedText, first: int, last: int) -> bool:
    """Tell whether some words are a phrase that can move.

    Such a phrase begins with a word of ``_OPENING``, and does not belong to the word after it. In
    other languages any word may follow, such as a part of the verb.
    """
    opens, ends = text.words[first], text.words[last - 1]
    if text.foreign:
        return opens in FOREIGN_OPENING and not is_foreign_function_word(ends)
    after = text.every[text.places[last - 1] + 1 : text.places[last - 1] + 2]
    if opens not in _OPENING or ends in _NOT_CLOSING:
        return False
    return not after or after[0] in _BREAKING


def _is_passive(text: _OrderedText, first: int, last: int, agent: int) -> bool:
    """Tell whether ``first:last`` is a verb after "be", with "by" between it and its agent."""
    before = text.every[max(0, text.places[first] - 2) : text.places[last - 1]]
    return "by" in text.between(last, agent) and not _BE.isdisjoint(before)
