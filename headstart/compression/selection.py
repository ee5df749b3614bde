"""Extractive selection: of retrieved English text, what answers the question stays, verbatim.

Sentences stay or go whole and in order; headings of what stays, fenced code and other scripts
stay. A question that the text does not clearly answer leaves all as it is: below the gate's
bounds, two thirds of the evidence survived where above them 95 % did.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from headstart.compression.marks import omitted
from headstart.compression.query import parse_query
from headstart.compression.ranking import rank
from headstart.compression.sentences import sentences
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from headstart.compression.ranking import Ranked

MIN_CHARS = 3200
_MIN_TERMS = 2
_MIN_FOUND = 0.5
_MIN_COVERED = 0.34
"""Share of the question's terms that its three best sentences hold together."""
_KEPT = 1 / 3
_THRESHOLD = 0.3
"""Of the best score: spends more where the evidence is spread, within half to twice the target."""
_MARK_CHARS = len(omitted(10, "sentence"))

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
"""Of all words: English prose has twice this, its nearest relatives a third of it."""


class _Pieces(Frozen):
    """A text in pieces: where each lies, its document, and whether it is the document's frame."""

    spans: tuple[tuple[int, int], ...]
    document_of: tuple[int, ...]
    frame: tuple[bool, ...]
    titles: tuple[str, ...]


def select(text: str, question: str, kept: float = _KEPT) -> str | None:
    """Return ``text`` without what does not bear on ``question``, or None to leave it alone.

    ``kept`` is the share of characters to aim at.
    """
    query = parse_query(question)
    if len(text) < MIN_CHARS or len(query.terms) < _MIN_TERMS or not is_english(text):
        return None
    pieces = _cut(text)
    ranked = rank(text, pieces.spans, pieces.document_of, pieces.titles, query)
    if not _answers(ranked):
        return None
    sizes = np.array([end - start for start, end in pieces.spans])
    chosen = _choose(ranked.scores, sizes, kept * len(text))
    return _write(text, pieces, _with_frames(text, pieces, chosen))


def is_english(text: str) -> bool:
    """Is ``text`` English prose: Latin script, and English function words?"""
    if len(text.encode("ascii", "ignore")) < 0.9 * len(text):
        return False
    words = text.count(" ") + text.count("\n") + 1
    return len(_FUNCTION_WORD.findall(text.lower())) >= _MIN_FUNCTION_WORDS * words


def _cut(text: str) -> _Pieces:
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
        spans=tuple(spans),
        document_of=tuple(document_of),
        frame=tuple(frame),
        titles=tuple(titles),
    )


def _answers(ranked: Ranked) -> bool:
    """Does the text hold most of the question's terms, some of them together?"""
    best = np.argsort(-ranked.scores, kind="stable")[:3]
    found = ranked.holds.any(axis=0).mean()
    covered = ranked.holds[best].any(axis=0).mean()
    return bool(found >= _MIN_FOUND and covered >= _MIN_COVERED)


def _choose(
    scores: NDArray[np.float64], sizes: NDArray[np.int64], target: float
) -> NDArray[np.bool_]:
    """Take the best pieces down to the threshold, at least half and at most twice the target."""
    order = np.argsort(-scores, kind="stable")
    filled = np.cumsum(sizes[order])
    good = scores[order] >= _THRESHOLD * scores.max()
    taken = (good & (filled <= 2 * target)) | (filled <= target / 2)
    chosen = np.zeros(len(scores), bool)
    chosen[order[taken]] = True
    return chosen


def _with_frames(text: str, pieces: _Pieces, chosen: NDArray[np.bool_]) -> list[bool]:
    """Add the frames of documents of which a piece stays, fenced code, and other scripts."""
    frame = np.array(pieces.frame)
    documents = np.array(pieces.document_of)
    stays = np.isin(documents, documents[chosen & ~frame])
    keep = np.where(frame, stays, chosen).tolist()
    for number, (start, end) in enumerate(pieces.spans):
        if not keep[number] and _is_pinned(text[start:end]):
            keep[number] = True
    return list(keep)


def _is_pinned(piece: str) -> bool:
    if piece.startswith(("```", "~~~")):
        return True
    return not piece.isascii() and len(piece.encode("ascii", "ignore")) < 0.7 * len(piece)


def _write(text: str, pieces: _Pieces, keep: Sequence[bool]) -> str:
    """Join what stays; a gap shorter than its mark stays too."""
    out: list[str] = []
    at = 0
    while at < len(keep):
        run = at
        while run < len(keep) and not keep[run]:
            run += 1
        start, end = pieces.spans[at][0], pieces.spans[max(run - 1, at)][1]
        if run > at and end - start > _MARK_CHARS:
            count = sum(not pieces.frame[number] for number in range(at, run))
            lines = all(text[stop - 1] == "\n" for _, stop in pieces.spans[at:run])
            gap = text[start:end]
            out += [omitted(count, "line" if lines else "sentence"), gap[len(gap.rstrip()) :]]
        else:
            out.append(text[start:end])
        at = max(run, at + 1)
    return "".join(out)
