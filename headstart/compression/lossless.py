"""Writes JSON and listings in a shorter form, and restores them byte for byte.

**JSON** loses its white space, and lists of similar objects become tables. A table names the keys
of the objects once: ``{"columns": ["id", "price"], "rows": [[1, 5], [2, 7]]}`` stands for ``[{"id":
1, "price": 5}, {"id": 2, "price": 7}]``. ``rows_by_key`` does the same for an object of similar
objects. A column of similar objects names their keys: ``{"size": ["w", "h"]}``. Both directions
keep the order of the keys.

**Listings** with numbered lines lose the blanks before the numbers. ``cat -n`` and the reading
tools of coding agents set line numbers flush right. The blanks are a fifteenth of the characters
that such agents send. The lines themselves do not change, so a model edits a file from the shorter
listing as well as from the longer one.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

from headstart.types import Frozen

_MIN_SAVING = 24
"""The fewest characters in keys with which a table saves anything."""


def to_columns(value: Any) -> Any:
    """Return decoded JSON with a table for each list or object of similar objects."""
    if isinstance(value, list):
        return _table(value) or [to_columns(item) for item in value]
    if isinstance(value, dict):
        table = _table(list(value.values()))
        if table is not None:
            rows = table.pop("rows")
            return {**table, "rows_by_key": dict(zip(value, rows, strict=True))}
        return {key: to_columns(item) for key, item in value.items()}
    return value


def from_columns(value: Any) -> Any:
    """Return the value that ``to_columns`` was given."""
    if isinstance(value, list):
        return [from_columns(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"columns": list(columns), "rows": list(rows)} if len(value) == 2:
            return [_object(columns, row) for row in rows]
        case {"columns": list(columns), "rows_by_key": dict(rows)} if len(value) == 2:
            return {key: _object(columns, row) for key, row in rows.items()}
    return {key: from_columns(item) for key, item in value.items()}


def _table(items: list[Any]) -> dict[str, Any] | None:
    columns = _columns(items)
    if columns is None or (len(items) - 1) * _width(columns) < _MIN_SAVING:
        return None
    return {"columns": columns, "rows": [_row(columns, item) for item in items]}


def _columns(items: list[Any]) -> list[Any] | None:
    """Return the keys of the items if all items have the same keys in the same order."""
    if len(items) < 2 or not all(isinstance(item, dict) and item for item in items):
        return None
    keys = list(items[0])
    if any(list(item) != keys for item in items):
        return None
    return [_column(key, [item[key] for item in items]) for key in keys]


def _column(key: str, values: list[Any]) -> Any:
    inner = _columns(values)
    return key if inner is None else {key: inner}


def _width(columns: list[Any]) -> int:
    """Return the number of characters that one row spends on its keys."""
    return sum(
        len(column) + 4 if isinstance(column, str) else _width(next(iter(column.values())))
        for column in columns
    )


def _row(columns: list[Any], item: dict[str, Any]) -> list[Any]:
    return [
        _row(next(iter(column.values())), cell) if isinstance(column, dict) else to_columns(cell)
        for column, cell in zip(columns, item.values(), strict=True)
    ]


def _object(columns: list[Any], row: list[Any]) -> dict[str, Any]:
    item = {}
    for column, cell in zip(columns, row, strict=True):
        if isinstance(column, dict):
            ((key, inner),) = column.items()
            item[key] = _object(inner, cell)
        else:
            item[column] = from_columns(cell)
    return item


_TABLE = re.compile(r'"columns"\s*:')
_STRING_OR_SPACE = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\r\n]+')
_INDENT = re.compile(r"[\[{]\r?\n([ \t]+)")
_LITERAL = re.compile(
    r"""\{\s*(?:"[^"\n]{0,99}"|'[^'\n]{0,99}'|\w{1,99})\s*:"""  # an object with its first key
    r"""|\n[ \t]*+(?:\[\s*[\[{"']|"[^"\n]{0,99}"\s*:)"""  # a line that begins a list or a member
)


class Layout(Frozen):
    """The layout of a JSON text. With it, the same value is written as the same text."""

    indent: str | None = None
    comma: str = ","
    colon: str = ":"
    ascii: bool = False
    """Characters outside ASCII are escaped."""
    lines: bool = False
    """The text has one document on each line."""
    before: str = ""
    after: str = ""
    """The white space before and after the text."""


COMPACT = Layout()


class CompactJSON(Frozen):
    """A shorter text for the same value, and the layout that restores the original text."""

    text: str
    layout: Layout


