"""The parse of a prompt, which all guards compare; words, stems, function words, spellings, signs.

``table.parse_prompt`` makes the parse once, and it is stored with the entry. Word vectors are
quantised to four bits for each dimension: ``docs/how-a-hit-is-decided.md`` compares other forms.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import pairwise, takewhile
from operator import eq
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from headstart.types import Frozen, read_vocabulary, word_classes, words_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray


# --- the parse of a prompt ------------------------------------------------------------------------

PARSE_VERSION = 14
"""The version of parses and guards. Raise it if a stored parse changes its meaning, or if a guard
changes its verdicts. Then prompts of other versions are not compared any more, and older labels are
dropped. A new guard needs no new version, because it only removes candidates; nor does a new field
of the parse with a default."""
MOST_VECTORS = 64
"""The most different words of a prompt whose word vectors are stored: 12 KB at 384 dimensions."""
_LARGEST = 7
_CLIP = 2.6
"""The largest quantised value is this multiple of the root mean square of a row. Rare outliers are
clipped."""
_ZERO = 8
"""The nibble of the quantised value 0. No value has the nibble 0, which fills up the last byte."""


class Role(NamedTuple):
    """A preposition, with the content words before it and the words after it that it governs."""

    preposition: str
    before: frozenset[str]
    argument: tuple[str, ...]


class Parse(Frozen, frozen=True, kw_only=True, array_like=True):
    """The facts of a prompt for the guards. Packed, it takes 200 bytes a word at 384 dimensions."""

    stems: tuple[str, ...]
    """Every word and number, in order."""
    content: frozenset[str]
    """The stems that carry content. Numbers are not among them: they have guards of their own."""
    vectors: bytes
    """One int8 row for each distinct stem in order of appearance, with values from -7 to 7. Empty
    if there are too many words, or if the encoder did not get all of them."""
    quantities: tuple[tuple[str, str], ...] = ()
    dates: tuple[str, ...] = ()
    roles: tuple[Role, ...] = ()
    negators: frozenset[str] = frozenset()
    """Stems of the words that negate."""
    negated: bool = False
    """Whether the number of negators is odd."""
    tone: frozenset[str] = frozenset()
    """Whether the prompt complains, has a problem, or ends something (``negation.negations``)."""
    quantifiers: frozenset[str] = frozenset()
    limits: frozenset[str] = frozenset()
    degrees: frozenset[tuple[str, str]] = frozenset()
    names: tuple[str, ...] = ()
    symbols: frozenset[str] = frozenset()
    commas: tuple[int, ...] = ()
    """The places of the stems that follow a comma, a semicolon, "/" or "&"."""
    asks: frozenset[str] = frozenset()
    """What is asked for: "when", "where", "who", "why", "count"."""
    joins: frozenset[tuple[str, str, str]] = frozenset()
    """Each "and" and "or" between the words that it joins."""
    signs: str = ""
    """The signs of formulas and code."""
    spellings: frozenset[str] = frozenset()
    """Words whose capitals matter, as they are written, and quoted texts with their quotes."""
    bounds: frozenset[str] = frozenset()
    """The bounds on numbers: ">=", ">", "<=", "<"."""
    when: frozenset[str] = frozenset()
    """The relations to the times that it names: "before", "after", "at"."""
    given: tuple[str, str] = ("", "")
    """Digests of a task, and of the text that the task is about. A colon or the end of a line is
    between them. Both are empty if the prompt has only one part. The second is empty if the first
    only introduces a question, such as "Question:"."""
    foreign: bool = False
    """Whether its function words are of another language than English."""
    languages: frozenset[str] = frozenset()
    """The languages that it may be in, such as "en". Empty if it has no known function word."""
    rare: frozenset[str] = frozenset()
    """The stems of words that the encoder spells with several tokens. Empty without vectors."""
    plural_names: frozenset[str] = frozenset()
    """The stems of names that are plurals: "Aliens". Names that may also mean their plural have
    "'s": "Wendy's"."""
    endings: str = ""
    """A sign for each distinct stem: "e" if its word is the stem and an "e" ("silicone"), "=" if
    the word is the stem ("silicon"), "d" if it is a past form ("closed"), "-" for others, and for a
    stem with several endings. Empty if function words do not show English: in other languages a
    final "e" is mostly an ending."""
    code: str = ""
    """A digest of the names in code and of all in its brackets, in their order; "" for prose."""
    marks: str = ""
    """The signs that neither end a part of a text nor join two words, in their order: "+" in "O+",
    ":)", and accents that stand alone. "?" is last if the text has one."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Parse).decode


