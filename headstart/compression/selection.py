"""Extractive selection: chooses the sentences that stay, and finds the protected texts.

**Selection** (``select``) shortens English prose to about a third. It keeps the sentences that
answer the question best, word for word and in their order, with their headings. It also keeps
fenced code and texts in other scripts. For example, of a long manual and the question "How long is
the warranty?" these lines may stay::

    [… 41 sentences omitted …]
    The warranty lasts two years. It does not cover the battery.
    [… 87 sentences omitted …]

The steps: ``parse_query`` takes the words of the question, ``_cut`` divides the text into pieces,
``rank`` scores them, ``_choose`` takes the best, ``_write`` joins them. The whole text stays if it
does not clearly answer the question: if too many words of the question are missing
(``_MIN_FOUND``), or if the best sentences contain too few of them (``_MIN_COVERED``). Measured:
without this rule such texts lost a third of the evidence; the others lose 5 %.

**Protected texts** (``understand``, ``shows_file``) must not be shortened by any transform. The
user's words and the tool calls show which texts these are. In case of doubt a text is protected.
"""

from __future__ import annotations

import re
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from headstart.compression.passages import has_mark, omission_mark, sentences
from headstart.types import Frozen, lower_case, read_vocabulary, words_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]


# --- the question ---------------------------------------------------------------------------------

STOPWORDS = words_of(read_vocabulary(__name__)["stopwords"])
_QUERY_WORD = re.compile(r"[A-Za-z0-9]+(?:['\u2019.\-][A-Za-z0-9]+)*")
_ENDINGS = r"(?:s|es|ed|er|ers|ing|ings|ion|ions|ly|e|y|ies|ied|al|ment|ments|or|ors|'s|\u2019s)?"
_STRIPPED = re.compile(
    r"(?<=\w{3})(?:ations?|ements?|ments?|ions?|ings?|ers?|ors?|ies|ied|ed|es|ly|al|s|e|y)$"
)
_ANSWER_SHAPES = (
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
"""Pairs of patterns: what a question asks, and what its answer looks like."""

_LABEL = re.compile(
    r"^[#* \t]*+(?:(?:user )?question|query)[* \t]*+:", re.MULTILINE | re.IGNORECASE
)
_ASKING = re.compile(r"(?<![^.!?\n])[^.!?\n]*+\?")


class Query(Frozen):
    """A question: its distinct stems, and the pairs of neighbouring stems, by their indexes."""

    text: str
    terms: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]

    def pattern(self) -> re.Pattern[str]:
        """Return a pattern that finds the terms in lower-case text, as its first group."""
        longest_first = sorted(self.terms, key=len, reverse=True)
        return re.compile(rf"\b({'|'.join(map(re.escape, longest_first))}){_ENDINGS}\b")

    def answer_shape(self) -> re.Pattern[str] | None:
        """Return the pattern of an answer to who, when or how many, or None for other questions."""
        return next((shape for asks, shape in _ANSWER_SHAPES if asks.search(self.text)), None)


def focus(words: str) -> str:
    """Return the question without the instructions around it.

    The question is the text after the last ``Question:``, else the sentences with a question mark,
    else all words.
    """
    labels = list(_LABEL.finditer(words))
    if labels:
        return words[labels[-1].end() :]
    return " ".join(_ASKING.findall(words)) or words


def parse_query(text: str) -> Query:
    """Return the content words of an English question, stemmed."""
    numbers: dict[str, int] = {}
    pairs: dict[tuple[int, int], None] = {}  # a set that keeps the order
    previous = None
    for word in _QUERY_WORD.findall(lower_case(text)):
        if word in STOPWORDS:
            continue
        number = numbers.setdefault(stem(word), len(numbers))
        if previous is not None and previous != number:
            pairs[previous, number] = None
        previous = number
    return Query(text=text, terms=tuple(numbers), pairs=tuple(pairs))


def stem(word: str) -> str:
    """Remove one ending, so that the forms of a word become equal. Words with digits stay whole."""
    return word if not word.isalpha() else _STRIPPED.sub("", word)


# --- scores of sentences --------------------------------------------------------------------------

