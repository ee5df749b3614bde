"""Writes JSON and listings in a shorter form, and restores them byte for byte.

**JSON** loses its white space, and lists of similar objects become tables. A table names the keys
of the objects once: ``{"columns": ["id", "price"], "rows": [[1, 5], [2, 7]]}`` stands for ``[{"id":
1, "price": 5}, {"id": 2, "price": 7}]``. ``rows_by_key`` does the same for an object of similar
objects. A column of similar objects names their keys: ``{"size": ["w", "h"]}``. A column ``note?``
holds null for each object without the key ``note``. Both directions keep the order of the keys.

**Python** values, as ``str`` writes lists and dicts of strings and numbers, become JSON.

**Listings** with numbered lines lose the blanks before the numbers. ``cat -n`` and the reading
tools of coding agents set line numbers flush right. The blanks are a fifteenth of the characters
that such agents send. The lines themselves do not change, so a model edits a file from the shorter
listing as well as from the longer one.

``shorten_json`` and ``expand`` are inverse to each other, and so are ``strip_padding`` and ``pad``.
The first of each pair applies the second to its result, and returns None unless that gives the
original text. To restore it, the caller keeps a small value beside the shorter text: ``Layout`` or
``Padding``.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_MIN_SAVING = 24
"""The fewest characters in keys with which a table saves anything."""
_OPTIONAL = "?"
"""The end of a column's name if some of the objects do not have the key."""
_NULL_WIDTH = 10
"""The number of characters that a null counts for: it takes as many tokens as a short key."""
_MOST_KINDS = 32
"""The most kinds of objects in one table. Objects of one kind have the same keys."""
_MOST_COLUMNS = 100
"""Most keys of an object in a table with several kinds."""


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
            parts = _parts(columns)
            return [_object(parts, row) for row in rows]
        case {"columns": list(columns), "rows_by_key": dict(rows)} if len(value) == 2:
            parts = _parts(columns)
            return {key: _object(parts, row) for key, row in rows.items()}
    return {key: from_columns(item) for key, item in value.items()}


def _table(items: list[Any]) -> dict[str, Any] | None:
    columns = _columns(items)
    if columns is None:
        return None
    parts = _parts(columns)
    if _saved(parts, items) < _MIN_SAVING:
        return None
    return {"columns": columns, "rows": [_row(parts, item) for item in items]}


def _columns(items: list[Any]) -> list[Any] | None:
    """Return the columns of the items if all are objects whose keys are in one order."""
    if len(items) < 2 or not all(isinstance(item, dict) and item for item in items):
        return None
    keys = _merged({tuple(item): None for item in items})
    if keys is None:
        return None
    columns = []
    for key in keys:
        values = [item[key] for item in items if key in item]
        optional = len(values) < len(items)
        if optional and None in values:
            return None
        inner = _columns(values)
        name = key + _OPTIONAL * optional
        columns.append(name if inner is None else {name: inner})
    return columns


def _merged(kinds: Collection[tuple[str, ...]]) -> Sequence[str] | None:
    """Return all keys in an order that each kind of object has, or None."""
    first = next(iter(kinds))
    if len(kinds) == 1:
        return None if any(key.endswith(_OPTIONAL) for key in first) else first
    if len(kinds) > _MOST_KINDS or max(map(len, kinds)) > _MOST_COLUMNS:
        return None
    merged: list[str] = []
    for kind in kinds:
        at = 0
        for key in kind:
            if key.endswith(_OPTIONAL):
                return None
            if key not in merged:
                merged.insert(at, key)
            elif merged.index(key) < at:
                return None
            at = merged.index(key) + 1
    return merged


_Part: TypeAlias = "tuple[str, bool, list[_Part]]"
"""The key of a column, whether objects may lack it, and the columns of the objects in it."""


def _parts(columns: list[Any]) -> list[_Part]:
    parts: list[_Part] = []
    for column in columns:
        name, inner = next(iter(column.items())) if isinstance(column, dict) else (column, [])
        key = name.removesuffix(_OPTIONAL)
        parts.append((key, key != name, _parts(inner)))
    return parts


