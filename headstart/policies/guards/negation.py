"""Guards for words that can reverse a question: opposites, amounts, negations, scopes.

**Opposites** (``opposites_used``): "open" and "closed". The pairs come from general English, and
not from a data set. Some pairs are left out because two prompts with them may still ask the same:
in/on, to/from, and given/received ("I was given it", "I received it").

**Amounts and periods** (``amounts_differ``, ``times_differ``): "of all cars" and "of each car",
"this month" and "last month".

**Negations** (``negations_differ``): "it is open" and "it is not open". An idiom is no negation
("why not"), two negations cancel each other, and an opposite cancels one ("not right", "wrong"). A
complaint may have a negation or none: "it isn't working" and "it fails" ask the same. So a prompt
also has a *tone*, such as "complains".

**Scopes** (``scopes_differ``): other owners ("my card", "his card"), persons, kinds of things,
added instructions ("… Answer in Spanish."), or a word that narrows the question ("a joint
account").
"""

from __future__ import annotations

from collections import defaultdict
from itertools import dropwhile, pairwise, takewhile
from typing import TYPE_CHECKING

from headstart.policies.guards.facts import DENIALS, dates_differ, quantifiers_differ
from headstart.policies.guards.substitution import exchanged_maxsim
from headstart.policies.guards.words import (
    NEGATED_VERBS,
    VOCABULARY,
    by_first_word,
    rows_of,
    stem,
    stem_classes,
    stem_groups,
    stems_of,
)
from headstart.types import words_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headstart.policies.guards.words import Parse, Word


# --- opposites -------------------------------------------------------------------------------


_PARTICLES = words_of("an ein aus ab auf zu aan uit på av")
"""Words of ``foreign_opposite_groups`` that are prepositions if a noun follows."""
_PREFIXES = ("un", "non", "dis", "in", "im", "ir", "il", "de", "mis", "anti")
_SHORTEST_STEM = 4
"""The fewest characters of a word after a negative prefix. Shorter words mostly have no prefix:
"under" is not un + der."""
_SHORTEST_REST = 3
"""The fewest characters after two opposite prefixes: "lowpass", "highpass"."""


def _rivals(rows: Iterable[Sequence[frozenset[str]]]) -> dict[str, frozenset[str]]:
    """Return for each word the words in the other groups of its rows."""
    rivals: dict[str, set[str]] = defaultdict(set)
    for groups in rows:
        for group in groups:
            for word in group:
                rivals[word] |= frozenset[str]().union(*groups) - group
    return {word: frozenset(others) for word, others in rivals.items()}


_OPPOSITES = _rivals(
    stem_groups(row)
    for row in (
        *VOCABULARY["opposite_pairs"].split(),
        *VOCABULARY["foreign_opposite_pairs"].split(),
        *rows_of(VOCABULARY["opposite_groups"]),
        *rows_of(VOCABULARY["foreign_opposite_groups"]),
    )
)
_RIVAL_PREFIXES = _rivals(
    [words_of(group) for group in row.split("/")]
    for row in rows_of(VOCABULARY["opposite_prefixes"])
)
_PHRASAL = {
    tuple(stem(part) for part in phrase.split()): stem(verb)
    for row in rows_of(VOCABULARY["phrasal_verbs"])
    for verb, _, phrases in (row.partition(":"),)
    for phrase in phrases.split("/")
}
_PHRASAL_VERBS = frozenset({verb for verb, _ in _PHRASAL})
_PHRASAL_REACH = 4
"""The most words between a verb and its particle: "turn all the lights off"."""


def opposites_used(a: Parse, b: Parse) -> bool:
    """Veto if the prompts have opposites and no negation cancels them ("not right" is "wrong")."""
    return a.negated == b.negated and (opposites_exchanged(a, b) or _prefixes_exchanged(a, b))


