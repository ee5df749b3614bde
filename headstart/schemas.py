"""JSON schemas of tools and answers, in the forms that providers take.

A schema is changed in these steps:

1. ``_mended`` makes it a schema of draft 2020-12, without forms that some provider refuses.
2. ``_Union`` merges a union at the top of a tool's arguments into one object.
3. ``_References`` makes each reference lead to a schema that still exists.

For example, ``{"anyOf": [{"properties": {"id": A}}, {"properties": {"name": B}}]}`` becomes
``{"type": "object", "properties": {"id": A, "name": B}, "required": []}``: no property is required,
because each member of the union lacks one of them.

The functions at the end write the form that only one API wants: OpenAI's strict mode
(``fits_strict``), Anthropic's and Bedrock's (``closed_schema``), and Gemini's.
"""

from __future__ import annotations

import re
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from headstart.types import words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_DEEPEST_UNION, _LARGEST_UNION, _OPTIONS, _LONGEST_PATH = 8, 20_000, 256, 1_000
"""Limits of what is merged: levels, size, schemas of a property, characters of a reference."""
_NO_OBJECTS = ("string", "number", "integer", "boolean", "array", "null")
_TYPES = (*_NO_OBJECTS, "object")
_NO_ARRAYS = frozenset(_TYPES) - {"array"}
_UNIONS = ("allOf", "anyOf", "oneOf")
_MERGED = frozenset((*_UNIONS, "$ref", "properties", "required"))
_NOT_AT_TOP = frozenset(("not", "enum"))
# Keywords by the form of their value: schemas by name, a list of schemas, or one schema.
_MAPS = words_of("properties patternProperties $defs definitions dependentSchemas dependencies")
_LISTS = frozenset((*_UNIONS, "prefixItems"))
_OPEN = words_of("additionalProperties unevaluatedProperties unevaluatedItems")
"""Keywords whose schema may be true or false for all providers."""
_SCHEMAS = _OPEN | words_of("items not contains if then else propertyNames")
_PLAIN = _OPEN | words_of("type properties description default title items minLength maxLength")
"""Keywords that need no change. Most schemas have only these, and a type."""
_ANY_VALUE = words_of("default const example")
_NO_PATTERN = re.compile(r"\(\?<?[=!]|\\[1-9]|\\k<")
"""Matches lookarounds and back references, which OpenAI refuses in a pattern."""


