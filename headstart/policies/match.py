"""Match policies decide whether the answer of a similar prompt may be served.

The lookup asks a policy about a stored prompt, in these steps:

1. **Guards** (``guards/``) compare the two prompts, and the first one that fires is the veto:
   "negation" for "cancel my card" and "do not cancel my card" (``GuardedMatch.veto``).
2. **Histories**, if the prompts end conversations, must mean the same for the last question
   (``compare_histories``, in the section on conversations).
3. **The rule** decides about a pair without a veto. ``StaticMatch`` asks for a similarity.
   ``VerifiedMatch`` applies what was learned from the labels of a domain. Until there are enough
   labels, it asks for a high similarity; for two prompts with the same words a lower one is enough
   (``has_same_words``).

For example, the stored prompt "how do I open an account" has a similarity of 0.91 to "Hi, how do I
open an account please?". No guard fires. A domain without labels may ask for 0.98. But the words
are the same, so 0.85 is enough: the verdict serves the answer, by ``Rule.SAME_WORDS``.

Before these steps, the **vetoes of people** stop questions and entries whose answer a person has
called wrong (``Vetoes``).
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from difflib import SequenceMatcher
from functools import lru_cache, partial
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from headstart.decisions import (
    Encoding,
    Gate,
    HistoryComparison,
    LabelSource,
    Rule,
    UnmatchedTurn,
    Verdict,
)
from headstart.errors import ConfigError
from headstart.policies.gate import MARGIN, Gates
from headstart.policies.guards.negation import negations_differ
from headstart.policies.guards.substitution import MOST_EXCHANGED
from headstart.policies.guards.table import GUARDS, parse_prompt
from headstart.policies.guards.words import (
    PARSE_VERSION,
    endings_of,
    is_function_word,
    pack_parse,
    split_words,
    stem,
    stems_of,
    unpack_parse,
)
from headstart.policies.learned_rule.error_limit import SOFT_GUARDS, ErrorLimit, least_score
from headstart.policies.learned_rule.features import VERSION, measure_pair, pack_features
from headstart.settings import static_threshold
from headstart.types import CacheKey, Turn, words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from headstart.decisions import Label, MatchContext, RankedNeighbor
    from headstart.policies.guards.words import Parse
    from headstart.policies.learned_rule.domain import Domain

    TurnParser: TypeAlias = Callable[[str], Parse]

LEAST_SIMILARITY = 0.5
"""The least similarity of a neighbour from which anything can be learned."""
ADDITIONS_FROM = 0.05
"""With this error target or a laxer one, one history may contain more than the other
(``docs/conversations.md``)."""


class GuardedMatch:
    """The base of match policies with guards: the parse of a prompt, and the vetoes.

    ``soft`` guards do not veto a neighbour by themselves: the policy decides. Raises ConfigError
    for an unknown guard.
    """

    prepare = staticmethod(parse_prompt)
    """Parses a prompt once, for all its neighbours."""
    parse_version = f"parse-{PARSE_VERSION}"
    pack = staticmethod(pack_parse)
    unpack = staticmethod(unpack_parse)

    def __init__(self, guards: Collection[str], soft: Collection[str] = ()) -> None:
        unknown = sorted(set(guards) - GUARDS.keys())
        if unknown:
            raise ConfigError(f"cache.guards: unknown {unknown}; choose from {list(GUARDS)}")
        enabled = tuple((name, guard) for name, guard in GUARDS.items() if name in guards)
        self._gates = Gates()
        self.note_encoded = self._gates.note
        """Counts a question that was encoded, for the gate of its domain."""
        self._guards = tuple(pair for pair in enabled if pair[0] not in soft)
        self._soft = tuple(pair for pair in enabled if pair[0] in soft)

    def veto(self, query: Parse, candidate: Parse) -> str | None:
        """Return the first guard, of those that are not soft, that fires, or None."""
        return _first_veto(self._guards, query, candidate)

    def soft_veto(self, query: Parse, candidate: Parse) -> str | None:
        """Return the first soft guard that fires, or None."""
        return _first_veto(self._soft, query, candidate)

    def any_veto(self, query: Parse, candidate: Parse) -> str | None:
        """Return the first guard that fires, soft or not, or None."""
        return self.veto(query, candidate) or self.soft_veto(query, candidate)

    def hit_share(self, context: MatchContext) -> float:
        """Return the share of hits among a domain's recently encoded questions, from 0 to 1."""
        return self._gates.of(context).hit_share

    def reworded(self, turn: Parse, counterpart: Parse) -> bool:
        """Tell whether one turn may be a reworded version of the other: no guard vetoes them."""
        return self.any_veto(turn, counterpart) is None


