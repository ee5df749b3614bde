"""Schemas and names of tools that not all providers take, in translated requests."""

from __future__ import annotations

from typing import Any

import pytest

from headstart.canonical_request import portable_name
from headstart.schemas import portable_schema
from support.proxied import proxied, reply_of

TEXT = {"type": "string"}
A, B = {"a": TEXT}, {"b": TEXT}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
WHOLE = {
    "type": "object",
    "properties": {
        "type": {"type": ["string", "null"]},
        "items": {"type": "array", "items": TEXT},
        "required": {"const": True, "default": [1]},
        "when": {"anyOf": [TEXT, {"type": "integer", "exclusiveMinimum": 0}]},
    },
    "required": ["type"],
    "additionalProperties": False,
}


def of(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}}


MENDED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a usual one": (WHOLE, WHOLE),
    "nothing": ({}, NOTHING),
    "no properties": ({"type": "object"}, NOTHING),
    "no type": ({"properties": A}, {"type": "object", "properties": A}),
    "capitals": ({"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}, of(TEXT)),
    "an array of anything": (of({"type": "array"}), of({"type": "array", "items": {}})),
    "a tuple": (
        of({"type": "array", "items": [TEXT, {"type": "number"}]}),
        of({"type": "array", "items": {"anyOf": [TEXT, {"type": "number"}]}}),
    ),
    "a bound of draft 4": (
        of({"type": "number", "minimum": 0, "exclusiveMinimum": True}),
        of({"type": "number", "exclusiveMinimum": 0}),
    ),
    "an inclusive bound of draft 4": (
        of({"type": "number", "maximum": 9, "exclusiveMaximum": False}),
        of({"type": "number", "maximum": 9}),
    ),
    "a property required by itself": (of({**TEXT, "required": True}), of(TEXT)),
    "either of two": (
        {
            "oneOf": [
                {"type": "object", "properties": {**A, "c": TEXT}, "required": ["a", "c"]},
                {"type": "object", "properties": {**B, "c": TEXT}, "required": ["b", "c"]},
            ]
        },
        {"type": "object", "properties": {**A, **B, "c": TEXT}, "required": ["c"]},
    ),
    "one of its properties": (
        {
            "type": "object",
            "properties": {**A, **B},
            "required": [],
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        {"type": "object", "properties": {**A, **B}, "required": []},
    ),
    "all of two": (
        {"allOf": [{"properties": A, "required": ["a"]}, {"properties": B, "required": ["b"]}]},
        {"type": "object", "properties": {**A, **B}, "required": ["a", "b"]},
    ),
    "a reference": (
        {"$ref": "#/$defs/A", "$defs": {"A": {"properties": A, "required": ["a"]}}},
        {
            "type": "object",
            "properties": A,
            "required": ["a"],
            "$defs": {"A": {"properties": A, "required": ["a"]}},
        },
    ),
    "either of two actions": (
        {
            "oneOf": [
                {"properties": {"a": {"const": 1}}, "not": {"required": ["b"]}},
                {"properties": {"a": {"const": 2}, **B}, "additionalProperties": False},
            ]
        },
        {**of({"anyOf": [{"const": 1}, {"const": 2}]}), "required": []}
        | {"properties": {"a": {"anyOf": [{"const": 1}, {"const": 2}]}, **B}},
    ),
    "an object or null": (
        {"anyOf": [{"type": "null"}, {"type": "object", "properties": A, "required": ["a"]}]},
        {"type": "object", "properties": A, "required": ["a"]},
    ),
    "an array or null": (
        of({"type": ["array", "null"]}),
        of({"type": ["array", "null"], "items": {}}),
    ),
    "an escaped reference": (
        {"$ref": "#/definitions/A~1B%3CC%3E", "definitions": {"A/B<C>": {"properties": A}}},
        {
            "type": "object",
            "properties": A,
            "required": [],
            "definitions": {"A/B<C>": {"properties": A}},
        },
    ),
    "members of wrong types": (
        {"properties": [1], "allOf": [{"properties": True, "required": 1}, 2, {"properties": A}]},
        {"type": "object", "properties": A, "required": []},
    ),
    "a reference to itself": (
        {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}},
        {
            "type": "object",
            "properties": {},
            "required": [],
            "$defs": {"A": {"$ref": "#/$defs/A"}},
        },
    ),
}


@pytest.mark.parametrize(("schema", "sent"), MENDED.values(), ids=MENDED.keys())
def test_a_schema_gets_the_form_that_all_providers_take(
    schema: dict[str, Any], sent: dict[str, Any]
) -> None:
    first = portable_schema(schema)
    assert first is not None
    if "$ref" in first:
        del first["$ref"]
    assert first == sent
    assert portable_schema(sent) == sent


def test_references_in_circles_cost_little() -> None:
    """Each level would have a hundred times as many members as the one above it."""
    many = [{"$ref": "#/$defs/A"}] * 100
    defined = {"A": {"properties": A, "allOf": many, "anyOf": many}}
    sent = portable_schema({"$defs": defined, "$ref": "#/$defs/A"})
    assert sent == {**of(TEXT), "required": [], "$defs": defined}


def test_a_property_with_very_many_schemas_takes_any_value() -> None:
    members = [{"properties": {"a": {"const": number}}} for number in range(1_000)]
    assert portable_schema({"anyOf": members}) == {**of({}), "required": []}


def test_a_function_without_a_schema_has_none() -> None:
    assert portable_schema(None) is None


def test_gemini_takes_no_digit_at_the_start_of_a_name() -> None:
    assert portable_name("_3d") == "_3d"
    names = {portable_name(name) for name in ("3d", "-3d", "4d")}
    assert len(names) == 3
    assert all(name.startswith("_") and len(name) <= 64 for name in names)


@pytest.mark.anyio
async def test_a_tool_of_an_mcp_server_without_arguments_reaches_openai() -> None:
    tools = [{"name": "now", "input_schema": {"type": "object"}}]
    body = {"model": "m", "max_tokens": 9, "tools": tools}
    body["messages"] = [{"role": "user", "content": "Hi"}]
    async with proxied() as proxy:
        async with proxy.session.post(proxy.url + "/v1/messages", json=body) as response:
            assert (await reply_of(response)).status == 200
        [tool] = proxy.upstream.calls[0].json["tools"]
    assert tool["function"] == {"name": "now", "parameters": NOTHING}
