from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.compression.lossless import from_columns, to_columns

KEYS = st.sampled_from(["identifier", "description", "a", "", "ключ"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.lists(st.fixed_dictionaries({"identifier": inner, "description": inner}), max_size=5)
    ),
    max_leaves=30,
)


@given(VALUES)
def test_tables_give_back_what_they_were_made_from_in_order(value: object) -> None:
    assert json.dumps(from_columns(to_columns(value))) == json.dumps(value)


def test_keys_of_like_objects_are_said_once() -> None:
    rows = [{"identifier": n, "description": "x"} for n in range(3)]
    table = {"columns": ["identifier", "description"], "rows": [[0, "x"], [1, "x"], [2, "x"]]}
    assert to_columns(rows) == table


def test_tables_lie_within_lists_and_objects() -> None:
    rows = [{"identifier": n, "description": [[n], {"a": n}]} for n in range(3)]
    value = {"found": [rows, "x"], "count": 3}
    assert "columns" in to_columns(value)["found"][0]
    assert from_columns(to_columns(value)) == value


def test_object_of_like_objects_keeps_its_keys() -> None:
    value = {"k1": {"identifier": 1, "description": 2}, "k2": {"identifier": 3, "description": 4}}
    assert to_columns(value) == {
        "columns": ["identifier", "description"],
        "rows_by_key": {"k1": [1, 2], "k2": [3, 4]},
    }


def test_nested_like_objects_name_their_keys_in_the_column() -> None:
    rows = [{"identifier": n, "measurements": {"width": n, "height": 2}} for n in range(2)]
    table = {
        "columns": ["identifier", {"measurements": ["width", "height"]}],
        "rows": [[0, [0, 2]], [1, [1, 2]]],
    }
    assert to_columns(rows) == table
    assert from_columns(table) == rows


def test_a_key_that_some_objects_lack_has_a_column_of_its_own() -> None:
    rows = [{"identifier": n, "note": "late", "owner": "Ada"} for n in range(4)]
    del rows[1]["note"], rows[3]["owner"]
    table = {
        "columns": ["identifier", "note?", "owner?"],
        "rows": [[0, "late", "Ada"], [1, None, "Ada"], [2, "late", "Ada"], [3, "late", None]],
    }
    assert to_columns(rows) == table
    assert list(map(list, from_columns(table))) == list(map(list, rows))


@pytest.mark.parametrize(
    "odd",
    [
        {"identifier": 9, "note": None},
        {"note": "x", "identifier": 9},
        {"identifier": 9, "note?": 1},
    ],
    ids=["null", "other order", "a key with the sign"],
)
def test_a_key_that_is_lacking_is_never_taken_for_another_thing(odd: dict[str, object]) -> None:
    rows = [{"identifier": n, "note": "late"} for n in range(9)]
    value = [*rows, {"identifier": 7}, odd]
    assert to_columns(value) == value


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"identifier": 1, "description": 2}],
        [{"identifier": 1, "description": 2}, {"description": 2, "identifier": 1}],
        [{"identifier": 1, "description": 2}, {"identifier": 1}],
        [{"identifier": 1, "description": 2}, 3],
        [{}, {}],
        [{"a": 1}, {"a": 2}],
    ],
    ids=["none", "one", "other order", "key missing", "not an object", "empty", "no shorter"],
)
def test_objects_with_different_keys_are_not_made_columns(rows: list[object]) -> None:
    assert to_columns(rows) == rows