def portable_schema(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the schema of a function's arguments in a form that all providers take.

    OpenAI wants an object with ``properties`` and no union at the top, and ``items`` in each array;
    Anthropic wants draft 2020-12, and Bedrock a type. A union at the top becomes one object with
    the properties of all its members.
    """
    if schema is None:
        return None
    references: list[dict[str, Any]] = []
    top = mended = _mended(schema, references)
    if "$ref" in top or not top.keys().isdisjoint(_UNIONS):
        top = _Union(top).merged()
    top = {name: value for name, value in top.items() if name not in _NOT_AT_TOP}
    if top.get("type") != "object":
        top = {**top, "type": "object"}
    top = top if isinstance(top.get("properties"), dict) else {**top, "properties": {}}
    return _References(top, mended).mend() if references else top


def portable_answer(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the schema of an answer, which may be any value, in a form of draft 2020-12."""
    if schema is None:
        return None
    references: list[dict[str, Any]] = []
    mended = _mended(schema, references)
    return _References(mended, mended).mend() if references else mended


class _Union:
    """Makes one object of a schema with a reference or unions at its top.

    Members that are too deep or too many are left out: references may form a circle.
    """

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._left = _LARGEST_UNION
        """How much more may be merged."""
        self._keywords: dict[str, Any] = {}
        """The keywords that hold for all values, such as a description."""
        self._properties: dict[str, dict[bytes, Any]] = {}
        """The different schemas of each property, by their texts."""
        self._encoded: dict[int, bytes] = {}
        """The texts of schemas, by the schema's ``id``."""

    def merged(self) -> dict[str, Any]:
        """Return the object. A property that differs between members takes the values of each."""
        needed = self._collect(self._root, (), is_option=False)
        properties = {
            name: _any_of(list(known.values())) for name, known in self._properties.items()
        }
        required = [name for name in properties if name in needed]
        return {**self._keywords, "properties": properties, "required": required}

    def _collect(
        self, schema: dict[str, Any], outer: tuple[dict[str, Any], ...], *, is_option: bool
    ) -> set[str]:
        """Keep what a schema says, and return the names of the properties that it requires.

        ``outer`` has the properties of the schemas around it, which count more. With ``is_option``
        it is one of several schemas of which a value must fit only one.
        """
        properties = _dict(schema.get("properties"))
        for name, value in properties.items():
            known = self._properties.setdefault(name, {})
            if len(known) <= _OPTIONS and not any(name in each for each in outer):
                known.setdefault(self._text(value), value)
        if not is_option:
            for name, value in schema.items():
                if name not in _MERGED:
                    self._keywords.setdefault(name, value)
        needed = set(_listed(schema.get("required"), str))
        if len(outer) > _DEEPEST_UNION:
            return needed
        inner = (*outer, properties)
        members = _listed(schema.get("allOf"), dict) + _referred(schema.get("$ref"), self._root)
        needed = needed.union(*self._collect_each(members, inner, is_option=is_option))
        for name in ("anyOf", "oneOf"):
            options = _listed(schema.get(name), dict)
            options = [each for each in options if each.get("type") not in _NO_OBJECTS]
            several = len(options) > 1
            found = self._collect_each(options, inner, is_option=is_option or several)
            if found:
                needed |= set.intersection(*found)
        return needed

    def _collect_each(
        self, members: list[Any], outer: tuple[dict[str, Any], ...], *, is_option: bool
    ) -> list[set[str]]:
        found = []
        for schema in members:
            if self._left > 0:
                sizes = [len(each) for each in schema.values() if isinstance(each, dict | list)]
                self._left -= 1 + len(schema) + sum(sizes)
                found.append(self._collect(schema, outer, is_option=is_option))
        return found

    def _text(self, value: Any) -> bytes:
        """Return the text of a schema, which tells it from others. In Python, 1 is True."""
        if id(value) not in self._encoded:
            self._encoded[id(value)] = msgspec.json.encode(value)
        return self._encoded[id(value)]


def _any_of(schemas: list[Any]) -> Any:
    """Return a schema for the values of all these. If they are too many, it takes any value."""
    if len(schemas) == 1:
        return schemas[0]
    return {"anyOf": schemas} if len(schemas) <= _OPTIONS else {}


def _referred(reference: Any, root: dict[str, Any], *, tuples: bool = True) -> list[dict[str, Any]]:
    """Return the schema that a reference within ``root`` names, if there is one.

    With ``tuples`` it may name a place of a tuple, which is a member of a union now.
    """
    if not isinstance(reference, str) or reference[:2] != "#/" or len(reference) > _LONGEST_PATH:
        return []
    found: Any = root
    for name in unquote(reference[2:]).split("/"):
        if tuples and isinstance(found, dict) and name.isdecimal() and name not in found:
            found = found.get("anyOf")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            found = _dict(found).get(name.replace("~1", "/").replace("~0", "~"))
    return _listed([found], dict)


class _References:
    """Makes each reference within ``top`` lead to a schema. Changes ``top``.

    Servers write references to members of a union, which is merged now, and references to schemas
    that do not exist. Providers refuse both. ``root`` is the schema before the merge: a schema that
    only ``root`` has is put under ``$defs``. A reference to no schema is removed.
    """

    def __init__(self, top: dict[str, Any], root: dict[str, Any]) -> None:
        self._top = top
        self._root = root
        self._waiting = [top]
        """The schemas whose references are yet to be mended."""
        self._targets: dict[str, str | None] = {}
        """The reference to write for each one that was met; None: it is removed."""
        self._left = _LARGEST_UNION
        """The bytes that may still be put under ``$defs``."""
        self._named: dict[str, Any] | None = None
        """The new ``$defs`` of ``top``; None: they are unchanged."""
        self._names = map("part_{}".format, count())

    def mend(self) -> dict[str, Any]:
        """Mend all references, and return the schema."""
        while self._waiting:
            schema = self._waiting.pop()
            self._waiting += inner_schemas(schema)
            reference = schema.get("$ref")
            if not isinstance(reference, str) or reference[:2] != "#/":
                continue
            if reference not in self._targets:
                self._targets[reference] = self._target(reference)
            target = self._targets[reference]
            if target is None:
                del schema["$ref"]
            else:
                schema["$ref"] = target
        return self._top

    def _target(self, reference: str) -> str | None:
        if _referred(reference, self._top, tuples=False):
            return reference
        found = _referred(reference, self._root) if self._left > 0 else []
        self._left -= sum(len(msgspec.json.encode(each)) for each in found)
        return self._put(found[0]) if found and self._left >= 0 else None

    def _put(self, schema: dict[str, Any]) -> str:
        """Put a schema under ``$defs``, and return a reference to it."""
        if self._named is None:
            # A new object, because the schema may hold the old one.
            self._named = self._top["$defs"] = {**_dict(self._top.get("$defs"))}
        name = next(each for each in self._names if each not in self._named)
        self._named[name] = schema
        self._waiting.append(schema)
        return f"#/$defs/{name}"


def inner_schemas(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the schemas directly in a schema."""
    for name, value in schema.items():
        inner: Iterable[Any] = ()
        if name in _MAPS:
            inner = _dict(value).values()
        elif name in _LISTS:
            inner = value if isinstance(value, list) else ()
        elif name in _SCHEMAS:
            inner = (value,)
        for each in inner:
            if isinstance(each, dict):
                yield each


def _mended(schema: Any, references: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a new schema of draft 2020-12. A value that is no schema becomes one for any value.

    Anthropic refuses forms of older drafts, OpenAI and Gemini some that are valid. Adds schemas
    with a reference to ``references``.
    """
    if schema is False:
        return {"not": {}}
    mended: dict[str, Any] = {}
    for name, value in _dict(schema).items():
        if name in _MAPS:
            if isinstance(value, dict):
                # A list is no schema. It names properties, in ``dependencies``.
                mended[name] = {
                    key: each if isinstance(each, list) else _mended(each, references)
                    for key, each in value.items()
                }
        elif name in _LISTS:
            if isinstance(value, list) and value:
                mended[name] = [_mended(each, references) for each in value]
        elif name == "items" and isinstance(value, list):  # a tuple, in older drafts
            mended[name] = {"anyOf": [_mended(each, references) for each in value]} if value else {}
        elif name in _SCHEMAS:
            if isinstance(value, dict | bool):
                is_open = isinstance(value, bool) and name in _OPEN
                mended[name] = value if is_open else _mended(value, references)
        elif value is not None or name in _ANY_VALUE:
            mended[name] = value
    _mend_values(mended)
    if "$ref" in mended:
        references.append(mended)
    return _with_plain_unions(mended)


def _mend_values(mended: dict[str, Any]) -> None:
    """Mend the keywords of a schema that are no schemas, in place."""
    if "type" in mended:
        _mend_type(mended)
    if _PLAIN.issuperset(mended):
        return
    for bound, beyond in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(excludes := mended.get(beyond), bool):
            del mended[beyond]
            if excludes and bound in mended:
                mended[beyond] = mended.pop(bound)
    if "required" in mended:
        if isinstance(mended["required"], list):
            mended["required"] = list(dict.fromkeys(_listed(mended["required"], str)))
        else:
            del mended["required"]
    if "enum" in mended:
        values = mended["enum"] if isinstance(mended["enum"], list) else []
        if not all(type(each) is str for each in values) or len(set(values)) < len(values):
            values = list({msgspec.json.encode(each): each for each in values}.values())
        mended["enum"] = values
        if not values:
            del mended["enum"]
    pattern = mended.get("pattern", "")
    if not isinstance(pattern, str) or _NO_PATTERN.search(pattern):
        del mended["pattern"]


def _mend_type(mended: dict[str, Any]) -> None:
    """Leave out types that JSON does not have, in place, and give each array ``items``."""
    told = mended["type"]
    if isinstance(told, str) and told in _NO_ARRAYS:
        return
    named = told if isinstance(told, list) else [told]
    kinds = dict.fromkeys(each.lower() for each in named if isinstance(each, str))
    known = [kind for kind in kinds if kind in _TYPES]
    if known:
        mended["type"] = known if isinstance(told, list) else known[0]
    else:
        del mended["type"]
    if "array" in known:
        mended.setdefault("items", {})


def _with_plain_unions(mended: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with ``anyOf`` for other unions where it means the same or more.

    Gemini refuses a reference with something beside it, and reads no ``allOf``. OpenAI's strict
    mode refuses all three.
    """
    if "anyOf" in mended or _PLAIN.issuperset(mended):
        return mended
    if "$ref" in mended and any(name[:1] != "$" and name != "definitions" for name in mended):
        return {"anyOf": [{"$ref": mended.pop("$ref")}], **mended}
    union = "oneOf" if "oneOf" in mended else "allOf"
    if union == "oneOf" or len(mended.get("allOf", ())) == 1:
        return {"anyOf" if name == union else name: value for name, value in mended.items()}
    return mended


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _listed(value: Any, kind: type) -> list[Any]:
    return [each for each in value if isinstance(each, kind)] if isinstance(value, list) else []


# --- forms of one API -----------------------------------------------------------------------------

_NOT_STRICT = words_of(
    "allOf oneOf not if then else dependentRequired dependentSchemas dependencies default"
    " patternProperties unevaluatedProperties propertyNames minProperties maxProperties"
    " unevaluatedItems contains minContains maxContains uniqueItems prefixItems"
)
_STRICT_FORMATS = words_of("date-time time date duration email hostname ipv4 ipv6 uuid")
_CLOSED = words_of(
    "type properties required items anyOf allOf enum const title description default format"
    " minItems additionalProperties definitions $defs $ref"
)
_CLOSED_FORMATS = _STRICT_FORMATS | {"uri"}


def fits_strict(schema: dict[str, Any]) -> bool:
    """Tell whether OpenAI accepts this schema in its strict mode.

    It refuses a schema with an object that is open or has an optional property, a schema without a
    type, and many keywords.
    """
    return schema.get("type") == "object" and "anyOf" not in schema and _fits_strict(schema)


def _fits_strict(schema: dict[str, Any]) -> bool:
    if not _NOT_STRICT.isdisjoint(schema) or schema.keys().isdisjoint(("type", "$ref", "anyOf")):
        return False
    if "format" in schema and schema["format"] not in _STRICT_FORMATS:
        return False
    if "$ref" in schema and any(name[:1] != "$" for name in schema):
        return False
    if schema.get("type") == "object" or "properties" in schema:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if schema.get("additionalProperties") is not False or not (
            isinstance(properties, dict) and isinstance(required, list)
        ):
            return False
        if any(name not in required for name in properties):
            return False
    return all(map(_fits_strict, inner_schemas(schema)))


def closed_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in the form that Anthropic and Bedrock follow strictly.

    They accept only closed objects and few keywords. The description of a schema tells the model
    the other keywords, as the libraries of Anthropic do it.
    """
    told = {
        name: value
        for name, value in schema.items()
        if name not in _CLOSED
        or (name == "format" and value not in _CLOSED_FORMATS)
        or (name == "minItems" and value not in (0, 1))
        or (name == "additionalProperties" and isinstance(value, dict))
    }
    kept = {name: value for name, value in schema.items() if name not in told}
    closed = _with_inner(kept, closed_schema)
    closed.pop("additionalProperties", None)
    kind = closed.get("type")
    if kind == "object" or "properties" in closed or (isinstance(kind, list) and "object" in kind):
        closed["additionalProperties"] = False
    if told := {name: value for name, value in told.items() if name[:1] != "$"}:
        about = msgspec.json.encode(told).decode()
        said = closed.get("description")
        closed["description"] = f"{said}\n\n{about}" if said else about
    return closed


def is_closed(schema: dict[str, Any]) -> bool:
    """Tell whether Anthropic and Bedrock follow this schema strictly."""
    return closed_schema(schema) == schema


def schema_for_gemini(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that Gemini reads as others do.

    It takes no notice of ``const``, nor of values without a type. It takes values that are texts
    or numbers, no empty text, and no required property that has no schema.
    """
    inner = _with_inner(schema, schema_for_gemini)
    if "const" in inner:
        inner.setdefault("enum", [inner.pop("const")])
    values = [value for value in inner.pop("enum", ()) if value is not None]
    if values and all(value and type(value) is str for value in values):
        inner = {"type": "string", **inner, "enum": values}
    elif values and all(type(value) in (int, float) for value in values):
        inner = {"type": "number", **inner, "enum": values}
    if "required" in inner:
        properties = _dict(inner.get("properties"))
        inner["required"] = [name for name in inner["required"] if name in properties]
    return inner


def _with_inner(
    schema: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Return a copy of a schema with changed schemas in it."""
    changed = dict(schema)
    for name, value in schema.items():
        if name in _SCHEMAS and isinstance(value, dict):
            changed[name] = change(value)
        elif name in _MAPS and isinstance(value, dict):
            changed[name] = {
                key: change(each) if isinstance(each, dict) else each for key, each in value.items()
            }
        elif name in _LISTS and isinstance(value, list):
            changed[name] = [change(each) if isinstance(each, dict) else each for each in value]
    return changed
