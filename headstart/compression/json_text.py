"""JSON texts without what only people read, and back again byte for byte."""

from __future__ import annotations

import json
import re
from typing import Any

from headstart.compression.columns import from_columns, to_columns
from headstart.types import Frozen

_TABLE = re.compile(r'"columns"\s*:')
_STRING_OR_SPACE = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\r\n]+')
_INDENT = re.compile(r"[\[{]\r?\n([ \t]+)")


class Layout(Frozen):
    """How a JSON text is written: all that is needed to write its value the same way again."""

    indent: str | None = None
    comma: str = ","
    colon: str = ":"
    ascii: bool = False
    """Other characters are escaped."""
    lines: bool = False
    """One document a line."""
    before: str = ""
    after: str = ""
    """White space around the text."""


COMPACT = Layout()


class Shortened(Frozen):
    """A shorter text for the same value, and the layout that gives the first one back."""

    text: str
    layout: Layout


def shorten(text: str) -> Shortened | None:
    """Write a JSON text compactly, lists of like objects as tables.

    None unless ``expand`` is proven, here and now, to give ``text`` back: so not for repeated
    keys, unusual number literals or escapes, a layout of its own, or a text that has a key
    ``columns`` already (it may be a table).
    """
    body = text.strip()
    if not body or body[0] not in "{[" or _TABLE.search(body):
        return None
    layout = _layout_of(text, body)
    try:
        value = _decode(body, layout)
        short = _dump(to_columns(value), Layout(ascii=layout.ascii))
        same = expand(short, layout) == text
    except (ValueError, RecursionError):
        return None
    return Shortened(text=short, layout=layout) if same and len(short) < len(text) else None


def expand(text: str, layout: Layout = COMPACT) -> str:
    """Return the text that ``shorten`` was given. Raises ValueError when it is not JSON."""
    value = from_columns(json.loads(text))
    if layout.lines:
        one = Layout(comma=layout.comma, colon=layout.colon, ascii=layout.ascii)
        written = "\n".join(_dump(item, one) for item in value)
    else:
        written = _dump(value, layout)
    return layout.before + written + layout.after


def minify(text: str) -> str | None:
    """Drop white space between the tokens of a JSON text, or return None when it is not JSON.

    Number literals, escapes, order and repeated keys stay as they are written.
    """
    body = text.strip()
    if not body or body[0] not in "{[":
        return None
    short = _STRING_OR_SPACE.sub(r"\1", body)
    try:
        same = _pairs(short) == _pairs(body)
    except (ValueError, RecursionError):
        return None
    return short if same else None


def _layout_of(text: str, body: str) -> Layout:
    """Guess: the proof is that it gives the text back."""
    start = text.index(body)
    indent = _INDENT.match(body)
    return Layout(
        indent=indent[1] if indent else None,
        comma=", " if not indent and _is_spaced(body, ",") else ",",
        colon=": " if indent or _is_spaced(body, ":") else ":",
        ascii=body.isascii(),
        lines=not indent and "\n" in body,
        before=text[:start],
        after=text[start + len(body) :],
    )


def _is_spaced(body: str, sign: str) -> bool:
    """Is the first separator outside a string followed by a space?"""
    bare = re.compile(rf'"(?:[^"\\]|\\.)*"|{sign}( ?)')
    spaces = (found[1] for found in bare.finditer(body) if found[0][0] == sign)
    return next(spaces, "") == " "


def _decode(body: str, layout: Layout) -> Any:
    if not layout.lines:
        return json.loads(body)
    return [json.loads(line) for line in body.split("\n")]


def _dump(value: Any, layout: Layout) -> str:
    return json.dumps(
        value,
        ensure_ascii=layout.ascii,
        indent=layout.indent,
        separators=(layout.comma, layout.colon),
    )


def _pairs(text: str) -> Any:
    """Decode with literals and repeated keys as they stand."""
    return json.loads(text, object_pairs_hook=list, parse_float=str, parse_int=str)