def opposites_exchanged(a: Parse, b: Parse) -> bool:
    """Tell whether each prompt has a word that the other lacks, and these two words are opposites.

    Negations are not opposites here: "always" and "never" are left to ``negations_differ``.
    """
    ours, theirs = frozenset((*a.stems, *_phrasal(a))), frozenset((*b.stems, *_phrasal(b)))
    only_a = ours - theirs - a.negators - _other_particles(a, b)
    only_b = theirs - ours - b.negators - _other_particles(b, a)
    return (
        any(not only_b.isdisjoint(_OPPOSITES.get(word, ())) for word in only_a)
        or any(_negates(word, only_b) for word in only_a)
        or any(_negates(word, only_a) for word in only_b)
        or _particles_exchanged(a, b)
    )


def _phrasal(parse: Parse) -> Iterator[str]:
    """Yield the verbs that mean the same as verbs with particles: "disable" for "turn … off"."""
    for place, word in enumerate(parse.stems):
        if word in _PHRASAL_VERBS:
            for particle in parse.stems[place + 1 : place + 2 + _PHRASAL_REACH]:
                verb = _PHRASAL.get((word, particle))
                if verb is not None:
                    yield verb
                    break


def _other_particles(parse: Parse, other: Parse) -> frozenset[str]:
    """Return words of ``_PARTICLES`` that are prepositions here ("zu Hause"), or English words."""
    if not (parse.foreign or other.foreign):
        return _PARTICLES
    return _PARTICLES & {
        word
        for word, after in pairwise(parse.stems)
        if after in parse.content or not after.isalpha()
    }


def _negates(word: str, others: frozenset[str]) -> bool:
    """Tell whether a word is one of the others with a negative prefix: "unlock", "lock"."""
    return word.startswith(_PREFIXES) and any(
        word.startswith(prefix)
        and len(word) >= len(prefix) + _SHORTEST_STEM
        and word[len(prefix) :] in others
        for prefix in _PREFIXES
    )


def _prefixes_exchanged(a: Parse, b: Parse) -> bool:
    """Tell whether two words have opposite prefixes and the same rest: preorder, postorder.

    A negation does not cancel them: "not lowpass" may be "bandpass", too.
    """
    only_a, only_b = {*a.stems} - {*b.stems}, {*b.stems} - {*a.stems}
    ends = {word[-_SHORTEST_REST:] for word in only_b}  # leaves few words to try
    return any(
        word.startswith(prefix)
        and len(word) >= len(prefix) + _SHORTEST_REST
        and any(rival + word[len(prefix) :] in only_b for rival in rivals)
        for word in only_a
        if word[-_SHORTEST_REST:] in ends
        for prefix, rivals in _RIVAL_PREFIXES.items()
    )


def _particles_exchanged(a: Parse, b: Parse) -> bool:
    """Tell whether the prompts have one verb with opposite particles: "opt in", "opt out"."""
    if not {"in", "out"} <= {*a.stems, *b.stems}:
        return False
    phrases_a, phrases_b = set(pairwise(a.stems)), set(pairwise(b.stems))
    return any(
        (verb, "out" if particle == "in" else "in") in phrases_b - phrases_a
        for verb, particle in phrases_a - phrases_b
        if particle in {"in", "out"} and verb in a.content
    )


# --- amounts and periods -------------------------------------------------------------------------

_TOGETHER = stems_of("all combined together altogether overall")
_EACH = stems_of("each every per")
_AMOUNTS = stems_of("""
    many total sum average mean median count number amount maximum minimum max min
""")


def amounts_differ(a: Parse, b: Parse) -> bool:
    """Veto other quantifiers, and the amount of all things beside that of each one.

    "How many seats do all cars have?" and "How many seats does each car have?" differ. Otherwise
    "all" and "each" mean the same.
    """
    one, other = {*a.stems}, {*b.stems}
    rivals = any(
        _TOGETHER & ours - theirs and _EACH & theirs - ours and not _EACH & ours
        for ours, theirs in ((one, other), (other, one))
    )
    counted = all(
        not _AMOUNTS.isdisjoint(side.stems) or any(degree == "most" for _, degree in side.degrees)
        for side in (a, b)
    )
    return (rivals and counted) or quantifiers_differ(a, b)