def _saved(parts: list[_Part], items: list[Any]) -> int:
    """Return the number of characters that a table of the items spends less on their keys."""
    saved = 0
    for key, optional, inner in parts:
        values = [item[key] for item in items if key in item] if optional or inner else items
        saved += _saved(inner, values) if inner else (len(values) - 1) * (len(key) + 4)
        saved -= (len(items) - len(values)) * _NULL_WIDTH
    return saved


def _row(parts: list[_Part], item: dict[str, Any]) -> list[Any]:
    return [
        _row(inner, item[key]) if inner and key in item else to_columns(item.get(key))
        for key, _, inner in parts
    ]


def _object(parts: list[_Part], row: list[Any]) -> dict[str, Any]:
    return {
        key: _object(inner, cell) if inner else from_columns(cell)
        for (key, optional, inner), cell in zip(parts, row, strict=True)
        if not (optional and cell is None)
    }


# --- JSON as text ---------------------------------------------------------------------------------

_TABLE = re.compile(r"""columns["']\s*:""")
"""Matches a key ``columns``: such a text may be a table already."""
_SIGN = "~#"
"""The beginning of a text that stands for a number, while JSON is decoded."""
_ODD_NUMBER = re.compile(r"\d\.\d+0[\s,}\]]|\d[eE][-+\d]|\d\.\d{16}")
"""Matches numbers that Python would write in another way: 1.50, 1e5, or many decimals."""
_WRITTEN_NUMBER = re.compile(rf'"{_SIGN}(-?\d[\d.eE+-]*)"')
_PYTHON = re.compile(r"\[?\{'")
"""Matches the beginning of a dict, or a list of dicts, of Python: JSON has no single quotes."""
_PYTHON_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.)*+(?:'|\Z)|"(?:[^"\\]|\\.)*+(?:"|\Z)|\b(?:True|False|None)\b"""
)
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
_ESCAPE = re.compile(r"\\(?:x..|.)")
_ESCAPES = {"/": "\\/"} | {sign: f"\\u{ord(sign):04x}" for sign in "<>&='\u2028\u2029"}
"""Characters of strings that some programs escape, and how they write them."""
_ESCAPED = re.compile(r"\\(?:u[0-9a-f]{4}|.)")
_STRING_OR_SPACE = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\r\n]+')
_BEGIN = re.compile(r"^[ \t]*+[\[{]", re.MULTILINE)
"""Matches a line that may begin JSON."""
# Python 3.11.2 goes on where a repetition failed, unless an alternative fails at once.
_OBJECTS = re.compile(r"\{[^\n]*\}[ \t\r]*+(?:\n\{[^\n]*\}[ \t\r]*+|(?!))++(?=\n(?!\{)|\Z)")
"""Matches lines that are objects, unless the next one is cut off."""
_LINE_END = re.compile(r"[ \t]*,[ \t]*\r?\n\s*|[ \t]*\r?\n[ \t]*,[ \t]*")
"""Matches a comma between two items on lines of their own, at the end or the start of a line."""
_DECODER = json.JSONDecoder()
_NEARLY_ALL = 0.8
"""If JSON is at least this share of a text, the JSON is the content of the text."""
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
    escaped: str = ""
    """Characters that are escaped without need, such as ``<`` by Go and ``/`` by PHP."""
    python: bool = False
    """The text is a Python value as ``str`` writes it."""
    lines: bool = False
    """The text has one document on each line."""
    between: str = ""
    """The text between the items of a list that has each item on a line."""
    before: str = ""
    after: str = ""
    """The white space before and after the text."""


COMPACT = Layout()


class CompactJSON(Frozen):
    """A shorter text for the same value, and the layout that restores the original text."""

    text: str
    layout: Layout