class StaticMatch(GuardedMatch):
    """Serves a neighbour if its similarity reaches ``threshold`` and no guard vetoes it.

    ``guards`` names the guards that are on; ``threshold`` defaults to 0.90 with all guards and to
    0.95 otherwise. Raises ConfigError for an unknown guard or a threshold outside (0, 1].
    """

    version = f"static-{PARSE_VERSION}"

    def __init__(
        self, threshold: float | None = None, guards: Collection[str] = tuple(GUARDS)
    ) -> None:
        super().__init__(guards)
        if threshold is None:
            threshold = static_threshold(guards)
        if not 0 < threshold <= 1:
            raise ConfigError(f"cache.threshold = {threshold}: use a similarity above 0, at most 1")
        self.minimum = threshold
        """A neighbour below it is never served."""

    def gate(self, context: MatchContext) -> Gate:
        """Return which questions are worth encoding."""
        counts = self._gates.of(context)
        least = self.minimum - MARGIN - counts.lowered
        return Gate(least=least, share=counts.share_below(least))

    def compare(
        self,
        one: Sequence[Turn],
        other: Sequence[Turn],
        max_error: float | None,  # noqa: ARG002 - a static policy promises nothing
        tenant: str = "",
    ) -> HistoryComparison:
        """Compare two histories, which must contain the same facts."""
        return compare_histories(one, other, self.any_veto, additions=False, tenant=tenant)

    def judge(
        self,
        query: Parse,  # noqa: ARG002 - the guards have read it
        candidate: Parse,  # noqa: ARG002
        nearby: RankedNeighbor,
        veto: str | None = None,
    ) -> Verdict:
        """Serve a neighbour that no guard vetoed and that is similar enough."""
        similarity = nearby.neighbor.similarity
        if veto is None and similarity < self.minimum:
            veto = "threshold"
        return Verdict(
            serves=veto is None, similarity=similarity, veto=veto, threshold=self.minimum
        )


class VerifiedMatch(GuardedMatch):
    """Serves the nearest neighbour that no guard vetoes, if the rule of its domain allows it.

    The first neighbour without a veto is the candidate. If the rule refuses it, the caller must not
    try the next one, because the error target holds for one candidate of each request.
    ``domain_of`` returns the learning domain of a request. Raises ConfigError for an unknown guard.
    """

    minimum = LEAST_SIMILARITY

    def __init__(
        self,
        error_limit: ErrorLimit,
        domain_of: Callable[[str], Domain],
        guards: Collection[str] = tuple(GUARDS),
    ) -> None:
        super().__init__(guards, SOFT_GUARDS)
        self.error_limit = error_limit
        self.version = version_of(guards)
        self._domain_of = domain_of

    def gate(self, context: MatchContext) -> Gate:
        """Return which questions are worth encoding."""
        return self._domain_of(context.domain).gate(self._gates.of(context))

    def compare(
        self,
        one: Sequence[Turn],
        other: Sequence[Turn],
        max_error: float | None,
        tenant: str = "",
    ) -> HistoryComparison:
        """Compare two histories. With a lax error target, one may contain more than the other."""
        own = self.error_limit.max_error
        additions = (own if max_error is None else min(max_error, own)) >= ADDITIONS_FROM
        return compare_histories(one, other, self.any_veto, additions=additions, tenant=tenant)

    def judge(
        self, query: Parse, candidate: Parse, nearby: RankedNeighbor, veto: str | None = None
    ) -> Verdict:
        """Measure the pair and apply the rule of its domain.

        The verdict always has the features, also after a veto, because a later label of the pair
        is learned from them.
        """
        domain = self._domain_of(nearby.context.domain)
        similarity, target = nearby.neighbor.similarity, nearby.context.max_error
        features = measure_pair(query, candidate, nearby, domain.entry_stats, veto)
        score = domain.score(features, nearby.neighbor.id)
        same_words = (
            veto is None
            and has_same_words(query, candidate)
            and self.soft_veto(query, candidate) is None
        )
        rule, threshold = domain.rule, domain.threshold(target)
        if same_words and similarity >= SAME_WORDS and domain.serves_same_words(target):
            rule, threshold = Rule.SAME_WORDS, SAME_WORDS
        elif veto is None:
            veto = _refusal(domain, score if rule is Rule.LEARNED else similarity, threshold)
            if veto is None and rule is Rule.COLD_START:
                veto = self._cold_start_veto(query, candidate, domain, target)
                veto = veto or _veto_doubtful(domain, score, target)
        return Verdict(
            serves=veto is None,
            similarity=similarity,
            veto=veto,
            rule=rule,
            score=score,
            threshold=threshold,
            features=pack_features(features),
            sketch=nearby.sketch,
            same_words=same_words,
        )

    def _cold_start_veto(
        self, query: Parse, candidate: Parse, domain: Domain, target: float | None
    ) -> str | None:
        """Return a veto that counts only while nothing is learned.

        Later, the findings of soft guards and the common words are features of the learned rule.
        """
        soft = self.soft_veto(query, candidate)
        if soft is not None and not domain.lifts_soft_guards(target):
            return soft
        return _veto_unrelated(query, candidate)


