"""Recoverable compression: each text that was cut has an id, with which the model gets it back.

The id is a digest of the text. The caller sends the whole conversation with each request, so the
source of every cut stands in the request itself: nothing is stored, and any process can answer.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from headstart.compression.passages import omitted
from headstart.compression.selection import parse_query, rank

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

RETRIEVE = "headstart_retrieve"
"""The name of the tool."""
DESCRIPTION = (
    "Returns text that was cut from this conversation to keep it short. A mark such as "
    f'[… all 8,000 characters: {RETRIEVE}("4f1c09aa") …] stands at the end of a shortened text. '
    "Call this tool when the answer may need what is missing there."
)
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "The id in the mark."},
        "query": {
            "type": "string",
            "description": "Words to search for. Only the parts of the text that fit best are "
            "returned. Without a query the text is returned from its beginning.",
        },
    },
    "required": ["id"],
}
"""The JSON schema of the tool's arguments."""
MOST_CHARS = 24_000
"""The longest result of a call without a query: some 6,000 tokens."""
MOST_FOUND_CHARS = 6_000
"""The longest result of a call with a query."""
_LONG_LINE = 400
"""A longer line is searched in pieces."""
_AROUND = 2
"""Lines before and after one that fits, which are returned with it."""
_LEAST_SHARE = 0.5
"""A line with a smaller share of the best score does not fit."""
_BREAK = re.compile(r"[,;|}\]]\s*|\s+")


def id_of(text: str) -> str:
    """Return the id of a text that was cut: eight hexadecimal digits of its SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def mark(text: str) -> str:
    """Return the mark at the end of a shortened text, which names the whole one."""
    return f'[… all {len(text):,} characters: {RETRIEVE}("{id_of(text)}") …]'


def cleared(text: str) -> str:
    """Return what stands in the place of an old tool result."""
    return f'[… a result of {len(text):,} characters was cut: {RETRIEVE}("{id_of(text)}") …]'


def retrieve(texts: Mapping[str, str], arguments: str) -> str:
    """Return the result of a call with these arguments, in JSON. Never raises.

    ``texts`` are the whole texts by their ids.
    """
    try:
        asked = msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        return f'The arguments are no JSON. Example: {{"id": "{next(iter(texts), "4f1c09aa")}"}}'
    id = asked.get("id") if isinstance(asked, dict) else None
    text = texts.get(id.strip().lower()) if isinstance(id, str) else None
    if text is None:
        return f"No text has the id {id!r}. The ids in this conversation: {', '.join(texts)}."
    query = asked.get("query")
    if isinstance(query, str) and query.strip():
        return find(text, query)
    if len(text) <= MOST_CHARS:
        return text
    rest = len(text) - MOST_CHARS
    return f"{text[:MOST_CHARS]}\n[… {rest:,} more characters: call again with a query …]"


def find(text: str, query: str) -> str:
    """Return the parts of a text that fit a query best, in their order, with marks for the gaps.

    Lines that hold the query as it is come first, then those with the best score of BM25
    (``selection.rank``).
    """
    spans = list(_units(text))
    chosen = _fitting(text, spans, query, MOST_FOUND_CHARS)
    if not chosen:
        return f"Nothing in this text fits {query!r}. Try other words, or no query."
    return _written(text, spans, chosen)


def _written(text: str, spans: Sequence[tuple[int, int]], chosen: set[int]) -> str:
    """Return the chosen lines, and marks in the place of the others."""
    written, last = [], -1
    for number in [*sorted(chosen), len(spans)]:
        if gap := number - last - 1:
            written.append(omitted(gap, "line"))
        if number < len(spans):
            start, end = spans[number]
            written.append(text[start:end])
        last = number
    return "\n".join(written)


def _fitting(text: str, spans: Sequence[tuple[int, int]], query: str, most: int) -> set[int]:
    """Return the numbers of the lines that fit a query, with those around them."""
    scores = _scores(text, spans, query)
    chosen: set[int] = set()
    size = 0
    for best in np.argsort(-scores, kind="stable").tolist():
        if scores[best] <= 0 or scores[best] < _LEAST_SHARE * scores.max():
            break
        around = range(max(0, best - _AROUND), min(len(spans), best + _AROUND + 1))
        news = [number for number in around if number not in chosen]
        size += sum(spans[number][1] - spans[number][0] for number in news)
        if chosen and size > most:
            break
        chosen.update(news)
    return chosen


def _scores(text: str, spans: Sequence[tuple[int, int]], query: str) -> Any:
    parsed, lowered, exact = parse_query(query), text.lower(), query.strip().lower()
    scores = np.zeros(len(spans))
    if parsed.terms and spans:
        scores += rank(text, spans, [0] * len(spans), [""], parsed).scores
    for number, (start, end) in enumerate(spans):
        line = lowered[start:end]
        if exact in line:
            scores[number] += 10.0
        elif not parsed.terms:
            # Words that the parser leaves out, as those of other scripts.
            scores[number] += sum(word in line for word in exact.split())
    return scores


def _units(text: str) -> Iterator[tuple[int, int]]:
    """Yield the place of each line; a long line in pieces that end at white space or a comma."""
    start = 0
    for line in text.splitlines(keepends=True):
        end, at = start + len(line.rstrip("\r\n")), start
        while end - at > _LONG_LINE:
            found = _BREAK.search(text, at + _LONG_LINE // 2, at + _LONG_LINE)
            cut = found.end() if found else at + _LONG_LINE
            yield at, cut
            at = cut
        if end > at:
            yield at, end
        start += len(line)