_PERIODS = stems_of("day night week weekend month quarter year")
_WHICH_PERIOD = stem_classes(
    {
        "this": "this current",
        "next": "next coming upcoming",
        "last": "last past previous",
        "every": "each every per by",
    }
)


def times_differ(a: Parse, b: Parse) -> bool:
    """Veto other dates, and other periods: "sales this month", "sales last month", "per month"."""
    ours, theirs = _periods(a), _periods(b)
    only, only_other = ours - theirs, theirs - ours
    rivals = {period for period, _ in only} & {period for period, _ in only_other}
    return bool(rivals) or dates_differ(a, b)


def _periods(parse: Parse) -> set[tuple[str, str]]:
    return {
        (period, _WHICH_PERIOD[which])
        for which, period in pairwise(parse.stems)
        if period in _PERIODS and which in _WHICH_PERIOD
    }


# --- negations -------------------------------------------------------------------------------

_NEGATIONS = words_of("""
    not no never without cannot except excluding none neither nobody nothing nowhere non unable
    unless hardly barely scarcely rarely seldom
""")
_FOREIGN_NEGATIONS = words_of(VOCABULARY["foreign_negations"])
_FOREIGN_STEMS = stems_of(" ".join(_FOREIGN_NEGATIONS))
_ALL_NEGATIONS = _NEGATIONS | _FOREIGN_NEGATIONS | NEGATED_VERBS
_BEFORE_FOREIGN = words_of(
    "oder ou o czy of eller vagy warum wieso weshalb pourquoi dlaczego waarom varför hvorfor"
)
_ONLY_FOREIGN = words_of("nur seulement solo sólo só tylko alleen bara kun")
"""After "or" and "why" (``_BEFORE_FOREIGN``) and before "only", a negation does not count: "oder
nicht", "nicht nur"."""
_BESIDE_NO = words_of("uma em ao aos à às é são você vocês meu minha seu sua pelo num não")
"""Words that show that a text is Portuguese, in which "no" means "in the"."""
_PORTUGUESE = frozenset({"pt"})
_CEASING = stems_of("stop quit cease prevent halt keep")
"""Verbs that negate the verb after them: "stop watering", "keep it from renewing"."""
_AVOIDING = stems_of("avoid refrain")
"""Verbs that also negate nouns: "avoid nuts"."""
_REACH = 3
"""The most words between a negation and the word that it negates: "not at all right"."""
_LEAST_NEGATED = 3
"""With fewer content words, two negations are about one thing: "never say never"."""
_NEGATION_REACH = 6
"""The number of words in which the verb after a negation is searched: "prevent … from renewing"."""
_FREE_OF = words_of("""
    sugar gluten dairy lactose nut meat alcohol caffeine fat smoke interest fee tax duty rent
""")
"""After these words "free" is a negation ("sugar-free"). In "the pool is free" it is none."""
_ENDING = stems_of("""
    cancel unsubscribe deregister disable deactivate remove delete off end terminate block ban mute
    quit stop prevent halt cease avoid rid discontinue opt
""")