_K1, _B_SENTENCE, _B_DOCUMENT = 1.2, 0.75, 0.5
"""The parameters k1 and b of BM25 (Robertson and Zaragoza, 2009), b for sentences and documents."""
_PAIR_WEIGHT = 0.6
"""The weight of a pair of words that are near each other; a single word has 1."""
_MAX_GAP = 8
"""The largest number of characters between the two words of a pair."""
_WINDOW, _WINDOW_WEIGHT = 8, 0.3
"""The weight of the sentences around a sentence, up to this distance."""
_WINDOW_WEIGHT_ALONE = 1.0
"""The same weight in a text without documents, where the neighbours are the only context."""
_SHAPE_BONUS = 0.1
"""The bonus of a sentence that holds an answer to who, when or how many."""
_LINK_WEIGHT = 0.5
"""The weight that a document gets because its title is in a good sentence of another document."""
_WORD_CHARS = 6
"""The characters of an English word with its space."""
_MIN_TITLE_CHARS = 4
_MAX_LINKED = 64
"""The largest number of documents whose titles are searched for in the whole text."""
_QUALIFIER = re.compile(r"\s*\([^()]*\)$")


class SentenceScores(Frozen):
    """The score of each sentence, and the terms (columns) that it holds."""

    scores: Array
    holds: NDArray[np.bool_]


def rank(
    text: str,
    spans: Sequence[tuple[int, int]],
    document_of: Sequence[int],
    titles: Sequence[str],
    query: Query,
) -> SentenceScores:
    """Score the sentences at ``spans`` (start, end) of ``text``.

    ``document_of`` has the document of each sentence, as an index of ``titles`` ("": no title). The
    scores are Okapi BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009) of
    the sentence, of its neighbours and of its document: each is divided by its maximum, and the
    three are added. A document scores higher if a good sentence of another document contains its
    title: this is the second hop of a question. The weights were fitted on questions of NQ and
    HotpotQA.
    """
    counts = _count(text, spans, query)
    documents = np.asarray(document_of)
    in_title = _count_titles(titles, query)
    words = np.maximum(1.0, np.array([end - start for start, end in spans]) / _WORD_CHARS)
    rarity = _rarity(counts, query)
    alone = _bm25(counts, words, rarity, _B_SENTENCE)
    titled = _bm25(counts + in_title[documents], words, rarity, _B_SENTENCE)
    scores = _normal(alone + titled)
    several = len(titles) > 1
    if several:
        scores += _document_scores(counts, in_title, words, documents, query)
    near = _neighbourhood(counts, documents)
    weight = _WINDOW_WEIGHT if several else _WINDOW_WEIGHT_ALONE
    scores += weight * _normal(_bm25(near, words, rarity, 0.0))  # their lengths do not count
    shape = query.answer_shape()
    if shape is not None:
        fits = [shape.search(text, start, end) is not None for start, end in spans]
        scores += _SHAPE_BONUS * np.array(fits)
    if 1 < len(titles) <= _MAX_LINKED:
        links = _links(text, spans, documents, titles, _normal(scores))
        scores += _LINK_WEIGHT * links[documents]
    return SentenceScores(scores=scores, holds=counts[:, : len(query.terms)] > 0)


def _count(text: str, spans: Sequence[tuple[int, int]], query: Query) -> Array:
    """Count in one scan how often each sentence (row) has each term, and each pair (columns)."""
    numbers = {term: number for number, term in enumerate(query.terms)}
    pairs = {pair: len(numbers) + number for number, pair in enumerate(query.pairs)}
    starts: list[int] = []  # the places in the text, and what is there
    columns: list[int] = []
    previous, previous_end = -1, -_MAX_GAP
    for found in query.pattern().finditer(lower_case(text)):
        number = numbers[found[1]]
        start = found.start()
        if start - previous_end <= _MAX_GAP and (previous, number) in pairs:
            starts.append(start)
            columns.append(pairs[previous, number])
        starts.append(start)
        columns.append(number)
        previous, previous_end = number, found.end()
    width = len(numbers) + len(pairs)
    rows = np.searchsorted(np.array([start for start, _ in spans]), starts, side="right") - 1
    cells = rows * width + np.array(columns, np.int64)
    counts = np.bincount(cells, minlength=len(spans) * width).astype(np.float64)
    return counts.reshape(len(spans), width)


def _count_titles(titles: Sequence[str], query: Query) -> Array:
    ends = list(accumulate(len(title) + 1 for title in titles))
    spans = [(end - len(title) - 1, end - 1) for title, end in zip(titles, ends, strict=True)]
    return _count("\n".join(titles), spans, query)


def _rarity(counts: Array, query: Query) -> Array:
    """Return the inverse document frequency. A pair counts less than a term."""
    found = (counts > 0).sum(axis=0)
    rarity = np.log1p((len(counts) - found + 0.5) / (found + 0.5))
    rarity[len(query.terms) :] *= _PAIR_WEIGHT
    return np.asarray(rarity)


def _bm25(counts: Array, words: Array, rarity: Array, b: float) -> Array:
    length = 1 - b + b * words / words.mean()
    return np.asarray((counts * (_K1 + 1) / (counts + _K1 * length[:, None])) @ rarity)


