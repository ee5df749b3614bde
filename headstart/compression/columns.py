"""JSON as a table: the keys of a list of like objects are said once, not once a row.

``{"columns": ["id", "price"], "rows": [[1, 5], [2, 7]]}`` stands for
``[{"id": 1, "price": 5}, {"id": 2, "price": 7}]``, and ``rows_by_key`` for an object of like
objects. A column that holds like objects names their keys: ``{"size": ["w", "h"]}``. Both
directions keep the order of keys.
"""

from __future__ import annotations

from typing import Any

_MIN_SAVING = 24
"""Characters of keys below which a table is no shorter than what it replaces."""


def to_columns(value: Any) -> Any:
    """Return decoded JSON with each list or object of like objects turned into a table."""
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
    """Return what ``to_columns`` was given."""
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
    """Return the keys that all items share in one order, or None."""
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
    """Characters that one row spends on its keys."""
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
