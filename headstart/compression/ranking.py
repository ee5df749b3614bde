"""Multi-scale BM25: a sentence counts by itself, its neighbours, its document, and who names it.

Okapi BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009) at three scales,
each divided by its maximum and summed. A document whose title stands in a good sentence of another
gains by it: the second hop of a question. Weights come from questions of NQ and HotpotQA.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from headstart.compression.query import Query

    Array = NDArray[np.float64]

_K1 = 1.2
_B_SENTENCE = 0.75
_B_DOCUMENT = 0.5
_PAIR_WEIGHT = 0.6
_MAX_GAP = 8
"""Characters between two words of a pair."""
_WINDOW = 8
_WINDOW_WEIGHT = 0.3
_WINDOW_WEIGHT_ALONE = 1.0
"""Where there are no documents, neighbours are all there is."""
_SHAPE_BONUS = 0.1
_LINK_WEIGHT = 0.5
_MIN_TITLE_CHARS = 4
_MAX_LINKED = 64
"""Documents: each title is searched for in the whole text."""
_QUALIFIER = re.compile(r"\s*\([^()]*\)$")


class Ranked(Frozen):
    """A score for each sentence, and which terms (columns) each one holds."""

    scores: Array
    holds: NDArray[np.bool_]


def rank(
    text: str,
    spans: Sequence[tuple[int, int]],
    document_of: Sequence[int],
    titles: Sequence[str],
    query: Query,
) -> Ranked:
    """Score the sentences at ``spans`` of ``text``, each in a document with a title (or "")."""
    counts = _count(text, spans, query)
    documents = np.asarray(document_of)
    in_title = _count_titles(titles, query)
    words = np.maximum(1.0, np.array([end - start for start, end in spans]) / 6)
    rarity = _rarity(counts, query)
    alone = _bm25(counts, words, rarity, _B_SENTENCE)
    titled = _bm25(counts + in_title[documents], words, rarity, _B_SENTENCE)
    scores = _normal(alone + titled)
    several = len(titles) > 1
    if several:
        scores += _document_scores(counts, in_title, words, documents, query)
    near = _neighbourhood(counts, documents)
    weight = _WINDOW_WEIGHT if several else _WINDOW_WEIGHT_ALONE
    scores += weight * _normal(_bm25(near, words, rarity, 0.0))
    shape = query.answer_shape()
    if shape is not None:
        fits = [shape.search(text, start, end) is not None for start, end in spans]
        scores += _SHAPE_BONUS * np.array(fits)
    if 1 < len(titles) <= _MAX_LINKED:
        links = _links(text, spans, documents, titles, _normal(scores))
        scores += _LINK_WEIGHT * links[documents]
    return Ranked(scores=scores, holds=counts[:, : len(query.terms)] > 0)


def _count(text: str, spans: Sequence[tuple[int, int]], query: Query) -> Array:
    """Count terms and pairs in each sentence, in one scan."""
    numbers = {term: number for number, term in enumerate(query.terms)}
    pairs = {pair: len(numbers) + number for number, pair in enumerate(query.pairs)}
    starts: list[int] = []
    columns: list[int] = []
    previous, previous_end = -1, -_MAX_GAP
    for found in query.pattern().finditer(text.lower()):
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
    joined = "\n".join(titles)
    spans: list[tuple[int, int]] = []
    at = 0
    for title in titles:
        spans.append((at, at + len(title)))
        at += len(title) + 1
    return _count(joined, spans, query)


def _rarity(counts: Array, query: Query) -> Array:
    """Inverse document frequency; a pair counts less than a term."""
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
    """Score each sentence by its whole document, title included."""
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
    """Return for each document the best score of a sentence elsewhere that holds its title."""
    starts = np.array([start for start, _ in spans])
    links = np.zeros(len(titles))
    for document, title in enumerate(titles):
        name = _QUALIFIER.sub("", title)
        if len(name) < _MIN_TITLE_CHARS:
            continue
        places = list(_occurrences(text, name))
        holders = np.searchsorted(starts, places, side="right") - 1
        elsewhere = holders[documents[holders] != document]
        links[document] = scores[elsewhere].max(initial=0.0)
    return links


def _occurrences(text: str, name: str) -> Iterator[int]:
    at = text.find(name)
    while at >= 0:
        yield at
        at = text.find(name, at + len(name))


def _neighbourhood(counts: Array, documents: NDArray[np.int64]) -> Array:
    """Counts of each sentence and its neighbours in the document, less with distance."""
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