def _document_scores(
    counts: Array, in_title: Array, words: Array, documents: NDArray[np.int64], query: Query
) -> Array:
    """Score each sentence by its whole document with its title."""
    totals = in_title.copy()
    np.add.at(totals, documents, counts)
    sizes = np.maximum(1.0, np.bincount(documents, weights=words, minlength=len(totals)))
    return _normal(_bm25(totals, sizes, _rarity(totals, query), _B_DOCUMENT))[documents]


def _links(
    text: str,
    spans: Sequence[tuple[int, int]],
    documents: NDArray[np.int64],
    titles: Sequence[str],
    scores: Array,
) -> Array:
    """Return for each document the best score of a sentence elsewhere that contains its title."""
    starts = np.array([start for start, _ in spans])
    links = np.zeros(len(titles))
    for document, title in enumerate(titles):
        name = _QUALIFIER.sub("", title)
        if len(name) < _MIN_TITLE_CHARS:
            continue
        places = list(occurrences(text, name))
        holders = np.searchsorted(starts, places, side="right") - 1
        elsewhere = holders[documents[holders] != document]
        links[document] = scores[elsewhere].max(initial=0.0)
    return links


def occurrences(text: str, name: str) -> Iterator[int]:
    """Yield the places of a name in a text."""
    at = text.find(name)
    while at >= 0:
        yield at
        at = text.find(name, at + len(name))


def _neighbourhood(counts: Array, documents: NDArray[np.int64]) -> Array:
    """Add to each sentence the counts of its neighbours in the document, less with distance."""
    near = counts.copy()
    for distance in range(1, min(_WINDOW, len(counts) - 1) + 1):
        together = (documents[distance:] == documents[:-distance])[:, None]
        share = together / (1 + distance / 2)
        near[:-distance] += share * counts[distance:]
        near[distance:] += share * counts[:-distance]
    return near


def _normal(scores: Array) -> Array:
    top = scores.max(initial=0.0)
    return scores / top if top > 0 else scores


# --- the choice -----------------------------------------------------------------------------------

MIN_CHARS = 3200
"""A shorter text stays whole."""
_MIN_TERMS = 2
"""The fewest terms of a question by which sentences can be chosen."""
_MIN_FOUND = 0.5
"""The least share of the question's terms that the text must have."""
_MIN_COVERED = 0.34
"""The least share of the question's terms that the three best sentences must have together."""
_KEPT = 1 / 3
"""The share of the text that stays."""
_LEAST = 0.5
_LEAST_ALONE = 1.0
"""The least share of the target size that is kept: of several documents (one of them may contain
all the evidence), and of a single document."""
_THRESHOLD = 0.3
"""A sentence needs this share of the best score to be kept. So more is kept of a text with much
evidence: up to twice the target size."""
_REACH = 20
"""In a single text, this many sentences before and after a good one are about the same subject."""
_OWN_WEIGHT = 0.5
"""The weight of a sentence's own score, against the mean score of the sentences around it."""
_MARK_CHARS = len(omission_mark(10, "sentence"))

_HEAD = re.compile(
    r"^(?:(?:Document|Passage|Source)[ \t]?\[\d+\][ \t]?"
    r"(?:\(Title:[ \t]*(?P<named>[^\n]*?)\))?[ \t:]*"
    r"|[ \t]*<(?:document|doc|passage|source|result|chunk|article)s?\b(?P<tag>[^<>\n]*)>[ \t]*\n"
    r"|#{1,6}[ \t]+(?P<heading>[^\n]+)\n|Title:[ \t]*(?P<title>[^\n]+)\n)",
    re.MULTILINE | re.IGNORECASE,
)
_TAIL = re.compile(r"[ \t]*</\w+>\s*$")
_FUNCTION_WORD = re.compile(
    r"\b(?:the|of|and|to|in|is|was|for|that|with|on|are|by|as|it|from|at|an|be|this)\b"
)
_MIN_FUNCTION_WORDS = 0.12
"""The smallest share of English function words in an English text. English prose has twice this
share; texts in the most similar languages have a third of it."""
_MIN_SENTENCES = 0.5
"""The smallest share of the pieces of a prose text that end like sentences."""


class _Pieces(Frozen):
    """The pieces of a text: their spans, their documents, and whether they are a heading or tag."""

    spans: tuple[tuple[int, int], ...]
    document_of: tuple[int, ...]
    frame: tuple[bool, ...]
    titles: tuple[str, ...]


