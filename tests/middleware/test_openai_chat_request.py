from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.errors import InvalidRequest

DIALECT = OPENAI_CHAT
HELLO = [{"role": "user", "content": "Hello"}]


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": HELLO, **fields}).encode()


MALFORMED = {
    "empty body": (b"", "the body is empty"),
    "white space": (b" \r\n", "the body is empty"),
    "not JSON": (b"model=m", "JSON"),
    "truncated": (body()[:-1], "JSON"),
    "trailing garbage": (body() + b"x", "JSON"),
    "not a number": (b'{"model":"m","messages":[],"temperature":NaN}', "JSON"),
    "invalid UTF-8": (b'{"model":"\xff","messages":[]}', "UTF-8"),
    "half a surrogate pair": (b'{"model":"m","messages":[],"user":"\\ud83d"}', "JSON"),
    "UTF-16": (body().decode().encode("utf-16"), "JSON"),
    "an array": (b"[]", "object"),
    "a string": (b'"hi"', "object"),
    "null": (b"null", "object"),
    "nested a million deep": (b"[" * 1_000_000, "deep"),
    "nested 200 deep": (body(metadata=json.loads("[" * 200 + "]" * 200)), "deep"),
    "no model": (b'{"messages":[]}', "model:"),
    "model is a number": (body(model=3), "model:"),
    "model is empty": (body(model=""), "model:"),
    "no messages": (b'{"model":"m"}', "messages:"),
    "messages is an object": (body(messages={}), "messages:"),
    "a message is a string": (body(messages=[*HELLO, "x"]), r"messages\[1\]:"),
    "stream is a string": (body(stream="true"), "stream:"),
    "stream is a number": (body(stream=1), "stream:"),
    "stream_options is a list": (body(stream_options=[]), "stream_options:"),
    "include_usage is a number": (body(stream_options={"include_usage": 1}), "include_usage:"),
    "n is a string": (body(n="2"), "n:"),
    "n is a boolean": (body(n=True), "n:"),
    "n is a fraction": (body(n=1.5), "n:"),
    "n is zero": (body(n=0), "n:"),
    "max_tokens is a string": (body(max_tokens="9"), "max_tokens:"),
    "max_completion_tokens is a list": (body(max_completion_tokens=[]), "max_completion_tokens:"),
    "logprobs is a string": (body(logprobs="yes"), "logprobs:"),
    "user is a number": (body(user=1), "user:"),
    "safety_identifier is an object": (body(safety_identifier={}), "safety_identifier:"),
}