def shorten_json(text: str) -> CompactJSON | None:
    """Write a JSON text compactly, with tables for lists of like objects.

    Returns None unless ``expand`` restores ``text``, which is checked here. So the result is None
    for repeated keys, unusual numbers or escapes, an unusual layout, and a text with a key
    ``columns`` (it may be a table already).
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
    return CompactJSON(text=short, layout=layout) if same and len(short) < len(text) else None


def expand(text: str, layout: Layout = COMPACT) -> str:
    """Return the text that ``shorten_json`` was given. Raises ValueError if it is not JSON."""
    value = from_columns(json.loads(text))
    if layout.lines:
        one = Layout(comma=layout.comma, colon=layout.colon, ascii=layout.ascii)
        written = "\n".join(_dump(item, one) for item in value)
    else:
        written = _dump(value, layout)
    return layout.before + written + layout.after


def minify(text: str) -> str | None:
    """Drop white space between the tokens of a JSON text; return None if it is not JSON.

    Numbers, escapes, order and repeated keys stay as they are written. Each document of JSON Lines
    stays on its own line.
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
    """Return whether ``text`` contains JSON, also in quotes, cut off, or after other words."""
    return _LITERAL.search("\n" + text) is not None


def _minify(body: str) -> str | None:
    try:
        value = _pairs(body)
        # The pattern takes quadratic time if a string never ends.
        short = _STRING_OR_SPACE.sub(r"\1", body)
        same = _pairs(short) == value
    except (ValueError, RecursionError):
        return None
    return short if same else None


def _layout_of(text: str, body: str, *, lines: bool) -> Layout:
    """Return a guess of the layout. The caller checks that it restores the text."""
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
    """Return whether a space follows the first separator outside a string."""
    bare = re.compile(rf'"(?:[^"\\]|\\.)*"|{sign}( ?)')
    spaces = (found[1] for found in bare.finditer(body) if found[0][0] == sign)
    return next(spaces, "") == " "


def _decode(body: str) -> tuple[Any, bool]:
    """Return the value, and whether it is a list of the documents of several lines."""
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
    """Decode numbers as they are written, and objects as lists of pairs."""
    return json.loads(text, object_pairs_hook=list, parse_float=str, parse_int=str)


# --- listings with numbered lines -----------------------------------------------------------------

_LINE = re.compile(r"( *+)(\d{1,9})(\t|\u2192| ?[|\u2502])")
_TABLE_RULE = re.compile(r"[ |]*-+(?:[+|]-+)+[ |]*")
"""The line under the head of a table of a database, whose first column may hold rising numbers."""
_MIN_LINES = 5
_MIN_SHARE = 0.8
"""The smallest share of lines with a number in a listing."""
_FIRST_LINES = 40
"""A listing must have a number in one of its first lines. This is the number of lines that are
tried."""


class Padding(Frozen):
    """The form of a listing's numbers: flush right in ``width`` places, before ``sign``."""

    width: int
    sign: str


class PlainListing(Frozen):
    """A listing without blanks before its numbers, and the padding that restores them."""

    text: str
    padding: Padding


def strip_padding(text: str) -> PlainListing | None:
    """Return the listing without the blanks before its line numbers.

    None unless the text is a listing with rising numbers and ``pad`` restores it, which is checked.
    A table with a rule under its head is no listing: if it is a file, an edit quotes its blanks.
    """
    # Line by line: one call over a long text would stop all other threads.
    lines = text.split("\n")
    if not any(map(_LINE.match, lines[:_FIRST_LINES])):
        return None
    found = [at.group(0, 1, 2, 3) for line in lines if (at := _LINE.match(line)) is not None]
    padded = next((each for each in found if each[1]), None)
    if padded is None or len(found) < max(_MIN_LINES, _MIN_SHARE * sum(map(bool, lines))):
        return None
    if any(int(after[2]) <= int(before[2]) for before, after in pairwise(found)):
        return None
    if any(map(_TABLE_RULE.fullmatch, lines)):
        return None
    _, blanks, number, sign = padded
    padding = Padding(width=len(blanks) + len(number), sign=sign)
    begins = re.compile(rf" +\d+{re.escape(sign)}")
    short = "\n".join(line.lstrip(" ") if begins.match(line) else line for line in lines)
    return PlainListing(text=short, padding=padding) if pad(short, padding) == text else None


def pad(text: str, padding: Padding) -> str:
    """Return the listing with its blanks."""
    number = re.compile(rf"\d+(?={re.escape(padding.sign)})")
    return "\n".join(
        line if (at := number.match(line)) is None else " " * (padding.width - at.end()) + line
        for line in text.split("\n")
    )