def version_of(guards: Collection[str]) -> str:
    """Return the version of labels made with these guards: other guards select other pairs."""
    off = sorted(GUARDS.keys() - set(guards))
    return VERSION + "".join(f"-no-{name}" for name in off)


def _first_veto(
    guards: Sequence[tuple[str, Callable[[Parse, Parse], bool]]], query: Parse, candidate: Parse
) -> str | None:
    for name, guard in guards:
        if guard(query, candidate):
            return name
    return None


def _veto_unrelated(query: Parse, candidate: Parse) -> str | None:
    """Veto two texts without a common content word.

    An attacker can write a text whose vector is near that of another one (CacheAttack).
    """
    apart = query.content and candidate.content and query.content.isdisjoint(candidate.content)
    return "unrelated" if apart else None


def _veto_doubtful(domain: Domain, score: float, max_error: float | None) -> str | None:
    """Veto a pair that the domain's model doubts, while many near misses had other answers."""
    least = least_score(domain.target(max_error), domain.trust)
    return "doubtful" if score < least else None


def _refusal(domain: Domain, reached: float, threshold: float | None) -> str | None:
    """Veto a pair below the threshold, or any pair while the domain has none and serves nothing."""
    if threshold is None:
        return domain.refusal
    return None if reached >= threshold else "threshold"


# --- the same words -------------------------------------------------------------------------------

SAME_WORDS = 0.85
"""The least similarity of a hit on a prompt with the same words. A question mark, "please" or
"thanks" lowers the similarity of equal questions to 0.92 to 0.94, and below 0.85 in 3 to 6 % of the
cases."""
FEWEST_SAME_WORDS = 3
"""The fewest words of such prompts. In "great, thanks" the courtesy is the meaning."""


def _phrases(*phrases: str) -> tuple[tuple[str, ...], ...]:
    """Return the stems of each phrase."""
    return tuple(tuple(map(stem, phrase.split())) for phrase in phrases)


_OPENINGS = _phrases(
    "hi", "hello", "hey", "dear", "please", "thanks", "ok", "okay", "so", "quick question",
    "tell me", "can you tell me", "could you tell me", "would you tell me",
    "i want to know", "i would like to know",
)  # fmt: skip
_CLOSINGS = _phrases("please", "thanks", "thank you", "cheers")
_ASKING = stems_of("what who where when why how")
_STATING = stems_of("you he she it they the this that these those there")
"""Words that begin a statement: a question mark alone makes it a question."""
_ABOUT_TEXT = stems_of("""
    translate translation repeat spell spelling pronounce rhyme proofread correct rephrase rewrite
    paraphrase punctuate punctuation capitalize capitalise grammar sentence phrase word
""")
"""In prompts with these words, courtesy and signs may be the text that they are about."""


class _SplitPrompt(NamedTuple):
    """The stems of a prompt: courtesy at its beginning, the words, and courtesy at its end."""

    opening: tuple[str, ...]
    words: tuple[str, ...]
    closing: tuple[str, ...]