# "I can't remember my PIN" and "I forgot my PIN" ask the same; so do "Why not use X" and "or not".
_PRONOUNS = words_of("i you we they he she it this that there")
_YES, _NO = stems_of("yes yeah yep yup"), stems_of("no nope nah")
_AFTER_ANSWER = (_PRONOUNS - {"he"}) | words_of(
    "these those my our your the please never not don't"
)
"""Before one of these words, a "no" at the start is an answer: "No, I don't". "No he" may be
Spanish."""
_UNKNOWING = words_of("""
    remember recall know find see figure understand understood tell locate recognise
    recognize sure certain
""")
_IDIOMS = {
    "not": _UNKNOWING | {"only", "just", "yet"},
    "n't": _UNKNOWING | {"mind", "hesitate"},
    "cannot": _UNKNOWING,
    "unable": _UNKNOWING,
    "no": _ONLY_FOREIGN | words_of("matter doubt problem problems idea clue worries reason luck"),
}
_PRONOUN_STEMS = stems_of(" ".join(_PRONOUNS))
_DENYING = stems_of(" ".join(NEGATED_VERBS)) | stems_of("not no cannot unable")
_AUXILIARY = stems_of("""
    am is are was were be been do does did have has had can could will would able to a an the any
""")
_PRESENT = {"found": "find", "knew": "know", "saw": "see", "understood": "understand"}
_PASSED_OVER = words_of("i we seem to be able even really quite")
"""Words that may come between a negation and its verb: "I can't seem to find it"."""
_BEFORE_NOT = frozenset({"or", "why", "if", "whether"})
_BEFORE_QUESTION = words_of("and but so then well oh ok okay hi hello hey please") | {""}

_WORKING = stems_of("""
    work go going come show appear arrive receive accept load open complete process respond get
    got let allow use able happy pleased
""")
"""Verbs that make a complaint when they are negated: "it isn't working", "it won't go through"."""
_WANTING = stems_of("want need")
_WANTED_REACH = 4
"""The number of words after a negation in which the verb after "want to" is searched."""
_TROUBLE = stems_of(VOCABULARY["trouble"])
_COMPLAINS, _TROUBLED, _CEASES, _ENDS = "complains", "troubled", "ceases", "ends"
_ALIKE = (({_COMPLAINS}, {_COMPLAINS, _TROUBLED}), ({_CEASES}, {_ENDS}))
"""Pairs of tones. A prompt with a negation and the first tone may say the same as a prompt without
a negation and with the second tone."""


_IN_PLACE_OF = frozenset({("instead", "of"), ("rather", "than")})
_SUBSTITUTING = stems_of("substitute substituting")
_REPLACING = _SUBSTITUTING | stems_of("replace replacing")
_TAKING = _REPLACING | stems_of("instead rather")
_REPLACED_WITH = frozenset({"with", "by", "for"})


def negations(
    words: Sequence[Word], spoken: frozenset[str] = frozenset()
) -> tuple[frozenset[str], bool, frozenset[str]]:
    """Return the negations of a prompt, whether it is negated, and its tone.

    It is negated if the number of negations is odd: {"not"}, True, {"complains"} for "it is not
    working". A negation in an idiom does not count. ``spoken`` has the languages that the prompt
    may be in.
    """
    texts = {word.text for word in words}
    no_means_in = "no" in texts and (spoken == _PORTUGUESE or not _BESIDE_NO.isdisjoint(texts))
    negators = []
    tone = set()
    for place, word in enumerate(words):
        stemmed = stem(word.text)
        if word.text == "no" and (no_means_in or _is_answer(words, place, spoken)):
            continue  # "no hotel" is "in the hotel" in Portuguese; "No, I don't" is an answer
        if word.text.endswith("n't") or word.text in _ALL_NEGATIONS:
            if _is_negation_idiom(words, place):
                tone |= _tone_of_idiom(words, place)
            else:
                negators.append(stemmed)
                tone |= _tone_of_negation(words, place)
        elif word.text == "free" and place and words[place - 1].text in _FREE_OF:
            negators.append(stemmed)
        elif stemmed in _AVOIDING or (stemmed in _CEASING and _ceases(words, place)):
            negators.append(stemmed)
            tone.add(_CEASES)
        elif stemmed in _ENDING:
            tone.add(_ENDS)
        if stemmed in _TROUBLE:
            tone.add(_TROUBLED)
    found = frozenset(negators)
    negated = len(negators) % 2 == 1 or not found.isdisjoint(_FOREIGN_STEMS)
    return found, negated, frozenset(tone)


