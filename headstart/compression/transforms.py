"""Which transforms a text gets: by its mode, by what it is, and by what is asked about it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from headstart.compression import json_text
from headstart.compression.comments import strip_comments
from headstart.compression.html_text import html_to_text, is_html, is_markup
from headstart.compression.logs import fold_log, is_log
from headstart.compression.marks import has_mark
from headstart.compression.protection import is_code
from headstart.compression.selection import select
from headstart.types import Frozen

if TYPE_CHECKING:
    from headstart.compression.duplicates import Passages
    from headstart.compression.json_text import Layout
    from headstart.compression.memo import Memo
    from headstart.compression.protection import Asked
    from headstart.compression.result import Mode, Transform

COST_MS_PER_1K: dict[Transform, float] = {
    "json": 0.3,
    "minify": 0.3,
    "html": 0.2,
    "log": 0.6,
    "space": 0.1,
    "comments": 3.0,
    "duplicate": 0.3,
    "selection": 1.5,
    "history": 0.0,
}
"""Predicted, of a thousand tokens; measured by ``benchmarks/compression.py``."""

_TRAILING = re.compile(r"(?<![ \t]) ++$", re.MULTILINE)
"""Not of tabs, which end the empty cells of a table."""
_MANY_BREAKS = re.compile(r"\n{3,}")


class Shortened(Frozen):
    """A text to send in place of another. Nothing applied: it is the same text."""

    text: str
    applied: tuple[Transform, ...] = ()
    layout: Layout | None = None


class Extent(NamedTuple):
    """How far shortening may go."""

    mode: Mode
    comments: bool
    """Also strip comments from code."""


def shorten(text: str, asked: Asked, extent: Extent, sent: Passages, memo: Memo) -> Shortened:
    """Apply transforms to a text that may be touched; ``sent`` stands before it."""
    if has_mark(text):
        return Shortened(text=text)
    table = memo.call(json_text.shorten, text)
    if extent.mode == "safe":
        return _lossless(table) if table else Shortened(text=text)
    minified = None if table else memo.call(json_text.minify, text)
    if table or minified is not None:
        short = _lossless(table) if table else _minified(text, minified or "", memo)
        return short if asked.verbatim else _pointed(short, sent)
    if asked.verbatim:
        return Shortened(text=text)
    return _shorten_prose(text, asked, extent, sent, memo)


def _lossless(table: json_text.Shortened) -> Shortened:
    return Shortened(text=table.text, applied=("json",), layout=table.layout)


def _minified(text: str, minified: str, memo: Memo) -> Shortened:
    short = _then(Shortened(text=text), "minify", minified)
    table = memo.call(json_text.shorten, minified)
    return _then(short, "json", table.text) if table else short


def _pointed(short: Shortened, sent: Passages) -> Shortened:
    pointer = sent.point(short.text)
    if pointer is None:
        return short
    return Shortened(text=pointer, applied=(*short.applied, "duplicate"))


def _shorten_prose(
    text: str, asked: Asked, extent: Extent, sent: Passages, memo: Memo
) -> Shortened:
    short = Shortened(text=text)
    if is_html(text):
        if asked.markup:
            return short
        short = _then(short, "html", memo.call(html_to_text, text) or text)
    elif memo.call(is_log, text):
        if not asked.counts:
            short = _then(short, "log", memo.call(fold_log, text, asked.words))
        return _deduplicated(short, sent, memo)
    elif memo.call(is_code, text):
        return _then(short, "comments", memo.call(_bare, text)) if extent.comments else short
    if memo.call(_is_data, short.text):
        return _pointed(short, sent)
    short = _then(short, "space", _without_waste(short.text))
    if extent.mode == "aggressive" and not asked.whole:
        # Before duplicates: a pointer's target must not be left out after it was pointed to.
        short = _then(short, "selection", memo.call(select, short.text, asked.topic) or short.text)
    return _deduplicated(short, sent, memo)


def _bare(text: str) -> str:
    """Strip comments, but only from what is still taken for code without them."""
    bare = strip_comments(text)
    return bare if is_code(bare) and not is_log(bare) else text


def _without_waste(text: str) -> str:
    """Drop white space at the ends of lines, and third breaks. Most texts have none of either."""
    if " \n" in text or text.endswith(" "):
        text = _TRAILING.sub("", text)
    return _MANY_BREAKS.sub("\n\n", text) if "\n\n\n" in text else text


def _is_data(text: str) -> bool:
    """May a program's data be in it, which no sentence may be taken from?"""
    return json_text.holds_json(text) or is_markup(text)


def _deduplicated(short: Shortened, sent: Passages, memo: Memo) -> Shortened:
    pointed = _pointed(short, sent)
    if pointed is not short or memo.call(_is_data, short.text):
        return pointed
    return _then(short, "duplicate", sent.shorten(short.text))


def _then(short: Shortened, transform: Transform, text: str) -> Shortened:
    if text == short.text:
        return short
    return Shortened(text=text, applied=(*short.applied, transform))
