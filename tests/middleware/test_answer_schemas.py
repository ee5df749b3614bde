"""Schemas of answers, and of tools that are followed strictly, at providers of other dialects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headstart.schemas import closed_schema, fits_strict, portable_answer, schema_for_gemini
from support.proxied import proxied, reply_of

TEXT: dict[str, Any] = {"type": "string"}
EMAIL = {**TEXT, "format": "email", "pattern": "^(?!\\.).+@.+$"}
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "mail": EMAIL,
        "age": {"type": "integer", "minimum": 0, "description": "In years."},
        "pets": {"type": "array", "items": {"$ref": "#/$defs/pet"}, "maxItems": 9, "minItems": 2},
    },
    "required": ["mail"],
    "$defs": {"pet": {"oneOf": [{"properties": {"name": TEXT}}, {"type": "null"}]}},
}
CLOSED = {
    "type": "object",
    "properties": {
        "mail": {**TEXT, "format": "email"},
        "age": {"type": "integer", "description": 'In years.\n\n{"minimum":0}'},
        "pets": {
            "type": "array",
            "items": {"$ref": "#/$defs/pet"},
            "description": '{"maxItems":9,"minItems":2}',
        },
    },
    "required": ["mail"],
    "$defs": {
        "pet": {
            "anyOf": [
                {"properties": {"name": TEXT}, "additionalProperties": False},
                {"type": "null"},
            ]
        }
    },
    "additionalProperties": False,
}


async def sent_by_gemini(dialect: str, schema: dict[str, Any]) -> Any:
    """Return the request that a provider gets if a client of Gemini wants an answer in a form."""
    config = {"responseMimeType": "application/json", "responseJsonSchema": schema}
    body = {
        "contents": [{"role": "user", "parts": [{"text": "Who?"}]}],
        "generationConfig": config,
    }
    async with proxied(provider={"dialect": dialect}) as proxy:
        url = proxy.url + "/v1beta/models/m:generateContent"
        async with proxy.session.post(url, json=body) as response:
            await reply_of(response)
        return proxy.upstream.calls[0].json


@pytest.mark.anyio
async def test_claude_gets_closed_objects_and_the_keywords_that_it_takes() -> None:
    """Anthropic answers 400 to other schemas of answers."""
    sent = await sent_by_gemini("anthropic", PERSON)
    assert sent["output_config"]["format"] == {"type": "json_schema", "schema": CLOSED}


@pytest.mark.anyio
async def test_bedrock_gets_closed_objects_too() -> None:
    sent = await sent_by_gemini("bedrock", PERSON)
    told = sent["outputConfig"]["textFormat"]["structure"]["jsonSchema"]["schema"]
    assert json.loads(told) == CLOSED


@pytest.mark.anyio
async def test_openai_gets_no_pattern_that_looks_ahead() -> None:
    sent = await sent_by_gemini("openai", PERSON)
    told = sent["response_format"]["json_schema"]["schema"]
    assert told["properties"]["mail"] == {**TEXT, "format": "email"}
    assert told["properties"]["age"] == PERSON["properties"]["age"]


def test_a_closed_schema_stays_as_it_is() -> None:
    assert closed_schema(CLOSED) == CLOSED


def test_a_map_is_told_in_words() -> None:
    values = {"type": ["object", "null"], "additionalProperties": TEXT, "$schema": "draft-07"}
    told = '{"additionalProperties":{"type":"string"}}'
    assert closed_schema(values) == {
        "type": ["object", "null"],
        "additionalProperties": False,
        "description": told,
    }


def test_a_schema_without_a_type_is_no_object() -> None:
    assert closed_schema({"additionalProperties": True, "enum": [1]}) == {"enum": [1]}


@pytest.mark.parametrize("keyword", ["not", "additionalProperties", "items", "contains"])
def test_a_closed_schema_is_hardly_longer(keyword: str) -> None:
    """Each level has the levels below it in its description, which must not have theirs again."""
    schema: dict[str, Any] = TEXT
    for _ in range(60):
        schema = {keyword: schema}
    assert len(json.dumps(closed_schema(schema))) < 2 * len(json.dumps(schema)) + 100


def test_an_answer_may_be_any_value() -> None:
    several = {"type": "array", "items": {"type": "STRING"}}
    assert portable_answer(several) == {"type": "array", "items": TEXT}
    assert portable_answer(None) is None


# --- OpenAI's strict mode ------------------------------------------------------------------------


def strictly(schema: Any, **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"a": schema},
        "required": ["a"],
        "additionalProperties": False,
        **more,
    }


@pytest.mark.parametrize(
    "schema",
    [
        strictly(TEXT),
        strictly({"$ref": "#/$defs/a"}, **{"$defs": {"a": TEXT}}),
        strictly({"anyOf": [TEXT, {"type": "null"}], "description": "It."}),
        strictly({"type": "array", "items": strictly(TEXT), "minItems": 1}),
        strictly({**TEXT, "format": "date"}),
        strictly(
            strictly(TEXT), properties={"default": TEXT, "not": TEXT}, required=["default", "not"]
        ),
        strictly(TEXT, properties={"properties": TEXT}, required=["properties"]),
    ],
)
def test_openai_follows_these_schemas_strictly(schema: dict[str, Any]) -> None:
    assert fits_strict(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "array", "items": TEXT},
        strictly({}),
        strictly({"enum": ["a"]}),
        strictly({**TEXT, "format": "uri"}),
        strictly({**TEXT, "default": "a"}),
        strictly({"type": "array", "items": {}}),
        strictly({"type": "array", "items": TEXT, "uniqueItems": True}),
        strictly({"$ref": "#/$defs/a", "description": "It."}, **{"$defs": {"a": TEXT}}),
        strictly({"allOf": [TEXT, TEXT]}),
        strictly({"type": "object", "properties": {"b": TEXT}, "required": ["b"]}),
        strictly(TEXT, required=[]),
        strictly(TEXT, anyOf=[{"type": "object"}]),
        strictly(TEXT, **{"$defs": {"a": {}}}),
    ],
)
def test_openai_follows_no_other_schemas_strictly(schema: dict[str, Any]) -> None:
    assert not fits_strict(schema)


@pytest.mark.anyio
@pytest.mark.parametrize(("schema", "strict"), [(TEXT, True), ({**TEXT, "maxLength": 9}, None)])
async def test_claude_follows_a_tool_strictly_if_it_takes_its_schema(
    schema: dict[str, Any], strict: bool | None
) -> None:
    function = {"name": "look", "parameters": strictly(schema), "strict": True}
    async with proxied(provider={"dialect": "anthropic"}) as proxy:
        await proxy.ask(tools=[{"type": "function", "function": function}])
        [tool] = proxy.upstream.calls[0].json["tools"]
    assert tool.get("strict") is strict
    assert tool["input_schema"] == strictly(schema)


# --- Gemini --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        ({"const": "page"}, {"type": "string", "enum": ["page"]}),
        ({"const": 2}, {"type": "number", "enum": [2]}),
        ({"type": "integer", "enum": [1, 2]}, {"type": "integer", "enum": [1, 2]}),
        ({"enum": ["a", "b"]}, {"type": "string", "enum": ["a", "b"]}),
        (
            {"type": ["string", "null"], "enum": ["a", None]},
            {"type": ["string", "null"], "enum": ["a"]},
        ),
        ({"const": True, "type": "boolean"}, {"type": "boolean"}),
        ({"type": "string", "enum": ["", "a"]}, {"type": "string"}),
        ({"enum": ["a", 1]}, {}),
        (
            {"anyOf": [{"required": ["a"]}, {"properties": {"const": {"const": "a"}}}]},
            {
                "anyOf": [
                    {"required": []},
                    {"properties": {"const": {"type": "string", "enum": ["a"]}}},
                ]
            },
        ),
    ],
)
def test_gemini_gets_values_as_it_reads_them(schema: dict[str, Any], sent: dict[str, Any]) -> None:
    before = json.dumps(schema)
    assert schema_for_gemini(schema) == sent
    assert schema_for_gemini(sent) == sent
    assert json.dumps(schema) == before


@pytest.mark.anyio
async def test_a_tool_with_one_schema_for_each_action_reaches_gemini() -> None:
    members = [{"properties": {"action": {"const": name}}} for name in ("add", "drop")]
    function = {"name": "edit", "parameters": {"type": "object", "oneOf": members}}
    async with proxied(provider={"dialect": "gemini"}) as proxy:
        await proxy.ask(tools=[{"type": "function", "function": function}])
        [tool] = proxy.upstream.calls[0].json["tools"]
    schema = tool["functionDeclarations"][0]["parametersJsonSchema"]
    values = [{"type": "string", "enum": [name]} for name in ("add", "drop")]
    assert schema["properties"]["action"] == {"anyOf": values}