def has_same_words(one: Parse, other: Parse) -> bool:
    """Tell whether two prompts differ only in courtesy at their ends, punctuation and capitals.

    Guards compare capitals where they matter. "What's" is "what is". If both have courtesy at one
    end, it must be the same: "for please" is not "for thanks". Prompts about a text never have the
    same words, because there each sign may matter: "Correct this: …".
    """
    prompt, other_prompt = _split_prompt(one.stems), _split_prompt(other.stems)
    words = prompt.words
    if words != other_prompt.words or len(words) < FEWEST_SAME_WORDS:
        return False
    if one.given[1] or other.given[1] or not _ABOUT_TEXT.isdisjoint(words):
        return False  # the prompts are about a text
    marks, other_marks = one.marks, other.marks
    if words[0] not in _STATING:
        marks, other_marks = marks.removesuffix("?"), other_marks.removesuffix("?")
    if marks != other_marks:
        return False
    courtesies = (prompt.opening, other_prompt.opening), (prompt.closing, other_prompt.closing)
    if any(said and other_said and said != other_said for said, other_said in courtesies):
        return False
    endings, other_endings = endings_of(one), endings_of(other)
    compared = set(words) - _ASKING  # "what's" is "what is"
    return all(endings.get(word) == other_endings.get(word) for word in compared)


def _split_prompt(stems: tuple[str, ...]) -> _SplitPrompt:
    """Split a prompt. "is" after a question word is left out, because "what's" has no such word."""
    words = stems
    while phrase := next((each for each in _OPENINGS if words[: len(each)] == each), None):
        words = words[len(phrase) :]
    opening = stems[: len(stems) - len(words)]
    while phrase := next((each for each in _CLOSINGS if words[-len(each) :] == each), None):
        words = words[: -len(phrase)]
    closing = stems[len(opening) + len(words) :]
    if words[1:2] == ("is",) and words[0] in _ASKING:
        words = words[:1] + words[2:]
    return _SplitPrompt(opening, words, closing)


# --- histories of conversations -------------------------------------------------------------------

MOST_UNMATCHED = 4
"""The most reworded user turns in one comparison."""
MOST_COUNTERPARTS = 2
"""The most turns of the other history with which each is compared: those with the most common
words."""

_NOT_ENCODED = Encoding(
    sentence=np.zeros(0, np.float32), tokens=np.zeros((0, 0), np.float32), spans=(), complete=False
)
_CODE = re.compile(r"[={}\\|^~`]|(?<!\w)-\d")
"""Matches in turns with code. In code, signs matter as much as words, so such turns must be
equal."""
_CLOSING = re.compile(r"(?<![.,!?;:])[.,!?;:]+(?=\s|$)")
"""Matches punctuation at the end of a word. The lookbehind keeps the time linear: the match of a
long run of signs is tried only at its first sign."""
_YES = words_of("yes yeah yep yup correct")
_NO = words_of("no nope nah not none")
_SMALL_TALK = (
    _YES
    | _NO
    | stems_of(
        """
        ok okay thanks cheers great lovely perfect brilliant cool nice ah oh ha haha lol hi hello
        hey hiya morning right fine sure sorry ugh btw way bit just
        """
    )
)
"""Words that say nothing about the topic. Turns are compared without them."""
_CORRECTIONS = stems_of("actually instead rather correction meant")
_DONE = re.compile(
    r"\b(?:I've|I have|we've|we have|that's|it's|all|done,?)\s+(?:just |now |been |also )*"
    r"(add|book|chang|updat|remov|cancel|switch|mov|submit|order|sent|set|refund|reserv|log|arrang"
    r"|paus|froz|block|register|rais|amend|renew|clos|open|upgrad|downgrad)\w*",
    re.IGNORECASE,
)
"""Matches the report of an action: "I've cancelled", "it's now blocked"."""