def pack_parse(prepared: Parse) -> bytes:
    """Serialise a parse for storage."""
    return _encode(msgspec.structs.replace(prepared, vectors=to_nibbles(prepared.vectors)))


def unpack_parse(evidence: bytes) -> Parse:
    """Read what ``pack_parse`` wrote. Raises msgspec.DecodeError on anything else."""
    parse = _decode(evidence)
    return msgspec.structs.replace(parse, vectors=from_nibbles(parse.vectors))


def quantize_rows(rows: NDArray[np.float32]) -> bytes:
    """Return ``rows``, float32 [n, d], as int8 values from -7 to 7.

    Each row has its own scale, which is not stored.
    """
    mean_square = np.einsum("ij,ij->i", rows, rows) / np.float32(rows.shape[1])
    steps = rows * (_LARGEST / (_CLIP * np.sqrt(mean_square)))[:, None]
    np.rint(steps, out=steps)
    np.minimum(np.maximum(steps, -_LARGEST, out=steps), _LARGEST, out=steps)
    quantized: bytes = steps.astype(np.int8).tobytes()
    return quantized


@lru_cache(maxsize=256)
def distinct(stems: tuple[str, ...]) -> tuple[str, ...]:
    """Return each stem once, in order of appearance.

    The rows of a parse's vectors have this order.
    """
    return tuple(dict.fromkeys(stems))


@lru_cache(maxsize=256)
def unit_rows(quantized: bytes, count: int) -> NDArray[np.float32]:
    """Return the ``count`` rows of ``quantized`` as unit vectors. They must not be changed."""
    rows = np.frombuffer(quantized, np.int8).reshape(count, -1).astype(np.float32)
    rows /= np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
    return rows


def to_nibbles(quantized: bytes) -> bytes:
    """Pack two quantised values into each byte, for storage."""
    nibbles = np.frombuffer(quantized + b"\xf8" * (len(quantized) % 2), np.uint8) + np.uint8(_ZERO)
    packed: bytes = (nibbles[0::2] << 4 | nibbles[1::2]).tobytes()
    return packed


def from_nibbles(packed: bytes) -> bytes:
    """Return the quantised values that ``to_nibbles`` packed."""
    pairs = np.frombuffer(packed, np.uint8)
    steps = np.stack((pairs >> 4, pairs & 15), axis=1).astype(np.int8) - np.int8(_ZERO)
    quantized: bytes = steps.tobytes()
    return quantized.removesuffix(b"\xf8")