def negations_differ(a: Parse, b: Parse) -> bool:
    """Veto if one prompt is negated and the other is not, or if they exchange what replaces what.

    "X instead of Y" and "Y instead of X" are such an exchange. There is no veto if both prompts
    complain ("My card isn't working", "My card fails"), if both end something ("Stop
    sending letters", "Cancel letters"), or if an opposite cancels the negation ("not correct",
    "wrong"). "Yes, …" and "No, …" differ, also before a negation.
    """
    if any(_YES & {*one.stems[:1]} and _NO & {*two.stems[:1]} for one, two in ((a, b), (b, a))):
        return True
    a_negated = a.negated and not _no_means_in(a, b)
    b_negated = b.negated and not _no_means_in(b, a)
    if a_negated == b_negated:
        return _replacement_turned(a, b) or _both_parts_negated(a, b) or _idiom_denied(a, b)
    negated, other = (a, b) if a_negated else (b, a)
    have_one_meaning = any(negated.tone & ours and other.tone & theirs for ours, theirs in _ALIKE)
    cancelled = opposites_exchanged(a, b) and _denies_opposite(negated, other)
    return not have_one_meaning and not cancelled


def _is_answer(words: Sequence[Word], place: int, spoken: frozenset[str]) -> bool:
    """Tell whether "no" only answers what was asked before: "No, I don't want it"."""
    following = {word.text for word in words[1:2]}
    return not place and "en" in spoken and not _AFTER_ANSWER.isdisjoint(following)


def _both_parts_negated(a: Parse, b: Parse) -> bool:
    """Tell whether one prompt negates two things, and the other, with the same words, none."""
    one_has_none = bool(a.negators) != bool(b.negators)
    enough = a.content == b.content and len(a.content) >= _LEAST_NEGATED
    return one_has_none and a.negated == b.negated and enough


def _idiom_denied(a: Parse, b: Parse) -> bool:
    """Tell whether the prompts differ only in a negation: "I can't see it", "I can see it".

    Beside the affirmed words, "I don't know", "no problem" and the like are no idioms.
    """
    if a.foreign or b.foreign:
        return False
    (words, denials), (others, other_denials) = _affirmed(a), _affirmed(b)
    return words == others and denials % 2 != other_denials % 2


def _affirmed(parse: Parse) -> tuple[list[str], int]:
    """Return the stems without auxiliary verbs, articles and negations, and how many these were.

    The negations of "Can't I …?", "Why not …?" and "No. 5" stay, and "No, …" is left out.
    """
    words, denials = [], 0
    stems = parse.stems[1:] if parse.stems[:1] == ("no",) else parse.stems
    for before, word, after in zip(("", *stems), stems, (*stems[1:], ""), strict=False):
        idiom = before in _BEFORE_NOT or after in _PRONOUN_STEMS or after[:1].isdecimal()
        if word in _DENYING and not idiom:
            denials += 1
        elif word not in _AUXILIARY:
            words.append(_PRESENT.get(word, word))
    return words, denials


def _no_means_in(parse: Parse, other: Parse) -> bool:
    """Tell whether the only negation of a prompt is a Portuguese "no", as the other one shows.

    "Há wifi no quarto?" alone may be of a language in which "no" negates. Beside "Não há wifi no
    quarto?" it is Portuguese, so one of the two is negated.
    """
    if parse.negators != {"no"} or "no" not in other.stems:
        return False
    return other.languages == _PORTUGUESE or not _BESIDE_NO.isdisjoint(other.stems)


def _denies_opposite(negated: Parse, other: Parse) -> bool:
    """Tell whether the negation is about a word that the other prompt does not have: "not right".

    Otherwise an opposite does not cancel it: "not open in winter" and "open in summer".
    """
    only = {*negated.stems} - {*other.stems} - negated.negators
    return any(
        word in negated.negators
        and not only.isdisjoint(negated.stems[max(place - _REACH, 0) : place + 1 + _REACH])
        for place, word in enumerate(negated.stems)
    )