def compare_histories(
    one: Sequence[Turn],
    other: Sequence[Turn],
    veto: Callable[[Parse, Parse], str | None],
    *,
    additions: bool,
    tenant: str = "",
) -> HistoryComparison:
    """Compare two histories.

    The order of the two does not matter, except that on a tie ``unmatched`` may name either side.

    ``veto`` asks the guards about two turns that are nearly equal. With ``additions``, one user may
    have said more than the other. The parses of turns are cached for each ``tenant`` apart, so that
    the time of an answer does not show a tenant what another one wrote.
    """
    parse = partial(_parse, tenant)
    turns, other_turns = _differing_turns(one, other)
    if not turns and not other_turns:
        return HistoryComparison(None)
    conflict = (
        _end_differs(one, other, turns, other_turns)
        or _speech_differs(turns, other_turns, parse)
        or _facts_differ(_HistoryFacts(one, turns, parse), _HistoryFacts(other, other_turns, parse))
        or _find_vetoed_edit(turns, other_turns, veto, parse)
    )
    if conflict is not None:
        return HistoryComparison(conflict)
    unmatched = _unmatched_turns(turns, other, other_turns, parse)
    other_unmatched = _unmatched_turns(other_turns, one, turns, parse)
    if additions:  # one history may have more than the other: the turns of one side are enough
        unmatched = min(unmatched, other_unmatched, key=len)
    else:
        unmatched += other_unmatched
    if len(unmatched) > MOST_UNMATCHED or not all(turn.counterparts for turn in unmatched):
        return HistoryComparison("unmatched")
    return HistoryComparison(None, unmatched)


def _differing_turns(one: Sequence[Turn], other: Sequence[Turn]) -> tuple[list[Turn], list[Turn]]:
    """Return the turns of each history that the other does not have, or has in another order."""
    matcher = SequenceMatcher(
        None, [*map(_normalized, one)], [*map(_normalized, other)], autojunk=False
    )
    turns: list[Turn] = []
    other_turns: list[Turn] = []
    for tag, begin, end, other_begin, other_end in matcher.get_opcodes():
        if tag != "equal":
            turns += one[begin:end]
            other_turns += other[other_begin:other_end]
    return turns, other_turns


def _normalized(turn: Turn) -> tuple[bool, str]:
    """Return a turn without case, spaces and closing punctuation."""
    text = turn.text.replace("\u2019", "'").casefold()
    return turn.user, " ".join(_CLOSING.sub(" ", text).split())


def _end_differs(
    one: Sequence[Turn],
    other: Sequence[Turn],
    turns: Sequence[Turn],
    other_turns: Sequence[Turn],
) -> str | None:
    """Return a veto if only one history has the last topic, to which "how much?" would refer.

    ``turns`` and ``other_turns`` are the differing turns of the two histories, here and below.
    """
    has_own_end = bool(one) and one[-1] in turns
    other_has_own_end = bool(other) and other[-1] in other_turns
    return "end" if has_own_end != other_has_own_end else None


def _speech_differs(
    turns: Sequence[Turn], other_turns: Sequence[Turn], parse: TurnParser
) -> str | None:
    """Return a veto if the turns differ in a way that a comparison of words does not show."""
    texts = [turn.text for turn in turns if turn.user]
    other_texts = [turn.text for turn in other_turns if turn.user]
    if not texts and not other_texts:
        return "answer"  # the users said the same, but the assistants did not
    if any(_CODE.search(turn.text) for turn in (*turns, *other_turns)):
        return "code"
    if {_stance(texts), _stance(other_texts)} == {"yes", "no"}:
        return "polarity"
    if _stems(texts, parse) & _CORRECTIONS != _stems(other_texts, parse) & _CORRECTIONS:
        return "correction"
    if _actions(turns) != _actions(other_turns):
        return "action"
    return None


def _stance(texts: Iterable[str]) -> str | None:
    """Return the "yes" or "no" with which turns begin. If they have both, it is "no"."""
    first = {word.text for text in texts for word in split_words(text)[:1]}
    return "no" if first & _NO else "yes" if first & _YES else None


def _stems(texts: Iterable[str], parse: TurnParser) -> set[str]:
    """Return the stems of all words."""
    return {stemmed for text in texts for stemmed in parse(text).stems}


def _actions(turns: Sequence[Turn]) -> set[str]:
    """Return the actions that the assistant reports."""
    reports = (_DONE.finditer(turn.text) for turn in turns if not turn.user)
    return {match.group(1).lower() for found in reports for match in found}


class _HistoryFacts:
    """The facts in the differing turns of a history, and those in all its user turns."""

    def __init__(
        self, history: Sequence[Turn], differing: Sequence[Turn], parse: TurnParser
    ) -> None:
        self.user = _Facts(parse(turn.text) for turn in differing if turn.user)
        self.assistant = _Facts(parse(turn.text) for turn in differing if not turn.user)
        self.ever = _Facts(parse(turn.text) for turn in history if turn.user)


