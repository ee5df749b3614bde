"""Gemini's own form of schemas, OpenAPI's of 2021, as JSON Schema."""

from __future__ import annotations

from typing import Any

_COUNTS = frozenset(
    {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
)
"""Numbers of 64 bits, which the API's JSON writes as strings."""


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema as JSON Schema: types in small letters, null as a type of its own."""
    converted: dict[str, Any] = {}
    for name, value in schema.items():
        match name, value:
            case "type", str():
                converted["type"] = value.lower()
            case "properties", dict():
                converted["properties"] = {key: _inner(inner) for key, inner in value.items()}
            case "items" | "additionalProperties", _:
                converted[name] = _inner(value)
            case "anyOf" | "any_of" | "prefixItems", list():
                converted[name.replace("any_of", "anyOf")] = [_inner(inner) for inner in value]
            case ("nullable" | "propertyOrdering" | "property_ordering" | "example", _):
                continue
            case _, str() if name in _COUNTS and value.isdecimal():
                converted[name] = int(value)
            case _:
                converted[name] = value
    if schema.get("nullable") is True and isinstance(converted.get("type"), str):
        converted["type"] = [converted["type"], "null"]
    return converted


def _inner(schema: Any) -> Any:
    return json_schema(schema) if isinstance(schema, dict) else schema
