"""Sentences of a prompt's documents, numbered, and quotes in its earlier answers as marks."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from headstart.compression.documents import find_documents
from headstart.compression.messages import indexed_texts, is_plain_text, with_text
from headstart.compression.protection import is_code
from headstart.compression.sentences import sentences
from headstart.middleware.shaping.prompts import read_prompt
from headstart.middleware.shaping.shaper import with_document
from headstart.policies.output.concise import with_directive
from headstart.policies.output.quote_marks import Sources

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.compression.memo import Memo
    from headstart.types import Call

INSTRUCTION = (
    "Sentences of the documents are numbered [q1], [q2] and so on. To quote sentences word for "
    "word, write ⟦q:12⟧ for one or ⟦q:12-14⟧ for several in a row instead of copying them: the "
    "reader sees their text. Never write these marks in code or data, and do not mention the "
    "numbers otherwise."
)
_BORDER = re.compile(
    r"^[ \t]*(?:</?[a-z][^<>\n]*>[ \t]*(?:\n|\Z)"
    r"|(?:Document|Passage|Source)[ \t]?\[\d+\](?:[ \t]?\(Title: [^\n]*?\))?[ \t:]*)",
    re.MULTILINE | re.IGNORECASE,
)
"""Between the documents of one place."""
_JSON_LINE = re.compile(r'[{}\]]|\[\s*(?:["{\[]|$)|"(?:[^"\\]|\\.)*"\s*[:,]')
_SEPARATORS = (",", "\t", ";", "|")
_STOPS = (".", "!", "?")
_MIN_ROWS = 3
_MIN_EQUAL = 0.9


class Numbered(NamedTuple):
    """A call whose documents bear ids, and what these stand for."""

    call: Call
    sources: Sources


def number_documents(call: Call, memo: Memo) -> Numbered | None:
    """Return the call with ids before its sentences, or None: there are none to number."""
    assert call.request is not None
    document = call.request.document
    prompt = read_prompt(call.dialect, document)
    if prompt is None:
        return None
    sources = Sources()
    sent = []
    for message in prompt.messages:
        role = message.get("role")
        if role == "user":
            sent.append(_with_ids(message, sources, memo))
            if not sources:
                return None
        elif role == "assistant" and sources:
            sent.append(_with_marks(message, sources))
        else:
            sent.append(message)
    if not sources:
        return None
    directed = with_directive(prompt.with_messages(sent), call.dialect, INSTRUCTION)
    return None if directed is None else Numbered(with_document(call, directed), sources)


def _with_ids(message: dict[str, Any], sources: Sources, memo: Memo) -> dict[str, Any]:
    for part, text in indexed_texts(message):
        if not is_plain_text(message, part):
            continue
        places = [(each.start, each.end) for each in memo.call(find_documents, text)]
        numbered = sources.number(text, places, partial(_split, memo))
        if numbered != text:
            message = with_text(message, part, numbered)
    return message


def _with_marks(message: dict[str, Any], sources: Sources) -> dict[str, Any]:
    for part, text in indexed_texts(message):
        marked = sources.unquote(text) if is_plain_text(message, part) else text
        if marked != text:
            message = with_text(message, part, marked)
    return message


def _split(memo: Memo, text: str) -> list[tuple[int, int]]:
    return memo.call(_quotable, text)


def _quotable(text: str) -> list[tuple[int, int]]:
    """Return the sentences of those documents in ``text`` that are prose."""
    borders = [border.span() for border in _BORDER.finditer(text)]
    starts = [0, *(end for _, end in borders)]
    ends = [*(start for start, _ in borders), len(text)]
    return [
        (start + first, start + last)
        for start, end in zip(starts, ends, strict=True)
        if _is_prose(text[start:end])
        for first, last in sentences(text[start:end])
    ]


def _is_prose(document: str) -> bool:
    """Ids would break code and data, and nobody quotes these by sentences."""
    lines = [line for raw in document.split("\n") if (line := raw.strip())]
    json = sum(_JSON_LINE.match(line) is not None for line in lines)
    return bool(lines) and 2 * json < len(lines) and not (_is_table(lines) or is_code(document))


def _is_table(lines: Sequence[str]) -> bool:
    """Do the lines have equally many cells, and no full stops?"""
    if len(lines) < _MIN_ROWS or sum(line.endswith(_STOPS) for line in lines) * 2 > len(lines):
        return False
    for separator in _SEPARATORS:
        cells = Counter(line.count(separator) for line in lines)
        ((most, rows),) = cells.most_common(1)
        if most and rows >= _MIN_EQUAL * len(lines):
            return True
    return False