class _Facts:
    """The numbers, dates and names of some turns."""

    def __init__(self, turns: Iterable[Parse]) -> None:
        parses = [*turns]
        self.numbers = {value for parse in parses for value, _ in parse.quantities}
        self.dates = {date for parse in parses for date in parse.dates}
        self.names = {name for parse in parses for name in parse.names}

    def swaps_fact_with(self, other: _Facts) -> bool:
        """Tell whether each side has a fact of one kind that the other does not have."""
        kinds = (
            (self.numbers, other.numbers),
            (self.dates, other.dates),
            (self.names, other.names),
        )
        return any(ours - theirs and theirs - ours for ours, theirs in kinds)

    def exceeds(self, other: _Facts) -> bool:
        """Tell whether this side has a number or a date that the other side does not have."""
        return bool(self.numbers - other.numbers or self.dates - other.dates)


def _facts_differ(one: _HistoryFacts, other: _HistoryFacts) -> str | None:
    if one.user.exceeds(other.ever) or other.user.exceeds(one.ever):
        return "fact"
    if one.user.swaps_fact_with(other.user) or one.assistant.swaps_fact_with(other.assistant):
        return "fact"
    return None


def _find_vetoed_edit(
    turns: Sequence[Turn],
    other_turns: Sequence[Turn],
    veto: Callable[[Parse, Parse], str | None],
    parse: TurnParser,
) -> str | None:
    """Return the veto on a user turn that is an edited version of a turn of the other history."""
    for turn in turns:
        for other in other_turns:
            if turn.user and other.user:
                conflict = _edit_conflict(turn.text, other.text, veto, parse)
                if conflict is not None:
                    return conflict
    return None


def _edit_conflict(
    text: str, other: str, veto: Callable[[Parse, Parse], str | None], parse: TurnParser
) -> str | None:
    """Return the veto on two turns if one is an edited version of the other.

    It is one if they have content words in common, and one of them has at most one other content
    word. If the longer turn has more new words than common ones, it says something else as well,
    so only a negation counts.
    """
    one, two = parse(text), parse(other)
    content, other_content = _content(one), _content(two)
    common = len(content & other_content)
    fewest_new, most_new = sorted((len(content - other_content), len(other_content - content)))
    if not common or fewest_new > 1:
        return None
    if negations_differ(one, two):
        return "negation"
    if most_new > common:
        return None
    return "substitution" if _swaps_words(text, other) else veto(one, two)


def _swaps_words(text: str, other: str) -> bool:
    """Tell whether only a few words were replaced by a few others, so that a detail changed.

    Words are counted as they are written, so "week" and "weekly" are two words. But if the words
    have the same stems, nothing was replaced.
    """
    words, other_words = _written_words(text), _written_words(other)
    only, only_other = words - other_words, other_words - words
    if not 0 < len(only) <= MOST_EXCHANGED or not 0 < len(only_other) <= MOST_EXCHANGED:
        return False
    return {stem(word) for word in only} != {stem(word) for word in only_other}


def _written_words(text: str) -> set[str]:
    """Return the content words as they are written, without stemming."""
    return {
        word.text
        for word in split_words(text)
        if not is_function_word(word.text) and stem(word.text) not in _SMALL_TALK
    }


def _unmatched_turns(
    turns: Sequence[Turn], other: Sequence[Turn], other_turns: Sequence[Turn], parse: TurnParser
) -> tuple[UnmatchedTurn, ...]:
    """Return the user turns with words that the user of the history ``other`` never used."""
    used = _stems((turn.text for turn in other if turn.user), parse)
    return tuple(
        UnmatchedTurn(turn.text, _counterparts(turn, other_turns, parse))
        for turn in turns
        if turn.user and not _content(parse(turn.text)) <= used
    )


def _counterparts(turn: Turn, other_turns: Sequence[Turn], parse: TurnParser) -> tuple[str, ...]:
    """Return the user turns that have the most content words in common with this one."""
    content = _content(parse(turn.text))
    common = [
        (len(content & _content(parse(other.text))), other.text)
        for other in other_turns
        if other.user
    ]
    common.sort(key=lambda pair: -pair[0])
    return tuple(text for count, text in common[:MOST_COUNTERPARTS] if count)