@pytest.mark.parametrize(("raw", "field"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_request_is_refused_by_name(raw: bytes, field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        DIALECT.parse_request(raw)


def test_fields_that_are_not_read_may_have_any_type() -> None:
    odd = body(temperature="hot", tools=7, unheard_of={"a": [None]}, messages=[{}])
    assert DIALECT.parse_request(odd).document["unheard_of"] == {"a": [None]}


def test_fields_are_read() -> None:
    request = DIALECT.parse_request(
        body(
            stream=True,
            stream_options={"include_usage": True},
            n=2,
            max_tokens=5,
            max_completion_tokens=7,
            logprobs=True,
            user="u",
        )
    )
    assert (request.model, request.stream, request.include_usage) == ("m", True, True)
    assert (request.choices, request.max_tokens, request.logprobs) == (2, 7, True)
    assert (request.user, request.query, request.duplicate_keys) == ("u", "Hello", False)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_negative_limit_is_none(name: str) -> None:
    """Servers such as llama.cpp's and LM Studio take -1 for no limit."""
    assert DIALECT.parse_request(body(**{name: -1})).max_tokens is None


def test_a_field_that_is_null_counts_as_absent() -> None:
    nulls = dict.fromkeys(("stream", "stream_options", "n", "max_tokens", "logprobs", "user"))
    assert DIALECT.parse_request(body(**nulls)).choices == 1


def test_user_and_safety_identifier_both_divide_the_scope() -> None:
    def user(**fields: str) -> str | None:
        return DIALECT.parse_request(body(**fields)).user

    pairs = [
        user(user="a", safety_identifier="b"),
        user(user="a", safety_identifier="c"),
        user(user="a"),
        user(safety_identifier="b"),
        user(),
    ]
    assert len(set(pairs)) == len(pairs)


TEXT = {"type": "text", "text": "Hello"}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
QUERIES: dict[str, tuple[list[dict[str, Any]], str | None]] = {
    "plain text": (HELLO, "Hello"),
    "text parts": ([{"role": "user", "content": [TEXT, TEXT]}], "Hello\nHello"),
    "an image beside the text": ([{"role": "user", "content": [TEXT, IMAGE]}], None),
    "a part that is no object": ([{"role": "user", "content": ["Hello"]}], None),
    "no parts": ([{"role": "user", "content": []}], None),
    "empty text": ([{"role": "user", "content": ""}], None),
    "no content": ([{"role": "user"}], None),
    "the assistant spoke last": ([*HELLO, {"role": "assistant", "content": "Hi"}], None),
    "a tool spoke last": ([*HELLO, {"role": "tool", "content": "42"}], None),
    "nobody spoke": ([], None),
}


@pytest.mark.parametrize(("messages", "query"), QUERIES.values(), ids=QUERIES.keys())
def test_query_is_the_last_user_text(messages: list[dict[str, Any]], query: str | None) -> None:
    assert DIALECT.parse_request(body(messages=messages)).query == query


REPEATED = {
    "at the top": b'{"model":"m","model":"n","messages":[]}',
    "deep inside": b'{"model":"m","messages":[{"role":"user","content":"a","content":"b"}]}',
    "spelled differently": b'{"model":"m","mod\\u0065l":"n","messages":[]}',
    "made up for in length": b'{"n":1,"n":1,"model":"m","messages":[],"a":1E5,"b":1E5}',
}


@pytest.mark.parametrize("raw", REPEATED.values(), ids=REPEATED.keys())
def test_repeated_key_is_noticed(raw: bytes) -> None:
    assert DIALECT.parse_request(raw).duplicate_keys


@pytest.mark.parametrize(
    "raw",
    [
        body(),
        body(a=[{"x": 1}, {"x": 1}]),
        json.dumps({"model": "m", "messages": HELLO}, indent=2).encode(),
        b'{"model":"m","messages":[],"a":1.50,"b":' + b"9" * 100 + b"}",
        '{"model":"m","messages":[],"a":"\\u00e9 é"}'.encode(),
    ],
)
def test_other_spellings_are_not_repeated_keys(raw: bytes) -> None:
    assert not DIALECT.parse_request(raw).duplicate_keys


# --- asking for usage ------------------------------------------------------------------------


def edit(raw: bytes) -> bytes | None:
    return DIALECT.add_usage(raw, DIALECT.parse_request(raw))


def test_usage_is_asked_for_without_touching_the_rest() -> None:
    raw = b' {  "model" : "m",\n "messages": [], "stream":true}\n'
    edited = edit(raw)
    assert edited is not None
    assert edited.replace(b'"stream_options":{"include_usage":true},', b"") == raw


@pytest.mark.parametrize(
    "raw",
    [
        body(),
        body(stream=True, stream_options={"include_usage": True}),
        b'{"stream":true,"stream":true,"model":"m","messages":[]}',
        b'{"stream":true,"stream_opti\\u006fns":{},"model":"m","messages":[]}',
    ],
    ids=["no stream", "asked already", "repeated keys", "not found by name"],
)
def test_nothing_is_edited_when_there_is_nothing_to_add_or_no_safe_place(raw: bytes) -> None:
    assert edit(raw) is None


DECOYS: tuple[dict[str, Any], ...] = (
    {"metadata": {"stream_options": {"include_usage": False}}},
    {"messages": [{"role": "user", "content": '"stream_options": {"include_usage": false}'}]},
    {"messages": [{"role": "user", "content": '\\"stream_options": {"include_usage": false}'}]},
    {},
)


@pytest.mark.parametrize("decoy", DECOYS)
@pytest.mark.parametrize(
    "options", [{"include_usage": False}, {"include_obfuscation": False}, None]
)
def test_options_that_exist_are_completed(
    decoy: dict[str, Any], options: dict[str, Any] | None
) -> None:
    document = {"model": "m", "messages": HELLO, **decoy, "stream": True, "stream_options": options}
    edited = edit(json.dumps(document).encode())
    assert edited is not None
    wanted = {**document, "stream_options": {**(options or {}), "include_usage": True}}
    assert json.loads(edited) == wanted


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=6).map("x{}".format), json_values),
    st.booleans(),
    st.booleans(),
)
def test_edit_changes_only_the_usage_option(
    fields: dict[str, Any], escaped: bool, spaced: bool
) -> None:
    document = {"model": "m", "messages": HELLO, "stream": True}
    raw = json.dumps(
        {**fields, **document}, ensure_ascii=escaped, indent=1 if spaced else None
    ).encode(errors="replace")
    edited = edit(raw)
    assert edited is not None
    assert json.loads(edited) == {**json.loads(raw), "stream_options": {"include_usage": True}}
