from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.compression.lossless import expand, holds_json, minify, shorten_json

ROWS = [{"name": "Ada", "price": 1.5, "tags": ["é", None]}, {"name": "Bo", "price": 2, "tags": []}]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=20,
)
TABLES = st.lists(st.text(max_size=4), min_size=1, max_size=3, unique=True).flatmap(
    lambda names: st.lists(
        st.fixed_dictionaries(dict.fromkeys(names, SCALARS)), min_size=4, max_size=9
    )
)
"""Objects with the same keys: only of such a list does JSON become shorter."""


@pytest.mark.parametrize(
    ("indent", "separators"),
    [
        *((None, each) for each in (None, (",", ":"), (",", ": "), (", ", ":"))),
        *((each, None) for each in (1, 2, 4, "\t")),
    ],
)
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("around", ["", "\n", "  \n"])
def test_usual_layouts_are_given_back_byte_for_byte(
    indent: int | str | None, separators: tuple[str, str] | None, ascii_only: bool, around: str
) -> None:
    text = json.dumps(ROWS * 3, indent=indent, separators=separators, ensure_ascii=ascii_only)
    short = shorten_json(around + text + around)
    assert short is not None
    assert len(short.text) < len(text)
    assert expand(short.text, short.layout) == around + text + around


def test_a_document_a_line_is_given_back() -> None:
    text = "\n".join(json.dumps(row) for row in ROWS * 3)
    short = shorten_json(text)
    assert short is not None
    assert json.loads(short.text)["columns"] == ["name", "price", "tags"]
    assert expand(short.text, short.layout) == text


def test_numbers_stay_as_they_are_written() -> None:
    text = (
        "["
        + ", ".join(f'{{"owner": "Ada", "price": {n}.50, "rate": 1.0E-7}}' for n in range(9))
        + "]"
    )
    short = shorten_json(text)
    assert short is not None
    assert '["Ada",8.50,1.0E-7]' in short.text
    assert expand(short.text, short.layout) == text


@pytest.mark.parametrize(
    ("signs", "layout"),
    [
        ("<>&\u2028", {"ensure_ascii": False, "separators": (",", ":")}),  # Go
        ("<>&='", {"ensure_ascii": False, "indent": 2}),  # Gson
        ("/", {}),  # PHP
    ],
)
def test_signs_that_a_program_escapes_are_given_back(signs: str, layout: dict[str, Any]) -> None:
    rows = [{"owner": f"<b>Ada \\u003c</b> & 'Bo' = \u2028{n}\\/", "price": n} for n in range(9)]
    text = json.dumps(rows, **layout)
    for sign in signs:
        text = text.replace(sign, "\\/" if sign == "/" else f"\\u{ord(sign):04x}")
    short = shorten_json(text)
    assert short is not None
    assert json.loads(short.text)["rows"] == [list(row.values()) for row in rows]
    assert expand(short.text, short.layout) == text


@pytest.mark.parametrize("between", [",\n", ", \n ", "\n,"])
def test_a_row_a_line_is_given_back(between: str) -> None:
    rows = (f'{{"owner":"Ada","price":{n}}}' for n in range(9))
    text = f"[{between.join(rows)}]\n"
    short = shorten_json(text)
    assert short is not None
    assert short.text.startswith('{"columns":["owner","price"],"rows":[["Ada",0],')
    assert expand(short.text, short.layout) == text


def test_a_value_that_python_printed_becomes_json() -> None:
    rows = [{"owner": 'O\'Hara \\ "x"\xa0\n', "paid": n > 3, "note": None} for n in range(9)]
    short = shorten_json(str(rows))
    assert short is not None
    assert short.text.startswith('{"columns":["owner","paid","note"],"rows":[["O\'Hara ')
    assert json.loads(short.text)["rows"][0] == ['O\'Hara \\ "x"\xa0\n', False, None]
    assert expand(short.text, short.layout) == str(rows)


@given(TABLES)
def test_a_value_of_python_is_restored(value: object) -> None:
    short = shorten_json(str(value))
    if short is not None:
        assert expand(short.text, short.layout) == str(value)


@pytest.mark.parametrize(
    "text",
    [
        "{'a': (1, 2), 'b':  'x'}",
        "{'a': {1, 2}}",
        "[{'a': 'never ends" + "\\'" * 200_000,
        "{'a': 1j}",
    ],
    ids=["tuple", "set", "no end", "complex"],
)
def test_other_values_of_python_stay(text: str) -> None:
    assert shorten_json(text) is None


@given(VALUES | TABLES, st.sampled_from([None, 2]))
def test_shortened_json_is_shorter_and_can_be_restored(value: object, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    short = shorten_json(text)
    if short is not None:
        assert len(short.text) < len(text)
        assert expand(short.text, short.layout) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "word",
        '"text"',
        "{not json}",
        '{"a": 1, "a": 2}',
        '{"a": 1.50, "b":   2}',
        '[{"~#1.5": 1, "b": 1.50}, {"~#1.5": 2, "b": 1.50}, {"~#1.5": 3, "b": 1.50}]',
        '{"a": -0}',
        '{"a": "\\/", "b": "/"}',
        '{"a": "\\u003c", "b": "<"}',
        '{"a": "\\u003C"}',
        '{ "odd" :1,\n "layout": 2}',
        '{"columns": [], "rows": []}',
        '{"a":1}',
        "[" * 100_000,
    ],
    ids=lambda text: text[:20],
)
def test_json_that_could_not_be_restored_stays(text: str) -> None:
    assert shorten_json(text) is None


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (
            '{ "a" : 1.50,\n "a": 1e5, "b": "x  \\" y" }',
            '{"a":1.50,"a":1e5,"b":"x  \\" y"}',
        ),
        ("[1, 2]\n", "[1,2]"),
        ("[1,2]", "[1,2]"),
        ('{"a": 1.50}\r\n\r\n{"a": "\\/"}\n', '{"a":1.50}\n{"a":"\\/"}'),
    ],
)
def test_minified_json_keeps_literals_order_and_repeated_keys(text: str, short: str) -> None:
    assert minify(text) == short


@pytest.mark.parametrize("text", ["", "[a b]", "12", "[1] and more", "[1]\n[2", "[" * 100_000])
def test_text_that_is_not_json_is_not_minified(text: str) -> None:
    assert minify(text) is None


def test_expanding_without_a_layout_gives_compact_json() -> None:
    assert expand('{"columns": ["a"], "rows": [[1], [2]]}') == '[{"a":1},{"a":2}]'


@pytest.mark.parametrize(
    "text",
    [
        'Found 2 results:\n[{"id": 1, "text": "One. Two."}, {"id": 2',
        'text": "One. Two."}, {"id": 2}]',
        'One. Two.",\n  "size": 3',
        "Got {'id': 1, 'text': 'One.'}",
        "{id: 1}",
        '["One. Two.", "Thr',
        '[[1, "a"], [2',
    ],
)
def test_json_is_known_where_it_is_cut_off_or_follows_words(text: str) -> None:
    assert holds_json(text)


@pytest.mark.parametrize(
    "text", ["", "Prose (as it is).", "[1] A note.\n[link](target)", 'He said: "no": twice.']
)
def test_prose_holds_no_json(text: str) -> None:
    assert not holds_json(text)