def _content(parse: Parse) -> frozenset[str]:
    """Return the content words without small talk."""
    return parse.content - _SMALL_TALK


@lru_cache(maxsize=4096)
def _parse(tenant: str, text: str) -> Parse:  # noqa: ARG001 - each tenant has its own results
    """Parse a turn without an encoding. The guard that compares word vectors then vetoes."""
    return parse_prompt(text, _NOT_ENCODED)


# --- vetoes of people -----------------------------------------------------------------------------

FEEDBACK = "feedback"
"""The name of a person's veto."""
MOST_VETOES = 20_000
"""The most vetoes that are kept: some 10 MB. The oldest are evicted first."""


class Veto(NamedTuple):
    """The entry and the question of an answer that a person called wrong."""

    entry: str
    question: str
    """"" if only the entry is known."""
    pair_only: bool = False


def question_of(key: CacheKey) -> str:
    """Return the name of a question for vetoes: a digest of its text and its partition."""
    return blake2b(f"{key.group}\0{key.query}".encode(), digest_size=12).hexdigest()


class Vetoes:
    """The vetoes of people, by the request whose answer was called wrong.

    If a person calls a hit wrong, its entry answers no further reworded prompt, and its question is
    not matched by meaning. So the next caller gets a fresh answer. With ``pair_only``, only this
    entry does not answer this question. A later "correct" lifts the veto.
    """

    def __init__(self, rows: Mapping[str, Veto] | None = None) -> None:
        self._rows: OrderedDict[str, Veto] = OrderedDict()
        self._stopped: Counter[tuple[str, str]] = Counter()
        """The blocked pairs of entry and question (``_stops``), and how many vetoes block each."""
        for id, veto in (rows or {}).items():
            self._place(id, veto)

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self) -> dict[str, Veto]:
        """Return all vetoes by their requests, the oldest first."""
        return dict(self._rows)

    def find(self, id: str) -> Veto | None:
        """Return the veto that a verdict on this request has set."""
        return self._rows.get(id)

    def refuses(self, entry: str, question: str) -> bool:
        """Tell whether an entry must not answer this question by meaning."""
        asked = ((entry, question), (entry, ""), ("", question))
        return any(each in self._stopped for each in asked)

    def apply(self, label: Label) -> bool:
        """Apply the verdict of a person; return whether it changed anything.

        The last verdict on a request counts. "Wrong" in a review is only about a pair
        (``pair_only``); as feedback it is about an answer that was served.
        """
        if label.source not in (LabelSource.FEEDBACK, LabelSource.REVIEW):
            return False
        if label.same:
            return self._lift_all(label)
        is_review = label.source is LabelSource.REVIEW
        if label.same is None or not (label.served or is_review):
            return False  # the person was unsure, or did not get the cached answer
        veto = Veto(label.entry, label.question, label.pair_only or is_review)
        names_no_pair = veto.pair_only and not veto.question
        if names_no_pair or self._rows.get(label.id) == veto:
            return False
        self._lift(label.id)
        self._place(label.id, veto)
        return True

    def _place(self, id: str, veto: Veto) -> None:
        self._rows[id] = veto
        self._stopped.update(_stops(veto))
        if len(self._rows) > MOST_VETOES:
            self._lift(next(iter(self._rows)))

    def _lift_all(self, label: Label) -> bool:
        """Lift the request's veto, and those on other requests for the same pair."""
        same = [
            id
            for id, veto in self._rows.items()
            if id == label.id
            or (label.question and (veto.entry, veto.question) == (label.entry, label.question))
        ]
        for id in same:
            self._lift(id)
        return bool(same)

    def _lift(self, id: str) -> None:
        veto = self._rows.pop(id, None)
        for each in () if veto is None else _stops(veto):
            self._stopped[each] -= 1
            if not self._stopped[each]:
                del self._stopped[each]


def _stops(veto: Veto) -> tuple[tuple[str, str], ...]:
    """Return the blocked pairs of entry and question. "" stands for any of them."""
    if veto.pair_only:
        return ((veto.entry, veto.question),)
    return ((veto.entry, ""), ("", veto.question)) if veto.question else ((veto.entry, ""),)
