"""JSON schemas of tools and answers, in the forms that providers take."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

_DEEPEST_UNION, _LARGEST_UNION, _OPTIONS, _LONGEST_PATH = 8, 20_000, 256, 1_000
"""Limits of what is merged: levels, size, schemas of a property, characters of a reference."""
_NO_OBJECTS = ("string", "number", "integer", "boolean", "array", "null")
_TYPES = (*_NO_OBJECTS, "object")
_UNIONS = ("allOf", "anyOf", "oneOf")
_MERGED = frozenset((*_UNIONS, "$ref", "properties", "required"))
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMAS = ("items", "additionalProperties", "not", "contains", "if", "then", "else", *_UNIONS)


def portable_schema(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the schema of a function's arguments in a form that all providers take.

    OpenAI wants an object with ``properties`` and no union at the top, and ``items`` in each array;
    Anthropic wants draft 2020-12, and Bedrock a type. A union at the top becomes one object with
    the properties of all its members.
    """
    if schema is None:
        return None
    top = _mended(schema)
    if "$ref" in top or not top.keys().isdisjoint(_UNIONS):
        top = _Union(top).merged()
    if top.get("type") != "object":
        top = {**top, "type": "object"}
    return top if isinstance(top.get("properties"), dict) else {**top, "properties": {}}


class _Union:
    """Makes one object of a schema with a reference or unions at its top.

    Members that are too deep or too many are left out: references may form a circle.
    """

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._left = _LARGEST_UNION
        self._keywords: dict[str, Any] = {}
        self._properties: dict[str, list[Any]] = {}

    def merged(self) -> dict[str, Any]:
        """Return the object. A property that differs between members takes the values of each."""
        needed = self._collect(self._root, (), is_option=False)
        properties = {
            name: each[0] if len(each) == 1 else {"anyOf": each} if len(each) <= _OPTIONS else {}
            for name, each in self._properties.items()
        }
        required = [name for name in properties if name in needed]
        return {**self._keywords, "properties": properties, "required": required}

    def _collect(
        self, schema: dict[str, Any], outer: tuple[dict[str, Any], ...], *, is_option: bool
    ) -> set[str]:
        """Keep what a schema says, and return the names of the properties that it requires.

        ``outer`` has the properties of the schemas around it, which count more.
        """
        sizes = [len(each) for each in schema.values() if isinstance(each, dict | list)]
        self._left -= (1 + len(schema) + sum(sizes)) * bool(outer)
        properties = _dict(schema.get("properties"))
        for name, value in properties.items():
            known = self._properties.setdefault(name, [])
            if len(known) <= _OPTIONS and not any(name in each for each in outer):
                known += [value] * (value not in known)
        for name, value in () if is_option else schema.items():
            if name not in _MERGED:
                self._keywords.setdefault(name, value)
        needed = set(_listed(schema.get("required"), str))
        for name in _UNIONS:
            members = _listed(schema.get(name), dict)
            if name == "allOf":
                members += _referred(schema.get("$ref"), self._root)
            else:
                members = [each for each in members if each.get("type") not in _NO_OBJECTS]
            optional = is_option or (name != "allOf" and len(members) > 1)
            found = [
                self._collect(each, (*outer, properties), is_option=optional)
                for each in members
                if len(outer) <= _DEEPEST_UNION and self._left > 0
            ]
            if found:
                needed |= (set.union if name == "allOf" else set.intersection)(*found)
        return needed


def _referred(reference: Any, root: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the schema that a reference within ``root`` names, if there is one."""
    if not isinstance(reference, str) or reference[:2] != "#/" or len(reference) > _LONGEST_PATH:
        return []
    found: Any = root
    for name in unquote(reference[2:]).split("/"):
        found = _dict(found).get(name.replace("~1", "/").replace("~0", "~"))
    return _listed([found], dict)


def _mended(schema: Any) -> Any:
    """Return a schema without forms of older drafts, which Anthropic refuses."""
    if isinstance(schema, list):
        return [_mended(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    mended = {
        name: {key: _mended(each) for key, each in value.items()}
        if name in _MAPS and isinstance(value, dict)
        else _mended(value)
        if name in _SCHEMAS
        else value
        for name, value in schema.items()
    }
    kind = mended.get("type")
    if isinstance(kind, str) and kind.lower() in _TYPES:
        kind = mended["type"] = kind.lower()
    if isinstance(mended.get("items"), list):
        mended["items"] = {"anyOf": mended["items"]} if mended["items"] else {}
    elif kind == "array" or (isinstance(kind, list) and "array" in kind):
        mended.setdefault("items", {})
    for bound, beyond in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(excludes := mended.get(beyond), bool):
            del mended[beyond]
            if excludes and bound in mended:
                mended[beyond] = mended.pop(bound)
    if "required" in mended and not isinstance(mended["required"], list):
        del mended["required"]
    return mended


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _listed(value: Any, kind: type) -> list[Any]:
    return [each for each in value if isinstance(each, kind)] if isinstance(value, list) else []


def fits_strict(schema: Any) -> bool:
    """Tell whether OpenAI accepts this schema in its strict mode.

    It refuses a schema with an object that is open or has an optional property.
    """
    if isinstance(schema, list):
        return all(map(fits_strict, schema))
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if schema.get("additionalProperties") is not False or not (
            isinstance(properties, dict) and isinstance(required, list)
        ):
            return False
        if any(name not in required for name in properties):
            return False
    return all(map(fits_strict, schema.values()))
