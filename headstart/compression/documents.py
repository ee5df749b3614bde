"""The documents that an application put beside a user's own words.

Only where the border is explicit: a tag on a line of its own, a numbered ``Document [1]`` line, or
a heading such as ``Context:`` that ends at ``Question:``. All else is the user's own.
"""

from __future__ import annotations

import re

from headstart.compression.marks import has_mark
from headstart.types import Frozen

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
    r"^(?:#+[ \t]*)?(?:(?:retrieved[ \t])?(?:context|documents?|passages?|sources|search results)"
    r"(?:[ \t]information)?:[ \t]*\n|((?:user )?question|query)[ \t]*:)",
    re.MULTILINE | re.IGNORECASE,
)


class Place(Frozen):
    """A part of a text, from ``start`` to before ``end``."""

    start: int
    end: int


def find_documents(text: str) -> list[Place]:
    """Return the parts of a user's text that are documents, in order, apart from each other.

    White space around a document is none of it: what marks its border stays on a line of its own.
    """
    places: list[Place] = []
    for place in sorted(
        [*_tagged(text), *_headed(text), *_numbered(text)],
        key=lambda place: (place.start, -place.end),
    ):
        if not places or place.start >= places[-1].end:
            body = text[place.start : place.end]
            start = place.start + len(body) - len(body.lstrip())
            places.append(Place(start=start, end=start + len(body.strip())))
    return places


def _tagged(text: str) -> list[Place]:
    """Between a tag and the one that closes it; the outer of nested ones."""
    places = []
    opened, start, depth = "", 0, 0
    for tag in _TAG_LINE.finditer(text):
        closes, name = tag[1] == "/", tag[2].lower()
        if not depth and not closes:
            opened, start, depth = name, tag.end(), 1
        elif name == opened:
            depth += -1 if closes else 1
            if not depth:
                places.append(Place(start=start, end=tag.start()))
                opened = ""
    return places


def _headed(text: str) -> list[Place]:
    """From a heading to the question that follows it."""
    places = []
    start = None
    for heading in _HEADING.finditer(text):
        if heading[1] is None:
            start = heading.end() if start is None else start
        elif start is not None:
            places.append(Place(start=start, end=heading.start()))
            start = None
    return places


def _numbered(text: str) -> list[Place]:
    """From the first to the end of the last one's line. One alone is a chance, unless by a mark."""
    heads = list(_NUMBERED.finditer(text))
    if len(heads) < (1 if has_mark(text) else 2):
        return []
    end = text.find("\n", heads[-1].end())
    return [Place(start=heads[0].start(), end=len(text) if end < 0 else end)]
