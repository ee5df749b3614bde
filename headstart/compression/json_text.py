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
_LITERAL = re.compile(
    r"""\{\s*(?:"[^"\n]{0,99}"|'[^'\n]{0,99}'|\w{1,99})\s*:"""  # an object with its first key
    r"""|\n[ \t]*+(?:\[\s*[\[{"']|"[^"\n]{0,99}"\s*:)"""  # a line that begins a list or a member
)


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
    try:
        value, lines = _decode(body)
        layout = _layout_of(text, body, lines=lines)
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

    Number literals, escapes, order and repeated keys stay as they are written; of JSON Lines, so
    does each document's line.
    """
    body = text.strip()
    if not body or body[0] not in "{[":
        return None
    whole = _minify(body)
    if whole is not None or "\n" not in body:
        return whole
    out: list[str] = []
    for line in body.split("\n"):
        if line := line.strip():
            short = _minify(line)
            if short is None:
                return None
            out.append(short)
    return "\n".join(out)


def holds_json(text: str) -> bool:
    """Does ``text`` hold JSON or what is written like it: cut off, after other words, in quotes?"""
    return _LITERAL.search("\n" + text) is not None


def _minify(body: str) -> str | None:
    try:
        value = _pairs(body)
        short = _STRING_OR_SPACE.sub(r"\1", body)  # quadratic where a string never ends
        same = _pairs(short) == value
    except (ValueError, RecursionError):
        return None
    return short if same else None


def _layout_of(text: str, body: str, *, lines: bool) -> Layout:
    """Guess: the proof is that it gives the text back."""
    start = text.index(body)
    indent = _INDENT.match(body)
    return Layout(
        indent=indent[1] if indent else None,
        comma=", " if not indent and _is_spaced(body, ",") else ",",
        colon=": " if indent or _is_spaced(body, ":") else ":",
        ascii=body.isascii(),
        lines=lines,
        before=text[:start],
        after=text[start + len(body) :],
    )


def _is_spaced(body: str, sign: str) -> bool:
    """Is the first separator outside a string followed by a space?"""
    bare = re.compile(rf'"(?:[^"\\]|\\.)*"|{sign}( ?)')
    spaces = (found[1] for found in bare.finditer(body) if found[0][0] == sign)
    return next(spaces, "") == " "


def _decode(body: str) -> tuple[Any, bool]:
    """Return the value, and whether it is a list of one document a line."""
    try:
        return json.loads(body), False
    except ValueError:
        if "\n" not in body:
            raise
        return [json.loads(line) for line in body.split("\n")], True


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