def shorten_json(text: str) -> CompactJSON | None:
    """Write a text of JSON, or of a Python value, as compact JSON, with tables for like objects.

    Returns None unless ``expand`` restores ``text``, which is checked here. So the result is None
    for repeated keys, unusual escapes, an unusual layout, and a text with a key ``columns`` (it may
    be a table already).
    """
    body = text.strip()
    if not body or body[0] not in "{[" or _SIGN in body or _TABLE.search(body):
        return None
    try:
        if _PYTHON.match(body):
            value = json.loads(_PYTHON_TOKEN.sub(_as_json, body))
            layout = _layout_of(text, body, python=True)
        else:
            value, lines = _decode(body)
            layout = _layout_of(text, body, lines=lines)
        short = _dump(to_columns(value), Layout(ascii=layout.ascii))
        same = expand(short, layout) == text
    except (ValueError, RecursionError):
        return None
    return CompactJSON(text=short, layout=layout) if same and len(short) < len(text) else None


def expand(text: str, layout: Layout = COMPACT) -> str:
    """Return the text that ``shorten_json`` was given. Raises ValueError if it is not JSON."""
    value = from_columns(json.loads(text) if layout.python else _loads(text))
    if layout.python:
        written = repr(value)
    elif layout.lines or layout.between:
        one = msgspec.structs.replace(layout, indent=None)
        written = (layout.between or "\n").join(_dump(item, one) for item in value)
        written = f"[{written}]" if layout.between else written
    else:
        written = _dump(value, layout)
    return layout.before + written + layout.after


def json_within(text: str) -> tuple[int, int] | None:
    """Return start and end of a JSON value, or of JSON Lines, that is nearly all of a text.

    It has lines of its own. None if there is none, or if it is the whole text. A tool may write a
    sentence before its result, or a fence around it, and a program some words before its log.
    """
    found = _BEGIN.search(text)
    if found is None or found.start() > (1 - _NEARLY_ALL) * len(text):
        return None
    start = found.end() - 1
    if not text[:start].strip() and text.rstrip().endswith(("}", "]")):
        return None
    try:
        _, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    if lines := _OBJECTS.match(text, start):
        end = max(end, lines.end())
    if end - start < _NEARLY_ALL * len(text) or text[end:].partition("\n")[0].strip():
        return None
    return start, end


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


def _layout_of(text: str, body: str, *, lines: bool = False, python: bool = False) -> Layout:
    """Return a guess of the layout. The caller checks that it restores the text."""
    start = text.index(body)
    indent = _INDENT.match(body)
    escapes = set(_ESCAPED.findall(body)) if "\\" in body else set()
    return Layout(
        indent=indent[1] if indent else None,
        comma=", " if not indent and _is_spaced(body, ",") else ",",
        colon=": " if indent or _is_spaced(body, ":") else ":",
        ascii=body.isascii(),
        escaped="".join(sign for sign, escape in _ESCAPES.items() if escape in escapes),
        python=python,
        lines=lines,
        between="" if lines or python else _row_break(body),
        before=text[:start],
        after=text[start + len(body) :],
    )


def _row_break(body: str) -> str:
    """Return the text between the first two items of a list of rows, if a line ends there."""
    if not body.startswith(("[{", "[[")):
        return ""
    _, end = _DECODER.raw_decode(body, 1)
    found = _LINE_END.match(body, end)
    return found[0] if found else ""


def _is_spaced(body: str, sign: str) -> bool:
    """Return whether a space follows the first separator outside a string."""
    bare = re.compile(rf'"(?:[^"\\]|\\.)*"|{sign}( ?)')
    spaces = (found[1] for found in bare.finditer(body) if found[0][0] == sign)
    return next(spaces, "") == " "


def _decode(body: str) -> tuple[Any, bool]:
    """Return the value, and whether it is a list of the documents of several lines."""
    try:
        return _loads(body), False
    except ValueError:
        if "\n" not in body:
            raise
        return [_loads(line) for line in body.split("\n")], True


def _loads(text: str) -> Any:
    """Decode JSON. Numbers that Python would write in another way, such as 1.50, become texts."""
    return json.loads(text, parse_float=_as_written if _ODD_NUMBER.search(text) else None)


def _as_written(number: str) -> str:
    return f"{_SIGN}{number}"


