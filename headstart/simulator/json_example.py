"""The simplest JSON value that a JSON Schema accepts, for tool arguments and structured output."""

from __future__ import annotations

from typing import Any

_SCALARS: dict[str, Any] = {
    "string": "example",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "null": None,
}
_MAX_DEPTH = 16
"""Below this a recursive schema is cut off with null."""


def example(schema: dict[str, Any]) -> object:
    """Return a small value for a schema: enums, objects, arrays, unions and local references."""
    return _example(schema, schema, 0)


def _example(schema: dict[str, Any], root: dict[str, Any], depth: int) -> object:
    if depth > _MAX_DEPTH:
        return None
    if "$ref" in schema:
        return _example(_resolve(schema["$ref"], root), root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            return _example(schema[union][0], root, depth + 1)
    return _of_type(schema, root, depth)


def _of_type(schema: dict[str, Any], root: dict[str, Any], depth: int) -> object:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "array":
        return [_example(schema.get("items", {}), root, depth + 1)]
    if kind != "object":
        return _SCALARS.get(kind)
    required = schema.get("required", ())
    return {
        name: _example(value, root, depth + 1)
        for name, value in schema.get("properties", {}).items()
        if name in required
    }


def _resolve(reference: str, root: dict[str, Any]) -> dict[str, Any]:
    found: Any = root
    for name in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(name, {})
    return found if isinstance(found, dict) else {}