def select(text: str, question: str, kept: float = _KEPT) -> str | None:
    """Return the parts of ``text`` that concern ``question``, or None to keep the whole text.

    ``kept`` is the share of characters to aim for.
    """
    query = parse_query(question)
    if len(text) < MIN_CHARS or len(query.terms) < _MIN_TERMS or not is_english(text):
        return None
    pieces = _cut(text)
    if not _is_prose(text, pieces):
        return None
    ranked = rank(text, pieces.spans, pieces.document_of, pieces.titles, query)
    if not _answers(ranked):
        return None
    sizes = np.array([end - start for start, end in pieces.spans])
    scores, least = ranked.scores, _LEAST
    if len(pieces.titles) == 1:
        scores, least = _with_stretches(scores), _LEAST_ALONE
    chosen = _choose(scores, sizes, kept * len(text), least)
    return _write(text, pieces, _with_frames(text, pieces, chosen))


def is_english(text: str) -> bool:
    """Return whether ``text`` is English prose: Latin script and English function words."""
    if len(text.encode("ascii", "ignore")) < 0.9 * len(text):
        return False
    words = text.count(" ") + text.count("\n") + 1
    return len(_FUNCTION_WORD.findall(text.lower())) >= _MIN_FUNCTION_WORDS * words


def _is_prose(text: str, pieces: _Pieces) -> bool:
    """Tell whether most pieces are sentences.

    Otherwise the text is a list: each line may matter.
    """
    ends = (text[start:end].rstrip("\"')]*_ \u201d\u2019\n")[-1:] for start, end in pieces.spans)
    closed = [end in ".!?:;,…" for end in ends if end]
    return sum(closed) >= _MIN_SENTENCES * len(closed)


def _cut(text: str) -> _Pieces:
    """Divide a text into sentences, and into the headings and tags of its documents."""
    spans: list[tuple[int, int]] = []
    document_of: list[int] = []
    frame: list[bool] = []
    titles = [""]

    def add(start: int, end: int, *, framing: bool) -> None:
        spans.append((start, end))
        document_of.append(len(titles) - 1)
        frame.append(framing or _TAIL.match(text, start, end) is not None)

    at = 0
    for head in [*_HEAD.finditer(text), None]:
        until = head.start() if head else len(text)
        for start, end in sentences(text[at:until]):
            add(at + start, at + end, framing=False)
        if head:
            titles.append(next(filter(None, head.groups()), ""))
            add(*head.span(), framing=True)
            at = head.end()
    return _Pieces(
        spans=tuple(spans), document_of=tuple(document_of), frame=tuple(frame), titles=tuple(titles)
    )


def _answers(ranked: SentenceScores) -> bool:
    """Tell whether the text clearly answers the question (``_MIN_FOUND``, ``_MIN_COVERED``)."""
    best = np.argsort(-ranked.scores, kind="stable")[:3]
    found = ranked.holds.any(axis=0).mean()
    covered = ranked.holds[best].any(axis=0).mean()
    return bool(found >= _MIN_FOUND and covered >= _MIN_COVERED)