# --- the words of a prompt ------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""
      (?P<number> \d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?    # 1,000.50
                | \d+(?:\.\d+)* | (?<![\w.])\.\d+ )     # 12, 3.11.2, .5
    | (?P<sign> [$€£¥₹¢₩₽₺₿%‰] )
    | (?P<word> (?<!\w)(?i:[cdjlmnst]|(?:lors|puis|jus)?qu|(?:d|n|s)?[ae]ll|un|dov|cos|quest|com)'
                  (?i:(?=[aehiouyàâèéêëìîïòôùûœ]))    # l'hôtel, dell'albergo
                | (?<!\w)\.[^\W\d]\w+                   # .NET, .env
              | (?<=[^\W\d])'(?i:ll|ve|re|m|d)\b      # I'll
              | [^\W\d]\w*(?:\.\w+)*                 # main.py
                (?:\+\+|\#|'(?!(?i:ll|ve|re|m|d)\b)[^\W\d]+)? )    # C++, C#, don't
    """,
    re.VERBOSE,
)
_WHOLE_VERBS = {"'ll": "will", "'ve": "have", "'re": "are", "'m": "am", "'d": "would"}
"""A "'d" may also be "had" or "did". As "would" it never makes two prompts differ in tense."""
_APOSTROPHES = str.maketrans(dict.fromkeys("\u2018\u2019\u02bc\u00b4`", "'"))


class Word(NamedTuple):
    """One token of a prompt: lower-case ``text`` and its character offsets."""

    text: str
    start: int
    end: int
    capital: bool
    kind: str
    """``word``, ``number`` (in digits) or ``sign`` (a currency, ``%`` or ``‰``)."""
    acronym: bool = False
    """Two letters or more, all of them capitals."""


def word_texts(text: str) -> Iterator[str]:
    """Yield the texts of a prompt's tokens, so that a caller can stop after the first ones."""
    tokens = _TOKEN.finditer(text.translate(_APOSTROPHES))
    texts = (match.group().lower() for match in tokens)
    return (_WHOLE_VERBS.get(token, token) for token in texts)


def split_words(text: str) -> list[Word]:
    """Return the tokens of a prompt.

    ``C++``, ``C#``, ``.NET``, versions, identifiers and file names stay whole; hyphenated words
    are split, so "full-time" equals "full time". A contracted verb is a word: "I'll" is "I will".
    """
    plain = text.translate(_APOSTROPHES)
    return [
        Word(
            _WHOLE_VERBS.get(text, text),
            match.start(),
            match.end(),
            token[0].isupper(),
            match.lastgroup or "",
            len(token) > 1 and token.isupper(),
        )
        for match in _TOKEN.finditer(plain)
        for token in (match.group(),)
        for text in (token.lower(),)
    ]


# --- stems ----------------------------------------------------------------------------------------

VOCABULARY = read_vocabulary(__name__)
"""The lists of ``vocabulary.toml``, by name."""
PAST_FORMS = dict(pair.split("/") for pair in VOCABULARY["past_forms"].split())
_IRREGULAR = PAST_FORMS | dict(pair.split("/") for pair in VOCABULARY["irregular"].split())
_VOWEL = re.compile("[aeiouy]")


@lru_cache(maxsize=16_384)
def stem(word: str) -> str:
    """Return a crude stem, without the endings of plurals, -ing, -ed, -ly and -ion.

    It is far weaker than Porter's stemmer on purpose: opposites must never get the same stem.
    """
    if word.endswith("n't"):
        return word.replace("'", "")
    word = word.partition("'")[0]
    if word in _IRREGULAR:
        return _bare(_IRREGULAR[word])
    if len(word) < 4 or not word.isalpha():
        return word
    return _bare(_without_suffix(_singular(word)))


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "ches", "shes", "xes", "zes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def _without_suffix(word: str) -> str:
    if word.endswith("ied") and len(word) > 4:
        return word[:-3] + "y"
    for suffix, shortest in (("ing", 3), ("ed", 3), ("ly", 4)):
        rest = word.removesuffix(suffix)
        if rest is not word and len(rest) >= shortest and _VOWEL.search(rest):
            return rest
    if word.endswith(("tion", "sion")) and len(word) > 6:
        return word[:-3]
    return word


def _bare(word: str) -> str:
    """Drop a final "e", and one of two equal final consonants, so that forms are equal.

    "movie" gets the stem of "movies", which looks like a plural in "-y".
    """
    if len(word) > 4 and word.endswith("ie"):
        return word[:-2] + "y"
    if len(word) > 3 and word.endswith("e"):
        word = word[:-1]
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeiou":
        word = word[:-1]
    return word


# --- tables of words ------------------------------------------------------------------------------


def stems_of(text: str) -> frozenset[str]:
    """Return the stems of a text."""
    return frozenset(stem(word) for word in text.split())


def stem_classes(words: Mapping[str, str]) -> dict[str, str]:
    """Return the class of each stem, as ``word_classes`` does for words."""
    return {stem(word): name for word, name in word_classes(words).items()}


def stem_groups(groups: str) -> list[frozenset[str]]:
    """Return the stems of each group of words. "/" separates the groups."""
    return [stems_of(group) for group in groups.split("/")]


def by_first_word(groups: str) -> dict[str, str]:
    """Return the groups of words, separated by "/", under the first word of each group."""
    return {group.split()[0]: group for group in groups.split("/")}


def rows_of(table: str) -> list[str]:
    """Return the rows of a table. A line that is indented further continues the row before it."""
    return table.replace("\n    ", " ").strip().splitlines()


def count_common_start(one: Sequence[object], other: Sequence[object]) -> int:
    """Return how many items at the start are equal."""
    return sum(takewhile(bool, map(eq, one, other)))


def count_common_ends(one: Sequence[object], other: Sequence[object]) -> tuple[int, int]:
    """Return how many items at the start are equal, and how many of the rest at the end."""
    start = count_common_start(one, other)
    return start, count_common_start(one[start:][::-1], other[start:][::-1])


# --- function words and languages -----------------------------------------------------------------

NEGATED_VERBS = words_of("""
    dont cant wont isnt arent wasnt werent doesnt didnt couldnt shouldnt wouldnt hasnt havent hadnt
    neednt mustnt mightnt shant aint
""")
"""Contractions as people type them without the apostrophe."""
_GRAMMAR = words_of(VOCABULARY["function_words"]) | NEGATED_VERBS


def _by_language(table: str) -> Iterator[tuple[str, str]]:
    """Yield the language and the words of each part of a table: "de: der die / fr: le la"."""
    for part in table.split("/"):
        language, _, words = part.partition(":")
        yield language.strip(), words


_LANGUAGES_OF: dict[str, tuple[str, ...]] = {}
"""The languages of a function word."""
for _language, _words in _by_language(VOCABULARY["foreign_function_words"]):
    for _word in _words.split():
        _LANGUAGES_OF[_word] = (*_LANGUAGES_OF.get(_word, ()), _language)

_ALSO_ENGLISH = words_of(VOCABULARY["also_english"])
"""Words of other languages that are also English words, so that they show no language."""
FOREIGN_QUESTIONS = stems_of(VOCABULARY["foreign_questions"])
FOREIGN_OPENING = stems_of(VOCABULARY["foreign_opening"])
_FOREIGN_NUMBERS = {
    language: {word: str(place // 2 + 2) for place, word in enumerate(words.split()) if word != "-"}
    for language, words in _by_language(VOCABULARY["foreign_numbers"])
}


@lru_cache(maxsize=16_384)
def is_function_word(word: str) -> bool:
    """Tell whether a word carries no content, but only grammar or courtesy: "don't", "please"."""
    return word.endswith(("'", "n't")) or word.partition("'")[0] in _GRAMMAR


def languages(words: Sequence[Word]) -> tuple[frozenset[str], bool]:
    """Return the languages that a prompt may be in, and whether it is in another one than English.

    The function words of English and of eight other languages in Latin script decide. Words with a
    capital inside a text are names ("Los Angeles") and do not count. The set is empty without
    function words; it has several languages if nearly as many words are of each.
    """
    found = {"en": 0}
    foreign = 0
    for place, word in enumerate(words):
        text = word.text
        english = text[-1] != "'" and is_function_word(text)
        named = text in _ALSO_ENGLISH or (place > 0 and word.capital)
        spoken = () if named else _LANGUAGES_OF.get(text, ())
        for language in spoken:
            found[language] = found.get(language, 0) + 1
        found["en"] += english
        foreign += bool(spoken) - english
    likely = set()
    least = max(*found.values(), 2) - 1
    for language, count in found.items():  # a comprehension costs a call on the path of a miss
        if count >= least:
            likely.add(language)
    return frozenset(likely), foreign > 0


def languages_differ(a: Parse, b: Parse) -> bool:
    """Veto if the prompts are in different languages, because then the answers are, too."""
    return bool(a.languages and b.languages) and a.languages.isdisjoint(b.languages)


def is_foreign_function_word(word: str) -> bool:
    """Tell whether a word is a function word of another language than English."""
    return word in _LANGUAGES_OF


def with_digits(words: Sequence[Word], spoken: frozenset[str]) -> list[Word]:
    """Replace the number words of the ``spoken`` languages by digits.

    Some number words mean something else in another language: "dos" is two in Spanish, and "of
    the" in Portuguese. Words that only one of the languages has decide.
    """
    numbers: dict[str, str] = {}
    for language in spoken:
        numbers |= _FOREIGN_NUMBERS.get(language, {})
    if "dos" in numbers and "pt" in spoken:
        others = [_LANGUAGES_OF.get(word.text, ()) for word in words if word.text != "dos"]
        spanish = sum(("es" in each) - ("pt" in each) for each in others)
        if spanish <= 0:
            del numbers["dos"]
    return [
        word._replace(text=numbers[word.text], kind="number") if word.text in numbers else word
        for word in words
    ]


# --- spellings ------------------------------------------------------------------------------------

ABOUT_CASE = words_of("""
    caps capitalise capitalised capitalize capitalized capitalization capitalisation lowercase
    uppercase titlecase
""")
"""In a prompt with one of these words, each capital letter matters."""
_QUOTED = re.compile(
    r"""
      "([^"\n]{1,80})" | \u201c([^\u201d\n]{1,80})\u201d | `([^`\n]{1,80})`
    | (?<![^\s(:,])'([^'\n]{1,80})'(?![^\s).,:;?!])
    """,
    re.VERBOSE,
)
LEAST_SENTENCE = 4
"""The fewest words of a quoted sentence. A shorter quote is a term, which cannot be reworded."""
_PASSWORD = re.compile(r"\b(?=\w*\d)(?=\w*[^\W\d_])\w{6,}")
"""Matches words of letters and digits, such as passwords. Shorter ones are mostly names of models:
"S7", "mp4"."""
SPELLED = re.compile(rf"[\"\u201c`]|(?<!\w)'|{_PASSWORD.pattern}|\b(?:US|IT|WHO|OR|AND|NOT|NO)\b")
"""Matches in every prompt whose spelling may matter: a quote, a password, or a function word in
capitals, which may be a name ("IT") or emphasis ("NOT")."""


def spellings(text: str, words: Sequence[Word], *, about_case: bool) -> frozenset[str]:
    """Return the words whose capitals matter, as they are written, and quoted texts with quotes."""
    quoted = (next(filter(None, found.groups())) for found in _QUOTED.finditer(text))
    kept = {f'"{each}"' for each in quoted}
    shouted = text.isupper()
    for word in words:
        written = text[word.start : word.end]
        function_word = word.acronym and not shouted and SPELLED.fullmatch(written)
        if function_word or _PASSWORD.search(written) or (about_case and written != word.text):
            kept.add(written)
    return frozenset(kept)


def spellings_differ(a: Parse, b: Parse) -> bool:
    """Veto if quoted texts differ, or if a word differs in accents or in capitals that matter.

    Also if a rare word stands in the place of another one that looks like it, or if two words
    differ in a final "e".
    """
    if _look_alikes_exchanged(a, b) or _final_e_exchanged(a, b):
        return True
    written = bool(a.spellings or b.spellings)
    if written and (_quotes_differ(a, b) or _recased(a, b) or _recased(b, a)):
        return True
    only_a, only_b = ({*one.stems} - {*other.stems} for one, other in ((a, b), (b, a)))
    if all(map(str.isascii, only_a | only_b)):
        return False
    foreign = a.foreign and b.foreign
    left_out = foreign or not all(any(map(_has_accents, side.stems)) for side in (a, b))
    alike: dict[str, list[str]] = {}
    for other in only_b:
        alike.setdefault(_plain(other), []).append(other)
    return any(
        _accents_differ(one, other, left_out=left_out, foreign=foreign)
        for one in only_a
        for other in alike.get(_plain(one), ())
    )


def _accents_differ(one: str, other: str, *, left_out: bool, foreign: bool) -> bool:
    """Tell whether the accents in which two words differ show two words.

    Many people leave out accents: "Bogotá", "Bogota". Other accents ("año", "ano"), two different
    ones ("avó", "avô") and those of a few English words ("résumé", "resume") show two words, and so
    does one accent less in a prompt that has such accents.
    """
    bare = without_accents(one)
    if not left_out or bare != without_accents(other):
        return True
    pairs = zip(one, other, strict=False)
    return (bare in _OTHER_WITH_ACCENT and not foreign) or any(
        a != b and not (a.isascii() or b.isascii()) for a, b in pairs
    )


def sentences_quoted(a: Parse, b: Parse) -> bool:
    """Tell whether each prompt has quotes that the other has not, and all of these are sentences.

    Such a sentence, for example a customer's message in a template, may be reworded: only labels
    can show whether the answers are the same.
    """
    only_a, only_b = _other_quotes(a, b)
    return bool(only_a and only_b) and all(map(_is_sentence, only_a | only_b))


def _is_sentence(quote: str) -> bool:
    return len([*word_texts(quote)]) >= LEAST_SENTENCE


def _other_quotes(a: Parse, b: Parse) -> tuple[set[str], set[str]]:
    """Return for each prompt the quotes that the other does not have.

    Both sets are empty if one of the prompts has no quotes.
    """
    quotes_a, quotes_b = ({each for each in side.spellings if each[0] == '"'} for side in (a, b))
    if not quotes_a or not quotes_b:
        return set(), set()
    return quotes_a - quotes_b, quotes_b - quotes_a


def _quotes_differ(a: Parse, b: Parse) -> bool:
    """Tell whether both prompts quote something, and one quotes a term that the other does not."""
    only_a, only_b = _other_quotes(a, b)
    if not (only_a or only_b):
        return False
    if only_a and only_b:
        return not sentences_quoted(a, b)
    stems = (b if only_a else a).stems  # "'x' to '1'" and "'x' equal to 1"
    quoted = ([stem(text) for text in word_texts(each)] for each in only_a or only_b)
    return not all(words and set(words) <= {*stems} for words in quoted)


def _recased(a: Parse, b: Parse) -> bool:
    """Tell whether a word whose capitals matter in ``a`` has other capitals in ``b``."""
    only_a, stems = a.spellings - b.spellings, {*b.stems}
    return any(each[0] != '"' and stem(each.lower()) in stems for each in only_a)


_AMERICAN = [pair.split("/") for pair in ["ae/e", "oe/e", "ph/f", "z/s", "k/c", "ium/um"]]
"""Letters for which others stand in the same word: anaemia, sulphur, skeptic, aluminium."""


def _american(word: str) -> str:
    """Return one spelling for "anaemia" and "anemia", "sulphur" and "sulfur", "-ise" and "-ize"."""
    for letters, plain in _AMERICAN:
        word = word.replace(letters, plain)
    return word


_DERIVED = words_of(VOCABULARY["derived_endings"]) | {""}
"""Endings in which stems of one family differ: verify, verification."""
_FOREIGN_DERIVED = _DERIVED | words_of(VOCABULARY["foreign_derived_endings"])
"""The same in other languages: comprobar, comprobación."""
_FORMS = [group.split() for group in VOCABULARY["forms"].split("/")]
"""Endings that make forms of one word only beside each other: osteoporosis, osteoporotic."""
_ALSO_NOUNS = ("ic", "iac", "ent", "ant")
"""Endings of adjectives that name people or drugs if they stand alone: analgesics."""
_SUBSTANCES = [group.split() for group in VOCABULARY["substances"].split("/")]
"""Endings that make names of different substances: lactase, lactose; nitric, nitrous."""
_ELEMENTS = tuple(map(_american, VOCABULARY["elements"].split()))
_ELEMENT_ENDINGS = words_of(VOCABULARY["element_endings"])
_GREEK = ("asis", "esis", "osis", "ysis")
"""Their plurals end in "-es": metastases."""
_VOWELS = frozenset("aeiouy")
_BESIDE = frozenset(
    pair for row in ("qwertyuiop", "asdfghjkl", "zxcvbnm") for pair in map("".join, pairwise(row))
)
"""Keys of a keyboard that are beside each other."""
_LEAST_LETTERS = 4
_SHORTEST_PART = 3
"""The fewest letters of a part of a compound word."""
_LONGEST_INFLECTION = 3
"""The most letters in which the forms of a word of another language differ."""


def _look_alikes_exchanged(a: Parse, b: Parse) -> bool:
    """Tell whether all that differs is a rare word, and another one that looks like it.

    "prednisone" and "prednisolone", "chlorite" and "chlorate" share most of their tokens, so the
    vectors of prompts and words hardly tell them apart.
    """
    only_a, only_b = a.content - b.content, b.content - a.content
    if not (a.rare or b.rare) or not len(only_a) == len(only_b) == 1:
        return False
    (one,), (other,) = only_a, only_b
    rare = (one in a.rare) + (other in b.rare)
    if not rare or min(len(one), len(other)) < _LEAST_LETTERS:
        return False
    start, end = count_common_ends(one, other)
    ours, theirs = one[start : len(one) - end], other[start : len(other) - end]
    if (a.foreign or b.foreign) and max(len(ours), len(theirs)) <= _LONGEST_INFLECTION:
        return False
    american, other_american = _american(one), _american(other)
    if american == other_american:
        return False
    if _are_substances(american, other_american):
        return True
    look_alike = 2 * (start + end) >= max(len(one), len(other))
    typo = _is_typo(ours, theirs, inside=start > 0 and end > 0, both_rare=rare > 1)
    return look_alike and not (
        typo or _are_forms(one, other, start, a, b) or _is_compound(ours, theirs, a, b)
    )


def _are_forms(one: str, other: str, start: int, a: Parse, b: Parse) -> bool:
    """Tell whether two words, equal up to ``start``, are forms of one word: verify, verification.

    "Analgesic" and "analgesia" are forms of one word, but not where "analgesics" are drugs.
    """
    ending, other_ending = one[start:], other[start:]
    if _of_one_family(ending, other_ending, max(one, other, key=len)):
        return True
    if a.foreign and b.foreign and {ending, other_ending} <= _FOREIGN_DERIVED:
        return True
    return _end_alike(one, other, _FORMS) and not (_stands_alone(one, a) or _stands_alone(other, b))


def _is_compound(ours: str, theirs: str, a: Parse, b: Parse) -> bool:
    """Tell whether one word, which has these letters more, is two in the other prompt: "userid"."""
    return (not ours and b.stems.count(theirs) < a.stems.count(theirs)) or (
        not theirs and a.stems.count(ours) < b.stems.count(ours)
    )


def _final_e_exchanged(a: Parse, b: Parse) -> bool:
    """Tell whether a word has a final "e" in one prompt only: silicon, silicone; cub, cube.

    Unless the words name substances, the encoder must know both. Otherwise one of them is likely
    mistyped, or an older spelling.
    """
    endings = endings_of(b)
    for word, ending in endings_of(a).items():
        other = endings.get(word, "-")
        if {ending, other} == {"e", "="} and (
            word not in a.rare | b.rare or _elements(_american(word))
        ):
            return True
    return False


def endings_of(parse: Parse) -> dict[str, str]:
    """Return the sign of each stem's ending, as far as the parse has them."""
    return dict(zip(distinct(parse.stems), parse.endings, strict=False))


def _of_one_family(ending: str, other_ending: str, longer: str) -> bool:
    """Tell whether these endings of two words make forms of one word."""
    endings = {ending, other_ending}
    plural = endings == {"i", "us"} or (endings == {"", "is"} and longer.endswith(_GREEK))
    return plural or endings <= _DERIVED


def _end_alike(one: str, other: str, groups: Sequence[Sequence[str]]) -> bool:
    """Tell whether two words are one root with two endings of a group."""
    return any(
        root + theirs == other
        for group in groups
        for ours in group
        if one.endswith(ours)
        for root in (one.removesuffix(ours),)
        if len(root) >= _SHORTEST_PART
        for theirs in group
    )


def _stands_alone(word: str, parse: Parse) -> bool:
    """Tell whether an adjective is a noun here: it is a plural, or no content word follows it."""
    plural = endings_of(parse).get(word) == "-"
    modified = {after for each, after in pairwise(parse.stems) if each == word}
    return word.endswith(_ALSO_NOUNS) and (plural or parse.content.isdisjoint(modified))


def _are_substances(one: str, other: str) -> bool:
    """Tell whether two words name different substances: sulfate, sulfite; zirconia, zirconium."""
    return _end_alike(one, other, _SUBSTANCES) or not _elements(one).isdisjoint(_elements(other))


def _elements(word: str) -> set[str]:
    """Return the roots of elements to which a word adds an ending of substances: silicon."""
    return {
        root
        for root in _ELEMENTS
        if word.startswith(root) and word[len(root) :] in _ELEMENT_ENDINGS
    }


def _is_typo(ours: str, theirs: str, *, inside: bool, both_rare: bool) -> bool:
    """Tell whether two words that differ in these letters may be the same word, mistyped.

    A letter ``inside`` the word is missing, or two letters changed places. If only one of the words
    is rare, a letter may also be replaced by its neighbour on the keyboard or by another vowel. Or
    the longer word is made of two ("cellphone", "phone"). If both words are rare, other letters
    make another word.
    """
    if not ours or not theirs:
        more = len(ours + theirs)
        return (inside and more == 1) or (more >= _SHORTEST_PART and not both_rare)
    if ours == theirs[::-1]:
        return True
    if both_rare or len(ours + theirs) > 2:
        return False
    return {ours, theirs} <= _VOWELS or not _BESIDE.isdisjoint((ours + theirs, theirs + ours))


_LEFT_OUT = re.compile("[\u0300-\u0302\u0327]|(?<=[ao])\u0303|(?<=[ei])\u0308")
"""Matches accents that many people leave out: grave, acute, circumflex and cedilla, the tilde of
"ã" and "õ", and the dots of "ë" and "ï"."""
_OTHER_WITH_ACCENT = stems_of("resume expose rose pate lame mate sake pique")
"""Stems of English words that are other words with an accent."""


def without_accents(stemmed: str) -> str:
    """Return the stem of a word without the accents that many people leave out."""
    if not stemmed.isascii():
        bare = _LEFT_OUT.sub("", unicodedata.normalize("NFD", stemmed))
        stemmed = unicodedata.normalize("NFC", bare)
    return stem(stemmed)  # "René" and "Rene" lose another "e" than "Renée" and "Renee"


def _has_accents(word: str) -> bool:
    """Tell whether a word has accents that many people leave out."""
    return not word.isascii() and _LEFT_OUT.search(unicodedata.normalize("NFD", word)) is not None


def _plain(word: str) -> str:
    """Return the stem of a word without all accents."""
    parts = unicodedata.normalize("NFD", word)
    return stem("".join(part for part in parts if not unicodedata.combining(part)))


# --- signs ---------------------------------------------------------------------------------------

_OTHER_SIGNS = {
    "\u00d7": "*", "\u00f7": "/", "\u2212": "-", "\u2264": "<=", "\u2265": ">=", "\u2260": "!=",
}  # fmt: skip
SAME_SIGN = str.maketrans(_OTHER_SIGNS)
_SPOKEN_SIGNS = {"plus": "+", "minus": "-", "times": "*"}
_SPOKEN = re.compile(r"(?<=\d )(?:plus|minus|times)(?= \d)", re.IGNORECASE)
FORMATTING = re.compile(
    r"^[ \t]*[*>+-]+(?=[ \t])|\*\*(?=[^\W\d])|(?<=[^\W\d])\*\*"
    r"|[<{\[]\w[\w ]*[>}\]]|[>\\]\s*\Z",
    re.MULTILINE,
)
"""Matches bullets, quotes, bold text, placeholders such as "[name]", and a stray sign at the
end."""
FORMULA = re.compile(
    r"""
      [*^=<>|\\{}\[\]] | && | !(?==) | ```
    | \+(?=[\w(]) | (?<=\s)\+(?=\s)
    | (?<![\w)\]}-])-(?=[\d.(]|\w\b|-\w)             # -5, -x, --force
    | (?:(?<=[\d)\]}]\ )|(?<=\b\w\ ))-(?=\ (?:[\d(]|\w\b))    # 12 - 4, x - 4
    | (?<=[\d)\]])/(?=[\d(\[])
    | \((?=\s*\() | \)(?=\s*[()])
    """,
    re.VERBOSE,
)
"""Matches signs that do not occur in prose."""
_SIGN = re.compile(
    r"[+*^=<>|\\{}\[\]()~] | && | !(?==) | [-/](?![^\W\d]{2}) | (?<![^\W\d]{2})[-/]", re.VERBOSE
)
"""Matches each sign of a text that has a match of ``FORMULA``. A hyphen or a slash between two
words is none."""

MAY_BE_FORMULA = re.compile(
    rf"[-+*/^=<>`|\\{{}}\[\]()&{''.join(_OTHER_SIGNS)}]|\d [pmt]", re.IGNORECASE
)
"""Matches in every formula, and in little prose."""


def signs(text: str) -> str:
    """Return the signs of a formula or of code, in their order; "" for prose."""
    plain = FORMATTING.sub("", text.translate(SAME_SIGN))
    plain = _SPOKEN.sub(lambda found: _SPOKEN_SIGNS[found[0].lower()], plain)
    return "".join(_SIGN.findall(plain)) if FORMULA.search(plain) else ""


def signs_differ(a: Parse, b: Parse) -> bool:
    """Veto unless both prompts have the same signs of formulas and code, in the same order.

    If both have names beside these signs, or calls such as "f(a, b)", these must be the same, too.
    """
    return a.signs != b.signs or (bool(a.code and b.code) and a.code != b.code)