def _replacement_turned(a: Parse, b: Parse) -> bool:
    """Tell whether one prompt takes X instead of Y, and the other Y instead of X, or X and Y."""
    (new, old), (other_new, other_old) = _replacement(a), _replacement(b)
    if bool(new and old) != bool(other_new and other_old):
        return a.content - _TAKING == b.content - _TAKING
    return not (new - old).isdisjoint(other_old - other_new) and not (old - new).isdisjoint(
        other_new - other_old
    )


def _replacement(parse: Parse) -> tuple[frozenset[str], frozenset[str]]:
    """Return the content words of X and of Y, where a prompt takes X instead of Y.

    Examples: "X instead of Y", "replace Y with X", "substitute X for Y".
    """
    words = parse.stems
    for place, word in enumerate(words):
        if words[place : place + 2] in _IN_PLACE_OF:
            named_first, named_last = words[:place], words[place + 2 :]
            return parse.content.intersection(named_first), parse.content.intersection(named_last)
        if word in _REPLACING:
            after = words[place + 1 :]
            named_first = tuple(takewhile(lambda each: each not in _REPLACED_WITH, after))
            named_last = after[len(named_first) :]
            takes_first = word in _SUBSTITUTING and named_last[:1] == ("for",)
            new, old = (named_first, named_last) if takes_first else (named_last, named_first)
            return parse.content.intersection(new), parse.content.intersection(old)
    return frozenset(), frozenset()


def _ceases(words: Sequence[Word], place: int) -> bool:
    """Tell whether "stop" at ``place`` negates a verb: "stop watering", "stop it from renewing"."""
    following = words[place + 1 : place + 2 + _NEGATION_REACH]
    if following and _is_gerund(following[0]) and words[place].text[:4] != "keep":
        return True
    return any(word.text == "from" and _is_gerund(verb) for word, verb in pairwise(following))


def _is_gerund(word: Word) -> bool:
    return len(word.text) > len("king") and word.text.endswith("ing")


def _tone_of_negation(words: Sequence[Word], place: int) -> set[str]:
    """Return the tone of a negation: "it isn't working" complains, "I don't want it" ends.

    "I don't want to cancel it" and "I don't want you to cancel it" do not end it.
    """
    following = [stem(word.text) for word in words[place + 1 : place + 1 + _NEGATION_REACH]]
    tone = set()
    if not _WORKING.isdisjoint(following[:5]) or "yet" in following:
        tone.add(_COMPLAINS)
    ends_not = any(
        word == "to" and verb in _ENDING for word, verb in pairwise(following[:_WANTED_REACH])
    )
    if not _WANTING.isdisjoint(following[:2]) and not ends_not:
        tone.add(_CEASES)
    return tone


def _tone_of_idiom(words: Sequence[Word], place: int) -> set[str]:
    """Return the tone of phrases such as "I can't find it": the user has a problem."""
    following = [word.text for word in words[place + 1 : place + 1 + _NEGATION_REACH]]
    return set() if _UNKNOWING.isdisjoint(following) else {_TROUBLED}


def _is_negation_idiom(words: Sequence[Word], place: int) -> bool:
    """Tell whether the negation at ``place`` belongs to an idiom: "why not", "I can't find it"."""
    text = words[place].text
    before = words[place - 1].text if place else ""
    following = [word.text for word in words[place + 1 : place + 1 + _NEGATION_REACH]]
    after = next((text for text in following if text not in _PASSED_OVER), "")
    if after == "get" and ("get", "what") in pairwise(following):
        after = "understand"  # "I don't get what it is"
    if text in _FOREIGN_NEGATIONS:
        return before in _BEFORE_FOREIGN or after in _ONLY_FOREIGN
    contracted = text.endswith("n't") or text in NEGATED_VERBS
    if contracted and before in _BEFORE_QUESTION and {*following[:1]} & _PRONOUNS:
        return True  # "Can't I …?" asks what "Can I …?" asks
    if text == "not" and before in _BEFORE_NOT:
        return True
    if text == "no" and (before == "or" or after[:1].isdecimal()):
        return True  # "whether or no", "No. 5"
    if text in DENIALS and [word.text for word in words[place + 2 : place + 3]] == ["than"]:
        return True  # "no more than": a limit, see ``facts.limits``
    return after in _IDIOMS.get("n't" if contracted else text, ())