def _with_stretches(scores: Array) -> Array:
    """Return scores to which the sentences around each sentence contribute.

    In a talk or a story the answer is a passage, and few of its sentences name the subject.
    """
    reach = min(_REACH, len(scores) // 10)
    weights = 1 - np.abs(np.arange(-reach, reach + 1)) / (reach + 1)
    around = np.convolve(scores, weights, "full")[reach : reach + len(scores)]
    return _normal(around) + _OWN_WEIGHT * _normal(scores)


def _choose(
    scores: NDArray[np.float64], sizes: NDArray[np.int64], target: float, least: float
) -> NDArray[np.bool_]:
    """Choose the best pieces above the threshold.

    Their size is at least ``least * target`` and at most ``2 * target``.
    """
    order = np.argsort(-scores, kind="stable")
    filled = np.cumsum(sizes[order])
    good = scores[order] >= _THRESHOLD * scores.max()
    taken = (good & (filled <= 2 * target)) | (filled <= least * target)
    chosen = np.zeros(len(scores), bool)
    chosen[order[taken]] = True
    return chosen


def _with_frames(text: str, pieces: _Pieces, chosen: NDArray[np.bool_]) -> list[bool]:
    """Add fenced code, texts in other scripts, and the headings of documents that keep a piece."""
    frame = np.array(pieces.frame)
    documents = np.array(pieces.document_of)
    stays = np.isin(documents, documents[chosen])
    keep = zip(np.where(frame, stays, chosen).tolist(), pieces.spans, strict=True)
    return [kept or _is_pinned(text[start:end]) for kept, (start, end) in keep]


def _is_pinned(piece: str) -> bool:
    """Tell whether a piece is fenced code or mostly in another script."""
    if piece.startswith(("```", "~~~")):
        return True
    return not piece.isascii() and len(piece.encode("ascii", "ignore")) < 0.7 * len(piece)


def _write(text: str, pieces: _Pieces, keep: Sequence[bool]) -> str:
    """Join the kept pieces, with a mark for each gap. A gap shorter than its mark is kept, too."""
    out: list[str] = []
    for kept, group in groupby(range(len(keep)), key=keep.__getitem__):
        numbers = list(group)
        spans = pieces.spans[numbers[0] : numbers[-1] + 1]
        run = text[spans[0][0] : spans[-1][1]]
        if kept or len(run) <= _MARK_CHARS:
            out.append(run)
        else:
            count = sum(not pieces.frame[number] for number in numbers) or len(numbers)
            borders = (spans[0][0], *(end for _, end in spans))
            are_lines = all(text[at - 1 : at] in {"", "\n"} for at in borders)
            white_space = run[len(run.rstrip()) :]
            out += [omission_mark(count, "line" if are_lines else "sentence"), white_space]
    return "".join(out)


# --- protected texts ------------------------------------------------------------------------------

_TAG_LINE = re.compile(
    r"^[ \t]*<(/?)(documents?|docs?|contexts?|passages?|sources?|search_results?|results?|chunks?"
    r"|articles?|retrieved\w*)(?:[ \t][^<>\n]*)?>[ \t]*(?:\n|\Z)",
    re.MULTILINE | re.IGNORECASE,
)
_NUMBERED = re.compile(
    r"^(?:Document|Passage|Source)[ \t]?\[\d+\](?:[ \t]?\(Title: [^\n]*?\))?[ \t:]*\n?(?=\S)",
    re.MULTILINE | re.IGNORECASE,
)
_HEADING = re.compile(
    r"^(?:#++[ \t]*+)?+(?=[cdpqrsu])"
    r"(?:(?:retrieved[ \t])?(?:context|documents?|passages?|sources|search results)"
    r"(?:[ \t]information)?:[ \t]*\n|((?:user )?question|query)[ \t]*:)",
    re.MULTILINE | re.IGNORECASE,
)


class DocumentSpan(Frozen):
    """A part of a text, from ``start`` up to ``end``."""

    start: int
    end: int


def find_documents(text: str) -> list[DocumentSpan]:
    """Return the documents that an application put into a user's text, in order.

    A document is text with explicit borders: between tags on lines of their own, after a numbered
    line ``Document [1]``, or between a heading such as ``Context:`` and ``Question:``. All other
    text is the user's own. The white space around a document is not part of it, so that its borders
    stay on lines of their own.
    """
    places: list[DocumentSpan] = []
    for place in sorted(
        [*_tagged(text), *_headed(text), *_numbered(text)],
        key=lambda place: (place.start, -place.end),
    ):
        if not places or place.start >= places[-1].end:
            body = text[place.start : place.end]
            start = place.start + len(body) - len(body.lstrip())
            places.append(DocumentSpan(start=start, end=start + len(body.strip())))
    return places


def _tagged(text: str) -> list[DocumentSpan]:
    """Return the texts between a tag and its closing tag; nested tags belong to the outer one."""
    places = []
    opened, start, depth = "", 0, 0
    for tag in _TAG_LINE.finditer(text):
        closes, name = tag[1] == "/", tag[2].lower()
        if not depth and not closes:
            opened, start, depth = name, tag.end(), 1
        elif name == opened:
            depth += -1 if closes else 1
            if not depth:
                places.append(DocumentSpan(start=start, end=tag.start()))
                opened = ""
    return places


def _headed(text: str) -> list[DocumentSpan]:
    """Return the texts from a heading to the question that follows it."""
    places = []
    start = None
    for heading in _HEADING.finditer(text):
        if heading[1] is None:
            start = heading.end() if start is None else start
        elif start is not None:
            places.append(DocumentSpan(start=start, end=heading.start()))
            start = None
    return places


def _numbered(text: str) -> list[DocumentSpan]:
    """Return the text from the first numbered line to the end of the last one.

    A single numbered line may be a coincidence. It counts only if the text has a mark of an
    earlier selection.
    """
    heads = list(_NUMBERED.finditer(text))
    if len(heads) < (1 if has_mark(text) else 2):
        return []
    end = text.find("\n", heads[-1].end())
    return [DocumentSpan(start=heads[0].start(), end=len(text) if end < 0 else end)]


_FILE_TOOL = re.compile(
    r"(?<!pro)file|(?<!cr)edit|(?<!dis)patch|notebook"
    r"|^(?:fs_)?(?:read|view|cat|open|write|replace|grep|glob)$",
    re.IGNORECASE,
)
_READING_TOOL = re.compile(
    r"(?:\b|_|(?<=[a-z])(?=[A-Z]))(?i:read|get|show|view|fetch|open|cat|type)(?![a-z])"
)
_PATH_ARGUMENT = re.compile(r'"(?:\w*path|file\w*|\w*_file)"\s*:\s*"', re.IGNORECASE)
_PATH = re.compile(r'"(?:(?:~|\.{1,2})?/|(?:[A-Za-z]:|\.{1,2})?\\\\|[A-Za-z]:/)[^"\s]')
_NOT_SHOWN = re.compile(
    r"https?://[^\s\"'\\]+"
    r"|\b(?:python[\d.]*|node|ruby|perl|php|bash|sh|pytest|go run|npx \w+)\s+(?:-\S{1,40}\s+){0,8}"
    r"[\w./\\-]+\.(?:py|[cm]?js|tsx?|rb|pl|php|sh|go)\b",
    re.IGNORECASE,
)
"""Matches web addresses and programs that a command runs. A command does not show these files."""
_FILE_NAME = re.compile(
    r"file://|\b(?:Make|Docker|Gem|Rake|Pod|Proc|Vagrant|Jenkins)file\b"
    r"|(?:[\w-]\.(?:jsonc?|jsonl|json5|geojson|ndjson|ipynb|ya?ml|toml|ini|cfg|conf|config|properties"
    r"|lock|xml|xsl|xsd|html?|css|s[ac]ss|less|svg|csv|tsv|md|mdx|rst|adoc|txt|tex|bib|sql|pyi?"
    r"|[cm]?[jt]sx?|vue|svelte|astro|cc|cpp|cxx|hh|hpp|cs|csproj|sln|java|kts?|scala|swift|go"
    r"|mod|rs|rb|erb|php|p[lm]|lua|jl|dart|exs?|erl|hs|mli?|clj|sh|bash|zsh|fish|ps1|bat|cmd|gradle"
    r"|groovy|tf|tfvars|hcl|proto|graphql|gql|prisma|cmake|mk|patch|diff|pot?|strings|plist|resx|arb"
    r"|template|tmpl|j2|service)"
    r"|\w{2}\.[chmr]|\.(?:env|\w{1,20}rc|\w{1,20}ignore)"
    r"|(?:/|\\\\)[\w~.-]{1,80}\.(?!(?:log|out)\b)[a-z]\w*)\b(?!\.\w|\()",
    re.IGNORECASE,
)
"""Matches names of files that may be edited: with a known extension, or with any extension after a
folder.

Without a folder an unknown extension does not count: ``public.users`` is a table, ``example.com`` a
site.
"""
_SHELL = re.compile(
    r"bash|shell|exec|terminal|command|python|\b(?:run|code)\b|\"cmd\"", re.IGNORECASE
)
_SHOWS_FILE = re.compile(
    r"\b(?:cat|head|tail|sed|awk|less|more|nl|bat|tac|grep|rg|jq|git (?:diff|show|blame)|diff)\b"
    r"|\b(?i:get-content|gc|type)\s|\bopen\(|read_?(?i:text|file)"
)
_LOG_NAME = re.compile(r"\.(?:log|out)(?:\.\d+)?(?:$|[\s\"'\\|;&)])")

_QUESTION_CHARS = 2000
"""The last characters of the user's words that count as the question."""
LONGEST_WORDS = 50_000
"""A longer message of the user is not read: it may ask for anything, so all texts are protected."""
LONGEST_CALL = 20_000
"""A longer tool call is not read: it may have written a file."""

# _VERBATIM, _EDITS, _WHOLE, _COUNTS and _MARKUP match words that set the field of this name in
# TextPurpose.
_VERBATIM = re.compile(
    r"\b(?:translat|rewrit|re-?write|rephras|paraphras|proof-?read|copy-?edit|refactor|reformat"
    r"|edit|convert|transcrib|redact|verbatim|word for word|quot(?:e|es|ation)\b|spell|grammar"
    r"|(?:exact|full|complete|whole|entire|original)"
    r" (?:text|copy|content|wording|file|document|log)|fix (?:the|this|these|my|all)\b"
    r"|diff\b|patch\b|unchanged\b|untouched\b|preserv|every character|single (?:character|byte)"
    r"|(?:do not|don['\u2019]?t|never|without|must not) (?:alter|chang|modify|touch)"
    r"|(?:keep|leave|copy|return|repeat|print)\s(?:\w+\s){0,4}"
    r"(?:as[- ]is\b|as (?:it|they) (?:is|are)\b|exact)"
    r"|exactly (?:as|like|the same)\b"
    r"|raw (?:\w+ )?(?:json|output|text|results?|response|data|logs?|content)\b"
    # the layout, which other words cannot tell
    r"|lines? (?:no\.? ?|numbers? )?#?\d|line numbers?\b|indent|white ?space|line breaks?\b"
    r"|(?:how many|(?:number|count) of|count the) (?:lines|characters|bytes)\b"
    r"|(?:columns?|offset|position|byte|character) #?\d"
    r"|(?:\d+(?:st|nd|rd|th)|second|third|fourth|fifth|tenth) (?:last )?(?:line|byte|character)\b)",
    re.IGNORECASE,
)
_EDITS = re.compile(
    r"(?:^|[.!?:;,\n][ \t*-]{0,4}"
    r"|\b(?:please|then|and|now|just|only|(?:can|could|would) you|should|must|to)\s+)"
    r"(?:(?:chang|replac|remov|delet|insert|append|prepend|add|updat|renam|modif|correct|improv"
    r"|shorten|simplif|anonymi|mask|sort|reorder|merge|split|fill|complet|continu|extend|clean"
    r"|appl(?=y)|swap|substitut|capitali|set|fix|format|minif|validat|turn|mark)(?:e|y|ze|se)?\b"
    r"|make (?!sure))"
    r"|\b(?:examples?|samples?|template|schema|formats?|formatted|pretty"
    r"|in the same (?:way|form|style))\b",
    re.IGNORECASE,
)
"""Words beside a document that ask to edit it, or that show it as an example of a form."""
_COPIED = re.compile(
    r"\b(?:verbatim|word[- ]for[- ]word|as[- ]is|unchanged|unmodified|unaltered|exactly as)\b",
    re.IGNORECASE,
)
"""Words of a system text that ask to pass something on unchanged, if it is a ``_RESULT``."""
_RESULT = re.compile(r"\b(?:tools?|functions?|outputs?|results?|responses?|json)\b", re.IGNORECASE)
_NEAR = 80
"""The number of characters between two words of one sentence that belong together."""
_WHOLE = re.compile(
    r"\b(?:summar|overview|tl;?dr|outline|gist|main (?:points?|ideas?)|key (?:points?|takeaways)"
    r"|count(?:ing|s)?\b|number of|(?:list|name|find|show|give|extract|identify)\s(?:\w+\s){0,2}"
    r"(?:all|every|each)\b|every\b|each\b|compar|contrast|differ|overall|entire|whole|analy[sz]e"
    r"|review\b|classify|sentiment|how often)",
    re.IGNORECASE,
)
_ABSENT = re.compile(
    r"\b(?:not|without|never|missing|absent|lack\w*|except|other than|none|nobody|no one|only)\b"
    r"|n['\u2019]t\b",
    re.IGNORECASE,
)
"""Words of questions about what a text does not say. Only the whole text answers them."""
_COUNTS = re.compile(
    r"\b(?:how (?:many|much|often)\b|frequen|rate\b|total|sum\b|averag|mean\b|median\b|percent"
    r"|ratio\b|proportion|distribut|histogram|tally\b|busiest\b|twice\b|per \w+"
    r"|top \d|(?<!at )(?:most|least|fewest)\b"
    r"(?! (?:likely|probabl|plausibl|important|recent|serious|severe|critical|relevant))"
    r"|sort(?:ed)?\b|rank|plot\b|chart\b|an? (?:\w+ )?table\b|percentile|p\d\d\b|distinct|unique"
    r"|different|once\b|(?<!\ball )(?<!\beverything )in order\b(?! to\b)"
    r"|sequence|chronolog|timeline"
    r"|show (?:me )?the (?:\w+ )?(?:log|output|lines)\b"
    r"|wie ?viele?|combien|cu[aá]nt|quant[aeios]\b|hoeveel|ile\b|kolik|hur m[åa]nga"
    r"|hvor m(?:ange|ye)|kuinka|montako|kaç\b|berapa|bao nhiêu)"
    # A question in another script cannot be understood here, so it may ask for counts.
    r"|[\u0370-\u1dff\u2e80-\ud7ff\uf900-\ufdff]",
    re.IGNORECASE,
)
_CLOCK = r"\d{1,2}(?::\d\d|\s?(?:a\.?m|p\.?m|o'clock)\b)"
_STRETCH = re.compile(
    rf"\b(?:between|since|until|till|after|before|from|past|by|around|near)\s(?:\S+\s){{0,3}}{_CLOCK}"
    r"|\b(?:first|last|next|previous|final|past)\s(?:\w+\s)?(?:lines|entries|rows|messages|events"
    r"|requests|seconds?|minutes?|hours?|days?)\b",
    re.IGNORECASE,
)
"""Words that name a part of a log by its time or place. Each line of that part matters."""
_MARKUP = re.compile(
    r"\b(?:html|markup|tags?|attributes?|selectors?|xpath|css|dom|href|hyperlinks?|links?|urls?"
    r"|scripts?|source code|class names?|elements?|buttons?)\b",
    re.IGNORECASE,
)


class TextPurpose(Frozen):
    """The purpose of a text in the prompt: which parts of the text the answer needs."""

    question: str = ""
    """The last part of the user's own words in this turn."""
    call: str = ""
    """The arguments of the tool call that the text answers."""
    verbatim: bool = False
    """All words matter, because the text will be edited, translated or quoted."""
    whole: bool = False
    """The whole text matters, as for a summary, a comparison or a complete list."""
    counts: bool = False
    """The question asks how often something occurs, or for everything in a period of time."""
    markup: bool = False
    """The question is about the HTML markup itself."""
    edits: bool = False
    """Whether the words ask for a change of a text, or show an example of a form."""
    labels: int = 0
    """The number of labels such as ``Question:``."""

    def beside(self) -> TextPurpose:
        """Return the purpose of a document that is in the same message as the words.

        Words that ask for a change, or show an example, then refer to the document. They need not
        refer to the result of a tool: "change my flight" asks for another call.
        """
        # Several labels mean several examples, each with a question and its own documents.
        edited = self.verbatim or self.edits or self.labels > 1
        return msgspec.structs.replace(self, verbatim=edited)

    def then(self, later: TextPurpose) -> TextPurpose:
        """Return the purpose that this and later words of the same turn have together."""
        words = f"{self.question}\n{later.question}" if self.question else later.question
        return TextPurpose(
            question=words[-_QUESTION_CHARS:],
            verbatim=self.verbatim or later.verbatim,
            whole=self.whole or later.whole,
            counts=self.counts or later.counts,
            markup=self.markup or later.markup,
            edits=self.edits or later.edits,
            labels=self.labels + later.labels,
        )

    @property
    def words(self) -> str:
        """All words in which an id may be named: the question and the arguments of the call."""
        return f"{self.question}\n{self.call[-_QUESTION_CHARS:]}"

    @property
    def topic(self) -> str:
        """The topic of the question."""
        return f"{focus(self.question)}\n{self.call[-_QUESTION_CHARS:]}"


def understand(words: str) -> TextPurpose:
    """Derive from the user's own words which parts of a text the answer needs.

    A regular expression blocks all threads while it runs. So words longer than ``LONGEST_WORDS``
    are not read, and all parts may be needed.
    """
    if len(words) > LONGEST_WORDS:
        question = words[-_QUESTION_CHARS:]
        return TextPurpose(question=question, verbatim=True, whole=True, counts=True, markup=True)
    whole = _WHOLE.search(words) is not None
    return TextPurpose(
        question=words[-_QUESTION_CHARS:],
        verbatim=_VERBATIM.search(words) is not None,
        whole=whole or _ABSENT.search(focus(words[-_QUESTION_CHARS:])) is not None,
        counts=whole or any(each.search(words) for each in (_COUNTS, _STRETCH)),
        markup=_MARKUP.search(words) is not None,
        edits=_EDITS.search(words) is not None,
        labels=len(_LABEL.findall(words)),
    )


def passes_results_on(system: str) -> bool:
    """Tell whether a system text asks the model to pass on results of tools unchanged."""
    for copied in _COPIED.finditer(system):
        before = re.split(r"[.\n]", system[max(0, copied.start() - _NEAR) : copied.start()])[-1]
        after = re.split(r"[.\n]", system[copied.end() : copied.end() + _NEAR])[0]
        if _RESULT.search(f"{before} {after}"):
            return True
    return False


def shows_file(name: str, arguments: str) -> bool:
    """Return whether the result of this call may be a file that is edited later.

    Each byte of such a file matters. A log is not edited, so it does not count.
    """
    if len(name) + len(arguments) > LONGEST_CALL:
        return True
    named = _NOT_SHOWN.sub(" ", arguments)
    if _FILE_NAME.search(named):
        return True
    if _LOG_NAME.search(arguments):
        return False
    if _FILE_TOOL.search(name) or _PATH_ARGUMENT.search(arguments):
        return True
    if _READING_TOOL.search(name) and _PATH.search(named):
        return True
    is_shell = _SHELL.search(f"{name} {arguments}") is not None
    return is_shell and _SHOWS_FILE.search(arguments) is not None
