"""Whether an answer keeps the ``response_format`` that was asked for."""

from __future__ import annotations

from typing import Any

import msgspec

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def breaks_format(text: str, response_format: object) -> bool:
    """Return True when ``text`` is not the JSON that was asked for.

    ``json_object`` must be a JSON object. ``json_schema`` must be JSON of the schema's top-level
    type with its required properties, each of its declared type. Deeper levels are the provider's
    word: strict mode enforces them, and other modes never promised them.
    """
    match response_format:
        case {"type": "json_object"}:
            return _breaks(text, {"type": "object"})
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return _breaks(text, schema)
        case {"type": "json_schema", "schema": dict(schema)}:
            return _breaks(text, schema)
        case {"type": "json_schema"}:
            return _breaks(text, {})
        case _:
            return False


def gemini_format(config: dict[str, Any]) -> object:
    """Return what a Gemini ``generationConfig`` asks for as a ``response_format``."""
    schema = config.get("responseJsonSchema") or config.get("responseSchema")
    if schema is None and config.get("responseMimeType") != "application/json":
        return None
    return {"type": "json_schema", "schema": schema if isinstance(schema, dict) else {}}


def _breaks(text: str, schema: dict[str, Any]) -> bool:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return True
    if not _is_of(value, schema.get("type")):
        return True
    if not isinstance(value, dict):
        return False
    required = schema.get("required")
    names = required if isinstance(required, list) else ()
    if any(isinstance(name, str) and name not in value for name in names):
        return True
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return False
    return any(
        isinstance(rule, dict) and name in value and not _is_of(value[name], rule.get("type"))
        for name, rule in properties.items()
    )


def _is_of(value: object, declared: object) -> bool:
    """Compare with a JSON Schema type or a list of them. Unknown types accept anything.

    Gemini's own schemas write types in capitals.
    """
    if isinstance(declared, list):
        return any(_is_of(value, one) for one in declared)
    declared = declared.lower() if isinstance(declared, str) else ""
    expected = _TYPES.get(declared)
    if expected is None:
        return True
    if isinstance(value, bool):
        return declared == "boolean"
    if declared == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, expected)