# --- scopes ---------------------------------------------------------------------------------------

NARROWED_MAXSIM = 0.45
"""A modifier with a lower similarity has no counterpart in the other prompt, so it narrows the
question."""

# "Your" is left out: "change your oil" is how people ask for "change my oil".
_OWNERS = stem_classes({"me": "my", "us": "our", "them": "his her their"})
_GENDERS = stem_classes({"he": "he him his himself", "she": "she her hers herself"})
_PERSONS = stem_classes({"I": "i me we us", "you": "you", "they": "he him she her they them"})
_LONGEST_THING = 4
"""The most words from an owner to the owned thing: "my company's new savings account"."""
_GROUPS = stems_of("company employer firm organisation organization business team department club")
"""Owners that are not people."""
_PEOPLE = stem_classes(by_first_word(VOCABULARY["people"]))
_RIVAL_KINDS = _rivals(map(stem_groups, rows_of(VOCABULARY["kinds"])))
_ROMANCE = frozenset({"es", "fr", "it", "pt"})
"""Languages in which most adjectives follow their noun."""
_ANSWERING = stems_of(VOCABULARY["answering_verbs"])
"""Verbs that tell how to answer, at the beginning of a sentence."""
_MOREOVER = stems_of("also additionally furthermore moreover")
_ROLE_PLAYING = tuple(
    tuple(map(stem, phrase.split())) for phrase in ("you are", "act as", "imagine", "pretend")
)
_REPLYING = stems_of("answer respond reply")
_ADDING_NOTHING = stems_of("question answer reply response helpful assistant")
"""Words that add nothing to an instruction: "Answer the question.", "You are an assistant."."""
_BEFORE_VERB = stems_of("please kindly and then but just only always")


def scopes_differ(a: Parse, b: Parse) -> bool:
    """Veto if the prompts are about different owners, persons or kinds of things."""
    return (
        _kinds_differ(a, b)
        or _people_of(a) != _people_of(b)
        or _owners_differ(a, b)
        or _genders_differ(a, b)
        or _instruction_added(a, b)
        or (a.content == b.content and _persons_exchanged(a, b))
        or _narrowed(a, b)
    )


def _kinds_differ(a: Parse, b: Parse) -> bool:
    """Tell whether the prompts have rival kinds of one thing, such as "adult" and "child"."""
    only_a, only_b = a.content - b.content, b.content - a.content
    return any(not only_b.isdisjoint(_RIVAL_KINDS.get(word, ())) for word in only_a)


def _people_of(parse: Parse) -> set[str]:
    """Return the classes of the people that a prompt names."""
    return {_PEOPLE[word] for word in parse.content & _PEOPLE.keys()}


def _instruction_added(a: Parse, b: Parse) -> bool:
    """Tell whether one prompt is the other, with an instruction before or after it.

    "… Answer as a table.", "… Also mention the year.", "You are a pirate. …", "Answer in Spanish:
    …". An instruction without a content word of its own adds nothing: "Please explain."
    """
    longer, shorter = (a, b) if len(a.stems) > len(b.stems) else (b, a)
    words, others = longer.stems, shorter.stems
    if not others or words == others:
        return False
    adding = longer.content - _ADDING_NOTHING
    if words[-len(others) :] == others:
        before = words[: -len(others)]
        plays_role = any(before[: len(phrase)] == phrase for phrase in _ROLE_PLAYING)
        return (plays_role or before[0] in _REPLYING) and not adding.isdisjoint(before[1:])
    if words[: len(others)] == others:
        after = [*dropwhile(_BEFORE_VERB.__contains__, words[len(others) :])]
        instructs = bool(after) and (after[0] in _MOREOVER or after[0] in _ANSWERING)
        return instructs and not adding.isdisjoint(after[1:])
    return False