def _dump(value: Any, layout: Layout) -> str:
    text = json.dumps(
        value,
        ensure_ascii=layout.ascii,
        indent=layout.indent,
        separators=(layout.comma, layout.colon),
    )
    for sign in layout.escaped:
        text = text.replace(sign, _ESCAPES[sign])
    return _WRITTEN_NUMBER.sub(r"\1", text) if _SIGN in text else text


def _as_json(found: re.Match[str]) -> str:
    """Return a string or a constant of Python as JSON."""
    token = found[0]
    if token in _CONSTANTS:
        return _CONSTANTS[token]
    inner = token[1:-1]
    if "\\" in inner:
        inner = _ESCAPE.sub(_json_escape, inner)
    return '"' + inner.replace('"', '\\"') + '"'


def _json_escape(found: re.Match[str]) -> str:
    escape = found[0]
    if escape == "\\'":
        return "'"
    return f"\\u00{escape[2:]}" if escape[1] == "x" else escape


def _pairs(text: str) -> Any:
    """Decode numbers as they are written, and objects as lists of pairs."""
    return json.loads(text, object_pairs_hook=list, parse_float=str, parse_int=str)


# --- listings with numbered lines -----------------------------------------------------------------

_LINE = re.compile(r"( *+)(\d{1,9})(\t|\u2192| ?[|\u2502])")
"""Matches the blanks, the number and the sign that begin a numbered line."""
_TABLE_RULE = re.compile(r"[ |]*-+(?:[+|]-+)+[ |]*")
"""The line under the head of a table of a database, whose first column may hold rising numbers."""
_TAB_WIDTH = 6
"""The fewest places of a number before a tab or an arrow, as ``cat -n``, ``nl`` and the tools of
agents write it. Narrower numbers are the first column of a table."""
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

    None unless the text is a listing, whose numbers mostly count up by one, and ``pad`` restores
    it, which is checked. A table with a first column of numbers is not a listing: it may be a file,
    and an edit of the file has to quote its blanks. Signs of a table are a rule under its head,
    narrow columns before a tab, and a blank before the widest number, as ``psql`` writes it.
    """
    # Line by line: one call over a long text would stop all other threads.
    lines = text.split("\n")
    if not any(map(_LINE.match, lines[:_FIRST_LINES])):
        return None
    found = [_LineStart(*at.groups()) for line in lines if (at := _LINE.match(line)) is not None]
    padded = next((each for each in found if each.blanks), None)
    if padded is None or len(found) < max(_MIN_LINES, _MIN_SHARE * sum(map(bool, lines))):
        return None
    sign, width = padded.sign, len(padded.blanks) + len(padded.number)
    if not _count_up(found) or _is_table(lines, sign, width, len(found[-1].number)):
        return None
    padding = Padding(width=width, sign=sign)
    begins = re.compile(rf" +\d+{re.escape(sign)}")
    short = "\n".join(line.lstrip(" ") if begins.match(line) else line for line in lines)
    return PlainListing(text=short, padding=padding) if pad(short, padding) == text else None


class _LineStart(NamedTuple):
    """The beginning of a line with a number."""

    blanks: str
    number: str
    sign: str
    """What separates the number from the line."""


def _count_up(found: Sequence[_LineStart]) -> bool:
    """Tell whether the numbers rise from line to line, and mostly by one."""
    steps = [int(after.number) - int(before.number) for before, after in pairwise(found)]
    return min(steps) > 0 and steps.count(1) >= _MIN_SHARE * len(steps)


def _is_table(lines: Sequence[str], sign: str, width: int, widest: int) -> bool:
    """Tell whether lines with numbers in ``width`` places are the rows of a table.

    ``widest`` is the number of digits of the last number, which is the widest one.
    """
    if any(map(_TABLE_RULE.fullmatch, lines)):
        return True
    if sign in "\t\u2192" and width < _TAB_WIDTH:
        return True
    return sign.endswith("|") and widest < width


def pad(text: str, padding: Padding) -> str:
    """Return the listing with its blanks."""
    number = re.compile(rf"\d+(?={re.escape(padding.sign)})")
    return "\n".join(
        line if (at := number.match(line)) is None else " " * (padding.width - at.end()) + line
        for line in text.split("\n")
    )