def _persons_exchanged(a: Parse, b: Parse) -> bool:
    """Tell whether two persons changed places: "Do I owe you money?", "Do you owe me money?".

    All other words must be equal. "How do I …?" and "How do you …?" have only one person each, and
    mostly ask the same.
    """
    ours, theirs = _persons(a), _persons(b)
    changed = {(ours[word], theirs[word]) for word in ours.keys() & theirs.keys()}
    return any(one != other and (other, one) in changed for one, other in changed if one and other)


def _persons(parse: Parse) -> dict[str, str]:
    """Return for each word, and for the end (""), the last person that was named before it."""
    found: dict[str, str] = {}
    person = ""
    for word in parse.stems:
        if word in _PERSONS:
            person = _PERSONS[word]
        else:
            found.setdefault(word, person)
    found[""] = person
    return found


def _genders_differ(a: Parse, b: Parse) -> bool:
    """Tell whether one prompt has "he" where the other has "she"."""
    ours, theirs = ([_GENDERS[word] for word in side.stems if word in _GENDERS] for side in (a, b))
    if not ours or not theirs:
        return False
    if {*ours} == {*theirs}:
        return ours[0] != theirs[0]  # "he … she" and "she … he"
    return {*ours}.isdisjoint(theirs)


def _owners_differ(a: Parse, b: Parse) -> bool:
    """Tell whether the prompts name different owners of one thing."""
    ours, theirs = _owners(a), _owners(b)
    return any(ours[thing] != theirs[thing] for thing in ours.keys() & theirs.keys())


def _owners(parse: Parse) -> dict[str, set[str]]:
    """Return the things that a prompt says are someone's, with their owners.

    "My new card" and "my company's card": the thing is the last content word, "card"; the owners
    are "me" and "company".
    """
    owners: dict[str, set[str]] = {}
    for place, word in enumerate(parse.stems):
        owner = _OWNERS.get(word)
        if owner is None:
            continue
        thing = None
        for following in parse.stems[place + 1 : place + 1 + _LONGEST_THING]:
            if following not in parse.content:
                break
            if thing in _GROUPS:
                owner = thing
            thing = following
        if thing is not None:
            owners.setdefault(thing, set()).add(owner)
    return owners


def _narrowed(a: Parse, b: Parse) -> bool:
    """Tell whether one prompt adds a single content word that narrows the question.

    A word that is similar to a word of the other prompt does not narrow it.
    """
    added = a.content ^ b.content
    if len(added) != 1:
        return False
    (word,) = added
    longer, shorter = (a, b) if word in a.content else (b, a)
    if not _is_modifier(word, longer, shorter):
        return False
    maxsim = exchanged_maxsim(a, b)
    return maxsim is None or maxsim < NARROWED_MAXSIM


def _is_modifier(word: str, longer: Parse, shorter: Parse) -> bool:
    """Tell whether the added word modifies a word that both prompts have.

    The word is before a common word ("a joint account"), or after the name of a model ("the V11
    battery"). In Romance languages it is after a common word ("una cuenta conjunta").
    """
    neighbors = set(pairwise(("", *shorter.stems)))
    is_foreign = longer.foreign and shorter.foreign
    follows_noun = is_foreign and longer.languages & shorter.languages <= _ROMANCE
    for before, middle, after in zip(
        ("", *longer.stems[:-1]), longer.stems, (*longer.stems[1:], ""), strict=True
    ):
        if middle != word:
            continue
        if after in longer.content and (before, after) in neighbors:
            return True
        if (follows_noun and before in longer.content) or _is_model(before):
            return True
    return False


def _is_model(word: str) -> bool:
    """Tell whether a word has letters and digits."""
    return word.isalnum() and not word.isalpha() and not word.isdecimal()
